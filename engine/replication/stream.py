"""What a primary streams to the other copies of a partition, and what these have durably.

One message holds items of many partitions, in columns: one for each field that every record has,
those of PREPAREs behind them, then keys and values.  So a transaction of one key is some numbers in
columns, and no array is made for it.

Invariants:

- An item speaks of its partition alone: a COMMIT is applied there and nowhere else, a COMMIT_UPTO
  has one row, a ROLLBACK one run, and OUTCOMES are those of the partition.
- Of what ``checked_message`` passes ``replicated_of`` makes items, or raises ``FrameError``.

Left out: which item may follow on which (W3), and to which admission it belongs (W2).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

from ...tx.counter import COUNTER_MAX
from ...wal.records import (
    CommitRecord,
    CommitUptoRecord,
    Opened,
    OpenRecord,
    OutcomesRecord,
    Participant,
    PrepareRecord,
    RecordType,
    RollbackRecord,
    Run,
    Upto,
    flatten,
)
from ...wal.records.shapes import (
    ID_SIZE,
    UNDECODABLE,
    check_numbers,
    checked_text,
    runs_of,
)
from ..net.frames import FrameError, Message
from ..net.kinds import BY_NAME

EndRecord: TypeAlias = CommitRecord | RollbackRecord | OutcomesRecord
"""What a partition's stream has about the ends of transactions of several partitions."""
Streamed: TypeAlias = OpenRecord | PrepareRecord | CommitUptoRecord | EndRecord

_REPLICATE, _STORED = BY_NAME["replicate"], BY_NAME["stored"]
_PREPARE, _COMMIT = int(RecordType.PREPARE), int(RecordType.COMMIT)
_COMMIT_UPTO, _ROLLBACK = int(RecordType.COMMIT_UPTO), int(RecordType.ROLLBACK)
_OPEN, _OUTCOMES = int(RecordType.OPEN), int(RecordType.OUTCOMES)
_NO_ID = bytes(ID_SIZE)
_VALUES = frozenset({bytes, type(None)})


class Item(NamedTuple):
    """One record of a stream.

    ``admission`` is the decided index at which the copy was admitted or became in-sync, ``number``
    the place of the item in the stream of this partition, epoch and admission, from 1.
    """

    partition: int
    admission: int
    epoch: int
    number: int
    record: Streamed


class StoredUpto(NamedTuple):
    """The highest number of a stream that a copy has durably."""

    partition: int
    admission: int
    epoch: int
    number: int


def replicate_message(items: Sequence[Item]) -> Message:
    """Return the message that has these items."""
    heads: list[tuple[Any, ...]] = []
    prepares: list[PrepareRecord] = []
    keys: list[bytes] = []
    values: list[bytes | None] = []
    for partition, admission, epoch, number, record in items:
        place = partition, admission, epoch, number
        if type(record) is PrepareRecord:
            (
                tx_id,
                attempt,
                _,
                time,
                _,
                participants,
                run,
                _,
                its_keys,
                its_values,
                locks,
                details,
            ) = record
            alone = len(participants) == 1 and locks is None and not details
            more = None if alone else [flatten(participants), locks, dict(details) or None]
            heads.append((*place, _PREPARE, tx_id, attempt, time, *run[1:], more))
            prepares.append(record)
            keys += its_keys
            values += its_values
        else:
            heads.append((*place, *_head(record, partition)))
    return _REPLICATE.message(
        *(map(list, zip(*heads, strict=True)) if heads else ([] for _ in range(12))),
        [one.near[0] for one in prepares],
        [one.near[1] for one in prepares],
        [one.home for one in prepares],
        [one.namespaces for one in prepares],
        keys,
        values,
    )


def _head(record: Streamed, partition: int) -> tuple[Any, ...]:
    """Return type, id, attempt, time, numbers and the rest of a record that is not a PREPARE."""
    if isinstance(record, CommitRecord):
        others = record.participants
        run = next(one for one in others if one.partition == partition)
        tx = _COMMIT, record.tx_id, record.attempt, record.time
        return *tx, *run[1:], flatten(others)
    assert not isinstance(record, PrepareRecord), "a PREPARE has columns of its own"
    if isinstance(record, CommitUptoRecord):
        (row,) = record.rows
        return _COMMIT_UPTO, _NO_ID, 0, 0, row.epoch, row.last, 1, None
    if isinstance(record, OpenRecord):
        return _OPEN, _NO_ID, 0, 0, record.rows[0].epoch, 1, 1, None
    if isinstance(record, OutcomesRecord):
        return _OUTCOMES, _NO_ID, 0, 0, 0, 1, 1, record.fields()
    (run,) = record.runs
    return _ROLLBACK, record.tx_id, record.attempt, record.time, *run[1:], record.reason


def replicated_of(message: Message) -> list[Item]:
    """Return the items of a message, in order; ``FrameError`` if they cannot be."""
    columns = message[1:]
    try:
        return list(_items(columns[:12], columns[12:]))
    except UNDECODABLE as error:
        raise FrameError(f"replicate: {error}") from None


