"""Partitions of which every copy that counts is lost: nothing is papered over (S6).

A *lost* partition is not served until somebody decides how it goes on: from an older copy, or with
nothing.  Until its members are declared lost it is only unavailable, and opens when one comes.
"""

from __future__ import annotations

import json
from collections import Counter
from copy import copy
from dataclasses import replace
from typing import Any

import pytest
import trio

from support.copies import Group, live
from support.losing import ask, lose
from support.raw_client import FailureError
from tidelog.affinity.topology import Loss
from tidelog.engine.agreement.timing import Timing
from tidelog.engine.node import losing
from tidelog.engine.node.aside import Aside
from tidelog.errors import DiskFullError
from tidelog.testing import SimCluster

QUICK = Timing(join_wait=1.0, swap_pause=0.2)
RESTART_WAIT = 20.0
PARTITIONS_TO_LOSE = 40


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
        assert (loss.author.member, loss.upto) == (at.member_id(stale), 4)
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
        assert losses(at)[0].upto == 0

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


async def two_stale_copies(group: Group) -> tuple[str, str]:
    """Let one copy miss what the other one has, and that what the last one has, which is lost.

    The older one of them runs; the partition is lost, but for the decision how it goes on.
    """
    at = group.at
    older = await stale_copy(group)
    newer = group.backups[0]
    await at.kill(newer)
    await group.until(lambda: newer not in group.in_sync)
    await group.put(0, b"newest")
    [last] = group.in_sync
    await group.fall(last)
    at.may_end.add(last)
    at.start([older])
    await lose(group, [last])
    return older, newer


def kept_aside(group: Group, name: str) -> list[dict[str, Any]]:
    """Return the lines of all files that a member keeps aside."""
    disk = group.at.nodes[name].disk
    paths = [path for path in disk.paths() if "/aside/" in path]
    lines = [line for path in sorted(paths) for line in disk.read_bytes(path).splitlines()]
    return [json.loads(line) for line in lines]


def shown_values(lines: list[dict[str, Any]]) -> list[str]:
    return sorted(line["value"]["s"] for line in lines if line["type"] == "pair")


def test_a_newer_copy_that_comes_behind_a_reset_is_kept_aside_and_then_copied_over() -> None:
    async def scenario(group: Group) -> None:
        at = group.at
        older, newer = await two_stale_copies(group)
        await ask(group, older, "reset", group.partition, False)
        await at.settled(at.running())
        await group.put(3, b"since")
        at.start([newer])
        await at.settled(at.running())
        await at.whole()
        await group.equal()
        assert [await group.value(i) for i in range(4)] == [b"old"] * 3 + [b"since"]
        lines = kept_aside(group, newer)
        assert [line["type"] for line in lines].count("map") == 1
        assert shown_values(lines) == ["new", "new", "old", "old"]
        assert kept_aside(group, older) == []

    live(scenario, nodes=5, timing=QUICK)


def test_what_is_here_when_a_partition_begins_with_nothing_is_kept_aside() -> None:
    async def scenario(group: Group) -> None:
        stale = await lost_but_for_a_stale_copy(group)
        await ask(group, stale, "reset", group.partition, True)
        await group.at.settled(group.at.running())
        assert await group.value(0) is None
        assert shown_values(kept_aside(group, stale)) == ["old"] * 4

    live(scenario, nodes=5, timing=QUICK)


def test_a_copy_that_a_full_disk_keeps_from_being_kept_is_not_cleared() -> None:
    async def scenario(group: Group) -> None:
        at = group.at
        older, newer = await two_stale_copies(group)
        await ask(group, older, "reset", group.partition, False)
        await at.settled(at.running())
        genuine, failed = Aside._write, []

        def full(*_about: object) -> int:
            failed.append(1)
            raise DiskFullError("no space")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Aside, "_write", full)
            at.start([newer])
            await group.until(lambda: len(failed) > 1)
            state = at.member(newer).log.state
            assert state.copies.is_whole(group.partition)
            assert state.counters[group.partition].lwm
        assert Aside._write is genuine
        await at.whole()
        await group.equal()
        assert shown_values(kept_aside(group, newer)) == ["new", "new", "old", "old"]

    live(scenario, nodes=5, timing=QUICK)


def test_losses_that_are_ignored_go_on_from_the_best_copy_by_themselves() -> None:
    """Both copies that are left are there: the newer one is taken, and nobody asks for it."""

    async def scenario(group: Group) -> None:
        at = group.at
        await ask(group, group.primary, "policy", "ignore")
        _, newer = await two_stale_copies(group)
        at.start([newer])
        await group.until(lambda: bool(losses(at)))
        await at.settled(at.running())
        await at.whole()
        assert [await group.value(i) for i in range(4)] == [b"new"] * 2 + [b"old"] * 2
        [loss] = losses(at)
        assert loss.author.member == at.member_id(newer)
        await group.equal()

    live(scenario, nodes=5, timing=QUICK)


def test_the_best_copy_is_taken_where_losses_are_ignored_long_after_they_were() -> None:
    """Whoever leads is the first to ask then, and has nothing of the partition."""

    async def scenario(group: Group) -> None:
        at = group.at
        older, newer = await two_stale_copies(group)
        at.start([newer])
        await group.until(lambda: at.member_id(newer) in at.topology().members_present)
        await trio.sleep(2 * QUICK.restart_wait)
        assert at.coordinator() not in (older, newer)
        await ask(group, older, "policy", "ignore")
        await group.until(lambda: bool(losses(at)))
        assert losses(at)[0].author.member == at.member_id(newer)
        await at.settled(at.running())
        assert [await group.value(i) for i in range(4)] == [b"new"] * 2 + [b"old"] * 2

    live(scenario, nodes=5, timing=QUICK)


