"""One training from start to finish: a config in, a run folder out, and back into it after a stop.

runs/tiny/
    config.yaml  tokenizer.json  environment.json      what was run, in full
    plugins/  changes.jsonl                            see record.py
    metrics.jsonl  loss.svg  samples.txt               what happened; a line a step
    checkpoints/                                       see checkpoint.py
"""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
from collections.abc import Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Any

from safetensors.torch import save_file

from minigpt.config.options import to_python
from minigpt.inspection.causality import check_causal, idle_positions
from minigpt.inspection.pictures import curve_svg, smooth
from minigpt.model.gpt import count_parameters
from minigpt.runs import checkpoint
from minigpt.runs.checkpoint import Checkpoint, CheckpointError
from minigpt.runs.record import changed, cut_metrics, make_folder, record, record_changes
from minigpt.runs.report import Log, Reporter, Say, read_metrics, say, silent
from minigpt.runs.run import (
    CHECKPOINTS,
    METRICS,
    RUNS,
    TOKENIZER,
    Run,
    RunConfig,
    build_model,
    check_run,
    open_checkpoint,
    read_config,
)
from minigpt.system.errors import UserError
from minigpt.system.folder import Lock, check_name, write_whole
from minigpt.system.signals import Stopped, signals
from minigpt.system.strict_json import has_form
from minigpt.text.corpus import Corpus, open_corpus
from minigpt.text.dataset import Dataset
from minigpt.text.tokenizer import Tokenizer
from minigpt.training import distributed
from minigpt.training.floor import Expected, describe, expectations, pay, score
from minigpt.training.loop import Diverged, Record, choose_device, evaluate, train, verdict, with_threads
from minigpt.training.memory import check_memory, outline, training_parts
from minigpt.training.optimizer import Optimizer

KEEP = 2  # checkpoints
STATE = {"seconds": float, "tokens": int, "losses": [float], "evaluations": [(int, float, float)], "data": str}


