"""What one member holds of a snapshot of the whole store, and while it holds: what does not happen.

The log is real and over memory; tasks run when a test says so.
"""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from support.group_transactions import FRESH, OTHER, TX, Said
from support.primaries import (
    BOB,
    CID,
    ME,
    Primary,
    committed,
    confirm,
    key_in,
    lock,
    prepare,
    question,
)
from tidelog.affinity.topology import Incarnation
from tidelog.engine.data.overlay import View
from tidelog.engine.data.point_reads import read_stored
from tidelog.engine.data.stored import VALUE
from tidelog.engine.node.pinning import HOLD_S, IDLE_S, LOOK_S, PINS_MAX, Pinning
from tidelog.engine.node.tx_messages import PinnedHere, PreparedAtPin, PreparedPart
from tidelog.errors import ClosedError, SnapshotExpiredError
from tidelog.wal.records import Run

SHARED, ALONE, ALL = 0, 1, 2
"""Partitions that Bob has a copy of too, that nobody else has, and that all have."""
SERVED = [0, 1, 2, 4]
ONE, TWO, THREE = b"1" * 16, b"2" * 16, b"3" * 16
DECIDED = 9


class Pinned(Primary):
    """A primary with pins, and with tasks that run when it is let ``go_on``."""

    def __init__(self) -> None:
        super().__init__()
        self.decisions = DECIDED
        self.begun: list[tuple[Callable[..., Awaitable[object]], tuple[Any, ...]]] = []
        post: Any = self.post
        tasks: Any = self
        self.pinning = Pinning(
            self.files, self.log, self.partitions, self.streams, self.here, post,
            lambda: self.decisions, lambda: self.now, tasks,
        )  # fmt: skip

    def begin(self, work: Callable[..., Awaitable[object]], *arguments: Any) -> bool:
        self.begun.append((work, arguments))
        return True

    def go_on(self) -> None:
        """Let tasks look several times; those that have not ended by then go on the next time."""
        begun, self.begun = self.begun, []

        async def run(work: Callable[..., Awaitable[object]], arguments: tuple[Any, ...]) -> None:
            self.begun.append((work, arguments))
            await work(*arguments)
            self.begun.remove((work, arguments))

        async def all_of_them() -> None:
            with trio.move_on_after(5 * LOOK_S):
                async with trio.open_nursery() as nursery:
                    for one in begun:
                        nursery.start_soon(run, *one)

        self.trio(all_of_them)

    def carry_held(self) -> None:
        """Let the log write what it does not keep back."""

        async def work() -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.log.run)
                for _ in range(8):
                    self.log.hurry()
                    await wait_all_tasks_blocked()
                nursery.cancel_scope.cancel()

        self.trio(work)

    def pin(
        self, snapshot: bytes = ONE, attempt: int = 1, sender: Incarnation = CID,
        decided: int = DECIDED,
    ) -> None:  # fmt: skip
        self.pinning.pin(sender, snapshot, attempt, decided)
        self.carry_held()

    def resume(
        self, snapshot: bytes = ONE, attempt: int = 1, sender: Incarnation = CID
    ) -> list[Said]:
        """Let it go on; return what it says of its hold."""

        async def work() -> None:
            self.pinning.resume(sender, snapshot, attempt)

        self.trio(work)
        return [said for said in self.said() if said[1] == "held"]

    def sealed(self, partition: int) -> None:
        async def work() -> None:
            self.pinning.sealed(partition)

        self.trio(work)

    def write(self, partition: int, tx_id: bytes, value: bytes, number: int = 0) -> None:
        """Let a key get a value, on every copy."""
        wanted = prepare(partition, tx_id, others=(), value=value, number=number)
        self.here.prepare(ME, wanted)
        self.all_have(partition)
        self.said()

    def view(
        self, partition: int = SHARED, snapshot: bytes = ONE, shown: Iterable[bytes] = ()
    ) -> View:
        return self.pinning.view(snapshot, shown, (partition,))

    def shows(
        self, partition: int = SHARED, snapshot: bytes = ONE, shown: Iterable[bytes] = (),
        number: int = 0,
    ) -> bytes | None:  # fmt: skip
        """What a snapshot has of the n-th key of a partition."""
        view = self.view(partition, snapshot, shown)
        stored = read_stored(view, partition, key_in(partition, number))
        return None if stored is None else bytes(stored[VALUE])


