"""What a violation of linearizability is called, and how it reads.

A name is found by what is known about the call that fits nowhere: who wrote the value that it saw,
what was acknowledged or seen since, and what others saw later.  It is the best name for what was
recorded; that there is a violation was decided by the search alone.

Left out: the search (``linear``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from .histories import Call, CompareAndSet, Delete, Get, HistoryKey, HistoryValue, Incr, Put

SHOWN_MAX = 8
"""Calls that the text of a violation lists."""


class Anomaly(StrEnum):
    """The kinds of violation."""

    STALE_READ = "stale read"
    LOST_UPDATE = "lost update"
    NEVER_WRITTEN = "read of a value never written"
    FAILED_WRITE = "read of a value whose write failed"
    RESURRECTION = "a value came back after it was overwritten"
    TWO_SWAPS = "two compare_and_set from one value both succeeded"
    REFUSED = "compare_and_set refused the value that was there"
    COUNTED_TWICE = "an increment counted twice"
    INCREMENT_LOST = "an increment lost"
    FAILED_INCREMENT = "an increment that failed was counted"
    FUTURE = "read from the future"
    DELETE_UNDONE = "a delete was undone"
    NOT_MONOTONIC = "reads of one client went back"
    WRITES_REVERSED = "writes took effect in reverse order"
    UNKNOWN_UNSEEN = "a write of unknown outcome was seen, then not"
    SPLIT_BRAIN = "split brain: two values were seen in turn"
    NO_ORDER = "no order of the operations fits"


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """Why a history is not linearizable: the first call whose answer no order explains.

    ``possible`` are values that a read instead of the call might have found, ``because`` the calls
    that the name of the anomaly rests on, ``concurrent`` those that overlap with the call.
    """

    anomaly: Anomaly
    key: HistoryKey
    call: Call
    because: tuple[Call, ...]
    possible: tuple[HistoryValue, ...]
    concurrent: tuple[Call, ...]

    def __str__(self) -> str:
        """Tell it in English, a few lines long."""
        values = " or ".join(map(repr, self.possible)) or "nothing that was tried"
        lines = [
            f"{self.anomaly}: key {self.key!r} is not linearizable.",
            f"No order of the operations allows this answer: {self.call}.",
            f"The value before it could have been {values}.",
            *_listed("This contradicts", self.because),
            *_listed("Concurrent with it", self.concurrent),
        ]
        return "\n".join(lines)


def _listed(title: str, calls: Sequence[Call]) -> list[str]:
    if not calls:
        return []
    more = len(calls) - SHOWN_MAX
    rest = [f"  and {more} more"] if more > 0 else []
    return [f"{title}:", *(f"  {call}" for call in calls[:SHOWN_MAX]), *rest]


def overlapping(calls: Iterable[Call], stuck: Call) -> list[Call]:
    """Return the calls that may have taken effect while one was under way."""
    return [
        call
        for call in calls
        if call.number != stuck.number
        and call.ending != "failed"
        and not call.before(stuck)
        and not stuck.before(call)
    ]


def name_of(calls: Sequence[Call], stuck: Call) -> tuple[Anomaly, list[Call]]:
    """Return the kind of violation that a call of one key shows, and what it contradicts."""
    others = [call for call in calls if call.number != stuck.number]
    if any(isinstance(call.action, Incr) for call in calls):
        return _name_of_count(others, stuck)
    if isinstance(stuck.action, CompareAndSet) and not stuck.result:
        return Anomaly.REFUSED, _tellers(others, stuck.action.expected)
    value = _seen(stuck)
    return (
        _name_by_writers(others, stuck, value)
        or _name_by_order(_Sight(others, stuck, value))
        or (Anomaly.NO_ORDER, [])
    )


# ------------------------------------------------------------------ registers


def _tells(call: Call) -> bool:
    """Tell whether the answer says what the value was."""
    is_read = isinstance(call.action, Get)
    is_swap = isinstance(call.action, CompareAndSet) and call.result is True
    return call.ending == "ok" and (is_read or is_swap)


def _seen(call: Call) -> HistoryValue:
    """Return the value of which an answer tells."""
    if isinstance(call.action, CompareAndSet):
        return call.action.expected
    return None if isinstance(call.result, bool) else call.result


def _tellers(calls: Iterable[Call], value: HistoryValue) -> list[Call]:
    return [call for call in calls if _tells(call) and _seen(call) == value]


def _writes(call: Call) -> bool:
    """Tell whether the call would write, or delete."""
    if isinstance(call.action, CompareAndSet):
        return call.ending != "ok" or call.result is True
    return isinstance(call.action, Put | Delete)


def _written(call: Call) -> HistoryValue:
    action = call.action
    return action.value if isinstance(action, Put | CompareAndSet) else None


def _makers(calls: Iterable[Call], value: HistoryValue) -> list[Call]:
    """Return the calls that wrote a value, or may have."""
    return [
        call
        for call in calls
        if _writes(call) and call.ending != "failed" and _written(call) == value
    ]


def _name_by_writers(
    calls: Sequence[Call], stuck: Call, value: HistoryValue
) -> tuple[Anomaly, list[Call]] | None:
    """Name what the writers of the value that was seen tell by themselves."""
    makers = _makers(calls, value)
    if value is not None and not makers:
        failed = [call for call in calls if _writes(call) and _written(call) == value]
        return (Anomaly.FAILED_WRITE, failed) if failed else (Anomaly.NEVER_WRITTEN, [])
    begun = [call for call in makers if not stuck.before(call)]
    if value is not None and not begun:
        return Anomaly.FUTURE, makers
    if isinstance(stuck.action, CompareAndSet):
        rivals = [
            call
            for call in _tellers(calls, value)
            if isinstance(call.action, CompareAndSet)
            and call.action.value != value
            and not stuck.before(call)
        ]
        if rivals and len(rivals) + 1 > len(begun) + (value is None):
            return Anomaly.TWO_SWAPS, rivals
    return None


class _Sight:
    """What is known of a value that was seen too late: what replaced it, and who saw what."""

    def __init__(self, calls: Sequence[Call], stuck: Call, value: HistoryValue) -> None:
        self.stuck = stuck
        self.value = value
        makers = [call for call in _makers(calls, value) if not stuck.before(call)]
        same = _tellers(calls, value)
        settled = max((_settled(call, makers, same) for call in makers), default=-1.0)
        self.newer = [
            call
            for call in calls
            if _writes(call)
            and call.ending != "failed"
            and _written(call) != value
            and call.began > settled
            and not stuck.before(call)
        ]
        """Writes of other values that came behind this one."""
        self.acknowledged = [call for call in self.newer if call.before(stuck)]
        values = {_written(call) for call in self.newer}
        tellers = [call for call in calls if _tells(call) and _seen(call) != value]
        self.replaced = [
            call
            for call in tellers
            if call.before(stuck) and (_seen(call) in values or call.began > settled)
        ]
        """Answers that tell of another value, when this one had been replaced."""
        self.values = {_seen(call) for call in self.replaced} | values
        self.earlier = [call for call in same if any(call.before(other) for other in self.replaced)]
        """Answers with this value, before those that tell of another one."""
        self.again = [c for c in same if c.began > stuck.began]
        """Later answers with this value."""
        self.back = [c for c in tellers if c.began > stuck.began and _seen(c) in self.values]
        """Later answers with a value that was there before."""
        self.by_unknown = [
            call
            for call in self.replaced
            if (wrote := _makers(calls, _seen(call))) and all(c.ending != "ok" for c in wrote)
        ]


def _settled(maker: Call, makers: Sequence[Call], tellers: Sequence[Call]) -> float:
    """Return the event by which a write had certainly taken effect."""
    ends = [float(maker.ended)] if maker.ending == "ok" and maker.ended is not None else []
    if len(makers) == 1:
        ends += [float(call.ended) for call in tellers if call.ended is not None]
    return min(ends, default=float("inf"))


def _name_by_order(sight: _Sight) -> tuple[Anomaly, list[Call]] | None:
    """Name what follows from the values that were there before and behind."""
    stuck, known = sight.stuck, [*sight.acknowledged, *sight.replaced]
    if not known:
        return None
    newest = max(known, key=lambda call: call.began)
    gone = isinstance(newest.action, Delete) or (_tells(newest) and _seen(newest) is None)
    mine = [call for call in sight.replaced if call.client == stuck.client]
    if sight.value is not None and gone:
        return Anomaly.DELETE_UNDONE, [newest]
    if newest in sight.by_unknown:
        return Anomaly.UNKNOWN_UNSEEN, sight.by_unknown
    if isinstance(stuck.action, CompareAndSet):
        return Anomaly.LOST_UPDATE, known
    if not sight.newer and sight.back:
        return Anomaly.SPLIT_BRAIN, [*sight.earlier, *sight.replaced, *sight.back]
    if not sight.replaced and sight.again and not sight.back:
        return Anomaly.LOST_UPDATE, [*sight.acknowledged, *sight.again]
    if not sight.back and sight.earlier and not (mine and not sight.again):
        return Anomaly.RESURRECTION, [*sight.earlier, *sight.replaced]
    if not sight.back and sight.again and sight.replaced:
        return Anomaly.WRITES_REVERSED, known
    if mine:
        return Anomaly.NOT_MONOTONIC, mine
    return Anomaly.STALE_READ, known


# ------------------------------------------------------------------ counters


def _name_of_count(calls: Sequence[Call], stuck: Call) -> tuple[Anomaly, list[Call]]:
    """Name what the sums of the increments before a call tell."""
    adding = [call for call in calls if isinstance(call.action, Incr)]
    certain = [call for call in adding if call.before(stuck)]
    maybe = [
        call
        for call in adding
        if call.ending != "failed" and not call.before(stuck) and not stuck.before(call)
    ]
    found = _count_before(stuck)
    base = sum(map(_delta, certain))
    most = base + sum(max(_delta(call), 0) for call in maybe)
    least = base + sum(min(_delta(call), 0) for call in maybe)
    if found > most:
        return _name_of_surplus(adding, stuck, found - most)
    if found < least:
        return _name_of_deficit(calls, stuck, certain)
    seen = [c for c in calls if c.before(stuck) and _count_behind(c) > found]
    mine = [call for call in seen if call.client == stuck.client]
    twins = [call for call in adding if call.ending == "ok" and call.result == stuck.result]
    if isinstance(stuck.action, Incr) and twins:
        return Anomaly.INCREMENT_LOST, twins
    if mine and isinstance(stuck.action, Get):
        return Anomaly.NOT_MONOTONIC, mine
    if seen and any(call.ending == "unknown" for call in maybe):
        return Anomaly.UNKNOWN_UNSEEN, seen
    return (Anomaly.STALE_READ, seen) if seen else (Anomaly.NO_ORDER, [])


def _name_of_surplus(
    adding: Sequence[Call], stuck: Call, surplus: int
) -> tuple[Anomaly, list[Call]]:
    found = _count_before(stuck)
    later = [call for call in adding if stuck.before(call) and call.result == found]
    failed = [call for call in adding if call.ending == "failed" and not stuck.before(call)]
    if later:
        return Anomaly.FUTURE, later
    if surplus <= sum(map(_delta, failed)):
        return Anomaly.FAILED_INCREMENT, failed
    return Anomaly.COUNTED_TWICE, [call for call in adding if not stuck.before(call)]


def _name_of_deficit(
    calls: Sequence[Call], stuck: Call, certain: Sequence[Call]
) -> tuple[Anomaly, list[Call]]:
    total = sum(map(_delta, certain))
    mine = [
        call
        for call in calls
        if isinstance(call.action, Get)
        and call.client == stuck.client
        and call.before(stuck)
        and _count_behind(call) > _count_before(stuck)
    ]
    if isinstance(stuck.action, Get):
        if mine:
            return Anomaly.NOT_MONOTONIC, mine
        if any(call.began > stuck.began and _count_behind(call) >= total for call in calls):
            return Anomaly.STALE_READ, list(certain)
    return Anomaly.INCREMENT_LOST, list(certain)


def _delta(call: Call) -> int:
    return call.action.delta if isinstance(call.action, Incr) else 0


def _count_behind(call: Call) -> int:
    """Return the count that an answer tells of; less than any if it tells of none."""
    return int(call.result or 0) if call.ending == "ok" else -1


def _count_before(call: Call) -> int:
    return _count_behind(call) - _delta(call)
