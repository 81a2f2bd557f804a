"""The page of an experiment: one HTML file without external addresses. What was varied decides its parts.

All numbers are those of results.json, in the format of the printed table. A page of variants has no script.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from html import escape
from typing import Any

from minigpt.comparison import growth
from minigpt.comparison.charts import Summary, curves_of, curves_svg, differences_svg, growth_svg
from minigpt.comparison.staircase import SLACK, accuracy_span, ceiling_in_words, cells_of, surprises
from minigpt.comparison.summary import (
    COLUMNS,
    best_choices,
    cells,
    lines,
    marked,
    number,
    rows_of,
    sentences,
    span,
    tried,
)
from minigpt.comparison.swaps import AS_IT_IS, Swaps
from minigpt.seeing.document import Cell, card, facts, folded, in_two_widths, report, scrolling, soft, table
from minigpt.seeing.drawing import PAGE, Canvas
from minigpt.seeing.maps import axis_labels
from minigpt.seeing.pictures import visible
from minigpt.system.counting import layer_name
from minigpt.system.places import command
from minigpt.system.terminal import command_line

CELL, ROOM = 10, 24  # of a map: pixels of a letter in full size; the most labels of a small map
SHOWN = 340  # pixels of a small map
LINE = 64  # characters of the example story in one row
HEAT = 85  # per cent: the strength of the colour of an impossible character
WORDS = 6  # of the text, which the commands on a page of swaps let a model read

STYLE_OF_VARIANTS = """
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

STYLE_OF_TASKS = """
.squares td, .squares th { text-align: center; border: 1px solid var(--line); padding: .35rem .3rem; }
.squares td { min-width: 4.2rem; }
.squares th { vertical-align: middle; }
.squares tr > :first-child { text-align: left; }
.squares b { display: block; font-variant-numeric: tabular-nums; }
.squares small { white-space: nowrap; }
.squares :not(.solved) > small { color: var(--soft); }
.squares .solved { background: var(--ink); color: var(--card); }
.results.examples :is(td, th) { white-space: normal; }
.results.examples tr > :first-child { position: static; min-width: 9rem; }
td code { white-space: nowrap; }
td.wrong { text-decoration: underline; }
@media print { .squares .solved { outline: 2px solid var(--ink); } }
"""

STYLE_OF_SWAPS = """
pre { margin: .2rem 0 .6rem; white-space: pre-wrap; font-family: var(--mono); font-size: .85rem; }
@media (max-width: 760px) { .results :is(th, td:not(:first-child)) { white-space: normal; padding-inline: .25rem; } }
"""

STYLE_OF_SIZES = "li { margin: .25rem 0; }"


# ---- variants ----


def page_of_variants(summary: Summary) -> str:
    """Each variant against the baseline."""
    title = f"{summary['comparison']}: {', '.join(summary['compared'])} compared"
    parts = [
        card(f"Against {summary['baseline']}", _against_baseline(summary)),
        card("All variants", _main_table(summary)),
        *([_trials(summary)] if summary["tuning"] else []),
        *_curves(summary),
        *_names_tables(summary),
        *([_story(summary["example"]), _attention(summary)] if summary["example"] else []),
        card("All runs", [_runs(summary)]),
    ]
    about = f"<p>{escape(summary['held_equal'])}</p>"
    return report(title, title, about, summary["command"], summary["notes"], parts, STYLE_OF_VARIANTS, button=False)


def _against_baseline(summary: Summary) -> Iterator[str]:
    differences = [row for row in summary["variants"] if row["difference"]]
    yield "<ul>" + "".join(map(_item, sentences(summary))) + "</ul>"
    for row in summary["variants"]:
        if row["trouble"]:
            yield f"<p><b>{escape(row['variant'])}</b>: {escape(row['trouble'])}</p>"
    if any(row["difference"]["low"] is not None for row in differences):
        yield in_two_widths(lambda width: differences_svg(differences, width, PAGE))
        unit = escape(summary["unit"])
        yield soft(f"""Variant minus baseline, paired by seed, in {unit}: the mean and its 95 % confidence interval, for
each variant by itself; dark: called better or worse. Left of the line is better.""")


def _item(sentence: str) -> str:
    return f"<li>{escape(sentence)}</li>"


