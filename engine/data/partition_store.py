"""The partitions' state at the last checkpoint, in the key-value environment.

Owns the layout: data under full keys (``stored``), one mark per partition at the front of its range
(namespace 0), what is pending beside it (namespace 4, outside of count and digest, as tombstones
are), and the store's mark under a partition number that no partition has.

Invariants:

- Data, count, digest, counters and replay position of a partition change in one transaction.
- Every value that is read is checked, marks included.
- A miss is believed only when both neighbours are as they were written: a flipped bit in a key
  moves a record away from where it is looked for.

Left out: what is newer than the checkpoint (``overlay``), and how it gets here (``flush``).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from ...affinity.errors import CorruptDataError, ForeignFileError
from ...affinity.partitions import Space
from ...checkpoints.marks import PartitionMark, StoreMark
from ...checkpoints.replay import State
from ...wal.records import Record, UndecodableRecordError, decode_payload
from ..system.environment import Cursor, KeyValueEnvironment, KvTransaction
from ..system.lmdb_file import KvReadError, read_error, translated
from .stored import (
    PENDING,
    check_pair,
    checked,
    damage_at,
    pack_prefix,
    stored_value,
    user_value,
    xor_trailers,
)

STORE_PARTITION = 0xFFFFFFFF
MARKS_NAMESPACE = 0
FIRST_OF_DATA = (MARKS_NAMESPACE + 1).to_bytes(4, "big")
"""Where the data of a partition begins, behind its mark."""

_BLOCK = 1000
_NO_NAMESPACE = MARKS_NAMESPACE.to_bytes(4, "big")
_PENDING = PENDING.to_bytes(4, "big")

STORE_KEY = pack_prefix(STORE_PARTITION, MARKS_NAMESPACE) + b"store"


def mark_key(partition: int) -> bytes:
    """Return the key under which the mark of a partition lies."""
    return pack_prefix(partition, MARKS_NAMESPACE) + b"mark"


def checked_get(txn: KvTransaction, full_key: bytes) -> bytes | None:
    """Return the stored value of a key after checking it, or None if there is surely none."""
    stored = txn.get(full_key)
    if stored is None:
        check_neighbours(txn, full_key)
        return None
    check_pair(full_key, stored)
    return stored


def check_neighbours(txn: KvTransaction, full_key: bytes) -> None:
    """Raise ``CorruptDataError`` unless a key is absent: whole pairs around it, in order.

    A flipped bit may have hidden a record from the search, and one in the inner pages of the tree
    sends the search elsewhere.
    """
    try:
        cursor = txn.cursor()
        if cursor.set_range(full_key):
            key, stored = cursor.item()
            check_pair(key, stored)
            if key <= full_key:
                raise misplaced(full_key)
            found = cursor.prev()
        else:
            found = cursor.last()
        if found:
            check_before(cursor, full_key)
    except KvReadError as error:
        raise read_error(error) from None


def check_before(cursor: Cursor, full_key: bytes) -> None:
    """Raise ``CorruptDataError`` unless the pair at a cursor is whole and lies before a key."""
    key, stored = cursor.item()
    check_pair(key, stored)
    if key >= full_key:
        raise misplaced(full_key)


def misplaced(full_key: bytes) -> CorruptDataError:
    """Return the error for a tree in which keys do not lie where they are looked for."""
    return damage_at(full_key, "the data file is out of order there")


def _body(full_key: bytes, stored: bytes) -> bytes:
    """Return what a mark, or an entry beside it, says; it is never deleted."""
    return user_value(full_key, stored) or b""


@translated("reading the store's mark")
def read_store_mark(txn: KvTransaction) -> StoreMark | None:
    """Return the store's mark of the last checkpoint; None in a store that never had one."""
    stored = checked_get(txn, STORE_KEY)
    return None if stored is None else StoreMark.from_bytes(_body(STORE_KEY, stored))


