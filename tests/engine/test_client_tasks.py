"""A client of a cluster for tasks: many requests on one connection, breaks, and cancellation."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from support import tasks
from support.members import Fault, Members, members
from tidelog import aio
from tidelog.affinity.partitions import Space, partition_of
from tidelog.codecs import I64, Str
from tidelog.engine.client.tasks import ClusterTasksDatabase, connect_with
from tidelog.errors import (
    ClosedError,
    CommitUnknownError,
    ConflictError,
    LockTimeoutError,
    NotEnoughMembersError,
    PartitionUnavailableError,
    UnsupportedError,
    UsageError,
)
from tidelog.testing import FaultyDisk, simulated

pytestmark = pytest.mark.loops
PARTITIONS = 6
Client = tuple[Members, ClusterTasksDatabase, Any]


@asynccontextmanager
async def client(count: int) -> AsyncIterator[Client]:
    with members(count, PARTITIONS) as cluster:
        async with aio.connect(cluster.url) as db:
            m = db.map("counters", key=Str, value=I64)
            await m.ensure()
            yield cluster, db, m


def key_of(member: int) -> str:
    names = (f"k{n}" for n in range(1000))
    return next(k for k in names if partition_of(k.encode(), Space(0, PARTITIONS)) % 3 == member)


async def until(done: Callable[[], object]) -> None:
    """Let others run until something is so."""
    while not done():
        await tasks.checkpoint()


async def test_what_is_no_list_of_codecs_is_refused_as_by_open() -> None:
    wrong: Any = 5
    with pytest.raises(UsageError, match="codecs=5 is not a list of codecs"):
        async with aio.connect("tidelog://127.0.0.1:1", codecs=wrong):
            pass


async def test_many_requests_are_in_flight_on_one_connection() -> None:
    async with client(1) as (cluster, _, m):
        await m.update_many({f"n{n}": n for n in range(50)})
        found: dict[int, int] = {}

        async def read(number: int) -> None:
            found[number] = await m.get(f"n{number}")

        cluster.members[0].faults += ["held"] * 50
        async with tasks.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(read, number)
            await until(lambda: len(cluster.held) == 50)
            assert found == {}
            cluster.release()
        assert found == {number: number for number in range(50)}
        assert len(cluster.members[0].connections) == 1


@pytest.mark.parametrize("fault", ["break_before", "break_after", "pending", "remap", "wait"])
async def test_a_change_takes_effect_once_whatever_breaks(fault: Fault) -> None:
    async with client(3) as (cluster, _, m):
        key = key_of(1)
        await m.set(key, 1)
        before = sum(cluster.counters)
        for change, left in ((m.set(key, 5), 5), (m.incr(key), 6), (m.pop(key), None)):
            cluster.members[1].faults += [fault, fault]
            await change
            cluster.members[1].faults.clear()
            assert await m.get(key) == left
        assert sum(cluster.counters) == before + 3


async def test_when_a_connection_breaks_every_task_on_it_goes_on() -> None:
    async with client(1) as (cluster, _, m):
        cluster.members[0].faults.extend(["silent"] * 9)
        cluster.members[0].faults.append("break_after")
        async with tasks.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(m.incr, "a")
        assert await m.get("a") == 20


async def test_a_read_that_is_cancelled_is_taken_back() -> None:
    async with client(1) as (cluster, _, m):
        await m.set("a", 1)
        cluster.members[0].faults.append("held")
        async with tasks.open_nursery() as nursery:
            nursery.start_soon(m.get, "a")
            await until(lambda: cluster.held)
            nursery.cancel()
        assert nursery.cancelled_caught
        await until(lambda: cluster.cancelled)
        cluster.release()
        assert await m.get("a") == 1


async def test_a_commit_that_is_cancelled_late_is_waited_for() -> None:
    async with client(1) as (cluster, _, m):
        told = []

        async def write() -> None:
            await m.set("a", 1)
            told.append("done")
            await tasks.checkpoint()
            told.append("not cancelled")

        cluster.members[0].faults.append("held")
        async with tasks.open_nursery() as nursery:
            nursery.start_soon(write)
            await until(lambda: cluster.held)
            nursery.cancel()
            for _ in range(10):
                with tasks.shielded():
                    await tasks.checkpoint()
            assert told == []
            cluster.release()
        assert told == ["done"]
        assert await m.get("a") == 1


async def test_a_member_that_is_away_is_not_waited_for() -> None:
    async with client(3) as (cluster, _, m):
        for member in range(3):
            await m.set(key_of(member), member)
        cluster.members[1].leave(told=True)
        with pytest.raises(PartitionUnavailableError):
            await m.get(key_of(1))
        with pytest.raises(PartitionUnavailableError):
            await m.set(key_of(1), 5)
        assert await m.get(key_of(2)) == 2
        cluster.members[1].come_back()
        assert await m.get(key_of(1)) == 1


async def test_if_nobody_answers_the_error_says_who_was_tried() -> None:
    with members(1, PARTITIONS) as cluster:
        address = cluster.members[0].address
        cluster.close()
        with pytest.raises(NotEnoughMembersError, match=f"{address}: .*refused"):
            async with aio.connect(cluster.url, timeout=0.05):
                pass


async def test_transactions_confirm_what_they_read_and_are_run_again() -> None:
    async with client(1) as (_, db, m):
        await m.update_many({"a": 1, "b": 2})
        runs = 0

        async def work(tx: aio.Transaction) -> int:
            nonlocal runs
            runs += 1
            total: int = sum([value async for value in tx[m].values()])
            if runs == 1:
                await m.set("b", 7)
            await tx[m].set("sum", total)
            return total

        assert await db.run(work, plain_writes=True) == 8
        assert (runs, await m.get("sum")) == (2, 8)
        with pytest.raises(ConflictError, match="that was after 2 attempts"):
            await db.run(self_defeating, m, attempts=2, plain_writes=True)
        with pytest.raises(ZeroDivisionError):  # noqa: PT012
            async with db.transaction() as tx:
                await tx[m].set("a", 9)
                raise ZeroDivisionError
        assert await m.get("a") == 1


async def self_defeating(tx: aio.Transaction, m: Any) -> None:
    await m.set("a", await tx[m].get("a", 0) + 1)
    await tx[m].set("b", 0)
    await m.set("a", 1)


async def test_large_values_and_many_of_them_get_through() -> None:
    async with client(1) as (_, db, _):
        large = db.map("large")
        value = bytes(range(256)) * 4096
        async with tasks.open_nursery() as nursery:
            for number in range(12):
                nursery.start_soon(large.set, b"%d" % number, value)
        assert [len(one) async for one in large.values()] == [len(value)] * 12


async def test_what_there_is_not_and_what_is_over_says_so() -> None:
    async with client(3) as (_, db, m):
        for call in (db.attach("x"), db.backup("x"), db.statistics(), db.checkpoint(), db.sync()):
            with pytest.raises(UnsupportedError):
                await call
        with pytest.raises(tasks.would_block()):
            m.get_nowait("a")
        with pytest.raises(UsageError, match="has not begun"):
            db.transaction()[m]
        assert db.maps() == ["counters"]
        await db.rename("counters", "others")
        assert db.maps() == ["others"]
        await db.drop("others")
        assert db.maps() == []
        assert await db.outcome(db.new_id()) == "rolled_back"
        assert (await db.status())["boot"] == 1
    with pytest.raises(ClosedError):
        await m.get("a")
    await db.aclose()


async def test_a_call_that_runs_when_its_client_is_closed_ends_and_nobody_connects() -> None:
    """It went on over a new connection, which nobody closed."""
    async with client(3) as (cluster, db, m):
        told: list[str] = []

        async def read() -> None:
            with pytest.raises(ClosedError, match="is closed"):
                await m.get(key_of(1))
            told.append("closed")

        cluster.members[1].faults.append("held")
        links = db._session.links
        async with tasks.open_nursery() as nursery:
            nursery.start_soon(read)
            await until(lambda: cluster.held)
            made = links._number
            await db.aclose()
        assert told == ["closed"]
        assert links._number == made
        assert all(link.reason is not None for link in links._all)


async def test_a_commit_that_was_sent_when_its_client_is_closed_is_in_doubt() -> None:
    """Its outcome was asked for over a new connection, which nobody closed."""
    async with client(3) as (cluster, db, m):
        doubts: list[bool] = []

        async def work(tx: aio.Transaction) -> None:
            await tx[m].set(key_of(1), 1)
            with pytest.raises(CommitUnknownError, match=r"the store .* is closed"):
                await tx.commit()
            doubts.append(tx.in_doubt)

        cluster.members[1].faults.append("held")
        async with tasks.open_nursery() as nursery:
            nursery.start_soon(db.run, work)
            await until(lambda: cluster.held)
            made = db._session.links._number
            await db.aclose()
        assert doubts == [True]
        assert db._session.links._number == made


async def test_a_clock_of_its_own_and_another_thread() -> None:
    with members(1, PARTITIONS) as cluster:
        async with connect_with(simulated(1, FaultyDisk()), cluster.url) as db:
            with pytest.raises(UsageError, match="only in the loop that opened it"):
                await tasks.in_thread(db.map, "m")


@pytest.mark.slow
async def test_what_the_work_may_have_committed_is_not_made_again() -> None:
    calls = 0
    unheard: list[Fault] = ["break_after"]
    unheard.extend(["wait"] * 1000)
    with members(3, PARTITIONS) as cluster:
        async with aio.connect(cluster.url, timeout=0.5) as db:
            m, key, faults = (
                db.map("counters", key=Str, value=I64),
                key_of(1),
                cluster.members[1].faults,
            )
            await m.set(key, 1)

            async def work(tx: aio.Transaction) -> None:
                nonlocal calls
                calls += 1
                await tx[m].incr(key)
                faults.extend(unheard)
                assert not tx.in_doubt
                with suppress(CommitUnknownError):
                    await tx.commit()
                faults.clear()
                assert "<Transaction in doubt " in repr(tx)
                assert tx.in_doubt
                raise LockTimeoutError("of something else")

            with pytest.raises(LockTimeoutError, match="the commit, which may have taken effect"):
                await db.run(work)
            assert (calls, await m.get(key)) == (1, 2)


async def test_a_commit_that_is_cancelled_may_have_taken_effect() -> None:
    unheard: list[Fault] = ["break_after"]
    unheard.extend(["wait"] * 1000)
    async with client(1) as (cluster, db, m):
        faults, doubts = cluster.members[0].faults, list[bool]()

        async def work(tx: aio.Transaction) -> None:
            await tx[m].set("a", 1)
            faults.extend(unheard)
            try:
                await tx.commit()
            finally:
                doubts.append(tx.in_doubt)

        async with tasks.open_nursery() as nursery:
            nursery.start_soon(db.run, work)
            await until(lambda: 0 < len(faults) < len(unheard) - 1)
            nursery.cancel()
        faults.clear()
        assert (doubts, await m.get("a")) == ([True], 1)
