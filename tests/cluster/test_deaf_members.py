"""A member that others hear, and that hears nobody, or too few: writes go on all the same.

Such a coordinator has no majority, and asks in vain whether it would be elected.  Whoever gave way
to that each time never stood.  And its last proposal, that others are gone, had these begin anew
once one of them adopted it, and let it alone have what they had copies of.

One that hears nobody serves nothing: the others go on without it.  One that hears whoever leads,
now or next, has its leases from that one and stays what it is, a primary as well: it takes the
copies that it does not hear out of its sets, and goes on.
"""

from __future__ import annotations

import copy
from contextlib import suppress
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from support.copies import Group, live
from tidelog.engine.agreement.coordinator import GIVE_IT_UP

SERVED_S = 6.0
"""Seconds in which others serve everything: the lease, one try of the member that is deaf, and one
of another."""

WRITTEN_S = 8.0
"""Seconds in which every partition takes writes: the lease, elections, and the five seconds for
which a primary waits for a copy that does not acknowledge."""


def served_without(group: Group, name: str) -> bool:
    """Tell whether members other than this one serve every partition."""
    running = {n: one for n, one in group.at.running().items() if n != name}
    served = {
        partition
        for member in running.values()
        for partition in range(group.at.partitions)
        if member.partitions.is_open(partition)
        and member.agreement.may_serve(partition, member.now)
    }
    return len(served) == group.at.partitions


async def write(group: Group, partition: int, value: bytes) -> None:
    """Set a key of a partition, and ask again until that is acknowledged."""
    one = copy.copy(group)
    one.partition = partition
    for attempt in count():
        one._txs = 1000 * (partition + 1) + attempt
        with suppress(OSError, trio.TooSlowError):
            begun = await one.begin(0, value)
            acknowledged = await begun.is_answered(1.0)
            begun.client.close()
            if acknowledged:
                return
        await trio.sleep(0.05)


def deaf(group: Group, leads: bool, hears: int) -> tuple[str, list[str]]:
    """Have a member hear only some of the others; return its name, and theirs."""
    at, coordinator = group.at, group.at.coordinator() or ""
    name = coordinator if leads else next(one for one in at.names if one != coordinator)
    rest = [one for one in at.names if one != name]
    for other in rest[hears:]:
        at.world.network.cut(other, name)
    return name, rest


async def heal(group: Group) -> None:
    at = group.at
    at.world.network.heal()
    await at.settled()
    await group.put(range(2), b"behind")
    await group.back()
    assert [await group.value(i) for i in range(4)] == [b"behind"] * 2 + [b"before"] * 2


@pytest.mark.parametrize("nodes", [3, 5])
@pytest.mark.parametrize("leads", [True, False], ids=["coordinator", "another"])
@pytest.mark.parametrize("seed", [*range(1, 7), 9, 34, 48])
def test_others_go_on_without_a_member_that_hears_nobody(
    seed: int, leads: bool, nodes: int
) -> None:
    async def scenario(group: Group) -> None:
        await group.put(range(4), b"before")
        name, rest = deaf(group, leads, hears=0)
        boots = {one: group.at.member(one).agreement.me.boot for one in rest}
        with trio.fail_after(SERVED_S):
            while not served_without(group, name):
                await trio.sleep(0.02)
        assert {one: group.at.member(one).agreement.me.boot for one in rest} == boots
        await heal(group)

    live(scenario, seed=seed, nodes=nodes)


@pytest.mark.parametrize(("nodes", "hears"), [(3, 1), (5, 1), (5, 2), (5, 3)])
@pytest.mark.parametrize("leads", [True, False], ids=["coordinator", "another"])
@pytest.mark.parametrize("seed", [1, 2, 8, 9, 30, 35, 48])
def test_writes_go_on_beside_a_member_that_hears_some(
    seed: int, leads: bool, nodes: int, hears: int
) -> None:
    async def scenario(group: Group) -> None:
        await group.put(range(4), b"before")
        _, rest = deaf(group, leads, hears)
        boots = {one: group.at.member(one).agreement.me.boot for one in rest}
        for _ in range(2):  # it stays so
            with trio.fail_after(WRITTEN_S):
                async with trio.open_nursery() as nursery:
                    for partition in range(group.at.partitions):
                        nursery.start_soon(write, group, partition, b"before")
            await trio.sleep(1.0)
        if not leads or 2 * (hears + 1) < nodes:  # else a majority finds that the rest is gone
            assert {one: group.at.member(one).agreement.me.boot for one in rest} == boots
        await heal(group)

    live(scenario, seed=seed, nodes=nodes)


def test_an_author_whose_epoch_is_not_open_gives_it_up_if_it_is_told_to() -> None:
    """It asked for an epoch without one that reaches more, and stayed when that was refused."""

    async def scenario(group: Group) -> None:
        author = group.at.member(group.primary)
        copies = group.at.topology().partitions[group.partition]
        missed = next(one for one in copies.in_sync if one != copies.author)
        leaving_out = author.groups._leaving_out
        leaving_out._decisions.suggest = lambda *_: 77  # type: ignore[method-assign]
        takeover: Any = SimpleNamespace(partition=group.partition)
        leaving_out.begin_without(takeover, [missed])
        author.groups.refused(77, GIVE_IT_UP)
        assert author.agreement.is_released(copies)

    live(scenario)
