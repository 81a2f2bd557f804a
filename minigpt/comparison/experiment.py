"""Runs an experiment: measures the variants' speed, says how long it will take, trains them, writes the page.

What was varied decides what is summarised and shown: variants, rungs on tasks, or kinds at sizes (`Report`). The same
command continues an experiment that was stopped. A run is trained again only if its result is missing or damaged, or
if its config or a plugin has changed.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from minigpt.comparison import growth, staircase, summary
from minigpt.comparison.grid import choices, with_choice
from minigpt.comparison.matching import match_parameters
from minigpt.comparison.page import page_of_sizes, page_of_tasks, page_of_variants
from minigpt.comparison.pool import WorkerPool
from minigpt.comparison.results import Job, code_digest, config_key, is_earlier, jobs, load_result
from minigpt.comparison.sizes import Scaling
from minigpt.comparison.tuning import notes_on, summary_of, trials, tuned
from minigpt.comparison.variants import Comparison
from minigpt.config.options import MOST, to_python
from minigpt.config.upgrade import stamped
from minigpt.system.errors import UserError
from minigpt.system.folder import first_lines, read_record, refuse_links, write_whole
from minigpt.system.locks import InUse, Lock
from minigpt.system.memory import free_memory
from minigpt.system.plugin import was_edited
from minigpt.system.strict_json import has_form
from minigpt.system.waiting import interruptible, progress, progress_bar
from minigpt.training.assemble import RunConfig
from minigpt.training.floor import height
from minigpt.training.loggers import check_loggers
from minigpt.training.report import Say, say

PAGE = "page.html"
SPEEDS, MAX_SPEEDS = "speeds.json", 1 << 24
TIMES = ("step", "curve", "whole")
SPEED = {"step": float, "curve": float, "whole": float, "notes": [str]}  # times in seconds; notes are printed
OVERHEAD = 2.0  # seconds of a run besides training and evaluation: making the model, sampling, writing files
UNCHECKED = " The models were not checked before training (--skip-checks)."


@dataclass(frozen=True)
class Report:
    """What depends on what an experiment varies: the summary of its results, and how it is shown."""

    summarise: Callable[..., dict[str, Any]]
    csv_rows: Callable[[Mapping[str, Any]], Iterable[Sequence[Any]]]
    page: Callable[[Mapping[str, Any]], str]
    in_words: Callable[[Mapping[str, Any]], str]


OF_VARIANTS = Report(summary.summarise, summary.csv_rows, page_of_variants, summary.in_words)
OF_TASKS = Report(staircase.summarise, staircase.csv_rows, page_of_tasks, staircase.in_words)
OF_SIZES = Report(growth.summarise, growth.csv_rows, page_of_sizes, growth.in_words)


@dataclass
class Experiment:
    """A comparison and what is known while it runs."""

    comparison: Comparison
    plugins: Sequence[Path]
    allow_leak: bool
    say: Say = say
    speeds: dict[str, dict[str, Any]] = field(default_factory=dict)  # of each variant, by name
    share: int | None = None  # bytes of memory that each worker may use; None: unknown
    skip_checks: bool = False  # train the models without checks
    tuning: dict[str, Any] | None = None  # the trials of a grid, and what was taken

    @property
    def report(self) -> Report:
        """How the results of this experiment are shown."""
        return OF_SIZES if isinstance(self.comparison, Scaling) else OF_TASKS if self.comparison.tasks else OF_VARIANTS

    def run(self, command: str) -> dict[str, Any]:
        """Do as `finish` does, and return the results. Raises UserError after all runs if some of them failed, too."""
        results, failures = self.finish(command)
        if failures:
            others = f"the other runs are in {self.comparison.folder}"
            raise UserError(
                f"{'; '.join(first_lines(failures))}; {others}, and the same command tries the failed ones again"
            )
        return results

    def finish(self, command: str) -> tuple[dict[str, Any], list[str]]:
        """Do the runs that are left, and write results.json, results.csv and page.html. Returns the results, and a line
        for each run that failed. Raises UserError before any run if a variant cannot be trained.

        Where an earlier version did all of the runs and wrote the page, nothing is written.
        """
        with self.alone():
            notes, failures = self.train()
            every = list(self.results())
            earlier = sum(result is not None and is_earlier(result) for _, result, _ in every)
            if earlier:
                how = "they are used as they are, and another --name trains them with this one"
                notes.append(f"{earlier} of {len(every)} runs were made by an earlier version of minigpt: {how}")
                self.say(f"note: {notes[-1]}")
            comparison = self.finished(every, failures) if self.report is OF_VARIANTS else self.comparison
            tuning = {} if self.tuning is None else {"tuning": self.tuning}
            results = [(job, result) for job, result, _ in every if result]
            content = stamped(self.report.summarise(comparison, results, command, notes, **tuning))
            if self.skip_checks and "held_equal" in content:
                content["held_equal"] += UNCHECKED
            if earlier < len(results) or not (comparison.folder / PAGE).is_file():
                write_whole(comparison.folder / "results.json", json.dumps(content, indent=1, allow_nan=False))
                write_whole(comparison.folder / "results.csv", summary.to_csv(self.report.csv_rows(content)))
                write_whole(comparison.folder / PAGE, self.report.page(content))
        return content, failures

    def finished(self, every: Sequence[tuple[Job, Any, str]], failures: Sequence[str]) -> Comparison:
        """The variants that have a result. Raises UserError with the reasons if the baseline has none."""
        names, folder = {job.variant for job, result, _ in every if result}, self.comparison.folder
        if self.comparison.settings.baseline not in names:
            reasons = failures or [f"{job.who}: {why}" for job, _, why in every if why]
            gone = f"its results are gone from {folder}: does another comparison have the same --name?"
            raise UserError(f"no run of the baseline could be finished; {'; '.join(first_lines(reasons or [gone]))}")
        variants = {name: config for name, config in self.comparison.variants.items() if name in names}
        return replace(self.comparison, variants=variants)

    def alone(self) -> Lock:
        """The lock of the comparison's folder, which processes share that do the same runs.

        Raises InUse if another comparison of this name is under way, and UserError if this one cannot begin.
        """
        folder = self.comparison.folder
        refuse_links(folder)
        for config in self.comparison.variants.values():
            check_loggers(config.training.loggers)
        every = [(str(job.folder), job.key) for job in (*self.trials(), *self.jobs())]
        folder.mkdir(parents=True, exist_ok=True)
        try:
            return Lock(folder, together=hashlib.sha256(repr(every).encode()).hexdigest())
        except InUse as error:
            raise InUse(f"{error}, unless both do the same runs: give this one another --name") from None

    def train(self) -> tuple[list[str], list[str]]:
        """Do the runs that are left. Returns notes for the reader of the results, and a line for each failed run.

        Raises UserError before any run if a variant cannot be trained.
        """
        if self.skip_checks:
            self.say("note: the models are not checked before their first step (--skip-checks)")
        if self.comparison.settings.match == "parameters":
            self.comparison = match_parameters(self.comparison)
        free, workers = free_memory(), min(self.comparison.settings.processes, len(self.jobs()))
        self.share = None if free is None else free // workers
        with WorkerPool(workers, self.plugins) as pool:
            self.measure_speeds(pool)
            notes = self.tune(pool)
            failures = self.do(pool, self.jobs())
        notes += self.edits()
        for note in notes:
            self.say(f"note: {note}")
        return notes, failures

    def edits(self) -> list[str]:
        """A line for each plugin whose file was edited after it was loaded: the runs used the earlier version."""
        ran = "while the runs were under way; the results are those of the plugin as it was at the start"
        again = "the same command trains again with what it is now"
        return [f"{path} was edited {ran}, and {again}" for path in self.plugins if was_edited(path)]

    def jobs(self) -> list[Job]:
        """All runs of the comparison."""
        return jobs(self.comparison, self.plugins, self.allow_leak, self.skip_checks)

    def trials(self) -> list[Job]:
        """All trials of the comparison, before its runs."""
        return trials(self.comparison, self.plugins, self.allow_leak, self.skip_checks)

    def unfinished(self, every: Sequence[Job] | None = None) -> list[Job]:
        """The runs that have no result yet."""
        return [job for job, result, _ in self.results(every) if result is None]

    def results(self, every: Sequence[Job] | None = None) -> Iterator[tuple[Job, dict[str, Any] | None, str]]:
        """Each run of `every` (None: all runs), its result or None, and why there is none (see `load_result`).

        Raises UserError for a result of another version that cannot be used.
        """
        every = self.jobs() if every is None else every
        for job in progress(every, "reading the results", len(every), "runs"):
            yield job, *load_result(job.folder, job.key, self.key_of)

    def task(self, do: str, job: Job) -> dict[str, Any]:
        """The message that asks a worker to `do` a run: "try" it for a few steps, or "run" it."""
        who = {"do": do, "variant": job.variant, "seed": job.seed, "key": job.key, "folder": str(job.folder)}
        how = {"allow_leak": self.allow_leak, "share": self.share, "skip_checks": self.skip_checks}
        return who | how | {"config": to_python(job.config)}

    # ---- before: how fast is each variant, and how long will the runs take ----

    def key(self, config: RunConfig) -> str:
        """The key of a variant's speed in speeds.json. Variants with the same config share one."""
        return self.key_of(self.comparison.like(config))

    def key_of(self, config: Any) -> str:
        """The key of a config, or of its plain values, with the plugins and checks of this experiment."""
        return config_key(config, self.plugins, self.allow_leak, self.skip_checks)

    def measure_speeds(self, pool: WorkerPool) -> None:
        """Measure the speed of each variant that has runs to do, if it is not known yet. With `match: seconds`, set its
        steps.
        """
        path, settings = self.comparison.folder / SPEEDS, self.comparison.settings
        self.speeds = _read_speeds(path)
        to_do = self.jobs() if self.comparison.grids or settings.seconds else self.unfinished()
        variants, every = self.comparison.variants, choices(self.comparison.grids)
        first = {self.key(variants[job.variant]): job for job in reversed(to_do)}
        if any(key.startswith("model.") for key in self.comparison.grids):  # each model is checked before any run
            first |= {self.key(with_choice(variants[t.variant], every[t.choice])): t for t in self.trials()} | first
        unknown = {key: job for key, job in first.items() if key not in self.speeds}
        if unknown:
            self.say(f"measuring the speed of {len(unknown)} variants, a few steps each")
            tasks = [self.task("try", job) for job in unknown.values()]
            answers = interruptible(lambda: pool.work(tasks, lambda task, answer: None), "measuring the speed")
            for (key, job), answer in zip(unknown.items(), answers):
                if answer["event"] != "done":
                    raise UserError(f"{job.variant}: {answer['message']}")
                self.speeds[key] = answer
                for note in answer["notes"]:
                    self.say(f"note: {job.variant}: {note}")
            write_whole(path, json.dumps(self.speeds, indent=1))
        keys = {name: self.key(config) for name, config in self.comparison.variants.items()}
        self.speeds = {name: self.speeds[key] for name, key in keys.items() if key in self.speeds}
        if budget := settings.seconds:
            variants = dict(self.comparison.variants)
            for name, config in variants.items():
                steps = max(1, round(min(budget / self.speeds[name]["step"], MOST)))
                variants[name] = replace(config, training=replace(config.training, max_steps=steps))
            self.comparison = replace(self.comparison, variants=variants)

    def seconds(self, job: Job) -> float:
        """About how many seconds a run takes."""
        speed, training = self.speeds[job.variant], job.config.training
        curve = -(-training.max_steps // training.eval_every) * speed["curve"]
        return float(training.max_steps * speed["step"] + curve + speed["whole"] + OVERHEAD)

    def estimate(self, every: Sequence[Job], workers: int) -> float:
        """About how many seconds these runs take. Each starts as soon as one of the workers is free."""
        free_at = [0.0] * workers
        for job in every:
            free_at.sort()
            free_at[0] += self.seconds(job)
        return max(free_at)

    # ---- the trials and the runs ----

    def tune(self, pool: WorkerPool) -> list[str]:
        """Try the choices of a grid, and give each variant the best one. Returns notes for the reader."""
        grids = self.comparison.grids
        if not grids:
            return []
        every, values = self.trials(), "; ".join(choices(grids))
        of_runs = duration(self.estimate(self.jobs(), pool.size))
        self.say(f"trials: each variant with {', '.join(grids)} = {values}; the runs after that take about {of_runs}")
        failures = self.do(pool, every, "trials")
        self.tuning = summary_of(self.comparison, [(job, result) for job, result, _ in self.results(every)])
        self.comparison = tuned(self.comparison, self.tuning)
        notes = [*failures, *notes_on(self.tuning)]
        for note in notes:
            self.say(f"note: {note}")
        return notes

    def do(self, pool: WorkerPool, every: Sequence[Job], noun: str = "runs") -> list[str]:
        """Do those runs of `every` that have no result yet. Returns a line for each run that failed."""
        results = list(self.results(every))
        for line in first_lines([f"{job.who}: {why}; it is trained again" for job, _, why in results if why]):
            self.say(line)
        current = [result for _, result, _ in results if result is not None and not is_earlier(result)]
        if older := sum(result.get("code") != code_digest() for result in current):
            redo = f"remove {self.comparison.folder} to redo them"
            self.say(f"note: {older} runs were made by another version of minigpt's code; {redo}")
        remaining, total = [job for job, result, _ in results if result is None], len(every)
        if not remaining:
            self.say(f"all {total} {noun} are finished already")
            return []
        seconds = duration(self.estimate(remaining, pool.size))
        self.say(f"{len(remaining)} of {total} {noun} to do, {pool.size} at a time: about {seconds}")
        on_screen = Progress(self, remaining, total, noun.removesuffix("s"))
        try:
            answers = pool.work([self.task("run", job) for job in remaining], on_screen.on_answer)
        except KeyboardInterrupt:
            self.say(f"the same command goes on with the {len(self.unfinished(every))} {noun} that are left")
            raise
        finally:
            on_screen.bar.close()
        failed = ((job, answer) for job, answer in zip(remaining, answers) if answer["event"] != "done")
        return [f"{job.who}: {answer['message']}" for job, answer in failed]


class Progress:
    """One progress bar over all runs, in seconds of work, and a line for each run that has ended."""

    def __init__(self, experiment: Experiment, remaining: Sequence[Job], total: int, noun: str):
        self.experiment, self.total, self.noun = experiment, total, noun
        self.done = total - len(remaining)
        self.jobs = {str(job.folder): job for job in remaining}
        self.parts = dict.fromkeys(self.jobs, 0.0)  # how much of each run is done, from 0 to 1
        self.waits = set[str]()  # the runs that another process does
        self.bar = progress_bar(
            total=sum(map(experiment.seconds, remaining)),
            desc=f"{noun} {self.done + 1} of {total}",
            bar_format="{desc} |{bar}| {percentage:3.0f} % {elapsed}, {remaining} left",
        )

    def on_answer(self, task: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
        """Move the bar. If the run has ended, say how."""
        folder = task["folder"]
        job, ended = self.jobs[folder], answer["event"] in ("done", "failed")
        if answer["event"] == "busy" and folder not in self.waits:
            self.waits.add(folder)
            self.say(f"{self.noun}: {job.who}: {answer['message']}; its result is used")
        part = 1.0 if ended else answer.get("step", 0) / (job.config.training.max_steps + 1)
        self.bar.update((part - self.parts[folder]) * self.experiment.seconds(job))
        self.parts[folder] = part
        if ended:
            self.done += 1
            self.bar.set_description(f"{self.noun} {min(self.done + 1, self.total)} of {self.total}")
            self.say(f"{self.noun} {self.done} of {self.total}: {job.who}: {self.outcome(job, answer)}")

    def say(self, line: str) -> None:
        """Print a line; the bar stays below."""
        with tqdm.external_write_mode(file=sys.stdout):
            self.experiment.say(line)

    def outcome(self, job: Job, answer: Mapping[str, Any]) -> str:
        """How a run ended, in a few words."""
        result = load_result(job.folder, job.key)[0]
        if result is None:
            return f"failed: {answer.get('message', 'no result')}"
        if result["status"] != "done":
            return f"{result['status']}: {result['message']}"
        above = "" if result["above"] is None else f", {height(result['above'], result['characters'])}"
        return f"loss {result['loss']:.4f}{above}, {result['seconds']:.0f} s"


def _read_speeds(path: Path) -> dict[str, dict[str, Any]]:
    """The speeds that an earlier call measured. Entries of another form are left out, and measured again."""
    speeds = read_record(path, MAX_SPEEDS, {}) or {}
    return {
        key: speed for key, speed in speeds.items() if has_form(speed, SPEED) and all(speed[time] > 0 for time in TIMES)
    }


def duration(seconds: float) -> str:
    """Seconds as text: 61 -> 1 min 01 s."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
