"""`chunked` on a GPU, in the Triton kernels of flash-linear-attention: a chunk stays in the fast memory of a core.

"FLA: A Triton-Based Library for Hardware-Efficient Implementations of Linear Attention Mechanism", the package fla-core
(the extra `gpu`), with `training.fast: fla` only: Triton tries many settings of each kernel first, which takes minutes,
and fla-core refuses versions of Triton with which it is wrong for some kinds, such as 3.6 on an H100.

B batch, H heads, T positions, d width of a query and a key, e width of a value, g 1 or d.
"""

from __future__ import annotations

import importlib.util
from functools import lru_cache

from torch import Tensor

DEVICES = {"cuda"}  # all are equal in Triton's interpreter; an H100 has run two of them
WIDEST = 256  # d; the kernels take no wider key


@lru_cache(maxsize=1)
def installed() -> bool:
    """Whether fla-core can be imported."""
    return importlib.util.find_spec("fla") is not None and importlib.util.find_spec("triton") is not None


def usable(query: Tensor) -> bool:
    """Whether the kernels compute this: query (B, H, T, d)."""
    narrow = query.shape[-1] <= WIDEST and query.element_size() <= 4
    return query.device.type in DEVICES and narrow and installed()


def in_kernels(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    state: Tensor,
    log_decay: Tensor | None = None,
    strength: Tensor | None = None,
    bounded: bool = True,
) -> tuple[Tensor, Tensor]:
    """As `chunked`, whether the decays are bounded or not."""
    q, k, v, g, b = (
        None if part is None else part.transpose(1, 2).contiguous()  # (B, T, H, ...)
        for part in (query, key, value, log_decay, strength)
    )
    options = {"scale": 1.0, "initial_state": state.contiguous(), "output_final_state": True}
    single = g is not None and g.shape[-1] == 1  # one decay for all channels of a head
    if b is None and (g is None or single):
        from fla.ops.simple_gla import chunk_simple_gla

        mixed, state = chunk_simple_gla(q, k, v, None if g is None else g[..., 0], **options)
    elif b is None:
        from fla.ops.gla import chunk_gla

        mixed, state = chunk_gla(q, k, v, g, **options)
    elif g is None or single:
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule

        decay = b.new_zeros(b.shape[:3]) if g is None else g[..., 0]  # (B, T, H)
        mixed, state = chunk_gated_delta_rule(q, k, v, decay, b[..., 0], **options)
    else:
        from fla.ops.kda import chunk_kda

        mixed, state = chunk_kda(q, k, v, g, b[..., 0], **options)
    return mixed.transpose(1, 2), state  # (B, H, T, e), (B, H, d, e)
