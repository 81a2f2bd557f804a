"""How a function of given heads is called: in which layout, and which of its results are the output.

B batch, T query positions, S key positions, H heads, d width of a head, N = B H.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import torch
from torch import Tensor

from minigpt.grading.arguments import ARGUMENTS
from minigpt.grading.call import (
    Call,
    CannotCall,
    fixed_arguments,
    input_names,
    is_mask,
    make_mask,
    mask_forms,
    parameters_of,
    result,
)
from minigpt.grading.target import Probe, Target

LAYOUTS = ("(B, H, T, d)", "(B, T, H, d)", "(H, T, d)", "(T, H, d)", "(N, T, d)", "(T, d)")
TABLES = re.compile(r"(?i)freq|cos|sin\b|sin_|_sin|cis|rope|angle|table|theta|phase")  # in names of arguments
TABLE = "made by a function of the file"
ENDS = ("end", "n", "length", "num_positions", "positions", "t", "size", "seqlen", "max_position")
ALONE = ("(N, T, d)", "(T, d)")  # each head is a sequence of its own: only for what treats all heads alike


def has_heads(target: Target) -> bool:
    """Whether a target's inputs are split into heads already."""
    return "given" in target.sizes


def given_calls(thing: Any, target: Target) -> Iterator[Call]:
    """Every way to call a function of given heads, the simplest first. Raises CannotCall."""
    listed = parameters_of(thing)
    needed = needed_tensors(thing)
    one = target.takes == ("query", "key") and len(needed) == 1
    inputs = {needed[0].name: "query"} if one else input_names(listed, target.takes)
    if len(inputs) < len(target.takes) - one:
        raise CannotCall(f"it takes {len(listed)} arguments, expected {', '.join(target.takes)}")
    tables = [entry.name for entry in listed if entry.default is entry.empty and TABLES.search(entry.name)]
    others = [entry for entry in listed if entry.name not in (*inputs, *tables)]
    fixed, masks = fixed_arguments(others, target), [entry for entry in others if is_mask(entry)]
    for layout, mask in product(LAYOUTS, mask_forms(masks, target)):
        if layout not in ALONE or len(target.takes) == 2:
            yield given_call(inputs, {**fixed, **dict.fromkeys(tables, TABLE)}, mask, layout, target)


def needed_tensors(thing: Any) -> list[inspect.Parameter]:
    """The arguments without a default that are neither a mask nor a table of angles."""
    found = [entry for entry in parameters_of(thing) if entry.default is entry.empty and not is_mask(entry)]
    return [entry for entry in found if not TABLES.search(entry.name)]


def made_tables(thing: Any, names: list[str], T: int, d: int) -> dict[str, Any]:
    """Tables of angles, from a function of the same file that takes T and d. Raises TypeError if none fits."""
    known = {name: d for axis in "Dd" for name in ARGUMENTS[axis]} | dict.fromkeys((*ARGUMENTS["T"], *ENDS), T)
    for maker in vars(sys.modules[thing.__module__]).values():
        if not inspect.isfunction(maker) or maker is thing or maker.__module__ != thing.__module__:
            continue
        listed = inspect.signature(maker).parameters.values()
        if any(entry.default is entry.empty and entry.name not in known for entry in listed):
            continue
        made = maker(**{entry.name: known[entry.name] for entry in listed if entry.default is entry.empty})
        pieces = list(made) if isinstance(made, (tuple, list)) else [made]
        if len(pieces) == len(names) and all(isinstance(piece, Tensor) for piece in pieces):
            return dict(zip(names, pieces))
    raise TypeError(f"no function of the file makes {', '.join(names)}")


