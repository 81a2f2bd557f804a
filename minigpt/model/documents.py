"""Attention within a document: each document of a window is computed as it would be alone.

    with within_documents(model, begins):
        logits = model(ids)

What a token sees is decided by the attention, and by a position that is added to the embeddings; all else in a model
looks at one token at a time. So the tokens of each document are put into a row of their own before these two, and their
results are put back after them. This is exact for every kind and every position. A mask would be different in each
kind, and kinds with states, shifts or convolutions have no mask.

Rows are padded at their end, which a causal kind does not see, and rows of about equal length form a group. In windows
of stories an attention computes 1.2 to 1.4 times the tokens. Methods are replaced from outside, as in `fast/`: the
model has no code for it.

B windows   T positions   N = B T tokens   R rows of L positions   D model width
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from minigpt.attention import Attention, Past
from minigpt.model.gpt import GPT, chain
from minigpt.model.replaced import replaced

FEW = 1 / 4  # the largest share of all tokens, padding included, that joins a group of longer rows


@contextmanager
def within_documents(
    model: GPT, begins: Tensor | None, send: Callable[[Tensor, torch.device], Tensor] = Tensor.to
) -> Iterator[None]:
    """Inside the `with`, no token sees another document of its window, and positions begin at 0 in each.

    `begins` (B, T) says of each token of the batch whether it begins a document; a window's first token always does.
    None: a token sees its whole window, as usual. `send` copies a tensor from the CPU to a device. A backward pass that
    recomputes activations (activation checkpointing) must run inside the `with`. A kind with a loss of its own gets
    rows without padding, because that loss is a mean over all positions.
    """
    if begins is None:
        yield
        return
    counts_all = any(type(attention).extra_loss is not Attention.extra_loss for attention in model.attentions())
    rows, back = as_rows(begins.cpu(), counts_all)
    rows, back = [send(row, model.device) for row in rows], send(back, model.device)
    pasts = [chain([Past() for _ in model.blocks]) for _ in rows]  # of each group of rows
    with ExitStack() as stack:
        if model.position.acts_by("embed"):
            embed = on_rows(model.position.embed, rows, back, [past[0] for past in pasts])
            stack.enter_context(replaced(model.position, "embed", embed))
        for attention, pasts_of_layer in zip(model.attentions(), zip(*pasts)):
            forward, losses = attention.forward, dict[int, Tensor]()
            if counts_all:
                forward = noting_loss(attention, losses, begins.numel())
                stack.enter_context(replaced(attention, "extra_loss", partial(total, losses)))
            stack.enter_context(replaced(attention, "forward", on_rows(forward, rows, back, pasts_of_layer)))
        yield


def as_rows(begins: Tensor, exact: bool = False) -> tuple[list[Tensor], Tensor]:
    """Groups of rows (R, L), one row a document: the numbers of its tokens, 0 to N - 1, the last repeated as padding.

    Also returns the index of each token in all of these rows, concatenated: (B, T). In a group the longest row is less
    than twice as long as the shortest, or all are equally long (`exact`). A few short rows join the next group: one
    call less saves more time than their padding costs.
    """
    begins = begins.clone()  # (B, T)
    begins[:, 0] = True
    starts = begins.flatten().nonzero()[:, 0]  # (documents,)
    lengths = torch.diff(starts, append=torch.tensor([begins.numel()]))  # (documents,)
    group_of = lengths.float() if exact else lengths.log2().floor()  # (documents,)
    for group, longer in [] if exact else pairwise(group_of.unique().tolist()):
        few = group_of == group  # (documents,)
        if few.sum() * 2 ** (longer + 1) <= FEW * begins.numel():
            group_of[few] = longer
    rows, back, before = [], torch.empty(begins.numel(), dtype=torch.long), 0  # back (N,)
    for group in group_of.unique():
        start, length = starts[group_of == group, None], lengths[group_of == group, None]  # (R, 1) each
        nth = torch.arange(int(length.max()))  # (L,)
        row = start + nth.minimum(length - 1)  # (R, L)
        real = nth < length  # (R, L)
        back[row[real]] = before + torch.arange(row.numel()).view_as(row)[real]
        rows.append(row)
        before += row.numel()
    return rows, back.view_as(begins)


def on_rows(
    method: Callable[..., Tensor], rows: list[Tensor], back: Tensor, pasts: Sequence[Past]
) -> Callable[..., Tensor]:
    """A method (B, T, D) -> (B, T, D) that calls `method` once for each group of rows, with a past of its own."""

    def apart(x: Tensor, past: Past | None = None) -> Tensor:
        if x.shape[:2] != back.shape:
            raise ValueError(f"they are the documents of {(*back.shape,)} tokens, now {(*x.shape[:2],)} came")
        if past is not None and past.keeps:
            raise ValueError("no cache can continue several documents: write outside of within_documents")
        tokens = x.flatten(0, 1)  # (N, D)
        groups = [tokens.index_select(0, row.flatten()).view(*row.shape, -1) for row in rows]  # (R, L, D) each
        results = [method(group, past).flatten(0, 1) for group, past in zip(groups, pasts)]  # (R L, D) each
        return torch.cat(results).index_select(0, back.flatten()).view(*back.shape, -1)  # (B, T, D)

    return apart


def noting_loss(attention: Attention, losses: dict[int, Tensor], N: int) -> Callable[..., Tensor]:
    """The attention's `forward`, which also stores its own loss for each row length, weighted for a mean over N."""
    forward, extra_loss = attention.forward, attention.extra_loss

    def noting(x: Tensor, past: Past) -> Tensor:
        out = forward(x, past)  # (R, L, D)
        if (loss := extra_loss()) is not None:
            losses[x.shape[1]] = loss * (x.shape[0] * x.shape[1] / N)
        return out

    return noting


def total(losses: dict[int, Tensor]) -> Tensor | None:
    """The sum of the losses stored in the last pass, which it removes; None if the kind has no loss of its own."""
    stored = [losses.pop(length) for length in [*losses]]
    return torch.stack(stored).sum() if stored else None
