"""What comes from outside (names, keys, texts) as a terminal may have it: with nothing in it that a terminal obeys."""

from __future__ import annotations

import re

# controls, among them escape sequences; line ends of all kinds; what turns the direction of writing; half characters
OBEYED = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def one_line(text: str) -> str:
    """The text with everything that a terminal obeys written out, as in Python: \\x1b, \\n."""
    return OBEYED.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def printable(text: str) -> str:
    """The same with line ends and tabs as they are: for tables and samples."""
    return "\n".join("\t".join(map(one_line, line.split("\t"))) for line in text.split("\n"))
