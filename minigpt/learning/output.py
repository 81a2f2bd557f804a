"""What a cell shows: lines in a terminal, HTML in a notebook, pieces that are collected for the page.

say("The mean is **4**.")      # a paragraph, with the numbers that were just computed
show(matrix(weights, ...))     # a picture
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from html import escape
from importlib import import_module
from pathlib import Path

from minigpt.learning.prose import as_html, as_text
from minigpt.seeing.drawing import AROUND
from minigpt.system.waiting import in_notebook
from minigpt.training import report

COLOURS = "".join(f"--around-{role}:{colour};" for role, colour in AROUND.items())
SHEET = Path(__file__).with_name("output.css").read_text(encoding="utf-8")
STYLE = f":is(.lesson-table,.answer){{{COLOURS}}}\n{SHEET}"  # of what is shown, in a notebook too


@dataclass(frozen=True)
class Output:
    """One thing that is shown: as lines and as HTML. Colours and sizes are classes of `output.css`."""

    text: str
    html: str


class Printed(Output):
    """What `print` has printed."""


_collectors: list[list[Output]] = []  # those of `collected`, the innermost last


@contextmanager
def collected() -> Iterator[list[Output]]:
    """What is shown or printed inside the `with` is collected in a list, and appears nowhere."""
    outputs: list[Output] = []
    _collectors.append(outputs)
    try:
        with redirect_stdout(_Stdout(outputs)):
            yield outputs
    finally:
        _collectors.pop()


class _Stdout(io.TextIOBase):
    """A stdout that collects what is printed, in its place among what is shown."""

    def __init__(self, outputs: list[Output]):
        self.outputs = outputs

    def write(self, text: str) -> int:
        before = self.outputs.pop().text if self.outputs and isinstance(self.outputs[-1], Printed) else ""
        self.outputs.append(Printed(before + text, f'<pre tabindex="0">{escape(before + text)}</pre>'))
        return len(text)


def show(*outputs: Output) -> None:
    """Show something: a picture, a table."""
    for output in outputs:
        if _collectors:
            _collectors[-1].append(output)
        elif in_notebook():
            data = {"text/html": f"<style>{STYLE}</style>{output.html}", "text/plain": output.text}
            import_module("IPython.display").display(data, raw=True)
        else:
            report.say(output.text + "\n")


def say(text: str) -> None:
    """Show a text in the Markdown of `prose.py`: sentences with numbers that were just computed."""
    show(prose(text))


def prose(text: str) -> Output:
    """The same, to be shown later."""
    return Output(as_text(text), as_html(text, top=4))


def collecting() -> bool:
    """Whether what is shown is collected for a page."""
    return bool(_collectors)


def can_ask() -> bool:
    """Whether there is somebody at a terminal who can be asked."""
    return not _collectors and not in_notebook() and sys.stdin.isatty() and sys.stdout.isatty()
