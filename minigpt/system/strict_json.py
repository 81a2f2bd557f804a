"""Strict JSON: what is read back from a file that a stranger may have written, and whether it has the form it should.

Python's own reader takes NaN and infinity, whole numbers of any length, and fails on brackets nested too deep. Here a
number is finite and fits into 64 bits, and whatever is wrong is a ValueError.
"""

from __future__ import annotations

import json
import math
import types
from typing import Any, get_args

LARGEST = 2.0**63  # of a number that was measured, whole or not: sums and squares of it are finite


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text. Raises ValueError for anything else."""
    try:
        return json.loads(text, parse_constant=_finite, parse_float=_finite, parse_int=_whole)
    except RecursionError:
        raise ValueError("nested too deep") from None


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} is not a number")
    return number


def _whole(text: str) -> int:
    if len(text) > 20 or not -(2**63) <= int(text) < 2**63:
        raise ValueError(f"{text[:40]}... does not fit into 64 bits")
    return int(text)


def has_form(value: Any, form: Any) -> bool:
    """Whether a value that `parse_json` read has a form.

    A form is `int`, `str`, `bool`, `float` (any number), `None`, a union of these; `[form]`, a list of any length;
    `(form, form)`, a list of that length; `{"key": form}`, a group with these keys and perhaps others; `{str: form}`, a
    group of any keys.
    """
    if isinstance(form, types.UnionType):
        return any(has_form(value, None if part is type(None) else part) for part in get_args(form))
    if isinstance(form, list):
        return isinstance(value, list) and all(has_form(item, form[0]) for item in value)
    if isinstance(form, tuple):
        return isinstance(value, list) and len(value) == len(form) and all(map(has_form, value, form))
    if isinstance(form, dict) and str in form:
        return isinstance(value, dict) and all(has_form(item, form[str]) for item in value.values())
    if isinstance(form, dict):
        return isinstance(value, dict) and all(key in value and has_form(value[key], form[key]) for key in form)
    if form is float:
        return type(value) in (int, float) and abs(value) <= LARGEST
    return value is None if form is None else type(value) is form