def pinned_words(at: Pinned) -> list[tuple[str, PinnedHere]]:
    """Who is told now that a pin is made."""
    at.go_on()
    return [(to, told) for to, kind, told in at.said() if kind == "pinned"]


def prepared(at: Pinned, partition: int = SHARED, tx_id: bytes = TX, **more: Any) -> None:
    """Let a part be prepared, on every copy."""
    at.here.prepare(CID, prepare(partition, tx_id, **more))
    at.all_have(partition)
    at.said()


def is_held(at: Pinned) -> bool:
    return at.pinning.holds


def still(snapshot: bytes, attempt: int, held: bool, to: str = "cid") -> list[Said]:
    return [(to, "held", (snapshot, attempt, held))]


def expired(at: Pinned, snapshot: bytes = ONE, partition: int = SHARED) -> str:
    """Why a snapshot has ended."""
    with pytest.raises(SnapshotExpiredError) as caught:
        at.view(partition, snapshot)
    return str(caught.value)


# ------------------------------------------------------------------ what a pin has


def test_a_pin_has_what_has_taken_effect_and_nothing_that_comes_later() -> None:
    at = Pinned()
    at.write(SHARED, FRESH, b"old")
    at.pin()
    at.resume()
    at.write(SHARED, OTHER, b"new")
    at.write(SHARED, TX, b"first", number=1)
    assert at.value(key_in(SHARED)) == b"new"
    assert at.shows() == b"old"
    assert at.shows(number=1) is None


def test_a_pin_has_what_was_queued_before_it_and_comes_behind_its_sync() -> None:
    at, held = Pinned(), list[bool]()
    at.here.prepare(ME, prepare(ALONE, FRESH, others=(), value=b"old"))
    at.sync_runs = lambda: held.append(is_held(at))
    at.pinning.pin(CID, ONE, 1, DECIDED)
    assert not is_held(at), "not before what is queued is in the log"
    at.carry_held()
    assert (held, is_held(at), at.shows(ALONE)) == ([False], True, b"old")


def test_what_is_served_prepared_and_remembered_is_told() -> None:
    at = Pinned()
    prepared(at, SHARED, OTHER, number=1, others=(3, 5))
    prepared(at, SHARED, FRESH)
    at.here.decision(committed(FRESH, Run(0, 1, 2, 1), Run(3, 1, 1, 1)), [SHARED])
    at.all_have(SHARED)
    prepared(at, ALL, TX, others=(1, 3))
    at.pin(ONE, 2, BOB)
    rows = [PreparedAtPin(SHARED, OTHER, [0, 3, 5]), PreparedAtPin(ALL, TX, [1, 2, 3])]
    told = PinnedHere(ONE, 2, DECIDED, SERVED, rows, [(SHARED, FRESH)])
    assert pinned_words(at) == [("bob", told)]
    assert pinned_words(at) == [], "it is told once"


def test_only_partitions_that_are_open_here_are_pinned() -> None:
    at = Pinned()
    at.decide({ALONE: 2}, authors={4: BOB})
    at.pin()
    [(_, told)] = pinned_words(at)
    assert told.partitions == [SHARED, ALL]
    for partition in (ALONE, 3, 4):
        assert "while others served this" in expired(at, partition=partition)
    with pytest.raises(SnapshotExpiredError, match="while others served this"):
        at.pinning.view(ONE, (), (SHARED, ALONE))
    at.pinning.view(ONE, (), (SHARED, ALL))


def test_a_pin_is_told_once_every_copy_has_what_is_prepared_at_it() -> None:
    at = Pinned()
    at.here.prepare(CID, prepare(ALL, TX))
    at.pin()
    assert pinned_words(at) == []
    at.stored(ALL, BOB)
    assert pinned_words(at) == []
    at.stored(ALL, CID)
    [(_, told)] = pinned_words(at)
    assert told.prepared == [PreparedAtPin(ALL, TX, [2, 3])]


def test_what_became_of_something_is_not_waited_for() -> None:
    at = Pinned()
    prepared(at)
    at.here.decision(committed(TX, Run(0, 1, 1, 1), Run(3, 1, 1, 1)), [SHARED])
    at.carry()
    at.pin()
    [(_, told)] = pinned_words(at)
    assert (told.prepared, told.committed) == ([], [(SHARED, TX)])
    assert at.shows() == b"v"


