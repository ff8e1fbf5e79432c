"""Ids of a client's commits: 16 bytes that nobody else makes, and that tell time and kind."""

from __future__ import annotations

from collections.abc import Callable

from ..commit.outcomes import dated_id
from .routing import Cluster


class Ids:
    """Makes ids; shared by threads."""

    def __init__(
        self, cluster: Cluster, clock: Callable[[], int], fresh: Callable[[], bytes]
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._fresh = fresh

    def new(self) -> bytes:
        """Return an id of now for a commit that was given none."""
        return self._made(given=False)

    def to_give(self) -> bytes:
        """Return an id of now that a user may give to a transaction."""
        return self._made(given=True)

    def _made(self, *, given: bool) -> bytes:
        store = self._cluster.store or bytes(16)
        return dated_id(self._clock(), self._fresh(), store, given=given)
