"""Weights from elsewhere as an ordinary run folder, at step 0: sampled, looked into and compared like any other.

runs/gpt2/
    config.yaml  tokenizer.json  environment.json      as in every run; data.source is `pretrained`
    origin.json                                        where the weights come from, and the sums of what was read
    checkpoints/step-000000/                           the weights, without an optimizer's state
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minigpt.model import ModelConfig
from minigpt.runs import checkpoint
from minigpt.runs.assemble import RunConfig
from minigpt.runs.checkpoint import CheckpointError
from minigpt.runs.record import make_folder, record_run
from minigpt.runs.report import Say
from minigpt.runs.run import CHECKPOINTS, RUNS, Run
from minigpt.system.errors import UserError
from minigpt.system.folder import check_name, sync, write_whole
from minigpt.text.corpus import PRETRAINED
from minigpt.text.dataset import DataConfig
from minigpt.text.tokenizer import Tokenizer
from minigpt.training.memory import outline

ORIGIN = "origin.json"
NOT_TRAINED = "not trained here"  # what the record of such a run says of its checks


def make_run(
    name: str,
    model: ModelConfig,
    tokenizer: Tokenizer,
    tensors: Iterable[tuple[str, Tensor]],
    origin: Mapping[str, Any],
    say: Say,
) -> Path:
    """Make the folder runs/NAME (or NAME-2, ...) of a model whose tensors are given under our names, in float32.

    `origin` says where they come from. The folder appears whole, or not at all. Raises UserError for a name that is
    none, CheckpointError for tensors that do not fit the model or are no numbers, and OSError.
    """
    check_name(name, "a run")
    RUNS.mkdir(parents=True, exist_ok=True)
    beside = RUNS / f".importing-{name}-{os.getpid()}"
    beside.mkdir()
    try:
        empty = outline(model, tokenizer.vocab_size)  # shapes without numbers
        run = Run(beside, RunConfig(data=pretrained(tokenizer), model=model), tokenizer, empty, 0, [])
        read = dict(checked(tensors))
        checkpoint.check_fit(empty, read, f"the model {name}")
        seal = record_run(run, [], NOT_TRAINED)
        write_whole(beside / ORIGIN, json.dumps(dict(origin), indent=1) + "\n")
        checkpoint.save_tensors(beside / CHECKPOINTS, 0, read, {}, {}, seal)
        folder = make_folder(name)
        if sys.platform == "win32":
            folder.rmdir()  # a folder is renamed over an empty one on other systems only
        beside.replace(folder)  # in place of the empty folder that reserves the name
        sync(RUNS)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    say(f"run: {folder}")
    return folder


def pretrained(tokenizer: Tokenizer) -> DataConfig:
    """What the config of such a run says of its text: that it has none here."""
    return DataConfig(source=PRETRAINED, tokenizer=type(tokenizer).Config())


def checked(tensors: Iterable[tuple[str, Tensor]]) -> Iterable[tuple[str, Tensor]]:
    """The same tensors. Raises CheckpointError for one that is not of numbers."""
    for name, tensor in tensors:
        if tensor.dtype != torch.float32 or not tensor.isfinite().all():
            raise CheckpointError(f"{name}: expected float32 numbers, found {tensor.dtype}, NaN or infinity")
        yield name, tensor


def check_vocabulary(tokenizer: Tokenizer, vocab_size: int) -> None:
    """Raises UserError unless a tokenizer has as many ids as the model has embeddings."""
    if tokenizer.vocab_size != vocab_size:
        found = f"the tokenizer has {tokenizer.vocab_size:,} ids"
        raise UserError(f"{found}, and the model {vocab_size:,} embeddings: they do not belong together")
