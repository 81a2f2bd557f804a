"""A model's options with nothing left unsaid: models that compute the same have equal dictionaries.

An option may be null and mean another one (`head_dim`: the width divided by the heads), a kind may be a case of
another (many heads: as many key heads as heads), and a list of attentions is repeated over the layers. To compare a
model with what a family's config.json can say, all of that is filled in.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from minigpt.attention.position import Position
from minigpt.config.options import to_python
from minigpt.model import ModelConfig
from minigpt.runs.checkpoint import tensors_of
from minigpt.training.memory import outline

Spelled = dict[str, Any]
NONE = {"kind": "none"}
OF_HEADS = {"head_dim", "qkv_bias", "project_bias", "scaled", "score_scale", "qk_norm", "qk_norm_epsilon"}
GROUPED = ("single_head", "multi_head")  # cases of grouped_query


def spell_out(model: ModelConfig) -> Spelled:
    """The options of a model as plain values, each with what it means, `attention` as a list of all layers.

    Left out is what changes no logit: dropout.
    """
    spelled: Spelled = to_python(model)
    del spelled["dropout"]
    spelled["attention"] = [spell_attention(model, layer) for layer in range(model.n_layer)]
    spelled["position"] = to_python(model.position) if model.position.component.embed is not Position.embed else NONE
    up = tensors_of(outline(replace(model, n_layer=1), 1)).get("blocks.0.mlp.up.weight")
    spelled["mlp"]["width"] = None if up is None else len(up)
    if spelled["norm"].get("bias", True) is None:
        spelled["norm"]["bias"] = model.bias
    return spelled


def spell_attention(model: ModelConfig, layer: int) -> Spelled:
    """The attention of one layer."""
    config = model.layer_attention(layer)
    spelled: Spelled = to_python(config)
    position = getattr(config, "position", None) or model.position
    acts = position.component.rotate is not Position.rotate or position.component.bias is not Position.bias
    spelled["position"] = to_python(position) if acts else NONE
    if not spelled.keys() >= OF_HEADS:
        return {name: value for name, value in spelled.items() if value is not None}  # no family has such a kind
    n_head = spelled.setdefault("n_head", 1)
    spelled["head_dim"] = d = spelled["head_dim"] or model.n_embd // n_head
    spelled["n_kv_head"] = spelled.get("n_kv_head") or n_head
    spelled["kind"] = "grouped_query" if spelled["kind"] in GROUPED else spelled["kind"]
    for name in ("qkv_bias", "project_bias"):
        spelled[name] = model.bias if spelled[name] is None else spelled[name]
    scaled = spelled.pop("scaled")
    spelled["score_scale"] = spelled["score_scale"] or (d**-0.5 if scaled else 1.0)
    if not spelled["qk_norm"]:
        spelled["qk_norm_epsilon"] = None
    if "window" in spelled:
        spelled["window"] = spelled["window"] or max(1, model.block_size // 4)
    return spelled


def differences(ours: Any, theirs: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Where two models differ: (option, ours, theirs), first the kinds, whose options belong to them."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        if ours.get("kind") != theirs.get("kind"):
            yield path, ours["kind"], theirs["kind"]
            return
        for key in dict.fromkeys([*ours, *theirs]):
            yield from differences(ours.get(key), theirs.get(key), f"{path}.{key}" if path else key)
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for layer, (mine, other) in enumerate(zip(ours, theirs)):
            yield from differences(mine, other, f"{path}[{layer}]")
    elif ours != theirs:
        yield path, ours, theirs
