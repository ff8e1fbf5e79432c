"""The snapshots of a store that are in use, and which of them have to end.

A snapshot ends before its owner wants it to if the snapshots pin too much memory, or if the data
file has to grow while it reads there.

Left out: what a snapshot reads (``snapshots``).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from ...affinity.errors import TidelogError
from ..data.overlay import Layer, View


class LiveSnapshot(Protocol):
    """A snapshot that somebody uses."""

    began: float
    """When it was taken, in seconds of the steady clock."""

    def layers(self) -> Sequence[Layer] | None:
        """Return the layers that it pins; None once it has ended."""

    def expire(self, why: str) -> None:
        """End it; its next use raises ``SnapshotExpiredError``."""

    def end(self, error: Callable[[], TidelogError]) -> None:
        """End it; its next use raises ``error()``."""

    def forked(self, error: Callable[[], TidelogError]) -> None:
        """End it in the child of a fork; its next use raises ``error()``."""


class LiveSnapshots:
    """The snapshots that are in use, without keeping them alive; shared by threads."""

    def __init__(self) -> None:
        # Not a WeakSet: while one is walked, no other thread may add to it.  What takes a reference
        # out is C, so that no signal can come in between.
        self._refs: dict[weakref.ref[LiveSnapshot], None] = {}

    def add(self, snapshot: LiveSnapshot) -> None:
        """Add a snapshot; it goes when nobody refers to it any more."""
        self._refs[weakref.ref(snapshot, self._refs.pop)] = None

    def __iter__(self) -> Iterator[LiveSnapshot]:
        found = [ref() for ref in list(self._refs)]
        return iter([snapshot for snapshot in found if snapshot is not None])

    def expire(self, why: str) -> None:
        """End them all; their next use raises ``SnapshotExpiredError``."""
        for snapshot in self:
            snapshot.expire(why)

    def expire_oldest(self, view: View, limit: int) -> None:
        """End the oldest one if all together pin more than ``limit`` bytes.

        What ``view``, the newest one, has anyway is not counted.
        """
        current = set(map(id, view.layers))
        held: dict[int, int] = {}
        users: list[LiveSnapshot] = []
        for snapshot in self:
            layers = snapshot.layers()
            if layers:
                users.append(snapshot)
            for layer in layers or ():
                if id(layer) not in current:
                    held[id(layer)] = layer.bytes
        if sum(held.values()) > limit and users:
            oldest = min(users, key=lambda snapshot: snapshot.began)
            oldest.expire("it pinned more memory than `snapshot_memory_max`")
