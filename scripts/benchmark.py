"""Measure minigpt on this machine beside nanoGPT's own code and transformers, in turn, within one run.

python scripts/benchmark.py time-to-loss --nanogpt ../nanoGPT            # whole trainings, from process start to end
python scripts/benchmark.py throughput --nanogpt ../nanoGPT              # tokens a second while training
python scripts/benchmark.py sampling --nanogpt ../nanoGPT --large        # tokens a second while writing
python scripts/benchmark.py attention                                    # every kind over contexts of 64 to 4096
python scripts/benchmark.py startup --nanogpt ../nanoGPT                 # seconds to the first step
python scripts/benchmark.py tricks                                       # what each part of minigpt/fast is worth
python scripts/benchmark.py shared --nanogpt ../nanoGPT                  # the times beside 0 to 8 busy neighbours

Each prints tables and writes runs/benchmark-SUITE.json. Nothing is written into the checkout of nanoGPT.
"""

import begin  # noqa: F401  before the imports that take seconds

# isort: split
import argparse
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks import attention, sampling, shared, startup, throughput, time_to_loss, tricks
from benchmarks.report import Report
from benchmarks.setting import Setting, find_text
from minigpt import command
from minigpt.runs.report import say
from minigpt.system.errors import UserError
from minigpt.training.loop import choose_device

MANY = 1_000_000  # steps, tokens, rounds, seeds: more would take a month
MOST_NEIGHBOURS = 1000
LARGEST = 2**15  # side of the square matrices for MFU: 4 GiB in float32


def main(arguments: argparse.Namespace) -> None:
    """Run a suite, print its tables and write its JSON."""
    if not 0 <= arguments.square <= LARGEST:
        raise UserError(f"--square: expected a side of 1 to {LARGEST:,}, or 0 for one that suits the device")
    for option in ("repeat", "steps", "tokens", "large_tokens", "seeds"):
        value = getattr(arguments, option, None)
        if value is not None and not 1 <= value <= MANY:
            raise UserError(f"--{option.replace('_', '-')}: expected 1 to {MANY:,}, found {value}")
    for option, other in (("--long-config", "--equal-time"), ("--large-tokens", "--large")):
        given, there = (getattr(arguments, name[2:].replace("-", "_"), None) for name in (option, other))
        command.effect(option, bool(given), other, bool(there))
    said = shlex.join(["python", "scripts/benchmark.py", *sys.argv[1:]])
    device = arguments.device if arguments.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    setting = Setting(
        device=choose_device(device),
        command=said,
        repeat=getattr(arguments, "repeat", 1),
        plugins=arguments.plugin,
        nanogpt=getattr(arguments, "nanogpt", None),
        transformers=arguments.suite in ("throughput", "sampling", "startup"),
        square=arguments.square,
    )
    report = run_suite(setting, arguments)
    report.finish()
    say(report.text())
    say(f"\n{report.write(arguments.out)} has the numbers")


def run_suite(setting: Setting, given: argparse.Namespace) -> Report:
    """Run the suite that the arguments name."""
    if given.suite == "time-to-loss":
        if not 0 <= given.first_seed <= MANY:
            raise UserError(f"--first-seed: expected 0 to {MANY:,}, found {given.first_seed}")
        seeds = range(given.first_seed, given.first_seed + given.seeds)
        configs = given.config, given.long_config
        return time_to_loss.run(setting, find_text(given.text), *configs, seeds, given.steps, given.equal_time)
    if given.suite == "throughput":
        return throughput.run(setting, given.steps, given.large)
    if given.suite == "sampling":
        return sampling.run(setting, given.tokens, given.large, given.large_tokens or 200)
    if given.suite == "shared":
        if not all(0 <= number <= MOST_NEIGHBOURS for number in given.neighbours):
            raise UserError(f"--neighbours: expected numbers of 0 to {MOST_NEIGHBOURS:,}, as in 0,1,2")
        return shared.run(setting, given.neighbours)
    if given.suite == "attention":
        return attention.run(setting, given.contexts, given.limit, given.kinds, given.precision)
    if given.suite == "tricks":
        return tricks.run(setting, given.steps, given.tokens)
    return startup.run(setting, find_text(given.text), given.config)


def lengths(text: str) -> list[int]:
    """The numbers in `64,128,256`."""
    return [int(word) for word in text.split(",")]


