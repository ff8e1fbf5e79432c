"""What a primary asks of the logs of its copies, for another one that comes back.

    primary  reach     which numbers of some partitions are in the log that is kept there?
    copy     reached   from which number on, and which are not
    primary  lend      a piece of the history of some missing numbers; piece 0: no more is wanted
    copy     lent      what its log has of these, since the piece before

Each ``ask`` has a number of its primary's, which the answers repeat; a question that was asked
again is answered again.

Invariants:

- Of what ``checked_message`` passes each function makes what was said, or raises ``FrameError``.

Left out: who asks when (``engine.node.borrowing``), and who answers (``engine.node.lending``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ...affinity.errors import FormatVersionError
from ...checkpoints.supplying import FoundNumbers
from ...tx.numbers import NumberRanges
from ...wal.records import Run, SuppliedRecord, decode_payload, encode_record, flatten
from ...wal.records.shapes import (
    UNDECODABLE,
    UndecodableRecordError,
    check_numbers,
    rows_of,
)
from ..net.frames import FrameError, Message
from ..net.kinds import BY_NAME
from .returning import check_run, counter_number

REACH, REACHED = BY_NAME["reach"], BY_NAME["reached"]
LEND, LENT = BY_NAME["lend"], BY_NAME["lent"]
ENOUGH = 0
"""The piece that is asked for once no more are wanted."""

_WRONG = (*UNDECODABLE, UndecodableRecordError, FormatVersionError)


class OpenPlace(NamedTuple):
    """A partition, in an epoch."""

    partition: int
    epoch: int


class KeptNumbers(NamedTuple):
    """What a kept log has of a partition: every number from ``first`` on, but for ``lacking``."""

    first: int
    lacking: NumberRanges


class Loan(NamedTuple):
    """A piece that is asked for, of what is missing at some places: the first one says that."""

    ask: int
    piece: int
    missing: dict[OpenPlace, NumberRanges]


class Lent(NamedTuple):
    """A piece of what a log has, by partition; ``more`` tells whether the log goes on behind it."""

    ask: int
    piece: int
    found: Mapping[int, FoundNumbers]
    more: bool


def reach_message(ask: int, places: Sequence[OpenPlace]) -> Message:
    """Return the message that asks how far a log reaches."""
    return REACH.message(ask, *_columns(places))


def reach_asked(message: Message) -> tuple[int, list[OpenPlace]]:
    """Return which partitions somebody asks about; ``FrameError`` if that cannot be."""
    _, ask, partitions, epochs = message
    try:
        return counter_number(ask), _places(partitions, epochs)
    except _WRONG as error:
        raise FrameError(f"reach: {error}") from None


def reached_message(ask: int, rows: Mapping[int, KeptNumbers]) -> Message:
    """Return the answer to that, by partition."""
    return REACHED.message(
        ask,
        list(rows),
        [row.first for row in rows.values()],
        [flatten(row.lacking) for row in rows.values()],
    )


def reached_of(message: Message) -> tuple[int, dict[int, KeptNumbers]]:
    """Return how far a log reaches; ``FrameError`` if that cannot be."""
    _, ask, *columns = message
    try:
        return counter_number(ask), {
            counter_number(partition): KeptNumbers(counter_number(first), _ranges(lacking))
            for partition, first, lacking in zip(*columns, strict=True)
        }
    except _WRONG as error:
        raise FrameError(f"reached: {error}") from None


def lend_message(loan: Loan) -> Message:
    """Return the message that asks for a piece of history."""
    missing = [flatten(ranges) for ranges in loan.missing.values()]
    return LEND.message(loan.ask, loan.piece, *_columns([*loan.missing]), missing)


def loan_of(message: Message) -> Loan:
    """Return what history is asked for; ``FrameError`` if that cannot be."""
    _, ask, piece, partitions, epochs, missing = message
    try:
        places, ranges = _places(partitions, epochs), map(_ranges, missing)
        return Loan(
            counter_number(ask), counter_number(piece), dict(zip(places, ranges, strict=True))
        )
    except _WRONG as error:
        raise FrameError(f"lend: {error}") from None


def lent_message(lent: Lent, source: bytes) -> Message:
    """Return the message that has a piece of the history of a member, the ``source``."""
    records = [
        SuppliedRecord(
            partition=partition,
            admission=0,
            source=source,
            transactions=tuple(found.transactions),
            closed=tuple(found.closed),
        )
        for partition, found in lent.found.items()
    ]
    return LENT.message(
        lent.ask,
        lent.piece,
        list(map(encode_record, records)),
        [flatten(found.lacking) for found in lent.found.values()],
        [flatten(found.not_yet) for found in lent.found.values()],
        lent.more,
    )


def lent_of(message: Message) -> Lent:
    """Return a piece of history that was lent; ``FrameError`` if it cannot be."""
    _, ask, piece, records, *ranges, more = message
    try:
        found = {}
        for data, lacking, not_yet in zip(records, *ranges, strict=True):
            record = _supplied(data)
            found[record.partition] = FoundNumbers(
                transactions=list(record.transactions),
                closed=list(record.closed),
                lacking=_ranges(lacking),
                not_yet=_ranges(not_yet),
            )
        return Lent(counter_number(ask), counter_number(piece), found, more)
    except _WRONG as error:
        raise FrameError(f"lent: {error}") from None


# ------------------------------------------------------------------ fields


def _columns(places: Sequence[OpenPlace]) -> tuple[list[int], list[int]]:
    return [one.partition for one in places], [one.epoch for one in places]


def _places(partitions: Sequence[object], epochs: Sequence[object]) -> list[OpenPlace]:
    return [
        OpenPlace(counter_number(partition), counter_number(epoch))
        for partition, epoch in zip(partitions, epochs, strict=True)
    ]


def _ranges(flat: Sequence[int]) -> NumberRanges:
    """Return ranges (first, last) in ascending order."""
    check_numbers(flat, 2)
    ranges = [(first, last) for first, last in rows_of(flat, 2)]
    top = 0
    for first, last in ranges:
        if first <= top or last < first:
            raise ValueError(f"{flat!r} are not ranges of numbers in ascending order")
        top = last
    counter_number(top)
    return ranges


def _supplied(data: bytes) -> SuppliedRecord:
    (record,) = decode_payload(data)
    if not isinstance(record, SuppliedRecord):
        raise ValueError(f"a record {type(record).__name__}, not SuppliedRecord")
    for run in (
        *(one.run for one in record.transactions),
        *(Run(record.partition, *closed[:3]) for closed in record.closed),
    ):
        check_run(run, record.partition)
    return record
