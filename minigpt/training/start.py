"""How a training begins: a new run is prepared, or an old one is resumed after a stop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from minigpt.checks.causality import idle_positions
from minigpt.config.options import to_python
from minigpt.model.gpt import GPT, count_parameters
from minigpt.system.errors import UserError
from minigpt.system.folder import check_name
from minigpt.system.locks import Lock
from minigpt.system.strict_json import has_form
from minigpt.text.corpus import PRETRAINED, Corpus
from minigpt.text.tokenizer import Tokenizer
from minigpt.training import checkpoint, distributed, shards
from minigpt.training.assemble import RunConfig, assemble, open_text, whole_model
from minigpt.training.before_training import check_before_training
from minigpt.training.callbacks import is_state
from minigpt.training.checkpoint import Checkpoint, CheckpointError
from minigpt.training.floor import expectations
from minigpt.training.loggers import check_loggers
from minigpt.training.loop import History, products_of, with_threads
from minigpt.training.memory import outline
from minigpt.training.objective import NextToken
from minigpt.training.parallel import FSDP
from minigpt.training.report import Say, say, silent
from minigpt.training.run import (
    METRICS,
    RUNS,
    SKIPPED,
    TOKENIZER,
    Opened,
    Run,
    check_run,
    open_checkpoint,
    parted,
    read_config,
)
from minigpt.training.run_folder import Change, changed, cut_metrics, make_folder, record_changes, record_run
from minigpt.training.sharding import is_sharded
from minigpt.training.swap import move
from minigpt.training.trainer import Trainer
from minigpt.training.verdict import out_of_patience

STATE = {"seconds": float, "tokens": int, "losses": [float], "evaluations": [(int, float, float)], "data": str}
STATE |= {"skipped": int}
NO_CALLBACKS: dict[str, list[Any]] = {"states": [], "asked": []}  # of a checkpoint without
FIXED = ("training.optimizer", "training.optimizer.kind")  # on resuming; so are all of data, model and training.lora


def start(
    config: RunConfig,
    name: str,
    plugins: Sequence[Path],
    allow_leak: bool,
    say: Say = say,
    skip_checks: bool = False,
    source: Opened | None = None,
) -> Trainer:
    """Prepare a new run: read the text, build the model, check it (`before_training.py`), and make its folder.

    With a `source`, the new run has that run's tokenizer, and starts with those of its weights that fit. Raises
    UserError for options that cannot be used, LeakError for a model that sees the future, LawError for a kind that
    breaks a law, and OSError.
    """
    began, say = perf_counter(), say if distributed.rank() == 0 else silent
    check_name(name, "a run")
    check_loggers(config.training.loggers)
    if source is None:
        corpus, tokenizer = open_text(config.data)
    else:
        corpus, tokenizer = config.data.open(), source.tokenizer
    say(f"text: {corpus.description}; {tokenizer.vocab_size:,} tokens in the vocabulary")
    weights = None if source is None else partial(_take_weights, source=source, say=say)
    trainer = _make(config, tokenizer, corpus, RUNS / name, say, weights)
    checks = _check(trainer, allow_leak, skip_checks)
    if distributed.rank() == 0:
        both, every = trainer.dataset.in_both() if corpus.language is None else (0, 0)
        if both:
            say(f"note: {both:,} of the {every:,} documents for validation are also among those for training")
        trainer.run.folder = make_folder(name, say)
        trainer.lock = Lock(trainer.run.folder)
        trainer.seal = record_run(trainer.run, plugins, checks, source.origin() if source else None)
    say(f"run: {trainer.run.folder} (ready in {perf_counter() - began:.1f} s)")
    return trainer


def resume(
    folder: Path,
    overrides: Sequence[str],
    plugins: Sequence[Path],
    allow_data_change: bool,
    allow_leak: bool,
    say: Say = say,
    skip_checks: bool = False,
) -> Trainer:
    """Continue a run from its newest good checkpoint. One that is named, as in `parted`, must be that one.

    Overrides may change `training` and `sampling`, and the changes are listed and recorded. They may not change
    `model`, the tokenizer, the adapters or the kind of the optimizer, and the text only with `allow_data_change`.
    Raises UserError, LeakError and LawError (a plugin may have been edited), CheckpointError, and OSError.
    """
    say = say if distributed.rank() == 0 else silent
    folder, at = parted(folder)
    check_run(folder)
    with ExitStack() as after_an_error:  # a notebook keeps the error, and with it whatever belongs to this call
        lock = after_an_error.enter_context(Lock(folder)) if distributed.rank() == 0 else None
        messages = list[str]()
        config, changes = _changed_config(folder, overrides, allow_data_change, messages.append)
        shared = distributed.started()[1] > 1 and isinstance(config.training.parallel, FSDP.Config)
        saved, notes = open_checkpoint(folder, values=not shared)  # sharded: each process reads its slices later
        for note in notes:
            say(note)
        if at:
            _check_newest(folder, at, saved)
        check_loggers(config.training.loggers)
        tokenizer = Tokenizer.load(folder / TOKENIZER)
        check_state(saved)
        plain = checkpoint.without_adapters(saved, config.training.lora)
        checkpoint.check_fit(outline(config.model, tokenizer.vocab_size), plain.model, saved.path)
        _check_left(config, saved, folder)
        corpus = config.data.open()
        weights = (lambda model: None) if config.training.lora else None  # `_restore` copies them later
        trainer = _make(config, tokenizer, corpus, folder, say, weights)
        checks = _check(trainer, allow_leak, skip_checks)
        text = _changed_text(trainer, saved, allow_data_change)
        _restore(trainer, saved)
        trainer.lock = lock
        messages += [f"changed: {key}: {before} -> {after}" for key, before, after in changes]
        for line in messages:  # only now: a resume that was refused has changed nothing
            say(line)
        if text:
            say(f"changed: the text of {config.data.source} is not the one that {folder} was trained on")
        changes += [*text, *([("checks", "passed", checks)] if checks != "passed" else [])]
        if distributed.rank() == 0:
            cut_metrics(folder / METRICS, trainer.history.step, say)
            trainer.seal = record_changes(trainer.run, plugins, changes, say)
        say(f"run: {folder}, resumed after step {trainer.history.step}")
        after_an_error.pop_all()
    return trainer


def _check_newest(folder: Path, at: str, newest: Checkpoint) -> None:
    """Raises UserError if `at` names an earlier checkpoint: its steps and those that follow it would be mixed."""
    step, last = open_checkpoint(folder, values=False, at=at)[0].state["step"], newest.state["step"]
    if step != last:
        reason = f"a resume goes on from the newest step, {last}, and would lose what follows step {step}"
        hint = f"start a new run with its weights: --from-run {folder}@{at}"
        raise UserError(f"--resume: {folder}@{at}: {reason}: {hint}")


def _changed_config(
    folder: Path, overrides: Sequence[str], allow_data_change: bool, tell: Say
) -> tuple[RunConfig, list[Change]]:
    """A run's config with overrides, and what they change. Raises UserError for what cannot change."""
    old, config = read_config(folder), read_config(folder, overrides, tell)
    if old.data.source == PRETRAINED:
        reason = "it was imported, and has no training to go on with: start one with its weights"
        raise UserError(f"--resume: {folder}: {reason}: --from-run {folder.name} data.source=my.txt")
    changes = list(changed(to_python(old), to_python(config)))
    for key, before, after in changes:
        fixed = key.startswith(("data.", "model.", "training.lora")) or key in FIXED
        if fixed and not (allow_data_change and key == "data.source"):
            raise UserError(f"--resume: {key} cannot change from {before} to {after}: start a new run")
    return config, changes


