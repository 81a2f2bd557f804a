"""Markdown: blocks of code, tables, pictures for two themes, docstrings, and the page of each file."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from minigpt.seeing.drawing import THEMES

ROOT = Path(__file__).parents[2]
FENCE = "~" * 12  # no file has as many in a line
FILE = re.compile(r"(?<!\[)`((?:\w+/)*\w+\.py)`(?!\])")


def page_of(file: Path) -> str:
    """The page of a file of the repository."""
    if file == Path("README.md"):
        return "index.md"
    return file.as_posix() if file.suffix == ".md" else f"{file.as_posix()}.md"


def source_of(thing: Any) -> Path:
    """The file of a class or a function, in the repository."""
    return Path(thing.__module__.replace(".", "/") + ".py")


def link(text: str, file: Path) -> str:
    """A link to the page of a file."""
    return f"[{text}](/{page_of(file)})"


def code(source: str, language: str) -> str:
    """A block of code, or of a directive of Sphinx."""
    return f"{FENCE}{language}\n{source.rstrip()}\n{FENCE}"


def themed(light: str, dark: str, alt: str) -> str:
    """A picture for each theme, of which the page shows one."""
    return "\n".join(f'<img alt="{alt}" src="{src}" class="only-{name}">' for name, src in zip(THEMES, (light, dark)))


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; "" if it has no row."""
    lines = [heads, ["---"] * len(heads), *rows]
    cells = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells) if rows else ""


def prose(docstring: str, folder: Path) -> str:
    """A docstring as Markdown: papers and files become links, cost and users paragraphs of their own.

    `folder` is where the names of files begin, unless it is the package.
    """
    blocks = re.sub(r"\n(?=(?:Cost|Cache|Used by)\b)", "\n\n", inspect.cleandoc(docstring)).split("\n\n")
    return "\n\n".join(_block(block, folder) for block in blocks)


def _block(block: str, folder: Path) -> str:
    if block.startswith("    "):
        return block
    if all(re.search(r"\S {2,}\S", line) for line in block.splitlines()):  # columns
        return code(block, "none")

    def to_page(match: re.Match[str]) -> str:
        places = [place / match[1] for place in (folder, Path("minigpt")) if (ROOT / place / match[1]).is_file()]
        return link(match[0], places[0]) if places else match[0]

    block = re.sub(r"(`[^`]*`)|<(?=[\w/!|])", lambda match: match[1] or "\\<", block)  # `<` begins no HTML
    block = re.sub(r"arXiv (\d{4}\.\d{5})", r"[arXiv \1](https://arxiv.org/abs/\1)", block)
    return FILE.sub(to_page, block)
