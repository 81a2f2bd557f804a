"""How the numbers of one tensor lie in another: each layout can be read in both directions.

Hugging Face's models keep what is three matrices here in one, transpose matrices, pair the features of rotary
positions in another order, and store a norm's scale less one. A layout turns a list of their tensors into a list of
ours (`inward`) and back (`outward`). All act on rows, the first dimension, so a bias is treated like its matrix.

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
    """A change of layout and its inverse, from tensors to tensors. By default nothing changes."""

    inward: Callable[[Tensors], Tensors] = list
    outward: Callable[[Tensors], Tensors] = list
    transposed: bool = False
    """Whether columns are rows in theirs; apart from that theirs has all rows of ours, in any order."""

    def then(self, other: Layout) -> Layout:
        """This layout, and on what it gives another one."""
        return Layout(
            lambda theirs: other.inward(self.inward(theirs)),
            lambda ours: self.outward(other.outward(ours)),
            self.transposed != other.transposed,
        )


SAME = Layout()


def one(inward: Callable[[Tensor], Tensor], outward: Callable[[Tensor], Tensor], transposed: bool = False) -> Layout:
    """A layout of a single tensor."""
    return Layout(
        lambda theirs: [inward(tensor) for tensor in theirs], lambda ours: [outward(t) for t in ours], transposed
    )


TRANSPOSED = one(Tensor.t, Tensor.t, transposed=True)  # GPT-2's Conv1D keeps (in, out); a bias, (out), stays as it is
ONE_PLUS = one(lambda scale: 1 + scale, lambda scale: scale - 1)  # Gemma's norms multiply by 1 + w


def halves(width: int, rotated: int) -> Layout:
    """Rows of heads (H d, ...) in which feature i is paired with i + r/2; here 2i is paired with 2i + 1.

    Only the first r features of a head are rotated; the others keep their places.
    """
    if not rotated:
        return SAME

    def turn(rows: Tensor, shape: tuple[int, int]) -> Tensor:
        heads = rows.unflatten(0, (-1, width))  # (H, d, ...)
        pairs = heads[:, :rotated].unflatten(1, shape).transpose(1, 2).flatten(1, 2)  # (H, r, ...)
        return torch.cat((pairs, heads[:, rotated:]), dim=1).flatten(0, 1)  # (H d, ...)

    return one(lambda rows: turn(rows, (2, rotated // 2)), lambda rows: turn(rows, (rotated // 2, 2)))


def fused(*sizes: int) -> Layout:
    """One tensor whose rows are those of several, one after another, of these sizes."""
    return Layout(lambda theirs: list(theirs[0].split(sizes)), lambda ours: [torch.cat(ours)])


def fused_by_head(width: int, parts: int = 3) -> Layout:
    """One tensor in which each head has its rows of all parts side by side: (H, 3, d) in place of (3, H, d)."""

    def split(theirs: Tensors) -> Tensors:
        heads = theirs[0].unflatten(0, (-1, parts, width))  # (H, 3, d, ...)
        return [heads[:, part].flatten(0, 1) for part in range(parts)]  # (H d, ...) each

    def join(ours: Tensors) -> Tensors:
        heads = torch.stack([tensor.unflatten(0, (-1, width)) for tensor in ours], dim=1)  # (H, 3, d, ...)
        return [heads.flatten(0, 2)]  # (3 H d, ...)

    return Layout(split, join)


def each(*layouts: Layout) -> Layout:
    """A layout for each of several tensors."""
    return Layout(
        lambda theirs: [layout.inward([tensor])[0] for layout, tensor in zip(layouts, theirs, strict=True)],
        lambda ours: [layout.outward([tensor])[0] for layout, tensor in zip(layouts, ours, strict=True)],
    )
