"""Of many cases of one sort, some for the quick tests and the others for the slow ones."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def every(n: int, cases: Iterable[Any], sample: int = 1) -> list[Any]:
    """Each n-th case for the quick tests; of the others the slow ones take each `sample`-th, unless all are asked."""
    slow = [pytest.mark.slow, *([pytest.mark.sample(sample)] if sample > 1 else [])]
    listed = (case if isinstance(case, tuple) else (case,) for case in cases)
    return [pytest.param(*case, marks=slow if place % n else []) for place, case in enumerate(listed)]
