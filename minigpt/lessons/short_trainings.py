"""Short trainings: what an attention learns in some seconds. Each is done once in a process and kept in memory."""

from __future__ import annotations

from functools import lru_cache

from minigpt.attention import Attention
from minigpt.lessons.new_stories import read_new_stories
from minigpt.lessons.small_training import Watched, watch
from minigpt.training.floor import Score

STEPS = 320  # of eight stories each


def watch_short(attention: Attention.Config, position: str = "learned", seed: int = 1) -> Watched:
    """Train a model of two layers, 64 wide; its loss is measured four times on the way.

    Equal seeds see the same stories in the same order, whatever the attention.
    """
    return _watched(attention, position, seed, STEPS)


@lru_cache(maxsize=32)
def _watched(attention: Attention.Config, position: str, seed: int, steps: int) -> Watched:
    return watch(steps, max(1, steps // 4), short(position, seed), attention)


def short(position: str = "learned", seed: int = 1) -> tuple[str, ...]:
    """What the config of a short training has beside its attention and its steps."""
    return "model.n_layer=2", "model.n_embd=64", f"model.position={position}", f"training.seed={seed}"


def train_short(attention: Attention.Config, position: str = "learned", seed: int = 1) -> Score:
    """The score of the model of `watch_short` on new stories."""
    run = watch_short(attention, position, seed).run
    return read_new_stories(run.model, run.config)
