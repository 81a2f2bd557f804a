"""What is left as it was: the mode of a model that is evaluated or inspected in its training, and random numbers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
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


@contextmanager
def untouched_random(device: str = "cpu") -> Iterator[None]:
    """Restores the random states of torch, numpy and Python afterwards, on the CPU and on a device."""
    numbers, python = np.random.get_state(), random.getstate()
    with torch.random.fork_rng([device] if device.startswith("cuda") else []):
        try:
            yield
        finally:
            np.random.set_state(numbers)
            random.setstate(python)
