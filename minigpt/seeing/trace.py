"""Attention maps and all intermediate values of a forward pass, recorded from outside: the model has no code for it.

    with tracing(model) as trace:
        model(ids)
    trace.weights[0]                    # (B, H, T, S): the attention of the first layer
    trace.outputs["blocks.0.mlp"]       # (B, T, D): what the module of this name returned

B batch, H heads, T query positions, S key positions, d width of a query and a key, e width of a value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from minigpt.attention import Attention
from minigpt.model.eval_mode import eval_mode
from minigpt.model.gpt import GPT
from minigpt.model.replaced import replaced
from minigpt.system.counting import layer_name
from minigpt.system.errors import UserError


@dataclass
class MixCall:
    """One call of an attention's `mix`."""

    query: Tensor  # (B, H, T, d)
    key: Tensor  # (B, G, S, d)
    value: Tensor  # (B, G, S, e)
    weights: Tensor  # (B, H, T, S)
    mixed: Tensor  # (B, H, T, e)
    head_gates: Tensor | None = None  # (B, H, T): what `output` multiplies the heads by, where the kind says it


@dataclass
class Trace:
    """What was recorded: the calls of `mix` of each layer, in order, and the last output of each module."""

    names: list[str]
    calls: list[list[MixCall]]
    outputs: dict[str, Any] = field(default_factory=dict)

    @property
    def weights(self) -> list[Tensor]:
        """The last weights of each layer, (B, H, T, S). Raises UserError for a layer that has none."""
        for name, calls in zip(self.names, self.calls):
            if not calls:
                raise UserError(f"{name} decodes from a state, which has no weights to show: trace it without a cache")
        return [calls[-1].weights for calls in self.calls]


@contextmanager
def tracing(model: GPT) -> Iterator[Trace]:
    """Record all forward passes inside the `with`. Afterwards the model is unchanged."""
    attentions = model.attentions()
    names = [f"{layer_name(i)} ({attention.kind})" for i, attention in enumerate(attentions)]
    trace = Trace(names, [[] for _ in attentions])
    with ExitStack() as exit_stack:
        for attention, calls in zip(attentions, trace.calls):
            exit_stack.enter_context(replaced(attention, "mix", _recording(attention, calls)))
            exit_stack.enter_context(replaced(attention, "output", _recording_gates(attention, calls)))
        for name, module in model.named_modules():
            handle = module.register_forward_hook(_storing(trace.outputs, name))
            exit_stack.callback(handle.remove)
        yield trace


def _recording(attention: Attention, calls: list[MixCall]) -> Callable[..., Tensor]:
    mix = attention.mix

    def recorded(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        mixed = mix(query, key, value)
        calls.append(MixCall(query, key, value, attention.weights(query, key), mixed))
        return mixed

    return recorded


def _recording_gates(attention: Attention, calls: list[MixCall]) -> Callable[..., Tensor]:
    output = attention.output

    def recorded(mixed: Tensor, x: Tensor) -> Tensor:
        if calls:  # none where it decodes from a state
            calls[-1].head_gates = attention.head_gates(x)
        return output(mixed, x)

    return recorded


def sums_of(stages: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Which of the steps of an attention are sums of maps before them: {step: {map: its factor (B, H)}}."""
    sums, parts = dict[str, dict[str, Tensor]](), dict[str, Tensor]()
    for name, stage in stages.items():
        if stage.ndim != 4:
            continue
        if (factor := stages.get(f"x {name}")) is not None:
            parts[name] = factor  # (B, H)
        elif parts:
            sums[name], parts = parts, {}
    return sums


def _storing(outputs: dict[str, Any], name: str) -> Callable[..., None]:
    def store(module: nn.Module, inputs: Any, output: Any) -> None:
        outputs[name] = output

    return store


@torch.no_grad()
def attention_maps(model: GPT, ids: Tensor) -> list[Tensor]:
    """The attention weights for ids (B, T), T at most `block_size`: one tensor (B, H, T, T) for each layer."""
    with eval_mode(model), tracing(model) as trace:
        model(ids)
    return trace.weights
