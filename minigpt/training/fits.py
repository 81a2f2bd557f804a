"""Refuses a training that does not fit into memory before it begins, and says what would fit.

That is the largest micro-batch that does, activations that are computed again, or processes that share the model.

Most trainings are far below the limit, which a sum shows at once. If the sum is an eighth of the memory or more, a step
is simulated (`fake.py`), which takes seconds.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from minigpt.system.errors import UserError
from minigpt.system.memory import free_memory
from minigpt.system.waiting import heartbeat
from minigpt.training.memory import Job, check_device, check_memory, free_on, training_parts, weight_bytes
from minigpt.training.parallel import FSDP

NEAR = 8  # a step is simulated if NEAR times the sum exceeds the memory: real steps took 2 to 5 times the sum
DEEP = 256  # layers; the simulation of more takes minutes
MOST_RANKS = 64  # the largest number of processes that is tried


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
    if job.config.n_layer > DEEP:
        return None
    try:
        with heartbeat("simulating a step: it may not fit"):
            return peak_of(job)
    except Exception:
        return None


def peak_of(job: Job) -> int:
    """The peak of a simulated step, in bytes."""
    from minigpt.training.fake import bytes_by_part  # torch's fake tensors take half a second to import

    return sum(bytes_by_part(job).values())


def advice(job: Job, usable: int | None) -> str:
    """The end of a message: what would fit into `usable` bytes; empty if that is not known."""
    if usable is None or job.config.n_layer > DEEP:
        return ""
    try:
        with heartbeat("looking for what would fit"):
            return f"; what would fit: {in_words(remedies(job, usable, job.gpu and job.ranks == 1))}"
    except Exception:
        return ""


def largest_that_fits(job: Job, usable: int, measured_peaks: dict[int, int] | None = None) -> int | None:
    """The largest micro-batch whose step takes at most `usable` bytes; None: not even one window does.

    `measured_peaks`: peaks that are known already, by micro-batch.
    The peak is nearly linear in the micro-batch, so the line through the two nearest points gives the next
    guess; above a hundred windows the answer is within 1 % of the largest.
    """
    peaks = dict(measured_peaks or {})

    def peak(size: int) -> int:
        if size not in peaks:
            peaks[size] = peak_of(job.having(micro_batch_size=size))
        return peaks[size]

    def guess() -> int:
        """The micro-batch at which the line through the two points nearest to the limit reaches the limit."""
        a, b = sorted(sorted(peaks, key=lambda size: abs(peaks[size] - usable))[:2])
        slope = (peaks[b] - peaks[a]) / (b - a)  # bytes a window
        return a + int((usable - peaks[a]) / slope) if slope > 0 else job.rows

    if peak(1) > usable:
        return None
    fits, too_many = 1, job.rows + 1  # the first fits; the second does not, or is more than there are
    while too_many - fits > max(1, fits // 100):
        size = min(max(guess(), fits + 1), too_many - 1) if len(peaks) > 1 else job.rows
        if peak(size) <= usable:
            fits = size
        else:
            too_many = size
    return fits


def remedies(job: Job, usable: int, more_devices: bool) -> list[str]:
    """The options with which a step takes at most `usable` bytes on each of the job's devices, the mildest first.

    `more_devices`: whether up to MOST_RANKS devices may share the model.
    """
    weights = weight_bytes(job)

    def largest(other: Job) -> int | None:
        too_many = other.share(weights) > usable  # known without a simulation
        return None if too_many else largest_that_fits(other, usable)

    options, again = list[str](), job.having(checkpoint_activations=True)
    if most := largest(job):
        options.append(f"training.micro_batch_size={most}")
    if again != job and (most := largest(again)):
        options.append(f"training.checkpoint_activations=true training.micro_batch_size={most}")
    shared = again.having(parallel=FSDP.Config())
    processes = job.ranks if job.ranks > 1 else 2
    while more_devices and not options and processes <= min(MOST_RANKS, job.training.batch_size):
        if most := largest(replace(shared, ranks=processes)):
            words = f"training.parallel=fsdp training.checkpoint_activations=true training.micro_batch_size={most}"
            options.append(words if processes == job.ranks else f"{processes} such devices with {words}")
        processes *= 2
    return options


def in_words(options: list[str]) -> str:
    """What would fit, as the end of a sentence."""
    nothing = "nothing that is known would: fewer or narrower layers, or a smaller model.block_size"
    return " or ".join(options) or nothing
