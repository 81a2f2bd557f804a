"""One training, step by step, and what it leaves in its folder.

runs/tiny/
    config.yaml  tokenizer.json  environment.json      what was run, in full
    plugins/  changes.jsonl                            see run_folder.py
    metrics.jsonl  loss.svg  samples.txt               what happened; a line a step
    checkpoints/                                       see checkpoint.py
"""

from __future__ import annotations

import json
import os
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from time import perf_counter
from typing import Any

from torch import Tensor

from minigpt.system.errors import UserError
from minigpt.system.folder import write_whole
from minigpt.system.locks import Lock
from minigpt.system.signals import SIGPIPE, Stopped, Terminated, signals
from minigpt.system.waiting import progress
from minigpt.text.dataset import Dataset
from minigpt.training import checkpoint, distributed
from minigpt.training.callbacks import Callbacks
from minigpt.training.distributed import reaching_others
from minigpt.training.floor import (
    Expected,
    describe,
    explain_impossible,
    height,
    is_impossible,
    predict,
    predict_batches,
    score,
)
from minigpt.training.loggers import Loggers
from minigpt.training.loop import EvaluationStopped, History, Loss, evaluation_due, fit, measure
from minigpt.training.objective import NextToken
from minigpt.training.optimizer import Optimizer
from minigpt.training.records import Diverged, Record
from minigpt.training.report import Log, Reporter, Say, loss_curves, metrics_of
from minigpt.training.run import CHECKPOINTS, METRICS, Run
from minigpt.training.run_folder import complete_metrics
from minigpt.training.saver import Saver
from minigpt.training.sharding import is_sharded
from minigpt.training.verdict import Evaluation, best_of, out_of_patience, verdict


