"""Memory that is freed stays with the process, so that a step does not wait for the system's cleared pages."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

LOOP = """
import resource, torch
from minigpt.machine import keep_memory
{kept}
def work():
    return [torch.ones(2 << 20) for _ in range(8)]
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3):
    work()
before = faults()
for _ in range(10):
    work()
print(faults() - before)
"""


def page_faults(kept: str) -> int:
    code = LOOP.format(kept=kept)
    return int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library has no mallopt")
def test_freed_memory_is_kept() -> None:
    """Ten times 64 MiB are 163,840 pages of 4 KiB, or 320 of 2 MiB."""
    assert page_faults("keep_memory()") < 20 < page_faults("")
