"""A whole model: where its blocks are, how wide they are, how it is called, and which parameter plays which role.

The parameters of one block get roles like those of any module, in the same way for all blocks. The parameters outside
of the blocks are embeddings, the final norm and the head.

B batch, T positions, C longest context, V vocabulary, D model width, L layers, W width of the MLP's hidden layer.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minigpt.grading.bind import Binding, bindings, single_units, units_of
from minigpt.grading.call import Call, CannotCall, fixed_arguments, is_mask, make_mask, mask_forms, parameters_of
from minigpt.grading.chunks import CACHES, PLACES, STARTS
from minigpt.grading.forms import Unit
from minigpt.grading.naming import bases
from minigpt.grading.outputs import Expected, Outputs, equal
from minigpt.grading.read_off import blocks_of, settle, with_hidden_values
from minigpt.grading.sizes import attribute, head_widths, heads, hidden_widths
from minigpt.grading.target import Knobs, Probe, Role, Sizes, Target
from minigpt.grading.targets import block, gpt, mlp
from minigpt.grading.targets.loss import PADS, SMOOTHS, loss_target

MOST_INNER, MOST = 24, 60  # the most bindings of one block; of a whole model
MOST_LIKELY, FEW = 12, 3  # the most that are kept: if some are right for one token; if none is
GIVEN = re.compile(
    r"(?i)^(targ(et)?s?|labels?|y|ys|yb|y_true|tgts?|trg|gold|truth|ground_truth|expected|want(ed)?|nxt|"
    r"(next|target|label|gold|shifted)_?(ids|tokens?|token_ids|idx|seq)?|ziele?|cibles?|objetivos?)$"
)


def is_model(target: Target) -> bool:
    """Whether a target is a whole model, which is given ids."""
    return target.takes == ("ids",)


def outer_units(model: nn.Module, blocks: Sequence[nn.Module]) -> list[Unit]:
    """The units that lie outside of the blocks; (1, C, D) becomes (C, D)."""
    inside = {id(parameter) for module in blocks for parameter in module.parameters()}
    found = [unit for unit in single_units(model) if not any(id(parameter) in inside for parameter in unit.parameters)]
    for unit in found:
        if unit.weight is not None and unit.weight.dim() == 3 and unit.weight.shape[0] == 1:
            unit.weight = unit.weight[0]
    return found


def targets_argument(model: Any) -> str:
    """The argument that takes the next tokens; "" if none. An unknown name counts if it leads to a loss."""
    listed = parameters_of(model)[1:]
    if found := [entry.name for entry in listed if GIVEN.search(entry.name)]:
        return found[0]
    others = [entry.name for entry in listed if entry.default is None and not is_mask(entry)
              and entry.name.lower() not in (*CACHES, *STARTS, *PLACES)]  # fmt: skip
    if not others or not isinstance(model, nn.Module) or loss_mode(model, "") != gpt.NO_LOSS:
        return ""
    return next((name for name in others if loss_mode(model, name) in (gpt.TARGETS, gpt.ONLY)), "")


def prepared(thing: Any, target: Target) -> Target:
    """The target, adapted to this answer: to its loss, and to the conventions that can be read from it."""
    if is_model(target) and isinstance(thing, nn.Module):
        name = targets_argument(thing)
        mode = loss_mode(thing, name)
        first = parameters_of(thing)[0].name
        own = mode == gpt.TARGETS and name == "labels" and (first == "input_ids" or shifts(thing, name))
        return settle(thing, gpt.gpt(target.options, gpt.OWN if own else mode), [gpt.INSIDE] if own else [])
    if target.name == "loss":
        listed = [entry.name.lower() for entry in parameters_of(thing)]
        more = {entry.name: entry.default for entry in parameters_of(thing)[2:]}
        if isinstance(thing, nn.Module):  # arguments of its constructor, with stored values
            made = inspect.signature(type(thing)).parameters.values()
            more |= {entry.name: getattr(thing, entry.name, entry.default) for entry in made}
        smoothing = next((value for name, value in more.items() if SMOOTHS.search(name)), 0.0)
        share = smoothing if isinstance(smoothing, float) else 0.0
        return loss_target(target.options, listed[:2], any(PADS.search(name) for name in more), share)
    return settle(thing, with_hidden_values(thing, target), [])


def loss_mode(model: Any, name: str) -> int:
    """How a model returns a loss, tried with three tokens: gpt.NO_LOSS, TARGETS, OWN or ONLY."""
    ids = torch.zeros(2, 3, dtype=torch.long)  # (2, 3)
    first = parameters_of(model)[0].name
    for given in ({name: ids}, {}) if name else ({},):
        try:
            floats = tensors(model(**{first: ids, **given}))
        except Exception:  # the learner's code may raise anything
            continue
        scalars, others = [x for x in floats if x.dim() < 2], [x for x in floats if x.dim() >= 2]
        if scalars:
            alone = given and not others and loss_mode(model, "") == gpt.NO_LOSS and gives_logits(model, first)
            return gpt.OWN if not given and others else gpt.TARGETS if others or alone else gpt.ONLY
    return gpt.NO_LOSS


def gives_logits(model: Any, first: str) -> bool:
    """Whether a model returns logits for ids alone."""
    with suppress(Exception):  # the learner's code may raise anything
        return any(x.dim() >= 2 for x in tensors(model(**{first: torch.zeros(2, 3, dtype=torch.long)})))
    return False


def shifts(model: Any, name: str) -> bool:
    """Whether the loss takes the ids as labels and shifts them itself, judged by its value for two sequences."""
    ids = torch.tensor([[0, 1, 1, 0], [1, 0, 1, 1]])  # (B, 4)
    try:
        found = tensors(model(**{parameters_of(model)[0].name: ids, name: ids}))
        logits, loss = next(x for x in found if x.dim() >= 2), next(x for x in found if x.dim() < 2)
        logits = logits.view(2, 4, -1)  # (B, 4, V)
    except Exception:  # the learner's code may raise anything
        return False
    return bool((loss - F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())).abs() < 1e-9)


def tensors(result: Any) -> list[Tensor]:
    """The floating-point tensors in what a model returned: one, a tuple, a mapping or an object with fields."""
    if isinstance(result, Tensor):
        return [result] if result.is_floating_point() else []
    if isinstance(result, Mapping):
        values = list(result.values())
    elif isinstance(result, (tuple, list)):
        values = list(result)
    else:
        values = [getattr(result, name, None) for name in ("logits", "loss")]
    return [value for value in values if isinstance(value, Tensor) and value.is_floating_point()]


def model_sizes(model: Any, target: Target) -> Iterator[Sizes]:
    """Yields the sizes that fit a model, the likeliest first. Raises CannotCall for a function, or without blocks."""
    if not isinstance(model, nn.Module):
        raise CannotCall("a whole model as a function of its weights is not read: make it an nn.Module")
    blocks = blocks_of(model)
    if not blocks:
        raise CannotCall("no blocks were found: put them into an nn.ModuleList")
    tables = [unit.weight for unit in outer_units(model, blocks) if unit.weight is not None and unit.weight.dim() == 2]
    embeddings = [inner.num_embeddings for inner in model.modules() if isinstance(inner, nn.Embedding)]
    named = [value for value in attribute(model, "V") if any(value in table.shape for table in tables)]
    vocabularies = list(dict.fromkeys([*named, *embeddings, *(table.shape[0] for table in tables)]))[:3]
    for V in vocabularies:
        D = next(table.shape[1] for table in tables if table.shape[0] == V)
        rows = [table.shape[0] for table in tables if table.shape[0] != V and table.shape[1] == D]
        lengths = [*rows[:1], *attribute(model, "T"), 11]
        for H in heads(model, target, D) if attribute(model, "H") else heads(blocks[0], target, D):
            for d in head_widths(blocks[0], target, D, H)[:2]:
                for W in hidden_widths(blocks[0], D):
                    yield {**target.sizes, "V": V, "D": D, "C": lengths[0], "H": H, "G": H, "d": d, "e": d, "W": W,
                           "L": len(blocks)}  # fmt: skip


def model_calls(model: Any, target: Target, sizes: Sizes) -> Iterator[Call]:
    """The ways to call a model with ids. Raises CannotCall."""
    listed = parameters_of(model)
    if not listed:
        raise CannotCall("its forward takes nothing; expected the ids")
    given = targets_argument(model)
    others = [entry for entry in listed[1:] if entry.name != given]
    fixed = fixed_arguments(others, target)
    needed = any(entry.name == given and entry.default is inspect.Parameter.empty for entry in listed)
    masks = [entry for entry in others if is_mask(entry)]
    short = bool(given) and not needed and only_last(model, listed[0].name, given)
    note = "without targets it returns the last position's logits only" if short else ""
    for mask in mask_forms(masks, target):
        yield model_call(listed[0].name, (given, needed or short), fixed, mask, sizes["V"], note)


def only_last(model: Any, first: str, given: str) -> bool:
    """Whether a model returns all logits with targets, and the last position's only without."""
    ids = torch.zeros(2, 3, dtype=torch.long)  # (2, 3)
    try:
        without, with_targets = (tensors(model(**{first: ids, **more}))[0] for more in ({}, {given: ids}))
    except Exception:  # the learner's code may raise anything
        return False
    return without.numel() * 3 == with_targets.numel()


