"""How long the disk of a member's log has not answered, as far as the member has watched.

A disk that hangs fails nothing: pings are answered, and nothing is written.  Time in which the
member stood still itself, as a machine that was suspended does, says nothing about its disk: of
what lies between two looks half a second counts.
"""

from __future__ import annotations

from .log import NodeLog

DISK_TIMEOUT_S = 10.0
"""Seconds in which the disk of the log has to answer before others serve what they have, too."""
SLOW_S = 1.0
"""Seconds from which on others are not held to what this member itself waits for."""
LOOK_S_MAX = 0.5


class DiskWatch:
    """Watches the disk of one log."""

    def __init__(self, log: NodeLog) -> None:
        self._log = log
        self._looked_at = float("inf")
        self._asked_at = float("inf")
        self.seconds = 0.0
        """For how long the disk has not answered what it was asked for."""
        self.passed = 0.0
        """How much of that lies between the last two looks."""

    def __repr__(self) -> str:
        return f"<DiskWatch of {self._log.path}: {self.seconds:.1f} s>"

    def look(self, now: float) -> bool:
        """Look once more; tell whether the disk hangs."""
        asked, passed = self._log.asked_disk_at, now - self._looked_at
        self._looked_at = now
        waits = asked == self._asked_at < float("inf")
        self.passed = min(passed, LOOK_S_MAX) if waits else 0.0
        self.seconds = self.seconds + self.passed if waits else 0.0
        self._asked_at = asked
        return self.seconds >= DISK_TIMEOUT_S
