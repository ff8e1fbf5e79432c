"""Mistakes in how copies come back, planted: each is found by what is looked at in any scenario."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
import trio

from support.copies import Group, away, live, supply_waits
from tidelog.checkpoints.supplying import FoundNumbers, SupplySearch
from tidelog.engine.data import flush
from tidelog.engine.node.supplying import Supplies
from tidelog.engine.replication.streams import Streams
from tidelog.rebalance.choosing import SupplyChoice
from tidelog.testing.process import leaves
from tidelog.testing.promises import BrokenPromiseError

Scenario = Callable[[Group], Awaitable[None]]
Patch = pytest.MonkeyPatch
SETTLE_S = 15.0


async def back(group: Group, name: str) -> None:
    group.at.start([name])
    await equal(group)


async def equal(group: Group) -> None:
    """Wait until all copies are in sync and equal, but not for as long as a scenario may last."""
    with trio.move_on_after(SETTLE_S):
        await group.at.settled()
        await group.at.whole()
        await group.equal()
        return
    raise BrokenPromiseError("not all copies have come back")


# ---------------------------------------------------------------- scenarios


async def one_that_has_missed_something(group: Group) -> None:
    name = group.backups[-1]
    await group.put(range(8), b"before")
    await group.equal()
    await away(group, name)
    for i in range(6):
        await group.put(i, b"meanwhile")
    await back(group, name)


async def a_delete_that_overtakes_what_was_missed(group: Group) -> None:
    name = group.backups[-1]
    await group.put(range(8), b"before")
    await group.equal()
    await away(group, name)
    await group.put(range(6), b"meanwhile")
    gate = supply_waits(group)
    group.at.start([name])
    copies = group.at.topology
    await group.until(lambda: bool(copies().partitions[group.partition].moving))
    await group.remove(range(3))
    await group.until(lambda: group.at.counters(name, group.partition)[1] == 17)
    await group.until(lambda: bool(group.numbers(name)[2]))
    await group.at.checkpoint(name)
    gate.set()
    await equal(group)


async def writes_while_one_comes_back(group: Group) -> None:
    name = group.backups[-1]
    await group.put(range(8), b"before")
    await group.equal()
    await away(group, name)
    await group.put(range(6), b"meanwhile")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(back, group, name)
        for turn in range(40):
            await group.put(turn % 8, b"%d" % turn)


# ---------------------------------------------------------------- rules, taken out


def a_supply_with_a_hole(patch: Patch) -> None:
    genuine = SupplySearch.take_out

    def take_out(self: SupplySearch) -> dict[int, FoundNumbers]:
        return {
            partition: replace(found, transactions=found.transactions[1:])
            for partition, found in genuine(self).items()
        }

    patch.setattr(SupplySearch, "take_out", take_out)


def numbers_above_a_gap_are_taken_for_all_below(patch: Patch) -> None:
    genuine = Supplies._choice

    def choice(self: Supplies, report: Any, head: Any) -> SupplyChoice[str]:
        return genuine(self, replace(report, lwm=report.lwm + 3), head)

    patch.setattr(Supplies, "_choice", choice)


def tombstones_are_dropped_too_early(patch: Patch) -> None:
    patch.setattr(flush, "_tombstones_above", lambda _state, _counter: None)


def what_is_written_meanwhile_is_not_sent(patch: Patch) -> None:
    genuine = Streams.admit

    def admit(self: Streams, partition: int, *about: Any) -> int:
        begin = genuine(self, partition, *about)
        follower = self._open[partition].followers[about[0]]
        follower.sent = follower.stored = begin + 3
        return begin

    patch.setattr(Streams, "admit", admit)


def it_is_added_before_it_has_all(patch: Patch) -> None:
    async def supplies_nothing(*_about: object) -> None:
        return None

    patch.setattr(Supplies, "_supply", supplies_nothing)


PLANTED: list[tuple[Callable[[Patch], None], Scenario]] = [
    (a_supply_with_a_hole, one_that_has_missed_something),
    (numbers_above_a_gap_are_taken_for_all_below, one_that_has_missed_something),
    (tombstones_are_dropped_too_early, a_delete_that_overtakes_what_was_missed),
    (what_is_written_meanwhile_is_not_sent, writes_while_one_comes_back),
    (it_is_added_before_it_has_all, one_that_has_missed_something),
]


@pytest.mark.parametrize(
    "scenario", dict.fromkeys(scenario for _, scenario in PLANTED), ids=lambda one: one.__name__
)
def test_nothing_is_found_where_nothing_is_planted(scenario: Scenario) -> None:
    live(scenario, seed=3)


@pytest.mark.parametrize(("plant", "scenario"), PLANTED, ids=lambda one: one.__name__)
def test_what_is_planted_is_found(
    plant: Callable[[Patch], None], scenario: Scenario, monkeypatch: Patch
) -> None:
    plant(monkeypatch)
    with pytest.raises(BaseException) as found:  # noqa: PT011  # which one depends on the mistake
        live(scenario, seed=3)
    errors = list(leaves(found.value))
    assert any(
        isinstance(one, BrokenPromiseError | trio.TooSlowError | AssertionError) for one in errors
    ), errors
