"""A primary whose log was cut has the history lent that a copy which comes back has missed.

The log of the primary is ``CUT``; those of some backups are pinned, so that they go back to the
beginning.
"""

from __future__ import annotations

from copy import copy
from typing import Any

import pytest
import trio

from support.copies import (
    CUT,
    LARGE,
    SOON_S,
    Group,
    Writers,
    age_logs,
    explained,
    kinds,
    live,
    small_pieces,
    when_reached,
)
from tidelog.engine.node.borrowing import Borrowing
from tidelog.engine.node.lending import Lending
from tidelog.rebalance.choosing import SupplyKind
from tidelog.tx.numbers import applied_in, without

HISTORY, FULL = SupplyKind.HISTORICAL, SupplyKind.FULL
LAST = LARGE + b"2"


def keep_log(group: Group, *names: str) -> None:
    """Let the logs of members be kept from where they are."""
    for name in names:
        keeper = group.at.member(name)._files.keeper
        keeper.pins.set("test", keeper.first_position)


def lenders(group: Group, name: str) -> list[str]:
    """Return whose logs supplied a copy, or were to, at each attempt."""
    suppliers = [one.choice.supplier for one in explained(group, name)]
    return ["none" if one is None else group.name(one.copy) for one in suppliers]


async def missed_much(group: Group, *lend: str) -> str:
    """Let a copy miss what the log of the primary has no more, and that of some others has."""
    name = next(one for one in reversed(group.backups) if one not in lend)
    await group.put(range(10), b"before")
    await group.equal()
    keep_log(group, *lend)
    await group.away(name)
    await age_logs(group)
    await group.put(range(4), b"meanwhile")
    await group.remove(range(4, 6))
    return name


async def whole(group: Group, name: str) -> None:
    """Start a member, and wait until all are in sync, while others write: so none is equal yet."""
    group.at.start([name])
    await group.at.settled()
    await group.at.whole()


async def check(group: Group) -> None:
    values = [await group.value(i) for i in range(8)]
    assert values == [b"meanwhile"] * 4 + [None] * 2 + [LAST] * 2


@pytest.mark.parametrize("seed", range(1, 5))
def test_what_the_log_of_the_primary_has_no_more_another_one_lends(seed: int) -> None:
    async def scenario(group: Group) -> None:
        lender, primary = group.backups[0], group.primary
        name = await missed_much(group, lender)
        await group.back(name)
        assert kinds(group, name) == [HISTORY]
        assert lenders(group, name) == [lender]
        [reason] = [one.choice.reason for one in explained(group, name)]
        assert f"the log of {str(group.at.member_id(lender))[:8]} holds them" in reason
        await check(group)
        # What was lent counts: whoever is left alone has it.
        await group.fall(primary, lender)
        group.at.start([primary, lender])
        await group.back()
        await check(group)

    live(scenario, seed=seed, options=CUT)


def test_history_is_lent_in_many_pieces_while_others_write(monkeypatch: pytest.MonkeyPatch) -> None:
    small_pieces(monkeypatch)

    async def scenario(group: Group) -> None:
        lender = group.backups[0]
        name = await missed_much(group, lender)
        sent = group.at.member(lender).groups.lending._reached
        pieces = 0

        def count(point: str) -> None:
            nonlocal pieces
            pieces += point == "lend.sent"
            sent(point)

        group.at.member(lender).groups.lending._reached = count
        writers = Writers(group, 0.01)
        async with trio.open_nursery() as nursery:
            for i in range(20, 23):
                nursery.start_soon(writers.write, i)
            await whole(group, name)
            writers.ends = True
        await group.equal()
        assert lenders(group, name) == [lender]
        assert pieces > 5
        await writers.check()
        await check(group)
        await group.until(lambda: not group.at.member(lender).groups.lending._loans)
        pins = group.at.member(lender)._files.keeper.pins.positions()
        assert list(pins) == ["test"], "the log is not kept for what is over"

    live(scenario, options=CUT)


def test_a_log_of_its_own_that_does_is_read_and_nobody_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[object] = []
    monkeypatch.setattr(Borrowing, "reaches", asked.append)

    async def scenario(group: Group) -> None:
        primary, lender = group.primary, group.backups[0]
        name = await missed_much(group, primary, lender)
        await group.back(name)
        assert lenders(group, name) == [primary]
        assert asked == []

    live(scenario, options=CUT)


def test_some_is_lent_and_some_is_read_here_in_one_return() -> None:
    async def scenario(group: Group) -> None:
        at, lender, primary = group.at, group.backups[0], group.primary
        other = copy(group)
        other.partition = next(p for p in range(1, at.partitions) if at.primary(p) == primary)
        await other.put(range(3), b"before")
        name = await missed_much(group, lender)
        await other.until(lambda: name not in other.in_sync)
        await other.put(range(3), b"meanwhile")
        group.hold("report", name, primary)
        at.start([name])
        await group.until(lambda: name in at.running())
        await at.settled()
        group.release("report", name, primary)
        await group.back()
        assert (lenders(group, name), lenders(other, name)) == ([lender], [primary])
        await check(group)
        assert await other.value(2) == b"meanwhile"

    live(scenario, partitions=6, options=CUT)


