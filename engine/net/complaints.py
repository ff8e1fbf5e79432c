"""How often the log is told the same thing: once in a while, with how often it happened."""

from __future__ import annotations

PERIOD_S = 10.0
"""Seconds between two lines about the same."""


class Complaints:
    """Lines for the log, at most one of each topic per period."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def line(self, topic: str, text: str, now: float) -> str | None:
        """Return the line to write for what has happened; None if it is too early for one."""
        if topic in self._last and now < self._last[topic] + PERIOD_S:
            self._left_out[topic] = self._left_out.get(topic, 0) + 1
            return None
        self._last[topic] = now
        more = self._left_out.pop(topic, 0)
        return f"{text}; {more:,} more since the last such line" if more else text
