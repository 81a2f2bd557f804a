"""All options of a run with their defaults, and what each kind computes: what a new format is needed for.

    python tests/runs_of_old/today.py       # after a new kind, or a new format: writes today.json

today.json is that of the newest format. A test holds it against the code: an option that comes, goes or has another
default, and a kind that computes something else, are a change of what files mean.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from minigpt.attention import Attention, Position
from minigpt.config.options import Component, Options, from_dict, hints, to_python
from minigpt.config.upgrade import FORMAT
from minigpt.model import GPT, Block, ModelConfig, Norm
from minigpt.model.mlp import MLP
from minigpt.training.assemble import RunConfig

TODAY = Path(__file__).with_name("today.json")
FAMILIES = {"attention": Attention, "position": Position, "norm": Norm, "mlp": MLP, "block": Block}
SMALL = {"n_layer": 2, "n_embd": 16, "block_size": 16, "attention": "multi_head", "position": "learned"}
Table = dict[str, Any]


def ours(family: Any) -> dict[str, Any]:
    """The kinds of a family that come with minigpt, not those of plugins and tests."""
    return {name: kind for name, kind in family.kinds.items() if kind.__module__.startswith("minigpt.")}


def options() -> Table:
    """{group, or family and kind: {option: default}} of all that a run's config can say."""
    table, waiting = Table(), [("run", RunConfig)]
    while waiting:
        name, schema = waiting.pop()
        if name in table:
            continue
        defaults = {field.name: to_python(field.default) for field in fields(schema)}
        table[name] = {option: defaults[option] for option in hints(schema)}
        waiting += [group for hint in hints(schema).values() for group in groups_in(hint)]
    return table


def groups_in(hint: Any) -> Iterator[tuple[str, type[Options]]]:
    """The groups of options that an annotation names: one, or one for each kind of a family."""
    for part in getattr(hint, "__args__", ()):
        yield from groups_in(part)
    if isinstance(hint, type) and issubclass(hint, Component.Config):
        family = next(c for c in hint.component.__mro__ if Component in c.__bases__)
        yield from ((f"{family.__name__} {name}", kind.Config) for name, kind in ours(family).items())
    elif isinstance(hint, type) and issubclass(hint, Options):
        yield hint.__name__, hint


def logits() -> Table:
    """{family and kind: logits of a text by a small model with that kind}."""
    kinds = [(option, kind) for option, family in FAMILIES.items() for kind in ours(family)]
    return {f"{option} {kind}": computed({option: kind}) for option, kind in kinds}


@torch.no_grad()
def computed(change: Table) -> list[float]:
    """A few logits, in float64, of a model whose weights depend on their order and shapes alone."""
    model = GPT(from_dict(ModelConfig, SMALL | change), 20).double().eval()
    for number, weight in enumerate(model.parameters()):
        waves = torch.arange(weight.numel(), dtype=torch.float64).mul(1 + math.sqrt(2 + number)).sin()
        weight.copy_(0.4 * waves.reshape(weight.shape) + (weight.ndim == 1))
    return [round(value, 7) for value in model(torch.arange(12)[None] * 7 % 20)[0, -1, :4].tolist()]


def differences(then: Table, now: Table) -> list[str]:
    """What is no longer as it was; what is new is no difference."""
    found = []
    for part in ("options", "logits"):
        for name, value in then[part].items():
            same = now[part].get(name) == value
            if part == "logits" and name in now[part]:
                same = max(abs(a - b) for a, b in zip(value, now[part][name])) < 1e-5
            found += [] if same else [f"{part} of {name}"]
    return found


def today() -> Table:
    """What today.json should hold."""
    return {"format": FORMAT, "options": options(), "logits": logits()}


if __name__ == "__main__":
    then, now = json.loads(TODAY.read_text("utf-8")) if TODAY.exists() else None, today()
    if then and then["format"] == FORMAT and (changed := differences(then, now)):
        sys.exit(f"changed: {', '.join(changed)}. Raise FORMAT in minigpt/config/upgrade.py, and make a run of it")
    TODAY.write_text(json.dumps(now, indent=1) + "\n", encoding="utf-8")
