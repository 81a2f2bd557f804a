"""The folder of a run or a comparison: its name, its lock, no links in it, and files that are written whole.

Such a folder may be untrusted (sent by someone else), and another process may read it at the same time.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from minigpt.system.errors import UserError
from minigpt.system.moving import discard, remove, rename
from minigpt.system.strict_json import parse_json
from minigpt.system.terminal import one_line
from minigpt.system.waiting import interruptible, progress

if sys.platform != "win32":
    import fcntl

LOCK, HOLDER = ".lock", ".holder"
BLOCK = 1 << 20  # bytes of a file that are read at a time
SHOWN = 3  # how many of many similar lines are printed


class InUse(UserError):
    """Another process has locked the folder."""


def check_name(name: str, what: str) -> None:
    """Raises UserError for a name that could lead out of its parent folder, such as `../x`."""
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise UserError(f"--name {name}: {what} is named by letters, digits, '.', '-' and '_'")


def refuse_links(folder: Path) -> None:
    """Raises UserError for a folder that is a link, or contains a link, a pipe or a device at any depth.

    In an untrusted folder, a link makes a command write or remove files elsewhere, and reading a pipe may never end.
    Every command calls this before it opens anything in the folder. A folder that does not exist or cannot be listed
    passes: nothing in it can be opened.
    """
    if folder.is_symlink():
        raise UserError(f"{folder}: a symbolic link: give the folder itself, {folder.resolve()}")
    for entry in progress(_entries(folder), f"looking through {folder}", unit="files"):
        plain = entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False)
        if not plain and os.path.lexists(entry.path):
            raise UserError(
                f"{one_line(entry.path)}: not a plain file; the folder of a run or a comparison holds no others"
            )


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Everything in a folder, at any depth; a folder that cannot be listed is left out."""
    pending = [str(folder)]
    while pending:
        try:
            with os.scandir(pending.pop()) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
        except OSError:
            continue
        yield from entries
        pending += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]


class Lock(AbstractContextManager["Lock"]):
    """Exclusive use of a folder, until the `with` block ends or the last reference to the lock is gone.

    There are two locks: the lock on the file `.lock` is visible to other computers (NFS); the lock on the folder
    itself, which Windows does not have, stays if `.lock` is removed. The system releases both when the process ends,
    however it ends. The file `.holder` has the process id and the host, for the error message.
    """

    def __init__(self, folder: Path):
        """Raises InUse, which names the process that holds the lock, and OSError."""
        self.held = ExitStack()
        try:
            if sys.platform != "win32":
                descriptor = os.open(folder, os.O_RDONLY)
                self.held.callback(os.close, descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.held.enter_context(FileLock(folder / LOCK, timeout=0, thread_local=False))
        except (BlockingIOError, Timeout):
            self.held.close()
            raise InUse(f"{folder} is in use by {_holder(folder)}: two runs cannot share a folder") from None
        (folder / HOLDER).write_text(json.dumps({"pid": os.getpid(), "host": platform.node()}), encoding="utf-8")

    def __exit__(self, *error: object) -> None:
        self.held.close()

    def __del__(self) -> None:
        self.held.close()


@contextmanager
def one_at_a_time(path: Path, what: str) -> Iterator[None]:
    """A lock between processes: only one at a time runs a block with this file. Waiting shows `what` as progress.

    The system releases the lock when the process ends, however it ends. The file is removed at the end of the block; a
    process that has waited for a removed file begins again.
    """
    held = ExitStack()

    def tries() -> Iterator[None]:
        while not _locked(path, held):
            time.sleep(0.1)
            yield

    with held:
        for _ in progress(tries(), what):
            pass
        yield


def _locked(path: Path, held: ExitStack) -> bool:
    """Whether the lock could be taken now; `held` then releases it."""
    if sys.platform == "win32":  # cannot remove a file that is open
        try:
            held.enter_context(FileLock(path, timeout=0, thread_local=False))
            return True
        except Timeout:
            return False
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        same = os.path.exists(path) and os.path.samestat(os.fstat(descriptor), os.stat(path))
    except (BlockingIOError, FileNotFoundError):
        same = False
    if not same:
        os.close(descriptor)
        return False
    held.callback(os.close, descriptor)
    held.callback(discard, path)
    return True


def _holder(folder: Path) -> str:
    try:
        values = parse_json(read_start(folder / HOLDER, 1000))
        return f"process {int(values['pid'])} on {values['host']}"
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return "another process"


def fsync(descriptor: int, name: str) -> None:
    """`os.fsync`, which can take minutes for a large file: the wait is shown after two seconds, and Ctrl-C ends it."""
    interruptible(lambda: os.fsync(descriptor), f"waiting until {name} is on the disk")


def share(path: Path) -> None:
    """Give a file the permissions of a file that `open` makes: safetensors lets only its owner read it."""
    probe = path.with_name(f"{path.name}.mode")
    probe.touch()
    shutil.copymode(probe, path)
    remove(probe)


def sync(path: Path) -> None:
    """Wait until a file, or the list of names of a folder, is on disk (fsync). Windows cannot open folders."""
    if sys.platform == "win32" and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fsync(descriptor, path.name)
    finally:
        os.close(descriptor)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Add the file's name to an OSError: an error while reading does not contain it."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        raise


def read_start(path: Path, limit: int) -> bytes:
    """The first bytes of a file, at most `limit`. Raises OSError with the file's name."""
    with _named(path), path.open("rb") as file:
        return file.read(limit)


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, as hexadecimal digits. Raises OSError with the file's name."""
    digest = hashlib.sha256()
    with _named(path), path.open("rb") as file:
        blocks = iter(lambda: file.read(BLOCK), b"")
        for block in progress(blocks, f"checking {path.name}", -(-os.fstat(file.fileno()).st_size // BLOCK), "MiB"):
            digest.update(block)
    return digest.hexdigest()


def first_lines(lines: Sequence[str]) -> list[str]:
    """The first SHOWN lines, and a line that says how many more there are."""
    return list(lines) if len(lines) <= SHOWN else [*lines[:SHOWN], f"and {len(lines) - SHOWN:,} more like these"]


def write_whole(path: Path, contents: str | bytes) -> None:
    """Write a temporary file in the same folder, sync it, and rename it, so that no reader sees half a file.

    Raises OSError; the file is then unchanged.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")  # each writer has its own
    discard(temporary)
    try:
        with temporary.open("xb") as file:
            file.write(contents.encode("utf-8") if isinstance(contents, str) else contents)
            file.flush()
            fsync(file.fileno(), path.name)
        rename(temporary, path)
    finally:
        discard(temporary)