def test_a_stream_that_has_ended_is_not_waited_for() -> None:
    at = Pinned()
    at.here.prepare(CID, prepare(ALL, TX))
    at.pin()
    at.streams.close(ALL)
    assert len(pinned_words(at)) == 1


def test_copies_are_not_waited_for_any_more_once_a_hold_is_over() -> None:
    at = Pinned()
    at.here.prepare(CID, prepare(ALL, TX))
    at.pin()
    at.go_on()
    assert len(at.begun) == 2
    at.now += HOLD_S
    at.go_on()
    assert at.begun == []


def test_a_pin_whose_hold_is_over_or_that_was_closed_is_not_told() -> None:
    for ends in ("resumed", "closed"):
        at = Pinned()
        at.here.prepare(CID, prepare(ALL, TX))
        at.pin()
        assert pinned_words(at) == []
        if ends == "closed":
            at.pinning.unpin(ONE)
        else:
            at.resume()
        at.stored(ALL, BOB, CID)
        assert pinned_words(at) == []
        at = Pinned()
        at.pin()
        if ends == "closed":
            at.pinning.unpin(ONE)
        else:
            at.resume()
        assert pinned_words(at) == []


def test_a_member_that_knows_other_decisions_or_whose_log_failed_pins_nothing() -> None:
    for decided in (DECIDED - 1, DECIDED + 1):
        at = Pinned()
        at.pin(decided=decided)
        assert (is_held(at), pinned_words(at)) == (False, [])
    at = Pinned()
    at.log.failure = ClosedError("the disk")
    at.pinning.pin(CID, ONE, 1, DECIDED)
    assert at.log._queue == [], "nothing waits for a log that writes nothing any more"
    assert not is_held(at)


def test_it_is_told_how_many_decisions_there_are_by_then() -> None:
    at = Pinned()
    at.pin()
    at.decisions += 1
    [(_, told)] = pinned_words(at)
    assert told.decided == DECIDED + 1, "whoever asked takes it for none"


# ------------------------------------------------------------------ what it shows


def test_what_is_prepared_is_shown_if_the_reader_says_so() -> None:
    at = Pinned()
    at.write(SHARED, FRESH, b"old")
    prepared(at, SHARED, TX, value=b"t")
    prepared(at, SHARED, OTHER, value=b"o", number=1)
    at.pin()
    at.resume()
    values = {
        shown: (at.shows(shown=shown), at.shows(shown=shown, number=1))
        for shown in [(), (TX,), (OTHER,), (OTHER, TX), (FRESH, THREE)]
    }
    assert values == {
        (): (b"old", None), (TX,): (b"t", None), (OTHER,): (b"old", b"o"),
        (OTHER, TX): (b"t", b"o"), (FRESH, THREE): (b"old", None),
    }  # fmt: skip
    assert at.value(key_in(SHARED)) == b"old"
    assert at.view(shown=[TX]) is at.view(shown=[TX]), "it is made once"
    assert at.view(shown=[TX]) is not at.view(shown=[OTHER])


def test_of_two_that_are_prepared_the_later_one_is_shown() -> None:
    at = Pinned()
    for tx_id, value in ((TX, b"first"), (OTHER, b"second")):
        at.here.prepare(CID, prepare(SHARED, tx_id, value=value, others=()))
        at.locks.release(len(at.begun) + (1 if tx_id == TX else 2))
    at.pin()
    [] = pinned_words(at)
    at.stored(SHARED, BOB)
    [(_, told)] = pinned_words(at)
    assert [row.tx_id for row in told.prepared] == [TX, OTHER]
    assert at.shows(shown=[TX, OTHER]) == b"second"


# ------------------------------------------------------------------ while it holds


def test_while_held_nothing_takes_effect() -> None:
    at = Pinned()
    at.here.prepare(ME, prepare(SHARED, TX, others=()))
    at.pin()
    at.stored(SHARED, BOB)
    assert (at.value(key_in(SHARED)), at.said()) == (None, [])
    at.records()
    at.here.prepare(ME, prepare(ALONE, OTHER, others=()))
    at.carry_held()
    assert (at.records(), at.value(key_in(ALONE))) == ([], None)
    assert at.resume() == still(ONE, 1, held=True)
    assert at.value(key_in(SHARED)) == b"v"
    at.carry()
    assert at.value(key_in(ALONE)) == b"v"
    assert ("me", "prepared") in at.kinds()


