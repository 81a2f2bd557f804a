"""Refuses a training that does not fit into memory before it begins, and says what would fit.

Most trainings are far below the limit, which a sum shows at once. If the sum is an eighth of the memory or more, a step
is simulated (`fake.py`), which takes seconds.
"""

from __future__ import annotations

import torch

from minigpt.system.errors import UserError
from minigpt.system.memory import free_memory
from minigpt.system.waiting import heartbeat
from minigpt.training.memory import Job, check_device, check_memory, free_on, training_parts

NEAR = 8  # a step is simulated if NEAR times the sum exceeds the memory: real steps took 2 to 5 times the sum
DEEP = 256  # layers; the simulation of more takes minutes


def check_training(job: Job, device: torch.device, purpose: str = "training", free: int | None = None) -> None:
    """Raises UserError if a training does not fit into the memory of each process; the message says what would fit.

    `purpose` and `free` are those of `check_device`.
    """
    parts = training_parts(job)
    usable = free_on(device) if job.gpu else free_memory() if free is None else free
    if job.shared:  # a step in shards is not simulated
        return check_memory(parts, f"{purpose} in each process", usable, f" on {device}" if job.gpu else "")
    try:
        check_device(parts, purpose, job.config, job.vocab_size, device, free)
    except UserError as error:
        raise UserError(f"{error}{advice(job, usable)}") from None
    peak = None if usable is None or NEAR * sum(parts.values()) < usable else simulated(job)
    if usable is not None and peak is not None and peak > usable:
        problem = f"{purpose} would need {peak:,} bytes at its peak, and {usable:,} are free"
        raise UserError(f"not enough memory: {problem}{advice(job, usable)}")


def simulated(job: Job) -> int | None:
    """The peak of a step in bytes; None where it cannot be simulated, as with a plugin that computes with values."""
    from minigpt.training.fake import bytes_by_part  # torch's fake tensors take half a second to import

    if job.config.n_layer > DEEP:
        return None
    try:
        with heartbeat("simulating a step: it may not fit"):
            return sum(bytes_by_part(job).values())
    except Exception:
        return None


def advice(job: Job, usable: int | None) -> str:
    """The end of a message: what would fit into `usable` bytes; empty if that is not known."""
    from minigpt.training.remedies import in_words, remedies

    if usable is None or job.config.n_layer > DEEP:
        return ""
    try:
        with heartbeat("looking for what would fit"):
            return f"; what would fit: {in_words(remedies(job, usable, job.gpu and job.ranks == 1))}"
    except Exception:
        return ""
