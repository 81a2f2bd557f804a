"""Untrusted folders made by a seeded fuzzer: every file and field (`mutations.py`), every command (`fuzz.py`).

Each case ends with exit code 0, 2, 3, 4 or 5 within 20 seconds and 2 GB, with one line. No file outside the folder is
changed, printed or executed, and no text of the folder is markup in the page.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from comparing import SMALL
from running import environment, script, well
from stopping import furnished, train

FEWER = {
    "max_steps: 6, eval_every: 3": "max_steps: 2, eval_every: 2",
    "count: 300, validation: 60": "count: 100, validation: 20",
}
PROGRAM = Path(__file__).with_name("fuzz.py")


@pytest.fixture(scope="module", params=["run", "comparison"])
def untrusted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A folder with a whole run or comparison, and a secret beside it."""
    kind, home = request.param, tmp_path_factory.mktemp(request.param) / "home"
    furnished(home)
    if kind == "run":
        assert train(home, "training.max_steps=4", "training.checkpoint_every=2").code == 0
    else:
        text = SMALL
        for more, few in FEWER.items():
            text = text.replace(more, few)
        (home / "small.yaml").write_text(text, encoding="utf-8")
        assert script("compare.py", "--config", "small.yaml", cwd=home).code == 0
    (home / "outside").mkdir()
    (home / "outside" / "secret.txt").write_text("SECRET\n" * 100, encoding="utf-8")
    return kind, home


def check(said: str, count: int) -> None:
    """What holds of so many cases."""
    cases = [json.loads(line) for line in said.splitlines()]
    assert len(cases) == count and len({case["code"] for case in cases}) > 1
    assert [case for case in cases if case["wrong"]] == []


def test_5_untrusted_folders(untrusted: tuple[str, Path]) -> None:
    kind, home = untrusted
    check(well(script(PROGRAM, kind, home, 0, 5, cwd=home.parent)), 5)


@pytest.mark.slow
def test_more_untrusted_folders(untrusted: tuple[str, Path], whole: bool) -> None:
    (kind, home), count = untrusted, 300 if whole else 25
    command = [sys.executable, str(PROGRAM), kind, str(home), "5", str(count)]
    ended = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=1800)
    assert ended.returncode == 0, ended.stderr
    check(ended.stdout, count)
