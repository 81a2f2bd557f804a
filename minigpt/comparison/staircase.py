"""A staircase: which tasks does each attention solve? Every rung is trained on every task, with every seed.

    compare: {seeds: [1, 2, 3]}
    tasks:
      most: {question: Which digit comes most often?, data.source: most}
    variants:
      mean: {model.attention: average_softmax}
    data: ...      model: ...      training: ...           # as for train.py; the same for all

A task is a name, its question, and the config keys in which it differs. Each rung on each task is one variant of the
comparison, `mean, most`. Beside the accuracy of each stands the ceiling of a reader with the rung's means
(`text/languages/tasks/ceilings.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from minigpt.attention.averages.average import Average
from minigpt.attention.position import Convolution
from minigpt.attention.softmax.dot_product import DotProduct
from minigpt.attention.softmax.multi_head import MultiHead
from minigpt.attention.softmax.query_key import QueryKey
from minigpt.attention.softmax.single_head import SingleHead
from minigpt.comparison.results import TEXTS, Job
from minigpt.comparison.summary import aligned, number, span
from minigpt.comparison.variants import Comparison, cell_name
from minigpt.config.options import to_python
from minigpt.model import ModelConfig
from minigpt.model.blocks import AttentionOnly
from minigpt.seeing.drawing import Theme
from minigpt.seeing.figures import Square, squares_svg
from minigpt.system.terminal import one_line
from minigpt.text.languages.tasks.base import Task
from minigpt.text.languages.tasks.ceilings import Ceiling, Means, ceiling
from minigpt.training.assemble import RunConfig
from minigpt.training.floor import NO_MEMORY

SOLVED = 0.98  # of the answers are right, with every seed
SLACK = 0.02  # by chance, a run may be above a ceiling by this much

Result = Mapping[str, Any]
Summary = Mapping[str, Any]


def means_of(model: ModelConfig) -> Means | None:
    """What a reader with the means of this model can do, as `ceiling` names it; None where it is not known."""
    attention = model.layer_attention(0).component
    if model.n_layer > 1 or model.block.component is not AttentionOnly:
        return None
    means: dict[type, Means] = {DotProduct: "dot product", QueryKey: "query_key"}
    if attention in means or issubclass(attention, Average):
        return means.get(attention, "mean")
    if attention not in (SingleHead, MultiHead):
        return None
    position = model.layer_attention(0).position or model.position
    if any(map(position.component.acts_by, ("rotate", "bias"))):
        return "one layer"
    return "one head" if getattr(model.layer_attention(0), "n_head", 1) == 1 else "heads"


def ceiling_of(config: RunConfig) -> Ceiling | None:
    """The ceiling of a model on its task; None where none is known, or its means suffice."""
    means, task = means_of(config.model), config.data.language
    if means is None or not isinstance(task, Task):
        return None
    return ceiling(task, means, issubclass(config.model.position.component, Convolution))


def summarise(
    staircase: Comparison, results: Sequence[tuple[Job, Result]], command: str, notes: Sequence[str] = ()
) -> dict[str, Any]:
    """All results of a staircase: the content of results.json."""
    runs = {name: [r for job, r in results if job.variant == name] for name in staircase.variants}
    pairs = [(rung, task) for rung in staircase.rungs for task in staircase.tasks]
    cells = {pair: _cell(staircase, cell_name(*pair), runs) for pair in pairs}
    solved = {pair: cell["solved"] for pair, cell in cells.items()}
    return {
        "comparison": staircase.name,
        "command": command,
        "notes": list(notes),
        "seeds": list(staircase.settings.seeds),
        "held_equal": held_equal(staircase, [r for _, r in results if r["status"] == "done"]),
        "rungs": list(staircase.rungs),
        "tasks": [_task(staircase, task, runs, solved) for task in staircase.tasks],
        "cells": [{"rung": rung, "task": task} | cell for (rung, task), cell in cells.items()],
        "runs": [{key: value for key, value in result.items() if key not in TEXTS} for _, result in results],
        "config": {name: to_python(config) for name, config in staircase.variants.items()},
    }


def _cell(staircase: Comparison, name: str, runs: Mapping[str, Sequence[Result]]) -> dict[str, Any]:
    """A rung on a task: the accuracy with each seed, and the ceiling."""
    values = [accuracy(run) for run in runs[name] if run["status"] == "done"]
    top = ceiling_of(staircase.variants[name])
    return {
        "values": values,
        "mean": math.fsum(values) / len(values) if values else None,
        "solved": len(values) == len(staircase.settings.seeds) and min(values) >= SOLVED,
        "ceiling": top and top._asdict(),
        "trouble": "; ".join(f"seed {run['seed']} {run['status']}" for run in runs[name] if run["status"] != "done"),
    }


def accuracy(run: Result) -> float:
    """The share of the answers that are right."""
    scores = [score for name, score in run["names"].items() if name not in NO_MEMORY]
    right = sum(score["accuracy"] * score["characters"] for score in scores)
    return float(right / sum(score["characters"] for score in scores))


def _task(
    staircase: Comparison, name: str, runs: Mapping[str, Sequence[Result]], solved: Mapping[tuple[str, str], bool]
) -> dict[str, Any]:
    """A task: its question, what is right by chance, and one text with the answer of each rung."""
    config = staircase.variants[cell_name(staircase.rungs[0], name)]
    task, of_rungs = config.data.language, {rung: runs[cell_name(rung, name)] for rung in staircase.rungs}
    assert isinstance(task, Task)
    by_chance = ceiling(task, "nothing", issubclass(config.model.position.component, Convolution))
    answers = {rung: dict(results[0].get("answered", ())) for rung, results in of_rungs.items() if results}
    text = telling_text(task, answers, {rung: solved[rung, name] for rung in of_rungs})
    target = range(len(text))[task.answers(text)][0] if text else 0
    return {
        "task": name,
        "question": staircase.tasks[name],
        "chance": by_chance.value if by_chance else None,
        "text": text[1:target],
        "answer": text[target : target + 1],
        "answers": {rung: of_texts[text] for rung, of_texts in answers.items() if text in of_texts},
    }


def telling_text(task: Task, answers: Mapping[str, Mapping[str, str]], solved: Mapping[str, bool]) -> str:
    """The text on which the most rungs are right if they solve the task, and wrong if they do not; "" if there is none.

    `answers` has the answer of each rung to each text.
    """

    def as_usual(text: str) -> int:
        right = text[task.answers(text)]
        return sum((of_texts.get(text) == right) == solved[rung] for rung, of_texts in answers.items())

    return max((text for of_texts in answers.values() for text in of_texts), key=as_usual, default="")


def held_equal(staircase: Comparison, done: Sequence[Result]) -> str:
    """One line: what all runs have in common, and what differs."""
    configs = staircase.variants.values()
    steps = span({config.training.max_steps for config in configs})
    blocks = sorted({config.model.block.component.kind for config in configs})
    counts = sorted({run["parameters"] for run in done})
    seeds = f"seeds {', '.join(map(str, staircase.settings.seeds))}"
    parameters = f"{counts[0]:,} to {counts[-1]:,}" if counts else "unknown"
    return f"Equal for all: {steps} steps, {', '.join(blocks)} blocks, {seeds}. Not equal: parameters ({parameters})."


# ---------------------------------------------------------------------------------------------------------- as text


def cells_of(summary: Summary, rung: str) -> list[dict[str, Any]]:
    """The cells of a rung, in the order of the tasks."""
    return [cell for cell in summary["cells"] if cell["rung"] == rung]


def accuracy_span(cell: Mapping[str, Any]) -> str:
    """The lowest and the highest accuracy of a cell: 1.00, 0.31 to 0.34."""
    ends = sorted({number(value, ".2f") for value in cell["values"]})
    return f"{ends[0]} to {ends[-1]}" if len(ends) > 1 else ends[0] if ends else "-"


def ceiling_in_words(cell: Mapping[str, Any]) -> str:
    """The ceiling of a cell: "at most 0.34", "about 0.77" for an estimate, or nothing."""
    top = cell["ceiling"]
    return f"{'at most' if top['exact'] else 'about'} {top['value']:.2f}" if top else ""


def rows(summary: Summary) -> Iterator[list[str]]:
    """The table: a row for each rung, with the ceilings in a row below it."""
    yield ["", *(task["task"] for task in summary["tasks"])]
    yield ["by chance", *(number(task["chance"], ".2f") for task in summary["tasks"])]
    for rung in summary["rungs"]:
        cells = cells_of(summary, rung)
        yield [rung, *map(accuracy_span, cells)]
        if any(cell["ceiling"] for cell in cells):
            yield ["  its ceiling", *map(ceiling_in_words, cells)]


def surprises(summary: Summary) -> Iterator[str]:
    """Sentences on runs that are above their ceiling, and on runs that did not finish."""
    for cell in summary["cells"]:
        name, top = f"{cell['rung']} on {cell['task']}", cell["ceiling"]
        if top and cell["values"] and max(cell["values"]) > top["value"] + SLACK:
            yield f"{name}: {max(cell['values']):.2f} is above the ceiling of {top['value']:.2f}."
        if cell["trouble"]:
            yield f"{name}: {cell['trouble']}."


def in_words(summary: Summary) -> str:
    """The text for the terminal: what was equal, the questions, the accuracies with their ceilings."""
    questions = [[task["task"], f"{task['text']}{task['answer']}", task["question"]] for task in summary["tasks"]]
    width = max(len(row[0]) for row in questions), max(len(row[1]) for row in questions)
    aligned_questions = [f"{name:<{width[0]}}  {text:<{width[1]}}  {question}" for name, text, question in questions]
    parts = [summary["held_equal"], "", *aligned_questions, ""]
    parts += ["accuracy of the answers, the lowest and the highest of the seeds:"]
    return "\n".join([*map(one_line, parts), *aligned(list(rows(summary))), *map(one_line, surprises(summary))])


def staircase_svg(summary: Summary, theme: Theme) -> str:
    """The triangle as a picture, with the question of each task."""
    columns = {task["task"]: task["question"] for task in summary["tasks"]}
    squares = {
        rung: [Square(c["solved"], number(c["mean"], ".2f"), ceiling_in_words(c)) for c in cells_of(summary, rung)]
        for rung in summary["rungs"]
    }
    title = "The share of right answers: each rung solves what none before it can"
    seeds = f"with each of {len(summary['seeds'])} seeds"
    foot = f"Filled: {SOLVED:.0%} or more {seeds}. Small: the most that a rung can reach, over all texts."
    return squares_svg(columns, squares, title, foot, theme)


def csv_rows(summary: Summary) -> Iterator[Sequence[Any]]:
    """The titles, and one line for each run."""
    yield ["rung", "task", "run", "accuracy", "ceiling", "exact"]
    for cell in summary["cells"]:
        top = cell["ceiling"] or {"value": None, "exact": None}
        for run, value in enumerate(cell["values"], 1):
            yield [cell["rung"], cell["task"], run, value, top["value"], top["exact"]]