def stored_message(rows: Iterable[StoredUpto]) -> Message:
    """Return the message in which a copy says how far it has streams durably."""
    given = list(rows)
    return _STORED.message(*([row[field] for row in given] for field in range(4)))


def stored_of(message: Message) -> list[StoredUpto]:
    """Return how far a copy has streams; ``FrameError`` if that cannot be."""
    columns = message[1:]
    try:
        _check_columns(*columns)
        return [StoredUpto(*row) for row in zip(*columns, strict=True)]
    except UNDECODABLE as error:
        raise FrameError(f"stored: {error}") from None


# ------------------------------------------------------------------ fields


def _items(heads: list[list[Any]], tails: list[list[Any]]) -> Iterator[Item]:
    """Yield the items of the columns of a message."""
    partitions, admissions, epochs, numbers, types, txs, attempts, times, *runs, _ = heads
    nears, boots, homes, namespaces, keys, values = tails
    _check_columns(partitions, admissions, epochs, numbers, attempts, times, *runs, boots, homes)
    _check_ids(txs)
    _check_ids(nears)
    if not _VALUES.issuperset(map(type, values)):
        raise ValueError("a value that is not bytes")
    if len(keys) != len(values):
        raise ValueError(f"{len(keys)} keys and {len(values)} values")
    if types.count(_PREPARE) != len(nears):
        raise ValueError(f"{types.count(_PREPARE)} PREPAREs, and fields of {len(nears)}")
    prepares = zip(nears, boots, homes, namespaces, strict=True)
    end = 0
    for (
        partition,
        admission,
        epoch,
        number,
        kind,
        tx_id,
        attempt,
        time,
        of,
        first,
        count,
        more,
    ) in zip(*heads, strict=True):
        if not (first and count and first + count - 1 <= COUNTER_MAX):
            raise ValueError(f"{count} numbers from {first} on")
        record: Streamed
        run = Run(partition, of, first, count)
        if kind == _PREPARE:
            near, boot, home, names = next(prepares)
            start, end = end, end + count
            if of != epoch or end > len(keys):
                raise ValueError(f"a PREPARE {run!r} in the stream of epoch {epoch}")
            if type(names) is not int:
                _check_namespaces(names, count)
            its = keys[start:end], values[start:end]
            if more is None:
                one = Participant(partition, of, count)
                record = PrepareRecord(
                    tx_id, attempt, (near, boot), time, home, (one,), run, names, *its
                )
            else:
                # The fields as in the log, which that one checks.
                flat, locks, details = more
                fields = [tx_id, attempt, [near, boot], time, home, flat, run]
                record = PrepareRecord.of([*fields, names, *its, locks, details])
        else:
            record = _ending(kind, tx_id, attempt, time, run, more)
        yield Item(partition, admission, epoch, number, record)
    if end != len(keys):
        raise ValueError("updates without a PREPARE")


def _ending(
    kind: int, tx_id: bytes, attempt: int, time: int, run: Run, more: Any
) -> OpenRecord | CommitUptoRecord | EndRecord:
    """Return the record that ends a transaction, or several, or opens an epoch."""
    if kind == _OPEN:
        return OpenRecord(rows=(Opened(run.partition, run.epoch),))
    if kind == _COMMIT_UPTO:
        return CommitUptoRecord(rows=(Upto(run.partition, run.epoch, run.first),))
    if kind == _ROLLBACK:
        return RollbackRecord(
            tx_id=tx_id, time=time, reason=checked_text(more), runs=(run,), attempt=attempt
        )
    if kind == _OUTCOMES:
        outcomes = OutcomesRecord.of(more)
        if outcomes.partition != run.partition:
            raise ValueError(f"OUTCOMES of partition {outcomes.partition}")
        return outcomes
    if kind != _COMMIT:
        raise ValueError(f"a record of type {kind}")
    check_numbers(more, 4)
    participants = runs_of(more)
    if run not in participants:
        raise ValueError(f"a COMMIT of {run!r}, which is not of its transaction")
    return CommitRecord(
        tx_id=tx_id,
        attempt=attempt,
        time=time,
        participants=participants,
        applied=(run.partition,),
    )


def _check_columns(*columns: list[int]) -> None:
    numbers = list(chain.from_iterable(columns))
    if numbers and not 0 <= min(numbers) <= max(numbers) <= COUNTER_MAX:
        raise ValueError(f"{min(numbers)} to {max(numbers)} are not numbers of 63 bits")


def _check_ids(column: list[bytes]) -> None:
    if column and {*map(len, column)} != {ID_SIZE}:
        raise ValueError(f"an id that has not {ID_SIZE} bytes")


def _check_namespaces(names: object, count: int) -> None:
    if type(names) is not list or len(names) != count or set(map(type, names)) != {int}:
        raise ValueError(f"{names!r} are not namespaces of {count} updates")
