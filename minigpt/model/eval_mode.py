"""Temporary evaluation mode, for a model that is evaluated, sampled from or inspected during its training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Turn dropout off inside the `with`. Afterwards the model is in the mode in which it was, also after an error."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)
