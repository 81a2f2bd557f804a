"""Training from a notebook, as `scripts/train.py` does it.

    run = minigpt.train("tiny.yaml", "training.max_steps=200")    # overrides as on the command line
    run = minigpt.resume("runs/tiny")                             # after the stop button
    run = minigpt.fine_tune("runs/tiny", "data.source=my.txt")    # a new run that starts with its weights

A config may be built in Python too, as strictly as it is read from YAML; `options.to_yaml` and `options.load` turn one
into the other:

    model = minigpt.ModelConfig(n_layer=2, n_embd=64, attention=MultiHead.Config(n_head=2))
    run = minigpt.train(minigpt.RunConfig(model=model, training=minigpt.TrainingConfig(max_steps=200)), name="mine")

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
from minigpt.training.run import Run, load, newest_of, newest_run, open_run
from minigpt.training.swap import continued, tuned_name

if TYPE_CHECKING:
    from minigpt.training.trainer import Trainer


def train(
    config: str | Path | RunConfig,
    *overrides: str,
    name: str = "",
    plugins: Sequence[str | Path] = (),
    resume: bool = False,
) -> Run:
    """Train a model from a config (a path, a name in `configs/`, or options), and return the run, ready to write.

    `name`: the folder in `runs/` (default: the config's name, or `run`); if it exists, a number is added. With
    `resume`, a run of that name that has a checkpoint goes on from there, with these overrides, and one that has ended
    is loaded: so a notebook can be run again from its top. Plugins that were loaded before are recorded with those
    given here. Raises UserError, LeakError, LawError, Diverged, Stopped and OSError; with `resume`, CheckpointError.
    """
    from minigpt.training import start  # what only a training needs is not loaded with the package

    files, name = _loaded(plugins), name or ("run" if isinstance(config, RunConfig) else Path(config).stem)
    folder = newest_of(name) if resume else None
    if folder is None:
        settings = load_config(RunConfig, config, overrides, say)
        return _finished(start.start(settings, name, files, allow_leak=False))
    if start.has_ended(folder, overrides):
        return load(folder)
    return _finished(start.resume(folder, overrides, files, False, False))


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
