"""Copies that come back, situation by situation, as Ignite's notes on consistency tell of them.

Those notes speak of exchange, rebalance by history and in full, activation and restart.  What they
tell of the copies of one partition is a scenario, here or in another file of this folder:

=============================================== ====================================================
situation                                       scenario
=============================================== ====================================================
away, and nothing was updated in the partition  coming_back: a_copy_that_has_missed_nothing
away under load, and the log has the rest       coming_back: a_copy_gets_what_it_has_missed
no log has what was missed: cleared, and full   coming_back: a_copy_gets_all_there_is
a partition without any update                  a_partition_without_updates
a partition with nothing left in it             a_full_copy_of_nothing
part of what is missing is in no log any more   one_number_that_is_in_no_log
updates out of order, then a restart            a_restart_with_ranges
the same with what is pending                   a_restart_with_what_is_pending
equal LWM, other ranges                         equal_lwm_and_other_ranges
what is pending at the primary at that moment   what_is_pending_comes_with_the_admission
a gap that was closed while a copy was away     what_was_closed_meanwhile
HWM above that of the new primary               a_copy_that_has_seen_more_than_its_primary
a number that was given out twice               copy_counters: a_number_that_was_given_out_twice
several exchanges were missed                   a_copy_that_missed_several_takeovers
demand and supply, again and again              coming_back: history_in_many_pieces
live updates reach a copy that is moving        coming_back: a_full_copy_in_many_pieces
deletes while a copy is away, or moving         coming_back: what_was_deleted_while_a_copy_was_away
by history first, in full then                  broken_pins: a_pin_that_breaks
the supplier was copied in full itself          a_primary_that_was_copied_in_full
the supplier came back itself                   a_copy_that_came_back_passes_on
the supplier is not the primary                 lent_history
a moving copy owns nothing                      a_copy_on_its_way_back_is_no_primary
the supplier, or the demander, leaves           return_points
the primary changes while a copy moves          returns_at_once: a_planned_move
a crash while a copy is cleared                 return_points: checkpoint.*
what became of a commit that was missed         who_came_back_never_tells
a copy fails again and again                    a_copy_that_is_killed_again_and_again
all restart, each as stale as it is             activation
all restart, nobody stale                       copy_counters: a_whole_cluster_is_restarted
all restart, one too late                       copy_counters: a_whole_cluster_without_one_copy
all restart while a copy moves                  returns_at_once: all_restart
LWM and HWM, reservation, gaps, new primaries   copy_counters
a primary, or a backup, fails in a transaction  who_dies
=============================================== ====================================================

Elsewhere: members that are added or removed for good, lost partitions, transactions over several
partitions, stores in memory only.
"""

from __future__ import annotations

from itertools import permutations

import pytest
import trio

from support.copies import (
    CUT,
    LARGE,
    Begun,
    Group,
    admitted,
    age_logs,
    explained,
    kinds,
    live,
    small_pieces,
    supply_waits,
)
from tidelog.affinity.topology import PartitionCopies
from tidelog.engine.node.ways_back import LogHolder
from tidelog.engine.store.options import Options
from tidelog.rebalance.choosing import SupplyChoice, SupplyKind

NONE, HISTORY, FULL = SupplyKind.NONE, SupplyKind.HISTORICAL, SupplyKind.FULL


def choices(group: Group, name: str) -> list[SupplyChoice[LogHolder]]:
    return [one.choice for one in explained(group, name)]


def copies(group: Group) -> PartitionCopies:
    return group.at.topology().partitions[group.partition]


async def one_away(group: Group) -> str:
    """Let the last copy of the row be away when numbers 11 to 16 are given out; return it."""
    name = group.backups[-1]
    await group.put(range(10), b"before")
    await group.equal()
    await group.away(name)
    await group.put(range(6), b"meanwhile")
    return name


async def half_back(group: Group) -> tuple[str, trio.Event]:
    """Bring it back as far as it goes without a supply: it follows the stream above a gap.

    Returned is what lets the supply go on, too.
    """
    name, gate = await one_away(group), supply_waits(group)
    group.at.start([name])
    await admitted(group, name)
    await group.put(range(6, 8), b"later")
    await group.until(lambda: group.numbers(name) == (10, 18, ((16, 2),)))
    return name, gate


