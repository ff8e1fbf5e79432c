"""The workloads: on a store that works their histories are linearizable, on broken ones not."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

from support import tasks
from tidelog import Map, aio, codecs
from tidelog.errors import (
    ClosedError,
    CommitUnknownError,
    ConflictError,
    DiskError,
    LockTimeoutError,
    UsageError,
)
from tidelog.testing import (
    FaultyDisk,
    check,
    check_database,
    counter_clients,
    open_with,
    register_clients,
    simulated,
)
from tidelog.testing.anomalies import Violation
from tidelog.testing.histories import (
    Action,
    CompareAndSet,
    Delete,
    Get,
    History,
    HistoryValue,
    Incr,
    Put,
)
from tidelog.testing.moves import COUNTER, REGISTER
from tidelog.testing.trio_switches import repeatable
from tidelog.testing.workloads import SharedMap, WorkloadClient

CLIENTS = 8
OPERATIONS = 25
SEEDS = 6


class Inline:
    """The map of a store for threads, for tasks of a run that may have no threads."""

    def __init__(self, inner: Map[str, Any]) -> None:
        self.inner = inner

    async def get(self, key: Any, /) -> Any:
        return self.inner.get(key)

    async def set(self, key: Any, value: Any, /) -> None:
        self.inner[key] = value

    async def discard(self, key: Any, /) -> None:
        self.inner.discard(key)

    async def compare_and_set(self, key: Any, expected: Any, value: Any, /) -> bool:
        return self.inner.compare_and_set(key, expected, value)

    async def incr(self, key: Any, delta: int = 1, /) -> int:
        return self.inner.incr(key, delta)


class Slow:
    """A map whose answers take a while, before and behind the operation, as over a network."""

    def __init__(self, inner: SharedMap, seed: int) -> None:
        self.inner = inner
        self.rng = random.Random(seed)

    async def pause(self) -> None:
        for _ in range(self.rng.randrange(4)):
            await trio.lowlevel.checkpoint()

    async def done(self, work: Callable[..., Any], *args: Any) -> Any:
        await self.pause()
        result = await work(*args)
        await self.pause()
        return result

    async def get(self, key: Any, /) -> Any:
        return await self.done(self.inner.get, key)

    async def set(self, key: Any, value: Any, /) -> None:
        await self.done(self.inner.set, key, value)

    async def discard(self, key: Any, /) -> None:
        await self.done(self.inner.discard, key)

    async def compare_and_set(self, key: Any, expected: Any, value: Any, /) -> bool:
        return bool(await self.done(self.inner.compare_and_set, key, expected, value))

    async def incr(self, key: Any, delta: int = 1, /) -> int:
        return int(await self.done(self.inner.incr, key, delta))


class DropsAWrite(Slow):
    """Acknowledges every twelfth write and does not do it."""

    writes = 0

    async def set(self, key: Any, value: Any, /) -> None:
        self.writes += 1
        if self.writes % 12:
            await super().set(key, value)

    async def incr(self, key: Any, delta: int = 1, /) -> int:
        self.writes += 1
        if self.writes % 12:
            return await super().incr(key, delta)
        return int(await self.get(key) or 0) + delta


class ServesAStaleCache(Slow):
    """Answers some reads with what was there at the last look."""

    def __init__(self, inner: SharedMap, seed: int) -> None:
        super().__init__(inner, seed)
        self.cache: dict[Any, Any] = {}

    async def get(self, key: Any, /) -> Any:
        if key in self.cache and self.rng.random() < 0.3:
            return self.cache[key]
        self.cache[key] = await super().get(key)
        return self.cache[key]


class ComparesBeforeItSets(Slow):
    """Compares, and sets in a step of its own."""

    async def compare_and_set(self, key: Any, expected: Any, value: Any, /) -> bool:
        if await self.get(key) != expected:
            return False
        await self.set(key, value)
        return True


class AddsTwice(Slow):
    """Sends an increment again although it was counted."""

    async def incr(self, key: Any, delta: int = 1, /) -> int:
        if self.rng.random() < 0.1:
            await super().incr(key, delta)
        return await super().incr(key, delta)


class LosesAnswers(Slow):
    """Does what it is asked, or not, and breaks the connection."""

    async def done(self, work: Callable[..., Any], *args: Any) -> Any:
        lost = self.rng.random()
        if lost < 0.05:
            raise ConnectionResetError
        result = await super().done(work, *args)
        if lost < 0.1:
            raise ConnectionResetError
        return result


class CallsItAFailure(LosesAnswers):
    """Says that what it did was not done."""

    async def done(self, work: Callable[..., Any], *args: Any) -> Any:
        try:
            return await super().done(work, *args)
        except ConnectionResetError:
            raise LockTimeoutError("not done") from None


@asynccontextmanager
async def shared_map() -> AsyncIterator[SharedMap]:
    async with aio.memory(partitions=2) as db:
        yield db.map("shared", key=codecs.Str, value=codecs.Msgpack)


def recorded(broken: type[Slow], *, counters: bool, seed: int = 1) -> History:
    """The history of one run, which is the same each time."""
    with repeatable(f"workload {seed}"):
        return trio.run(partial(run, broken, counters=counters, seed=seed))


async def run(broken: type[Slow], *, counters: bool, seed: int) -> History:
    history = History()
    ticks = itertools.count()
    db = open_with(simulated(seed, FaultyDisk()), "/store", partitions=2)
    shared = Inline(db.map("shared", key=codecs.Str, value=codecs.Msgpack))
    async with trio.open_nursery() as nursery:
        make = counter_clients if counters else register_clients
        for client in make(
            broken(shared, seed),
            history,
            clients=CLIENTS,
            keys=["x", "y"],
            operations=OPERATIONS,
            chance=random.Random(seed),
            clock=lambda: float(next(ticks)),
        ):
            nursery.start_soon(client)
    assert check_database(db) == []
    db.close()
    return history


def verdict(history: History, *, counters: bool) -> Violation | None:
    return check(history, COUNTER if counters else REGISTER)


@pytest.mark.parametrize("counters", [False, True], ids=["registers", "counters"])
@pytest.mark.parametrize("faults", [Slow, LosesAnswers])
def test_a_store_that_works_is_linearizable(faults: type[Slow], counters: bool) -> None:
    history = recorded(faults, counters=counters)
    calls = history.calls()
    assert len(calls) == CLIENTS * OPERATIONS
    assert sum(call.ending == "ok" for call in calls) > len(calls) * 0.8
    assert any(call.ending == "unknown" for call in calls) == (faults is LosesAnswers)
    kinds = {Get, Incr} if counters else {Get, Put, Delete, CompareAndSet}
    assert {type(call.action) for call in calls} == kinds
    assert verdict(history, counters=counters) is None


@pytest.mark.parametrize(
    ("broken", "counters"),
    [
        (DropsAWrite, False),
        (DropsAWrite, True),
        (ServesAStaleCache, False),
        (ServesAStaleCache, True),
        (ComparesBeforeItSets, False),
        (AddsTwice, True),
        (CallsItAFailure, False),
        (CallsItAFailure, True),
    ],
)
def test_a_store_that_does_not_work_is_rejected(broken: type[Slow], counters: bool) -> None:
    histories = [recorded(broken, counters=counters, seed=seed) for seed in range(SEEDS)]
    assert any(verdict(history, counters=counters) for history in histories)


def test_compare_and_set_succeeds_and_is_refused_about_as_often() -> None:
    calls = (recorded(Slow, counters=False)).calls()
    results = [call.result for call in calls if isinstance(call.action, CompareAndSet)]
    assert results.count(True) > 5
    assert results.count(False) > 5


def test_no_two_writes_have_one_value() -> None:
    calls = (recorded(Slow, counters=False)).calls()
    values = [c.action.value for c in calls if isinstance(c.action, Put | CompareAndSet)]
    assert len(values) == len(set(values))


def asked_of(history: History) -> dict[str, list[Action]]:
    asked: dict[str, list[Action]] = defaultdict(list)
    for call in history.calls():
        asked[call.client].append(call.action)
    return asked


def test_what_clients_do_is_drawn_and_not_who_runs_when() -> None:
    for faults in (LosesAnswers, AddsTwice):
        assert asked_of(recorded(faults, counters=True)) == asked_of(recorded(Slow, counters=True))
    again = recorded(Slow, counters=True)
    assert again == recorded(Slow, counters=True)
    assert asked_of(again) != asked_of(recorded(Slow, counters=True, seed=2))


class Fails:
    """A map that raises, whatever it is asked."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    async def get(self, key: Any, /) -> HistoryValue:
        raise self.error

    async def set(self, key: Any, value: Any, /) -> None:
        raise self.error

    async def discard(self, key: Any, /) -> None:
        raise self.error

    async def compare_and_set(self, key: Any, expected: Any, value: Any, /) -> bool:
        raise self.error

    async def incr(self, key: Any, delta: int = 1, /) -> int:
        raise self.error


