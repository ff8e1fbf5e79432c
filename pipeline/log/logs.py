"""The log of a store on disk, as the pipeline reads it: cuts, and slices that tasks read.

A *cut* is a position between two frames up to which the log is durable, with what the log says up
to there: update numbers per partition, names of maps.  Each transaction is one record, so no cut
splits one.  A *slice* is a stretch of one segment; whoever reads it needs nothing else of the log.

Invariants:

- Nothing above the newest position that is known to be durable is read.
- The slices of a range cover each frame of it exactly once, wherever their borders fall: a slice
  holds the frames from the first valid one at or above its lower border up to the first valid one
  at or above the upper one.  So a damaged frame at a border is seen by the slice below it.
- Files are opened for reading only; a live writer may go on beside.

Left out: LMDB, and what becomes of the records (``columns``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import NamedTuple

from ...affinity.errors import (
    CorruptLogError,
    HistoryTruncatedError,
    NotFoundError,
    UsageError,
)
from ...checkpoints.replay import State
from ...engine.files.features import check_own
from ...engine.files.log_source import LogSource, find_log
from ...engine.files.recovery import newest_durable
from ...wal.format import Frame
from ...wal.reader import Scan, read_records
from ...wal.records import (
    HIDDEN,
    DropNamespaceRecord,
    IngestRecord,
    NamespaceRecord,
    NumberedRecord,
    Record,
    RecordType,
    StateRecord,
    TxRecord,
    UndecodableRecordError,
    corrupt_record,
    decode_payload,
    decode_record,
    split_records,
)
from ...wal.segments import Segment, later_frames, open_segment, probe, segment_numbers, walk
from ..base.vectors import Number, Vector

_KEEP_MORE = "Keep more of it (`retain_bytes`), or set failOnDataLoss=false to skip."


@dataclass(slots=True, kw_only=True)
class Cut:
    """A position of the log and the fold of everything below it."""

    position: int
    state: State
    names: dict[int, str]
    """Names of maps by id, dropped ones included; empty for one that was dropped hidden."""
    changes: int = 0
    """Updates folded in since the cut that this one grew from."""

    def vector(self) -> dict[int, Number]:
        """Return how far each partition has come."""
        epochs = self.state.epochs
        return {p: (epochs[p], c.lwm) for p, c in enumerate(self.state.counters)}

    def maps(self) -> dict[int, str]:
        """Return the names of the maps that were there, by id."""
        records = self.state.namespaces.values()
        return {record.id: record.name for record in records if not record.hidden}

    def lacking(self, vector: Vector) -> tuple[int, Number] | None:
        """Return a partition that has not come as far as a vector, and how far that is."""
        counters = self.state.counters
        return next(((p, n) for p, n in vector.items() if counters[p].lwm < n[1]), None)

    def check_reaches(self, vector: Vector, path: str) -> None:
        """Raise ``UsageError`` unless every partition has come as far as a vector."""
        behind = self.lacking(vector)
        if behind is not None:
            partition, wanted = behind
            raise UsageError(
                f"partition {partition} of {path} has come to number "
                f"{self.state.counters[partition].lwm}, but {wanted[1]} was asked for",
                hint="The store was replaced or its tail was lost: begin anew.",
            )

    def compare(self, record: StateRecord) -> None:
        """Learn from the head of a later segment what unreadable frames may have hidden."""
        self.names.update(_names(record))
        self.state.apply(self.position, record)  # the store may have grown
        self.state.epochs = list(record.epochs)
        for counter, lwm in zip(self.state.counters, record.lwms, strict=True):
            if lwm > counter.hwm:
                counter.reserve(lwm - counter.hwm)

    def take(self, position: int, record: Record) -> None:
        """Fold one record in."""
        self.state.apply(position, record)
        if isinstance(record, NamespaceRecord):
            self.names[record.id] = record.name
        elif isinstance(record, DropNamespaceRecord):
            if self.names.get(record.id, "").startswith(HIDDEN):
                self.names[record.id] = ""
        elif isinstance(record, TxRecord):
            self.changes += len(record.keys)


_SKIP = (
    "Read a snapshot, and changes from behind these numbers on (`tidelog wal dump --type ingest` "
    "has all of them); failOnDataLoss=false skips them."
)
_SHOWN = 16
"""Partitions that such an error names."""


def attached(
    path: str, name: str, record: IngestRecord, hint: str = _SKIP
) -> HistoryTruncatedError:
    """Return the error for numbers whose rows came from the files of a load, and are in no log."""
    shown = f"map {record.namespace}" if name.startswith(HIDDEN) else f"map {name!r}"
    numbers = [f"{run.partition}: {run.first}..{run.first + run.count - 1}" for run in record.runs]
    more = f", and {len(numbers) - _SHOWN} more" if len(numbers) > _SHOWN else ""
    return HistoryTruncatedError(
        f"the log of {path} has no rows of {shown}, which was attached from files, with these "
        f"update numbers by partition: {', '.join(numbers[:_SHOWN])}{more}",
        hint=hint,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """A stretch of one segment, for one task: frames that begin in ``low .. high - 1``.

    ``end`` is where the durable part of the segment ends; ``exact`` says that ``low`` is the
    border of a frame.
    """

    path: str
    segment: int
    low: int
    high: int
    end: int
    exact: bool


class BadFrame(NamedTuple):
    """A stretch of a segment that holds no valid frame."""

    segment: int
    offset: int
    length: int
    position: int
    expected: int | None
    found: int | None

    def error(self, path: str) -> CorruptLogError:
        """Return the error for it."""
        shown = (
            "" if self.expected is None else f" (CRC {self.expected:08x}, {self.found:08x} found)"
        )
        return CorruptLogError(
            f"{path}: segment {self.segment}, offset {self.offset}: an invalid frame below what "
            f"was durable{shown}",
            hint="`tidelog wal verify` says what is affected; mode=PERMISSIVE of the view `wal` "
            "reads around it.",
            kind="damaged",
            segment=self.segment,
            offset=self.offset,
            expected=self.expected,
            found=self.found,
        )


CatalogRecord = StateRecord | NamespaceRecord | DropNamespaceRecord

CATALOG = (RecordType.STATE, RecordType.NAMESPACE, RecordType.DROP_NAMESPACE)
"""The records that say what maps there are."""


def catalog_records(frame: Frame) -> Iterator[CatalogRecord]:
    """Yield the records of a frame that say what maps there are; raises ``CorruptLogError``."""
    try:
        for kind, flags, body in split_records(frame.payload):
            if kind in CATALOG:
                record = decode_record(kind, flags, body)
                assert isinstance(record, CatalogRecord)
                yield record
    except UndecodableRecordError as error:
        raise corrupt_record(error, frame.segment, frame.offset) from None


def learn(names: dict[int, str], record: CatalogRecord) -> None:
    """Bring names of maps by id up to date with a record."""
    if isinstance(record, StateRecord):
        names.clear()
        names.update(_names(record))
    elif isinstance(record, NamespaceRecord):
        names[record.id] = record.name
    else:
        names.pop(record.id, None)


def _names(record: StateRecord) -> dict[int, str]:
    return {namespace.id: namespace.name for namespace in record.namespaces}


def check_partitions(path: str, wanted: Iterable[int], here: Collection[int]) -> None:
    """Raise ``UsageError`` for a partition that a store does not have."""
    for partition in wanted:
        if partition not in here:
            raise UsageError(f"{path} has {len(here)} partitions, and no partition {partition}")


class Log:
    """The log at a path: a store, a hot copy, or a folder of segments."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.source: LogSource = find_log(path)
        numbers = self._numbers()
        if not numbers:
            raise NotFoundError(f"there is no segment of a log in {path}", hint="Check the path.")
        with self._segment(numbers[-1]) as segment:
            header = segment.header
        assert header is not None
        check_own(path, self.source.manifest, header)
        self.store_id, self.history_id = header.store_id, header.history_id

    def _numbers(self) -> list[int]:
        return segment_numbers(self.source.directory)

    @contextmanager
    def _segment(self, number: int) -> Iterator[Segment]:
        """Open a segment for a block; ``HistoryTruncatedError`` if it has gone."""
        try:
            segment = open_segment(self.source.directory, number)
        except FileNotFoundError:
            raise HistoryTruncatedError(
                f"segment {number} of {self.path} has been dropped meanwhile",
                hint="Let the writer keep more of its log: `retain_bytes`.",
            ) from None
        try:
            yield segment
        finally:
            segment.file.close()

    # -------------------------------------------------------------- cuts

    def durable_end(self, known: int = 0) -> int:
        """Return the newest position that the log or the manifest shows to be durable."""
        with self._segment(self._numbers()[-1]) as segment:
            known = max(known, segment.first_position)
        source = self.source
        clean_end = source.manifest.clean_end if source.manifest else None
        known, log_ids = max(known, clean_end or 0), list(source.log_ids or ())
        return newest_durable(source.directory, log_ids, known, alone=source.alone)

    def earliest(self) -> Cut:
        """Return the cut at which the kept log begins."""
        return self._head(self._numbers()[0])

    def behind_loads(self) -> Cut:
        """Return the lowest cut of the kept log from which on it has the rows of all numbers."""
        cut, behind = self.earliest(), 0
        for frame in self.between(cut.position, self.durable_end(cut.position)):
            try:
                kinds = {kind for kind, _, _ in split_records(frame.payload)}
            except UndecodableRecordError as error:
                raise corrupt_record(error, frame.segment, frame.offset) from None
            if RecordType.INGEST in kinds:
                behind = frame.end
        return self._grown(cut, behind, None)

    def newest(
        self,
        grown_from: Cut | None = None,
        most: int | None = None,
        end: int | None = None,
        *,
        in_bytes: bool = False,
    ) -> Cut:
        """Return the newest durable cut, or the first one ``most`` updates behind another.

        A transaction larger than that goes whole.  ``end`` is a durable position not to go beyond.
        ``in_bytes``: ``most`` bytes of the log.
        """
        cut = grown_from or self._head(self._numbers()[-1])
        end = self.durable_end(cut.position) if end is None else end
        return self._grown(cut, end, most, in_bytes=in_bytes)

    def all_below(self, position: int) -> Cut:
        """Return the fold of everything below a durable position in the last segment."""
        cut = self._head(self._numbers()[-1])
        for frame in self.between(cut.position, position):
            for _, record in read_records((frame,)):
                cut.take(frame.position, record)
        cut.position = position
        return cut

    def extent(self, *, permissive: bool) -> tuple[int, int]:
        """Return where the kept log begins, and where its durable part ends.

        ``permissive``: if the last segment is damaged, the end of its last valid frame.
        """
        numbers = self._numbers()
        with self._segment(numbers[0]) as segment:
            first = segment.first_position
        try:
            return first, self.durable_end()
        except CorruptLogError:
            if not permissive:
                raise
        with self._segment(numbers[-1]) as segment:
            end = segment.first_position
            for frame in later_frames(segment, segment.offset_of(end)):
                end = frame.end
        return first, end

    def lost_end(self) -> BadFrame | None:
        """Return where the log ends below what the manifest says was durable, if it does."""
        _, end = self.extent(permissive=True)
        if end >= self.source.durable:
            return None
        with self._segment(self._numbers()[-1]) as segment:
            return self._bad_frame(segment, end, self.source.durable)

    def border(self, position: int, end: int) -> int:
        """Return the first border of frames at or behind a position; ``end`` is the last one.

        ``HistoryTruncatedError`` if the kept log begins above the position.
        """
        for number in reversed(self._numbers()):
            with self._segment(number) as segment:
                if segment.first_position <= position:
                    offset = segment.offset_of(position)
                    frame = next(later_frames(segment, offset, end), None)
                    return end if frame is None else min(frame.position, end)
                end = min(end, segment.first_position)
        raise self._gone(position)

    def at(self, vector: Vector) -> Cut:
        """Return the lowest cut at which every partition has come at least as far as a vector.

        ``HistoryTruncatedError`` if the kept log begins above it, ``UsageError`` if the log
        does not reach it.
        """
        cut = self.before(vector, short=True)
        end = self.durable_end(cut.position)
        cut = self._grown(cut, end, None, until=vector)
        cut.check_reaches(vector, self.path)
        return cut

    def before(self, vector: Vector, *, short: bool = False) -> Cut:
        """Return the highest head of a segment at which no partition has come further.

        ``short`` asks for one at which some partition has not come as far, if there is one.
        """
        found: Cut | None = None
        for cut in self._heads():
            here = cut.vector()
            check_partitions(self.path, vector, here)
            if all(here[p][1] <= wanted[1] for p, wanted in vector.items()):
                found = cut
                if not short or cut.lacking(vector) is not None:
                    return cut
        if found is not None:
            return found
        kept = {p: n for p, (_, n) in cut.vector().items() if n > vector.get(p, (0, n))[1]}
        wanted = {p: vector[p][1] for p in kept}
        raise HistoryTruncatedError(
            f"the log of {self.path} is kept from update numbers {kept} on, but {wanted} were "
            "asked for",
            hint=_KEEP_MORE,
        )

    def head_below(self, position: int) -> Cut:
        """Return the cut at the highest head of a segment at or below a position."""
        for cut in self._heads():
            if cut.position <= position:
                return cut
        raise self._gone(position)

    def until(self, time: int) -> Cut:
        """Return the highest cut below which all was committed before a time, microseconds UTC.

        Times never fall along a log.  ``HistoryTruncatedError`` if the kept log begins later.
        """
        for cut in self._heads():
            if cut.state.time < time:
                return self._grown(cut, self.durable_end(cut.position), None, time=time)
        if any(counter.lwm for counter in cut.state.counters):
            raise HistoryTruncatedError(
                f"the log of {self.path} is kept from {cut.state.time} on, in microseconds UTC, "
                f"but {time} was asked for",
                hint=_KEEP_MORE,
            )
        return cut

    def salvage(self) -> tuple[Cut, list[CorruptLogError]]:
        """Return the fold of all that can be read of the kept log, and what speaks of the rest.

        LWM of a partition is its last number without a gap, HWM the highest that is known of.
        """
        cut, damage = self.earliest(), []
        counters = cut.state.counters
        try:
            end = self.durable_end()
        except CorruptLogError as error:
            damage.append(error)
            _, end = self.extent(permissive=True)
        for part in self.slices(cut.position, end, most_bytes=end):
            for frame in self.frames(part, permissive=True):
                if isinstance(frame, BadFrame):
                    damage.append(frame.error(self.path))
                    continue
                for _, record in read_records((frame,)):
                    if isinstance(record, NumberedRecord):
                        for run in record.runs:
                            counters[run.partition].update(run.first - 1, run.count)
                    elif isinstance(record, StateRecord):
                        cut.compare(record)
                    else:
                        cut.take(frame.position, record)
        cut.position = end
        return cut, damage

    def _heads(self) -> Iterator[Cut]:
        """Yield the cuts at the heads of segments, newest first, but for damaged ones.

        Whoever begins at a lower one instead comes past the damage.  That of the first segment
        has to be there.
        """
        first, *others = self._numbers()
        for number in reversed(others):
            with suppress(CorruptLogError):
                yield self._head(number)
        yield self._head(first)

    def _head(self, number: int) -> Cut:
        """Return the cut behind the STATE record of a segment."""
        with self._segment(number) as segment:
            for frame in walk(segment, segment.first_position):
                head, *lists = decode_payload(frame.payload)
                if isinstance(head, StateRecord):
                    state = State.from_record(head)
                    for record in lists:
                        state.apply(frame.position, record)
                    return Cut(position=frame.end, state=state, names=_names(head))
                break
            raise self._bad(segment, segment.first_position, segment.first_position + 1)

    def _grown(
        self,
        cut: Cut,
        end: int,
        most: int | None,
        *,
        in_bytes: bool = False,
        until: Vector | None = None,
        time: int | None = None,
    ) -> Cut:
        start = cut.position
        cut = replace(deepcopy(cut), changes=0)  # whoever remembers it goes on from there
        if cut.position >= end:
            return cut
        waiting: list[tuple[int, Record]] = []
        for frame in self.between(cut.position, end):
            if most is not None and (cut.position - start if in_bytes else cut.changes) >= most:
                return cut
            if until is not None and cut.lacking(until) is None:
                return cut
            fresh = [record for _, record in read_records((frame,))]
            waiting += [(frame.position, record) for record in fresh]
            moving = [record for record in fresh if isinstance(record, NumberedRecord)]
            if time is not None and any(record.time >= time for record in moving):
                return cut
            # A cut ends where the last number moved, whatever follows: a vector has one cut only.
            if moving:
                for position, record in waiting:
                    cut.take(position, record)
                cut.position = frame.end
                waiting.clear()
        return cut

    def between(self, start: int, end: int) -> Iterator[Frame]:
        """Yield the frames between two borders of frames; damage is an error."""
        source = self.source
        scan = Scan(
            source.directory,
            start,
            exact=True,
            durable=end,
            log_ids=source.log_ids,
            alone=source.alone,
        )
        for frame in scan:
            if frame.end > end:
                return
            yield frame
        with self._segment(self._numbers()[0]) as segment:
            if segment.first_position > start:
                raise self._gone(start)
        scan.end.raise_if_refused()

    def _gone(self, position: int) -> HistoryTruncatedError:
        return HistoryTruncatedError(
            f"the log of {self.path} does not go back to position {position} any more",
            hint=_KEEP_MORE,
        )

    # -------------------------------------------------------------- maps

    def names(self, cut: Cut) -> dict[int, str]:
        """Return the last names of the maps below a cut, dropped ones included.

        One that came and went within a segment that is not the last one is not among them.
        """
        heads = [head.names for head in self._heads() if head.position <= cut.position]
        found: dict[int, str] = {}
        for names in (*reversed(heads), cut.names):
            found |= names
        return found

    def record_of(self, number: int) -> NamespaceRecord | None:
        """Return what the kept log says of a map, whatever became of it; may read all of it."""
        for head in self._heads():
            record = head.state.namespaces.get(number)
            if record is not None:
                return record
        return self._last(lambda record: record.id == number)

    def record_named(self, name: str) -> NamespaceRecord | None:
        """Return the record of the map of a name, or of the last one that was called so.

        Of one that is not there any more this reads all of the log.
        """
        with suppress(CorruptLogError):
            for record in self.newest().state.namespaces.values():
                if record.name == name:
                    return record
        return self._last(lambda record: record.name == name)

    def _last(self, wanted: Callable[[NamespaceRecord], bool]) -> NamespaceRecord | None:
        """Return the last of the records of maps in the kept log that is wanted."""
        found = None
        for _, record in self._catalog(*self.extent(permissive=True)):
            # The head of a segment has names that were given in a part of the log that has gone.
            given = record.namespaces if isinstance(record, StateRecord) else [record]
            for one in given:
                if isinstance(one, NamespaceRecord) and wanted(one):
                    found = one
        return found

    def has_map(self, name: str) -> bool:
        """Tell whether any map had a name in the kept log; reads all of it."""
        return self._last(lambda record: record.name == name) is not None

    def name_of_load(self, number: int, position: int) -> str:
        """Return the first name that the map of a load gets behind a position.

        Empty for one that was dropped without; hidden for one that has none yet.
        """
        _, end = self.extent(permissive=True)
        for _, record in self._catalog(position, end):
            if isinstance(record, NamespaceRecord) and record.id == number and not record.hidden:
                return record.name
            if isinstance(record, DropNamespaceRecord) and record.id == number:
                return ""
        return HIDDEN

    def names_below(self, part: Slice) -> dict[int, str]:
        """Return the names that maps have where a slice begins, by id.

        The head of its segment has them, and what lies between: so they depend on nothing else.
        """
        with self._segment(part.segment) as segment:
            first = segment.first_position
        names: dict[int, str] = {}
        before = replace(part, low=first, high=part.low, exact=True)
        for _, record in self._catalog_of(before):
            learn(names, record)
        return names

    def _catalog(self, start: int, end: int) -> Iterator[tuple[int, CatalogRecord]]:
        """Yield what can be read of the records of maps, each with its position."""
        for part in self.slices(start, end, most_bytes=end):
            yield from self._catalog_of(part)

    def _catalog_of(self, part: Slice) -> Iterator[tuple[int, CatalogRecord]]:
        for frame in self.frames(part, permissive=True):
            if isinstance(frame, Frame):
                for record in catalog_records(frame):
                    yield frame.position, record

    # -------------------------------------------------------------- slices

    def slices(self, start: int, end: int, *, most_bytes: int) -> list[Slice]:
        """Return slices, of about ``most_bytes`` at most, that cover ``start .. end - 1``.

        ``start`` and ``end`` are borders of frames.
        """
        found: list[Slice] = []
        stop = end
        for number in reversed(self._numbers()):
            with self._segment(number) as segment:
                first = segment.first_position
            low = max(first, start)
            if low < stop:
                # Up to an eighth more: a task costs more than reading that.
                pieces = -(-(stop - low) // (most_bytes + most_bytes // 8))
                borders = [low + (stop - low) * place // pieces for place in range(pieces + 1)]
                found += [
                    Slice(path=self.path, segment=number, low=a, high=b, end=stop, exact=a == low)
                    for a, b in zip(borders[-2::-1], borders[:0:-1], strict=True)
                ]
            stop = min(stop, first)
            if first <= start:
                return found[::-1]
        raise self._gone(start)

    def frames(
        self, part: Slice, *, permissive: bool = False
    ) -> Generator[Frame | BadFrame, None, None]:
        """Yield the frames of a slice; a stretch without a valid one is an error, or an item."""
        with self._segment(part.segment) as segment:
            position = part.low
            if not part.exact:
                offset = segment.offset_of(part.low)
                first = next(later_frames(segment, offset, part.end), None)
                position = part.end if first is None else first.position
            while position < part.high:
                frame = None
                for frame in walk(segment, position, part.end):
                    if frame.position >= part.high:
                        return
                    yield frame
                position = frame.end if frame is not None else position
                if position >= part.end:
                    return
                after = next(later_frames(segment, segment.offset_of(position) + 1, part.end), None)
                bad = self._bad_frame(
                    segment, position, part.end if after is None else after.position
                )
                if not permissive:
                    raise bad.error(self.path)
                yield bad
                position = bad.position + bad.length

    def _bad(self, segment: Segment, position: int, end: int) -> CorruptLogError:
        return self._bad_frame(segment, position, end).error(self.path)

    @staticmethod
    def _bad_frame(segment: Segment, position: int, end: int) -> BadFrame:
        seen = probe(segment, position)
        return BadFrame(
            segment.number,
            segment.offset_of(position),
            end - position,
            position,
            seen.expected,
            seen.found,
        )