async def moved(group: Group, old: str, name: str) -> None:
    """Let another copy be the primary."""
    ended: list[Exception | None] = []
    group.at.member(old).move(group.partition, group.at.member_id(name).bytes, ended.append)
    await group.until(lambda: bool(ended))
    await group.at.settled(group.at.running())
    assert group.primary == name


async def values(group: Group, among: range = range(10)) -> list[bytes | None]:
    return [await group.value(i) for i in among]


LATER = [b"meanwhile"] * 6 + [b"later"] * 2 + [b"before"] * 2
"""What ``half_back`` leaves."""

# ---------------------------------------------------------------- what the log has


def test_a_partition_without_updates_is_back_with_nothing() -> None:
    async def scenario(group: Group) -> None:
        name = group.backups[-1]
        await group.away(name)
        await group.back(name)
        assert kinds(group, name) == [NONE]
        assert await group.equal() == (0, 0)

    live(scenario)


def test_a_full_copy_of_nothing_leaves_nothing() -> None:
    # All keys were deleted, and no log tells of it: the rows of the copy have to go.
    async def scenario(group: Group) -> None:
        name = group.backups[-1]
        await group.put(range(10), b"before")
        await group.equal()
        await group.away(name)
        await group.remove(range(10))
        group.partition = 1
        await group.until(lambda: group.primary != name)
        await group.at.settled(group.at.running())
        await age_logs(group)
        group.partition = 0
        await group.back(name)
        assert FULL in kinds(group, name)
        epoch = group.epoch
        await group.fall(*(one for one in group.at.names if one != name))
        group.at.start(one for one in group.at.names if one != name)
        await group.taken_over(epoch)
        assert await values(group) == [None] * 10

    live(scenario, options=CUT)


def test_one_number_that_is_in_no_log_makes_it_a_full_copy() -> None:
    async def scenario(group: Group) -> None:
        name = await one_away(group)
        await age_logs(group)
        await group.put(range(3), b"last")
        await group.back(name)
        first, *others = choices(group, name)
        assert first.kind is FULL
        assert first.reason.startswith("number 11 is missing, and no log reaches further back than")
        assert all(one.kind is not FULL for one in others)
        assert await values(group, range(4)) == [b"last"] * 3 + [LARGE + b"2"]

    live(scenario, options=CUT)


def test_a_primary_that_was_copied_in_full_copies_in_full_and_has_a_history_again() -> None:
    async def scenario(group: Group) -> None:
        old, (one, other) = group.primary, group.backups
        await group.put(range(10), b"before")
        await group.equal()
        await group.away(other)
        await age_logs(group, rounds=1)
        await group.at.kill(one)
        group.at.start([other])
        await group.until(lambda: one not in group.in_sync)
        await age_logs(group)
        await group.until(lambda: other in group.in_sync)
        epoch = group.epoch
        await group.fall(old)
        group.at.start([one])
        await group.taken_over(epoch)
        assert group.primary == other
        await group.put(0, b"last")
        await group.until(lambda: one in group.in_sync)
        assert FULL in kinds(group, one)
        await group.back(old)
        assert kinds(group, old) == [HISTORY]
        assert await values(group, range(2)) == [b"last", LARGE + b"2"]

    live(scenario, options=CUT)


@pytest.mark.parametrize("way", [HISTORY, FULL])
def test_a_copy_that_came_back_passes_on_what_it_can(way: SupplyKind) -> None:
    # Its log has what it was supplied by history, closed numbers among it.  Of a full copy it has
    # nothing, though it begins early enough: that shows only when it is searched.
    async def scenario(group: Group) -> None:
        old, (_, first, second) = group.primary, group.backups
        await group.put(range(25), b"before")
        await group.equal()
        for name in (first, second):
            await group.away(name)
        if way is FULL:
            await age_logs(group)
        await group.put(range(6), b"meanwhile")
        await group.remove(range(6, 9))
        group.at.start([first])
        await group.until(lambda: first in group.in_sync)
        await moved(group, old, first)
        await group.back(second)
        assert kinds(group, second)[: 1 + (way is FULL)] == [HISTORY, way][: 1 + (way is FULL)]
        if way is FULL:
            assert "no log reaches further back than" in choices(group, second)[1].reason
        last = LARGE + b"2" if way is FULL else b"before"
        assert await values(group) == [b"meanwhile"] * 6 + [None] * 3 + [last]

    live(scenario, nodes=5, backups=3, options=CUT if way is FULL else Options())


