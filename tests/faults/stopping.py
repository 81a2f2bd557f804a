"""A small run, and a plugin that makes something happen during training: a signal, a NaN, a deleted folder."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from running import CONFIG, Ended, furnish, script

from minigpt.training import checkpoint
from minigpt.training.checkpoint import Checkpoint
from minigpt.training.report import read_metrics

STEPS = 12
SMALL = CONFIG.replace(
    "max_steps: 8, eval_every: 4, sample_every: 0", f"max_steps: {STEPS}, eval_every: 4, sample_every: 6"
)
SMALL = SMALL.replace("max_tokens: 20", "max_tokens: 8")

COMMANDS = {  # those that open a run
    "sample": ("sample.py", "--run", "small", "--max-tokens", "3"),
    "show": ("show_attention.py", "--run", "small", "--prompt", "the"),
    "resume": ("train.py", "--resume", "small", "training.max_steps=16"),
}

STEP = "minigpt.training.loop", "accumulate"  # called once in each step
# `act` happens at the nth call of owner.name, before it (first=True) or within what it returns to
PLUGIN = """
import os, shutil, signal, torch
from pathlib import Path
import minigpt.training.checkpoint, minigpt.text.dataset, minigpt.training.run
import minigpt.system.signals, minigpt.text.tokenizer
import minigpt.training.trainer, minigpt.training.loop

def act():
    {act}

signal.signal(signal.SIGINT, signal.default_int_handler)  # even if the tests run in a shell's background,
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # or under nohup
minigpt.system.signals.receive_signals()
owner, count, original = {owner}, 0, {owner}.{name}

def replaced(*arguments, **options):
    global count
    count += 1
    if count == {nth}:
        act()
    return original(*arguments, **options)

owner.{name} = replaced
"""

# The thread locks a lock twice, and so waits for ever: no handler runs within such a call. The alarm has no handler.
DEAF = """\
    import ctypes, signal
    signal.alarm(60)
    Path("deaf").touch()
    lock = (ctypes.c_byte * 64)()
    [ctypes.CDLL(None).pthread_mutex_lock(lock) for _ in range(2)]
""".strip()


def furnished(folder: Path, config: str = SMALL) -> Path:
    """A folder with a text and a config."""
    folder.mkdir(exist_ok=True)
    return furnish(folder, config)


def train(folder: Path, *arguments: object) -> Ended:
    """Start a run `small`."""
    return script("train.py", "--config", "small.yaml", *arguments, cwd=folder)


def happening(folder: Path, act: str, owner: str, name: str, nth: int) -> tuple[str, str]:
    """The words for a plugin in which something happens at the nth call of a function."""
    text = PLUGIN.format(act=act, owner=owner, name=name, nth=nth)
    (folder / "happening.py").write_text(text, encoding="utf-8")
    return "--plugin", "happening.py"


def train_until(folder: Path, act: str, owner: str, name: str, nth: int, *arguments: object) -> Ended:
    """Start a run in which something happens at the nth call of a function."""
    return train(folder, *happening(folder, act, owner, name, nth), *arguments)


def resume(folder: Path, *arguments: object) -> Ended:
    """Go on with it, undisturbed."""
    return script("train.py", "--resume", "small", *arguments, cwd=folder)


def metrics(folder: Path) -> list[dict[str, float]]:
    """What `metrics.jsonl` says of each step, the times left out."""
    timed = ("seconds", "tokens_per_second")
    return [
        {key: value for key, value in line.items() if key not in timed}
        for line in read_metrics(folder / "runs" / "small" / "metrics.jsonl")
    ]


def whole_lines(folder: Path) -> bool:
    """Whether each line of the metrics is there with its end."""
    lines = (folder / "runs" / "small" / "metrics.jsonl").read_text("utf-8").splitlines()
    return all(json.loads(line).keys() >= {"step", "train/loss"} for line in lines)


def newest(folder: Path) -> Checkpoint:
    """The newest good checkpoint of the run."""
    return checkpoint.newest(folder / "runs" / "small" / "checkpoints")[0]


def same(a: Checkpoint, b: Checkpoint) -> bool:
    """Whether everything but the time taken is equal to the bit."""
    mine, theirs = a.model | a.optimizer, b.model | b.optimizer
    states = [{key: value for key, value in each.state.items() if key != "seconds"} for each in (a, b)]
    return (
        states[0] == states[1]
        and mine.keys() == theirs.keys()
        and all(torch.equal(mine[key], theirs[key]) for key in mine)
    )


def equal(folder: Path, other: Path) -> bool:
    """Whether the runs of two folders have the same metrics and the same newest checkpoint."""
    return metrics(folder) == metrics(other) and same(newest(folder), newest(other))


def leftovers(folder: Path) -> list[str]:
    """Files that something half done left behind, anywhere below."""
    return sorted(
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.name.startswith((".writing", ".removing", ".config", ".metrics", ".tmp")) or path.name.endswith(".part")
    )