def model_call(first: str, given: tuple[str, bool], fixed: Mapping[str, Any], mask: tuple[str, str, str] | None,
               V: int, note: str) -> Call:  # fmt: skip
    """A call of a model with ids as `first`; `given`: the name of the targets, and whether they are always passed."""
    name, always = given

    def run(model: Any, probe: Probe) -> Tensor:
        ids = probe.inputs["ids"].clone()  # (B, T)
        B, T = ids.shape
        arguments: dict[str, Any] = {first: ids, **fixed}
        if mask:
            arguments[mask[0]] = make_mask(mask[1], mask[2], B, T, T, 0, False)
        if probe.name.startswith("the loss") and name:
            arguments[name] = probe.inputs.get("targets", ids).clone()
        elif name and always:
            arguments[name] = ids.roll(-1, dims=1)
        found = tensors(model(**arguments))
        if probe.name.startswith("the loss"):
            return the_loss(found, B, T, V)
        return the_logits(found, B, T, V)

    shown = "".join(f", {key}={value}" for key, value in fixed.items())
    shown += f", {name}=..." if name and always else ""
    shown += f", {mask[0]}={mask[2]}, {mask[1]}" if mask else ""
    return Call(f"called: ({first}=ids{shown})", run, note, "(B, T)", mask=mask[1] if mask else "")


