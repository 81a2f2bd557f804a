"""How an answer is given its input in chunks, with a cache between the calls.

A kind for minigpt has `make_cache`. Others take a cache as an argument and return it beside the output, or change the
object that they are given, or keep it in the module. Every protocol that the arguments allow is tried.

B batch, T positions of a chunk, S positions so far, D model width.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from minigpt.attention import Attention

CACHES = ("past", "cache", "kv_cache", "layer_past", "past_kv", "past_key_value", "past_key_values", "kv", "state",
          "memory", "past_kvs", "kvcache", "layer_cache")  # fmt: skip
STARTS = ("start", "start_pos", "offset", "position", "pos_offset", "pos", "position_offset", "input_pos", "cache_pos")
SWITCHES = ("use_cache", "cached", "return_cache", "decode", "decoding", "incremental", "return_kv")
PROTOCOLS = {
    "kind": "the cache of make_cache",
    "returned": "the cache that the call before returned",
    "dict": "one dict for all calls",
    "list": "one list for all calls",
    "kept": "the cache kept in the module",
}
Forward = Callable[..., Any]
Pick = Callable[[Any], Tensor]
MaskOf = Callable[[int, int], Mapping[str, Any]]


def find(listed: Sequence[inspect.Parameter], names: tuple[str, ...]) -> str:
    """The argument with one of these names; "" if there is none."""
    return next((entry.name for entry in listed if entry.name.lower() in names), "")


def protocols(thing: Any, listed: Sequence[inspect.Parameter]) -> list[str]:
    """The protocols that the arguments of an answer allow."""
    if isinstance(thing, Attention):
        return ["kind"]
    if find(listed, CACHES):
        return ["returned", "dict", "list", "kept"]
    return ["kept"]


def run_chunks(
    thing: Any, protocol: str, listed: Sequence[inspect.Parameter], inputs: Sequence[str], x: Tensor,
    chunks: Sequence[int], mask_of: MaskOf, pick: Pick,
) -> Tensor:  # fmt: skip
    """The outputs of all chunks of x (B, T, D), joined."""
    cache: Any = {"kind": lambda: thing.make_cache(x.shape[1]), "dict": dict, "list": list}.get(
        protocol, lambda: None
    )()
    name = "past" if protocol == "kind" else find(listed, CACHES)
    start_name, switch = find(listed, STARTS), find(listed, SWITCHES)
    outputs, start = [], 0
    for T in chunks:
        given: dict[str, Any] = {argument: x[:, start : start + T].clone() for argument in inputs}
        given |= mask_of(T, start + T)
        if name and not (protocol == "kept" or (cache is None and start == 0 and has_default(listed, name))):
            given[name] = cache
        if start_name:
            given[start_name] = start
        if switch:
            given[switch] = True
        result = thing(**given)
        outputs.append(pick(result))
        start += T
        if protocol == "returned":
            cache = returned_cache(result)
    return torch.cat(outputs, dim=1)


def has_default(listed: Sequence[inspect.Parameter], name: str) -> bool:
    """Whether an argument may be left out."""
    return any(entry.name == name and entry.default is not entry.empty for entry in listed)


def returned_cache(result: Any) -> Any:
    """What was returned beside the output: one thing, or the tuple of the rest."""
    if not isinstance(result, (tuple, list)) or len(result) < 2:
        raise TypeError("no cache was returned beside the output")
    rest = [value for value in result[1:] if value is not None]
    return rest[-1] if len(rest) == 1 or not all(isinstance(value, Tensor) for value in rest) else tuple(rest)
