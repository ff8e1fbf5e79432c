"""What a transaction of a client has read and written, without I/O.

It reads what it asks members for, one request after the other, so what it reads need not be of one
moment.  At the commit all of it is confirmed at once: each key by its version, each range by the
number of its keys and a digest of their versions.

Invariants:

- A transaction reads what it wrote, and a key that it has read stays as it was read.
- What was read counts, also if the transaction writes nothing, unless one request answered all.
- A transaction that confirms nothing (read_committed) sees the newest commit by each read, and is
  about what it writes alone.
- What it touches is checked before it is asked for: see ``unsupported``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ...affinity.errors import TransactionTooLargeError
from ...affinity.partitions import partition_of, partitions_of
from ..commit.entries import Receipt
from ..commit.outcomes import home_of
from ..data.digests import RANGE_KEYS_MAX, range_digest
from ..data.namespaces import Namespace
from ..data.scan import Pair
from .commits import CommitRequest, committing
from .reads import PAGE_MAX, Page, got, paged
from .routing import Cluster, Steps
from .unsupported import check_one_group


class _Version(NamedTuple):
    value: bytes | None
    epoch: int
    counter: int


class SeenRange:
    """A range of which a part has been read, beginning at one end."""

    def __init__(
        self,
        namespace: Namespace,
        low: bytes,
        high: bytes | None,
        *,
        reverse: bool,
        values: bool,
        confirms: bool,
    ) -> None:
        self._confirms = confirms
        self.namespace = namespace
        self.low, self.high = low, high
        self.reverse, self.values = reverse, values
        self.left: tuple[bytes, bytes | None] | None = (low, high)
        """Bounds of what has not been read; None at the end."""
        self.keys: list[bytes] = []
        self.epochs: list[int] = []
        self.counters: list[int] = []

    def gave(self, page: Page) -> tuple[bytes, bytes | None]:
        """Take a page; return the bounds of what it has shown."""
        assert self.left is not None
        low, high = self.left
        if self._confirms:
            self.keys += page.keys
            self.epochs += page.epochs
            self.counters += page.counters
        if len(self.keys) > RANGE_KEYS_MAX:
            raise TransactionTooLargeError(
                f"a transaction has read more than {RANGE_KEYS_MAX:,} keys of one range",
                hint="Read outside of a transaction, or in smaller ranges.",
            )
        if not page.more or not page.keys:
            self.left = None
            return low, high
        last = page.keys[-1]
        if self.reverse:
            self.left = low, last
            return last, high
        self.left = last + b"\0", high
        return low, last + b"\0"

    def confirmed(self) -> tuple[int, list[int], bytes, bytes | None, int, bytes]:
        """Return what the commit confirms of it."""
        low, high = self.low, self.high
        if self.left is not None:
            low, high = (self.left[1] or low, high) if self.reverse else (low, self.left[0])
        step = -1 if self.reverse else 1
        columns = self.keys[::step], self.epochs[::step], self.counters[::step]
        numbers = list(self.namespace.space.numbers)
        return self.namespace.id, numbers, low, high, len(self.keys), range_digest(*columns)


class TransactionContent:
    """What one transaction has read and written."""

    def __init__(
        self, cluster: Cluster, given_id: bytes | None, tag: str | None, *, confirms: bool
    ) -> None:
        """``confirms`` tells whether what was read has to be so still at the commit."""
        self._cluster = cluster
        self._confirms = confirms
        self._given_id = given_id
        self._tag = tag
        self._reads: dict[tuple[int, bytes], _Version] = {}
        self._writes: dict[int, dict[bytes, bytes | None]] = {}
        self._ranges: list[SeenRange] = []
        self._touched: set[int] = set()
        self._written: set[int] = set()
        self._asked = 0
        """Requests for anything that counts as read."""

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

    def _touch(self, partitions: Sequence[int]) -> None:
        view = self._cluster.view
        touched = self._touched.union(partitions)
        if self._given_id is not None and view is not None:
            home = home_of(self._given_id, view.spaces[0].partitions)
            check_one_group(view, {*touched, home})
        check_one_group(view, touched)
        self._touched = touched

    def put(self, namespace: Namespace, key: bytes, value: bytes | None) -> None:
        """Set an encoded key, or delete it."""
        partition = partition_of(key, namespace.space)
        self._touch((partition,))
        self._written.add(partition)
        self._writes.setdefault(namespace.id, {})[key] = value

    def values(
        self, namespace: Namespace, keys: Sequence[bytes], until: float
    ) -> Steps[list[bytes | None]]:
        """Return the values of keys; those that are not known are asked for at once."""
        wanted = [key for key in dict.fromkeys(keys) if self.known(namespace, key) is None]
        if wanted:
            places = partitions_of(wanted, namespace.space)
            if self._confirms:
                self._touch(places)
                self._asked += 1
            found = yield from got(self._cluster, namespace.id, wanted, places, until)
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
            namespace, low, high, reverse=reverse, values=values, confirms=self._confirms
        )

    def block(self, seen: SeenRange, size: int, until: float) -> Steps[list[Pair]]:
        """Return the next pairs of a range, with what was written; none at its end."""
        namespace = seen.namespace
        while seen.left is not None:
            partitions = list(namespace.space.numbers)
            self._touch(partitions)  # a page is of one member
            self._asked += 1
            low, high = seen.left
            page = yield from paged(
                self._cluster, namespace.id, partitions, low, high,
                reverse=seen.reverse, limit=min(size, PAGE_MAX),
                versions=True, values=seen.values, until=until,
            )  # fmt: skip
            if self._confirms and seen not in self._ranges:
                self._ranges.append(seen)
            pairs = self._merged(seen, page, *seen.gave(page))
            if pairs:
                return pairs
        return []

    def _merged(self, seen: SeenRange, page: Page, low: bytes, high: bytes | None) -> list[Pair]:
        written = {
            key: value
            for key, value in self._writes.get(seen.namespace.id, {}).items()
            if low <= key and (high is None or key < high)
        }
        if not written:
            return list(zip(page.keys, page.values, strict=True))
        merged = {**dict(zip(page.keys, page.values, strict=True)), **written}
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
            [seen.confirmed() for seen in self._ranges],
            writes,
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
        return (yield from committing(self._cluster, commit, self._given_id, new_id, until))
