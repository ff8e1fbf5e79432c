"""Update numbers of copies: gaps, restarts and new primaries, situation by situation.

Ignite's notes on counters in partitions with copies tell how a copy loses updates without anybody
noticing: gaps that nobody closes, or that each copy closes by itself; equal counters with unequal
content; a new primary that gives numbers out twice.  Each of these is a scenario here.
"""

from __future__ import annotations

import pytest
import trio

from support.copies import Group, live
from tidelog import codecs

# ---------------------------------------------------------------- LWM and HWM


def test_hwm_rises_with_a_prepare_at_every_copy_and_lwm_with_the_commit() -> None:
    async def scenario(group: Group) -> None:
        old, (one, other) = group.primary, group.backups
        group.hold("stored", other, old)
        put = await group.begin(range(3), b"three keys, numbers 1 to 3")
        await group.pending_at(put.tx_id, old, one, other)
        assert {group.numbers(name) for name in group.at.names} == {(0, 3, ())}
        group.release("stored", other, old)
        await put.answer()
        assert group.numbers(old) == (3, 3, ()), "applied where it was acknowledged"
        assert await group.equal() == (3, 3)

    live(scenario)


def test_a_later_transaction_does_not_commit_before_an_earlier_one() -> None:
    # Updates may not be applied out of order at a copy: its stream keeps the order of numbers.
    async def scenario(group: Group) -> None:
        old, (one, other) = group.primary, group.backups
        group.hold("stored", other, old)
        first = await group.begin(range(3), b"first")
        await group.pending_at(first.tx_id, old, one, other)
        second = await group.begin(range(3, 5), b"second")
        await group.pending_at(second.tx_id, old, one, other)
        assert not await second.is_answered(0.5)
        assert {group.numbers(name) for name in group.at.names} == {(0, 5, ())}
        group.release("stored", other, old)
        await first.answer()
        await second.answer()
        assert await group.equal() == (5, 5)

    live(scenario)


def test_lwm_of_an_in_sync_copy_never_falls_and_hwm_is_never_below_it() -> None:
    async def scenario(group: Group) -> None:
        lowest = dict.fromkeys(group.at.names, 0)

        async def look() -> None:
            while True:
                for name, member in group.at.running().items():
                    lwm, hwm, _ = group.numbers(name)
                    listed = group.at.topology().partitions[group.partition].in_sync
                    if member.agreement.me in listed:
                        assert hwm >= lwm >= lowest[name], name
                        lowest[name] = lwm
                await trio.sleep(0.002)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(look)
            for i in range(5):
                await group.put(i, b"before")
            old = group.primary
            group.hold("replicate", old, group.backups[0])
            await group.begin(5, b"lost")
            await group.fall(old)
            await group.taken_over(1)
            for i in range(5):
                await group.put(i, b"after")
            await group.equal()
            await trio.sleep(0.01)  # until that was looked at
            nursery.cancel_scope.cancel()
        assert min(lowest[name] for name in group.in_sync) >= 10

    live(scenario)


# ---------------------------------------------------------------- gaps


def test_numbers_of_several_keys_that_some_copies_have_are_closed_as_one() -> None:
    # A transaction prepared at one backup only: both end at the same numbers, with nothing in them.
    async def scenario(group: Group) -> None:
        await group.put(range(2), b"before")
        old, (one, other) = group.primary, group.backups
        group.hold("replicate", old, one)
        some = await group.begin(range(3), b"numbers 3 to 5")
        await group.pending_at(some.tx_id, old, other)
        await group.fall(old)
        await group.taken_over(1)
        assert await group.equal() == (5, 5)
        assert [await group.value(i) for i in range(3)] == [b"before", b"before", None]
        await group.put(0, b"after")
        assert await group.equal() == (6, 6)

    live(scenario)


def test_no_copy_closes_a_gap_before_the_list_of_the_author_is_open() -> None:
    # On the exit of a node each copy for itself must not finalize its counter (N5).
    async def scenario(group: Group) -> None:
        old, (one, other) = group.primary, group.backups
        group.hold("replicate", old, one)
        some = await group.begin(0, b"some")
        await group.pending_at(some.tx_id, old, other)
        group.hold("settle-stored", other, one)
        await group.fall(old)
        await group.until(lambda: group.has_list(other))
        await trio.sleep(1)
        assert group.numbers(other) == (0, 1, ())
        assert group.has_pending(other, some.tx_id)
        group.release("settle-stored", other, one)
        await group.taken_over(1)
        assert await group.equal() == (1, 1)

    live(scenario)


