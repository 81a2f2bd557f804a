"""How a text is fed in chunks, through whatever cache a program has.

A cache is taken as an argument and returned beside the output, or is an object that is changed, or is kept in the
module. Every protocol that the arguments allow is tried. An object is made by a method of the module or by the file.

B batch, T positions of a chunk, D model width.
"""

from __future__ import annotations

import inspect
import re
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from minigpt.attention import Attention
from minigpt.checks.learners.build import typed_as
from minigpt.checks.learners.program import axis_of
from minigpt.checks.learners.sizes import SIZES, TABLES, meaning, place_of, stored

CACHES = re.compile(r"past|cache(?!_pos)|^kvs?$|(^|_)state$|^memory$|^layer_kv$|^mem$|^kv_state$")
STARTS = re.compile(r"^(start|offset|pos|position|step|t)(_?(pos|position|idx|index|offset))?$|(pos|position)_offset|"
                    r"cache_pos$|(past|cache)_(len|length)$|^(past|cur|current)_pos")  # fmt: skip
PLACES = re.compile(r"input_pos|cache_position|^positions?(_ids)?$|^pos_ids$|^position_ids")  # these take all positions
SWITCHES = re.compile(
    r"use_\w*cache|^cached$|return_(kv|cache|present|state|past|memory)|^decod(e|ing)$|^incremental$|^inference$|"
    r"^(sampling|generat\w+|stream\w*|continu\w+|stateful|online)$"
)
MAKERS = re.compile(r"^(make|new|init|create|get|empty|setup|initial|build|alloc\w*)_(\w+_)?caches?$")
CLASSES = re.compile("cache|kv|past|memory|state|buffer|ring$|session|history")
STEPS = re.compile(r"^(step|decode|next|infer|inference)$|_(step|one|cached|inference)$|^step_forward$|^forward_")
RESETS = re.compile(r"^(reset|clear|start|begin|init|setup|new|empty)(_(\w+_)?(caches?|text|state|kv))?$")
OF_FILE, OF_EACH = "a cache that the file makes", "a dict for each layer"
ONE_TOKEN = ("(B, D)", "(B, H, d)")  # layouts
AXES = {"n": "B", "bs": "B", "bsz": "B", "b": "B", "max_tokens": "T", "dtype": "dtype", "capacity": "T",
        "like": "like"}  # fmt: skip


@dataclass(frozen=True)
class Protocol:
    """One way to pass a cache on. `argument` takes it, "" if none does; `make` makes the first one."""

    how: str
    argument: str = ""
    make: Callable[[], Any] | None = None
    returned: bool = False
    """Whether the next call gets what the one before returned beside its output."""
    token: bool = False
    """Whether every token is a chunk of its own."""
    method: str = ""


class AnyCache(dict[Any, Any]):
    """A cache that is told what is new, `keys, values = cache.update(keys, values)`, in any order of arguments."""

    T = 0

    def update(self, *args: Any, **kwargs: Any) -> Any:
        arguments = [*args, *kwargs.values()]
        new = [one for one in arguments if isinstance(one, Tensor) and one.dim() > 2]
        layer = next((one for one in arguments if type(one) is int), 0)
        axis = 2 if new[0].dim() == 4 and new[0].shape[2] == self.T else 1
        old = self.setdefault(layer, [one.narrow(axis, 0, 0) for one in new])
        self[layer] = [torch.cat(pair, axis) for pair in zip(old, new)]
        return tuple(self[layer])

    def get_seq_length(self, layer: int = 0) -> int:
        """How many positions it holds of a layer."""
        return max(self[layer][0].shape[1:3]) if layer in self else 0

    def __bool__(self) -> bool:
        return True

    append = add = update
    seq_len = length = offset = property(get_seq_length)
    k = property(lambda self: {layer: pair[0] for layer, pair in self.items()})
    v = property(lambda self: {layer: pair[1] for layer, pair in self.items()})


def find(listed: Sequence[inspect.Parameter], words: re.Pattern[str]) -> str:
    """The argument with such a name; "" if there is none."""
    return next((entry.name for entry in listed if words.search(entry.name.lower())), "")


def parameters_of(thing: Any) -> list[inspect.Parameter]:
    """The parameters of a function or of a module's forward, without *args and **kwargs."""
    own_call = isinstance(thing, nn.Module) and type(thing).__call__ is not nn.Module.__call__
    function = thing.forward if isinstance(thing, nn.Module) and not own_call else thing
    listed = inspect.signature(function).parameters.values()
    return [entry for entry in listed if entry.kind not in (entry.VAR_KEYWORD, entry.VAR_POSITIONAL)]


