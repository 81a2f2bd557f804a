"""Opens untrusted files and reports what happened: run by `test_untrusted_files.py`, in a process of its own.

    python open_untrusted.py < a line for each: {"what": "checkpoint" | "tokenizer" | "config", "path": ...}

After all imports, an audit hook records every action that executes or loads code, writes a file or opens a connection,
and memory is limited. For each file, a line of JSON says what was raised, how long it took, and what was recorded.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any

import torch

from minigpt.config import options as configs
from minigpt.config.options import Options
from minigpt.system.errors import UserError
from minigpt.text.tokenizer import Byte, Tokenizer
from minigpt.training.assemble import RunConfig
from minigpt.training.checkpoint import CheckpointError, newest, save, tensors_of

RUNS_CODE = ("exec", "compile", "import", "marshal.", "pickle.", "code.", "ctypes.")
REACHES_OUT = ("os.", "subprocess.", "socket.", "shutil.", "urllib.", "webbrowser.", "pty.", "ftplib.", "http.")
HARMLESS = ("os.scandir", "os.listdir")
MEMORY = 1 << 30  # bytes that opening a file may take, on top of the program

configs.hints = cache(configs.hints)  # evaluates the program's own annotations: once, before anybody watches

noted: list[str] = []
watching = False


def hook(event: str, arguments: tuple[Any, ...]) -> None:
    """Note what a file has no business to cause."""
    if not watching or event in HARMLESS:
        return
    if event.startswith((*RUNS_CODE, *REACHES_OUT)):
        noted.append(f"{event} {str(arguments)[:80]}")
    if event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+"):
        noted.append(f"open {arguments[0]} to write")


def read(what: str, path: Path) -> str:
    """Open one file. What it is refused with, or "" where it is taken."""
    global watching
    watching = True
    try:
        if what == "checkpoint":
            newest(path)
        elif what == "tokenizer":
            Tokenizer.load(path).decode([0, 65, 97])
        else:
            configs.load(RunConfig, path)
    except (UserError, CheckpointError) as error:
        return f"{type(error).__name__}: {error}"
    except BaseException as error:
        return f"NOT EXPECTED {type(error).__name__}: {error}"
    finally:
        watching = False
    return ""


def warm_up(folder: Path) -> None:
    """Read good files once, so that everything is imported."""
    save(folder / "checkpoints", 1, tensors_of(torch.nn.Linear(2, 2)), {}, {})
    Byte().save(folder / "tokenizer.json")
    (folder / "config.yaml").write_text("model: {n_layer: 1}\nmodle: 1", encoding="utf-8")
    read("checkpoint", folder / "checkpoints")
    read("tokenizer", folder / "tokenizer.json")
    read("config", folder / "config.yaml")
    groups = [Options]
    for group in groups:  # it grows
        configs.hints(group)
        groups += group.__subclasses__()


def main() -> None:
    """Answer each request."""
    with tempfile.TemporaryDirectory() as folder:
        warm_up(Path(folder))
    now = int(Path("/proc/self/statm").read_text("ascii").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY, now + MEMORY))
    sys.addaudithook(hook)
    for line in sys.stdin:
        request = json.loads(line)
        noted.clear()
        began = time.perf_counter()
        refusal = read(request["what"], Path(request["path"]))
        print(json.dumps({"refusal": refusal, "seconds": time.perf_counter() - began, "noted": noted}), flush=True)


if __name__ == "__main__":
    main()
