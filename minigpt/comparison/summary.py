"""The summary of a comparison: the rows of its table, differences with confidence intervals, and sentences.

`summarise` puts everything into one dict, which is written to results.json. The printed table, the CSV file and the
page only show what is in it.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from minigpt.comparison.data import text_and_tokenizer
from minigpt.comparison.grid import in_words as value_in_words
from minigpt.comparison.results import TEXTS, Job
from minigpt.comparison.statistics import Estimate, holm, judged, mean_of_all, paired, pairs_for
from minigpt.comparison.tuning import choice_in_words
from minigpt.comparison.variants import Comparison, has_tokenizers
from minigpt.config.options import to_python
from minigpt.system.terminal import one_line
from minigpt.training.floor import example, explain_impossible, is_impossible

Result = Mapping[str, Any]

SPEEDS = ("seconds", "training_tokens_per_second", "sampling_tokens_per_second")
MEANS = ("loss", "bits_per_byte", "floor", "above", "forgetful", *SPEEDS)
COSTS = ("parameters", "flops_per_token", "cache_bytes_per_token")
FAIR = (
    "Tokenizers differ, so bits a byte of the same validation text are compared: a token is not the same text to all. "
    "A step reads, and a context holds, as many tokens of each, but more text where tokens are longer"
)
OF_NAMES = ("accuracy", "gap", "remembered")  # what is known of each name that says what a character takes


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
    bits = [r.get("bits_per_byte") is not None for _, r in results if r["status"] == "done"]
    metric = "bits_per_byte" if has_tokenizers(comparison.variants) and all(bits) else metric
    rows = [_row(name, by_variant, metric, comparison.settings.baseline) for name in by_variant]
    comparisons = _judge(rows, comparison.settings.baseline, unit_of(metric))
    floor, forgetful = ({row[key] for row in rows if row["runs"]} for key in ("floor", "forgetful"))
    one_floor = len(floor) == 1 and floor != {None}
    runs = [{key: value for key, value in run.items() if key not in TEXTS} for _, run in results]
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
        "comparisons": comparisons,
        "judged": judged(comparisons, len(comparison.settings.seeds)),
        "unit": unit_of(metric),
        "metric": metric,
        "names": list(dict.fromkeys(name for row in rows for name in row["accuracy"])),
        "floor": floor.pop() if one_floor else None,
        "forgetful": forgetful.pop() if one_floor and len(forgetful) == 1 else None,
        "variants": rows,
        "example": _example(comparison, by_variant),
        "runs": [run | {"impossible": below_floor(run)} for run in runs],
        "config": {name: to_python(config) for name, config in comparison.variants.items()},
    }


def below_floor(run: Result) -> bool:
    """Whether a run has a loss below the floor, which is impossible."""
    return run.get("above") is not None and is_impossible(run["above"], run["characters"])


def _row(name: str, by_variant: Mapping[str, Sequence[Result]], metric: str, baseline: str) -> dict[str, Any]:
    """A variant: means over its finished runs, its difference to the baseline, and why other runs did not finish."""
    runs, base = by_variant[name], by_variant[baseline]
    done, impossible = [run for run in runs if run["status"] == "done"], [run for run in runs if below_floor(run)]
    troubles = [f"seed {run['seed']} {run['status']}: {run['message']}" for run in runs if run["status"] != "done"]
    if impossible:
        seeds = ", ".join(str(run["seed"]) for run in impossible)
        troubles.append(f"seed {seeds} not compared: {explain_impossible(min(run['above'] for run in impossible))}")
    row: dict[str, Any] = {"variant": name, "runs": len(done), "of": len(runs)}
    row |= {"impossible": any(map(below_floor, done)), "trouble": "; ".join(troubles)}
    row |= {key: mean_of_all([run.get(key) for run in done]) for key in MEANS}
    row |= {key: runs[0].get(key) for key in COSTS} | {"steps": runs[0].get("steps") if done else None}
    names = list(dict.fromkeys(name for run in done for name in run["names"]))
    for score in OF_NAMES:
        row[score] = {n: mean_of_all([run["names"].get(n, {}).get(score) for run in done]) for n in names}
    curves = [_curve(run, metric) for run in done]
    row["curve"] = [[math.fsum(column) / len(column) for column in zip(*points)] for points in zip(*curves)]
    row["spread"] = [[at[0][0], min(y for *_, y in at), max(y for *_, y in at)] for at in zip(*curves)]
    comparable = name != baseline and not any(map(below_floor, [*done, *base]))
    row["difference"] = _difference(done, base, metric) if comparable else None
    return row


def _curve(run: Result, metric: str) -> list[tuple[float, float, float]]:
    """The compared loss of a run by step: (step, training loss, loss) each. Earlier results have no bits a byte."""
    if metric == "bits_per_byte":
        pairs = zip(run["curve"], run.get("curve_bits", []))
        return [(step, training_loss, bits) for (step, training_loss, *_), bits in pairs if bits is not None]
    compared = -1 if metric == "above" else 2  # a point: [step, training loss, loss] and, if known, above the floor
    return [(*point[:2], point[compared]) for point in run["curve"]]


def _difference(done: Sequence[Result], base: Sequence[Result], metric: str) -> Estimate | None:
    """Variant minus baseline, paired by seed, with confidence interval. None: no pair finished."""
    of_baseline = {run["seed"]: run[metric] for run in base if run["status"] == "done"}
    pairs = [(run[metric], of_baseline[run["seed"]]) for run in done if run["seed"] in of_baseline]
    return paired(*zip(*pairs)) if pairs else None


def _judge(rows: Sequence[dict[str, Any]], baseline: str, unit: str) -> int:
    """Judge all differences together, and give each its sentence. Returns how many they are."""
    compared = [row for row in rows if row["difference"]]
    differences: list[Estimate] = [row["difference"] for row in compared]
    together = holm(differences)
    comparisons = sum(adjusted is not None for adjusted, _ in together)
    for row, difference, (adjusted, significant) in zip(compared, differences, together):
        row["difference"] = asdict(difference) | {"p_holm": adjusted, "shown": significant}
        row["difference"]["sentence"] = sentence(row["variant"], baseline, row["difference"], comparisons, unit)
    return comparisons


def unit_of(metric: str) -> str:
    """The unit of the numbers that are compared."""
    return "bits a byte" if metric == "bits_per_byte" else "nats a character"


def sentence(
    name: str, baseline: str, difference: Mapping[str, Any], comparisons: int = 1, unit: str = "nats a character"
) -> str:
    """A difference as a sentence: whether it is `shown` among so many, or, if that is not said, by its interval."""
    mean, low, high, pairs = (difference[key] for key in ("mean", "low", "high", "pairs"))
    if low is None:
        return f"{name} against {baseline}: {mean:+.4f} in one pair; one pair has no confidence interval."
    interval = f"95 % confidence interval {low:+.4f} to {high:+.4f}, {pairs} pairs"
    alone = Estimate(mean, low, high, pairs)
    if difference.get("shown", alone.excludes_zero):
        word = "worse" if mean > 0 else "better"
        return f"{name} is {word} than {baseline} by {abs(mean):.4f} {unit} ({interval})."
    if not alone.excludes_zero:
        return f"{name} against {baseline}: no difference shown ({mean:+.4f}; {interval})."
    needed = pairs_for(alone.deviations, comparisons)
    interval += f", which by itself leaves out zero; if it stays so, {needed} new seeds show it in four of five cases"
    return f"{name} against {baseline}: no difference shown among {comparisons} ({mean:+.4f}; {interval})."


def held_equal(comparison: Comparison, rows: Sequence[Mapping[str, Any]]) -> str:
    """One line: what was equal for all variants, and what was not."""
    settings, configs = comparison.settings, comparison.variants.values()
    same_batches = len({(c.data, c.training.batch_size, c.model.block_size) for c in configs}) == 1
    shared = "the same batches in the same order" if same_batches else "batches that differ as the variants do"
    shared += " as far as each variant came" if settings.match == "seconds" else ""
    shared += f", seeds {', '.join(map(str, settings.seeds))}"
    numbers = {c.training.max_steps for c in configs}
    steps, parameters = span(numbers), span({row["parameters"] for row in rows if row["parameters"]})
    times = sorted(row["seconds"] for row in rows if row["seconds"])
    time = f"{times[0]:.3g} to {times[-1]:.3g} s" if times else "unknown"
    equal = f"{steps} steps" if len(numbers) == 1 else "nothing but seeds"
    different = f"parameters ({parameters}), time ({time})" + ("" if len(numbers) == 1 else f", steps ({steps})")
    if settings.match == "seconds":
        equal = f"{settings.seconds:g} s of training, measured {time}"
        different = f"steps ({steps}), parameters ({parameters})"
    elif settings.match == "parameters":
        equal, different = f"parameters ({parameters}, within 1 %), {equal}", f"time ({time})"
    if has_tokenizers(comparison.variants):
        shared += f". {FAIR}"
    return f"Held equal: {equal}; {shared}. Not equal: {different}. {choice_in_words(comparison)}".rstrip()


def span(numbers: Collection[int]) -> str:
    """The smallest and the largest number as text, or the only one."""
    low, high = min(numbers, default=None), max(numbers, default=None)
    return "unknown" if low is None else f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _example(comparison: Comparison, by_variant: Mapping[str, Sequence[Result]]) -> dict[str, Any] | None:
    """One validation story: the probabilities of both readers, and of each variant's first seed."""
    if len({config.data for config in comparison.variants.values()}) > 1:
        return None
    story = example(text_and_tokenizer(comparison.variants[comparison.settings.baseline].data)[0])
    looks = {name: look for name, runs in by_variant.items() if runs and (look := runs[0].get("example"))}
    if story is None or not looks:
        return None
    text, reading = story
    readers = {"takes": reading.takes[1:], "ideal": reading.ideal[1:], "forgetful": reading.forgetful[1:]}
    return {"text": text[1:], **readers, "variants": looks}


