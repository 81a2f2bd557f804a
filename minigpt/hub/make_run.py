"""Makes an ordinary run folder, at step 0, from imported weights: it is sampled, inspected and compared like any other.

runs/gpt2/
    config.yaml  tokenizer.json  environment.json      as in every run; data.source is `pretrained`
    origin.json                                        where the weights come from, and SHA-256 sums of the files
    checkpoints/step-000000/                           the weights, without an optimizer's state
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from minigpt.model import ModelConfig
from minigpt.system.beside import written_beside
from minigpt.system.errors import UserError
from minigpt.system.folder import check_name, read_start, write_whole
from minigpt.text.corpus import PRETRAINED
from minigpt.text.dataset import DataConfig
from minigpt.text.tokenizer import Tokenizer
from minigpt.training import checkpoint
from minigpt.training.assemble import RunConfig
from minigpt.training.checkpoint import CheckpointError
from minigpt.training.memory import outline
from minigpt.training.report import Say
from minigpt.training.run import CHECKPOINTS, RUNS, TOKENIZER, Run, read_config
from minigpt.training.run_folder import make_folder, record_run

ORIGIN = "origin.json"
NOT_TRAINED = "not trained here"  # in the record of such a run, in place of the checks before training


def make_run(
    name: str,
    config: RunConfig,
    tokenizer: Tokenizer,
    tensors: Iterable[tuple[str, Tensor]],
    origin: Mapping[str, Any],
    say: Say,
) -> Path:
    """Make the folder runs/NAME (or NAME-2, ...) from a config and float32 tensors by minigpt's names, and return it.

    `origin` says where the tensors come from. The folder is made whole, or not at all. Raises UserError for an invalid
    name, CheckpointError for tensors that do not fit the model or are not finite, and OSError.
    """
    check_name(name, "a run")
    RUNS.mkdir(parents=True, exist_ok=True)
    with written_beside(RUNS / name) as staging:
        empty = outline(config.model, tokenizer.vocab_size)  # shapes without values
        run = Run(staging.path, config, tokenizer, empty, 0, [])
        state = dict(checked(tensors))
        checkpoint.check_fit(empty, state, f"the model {name}")
        seal = record_run(run, [], NOT_TRAINED)
        write_whole(staging.path / ORIGIN, json.dumps(dict(origin), indent=1) + "\n")
        checkpoint.save(staging.path / CHECKPOINTS, 0, state, {}, {}, seal)
        folder = make_folder(name, say)
        staging.put(folder)  # in place of the empty folder that reserves the name
    say(f"run: {folder}")
    return folder


def config_of(model: ModelConfig, tokenizer: Tokenizer, on_lines: bool) -> RunConfig:
    """The config of an imported run, which has no text. `on_lines`: it was trained on texts of one line each."""
    windows: Literal["documents", "random"] = "documents" if on_lines else "random"  # `Run.tells` reads this
    data = DataConfig(source=PRETRAINED, tokenizer=type(tokenizer).Config(), windows=windows)
    return RunConfig(data=data, model=model)


def made_before(config: RunConfig, tokenizer: Tokenizer, origin: Callable[[], Mapping[str, Any]]) -> Path | None:
    """The newest run in runs/ with this config, tokenizer and origin; None if there is none.

    `origin` reads all files, so it is called only if a run has the same config and tokenizer.
    """
    runs = [path.parent for path in RUNS.glob(f"*/{ORIGIN}") if not (path.is_symlink() or path.parent.is_symlink())]
    runs = [path for path in runs if is_of(path, config)]
    runs = [path for path in runs if Tokenizer.load(path / TOKENIZER).fingerprint == tokenizer.fingerprint]
    record = json.dumps(dict(origin()), indent=1).encode() + b"\n" if runs else b""
    same = [path for path in runs if is_file_with(path / ORIGIN, record)]
    return max(same, key=lambda path: (path / ORIGIN).stat().st_mtime_ns, default=None)


def is_of(run: Path, config: RunConfig) -> bool:
    """Whether a run, made by whatever version, has this config."""
    try:
        return read_config(run) == config
    except UserError:
        return False


def is_file_with(path: Path, contents: bytes) -> bool:
    """Whether a file has exactly these bytes."""
    return path.is_file() and not path.is_symlink() and read_start(path, len(contents) + 1) == contents


def checked(tensors: Iterable[tuple[str, Tensor]]) -> Iterable[tuple[str, Tensor]]:
    """The same tensors. Raises CheckpointError for one that is not float32 or not finite."""
    for name, tensor in tensors:
        if tensor.dtype != torch.float32 or not tensor.isfinite().all():
            raise CheckpointError(f"{name}: expected float32 numbers, found {tensor.dtype}, NaN or infinity")
        yield name, tensor


def check_vocabulary(tokenizer: Tokenizer, vocab_size: int) -> None:
    """Raises UserError unless a tokenizer has as many ids as the model has embeddings."""
    if tokenizer.vocab_size != vocab_size:
        ids = f"the tokenizer has {tokenizer.vocab_size:,} ids"
        raise UserError(f"{ids}, and the model {vocab_size:,} embeddings: they do not belong together")
