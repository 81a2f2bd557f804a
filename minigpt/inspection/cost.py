"""What a model costs: its parameters, and its floating-point operations and bytes of cache a token.

Operations are counted while the model runs. A matrix product has two for each multiplication and addition; the two
products of attention count over the whole square of positions; a running sum has one for each addition; a triangular
system of n equations, as of the delta rule, n^2 for each right side. Elementwise operations (norms, GELU, softmax, the
sums of `average_loop`) are left out, as usual: they are few.

B batch, H heads, T query positions, S key positions, D model width, d width of a query and a key, e of a value.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from minigpt.attention.cache import Past
from minigpt.model.eval_mode import eval_mode
from minigpt.model.gpt import GPT, count_parameters
from minigpt.model.sampling import SamplingConfig, generate

aten: Any = torch.ops.aten


@dataclass(frozen=True)
class Cost:
    """The cost of a model; it does not depend on the values of its weights."""

    parameters: int
    flops_per_token: float  # of a forward pass over a full context; training takes about three times as many
    cache_bytes_per_token: float  # of the cache after a full context, divided by its tokens


@torch.no_grad()
def cost(model: GPT) -> Cost:
    """Count one forward pass over a full context, and the bytes of its cache afterwards."""
    T = model.config.block_size
    ids = torch.zeros(1, T, dtype=torch.long, device=model.device)  # (1, T)
    with eval_mode(model):
        with FlopCounterMode(display=False, custom_mapping=CUSTOM) as counter:
            model(ids)
        cache = model.make_cache()
        model(ids, cache)
    kept = sum(bytes_of(past) for past in cache)
    return Cost(sum(count_parameters(model).values()), counter.get_total_flops() / T, kept / T)


def operations_to_write(model: GPT, tokens: int, use_cache: bool = True) -> list[int]:
    """The operations of each of the tokens that `generate` writes after a first one, with a cache or without."""
    prompt = torch.zeros(1, 1, dtype=torch.long, device=model.device)  # (1, 1)
    with FlopCounterMode(display=False, custom_mapping=CUSTOM) as counter:
        written = generate(model, prompt, SamplingConfig(max_tokens=tokens, temperature=0), use_cache=use_cache)
        totals = [counter.get_total_flops() for _ in written]
    return [after - before for before, after in pairwise([0, *totals])]


def bytes_of(past: Past) -> int:
    """The bytes of all tensors in one layer's cache, without those that it only refers to (`seen`, `below`)."""
    own = [value for name, value in vars(past).items() if name not in ("seen", "below")]
    return sum(tensor.numel() * tensor.element_size() for tensor in _tensors(own))


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [tensor for item in value for tensor in _tensors(item)] if isinstance(value, (list, tuple)) else []


def _attention(query: Any, key: Any, value: Any, *rest: Any, out_val: Any = None, **options: Any) -> int:
    """The shapes (B, H, T, d), (B, H, S, d), (B, H, S, e): query @ key^T, and weights @ value."""
    B, H, T, d = query
    return int(2 * B * H * T * key[2] * (d + value[3]))


def _running_sum(x: Any, *rest: Any, out_val: Any = None, **options: Any) -> int:
    return int(torch.Size(x).numel())


def _triangular(matrix: Any, other: Any, *rest: Any, left: bool = True, out_val: Any = None, **options: Any) -> int:
    """The shapes (..., n, n) and (..., n, k), or (..., k, n): n^2 / 2 multiplications, as many additions, k times."""
    return int(torch.Size(other).numel() * matrix[-1])


CUSTOM = {
    aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    aten.cumsum: _running_sum,
    aten.linalg_solve_triangular: _triangular,
}
