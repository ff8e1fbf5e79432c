"""The configuration log of one member on its disk: promises, accepted changes, notes, a snapshot.

One small file, ``config.log`` in the directory of the store, whose lock keeps a second process out:
there is no other lock here.  ``docs/config-log-format.md`` has its bytes.

Invariants:

- A batch of records is one frame: it is there whole or not at all.  It is durable as soon as
  ``sync`` has returned its position or a higher one.
- The file under its name is whole at every moment: it is made under another name, synced, renamed,
  and the directory synced.  Positions go on from one file to the next and never come again.
- What ``open`` returns is durable before it returns, also if the process before had not synced it.
- A file that is damaged below what was durable, is gone, belongs to another log or has an unknown
  format is never taken for a shorter one: nothing is written, and there is no journal.
- After a failed append or sync nothing is ever written again.

Used by one thread at a time.  Only ``sync`` may run beside ``append``, one at a time, and never
beside ``snapshot``.

Left out: what may be promised, accepted and decided, and when a snapshot is taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from ...affinity.errors import CorruptLogError, FormatVersionError, ReadOnlyError, UsageError
from ...wal.ending import WalkEnd, judge
from ...wal.format import (
    FORMAT_VERSION,
    HEADER_SIZE,
    SegmentHeader,
    check_writable,
    encode_frame,
    log_seed,
    parse_header,
)
from ...wal.ports import Directory, LogFile, ReadableDirectory
from ...wal.records.shapes import UndecodableRecordError
from ...wal.segments import NO_LIMIT, Segment, walk
from ...wal.tail import LogPlace
from ...wal.writer import LogFailedError, LogWriter, WriteSizes
from ..system.disk_errors import translated_disk
from ..system.layout import CONFIG_LOG_NAME, NEW_CONFIG_LOG_NAME
from .journal_format import (
    CONFIG_MAGIC,
    NO_ID,
    AcceptedRecord,
    AppendedRecord,
    Contents,
    NoteRecord,
    SnapshotRecord,
    Term,
    config_header,
    contents_of,
    decode_records,
    encode_records,
)

AHEAD = 64 << 10
"""Zeros behind the frames, so that a sync need not make the file grow each time."""
SNAPSHOT_AFTER = 256 << 10
"""Bytes behind the first frame from which on a snapshot is worth its price."""

_WHAT = "the configuration log"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """What a journal held when it was opened.

    ``accepted`` holds the changes above the snapshot, lowest index first, decided ones included.
    ``end`` is the position behind the last frame.  ``dropped_bytes`` is the length of a torn tail,
    which nobody was told to be durable.  ``damage`` says what is wrong, or is None; what could be
    read before the damage is here then, for a rescue alone.
    """

    promised: Term
    decided: int
    snapshot: SnapshotRecord | None
    accepted: tuple[AcceptedRecord, ...]
    notes: tuple[NoteRecord, ...]
    cluster: bytes | None
    end: int
    dropped_bytes: int = 0
    damage: str | None = None

    @property
    def may_vote(self) -> bool:
        """Whether the member may promise and accept: not if it may have forgotten what it did."""
        return self.damage is None


@dataclass(frozen=True, slots=True)
class _Current:
    """The open file of a journal, durable up to ``position``, and where its first frame ends."""

    header: SegmentHeader
    file: LogFile
    first_end: int
    position: int


class Journal:
    """The configuration log of a member, open for writing; see ``create`` and ``open``."""

    def __init__(self, directory: Directory, contents: Contents, current: _Current) -> None:
        self._directory = directory
        self._contents = contents
        self._current = current
        self._writer = _writer(directory, current)

    @classmethod
    def create(cls, directory: Directory, *, identity: bytes, cluster: bytes = NO_ID) -> Journal:
        """Make the journal of a member that has none, durable when this returns.

        ``identity`` is 16 bytes that no other log has.  Raises ``UsageError`` if there is a file:
        only ``open`` may say what that is worth.
        """
        header = config_header(identity, cluster)
        with translated_disk(f"creating {_WHAT}"):
            if CONFIG_LOG_NAME in directory.names():
                raise UsageError(
                    f"there is a {CONFIG_LOG_NAME} already: a new one would forget its promises",
                    hint="Open it. An interrupted creation leaves a whole one.",
                )
            current = _begin(directory, header, encode_records([]))
            try:
                _put(directory, current.file)
                return cls(directory, Contents(), current)
            except BaseException:
                current.file.close()
                raise

    @classmethod
    def open(
        cls, directory: Directory, *, identity: bytes, durable: int
    ) -> tuple[Journal | None, Recovered]:
        """Open the journal of a member that has one; None if it is damaged.

        ``durable`` is the highest position that is known to have been durable, 0 if nothing is
        known.  A torn tail above that, and above what the frames themselves tell, is cut.
        Everything that is returned is durable.  Raises ``DiskError`` or ``DiskFullError``.
        """
        with translated_disk(f"opening {_WHAT}"):
            found = _look(directory, identity, durable)
            header, recovered = found.header, found.recovered()
            if header is None or found.damage is not None:
                return None, recovered
            file = directory.open_write(CONFIG_LOG_NAME)
            try:
                _settle(directory, file, header, found)
                current = _Current(header, file, found.first_end, found.end)
                return cls(directory, found.contents, current), recovered
            except BaseException:
                file.close()
                raise

    @classmethod
    def succeed(
        cls, directory: Directory, *, identity: bytes, cluster: bytes, snapshot: SnapshotRecord
    ) -> None:
        """Let the journal of another cluster replace that of a member, durably, or not at all.

        It holds a snapshot, and no promise; its positions go on from those of the old one.
        """
        found = _look(directory, identity, 0)
        assert found.header is not None
        header = replace(
            config_header(identity, cluster),
            number=found.header.number + 1,
            first_position=found.end,
        )
        current = _begin(directory, header, encode_records([snapshot]))
        try:
            _put(directory, current.file)
        finally:
            current.file.close()

    @property
    def position(self) -> int:
        """The end of what was appended."""
        return self._writer.position

    @property
    def synced(self) -> int:
        """The end of what is durable, for the manifest to remember."""
        return self._writer.synced

    @property
    def failed(self) -> bool:
        """Whether nothing is ever written here again."""
        return self._writer.failure is not None

    @property
    def wants_snapshot(self) -> bool:
        """Whether the frames behind the first one are long enough for a snapshot to pay."""
        first_end = self._current.first_end
        first = first_end - self._current.header.first_position
        return self.position - first_end > max(SNAPSHOT_AFTER, first)

    def append(self, records: Iterable[AppendedRecord]) -> int:
        """Write a batch as one frame, without a sync; return the position behind it.

        An empty batch tells later openings what has been synced.  Raises ``DiskError`` or
        ``DiskFullError``, ``ReadOnlyError`` after an earlier failure, ``ValueError``, with nothing
        done, for what is not a record.
        """
        batch = list(records)
        payload = encode_records(batch)
        with self._failing_for_good("appending to"):
            self._writer.append(payload)
            for record in batch:
                self._contents.take(record)
            return self._writer.position

    def sync(self) -> int:
        """Make what was appended durable; return up to which position.  Raises as ``append``."""
        with self._failing_for_good("syncing"):
            return self._writer.sync()

    def snapshot(self, index: int, term: Term, data: bytes, notes: Iterable[NoteRecord]) -> None:
        """Begin a new file with the state at a decided index, durable when this returns.

        The promised term and the changes above ``index`` go on; of the notes those that are given.
        Raises as ``append`` does; if the new file finds no space, the old one goes on.
        """
        if self._writer.failure is not None:
            raise self._refusal()
        records = self._contents.carried(SnapshotRecord(index, term, data), notes)
        payload = encode_records(records)
        old, position = self._current, self.position
        header = replace(old.header, number=old.header.number + 1, first_position=position)
        with translated_disk(f"beginning a snapshot of {_WHAT}"):
            current = _begin(self._directory, header, payload)
        with self._failing_for_good("putting a snapshot into"):
            self._current = current
            try:
                _put(self._directory, current.file)
            finally:
                old.file.close()
            self._contents, self._writer = contents_of(records), _writer(self._directory, current)

    def close(self) -> None:
        """Close the file; nothing is synced here."""
        self._current.file.close()

    def _refusal(self) -> ReadOnlyError:
        return ReadOnlyError(
            f"{CONFIG_LOG_NAME} is not written any more since this failed: {self._writer.failure}",
            hint="Check the disk, and start the member again: what it then finds is durable.",
        )

    @contextmanager
    def _failing_for_good(self, doing: str) -> Iterator[None]:
        """Let no error or interrupt in the block be followed by another write."""
        try:
            with translated_disk(f"{doing} {_WHAT}"):
                yield
        except LogFailedError:
            raise self._refusal() from None
        except BaseException as error:
            failure = OSError(str(error) or type(error).__name__)
            self._writer.failure = self._writer.failure or failure
            raise


def open_config_log(directory: ReadableDirectory) -> Segment:
    """Open the file for reading, as what ``walk`` takes, whose frames ``config_records`` takes.

    Raises ``FileNotFoundError``, ``CorruptLogError`` for a damaged header, ``FormatVersionError``
    for a version or feature with which nobody may read it.
    """
    file = directory.open_read(CONFIG_LOG_NAME)
    try:
        header = parse_header(file.read(0, HEADER_SIZE), CONFIG_MAGIC, CONFIG_LOG_NAME)
        return Segment(
            number=header.number,
            first_position=header.first_position,
            log_id=header.log_id,
            file=file,
            header=header,
        )
    except BaseException:
        file.close()
        raise


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """What lies on the disk; ``durable`` is proven, ``end`` is where whole frames end."""

    contents: Contents = field(default_factory=Contents)
    header: SegmentHeader | None = None
    first_end: int = 0
    durable: int = 0
    end: int = 0
    dropped_bytes: int = 0
    damage: str | None = None

    def recovered(self) -> Recovered:
        contents, header = self.contents, self.header
        named = header is not None and header.store_id != NO_ID
        return Recovered(
            promised=contents.promised,
            decided=contents.decided,
            snapshot=contents.snapshot,
            accepted=tuple(contents.accepted[index] for index in sorted(contents.accepted)),
            notes=tuple(contents.notes),
            cluster=header.store_id if header is not None and named else None,
            end=self.end,
            dropped_bytes=self.dropped_bytes,
            damage=self.damage,
        )


def _look(directory: ReadableDirectory, identity: bytes, durable: int) -> _Found:
    """Return what lies on the disk, and what is wrong with it; nothing is written."""
    try:
        segment = open_config_log(directory)
    except FileNotFoundError:
        return _Found(
            damage=f"{CONFIG_LOG_NAME} is gone: expected the file of this member, found none"
        )
    except (CorruptLogError, FormatVersionError) as error:
        return _Found(damage=f"{CONFIG_LOG_NAME}, offset 0: {error}")
    try:
        found = _read(segment, durable)
    finally:
        segment.file.close()
    return replace(found, damage=_wrong_header(segment, identity) or found.damage)


def _wrong_header(segment: Segment, identity: bytes) -> str | None:
    """Return what prevents a header that is whole from being the one of this member's log."""
    place = f"{CONFIG_LOG_NAME}, offset 0"
    if segment.log_id != identity:
        return (
            f"{place}: the file belongs to another log: "
            f"expected identity {identity.hex()}, found {segment.log_id.hex()}"
        )
    try:
        if segment.header is not None:
            check_writable(CONFIG_LOG_NAME, FORMAT_VERSION, segment.header.read_only)
    except FormatVersionError as error:
        return f"{place}: {error}"
    return None


