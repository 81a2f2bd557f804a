"""The summary of an experiment over sizes: losses, power laws, predictions, and whether a gain stays at larger sizes.

`summarise` puts everything into one dict, which is written to results.json. The table, the CSV file, the chart and the
page only show what is in it.

The gain of a kind over the baseline at a size is a ratio of losses above the floor, or a difference of losses where no
floor is known. The trend of a gain is computed for each seed: the slope of the least-squares line through the gains
(of ratios, the logarithms) over the logarithm of the size. With ratios, it is the difference of the two exponents. Its
interval is the wider one of two: Student's over the seeds, and Student's from the scatter of the sizes around the line.
The second is there because a gain that goes up and down with the size, with every seed alike, is no trend. A sentence
says that there is a trend only where this interval excludes zero, and with several kinds where Holm's correction over
their trends leaves it (`statistics.py`); so a gain at one size is only called one among those of all kinds there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from minigpt.comparison.power_law import fit, loose
from minigpt.comparison.results import Job
from minigpt.comparison.sizes import Point, Scaling
from minigpt.comparison.statistics import CONFIDENCE, Estimate, between, holm, judged, p_value, paired, t_quantile
from minigpt.comparison.summary import aligned, below_floor, number, tried
from minigpt.comparison.tuning import choice_in_words
from minigpt.config.options import to_python
from minigpt.system.terminal import one_line
from minigpt.text.dataset import DataConfig

Result = Mapping[str, Any]


def summarise(
    scaling: Scaling, results: Sequence[tuple[Job, Result]], command: str, notes: Sequence[str], tuning: Any = None
) -> dict[str, Any]:
    """All results: the content of results.json."""
    done = [(job, result) for job, result in results if result["status"] == "done"]
    metric = "above" if done and all(result["above"] is not None for _, result in done) else "loss"
    losses: dict[str, dict[int, float]] = {variant: {} for variant in scaling.points}
    left_out = list[str]()
    for job, result in results:
        if result["status"] != "done":
            left_out.append(f"{job.who} is left out: it {result['status']}: {result['message']}")
        elif below_floor(result):
            left_out.append(f"{job.who} is left out: its loss is below the floor")
        else:
            losses[job.variant][job.seed] = result[metric]
    kinds = dict.fromkeys(point.kind for point in scaling.points.values())
    rows = [_row(kind, scaling, losses, 0.0 if metric == "above" else None) for kind in kinds]
    base = next(row for row in rows if row["kind"] == scaling.settings.baseline)
    for row in rows:
        row["trend"] = None if row is base else _trend(row, base, metric)
    comparisons = _judge([row["trend"] for row in rows if row["trend"]])
    data = next(iter(scaling.variants.values())).data
    return {
        "scaling": scaling.name,
        "command": command,
        "notes": [*notes, *left_out, *_epochs(scaling, data)],
        "baseline": scaling.settings.baseline,
        "seeds": list(scaling.settings.seeds),
        "comparisons": comparisons,
        "judged": judged(comparisons, len(scaling.settings.seeds)),
        "metric": metric,
        "unit": _unit(data) + (" above the floor" if metric == "above" else ""),
        "text": str(data.source if isinstance(data.source, str) else data.source.component.kind),
        "rate": _rate(scaling),
        "tuning": tuning,
        "kinds": rows,
        "config": {name: to_python(config) for name, config in scaling.variants.items()},
    }


def _row(kind: str, scaling: Scaling, losses: Mapping[str, Mapping[int, float]], floor: float | None) -> dict[str, Any]:
    """The row of a kind: its points, its power law, and what the law predicts."""
    points = [_point(point, losses[variant]) for variant, point in scaling.points.items() if point.kind == kind]
    fitted = [p for p in points if not p["held_out"] and p["mean"] is not None]
    sizes, means = [p["parameters"] for p in fitted], [p["mean"] for p in fitted]
    law = fit(sizes, means, floor) if len({*sizes}) == len(sizes) else "two sizes have as many parameters"
    if isinstance(law, str):
        return {"kind": kind, "points": points, "law": {"trouble": law}}
    for point in points if not law.trouble else ():
        if point["held_out"]:
            predicted = law.predict(point["parameters"])
            held = None if point["mean"] is None else point["mean"] in predicted
            point["predicted"] = asdict(predicted) | {"held": held}
    numbers = {key: value for key, value in vars(law).items() if key not in ("covariance", "alpha", "E")}
    numbers |= {"alpha": asdict(law.alpha), "E": asdict(law.E), "loose": loose(law)}
    return {"kind": kind, "points": points, "law": numbers}


def _point(point: Point, losses: Mapping[int, float]) -> dict[str, Any]:
    """A kind at one size: the losses of its seeds, and without a prediction as yet."""
    values = list(losses.values())
    spread = {"mean": math.fsum(values) / len(values), "low": min(values), "high": max(values)} if values else {}
    empty = {"mean": None, "low": None, "high": None, "predicted": None}
    return asdict(point) | empty | spread | {"losses": {str(seed): loss for seed, loss in losses.items()}}


def _trend(row: Mapping[str, Any], base: Mapping[str, Any], metric: str) -> dict[str, Any]:
    """The gain over the baseline at each size, paired by seed, and its slope; a slope of None: too few pairs."""
    change = math.log if metric == "above" else float
    gains, sizes = dict[str, list[tuple[float, float]]](), list[dict[str, Any]]()
    for point, of_baseline in zip(row["points"], base["points"]):
        seeds = [seed for seed in point["losses"] if seed in of_baseline["losses"]]
        losses, base_losses = ([p["losses"][seed] for seed in seeds] for p in (point, of_baseline))
        usable = bool(seeds) and (metric == "loss" or min(*losses, *base_losses) > 0)
        changes = [(change(b), change(a)) for a, b in zip(losses, base_losses)] if usable else []
        sizes.append(
            {"size": point["size"], "parameters": of_baseline["parameters"]}
            | {"difference": asdict(paired(losses, base_losses)) if seeds else None}
            | {"gain": asdict(paired(*zip(*changes))) if usable else None}
        )
        for seed, (b, a) in zip(seeds, changes):
            gains.setdefault(seed, []).append((math.log(of_baseline["parameters"]), b - a))
    complete = [points for points in gains.values() if len(points) == len(sizes)]
    several = len(complete) >= 2 and len({size["parameters"] for size in sizes}) >= 2
    return {"sizes": sizes, "slope": slope_of(complete) if several else None}


def slope_of(seeds: Sequence[Sequence[tuple[float, float]]]) -> dict[str, Any]:
    """The slope of the least-squares line through the points (x, y) of two or more seeds, as an Estimate (see
    above); all seeds have the same n x.
    """
    x, y = np.array(seeds).transpose(2, 1, 0)  # (n, seeds) each
    x, degrees = x[:, 0] - x[:, 0].mean(), len(x) - 2
    slope = paired(list(x @ y / (x @ x)), [0.0] * len(seeds))
    residuals = y.mean(axis=1) - y.mean() - slope.mean * x  # (n,)
    scatter = math.sqrt(float(residuals @ residuals / (x @ x)) / degrees) if degrees else 0.0
    margin = scatter * t_quantile((1 + CONFIDENCE) / 2, max(1, degrees))
    assert slope.low is not None and slope.high is not None  # two seeds or more
    p = max(slope.p or 0.0, p_value(slope.mean, scatter, degrees) if degrees else 0.0)
    low, high = min(slope.low, slope.mean - margin), max(slope.high, slope.mean + margin)
    return asdict(replace(slope, low=low, high=high, p=p))


def _judge(trends: Sequence[dict[str, Any]]) -> int:
    """Judge the slopes of all kinds together, and their gains at each size. Returns how many slopes there are."""
    slopes = [trend["slope"] for trend in trends if trend["slope"]]
    gains = [[gain for size in sizes if (gain := size["gain"])] for sizes in zip(*(t["sizes"] for t in trends))]
    for estimates in (slopes, *gains):
        for estimate, (adjusted, significant) in zip(estimates, holm([Estimate(**e) for e in estimates])):
            estimate |= {"p_holm": adjusted, "shown": significant}
    return len(slopes)


def _epochs(scaling: Scaling, data: DataConfig) -> Iterator[str]:
    """A note on each size that sees every text more than 4 times: repeated text is worth less (arXiv 2305.16264)."""
    if data.language is None or data.windows != "documents":
        return
    texts = data.language.config.count - data.language.config.validation
    for variant, config in scaling.variants.items():
        times, point = config.training.max_steps * config.training.batch_size / texts, scaling.points[variant]
        if times > 4 and point.kind == scaling.settings.baseline:
            yield f"{point.size}: each text is seen {times:.1f} times; repeated text is worth less"


def _unit(data: DataConfig) -> str:
    """The unit of a loss. Where a language asks questions, only the characters of the answers count."""
    answer = None if data.language is None else data.language.question(0)
    if answer is None:
        return "nats a character"
    return "nats an answer" if answer[1] == 1 else "nats a character of an answer"


def _rate(scaling: Scaling) -> str:
    """How the learning rate of a size, or another option of it, was chosen, as a sentence."""
    power = scaling.settings.rate_power
    if scaling.grids:
        return choice_in_words(scaling, "kind at each size")
    rates = [config.training.optimizer.learning_rate for config in scaling.variants.values()]
    if power == 0:
        return f"One learning rate for all sizes: {rates[0]:g}."
    return f"The learning rate goes with the width to the power of {power:g}: {rates[0]:g} to {rates[-1]:g}."


# ---------------------------------------------------------------------------------------------- as text


def lines(summary: Mapping[str, Any]) -> list[list[str]]:
    """The table: a row for each kind with its loss at every size, its exponent, and its prediction."""
    points = summary["kinds"][0]["points"]
    sizes = [point["size"] + (" (held out)" if point["held_out"] else "") for point in points]
    rows = [["kind", *sizes, "exponent (95 %)", "predicted for the largest"]]
    for row in summary["kinds"]:
        law, last = row["law"], row["points"][-1]
        alpha = "none" if law["trouble"] else between(ends_of(law["alpha"]))
        predicted = "-" if last["predicted"] is None else between(ends_of(last["predicted"]), ".3f")
        rows.append([row["kind"], *(number(point["mean"]) for point in row["points"]), alpha, predicted])
    return rows


def in_words(summary: Mapping[str, Any]) -> str:
    """The text for the terminal: the table, the trials of a grid, and what was found."""
    trials = [*aligned(tried(summary, "trials")), "", one_line(summary["rate"]), ""] if summary["tuning"] else []
    return "\n".join([*aligned(lines(summary)), "", *trials, *map(one_line, sentences(summary))])


def sentences(summary: Mapping[str, Any]) -> list[str]:
    """The laws, the predictions and the trends, one sentence each."""
    return [*findings(summary), *trends(summary)]


def findings(summary: Mapping[str, Any]) -> Iterator[str]:
    """The law of each kind, and what it predicts, one sentence each."""
    for row in summary["kinds"]:
        yield law_in_words(row, summary)
        yield from filter(None, (prediction_in_words(row["kind"], point) for point in row["points"]))


def trends(summary: Mapping[str, Any]) -> list[str]:
    """How each gain over the baseline changes with the size, one sentence each, and how they were judged together."""
    each = [trend_in_words(row, summary) for row in summary["kinds"] if row["trend"]]
    return [*each, *filter(None, [summary["judged"]])]


def law_in_words(row: Mapping[str, Any], summary: Mapping[str, Any]) -> str:
    """The law of a kind as a sentence."""
    law = row["law"]
    if law["trouble"]:
        return f"{row['kind']}: {law['trouble']}."
    A, alpha = math.exp(law["log_A"]), law["alpha"]
    formula = f"{A:.3g} N^-{alpha['value']:.3f}"
    if law["known"]:
        return f"{row['kind']}: loss above the floor = {formula}; exponent {between(ends_of(alpha), '.3f')}."
    E = law["E"]
    open_end = "; E is hardly determined by these sizes" if law["loose"] else ""
    exponent = f"exponent {between(ends_of(alpha), '.3f')}"
    return f"{row['kind']}: loss = {E['value']:.3f} + {formula}; {exponent}, E {between(ends_of(E), '.3f')}{open_end}."


def prediction_in_words(kind: str, point: Mapping[str, Any]) -> str:
    """The predicted and the measured loss of a held-out size, as a sentence; "" where there is no prediction."""
    prediction = point["predicted"]
    if prediction is None or prediction["held"] is None:
        return ""
    predicted, held = between(ends_of(prediction), ".4f"), "inside" if prediction["held"] else "OUTSIDE"
    measured = f"measured {point['mean']:.4f}"
    return f"{kind}, {point['size']}, held out: predicted {predicted}, {measured}: {held} the interval."


def ends_of(interval: Mapping[str, float]) -> list[float]:
    """The number of an interval in results.json, and its ends."""
    return [interval[key] for key in ("value", "low", "high")]


def trend_in_words(row: Mapping[str, Any], summary: Mapping[str, Any]) -> str:
    """How the gain over the baseline changes with the size, as a sentence."""
    base, kind, slope, sizes = summary["baseline"], row["kind"], row["trend"]["slope"], row["trend"]["sizes"]
    if slope is None:
        return f"{kind} against {base}: too few pairs of runs for a trend."
    first, last = sizes[0]["gain"], sizes[-1]["gain"]
    gain, lag = ("gain", "lag") if first["mean"] > 0 else ("lag", "gain")
    better, turns = slope["mean"] > 0, last["shown"] and (first["mean"] > 0) != (last["mean"] > 0)
    if not slope["shown"]:
        among = f" among {summary['comparisons']} kinds" if slope["low"] > 0 or slope["high"] < 0 else ""
        trend = f"{kind} against {base}: no trend shown in {len(sizes)} sizes{among},"
    elif not first["shown"]:
        trend = f"Compared with {base}, {kind} becomes {'better' if better else 'worse'}"
    else:
        how = "grows" if (first["mean"] > 0) == better else f"turns into a {lag}" if turns else "shrinks"
        trend = f"The {gain} of {kind} against {base} {how}"
    unit = "difference of exponents" if summary["metric"] == "above" else "nats for each e-fold of parameters"
    interval = f"{unit} {slope['mean']:+.3g}, {slope['low']:+.3g} to {slope['high']:+.3g}"
    amounts = (f"{amount(size['gain'], summary)} at {size['size']}" for size in (sizes[0], sizes[-1]))
    return f"{trend} from {sizes[0]['size']} to {sizes[-1]['size']} ({interval}): {', '.join(amounts)}."


def amount(gain: Mapping[str, float], summary: Mapping[str, Any]) -> str:
    """A gain with its interval: in per cent of the baseline's height above the floor, or in nats."""
    if summary["metric"] == "loss":
        mean, low, high = (0.0 - gain[key] for key in ("mean", "high", "low"))
        return f"{mean:+.4f} nats ({low:+.4f} to {high:+.4f})"
    return between((math.exp(min(50.0, -gain[key])) - 1 for key in ("mean", "high", "low")), "+.1%")


def csv_rows(summary: Mapping[str, Any]) -> Iterator[Sequence[Any]]:
    """The titles, and one line for each run."""
    yield ["kind", "size", "parameters", "tokens", "held_out", "seed", summary["metric"]]
    for row in summary["kinds"]:
        for point in row["points"]:
            facts = [row["kind"], point["size"], point["parameters"], point["tokens"], point["held_out"]]
            yield from ([*facts, seed, loss] for seed, loss in point["losses"].items())
