"""Which faster form a class may use: the one that was written for its mathematics, and no other.

A faster form of `mix`, `recall` or `make_cache` equals the plain one for the class that it was written for. A subclass
that changes the scores and kept this form would silently train another attention. So each form declares what a subclass
may change, and `fitting` checks this before the form is used. If it does not fit, the nearest form of a base class that
fits is taken, in the end the plain one of `Attention`. A method that is set on one instance (`layer.scores = mine`)
changes that instance, as a subclass would.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import nn

from minigpt.attention import Attention

Function = TypeVar("Function", bound=Callable[..., Any])

METHODS = ("mix", "recall", "make_cache")
LAWS = {"rows_sum_to_one", "weights_nonnegative", "order_blind", "same_in_training"}
HARMLESS = LAWS | {"__init__", "__init_subclass__", "qkv", "output", "Config", "config", "kind", "muon"}
HARMLESS |= {"chooses", "unsuited", "edges", "stages", "head_note", "head_gates", "extra_loss"}
HARMLESS |= {"__doc__", "__module__", "__qualname__", "__annotations__", "__firstlineno__", "__static_attributes__"}


@dataclass(frozen=True)
class Form:
    """A faster form of a method, and the name by which it can be turned off."""

    function: Callable[..., Any]
    trick: str


FORMS: dict[tuple[type, str], Form] = {}


def shortcut(
    *supports: str, needs: tuple[str, ...] = (), together: tuple[str, ...] = ()
) -> Callable[[Function], Function]:
    """Mark a `mix`, `recall` or `make_cache` of a kind of your own as a faster form of the plain one, equal to it.

    A subclass keeps it only if everything that it changes is listed in `supports` or cannot matter (`qkv`, `output`,
    options, unless the form `needs` them unchanged). `together` lists methods that compute one thing in two forms: a
    subclass may change all of them, in one class, but not some. `fast: false` leaves the form out.
    """

    def mark(function: Function) -> Function:
        function.harmless = (HARMLESS | set(supports)) - set(needs)  # type: ignore[attr-defined]
        function.together = set(together)  # type: ignore[attr-defined]
        return function

    return mark


def faster(
    owner: type,
    method: str,
    trick: str,
    supports: tuple[str, ...] = (),
    needs: tuple[str, ...] = (),
    together: tuple[str, ...] = (),
) -> Callable[[Function], Function]:
    """Register a faster form of a textbook class's method, from outside."""

    def register(function: Function) -> Function:
        FORMS[owner, method] = Form(shortcut(*supports, needs=needs, together=together)(function), trick)
        return function

    return register


def fitting(
    cls: type[Attention],
    method: str,
    fast: bool = True,
    without: Collection[str] = (),
    on_instance: Collection[str] = (),
) -> Callable[..., Any]:
    """The nearest form of a method that is right for a class; with `fast` false, the plain one. Raises TypeError.

    `on_instance` are the attributes that an instance of the class has set itself.
    """
    for parent in cls.__mro__:
        form, own = FORMS.get((parent, method)), vars(parent).get(method)
        wanted = form is not None and fast and form.trick not in without
        if form and wanted and _still_holds(form.function, method, parent, cls, on_instance):
            return form.function
        if own is None or (hasattr(own, "harmless") and not fast):
            continue
        makes_the_loss = method == "mix" and "extra_loss" in vars(parent) and not hasattr(own, "harmless")
        if makes_the_loss or _still_holds(own, method, parent, cls, on_instance):  # another `mix` would lose the loss
            return own
    raise TypeError(f"{cls.__name__} has no {method}")


def set_on(module: nn.Module) -> set[str]:
    """The attributes that were set on a module itself, its class's methods among them, but not by `make_fast`."""
    return {*vars(module)} - {*vars(module).get("faster", ())}


def definer(cls: type, attribute: str) -> type | None:
    """The class, nearest to `cls`, that defines an attribute."""
    return next((parent for parent in cls.__mro__ if attribute in vars(parent)), None)


def _still_holds(
    function: Callable[..., Any], method: str, parent: type, cls: type, on_instance: Collection[str]
) -> bool:
    """Whether a form that was written for `parent` is right for `cls`: none of their differences can matter."""
    family = [c for c in parent.__mro__ if issubclass(c, Attention)]
    attributes = {attribute for c in family for attribute in vars(c)}
    changed = {a for a in attributes if getattr(cls, a, None) is not getattr(parent, a, None)}
    harmless = getattr(function, "harmless", HARMLESS) | {method}
    together: set[str] = getattr(function, "together", set())
    if together <= changed and len({definer(cls, a) for a in together}) == 1:
        harmless = harmless | together
    if method == "mix":  # `mix` uses no cache, so how one is made does not matter
        harmless = harmless | {"recall", "make_cache"}
    never_matters = harmless & (HARMLESS | {*METHODS})  # what a form supports it looks up in the class
    return parent is Attention or (changed <= harmless and attributes & {*on_instance} <= never_matters)
