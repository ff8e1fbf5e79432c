"""Summaries in bounded memory that can be made in parts and merged: sizes, and frequent items.

Invariants, however the input was cut into parts and in whatever order they were merged:

- A percentile is never below the true one, and less than twice as high.
- An item was added at least as often as its count says, and at most ``error`` times more;
  ``error`` is at most the number of items added by ``capacity + 1``.
- ``error`` is 0 as long as at most ``2 * capacity`` different items were added.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class Sizes:
    """How large things are, counted by powers of two."""

    total: int = 0
    largest: int = 0
    by_bits: Counter[int] = field(default_factory=Counter)
    """How many sizes have so many bits: with ``n`` bits, from ``2 ** (n - 1)`` on."""

    def add(self, size: int) -> None:
        """Count one thing."""
        self.total += size
        self.largest = max(self.largest, size)
        self.by_bits[size.bit_length()] += 1

    def merge(self, other: Sizes) -> None:
        """Add what was counted elsewhere."""
        self.total += other.total
        self.largest = max(self.largest, other.largest)
        self.by_bits.update(other.by_bits)

    def percentile(self, percent: int) -> int:
        """Return a size that so many of a hundred things do not exceed."""
        rank = -(-self.by_bits.total() * percent // 100)
        for most, count in self.histogram():
            rank -= count
            if rank <= 0:
                return min(most, self.largest)
        return 0

    def histogram(self) -> list[tuple[int, int]]:
        """Return (the largest size of a class, how many are in it), smallest sizes first."""
        return [((1 << bits) - 1, self.by_bits[bits]) for bits in sorted(self.by_bits)]


@dataclass(slots=True)
class HeavyHitters(Generic[T]):
    """The most frequent items, by the algorithm of Misra and Gries (1982).

    Merged as in Agarwal et al., "Mergeable Summaries" (2012): counts are added, then the one
    behind the ``capacity`` largest is taken off all.  Each such step takes as much off
    ``capacity + 1`` counts at least as it adds to ``error``, which is what bounds it.  Done only
    when there are twice as many counts, so that it costs little for each item.
    """

    capacity: int
    error: int = 0
    counts: Counter[T] = field(default_factory=Counter)

    def add(self, items: Iterable[T]) -> None:
        """Count items."""
        self.counts.update(items)
        self._shrink()

    def merge(self, other: HeavyHitters[T]) -> None:
        """Add what was counted elsewhere."""
        self.counts.update(other.counts)
        self.error += other.error
        self._shrink()

    def _shrink(self) -> None:
        if len(self.counts) > 2 * self.capacity:
            least = sorted(self.counts.values(), reverse=True)[self.capacity]
            self.counts = Counter({k: n - least for k, n in self.counts.items() if n > least})
            self.error += least
