"""Rules of transactions over several groups, each taken out, and a scenario that finds it.

A scenario holds messages so that the rule is all that stands between its clients and half a
transaction, or an order that nobody can explain.  With the rule it passes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from support.copies import assert_found
from support.parts import Three, together
from support.raw_client import FailureError
from tidelog.checkpoints.copies import Prepared
from tidelog.engine.node import snapshots
from tidelog.engine.node.commit_locks import CommitLocks
from tidelog.engine.node.group_locks import GroupLocks
from tidelog.engine.node.near import Near
from tidelog.engine.node.participating import Participating
from tidelog.engine.node.settling import Settling
from tidelog.engine.node.tx_messages import GroupOutcome, PreparedPart
from tidelog.engine.node.works import Work
from tidelog.engine.replication import merging
from tidelog.engine.replication.streams import PartitionStream
from tidelog.wal.records import Run

Scenario = Callable[[Three], Awaitable[None]]
Plant = Callable[[pytest.MonkeyPatch], None]
APART: Any = {"nodes": 6, "backups": 1, "apart": True}
"""No member has copies of two of the partitions: what is held concerns one step only."""
HALF = "half of a transaction"
ORDER = "an order that cannot be"


async def fill(three: Three) -> None:
    await three.put(p=b"old", q=b"old", r=b"old")
    await three.at.quiesce()


async def ends_whole(three: Three) -> bool:
    """Let everything settle; return whether p and q have something new."""
    await three.whole()
    values = await three.values("p", "q")
    assert values in ([b"old", b"old"], [b"new", b"new"]), f"{HALF}: {values}"
    return values[0] == b"new"


# ---------------------------------------------------------------- scenarios


async def somebody_reads_between_confirm_and_commit(three: Three) -> None:
    """T12: who has seen what came behind a transaction sees that transaction."""
    await fill(three)
    three.at.hold("confirmed", src=three.r.primary, dst=three.near)
    writer = await three.begin({"p": b"new"}, await three.versions("r"))
    await trio.sleep(0.2)
    await three.put(r=b"newer")
    assert await three.values("r") == [b"newer"]
    reading = await three.reader("p")
    early = await reading.is_answered(0.3)
    three.at.release("confirmed", src=three.r.primary, dst=three.near)
    with suppress(FailureError):
        await writer.answer()
    [value] = await three.values("p")
    assert not (early and value == b"new"), f"{ORDER}: p was read old behind the newer r"


async def a_copy_reads_between_confirm_and_commit(three: Three) -> None:
    """Q3 with T12: a copy does not know the locks of its primary, which does not confirm it."""
    await fill(three)
    backup = three.p.backups[0]
    three.at.hold("confirmed", src=three.r.primary, dst=three.near)
    writer = await three.begin({"p": b"new"}, await three.versions("r"))
    await trio.sleep(0.2)
    await three.put(r=b"newer")
    reading = await three.reader("p", backup)
    seen = await reading.seen_within(0.3)
    three.at.release("confirmed", src=three.r.primary, dst=three.near)
    await writer.answer()
    assert seen != b"old", f"{ORDER}: p was read old behind the newer r"


async def a_copy_computes_before_and_asks_behind(three: Three) -> None:
    """Q3 with T12: what a copy computed while its primary had locks is not confirmed later."""
    await fill(three)
    backup = three.p.backups[0]
    three.at.hold("confirmed", src=three.r.primary, dst=three.near)
    writer = await three.begin({"p": b"new"}, await three.versions("r"))
    await trio.sleep(0.2)
    await three.put(r=b"newer")
    readers: Any = three.at.member(backup).groups.readers
    asks, outflow = list[Any](), readers._outflow
    readers._outflow = SimpleNamespace(tell=lambda *told: asks.append(told))
    reading = await three.reader("p", backup)
    await three.until(lambda: bool(asks))
    three.at.release("confirmed", src=three.r.primary, dst=three.near)
    await writer.answer()
    readers._outflow = outflow
    outflow.tell(*asks[0])
    seen = await reading.seen_within(1)
    assert seen != b"old", f"{ORDER}: p was read old behind the newer r"


async def a_lock_is_late(three: Three) -> None:
    """T3: nothing is confirmed before all locks are held."""
    await fill(three)
    three.at.hold("lock", src=three.near, dst=three.q.primary)
    writer = await three.begin({"p": b"new", "q": b"new"}, await three.versions("r"))
    await trio.sleep(0.2)
    await three.put(r=b"newer")
    [seen] = await three.values("q")
    assert seen == b"old"
    three.at.release("lock", src=three.near, dst=three.q.primary)
    told = ""
    try:
        await writer.answer()
    except FailureError as failure:
        told = failure.code
    assert told, f"{ORDER}: q was read old behind the newer r"
    assert not await ends_whole(three)


async def a_refusal_is_answered_and_the_prepare_comes(three: Three) -> None:
    """T8a: what was told refused is not prepared later, by a near member that was slow."""
    await fill(three)
    near, other = three.near, three.q.primary
    three.at.hold("prepare", src=near, dst=other)
    tx = await three.begin({"p": b"new", "q": b"new", "r": b"new"})
    await three.prepared(tx, "p", "r")
    await three.until(lambda: not three.r.has_pending(three.r.primary, tx.tx_id))
    three.at.release("prepare", src=near, dst=other)
    with suppress(FailureError, OSError):
        await tx.answer()
    await three.whole()
    values = await three.values("p", "q", "r")
    assert len(set(values)) == 1, f"{HALF}: {values}"


async def one_copy_has_no_prepare(three: Three) -> None:
    """T6: prepared is told once every copy has it."""
    await fill(three)
    near, [one] = three.near, three.p.backups
    three.at.hold("replicate", src=near, dst=one)
    tx = await three.begin({"p": b"new", "q": b"new"})
    answered = await tx.is_answered(0.5)
    if answered:
        await three.p.fall(near)
        await three.until(lambda: three.p.primary != near)
    committed = await ends_whole(three)
    assert committed or not answered, f"{HALF}: it was acknowledged, and is lost"


async def a_primary_dies_behind_the_answer(three: Three) -> None:
    """K4d: what every copy has prepared stays so, for it may have been acknowledged."""
    await fill(three)
    three.at.hold("decision", src=three.near, dst=three.q.primary)
    tx = await three.begin({"p": b"new", "q": b"new"})
    await tx.answer()
    await three.q.fall(three.q.primary)
    assert await ends_whole(three), f"{HALF}: it was acknowledged, and is lost"


async def the_end_is_late_at_one_group(three: Three) -> None:
    """T11: locks go with the end, so nobody reads the old value behind the answer."""
    await fill(three)
    three.at.hold("decision", src=three.near, dst=three.q.primary)
    tx = await three.begin({"p": b"new", "q": b"new"})
    await tx.answer()
    reading = await three.reader("q")
    seen = await reading.seen_within(0.5)
    assert seen != b"old", f"{ORDER}: q is old behind the acknowledgement"
    assert await ends_whole(three)


async def a_new_primary_has_it_pending(three: Three) -> None:
    """T13: what is pending keeps its keys locked behind a takeover."""
    await fill(three)
    old = three.q.primary
    three.at.hold("decision", src=three.near, dst=old)
    for name in three.at.names:
        three.at.hold("question", src=name, dst=three.near)
    tx = await three.begin({"p": b"new", "q": b"new"})
    await tx.answer()
    await three.q.fall(old)
    await three.q.taken_over(1)
    reading = await three.reader("q")
    seen = await reading.seen_within(0.3)
    assert seen != b"old", f"{ORDER}: q is old behind the acknowledgement"
    assert await ends_whole(three)


async def two_read_what_the_other_one_writes(three: Three) -> None:
    """T3: what somebody else is about to write is not confirmed."""
    await fill(three)
    reads_p, reads_q = await three.versions("p"), await three.versions("q")
    near, other = three.near, three.q.primary
    three.at.hold("confirm", src=near, dst=other)
    three.at.hold("confirm", src=other, dst=near)
    one = await three.begin({"p": b"new"}, reads_q)
    two = await three.begin({"q": b"newer"}, reads_p)
    await trio.sleep(0.2)
    three.at.holds.release_all()
    won = [await one.is_answered(2), await two.is_answered(2)]
    await three.whole()
    assert await three.values("p", "q") != [b"new", b"newer"], (
        f"{ORDER}: each has read the other old"
    )
    assert won != [True, True]


async def one_group_hears_of_the_end_late(three: Three) -> None:
    """T14: what has committed is remembered until every group has it."""
    await fill(three)
    near, other = three.near, three.q.primary
    three.at.hold("decision", src=near, dst=other)
    three.at.hold("question", src=other, dst=near)
    tx = await three.begin({"p": b"new", "q": b"new"})
    await tx.answer()
    await trio.sleep(4)
    await three.p.fall(near)
    await three.until(lambda: three.p.primary != near)
    assert await ends_whole(three), f"{HALF}: it was acknowledged, and is lost"


async def a_commit_of_one_group_comes_behind(three: Three) -> None:
    """T15: COMMIT_UPTO decides what is of one group, and nothing else."""
    await fill(three)
    near, other = three.near, three.q.primary
    three.at.hold("prepare", src=near, dst=other)
    tx = await three.begin({"p": b"new", "q": b"new"})
    await three.prepared(tx, "p")
    await three.p.put(1, b"behind")
    last = three.p.numbers(near)[1]
    logs = [three.at.member(name).log.state for name in three.p.in_sync]
    counters = [state.counters[three.p.partition] for state in logs]
    await three.until(lambda: all(counter.highest_applied == last for counter in counters))
    found = [three.p.has_pending(name, tx.tx_id) for name in three.p.in_sync]
    assert all(found), f"{HALF}: it took effect without q"
    three.at.release("prepare", src=near, dst=other)
    await ends_whole(three)


async def the_near_member_dies_between_two_prepares(three: Three) -> None:
    """T6, T10: it has committed only if all groups have prepared."""
    await fill(three)
    near, other = three.near, three.q.primary
    three.at.hold("prepare", src=near, dst=other)
    tx = await three.begin({"p": b"new", "q": b"new", "r": b"new"})
    await three.prepared(tx, "p", "r")
    await three.p.fall(near)
    await three.until(lambda: three.p.primary != near)
    await three.whole()
    values = await three.values("p", "q", "r")
    assert values == [b"old"] * 3, f"{HALF}: {values}"


async def a_snapshot_is_taken_while_one_group_has_the_end(three: Three) -> None:
    """Q5: what is prepared at a pin is shown if each of its groups has it."""
    await fill(three)
    three.at.hold("decision", src=three.near, dst=three.q.primary)
    for name in three.at.names:
        three.at.hold("question", src=three.q.primary, dst=name)
    tx = await three.begin({"p": b"new", "q": b"new"})
    await tx.answer()
    await three.until(lambda: not three.p.has_pending(three.near, tx.tx_id))
    seen = await three.snapshot("p", "q", by=three.r.primary)
    assert seen == [b"new", b"new"], f"{HALF} in a snapshot: {seen}"
    assert await ends_whole(three)


async def a_snapshot_is_taken_between_confirm_and_prepare(three: Three) -> None:
    """Q5: what has confirmed before a pin is not prepared behind it."""
    await fill(three)
    three.at.hold("confirmed", src=three.r.primary, dst=three.near)
    writer = await three.begin({"p": b"new"}, await three.versions("r"))
    await trio.sleep(0.1)
    await three.put(r=b"newer")
    other = await three.snapshot("p", "r", by=three.q.primary)
    three.at.release("confirmed", src=three.r.primary, dst=three.near)
    told = await writer.is_answered(1.0)
    [value] = await three.values("p")
    late = told and value == b"new" and other == [b"old", b"newer"]
    assert not late, f"{ORDER}: the snapshot has the later r without the earlier p"


# ---------------------------------------------------------------- rules, taken out


def nobody_waits_for_locks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GroupLocks, "in_way_of", lambda *_one, **_other: None)


def copies_are_confirmed_beside_locks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Participating, "copy_may_read", lambda *_: True)


def what_a_copy_had_is_not_asked(patch: pytest.MonkeyPatch) -> None:
    genuine = Participating.copy_may_read

    def copy_may_read(self: Participating, partition: int, _number: int) -> bool:
        return genuine(self, partition, 1 << 40)

    patch.setattr(Participating, "copy_may_read", copy_may_read)


def confirmed_before_all_is_locked(patch: pytest.MonkeyPatch) -> None:
    lock, answered = Near._lock, Near._answered

    def lock_and_confirm(self: Near, tx: Any) -> None:
        lock(self, tx)
        locks = set(tx.waits)
        self._confirm(tx)
        tx.waits |= locks

    def any_answer(self: Near, ask: int, step: Any, *rest: Any) -> Any:
        known = self._by_ask.get(ask)
        return answered(self, ask, step if known is None else known.step, *rest)

    patch.setattr(Near, "_lock", lock_and_confirm)
    patch.setattr(Near, "_answered", any_answer)
    patch.setattr(Near, "locked", Near.confirmed)


def refusals_are_not_remembered(patch: pytest.MonkeyPatch) -> None:
    genuine = Participating._refuse

    def refuse(self: Participating, *arguments: Any) -> None:
        genuine(self, *arguments)
        self._refused.clear()

    patch.setattr(Participating, "_refuse", refuse)


def prepared_at_its_primary_is_enough(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PartitionStream, "stored_by_all", lambda self: self.own)


def a_takeover_rolls_back_what_waits_for_others(patch: pytest.MonkeyPatch) -> None:
    genuine = merging.is_everywhere

    def is_everywhere(run: Run, copies: Any) -> bool:
        known = [one.prepared[run].participants for one in copies if run in one.prepared]
        return genuine(run, copies) and known[0] == 1

    patch.setattr(merging, "is_everywhere", is_everywhere)


def locks_go_when_it_is_prepared(patch: pytest.MonkeyPatch) -> None:
    genuine = Participating._tell

    def tell(self: Participating, work: Work) -> None:
        genuine(self, work)
        if work.phase == "prepared":
            self._locks.release(work.owner)

    patch.setattr(Participating, "_tell", tell)


def what_is_pending_is_not_locked_again(patch: pytest.MonkeyPatch) -> None:
    genuine = Participating.opened

    def opened(self: Participating, partition: int) -> None:
        genuine(self, partition)
        for work in self._works.within(partition):
            self._locks.release(work.owner)

    patch.setattr(Participating, "opened", opened)


def confirms_look_at_no_locks(patch: pytest.MonkeyPatch) -> None:
    def confirm(self: CommitLocks, _wanted: Any) -> None:
        """Take whatever was read."""

    patch.setattr(CommitLocks, "_confirm", confirm)


def forgotten_by_who_has_it(patch: pytest.MonkeyPatch) -> None:
    genuine = Settling._committed

    def committed(self: Settling, partition: int, tx_id: bytes) -> None:
        genuine(self, partition, tx_id)
        self.forget([(partition, tx_id)])

    patch.setattr(Settling, "_committed", committed)
    original = Settling.__init__

    def begin(self: Settling, *arguments: Any) -> None:
        original(self, *arguments)
        self._participating.committed_here = self._committed

    patch.setattr(Settling, "__init__", begin)


def committed_up_to_takes_all(patch: pytest.MonkeyPatch) -> None:
    def take_upto(self: Prepared, epoch: int, last: int) -> list[Any]:
        found = [one for one in self.all() if one.run.epoch == epoch and one.run.first <= last]
        for one in found:
            del self._found[one.tx_id]
        return found

    patch.setattr(Prepared, "take_upto", take_upto)


def one_answer_decides(patch: pytest.MonkeyPatch) -> None:
    def prepared(self: Settling, part: PreparedPart) -> None:
        for work in self._works.of(part.tx_id):
            if work.run is not None and work.decided is None and work.run != part.run:
                runs = tuple(sorted((work.run, part.run)))
                self._participating.end(
                    work, GroupOutcome(work.tx_id, work.attempt, runs, part.time)
                )

    def refused(_self: Settling, _part: Any) -> None:
        """Hear nothing of it."""

    patch.setattr(Settling, "prepared", prepared)
    patch.setattr(Settling, "refused", refused)


def a_snapshot_shows_nothing_that_is_prepared(patch: pytest.MonkeyPatch) -> None:
    def shown_of(_pins: Any) -> list[bytes]:
        return []

    patch.setattr(snapshots, "shown_of", shown_of)


def locks_outlive_a_pin(patch: pytest.MonkeyPatch) -> None:
    def lose_locks(_self: Participating) -> None:
        """Keep them."""

    patch.setattr(Participating, "lose_locks", lose_locks)


CASES: list[tuple[Scenario, Plant, str]] = [
    (
        a_snapshot_is_taken_while_one_group_has_the_end,
        a_snapshot_shows_nothing_that_is_prepared,
        f"{HALF} in a snapshot",
    ),
    (a_snapshot_is_taken_between_confirm_and_prepare, locks_outlive_a_pin, ORDER),
    (somebody_reads_between_confirm_and_commit, nobody_waits_for_locks, ORDER),
    (a_copy_reads_between_confirm_and_commit, copies_are_confirmed_beside_locks, ORDER),
    (a_copy_computes_before_and_asks_behind, what_a_copy_had_is_not_asked, ORDER),
    (a_lock_is_late, confirmed_before_all_is_locked, ORDER),
    (a_refusal_is_answered_and_the_prepare_comes, refusals_are_not_remembered, HALF),
    (one_copy_has_no_prepare, prepared_at_its_primary_is_enough, f"{HALF}|has it not"),
    (a_primary_dies_behind_the_answer, a_takeover_rolls_back_what_waits_for_others, "back|half"),
    (the_end_is_late_at_one_group, locks_go_when_it_is_prepared, ORDER),
    (a_new_primary_has_it_pending, what_is_pending_is_not_locked_again, ORDER),
    (two_read_what_the_other_one_writes, confirms_look_at_no_locks, ORDER),
    (one_group_hears_of_the_end_late, forgotten_by_who_has_it, HALF),
    (a_commit_of_one_group_comes_behind, committed_up_to_takes_all, f"{HALF}|other content"),
    (the_near_member_dies_between_two_prepares, one_answer_decides, HALF),
]
SCENARIOS = {case[0]: None for case in CASES}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[one.__name__ for one in SCENARIOS])
def test_a_scenario_of_groups_passes_with_all_rules(scenario: Scenario) -> None:
    together(scenario, **APART)


@pytest.mark.parametrize(
    ("scenario", "plant", "told"), CASES, ids=[case[1].__name__ for case in CASES]
)
def test_a_rule_of_groups_that_is_taken_out_is_found(
    scenario: Scenario, plant: Plant, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert_found(told, lambda: together(scenario, **APART))
