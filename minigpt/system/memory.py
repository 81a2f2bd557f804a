"""How much memory is free: on this machine, and for the control group of this process."""

from __future__ import annotations

from pathlib import Path

PROC, CGROUP = Path("/proc"), Path("/sys/fs/cgroup")


def free_memory(proc: Path = PROC, cgroup: Path = CGROUP) -> int | None:
    """Bytes that this process could still take, or None where the system does not say.

    Pages that only cache files count as free: the system gives them up when memory is needed.
    """
    try:
        lines = (proc / "meminfo").read_text(encoding="ascii").splitlines()
        available = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        return None
    try:
        limit, used = (int((cgroup / name).read_text(encoding="ascii")) for name in ("memory.max", "memory.current"))
        counts = dict(line.split() for line in (cgroup / "memory.stat").read_text(encoding="ascii").splitlines())
        return min(available, limit - used + int(counts["inactive_file"]) + int(counts["active_file"]))
    except (OSError, ValueError, KeyError):  # no such limit
        return available
