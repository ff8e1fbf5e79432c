"""The partitions' state at the last checkpoint, in the key-value environment.

Owns the layout: data under full keys (``stored``), one mark per partition at the front of its range
(namespace 0), what is pending beside it (namespace 4, outside of count and digest), and the store's
mark under a partition number that no partition has.

Invariants:

- Data, count, digest, counters and replay position of a partition change in one transaction.
- Every value that is read is checked, marks included.
- A miss is believed only when both neighbours are as they were written: a flipped bit in a key
  moves a record away from where it is looked for.

Left out: what is newer than the checkpoint (``overlay``), and when to flush (``checkpointer``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import compress, filterfalse, islice

from ...affinity.errors import CorruptDataError, ForeignFileError
from ...checkpoints.marks import EpochTable, PartitionMark, StoreMark
from ...checkpoints.replay import State
from ...wal.records import Record, UndecodableRecordError, decode_payload, encode_record
from ..system.environment import Cursor, KeyValueEnvironment, KvTransaction
from ..system.lmdb_file import KvReadError, read_error, translated
from .stored import (
    PENDING,
    TRAILER_SIZE,
    check_pair,
    checked,
    damage_at,
    is_tombstone,
    pack_prefix,
    stored_value,
    xor_trailers,
)

STORE_PARTITION = 0xFFFFFFFF
MARKS_NAMESPACE = 0
_NAMESPACE_MAX = 0xFFFFFFFF

CHUNK = 1000
"""Updates between two chances for other threads: py-lmdb asks for the interpreter at every one."""

_NO_NAMESPACE = MARKS_NAMESPACE.to_bytes(4, "big")
_PENDING = PENDING.to_bytes(4, "big")

STORE_KEY = pack_prefix(STORE_PARTITION, MARKS_NAMESPACE) + b"store"


def mark_key(partition: int) -> bytes:
    """Return the key under which the mark of a partition lies."""
    return pack_prefix(partition, MARKS_NAMESPACE) + b"mark"


def checked_get(txn: KvTransaction, full_key: bytes) -> bytes | None:
    """Return the stored value of a key after checking it, or None where there is surely none."""
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
        raise read_error(error) from error


def check_before(cursor: Cursor, full_key: bytes) -> None:
    """Raise ``CorruptDataError`` unless the pair at a cursor is whole and lies before a key."""
    key, stored = cursor.item()
    check_pair(key, stored)
    if key >= full_key:
        raise misplaced(full_key)


def misplaced(full_key: bytes) -> CorruptDataError:
    """Return the error for a tree in which keys do not lie where they are looked for."""
    return damage_at(full_key, "the data file is out of order there")


@translated("reading the store's mark")
def read_store_mark(txn: KvTransaction) -> StoreMark | None:
    """Return the store's mark of the last checkpoint; None in a store that never had one."""
    stored = checked_get(txn, STORE_KEY)
    return None if stored is None else StoreMark.from_bytes(stored[:-TRAILER_SIZE])


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
        marks[found] = PartitionMark.from_bytes(value[:-TRAILER_SIZE])
        partition = found + 1
    return store, marks


def write_mark(txn: KvTransaction, key: bytes, body: bytes) -> None:
    """Write a mark under its key."""
    (stored,) = checked((key,), (stored_value(body, 0, 0, 0),))
    txn.put(key, stored)


def read_state(
    txn: KvTransaction, store_id: bytes, partitions: int, path: str
) -> tuple[State, dict[int, PartitionMark]]:
    """Return the fold of the log at the last checkpoint, and the marks that it was made of.

    Raises ``ForeignFileError`` for the data file of another store than that of ``path``.
    """
    store, marks = read_marks(txn)
    if store is not None and store.store_id != store_id:
        raise ForeignFileError(f"{path}: its data file belongs to store {store.store_id.hex()}")
    pending = {p: read_pending(txn, p) for p, mark in marks.items() if mark.pending}
    return State.from_marks(store_id, partitions, store, marks, pending), marks


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
            found += decode_payload(stored[:-TRAILER_SIZE])
        except UndecodableRecordError as error:
            raise CorruptDataError(
                f"what is pending in partition {partition} does not decode: {error}"
            ) from error
    cursor.close()
    return found


