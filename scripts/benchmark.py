"""Measure minigpt on this machine beside nanoGPT's own code and transformers, in turn, within one run.

python scripts/benchmark.py time-to-loss --nanogpt ../nanoGPT            # whole trainings, from process start to end
python scripts/benchmark.py throughput --nanogpt ../nanoGPT              # tokens a second while training
python scripts/benchmark.py sampling --nanogpt ../nanoGPT --large        # tokens a second while writing
python scripts/benchmark.py attention                                    # every kind over contexts of 64 to 4096
python scripts/benchmark.py startup --nanogpt ../nanoGPT                 # seconds to the first step
python scripts/benchmark.py tricks                                       # what each part of minigpt/fast is worth
python scripts/benchmark.py device --nanogpt ../nanoGPT                  # all of a GPU in ten minutes, for a bug report
python scripts/benchmark.py shared --nanogpt ../nanoGPT                  # the times beside 0 to 8 busy neighbours

Each prints tables and writes runs/benchmark-SUITE.json. Nothing is written into the checkout of nanoGPT.
"""

import begin  # noqa: F401  before the imports that take seconds

# isort: split
import argparse
import sys
from pathlib import Path
from typing import Any

from benchmarks import attention, commands, device, shared, throughput, tricks
from benchmarks.report import Report
from minigpt import command
from minigpt.system.errors import UserError
from minigpt.training.report import say

MANY = 1_000_000  # steps, tokens, rounds, seeds: more would take a month
LARGEST = 2**15  # side of the square matrices for MFU: 4 GiB in float32
LONGEST = 2**20  # context
MOST_NEIGHBOURS = 1000
SUITES = {
    "time-to-loss": (commands.time_to_loss, "Whole trainings, from the start of a process to its end."),
    "throughput": (throughput.train, "Tokens a second while training."),
    "sampling": (throughput.sample, "Tokens a second while writing."),
    "attention": (attention.attention, "Every kind of attention over growing contexts."),
    "startup": (commands.startup, "Seconds to the first step."),
    "tricks": (tricks.tricks, "What each part of minigpt/fast is worth."),
    "device": (device.device, "Whether a GPU computes what the CPU does, and how fast: at most ten minutes."),
    "shared": (shared.shared, "The time of training and of writing beside busy neighbours."),
}


def main(arguments: argparse.Namespace) -> None:
    """Run a suite, print its tables and write its JSON."""
    check(**vars(arguments))
    report = Report(arguments)
    SUITES[arguments.suite][0](report)
    report.finish()
    say(report.text())
    say(f"\n{report.write()} has the numbers")


def check(square: int, **options: Any) -> None:
    """Raises UserError for a number that is too small or too large, and for an option without effect."""
    if not 0 <= square <= LARGEST:
        raise UserError(f"--square: expected a side of 1 to {LARGEST:,}, or 0 for one that suits the device")
    for option in ("repeat", "steps", "tokens", "seeds", "first_seed"):
        value, least = options.get(option), 0 if option == "first_seed" else 1
        if value is not None and not least <= value <= MANY:
            raise UserError(f"--{option.replace('_', '-')}: expected {least} to {MANY:,}, found {value}")
    if not all(1 <= length <= LONGEST for length in options.get("contexts", ())):
        raise UserError(f"--contexts: expected lengths of 1 to {LONGEST:,}, as in 64,128,256")
    if not all(0 <= number <= MOST_NEIGHBOURS for number in options.get("neighbours", ())):
        raise UserError(f"--neighbours: expected numbers of 0 to {MOST_NEIGHBOURS:,}, as in 0,1,2")
    command.effect("--long-config", bool(options.get("long_config")), "--equal-time", bool(options.get("equal_time")))


def lengths(text: str) -> list[int]:
    """The numbers in `64,128,256`."""
    return [int(word) for word in text.split(",")]


def words(text: str) -> list[str]:
    """The names in `linear,mamba2`."""
    return text.split(",")


