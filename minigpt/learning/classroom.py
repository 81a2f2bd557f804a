"""Grades exercises: one file, a learner's folder, or a class. Each file runs in a process of its own.

A folder that holds exercises (`multi_head.py`, ...) is a learner's. A folder of such folders is a class: a table with a
row for each learner, and the mistakes that were made, the most frequent first. A learner is named by the folder in the
class, which may be a link to a folder elsewhere. What a link takes from another learner is named and not graded.
"""

from __future__ import annotations

import csv
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from minigpt.checks.learners.confined import LIMITS, Confined, Limits, Outcome
from minigpt.checks.learners.verdict import Report
from minigpt.learning.exercises import EXERCISES, LARGEST, begun, target_of
from minigpt.system.errors import UserError
from minigpt.system.folder import read_file
from minigpt.system.limits import not_limited
from minigpt.system.machine import processors
from minigpt.system.places import command
from minigpt.system.process import Pool
from minigpt.system.terminal import one_line
from minigpt.system.waiting import progress

MARKS = {  # each verdict, and its mark in the table of a class
    "right": "+",
    "right, in another convention": "~",
    "wrong": "x",
    "cannot tell": "?",
    "stopped": "!",
    "not finished": "/",
    "not begun": ".",
    "missing": ".",
}
UNWRITTEN = re.compile(r"NotImplementedError: write me(?: \(line (\d+)\))?")
SHOWN, WIDEST = 200, 24  # the most characters of a sentence in a table, and of a learner's name


@dataclass(frozen=True)
class Grade:
    """One exercise of one learner."""

    learner: str
    exercise: str
    verdict: str
    sentence: str = ""
    line: int = 0
    report: Report | None = None

    @property
    def right(self) -> bool:
        """Whether the answer is right, in any convention."""
        return self.verdict.startswith("right")

    @property
    def where(self) -> str:
        """The sentence with its line, safe to print."""
        text = one_line(self.sentence)[:SHOWN]
        return f"line {self.line}: {text}" if self.line else text

    def __str__(self) -> str:
        if self.report is not None and self.verdict == self.report.verdict:
            return str(self.report)
        return f"{self.verdict.upper()}: {self.exercise}" + (f"\n  {self.where}" if self.where else "")


class Task(NamedTuple):
    """A file to grade."""

    path: Path
    exercise: str
    learner: str
    home: Path | None = None
    """The learner's folder: a link that leads out of it is not graded. None: links are followed."""
    refused: str = ""
    """Why nothing in this folder is graded."""


def grade_exercise(task: Task, confined: Confined, lines: bool = False) -> Grade:
    """Grade one file, with a listing if `lines`. Whatever the file holds or does, this function raises no error."""
    verdict, sentence = look_at(task)
    if verdict:
        return Grade(task.learner, task.exercise, verdict, sentence)
    target = target_of(task.exercise)
    return grade_of(task, confined.check(task.path, target, lines=lines, exercise=task.exercise))


def look_at(task: Task) -> tuple[str, str]:
    """The verdict and the sentence for a file that need not be run; two empty ones if it must be run."""
    path = task.path
    if not task.refused and not os.path.lexists(path):
        return "missing", ""
    try:
        if task.refused:
            raise UserError(task.refused)
        if task.home is not None and not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(task.home)):
            raise UserError(f"a link to {os.readlink(path)}, and not a file of {task.learner}")
        text = read_file(path, LARGEST, "an exercise").decode("utf-8")
    except UnicodeDecodeError:
        return "cannot tell", "the file is not text in UTF-8"
    except UserError as error:
        return "cannot tell", str(error).removeprefix(f"{path}: ")
    except OSError as error:
        return "cannot tell", f"the file cannot be read: {error.strerror or error}"
    return ("", "") if begun(task.exercise, text) else ("not begun", "")


def grade_of(task: Task, outcome: Outcome) -> Grade:
    """The grade of a file that was run."""
    report = outcome.report
    if report is None:
        return Grade(task.learner, task.exercise, "stopped", outcome.reason)
    sentence = "; ".join(map(str, report.names))
    if unwritten := UNWRITTEN.search(sentence):
        line = int(unwritten[1] or 0)
        return Grade(task.learner, task.exercise, "not finished", "something is still to be written here", line, report)
    if report.verdict == "cannot tell" and sentence.startswith("it raises"):
        report = replace(report, verdict="wrong")  # an exercise has a known signature: nothing was guessed
    return Grade(task.learner, task.exercise, report.verdict, sentence, report.line, report)


def one_exercise(path: Path, exercise: str, lines: bool = False) -> Grade:
    """Grade one file. Raises UserError for an unknown exercise or a missing file."""
    target_of(exercise)
    if not path.exists():
        raise UserError(f"{path}: no such file")
    with Confined() as confined:
        return grade_exercise(Task(path, exercise, name_of(path.parent)), confined, lines)


def grade_all(tasks: Sequence[Task], limits: Limits = LIMITS) -> list[Grade]:
    """Grade files in parallel, one per processor. Returns the grades in the order of the tasks."""
    with Pool(max(1, min(processors(), len(tasks))), lambda: Confined(limits)) as pool:
        futures = [pool.submit(partial(grade_exercise, task)) for task in tasks]
        for _ in progress(as_completed(futures), "checking", len(tasks), "files"):
            pass
    return [future.result() for future in futures]


