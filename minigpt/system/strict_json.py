"""Strict JSON: parses untrusted files, and checks that the value has the expected form.

Python's parser accepts NaN, infinity, integers of any length and a key twice, and raises RecursionError on deeply
nested brackets. Here every number is finite and fits into 64 bits, a key is there once, and a mistake is a ValueError.
"""

from __future__ import annotations

import json
import math
import types
from collections import Counter
from typing import Any, get_args

LARGEST = 2.0**63  # of a measured number: sums and squares of smaller ones stay finite


def parse_json(text: str | bytes, huge: bool = False) -> Any:
    """The value of a JSON text. Raises ValueError for anything else.

    With `huge`, a whole number that does not fit into 64 bits is a float: some programs write 10^30 for no limit.
    """
    try:
        whole = _huge if huge else _whole
        return json.loads(text, parse_constant=_finite, parse_float=_finite, parse_int=whole, object_pairs_hook=_once)
    except RecursionError:
        raise ValueError("nested too deep") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object. Python would keep the last of two values of a key, and another reader may keep the first."""
    values = dict(pairs)
    if len(values) < len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the key {twice[:40]!r} is there twice")
    return values


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} is not a number")
    return number


def _huge(text: str) -> float:
    return int(text) if len(text) < 19 else _finite(text)


def _whole(text: str) -> int:
    if len(text) > 20 or not -(2**63) <= int(text) < 2**63:
        raise ValueError(f"{text[:40]}... does not fit into 64 bits")
    return int(text)


def has_form(value: Any, form: Any) -> bool:
    """Whether a value from `parse_json` has a form.

    A form is `int`, `str`, `bool`, `float` (any number), `None`, or a union of these; `[form]`, a list of any length;
    `(form, form)`, a list of that length; `{"key": form}`, an object with these keys and possibly others;
    `{str: form}`, an object with any keys.
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
