"""Snapshots for tasks: the whole store as it was at one moment, for reading.

Left out: what a snapshot is (``api.snapshots``), where its reads run (``database``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from ...affinity.errors import UsageError
from ..api import snapshots
from ..api.maps import map_of
from ..data.namespaces import not_copied
from .beneath import Beneath
from .maps import Map, backing_of, check_home
from .transactions import Store

K = TypeVar("K")
V = TypeVar("V")


class Snapshot:
    """The whole store as it was at one moment; made by ``db.snapshot``, used in ``async with``."""

    def __init__(
        self, store: Store, take: Callable[[], Awaitable[snapshots.SnapshotSession]]
    ) -> None:
        self._store = store
        self._take = take
        self._inner: snapshots.SnapshotSession | None = None

    __reduce_ex__ = not_copied

    def __repr__(self) -> str:
        """Show position and state."""
        return f"<aio {self._inner!r}>" if self._inner else "<aio Snapshot not taken yet>"

    @property
    def position(self) -> int:
        """The position in the log up to which the snapshot has everything."""
        return self._taken().position

    def __getitem__(self, mapping: Map[K, V]) -> Map[K, V]:
        """Return a map as it is in this snapshot; ``UsageError`` for a foreign one."""
        check_home(mapping, self._store.home)

        async def bind() -> Beneath:
            taken, namespace = self._taken(), (await backing_of(mapping)).namespace
            return Beneath(taken.map_inside(map_of(namespace, taken)), self._store)

        return Map(mapping.name, self._store.home, bind)

    def _taken(self) -> snapshots.SnapshotSession:
        if self._inner is None:
            raise UsageError(
                "this snapshot has not been taken yet", hint="Use it in an `async with` block."
            )
        return self._inner

    async def __aenter__(self) -> Snapshot:
        """Take the snapshot."""
        if self._inner is None:
            self._inner = await self._take()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        """Close the snapshot."""
        self.close()

    def close(self) -> None:
        """Let go of what the snapshot holds; closing twice is fine."""
        if self._inner is not None:
            self._inner.close()
