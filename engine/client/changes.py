"""What a transaction of a client has read and written, without I/O.

It reads what it asks members for, one request after the other, so what it reads need not be of one
moment.  At the commit all of it is confirmed at once: each key by its version, each range by the
number of its keys and a digest of their versions.

Invariants:

- A transaction reads what it wrote, and a key that it has read stays as it was read.
- What was read counts, also if the transaction writes nothing, unless one request answered all.
- A transaction that confirms nothing (read_committed) sees the newest commit by each read, and is
  about what it writes alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from ...affinity.errors import TransactionTooLargeError
from ...affinity.partitions import partition_of, partitions_of
from ..commit.entries import Receipt
from ..commit.outcomes import home_of
from ..data.digests import RANGE_KEYS_MAX, range_digest
from ..data.namespaces import Namespace
from ..data.scan import Pair
from .commits import RACES_MAX, CommitRequest, RangeColumns, committing
from .locking import ClientLocks
from .reads import PAGE_MAX, PagedScan, got
from .routing import Cluster, Steps


class _Version(NamedTuple):
    value: bytes | None
    epoch: int
    counter: int


class SeenRange:
    """A range of which a part has been read, beginning at one end."""

    def __init__(
        self,
        cluster: Cluster,
        namespace: Namespace,
        low: bytes,
        high: bytes | None,
        *,
        reverse: bool,
        values: bool,
        confirms: bool,
    ) -> None:
        self._cluster = cluster
        self._confirms = confirms
        self.namespace = namespace
        self.low, self.high = low, high
        self.reverse, self.values = reverse, values
        self.left: tuple[bytes, bytes | None] | None = (low, high)
        """Bounds of what has not been read; None at the end."""
        self.scan: PagedScan | None = None
        """What reads it, once that has begun."""
        self.keys: list[bytes] = []
        self.epochs: list[int] = []
        self.counters: list[int] = []

    def begun(self, size: int) -> PagedScan:
        """Return what reads it; the first page has so many keys."""
        if self.scan is None:
            self.scan = PagedScan(
                self._cluster, self.namespace.id, self.namespace.space.numbers, self.low, self.high,
                reverse=self.reverse, size=size, values=self.values, versions=self._confirms,
            )  # fmt: skip
        return self.scan

    def gave(self, rows: Sequence[tuple[Any, ...]], *, more: bool) -> tuple[bytes, bytes | None]:
        """Take what has been read; return the bounds of what it has shown."""
        assert self.left is not None
        low, high = self.left
        if self._confirms and rows:
            keys, _, epochs, counters = zip(*rows, strict=True)
            self.keys += keys
            self.epochs += epochs
            self.counters += counters
        if len(self.keys) > RANGE_KEYS_MAX:
            raise TransactionTooLargeError(
                f"a transaction has read more than {RANGE_KEYS_MAX:,} keys of one range",
                hint="Read outside of a transaction, or in smaller ranges.",
            )
        if not more or not rows:
            self.left = None
            return low, high
        last: bytes = rows[-1][0]
        if self.reverse:
            self.left = low, last
            return last, high
        self.left = last + b"\0", high
        return low, last + b"\0"

    def confirmed(self) -> RangeColumns:
        """Return what the commit confirms of it: in a larger cluster each partition by itself.

        Who has read partitions of one member may have to confirm them at several.
        """
        low, high = self.low, self.high
        if self.left is not None:
            low, high = (self.left[1] or low, high) if self.reverse else (low, self.left[0])
        step = -1 if self.reverse else 1
        keys, columns = self.keys[::step], (self.epochs[::step], self.counters[::step])
        numbers, number = list(self.namespace.space.numbers), self.namespace.id
        view = self._cluster.view
        if view is None or len(view.members) == 1:
            return [(number, numbers, low, high, len(keys), range_digest(keys, *columns))]
        parts: dict[int, list[tuple[bytes, int, int]]] = {one: [] for one in numbers}
        places = partitions_of(keys, self.namespace.space)
        for place, key, epoch, counter in zip(places, keys, *columns, strict=True):
            parts[place].append((key, epoch, counter))
        return [
            (number, [place], low, high, len(part), range_digest(*_columns(part)))
            for place, part in parts.items()
        ]


def _columns(rows: Sequence[tuple[bytes, int, int]]) -> tuple[list[bytes], list[int], list[int]]:
    return [row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows]


class TransactionContent:
    """What one transaction has read and written."""

    def __init__(
        self,
        cluster: Cluster,
        given_id: bytes | None,
        tag: str | None,
        *,
        confirms: bool,
        locks: ClientLocks | None = None,
    ) -> None:
        """``confirms`` tells whether what was read has to be so still at the commit.

        ``locks`` are those of a pessimistic one: what it writes is locked, and if it confirms also
        what it reads, so that it is so still.
        """
        self._cluster = cluster
        self.locks = locks
        self._confirms = confirms
        self._given_id = given_id
        self._tag = tag
        self._reads: dict[tuple[int, bytes], _Version] = {}
        self._writes: dict[int, dict[bytes, bytes | None]] = {}
        self._ranges: list[SeenRange] = []
        self._to_write: set[tuple[int, bytes]] = set()
        """What earlier attempts have written, or were about to."""
        self._touched: set[int] = set()
        self._written: set[int] = set()
        self.races_max: int | None = None
        """How many races for locks it may lose at its commit; None if that ends with its time."""
        self._asked = 0
        """Requests for anything that counts as read."""

    def follow(self, earlier: TransactionContent | None, *, mode_chosen: bool) -> None:
        """Be the next attempt of a loop, behind an earlier one.

        If it locks it is as old as that, and what that has written it locks at once to write it,
        where it reads: of two who have locked a key only to read it neither can write it.  If it
        does not lock, though a later attempt will, it leaves the field to that soon.
        """
        if not mode_chosen:
            self.races_max = RACES_MAX
        if earlier is None:
            return
        written = {(number, key) for number, part in earlier._writes.items() for key in part}
        self._to_write = earlier._to_write | written
        if self.locks is not None:
            self.locks.to_write = self._to_write
            self.locks.follow(earlier.locks)

    def __repr__(self) -> str:
        updates = sum(map(len, self._writes.values()))
        return f"updates={updates} reads={len(self._reads)} ranges={len(self._ranges)}"

    def known(self, namespace: Namespace, key: bytes) -> tuple[bytes | None] | None:
        """Return the value of a key that need not be asked for, in a tuple; None otherwise."""
        written = self._writes.get(namespace.id, {})
        if key in written:
            return (written[key],)
        version = self._reads.get((namespace.id, key))
        return None if version is None else (version.value,)

    def _touch(self, partitions: Iterable[int]) -> None:
        self._touched.update(partitions)

    def _count(self, partitions: Iterable[int]) -> None:
        """Count a request that was answered: by several members it is several, of as many moments.

        By now it is known if that has turned out to be so.
        """
        view = self._cluster.view
        alone = view is None or len(view.members) == 1 or len(set(partitions)) == 1
        self._asked += 1 if alone else 2

    def writing(
        self, namespace: Namespace, pairs: Iterable[tuple[bytes, bytes | None]], until: float
    ) -> Steps[None]:
        """Set or delete encoded keys, once they are locked."""
        pairs = list(pairs)
        yield from self.locking(namespace, [key for key, _ in pairs], until)
        for key, value in pairs:
            self.put(namespace, key, value)

    def locking(self, namespace: Namespace, keys: Iterable[bytes], until: float) -> Steps[None]:
        """Lock keys that are to be written, if this is pessimistic."""
        if self.locks is not None:
            keys = list(keys)
            self._to_write.update((namespace.id, key) for key in keys)  # even if it ends by that
            yield from self.locks.written(namespace, keys, until)

    def put(self, namespace: Namespace, key: bytes, value: bytes | None) -> None:
        """Set an encoded key, or delete it."""
        partition = partition_of(key, namespace.space)
        self._touch((partition,))
        self._written.add(partition)
        self._writes.setdefault(namespace.id, {})[key] = value

    def values(
        self, namespace: Namespace, keys: Sequence[bytes], until: float, *, to_write: bool = False
    ) -> Steps[list[bytes | None]]:
        """Return the values of keys; those that are not known are asked for at once.

        ``to_write`` tells that they may be written then: of two who have locked them only to read
        neither could.
        """
        if to_write and not self._confirms:
            yield from self.locking(namespace, keys, until)
        wanted = [key for key in dict.fromkeys(keys) if self.known(namespace, key) is None]
        if wanted:
            places = partitions_of(wanted, namespace.space)
            if self._confirms and self.locks is not None:
                found = yield from self.locks.read(namespace, wanted, until, exclusive=to_write)
            else:
                found = yield from got(self._cluster, namespace.id, wanted, places, until)
            if self._confirms:
                self._touch(places)  # not before: what was not read is not confirmed
                self._count(places)
            if not self._confirms:
                newest = dict(zip(wanted, found[0], strict=True))
                mine = self._writes.get(namespace.id, {})
                return [mine.get(key, newest.get(key)) for key in keys]
            for key, *version in zip(wanted, *found, strict=True):
                self._reads[namespace.id, key] = _Version._make(version)
        known = (self.known(namespace, key) for key in keys)
        return [one[0] for one in known if one is not None]

    def range(
        self, namespace: Namespace, low: bytes, high: bytes | None, *, reverse: bool, values: bool
    ) -> SeenRange:
        """Begin to read a range; without ``values`` only its keys, which count as read."""
        return SeenRange(
            self._cluster,
            namespace,
            low,
            high,
            reverse=reverse,
            values=values,
            confirms=self._confirms,
        )

    def block(self, seen: SeenRange, size: int, until: float) -> Steps[list[Pair]]:
        """Return the next pairs of a range, with what was written; none at its end."""
        while seen.left is not None:
            if self._confirms and self.locks is not None and seen.scan is None:
                yield from self.locks.range(seen.namespace, seen.low, seen.high, until)
            scan = seen.begun(min(size, PAGE_MAX))
            rows = yield from scan.block(until)
            if self._confirms:
                self._touch(seen.namespace.space.numbers)
                self._count(seen.namespace.space.numbers)
            if self._confirms and seen not in self._ranges:
                self._ranges.append(seen)
            pairs = self._merged(seen, rows, *seen.gave(rows, more=not scan.ended))
            if pairs:
                return pairs
        return []

    def _merged(
        self,
        seen: SeenRange,
        rows: Sequence[tuple[Any, ...]],
        low: bytes,
        high: bytes | None,
    ) -> list[Pair]:
        found: list[Pair] = [row[:2] for row in rows] if self._confirms else list(rows)
        written = {
            key: value
            for key, value in self._writes.get(seen.namespace.id, {}).items()
            if low <= key and (high is None or key < high)
        }
        if not written:
            return found
        merged = {**dict(found), **written}
        pairs = [(key, value) for key, value in merged.items() if value is not None]
        return sorted(pairs, reverse=seen.reverse)

    # -------------------------------------------------------------- commit

    def to_commit(self) -> CommitRequest | None:
        """Return what to commit; None if there is nothing to write, and nothing to confirm."""
        confirms_nothing = self._asked < 2 or not self._confirms
        if not self._writes and confirms_nothing and self._given_id is None:
            return None
        partitions = set(self._touched)
        if self._given_id is not None and self._cluster.view is not None:
            partitions.add(home_of(self._given_id, self._cluster.view.spaces[0].partitions))
        writes = [(number, [*part], [*part.values()]) for number, part in self._writes.items()]
        return CommitRequest(
            sorted(partitions),
            min(self._written, default=None if self._given_id is None else min(partitions)),
            self._tag,
            self._reads_to_confirm(),
            [row for seen in self._ranges for row in seen.confirmed()],
            writes,
            None if self.locks is None or self.locks.member is None else self.locks.name,
        )

    def _reads_to_confirm(self) -> list[tuple[int, list[bytes], list[int], list[int]]]:
        columns: dict[int, tuple[list[bytes], list[int], list[int]]] = {}
        for (namespace, key), version in self._reads.items():
            keys, epochs, counters = columns.setdefault(namespace, ([], [], []))
            keys.append(key)
            epochs.append(version.epoch)
            counters.append(version.counter)
        return [(namespace, *columns[namespace]) for namespace in columns]

    def committing(self, new_id: Callable[[], bytes], until: float) -> Steps[Receipt | None]:
        """Commit; return the receipt, None if there was nothing to commit."""
        commit = self.to_commit()
        if commit is None:
            return None
        return (
            yield from committing(
                self._cluster, commit, self._given_id, new_id, until, races_max=self.races_max
            )
        )