def words(text: str) -> list[str]:
    """The names in `linear,mamba2`."""
    return text.split(",")


def parser() -> argparse.ArgumentParser:
    """One subcommand for each suite: options of its own, and those that all have."""
    made = command.Parser(description="Measure minigpt beside nanoGPT and transformers.", allow_abbrev=False)
    suites = made.add_subparsers(dest="suite", required=True, metavar="SUITE")
    added = {}
    for name, what in SUITES.items():
        alike: Any = {"parents": [command.parser(what)], "conflict_handler": "resolve"}
        added[name] = suites.add_parser(name, help=what, description=what, allow_abbrev=False, **alike)
        add_common(name, added[name])
    add_own(added)
    return made


def add_common(name: str, one: argparse.ArgumentParser) -> None:
    """The options that most suites have."""
    if name != "time-to-loss":  # which has seeds
        rounds = 3 if name == "shared" else 5
        one.add_argument("--repeat", type=int, default=rounds, metavar="N", help=f"rounds (default: {rounds})")
    one.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"], help="where to compute")
    one.add_argument("--out", type=Path, default=Path("runs"), metavar="DIR", help="for the JSON file (default: runs)")
    one.add_argument("--square", type=int, default=0, metavar="N", help="side of the square matrices for MFU")
    if name not in ("attention", "tricks"):
        one.add_argument("--nanogpt", type=Path, metavar="DIR", help="a checkout of nanoGPT to compare with")


def add_own(added: Mapping[str, argparse.ArgumentParser]) -> None:
    """The options of one suite or two, by the suites' names."""
    for name, config in (("time-to-loss", "shakespeare_char_fast.yaml"), ("startup", "shakespeare_char_cpu.yaml")):
        added[name].add_argument(
            "--text", default="shakespeare", metavar="FILE", help="the text (default: shakespeare)"
        )
        added[name].add_argument("--config", default=config, metavar="FILE", help=f"of minigpt (default: {config})")
    whole = added["time-to-loss"]
    whole.add_argument("--seeds", type=int, default=3, metavar="N", help="how many seeds (default: 3)")
    whole.add_argument("--first-seed", type=int, default=1, metavar="N", help="the first of them (default: 1)")
    whole.add_argument("--steps", type=int, metavar="N", help="train both for N steps only")
    whole.add_argument("--equal-time", action="store_true", help="also train minigpt for as long as nanoGPT takes")
    whole.add_argument("--long-config", default="", metavar="FILE", help="the config for --equal-time")
    added["tricks"].add_argument("--steps", type=int, default=5, metavar="N", help="steps a block (default: 5)")
    added["tricks"].add_argument("--tokens", type=int, default=120, metavar="N", help="tokens a block (default: 120)")
    added["throughput"].add_argument("--steps", type=int, default=20, metavar="N", help="steps a block (default: 20)")
    for name in ("throughput", "sampling"):
        added[name].add_argument("--large", action="store_true", help="also measure a larger model")
    writing = added["sampling"]
    writing.add_argument("--tokens", type=int, default=512, metavar="N", help="tokens to write (default: 512)")
    writing.add_argument("--large-tokens", type=int, metavar="N", help="by the larger model (default: 200)")
    beside = added["shared"]
    many = list(shared.NEIGHBOURS)
    beside.add_argument("--neighbours", type=lengths, default=many, metavar="N,N,...", help="default: 0,1,2,4,8")
    kinds, every = added["attention"], list(attention.CONTEXTS)
    kinds.add_argument("--contexts", type=lengths, default=every, metavar="T,T,...", help="default: 64 to 4096")
    kinds.add_argument("--limit", type=float, default=20.0, metavar="S", help="most seconds for one cell (default: 20)")
    kinds.add_argument("--kinds", type=words, default=(), metavar="K,K,...", help="beside multi_head (default: all)")
    kinds.add_argument("--precision", default="auto", choices=["auto", "float32", "bfloat16"], help="of the products")


SUITES = {
    "time-to-loss": "Whole trainings, from the start of a process to its end.",
    "throughput": "Tokens a second while training.",
    "sampling": "Tokens a second while writing.",
    "attention": "Every kind of attention over growing contexts.",
    "startup": "Seconds to the first step.",
    "tricks": "What each part of minigpt/fast is worth.",
    "shared": "The time of training and of writing beside busy neighbours.",
}

if __name__ == "__main__":
    sys.exit(command.execute(main, parser().parse_args()))
