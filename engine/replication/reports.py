"""What a copy of a partition says in a takeover or to come back, and how it goes over the wire.

In a takeover each listed copy seals and says what it has (a report); the author makes one list of
all reports, and sends it (settle); each copy stores it and says so (settle-stored); the author logs
that the epoch is open, and says that (opened).  Each of these messages is about many partitions, in
columns.

Invariants:

- What ``report_of`` returns is the copy's log and nothing else, but for ``acknowledged``: who asks
  has sealed the epoch and synced the log before (K3).
- Of what ``checked_message`` passes each function makes what was said, or raises ``FrameError``.

Left out: who sends what when, and what the author makes of the reports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from ...affinity.topology import Incarnation
from ...checkpoints.copies import CopyState
from ...checkpoints.marks import EpochTable
from ...checkpoints.replay import State
from ...tx.counter import COUNTER_MAX
from ...wal.records import (
    CommitRecord,
    Opened,
    PrepareRecord,
    RollbackRecord,
    Run,
    SettleRecord,
    flatten,
)
from ...wal.records.shapes import UNDECODABLE, checked_id, checked_number, rows_of
from ..net.frames import FrameError, Message
from ..net.kinds import BY_NAME

T = TypeVar("T")

_REPORT, _SETTLE = BY_NAME["report"], BY_NAME["settle"]
_SETTLE_STORED, _OPENED = BY_NAME["settle-stored"], BY_NAME["opened"]


class PreparedHere(NamedTuple):
    """A transaction that is pending at a copy; ``time`` is that of its PREPARE.

    ``participants`` is how many partitions it writes.
    """

    tx_id: bytes
    attempt: int
    run: Run
    time: int
    participants: int


class RolledBackHere(NamedTuple):
    """Numbers that a copy has closed: of a transaction, or of none (an id of zeros)."""

    tx_id: bytes
    attempt: int
    run: Run


class CommittedHere(NamedTuple):
    """A transaction of several partitions that a copy has committed, with the time of that."""

    tx_id: bytes
    attempt: int
    run: Run
    time: int


class Acknowledged(NamedTuple):
    """The highest update number that another copy, in one boot, said to have durably."""

    member: UUID
    boot: int
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one copy of one partition has, once it has sealed ``epoch``, that of the takeover.

    ``ranges`` are (start, delta) above ``lwm``, as a counter has them.  ``rolled_back`` and
    ``committed`` are what ended here lately, and maybe nowhere else yet.  ``bound`` is a settle
    list that was stored here and not opened; ``acknowledged`` is what this copy saw as primary, in
    the newest epoch that it has opened.  ``state`` tells what the copy is good for.
    """

    copy: Incarnation
    partition: int
    epoch: int
    lwm: int
    ranges: tuple[tuple[int, int], ...]
    hwm: int
    epochs: EpochTable
    pending: tuple[PreparedHere, ...] = ()
    rolled_back: tuple[RolledBackHere, ...] = ()
    committed: tuple[CommittedHere, ...] = ()
    bound: SettleRecord | None = None
    acknowledged: tuple[Acknowledged, ...] = ()
    state: CopyState = CopyState.OWNING


def report_of(
    state: State,
    partition: int,
    *,
    copy: Incarnation,
    epoch: int,
    acknowledged: Iterable[Acknowledged] = (),
) -> Report:
    """Return what a copy says of a partition, for the takeover of ``epoch``."""
    counter, copies = state.counters[partition], state.copies
    prepared = copies.pending.get(partition)
    ended = copies.ended_of(partition)
    return Report(
        copy=copy,
        partition=partition,
        epoch=epoch,
        lwm=counter.lwm,
        ranges=tuple(counter.out_of_order),
        hwm=counter.hwm,
        epochs=state.epoch_tables[partition],
        pending=tuple(
            PreparedHere(one.tx_id, one.attempt, one.run, one.time, len(one.participants))
            for one in (prepared.all() if prepared is not None else ())
            if isinstance(one, PrepareRecord)  # a store's own fold has no others
        ),
        rolled_back=tuple(
            RolledBackHere(one.tx_id, one.attempt, one.runs[0])
            for one in ended
            if isinstance(one, RollbackRecord)
        ),
        committed=tuple(
            CommittedHere(one.tx_id, one.attempt, one.participants[0], one.time)
            for one in ended
            if isinstance(one, CommitRecord)
        ),
        bound=copies.lists.get(partition),
        acknowledged=tuple(acknowledged),
        state=copies.states.get(partition, CopyState.OWNING),
    )


# ------------------------------------------------------------------ report


def report_message(reports: Sequence[Report]) -> Message:
    """Return the message in which a copy reports on some partitions."""
    return _REPORT.message(
        [one.partition for one in reports],
        [one.epoch for one in reports],
        [one.lwm for one in reports],
        [flatten(one.ranges) for one in reports],
        [one.hwm for one in reports],
        [flatten(one.epochs) for one in reports],
        [
            [item for row in one.pending for item in (*row[:2], *row.run[1:], *row[3:])]
            for one in reports
        ],
        [[item for row in one.rolled_back for item in (*row[:2], *row.run[1:])] for one in reports],
        [
            [item for row in one.committed for item in (*row[:2], *row.run[1:], row.time)]
            for one in reports
        ],
        [None if one.bound is None else one.bound.fields() for one in reports],
        [
            [item for row in one.acknowledged for item in (row.member.bytes, *row[1:])]
            for one in reports
        ],
        [int(one.state) for one in reports],
    )