def one_client(history: History, error: BaseException) -> WorkloadClient:
    (client,) = counter_clients(
        Fails(error),
        history,
        clients=1,
        keys=["x"],
        operations=3,
        chance=random.Random(1),
        clock=lambda: 0.0,
    )
    return client


@pytest.mark.parametrize(
    ("error", "ending"),
    [
        (ClosedError("no"), "failed"),
        (ConflictError("no", namespace="n", key=None, winner=None), "failed"),
        (CommitUnknownError("perhaps", tx_id=b"", home=0), "unknown"),
        (DiskError("perhaps"), "unknown"),
        (ConnectionResetError(), "unknown"),
        (TimeoutError(), "unknown"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
async def test_errors_are_failures_or_unknown(error: Exception, ending: str) -> None:
    history = History()
    await one_client(history, error)()
    assert [call.ending for call in history.calls()] == [ending] * 3


async def test_a_call_that_is_wrong_is_raised_and_failed() -> None:
    history = History()
    with pytest.raises(UsageError, match="no such key"):
        await one_client(history, UsageError("no such key"))()
    assert [call.ending for call in history.calls()] == ["failed"]


async def test_what_is_a_bug_is_raised_and_its_outcome_unknown() -> None:
    history = History()
    with pytest.raises(ZeroDivisionError):
        await one_client(history, ZeroDivisionError())()
    (call,) = history.calls()
    assert (call.ending, call.ended) == ("unknown", 1)


async def test_a_client_that_is_cancelled_leaves_a_call_of_unknown_outcome() -> None:
    history = History()

    class Hangs(Slow):
        async def pause(self) -> None:
            await trio.sleep_forever()

    async with shared_map() as shared:
        (client,) = register_clients(
            Hangs(shared, 1),
            history,
            clients=1,
            keys=["x"],
            operations=3,
            chance=random.Random(1),
            clock=trio.current_time,
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
    assert [(call.ending, call.ended) for call in history.calls()] == [("unknown", 1)]


@pytest.mark.loops
async def test_clients_run_in_either_loop(loop: str) -> None:
    history = History()
    ticks = itertools.count()
    async with shared_map() as shared, tasks.open_nursery() as nursery:
        for client in register_clients(
            shared,
            history,
            clients=3,
            keys=["x"],
            operations=5,
            chance=random.Random(3),
            clock=lambda: float(next(ticks)),
        ):
            nursery.start_soon(client)
    assert [call.ending for call in history.calls()] == ["ok"] * 15
    assert check(history, REGISTER) is None
