"""Committed updates that LMDB does not hold yet, in memory, and snapshots over them.

The overlay is a chain of *layers*, oldest first; the last one is active and takes every new
update, the others are sealed.  A layer holds, per partition, a dict from full key to stored
value (plain bytes both, so that the garbage collector does not track the dicts).

Invariants:

- A newer layer wins over an older one, and every layer over LMDB.
- A snapshot sees the layers that were sealed when it was taken; what came later is exactly what
  the chain holds from its ``boundary`` on.  So a transaction finds what changed since its
  snapshot by walking ``newer`` links, whatever has been flushed meanwhile.
- Two neighbouring layers are merged once no snapshot needs the boundary between them, and only
  while neither is being flushed.

Not safe by itself: callers hold the store's mutex for everything but reads of a ``View``.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter

from ..system.environment import KvTransaction

PAIR_OVERHEAD = 200
"""Bytes that a pair costs beside its full key and stored value: two objects and a slot of a dict.

Whoever puts an update into a layer adds the length of both and this to its ``bytes``.
"""

FEW_KEYS = 32
"""New keys that are put in their places one by one; more are sorted with the others."""

_bytes_of: Callable[[Layer], int] = attrgetter("bytes")


class Layer:
    """Updates of one stretch of time, per partition."""

    __slots__ = ("absorbed_by", "bytes", "flushing", "newer", "parts", "snapshots", "sorted_keys")

    def __init__(self) -> None:
        self.parts: dict[int, dict[bytes, bytes]] = {}
        self.bytes = 0
        """What its updates take in memory, about."""
        self.newer: Layer | None = None
        self.absorbed_by: Layer | None = None
        """The older layer that took this one over, if one did."""
        self.snapshots = 0
        """Snapshots for which this is the newest layer."""
        self.flushing = False
        self.sorted_keys: dict[int, list[bytes]] = {}
        """The keys of a partition, sorted, that it had when somebody scanned it."""

    def part(self, partition: int) -> dict[bytes, bytes]:
        """Return the dict of a partition, made on first use."""
        part = self.parts.get(partition)
        if part is None:
            part = self.parts[partition] = {}
        return part

    def put(self, partition: int, full_key: bytes, stored: bytes) -> None:
        """Take an update."""
        part = self.parts.get(partition)
        if part is None:
            part = self.part(partition)
        part[full_key] = stored
        self.bytes += len(full_key) + len(stored) + PAIR_OVERHEAD

    def keys_of(self, partition: int) -> list[bytes]:
        """Return the sorted full keys of a partition of this sealed layer.

        A dict never loses a key here and keeps the order in which they came, so keys that were
        sorted earlier are the first ones of it, and only the others have to find their place.
        """
        part = self.parts.get(partition, {})
        known = self.sorted_keys.get(partition, [])
        if len(known) == len(part):
            return known
        # In one step: layers are merged by others meanwhile, and then an iterator would fail.
        fresh = list(part)[len(known) :]
        keys = known[:]
        if len(fresh) <= FEW_KEYS:
            for key in fresh:
                insort(keys, key)
        else:
            fresh.sort()
            keys += fresh
            keys.sort()
        self.sorted_keys[partition] = keys
        return keys

    def forget(self, partition: int) -> None:
        """Drop a partition: what it holds counts for nothing, and nobody reads it meanwhile."""
        part = self.parts.pop(partition, {})
        self.sorted_keys.pop(partition, None)
        size = sum(map(len, part)) + sum(map(len, part.values())) + PAIR_OVERHEAD * len(part)
        self.bytes = max(self.bytes - size, 0) if self.parts else 0

    def absorb(self, other: Layer) -> None:
        """Take over the newer updates of ``other``, which hides the same ones until it is gone."""
        for partition, updates in other.parts.items():
            mine = self.parts.get(partition)
            if mine is None:
                self.parts[partition] = dict(updates)
            else:
                mine.update(updates)


@dataclass(frozen=True, slots=True)
class View:
    """What a reader reads: layers, newest first, and the LMDB transaction beneath them.

    ``get`` and ``closed`` are called without any lock: layers and transaction of a view never
    become older, and what is active only gains updates.
    """

    layers: tuple[Layer, ...]
    txn: KvTransaction

    def stored(self, partition: int, full_key: bytes) -> bytes | None:
        """Return the stored value as it is in memory or in LMDB, not checked; None if absent."""
        return self.newer(partition, full_key) or self.txn.get(full_key)

    def newer(self, partition: int, full_key: bytes) -> bytes | None:
        """Return the stored value as it is in memory; None if the newest one is not there."""
        for layer in self.layers:
            part = layer.parts.get(partition)
            if part is not None:
                found = part.get(full_key)
                if found is not None:
                    return found
        return None


class Overlay:
    """The chain of layers and the view that readers take.

    The view is the whole chain, and the only place where it is kept: every change makes a new one
    and replaces the old one by it at the very end.  So a thread that is interrupted in a
    change leaves the chain as it was, or as it was to be.
    """

    def __init__(self, txn: KvTransaction) -> None:
        self.view = View((Layer(),), txn)
        self.applying = False
        """Whether a commit is half in the active layer: readers without the mutex wait."""
        self.gated = False
        """Whether a read may have to wait until the data file has grown."""
        self.changes = 0
        """How many times something was applied."""
        self.ended: deque[Layer] = deque()
        """Boundaries of snapshots that have ended. Filled without the mutex, since a finalizer
        may run anywhere, even under it; taken up when the next snapshot or flush begins."""

    @property
    def active(self) -> Layer:
        """The layer that takes every new update."""
        return self.view.layers[0]

    @property
    def bytes(self) -> int:
        """Memory that the updates of all layers take, roughly."""
        return sum(map(_bytes_of, self.view.layers))

    @property
    def newer_bytes(self) -> int:
        """Memory of all layers but the oldest: the most that merging layers can copy."""
        return sum(map(_bytes_of, self.view.layers[:-1]))

    @property
    def layers(self) -> int:
        """How many layers there are."""
        return len(self.view.layers)

    def seal(self) -> Layer | None:
        """Close the active layer and begin a new one; return the newest sealed layer, if any."""
        view = self.view
        active = view.layers[0]
        if active.parts:
            fresh = Layer()
            active.newer = fresh
            self.view = View((fresh, *view.layers), view.txn)
            return active
        return view.layers[1] if len(view.layers) > 1 else None

    def snapshot(self) -> tuple[View, Layer]:
        """Return a view that does not change, and its boundary for ``ended`` and ``since``.

        The boundary is the newest layer of the view; an empty one if no layer is sealed.
        """
        self.take_up_ended()
        newest = self.seal()
        if newest is None:
            # Nothing in memory, only LMDB. The boundary is an empty layer before what comes.
            newest = Layer()
            newest.newer = self.view.layers[0]
            return View((), self.view.txn), newest
        newest.snapshots += 1
        return View(self.view.layers[1:], self.view.txn), newest

    def frozen(self) -> tuple[View, Layer]:
        """Return what ``snapshot`` does, for a chain that nobody changes any more."""
        return self.view, Layer()

    def take_up_ended(self) -> None:
        """Merge layers that only ended snapshots kept apart."""
        while self.ended:
            self._release(self.ended.popleft())

    def _release(self, boundary: Layer) -> None:
        while boundary.absorbed_by is not None:
            boundary = boundary.absorbed_by
        if not boundary.snapshots:
            return
        boundary.snapshots -= 1
        self._merge(boundary)

    def _merge(self, older: Layer) -> bool:
        """Let a layer take over the next newer one; False, and nothing done, if they stay apart."""
        layers = self.view.layers
        newer = older.newer
        if older.snapshots or older.flushing or older not in layers:
            return False
        if newer is None or newer.flushing or newer not in layers:
            return False
        older.absorb(newer)
        size = older.bytes + newer.bytes
        view = View(tuple(layer for layer in layers if layer is not newer), self.view.txn)
        # In one statement without a call: an interrupt comes before all of it, or behind it.
        newer.absorbed_by, older.snapshots, older.bytes, older.newer, self.view = (
            older, newer.snapshots, size, newer.newer, view,
        )  # fmt: skip
        return True

    def begin_flush(self) -> list[Layer]:
        """Seal, mark all sealed layers as being flushed, and return them, oldest first."""
        self.take_up_ended()
        self.seal()
        flushed = list(reversed(self.view.layers[1:]))
        for layer in flushed:
            layer.flushing = True
        return flushed

    def refresh(self, txn: KvTransaction) -> None:
        """Let readers see LMDB as ``txn`` does."""
        self.view = View(self.view.layers, txn)

    def end_flush(self, flushed: list[Layer], txn: KvTransaction) -> None:
        """Drop flushed layers: LMDB, as ``txn`` sees it, holds them now."""
        gone = set(map(id, flushed))
        self.view = View(tuple(layer for layer in self.view.layers if id(layer) not in gone), txn)

    def abandon_flush(self) -> None:
        """The flush failed: the layers stay, as few as can be, to be flushed again."""
        sealed = list(reversed(self.view.layers[1:]))
        for layer in sealed:
            layer.flushing = False
        for layer in sealed:
            while self._merge(layer):
                pass


def since(boundary: Layer) -> Iterator[Layer]:
    """Yield the layers with everything that was committed after a snapshot, oldest first."""
    layer = boundary.newer
    while layer is not None:
        yield layer
        layer = layer.newer


def merged(layers: Iterable[Layer]) -> dict[int, dict[bytes, bytes]]:
    """Return the updates of layers, given oldest first, as one dict per partition."""
    result: dict[int, dict[bytes, bytes]] = {}
    for layer in layers:
        for partition, updates in layer.parts.items():
            mine = result.get(partition)
            if mine is None:
                result[partition] = updates
            else:
                result[partition] = {**mine, **updates}
    return result
