"""Recurrent kinds against their papers' formulas, written out again as loops, and against transformers' modules.

A loop has for each head the formula as its paper prints it, from the layer's weights and x alone. In float64.

B batch, H heads, T positions, D model width, d width of a query and a key, e width of a value.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from laws import stir
from torch import Tensor, nn
from transformers import Mamba2Config
from transformers.models.mamba2 import modeling_mamba2

from minigpt.attention import Attention
from minigpt.attention.cache import Past
from minigpt.attention.linear.delta_net import DeltaNet
from minigpt.attention.linear.delta_product import DeltaProduct
from minigpt.attention.linear.gated_delta_net import GatedDeltaNet
from minigpt.attention.linear.gated_linear import GatedLinear
from minigpt.attention.linear.kimi_delta import KimiDelta
from minigpt.attention.linear.linear import Linear
from minigpt.attention.linear.log_linear import LogLinear
from minigpt.attention.linear.mamba2 import Mamba2
from minigpt.attention.linear.retention import Retention
from minigpt.attention.linear.taylor import Taylor
from minigpt.attention.position import NoPosition, Shape
from minigpt.checks.laws import off
from minigpt.fast import make_fast

B, H, T, D, d = 2, 4, 21, 16, 4
EXACT = 1e-10


def made(config: Attention.Config) -> Any:
    torch.manual_seed(0)
    layer = config.component(config, Shape(n_embd=D, block_size=32, position=NoPosition.Config())).double()
    stir(layer)
    return layer.eval().requires_grad_(False)


def tokens() -> Tensor:
    return torch.randn(B, T, D, dtype=torch.float64, generator=torch.Generator().manual_seed(1))  # (B, T, D)


def of_heads(layer: nn.Linear, x: Tensor, heads: int = H) -> Tensor:
    """x W' + b for each head: (heads, T, width)."""
    out = x @ layer.weight.T + (0 if layer.bias is None else layer.bias)  # (T, heads * width)
    return torch.stack(out.chunk(heads, dim=-1))


def unit(x: Tensor) -> Tensor:
    """SiLU, and a length of one."""
    x = x * x.sigmoid()  # (d,)
    return x / (x @ x + 1e-6).sqrt()


def softplus(x: Tensor) -> Tensor:
    return torch.log1p(x.exp())


# ---- the formulas: for one text x (T, D) and one head h, what each position reads before any norm: (T, e) ----


def linear(layer: Linear, x: Tensor, h: int) -> Tensor:
    """(sum phi(k_s) v_s') phi(q_t) / (sum phi(k_s)) phi(q_t), phi = elu + 1; 1e-6 keeps the sum above zero."""

    def phi(z: Tensor) -> Tensor:
        return torch.where(z > 0, z + 1, z.exp()) + 1e-6

    q, k, v = (of_heads(part, x)[h] for part in (layer.query, layer.key, layer.value))
    rows = []
    for t in range(T):
        shares = [phi(q[t]) @ phi(k[s]) for s in range(t + 1)]
        rows.append(sum(share * v[s] for s, share in enumerate(shares)) / sum(shares))
    return torch.stack(rows)


def taylor(layer: Taylor, x: Tensor, h: int) -> Tensor:
    """The exponential of the score, to the second order."""
    q, k, v = (of_heads(part, x)[h] for part in (layer.query, layer.key, layer.value))
    rows = []
    for t in range(T):
        scores = [q[t] @ k[s] / math.sqrt(d) for s in range(t + 1)]
        shares = [1 + score + score**2 / 2 for score in scores]
        rows.append(sum(share * v[s] for s, share in enumerate(shares)) / sum(shares))
    return torch.stack(rows)


def retention(layer: Retention, x: Tensor, h: int) -> Tensor:
    """S_n = gamma S_(n-1) + K_n' V_n, gamma = 1 - 2^(-5 - h)."""
    q, k, v = (of_heads(part, x)[h] for part in (layer.query, layer.key, layer.value))
    state, rows = torch.zeros(d, d, dtype=x.dtype), []
    for t in range(T):
        state = (1 - 2.0 ** (-5 - h)) * state + torch.outer(k[t], v[t])
        rows.append(q[t] @ state)
    return torch.stack(rows) / math.sqrt(d)


def mamba2(layer: Mamba2, x: Tensor, h: int) -> Tensor:
    """h_t = exp(D_t A) h_(t-1) + D_t B_t x_t, y_t = C_t h_t, with A = -exp(A_log); B and C pass a SiLU."""
    C, K, v = (of_heads(part, x)[h] for part in (layer.query, layer.key, layer.value))
    step = softplus(of_heads(layer.step, x)[h, :, 0])  # (T,)
    state, rows = torch.zeros(d, d, dtype=x.dtype), []
    for t in range(T):
        state = torch.exp(-layer.rate[h].exp() * step[t]) * state + step[t] * torch.outer(F.silu(K[t]), v[t])
        rows.append(F.silu(C[t]) @ state)
    return torch.stack(rows) / math.sqrt(d)


