"""Writes the folder of an export: whole or not at all, and only over an earlier export of the same run.

The folder is written under another name beside its final path, and then renamed. `minigpt_export.json` names the run,
and lists the files with their SHA-256 sums. A folder with other files, a changed file, or the export of another run is
not replaced.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from minigpt.system.beside import written_beside
from minigpt.system.errors import UserError
from minigpt.system.folder import as_bytes, read_record, refuse_links, sha256_of, sync
from minigpt.system.terminal import one_line

LIST = "minigpt_export.json"
MAX_LIST = 1 << 20  # bytes
NEW = "give the name of a new folder, or remove this one"

Writer = Callable[[Path], None]  # writes one file


def check_out(out: Path, run: str) -> None:
    """Raises UserError unless an export of a run may be written to `out`.

    It may if `out` does not exist, is an empty folder, or is an unchanged earlier export of the same run.
    """
    refuse_links(out)
    if not os.path.lexists(out):
        if not out.absolute().parent.is_dir():
            raise UserError(f"--out {out}: there is no folder {out.absolute().parent}")
        return
    if not out.is_dir():
        raise UserError(f"--out {out}: not a folder: give the name of a new one")
    names = {path.name for path in out.iterdir()}
    if not names:
        return
    if LIST not in names:
        raise UserError(f"--out {out}: it is not empty, and no export: give the name of a new folder")
    record = read_record(out / LIST, MAX_LIST, {"run": str, "files": {str: str}}) or {"run": "", "files": {}}
    exported_run, sums = record["run"], record["files"]
    if extra := names - sums.keys() - {LIST}:
        raise UserError(f"--out {out}: {one_line(repr(min(extra)))} in it is not of an export: {NEW}")
    if exported_run != run:
        raise UserError(f"--out {out}: it holds an export of the run {one_line(exported_run)}, not of {run}: {NEW}")
    if changed := [name for name in sorted(names - {LIST}) if sha256_of(out / name) != sums[name]]:
        raise UserError(f"--out {out}: {changed[0]} in it was changed after it was exported: {NEW}")


def write_folder(out: Path, files: Mapping[str, str | Writer], run: str) -> None:
    """Write all files, each a text or a function that writes it. After a UserError or OSError, `out` is unchanged."""
    check_out(out, run)
    final = out.absolute()
    with written_beside(final) as staging:
        for name, content in files.items():
            if isinstance(content, str):
                (staging.path / name).write_bytes(as_bytes(content))
            else:
                content(staging.path / name)
            sync(staging.path / name)
        sums = {name: sha256_of(staging.path / name) for name in sorted(files)}
        contents = {"written_by": "minigpt", "run": run, "files": sums}
        (staging.path / LIST).write_text(json.dumps(contents, indent=1) + "\n", encoding="utf-8")
        sync(staging.path / LIST)
        check_out(out, run)  # again: it may have been filled meanwhile
        staging.put(final)
