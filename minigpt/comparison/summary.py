"""The summary of a comparison: the rows of its table, differences with confidence intervals, and sentences.

`summarise` puts everything into one dict, which is written to results.json. The printed table, the CSV file and the
page only show what is in it.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from minigpt.comparison.data import text_and_tokenizer
from minigpt.comparison.results import TEXTS, Job
from minigpt.comparison.statistics import paired
from minigpt.comparison.variants import Comparison
from minigpt.config.options import to_python
from minigpt.system.terminal import one_line
from minigpt.training.floor import example, explain_impossible, is_impossible

Result = Mapping[str, Any]

MEANS = ("loss", "floor", "above", "forgetful", "seconds", "training_tokens_per_second", "sampling_tokens_per_second")


def summarise(
    comparison: Comparison,
    results: Sequence[tuple[Job, Result]],
    command: str,
    notes: Sequence[str] = (),
    tuning: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """All results of a comparison: the content of results.json.

    `notes`: lines for the reader of the results. `tuning`: the trials, if there were any.
    """
    by_variant = {name: [r for job, r in results if job.variant == name] for name in comparison.variants}
    metric = "above" if all(r.get("above") is not None for _, r in results if r["status"] == "done") else "loss"
    base = by_variant[comparison.settings.baseline]
    rows = [_row(name, runs, base, metric, comparison) for name, runs in by_variant.items()]
    return {
        "comparison": comparison.name,
        "command": command,
        "notes": list(notes),
        "tuning": tuning,
        "baseline": comparison.settings.baseline,
        "seeds": list(comparison.settings.seeds),
        "match": comparison.settings.match,
        "held_equal": held_equal(comparison, rows),
        "compared": list(comparison.differing),
        "unit": "nats a character",
        "metric": metric,
        "names": list(dict.fromkeys(name for row in rows for name in row["accuracy"])),
        "floor": _common(rows, "floor"),
        "forgetful": None if _common(rows, "floor") is None else _common(rows, "forgetful"),
        "variants": rows,
        "example": _example(comparison, by_variant),
        "runs": [_without_texts(result) for _, result in results],
        "config": {name: to_python(config) for name, config in comparison.variants.items()},
    }


def _without_texts(run: Result) -> dict[str, Any]:
    kept = {key: value for key, value in run.items() if key not in TEXTS}
    return kept | {"impossible": _is_impossible(run)}


def _row(name: str, runs: Sequence[Result], base: Sequence[Result], metric: str, c: Comparison) -> dict[str, Any]:
    """A variant: means over its finished runs, its difference to the baseline, and why other runs did not finish."""
    done = [run for run in runs if run["status"] == "done"]
    row: dict[str, Any] = {"variant": name, "runs": len(done), "of": len(runs)}
    row["impossible"] = any(_is_impossible(run) for run in done)
    row["trouble"] = "; ".join(_troubles(runs))
    row |= {key: _mean([run.get(key) for run in done]) for key in MEANS}
    row |= {key: runs[0].get(key) for key in ("parameters", "flops_per_token", "cache_bytes_per_token")}
    row["steps"] = runs[0].get("steps") if done else None
    names = list(dict.fromkeys(name for run in done for name in run["names"]))
    for what in ("accuracy", "gap", "remembered"):
        row[what] = {n: _mean([run["names"].get(n, {}).get(what) for run in done]) for n in names}
    row["curve"] = _mean_curve([run["curve"] for run in done], metric)
    row["spread"] = _spread([run["curve"] for run in done], metric)
    comparable = name != c.settings.baseline and not any(map(_is_impossible, [*done, *base]))
    row["difference"] = _difference(name, done, base, metric, c) if comparable else None
    return row


def _is_impossible(run: Result) -> bool:
    """Whether a run has a loss below the floor."""
    return run.get("above") is not None and is_impossible(run["above"], run["characters"])


def _troubles(runs: Sequence[Result]) -> Iterator[str]:
    """Which runs did not finish and why, and why the others are not compared."""
    yield from (f"seed {run['seed']} {run['status']}: {run['message']}" for run in runs if run["status"] != "done")
    impossible = [run for run in runs if _is_impossible(run)]
    if impossible:
        seeds = ", ".join(str(run["seed"]) for run in impossible)
        lowest = min(run["above"] for run in impossible)
        yield f"seed {seeds} not compared: {explain_impossible(lowest)}"


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    if len(set(known)) == 1 and len(known) == len(values):
        return known[0]  # exactly; a sum and a division may change the last bit
    return math.fsum(known) / len(known) if known and len(known) == len(values) else None


def _mean_curve(curves: Sequence[Sequence[Sequence[float]]], metric: str) -> list[list[float]]:
    """[step, training loss, compared loss] at each evaluation, averaged over the seeds."""
    compared = -1 if metric == "above" else 2  # [step, training loss, loss] and, if known, above the floor
    chosen = [[(*point[:2], point[compared]) for point in curve] for curve in curves]
    return [[math.fsum(column) / len(column) for column in zip(*points)] for points in zip(*chosen)]


def _spread(curves: Sequence[Sequence[Sequence[float]]], metric: str) -> list[list[float]]:
    """[step, lowest, highest compared loss over the seeds] at each evaluation."""
    compared = -1 if metric == "above" else 2
    chosen = [[(point[0], point[compared]) for point in curve] for curve in curves]
    return [[at[0][0], min(y for _, y in at), max(y for _, y in at)] for at in zip(*chosen)]


def _difference(
    name: str, done: Sequence[Result], base: Sequence[Result], metric: str, c: Comparison
) -> dict[str, Any] | None:
    """Variant minus baseline, paired by seed, with confidence interval and sentence. None: no pair finished."""
    theirs = {run["seed"]: run[metric] for run in base if run["status"] == "done"}
    pairs = [(run[metric], theirs[run["seed"]]) for run in done if run["seed"] in theirs]
    if not pairs:
        return None
    found = paired([ours for ours, _ in pairs], [base for _, base in pairs])
    return {**asdict(found), "shown": found.shown, "sentence": sentence(name, c.settings.baseline, asdict(found))}


def sentence(name: str, baseline: str, difference: Mapping[str, Any]) -> str:
    """A difference as a sentence."""
    mean, low, high, pairs = (difference[key] for key in ("mean", "low", "high", "pairs"))
    if low is None:
        return f"{name} against {baseline}: {mean:+.4f} in one pair; one pair has no confidence interval."
    interval = f"95 % confidence interval {low:+.4f} to {high:+.4f}, {pairs} pairs"
    if low <= 0 <= high:
        return f"{name} against {baseline}: no difference shown ({mean:+.4f}; {interval})."
    word = "worse" if mean > 0 else "better"
    return f"{name} is {word} than {baseline} by {abs(mean):.4f} nats a character ({interval})."


def held_equal(comparison: Comparison, rows: Sequence[Mapping[str, Any]]) -> str:
    """One line: what was equal for all variants, and what was not."""
    tune = comparison.settings.tune
    return _held_equal(comparison, rows) + (f" Chosen for each variant by trials: {tune.key}." if tune else "")


def _held_equal(comparison: Comparison, rows: Sequence[Mapping[str, Any]]) -> str:
    configs = list(comparison.variants.values())
    shapes = {(c.data, c.training.batch_size, c.model.block_size) for c in configs}
    steps = sorted({c.training.max_steps for c in configs})
    batches = "the same batches in the same order" if len(shapes) == 1 else "batches that differ as the variants do"
    batches += " as far as each variant came" if comparison.settings.match == "seconds" else ""
    seeds = f"seeds {', '.join(map(str, comparison.settings.seeds))}"
    counts = sorted(row["parameters"] for row in rows if row["parameters"])
    spread = f"{counts[0]:,}" + (f" to {counts[-1]:,}" if counts[0] < counts[-1] else "") if counts else "unknown"
    times = sorted(row["seconds"] for row in rows if row["seconds"])
    took = f"{times[0]:.3g} to {times[-1]:.3g} s" if times else "unknown"
    taken = f"{steps[0]:,}" + (f" to {steps[-1]:,}" if len(steps) > 1 else "")
    if comparison.settings.match == "seconds":
        wanted = f"{comparison.settings.seconds:g} s of training, measured {took}"
        return f"Held equal: {wanted}; {batches}, {seeds}. Not equal: steps ({taken}), parameters ({spread})."
    equal = f"{taken} steps" if len(steps) == 1 else "nothing but seeds"
    if comparison.settings.match == "parameters":
        return f"Held equal: parameters ({spread}, within 1 %), {equal}; {batches}, {seeds}. Not equal: time ({took})."
    rest = f"parameters ({spread}), time ({took})" + ("" if len(steps) == 1 else f", steps ({taken})")
    return f"Held equal: {equal}; {batches}, {seeds}. Not equal: {rest}."


def _common(rows: Sequence[Mapping[str, Any]], key: str) -> float | None:
    """The value that all rows have in common, or None."""
    values = {row[key] for row in rows if row["runs"]}
    return values.pop() if len(values) == 1 else None


def _example(comparison: Comparison, by_variant: Mapping[str, Sequence[Result]]) -> dict[str, Any] | None:
    """One validation story: the probabilities of both readers, and of each variant's first seed."""
    if len({config.data for config in comparison.variants.values()}) > 1:
        return None
    found = example(text_and_tokenizer(comparison.variants[comparison.settings.baseline].data)[0])
    seen = {name: runs[0].get("example") for name, runs in by_variant.items() if runs}
    if found is None or not any(seen.values()):
        return None
    text, reading = found
    readers = {"takes": reading.takes[1:], "ideal": reading.ideal[1:], "forgetful": reading.forgetful[1:]}
    return {"text": text[1:], **readers, "variants": {name: look for name, look in seen.items() if look}}