def gated_linear(layer: GatedLinear, x: Tensor, h: int) -> Tensor:
    """S_t = (alpha_t' 1) * S_(t-1) + k_t' v_t, alpha = sigmoid(x W1 W2 + b)^(1/16)."""
    q, k, v = (of_heads(part, x)[h] for part in (layer.query, layer.key, layer.value))
    alpha = of_heads(layer.up, x @ layer.down.weight.T)[h].sigmoid() ** (1 / 16)  # (T, d)
    state, rows = torch.zeros(d, d, dtype=x.dtype), []
    for t in range(T):
        state = torch.diag(alpha[t]) @ state + torch.outer(k[t], v[t])
        rows.append(q[t] @ state)
    return torch.stack(rows) / math.sqrt(d)


def delta_net(layer: DeltaNet, x: Tensor, h: int) -> Tensor:
    """W_t = W_(t-1) (1 - beta k k') + beta v k': the state is turned, as the papers have it."""
    q, k, v = (of_heads(part, x)[h] for part in (layer.query, layer.key, layer.value))
    beta = layer.config.strength * of_heads(layer.write, x)[h, :, 0].sigmoid()  # (T,)
    state, rows = torch.zeros(d, d, dtype=x.dtype), []
    for t in range(T):
        key = unit(k[t])
        state = state @ (torch.eye(d, dtype=x.dtype) - beta[t] * torch.outer(key, key)) + beta[t] * v[t].outer(key)
        rows.append(state @ unit(q[t]))
    return torch.stack(rows) / math.sqrt(d)


def gated_delta_net(layer: GatedDeltaNet, x: Tensor, h: int) -> Tensor:
    """S_t = S_(t-1) (alpha_t (1 - beta_t k_t k_t')) + beta_t v_t k_t'."""
    q, k, v = (of_heads(part, x)[h] for part in (layer.query, layer.key, layer.value))
    beta = of_heads(layer.write, x)[h, :, 0].sigmoid()  # (T,)
    alpha = torch.exp(-layer.rate[h].exp() * softplus(of_heads(layer.forget, x)[h, :, 0]))  # (T,)
    state, rows = torch.zeros(d, d, dtype=x.dtype), []
    for t in range(T):
        key = unit(k[t])
        change = alpha[t] * (torch.eye(d, dtype=x.dtype) - beta[t] * torch.outer(key, key))  # (d, d)
        state = state @ change + beta[t] * v[t].outer(key)
        rows.append(state @ unit(q[t]))
    return torch.stack(rows) / math.sqrt(d)


def kimi_delta(layer: KimiDelta, x: Tensor, h: int) -> Tensor:
    """S_t = (1 - beta_t k_t k_t') Diag(alpha_t) S_(t-1) + beta_t k_t v_t'."""
    q, k, v = (of_heads(part, x)[h] for part in (layer.query, layer.key, layer.value))
    beta = of_heads(layer.write, x)[h, :, 0].sigmoid()  # (T,)
    inner = of_heads(layer.forget, x @ layer.down.weight.T)[h]  # (T, d)
    alpha = torch.exp(-layer.rate[h].exp() * softplus(inner))  # (T, d)
    state, rows = torch.zeros(d, d, dtype=x.dtype), []
    for t in range(T):
        key = unit(k[t])
        change = (torch.eye(d, dtype=x.dtype) - beta[t] * torch.outer(key, key)) @ torch.diag(alpha[t])  # (d, d)
        state = change @ state + beta[t] * torch.outer(key, v[t])
        rows.append(state.T @ unit(q[t]))
    return torch.stack(rows) / math.sqrt(d)


def delta_product(layer: DeltaProduct, x: Tensor, h: int) -> Tensor:
    """H_i = prod_j (1 - beta_ij k_ij k_ij') H_(i-1) + the writes, each turned by the reflections after it."""
    n = layer.config.writes
    q = of_heads(layer.query, x)[h]  # (T, d)
    k, v, b = (of_heads(part, x, n * H)[h::H] for part in (layer.key, layer.value, layer.write))  # (n, T, ...) each
    state, rows, one = torch.zeros(d, d, dtype=x.dtype), [], torch.eye(d, dtype=x.dtype)
    for t in range(T):
        keys, beta = [unit(k[j, t]) for j in range(n)], [2 * b[j, t, 0].sigmoid() for j in range(n)]
        turns = [one - beta[j] * torch.outer(keys[j], keys[j]) for j in range(n)]
        written = torch.zeros(d, d, dtype=x.dtype)
        for j in range(n):
            product = beta[j] * torch.outer(keys[j], v[j, t])
            for later in turns[j + 1 :]:
                product = later @ product
            written = written + product
        for turn in turns:
            state = turn @ state
        state = state + written
        rows.append(unit(q[t]) @ state)
    return torch.stack(rows) / math.sqrt(d)


