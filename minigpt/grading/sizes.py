"""Finds the widths and the number of heads of a learner's module, from its attributes and the shapes of parameters.

D model width, H query heads, G key heads, d width of a head.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import combinations, product
from typing import Any

from torch import Tensor, nn

from minigpt.grading.arguments import ARGUMENTS, axis_of
from minigpt.grading.load import matrix_shape, resized
from minigpt.grading.target import Sizes, Target

MOST_HEADS = 10  # numbers of heads that are tried at most


def attribute(module: nn.Module, axis: str) -> list[int]:
    """The integers that a module, its submodules and their config objects store under the names of a size.

    The usual names come first, then names with a word for the size. For H and G without any: those of `of_file`.
    """
    found, others = dict[int, None](), dict[int, None]()
    for inner in module.modules():
        for holder in (inner, *configs(inner)):
            for name in ARGUMENTS[axis]:
                value: Any = holder.get(name) if isinstance(holder, dict) else getattr(holder, name, None)
                if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                    found[value] = None
            others |= {value: None for name, value in fields_of(holder).items()
                       if type(value) is int and value > 0 and axis_of(name) == axis}  # fmt: skip
    return list(found | others) or (of_file(module, axis) if axis in "HG" else [])


def of_file(module: nn.Module, axis: str) -> list[int]:
    """The integers that the file of a module's class defines at its top level under the names of a size."""
    place = type(module).__module__
    names = {} if place.split(".")[0] in ("torch", "minigpt") else vars(sys.modules.get(place, module))
    kept = [names.get(name) for name in ARGUMENTS[axis] if len(name) > 1]
    return list(dict.fromkeys(value for value in kept if type(value) is int and value > 0))


def fields_of(holder: Any) -> dict[str, Any]:
    """The values that a module, a dict, a named tuple or any other object stores, by name."""
    kept = holder if isinstance(holder, dict) else getattr(holder, "_asdict", lambda: vars(holder))()
    return {name: value for name, value in kept.items() if isinstance(name, str)}


def configs(module: nn.Module) -> list[Any]:
    """The attributes of a module that may be configs, whatever their names: dicts, and objects with own fields."""
    kept = [value for key, value in vars(module).items() if not key.startswith("_")]
    others = [value for value in kept if not isinstance(value, (nn.Module, Tensor)) and not callable(value)]
    return [value for value in others if isinstance(value, dict) or hasattr(value, "__dict__") or is_named(value)]


def is_named(value: Any) -> bool:
    """Whether a value is a named tuple."""
    return isinstance(value, tuple) and hasattr(value, "_fields")


def possible_sizes(thing: Any, target: Target) -> Iterator[Sizes]:
    """Yields the sizes that fit a module, the likeliest first; for a function, the sizes of the target."""
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
            if target.name in ("single_head", "multi_head"):
                unequal = unequal_widths(thing, D, H)
                yield from ({**target.sizes, "D": D, "H": H, "G": H, "d": d, "e": e} for d, e in unequal)


def matrices(module: nn.Module) -> list[tuple[int, ...]]:
    """The shapes of the parameters with two axes or more; a convolution of width one counts as a matrix.

    A parameter with three axes, one of them of size 2 or 3, counts as that many matrices, too.
    """
    shapes = [matrix_shape(parameter) for parameter in module.parameters() if parameter.dim() >= 2]
    few = [(shape, n) for shape in shapes if len(shape) == 3 for n in shape if n in (2, 3)]
    return shapes + [tuple(m for i, m in enumerate(shape) if i != shape.index(n)) for shape, n in few for _ in range(n)]


def widths(module: nn.Module, target: Target) -> list[int]:
    """Candidates for D: the attributes, the input width of the first linear layer, then any axis of a parameter."""
    layers = [inner.in_features for inner in module.modules() if isinstance(inner, nn.Linear)]
    shapes = [size for shape in matrices(module) for size in shape]
    named = [value for value in attribute(module, "D") if value in shapes]
    vectors = [parameter.shape[0] for parameter in module.parameters() if parameter.dim() == 1]  # of a norm
    return list(dict.fromkeys([*named, *layers[:1], *shapes]))[:4] or vectors[:1] or [target.sizes["D"]]


