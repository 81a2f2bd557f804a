"""SIGINT, SIGTERM and SIGHUP: each raises an exception; training first finishes its step and saves a checkpoint."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP outside training: the program ends as after Ctrl-C, and cleans up."""

    def __init__(self, signum: int):
        self.signum = signum


SIGHUP, SIGPIPE = getattr(signal, "SIGHUP", 1), getattr(signal, "SIGPIPE", 13)  # Windows sends neither
ENDING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


def _terminate(signum: int, frame: Any) -> NoReturn:
    raise Terminated(signum)


def receive_signals() -> None:
    """Make SIGINT, SIGTERM and SIGHUP raise exceptions. A SIGHUP that is ignored, as under nohup, stays ignored."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for signum in ENDING[1:]:
        if signum != SIGHUP or signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, _terminate)


class Stopped(Exception):
    """A signal ended training, after its step was finished and a checkpoint was written."""

    def __init__(self, signum: int):
        super().__init__("SIGPIPE" if signum == SIGPIPE else signal.Signals(signum).name)
        self.signum = signum


@contextmanager
def signals() -> Iterator[list[int]]:
    """Append SIGINT, SIGTERM and SIGHUP to a list, so that a step can finish; a second one ends the process.

    A second SIGHUP is ignored: a terminal that closes may send several. A SIGHUP that is ignored already, as under
    nohup, stays ignored.
    """
    received: list[int] = []
    before = {signum: signal.getsignal(signum) for signum in ENDING}
    if before.get(SIGHUP) is signal.SIG_IGN:
        del before[SIGHUP]

    def note(signum: int, frame: Any) -> None:
        received.append(signum)
        for number in before:  # the next SIGINT or SIGTERM ends the process at once
            signal.signal(number, signal.SIG_IGN if number == SIGHUP else signal.SIG_DFL)

    for signum in before:
        signal.signal(signum, note)
    try:
        yield received
    finally:
        for signum, handler in before.items():
            signal.signal(signum, signal.SIG_IGN if signum == SIGHUP and signum in received else handler)