@pytest.mark.parametrize("kind", ["reach", "reached", "lend", "lent"])
def test_who_says_nothing_lends_nothing_and_the_copy_comes_in_full(kind: str) -> None:
    async def scenario(group: Group) -> None:
        primary, lender = group.primary, group.backups[0]
        name = await missed_much(group, lender)
        asks = kind in ("reach", "lend")
        group.hold(kind, *((primary, lender) if asks else (lender, primary)))
        group.at.start([name])
        await group.until(lambda: FULL in kinds(group, name))
        asked = [HISTORY] if kind in ("lend", "lent") else []
        assert kinds(group, name)[: len(asked) + 1] == [*asked, FULL]
        group.at.holds.release_all()
        await group.back()
        await check(group)

    live(scenario, options=CUT)


def test_another_one_lends_if_the_first_one_says_nothing() -> None:
    async def scenario(group: Group) -> None:
        primary, lend = group.primary, group.backups[:2]
        name = await missed_much(group, *lend)
        listed = [group.name(one) for one in group.at.topology().partitions[0].in_sync]
        first, second = (one for one in listed if one in lend)
        group.hold("lent", first, primary)
        group.at.start([name])
        await group.until(lambda: name in group.in_sync)
        assert lenders(group, name) == [first, second]
        group.at.holds.release_all()
        await group.back()
        await check(group)

    live(scenario, nodes=4, backups=3, options=CUT)


def test_a_log_that_proves_to_lack_something_is_asked_no_more() -> None:
    # The lender was itself copied in full, though its log begins early enough: that shows only when
    # it is searched.
    async def scenario(group: Group) -> None:
        _, first, second = group.backups
        await group.put(range(10), b"before")
        await group.equal()
        for name in (first, second):
            await group.away(name)
        await age_logs(group)
        await group.put(range(4), b"meanwhile")
        await group.remove(range(4, 6))
        group.at.start([first])
        await group.until(lambda: first in group.in_sync)
        await group.back(second)
        assert kinds(group, second)[:2] == [HISTORY, FULL]
        assert lenders(group, second)[:2] == [first, "none"]
        await check(group)

    live(scenario, nodes=5, backups=3, options=CUT)


LENDER, PRIMARY, COPY = ROLES = ("lender", "primary", "copy")


@pytest.mark.parametrize("who", ROLES)
@pytest.mark.parametrize("point", ["lend.sent", "admit.sent", "supply.middle", "add.proposed"])
def test_somebody_dies_while_history_is_lent(
    point: str, who: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_pieces(monkeypatch)

    async def scenario(group: Group) -> None:
        lender, primary = group.backups[0], group.primary
        name = await missed_much(group, lender)
        victim = {LENDER: lender, PRIMARY: primary, COPY: name}[who]
        whose = lender if point == "lend.sent" else primary

        def strike() -> bool:
            if victim != whose:
                group.at.nodes[victim].kill()
            return victim == whose

        when_reached(group, whose, point, strike)
        writers = Writers(group, 0.1)
        async with trio.open_nursery() as nursery:
            for i in range(20, 23):
                nursery.start_soon(writers.write, i)
            group.at.start([name])
            with trio.fail_after(SOON_S):
                await group.at.killed(victim)
            if victim != name:
                await group.until(lambda: victim not in group.in_sync and name in group.in_sync)
            await whole(group, victim)
            writers.ends = True
        await group.equal()
        await writers.check()
        await check(group)

    live(scenario, options=CUT)


def test_a_lender_waits_until_it_knows_what_became_of_what_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # It is asked before it has heard what has committed: without waiting it has "not yet" to say.
    waited = 0
    genuine = Lending._until_decided

    async def until_decided(self: Lending, wanted: Any) -> None:
        nonlocal waited
        counters = self._log.state.counters
        waited += any(without(row.missing, applied_in(counters[p])) for p, row in wanted.items())
        await genuine(self, wanted)

    monkeypatch.setattr(Lending, "_until_decided", until_decided)

    async def scenario(group: Group) -> None:
        lender = group.backups[0]
        name = await missed_much(group, lender)
        writers = Writers(group)
        async with trio.open_nursery() as nursery:
            for i in range(20, 40):
                nursery.start_soon(writers.write, i)
            await whole(group, name)
            writers.ends = True
        await group.equal()
        await writers.check()
        assert lenders(group, name) == [lender]

    for seed in range(1, 6):  # when it is asked is an accident of each
        live(scenario, options=CUT, seed=seed)
    assert waited
