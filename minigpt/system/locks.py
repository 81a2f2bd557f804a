"""Locks: one process at a time uses a folder, and whoever comes second is told who has it.

The system releases a lock when its process ends, however it ends. Beside a lock lies a file that says who has it. Its
time of change is renewed as long as that process lives, also on another machine: who waits sees that, and does not wait
for a process that is stopped, or whose machine is gone.
"""

from __future__ import annotations

import errno
import json
import os
import platform
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakSet

from minigpt.system.errors import UserError
from minigpt.system.folder import is_at, read_start
from minigpt.system.moving import discard
from minigpt.system.strict_json import parse_json
from minigpt.system.terminal import one_line
from minigpt.system.waiting import progress

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

LOCK, HOLDER = ".lock", ".holder"
HANDOVER = 3.0  # seconds until a holder has said with whom it shares
PULSE, SILENCE = 5.0, 120.0  # seconds: how often a holder shows that it lives, and how long it may not
TAKEN = (errno.EACCES, errno.EAGAIN, errno.EDEADLK)
NO_LOCKS = (errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # of some network's file systems
FAR = 1 << 30  # Windows locks a byte, which nobody can then read: one beyond the end of the file
SAFE = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
ENDED, STOPPED = "ended; one that it has started has not", "stopped; fg or kill -CONT lets it go on"


class InUse(UserError):
    """Another process has locked it."""


class Holder(NamedTuple):
    """The process that has a lock, as it has said itself, and what the system says of it."""

    who: str
    state: str = ""
    """ENDED, STOPPED, or "": it runs, or runs on another machine."""
    together: str = ""

    def __str__(self) -> str:
        return f"{self.who} ({self.state})" if self.state else self.who


def holder(path: Path) -> Holder:
    """Who has a lock, by the file beside it."""
    try:
        record = parse_json(read_start(path, 2000))
        pid, who = int(record["pid"]), f"process {int(record['pid'])} on {record['host']}"
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return Holder("another process")
    local = _machine() and record.get("machine") == _machine()
    return Holder(one_line(who), _state(pid, record.get("began")) if local else "", str(record.get("together", "")))


def _machine() -> str:
    """What this machine since its start, and the container, have alone; "" where the system does not say."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    return ""


def _stat(pid: int) -> list[str]:
    """What Linux says of a process, from its state on; empty if there is no such process."""
    with suppress(OSError, ValueError):
        return Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    return []


def _began(pid: int) -> int | None:
    """When a process was started, in ticks of the system's clock: a number is used again, this is not."""
    fields = _stat(pid)
    return int(fields[19]) if len(fields) > 19 else None


def _state(pid: int, began: Any) -> str:
    """The state of a process of this machine, as `Holder.state`."""
    fields = _stat(pid)
    if not fields:
        return ENDED if _is_gone(pid) else ""  # some systems hide the processes of others
    if _began(pid) != began or fields[0] in "ZX":
        return ENDED
    return STOPPED if fields[0] in "Tt" else ""


def _is_gone(pid: int) -> bool:
    if sys.platform == "win32":
        return False  # there, 0 is Ctrl-C for all processes of the console
    try:
        os.kill(pid, 0)  # sends nothing
    except (ProcessLookupError, OverflowError):
        return True
    except OSError:
        pass
    return False


def _lock(descriptor: int, shared: bool = False) -> bool | None:
    """Lock an open file, if nobody else has; None: the file system has no such locks. Raises OSError."""
    try:
        if sys.platform == "win32":
            os.lseek(descriptor, FAR, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (*TAKEN, *NO_LOCKS):
            raise
        return False if error.errno in TAKEN else None
    return True


class Claim:
    """Locks on some files or folders, and `holder_file` beside them."""

    def __init__(self, paths: Sequence[Path], holder_file: Path):
        self.paths, self.holder_file, self.descriptors = paths, holder_file, list[int]()
        self.held, self.locks, self.ended = False, True, threading.Event()
        CLAIMS.add(self)

    def take(self, together: str = "") -> bool:
        """Whether it could be had: by this process alone, or by all that take it with the same word `together`."""
        try:
            locked = [self._lock(path) for path in self.paths]
            self.locks = locked != [None] * len(locked)
            if False in locked:
                self.held = bool(together) and holder(self.holder_file).together == together and self._share()
            elif self.locks or self._is_first():
                self.held = True
                self._write_holder(together)
                self.held = not together or self._share()
            if self.held:
                self.ended = threading.Event()
                threading.Thread(target=_beat, args=(self.holder_file, self.ended), daemon=True).start()
        except BaseException:
            self.release()
            raise
        if not self.held:
            self._close()
        return self.held

    def _lock(self, path: Path) -> bool | None:
        """Lock a path. A file is made if it is not there; one that was removed meanwhile is no lock."""
        flags = os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT | SAFE
        self.descriptors.append(os.open(path, flags, 0o666))
        locked = _lock(self.descriptors[-1])
        return locked if is_at(path, self.descriptors[-1]) else False

    def _share(self) -> bool:
        """Let others share the locks, which Windows does not know."""
        return sys.platform == "win32" or all(_lock(file, shared=True) is not False for file in self.descriptors)

    def _is_first(self) -> bool:
        """Without locks: whether this process could make `holder_file`. That of a process that ended is removed."""
        if holder(self.holder_file).state == ENDED:
            discard(self.holder_file, warns=False)
        try:
            os.close(os.open(self.holder_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | SAFE, 0o666))
        except FileExistsError:
            return False
        return True

    def _write_holder(self, together: str) -> None:
        """Write down who has it."""
        record = {"pid": os.getpid(), "host": platform.node(), "machine": _machine(), "began": _began(os.getpid())}
        descriptor = os.open(self.holder_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | SAFE, 0o666)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(record | {"together": together}, file)

    def release(self, whole: bool = False) -> None:
        """Let it go. The last process removes `holder_file`, and, if `whole`, the files that were locked.

        Windows does not say who is the last: it locks nothing twice. And it removes no file that is open, in another
        process too, so that the files may be closed first.
        """
        if self.held and (sys.platform == "win32" or all(_lock(file) is not False for file in self.descriptors)):
            discard(self.holder_file, warns=False)
            if sys.platform == "win32":
                self.forget()
            for path in self.paths if whole else ():
                discard(path, warns=False)
        self._close()

    def _close(self) -> None:
        self.ended.set()
        self.forget()

    def forget(self) -> None:
        """Close the files, and touch nothing else."""
        self.held = False
        while self.descriptors:
            os.close(self.descriptors.pop())


CLAIMS: WeakSet[Claim] = WeakSet()  # of this process


def _forget() -> None:
    """In a process that was forked: a lock belongs to its parent, and must end with it."""
    for claim in list(CLAIMS):
        claim.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def _beat(holder_file: Path, ended: threading.Event) -> None:
    """Renew the time of change of a file until the end."""
    while not ended.wait(PULSE):
        with suppress(OSError):
            os.utime(holder_file)


class Lock(AbstractContextManager["Lock"]):
    """Exclusive use of a folder, until the `with` block ends or the last reference to the lock is gone.

    There are two locks: the lock on the file `.lock` is visible to other computers (NFS); the lock on the folder
    itself, which Windows does not have, stays if `.lock` is removed. Where a file system has neither, the file
    `.holder` is the lock.
    """

    def __init__(self, folder: Path, together: str = ""):
        """Processes that give the same word `together` have it together. Raises InUse, which names the process that
        has the folder, and OSError."""
        itself = [folder] if sys.platform != "win32" else []
        self.claim = Claim([*itself, folder / LOCK], folder / HOLDER)
        until = time.monotonic() + (HANDOVER if together else 0)
        while not (acquired := self.claim.take(together)) and time.monotonic() < until:
            time.sleep(0.05)
        if not acquired:
            more = "" if self.claim.locks else f" (if it has ended, remove {folder / HOLDER}: this disk has no locks)"
            raise InUse(f"{folder} is in use by {holder(folder / HOLDER)}{more}: two runs cannot share a folder")

    def __exit__(self, *error: object) -> None:
        self.claim.release()

    def __del__(self) -> None:
        self.claim.release()


@contextmanager
def one_at_a_time(path: Path, activity: str) -> Iterator[None]:
    """A lock between processes: only one at a time runs a block with this file. `activity` says what it does there.

    Waiting is shown, and for whom. The file is removed at the end of the block; a process that has waited for a removed
    file begins again. Raises InUse if the process that has the lock shows for SILENCE seconds that it does not live.
    """
    claim = Claim([path], path.with_name(path.name + HOLDER))
    acquired = claim.take()
    while not acquired:
        owner = holder(claim.holder_file)
        acquired = any(progress(_tries(claim, owner, activity), f"waiting, {owner} {activity}"))
    try:
        yield
    finally:
        claim.release(whole=True)


def _tries(claim: Claim, owner: Holder, activity: str) -> Iterator[bool]:
    """Try to take a lock until it could be had, or another process has it."""
    last_beat, since = -1, time.monotonic()
    while holder(claim.holder_file) == owner:
        time.sleep(0.1)
        beat = claim.holder_file.stat().st_mtime_ns if claim.holder_file.exists() else -1
        if beat != last_beat:
            last_beat, since = beat, time.monotonic()
        if time.monotonic() - since > SILENCE:
            file = claim.paths[0] if claim.locks else claim.holder_file
            hint = f"end it, or, if it has ended, remove {file}; and start again"
            raise InUse(f"{owner} {activity}, and has given no sign of life for {SILENCE:g} s: {hint}")
        if claim.take():
            yield True
            return
        yield False
