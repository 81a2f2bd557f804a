"""Linear layers of one input as one layer: one matrix product takes less time than several.

This is faster for one token at a time only: in a training step the weights change, and joining them again takes as long
as the larger product saves.

B batch, T positions, D model width, H query heads, G key heads, d width of a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MethodType

import torch
from torch import Tensor, nn

from minigpt.attention import MultiHead, Past, SingleHead
from minigpt.attention.softmax.multi_head import split_heads
from minigpt.model.mlp import MLP

QKV, GATED = ("query", "key", "value"), ("gate", "up")


def parts_to_join(module: nn.Module) -> tuple[str, ...]:
    """The names of the layers that a module calls on one input, in the order of their outputs; () if it has none."""
    if isinstance(module, (SingleHead, MultiHead)) and type(module).qkv in (SingleHead.qkv, MultiHead.qkv):
        return QKV
    if isinstance(module, MLP) and type(module).forward is MLP.forward and module.gated:
        widths = [getattr(module.get_submodule(name), "out_features", None) for name in GATED]
        return GATED if widths[0] == widths[1] else ()
    return ()


def joinable(layers: Sequence[nn.Module]) -> bool:
    """Whether these are linear layers of one input, as they were made, all with biases or all without."""
    if len(layers) < 2 or any(type(layer) is not nn.Linear or has_hooks(layer) for layer in layers):
        return False
    return len({(layer.in_features, layer.bias is None) for layer in layers}) == 1


def has_hooks(module: nn.Module) -> bool:
    """Whether a module has hooks, or something else in place of its `forward`."""
    hooks = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    return bool(hooks) or "forward" in vars(module)


def as_one(layers: Sequence[nn.Linear]) -> nn.Linear:
    """One layer whose output is the outputs of several layers of the same input, concatenated."""
    weight = torch.cat([layer.weight for layer in layers])  # (sum of widths, D)
    biases: list[Tensor] = [layer.bias for layer in layers if layer.bias is not None]
    one = nn.Linear(weight.shape[1], weight.shape[0], bias=bool(biases), device="meta")
    one.weight = nn.Parameter(weight, requires_grad=False)
    one.bias = nn.Parameter(torch.cat(biases), requires_grad=False) if biases else None  # type: ignore[assignment]
    return one


def join(module: nn.Module, one: nn.Module) -> None:
    """Make a module call `one` in place of the layers of `parts_to_join`."""
    vars(module)["joined"] = one
    method, form = ("forward", gated) if isinstance(module, MLP) else ("qkv", qkv)
    vars(module)[method] = MethodType(form, module)
    vars(module)["faster"] = (*vars(module).get("faster", ()), method)


def qkv(self: SingleHead | MultiHead, x: Tensor, past: Past) -> tuple[Tensor, Tensor, Tensor]:
    """query (B, H, T, d), key (B, G, T, d), value (B, G, T, d): queries and keys are rotated by one call."""
    H, G = (self.n_head, self.n_kv_head) if isinstance(self, MultiHead) else (1, 1)
    made = split_heads(self.joined(x), H + 2 * G)  # type: ignore[operator]  # (B, H + 2G, T, d)
    if self.config.qk_norm:
        query, key, value = made.split_with_sizes((H, G, G), 1)  # (B, H, T, d), (B, G, T, d), (B, G, T, d)
        query, key = self.query_norm(query), self.key_norm(key)
        return self.position.rotate(query, past.length), self.position.rotate(key, past.length), value
    both, value = made.split_with_sizes((H + G, G), 1)  # (B, H + G, T, d), (B, G, T, d)
    query, key = self.position.rotate(both, past.length).split_with_sizes((H, G), 1)
    return query, key, value


def gated(self: MLP, x: Tensor) -> Tensor:
    """An MLP with a gate: (B, T, D) -> (B, T, D)."""
    gate, up = self.joined(x).chunk(2, dim=-1)  # type: ignore[operator]  # (B, T, width) each
    output: Tensor = self.project(self.activation(gate) * up)  # (B, T, D)
    return output
