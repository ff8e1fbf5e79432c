"""Reads of a client: keys, pages, and iterations over what several members serve.

Invariants:

- What one member answers to one request is of one moment; two requests are two moments.  So are
  more than ``GET_KEYS_MAX`` keys.
- An iteration gives each key once, in order, also if partitions move meanwhile.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

from ..net.operations import GET_KEYS_MAX
from .routing import Cluster, Job, SplitError, Steps, served

ReadWay = Callable[[Cluster, Job], Steps[Any]]
"""Who is asked to read: ``served``, or a way of ``copies``; it raises what ``served`` does."""

PAGE_MAX = 2048
"""Pairs that are asked for at once, at most; the first page has fewer."""


class FoundColumns(NamedTuple):
    """What is at some keys, as columns: value or None, epoch and counter."""

    values: list[bytes | None]
    epochs: list[int]
    counters: list[int]


def got(
    cluster: Cluster,
    namespace: int,
    keys: Sequence[bytes],
    partitions: Sequence[int],
    until: float,
    way: ReadWay = served,
) -> Steps[FoundColumns]:
    """Return what is at keys, which lie in these partitions: one request for each member.

    Of many keys it is one request for each ``GET_KEYS_MAX``.
    """
    if len(set(partitions)) == 1 and len(keys) <= GET_KEYS_MAX:
        job = Job(partitions[:1], "get", (namespace, keys), until)
        return FoundColumns(*(yield from way(cluster, job)))
    found = FoundColumns([None] * len(keys), [0] * len(keys), [0] * len(keys))
    firsts = range(0, len(keys), GET_KEYS_MAX)
    left = [list(range(first, min(first + GET_KEYS_MAX, len(keys)))) for first in firsts]
    while left:
        places = left.pop()
        about = sorted({partitions[place] for place in places})
        asked = [keys[place] for place in places]
        job = Job(about, "get", (namespace, asked), until)
        try:
            answer = yield from way(cluster, job)
        except SplitError as split:
            left += _divided(split.places, places, [partitions[place] for place in places])
            continue
        for place, value, epoch, counter in zip(places, *answer, strict=True):
            found.values[place] = value
            found.epochs[place] = epoch
            found.counters[place] = counter
    return found


def _divided(places: Mapping[int, int], items: list[int], partitions: list[int]) -> list[list[int]]:
    """Divide items among the members that have their partitions."""
    groups: dict[int, list[int]] = {}
    for item, partition in zip(items, partitions, strict=True):
        groups.setdefault(places[partition], []).append(item)
    return [groups[place] for place in sorted(groups)]


@dataclass(slots=True)
class Page:
    """One page of a scan; without versions, if they were not wanted."""

    keys: list[bytes]
    values: list[bytes]
    epochs: list[int]
    counters: list[int]
    more: bool


@dataclass(slots=True)
class _Source:
    """What one member has of an iteration: pairs that have come, and where the next ones begin."""

    partitions: list[int]
    low: bytes
    high: bytes | None
    columns: Sequence[list[Any]] = ([], [])
    """Keys, values, and versions if they are wanted."""
    more: bool = True

    @property
    def keys(self) -> list[bytes]:
        """The keys that have come."""
        return self.columns[0]


class PagedScan:
    """An iteration over keys from ``low`` to below ``high``, block by block.

    With ``versions`` each pair has epoch and counter behind it.
    """

    def __init__(
        self,
        cluster: Cluster,
        namespace: int,
        partitions: Iterable[int],
        low: bytes,
        high: bytes | None,
        *,
        reverse: bool,
        size: int,
        values: bool = True,
        versions: bool = False,
        way: ReadWay = served,
    ) -> None:
        self._versions = versions
        self._cluster = cluster
        self._way = way
        self._namespace = namespace
        self._reverse = reverse
        self._values = values
        self._size = min(max(size, 1), PAGE_MAX)
        self._sources = [_Source(list(partitions), low, high)]

    @property
    def ended(self) -> bool:
        """Whether everything has been given."""
        return not any(source.more or source.keys for source in self._sources)

    def block(self, until: float) -> Steps[list[Any]]:
        """Return the next pairs, in order; none at the end."""
        while True:
            yield from self._fill(until)
            self._size = min(4 * self._size, PAGE_MAX)
            sources = self._sources
            self._sources = [source for source in sources if source.more or source.keys]
            if not self._sources:
                return []
            pairs = self._taken()
            if pairs:
                return pairs

    def _fill(self, until: float) -> Steps[None]:
        """Fetch a page from each source that has given all it had."""
        waiting = [source for source in self._sources if source.more and not source.keys]
        while waiting:
            source = waiting.pop()
            asked = paged(
                self._cluster, self._namespace, source.partitions, source.low, source.high,
                reverse=self._reverse, limit=self._size,
                versions=self._versions, values=self._values, until=until, way=self._way,
            )  # fmt: skip
            try:
                page = yield from asked
            except SplitError as split:
                parts = _divided(split.places, source.partitions, source.partitions)
                made = [_Source(part, source.low, source.high) for part in parts]
                self._sources.remove(source)
                self._sources += made
                waiting += made
                continue
            columns = page.keys, page.values, page.epochs, page.counters
            source.columns, source.more = columns if self._versions else columns[:2], page.more
            if page.keys and self._reverse:
                source.high = page.keys[-1]
            elif page.keys:
                source.low = page.keys[-1] + b"\0"

    def _taken(self) -> list[Any]:
        """Take what is certainly next: nothing behind the last key of a source that has more."""
        if len(self._sources) == 1:
            (source,) = self._sources
            pairs = list(zip(*source.columns, strict=True))
            source.columns = [], []
            return pairs
        ends = [source.keys[-1] for source in self._sources if source.more]
        bound = (max if self._reverse else min)(ends) if ends else None
        parts = []
        for source in self._sources:
            count = self._count(source.keys, bound)
            parts.append(zip(*(column[:count] for column in source.columns), strict=True))
            source.columns = [column[count:] for column in source.columns]
        return sorted(chain.from_iterable(parts), reverse=self._reverse)

    def _count(self, keys: list[bytes], bound: bytes | None) -> int:
        if bound is None:
            return len(keys)
        if self._reverse:
            return len(keys) - bisect_left(keys[::-1], bound)
        return bisect_right(keys, bound)


def paged(
    cluster: Cluster,
    namespace: int,
    partitions: Sequence[int],
    low: bytes,
    high: bytes | None,
    *,
    reverse: bool,
    limit: int,
    versions: bool,
    values: bool = True,
    until: float,
    way: ReadWay = served,
) -> Steps[Page]:
    """Return the next pairs of partitions that one member serves; ``SplitError`` if more do.

    Without ``values`` each is empty.
    """
    if high is not None and high <= low:
        return Page([], [], [], [], False)
    arguments = (namespace, partitions, low, high, reverse, limit, versions, values)
    answer: list[Any] = yield from way(cluster, Job(partitions, "scan", arguments, until))
    if not values:
        answer[1] = [b""] * len(answer[0])
    return Page(*answer[:5])
