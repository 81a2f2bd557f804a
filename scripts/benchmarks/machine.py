"""The machine: what it is, and how fast it multiplies matrices at the time of the benchmark.

MFU (model FLOPs utilization) is usually a fraction of the vendor's peak. On a CPU that is shared, throttled or old,
that peak cannot be reached. Here it is a fraction of the speed of a large matrix product, measured before and after the
rest.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
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


@dataclass
class Hardware:
    """The speed of matrix products: a large square one, and those of shapes (m, k, n) that a suite's models contain."""

    device: torch.device
    shapes: Sequence[Shape] = ()
    size: int = 0  # side of the square matrices; 0: a size that is large for this device
    # a list for each call of `measure`, with the FLOP/s of each round
    found: dict[tuple[Shape, str], list[list[float]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        size = self.size or (8192 if self.device.type == "cuda" else 2048)
        self.shapes = [(size, size, size), *self.shapes]

    def measure(self) -> None:
        """Measure every shape in float32 and bfloat16."""
        for shape in self.shapes:
            for name, dtype in TYPES.items():
                self.found.setdefault((shape, name), []).append(product_rates(shape, dtype, self.device))

    def square(self, precision: str) -> float:
        """FLOP/s of the large square product: the median of all measurements."""
        return median(rate for rates in self.found[self.shapes[0], precision] for rate in rates)

    def rows(self) -> list[dict[str, Any]]:
        """One table row for each shape and type, in GFLOP/s."""
        return [
            {
                "shape": f"({m}, {k}) @ ({k}, {n})",
                "precision": name,
                "gflops": median(rate for rates in times for rate in rates) / 1e9,
                "first": median(times[0]) / 1e9,
                "last": median(times[-1]) / 1e9,
            }
            for ((m, k, n), name), times in self.found.items()
        ]


@torch.no_grad()
def product_rates(shape: Shape, dtype: torch.dtype, device: torch.device) -> list[float]:
    """FLOP/s of (m, k) @ (k, n) in each round. A multiplication and an addition are two operations."""
    m, k, n = shape
    a = torch.randn(m, k, device=device).to(dtype)  # (m, k)
    b = torch.randn(n, k, device=device).to(dtype).T  # (k, n): transposed, as the weights of a linear layer are
    repeat = 1
    while (took := seconds(lambda: a @ b, repeat, device)) < BRIEF:
        repeat *= 2
    rounds = ROUNDS if took < 1 else 1  # without instructions for this type, one round takes long enough
    return [2 * m * k * n * repeat / seconds(lambda: a @ b, repeat, device) for _ in range(rounds)]


def seconds(call: Callable[[], object], count: int, device: torch.device) -> float:
    """How long `count` calls take."""
    began = clock(device)
    for _ in range(count):
        call()
    return clock(device) - began


def describe_machine(device: torch.device, nanogpt: Path | None) -> dict[str, Any]:
    """The machine and the versions of the programs; `lines` holds the same as text."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    load = os.getloadavg()[0]
    name = torch.cuda.get_device_name() if device.type == "cuda" else cpu_model()
    versions = {"python": platform.python_version(), "torch": torch.__version__, "transformers": transformers()}
    versions["nanogpt"] = "not given" if nanogpt is None else fingerprint(nanogpt)
    lines = [
        f"machine: {name}, {cores} cores, {torch.get_num_threads()} threads, load {load:.1f} before, on {device.type}",
        "versions: " + ", ".join(f"{what} {version}" for what, version in versions.items()),
    ]
    found: dict[str, Any] = {"device": device.type, "name": name, "cpu": cpu_model(), "cores": cores, "load": load}
    found |= {"threads": torch.get_num_threads(), "platform": platform.platform(), "versions": versions}
    return found | {"lines": lines}


def cpu_model() -> str:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def transformers() -> str:
    """The installed version of transformers, or "not installed"."""
    try:
        return importlib.metadata.version("transformers")
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def fingerprint(checkout: Path) -> str:
    """Identifies a version of nanoGPT: the first digits of the SHA-256 of its train.py and model.py."""
    both = b"".join((checkout / name).read_bytes() for name in ("train.py", "model.py"))
    return hashlib.sha256(both).hexdigest()[:12]