@translated("reading the partitions' marks")
def read_marks(txn: KvTransaction) -> tuple[StoreMark | None, dict[int, PartitionMark]]:
    """Return the marks of the last checkpoint; (None, {}) in a store that never had one."""
    store = read_store_mark(txn)
    marks = {}
    cursor = txn.cursor()
    partition = 0
    # Marks are the first keys of their partitions: hop from one to the next.
    while cursor.set_range(wanted := mark_key(partition)):
        key, value = cursor.item()
        check_pair(key, value)
        if cursor.prev() and (cursor.key() >= wanted or cursor.key()[4:8] == _NO_NAMESPACE):
            # A mark whose key was damaged; a damaged value would be for its reader to find.
            check_before(cursor, wanted)
        found = int.from_bytes(key[:4], "big")
        if found == STORE_PARTITION:
            break
        if found < partition:
            raise misplaced(wanted)
        if key != mark_key(found):
            # Data and mark are written together: without it counters would begin anew.
            raise CorruptDataError(f"partition {found} holds data but no mark")
        marks[found] = PartitionMark.from_bytes(_body(key, value))
        partition = found + 1
    return store, marks


def write_mark(txn: KvTransaction, key: bytes, body: bytes) -> None:
    """Write a mark under its key."""
    (stored,) = checked((key,), (stored_value(body, 0, 0, 0),))
    txn.put(key, stored)


def read_state(
    txn: KvTransaction, store_id: bytes, spaces: Sequence[Space], path: str
) -> tuple[State, dict[int, PartitionMark]]:
    """Return the fold of the log at the last checkpoint, and the marks that it was made of.

    Raises ``ForeignFileError`` for the data file of another store than that of ``path``.
    """
    store, marks = read_marks(txn)
    if store is not None and store.store_id != store_id:
        raise ForeignFileError(f"{path}: its data file belongs to store {store.store_id.hex()}")
    pending = {p: read_pending(txn, p) for p, mark in marks.items() if mark.pending}
    return State.from_marks(store_id, spaces, store, marks, pending), marks


def read_pending(txn: KvTransaction, partition: int) -> list[Record]:
    """Return what is pending in a partition; raises ``CorruptDataError``."""
    prefix = pack_prefix(partition, PENDING)
    cursor = txn.cursor()
    found: list[Record] = []
    for key, stored in cursor.iternext() if cursor.set_range(prefix) else ():
        if not key.startswith(prefix):
            break
        check_pair(key, stored)
        try:
            found += decode_payload(_body(key, stored))
        except UndecodableRecordError as error:
            raise CorruptDataError(
                f"what is pending in partition {partition} does not decode: {error}"
            ) from None
    cursor.close()
    return found


class Measured(NamedTuple):
    """What a partition holds: pairs, the xor of their trailers, and tombstones beside them."""

    count: int  # type: ignore[assignment]  # hides the method of tuples, which nobody needs
    digest: int
    tombstones: int


@translated("reading a partition")
def measure_partition(txn: KvTransaction, partition: int) -> Measured:
    """Return what a partition holds, checking every pair on the way.

    What is pending does not count, nor do tombstones: copies that agree on all else may differ in
    these.
    """
    count, digest, tombstones = 0, 0, 0
    cursor = txn.cursor()
    prefix = partition.to_bytes(4, "big")
    if not cursor.set_range(prefix + FIRST_OF_DATA):
        return Measured(0, 0, 0)
    pairs = cursor.iternext()
    while True:
        block = []
        ended = True
        for key, value in islice(pairs, _BLOCK):
            ended = not key.startswith(prefix)
            if ended:
                break
            check_pair(key, value)
            if key[4:8] == _PENDING:
                continue
            if user_value(key, value) is None:
                tombstones += 1
            else:
                block.append(value)
        digest ^= xor_trailers(block)
        count += len(block)
        if ended:
            return Measured(count, digest, tombstones)


def verify_partitions(
    environment: KeyValueEnvironment, marks: dict[int, PartitionMark]
) -> list[str]:
    """Return what is wrong with the partitions, as sentences; the empty list means nothing."""
    txn = environment.begin()
    problems = []
    keys = len(marks) + (1 if txn.get(STORE_KEY) is not None else 0)
    for partition, mark in marks.items():
        try:
            count, digest, tombstones = measure_partition(txn, partition)
        except CorruptDataError as error:
            problems.append(f"partition {partition}: {error}")
            continue
        keys += count + tombstones + mark.pending
        if count != mark.count:
            problems.append(f"partition {partition} holds {count} keys, its mark says {mark.count}")
        elif tombstones != mark.tombstones:
            problems.append(
                f"partition {partition} holds {tombstones} deletes, its mark says {mark.tombstones}"
            )
        elif digest != mark.digest:
            problems.append(f"partition {partition}: the digest of its {count} pairs is wrong")
    if not problems and keys != environment.entries():
        problems.append(f"{environment.entries()} keys in the tree, {keys} of them in partitions")
    return problems
