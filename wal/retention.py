"""Which segments may go, and what holds back each of the others.

Owns the rules as a literal table.  Segments go oldest first and without a hole, so the first one
that anything holds also holds all behind it.

Invariants:

- The segment that is being written, and what recovery would read, never go.
- Nothing at or above a pin or a reader's slot goes, whatever the limits say.

Left out: dropping, recycling, and where pins come from (``engine``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

MICROSECONDS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentInfo:
    """One segment: the positions [first, end), its size on disk, its newest commit time in us."""

    number: int
    first_position: int
    end_position: int
    size_bytes: int
    newest: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionLimits:
    """How much log is kept beyond what is needed; None means no limit, 0 keeps nothing more.

    A segment is past its time as soon as one of the limits says so.
    """

    size_bytes: int | None = None
    age_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Holders:
    """What needs the log: ``checkpoint``, and pins and slots of readers by name, as positions.

    Each needs everything from its position on.
    """

    checkpoint: int
    pins: Mapping[str, int] = field(default_factory=dict)
    readers: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """``droppable`` numbers, oldest first, and for every other one what holds it back."""

    droppable: tuple[int, ...]
    held: dict[int, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class _Case:
    segment: SegmentInfo
    is_last: bool
    kept_bytes: int
    holders: Holders
    limits: RetentionLimits
    now: int


def _written(case: _Case) -> list[str]:
    return ["being written"] if case.is_last else []


def _recovery(case: _Case) -> list[str]:
    return ["recovery"] if case.holders.checkpoint < case.segment.end_position else []


def _pins(case: _Case) -> list[str]:
    return _below(case, "pin", case.holders.pins)


def _readers(case: _Case) -> list[str]:
    return _below(case, "reader", case.holders.readers)


def _below(case: _Case, kind: str, positions: Mapping[str, int]) -> list[str]:
    end = case.segment.end_position
    return [f"{kind} {name}" for name, at in sorted(positions.items()) if at < end]


def _history(case: _Case) -> list[str]:
    limits, newest = case.limits, case.segment.newest
    if limits.size_bytes is not None and case.kept_bytes > limits.size_bytes:
        return []
    # A segment without any time holds no transaction: nobody misses it, however young it is.
    age = case.now - newest if newest is not None else None
    if limits.age_seconds is not None and (age is None or age >= limits.age_seconds * MICROSECONDS):
        return []
    return ["history"]


RULES: tuple[tuple[str, Callable[[_Case], list[str]]], ...] = (
    # A: appends go to the last segment, and recovery begins its search for the end there.
    ("A", _written),
    # B: a segment with a frame at or above the checkpoint's position is replayed at the next open.
    ("B", _recovery),
    # C: a backup that is being taken, or a rebalance, reads on from its pin.
    ("C", _pins),
    # D: a reading process replays from its slot.
    ("D", _readers),
    # E: nobody needs it, but within the limits it answers questions about the past.
    ("E", _history),
)


def plan_retention(
    segments: Sequence[SegmentInfo], *, limits: RetentionLimits, holders: Holders, now: int
) -> RetentionPlan:
    """Return which segments may be dropped or recycled.

    ``segments`` are all there are, lowest first; ``now`` is in microseconds, as commit times are.
    """
    kept_bytes = sum(segment.size_bytes for segment in segments)
    droppable: list[int] = []
    held: dict[int, tuple[str, ...]] = {}
    for segment in segments:
        is_last = segment is segments[-1]
        case = _Case(segment, is_last, kept_bytes, holders, limits, now)
        reasons = [reason for _, rule in RULES for reason in rule(case)]
        if held and not reasons:
            reasons = [f"segment {min(held)}"]
        if reasons:
            held[segment.number] = tuple(reasons)
        else:
            droppable.append(segment.number)
        kept_bytes -= segment.size_bytes
    return RetentionPlan(tuple(droppable), held)