def _main_table(summary: Summary) -> Iterator[str]:
    rows = lines(summary)
    baseline = [row["variant"] for row in summary["variants"]].index(summary["baseline"])
    reader = {len(rows) - 2: "reader"} if summary["forgetful"] is not None else {}
    yield table(rows, "all variants", row_styles={baseline: "baseline"} | reader)
    note = "Losses in nats a character, and in bits for each byte of text, means over the seeds. flop/token: operations"
    note += " of a forward pass."
    if summary["floor"] is not None:
        note += f" The floor, the best possible mean loss on these characters, is {summary['floor']:.4f}. The forgetful"
        note += " reader knows the grammar and remembers nothing of the story."
    yield soft(note)


def _trials(summary: Summary) -> str:
    """The trials of a grid: what was tried, what was taken, and what that was when it was measured again."""
    tuning, seeds = summary["tuning"], ", ".join(map(str, summary["tuning"]["seeds"]))
    note = f"Validation loss in nats a character, seed {seeds}. Taken: {escape(tuning['rule'])}. The lowest of"
    note += " many losses is too low by chance: it is compared with nothing, and measured again on new seeds."
    best = "<ul>" + "".join(map(_item, best_choices(summary))) + "</ul>"
    return card(f"Trials: {', '.join(tuning['grid'])}", [table(tried(summary), "trials"), best, soft(note)])


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


def _story(example: Mapping[str, Any]) -> str:
    """One story, a row for each reader. The less probable a character was, the stronger its colour."""
    parts = [
        soft("""The stronger its colour, the less probable a character was. Where the ideal reader has colour, the
story makes a random choice. Where only a model has colour, it did not remember. What was less probable than one half
is underlined. Point at a character for its probability.""")
    ]
    readers = {"ideal reader": example["ideal"], "forgetful reader": example["forgetful"]}
    readers |= {name: look["probabilities"] for name, look in example["variants"].items()}
    for start in range(0, len(example["text"]), LINE):
        piece, rows = slice(start, start + LINE), ""
        for name, probabilities in readers.items():
            letters = map(_letter, example["text"][piece], example["takes"][piece], probabilities[piece])
            rows += f'<tr><th scope="row">{escape(name)}</th>{"".join(letters)}</tr>'
        parts.append(scrolling(f"the story from character {start + 1}", f'<table class="story">{rows}</table>'))
    return card("One new story, as each reader reads it", parts)


def _letter(letter: str, takes: str, probability: float | None) -> str:
    text = "&nbsp;" if letter == " " else escape(letter)
    if probability is None:
        return f'<td class="soft" title="{escape(visible(letter))}: not asked">{text}</td>'
    style = f"h{round(HEAT * (1 - probability))}" + (" unlikely" if probability < 0.5 else "")
    return f'<td class="{style}" title="{escape(visible(letter))}: {probability:.3f}, {escape(takes)}">{text}</td>'


def _attention(summary: Summary) -> str:
    """The attention maps of every layer and head for the example story."""
    parts = [
        soft("""Rows are queries, columns are keys, in the order of the story; the stronger, the larger: blue above
zero, orange below. Open a map for its full size, with every letter.""")
    ]
    for name, look in summary["example"]["variants"].items():
        maps = f'<div class="maps">{"".join(_maps(look))}</div>'
        without = f"<p>{escape(name)}: it has no attention weights to show</p>"
        parts.append(folded(escape(name), maps, opened=name == summary["baseline"]) if look["attention"] else without)
    return card("Attention in that story", parts)


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
    starts = [edge + CELL * index for index in range(len(letters))]
    with canvas.group(class_="letters", font_size=10):
        across, down = " ".join(str(x + 2) for x in starts), " ".join(str(y + 8) for y in starts)
        canvas.draw("text", escape(letters), x=across, y=edge - 4, fill="ink")
        canvas.draw("text", escape(letters), x=" ".join([str(edge - 9)] * len(letters)), y=down, fill="ink")
    return canvas.svg(edge + side, edge + side, label)


def _runs(summary: Summary) -> str:
    """A table of all runs."""
    rows = [["variant", "seed", "status", *COLUMNS]]
    for run in summary["runs"]:
        of_columns = {key: run.get(key) for key, _ in COLUMNS.values()}
        rows.append([marked(run), str(run["seed"]), run["status"], *cells(of_columns)])
    return folded(f"{len(rows) - 1} runs", table(rows, "all runs"), style="printed")


# ---- rungs on tasks ----


def page_of_tasks(summary: Summary) -> str:
    """The triangle as squares, and one text of each task as each rung answers it."""
    parts = [
        card("Answers that are right", _squares(summary)),
        card("One text of each task", _examples(summary)),
        card("Why a rung cannot do better", ["<dl>", *_reasons(summary), "</dl>"]),
    ]
    title = f"Staircase: {summary['comparison']}"
    heading = f"Which rung answers which question? {summary['comparison']}"
    about, notes = f"<p>{escape(summary['held_equal'])}</p>", [*summary["notes"], *surprises(summary)]
    return report(title, heading, about, summary["command"], notes, parts, STYLE_OF_TASKS)


