"""The clocks of one machine in a simulated world, which are never quite those of the others.

Invariants:

- The steady clocks never run backwards; both drift in the same way, as they have one crystal.
- The steady clock stands still while the machine is suspended, the clock of the boot goes on.
- A machine that lost its power begins both anew; a process that was killed does not.

Left out: tasks that stand still with their machine.  What ``suspend`` leaves behind is the same, as
long as a program looks at its clocks afterwards.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from .environment import START_US

DRIFT_MAX = 0.0002
"""How much too fast or too slow a clock is, at most: 0.2 milliseconds in a second."""
WALL_OFFSET_US_MAX = 5_000_000
"""How far a wall clock is off at the start, at most."""
UPTIME_S_MAX = 1_000_000.0
"""How long a machine has been running at the start, at most."""


class NodeClocks:
    """Wall clock, steady clock and clock of the boot of one machine."""

    def __init__(
        self, rng: random.Random, now: Callable[[], float], jump: Callable[[float], None]
    ) -> None:
        self.rate = 1 + rng.uniform(-DRIFT_MAX, DRIFT_MAX)
        """Seconds of the steady clocks in a second of the world."""
        self.wall_rate = 1 + rng.uniform(-DRIFT_MAX, DRIFT_MAX)
        self._now = now
        self._jump = jump
        self._wall_offset_us = rng.randint(-WALL_OFFSET_US_MAX, WALL_OFFSET_US_MAX)
        self._booted = now() - rng.uniform(0, UPTIME_S_MAX)
        self._stood_s = 0.0
        self._stands = (self._booted, self._booted)

    def __repr__(self) -> str:
        return f"<NodeClocks wall={self.wall_us()} steady={self.steady_s():.6f}>"

    def wall_us(self) -> int:
        """Return microseconds UTC; may jump."""
        return START_US + self._wall_offset_us + round(self._now() * self.wall_rate * 1_000_000)

    def boot_s(self) -> float:
        """Return seconds since the boot, suspended or not."""
        return (self._now() - self._booted) * self.rate

    def steady_s(self) -> float:
        """Return seconds since the boot, without those in which the machine was suspended."""
        since, until = self._stands
        stands = max(0.0, min(self._now(), until) - since)
        return (self._now() - self._booted - self._stood_s - stands) * self.rate

    def world_s(self, seconds: float) -> float:
        """Return how long it takes in the world until the steady clocks are so much further."""
        return seconds / self.rate

    def move(self, seconds: float) -> None:
        """Let time pass at once, for the whole world: this machine computes, or waits, so long."""
        self._wake()
        self._jump(self.world_s(seconds))

    def jump_wall(self, seconds: float) -> None:
        """Set the wall clock, forwards or backwards, as an operator does."""
        self._wall_offset_us += round(seconds * 1_000_000)

    def suspend(self, seconds: float) -> None:
        """Let the steady clock stand still for so many seconds of the world."""
        self._wake()
        self._stands = (self._now(), self._now() + seconds)

    def reboot(self) -> None:
        """Begin the steady clocks anew."""
        self._booted = self._now()
        self._stood_s = 0.0
        self._stands = (self._booted, self._booted)

    def _wake(self) -> None:
        since, until = self._stands
        self._stood_s += max(0.0, min(self._now(), until) - since)
        self._stands = (self._now(), self._now())
