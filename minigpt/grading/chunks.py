"""How an answer is given its input in chunks, with a cache between the calls.

A kind for minigpt has `make_cache`. Others take a cache as an argument and return it beside the output, or change the
object that they are given, or keep it in the module. Every protocol that the arguments allow is tried. A cache of the
learner's own class is made by a method of the module (one of `MAKERS`), or by calling that class.

B batch, T positions of a chunk, S positions so far, D model width.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from minigpt.attention import Attention

CACHES = ("past", "cache", "kv_cache", "layer_past", "past_kv", "past_key_value", "past_key_values", "kv", "state",
          "memory", "past_kvs", "kvcache", "layer_cache", "layer_kv", "kv_state", "past_kv_cache")  # fmt: skip
STARTS = ("start", "start_pos", "offset", "position", "pos_offset", "pos", "position_offset", "cache_pos", "past_len",
          "past_length", "start_position", "start_idx", "cache_len")  # fmt: skip
PLACES = ("input_pos", "cache_position", "positions", "position_ids", "pos_ids")  # these take all positions (T,)
MAKERS = ("make_cache", "new_cache", "init_cache", "create_cache", "get_cache", "empty_cache", "setup_cache",
          "initial_cache", "make_kv_cache", "new_kv_cache", "init_kv_cache", "build_cache")  # fmt: skip
SWITCHES = ("use_cache", "cached", "return_cache", "decode", "decoding", "incremental", "return_kv")
STEPS = ("step", "decode", "decode_step", "forward_step", "one_step", "forward_one", "step_forward", "incremental_step",
         "forward_cached", "generate_step", "next", "infer", "inference", "forward_inference")  # fmt: skip
RESETS = ("reset", "reset_cache", "clear", "clear_cache", "start", "begin", "init_cache", "new_text", "reset_state")
BATCHES = ("batch_size", "batch", "b", "bs", "n", "bsz")
PROTOCOLS = {
    "step": "the module's method for one token at a time",
    "token": "one token at a time, and the cache that the call before returned",
    "kind": "the cache of make_cache",
    "returned": "the cache that the call before returned",
    "dict": "one dict for all calls",
    "list": "one list for all calls",
    "object": "one cache of the file's own class for all calls",
    "kept": "the cache kept in the module",
}
Forward = Callable[..., Any]
Pick = Callable[[Any], Tensor]
MaskOf = Callable[[int, int], Mapping[str, Any]]


def find(listed: Sequence[inspect.Parameter], names: tuple[str, ...]) -> str:
    """The argument with one of these names; "" if there is none."""
    return next((entry.name for entry in listed if entry.name.lower() in names), "")


def cache_argument(listed: Sequence[inspect.Parameter]) -> str:
    """The argument that takes a cache: one with a usual name, else the first unknown one that may be None; or ""."""
    known = (*STARTS, *PLACES, *SWITCHES)
    free = [entry.name for entry in listed[1:] if entry.default is None and entry.name.lower() not in known]
    return find(listed, CACHES) or next((name for name in free if "mask" not in name.lower()), "")


def protocols(thing: Any, listed: Sequence[inspect.Parameter]) -> list[str]:
    """The protocols that the arguments of an answer allow."""
    if isinstance(thing, Attention):
        return ["kind"]
    if not cache_argument(listed) and step_of(thing):
        return ["step"]
    if cache_argument(listed):
        own = ["object"] if new_cache(thing) is not None else []
        return (
            ["returned", "dict", "list", *own, "kept", "token"]
            if hasattr(thing, "function")
            else ["returned", "dict", "list", *own, "kept"]
        )
    return ["kept"]


def step_of(thing: Any) -> Callable[..., Any] | None:
    """The method of a module that takes one token per call; None if it has none."""
    own = [getattr(thing, name) for name in STEPS if callable(getattr(type(thing), name, None))]
    return own[0] if own else None


def reset(thing: Any, B: int) -> None:
    """Call the method with which a module begins a new text, if it has one (`RESETS`). B: the batch size."""
    for name in RESETS:
        method = getattr(type(thing), name, None)
        if callable(method):
            needed = [entry for entry in list(inspect.signature(method).parameters.values())[1:]
                      if entry.default is entry.empty]  # fmt: skip
            if all(entry.name.lower() in BATCHES for entry in needed):
                getattr(thing, name)(**{entry.name: B for entry in needed})
                return


def run_tokens(function: Callable[..., Any], x: Tensor, pick: Pick) -> Tensor:
    """The outputs (B, T, D) for x (B, T, D), given one token (B, 1, D) or (B, D) at a time."""
    listed = [entry for entry in inspect.signature(function).parameters.values()
              if entry.kind not in (entry.VAR_KEYWORD, entry.VAR_POSITIONAL)]  # fmt: skip
    try:
        return one_by_one(function, listed, x[:, :, None], pick)
    except Exception:  # the learner's code: anything
        return one_by_one(function, listed, x, pick)


def one_by_one(function: Callable[..., Any], listed: Sequence[inspect.Parameter], x: Tensor, pick: Pick) -> Tensor:
    """The outputs (B, T, D) for x (B, T, 1, D) or (B, T, D), one call per token. Raises TypeError for a wrong shape."""
    cache, outputs, name, start = None, [], cache_argument(listed), find(listed, STARTS)
    for t in range(x.shape[1]):
        given: dict[str, Any] = {listed[0].name: x[:, t].clone()}  # (B, 1, D) or (B, D)
        if name and not (cache is None and has_default(listed, name)):
            given[name] = cache
        if start:
            given[start] = t
        result = function(**given)
        output = pick(result)  # (B, 1, D) or (B, D)
        if output.shape != x[:, t].shape[:-1] + output.shape[-1:]:
            raise TypeError("not one row for one token")
        outputs.append(output if output.dim() == 3 else output[:, None])
        cache = returned_cache(result) if name else None
    return torch.cat(outputs, dim=1)


def new_cache(thing: Any) -> Any:
    """A cache of the learner's own class, made by the module or by calling the class; None if that is not possible."""
    file = sys.modules.get(type(thing).__module__)
    own = [value for value in vars(file).values() if inspect.isclass(value)] if file else []
    own = [value for value in own if value.__module__ == type(thing).__module__ and not isinstance(thing, value)]
    classes = [value for value in own if re.search("cache|kv|past|memory|state", value.__name__.lower())]
    makers = [getattr(thing, name) for name in MAKERS if callable(getattr(thing, name, None))]
    for maker in (*makers, *classes):
        try:
            made = maker()
        except Exception:  # the learner's code: anything; it wants arguments, for example
            continue
        if made is not None:
            return made
    return None


