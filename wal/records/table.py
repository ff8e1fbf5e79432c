"""The table of all records that this version knows, and from records to bytes and back.

A payload is records one behind the other, each skippable by its length.

Invariants:

- An unknown record without the flag ``MAY_BE_IGNORED`` refuses the log.
- Readers take longer arrays than they know (later minor versions append), never shorter ones.

Left out: what the fields of each are (``transactions``, ``partitions``, ``store``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgpack

from ...affinity.errors import CorruptLogError, FormatVersionError
from .partitions import (
    AdmitRecord,
    ClearRecord,
    EpochRecord,
    IngestRecord,
    OpenRecord,
    OutcomesRecord,
    SettleRecord,
    SuppliedRecord,
)
from .shapes import UNDECODABLE, UndecodableRecordError
from .store import (
    CheckpointRecord,
    DropNamespaceRecord,
    IdleRecord,
    NamespaceRecord,
    SealRecord,
    StateRecord,
    UnknownRecord,
)
from .transactions import (
    CommitRecord,
    CommitUptoRecord,
    PrepareRecord,
    RollbackRecord,
    TxFields,
    TxRecord,
    tx_fields,
)
from .types import (
    MAY_BE_IGNORED,
    RECORD_OVERHEAD,
    RecordType,
    pack_record_header,
    unpack_record_header,
)

Record = (
    TxRecord
    | PrepareRecord
    | CommitRecord
    | CommitUptoRecord
    | RollbackRecord
    | SettleRecord
    | OpenRecord
    | SuppliedRecord
    | ClearRecord
    | AdmitRecord
    | OutcomesRecord
    | NamespaceRecord
    | DropNamespaceRecord
    | EpochRecord
    | IngestRecord
    | CheckpointRecord
    | StateRecord
    | IdleRecord
    | UnknownRecord
)

NumberedRecord = TxRecord | RollbackRecord | IngestRecord
"""The records that close update numbers at once: those of their ``runs``."""


class RecordForm(NamedTuple):
    """How one type of record is written and read."""

    kind: RecordType
    flags: int
    record: type
    fields: Callable[[Any], object]
    of: Callable[[list[Any]], Record]


RECORD_FORMS = (
    RecordForm(RecordType.TX, 0, TxRecord, TxRecord.fields, TxRecord.of),
    RecordForm(RecordType.PREPARE, 0, PrepareRecord, PrepareRecord.fields, PrepareRecord.of),
    RecordForm(RecordType.COMMIT, 0, CommitRecord, CommitRecord.fields, CommitRecord.of),
    RecordForm(RecordType.ROLLBACK, 0, RollbackRecord, RollbackRecord.fields, RollbackRecord.of),
    RecordForm(RecordType.SETTLE, 0, SettleRecord, SettleRecord.fields, SettleRecord.of),
    RecordForm(RecordType.OPEN, 0, OpenRecord, OpenRecord.fields, OpenRecord.of),
    RecordForm(RecordType.SUPPLIED, 0, SuppliedRecord, SuppliedRecord.fields, SuppliedRecord.of),
    RecordForm(RecordType.CLEAR, 0, ClearRecord, ClearRecord.fields, ClearRecord.of),
    RecordForm(
        RecordType.CHECKPOINT,
        MAY_BE_IGNORED,
        CheckpointRecord,
        CheckpointRecord.fields,
        CheckpointRecord.of,
    ),
    RecordForm(RecordType.STATE, 0, StateRecord, StateRecord.fields, StateRecord.of),
    RecordForm(
        RecordType.NAMESPACE, 0, NamespaceRecord, NamespaceRecord.fields, NamespaceRecord.of
    ),
    RecordForm(
        RecordType.DROP_NAMESPACE,
        0,
        DropNamespaceRecord,
        DropNamespaceRecord.fields,
        DropNamespaceRecord.of,
    ),
    RecordForm(RecordType.EPOCH, 0, EpochRecord, EpochRecord.fields, EpochRecord.of),
    RecordForm(RecordType.INGEST, 0, IngestRecord, IngestRecord.fields, IngestRecord.of),
    RecordForm(
        RecordType.COMMIT_UPTO, 0, CommitUptoRecord, CommitUptoRecord.fields, CommitUptoRecord.of
    ),
    RecordForm(RecordType.IDLE, MAY_BE_IGNORED, IdleRecord, IdleRecord.fields, IdleRecord.of),
    RecordForm(RecordType.ADMIT, 0, AdmitRecord, AdmitRecord.fields, AdmitRecord.of),
    RecordForm(RecordType.OUTCOMES, 0, OutcomesRecord, OutcomesRecord.fields, OutcomesRecord.of),
)
"""All records that stand in frames; a SEAL stands in none."""

_BY_RECORD = {row.record: row for row in RECORD_FORMS}
_BY_NUMBER = {int(row.kind): row.of for row in RECORD_FORMS}


def encode_record(record: Record) -> bytes:
    """Return the bytes of a record, its header included."""
    if isinstance(record, UnknownRecord):
        return pack_record_header(len(record.body), record.type, MAY_BE_IGNORED) + record.body
    row = _BY_RECORD[type(record)]
    return _frame_up(row.kind, row.flags, row.fields(record))


def encode_seal(seal: SealRecord) -> bytes:
    """Return the bytes of a seal's record, its header included."""
    return _frame_up(RecordType.SEAL, MAY_BE_IGNORED, seal.fields())


