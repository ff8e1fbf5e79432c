"""Partitions of which every copy that counts is lost: nothing is papered over (S6).

A *lost* partition is not served until somebody decides how it goes on: from an older copy, or with
nothing.  Until its members are declared lost it is only unavailable, and opens when one comes.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import trio

from support.copies import Group, live
from support.raw_client import FailureError
from tidelog.affinity.topology import Loss
from tidelog.engine.agreement.timing import Timing
from tidelog.testing import SimCluster

QUICK = Timing(join_wait=1.0, swap_pause=0.2)


async def ask(group: Group, name: str, operation: str, *arguments: object) -> object:
    client = await group.client(name)
    try:
        with trio.fail_after(30):
            return await client.ask(operation, *arguments)
    finally:
        client.close()


async def lose(group: Group, names: Iterable[str]) -> None:
    """Declare members lost that have gone."""
    at = group.at
    for name in names:
        await group.until(lambda name=name: at.member_id(name) not in at.topology().members_present)  # type: ignore[misc]
        other = next(one for one in at.running() if one != name)
        await ask(group, other, "lose", at.member_id(name).bytes)


async def stale_copy(group: Group) -> str:
    """Let one copy miss what the others acknowledge, and end; return its name."""
    await group.at.whole()
    stale = group.backups[-1]
    await group.put(range(4), b"old")
    await group.equal()
    await group.at.kill(stale)
    await group.until(lambda: stale not in group.in_sync)
    await group.put(range(2), b"new")
    return stale


async def lost_but_for_a_stale_copy(group: Group) -> str:
    """Lose all copies that count of five members' partition with three; the stale one is back."""
    stale = await stale_copy(group)
    counted = sorted(group.in_sync)
    await group.fall(*counted)
    group.at.may_end.update(counted)
    group.at.start([stale])
    await lose(group, counted)
    return stale


def losses(at: SimCluster) -> tuple[Loss, ...]:
    return at.topology().losses


def test_what_is_lost_is_not_served_and_says_so() -> None:
    async def scenario(group: Group) -> None:
        stale = await lost_but_for_a_stale_copy(group)
        await group.until(lambda: group.partition in group.at.topology().lost)
        await trio.sleep(15)
        with pytest.raises(FailureError, match="is lost: the disks of all who had it are gone"):
            await ask(group, stale, "get", group.number, [group.at.key(group.partition, 0)])
        assert not losses(group.at)

    live(scenario, nodes=5)


def test_a_lost_partition_goes_on_from_an_older_copy() -> None:
    async def scenario(group: Group) -> None:
        at = group.at
        stale = await lost_but_for_a_stale_copy(group)
        before = group.epoch
        await ask(group, stale, "reset", group.partition, False)
        await at.settled(at.running())
        await at.whole()
        await at.settled(at.running())
        assert [await group.value(i) for i in range(4)] == [b"old"] * 4
        await group.put(0, b"newer")
        await group.equal()
        [loss] = losses(at)
        assert (loss.partition, loss.before, loss.epoch) == (group.partition, before, before + 1)
        assert (loss.author.member, loss.lwm) == (at.member_id(stale), 4)
        assert len(group.in_sync) == 3
        told = await ask(group, stale, "losses")
        assert isinstance(told, dict)
        assert [row[1] for row in told["losses"]] == [group.partition]
        assert group.partition not in told["lost"]

    live(scenario, nodes=5, timing=QUICK)


@pytest.mark.parametrize("who", ["stale", "stranger"])
def test_a_lost_partition_begins_with_nothing(who: str) -> None:
    """What the one that is asked has of it does not come back, behind a restart either."""

    async def scenario(group: Group) -> None:
        at = group.at
        stale = await lost_but_for_a_stale_copy(group)
        others = [name for name in at.running() if name != stale]
        name = stale if who == "stale" else others[0]
        await ask(group, name, "reset", group.partition, True)
        await at.settled(at.running())
        await at.whole()
        await at.settled(at.running())
        assert [await group.value(i) for i in range(4)] == [None] * 4
        await group.put(0, b"first")
        await group.equal()
        running = sorted(at.running())
        await group.fall(*running)
        at.start(running)
        await at.settled(running)
        assert [await group.value(i) for i in range(4)] == [b"first", None, None, None]
        assert losses(at)[0].lwm == 0

    live(scenario, nodes=5, timing=QUICK)


@pytest.mark.parametrize(
    "point",
    [
        "takeover.after_seal",
        "takeover.after_list_logged",
        "checkpoint.between_pieces",
        "checkpoint.after_mark",
    ],
)
def test_who_dies_while_it_empties_a_partition_empties_it_in_the_end(point: str) -> None:
    async def scenario(group: Group) -> None:
        at = group.at
        stale = await lost_but_for_a_stale_copy(group)
        await at.kill(stale, at=point)
        with trio.move_on_after(5):
            client = await group.client(stale)
            await client.begin("reset", group.partition, True)
            await at.killed(stale)
        assert not at.nodes[stale].running
        await trio.sleep(3)
        at.start([stale])
        if not losses(at):
            await trio.sleep(3)
            await ask(group, stale, "reset", group.partition, True)
        await at.settled(at.running())
        await at.whole()
        await at.settled(at.running())
        assert [await group.value(i) for i in range(4)] == [None] * 4

    live(scenario, nodes=5, timing=QUICK)


def test_a_disk_that_was_declared_lost_is_kept_aside() -> None:
    """It is refused when it comes all the same, and what it has is not touched."""

    async def scenario(group: Group) -> None:
        at = group.at
        counted_before = group.in_sync
        stale = await lost_but_for_a_stale_copy(group)
        back = sorted(counted_before - {stale})[0]
        await ask(group, stale, "reset", group.partition, False)
        await at.settled(at.running())
        at.start([back])
        await at.killed(back)
        assert "was declared lost" in str(at.ends[back])
        assert [await group.value(i) for i in range(2)] == [b"old"] * 2

    live(scenario, nodes=5)


def test_what_only_may_be_lost_cannot_be_reset_and_opens_when_a_copy_comes() -> None:
    async def scenario(group: Group) -> None:
        at = group.at
        stale = await stale_copy(group)
        counted = sorted(group.in_sync)
        await group.fall(*counted)
        at.start([stale])
        await lose(group, counted[:1])
        with pytest.raises(FailureError, match="is not lost"):
            await ask(group, stale, "reset", group.partition, False)
        epoch = group.epoch
        at.start(counted[1:])
        await group.taken_over(epoch)
        assert [await group.value(i) for i in range(4)] == [b"new"] * 2 + [b"old"] * 2

    live(scenario, nodes=5)


def test_nobody_who_is_there_is_lost_and_nobody_without_a_copy_goes_on_from_it() -> None:
    async def scenario(group: Group) -> None:
        at = group.at
        with pytest.raises(FailureError, match="is there: its disk is not lost"):
            await ask(group, "n1", "lose", at.member_id("n2").bytes)
        stale = await lost_but_for_a_stale_copy(group)
        stranger = next(name for name in at.running() if name != stale)
        with pytest.raises(FailureError, match="no copy of partition 0 at this member"):
            await ask(group, stranger, "reset", group.partition, False)

    live(scenario, nodes=5)
