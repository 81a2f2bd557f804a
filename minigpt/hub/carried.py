"""The source files of minigpt that a model needs, copied into one flat folder: they run without minigpt.

transformers copies the file that a model's `auto_map` names, and the files beside it that it imports, to a folder of
its own. So a file's path becomes its name, and its imports become relative:

    minigpt/attention/base.py                      ->  minigpt_attention_base.py
    from minigpt.attention import Attention        ->  from .minigpt_attention_base import Attention

The `__init__.py` of a package (`minigpt/attention/__init__.py`) imports every kind, so it is not copied: its names are
imported from the files that define them.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from typing import Any

from minigpt.config.options import Component, Options
from minigpt.model.config import ModelConfig
from minigpt.system.errors import UserError
from minigpt.system.plugin import PLUGINS, code_of

ENTRY = "minigpt.hub.modeling_minigpt"
ENTRY_FILE = "modeling_minigpt"


def carried_files(config: ModelConfig) -> dict[str, str]:
    """The files that a model of this config needs: {name: source}. Raises UserError for a kind without a file."""
    sources: dict[str, str] = {}
    pending = [ENTRY, *sorted({kind.__module__ for kind in kinds_in(config)})]
    while pending:
        module = pending.pop()
        if module not in sources:
            sources[module], imported = made_relative(module)
            pending += imported
    files = {f"{flat_name(module)}.py": source for module, source in sorted(sources.items())}
    other_files = [flat_name(module) for module in sorted(sources) if module != ENTRY]
    imports = "".join(f"from .{name} import __doc__ as _  # noqa\n" for name in other_files)
    files[f"{ENTRY_FILE}.py"] += (
        f"\n# All files that belong to this one: transformers copies those named here.\n{imports}"
    )
    return files


def kinds_in(options: Any) -> Iterator[type[Any]]:
    """The classes that a config chooses by `kind:`, at any depth."""
    if isinstance(options, tuple):
        for item in options:
            yield from kinds_in(item)
    elif isinstance(options, Options):
        if isinstance(options, Component.Config):
            yield options.component
        for field in fields(options):
            yield from kinds_in(getattr(options, field.name))


def flat_name(module: str) -> str:
    """minigpt.attention.base -> minigpt_attention_base."""
    return ENTRY_FILE if module == ENTRY else module.replace(".", "_")


def is_ours(module: str) -> bool:
    """Whether a module is copied: it is a part of minigpt, or a plugin."""
    return module == "minigpt" or module.startswith("minigpt.") or module in PLUGINS


def source_of(module: str) -> str:
    """The source of a module; a plugin's is as it was when it was loaded. Raises UserError for any other module."""
    if module in PLUGINS:
        return code_of(PLUGINS[module]).decode("utf-8")
    if not is_ours(module):
        raise UserError(f"--remote-code: a kind of {module} is in no file that could be carried: put it into a plugin")
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None
    with open(spec.origin, encoding="utf-8") as file:
        return file.read()


def made_relative(module: str) -> tuple[str, list[str]]:
    """The source of a module with relative imports, and the modules that it imports."""
    source = source_of(module)
    lines, imported = source.splitlines(keepends=True), list[str]()
    imports = [node for node in ast.walk(ast.parse(source)) if isinstance(node, (ast.Import, ast.ImportFrom))]
    for node in sorted(imports, key=lambda node: -node.lineno):  # from the end, so that line numbers stay right
        replacement = list(relative_import(node, module, imported))
        if replacement:
            assert node.end_lineno is not None
            indent = " " * node.col_offset
            lines[node.lineno - 1 : node.end_lineno] = [f"{indent}{line}\n" for line in replacement]
    return "".join(lines), imported


def relative_import(node: ast.Import | ast.ImportFrom, module: str, imported: list[str]) -> Iterator[str]:
    """The lines that replace an import; none if it is not of minigpt or a plugin. Adds the modules to `imported`."""
    if isinstance(node, ast.Import):
        if any(is_ours(alias.name) for alias in node.names):
            location = f"{PLUGINS[module]}:{node.lineno}" if module in PLUGINS else module
            raise UserError(
                f"--remote-code: {location}: write `from minigpt.attention import ...` for `import minigpt`"
            )
    elif node.module is not None and is_ours(node.module):
        for alias in node.names:
            origin, name = origin_of(node.module, alias.name)
            imported.append(origin)
            renamed = f" as {alias.asname}" if alias.asname else ""
            if name:
                yield f"from .{flat_name(origin)} import {name}{renamed}"
            else:
                yield f"from . import {flat_name(origin)} as {alias.asname or alias.name}"


@cache
def origin_of(module: str, name: str) -> tuple[str, str]:
    """The module that defines `name`, imported from `module`, and the name; (name's module, "") if it is a module."""
    if module in PLUGINS or not is_package(module):
        return module, name
    for node in ast.parse(source_of(module)).body:
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return origin_of(node.module, alias.name)
    return f"{module}.{name}", ""


def is_package(module: str) -> bool:
    """Whether a module of minigpt is a package. Raises UserError if there is no such module."""
    spec = importlib.util.find_spec(module)
    if spec is None:
        raise UserError(f"--remote-code: there is no module {module}")
    return spec.submodule_search_locations is not None
