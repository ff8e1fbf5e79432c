"""The record schema: what ``wal dump`` prints of each record, as data and as text.

Owns version 1 of the schema (``docs/cli.md`` describes it) and the names that a log gives to its
namespaces as it goes on.

Invariants:

- Every record of a valid frame has a form, also one that does not decode or is not known.
- Bytes are exact (``s`` or ``b64``); what the recorded codecs make of them stands beside them.

Left out: which records are wanted (``filters``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ...affinity.errors import CodecError, FormatVersionError
from ...engine.codecs.byte_text import shown_bytes
from ...engine.codecs.registry import Codec, reading_codec
from ...wal.format import Frame
from ...wal.records import (
    AdmitRecord,
    CheckpointRecord,
    ClearRecord,
    CommitRecord,
    CommitUptoRecord,
    DropNamespaceRecord,
    EpochRecord,
    IdleRecord,
    IngestRecord,
    NamespaceRecord,
    OpenRecord,
    OutcomesRecord,
    PrepareRecord,
    Record,
    RollbackRecord,
    SettleRecord,
    StateRecord,
    SuppliedRecord,
    TxRecord,
    UndecodableRecordError,
    UnknownRecord,
    Update,
    decode_record,
    split_records,
)
from ...wal.tail import End, LogPlace
from ..shell.text import inline, shown_pair_part, shown_time
from .copies import copy_details, copy_document, run_document, shown_runs

SCHEMA = 1
FIRST_USER_NAMESPACE = 16
SHOWN_MAX = 120
"""How many characters of a value people are shown; ``--json`` has all of it."""

_INTERNAL = {1: "(outcomes)", 2: "(ledger)", 3: "(losses)", 4: "(pending)"}


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRecord:
    """A record that this version cannot read: ``later`` says that a later version wrote it."""

    number: int
    body: bytes
    problem: str
    later: bool


AnyRecord = Record | BadRecord
WithUpdates = TxRecord | PrepareRecord | SettleRecord | SuppliedRecord


@dataclass(frozen=True, slots=True)
class LoggedRecord:
    """A record and the frame that holds it, as its ``index``-th one."""

    frame: Frame
    index: int
    record: AnyRecord


def records_in(frame: Frame) -> Iterator[LoggedRecord]:
    """Yield every record of a frame, those that do not decode included."""
    parts = split_records(frame.payload)
    index = 0
    while True:
        try:
            number, flags, body = next(parts)
        except StopIteration:
            return
        except UndecodableRecordError as error:
            rest = BadRecord(number=0, body=frame.payload, problem=str(error), later=False)
            yield LoggedRecord(frame, index, rest)
            return
        yield LoggedRecord(frame, index, _decoded(number, flags, body))
        index += 1


def _decoded(number: int, flags: int, body: memoryview) -> AnyRecord:
    try:
        return decode_record(number, flags, body)
    except UndecodableRecordError as error:
        return BadRecord(number=number, body=bytes(body), problem=str(error), later=False)
    except FormatVersionError as error:
        return BadRecord(number=number, body=bytes(body), problem=str(error), later=True)


def updates_of(record: AnyRecord) -> Iterator[Update]:
    """Yield the updates that a record brings; most kinds bring none."""
    if isinstance(record, WithUpdates):
        yield from record.updates()


class Names:
    """What the log so far says about its namespaces."""

    def __init__(self) -> None:
        self._records: dict[int, NamespaceRecord] = {}
        self._codecs: dict[tuple[str, int], Codec[Any] | None] = {}
        self.seen: set[str] = set()

    def learn(self, record: AnyRecord) -> None:
        """Take in a record."""
        match record:
            case StateRecord():
                for namespace in record.namespaces:
                    self._add(namespace)
            case NamespaceRecord():
                self._add(record)
            case _:
                pass

    def _add(self, record: NamespaceRecord) -> None:
        self._records[record.id] = record
        self.seen |= {record.name, str(record.id)}

    def named(self, name: str) -> frozenset[int]:
        """Return the ids of the namespaces that have a name now."""
        return frozenset(number for number, record in self._records.items() if record.name == name)

    def name(self, number: int) -> str | None:
        """Return the name of a namespace, or None if the log has not said it."""
        record = self._records.get(number)
        return record.name if record else _INTERNAL.get(number)

    def record(self, number: int) -> NamespaceRecord | None:
        """Return what the log said last about a namespace."""
        return self._records.get(number)

    def key_codec(self, number: int) -> Codec[Any] | None:
        """Return the codec of its keys, or None if that is not known here."""
        record = self._records.get(number)
        return self._codec(record.key_codec, record.key_version) if record else None

    def value_codec(self, number: int) -> Codec[Any] | None:
        """Return the codec of its values, or None if that is not known here."""
        record = self._records.get(number)
        return self._codec(record.value_codec, record.value_version) if record else None

    def _codec(self, name: str, version: int) -> Codec[Any] | None:
        wanted = (name, version)
        if wanted not in self._codecs:
            try:
                self._codecs[wanted] = reading_codec(name, version)
            except CodecError:
                self._codecs[wanted] = None
        return self._codecs[wanted]


def type_of(record: AnyRecord) -> str:
    """Return the name of a record's type in the schema."""
    match record:
        case BadRecord():
            return "unknown" if record.later else "undecodable"
        case UnknownRecord():
            return "unknown"
        case _:
            return _TYPES[type(record)]


