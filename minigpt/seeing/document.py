"""An HTML page in one file: it loads nothing from outside, and its policy allows only its own script and style.

The policy names the SHA-256 of the script and of the style sheet, so nothing else in the page can run, whatever a model
or a person wrote into it (Content Security Policy Level 3, W3C).
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from minigpt.seeing.drawing import BROAD, COLOURS, NARROW
from minigpt.system.errors import UserError
from minigpt.system.folder import read_start, write_whole

ASSETS = Path(__file__).with_name("assets")
MARK = '<meta name="generator" content="minigpt">'  # marks a page as made by minigpt


def asset(name: str) -> str:
    """The text of a file in `seeing/assets/`."""
    return (ASSETS / name).read_text(encoding="utf-8")


def style_sheet(style: str = "") -> str:
    """The look of minigpt's pages: the colours of both themes, common.css, and then `style`."""
    colours = "".join(f"--{role}:light-dark({light},{dark});" for role, (light, dark) in COLOURS.items())
    return f":root{{{colours}}}\n{asset('common.css')}\n{style}"


def skeleton(title: str, head: Iterable[str], body: str, language: str = "en") -> str:
    """An HTML page around its `body`; `head` and `body` are HTML. `language`: that of its texts, as in BCP 47."""
    start = f'<!doctype html>\n<html lang="{language}"><head><meta charset="utf-8">{MARK}'
    looks = '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
    return "\n".join([start, *head, looks, f"<title>{escape(title)}</title></head><body>", body, "</body></html>\n"])


def document(
    title: str,
    body: str,
    style: str = "",
    scripts: Sequence[str] = (),
    data: Mapping[str, Any] | None = None,
    language: str = "en",
) -> str:
    """A complete HTML page in the look of `style_sheet`.

    `scripts` are texts, which come behind common.js; without any, the page has no script. `data`: {id: a JSON value},
    which a script finds by `dataOf`. `language`: that of its texts, as in BCP 47.
    """
    style, script = style_sheet(style), "\n".join([asset("common.js"), *scripts]) if scripts else ""
    allowed = f"img-src data:; style-src {digest(style)}" + (f"; script-src {digest(script)}" if script else "")
    policy = f"default-src 'none'; {allowed}; connect-src 'none'; base-uri 'none'; form-action 'none'"
    blocks = [
        f'<script type="application/json" id="{name}">{embedded(value)}</script>'
        for name, value in (data or {}).items()
    ]
    head = [f'<meta http-equiv="Content-Security-Policy" content="{policy}">', f"<style>{style}</style>"]
    return skeleton(title, head, "\n".join([body, *blocks, f"<script>{script}</script>" if script else ""]), language)


def digest(text: str) -> str:
    """How a policy names a script or a style sheet: its SHA-256 in base64."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def embedded(value: Any) -> str:
    """A value as JSON that can stand in HTML: `<` is escaped, so no tag can begin in it. Raises ValueError for NaN."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


# ---- results ----


def report(
    title: str,
    heading: str,
    about: str,
    command: str,
    notes: Iterable[str],
    parts: Iterable[str],
    style: str,
    button: bool = True,
) -> str:
    """A page of results: what it is `about`, the command that made it, notes, and then its `parts`.

    `about` and `parts` are HTML. Without the `button` for the theme, the page has no script.
    """
    body = [
        header(heading, button),
        "<main>",
        about,
        soft(f"Made by <code>{escape(command)}</code>"),
        *(f"<p><b>Note</b>: {escape(note)}</p>" for note in notes),
        *parts,
        "</main>",
    ]
    return document(title, "\n".join(body), style, ['themeButton(byId("theme"));'] if button else ())


def header(heading: str, button: bool = True) -> str:
    """The heading of a page, beside the button for its theme."""
    theme = '<button id="theme" type="button">Colours</button>' if button else ""
    return f'<header class="row apart"><h1>{escape(heading)}</h1>{theme}</header>'