def _squares(summary: Summary) -> Iterator[str]:
    rows: list[list[str | Cell]] = [["rung", *(task["task"] for task in summary["tasks"])]]
    for rung in summary["rungs"]:
        cells = cells_of(summary, rung)
        squares = [f"<b>{accuracy_span(cell)}</b><small>{ceiling_in_words(cell)}</small>" for cell in cells]
        rows.append([rung, *(Cell(html, "solved" * cell["solved"]) for html, cell in zip(squares, cells))])
    yield table(rows, "the squares", "squares")
    yield soft(f"""The share of right answers, the lowest and the highest of {len(summary["seeds"])} seeds. A filled
square: solved with every seed. Below it stands the ceiling, what a reader with the means of this rung can reach over
all texts: "at most" is exact, "about" an estimate. By chance, the texts of a run may be easier or harder by
{SLACK}.""")


def _examples(summary: Summary) -> Iterator[str]:
    rows: list[list[str | Cell]] = [["question", "text", "answer", *summary["rungs"]]]
    for task in summary["tasks"]:
        right, answers = task["answer"], [task["answers"].get(rung, "-") for rung in summary["rungs"]]
        text = Cell(f"<code>{escape(task['text'])}</code>"), Cell(f"<b>{escape(right)}</b>")
        wrong = ("" if answer == right else "wrong" for answer in answers)
        rows.append([task["question"], *text, *map(Cell, map(escape, answers), wrong)])
    yield table(rows, "the examples", "examples")
    yield soft("""The letters behind the bar are those that are asked for, the a and b of the question. Wrong answers
are underlined. Everybody is lucky at times: of the first 50 texts this is the one that shows best which rungs can
answer.""")


def _reasons(summary: Summary) -> Iterator[str]:
    """Why a rung cannot do better, by task."""
    for task in summary["tasks"]:
        rungs_of = dict[str, list[str]]()  # of each reason
        for cell in summary["cells"]:
            if cell["task"] == task["task"] and cell["ceiling"]:
                name = f"{cell['rung']} ({ceiling_in_words(cell)})"
                rungs_of.setdefault(cell["ceiling"]["why"], []).append(name)
        for reason, rungs in rungs_of.items():
            yield f"<dt>{escape(task['task'])}: {escape(', '.join(rungs))}</dt><dd>{escape(reason)}</dd>"


# ---- kinds at sizes ----


def page_of_sizes(summary: Summary) -> str:
    """The chart, what was found, the table and every gain."""
    points = summary["kinds"][0]["points"]
    every = [point for row in summary["kinds"] for point in row["points"]]
    about = {
        "text": summary["text"],
        "sizes": f"{len(points)}, {points[0]['size']} to {points[-1]['size']} (layers x width)",
        "parameters in the blocks, of all kinds": span({point["parameters"] for point in every}),
        "positions trained on": span({point["tokens"] for point in every}),
        "seeds": ", ".join(map(str, summary["seeds"])),
    }
    title, unit = f"How it grows: {summary['scaling']}", summary["unit"].capitalize()
    note = """Both axes are logarithmic: a power law down to the floor is a straight line. A dot is the mean over
the seeds, its thin bar their lowest and highest. A ring is a size that the fit did not see, the broad bar behind it
where the fit expected it (95 %). A kind without a line has no power law that these sizes show."""
    rows = [table(growth.lines(summary), "all sizes")]
    rows.append(soft(f"{escape(unit)}, means over the seeds; a size is layers x width."))
    if (tuning := summary["tuning"]) is not None:
        rows.append(folded(f"Trials of {escape(', '.join(tuning['grid']))}", table(tried(summary, "trials"), "trials")))
    parts = [
        card(f"{unit}, by parameters", [in_two_widths(lambda width: growth_svg(summary, width, PAGE)), soft(note)]),
        card("Is it a power law, and does it predict?", _findings(summary)),
        card("All sizes", rows),
        *_gains(summary),
    ]
    return report(title, title, facts(about), summary["command"], summary["notes"], parts, STYLE_OF_SIZES)