# ---------------------------------------------------------------------------------------------- as text


def number(value: float | None, form: str = ".4f") -> str:
    """A number as text; None is a dash."""
    return "-" if value is None else format(value, form)


COLUMNS: dict[str, tuple[str, str]] = {  # {title: (key of a row, format)}
    "loss": ("loss", ".4f"),
    "above floor": ("above", ".4f"),
    "parameters": ("parameters", ",d"),
    "flop/token": ("flops_per_token", ",.0f"),
    "cache B/token": ("cache_bytes_per_token", ",.0f"),
    "train tok/s": ("training_tokens_per_second", ",.0f"),
    "sample tok/s": ("sampling_tokens_per_second", ",.0f"),
    "seconds": ("seconds", ".1f"),
}


def cells(row: Mapping[str, Any]) -> list[str]:
    """The cells of a row of the main table, in the order of COLUMNS."""
    return [number(row[key], form) for key, form in COLUMNS.values()]


def lines(summary: Mapping[str, Any]) -> list[list[str]]:
    """The cells of the main table: titles, a row for each variant, and the forgetful reader."""
    reader = ["" for _ in COLUMNS]
    if summary["forgetful"] is not None:
        both = [number(summary["floor"] + summary["forgetful"]), number(summary["forgetful"])]
        reader = [*both, *reader[2:]]
    made = [["variant", *COLUMNS]] + [[marked(row), *cells(row)] for row in summary["variants"]]
    return made + ([["the forgetful reader", *reader]] if summary["forgetful"] is not None else [])


