"""An edge of the graph of kinds: under which options one kind computes what another computes.

Each is declared once, in the file of the kind that is new, and `inspection/graph.py` walks all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Edge:
    """A kind equals the kind `to` (an identity), or comes as near as `error` (a limit).

    Both are made with the options given. What has the same name and shape in both is then made equal, and `prepare`
    (this kind, the other kind) sets what is left. Equal are their outputs and all gradients that both have.
    """

    to: str
    when: str  # in a few words, as in "window >= T"
    mine: Mapping[str, Any] = field(default_factory=dict)  # options of this kind
    theirs: Mapping[str, Any] = field(default_factory=dict)  # options of the other
    prepare: Callable[[Any, Any], None] | None = None
    error: float = 0.0  # of a limit: how far they are still apart, relative to the largest number
    size: float = 1.0  # what the inputs are multiplied by: some limits hold for small inputs
    without: tuple[str, ...] = ()  # positions under which it does not hold
