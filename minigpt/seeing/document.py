"""Builds one HTML file from assets: it loads nothing from outside, and its policy allows only its own script and style.

The policy names the SHA-256 of the script and of the style sheet, so nothing else in the page can run, whatever a model
or a person wrote into it (Content Security Policy Level 3, W3C).
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from minigpt.system.errors import UserError
from minigpt.system.folder import read_start, write_whole
from minigpt.text.tokenizer import Tokenizer

ASSETS = Path(__file__).with_name("assets")
MARK = '<meta name="generator" content="minigpt">'  # marks a page as made by minigpt


def asset(name: str) -> str:
    """The text of a file in `seeing/assets/`."""
    return (ASSETS / name).read_text(encoding="utf-8")


def document(
    title: str,
    body: str,
    styles: Sequence[str],
    scripts: Sequence[str],
    data: Mapping[str, Any],
    connect: str = "'none'",
) -> str:
    """A complete HTML page.

    `styles` and `scripts` are texts, joined in order. `data`: {id: a JSON value}, which the script finds by `dataOf`.
    `connect` is the policy's connect-src: where the script may send requests, 'none' for a file.
    """
    style, script = "\n".join(styles), "\n".join(scripts)
    policy = f"default-src 'none'; img-src data:; style-src {digest(style)}; script-src {digest(script)}"
    policy += f"; connect-src {connect}; base-uri 'none'; form-action 'none'"
    blocks = [f'<script type="application/json" id="{name}">{embedded(value)}</script>' for name, value in data.items()]
    head = [
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">' + MARK,
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">',
        f"<title>{escape(title)}</title><style>{style}</style></head><body>",
    ]
    return "\n".join([*head, body, *blocks, f"<script>{script}</script></body></html>\n"])


def digest(text: str) -> str:
    """How a policy names a script or a style sheet: its SHA-256 in base64."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def embedded(value: Any) -> str:
    """A value as JSON that can stand in HTML: `<` is escaped, so no tag can begin in it. Raises ValueError for NaN."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def shown(tokenizer: Tokenizer, id: int) -> str:
    """A token as text. If its bytes are not whole characters, they are shown in hexadecimal: ⟨e280⟩."""
    raw = tokenizer.token_bytes(id)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return f"\N{MATHEMATICAL LEFT ANGLE BRACKET}{raw.hex()}\N{MATHEMATICAL RIGHT ANGLE BRACKET}"


def write_page(path: Path, html: str) -> Path:
    """Write a page, and return its path. Raises UserError as `check_place` does, and OSError."""
    check_place(path)
    write_whole(path, html)
    return path


def place_of(folder: Path, name: str, overrides: Sequence[str]) -> Path:
    """The path of a run's page: explorer.html, or, after a swap, explorer-attention-linear.html."""
    swapped = re.sub(r"[^\w.]+", "-", "".join(f" {one.removeprefix('model.')}" for one in overrides))
    stem, dot, ending = name.rpartition(".")
    return folder / f"{stem}{swapped[:100].rstrip('-')}{dot}{ending}"


def check_place(path: Path) -> None:
    """Raises UserError if its folder is missing, or if something is there that is not a page of minigpt."""
    if not path.parent.is_dir():
        raise UserError(f"{path}: there is no folder {path.parent}: make it first")
    if path.is_dir():
        raise UserError(f"{path}: a folder: give the name of a file in it, such as {path / 'page.html'}")
    ours = path.is_file() and not path.is_symlink() and MARK.encode() in read_start(path, 1000)
    if os.path.lexists(path) and not ours:
        raise UserError(f"{path}: exists and is no page of minigpt: move it away, or give another name")
