"""Overrides: `group.key=value` changes a config's tree, and the new value remembers what it replaced.

A kind that is chosen by a bare name (`model.attention=linear`) keeps the options of the kind that it replaces, and
`{kind: linear}` means exactly what it says. Which options a kind has is not known here: `options.py` decides.
"""

from __future__ import annotations

import copy
import math
import re
from dataclasses import replace

from minigpt.config.strict_yaml import Node, parse_yaml
from minigpt.system.errors import ConfigError, Mistake
from minigpt.system.terminal import NO_UTF8

LAYERS = 1000  # the most layers that a model may have


class Empty(str):
    """The value in `sampling.stop=`: null where the option allows null, otherwise the empty text."""


def override(tree: Node, argument: str, mistakes: list[Mistake]) -> None:
    """Apply one argument, such as `model.attention=average_softmax`, to the tree. Raises ConfigError."""
    path, equals, text = argument.partition("=")
    where = f"command line: {argument}" if len(argument) <= 80 else f"command line: {argument[:70]}..."
    if not equals or not re.fullmatch(r"\w+(\.\w+)*", path):
        raise ConfigError([(where, "expected group.key=value, as in training.max_steps=50")])
    lines = len(f"{text}.".splitlines())  # YAML would replace a line end by a space
    if not text.strip() or text[0] in "#*&!%@`" or NO_UTF8.search(text) or (lines > 1 and text[0] not in "[{\"'"):
        value = Node(text or Empty(), where, {})  # YAML forbids it or means something else; here *.txt is a file's name
    else:
        value = _relabel(parse_yaml(text, where, mistakes), where)
    put(tree, path, value, where)


def put(tree: Node, path: str, value: Node, where: str) -> None:
    """Set the value at a dotted path; an option of a list of kinds is set in those that have it.

    Raises ConfigError if a part of the path is not a group.
    """
    name, _, rest = path.partition(".")
    rest = "" if rest == "kind" and isinstance(value.value, str) else rest  # attention.kind=linear is attention=linear
    former = tree.value.get(name)
    tree.keys[name] = where if not rest else tree.keys.get(name, where)
    if not rest:
        tree.value[name] = replace(value, former=former)
        return
    missing = former is None or former.value is None  # or a group that is null so far
    group = Node({}, where, {}) if missing else as_mapping(former)
    if isinstance(group.value, list):
        group = replace(group, value=[as_mapping(item) for item in group.value])
    several = isinstance(group.value, list)
    for part in group.value if several else [group]:
        if not isinstance(part.value, dict):
            raise ConfigError([(where, f"{name} is not a group of options here; set {name} as a whole")])
        put(part, rest, replace(copy.deepcopy(value), optional=several and "." not in rest), where)
    tree.value[name] = group


def _relabel(node: Node, where: str) -> Node:
    """The same tree with one place for all nodes: a command-line argument has no lines and columns."""
    value = node.value
    if isinstance(value, dict):
        value = {key: _relabel(child, where) for key, child in value.items()}
    elif isinstance(value, list):
        value = [_relabel(child, where) for child in value]
    return Node(value, where, dict.fromkeys(node.keys, where))


# ---- kinds, and what they replace ----


def as_mapping(node: Node) -> Node:
    """The bare name `attention: multi_head` as {kind: multi_head}; a mapping is returned unchanged."""
    if isinstance(node.value, str):
        return Node({"kind": node}, node.where, {"kind": node.where}, node.former, bare=True)
    return node


def layers(node: Node) -> list[Node]:
    """A kind, or a list of kinds that is repeated over the layers, as a list in which each has its own former kind.

    Its length is that of the list, or a multiple of it where the former list has another length.
    """
    items = [as_mapping(item) for item in (node.value if isinstance(node.value, list) else [node])]
    if node.former is None:
        return items
    formers = layers(node.former)
    period = min(LAYERS, math.lcm(len(items), len(formers)))
    return [replace(items[i % len(items)], former=formers[i % len(formers)], others=formers) for i in range(period)]


def is_exact(kind: Node) -> bool:
    """Whether a kind, a mapping, means only what it says: {kind: linear}, but not a bare name, nor {n_head: 2}."""
    return not kind.bare and "kind" in kind.value


def kind_of(node: Node | None) -> Node | None:
    """The name of a kind; of a mapping without one, the name of the kind that it replaces; None if there is none."""
    kind = as_mapping(node) if node is not None else None
    if kind is None or not isinstance(kind.value, dict):
        return None
    return kind.value.get("kind") or kind_of(kind.former)


def options_of(node: Node | None) -> dict[str, tuple[Node, Node | None]]:
    """The options of a kind, and those that it may keep of what it replaces: each with its value, and with the name of
    the kind that the value was given to."""
    kind = as_mapping(node) if node is not None else None
    if kind is None or not isinstance(kind.value, dict):
        return {}
    options = {name: (value, kind_of(kind)) for name, value in kind.value.items() if name != "kind"}
    return options if is_exact(kind) else options_of(kind.former) | options
