"""A cluster grows and shrinks: members join, get data, give it away, and leave.

``docs/growing.md`` has the steps.  Baselines of the seed (``seeds/004``): a baseline of 3 that
becomes one of 4, with six partitions, is ``test_three_members_become_four``.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import trio

from support.copies import Group, live
from support.raw_client import FailureError
from tidelog.affinity.topology import PartitionCopies
from tidelog.checkpoints.copies import CopyState
from tidelog.codecs import I64, Str
from tidelog.engine.agreement.timing import Timing

QUICK = Timing(join_wait=1.0, swap_pause=0.2)
WRITTEN = range(12)


async def grown(group: Group, name: str = "n4", *, voter: bool = False) -> None:
    """Let a member join, and wait until it votes, and all is held by whom it is to be held."""
    group.at.join(name, voter=voter)
    await entered(group, name)


async def entered(group: Group, name: str) -> None:
    at = group.at
    await group.until(lambda: at.member_id(name) in at.topology().baseline)
    await placed(group)


async def placed(group: Group) -> None:
    at = group.at
    await group.until(lambda: at.topology().placed == at.topology().holding)
    await at.whole()
    await group.until(lambda: all(one.author.member == one.first for one in partitions(group)))
    await at.settled(at.running())


async def want(group: Group, name: str, wanted: bool, asked: str | None = None) -> None:
    """Ask for a member to be of the baseline, or not to be."""
    client = await group.client(asked)
    with trio.fail_after(30):
        await client.ask("want", group.at.member_id(name).bytes, wanted)
    client.close()


async def gone(group: Group, name: str) -> None:
    """Wait until it is decided that a member has gone."""
    at = group.at
    await group.until(lambda: at.member_id(name) not in at.topology().members_present)


async def left(group: Group, name: str) -> None:
    """Wait until a member votes no more, and holds nothing."""
    at = group.at
    await group.until(lambda: at.member_id(name) not in at.topology().baseline)
    await placed(group)


def partitions(group: Group) -> tuple[PartitionCopies, ...]:
    return group.at.topology().partitions


def shares(group: Group) -> Counter[str]:
    """Return how many copies each member holds."""
    return Counter(group.name(copy) for one in partitions(group) for copy in one.in_sync)


async def check_values(group: Group, value: bytes = b"before") -> None:
    assert [await group.value(i) for i in WRITTEN] == [value] * len(WRITTEN)


# ------------------------------------------------------------------ growing


@pytest.mark.parametrize("backups", [0, 1, 2])
def test_three_members_become_four(backups: int) -> None:
    """Whoever is not concerned notices nothing: neither epoch nor set change."""

    async def scenario(group: Group) -> None:
        await group.put(WRITTEN, b"before")
        before = partitions(group)
        await grown(group)
        held, rows = shares(group), partitions(group)
        assert max(held.values()) - min(held.values()) <= 1
        assert held["n4"] > 0
        kept = [(one, two) for one, two in zip(before, rows, strict=True) if one.row == two.row]
        assert kept
        assert all((one.epoch, one.in_sync) == (two.epoch, two.in_sync) for one, two in kept)
        assert all(len(one.in_sync) == backups + 1 for one in rows)
        await check_values(group)
        await group.equal()

    live(scenario, partitions=6, backups=backups, timing=QUICK)


def test_writes_go_on_while_a_member_gets_its_share() -> None:
    async def scenario(group: Group) -> None:
        await group.put(WRITTEN, b"before")
        grown_up: list[bool] = []

        async def grow() -> None:
            await grown(group)
            grown_up.append(True)

        turn = 0
        db = group.at.client()
        numbers = db.map("numbers", key=Str, value=I64)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(grow)
            while not grown_up:
                turn += 1
                for i in WRITTEN:
                    with trio.fail_after(3):
                        await numbers.set(f"n{i}", turn)
        assert [await numbers.get(f"n{i}") for i in WRITTEN] == [turn] * len(WRITTEN)
        await db.aclose()
        await check_values(group)
        await group.equal()

    live(scenario, timing=QUICK)


def test_two_members_join_at_once_and_enter_one_after_the_other() -> None:
    async def scenario(group: Group) -> None:
        await group.put(WRITTEN, b"before")
        at = group.at
        at.join("n4")
        at.join("n5")
        await entered(group, "n4")
        await entered(group, "n5")
        assert len(at.topology().baseline) == 5
        held = shares(group)
        assert max(held.values()) - min(held.values()) <= 1
        await check_values(group)

    live(scenario, partitions=10, timing=QUICK)


def test_a_member_that_does_not_vote_yet_is_not_one_of_a_majority() -> None:
    # It said that there is one, and clients went on asking for as long as they had time.
    async def scenario(group: Group) -> None:
        at = group.at
        at.join("n3")
        await group.until(lambda: at.member_id("n3") in at.topology().members_present)
        await at.kill(group.primary)
        [voting] = at.running().keys() - {"n3"}
        await group.until(
            lambda: (
                not any(one.agreement.reaches_majority(one.now) for one in at.running().values())
            )
        )
        client = await group.client(voting)
        with pytest.raises(FailureError, match="reaches no majority of the 2 members"):
            await client.ask("get", group.number, [at.key(group.partition, 0)])

    live(scenario, nodes=2, backups=1, timing=replace(QUICK, join_wait=600.0))


def test_a_member_that_is_there_for_less_than_the_wait_does_not_enter() -> None:
    async def scenario(group: Group) -> None:
        at = group.at
        at.join("n4")
        await group.until(lambda: at.member_id("n4") in at.topology().members)
        await trio.sleep(0.5)
        await at.kill("n4")
        await trio.sleep(5)
        assert len(at.topology().baseline) == 3
        at.start(["n4"])
        await entered(group, "n4")

    live(scenario, timing=QUICK)


def test_all_that_was_there_before_may_die_once_others_hold_it() -> None:
    """Of five members with two backups, those that were the first three leave one by one."""

    async def scenario(group: Group) -> None:
        await group.put(WRITTEN, b"before")
        for name in ("n4", "n5"):
            await grown(group, name)
        for name in ("n1", "n2"):
            await want(group, name, False)
            await left(group, name)
        await group.fall("n1", "n2")
        await check_values(group)
        await group.put(WRITTEN, b"of others")
        await group.equal()
        assert set(shares(group)) == {"n3", "n4", "n5"}

    live(scenario, timing=QUICK)


def test_a_voter_holds_nothing_and_two_others_survive_any_loss() -> None:
    async def scenario(group: Group) -> None:
        at = group.at
        await group.put(WRITTEN, b"before")
        await grown(group, "n3", voter=True)
        assert set(shares(group)) == {"n1", "n2"}
        for turn, name in enumerate(("n1", "n2", "n3")):
            epochs = group.epoch
            await at.kill(name)
            await gone(group, name)
            await group.put(WRITTEN, b"without %d" % turn)
            at.start([name])
            await placed(group)
            assert group.epoch >= epochs
        await check_values(group, b"without 2")

    live(scenario, nodes=2, backups=1, timing=QUICK)


# ------------------------------------------------------------------ leaving


def test_a_member_leaves_once_others_have_its_data_and_is_cleared() -> None:
    async def scenario(group: Group) -> None:
        at = group.at
        await group.put(WRITTEN, b"before")
        await grown(group)
        await want(group, "n1", False)
        await left(group, "n1")
        assert "n1" not in shares(group)
        assert all(not one.may_hold(at.member_id("n1")) for one in partitions(group))
        states = at.member("n1").log.state.copies.states
        await group.until(lambda: states.get(group.partition) is CopyState.NOT_WHOLE)
        await at.checkpoint("n1")
        assert len({at.digest("n1", p) for p in range(at.partitions)}) == 1
        await group.fall("n1")
        await check_values(group)

    live(scenario, timing=QUICK)


def test_a_member_that_left_comes_in_again_when_it_is_asked_for() -> None:
    async def scenario(group: Group) -> None:
        at = group.at
        await group.put(WRITTEN, b"before")
        await want(group, "n1", False)
        await left(group, "n1")
        await group.put(WRITTEN, b"without it")
        await at.restart("n1")
        await trio.sleep(5)
        assert at.member_id("n1") not in at.topology().baseline
        await want(group, "n1", True)
        await entered(group, "n1")
        assert "n1" in shares(group)
        await check_values(group, b"without it")
        await group.equal()

    live(scenario, timing=QUICK)


def test_nobody_is_asked_for_who_is_not_known() -> None:
    # A member looked for it in the topology, did not find it, and ended.
    async def scenario(group: Group) -> None:
        client = await group.client()
        for wanted in (True, False):
            with trio.fail_after(30), pytest.raises(FailureError, match="there is no member"):
                await client.ask("want", group.at.member_id("n9").bytes, wanted)
        client.close()
        await group.at.settled()

    live(scenario, timing=QUICK)


def test_whoever_leads_may_leave() -> None:
    async def scenario(group: Group) -> None:
        await group.put(WRITTEN, b"before")
        await grown(group)
        leader = group.at.coordinator()
        assert leader is not None
        await want(group, leader, False)
        await left(group, leader)
        await group.until(lambda: group.at.coordinator() not in (None, leader))
        await group.at.settled()
        await group.put(WRITTEN, b"behind it")
        await check_values(group, b"behind it")
        assert group.at.coordinator() != leader

    live(scenario, timing=QUICK)


def test_a_disk_that_is_lost_is_replaced_by_a_new_member() -> None:
    async def scenario(group: Group) -> None:
        at, lost = group.at, group.backups[0]
        await group.put(WRITTEN, b"before")
        await at.kill(lost)
        at.join("n4")
        await group.until(lambda: at.member_id("n4") in at.topology().baseline)
        await want(group, lost, False)
        await left(group, lost)
        assert len(at.topology().baseline) == 3
        await check_values(group)
        await group.equal()

    live(scenario, timing=QUICK)


def test_a_member_whose_data_nobody_else_has_does_not_leave_while_it_is_away() -> None:
    async def scenario(group: Group) -> None:
        at = group.at
        await group.put(WRITTEN, b"before")
        name = group.primary
        await at.kill(name)
        await gone(group, name)
        await want(group, name, False, next(other for other in at.names if other != name))
        await trio.sleep(10)
        assert at.member_id(name) in at.topology().baseline
        at.start([name])
        await left(group, name)
        await check_values(group)

    live(scenario, backups=0, timing=QUICK)


def test_nobody_leaves_without_whom_nothing_could_be_written() -> None:
    async def scenario(group: Group) -> None:
        with pytest.raises(FailureError, match="2 members with data would stay"):
            await want(group, "n1", False)
        assert not group.at.topology().members[group.at.member_id("n1")].leaving

    live(scenario, min_in_sync=3, timing=QUICK)


# ------------------------------------------------------------------ who dies meanwhile


@pytest.mark.parametrize("point", ["config.after_accept", "config.after_decide"])
@pytest.mark.parametrize("who", ["coordinator", "other", "newcomer"])
def test_who_dies_while_the_baseline_changes(point: str, who: str) -> None:
    """Each dies at its next decision, which is that of the baseline, or close to it."""

    async def scenario(group: Group) -> None:
        at = group.at
        await group.put(WRITTEN, b"before")
        at.join("n4")
        await group.until(lambda: at.member_id("n4") in at.topology().members_present)
        await trio.sleep(0.9)
        leader = at.coordinator()
        assert leader is not None
        other = next(name for name in ("n1", "n2", "n3") if name != leader)
        name = {"coordinator": leader, "other": other, "newcomer": "n4"}[who]
        await at.kill(name, at=point)
        await at.killed(name)
        await trio.sleep(2)
        await at.settled(at.running())
        await group.put(WRITTEN, b"meanwhile")
        at.start([name])
        await entered(group, "n4")
        await check_values(group, b"meanwhile")
        await group.equal()

    live(scenario, timing=QUICK)


@pytest.mark.parametrize("after", [0.2, 0.5, 1.0, 1.3, 1.6, 2.0, 3.0])
def test_the_power_of_all_ends_while_a_member_gets_its_share(after: float) -> None:
    async def scenario(group: Group) -> None:
        at = group.at
        await group.put(WRITTEN, b"before")
        at.join("n4")
        await trio.sleep(after)
        await at.power_cut()
        at.start()
        await group.until(lambda: bool(at.running()))
        await entered(group, "n4")
        await check_values(group)
        await group.equal()

    live(scenario, timing=QUICK)


@pytest.mark.parametrize("who", ["n4", "primary", "coordinator"])
@pytest.mark.parametrize("point", ["admit.logged", "add.decided", "takeover.after_seal"])
def test_who_dies_while_rows_go_to_their_goals(point: str, who: str) -> None:
    async def scenario(group: Group) -> None:
        at = group.at
        await group.put(WRITTEN, b"before")
        leader = at.coordinator()
        assert leader is not None
        name = {"n4": "n4", "primary": group.primary, "coordinator": leader}[who]
        at.join("n4")
        await at.kill(name, at=point)
        with trio.move_on_after(20):
            await at.killed(name)
        if not at.nodes[name].running:
            await trio.sleep(2)
            await at.settled(at.running())
            await group.put(WRITTEN, b"meanwhile")
            at.start([name])
        else:
            at.nodes[name].points.planned.clear()
            await group.put(WRITTEN, b"meanwhile")
        await entered(group, "n4")
        await check_values(group, b"meanwhile")
        await group.equal()

    live(scenario, timing=QUICK)


# ------------------------------------------------------------------ primaries


def test_a_primary_that_was_away_serves_again_what_its_rows_say() -> None:
    async def scenario(group: Group) -> None:
        at, name = group.at, group.primary
        await group.put(WRITTEN, b"before")
        await at.kill(name)
        await group.author(name)
        await at.settled(at.running())
        await group.put(WRITTEN, b"meanwhile")
        at.start([name])
        await placed(group)
        assert group.primary == name
        await check_values(group, b"meanwhile")

    live(scenario, partitions=12, timing=QUICK)
