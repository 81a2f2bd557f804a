"""A whole untrusted run folder, opened by the real commands: nothing outside it is changed, and no bug is reported."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import untrusted
from running import script, slow_but
from safetensors.torch import load_file, save_file
from stopping import COMMANDS


def change_newest(home: Path, change: Callable[[Path], None]) -> None:
    """Change the newest checkpoint and its manifest; remove the older ones."""
    path = home / "runs" / "small" / "checkpoints" / "step-000008"
    change(path)
    untrusted.update_manifest(path)
    for other in path.parent.iterdir():
        if other != path:
            shutil.rmtree(other)


def nested(value: Any, levels: int = 500) -> Any:
    """A value in many lists."""
    return nested([value], levels - 1) if levels else value


STATES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "nothing but the step": lambda state: {"step": 8},
    "texts for numbers": lambda state: state | {"seconds": "1", "tokens": "2"},
    "numbers that no clock shows": lambda state: state | {"seconds": 10**400},
    "losses that are texts": lambda state: state | {"losses": ["a"]},
    "evaluations of one": lambda state: state | {"evaluations": [[1]]},
    "evaluations that are no list": lambda state: state | {"evaluations": 7},
    "numbers beyond 64 bits": lambda state: state | {"tokens": 10**400, "losses": [-(10**4000)]},
    "numbers whose sum is none": lambda state: state | {"losses": [1e308] * 3, "seconds": 1e308},
    "steps that are no whole numbers": lambda state: state | {"evaluations": [[1.5, 2.0, 2.0]]},
    "levels without end": lambda state: state | {"losses": nested(1.0)},
    "data that is no digest": lambda state: state | {"data": ["../../secret.txt"]},
}


Tensors = dict[str, torch.Tensor]
MEMORIES: dict[str, Callable[[Tensors, str], Tensors]] = {  # of the tensors and the name of one, `...|exp_avg`
    "a wrong shape": lambda tensors, name: tensors | {name: torch.zeros(1)},
    "a wrong type": lambda tensors, name: tensors | {name: tensors[name].to(torch.int64)},
    "one missing": lambda tensors, name: {key: value for key, value in tensors.items() if key != f"{name}_sq"},
    "one of no weight": lambda tensors, name: tensors | {"../../weight|exp_avg": torch.zeros(1)},
    "an unknown memory": lambda tensors, name: tensors | {name.replace("exp_avg", "__class__"): torch.zeros(1)},
    "none at all": lambda tensors, name: {},
}


@pytest.mark.parametrize("what", [*STATES, *MEMORIES])
def test_a_state_or_a_memory_that_no_training_wrote(what: str, home: Path) -> None:
    def change(path: Path) -> None:
        if what in STATES:
            state = json.loads((path / "state.json").read_text("utf-8"))
            (path / "state.json").write_text(json.dumps(STATES[what](state)), encoding="utf-8")
            return
        tensors = load_file(path / "optimizer.safetensors")
        name = next(name for name in tensors if name.endswith("exp_avg"))
        save_file(MEMORIES[what](tensors, name), path / "optimizer.safetensors")

    change_newest(home, change)
    ended = script(*COMMANDS["resume"], cwd=home)
    assert ended.code in (2, 4) and ended.err.count("\n") == 1, ended


LINES = {
    "not UTF-8": b'{"step": 1}\n\xff\xfe\n',
    "numbers": b"1\n2\n",
    "a step that is a text": b'{"step": "1"}\n',
    "no loss": b'{"step": 1}\n',
    "a loss that is NaN": b'{"step": 1, "train/loss": NaN}\n',
    "zeros": bytes(1000),
    "a validation loss that is a text": b'{"step": 4, "train/loss": 2.0, "val/loss": "a"}\n',
    "a loss beyond all numbers": b'{"step": 4, "train/loss": 1e308, "val/loss": 1e308}\n',
    "a step of 5,000 digits": b'{"step": ' + b"9" * 5000 + b', "train/loss": 2.0}\n',
    "a line of a megabyte": b'{"step": 4, "train/loss": 2.0, "x": "' + b"a" * (1 << 20) + b'"}\n',
    "levels": b"[" * 100_000 + b"\n",
    "a carriage return within": b'{"step": 1, "train/loss": 2.0, "x": "\r"}\r\n',
}


@pytest.mark.parametrize("what", slow_but(LINES, *[*LINES][::3]))
def test_metrics_that_are_damaged(what: str, home: Path) -> None:
    """A log is not worth a training: what cannot be read in it is left out."""
    path = home / "runs" / "small" / "metrics.jsonl"
    path.write_bytes(path.read_bytes() + LINES[what])
    ended = script("train.py", "--resume", "small", "training.max_steps=9", cwd=home)
    assert ended.code in (0, 2) and ended.err.count("\n") <= 1, ended


def test_pickles_for_weights(home: Path) -> None:
    canary = home / "CANARY"
    for (_, raw), command in zip(untrusted.pickles(canary), [*COMMANDS.values()] * 2):
        change_newest(home, partial(put, raw))
        ended = script(*command, cwd=home)
        assert ended.code == 4 and ended.err.startswith("checkpoint refused: ") and "model.safetensors" in ended.err
        assert not canary.exists()


def put(raw: bytes, path: Path) -> None:
    (path / "model.safetensors").write_bytes(raw)


def test_a_tokenizer_of_another_size(home: Path) -> None:
    (home / "runs" / "small" / "tokenizer.json").write_text('{"kind": "byte"}', encoding="utf-8")
    for command in COMMANDS.values():
        ended = script(*command, cwd=home)
        assert ended.code in (2, 4) and ended.err.count("\n") == 1, ended
