"""Starts minigpt's training as a user does, `python scripts/train.py ...`, and reads what came out of it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from benchmarks import nanogpt
from benchmarks.processes import CommandTimes
from benchmarks.setting import Setting
from minigpt.config import options as configs
from minigpt.inspection.cost import cost
from minigpt.model.gpt import GPT, count_parameters
from minigpt.runs.assemble import RunConfig, open_text
from minigpt.runs.report import read_metrics
from minigpt.runs.run import METRICS, RUNS, load
from minigpt.system.errors import UserError
from minigpt.text.corpus import ROOT
from minigpt.text.dataset import Dataset
from minigpt.text.tokenizer import Char
from minigpt.training.loop import TrainingConfig, evaluate, mixed_precision

FIRST_STEP = r"step\s+1/"
WINDOW = nanogpt.SHAPE["block_size"]  # length of the windows of the exact loss, for all programs


def overrides(text: Path, device: torch.device) -> list[str]:
    """The options that every run gets besides its config."""
    return [f"data.source={text}", f"training.device={device.type}"]


def check(config: str, changes: Sequence[str]) -> RunConfig:
    """Read a config. Raises UserError if its loss cannot be compared with nanoGPT's."""
    found = configs.load(RunConfig, config, changes)
    if not isinstance(found.data.tokenizer, Char.Config) or found.data.validation != 0.1:
        raise UserError(f"--config {config}: expected data.tokenizer=char and data.validation=0.1, as nanoGPT has it")
    if found.model.block_size < WINDOW:
        raise UserError(f"--config {config}: model.block_size is {found.model.block_size}; at least {WINDOW} is needed")
    return found


def train(setting: Setting, config: str, name: str, changes: Sequence[str]) -> list[str]:
    """The command that trains a config, by path or by name in configs/. It works in any current folder."""
    plugins = [word for path in setting.plugins for word in ("--plugin", str(path.resolve()))]
    command = [sys.executable, str(ROOT / "scripts" / "train.py"), "--config", str(configs.find(config).resolve())]
    return [*command, "--name", name, *plugins, *changes]


def prepare(config: RunConfig, block_size: int = WINDOW) -> Dataset:
    """The text in windows of `block_size` that do not overlap. This also writes its ids to disk."""
    corpus, tokenizer = open_text(config.data)
    return Dataset(replace(config.data, windows="random"), corpus, tokenizer, block_size)


@dataclass(frozen=True)
class Trained:
    """The times and the loss of a finished run."""

    startup: float  # seconds to the first step, including imports
    training: float
    rest: float  # evaluations, samples, checkpoints, ending
    loss: float  # exact, over the whole validation split, in float32
    parameters: int
    flops: float  # of all its steps
    precision: str  # the type of its matrix products in training


def look_at(folder: Path, name: str, times: CommandTimes, dataset: Dataset, device: torch.device) -> Trained:
    """The times and the loss of a finished run. The loss is computed here, outside of all timing."""
    run = load(folder / RUNS / name, device.type)
    settings = replace(run.config.training, precision="float32", batch_size=128)
    lines = read_metrics(run.folder / METRICS)
    training = float(lines[-1]["seconds"])
    assert times.first is not None
    startup = times.first - float(lines[0]["seconds"])
    loss, flops = evaluate(run.model, dataset, "val", settings), flops_of(run.model, int(lines[-1]["tokens"]))
    parameters, precision = sum(count_parameters(run.model).values()), precision_of(run.config.training, run.model)
    return Trained(startup, training, times.seconds - startup - training, loss, parameters, flops, precision)


def flops_of(model: GPT, tokens: int) -> float:
    """Floating-point operations of training a model on a number of tokens."""
    return 3 * cost(model).flops_per_token * tokens


def precision_of(config: TrainingConfig, model: GPT) -> str:
    """The type of the matrix products in training."""
    with mixed_precision(config, model):
        return "bfloat16" if torch.is_autocast_enabled(model.device.type) else "float32"