# ---------------------------------------------------------------------------------------------- as text


def number(value: float | None, form: str = ".4f") -> str:
    """A number as text; None is a dash."""
    return "-" if value is None else format(value, form)


COLUMNS: dict[str, tuple[str, str]] = {  # {title: (key of a row, format)}
    "loss": ("loss", ".4f"),
    "above floor": ("above", ".4f"),
    "bits/byte": ("bits_per_byte", ".4f"),
    "parameters": ("parameters", ",d"),
    "flop/token": ("flops_per_token", ",.0f"),
    "cache B/token": ("cache_bytes_per_token", ",.0f"),
    "train tok/s": ("training_tokens_per_second", ",.0f"),
    "sample tok/s": ("sampling_tokens_per_second", ",.0f"),
    "seconds": ("seconds", ".1f"),
}


def cells(row: Mapping[str, Any]) -> list[str]:
    """The cells of a row of the main table, in the order of COLUMNS."""
    return [number(row.get(key), form) for key, form in COLUMNS.values()]


def lines(summary: Mapping[str, Any]) -> list[list[str]]:
    """The cells of the main table: titles, a row for each variant, and the forgetful reader."""
    table = [["variant", *COLUMNS], *([marked(row), *cells(row)] for row in summary["variants"])]
    if summary["forgetful"] is None:
        return table
    losses = [number(summary["floor"] + summary["forgetful"]), number(summary["forgetful"])]
    return [*table, ["the forgetful reader", *losses, *[""] * (len(COLUMNS) - len(losses))]]


