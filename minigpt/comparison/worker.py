"""The worker process: it reads a task from each line of its stdin and writes its answers to stdout, as JSON.

pool.py starts it, and sends the plugins first. A task is "try" (a few steps, to measure a variant's speed) or "run" (a
whole run).
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from pathlib import Path
from typing import Any

import torch

from minigpt.checks.blame import blame
from minigpt.comparison.measurement import Send, perform, try_out
from minigpt.comparison.results import RESULT, code_digest, load_result, save_result
from minigpt.config.options import from_dict, to_python
from minigpt.system.errors import UserError
from minigpt.system.folder import refuse_links
from minigpt.system.locks import HOLDER, InUse, Lock
from minigpt.system.moving import remove
from minigpt.system.plugin import load_plugin
from minigpt.system.process import NO_MORE, answering, no_more
from minigpt.training.assemble import RunConfig
from minigpt.training.run import CHECKPOINTS, SKIPPED


def do(task: dict[str, Any], send: Send) -> dict[str, Any]:
    """Do one task and return its last answer (done, busy or refused). `send` sends the answers before it."""
    config = from_dict(RunConfig, task["config"])
    if task["do"] == "try":
        try:
            allow_leak, skip_checks = task["allow_leak"], task.get("skip_checks", False)
            return {"event": "done", **try_out(config, allow_leak, task.get("share"), skip_checks)}
        except UserError as error:
            return {"event": "refused", "message": str(error)}
    folder = Path(task["folder"])
    refuse_links(folder)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        lock = Lock(folder)
    except InUse as error:
        holder = folder / HOLDER
        return {"event": "busy", "message": str(error), "beat": holder.stat().st_mtime_ns if holder.exists() else 0}
    with lock:
        result, _ = load_result(folder, task["key"])
        if result is None:
            remove(folder / RESULT)
            remove(folder / CHECKPOINTS)  # of an unfinished run, or of another config
            who = {"variant": task["variant"], "seed": task["seed"], "key": task["key"], "code": code_digest()}
            who["checks"] = SKIPPED if task.get("skip_checks") else "passed"
            result = who | {"config": to_python(config)} | perform(config, folder, send, task.get("share"))
            save_result(folder, result)
    return {"event": "done"}


def main() -> None:
    """Load the plugins and answer tasks. When stdin ends, exit at once: the process that sent the tasks has ended."""
    send = answering()
    torch.set_num_threads(1)
    code_digest()  # cached now: files that are edited later do not change it
    for path, code in json.loads(sys.stdin.readline() or "[]"):
        load_plugin(Path(path), code.encode("latin-1"))

    tasks: queue.SimpleQueue[str] = queue.SimpleQueue()

    def listen() -> None:
        for line in sys.stdin:
            tasks.put(line)
        os._exit(0)

    try:
        threading.Thread(target=listen, daemon=True).start()
    except RuntimeError:
        return send({"event": "failed", "message": NO_MORE})  # to the first task
    while True:
        task = json.loads(tasks.get())
        try:
            send(do(task, send))
        except Exception as error:
            message = NO_MORE if no_more(error) else blame(error) or f"{type(error).__name__}: {error}"
            send({"event": "failed", "message": message})
