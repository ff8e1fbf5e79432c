"""What a checkpoint writes into one partition: its updates, and a mark that fits them.

Invariants:

- A flush in several pieces is there with the last one: replay brings again what earlier ones wrote.
- A delete leaves a tombstone while an older update of its key may still come: in a copy that is
  being brought up, and above LWM.  A flush of a whole copy whose LWM has passed some removes them,
  of ``Sweep.pairs`` at a time.
- Into a copy that is not whole nothing goes that is older than what it has; pairs of a full copy
  go behind all that it has.
- What was cleared has gone before anything that came later is written.

A store that no cluster owns has whole copies only, and LWM has passed each group of commits before
it is flushed: nothing there is compared, and no tombstone is written.

Left out: where pairs and marks lie (``partition_store``), and when to flush (``checkpointer``).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import compress, filterfalse, islice, repeat, starmap
from typing import NamedTuple

from ...checkpoints.copies import CopyState
from ...checkpoints.marks import Counts, EpochTable, PartitionMark
from ...checkpoints.replay import State
from ...tx.counter import PartitionUpdateCounter
from ...wal.records import Record, encode_record
from ..system.environment import Cursor, KvTransaction
from .full_pairs import PairTally, WrongPairsError, living, tally_of
from .partition_store import FIRST_OF_DATA, MARKS_NAMESPACE, mark_key, write_mark
from .stored import (
    NAMESPACE,
    PENDING,
    PREFIX_SIZE,
    TRAILER_SIZE,
    StoredPair,
    checked,
    is_tombstone,
    pack_prefix,
    version_of,
    xor_trailers,
)

CHUNK = 1000
"""Updates between two chances for other threads: py-lmdb asks for the interpreter at every one."""

_ALL = 1 << 62
_NAMESPACE_MAX = 0xFFFFFFFF


def _no_rest() -> None:
    """Go on at once: nobody else needs the interpreter."""


class Sweep(NamedTuple):
    """How much of a partition a checkpoint looks through for tombstones that may go."""

    pairs: int = 4096
    bytes: int = 4 << 20
    """Bytes of values behind which it ends early."""


SWEEP = Sweep()


@dataclass(frozen=True, slots=True, kw_only=True)
class Flush:
    """What goes into one partition at a checkpoint: updates, and what its mark then says.

    Deletes with numbers above ``tombstones_above`` leave a tombstone, since what is older may still
    come; None: no delete does.  ``cleared`` is the position at which all that the partition held
    came to count for nothing, if it did: about ``held`` pairs go before anything is written.
    """

    partition: int
    updates: dict[bytes, bytes]
    position: int
    counter: bytes
    epochs: EpochTable
    state: int = CopyState.OWNING
    admission: int = 0
    sealed: int = 0
    pending: Sequence[Record] = ()
    tombstones_above: int | None = None
    cleared: int | None = None
    held: int = 0

    @classmethod
    def of(
        cls,
        state: State,
        partition: int,
        updates: dict[bytes, bytes],
        position: int,
        mark: PartitionMark | None,
    ) -> Flush:
        """Return the flush of a partition as a fold knows it; ``mark`` is that of the last one."""
        copies, counter = state.copies, state.counters[partition]
        cleared = state.cleared.get(partition)
        if cleared is not None and mark is not None and not _holds_cleared(mark, cleared):
            cleared = None
        copy_state = copies.states.get(partition, CopyState.OWNING)
        return cls(
            partition=partition,
            updates=updates,
            position=position,
            counter=counter.to_bytes(),
            epochs=state.epoch_tables[partition],
            state=copy_state,
            admission=copies.admissions.get(partition, 0),
            sealed=copies.sealed.get(partition, 0),
            pending=copies.entries(partition),
            tombstones_above=_tombstones_above(copy_state, counter),
            cleared=cleared,
            held=0 if mark is None else mark.count + mark.tombstones,
        )

    @property
    def owning(self) -> bool:
        """Whether the copy is whole: else what is there already may be newer."""
        return self.state == CopyState.OWNING

    def pieces(self, most: int) -> Iterator[Piece]:
        """Yield it in pieces of equal length, of at most ``most`` updates each, by key.

        What was cleared goes first, in pieces of as many pairs; the last of them takes the rest.
        """
        if self.cleared is not None:
            for left in range(-(-self.held // most), -1, -1):
                yield Piece(flush=self, keys=[], last=False, clears=most if left else _ALL)
        keys = sorted(self.updates)
        count = max(-(-len(keys) // most), 1)
        size = max(-(-len(keys) // count), 1)
        for first in range(0, max(len(keys), 1), size):
            piece = keys[first : first + size]
            yield Piece(flush=self, keys=piece, last=first + size >= len(keys))


def _tombstones_above(state: CopyState, counter: PartitionUpdateCounter) -> int | None:
    """Return above which number deletes leave a tombstone; None if none does.

    In a copy that is being brought up all do.  Else all numbers up to LWM are there, so nothing
    older comes behind these; without a gap LWM is the highest of all.
    """
    if state is not CopyState.OWNING:
        return 0
    return None if counter.lwm == counter.highest_applied else counter.lwm


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Some updates of a flush, by their keys in order; the partition is there with the last.

    ``clears`` is how many pairs it removes at most.
    """

    flush: Flush
    keys: list[bytes]
    last: bool
    clears: int = 0

    def mark(self, before: PartitionMark) -> PartitionMark:
        """Return the mark to write, with count and digest as they were before."""
        flush = self.flush
        # A recovery may flush at a position below that of a checkpoint that was cut short.
        written = max(before.written, flush.position)
        if not self.last:
            return replace(before, written=written)
        return replace(
            before,
            position=flush.position,
            written=written,
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
    sweep: Sweep = SWEEP,
    rest: Callable[[], object] = _no_rest,
) -> PartitionMark:
    """Write updates of one partition in sorted order; return its new mark, written too.

    ``before`` is the mark that it has.  Namespaces for which ``lives`` is false go.  Every
    ``CHUNK`` updates are written inside ``turn``: whoever takes it holds busy threads off.
    ``rest`` is called behind each chunk of what is cleared.
    """
    flush, mark = piece.flush, piece.mark(before)
    if piece.clears:
        mark = _clear(txn, mark, flush.partition, piece.clears, rest)
    if piece.keys:
        mark = _write_updates(txn, mark, piece, turn)
    if piece.last and lives is not None:
        mark = _remove(txn, mark, flush.partition, lives)
    if piece.last and (before.pending or flush.pending):
        _write_pending(txn, piece, before)
    if piece.last and mark.tombstones and flush.owning:
        with turn:
            mark = _sweep(txn, mark, flush, sweep)
    write_mark(txn, mark_key(flush.partition), mark.to_bytes())
    return mark


