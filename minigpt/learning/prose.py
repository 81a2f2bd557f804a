"""The Markdown of the lessons: a small part of it, as HTML or as lines for a terminal.

Blocks are divided by empty lines: a heading (`## Title`), a list (`- item`), steps (`1. item`), code (four spaces), a
paragraph. Inside them: `code`, **bold**, *italic*.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from typing import Literal

WIDTH = 88  # columns of a terminal
MARKS = re.compile(r"`([^`]+)`|\*\*([^*]+)\*\*|\*([^*]+)\*")


@dataclass(frozen=True)
class Block:
    """One block of a text; of a list, `parts` are its items, of code its lines, of anything else there is one."""

    kind: Literal["heading", "list", "steps", "code", "paragraph"]
    parts: tuple[str, ...]
    level: int = 0  # of a heading


def blocks(text: str) -> Iterator[Block]:
    """The blocks of a text, in order."""
    for section in re.split(r"\n\s*\n", text.strip("\n")):
        lines = section.splitlines()
        heading = re.match(r"(#+) (.*)", section)
        if heading:
            yield Block("heading", (heading[2],), len(heading[1]))
        elif all(line.startswith("    ") for line in lines):
            yield Block("code", tuple(line[4:] for line in lines))
        elif lines[0].startswith("- "):
            yield Block("list", _items(section, r"^- "))
        elif re.match(r"\d+\. ", lines[0]):
            yield Block("steps", _items(section, r"^\d+\. "))
        elif section.strip():
            yield Block("paragraph", (" ".join(lines),))


def _items(section: str, mark: str) -> tuple[str, ...]:
    items = re.split(mark, section, flags=re.M)[1:]
    return tuple(" ".join(item.split()) for item in items)


def as_html(text: str, top: int = 2) -> str:
    """A text as HTML; its largest headings are of level `top`."""
    html = []
    for block in blocks(text):
        if block.kind == "heading":
            tag = f"h{min(6, block.level + top - 1)}"
            html.append(f"<{tag}>{inline(block.parts[0])}</{tag}>")
        elif block.kind == "code":
            html.append(as_code(escape("\n".join(block.parts))))
        elif block.kind == "paragraph":
            html.append(f"<p>{inline(block.parts[0])}</p>")
        else:
            tag = "ul" if block.kind == "list" else "ol"
            html.append(f"<{tag}>" + "".join(f"<li>{inline(part)}</li>" for part in block.parts) + f"</{tag}>")
    return "\n".join(html)


def as_code(html: str) -> str:
    """Code, which is HTML, in a block that scrolls by keyboard too."""
    return f'<pre tabindex="0"><code>{html}</code></pre>'


def inline(text: str) -> str:
    """A line with its marks as HTML."""

    def as_element(match: re.Match[str]) -> str:
        code, bold, italic = match.groups()
        if code:
            return f"<code>{code}</code>"
        return f"<strong>{bold}</strong>" if bold else f"<em>{italic}</em>"

    return MARKS.sub(as_element, escape(text, quote=False))


def as_text(text: str, indent: str = "") -> str:
    """A text as lines for a terminal, without its marks."""
    rendered = []
    for block in blocks(text):
        if block.kind == "heading":
            title = plain(block.parts[0])
            rendered.append(f"{indent}{title}\n{indent}{('=' if block.level == 1 else '-') * len(title)}")
        elif block.kind == "code":
            rendered.append("\n".join(f"{indent}    {line}" for line in block.parts))
        elif block.kind == "paragraph":
            rendered.append(_filled(block.parts[0], indent, indent))
        else:
            markers = ["- " if block.kind == "list" else f"{n}. " for n in range(1, len(block.parts) + 1)]
            items = [_filled(part, indent + marker, indent + "  ") for marker, part in zip(markers, block.parts)]
            rendered.append("\n".join(items))
    return "\n\n".join(rendered)


def _filled(text: str, first_indent: str, indent: str) -> str:
    return textwrap.fill(
        plain(text),
        WIDTH,
        initial_indent=first_indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def plain(text: str) -> str:
    """A line without its marks."""
    return MARKS.sub(lambda match: next(group for group in match.groups() if group), text)
