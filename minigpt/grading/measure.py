"""Measures a wrong answer from its outputs, where no known bug fits: the attention weights, and from them which token
sees which, the sums of the rows, and the factor of the scores.

The weights of a mean and of `attend` are the output for unit vectors. The weights of a module follow from its output by
the inverses of the output projection and of the values; both must be right, and there are at most d tokens.

B batch, H heads, T tokens, D model width, d width of a head.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

import torch
from torch import Tensor

from minigpt.grading.call import ALONE
from minigpt.grading.clock import Budget
from minigpt.grading.curve import measured_curve
from minigpt.grading.naming import SINGLES, Found, Reading, missing_bugs
from minigpt.grading.target import Bug, Knobs, Probe, Steps
from minigpt.grading.targets.rotation import frequencies
from minigpt.grading.targets.score_bugs import FILL

SMALL = 1e-9
AT_ONCE = "right at once"


def measure(reading: Reading) -> list[str]:
    """Sentences about a wrong answer whose bug has no name; [] if nothing is certain."""
    number = middle(reading)
    theirs = reading.outputs[number]
    if late := chunks_differ(reading, number):
        return [late, *facts_in_chunks(reading)]
    if isinstance(theirs, Exception):
        return []
    if mixing := depends(reading, number) or measured_curve(reading):
        return [mixing]
    if not theirs.isfinite().all():
        rows = sorted({int(place[1]) for place in (~theirs.isfinite()).nonzero()})
        shown = f"{'row' if len(rows) == 1 else 'rows'} {', '.join(map(str, rows))}"
        return [f"measured: {shown} of {theirs.shape[1]} are not finite (NaN or inf): a row sees no key, or overflows"]
    probe = reading.outputs.probes[number]
    right = reading.target.reference(probe, reading.binding.parameters, reading.sizes, {})
    weights = measured_weights(reading, probe, right)  # (B, H, T, T), (B, 1, T, T) or (B, T, T)
    if weights is None:
        return [said] if (said := sees_later(reading, number)) else []
    expected = right["weights"]
    weights = weights.view_as(expected) if weights.numel() == expected.numel() else weights
    if reading.target.options.rotary and (said := turning(reading, weights, right)):
        return [said]
    return weight_facts(weights, expected, right.get("products"))


def chunks_differ(reading: Reading, number: int) -> str:
    """A sentence: where the outputs in chunks differ first, if those at once are right; "" otherwise."""
    chunked = [n for n in reading.order() if reading.outputs.probes[n].chunks]
    if not chunked or not reading.agrees({}, number):
        return ""
    probe, theirs = reading.outputs.probes[chunked[0]], reading.outputs[chunked[0]]
    right = reading.target.output(probe, reading.binding.parameters, reading.sizes, {})  # (B, T, D)
    if isinstance(theirs, Exception) or theirs.shape != right.shape:
        return ""
    off = (theirs - right).abs().amax(dim=(0, 2)).nan_to_num(torch.inf) > 1e-7 * right.abs().max()  # (T,)
    if not off.any():
        return ""
    sizes, first = "+".join(map(str, probe.chunks)), int(off.nonzero()[0])
    return f"measured: {AT_ONCE}; in chunks of {sizes} tokens, with its cache, it differs from token {first} on"


def facts_in_chunks(reading: Reading) -> list[str]:
    """Sentences: what is wrong with the weights of an answer in chunks; [] if they cannot be measured."""
    number = next(n for n in reading.order() if reading.outputs.probes[n].chunks)
    probe, theirs = reading.outputs.probes[number], reading.outputs[number]
    whole = replace(probe, chunks=())
    right = reading.target.reference(whole, reading.binding.parameters, reading.sizes, {})
    if isinstance(theirs, Exception) or right["weights"].dim() != 4:
        return []
    weights = weights_of_module(reading, theirs, right)  # (B, H, T, T)
    return [] if weights is None else weight_facts(weights, right["weights"], None)


def depends(reading: Reading, number: int) -> str:
    """A sentence: which output changes with another token or sequence, but must not; "" if none does."""
    alone = reading.target.name in ALONE
    for b, s, moved in moves(reading, number):
        if alone and (row := moved[b].nonzero()).numel():
            t = int(row[0])
            return f"measured: the output of token {t} changes with token {s}: each token must be computed on its own"
        moved[b] = False
        if bool(moved.any()):
            return (
                f"measured: the outputs of sequence {int(moved.nonzero()[0, 0])} of the batch change with sequence {b}"
            )
    return ""


def sees_later(reading: Reading, number: int) -> str:
    """A sentence: which output changes with a later token; "" if none does, or the target has no mask."""
    for b, s, moved in moves(reading, number) if not reading.target.options.full else ():
        if bool(moved[b, :s].any()):
            return (
                f"measured: the output of token {int(moved[b].nonzero()[0])} changes with token {s}, which comes later"
            )
    return ""


def moves(reading: Reading, number: int) -> Iterator[tuple[int, int, Tensor]]:
    """Yields (b, s, which other outputs (B, T) change with token s of sequence b); nothing if there are more inputs."""
    probe, before = reading.outputs.probes[number], reading.outputs[number]
    if tuple(probe.inputs) != ("x",) or isinstance(before, Exception):
        return
    x = probe.inputs["x"]  # (B, T, D)
    for b, s in product(*map(range, x.shape[:2])):
        other = x.clone()  # (B, T, D)
        other[b, s] = other[b, s].flip(0) + 0.5
        after = reading.outputs.run(Probe(probe.name, {"x": other}))  # (B, T, D)
        if after.shape != before.shape or after.shape[:2] != x.shape[:2]:
            return
        moved = (after - before).abs().flatten(2).amax(dim=2) > SMALL  # (B, T)
        moved[b, s] = False
        yield b, s, moved


def middle(reading: Reading) -> int:
    """The number of the shortest probe with several tokens that is not given in chunks."""
    probes = reading.outputs.probes
    fitting = [n for n in reading.order() if reading.length(n) > 1 and not probes[n].optional and not probes[n].chunks]
    return fitting[0]


def measured_weights(reading: Reading, probe: Probe, right: Steps) -> Tensor | None:
    """The weights that the answer used; None if they cannot be measured."""
    names, theirs = reading.target.takes, reading.outputs.run(probe)
    if names == ("query", "key"):
        return theirs
    if names == ("query", "key", "value"):
        S = probe.inputs["key"].shape[1]
        units = torch.eye(S, dtype=torch.float64).expand(theirs.shape[0], S, S)
        weights = reading.outputs.run(Probe(probe.name, {**probe.inputs, "value": units}))
        return weights if fits(weights @ probe.inputs["value"], theirs) else None
    if reading.target.name == "running_mean":
        B, T, _ = probe.inputs["x"].shape
        weights = reading.outputs.run(Probe(probe.name, {"x": torch.eye(T, dtype=torch.float64).expand(B, T, T)}))
        return weights if fits(weights @ probe.inputs["x"], theirs) else None
    return weights_of_module(reading, theirs, right)


def weights_of_module(reading: Reading, theirs: Tensor, right: Steps) -> Tensor | None:
    """The weights (B, H, T, T) of a module whose values and output projection are right; None for any other."""
    parameters = reading.binding.parameters
    if not {"query", "key", "value", "output"} <= set(parameters):
        return None
    matrix = parameters["output"].flatten(1)  # (D, H d)
    mixed = mixed_of_module(reading, theirs, right)  # (B, H, T, d)
    if mixed is None:
        return None
    value = right["value"].repeat_interleave(mixed.shape[1] // right["value"].shape[1], dim=1)  # (B, H, T, d)
    if value.shape[2] > value.shape[3]:
        return None
    weights = mixed @ torch.linalg.pinv(value)  # (B, H, T, T)
    back = mixed.transpose(1, 2).flatten(2) @ matrix.mT + parameters.get("output_bias", 0.0)  # (B, T, D)
    return weights if fits(weights @ value, mixed) and fits(back, theirs) else None


def mixed_of_module(reading: Reading, theirs: Tensor, right: Steps) -> Tensor | None:
    """The outputs of the heads (B, H, T, d), from `theirs` (B, T, D) by inverting the projection, or None."""
    parameters = reading.binding.parameters
    matrix = parameters["output"].flatten(1)  # (D, H d)
    if matrix.shape[0] < matrix.shape[1] or theirs.shape != right["output"].shape:
        return None
    joined = theirs - parameters.get("output_bias", torch.zeros(len(matrix), dtype=matrix.dtype))  # (B, T, D)
    merged = joined @ torch.linalg.pinv(matrix).mT  # (B, T, H d)
    return merged.unflatten(2, right["mixed"].shape[1::2]).transpose(1, 2)  # (B, H, T, d)


def head_order(reading: Reading) -> tuple[int, ...]:
    """The order in which the projection reads the heads; () if it is the usual one, or if a head is wrong."""
    parameters, number = reading.binding.parameters, middle(reading)
    theirs, probe = reading.outputs[number], reading.outputs.probes[number]
    if "output" not in parameters or isinstance(theirs, Exception):
        return ()
    try:
        right = reading.target.reference(probe, parameters, reading.sizes, {})
    except (RuntimeError, KeyError):  # sizes that rotary cannot have, or a missing role
        return ()
    mixed = mixed_of_module(reading, theirs, right) if "mixed" in right else None  # (B, H, T, d)
    if mixed is None:
        return ()
    ours = right["mixed"].transpose(0, 1)  # (H, B, T, d)
    places = [[h for h, head in enumerate(ours) if fits(found, head)] for found in mixed.transpose(0, 1)]
    order = tuple(place[0] for place in places if len(place) == 1)
    return order if len(order) == len(ours) and order != tuple(range(len(ours))) else ()


def order_bug(order: tuple[int, ...]) -> Bug:
    """The bug for an order of the heads: a permutation is harmless, since it can be learned; a missing head is not."""
    shown = ", ".join(str(h + 1) for h in order)
    if len(set(order)) == len(order):
        sentence = f"the heads are joined in the order {shown}: the same up to the order of the projection's columns"
        return Bug({"head_order": order}, sentence, "", harmless=True)
    lost = ", ".join(str(h + 1) for h in range(len(order)) if h not in order)
    sentence = f"the projection reads the heads {shown}: head {lost} is never used, and another one twice"
    return Bug({"head_order": order}, sentence, "join every head once: torch.cat(heads, dim=-1)")


def fits(found: Tensor, expected: Tensor) -> bool:
    """Whether two tensors are equal up to rounding: then a measurement explains the output."""
    return found.shape == expected.shape and torch.allclose(found, expected, rtol=1e-7, atol=1e-9)


def weight_facts(weights: Tensor, expected: Tensor, products: Tensor | None) -> list[str]:
    """Sentences: what is wrong with weights (..., T, S); [] if nothing is found."""
    facts, sums = [], weights.sum(dim=-1)
    leaking = ((weights.abs() > SMALL) & (expected.abs() < SMALL)).nonzero()
    blind = ((weights.abs() < SMALL) & (expected.abs() > 1e-3)).nonzero()
    if len(leaking):
        t, s = (int(place) for place in leaking[0][-2:])
        value = float(weights[tuple(leaking[0])])
        facts.append(f"measured: token {t} gives weight {value:.4f} to token {s}, which it must not see")
    if len(blind):
        t, s = (int(place) for place in blind[0][-2:])
        whom = "itself" if s == t else f"token {s}, which it may see"
        facts.append(f"measured: token {t} gives no weight to {whom}")
    if not torch.allclose(sums, torch.ones_like(sums), rtol=0, atol=1e-7):
        first = sums.flatten(0, -2)[0]
        facts.append(
            f"measured: the rows of the weights sum to {', '.join(f'{v:.4f}' for v in first[:5])} instead of 1"
        )
    elif products is not None and not facts and (factor := scale_of(weights, expected, products)):
        root = f"1/sqrt({1 / factor**2:.4g})" if factor > 0 else "negative"
        facts.append(f"measured: the products of query and key are multiplied by {factor:.5g}, which is {root}")
    return facts


def filled(weights: Tensor, right: Steps) -> list[float]:
    """Likely numbers that the mask puts in the place of hidden scores, or adds to them, instead of -inf.

    They follow from the weights (..., T, S): the logarithms of a row of weights are its scores plus a constant.
    """
    scores, masked = right.get("scores"), right.get("masked scores")
    if scores is None or masked is None or scores.numel() != weights.numel():
        return []
    scores, hidden = scores.view_as(weights), masked.view_as(weights) == -torch.inf  # (..., T, S)
    logs = weights.clamp(min=1e-300).log() - scores  # (..., T, S)
    seen = logs.diagonal(dim1=-2, dim2=-1)[..., None]  # (..., T, 1)
    if float(weights.diagonal(dim1=-2, dim2=-1)[..., 0].max()) == 0:  # all weight is on later tokens
        return [10.0**n for n in range(3, 9)]
    added = (logs - seen)[hidden]
    instead = (logs + scores - seen)[hidden]
    found = [x.median() for x in (instead, added) if len(x) and fits(x, x.median().expand_as(x))]
    return [float(f"{float(value):.7g}") for value in found]


def fill_bugs(reading: Reading) -> list[Bug]:
    """The bugs of a mask whose number does not hide the scores fully, for the numbers that the weights show."""
    number = middle(reading)
    theirs, probe = reading.outputs[number], reading.outputs.probes[number]
    if isinstance(theirs, Exception) or not theirs.isfinite().all() or reading.target.options.full:
        return []
    try:
        right = reading.target.reference(probe, reading.binding.parameters, reading.sizes, {})
        weights = measured_weights(reading, probe, right)
    except (RuntimeError, KeyError, IndexError, ValueError):  # sizes that rotary cannot have, or a missing role
        return []
    bugs = list[Bug]()
    for value in filled(weights, right) if weights is not None else []:
        d = reading.sizes["d"] ** 0.5
        before = float(f"{value * d:.7g}")  # if the scores are divided after the mask
        ways: list[tuple[float, Knobs]] = [(value, {}), (before, {"scale_at": "after_mask"})]
        for number_, more in sorted(ways, key=lambda way: len(f"{way[0]:g}")):
            for how, words in (("fill", "become"), ("add", "get only")):
                knobs = {"fill": number_, "hide": how, **more}
                bugs.append(Bug(knobs, f"hidden scores {words} {number_:g}, not -inf: the tokens after a position keep "
                                "weight", FILL))  # fmt: skip
    return bugs


def by_measuring(natural: Sequence[Sequence[Reading]]) -> Found | None:
    """A bug that needs a measurement: heads in another order or used twice, the number in a mask. None if not found."""
    for reading in [reading for readings in natural for reading in readings if not missing_bugs(reading)]:
        order = head_order(reading)
        for bug in [order_bug(order)] if order else fill_bugs(reading):
            alone = replace(reading, budget=Budget(SINGLES, reading.budget.clock))
            if alone.equals(bug.knobs):
                return Found(alone, bug.knobs, [bug])
    return None


def turning(reading: Reading, weights: Tensor, right: Steps) -> str:
    """A sentence: by which angle each pair of features is rotated per position; "" if no angles explain the weights.

    The logarithms of the weights (B, H, T, T) of neighbours are linear in the cosines and sines of these angles.
    """
    d, T = reading.sizes["d"], weights.shape[-1]
    query, key = right["query"], right["key"].repeat_interleave(reading.sizes["H"] // reading.sizes["G"], dim=1)
    if not bool((weights.tril() + torch.ones_like(weights).triu(1) > 0).all()) or T < 3:
        return ""
    logs = weights.clamp(min=1e-300).log() * d**0.5  # (B, H, T, T)
    for first, second in ((slice(0, d, 2), slice(1, d, 2)), (slice(0, d // 2), slice(d // 2, d))):
        q, k = (torch.complex(x[..., first], x[..., second]) for x in (query, key))  # (B, H, T, n) each
        products = q[:, :, :, None] * k[:, :, None].conj()  # (B, H, T, T, n)
        own = products.real.sum(dim=-1).diagonal(dim1=-2, dim2=-1)  # (B, H, T)
        one, two = (
            (logs.diagonal(-far, -2, -1) - logs.diagonal(0, -2, -1)[..., far:] + own[..., far:]).flatten()
            for far in (1, 2)
        )  # the scores of tokens one and two positions apart, from the weights
        near, next_ = (products.diagonal(-far, 2, 3).mT.flatten(0, 2) for far in (1, 2))  # (N, n) each
        found = torch.linalg.lstsq(torch.cat((near.real, -near.imag), dim=-1), one[:, None]).solution[:, 0]  # (2 n,)
        angles = torch.atan2(*found.chunk(2)[::-1])  # (n,)
        if fits((next_ * torch.polar(torch.ones_like(angles), 2 * angles)).real.sum(dim=-1), two):
            return said_of_angles(angles, frequencies("2i/d", d, d), d)
    return ""


def said_of_angles(angles: Tensor, expected: Tensor, d: int) -> str:
    """A sentence: the measured angles (n,) in radians, the right ones, and the base, if the angles have one."""
    theirs, ours = (", ".join(f"{value:.4g}" for value in row[:4].tolist()) for row in (angles, expected))
    more = ", ..." if len(angles) > 4 else ""
    base = float(angles[1]) ** (-d / 2) if len(angles) > 1 and angles[1] > 0 else 0.0
    regular = base > 0 and fits(base ** (-2 * torch.arange(len(angles), dtype=angles.dtype) / d), angles)
    which = f": the base is {base:.6g} instead of 10000" if regular else ""
    return f"measured: the pairs are rotated by {theirs}{more} per position, expected {ours}{more}{which}"


def scale_of(weights: Tensor, expected: Tensor, products: Tensor) -> float:
    """The factor of the products, from the logarithms of the weights; 0.0 if there is no single factor."""
    seen = expected > SMALL
    if not bool((weights[seen] > 0).all()) or weights.shape != products.shape:
        return 0.0
    logs = torch.where(seen, weights.clamp(min=1e-300).log(), 0.0)  # (..., T, S)
    scores = torch.where(seen, products, 0.0)
    count = seen.sum(dim=-1, keepdim=True)
    logs = torch.where(seen, logs - logs.sum(dim=-1, keepdim=True) / count, 0.0)
    scores = torch.where(seen, scores - scores.sum(dim=-1, keepdim=True) / count, 0.0)
    factor = float((logs * scores).sum() / (scores**2).sum())
    if torch.allclose(weights, expected, rtol=1e-6, atol=1e-9):
        return 0.0  # they are right
    return factor if torch.allclose(logs, factor * scores, rtol=1e-6, atol=1e-7) else 0.0
