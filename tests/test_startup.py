"""Start-up: `import torch` is the only large part of it. At the end, nothing takes time."""

from __future__ import annotations

from pathlib import Path

import pytest
from running import furnish, process

PLUGIN = """
import atexit, sys

atexit.register(lambda: print("imported:", *(name for name in HEAVY if name in sys.modules)))
HEAVY = ("torch._dynamo", "torch._inductor", "sympy", "transformers", "matplotlib")
"""


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_neither_training_nor_writing_imports_the_compiler_or_an_extra(kind: str, tmp_path: Path) -> None:
    """torch's compiler takes as long as torch itself, and is imported in many places that do not compile anything."""
    (furnish(tmp_path) / "heavy.py").write_text(PLUGIN, encoding="utf-8")
    arguments = ("--config", "small.yaml", "--plugin", "heavy.py", f"training.optimizer={kind}")
    for command in (("train.py", *arguments), ("sample.py", "--plugin", "heavy.py")):
        ended = process(*command, cwd=tmp_path)
        assert ended.code == 0, ended.err
        assert ended.out.splitlines()[-1].strip() == "imported:"
