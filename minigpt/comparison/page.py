"""The page of a comparison: one HTML file without scripts and without external addresses, in a light and a dark theme.

All numbers are those of results.json, in the format of the printed table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from minigpt.comparison.charts import Summary, curves_of, curves_svg, differences_svg
from minigpt.comparison.summary import COLUMNS, cells, lines, marked, number, rows_of, sentences, tried
from minigpt.inspection.drawing import PAGE, Canvas
from minigpt.inspection.maps import axis_labels
from minigpt.inspection.pictures import visible
from minigpt.seeing.document import card, folded, in_two_widths, report, scrolling, soft, table
from minigpt.system.counting import layer_name

CELL, ROOM = 10, 24  # of a map: pixels of a letter in full size; the most labels of a small map
SHOWN = 340  # pixels of a small map
LINE = 64  # characters of the example story in one row
HEAT = 85  # per cent: the strength of the colour of an impossible character

STYLE = """
.results { width: auto; }
summary { padding: .2rem 0; }
.baseline > :first-child::after { content: " (baseline)"; color: var(--soft); }
.reader > *, .results .reader > th { color: var(--soft); font-style: italic; }
.story { font: .82rem/1.5 var(--mono); margin: .9rem 0; width: auto; }
.story td { padding: 0 .02rem; border: 0; text-align: center; min-width: .62rem; }
.story th { padding: 0 .8rem 0 0; border: 0; text-align: right; white-space: nowrap; position: sticky; left: 0;
  font: .82rem/1.5 system-ui, sans-serif; background: var(--card); }
.story .unlikely { text-decoration: underline; font-weight: 600; }
.maps { display: flex; flex-wrap: wrap; gap: 1rem; margin: .6rem 0; }
.maps > * { max-width: 100%; }
.map { width: 21.25rem; max-width: 100%; }
.map summary { list-style: none; }
.map summary::-webkit-details-marker { display: none; }
.map svg { display: block; }
.map:not([open]) svg { width: 100%; height: auto; }
.map[open] { width: auto; max-width: none; }
.map[open] .words, .map:not([open]) .letters { display: none; }
.letters { font-family: var(--mono); }
@media screen and (prefers-color-scheme: dark) { svg image { filter: brightness(1.7); } }
@media screen and (max-width: 760px) { .story th { max-width: 6rem; overflow: hidden; text-overflow: ellipsis; } }
@media print { .story { font-size: 8.5pt; } .story td { min-width: 0; } .map { width: 5.8cm; break-inside: avoid; }
  details:not([open], .printed, .map) { display: none; } }
""" + "".join(
    f".h{share} {{ background: color-mix(in srgb, var(--heat) {share}%, transparent); }}\n" for share in range(HEAT + 1)
)


def page(summary: Summary) -> str:
    """The whole page."""
    title = f"{summary['comparison']}: {', '.join(summary['compared'])} compared"
    parts = [
        card(f"Against {summary['baseline']}", _answers(summary)),
        card("All variants", _main_table(summary)),
        *_trials(summary),
        *_curves(summary),
        *_names_tables(summary),
        *_example(summary),
        card("All runs", _runs(summary)),
    ]
    about = f"<p>{escape(summary['held_equal'])}</p>"
    return report(title, title, about, summary["command"], summary["notes"], parts, STYLE, button=False)


def _answers(summary: Summary) -> Iterator[str]:
    differences = [row for row in summary["variants"] if row["difference"]]
    yield "<ul>" + "".join(f"<li>{escape(line)}</li>" for line in sentences(summary)) + "</ul>"
    for row in summary["variants"]:
        if row["trouble"]:
            yield f"<p><b>{escape(row['variant'])}</b>: {escape(row['trouble'])}</p>"
    if any(row["difference"]["low"] is not None for row in differences):
        yield in_two_widths(lambda width: differences_svg(differences, width, PAGE))
        yield soft("""Variant minus baseline, paired by seed, in nats a character: the mean and its 95 % confidence
interval, for each variant by itself. Left of the line is better.""")


def _main_table(summary: Summary) -> Iterator[str]:
    rows = lines(summary)
    baseline = [row["variant"] for row in summary["variants"]].index(summary["baseline"])
    reader = {len(rows) - 2: "reader"} if summary["forgetful"] is not None else {}
    yield table(rows, "all variants", row_styles={baseline: "baseline"} | reader)
    note = "Losses in nats a character, means over the seeds. flop/token: operations of a forward pass."
    if summary["floor"] is not None:
        note += f" The floor, the best possible mean loss on these characters, is {summary['floor']:.4f}. The forgetful"
        note += " reader knows the grammar and remembers nothing of the story."
    yield soft(note)


def _trials(summary: Summary) -> Iterator[str]:
    """The trials of `compare.tune`: what was tried, and what was taken."""
    tuning = summary["tuning"]
    if tuning:
        seeds = ", ".join(map(str, tuning["seeds"]))
        note = f"Validation loss in nats a character, seed {seeds}. Taken: {escape(tuning['rule'])}."
        yield card(f"Trials: {tuning['key']}", [table(tried(summary), "trials"), soft(note)])


def _curves(summary: Summary) -> Iterator[str]:
    """The compared loss by step, on the first validation windows, with the spread of the seeds.

    One curve for each variant, but for those whose loss is below the floor, which is impossible.
    """
    curves = curves_of(summary)
    if curves is not None:
        chart = in_two_widths(lambda width: curves_svg(curves, width, PAGE))
        seeds = f"the lowest and highest of {len(summary['seeds'])} seeds"
        note = soft(f"The line (or dot) is the mean over the seeds, the band (or bar) {seeds}.")
        yield card(f"Curves: {curves.title}, by step", [chart, note])


def _names_tables(summary: Summary) -> Iterator[str]:
    if not summary["names"]:
        return
    rows = rows_of(summary)
    accuracy = """For each name, the fraction of its characters that the model predicts. The free ones are random: for
