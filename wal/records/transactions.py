"""The records of transactions: TX, PREPARE, COMMIT, COMMIT_UPTO and ROLLBACK.

A transaction whose partition has no other copy is one TX, which is its commit, too.  Else each
partition has a PREPARE with its updates, and what became of them comes later: by COMMIT or ROLLBACK
for a transaction of several partitions, by COMMIT_UPTO for one of a single partition.

Invariants:

- Updates of a transaction stand in runs of one partition each; partition and counter of an update
  follow from its run, so they cost nothing per key.  A partition may have several runs.
- A PREPARE has one run, and says where the transaction has others: partition, epoch and count, for
  their numbers are not known yet.  A COMMIT has them all.

Left out: what a fold makes of them (``checkpoints.replay``).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from .shapes import (
    ID_SIZE,
    Columns,
    Run,
    Update,
    check_columns,
    check_numbers,
    checked_id,
    checked_number,
    checked_run,
    checked_text,
    flatten,
    numbered,
    rows_of,
    runs_of,
)
from .types import RECORD_OVERHEAD, RecordType

# A TX record of one put up to its key, and from there to its value: the record's header, then
# msgpack with integers of fixed width. See `put_encoder`.
_PUT = struct.Struct(">I13sQBQHIBIBQHIHH")
_PUT_VALUE = struct.Struct(">HI")
_PUT_SIZE = _PUT.size - RECORD_OVERHEAD + _PUT_VALUE.size + 1

PutEncoder = Callable[[int, int, int, int, int, int, bytes, bytes], bytes]
"""(number of the id, time, partition, epoch, counter, namespace, key, value) to the record."""


# Named tuples, unlike the other records: a recovery makes one per transaction and run.
class TxRecord(NamedTuple):
    """A transaction, prepared and committed in one step.

    ``keys[i]`` got ``values[i]``, or was deleted if that is None; ``namespaces`` is one id for
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

    def updates(self) -> Iterator[Update]:
        """Yield its updates, in the order of the log."""
        return numbered(self.runs, Columns(self.namespaces, self.keys, self.values))

    def columns(self) -> Iterator[Columns]:
        """Yield the updates of each run."""
        columns = Columns(self.namespaces, self.keys, self.values)
        if len(self.runs) == 1:
            yield columns
            return
        index = 0
        for run in self.runs:
            yield columns.between(index, index + run.count)
            index += run.count

    def fields(self) -> tuple[object, ...]:
        """Return the fields in the order of the format."""
        details = dict(self.details) or None
        return tx_body(
            self.tx_id,
            self.time,
            flatten(self.runs),
            self.namespaces,
            self.keys,
            self.values,
            details,
        )

    @staticmethod
    def of(body: list[Any]) -> TxRecord:
        """Return the record with these fields."""
        tx_id, time, flat, namespaces, keys, values, details = tx_fields(body)
        runs = runs_of(flat)
        if details is None:
            return TxRecord(tx_id, time, runs, namespaces, keys, values)
        return TxRecord(tx_id, time, runs, namespaces, keys, values, details)


class Participant(NamedTuple):
    """A partition that a transaction writes, and how many updates it has there."""

    partition: int
    epoch: int
    count: int  # type: ignore[assignment]  # hides the method of tuples, which nobody needs


