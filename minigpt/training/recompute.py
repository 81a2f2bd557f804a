"""Activation checkpointing: the activations inside a block are dropped, and computed again for the backward pass.

Paper: "Training Deep Nets with Sublinear Memory Cost" (arXiv 1604.06174). A training then keeps the input of each
block and the activations of one block, instead of the activations of all blocks; in return, each block computes its
forward pass twice. Losses and gradients are equal to the bit: dropout draws the same numbers again.

B batch, T positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from minigpt.model.gpt import GPT
from minigpt.model.replaced import replaced


def recomputing(model: GPT) -> Callable[[Tensor], Tensor]:
    """The model as it is called in training: ids (B, T) -> logits (B, T, V)."""

    def forward(ids: Tensor) -> Tensor:
        with ExitStack() as stack:
            for block in model.blocks:
                again = partial(checkpoint, block.forward, use_reentrant=False, context_fn=partial(contexts, block))
                stack.enter_context(replaced(block, "forward", again))
            logits: Tensor = model(ids)  # (B, T, V)
        return logits

    return forward


def contexts(block: nn.Module) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """The contexts in which the first and the second forward pass of a block run."""
    return nullcontext(), second(block)


@contextmanager
def second(block: nn.Module) -> Iterator[None]:
    """Drop the attention's extra loss of the second forward pass: that of the first is already part of the loss."""
    try:
        yield
    finally:
        block.attention.extra_loss()  # type: ignore[operator, union-attr]
