"""The machine: what it is, and how fast it multiplies matrices, measured while the benchmark runs.

A share of a vendor's peak says nothing on a CPU that is shared, throttled, or lacks an instruction. What a large
matrix product reaches here, before and after the other measurements, is what a model could at best hope for.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch

TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
ROUNDS = 5
BRIEF = 0.02  # seconds that a measurement of one product takes at least

Shape = tuple[int, int, int]


def clock(device: torch.device) -> float:
    """Now, once the device has done all that it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    return perf_counter()


@dataclass
class Yardstick:
    """How fast this machine multiplies: a large square, and the shapes (m, k, n) that a suite's models are made of."""

    device: torch.device
    shapes: Sequence[Shape] = ()
    size: int = 0  # of the square; 0 for one that is large on this device
    found: dict[tuple[Shape, str], list[list[float]]] = field(default_factory=dict)  # FLOP/s of each round, each time

    def __post_init__(self) -> None:
        size = self.size or (8192 if self.device.type == "cuda" else 2048)
        self.shapes = [(size, size, size), *self.shapes]

    def measure(self) -> None:
        """Measure every shape in both types."""
        for shape in self.shapes:
            for name, dtype in TYPES.items():
                self.found.setdefault((shape, name), []).append(product_rates(shape, dtype, self.device))

    def square(self, precision: str) -> float:
        """FLOP/s of the large square: the median of all that was measured."""
        return median(rate for rates in self.found[self.shapes[0], precision] for rate in rates)

    def rows(self) -> list[dict[str, Any]]:
        """A row a shape and type, in GFLOP/s."""
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
    """FLOP/s of (m, k) @ (k, n), two operations a multiplication and addition; one number a round."""
    m, k, n = shape
    a = torch.randn(m, k, device=device).to(dtype)  # (m, k)
    b = torch.randn(n, k, device=device).to(dtype).T  # (k, n): laid out as the weights of a linear layer
    repeat = 1
    while (seconds := _seconds(a, b, repeat, device)) < BRIEF:
        repeat *= 2
    rounds = ROUNDS if seconds < 1 else 1  # a type that the machine has no instructions for is slow
    return [2 * m * k * n * repeat / _seconds(a, b, repeat, device) for _ in range(rounds)]


def _seconds(a: torch.Tensor, b: torch.Tensor, repeat: int, device: torch.device) -> float:
    began = clock(device)
    for _ in range(repeat):
        a @ b
    return clock(device) - began


def describe_machine(device: torch.device, nanogpt: Path | None) -> dict[str, Any]:
    """Where this ran and with which versions; `lines` says it for people."""
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
    """The version of transformers that is installed, or that there is none."""
    try:
        return importlib.metadata.version("transformers")
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def fingerprint(checkout: Path) -> str:
    """Which nanoGPT it is: SHA-256 of its train.py and model.py together, shortened."""
    both = b"".join((checkout / name).read_bytes() for name in ("train.py", "model.py"))
    return hashlib.sha256(both).hexdigest()[:12]
