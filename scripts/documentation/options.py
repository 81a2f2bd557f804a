"""Every option of a config, with the sentence that stands below it in the source."""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from documentation.markdown import link, prose, source_of, table
from minigpt.attention import Attention
from minigpt.config.options import Component, Options, hints, type_in_words
from minigpt.seeing.catalogue import idea
from minigpt.training.assemble import RunConfig


def options_page() -> str:
    """The options group by group, and those of each kind that can stand in a place."""
    parts = ["# Options", "Every option of a config, with its default."]
    for path, schema in groups_of(RunConfig, ""):
        if not issubclass(schema, Component.Config):
            about = prose(schema.__doc__ or "", source_of(schema).parent)
            parts += [f"## {path or 'A config'}", about, options_table(schema)]
            continue
        parts.append(f"## {path}, by kind")
        for name, kind in schema.component.kinds.items():
            if issubclass(kind, Attention):
                parts.append(f"- {link(name, source_of(kind))}: {idea(kind)}")
            else:
                about = prose(kind.__doc__ or "", source_of(kind).parent)
                parts += [f"### {path}: {name}", about, options_table(kind.Config) or "No options."]
    return "\n\n".join(parts)


def groups_of(schema: type[Options], path: str) -> Iterator[tuple[str, type[Options]]]:
    """A group of options and those within it, each with its path: training, training.optimizer, ..."""
    yield path, schema
    for name in hints(schema):
        default = getattr(schema(), name)
        if isinstance(default, Options):
            yield from groups_of(type(default), f"{path}.{name}".lstrip("."))


def options_table(schema: type[Options]) -> str:
    """A row for each option: its name, its default, what values it has, its sentence; "" without options."""
    rows, texts, defaults = list[list[str]](), sentences(schema), schema()
    for name, hint in hints(schema).items():
        value = getattr(defaults, name)
        default = value.component.kind if isinstance(value, Component.Config) else value
        shown = "" if isinstance(default, Options) else f"`{json.dumps(default)}`"
        rows.append([f"`{name}`", shown, type_in_words(hint), prose(texts[name], Path("minigpt"))])
    return table(["option", "default", "value", "what it is"], rows)


def sentences(schema: type[Options]) -> dict[str, str]:
    """{option: the text that stands below it in the source}."""
    return {option: text for group in reversed(schema.__mro__) for option, text in own_sentences(group).items()}


@cache
def own_sentences(group: type) -> dict[str, str]:
    """The same of the options that a class itself declares."""
    try:
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(group))).body
    except (OSError, TypeError):  # a class that was made, not written: by `Component`, or in C
        return {}
    assert isinstance(node, ast.ClassDef)
    return {
        ast.unparse(option.target): " ".join(ast.literal_eval(below.value).split())
        for option, below in zip(node.body, node.body[1:])
        if isinstance(option, ast.AnnAssign) and isinstance(below, ast.Expr)
    }
