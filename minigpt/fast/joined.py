"""Linear layers of one input as one layer: one matrix product takes less time than several.

For decoding the layers are joined once. In training the weights change, so every pass joins them again. That pays in
bfloat16, where a cast and a product of a small matrix take little longer than the calls themselves.

B batch, T positions, D model width, H query heads, G key heads, d width of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minigpt.attention import MultiHead, Past, SingleHead
from minigpt.attention.position import Position
from minigpt.attention.softmax.multi_head import split_heads
from minigpt.fast.guard import set_on
from minigpt.model.mlp import MLP

QKV, GATED = ("query", "key", "value"), ("gate", "up")
IN_TRAINING = "joined in training"
MANY = 64  # rows; with fewer, joining the weights takes longer than it saves


def parts_to_join(module: nn.Module) -> tuple[str, ...]:
    """The names of the layers that a module calls on one input, in the order of their outputs; () if it has none."""
    own = set_on(module)  # a method of this instance alone
    if isinstance(module, (SingleHead, MultiHead)) and type(module).qkv in (SingleHead.qkv, MultiHead.qkv):
        H, G = head_counts(module)
        widths = [getattr(getattr(module, name, None), "out_features", 0) for name in QKV]
        return QKV if "qkv" not in own and widths[0] * G == widths[1] * H == widths[2] * H else ()
    if isinstance(module, MLP) and type(module).forward is MLP.forward and module.gated and "forward" not in own:
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


def weight_and_bias(layers: Sequence[nn.Linear]) -> tuple[Tensor, Tensor | None]:
    """The weights (sum of widths, D) and biases (sum of widths) of several layers, concatenated."""
    biases: list[Tensor] = [layer.bias for layer in layers if layer.bias is not None]
    return torch.cat([layer.weight for layer in layers]), torch.cat(biases) if biases else None


def as_one(layers: Sequence[nn.Linear]) -> nn.Linear:
    """One layer whose output is the outputs of several layers of the same input, concatenated."""
    weight, bias = weight_and_bias(layers)
    one = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    one.weight = nn.Parameter(weight, requires_grad=False)
    one.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)  # type: ignore[assignment]
    return one


def join(module: nn.Module, one: nn.Module) -> None:
    """Make a module call `one` in place of the layers of `parts_to_join`."""
    vars(module)["joined"] = one
    method, form = ("forward", gated) if isinstance(module, MLP) else ("qkv", qkv)
    vars(module)[method] = MethodType(form, module)
    vars(module)["faster"] = (*vars(module).get("faster", ()), method)


def qkv(self: SingleHead | MultiHead, x: Tensor, past: Past) -> tuple[Tensor, Tensor, Tensor]:
    """`qkv` of a module whose layers were joined by `join`."""
    return heads(self, self.joined(x), past)  # type: ignore[operator]


def qkv_in_training(self: SingleHead | MultiHead, x: Tensor, past: Past) -> tuple[Tensor, Tensor, Tensor]:
    """`qkv` with layers that are joined in this pass, if it is one in bfloat16 of many positions."""
    layers = [getattr(self, name) for name in QKV]
    if not torch.is_autocast_enabled(x.device.type) or x.shape[0] * x.shape[1] < MANY or not joinable(layers):
        return type(self).qkv(self, x, past)  # type: ignore[arg-type]
    return heads(self, F.linear(x, *weight_and_bias(layers)), past)


def head_counts(self: SingleHead | MultiHead) -> tuple[int, int]:
    """How many heads of queries and of keys a module has: H, G; a single head does not count them."""
    return getattr(self, "n_head", 1), getattr(self, "n_kv_head", 1)


def heads(self: SingleHead | MultiHead, features: Tensor, past: Past) -> tuple[Tensor, Tensor, Tensor]:
    """The output of the joined layers as query (B, H, T, d), key (B, G, T, d), value (B, G, T, d)."""
    H, G = head_counts(self)
    features = split_heads(features, H + 2 * G)  # (B, H + 2G, T, d)
    normed = any(not isinstance(norm, nn.Identity) or has_hooks(norm) for norm in (self.query_norm, self.key_norm))
    if not normed and getattr(self.position.rotate, "__func__", None) is Position.rotate:
        query, key, value = features.split_with_sizes((H, G, G), 1)  # (B, H, T, d), (B, G, T, d), (B, G, T, d)
        return query, key, value
    if normed:
        query, key, value = features.split_with_sizes((H, G, G), 1)  # (B, H, T, d), (B, G, T, d), (B, G, T, d)
        query, key = self.query_norm(query), self.key_norm(key)
        return self.position.rotate(query, past.length), self.position.rotate(key, past.length), value
    both, value = features.split_with_sizes((H + G, G), 1)  # (B, H + G, T, d), (B, G, T, d): rotated by one call
    query, key = self.position.rotate(both, past.length).split_with_sizes((H, G), 1)
    return query, key, value


def gated(self: MLP, x: Tensor) -> Tensor:
    """The forward pass of an MLP with a gate whose layers were joined by `join`: (B, T, D) -> (B, T, D)."""
    return through_gate(self, self.joined(x))  # type: ignore[operator]


def gated_in_training(self: MLP, x: Tensor) -> Tensor:
    """The same with layers that are joined in this pass, if it is one in bfloat16 of many positions."""
    layers = [self.get_submodule(name) for name in GATED]
    if not torch.is_autocast_enabled(x.device.type) or x.shape[:-1].numel() < MANY or not joinable(layers):
        return type(self).forward(self, x)
    return through_gate(self, F.linear(x, *weight_and_bias(layers)))  # type: ignore[arg-type]


def through_gate(self: MLP, features: Tensor) -> Tensor:
    """The output of the MLP from that of its joined layers (B, T, 2 width): (B, T, D)."""
    gate, up = features.chunk(2, dim=-1)  # (B, T, width) each
    output: Tensor = self.project(self.activation(gate) * up)  # (B, T, D)
    return output


def forms_in_training(module: nn.Module) -> dict[str, Callable[..., Any]]:
    """The form that joins the layers of a module in each pass, by the method that it replaces; {} if it has none."""
    forms: dict[tuple[str, ...], dict[str, Callable[..., Any]]] = {
        QKV: {"qkv": qkv_in_training},
        GATED: {"forward": gated_in_training},
    }
    return forms.get(parts_to_join(module), {})
