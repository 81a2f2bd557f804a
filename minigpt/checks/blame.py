"""Finds the plugin that caused an error: its line, and the function that called it:

mine.py:14 in scores (called by SoftmaxAttention.weights, layer 1): RuntimeError: The size of tensor a (5) must ...
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from traceback import walk_tb
from types import FrameType, FunctionType
from typing import Any

from torch import nn

from minigpt.model.config import AnyBlock
from minigpt.model.gpt import GPT
from minigpt.system.counting import layer_name
from minigpt.system.plugin import PLUGINS, is_frame_of_plugin, line_of, of_plugin

Calls = list[tuple[FrameType, int]]  # the calls that led to an error, outermost first, and the lines they executed

SIGNATURE = re.compile(r"([\w.]+)\(\) (?:takes|missing|got)")  # Python's message if the arguments do not fit
LOOK = ("minigpt.seeing.", "minigpt.checks.", "minigpt.training.before_training", "minigpt.training.whole_model",
        "minigpt.system.waiting")  # modules that only observe  # fmt: skip
LONGEST = 400  # characters of an error's own message


def blame(error: BaseException) -> str | None:
    """An error as one line that names the plugin that caused it; None if no plugin is involved."""
    for find in (_in_signature, _in_code, _in_object):
        for each in _errors(error):
            culprit = find(each, list(walk_tb(each.__traceback__)))
            if culprit is not None:
                location, earlier_calls = culprit
                words = " ".join(str(each).split())[:LONGEST]
                return f"{location}{_context(earlier_calls)}: {type(each).__name__}: {words}"
    return None


def _errors(error: BaseException | None) -> Iterator[BaseException]:
    """Yields an error and the errors that led to it."""
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


Culprit = tuple[str, Calls]  # where in the plugin, and the calls before it


def _in_signature(error: BaseException, calls: Calls) -> Culprit | None:
    """Finds a plugin's function that was called with arguments that it does not take."""
    match = SIGNATURE.match(str(error))
    if match is None or not isinstance(error, TypeError):
        return None
    for module in PLUGINS:
        function: Any = sys.modules[module]
        for name in match[1].split("."):
            function = getattr(function, name, None)
        if isinstance(function, FunctionType) and of_plugin(function):
            return f"{line_of(function)} in {function.__name__}", calls
    return None


def _in_code(error: BaseException, calls: Calls) -> Culprit | None:
    """Finds the innermost call in a plugin, and its line."""
    for index in reversed(range(len(calls))):
        frame, line = calls[index]
        if is_frame_of_plugin(frame):
            name = frame.f_code.co_name
            location = f"{PLUGINS[frame.f_globals['__name__']]}:{line}"
            return f"{location} in {name}" if name.isidentifier() else location, calls[:index]
    return None


def _in_object(error: BaseException, calls: Calls) -> Culprit | None:
    """Finds a plugin's class among the objects of the innermost method of minigpt: its result may not fit there, or
    in a function that this method calls.

    If that call is a check, the objects are those of the model that is checked.
    """
    for frame in (frame for frame, _ in reversed(calls) if _is_ours(frame)):
        owner = frame.f_locals.get("self")
        parts = vars(owner).values() if _looks(frame) and hasattr(owner, "__dict__") else ()
        for value in (*frame.f_locals.values(), *parts):
            for part in value.modules() if isinstance(value, nn.Module) else (value,):
                if of_plugin(type(part)):
                    return _class_line(type(part)), calls
        if not _looks(frame) and owner is not None:
            break
    return None


def _class_line(cls: type) -> str:
    line = ""
    with suppress(OSError, TypeError, SyntaxError):  # the file may have changed meanwhile
        line = f":{inspect.getsourcelines(cls)[1]}"
    return f"{PLUGINS[cls.__module__]}{line} in {cls.__name__}"


def _context(calls: Calls) -> str:
    """The call of minigpt that led there, by a name that is not private, and the layer."""
    codes = [frame.f_code for frame, _ in calls if _is_ours(frame) and not _looks(frame)]
    codes = [code for code in codes if not code.co_name.startswith("_") or code.co_name.endswith("__")]
    # in Python 3.10, the last part of the name
    names = [f"called by {getattr(code, 'co_qualname', code.co_name)}" for code in codes[-1:]]
    layers = [layer for frame, _ in calls if (layer := _layer(frame, calls)) is not None]
    words = ", ".join([*names, *(layer_name(layer) for layer in layers[-1:])])
    return f" ({words})" if words else ""


def _is_ours(frame: FrameType) -> bool:
    """Whether a call is one of a function of minigpt."""
    return str(frame.f_globals.get("__name__")).startswith("minigpt.") and frame.f_code.co_name.isidentifier()


def _looks(frame: FrameType) -> bool:
    """Whether a call of minigpt only observes what other code computes, or waits for it."""
    return frame.f_globals["__name__"].startswith(LOOK)


def _layer(frame: FrameType, calls: Calls) -> int | None:
    """The layer that a call of minigpt is about, if it is about one."""
    if not _is_ours(frame):
        return None
    layer, block = frame.f_locals.get("layer"), frame.f_locals.get("self")
    if isinstance(block, AnyBlock) and layer is None:
        models = [model for outer, _ in calls if isinstance(model := outer.f_locals.get("self"), GPT)]
        return next((n for model in models for n, other in enumerate(model.blocks) if other is block), None)
    return layer if isinstance(layer, int) else None
