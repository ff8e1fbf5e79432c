"""Transactions of clients over keys of any partitions, with single reads and snapshots beside.

Lists are appended to and read; then, as the seed has it, a set gets elements, or a bank moves
money.  Some of these transactions lock what they touch.  Snapshots of the store read all of that.
It is one history each, strictly serializable or not.

Left out: faults, and when all this begins and ends: the caller's world has these.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import trio

from ..affinity.errors import TidelogError
from ..engine.api.choices import Mode
from ..engine.client.tasks import ClusterTasksDatabase
from ..engine.codecs.registry import I64, Msgpack, Str
from .cycles import TransactionAnomaly
from .lists import ListTransaction, ReadList
from .transaction_clients import BankTransfers, InsideMap, ListAppends, SetAdds
from .transactions import ABORTED, COMMITTED
from .workloads import WorkloadClient

LISTING, OTHERS, READING = 4, 3, 2
CLIENTS = LISTING + OTHERS + 1 + READING
"""Those of lists, of a set or a bank, one that takes snapshots, and those that read single keys."""
TRANSACTIONS = 20
PAUSE_S_MAX = 0.15
SNAPSHOT_PAUSE_S_MAX = 2.0
PESSIMISTIC = 0.4
"""The part of transactions that lock what they touch."""
LIST_KEYS = [f"l{number}" for number in range(6)]
ACCOUNTS = [f"a{number}" for number in range(5)]


class _PacedInside:
    """A map inside a transaction; time passes before each call."""

    def __init__(self, inner: Any, rng: random.Random) -> None:
        self._inner = inner
        self._rng = rng

    async def get(self, key: Any, /) -> Any:
        await trio.sleep(self._rng.uniform(0, PAUSE_S_MAX))
        return await self._inner.get(key)

    async def set(self, key: Any, value: Any, /) -> None:
        await trio.sleep(self._rng.uniform(0, PAUSE_S_MAX))
        await self._inner.set(key, value)

    async def range(self, start: Any, stop: Any, /) -> AsyncIterator[tuple[Any, Any]]:
        async with self._inner.range(start, stop) as pairs:
            async for pair in pairs:
                yield pair


class TransactionMix:
    """The transactions of clients of some databases, so many of each at most."""

    def __init__(
        self,
        databases: Sequence[ClusterTasksDatabase],
        clock: Callable[[], float],
        rng: random.Random,
        *,
        banks: bool,
        transactions: int = TRANSACTIONS,
    ) -> None:
        self._count = transactions
        self._clock = clock
        self._rng = rng
        self._databases = databases
        self._lists = [one.map("lists", key=Str, value=Msgpack) for one in databases]
        self._appends = ListAppends(self._beginning(self._lists), clock, rng)
        codec = Str if banks else I64
        self._others: list[Any] = [one.map("others", key=codec, value=Msgpack) for one in databases]
        begin = self._beginning(self._others)
        self._second: BankTransfers | SetAdds = (
            BankTransfers(begin, clock, rng, accounts=ACCOUNTS)
            if banks
            else SetAdds(begin, clock, rng)
        )

    def __repr__(self) -> str:
        return f"<TransactionMix over lists and a {type(self._second).__name__}>"

    def _beginning(self, maps: Sequence[Any]) -> Callable[[], Any]:
        @asynccontextmanager
        async def begin() -> AsyncIterator[InsideMap]:
            which = self._rng.randrange(len(maps))
            mode: Mode = "pessimistic" if self._rng.random() < PESSIMISTIC else "optimistic"
            async with self._databases[which].transaction(mode) as tx:
                yield _PacedInside(tx[maps[which]], self._rng)

        return begin

    async def fill(self) -> None:
        """Give the bank its money."""
        if isinstance(self._second, BankTransfers):
            await self._second.fill()

    def clients(self) -> list[WorkloadClient]:
        """Return all clients."""
        found = self._appends.clients(LISTING, keys=LIST_KEYS, transactions=self._count)
        found += self._second.clients(OTHERS, transactions=self._count)
        found.append(self._look)
        return [*found, *(lambda n=n: self._read(n) for n in range(READING))]

    async def _read(self, number: int) -> None:
        """Read single keys, which is a transaction each time, whoever answers."""
        for place in range(2 * self._count):
            await trio.sleep(self._rng.uniform(0, PAUSE_S_MAX))
            key, which = self._rng.choice(LIST_KEYS), self._rng.randrange(len(self._lists))
            one = ListTransaction(id=f"reader {number}.{place}", start=self._clock())
            try:
                found = await self._lists[which].get(key)
            except (TidelogError, OSError):
                one.status = ABORTED
            else:
                one.steps.append(ReadList(key, tuple(found or ())))
                one.status = COMMITTED
            one.end = self._clock()
            self._appends.transactions.append(one)

    async def _look(self) -> None:
        """Read all lists, and the bank, in snapshots of the store: a transaction each time."""
        for place in range(self._count // 2):
            await trio.sleep(self._rng.uniform(0, SNAPSHOT_PAUSE_S_MAX))
            which = self._rng.randrange(len(self._databases))
            one = ListTransaction(id=f"snapshot {place}", start=self._clock())
            bank: dict[str, int] = {}
            try:
                async with self._databases[which].snapshot() as old:
                    lists: Any = old[self._lists[which]]
                    others: Any = old[self._others[which]]
                    for key in LIST_KEYS:
                        one.steps.append(ReadList(key, tuple(await lists.get(key) or ())))
                    if isinstance(self._second, BankTransfers):
                        bank = {account: await others.get(account) for account in ACCOUNTS}
            except (TidelogError, OSError):
                one.steps.clear()
                one.status = ABORTED
            else:
                one.status = COMMITTED
                if isinstance(self._second, BankTransfers):
                    self._second.read.append(bank)
            one.end = self._clock()
            self._appends.transactions.append(one)

    @property
    def committed(self) -> int:
        """How many transactions over lists have committed."""
        return [one.status for one in self._appends.transactions].count(COMMITTED)

    async def anomalies(self, database: ClusterTasksDatabase) -> list[TransactionAnomaly]:
        """Return what is wrong with what was seen, and with what is there by now."""
        lists = _PacedInside(database.map("lists", key=Str, value=Msgpack), self._rng)
        found = await self._appends.anomalies(lists, LIST_KEYS)
        codec = Str if isinstance(self._second, BankTransfers) else I64
        others = _PacedInside(database.map("others", key=codec, value=Msgpack), self._rng)
        return [*found, *(await self._second.anomalies(others))]