def _findings(summary: Summary) -> list[str]:
    note = f"""Exponents and predictions have 95 % intervals, Student's, from the scatter of the sizes around the
curve. A trend is the slope of the gain by the logarithm of the parameters. Its interval is the wider one of two: over
the seeds, and from the scatter of the sizes around the line. What holds for these sizes need not hold beyond them.
{escape(summary["rate"])}"""
    laws, trends = map(_item, growth.findings(summary)), map(_item, growth.trends(summary))
    return ["<ul>", *laws, "</ul><h2>Does the gain survive?</h2><ul>", *trends, "</ul>", soft(note)]


def _gains(summary: Summary) -> Iterator[str]:
    """The gain of each kind over the baseline, size by size, if there is another kind."""
    trends = {row["kind"]: row["trend"]["sizes"] for row in summary["kinds"] if row["trend"]}
    if trends:
        rows = [["kind", *(size["size"] for size in next(iter(trends.values())))]]
        for kind, sizes in trends.items():
            gains = (size["gain"] for size in sizes)
            rows.append([kind, *("-" if not g or g["low"] is None else growth.amount(g, summary) for g in gains)])
        measure = "height above the floor" if summary["metric"] == "above" else "loss"
        note = f"""The change of the {measure} against the baseline of the same width and layers, on the same batches,
paired by seed; below zero is better. The interval is Student's over {len(summary["seeds"])} seeds (95 %)."""
        yield card(f"Against {summary['baseline']}, size by size", [table(rows, "gains"), soft(note)])


# ---- swaps in a trained model ----


def page_of_swaps(swaps: Swaps, command: str) -> str:
    """The table, the differences as a chart, and commands that open each model."""
    run, model = swaps.source, swaps.source.config.model
    about = {
        "run": f"{run.folder.name}, step {run.saved.state['step']:,}",
        "attention": ", ".join(dict.fromkeys(model.layer_attention(i).component.kind for i in range(model.n_layer))),
        "shape": f"{model.n_layer} layers of {model.n_embd}, context {model.block_size:,}",
        "text": swaps.corpus.description,
        "weights": f"SHA-256 {swaps.weights['sha256'][:12]}",
    }
    parts = [card("What it costs", _costs(swaps))]
    differences = {row.name: d for row in swaps.rows if (d := swaps.difference(row))}
    significant, judged = swaps.judged()
    rows = [
        {"variant": name, "difference": asdict(difference) | {"shown": significant[name]}}
        for name, difference in differences.items()
    ]
    if rows:
        chart = in_two_widths(lambda width: differences_svg(rows, width, PAGE))
        words = soft(f"Differences of the loss, in nats a token, and their 95 % intervals. {escape(judged)}".rstrip())
        parts.append(card(f"How much more than {AS_IT_IS}", [chart, words]))
    parts.append(f'<div class="screen">{card("Look at one", _looks(swaps))}</div>')
    title, heading = f"Another attention in {run.folder.name}", "Another attention in a trained model"
    return report(title, heading, facts(about), command, (), parts, STYLE_OF_SWAPS)


def _costs(swaps: Swaps) -> Iterator[str]:
    base = swaps.measurement(swaps.rows[0])
    pieces = len(base.losses) if base else 0
    yield table(swaps.table(), "the table")
    words = f"""Losses in nats a token on the validation text, lower is better, without training. The same {pieces}
pieces of at most {swaps.data.block_size} tokens are read in every row, each from an empty context. Intervals are
Student's over the pieces, those of differences over pairs: 95 %."""
    if swaps.steps:
        training, T = swaps.settings.training, swaps.train_data.block_size
        words += f" Training: {swaps.steps} steps of {training.batch_size} x {T} tokens of the rest of the text."
    yield soft(words)
    yield from (soft(f"{escape(row.name)}: {escape(row.trouble)}") for row in swaps.rows if row.trouble)


def _looks(swaps: Swaps) -> Iterator[str]:
    """The commands that open each model, and which of its weights are the run's."""
    run = command_line(["--run", str(swaps.source.folder)])
    documents = swaps.corpus.pieces()
    prompt = " ".join(next(iter(next(documents))).split()[:WORDS])[: swaps.source.config.model.block_size // 2]
    for row in swaps.rows:
        if row.config is not None:
            words = command_line(row.swap)
            commands = [f"{command('play')} {f'{run} {run}' if words else run} {words}"]
            commands.append(f"{command('explore')} {run} --prompt {command_line([prompt])} {words}")
            lines = [f"<pre>{escape(line.strip())}</pre>" for line in commands]
            lines += [soft(escape(line)) for line in (row.moved.lines() if row.moved else ())]
            yield folded(escape(row.name), "\n".join(lines))
