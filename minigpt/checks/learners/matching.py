"""Which of a learner's numbers a parameter of a kind can be: a whole parameter, transposed, a part of a fused one, or
several together. Names order what is tried, and numbers decide (`kinds.py`).

B batch, T positions, D model width, H heads, R rows of a matrix.
"""

from __future__ import annotations

import inspect
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, reduce
from itertools import islice, permutations
from operator import or_
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from minigpt.attention import Attention

Run = Callable[[Tensor], Tensor]
FIRST, PROBES = 11, (1, 3, 11, 40)  # tokens of the texts
WORDS = {  # what learners call the parameters of the kinds
    "query": "q|queries|c", "key": "k|keys|b", "value": "v|values|x",
    "project": "o|out|proj|projection|output|c_proj|p|merge", "gate": "g|gate|gates|z",
    "write": "b|beta|betas|strength", "forget": "f|a|fg|forget|forget_gate|alpha|decay|dt|gk|fgate|gk1",
    "rate": "a_log|a|rate|log_a|log_rate", "step": "dt|delta|step|dt_proj", "input": "i|ig|input|input_gate|igate",
    "down": "down|0|a|low", "up": "up|1|b|high", "sink": "sinks?", "offset": "bias|offset|b",
    "sharpness": "scale|tau|temperature|g", "before": "pre|before|l|logits", "after": "post|after|w|weights",
    "other_query": "q2|other", "other_key": "k2|other",
    "latent": "kv_a|kv_down|down|latent|dkv|kv_a_proj_with_mqa|compress", "direction": "w|direction",
    "strength": "b|beta", "table": "table|r|w2", "skip": "d|skip", "level": "l|level|lambda",
    "index_query": "idx_q|iq", "index_key": "idx_k|ik",
}  # fmt: skip
ORDER = ("query", "other_query", "key", "other_key", "value", "gate")  # of the parts of a fused layer


@dataclass
class Learner:
    """A learner's program: its numbers on the probes, and its parameters."""

    run: Run
    module: nn.Module
    D: int
    numbers: dict[str, float] = field(default_factory=dict)
    """The numbers that its file gives to its constructor, that it keeps, and that stand in its code, by name."""
    flat: Tensor = field(init=False)
    """All numbers of all parameters, then 0 and 1."""
    ids: dict[str, Tensor] = field(init=False)
    """Where each parameter stands in `flat`, and each list of equal parameters."""
    answers: dict[int, Tensor] = field(default_factory=dict)
    named_options: set[str] = field(default_factory=set)
    """The options of a kind that its names tell."""
    known: dict[Any, dict[str, list[Choice]]] = field(default_factory=dict)
    """What the layers of kinds can be, by their shapes."""

    def __post_init__(self) -> None:
        listed = dict(self.module.named_parameters())
        last = torch.tensor([0.0, 1.0], dtype=torch.float64)
        self.flat = torch.cat([*(one.detach().double().flatten() for one in listed.values()), last])
        places = torch.arange(len(self.flat)).split([*(one.numel() for one in listed.values()), 2])
        self.ids = {name: place.view(one.shape) for (name, one), place in zip(listed.items(), places)}
        layers = [name for name, one in self.module.named_modules() if isinstance(one, nn.Linear)]
        self.linear = {f"{name}.weight".removeprefix(".") for name in layers}
        lists: dict[str, list[str]] = {}
        for name in listed:
            if re.search(r"(^|\.)\d+(\.|$)", name):
                lists.setdefault(re.sub(r"(^|\.)\d+(?=\.|$)", r"\1", name, count=1), []).append(name)
        for name, names in lists.items():
            if len(names) > 1 and len({self.ids[one].shape for one in names}) == 1:
                self.ids[name.replace("..", ".").strip(".")] = torch.stack([self.ids[one] for one in names])

        parts = [one for one in self.module.modules() if not isinstance(one, nn.Linear | nn.Dropout)]
        attributes = [*map(vars, parts), *(getattr(vars(one).get("config"), "__dict__", {}) for one in parts)]
        numbers = {n: v for part in attributes for n, v in part.items() if type(v) in (int, float)}
        self.numbers = dict(self.numbers) | numbers
        with suppress(OSError, TypeError):  # what has no source
            for number in re.findall(r"(?<![\w.])\d+\.?\d*(?:e-?\d+)?(?![\w.])", inspect.getsource(type(self.module))):
                self.numbers[f"the number {number}"] = float(number)

    def matrices(self) -> int:
        """How many numbers its matrices have."""
        return sum(one.numel() for one in self.module.parameters() if one.dim() > 1 and min(one.shape) > 1)

    def unused(self) -> str:
        """The first parameter on which the output does not depend. A bias may have no effect, as that of the keys."""
        for name, parameter in self.module.named_parameters():
            if "bias" not in name and parameter.requires_grad:
                parameter.add_(1.0)
                changed = float(differences(self.run(probe(FIRST, self.D)).double(), self.answers[FIRST]).max())
                parameter.sub_(1.0)
                if changed < 1e-12:
                    return name
        return ""


