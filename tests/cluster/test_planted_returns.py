"""Mistakes in how copies come back, planted: each is found by what is looked at in any scenario."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from support.copies import PARTITIONS, Group, admitted, kinds, live, supply_waits
from support.loads import make_load, rows_of
from tidelog.checkpoints.copies import CopyState
from tidelog.checkpoints.supplying import FoundNumbers, SupplySearch
from tidelog.codecs import Bytes
from tidelog.engine.agreement.timing import Timing
from tidelog.engine.api.open import open_with
from tidelog.engine.data import flush
from tidelog.engine.node.missed import MissedHistory
from tidelog.engine.node.ways_back import LogHolder, WaysBack
from tidelog.engine.replication.streams import Streams
from tidelog.engine.system.environment import Environment
from tidelog.rebalance.choosing import SupplyChoice, SupplyKind
from tidelog.testing.process import leaves
from tidelog.testing.promises import BrokenPromiseError
from tidelog.tx.counter import PartitionUpdateCounter
from tidelog.wal.records import IngestRecord, Record, RollbackRecord

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

    async def late(returning: Any, wanted: Any, *source: Any) -> None:
        if group.partition in {place.partition for place in wanted}:
            await gate.wait()
        await genuine(returning, wanted, *source)

    history.send = late  # type: ignore[assignment, method-assign]
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


async def one_that_falls_again_with_a_gap(group: Group) -> None:
    """It has what is written while it comes back, and not what it has missed before."""
    name = group.backups[-1]
    await group.put(range(8), b"before")
    await group.equal()
    await group.away(name)
    await group.put(range(6), b"meanwhile")
    gate = supply_waits(group)
    group.at.start([name])
    await admitted(group, name)
    await group.put(range(6, 8), b"later")
    counters = group.at.member(name).log.state.counters
    await group.until(lambda: counters[group.partition].highest_applied == 16)
    await group.synced(name)
    await group.fall(name, outcome="kept")
    gate.set()
    await group.back(name)


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

    def choice(self: WaysBack, report: Any, reaches: Any) -> SupplyChoice[LogHolder]:
        return genuine(self, replace(report, lwm=report.lwm + 3), reaches)

    patch.setattr(WaysBack, "choice", choice)


def updates_out_of_order_are_not_tracked(patch: Patch) -> None:
    genuine = PartitionUpdateCounter.update

    def update(self: PartitionUpdateCounter, start: int, delta: int) -> bool:
        new = genuine(self, start, delta)
        self._lwm, self._ranges = max(self._lwm, start + delta), None
        return new

    patch.setattr(PartitionUpdateCounter, "update", update)


def a_copy_is_searched_for_by_its_lwm_alone(patch: Patch) -> None:
    """It is taken for one that has all up to the highest number that it shows."""
    genuine = WaysBack.choice

    def choice(self: WaysBack, report: Any, reaches: Any) -> SupplyChoice[LogHolder]:
        highest = PartitionUpdateCounter(report.lwm, report.ranges).highest_applied
        return genuine(self, replace(report, lwm=highest, ranges=()), reaches)

    patch.setattr(WaysBack, "choice", choice)


def tombstones_are_dropped_too_early(patch: Patch) -> None:
    patch.setattr(flush, "_tombstones_above", lambda _state, _counter: None)


def numbers_of_a_load_are_told_as_closed(patch: Patch) -> None:
    genuine = SupplySearch.take

    def take(self: SupplySearch, position: int, record: Record) -> None:
        if isinstance(record, IngestRecord):
            record = RollbackRecord(
                tx_id=bytes(16), time=record.time, reason="planted", runs=record.runs
            )
        genuine(self, position, record)

    patch.setattr(SupplySearch, "take", take)


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
    (updates_out_of_order_are_not_tracked, one_that_falls_again_with_a_gap),
    (a_copy_is_searched_for_by_its_lwm_alone, one_that_falls_again_with_a_gap),
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


# ---------------------------------------------------------------- what was loaded


def one_joins_a_store_with_a_load(load: str) -> set[SupplyKind]:
    """Let a member join a store that was embedded, whose log has an INGEST; return by which ways.

    It has missed all numbers, and the log begins before them.
    """
    ways: set[SupplyKind] = set()

    def made(environment: Environment, path: str) -> None:
        with open_with(environment, path, partitions=PARTITIONS) as db:
            others = db.map("others", key=Bytes, value=Bytes)
            others[b"before"] = b"the load"
            db.attach(load)
            others[b"behind"] = b"the load"

    async def scenario(group: Group) -> None:
        at = group.at
        at.join("n2")
        await group.until(lambda: at.member_id("n2") in at.topology().placed)
        await at.whole()
        for group.partition in range(PARTITIONS):
            await group.equal()
            ways.update(kinds(group, "n2"))

    live(scenario, nodes=1, backups=1, timing=Timing(join_wait=0.5), store=made)
    return ways


@pytest.fixture
def load(tmp_path: Path) -> str:
    return make_load(tmp_path / "load", rows_of(20), partitions=PARTITIONS)


def test_rows_of_a_load_come_with_all_there_is_to_who_lacks_their_numbers(load: str) -> None:
    # By its head the log has them: it is read, and found not to have their rows.
    assert {SupplyKind.HISTORICAL, SupplyKind.FULL} <= one_joins_a_store_with_a_load(load)


def test_numbers_of_a_load_that_are_told_as_closed_are_found(load: str, monkeypatch: Patch) -> None:
    numbers_of_a_load_are_told_as_closed(monkeypatch)
    with pytest.raises(BaseException) as found:  # noqa: PT011  # a group of errors
        one_joins_a_store_with_a_load(load)
    errors = list(leaves(found.value))
    assert any(
        isinstance(one, BrokenPromiseError) and "n1 and n2 have other content" in str(one)
        for one in errors
    ), errors
