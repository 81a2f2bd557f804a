"""Whole trainings as users start them, minigpt's and nanoGPT's, on the same text.

minigpt: `python scripts/train.py ...`. nanoGPT: the user's checkout is checked and copied, with the data that its
training reads, to a folder of our own. Its code is unchanged. The recipe for a laptop in its README is passed on the
command line, as the README does. Its train.py has a fixed seed; one more config file, which its configurator executes
like the others, sets another seed.
"""

from __future__ import annotations

import pickle
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from minigpt.config import options as configs
from minigpt.model.gpt import GPT
from minigpt.system.errors import UserError
from minigpt.system.moving import remove
from minigpt.system.places import SCRIPTS
from minigpt.text.corpus import shakespeare
from minigpt.text.dataset import Dataset
from minigpt.text.formats import decode_text
from minigpt.text.tokenizer import Char
from minigpt.training.assemble import RunConfig, open_text
from minigpt.training.loop import TrainingConfig, products_of

CONFIG = "config/train_shakespeare_char.py"
NEEDED = ("train.py", "model.py", "configurator.py", CONFIG)
SEED = "config/benchmark_seed.py"

SHAPE = {"n_layer": 4, "n_head": 4, "n_embd": 128, "block_size": 64}  # the recipe in nanoGPT's README
BATCH, STEPS, EVERY = 12, 2000, 250
WINDOW = SHAPE["block_size"]  # length of the windows of the exact loss, for all programs
FIRST_STEP, FIRST_STEP_OF_NANOGPT = r"step\s+1/", r"iter 0:"  # how the line about it begins


def find_text(name: str) -> Path:
    """The path of the text to train on: a file, or `shakespeare`, which is downloaded once. Raises UserError."""
    path = shakespeare() if name == "shakespeare" else Path(name)
    if not path.is_file():
        raise UserError(f"--text {name}: no such file, and not the name `shakespeare`")
    return path.resolve()


def overrides(text: Path, device: torch.device) -> list[str]:
    """The options that every run of minigpt gets besides its config."""
    return [f"data.source={text}", f"training.device={device.type}"]


def check(config: str, changes: Sequence[str]) -> RunConfig:
    """Read a config. Raises UserError if its loss cannot be compared with nanoGPT's."""
    settings = configs.load(RunConfig, config, changes)
    if not isinstance(settings.data.tokenizer, Char.Config) or settings.data.validation != 0.1:
        raise UserError(f"--config {config}: expected data.tokenizer=char and data.validation=0.1, as nanoGPT has it")
    if (size := settings.model.block_size) < WINDOW:
        raise UserError(f"--config {config}: model.block_size is {size}; at least {WINDOW} is needed")
    return settings


def command(config: str, name: str, changes: Sequence[str], plugins: Sequence[Path]) -> list[str]:
    """The command that trains a config, by path or by name in configs/. It works in any current folder."""
    files = [word for path in plugins for word in ("--plugin", str(path.resolve()))]
    program = [sys.executable, str(SCRIPTS / "train.py"), "--config", str(configs.find(config).resolve())]
    return [*program, "--name", name, *files, *changes]


def prepare(config: RunConfig) -> Dataset:
    """The text in windows of WINDOW tokens that do not overlap. This also writes its ids to disk."""
    corpus, tokenizer = open_text(config.data)
    return Dataset(replace(config.data, windows="random"), corpus, tokenizer, WINDOW)


def precision_of(config: TrainingConfig, model: GPT) -> str:
    """The type of the matrix products in training."""
    return "tf32" if config.precision == "tf32" else str(products_of(config, model)).removeprefix("torch.")


def check_checkout(folder: Path) -> None:
    """Raises UserError if a folder lacks one of the files of nanoGPT that the benchmark needs."""
    if not folder.is_dir():
        raise UserError(f"--nanogpt {folder}: no such folder (git clone https://github.com/karpathy/nanoGPT)")
    if missing := [name for name in NEEDED if not (folder / name).is_file()]:
        raise UserError(f"--nanogpt {folder}: not a checkout of nanoGPT (there is no {missing[0]} in it)")


@dataclass(frozen=True)
class Copy:
    """A copy of a checkout, with the text in the form that its training reads."""

    folder: Path
    vocab_size: int
    val: Path  # the file with the ids of the validation split
    out: Path  # the folder to which its training writes its checkpoint

    def train(self, seed: int, steps: int, device: torch.device) -> list[str]:
        """The command of the README's recipe, to be run in the folder. It prints a line for each step."""
        remove(self.out)  # from the seed before
        lines = ("import torch", "_seed = torch.manual_seed", f"torch.manual_seed = lambda _: _seed({seed})")
        (self.folder / SEED).write_text("\n".join(lines) + "\n", encoding="utf-8")
        options: dict[str, object] = {"eval_iters": 20, "log_interval": 1, "batch_size": BATCH, **SHAPE}
        options |= {"max_iters": steps, "lr_decay_iters": steps, "dropout": 0.0, "device": device.type}
        if device.type != "cuda":
            options["compile"] = False
        if steps < STEPS:
            options["warmup_iters"] = min(100, steps // 2)
        if steps % EVERY:  # it writes a checkpoint only when it evaluates
            options |= {"eval_interval": steps, "always_save_checkpoint": True}
        return [sys.executable, "train.py", CONFIG, SEED, *(f"--{name}={value}" for name, value in options.items())]


def make_copy(checkout: Path, folder: Path, source: Path) -> Copy:
    """Copy a checkout to a new folder, and write a text into it: the first 90 % for training, 10 % for validation.

    minigpt splits the text in the same way. Raises UserError if the file is not text.
    """
    text = decode_text(source.read_bytes(), str(source))
    leave_out = shutil.ignore_patterns(".*", "__pycache__", "data", "assets", "out*", "*.ipynb")
    shutil.copytree(checkout, folder, ignore=leave_out)
    data, letters = folder / "data" / "shakespeare_char", sorted(set(text))
    data.mkdir(parents=True)
    ids = {letter: id for id, letter in enumerate(letters)}
    all_ids = np.array([ids[letter] for letter in text], "<u2")  # (characters,)
    cut = int(len(text) * 0.9)
    copy = Copy(folder, len(letters), data / "val.bin", folder / "out-shakespeare-char")
    all_ids[:cut].tofile(data / "train.bin")
    all_ids[cut:].tofile(copy.val)
    meta = {"vocab_size": len(letters), "stoi": ids, "itos": dict(enumerate(letters))}
    (data / "meta.pkl").write_bytes(pickle.dumps(meta))  # nanoGPT reads this format
    return copy
