"""Sets of update numbers of one partition, as what a list of ranges says.

Invariants:

- ``NumberRanges`` are ascending, and neither touch nor overlap each other.

Left out: counters (``counter``), which have theirs as (start, delta), one lower.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from ..wal.records import Closed, Run
from .counter import PartitionUpdateCounter

NumberRanges: TypeAlias = list[tuple[int, int]]
"""Update numbers as (first, last), both included."""


def run_numbers(run: Run | Closed) -> tuple[int, int]:
    """Return the numbers of a run."""
    return run.first, run.first + run.count - 1


def has_run(numbers: NumberRanges, run: Run) -> bool:
    """Tell whether all numbers of a run are among some."""
    low, high = run_numbers(run)
    return any(first <= low and high <= last for first, last in numbers)


def united(ranges: Iterable[tuple[int, int]]) -> NumberRanges:
    """Return the numbers of some ranges, which may overlap, be empty and stand in any order."""
    found: NumberRanges = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(last, found[-1][1])
        elif first <= last:
            found.append((first, last))
    return found


def without(numbers: NumberRanges, ranges: Iterable[tuple[int, int]]) -> NumberRanges:
    """Return the numbers that are not in some ranges."""
    found: NumberRanges = []
    gone = united(ranges)
    for first, last in numbers:
        for low, high in gone:
            if first < low <= last:
                found.append((first, low - 1))
            if low <= last:
                first = max(first, high + 1)
        if first <= last:
            found.append((first, last))
    return found


def in_both(numbers: NumberRanges, ranges: Iterable[tuple[int, int]]) -> NumberRanges:
    """Return the numbers that are in some ranges, too."""
    return without(numbers, without(numbers, ranges))


def applied_in(counter: PartitionUpdateCounter) -> NumberRanges:
    """Return the numbers that a counter has applied."""
    ranges = [(start + 1, start + delta) for start, delta in counter.out_of_order]
    return [(1, counter.lwm), *ranges] if counter.lwm else ranges


def told_numbers(numbers: NumberRanges) -> str:
    """Return the first few of some numbers, for people."""
    shown = [str(first) if first == last else f"{first} to {last}" for first, last in numbers[:3]]
    return ", ".join(shown) + (", and more" if len(numbers) > len(shown) else "")
