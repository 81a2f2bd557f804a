"""Loads a user's own file, `--plugin FILE`, and recognises the errors that come from it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from traceback import walk_tb
from types import FrameType, FunctionType
from typing import Any

from minigpt.system.errors import UserError
from minigpt.system.folder import read_file

PLUGINS: dict[str, Path] = {}  # loaded plugins: the name of the module -> the file
LARGEST = 1 << 24  # bytes of a plugin
CODE: dict[Path, bytes] = {}  # the contents of each file when it was loaded; it may have been edited since


def module_name(path: Path) -> str:
    """The name under which a plugin is imported."""
    return f"minigpt_plugin_{path.stem}"


def load_plugin(path: str | Path, code: bytes | None = None) -> None:
    """Run a user's file, whose classes register their kinds as the built-in ones do; with `code`, run that instead.

    Only files that are named on the command line, or in a notebook's own call, are run. Raises UserError for a missing
    file, and for any error in the file.
    """
    path = Path(path)
    if code is None and not path.exists():
        raise UserError(f"--plugin {path}: no such file")
    name = module_name(path)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UserError(f"--plugin {path}: not a Python file (its name must end in .py)")
    module = importlib.util.module_from_spec(spec)
    CODE[path] = read_file(path, LARGEST, "a plugin") if code is None else code
    sys.modules[name], PLUGINS[name] = module, path
    try:
        exec(compile(CODE[path], str(module.__file__), "exec", dont_inherit=True), module.__dict__)
    except (Exception, SystemExit) as error:
        lines = [line for frame, line in walk_tb(error.__traceback__) if is_frame_of_plugin(frame)]
        line = error.lineno if isinstance(error, SyntaxError) and not lines else lines[-1]
        del sys.modules[name], PLUGINS[name]
        problem = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        raise UserError(f"--plugin {path}:{line}: {problem}") from error


def code_of(path: Path) -> bytes:
    """The contents of a plugin's file when it was loaded; if it was not loaded, its contents now. Raises OSError.

    The code that was loaded trains, also after an edit, and after a notebook has changed its current folder.
    """
    return CODE[path] if path in CODE else read_file(path, LARGEST, "a plugin")


def was_edited(path: Path) -> bool:
    """Whether a plugin's file is no longer what was loaded."""
    try:
        return read_file(path, LARGEST, "a plugin") != code_of(path)
    except (OSError, UserError):
        return True


def is_frame_of_plugin(frame: FrameType) -> bool:
    """Whether a call executes code of a plugin's file."""
    return frame.f_globals.get("__name__") in PLUGINS and frame.f_code.co_filename == frame.f_globals["__file__"]


def of_plugin(kind: Any) -> bool:
    """Whether a class or a function was defined in a plugin."""
    return getattr(kind, "__module__", None) in PLUGINS


def line_of(function: FunctionType) -> str:
    """The file and the line in which a function of a plugin begins: mine.py:14."""
    return f"{PLUGINS[function.__module__]}:{function.__code__.co_firstlineno}"