def append_pairs(
    txn: KvTransaction,
    before: PartitionMark,
    partition: int,
    keys: list[bytes],
    stored: list[bytes],
    position: int,
) -> PartitionMark:
    """Write pairs of a full copy behind all that its partition has; return its new mark, written.

    ``stored`` values have their checks, deletes among them.

    Raises ``WrongPairsError`` if a pair is there that would not lie before all of them: they come
    in order, into what was cleared.
    """
    cursor = txn.cursor()
    if not _behind_all(cursor, partition, keys[0]):
        raise WrongPairsError("keys that do not lie behind those that came before")
    came = PairTally()
    for first in range(0, len(keys), CHUNK):
        some = stored[first : first + CHUNK]
        cursor.putmulti(zip(keys[first : first + CHUNK], some, strict=True))
        came = came.plus(tally_of(some))  # one call for all would keep the interpreter for long
    cursor.close()
    alive = list(living(stored, keys)) if came.tombstones else keys
    mark = replace(
        before,
        written=max(before.written, position),
        count=before.count + came.live,
        tombstones=before.tombstones + came.tombstones,
        digest=before.digest ^ came.digest,
        counts=_moved(before.counts, alive, []),
    )
    write_mark(txn, mark_key(partition), mark.to_bytes())
    return mark


def _clear(
    txn: KvTransaction,
    mark: PartitionMark,
    partition: int,
    most: int,
    rest: Callable[[], object],
) -> PartitionMark:
    """Delete up to so many pairs of all that a partition held, but for the entries of its mark."""
    if mark.count + mark.tombstones > most:
        return _remove(txn, mark, partition, _is_pending, most)
    # None stays, so that nobody has to read what they are.
    for first, last in data_ranges(partition):
        _delete_between(txn, first, last, rest)
    return without_data(mark, mark.written)


def data_ranges(partition: int) -> tuple[tuple[bytes, bytes], tuple[bytes, bytes]]:
    """Return where the data of a partition lies: from a key on, and to below another one.

    Its mark lies before that, and between the two what is pending.
    """
    return (
        (pack_prefix(partition, MARKS_NAMESPACE + 1), pack_prefix(partition, PENDING)),
        (pack_prefix(partition, PENDING + 1), pack_prefix(partition + 1, 0)),
    )


