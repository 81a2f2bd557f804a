"""Texts in another language: `german/` has the German beside the English of lessons, pages and reports.

Each lesson has a file there, named as the lesson is. `page.po` is what all pages, reports and answers say, and begins
with the glossary; `exercises.po` is the docstrings and hints of exercises; `messages.po` is what lessons quote from
other chapters. A .po file is that of GNU gettext, so the usual editors of translations open it. A lesson is translated
as source, before it is read: the paragraphs of its texts, the strings of its code, and what kind of guess is awaited.
What stands in braces in the English, such as a number that the code has computed, is {1}, {2}, ... in the .po file. A
text that is not in the file stays English.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

LANGUAGES = {"en": "", "de": "german"}  # the code of a language (BCP 47), and its folder
PAGE, MESSAGES, EXERCISES = "page", "messages", "exercises"  # the places of what does not belong to a lesson
MARKDOWN = re.compile(r"^# %% \[markdown\]\n((?:#.*\n)+)", re.M)
NARROW_SPACE = 0x202F  # does not break, between the digits of a large number
AWAITED = re.compile(r"^(guess = None  # )(.+)", re.M)
Table = Mapping[tuple[str, str], str]  # (place, English) -> the other language

_language = "en"


def use_language(language: str) -> None:
    """From now on texts are in this language, one of LANGUAGES."""
    global _language
    _language = language


def language() -> str:
    """The language of the texts: the code of one of LANGUAGES."""
    return _language


@cache
def table_of(language: str) -> Table:
    """All translations into a language."""
    if not LANGUAGES[language]:
        return {}
    files = Path(__file__).with_name(LANGUAGES[language]).glob("*.po")
    return {(path.stem, english): other for path in files for english, other in read_po(path)}


def read_po(path: Path) -> Iterator[tuple[str, str]]:
    """The entries of a .po file, (English, the other language), without its first, the header."""
    for entry in path.read_text(encoding="utf-8").split("\n\n"):
        fields = dict(re.findall(r'^(msg\w+) ((?:".*"\s*)+)', entry, re.M))
        english, other = (ast.literal_eval(f"({fields[name]})") for name in ("msgid", "msgstr"))
        if english:
            yield english, other


def text(english: str, **values: object) -> str:
    """A text of a page or a report in the language in use, with its values."""
    return table_of(_language).get((PAGE, english), english).format(**values)


def page_texts() -> dict[str, str]:
    """What the pages' scripts say: {English: the language in use}."""
    return {english: other for (place, english), other in table_of(_language).items() if place == PAGE}


def message(english: str) -> str:
    """A sentence that another chapter has written, in the language in use if `messages.po` knows its form."""
    for (place, form), other in table_of(_language).items():
        match = re.fullmatch(re.sub(r"\\{\d+\\}", "(.+)", re.escape(form)), english) if place == MESSAGES else None
        if match:
            numbers = (re.sub(r"(?<=\d),(?=\d{3})", chr(NARROW_SPACE), each) for each in match.groups())
            return other.format(english, *numbers)
    return english


def exercise_text(paragraph: str) -> str:
    """A paragraph of an exercise in the language in use, on one line; as it is if it is not translated."""
    english = " ".join(paragraph.split())
    return table_of(_language).get((EXERCISES, english), paragraph)


def spoken() -> str:
    """What a command needs to speak the language in use."""
    return "" if _language == "en" else f" --language {_language}"


def speaks(place: str) -> bool:
    """Whether a lesson is there in the language in use."""
    return _language == "en" or any(each == place for each, _ in table_of(_language))


# ---- a lesson


