"""Partitions that move by plan (K7), and members that stop: nobody waits for a lease to end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from uuid import UUID

import pytest
import trio

from support.copies import STAYING
from tidelog import codecs
from tidelog.errors import ClusterError, TidelogError, UsageError
from tidelog.testing import SimCluster

PARTITIONS = 8
KEYS = 24


def live(seed: int, scenario: Callable[[SimCluster], Awaitable[None]], nodes: int = 3) -> None:
    """Let a cluster with two backups live through a scenario, from when it serves all."""

    async def begun(at: SimCluster) -> None:
        at.start()
        await at.settled()
        await scenario(at)

    SimCluster(
        seed=seed, nodes=nodes, partitions=PARTITIONS, backups=2, slow_disks=False, timing=STAYING
    ).run(begun)


async def moved(at: SimCluster, partition: int, target: str) -> None:
    """Let the primary of a partition hand it over, and wait until it has."""
    ended: list[Exception | None] = []
    primary = at.primary(partition)
    at.member(primary).move(partition, at.member_id(target).bytes, ended.append)
    while not ended:
        await trio.sleep(0.01)
    assert ended == [None]


class Writer:
    """Adds to counters as long as it runs; knows what was acknowledged, and the longest pause."""

    def __init__(self, at: SimCluster, name: str | None = None) -> None:
        self._at = at
        self._name = name
        self.acknowledged = [0] * KEYS
        self.pause = 0.0
        self.errors: list[TidelogError] = []

    async def run(self) -> None:
        numbers = self._at.client(self._name, timeout=30).map("m", key=codecs.Str, value=codecs.I64)
        last = float("inf")  # the first write makes the map
        while True:
            for key in range(KEYS):
                try:
                    await numbers.set(f"k{key}", self.acknowledged[key] + 1)
                except TidelogError as error:
                    self.errors.append(error)
                    continue
                self.acknowledged[key] += 1
                self.pause = max(self.pause, self._at.world.now() - last)
                last = self._at.world.now()

    async def check(self, name: str | None = None) -> None:
        numbers = self._at.client(name, timeout=30).map("m", key=codecs.Str, value=codecs.I64)
        for key, value in enumerate(self.acknowledged):
            found = await numbers.get(f"k{key}", default=0)
            assert found in (value, value + 1)


@pytest.mark.parametrize("seed", range(3))
def test_a_partition_moves_under_load_to_the_member_that_was_named(seed: int) -> None:
    async def scenario(at: SimCluster) -> None:
        writer = Writer(at)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(writer.run)
            await trio.sleep(1)
            for partition in range(PARTITIONS):
                before = at.topology().partitions[partition]
                target = next(name for name in at.names if name != at.primary(partition))
                await moved(at, partition, target)
                after = at.topology().partitions[partition]
                assert (at.primary(partition), after.epoch) == (target, before.epoch + 1)
                assert set(after.in_sync) == set(before.in_sync)
            nursery.cancel_scope.cancel()
        assert not writer.errors
        assert writer.pause < 1.0, "a move waits for no lease"
        await writer.check()
        await at.settled()
        await at.quiesce()
        for partition in range(PARTITIONS):
            assert len({at.digest(name, partition) for name in at.names}) == 1

    live(seed, scenario)


def test_a_partition_moves_to_copies_in_its_in_sync_set_only() -> None:
    async def scenario(at: SimCluster) -> None:
        primary = at.primary(0)
        other = next(name for name in at.names if name != primary)
        await at.kill(other)
        while at.member_id(other) in at.topology().members_present:
            await trio.sleep(0.1)
        for member in (at.member_id(other), UUID(int=5)):
            with pytest.raises(UsageError, match="not in its in-sync set") as told:
                at.member(primary).move(0, member.bytes, lambda _: None)
            assert str(at.member_id(primary))[:8] in str(told.value)
        epoch = at.topology().partitions[0].epoch
        await moved(at, 0, primary)
        assert at.topology().partitions[0].epoch == epoch

    live(1, scenario)


def test_a_member_that_stops_hands_over_and_clients_notice_no_more_than_a_short_pause() -> None:
    async def scenario(at: SimCluster) -> None:
        leaver = at.primary(0)
        stay = [name for name in at.names if name != leaver]
        writer = Writer(at, stay[0])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(writer.run)
            await trio.sleep(1)
            await at.stop(leaver)
            await trio.sleep(1)
            nursery.cancel_scope.cancel()
        assert not writer.errors
        assert writer.pause < 1.0, "nobody waits for a lease to end"
        topology = at.topology()
        assert at.member_id(leaver) not in topology.members_present
        assert {len(copies.in_sync) for copies in topology.partitions} == {2}
        await writer.check(stay[0])

    live(4, scenario)


def test_a_whole_cluster_that_is_stopped_has_full_sets_when_it_is_started_again() -> None:
    async def scenario(at: SimCluster) -> None:
        writer = Writer(at)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(writer.run)
            await trio.sleep(1)
            async with trio.open_nursery() as stopping:
                for name in at.names:
                    stopping.start_soon(at.stop, name)
            nursery.cancel_scope.cancel()
        at.start()
        await at.settled()
        await writer.check()
        assert {len(copies.in_sync) for copies in at.topology().partitions} == {3}

    live(5, scenario)


def test_members_that_stop_one_after_the_other_leave_a_majority_of_them_in_the_sets() -> None:
    async def scenario(at: SimCluster) -> None:
        for name in at.names:
            await at.stop(name)
        at.start()
        await at.settled()
        assert {len(copies.in_sync) for copies in at.topology().partitions} == {2}

    live(6, scenario)


def test_a_move_to_a_member_that_is_gone_by_then_says_who_serves() -> None:
    # The old primary, alone now, was waited for without end: nobody announces what he has opened.
    async def scenario(at: SimCluster) -> None:
        primary = at.primary(0)
        target, other = (name for name in at.names if name != primary)
        ended: list[Exception | None] = []
        at.cut({target}, {primary, other})
        at.member(primary).move(0, at.member_id(target).bytes, ended.append)
        await at.kill(target)
        while not ended:
            await trio.sleep(0.01)
        [error] = ended
        assert isinstance(error, ClusterError)
        assert str(at.topology().partitions[0].author) in str(error)

    live(7, scenario)


@pytest.mark.parametrize("apart", [0.0, 0.1])
def test_of_two_members_that_stop_together_none_hands_over_to_the_other(apart: float) -> None:
    async def scenario(at: SimCluster) -> None:
        leaders = {at.coordinator()}
        first, second, *stay = sorted(at.names, key=lambda name: (name in leaders, name))
        writer = Writer(at, stay[0])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(writer.run)
            await trio.sleep(1)
            async with trio.open_nursery() as stopping:
                stopping.start_soon(at.stop, first)
                await trio.sleep(apart)
                stopping.start_soon(at.stop, second)
            await trio.sleep(2)
            nursery.cancel_scope.cancel()
        assert not writer.errors
        assert writer.pause < 1.0, "nobody waits for a lease to end"
        await writer.check(stay[0])

    live(0, scenario, nodes=5)
