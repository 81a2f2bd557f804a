"""Train a model.

python scripts/train.py --config tiny.yaml                                  # a small GPT in less than a minute
python scripts/train.py --config tiny.yaml model.attention=average_softmax  # swap the attention
python scripts/train.py --resume                                            # go on with the newest run
python scripts/train.py --from-run tiny data.source=my.txt                  # a new run, with the weights of one
python scripts/train.py --from-hf smollm2 data.source=my.txt                # with those of an imported model
python scripts/train.py --config tiny.yaml --profile                        # where a step's time goes
python scripts/train.py --config tiny.yaml --plain                          # no kernels: the textbook's forms only
"""

import begin  # noqa: F401  before the imports that take seconds

# isort: split
import argparse
import os
import re
import sys
from pathlib import Path

from minigpt import command
from minigpt.config import options as config
from minigpt.system import places
from minigpt.system.errors import UserError
from minigpt.system.folder import check_name
from minigpt.training import distributed, profiler
from minigpt.training.assemble import RunConfig
from minigpt.training.report import say, say_once
from minigpt.training.run import Opened, newest_run, open_run
from minigpt.training.start import resume, start
from minigpt.training.swap import continued, tuned_name
from minigpt.training.trainer import Trainer


def main(arguments: argparse.Namespace) -> None:
    """Start or resume a run, train it, and report the result; or only show where a step's time goes."""
    if arguments.profile is not None:
        return profile(arguments)
    if arguments.resume is not None and arguments.config:
        raise UserError("--config and --resume: give one of them; a run is resumed with its own config")
    if arguments.resume is not None and arguments.name:
        raise UserError("--name and --resume: give one of them; a run is resumed under its own name")
    if arguments.resume is None and arguments.allow_data_change:
        raise UserError("--allow-data-change: give --resume as well; a new run may have any text")
    command.one_permission(arguments)
    if arguments.name:
        check_name(arguments.name, "a run")
    given = {"--resume": arguments.resume, "--from-run": arguments.from_run, "--from-hf": arguments.from_hf}
    if len(both := [option for option, value in given.items() if value is not None]) > 1:
        raise UserError(f"{' and '.join(both)}: give one of them; each says which weights to begin with")
    if arguments.resume is not None:
        folder, allowed = newest_run(arguments.resume), (arguments.allow_data_change, arguments.allow_leak)
        trainer = resume(folder, arguments.overrides, arguments.plugin, *allowed, skip_checks=arguments.skip_checks)
    elif arguments.from_run is not None or arguments.from_hf is not None:
        trainer = start_from(arguments)
    elif arguments.config:
        settings = config.load(RunConfig, arguments.config, arguments.overrides, say_once)
        name = arguments.name or Path(arguments.config).stem
        trainer = start(settings, name, arguments.plugin, arguments.allow_leak, skip_checks=arguments.skip_checks)
    else:
        raise UserError("give --config FILE to start a run (try --config tiny.yaml), or --resume to go on with one")
    trainer.fit()
    verdict = trainer.verdict()
    distributed.wait_for_all()  # a process that exits earlier could lose data that it is still sending
    if distributed.rank() > 0:
        return
    folder, history = trainer.run.folder, trainer.history
    skipped = f" ({history.skipped:,} of them skipped, for a gradient beyond float16)" * bool(history.skipped)
    say(f"done: {history.step} steps{skipped}, {history.tokens:,} tokens in {history.seconds:.0f} s of training")
    say(f"verdict: {verdict}")
    say(f"curves: {folder / 'loss.svg'}; text: {places.command('sample')} --run {folder}")


def start_from(arguments: argparse.Namespace) -> Trainer:
    """Make the trainer of a new run that starts with the weights of another run, or of a model, which is imported."""
    if arguments.from_hf is not None:
        source, settings = imported(arguments)
    else:
        source = open_run(newest_run(arguments.from_run))
        settings = continued(source.config, arguments.config, arguments.overrides, say_once)
    name = arguments.name or (Path(arguments.config).stem if arguments.config else tuned_name(source.folder))
    allow_leak, skip_checks = arguments.allow_leak, arguments.skip_checks
    return start(settings, name, arguments.plugin, allow_leak, skip_checks=skip_checks, source=source)