def run_chunks(
    thing: Any, protocol: str, listed: Sequence[inspect.Parameter], inputs: Sequence[str], x: Tensor,
    chunks: Sequence[int], mask_of: MaskOf, pick: Pick,
) -> Tensor:  # fmt: skip
    """The outputs (B, T, D) for x (B, T, D), given in chunks of these lengths."""
    if protocol in ("step", "token"):
        reset(thing, len(x))
        return run_tokens(step_of(thing) or thing.forward, x, pick)
    makers = {"kind": lambda: thing.make_cache(x.shape[1]), "object": lambda: new_cache(thing)}
    cache: Any = {**makers, "dict": dict, "list": list}.get(protocol, lambda: None)()
    name = "past" if protocol == "kind" else cache_argument(listed)
    start_name, places, switch = find(listed, STARTS), find(listed, PLACES), find(listed, SWITCHES)
    outputs, start = [], 0
    for T in chunks:
        given: dict[str, Any] = {argument: x[:, start : start + T].clone() for argument in inputs}
        given |= mask_of(T, start + T)
        if name and not (protocol == "kept" or (cache is None and start == 0 and has_default(listed, name))):
            given[name] = cache
        if start_name:
            given[start_name] = start
        if places:
            given[places] = torch.arange(start, start + T)  # (T,)
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
    """The cache that was returned beside the output: one object, or a tuple of tensors. Raises TypeError if none."""
    if not isinstance(result, (tuple, list)) or len(result) < 2:
        raise TypeError("no cache was returned beside the output")
    rest = [value for value in result[1:] if value is not None]
    return rest[-1] if len(rest) == 1 or not all(isinstance(value, Tensor) for value in rest) else tuple(rest)