def test_several_gaps_of_a_dead_primary_are_settled_each_by_what_copies_have() -> None:
    # One that all have, then one that some have, then one that nobody else has.
    async def scenario(group: Group) -> None:
        old, (one, other) = group.primary, group.backups
        for name in (one, other):
            group.hold("stored", name, old)
        every = await group.begin(range(2), b"all")
        await group.pending_at(every.tx_id, old, one, other)
        group.hold("replicate", old, one)
        some = await group.begin(range(2, 5), b"some")
        await group.pending_at(some.tx_id, old, other)
        group.hold("replicate", old, other)
        lost = await group.begin(range(5, 7), b"lost")
        await group.pending_at(lost.tx_id, old)
        await group.fall(old)
        await group.taken_over(1)
        told = [await group.outcome(one.tx_id) for one in (every, some, lost)]
        assert told == ["committed", "rolled_back", "rolled_back"]
        values = [await group.value(i) for i in range(7)]
        assert values == [b"all", b"all", None, None, None, None, None]
        assert await group.equal() == (5, 5)
        await group.put(6, b"after")
        assert await group.equal() == (6, 6), "numbers 6 and 7 are given out again"

    live(scenario)


# ---------------------------------------------------------------- a new primary


def test_a_new_primary_gives_out_numbers_behind_all_that_any_copy_has_seen() -> None:
    # Its HWM is not its own LWM: another copy has seen more than it.
    async def scenario(group: Group) -> None:
        old, (one, other) = group.primary, group.backups
        group.hold("replicate", old, one)
        some = await group.begin(range(4), b"some")
        await group.pending_at(some.tx_id, old, other)
        assert group.numbers(one) == (0, 0, ())
        await group.fall(old)
        await group.taken_over(1)
        assert group.primary == one
        await group.put(0, b"after")
        assert await group.equal() == (5, 5)
        assert group.table(one) == ((1, 1), (2, 5))

    live(scenario)


def test_a_number_that_was_given_out_twice_belongs_to_the_newer_epoch() -> None:
    # Equal LWM means equal content within one epoch table only (N3): what the old one has of the
    # number that was given out again is cut when it comes back (B2).
    async def scenario(group: Group) -> None:
        await group.put(0, b"before")
        old, backups = group.primary, group.backups
        for name in backups:
            group.hold("replicate", old, name)
        lost = await group.begin(1, b"of the old one")
        await group.pending_at(lost.tx_id, old)
        await group.synced(old)
        await group.fall(old)
        await group.taken_over(1)
        await group.put(1, b"of the new one")
        assert await group.equal() == (2, 2)
        for name in backups:
            group.hold("report", old, name)
        group.at.start([old])
        await group.at.settled()
        assert group.at.counters(old, group.partition)[1] == 2, "as far as the others"
        assert group.table(old) != group.table(backups[0])
        assert old not in group.in_sync
        group.at.holds.release_all()
        await group.at.whole()
        assert await group.equal() == (2, 2)
        assert group.table(old) == group.table(backups[0])
        assert await group.value(1) == b"of the new one"
        assert await group.outcome(lost.tx_id) == "rolled_back"

    live(scenario)


def test_a_primary_that_moves_by_plan_loses_nothing_and_stays_a_copy() -> None:
    async def scenario(group: Group) -> None:
        await group.put(0, b"before")
        old = group.primary
        group.at.member(old).council.release([group.partition])
        await group.taken_over(1)
        assert group.primary != old
        assert group.in_sync == set(group.at.names)
        await group.put(1, b"after")
        assert [await group.value(i) for i in (0, 1)] == [b"before", b"after"]
        assert await group.equal() == (2, 2)

    live(scenario)


# ---------------------------------------------------------------- restarts


