"""Layouts: conversions between Hugging Face's tensors (`theirs`) and minigpt's (`ours`), in both directions.

Some of Hugging Face's models store query, key and value in one matrix, transpose matrices, pair the features of rotary
positions in another order, or store a norm's scale minus one. A layout converts a list of their tensors to a list of
ours (`inward`) and back (`outward`). All act on rows, dimension 0, so a bias is treated like its matrix.

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
    """Whether theirs is transposed. Apart from that, theirs has the rows of ours, in any order."""

    def then(self, other: Layout) -> Layout:
        """Two layouts in sequence: inward, this one first, then `other`."""
        return Layout(
            lambda theirs: other.inward(self.inward(theirs)),
            lambda ours: self.outward(other.outward(ours)),
            self.transposed != other.transposed,
        )


SAME = Layout()


def one(inward: Callable[[Tensor], Tensor], outward: Callable[[Tensor], Tensor], transposed: bool = False) -> Layout:
    """A layout that converts each tensor by itself."""
    return Layout(
        lambda theirs: [inward(tensor) for tensor in theirs], lambda ours: [outward(t) for t in ours], transposed
    )


TRANSPOSED = one(Tensor.t, Tensor.t, transposed=True)  # GPT-2's Conv1D keeps (in, out); a bias, (out), stays as it is
ONE_PLUS = one(lambda scale: 1 + scale, lambda scale: scale - 1)  # Gemma's norms multiply by 1 + w


def halves(width: int, rotated: int) -> Layout:
    """The rows of heads (H d, ...). Theirs pair feature i with i + r/2 for rotary positions; ours pair 2i with 2i + 1.

    `width` is d. Only the first r (`rotated`) features of a head are rotated; the order of the others is the same.
    """
    if not rotated:
        return SAME

    def turn(rows: Tensor, shape: tuple[int, int]) -> Tensor:
        heads = rows.unflatten(0, (-1, width))  # (H, d, ...)
        pairs = heads[:, :rotated].unflatten(1, shape).transpose(1, 2).flatten(1, 2)  # (H, r, ...)
        return torch.cat((pairs, heads[:, rotated:]), dim=1).flatten(0, 1)  # (H d, ...)

    return one(lambda rows: turn(rows, (2, rotated // 2)), lambda rows: turn(rows, (rotated // 2, 2)))


def fused(*sizes: int) -> Layout:
    """Theirs is the concatenation of ours along dimension 0; `sizes` are the numbers of rows of ours."""
    return Layout(lambda theirs: list(theirs[0].split(sizes)), lambda ours: [torch.cat(ours)])


def fused_by_head(width: int, parts: int = 3) -> Layout:
    """Theirs is one tensor with the parts of each head side by side: rows (H, 3, d) instead of (3, H, d)."""

    def split(theirs: Tensors) -> Tensors:
        heads = theirs[0].unflatten(0, (-1, parts, width))  # (H, 3, d, ...)
        return [heads[:, part].flatten(0, 1) for part in range(parts)]  # (H d, ...) each

    def join(ours: Tensors) -> Tensors:
        heads = torch.stack([tensor.unflatten(0, (-1, width)) for tensor in ours], dim=1)  # (H, 3, d, ...)
        return [heads.flatten(0, 2)]  # (3 H d, ...)

    return Layout(split, join)


def each(*layouts: Layout) -> Layout:
    """Applies one layout to each of several tensors."""
    return Layout(
        lambda theirs: [layout.inward([tensor])[0] for layout, tensor in zip(layouts, theirs, strict=True)],
        lambda ours: [layout.outward([tensor])[0] for layout, tensor in zip(layouts, ours, strict=True)],
    )