def without_data(mark: PartitionMark, position: int) -> PartitionMark:
    """Return the mark of a partition whose data has gone, by a checkpoint at a position."""
    counts = None if mark.counts is None else dict[int, int]()
    written = max(mark.written, position)
    return replace(mark, written=written, count=0, digest=0, tombstones=0, counts=counts)


def still_held(cleared: Mapping[int, int], marks: Mapping[int, PartitionMark]) -> list[int]:
    """Return of which partitions a data file with these marks has what was cleared."""
    return [
        partition
        for partition, position in cleared.items()
        if partition in marks and _holds_cleared(marks[partition], position)
    ]


def _holds_cleared(mark: PartitionMark, cleared: int) -> bool:
    """Tell whether what was cleared at a position is there.

    Else a checkpoint that came to no end has removed it, and what is there counts.
    """
    return mark.position <= cleared


def _delete_between(
    txn: KvTransaction, first: bytes, last: bytes, rest: Callable[[], object]
) -> None:
    """Delete all pairs from the key ``first`` on to below ``last``."""
    cursor = txn.cursor()
    while cursor.set_range(first):
        found = list(islice(cursor.iternext(values=False), CHUNK))
        count = bisect_left(found, last)
        cursor.set_range(first)
        # Each time it stands on the next one: nothing is looked up by its key.
        deque(starmap(cursor.delete, repeat((), count)), maxlen=0)
        rest()
        if count < CHUNK:
            break
    cursor.close()


def _is_pending(namespace: int) -> bool:
    """Tell whether a namespace is not of the data: its entries are those of a mark."""
    return namespace == PENDING


def _write_pending(txn: KvTransaction, piece: Piece, before: PartitionMark) -> None:
    """Replace what was pending by what is pending now."""
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


def _write_updates(
    txn: KvTransaction, mark: PartitionMark, piece: Piece, turn: AbstractContextManager[object]
) -> PartitionMark:
    flush = piece.flush
    cursor = txn.cursor()
    bare = not (mark.count or mark.tombstones)
    fresh = bare or _behind_all(cursor, flush.partition, piece.keys[0])
    plain = flush.owning and flush.tombstones_above is None and not mark.tombstones
    for first in range(0, len(piece.keys), CHUNK):
        with turn:
            keys = piece.keys[first : first + CHUNK]
            stored = list(map(flush.updates.__getitem__, keys))
            old = [] if fresh else cursor.getmulti(keys)
            if plain:
                mark = _replace(txn, cursor, mark, keys, stored, old)
            else:
                mark = _merge(txn, cursor, mark, flush, dict(zip(keys, stored, strict=True)), old)
    cursor.close()
    return mark


def _replace(
    txn: KvTransaction,
    cursor: Cursor,
    mark: PartitionMark,
    keys: list[bytes],
    stored: list[bytes],
    old: list[StoredPair],
) -> PartitionMark:
    """Replace the old pairs by the updates; deletes leave nothing."""
    given = len(keys)
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
    digest = xor_trailers(stored) ^ xor_trailers([value for _, value in old])
    counts = mark.counts
    if not given == len(keys) == len(old):  # else the keys that were there are still there
        counts = _moved(counts, keys, [key for key, _ in old])
    count = mark.count + len(keys) - len(old)
    return replace(mark, count=count, digest=mark.digest ^ digest, counts=counts)


def _merge(
    txn: KvTransaction,
    cursor: Cursor,
    mark: PartitionMark,
    flush: Flush,
    updates: dict[bytes, bytes],
    old: list[StoredPair],
) -> PartitionMark:
    """Do the same if older updates may still come, or newer ones may be there already."""
    known = dict(old)
    if not flush.owning:
        for key, value in old:
            if version_of(value)[:2] > version_of(updates[key])[:2]:
                del updates[key], known[key]
    above = flush.tombstones_above
    gone = [
        key
        for key, value in updates.items()
        if is_tombstone(value) and (above is None or version_of(value)[1] <= above)
    ]
    for key in gone:
        del updates[key]
        if key in known:
            txn.delete(key)
    stored = checked(updates, updates.values())
    cursor.putmulti(list(zip(updates, stored, strict=True)))
    return _counted(_counted(mark, known.items(), -1), zip(updates, stored, strict=True), 1)