def cache_argument(listed: Sequence[inspect.Parameter], inputs: Sequence[str]) -> str:
    """The argument that takes a cache: one with a usual name, else the first unknown one that may be None; or ""."""
    rest = [one for one in listed if one.name not in inputs and not any(
        words.search(one.name.lower()) for words in (STARTS, PLACES, SWITCHES))]  # fmt: skip
    free = [one.name for one in rest if one.default in (None, one.empty) and "mask" not in one.name.lower()]
    return find(rest, CACHES) or next((name for name in free if not meaning(name) and not TABLES.search(name)), "")


def steps_of(thing: Any) -> list[str]:
    """The methods of a module that take one more token."""
    names = [one for one in dir(type(thing)) if STEPS.search(one) and not hasattr(nn.Module, one)]
    return [one for one in names if inspect.ismethod(getattr(thing, one))]


def protocols(thing: Any, listed: Sequence[inspect.Parameter], inputs: Sequence[str]) -> list[Protocol]:
    """The protocols that the arguments of a program allow, the likeliest first."""
    if isinstance(thing, Attention):
        return [Protocol("the cache of make_cache", "past", lambda: thing.make_cache(SIZES["T"]))]
    name, in_module = cache_argument(listed, inputs), Protocol("the cache kept in the module")
    if name:
        of_file = [Protocol(OF_FILE, name, make) for make in makers(thing)]
        layers = blocks_of(thing)
        if name.endswith("s") and layers > 1:
            of_file[:0] = [replace(one, how=f"{one.how} for each layer", make=partial(several, one.make, layers))
                           for one in of_file]  # fmt: skip
        possible = [Protocol("the cache that the call before returned", name, returned=True),
                    *(replace(one, how="a cache that the file makes, and returns", returned=True) for one in of_file),
                    *(of_file or [Protocol("a cache with update", name, AnyCache)]), in_module]  # fmt: skip
        possible[-1:-1] = [Protocol(f"one {kind.__name__} for all calls", name, kind) for kind in (dict, list)]
        if name.endswith("s") and layers > 1:
            possible.insert(0, Protocol(OF_EACH, name, partial(several, dict, layers)))
    else:
        of = {one: parameters_of(getattr(thing, one)) for one in steps_of(thing)[:1]}
        of_caches = {one: cache_argument(each, [each[0].name]) for one, each in of.items() if each}
        methods = [Protocol(f"the method {one}", name, token=True, method=one) for one, name in of_caches.items()]
        of_file = [replace(one, how=f"{one.how} and {OF_FILE}", make=make) for one in methods if one.argument
                   for make in makers(thing)]  # fmt: skip
        possible = [*(replace(one, returned=True) for one in of_file), *of_file,
                    *(replace(one, returned=bool(one.argument)) for one in methods), in_module]  # fmt: skip
    alone = [replace(one, how=f"{one.how}, one token at a time", token=True) for one in possible if not one.token]
    return [*possible, *alone]


def by_names(function: Callable[..., Any], thing: Any) -> dict[str, Any]:
    """Sizes for the arguments without a default. Raises KeyError for an unknown name."""
    known: dict[str, Any] = {"T": SIZES["T"], "device": "cpu", "dtype": torch.float64, "number": 0, "B": 2}
    known["L"] = blocks_of(thing) or 1
    known |= {axis: numbers[0] for axis in (*"DHGdL", "window") if (numbers := stored(thing, axis))}
    known.setdefault("G", known.get("H"))
    known["like"] = next(thing.parameters(), torch.zeros(1)).detach() if isinstance(thing, nn.Module) else None
    if "d" not in known and {"D", "H"} <= set(known):
        known["d"] = known["D"] // known["H"]
    needed = [one for one in parameters_of(function) if one.default is one.empty or one.name == "dtype"]
    own = {name: value for name, value in vars(thing).items() if not isinstance(value, (nn.Module, int))}
    held = {one.name: value for one in needed for name, value in own.items()
            if name == one.name or type(value).__name__ == typed_as(one.annotation)}  # fmt: skip
    return {one.name: held[one.name] if one.name in held else known[AXES.get(one.name, meaning(one.name))]
            for one in needed}  # fmt: skip


