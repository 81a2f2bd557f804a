"""Recurrent kinds against their papers' formulas, written out again as loops, and against transformers' modules.

A loop has for each head the formula as its paper prints it, from the layer's weights and x alone. In float64.

B batch, H heads, T positions, D model width, d width of a query and a key, e width of a value.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from laws import stir
from torch import Tensor, nn
from torch.func import functional_call
from transformers import Mamba2Config
from transformers.models.mamba2 import modeling_mamba2

from minigpt.attention import Attention
from minigpt.attention.linear.delta_net import DeltaNet
from minigpt.attention.linear.delta_product import DeltaProduct
from minigpt.attention.linear.gated_delta_net import GatedDeltaNet
from minigpt.attention.linear.gated_linear import GatedLinear
from minigpt.attention.linear.kimi_delta import KimiDelta
from minigpt.attention.linear.linear import Linear
from minigpt.attention.linear.log_linear import LogLinear
from minigpt.attention.linear.mamba2 import Mamba2
from minigpt.attention.linear.mlstm import MLSTM
from minigpt.attention.linear.retention import Retention
from minigpt.attention.linear.taylor import Taylor
from minigpt.attention.position import NoPosition, Shape
from minigpt.checks.laws_of_attention import off
from minigpt.config.options import build, override
from minigpt.config.strict_yaml import Node
from minigpt.fast import make_fast
from minigpt.model import ModelConfig

B, H, T, D, d = 2, 4, 21, 16, 4
EXACT = 1e-10
WIDE = 128  # the width of the models for which the files of the kinds name their papers' options


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


def mlstm(layer: MLSTM, x: Tensor, h: int) -> Tensor:
    """C_t = f C_(t-1) + i v k', n_t = f n_(t-1) + i k, h_t = C q / max(|n q|, 1), with k divided by sqrt(d)."""
    q, k, v = (of_heads(part, x)[h] for part in (layer.query, layer.key, layer.value))
    f, i = (of_heads(part, x)[h, :, 0] for part in (layer.forget, layer.input))  # (T,) each
    if cap := layer.config.cap:
        f, i = (cap * (gate / cap).tanh() for gate in (f, i))
    return read_mlstm(q, k, v, f, i)


def read_mlstm(q: Tensor, k: Tensor, v: Tensor, f: Tensor, i: Tensor) -> Tensor:
    """What is read of a head, from what its gates are made of: (T, e)."""
    (_, d), e = k.shape, v.shape[1]
    C, n, rows = torch.zeros(e, d, dtype=v.dtype), torch.zeros(d, dtype=v.dtype), []
    for t in range(T):
        C = f[t].sigmoid() * C + i[t].exp() * torch.outer(v[t], k[t] / math.sqrt(d))
        n = f[t].sigmoid() * n + i[t].exp() * k[t] / math.sqrt(d)
        rows.append(C @ q[t] / (n @ q[t]).abs().clamp(min=1))
    return torch.stack(rows)


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
    (MLSTM.Config(), mlstm),
    (MLSTM.Config(cap=0.5), mlstm),
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


# ---- the layers of the papers, whole, with the options that the files of the kinds name ----


def published(kind: type[Attention], place: int = 0) -> Attention.Config:
    """The options with which the opening of a kind's file says that its paper trains."""
    opening, tree = inspect.getdoc(inspect.getmodule(kind)) or "", Node({}, "", {})
    options = re.findall(rf"^ +(\{{kind: {kind.kind}, [^}}]*\}})", opening, re.MULTILINE)[place]
    override(tree, f"attention={' '.join(options.split())}", [])
    attention = build(ModelConfig, tree).attention
    assert isinstance(attention, Attention.Config)
    return attention


def layer_of(config: Attention.Config) -> Any:
    """The layer in a model of width WIDE without biases."""
    torch.manual_seed(0)
    model = Shape(n_embd=WIDE, block_size=32, position=NoPosition.Config(), bias=False)
    layer = config.component(config, model).double()
    stir(layer)
    return layer


