"""The models of the lessons: the newest run, or small ones that are trained in some seconds on the built-in stories.

The small ones are trained once in a process and kept in memory: `runs/` stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from minigpt.attention import Attention
from minigpt.comparison.data import expected_of, text_and_tokenizer
from minigpt.config.options import load as load_config
from minigpt.fast import make_fast
from minigpt.learning.languages import text
from minigpt.learning.output import say
from minigpt.model import GPT
from minigpt.system.errors import UserError
from minigpt.system.places import command
from minigpt.system.waiting import progress
from minigpt.text.dataset import Dataset
from minigpt.text.tokenizer import Char
from minigpt.training.assemble import RunConfig, assemble
from minigpt.training.checkpoint import CheckpointError
from minigpt.training.floor import Score, predict, score
from minigpt.training.loop import evaluate, train
from minigpt.training.run import Run, load, newest_run

SMALL = (  # what differs from tiny.yaml
    "data.stories={count: 3000, validation: 100}",
    "training.batch_size=8",
    "training.device=cpu",
    "training.precision=float32",
    "sampling.max_tokens=120",
)
SHAPE = ("model.n_layer=2", "model.n_embd=64")
OWN_STEPS = 250
SHORT_STEPS = 320  # of eight stories each
STORIES = 100  # of validation; at most so many are read


@dataclass(frozen=True)
class WatchedTraining:
    """A trained model, and its exact validation losses on the way, in nats a character."""

    run: Run
    losses: list[tuple[float, float]]  # (step, loss)
    floor: float  # the best possible loss
    targets: int  # how many characters the loss is a mean of


def small_config(overrides: Sequence[str], attention: Attention.Config | None = None) -> RunConfig:
    """The config of tiny.yaml, with what SMALL changes and with these overrides.

    `attention` are options of any kind, such as a class in a notebook; it has its own default for every option that is
    not given, also for those that tiny.yaml sets.
    """
    config = load_config(RunConfig, "tiny.yaml", [*SMALL, *overrides])
    return config if attention is None else replace(config, model=replace(config.model, attention=attention))


def watch(
    steps: int, every: int, overrides: Sequence[str], attention: Attention.Config | None = None
) -> WatchedTraining:
    """Train a model of `small_config`, and measure its loss every so many steps.

    Afterwards the model has no faster forms. Nothing is checked before the first step: an attention that sees the
    future is trained too. Equal arguments give equal models.
    """
    config = small_config([*overrides, f"training.max_steps={steps}"], attention)
    corpus, tokenizer = text_and_tokenizer(config.data)
    dataset, model, optimizer = assemble(config, corpus, tokenizer)
    expected = expected_of(config.data)
    assert expected is not None, "the stories have a floor"
    losses = list[tuple[float, float]]()
    records = train(model, dataset, optimizer, config.training)
    for record in progress(records, text("training a small model"), steps, text("steps")):
        if record.step % every == 0:
            losses.append((record.step, evaluate(model, dataset, "val", config.training)))
    run = Run(Path("in memory"), config, tokenizer, make_fast(model, False).eval(), steps, [])
    return WatchedTraining(run, losses, expected.floor, len(expected.ideal))


def own_run(kind: type[Attention] = Attention) -> Run:
    """The newest run in `runs/`, if it reads the built-in stories by letters and all its attentions are of this kind.

    Else a small model with two layers of four heads is trained. The model is on the CPU, without the faster forms of
    `minigpt/fast`; a printed line says which of the two it is.
    """
    try:
        run = load(newest_run(), "cpu", fast=False)
        why = text("Your newest run, `{folder}`, does not read the stories letter by letter", folder=run.folder)
        if run.config.data.source == "stories" and isinstance(run.config.data.tokenizer, Char.Config):
            if all(isinstance(attention, kind) for attention in run.model.attentions()):
                say(text("The model is that of your newest run, `{folder}`.", folder=run.folder))
                return run
            why = text(
                "Your newest run, `{folder}`, has other attentions than {kind}", folder=run.folder, kind=kind.kind
            )
    except (UserError, CheckpointError):
        why = text("There is no run here yet that can be read")
    advice = text(
        "With a run of your own, from `{command} --config tiny.yaml`, the lesson shows that one.",
        command=command("train"),
    )
    sentence = "{why}, so a small model is trained for {steps} steps, which takes some seconds. {advice}"
    say(text(sentence, why=why, steps=OWN_STEPS, advice=advice))
    return _watched_once(OWN_STEPS, OWN_STEPS, SHAPE, None).run


@lru_cache(maxsize=32)
def _watched_once(
    steps: int, every: int, overrides: tuple[str, ...], attention: Attention.Config | None
) -> WatchedTraining:
    return watch(steps, every, overrides, attention)


def watch_short(attention: Attention.Config, position: str = "learned", seed: int = 1) -> WatchedTraining:
    """Train a model of two layers, 64 wide; its loss is measured four times on the way.

    Equal seeds see the same stories in the same order, whatever the attention.
    """
    return _watched_once(SHORT_STEPS, max(1, SHORT_STEPS // 4), short(position, seed), attention)


def short(position: str = "learned", seed: int = 1) -> tuple[str, ...]:
    """The config of a short training, beside its attention and its steps."""
    return *SHAPE, f"model.position={position}", f"training.seed={seed}"


def train_short(attention: Attention.Config, position: str = "learned", seed: int = 1) -> Score:
    """The score of the model of `watch_short` on new stories."""
    run = watch_short(attention, position, seed).run
    return read_new_stories(run.model, run.config)


def read_new_stories(model: GPT, config: RunConfig) -> Score:
    """The score over the first validation stories. Its `names` are empty where a token is not a character."""
    corpus, tokenizer = text_and_tokenizer(config.data)
    aligned = Dataset(replace(config.data, windows="documents"), corpus, tokenizer, config.model.block_size)
    settings = replace(config.training, precision="float32", batch_size=STORIES)
    expected = expected_of(config.data)
    return score(predict(model, aligned, settings, expected, batches=1), expected)
