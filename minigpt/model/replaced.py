"""Temporarily replaces a method of one object, or a name of a Python module, for code that looks in from outside."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Replace an attribute of one object, and of no other object of its class, inside the `with`."""
    before = {name: owner.__dict__[name]} if name in owner.__dict__ else {}
    owner.__dict__[name] = value
    try:
        yield
    finally:
        del owner.__dict__[name]
        owner.__dict__.update(before)
