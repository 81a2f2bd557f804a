"""What can be measured from outside, where no sentence fits: the matrix of a mean, the scale of the scores, row sums,
who sees whom."""

from __future__ import annotations

from minigpt.grading.naming import Reading


def measure(reading: Reading) -> list[str]:
    """Facts about an answer that is wrong and has no name; none if nothing can be said for sure."""
    return []
