"""The page of a comparison: one HTML file without scripts and without external addresses, in a light and a dark theme.

The security policy in its head allows no resource but the images in the file itself. All numbers are those of
results.json, in the format of the printed table.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from minigpt.comparison.summary import COLUMNS, cells, lines, marked, number, rows_of, sentences, tried
from minigpt.inspection.pictures import log_ticks, ticks, visible

Summary = Mapping[str, Any]

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 820, 380, 64, 170, 14, 44
COLOURS = 8  # in STYLE; further curves use them again, dashed
LINE = 64  # characters of the example story in one row

STYLE = """
:root{color-scheme:light dark;--ground:#fff;--ink:#1b1f24;--soft:#57606a;--faint:#d8dee4;--heat:234,88,12;
--c0:#2563eb;--c1:#c2410c;--c2:#15803d;--c3:#7e22ce;--c4:#be123c;--c5:#0e7490;--c6:#a16207;--c7:#475569}
@media(prefers-color-scheme:dark){:root{--ground:#12161c;--ink:#e6edf3;--soft:#9aa5b1;--faint:#333c47;--heat:190,70,20;
--c0:#7aa7ff;--c1:#fb923c;--c2:#4ade80;--c3:#c4a0ff;--c4:#fb7185;--c5:#22d3ee;--c6:#facc15;--c7:#a8b3c2}
figure img{filter:brightness(1.7)}}
body{background:var(--ground);color:var(--ink);font:16px/1.5 system-ui,sans-serif;max-width:66rem;margin:2rem auto;
padding:0 1rem}h1{font-size:1.6rem;margin:0}h2{font-size:1.15rem;margin:2.2rem 0 .4rem}
p{margin:.4rem 0;max-width:48rem}.soft,figcaption,caption{color:var(--soft);font-size:.9rem}
.wide{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.9rem}
th,td{padding:.25rem .6rem;text-align:right;border-bottom:1px solid var(--faint);white-space:nowrap}
th:first-child,td:first-child{text-align:left}thead th{color:var(--soft);font-weight:500}
.baseline td:first-child::after{content:" (baseline)";color:var(--soft)}.reader td{color:var(--soft);font-style:italic}
code,.story{font-family:ui-monospace,Menlo,Consolas,monospace}.story{font-size:.82rem;margin:.9rem 0}
.story td{padding:0 .02rem;border:0;text-align:center;min-width:.62rem}.story td:first-child{padding-right:.8rem;
text-align:right;font-family:system-ui,sans-serif;color:var(--soft);position:sticky;left:0;background:var(--ground)}
figure{margin:.3rem;display:inline-block}figure img{width:11rem;height:11rem;image-rendering:pixelated;
border:1px solid var(--faint);display:block}svg{max-width:100%;height:auto}svg text{fill:var(--ink);font-size:12px}
svg .soft{fill:var(--soft)}svg .grid{stroke:var(--faint)}summary{cursor:pointer}
"""
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def page(summary: Summary) -> str:
    """The whole page."""
    title = escape(f"{summary['comparison']}: {', '.join(summary['compared'])} compared")
    parts = [
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>',
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}"><link rel="icon" href="data:,">',
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head><body>',
        f"<h1>{title}</h1><p>{escape(summary['held_equal'])}</p>",
        f'<p class="soft">Made by <code>{escape(summary["command"])}</code></p>',
        *(f"<p><b>Note</b>: {escape(note)}</p>" for note in summary["notes"]),
        *_answers(summary),
        *_main_table(summary),
        *_trials(summary),
        *_curves(summary),
        *_names_table(summary),
        *_story(summary),
        *_attention(summary),
        *_runs(summary),
        "</body></html>\n",
    ]
    return "\n".join(parts)


def _table(rows: Sequence[Sequence[str]], classes: Mapping[int, str] | None = None, name: str = "") -> str:
    """A table; the first row has its titles. `classes`: {number of a body row: its CSS class}."""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in rows[0])
    body = ""
    for place, row in enumerate(rows[1:]):
        mark = f' class="{classes[place]}"' if classes and place in classes else ""
        body += f"<tr{mark}>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>\n"
    return f'<div class="wide"><table id="{name}"><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table></div>'


def _answers(summary: Summary) -> Iterator[str]:
    yield f"<h2>Against {escape(summary['baseline'])}</h2>"
    differences = [row for row in summary["variants"] if row["difference"]]
    yield "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in sentences(summary)) + "</ul>"
    for row in summary["variants"]:
        if row["trouble"]:
            yield f"<p><b>{escape(row['variant'])}</b>: {escape(row['trouble'])}</p>"
    if any(row["difference"]["low"] is not None for row in differences):
        yield _forest(differences)
        yield '<p class="soft">Variant minus baseline, paired by seed, in nats a character: the mean and its 95 %'
        yield "confidence interval, for each variant by itself. Left of the line is better.</p>"


def _forest(rows: Sequence[Mapping[str, Any]]) -> str:
    """A forest plot: for each variant, the difference to the baseline as a dot and its confidence interval as a bar."""
    found = [row["difference"] for row in rows]
    ends = [0.0, *(d[key] for d in found for key in ("low", "mean", "high") if d[key] is not None)]
    low, high = min(ends), max(ends)
    room = (high - low or 1.0) * 0.05

    def across(value: float) -> float:
        return 220 + (value - low + room) / (high - low + 2 * room) * (WIDTH - 240)

    parts = [f'<svg viewBox="0 0 {WIDTH} {28 * len(rows) + 34}" width="{WIDTH}" role="img" aria-label="differences">']
    for tick in ticks(low, high):
        if low - room <= tick <= high + room:
            bottom = 28 * len(rows) + 6
            parts.append(
                f'<path class="grid" d="M{across(tick):.1f} 0V{bottom}" stroke-width="{2 if not tick else 1}"/>'
            )
            label = f'<text class="soft" x="{across(tick):.1f}" y="{bottom + 16}" text-anchor="middle">{tick:+g}</text>'
            parts.append(label if tick else label.replace("+0<", "0<"))
    for place, (row, d) in enumerate(zip(rows, found)):
        y, ink = 28 * place + 16, "var(--ink)" if d["shown"] else "var(--soft)"
        parts.append(f'<text x="210" y="{y + 4}" text-anchor="end">{escape(row["variant"])}</text>')
        if d["low"] is not None:
            bar = f"M{across(d['low']):.1f} {y}H{across(d['high']):.1f}"
            parts.append(f'<path d="{bar}" style="stroke:{ink}" stroke-width="3" stroke-linecap="round"/>')
        parts.append(f'<circle cx="{across(d["mean"]):.1f}" cy="{y}" r="5" style="fill:{ink}"/>')
    return "\n".join([*parts, "</svg>"])


def _main_table(summary: Summary) -> Iterator[str]:
    yield "<h2>All variants</h2>"
    table = lines(summary)
    baseline = [row["variant"] for row in summary["variants"]].index(summary["baseline"])
    classes = {baseline: "baseline"} | ({len(table) - 2: "reader"} if summary["forgetful"] is not None else {})
    yield _table(table, classes, "table")
    floor = summary["floor"]
    note = "Losses in nats a character, means over the seeds. flop/token: operations of a forward pass."
    if floor is not None:
        note += f" The floor, the best possible mean loss on these characters, is {floor:.4f}. The forgetful"
        note += " reader knows the grammar and remembers nothing of the story."
    yield f'<p class="soft">{note}</p>'


def _trials(summary: Summary) -> Iterator[str]:
    """The trials of `compare.tune`: what was tried, and what was taken."""
    tuning = summary["tuning"]
    if not tuning:
        return
    yield f"<h2>Trials: {escape(tuning['key'])}</h2>"
    yield _table(tried(summary), name="trials")
    seeds = ", ".join(map(str, tuning["seeds"]))
    yield f'<p class="soft">Validation loss in nats a character, seed {seeds}. Taken: {escape(tuning["rule"])}.</p>'


def _curves(summary: Summary) -> Iterator[str]:
    """The compared loss by step, on the first validation windows, with the spread of the seeds as a band.

    One curve for each variant that is possible.
    """
    shown = [row for row in summary["variants"] if row["curve"] and not row["impossible"]]
    curves = {row["variant"]: [(p[0], p[2]) for p in row["curve"]] for row in shown}
    values = [max(y, 1e-4) for row in shown for _, low, high in row["spread"] for y in (low, high)]
    if not values:
        return
    line = summary["forgetful"] if summary["metric"] == "above" else None
    low, high = min([*values, line or values[0]]), max([*values, line or values[0]])
    logs = summary["metric"] == "above"
    marks = log_ticks(low, high) if logs else ticks(low, high)
    bottom, top = (math.log(marks[0]), math.log(marks[-1])) if logs else (marks[0], marks[-1])
    steps = ticks(0, max(x for curve in curves.values() for x, _ in curve))

    def at(x: float, y: float) -> tuple[float, float]:
        up = ((math.log(max(y, 1e-4)) if logs else y) - bottom) / (top - bottom)
        return LEFT + x / steps[-1] * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - BOTTOM - TOP)

    what = "nats a character above the floor" if logs else "validation loss, nats a character"
    yield f'<h2>Curves: {what}, by step</h2><svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img">'
    for y in marks:
        yield f'<path class="grid" d="M{LEFT} {at(0, y)[1]:.1f}H{WIDTH - RIGHT}"/>'
        yield f'<text class="soft" x="{LEFT - 8}" y="{at(0, y)[1] + 4:.1f}" text-anchor="end">{y:g}</text>'
    for x in steps:
        place = f'x="{at(x, marks[0])[0]:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle"'
        yield f'<text class="soft" {place}>{x:g}</text>'
    labels = [(at(0, curve[-1][1])[1], name, colour(place)) for place, (name, curve) in enumerate(curves.items())]
    for (_, _, style), row in zip(labels, shown):
        edge = [(step, low) for step, low, _ in row["spread"]] + [(step, high) for step, _, high in row["spread"][::-1]]
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*point) for point in edge))
        fill = style.split(";")[0].replace("stroke", "fill")
        yield f'<polygon points="{points}" style="{fill}" fill-opacity=".15"/>'
    for (_, _, style), curve in zip(labels, curves.values()):
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*point) for point in curve))
        yield f'<polyline points="{points}" fill="none" stroke-width="2" style="{style}"/>'
    if line is not None:
        y = at(0, line)[1]
        yield f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke-dasharray="2 4" style="stroke:var(--ink)"/>'
        labels.append((y, "the forgetful reader", "stroke:var(--ink)"))
    lowest = TOP - 15.0
    for y, name, style in sorted(labels):
        lowest = max(y + 4, lowest + 15)  # labels do not overlap
        tint = style.split(";")[0].replace("stroke", "fill")
        yield f'<text x="{WIDTH - RIGHT + 8}" y="{lowest:.1f}" style="{tint}">{escape(name)}</text>'
    yield "</svg>"


def colour(place: int) -> str:
    """The CSS stroke of curve number `place`."""
    return f"stroke:var(--c{place % COLOURS})" + (";stroke-dasharray:6 3" if place >= COLOURS else "")


def _names_table(summary: Summary) -> Iterator[str]:
    names = summary["names"]
    if not names:
        return
    yield "<h2>Accuracy by what must be remembered</h2>"
    found = rows_of(summary)
    head = ["variant", *names]
    yield _table(
        [head, *([r["variant"], *(number(r["accuracy"].get(n), ".3f") for n in names)] for r in found)], name="names"
    )
    yield '<p class="soft">For each name, the fraction of its characters that the model predicts. The free ones are'
    yield "random: for them, the probability of all characters that are possible.</p>"
    yield "<h2>How much of it is remembered</h2>"
    kept = [n for n in names if any(r["remembered"].get(n) is not None for r in found)]
    rows = [[r["variant"], *(number(r["remembered"].get(n), ".3f") for n in kept)] for r in found]
    yield _table([["variant", *kept], *rows], name="remembered")
    yield '<p class="soft">1 - gap / price: 1 is the ideal reader, 0 the forgetful one.</p>'


def _story(summary: Summary) -> Iterator[str]:
    """One story, a row for each reader. The less probable a character was, the stronger its colour."""
    seen = summary["example"]
    if not seen:
        return
    yield "<h2>One new story, as each reader reads it</h2>"
    yield '<p class="soft">The stronger its colour, the less probable a character was. Where the ideal reader has'
    yield "colour, the story makes a random choice. Where only a model has colour, it did not remember. Point at a"
    yield "character for its probability.</p>"
    readers = {"ideal reader": seen["ideal"], "forgetful reader": seen["forgetful"]}
    readers |= {name: look["probabilities"] for name, look in seen["variants"].items()}
    for start in range(0, len(seen["text"]), LINE):
        piece = slice(start, start + LINE)
        yield '<div class="wide"><table class="story">'
        for name, probabilities in readers.items():
            row = zip(seen["text"][piece], seen["takes"][piece], probabilities[piece])
            yield f"<tr><td>{escape(name)}</td>" + "".join(_letter(*entry) for entry in row) + "</tr>"
        yield "</table></div>"


def _letter(letter: str, takes: str, probability: float | None) -> str:
    shown = "&nbsp;" if letter == " " else escape(letter)
    if probability is None:
        return f'<td class="soft" title="{escape(visible(letter))}: not asked">{shown}</td>'
    title = f"{escape(visible(letter))}: {probability:.3f}, {escape(takes)}"
    return f'<td title="{title}" style="background:rgba(var(--heat),{0.85 * (1 - probability):.2f})">{shown}</td>'


def _attention(summary: Summary) -> Iterator[str]:
    """The attention maps of every layer and head for that story."""
    if not summary["example"]:
        return
    yield "<h2>Attention in that story</h2>"
    colours = "the stronger, the larger: blue above zero, orange below"
    yield f'<p class="soft">Rows are queries, columns are keys, in the order of the story; {colours}.</p>'
    for name, look in summary["example"]["variants"].items():
        if not look["attention"]:
            yield f"<p>{escape(name)}: it has no attention weights to show</p>"
            continue
        shown = " open" if name == summary["baseline"] else ""
        yield f"<details{shown}><summary>{escape(name)}</summary>"
        for layer, heads in enumerate(look["attention"]):
            for head, picture in enumerate(heads):
                label = f"layer {layer + 1}, head {head + 1}"
                image = f'<img alt="{label}" src="data:image/png;base64,{escape(picture)}">'
                yield f"<figure>{image}<figcaption>{label}</figcaption></figure>"
        yield "</details>"


def _runs(summary: Summary) -> Iterator[str]:
    """A table of all runs."""
    rows = [["variant", "seed", "status", *COLUMNS]]
    for run in summary["runs"]:
        known = {key: run.get(key) for key, _ in COLUMNS.values()}
        rows.append([marked(run), str(run["seed"]), run["status"], *cells(known)])
    yield f"<h2>All runs</h2><details><summary>{len(rows) - 1} runs</summary>{_table(rows, name='runs')}</details>"
