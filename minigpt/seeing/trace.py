"""Attention maps and all intermediate values of a forward pass, recorded from outside: the model has no code for it.

    with tracing(model) as trace:
        model(ids)
    trace.weights[0]                    # (B, H, T, S): the attention of the first layer
    trace.outputs["blocks.0.mlp"]       # (B, T, D): what the module of this name returned; `inputs`: what it read
    trace.added[0]                      # [(B, T, D), ...]: what the first block added to the residual stream, in order

B batch, H heads, T query positions, S key positions, d width of a query and a key, e width of a value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
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
    """What was recorded: the calls of `mix` of each layer, in order; the last input and output of each module; and what
    each block added in the last pass, which is what its `dropout` returned.
    """

    names: list[str]
    calls: list[list[MixCall]]
    inputs: dict[str, Any] = field(default_factory=dict)
    outputs: dict[str, Any] = field(default_factory=dict)
    added: list[list[Tensor]] = field(default_factory=list)

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
    trace = Trace(names, [[] for _ in attentions], added=[[] for _ in attentions])
    with ExitStack() as exit_stack:
        for attention, calls in zip(attentions, trace.calls):
            exit_stack.enter_context(replaced(attention, "mix", _recording(attention, calls)))
            exit_stack.enter_context(replaced(attention, "output", _recording_gates(attention, calls)))
        for name, module in model.named_modules():
            handle = module.register_forward_hook(partial(_store, trace, name))
            exit_stack.callback(handle.remove)
        for block, added in zip(model.blocks, trace.added):
            handle = block.register_forward_pre_hook(partial(lambda added, *call: added.clear(), added))
            exit_stack.callback(handle.remove)
            if (dropout := getattr(block, "dropout", None)) is not None:
                handle = dropout.register_forward_hook(partial(lambda added, *call: added.append(call[-1]), added))
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


def _store(trace: Trace, name: str, module: nn.Module, inputs: Any, output: Any) -> None:
    trace.inputs[name], trace.outputs[name] = inputs[0] if inputs else None, output


@torch.no_grad()
def attention_maps(model: GPT, ids: Tensor) -> list[Tensor]:
    """The attention weights for ids (B, T), T at most `block_size`: one tensor (B, H, T, T) for each layer."""
    with eval_mode(model), tracing(model) as trace:
        model(ids)
    return trace.weights