def compute_the_same(ours: Any, theirs: Callable[[Tensor], Tensor]) -> None:
    """Values, and the gradients of x and of each parameter of `ours`, from which `theirs` is computed too."""
    noise = torch.Generator().manual_seed(1)
    x = torch.randn(B, T, WIDE, dtype=torch.float64, generator=noise).requires_grad_()  # (B, T, D)
    direction = torch.randn(B, T, WIDE, dtype=torch.float64, generator=noise)  # (B, T, D)
    wanted = [x, *ours.parameters()]

    def computed(function: Callable[[Tensor], Tensor]) -> list[Tensor]:
        y = function(x)  # (B, T, D)
        return [y.detach(), *torch.autograd.grad((y * direction).sum(), wanted)]

    expected = computed(theirs)
    for fast in (False, True):
        assert max(map(off, computed(make_fast(ours, fast)), expected)) < EXACT
        past = ours.make_cache(T)
        with torch.no_grad():
            written = torch.cat([ours(chunk, past) for chunk in x.split([1, 1, 4, 2, 13], dim=1)], dim=1)  # (B, T, D)
        assert off(written, expected[0]) < EXACT


def with_weights(theirs: nn.Module, weights: dict[str, Tensor]) -> Callable[[Tensor], Tensor]:
    """A module as a function of x, all of whose weights are given."""
    assert weights.keys() == dict(theirs.named_parameters()).keys()

    def called(x: Tensor) -> Tensor:
        y = functional_call(theirs.double(), weights, (x,))
        return y[0] if isinstance(y, tuple) else y

    return called


def as_conv1d(*convolutions: Any) -> Tensor:
    """The weights of several short convolutions as one of torch's, which counts from the oldest value: (F, 1, w)."""
    return torch.cat([convolution.weight.flip(0).T for convolution in convolutions])[:, None]


def of_three(ours: Any) -> tuple[Any, ...]:
    return tuple(ours.convolutions[name] for name in ("query", "key", "value"))


def test_the_layer_of_mamba2(monkeypatch: pytest.MonkeyPatch) -> None:
    in_float64(monkeypatch, modeling_mamba2)
    config = published(Mamba2)
    for groups in (1, 4):
        ours = layer_of(replace(config, n_key_head=groups))
        query, key, value = of_three(ours)
        shape = {"num_heads": ours.n_head, "head_dim": ours.e, "state_size": ours.d, "n_groups": groups}
        theirs = modeling_mamba2.Mamba2Mixer(Mamba2Config(**shape, hidden_size=WIDE, chunk_size=8), 0)
        projections = (ours.gate, ours.value, ours.key, ours.query, ours.step)
        weights = {
            "in_proj.weight": torch.cat([layer.weight for layer in projections]),
            "conv1d.weight": as_conv1d(value, key, query),
            "conv1d.bias": torch.cat((value.bias, key.bias, query.bias)),
            "dt_bias": ours.step.bias,
            "A_log": ours.rate,
            "D": ours.skip,
            "norm.weight": ours.norm.weight,
            "out_proj.weight": ours.project.weight,
        }
        compute_the_same(ours, with_weights(theirs, weights))


def test_the_layer_of_gated_delta_net(monkeypatch: pytest.MonkeyPatch) -> None:
    """OLMo Hybrid has the paper's, with negative eigenvalues where b is up to two."""
    olmo = pytest.importorskip("transformers.models.olmo_hybrid.modeling_olmo_hybrid")
    in_float64(monkeypatch, olmo)
    for strength in (1.0, 2.0):
        ours = layer_of(replace(published(GatedDeltaNet), strength=strength))
        shape = {"linear_num_value_heads": ours.n_head, "linear_num_key_heads": ours.n_head}
        shape |= {"linear_key_head_dim": ours.d, "linear_value_head_dim": ours.e, "linear_conv_kernel_dim": 4}
        config = olmo.OlmoHybridConfig(hidden_size=WIDE, linear_allow_neg_eigval=strength == 2, **shape)
        names = {"q": "query", "k": "key", "v": "value", "a": "forget", "b": "write", "g": "gate", "o": "project"}
        weights = {f"{theirs}_proj.weight": getattr(ours, name).weight for theirs, name in names.items()}
        weights |= {"conv1d.weight": as_conv1d(*of_three(ours)), "o_norm.weight": ours.norm.weight}
        weights |= {"A_log": ours.rate, "dt_bias": ours.forget.bias}
        compute_the_same(ours, with_weights(olmo.OlmoHybridGatedDeltaNet(config, 0), weights))


