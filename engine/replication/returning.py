"""What a copy that was away and its primary say to each other, and how it goes over the wire.

    copy     report   what it has, outside of any takeover
    primary  admit    how it comes back: ``none`` or ``historical`` with an ADMIT, or ``full``
    copy     demand   the next piece, once all before it is durable here
    primary  supply   a piece of history, as SUPPLIED; or
             pairs    a piece of a full copy, or the ADMIT that ends it, and a tally of them all

Behind a full copy the copy reports again: what it has then is the state of an instant, and it comes
back by the history from there on.

Invariants:

- Pieces have numbers, from 1 on.  Of history who demands piece n has all below it durably; of a
  full copy all below it have arrived, and are durable once the piece behind the last is demanded.
- What has come is what was sent, or it never counts: a digest of all records goes with the last
  piece of history, a tally of all pairs with the end of a full copy (M3).
- Of what ``checked_message`` passes each function makes what was said, or raises ``FrameError``.

Left out: who says what when (``engine.node.supplying``, ``engine.node.catching_up``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple, TypeVar

from ...affinity.errors import FormatVersionError
from ...checkpoints.marks import epoch_of
from ...rebalance.choosing import SupplyKind
from ...tx.counter import COUNTER_MAX
from ...wal.records import (
    AdmitRecord,
    OutcomesRecord,
    PrepareRecord,
    Record,
    Run,
    SuppliedRecord,
    decode_payload,
    encode_record,
    flatten,
)
from ...wal.records.shapes import UNDECODABLE, UndecodableRecordError, checked_number
from ..data.full_pairs import PackedPairs, PairTally
from ..data.stored import TRAILER_SIZE
from ..net.frames import FrameError, Message
from ..net.kinds import BY_NAME
from .reports import epoch_table_of

R = TypeVar("R")

DIGEST_BYTES = 16

_WRONG = (*UNDECODABLE, UndecodableRecordError, FormatVersionError)

_ADMIT, _PAIRS = BY_NAME["admit"], BY_NAME["pairs"]
_DEMAND, _SUPPLY = BY_NAME["demand"], BY_NAME["supply"]


class ReturnPlace(NamedTuple):
    """What a copy comes back to: a partition, in an epoch, by an admission."""

    partition: int
    epoch: int
    admission: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """How a copy comes back.

    But for a full copy it follows the stream behind item ``begin``, from ``record`` on, with what
    is ``pending`` at the primary, and the ``outcomes`` that this remembers for others (T14).
    """

    place: ReturnPlace
    kind: SupplyKind
    begin: int = 0
    record: AdmitRecord | None = None
    pending: tuple[PrepareRecord, ...] = ()
    outcomes: tuple[OutcomesRecord, ...] = ()


class Demanded(NamedTuple):
    """The piece that a copy wants next."""

    place: ReturnPlace
    number: int


class SupplyPiece(NamedTuple):
    """Some of the numbers that a copy has missed.

    ``digest`` is that of the records of all pieces by then; only the last one has it.
    """

    place: ReturnPlace
    number: int
    last: bool
    record: SuppliedRecord
    digest: bytes = b""


class FillPiece(NamedTuple):
    """Some pairs of a full copy, behind those of the piece before; or its end, without any."""

    place: ReturnPlace
    number: int
    pairs: PackedPairs
    end: FillEnd | None = None


class FillEnd(NamedTuple):
    """What ends a full copy: what it is from then on, and the tally of all pairs that were sent."""

    record: AdmitRecord
    tally: PairTally


def new_digest() -> blake2b:
    """Return the digest of what is supplied at a place, before the first record."""
    return blake2b(digest_size=DIGEST_BYTES)


def admit_message(rows: Sequence[Admitted]) -> Message:
    """Return the message in which a primary admits a copy to some partitions."""
    return _ADMIT.message(
        *_columns(one.place for one in rows),
        [one.begin for one in rows],
        [one.kind.value for one in rows],
        [
            b"".join(
                encode_record(record)
                for record in (one.record, *one.pending, *one.outcomes)
                if record
            )
            for one in rows
        ],
    )


def admitted_of(message: Message) -> list[Admitted]:
    """Return how a copy is admitted; ``FrameError`` if that cannot be."""

    def admitted(
        partition: int, epoch: int, admission: int, begin: int, kind: str, payload: bytes
    ) -> Admitted:
        records, place = decode_payload(payload), _place(partition, epoch, admission)
        record = _checked(_of_type(records[0], AdmitRecord), place) if records else None
        outcomes = tuple(one for one in records[1:] if isinstance(one, OutcomesRecord))
        if any(one.partition != place.partition for one in outcomes):
            raise ValueError("outcomes of another partition")
        others = records[1 : len(records) - len(outcomes)]
        pending = tuple(_of_type(one, PrepareRecord) for one in others)
        for one in pending:
            assert record is not None
            check_run(one.run, place.partition)
            if epoch_of(record.epochs, one.run.first) != one.run.epoch:
                raise ValueError(f"{one.run!r} is pending in another epoch")
        return Admitted(
            place=place,
            kind=SupplyKind(kind),
            begin=counter_number(begin),
            record=record,
            pending=pending,
            outcomes=outcomes,
        )

    try:
        return [admitted(*row) for row in zip(*message[1:], strict=True)]
    except _WRONG as error:
        raise FrameError(f"admit: {error}") from None


def demand_message(rows: Sequence[Demanded]) -> Message:
    """Return the message in which a copy demands pieces."""
    return _DEMAND.message(*_columns(one.place for one in rows), [one.number for one in rows])


def demanded_of(message: Message) -> list[Demanded]:
    """Return which pieces a copy demands; ``FrameError`` if that cannot be."""
    try:
        return [
            Demanded(_place(*place), counter_number(number))
            for *place, number in zip(*message[1:], strict=True)
        ]
    except _WRONG as error:
        raise FrameError(f"demand: {error}") from None


def supply_message(pieces: Sequence[SupplyPiece]) -> Message:
    """Return the message that has pieces of several partitions."""
    return _SUPPLY.message(
        *_columns(one.place for one in pieces),
        [one.number for one in pieces],
        [int(one.last) for one in pieces],
        [encode_record(one.record) for one in pieces],
        [one.digest for one in pieces],
    )


def supply_pieces_of(message: Message) -> list[SupplyPiece]:
    """Return the pieces in a message; ``FrameError`` if they cannot be."""

    def piece(
        partition: int,
        epoch: int,
        admission: int,
        number: int,
        last: int,
        data: bytes,
        digest: bytes,
    ) -> SupplyPiece:
        place = _place(partition, epoch, admission)
        record = _only(data, SuppliedRecord)
        for one in record.transactions:
            check_run(one.run, place.partition)
        for closed in record.closed:
            check_run(Run(place.partition, *closed[:3]), place.partition)
        if len(digest) != (DIGEST_BYTES if last else 0):
            raise ValueError("a digest stands in the last piece, and in no other")
        return SupplyPiece(place, counter_number(number), bool(last), record, digest)

    try:
        return [piece(*row) for row in zip(*message[1:], strict=True)]
    except _WRONG as error:
        raise FrameError(f"supply: {error}") from None


def fill_message(piece: FillPiece) -> Message:
    """Return the message that has a piece of a full copy."""
    record, tally = b"", None
    if piece.end is not None:
        record, (count, tombstones, digest) = encode_record(piece.end.record), piece.end.tally
        tally = [count, tombstones, digest.to_bytes(TRAILER_SIZE, "little")]
    return _PAIRS.message(*piece.place, piece.number, *piece.pairs, record, tally)


def fill_of(message: Message) -> FillPiece:
    """Return the piece of a full copy in a message; ``FrameError`` if it cannot be.

    What its pairs are is looked at where they are written.
    """
    _, partition, epoch, admission, number, lengths, data, record, tally = message
    try:
        place = _place(partition, epoch, admission)
        if bool(record) != (tally is not None) or bool(record) == bool(lengths):
            raise ValueError("a piece has either pairs, or an ADMIT and a tally")
        end = None
        if tally is not None:
            end = FillEnd(_checked(_only(record, AdmitRecord), place), _tally(*tally))
        return FillPiece(place, counter_number(number), PackedPairs(lengths, data), end)
    except _WRONG as error:
        raise FrameError(f"pairs: {error}") from None


# ------------------------------------------------------------------ fields


def _columns(places: Iterable[ReturnPlace]) -> tuple[list[int], list[int], list[int]]:
    given = list(places)
    return (
        [one.partition for one in given],
        [one.epoch for one in given],
        [one.admission for one in given],
    )


def _place(*fields: object) -> ReturnPlace:
    return ReturnPlace(*map(counter_number, fields))


def _checked(record: AdmitRecord, place: ReturnPlace) -> AdmitRecord:
    """Return the ADMIT of a place if a counter can be made of it."""
    if (record.partition, record.admission) != (place.partition, place.admission):
        raise ValueError(f"an ADMIT of partition {record.partition} for {place!r}")
    top = record.lwm
    for start, delta in record.ranges:
        if start <= top or delta < 1:
            raise ValueError(f"a range ({start}, {delta}) at {top}")
        top = start + delta
    if not top <= record.hwm <= COUNTER_MAX:
        raise ValueError(f"HWM {record.hwm} with number {top} applied")
    epoch_table_of(flatten(record.epochs))
    return record


def check_run(run: Run, partition: int) -> None:
    """Raise unless a run is of a partition, and has numbers that there may be."""
    if run.partition != partition or min(run[1:]) < 1 or run.first + run.count - 1 > COUNTER_MAX:
        raise ValueError(f"{run!r} is not of partition {partition}, or not of its numbers")


def _tally(count: object, tombstones: object, digest: object) -> PairTally:
    if not isinstance(digest, bytes) or len(digest) != TRAILER_SIZE:
        raise ValueError(f"a digest is {TRAILER_SIZE} bytes")
    return PairTally(
        counter_number(count), counter_number(tombstones), int.from_bytes(digest, "little")
    )


def counter_number(value: object) -> int:
    """Return a number of 63 bits; raises for anything else."""
    if checked_number(value) > COUNTER_MAX:
        raise ValueError(f"{value!r} is not a number of 63 bits")
    return checked_number(value)


def _only(payload: bytes, wanted: type[R]) -> R:
    (record,) = decode_payload(payload)
    return _of_type(record, wanted)


def _of_type(record: Record, wanted: type[R]) -> R:
    if not isinstance(record, wanted):
        raise ValueError(f"a record {type(record).__name__}, not {wanted.__name__}")
    return record
