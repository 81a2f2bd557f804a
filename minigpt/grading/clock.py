"""How long a check may take, in processor time, so that other programs do not change its result.

After 70 % of the time, the search for the name of a bug ends; the rest is for the verdict and the report.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

SECONDS = 5  # of processor time: then the check is ended
OFTEN = 0.02  # the least seconds between two readings of the processor clock: each is a system call
NAMING, VERDICT = 0.7, 0.95  # fractions of `Clock.seconds`: when the searches for a name and for a verdict end


class TimeIsUp(Exception):
    """The time ended before it was certain whether the answer is right."""


@dataclass
class Clock:
    """The processor time of a check."""

    seconds: float = SECONDS
    began: float = field(default_factory=time.process_time)
    read: float = 0.0
    """The last reading of the processor clock, in seconds."""
    again: float = 0.0
    """The next reading is at this time of `time.monotonic`."""

    @property
    def used(self) -> float:
        """Seconds of processor time so far."""
        now = time.monotonic()
        if now >= self.again:
            self.read, self.again = time.process_time(), now + OFTEN
        return self.read - self.began

    @property
    def ends_naming(self) -> bool:
        """Whether the search for a name must end."""
        return self.used > NAMING * self.seconds

    def look(self) -> None:
        """Raises TimeIsUp if the search for a verdict must end."""
        if self.used > VERDICT * self.seconds:
            raise TimeIsUp


@dataclass
class Budget:
    """The limits of one search: a number of comparisons, and the clock."""

    left: int
    clock: Clock = field(default_factory=Clock)
    naming: bool = False
    """Whether the search is for a name: then it ends earlier."""

    @property
    def over(self) -> bool:
        """Whether the search must end."""
        return self.left <= 0 or (self.naming and self.clock.ends_naming)

    def spend(self) -> None:
        """Count one comparison. Raises TimeIsUp."""
        self.left -= 1
        self.clock.look()
