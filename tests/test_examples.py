"""The examples that a page shows work when a reader copies them."""

from __future__ import annotations

import re
import shlex
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


def test_the_norm_the_mlp_and_the_block_on_the_page_train_and_sample(tmp_path: Path) -> None:
    """By the commands that stand behind them, on a smaller model."""
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    [code] = [block for block in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL) if "(Norm, kind=" in block]
    commands = [shlex.split(line) for line in re.findall(r"^    python (.*--plugin parts\.py.*)$", text, flags=re.M)]
    (furnish(tmp_path) / "parts.py").write_text(code, encoding="utf-8")
    chosen = [[word for word in words if word.startswith("model.")] for words in commands]
    assert {word.partition("=")[0] for options in chosen for word in options} == {
        "model.norm",
        "model.mlp",
        "model.block",
    }
    for number, options in enumerate(chosen):
        words = ("--config", "small.yaml", "--name", f"run{number}", "--plugin", "parts.py")
        trained = script("train.py", *words, *options, cwd=tmp_path)
        assert trained.code == 0 and "note:" not in trained.out, trained.err
        sampled = script("sample.py", "--plugin", "parts.py", "--prompt", "the", cwd=tmp_path)
        assert sampled.code == 0 and sampled.out.startswith("the"), sampled.err
