"""Other systems: the main job in processes that imitate Windows, and a file system of a network without locks.

No test here has met a real Windows. What an imitation refuses is in `imitated/`, and no more than that is known.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from imitating import commands_like
from running import furnish, well

MINE = """\
from minigpt.attention.softmax.multi_head import MultiHead


class Bounded(MultiHead, kind="bounded"):
    def scores(self, query, key):
        return super().scores(query, key).tanh()
"""
TRAIN = ("train.py", "--config", "small.yaml", "training.max_steps=2", "training.eval_every=2")
MAIN = [TRAIN, ("train.py", "--resume", "small", "training.max_steps=4"), ("sample.py", "--max-tokens", "3")]
LOCKED = """
from pathlib import Path
from minigpt.system.locks import InUse, Lock
with Lock(Path("runs/small")):
    try:
        Lock(Path("runs/small"))
    except InUse as error:
        print(error)
"""


@pytest.mark.parametrize("system", ["windows", "network"])
def test_a_model_is_trained_goes_on_and_writes(system: str, tmp_path: Path) -> None:
    """Two runs cannot share a folder there either, and nothing is left beside the files of a run."""
    out = well(commands_like(system, *MAIN, cwd=furnish(tmp_path), code=LOCKED))
    assert "done: 4 steps" in out and "runs/small is in use by process" in out
    assert sorted(path.name for path in (tmp_path / "runs" / "small" / "checkpoints").iterdir()) == [
        "step-000002",
        "step-000004",
    ]
    left = [path for path in tmp_path.rglob("*") if path.name.endswith((".lock", ".holder", ".part"))]
    assert [path.name for path in left if path.parent.name != "small"] == []
