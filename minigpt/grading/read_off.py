"""Reads properties of a module before it is compared: its blocks, its activation, its norms, a gate, post-norm.

Otherwise each property would be one more convention to try, and there would be too many combinations.

D model width, W width of the MLP's hidden layer.
"""

from __future__ import annotations

import ast
import inspect
import math
import re
import sys
from dataclasses import replace
from functools import partial
from itertools import permutations, product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minigpt.grading.probes import numbers
from minigpt.grading.sizes import matrices
from minigpt.grading.target import Bug, Convention, Knobs, Parameters, Probe, Reference, Sizes, Steps, Target
from minigpt.grading.targets import block, gpt, mlp
from minigpt.grading.targets.norm import normalised
from minigpt.grading.targets.score_bugs import FILL

FEWEST = 4  # the fewest matrices in a block: query, key and value joined, an output projection, two of an MLP
LEAST_HIDDEN, MOST_HIDDEN, ENOUGH = 5, 1e8, -1e4  # fills from -MOST_HIDDEN to -5 are tried; -1e4 or less hides
GEMMA = "the weight of the norms is kept around zero: 1 + weight multiplies, as in Gemma"
MOST_VALUES, LONGEST = 3, 12  # numbers of a file that are tried; length of a string that may be one
EPSILONS = ("eps", "epsilon", "variance_epsilon")


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The blocks of a model in order; a block that is used in several layers is listed several times. [] if none."""

    def wide(module: nn.Module | None) -> bool:
        return module is not None and sum(p.dim() >= 2 for p in module.parameters()) >= FEWEST

    for inner in model.modules():
        if isinstance(inner, (nn.ModuleList, nn.Sequential)):
            listed = [child for child in inner._modules.values() if child is not None]
            if listed and all(wide(child) for child in listed):
                return listed
    for inner in model.modules():
        for first in inner.children():
            alike = [child for child in inner._modules.values() if type(child) is type(first) and child is not None]
            embeds = any(isinstance(part, nn.Embedding) for part in first.modules())
            if len(alike) > 1 and wide(first) and not embeds:
                return alike
    return []


def settle(thing: Any, target: Target, settled: list[Convention]) -> Target:
    """The target with the conventions that can be read from a module: its activation, its norms, their epsilon.

    They are also appended to `settled`.
    """
    if not isinstance(thing, nn.Module) or target.name not in ("block", "gpt", "mlp", "norm"):
        return target
    if target.name != "norm" and gated(thing):
        kind, gates = gate(thing), mlp.gate_conventions()
        settled += [one for one in gates if one.knobs == {"gated": kind}]
        others = [one for one in gates if one.knobs != {"gated": kind}]
        target = replace(target, roles=(*target.roles, mlp.GATE), conventions=[*others, *target.conventions],
                         bugs=[*target.bugs, *mlp.gate_bugs()])  # fmt: skip
    options = {convention.knobs.get("activation"): convention for convention in target.conventions}
    if (word := activation(thing)) in options:
        settled.append(options[word])
    norms = [inner for inner in thing.modules() if "norm" in type(inner).__name__.lower() or norm_behaviour(inner)[0]]
    if target.name != "mlp" and norms:
        if all("rms" in type(inner).__name__.lower() for inner in norms):
            settled += [convention for convention in target.conventions if convention.knobs == {"norm": "rms"}]
        seen = [behaviour for inner in norms for behaviour in [norm_behaviour(inner)]]
        if {kind for kind, _ in seen} == {"rms, gain around zero"}:
            settled.append(Convention({"gain around zero": True}, GEMMA))
            seen = [("rms", eps) for _, eps in seen]
        if {kind for kind, _ in seen} == {"rms"}:
            settled += [one for one in target.conventions if one.knobs == {"norm": "rms"} and one not in settled]
        found = {value for inner in norms for value in epsilons(inner)} or {eps for _, eps in seen}
        if len(found) == 1 and 0 < (eps := found.pop()) <= 1e-4 and eps != 1e-5:
            settled.append(Convention({"eps": eps}, f"the norm's epsilon is {eps:.1g}; nn.LayerNorm's is 1e-5"))
    settled += [one for one in target.conventions if one.knobs.get("positions") in kept_sines(thing)]
    settled += [one for one in target.conventions if one.knobs == {"tokens": "sqrt(D)"} and scales_tokens(thing)]
    layers = [inner for inner in thing.modules() if isinstance(inner, nn.TransformerEncoderLayer)]
    if layers and not any(inner.norm_first for inner in layers):
        inside = {id(norm) for inner in layers for norm in inner.modules()}
        bare = target.name == "gpt" and all(id(norm) in inside for norm in norms)  # no norm before the head
        knobs = {**block.POST.knobs, "final": "none"} if bare else block.POST.knobs
        settled += [one for one in target.conventions if one.knobs == knobs]
    assumed = {name: value for convention in settled for name, value in convention.knobs.items()}
    left = [convention for convention in target.conventions if convention not in settled]
    reference = partial(assume, target.reference, assumed)
    return replace(target, reference=reference, conventions=left, settled=settled) if settled else target


def scales_tokens(model: nn.Module) -> bool:
    """Whether the first block reads token embeddings times sqrt(D), plus a term that depends on the position only."""
    blocks, tables = blocks_of(model), [one for one in model.modules() if isinstance(one, nn.Embedding)]
    given = list[Tensor]()
    if not blocks or not tables:
        return False
    table = max(tables, key=lambda one: one is tables[0]).weight  # (V, D)
    hook = blocks[0].register_forward_pre_hook(lambda _, inputs: given.append(inputs[0].detach()))
    ids = torch.tensor([[0, 1], [1, 1]])  # (2, 2)
    try:
        model(ids)
        model(ids.flip(1))
    except Exception:  # the learner's code may raise anything
        return False
    finally:
        hook.remove()
    if len(given) != 2 or given[0].shape != given[1].shape or given[0].shape[-1] != table.shape[1]:
        return False
    change = (table[ids] - table[ids.flip(1)]) * table.shape[1] ** 0.5  # (2, 2, D)
    return given[0].shape == change.shape and torch.allclose(given[0] - given[1], change, rtol=1e-6, atol=1e-9)


def kept_sines(thing: nn.Module) -> list[str]:
    """The kind of the table of sines and cosines that a module keeps for positions, in a list; [] if it keeps none."""
    kept = [value for inner in thing.modules() for value in (*inner._buffers.values(), *vars(inner).values())]
    tables = [value.squeeze().double() for value in kept if isinstance(value, Tensor) and value.is_floating_point()]
    return [
        kind
        for kind in ("sines by turns", "sines in halves")
        for table in tables
        if table.dim() == 2
        and table.shape[1] % 2 == 0 and len(table) > 1
        and torch.allclose(table[:8], gpt.sinusoids(len(table[:8]), table.shape[1], kind), rtol=1e-5, atol=1e-5)
    ][:1]  # fmt: skip


def activation(thing: nn.Module) -> str:
    """The activation of a module, from its layers or the source of its classes; "gelu" if they do not say it."""
    parts = [inner for inner in thing.modules() if not type(inner).__module__.startswith("torch.")]
    text = "".join(source(type(inner)) for inner in parts)
    kinds = {type(inner) for inner in thing.modules()}
    if "tanh" in text or any(isinstance(inner, nn.GELU) and inner.approximate == "tanh" for inner in thing.modules()):
        return "tanh gelu"
    given = {getattr(inner, "activation", None) for inner in thing.modules()}  # of nn.TransformerEncoderLayer
    if F.relu in given:
        return "relu"
    relu = nn.ReLU in kinds or re.search(r"\brelu\b", text) is not None
    return "relu" if relu and nn.GELU not in kinds and "gelu" not in text.lower() else "gelu"


def with_hidden_values(thing: Any, target: Target) -> Target:
    """The target with the finite numbers that the answer's file may use to hide scores.

    -10000, as in BERT, hides every score that occurs: a convention. A number nearer to zero is a bug.
    """
    if target.takes == ("ids",) or target.options.full or not any("fill" in bug.knobs for bug in target.bugs):
        return target
    conventions, bugs = list(target.conventions), list(target.bugs)
    d = target.sizes.get("d", 1)
    for value in hidden_values(thing):
        for early in (False, True):
            hides = [{"fill": value, **how, **({"scale_at": "after_mask"} if early else {})}
                     for how in ({}, {"hide": "add"})]  # fmt: skip
            if value / (math.sqrt(d) if early else 1) <= ENOUGH:
                conventions += [Convention(knobs, f"hidden scores become {value:g} instead of -inf: enough, as long as "
                                           "all scores stay far above that") for knobs in hides
                                if all(knobs != one.knobs for one in conventions)]  # fmt: skip
            elif not any(knobs == hides[0] for bug in bugs for knobs in bug.settings()):
                bugs.append(Bug(hides[0], f"hidden scores become {value:g}: too little, where scores are large the "
                                "future leaks", FILL, (hides[1],)))  # fmt: skip
    return replace(target, conventions=conventions, bugs=bugs)


def hidden_values(thing: Any) -> list[float]:
    """The numbers from -1e8 to -5 in the file of an answer; -1e4 and -1e5 if it cannot be read."""
    thing = getattr(thing, "function", thing)
    module = sys.modules.get(getattr(thing, "__module__", "") or "")
    try:
        tree = ast.parse(inspect.getsource(module)) if module else None
    except (OSError, TypeError, SyntaxError):
        tree = None
    if tree is None or module is None or module.__name__ == "__main__":  # a notebook's cells
        return [-1e4, -1e5]
    found = dict[float, None]()
    for node in ast.walk(tree):
        negative = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
        taken = node.right if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) else node
        written = isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < LONGEST
        for part in [taken] if negative or written else ast.walk(taken) if taken is not node else ():
            value = number_of(part)
            value = -abs(value) if taken is not node else value
            if -MOST_HIDDEN < value <= -LEAST_HIDDEN:
                found[value] = None
    return sorted(found)[:MOST_VALUES]


def number_of(node: ast.AST) -> float:
    """The value of an expression of constants, such as -2**15 or "-1e5"; 0.0 for any other expression."""
    plain = (ast.Constant, ast.UnaryOp, ast.USub, ast.BinOp, ast.Pow, ast.Mult, ast.Add, ast.Sub)
    if not isinstance(node, ast.expr) or not all(isinstance(part, plain) for part in ast.walk(node)):
        return 0.0
    powers = [part for part in ast.walk(node) if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Pow)]
    if any(not isinstance(part.right, ast.Constant) or part.right.value not in range(100) for part in powers):
        return 0.0  # 10**100000 takes long
    try:
        return float(eval(compile(ast.Expression(node), "<number>", "eval"), {"__builtins__": {}}))
    except (ValueError, TypeError, ArithmeticError):
        return 0.0


def gate(thing: nn.Module) -> str:
    """The activation of a gate, from the source: SiLU if it names SiLU, a sigmoid (perhaps part of SiLU) or nothing."""
    parts = [inner for inner in thing.modules() if not type(inner).__module__.startswith("torch.")]
    text = "".join([source(type(inner)) for inner in parts] + [repr(thing)]).lower()
    if re.search("silu|swish|sigmoid", text):
        return "silu"
    return "gelu" if "gelu" in text else "relu" if re.search(r"\brelu\b", text) else "silu"


def source(kind: type) -> str:
    """The source of a class, "" where there is none."""
    try:
        return inspect.getsource(kind)
    except (OSError, TypeError):
        return ""


def assume(reference: Reference, assumed: Knobs, probe: Probe, parameters: Parameters, sizes: Sizes,
           knobs: Knobs) -> Steps:  # fmt: skip
    """The reference with the `assumed` knobs, where `knobs` does not set them."""
    return reference(probe, parameters, sizes, {**assumed, **knobs})


def epsilons(norm: nn.Module) -> list[float]:
    """The epsilons that a norm stores; for the None of nn.RMSNorm, the machine epsilon of float64."""
    if isinstance(norm, nn.RMSNorm) and norm.eps is None:
        return [torch.finfo(torch.float64).eps]
    return [value for name in EPSILONS if isinstance(value := getattr(norm, name, None), float)]


def norm_behaviour(norm: nn.Module) -> tuple[str, float]:
    """What a norm that the learner wrote computes, such as ("rms", 1e-6); ("", 0.0) if it is no known norm."""
    vectors = [one.detach() for one in norm.parameters()]
    if type(norm).__module__.startswith("torch.") or not vectors or any(one.dim() != 1 for one in vectors):
        return "", 0.0
    x = 0.01 * numbers(1, 4, len(vectors[0]), seed=5)  # (1, 4, D): small, so that epsilon counts
    try:
        y = norm(x)
    except Exception:  # the learner's code may raise anything
        return "", 0.0
    for kind, eps in product(("layer", "rms"), (1e-5, 1e-6, 1e-8, 1e-12)):
        flat = normalised(x, kind, eps)  # (1, 4, D)
        for gain, *bias in permutations(vectors):
            if torch.allclose(y.double(), flat * gain + (bias[0] if bias else 0.0), rtol=1e-5, atol=1e-9):
                return kind, eps
            if torch.allclose(y.double(), flat * (1 + gain) + (bias[0] if bias else 0.0), rtol=1e-5, atol=1e-9):
                return f"{kind}, gain around zero", eps
    return "", 0.0


def gated(thing: nn.Module) -> bool:
    """Whether the MLP has two matrices (W, D) and one (D, W); the two may be joined, also with an attention's."""
    first = (blocks_of(thing) or [thing])[0]
    shapes = [shape for shape in matrices(first) if len(shape) == 2]
    apart = any(n != m and shapes.count((n, m)) == 2 and shapes.count((m, n)) == 1 for n, m in shapes)
    joined = any(n == 3 * m + 2 * (k - m) and k > 2 * m for n, m in shapes for D, k in shapes if m == D)
    return apart or joined or any(n in (2 * k, 3 * m + 2 * k) and shapes.count((m, k)) == 1 and k != m
                                  for n, m in shapes for _, k in shapes)  # fmt: skip
