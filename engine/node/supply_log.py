"""The log of a primary, as far as it is searched for what a copy has missed.

Invariants:

- Whatever is read lies in a pin: no segment goes while it is searched, unless the pin breaks.
- Nothing is read above where the log was durable when the search began.

Left out: what is found (``checkpoints.supplying``), and threads: all of this reads files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from ...affinity.errors import CorruptLogError
from ...affinity.rows import Member
from ...checkpoints.supplying import SupplySearch, WantedNumbers
from ...rebalance.choosing import LogReach
from ...wal.format import Frame
from ...wal.history import held_from, segments_with
from ...wal.ports import ReadableDirectory
from ...wal.reader import Scan, read_records
from ...wal.records import StateRecord
from ...wal.segments import open_segment
from ..files.log_keeper import LogKeeper
from ..files.pins import Pin

RECORDS = 64
"""Records between two chances for other threads."""
READ_BYTES = 2 << 20
"""Bytes of log behind which a search stops though it has found little: somebody waits for it."""
PIN_BYTES_MAX = 1 << 30
"""Bytes of log behind which who is supplied is not worth the space any more (B9)."""


def reach_of(head: StateRecord, partition: int, member: Member) -> LogReach[Member]:
    """Return which numbers of a partition the log of a member holds, by how it begins."""
    held = held_from(head, partition)
    return LogReach(member, held.above + 1, held.without)


class SearchedLog:
    """A log on its way through a search, from the first segment that may hold what is missing."""

    def __init__(
        self, wal: ReadableDirectory, wanted: Mapping[int, WantedNumbers], upto: int
    ) -> None:
        numbers = [
            next(segments_with(wal, partition, row.missing), None)
            for partition, row in wanted.items()
        ]
        first = min((number for number in numbers if number is not None), default=None)
        if first is None:
            raise CorruptLogError("the log has no segment", kind="gap", segment=0, offset=0)
        segment = open_segment(wal, first)
        segment.file.close()
        self.position = segment.first_position
        """Where it begins."""
        self._read_to = self.position
        scan = Scan(wal, self.position, durable=upto)
        self._records = read_records(_below(scan, upto))
        # Nothing, if segments went up to where the log was durable: no pin held them yet.
        _, head = next(self._records, (None, None))
        if not isinstance(head, StateRecord):
            raise CorruptLogError(
                "a segment does not begin with a STATE record", kind="gap", segment=first, offset=0
            )
        self.search = SupplySearch(head, wanted)
        """What was found by now."""

    def read(self, most_bytes: int, rest: Callable[[], object]) -> bool:
        """Go on until so much was found, or read; tell whether the log may go on behind that.

        ``rest`` is called now and then.
        """
        for number, (frame, record) in enumerate(self._records):
            self.search.take(frame.position, record)
            if self.search.bytes >= most_bytes or frame.position >= self._read_to + READ_BYTES:
                self._read_to = frame.position
                return True
            if number % RECORDS == RECORDS - 1:
                rest()
        return False


def _below(frames: Scan, end: int) -> Iterator[Frame]:
    for frame in frames:
        if frame.position >= end:
            return
        yield frame


def begun(
    keeper: LogKeeper, owner: str, wanted: Mapping[int, WantedNumbers], upto: int
) -> tuple[SearchedLog, Pin]:
    """Return a search that has begun, and the pin that holds what it reads."""
    pin = keeper.pins.set(owner, keeper.first_position)
    try:
        found = SearchedLog(keeper.directory, wanted, upto)
    except BaseException:
        keeper.pins.release(pin)
        raise
    pin.move_to(found.position)
    pin.limit = PIN_BYTES_MAX
    return found, pin
