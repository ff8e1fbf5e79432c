"""Mistakes in how copies come back, planted: each is found by what is looked at in any scenario."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
import trio

from support.copies import Group, live
from tidelog.checkpoints.copies import CopyState
from tidelog.checkpoints.supplying import FoundNumbers, SupplySearch
from tidelog.engine.data import flush
from tidelog.engine.node.missed import MissedHistory
from tidelog.engine.node.ways_back import WaysBack
from tidelog.engine.replication.streams import Streams
from tidelog.rebalance.choosing import SupplyChoice
from tidelog.testing.process import leaves
from tidelog.testing.promises import BrokenPromiseError

Scenario = Callable[[Group], Awaitable[None]]
Patch = pytest.MonkeyPatch


# ---------------------------------------------------------------- scenarios


async def one_that_has_missed_something(group: Group) -> None:
    name = group.backups[-1]
    await group.put(range(8), b"before")
    await group.equal()
    await group.away(name)
    for i in range(6):
        await group.put(i, b"meanwhile")
    await group.back(name)


async def a_delete_that_overtakes_what_was_missed(group: Group) -> None:
    name, primary = group.backups[-1], group.primary
    await group.put(range(8), b"before")
    await group.equal()
    await group.away(name)
    await group.put(range(6), b"meanwhile")
    gate, history = trio.Event(), group.at.member(primary).groups.supplies._history
    genuine = history.send

    async def late(returning: Any, wanted: Any) -> None:
        if group.partition in {place.partition for place in wanted}:
            await gate.wait()
        await genuine(returning, wanted)

    history.send = late  # type: ignore[method-assign]
    group.at.start([name])
    copies = group.at.topology
    await group.until(lambda: bool(copies().partitions[group.partition].moving))
    states = group.at.member(name).log.state.copies.states
    await group.until(lambda: states.get(group.partition) is CopyState.MOVING)
    await group.remove(range(3))
    await group.until(lambda: group.at.counters(name, group.partition)[1] == 17)
    await group.until(lambda: bool(group.numbers(name)[2]))
    await group.at.checkpoint(name)
    gate.set()
    await group.back()


async def writes_while_one_comes_back(group: Group) -> None:
    name = group.backups[-1]
    await group.put(range(8), b"before")
    await group.equal()
    await group.away(name)
    await group.put(range(6), b"meanwhile")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(group.back, name)
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
    genuine = WaysBack.choice

    def choice(self: WaysBack, report: Any, head: Any) -> SupplyChoice[str]:
        return genuine(self, replace(report, lwm=report.lwm + 3), head)

    patch.setattr(WaysBack, "choice", choice)


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

    patch.setattr(MissedHistory, "send", supplies_nothing)


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
