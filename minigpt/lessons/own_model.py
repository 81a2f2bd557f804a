"""The model that a lesson looks at: the newest run, if it was trained on the stories, else a small one of its own.

The small one is trained once in a process, in some seconds, and is kept in memory: `runs/` stays as it is.
"""

from __future__ import annotations

from functools import lru_cache

from minigpt.attention import Attention
from minigpt.lessons.output import say
from minigpt.lessons.small_training import watch
from minigpt.runs.checkpoint import CheckpointError
from minigpt.runs.run import Run, load, newest_run
from minigpt.system.errors import UserError
from minigpt.text.tokenizer import Char

STEPS = 250
SHAPE = ("model.n_layer=2", "model.n_embd=64")  # with four heads


def own_run(kind: type[Attention] = Attention) -> Run:
    """The newest run in `runs/`, if it reads the built-in stories by letters and all its attentions are of this kind.

    Else a small model with two layers of four heads is trained. The model is on the CPU, without the faster forms of
    `minigpt/fast`; a printed line says which of the two it is.
    """
    try:
        run = load(newest_run(), "cpu", fast=False)
        why = f"Your newest run, `{run.folder}`, does not read the stories letter by letter"
        if run.config.data.source == "stories" and isinstance(run.config.data.tokenizer, Char.Config):
            if all(isinstance(attention, kind) for attention in run.model.attentions()):
                say(f"The model is that of your newest run, `{run.folder}`.")
                return run
            why = f"Your newest run, `{run.folder}`, has other attentions than {kind.kind}"
    except (UserError, CheckpointError):
        why = "There is no run here yet that can be read"
    advice = "With a run of your own, from `python scripts/train.py --config tiny.yaml`, the lesson shows that one."
    say(f"{why}, so a small model is trained for {STEPS} steps, which takes some seconds. {advice}")
    return small_run(STEPS)


@lru_cache(maxsize=1)
def small_run(steps: int) -> Run:
    """A small model, trained now: equal steps give equal models."""
    return watch(steps, steps, SHAPE).run