def test_the_layer_of_qwen3_next_whose_heads_share_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    qwen = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")
    in_float64(monkeypatch, qwen)
    config = replace(published(GatedDeltaNet), n_head=4, n_key_head=2, norm_epsilon=1e-6)
    ours, G = layer_of(config), 2
    shape = {"linear_num_value_heads": 4, "linear_num_key_heads": G, "linear_conv_kernel_dim": 4}
    shape |= {"linear_key_head_dim": ours.d, "linear_value_head_dim": ours.e, "num_hidden_layers": 4}
    theirs = qwen.Qwen3NextGatedDeltaNet(qwen.Qwen3NextConfig(hidden_size=WIDE, **shape), 0)

    def by_key(*layers: nn.Linear) -> Tensor:
        """The weights of several layers in one, all those of a head of keys together."""
        return torch.cat([layer.weight.unflatten(0, (G, -1)) for layer in layers], dim=1).flatten(0, 1)

    weights = {
        "in_proj_qkvz.weight": by_key(ours.query, ours.key, ours.value, ours.gate),
        "in_proj_ba.weight": by_key(ours.write, ours.forget),
        "conv1d.weight": as_conv1d(*of_three(ours)),
        "A_log": ours.rate,
        "dt_bias": ours.forget.bias,
        "norm.weight": ours.norm.weight,
        "out_proj.weight": ours.project.weight,
    }
    compute_the_same(ours, with_weights(theirs, weights))


