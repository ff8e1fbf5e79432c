"""Workloads of transactions: a store that keeps its word passes in any mode, a weaker one does not.

Weaker are the isolation levels below serializable, which allow just what these must find, and maps
that lie.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio

from tidelog import aio, codecs
from tidelog.errors import CommitUnknownError, UsageError
from tidelog.testing.cycles import TransactionAnomaly
from tidelog.testing.transaction_clients import BankTransfers, InsideMap, ListAppends, SetAdds
from tidelog.testing.transactions import ABORTED, COMMITTED, UNKNOWN

CLIENTS, TRANSACTIONS = 6, 15
KEYS = ["x", "y", "z"]


class Slow:
    """A map inside a transaction whose user lets others go on before each call."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    async def get(self, key: Any, /) -> Any:
        await trio.lowlevel.checkpoint()
        return await self.inner.get(key)

    async def set(self, key: Any, value: Any, /) -> None:
        await trio.lowlevel.checkpoint()
        await self.inner.set(key, value)

    async def range(self, start: Any, stop: Any, /) -> AsyncIterator[tuple[Any, Any]]:
        await trio.lowlevel.checkpoint()
        async with self.inner.range(start, stop) as pairs:
            async for pair in pairs:
                yield pair


class Ended:
    """The map behind all transactions."""

    def __init__(self, inner: Any) -> None:
        self.get = inner.get
        self.set = inner.set
        self.range = inner.range


Wrapped = Callable[[Any], InsideMap]
Workload = ListAppends | SetAdds | BankTransfers


async def lived(
    kind: str, seed: int, wrapped: Wrapped, **options: Any
) -> tuple[Workload, list[TransactionAnomaly]]:
    """Run a workload on a store in memory; return it, and what is wrong."""
    ticks, chance = itertools.count(), random.Random(seed)

    def clock() -> float:
        return float(next(ticks))

    async with aio.memory(partitions=4) as db:
        key = codecs.I64 if kind == "sets" else codecs.Str
        shared = db.map("shared", key=key, value=codecs.Msgpack)

        @asynccontextmanager
        async def begin() -> AsyncIterator[InsideMap]:
            async with db.transaction(**options) as tx:
                yield wrapped(tx[shared])

        made: Workload
        if kind == "lists":
            made = ListAppends(begin, clock, chance)
            clients = made.clients(CLIENTS, keys=KEYS, transactions=TRANSACTIONS)
        elif kind == "sets":
            made = SetAdds(begin, clock, chance)
            clients = made.clients(CLIENTS, transactions=TRANSACTIONS)
        else:
            made = BankTransfers(begin, clock, chance, accounts=KEYS)
            await made.fill()
            clients = made.clients(CLIENTS, transactions=TRANSACTIONS)
        async with trio.open_nursery() as nursery:
            for client in clients:
                nursery.start_soon(client)
        last = Ended(shared)
        found: Awaitable[list[TransactionAnomaly]]
        found = (
            made.anomalies(last, KEYS) if isinstance(made, ListAppends) else made.anomalies(last)
        )
        return made, await found


def statuses(made: Workload) -> list[str]:
    return (
        made.statuses
        if isinstance(made, BankTransfers)
        else [one.status for one in made.transactions]
    )


@pytest.mark.parametrize("kind", ["lists", "sets", "bank"])
@pytest.mark.parametrize("mode", ["optimistic", "pessimistic"])
@pytest.mark.parametrize("seed", range(3))
def test_a_store_keeps_its_word(kind: str, mode: str, seed: int) -> None:
    made, found = trio.run(partial(lived, kind, seed, Slow, mode=mode))
    assert found == []
    ended = statuses(made)
    assert len(ended) == CLIENTS * TRANSACTIONS
    assert ended.count(COMMITTED) > CLIENTS
    assert UNKNOWN not in ended


@pytest.mark.parametrize(
    ("kind", "isolation", "names"),
    [
        ("lists", "read_committed", {"lost write", "incompatible order"}),
        ("lists", "repeatable_read", {"G2", "G-single"}),
        ("bank", "read_committed", {"wrong total"}),
    ],
)
def test_weaker_isolation_is_found(kind: str, isolation: str, names: set[str]) -> None:
    found = {
        anomaly.name
        for seed in range(8)
        for anomaly in trio.run(partial(lived, kind, seed, Slow, isolation=isolation))[1]
    }
    assert found & names, found


def forgetting() -> Wrapped:
    """Return what makes maps that forget every seventh write, but none of the first ones."""
    writes = itertools.count(1)

    class Forgets(Slow):
        async def set(self, key: Any, value: Any, /) -> None:
            if next(writes) % 7:
                await super().set(key, value)

    return Forgets