def _changed_text(trainer: Trainer, saved: Checkpoint, allow_data_change: bool) -> list[Change]:
    """The change for a run's record if its text has changed, or []. Raises UserError if that is not allowed."""
    if saved.state["data"] == trainer.data:
        return []
    if not allow_data_change:
        reason = f"the text of {trainer.run.config.data.source} is not the one that {trainer.run.folder} was trained on"
        raise UserError(f"--resume: {reason}; --allow-data-change goes on with it")
    return [("data", saved.state["data"], trainer.data)]


def has_ended(folder: Path, overrides: Sequence[str]) -> bool:
    """Whether a run has done all that its config, with overrides, asks for; if it stopped early, a line says so.

    Raises UserError and CheckpointError.
    """
    saved, _ = open_checkpoint(folder, values=False)
    check_state(saved)
    config = read_config(folder, overrides)
    if why := _stopped_early(config, saved):
        say(f"{folder} stopped early after step {saved.state['step']}: {why}")
    return not _has_left(config, saved)


def _has_left(config: RunConfig, saved: Checkpoint) -> bool:
    """Whether a run has something left to do: steps, or its last evaluation, which was stopped."""
    done, steps = saved.state["step"], config.training.max_steps
    return (done < steps and not _stopped_early(config, saved)) or (done == steps and bool(saved.state["losses"]))


def _stopped_early(config: RunConfig, saved: Checkpoint) -> str:
    """Why a run ended at its checkpoint, before its last step, in words; "": it did not."""
    settings, done = config.training, saved.state["step"] >= config.training.max_steps
    return "" if done else out_of_patience(saved.state["evaluations"], settings.stop, settings.warmup_steps)


