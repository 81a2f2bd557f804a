"""The largest micro-batch that fits into memory, and what to change when a training does not fit.

What can be changed: smaller micro-batches, activations that are computed again, processes that share the model.
"""

from __future__ import annotations

from dataclasses import replace

from minigpt.training.fake import bytes_by_part
from minigpt.training.memory import Job, weight_bytes
from minigpt.training.parallel import FSDP

MOST_RANKS = 64  # the largest number of processes that is tried


def largest_that_fits(job: Job, usable: int, measured_peaks: dict[int, int] | None = None) -> int | None:
    """The largest micro-batch whose step takes at most `usable` bytes; None: not even one window does.

    `measured_peaks`: peaks that are known already, by micro-batch.
    The peak is nearly linear in the micro-batch, so the line through the two nearest points gives the next
    guess; above a hundred windows the answer is within 1 % of the largest.
    """
    peaks = dict(measured_peaks or {})

    def peak(size: int) -> int:
        if size not in peaks:
            peaks[size] = sum(bytes_by_part(job.having(micro_batch_size=size)).values())
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