class PrepareRecord(NamedTuple):
    """A transaction's updates of one partition, with numbers, and without an outcome.

    ``attempt`` counts tries under the same id; ``near`` is the member that leads it, and its boot;
    ``home`` the partition that knows its outcome longest.  ``locks`` are the (namespace, key) pairs
    that it has read and keeps locked, or None.  The rest is as in ``TxRecord``, with one run.
    """

    tx_id: bytes
    attempt: int
    near: tuple[bytes, int]
    time: int
    home: int
    participants: tuple[Participant, ...]
    run: Run
    namespaces: int | list[int]
    keys: list[bytes]
    values: list[bytes | None]
    locks: list[tuple[int, bytes]] | None = None
    details: Mapping[str, Any] = MappingProxyType({})

    @property
    def runs(self) -> tuple[Run]:
        """The numbers that it uses up."""
        return (self.run,)

    def updates(self) -> Iterator[Update]:
        """Yield its updates, in the order of the log."""
        return numbered(self.runs, Columns(self.namespaces, self.keys, self.values))

    def fields(self) -> tuple[object, ...]:
        """Return the fields in the order of the format."""
        return (
            self.tx_id,
            self.attempt,
            self.near,
            self.time,
            self.home,
            flatten(self.participants),
            self.run,
            self.namespaces,
            self.keys,
            self.values,
            self.locks,
            dict(self.details) or None,
        )

    @staticmethod
    def of(body: list[Any]) -> PrepareRecord:
        """Return the record with these fields."""
        tx_id, attempt, near, time, home, flat, run, namespaces, keys, values, locks, details = (
            body[:12]
        )
        member, boot = near[:2]
        found = checked_run(run)
        check_columns(found.count, namespaces, keys, values)
        if details is not None and not isinstance(details, dict):
            raise ValueError(f"{details!r} are not details, which have names")
        participants = tuple(Participant(*row) for row in rows_of(flat, 3))
        if (found.partition, found.epoch, found.count) not in participants:
            raise ValueError(f"partition {found.partition} does not take part as prepared")
        return PrepareRecord(
            tx_id=checked_id(tx_id),
            attempt=checked_number(attempt),
            near=(checked_id(member), checked_number(boot)),
            time=time,
            home=checked_number(home),
            participants=participants,
            run=found,
            namespaces=namespaces,
            keys=keys,
            values=values,
            locks=None if locks is None else [(namespace, key) for namespace, key in locks],
            details=details or MappingProxyType({}),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRecord:
    """A prepared transaction has committed.

    ``participants`` are the numbers that it has in each of its partitions, ``applied`` those
    partitions of them in whose content this record counts.
    """

    tx_id: bytes
    attempt: int
    time: int
    participants: tuple[Run, ...]
    applied: tuple[int, ...]

    def fields(self) -> tuple[object, ...]:
        """Return the fields in the order of the format."""
        return self.tx_id, self.attempt, self.time, flatten(self.participants), self.applied

    @staticmethod
    def of(body: list[Any]) -> CommitRecord:
        """Return the record with these fields."""
        tx_id, attempt, time, flat, applied = body[:5]
        check_numbers(flat, 4)
        check_numbers(applied, 1)
        participants = runs_of(flat)
        if not set(applied) <= {run.partition for run in participants}:
            raise ValueError(f"applied in {applied!r}, which do not all take part")
        return CommitRecord(
            tx_id=checked_id(tx_id),
            attempt=checked_number(attempt),
            time=time,
            participants=participants,
            applied=tuple(applied),
        )


class Upto(NamedTuple):
    """The last number of a partition that has committed."""

    partition: int
    epoch: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitUptoRecord:
    """All transactions of one partition that were prepared up to a number have committed."""

    rows: tuple[Upto, ...]

    def fields(self) -> tuple[object, ...]:
        """Return the fields in the order of the format."""
        return (flatten(self.rows),)

    @staticmethod
    def of(body: list[Any]) -> CommitUptoRecord:
        """Return the record with these fields."""
        return CommitUptoRecord(rows=tuple(Upto(*row) for row in rows_of(body[0], 3)))


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackRecord:
    """Numbers that were reserved and never used; ``reason`` says why they are closed."""

    tx_id: bytes
    time: int
    reason: str
    runs: tuple[Run, ...]
    attempt: int = 1

    def fields(self) -> tuple[object, ...]:
        """Return the fields in the order of the format."""
        return self.tx_id, self.time, self.reason, flatten(self.runs), self.attempt

    @staticmethod
    def of(body: list[Any]) -> RollbackRecord:
        """Return the record with these fields."""
        tx_id, time, reason, flat, attempt = body[:5]
        check_numbers(flat, 4)
        return RollbackRecord(
            tx_id=checked_id(tx_id),
            time=time,
            reason=checked_text(reason),
            runs=runs_of(flat),
            attempt=checked_number(attempt),
        )


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


def tx_fields(body: list[Any]) -> TxFields:
    """Return the fields of a TX record, checked."""
    tx_id, time, flat, namespaces, keys, values, details = body[:7]
    check_numbers(flat, 4)
    check_columns(sum(flat[3::4]), namespaces, keys, values)
    if not (isinstance(tx_id, bytes) and len(tx_id) == ID_SIZE):
        raise ValueError(f"{tx_id!r} is not an id")
    if details is not None and not isinstance(details, dict):
        raise ValueError(f"{details!r} are not details, which have names")
    return tx_id, time, flat, namespaces, keys, values, details


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
