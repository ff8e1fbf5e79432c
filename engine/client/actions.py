"""What a client does in several steps outside of transactions: decisions, first keys, many keys.

Invariants:

- A decision is committed together with the version of what it was made of; if that has changed
  meanwhile it is made again, until the time of the call is over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from ...affinity.errors import ConflictError, NotFoundError
from ...affinity.partitions import partition_of, partitions_of
from ..data.decisions import KEEP, Decide
from ..data.digests import range_digest
from ..data.namespaces import Namespace
from ..data.scan import Pair
from .commits import CommitRequest, RangeColumns, ReadColumns, WriteColumns, committing, puts_of
from .reads import PagedScan, ReadWay, got, paged
from .routing import PAUSE_S, Cluster, Pause, Steps

DECIDE_PAUSE_S_MAX = 0.05
"""The longest pause of who has lost a race for a key; it tries as long as its call may take."""

T = TypeVar("T")
NewId = Callable[[], bytes]


def about(namespace: Namespace, steps: Steps[T]) -> Steps[T]:
    """Carry out steps about a map: that it was dropped is said as by the map itself."""
    try:
        return (yield from steps)
    except NotFoundError as error:
        refused = error
    namespace.check_alive()
    raise refused


def put_many(
    cluster: Cluster,
    namespace: Namespace,
    pairs: Iterable[tuple[bytes, bytes | None]],
    new_id: NewId,
    until: float,
) -> Steps[None]:
    """Set or delete many keys, all or none."""
    given = dict(pairs)
    if given:
        partitions = partitions_of(given, namespace.space)
        commit = puts_of(namespace.id, partitions, given)
        yield from committing(cluster, commit, None, new_id, until)


def values_of(
    cluster: Cluster, namespace: Namespace, keys: Sequence[bytes], until: float, way: ReadWay
) -> Steps[list[bytes | None]]:
    """Return the values of keys: one request for each member that has some."""
    if not keys:
        return []
    places = partitions_of(keys, namespace.space)
    return (yield from got(cluster, namespace.id, keys, places, until, way)).values


def decided_on(
    cluster: Cluster, namespace: Namespace, key: bytes, decide: Decide, new_id: NewId, until: float
) -> Steps[Any]:
    """Carry out a decision about a key, in one step that nobody comes between."""
    partition = partition_of(key, namespace.space)
    pause = PAUSE_S
    while True:
        found = yield from got(cluster, namespace.id, [key], [partition], until)
        result, value = decide(found.values[0])
        if value is KEEP:
            return result
        commit = CommitRequest(
            (partition,), partition, None,
            [(namespace.id, [key], found.epochs, found.counters)], [],
            [(namespace.id, [key], [value])],
        )  # fmt: skip
        lost = yield from _won(cluster, commit, new_id, until)
        if lost is None:
            return result
        yield from _rested(lost, pause, until)
        pause = min(2 * pause, DECIDE_PAUSE_S_MAX)


def _won(
    cluster: Cluster, commit: CommitRequest, new_id: NewId, until: float
) -> Steps[ConflictError | None]:
    """Commit; return the conflict that has prevented it."""
    try:
        yield from committing(cluster, commit, None, new_id, until)
    except ConflictError as error:
        return error
    return None


def _rested(lost: ConflictError, pause: float, until: float) -> Steps[None]:
    event = yield Pause(pause)
    if event.now >= until:
        raise lost


def popped_first(
    cluster: Cluster, namespace: Namespace, new_id: NewId, until: float
) -> Steps[Pair | None]:
    """Delete the first key and return it with its value; None if the map is empty.

    In a cluster of one member nobody comes between; in a larger one a smaller key may come
    meanwhile.
    """
    numbers = list(namespace.space.numbers)
    pause = PAUSE_S
    while True:
        alone = cluster.view is not None and len(cluster.view.members) == 1
        if alone:
            page = yield from paged(
                cluster,
                namespace.id,
                numbers,
                b"",
                None,
                reverse=False,
                limit=1,
                versions=True,
                until=until,
            )
            pair = (page.keys[0], page.values[0]) if page.keys else None
        else:
            scan = PagedScan(cluster, namespace.id, numbers, b"", None, reverse=False, size=1)
            pair = next(iter((yield from scan.block(until))), None)
        if pair is None:
            return None
        key = pair[0]
        partition = partition_of(key, namespace.space)
        reads: ReadColumns = []
        ranges: RangeColumns = []
        partitions = [partition]
        if alone:
            digest = range_digest(page.keys, page.epochs, page.counters)
            ranges.append((namespace.id, numbers, b"", key + b"\0", 1, digest))
            partitions = numbers
        else:
            found = yield from got(cluster, namespace.id, [key], [partition], until)
            if found.values[0] is None:
                continue
            pair = key, found.values[0]
            reads.append((namespace.id, [key], found.epochs, found.counters))
        writes: WriteColumns = [(namespace.id, [key], [None])]
        commit = CommitRequest(partitions, partition, None, reads, ranges, writes)
        lost = yield from _won(cluster, commit, new_id, until)
        if lost is None:
            return pair
        yield from _rested(lost, pause, until)
        pause = min(2 * pause, DECIDE_PAUSE_S_MAX)