def parser() -> argparse.ArgumentParser:
    """One subcommand for each suite: options that most suites have, and its own."""
    root = command.Parser(description="Measure minigpt beside nanoGPT and transformers.", allow_abbrev=False)
    subcommands = root.add_subparsers(dest="suite", required=True, metavar="SUITE")
    for name, (_, text) in SUITES.items():
        common: Any = {"parents": [command.parser(text)], "conflict_handler": "resolve", "allow_abbrev": False}
        suite = subcommands.add_parser(name, help=text, description=text, **common)
        if name not in ("time-to-loss", "device"):  # which have seeds, and no rounds
            add_number(suite, "--repeat", 3 if name == "shared" else 5, "rounds")
        suite.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"], help="where to compute")
        folder = "for the JSON file (default: runs)"
        suite.add_argument("--out", type=Path, default=Path("runs"), metavar="DIR", help=folder)
        suite.add_argument("--square", type=int, default=0, metavar="N", help="side of the square matrices for MFU")
        if name not in ("attention", "tricks"):
            suite.add_argument("--nanogpt", type=Path, metavar="DIR", help="a checkout of nanoGPT to compare with")
        add_own(name, suite)
    return root


def add_number(suite: argparse.ArgumentParser, option: str, default: int, text: str) -> None:
    """Add an option whose value is a number."""
    suite.add_argument(option, type=int, default=default, metavar="N", help=f"{text} (default: {default})")


def add_own(name: str, suite: argparse.ArgumentParser) -> None:
    """The options of one suite or two, by the suites' names."""
    if name in ("time-to-loss", "startup", "device"):
        suite.add_argument("--text", default="shakespeare", metavar="FILE", help="the text (default: shakespeare)")
    if name in ("time-to-loss", "startup"):
        config = "shakespeare_char_fast.yaml" if name == "time-to-loss" else "shakespeare_char_cpu.yaml"
        suite.add_argument("--config", default=config, metavar="FILE", help=f"of minigpt (default: {config})")
    if name == "time-to-loss":
        add_number(suite, "--seeds", 3, "how many seeds")
        add_number(suite, "--first-seed", 1, "the first of them")
        suite.add_argument("--steps", type=int, metavar="N", help="train both for N steps only")
        suite.add_argument("--equal-time", action="store_true", help="also train minigpt for as long as nanoGPT takes")
        suite.add_argument("--long-config", default="", metavar="FILE", help="the config for --equal-time")
    if name in ("tricks", "throughput"):
        add_number(suite, "--steps", 5 if name == "tricks" else 20, "steps a block")
    if name == "tricks":
        add_number(suite, "--tokens", 120, "tokens a block")
    if name == "device":
        suite.add_argument("--small", action="store_true", help="with small sizes, as on a CPU")
        parts = ", ".join(device.PARTS)
        suite.add_argument("--only", nargs="+", choices=device.PARTS, metavar="PART", help=f"some of {parts}")
    if name in ("throughput", "sampling"):
        suite.add_argument("--large", action="store_true", help="also measure a larger model")
    if name == "sampling":
        add_number(suite, "--tokens", 512, "tokens to write")
    if name == "shared":
        counts, default = [0, 1, 2, 4, 8], "default: 0,1,2,4,8"
        suite.add_argument("--neighbours", type=lengths, default=counts, metavar="N,N,...", help=default)
    if name == "attention":
        every, precisions = [2**n for n in range(6, 13)], ["auto", "float32", "bfloat16"]
        seconds, baseline = "most seconds for one cell (default: 20)", "beside multi_head (default: all)"
        suite.add_argument("--contexts", type=lengths, default=every, metavar="T,T,...", help="default: 64 to 4096")
        suite.add_argument("--limit", type=float, default=20.0, metavar="S", help=seconds)
        suite.add_argument("--kinds", type=words, default=(), metavar="K,K,...", help=baseline)
        suite.add_argument("--precision", default="auto", choices=precisions, help="of the products")


if __name__ == "__main__":
    sys.exit(command.execute(main, parser().parse_args()))