def test_the_best_copy_is_taken_of_partitions_that_have_to_wait_for_their_turn() -> None:
    """Behind the first of them it was lost for so long that nobody was waited for any more."""

    async def scenario(group: Group) -> None:
        at = group.at
        leads = at.coordinator()
        together = Counter(
            tuple(sorted(map(group.name, copies.in_sync)))
            for copies in at.topology().partitions
            if leads not in [group.name(copy) for copy in copies.in_sync]
        )
        [((gone, stale), _)] = together.most_common(1)
        away = next(name for name in at.names if name not in (gone, stale, leads))
        await ask(group, group.primary, "policy", "ignore")
        await at.kill(stale)
        await group.until(lambda: at.member_id(stale) not in at.topology().members_present)
        await at.settled(at.running())
        for name in at.running():
            at.hold("admit", src=name, dst=stale)
        at.start([stale])
        await group.until(lambda: at.member_id(stale) in at.topology().members_present)
        await group.fall(gone, away)
        at.may_end.add(gone)
        await lose(group, [gone])
        assert len(at.topology().lost) > 2
        with trio.fail_after(300):
            while at.topology().lost:
                await trio.sleep(1)
        whole = {at.member_id(name) for name in (gone, stale)}
        assert {loss.author.member for loss in losses(at)} <= whole

    async def written(group: Group) -> None:
        counted = copy(group)
        for counted.partition in range(PARTITIONS_TO_LOSE):
            await counted.put(0, b"old")
        await group.at.quiesce()
        await scenario(group)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(losing, "AT_ONCE_MAX", 2)
        live(written, nodes=5, partitions=PARTITIONS_TO_LOSE, backups=1)


def test_losses_that_are_ignored_begin_with_nothing_where_no_copy_is_left() -> None:
    async def scenario(group: Group) -> None:
        at = group.at
        await ask(group, group.primary, "policy", "ignore")
        await group.put(0, b"gone")
        gone = group.primary
        await group.fall(gone)
        at.may_end.add(gone)
        await lose(group, [gone])
        await group.until(lambda: bool(losses(at)))
        await at.settled(at.running())
        assert await group.value(0) is None
        assert losses(at)[0].upto == 0

    live(scenario, nodes=3, backups=0, timing=QUICK)


def test_who_is_away_is_waited_for_before_a_loss_is_ignored() -> None:
    async def scenario(group: Group) -> None:
        at = group.at
        await ask(group, group.primary, "policy", "ignore")
        _, newer = await two_stale_copies(group)
        await trio.sleep(RESTART_WAIT / 2)
        assert not losses(at)
        at.start([newer])
        await group.until(lambda: bool(losses(at)))
        assert losses(at)[0].author.member == at.member_id(newer)

    live(scenario, nodes=5, timing=replace(QUICK, restart_wait=RESTART_WAIT))


def test_who_is_away_for_long_is_not_waited_for_when_losses_are_ignored() -> None:
    async def scenario(group: Group) -> None:
        at = group.at
        await ask(group, group.primary, "policy", "ignore")
        older, newer = await two_stale_copies(group)
        await group.until(lambda: bool(losses(at)))
        assert losses(at)[0].author.member == at.member_id(older)
        at.start([newer])
        await at.settled(at.running())
        await at.whole()
        await group.equal()
        assert shown_values(kept_aside(group, newer)) == ["new", "new", "old", "old"]

    live(scenario, nodes=5, timing=replace(QUICK, restart_wait=2.0))


def test_nothing_is_written_to_a_space_with_losses_if_that_is_the_policy() -> None:
    async def scenario(group: Group) -> None:
        at = group.at
        stale = await lost_but_for_a_stale_copy(group)
        other = copy(group)
        other.partition = 1 - group.partition
        await at.settled(name for name in at.running() if name != stale)
        await group.until(lambda: other.partition not in at.topology().orphaned)
        await ask(group, stale, "policy", "read-only-safe")
        refused = await other.begin(0, b"more")
        with pytest.raises(FailureError, match="others of its space are lost: 0"):
            await refused.answer()
        assert await other.value(0) is None
        await ask(group, stale, "policy", "read-write-safe")
        await other.put(0, b"more")
        await ask(group, stale, "policy", "read-only-safe")
        await ask(group, stale, "reset", group.partition, False)
        await at.settled(at.running())
        await other.put(0, b"again")
        await group.put(0, b"again")

    live(scenario, nodes=5, timing=QUICK)


def test_a_policy_is_one_of_three() -> None:
    async def scenario(group: Group) -> None:
        with pytest.raises(FailureError, match="the policy 'guess'"):
            await ask(group, group.primary, "policy", "guess")
        told = await ask(group, group.primary, "losses")
        assert isinstance(told, dict)
        assert told["policy"] == "read-write-safe"

    live(scenario, nodes=3)


def test_behind_a_reset_clients_hear_of_another_history() -> None:
    async def scenario(group: Group) -> None:
        async def history() -> object:
            told = await ask(group, sorted(group.at.running())[0], "losses")
            assert isinstance(told, dict)
            return told["history"]

        before = await history()
        stale = await lost_but_for_a_stale_copy(group)
        assert await history() == before
        await ask(group, stale, "reset", group.partition, False)
        await group.at.settled(group.at.running())
        behind = await history()
        assert behind != before
        welcomed = await group.client(stale)
        assert welcomed.history == behind
        running = sorted(group.at.running())
        await group.fall(*running)
        group.at.start(running)
        await group.at.settled(running)
        assert await history() == behind

    live(scenario, nodes=5, timing=QUICK)
