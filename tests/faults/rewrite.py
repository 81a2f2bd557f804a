"""Resumes a run with another config and an edited plugin, and is killed while they are written: run under the shim.

    LD_PRELOAD=shim.so python rewrite.py RUN PLUGIN         a line of JSON for each operation at which it was killed

It forks for each kill, as crash.py does, and reports which config the run then has, and its step.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

from crash import KILL_BEFORE, OFF

from minigpt.training.run import Run, load, open_checkpoint, read_config
from minigpt.training.run_folder import record_changes


def go_on(run: Run, plugin: Path) -> None:
    """Write down another number of steps and what a plugin is now, as a resumed training does."""
    record_changes(run, [plugin], [("training.max_steps", 12, 99)], lambda line: None)


def main(pristine: Path, plugin: Path) -> None:
    """Kill it before its first operation, its second, and so on, until one lives to its end."""
    folder, shim, at, code = pristine.with_name("tried"), ctypes.CDLL(None), 0, -9
    run = load(pristine, "cpu")
    run.folder, run.config = folder, replace(run.config, training=replace(run.config.training, max_steps=99))
    while code:
        at += 1
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(pristine, folder)
        child = os.fork()
        if not child:
            shim.shim_set(str(folder).encode(), KILL_BEFORE, ctypes.c_long(at), b"", b"")
            go_on(run, plugin)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        shim.shim_set(str(folder).encode(), OFF, ctypes.c_long(0), b"", b"")
        saved, notes = open_checkpoint(folder)
        steps = read_config(folder).training.max_steps
        copies = {path.name: path.read_text("utf-8") for path in (folder / "plugins").glob("[!.]*")}
        go_on(run, plugin)  # and whoever tries once more gets what was meant
        meant = open_checkpoint(folder)[0].path == saved.path and read_config(folder).training.max_steps == 99
        found = {"code": code, "step": saved.state["step"], "notes": notes, "max_steps": steps, "copies": copies}
        print(json.dumps(found | {"meant": meant}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
