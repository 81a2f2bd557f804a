"""What a model costs: its parameters, and its floating-point operations and bytes of cache a token.

Operations are counted while the model runs. A matrix product has two for each multiplication and addition; the two
products of attention count over the whole square of positions; a running sum has one for each addition; a triangular
system of n equations, as of the delta rule, n^2 for each right side; an FFT of n real numbers 2.5 n log2 n, and of n
complex ones 5 n log2 n (the convention of fftw.org/speed). Elementwise operations (norms, GELU, softmax, the sums of
`average_loop`) are left out, as usual: they are few.

The backward pass of a fused attention kernel has the four products of the plain form: each of the two products has a
gradient for both of its factors. The kernel also computes the scores again, which saves memory and is not part of the
model ("PaLM", arXiv 2204.02311, appendix B).

B batch, H heads, T query positions, S key positions, D model width, d width of a query and a key, e of a value.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import log2, prod
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
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
    flops_per_token: float  # of a forward pass over a full context
    cache_bytes_per_token: float  # of the cache after a full context, divided by its tokens


def counting() -> FlopCounterMode:
    """Counts the operations inside a `with`, forward and backward: `counting() as counter`."""
    return FlopCounterMode(display=False, custom_mapping=CUSTOM)


@torch.no_grad()
def cost(model: GPT) -> Cost:
    """Count one forward pass over a full context, and the bytes of its cache afterwards."""
    T = model.config.block_size
    ids = torch.zeros(1, T, dtype=torch.long, device=model.device)  # (1, T)
    with eval_mode(model):
        with counting() as counter:
            model(ids)
        cache = model.make_cache()
        model(ids, cache)
    cache_bytes = sum(bytes_of(past) for past in cache)
    return Cost(sum(count_parameters(model).values()), counter.get_total_flops() / T, cache_bytes / T)


def operations_to_write(model: GPT, tokens: int, use_cache: bool = True) -> list[int]:
    """The operations of each of the tokens that `generate` writes after a first one, with a cache or without."""
    prompt = torch.zeros(1, 1, dtype=torch.long, device=model.device)  # (1, 1)
    with counting() as counter:
        new_tokens = generate(model, prompt, SamplingConfig(max_tokens=tokens, temperature=0), use_cache=use_cache)
        totals = [counter.get_total_flops() for _ in new_tokens]
    return [after - before for before, after in pairwise([0, *totals])]


def bytes_of(past: Past) -> int:
    """The bytes of all tensors in one layer's cache, without those that it only refers to (`seen`, `below`)."""
    leaves = tree_leaves([value for name, value in vars(past).items() if name not in ("seen", "below")])
    return sum(tensor.numel() * tensor.element_size() for tensor in leaves if isinstance(tensor, Tensor))


def _attention(query: Any, key: Any, value: Any, *rest: Any, out_val: Any = None, **options: Any) -> int:
    """The shapes (B, H, T, d), (B, H, S, d), (B, H, S, e): query @ key^T, and weights @ value."""
    B, H, T, d = query
    return int(2 * B * H * T * key[2] * (d + value[3]))


def _attention_backward(gradient: Any, *attention: Any, out_val: Any = None, **options: Any) -> int:
    """A gradient (B, H, T, e), then what `_attention` has: each product has a gradient for both of its factors."""
    return 2 * _attention(*attention)


def _triangular(matrix: Any, other: Any, *rest: Any, left: bool = True, out_val: Any = None, **options: Any) -> int:
    """The shapes (..., n, n) and (..., n, k), or (..., k, n): n^2 / 2 multiplications, as many additions, k times."""
    return int(torch.Size(other).numel() * matrix[-1])


def _real_fft(x: Any, dims: Any, *rest: Any, **options: Any) -> int:
    return int(2.5 * prod(x) * log2(prod(x[dim] for dim in dims)))


CUSTOM = {
    aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
    aten._scaled_dot_product_flash_attention_backward: _attention_backward,
    aten._scaled_dot_product_efficient_attention_backward: _attention_backward,
    aten._scaled_dot_product_cudnn_attention_backward: _attention_backward,
    aten._fft_r2c: _real_fft,
    aten._fft_c2r: lambda x, dims, *rest, out_shape, **options: _real_fft(out_shape, dims),
    aten._fft_c2c: lambda x, dims, *rest, **options: 2 * _real_fft(x, dims),
    aten.cumsum: lambda x, *rest, **options: prod(x),
    aten.linalg_solve_triangular: _triangular,
}
