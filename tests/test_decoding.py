"""Weights for decoding: the same text in float32, less exact ones that say so, and nothing done to the model."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import get_args

import pytest
import torch
import torch.nn.functional as F
from laws import KINDS
from running import furnish, script
from torch import nn

from minigpt.attention import Attention
from minigpt.decoding import Int8Linear, RowLinear, Weights, prepare
from minigpt.model import GPT, ModelConfig
from minigpt.sampling import SamplingConfig, generate


def tokens(model: GPT, batch: int = 1, **options: object) -> list[list[int]]:
    ids = torch.arange(batch)[:, None]
    made = generate(model, ids, SamplingConfig(max_tokens=20, temperature=0.0), **options)  # type: ignore[arg-type]
    return [row.tolist() for row in made]


def make(kind: type[Attention] = KINDS["multi_head"], **options: object) -> GPT:
    torch.manual_seed(0)
    model = GPT(ModelConfig(n_layer=2, n_embd=16, block_size=12, attention=kind.Config(), **options), 30)  # type: ignore[arg-type]
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


@pytest.fixture
def two_threads() -> object:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("n", [1024, 1025])
def test_a_row_shared_out_is_the_same_product(n: int, bias: bool, two_threads: None) -> None:
    linear = nn.Linear(512, n, bias=bias)
    row, x = RowLinear(linear), torch.randn(1, 1, 512)
    torch.testing.assert_close(row(x), linear(x), rtol=1e-5, atol=1e-6)
    assert row(x).shape == (1, 1, n) and row.weight is linear.weight
    rows = torch.randn(3, 2, 512)
    assert torch.equal(row(rows), linear(rows))


@torch.no_grad()
def test_int8_is_off_by_half_a_step_at_most() -> None:
    linear = nn.Linear(64, 48)
    narrow = Int8Linear(linear)
    restored = narrow.weight.float() * narrow.scale.float()[:, None]
    step = linear.weight.abs().amax(1, keepdim=True) / 127
    assert ((restored - linear.weight).abs() <= 0.5 * step + 127 * step / 256).all()  # the scale is in bfloat16
    assert narrow.weight.dtype == torch.int8 and narrow.weight.abs().max() == 127
    x = torch.randn(5, 3, 64, dtype=torch.bfloat16)
    expected = F.linear(x.float(), restored, linear.bias)
    torch.testing.assert_close(narrow(x).float(), expected, rtol=0.02, atol=0.02)


def test_a_row_of_zeros_stays_zero() -> None:
    linear = nn.Linear(32, 32, bias=False)
    nn.init.zeros_(linear.weight)
    assert not Int8Linear(linear)(torch.randn(1, 32, dtype=torch.bfloat16)).any()


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_in_float32_every_kind_writes_the_same(kind: type[Attention], batch: int) -> None:
    model = make(kind)
    assert tokens(prepare(model), batch) == tokens(model, batch) == tokens(prepare(model), batch, use_cache=False)


@torch.no_grad()
@pytest.mark.parametrize("weights", ["bfloat16", "int8"])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_fewer_bits_are_a_little_off_and_leave_the_model_alone(kind: type[Attention], weights: str) -> None:
    model = make(kind, bias=False).eval()
    before = copy.deepcopy(model.state_dict())
    ids = torch.randint(30, (2, 12))
    narrow = prepare(model, weights)  # type: ignore[arg-type]
    exact, off = model(ids), narrow(ids).float()
    assert 0 < (off - exact).abs().max() < 0.1 * exact.std() * 10 and (off - exact).std() < 0.1 * exact.std()
    assert len(tokens(narrow)) == 20
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())


def test_in_float32_parameters_are_shared_and_stay_trainable() -> None:
    model = make()
    fast = prepare(model)
    assert fast.blocks[0].mlp.up.weight is model.blocks[0].mlp.up.weight
    assert fast.head.weight is model.tokens.weight is fast.tokens.weight
    assert model.training and not fast.training
    model(torch.zeros(1, 3, dtype=torch.long)).sum().backward()
    assert isinstance(model.blocks[0].mlp.up, nn.Linear) and type(model.blocks[0].mlp.up) is nn.Linear


@pytest.mark.parametrize("weights", get_args(Weights))
def test_small_layers_of_one_input_are_one(weights: Weights) -> None:
    blocks = prepare(make(mlp="swiglu", bias=False), weights).blocks
    small = [vars(layer).get("joined") for layer in (blocks[0].attention.query, blocks[0].mlp.gate)]
    assert all(type(joined) is (Int8Linear if weights == "int8" else RowLinear) for joined in small)
    large = GPT(ModelConfig(n_layer=1, n_embd=512), 30)
    assert "joined" not in vars(prepare(large, weights).blocks[0].attention.query)


@torch.no_grad()
def test_a_matrix_that_the_kernel_would_read_past_stays_in_bfloat16() -> None:
    narrow = prepare(GPT(ModelConfig(n_layer=1, n_embd=24, mlp_width=16), 30), "int8")
    mlp = narrow.blocks[0].mlp
    assert type(mlp.up) is RowLinear and mlp.up.weight.dtype == torch.bfloat16 and type(mlp.project) is Int8Linear
    assert narrow(torch.zeros(1, 12, dtype=torch.long)).isfinite().all()


def test_int8_takes_a_quarter_of_the_bytes() -> None:
    model = GPT(ModelConfig(n_layer=2, n_embd=64, bias=False, tied_head=False), 65)
    matrices = sum(p.numel() * 4 for p in model.blocks.parameters() if p.ndim == 2)
    narrow = prepare(model, "int8").blocks
    kept = sum(b.numel() * b.element_size() for b in narrow.buffers())
    assert kept == pytest.approx(matrices / 4, rel=0.03)


# ---- the command ----


def test_the_command_says_what_fewer_bits_cost(tmp_path: Path) -> None:
    assert script("train.py", "--config", "small.yaml", cwd=furnish(tmp_path)).code == 0
    plain = script("sample.py", "--temperature", 0, cwd=tmp_path)
    assert (plain.code, plain.err) == (0, "")
    for weights in get_args(Weights)[1:]:
        ended = script("sample.py", "--temperature", 0, "--weights", weights, cwd=tmp_path)
        found = re.fullmatch(rf"{weights} weights: validation loss (\S+) -> (\S+) \((\S+)\)\n", ended.err)
        assert ended.code == 0 and found and len(ended.out) == len(plain.out)
        before, after, change = map(float, found.groups())
        assert change == pytest.approx(after - before, abs=2e-4) and abs(change) < 0.01
    (tmp_path / "text.txt").unlink()
    gone = script("sample.py", "--weights", "int8", cwd=tmp_path)
    assert gone.code == 0 and gone.err.startswith("int8 weights: the change in loss was not measured (")
    wrong = script("sample.py", "--weights", "int4", cwd=tmp_path)
    assert wrong.code == 2 and wrong.err.count("\n") == 1
