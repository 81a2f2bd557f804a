"""One training from start to finish: a config in, a run folder out, and back into it after a stop.

runs/tiny/
    config.yaml  tokenizer.json  environment.json      what was run, in full
    plugins/                                           a copy of the user's own files, for the record
    metrics.jsonl  loss.svg  samples.txt               what happened; a line a step
    checkpoints/                                       see checkpoint.py
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from minigpt import checkpoint
from minigpt.config import to_python, to_yaml
from minigpt.corpus import open_corpus
from minigpt.dataset import Dataset
from minigpt.model import count_parameters
from minigpt.optimizer import Optimizer
from minigpt.picture import curve_svg, smooth
from minigpt.probe import check_causal, idle_positions
from minigpt.report import Reporter
from minigpt.run import CHECKPOINTS, CONFIG, METRICS, PLUGINS, RUNS, TOKENIZER, Run, RunConfig, build_model, read_config
from minigpt.strict_yaml import UserError
from minigpt.tokenizer import Tokenizer
from minigpt.training import Record, choose_device, evaluate, train, verdict

KEEP = 2  # checkpoints

Say = Callable[[str], None]  # prints a line


class Stopped(Exception):
    """A signal ended the training, after its step was finished and a checkpoint written."""

    def __init__(self, signum: int):
        super().__init__(signal.Signals(signum).name)
        self.signum = signum


@dataclass
class Training:
    """A run under way."""

    run: Run
    dataset: Dataset
    optimizer: Optimizer
    data: str  # digest of the text
    say: Say
    seconds: float = 0.0  # of training so far, all sittings together
    tokens: int = 0
    evaluations: list[tuple[int, float, float]] = field(default_factory=list)  # step, training loss, validation loss

    def fit(self) -> None:
        """Train to the end, or to a signal, and leave a folder that can be sampled from and resumed.

        Raises Stopped after SIGINT and SIGTERM, Diverged, and OSError.
        """
        config, run = self.run.config.training, self.run
        reporter = Reporter(run.step, config.max_steps)
        self.say = reporter.say
        losses: list[float] = []
        with (run.folder / METRICS).open("a", encoding="utf-8") as metrics, signals() as received:
            try:
                for record in train(run.model, self.dataset, self.optimizer, config, run.step):
                    run.step, last = record.step, record.step == config.max_steps
                    self.seconds, self.tokens = self.seconds + record.seconds, self.tokens + record.tokens
                    losses.append(record.loss)
                    reporter.step(record)
                    line = self.line(record)
                    if record.step % config.eval_every == 0 or last:
                        line["val/loss"] = self.evaluate(losses, reporter)
                        losses.clear()
                    metrics.write(json.dumps(line) + "\n")
                    metrics.flush()
                    if config.sample_every and record.step % config.sample_every == 0 and not last:
                        self.sample()
                    if record.step % config.checkpoint_every == 0 or last or received:
                        self.save()
                    if received and not last:
                        raise Stopped(received[0])
            finally:
                reporter.close()
        self.sample()

    def line(self, record: Record) -> dict[str, float]:
        """A step as `metrics.jsonl` has it."""
        return {
            "step": record.step,
            "train/loss": record.loss,
            "lr": record.lr,
            "grad_norm": record.grad_norm,
            "tokens": self.tokens,
            "tokens_per_second": round(record.tokens / record.seconds, 1),
            "seconds": round(self.seconds, 4),
        }

    def evaluate(self, losses: Sequence[float], reporter: Reporter) -> float:
        """The exact validation loss, beside the mean training loss since the last one."""
        run = self.run
        val_loss = evaluate(run.model, self.dataset, "val", run.config.training)
        train_loss = sum(losses) / len(losses)
        self.evaluations.append((run.step, train_loss, val_loss))
        reporter.evaluated(run.step, train_loss, val_loss)
        return val_loss

    def sample(self) -> None:
        """Write a sample to the screen and to samples.txt."""
        text = self.run.generate()
        with (self.run.folder / "samples.txt").open("a", encoding="utf-8") as file:
            file.write(f"--- step {self.run.step} ---\n{text}\n")
        shown = "\n".join("    " + line for line in text.strip("\n").splitlines())
        self.say(f"sample at step {self.run.step}:\n{shown}")

    def save(self) -> None:
        """Write a checkpoint, and the curves so far."""
        state = {
            "seconds": self.seconds,
            "tokens": self.tokens,
            "evaluations": self.evaluations,
            "data": self.data,
        }
        folder = self.run.folder / CHECKPOINTS
        checkpoint.save(folder, self.run.step, self.run.model, self.optimizer.state(), state)
        checkpoint.prune(folder, KEEP)
        lines = read_metrics(self.run.folder / METRICS)
        curves = {
            "training": smooth([(line["step"], line["train/loss"]) for line in lines]),
            "validation": [(line["step"], line["val/loss"]) for line in lines if "val/loss" in line],
        }
        title = f"{self.run.folder.name}: loss in nats a token"
        picture = curve_svg({name: curve for name, curve in curves.items() if curve}, title, "step")
        (self.run.folder / "loss.svg").write_text(picture, encoding="utf-8")

    def verdict(self) -> str:
        """What the curve of the validation loss says."""
        return verdict(self.evaluations)


@contextmanager
def signals() -> Iterator[list[int]]:
    """Note SIGINT and SIGTERM in a list, so that a step is finished first; a second one stops at once."""
    received: list[int] = []

    def note(signum: int, frame: Any) -> None:
        received.append(signum)
        if len(received) > 1:
            signal.signal(signum, signal.SIG_DFL)
            os.kill(os.getpid(), signum)

    before = {signum: signal.signal(signum, note) for signum in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def start(config: RunConfig, name: str, plugins: Sequence[Path], allow_leak: bool, say: Say = print) -> Training:
    """Prepare a new run: read the text, build the model, prove it causal, and make its folder. Raises UserError."""
    began = perf_counter()
    corpus = open_corpus(config.data.source)
    tokenizer = config.data.tokenizer.component.fit(config.data.tokenizer, corpus.documents())
    say(f"text: {corpus.description}; {tokenizer.vocab_size:,} tokens in the vocabulary")
    training = _assemble(config, tokenizer, corpus, Path(name), say)
    if not allow_leak:
        check_causal(training.run.model)
    training.run.folder = make_folder(name)
    _record(training.run, plugins)
    say(f"run: {training.run.folder} (ready in {perf_counter() - began:.1f} s)")
    return training


def resume(folder: Path, overrides: Sequence[str], say: Say = print) -> Training:
    """Take up a run at its newest good checkpoint. Raises UserError, CheckpointError.

    `training` and `sampling` may be changed by overrides, and the changes are listed; `data` and `model` may not.
    """
    old, config = read_config(folder), read_config(folder, overrides)
    changes = list(_changes(to_python(old), to_python(config)))
    for key, before, after in changes:
        if key.split(".")[0] in ("data", "model"):
            raise UserError(f"--resume: {key} cannot change from {before} to {after}: start a new run")
        say(f"changed: {key}: {before} -> {after}")
    tokenizer = Tokenizer.load(folder / TOKENIZER)
    saved, notes = checkpoint.newest(folder / CHECKPOINTS)
    for note in notes:
        say(note)
    training = _assemble(config, tokenizer, open_corpus(config.data.source), folder, say)
    if saved.state.get("data") != training.data:
        raise UserError(f"--resume: the text of {config.data.source} is not the one that {folder} was trained on")
    checkpoint.fill(training.run.model, saved.model, saved.path)
    training.optimizer.load_state(saved.optimizer)
    training.run.step = saved.state["step"]
    training.seconds, training.tokens = saved.state["seconds"], saved.state["tokens"]
    training.evaluations = [(step, a, b) for step, a, b in saved.state["evaluations"]]
    if training.run.step >= config.training.max_steps:
        raise UserError(
            f"--resume: {folder} has done all its {config.training.max_steps} steps; "
            f"give it more, as in training.max_steps={2 * config.training.max_steps}"
        )
    _cut_metrics(folder / METRICS, training.run.step)
    (folder / CONFIG).write_text(to_yaml(config), encoding="utf-8")
    say(f"run: {folder}, resumed after step {training.run.step}")
    return training


def _assemble(config: RunConfig, tokenizer: Tokenizer, corpus: Any, folder: Path, say: Say) -> Training:
    """Dataset, model and optimizer of a config, on its device."""
    device = choose_device(config.training.device)
    dataset = Dataset(config.data, corpus, tokenizer, config.model.block_size)
    model = build_model(config, tokenizer)
    for line in idle_positions(model):
        say(f"note: {line}; training goes on without it")
    model.to(device)
    optimizer = config.training.optimizer.component(config.training.optimizer, model)
    parts = ", ".join(f"{part} {count:,}" for part, count in count_parameters(model).items() if count)
    say(f"model: {sum(count_parameters(model).values()):,} parameters ({parts}) on {device}")
    return Training(Run(folder, config, tokenizer, model, 0, []), dataset, optimizer, corpus.digest, say)


def make_folder(name: str) -> Path:
    """A new folder runs/NAME, or runs/NAME-2, NAME-3, ... when that is taken."""
    RUNS.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        folder = RUNS / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir()
            return folder
        except FileExistsError:
            number += 1


def _record(run: Run, plugins: Sequence[Path]) -> None:
    """Write down what is run, in full."""
    (run.folder / CONFIG).write_text(to_yaml(run.config), encoding="utf-8")
    run.tokenizer.save(run.folder / TOKENIZER)
    environment = {
        "command": sys.argv,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "threads": torch.get_num_threads(),
    }
    (run.folder / "environment.json").write_text(json.dumps(environment, indent=1), encoding="utf-8")
    for plugin in plugins:
        (run.folder / PLUGINS).mkdir(exist_ok=True)
        shutil.copyfile(plugin, run.folder / PLUGINS / plugin.name)


def _changes(old: Any, new: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Where two configs differ: (key, before, after)."""
    if isinstance(old, dict) and isinstance(new, dict) and old.keys() == new.keys():
        for key in old:
            yield from _changes(old[key], new[key], f"{path}.{key}" if path else key)
    elif old != new:
        yield path, old, new


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl; a last line that was cut off by a crash is left out."""
    lines = path.read_text(encoding="utf-8").split("\n") if path.exists() else []
    return [json.loads(line) for line in lines[:-1]]


def _cut_metrics(path: Path, step: int) -> None:
    """Drop the lines after a checkpoint: its run will write them again."""
    kept = [json.dumps(line) + "\n" for line in read_metrics(path) if line["step"] <= step]
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text("".join(kept), encoding="utf-8")
    beside.replace(path)
