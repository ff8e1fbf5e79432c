"""Load on a cluster of real processes: what its clients do, and what they met meanwhile.

Three maps are used through three handles: registers, counters, and pairs.  Each key has one client
of each handle, so that who waits for one partition tells of the others still.  A pair is two keys
of one partition that only transactions touch, which read and write both; as one register it has
a history like any other.  Lists and a bank lie in all partitions: transactions and snapshots over
them have to be strictly serializable.

Invariants:

- Every error that reaches a client is noted, with the time that it took.
- Two keys of a pair that differ are an ``AssertionError``, which ends the load.
"""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import trio

from tidelog import aio
from tidelog.affinity.errors import (
    NotEnoughMembersError,
    PartitionUnavailableError,
    TidelogError,
)
from tidelog.affinity.partitions import Space, partition_of
from tidelog.codecs import Msgpack, Str
from tidelog.engine.client.blocking import connect
from tidelog.testing.histories import Get, History
from tidelog.testing.linear import check
from tidelog.testing.moves import COUNTER, REGISTER, CallModel
from tidelog.testing.transaction_mix import TransactionMix
from tidelog.testing.workloads import (
    SharedMap,
    WorkloadClient,
    counter_clients,
    register_clients,
)

from .real_pinned import Pinned

T = TypeVar("T")
SPACE = Space(0, 8)
MAPS = ("registers", "counters", "pairs")
MODELS: dict[str, CallModel] = {"registers": REGISTER, "counters": COUNTER, "pairs": REGISTER}
TIMEOUTS_S = (4.0, 12.0)
THREADS_TIMEOUT_S = 8.0
PAUSE_S_MAX = 0.2
OPERATIONS = 2000
PATIENCE_S = 60.0
BUDGET = 2_000_000


def place_of(key: str) -> int:
    """The partition of a key."""
    return partition_of(key.encode(), SPACE)


def keys_of(letter: str) -> list[str]:
    """One key of each partition."""
    found: dict[int, str] = {}
    for number in count():
        key = f"{letter}{number}"
        found.setdefault(place_of(key), key)
        if len(found) == SPACE.partitions:
            return [found[place] for place in sorted(found)]
    raise AssertionError


def twin_of(key: str) -> str:
    """Another key, of the same partition."""
    names = (f"{key}-{number}" for number in count())
    return next(name for name in names if place_of(name) == place_of(key))


KEYS = {"registers": keys_of("r"), "counters": keys_of("c"), "pairs": keys_of("p")[::2]}


@dataclass(frozen=True, slots=True)
class Answered:
    """A call that was acknowledged: its begin and end, its partition, and whether it wrote."""

    began: float
    ended: float
    partition: int
    wrote: bool


@dataclass(frozen=True, slots=True)
class Met:
    """An error that reached a client: when, behind how many seconds of how many it had."""

    at: float
    seconds: float
    timeout: float
    error: Exception

    @property
    def early(self) -> bool:
        """Whether the client had time to try again, and did not."""
        return self.seconds < 0.9 * self.timeout

    def __str__(self) -> str:
        text = f"{self.error}".replace("\n", " ")
        name = type(self.error).__name__
        return f"{name} behind {self.seconds:.2f} of {self.timeout:g} s: {text[:160]}"


class PairMap:
    """A map of pairs as a map of registers; each call is a transaction over both keys."""

    def __init__(self, db: Any) -> None:
        self._db = db
        self._map = db.map("pairs", key=Str, value=Msgpack)

    async def get(self, key: str, /) -> Any:
        """Return the value of both."""
        return await self._done(key, lambda found: None)

    async def set(self, key: str, value: Any, /) -> None:
        """Set both."""
        await self._done(key, lambda found: [value])

    async def discard(self, key: str, /) -> None:
        """Delete both."""
        await self._done(key, lambda found: [None])

    async def compare_and_set(self, key: str, expected: Any, value: Any, /) -> bool:
        """Set both if they have what is expected."""
        found = await self._done(key, lambda found: [value] if found == expected else None)
        return bool(found == expected)

    async def incr(self, key: str, delta: int = 1, /) -> int:
        """Not used."""
        raise AssertionError(key, delta)

    async def _done(self, key: str, decide: Callable[[Any], list[Any] | None]) -> Any:
        """Set both to what is decided on the value of the first, if to anything; return that."""

        async def work(tx: Any) -> list[Any]:
            pair = tx[self._map]
            found = [await pair.get(key), await pair.get(twin_of(key))]
            for value in decide(found[0]) or ():
                for one in (key, twin_of(key)):
                    if value is None:
                        await pair.discard(one)
                    else:
                        await pair.set(one, value)
            return found

        one, other = await self._db.run(work)
        assert one == other, f"half a transaction: {key} is {one}, and its twin is {other}"
        return one


