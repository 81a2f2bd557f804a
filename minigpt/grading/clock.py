"""How long a check may take: by processor time, so that it finds the same when other programs are at work.

When most of the time is used, no name is looked for any more; what is left is for the verdict and its report.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

SECONDS = 5  # of processor time: a check is ended then
OFTEN = 0.02  # seconds of any clock after which the processor's is asked again: that takes a call of the system
NAMING, VERDICT = 0.7, 0.95  # shares of it: until then a name is looked for, and until then whether it is right


class TimeIsUp(Exception):
    """The time ended before it was certain whether the answer is right."""


@dataclass
class Clock:
    """The processor time of a check."""

    seconds: float = SECONDS
    began: float = field(default_factory=time.process_time)
    read: float = 0.0
    """What the processor's clock said last."""
    again: float = 0.0
    """When it is asked again."""

    @property
    def used(self) -> float:
        """Seconds so far."""
        now = time.monotonic()
        if now >= self.again:
            self.read, self.again = time.process_time(), now + OFTEN
        return self.read - self.began

    @property
    def ends_naming(self) -> bool:
        """Whether it is too late to look for a name."""
        return self.used > NAMING * self.seconds

    def look(self) -> None:
        """Raises TimeIsUp where it is too late for a verdict."""
        if self.used > VERDICT * self.seconds:
            raise TimeIsUp


@dataclass
class Budget:
    """How long one search goes on: for so many comparisons, and as long as the clock allows."""

    left: int
    clock: Clock = field(default_factory=Clock)
    naming: bool = False
    """Whether it is a name that is looked for: that ends earlier."""

    @property
    def over(self) -> bool:
        """Whether it is used up."""
        return self.left <= 0 or (self.naming and self.clock.ends_naming)

    def spend(self) -> None:
        """One comparison. Raises TimeIsUp."""
        self.left -= 1
        self.clock.look()