def marked(row: Mapping[str, Any]) -> str:
    """The name of a variant, with a mark where its loss is below the floor."""
    return f"{row['variant']} (impossible)" if row["impossible"] else str(row["variant"])


def table(summary: Mapping[str, Any]) -> str:
    """The text for the terminal: what was equal, the main table, accuracy by name, trials, and the sentences."""
    parts = [one_line(summary["held_equal"]), "", *aligned(lines(summary))]
    if summary["names"]:
        parts += ["", "accuracy by what must be remembered (free: probability of all characters that are possible):"]
        head = ["variant", *summary["names"]]
        body = [
            [r["variant"], *(number(r["accuracy"].get(n), ".3f") for n in summary["names"])] for r in rows_of(summary)
        ]
        parts += aligned([head, *body])
    if summary["tuning"]:
        parts += ["", f"loss of the trials by {summary['tuning']['key']}:", *aligned(tried(summary))]
    parts += ["", *(one_line(f"{row['variant']}: {row['trouble']}") for row in summary["variants"] if row["trouble"])]
    return "\n".join([*parts, *map(one_line, sentences(summary))])


def tried(summary: Mapping[str, Any]) -> list[list[str]]:
    """The cells of the table of trials: titles, and for each variant its losses and the value taken."""
    tuning = summary["tuning"]
    body = [[row["variant"], *map(number, row["losses"]), number(row["taken"], "g")] for row in tuning["variants"]]
    return [["variant", *(f"{value:g}" for value in tuning["values"]), "taken"], *body]


def rows_of(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of variants that have a finished run."""
    return [row for row in summary["variants"] if row["runs"]]


def sentences(summary: Mapping[str, Any]) -> list[str]:
    """The differences to the baseline, one sentence each."""
    return [row["difference"]["sentence"] for row in summary["variants"] if row["difference"]]


def aligned(table: Sequence[Sequence[str]]) -> Iterator[str]:
    """Lines with columns of equal width: the first aligned to the left, the others to the right."""
    shown = [[one_line(cell) for cell in row] for row in table]
    widths = [max(map(len, column)) for column in zip(*shown)]
    for first, *rest in shown:
        yield f"{first:<{widths[0]}}  " + "  ".join(f"{cell:>{width}}" for cell, width in zip(rest, widths[1:]))


def to_csv(summary: Mapping[str, Any]) -> str:
    """One line for each run, to make your own plots."""
    plain = ("variant", "seed", "status", "steps", "loss", "floor", "forgetful", "above", "impossible")
    costs = ("parameters", "flops_per_token", "cache_bytes_per_token", "seconds")
    speeds = ("training_tokens_per_second", "sampling_tokens_per_second")
    keys, names = (*plain, *costs, *speeds), summary["names"]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    of_names = [f"{what}_{name}" for what in ("accuracy", "gap", "remembered") for name in names]
    writer.writerow([*keys, *of_names])
    for run in summary["runs"]:
        known = run.get("names", {})
        values = [known.get(name, {}).get(what) for what in ("accuracy", "gap", "remembered") for name in names]
        writer.writerow([run.get(key) for key in keys] + values)
    return text.getvalue()
