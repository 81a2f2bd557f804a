"""Temporarily replaces a method of one object, or a name of a Python module, for code that looks in from outside."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def replaced(thing: Any, name: str, value: Any) -> Iterator[None]:
    """Replace an attribute of one object, and of no other object of its class, inside the `with`."""
    before = {name: thing.__dict__[name]} if name in thing.__dict__ else {}
    thing.__dict__[name] = value
    try:
        yield
    finally:
        del thing.__dict__[name]
        thing.__dict__.update(before)