_TYPES: dict[type, str] = {
    TxRecord: "tx",
    RollbackRecord: "rollback",
    NamespaceRecord: "namespace",
    DropNamespaceRecord: "drop_namespace",
    EpochRecord: "epoch",
    IngestRecord: "ingest",
    CheckpointRecord: "checkpoint",
    StateRecord: "state",
    IdleRecord: "idle",
    PrepareRecord: "prepare",
    CommitRecord: "commit",
    CommitUptoRecord: "commit_upto",
    SettleRecord: "settle",
    OpenRecord: "open",
    SuppliedRecord: "supplied",
    ClearRecord: "clear",
    AdmitRecord: "admit",
    OutcomesRecord: "outcomes",
}

TYPE_NAMES = (*_TYPES.values(), "unknown", "undecodable")


def record_time(record: AnyRecord) -> int | None:
    """Return the time of a record in microseconds, or None if it has none."""
    time = getattr(record, "time", None)
    return time if isinstance(time, int) else None


# ------------------------------------------------------------------ as data


def document(logged: LoggedRecord, names: Names, updates: Sequence[Update]) -> dict[str, Any]:
    """Return what ``--json`` prints of a record; of a transaction with these updates."""
    frame, record = logged.frame, logged.record
    head: dict[str, Any] = {
        "v": SCHEMA,
        "type": type_of(record),
        "position": frame.position,
        "segment": frame.segment,
        "offset": frame.offset,
        "record": logged.index,
        "synced": frame.synced,
    }
    time = record_time(record)
    if time is not None:
        head |= {"time": shown_time(time), "time_us": time}
    return head | _body(record, names, updates)


def _body(record: AnyRecord, names: Names, updates: Sequence[Update]) -> dict[str, Any]:
    match record:
        case TxRecord():
            return _transaction(record, names, updates)
        case RollbackRecord():
            return {
                "tx": record.tx_id.hex(),
                "attempt": record.attempt,
                "reason": record.reason,
                "runs": [run_document(run) for run in record.runs],
            }
        case NamespaceRecord():
            return namespace_document(record)
        case DropNamespaceRecord():
            return {"namespace": record.id, "map": names.name(record.id)}
        case EpochRecord():
            return {
                "first_partition": record.first_partition,
                "epochs": record.epochs,
                "starts": record.starts,
            }
        case IngestRecord():
            runs = zip(record.runs, record.digests, strict=True)
            return {
                "namespace": record.namespace,
                "load": record.load.hex(),
                "runs": [
                    run_document(run) | {"digest": digest[::-1].hex()} for run, digest in runs
                ],
            }
        case CheckpointRecord():
            return {"checkpoint_position": record.position}
        case StateRecord():
            return {
                "namespaces": [namespace_document(found) for found in record.namespaces],
                "epochs": record.epochs,
                "lwms": record.lwms,
                "hwms": record.hwms,
                "ranges": {str(p): ranges for p, ranges in sorted(record.ranges.items())},
                "epoch_tables": {str(p): t for p, t in sorted(record.epoch_tables.items())},
                "pending": [
                    {"tx": one.tx_id.hex(), "attempt": one.attempt, "run": run_document(one.run)}
                    for one in record.pending
                ],
                "spaces": [space._asdict() for space in record.spaces],
            }
        case IdleRecord():
            return {}
        case UnknownRecord():
            return {"number": record.type, "body": shown_bytes(record.body)}
        case BadRecord():
            body = shown_bytes(record.body)
            return {"number": record.number, "problem": record.problem, "body": body}
        case PrepareRecord() | SettleRecord() | SuppliedRecord():
            return copy_document(record) | {"updates": [_update(one, names) for one in updates]}
        case _:
            return copy_document(record)