@dataclass
class Training:
    """A run under way."""

    run: Run
    dataset: Dataset
    optimizer: Optimizer
    data: str  # digest of the text
    say: Say
    lock: Lock | None = None  # of the run's folder, held until `fit` ends
    seconds: float = 0.0  # of training so far, all sittings together
    tokens: int = 0
    expected: Expected | None = None  # what the best reader of the validation text would say, where that is known
    seal: dict[str, str] = field(default_factory=dict)  # sums of the run's own files, for its checkpoints
    losses: list[float] = field(default_factory=list)  # training losses since the last evaluation
    evaluations: list[tuple[int, float, float]] = field(default_factory=list)  # step, training loss, validation loss

    def fit(self) -> None:
        """Train to the end, or to a signal, and leave a folder that can be sampled from and resumed.

        Raises Stopped after SIGINT, SIGTERM, SIGHUP, and when the reader of stdout has left; Diverged; and OSError.
        """
        with self.lock or nullcontext():
            self.take_steps()
            self.sample()

    def take_steps(self) -> None:
        """Step, evaluate, log, sample and save, each when it is time for it."""
        config, run = self.run.config.training, self.run
        reporter = Reporter(run.step, config.max_steps, distributed.rank() == 0)
        self.say, saved = reporter.say, perf_counter()
        with closing(reporter), closing(self.open_log(METRICS)) as metrics, signals() as received:
            try:
                for record in train(run.model, self.dataset, self.optimizer, config, run.step):
                    run.step, last = record.step, record.step == config.max_steps
                    self.seconds, self.tokens = self.seconds + record.seconds, self.tokens + record.tokens
                    self.losses.append(record.loss)
                    reporter.step(record)
                    line = self.line(record)
                    if record.step % config.eval_every == 0 or last:
                        line |= self.evaluate(reporter)
                    metrics.write(json.dumps(line) + "\n")
                    if config.sample_every and record.step % config.sample_every == 0 and not last:
                        self.sample()
                    overdue = perf_counter() - saved >= 60 * config.checkpoint_minutes
                    noticed = received[0] if received else reporter.unheard * signal.SIGPIPE
                    signum, due = distributed.agree(noticed, overdue)
                    if record.step % config.checkpoint_every == 0 or last or signum or due:
                        self.save(metrics)
                        saved = perf_counter()
                    if signum:
                        distributed.wait_for_all()  # for the one that saves
                        raise Stopped(signum)
            except Diverged:
                self.keep_evidence()
                raise

    def open_log(self, name: str) -> Log:
        """A file of the run's folder to append to; only the first of several processes writes it."""
        return Log(self.run.folder / name if distributed.rank() == 0 else Path(os.devnull), self.say)

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

    def evaluate(self, reporter: Reporter) -> dict[str, float]:
        """The exact validation loss, and how far above the floor it is; beside the training loss since the last one."""
        run = self.run
        val_loss = evaluate(run.model, self.dataset, "val", run.config.training)
        if not math.isfinite(val_loss):
            raise Diverged(f"step {run.step}: the validation loss is {val_loss}; lower the learning rate")
        train_loss = sum(self.losses) / len(self.losses)
        self.losses.clear()
        self.evaluations.append((run.step, train_loss, val_loss))
        found = {"val/loss": val_loss}
        if self.expected is not None:
            found["val/above_floor"] = val_loss - self.expected.floor
        reporter.evaluated(run.step, train_loss, val_loss, found.get("val/above_floor"))
        return found

    def sample(self) -> None:
        """Write a sample to the screen and to samples.txt."""
        if distributed.rank() > 0:
            return
        try:
            text = self.run.generate()
        except UserError as error:  # the loss will say so too
            self.say(f"warning: no sample at step {self.run.step}: {error}")
            return
        try:
            with closing(self.open_log("samples.txt")) as file:
                file.write(f"--- step {self.run.step} ---\n{text}\n")
        except OSError as error:
            self.say(f"warning: {self.run.folder / 'samples.txt'}: {error}; training goes on without this sample")
        shown = "\n".join("    " + line for line in text.strip("\n").splitlines())
        self.say(f"sample at step {self.run.step}:\n{shown}")

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps besides tensors."""
        return {
            "seconds": self.seconds,
            "tokens": self.tokens,
            "losses": self.losses,
            "evaluations": self.evaluations,
            "data": self.data,
        }

    def save(self, metrics: Log) -> None:
        """Write a checkpoint, and the curves so far. Raises OSError, which says what is needed and what is free."""
        if distributed.rank() > 0:
            return
        folder, memory = self.run.folder / CHECKPOINTS, self.optimizer.state()
        metrics.sync()  # a step that a checkpoint has done has its line, even if the power fails
        try:
            checkpoint.save(folder, self.run.step, self.run.model, memory, self.state(), self.seal)
        except OSError as error:
            tensors = [*checkpoint.tensors_of(self.run.model).values(), *memory.values()]
            needed, free = sum(t.numel() * t.element_size() for t in tensors), shutil.disk_usage(self.run.folder).free
            what = f"the checkpoint was not written, it needs {needed:,} bytes and {free:,} are free"
            raise OSError(f"{what} ({error})") from error
        checkpoint.prune(folder, KEEP)
        try:
            write_whole(self.run.folder / "loss.svg", self.picture())
        except OSError as error:
            self.say(f"warning: {self.run.folder / 'loss.svg'}: {error}")

    def picture(self) -> str:
        """The curves so far, as SVG."""
        lines = read_metrics(self.run.folder / METRICS)
        curves = {
            "training": smooth([(line["step"], line["train/loss"]) for line in lines]),
            "validation": [(line["step"], line["val/loss"]) for line in lines if "val/loss" in line],
        }
        title = f"{self.run.folder.name}: loss in nats a token"
        return curve_svg({name: curve for name, curve in curves.items() if curve}, title, "step")

    def keep_evidence(self) -> None:
        """Keep the state before a step that went wrong, and its batch, for a look; checkpoints stay as they are."""
        if distributed.rank() > 0:
            return
        config, folder = self.run.config.training, self.run.folder / "diverged"
        try:
            memory = self.optimizer.state()
            saved = checkpoint.save(folder, self.run.step, self.run.model, memory, self.state(), self.seal)
            x, y = self.dataset.batch("train", self.run.step, config.batch_size, config.seed)  # (B, T), (B, T)
            save_file({"x": x, "y": y}, folder / f"batch-{self.run.step:06d}.safetensors")
            self.say(f"kept for a look: {saved}, and the batch beside it")
        except OSError as error:
            self.say(f"warning: the state could not be kept for a look: {error}")

    def verdict(self) -> str:
        """What the curve of the validation loss says, and, of the stories, what was remembered."""
        if self.expected is None:
            return verdict(self.evaluations)
        paid = pay(self.run.model, self.dataset, self.run.config.training, self.expected)
        return f"{verdict(self.evaluations)}\n{describe(score(paid, self.expected))}"


def start(config: RunConfig, name: str, plugins: Sequence[Path], allow_leak: bool, say: Say = say) -> Training:
    """Prepare a new run: read the text, build the model, prove it causal, and make its folder.

    Raises UserError for what the config asks in vain, LeakError for an attention that sees the future, and OSError.
    """
    began, say = perf_counter(), say if distributed.rank() == 0 else silent
    check_name(name, "a run")
    corpus = open_corpus(config.data.source, config.data.stories)
    tokenizer = config.data.tokenizer.component.fit(config.data.tokenizer, corpus.documents())
    say(f"text: {corpus.description}; {tokenizer.vocab_size:,} tokens in the vocabulary")
    training = _assemble(config, tokenizer, corpus, RUNS / name, say)
    if not allow_leak:
        check_causal(training.run.model)
    if distributed.rank() == 0:
        training.run.folder = make_folder(name)
        training.lock = Lock(training.run.folder)
        training.seal = record(training.run, plugins)
    say(f"run: {training.run.folder} (ready in {perf_counter() - began:.1f} s)")
    return training


def resume(
    folder: Path,
    overrides: Sequence[str],
    plugins: Sequence[Path],
    allow_data_change: bool,
    allow_leak: bool,
    say: Say = say,
) -> Training:
    """Take up a run at its newest good checkpoint.

    `training` and `sampling` may be changed by overrides, and the changes are listed and recorded; `model`, the
    tokenizer and the kind of the optimizer may not, and the text only on purpose. Raises UserError, LeakError (a plugin
    may have been edited), CheckpointError, and OSError.
    """
    say = say if distributed.rank() == 0 else silent
    check_run(folder)
    lock = Lock(folder) if distributed.rank() == 0 else None
    saved, notes = open_checkpoint(folder)
    for note in notes:
        say(note)
    old, config = read_config(folder), read_config(folder, overrides)
    changes = list(changed(to_python(old), to_python(config)))
    for key, before, after in changes:
        say(f"changed: {key}: {before} -> {after}")
        fixed = key.startswith(("data.", "model.")) or key in ("training.optimizer", "training.optimizer.kind")
        if fixed and not (allow_data_change and key == "data.source"):
            raise UserError(f"--resume: {key} cannot change from {before} to {after}: start a new run")
    tokenizer = Tokenizer.load(folder / TOKENIZER)
    check_state(saved)
    checkpoint.check_fit(outline(config.model, tokenizer.vocab_size), saved.model, saved.path)
    if saved.state["step"] >= config.training.max_steps:
        raise UserError(
            f"--resume: {folder} has done all its {config.training.max_steps} steps; "
            f"give it more, as in training.max_steps={2 * config.training.max_steps}"
        )
    training = _assemble(config, tokenizer, open_corpus(config.data.source, config.data.stories), folder, say)
    if not allow_leak:
        check_causal(training.run.model)
    if saved.state["data"] != training.data:
        what = f"the text of {config.data.source} is not the one that {folder} was trained on"
        if not allow_data_change:
            raise UserError(f"--resume: {what}; --allow-data-change goes on with it")
        say(f"changed: {what}")
        changes.append(("data", saved.state["data"], training.data))
    _restore(training, saved)
    training.lock = lock
    if distributed.rank() == 0:
        cut_metrics(folder / METRICS, training.run.step, say)
        training.seal = record_changes(training.run, plugins, changes, say)
    say(f"run: {folder}, resumed after step {training.run.step}")
    return training


def check_state(saved: Checkpoint) -> None:
    """Raises CheckpointError unless a checkpoint has what `Training.state` writes."""
    if "data" not in saved.state and not saved.optimizer:  # of a comparison
        raise CheckpointError(f"{saved.path}: saved without the optimizer's memory, it cannot be trained further")
    if not has_form(saved.state, STATE):
        raise CheckpointError(f"{saved.path / 'state.json'}: not the state of a training")


def _restore(training: Training, saved: Checkpoint) -> None:
    """Put what a checkpoint holds into a training."""
    checkpoint.fill(training.run.model, saved.model, saved.path)
    if training.optimizer.remembers and not saved.optimizer:
        raise CheckpointError(f"{saved.path}: the optimizer's memory is empty")
    training.optimizer.load_state(saved.optimizer)
    state = saved.state
    training.run.step, training.seconds, training.tokens = state["step"], state["seconds"], state["tokens"]
    training.losses = list(state["losses"])
    training.evaluations = [(step, train_loss, val_loss) for step, train_loss, val_loss in state["evaluations"]]


def _assemble(config: RunConfig, tokenizer: Tokenizer, corpus: Corpus, folder: Path, say: Say) -> Training:
    """Dataset, model and optimizer of a config, on its device; the config of the run says how many threads it has."""
    config = replace(config, training=with_threads(config.training))
    distributed.start(config.training.device)
    if config.training.batch_size < distributed.world():
        raise UserError(f"training.batch_size: {config.training.batch_size} rows for {distributed.world()} processes")
    device = choose_device(config.training.device)
    rows, at_a_time = -(-config.training.batch_size // distributed.world()), config.training.micro_batch_size
    check_memory(training_parts(config.model, tokenizer.vocab_size, rows, at_a_time), "training")
    dataset = Dataset(config.data, corpus, tokenizer, config.model.block_size)
    model = build_model(config, tokenizer)
    for line in idle_positions(model):
        say(f"note: {line}; training goes on without it")
    model.to(device)
    optimizer = config.training.optimizer.component(config.training.optimizer, model)
    parts = ", ".join(f"{part} {count:,}" for part, count in count_parameters(model).items() if count)
    together = f", {distributed.world()} processes" if distributed.world() > 1 else ""
    threads = f", threads: {config.training.threads}" if device.type == "cpu" else ""
    say(f"model: {sum(count_parameters(model).values()):,} parameters ({parts}) on {device}{together}{threads}")
    run, expected = Run(folder, config, tokenizer, model, 0, []), expectations(corpus, tokenizer)
    return Training(run, dataset, optimizer, corpus.digest, say, expected=expected)
