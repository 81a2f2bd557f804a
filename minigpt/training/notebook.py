"""Training from a notebook, as `scripts/train.py` does it.

    run = minigpt.train("tiny.yaml", "training.max_steps=200")    # overrides as on the command line
    run = minigpt.resume("runs/tiny")                             # after the stop button
    run = minigpt.fine_tune("runs/tiny", "data.source=my.txt")    # a new run that starts with its weights

The folder is made in `runs/` of the notebook's folder. The stop button (Ctrl-C) ends a training after its step, with a
checkpoint; the cell ends with `Stopped`, so that cells below it do not run.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from minigpt.config.options import load as load_config
from minigpt.system.plugin import PLUGINS, load_plugin
from minigpt.training.assemble import RunConfig
from minigpt.training.lora import merge
from minigpt.training.report import say
from minigpt.training.run import Run, newest_run, open_run
from minigpt.training.swap import continued, tuned_name

if TYPE_CHECKING:
    from minigpt.training.trainer import Trainer


def train(config: str | Path, *overrides: str, name: str = "", plugins: Sequence[str | Path] = ()) -> Run:
    """Train a model from a config (a path or a name in `configs/`), and return the run, ready to write.

    `name`: the folder in `runs/` (default: the config's name); if it exists, a number is added. Plugins that were
    loaded before are recorded with those given here. Raises UserError, LeakError, LawError, Diverged, Stopped and
    OSError.
    """
    from minigpt.training import start  # what only a training needs is not loaded with the package

    files = _loaded(plugins)
    settings = load_config(RunConfig, config, overrides, say)
    return _finished(start.start(settings, name or Path(config).stem, files, allow_leak=False))


def fine_tune(
    folder: str | Path,
    *overrides: str,
    config: str | Path | None = None,
    name: str = "",
    plugins: Sequence[str | Path] = (),
) -> Run:
    """Train a new run that starts with the weights of another, and return it, ready to write text.

    The other run, `folder` (a path, or a name in `runs/`), also gives tokenizer and model. Text and training are those
    of `config`, or else of that run. Overrides change them, and the model. `name`: the new folder (default:
    `tiny-tuned` for `tiny`). Raises what `train` raises, and CheckpointError.
    """
    from minigpt.training import start

    files, source = _loaded(plugins), open_run(newest_run(str(folder)))
    settings = continued(source.config, config, overrides, say)
    return _finished(start.start(settings, name or tuned_name(source.folder), files, allow_leak=False, source=source))


def resume(folder: str | Path = "", *overrides: str, plugins: Sequence[str | Path] = ()) -> Run:
    """Resume a run (a path, or a name in `runs/`; default: the newest) from its last good checkpoint, with overrides.

    Raises what `train` raises, and CheckpointError.
    """
    from minigpt.training import start

    files = _loaded(plugins)
    return _finished(start.resume(newest_run(str(folder)), overrides, files, False, False))


def _loaded(plugins: Sequence[str | Path]) -> list[Path]:
    """Load these plugins; returns the files of all plugins that are loaded."""
    for plugin in plugins:
        load_plugin(plugin)
    return list(PLUGINS.values())


def _finished(trainer: Trainer) -> Run:
    """Train to the end, print the verdict, and return the run."""
    trainer.fit()
    trainer.say(f"verdict: {trainer.verdict()}")
    if trainer.run.config.training.lora is not None:
        merge(trainer.run.model, trainer.run.config.training.lora)
    trainer.run.model.eval()
    return trainer.run