def _read(segment: Segment, durable: int) -> _Found:
    """Return what the frames hold, as far as they are whole."""
    contents, damage = Contents(), None
    first_end = position = segment.first_position
    durable = max(durable, position + 1)  # the first frame was durable before the file had its name
    before = None
    for frame in walk(segment, position):
        try:
            records = decode_records(frame.payload)
        except UndecodableRecordError as error:
            place = f"{CONFIG_LOG_NAME}, offset {frame.offset}"
            damage = f"{place}: a whole frame, but not of records of this version: {error}"
            break
        for record in records:
            contents.take(record)
        durable, position = max(durable, frame.synced), frame.end
        first_end = position if before is None else first_end
        before = LogPlace(frame.position, segment.number, frame.offset)
    end = judge(
        WalkEnd(
            segment=segment,
            position=position,
            following=None,
            unread=None,
            durable=durable,
            before=before,
            alone=True,
        )
    )
    return _Found(
        contents=contents,
        header=segment.header,
        first_end=first_end,
        durable=end.durable,
        end=position,
        dropped_bytes=end.dropped_bytes,
        damage=damage or (end.told(CONFIG_LOG_NAME) if end.refused else None),
    )


def _settle(directory: Directory, file: LogFile, header: SegmentHeader, found: _Found) -> None:
    """Make what was found durable, and all behind it zeros.

    A process that ended before its sync, or at one that failed, leaves in the page cache what is
    not on the disk; that is written again.  What stays behind the end would come back once a new
    frame ends where it begins.
    """
    base = HEADER_SIZE - header.first_position
    tail = file.read(base + found.durable, found.end - found.durable)
    file.write(base + found.durable, tail + bytes(AHEAD))
    file.truncate(base + found.end + AHEAD)
    file.sync()
    directory.sync()