def probe(T: int, D: int, size: float = 1.0) -> Tensor:
    """Texts of their own for each length: (2, T, D); more of one token, whose output may be little more than signs."""
    return torch.randn(8 if T == 1 else 2, T, D, dtype=torch.float64, generator=torch.Generator().manual_seed(T)) * size


def differences(y: Tensor, other: Tensor) -> Tensor:
    """How far two outputs (B, T, D) are from one another at each token, in units of their largest number: (B, T)."""
    if y.shape != other.shape:
        return torch.full(other.shape[:2], math.inf)
    both = y.isnan() & other.isnan()
    size = other.nan_to_num(0.0, 0.0, 0.0).abs().max().clamp(min=1e-300)
    return ((y - other).abs() / size).masked_fill(both, 0.0).nan_to_num(math.inf).amax(-1)


# ---- which of the learner's numbers a parameter of the kind can be ----


AFFIXES = r"^(w|to|c|my|linear|lin|layer|fc)_?(?=.)|_?(proj|projection|layer|linear|w|weight|matrix)$"


@cache
def fits(role: str, name: str) -> int:
    """How badly a learner's name fits a role: 0 well, 1 it says nothing, 3 it says something else."""
    parts = [part for part in name.lower().split(".") if part not in ("weight", "bias", "")]
    word = re.sub(AFFIXES, "", parts[-1]) if parts else ""
    spellings = {*parts[-2:], word, re.sub(r"^w_?|_?w$", "", word)} - {""}
    if any(re.fullmatch(f"{WORDS.get(role, role)}|{role}|{role}s|{role.replace('_', '')}", one) for one in spellings):
        return 0
    others = any(re.fullmatch(words, one) for other, words in WORDS.items() if other != role for one in spellings)
    return 3 if others and "qkv" not in name and "kv" not in spellings else 1


def matrices(ids: Tensor, is_linear: bool) -> Iterator[tuple[int, Tensor, str]]:
    """A parameter as matrices (out, in): (cost, where its numbers stand, how)."""
    if ids.dim() == 2:
        yield (0, ids, "") if is_linear else (0, ids.T, "transposed")
        if not is_linear:
            yield 1, ids, ""
    elif ids.dim() in (3, 4):
        for cost, order in enumerate(permutations(range(ids.dim()))):
            moved = ids.permute(order)
            yield 1 + (cost > 1), moved.flatten(0, -2), "by head"
            if ids.dim() == 3:
                yield 2, moved.flatten(1), "by head"