def makers(thing: Any) -> Iterator[Callable[[], Any]]:
    """Yields what makes a cache: methods of a module, then functions and classes of its file."""
    place = place_of(thing)
    own = [one for one in vars(sys.modules.get(place, re)).values() if getattr(one, "__module__", None) == place]
    functions = [one for one in own if inspect.isfunction(one) and MAKERS.search(one.__name__)]
    classes = [one for one in own if inspect.isclass(one) and CLASSES.search(one.__name__.lower())
               and not isinstance(thing, one) and "att" not in one.__name__.lower()]  # fmt: skip
    kinds = {one.__name__ for one in own if inspect.isclass(one)}
    methods = [getattr(thing, name) for name, one in inspect.getmembers(type(thing), inspect.isfunction)
               if not hasattr(nn.Module, name) and not name.startswith("_") and (
               MAKERS.search(name) or RESETS.search(name) or kinds & called_in(one.__code__))]  # fmt: skip
    of_classes = [getattr(one, name) for one in classes for name, each in vars(one).items()
                  if isinstance(each, classmethod)]  # fmt: skip
    for maker in (*methods, *functions, *of_classes, *classes):
        with suppress(Exception):  # the learner's code: anything
            make = partial(maker, **by_names(maker, thing))
            if make() is not None:
                yield make


def blocks_of(thing: Any) -> int:
    """How many blocks a model has."""
    parts = thing.modules() if isinstance(thing, nn.Module) else ()
    return max((len(part) for part in parts if isinstance(part, nn.ModuleList)), default=0)


def several(make: Callable[[], Any] | None, count: int) -> list[Any]:
    """So many caches."""
    return [make() for _ in range(count)] if make else []


def called_in(code: types.CodeType) -> set[str]:
    """The names that a function uses, also inside of it."""
    return {*code.co_names}.union(*(called_in(one) for one in code.co_consts if isinstance(one, types.CodeType)))


@contextmanager
def fresh(thing: Any) -> Iterator[None]:
    """What a module stores beside its parameters is put back at the end: buffers, caches, counters."""
    parts: list[Any] = list(thing.modules()) if isinstance(thing, nn.Module) else []
    parts += [part.of for part in parts if hasattr(getattr(part, "of", None), "__dict__")]
    places = [place for part in parts for place in (vars(part), vars(part).get("_buffers", {}))]
    before = [dict(place) for place in places]
    for place in places:
        for name, value in place.items():
            if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
                place[name] = value.clone()
            elif type(value) in (list, dict) and not name.startswith("_"):
                place[name] = value.copy()
    try:
        yield
    finally:
        for place, values in zip(places, before):
            place.clear()
            place.update(values)


def feed(way: Any, thing: Any, inputs: Mapping[str, Tensor], chunks: Sequence[int]) -> Tensor:
    """The output of a way for x (B, T, D), ids (B, T), or queries, keys and values (B, H, T, d), in chunks.

    The method with which a module begins a new text is called first, if it has one.
    """
    protocol, listed, outputs, start = way.protocol, way.listed, list[Tensor](), 0
    start_name, places, switch = find(listed, STARTS), find(listed, PLACES), find(listed, SWITCHES)
    optional = any(one.name == protocol.argument and one.default is not one.empty for one in listed)
    with fresh(thing):
        for name in dir(type(thing)) if isinstance(thing, nn.Module) else ():
            if RESETS.search(name) and not hasattr(nn.Module, name):
                with suppress(Exception):  # the learner's code: anything
                    getattr(thing, name)(**by_names(getattr(thing, name), thing))
        cache: Any = protocol.make() if protocol.make else None
        for T in [1] * sum(chunks) if protocol.token else chunks:
            arguments: dict[str, Any] = {places: torch.arange(start, start + T), switch: True}  # (T,)
            if start_name not in way.settings:
                arguments[start_name] = start  # one name may be both
            if cache is not None or start or not optional:
                arguments[protocol.argument] = cache
                arguments |= {one.name: 0 for one in listed if one.default is None and meaning(one.name) == "number"}
            if isinstance(cache, AnyCache):
                cache.T = T
            arguments.pop("", None)
            new = {key: x.narrow(axis_of(x), start, T) for key, x in inputs.items()}
            result = way.call(thing, new, start, arguments)
            outputs.append(way.output(result, new))
            if way.layout in ONE_TOKEN and outputs[-1].shape[axis_of(outputs[-1])] != 1:
                raise TypeError("not one row for one token")
            start += T
            cache = returned_cache(result) if protocol.returned else cache
    return torch.cat(outputs, dim=axis_of(outputs[0]))


def returned_cache(result: Any) -> Any:
    """The cache that was returned beside the output: one object, or a tuple of tensors. Raises TypeError if none."""
    if isinstance(result, Mapping) or (hasattr(result, "__dict__") and not isinstance(result, (Tensor, tuple, list))):
        stored = dict(result) if isinstance(result, Mapping) else vars(result)
        return next(value for name, value in stored.items() if CACHES.search(str(name)) or "present" in str(name))
    if not isinstance(result, (tuple, list)) or len(result) < 2:
        raise TypeError("no cache was returned beside the output")
    rest = [value for value in result[1:] if value is not None]
    return rest[-1] if len(rest) == 1 or not all(isinstance(value, Tensor) for value in rest) else tuple(rest)
