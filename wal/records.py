"""What a frame's payload holds: records, each skippable by its length.

Owns the table of record numbers and the msgpack body of every record that this version writes.
A record is ``length u32, type u8, flags u8`` (big endian, as msgpack is), then a msgpack array.
Readers take longer arrays than they know (later minor versions append), never shorter ones.

Invariants:

- An unknown record without the flag ``MAY_BE_IGNORED`` refuses the log.
- Updates of a transaction stand in runs of one partition each; partition and counter of an update
  follow from its run, so they cost nothing per key.  A partition may have several runs.
- Counters fit signed 64 bits, partitions and namespace ids unsigned 32.

Left out: PREPARE, COMMIT, SETTLE, OPEN, SUPPLIED, CLEAR and COMMIT_UPTO have their numbers and no
code, for nothing writes them yet.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType
from typing import Any, NamedTuple

import msgpack

from ..affinity.errors import CorruptLogError, FormatVersionError


class RecordType(IntEnum):
    """The number of each kind of record; numbers are never reused."""

    TX = 1
    PREPARE = 2
    COMMIT = 3
    ROLLBACK = 4
    SETTLE = 5
    OPEN = 6
    SUPPLIED = 7
    CLEAR = 8
    CHECKPOINT = 9
    STATE = 10
    NAMESPACE = 11
    DROP_NAMESPACE = 12
    EPOCH = 13
    INGEST = 14
    COMMIT_UPTO = 15
    IDLE = 16
    SEAL = 18


MAY_BE_IGNORED = 1
RECORD_OVERHEAD = 6
HIDDEN = "\0"
"""How the name of a map begins that nobody may see yet; users can give no such name."""
DIGEST_SIZE = 25

_HEADER = struct.Struct(">IBB")
pack_record_header = _HEADER.pack

# A TX record of one put up to its key, and from there to its value: the record's header, then
# msgpack with integers of fixed width. See `put_encoder`.
_PUT = struct.Struct(">I13sQBQHIBIBQHIHH")
_PUT_VALUE = struct.Struct(">HI")
_PUT_SIZE = _PUT.size - RECORD_OVERHEAD + _PUT_VALUE.size + 1

PutEncoder = Callable[[int, int, int, int, int, int, bytes, bytes], bytes]
"""(number of the id, time, partition, epoch, counter, namespace, key, value) to the record."""


class UndecodableRecordError(Exception):
    """The bytes of a record do not make a record; the reader adds where and tells users."""


class Run(NamedTuple):
    """Updates of one transaction to one partition: numbers ``first`` to ``first + count - 1``."""

    partition: int
    epoch: int
    first: int
    count: int  # type: ignore[assignment]  # hides the method of tuples, which nobody needs


# Named tuples, unlike the other records: a recovery makes one per transaction and run.
class TxRecord(NamedTuple):
    """A transaction, prepared and committed in one step.

    ``keys[i]`` got ``values[i]``, or was deleted where that is None; ``namespaces`` is one id for
    all updates or one per update.  Updates of ``runs[0]`` come first, then those of ``runs[1]``.
    ``details`` holds what few transactions have, by name: ``tag`` (str), ``attempt`` (int),
    ``near`` (member, boot), ``home`` (partition; else the lowest written one), ``locks`` (list),
    ``before`` (values before the update, one per key), ``user_id`` (true: the id came from the
    caller).
    """

    tx_id: bytes
    time: int
    runs: tuple[Run, ...]
    namespaces: int | list[int]
    keys: list[bytes]
    values: list[bytes | None]
    details: Mapping[str, Any] = MappingProxyType({})

    @property
    def tag(self) -> str | None:
        """The tag that the caller gave, or None."""
        tag = self.details.get("tag")
        return tag if isinstance(tag, str) else None

    def updates(self) -> Iterator[tuple[int, int, int, int, bytes, bytes | None]]:
        """Yield (partition, epoch, counter, namespace, key, value) per update, in log order."""
        index = 0
        names = self.namespaces
        for run in self.runs:
            for counter in range(run.first, run.first + run.count):
                namespace = names if isinstance(names, int) else names[index]
                yield (
                    run.partition,
                    run.epoch,
                    counter,
                    namespace,
                    self.keys[index],
                    self.values[index],
                )
                index += 1


TxFields = tuple[
    bytes,
    int,
    list[int],
    "int | list[int]",
    list[bytes],
    list["bytes | None"],
    "dict[str, Any] | None",
]
"""Id, time, flat runs, namespaces, keys, values and details of a TX record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackRecord:
    """Numbers that were reserved and never used; ``reason`` says why they are closed."""

    tx_id: bytes
    time: int
    reason: str
    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceRecord:
    """A namespace as it is from here on: first use, or a new name."""

    id: int
    name: str
    key_codec: str
    key_version: int
    value_codec: str
    value_version: int
    before_images: bool = False
    space: int = 0

    @property
    def hidden(self) -> bool:
        """Whether the map is being made, or was left behind by whoever did: nobody sees it."""
        return self.name.startswith(HIDDEN)

    def to_list(self) -> list[object]:
        """Return the fields in the order of the format."""
        return [
            self.id,
            self.name,
            self.key_codec,
            self.key_version,
            self.value_codec,
            self.value_version,
            self.before_images,
            self.space,
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class DropNamespaceRecord:
    """The namespace and everything in it is gone; its id is never used again."""

    id: int
    time: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochRecord:
    """New epochs of the partitions from ``first_partition`` on, with their first numbers."""

    time: int
    first_partition: int
    epochs: list[int]
    starts: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestRecord:
    """The rows of a load have these numbers; the data file holds them, and no record does.

    ``digests`` has for each run the xor of the trailers that its rows have in the load's files.
    """

    time: int
    namespace: int
    load: bytes
    runs: tuple[Run, ...]
    digests: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRecord:
    """A checkpoint with everything below ``position`` is complete in the partition store."""

    position: int
    time: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRecord:
    """First record of each segment: what a reader needs that starts here.

    ``epochs``, ``lwms`` and ``hwms`` have one entry per partition; ``ranges`` maps a partition to
    its out-of-order ranges as (start, delta), where there are any.
    """

    time: int
    namespaces: list[NamespaceRecord]
    epochs: list[int]
    lwms: list[int]
    hwms: list[int]
    ranges: dict[int, list[tuple[int, int]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleRecord:
    """Nothing; the frame around it carries a newer ``synced``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SealRecord:
    """A segment ends here, and that of ``number`` goes on.  It stands in no frame of the log.

    ``first_position`` is where that one begins, ``end`` what was durable in it when the seal was
    written: the position behind its STATE frame.
    """

    number: int
    first_position: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownRecord:
    """A record of a later version that may be ignored."""

    type: int
    body: bytes


Record = (
    TxRecord
    | RollbackRecord
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
"""The records that use up update numbers: those of their ``runs``."""


def tx_body(
    tx_id: bytes,
    time: int,
    runs: Sequence[int],
    namespaces: int | list[int],
    keys: list[bytes],
    values: list[bytes | None],
    details: dict[str, Any] | None,
) -> tuple[object, ...]:
    """Return the fields of a TX record; ``runs`` is flat: partition, epoch, first, count, ..."""
    return (tx_id, time, runs, namespaces, keys, values, details)


def put_encoder(prefix: bytes) -> PutEncoder:
    """Return a function that makes the TX record of a transaction which puts one key.

    The transaction's id is ``prefix`` (8 bytes) and a number.  The bytes are the msgpack of
    ``tx_body`` with integers of fixed width, so two ``struct`` calls make them, in a third of the
    time; constants that stand side by side are one field.
    """
    # Record type and flags; an array of seven; its first item, 16 bytes: the id.
    kind = bytes((RecordType.TX, 0, 0x97, 0xC4, 16)) + prefix
    head, value_head, join = _PUT.pack, _PUT_VALUE.pack, b"".join

    def encode(
        number: int,
        time: int,
        partition: int,
        epoch: int,
        counter: int,
        namespace: int,
        key: bytes,
        value: bytes,
    ) -> bytes:
        size = _PUT_SIZE + len(key) + len(value)
        return join(
            (
                # The time; the only run, an array of four, whose count is 1; the namespace; the
                # only key.
                head(size, kind, number, 0xCF, time, 0x94CE, partition, 0xCE, epoch, 0xCF, counter,
                     0x01CE, namespace, 0x91C5, len(key)),
                key,
                value_head(0x91C6, len(value)),
                value,
                b"\xc0",
            )
        )  # fmt: skip

    return encode


def flatten(runs: Sequence[Run]) -> list[int]:
    """Return runs as the flat list that records hold."""
    return [n for run in runs for n in (run.partition, run.epoch, run.first, run.count)]


def encode_record(record: Record) -> bytes:
    """Return the bytes of a record, its header included."""
    match record:
        case TxRecord():
            return _frame_up(
                RecordType.TX,
                0,
                tx_body(
                    record.tx_id,
                    record.time,
                    flatten(record.runs),
                    record.namespaces,
                    record.keys,
                    record.values,
                    dict(record.details) or None,
                ),
            )
        case RollbackRecord():
            body: object = (record.tx_id, record.time, record.reason, flatten(record.runs))
            return _frame_up(RecordType.ROLLBACK, 0, body)
        case NamespaceRecord():
            return _frame_up(RecordType.NAMESPACE, 0, record.to_list())
        case DropNamespaceRecord():
            return _frame_up(RecordType.DROP_NAMESPACE, 0, (record.id, record.time))
        case EpochRecord():
            body = (record.time, record.first_partition, record.epochs, record.starts)
            return _frame_up(RecordType.EPOCH, 0, body)
        case IngestRecord():
            runs = flatten(record.runs)
            body = (record.time, record.namespace, record.load, runs, record.digests)
            return _frame_up(RecordType.INGEST, 0, body)
        case CheckpointRecord():
            body = (record.position, record.time)
            return _frame_up(RecordType.CHECKPOINT, MAY_BE_IGNORED, body)
        case StateRecord():
            return _frame_up(RecordType.STATE, 0, _state_body(record))
        case IdleRecord():
            return _frame_up(RecordType.IDLE, MAY_BE_IGNORED, ())
        case UnknownRecord():
            header = pack_record_header(len(record.body), record.type, MAY_BE_IGNORED)
            return header + record.body


def encode_seal(seal: SealRecord) -> bytes:
    """Return the bytes of a seal's record, its header included."""
    body = (seal.number, seal.first_position, seal.end)
    return _frame_up(RecordType.SEAL, MAY_BE_IGNORED, body)


def decode_seal(payload: bytes) -> SealRecord | None:
    """Return the seal in a payload, or None where it holds none."""
    try:
        kind, _, body = next(split_records(payload), (0, 0, b""))
        number, first_position, end = msgpack.unpackb(body)[:3]
    except (UndecodableRecordError, *_UNDECODABLE):
        return None
    if kind != RecordType.SEAL or {type(number), type(first_position), type(end)} != {int}:
        return None
    return SealRecord(number=number, first_position=first_position, end=end)


def _frame_up(kind: RecordType, flags: int, body: object) -> bytes:
    data: bytes = msgpack.packb(body)
    return pack_record_header(len(data), kind, flags) + data


def _state_body(record: StateRecord) -> tuple[object, ...]:
    return (
        record.time,
        [namespace.to_list() for namespace in record.namespaces],
        record.epochs,
        record.lwms,
        record.hwms,
        {p: [n for pair in ranges for n in pair] for p, ranges in record.ranges.items()},
    )


def split_records(payload: bytes) -> Iterator[tuple[int, int, memoryview]]:
    """Yield (type, flags, body) of each record in a payload.

    Raises ``UndecodableRecordError`` where the lengths do not add up.
    """
    view = memoryview(payload)
    offset, end = 0, len(payload)
    while offset < end:
        if end - offset < RECORD_OVERHEAD:
            raise UndecodableRecordError(f"{end - offset} bytes left, too few for a record")
        length, kind, flags = _HEADER.unpack_from(payload, offset)
        offset += RECORD_OVERHEAD
        if length > end - offset:
            raise UndecodableRecordError(
                f"a record of {length} bytes where {end - offset} are left"
            )
        yield kind, flags, view[offset : offset + length]
        offset += length


_UNDECODABLE = (
    ValueError,
    TypeError,
    IndexError,
    KeyError,
    AttributeError,
    msgpack.UnpackException,
)


def decode_record(kind: int, flags: int, body: memoryview | bytes) -> Record:
    """Return the record with this header and body.

    Raises ``UndecodableRecordError`` for a body that is no such record, and ``FormatVersionError``
    for an unknown record that must not be ignored.
    """
    decoder = _DECODERS.get(kind)
    if decoder is None:
        if flags & MAY_BE_IGNORED:
            return UnknownRecord(type=kind, body=bytes(body))
        raise FormatVersionError(
            f"the log holds a record of type {kind}, which this version of tidelog does not know",
            found=kind,
            supported=max(_DECODERS),
        )
    try:
        return decoder(msgpack.unpackb(body, strict_map_key=False, use_list=True))
    except _UNDECODABLE as error:
        raise UndecodableRecordError(
            f"a record of type {kind} that does not decode: {error}"
        ) from error


def decode_tx_fields(body: memoryview | bytes) -> TxFields:
    """Return the fields of a TX record, for readers that want columns; raises alike."""
    try:
        return _tx_fields(msgpack.unpackb(body, strict_map_key=False, use_list=True))
    except _UNDECODABLE as error:
        raise UndecodableRecordError(f"a transaction that does not decode: {error}") from error


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


def _check_flat(flat: list[int]) -> None:
    # What is no number has no sum, and what is no whole number gives it its own type.
    if len(flat) % 4 or (flat and (type(sum(flat)) is not int or min(flat) < 0)):
        raise ValueError("runs that are no groups of four numbers")


def _runs(flat: list[int]) -> tuple[Run, ...]:
    if len(flat) == 4:
        return (Run(*flat),)
    parts = iter(flat)
    return tuple(map(Run, parts, parts, parts, parts))


def _is_id(value: object) -> bool:
    return isinstance(value, bytes) and len(value) == 16


def _tx_fields(body: list[Any]) -> TxFields:
    tx_id, time, flat, namespaces, keys, values, details = body[:7]
    _check_flat(flat)
    count = sum(flat[3::4])
    if not (len(keys) == len(values) == count and count > 0 and _is_id(tx_id)):
        raise ValueError(f"{len(keys)} keys and {len(values)} values in runs of {count} updates")
    if details is not None and not isinstance(details, dict):
        raise ValueError("details that have no names")
    if isinstance(namespaces, list) and len(namespaces) != count:
        raise ValueError(f"{len(namespaces)} namespaces for {count} updates")
    return tx_id, time, flat, namespaces, keys, values, details


def _decode_tx(body: list[Any]) -> TxRecord:
    tx_id, time, flat, namespaces, keys, values, details = _tx_fields(body)
    runs = _runs(flat)
    if details is None:
        return TxRecord(tx_id, time, runs, namespaces, keys, values)
    return TxRecord(tx_id, time, runs, namespaces, keys, values, details)


def _decode_rollback(body: list[Any]) -> RollbackRecord:
    tx_id, time, reason, flat = body[:4]
    if not _is_id(tx_id):
        raise ValueError("a rollback of no transaction")
    _check_flat(flat)
    return RollbackRecord(tx_id=tx_id, time=time, reason=reason, runs=_runs(flat))


def _decode_namespace(body: list[Any]) -> NamespaceRecord:
    number, name, key_codec, key_version, value_codec, value_version, before, space = body[:8]
    if type(number) is not int or not isinstance(name, str):
        raise ValueError("a namespace without an id or a name")
    return NamespaceRecord(
        id=number,
        name=name,
        key_codec=key_codec,
        key_version=key_version,
        value_codec=value_codec,
        value_version=value_version,
        before_images=before,
        space=space,
    )


def _decode_drop(body: list[Any]) -> DropNamespaceRecord:
    number, time = body[:2]
    return DropNamespaceRecord(id=number, time=time)


def _decode_epoch(body: list[Any]) -> EpochRecord:
    time, first, epochs, starts = body[:4]
    if len(epochs) != len(starts):
        raise ValueError(f"{len(epochs)} epochs with {len(starts)} first numbers")
    return EpochRecord(time=time, first_partition=first, epochs=epochs, starts=starts)


def _decode_ingest(body: list[Any]) -> IngestRecord:
    time, namespace, load, flat, digests = body[:5]
    _check_flat(flat)
    if not _is_id(load) or type(namespace) is not int:
        raise ValueError("rows of no load, or of no namespace")
    if 4 * len(digests) != len(flat) or any(len(digest) != DIGEST_SIZE for digest in digests):
        raise ValueError(f"{len(digests)} digests for {len(flat) // 4} runs")
    return IngestRecord(
        time=time, namespace=namespace, load=load, runs=_runs(flat), digests=tuple(digests)
    )


def _decode_checkpoint(body: list[Any]) -> CheckpointRecord:
    position, time = body[:2]
    return CheckpointRecord(position=position, time=time)


def _decode_state(body: list[Any]) -> StateRecord:
    time, namespaces, epochs, lwms, hwms, flat = body[:6]
    if not len(epochs) == len(lwms) == len(hwms):
        raise ValueError(f"{len(epochs)} epochs, {len(lwms)} LWMs and {len(hwms)} HWMs")
    return StateRecord(
        time=time,
        namespaces=[_decode_namespace(fields) for fields in namespaces],
        epochs=epochs,
        lwms=lwms,
        hwms=hwms,
        ranges={p: list(zip(ranges[::2], ranges[1::2], strict=True)) for p, ranges in flat.items()},
    )


def _decode_idle(_body: list[Any]) -> IdleRecord:
    return IdleRecord()


_DECODERS: dict[int, Callable[[list[Any]], Record]] = {
    RecordType.TX: _decode_tx,
    RecordType.ROLLBACK: _decode_rollback,
    RecordType.CHECKPOINT: _decode_checkpoint,
    RecordType.STATE: _decode_state,
    RecordType.NAMESPACE: _decode_namespace,
    RecordType.DROP_NAMESPACE: _decode_drop,
    RecordType.EPOCH: _decode_epoch,
    RecordType.INGEST: _decode_ingest,
    RecordType.IDLE: _decode_idle,
}
