"""Members whose checkpoints do not keep up, and what stays in memory of what is over."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import trio

from support.raw_client import FailureError, RawClient
from support.sim_clients import Clients, cluster, serving
from tidelog.affinity.errors import DiskError
from tidelog.engine.commit.entries import Commit
from tidelog.engine.data.overlay import PAIR_OVERHEAD
from tidelog.engine.node.log import NodeLog
from tidelog.engine.node.member import RunningMember
from tidelog.engine.node.room import LATE_S_MAX
from tidelog.engine.node.supply_log import READ_BYTES
from tidelog.engine.store.options import Options
from tidelog.testing import SimCluster

VALUE = b"x" * 30_000
OPTIONS = Options(segment_bytes=1 << 20, checkpoint_bytes=1 << 20)
MOST = OPTIONS.checkpoint_policy().wait_bytes


@contextmanager
def held_checkpoints(
    monkeypatch: pytest.MonkeyPatch, member: RunningMember
) -> Iterator[trio.Event]:
    """Let a member begin no checkpoint before an event."""
    go_on, checkpoint = trio.Event(), member.checkpoint

    async def held(reason: str) -> None:
        await go_on.wait()
        await checkpoint(reason)

    with monkeypatch.context() as patch:
        patch.setattr(member, "checkpoint", held)
        yield go_on


async def put(client: RawClient, number: int, key: bytes, index: int, *more: bytes) -> str | None:
    """Put a value under a key, or several; return the code of the failure, if it is one."""
    try:
        await client.put(b"%016d" % index, number, dict.fromkeys((key, *more), VALUE))
    except FailureError as refused:
        return refused.code
    return None


async def until(true: Callable[[], bool]) -> None:
    with trio.fail_after(20):
        while not true():
            await trio.sleep(0.02)


async def has_room(log: NodeLog) -> None:
    """Wait until checkpoints have kept up."""
    await until(lambda: not log.is_full)


def served_by(at: SimCluster, name: str) -> int:
    return next(p for p in range(at.partitions) if at.primary(p) == name)


@pytest.mark.parametrize("keys", [1, 2])
def test_who_writes_waits_for_checkpoints_that_do_not_keep_up(
    monkeypatch: pytest.MonkeyPatch, keys: int
) -> None:
    # A member took whatever came: loading 3 GiB took 1.1 GB of memory, and more was not tried.
    at = cluster(61, backups=2, options=OPTIONS)
    clients = Clients(at)

    async def scenario(at: SimCluster) -> None:
        _, number = await serving(at, clients)
        mine = served_by(at, "n1")
        other = next(p for p in range(at.partitions) if p != mine and at.primary(p) == "n1")
        client, log = await clients.to("n1"), at.member("n1").log
        told: list[str | None] = []
        with held_checkpoints(monkeypatch, at.member("n1")) as go_on:
            for index in range(100):
                first_key, *more = (at.key(one, index) for one in (mine, other)[:keys])
                told.append(await put(client, number, first_key, index, *more))
            first = told.index("wait")
            assert first > 10
            assert {*told[:first]} == {None}
            assert {*told[first:]} == {"wait"}
            assert MOST <= log.overlay.bytes < MOST + 4 * len(VALUE)
            reads = [[number, [at.key(mine, 500), at.key(other, 500)], [0, 0], [0, 0]]]
            await client.ask("commit", b"reads" + bytes(11), 1, False, None, reads, [], [])
            go_on.set()
        await has_room(log)
        assert await put(client, number, at.key(mine, 200), 200) is None
        values = (await client.ask("get", number, [at.key(mine, n) for n in range(100)]))[0]
        assert [value is None for value in values] == [code is not None for code in told]

    at.run(scenario)


def test_a_copy_whose_memory_is_full_is_slow_to_answer_and_stays_in_its_sets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at = cluster(62, backups=2, options=OPTIONS)
    clients = Clients(at)

    async def scenario(at: SimCluster) -> None:
        _, number = await serving(at, clients)
        mine = served_by(at, "n1")
        client, copy = await clients.to("n1"), at.member("n2").log

        async def seconds_of(index: int) -> float:
            began = trio.current_time()
            assert await put(client, number, at.key(mine, index), index) is None
            return trio.current_time() - began

        assert max([await seconds_of(index) for index in range(5)]) < LATE_S_MAX / 2
        with held_checkpoints(monkeypatch, at.member("n2")) as go_on:
            index = 5
            while copy.overlay.bytes < MOST:
                await seconds_of(index)
                index += 1
            assert index < 100, "what a copy has in memory is counted"
            taken = [await seconds_of(index + more) for more in range(8)]
            assert min(taken) > LATE_S_MAX / 2
            assert max(taken) < 2 * LATE_S_MAX
            sets = at.topology().partitions[mine].in_sync
            assert at.member_id("n2") in {one.member for one in sets}
            go_on.set()
        await has_room(copy)
        assert max([await seconds_of(500 + more) for more in range(5)]) < LATE_S_MAX / 2

    at.run(scenario)


def test_a_copy_whose_memory_is_full_has_as_long_for_its_disk_as_any_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # What it said late came a second behind its disk, which was too late for its sets.
    at = cluster(67, backups=2, options=OPTIONS)
    clients = Clients(at)

    async def scenario(at: SimCluster) -> None:
        _, number = await serving(at, clients)
        mine, copy = served_by(at, "n1"), at.member("n2").log
        at_disk = copy._at_disk

        async def slow(work: Callable[[], object]) -> None:
            await trio.sleep(4.3)
            await at_disk(work)

        async def puts(first: int) -> None:
            client = await clients.to("n1")
            for index in range(first, first + 8):
                await client.put(b"%016d" % index, number, {at.key(mine, index): b"small"})

        with held_checkpoints(monkeypatch, at.member("n2")) as go_on:
            client, index = await clients.to("n1"), 0
            while not copy.is_full:
                assert await put(client, number, at.key(mine, index), index) is None
                index += 1
            monkeypatch.setattr(copy, "_at_disk", slow)
            async with trio.open_nursery() as nursery:
                for first in range(1000, 1600, 100):
                    nursery.start_soon(puts, first)
            assert copy.is_full
            sets = at.topology().partitions[mine].in_sync
            assert at.member_id("n2") in {one.member for one in sets}
            monkeypatch.setattr(copy, "_at_disk", at_disk)
            go_on.set()

    at.run(scenario)


def test_what_a_member_has_in_memory_counts_behind_a_recovery_as_before() -> None:
    # Of writes without copies that had one with copies before them in their frame nothing did.
    at = cluster(68, backups=1)
    clients = Clients(at)

    def bytes_of(name: str) -> tuple[int, int]:
        overlay = at.member(name).log.overlay
        parts = [part for layer in overlay.view.layers for part in layer.parts.values()]
        pairs = [len(key) + len(stored) for part in parts for key, stored in part.items()]
        return overlay.bytes, sum(pairs) + PAIR_OVERHEAD * len(pairs)

    async def scenario(at: SimCluster) -> None:
        _, number = await serving(at, clients)
        await at.kill("n3")

        def of_n1(copies: int) -> list[int]:
            rows = enumerate(at.topology().partitions)
            return [p for p, row in rows if at.primary(p) == "n1" and len(row.in_sync) == copies]

        await until(lambda: bool(of_n1(1) and of_n1(2)))
        [alone, *_], [shared, *_] = of_n1(1), of_n1(2)

        async def puts(partition: int, first: int, value: bytes) -> None:
            client = await clients.to("n1")
            for index in range(first, first + 20):
                await client.put(b"%016d" % index, number, {at.key(partition, index): value})

        async with trio.open_nursery() as nursery:
            for first in (1000, 2000, 3000, 4000):
                nursery.start_soon(puts, shared, first, b"small")
                nursery.start_soon(puts, alone, first + 100, VALUE)
        counted, there = bytes_of("n1")
        assert counted >= there > 80 * len(VALUE)
        await at.kill("n1")
        at.start(["n1"])
        await until(lambda: "n1" in at.running())
        counted, there = bytes_of("n1")
        assert counted >= there > 80 * len(VALUE)

    at.run(scenario)


@pytest.mark.parametrize("name", ["n1", "n2"])
def test_nobody_waits_for_checkpoints_that_fail(name: str) -> None:
    # A member whose data file had failed refused all writes for ever, and a copy slowed them.
    at = cluster(65, backups=2, options=OPTIONS)
    clients = Clients(at)

    async def scenario(at: SimCluster) -> None:
        _, number = await serving(at, clients)
        mine, client = served_by(at, "n1"), await clients.to("n1")
        at.member(name)._files.checkpointer.doubtful = DiskError("a sync of the data file failed")
        waits = 0
        with trio.fail_after(30):
            for index in range(120):
                while await put(client, number, at.key(mine, index), index) is not None:
                    waits += 1
                    await trio.sleep(0.1)
        assert waits < 30, "until it is seen that they fail"
        assert at.member(name).log.overlay.bytes > MOST

    at.run(scenario)


def test_a_copy_demands_what_it_has_missed_no_faster_than_it_can_keep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # All of it came at once, whatever was in memory.
    at = cluster(66, backups=2, options=replace(OPTIONS, retain_bytes=1 << 30))
    clients = Clients(at)

    async def scenario(at: SimCluster) -> None:
        _, number = await serving(at, clients)
        mine, client = served_by(at, "n1"), await clients.to("n1")
        await at.kill("n2")
        for index in range(300):
            while await put(client, number, at.key(mine, index), index) is not None:
                await trio.sleep(0.1)
        began = trio.current_time()
        at.start(["n2"])
        await until(lambda: "n2" in at.running())
        log = at.member("n2").log
        with held_checkpoints(monkeypatch, at.member("n2")) as go_on:
            await until(lambda: log.is_full)
            first = log.overlay.bytes
            await trio.sleep(LATE_S_MAX / 2)
            assert log.overlay.bytes - first < 1.2 * READ_BYTES, "a piece was on its way"
            assert log.overlay.bytes < 300 * len(VALUE) / 1.5
            go_on.set()
        await at.whole()
        assert trio.current_time() < began + 30

    at.run(scenario)


def commits_in_memory() -> int:
    return sum(isinstance(one, Commit) for one in gc.get_objects())


def test_nothing_of_a_commit_that_is_over_waits_for_the_collector_of_cycles() -> None:
    # Some hundred megabytes did in a member that was loaded: each had all that its client had sent.
    at = cluster(63, backups=2)
    clients = Clients(at)

    async def scenario(at: SimCluster) -> None:
        _, number = await serving(at, clients)
        mine = served_by(at, "n1")
        other = max(p for p in range(at.partitions) if at.primary(p) != "n1")
        client = await clients.to("n1")
        await put(client, number, at.key(mine, 0), 0)
        await trio.sleep(2)
        gc.collect()
        before = commits_in_memory()
        gc.disable()
        try:
            for index in range(1, 30):
                await put(client, number, at.key(mine, index % 3), index)
                both: dict[bytes, Any] = dict.fromkeys((at.key(mine, 5), at.key(other, 5)), VALUE)
                await client.put(b"both%012d" % index, number, both)
                stale = [[number, [at.key(mine, index % 3)], [1], [1]]]
                with pytest.raises(FailureError, match="was changed by another"):
                    await client.ask(
                        "commit", b"stale%011d" % index, 1, False, None, stale, [],
                        [[number, [at.key(mine, 7)], [VALUE]]],
                    )  # fmt: skip
            await trio.sleep(2)
            left = commits_in_memory() - before
        finally:
            gc.enable()
        assert left <= 0, f"{left} commits are in cycles"

    at.run(scenario)