def given_call(inputs: Mapping[str, str], fixed: Mapping[str, Any], mask: tuple[str, str, str] | None, layout: str,
               target: Target) -> Call:  # fmt: skip
    """The call with these inputs, other arguments, mask and layout."""

    def run(thing: Any, probe: Probe) -> Tensor:
        query, key, *_ = probe.inputs.values()
        (B, T, H, _), S = query.shape, key.shape[1]
        more = {name: value for name, value in fixed.items() if value is not TABLE}
        if len(more) < len(fixed):
            more |= made_tables(thing, [name for name in fixed if name not in more], T, query.shape[-1])
        if mask:
            more[mask[0]] = make_mask(mask[1], mask[2], B, T, S, target.options.window, target.options.full)
        takes = [("query",), ("key",)] if len(inputs) < len(target.takes) else [tuple(inputs.values())]
        outputs = []
        for names in takes:  # a function that rotates one tensor is called for both
            given = {name: probe.inputs[take].clone() for name, take in zip(inputs, names)}  # (B, T, H, d) each
            outputs += called(thing, given, more, layout, (B, H))
        count = 2 if len(target.takes) == 2 else 1
        if len(outputs) < count:
            raise TypeError("one tensor was returned, expected both, rotated")
        return torch.cat(outputs[:count], dim=2)

    names = ", ".join(name if name == take else f"{name}={take}" for name, take in inputs.items())
    shown = "".join(f", {name}={value}" for name, value in fixed.items())
    shown += f", {mask[0]}={mask[2]}, {mask[1]}" if mask else ""
    how = f"called: ({names}{shown}) with inputs {layout}"
    return Call(how, run, "", layout, mask=mask[1] if mask else "", plain=not fixed and not mask)


def called(thing: Any, given: Mapping[str, Tensor], more: Mapping[str, Any], layout: str,
           sizes: tuple[int, int]) -> list[Tensor]:  # fmt: skip
    """The tensors (B, T, H, d) that the answer returns for inputs (B, T, H, d), which it takes in `layout`."""
    B, H = sizes
    if layout in ("(H, T, d)", "(T, H, d)", "(T, d)"):  # one sequence at a time, or one head of it
        heads = [slice(h, h + 1) for h in range(H)] if layout == "(T, d)" else [slice(None)]
        rows = []
        for b in range(B):
            parts = [tensors(result(thing, {n: one(x[b][:, h], layout) for n, x in given.items()} | dict(more)))
                     for h in heads]  # fmt: skip
            rows.append([torch.cat([one_back(x, layout) for x in each], dim=1) for each in zip(*parts)])
        return [torch.stack(each) for each in zip(*rows)]
    arranged = {name: arrange(x, layout) for name, x in given.items()}
    return [arrange_back(x, layout, B) for x in tensors(result(thing, arranged | dict(more)))]


def tensors(found: Any) -> list[Tensor]:
    """The tensors among what was returned. Raises TypeError if there is none."""
    if isinstance(found, Tensor):
        return [found.detach()]
    values = list(found.values()) if isinstance(found, Mapping) else found
    if isinstance(values, (tuple, list)) and any(isinstance(value, Tensor) for value in values):
        return [value.detach() for value in values if isinstance(value, Tensor)]
    raise TypeError(f"it returned {type(found).__name__}, expected a tensor")


def one(x: Tensor, layout: str) -> Tensor:
    """One sequence (T, H, d) -> the answer's layout."""
    return {"(H, T, d)": x.transpose(0, 1), "(T, H, d)": x, "(T, d)": x[:, 0]}[layout].contiguous()


def one_back(x: Tensor, layout: str) -> Tensor:
    """The answer's layout -> one sequence (T, H, d)."""
    return {"(H, T, d)": lambda: x.transpose(0, 1), "(T, H, d)": lambda: x, "(T, d)": lambda: x[:, None]}[layout]()


def arrange(x: Tensor, layout: str) -> Tensor:
    """(B, T, H, d) -> the answer's layout."""
    if layout == "(B, T, H, d)":
        return x
    turned = x.transpose(1, 2).contiguous()  # (B, H, T, d)
    return turned.flatten(0, 1) if layout == "(N, T, d)" else turned


def arrange_back(x: Tensor, layout: str, B: int) -> Tensor:
    """The answer's layout -> (B, T, H, d)."""
    if layout == "(B, T, H, d)":
        return x
    return (x.unflatten(0, (B, -1)) if layout == "(N, T, d)" else x).transpose(1, 2)
