"""The page of swaps: one HTML file with the table, the differences as a chart, and commands that open each model."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import asdict
from html import escape
from typing import Any

from minigpt.comparison.charts import differences_svg
from minigpt.comparison.swaps import AS_IT_IS, Swaps, difference
from minigpt.comparison.swaps import table as rows_of
from minigpt.inspection.drawing import PAGE
from minigpt.seeing.document import card, facts, folded, in_two_widths, report, soft, table

STYLE = """
pre { margin: .2rem 0 .6rem; white-space: pre-wrap; font-family: var(--mono); font-size: .85rem; }
@media (max-width: 760px) { .results :is(th, td:not(:first-child)) { white-space: normal; padding-inline: .25rem; } }
"""
WORDS = 6  # of the text, which the commands let a model read


def page(swaps: Swaps, command: str) -> str:
    """The whole page."""
    run, model = swaps.source, swaps.source.config.model
    about = {
        "run": f"{run.folder.name}, step {run.saved.state['step']:,}",
        "attention": ", ".join(dict.fromkeys(model.layer_attention(i).component.kind for i in range(model.n_layer))),
        "shape": f"{model.n_layer} layers of {model.n_embd}, context {model.block_size:,}",
        "text": swaps.corpus.description,
        "weights": f"SHA-256 {swaps.weights['sha256'][:12]}",
    }
    parts = [card("What it costs", _table(swaps))]
    if rows := _differences(swaps):
        chart = in_two_widths(lambda width: differences_svg(rows, width, PAGE))
        words = soft("Differences of the loss, in nats a token, and their 95 % intervals.")
        parts.append(card(f"How much more than {AS_IT_IS}", [chart, words]))
    parts.append(f'<div class="screen">{card("Look at one", _looks(swaps))}</div>')
    title, heading = f"Another attention in {run.folder.name}", "Another attention in a trained model"
    return report(title, heading, facts(about), command, (), parts, STYLE)


def _table(swaps: Swaps) -> Iterator[str]:
    pieces = len(swaps.rows[0].measured.losses) if swaps.rows[0].measured else 0
    yield table(rows_of(swaps), "the table")
    words = f"""Losses in nats a token on the validation text, lower is better, without training. The same {pieces}
pieces of at most {swaps.data.block_size} tokens are read in every row, each from an empty context. Intervals are
Student's over the pieces, those of differences over pairs: 95 %."""
    if swaps.steps:
        training, T = swaps.settings.training, swaps.train_data.block_size
        words += f" Training: {swaps.steps} steps of {training.batch_size} x {T} tokens of the rest of the text."
    yield soft(words)
    yield from (soft(f"{escape(row.name)}: {escape(row.trouble)}") for row in swaps.rows if row.trouble)


def _differences(swaps: Swaps) -> list[dict[str, Any]]:
    """The differences to the model as it is."""
    base, rows = swaps.rows[0].measured, []
    for row in swaps.rows[1:]:
        if row.measured is not None and base is not None:
            d = difference(row.measured, base)
            rows.append({"variant": row.name, "difference": asdict(d) | {"shown": d.shown}})
    return rows


def _looks(swaps: Swaps) -> Iterator[str]:
    """The commands that open each model, and which of its weights are the run's."""
    run = f"--run {shlex.quote(str(swaps.source.folder))}"
    documents = swaps.corpus.pieces()
    prompt = " ".join(next(iter(next(documents))).split()[:WORDS])[: swaps.source.config.model.block_size // 2]
    for row in swaps.rows:
        if row.config is not None:
            words = shlex.join(row.swap)
            commands = [f"play.py {f'{run} {run}' if words else run} {words}"]
            commands.append(f"explore.py {run} --prompt {shlex.quote(prompt)} {words}")
            lines = [f"<pre>python scripts/{escape(command.strip())}</pre>" for command in commands]
            lines += [soft(escape(line)) for line in (row.moved.lines() if row.moved else ())]
            yield folded(escape(row.name), "\n".join(lines))
