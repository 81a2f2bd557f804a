"""Freed memory is kept by this process for the next step, instead of being returned to the operating system."""

from __future__ import annotations

from functools import lru_cache

from minigpt.system.machine import c_library

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h


@lru_cache(maxsize=1)
def keep_memory() -> None:
    """Tell glibc's malloc to keep what is freed.

    Otherwise each step returns its tensors' memory to the system and asks for it again; the system clears every page
    first. That happens thousands of times a step and takes a tenth of a small model's time or more. Tensors of more
    than 32 MiB, and systems without glibc, are not changed.
    """
    mallopt = getattr(c_library(), "mallopt", None)
    if mallopt:
        mallopt(M_MMAP_THRESHOLD, 32 << 20)  # the most that every glibc takes
        mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1)