def test_a_copy_that_missed_updates_is_not_taken_for_an_equal_one() -> None:
    # It was away, and its primary was lost before it could catch up: nobody serves old values.
    async def scenario(group: Group) -> None:
        old, (one, other) = group.primary, group.backups
        await group.put(0, b"before")
        await group.fall(one)
        await group.put(0, b"missed")
        for primary in (old, other):
            group.hold("admit", primary, one)
        group.at.start([one])
        await group.at.settled()
        assert group.in_sync == {old, other}
        await group.fall(old)
        await group.until(lambda: group.primary == other)
        await group.at.settled([one, other])
        assert await group.value(0) == b"missed"
        assert group.in_sync == {other}
        assert group.numbers(one)[0] < group.numbers(other)[0]

    live(scenario)


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("outcome", ["kept", "lost", "torn", "reordered"])
def test_what_is_pending_survives_a_restart_of_all_copies(outcome: str, checkpoint: bool) -> None:
    # Recovery from the log, or from a checkpoint in between, keeps the gap until it is settled.
    async def scenario(group: Group) -> None:
        await group.put(0, b"before")
        old, backups = group.primary, group.backups
        for name in backups:
            group.hold("stored", name, old)
        put = await group.begin(range(1, 3), b"pending")
        await group.pending_at(put.tx_id, *group.at.names)
        await group.synced(*group.at.names)
        if checkpoint:
            for name in group.at.names:
                await group.at.checkpoint(name)
        await group.fall(*group.at.names, outcome=outcome)
        group.at.holds.release_all()
        group.at.start()
        await group.taken_over(1)
        assert await group.outcome(put.tx_id) == "committed"
        assert [await group.value(i) for i in range(3)] == [b"before", b"pending", b"pending"]
        assert await group.equal() == (3, 3)

    live(scenario)


@pytest.mark.parametrize("first", [0, 1, 2])
def test_a_whole_cluster_is_restarted_one_after_the_other(first: int) -> None:
    # Who is back waits for the whole last set, whoever comes first (S2).
    async def scenario(group: Group) -> None:
        at = group.at
        await group.put(0, b"before")
        await group.equal()
        await group.fall(*at.names)
        order = at.names[first:] + at.names[:first]
        for name in order[:2]:
            at.start([name])
            await trio.sleep(1)
        assert not any(
            member.partitions.is_open(group.partition) for member in at.running().values()
        )
        at.start(order[2:])
        await group.taken_over(1)
        assert group.in_sync == set(at.names)
        assert await group.value(0) == b"before"
        await group.put(0, b"after")
        assert await group.equal() == (2, 2)
        assert group.in_sync == set(at.names), "who is back stays"

    live(scenario)


def test_a_whole_cluster_without_one_copy_opens_when_that_was_waited_for() -> None:
    # S2, S3: each of the last set has every acknowledged write; the late one is stale then.
    async def scenario(group: Group) -> None:
        at = group.at
        await group.put(0, b"before")
        old = group.primary
        await group.fall(*at.names)
        at.start(name for name in at.names if name != old)
        await group.taken_over(1)
        assert old not in group.in_sync
        assert await group.value(0) == b"before"
        await group.put(0, b"after")
        at.start([old])
        await at.settled()
        assert old not in group.in_sync
        assert await group.value(0) == b"after"
        assert await group.equal() == (2, 2)

    live(scenario)


@pytest.mark.parametrize("outcome", ["kept", "lost"])
def test_a_primary_that_is_back_before_anybody_noticed_is_replaced(outcome: str) -> None:
    # A new boot is in no set; the copies go on without what it alone had.
    async def scenario(group: Group) -> None:
        await group.put(0, b"before")
        old, backups = group.primary, group.backups
        for name in backups:
            group.hold("replicate", old, name)
        lost = await group.begin(1, b"lost")
        await group.pending_at(lost.tx_id, old)
        await group.fall(old, outcome=outcome)
        group.at.holds.release_all()
        group.at.start([old])
        await group.taken_over(1)
        assert group.in_sync == set(backups)
        assert await group.outcome(lost.tx_id) == "rolled_back"
        await group.put(1, b"after")
        assert await group.equal() == (2, 2)

    live(scenario)


@pytest.mark.parametrize("who", ["primary", "backup"])
def test_a_node_is_restarted_under_load_and_nothing_is_missed(who: str) -> None:
    async def scenario(group: Group) -> None:
        name = group.primary if who == "primary" else group.backups[0]
        done = 0

        async def load() -> None:
            nonlocal done
            database = group.at.client(timeout=30)
            counts = database.map("m", key=codecs.Bytes, value=codecs.Bytes)
            while done < 60:
                await counts.set(group.at.key(group.partition, done % 5), b"%d" % done)
                done += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(load)
            await group.until(lambda: done > 10)
            await group.fall(name, outcome="kept")
            await group.until(lambda: done > 20)
            group.at.start([name])
        await group.at.settled()
        assert [await group.value(i) for i in range(5)] == [b"%d" % i for i in range(55, 60)]
        lwm, hwm = await group.equal()
        assert lwm == hwm >= 60

    live(scenario)
