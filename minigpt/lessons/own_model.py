"""The model that a lesson looks at: the newest run, if it was trained on the stories, else a small one of its own.

The small one is trained once in a process, in some seconds, and is kept in memory: `runs/` stays as it is.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from minigpt.config.options import load as load_config
from minigpt.fast import make_fast
from minigpt.lessons.output import say
from minigpt.runs.assemble import RunConfig, assemble, open_text
from minigpt.runs.checkpoint import CheckpointError
from minigpt.runs.run import Run, load, newest_run
from minigpt.system.errors import UserError
from minigpt.system.waiting import progress
from minigpt.training.loop import train

STEPS = 250
SMALL = (  # what differs from tiny.yaml
    "data.stories={count: 3000, validation: 200}",
    "model.n_layer=2",
    "model.n_embd=64",
    "training.batch_size=8",
    "training.device=cpu",
    "training.precision=float32",
)


def own_run() -> Run:
    """The newest run in `runs/` that was trained on the built-in stories, on the CPU and in its plain forms.

    Where there is none, a small model with two layers of four heads is trained. A line says which it is.
    """
    try:
        run = load(newest_run(), "cpu", fast=False)
        if run.config.data.source == "stories":
            say(f"The model is that of your newest run, {run.folder}.")
            return run
        why = f"Your newest run, {run.folder}, has read another text than the stories"
    except (UserError, CheckpointError):
        why = "There is no run of yours here yet that can be read"
    advice = "With one of your own, from `python scripts/train.py --config tiny.yaml`, the lesson shows that."
    say(f"{why}, so a small model is trained for {STEPS} steps, which takes some seconds. {advice}")
    return small_run(STEPS)


@lru_cache(maxsize=1)
def small_run(steps: int) -> Run:
    """A small model, trained now: equal steps give an equal one."""
    config = load_config(RunConfig, "tiny.yaml", [*SMALL, f"training.max_steps={steps}"])
    corpus, tokenizer = open_text(config.data)
    dataset, model, optimizer = assemble(config, corpus, tokenizer)
    for _ in progress(train(model, dataset, optimizer, config.training), "training a small model", steps, "steps"):
        pass
    return Run(Path("in memory"), config, tokenizer, make_fast(model, False).eval(), steps, [])
