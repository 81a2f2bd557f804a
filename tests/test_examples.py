"""The examples that a page shows work when a reader copies them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from running import ROOT, furnish, script


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_the_kind_of_attention_on_a_page_trains_and_samples(page: str, tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text("utf-8"), flags=re.DOTALL)
    code = next(block for block in blocks if 'kind="' in block)
    kind = code.partition('kind="')[2].partition('"')[0]
    (furnish(tmp_path) / "mine.py").write_text(code, encoding="utf-8")
    trained = script(
        "train.py", "--config", "small.yaml", "--plugin", "mine.py", f"model.attention={kind}", cwd=tmp_path
    )
    assert trained.code == 0, trained.err
    sampled = script("sample.py", "--plugin", "mine.py", "--prompt", "the", cwd=tmp_path)
    assert sampled.code == 0 and sampled.out.startswith("the"), sampled.err