def rows_of(ids: Tensor, R: int, H: int, role: str) -> Iterator[tuple[int, Tensor, str]]:
    """R rows of a fused layer (A, ...): a part from any start, or the same of each head."""
    A, rank = len(ids), ORDER.index(role) if role in ORDER else -1
    if A == R:
        yield 0, ids, ""
        if H > 1 and R % H == 0 and R > H:
            yield 4, ids.unflatten(0, (R // H, H)).transpose(0, 1).flatten(0, 1), "features before heads"
        return
    if A < R:
        return
    m = A // R
    wanted = {2: {"key": 0, "value": 1}, 3: {"query": 0, "key": 1, "value": 2}}.get(m, {}).get(role, rank)
    starts = dict.fromkeys((*range(0, A - R + 1, R), A - R, *([A - 2 * R] if A >= 2 * R else [])))
    for place, start in enumerate(starts):
        yield abs(place - wanted) if rank >= 0 else place, ids[start : start + R], f"part {place + 1} of a fused layer"
    if H > 1 and A % H == 0 and R % H == 0:
        heads, r = ids.unflatten(0, (H, A // H)), R // H
        for place, start in enumerate(dict.fromkeys((*range(0, A // H - r + 1, r), A // H - r))):
            cost = 1 + (abs(place - wanted) if rank >= 0 else place)
            yield cost, heads[:, start : start + r].flatten(0, 1), f"part {place + 1} of each head of a fused layer"
            if (A // H) % r == 0:
                yield cost + 2, ids.unflatten(0, (H, r, -1))[:, :, place].flatten(0, 1), "fused, features before parts"


@dataclass
class Choice:
    """What a layer of the kind can be: where the numbers of its parameters stand in the learner's."""

    cost: int
    ids: Mapping[str, Tensor]
    how: str = ""
    mask: int = -1

    def taken(self, N: int) -> int:
        """The places that it takes, as the bits of a number; 0 and 1, the last two, may be taken again."""
        if self.mask < 0:
            used = np.zeros(N, dtype=bool)
            for ids in self.ids.values():
                used[ids.numpy().ravel()] = True
            used[-2:] = False
            self.mask = int.from_bytes(np.packbits(used).tobytes(), "big")
        return self.mask


def choices(kind: Attention, learner: Learner, H: int) -> dict[str, list[Choice]]:
    """For each layer of the kind all that it can be, the likeliest first."""
    layers: dict[str, dict[str, Tensor]] = {}
    for name, parameter in kind.named_parameters():
        prefix, _, last = name.rpartition(".")
        layers.setdefault(prefix if last in ("weight", "bias") and prefix else name, {})[name] = parameter
    return {layer: sorted(of_layer(layer, parameters, learner, H), key=lambda one: one.cost)[:60]
            for layer, parameters in layers.items()}  # fmt: skip


def blocks(learner: Learner, C: int, role: str, biased: bool) -> Iterator[tuple[int, str, Tensor, str]]:
    """The learner's matrices with C columns, with one more for its bias: cost, name, rows (A, C + 1), how."""
    zero, layers = len(learner.flat) - 2, {name.removesuffix("weight") + "bias" for name in learner.linear}
    single = [(name, ids.flatten()) for name, ids in learner.ids.items() if ids.squeeze().dim() <= 1]
    for name, ids in learner.ids.items():
        own = learner.ids.get(name.removesuffix("weight") + "bias", ids)
        for cost, matrix, how in matrices(ids, name in learner.linear):
            if matrix.shape[1] != C:
                continue
            biases = [(int(biased), torch.full(matrix.shape[:1], zero))]
            if biased and own is not ids and own.numel() == len(matrix):
                biases = [(0, own.flatten())]
            elif biased:
                biases[:0] = [(0 if not fits(role, re.sub("_?bias", "", other)) else 2 if "bias" in other else 5, one)
                              for other, one in single
                              if len(one) == len(matrix) and other not in layers][:6]  # fmt: skip
            for more, bias in biases:
                yield cost + more, name, torch.cat([matrix, bias[:, None]], 1), how


def of_layer(layer: str, parameters: dict[str, Tensor], learner: Learner, H: int) -> Iterator[Choice]:
    """The choices for a layer, or for a parameter by itself."""
    role, zero = layer.rpartition(".")[2], len(learner.flat) - 2
    role = layer.split(".")[0] if role in ("weight", "features", "heads") else role
    main, *others = parameters
    shape, is_matrix = parameters[main].shape, parameters[main].dim() == 2 and min(parameters[main].shape) > 1

    def choice(cost: int, rows: Tensor, *how: str) -> Choice:  # rows (R, C + 1)
        return Choice(cost, {main: rows[:, :-1]} | dict.fromkeys(others, rows[:, -1]), ", ".join(filter(None, how)))

    listed = list(blocks(learner, shape[1], role, bool(others))) if len(shape) == 2 else []
    for cost, name, rows, how in listed:
        cost += 3 * fits(role, name)
        for more, part, which in rows_of(rows, shape[0], H, role):
            yield choice(cost + more, part, how, which)
        if role == "project" and len(rows) == shape[0] and H > 1:
            moved = rows[:, :-1].unflatten(1, (-1, H)).transpose(1, 2).flatten(1)
            yield choice(cost + 4, torch.cat([moved, rows[:, -1:]], 1), "features before heads")
    for name, ids in learner.ids.items() if not is_matrix else ():
        if ids.numel() >= math.prod(shape) and ids.squeeze().dim() <= max(1, len(shape)):
            flat = ids.flatten() if len(shape) == 1 else ids.squeeze()
            for more, rows, how in rows_of(flat, shape[0], H, role) if len(shape) == 1 else [(0, flat, "")]:
                if rows.numel() == math.prod(shape):
                    yield Choice(3 * fits(role, name) + more, {main: rows.reshape(shape)}, how)
    if is_matrix:  # several of them: one below the other, or head by head
        smaller = {(name, how): rows for _, name, rows, how in reversed(listed) if len(rows) < shape[0]}
        for count in (2, 3) if len(smaller) <= 8 else ():
            for places in permutations(smaller, count):
                parts, names = [smaller[place] for place in places], {name for name, _ in places}
                if sum(map(len, parts)) == shape[0] and len(names) == count:
                    cost = 4 + sum(3 * min(fits(role, name), 1) for name in names)
                    yield choice(cost, torch.cat(parts), "in parts")
                    if H > 1 and all(len(one) % H == 0 for one in parts):
                        by_head = torch.cat([one.unflatten(0, (H, -1)) for one in parts], 1).flatten(0, 1)
                        yield choice(cost, by_head, "in parts, by head")
    elif len(shape) > 1:
        vectors = [ids.flatten() for ids in learner.ids.values() if ids.squeeze().dim() <= 1]
        vectors = [one for one in vectors if len(one) == shape[-1]]
        for order in islice(permutations(vectors, math.prod(shape[:-1])), 24):
            yield Choice(4, {main: torch.stack(order).reshape(shape)}, "in parts")
    if role in ("project", "value") and len(shape) == 2 and shape[0] == shape[1]:
        eye = zero + torch.eye(shape[0], shape[0] + 1, dtype=torch.long)
        yield choice(30, eye, f"no {role}")
    if len(shape) < 2 or (not others and min(shape) == 1):
        yield Choice(12, {}, f"no {layer}" if "bias" not in main else "")


def assignments(layers: list[list[Choice]], budget: int, taken: int, N: int, end: float) -> Iterator[list[Choice]]:
    """A choice for each layer, no number twice, of this cost together; none after a time."""
    if not layers:
        yield []
        return
    least = sum(one[0].cost for one in layers[1:])
    for choice in layers[0]:
        if choice.cost + least > budget or time.process_time() > end:
            return
        if (len(layers) > 1 or choice.cost == budget) and not choice.taken(N) & taken:
            for rest in assignments(layers[1:], budget - choice.cost, taken | choice.taken(N), N, end):
                yield [choice, *rest]


def cheapest(layers: list[list[Choice]], assignment: Sequence[Choice], N: int, end: float) -> Iterator[list[Choice]]:
    """A choice for each layer, no number twice, none of the chosen ones' either, the likeliest first."""
    taken = reduce(or_, (choice.taken(N) for choice in assignment), 0)
    if all(layers):
        for budget in range(sum(one[0].cost for one in layers), sum(one[-1].cost for one in layers) + 1):
            yield from assignments(layers, budget, taken, N, end)