def marked(row: Mapping[str, Any]) -> str:
    """The name of a variant, with a mark where its loss is below the floor."""
    return f"{row['variant']} (impossible)" if row["impossible"] else str(row["variant"])


def in_words(summary: Mapping[str, Any]) -> str:
    """The text for the terminal: what was equal, the main table, accuracy by name, trials, and the sentences."""
    parts = [one_line(summary["held_equal"]), "", *aligned(lines(summary))]
    if summary["names"]:
        parts += ["", "accuracy by what must be remembered (free: probability of all characters that are possible):"]
        parts += aligned(accuracies(summary))
    if summary["tuning"]:
        parts += ["", f"loss of the trials by {', '.join(summary['tuning']['grid'])}:", *aligned(tried(summary))]
        parts += ["", *map(one_line, best_choices(summary))]
    parts += ["", *(one_line(f"{row['variant']}: {row['trouble']}") for row in summary["variants"] if row["trouble"])]
    return "\n".join([*parts, *map(one_line, sentences(summary))])


def accuracies(summary: Mapping[str, Any]) -> list[list[str]]:
    """The cells of the table of accuracies: titles, and each variant that has a finished run."""
    rows = [
        [row["variant"], *(number(row["accuracy"].get(n), ".3f") for n in summary["names"])] for row in rows_of(summary)
    ]
    return [["variant", *summary["names"]], *rows]


