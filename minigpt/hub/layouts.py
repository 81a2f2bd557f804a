"""Layouts: conversions between Hugging Face's tensors (`external`) and minigpt's (`internal`), in both directions.

Some of Hugging Face's models store query, key and value in one matrix, transpose matrices, pair the features of rotary
positions in another order, or store a norm's scale minus one. A layout converts a list of external tensors to
internal ones (`inward`) and back (`outward`). All act on rows, dimension 0, so a bias is treated like its matrix.

H query heads, G key heads, d width of a head, r how many of its features are rotated, D model width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Tensors = list[Tensor]


@dataclass(frozen=True)
class Layout:
    """A conversion of a list of tensors, and its inverse. The default changes nothing."""

    inward: Callable[[Tensors], Tensors] = list
    outward: Callable[[Tensors], Tensors] = list
    transposed: bool = False
    """Whether the external tensor is transposed; apart from that, it has the internal rows, in any order."""

    def then(self, other: Layout) -> Layout:
        """Two layouts in sequence: inward, this one first, then `other`."""
        return Layout(
            lambda external: other.inward(self.inward(external)),
            lambda internal: self.outward(other.outward(internal)),
            self.transposed != other.transposed,
        )


IDENTITY = Layout()


def tensorwise(
    inward: Callable[[Tensor], Tensor], outward: Callable[[Tensor], Tensor], transposed: bool = False
) -> Layout:
    """A layout that converts each tensor by itself."""
    return Layout(
        lambda external: [inward(tensor) for tensor in external],
        lambda internal: [outward(tensor) for tensor in internal],
        transposed,
    )


TRANSPOSED = tensorwise(
    Tensor.t, Tensor.t, transposed=True
)  # GPT-2's Conv1D keeps (in, out); a bias, (out), stays as it is
ONE_PLUS = tensorwise(lambda scale: 1 + scale, lambda scale: scale - 1)  # Gemma's norms multiply by 1 + w


def halves(width: int, rotated: int) -> Layout:
    """The rows of heads (H d, ...). Rotary positions pair feature i with i + r/2 outside, 2i with 2i + 1 here.

    `width` is d. Only the first r (`rotated`) features of a head are rotated; the order of the others is the same.
    """
    if not rotated:
        return IDENTITY

    def reorder(rows: Tensor, shape: tuple[int, int]) -> Tensor:
        heads = rows.unflatten(0, (-1, width))  # (H, d, ...)
        pairs = heads[:, :rotated].unflatten(1, shape).transpose(1, 2).flatten(1, 2)  # (H, r, ...)
        return torch.cat((pairs, heads[:, rotated:]), dim=1).flatten(0, 1)  # (H d, ...)

    return tensorwise(lambda rows: reorder(rows, (2, rotated // 2)), lambda rows: reorder(rows, (rotated // 2, 2)))


def fused(*sizes: int) -> Layout:
    """The external tensor is the concatenation of the internal ones along dimension 0, which have `sizes` rows."""
    return Layout(lambda external: list(external[0].split(sizes)), lambda internal: [torch.cat(internal)])


def fused_by_head(width: int, parts: int = 3) -> Layout:
    """The external tensor has the parts of each head side by side: rows (H, 3, d) instead of (3, H, d)."""

    def split(external: Tensors) -> Tensors:
        heads = external[0].unflatten(0, (-1, parts, width))  # (H, 3, d, ...)
        return [heads[:, part].flatten(0, 1) for part in range(parts)]  # (H d, ...) each

    def join(internal: Tensors) -> Tensors:
        heads = torch.stack([tensor.unflatten(0, (-1, width)) for tensor in internal], dim=1)  # (H, 3, d, ...)
        return [heads.flatten(0, 2)]  # (3 H d, ...)

    return Layout(split, join)


def each(*layouts: Layout) -> Layout:
    """Applies one layout to each of several tensors."""
    return Layout(
        lambda external: [layout.inward([tensor])[0] for layout, tensor in zip(layouts, external, strict=True)],
        lambda internal: [layout.outward([tensor])[0] for layout, tensor in zip(layouts, internal, strict=True)],
    )
