"""The page of a comparison: one HTML file without scripts and without external addresses, in a light and a dark theme.

The security policy in its head allows no resource but the images in the file itself. All numbers are those of
results.json, in the format of the printed table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from typing import Any

from minigpt.comparison.charts import BROAD, NARROW, PAGE, Summary, curves_of, curves_svg, differences_svg
from minigpt.comparison.summary import COLUMNS, cells, lines, marked, number, rows_of, sentences, tried
from minigpt.inspection.maps import axis_labels
from minigpt.inspection.pictures import visible
from minigpt.system.counting import layer_name

CELL, ROOM = 10, 24  # of a map: pixels of a letter in full size; the most labels of a small map
SHOWN = 340  # pixels of a small map
LINE = 64  # characters of the example story in one row

STYLE = """
:root{color-scheme:light dark;--ground:#fff;--ink:#1b1f24;--soft:#57606a;--faint:#d8dee4;--heat:234,88,12;
--c0:#2563eb;--c1:#c2410c;--c2:#15803d;--c3:#7e22ce;--c4:#be123c;--c5:#0e7490;--c6:#a16207;--c7:#475569}
@media screen and (prefers-color-scheme:dark){:root{--ground:#12161c;--ink:#e6edf3;--soft:#9aa5b1;--faint:#333c47;
--heat:190,70,20;--c0:#7aa7ff;--c1:#fb923c;--c2:#4ade80;--c3:#c4a0ff;--c4:#fb7185;--c5:#22d3ee;--c6:#facc15;--c7:#a8b3c2}
svg image{filter:brightness(1.7)}}
body{background:var(--ground);color:var(--ink);font:16px/1.5 system-ui,sans-serif;max-width:66rem;margin:2rem auto;
padding:0 1rem;overflow-wrap:anywhere}h1{font-size:1.6rem;margin:0}h2{font-size:1.15rem;margin:2.2rem 0 .4rem}
p{margin:.4rem 0;max-width:48rem}.soft{color:var(--soft);font-size:.9rem}ul{padding-left:1.2rem}
.wide{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.9rem}
th,td{padding:.25rem .6rem;text-align:right;border-bottom:1px solid var(--faint);white-space:nowrap}
th:first-child,td:first-child{text-align:left}thead th{color:var(--soft);font-weight:500}
.baseline td:first-child::after{content:" (baseline)";color:var(--soft)}.reader td{color:var(--soft);font-style:italic}
code,.story{font-family:ui-monospace,Menlo,Consolas,monospace}.story{font-size:.82rem;margin:.9rem 0}
.story td{padding:0 .02rem;border:0;text-align:center;min-width:.62rem}.story td:first-child{padding-right:.8rem;
text-align:right;font-family:system-ui,sans-serif;color:var(--soft);position:sticky;left:0;background:var(--ground)}
.story .unlikely{text-decoration:underline;font-weight:600}
svg{max-width:100%;height:auto}.narrow{display:none}summary{cursor:pointer;padding:.2rem 0}
.maps{display:flex;flex-wrap:wrap;gap:1rem;margin:.6rem 0}.maps>*{max-width:100%}.map{width:21.25rem;max-width:100%}
.map summary{list-style:none}.map summary::-webkit-details-marker{display:none}
.map svg{display:block;width:100%;image-rendering:pixelated}
.map[open]{width:auto;max-width:none}.map[open] svg{width:var(--full);max-width:none}
.map[open] .words,.map:not([open]) .letters{display:none}.letters{font-family:ui-monospace,Menlo,Consolas,monospace}
@media(max-width:760px){.broad{display:none}.narrow{display:block}th:first-child,td:first-child{white-space:normal;
min-width:6rem;position:sticky;left:0;background:var(--ground)}.story td:first-child{max-width:6rem;white-space:nowrap;
overflow:hidden;text-overflow:ellipsis}}
@media print{@page{margin:12mm}body{margin:0;padding:0;max-width:none;font-size:10pt}.broad{display:block}
.narrow{display:none}.wide{overflow:visible}table{font-size:7.5pt}th,td{padding:.1rem .25rem;overflow-wrap:normal}
th,td:first-child{white-space:normal}.story{font-size:8.5pt}.story td{min-width:0}.soft{font-size:8pt}
h2{break-after:avoid}tr,svg,.map{break-inside:avoid}td[style]{print-color-adjust:exact}.map{width:5.8cm}
details:not([open],.printed,.map){display:none}
summary{list-style:none}.printed::details-content{content-visibility:visible;height:auto}}
"""
TABLES = {  # the ids of the tables, and their names for screen readers
    "table": "all variants",
    "trials": "trials",
    "names": "accuracy by what must be remembered",
    "remembered": "how much of it is remembered",
    "runs": "all runs",
}
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


def _table(rows: Sequence[Sequence[str]], name: str, classes: Mapping[int, str] | None = None) -> str:
    """A table; the first row has its titles. `classes`: {number of a body row: its CSS class}."""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in rows[0])
    body = ""
    for place, row in enumerate(rows[1:]):
        mark = f' class="{classes[place]}"' if classes and place in classes else ""
        body += f"<tr{mark}>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>\n"
    table = f'<table id="{name}"><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table>'
    return f"{_wide(TABLES[name])}{table}</div>"


def _wide(what: str) -> str:
    """The opening tag of a region that scrolls, by keyboard too, where its content is wider than the screen."""
    return f'<div class="wide" tabindex="0" role="region" aria-label="{what}">'


def _chart(draw: Callable[[int], str]) -> str:
    """A chart in two widths; the style sheet shows the one for which there is room."""
    return f'<div class="broad">{draw(BROAD)}</div><div class="narrow">{draw(NARROW)}</div>'


def _answers(summary: Summary) -> Iterator[str]:
    yield f"<h2>Against {escape(summary['baseline'])}</h2>"
    differences = [row for row in summary["variants"] if row["difference"]]
    yield "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in sentences(summary)) + "</ul>"
    for row in summary["variants"]:
        if row["trouble"]:
            yield f"<p><b>{escape(row['variant'])}</b>: {escape(row['trouble'])}</p>"
    if any(row["difference"]["low"] is not None for row in differences):
        yield _chart(lambda width: differences_svg(differences, width, PAGE))
        yield '<p class="soft">Variant minus baseline, paired by seed, in nats a character: the mean and its 95 %'
        yield "confidence interval, for each variant by itself. Left of the line is better.</p>"


def _main_table(summary: Summary) -> Iterator[str]:
    yield "<h2>All variants</h2>"
    table = lines(summary)
    baseline = [row["variant"] for row in summary["variants"]].index(summary["baseline"])
    classes = {baseline: "baseline"} | ({len(table) - 2: "reader"} if summary["forgetful"] is not None else {})
    yield _table(table, "table", classes)
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
    yield _table(tried(summary), "trials")
    seeds = ", ".join(map(str, tuning["seeds"]))
    yield f'<p class="soft">Validation loss in nats a character, seed {seeds}. Taken: {escape(tuning["rule"])}.</p>'


def _curves(summary: Summary) -> Iterator[str]:
    """The compared loss by step, on the first validation windows, with the spread of the seeds.

    One curve for each variant, but for those whose loss is below the floor, which is impossible.
    """
    found = curves_of(summary)
    if found is not None:
        yield f"<h2>Curves: {escape(found.title)}, by step</h2>"
        yield _chart(lambda width: curves_svg(found, width, PAGE))
        seeds = f"the lowest and highest of {len(summary['seeds'])} seeds"
        yield f'<p class="soft">The line (or dot) is the mean over the seeds, the band (or bar) {seeds}.</p>'


def _names_table(summary: Summary) -> Iterator[str]:
    names = summary["names"]
    if not names:
        return
    yield "<h2>Accuracy by what must be remembered</h2>"
    found = rows_of(summary)
    head = ["variant", *names]
    yield _table(
        [head, *([r["variant"], *(number(r["accuracy"].get(n), ".3f") for n in names)] for r in found)], "names"
    )
    yield '<p class="soft">For each name, the fraction of its characters that the model predicts. The free ones are'
    yield "random: for them, the probability of all characters that are possible.</p>"
    yield "<h2>How much of it is remembered</h2>"
    kept = [n for n in names if any(r["remembered"].get(n) is not None for r in found)]
    rows = [[r["variant"], *(number(r["remembered"].get(n), ".3f") for n in kept)] for r in found]
    yield _table([["variant", *kept], *rows], "remembered")
    yield '<p class="soft">1 - gap / price: 1 is the ideal reader, 0 the forgetful one.</p>'


def _story(summary: Summary) -> Iterator[str]:
    """One story, a row for each reader. The less probable a character was, the stronger its colour."""
    seen = summary["example"]
    if not seen:
        return
    yield "<h2>One new story, as each reader reads it</h2>"
    yield '<p class="soft">The stronger its colour, the less probable a character was. Where the ideal reader has'
    yield "colour, the story makes a random choice. Where only a model has colour, it did not remember. What was less"
    yield "probable than one half is underlined. Point at a character for its probability.</p>"
    readers = {"ideal reader": seen["ideal"], "forgetful reader": seen["forgetful"]}
    readers |= {name: look["probabilities"] for name, look in seen["variants"].items()}
    for start in range(0, len(seen["text"]), LINE):
        piece = slice(start, start + LINE)
        yield _wide(f"the story from character {start + 1}") + '<table class="story">'
        for name, probabilities in readers.items():
            row = zip(seen["text"][piece], seen["takes"][piece], probabilities[piece])
            yield f"<tr><td>{escape(name)}</td>" + "".join(_letter(*entry) for entry in row) + "</tr>"
        yield "</table></div>"


def _letter(letter: str, takes: str, probability: float | None) -> str:
    shown = "&nbsp;" if letter == " " else escape(letter)
    if probability is None:
        return f'<td class="soft" title="{escape(visible(letter))}: not asked">{shown}</td>'
    title = f"{escape(visible(letter))}: {probability:.3f}, {escape(takes)}"
    unlikely = ' class="unlikely"' if probability < 0.5 else ""
    heat = f"background:rgba(var(--heat),{0.85 * (1 - probability):.2f})"
    return f'<td{unlikely} title="{title}" style="{heat}">{shown}</td>'


def _attention(summary: Summary) -> Iterator[str]:
    """The attention maps of every layer and head for the example story."""
    if not summary["example"]:
        return
    yield "<h2>Attention in that story</h2>"
    colours = "the stronger, the larger: blue above zero, orange below"
    yield f'<p class="soft">Rows are queries, columns are keys, in the order of the story; {colours}. Open a map for'
    yield "its full size, with every letter.</p>"
    for name, look in summary["example"]["variants"].items():
        if not look["attention"]:
            yield f"<p>{escape(name)}: it has no attention weights to show</p>"
            continue
        shown = " open" if name == summary["baseline"] else ""
        yield f'<details{shown}><summary>{escape(name)}</summary><div class="maps">'
        yield from _maps(look)
        yield "</div></details>"


def _maps(look: Mapping[str, Any]) -> Iterator[str]:
    """The maps of one variant, each with the name of its head and its caption."""
    tokens, notes = look.get("tokens") or [], look.get("notes") or [[""] * len(heads) for heads in look["attention"]]
    for layer, (pictures, said) in enumerate(zip(look["attention"], notes)):
        for head, (picture, note) in enumerate(zip(pictures, said)):
            label = layer_name(layer, head)
            title = label + (f'<br><span class="soft">{escape(note)}</span>' if note else "")
            drawn = f"<summary>{title}{_map(picture, tokens, label)}</summary>"
            yield f'<div class="wide"><details class="map">{drawn}</details></div>'


def _map(picture: str, tokens: Sequence[str], label: str) -> str:
    """A map. A small one has some tokens as labels, a full-size one the first letter of each token.

    Without `tokens`, it has no labels.
    """
    side = CELL * max(len(tokens), 1)
    words = axis_labels(tokens, ROOM)
    size = 11 * side / SHOWN  # font size of the labels in a small map: 11 pixels on the screen
    edge = round(max(15, 1.2 * size + 0.62 * size * max((len(name) for _, name in words), default=0)))
    whole = edge + side
    parts = [f'<svg viewBox="0 0 {whole} {whole}" style="--full:{whole}px" role="img" aria-label="{label}">']
    frame = f'x="{edge}" y="{edge}" width="{side}" height="{side}"'
    parts.append(f'<image {frame} preserveAspectRatio="none" href="data:image/png;base64,{escape(picture)}"/>')
    parts.append(f'<rect {frame} fill="none" stroke="var(--soft)"/>')
    parts.append(f'<g class="words" fill="var(--ink)" font-size="{size:.1f}">')
    for place, name in words:
        at = edge + CELL * (place + 0.5) + 0.35 * size
        parts.append(f'<text x="{edge - 0.4 * size:.0f}" y="{at:.0f}" text-anchor="end">{escape(name)}</text>')
        turned = f'transform="translate({at:.0f} {edge - 0.4 * size:.0f}) rotate(-90)"'
        parts.append(f"<text {turned}>{escape(name)}</text>")
    letters = "".join(visible(token)[0] for token in tokens)
    places = [edge + CELL * place for place in range(len(letters))]
    across, down = " ".join(str(x + 2) for x in places), " ".join(str(y + 8) for y in places)
    left = " ".join([str(edge - 9)] * len(letters))
    parts.append('</g><g class="letters" fill="var(--ink)" font-size="10">')
    parts.append(f'<text x="{across}" y="{edge - 4}">{escape(letters)}</text>')
    parts.append(f'<text x="{left}" y="{down}">{escape(letters)}</text></g>')
    return "".join([*parts, "</svg>"])


def _runs(summary: Summary) -> Iterator[str]:
    """A table of all runs."""
    rows = [["variant", "seed", "status", *COLUMNS]]
    for run in summary["runs"]:
        known = {key: run.get(key) for key, _ in COLUMNS.values()}
        rows.append([marked(run), str(run["seed"]), run["status"], *cells(known)])
    opened = f'<details class="printed"><summary>{len(rows) - 1} runs</summary>'
    yield f"<h2>All runs</h2>{opened}{_table(rows, 'runs')}</details>"
