"""A comparison from start to finish: try every variant out, say how long it will take, train the runs, write the page.

It continues where it was stopped: a run whose result is there, verifies, and was made from the same config and
plugins is not trained again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from minigpt.comparison.matching import match_parameters
from minigpt.comparison.page import page
from minigpt.comparison.pool import Crew
from minigpt.comparison.results import Job, code_digest, config_key, jobs, load_result
from minigpt.comparison.summary import summarise, to_csv
from minigpt.comparison.variants import Comparison
from minigpt.config.options import MOST, to_yaml
from minigpt.runs.assemble import RunConfig
from minigpt.runs.report import Say, say
from minigpt.system.errors import UserError
from minigpt.system.folder import first_lines, read_start, refuse_links, write_whole
from minigpt.system.strict_json import has_form, parse_json
from minigpt.training.memory import free_memory

SPEEDS, MAX_SPEEDS = "speeds.json", 1 << 24
TIMES = ("step", "curve", "whole")
SPEED = {"step": float, "curve": float, "whole": float, "notes": [str]}  # seconds, and what is to be said
ASIDE = 2.0  # seconds of a run that are neither training nor evaluation: putting together, sampling, writing


@dataclass
class Contest:
    """A comparison under way."""

    comparison: Comparison
    plugins: Sequence[Path]
    allow_leak: bool
    say: Say = say
    speeds: dict[str, dict[str, Any]] = field(default_factory=dict)  # by the key of a variant's config
    share: int | None = None  # bytes of memory that each process may take, where that is known

    def hold(self, command: str) -> dict[str, Any]:
        """Do what is left to do, write results.json, results.csv and page.html, and return the results.

        Raises UserError for a variant that cannot be trained, before anything is, and for runs that failed, after all
        others.
        """
        folder = self.comparison.folder
        refuse_links(folder)
        if self.comparison.settings.match == "parameters":
            self.comparison = match_parameters(self.comparison)
        folder.mkdir(parents=True, exist_ok=True)
        free, processes = free_memory(), min(self.comparison.settings.processes, len(self.jobs()))
        self.share = None if free is None else free // processes
        with Crew(processes, self.plugins) as crew:
            self.try_out(crew)
            failures = self.train(crew)
        results = [(job, result) for job in self.jobs() if (result := load_result(job.folder, job.key)[0])]
        finished = {job.variant for job, _ in results}
        left = replace(self.comparison, variants={n: c for n, c in self.comparison.variants.items() if n in finished})
        if self.comparison.settings.baseline not in finished:
            raise UserError(f"no run of the baseline could be finished; {'; '.join(first_lines(failures))}")
        summary = summarise(left, results, command)
        write_whole(folder / "results.json", json.dumps(summary, indent=1, allow_nan=False))
        write_whole(folder / "results.csv", to_csv(summary))
        write_whole(folder / "page.html", page(summary))
        if failures:
            what = "; ".join(first_lines(failures))
            raise UserError(f"{what}: the rest is in {folder}, and the same command tries these again")
        return summary

    def jobs(self) -> list[Job]:
        """All runs of the comparison."""
        return jobs(self.comparison, self.plugins, self.allow_leak)

    def unfinished(self) -> list[Job]:
        """The runs that are still to do."""
        return [job for job in self.jobs() if load_result(job.folder, job.key)[0] is None]

    def task(self, do: str, job: Job) -> dict[str, Any]:
        """A run as a task for the crew."""
        who = {"do": do, "variant": job.variant, "seed": job.seed, "key": job.key, "folder": str(job.folder)}
        return who | {"config": to_yaml(job.config), "allow_leak": self.allow_leak, "share": self.share}

    # ---- before: how fast is each variant, and how long will it take ----

    def key(self, config: RunConfig) -> str:
        """What a variant's speed is kept under: its config whatever its seed, so that equal variants are equal."""
        return config_key(config, self.plugins, self.allow_leak)

    def try_out(self, crew: Crew) -> None:
        """Measure every variant that was not measured before. With `match: seconds`, that decides its steps."""
        path = self.comparison.folder / SPEEDS
        self.speeds = _read_speeds(path)
        first = {self.key(self.comparison.variants[job.variant]): job for job in reversed(self.jobs())}
        unknown = {key: job for key, job in first.items() if key not in self.speeds}
        if unknown:
            self.say(f"trying out {len(unknown)} variants for a few steps each")
            answers = crew.work([self.task("try", job) for job in unknown.values()], lambda task, answer: None)
            for (key, job), answer in zip(unknown.items(), answers):
                if answer["event"] != "done":
                    raise UserError(f"{job.variant}: {answer['message']}")
                self.speeds[key] = answer
                for note in answer["notes"]:
                    self.say(f"note: {job.variant}: {note}")
            write_whole(path, json.dumps(self.speeds, indent=1))
        self.speeds = {name: self.speeds[self.key(config)] for name, config in self.comparison.variants.items()}
        if budget := self.comparison.settings.seconds:
            variants = {name: self._within(budget, name, c) for name, c in self.comparison.variants.items()}
            self.comparison = replace(self.comparison, variants=variants)

    def _within(self, budget: float, name: str, config: RunConfig) -> RunConfig:
        """The config with as many steps as the variant takes in `budget` seconds."""
        steps = max(1, round(min(budget / self.speeds[name]["step"], MOST)))
        return replace(config, training=replace(config.training, max_steps=steps))

    def seconds(self, job: Job) -> float:
        """About how long a run will take."""
        speed, training = self.speeds[job.variant], job.config.training
        curve = -(-training.max_steps // training.eval_every) * speed["curve"]
        return float(training.max_steps * speed["step"] + curve + speed["whole"] + ASIDE)

    # ---- the runs ----

    def train(self, crew: Crew) -> list[str]:
        """Do all runs that are left; returns a line for each that failed."""
        older, again = 0, []
        for job in self.jobs():
            result, why = load_result(job.folder, job.key)
            if why:
                again.append(f"{job.variant}, seed {job.seed}: {why}; it is trained again")
            older += result is not None and result.get("code") != code_digest()
        for line in first_lines(again):
            self.say(line)
        if older:
            folder = self.comparison.folder
            self.say(
                f"note: {older} runs were made by other code than minigpt/ holds now; remove {folder} to redo them"
            )
        left, total = self.unfinished(), len(self.jobs())
        if not left:
            self.say(f"all {total} runs are there already")
            return []
        self.say(
            f"{len(left)} of {total} runs to do, {crew.size} at a time: about {duration(self.whole(left, crew.size))}"
        )
        progress = Progress(self, left, total)
        try:
            answers = crew.work([self.task("run", job) for job in left], progress.heard)
        except KeyboardInterrupt:
            self.say(f"stopped; the same command goes on with the {len(self.unfinished())} runs that are left")
            raise
        finally:
            progress.bar.close()
        pairs = zip(left, answers)
        return [f"{job.variant}, seed {job.seed}: {a['message']}" for job, a in pairs if a["event"] != "done"]

    def whole(self, left: Sequence[Job], size: int) -> float:
        """About how long these runs take, each begun when one of `size` processes is free."""
        free = [0.0] * size
        for job in left:
            free.sort()
            free[0] += self.seconds(job)
        return max(free)


class Progress:
    """One bar over all runs, in seconds of work; a line for each run that is finished."""

    def __init__(self, contest: Contest, left: Sequence[Job], total: int):
        self.contest, self.total, self.done = contest, total, total - len(left)
        self.jobs = {(job.variant, job.seed): job for job in left}
        self.part = dict.fromkeys(self.jobs, 0.0)  # how far each run is
        self.bar: tqdm[Any] = tqdm(
            total=sum(map(contest.seconds, left)),
            desc=f"run {self.done + 1} of {total}",
            file=sys.stderr,
            disable=not sys.stderr.isatty(),
            bar_format="{desc} |{bar}| {percentage:3.0f} % {elapsed}, {remaining} left",
        )

    def heard(self, task: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
        """Move the bar; say what a finished run found."""
        who = task["variant"], task["seed"]
        job = self.jobs[who]
        ended = answer["event"] in ("done", "failed")
        now = 1.0 if ended else answer.get("step", 0) / (job.config.training.max_steps + 1)
        self.bar.update((now - self.part[who]) * self.contest.seconds(job))
        self.part[who] = now
        if ended:
            self.done += 1
            self.bar.set_description(f"run {min(self.done + 1, self.total)} of {self.total}")
            line = f"run {self.done} of {self.total}: {job.variant}, seed {job.seed}: {self.outcome(job, answer)}"
            with tqdm.external_write_mode(file=sys.stdout):  # the bar stays below
                self.contest.say(line)

    def outcome(self, job: Job, answer: Mapping[str, Any]) -> str:
        """What became of a run, in a few words."""
        result = load_result(job.folder, job.key)[0]
        if result is None:
            return f"failed: {answer.get('message', 'no result')}"
        if result["status"] != "done":
            return f"{result['status']}: {result['message']}"
        above = "" if result["above"] is None else f", {result['above']:.4f} above the floor"
        return f"loss {result['loss']:.4f}{above}, {result['seconds']:.0f} s"


def _read_speeds(path: Path) -> dict[str, dict[str, Any]]:
    """What `try_out` wrote; variants of which it says something else are tried out again."""
    try:
        known = parse_json(read_start(path, MAX_SPEEDS))
    except (OSError, ValueError):
        return {}
    found = known.items() if isinstance(known, dict) else []
    return {key: speed for key, speed in found if has_form(speed, SPEED) and all(speed[what] > 0 for what in TIMES)}


def duration(seconds: float) -> str:
    """Seconds in words."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
