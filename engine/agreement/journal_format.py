"""The bytes of the configuration log: header, records, and what a run of records comes to.

``docs/config-log-format.md`` shows the same as tables with a worked example.  A file is a header
and frames, both laid out as those of the log (``wal.format``); the payload of a frame is an array
of records, which are there all or not at all.

Invariants:

- ``decode_records`` takes what ``encode_records`` makes, and longer arrays of later versions.
- The fold never lowers a promised term or a decided index, whatever is appended.

Left out: files (``journal``), and what may be promised, accepted or decided.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

import msgpack

from ...wal.format import CLUSTER, PREVIEW, Frame, SegmentHeader
from ...wal.records.shapes import ID_SIZE, UNDECODABLE, UndecodableRecordError

CONFIG_MAGIC = b"TLCONFIG"
NO_ID = bytes(ID_SIZE)
"""The id of no cluster, and of no member."""
BATCH_MAX = 64 << 20
"""The most bytes that the records of one frame may take."""

_NUMBERS_END = 1 << 63


class Term(NamedTuple):
    """A term of a coordinator; of two with one number the higher member's is the higher one."""

    number: int
    member: UUID


NO_TERM = Term(0, UUID(int=0))
"""Below every term that anybody can stand in."""


@dataclass(frozen=True, slots=True)
class PromisedRecord:
    """The member has promised a term: it takes part in no lower one."""

    term: Term


@dataclass(frozen=True, slots=True)
class AcceptedRecord:
    """The member has accepted a change for an index; a later record replaces it."""

    index: int
    term: Term
    change: bytes


@dataclass(frozen=True, slots=True)
class DecidedRecord:
    """Everything up to an index is decided, as far as the member knows."""

    index: int


@dataclass(frozen=True, slots=True)
class NoteRecord:
    """Something small that the member has to remember; only who wrote it knows what it means."""

    kind: int
    data: bytes


@dataclass(frozen=True, slots=True)
class SnapshotRecord:
    """The state as of a decided index, and the term of that change; changes up to it are gone."""

    index: int
    term: Term
    data: bytes


AppendedRecord = PromisedRecord | AcceptedRecord | DecidedRecord | NoteRecord
"""What is appended; a snapshot begins a file."""
JournalRecord = AppendedRecord | SnapshotRecord


def _number(value: object) -> None:
    if type(value) is not int or not 0 <= value < _NUMBERS_END:
        raise ValueError(f"expected a number of 63 bits, found {value!r}")


def _bytes(value: object) -> None:
    if type(value) is not bytes:
        raise ValueError(f"expected bytes, found {value!r}")


def _member(value: object) -> None:
    if type(value) is not bytes or len(value) != ID_SIZE:
        raise ValueError(f"expected the {ID_SIZE} bytes of a member's id, found {value!r}")


_SHAPES: dict[int, tuple[Callable[[object], None], ...]] = {
    1: (_number, _member),
    2: (_number, _number, _member, _bytes),
    3: (_number,),
    4: (_number, _bytes),
    5: (_number, _number, _member, _bytes),
}
"""Kind of record -> what checks each of its fields; a later version may have more behind them."""


@dataclass(slots=True)
class Contents:
    """What the records so far come to; ``accepted`` holds what is above the snapshot, by index."""

    promised: Term = NO_TERM
    decided: int = 0
    snapshot: SnapshotRecord | None = None
    accepted: dict[int, AcceptedRecord] = field(default_factory=dict)
    notes: list[NoteRecord] = field(default_factory=list)

    def take(self, record: JournalRecord) -> None:
        """Go on by one record."""
        match record:
            case PromisedRecord():
                self.promised = max(self.promised, record.term)
            case AcceptedRecord():
                if self.snapshot is None or record.index > self.snapshot.index:
                    self.accepted[record.index] = record
            case DecidedRecord():
                self.decided = max(self.decided, record.index)
            case NoteRecord():
                self.notes.append(record)
            case SnapshotRecord():
                self.snapshot = record
                self.decided = max(self.decided, record.index)

    def carried(self, snapshot: SnapshotRecord, notes: Iterable[NoteRecord]) -> list[JournalRecord]:
        """Return the records with which the next file begins; of the notes it has ``notes``."""
        above = [record for index, record in self.accepted.items() if index > snapshot.index]
        return [
            snapshot,
            PromisedRecord(self.promised),
            DecidedRecord(self.decided),
            *above,
            *notes,
        ]


