"""How every script begins, before the seconds that importing torch takes. The scripts import this first.

From here on, Ctrl-C prints one line and exits with code 130. A standard stream that was closed, as by `>&-`, is opened
on the null device: otherwise the next file that is opened would get its number, and printed text would go into it.
Where the system lets no further thread start, a line says so: numpy starts some when it is imported, or ends Python.
"""

import _thread
import os
import sys

# not from signal, which imports ten modules itself: meanwhile, Ctrl-C would print a traceback
from _signal import SIGINT, default_int_handler, getsignal, signal  # type: ignore[import-not-found]


def stop(signum: int, frame: object) -> None:
    """End at once: nothing is under way yet, and nothing needs to be cleaned up."""
    try:
        os.write(2, b"stopped\n")
    finally:
        os._exit(128 + signum)


if getsignal(SIGINT) is default_int_handler:
    signal(SIGINT, stop)

for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
    if getattr(sys, name) is None:
        number = os.open(os.devnull, os.O_RDWR)  # the lowest that is free: 0, 1, or 2
        os.set_inheritable(number, True)
        setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", errors="backslashreplace", closefd=False))


def can_start(threads: int) -> bool:
    """Whether so many threads may be there at once."""
    with gate:
        try:
            for _ in range(threads):
                _thread.start_new_thread(pass_gate, ())
        except RuntimeError:
            return False
    return True


def pass_gate() -> None:
    """Wait for the gate, and end."""
    with gate:
        pass


gate = _thread.allocate_lock()
asked = os.environ.get("OPENBLAS_NUM_THREADS") or os.environ.get("OMP_NUM_THREADS") or ""
cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
if not can_start(min(64, int(asked) if asked.isdecimal() else cpus)):  # numpy's, and one for signals; at most 64
    os.write(2, b"error: the system lets this user start no further thread or process (ulimit -u; the limit of a "
                b"container): end some, or set OMP_NUM_THREADS=1\n")  # fmt: skip
    os._exit(2)
