"""The smallest input that shows a bug: three tokens, the answer's numbers and the right ones side by side.

A function is called with these three tokens. A module has widths of its own; so the reference with the named bug shows
the first step that differs, in a model that is small enough to calculate by hand.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from minigpt.grading.outputs import equal
from minigpt.grading.target import Knobs, Probe, Steps, Target

IN_WORDS = {"mixed": "weighted values", "merged": "joined heads", "products": "products of query and key"}
WIDEST = 6  # the most numbers of a row that are shown


def rows(x: Tensor) -> list[str]:
    """A matrix (T, n) as lines of numbers."""
    shown = x[..., :WIDEST]
    return [
        " ".join(number(value) for value in row) + (" ..." if x.shape[-1] > WIDEST else "") for row in shown.tolist()
    ]


def number(value: float) -> str:
    """A number in eight characters."""
    return f"{value:8.4f}" if abs(value) < 1e5 else f"{value:8.0e}"


def beside(title: str, theirs: Tensor, right: Tensor) -> str:
    """Two matrices side by side."""
    left, other = rows(theirs), rows(right)
    width = max([len(row) for row in left] + [len("yours")])
    lines = [title, f"  {'yours':{width}}   right"]
    height = max(len(left), len(other))
    left, other = left + [""] * (height - len(left)), other + [""] * (height - len(other))
    return "\n".join([*lines, *(f"  {a:{width}}   {b}" for a, b in zip(left, other))])


def flat(x: Tensor) -> Tensor:
    """The first matrix (T, n) of a tensor (..., T, n)."""
    x = x.detach().double()
    while x.dim() > 2:
        x = x[0]
    return x if x.dim() == 2 else x.reshape(1, -1)


def inputs_text(probe: Probe) -> str:
    """The inputs, one per line."""
    return "\n".join(
        f"{name} = {[[round(v, 4) for v in row] for row in flat(x).tolist()]}" for name, x in probe.inputs.items()
    )


def show_function(target: Target, run: Callable[[Probe], Tensor]) -> str:
    """What a function returns for the three tokens, beside the right numbers; "" where both are equal."""
    if target.tiny is None:
        return ""
    sizes, parameters, probe = target.tiny()
    right = target.output(probe, parameters, sizes, {})
    theirs = run(probe)
    if equal(theirs, right, probe):
        return ""
    return f"{inputs_text(probe)}\n{beside('gives', flat(theirs), flat(right))}"


def show_steps(target: Target, knobs: Knobs) -> str:
    """The step that a named bug changes first, on the target's three tokens; "" where none changes."""
    if target.tiny is None:
        return ""
    sizes, parameters, probe = target.tiny()
    right = target.reference(probe, parameters, sizes, {})
    wrong = target.reference(probe, parameters, sizes, knobs)
    name = first_difference(right, wrong, probe)
    if not name:
        return ""
    widths = ", ".join(f"{axis} = {size}" for axis, size in sizes.items() if axis in ("T", "D", "H", "G", "d"))
    shown = IN_WORDS.get(name, name)
    title = f"on three tokens with {widths}, the {shown}{' of the first head' if wrong[name].dim() == 4 else ''}:"
    return beside(title, flat(wrong[name]), flat(right[name]))


def first_difference(right: Steps, wrong: Steps, probe: Probe) -> str:
    """The name of the first step that differs and can be shown; "" if there is none."""
    for name, step in wrong.items():
        if name in right and step.dim() >= 2 and not equal(step, right[name], probe):
            return name
    return ""


def show_output(
    run: Callable[[Probe], Tensor], target: Target, expected: Callable[[Probe], Tensor], probe: Probe
) -> str:
    """The output for the first three tokens of a probe, for a target without a tiny example; "" if it is right."""
    lengths = {x.shape[1] for x in probe.inputs.values()}
    cut = {length: 3 if length == max(lengths) else 2 for length in lengths}  # fewer queries than keys: 2 of 3
    lost = probe.name.startswith("the loss")
    small = Probe(
        probe.name if lost else "three tokens", {name: x[:1, : cut[x.shape[1]]] for name, x in probe.inputs.items()}
    )
    theirs, right = run(small), expected(small)
    if not isinstance(theirs, Tensor) or equal(theirs, right, small):
        return ""
    return beside("the loss of three tokens:" if lost else "the output for three tokens:", flat(theirs), flat(right))


__all__ = ["show_function", "show_output", "show_steps"]