def test_the_layer_of_kimi_linear(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decays far below e^-5 are among them, which chunks cannot divide by."""
    kimi = pytest.importorskip("transformers.models.kimi_linear.modeling_kimi_linear")
    in_float64(monkeypatch, kimi)
    ours = layer_of(published(KimiDelta))
    with torch.no_grad():
        ours.rate[0] = math.log(16)
        ours.forget.bias.add_(1)
    shape = {"linear_num_heads": ours.n_head, "linear_head_dim": ours.d, "linear_conv_kernel_dim": 4}
    config = kimi.KimiLinearConfig(hidden_size=WIDE, rms_norm_eps=1e-5, num_hidden_layers=4, **shape)
    names = {"q": "query", "k": "key", "v": "value", "b": "write", "g_a": "gate_down", "g_b": "gate", "o": "project"}
    weights = {f"{theirs}_proj.weight": getattr(ours, name).weight for theirs, name in names.items()}
    weights |= {"conv1d.weight": as_conv1d(*of_three(ours)), "o_norm.weight": ours.norm.weight}
    weights |= {"forget_gate.f_a_proj.weight": ours.down.weight, "forget_gate.f_b_proj.weight": ours.forget.weight}
    weights |= {"forget_gate.dt_bias": ours.forget.bias, "forget_gate.A_log": ours.rate.view(1, 1, -1, 1)}
    compute_the_same(ours, with_weights(kimi.KimiLinearDeltaAttention(config, 0), weights))


def test_the_layer_of_xlstm_7b(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without what it adds to the divisor of sums that are divided by exp(m) already: it depends on m."""
    xlstm = pytest.importorskip("transformers.models.xlstm.modeling_xlstm")
    if xlstm.external_xlstm:
        pytest.skip("the package xlstm takes the place of the module")
    in_float64(monkeypatch, xlstm)
    ours = layer_of(published(MLSTM))
    config = xlstm.xLSTMConfig(hidden_size=WIDE, num_heads=4, eps=0.0, chunk_size=T // 3, mode="train")
    names = {"q": "query", "k": "key", "v": "value", "ogate_preact": "gate", "out_proj": "project"}
    weights = {f"{theirs}.weight": getattr(ours, name).weight for theirs, name in names.items()}
    weights |= {"igate_preact.weight": ours.input.weight, "igate_preact.bias": ours.input.bias}
    weights |= {"fgate_preact.weight": ours.forget.weight, "fgate_preact.bias": ours.forget.bias}
    weights |= {"multihead_norm.weight": ours.norm.weight}
    compute_the_same(ours, with_weights(xlstm.xLSTMLayer(config), weights))


def convolved(convolution: Any, x: Tensor) -> Tensor:
    """y_t = c + w_0 x_t + w_1 x_(t-1) + ...: (T, F)."""
    shares = convolution.weight  # (w, F)
    rows = [sum(shares[i] * x[t - i] for i in range(min(t + 1, len(shares)))) for t in range(len(x))]
    return torch.stack(rows) + (0 if convolution.bias is None else convolution.bias)


def rms(x: Tensor, epsilon: float) -> Tensor:
    return x / (x.square().mean(dim=-1, keepdim=True) + epsilon).sqrt()


def heads_of(ours: Any, *parts: Tensor) -> list[tuple[Tensor, ...]]:
    """The heads of each part (T, H width), side by side: H of (T, width) each."""
    return list(zip(*(part.chunk(ours.n_head, dim=-1) for part in parts), strict=True))


def each_text(layer: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: torch.stack([layer(text) for text in x])


def test_the_layer_of_delta_net() -> None:
    """q, k = silu(conv(W x)) with a length of one, v = silu(conv(W x)), b = sigmoid(W x); W_o RMSNorm(o)."""
    ours = layer_of(published(DeltaNet))

    def layer(x: Tensor) -> Tensor:
        names, heads = ("query", "key", "value"), []
        q, k, v = (convolved(ours.convolutions[name], x @ getattr(ours, name).weight.T) for name in names)
        for q_h, k_h, v_h, beta in heads_of(ours, q, k, F.silu(v), (x @ ours.write.weight.T).sigmoid()):
            state, rows = torch.zeros(ours.e, ours.d, dtype=x.dtype), []
            for t in range(T):
                key = unit(k_h[t])
                state = state - beta[t] * torch.outer(state @ key, key) + beta[t] * torch.outer(v_h[t], key)
                rows.append(state @ unit(q_h[t]) / math.sqrt(ours.d))
            heads.append(ours.norm.weight * rms(torch.stack(rows), 1e-5))
        return torch.cat(heads, dim=-1) @ ours.project.weight.T

    compute_the_same(ours, each_text(layer))


@pytest.mark.parametrize("kind", [GatedLinear, Retention])
def test_the_layer_of_gated_linear_attention_and_of_retnet(kind: type[Attention]) -> None:
    """W_o (swish(W_r x) * norm(o)), S_t = diag(a_t) S_(t-1) + k v'; RetNet's norm has no weights, and a is constant."""
    ours = layer_of(published(kind))
    if kind is GatedLinear:
        with torch.no_grad():
            ours.up.bias[::3] = -200.0  # far below e^-5

    def layer(x: Tensor) -> Tensor:
        q, k, v, r = (x @ part.weight.T for part in (ours.query, ours.key, ours.value, ours.gate))
        if kind is GatedLinear:
            alpha = (F.logsigmoid(x @ ours.down.weight.T @ ours.up.weight.T + ours.up.bias) / 16).exp()  # (T, H d)
        else:
            alpha = torch.cat([x.new_full((T, ours.d), 1 - 2.0 ** (-5 - h)) for h in range(ours.n_head)], dim=1)
        heads = []
        for q_h, k_h, v_h, r_h, a_h in heads_of(ours, q, k, v, r, alpha):
            state, rows = torch.zeros(ours.d, ours.e, dtype=x.dtype), []
            for t in range(T):
                state = a_h[t, :, None] * state + torch.outer(k_h[t], v_h[t])
                rows.append(q_h[t] @ state / math.sqrt(ours.d))
            normed = rms(torch.stack(rows), ours.config.norm_epsilon)  # (T, e)
            heads.append(F.silu(r_h) * (normed if ours.norm.weight is None else ours.norm.weight * normed))
        return torch.cat(heads, dim=-1) @ ours.project.weight.T

    compute_the_same(ours, each_text(layer))


def test_the_block_of_xlstm() -> None:
    """u, z = W x; c = silu(conv(u)); q and k of c, v of u, by fours; f and i of (q, k, v); LayerNorm of each head, plus
    a share of c, times silu(z).
    """
    ours = layer_of(published(MLSTM, place=1))

    def by_fours(part: Any, x: Tensor) -> Tensor:
        return torch.cat([four @ matrix.T for four, matrix in zip(x.split(4, dim=1), part.weight)], dim=1)  # (T, W)

    def layer(x: Tensor) -> Tensor:
        u, z = x @ ours.up.weight.T, x @ ours.gate.weight.T  # (T, W) each
        c = F.silu(convolved(ours.convolution, u))  # (T, W)
        q, k, v = by_fours(ours.query, c), by_fours(ours.key, c), by_fours(ours.value, u)  # (T, W) each
        f, i = (torch.cat((q, k, v), dim=1) @ gate.weight.T + gate.bias for gate in (ours.forget, ours.input))
        heads = [
            F.layer_norm(read_mlstm(*head[:3], *(gate[:, 0] for gate in head[3:])), (ours.e,), eps=1e-5)
            for head in heads_of(ours, q, k, v, f, i)
        ]
        return (F.silu(z) * (ours.norm.weight * torch.cat(heads, dim=1) + ours.skip * c)) @ ours.project.weight.T

    compute_the_same(ours, each_text(layer))
