"""The folder of a run or a comparison: its name, no links in it, and files that are written whole.

Such a folder may be untrusted (sent by someone else), and another process may read it at the same time.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import stat
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from minigpt.system.errors import UserError
from minigpt.system.machine import folder_path
from minigpt.system.moving import discard, remove, rename
from minigpt.system.strict_json import has_form, parse_json
from minigpt.system.terminal import NO_UTF8, one_line
from minigpt.system.waiting import interruptible, progress

BLOCK = 1 << 20  # bytes of a file that are read at a time
FILE = "a file"
KINDS = {stat.S_IFREG: FILE, stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a folder"}
NO_SYNC = (errno.EBADF, errno.EINVAL, errno.ENOTSUP, errno.ENOTTY)  # of folders on a network
DEVICES = re.compile("con|prn|aux|nul|(com|lpt)[1-9¹²³]", re.I)  # of Windows
SHOWN = 3  # how many of many similar lines are printed


def check_name(name: str, noun: str) -> None:
    """Raises UserError for a name that could lead out of its folder, such as `../x`, or that Windows cannot have.

    A folder that is made on one system can be copied to any other.
    """
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise UserError(f"--name {name}: {noun} is named by letters, digits, '.', '-' and '_'")
    if name.endswith(".") or DEVICES.fullmatch(name.partition(".")[0]):
        raise UserError(f"--name {name}: Windows cannot have a folder of this name: give {noun} another --name")


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
    """Wait until a file, or the list of names of a folder, is on disk (fsync).

    Windows cannot open folders, and some file systems of a network cannot sync them; nothing then waits for that.
    """
    if (is_folder := path.is_dir()) and sys.platform == "win32":
        return
    descriptor = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR)  # Windows syncs what may be written alone
    try:
        fsync(descriptor, path.name)
    except OSError as error:
        if not is_folder or error.errno not in NO_SYNC:
            raise
    finally:
        os.close(descriptor)


def is_at(path: Path, descriptor: int) -> bool:
    """Whether an open file still has this path. On Windows it always does: no open file is renamed or removed there."""
    if sys.platform == "win32":
        return True
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Add the file's name to an OSError: an error while reading does not contain it."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        raise


def open_plain(path: Path) -> BinaryIO:
    """Open a file to read it. Raises OSError, and UserError for what is no plain file.

    Opening a pipe, or reading a device, may never end. So may reading a file of the system, such as /proc/kmsg; these
    have the size 0.
    """

    def check(status: os.stat_result) -> None:
        kind = KINDS.get(stat.S_IFMT(status.st_mode), "a device")
        if kind == FILE and status.st_size == 0 and os.path.realpath(path).startswith(("/proc/", "/sys/")):
            kind = "a file of the system"
        if kind != FILE:
            raise UserError(f"{path}: {kind}, not a plain file")

    check(os.stat(path))
    flags = (getattr(os, name, 0) for name in ("O_NONBLOCK", "O_NOCTTY", "O_BINARY"))  # it may be another one now
    file = os.fdopen(os.open(path, os.O_RDONLY | sum(flags)), "rb")
    try:
        check(os.fstat(file.fileno()))
    except UserError:
        file.close()
        raise
    return file


@contextmanager
def in_utf8(path: Path) -> Iterator[Path]:
    """A path to the same file that is UTF-8, for a library that takes no other: on Linux, a folder can have any name.

    The file's own name must be UTF-8. Raises OSError.
    """
    if not NO_UTF8.search(os.fspath(path)) or sys.platform != "linux":
        yield path
        return
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        yield Path(folder_path(folder), path.name)
    finally:
        os.close(folder)


def read_start(path: Path, limit: int) -> bytes:
    """The first bytes of a file, at most `limit`. Raises OSError with the file's name, and what `open_plain` raises."""
    with _named(path), open_plain(path) as file:
        return file.read(min(limit, os.fstat(file.fileno()).st_size))


def read_file(path: Path, limit: int, noun: str) -> bytes:
    """A whole file. Raises UserError if it is larger than `limit`, and so not `noun`; else what `read_start` raises."""
    if len(raw := read_start(path, limit + 1)) > limit:
        raise UserError(f"{path}: larger than {limit:,} bytes: this is not {noun}")
    return raw


def read_record(path: Path, limit: int, form: Any) -> Any:
    """The value of a JSON file of at most `limit` bytes; None where it cannot be read, or does not have this form."""
    try:
        value = parse_json(read_start(path, limit))
    except (OSError, ValueError):
        return None
    return value if has_form(value, form) else None


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, as hexadecimal digits. Raises what `read_start` raises."""
    digest = hashlib.sha256()
    with _named(path), open_plain(path) as file:
        blocks = iter(lambda: file.read(BLOCK), b"")
        for block in progress(blocks, f"checking {path.name}", -(-os.fstat(file.fileno()).st_size // BLOCK), "MiB"):
            digest.update(block)
    return digest.hexdigest()


def first_lines(lines: Sequence[str]) -> list[str]:
    """The first SHOWN lines, and a line that says how many more there are."""
    return list(lines) if len(lines) <= SHOWN else [*lines[:SHOWN], f"and {len(lines) - SHOWN:,} more like these"]


def as_bytes(text: str) -> bytes:
    """A text in UTF-8; a byte of a file's name that is no UTF-8 is escaped as Python shows it, \\udcff."""
    return text.encode("utf-8", "backslashreplace")


def write_whole(path: Path, contents: str | bytes) -> None:
    """Write a temporary file in the same folder, sync it, and rename it, so that no reader sees half a file.

    Raises OSError; the file is then unchanged.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")  # each writer has its own
    discard(temporary)
    try:
        with temporary.open("xb") as file:
            file.write(as_bytes(contents) if isinstance(contents, str) else contents)
            file.flush()
            fsync(file.fileno(), path.name)
        rename(temporary, path)
    finally:
        discard(temporary)
