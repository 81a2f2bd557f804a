"""Untrusted text (names, keys, samples) made safe to print: without control characters that a terminal acts on."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterable
from typing import TextIO

# control characters (escape sequences begin with one); all line ends; marks of writing direction; lone surrogates
UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
NO_UTF8 = re.compile("[\ud800-\udfff]")  # of a byte in a name of a file that is no UTF-8


def one_line(text: str) -> str:
    """The text with every unsafe character escaped as in Python: \\x1b, \\n."""
    return UNSAFE.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


def printable(text: str) -> str:
    """The text with every unsafe character escaped except line ends and tabs: for tables and samples."""
    return "\n".join("\t".join(map(one_line, line.split("\t"))) for line in text.split("\n"))


def command_line(words: Iterable[str]) -> str:
    """The words of a command as one types them: those with spaces in quotes. Windows' cmd knows double ones alone."""
    if sys.platform == "win32":
        return " ".join(f'"{word}"' if re.search(r"[^\w.:=\\/-]", word) or not word else word for word in words)
    return shlex.join(words)


def shows_colors() -> bool:
    """Whether stdout is a terminal with colors. Of Windows' own, only one says so: an older one shows their codes."""
    return sys.stdout.isatty() and (sys.platform != "win32" or "WT_SESSION" in os.environ)


def complain(text: str) -> None:
    """Print a line on stderr, if that can be written to."""
    try:
        print(printable(text), file=sys.stderr, flush=True)
    except OSError:
        give_up(sys.stderr)


def give_up(stream: TextIO) -> None:
    """Redirect a stream to the null device: else its buffer would fail again at the next line, and at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)
