"""An edge of the graph of kinds: under which options one kind computes what another computes.

Each is declared once, in the file of the kind that is new, and `checks/graph.py` walks all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from minigpt.config.upgrade import takes_names


@takes_names(mine="own", theirs="other")
@dataclass(frozen=True)
class Edge:
    """A kind equals the kind `to` (an identity), or comes as near as `error` (a limit).

    Both are built with the options given. Parameters with the same name and shape in both are made equal, and
    `prepare(this kind, the other kind)` sets the rest. Then the outputs are equal, and so are all gradients that both
    have.
    """

    to: str
    when: str  # in a few words, as in "window >= T"
    own: Mapping[str, Any] = field(default_factory=dict)  # options of this kind
    other: Mapping[str, Any] = field(default_factory=dict)  # options of the other
    prepare: Callable[[Any, Any], None] | None = None
    error: float = 0.0  # for a limit: the difference that is left, relative to the largest number
    size: float = 1.0  # what the inputs are multiplied by: some limits hold for small inputs
    without: tuple[str, ...] = ()  # "rotate", "bias": positions that act so, with which it does not hold
