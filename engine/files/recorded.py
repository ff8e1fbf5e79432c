"""From which time on a log has a record of every commit.

A log loses its beginning, and a copy that was made in full has the pairs of commits, and no record
of them.  An example, of partition 3, with times in seconds; the log has lost what was before 100:

=================================== ============================== ==================
record                              any partition: known since     partition 3: until
=================================== ============================== ==================
STATE, time 100                     100                            0: nothing is amiss
PREPARE, time 101                   101                            0
CLEAR of partition 3                                               not known
ADMIT of partition 3                                               not known
PREPARE, time 60                                                   not known
CHECKPOINT, time 140                                               140
=================================== ============================== ==================

What came with the pairs had committed before the ADMIT was made, and the CHECKPOINT behind that has
a time of this member's own clock.  A PREPARE does not tell: one that is in doubt comes again to
each copy, with the time that it has had since.  An id has the time of its client's clock, so who
compares leaves a minute of room.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ...wal.reader import Scan, read_records
from ...wal.records import (
    AdmitRecord,
    CheckpointRecord,
    ClearRecord,
    EpochRecord,
    PrepareRecord,
    Record,
    RecordType,
    StateRecord,
    TxRecord,
    split_records,
)

_TIMED = {RecordType.TX, RecordType.CHECKPOINT}
_OF_COPIES = {RecordType.CLEAR, RecordType.ADMIT, RecordType.STATE}


def known_since(scan: Scan) -> int | None:
    """Return a time that no transaction in the dropped part of a log lies behind, if it tells.

    The first one that is kept does not tell: with several primaries, whose clocks differ, a
    dropped one may have a later time.  The STATE that the log begins with is behind all.
    """
    head = 0
    for _, record in read_records(scan):
        if isinstance(record, StateRecord):
            head = max(head, record.time)
        elif isinstance(record, TxRecord | PrepareRecord | EpochRecord):
            return max(head, record.time)
    return None


class Filled(NamedTuple):
    """The last time that a partition was copied in full.

    ``cleared`` is the position of its CLEAR, None if the log has none: what is before it says
    nothing of what was rolled back, or is pending.  Nothing of the copy lies behind the time
    ``until``; that is 0 if there was no copy, and None if the log does not tell: then the copy is
    not there yet, or nothing with an own time has come since.
    """

    cleared: int | None
    until: int | None


NEVER = Filled(None, 0)


class Fills:
    """The last full copies of all partitions, as the records of a log come."""

    def __init__(self, *, from_beginning: bool) -> None:
        self._from_beginning = from_beginning
        self._with_numbers: frozenset[int] | None = None
        """Partitions that had numbers where the log begins, so that no CLEAR was dropped."""
        self._known: dict[int, Filled] = {}
        self._await_time: set[int] = set()

    @property
    def awaits_time(self) -> bool:
        """Whether a record with an own time would tell more."""
        return bool(self._await_time)

    def of(self, partition: int) -> Filled:
        """Return the last full copy of a partition."""
        return self._known.get(partition, NEVER)

    def take(self, position: int, record: Record) -> None:
        """Fold one record in."""
        match record:
            case ClearRecord():
                self._known[record.partition] = Filled(position, None)
                self._await_time.discard(record.partition)
            case AdmitRecord() if self._ends_copy(record.partition):
                cleared = self.of(record.partition).cleared
                self._known[record.partition] = Filled(cleared, None)
                self._await_time.add(record.partition)
            case TxRecord() | CheckpointRecord() | StateRecord():
                for partition in self._await_time:
                    self._known[partition] = Filled(self.of(partition).cleared, record.time)
                self._await_time.clear()
                if self._with_numbers is None and isinstance(record, StateRecord):
                    hwms = enumerate(record.hwms)
                    self._with_numbers = frozenset(place for place, hwm in hwms if hwm)
            case _:
                pass

    def _ends_copy(self, partition: int) -> bool:
        """Tell whether an ADMIT is the end of a full copy, or else one that returns by history."""
        known = self._known.get(partition)
        if known is None:
            return not self._from_beginning and partition not in (self._with_numbers or ())
        return known.until is None and partition not in self._await_time


def fills(scan: Scan, *, from_beginning: bool) -> Fills:
    """Return when partitions were copied in full.

    ``CorruptLogError`` if not all of the log could be read.
    """
    fold = Fills(from_beginning=from_beginning)
    for position, record in _records(scan, fold):
        fold.take(position, record)
    scan.end.raise_if_refused()  # what was not read may have another one
    return fold


def _records(scan: Scan, fold: Fills) -> Iterator[tuple[int, Record]]:
    """Yield the records that the fold needs, with positions: most frames are not decoded."""

    def needed(kinds: Iterable[int]) -> bool:
        wanted = _OF_COPIES | _TIMED if fold.awaits_time else _OF_COPIES
        return not wanted.isdisjoint(kinds)

    for frame in scan:
        if needed(kind for kind, _, _ in split_records(frame.payload)):
            for _, record in read_records([frame]):
                yield frame.position, record
