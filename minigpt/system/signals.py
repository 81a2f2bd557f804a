"""SIGINT, SIGTERM and SIGHUP: each raises an exception; training first finishes its step and saves a checkpoint.

Python runs a signal handler only between two calls of a library, and a matrix product or a backward pass of torch can
take minutes. So a thread receives each signal at once, and ends the process if the handler cannot.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from minigpt.system.terminal import complain
from minigpt.system.waiting import QUIET_SECONDS


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP outside training: the program ends as after Ctrl-C, and cleans up."""

    def __init__(self, signum: int):
        self.signum = signum


SIGHUP, SIGPIPE = getattr(signal, "SIGHUP", 1), getattr(signal, "SIGPIPE", 13)  # Windows sends neither
ENDING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class Watch:
    """Calls a function in a thread, with a socket on which each signal arrives as one byte, until `close`."""

    def __init__(self, watch: Callable[[socket.socket], None]):
        inbox, self.outbox = socket.socketpair()
        self.outbox.setblocking(False)
        self.before = signal.set_wakeup_fd(self.outbox.fileno(), warn_on_full_buffer=False)
        threading.Thread(target=watch, args=(inbox,), daemon=True).start()

    def close(self) -> None:
        """End the thread."""
        signal.set_wakeup_fd(self.before)
        self.outbox.close()


def _ending(inbox: socket.socket) -> Iterator[int]:
    """The signals that end a process, as they arrive."""
    with inbox:
        while byte := inbox.recv(1):
            if byte[0] in ENDING:
                yield byte[0]


def _end(signum: int, line: str) -> NoReturn:
    """End the process from any thread; the system releases its locks and files, as after SIGKILL."""
    complain(line)
    os._exit(128 + signum)


handled = threading.Event()  # a handler has run: the main thread is ending
watches: list[Watch] = []  # of this process, at most one


def _interrupt(signum: int, frame: Any) -> NoReturn:
    handled.set()
    raise KeyboardInterrupt if signum == signal.SIGINT else Terminated(signum)


def _end_if_busy(inbox: socket.socket) -> None:
    """End the process at a signal if the main thread is within one call and does not handle it in two seconds."""
    for signum in _ending(inbox):
        if not handled.wait(QUIET_SECONDS):
            _end(signum, "stopped")


def receive_signals() -> None:
    """Make SIGINT, SIGTERM and SIGHUP raise exceptions. A SIGHUP that is ignored, as under nohup, stays ignored.

    A process that is within one long call of a library then ends after two seconds, without an exception. Called again
    where an exception was caught, and the process goes on.
    """
    handled.clear()
    for signum in ENDING:
        if signum == signal.SIGTERM or signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, _interrupt)
    if not watches:
        watches.append(Watch(_end_if_busy))


class Stopped(Exception):
    """A signal ended training, after its step was finished and a checkpoint was written."""

    def __init__(self, signum: int, run: Path):
        """`run`: the folder of the run that was stopped."""
        super().__init__("SIGPIPE" if signum == SIGPIPE else signal.Signals(signum).name)
        self.signum, self.run = signum, run

    def _render_traceback_(self) -> list[str]:
        """What IPython shows in place of a traceback."""
        return [f"stopped by {self}; a checkpoint is written, and minigpt.resume() goes on from there"]


def _end_at_the_second(inbox: socket.socket) -> None:
    """Say after two seconds that the step goes on, and end the process at the second SIGINT or SIGTERM.

    A second SIGHUP is ignored: a terminal that closes may send several.
    """
    reminder: threading.Timer | None = None
    for signum in _ending(inbox):
        name = signal.Signals(signum).name
        if reminder is None:
            line = f"{name}: the step is finished and saved first; a second Ctrl-C or SIGTERM ends it at once"
            reminder = threading.Timer(QUIET_SECONDS, complain, [line])
            reminder.daemon = True
            reminder.start()
        elif signum != SIGHUP:
            _end(signum, f"stopped at once by {name}; the steps after the last checkpoint are lost")
    if reminder is not None:
        reminder.cancel()


@contextmanager
def signals() -> Iterator[list[int]]:
    """Append SIGINT, SIGTERM and SIGHUP to a list, so that a step can finish; a second one ends the process at once.

    A SIGHUP that is ignored already, as under nohup, stays ignored. A process that is not a command of ours, such as a
    notebook's kernel, is not ended: there the second signal raises KeyboardInterrupt at once. In another thread than
    the main one, Python has no signals, and the list stays empty.
    """
    received: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield received
        return

    def receive(signum: int, frame: Any) -> None:
        if received and not watches:
            raise KeyboardInterrupt
        received.append(signum)

    before = {signum: signal.getsignal(signum) for signum in ENDING}
    if before.get(SIGHUP) is signal.SIG_IGN:
        del before[SIGHUP]
    for signum in before:
        signal.signal(signum, receive)
    watch = Watch(_end_at_the_second) if watches else None
    try:
        yield received
    finally:
        if watch is not None:
            watch.close()
        for signum, handler in before.items():
            signal.signal(signum, signal.SIG_IGN if signum == SIGHUP and signum in received else handler)
