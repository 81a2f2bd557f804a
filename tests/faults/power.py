"""A disk that loses power: replays the operations that the shim recorded, up to some moment.

Data that was not synced may be there or not, complete, partly, or as garbage: the contents of a file until its fsync, a
name in a folder until the folder's fsync. POSIX allows all of this, more than any one file system does.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath

from shim import Operation

Names = dict[str, int]  # what a folder lists: a name, and the number of the file or folder behind it
Edit = tuple[int, str, int | None]  # in a folder: a name is set to a number, or taken away
Choice = Callable[[random.Random], bool]


class Disk:
    """Numbered files and folders, as the system sees them now and as they are safe on the disk."""

    def __init__(self, root: Path):
        self.root, self.count = PurePosixPath(root), 0
        self.now: dict[int, Names] = {0: {}}
        self.safe: dict[int, Names] = {0: {}}
        self.data: dict[int, bytearray] = {}
        self.synced: dict[int, bytes] = {}
        self.edits: list[list[Edit]] = []  # of names, in order, none of them safe yet; each is done whole or not

    def find(self, path: PurePosixPath | str) -> int:
        """The number behind a path."""
        number = 0
        for name in PurePosixPath(path).relative_to(self.root).parts:
            number = self.now[number][name]
        return number

    def edit(self, *edits: tuple[str, int | None]) -> None:
        """Set or take away names, by path."""
        numbered = [(self.find(PurePosixPath(path).parent), PurePosixPath(path).name, to) for path, to in edits]
        for folder, name, number in numbered:
            put(self.now[folder], name, number)
        self.edits.append(numbered)

    def make(self, path: str) -> int:
        """A new number, and its name."""
        self.count += 1
        self.edit((path, self.count))
        return self.count

    def play(self, operation: Operation) -> None:
        """Do again what was done."""
        kind, path = operation.kind, operation.path
        if kind == "s":
            self.renamed_unseen(PurePosixPath(path))
        if kind == "m":
            number = self.make(path)
            self.now[number], self.safe[number] = {}, {}
        elif kind == "o":
            there = PurePosixPath(path).name in self.now[self.find(PurePosixPath(path).parent)]
            number = self.find(path) if there else self.make(path)
            if not there or operation.offset:
                self.data[number] = bytearray()
                self.synced.setdefault(number, b"")
        elif kind in "wt":
            data, end = self.data[self.find(path)], operation.offset + len(operation.data)
            if kind == "t":
                del data[end:]
            data.extend(bytes(max(0, end - len(data))))
            data[operation.offset : end] = operation.data
        elif kind == "r":
            self.edit((path, None), (operation.other, self.find(path)))
        elif kind in "ud":
            self.edit((path, None))
        elif kind == "s":
            self.sync(self.find(path))

    def renamed_unseen(self, path: PurePosixPath) -> None:
        """safetensors renames its own temporary file, .tmpXXXX, by a system call that no library sees."""
        names = self.now[self.find(path.parent)] if path != self.root else {}
        temporary = [name for name in names if name.startswith(".tmp")]
        if temporary and path.name not in names:
            self.edit((str(path.parent / temporary[0]), None), (str(path), names[temporary[0]]))

    def sync(self, number: int) -> None:
        """Make a file's contents safe, or a folder's names."""
        if number in self.data:
            self.synced[number] = bytes(self.data[number])
            return
        self.safe[number] = dict(self.now[number])
        self.edits = [edit for edit in self.edits if all(folder != number for folder, _, _ in edit)]

    def after(self, name_is_kept: Choice, contents: str, draw: random.Random) -> dict[str, bytes | None]:
        """The disk after the power failed: path -> contents, or None for a folder."""
        folders = {number: dict(names) for number, names in self.safe.items()}
        for edit in self.edits:
            if name_is_kept(draw):
                for folder, name, number in edit:
                    put(folders[folder], name, number)
        tree: dict[str, bytes | None] = {}
        todo = [("", 0)]
        while todo:
            path, number = todo.pop()
            if number in folders:
                tree[path] = None
                todo += [(f"{path}/{name}".lstrip("/"), inside) for name, inside in sorted(folders[number].items())]
            else:
                tree[path] = self.remains(number, contents, draw)
        return tree

    def remains(self, number: int, contents: str, draw: random.Random) -> bytes:
        """A file's bytes: those that are safe, and of the others what is left."""
        now, safe = bytes(self.data[number]), self.synced[number]
        start = safe if now.startswith(safe) else b""  # what was appended is at stake, or else all of it
        rest = now[len(start) :]
        if not rest or contents == "dropped":
            return safe
        if contents == "kept":
            return now
        if contents == "cut":
            return start + rest[: draw.randrange(len(rest))]
        return start + (bytes(len(rest)) if contents == "zeros" else draw.randbytes(len(rest)))


def put(names: Names, name: str, number: int | None) -> None:
    """Set a name, or take it away."""
    if number is None:
        names.pop(name, None)
    else:
        names[name] = number


ALL: Choice = lambda draw: True  # noqa: E731
NONE: Choice = lambda draw: False  # noqa: E731
SOME: Choice = lambda draw: draw.random() < 0.5  # noqa: E731


def failures(disk: Disk, draw: random.Random) -> Iterable[dict[str, bytes | None]]:
    """What a disk may be found as if the power fails now."""
    for names in (ALL, NONE, SOME):
        for contents in ("kept", "dropped", "cut", "zeros", "scrambled"):
            yield disk.after(names, contents, draw)


def write(tree: dict[str, bytes | None], folder: Path) -> None:
    """Put a found disk into a real folder."""
    for path, contents in tree.items():
        if contents is None:
            (folder / path).mkdir(parents=True, exist_ok=True)
        else:
            (folder / path).write_bytes(contents)


def read(folder: Path) -> dict[str, bytes | None]:
    """A real folder as a tree."""
    found: dict[str, bytes | None] = {"": None}
    for path in folder.rglob("*"):
        found[str(path.relative_to(folder))] = None if path.is_dir() else path.read_bytes()
    return found
