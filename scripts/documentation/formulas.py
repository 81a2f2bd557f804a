"""The formulas of docstrings as MathML: a typeset formula says what the line of text says, sign by sign.

Subscripts, superscripts, primes and roots are set; fractions stay in their line. What is more of a sentence than of a
formula, or has a sign that is not known here, stays text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

SIGNS = {"<=": "&le;", ">=": "&ge;", "->": "&rarr;", ":=": "&colone;", "||": "&parallel;", "...": "&hellip;"}
SIGNS |= {"..": "&hellip;", ".": "&middot;", "*": "&lowast;", "-": "&minus;", "<": "&lt;", ">": "&gt;"}
GREEK = {"lambda": "λ", "tau": "τ"}
TOKEN = re.compile(r" +|\d+(?:\.\d+)?|[A-Za-z]+|<=|>=|->|:=|\|\||\.\.\.?|[-+*/=<>.,;|'^_()\[\]{}]")
SENTENCE = re.compile(r"(?:\b[a-z]{2,}\b[ ,]+){4}|[a-z]{2,} a [a-z]{2,}")  # `a` may be the article
CLOSING = {"(": ")", "[": "]", "{": "}"}
WORD = re.compile(r"[A-Za-z0-9]")


def formulas(docstring: str) -> str:
    """A docstring with each block of formulas, as MathML elements, in place of the indented text."""
    return "\n\n".join(_block(block) for block in docstring.split("\n\n"))


def _block(block: str) -> str:
    lines = block.splitlines()
    typeset = [mathml(line[4:]) for line in lines if line.startswith("    ")]
    if len(typeset) < len(lines) or not all(typeset):
        return block
    return '<div class="formula" tabindex="0">\n' + "<br>\n".join(typeset) + "\n</div>"


def mathml(line: str) -> str:
    """The formulas of a line, which wide gaps divide, as MathML elements; "" for a line that is none."""
    if "=" not in line or line.startswith((" ", "{")) or SENTENCE.search(line):
        return ""
    try:
        return "\n".join(map(_formula, re.split(" {3,}", line)))
    except (IndexError, KeyError):  # an unknown sign, a bracket that is not closed, a subscript of nothing
        return ""


def _formula(text: str) -> str:
    signs = TOKEN.findall(text)
    if "".join(signs) != text:
        raise KeyError(text)
    return f"<math>{''.join(_row([SIGNS.get(sign, sign) for sign in reversed(signs)], ''))}</math>"


def _row(signs: list[str], end: str) -> Iterator[str]:
    """The elements up to the sign `end`; `signs` is the rest of the line, its next sign last."""
    before = ""
    while signs and signs[-1] != end:
        sign = signs.pop()
        if sign.isspace():
            yield _space(before, signs[-1])
        else:
            yield _with_scripts(_atom(sign, signs), signs)
        before = CLOSING.get(sign, sign)
    if end:
        signs.pop()


def _space(before: str, after: str) -> str:
    """The space between two words, which MathML leaves out; signs bring their own."""
    words = (WORD.match(before[-1:]) or before in ")]}',;") and (WORD.match(after) or after in "([|")
    return '<mspace width="0.3em"/>' if words else ""


def _atom(sign: str, signs: list[str]) -> str:
    if sign in CLOSING:
        inside = "".join(_row(signs, CLOSING[sign]))
        return f"<mrow>{_sign(sign)}<mrow>{inside}</mrow>{_sign(CLOSING[sign])}</mrow>"
    if sign in CLOSING.values() or sign in "^_":
        raise KeyError(sign)
    if sign == "sqrt" and signs[-1:] == ["("]:
        signs.pop()
        return f"<msqrt>{''.join(_row(signs, ')'))}</msqrt>"
    if sign[0].isdigit():
        return f"<mn>{sign}</mn>"
    if sign[0].isalpha():
        return f"<mi>{GREEK.get(sign, sign)}</mi>"
    return _sign(sign)


def _sign(sign: str) -> str:
    return f'<mo stretchy="false">{sign}</mo>'


def _with_scripts(base: str, signs: list[str]) -> str:
    while signs and signs[-1] in "_^'":
        how = signs.pop()
        if how == "'":
            base = f'<mrow>{base}<mo lspace="0" rspace="0">&prime;</mo></mrow>'
        else:
            tag = "msub" if how == "_" else "msup"
            base = f"<{tag}>{base}{_script(signs)}</{tag}>"
    return base


def _script(signs: list[str]) -> str:
    """A sub- or superscript, without the brackets that hold it together; two letters are two indices."""
    sign = signs.pop()
    if sign in "({":
        return f"<mrow>{''.join(_row(signs, CLOSING[sign]))}</mrow>"
    letters = sign if sign.isalpha() and len(sign) == 2 else [sign]
    return f"<mrow>{''.join(_atom(letter, signs) for letter in letters)}</mrow>"
