"""minigpt's own training as a user starts it, `python scripts/train.py ...`, for the suites that measure it whole."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from minigpt.bench import checkout
from minigpt.bench.processes import Watched
from minigpt.bench.setting import Setting
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
WINDOW = checkout.SHAPE["block_size"]  # of the exact loss, for everybody


def overrides(text: Path, device: torch.device) -> list[str]:
    """What every run is told besides its config."""
    return [f"data.source={text}", f"training.device={device.type}"]


def check(config: str, changes: Sequence[str]) -> RunConfig:
    """Read a config, and see that its loss can be held against nanoGPT's. Raises UserError."""
    found = configs.load(RunConfig, config, changes)
    if not isinstance(found.data.tokenizer, Char.Config) or found.data.validation != 0.1:
        raise UserError(f"--config {config}: expected data.tokenizer=char and data.validation=0.1, as nanoGPT has it")
    if found.model.block_size < WINDOW:
        raise UserError(f"--config {config}: model.block_size is {found.model.block_size}; at least {WINDOW} is needed")
    return found


def train(setting: Setting, config: str, name: str, changes: Sequence[str]) -> list[str]:
    """The command that trains a config, by path or name in configs/; it may be run in any folder."""
    plugins = [word for path in setting.plugins for word in ("--plugin", str(path.resolve()))]
    command = [sys.executable, str(ROOT / "scripts" / "train.py"), "--config", str(configs.find(config).resolve())]
    return [*command, "--name", name, *plugins, *changes]


def prepare(config: RunConfig, block_size: int = WINDOW) -> Dataset:
    """The text in windows of `block_size`, side by side; its ids are on disk from here on."""
    corpus, tokenizer = open_text(config.data)
    return Dataset(replace(config.data, windows="random"), corpus, tokenizer, block_size)


@dataclass(frozen=True)
class Trained:
    """A run that ended: where its time went, and how well it did."""

    startup: float  # seconds to the first step, imports included
    training: float
    rest: float  # evaluations, samples, checkpoints, the end
    loss: float  # exact, over the whole validation split, in float32
    parameters: int
    flops: float  # of all its steps
    precision: str  # the type of its matrix products in training


def look_at(folder: Path, name: str, watched: Watched, dataset: Dataset, device: torch.device) -> Trained:
    """What a finished run in a folder did; the loss is worked out here, outside of every clock."""
    run = load(folder / RUNS / name, device.type)
    settings = replace(run.config.training, precision="float32", batch_size=128)
    lines = read_metrics(run.folder / METRICS)
    training = float(lines[-1]["seconds"])
    assert watched.first is not None
    startup = watched.first - float(lines[0]["seconds"])
    loss, flops = evaluate(run.model, dataset, "val", settings), flops_of(run.model, int(lines[-1]["tokens"]))
    parameters, precision = sum(count_parameters(run.model).values()), precision_of(run.config.training, run.model)
    return Trained(startup, training, watched.seconds - startup - training, loss, parameters, flops, precision)


def flops_of(model: GPT, tokens: int) -> float:
    """Operations of training a model on so many tokens."""
    return 3 * cost(model).flops_per_token * tokens


def precision_of(config: TrainingConfig, model: GPT) -> str:
    """The type of the matrix products with which a model is trained."""
    with mixed_precision(config, model):
        return "bfloat16" if torch.is_autocast_enabled(model.device.type) else "float32"