def imported(arguments: argparse.Namespace) -> tuple[Opened, RunConfig]:
    """Import a model as a run; returns the run, and the training's config, which is checked before weights are read.

    A run that was made from the same files before is used again.
    """
    if "RANK" in os.environ:
        raise UserError(
            f"--from-hf: import it first ({places.command('import_hf')}), then give --from-run to all processes"
        )
    from minigpt.hub.importer import located, name_of, open_source  # what only this needs: not for each training

    there = open_source(located(arguments.from_hf, say), None, say)
    settings = continued(there.config, arguments.config, arguments.overrides, say)
    folder = there.made_before()
    if folder is not None:
        say(f"run: {folder}, made of the same files before")
    return open_run(folder or there.make_run(name_of(arguments.from_hf), say)), settings


def profile(arguments: argparse.Namespace) -> None:
    """Show where a step's time goes; there is no run. Raises UserError for what belongs to a run."""
    options = {"--resume": arguments.resume is not None, "--name": arguments.name, "--allow-leak": arguments.allow_leak}
    options |= {"--from-run": arguments.from_run is not None, "--from-hf": arguments.from_hf is not None}
    options |= {"--allow-data-change": arguments.allow_data_change, "--skip-checks": arguments.skip_checks}
    for option, given in options.items():
        if given:
            raise UserError(f"--profile and {option}: give one of them; a profile makes no run")
    if not arguments.config:
        raise UserError("--profile: give --config FILE, the training to look at (try --config tiny.yaml)")
    if not re.fullmatch("[1-9][0-9]{0,5}", arguments.profile):
        found = f"found {arguments.profile!r}"
        raise UserError(f"--profile STEPS: expected a whole number of at least 1 and at most 999999, {found}")
    settings = config.load(RunConfig, arguments.config, arguments.overrides, say)
    profiler.show_profile(settings, int(arguments.profile))


if __name__ == "__main__":
    parser = command.parser("Train a model from a config. Arguments such as training.max_steps=50 override the config.")
    parser.add_argument("--config", help="a YAML file: a path, or a name of minigpt's")
    parser.add_argument("--name", default="", help="name of the run (default: the config's); numbered when taken")
    parser.add_argument(
        "--resume", nargs="?", const="", metavar="RUN", help="go on with a run (default: the newest) where it stopped"
    )
    what = "start a new run with the weights and the tokenizer of a run (default: the newest)"
    parser.add_argument("--from-run", nargs="?", const="", metavar="RUN", help=what)
    what = "the same with a model from elsewhere: what import_hf takes"
    parser.add_argument("--from-hf", metavar="DIR", help=what)
    parser.add_argument("--allow-data-change", action="store_true", help="resume although the text has changed")
    parser.add_argument("--plain", action="store_true", help="compute by the textbook's forms only: slower, and equal")
    parser.add_argument("--allow-leak", action="store_true", help="train even if an attention sees the future")
    parser.add_argument("--skip-checks", action="store_true", help="train without checking the model first")
    default = str(profiler.STEPS)
    what = f"show where a step's time goes, part by part, over STEPS steps (default: {default}); there is no run"
    parser.add_argument("--profile", nargs="?", const=default, metavar="STEPS", help=what)
    arguments, overrides = parser.parse_known_args()
    if command.is_override(arguments.resume):  # --resume training.max_steps=900: an override, not a run
        arguments.resume, overrides = "", [arguments.resume, *overrides]
    if command.is_override(arguments.from_run):
        arguments.from_run, overrides = "", [arguments.from_run, *overrides]
    if command.is_override(arguments.profile):
        arguments.profile, overrides = default, [arguments.profile, *overrides]
    command.no_leftovers(parser, overrides)
    arguments.overrides = [*overrides, "training.fast=false"] if arguments.plain else overrides
    sys.exit(command.execute(main, arguments))
