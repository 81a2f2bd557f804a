"""A small model trained in some seconds on the built-in stories, watched as it learns, and kept in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from minigpt.attention import Attention
from minigpt.comparison.data import expected_of, text_and_tokenizer
from minigpt.config.options import load as load_config
from minigpt.fast import make_fast
from minigpt.runs.assemble import RunConfig, assemble
from minigpt.runs.run import Run
from minigpt.system.waiting import progress
from minigpt.training.loop import evaluate, train

SMALL = (  # what differs from tiny.yaml
    "data.stories={count: 3000, validation: 100}",
    "training.batch_size=8",
    "training.device=cpu",
    "training.precision=float32",
    "sampling.max_tokens=120",
)


@dataclass(frozen=True)
class Watched:
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


def watch(steps: int, every: int, overrides: Sequence[str], attention: Attention.Config | None = None) -> Watched:
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
    for record in progress(train(model, dataset, optimizer, config.training), "training a small model", steps, "steps"):
        if record.step % every == 0:
            losses.append((record.step, evaluate(model, dataset, "val", config.training)))
    run = Run(Path("in memory"), config, tokenizer, make_fast(model, False).eval(), steps, [])
    return Watched(run, losses, expected.floor, len(expected.ideal))