def _transaction(record: TxRecord, names: Names, updates: Sequence[Update]) -> dict[str, Any]:
    fields: dict[str, Any] = {"tx": record.tx_id.hex()}
    if record.tag is not None:
        fields["tag"] = record.tag
    if record.details.get("user_id"):
        fields["given_id"] = True
    fields["updates"] = [_update(update, names) for update in updates]
    return fields


def _update(update: Update, names: Names) -> dict[str, Any]:
    number = update.namespace
    fields: dict[str, Any] = {
        "op": "delete" if update.value is None else "put",
        "partition": update.partition,
        "epoch": update.epoch,
        "counter": update.counter,
        "namespace": number,
        "map": names.name(number),
    }
    fields |= shown_pair_part("key", update.key, names.key_codec(number))
    if update.value is not None:
        fields |= shown_pair_part("value", update.value, names.value_codec(number))
    return fields


def namespace_document(record: NamespaceRecord) -> dict[str, Any]:
    """Return what is printed about a namespace."""
    return {
        "namespace": record.id,
        "map": record.name,
        "key_codec": {"name": record.key_codec, "version": record.key_version},
        "value_codec": {"name": record.value_codec, "version": record.value_version},
    }


def end_document(end: End) -> dict[str, Any]:
    """Return what is printed about the end of a log."""
    fields: dict[str, Any] = {
        "v": SCHEMA,
        "type": "end",
        "kind": str(end.kind),
        "row": end.row,
        "refused": end.refused,
        "reason": end.reason,
        "position": end.position,
        "segment": end.segment,
        "offset": end.offset,
        "durable": end.durable,
    }
    if end.found is not None:
        fields |= {"crc_stored": f"{end.expected:08x}", "crc_computed": f"{end.found:08x}"}
    for name, place in (("before", end.before), ("after", end.after)):
        if place is not None:
            fields[name] = _place(place)
    if end.dropped_bytes or end.dropped_segment is not None:
        fields["dropped"] = {
            "bytes": end.dropped_bytes,
            "frames": end.dropped_frames,
            "segment": end.dropped_segment,
        }
    if end.refused:
        fields["lost"] = [
            {"partition": lost.partition, "first": lost.first, "last": lost.last}
            for lost in end.lost
        ]
        fields["transactions"] = [tx_id.hex() for tx_id in end.transactions]
    return fields


def _place(place: LogPlace) -> dict[str, int]:
    return {"position": place.position, "segment": place.segment, "offset": place.offset}


# ------------------------------------------------------------------ as text


def lines(logged: LoggedRecord, names: Names, updates: Sequence[Update]) -> Iterator[str]:
    """Yield what people read of a record: one line, and one for each of the updates."""
    frame, record = logged.frame, logged.record
    time = record_time(record)
    parts = [f"{frame.position}", f"{frame.segment}:{frame.offset}", type_of(record)]
    parts += [] if time is None else [shown_time(time)]
    yield "  ".join([*parts, *_details(record, names)])
    for update in updates:
        yield f"    {update_line(update, names)}"


def update_line(update: Update, names: Names) -> str:
    """Return one update as people read it."""
    number = update.namespace
    where = f"p{update.partition} #{update.counter}"
    name = names.name(number) or f"namespace {number}"
    key = inline(update.key, names.key_codec(number))
    if update.value is None:
        return f"{where}  {name}  delete {key}"
    value = inline(update.value, names.value_codec(number))
    if len(value) > SHOWN_MAX:
        value = f"{value[:SHOWN_MAX]}... ({len(update.value)} bytes)"
    return f"{where}  {name}  {key} = {value}"


def _details(record: AnyRecord, names: Names) -> Iterator[str]:
    match record:
        case TxRecord():
            yield record.tx_id.hex()
            if record.tag is not None:
                yield f"tag={record.tag!r}"
        case RollbackRecord():
            yield f"{record.tx_id.hex()}  {record.reason}"
            yield from shown_runs(record.runs)
        case NamespaceRecord():
            yield f"{record.id} {record.name!r}  {record.key_codec} -> {record.value_codec}"
        case DropNamespaceRecord():
            yield f"{record.id} {names.name(record.id)!r}"
        case EpochRecord():
            yield f"partitions from {record.first_partition}: {record.epochs}"
        case IngestRecord():
            yield f"{record.namespace} {record.load.hex()}"
            yield from shown_runs(record.runs)
        case CheckpointRecord():
            yield f"complete below {record.position}"
        case StateRecord():
            yield f"{len(record.namespaces)} maps, {len(record.epochs)} partitions"
        case UnknownRecord():
            yield f"number {record.type}, {len(record.body)} bytes"
        case BadRecord():
            yield f"number {record.number}: {record.problem}"
        case IdleRecord():
            pass
        case _:
            yield from copy_details(record)