def decode_seal(payload: bytes) -> SealRecord | None:
    """Return the seal in a payload, or None if it holds none."""
    try:
        kind, _, body = next(split_records(payload), (0, 0, b""))
        return SealRecord.of(msgpack.unpackb(body)) if kind == RecordType.SEAL else None
    except (UndecodableRecordError, *UNDECODABLE):
        return None


def _frame_up(kind: RecordType, flags: int, body: object) -> bytes:
    data: bytes = msgpack.packb(body)
    return pack_record_header(len(data), kind, flags) + data


def split_records(payload: bytes) -> Iterator[tuple[int, int, memoryview]]:
    """Yield (type, flags, body) of each record in a payload.

    Raises ``UndecodableRecordError`` if the lengths do not add up.
    """
    view = memoryview(payload)
    offset, end = 0, len(payload)
    while offset < end:
        if end - offset < RECORD_OVERHEAD:
            raise UndecodableRecordError(f"{end - offset} bytes left, too few for a record")
        length, kind, flags = unpack_record_header(payload, offset)
        offset += RECORD_OVERHEAD
        if length > end - offset:
            raise UndecodableRecordError(
                f"a record of {length} bytes, of which {end - offset} are left"
            )
        yield kind, flags, view[offset : offset + length]
        offset += length


def decode_record(kind: int, flags: int, body: memoryview | bytes) -> Record:
    """Return the record with this header and body.

    Raises ``UndecodableRecordError`` for a body that is not one, and ``FormatVersionError`` for an
    unknown record that must not be ignored.
    """
    of = _BY_NUMBER.get(kind)
    if of is None:
        if flags & MAY_BE_IGNORED:
            return UnknownRecord(type=kind, body=bytes(body))
        raise FormatVersionError(
            f"the log holds a record of type {kind}, which this version of tidelog does not know",
            found=kind,
            supported=max(_BY_NUMBER),
        )
    try:
        return of(msgpack.unpackb(body, strict_map_key=False, use_list=True))
    except UNDECODABLE as error:
        raise UndecodableRecordError(
            f"a record of type {kind} that does not decode: {error}"
        ) from None


def decode_tx_fields(body: memoryview | bytes) -> TxFields:
    """Return the fields of a TX record, for readers that want columns; raises alike."""
    try:
        return tx_fields(msgpack.unpackb(body, strict_map_key=False, use_list=True))
    except UNDECODABLE as error:
        raise UndecodableRecordError(f"a transaction that does not decode: {error}") from None


def decode_payload(payload: bytes) -> list[Record]:
    """Return all records of a payload; raises as ``split_records`` and ``decode_record`` do."""
    return [decode_record(*parts) for parts in split_records(payload)]


def corrupt_record(error: UndecodableRecordError, segment: int, offset: int) -> CorruptLogError:
    """Return what users see of an undecodable record in a frame whose CRC is right."""
    return CorruptLogError(
        f"segment {segment}, offset {offset}: a frame with a valid CRC holds {error}",
        kind="damaged",
        segment=segment,
        offset=offset,
    )