def test_while_held_no_decision_gets_into_the_log() -> None:
    at = Pinned()
    prepared(at)
    at.pin()
    at.records()
    at.here.decision(committed(TX, Run(0, 1, 1, 1), Run(3, 1, 1, 1)), [SHARED])
    at.tick()
    at.carry_held()
    assert (at.records(), at.value(key_in(SHARED))) == ([], None)
    at.resume()
    at.carry()
    assert at.value(key_in(SHARED)) == b"v", "it is tried at once"


def test_while_held_nothing_is_said_to_be_prepared() -> None:
    at = Pinned()
    prepared(at, SHARED, TX)
    prepared(at, ALONE, OTHER)
    at.here.decision(committed(OTHER, Run(1, 1, 1, 1), Run(3, 1, 1, 1)), [ALONE])
    at.carry()
    at.said()
    at.pin()
    for partition, tx_id in ((SHARED, TX), (ALONE, OTHER)):
        at.here.question(BOB, question(partition, tx_id))
        at.here.prepare(CID, prepare(partition, tx_id))
    at.tick()
    assert at.said() == []

    async def work() -> None:
        at.pinning.resume(CID, ONE, 1)

    at.trio(work)
    part = PreparedPart(TX, 1, Run(0, 1, 1, 1), 1000)
    words = at.said()
    assert [said for said in words if said[1] == "prepared"] == [
        ("bob", "prepared", part), ("cid", "prepared", part)
    ]  # fmt: skip
    at.here.question(BOB, question(ALONE, OTHER))
    assert at.kinds() == [("bob", "prepared")], "what has committed is asked about again"


def test_while_held_no_lock_is_granted() -> None:
    at = Pinned()
    at.pin()
    at.commit_locks.lock(CID, lock(SHARED, TX))
    at.tick()
    at.decide_log()
    assert at.said() == []
    at.resume(THREE)
    assert at.said() == []

    async def work() -> None:
        at.pinning.resume(CID, ONE, 1)

    at.trio(work)
    assert at.said() == [("cid", "locked", (1, SHARED, None)), *still(ONE, 1, held=True)]


def test_locks_without_a_prepare_are_lost_at_a_pin() -> None:
    at = Pinned()
    at.commit_locks.lock(CID, lock(SHARED, TX))
    assert at.kinds() == [("cid", "locked")]
    at.pin()
    assert at.locks.idle
    at.here.prepare(CID, prepare(SHARED, TX, locked=True))
    assert at.kinds() == [("cid", "refused")]


def test_a_lock_that_waits_is_lost_at_a_pin_too() -> None:
    at = Pinned()
    at.here.prepare(BOB, prepare(SHARED, OTHER, others=()))
    at.locks.release(1)
    at.commit_locks.lock(CID, lock(SHARED, TX))
    at.pin()
    assert at.works.of(TX) == []


def test_a_prepare_that_was_not_in_the_log_at_the_pin_is_refused_behind_the_hold() -> None:
    at = Pinned()
    at.commit_locks.lock(CID, lock(SHARED, TX))
    at.said()
    at.pinning.pin(CID, ONE, 1, DECIDED)
    at.here.prepare(CID, prepare(SHARED, TX, locked=True))
    at.carry_held()
    assert (is_held(at), at.said()) == (True, [])
    at.resume()
    at.carry()
    [(to, kind, part)] = at.said()
    assert (to, kind, part.failure.code) == ("cid", "refused", "again")
    assert (at.locks.idle, at.records()) == (True, [])


def test_a_prepare_that_was_in_the_log_at_the_pin_keeps_its_locks() -> None:
    for stored in (False, True):
        at = Pinned()
        at.commit_locks.lock(CID, lock(SHARED, TX))
        at.here.prepare(CID, prepare(SHARED, TX, locked=True))
        at.carry()
        if stored:
            at.stored(SHARED, BOB)
        at.said()
        at.pin()
        assert not at.locks.idle
        at.stored(SHARED, BOB)
        at.resume()
        [work] = at.works.of(TX)
        assert (work.phase, work.is_lost) == ("prepared", False)