# ---------------------------------------------------------------- gaps, and what is pending


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("outcome", ["kept", "torn"])
def test_a_restart_with_ranges_above_a_gap_asks_for_the_gap_only(
    outcome: str, checkpoint: bool
) -> None:
    async def scenario(group: Group) -> None:
        name, gate = await half_back(group)
        if checkpoint:
            await group.at.checkpoint(name)
        await group.synced(name)
        await group.fall(name, outcome=outcome)
        await group.until(lambda: not copies(group).moving)
        await group.put(9, b"last")
        gate.set()
        await group.back(name)
        first, second = choices(group, name)
        assert (first.kind, first.missing) == (HISTORY, [(11, 16)])
        assert (second.kind, second.missing) == (HISTORY, [(11, 16), (19, 19)])
        assert (second.lwm, second.ranges) == (10, [(16, 2)])
        assert await values(group) == [*LATER[:9], b"last"]

    live(scenario)


async def pending(group: Group, *there: str) -> Begun:
    """Have two numbers given out that nobody knows the outcome of: a copy does not say it has
    them, if it does.
    """
    [other] = group.in_sync - {group.primary}
    kind, src, dst = ("stored", other, group.primary)
    if other not in there:
        kind, src, dst = ("replicate", group.primary, other)
    group.hold(kind, src, dst)
    begun = await group.begin(range(6, 8), b"pending")
    await group.pending_at(begun.tx_id, group.primary, *there)
    return begun


@pytest.mark.parametrize("known", [False, True])
def test_a_restart_with_what_is_pending_drops_it_and_gets_what_became_of_it(known: bool) -> None:
    async def scenario(group: Group) -> None:
        name = await one_away(group)
        [other], gate = group.in_sync - {group.primary}, supply_waits(group)
        group.at.start([name])
        await admitted(group, name)
        begun = await pending(group, other, name)
        await group.synced(name)
        await group.fall(name, outcome="kept")
        if known:
            group.release("stored", other, group.primary)
            await begun.answer()
        gate.set()
        group.at.start([name])
        await group.until(lambda: len(choices(group, name)) == 2)
        missing = [(11, 18)] if known else [(11, 16)]
        assert choices(group, name)[1].missing == missing
        group.at.holds.release_all()
        if not known:
            await begun.answer()
        await group.back()
        assert await values(group, range(5, 9)) == [b"meanwhile", b"pending", b"pending", b"before"]

    live(scenario)


def test_what_is_pending_comes_with_the_admission() -> None:
    async def scenario(group: Group) -> None:
        name = await one_away(group)
        begun = await pending(group, *(group.in_sync - {group.primary}))
        group.at.start([name])
        await group.pending_at(begun.tx_id, name)
        [first] = choices(group, name)
        assert first.missing == [(11, 16)]
        await group.until(lambda: group.numbers(name) == (16, 18, ()))
        await trio.sleep(1)
        assert name not in group.in_sync, "the other one has not said that it has all of that"
        group.at.holds.release_all()
        await begun.answer()
        await group.back()
        assert await values(group, range(5, 9)) == [b"meanwhile", b"pending", b"pending", b"before"]

    live(scenario)


def test_what_only_a_copy_on_its_way_back_has_is_cut_there() -> None:
    # No copy that counts has it, so its numbers are given out again.
    async def scenario(group: Group) -> None:
        name = await one_away(group)
        old, epoch = group.primary, group.epoch
        begun = await pending(group)
        group.at.start([name])
        await group.pending_at(begun.tx_id, name)
        await group.synced(name)
        await group.fall(old)
        group.at.holds.release_all()
        await group.taken_over(epoch)
        assert await group.outcome(begun.tx_id) == "rolled_back"
        await group.put(9, b"number 17 again")
        await group.back(old)
        assert not any(group.has_pending(one, begun.tx_id) for one in group.at.names)
        assert await values(group, range(5, 10)) == [
            b"meanwhile",
            *[b"before"] * 3,
            b"number 17 again",
        ]
        assert await group.equal() == (17, 17)

    live(scenario)


