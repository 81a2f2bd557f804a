"""The page of swaps: one HTML file with the table, the differences as a chart, and commands that open each model."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import asdict, replace
from html import escape

from minigpt.comparison.charts import BROAD, NARROW, PAGE, differences_svg
from minigpt.comparison.swaps import AS_IT_IS, Swaps, difference, table
from minigpt.seeing.document import asset, document

STYLE = """
.broad svg, .narrow svg { max-width: 100%; height: auto; }
.narrow { display: none; }
td:not(:first-child), th { white-space: nowrap; }
td:first-child, th:first-child { min-width: 8rem; position: sticky; left: 0; background: var(--card); }
pre { margin: .2rem 0 .6rem; white-space: pre-wrap; font-family: var(--mono); font-size: .85rem; }
@media (max-width: 760px) { .broad { display: none; } .narrow { display: block; }
  td:not(:first-child), th { white-space: normal; } td:first-child, th:first-child { min-width: 5.5rem; }
  td, th { padding-inline: .25rem; } }
@media print { .broad { display: block; } .narrow { display: none; } }
"""
SCRIPT = 'themeButton(byId("theme"));'
INK = replace(PAGE, faint="var(--line)")
WORDS = 6  # of the text, which the commands let a model read


def page(swaps: Swaps, command: str) -> str:
    """The whole page."""
    run, model = swaps.source, swaps.source.config.model
    facts = {
        "run": f"{run.folder.name}, step {run.saved.state['step']:,}",
        "attention": ", ".join(dict.fromkeys(model.layer_attention(i).component.kind for i in range(model.n_layer))),
        "shape": f"{model.n_layer} layers of {model.n_embd}, context {model.block_size:,}",
        "text": swaps.corpus.description,
        "weights": f"SHA-256 {swaps.weights['sha256'][:12]}",
    }
    body = [
        '<div class="row apart"><h1>Another attention in a trained model</h1>',
        '<button id="theme" type="button"></button></div>',
        '<ul class="facts">' + "".join(f"<li>{k} <b>{escape(v)}</b></li>" for k, v in facts.items()) + "</ul>",
        f'<p class="soft">Made by <code>{escape(command)}</code></p>',
        *_table(swaps),
        *_chart(swaps),
        *_looks(swaps),
    ]
    title = f"Another attention in {run.folder.name}"
    return document(title, "\n".join(body), [asset("common.css"), STYLE], [asset("common.js"), SCRIPT], {})


def _table(swaps: Swaps) -> Iterator[str]:
    head, *rows = table(swaps)
    pieces = len(swaps.rows[0].measured.losses) if swaps.rows[0].measured else 0
    yield '<section class="card"><h2>What it costs</h2>'
    yield '<div class="wide" tabindex="0" role="region" aria-label="the table"><table><thead><tr>'
    yield "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head) + "</tr></thead><tbody>"
    for row in rows:
        yield "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
    yield f"""</tbody></table></div><p class="soft">Losses in nats a token on the validation text, lower is better,
without training. The same {pieces} pieces of at most {swaps.data.block_size} tokens are read in every row, each from an
empty context. Intervals are Student's over the pieces, those of differences over pairs: 95 %."""
    if swaps.steps:
        training, T = swaps.settings.training, swaps.train_data.block_size
        yield f"Training: {swaps.steps} steps of {training.batch_size} x {T} tokens of the rest of the text."
    yield "</p>"
    for found in swaps.rows:
        if found.trouble:
            yield f'<p class="soft">{escape(found.name)}: {escape(found.trouble)}</p>'
    yield "</section>"


def _chart(swaps: Swaps) -> Iterator[str]:
    """The differences to the model as it is."""
    base = swaps.rows[0].measured
    rows = []
    for row in swaps.rows[1:]:
        if row.measured is not None and base is not None:
            d = difference(row.measured, base)
            rows.append({"variant": row.name, "difference": asdict(d) | {"shown": d.shown}})
    if rows:
        yield f'<section class="card"><h2>How much more than {AS_IT_IS}</h2>'
        yield f'<div class="broad">{differences_svg(rows, BROAD, INK)}</div>'
        yield f'<div class="narrow">{differences_svg(rows, NARROW, INK)}</div>'
        yield '<p class="soft">Differences of the loss, in nats a token, and their 95 % intervals.</p></section>'


def _looks(swaps: Swaps) -> Iterator[str]:
    """The commands that open each model, and which of its weights are the run's."""
    yield '<section class="card screen"><h2>Look at one</h2>'
    run = f"--run {shlex.quote(str(swaps.source.folder))}"
    documents = swaps.corpus.pieces()
    begun = " ".join(next(iter(next(documents))).split()[:WORDS])[: swaps.source.config.model.block_size // 2]
    for row in swaps.rows:
        if row.config is not None:
            words = shlex.join(row.swap)
            commands = [f"play.py {f'{run} {run}' if words else run} {words}"]
            commands.append(f"explore.py {run} --prompt {shlex.quote(begun)} {words}")
            yield f"<details><summary>{escape(row.name)}</summary>"
            yield from (f"<pre>python scripts/{escape(command.strip())}</pre>" for command in commands)
            yield from (f'<p class="soft">{escape(line)}</p>' for line in (row.moved.lines() if row.moved else ()))
            yield "</details>"
    yield "</section>"