def test_who_waited_for_locks_that_are_lost_is_granted_none_at_that_instant() -> None:
    # It would confirm before the pins of others, and be prepared behind this one.
    at = Pinned()
    at.commit_locks.lock(CID, lock(SHARED, TX))
    at.said()
    owner = at.locks.in_way_of(read=[key_in(SHARED)])
    assert owner is not None
    at.locks.wait(owner, lambda: at.commit_locks.lock(BOB, lock(SHARED, OTHER)), lambda: None)
    at.pin()
    assert at.said() == []
    [work] = at.works.of(OTHER)
    assert work.phase == "locking"

    async def go_on() -> None:
        at.pinning.resume(CID, ONE, 1)

    at.trio(go_on)
    assert at.kinds() == [("bob", "locked"), ("cid", "held")]


def test_while_held_what_was_read_is_confirmed_still() -> None:
    at = Pinned()
    at.pin()
    at.commit_locks.confirm(CID, confirm(SHARED, [(0, 0, 0)]))
    assert at.said() == [("cid", "confirmed", (1, SHARED, None))]


# ------------------------------------------------------------------ the end of a hold


def test_a_hold_ends_with_its_last_resume() -> None:
    at = Pinned()
    at.pin(ONE, 1, CID)
    at.now += HOLD_S / 2
    at.pin(TWO, 3, BOB)
    assert at.resume(ONE, 1) == still(ONE, 1, held=True)
    assert is_held(at)
    assert at.resume(TWO, 3, BOB) == still(TWO, 3, held=True, to="bob")
    assert not is_held(at)
    assert at.view(snapshot=ONE) == at.view(snapshot=TWO), "it is one pin"


def test_a_hold_ends_after_a_while_though_nobody_says_so() -> None:
    at = Pinned()
    at.pin()
    at.now += HOLD_S - 0.001
    at.go_on()
    assert is_held(at)
    at.pin(TWO)
    at.now = 100.0 + HOLD_S
    assert at.resume() == still(ONE, 1, held=False), "the time is over, whoever notices it"
    assert is_held(at)
    at.go_on()
    assert not is_held(at)
    assert at.resume(TWO) == still(TWO, 1, held=False)
    assert "no such snapshot" in expired(at, TWO)


def test_who_was_waited_for_in_an_earlier_hold_is_not_in_a_later_one() -> None:
    at = Pinned()
    at.pin(ONE)
    at.now += HOLD_S
    at.go_on()
    at.pin(TWO)
    assert at.resume(TWO) == still(TWO, 1, held=True)
    assert not is_held(at)


def test_a_hold_takes_its_time_anew() -> None:
    at = Pinned()
    at.pin()
    at.resume()
    at.now += HOLD_S / 2
    at.pin(TWO)
    at.now += HOLD_S - 0.001
    assert at.resume(TWO) == still(TWO, 1, held=True)


def test_the_time_of_an_earlier_hold_does_not_end_a_later_one() -> None:
    at = Pinned()

    async def scenario() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(at.log.run)
            for snapshot in (ONE, TWO):
                at.pinning.pin(CID, snapshot, 1, DECIDED)
                await trio.sleep(LOOK_S)
                for work, arguments in at.begun:
                    nursery.start_soon(work, *arguments)
                at.begun.clear()
                await trio.sleep(3 * LOOK_S)
                if snapshot == ONE:
                    at.pinning.resume(CID, ONE, 1)
                    at.now += HOLD_S / 2
            at.now += HOLD_S / 2
            await trio.sleep(3 * LOOK_S)
            assert is_held(at)
            at.now += HOLD_S / 2
            await trio.sleep(3 * LOOK_S)
            assert not is_held(at)
            nursery.cancel_scope.cancel()

    at.trio(scenario)


def test_a_resume_counts_for_its_snapshot_and_its_attempt() -> None:
    at = Pinned()
    at.pin(ONE, 2)
    assert at.resume(TWO, 2) == still(TWO, 2, held=False)
    assert at.resume(ONE, 1) == still(ONE, 1, held=False)
    assert is_held(at)
    assert at.resume(ONE, 2) == still(ONE, 2, held=True), "the older word leaves its pin alone"
    assert not is_held(at)
    at.pin(ONE, 3)
    assert at.resume(ONE, 3) == still(ONE, 3, held=True)
    assert at.resume(ONE, 3) == still(ONE, 3, held=False), "it counts once"


