"""Converts the keys of rotary positions in a config.json to minigpt's options, and back.

Old files have `rope_theta` and `rope_scaling`; newer files have a group `rope_parameters` with both. Frequencies that
depend on the length of the text (`dynamic`, `longrope`) have no counterpart.
"""

from __future__ import annotations

import math
from typing import Any

from minigpt.hub.keys import REQUIRED, Keys, show
from minigpt.hub.spelled import Spelled

TURNS = {  # scaling rule: {name of a parameter in a config.json: minigpt's name}
    "linear": {},
    "llama3": {"low_freq_factor": "low", "high_freq_factor": "high"},
    "yarn": {"beta_fast": "beta_fast", "beta_slow": "beta_slow", "attention_factor": "attention_factor"},
}


def read_rotary(keys: Keys, width: int, base: float = 10_000.0, share: float = 1.0, layers: str = "") -> dict[str, Any]:
    """`model.position` for heads of `width` features; `base` and `share` are the defaults for missing keys.

    `layers` names the kind of layers (`full_attention`) if `rope_parameters` has a group for each. Raises UserError for
    an odd number of rotated features: Hugging Face's models pair the first half of them with the second.
    """
    context = keys.whole("max_position_embeddings", 2048)
    new = keys.group("rope_parameters")
    new = new.group(layers) if layers and new.values else new
    old = keys.group("rope_scaling")
    if new.values and old.values and new.values != old.values:
        raise keys.wrong("rope_scaling", "not what rope_parameters says")
    group = new if new.values else old
    base = group.number("rope_theta", keys.number("rope_theta", base))
    share = group.number("partial_rotary_factor", keys.number("partial_rotary_factor", share))
    rotated = int(width * share)
    if rotated % 2 or not 2 <= rotated <= width:
        raise keys.wrong("head_dim", f"{rotated} of {width} features are rotated: expected an even number of them")
    return {"kind": "rotary", "base": base, "share": share, "stretch": read_stretch(group, context)}


def read_stretch(group: Keys, context: int) -> Any:
    """`position.stretch`: the RoPE scaling, which lowers frequencies for contexts longer than that of pretraining."""
    name = group.take("rope_type", group.take("type", "default"))
    group.same("type", name)
    if name == "default":
        group.finish()
        return {"kind": "none"}
    if not isinstance(name, str) or name not in TURNS:
        raise group.wrong(
            "rope_type", f"{show(name)} has no counterpart in minigpt (known: default, {', '.join(TURNS)})"
        )
    stretch: dict[str, Any] = {"kind": name, "factor": group.number("factor", REQUIRED)}
    if name in ("llama3", "yarn"):
        stretch["original"] = group.whole("original_max_position_embeddings", context)
    for theirs, ours in TURNS[name].items():
        if (value := group.number(theirs, None)) is not None:
            stretch[ours] = value
    if name == "yarn":
        group.must("truncate", True)
        stretch |= read_lengths(group, stretch)
    group.finish()
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
    names = {ours: theirs for theirs, ours in TURNS.get(stretch["kind"], {}).items()}
    names |= {"kind": "rope_type", "original": "original_max_position_embeddings"}
    return {names.get(name, name): value for name, value in stretch.items() if value is not None}


def rotated_features(attention: Spelled) -> int:
    """The number of features of a head that rotary positions rotate; 0 for any other position."""
    position = attention["position"]
    return int(attention["head_dim"] * position["share"]) if position["kind"] == "rotary" else 0
