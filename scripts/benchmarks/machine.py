"""The machine: what it is, how fast it multiplies matrices at the time of the benchmark, and a clock.

MFU (model FLOPs utilization) is usually a fraction of the vendor's peak. On a CPU that is shared, throttled or old,
that peak cannot be reached. Here it is a fraction of the speed of a large matrix product, measured before and after the
rest. Nothing of minigpt is imported here: workers measure other programs with the same clock.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import math
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
ROUNDS = 5
BRIEF = 0.02  # seconds; a measurement of one product takes at least as long

Shape = tuple[int, int, int]


def clock(device: torch.device) -> float:
    """The time in seconds, after all work that was queued on the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    return perf_counter()


def seconds_each(call: Callable[[], object], count: int, device: torch.device) -> float:
    """How long one of `count` calls takes, on average."""
    start = clock(device)
    for _ in range(count):
        call()
    return (clock(device) - start) / count


def product_rates(shapes: Sequence[Shape], device: torch.device) -> dict[tuple[Shape, str], list[float]]:
    """FLOP/s in each round, of each shape in each of TYPES."""
    return {(shape, name): product_rate(shape, dtype, device) for shape in shapes for name, dtype in TYPES.items()}


@torch.no_grad()
def product_rate(shape: Shape, dtype: torch.dtype, device: torch.device) -> list[float]:
    """FLOP/s of (m, k) @ (k, n) in each round. A multiplication and an addition are two operations."""
    m, k, n = shape
    a = torch.randn(m, k, device=device).to(dtype)  # (m, k)
    b = torch.randn(n, k, device=device).to(dtype).T  # (k, n): transposed, as the weights of a linear layer are
    repeat = 1
    while (seconds := repeat * seconds_each(lambda: a @ b, repeat, device)) < BRIEF:
        repeat *= 2
    rounds = ROUNDS if seconds < 1 else 1  # without instructions for this type, one round takes long enough
    return [2 * m * k * n / seconds_each(lambda: a @ b, repeat, device) for _ in range(rounds)]


def describe_machine(device: torch.device, nanogpt: Path | None) -> dict[str, Any]:
    """The machine and the versions of the programs; `lines` holds the same as text."""
    from minigpt.system.machine import cpu_model, load, processors  # not by the workers, which measure other programs

    cores, busy, threads, cpu = processors(), load(), torch.get_num_threads(), cpu_model()
    name = torch.cuda.get_device_name() if device.type == "cuda" else cpu
    versions = {"python": platform.python_version(), "torch": torch.__version__, "transformers": "not installed"}
    if importlib.util.find_spec("transformers"):
        versions["transformers"] = importlib.metadata.version("transformers")
    versions["nanogpt"] = "not given"
    if nanogpt is not None:  # it has no number
        both = b"".join((nanogpt / name).read_bytes() for name in ("train.py", "model.py"))
        versions["nanogpt"] = hashlib.sha256(both).hexdigest()[:12]
    lines = [
        f"machine: {name}, {cores} cores, {threads} threads, load {busy:.1f} before, on {device.type}",
        "versions: " + ", ".join(f"{program} {version}" for program, version in versions.items()),
    ]
    machine: dict[str, Any] = {"device": device.type, "name": name, "cpu": cpu, "cores": cores}
    machine["load"] = None if math.isnan(busy) else busy
    return machine | {"threads": threads, "platform": platform.platform(), "versions": versions, "lines": lines}