def test_a_snapshot_that_is_taken_again_has_the_newest_pin() -> None:
    at = Pinned()
    at.pin(ONE, 1)
    at.resume(ONE, 1)
    at.write(SHARED, FRESH, b"new")
    at.pin(ONE, 2)
    assert at.resume(ONE, 2) == still(ONE, 2, held=True)
    assert at.shows() == b"new"


def test_who_lost_its_lease_has_not_held() -> None:
    at = Pinned()
    at.pin()
    at.leases.held = False
    assert at.resume() == still(ONE, 1, held=False)
    assert not is_held(at)
    assert "no such snapshot" in expired(at)


def test_an_epoch_that_ends_ends_the_hold_and_the_pins_that_have_it() -> None:
    at = Pinned()
    at.decide(authors={ALONE: BOB})
    at.pin(TWO)
    at.resume(TWO)
    at.decide()
    at.pin()
    at.sealed(ALONE)
    assert not is_held(at)
    assert at.resume() == still(ONE, 1, held=False)
    assert "no such snapshot" in expired(at)
    assert at.shows(snapshot=TWO) is None, "that one did not have it"
    at.pin()
    at.sealed(3)
    assert is_held(at)
    at.sealed(SHARED)
    assert (is_held(at), "no such" in expired(at, TWO)) == (False, True)


def test_who_reads_a_pin_that_another_epoch_ended_hears_why() -> None:
    at = Pinned()
    at.pin()
    [pin] = at.pinning._pins.values()
    at.sealed(ALONE)
    with pytest.raises(SnapshotExpiredError, match="by another member, or anew"):
        pin.view(frozenset(), ())


def test_an_epoch_that_has_begun_before_the_resume_is_another_one() -> None:
    at = Pinned()
    at.pin()
    at.decide({ALONE: 2})
    assert at.resume() == still(ONE, 1, held=False)
    at = Pinned()
    at.pin()
    at.decide({ALONE: 2})
    at.partitions.opened([(ALONE, 2)])
    assert at.resume() == still(ONE, 1, held=False), "it is served again, and another epoch"


def test_a_pin_that_has_ended_in_its_hold_is_told_as_such() -> None:
    at = Pinned()
    at.pin()
    at.files.snapshots.expire("the data file has to grow")
    assert at.resume() == still(ONE, 1, held=False)


# ------------------------------------------------------------------ the end of a pin


def test_a_pin_ends_if_nobody_reads_it_for_a_while() -> None:
    at = Pinned()
    for snapshot in (ONE, TWO):
        at.pin(snapshot)
        at.resume(snapshot)
    at.now += IDLE_S
    at.pinning.tick()
    at.view(snapshot=ONE)
    [_, idle] = at.pinning._pins.values()
    at.now += 0.5
    at.pinning.tick()
    at.view(snapshot=ONE)
    assert "no such snapshot" in expired(at, TWO)
    with pytest.raises(SnapshotExpiredError, match=r"not read for 60 s"):
        idle.view(frozenset(), ())
    assert [*at.pinning._attempts] == [ONE], "nothing is kept of what has ended"


def test_a_pin_ends_if_all_pin_too_much_memory_the_oldest_first() -> None:
    at = Pinned()
    at.files.options.snapshot_memory_max = 0
    for number, snapshot in enumerate((ONE, TWO)):
        at.write(SHARED, bytes([number]) * 16, b"some bytes")
        at.pin(snapshot)
        at.resume(snapshot)
        at.now += 1.0
    at.pinning.tick()
    at.view(snapshot=ONE)
    for layer in at.log.overlay.begin_flush():
        at.log.overlay.end_flush([layer], at.log.overlay.view.txn)
    at.pinning.tick()
    assert "snapshot_memory_max" in expired(at, ONE)
    at.view(snapshot=TWO)
    at.pinning.tick()
    assert "snapshot_memory_max" in expired(at, TWO)


