"""What happened in a simulated world, in order: its hash is the identity of a run.

Invariants:

- A line holds only what is the same in every run of a seed: names, numbers, sizes, checksums; never
  a memory address, a hash, or the order of a set.

Left out: the lines themselves, but for the newest, which a failure shows.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable

RECENT = 40
"""Lines that are kept for who looks for the cause of a failure."""


class Trace:
    """The events of one world."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.events = 0
        self.recent: deque[str] = deque(maxlen=RECENT)
        """The newest lines, the last one last."""
        self._now = now
        self._digest = hashlib.sha256()

    def __repr__(self) -> str:
        return f"<Trace {self.hash} events={self.events}>"

    @property
    def hash(self) -> str:
        """What two runs have in common only if the same happened in both."""
        return self._digest.hexdigest()[:24]

    def note(self, *what: object) -> None:
        """Add an event."""
        line = f"{self._now():.9f} {' '.join(map(str, what))}"
        self._digest.update(line.encode() + b"\n")
        self.recent.append(line)
        self.events += 1