def _write_pending(txn: KvTransaction, piece: Piece, before: PartitionMark) -> None:
    """Put what is pending in the place of what was."""
    prefix = pack_prefix(piece.flush.partition, PENDING)
    while before.pending:
        cursor = txn.cursor()
        key = cursor.key() if cursor.set_range(prefix) else b""
        cursor.close()
        if not key.startswith(prefix):
            break
        txn.delete(key)
    for number, entry in enumerate(piece.flush.pending):
        write_mark(txn, prefix + number.to_bytes(4, "big"), encode_record(entry))


@dataclass(frozen=True, slots=True, kw_only=True)
class Flush:
    """What goes into one partition at a checkpoint: updates, and what its mark then says."""

    partition: int
    updates: dict[bytes, bytes]
    position: int
    counter: bytes
    epochs: EpochTable
    state: int = 0
    admission: int = 0
    sealed: int = 0
    pending: Sequence[Record] = ()

    def pieces(self, most: int) -> Iterator[Piece]:
        """Yield it in pieces of equal length, of at most ``most`` updates each, by key."""
        keys = sorted(self.updates)
        count = max(-(-len(keys) // most), 1)
        size = max(-(-len(keys) // count), 1)
        for first in range(0, max(len(keys), 1), size):
            piece = keys[first : first + size]
            yield Piece(flush=self, keys=piece, last=first + size >= len(keys))


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Some updates of a flush, by their keys in order; the partition is there with the last."""

    flush: Flush
    keys: list[bytes]
    last: bool

    def mark(self, before: PartitionMark) -> PartitionMark:
        """Return the mark to write, with count and digest as they were before."""
        flush = self.flush
        if not self.last:
            return replace(before, written=max(before.written, flush.position))
        return replace(
            before,
            position=flush.position,
            written=flush.position,
            counter=flush.counter,
            epochs=flush.epochs,
            state=flush.state,
            admission=flush.admission,
            sealed=flush.sealed,
            pending=len(flush.pending),
        )


def flush_piece(
    txn: KvTransaction,
    piece: Piece,
    before: PartitionMark,
    lives: Callable[[int], bool] | None = None,
    turn: AbstractContextManager[object] = nullcontext(),  # noqa: B008  # it has no state
) -> PartitionMark:
    """Write updates of one partition in sorted order; return its new mark, written too.

    ``before`` is the mark that it has.  Namespaces for which ``lives`` is false go.  Every
    ``CHUNK`` updates are written inside ``turn``: whoever takes it holds busy threads off.
    """
    partition = piece.flush.partition
    mark = piece.mark(before)
    if piece.keys:
        mark = _write_updates(txn, mark, piece, turn)
    if piece.last and lives is not None:
        mark = _remove_dropped(txn, mark, partition, lives)
    if piece.last and (before.pending or piece.flush.pending):
        _write_pending(txn, piece, before)
    write_mark(txn, mark_key(partition), mark.to_bytes())
    return mark


def _write_updates(
    txn: KvTransaction, mark: PartitionMark, piece: Piece, turn: AbstractContextManager[object]
) -> PartitionMark:
    count, digest = mark.count, mark.digest
    cursor = txn.cursor()
    fresh = not count or _behind_all(cursor, piece.flush.partition, piece.keys[0])
    for first in range(0, len(piece.keys), CHUNK):
        with turn:
            keys = piece.keys[first : first + CHUNK]
            stored = list(map(piece.flush.updates.__getitem__, keys))
            old = [] if fresh else cursor.getmulti(keys)
            if TRAILER_SIZE in map(len, stored):
                # Empty values or deletes.
                deletes = set(compress(keys, map(is_tombstone, stored)))
                for key, _ in old:
                    if key in deletes:
                        txn.delete(key)
                keys = [key for key in keys if key not in deletes]
                stored = list(filterfalse(is_tombstone, stored))
            stored = checked(keys, stored)
            cursor.putmulti(list(zip(keys, stored, strict=True)))
            count += len(keys) - len(old)
            digest ^= xor_trailers(stored) ^ xor_trailers([value for _, value in old])
    cursor.close()
    return replace(mark, count=count, digest=digest)


def _behind_all(cursor: Cursor, partition: int, key: bytes) -> bool:
    """Tell whether no key of the partition is at or behind ``key``."""
    if not cursor.set_range(key):
        return True
    return cursor.key()[:4] != key[:4]


def _remove_dropped(
    txn: KvTransaction, mark: PartitionMark, partition: int, lives: Callable[[int], bool]
) -> PartitionMark:
    """Delete the namespaces of a partition that are in no catalog, hopping over the others."""
    number = MARKS_NAMESPACE + 1
    while number <= _NAMESPACE_MAX:
        cursor = txn.cursor()
        found = cursor.key() if cursor.set_range(pack_prefix(partition, number)) else b""
        cursor.close()
        if found[:4] != partition.to_bytes(4, "big"):
            break
        number = int.from_bytes(found[4:8], "big")
        if not lives(number):
            mark = _remove_namespace(txn, mark, partition, number)
        number += 1
    return mark


def _remove_namespace(
    txn: KvTransaction, mark: PartitionMark, partition: int, namespace: int
) -> PartitionMark:
    """Delete everything that a namespace has in a partition."""
    prefix = pack_prefix(partition, namespace)
    digest, count = mark.digest, mark.count
    while True:
        cursor = txn.cursor()
        batch: list[tuple[bytes, bytes]] = []
        if cursor.set_range(prefix):
            for key, value in islice(cursor.iternext(), 1000):
                if not key.startswith(prefix):
                    break
                batch.append((key, value))
        cursor.close()
        if not batch:
            return replace(mark, count=count, digest=digest)
        for key, _ in batch:
            txn.delete(key)
        digest ^= xor_trailers([value for _, value in batch])
        count -= len(batch)


@translated("reading a partition")
def measure_partition(txn: KvTransaction, partition: int) -> tuple[int, int]:
    """Return (count, digest) of what a partition holds, checking every pair on the way.

    What is pending does not count: copies that agree on all else may differ in that.
    """
    count, digest = 0, 0
    cursor = txn.cursor()
    prefix = partition.to_bytes(4, "big")
    if not cursor.set_range(prefix + b"\0\0\0\1"):
        return 0, 0
    pairs = cursor.iternext()
    while True:
        block = []
        ended = True
        for key, value in islice(pairs, 1000):
            ended = not key.startswith(prefix)
            if ended:
                break
            check_pair(key, value)
            if key[4:8] != _PENDING:
                block.append(value)
        digest ^= xor_trailers(block)
        count += len(block)
        if ended:
            return count, digest


def verify_partitions(
    environment: KeyValueEnvironment, marks: dict[int, PartitionMark]
) -> list[str]:
    """Return what is wrong with the partitions, as sentences; the empty list means nothing."""
    txn = environment.begin()
    problems = []
    keys = len(marks) + (1 if txn.get(STORE_KEY) is not None else 0)
    for partition, mark in marks.items():
        try:
            count, digest = measure_partition(txn, partition)
        except CorruptDataError as error:
            problems.append(f"partition {partition}: {error}")
            continue
        keys += count + mark.pending
        if count != mark.count:
            problems.append(f"partition {partition} holds {count} keys where {mark.count} belong")
        elif digest != mark.digest:
            problems.append(f"partition {partition}: the digest of its {count} pairs is wrong")
    if not problems and keys != environment.entries():
        problems.append(f"{environment.entries()} keys in the tree, {keys} of them in partitions")
    return problems
