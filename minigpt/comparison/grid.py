"""A grid: a list of values where an option of a config takes one, and all are tried (`tuning.py`).

    training.optimizer.learning_rate=[0.003, 0.01, 0.03]      # three choices
    training.warmup_steps=[0, 20]                             # with these too, 3 x 2: their product

A list where the option is a list itself, such as the kinds of the layers in `model.attention`, is one value: kinds are
compared as variants, and are no grid.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from itertools import product

from minigpt.config.options import build, lists_of_values, locate, to_python
from minigpt.config.overrides import put
from minigpt.config.strict_yaml import Node, from_python, plain
from minigpt.system.errors import Mistake
from minigpt.training.assemble import RunConfig

Value = float | str | bool | None
Grids = Mapping[str, tuple[Value, ...]]  # of each option that has one, by its key
Choice = Mapping[str, Value]  # a value of each of these options

MOST = 64  # choices; each variant is trained with all of them


def take_grids(tree: Node, mistakes: list[Mistake]) -> dict[str, tuple[Value, ...]]:
    """Take the grids out of what the variants share: each option has its first value after that. Adds to `mistakes`."""
    grids = dict[str, tuple[Value, ...]]()
    for path, node in lists_of_values(RunConfig, tree):
        key = re.sub(r"\[\d+\]", "", path)
        if key != path and not node.optional:
            continue  # in one kind of a list: no key names it, and it stays a mistake
        values = tuple(plain(item) for item in node.value)
        if not values or any(isinstance(value, (list, dict)) for value in values):
            continue  # of no option
        if len({*map(in_words, values)}) < max(2, len(values)):
            mistakes.append((node.where, f"{key}: a grid has two values or more, all different, found {list(values)}"))
        grids[key] = values
        first = node.value[0]
        node.value, node.keys = first.value, first.keys
    grids = dict(sorted(grids.items()))  # so the order in which they are written does not name other trials
    count = math.prod(map(len, grids.values()))
    if count > MOST:
        sizes = " x ".join(str(len(values)) for values in grids.values())
        many = f"{sizes} = {count:,} choices" if len(grids) > 1 else f"{count:,} choices"
        problem = f"the grid of {' and '.join(grids)} has {many}"
        problem += f", and each variant would be trained with all of them: at most {MOST}"
        mistakes.append((locate(tree, next(iter(grids))), problem))
        return {key: values[:1] for key, values in grids.items()}
    return grids


def choices(grids: Grids) -> dict[str, Choice]:
    """Every choice of one value for each option, by its name; {} without a grid."""
    every = (dict(zip(grids, values)) for values in product(*grids.values())) if grids else ()
    return {", ".join(map(in_words, choice.values())): choice for choice in every}


def in_words(value: Value) -> str:
    """A value as text: 0.003."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    short = value if isinstance(value, str) else f"{value:g}"
    return short if isinstance(value, str) or float(short) == value else repr(value)


def folder_name(choice: str) -> str:
    """The name of a choice in the name of a folder. What is not a plain number or word has a hash, to be its own."""
    plain_text = re.sub(r"[^a-z0-9.+-]+", "-", choice.lower())[:60]
    return choice if plain_text == choice else f"{plain_text}-{hashlib.sha256(choice.encode()).hexdigest()[:6]}"


def with_choice(config: RunConfig, choice: Choice) -> RunConfig:
    """The config with other values of some options, by their keys. Raises ConfigError."""
    if not choice:
        return config
    tree = from_python(to_python(config), "a grid")
    for key, value in choice.items():
        put(tree, key, from_python(value, "a grid"), "a grid")
    return build(RunConfig, tree)


def sets(changes: Node, key: str) -> bool:
    """Whether the keys of a row set an option, or what it belongs to as a whole."""
    for name, child in changes.value.items() if isinstance(changes.value, dict) else ():
        if name == key or name.startswith(f"{key}."):
            return True
        if key.startswith(f"{name}.") and sets(child, key.removeprefix(f"{name}.")):
            return True
    return False
