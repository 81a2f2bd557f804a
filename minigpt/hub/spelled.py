"""A model's options with every default filled in: models that compute the same have equal dictionaries.

A null option stands for a default (`head_dim`: the model's width divided by the number of heads). A kind may be a
special case of another (multi-head is grouped-query with as many key heads as query heads). A list of attentions is
repeated over the layers. All of this is written out, to compare a model with what a family's config.json can express.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from minigpt.attention.position import Position
from minigpt.config.options import to_python
from minigpt.model import ModelConfig
from minigpt.training.checkpoint import tensors_of
from minigpt.training.memory import outline

Spelled = dict[str, Any]
NONE = {"kind": "none"}
OF_HEADS = {"head_dim", "qkv_bias", "project_bias", "scaled", "score_scale", "qk_norm", "qk_norm_epsilon"}
GROUPED = ("single_head", "multi_head")  # special cases of grouped_query


def spell_out(model: ModelConfig) -> Spelled:
    """The options of a model as plain values without nulls for defaults; `attention` is a list with one for each layer.

    Dropout is left out, because it changes no logit.
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
    """The options of the attention of one layer, with every default filled in."""
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


def differences(internal: Any, external: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The differences of two models: (option, internal, external). Options of different kinds are not compared."""
    if isinstance(internal, dict) and isinstance(external, dict):
        if internal.get("kind") != external.get("kind"):
            yield path, internal["kind"], external["kind"]
            return
        for key in dict.fromkeys([*internal, *external]):
            yield from differences(internal.get(key), external.get(key), f"{path}.{key}" if path else key)
    elif isinstance(internal, list) and isinstance(external, list) and len(internal) == len(external):
        for layer, pair in enumerate(zip(internal, external)):
            yield from differences(*pair, f"{path}[{layer}]")
    elif internal != external:
        yield path, internal, external