def contents_of(records: Iterable[JournalRecord]) -> Contents:
    """Return what records come to."""
    contents = Contents()
    for record in records:
        contents.take(record)
    return contents


def config_header(identity: bytes, cluster: bytes) -> SegmentHeader:
    """Return the header of a log's first file: a segment's, with the cluster as its store."""
    if len(identity) != ID_SIZE or len(cluster) != ID_SIZE:
        raise ValueError(
            f"identity and cluster have {ID_SIZE} bytes, not {identity!r}, {cluster!r}"
        )
    return SegmentHeader(
        log_id=identity,
        store_id=cluster,
        history_id=NO_ID,
        number=1,
        first_position=0,
        required=CLUSTER | PREVIEW,
    )


def encode_records(records: Iterable[JournalRecord]) -> bytes:
    """Return the payload of the frame that holds records; ``ValueError`` for what cannot be one."""
    rows = [_row_of(record) for record in records]
    for row in rows:
        _check(row)
    payload: bytes = msgpack.packb(rows)
    if len(payload) > BATCH_MAX:
        raise ValueError(f"records of {len(payload)} bytes, more than the {BATCH_MAX} of one frame")
    return payload


def decode_records(payload: bytes) -> list[JournalRecord]:
    """Return the records in the payload of a frame; ``UndecodableRecordError`` if it has others."""
    try:
        return [_record_of(row) for row in msgpack.unpackb(payload)]
    except UNDECODABLE as error:
        raise UndecodableRecordError(str(error)) from None


def config_records(frames: Iterable[Frame]) -> Iterator[tuple[int, JournalRecord]]:
    """Yield each record with the position of its frame; raises as ``decode_records`` does."""
    for frame in frames:
        for record in decode_records(frame.payload):
            yield frame.position, record


def _row_of(record: JournalRecord) -> list[Any]:
    match record:
        case PromisedRecord(term):
            return [1, *_term_row(term)]
        case AcceptedRecord(index, term, change):
            return [2, index, *_term_row(term), change]
        case DecidedRecord(index):
            return [3, index]
        case NoteRecord(kind, data):
            return [4, kind, data]
        case SnapshotRecord(index, term, data):
            return [5, index, *_term_row(term), data]


def _term_row(term: Term) -> tuple[int, bytes]:
    return term.number, term.member.bytes


def _record_of(row: list[Any]) -> JournalRecord:
    _check(row)
    match row:
        case [1, number, member, *_]:
            return PromisedRecord(Term(number, UUID(bytes=member)))
        case [2, index, number, member, change, *_]:
            return AcceptedRecord(index, Term(number, UUID(bytes=member)), change)
        case [3, index, *_]:
            return DecidedRecord(index)
        case [4, kind, data, *_]:
            return NoteRecord(kind, data)
    _, index, number, member, data, *_ = row
    return SnapshotRecord(index, Term(number, UUID(bytes=member)), data)


def _check(row: list[Any]) -> None:
    """Raise ``ValueError`` for a row that is not a record."""
    shape = _SHAPES.get(row[0])
    if shape is None:
        raise ValueError(f"expected a record of kind 1 to {max(_SHAPES)}, found kind {row[0]!r}")
    if len(row) <= len(shape):
        raise ValueError(
            f"expected {len(shape)} fields in a record of kind {row[0]}, found {len(row) - 1}"
        )
    for check, value in zip(shape, row[1:], strict=False):
        check(value)
