"""Converts the keys of rotary positions in a config.json to minigpt's options, and back.

Older files have `rope_theta` and `rope_scaling`; newer files have a group `rope_parameters` with both. Frequencies that
depend on the length of the text (`dynamic`, `longrope`) have no counterpart.
"""

from __future__ import annotations

import math
from typing import Any

from minigpt.hub.keys import REQUIRED, Keys, show
from minigpt.hub.spelled import Spelled

SCALINGS = {  # scaling rule: {name of a parameter in a config.json: minigpt's name}
    "linear": {},
    "llama3": {"low_freq_factor": "low", "high_freq_factor": "high"},
    "yarn": {"beta_fast": "beta_fast", "beta_slow": "beta_slow", "attention_factor": "attention_factor"},
}


def read_rotary(keys: Keys, width: int, base: str = "rope_theta", share: str = "", layers: str = "") -> dict[str, Any]:
    """`model.position` for heads of `width` features, from `rope_parameters` or from older keys.

    `base` and `share` are the older keys of the base and of the share of a head that is rotated; without `share`, the
    family rotates whole heads. `layers` names the kind of layers (`full_attention`) if `rope_parameters` has a group
    for each. Raises UserError for an odd number of rotated features: the first half of them is paired with the second.
    """
    context = keys.integer("max_position_embeddings")
    group = rope_group(keys, layers)
    part = either(keys, share, group, "partial_rotary_factor") if share else 1.0
    if not share:
        for holder in (keys, group):
            holder.must("partial_rotary_factor", 1, 1.0)
    rotated = int(width * part)
    if rotated % 2 or not 2 <= rotated <= width:
        raise keys.error("head_dim", f"{rotated} of {width} features are rotated: expected an even number of them")
    stretch = read_stretch(group, context)
    return {"kind": "rotary", "base": either(keys, base, group, "rope_theta"), "share": part, "stretch": stretch}


def rope_group(keys: Keys, layers: str) -> Keys:
    """The group of rotary positions: `rope_parameters`, or `rope_scaling` in older files. Raises UserError for two."""
    new, old = keys.group("rope_parameters"), keys.group("rope_scaling")
    new = new.group(layers) if layers else new
    if layers == "sliding_attention":
        return new  # Gemma 3's `rope_scaling` is that of the layers without a window
    if layers and "type" in old.values and "rope_type" not in old.values:
        raise old.error("type", f"{show(old.values['type'])}: for Gemma 3, transformers 5 reads only rope_type")
    if new.values and old.values:
        if new.values != old.values:
            raise keys.error("rope_scaling", "not what rope_parameters says")
        old.unread.clear()
    return new if new.values else old


def either(keys: Keys, name: str, group: Keys, name_in_group: str) -> float:
    """A number with a place in `rope_parameters` and an older one outside. Raises UserError if they differ.

    In `rope_scaling`, it must be the one outside, too: only transformers 5 would read it there.
    """
    outside = keys.number(name, None)
    value = float(group.number(name_in_group, REQUIRED if outside is None else outside))
    if value != outside and (keys.values.get(name) is not None or "rope_scaling" in group.within):
        raise group.error(name_in_group, f"{show(value)}, and {name} is {show(outside)}")
    return value


def read_stretch(group: Keys, context: int) -> Any:
    """`position.stretch`: the RoPE scaling, which lowers frequencies for contexts longer than that of pretraining."""
    name = group.take("rope_type", group.take("type", "default"))
    group.same("type", name)
    if name == "default":
        return {"kind": "none"}
    if not isinstance(name, str) or name not in SCALINGS:
        raise group.error(
            "rope_type", f"{show(name)} has no counterpart in minigpt (known: default, {', '.join(SCALINGS)})"
        )
    stretch: dict[str, Any] = {"kind": name, "factor": group.number("factor", REQUIRED)}
    if name in ("llama3", "yarn"):
        stretch["original"] = group.integer("original_max_position_embeddings", context)
    for external, internal in SCALINGS[name].items():
        if (value := group.number(external, None)) is not None:
            stretch[internal] = value
    if name == "yarn":
        group.must("truncate", True)
        stretch |= read_lengths(group, stretch)
    return stretch


def read_lengths(group: Keys, yarn: dict[str, Any]) -> dict[str, Any]:
    """YaRN's `attention_factor` where it is given as `mscale` and `mscale_all_dim`: l(mscale) / l(mscale_all_dim).

    l(m) = 0.1 m ln(factor) + 1. One of them alone, or both beside `attention_factor`, have no effect, as in
    transformers (modeling_rope_utils.py).
    """
    above, below = (group.number(key, None) for key in ("mscale", "mscale_all_dim"))
    if above is None or below is None or "attention_factor" in yarn:
        return {}
    lengths = [0.1 * m * math.log(max(yarn["factor"], 1.0)) + 1 for m in (above, below)]
    return {"attention_factor": lengths[0] / lengths[1]}


def write_rotary(position: Spelled) -> dict[str, Any]:
    """The keys of rotary positions. For any other position, reading them again differs, and the model is refused."""
    return {"rope_theta": position.get("base", 10_000.0), "rope_scaling": write_stretch(position.get("stretch") or {})}


def write_stretch(stretch: Spelled) -> dict[str, Any] | None:
    """`rope_scaling`; None without scaling."""
    if stretch.get("kind", "none") == "none":
        return None
    names = {internal: external for external, internal in SCALINGS.get(stretch["kind"], {}).items()}
    names |= {"kind": "rope_type", "original": "original_max_position_embeddings"}
    return {names.get(name, name): value for name, value in stretch.items() if value is not None}


def rotated_features(attention: Spelled) -> int:
    """The number of features of a head that rotary positions rotate; 0 for any other position."""
    position = attention["position"]
    return int(attention["head_dim"] * position["share"]) if position["kind"] == "rotary" else 0
