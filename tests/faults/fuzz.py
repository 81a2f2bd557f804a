"""Opens changed, untrusted folders with the real commands, and checks what happened.

    python fuzz.py run FOLDER FIRST COUNT           FOLDER: a home made by the tests, with runs/small in it
    python fuzz.py comparison FOLDER FIRST COUNT    with runs/compare/small in it
    python fuzz.py run FOLDER 17 1                  one case again; the result stays beside FOLDER, in `tried`

Case number n changes a fresh copy of the folder (`mutations.py`, seeded with n), forks, and runs a command in it.
Prints a JSON line for each case: what was changed, how the command ended, and what is wrong with that, if anything.
"""

from __future__ import annotations

import json
import os
import random
import re
import resource
import shutil
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import mutations
from comparing import work_here
from fork_server import become, opened
from running import SCRIPTS

import minigpt.comparison.pool

GIB = 1 << 30
SECONDS = 20  # of one core
CODES = (0, 2, 3, 4, 5)
COMMANDS = {
    "run": (
        ("sample.py", "--run", "small", "--max-tokens", "3"),
        ("sample.py", "--run", "small", "--max-tokens", "3", "--weights", "int8"),
        ("sample.py", "--run", "small@best", "--max-tokens", "3"),
        ("show_attention.py", "--run", "small", "--prompt", "the"),
        ("train.py", "--resume", "small", "training.max_steps=6"),
        ("train.py", "--resume", "small", "training.max_steps=6"),
    ),
    "comparison": (
        *[("compare.py", "--config", "small.yaml")] * 4,
        ("sample.py", "--run", "runs/compare/small/mean-seed-1", "--max-tokens", "3"),
        ("train.py", "--resume", "runs/compare/small/one-head-seed-2", "training.max_steps=6"),
    ),
}
PROGRESS = re.compile(r"[^:]+: ([\d,]+( of [\d,]+)? [\w ]+, )?\d+ s")  # of what takes more than two seconds
NOTES = ("skipped: ", "and ", "int8 weights: ")  # of a command that goes on; few, which test_damage.py looks at
FOLDERS = {"run": Path("runs", "small"), "comparison": Path("runs", "compare", "small")}


def contents(home: Path, without: Path) -> dict[str, Any]:
    """All that lies in a folder, but for what is below `without`: times and bytes of files, targets of links."""
    found: dict[str, Any] = {}
    for path in sorted(home.rglob("*")):
        if path != without and without not in path.parents:
            there = path.lstat()
            what = path.read_bytes() if path.is_file() and not path.is_symlink() else there.st_mode
            found[str(path.relative_to(home))] = (what, there.st_mtime_ns if not path.is_dir() else 0)
    return found


def child(home: Path, command: tuple[str, ...], out: Path, err: Path) -> tuple[int, Any, float]:
    """Become a command; its exit code, the resources that it took, and for how long."""
    began, pid = time.monotonic(), os.fork()
    if not pid:
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        resource.setrlimit(resource.RLIMIT_FSIZE, (GIB // 16, GIB // 16))
        argv = [str(SCRIPTS / command[0]), *command[1:]]
        streams = opened(os.devnull, str(out), str(err))
        become({"argv": argv, "cwd": str(home), "encoding": "utf-8", "hurried": True}, streams)
    _, status, used = os.wait4(pid, 0)
    return os.waitstatus_to_exitcode(status), used, time.monotonic() - began


def wrong(code: int, out: str, err: str, memory: int) -> list[str]:
    """What a command must not do, whatever it opens."""
    told = err.split("\n")[:-1]
    lines = [line for line in told if not line.startswith(NOTES) and not PROGRESS.fullmatch(line)]
    found = []
    if code not in CODES:
        found.append(f"exit code {code}")
    if (code and len(lines) != 1) or (not code and lines):
        found.append(f"{len(lines)} lines on stderr")
    if max(map(len, lines), default=0) > 2000:
        found.append("a line without end")
    if any(ord(character) < 32 and character not in "\n\t" for character in out + err):
        found.append("control characters")
    if "this is a bug" in err or "Traceback" in err:
        found.append("called a bug")
    if "SECRET" in out + err:
        found.append("tells what is outside")
    if memory > 2 * GIB:
        found.append(f"{memory / GIB:.1f} GiB")
    return found


def case(kind: str, pristine: Path, number: int) -> dict[str, Any]:
    """Change, open and look."""
    draw, home = random.Random(f"{kind} {number}"), pristine.with_name("tried")
    shutil.rmtree(home, ignore_errors=True)
    shutil.copytree(pristine, home, symlinks=True)
    folder = home / FOLDERS[kind]
    changed = mutations.spoil(folder, home / "outside", draw)
    command = draw.choice(COMMANDS[kind])
    if kind == "comparison" and draw.random() < 0.15:
        (folder / "mean-seed-1" / "result.json").unlink(missing_ok=True)  # so that this run is done again
        changed += "; a run to do"
    if kind == "comparison" and draw.random() < 0.15:
        changed += "; small.yaml: " + mutations.a_value(home / "small.yaml", home / "outside", draw)
    before, out, err = contents(home, folder), home.with_name("out"), home.with_name("err")
    for path in (out, err):
        path.unlink(missing_ok=True)
    code, used, seconds = child(home, command, out, err)
    said, told = out.read_text("utf-8", "replace"), err.read_text("utf-8", "replace")
    found = wrong(code, said, told, used.ru_maxrss * 1024)
    if contents(home, folder) != before:
        found.append("something outside is another")
    page = folder / "page.html"
    if page.is_file() and not page.is_symlink() and "<script>alert" in page.read_text("utf-8", "replace"):
        found.append("a string in the page is markup")
    return {
        "case": number, "changed": changed, "command": " ".join(command), "code": code, "seconds": round(seconds, 1),
        "wrong": found, "out": ascii(said[-300:]), "err": ascii(told[-600:]),
    }  # fmt: skip


def main(kind: str, folder: Path, first: int, count: int) -> None:
    """All the cases that are asked for."""
    resource.setrlimit(resource.RLIMIT_DATA, (4 * GIB, 4 * GIB))  # so that a test takes no machine down
    minigpt.comparison.pool.WorkerPool.work = work_here  # type: ignore[method-assign]
    for number in range(first, first + count):
        print(json.dumps(case(kind, folder, number)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
