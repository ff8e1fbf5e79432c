"""Reading a log from one position to its end, across segments.

Owns ``Scan``, which recovery, reading processes, hot copies and tools share.

Invariants:

- Frames come in order and without a hole: each begins where the one before it ended.
- Nothing is yielded whose CRC is wrong, and a verdict is given only after the last valid frame.
- Before a verdict refuses a log, its files are opened by name and read once more: beside a live
  writer a frame may have been half written, or its file recycled, when it was first read.  What
  proves a frame durable was read before that second look, so the second look is final.
- Files are opened for reading only, and closed when the scan ends or is dropped.

Left out: what the end of a log looks like (``ending``) and means (``tail``), the meaning of records
(``checkpoints``), cutting and repairing (the writer, the tools).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

from ..affinity.errors import CorruptLogError, FormatVersionError
from .ending import WalkEnd, judge, nowhere, with_losses
from .format import Frame
from .index import SegmentIndex, index_name
from .ports import ReadableDirectory
from .records import (
    Record,
    RollbackRecord,
    TxRecord,
    UndecodableRecordError,
    corrupt_record,
    decode_record,
    split_records,
)
from .segments import NO_LIMIT, Segment, Stop, open_segment, probe, seal_at, walk
from .sequence import Fault, LogFiles
from .tail import End, LogPlace


class Scan:
    """One pass over a log: iterate over it for the frames, then ask ``end`` how it ends.

    ``start_position`` None is wherever the log begins; else frames that begin at or above it are
    yielded, and a log that begins later has a gap.  ``exact`` says that it is the border of a
    frame and durable, so that nothing below it has to be read.  ``durable`` is the highest
    position known to be durable from elsewhere; ``log_ids`` is as for ``LogFiles``.  Segments
    with another one behind them for whose number ``wanted`` is false are passed over unread.
    ``alone`` says that the directory shows one segment of a log that may have others.

    Iterating raises ``HistoryTruncatedError`` if a live writer drops a segment that is being
    read, ``FormatVersionError`` for a segment of a later version, and ``OSError``; a damaged log
    raises nothing, for its valid part may be what the caller came for.
    """

    def __init__(
        self,
        directory: ReadableDirectory,
        start_position: int | None = None,
        *,
        exact: bool = False,
        durable: int = 0,
        log_ids: Sequence[tuple[bytes, int]] | None = None,
        wanted: Callable[[int], bool] | None = None,
        alone: bool = False,
    ) -> None:
        self._directory = directory
        self._alone = alone
        self._files = LogFiles(directory, log_ids)
        self._start = start_position or 0
        self._anywhere = start_position is None
        self._exact = exact and start_position is not None
        self._durable = max(durable, self._start) if self._exact else durable
        self._wanted = wanted
        self._before: LogPlace | None = None
        self._end: End | None = None

    @property
    def end(self) -> End:
        """How the log ends; known once iteration has come to its end."""
        assert self._end is not None, "the scan has not reached the end of the log"
        return self._end

    def __iter__(self) -> Generator[Frame, None, None]:
        try:
            begin = self._begin()
            if isinstance(begin, End):
                self._end = begin
            else:
                self._end = yield from self._follow(*begin)
        finally:
            self._files.close()

    # ------------------------------------------------------------------ where to begin

    def _begin(self) -> tuple[Segment, int] | End:
        numbers = self._files.numbers()
        if not numbers:
            return nowhere(None, self._start, self._durable)
        # The oldest one first: it tells the log's id if no list of ids was given.
        first = self._files.open(numbers[0])
        if isinstance(first, Segment) and self._anywhere:
            return first, first.first_position
        found = None if self._anywhere else self._segment_at_start(numbers)
        if found is None:
            return nowhere(first, self._start, self._durable)
        segment, exact = found
        inside = segment.offset_of(self._start) <= segment.file.size()
        if (exact and inside) or probe(segment, self._start).frame is not None:
            return segment, self._start
        return segment, segment.first_position

    def _segment_at_start(self, numbers: list[int]) -> tuple[Segment, bool] | None:
        """The last segment that begins at or below the start, and whether to trust its border."""
        exact = self._exact
        for number in reversed(numbers):
            segment = self._files.open(number)
            if isinstance(segment, Fault):
                # The start may lie in this one: only a walk tells where the one below it ends.
                exact = False
            elif segment.first_position <= self._start:
                return segment, exact
            else:
                self._files.forget(number)
        return None

    # ------------------------------------------------------------------ from there to the end

    def _follow(self, current: Segment, position: int) -> Generator[Frame, None, End]:
        refused_at = -1
        while True:
            following = self._files.following(current.number)
            sealed = following if isinstance(following, Segment) else None
            limit = sealed.first_position if sealed else NO_LIMIT
            if sealed and position <= limit and not self._wants(current.number):
                position = limit
            else:
                position = yield from self._frames(current, position, limit)
            if sealed and position == limit:
                seal = seal_at(current, position)
                if seal is not None:
                    self._durable = max(self._durable, seal.end)
                self._files.forget(current.number)
                current = sealed
                continue
            if following is None and self._files.following(current.number) is not None:
                continue
            walked = self._walk_end(current, position, following)
            try:
                end = judge(walked)
            finally:
                if walked.unread is not None:
                    walked.unread.file.close()
            if not end.refused:
                return end
            if refused_at == position:
                return with_losses(end, walked)
            refused_at = position
            self._files.close()
            again = self._files.open(current.number)
            if isinstance(again, Fault):
                return end
            current = again

    def _wants(self, number: int) -> bool:
        return self._wanted is None or self._wanted(number)

    def _frames(self, segment: Segment, position: int, limit: int) -> Generator[Frame, None, int]:
        frames = walk(segment, position, limit)
        if position < self._start:
            frames = _from(frames, self._start)
        stop = yield from frames
        self._durable = max(self._durable, segment.first_position, stop.synced)
        if stop.last is not None:
            self._before = LogPlace(stop.last, segment.number, segment.offset_of(stop.last))
        return stop.position

    def _walk_end(
        self, segment: Segment, position: int, following: Segment | Fault | None
    ) -> WalkEnd:
        higher = self._files.highest_first_position(segment.number)
        unread = self._files.unread(following, position) if isinstance(following, Fault) else None
        ask = following is None and not self._alone
        index = load_index(self._directory, segment.number) if ask else None
        return WalkEnd(
            segment=segment,
            position=position,
            following=following,
            unread=unread,
            durable=max(self._durable, higher),
            before=self._before,
            indexed=index is not None and index.end_position == position,
            alone=self._alone,
        )


def _from(frames: Generator[Frame, None, Stop], start: int) -> Generator[Frame, None, Stop]:
    """Leave out the frames that begin below ``start``."""
    while True:
        try:
            frame = next(frames)
        except StopIteration as stopped:
            stop: Stop = stopped.value
            return stop
        if frame.position >= start:
            yield frame


# ------------------------------------------------------------------ records


def read_records(frames: Iterable[Frame]) -> Iterator[tuple[Frame, Record]]:
    """Yield every record of the frames, with the frame that holds it.

    Raises ``CorruptLogError`` for a record that does not decode though its frame is valid, and
    ``FormatVersionError`` for an unknown one that must not be ignored.
    """
    for frame in frames:
        for parts in _parts(frame):
            yield frame, _decoded(frame, parts)


def _parts(frame: Frame) -> list[tuple[int, int, memoryview]]:
    try:
        return list(split_records(frame.payload))
    except UndecodableRecordError as error:
        raise corrupt_record(error, frame.segment, frame.offset) from None


def _decoded(frame: Frame, parts: tuple[int, int, memoryview]) -> Record:
    try:
        return decode_record(*parts)
    except UndecodableRecordError as error:
        raise corrupt_record(error, frame.segment, frame.offset) from None
    except FormatVersionError as error:
        raise FormatVersionError(
            f"segment {frame.segment}, offset {frame.offset}: {error}",
            found=error.found,
            supported=error.supported,
        ) from error.__cause__


def load_index(directory: ReadableDirectory, number: int) -> SegmentIndex | None:
    """Return the index beside a segment, or None if there is none that can be used."""
    try:
        file = directory.open_read(index_name(number))
        try:
            index = SegmentIndex.from_bytes(file.read(0, file.size()))
        finally:
            file.close()
    except OSError:
        return None
    if index is None or index.number != number:
        return None
    # A copying mistake may put the index of another store's segment here: it denies everything.
    return index if index.log_id in (b"", _log_id_of(directory, number)) else None


def _log_id_of(directory: ReadableDirectory, number: int) -> bytes | None:
    """Return the id of the log that a segment belongs to; None if it cannot be read."""
    try:
        segment = open_segment(directory, number)
    except (CorruptLogError, FileNotFoundError):
        return None
    segment.file.close()
    return segment.log_id


def records_about(
    directory: ReadableDirectory,
    tx_id: bytes,
    *,
    start_position: int | None = None,
    log_ids: Sequence[tuple[bytes, int]] | None = None,
    durable: int = 0,
) -> list[tuple[int, Record]]:
    """Return all records that say something of a transaction, with the positions of their frames.

    Settle lists, admissions and supplies that name it are among them.  Arguments and errors are
    those of ``find_transaction``.
    """

    def wanted(number: int) -> bool:
        index = load_index(directory, number)
        return index is None or index.may_contain(tx_id)

    scan = Scan(directory, start_position, durable=durable, log_ids=log_ids, wanted=wanted)
    found = [
        (frame.position, record)
        for frame, record in read_records(frame for frame in scan if tx_id in frame.payload)
        if getattr(record, "tx_id", None) == tx_id
        or any(one.tx_id == tx_id for one in getattr(record, "transactions", ()))
        or tx_id in getattr(record, "dropped", ())
    ]
    scan.end.raise_if_refused()
    return found


def find_transaction(
    directory: ReadableDirectory,
    tx_id: bytes,
    *,
    start_position: int | None = None,
    log_ids: Sequence[tuple[bytes, int]] | None = None,
    durable: int = 0,
) -> tuple[Frame, TxRecord | RollbackRecord] | None:
    """Return the last record of a transaction with its frame, or None if the log has none.

    ``start_position`` is where the search begins, by default with the first segment.  Segments
    whose index denies the transaction are not read.  Raises ``CorruptLogError`` for a
    log that is refused: what was not found may have been in its damaged part.
    """

    def wanted(number: int) -> bool:
        index = load_index(directory, number)
        return index is None or index.may_contain(tx_id)

    scan = Scan(directory, start_position, durable=durable, log_ids=log_ids, wanted=wanted)
    found = None
    for frame, record in read_records(frame for frame in scan if tx_id in frame.payload):
        if isinstance(record, TxRecord | RollbackRecord) and record.tx_id == tx_id:
            found = frame, record
    scan.end.raise_if_refused()
    return found
