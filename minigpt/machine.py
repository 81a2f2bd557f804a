"""What this machine gives: memory for a model, asked for beforehand and kept between steps."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from minigpt.model import GPT, ModelConfig
from minigpt.strict_yaml import UserError

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
TRAINING_BYTES = 16  # a parameter in float32: itself, its gradient, and AdamW's two memories


class Unfilled(TorchFunctionMode):
    """Leaves initial values out: there is nothing to fill on the meta device, and torch imports its compiler for it."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        if getattr(func, "__module__", "") == "torch.nn.init":
            return named["tensor"] if "tensor" in named else args[0]
        return func(*args, **named)


@lru_cache(maxsize=1)
def keep_memory() -> None:
    """Have freed memory wait for its next use in this process instead of going back to the system.

    Each step, or reading of a window, asks for the memory that the one before it gave back, and the system hands it out
    page by page, each cleared anew: thousands of times a step, a tenth of a small model's time or more. Tensors of more
    than 32 MiB, and systems without glibc, stay as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt:
        mallopt(M_MMAP_THRESHOLD, 32 << 20)  # the most that every glibc takes
        mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1)


def parameter_count(config: ModelConfig, vocab_size: int) -> int:
    """How many parameters a model would have, found out without making any of them."""
    period = len(config.attention) if isinstance(config.attention, tuple) else 1
    layers = min(period, config.n_layer)
    try:
        with torch.device("meta"), Unfilled():
            part = GPT(replace(config, n_layer=layers), vocab_size)
    except RuntimeError:  # more elements than a tensor can count
        return 2**63
    blocks = sum(parameter.numel() for parameter in part.blocks.parameters())
    others = sum(parameter.numel() for parameter in part.parameters()) - blocks
    return others + blocks * config.n_layer // layers


def free_memory() -> int | None:
    """Bytes that a new model could take, or None where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        found = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        return None
    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii"))
        used = int(Path("/sys/fs/cgroup/memory.current").read_text(encoding="ascii"))
        return min(found, limit - used)
    except (OSError, ValueError):  # no such limit
        return found


def check_memory(config: ModelConfig, vocab_size: int) -> None:
    """Raises UserError for a model that cannot be trained in this machine's memory, before any of it is made."""
    count, free = parameter_count(config, vocab_size), free_memory()
    needed = count * TRAINING_BYTES
    if free is not None and needed > free:
        raise UserError(
            f"model: {count:,} parameters need {needed:,} bytes to train (weights, gradients, optimizer), and "
            f"{free:,} are free: lower n_layer or n_embd"
        )
