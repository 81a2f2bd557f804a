"""The folder of an export: whole or not there, and never in the place of something else.

It is written beside its place and renamed. `minigpt_export.json` lists its files; a folder that holds anything else is
not replaced.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from minigpt.system.errors import UserError
from minigpt.system.folder import read_start, refuse_links, sync
from minigpt.system.strict_json import parse_json

LIST = "minigpt_export.json"
MAX_LIST = 1 << 20  # bytes

Writer = Callable[[Path], None]  # writes one file


def check_out(out: Path) -> None:
    """Raises UserError unless a folder may be written there: nothing, an empty folder, or an export of ours."""
    refuse_links(out)
    if not os.path.lexists(out):
        if not out.absolute().parent.is_dir():
            raise UserError(f"--out {out}: there is no folder {out.absolute().parent}")
        return
    if not out.is_dir():
        raise UserError(f"--out {out}: not a folder: give the name of a new one")
    found = {path.name for path in out.iterdir()}
    if found and (extra := found - listed(out)):
        what = f"{min(extra)!r} in it is not of an export" if LIST in found else "it is not empty, and no export"
        raise UserError(f"--out {out}: {what}: give the name of a new folder")


def listed(out: Path) -> set[str]:
    """The files that the list of an export names, itself included; none where there is no such list."""
    try:
        values = parse_json(read_start(out / LIST, MAX_LIST))
    except (OSError, ValueError, RecursionError):
        return set()
    files = values.get("files") if isinstance(values, dict) else None
    return {LIST, *(name for name in files if isinstance(name, str))} if isinstance(files, list) else set()


def write_folder(out: Path, files: Mapping[str, str | Writer]) -> None:
    """Write all files, each a text or a function that writes it. Raises OSError; then `out` is as it was."""
    check_out(out)
    place = out.absolute()
    beside = place.with_name(f".{place.name}.writing-{os.getpid()}")
    aside = place.with_name(f".{place.name}.before-{os.getpid()}")
    shutil.rmtree(beside, ignore_errors=True)  # of a process of this number that was killed
    beside.mkdir()
    try:
        contents = {**files, LIST: json.dumps({"written_by": "minigpt", "files": sorted(files)}, indent=1) + "\n"}
        for name, content in contents.items():
            if isinstance(content, str):
                (beside / name).write_text(content, encoding="utf-8")
            else:
                content(beside / name)
            sync(beside / name)
        sync(beside)
        check_out(out)  # again: it may have been filled meanwhile
        if place.exists():
            place.rename(aside)
        try:
            beside.rename(place)
        except BaseException:
            if aside.exists():
                aside.rename(place)
            raise
        sync(place.parent)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
        if place.exists():
            shutil.rmtree(aside, ignore_errors=True)
