"""Maps of another store, and what is no map, in the place of a map of this one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from support.stores import Opened, opened
from support.trio_stores import opened as opened_under_trio
from tidelog import aio
from tidelog.codecs import I64, Json, Str
from tidelog.engine.aio.database import loop_session_of
from tidelog.engine.api.database import Database
from tidelog.engine.api.maps import namespace_of
from tidelog.engine.api.open import open_with
from tidelog.errors import UsageError
from tidelog.testing import simulated

OTHER = "the map 'logs' belongs to the store /other, this is /store"


@pytest.fixture
def store() -> Iterator[Opened]:
    with opened() as store:
        yield store


@pytest.fixture
def other(store: Opened) -> Iterator[Database]:
    with open_with(simulated(2, store.disk), "/other", partitions=4) as other:
        yield other


def test_a_transaction_refuses_a_map_of_another_store(store: Opened, other: Database) -> None:
    """It wrote into the map of this store that has the same number, with the other one's codecs."""
    accounts = store.database.map("accounts", key=Str, value=I64)
    logs = other.map("logs", key=Str, value=Json)
    accounts["ada"], logs["x"] = 10, {"msg": "hi"}
    assert namespace_of(accounts).id == namespace_of(logs).id
    with store.database.transaction() as tx:
        with pytest.raises(UsageError, match=OTHER) as caught:
            tx[logs]
        assert caught.value.hint == "Use the map of this one: `db.map('logs')`."
        tx[accounts]["ada"] += 1
        with pytest.raises(UsageError, match=OTHER):  # also where this one's was used before
            tx[logs]
    assert dict(accounts) == {"ada": 11}
    assert dict(logs) == {"x": {"msg": "hi"}}


def test_a_snapshot_refuses_a_map_of_another_store(store: Opened, other: Database) -> None:
    """It read from the map of this store that has the same number."""
    store.database.map("accounts")[b"a"] = b"1"
    logs = other.map("logs")
    logs[b"x"] = b"1"
    with store.database.snapshot() as old, pytest.raises(UsageError, match=OTHER):
        old[logs]


def test_a_map_of_an_earlier_opening_is_refused_for_it_may_have_been_dropped(
    store: Opened,
) -> None:
    """The namespace may be gone, and its handle would not know."""
    earlier = store.database.map("users")
    earlier[b"a"] = b"1"
    store.database.close()
    with open_with(simulated(3, store.disk), "/store") as again:
        text = "'users' belongs to another opening of this store, this is /store"
        for session in (again.transaction(), again.snapshot()):
            with session, pytest.raises(UsageError, match=text):
                session[earlier]
        with again.transaction() as tx:
            assert tx[again.map("users")][b"a"] == b"1"


def test_a_store_open_for_reading_refuses_a_map_of_another_one(
    store: Opened, other: Database
) -> None:
    """Its snapshots read from the map with the same number."""
    store.database.map("accounts")[b"a"] = b"1"
    logs = other.map("logs")
    logs[b"x"] = b"1"
    with (
        open_with(simulated(4, store.disk), "/store", read_only=True) as reader,
        reader.snapshot() as old,
        pytest.raises(UsageError, match=OTHER),
    ):
        old[logs]


@pytest.mark.parametrize("given", ["users", None, 7])
def test_what_is_no_map_is_refused_with_the_way_to_a_map(store: Opened, given: Any) -> None:
    """It was an AttributeError that spoke of a namespace."""
    for session in (store.database.transaction(), store.database.snapshot()):
        with session, pytest.raises(UsageError, match="is not a map") as caught:
            session[given]
        assert "tx[db.map('" in caught.value.hint


@pytest.mark.loops
async def test_for_tasks_maps_of_other_stores_are_refused_before_anything_is_awaited() -> None:
    """They named another map by its number, there too."""
    async with opened_under_trio() as db:
        disk: Any = loop_session_of(db).writer().store.environment.disk
        async with aio.open_with(simulated(5, disk), "/other", partitions=4) as other:
            logs, users = other.map("logs"), db.map("users")
            async with db.transaction() as tx:
                given: Any
                for given in (logs, tx.commit):
                    with pytest.raises(UsageError):
                        tx[given]
                await tx[users].set(b"a", b"1")
                assert await tx[tx[users]].get(b"a") == b"1"
            async with db.snapshot() as old:
                with pytest.raises(UsageError, match=OTHER):
                    old[logs]
                assert await old[users].get(b"a") == b"1"