class ThreadsMap:
    """A map of a blocking handle, each call in a thread."""

    def __init__(self, mapping: Any) -> None:
        self._map = mapping

    async def get(self, key: str, /) -> Any:
        """Return a value."""
        return await trio.to_thread.run_sync(self._map.get, key)

    async def set(self, key: str, value: Any, /) -> None:
        """Set a value."""
        await trio.to_thread.run_sync(self._map.__setitem__, key, value)

    async def discard(self, key: str, /) -> None:
        """Delete a value if it is there."""
        await trio.to_thread.run_sync(self._map.discard, key)

    async def compare_and_set(self, key: str, expected: Any, value: Any, /) -> bool:
        """Set a value if it was another."""
        return await trio.to_thread.run_sync(self._map.compare_and_set, key, expected, value)

    async def incr(self, key: str, delta: int = 1, /) -> int:
        """Add to a number."""
        return await trio.to_thread.run_sync(self._map.incr, key, delta)


_handle: ContextVar[int] = ContextVar("_handle")
"""Through which handle the client of this task asks."""


class WatchedMap:
    """A map through several handles: pauses before each call, and notes what comes of it."""

    def __init__(self, load: Load, handles: Sequence[tuple[SharedMap, float]]) -> None:
        self._load = load
        self._handles = handles

    async def get(self, key: str, /) -> Any:
        """Return a value."""
        return await self._call(key, False, lambda one: one.get(key))

    async def set(self, key: str, value: Any, /) -> None:
        """Set a value."""
        await self._call(key, True, lambda one: one.set(key, value))

    async def discard(self, key: str, /) -> None:
        """Delete a value."""
        await self._call(key, True, lambda one: one.discard(key))

    async def compare_and_set(self, key: str, expected: Any, value: Any, /) -> bool:
        """Set a value if it was another."""
        return await self._call(key, False, lambda one: one.compare_and_set(key, expected, value))

    async def incr(self, key: str, delta: int = 1, /) -> int:
        """Add to a number."""
        return await self._call(key, True, lambda one: one.incr(key, delta))

    async def _call(self, key: str, writes: bool, asked: Callable[[SharedMap], Awaitable[T]]) -> T:
        load = self._load
        await trio.sleep(load.chance.uniform(0, PAUSE_S_MAX))
        handle, timeout = self._handles[_handle.get()]
        began = time.monotonic()
        try:
            result = await asked(handle)
        except (TidelogError, OSError) as error:
            now = time.monotonic()
            load.met.append(Met(now, now - began, timeout, error))
            raise
        load.answered.append(Answered(began, time.monotonic(), place_of(key), writes))
        return result


def _maps(databases: Sequence[Any], name: str) -> list[tuple[SharedMap, float]]:
    """A map of several handles for tasks, each with the seconds that a call may take."""
    return [
        (PairMap(db) if name == "pairs" else db.map(name, key=Str, value=Msgpack), seconds)
        for db, seconds in zip(databases, TIMEOUTS_S, strict=True)
    ]


async def _work(client: WorkloadClient, number: int) -> None:
    _handle.set(number)
    await client()


async def _filled(mix: TransactionMix) -> None:
    """Give the bank its money, as soon as all partitions are there: more than once if need be."""
    with trio.fail_after(PATIENCE_S):
        while True:
            try:
                return await mix.fill()
            except TidelogError:
                await trio.sleep(PAUSE_S_MAX)


async def _found(mapping: SharedMap, key: str) -> Any:
    """Return a value, as soon as the partition is there."""
    with trio.fail_after(PATIENCE_S):
        while True:
            try:
                return await mapping.get(key)
            except (PartitionUnavailableError, NotEnoughMembersError):
                await trio.sleep(PAUSE_S_MAX)


