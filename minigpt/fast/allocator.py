"""Freed memory waits for its next use in this process, instead of going back to the operating system."""

from __future__ import annotations

import ctypes
from functools import lru_cache

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h


@lru_cache(maxsize=1)
def keep_memory() -> None:
    """Tell glibc's malloc to keep what is freed.

    Each step asks for the memory that the step before gave back, and the system hands it out page by page, each cleared
    anew: thousands of times a step, a tenth of a small model's time or more. Tensors of more than 32 MiB, and systems
    without glibc, stay as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt:
        mallopt(M_MMAP_THRESHOLD, 32 << 20)  # the most that every glibc takes
        mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1)