def test_copies_of_equal_lwm_and_other_ranges_get_what_each_lacks() -> None:
    async def scenario(group: Group) -> None:
        old, (one, *_, third, last) = group.primary, group.backups
        await group.put(range(10), b"before")
        await group.equal()
        for name in (third, last):
            await group.away(name)
        supply_waits(group)
        await group.put(range(6), b"meanwhile")
        for name, i in ((third, 6), (last, 7)):
            group.at.start([name])
            await admitted(group, name)
            await group.put(i, b"later")
        await group.until(lambda: group.numbers(third) == (10, 18, ((16, 2),)))
        await group.until(lambda: group.numbers(last) == (10, 18, ((17, 1),)))
        epoch = group.epoch
        await group.fall(old)
        await group.taken_over(epoch)
        assert group.primary == one
        await group.back(old)
        # Who comes back beside the other may have to be admitted once more, with nothing missing.
        assert [one.missing for one in choices(group, third) if one.missing] == [[(11, 16)]]
        assert [one.missing for one in choices(group, last) if one.missing] == [[(11, 17)]]
        assert await values(group) == LATER

    live(scenario, nodes=5, backups=3)


def test_what_was_closed_meanwhile_is_told_as_closed() -> None:
    # The highest numbers there are were closed: what waits for their updates waits for ever.
    async def scenario(group: Group) -> None:
        old, (one, other, name) = group.primary, group.backups
        await group.put(range(10), b"before")
        await group.equal()
        await group.away(name)
        await group.put(0, b"meanwhile")
        group.hold("replicate", old, one)
        some = await group.begin(range(3), b"numbers 12 to 14")
        await group.pending_at(some.tx_id, old, other)
        epoch = group.epoch
        await group.fall(old)
        group.at.holds.release_all()
        await group.taken_over(epoch)
        await group.back(name, old)
        assert [one.missing for one in choices(group, name)] == [[(11, 14)]]
        assert await group.equal() == (14, 14)
        assert await values(group) == [b"meanwhile", *[b"before"] * 9]

    live(scenario, nodes=5, backups=3)


# ---------------------------------------------------------------- other primaries


@pytest.mark.parametrize("way", [HISTORY, FULL])
def test_who_came_back_never_tells_that_a_commit_it_missed_was_refused(way: SupplyKind) -> None:
    # What is copied in full is in no record of its log: that nothing is found there means nothing.
    async def scenario(group: Group) -> None:
        name, old = group.backups[-1], group.primary
        await group.equal()
        await group.away(name)
        committed = [await group.put(i, b"meanwhile") for i in range(3)]
        if way is FULL:
            await age_logs(group)
        await group.back(name)
        assert kinds(group, name)[0] is way
        await moved(group, old, name)
        told = {await group.outcome(tx_id) for tx_id in committed}
        assert told == {"committed" if way is HISTORY else "too_old"}

    live(scenario, options=CUT if way is FULL else Options())


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_copy_that_has_seen_more_than_its_primary_forgets_it(checkpoint: bool) -> None:
    # HWM of the old primary is above that of the new one, which has given out nothing since.
    async def scenario(group: Group) -> None:
        old, epoch = group.primary, group.epoch
        await group.put(range(10), b"before")
        await group.equal()
        for name in group.backups:
            group.hold("replicate", old, name)
        begun = await group.begin(range(3), b"nobody else has it")
        await group.pending_at(begun.tx_id, old)
        if checkpoint:
            await group.at.checkpoint(old)
        await group.synced(old)
        await group.fall(old)
        group.at.holds.release_all()
        await group.taken_over(epoch)
        await group.back(old)
        assert kinds(group, old) == [NONE]
        assert await group.equal() == (10, 10)
        assert not group.has_pending(old, begun.tx_id)
        assert await group.outcome(begun.tx_id) == "rolled_back"
        await group.put(0, b"after")
        assert await group.equal() == (11, 11)

    live(scenario)


