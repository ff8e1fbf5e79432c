"""Snapshots of a whole cluster, for threads and for tasks: what ``snapshot`` returns.

    with db.snapshot() as old:
        old[users].get("ada")

A member takes it (``engine.node.snapshots``); what each partition holds of it stays at the member
that served it then, and is read there until the snapshot is closed, or ends before that.

Invariants:

- All that is read through a snapshot is of one moment, between its begin and the first read.
- It is never read from another member than the one that has pinned it.

Left out: what members do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from ...affinity.errors import ClosedError, DeadlineError, SnapshotExpiredError, TidelogError
from ..aio import maps as aio_maps
from ..api.maps import Map, map_of
from ..data.namespaces import namespace_at, not_copied
from ..net.failures import error_of
from .remote import Remote
from .routing import (
    PAUSE_S,
    PAUSE_S_MAX,
    REMAP,
    WAIT,
    Ask,
    Cluster,
    Failed,
    Job,
    Listen,
    Pause,
    Quiet,
    Steps,
    Value,
    only_place,
    served,
)
from .session import ClusterSession
from .stale import StaleReach, StaleSession, TasksSession

K = TypeVar("K")
V = TypeVar("V")

WRITES = "a snapshot cannot be written"


class Pinned(NamedTuple):
    """A snapshot that was taken: who has which partitions of it, and what it shows beside them."""

    snapshot: bytes
    places: Mapping[int, int]
    """By partition the place of a member among ``members``."""
    members: Sequence[bytes]
    shown: Sequence[bytes]


def take_snapshot(cluster: Cluster, until: float) -> Steps[Pinned]:
    """Return a new snapshot; tries again while members find no moment for it."""
    pause = PAUSE_S
    while True:
        try:
            snapshot, members, partitions, shown = yield from served(
                cluster, Job((), "snapshot", (), until)
            )
        except SnapshotExpiredError as error:
            refused = error
        else:
            places = {one: place for place, some in enumerate(partitions) for one in some}
            return Pinned(snapshot, places, members, shown)
        event = yield Pause(pause)
        if event.now >= until:
            raise refused
        pause = min(2 * pause, PAUSE_S_MAX)


def let_go(pinned: Pinned, until: float) -> Steps[None]:
    """Tell all members that a snapshot is not read any more."""
    for member in pinned.members:
        yield Ask(member, "unpin", (pinned.snapshot,), until)


class PinnedWay:
    """Asks the member that has pinned what is read."""

    def __init__(self, pinned: Pinned) -> None:
        self.pinned: Pinned | None = pinned

    def close(self) -> Pinned | None:
        """Read nothing any more; return what was pinned, None if that was done before."""
        pinned, self.pinned = self.pinned, None
        return pinned

    def __call__(self, cluster: Cluster, job: Job) -> Steps[Any]:
        """Return the answer to a request; ``SnapshotExpiredError`` if the snapshot has ended."""
        pinned = self.pinned
        if pinned is None:
            raise ClosedError("the snapshot is closed")
        place = only_place({one: pinned.places[one] for one in job.partitions})
        member, pause = pinned.members[place], PAUSE_S
        asked = (pinned.snapshot, pinned.shown, job.operation, job.arguments)
        while True:
            event = yield Ask(member, "pinned", asked, job.until)
            while type(event) is Quiet and event.now < job.until:
                event = yield Listen(member, job.until)
            if type(event) is Value:
                return event.value
            if isinstance(event, Failed) and event.code not in (REMAP, WAIT):
                raise error_of(event.code, event.message, event.fields)
            if event.now >= job.until:
                raise DeadlineError(
                    "the member that has this part of the snapshot did not answer in time",
                    hint="Take a new snapshot: it may have ended with that member.",
                )
            yield Pause(pause)
            pause = min(2 * pause, PAUSE_S_MAX)


# ------------------------------------------------------------------ threads


class ClusterSnapshot:
    """A whole cluster as it was at one moment, for threads; made by ``db.snapshot``.

    Close it, or use ``with``: members hold memory and disk space for it.  It ends before that with
    ``SnapshotExpiredError`` if it is not read for a minute, if it takes too much memory, and if
    a partition is served by another member, or by one that was started again.
    """

    def __init__(self, session: ClusterSession) -> None:
        self._database = session
        self._way = PinnedWay(session.run(lambda until: take_snapshot(session.cluster, until)))
        self._session = StaleSession(session, self._way, WRITES)

    __reduce_ex__ = not_copied

    def __repr__(self) -> str:
        return f"<ClusterSnapshot {'open' if self._way.pinned else 'closed'}>"

    def __getitem__(self, mapping: Map[K, V]) -> Map[K, V]:
        """Return a map as it is in this snapshot; ``UsageError`` for a foreign one."""
        return map_of(namespace_at(self._database.home, mapping), self._session)

    def close(self) -> None:
        """Let go of what members hold; closing twice is fine."""
        pinned = self._way.close()
        if pinned is not None:
            with suppress(TidelogError):
                self._database.run(lambda until: let_go(pinned, until))

    def __enter__(self) -> ClusterSnapshot:
        """Return the snapshot."""
        if self._way.pinned is None:
            raise ClosedError("the snapshot is closed")
        return self

    def __exit__(self, *_exc: object) -> None:
        """Close the snapshot."""
        self.close()


# ------------------------------------------------------------------ tasks


class ClusterTasksSnapshot:
    """A whole cluster as it was at one moment, for tasks, in ``async with``.

    See ``ClusterSnapshot``.
    """

    def __init__(self, session: TasksSession) -> None:
        self._database = session
        self._way: PinnedWay | None = None

    __reduce_ex__ = not_copied

    def __repr__(self) -> str:
        is_open = self._way is not None and self._way.pinned is not None
        return f"<aio ClusterSnapshot {'open' if is_open else 'closed'}>"

    def __getitem__(self, mapping: aio_maps.Map[K, V]) -> aio_maps.Map[K, V]:
        """Return a map as it is in this snapshot; ``UsageError`` for a foreign one."""
        aio_maps.check_home(mapping, self._database.home)
        if self._way is None:
            raise ClosedError("the snapshot is not taken: use it in `async with`")
        reach = StaleReach(self._database, self._way, WRITES)

        async def bind() -> Remote:
            return Remote((await aio_maps.backing_of(mapping)).namespace, reach)

        return aio_maps.Map(mapping.name, self._database.home, bind)

    async def __aenter__(self) -> ClusterTasksSnapshot:
        """Take the snapshot."""
        cluster = self._database.cluster
        self._way = PinnedWay(await self._database.run(lambda until: take_snapshot(cluster, until)))
        return self

    async def __aexit__(self, *_exc: object) -> None:
        """Close the snapshot."""
        await self.aclose()

    async def aclose(self) -> None:
        """Let go of what members hold; closing twice is fine."""
        pinned = None if self._way is None else self._way.close()
        if pinned is not None:
            with suppress(TidelogError):
                await self._database.run(lambda until: let_go(pinned, until))
