"""Plain = fast: with and without the faster forms, a model computes equal values and gradients, in float64.

For every kind, option and position, in training and in decoding; each trick can be turned off by its name.

B batch, T positions, V vocabulary.
"""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from laws import BLOCK, INSIDE, Case, V, divided, model_config, stir
from torch import Tensor
from torch.nn.attention import flex_attention

from benchmarks.tricks import MODELS, WHERE
from minigpt.attention import Attention, GroupedQuery, MultiHead, Shape, SingleHead
from minigpt.attention.linear.gated_linear import GatedLinear
from minigpt.attention.linear.kimi_delta import KimiDelta
from minigpt.attention.position import NoPosition, Position, Rotary
from minigpt.checks.laws_of_writing import decode
from minigpt.config.options import from_dict
from minigpt.fast import flexible, make_fast
from minigpt.fast.chunks import chunked
from minigpt.fast.decoding import prepare
from minigpt.fast.guard import FORMS
from minigpt.fast.joined import weight_and_bias as two
from minigpt.fast.switch import TRICKS
from minigpt.model import GPT, ModelConfig
from minigpt.model.mlp import SwiGLU
from minigpt.model.norm import RMSNorm

EXACT = {"rtol": 1e-10, "atol": 1e-10}
MODERN = {"norm": RMSNorm.Config(), "mlp": SwiGLU.Config(), "bias": False, "tied_head": False, "embedding_norm": True}
QUICK, REST = divided(INSIDE)
TRICKY = Case(GroupedQuery.Config(n_kv_head=2, qk_norm=True), Rotary.Config())


def plain_and_fast(case: Case, without: tuple[str, ...] = (), **options: object) -> tuple[GPT, GPT]:
    """One model twice, with equal parameters: as the textbook has it, and with the faster forms."""
    torch.manual_seed(0)
    plain = GPT(replace(model_config(case, n_layer=2), **options), V)
    stir(plain)
    return make_fast(plain.double(), fast=False), make_fast(copy.deepcopy(plain), without=without)


def results(model: GPT, ids: Tensor, direction: Tensor) -> list[Tensor]:
    """The logits of ids (B, T), and the gradients of every parameter."""
    logits = model(ids)  # (B, T, V)
    gradients = torch.autograd.grad((logits * direction).sum(), [*model.parameters()], allow_unused=True)
    zeros = (torch.zeros_like(parameter) for parameter in model.parameters())
    return [logits.detach(), *(zero if g is None else g for g, zero in zip(gradients, zeros))]


def check_equal(plain: GPT, fast: GPT) -> None:
    ids, direction = torch.randint(V, (2, BLOCK)), torch.randn(2, BLOCK, V, dtype=torch.float64)
    for ours, theirs in zip(results(fast, ids, direction), results(plain, ids, direction)):
        torch.testing.assert_close(ours, theirs, **EXACT)


@pytest.mark.parametrize("case", QUICK, ids=str)
def test_training_and_decoding_compute_the_same(case: Case) -> None:
    plain, fast = plain_and_fast(case)
    check_equal(plain, fast)
    check_decoding(plain.eval(), fast.eval())


@torch.no_grad()
def check_decoding(plain: GPT, fast: GPT) -> None:
    """However the tokens come, they are equal; and the last position alone is the last of all."""
    prepared, ids = prepare(fast), torch.randint(V, (2, BLOCK))
    expected = plain(ids)
    for model in (plain, fast, prepared):
        torch.testing.assert_close(decode(model, ids, [1, 1, 4, 2]), expected, **EXACT)
    hidden, cache = prepared.hidden(ids), prepared.make_cache()
    assert hidden.shape[1] == BLOCK
    last = plain.last(ids)  # (B, D)
    for other in (plain.hidden(ids)[:, -1], prepared.last(ids), hidden[:, -1]):
        torch.testing.assert_close(other, last, **EXACT)
    torch.testing.assert_close(prepared.last(ids[:, :5], cache), plain.last(ids[:, :5]), **EXACT)
    torch.testing.assert_close(prepared.last(ids[:, 5:], cache), last, **EXACT)


@pytest.mark.slow
def test_with_positions_that_are_alike_all_computes_the_same(whole: bool) -> None:
    for case in REST if whole else REST[::3]:
        test_training_and_decoding_compute_the_same(case)


@pytest.mark.parametrize("kind", [SingleHead.Config(qk_norm=True), MultiHead.Config(), TRICKY.attention], ids=str)
def test_the_modern_shape_computes_the_same(kind: SingleHead.Config) -> None:
    plain, fast = plain_and_fast(Case(kind, Rotary.Config()), **MODERN)
    check_equal(plain, fast)
    ids = torch.randint(V, (2, BLOCK))
    with torch.no_grad():
        torch.testing.assert_close(prepare(fast.eval())(ids), plain.eval()(ids), **EXACT)


@pytest.mark.parametrize("d", [1, 3, 5])
def test_heads_of_odd_widths_compute_the_same(d: int) -> None:
    check_equal(*plain_and_fast(Case(MultiHead.Config(head_dim=d), Rotary.Config())))


