"""Checks that each method of an attention returns the shapes of the contract (`attention/base.py`), and so each norm,
MLP and block.

The model reads a short text without a cache and with one. The shapes of each method's results are compared with those
of its arguments, so the error names the method that returns a wrong shape, not the one that fails because of it.

B batch, H query heads, G key heads, T query positions, S key positions, D model width, d and e widths of heads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

from minigpt.attention import Past
from minigpt.fast.guard import set_on
from minigpt.model.config import AnyBlock
from minigpt.model.eval_mode import eval_mode
from minigpt.model.gpt import GPT
from minigpt.model.mlp import MLP
from minigpt.model.norm import Norm
from minigpt.model.replaced import replaced
from minigpt.system.counting import layer_name, part_name
from minigpt.system.errors import UserError
from minigpt.system.plugin import line_of, of_plugin

B, T = 2, 5  # of the text: chosen so that no other size is equal by accident

Sizes = tuple[int | None, ...]  # of each dimension; None is any
Expected = tuple[tuple[str, Sizes], ...]  # the names of the dimensions, and the sizes, of each tensor


def of_qkv(x: Tensor, past: Past) -> Expected:
    """The shapes of query, key and value; with a cache, key and value may also hold earlier positions."""
    T = None if past.keeps else x.shape[1]
    cached = (x.shape[0], None, T, None)
    return ("(B, H, T, d)", (x.shape[0], None, x.shape[1], None)), ("(B, G, T, d)", cached), ("(B, G, T, e)", cached)


def of_weights(query: Tensor, key: Tensor) -> Expected:
    """The shape of scores and weights; B may be 1, which is broadcast over the batch."""
    return (("(B, H, T, S)", (None, None, query.shape[2], key.shape[2])),)


def of_mix(query: Tensor, *others: Any) -> Expected:
    """The shape that `mix` and `recall` return."""
    return (("(B, H, T, e)", (query.shape[0], None, query.shape[2], None)),)


def of_forward(x: Tensor, past: Any = None) -> Expected:
    """The shape that `forward` and `output` return: that of the layer's input."""
    return (("(B, T, D)", tuple(x.shape)),)


CONTRACT: dict[str, Callable[..., Expected]] = {
    "qkv": of_qkv,
    "scores": of_weights,
    "normalise": lambda scores: (("(B, H, T, S)", tuple(scores.shape)),),
    "weights": of_weights,
    "mix": of_mix,
    "recall": of_mix,
    "output": lambda mixed, x: of_forward(x),
    "forward": of_forward,
}


@torch.no_grad()
def check_shapes(model: GPT) -> None:
    """Raises UserError with the method, its line in a plugin, what it returned and what was expected."""
    ids = torch.zeros(B, min(T, model.config.block_size), dtype=torch.long, device=model.device)  # (B, T)
    with eval_mode(model), torch.random.fork_rng(devices=[]), ExitStack() as exit_stack:
        for attention, method, function in _watched(model):
            exit_stack.enter_context(replaced(attention, method, function))
        model(ids)
        model(ids, model.make_cache())


def _watched(model: GPT) -> Iterator[tuple[nn.Module, str, Callable[..., Any]]]:
    for layer, attention in enumerate(model.attentions()):
        for method, expect in CONTRACT.items():
            if hasattr(attention, method):
                yield attention, method, _checked(attention, f"{layer_name(layer)} ({attention.kind})", method, expect)
    for name, part in model.named_modules():
        if isinstance(part, (AnyBlock, Norm, MLP)):
            yield part, "forward", _checked(part, part_name(name, part.kind), "forward", of_forward)


def _checked(part: nn.Module, whose: str, name: str, expect: Callable[..., Expected]) -> Callable[..., Any]:
    """A method in its plain form, which also checks the shapes of its results."""
    plain = getattr(part, name) if name in set_on(part) else MethodType(getattr(type(part), name), part)

    def method(*arguments: Any, **keywords: Any) -> Any:
        result = plain(*arguments, **keywords)
        try:
            expected = expect(*arguments, **keywords)
        except (TypeError, AttributeError, IndexError):  # a kind may call its own methods in its own way
            return result
        tensors = result if isinstance(result, tuple) and len(expected) > 1 else (result,)
        if len(tensors) != len(expected) or not all(map(_fits, tensors, (sizes for _, sizes in expected))):
            function = getattr(plain, "__func__", plain)
            location = f"{line_of(function)}: " if isinstance(function, FunctionType) and of_plugin(function) else ""
            shapes = " and ".join(f"{names} = {_show(sizes)}" for names, sizes in expected)
            returned = " and ".join(map(_describe, tensors))
            raise UserError(f"{location}{name} of {whose} returned {returned}, expected {shapes}")
        return result

    return method


def _fits(result: Any, sizes: Sizes) -> bool:
    if not isinstance(result, Tensor) or result.ndim != len(sizes):
        return False
    return all(size is None or size == n for size, n in zip(sizes, result.shape))


def _describe(result: Any) -> str:
    return _show(tuple(result.shape)) if isinstance(result, Tensor) else f"{type(result).__name__}"


def _show(sizes: Sizes) -> str:
    return f"({', '.join('any' if size is None else str(size) for size in sizes)})"