def tried(summary: Mapping[str, Any], title: str = "variant") -> list[list[str]]:
    """The cells of the table of trials: titles, and for each variant its losses and the value taken."""
    tuning = summary["tuning"]
    body = [[row["variant"], *map(number, row["losses"]), row["choice"] or "-"] for row in tuning["variants"]]
    return [[title, *tuning["choices"], "taken"], *body]


def best_choices(summary: Mapping[str, Any]) -> Iterator[str]:
    """What each variant took, among how many choices, and its loss when it was measured again, one sentence each."""
    tuning, losses = summary["tuning"], {row["variant"]: row["loss"] for row in summary["variants"]}
    count, seeds = len(tuning["choices"]), ", ".join(map(str, summary["seeds"]))
    for row in tuning["variants"]:
        if row["taken"] is not None:
            values = (f"{key.rpartition('.')[2]} {value_in_words(value)}" for key, value in row["taken"].items())
            best = f"{row['variant']}: {', '.join(values)}, the best of {count} in the trials ({row['loss']:.4f})"
            yield f"{best}; measured again with the seeds {seeds}: {number(losses.get(row['variant']))}"


def rows_of(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of variants that have a finished run."""
    return [row for row in summary["variants"] if row["runs"]]


def sentences(summary: Mapping[str, Any]) -> list[str]:
    """The differences to the baseline, one sentence each, and how they were judged together."""
    each = [row["difference"]["sentence"] for row in summary["variants"] if row["difference"]]
    return [*each, *filter(None, [summary["judged"]])]


def csv_rows(summary: Mapping[str, Any]) -> Iterator[Sequence[Any]]:
    """The titles, and one line for each run, to make your own plots."""
    losses = ("loss", "bits_per_byte", "floor", "forgetful", "above", "impossible")
    keys = ("variant", "seed", "status", "steps", *losses, *COSTS, *SPEEDS)
    of_names = [(score, name) for score in OF_NAMES for name in summary["names"]]
    yield [*keys, *(f"{score}_{name}" for score, name in of_names)]
    for run in summary["runs"]:
        names = run.get("names", {})
        yield [*map(run.get, keys), *(names.get(name, {}).get(score) for score, name in of_names)]


# ---------------------------------------------------------------------------------------- of every experiment


def aligned(table: Sequence[Sequence[str]]) -> Iterator[str]:
    """Lines with columns of equal width: the first aligned to the left, the others to the right."""
    rows = [[one_line(cell) for cell in row] for row in table]
    widths = [max(map(len, column)) for column in zip(*rows)]
    for first, *rest in rows:
        yield f"{first:<{widths[0]}}  " + "  ".join(f"{cell:>{width}}" for cell, width in zip(rest, widths[1:]))


def to_csv(rows: Iterable[Sequence[Any]]) -> str:
    """Rows as the text of a CSV file."""
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(rows)
    return file.getvalue()
