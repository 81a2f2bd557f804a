"""Strict YAML: a text -> a tree in which every value has its place (file:line:column).

PyYAML reads `3e-4` as a string, `017` as 15 and `on` as true, accepts duplicate keys, and expands aliases without a
limit. Here numbers are numbers, duplicate keys are mistakes, and anchors, aliases and tags are refused. So an untrusted
file can neither execute code nor use much memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from minigpt.system.errors import ConfigError, Mistake, UserError
from minigpt.system.folder import read_file

# A config is small and flat; a larger one is a mistake or an attack. An event of the parser is a value, a key, or the
# beginning or end of a group.
MAX_BYTES, MAX_DEPTH, MAX_EVENTS = 1 << 18, 40, 5000


@dataclass
class Node:
    """A part of a config and its place. `value` is a scalar, a list of nodes, or a dict of nodes."""

    value: Any
    where: str
    keys: dict[str, str]  # the place of each key of a mapping
    former: Node | None = None  # what an override has replaced by this
    others: Sequence[Node] = ()  # if `former` is the kind of a layer: the kinds of all layers
    bare: bool = False  # whether a kind was written as a bare name
    optional: bool = False  # an option that was set in a whole list of kinds: in those that have it


NUMBER = re.compile(r"[-+]?(\d(_?\d){0,39}|(\d+\.\d*|\.\d+|\d+(?=[eE]))([eE][-+]?\d{1,4})?)")
WORDS = {"": None, "~": None, "null": None, "true": True, "True": True, "false": False, "False": False}


def scalar(text: str) -> Any:
    """The value of an unquoted word: null, true, false, a number, or else the word as text."""
    if text in WORDS:
        return WORDS[text]
    if len(text) <= 60 and NUMBER.fullmatch(text):
        return float(text) if set(text) & set(".eE") else int(text)
    return text


def _mark(name: str, mark: Any) -> str:
    return name if mark is None else f"{name}:{mark.line + 1}:{mark.column + 1}"


def parse_yaml(text: str, name: str, mistakes: list[Mistake]) -> Node:
    """The tree of a YAML text. Duplicate keys are added to `mistakes`; raises ConfigError for text that is not YAML.

    Executes nothing and expands nothing. The value of an empty text is None.
    """
    try:
        events = _events(text, name)
        if isinstance(next(events), yaml.StreamEndEvent):
            return Node(None, f"{name}:1:1", {})
        tree = _tree(next(events), events, name, mistakes, depth=0)
        next(events)  # the end of the document
        if not isinstance(extra := next(events), yaml.StreamEndEvent):
            mistakes.append((_mark(name, extra.start_mark), "a config is one YAML document; a second one begins here"))
    except yaml.MarkedYAMLError as error:
        problem = " ".join(part for part in (error.context, error.problem) if part)
        raise ConfigError([(_mark(name, error.problem_mark or error.context_mark), f"not YAML: {problem}")]) from None
    except yaml.YAMLError as error:
        raise ConfigError([(name, "not YAML: " + " ".join(str(error).split()))]) from None
    return tree


def _events(text: str, name: str) -> Iterator[Any]:
    for count, event in enumerate(yaml.parse(text, Loader=yaml.SafeLoader)):
        if count > MAX_EVENTS:
            raise ConfigError(
                [(_mark(name, event.start_mark), f"more than {MAX_EVENTS:,} keys and values: this is not a config")]
            )
        if count:  # the first event is the start of the stream
            yield event


def _tree(event: Any, events: Iterator[Any], name: str, mistakes: list[Mistake], depth: int) -> Node:
    where = _mark(name, event.start_mark)
    if isinstance(event, yaml.AliasEvent) or event.anchor:
        raise ConfigError([(where, "anchors (&) and aliases (*) are not allowed: write the value itself")])
    if event.tag:
        raise ConfigError([(where, f"tags such as {event.tag!r} are not allowed: write the plain value")])
    if depth > MAX_DEPTH:
        raise ConfigError([(where, f"nested more than {MAX_DEPTH} deep")])
    if isinstance(event, yaml.ScalarEvent):
        return Node(scalar(event.value) if event.style is None else event.value, where, {})
    if isinstance(event, yaml.SequenceStartEvent):
        items = []
        while not isinstance(event := next(events), yaml.SequenceEndEvent):
            items.append(_tree(event, events, name, mistakes, depth + 1))
        return Node(items, where, {})
    node = Node({}, where, {})
    while not isinstance(event := next(events), yaml.MappingEndEvent):
        key = _tree(event, events, name, mistakes, depth + 1)
        value = _tree(next(events), events, name, mistakes, depth + 1)
        if not isinstance(key.value, str):
            mistakes.append((key.where, "a key must be a word"))
        elif key.value in node.value:
            mistakes.append((key.where, f"duplicate key {key.value!r} (first at {node.keys[key.value]})"))
        else:
            node.value[key.value], node.keys[key.value] = value, key.where
    return node


def read_text(path: Path) -> str:
    """A config file as text. Raises ConfigError for a file that does not exist, is too large or is not UTF-8."""
    try:
        raw = read_file(path, MAX_BYTES, "a config")
    except FileNotFoundError:
        raise ConfigError([(str(path), "no such file")]) from None
    except UserError as error:
        raise ConfigError([(str(path), str(error).removeprefix(f"{path}: "))]) from None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError([(str(path), f"not UTF-8: byte {error.start} is 0x{raw[error.start]:02x}")]) from None


def plain(node: Node) -> Any:
    """The plain Python values of a tree; `from_python` is the inverse but for the places."""
    if isinstance(node.value, dict):
        return {key: plain(child) for key, child in node.value.items()}
    return [plain(item) for item in node.value] if isinstance(node.value, list) else node.value


def from_python(value: Any, where: str) -> Node:
    """The tree of plain Python values, for configs that are made in a notebook."""
    if isinstance(value, dict):
        children = {key: from_python(child, f"{where}.{key}") for key, child in value.items()}
        return Node(children, where, dict.fromkeys(children, where))
    if isinstance(value, (list, tuple)):
        return Node([from_python(item, f"{where}[{i}]") for i, item in enumerate(value)], where, {})
    return Node(value, where, {})