@pytest.mark.parametrize("e", [2, 4, 9])
def test_values_of_another_width_stay_in_the_fused_kernel(e: int) -> None:
    """torch's kernel for CPUs takes equal widths; for others it makes all weights, without a word."""
    layer = make_fast(MultiHead(MultiHead.Config(n_head=2), Shape(n_embd=8)))
    query, key, value = (torch.randn(3, 2, 6, d, requires_grad=True) for d in (4, 4, e))
    with torch.autograd.profiler.profile() as profiled:
        mixed = layer.mix(query, key, value)  # (B, H, T, e)
    names = [event.name for event in profiled.function_events]
    assert "aten::_scaled_dot_product_flash_attention_for_cpu" in names
    torch.testing.assert_close(mixed, layer.weights(query, key) @ value)
    found = torch.autograd.grad(mixed.square().sum(), (query, key, value))
    explicit = (layer.weights(query, key) @ value).square().sum()
    for ours, theirs in zip(found, torch.autograd.grad(explicit, (query, key, value))):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("position", [NoPosition, Rotary])
@pytest.mark.parametrize("kind", [SingleHead, MultiHead, GroupedQuery])
def test_layers_that_are_joined_in_a_pass_of_training_compute_the_same(
    kind: type[SingleHead | MultiHead], position: type[Position], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Autocast leaves float64 as it is, so that joined layers can be compared to the last digits."""
    joined = []
    monkeypatch.setattr("minigpt.fast.joined.weight_and_bias", lambda layers: joined.append(layers) or two(layers))
    for qk_norm, bias in ((False, True), (True, False)):
        config = replace(model_config(Case(kind.Config(qk_norm=qk_norm), position.Config())), **MODERN | {"bias": bias})
        plain = GPT(config, V).double()
        fast, ids = make_fast(copy.deepcopy(plain)), torch.randint(V, (9, BLOCK))
        noise = torch.randn(9, BLOCK, V).double()
        for model in (plain, fast):
            with torch.autocast("cpu", torch.bfloat16):
                (model(ids) * noise).sum().backward()
        assert len(joined) == 2 * config.n_layer  # once for queries, keys and values, once for the gate
        for ours, theirs in zip(fast.parameters(), plain.parameters()):
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=0, atol=1e-10)
        joined.clear()
        fast(ids), fast(ids[:1, :3])
        assert not joined  # in float64 and float32 separate layers are as fast


def test_weights_are_dropped_in_training_with_a_cache_too() -> None:
    layer = make_fast(MultiHead(MultiHead.Config(n_head=2), Shape(n_embd=8, dropout=0.5)))
    x = torch.randn(1, 5, 8)
    dropped, kept = (decode_one(layer.train(mode), x) for mode in (True, False))
    assert not torch.equal(dropped, decode_one(layer.train(), x)) and not torch.equal(dropped, kept)
    assert torch.equal(kept, decode_one(layer.eval(), x))


def decode_one(layer: MultiHead, x: Tensor) -> Tensor:
    """The output of the last token of x (B, T, D), which comes alone after the others: (B, 1, D)."""
    cache = layer.make_cache(x.shape[1])
    layer(x[:, :-1], cache)
    return layer(x[:, -1:], cache)


def methods(model: GPT) -> Iterator[str]:
    """The faster forms in a model, as part.method."""
    for name, module in model.named_modules():
        yield from (f"{name}.{method}" for method in vars(module).get("faster", ()))


@pytest.mark.parametrize("trick", TRICKS)
def test_a_trick_is_turned_off_by_its_name(trick: str) -> None:
    averages = replace(TRICKY, attention=(TRICKY.attention, MultiHead.Config()))
    plain, fast = plain_and_fast(averages, without=(trick,), **MODERN)
    check_equal(plain, fast)
    own = {id(form.function) for form in FORMS.values() if form.trick == trick}
    found = [vars(module)[name] for module in fast.modules() for name in vars(module).get("faster", ())]
    assert found and not [method for method in found if id(method.__func__) in own]


def test_one_switch_turns_all_of_it_off() -> None:
    plain, fast = plain_and_fast(TRICKY, **MODERN)
    assert list(methods(plain)) == []
    assert "blocks.0.attention.mix" in methods(fast) and "blocks.1.attention.position.rotate" in methods(fast)
    assert list(methods(make_fast(fast, fast=False))) == []
    check_equal(plain, fast)


def test_a_copy_of_a_fast_model_computes_with_its_own_weights() -> None:
    _, fast = plain_and_fast(TRICKY, **MODERN)
    other, ids = copy.deepcopy(fast), torch.randint(V, (1, 5))
    before = fast(ids)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    assert torch.equal(fast(ids), before) and not other(ids).any()


@pytest.mark.parametrize("kind", [GatedLinear, KimiDelta])
def test_gates_that_forget_at_once_are_not_divided_by(kind: type[GatedLinear | KimiDelta]) -> None:
    """A subclass may have gates far below those of our kinds: in the chunks they would overflow."""

    class AtOnce(kind):  # type: ignore[misc, valid-type]
        def gates(self, x: Tensor) -> Tensor:
            gates = super().gates(x)  # (B, H, T, g)
            forgotten = torch.zeros(gates.shape[-1], dtype=gates.dtype)  # (g,)
            forgotten[-2:] = -60.0
            return gates + forgotten

    plain = AtOnce(AtOnce.Config(n_head=2), Shape(n_embd=16, block_size=64))
    fast, x = make_fast(copy.deepcopy(plain)), torch.randn(2, 64, 16)
    torch.testing.assert_close(fast(x), plain(x), rtol=1e-4, atol=1e-5)


def test_every_form_has_a_kind_that_uses_it() -> None:
    """What nobody uses would not be held against anything above."""
    used = set()
    shapes = [*map(model_config, INSIDE), replace(model_config(TRICKY), **MODERN)]
    for shape in shapes:
        for module in make_fast(GPT(shape, V)).modules():
            used |= {vars(module)[name].__func__ for name in vars(module).get("faster", ())}
    assert {form.function for form in FORMS.values()} <= used


def test_a_trick_is_measured_on_a_model_that_uses_it() -> None:
    """On another one its row would show the noise of the machine."""
    for trick in dict.fromkeys(form.trick for form in FORMS.values()):
        options = MODELS[WHERE.get(trick, "multi_head")]
        model = make_fast(GPT(from_dict(ModelConfig, options), V))
        used = {vars(module)[name].__func__ for module in model.modules() for name in vars(module)["faster"]}
        assert used & {form.function for form in FORMS.values() if form.trick == trick}, trick


# The kernels of a GPU.


@pytest.mark.parametrize("kind", ["linear", "retention", "mamba2", "mlstm", "delta_product", "kimi_delta", "taylor"])
def test_the_kernels_of_fla_take_the_place_of_chunks_where_they_are_asked_for(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = list[str]()

    def kernels(*inputs: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
        calls.append(kind)
        return chunked(*inputs, **options)

    monkeypatch.setattr("minigpt.fast.switch.package", lambda *words: None)
    monkeypatch.setattr("minigpt.fast.recurrence.usable", lambda query: True)
    monkeypatch.setattr("minigpt.fast.recurrence.in_kernels", kernels)
    attention = Attention.kinds[kind].Config()
    wanted: list[tuple[bool | Literal["own", "fla"], int]] = [("fla", 2), (True, 0), ("own", 0), (False, 0)]
    for fast, times in wanted:
        model = make_fast(GPT(ModelConfig(n_layer=1, n_embd=32, block_size=128, attention=attention), V), fast)
        model(torch.randint(V, (1, 128)))
        model(torch.randint(V, (1, 128)), model.make_cache())
        assert len(calls) == times
        calls.clear()


@pytest.mark.parametrize("kind", ["soft_cap", "soft_cap_window", "sliding_window"])
@pytest.mark.filterwarnings(
    "ignore:flex_attention called without torch.compile", "ignore:The .grad attribute of a Tensor"
)
def test_the_flexible_kernel_equals_the_plain_form(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Uncompiled, on a CPU, where torch refuses to compute its gradients although it can."""
    monkeypatch.setattr(flexible, "DEVICES", {"cpu"})
    monkeypatch.setattr(flex_attention, "_validate_device", lambda *tensors: None)
    used = list[int]()

    def kernel() -> Callable[..., Tensor]:
        used.append(1)
        return flex_attention.flex_attention

    monkeypatch.setattr(flexible, "kernel", kernel)
    config = replace(model_config(Case(Attention.kinds[kind].Config(n_kv_head=2), Rotary.Config())), block_size=256)
    torch.manual_seed(0)
    plain = GPT(config, V).double()
    ids, times = torch.randint(V, (2, 256)), {True: plain.config.n_layer, "own": 0}
    exact = plain(ids)
    expected = torch.autograd.grad(exact.sin().sum(), [*plain.parameters()])
    for fast, count in times.items():
        model = make_fast(copy.deepcopy(plain), fast)  # type: ignore[arg-type]
        logits = model(ids)
        torch.testing.assert_close(logits, exact, **EXACT)
        torch.testing.assert_close(torch.autograd.grad(logits.sin().sum(), [*model.parameters()]), expected, **EXACT)
        assert len(used) == count
        with torch.no_grad():
            model(ids[:, :200])
        assert len(used) == count  # a text of no whole blocks, and no gradient
        used.clear()


@pytest.mark.slow
@pytest.mark.skipif(find_spec("fla") is None or find_spec("triton") is None, reason="pip install -e '.[gpu]'")
def test_the_kernels_of_a_gpu_equal_the_chunks_in_tritons_interpreter() -> None:
    """With their gradients, for a text that fills its chunks and one that does not, and values of an odd width."""
    for sizes in (("64", "32"), ("70", "33")):
        program = [sys.executable, str(Path(__file__).with_name("interpreted.py")), *sizes]
        done = subprocess.run(program, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        for line in done.stdout.splitlines():
            for name, found in json.loads(line).items():
                assert max(found) < 1e-5, (name, found)
        assert len(done.stdout.splitlines()) == 6
