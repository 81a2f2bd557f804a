"""How wide a learner's module is, and how many heads it has: from its attributes and the shapes of its parameters.

D model width, H query heads, G key heads, d width of a head.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

from torch import nn

from minigpt.grading.load import ARGUMENTS
from minigpt.grading.target import Sizes, Target

MOST_HEADS = 10  # numbers of heads that are tried where none is announced


def attribute(module: nn.Module, names: tuple[str, ...]) -> list[int]:
    """The whole numbers that a module, one inside it, or a config of one keeps under these names."""
    found: dict[int, None] = {}
    for inner in module.modules():
        for holder in (inner, *(value for key, value in vars(inner).items() if "conf" in key or key == "args")):
            for name in names:
                value: Any = holder.get(name) if isinstance(holder, dict) else getattr(holder, name, None)
                if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                    found[value] = None
    return list(found)


def possible_sizes(thing: Any, target: Target) -> Iterator[Sizes]:
    """The sizes that fit a module, the likeliest first; a function is given the target's own."""
    if not isinstance(thing, nn.Module) or not target.roles:
        yield target.sizes
        return
    for D in widths(thing, target):
        hidden = hidden_widths(thing, D) if "W" in target.sizes else [0]
        if "H" not in target.sizes:
            yield from ({**target.sizes, "D": D, "W": W} for W in hidden)
            continue
        for H in heads(thing, target, D):
            for d in head_widths(thing, target, D, H):
                for G, W in product(key_heads(thing, target, H), hidden):
                    yield {**target.sizes, "D": D, "H": H, "d": d, "e": d, "G": G, "W": W}


def widths(module: nn.Module, target: Target) -> list[int]:
    """Candidates for D: what linear layers read first, then any axis of a parameter."""
    layers = [inner.in_features for inner in module.modules() if isinstance(inner, nn.Linear)]
    shapes = [size for parameter in module.parameters() if parameter.dim() >= 2 for size in parameter.shape]
    named = [value for value in attribute(module, ARGUMENTS["D"]) if value in shapes]
    return list(dict.fromkeys([*named, *layers[:1], *shapes]))[:4] or [target.sizes["D"]]


def heads(module: nn.Module, target: Target, D: int) -> list[int]:
    """Candidates for H."""
    if target.sizes.get("H", 1) == 1:
        return [1]
    named = attribute(module, ARGUMENTS["H"])
    lists = [len(inner) for inner in module.modules() if isinstance(inner, (nn.ModuleList, nn.ParameterList))]
    bare = [parameter.shape[0] for parameter in module.parameters() if parameter.dim() == 3]
    kept = [value for inner in module.modules() for value in vars(inner).values() if type(value) is int]
    divisors = [H for H in range(2, D) if D % H == 0]
    one = [1] if target.name == "linear_attention" and not named else []  # it may have one head or several
    fitting = [*(H for H in lists if H in divisors), *one, *(H for H in (*bare, *kept) if H in divisors)]
    return list(dict.fromkeys([*named, *fitting, *divisors]))[:MOST_HEADS]


def head_widths(module: nn.Module, target: Target, D: int, H: int) -> list[int]:
    """Candidates for d: what the module keeps, D / H, and the rows of its matrices."""
    rows = [max(parameter.shape[0], parameter.shape[-1]) for parameter in module.parameters() if parameter.dim() == 2]
    from_rows = [row // H for row in rows if row % H == 0 and row != D]
    own = attribute(module, ARGUMENTS["d"])
    shared = [D // H] if D % H == 0 else []
    short = [parameter.shape[0] for parameter in module.parameters() if parameter.dim() == 2] if H == 1 else []
    return list(dict.fromkeys([*own, *short, *shared, *from_rows]))[:4]


def hidden_widths(module: nn.Module, D: int) -> list[int]:
    """Candidates for W, the width of an MLP's hidden layer: the other axes of matrices that have one of D."""
    shapes = [tuple(parameter.shape[-2:]) for parameter in module.parameters() if parameter.dim() >= 2]
    others = [n if m == D else m for m, n in shapes if D in (m, n)]
    return list(dict.fromkeys([W for W in others if W != D] + others))[:3]


def key_heads(module: nn.Module, target: Target, H: int) -> list[int]:
    """Candidates for G."""
    if target.name != "grouped_query":
        return [H]
    named = [G for G in attribute(module, ARGUMENTS["G"]) if H % G == 0]
    divisors = [G for G in range(1, H + 1) if H % G == 0]
    return list(dict.fromkeys([*named, *(H // G for G in named), *divisors]))[:MOST_HEADS]
