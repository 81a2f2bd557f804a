"""What can be measured from outside, where no sentence fits: the weights themselves, and from them who sees whom, what
the rows sum to, and what the scores are multiplied by.

The weights of a mean and of `attend` are its output for unit vectors. Those of a module are found by undoing the output
projection and dividing by the values; that needs the way of the values to be right, and no more tokens than features.

B batch, H heads, T tokens, D model width, d width of a head.
"""

from __future__ import annotations

import torch
from torch import Tensor

from minigpt.grading.naming import Reading
from minigpt.grading.target import Probe, Steps

SMALL = 1e-9


def measure(reading: Reading) -> list[str]:
    """Facts about an answer that is wrong and has no name; none if nothing can be said for sure."""
    number = middle(reading)
    theirs = reading.outputs[number]
    if isinstance(theirs, Exception):
        return []
    if not theirs.isfinite().all():
        rows = sorted({int(place[1]) for place in (~theirs.isfinite()).nonzero()})
        shown = f"{'row' if len(rows) == 1 else 'rows'} {', '.join(map(str, rows))}"
        return [f"measured: {shown} of {theirs.shape[1]} are not finite (NaN or inf): a row sees no key, or overflows"]
    probe = reading.outputs.probes[number]
    right = reading.target.reference(probe, reading.binding.parameters, reading.sizes, {})
    weights = measured_weights(reading, probe, right)  # (B, H, T, T), (B, 1, T, T) or (B, T, T)
    if weights is None:
        return []
    expected = right["weights"]
    weights = weights.view_as(expected) if weights.numel() == expected.numel() else weights
    return weight_facts(weights, expected, right.get("products"))


def middle(reading: Reading) -> int:
    """The shortest probe with several tokens and all at once."""
    probes = reading.outputs.probes
    fitting = [n for n in reading.order() if reading.length(n) > 1 and not probes[n].optional and not probes[n].chunks]
    return fitting[0]


def measured_weights(reading: Reading, probe: Probe, right: Steps) -> Tensor | None:
    """The weights that the answer must have used; None where that cannot be said."""
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
    """The weights (B, H, T, T) of a module with heads whose values and output projection are right."""
    parameters = reading.binding.parameters
    if not {"query", "key", "value", "output"} <= set(parameters):
        return None
    matrix = parameters["output"].flatten(1)  # (D, H d)
    if matrix.shape[0] < matrix.shape[1]:
        return None
    joined = theirs - parameters.get("output_bias", torch.zeros(len(matrix), dtype=matrix.dtype))  # (B, T, D)
    merged = joined @ torch.linalg.pinv(matrix).mT  # (B, T, H d)
    mixed = merged.unflatten(2, right["mixed"].shape[1::2]).transpose(1, 2)  # (B, H, T, d)
    value = right["value"].repeat_interleave(mixed.shape[1] // right["value"].shape[1], dim=1)  # (B, H, T, d)
    if value.shape[2] > value.shape[3]:
        return None
    weights = mixed @ torch.linalg.pinv(value)  # (B, H, T, T)
    return weights if fits(weights @ value, mixed) and fits(merged @ matrix.mT, joined) else None


def fits(found: Tensor, expected: Tensor) -> bool:
    """Whether a measurement explains what was measured."""
    return found.shape == expected.shape and torch.allclose(found, expected, rtol=1e-7, atol=1e-9)


def weight_facts(weights: Tensor, expected: Tensor, products: Tensor | None) -> list[str]:
    """What is wrong with weights (..., T, S)."""
    facts, sums = [], weights.sum(dim=-1)
    leaking = ((weights.abs() > SMALL) & (expected.abs() < SMALL)).nonzero()
    blind = ((weights.abs() < SMALL) & (expected.abs() > 1e-3)).nonzero()
    if len(leaking):
        t, s = (int(place) for place in leaking[0][-2:])
        value = float(weights[tuple(leaking[0])])
        facts.append(f"measured: token {t} gives weight {value:.4f} to token {s}, which it must not see")
    if len(blind):
        t, s = (int(place) for place in blind[0][-2:])
        facts.append(f"measured: token {t} gives no weight to token {s}, which it may see")
    if not torch.allclose(sums, torch.ones_like(sums), rtol=0, atol=1e-7):
        first = sums.flatten(0, -2)[0]
        facts.append(
            f"measured: the rows of the weights sum to {', '.join(f'{v:.4f}' for v in first[:5])} instead of 1"
        )
    elif products is not None and not facts and (factor := scale_of(weights, expected, products)):
        root = f"1/sqrt({1 / factor**2:.4g})" if factor > 0 else "negative"
        facts.append(f"measured: the products of query and key are multiplied by {factor:.5g}, which is {root}")
    return facts


def scale_of(weights: Tensor, expected: Tensor, products: Tensor) -> float:
    """What the products must have been multiplied by, from the logarithms of the weights; 0.0 if by no one number."""
    seen = expected > SMALL
    if not bool((weights[seen] > 0).all()) or weights.shape != products.shape:
        return 0.0
    logs = torch.where(seen, weights.clamp(min=1e-300).log(), 0.0)  # (..., T, S)
    scores = torch.where(seen, products, 0.0)
    count = seen.sum(dim=-1, keepdim=True)
    logs = torch.where(seen, logs - logs.sum(dim=-1, keepdim=True) / count, 0.0)
    scores = torch.where(seen, scores - scores.sum(dim=-1, keepdim=True) / count, 0.0)
    factor = float((logs * scores).sum() / (scores**2).sum())
    return factor if torch.allclose(logs, factor * scores, rtol=1e-6, atol=1e-7) else 0.0
