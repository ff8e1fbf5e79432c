"""Looks after the segments of the log: indexes, retention, space that is used again.

Invariants:

- A segment goes only when ``wal.retention`` says so; its space is offered to the writer as a
  *spare* (renamed, so that it is not part of the log any more) or given back.
- The index of a segment that this opening wrote alone comes from counters that are known anyway:
  it costs nothing per commit.  One that was begun by an earlier opening is read for its index.
- Slots of reading processes that died are freed by their lock.
- Segments below a hole are evidence: nothing here reads, indexes or drops them.

Left out: the rules (``wal.retention``) and the index itself (``wal.index``).
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol

from ...affinity.errors import TidelogError
from ...checkpoints.replay import State
from ...wal.format import FRAME_MAGIC, Frame, SegmentHeader, segment_name
from ...wal.index import SegmentIndex, index_name
from ...wal.ports import Directory
from ...wal.reader import Scan, find_transaction, load_index, read_records, records_about
from ...wal.records import (
    Record,
    RollbackRecord,
    TxRecord,
)
from ...wal.retention import Holders, RetentionLimits, RetentionPlan, SegmentInfo, plan_retention
from ...wal.segments import Segment, open_segment, probe, segment_numbers, walk
from ...wal.writer import LogWriter
from ..system.environment import Environment
from . import recorded
from .pins import LogPins
from .recorded import Fills

SPARES_MAX = 2
LOOK_BACK = (64 << 10, 512 << 10, 4 << 20)
"""Bytes of log that are searched for the winner of a conflict, one after the other."""
SPARE_SUFFIX = ".spare"
SPARE_PIECE = 1 << 20

log = logging.getLogger("tidelog.log")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """How things stood when the segment that is being written began.

    ``whole``: this opening has written all of it.  ``given_ids`` grows with those that callers
    give.
    """

    number: int
    whole: bool
    lwms: list[int]
    first_id: int
    given_ids: list[bytes]
    time: int


class IdsInUse(Protocol):
    """Who gives transactions their ids."""

    def ids(self) -> tuple[bytes, int]:
        """Return the prefix and the newest number of automatic ids."""

    def ids_in_flight(self) -> tuple[int, list[bytes]]:
        """Return first number, and given ids, of the group that is on its way into the log."""


class LogKeeper:
    """The segments of one open log."""

    def __init__(
        self,
        environment: Environment,
        directory: Directory,
        readers_path: str,
        limits: RetentionLimits,
    ) -> None:
        self.pins = LogPins()
        self.indexes_by_reading = False
        """Whether counters do not tell what a segment holds: it is read for its index then."""
        self.plan = RetentionPlan((), {})
        self._environment = environment
        self.directory = directory
        self._readers_path = readers_path
        self._limits = limits
        self._sealed: list[SegmentInfo] = []
        self._spares: list[str] = []
        self._unindexed: list[int] = []
        self._writer: LogWriter
        self._state: State
        self._start: _Start
        self._ids: IdsInUse

    def begin(self, writer: LogWriter, state: State) -> None:
        """Take stock of the segments that are there."""
        self._writer = writer
        self._state = state
        for name in self.directory.names():
            if name.endswith(SPARE_SUFFIX):
                self.directory.unlink(name)
        numbers = self._without_stranded(segment_numbers(self.directory))
        firsts = [self._first_position(number) for number in numbers]
        for number, first, end in zip(numbers, firsts, firsts[1:], strict=False):
            index = load_index(self.directory, number)
            if index is None:
                self._unindexed.append(number)
            newest = None if index is None else index.newest
            self._sealed.append(self._info(number, first, end, newest))
        self._note_start(writer.segment.number, whole=False, in_flight=(1, []))

    def follow(self, ids: IdsInUse) -> None:
        """Ask ``ids`` from here on which transactions a segment may hold; nobody commits before."""
        self._ids = ids

    def _without_stranded(self, numbers: list[int]) -> list[int]:
        """Return the segments above the last hole: the log of this store begins there.

        A hole is never of our making, for each removal is durable before the next one begins.  So
        what lies below it is left as it is: with the missing segment back, the log is whole again.
        """
        holes = [(a, b) for a, b in pairwise(numbers) if b != a + 1]
        if not holes:
            return numbers
        below, first = holes[-1]
        log.warning(
            "log.hole: Tidelog: the log of the store %s lacks segments %d to %d and begins with "
            "segment %d; nothing below is read or dropped until the missing ones are back",
            os.path.dirname(self._readers_path),
            below + 1,
            first - 1,
            first,
            extra={"event": "log.hole"},
        )
        return [number for number in numbers if number >= first]

    def _first_position(self, number: int) -> int:
        segment = open_segment(self.directory, number)
        segment.file.close()
        return segment.first_position

    def _info(self, number: int, first: int, end: int, newest: int | None) -> SegmentInfo:
        file = self.directory.open_read(segment_name(number))
        try:
            size = file.size()
        finally:
            file.close()
        return SegmentInfo(
            number=number, first_position=first, end_position=end, size_bytes=size, newest=newest
        )

    @property
    def given_ids(self) -> list[bytes]:
        """Ids that callers gave since this segment began; the committer notes them."""
        return self._start.given_ids

    def _note_start(self, number: int, *, whole: bool, in_flight: tuple[int, list[bytes]]) -> None:
        first_id, given_ids = in_flight
        self._start = _Start(
            number=number,
            whole=whole,
            lwms=[counter.lwm for counter in self._state.counters],
            first_id=first_id,
            given_ids=given_ids,
            time=self._state.time,
        )

    def note_given_id(self, tx_id: bytes) -> None:
        """Hear of a commit under an id that the caller gave."""
        self.given_ids.append(tx_id)

    def sealed(self, header: SegmentHeader, end: int) -> None:
        """Hear of a segment that is full; called by the writer, under the commit mutex.

        Called again if it was interrupted, it does what is left to do.
        """
        if self._start.number > header.number:
            return
        newest = self._state.time
        try:
            info = self._info(header.number, header.first_position, end, newest)
        except OSError:
            # The new segment is in use already: it must not be lost sight of.
            first = header.first_position
            info = SegmentInfo(
                number=header.number,
                first_position=first,
                end_position=end,
                size_bytes=end - first,
                newest=newest,
            )
        self._sealed = [*self._sealed_below(header.number), info]
        if self._start.whole and not self.indexes_by_reading:
            self._write_index(self._index(header, end))
        elif header.number not in self._unindexed:
            self._unindexed.append(header.number)
        # A group that did not fit into the old segment has its numbers and ids already.
        in_flight = self._ids.ids_in_flight()
        self._note_start(header.number + 1, whole=True, in_flight=in_flight)

    def _sealed_below(self, number: int) -> list[SegmentInfo]:
        return [info for info in self._sealed if info.number < number]

    def _index(self, header: SegmentHeader, end: int) -> SegmentIndex:
        """Return the index of a segment from the counters at its start and now."""
        state, began = self._state, self._start
        index = SegmentIndex(
            number=header.number,
            first_position=header.first_position,
            end_position=end,
            oldest=began.time,
            newest=state.time,
            log_id=header.log_id,
        )
        for partition, (start, counter) in enumerate(zip(began.lwms, state.counters, strict=True)):
            if counter.hwm > start:
                index.counters[partition] = [(state.epochs[partition], start + 1, counter.hwm)]
        prefix, last = self._ids.ids()
        assert index.prefixes is not None
        if last >= began.first_id:
            index.prefixes[prefix] = (began.first_id, last)
        for tx_id in self.given_ids:
            index.note_transaction(tx_id)
        return index

    def _write_index(self, index: SegmentIndex) -> None:
        """Write an index file; it can be made again at any time, so an error costs nothing."""
        with contextlib.suppress(OSError):
            name = index_name(index.number)
            if name in self.directory.names():
                self.directory.unlink(name)
            file = self.directory.create(name)
            try:
                file.write(0, index.to_bytes())
            finally:
                file.close()

    def spare(self) -> str | None:
        """Return the name of a file that the writer may overwrite, or None."""
        return self._spares.pop() if self._spares else None

    def prepare_spare(self, size: int) -> None:
        """Fill a file with zeros for the next segment, unless there is a spare.

        Writing to it then costs the file system no change of its size.  Raises ``OSError``.
        """
        if self._spares:
            return
        name = f"{0:016d}{SPARE_SUFFIX}"
        if name in self.directory.names():
            self.directory.unlink(name)
        file, zeros = self.directory.create(name), bytes(SPARE_PIECE)
        try:
            for start in range(0, size, SPARE_PIECE):
                file.write(start, zeros[: size - start])
            file.sync()
        finally:
            file.close()
        self._spares.append(name)

    def after_checkpoint(self, position: int) -> None:
        """Index what is not yet indexed, and let go of segments that nobody needs any more."""
        while self._unindexed:
            self._index_by_reading(self._unindexed.pop())
        try:
            self._trim(position)
        except OSError as error:
            # The log is longer than it has to be; the next checkpoint tries again.
            log.warning(
                "log.trim_failed: Tidelog: dropping segments of the store %s failed, and is tried "
                "again: %s",
                os.path.dirname(self._readers_path),
                error,
                extra={"event": "log.trim_failed"},
            )

    def _trim(self, position: int) -> None:
        self.pins.break_long(self._writer.position)
        self.plan = self.plan_now(position)
        if not self.plan.droppable:
            return
        for number in self.plan.droppable:
            self._let_go(number)
            self.directory.sync()  # else a power cut could bring it back, and not a later one
            self._sealed = [info for info in self._sealed if info.number != number]
        log.info(
            "log.trimmed segments=%d first=%d",
            len(self.plan.droppable),
            max(self.plan.droppable) + 1,
            extra={"event": "log.trimmed"},
        )

    def _index_by_reading(self, number: int) -> None:
        try:
            segment = open_segment(self.directory, number)
            try:
                frames = walk(segment, segment.first_position)
                index = SegmentIndex.build(number, segment.first_position, frames)
                index.log_id = segment.log_id
            finally:
                segment.file.close()
        except (OSError, TidelogError):
            return
        self._write_index(index)
        self._sealed = [
            replace(info, newest=index.newest) if info.number == number else info
            for info in self._sealed
        ]

    def _let_go(self, number: int) -> None:
        name = segment_name(number)
        with contextlib.suppress(FileNotFoundError):
            self.directory.unlink(index_name(number))
        if name not in self.directory.names():
            return  # it went, and the sync behind that failed
        if len(self._spares) < SPARES_MAX:
            spare = f"{number:016d}{SPARE_SUFFIX}"
            self.directory.rename(name, spare)
            self._spares.append(spare)
        else:
            self.directory.unlink(name)

    def plan_now(self, position: int) -> RetentionPlan:
        """Return which segments may go, and what holds the others, after a checkpoint."""
        writer = self._writer
        current = SegmentInfo(
            number=writer.segment.number,
            first_position=writer.segment.first_position,
            end_position=writer.position,
            size_bytes=writer.position - writer.segment.first_position,
            newest=self._state.time,
        )
        return plan_retention(
            [*self._sealed, current],
            limits=self._limits,
            holders=Holders(
                checkpoint=position, pins=self.pins.positions(), readers=self.readers()
            ),
            now=self._environment.clock(),
        )

    def readers(self) -> dict[str, int]:
        """Return the slots of live reading processes: the lowest position that each still needs."""
        disk = self._environment.disk
        if disk.kind(self._readers_path) != "directory":
            return {}
        directory = disk.directory(self._readers_path)
        slots = {}
        for name in directory.names():
            try:
                lock = disk.lock(os.path.join(self._readers_path, name))
            except BlockingIOError:
                slots[name] = _slot_position(directory, name)
            else:
                directory.unlink(name)
                lock.release()
        return slots

    def find_transaction(
        self, tx_id: bytes, log_ids: list[tuple[bytes, int]]
    ) -> tuple[Frame, TxRecord | RollbackRecord] | None:
        """Return the record of a transaction that the kept log holds, with its frame, or None."""
        return find_transaction(
            self.directory,
            tx_id,
            start_position=self.first_position,
            log_ids=log_ids,
            durable=self._writer.synced,
        )

    def records_about(
        self, tx_id: bytes, log_ids: list[tuple[bytes, int]]
    ) -> list[tuple[int, Record]]:
        """Return all that the kept log has about a transaction, with positions, in order."""
        return records_about(
            self.directory,
            tx_id,
            start_position=self.first_position,
            log_ids=log_ids,
            durable=self._writer.synced,
        )

    def fills(self) -> Fills:
        """Return when partitions were copied in full; errors as ``recorded.fills``."""
        return recorded.fills(self._scan(), from_beginning=self.first_position == 0)

    def known_since(self) -> int:
        """Return a time that no transaction in the dropped part of the log lies behind."""
        found = recorded.known_since(self._scan())
        return self._state.time if found is None else found

    def _scan(self) -> Scan:
        return Scan(self.directory, self.first_position, durable=self._writer.synced)

    def first_number(self, prefix: bytes) -> int | None:
        """Return the number from which on automatic ids with a prefix can only be in the kept log.

        None if the log does not show it.  Numbers rise as the log does.
        """
        start = self._start
        for number in [*(info.number for info in self._sealed_below(start.number)), start.number]:
            own = number == start.number and prefix == self._ids.ids()[0]
            first = start.first_id if own else self._first_number_in(number, prefix)
            if first is not None:
                return first
        return None

    def _first_number_in(self, number: int, prefix: bytes) -> int | None:
        index = load_index(self.directory, number)
        if index is not None and index.prefixes is not None and prefix not in index.prefixes:
            return None
        try:
            segment = open_segment(self.directory, number)
        except FileNotFoundError:
            return None  # dropped meanwhile
        try:
            frames = walk(segment, segment.first_position)
            for _, record in read_records(frame for frame in frames if prefix in frame.payload):
                # An automatic id may be given to a later transaction, too: that one tells nothing.
                given = isinstance(record, TxRecord) and record.details.get("user_id")
                if isinstance(record, TxRecord) and not given and record.tx_id[:8] == prefix:
                    return int.from_bytes(record.tx_id[8:], "big")
            return None
        finally:
            segment.file.close()

    def writer_of(
        self,
        partition: int,
        counter: int,
        header: SegmentHeader,
        end: int,
        look_back: Sequence[int] = LOOK_BACK,
    ) -> bytes | None:
        """Return the id of the transaction that wrote an update, if the newest log shows it.

        Looks through a segment backwards from ``end``, where a frame ends, as far as the longest
        of ``look_back`` goes.
        """
        segment = open_segment(self.directory, header.number)
        try:
            if segment.log_id != header.log_id or segment.first_position != header.first_position:
                return None
            for size in look_back:
                start = max(end - size, segment.first_position)
                for _, record in read_records(_frames_near(segment, start, end)):
                    if isinstance(record, TxRecord):
                        for run in record.runs:
                            if run.partition == partition and 0 <= counter - run.first < run.count:
                                return record.tx_id
                if start == segment.first_position:
                    break
            return None
        finally:
            segment.file.close()

    @property
    def kept_bytes(self) -> int:
        """Bytes of all segments, the one being written included."""
        writer = self._writer
        sealed = sum(info.size_bytes for info in self._sealed)
        return sealed + writer.position - writer.segment.first_position

    @property
    def first_position(self) -> int:
        """The position where the log that is still kept begins."""
        sealed = self._sealed
        return sealed[0].first_position if sealed else self._writer.segment.first_position


def _slot_position(directory: Directory, name: str) -> int:
    """Return what a slot needs; one that does not say needs everything."""
    try:
        file = directory.open_read(name)
    except OSError:
        return 0
    try:
        text = file.read(0, 20).strip()
    finally:
        file.close()
    return int(text) if text.isdigit() else 0


def _frames_near(segment: Segment, start: int, end: int) -> Iterator[Frame]:
    """Yield the frames of a segment from the first one on that begins at or behind ``start``."""
    data = segment.file.read(segment.offset_of(start), end - start)
    at = data.find(FRAME_MAGIC)
    while at >= 0:
        if probe(segment, start + at).frame is not None:
            yield from walk(segment, start + at, end)
            return
        at = data.find(FRAME_MAGIC, at + 1)
