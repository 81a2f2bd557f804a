"""Start-up: `import torch` is the only large part of it. At the end, nothing takes time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from running import SCRIPTS, environment, furnish

from minigpt.attention import Attention
from minigpt.model import GPT, ModelConfig
from minigpt.training.memory import outline

HEAVY = ("torch._dynamo", "torch._inductor", "sympy", "transformers", "matplotlib")
RUN = """
import os, runpy, sys
for words in {commands}:
    sys.argv = list(words)
    sys.path[0] = os.path.dirname(words[0])
    try:
        runpy.run_path(words[0], run_name="__main__")
    except SystemExit as end:
        assert not end.code, words
    assert not (there := [name for name in {heavy} if name in sys.modules]), (words, there)
"""
FILLED = ["gated_linear", "token_shift", "differential"]  # their constructors compute with arange, linspace, randn


@pytest.mark.slow
def test_neither_training_nor_writing_imports_the_compiler_or_an_extra(tmp_path: Path) -> None:
    """torch's compiler takes as long as torch itself, and is imported in many places that do not compile anything."""
    furnish(tmp_path)
    train = (str(SCRIPTS / "train.py"), "--config", "small.yaml")
    commands = [(*train, f"training.optimizer={kind}") for kind in ("adamw", "muon")]
    commands += [(*train, f"model.attention={kind}") for kind in FILLED] + [(str(SCRIPTS / "sample.py"),)]
    code = RUN.format(commands=commands, heavy=HEAVY)
    command = [sys.executable, "-c", code]
    ended = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.quick(4)
@pytest.mark.parametrize("kind", Attention.kinds)
def test_the_outline_of_a_model_has_its_shapes_and_types(kind: str) -> None:
    config = ModelConfig(n_layer=2, n_embd=16, block_size=8, attention=Attention.kinds[kind].Config())
    model, sketch = GPT(config, 11), outline(config, 11)
    assert all(tensor.is_meta for tensor in sketch.state_dict().values())
    found = [{name: (x.shape, x.dtype) for name, x in each.state_dict().items()} for each in (model, sketch)]
    assert found[0] == found[1]