def _counted(mark: PartitionMark, pairs: Iterable[StoredPair], sign: int) -> PartitionMark:
    """Return a mark with pairs that came (1) or went (-1); tombstones are outside of the digest."""
    given = list(pairs)
    live = [pair for pair in given if not is_tombstone(pair[1])]
    keys = [key for key, _ in live]
    return replace(
        mark,
        count=mark.count + sign * len(live),
        digest=mark.digest ^ xor_trailers([value for _, value in live]),
        tombstones=mark.tombstones + sign * (len(given) - len(live)),
        counts=_moved(mark.counts, keys, []) if sign > 0 else _moved(mark.counts, [], keys),
    )


def _moved(counts: Counts | None, came: list[bytes], went: list[bytes]) -> Counts | None:
    """Return counts after full keys of one partition, in order, came and went."""
    if counts is None:
        return None
    moved = dict(counts)
    for namespace, count in _by_namespace(came):
        moved[namespace] = moved.get(namespace, 0) + count
    if not went:
        return moved
    for namespace, count in _by_namespace(went):
        moved[namespace] = moved.get(namespace, 0) - count
    return {namespace: count for namespace, count in moved.items() if count}


def _by_namespace(keys: list[bytes]) -> Iterator[tuple[int, int]]:
    """Yield the namespaces of full keys of one partition, in order, and how many each has."""
    first = 0
    while first < len(keys):
        namespace, last = keys[first][NAMESPACE], len(keys)
        if keys[-1][NAMESPACE] != namespace:
            last = bisect_left(keys, _behind(keys[first][:PREFIX_SIZE]), first)
        yield int.from_bytes(namespace, "big"), last - first
        first = last


def _behind(prefix: bytes) -> bytes:
    """Return the prefix of the namespace that follows one in its partition."""
    return (int.from_bytes(prefix, "big") + 1).to_bytes(PREFIX_SIZE, "big")


def _sweep(txn: KvTransaction, mark: PartitionMark, flush: Flush, limits: Sweep) -> PartitionMark:
    """Remove tombstones behind which nothing older can come any more.

    It looks at so many pairs behind those of the last sweep, and begins anew at
    the end of the partition.
    """
    prefix = flush.partition.to_bytes(4, "big")
    above = flush.tombstones_above
    gone: list[bytes] = []
    following, size = b"", 0
    cursor = txn.cursor()
    found = cursor.set_range(mark.swept or prefix + FIRST_OF_DATA)
    for count, (key, stored) in enumerate(cursor.iternext() if found else ()):
        if not key.startswith(prefix):
            break
        if count == limits.pairs or size > limits.bytes:
            following = key
            break
        size += len(stored)
        if is_tombstone(stored) and (above is None or version_of(stored)[1] <= above):
            gone.append(key)
    cursor.close()
    for key in gone:
        txn.delete(key)
    left = mark.tombstones - len(gone)
    return replace(mark, tombstones=left, swept=following if left else b"")


def _behind_all(cursor: Cursor, partition: int, key: bytes) -> bool:
    """Tell whether no key of the partition is at or behind ``key``."""
    if not cursor.set_range(key):
        return True
    return cursor.key()[:4] != key[:4]


def _remove(
    txn: KvTransaction,
    mark: PartitionMark,
    partition: int,
    lives: Callable[[int], bool],
    most: int = _ALL,
) -> PartitionMark:
    """Delete up to so many pairs of namespaces that do not live, hopping over the others."""
    number = MARKS_NAMESPACE + 1
    while number <= _NAMESPACE_MAX and most > 0:
        cursor = txn.cursor()
        found = cursor.key() if cursor.set_range(pack_prefix(partition, number)) else b""
        cursor.close()
        if found[:4] != partition.to_bytes(4, "big"):
            break
        number = int.from_bytes(found[4:8], "big")
        if not lives(number):
            before = mark
            mark = _remove_namespace(txn, mark, partition, number, most)
            most -= before.count + before.tombstones - mark.count - mark.tombstones
        number += 1
    return mark


def _remove_namespace(
    txn: KvTransaction, mark: PartitionMark, partition: int, namespace: int, most: int
) -> PartitionMark:
    """Delete up to so many pairs of what a namespace has in a partition."""
    prefix = pack_prefix(partition, namespace)
    while most > 0:
        cursor = txn.cursor()
        batch: list[StoredPair] = []
        if cursor.set_range(prefix):
            for key, value in islice(cursor.iternext(), min(CHUNK, most)):
                if not key.startswith(prefix):
                    break
                batch.append((key, value))
        cursor.close()
        if not batch:
            break
        for key, _ in batch:
            txn.delete(key)
        mark = _counted(mark, batch, -1)
        most -= len(batch)
    return mark