def tasks_of(folder: Path) -> list[Task]:
    """The tasks in a learner's folder, or in a class. Raises UserError if there are none."""
    if has_exercises(folder):
        return list(learner_tasks(folder))
    entries = [each for each in sorted(folder.iterdir()) if each.name[0] not in "._"]
    learners = [each for each in entries if each.is_dir() or (each.is_symlink() and not each.exists())]
    if not any(map(has_exercises, learners)):
        raise UserError(
            f"{folder}: holds no exercise (multi_head.py, ...) and no folders with some; "
            f"{command('exercises')} --out {folder} writes them"
        )
    refused = links(folder, learners)
    return [task for learner in learners for task in learner_tasks(learner, refused[learner])]


def links(folder: Path, learners: Sequence[Path]) -> dict[Path, str]:
    """For each learner's folder in a class: "", or why it is a link that is not graded."""
    refused, homes = dict.fromkeys(learners, ""), dict[Path, str]()
    for learner in sorted(learners, key=lambda each: (each.is_symlink(), each.name)):  # links come after folders
        home = Path(os.path.realpath(learner))
        near = ["the class"] if Path(os.path.realpath(folder)).is_relative_to(home) else []
        near += [name for other, name in homes.items() if home.is_relative_to(other) or other.is_relative_to(home)]
        if not learner.exists():
            refused[learner] = f"a broken link to {os.readlink(learner)}"
        elif learner.is_symlink() and near:
            refused[learner] = f"a link to the folder of {near[0]}"
        else:
            homes[home] = learner.name
    return refused


def has_exercises(folder: Path) -> bool:
    """Whether a folder holds an exercise or answers to a lesson, which makes it a learner's."""
    with suppress(OSError):
        has_answers = any(re.fullmatch(r"lesson_\d+\.json", name) for name in os.listdir(folder))
        return has_answers or any(os.path.lexists(folder / f"{exercise}.py") for exercise in EXERCISES)
    return False


def learner_tasks(folder: Path, refused: str = "") -> Iterator[Task]:
    """A task for every exercise, also where its file is missing."""
    for exercise in EXERCISES:
        yield Task(folder / f"{exercise}.py", exercise, name_of(folder), folder, refused)


def name_of(folder: Path) -> str:
    """A learner's name: the last part of the path of the folder, which may be a link."""
    return Path(os.path.abspath(folder)).name


def table(grades: Sequence[Grade]) -> str:
    """The table of one learner has a line per exercise; that of a class a line per learner, then the mistakes."""
    by_learner, note = learners(grades), not_limited()
    if len(by_learner) == 1:
        lines = [f"{grade.exercise:<22}{grade.verdict:<28}{grade.where}".rstrip() for grade in grades]
        return "\n".join([*lines, "", f"{sum(grade.right for grade in grades)} of {len(grades)} right"])
    width = min(WIDEST, max(len(one_line(name)) for name in by_learner))
    numbers = "".join(f"{number:>4}" for number in range(1, len(EXERCISES) + 1))
    lines = [f"{'learner':<{width}}{numbers}   right"]
    for learner, own in by_learner.items():
        marks = "".join(f"{MARKS[grade.verdict]:>4}" for grade in own)
        lines.append(f"{one_line(learner)[:width]:<{width}}{marks}{sum(grade.right for grade in own):>8}")
    lines += ["", *(f"{number:>4}  {name}" for number, name in enumerate(EXERCISES, 1)), ""]
    lines.append("  ".join(f"{mark} {words}" for words, mark in MARKS.items() if words != "missing") + " or missing")
    return "\n".join([*lines, *mistakes(grades), *([f"\n{note}"] if note else [])])


def learners(grades: Iterable[Grade]) -> dict[str, list[Grade]]:
    """The grades of each learner."""
    by_learner = defaultdict[str, list[Grade]](list)
    for grade in grades:
        by_learner[grade.learner].append(grade)
    return dict(by_learner)


def mistakes(grades: Iterable[Grade]) -> Iterator[str]:
    """What went wrong in a class: each exercise and sentence with those who made it, the most frequent first."""
    by_sentence = defaultdict[tuple[str, str], list[str]](list)
    for grade in grades:
        if grade.sentence and not grade.right:
            by_sentence[grade.exercise, one_line(grade.sentence)[:SHOWN]].append(one_line(grade.learner)[:WIDEST])
    by_learners = defaultdict[tuple[str, tuple[str, ...]], list[str]](list)  # of one sentence and the same learners
    for (exercise, sentence), who in by_sentence.items():
        by_learners[sentence, tuple(who)].append(exercise)
    for (sentence, names), exercises in sorted(by_learners.items(), key=lambda item: -len(item[0][1])):
        where = ", ".join(exercises[:3]) + f" and {len(exercises) - 3} more" * (len(exercises) > 3)
        yield f"\n{len(names):>4}  {where}: {sentence}\n      {', '.join(names)}"


def write_csv(grades: Sequence[Grade], path: Path, answers: Mapping[str, Mapping[int, str]] | None = None) -> None:
    """Write a row for each learner, a column for each exercise: "wrong: you divide by ...", and for each lesson that
    somebody has answered: `answers` in short, {learner: {number of the lesson: text}}. Raises OSError."""
    answers = answers or {}
    numbers = sorted({number for own in answers.values() for number in own})
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["learner", *EXERCISES, *(f"lesson_{number:02}" for number in numbers)])
        for learner, own in learners(grades).items():
            cells = {grade.exercise: f"{grade.verdict}: {grade.where}".rstrip(": ") for grade in own}
            replies = [no_formula(answers.get(learner, {}).get(number, "")) for number in numbers]
            writer.writerow([no_formula(one_line(learner)), *(cells.get(each, "") for each in EXERCISES), *replies])


def no_formula(text: str) -> str:
    """The text, after a quote if a spreadsheet would take it for a formula."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text