class Load:
    """The histories of all keys, and what the clients noted."""

    def __init__(self, address: str, pinned: Sequence[Pinned], chance: random.Random) -> None:
        self.histories = {(name, key): History() for name in MAPS for key in KEYS[name]}
        self.answered: list[Answered] = []
        self.met: list[Met] = []
        self.chance = chance
        self._address = address
        self._pinned = pinned
        self._mix: TransactionMix | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Let clients work until the end of the block."""
        threads = await trio.to_thread.run_sync(
            partial(connect, self._address, timeout=THREADS_TIMEOUT_S)
        )
        try:
            async with (
                aio.connect(self._address, timeout=TIMEOUTS_S[0]) as one,
                aio.connect(self._address, timeout=TIMEOUTS_S[1]) as two,
                trio.open_nursery() as nursery,
            ):
                for name in MAPS:
                    handles = _maps((one, two), name)
                    if name != "pairs":
                        shared = await trio.to_thread.run_sync(
                            partial(threads.map, name, key=Str, value=Msgpack)
                        )
                        handles.append((ThreadsMap(shared), THREADS_TIMEOUT_S))
                    self._begin(name, nursery, handles)
                self._mix = TransactionMix(
                    (one, two), time.monotonic, self.chance, banks=True, transactions=OPERATIONS
                )
                await _filled(self._mix)
                for client in self._mix.clients():
                    nursery.start_soon(client)
                registers = {key: self.histories["registers", key] for key in KEYS["registers"]}
                for pinned in self._pinned:
                    nursery.start_soon(pinned.work, registers)
                yield
                nursery.cancel_scope.cancel()
        finally:
            threads.close()

    def _begin(
        self, name: str, nursery: trio.Nursery, handles: Sequence[tuple[SharedMap, float]]
    ) -> None:
        make = counter_clients if name == "counters" else register_clients
        for key in KEYS[name]:
            clients = make(
                WatchedMap(self, handles), self.histories[name, key], clients=len(handles),
                keys=[key], operations=OPERATIONS, chance=self.chance, clock=time.monotonic,
            )  # fmt: skip
            for number, client in enumerate(clients):
                nursery.start_soon(_work, client, number)

    def served_since(self, moment: float) -> set[int]:
        """The partitions that have answered a read and a write which began behind a moment."""
        kinds: dict[bool, set[int]] = {False: set(), True: set()}
        for call in reversed(self.answered):
            if call.ended < moment:
                break
            if call.began >= moment:
                kinds[call.wrote].add(call.partition)
        return kinds[False] & kinds[True]

    def away_s(self, begin: float, end: float) -> float:
        """The longest time in which one partition answered nobody, in seconds."""
        last = dict.fromkeys(range(SPACE.partitions), begin)
        longest = 0.0
        for call in self.answered:
            if begin <= call.ended <= end:
                longest = max(longest, call.ended - last[call.partition])
                last[call.partition] = call.ended
        return max(longest, *(end - ended for ended in last.values()))

    async def read_back(self, reader: str) -> None:
        """Read every key, through a handle of its own."""
        async with aio.connect(self._address) as db:
            maps: dict[str, SharedMap] = {
                name: db.map(name, key=Str, value=Msgpack) for name in MAPS[:2]
            }
            maps["pairs"] = PairMap(db)
            for (name, key), history in self.histories.items():
                call = history.begin(reader, Get(key), time.monotonic())
                call.ok(await _found(maps[name], key), time.monotonic())

    async def judge_transactions(self) -> None:
        """Assert that all transactions, over any partitions, were strictly serializable."""
        assert self._mix is not None
        async with aio.connect(self._address) as db:
            found = await self._mix.anomalies(db)
        assert not found, found[:5]
        assert self._mix.committed > 0, "none has committed"

    def judge(self) -> None:
        """Assert that every history is linearizable."""
        for (name, _), history in self.histories.items():
            violation = check(history, MODELS[name], budget=BUDGET)
            assert violation is None, f"{name}: {violation}"

    def write(self, folder: Path) -> None:
        """Keep the histories as files."""
        for (name, key), history in self.histories.items():
            (folder / f"{name}-{key}.jsonl").write_text("\n".join(history.to_lines()))
