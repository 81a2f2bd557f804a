"""The largest micro-batch that fits into memory, and what to change when a training does not fit.

What can be changed: smaller micro-batches, activations that are computed again, processes that share the model.
"""

from __future__ import annotations

from dataclasses import replace

from minigpt.model import ModelConfig
from minigpt.planning.fake import Step, bytes_by_part
from minigpt.training.loop import TrainingConfig
from minigpt.training.memory import WEIGHTS, training_parts
from minigpt.training.parallel import FSDP

MOST_RANKS = 64  # the largest number of processes that is tried


def largest_that_fits(
    config: ModelConfig,
    vocab_size: int,
    training: TrainingConfig,
    rows: int,
    usable: int,
    gpu: bool = False,
    known: dict[int, Step] | None = None,
    ranks: int = 1,
) -> int | None:
    """The largest micro-batch of at most `rows` windows whose step takes at most `usable` bytes; None: not even one.

    The peak is nearly linear in the micro-batch, so the line through the two nearest points gives the next
    guess; above a hundred windows the answer is within 1 % of the largest.
    """
    peaks = {size: step.peak for size, step in (known or {}).items()}

    def peak(size: int) -> int:
        if size not in peaks:
            settings = replace(training, micro_batch_size=size)
            peaks[size] = sum(bytes_by_part(config, vocab_size, settings, rows, gpu, ranks).values())
        return peaks[size]

    def guess() -> int:
        """The micro-batch at which the line through the two points nearest to the limit reaches the limit."""
        a, b = sorted(sorted(peaks, key=lambda size: abs(peaks[size] - usable))[:2])
        slope = (peaks[b] - peaks[a]) / (b - a)  # bytes a window
        return a + int((usable - peaks[a]) / slope) if slope > 0 else rows

    if peak(1) > usable:
        return None
    fits, too_many = 1, rows + 1  # the first fits; the second does not, or is more than there are
    while too_many - fits > max(1, fits // 100):
        size = min(max(guess(), fits + 1), too_many - 1) if len(peaks) > 1 else rows
        if peak(size) <= usable:
            fits = size
        else:
            too_many = size
    return fits


def remedies(
    config: ModelConfig,
    vocab_size: int,
    training: TrainingConfig,
    usable: int,
    gpu: bool = False,
    ranks: int = 1,
    most_ranks: int = MOST_RANKS,
) -> list[str]:
    """The options with which a step takes at most `usable` bytes on each of `ranks` devices, the mildest first.

    `most_ranks`: the largest number of devices that may share the model.
    """

    weights = training_parts(config, vocab_size, 1, 1, training.lora)[WEIGHTS]

    def try_out(settings: TrainingConfig, processes: int) -> int | None:
        rows = -(-training.batch_size // processes)
        share = processes if isinstance(settings.parallel, FSDP.Config) else 1
        if weights // share > usable:  # known without a simulation
            return None
        return largest_that_fits(config, vocab_size, settings, rows, usable, gpu, ranks=processes)

    found = []
    again = replace(training, checkpoint_activations=True)
    if most := try_out(training, ranks):
        found.append(f"training.micro_batch_size={most}")
    if not training.checkpoint_activations and (most := try_out(again, ranks)):
        found.append(f"training.checkpoint_activations=true training.micro_batch_size={most}")
    shared, processes = replace(again, parallel=FSDP.Config()), ranks if ranks > 1 else 2
    while not found and processes <= min(most_ranks, training.batch_size):
        if most := try_out(shared, processes):
            words = f"training.parallel=fsdp training.checkpoint_activations=true training.micro_batch_size={most}"
            found.append(words if processes == ranks else f"{processes} such devices with {words}")
        processes *= 2
    return found


def in_words(found: list[str]) -> str:
    """What would fit, as the end of a sentence."""
    if not found:
        return "nothing that is known would: fewer or narrower layers, or a smaller model.block_size"
    return " or ".join(found)
