"""What a hostile engineer found in growth and losses."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from uuid import UUID

import pytest
import trio
from cluster.test_growing import (
    QUICK,
    WRITTEN,
    check_values,
    gone,
    grown,
    left,
    partitions,
    placed,
    want,
)

from support.copies import Group, admitted, live
from support.losing import ask, lose
from support.raw_client import FailureError
from tidelog.affinity.changes import CopiesRemoved
from tidelog.affinity.goals import rows_due
from tidelog.affinity.table import PartitionRow
from tidelog.affinity.topology import Incarnation, KnownMember, PartitionCopies, Topology
from tidelog.engine.agreement.timing import Timing
from tidelog.engine.node.leftovers import LOOK_AGAIN_S
from tidelog.engine.node.supplying import Supplies

SEEDS = range(5)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_reset_waits_for_the_lease_of_who_was_lost(seed: int) -> None:
    """A member that is only cut off, and declared lost, answers nothing once others go on."""

    async def scenario(group: Group) -> None:
        at = group.at
        while group.primary == at.coordinator():
            group.partition += 1
        cut = group.primary
        await group.put(0, b"before")
        others = [name for name in at.names if name != cut]
        reader = await group.client(cut)
        at.may_end.add(cut)
        key = at.key(group.partition, 0)
        at.cut([cut], others)
        await lose(group, [cut])
        asked = others[0]
        await ask(group, asked, "reset", group.partition, True)
        await at.settled(others)
        begun = await group.begin(0, b"after", asked)
        await begun.answer()
        try:
            with trio.fail_after(10):
                found = await reader.ask("get", group.number, [key])
        except (FailureError, OSError):
            return
        assert found[0][0] == b"after", found

    live(
        scenario,
        seed=seed,
        nodes=3,
        partitions=6,
        backups=0,
        timing=Timing(lease=4.0, swap_pause=1e6),
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_nobody_leaves_for_a_baseline_that_was_not_heard_since_the_election(seed: int) -> None:
    """Of two members and a voter one is away, and the voter is to leave: an election is no gap."""

    async def scenario(group: Group) -> None:
        at = group.at
        await grown(group, "n3", voter=True)
        away = next(n for n in ("n1", "n2") if n != at.coordinator())
        stays = "n1" if away == "n2" else "n2"
        await at.kill(away)
        await gone(group, away)
        await want(group, "n3", False, stays)
        await trio.sleep(5)
        assert len(at.topology().baseline) == 3
        await at.restart(stays)
        await trio.sleep(20)
        await at.settled([stays, "n3"])
        for i in WRITTEN:
            await group.put(i, b"on")

    live(scenario, seed=seed, nodes=2, backups=1, timing=QUICK)


@pytest.mark.parametrize("seed", SEEDS)
def test_two_that_are_asked_to_leave_at_once_leave_enough(seed: int) -> None:
    async def scenario(group: Group) -> None:
        at = group.at
        ids = [at.member_id(n).bytes for n in ("n1", "n2")]
        client = await group.client("n3")
        # What is under way lets both wait for the next decision.
        first = await client.begin("want", at.member_id("n3").bytes, True)
        numbers = [await client.begin("want", one, False) for one in ids]
        for number in (first, *numbers):
            with trio.move_on_after(10):
                with suppress(FailureError):
                    await client.answer(number)
        assert len(at.topology().holding) >= 2
        await trio.sleep(10)
        await group.put(0, b"x")

    live(scenario, seed=seed, nodes=3, partitions=2, backups=1, min_in_sync=2, timing=QUICK)


@pytest.mark.parametrize("seed", SEEDS)
def test_an_old_copy_of_a_lost_partition_is_not_cleared(seed: int) -> None:
    async def scenario(group: Group) -> None:
        at = group.at
        await group.put(range(4), b"old")
        await group.equal()
        old = group.backups[-1]
        await at.kill(old)
        await gone(group, old)
        other = next(n for n in at.names if n != old)
        await want(group, old, False, other)
        await left(group, old)
        counted = sorted(group.in_sync)
        at.may_end.update(counted)
        await group.fall(*counted)
        await lose(group, counted)
        at.start([old])
        await trio.sleep(5)
        await ask(group, old, "reset", group.partition, False)
        await at.settled(at.running())
        await at.whole()  # so that nobody is given the partition while it is read
        await at.settled(at.running())
        assert [await group.value(i) for i in range(4)] == [b"old"] * 4

    live(scenario, seed=seed, nodes=8, backups=2, timing=QUICK)


@pytest.mark.parametrize("seed", SEEDS)
def test_who_is_lost_is_asked_for_no_more(seed: int) -> None:
    async def scenario(group: Group) -> None:
        at = group.at
        await at.kill("n3")
        at.may_end.add("n3")
        await lose(group, ["n3"])
        with pytest.raises(FailureError, match="was declared lost"):
            await want(group, "n3", True, "n1")
        await placed(group)

    live(scenario, seed=seed, nodes=4, backups=2, timing=QUICK)


async def emptied(group: Group) -> str:
    """Lose the only copy of the partition, and begin it anew with nothing; return where."""
    at = group.at
    while group.primary == at.coordinator():
        group.partition += 1
    lost = group.primary
    await group.put(0, b"before")
    at.may_end.add(lost)
    await at.kill(lost)
    other = next(name for name in at.names if name != lost)
    await lose(group, [lost])
    await ask(group, other, "reset", group.partition, True)
    await at.settled(at.running())
    await group.put(0, b"after")
    return other


@pytest.mark.parametrize("then", ["restart", "decision", "power"])
@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_written_behind_a_reset_is_kept(seed: int, then: str) -> None:
    """A partition is emptied once, though no other copy makes its epoch known to be open."""

    async def scenario(group: Group) -> None:
        at = group.at
        other = await emptied(group)
        if then == "restart":
            await at.restart(other)
        elif then == "power":
            await at.power_cut()
            at.start(sorted({*at.names} - at.may_end))
        else:
            await ask(group, other, "want", at.member_id(other).bytes, True)
        await trio.sleep(3)
        await at.settled(at.running())
        assert await group.value(0) == b"after"

    live(scenario, seed=seed, nodes=4, partitions=6, backups=0)


@pytest.mark.parametrize("seed", SEEDS)
def test_who_was_lost_votes_no_more_once_its_partitions_begin_anew(seed: int) -> None:
    async def scenario(group: Group) -> None:
        at = group.at
        await at.kill("n4")
        at.may_end.add("n4")
        await lose(group, ["n4"])
        for partition in at.topology().lost:
            await ask(group, "n2", "reset", partition, True)
        await group.until(lambda: at.member_id("n4") not in at.topology().baseline)
        await at.whole()

    live(scenario, seed=seed, nodes=4, partitions=9, backups=0, timing=QUICK)


@pytest.mark.parametrize("gone", [1, 2, 3])
def test_nobody_is_let_go_while_others_of_the_row_are_away(gone: int) -> None:
    """They are in the set until it is known who has outlived them."""
    ids = [UUID(int=i) for i in range(1, 5)]
    copies = tuple(Incarnation(one, 1) for one in ids)
    members = {
        one: KnownMember(
            member=one, address="", since=1, boot=1, present=one not in ids[1 : 1 + gone]
        )
        for one in ids
    }
    partition = PartitionCopies(
        row=PartitionRow(partition=0, version=4, replicas=tuple(ids[1:])),
        epoch=3, author=copies[1], in_sync=copies, changed=9, opened=True,
    )  # fmt: skip
    topology = Topology(index=9, baseline=tuple(ids), members=members, partitions=(partition,))
    assert rows_due(topology) == []
    everybody = {one: replace(known, present=True) for one, known in members.items()}
    [removed] = rows_due(replace(topology, members=everybody))
    assert removed == CopiesRemoved(copy=copies[0], partitions=(0,))


def test_a_partition_is_not_moved_to_somebody_whose_copy_goes() -> None:
    """Its row would have one copy more than it is to have, for good."""

    async def scenario(group: Group) -> None:
        at = group.at
        pairs = [(a, b) for a in ("n1", "n2", "n3", "n4") for b in ("n1", "n2", "n3")]
        for src, dst in pairs:
            at.hold("demand", src=src, dst=dst)
        at.join("n4")
        await group.until(lambda: any(one.goal for one in partitions(group)))
        found = [one for one in partitions(group) if one.goal]
        going = [
            (one, member)
            for one in found
            for member in one.row.replicas
            if member not in one.goal and member != one.author.member
        ]
        one, member = going[0]
        assert member is not None
        number = one.row.partition
        with pytest.raises(FailureError, match="cannot be served by"):
            await ask(group, at.primary(number), "move", number, member.bytes)
        for src, dst in pairs:
            at.release("demand", src=src, dst=dst)
        await placed(group)
        assert all(len(one.row.replicas) == 3 for one in partitions(group))

    live(scenario, seed=0, partitions=6, backups=2, timing=QUICK)


def test_who_is_on_its_way_back_as_its_rows_come_to_others_follows_until_it_is_let_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its copies were cleared as left over, and what it was sent contradicted its own log."""
    lets_go: list[bool] = []
    withdraw = Supplies._withdraw

    def slowly(supplies: Supplies, copy: Incarnation, left: Iterable[int]) -> None:
        if lets_go:
            withdraw(supplies, copy, left)

    monkeypatch.setattr(Supplies, "_withdraw", slowly)

    async def scenario(group: Group) -> None:
        at = group.at
        group.partition = 3  # of which n4 gets the copy of n1
        await group.put(WRITTEN, b"before")
        await group.away("n1")
        await group.put(WRITTEN, b"meanwhile")
        for name in ("n2", "n3"):
            at.hold("supply", src=name, dst="n1")
        at.start(["n1"])
        back = Incarnation(at.member_id("n1"), 2)

        def copies() -> PartitionCopies:
            return partitions(group)[group.partition]

        await admitted(group, "n1")
        at.join("n4")
        await group.until(lambda: not copies().may_hold(back.member))
        assert copies().admission(back) is not None
        for _ in range(3):
            await group.put(WRITTEN, b"behind")
            await trio.sleep(LOOK_AGAIN_S)
            assert at.member("n1").groups.following(group.partition) is not None
            assert at.member("n1").log.state.counters[group.partition].hwm > 0
        lets_go.append(True)
        for name in ("n2", "n3"):
            at.release("supply", src=name, dst="n1")
        await placed(group)
        await group.until(lambda: at.member("n1").log.state.counters[group.partition].hwm == 0)
        await check_values(group, b"behind")
        await group.equal()

    live(scenario, partitions=6, backups=2, timing=QUICK)