def heads(module: nn.Module, target: Target, D: int) -> list[int]:
    """Candidates for H."""
    if target.sizes.get("H", 1) == 1:
        return [1]
    named = attribute(module, "H")
    ours = [one.sizes["H"] for one in (target, *resized(target)) if one.sizes.get("D") == D]  # if it was built here
    lists = [len(inner) for inner in module.modules() if isinstance(inner, (nn.ModuleList, nn.ParameterList))]
    bare = [parameter.shape[0] for parameter in module.parameters() if parameter.dim() == 3 and D in parameter.shape]
    four = [shape for shape in matrices(module) if len(shape) == 4 and D in shape]  # two axes together may be the heads
    bare += [m * n for shape in four for m, n in combinations([size for size in shape if size != D], 2)]
    kept = [value for inner in module.modules() for value in vars(inner).values() if type(value) is int]
    divisors = [H for H in range(2, D) if D % H == 0]
    one = (
        [1] if target.name in ("linear_attention", "attention_weights") and not named else []
    )  # it may have one head or several
    fitting = [*(H for H in (*lists, *ours) if H in divisors), *one, *bare, *(H for H in kept if H in divisors)]
    return list(dict.fromkeys([*named, *fitting, *divisors]))[:MOST_HEADS]


def head_widths(module: nn.Module, target: Target, D: int, H: int) -> list[int]:
    """Candidates for d: the attributes, then the widths with the most votes by D / H and the axes of the matrices."""
    votes: Counter[int] = Counter([D // H] if D % H == 0 else [])
    for shape in matrices(module):
        if D not in shape:
            continue
        others = list(shape)
        others.remove(D)
        if len(others) == 2 and H in others:  # a matrix for each head
            others.remove(H)
            votes[others[0]] += 2
        for m, n in combinations(others, 2) if len(others) == 3 else ():
            votes[math.prod(others) // (m * n)] += 2 * (m * n == H)
        for joined in (1, 2, 3) if len(others) == 1 else ():
            if others[0] % (H * joined) == 0:
                votes[others[0] // (H * joined)] += 2 if joined == 1 else 1
    own = attribute(module, "d")
    short = [shape[0] for shape in matrices(module)] if H == 1 else []
    return list(dict.fromkeys([*own, *short, *(d for d, _ in votes.most_common())]))[:4]


def unequal_widths(module: nn.Module, D: int, H: int) -> Iterator[tuple[int, int]]:
    """Yields widths (d, e) of heads whose values have width e, not d: two matrices have d, one or two have e."""
    widths: Counter[int] = Counter()
    for others in (list(shape) for shape in matrices(module) if D in shape):
        others.remove(D)
        if len(others) == 2 and H in others:  # a matrix for each head
            others.remove(H)
            widths[others[0]] += 1
        elif len(others) == 1 and others[0] % H == 0:
            widths[others[0] // H] += 1
    yield from ((d, e) for d in widths for e in widths if d != e and widths[d] == 2 and widths[e] in (1, 2))


def hidden_widths(module: nn.Module, D: int) -> list[int]:
    """Candidates for W, the width of an MLP's hidden layer: the other axes of matrices with an axis of size D."""
    shapes = [shape[-2:] for shape in matrices(module)]
    others = [n if m == D else m for m, n in shapes if D in (m, n)]
    halves = [W // 2 for W in others if W % 2 == 0 and (D, W // 2) in shapes]  # a gate joined to the hidden layer
    both = [W for W in others if W != D and (W, D) in shapes and (D, W) in shapes]  # into the hidden layer, and back
    joined = Counter(W for n in others for W in (n - 3 * D, (n - 3 * D) // 2, n - D) if W > 0)  # plus an attention's
    twice = [W for W, times in joined.most_common() if times > 1]
    return list(dict.fromkeys([*halves, *both]))[:3] or list(dict.fromkeys([*others[:2], *twice[:2], *others]))[:4]


def key_heads(module: nn.Module, target: Target, H: int) -> list[int]:
    """Candidates for G."""
    named = [G for G in attribute(module, "G") if H % G == 0]
    if target.name != "grouped_query":  # a block may share key heads, if an attribute says so
        return named[:1] or [H] if "W" in target.sizes else [H]
    divisors = [G for G in range(1, H + 1) if H % G == 0]
    return list(dict.fromkeys([*named, *(H // G for G in named), *divisors]))[:MOST_HEADS]