def buckets(t: int) -> list[range]:
    """The stretches of a Fenwick tree that make up 0 .. t: bucket 0 is t itself; then the lowest bit goes each time."""
    found, end = {0: range(t, t + 1)}, t
    while end:
        lowest = end & -end
        found[lowest.bit_length()] = range(end - lowest, end)
        end -= lowest
    return [found.get(level, range(0)) for level in range(max(found) + 1)]


def log_linear(layer: LogLinear, x: Tensor, h: int) -> Tensor:
    """o_t = sum over levels of lambda_t^l q_t (sum over the bucket of the decayed k_s v_s')."""
    C, K, v = (of_heads(part, x)[h] for part in (layer.query, layer.key, layer.value))
    step = softplus(of_heads(layer.step, x)[h, :, 0])  # (T,)
    counts, rate = softplus(of_heads(layer.level, x)[h]), layer.rate[h].exp()  # (T, L), ()
    rows = []
    for t in range(T):
        row = torch.zeros(d, dtype=x.dtype)
        for level, bucket in enumerate(buckets(t)):
            for s in bucket:
                faded = torch.exp(-rate * sum(step[s + 1 : t + 1], torch.zeros((), dtype=x.dtype)))
                row = row + counts[t, level] * faded * step[s] * (F.silu(C[t]) @ F.silu(K[s])) * v[s]
        rows.append(row)
    return torch.stack(rows) / math.sqrt(d)


FORMULAS: list[tuple[Attention.Config, Callable[..., Tensor]]] = [
    (Linear.Config(), linear),
    (Taylor.Config(), taylor),
    (Retention.Config(), retention),
    (Mamba2.Config(), mamba2),
    (GatedLinear.Config(), gated_linear),
    (DeltaNet.Config(), delta_net),
    (DeltaNet.Config(strength=2.0), delta_net),
    (GatedDeltaNet.Config(), gated_delta_net),
    (KimiDelta.Config(), kimi_delta),
    (DeltaProduct.Config(), delta_product),
    (DeltaProduct.Config(writes=3), delta_product),
    (LogLinear.Config(), log_linear),
]


@pytest.mark.parametrize(("config", "formula"), FORMULAS, ids=[str(config.component.kind) for config, _ in FORMULAS])
def test_the_formula_of_the_paper(config: Attention.Config, formula: Callable[..., Tensor]) -> None:
    layer, x = made(config), tokens()
    heads = torch.stack([torch.stack([formula(layer, text, h) for h in range(H)], dim=1) for text in x])  # (B, T, H, e)
    if layer.config.normed:
        heads = heads / (heads.square().mean(dim=-1, keepdim=True) + 1e-12).sqrt()
    expected = heads.flatten(2) @ layer.project.weight.T + layer.project.bias  # (B, T, D)
    for fast in (False, True):
        make_fast(layer, fast)
        assert off(layer(x), expected) < EXACT
        past = layer.make_cache(T)
        assert off(torch.cat([layer(chunk, past) for chunk in x.split(4, dim=1)], dim=1), expected) < EXACT


def test_the_stretches_of_a_fenwick_tree_are_the_levels() -> None:
    """As in the paper: 6 = 110 in binary sees itself, two tokens before it, and the four before those."""
    assert buckets(6) == [range(6, 7), range(0), range(4, 6), range(0, 4)]
    for t in range(40):
        assert sorted(s for bucket in buckets(t) for s in bucket) == list(range(t + 1))


# ---- transformers ----


