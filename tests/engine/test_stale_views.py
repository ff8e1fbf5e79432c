"""That all a stale view reads goes by its way, for threads and for tasks: no socket."""

from __future__ import annotations

from typing import Any

import pytest

from tidelog.engine.client.copies import Stale
from tidelog.engine.client.routing import Cluster
from tidelog.engine.client.stale import StaleReach, StaleSession, StaleTasksView, StaleView
from tidelog.engine.data.namespaces import Home
from tidelog.errors import ReadOnlyError, UsageError

MAP: Any = "a namespace"
WRITES = "what is read like that cannot be written"


class Session:
    """What stands behind a view: it tells what was asked of it, and by which way."""

    def __init__(self) -> None:
        self.cluster = Cluster(["a:1"])
        self.home = Home("here")
        self.asked: list[tuple[Any, ...]] = []

    def get_many(self, namespace: Any, keys: list[bytes], way: object = None) -> list[bytes]:
        self.asked.append(("get", namespace, keys, way))
        return keys

    async def values(self, namespace: Any, keys: list[bytes], way: object = None) -> list[bytes]:
        return self.get_many(namespace, keys, way)

    def blocks(self, *given: Any, values: bool = True, way: object = None) -> Any:
        self.asked.append(("blocks", *given, values, way))
        return iter(())

    def check(self, namespace: Any) -> None:
        self.asked.append(("check", namespace))


def test_threads_read_by_the_way_of_their_view() -> None:
    session = Session()
    way = Stale(session.cluster)
    stale = StaleSession(session, way, WRITES)  # type: ignore[arg-type]
    assert stale.getter(MAP)(b"k") == b"k"
    stale.blocks(MAP, b"", None, False, 10, values=False)
    stale.count(MAP)
    assert session.asked == [
        ("get", MAP, [b"k"], way),
        ("blocks", MAP, b"", None, False, 10, False, way),
        ("check", MAP),
    ]
    with pytest.raises(ReadOnlyError, match=WRITES):
        stale.refuse()


async def test_tasks_read_by_the_way_of_their_view() -> None:
    session = Session()
    way = Stale(session.cluster)
    reach = StaleReach(session, way, WRITES)  # type: ignore[arg-type]
    assert await reach.values(MAP, [b"k"]) == [b"k"]
    reach.blocks(MAP, b"", None, False, 10, values=False)
    assert session.asked == [
        ("get", MAP, [b"k"], way),
        ("blocks", MAP, b"", None, False, 10, False, way),
    ]


def test_a_view_has_maps_of_its_own_cluster_only() -> None:
    session: Any = Session()
    for view in (StaleView(session), StaleTasksView(session)):
        with pytest.raises(UsageError):
            view["no map"]  # type: ignore[index]
