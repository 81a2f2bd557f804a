"""Time to loss: whole both as users start them, from the start of the process to its end, including imports.

The recipe for a laptop CPU in nanoGPT's README beside a config of minigpt, in turn, for each seed. The exact validation
loss is computed afterwards in float32, for both over the same targets: all of them, in separate windows of 64.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import nanogpt, trainings
from benchmarks.processes import WorkerProcess, in_turn, time_command
from benchmarks.report import Report, Row, Spread
from benchmarks.setting import Setting
from benchmarks.throughput import model_config
from minigpt.model.gpt import GPT
from minigpt.runs.report import say
from minigpt.system.errors import UserError
from minigpt.text.dataset import Dataset

RUNS = {
    "program": ("who", ""),
    "seed": ("seed", "d"),
    "seconds": ("seconds", ".2f"),
    "loss": ("loss", ".4f"),
    "parameters": ("parameters", ",d"),
    "steps": ("steps", ",d"),
    "type": ("precision", ""),
    "start-up": ("startup", ".2f"),
    "training": ("training", ".2f"),
    "rest": ("rest", ".2f"),
    "MFU": ("mfu", ".1%"),
}
SUMMARY = {
    "program": ("who", ""),
    "seconds": ("seconds", ".2f"),
    "loss": ("loss", ".4f"),
    "times as fast as nanoGPT": ("ratio", ".2f"),
    "loss - nanoGPT's": ("difference", "+.4f"),
}
OURS, THEIRS, LONGER = "minigpt", "nanoGPT", "minigpt, in nanoGPT's time"
PILOT, SHARE = 200, 0.9  # steps of a trial run; how much of nanoGPT's time to use, as the pace may change


@dataclass
class Trainings:
    """Starts both both in a temporary folder."""

    setting: Setting
    text: Path
    folder: Path
    steps: int | None
    dataset: Dataset
    copy: nanogpt.Copy | None

    def changes(self, config: str, steps: int | None) -> list[str]:
        """The options of minigpt's run besides config and seed. With few steps, at most half of them are warm-up."""
        options = trainings.overrides(self.text, self.setting.device)
        if steps is None:
            return options
        warm_up = min(trainings.check(config, options).training.warmup_steps, steps // 2)
        return [*options, f"training.max_steps={steps}", f"training.warmup_steps={warm_up}"]

    def minigpt(self, config: str, who: str, seed: int, steps: int | None) -> Row:
        """Train minigpt and evaluate the result."""
        name, changes = re.sub(r"\W+", "-", f"{who}-{seed}"), self.changes(config, steps)
        command = trainings.train(self.setting, config, name, [f"training.seed={seed}", *changes])
        times = time_command(f"{who}, seed {seed}", command, self.folder, trainings.FIRST_STEP)
        trained = trainings.look_at(self.folder, name, times, self.dataset, self.setting.device)
        settings = trainings.check(config, changes)
        row = Row(who=who, seed=seed, seconds=times.seconds, steps=settings.training.max_steps)
        return row | asdict(trained) | {"flops_per_second": trained.flops / times.seconds}

    def nanogpt(self, seed: int) -> Row:
        """Train nanoGPT by its README. A worker evaluates its checkpoint."""
        assert self.copy
        steps, device = self.steps or nanogpt.STEPS, self.setting.device
        command = self.copy.train(seed, steps, device)
        times = time_command(f"{THEIRS}, seed {seed}", command, self.copy.folder, nanogpt.FIRST_STEP)
        spec = self.setting.spec(do="evaluate", program="nanogpt", folder=str(self.copy.out), val=str(self.copy.val))
        with WorkerProcess(THEIRS, {**spec, "path": str(self.copy.folder), "window": trainings.WINDOW}) as worker:
            facts = worker.facts
        row = Row(who=THEIRS, seed=seed, seconds=times.seconds, steps=steps, startup=times.first)
        shape = {**nanogpt.SHAPE, "vocab_size": self.copy.vocab_size}
        model = GPT(model_config(shape), self.copy.vocab_size)
        flops = trainings.flops_of(model, steps * nanogpt.BATCH * nanogpt.SHAPE["block_size"])
        precision = "bfloat16" if device.type == "cuda" else "float32"  # the default of its train.py
        row |= {"loss": facts["loss"], "parameters": facts["parameters"], "precision": precision}
        return row | {"flops_per_second": flops / times.seconds}


def run(
    setting: Setting,
    text: Path,
    config: str,
    long_config: str = "",
    seeds: Sequence[int] = (1, 2, 3),
    steps: int | None = None,
    equal_time: bool = False,
) -> Report:
    """Train both with every seed, in turn; with `steps`, for so many steps only. Raises UserError."""
    if equal_time and setting.nanogpt is None:
        raise UserError("--equal-time: give --nanogpt DIR too, since nanoGPT's time is needed")
    changes = trainings.overrides(text, setting.device)
    settings = trainings.check(config, changes)
    trainings.check(long_config or config, changes)
    report = setting.report("time-to-loss", "nothing else")
    with TemporaryDirectory(prefix="minigpt-benchmark-") as made:
        folder = Path(made)
        copy = None
        if setting.nanogpt:
            copy = nanogpt.make_copy(setting.nanogpt, folder / "nanogpt", text)
        both = Trainings(setting, text, folder, steps, trainings.prepare(settings), copy)
        rows, longer = [], long_config or config
        known = [both.minigpt(longer, "pilot", seeds[0], steps or PILOT)] if equal_time else []
        for turn, seed in enumerate(seeds):
            rows += one_round(both, config, turn, seed)
            if equal_time:
                [time] = [row["seconds"] for row in rows if (row["who"], row["seed"]) == (THEIRS, seed)]
                known.append(both.minigpt(longer, LONGER, seed, steps_within(SHARE * time, known)))
                rows.append(announced(known[-1]))
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
    return report


def one_round(both: Trainings, config: str, turn: int, seed: int) -> list[Row]:
    """Train both with one seed. In each round, the other one goes first."""
    start = {OURS: lambda: both.minigpt(config, OURS, seed, both.steps)}
    if both.copy:
        start = {THEIRS: lambda: both.nanogpt(seed), **start}
    return [announced(start[who]()) for who in in_turn(list(start), turn)]


def announced(row: Row) -> Row:
    """Print the result of a run at once: the next one may take minutes."""
    say("{who}, seed {seed}: {seconds:.1f} s, loss {loss:.4f}".format(**row))
    return row


def steps_within(seconds: float, known: Sequence[Row]) -> int:
    """How many steps a whole run of so many seconds can do, at the slowest pace of the earlier runs."""
    pace = max(row["training"] / row["steps"] for row in known)
    beside = max(row["seconds"] - row["training"] for row in known)
    return max(1, int((seconds - beside) / pace))


def summary(rows: Sequence[Row]) -> list[Row]:
    """A row for each program, compared with nanoGPT if it was trained."""
    made = []
    theirs = {key: Spread(tuple(values)) for key in ("seconds", "loss") if (values := column(rows, THEIRS, key))}
    for who in dict.fromkeys(row["who"] for row in rows):
        seconds, loss = (Spread(tuple(column(rows, who, key))) for key in ("seconds", "loss"))
        row = Row(who=who, seconds=seconds, loss=loss)
        if theirs and who != THEIRS:
            row["ratio"] = theirs["seconds"].over(seconds)
            pairs = zip(loss.values, theirs["loss"].values)
            row["difference"] = Spread(tuple(mine - other for mine, other in pairs))
        made.append(row)
    return made


def column(rows: Sequence[Row], who: str, key: str) -> list[float]:
    """One number of all runs of a program, in the order of the seeds."""
    return [row[key] for row in sorted(rows, key=lambda row: int(row["seed"])) if row["who"] == who]


def verdicts(rows: Sequence[Row]) -> list[str]:
    """Whether each of our runs reached nanoGPT's median loss, and, with --equal-time, took no longer."""
    if not (theirs := column(rows, THEIRS, "loss")):
        return []
    middle, said = Spread(tuple(theirs)).median, []
    for who in dict.fromkeys(row["who"] for row in rows if row["who"] != THEIRS):
        losses = column(rows, who, "loss")
        reached = sum(loss <= middle for loss in losses)
        word = "every seed" if reached == len(losses) else "NOT every seed"
        said.append(f"{who}: {word} reached nanoGPT's median loss {middle:.4f} ({reached} of {len(losses)})")
    if longer := column(rows, LONGER, "seconds"):
        within = sum(mine <= time for mine, time in zip(longer, column(rows, THEIRS, "seconds")))
        said.append(f"{LONGER}: {within} of {len(longer)} took no longer than nanoGPT's run from the same seed")
    return said
