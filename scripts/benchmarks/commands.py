"""Commands as users start them: whole trainings to a loss, and start-up. All take turns, from the start of a process.

Time to loss: the recipe for a laptop CPU in nanoGPT's README beside a config of minigpt, for each seed, to the end of
the process, including imports. The exact validation loss is computed afterwards in float32, for both over the same
targets: all of them, in separate windows of 64.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import trainings
from benchmarks.processes import WorkerProcess, in_turn, take_turns, time_command
from benchmarks.report import Report, Row, Spread, columns
from benchmarks.throughput import PASSES, flops_per_token
from minigpt.seeing.cost import cost
from minigpt.system.errors import UserError
from minigpt.system.process import python_command
from minigpt.text.dataset import Dataset
from minigpt.training import run as runs
from minigpt.training.loop import evaluate
from minigpt.training.report import read_metrics, say

RUNS = columns(
    "program=who | seed:d | seconds:.2f | loss:.4f | parameters:,d | steps:,d | type=precision"
    " | start-up=startup:.2f | training:.2f | rest:.2f | MFU=mfu:.1%"
)
SUMMARY = columns(
    "program=who | seconds:.2f | loss:.4f | times as fast as nanoGPT=ratio:.2f | loss - nanoGPT's=difference:+.4f"
)
STARTUP = columns("from the start of a process to=what | seconds:.2f | x minigpt's first step=ratio:.2f")
MINIGPT, NANOGPT, LONGER = "minigpt", "nanoGPT", "minigpt, in nanoGPT's time"
PILOT, SHARE = 200, 0.9  # steps of a trial run; how much of nanoGPT's time to use, as the pace may change
IMPORTS = {"torch imported": "import torch", "minigpt imported": "import minigpt"}
IMPORTS["GPT-2 of transformers imported"] = "from transformers import GPT2LMHeadModel"
WARM_UP = 1  # rounds of start-up that only load the files into the operating system's cache


@dataclass
class Trainings:
    """Starts both trainings in a temporary folder."""

    report: Report
    text: Path
    folder: Path
    dataset: Dataset
    copy: trainings.Copy | None

    def minigpt(self, config: str, who: str, seed: int, steps: int | None) -> Row:
        """Train minigpt. The loss of the result is computed afterwards, outside of all timing."""
        changes = trainings.overrides(self.text, self.report.device)
        if steps is not None:  # with few steps, at most half of them are warm-up
            warm_up = min(trainings.check(config, changes).training.warmup_steps, steps // 2)
            changes += [f"training.max_steps={steps}", f"training.warmup_steps={warm_up}"]
        name = re.sub(r"\W+", "-", f"{who}-{seed}")
        command = trainings.command(config, name, [f"training.seed={seed}", *changes], self.report.options.plugin)
        seconds, first = time_command(f"{who}, seed {seed}", command, self.folder, trainings.FIRST_STEP)
        assert first is not None
        run = runs.load(self.folder / runs.RUNS / name, self.report.device.type)
        records, settings, size = read_metrics(run.folder / runs.METRICS), run.config.training, cost(run.model)
        row = Row(who=who, seed=seed, seconds=seconds, steps=settings.max_steps)
        row["startup"] = first - float(records[0]["seconds"])  # to the first step, including imports
        row["training"] = float(records[-1]["seconds"])
        row["rest"] = seconds - row["startup"] - row["training"]  # evaluations, samples, checkpoints, ending
        row["loss"] = evaluate(run.model, self.dataset, "val", replace(settings, precision="float32", batch_size=128))
        row["parameters"] = size.parameters
        row["flops"] = PASSES * size.flops_per_token * int(records[-1]["tokens"])
        row["precision"] = trainings.precision_of(settings, run.model)
        return row | {"flops_per_second": row["flops"] / seconds}

    def nanogpt(self, seed: int) -> Row:
        """Train nanoGPT by its README. A worker evaluates its checkpoint."""
        assert self.copy
        steps, device = self.report.options.steps or trainings.STEPS, self.report.device
        command, folder = self.copy.train(seed, steps, device), self.copy.folder
        seconds, first = time_command(f"{NANOGPT}, seed {seed}", command, folder, trainings.FIRST_STEP_OF_NANOGPT)
        files = {"folder": str(self.copy.out), "val": str(self.copy.val), "window": trainings.WINDOW}
        spec = self.report.spec(do="evaluate", program="nanogpt", **files)
        with WorkerProcess(NANOGPT, {**spec, "path": str(folder)}) as worker:
            facts = {key: worker.facts[key] for key in ("loss", "parameters")}
        flops = PASSES * flops_per_token({**trainings.SHAPE, "vocab_size": self.copy.vocab_size})
        tokens = steps * trainings.BATCH * trainings.SHAPE["block_size"]
        row = Row(who=NANOGPT, seed=seed, seconds=seconds, steps=steps, startup=first, **facts)
        row["precision"] = "bfloat16" if device.type == "cuda" else "float32"  # the default of its train.py
        return row | {"flops_per_second": flops * tokens / seconds}


def time_to_loss(report: Report) -> None:
    """Train both with every seed, in turn; with `--steps`, for so many steps only. Raises UserError."""
    options, config, long_config = report.options, report.options.config, report.options.long_config
    text = trainings.find_text(options.text)
    if options.equal_time and report.nanogpt is None:
        raise UserError("--equal-time: give --nanogpt DIR too, since nanoGPT's time is needed")
    changes = trainings.overrides(text, report.device)
    settings = trainings.check(config, changes)
    trainings.check(long_config or config, changes)
    report.start(alone="nothing else")
    with TemporaryDirectory(prefix="minigpt-benchmark-") as name:
        copy = trainings.make_copy(report.nanogpt, Path(name, "nanogpt"), text) if report.nanogpt else None
        both, rows = Trainings(report, text, Path(name), trainings.prepare(settings), copy), list[Row]()
        seeds = range(options.first_seed, options.first_seed + options.seeds)
        longer = partial(both.minigpt, long_config or config)
        earlier = [longer("pilot", seeds[0], options.steps or PILOT)] if options.equal_time else []
        for turn, seed in enumerate(seeds):
            start = {MINIGPT: partial(both.minigpt, config, MINIGPT, seed, options.steps)}
            if copy:
                start = {NANOGPT: partial(both.nanogpt, seed), **start}
            rows += [announced(start[who]()) for who in in_turn(list(start), turn)]  # in each round, another first
            if options.equal_time:
                [time] = [row["seconds"] for row in rows if (row["who"], row["seed"]) == (NANOGPT, seed)]
                earlier.append(longer(LONGER, seed, steps_within(SHARE * time, earlier)))
                rows.append(announced(earlier[-1]))
    report.add("all runs, in order", RUNS, rows)
    report.add("medians (smallest..largest); ratios and differences are taken for each seed", SUMMARY, summary(rows))
    report.notes += [
        f"minigpt trains {config}" + (f", and {long_config} in nanoGPT's time" if long_config else ""),
        "seconds: from the start of the process to its end, including imports, evaluations and checkpoints; the ids of "
        "both are on disk beforehand, and the loss is computed afterwards",
        "nanoGPT's start-up ends with its first line about a step; before that, it evaluates 2 x 20 batches",
        "MFU: operations of all steps over all seconds of the process, over the large square product below",
        *verdicts(rows),
    ]


def announced(row: Row) -> Row:
    """Print the result of a run at once: the next one may take minutes."""
    say("{who}, seed {seed}: {seconds:.1f} s, loss {loss:.4f}".format(**row))
    return row


def steps_within(seconds: float, earlier: Sequence[Row]) -> int:
    """How many steps a whole run of so many seconds can do, at the slowest pace of the earlier runs."""
    pace = max(row["training"] / row["steps"] for row in earlier)
    beside = max(row["seconds"] - row["training"] for row in earlier)
    return max(1, int((seconds - beside) / pace))


def summary(rows: Sequence[Row]) -> list[Row]:
    """A row for each program, compared with nanoGPT if it was trained."""
    programs = {}
    for who in dict.fromkeys(row["who"] for row in rows):
        seconds, loss = (Spread(tuple(column(rows, who, key))) for key in ("seconds", "loss"))
        programs[who] = Row(who=who, seconds=seconds, loss=loss)
    for who, row in programs.items():
        if NANOGPT in programs and who != NANOGPT:
            other = programs[NANOGPT]
            row["ratio"] = other["seconds"].over(row["seconds"])
            row["difference"] = Spread(tuple(a - b for a, b in zip(row["loss"].values, other["loss"].values)))
    return list(programs.values())


def column(rows: Sequence[Row], who: str, key: str) -> list[float]:
    """One number of all runs of a program, in the order of the seeds."""
    return [row[key] for row in sorted(rows, key=lambda row: int(row["seed"])) if row["who"] == who]


def verdicts(rows: Sequence[Row]) -> list[str]:
    """Whether each of minigpt's runs reached nanoGPT's median loss, and, with --equal-time, took no longer."""
    if not (others := column(rows, NANOGPT, "loss")):
        return []
    middle, sentences = Spread(tuple(others)).median, []
    for who in dict.fromkeys(row["who"] for row in rows if row["who"] != NANOGPT):
        losses = column(rows, who, "loss")
        reached = sum(loss <= middle for loss in losses)
        word = "every seed" if reached == len(losses) else "NOT every seed"
        sentences.append(f"{who}: {word} reached nanoGPT's median loss {middle:.4f} ({reached} of {len(losses)})")
    if longer := column(rows, LONGER, "seconds"):
        within = sum(seconds <= time for seconds, time in zip(longer, column(rows, NANOGPT, "seconds")))
        sentences.append(f"{LONGER}: {within} of {len(longer)} took no longer than nanoGPT's run from the same seed")
    return sentences


def startup(report: Report) -> None:
    """Measure the seconds to the end of the first training step, and to that of imports alone. Raises UserError."""
    text, config = trainings.find_text(report.options.text), report.options.config
    changes = trainings.overrides(text, report.device)
    trainings.prepare(trainings.check(config, changes))  # writes the ids to disk beforehand, as make_copy does
    report.start(alone="transformers alone")
    first_steps = [f"{program}'s first step" for program in (MINIGPT, NANOGPT)]
    with TemporaryDirectory(prefix="minigpt-benchmark-") as name:
        folder = Path(name)
        commands = {name: (python_command(code), folder, "") for name, code in IMPORTS.items()}
        training = trainings.command(config, "startup", changes, report.options.plugin)
        commands[first_steps[0]] = (training, folder, trainings.FIRST_STEP)
        if report.nanogpt:
            copy = trainings.make_copy(report.nanogpt, folder / "nanogpt", text)
            training = copy.train(1, trainings.STEPS, report.device)
            commands[first_steps[1]] = (training, copy.folder, trainings.FIRST_STEP_OF_NANOGPT)

        def seconds(name: str) -> float:
            command, folder, line = commands[name]
            return time_command(name, command, folder, line, stop=bool(line))[0]

        spreads = take_turns({name: partial(seconds, name) for name in commands}, report.repeat, WARM_UP)
    rows = [Row(what=name, seconds=time, ratio=time.over(spreads[first_steps[0]])) for name, time in spreads.items()]
    report.add(f"start-up: the median (smallest..largest) of {report.repeat} rounds, in turn", STARTUP, rows)
    report.notes += [
        f"minigpt trains {config}, nanoGPT the recipe for a laptop in its README; ids are on disk beforehand",
        "nanoGPT evaluates 2 x 20 batches before its first step, as the recipe says",
        "ratios are taken in each round; there is no MFU, since starting up is no work of the model",
    ]
