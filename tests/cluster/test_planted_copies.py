"""Rules of copies, each taken out by replacing functions, and a scenario that finds it.

A scenario holds messages so that the rule is all that stands between its clients and a broken
promise.  With the rule it passes; without it something is found that must never be.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
import trio

from support.copies import Begun, Group, assert_found, live
from support.raw_client import FailureError
from tidelog.affinity.topology import Incarnation, PartitionCopies
from tidelog.checkpoints.copies import Prepared
from tidelog.engine.net.connection import Connection
from tidelog.engine.net.frames import Message
from tidelog.engine.net.kinds import BY_NUMBER
from tidelog.engine.node.groups import ReplicaGroups
from tidelog.engine.node.log import NodeLog
from tidelog.engine.node.partitions import Partitions
from tidelog.engine.replication import merging
from tidelog.engine.replication.following import Following, Taken
from tidelog.engine.replication.opening import OpeningEpoch
from tidelog.engine.replication.reports import Report
from tidelog.engine.replication.stream import Item
from tidelog.engine.replication.streams import PartitionStream, Streams
from tidelog.wal.records import SettleRecord

Scenario = Callable[[Group], Awaitable[None]]
Plant = Callable[[pytest.MonkeyPatch], None]

# ---------------------------------------------------------------- scenarios


async def a_copy_has_not_stored(group: Group) -> None:
    """What one copy does not have is not acknowledged (I2)."""
    old, (one, other) = group.primary, group.backups
    group.hold("replicate", old, other)
    put = await group.begin(0, b"held")
    await group.pending_at(put.tx_id, old, one)
    assert not await put.is_answered(0.5)
    group.release("replicate", old, other)
    await put.answer()
    assert await group.equal() == (1, 1)


async def a_connection_breaks(group: Group) -> None:
    """What was on its way over a connection that broke is sent again, in order (W3)."""
    old, (one, other) = group.primary, group.backups
    await group.put(0, b"before")
    group.hold("replicate", old, other)
    lost = await group.begin(0, b"lost on the way")
    await group.pending_at(lost.tx_id, old, one)
    group.at.world.network.reset(old, other)
    group.release("replicate", old, other)
    behind = await group.begin(1, b"behind")
    assert await lost.is_answered(1.0), "nobody sends it again"
    await behind.answer()
    assert group.in_sync == set(group.at.names), "nobody had to leave the set"
    assert await group.equal() == (3, 3)


async def everybody_has_it(group: Group) -> None:
    """What all copies have has committed, whoever closes what is open (K4c, N5)."""
    await group.put(0, b"before")
    old, backups = group.primary, group.backups
    for name in backups:
        group.hold("stored", name, old)
    every = await group.begin(0, b"everywhere")
    await group.pending_at(every.tx_id, old, *backups)
    await group.fall(old)
    await group.taken_over(1)
    assert await group.outcome(every.tx_id) == "committed"
    assert await group.value(0) == b"everywhere"
    assert await group.equal() == (2, 2)


async def some_have_it(group: Group) -> None:
    """What some copies have is rolled back, and stays so when later ones commit (K4e)."""
    old, (one, other) = group.primary, group.backups
    group.hold("replicate", old, one)
    some = await group.begin(0, b"at one copy")
    await group.pending_at(some.tx_id, old, other)
    await group.fall(old)
    await group.taken_over(1)
    assert await group.outcome(some.tx_id) == "rolled_back"
    await group.put(1, b"behind")
    assert await group.equal() == (2, 2)
    assert await group.value(0) is None
    await group.fall(one)
    group.at.start([old])  # without it nothing could be decided
    await group.until(lambda: group.primary == other)
    await group.at.settled([other])
    assert [await group.value(i) for i in (0, 1)] == [None, b"behind"]


async def a_report_is_late(group: Group) -> None:
    """The author makes its list of all reports: what it has itself is not everywhere (I4, K4)."""
    old, (one, other) = group.primary, group.backups
    group.hold("replicate", old, other)
    some = await group.begin(0, b"at the author")
    await group.pending_at(some.tx_id, old, one)
    group.hold("report", other, one)
    await group.fall(old)
    await group.author(old)
    await trio.sleep(1)
    group.release("report", other, one)
    await group.taken_over(1)
    assert await group.outcome(some.tx_id) == "rolled_back"
    assert await group.equal() == (1, 1)


async def an_old_primary_answers(group: Group) -> None:
    """Who has no lease answers no read (L5)."""
    at, old = group.at, group.primary
    rest = [name for name in at.names if name != old]
    await group.put(0, b"before")
    late = await group.client(old)
    at.cut([old], rest)
    await group.until(lambda: at.member(rest[0]).agreement.topology.index > 0 and _moved(group))
    await at.settled(rest)
    await group.put(0, b"after")
    with suppress(FailureError):
        found = await late.ask("get", group.number, [at.key(group.partition, 0)])
        assert found[0] == [b"after"], "the past was served"
    at.heal()


def _moved(group: Group) -> bool:
    return group.epoch > 1


async def told_by(group: Group, name: str, tx_id: bytes) -> str:
    """Return what a member says of an outcome within some time; "" if it says nothing."""
    client = await group.client(name)
    with trio.move_on_after(2):
        while True:
            try:
                found: str = await client.ask("outcome", tx_id, False, group.partition)
                return found
            except FailureError:
                await trio.sleep(0.05)
    return ""


async def all_but_the_author_have_it(group: Group) -> tuple[Begun, str, list[str]]:
    """Let the primary die while all copies have a PREPARE but the one that will be author."""
    old, (one, *others) = group.primary, group.backups
    group.hold("replicate", old, one)
    some = await group.begin(0, b"not at the author")
    await group.pending_at(some.tx_id, old, *others)
    return some, one, others


async def an_author_dies_with_its_list(group: Group) -> None:
    """Nothing of a list takes effect before every copy has it (K5)."""
    some, one, others = await all_but_the_author_have_it(group)
    for name in others:
        group.hold("settle", one, name)
    await group.fall(group.primary)
    await group.until(lambda: group.primary == one)
    first = await told_by(group, one, some.tx_id)
    await group.fall(one)
    group.at.holds.release_all()
    await group.until(lambda: group.primary in others)
    await group.at.settled(name for name in group.at.names if group.at.nodes[name].running)
    last = await group.outcome(some.tx_id)
    assert first in ("", last), f"{first} was told, and then {last}"
    assert first == "", "its list was nowhere else"


async def an_author_dies_behind_its_open(group: Group) -> None:
    """A list that was stored binds the next author: it may have been opened, and told (K6)."""
    some, one, others = await all_but_the_author_have_it(group)
    for name in others:
        group.hold("replicate", one, name)
    await group.fall(group.primary)
    await group.until(lambda: group.primary == one)
    first = await told_by(group, one, some.tx_id)
    assert first == "rolled_back"
    await group.fall(one)
    group.at.holds.release_all()
    await group.until(lambda: group.primary in others)
    await group.at.settled(name for name in group.at.names if group.at.nodes[name].running)
    last = await group.outcome(some.tx_id)
    assert first == last, f"{first} was told, and then {last}"
    await group.equal()


async def a_commit_of_an_older_epoch_is_late(group: Group) -> None:
    """A commit counts in the epoch in which it was sent: it was told to have failed (T2)."""
    await group.put(0, b"before")
    tx_id, key = group.new_id(), group.at.key(group.partition, 0)
    writes = [[group.number, [key], [b"late"]]]
    late: tuple[Any, ...] = (
        tx_id,
        1,
        False,
        None,
        [],
        [],
        writes,
        [group.partition],
        [group.epoch],
    )
    await group.fall(group.primary)
    await group.taken_over(1)
    assert await group.outcome(tx_id) == "rolled_back"
    epoch = group.epoch
    await group.at.restart(group.primary)  # behind that it does not know what it was asked
    await group.taken_over(epoch)
    client = await group.client()
    with suppress(FailureError):
        await client.ask("commit", *late)
    assert await group.value(0) == b"before", "what was told to have failed has taken effect"
    assert await group.outcome(tx_id) == "rolled_back"


async def a_sync_is_slow_at_a_copy_that_reports(group: Group) -> None:
    """A copy reports behind a sync of its whole log; what it stores then was reported (K3)."""
    at = group.at
    coordinator = at.coordinator()
    assert coordinator is not None
    if group.primary == coordinator:
        group.partition = next(p for p in range(at.partitions) if at.primary(p) != coordinator)
    old, (one, other) = group.primary, group.backups
    await group.put(0, b"before")
    await group.equal()
    slow, log = trio.Event(), at.member(other).log
    run = log.environment.run

    async def slowly(kind: str, work: Callable[[], Any]) -> Any:
        await slow.wait()
        return await run(kind, work)

    log.environment = replace(log.environment, run=slowly)
    put = await group.begin(0, b"acknowledged")
    await group.pending_at(put.tx_id, old, one)
    # The old primary says nothing, hears nothing of what is decided, and goes on.
    for name in at.names:
        if name != old:
            for kind in ("ping", "decided", "promise"):
                group.hold(kind, name, old)
            for kind in ("pong", "ask-promise"):
                group.hold(kind, old, name)
    await group.until(lambda: _known_epoch(group, other) > 1)
    await trio.sleep(0.1)
    slow.set()
    told = await put.is_answered(0.6)
    await group.until(lambda: group.epoch > 1)
    await at.settled(name for name in at.names if name != old)
    if told:
        assert await group.value(0) == b"acknowledged", "it was acknowledged, and is lost"
    at.holds.release_all()
    await at.settled()


def _known_epoch(group: Group, name: str) -> int:
    found = group.at.member(name).groups.story(group.partition)["epoch"]
    assert isinstance(found, int)
    return found


# ---------------------------------------------------------------- rules, taken out


def acknowledged_before_all_copies_have_it(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PartitionStream, "stored_by_all", lambda self: self.own)


def removed_before_it_is_decided(patch: pytest.MonkeyPatch) -> None:
    genuine = PartitionStream.advance

    def advance(self: PartitionStream) -> list[object]:
        for copy, one in list(self.followers.items()):
            if one.stored < self.own and len(self.followers) > 1:
                del self.followers[copy]
        return genuine(self)

    patch.setattr(PartitionStream, "advance", advance)


def nothing_is_sent_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Streams, "send_again", lambda _self, _member: None)


def a_stream_may_have_holes(patch: pytest.MonkeyPatch) -> None:
    nothing_is_sent_again(patch)

    def take(self: Following, item: Item, sender: Incarnation) -> Taken:
        if (item.epoch, sender) != (self.epoch, self.author) or not self.listed:
            return "foreign"
        if item.number <= self.taken:
            return "again"
        self.taken, self.logged = item.number, item.number - 1
        return "new"

    patch.setattr(Following, "take", take)


def a_copy_closes_its_own_gaps(patch: pytest.MonkeyPatch) -> None:
    genuine = ReplicaGroups._seal

    def seal(self: ReplicaGroups, copies: PartitionCopies) -> None:
        genuine(self, copies)
        state, partition = self._log.state, copies.row.partition
        counter = state.counters[partition]
        if copies.author != self._me and counter.hwm > counter.lwm:
            state.copies.pending.pop(partition, None)
            counter.update(counter.lwm, counter.hwm - counter.lwm)

    patch.setattr(ReplicaGroups, "_seal", seal)


def what_all_have_is_rolled_back(patch: pytest.MonkeyPatch) -> None:
    def is_everywhere(*_anything: object) -> bool:
        return False

    patch.setattr(merging, "is_everywhere", is_everywhere)


def committed_up_to_behind_a_rollback(patch: pytest.MonkeyPatch) -> None:
    def take_upto(self: Prepared, _epoch: int, last: int) -> list[Any]:
        found = [one for one in self.all() if one.run.first + one.run.count - 1 <= last]
        for one in found:
            del self._found[one.tx_id]
        return found

    patch.setattr(Prepared, "take", lambda self, tx_id, _run: self._found.get(tx_id))
    patch.setattr(Prepared, "keep", lambda _self, _known: None)
    patch.setattr(Prepared, "take_upto", take_upto)


def a_list_of_some_reports(patch: pytest.MonkeyPatch) -> None:
    genuine = OpeningEpoch.waits_for

    def waits_for(self: OpeningEpoch) -> list[Incarnation]:
        return [] if self.phase == "reports" and self._reports else genuine(self)

    def reports(self: OpeningEpoch) -> list[Report]:
        return list(self._reports.values())

    patch.setattr(OpeningEpoch, "waits_for", waits_for)
    patch.setattr(OpeningEpoch, "reports", reports)


def an_answer_without_a_lease(patch: pytest.MonkeyPatch) -> None:
    def serves(self: Partitions, partition: int, _now: float) -> bool:
        return self.is_open(partition)

    patch.setattr(Partitions, "serves", serves)


def a_list_counts_before_all_have_it(patch: pytest.MonkeyPatch) -> None:
    genuine = OpeningEpoch.waits_for

    def waits_for(self: OpeningEpoch) -> list[Incarnation]:
        return [] if self.phase == "storing" else genuine(self)

    patch.setattr(OpeningEpoch, "waits_for", waits_for)


def no_list_binds(patch: pytest.MonkeyPatch) -> None:
    def binding(_reports: Sequence[Report]) -> SettleRecord | None:
        return None

    patch.setattr(merging, "binding", binding)


def commits_count_in_any_epoch(patch: pytest.MonkeyPatch) -> None:
    def check_epochs(_self: Partitions, _epochs: Iterable[tuple[int, int]]) -> None:
        """Take them all."""

    patch.setattr(Partitions, "check_epochs", check_epochs)


def a_report_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    def put_barrier(_self: NodeLog, then: Callable[[], object]) -> None:
        then()

    patch.setattr(NodeLog, "put_barrier", put_barrier)


def who_knows_more_is_heard_at_once(patch: pytest.MonkeyPatch) -> None:
    genuine = ReplicaGroups.arrived

    def arrived(self: ReplicaGroups, connection: Connection, messages: Iterable[Message]) -> None:
        for message in messages:
            if BY_NUMBER[message[0]].name == "stored":
                self._arrived(connection, message, 0)
            else:
                genuine(self, connection, [message])

    patch.setattr(ReplicaGroups, "arrived", arrived)


def both_of_these(*plants: Plant) -> Plant:
    def plant(patch: pytest.MonkeyPatch) -> None:
        for one in plants:
            one(patch)

    plant.__name__ = "_and_".join(one.__name__ for one in plants)
    return plant


FIVE = {"nodes": 5, "backups": 3}
CASES: list[tuple[Scenario, dict[str, Any], Plant, str]] = [
    (a_copy_has_not_stored, {}, acknowledged_before_all_copies_have_it, "has it not"),
    (a_copy_has_not_stored, {}, removed_before_it_is_decided, "has it not"),
    (a_connection_breaks, {}, nothing_is_sent_again, "nobody sends it again"),
    (a_connection_breaks, {}, a_stream_may_have_holes, "has it not"),
    (everybody_has_it, {}, a_copy_closes_its_own_gaps, "other content|rolled_back"),
    (everybody_has_it, {}, what_all_have_is_rolled_back, "rolled_back|that rolls .* back"),
    (some_have_it, {}, committed_up_to_behind_a_rollback, "other content|at one copy"),
    (a_report_is_late, {}, a_list_of_some_reports, "unknown here"),
    (an_old_primary_answers, {}, an_answer_without_a_lease, "both serve|the past"),
    (an_author_dies_with_its_list, FIVE, a_list_counts_before_all_have_it, "was told, and then"),
    (an_author_dies_behind_its_open, FIVE, no_list_binds, "was told, and then"),
    (a_commit_of_an_older_epoch_is_late, {}, commits_count_in_any_epoch, "told it refused"),
    (
        a_sync_is_slow_at_a_copy_that_reports,
        {"nodes": 5},
        both_of_these(a_report_before_the_sync, who_knows_more_is_heard_at_once),
        "acknowledged, and is lost",
    ),
]


@pytest.mark.parametrize(
    ("scenario", "shape"),
    {case[0].__name__: case[:2] for case in CASES}.values(),
    ids={case[0].__name__: None for case in CASES},
)
def test_a_scenario_passes_with_all_rules(scenario: Scenario, shape: dict[str, Any]) -> None:
    live(scenario, **shape)


@pytest.mark.parametrize(
    ("scenario", "shape", "plant", "told"), CASES, ids=[case[2].__name__ for case in CASES]
)
def test_a_rule_that_is_taken_out_is_found(
    scenario: Scenario,
    shape: dict[str, Any],
    plant: Plant,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch)
    assert_found(told, lambda: live(scenario, **shape))


@pytest.mark.parametrize("plant", [a_report_before_the_sync, who_knows_more_is_heard_at_once])
def test_a_report_that_is_early_is_caught_by_either_of_two_rules(
    plant: Plant, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The old primary does not hear the answer of whoever has sealed: that one knows more.
    plant(monkeypatch)
    live(a_sync_is_slow_at_a_copy_that_reports, nodes=5)