def _writer(directory: Directory, current: _Current) -> LogWriter:
    """Return what appends to a file; it never begins another one by itself."""
    return LogWriter(
        directory,
        current.header,
        current.file,
        position=current.position,
        synced=current.position,
        segment_size=NO_LIMIT,
        state=bytes,
        spare=lambda: None,
        sealed=lambda _header, _end: None,
        sizes=WriteSizes(ahead=AHEAD),
    )


def _begin(directory: Directory, header: SegmentHeader, payload: bytes) -> _Current:
    """Write a file under another name, without a sync, and return it."""
    first = header.first_position
    frame = encode_frame(log_seed(header.log_id), first, first, payload)
    if NEW_CONFIG_LOG_NAME in directory.names():
        directory.unlink(NEW_CONFIG_LOG_NAME)
    file = directory.create(NEW_CONFIG_LOG_NAME)
    try:
        file.write(0, header.to_bytes(CONFIG_MAGIC) + frame + bytes(AHEAD))
        return _Current(header, file, first + len(frame), first + len(frame))
    except BaseException:
        file.close()
        raise


def _put(directory: Directory, file: LogFile) -> None:
    """Let a file that was begun take its name, durably."""
    file.sync()
    directory.rename(NEW_CONFIG_LOG_NAME, CONFIG_LOG_NAME)
    directory.sync()
