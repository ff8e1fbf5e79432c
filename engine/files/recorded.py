"""From which time on a log has a record of every commit.

A log loses its beginning, and a copy that was made in full has the pairs of commits, and no record
of them.  An example, of partition 3, with times in seconds; the log has lost what was before 100:

=================================== ============================== ==================
record                              any partition: known since     partition 3: since
=================================== ============================== ==================
STATE, time 100                     100                            0: nothing is amiss
PREPARE, time 101                   101                            0
CLEAR of partition 3                                               not known
ADMIT of partition 3                                               not known
PREPARE of partition 5, time 140                                   140
=================================== ============================== ==================

What came with the pairs had committed before the ADMIT was made, and the PREPARE behind that is
younger.  These are times of members, whose clocks differ, and an id has that of its client.  So who
compares leaves some room (``CLOCKS_APART``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ...wal.reader import Scan, read_records
from ...wal.records import (
    AdmitRecord,
    ClearRecord,
    EpochRecord,
    PrepareRecord,
    Record,
    RecordType,
    StateRecord,
    TxRecord,
    split_records,
)

CLOCKS_APART = 300_000_000
"""Microseconds by which clocks of clients and members may differ."""

_TIMED = {RecordType.TX, RecordType.PREPARE, RecordType.EPOCH, RecordType.STATE}
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


def filled_until(scan: Scan, partition: int, *, from_beginning: bool) -> int | None:
    """Return a time that nothing lies behind of what a full copy of a partition has brought.

    0 if it was never copied in full, None if the log does not tell: then the copy is not there yet,
    or nothing with a time has come since.  Raises ``CorruptLogError`` for a log of which not all
    could be read.
    """
    fold = _Fills(partition, from_beginning)
    for record in _records(scan, fold):
        fold.take(record)
    scan.end.raise_if_refused()  # what was not read may have another one
    return fold.until


class _Fills:
    """The full copies of one partition, as the records of a log come."""

    def __init__(self, partition: int, from_beginning: bool) -> None:
        self._partition = partition
        self._may_lack_clear = not from_beginning
        self._awaits_admit = False
        self._head = 0
        self.awaits_time = False
        self.until: int | None = 0

    def take(self, record: Record) -> None:
        """Fold one record in."""
        match record:
            case ClearRecord() if record.partition == self._partition:
                self.until, self._awaits_admit, self.awaits_time = None, True, False
            case AdmitRecord() if record.partition == self._partition and self._awaits_admit:
                self.until, self._awaits_admit, self.awaits_time = None, False, True
            case StateRecord():
                self._head = max(self._head, record.time)
                numbers = sum(record.hwms[self._partition : self._partition + 1])
                if self._may_lack_clear and not numbers:  # or nothing was written by then
                    self._awaits_admit = True
                self._may_lack_clear = False
            case TxRecord() | PrepareRecord() | EpochRecord() if self.awaits_time:
                self.until, self.awaits_time = max(self._head, record.time), False
            case _:
                pass


def _records(scan: Scan, fold: _Fills) -> Iterator[Record]:
    """Yield the records that the fold needs: most frames have none, and are not decoded."""

    def needed(kinds: Iterable[int]) -> bool:
        wanted = _OF_COPIES | _TIMED if fold.awaits_time else _OF_COPIES
        return not wanted.isdisjoint(kinds)

    for frame in scan:
        if needed(kind for kind, _, _ in split_records(frame.payload)):
            for _, record in read_records([frame]):
                yield record