class Doubled:
    """The module torch, in which float32 is float64: some modules compute in float32 whatever arrives."""

    float32 = torch.float64

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def in_float64(monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> None:
    monkeypatch.setattr(module, "torch", Doubled())
    monkeypatch.setattr(Tensor, "float", Tensor.double)


def what_is_normed(module: nn.Module, norm: nn.Module, x: Tensor) -> Tensor:
    """What reaches a norm when the module is given x: before any norm and gate."""
    caught = list[Tensor]()
    handle = norm.register_forward_pre_hook(lambda _, arguments: caught.append(arguments[0]))
    module(x)
    handle.remove()
    return caught[0]


def pass_through(convolution: nn.Conv1d) -> None:
    """A convolution that leaves each position as it is."""
    nn.init.zeros_(convolution.weight)
    nn.init.ones_(convolution.weight[:, :, -1])
    if convolution.bias is not None:
        nn.init.zeros_(convolution.bias)


@torch.no_grad()
def test_mamba2_of_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    in_float64(monkeypatch, modeling_mamba2)
    config = Mamba2Config(
        num_heads=H, head_dim=d, hidden_size=D, state_size=d, expand=1, n_groups=H, conv_kernel=2, chunk_size=8
    )
    theirs, ours, x = modeling_mamba2.Mamba2Mixer(config, 0).double().eval(), made(Mamba2.Config()), tokens()
    pass_through(theirs.conv1d)
    nn.init.zeros_(theirs.D)
    stir(theirs.in_proj)
    theirs.A_log.copy_(ours.rate)
    theirs.dt_bias.copy_(ours.step.bias)
    parts = [ours.value, ours.key, ours.query, ours.step]  # after the gate: x, B, C, dt
    for layer in parts[:3]:
        nn.init.zeros_(layer.bias)
    theirs.in_proj.weight[D:] = torch.cat([layer.weight for layer in parts])
    found = what_is_normed(theirs, theirs.norm, x)  # (B, T, D)
    query, key, value = ours.qkv(x, Past())
    mixed = ours.mix(query, key, F.silu(value)) * math.sqrt(d)  # (B, H, T, e): there values pass the SiLU too
    assert off(found, mixed.transpose(1, 2).flatten(2)) < EXACT


@torch.no_grad()
def test_gated_delta_net_of_qwen3_next(monkeypatch: pytest.MonkeyPatch) -> None:
    qwen = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")
    in_float64(monkeypatch, qwen)
    config = qwen.Qwen3NextConfig(
        hidden_size=D,
        linear_num_value_heads=H,
        linear_num_key_heads=H,
        linear_key_head_dim=d,
        linear_value_head_dim=d,
        linear_conv_kernel_dim=2,
        num_hidden_layers=4,
    )
    theirs, ours, x = qwen.Qwen3NextGatedDeltaNet(config, 0).double().eval(), made(GatedDeltaNet.Config()), tokens()
    pass_through(theirs.conv1d)
    for layer in (ours.query, ours.key, ours.value, ours.write):
        nn.init.zeros_(layer.bias)
    theirs.A_log.copy_(ours.rate)
    theirs.dt_bias.copy_(ours.forget.bias)
    of_a_head = [layer.weight.view(H, d, D) for layer in (ours.query, ours.key, ours.value)]  # (H, d, D) each
    gate = torch.randn(H, d, D, dtype=torch.float64)  # (H, d, D)
    theirs.in_proj_qkvz.weight.copy_(torch.cat((*of_a_head, gate), dim=1).flatten(0, 1))
    theirs.in_proj_ba.weight.copy_(torch.stack((ours.write.weight, ours.forget.weight), dim=1).flatten(0, 1))
    found = what_is_normed(theirs, theirs.norm, x).view(B, T, H, d)
    query, key, value = ours.qkv(x, Past())
    assert off(found, ours.mix(query, key, F.silu(value)).transpose(1, 2)) < EXACT


@torch.no_grad()
def test_kimi_delta_of_kimi_linear(monkeypatch: pytest.MonkeyPatch) -> None:
    kimi = pytest.importorskip("transformers.models.kimi_linear.modeling_kimi_linear")
    in_float64(monkeypatch, kimi)
    config = kimi.KimiLinearConfig(
        hidden_size=D, linear_num_heads=H, linear_head_dim=d, linear_conv_kernel_dim=2, num_hidden_layers=4
    )
    theirs, ours, x = kimi.KimiLinearDeltaAttention(config, 0).double().eval(), made(KimiDelta.Config()), tokens()
    pass_through(theirs.conv1d)
    for layer in (ours.query, ours.key, ours.value, ours.write):
        nn.init.zeros_(layer.bias)
    pairs = [(theirs.q_proj, ours.query), (theirs.k_proj, ours.key), (theirs.v_proj, ours.value)]
    pairs += [(theirs.b_proj, ours.write), (theirs.forget_gate.f_a_proj, ours.down)]
    pairs += [(theirs.forget_gate.f_b_proj, ours.forget)]
    for their, our in pairs:
        their.weight.copy_(our.weight)
    theirs.forget_gate.dt_bias.copy_(ours.forget.bias)
    theirs.forget_gate.A_log.copy_(ours.rate.view(1, 1, H, 1))
    found = what_is_normed(theirs, theirs.o_norm, x).view(B, T, H, d)
    query, key, value = ours.qkv(x, Past())
    assert off(found, ours.mix(query, key, F.silu(value)).transpose(1, 2)) < EXACT
