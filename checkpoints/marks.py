"""What a checkpoint writes beside the data, so that data and position are one.

A ``PartitionMark`` belongs to one partition, a ``StoreMark`` to the store.  A record of the log
is replayed into a partition when its position is at or above both the partition's and the
store's replay position: so it does not matter whether a checkpoint is one transaction of the
key-value store or several.  One that writes a partition in pieces moves ``written`` with the first
and ``position`` with the last; in between the partition holds a part of what replay brings again.

Invariants:

- A mark is written in the same transaction as the data that it describes.
- Count and digest are those of the partition's data, pieces included.
- ``position <= written``, and the log is durable up to there.
- An epoch table is sorted; a counter belongs to the last epoch that starts at or below it.  An
  epoch in which no number survives leaves no entry.

Left out: the checksum around a mark, which is that of every stored value (``engine.data.stored``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgpack

from ..affinity.errors import CorruptDataError
from ..tx.counter import PartitionUpdateCounter
from ..wal.records import NamespaceRecord

EpochTable = tuple[tuple[int, int], ...]
"""(epoch, first counter) of each epoch, oldest first."""

FIRST_EPOCHS: EpochTable = ((1, 1),)

Counts = Mapping[int, int]
"""How many pairs each namespace has that has any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionMark:
    """The state of one partition at a checkpoint.

    ``digest`` is the xor of all trailers of its stored values, ``count`` how many there are.
    Replay begins at ``position``; what was committed below ``written`` may be there already.
    Of a copy in a cluster: ``state`` (``copies.CopyState``), the ``admission`` by which it was
    last admitted, the newest epoch that it has ``sealed``, and how many entries it has of
    transactions and settle lists that are ``pending``.
    ``counts`` is ``count`` by namespace; None in marks of a version that did not keep it.
    Beside the data it counts the ``tombstones`` that are there; those behind the full key ``swept``
    are the next to be looked at.
    """

    position: int
    written: int
    counter: bytes
    epochs: EpochTable
    count: int
    digest: int
    state: int = 0
    admission: int = 0
    sealed: int = 0
    pending: int = 0
    tombstones: int = 0
    swept: bytes = b""
    counts: Counts | None = None

    def to_bytes(self) -> bytes:
        """Return the msgpack form."""
        fields = (
            self.position,
            self.counter,
            self.epochs,
            self.count,
            self.digest.to_bytes(25, "little"),
            self.written,
            self.state,
            self.admission,
            self.sealed,
            self.pending,
            self.tombstones,
            self.swept,
            *(() if self.counts is None else (sorted(self.counts.items()),)),
        )
        data: bytes = msgpack.packb(fields)
        return data

    @classmethod
    def from_bytes(cls, data: bytes) -> PartitionMark:
        """Return the mark in ``data``; ``CorruptDataError`` if there is none."""
        (
            position, counter, epochs, count, digest, written, state, admission, sealed, pending,
            tombstones, swept, *later
        ) = _fields(data, 12, "partition")  # fmt: skip
        return cls(
            position=position,
            written=written,
            counter=counter,
            epochs=tuple((epoch, start) for epoch, start in epochs),
            count=count,
            digest=int.from_bytes(digest, "little"),
            state=state,
            admission=admission,
            sealed=sealed,
            pending=pending,
            tombstones=tombstones,
            swept=swept,
            counts=dict(later[0]) if later else None,
        )

    @classmethod
    def empty(cls) -> PartitionMark:
        """Return the mark of a partition that never held anything."""
        counter = PartitionUpdateCounter().to_bytes()
        return cls(
            position=0,
            written=0,
            counter=counter,
            epochs=FIRST_EPOCHS,
            count=0,
            digest=0,
            counts={},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreMark:
    """The state of the store at a checkpoint: everything below ``position`` is in it.

    ``time`` is the highest commit time so far, in microseconds UTC; ``dropped`` are namespaces
    whose data has not been removed yet.
    """

    store_id: bytes
    position: int
    time: int
    namespaces: tuple[NamespaceRecord, ...]
    next_namespace: int
    dropped: tuple[int, ...]

    def to_bytes(self) -> bytes:
        """Return the msgpack form."""
        fields = (
            self.store_id,
            self.position,
            self.time,
            [namespace.fields() for namespace in self.namespaces],
            self.next_namespace,
            self.dropped,
        )
        data: bytes = msgpack.packb(fields)
        return data

    @classmethod
    def from_bytes(cls, data: bytes) -> StoreMark:
        """Return the mark in ``data``; ``CorruptDataError`` if there is none."""
        store_id, position, time, namespaces, following, dropped, *_ = _fields(data, 6, "store")
        return cls(
            store_id=store_id,
            position=position,
            time=time,
            namespaces=tuple(NamespaceRecord.of(fields) for fields in namespaces),
            next_namespace=following,
            dropped=tuple(dropped),
        )


def _fields(data: bytes, count: int, what: str) -> list[Any]:
    try:
        fields = msgpack.unpackb(data, strict_map_key=False)
    except (ValueError, msgpack.UnpackException) as error:
        raise CorruptDataError(
            f"the checkpoint mark of a {what} does not decode: {error}"
        ) from None
    if not isinstance(fields, list) or len(fields) < count:
        raise CorruptDataError(f"the checkpoint mark of a {what} has too few fields")
    return fields


def with_epoch(table: EpochTable, epoch: int, start: int) -> EpochTable:
    """Return the table after a new epoch; older ones keep only numbers below ``start``."""
    kept = tuple(entry for entry in table if entry[1] < start)
    return (*kept, (epoch, start))


def epoch_of(table: EpochTable, counter: int) -> int:
    """Return the epoch to which the table assigns a counter."""
    for epoch, start in reversed(table):
        if start <= counter:
            return epoch
    return table[0][0]