@dataclass
class Trainer:
    """A run with the dataset and the optimizer that train it."""

    run: Run
    dataset: Dataset
    optimizer: Optimizer
    data: str  # digest of the text
    say: Say
    lock: Lock | None = None  # of the run's folder, held until `fit` ends
    history: History = field(default_factory=History)
    expected: Expected | None = None  # what the ideal reader predicts for the validation text, where that is known
    seal: dict[str, str] = field(default_factory=dict)  # SHA-256 of the run's own files, for its checkpoints
    received: list[int] = field(default_factory=list)  # signals, while it takes steps
    loggers: Loggers | None = None  # while it takes steps
    measured: Loss | None = None  # by the newest evaluation

    def __post_init__(self) -> None:
        self.saver = Saver(is_sharded(self.run.model))
        self.callbacks = Callbacks(self.run.config.training.callbacks, self.run.model, self.optimizer)

    def fit(self) -> None:
        """Train to the end, or to a signal, and leave a folder that can be sampled from and resumed.

        Raises Stopped after SIGINT, SIGTERM, SIGHUP, and when the reader has closed stdout; Diverged; and OSError.
        """
        with self.lock or nullcontext():
            self.take_steps()
            self.sample()

    def take_steps(self) -> None:
        """Step, evaluate, report, sample and save, each when it is due."""
        config = self.run.config.training
        first, objective = distributed.rank() == 0, self.objective
        reporter = Reporter(self.run.step, config.max_steps, config.eval_every, first, objective)
        self.say = reporter.say
        with closing(reporter), signals() as self.received, closing(self.saver), reaching_others(surely=False):
            try:
                names = config.loggers if distributed.rank() == 0 else ()
                loggers, running = Loggers(names, self.run.folder, self.run.step, self.say), self.callbacks.running
                with closing(loggers) as self.loggers, running(self.run.folder):
                    self.make_up_evaluation(reporter)
                    if not self.stops_early():  # after an evaluation that was made up for
                        with closing(self.open_log(METRICS)) as metrics:
                            self.loop(reporter, metrics)
            except Diverged:
                self.save_diverged()
                raise
            except RuntimeError:
                if self.received and config.compile:  # Ctrl-C also ended the C++ compiler that torch.compile started
                    raise Terminated(self.received[0]) from None
                raise

    def loop(self, reporter: Reporter, metrics: Log) -> None:
        """The steps that are left, up to a signal, or until patience ends or a callback stops it. Raises Stopped."""
        run, config, saved, asked = self.run, self.run.config.training, perf_counter(), self.callbacks.asked
        if "stop" in asked:  # after an evaluation that a signal had stopped; its checkpoint is there already
            return self.stop()
        validate = partial(self.validate, reporter)
        steps = fit(run.model, self.dataset, self.optimizer, config, self.history, validate, self.callbacks)
        for record, evaluation in steps:
            run.step = record.step
            self.report(record, evaluation, reporter, metrics)
            last = record.step == config.max_steps or (evaluation is not None and self.stops_early())
            if not record.newest:
                continue
            asked = self.callbacks.asked
            sampled = config.sample_every and record.step % config.sample_every == 0
            if (sampled or "sample" in asked) and not last:
                self.sample()
            overdue = perf_counter() - saved >= 60 * config.checkpoint_minutes
            signum, due = distributed.agree(self.noticed(reporter), overdue or self.saver.failed)
            due |= bool(config.keep.best) and evaluation is not None and evaluation == self.best
            if record.step % config.checkpoint_every == 0 or last or signum or due or asked & {"save", "stop"}:
                self.save(metrics)
                saved = perf_counter()
            if last or signum:
                self.saver.wait()
            if signum:
                distributed.wait_for_all()  # the first process is still saving
                raise Stopped(signum, run.folder)
            if last:
                break
            if "stop" in asked:
                return self.stop()

    def stop(self) -> None:
        """Say that a callback ends the training, once its checkpoint is on disk."""
        self.saver.wait()
        self.say(f"stopped after step {self.history.step}: a callback asks for it")

    @property
    def best(self) -> Evaluation | None:
        """The evaluation with the lowest validation loss so far."""
        return best_of(self.history.evaluations)

    def stops_early(self) -> bool:
        """Whether patience has ended before the last step; if so, a line says why."""
        config, step = self.run.config.training, self.history.step
        why = out_of_patience(self.history.evaluations, config.stop, config.warmup_steps)
        if stops := bool(why) and step < config.max_steps:
            self.say(f"stopped early after step {step}: {why}")
        return stops

    def noticed(self, reporter: Reporter) -> int:
        """The signal for which this process wants to stop, or 0."""
        return self.received[0] if self.received else reporter.reader_left * SIGPIPE

    def heard(self, together: bool) -> bool:
        """Whether this process has received a signal, or, where they act `together`, any of them."""
        return bool(distributed.largest(bool(self.received))) if together else bool(self.received)

    def make_up_evaluation(self, reporter: Reporter) -> None:
        """Evaluate after the last step of a resumed run, if a signal stopped that evaluation. Raises Stopped."""
        due = self.callbacks.awaited or evaluation_due(self.history.step, self.run.config.training)
        if not (self.history.losses and due):
            return
        try:
            evaluation = self.history.evaluated(self.validate(reporter))
            self.callbacks.after_evaluation(evaluation)
            values = self.callbacks.take_logged() | self.show(evaluation, reporter)
        except EvaluationStopped:
            signum, _ = distributed.agree(self.noticed(reporter), False)
            raise Stopped(signum, self.run.folder) from None
        if distributed.rank() == 0:
            try:
                complete_metrics(self.run.folder / METRICS, self.history.step, values)
                self.log({"step": self.history.step} | values)
            except OSError as error:
                self.say(f"warning: {self.run.folder / METRICS}: {error}; training goes on without this loss")
            self.draw_curves()

    def open_log(self, name: str) -> Log:
        """A file of the run's folder to append to; only the first of several processes writes it."""
        return Log(self.run.folder / name if distributed.rank() == 0 else Path(os.devnull), self.say)

    def validate(self, reporter: Reporter) -> float:
        """The exact validation loss. Raises EvaluationStopped after a signal."""
        config = self.run.config.training
        with reporter.timing_an_evaluation():
            known = self.expected is not None and self.expected.answers is not None
            self.measured = measure(
                self.run.model, self.dataset, "val", config, stop=lambda: bool(self.received), right=known
            )
        return self.measured.loss

    def report(self, record: Record, evaluation: Evaluation | None, reporter: Reporter, metrics: Log) -> None:
        """Show a step, and write it to metrics.jsonl."""
        line = self.callbacks.take_logged() | metrics_of(record, self.history)
        reporter.step(record, self.history.skipped)
        if evaluation is not None:
            line |= self.show(evaluation, reporter)
        metrics.write(json.dumps(line) + "\n")
        self.log(line)

    def log(self, line: dict[str, float]) -> None:
        """Give a line of metrics.jsonl to the loggers, one of an evaluation with the best step so far."""
        if self.loggers is not None:
            best = self.best if "val/loss" in line else None
            self.loggers.write(line if best is None else line | {"val/best": best[2], "val/best_step": best[0]})

    def show(self, evaluation: Evaluation, reporter: Reporter) -> dict[str, float]:
        """Show an evaluation, and return what metrics.jsonl says of it."""
        step, train_loss, val_loss = evaluation
        since, *_ = self.history.evaluations[-2] if len(self.history.evaluations) > 1 else (0,)
        above = None if self.expected is None else val_loss - self.expected.floor
        measured = replace(self.measured or Loss(val_loss, None), loss=val_loss)
        bits = "" if measured.bits_per_byte is None else f"{measured.bits_per_byte:.4f} bits a byte"
        beside = [bits if above is None else height(above, self.targets)]
        beside += [] if measured.right is None else [f"{measured.right:.3f} of the answers right"]
        best_step, _, best_loss = self.best or evaluation
        beside += [f"the best is {best_loss:.4f}, at step {best_step}"] if best_loss < val_loss else []
        reporter.evaluated(step, since, train_loss, val_loss, ", ".join(filter(None, beside)))
        self.warn_of_the_impossible()
        return measured.metrics() | ({} if above is None else {"val/above_floor": above})

    @property
    def targets(self) -> int:
        """How many targets have a known floor."""
        return 0 if self.expected is None else len(self.expected.ideal)

    def warn_of_the_impossible(self) -> None:
        """Print a warning at the first validation loss that is further below the floor than chance explains."""
        if self.expected is not None:
            *before, last = (loss - self.expected.floor for _, _, loss in self.history.evaluations)
            if is_impossible(last, self.targets) and not any(is_impossible(above, self.targets) for above in before):
                self.say(f"warning: step {self.history.step}: {explain_impossible(last)}")

    def sample(self) -> None:
        """Write a sample to the screen and to samples.txt; after a signal, write none."""
        sharded, first = is_sharded(self.run.model), distributed.rank() == 0
        if not (first or sharded):
            return
        try:
            written = self.run.stream(self.dataset.question)
            pieces = progress(written, "writing a sample") if first else written
            text = "".join(takewhile(lambda piece: not self.heard(sharded), pieces))
            text = "\n".join(filter(None, (self.dataset.question, text)))
        except UserError as error:  # the next loss shows the same problem
            self.say(f"warning: no sample at step {self.run.step}: {error}")
            return
        if self.received or not first:
            return
        try:
            with closing(self.open_log("samples.txt")) as file:
                file.write(f"--- step {self.run.step} ---\n{text}\n")
        except OSError as error:
            self.say(f"warning: {self.run.folder / 'samples.txt'}: {error}; training goes on without this sample")
        indented = "\n".join("    " + line for line in text.strip("\n").splitlines())
        self.say(f"sample at step {self.run.step}:\n{indented}")

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps besides tensors."""
        return asdict(self.history) | {"data": self.data} | self.callbacks.state()

    def save(self, metrics: Log) -> None:
        """Write a checkpoint, now or while training goes on, and the curves so far. Raises OSError, as `Saver` does."""
        if not self.saves:
            return
        if distributed.rank() == 0:
            metrics.sync()  # each step of a checkpoint has its line on disk, even if the power fails now
        folder, tensors = self.run.folder / CHECKPOINTS, self.tensors()
        keep = self.run.config.training.keep
        evaluations = tuple(self.history.evaluations) if keep.best else ()
        self.saver.save(folder, self.history.step, *tensors, self.state(), self.seal, keep.newest, evaluations)
        self.callbacks.call("after_save", self.history.step, thorough=True)
        if distributed.rank() == 0:
            self.draw_curves()

    @property
    def objective(self) -> str:
        """The name of the training loss, where it is not the next token's; else ""."""
        kind = self.run.config.training.objective.component
        return "" if kind.loss is NextToken.loss else str(kind.kind)

    @property
    def saves(self) -> bool:
        """Whether this process takes part in a save: the first one, or, for a sharded model, all."""
        return distributed.rank() == 0 or self.saver.sharded

    def tensors(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The weights and the optimizer's state, as this process holds them."""
        return checkpoint.tensors_of(self.run.model), self.optimizer.state()

    def draw_curves(self) -> None:
        """Draw the losses so far."""
        try:
            trained = f" (training: {self.objective})" * bool(self.objective)
            title = f"{self.run.folder.name}: loss in nats a token{trained}"
            curves = loss_curves(self.run.folder / METRICS, title)
            write_whole(self.run.folder / "loss.svg", curves)
        except OSError as error:
            self.say(f"warning: {self.run.folder / 'loss.svg'}: {error}")

    def save_diverged(self) -> None:
        """Save the state before the step that diverged, and its batch, for inspection; checkpoints stay as they are."""
        config, folder, step = self.run.config.training, self.run.folder / "diverged", self.history.step
        if not self.saves:
            return
        try:
            self.saver.wait()
            saved = self.saver.write(folder, step, *self.tensors(), self.state(), self.seal)
            if distributed.rank() > 0:
                return
            x, y = self.dataset.batch("train", step, config.batch_size, config.seed)  # (B, T), (B, T)
            begins = self.dataset.begins("train", step, config.batch_size, config.seed)  # (B, T)
            batch = {"x": x, "y": y} | ({} if begins is None else {"begins": begins})
            checkpoint.write_tensors(batch, folder / f"batch-{step:06d}.safetensors")
            self.say(f"kept for inspection: {saved}, and the batch beside it")
        except OSError as error:
            self.say(f"warning: the state could not be kept for inspection: {error}")

    def verdict(self) -> str:
        """The verdict on the validation losses, and, where the floor is known, what the model remembers.

        Every process must call this, because a sharded model computes in all of them; only the first gets the text.
        """
        if distributed.rank() > 0 and not is_sharded(self.run.model):
            return ""
        if self.expected is None:
            return verdict(self.history.evaluations, self.left_of)
        measured = self.run.model, self.dataset, self.run.config.training, self.expected
        if distributed.rank() > 0:
            return "".join("" for _ in predict_batches(*measured))
        predictions = predict(*measured)
        result = score(predictions, self.expected)
        judged = verdict(self.history.evaluations, self.left_of)
        described = describe(result, "character" if self.expected.answers is None else "token")
        return f"{explain_impossible(result.above or 0.0) if result.impossible else judged}\n{described}"

    def left_of(self, step: int) -> str:
        """What is left of the weights of a step, as the end of a sentence."""
        folder = self.run.folder / CHECKPOINTS
        steps = sorted(map(checkpoint.step_of, checkpoint.checkpoints(folder)))
        if step in steps:
            return f". The weights of step {step} are kept: --run {self.run.folder}@{step}"
        others = f"; those of step {' and '.join(map(str, steps))} are, in {folder}" * bool(steps)
        return f". The weights of step {step} are not kept (training.keep.best=1 keeps them){others}"
