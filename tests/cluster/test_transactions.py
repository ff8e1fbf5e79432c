"""Transactions of clients through faults: lists, sets and a bank, strictly serializable behind all.

In a cluster of one member, in one partition of a larger one, and over several of its partitions.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from tidelog.affinity.partitions import Space, partition_of
from tidelog.aio import Transaction
from tidelog.codecs import I64, Msgpack, Str
from tidelog.engine.api.choices import Isolation, Mode
from tidelog.errors import LockTimeoutError
from tidelog.testing import SimCluster
from tidelog.testing.cycles import TransactionAnomaly
from tidelog.testing.transaction_clients import BankTransfers, InsideMap, ListAppends, SetAdds
from tidelog.testing.transactions import COMMITTED

CLIENTS, TRANSACTIONS = 5, 12
PARTITIONS = 8
PAUSE_S = 0.1


class Paced:
    """A map inside a transaction, and time passes between two calls."""

    def __init__(self, inner: Any, chance: Any) -> None:
        self._inner = inner
        self._chance = chance

    async def get(self, key: Any, /) -> Any:
        await trio.sleep(PAUSE_S * self._chance.random())
        return await self._inner.get(key)

    async def set(self, key: Any, value: Any, /) -> None:
        await trio.sleep(PAUSE_S * self._chance.random())
        await self._inner.set(key, value)

    async def range(self, start: Any, stop: Any, /) -> AsyncIterator[tuple[Any, Any]]:
        async with self._inner.range(start, stop) as pairs:
            async for pair in pairs:
                yield pair


Faults = Callable[[SimCluster], Awaitable[None]]


def anomalies(
    kind: str,
    seed: int,
    faults: Faults,
    *,
    nodes: int = 1,
    keys: list[str],
    backups: int = 0,
    isolation: Isolation = "serializable",
    mode: Mode = "optimistic",
) -> list[TransactionAnomaly]:
    """Return what is wrong with a workload on a cluster while there are faults."""
    at = SimCluster(seed=seed, nodes=nodes, partitions=PARTITIONS, backups=backups)

    async def scenario(at: SimCluster) -> list[TransactionAnomaly]:
        at.start()
        await at.settled()
        databases = [at.client(timeout=20.0) for _ in range(2)]
        chance = at.world.random("work")
        codec = I64 if kind == "sets" else Str
        maps = [one.map("shared", key=codec, value=Msgpack) for one in databases]
        begun = 0

        @asynccontextmanager
        async def begin() -> AsyncIterator[InsideMap]:
            nonlocal begun
            begun += 1
            which = begun % len(databases)
            async with databases[which].transaction(mode, isolation=isolation) as tx:
                yield Paced(tx[maps[which]], chance)

        workload: ListAppends | SetAdds | BankTransfers
        if kind == "lists":
            workload = ListAppends(begin, at.world.now, chance)
            clients = workload.clients(CLIENTS, keys=keys, transactions=TRANSACTIONS)
        elif kind == "sets":
            workload = SetAdds(begin, at.world.now, chance)
            clients = workload.clients(CLIENTS, transactions=TRANSACTIONS)
        else:
            workload = BankTransfers(begin, at.world.now, chance, accounts=keys)
            await workload.fill()
            clients = workload.clients(CLIENTS, transactions=TRANSACTIONS)
        async with trio.open_nursery() as nursery:
            for client in clients:
                nursery.start_soon(client)
            nursery.start_soon(faults, at)
        await at.settled()
        ended = (
            workload.statuses
            if isinstance(workload, BankTransfers)
            else [one.status for one in workload.transactions]
        )
        assert ended.count(COMMITTED) >= CLIENTS
        last = Paced(maps[0], chance)
        if isinstance(workload, ListAppends):
            found = await workload.anomalies(last, keys)
        else:
            found = await workload.anomalies(last)
        for database in databases:
            await database.aclose()
        return found

    return at.run(scenario)


async def kills(at: SimCluster) -> None:
    """Kill who serves the last partition, and start it again, three times."""
    for outcome in ("kept", "lost", "lost"):
        await trio.sleep(0.7)
        name = at.primary(PARTITIONS - 1)
        at.nodes[name].kill(outcome)
        await at.killed(name)
        await trio.sleep(0.3)
        at.start([name])
        await at.settled()


async def resets(at: SimCluster) -> None:
    """Break the connections of clients again and again."""
    for _ in range(12):
        await trio.sleep(0.25)
        for name in at.running():
            for machine in ("c1", "c2"):
                at.world.network.reset(name, machine)


async def moves(at: SimCluster) -> None:
    """Let another copy serve, again and again."""
    for _ in range(6):
        await trio.sleep(0.4)
        partition = PARTITIONS - 1
        name = at.primary(partition)
        target = next(one for one in at.names if one != name)
        at.member(name).move(partition, at.member_id(target).bytes, lambda _refused: None)


def keys_in(partition: int, count: int) -> list[str]:
    """Return keys that lie in one partition."""
    space = Space(0, PARTITIONS)
    names = (f"key {number}" for number in range(1000))
    return [name for name in names if partition_of(Str.encode(name), space) == partition][:count]


ANYWHERE = ["x", "y", "z"]


@pytest.mark.parametrize("kind", ["lists", "sets", "bank"])
@pytest.mark.parametrize("faults", [kills, resets], ids=["kills", "broken connections"])
@pytest.mark.parametrize("seed", range(2))
def test_transactions_over_any_keys_of_one_member(kind: str, faults: Faults, seed: int) -> None:
    assert anomalies(kind, seed, faults, keys=ANYWHERE) == []


@pytest.mark.parametrize("kind", ["lists", "bank"])
@pytest.mark.parametrize("faults", [kills, resets, moves], ids=["kills", "broken", "moves"])
@pytest.mark.parametrize("seed", range(2))
def test_transactions_in_one_partition_of_three_copies(
    kind: str, faults: Faults, seed: int
) -> None:
    keys = keys_in(PARTITIONS - 1, 3)
    assert anomalies(kind, seed, faults, keys=keys, nodes=3, backups=2) == []


@pytest.mark.parametrize("kind", ["lists", "sets", "bank"])
@pytest.mark.parametrize("faults", [kills, resets, moves], ids=["kills", "broken", "moves"])
@pytest.mark.parametrize("seed", range(2))
def test_transactions_over_several_partitions_of_three_copies(
    kind: str, faults: Faults, seed: int
) -> None:
    keys = [*keys_in(PARTITIONS - 1, 1), *keys_in(0, 1), *keys_in(3, 1)]
    assert anomalies(kind, seed, faults, keys=keys, nodes=3, backups=2) == []


@pytest.mark.parametrize("kind", ["lists", "sets", "bank"])
@pytest.mark.parametrize("faults", [kills, resets, moves], ids=["kills", "broken", "moves"])
@pytest.mark.parametrize("seed", range(2))
def test_pessimistic_transactions_over_several_partitions_of_three_copies(
    kind: str, faults: Faults, seed: int
) -> None:
    keys = [*keys_in(PARTITIONS - 1, 1), *keys_in(0, 1), *keys_in(3, 1)]
    options: dict[str, Any] = {"nodes": 3, "backups": 2, "mode": "pessimistic"}
    assert anomalies(kind, seed, faults, keys=keys, **options) == []


def test_read_committed_loses_updates_and_that_is_found() -> None:
    found = [
        one.name
        for seed in range(3)
        for one in anomalies("lists", seed, resets, keys=ANYWHERE, isolation="read_committed")
    ]
    assert {"lost write", "incompatible order", "lost update"} & {*found}, found


def test_commits_that_confirm_nothing_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from tidelog.engine.node import commits

    monkeypatch.setattr(commits, "_check_read", lambda *_: None)
    found = [anomalies("lists", seed, resets, keys=ANYWHERE) for seed in range(3)]
    names = {one.name for some in found for one in some}
    assert names & {"lost write", "incompatible order", "G2", "lost update"}, names


def test_a_given_id_commits_beside_reads_and_writes_of_any_partitions() -> None:
    at = SimCluster(seed=5, nodes=3, partitions=PARTITIONS, backups=2)

    async def scenario(at: SimCluster) -> None:
        at.start()
        await at.settled()
        db = at.client()
        shared = db.map("shared", key=Str, value=I64)
        for place, key in enumerate(ANYWHERE):
            await shared.set(key, place)
        async with db.transaction(isolation="read_committed", id=b"1" * 16) as tx:
            assert [await tx[shared].get(key) for key in ANYWHERE] == [0, 1, 2]
            await tx[shared].set(ANYWHERE[0], 7)
            await tx[shared].set(ANYWHERE[1], 8)
        assert [await shared.get(key) for key in ANYWHERE] == [7, 8, 2]
        assert await db.outcome(b"1" * 16) == "committed"
        await db.aclose()

    at.run(scenario)


def test_the_work_of_a_task_may_commit_or_roll_back_itself() -> None:
    at = SimCluster(seed=1, nodes=1, partitions=PARTITIONS)

    async def scenario(at: SimCluster) -> None:
        at.start()
        await at.settled()
        db = at.client()
        numbers = db.map("m", key=Str, value=I64)

        async def rolls_back(tx: Transaction) -> str:
            await tx[numbers].set("a", 1)
            await tx.rollback()
            return "rolled back"

        async def commits(tx: Transaction) -> str:
            await tx[numbers].set("a", 2)
            await tx.commit()
            return "committed"

        async def commits_and_fails(tx: Transaction) -> None:
            await tx[numbers].incr("a")
            await tx.commit()
            raise LockTimeoutError("of something else")

        assert await db.run(rolls_back) == "rolled back"
        assert await numbers.get("a") is None
        assert await db.run(commits) == "committed"
        assert await numbers.get("a") == 2
        with pytest.raises(LockTimeoutError, match="behind the commit, which took effect"):
            await db.run(commits_and_fails)
        assert await numbers.get("a") == 3

    at.run(scenario)
