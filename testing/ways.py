"""The ways between the hosts of a simulated world: when what was sent arrives.

Invariants:

- What is sent over one lane (one direction of one connection) arrives in the order of sending;
  lanes overtake each other.  What arrives at the same time comes in the order of sending.
- Each way may be cut alone.  What would arrive then is held up, and arrives when the way is healed:
  TCP sends again until it gets through.
- The same seed and the same calls give the same delays.

Left out: what is sent (``streams``), and whether anybody is there (``network``).
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from math import inf

import trio

DELAY_S_MIN, DELAY_S_MAX = 0.0001, 0.002
LATE_S_MAX = 0.2
"""One in ``LATE_ONE_IN`` is late by up to so much; what is behind it on its lane waits for it."""
LATE_ONE_IN = 50

Way = tuple[str, str]
"""Names of the hosts that send and receive."""


class Lane:
    """What keeps its order on the way."""

    __slots__ = ("last_s",)

    def __init__(self) -> None:
        self.last_s = 0.0
        """When the newest of it arrives."""


class Ways:
    """All that is on its way."""

    def __init__(
        self, rng: random.Random, now: Callable[[], float], delay_s: float | None = None
    ) -> None:
        """``delay_s`` is how long everything takes; without it the seed decides."""
        self.rng = rng
        self._delay_s = delay_s
        self._now = now
        self._coming: list[tuple[float, int, Way, Callable[[], None]]] = []
        self._sent = 0
        self._held: dict[Way, list[Callable[[], None]]] = {}
        """What the cut ways hold up."""
        self._earlier = trio.Event()
        """Set when something arrives before all else that is on its way."""

    def __repr__(self) -> str:
        return f"<Ways coming={len(self._coming)} cut={self.cuts}>"

    @property
    def cuts(self) -> list[Way]:
        """The ways that are cut, sorted."""
        return sorted(self._held)

    def carry(self, way: Way, lane: Lane, action: Callable[[], None]) -> None:
        """Let ``action`` happen when it has arrived."""
        lane.last_s = max(lane.last_s, self._now() + self._delay())
        self._sent += 1
        heapq.heappush(self._coming, (lane.last_s, self._sent, way, action))
        if self._coming[0][1] == self._sent:
            self._earlier.set()

    def _delay(self) -> float:
        if self._delay_s is not None:
            return self._delay_s
        rng = self.rng
        delay = rng.uniform(DELAY_S_MIN, DELAY_S_MAX)
        if not rng.randrange(LATE_ONE_IN):
            delay += rng.uniform(0, LATE_S_MAX)
        return delay

    def cut(self, way: Way) -> None:
        """Let nothing arrive any more over a way."""
        self._held.setdefault(way, [])

    def heal(self, way: Way) -> None:
        """Let what was held up arrive, and what comes."""
        for action in self._held.pop(way, ()):
            action()

    async def run(self) -> None:
        """Let arrive what is due, until cancelled."""
        while True:
            while self._coming and self._coming[0][0] <= self._now():
                _, _, way, action = heapq.heappop(self._coming)
                if way in self._held:
                    self._held[way].append(action)
                else:
                    action()
            self._earlier = trio.Event()
            until = self._coming[0][0] if self._coming else inf
            with trio.move_on_at(until):
                await self._earlier.wait()
