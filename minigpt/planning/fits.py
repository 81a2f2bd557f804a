"""Refuses a training that does not fit into memory before it begins, and says what would fit.

Most trainings are far below the limit, which a sum shows at once. If the sum is an eighth of the memory or more, a step
is simulated (`fake.py`), which takes seconds.
"""

from __future__ import annotations

import torch

from minigpt.model import ModelConfig
from minigpt.system.errors import UserError
from minigpt.system.memory import free_memory
from minigpt.system.waiting import heartbeat
from minigpt.training import distributed
from minigpt.training.loop import TrainingConfig
from minigpt.training.memory import ACTIVATIONS, WEIGHTS, check_device, check_memory, free_on, training_parts

NEAR = 8  # a step is simulated if NEAR times the sum exceeds the memory: real steps took 2 to 5 times the sum
DEEP = 256  # layers; the simulation of more takes minutes


def check_training(
    config: ModelConfig,
    vocab_size: int,
    training: TrainingConfig,
    rows: int,
    device: torch.device,
    purpose: str = "training",
    free: int | None = None,
) -> None:
    """Raises UserError if a training of `rows` windows in each process does not fit; the message says what would fit.

    `purpose` and `free` are those of `check_device`.
    """
    parts = dict(training_parts(config, vocab_size, rows, training.micro_batch_size, training.lora))
    if training.checkpoint_activations:
        parts[ACTIVATIONS] //= config.n_layer  # of one block at a time, at least
    there = free_on(device) if device.type == "cuda" else free_memory() if free is None else free
    share = training.parallel.component().share(parts[WEIGHTS])
    if share < parts[WEIGHTS]:  # a step in shards is not simulated
        where = f" on {device}" if device.type == "cuda" else ""
        return check_memory(parts | {WEIGHTS: share}, f"{purpose} in each process", there, where)
    needed = sum(parts.values())
    try:
        check_device(parts, purpose, config, vocab_size, device, free)
    except UserError as error:
        raise UserError(f"{error}{advice(config, vocab_size, training, rows, device, there)}") from None
    if there is None or NEAR * needed < there:
        return
    peak = simulated(config, vocab_size, training, rows, device)
    if peak is not None and peak > there:
        what = f"{purpose} would need {peak:,} bytes at its peak, and {there:,} are free"
        raise UserError(f"not enough memory: {what}{advice(config, vocab_size, training, rows, device, there)}")


def simulated(
    config: ModelConfig, vocab_size: int, training: TrainingConfig, rows: int, device: torch.device
) -> int | None:
    """The peak of a step in bytes; None where it cannot be simulated, as with a plugin that computes with values."""
    from minigpt.planning.fake import bytes_by_part  # torch's fake tensors take half a second to import

    if config.n_layer > DEEP:
        return None
    try:
        with heartbeat("simulating a step: it may not fit"):
            gpu, processes = device.type == "cuda", distributed.world()
            return sum(bytes_by_part(config, vocab_size, training, rows, gpu, processes).values())
    except Exception:
        return None


def advice(
    config: ModelConfig,
    vocab_size: int,
    training: TrainingConfig,
    rows: int,
    device: torch.device,
    there: int | None,
) -> str:
    """The end of a message: what would fit into `there` bytes; empty if that is not known."""
    from minigpt.planning.remedies import MOST_RANKS, in_words, remedies

    gpu, processes = device.type == "cuda", distributed.world()
    most_ranks = MOST_RANKS if gpu and processes == 1 else 1
    if there is None or config.n_layer > DEEP:
        return ""
    try:
        with heartbeat("looking for what would fit"):
            found = remedies(config, vocab_size, training, there, gpu, processes, most_ranks)
    except Exception:
        return ""
    return f"; what would fit: {in_words(found)}"
