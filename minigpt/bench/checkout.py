"""nanoGPT as the user has it: checked, and copied to where it may write, with the data that its training reads.

Its code is run as it is. Its README's recipe for a laptop is given on the command line, as the README does; the seed,
which its train.py fixes, is changed by one more config file, which its configurator runs like any other.
"""

from __future__ import annotations

import pickle
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from minigpt.system.errors import UserError
from minigpt.text.corpus import decode_text

CONFIG = "config/train_shakespeare_char.py"
NEEDED = ("train.py", "model.py", "configurator.py", CONFIG)
DATA, OUT, SEED = Path("data", "shakespeare_char"), "out-shakespeare-char", "config/benchmark_seed.py"

SHAPE = {"n_layer": 4, "n_head": 4, "n_embd": 128, "block_size": 64}  # of the README's recipe
BATCH, STEPS, EVERY = 12, 2000, 250
FIRST_STEP = r"iter 0:"


def check_checkout(folder: Path) -> None:
    """Raises UserError unless a folder holds what the benchmark uses of nanoGPT."""
    if not folder.is_dir():
        raise UserError(f"--nanogpt {folder}: no such folder (git clone https://github.com/karpathy/nanoGPT)")
    if missing := [name for name in NEEDED if not (folder / name).is_file()]:
        raise UserError(f"--nanogpt {folder}: not a checkout of nanoGPT (there is no {missing[0]} in it)")


@dataclass(frozen=True)
class Copy:
    """A copy of a checkout, with the text as its training reads it."""

    folder: Path
    vocab_size: int

    @property
    def val(self) -> Path:
        """The ids that are not trained on."""
        return self.folder / DATA / "val.bin"

    @property
    def out(self) -> Path:
        """Where its training leaves its checkpoint."""
        return self.folder / OUT

    def train(self, seed: int, steps: int, device: torch.device) -> list[str]:
        """The README's recipe as a command, to be run in the folder; it writes a line a step."""
        shutil.rmtree(self.out, ignore_errors=True)  # of the seed before
        lines = ("import torch", "_seed = torch.manual_seed", f"torch.manual_seed = lambda _: _seed({seed})")
        (self.folder / SEED).write_text("\n".join(lines) + "\n", encoding="utf-8")
        return [sys.executable, "train.py", CONFIG, SEED, *_recipe(steps, device)]


def make_copy(checkout: Path, folder: Path, source: Path) -> Copy:
    """Copy a checkout to a new folder and write a file's text into it, the same as we read: 90 % to train on, 10 % not.

    Raises UserError for a file that is not text.
    """
    text = decode_text(source.read_bytes(), str(source))
    leave_out = shutil.ignore_patterns(".*", "__pycache__", "data", "assets", "out*", "*.ipynb")
    shutil.copytree(checkout, folder, ignore=leave_out)
    data, letters = folder / DATA, sorted(set(text))
    data.mkdir(parents=True)
    ids = {letter: id for id, letter in enumerate(letters)}
    all_ids = np.array([ids[letter] for letter in text], "<u2")  # (characters,)
    cut = int(len(text) * 0.9)
    all_ids[:cut].tofile(data / "train.bin")
    all_ids[cut:].tofile(data / "val.bin")
    meta = {"vocab_size": len(letters), "stoi": ids, "itos": dict(enumerate(letters))}
    (data / "meta.pkl").write_bytes(pickle.dumps(meta))  # the format is nanoGPT's
    return Copy(folder, len(letters))


def _recipe(steps: int, device: torch.device) -> Iterator[str]:
    options: dict[str, object] = {"eval_iters": 20, "log_interval": 1, "batch_size": BATCH, **SHAPE}
    options |= {"max_iters": steps, "lr_decay_iters": steps, "dropout": 0.0, "device": device.type}
    if device.type != "cuda":
        options["compile"] = False
    if steps < STEPS:
        options["warmup_iters"] = min(100, steps // 2)
    if steps % EVERY:  # it writes a checkpoint only where it evaluates
        options |= {"eval_interval": steps, "always_save_checkpoint": True}
    yield from (f"--{name}={value}" for name, value in options.items())
