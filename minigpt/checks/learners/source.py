"""What the text of a program says: its axes, that it hides nothing, what uses what."""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import nn

MAKES = (".ones", ".zeros", ".full", ".arange", ".empty", ".tri", "_ones", "_zeros", "_full")  # make tensors of a size
AXES = r"(B|b|bs|bsz|batch\w*)", r"(T|S|L|t|n|seq\w*|time\w*|length|tokens)"
BATCH_FIRST, TIME_FIRST = (re.compile(rf"[(\[]\s*{one}\s*,\s*{other}\s*,") for one, other in (AXES, AXES[::-1]))
NEXT = re.compile(r"(?i)labels?\b.{0,20}\bnext|\[:, *:-1\], *(labels *= *)?\w+\[:, *1:\]")
TIME_FIRST_IDS = re.compile(rf"[(\[]\s*{AXES[1]}\s*,\s*{AXES[0]}\s*[,)\]]")
FULL = re.compile(r"(?i)(not?|without|without a) causal|non-?causal|bidirectional|encoder|bert")


def says_batch_first(thing: Any) -> bool:
    """Whether the text of a program says that the batch is the first axis, and nowhere that the sequence is."""
    text = text_of(thing)
    return bool(BATCH_FIRST.search(text)) and not TIME_FIRST.search(text)


def says_time_first(path: Path) -> bool:
    """Whether a file says somewhere that the sequence is the first axis."""
    return bool(TIME_FIRST_IDS.search(file_text(path)))


def text_of(thing: Any) -> str:
    """The source of a function, or of a module's class."""
    with suppress(OSError, TypeError):
        return inspect.getsource(type(thing) if isinstance(thing, nn.Module) else thing)
    return ""


def file_text(path: Path) -> str:
    """The text of a file; "" if it cannot be read, as of cells."""
    with suppress(OSError, UnicodeDecodeError):
        return path.read_text(encoding="utf-8")
    return ""


def says_full(path: Path) -> bool:
    """Whether the text of a program says that it hides nothing."""
    return bool(FULL.search(file_text(path)))


def is_numpy(path: Path) -> bool:
    """Whether a file computes with numpy alone."""
    text = file_text(path)
    return "numpy" in text and "torch" not in text


def says_next(place: str) -> bool:
    """Whether a file says that labels are the next tokens, or calls a model so: model(ids[:, :-1], ids[:, 1:])."""
    text = ""
    with suppress(OSError, TypeError):
        text = inspect.getsource(sys.modules[place])
    return bool(NEXT.search(text))


def steps_behind(thing: Any, path: Path, tried: Collection[str]) -> dict[str, int]:
    """The arguments without a value that decide on steps of a program, each with the first line that asks for it."""
    try:
        function = getattr(thing, "forward", thing)
        if inspect.getsourcefile(function) != str(path):
            return {}
        lines, first = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(lines)))
        listed = inspect.signature(function).parameters.values()
    except (OSError, TypeError, ValueError, SyntaxError):
        return {}
    left = [one.name for one in listed if one.default in (None, False) and one.name not in tried]
    tests = [(one.id, first + node.lineno - 1) for node in ast.walk(tree) if isinstance(node, ast.If | ast.IfExp)
             for one in ast.walk(node.test) if isinstance(one, ast.Name)]  # fmt: skip
    return {name: min(places) for name in left if (places := [line for one, line in tests if one == name])}


def looks_at(thing: Any, name: str) -> bool:
    """Whether a program reads an argument; True if it is not known."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(getattr(thing, "forward", thing))))
    except (OSError, TypeError, SyntaxError):
        return True
    return any(isinstance(one, ast.Name) and one.id == name for one in ast.walk(tree))


def two_lengths(thing: Any) -> bool:
    """Whether a function makes tensors of two lengths that it asked for, like a mask (T, S); True if it is not known.

    One that does not was written for as many queries as keys.
    """
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(getattr(thing, "forward", thing))))
    except (OSError, TypeError, SyntaxError):
        return True
    asked = dict[str, str]()
    for one in (node for node in ast.walk(tree) if isinstance(node, ast.Assign)):
        names = [target.id for target in ast.walk(one.targets[0]) if isinstance(target, ast.Name)]
        if ".shape" in (text := ast.unparse(one.value)) or ".size(" in text or "len(" in text:
            asked |= {name: f"{text} {i}" for i, name in enumerate(names)}
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(MAKES)]
    lengths = [one.id for call in calls for part in call.args for one in ast.walk(part) if isinstance(one, ast.Name)]
    return len({asked[name] for name in lengths if name in asked}) > 1


def used_by(names: Sequence[str], path: Path) -> set[str]:
    """The functions and classes of a file that these use, directly or not."""
    texts, used = dict[str, str](), set[str]()
    with suppress(OSError, UnicodeDecodeError, SyntaxError):
        nodes = ast.parse(path.read_text(encoding="utf-8")).body
        texts = {one.name: ast.unparse(one) for one in nodes if isinstance(one, ast.ClassDef | ast.FunctionDef)}
        lambdas = [one for one in nodes if isinstance(one, ast.Assign) and isinstance(one.value, ast.Lambda)]
        texts |= {ast.unparse(one.targets[0]): ast.unparse(one.value) for one in lambdas}
    queue = list(names)
    for name in queue:
        more = {other for other in texts if other != name and re.search(rf"\b{other}\b", texts.get(name, ""))} - used
        used |= more
        queue += more
    return used


def sources_of(thing: Any) -> list[Path]:
    """The files in which a function, or a class's own methods, were written, and that of its forward; or cells."""
    kind = thing if inspect.isclass(thing) else type(thing)
    own = [one for one in vars(kind).values() if inspect.isfunction(one)] if not inspect.isroutine(thing) else []
    functions = (vars(kind).get("forward") or next(iter(own), None), getattr(thing, "forward", thing))
    codes = [getattr(getattr(one, "__func__", one), "__code__", None) for one in functions]
    return list(dict.fromkeys(Path(code.co_filename) for code in codes if code)) or [Path("?")]
