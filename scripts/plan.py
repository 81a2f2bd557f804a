"""What a training would cost: memory by part, operations, time, the largest micro-batch that fits. Nothing is trained.

python scripts/plan.py --config tiny.yaml                                   # on this machine
python scripts/plan.py --config gpt2.yaml --hardware 8xA100
python scripts/plan.py --config gpt2.yaml --memory 24GB training.micro_batch_size=8
python scripts/plan.py --config gpt2.yaml --hardware 8xA100 --ranks 1,2,4,8
"""

import begin  # noqa: F401  before the imports that take seconds

# isort: split
import argparse
import re
import sys

from minigpt import command
from minigpt.config import options as config
from minigpt.system.errors import UserError
from minigpt.system.waiting import heartbeat
from minigpt.training import distributed
from minigpt.training.assemble import RunConfig, vocabulary_of
from minigpt.training.hardware import read_hardware, read_memory, this_machine
from minigpt.training.plan import MFU, make_plan, peaks_by_ranks
from minigpt.training.plan_in_words import as_text, by_ranks
from minigpt.training.report import say


def main(arguments: argparse.Namespace) -> None:
    """Print the plan. Raises UserError."""
    if arguments.hardware and arguments.memory:
        raise UserError("--hardware and --memory: give one of them")
    for option, given in (("--price", arguments.price is not None), ("--mfu", arguments.mfu is not None)):
        command.effect(option, given, "--hardware", bool(arguments.hardware))
    mfu = MFU if arguments.mfu is None else arguments.mfu
    if not 0 < mfu <= 1:
        raise UserError(f"--mfu: expected a share of the device's best, above 0 and at most 1, found {mfu:g}")
    counts = read_ranks(arguments.ranks)
    devices, device = read_hardware(arguments.hardware) if arguments.hardware else (1, this_machine())
    device = read_memory(arguments.memory) if arguments.memory else device
    settings = config.load(RunConfig, arguments.config, arguments.overrides, say)
    distributed.check_rows(settings.training.batch_size, max(counts, default=1))  # before any step is simulated
    with heartbeat("simulating a step"):
        vocab_size = vocabulary_of(settings.data)
        plan = make_plan(settings.model, vocab_size, settings.training, device, devices)
    say(as_text(plan, mfu, arguments.price))
    with heartbeat("simulating a step for each number of processes"):
        peaks = list(peaks_by_ranks(settings.model, vocab_size, settings.training, device.is_gpu, counts))
    if peaks:
        say("\n".join(by_ranks(peaks)))


def read_ranks(text: str) -> list[int]:
    """`1,2,8` -> the numbers. Raises UserError."""
    if text and not re.fullmatch(r"[1-9][0-9]{0,3}(,[1-9][0-9]{0,3}){0,9}", text):
        raise UserError(f"--ranks {text[:40]!r}: expected at most ten numbers of processes, such as 1,2,4,8")
    return [int(number) for number in text.split(",")] if text else []


if __name__ == "__main__":
    parser = command.parser("Say what a training would cost. Arguments such as model.n_layer=8 override the config.")
    parser.add_argument("--config", required=True, help="a YAML file: a path, or a name of minigpt's")
    parser.add_argument("--hardware", default="", metavar="NxDEVICE", help="such as 8xH100 (default: this machine)")
    parser.add_argument("--memory", default="", metavar="SIZE", help="of one GPU, such as 24GB, in place of --hardware")
    what = "also a table of the peak by the number of processes that share the model (fsdp), such as 1,2,4,8"
    parser.add_argument("--ranks", default="", metavar="N,N...", help=what)
    what = f"the share of a device's best that the training reaches (default: {MFU})"
    parser.add_argument("--mfu", type=float, metavar="SHARE", help=what)
    parser.add_argument("--price", type=float, metavar="SUM", help="of one device for one hour, in any currency")
    arguments, overrides = parser.parse_known_args()
    command.no_leftovers(parser, overrides)
    arguments.overrides = overrides
    sys.exit(command.execute(main, arguments))
