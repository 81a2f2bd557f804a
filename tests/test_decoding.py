"""Weights for decoding: float32 gives the same text, smaller formats report their error, the model is not changed."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
import torch.nn.functional as F
from laws import KINDS
from running import furnish, script
from torch import nn

from minigpt.attention import Attention, Past
from minigpt.attention.softmax.multi_head import split_heads
from minigpt.fast import decoding, packed
from minigpt.fast.decoding import prepare
from minigpt.fast.packed import Int8Linear, Int8PackedLinear, PackedLinear, RowLinear, Weights
from minigpt.model import GPT, ModelConfig, SamplingConfig, generate
from minigpt.model.mlp import GELU, SwiGLU


def needs(weights: Weights) -> pytest.MarkDecorator:
    there = decoding.packs(weights, torch.zeros(1))
    return pytest.mark.skipif(not there, reason=f"torch has no packed kernels for {weights} on this processor")


WRITTEN = 13  # tokens, past the context of 12


def tokens(model: GPT, batch: int = 1, **options: object) -> list[list[int]]:
    ids = torch.arange(batch)[:, None]
    made = generate(model, ids, SamplingConfig(max_tokens=WRITTEN, temperature=0.0), **options)  # type: ignore[arg-type]
    return [row.tolist() for row in made]


def make(kind: type[Attention] = KINDS["multi_head"], **options: object) -> GPT:
    torch.manual_seed(0)
    shape: dict[str, Any] = {"n_layer": 2, "n_embd": 16, "block_size": 12, **options}
    model = GPT(ModelConfig(**shape, attention=kind.Config()), 30)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without kernels for a few light layers among others in float32."""
    monkeypatch.setattr(decoding, "packs", lambda weights, like: False)


@torch.no_grad()
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [(1, 1), (1, 7), (3, 2)])
@pytest.mark.parametrize(
    "make_layer",
    [RowLinear, pytest.param(lambda layer: PackedLinear(layer, torch.float32), marks=needs("float32"))],
    ids=["columns", "packed"],
)
def test_weights_that_lie_otherwise_make_the_same_product(
    make_layer: Callable[[nn.Linear], nn.Module], rows: tuple[int, int], bias: bool
) -> None:
    linear, x = nn.Linear(520, 77, bias=bias), torch.randn(*rows, 520)
    made = make_layer(linear)(x)
    assert made.shape == (*rows, 77)
    torch.testing.assert_close(made, linear(x), rtol=1e-5, atol=1e-6)


@needs("bfloat16")
@torch.no_grad()
@pytest.mark.parametrize("bias", [True, False])
def test_bfloat16_weights_among_others_are_off_by_their_rounding(bias: bool) -> None:
    linear, x = nn.Linear(256, 96, bias=bias), torch.randn(2, 3, 256)
    made = PackedLinear(linear, torch.bfloat16)(x)
    lighter = copy.deepcopy(linear).to(torch.bfloat16)
    torch.testing.assert_close(made, lighter(x.to(torch.bfloat16)).float(), rtol=0.01, atol=0.01)
    assert made.dtype == torch.float32 and not torch.equal(made, linear(x))


# ---- int8 ----


@torch.no_grad()
def test_int8_is_off_by_half_a_step_at_most() -> None:
    linear = nn.Linear(64, 48)
    narrow = Int8Linear(linear)
    restored = narrow.whole.float() * narrow.scale.float()[:, None]
    step = linear.weight.abs().amax(1, keepdim=True) / 127
    assert ((restored - linear.weight).abs() <= 0.5 * step + 127 * step / 256).all()  # the scale is in bfloat16
    assert narrow.whole.dtype == torch.int8 and narrow.whole.abs().max() == 127
    x = torch.randn(5, 3, 64, dtype=torch.bfloat16)
    expected = F.linear(x.float(), restored, linear.bias)
    torch.testing.assert_close(narrow(x).float(), expected, rtol=0.02, atol=0.02)