class Sees(Slow):
    """Shows all but the first that there is."""

    async def range(self, start: Any, stop: Any, /) -> AsyncIterator[tuple[Any, Any]]:
        seen = 0
        async for pair in super().range(start, stop):
            seen += 1
            if seen > 1:
                yield pair


def hiding() -> Wrapped:
    return Sees


@pytest.mark.parametrize(
    ("kind", "broken", "names"),
    [
        ("lists", forgetting, {"internal", "lost write", "torn append", "torn transaction"}),
        ("sets", forgetting, {"lost write"}),
        ("sets", hiding, {"G-single", "real-time violation"}),
        ("bank", forgetting, {"wrong total"}),
    ],
)
def test_maps_that_lie_are_found(kind: str, broken: Callable[[], Wrapped], names: set[str]) -> None:
    found = {
        anomaly.name
        for seed in range(3)
        for anomaly in trio.run(partial(lived, kind, seed, broken()))[1]
    }
    assert found & names, found


def test_an_account_that_was_lost_has_nothing() -> None:
    class Empty:
        async def get(self, key: str, /) -> None:
            return None

        async def set(self, key: str, value: int, /) -> None:
            raise AssertionError(f"{key} has {value}")

        def range(self, start: str, stop: str, /) -> AsyncIterator[tuple[str, int]]:
            raise NotImplementedError

    async def run() -> list[str]:
        @asynccontextmanager
        async def begin() -> AsyncIterator[InsideMap]:
            yield Empty()

        bank = BankTransfers(begin, lambda: 0.0, random.Random(1), accounts=["x", "y"])
        for client in bank.clients(1, transactions=9):
            await client()
        assert set(bank.statuses) == {"committed"}
        return [anomaly.name for anomaly in await bank.anomalies(Empty())]

    assert set(trio.run(run)) == {"wrong total"}


def overdrawn(has: int) -> list[str]:
    async def run() -> list[str]:
        bank = BankTransfers(Beginning, lambda: 0.0, random.Random(1), accounts=["x", "y"])

        class Last:
            async def get(self, key: str, /) -> int:
                return has if key == "x" else 20 - has

            async def set(self, key: str, value: int, /) -> None:
                raise NotImplementedError

            def range(self, start: str, stop: str, /) -> AsyncIterator[tuple[str, int]]:
                raise NotImplementedError

        return [anomaly.name for anomaly in await bank.anomalies(Last())]

    return trio.run(run)


def test_an_account_that_owes_something_is_found() -> None:
    assert overdrawn(-1) == ["overdrawn"]
    assert overdrawn(0) == []


class Beginning(AbstractAsyncContextManager[InsideMap]):
    """A transaction that comes to no more than its beginning."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error

    async def __aenter__(self) -> InsideMap:
        if self._error is None:
            await trio.sleep_forever()
        raise self._error

    async def __aexit__(self, *_exc: object) -> None:
        raise NotImplementedError


def ends_with(error: Exception | None) -> ListAppends:
    """Return a workload of lists, of which every transaction ends with an error."""
    return ListAppends(lambda: Beginning(error), lambda: 1.0, random.Random(1))


@pytest.mark.parametrize(
    "error",
    [CommitUnknownError("nobody knows", tx_id=b"1" * 16, home=0), ConnectionResetError("gone")],
)
def test_what_nobody_knows_is_unknown(error: Exception) -> None:
    lists = ends_with(error)
    [client] = lists.clients(1, keys=KEYS, transactions=2)
    trio.run(client)
    assert [one.status for one in lists.transactions] == [UNKNOWN] * 2
    assert {one.end for one in lists.transactions} == {float("inf")}


def test_a_mistake_of_the_user_ends_the_client() -> None:
    lists = ends_with(UsageError("not like that"))
    [client] = lists.clients(1, keys=KEYS, transactions=2)
    with pytest.raises(UsageError):
        trio.run(client)
    assert [one.status for one in lists.transactions] == [ABORTED]


def test_a_client_that_is_cancelled_leaves_what_nobody_knows() -> None:
    async def run() -> None:
        with trio.move_on_after(0):
            await client()

    lists = ends_with(None)
    [client] = lists.clients(1, keys=KEYS, transactions=2)
    trio.run(run)
    assert [one.status for one in lists.transactions] == [UNKNOWN]
    sets = SetAdds(Beginning, lambda: 1.0, random.Random(1))
    [client] = sets.clients(1, transactions=2)
    trio.run(run)
    assert [one.status for one in sets.transactions] == [UNKNOWN]