def the_logits(found: list[Tensor], B: int, T: int, V: int) -> Tensor:
    """The logits (B, T, V) among what a model returned; (B T, V) is unflattened, (B, V) is one position.

    Raises TypeError if there are none.
    """
    logits = next((x for x in found if x.dim() >= 2), None)
    if logits is None:
        raise TypeError("no logits were returned, expected (B, T, V)")
    if logits.dim() == 2 and logits.shape[-1] == V:
        return logits.view(B, T, V) if len(logits) == B * T else logits[:, None]
    return logits.detach()


def the_loss(found: list[Tensor], B: int, T: int, V: int) -> Tensor:
    """The loss among what a model returned: a scalar, or one for every pair (N,). Raises TypeError."""
    losses = [x for x in found if x.numel() == 1] or [x for x in found if x.numel() in (B * T, B * (T - 1))]
    if not losses:
        raise TypeError("no loss was returned")
    flat = losses[-1].detach().flatten()
    return flat[0] if len(flat) == 1 else flat


def model_bindings(model: nn.Module, target: Target, sizes: Sizes, matters: Callable[[Unit], bool]) -> list[Binding]:
    """The ways to assign roles to all parameters of a model."""
    blocks = blocks_of(model)
    outer = outer_units(model, blocks)
    around = bindings(outer, gpt.OUTER, sizes, {unit.name for unit in outer if not matters(unit)})
    roles = (*block.ROLES, *(role for role in target.roles if role is mlp.GATE))
    inner = inner_bindings(blocks, roles, sizes, matters)
    shared = len({id(module) for module in blocks}) < len(blocks)
    fault = ((f"all {len(blocks)} layers are one and the same block: they share their weights",
              "nn.ModuleList(Block(...) for _ in range(n_layer)): a new block for every layer"),)  # fmt: skip
    found = []
    for first in around:
        for second in inner:
            how = [*first.how, *(() if "head" in first.parameters else ("head = token (tied)",)),
                   *(f"{entry}, in every block" for entry in second.how)]  # fmt: skip
            found.append(Binding({**first.parameters, **second.parameters}, how, (*first.missing, *second.missing),
                                 (*first.unused, *second.unused), fault if shared else ()))  # fmt: skip
    return found[:MOST]