@needs("int8")
@torch.no_grad()
@pytest.mark.parametrize("overflow", [False, True])
@pytest.mark.parametrize("rows", [(1, 1), (5, 3)])
def test_packed_int8_is_off_by_half_a_step_of_either_at_most(
    rows: tuple[int, int], overflow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error of a sum of products is at most the sum of what each may be off."""
    monkeypatch.setattr(packed, "pairs_overflow", lambda: overflow)
    linear, x = nn.Linear(72, 48), torch.randn(*rows, 72)
    made = Int8PackedLinear(linear)(x)
    weights_off = linear.weight.abs().amax(1) / 254  # (48,)
    rows_off = x.abs().amax(-1, keepdim=True) * (2 if overflow else 1) / 250  # (..., 1)
    bound = x.abs().sum(-1, keepdim=True) * weights_off + rows_off * (linear.weight.abs().sum(1) + 72 * weights_off)
    assert ((made - linear(x)).abs() <= bound).all() and not torch.equal(made, linear(x))
    assert (made - linear(x)).abs().mean() < 0.1 * bound.mean()  # and they are not all off in one direction


@needs("int8")
@torch.no_grad()
def test_rows_in_int8_do_not_depend_on_each_other() -> None:
    """One row that is a thousand times as large takes nothing from the others, whether it comes before or after."""
    layer, x = Int8PackedLinear(nn.Linear(64, 48)), torch.randn(1, 6, 64)
    larger = torch.cat((x, 1000 * x), dim=1)
    assert torch.equal(layer(larger)[:, :6], layer(x)) and torch.equal(layer(larger.flip(1)).flip(1)[:, :6], layer(x))


@needs("int8")
def test_no_pair_overflows() -> None:
    """The largest numbers that there are: a processor that adds in 16 bits makes less of them, and is found out."""
    linear = nn.Linear(64, 16, bias=False)
    nn.init.ones_(linear.weight)
    for x in (torch.ones(1, 64), torch.ones(2, 64)):
        torch.testing.assert_close(Int8PackedLinear(linear)(x), torch.full((len(x), 16), 64.0), rtol=0.01, atol=0)


@pytest.mark.parametrize("kind", [Int8Linear, pytest.param(Int8PackedLinear, marks=needs("int8"))])
def test_a_row_of_zeros_stays_zero(kind: type[nn.Module]) -> None:
    linear = nn.Linear(32, 32, bias=False)
    nn.init.zeros_(linear.weight)
    number = torch.bfloat16 if kind is Int8Linear else torch.float32
    assert not kind(linear)(torch.randn(1, 32, dtype=number)).any()
    for rows in (1, 2):
        assert not kind(nn.Linear(32, 32, bias=False))(torch.zeros(rows, 32, dtype=number)).any()


# ---- the model ----


EVERY = pytest.mark.parametrize("kind", KINDS.values(), ids=[*KINDS])


@pytest.mark.quick(3)
@EVERY
@pytest.mark.parametrize("batch", [1, 3])
def test_in_float32_every_kind_writes_the_same(kind: type[Attention], batch: int) -> None:
    model = make(kind)
    prepared = prepare(model)
    assert tokens(prepared, batch) == tokens(model, batch) == tokens(prepared, batch, use_cache=False)


@torch.no_grad()
@pytest.mark.quick(5)
@EVERY
@pytest.mark.parametrize("packs", [True, False], ids=["", "everything in bfloat16"])
@pytest.mark.parametrize("weights", ["int8", "bfloat16"])
def test_fewer_bits_are_a_little_off_and_leave_the_model_alone(
    kind: type[Attention], weights: Weights, packs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not packs:
        elsewhere(monkeypatch)
    model = make(kind, bias=False).eval()
    before = copy.deepcopy(model.state_dict())
    ids = torch.randint(30, (2, 12))
    narrow = prepare(model, weights)
    exact, off = model(ids), narrow(ids).float()
    assert 0 < (off - exact).abs().max() < exact.std() and (off - exact).std() < 0.1 * exact.std()
    assert len(tokens(narrow)) == WRITTEN
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.dtype == torch.float32 for parameter in model.parameters())


@torch.no_grad()
@pytest.mark.parametrize("weights", get_args(Weights))
def test_nothing_that_is_written_depends_on_the_future(weights: Weights) -> None:
    """A long text holds the same logits for its beginning as the beginning alone."""
    narrow, ids = prepare(make(block_size=48), weights), torch.randint(30, (1, 48))
    torch.testing.assert_close(narrow(ids)[:, :24], narrow(ids[:, :24]), rtol=1e-5, atol=1e-5)


def test_the_rest_is_shared_and_stays_trainable() -> None:
    model = make()
    fast = prepare(model)
    assert fast.tokens.weight is model.tokens.weight and fast.norm.weight is model.norm.weight
    assert model.training and not fast.training
    model(torch.zeros(1, 3, dtype=torch.long)).sum().backward()
    assert isinstance(model.blocks[0].mlp.up, nn.Linear) and type(model.blocks[0].mlp.up) is nn.Linear


PACKED: dict[Weights, type[nn.Module]] = {"float32": RowLinear, "bfloat16": PackedLinear, "int8": Int8PackedLinear}


@pytest.mark.parametrize("weights", [pytest.param(weights, marks=needs(weights)) for weights in PACKED])
def test_layers_of_one_input_are_one(weights: Weights) -> None:
    blocks = prepare(make(mlp=SwiGLU.Config(), bias=False), weights).blocks
    for layer in (blocks[0].attention, blocks[0].mlp):
        assert isinstance(vars(layer)["joined"], PACKED[weights])


class InAnotherOrder(KINDS["multi_head"]):  # type: ignore[misc]
    """A kind that calls its layers itself, in another order, and one of them twice."""

    def qkv(self, x: torch.Tensor, past: Past) -> tuple[torch.Tensor, ...]:
        value, key = split_heads(self.value(x), 4), split_heads(self.key(x), 4)  # (B, 4, T, d) each
        return split_heads((self.query(x) + self.query(x)) / 2, 4), key, value


@torch.no_grad()
@pytest.mark.parametrize("weights", get_args(Weights))
def test_other_layers_of_one_input_are_others(weights: Weights) -> None:
    model, ids = make(bias=False).eval(), torch.randint(30, (1, 5))
    expected = model(ids)
    for block in model.blocks:
        block.attention.__class__ = InAnotherOrder
    torch.testing.assert_close(model(ids), expected)
    assert (prepare(model, weights)(ids).float() - expected).std() < 0.1 * expected.std()


@needs("float32")
def test_large_matrices_are_packed_in_float32_too() -> None:
    large = prepare(GPT(ModelConfig(n_layer=1, n_embd=512), 30))
    assert isinstance(large.blocks[0].mlp.up, PackedLinear) and isinstance(large.head, RowLinear)


def test_in_float64_nothing_is_made_lighter() -> None:
    model = GPT(ModelConfig(n_layer=1, n_embd=512), 30).double().eval()
    ids = torch.randint(30, (1, 5))
    torch.testing.assert_close(prepare(model)(ids), model(ids), rtol=1e-12, atol=1e-12)


class Doubled(GPT):
    def hidden(self, *arguments: Any, **options: Any) -> torch.Tensor:
        return 2 * super().hidden(*arguments, **options)


@torch.no_grad()
def test_what_somebody_has_changed_or_watches_counts() -> None:
    ids, seen = torch.randint(30, (1, 5)), []
    model = Doubled(ModelConfig(n_layer=2, n_embd=16, block_size=12), 30).eval()
    model.blocks[0].mlp.up.register_forward_hook(lambda *_: seen.append("up"))
    model.blocks[0].mlp_norm.register_forward_hook(lambda *_: seen.append("norm"))
    model.blocks[0].attention.query.register_forward_hook(lambda *_: seen.append("query"))
    model.blocks[1].mlp.forward = lambda x: 0 * x  # type: ignore[method-assign]
    expected = model(ids)
    assert sorted(seen) == ["norm", "query", "up"]
    torch.testing.assert_close(prepare(model)(ids), expected, rtol=1e-5, atol=1e-6)
    assert sorted(seen) == ["norm", "norm", "query", "query", "up", "up"]


class ReadsWeights(KINDS["multi_head"]):  # type: ignore[misc]
    """A kind that looks at its layers' parameters itself."""

    def output(self, mixed: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = mixed.transpose(1, 2).flatten(2) @ self.project.weight.T
        return made


@torch.no_grad()
@pytest.mark.parametrize("packs", [True, False], ids=["", "elsewhere"])
@pytest.mark.parametrize("weights", get_args(Weights))
def test_a_kind_may_read_its_weights(weights: Weights, packs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not packs:
        elsewhere(monkeypatch)
    model = GPT(ModelConfig(n_layer=1, n_embd=512, bias=False), 30).eval()
    model.blocks[0].attention.__class__ = ReadsWeights
    ids = torch.randint(30, (1, 5))
    exact, off = model(ids), prepare(model, weights)(ids).float()
    assert (off - exact).std() < 0.1 * exact.std()


class Keeps(KINDS["multi_head"]):  # type: ignore[misc]
    """A kind that keeps its last look, and all of them."""

    def weights(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        self.last: torch.Tensor = super().weights(query, key)
        self.all: dict[str, list[torch.Tensor]] = {"looks": [*getattr(self, "all", {"looks": []})["looks"], self.last]}
        return self.last


@pytest.mark.parametrize("weights", get_args(Weights))
def test_a_kind_may_keep_what_it_computed(weights: Weights) -> None:
    model = make()
    for block in model.blocks:
        block.attention.__class__ = Keeps
    model(torch.zeros(1, 3, dtype=torch.long)).sum().backward()
    assert len(tokens(prepare(model, weights))) == WRITTEN
    assert model.blocks[0].attention.last.requires_grad


def test_onednn_is_as_it_was_afterwards() -> None:
    before = torch._C._get_mkldnn_enabled()
    fast = prepare(make())
    fast(torch.zeros(1, 1, dtype=torch.long))
    with pytest.raises(ValueError, match="do not fit"):
        fast(torch.zeros(1, 13, dtype=torch.long))
    assert torch._C._get_mkldnn_enabled() == before


@torch.no_grad()
def test_a_matrix_that_the_kernel_would_read_past_stays_in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere(monkeypatch)
    narrow = prepare(GPT(ModelConfig(n_layer=1, n_embd=24, mlp=GELU.Config(width=16)), 30), "int8")
    mlp = narrow.blocks[0].mlp
    assert isinstance(mlp.up, RowLinear) and mlp.up.weight.dtype == torch.bfloat16
    assert isinstance(mlp.project, Int8Linear)
    assert narrow(torch.zeros(1, 12, dtype=torch.long)).isfinite().all()


def test_int8_takes_a_quarter_of_the_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere(monkeypatch)
    model = GPT(ModelConfig(n_layer=2, n_embd=64, bias=False, tied_head=False), 65)
    matrices = sum(p.numel() * 4 for name, p in model.blocks.named_parameters() if p.ndim == 2)
    narrow = prepare(model, "int8").blocks
    layers = [vars(module).get("joined", module) for module in narrow.modules()]
    buffers = [b for layer in layers if isinstance(layer, Int8Linear) for b in layer.buffers()]
    kept = sum(b.numel() * b.element_size() for b in buffers)
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


def test_a_run_that_asks_for_fewer_bits_is_written_with_them_and_no_text_is_read(tmp_path: Path) -> None:
    """The name of a text in an untrusted config is untrusted too: only `--weights` opens the text."""
    train = script("train.py", "--config", "small.yaml", "sampling.weights=bfloat16", cwd=furnish(tmp_path))
    assert train.code == 0
    ended = script("sample.py", "--temperature", 0, cwd=tmp_path)
    asked = script("sample.py", "--temperature", 0, "--weights", "bfloat16", cwd=tmp_path)
    assert (ended.code, ended.err) == (0, "") and ended.out == asked.out
    assert asked.err.startswith("bfloat16 weights: validation loss ")
    assert script("sample.py", "--weights", "float32", cwd=tmp_path).err == ""
