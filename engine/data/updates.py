"""The updates of a commit, in the two shapes that are quick: a few of any maps, many of one map.

A shape reserves its numbers, says what goes into the TX record, and later applies itself to the
overlay.  ``FewUpdates`` gives each update a run of its own (grouping costs more than it saves);
``ManyUpdates`` has one run per partition, and most of its work is done in C.

Both are used under the commit mutex only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set as AbstractSet
from itertools import chain
from typing import Protocol

from ...checkpoints.replay import State
from .overlay import PAIR_OVERHEAD, Layer
from .stored import PREFIX_SIZE, TOMBSTONE, TRAILER_SIZE, pack_trailer, stored_run

FEW = 64

PAIR_FIELDS = PREFIX_SIZE + TRAILER_SIZE
"""Bytes of an update beside key and value; a record needs fewer."""

_STORED_OVERHEAD = TRAILER_SIZE + PAIR_OVERHEAD
"""Bytes that an update takes in a layer beside full key and value."""

Write = tuple[int, int, bytes, "bytes | None"]
"""(partition, namespace id, encoded key, encoded value or None for a delete)."""

Writes = dict[bytes, Write]
"""What a transaction writes, by full key."""

RecordFields = tuple[list[int], "int | list[int]", Sequence[bytes], Sequence["bytes | None"]]
"""Flat runs, one namespace or one per update, keys and values, as a TX record has them."""


class Updates(Protocol):
    """What a commit changes."""

    def size(self) -> int:
        """Return about how many bytes the record will have."""

    def reserve(self, state: State) -> RecordFields:
        """Reserve the numbers and return the fields of the record."""

    def apply(self, layer: Layer, state: State, time: int) -> None:
        """Put the stored values into a layer and move the counters."""

    def changed(self, keys: AbstractSet[bytes]) -> AbstractSet[bytes]:
        """Return which of some full keys are changed."""

    def full_keys(self) -> Iterable[bytes]:
        """Return the full keys of all updates."""

    def namespaces(self) -> Iterable[int]:
        """Return the ids of the maps that are changed."""

    def new_values(self) -> Mapping[bytes, bytes | None]:
        """Return encoded values by full key, None for a delete."""


class FewUpdates:
    """Updates of a transaction, by full key."""

    __slots__ = ("_bytes", "_numbers", "_writes")

    def __init__(self, writes: Writes) -> None:
        self._writes = writes
        self._numbers: list[tuple[int, int]] = []
        self._bytes = 0
        """Of full keys and values; known once somebody has asked for the size."""

    def size(self) -> int:
        """Return about how many bytes the record will have."""
        writes = self._writes
        size = sum(map(len, writes))
        for _, _, _, value in writes.values():
            if value is not None:
                size += len(value)
        self._bytes = size
        return size + PAIR_FIELDS * len(writes)

    def reserve(self, state: State) -> RecordFields:
        """Reserve the numbers and return the fields of the record."""
        counters, epochs = state.counters, state.epochs
        if len(self._writes) > FEW:
            self._writes = dict(sorted(self._writes.items()))
        partitions, names, keys, values = zip(*self._writes.values(), strict=True)
        runs: list[int] = []
        last = -1
        numbers = self._numbers
        for partition in partitions:
            number = counters[partition].reserve(1) + 1
            epoch = epochs[partition]
            numbers.append((number, epoch))
            if partition == last:
                runs[-1] += 1
            else:
                runs += (partition, epoch, number, 1)
                last = partition
        namespace = names[0]
        several = len(names) > 1 and names.count(namespace) != len(names)
        return runs, list(names) if several else namespace, keys, values

    def apply(self, layer: Layer, state: State, time: int) -> None:
        """Put the stored values into a layer and move the counters."""
        counters, parts = state.counters, layer.parts
        for (full_key, (partition, _, _, value)), (number, epoch) in zip(
            self._writes.items(), self._numbers, strict=True
        ):
            part = parts.get(partition)
            if part is None:
                part = layer.part(partition)
            if value is None:
                part[full_key] = pack_trailer(TOMBSTONE, epoch, number, time)
            else:
                part[full_key] = value + pack_trailer(0, epoch, number, time)
            counters[partition].apply_one(number)
        if not self._bytes:
            self.size()
        layer.bytes += self._bytes + _STORED_OVERHEAD * len(self._writes)

    def changed(self, keys: AbstractSet[bytes]) -> AbstractSet[bytes]:
        """Return which of some full keys are changed."""
        return keys & self._writes.keys()

    def full_keys(self) -> Iterable[bytes]:
        """Return the full keys of all updates."""
        return self._writes.keys()

    def namespaces(self) -> Iterable[int]:
        """Return the ids of the maps that are changed."""
        return {number for _, number, _, _ in self._writes.values()}

    def new_values(self) -> Mapping[bytes, bytes | None]:
        """Return encoded values by full key, None for a delete."""
        return {full_key: value for full_key, (_, _, _, value) in self._writes.items()}


class ManyUpdates:
    """Updates of one map, by partition and encoded key."""

    __slots__ = ("_full_keys", "_namespace", "_parts", "_prefixes", "_runs", "_size")

    def __init__(
        self, namespace: int, prefixes: list[bytes], parts: dict[int, dict[bytes, bytes | None]]
    ) -> None:
        self._namespace = namespace
        self._prefixes = prefixes
        self._parts = parts
        self._runs: list[tuple[int, int, int]] = []
        self._full_keys: dict[int, list[bytes]] = {}
        self._size = 0

    def size(self) -> int:
        """Return about how many bytes the record will have."""
        size = 0
        for part in self._parts.values():
            size += sum(map(len, part)) + sum(map(len, filter(None, part.values())))
            size += PAIR_FIELDS * len(part)
        self._size = size
        return size

    def reserve(self, state: State) -> RecordFields:
        """Reserve the numbers and return the fields of the record."""
        runs: list[int] = []
        keys: list[bytes] = []
        values: list[bytes | None] = []
        self._runs = []
        for partition, part in self._parts.items():
            count = len(part)
            first = state.counters[partition].reserve(count) + 1
            epoch = state.epochs[partition]
            runs += (partition, epoch, first, count)
            self._runs.append((partition, epoch, first))
            keys += part
            values += part.values()
        return runs, self._namespace, keys, values

    def apply(self, layer: Layer, state: State, time: int) -> None:
        """Put the stored values into a layer and move the counters."""
        count = 0
        for partition, epoch, first in self._runs:
            part = self._parts[partition]
            stored = stored_run(list(part.values()), epoch, first, time)
            layer.part(partition).update(zip(self._of_partition(partition), stored, strict=True))
            state.counters[partition].update(first - 1, len(part))
            count += len(part)
        layer.bytes += (self._size or self.size()) + PAIR_OVERHEAD * count

    def _of_partition(self, partition: int) -> list[bytes]:
        full_keys = self._full_keys.get(partition)
        if full_keys is None:
            prefix = self._prefixes[partition]
            full_keys = list(map(prefix.__add__, self._parts[partition]))
            self._full_keys[partition] = full_keys
        return full_keys

    def changed(self, keys: AbstractSet[bytes]) -> AbstractSet[bytes]:
        """Return which of some full keys are changed."""
        return keys & frozenset(self.full_keys())

    def full_keys(self) -> Iterable[bytes]:
        """Return the full keys of all updates."""
        return [key for partition in self._parts for key in self._of_partition(partition)]

    def namespaces(self) -> Iterable[int]:
        """Return the id of the one map."""
        return (self._namespace,)

    def new_values(self) -> Mapping[bytes, bytes | None]:
        """Return encoded values by full key, None for a delete."""
        values = chain.from_iterable(part.values() for part in self._parts.values())
        return dict(zip(self.full_keys(), values, strict=True))


class NoUpdates:
    """What a commit of other records changes: nothing by itself."""

    def size(self) -> int:
        """Return 0."""
        return 0

    def reserve(self, state: State) -> RecordFields:
        """Never called: there is a record already."""
        raise AssertionError("a commit without updates reserves nothing")

    def apply(self, layer: Layer, state: State, time: int) -> None:
        """Change nothing."""

    def changed(self, keys: AbstractSet[bytes]) -> AbstractSet[bytes]:
        """Return the empty set."""
        return frozenset()

    def full_keys(self) -> Iterable[bytes]:
        """Return nothing."""
        return ()

    def namespaces(self) -> Iterable[int]:
        """Return nothing."""
        return ()

    def new_values(self) -> Mapping[bytes, bytes | None]:
        """Return nothing."""
        return {}