def _check_left(config: RunConfig, saved: Checkpoint, folder: Path) -> None:
    """Raises UserError if the run has nothing left to do."""
    done, steps, stop = saved.state["step"], config.training.max_steps, config.training.stop
    if stop and (why := _stopped_early(config, saved)):
        hint = f"to go on, give training.stop.patience={2 * stop.patience} or training.stop=null"
        raise UserError(f"--resume: {folder} stopped early after step {done}: {why}; {hint}")
    if not _has_left(config, saved):
        ended = steps == read_config(folder).training.max_steps
        work = f"all its {steps} steps" if ended else f"{done} steps, and training.max_steps={steps} leaves none to do"
        raise UserError(f"--resume: {folder} has done {work}; give it more, as in training.max_steps={2 * done}")


def _make(
    config: RunConfig,
    tokenizer: Tokenizer,
    corpus: Corpus,
    folder: Path,
    say: Say,
    weights: Callable[[GPT], None] | None = None,
) -> Trainer:
    """Make the trainer of a run. In its config, the number of threads replaces `auto`."""
    config = replace(config, training=with_threads(config.training))
    distributed.start(config.training.device)
    processes = distributed.world()
    distributed.check_rows(config.training.batch_size, processes)
    dataset, model, optimizer = assemble(config, corpus, tokenizer, weights=weights)
    for line in dataset.about_talks():
        say(line)
    for line in idle_positions(whole_model(model, config)):
        say(f"note: {line}; training goes on without it")
    parts = ", ".join(f"{part} {count:,}" for part, count in count_parameters(model).items() if count)
    together = f", {processes} processes" if processes > 1 else ""
    threads = f", threads: {config.training.threads}" if model.device.type == "cpu" else ""
    scaled = ", in float16" * (products_of(config.training, model) == torch.float16)
    where = f"on {model.device}{scaled}{together}{threads}"
    say(f"model: {sum(count_parameters(model).values()):,} parameters ({parts}) {where}")
    kind = config.training.objective.component
    if kind is not NextToken:
        say(f"objective: {kind.kind}, which training losses are of; validation losses are of the next token")
    if config.training.lora is not None:
        trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
        say(f"adapters: {trained:,} parameters are trained, all others stay")
    run, expected = Run(folder, config, tokenizer, model, 0, []), expectations(corpus, tokenizer)
    return Trainer(run, dataset, optimizer, corpus.digest, say, expected=expected)


def _take_weights(model: GPT, source: Opened, say: Say) -> None:
    """Copy those weights of a run that fit into a new model. Raises UserError if none fits."""
    moved = move(model, source.saved.model, source.outline())
    if not (moved.kept or moved.repeated):
        raise UserError(f"--from-run: no weight of {source.folder} fits this model: leave model.n_embd as it is")
    say(f"weights: those of {source.folder} after step {source.saved.state['step']}")
    for line in moved.lines() if moved.fresh or moved.dropped or moved.repeated else ():
        say(line)


def _check(trainer: Trainer, allow_leak: bool, skip_checks: bool) -> str:
    """Check the model before its first step, and print the notes. Returns the result of the checks for the record."""
    if skip_checks:
        trainer.say("note: the model is not checked before this training (--skip-checks)")
        return SKIPPED
    config, model = trainer.run.config, whole_model(trainer.run.model, trainer.run.config)
    for note in check_before_training(model, trainer.dataset, config.training, allow_leak):
        trainer.say(f"note: {note}")
    return "passed, with --allow-leak" if allow_leak else "passed"


def check_state(saved: Checkpoint) -> None:
    """Raises CheckpointError unless a checkpoint has what `Trainer.state` writes."""
    if "data" not in saved.state and not saved.optimizer:  # a run of a comparison
        raise CheckpointError(f"{saved.path}: saved without the optimizer's state, it cannot be trained further")
    if not has_form(saved.state, STATE) or not is_state(saved.state.get("callbacks", NO_CALLBACKS)):
        raise CheckpointError(f"{saved.path / 'state.json'}: not the state of a training")


def _restore(trainer: Trainer, saved: Checkpoint) -> None:
    """Copy weights, optimizer state and history from a checkpoint into a trainer. Raises CheckpointError."""
    state = saved.state
    if distributed.largest(state["step"]) != -distributed.largest(-state["step"]):
        raise CheckpointError(f"{saved.path}: another process cannot read it, or finds a newer one: start them again")
    if trainer.optimizer.has_state and not saved.optimizer:
        raise CheckpointError(f"{saved.path}: the optimizer's state is empty")
    if is_sharded(trainer.run.model):
        shards.fill(trainer.run.model, trainer.optimizer, saved)
    else:
        checkpoint.fill(trainer.run.model, saved.model, saved.path)
        trainer.optimizer.load_state(saved.optimizer)
    evaluations = [(step, train_loss, val_loss) for step, train_loss, val_loss in state["evaluations"]]
    counts, losses = (state["step"], state["seconds"], state["tokens"]), list(state["losses"])
    trainer.history = History(*counts, losses, evaluations, state["skipped"])
    trainer.run.step = state["step"]
    trainer.callbacks.restore(state.get("callbacks", NO_CALLBACKS))
