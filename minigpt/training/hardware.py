"""The devices that a plan can be for: their memory, and the peak speed of their matrix products.

The figures are those of the makers' data sheets: dense products in bfloat16 with sums in float32 (float16 where the
device has no bfloat16), without sparsity.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass

from minigpt.system.errors import UserError
from minigpt.system.memory import free_memory
from minigpt.training.precision import Precision

GB, GIB = 10**9, 2**30
CONTEXT = GIB  # bytes of a GPU, about, that tensors cannot have: its driver, libraries, what the allocator cannot use


@dataclass(frozen=True)
class Device:
    """One device of a kind."""

    name: str
    memory: int  # bytes; 0: not known
    flops: float  # operations a second, at best, in `half`; 0: not known
    half: Precision = "bfloat16"  # the type of 16 bits whose products are fast

    @property
    def is_gpu(self) -> bool:
        return self.name != "cpu"

    @property
    def usable(self) -> int:
        """The bytes that are left for tensors; more than any training needs, if that is not known."""
        return self.memory - CONTEXT if self.is_gpu else self.memory or sys.maxsize


DEVICES = {
    device.name.lower(): device
    for device in (
        Device("T4", 16 * GB, 65e12, "float16"),
        Device("V100", 32 * GB, 125e12, "float16"),
        Device("RTX3090", 24 * GB, 71e12),
        Device("RTX4090", 24 * GB, 165e12),
        Device("L4", 24 * GB, 121e12),
        Device("L40S", 48 * GB, 362e12),
        Device("A100-40", 40 * GB, 312e12),
        Device("A100", 80 * GB, 312e12),
        Device("H100", 80 * GB, 989e12),
        Device("H200", 141 * GB, 989e12),
        Device("B200", 180 * GB, 2250e12),
    )
}
BYTES = {"GB": GB, "GiB": GIB, "MB": 10**6, "MiB": 2**20}


def read_hardware(text: str) -> tuple[int, Device]:
    """`8xH100` or `H100` -> (number of devices, Device). Raises UserError for an unknown device."""
    match = re.fullmatch(r"(?:([1-9][0-9]{0,4})x)?([\w.-]{1,20})", text)
    if not match or match[2].lower() not in DEVICES:
        names = ", ".join(device.name for device in DEVICES.values())
        raise UserError(f"--hardware {text[:40]!r}: expected such as 8xH100, of {names}; or give --memory 24GB")
    return int(match[1] or 1), DEVICES[match[2].lower()]


def read_memory(text: str) -> Device:
    """`24GB` -> a GPU of that much memory, whose speed is not known. Raises UserError for 1 GiB or less."""
    match = re.fullmatch(r"([0-9]{1,7}(?:\.[0-9]{1,3})?) ?(GB|GiB|MB|MiB)", text)
    size = int(float(match[1]) * BYTES[match[2]]) if match else 0
    if size <= CONTEXT:
        raise UserError(f"--memory {text[:40]!r}: expected more than 1 GiB, such as 24GB or 80GiB")
    return Device(f"GPU of {text}", size, 0.0)


def this_machine() -> Device:
    """The CPUs and the free memory of this machine; Windows and macOS do not say how much that is."""
    return Device("cpu", free_memory() or 0, 0.0)