them, the probability of all characters that are possible."""
    remembered = "1 - gap / price: 1 is the ideal reader, 0 the forgetful one."
    titles = {"accuracy": "Accuracy by what must be remembered", "remembered": "How much of it is remembered"}
    for (key, title), note in zip(titles.items(), (accuracy, remembered)):
        names = [n for n in summary["names"] if key == "accuracy" or any(row[key].get(n) is not None for row in rows)]
        body = [[row["variant"], *(number(row[key].get(n), ".3f") for n in names)] for row in rows]
        yield card(title, [table([["variant", *names], *body], title.lower()), soft(note)])


def _example(summary: Summary) -> Iterator[str]:
    if summary["example"]:
        yield card("One new story, as each reader reads it", _story(summary["example"]))
        yield card("Attention in that story", _attention(summary))


def _story(example: Mapping[str, Any]) -> Iterator[str]:
    """One story, a row for each reader. The less probable a character was, the stronger its colour."""
    yield soft("""The stronger its colour, the less probable a character was. Where the ideal reader has colour, the
story makes a random choice. Where only a model has colour, it did not remember. What was less probable than one half
is underlined. Point at a character for its probability.""")
    readers = {"ideal reader": example["ideal"], "forgetful reader": example["forgetful"]}
    readers |= {name: look["probabilities"] for name, look in example["variants"].items()}
    for start in range(0, len(example["text"]), LINE):
        piece, rows = slice(start, start + LINE), []
        for name, probabilities in readers.items():
            letters = zip(example["text"][piece], example["takes"][piece], probabilities[piece])
            rows.append(
                f'<tr><th scope="row">{escape(name)}</th>' + "".join(_letter(*letter) for letter in letters) + "</tr>"
            )
        yield scrolling(f"the story from character {start + 1}", f'<table class="story">{"".join(rows)}</table>')


def _letter(letter: str, takes: str, probability: float | None) -> str:
    text = "&nbsp;" if letter == " " else escape(letter)
    if probability is None:
        return f'<td class="soft" title="{escape(visible(letter))}: not asked">{text}</td>'
    style = f"h{round(HEAT * (1 - probability))}" + (" unlikely" if probability < 0.5 else "")
    return f'<td class="{style}" title="{escape(visible(letter))}: {probability:.3f}, {escape(takes)}">{text}</td>'


def _attention(summary: Summary) -> Iterator[str]:
    """The attention maps of every layer and head for the example story."""
    yield soft("""Rows are queries, columns are keys, in the order of the story; the stronger, the larger: blue above
zero, orange below. Open a map for its full size, with every letter.""")
    for name, look in summary["example"]["variants"].items():
        if look["attention"]:
            maps = f'<div class="maps">{"".join(_maps(look))}</div>'
            yield folded(escape(name), maps, opened=name == summary["baseline"])
        else:
            yield f"<p>{escape(name)}: it has no attention weights to show</p>"


def _maps(look: Mapping[str, Any]) -> Iterator[str]:
    """The maps of one variant, each with the name of its head and its caption."""
    tokens, notes = look.get("tokens") or [], look.get("notes") or [[""] * len(heads) for heads in look["attention"]]
    for layer, (pictures, captions) in enumerate(zip(look["attention"], notes)):
        for head, (picture, note) in enumerate(zip(pictures, captions)):
            label = layer_name(layer, head)
            title = label + (f'<br><span class="soft">{escape(note)}</span>' if note else "")
            yield f'<div class="wide">{folded(title + _map(picture, tokens, label), style="map")}</div>'


def _map(picture: str, tokens: Sequence[str], label: str) -> str:
    """A map. A small one has some tokens as labels, a full-size one the first letter of each token.

    Without `tokens`, it has no labels.
    """
    canvas, side = Canvas(PAGE), CELL * max(len(tokens), 1)
    words = axis_labels(tokens, ROOM)
    size = 11 * side / SHOWN  # font size of the labels in a small map: 11 pixels on the screen
    edge = round(max(15, 1.2 * size + 0.62 * size * max((len(name) for _, name in words), default=0)))
    canvas.pixels(edge, edge, side, picture)
    with canvas.group(class_="words", font_size=size):
        for index, name in words:
            middle = edge + CELL * (index + 0.5) + 0.35 * size
            canvas.text(edge - 0.4 * size, middle, name, anchor="end")
            canvas.upward(middle, edge - 0.4 * size, name)
    letters = "".join(visible(token)[0] for token in tokens)
    places = [edge + CELL * index for index in range(len(letters))]
    with canvas.group(class_="letters", font_size=10):
        across, down = " ".join(str(x + 2) for x in places), " ".join(str(y + 8) for y in places)
        canvas.draw("text", escape(letters), x=across, y=edge - 4, fill="ink")
        canvas.draw("text", escape(letters), x=" ".join([str(edge - 9)] * len(letters)), y=down, fill="ink")
    return canvas.svg(edge + side, edge + side, label)


def _runs(summary: Summary) -> Iterator[str]:
    """A table of all runs."""
    rows = [["variant", "seed", "status", *COLUMNS]]
    for run in summary["runs"]:
        known = {key: run.get(key) for key, _ in COLUMNS.values()}
        rows.append([marked(run), str(run["seed"]), run["status"], *cells(known)])
    yield folded(f"{len(rows) - 1} runs", table(rows, "all runs"), style="printed")
