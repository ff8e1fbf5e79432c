"""Reads that other copies answer than the primary: which of them is asked, and who after it.

====================== ============================================================================
way                    who answers
====================== ============================================================================
``served``             the primary, by its lease (``routing``)
``InTurn``             any copy of the in-sync set, whose primary confirms what it has read; if that
                       does not come, the primary: what is read is as new as there
``Stale``              any copy that is whole, by itself: it may be older, and tells how old it is
====================== ============================================================================

A way has a *turn*: it asks the first member at or behind that place in the view who has what is
asked for.  So reads spread, and those of one way go to one member as long as that answers.

Left out: what members answer, and why that is right (``engine.node.copy_reads``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Literal, NamedTuple

from ...affinity.errors import PartitionUnavailableError, TidelogError
from ..net.failures import error_of
from .reads import ReadWay
from .routing import (
    PATIENCE_S,
    PAUSE_S,
    PAUSE_S_MAX,
    REMAP,
    TRIED_SHOWN_MAX,
    WAIT,
    Ask,
    Broke,
    ClientEvent,
    Cluster,
    Failed,
    Job,
    Pause,
    Quiet,
    SplitError,
    Steps,
    Value,
    only_place,
    served,
)
from .views import ClusterView

ReadFrom = Literal["primary", "copies"]
"""Who answers the reads of a client; what they show is as new either way."""


class AsOf(NamedTuple):
    """How old what was read of a partition is: all of an epoch up to its LWM, at least."""

    epoch: int
    lwm: int


def way_of(cluster: Cluster, read_from: ReadFrom) -> ReadWay:
    """Return the way of one read, or of one iteration."""
    return served if read_from == "primary" else InTurn(cluster)


class InTurn:
    """Asks a copy, then the primary.  Its copies take turns with those of other reads."""

    def __init__(self, cluster: Cluster) -> None:
        self._turn = cluster.next_turn()

    def __call__(self, cluster: Cluster, job: Job) -> Steps[Any]:
        """Return the answer to a request."""
        view = cluster.view
        if view is not None:
            places = {p: _first(view, view.copies[p], self._turn) for p in job.partitions}
            place = only_place(places)
            is_primary = all(view.primaries[partition] == place for partition in places)
            if view.members[place].present and not is_primary:
                until = min(job.until, (yield Pause(0.0)).now + PATIENCE_S)
                asked = (job.operation, job.arguments)
                event = yield Ask(view.members[place].id, "copy", asked, until)
                if type(event) is Value:
                    return event.value
        return (yield from served(cluster, job))


class Stale:
    """Asks one member after the other until one has a copy."""

    def __init__(self, cluster: Cluster) -> None:
        self.as_of: dict[int, AsOf] = {}
        """By partition, of the newest read that was about it."""
        self._turn = cluster.next_turn()

    def __call__(self, cluster: Cluster, job: Job) -> Steps[Any]:
        """Return the answer to a request; ``PartitionUnavailableError`` if there is no copy.

        Each member has a second for it.
        """
        if cluster.view is None:
            yield from served(cluster, Job((), "status", (), job.until))
        tried: dict[int, ClientEvent] = {}
        broken: set[int] = set()
        pause = PAUSE_S
        now = (yield Pause(0.0)).now
        while True:
            view = cluster.view
            assert view is not None
            place = self._next(view, job.partitions, tried)
            if place is not None:
                asked = (job.operation, job.arguments)
                until = min(job.until, now + PATIENCE_S)
                event = yield Ask(view.members[place].id, "stale", asked, until)
                if type(event) is Value:
                    value, *columns = event.value
                    for partition, epoch, lwm in zip(*columns, strict=True):
                        self.as_of[partition] = AsOf(epoch, lwm)
                    return value
                if type(event) is not Broke or place in broken:
                    tried[place] = event
                broken.add(place)  # an old connection says nothing of whoever is there now
                now = event.now
            elif len(job.partitions) > 1:  # one member need not have all of them
                raise SplitError({partition: partition for partition in job.partitions})
            elif now < job.until and any(_is_coming(event) for event in tried.values()):
                tried.clear()
                now = (yield Pause(min(pause, job.until - now))).now
                pause = min(2 * pause, PAUSE_S_MAX)
            else:
                raise _no_copy(view, job.partitions[0], tried)

    def _next(
        self, view: ClusterView, partitions: Iterable[int], tried: Collection[int]
    ) -> int | None:
        """Return who is asked next: copies, then whoever may have one that is out of its set."""
        places: dict[int, int] = {}
        for partition in partitions:
            left = [place for place in view.copies[partition] if place not in tried]
            left = left or [place for place in range(len(view.members)) if place not in tried]
            if not left:
                return None
            places[partition] = _first(view, left, self._turn)
        return only_place(places)


def _first(view: ClusterView, places: Iterable[int], turn: int) -> int:
    """Return the first of some places at or behind a turn, of those who are there if any is."""
    members = view.members
    return min(
        places, key=lambda place: (not members[place].present, (place - turn) % len(members))
    )


def _is_coming(event: ClientEvent) -> bool:
    return isinstance(event, Failed) and event.code == WAIT


def _no_copy(view: ClusterView, partition: int, tried: dict[int, ClientEvent]) -> TidelogError:
    """Return why nobody has answered: what a member has against the request, if it is that."""
    for event in tried.values():
        if isinstance(event, Failed) and event.code not in (REMAP, WAIT):
            return error_of(event.code, event.message, event.fields)
    shown = [f"{view.members[place].address}: {_told(event)}" for place, event in tried.items()]
    return PartitionUnavailableError(
        f"no copy of partition {partition} is reached ({'; '.join(shown[:TRIED_SHOWN_MAX])})",
        partition=partition,
    )


def _told(event: ClientEvent) -> str:
    if isinstance(event, Failed):
        return event.message or event.code
    return "no answer" if isinstance(event, Quiet) else getattr(event, "reason", "no answer")