def reports_of(message: Message, copy: Incarnation) -> list[Report]:
    """Return what a copy reports in a message; ``FrameError`` if that cannot be."""
    return _read(message, lambda *row: _report(copy, *row))


def _report(
    copy: Incarnation,
    partition: int,
    epoch: int,
    lwm: int,
    ranges: list[Any],
    hwm: int,
    epochs: list[Any],
    pending: list[Any],
    rolled_back: list[Any],
    committed: list[Any],
    bound: list[Any] | None,
    acknowledged: list[Any],
    copy_state: int,
) -> Report:
    settled = None if bound is None else SettleRecord.of(bound)
    if settled is not None and settled.partition != partition:
        raise ValueError(f"a list of partition {settled.partition} is bound in {partition}")
    return Report(
        copy=copy,
        partition=checked_number(partition),
        epoch=checked_number(epoch),
        lwm=_as_update_number(lwm),
        ranges=_ranges(lwm, ranges, hwm),
        hwm=_as_update_number(hwm),
        epochs=epoch_table_of(epochs),
        pending=tuple(
            PreparedHere(*_transaction(partition, row), checked_number(row[5]), _count(row[6]))
            for row in _rows(pending, 7)
        ),
        rolled_back=tuple(
            RolledBackHere(*_transaction(partition, row)) for row in _rows(rolled_back, 5)
        ),
        committed=tuple(
            CommittedHere(*_transaction(partition, row), checked_number(row[5]))
            for row in _rows(committed, 6)
        ),
        bound=settled,
        acknowledged=tuple(
            Acknowledged(
                UUID(bytes=checked_id(member)), checked_number(boot), _as_update_number(number)
            )
            for member, boot, number in _rows(acknowledged, 3)
        ),
        state=CopyState(copy_state),
    )


# ------------------------------------------------------------------ the list, and the way to open


def settle_message(lists: Sequence[SettleRecord]) -> Message:
    """Return the message in which an author sends settle lists."""
    columns = zip(*(one.fields()[:5] for one in lists), strict=True) if lists else [()] * 5
    return _SETTLE.message(*map(list, columns), [flatten(one.epochs) for one in lists])


def settles_of(message: Message) -> list[SettleRecord]:
    """Return the settle lists in a message; ``FrameError`` if they cannot be."""

    def settle(*fields: Any) -> SettleRecord:
        return SettleRecord.of(list(fields))

    return _read(message, settle)


def settle_stored_message(rows: Iterable[Opened]) -> Message:
    """Return the message in which a copy says whose lists it has durably."""
    return _SETTLE_STORED.message(*_epoch_columns(rows))


def epochs_of(message: Message) -> list[Opened]:
    """Return the epochs in a ``settle-stored`` or ``opened``; ``FrameError`` if they cannot be."""

    def epoch_row(partition: int, epoch: int) -> Opened:
        return Opened(checked_number(partition), checked_number(epoch))

    return _read(message, epoch_row)


def _epoch_columns(rows: Iterable[Opened]) -> tuple[list[int], list[int]]:
    given = list(rows)
    return [one.partition for one in given], [one.epoch for one in given]


# ------------------------------------------------------------------ fields


def _read(message: Message, reader: Callable[..., T]) -> list[T]:
    """Return what a reader makes of each row of a message's columns."""
    try:
        return [reader(*row) for row in zip(*message[1:], strict=True)]
    except UNDECODABLE as error:
        raise FrameError(f"{_NAMES[message[0]]}: {error}") from None


_NAMES = {kind.number: kind.name for kind in (_REPORT, _SETTLE, _SETTLE_STORED, _OPENED)}


def _rows(flat: list[Any], width: int) -> Iterator[tuple[Any, ...]]:
    if len(flat) % width:
        raise ValueError(f"{len(flat)} fields are not rows of {width}")
    return zip(*[iter(flat)] * width, strict=True)


def _transaction(partition: int, row: tuple[Any, ...]) -> tuple[bytes, int, Run]:
    """Return id, attempt and run of a row that begins with these."""
    tx_id, attempt, epoch, first, count = row[:5]
    run = Run(partition, checked_number(epoch), _count(first), _count(count))
    _as_update_number(first + count - 1)
    return checked_id(tx_id), checked_number(attempt), run


def _ranges(lwm: int, flat: list[Any], hwm: int) -> tuple[tuple[int, int], ...]:
    """Return the ranges of a counter: above LWM and apart from it and from each other."""
    found = tuple((start, delta) for start, delta in rows_of(flat, 2))
    top = lwm
    for start, delta in found:
        if start <= top or delta < 1:
            raise ValueError(f"a range ({start}, {delta}) at {top}")
        top = start + delta
    if top > hwm:
        raise ValueError(f"number {top} is applied, above HWM {hwm}")
    return found


def epoch_table_of(flat: list[Any]) -> EpochTable:
    """Return an epoch table: at least one epoch, both columns ascending."""
    table = tuple((epoch, start) for epoch, start in rows_of(flat, 2))
    sorted_ = all(
        before[0] < after[0] and before[1] < after[1] for before, after in pairwise(table)
    )
    if not (table and sorted_):
        raise ValueError(f"{flat!r} is not an epoch table")
    return table


def _count(value: object) -> int:
    if checked_number(value) < 1:
        raise ValueError(f"{value!r} is not a number from 1 on")
    return checked_number(value)


def _as_update_number(value: object) -> int:
    if checked_number(value) > COUNTER_MAX:
        raise ValueError(f"{value!r} is not an update number")
    return checked_number(value)
