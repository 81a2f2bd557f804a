"""How every script begins, before the seconds that importing torch takes. The scripts import this first.

From here on, Ctrl-C prints one line and exits with code 130. A standard stream that was closed, as by `>&-`, is opened
on the null device: otherwise the next file that is opened would get its number, and printed text would go into it.
"""

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
