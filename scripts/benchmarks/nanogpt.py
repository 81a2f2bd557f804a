"""nanoGPT: checks the user's checkout and copies it, with the data that its training reads, to a folder of our own.

Its code is unchanged. The recipe for a laptop in its README is passed on the command line, as the README does. Its
train.py has a fixed seed; one more config file, which its configurator executes like the others, sets another seed.
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
from minigpt.system.moving import remove
from minigpt.text.formats import decode_text

CONFIG = "config/train_shakespeare_char.py"
NEEDED = ("train.py", "model.py", "configurator.py", CONFIG)
DATA, OUT, SEED = Path("data", "shakespeare_char"), "out-shakespeare-char", "config/benchmark_seed.py"

SHAPE = {"n_layer": 4, "n_head": 4, "n_embd": 128, "block_size": 64}  # the recipe in nanoGPT's README
BATCH, STEPS, EVERY = 12, 2000, 250
FIRST_STEP = r"iter 0:"


def check_checkout(folder: Path) -> None:
    """Raises UserError if a folder lacks one of the files that the benchmark needs."""
    if not folder.is_dir():
        raise UserError(f"--nanogpt {folder}: no such folder (git clone https://github.com/karpathy/nanoGPT)")
    if missing := [name for name in NEEDED if not (folder / name).is_file()]:
        raise UserError(f"--nanogpt {folder}: not a checkout of nanoGPT (there is no {missing[0]} in it)")


@dataclass(frozen=True)
class Copy:
    """A copy of a checkout, with the text in the form that its training reads."""

    folder: Path
    vocab_size: int

    @property
    def val(self) -> Path:
        """The file with the ids of the validation split."""
        return self.folder / DATA / "val.bin"

    @property
    def out(self) -> Path:
        """The folder to which its training writes its checkpoint."""
        return self.folder / OUT

    def train(self, seed: int, steps: int, device: torch.device) -> list[str]:
        """The command of the README's recipe, to be run in the folder. It prints a line for each step."""
        remove(self.out)  # from the seed before
        lines = ("import torch", "_seed = torch.manual_seed", f"torch.manual_seed = lambda _: _seed({seed})")
        (self.folder / SEED).write_text("\n".join(lines) + "\n", encoding="utf-8")
        return [sys.executable, "train.py", CONFIG, SEED, *_recipe(steps, device)]


def make_copy(checkout: Path, folder: Path, source: Path) -> Copy:
    """Copy a checkout to a new folder, and write a text into it: the first 90 % for training, 10 % for validation.

    minigpt splits the text in the same way. Raises UserError if the file is not text.
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
    (data / "meta.pkl").write_bytes(pickle.dumps(meta))  # nanoGPT reads this format
    return Copy(folder, len(letters))


def _recipe(steps: int, device: torch.device) -> Iterator[str]:
    options: dict[str, object] = {"eval_iters": 20, "log_interval": 1, "batch_size": BATCH, **SHAPE}
    options |= {"max_iters": steps, "lr_decay_iters": steps, "dropout": 0.0, "device": device.type}
    if device.type != "cuda":
        options["compile"] = False
    if steps < STEPS:
        options["warmup_iters"] = min(100, steps // 2)
    if steps % EVERY:  # it writes a checkpoint only when it evaluates
        options |= {"eval_interval": steps, "always_save_checkpoint": True}
    yield from (f"--{name}={value}" for name, value in options.items())
