"""How long the last syncs of the log took, for the statistics."""

from __future__ import annotations

from collections import deque

KEPT = 1024


class SyncTimes:
    """How many syncs there were, and the seconds of the newest ones."""

    def __init__(self) -> None:
        self.count = 0
        self.recent: deque[float] = deque(maxlen=KEPT)

    def percentiles(self) -> tuple[float, float, float]:
        """Return the median, the 99th percentile and the maximum, in microseconds."""
        known = sorted(self.recent)
        if not known:
            return 0.0, 0.0, 0.0
        last = len(known) - 1
        return known[last // 2] * 1e6, known[last * 99 // 100] * 1e6, known[last] * 1e6
