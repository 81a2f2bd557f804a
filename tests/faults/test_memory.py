"""A model that cannot fit into memory is refused before any of it is made, with the bytes needed and free."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from stopping import furnished, train

from minigpt import machine
from minigpt.attention.average import AverageSoftmax
from minigpt.attention.multi_head import MultiHead
from minigpt.machine import check_memory, parameter_count
from minigpt.model import GPT, ModelConfig
from minigpt.strict_yaml import UserError

SMALL = ModelConfig(n_layer=3, n_embd=16, block_size=16, attention=MultiHead.Config(n_head=2))
MIXED = ModelConfig(
    n_layer=4,
    n_embd=16,
    block_size=16,
    attention=(AverageSoftmax.Config(), MultiHead.Config(n_head=2)),
    tied_head=False,
)


@pytest.mark.parametrize("config", [SMALL, MIXED], ids=["alike", "mixed"])
def test_the_count_is_that_of_the_model(config: ModelConfig) -> None:
    real = sum(parameter.numel() for parameter in GPT(config, 50).parameters())
    assert parameter_count(config, 50) == real


def test_the_limit_is_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = parameter_count(SMALL, 50) * machine.TRAINING_BYTES
    monkeypatch.setattr(machine, "free_memory", lambda: needed)
    check_memory(SMALL, 50)
    monkeypatch.setattr(machine, "free_memory", lambda: needed - 1)
    with pytest.raises(UserError, match=f"need {needed:,} bytes to train .*, and {needed - 1:,} are free"):
        check_memory(SMALL, 50)
    monkeypatch.setattr(machine, "free_memory", lambda: None)  # a system that does not say
    check_memory(SMALL, 50)


@pytest.mark.parametrize("size", ["model.n_embd=200000", "model.n_layer=1000000000", "model.n_embd=4000000000"])
def test_the_command_refuses_what_no_machine_holds(size: str, tmp_path: Path) -> None:
    ended = train(furnished(tmp_path), size)
    assert ended.code == 2 and ended.err.count("\n") == 1, ended
    found = re.search(r"need ([\d,]+) bytes .* and ([\d,]+) are free", ended.err)
    assert found, ended.err
    needed, free = (int(number.replace(",", "")) for number in found.groups())
    assert needed > 10**12 > free > 10**6 and not (tmp_path / "runs").exists()
