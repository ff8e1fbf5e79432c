"""Which numbers of a partition the kept log has, and in which segments they may be.

A copy that was away asks for the numbers that it lacks.  Whoever supplies them from its log answers
only if the log has every one of them; else the partition is copied in full.

Example: the oldest segment that is kept begins with a STATE in which partition 3 has LWM 90, the
range 95 to 97, and a transaction pending with 99 and 100.  So 91 to 94, 98, and everything from 101
on are in the kept log, with their updates or closed; 90, 96 and 99 are not.

Invariants:

- A number that is said to be held is held: it was logged behind the head of the oldest segment.
- A segment that is not named holds none of the numbers asked for: an index never denies.

Left out: reading what is there (``reader``), and who asks (``rebalance``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..affinity.errors import CorruptLogError
from .ports import ReadableDirectory
from .reader import load_index, read_records
from .records import StateRecord
from .segments import open_segment, segment_numbers, walk


@dataclass(frozen=True, slots=True)
class Held:
    """What the kept log has of one partition.

    That is every number above ``above`` but those in ``without``, which are (first, last) in
    ascending order.  ``epochs`` is its epoch table there: (epoch, first number).
    """

    above: int
    without: tuple[tuple[int, int], ...]
    epochs: tuple[tuple[int, int], ...]

    def lacks(self, first: int, last: int) -> list[tuple[int, int]]:
        """Return the numbers from ``first`` to ``last`` that the log does not have."""
        missing = [(low, min(high, last)) for low, high in self.without if high >= first]
        found = [(max(low, first), high) for low, high in missing if low <= high]
        if first <= self.above:
            found.insert(0, (first, min(last, self.above)))
        return found


def held_from(state: StateRecord, partition: int) -> Held:
    """Return what a log has that begins with a STATE record."""
    ranges = [(start + 1, start + delta) for start, delta in state.ranges.get(partition, ())]
    pending = [
        (one.run.first, one.run.first + one.run.count - 1)
        for one in state.pending
        if one.run.partition == partition
    ]
    table = state.epoch_tables.get(partition) or ((state.epochs[partition], 1),)
    return Held(state.lwms[partition], tuple(sorted(ranges + pending)), tuple(table))


def oldest_state(wal: ReadableDirectory) -> StateRecord:
    """Return the STATE record that the kept log begins with.

    Raises ``CorruptLogError`` if it is not there; ``FileNotFoundError`` if a live writer drops the
    segment meanwhile.
    """
    numbers = segment_numbers(wal)
    if numbers:
        segment = open_segment(wal, _first_of_last_stretch(numbers))
        try:
            for _, record in read_records(walk(segment, segment.first_position)):
                if isinstance(record, StateRecord):
                    return record
                break
        finally:
            segment.file.close()
    raise CorruptLogError(
        "the log does not begin with a STATE record",
        kind="gap",
        segment=numbers[0] if numbers else 0,
        offset=0,
        hint="Run `tidelog wal verify STORE`.",
    )


def segments_with(
    wal: ReadableDirectory, partition: int, spans: Iterable[tuple[int, int]]
) -> Iterator[int]:
    """Yield the numbers of the segments that may hold one of the numbers in ``spans``.

    A span is (first, last).  A segment without an index may hold any number.
    """
    wanted = list(spans)
    numbers = segment_numbers(wal)
    for number in numbers:
        if number < _first_of_last_stretch(numbers):
            continue
        index = load_index(wal, number)
        if index is None or any(index.covers(partition, *span) for span in wanted):
            yield number


def _first_of_last_stretch(numbers: list[int]) -> int:
    """Return the first segment behind the last hole: what lies below is not part of the log."""
    first = numbers[-1]
    for number in reversed(numbers):
        if number < first - 1:
            break
        first = number
    return first