def test_a_copy_that_missed_several_takeovers_learns_their_epochs() -> None:
    async def scenario(group: Group) -> None:
        name = group.backups[-1]
        await group.put(range(10), b"before")
        await group.equal()
        await group.away(name)
        for turn in range(2):
            old, epoch = group.primary, group.epoch
            await group.put(turn, b"in epoch %d" % epoch)
            await group.fall(old)
            await group.taken_over(epoch)
            await group.put(turn + 2, b"in epoch %d" % group.epoch)
            group.at.start([old])
            await group.until(lambda old=old: old in group.in_sync)  # type: ignore[misc]
        await group.back(name)
        assert kinds(group, name) == [HISTORY]
        assert group.table(name) == group.table(group.primary)
        assert len(group.table(name)) == 3
        assert await values(group, range(5)) == [
            b"in epoch 1", b"in epoch 2", b"in epoch 2", b"in epoch 3", b"before",
        ]  # fmt: skip

    live(scenario, nodes=5, backups=3)


def test_a_copy_on_its_way_back_is_no_primary() -> None:
    # The only one that counts is lost: nobody serves what is older, however long that takes.
    async def scenario(group: Group) -> None:
        old, (one, other) = group.primary, group.backups
        await group.put(range(10), b"before")
        await group.equal()
        await group.away(one)
        await group.away(other)
        await group.put(range(6), b"meanwhile")
        supply_waits(group)
        group.at.start([other])
        await admitted(group, other)
        await group.put(range(6, 8), b"later")
        await group.until(lambda: group.numbers(other)[1] == 18)
        epoch = group.epoch
        await group.fall(old)
        group.at.start([one])
        await trio.sleep(15)
        assert (group.epoch, group.in_sync) == (epoch, {old})
        for name in (one, other):
            assert not group.at.member(name).partitions.is_open(group.partition)
        await group.back(old)
        assert await values(group) == LATER

    live(scenario, nodes=5)


# ---------------------------------------------------------------- restarts


@pytest.mark.parametrize("seed", [1, 2])
def test_a_copy_that_is_killed_again_and_again_is_not_sent_anything_twice(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_pieces(monkeypatch)

    async def scenario(group: Group) -> None:
        name = group.backups[-1]
        await group.put(range(10), b"before")
        await group.equal()
        await group.away(name)
        for i in range(24):
            await group.put(i % 12, b"%d" % i)
        lwm = 10
        for _ in range(4):
            group.at.start([name])
            await group.until(lambda: name in group.at.running())
            await group.until(lambda lwm=lwm: group.numbers(name)[0] > lwm)  # type: ignore[misc]
            await group.synced(name)
            lwm = group.numbers(name)[0]
            await group.fall(name, outcome="lost")
        await group.back(name)
        missing = [len(one.missing) and one.missing[0][0] for one in choices(group, name)]
        assert missing == sorted(set(missing))
        assert len(missing) == 5
        assert await values(group) == [b"%d" % i for i in range(12, 22)]

    live(scenario, seed=seed)


ORDERS = list(permutations(("fresh", "stale", "old")))


@pytest.mark.parametrize("order", ORDERS, ids=["-".join(order) for order in ORDERS])
def test_activation_of_members_each_as_stale_as_it_is(order: tuple[str, ...]) -> None:
    # One missed nothing, one some writes, and one so much that no log has it any more.
    async def scenario(group: Group) -> None:
        at, old, stale = group.at, group.backups[0], group.backups[1]
        who = {"fresh": group.primary, "stale": stale, "old": old}
        await group.put(range(30), b"before")
        await group.equal()
        await group.away(old)
        await age_logs(group)
        await group.equal()
        group.hold("report", old, who["fresh"])
        at.start([old])
        await at.settled()
        await group.away(stale)
        await group.put(range(5), b"missed by both")
        assert group.in_sync == {who["fresh"]}
        await group.fall(old, who["fresh"])
        at.holds.release_all()
        for what in order:
            at.start([who[what]])
            await trio.sleep(4)
            if who["fresh"] not in at.running():
                assert not any(one.partitions.is_open(0) for one in at.running().values())
        await group.back()
        assert kinds(group, stale) == [HISTORY]
        assert kinds(group, old)[0] is FULL
        found = [await group.value(i) for i in (0, 4, 5, 25)]
        assert found == [b"missed by both", b"missed by both", LARGE + b"2", b"before"]

    live(scenario, options=CUT)