def test_a_pin_ends_when_the_data_file_grows() -> None:
    at = Pinned()
    prepared(at)
    at.pin()
    at.resume()
    at.view(shown=[TX])
    at.files.snapshots.expire("the data file has to grow")
    assert expired(at) == "the snapshot was ended: the data file has to grow"
    with pytest.raises(SnapshotExpiredError):
        at.view(shown=[TX])
    at.files.snapshots.expire("another reason")
    assert "has to grow" in expired(at), "it ends once"


def test_of_too_many_the_oldest_ends() -> None:
    at = Pinned()
    names = [number.to_bytes(16, "big") for number in range(PINS_MAX + 1)]
    for name in names[:-1]:
        at.pin(name)
        at.resume(name)
    oldest = at.pinning._pins[names[0]]
    at.view(snapshot=names[0])
    at.pin(names[-1])
    assert "no such snapshot" in expired(at, names[0])
    with pytest.raises(SnapshotExpiredError, match="too many others"):
        oldest.view(frozenset(), ())
    for name in names[1:]:
        at.view(snapshot=name)


def test_a_snapshot_that_is_taken_again_is_none_of_the_oldest() -> None:
    at = Pinned()
    names = [number.to_bytes(16, "big") for number in range(PINS_MAX)]
    for name in (*names, names[0], ONE):
        at.pin(name)
        at.resume(name)
    assert "no such snapshot" in expired(at, names[1])
    at.view(snapshot=names[0])


def test_of_too_many_that_share_a_pin_it_stays() -> None:
    at = Pinned()
    names = [number.to_bytes(16, "big") for number in range(PINS_MAX + 1)]
    for name in names:
        at.pin(name)
    for name in names:
        at.resume(name)
    assert "no such snapshot" in expired(at, names[0])
    at.view(snapshot=names[-1])


def test_a_snapshot_that_is_closed_ends_unless_another_one_has_the_same_pin() -> None:
    at = Pinned()
    at.pin(ONE)
    at.pin(TWO)
    at.resume(ONE)
    at.resume(TWO)
    at.pinning.unpin(ONE)
    at.pinning.unpin(THREE)
    assert "no such snapshot" in expired(at, ONE)
    at.view(snapshot=TWO)
    [pin] = at.pinning._pins.values()
    at.pinning.unpin(TWO)
    with pytest.raises(SnapshotExpiredError, match="it was closed"):
        pin.view(frozenset(), ())
    assert "0 snapshots" in repr(at.pinning)


def test_what_a_pin_kept_apart_is_merged_once_it_has_ended() -> None:
    at = Pinned()
    at.write(SHARED, FRESH, b"old")
    at.pin()
    at.resume()
    at.write(SHARED, OTHER, b"new")
    assert at.log.overlay.layers == 2
    at.pinning.unpin(ONE)
    at.log.overlay.take_up_ended()
    assert at.log.overlay.layers == 1


def test_a_pin_that_nobody_has_any_more_keeps_nothing_apart() -> None:
    at = Pinned()
    at.write(SHARED, FRESH, b"old")
    at.pin()
    at.leases.held = False
    at.resume()
    at.begun.clear()
    gc.collect()
    assert len(at.log.overlay.ended) == 1
    assert list(at.files.snapshots) == []


def test_a_pin_that_has_ended_for_its_memory_keeps_none_though_it_was_read() -> None:
    at = Pinned()
    prepared(at)
    at.pin()
    at.resume()
    assert at.shows(shown=[TX]) == b"v"
    [pin] = at.files.snapshots
    pin.expire("it took too much memory")
    assert "too much memory" in expired(at), "it is there until it is told to go"
    assert (pin._view, pin._shown, pin.prepared) == (None, None, [])


def test_a_pin_ends_with_its_store() -> None:
    for end in ("end", "forked"):
        at = Pinned()
        at.pin()
        at.resume()
        [pin] = at.files.snapshots
        assert pin.layers() is not None
        getattr(pin, end)(lambda: ClosedError("the store is closed"))
        assert pin.layers() is None
        assert "its member has ended" in expired(at)


def test_pins_say_what_they_are() -> None:
    at = Pinned()
    assert repr(at.pinning) == "<Pinning 0 snapshots>"
    prepared(at)
    at.pin()
    assert repr(at.pinning) == "<Pinning 1 snapshots, holds>"
    assert repr(at.pinning._pins[ONE]) == "<StorePin of 4 partitions, 1 prepared>"
