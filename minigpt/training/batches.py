"""The batches of a training, on its device: while a step computes, the batch of the next one is copied there.

Python waits for a copy to a GPU until all earlier work of the GPU is done, unless the copy is from pinned memory, which
the system does not move. So batches are pinned, and a stream of their own copies them while another one computes.

B windows, T positions.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import Tensor

from minigpt.text.dataset import IGNORED, Dataset


class Batch(NamedTuple):
    """The rows of a batch that a process computes."""

    x: Tensor  # ids (B, T), on the device
    y: Tensor  # targets (B, T), on the device
    begins: Tensor | None  # where documents begin (B, T), on the CPU; see `Dataset.begins`
    targets: int  # how many of y are not IGNORED


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the CPU on a device; Python does not wait until it is there."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def read_ahead(
    dataset: Dataset, steps: range, batch_size: int, seed: int, rows: slice, device: torch.device
) -> Iterator[Batch]:
    """Yield the training batch of each step; when it is yielded, the copy of the next one has been asked for."""
    copying = torch.cuda.Stream(device) if device.type == "cuda" else None

    def load(step: int) -> Batch:
        of_step = step, batch_size, seed, rows
        (x, y), begins = dataset.batch("train", *of_step), dataset.begins("train", *of_step)  # (B, T) each
        with torch.cuda.stream(copying) if copying else nullcontext():
            return Batch(sent(x, device), sent(y, device), begins, int((y != IGNORED).sum()))

    coming = map(load, steps)
    following = next(coming, None)
    while (batch := following) is not None:
        if copying:  # only what was asked of it so far: not the copy of the next batch
            computing = torch.cuda.current_stream(device)
            computing.wait_stream(copying)
            for tensor in (batch.x, batch.y):
                tensor.record_stream(computing)  # else its memory could be used again before the step is done
        following = next(coming, None)
        yield batch
