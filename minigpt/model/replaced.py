"""Temporarily replaces a method of one object: code that inspects or changes a model does so from outside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def replaced(owner: Any, name: str, function: Callable[..., Any]) -> Iterator[None]:
    """Replace a method of one object, and of no other object of its class, inside the `with`."""
    before = {name: owner.__dict__[name]} if name in owner.__dict__ else {}
    owner.__dict__[name] = function
    try:
        yield
    finally:
        del owner.__dict__[name]
        owner.__dict__.update(before)
