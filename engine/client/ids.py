"""Ids of the commits of a client: 16 bytes that nobody else makes, and that tell their time."""

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
        """Return an id of now, of the form that ``dated_id`` gives to the ids of a store."""
        return dated_id(self._clock(), self._fresh(), self._cluster.store or bytes(16))
