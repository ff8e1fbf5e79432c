"""Named points of a program, and plans to let it end at one of them.

Invariants:

- A plan comes true once, when its point is reached for the n-th time since it was made, whichever
  start of the program that is in.

Left out: what the end is like (``node``).
"""

from __future__ import annotations

from collections import Counter


class Points:
    """The points that the program of one node reaches."""

    def __init__(self) -> None:
        self.reached: Counter[str] = Counter()
        """Point -> how often it was reached, over all starts."""
        self.planned: dict[str, int] = {}
        """Point -> how often it has to be reached yet; what is left here did not come true."""

    def __repr__(self) -> str:
        return f"<Points planned={self.planned}>"

    def plan(self, point: str, nth: int = 1) -> None:
        """Let the program end when it reaches a point for the n-th time from now on."""
        if nth < 1:
            raise ValueError("nth counts from 1")
        self.planned[point] = nth

    def reach(self, point: str) -> bool:
        """Note that a point was reached; tell whether the program is to end here."""
        self.reached[point] += 1
        left = self.planned.pop(point, 0)
        if left > 1:
            self.planned[point] = left - 1
        return left == 1