def translated(source: str, place: str) -> str:
    """The source of a lesson with its texts in the language in use. Other comments in code stay as they are."""
    table = table_of(_language)
    if not any(each == place for each, _ in table):
        return source
    known = {english: other for (each, english), other in table.items() if each == place}
    source = MARKDOWN.sub(lambda cell: "# %% [markdown]\n" + _comments(cell[1], known), source)
    source = AWAITED.sub(lambda line: line[1] + known.get(line[2], line[2]), source)
    lines = source.encode().splitlines(keepends=True)
    for node in sorted(texts_in(ast.parse(source)), key=lambda node: (-node.lineno, -node.col_offset)):
        literal = _literal(node, known)
        if literal is None:
            continue
        assert node.end_lineno and node.end_col_offset is not None
        end = lines[node.end_lineno - 1][node.end_col_offset :]
        lines[node.lineno - 1 : node.end_lineno] = [lines[node.lineno - 1][: node.col_offset] + literal.encode() + end]
    return b"".join(lines).decode()


def paragraphs(comments: str) -> list[str]:
    """The paragraphs of a text in comments; each item of a list is one, and so is a block of code, as it stands."""
    blocks = re.split(r"\n\s*\n", "\n".join(line[1:].removeprefix(" ") for line in comments.splitlines()))
    whole = [
        block if block.startswith("    ") else re.sub(r"\n(?!- |\d+\. )\s*", " ", block.strip()) for block in blocks
    ]
    return [line for block in whole for line in ([block] if block.startswith("    ") else block.split("\n")) if line]


def _comments(comments: str, known: Mapping[str, str]) -> str:
    lines = [known.get(each, each) for each in paragraphs(comments)]
    is_item = [bool(re.match(r"- |\d+\. ", line)) for line in lines]
    rendered = ""
    for index, line in enumerate(lines):
        rendered += "" if index == 0 or (is_item[index] and is_item[index - 1]) else "#\n"
        rendered += "".join(f"# {each}\n" for each in line.split("\n"))
    return rendered + "\n"


def texts_in(tree: ast.AST) -> list[ast.Constant | ast.JoinedStr]:
    """The strings of a program, also formatted ones; not those inside of a formatted one."""
    strings: list[ast.Constant | ast.JoinedStr] = []
    for node in ast.iter_child_nodes(tree):
        is_text = isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))
        strings += [node] if is_text else texts_in(node)  # type: ignore[list-item]
    return strings


def key_of(node: ast.Constant | ast.JoinedStr) -> str:
    """The English of a string as it stands in a .po file: what a formatted string fills in is {1}, {2}, ..."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    parts, number = [], 0
    for part in node.values:
        number += not isinstance(part, ast.Constant)
        parts.append(str(part.value) if isinstance(part, ast.Constant) else f"{{{number}}}")
    return "".join(parts)


def _literal(node: ast.Constant | ast.JoinedStr, known: Mapping[str, str]) -> str | None:
    """The other language's string as Python, or None if it is not known."""
    english = key_of(node)
    if isinstance(node, ast.Constant):
        title, _, about = english.partition("\n\n")
        if title.startswith("Lesson "):
            about = " ".join(about.split())
            return f'"""{known.get(title, title)}\n\n{known.get(about, about)}\n"""'
        return repr(known[english]) if english in known else None
    fields = [part for part in node.values if not isinstance(part, ast.Constant)]
    if english not in known and not any(texts_in(field) for field in fields):
        return None
    pieces = re.split(r"\{(\d+)\}", known.get(english, english))
    values: list[ast.expr] = [
        _within(fields[int(piece) - 1], known) if index % 2 else ast.Constant(piece)
        for index, piece in enumerate(pieces)
    ]
    return ast.unparse(ast.JoinedStr(values))


def _within(field: ast.expr, known: Mapping[str, str]) -> ast.expr:
    """What a formatted string fills in, its own strings translated; thousands are 1 000, for 1,000 is a decimal."""
    for node in ast.walk(field):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = known.get(node.value, node.value)
    specification = getattr(field, "format_spec", None)
    if specification is None or "," not in key_of(specification):
        return field
    number = f"format({ast.unparse(field.value)}, {key_of(specification)!r})"  # type: ignore[attr-defined]
    spaced = ast.parse(f"{number}.replace(',', chr({NARROW_SPACE}))", mode="eval").body
    return ast.FormattedValue(spaced, conversion=-1)
