"""A quick look at the times of a register: many histories that have no order show it here.

A value that only one call wrote is there once, from its write until it is replaced.  If one of the
calls that wrote or saw it ended before another one began, it was certainly there in between: that
is its *zone* (Gibbons and Korach, 1997).  Zones of two values cannot overlap, and no call that has
to do with another value can lie within a zone, nor can the moments that all calls of another value
share.

It never rejects what has an order.  It passes some histories that have none: for these there is the
search (``linear``).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from .moves import LEAVING, NEEDING, MoveKind, TimedMove


def have_order(moves: Sequence[TimedMove], initial: Any) -> bool:
    """Tell whether the times of the moves allow an order, as far as a glance can tell."""
    makers = Counter(timed.move.leaves for timed in moves if timed.move.kind in LEAVING)
    due = [timed for timed in moves if not timed.optional]
    firsts, lasts = _spans(due)
    zones: list[tuple[float, float, Any]] = []
    shared: list[tuple[float, float, Any]] = []
    for value, end in firsts.items():
        if value != initial and not makers[value]:
            return False  # seen, and never written
        if value == initial and not makers[value]:
            zones.append((-1, lasts[value], value))
        elif value != initial and makers[value] == 1:
            span = (end, lasts[value], value)
            (zones if end < lasts[value] else shared).append(span)
    zones.sort(key=_begin)
    if any(one[1] > other[0] for one, other in pairwise(zones)):
        return False
    begins = [begin for begin, _, _ in zones]
    inside = [(last, first, value) for first, last, value in shared]
    for began, end, value in [*inside, *_of_other_values(due)]:
        place = bisect_left(begins, began) - 1
        if place >= 0 and end < zones[place][1] and value != zones[place][2]:
            return False
    return _refusals_fit(due, zones, begins)


def _spans(due: Iterable[TimedMove]) -> tuple[dict[Any, float], dict[Any, float]]:
    """Return, per value, the first end and the last begin of the moves that have to do with it."""
    firsts: dict[Any, float] = {}
    lasts: dict[Any, float] = defaultdict(lambda: -1.0)
    for timed in due:
        for value in _values(timed):
            firsts[value] = min(firsts.get(value, timed.end), timed.end)
            lasts[value] = max(lasts[value], timed.began)
    return firsts, lasts


def _values(timed: TimedMove) -> Iterable[Any]:
    move = timed.move
    if move.kind in NEEDING:
        yield move.needs
    if move.kind in LEAVING:
        yield move.leaves


def _of_other_values(due: Iterable[TimedMove]) -> Iterable[tuple[float, float, Any]]:
    """Yield begin and end of each move with a value that it needs or leaves."""
    for timed in due:
        for value in _values(timed):
            yield timed.began, timed.end, value


def _refusals_fit(
    due: Iterable[TimedMove], zones: Sequence[tuple[float, float, Any]], begins: Sequence[float]
) -> bool:
    """Tell whether no call was refused by a value while this value was certainly there."""
    for timed in due:
        if timed.move.kind == MoveKind.REFUSED:
            place = bisect_left(begins, timed.began) - 1
            if place >= 0 and timed.end < zones[place][1] and timed.move.needs == zones[place][2]:
                return False
    return True


def _begin(zone: tuple[float, float, Any]) -> float:
    return zone[0]
