"""Load on one peer from one process of clients: what is done per second, and which CPU that takes.

    load = in_child(load_of, Ask("etcd-3", address, "put", "threads", 32, 1.0, pids))

The clients are threads or tasks of the process, or those of etcd's own client in Go; each has
connected and done something before time is taken.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import cycle
from threading import Barrier
from time import perf_counter
from typing import Any, NamedTuple, Protocol, TypeVar

import etcd
import pysync
from peers import Pair
from workloads import WRITTEN, pairs_of, puts_until

import tidelog
from tidelog import aio

RECORDS = 10_000
ETCD = ("etcd-1", "etcd-3")
PYSYNCOBJ = "pysyncobj-3"
A = TypeVar("A")
K = TypeVar("K")
R = TypeVar("R")


class Blocking(Protocol):
    def put(self, key: bytes, value: bytes, /) -> object: ...
    def get(self, key: bytes, /) -> object: ...
    def close(self) -> object: ...


class TidelogThreads:
    """A handle that threads share."""

    def __init__(self, where: str) -> None:
        self._db = tidelog.connect(where)
        table = self._db.map("bench")
        self.put: Callable[[bytes, bytes], object] = table.__setitem__
        self.get: Callable[[bytes], object] = table.get
        self.close: Callable[[], object] = self._db.close


def threads_of(peer: str, where: str) -> Blocking:
    if peer == PYSYNCOBJ:
        return pysync.Threads(where)
    return etcd.Threads(where) if peer in ETCD else TidelogThreads(where)


@dataclass(frozen=True, slots=True)
class Ask:
    """What one process of clients does, and whose CPU is told."""

    peer: str
    where: str
    operation: str
    form: str
    clients: int
    seconds: float
    pids: tuple[int, ...] = ()
    records: int = RECORDS


class Load(NamedTuple):
    """Operations per second, the microseconds of CPU and the further attempts that each took."""

    rate: float
    client_us: float
    members_us: float
    again: float = 0.0


def cpu_ns(pids: Iterable[int]) -> int:
    """Nanoseconds for which processes have computed so far."""
    return sum(time.clock_gettime_ns(~pid << 3 | 2) for pid in pids)


def rate_of(ask: Ask) -> float:
    """Operations per second, in this process."""
    return load_of(ask).rate


def load_of(ask: Ask) -> Load:
    """Rate and CPU, in this process or in that of etcd's client in Go."""
    if ask.form == "go":
        return load_told(etcd.go_load(ask.where, ask.operation, ask.clients, ask.seconds, ask.pids))
    pairs = pairs_of(RECORDS, WRITTEN)
    shares = shares_of(pairs, ask.clients)
    if ask.form == "tasks":
        return asyncio.run(_of_tasks(ask, shares))
    client = threads_of(ask.peer, ask.where)
    operation = client.put if ask.operation == "put" else _get_of(client)
    meter = Meter(ask)
    done, seconds = from_threads(operation, shares, ask.seconds, meter.begin)
    load = meter.load(done, seconds)
    client.close()
    return load


def load_told(told: dict[str, Any]) -> Load:
    """Rate and CPU of etcd's client in Go."""
    done = told["done"]
    return Load(
        done / told["seconds"],
        told["client_cpu"] / done * 1e6,
        told["members_cpu"] / done * 1e6,
        told["again"] / done,
    )


def shares_of(items: list[A], clients: int) -> list[list[A]]:
    """Deal out what clients do, to each its own."""
    return [items[number::clients] for number in range(clients)]


class Meter:
    """The CPU that a load takes, of this process and of the members."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def begin(self) -> None:
        self._client, self._members = time.process_time_ns(), cpu_ns(self._ask.pids)

    def load(self, done: int, seconds: float) -> Load:
        client, members = time.process_time_ns(), cpu_ns(self._ask.pids)
        return Load(
            done / seconds,
            (client - self._client) / done / 1000,
            (members - self._members) / done / 1000,
        )


def from_threads(
    operation: Callable[[K, bytes], object],
    shares: list[list[tuple[K, bytes]]],
    seconds: float,
    begun: Callable[[], object] = perf_counter,
) -> tuple[int, float]:
    """How much threads have done, a share each, and in which time; `begun` is called before."""
    times: list[float] = []

    def begin() -> None:
        begun()
        times.append(perf_counter())

    ready = Barrier(len(shares), begin)

    def work(share: list[tuple[K, bytes]]) -> int:
        operation(*share[0])
        ready.wait()
        return puts_until(times[0] + seconds, operation, share)

    with ThreadPoolExecutor(len(shares)) as pool:
        done = sum(pool.map(work, shares))
    return done, perf_counter() - times[0]


def _get_of(client: Blocking) -> Callable[[bytes, bytes], object]:
    get = client.get
    return lambda key, _value: get(key)


@asynccontextmanager
async def tasks_of(ask: Ask) -> AsyncIterator[Callable[[bytes, bytes], Awaitable[object]]]:
    """What a task does with each pair."""
    if ask.peer in ETCD:
        client = etcd.Tasks(ask.where)
        put, get = client.put, client.get
        yield put if ask.operation == "put" else lambda key, _value: get(key)
        await client.close()
        return
    async with aio.connect(ask.where) as db:
        table = db.map("bench")
        yield table.set if ask.operation == "put" else lambda key, _value: table.get(key)


async def _of_tasks(ask: Ask, shares: list[list[Pair]]) -> Load:
    meter = Meter(ask)
    async with tasks_of(ask) as operation:
        done, seconds = await from_tasks(operation, shares, ask.seconds, meter.begin)
        return meter.load(done, seconds)


async def from_tasks(
    operation: Callable[[K, bytes], Awaitable[object]],
    shares: list[list[tuple[K, bytes]]],
    seconds: float,
    begun: Callable[[], object],
) -> tuple[int, float]:
    """How much tasks have done, a share each, and in which time; `begun` is called before."""
    done = 0
    await asyncio.gather(*(operation(*share[0]) for share in shares))
    begun()
    begin = perf_counter()
    end = begin + seconds

    async def work(share: list[tuple[K, bytes]]) -> None:
        nonlocal done
        for key, value in cycle(share):
            await operation(key, value)
            done += 1
            if perf_counter() >= end:
                break

    await asyncio.gather(*map(work, shares))
    return done, perf_counter() - begin


def fill(ask: Ask) -> float:
    """Put so many records once."""
    client = threads_of(ask.peer, ask.where)
    with ThreadPoolExecutor(ask.clients) as pool:
        list(pool.map(lambda pair: client.put(*pair), pairs_of(ask.records, WRITTEN)))
    client.close()
    return 0.0


def in_child(task: Callable[[A], R], ask: A) -> R:
    """What a task returns, in a new process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(task, (ask,))