def likely(expected: Expected, found: Sequence[Binding],
           working: Sequence[tuple[Call, Outputs]]) -> list[tuple[Binding, Call, Outputs]]:  # fmt: skip
    """The bindings and calls that are right for the shortest probe in some convention; [] if there are none.

    A block has many parameters, and so many bindings; one token distinguishes most of them at little cost.
    """
    probes, shortest = expected.probes, expected.shortest
    kept: dict[tuple[int, int], tuple[Binding, Call, Outputs]] = {}
    odd = [{"logits": "softmax"}, {"logits": "log softmax"}] if is_model(expected.target) else []
    for knobs in [*told_apart(expected, found[0], shortest), *odd]:
        if kept:
            break
        for i, binding in enumerate(found):
            right = expected.output(shortest, binding, knobs)
            for j, (call, outputs) in enumerate(working):
                if right is not None and equal(outputs[shortest], right, probes[shortest]):
                    kept[i, j] = (binding, call, outputs)
    return list(kept.values())[:MOST_LIKELY]


def told_apart(expected: Expected, binding: Binding, number: int) -> list[Knobs]:
    """The knobs of no and of single conventions whose outputs for a probe differ, with this binding."""
    seen, chosen = list[Tensor | None](), list[Knobs]()
    for knobs, conventions in bases(expected.target):
        if len(conventions) > 1:
            break
        output = expected.output(number, binding, knobs, alone=True)
        if not any(output is other or (output is not None and other is not None
                   and equal(output, other, expected.probes[number])) for other in seen):  # fmt: skip
            seen.append(output)
            chosen.append(knobs)
    return chosen


def inner_bindings(blocks: Sequence[nn.Module], roles: Sequence[Role], sizes: Sizes,
                   matters: Callable[[Unit], bool]) -> list[Binding]:  # fmt: skip
    """The ways to assign roles in the blocks, the same way in all; "query" of block 2 becomes "query.2"."""
    readings = [units_of(module, [sizes["H"]]) for module in blocks]  # a list of units for each reading, by block
    found = []
    for number in range(min(map(len, readings))):
        units = [reading[number] for reading in readings]
        used = [[unit.name for unit in own if matters(unit)] for own in units]
        idle = {unit.name for unit in units[0]} - {name for names in used for name in names}
        idle = set() if not any(used) else idle  # no block is used
        each = [bindings(own, roles, sizes, idle, block.without()) for own in units]
        for same in zip(*(options[:MOST_INNER] for options in each)):
            parameters = {renamed(role, i): value for i, binding in enumerate(same)
                          for role, value in binding.parameters.items()}  # fmt: skip
            found.append(Binding(parameters, same[0].how, same[0].missing, same[0].unused, same[0].faults))
    return sorted(found, key=lambda binding: len(binding.missing))


def renamed(role: str, number: int) -> str:
    """ "query_bias" of block 2 -> "query.2_bias"."""
    return f"{role[: -len('_bias')]}.{number}_bias" if role.endswith("_bias") else f"{role}.{number}"
