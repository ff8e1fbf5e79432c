"""The records about partitions: epochs, loads, and what the copies of a cluster log of each other.

SETTLE and OPEN end an epoch change: the list of what becomes of every unfinished transaction and of
every gap of older epochs, and the word that it counts.  CLEAR, SUPPLIED and ADMIT bring a copy that
was away up to its group: what it has counts for nothing any more, this is what it lacked, and this
is the state from which it follows the stream.  OUTCOMES tell which commits others may ask about.

Left out: transactions (``transactions``), and what a fold makes of all this
(``checkpoints.replay``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

from .shapes import (
    Closed,
    Columns,
    Run,
    Update,
    check_numbers,
    checked_id,
    checked_number,
    checked_run,
    checked_text,
    closed_of,
    columns_of,
    flatten,
    numbered,
    rows_of,
    runs_of,
)
from .transactions import Participant

DIGEST_SIZE = 25


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochRecord:
    """New epochs of the partitions from ``first_partition`` on, with their first numbers."""

    time: int
    first_partition: int
    epochs: list[int]
    starts: list[int]

    def fields(self) -> tuple[object, ...]:
        """Return the fields in the order of the format."""
        return self.time, self.first_partition, self.epochs, self.starts

    @staticmethod
    def of(body: list[Any]) -> EpochRecord:
        """Return the record with these fields."""
        time, first, epochs, starts = body[:4]
        if len(epochs) != len(starts):
            raise ValueError(f"{len(epochs)} epochs with {len(starts)} first numbers")
        return EpochRecord(time=time, first_partition=first, epochs=epochs, starts=starts)


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

    def fields(self) -> tuple[object, ...]:
        """Return the fields in the order of the format."""
        return self.time, self.namespace, self.load, flatten(self.runs), self.digests

    @staticmethod
    def of(body: list[Any]) -> IngestRecord:
        """Return the record with these fields."""
        time, namespace, load, flat, digests = body[:5]
        check_numbers(flat, 4)
        if type(namespace) is not int:
            raise ValueError(f"{namespace!r} is not a namespace")
        if 4 * len(digests) != len(flat) or any(len(one) != DIGEST_SIZE for one in digests):
            raise ValueError(f"{len(digests)} digests for {len(flat) // 4} runs")
        return IngestRecord(
            time=time,
            namespace=namespace,
            load=checked_id(load),
            runs=runs_of(flat),
            digests=tuple(digests),
        )


class SettledOutcome(IntEnum):
    """What a settle list makes of a transaction."""

    COMMITTED = 1
    ROLLED_BACK = 2
    PENDING = 3


class Settled(NamedTuple):
    """A transaction in a settle list; ``columns`` are for copies that lack its PREPARE.

    ``time`` is that of its commit, or 0 if it has not committed.
    """

    tx_id: bytes
    attempt: int
    run: Run
    outcome: SettledOutcome
    time: int
    columns: Columns | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SettleRecord:
    """What becomes of all that is unfinished in a partition; it counts from its OPEN on.

    The epoch begins at number ``start``.  ``closed`` are numbers that no copy knows.  ``epochs`` is
    the epoch table below ``start``, for copies that missed an opening; if it is empty, none has.
    """

    partition: int
    epoch: int
    start: int
    transactions: tuple[Settled, ...]
    closed: tuple[Closed, ...]
    epochs: tuple[tuple[int, int], ...] = ()

    def updates(self) -> Iterator[Update]:
        """Yield the updates that it brings, in the order of the list."""
        for one in self.transactions:
            if one.columns is not None:
                yield from numbered((one.run,), one.columns)

    def fields(self) -> tuple[object, ...]:
        """Return the fields in the order of the format."""
        epochs = (flatten(self.epochs),) if self.epochs else ()
        return self.partition, self.epoch, self.start, self.transactions, self.closed, *epochs

    @staticmethod
    def of(body: list[Any]) -> SettleRecord:
        """Return the record with these fields."""
        partition, epoch, start, rows, closed, *later = body[:6]
        check_numbers((partition, epoch, start), 3)
        return SettleRecord(
            partition=partition,
            epoch=epoch,
            start=start,
            transactions=tuple(map(_settled, rows)),
            closed=closed_of(closed),
            epochs=tuple((one, first) for one, first in rows_of(later[0] if later else (), 2)),
        )


def _settled(row: list[Any]) -> Settled:
    tx_id, attempt, flat, outcome, time, columns = row[:6]
    run = checked_run(flat)
    return Settled(
        checked_id(tx_id),
        checked_number(attempt),
        run,
        SettledOutcome(outcome),
        time,
        None if columns is None else columns_of(columns, run.count),
    )


class Opened(NamedTuple):
    """A partition whose epoch is open."""

    partition: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRecord:
    """The settle lists of these epochs count."""

    rows: tuple[Opened, ...]

    def fields(self) -> tuple[object, ...]:
        """Return the fields in the order of the format."""
        return (flatten(self.rows),)

    @staticmethod
    def of(body: list[Any]) -> OpenRecord:
        """Return the record with these fields."""
        return OpenRecord(rows=tuple(Opened(*row) for row in rows_of(body[0], 2)))


class Supplied(NamedTuple):
    """A committed transaction that a copy had missed."""

    tx_id: bytes
    attempt: int
    run: Run
    time: int
    columns: Columns


@dataclass(frozen=True, slots=True, kw_only=True)
class SuppliedRecord:
    """Numbers that a moving copy had missed: with their updates, or closed.

    ``admission`` is the decided index at which the copy was admitted, ``source`` the member that
    supplied them.
    """

    partition: int
    admission: int
    source: bytes
    transactions: tuple[Supplied, ...]
    closed: tuple[Closed, ...]

    def updates(self) -> Iterator[Update]:
        """Yield the updates that it brings, in the order of the record."""
        for one in self.transactions:
            yield from numbered((one.run,), one.columns)

    def fields(self) -> tuple[object, ...]:
        """Return the fields in the order of the format."""
        return self.partition, self.admission, self.source, self.transactions, self.closed

    @staticmethod
    def of(body: list[Any]) -> SuppliedRecord:
        """Return the record with these fields."""
        partition, admission, source, rows, closed = body[:5]
        return SuppliedRecord(
            partition=checked_number(partition),
            admission=checked_number(admission),
            source=checked_id(source),
            transactions=tuple(map(_supplied, rows)),
            closed=closed_of(closed),
        )


def _supplied(row: list[Any]) -> Supplied:
    tx_id, attempt, flat, time, columns = row[:5]
    run = checked_run(flat)
    return Supplied(
        checked_id(tx_id), checked_number(attempt), run, time, columns_of(columns, run.count)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClearRecord:
    """What a copy holds of a partition counts for nothing from here on: it is not whole."""

    partition: int
    admission: int
    reason: str

    def fields(self) -> tuple[object, ...]:
        """Return the fields in the order of the format."""
        return self.partition, self.admission, self.reason

    @staticmethod
    def of(body: list[Any]) -> ClearRecord:
        """Return the record with these fields."""
        partition, admission, reason = body[:3]
        return ClearRecord(
            partition=checked_number(partition),
            admission=checked_number(admission),
            reason=checked_text(reason),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmitRecord:
    """The state of a copy from which it follows the stream of its group.

    ``ranges`` are (start, delta) as a counter has them.  ``dropped`` are the transactions that
    were pending here: what became of them comes with the supply.
    """

    partition: int
    admission: int
    epochs: tuple[tuple[int, int], ...]
    lwm: int
    ranges: tuple[tuple[int, int], ...]
    hwm: int
    dropped: tuple[bytes, ...]

    def fields(self) -> tuple[object, ...]:
        """Return the fields in the order of the format."""
        return (
            self.partition,
            self.admission,
            flatten(self.epochs),
            self.lwm,
            flatten(self.ranges),
            self.hwm,
            self.dropped,
        )

    @staticmethod
    def of(body: list[Any]) -> AdmitRecord:
        """Return the record with these fields."""
        partition, admission, epochs, lwm, ranges, hwm, dropped = body[:7]
        check_numbers((partition, admission, lwm, hwm), 4)
        if not epochs:
            raise ValueError("an epoch table without an epoch")
        return AdmitRecord(
            partition=partition,
            admission=admission,
            epochs=tuple((epoch, start) for epoch, start in rows_of(epochs, 2)),
            lwm=lwm,
            ranges=tuple((start, delta) for start, delta in rows_of(ranges, 2)),
            hwm=hwm,
            dropped=tuple(map(checked_id, dropped)),
        )


class Committed(NamedTuple):
    """A transaction of several partitions that has committed, with its numbers in one of them.

    It is remembered until all ``participants`` have it, and ``near`` waits for nothing of it: the
    member that has led it, and the boot of that.
    """

    tx_id: bytes
    attempt: int
    near: tuple[bytes, int]
    time: int
    run: Run
    participants: tuple[Participant, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomesRecord:
    """What a partition has to remember of transactions of several partitions, and what not.

    ``committed`` are remembered, since others may ask; nobody asks any more for those that are
    ``forgotten``.
    """

    partition: int
    committed: tuple[Committed, ...] = ()
    forgotten: tuple[bytes, ...] = ()

    def fields(self) -> tuple[object, ...]:
        """Return the fields in the order of the format."""
        rows = [(*one[:4], one.run, flatten(one.participants)) for one in self.committed]
        return self.partition, rows, self.forgotten

    @staticmethod
    def of(body: list[Any]) -> OutcomesRecord:
        """Return the record with these fields."""
        partition, rows, forgotten = body[:3]
        return OutcomesRecord(
            partition=checked_number(partition),
            committed=tuple(map(_committed, rows)),
            forgotten=tuple(map(checked_id, forgotten)),
        )


def _committed(row: list[Any]) -> Committed:
    tx_id, attempt, (member, boot), time, flat, participants = row[:6]
    return Committed(
        checked_id(tx_id),
        checked_number(attempt),
        (checked_id(member), checked_number(boot)),
        checked_number(time),
        checked_run(flat),
        tuple(Participant(*one) for one in rows_of(participants, 3)),
    )