def facts(values: Mapping[str, str]) -> str:
    """Names and values in a line."""
    return '<ul class="facts">' + "".join(f"<li>{name} <b>{escape(v)}</b></li>" for name, v in values.items()) + "</ul>"


def card(heading: str, parts: Iterable[str]) -> str:
    """A section of a page; its `parts` are HTML."""
    return "\n".join([f'<section class="card"><h2>{escape(heading)}</h2>', *parts, "</section>"])


def folded(summary: str, html: str = "", style: str = "", opened: bool = False) -> str:
    """What is shown when its `summary` is clicked; both are HTML."""
    return f"<details{_class(style)}{' open' if opened else ''}><summary>{summary}</summary>{html}</details>"


def soft(html: str) -> str:
    """A paragraph that explains."""
    return f'<p class="soft">{html}</p>'


def in_two_widths(draw: Callable[[int], str]) -> str:
    """A chart in two widths; the style sheet shows the one for which there is room."""
    return f'<div class="broad">{draw(BROAD)}</div><div class="narrow">{draw(NARROW)}</div>'


@dataclass(frozen=True)
class Cell:
    """A cell of a table whose content is HTML, and its class."""

    html: str
    style: str = ""


def table(
    rows: Iterable[Sequence[str | Cell]], name: str, style: str = "", row_styles: Mapping[int, str] | None = None
) -> str:
    """A table in a region that scrolls, by keyboard too, where it is wider than the screen.

    The first row has the titles of the columns, the first cell of each other row names the row. `name` is for screen
    readers. `row_styles`: {number of a row below the titles: its class}.
    """
    head, *body = rows
    titles = "".join(f'<th scope="col">{escape(title)}</th>' for title in map(str, head))
    lines = [f"<table{_class(f'results {style}'.strip())}><thead><tr>{titles}</tr></thead><tbody>"]
    for index, (title, *cells) in enumerate(body):
        line = f'<tr{_class((row_styles or {}).get(index, ""))}><th scope="row">{escape(str(title))}</th>'
        lines.append(line + "".join(_cell(cell) for cell in cells) + "</tr>")
    return scrolling(name, "\n".join([*lines, "</tbody></table>"]))


def scrolling(name: str, html: str) -> str:
    """What may be wider than the screen."""
    return f'<div class="wide" tabindex="0" role="region" aria-label="{escape(name)}">{html}</div>'


def _cell(cell: str | Cell) -> str:
    return f"<td{_class(cell.style)}>{cell.html}</td>" if isinstance(cell, Cell) else f"<td>{escape(cell)}</td>"


def _class(name: str) -> str:
    return f' class="{name}"' if name else ""


# ---- files ----


def write_page(path: Path, html: str) -> Path:
    """Write a page, and return its path. Raises UserError as `check_place` does, and OSError."""
    check_place(path)
    write_whole(path, html)
    return path


def place_of(folder: Path, name: str, overrides: Sequence[str]) -> Path:
    """The path of a run's page: explorer.html, or, after a swap, explorer-attention-linear.html."""
    swapped = re.sub(r"[^\w.]+", "-", "".join(f" {override.removeprefix('model.')}" for override in overrides))
    stem, dot, ending = name.rpartition(".")
    return folder / f"{stem}{swapped[:100].rstrip('-')}{dot}{ending}"


def check_place(path: Path) -> None:
    """Raises UserError if its folder is missing, or if something is there that is not a page of minigpt."""
    if not path.parent.is_dir():
        raise UserError(f"{path}: there is no folder {path.parent}: make it first")
    if path.is_dir():
        raise UserError(f"{path}: a folder: give the name of a file in it, such as {path / 'page.html'}")
    is_page = path.is_file() and not path.is_symlink() and MARK.encode() in read_start(path, 1000)
    if os.path.lexists(path) and not is_page:
        raise UserError(f"{path}: exists and is no page of minigpt: move it away, or give another name")
