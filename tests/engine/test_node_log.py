"""What a member's log says by itself, and what it has of what is on its way.

When it begins it says how far what is prepared has committed.
"""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from support.fold_scripts import PARTITIONS, id_of, record_of
from support.group_transactions import FRESH, OTHER, TX
from support.primaries import CID, ME, Primary, committed, prepare
from tidelog.affinity.partitions import one_space
from tidelog.checkpoints.replay import State
from tidelog.engine.node.log import GROUP_BYTES_MAX, HELD_S, NodeLog
from tidelog.engine.replication.streams import Streams
from tidelog.errors import DiskError
from tidelog.wal.records import (
    ClearRecord,
    CommitUptoRecord,
    IdleRecord,
    Pending,
    Run,
    TxRecord,
    Upto,
    decode_payload,
)

OPENED = ("settle p0 e1 from #1", "open p0 e1")


def state_of(*lines: str) -> State:
    """The fold of records, as scripts have them."""
    state = State(b"s" * 16, one_space(PARTITIONS))
    for position, line in enumerate(lines):
        state.apply(position, record_of(line))
    return state


def log_of(state: State) -> NodeLog:
    """A log without a disk: nothing that is queued is carried."""
    environment = SimpleNamespace(
        clock=lambda: 1, new_id=lambda: bytes(16), boottime=lambda: 1.0, monotonic=lambda: 1.0
    )
    files: Any = SimpleNamespace(
        environment=environment,
        mutex=threading.Lock(),
        state=state,
        overlay=None,
        writer=SimpleNamespace(position=0),
        keeper=SimpleNamespace(note_given_id=None),
        path="store",
    )
    return NodeLog(files, Streams())


def told_at_recovery(state: State) -> list[Any]:
    """The records that the log is given when its member begins."""
    log = log_of(state)
    log.tell_recovered()
    _, *queued = log.waiting
    return [record for commit in queued for record in decode_payload(commit.record(0))]  # type: ignore[attr-defined]  # a commit of the log's own


def upto(last: int) -> list[CommitUptoRecord]:
    return [CommitUptoRecord(rows=(Upto(0, 1, last),))]


APPLIED = ("prepare A p0 e1 #1: a=1", "commit_upto p0 e1 #1")
BELOW = ("prepare A p0 e1 #1 with p1: a=1", "prepare B p0 e1 #2: b=1", "commit_upto p0 e1 #2")


@pytest.mark.parametrize(
    ("lines", "last"),
    [
        (APPLIED, 1),
        # What is of several groups is pending below, and says nothing of what was prepared behind.
        (BELOW, 2),
        ((*BELOW, "prepare C p0 e1 #3 with p1: c=1"), 2),
        ((*BELOW, "commit A time 9: p0 e1 #1+1, p1 e1 #1+1; here p0"), 2),
        # What is of this partition alone commits in its order, so the first one that waits ends it.
        ((*BELOW, "prepare C p0 e1 #3: c=1", "prepare D p0 e1 #4: d=1"), 2),
        ((*BELOW, "prepare C p0 e1 #3: c=1", "prepare D p0 e1 #4 with p1: d=1",
          "commit D time 9: p0 e1 #4+1, p1 e1 #1+1; here p0"), 2),
        (("prepare A p0 e1 #1 with p1: a=1", "prepare D p0 e1 #2 with p1: d=1",
          "commit D time 9: p0 e1 #2+1, p1 e1 #1+1; here p0"), 2),
    ],
)  # fmt: skip
def test_what_has_committed_before_is_told_over_what_waits_for_other_groups(
    lines: tuple[str, ...], last: int
) -> None:
    state = state_of(*OPENED, *lines)
    waiting = [one.tx_id for one in state.copies.prepared(0).all()]
    [told] = told_at_recovery(state)
    assert [told] == upto(last)
    state.apply(99, told)
    assert [one.tx_id for one in state.copies.prepared(0).all()] == waiting, "it tells nothing new"


def test_who_reads_the_log_alone_learns_by_it_what_has_committed() -> None:
    # The word of the process before has not reached the log: what has committed is in its state.
    [told] = told_at_recovery(state_of(*OPENED, *BELOW))
    reader = state_of(*OPENED, *BELOW[:-1])
    assert [one.tx_id for one in reader.copies.prepared(0).all()] == [id_of("A"), id_of("B")]
    reader.apply(99, told)
    assert [one.tx_id for one in reader.copies.prepared(0).all()] == [id_of("A")]


def test_what_the_head_of_a_segment_has_pending_may_be_of_one_group() -> None:
    state = state_of(*OPENED, *BELOW)
    state.copies.prepared(0).add(Pending(id_of("C"), 1, Run(0, 1, 2, 1)))
    assert told_at_recovery(state) == upto(1)


def test_nothing_is_told_where_nothing_has_committed_or_nobody_else_has_a_copy() -> None:
    assert told_at_recovery(state_of()) == []
    assert told_at_recovery(state_of(*OPENED, "prepare A p0 e1 #1: a=1")) == []
    assert told_at_recovery(state_of(*OPENED, "prepare A p0 e1 #1 with p1: a=1")) == []
    assert told_at_recovery(state_of("tx A p0 e1 #1: a=1")) == [], "of a store of its own"


# ------------------------------------------------------------------ on its way

SHARED, ALONE = 0, 1
"""Partitions that Bob has a copy of too, and that nobody else has."""


def asked(at: Primary, tx_id: bytes = TX, partition: int = ALONE, **more: Any) -> None:
    """Let somebody commit something to one partition."""
    at.here.prepare(ME, prepare(partition, tx_id, others=(), **more))


def queued(at: Primary) -> int:
    return len(at.log.waiting) - 1  # beside what is undecided


def test_a_sync_that_fails_for_a_checkpoint_ends_all_writing() -> None:
    at, ended = Primary(), list[str]()
    at.writer.payloads.append(b"not synced")
    at.writer.sync_fails = OSError(5, "input/output error")
    with pytest.raises(DiskError) as caught:
        at.log.sync(at.log.position)
    assert at.log.failure is caught.value
    with pytest.raises(DiskError):
        at.log.check_writable()
    at.log.put_records([IdleRecord()], lambda: ended.append("then"), lambda: ended.append("undo"))
    at.log.tell_durable()
    at.carry()
    assert (ended, at.writer.payloads) == (["undo"], [b"not synced"])


@pytest.mark.parametrize("ends", ["well", "not appended", "not synced"])
def test_what_is_on_its_way_is_told_until_it_has_ended_however_it_does(ends: str) -> None:
    at, seen = Primary(), list[Any]()
    log = at.log
    at.sync_runs = lambda: seen.append((log.ids_in_flight(), log.asked_disk_at, queued(at)))
    asked(at)
    assert log.queued_bytes > 0
    if ends != "well":
        error = OSError(5, "input/output error")
        at.writer.fails, at.writer.sync_fails = (error, None)[:: 1 if "app" in ends else -1]
    at.carry()
    assert seen == ([] if ends == "not appended" else [((1, [TX]), at.now, 1)])
    assert (log.ids_in_flight(), log.asked_disk_at) == ((1, []), float("inf"))
    assert (queued(at), log.queued_bytes) == (0, 0)


def test_a_copy_is_not_whole_while_a_record_that_clears_it_is_on_its_way() -> None:
    at, ended = Primary(), list[str]()
    clear = ClearRecord(partition=ALONE, admission=9, reason="told")
    for fails in (OSError(28, "no space"), None):
        at.writer.fails = fails
        at.log.put_records([clear], lambda: ended.append("then"), lambda: ended.append("undo"))
        assert at.log.clearing == {ALONE}
        assert (at.log.has_whole(SHARED), at.log.has_whole(ALONE)) == (True, False)
        at.carry()
        assert at.log.clearing == set()
        assert at.log.has_whole(ALONE) is (fails is not None)
    assert ended == ["undo", "then"]


def test_what_waits_for_a_frame_of_others_goes_with_the_word_of_an_idle_log() -> None:
    at, noted = Primary(), CommitUptoRecord(rows=(Upto(ALONE, 1, 1),))
    at.writer.announced = 1 << 60
    at.log.tell_durable()
    assert queued(at) == 0, "all of it was told"
    at.log.log([noted])
    at.log.tell_durable()
    at.carry()
    assert at.records() == [IdleRecord(), noted]
    at.log.tell_durable()
    assert queued(at) == 0


def test_what_is_called_behind_a_group_is_called_once() -> None:
    at, ended = Primary(), list[int]()
    for number in range(3):
        at.log.put_records([IdleRecord()], lambda number=number: ended.append(number))  # type: ignore[misc]
        at.carry()
    assert ended == [0, 1, 2]


def test_times_of_commits_never_fall_though_the_clock_does() -> None:
    at = Primary()
    at.state.time = 5000  # the clock says 1000
    asked(at)
    at.carry()
    [record] = at.records()
    assert isinstance(record, TxRecord)
    assert (record.time, at.state.time) == (5000, 5000)


def test_the_end_of_a_part_is_durable_here_with_the_next_sync_and_counts_once() -> None:
    at = Primary()
    at.here.prepare(CID, prepare(SHARED, TX, others=(3,)))
    at.all_have(SHARED)
    at.here.decision(committed(TX, Run(SHARED, 1, 1, 1), Run(3, 1, 1, 1)), [SHARED])
    at.carry()
    stream = at.streams.get(SHARED)
    assert stream is not None
    assert (stream.end, stream.own) == (3, 2), "nobody waits for it"
    asked(at, OTHER)
    at.carry()
    assert (stream.end, stream.own) == (3, 3)
    assert at.log._unsynced == []


def test_what_waits_for_the_end_of_a_hold_keeps_its_place_before_a_barrier() -> None:
    at, ended = Primary(), list[str]()
    at.log.held = True
    asked(at)
    at.log.put_records([IdleRecord()], lambda: ended.append("record"))
    at.log.put_barrier(lambda: ended.append("barrier"))
    asked(at, FRESH, number=1)

    async def work() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(at.log.run)
            await wait_all_tasks_blocked()
            assert (ended, queued(at)) == (["record"], 2)
            at.log.let_go()
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()

    at.trio(work)
    assert (ended, queued(at)) == (["record", "barrier"], 0)
    assert [type(record) for record in at.records()] == [IdleRecord, TxRecord, TxRecord]


def test_what_goes_with_the_end_of_a_part_is_answered_behind_a_sync_of_its_own() -> None:
    at = Primary()
    at.here.prepare(CID, prepare(SHARED, TX, others=(3,)))
    at.all_have(SHARED)
    at.here.decision(committed(TX, Run(SHARED, 1, 1, 1), Run(3, 1, 1, 1)), [SHARED])
    asked(at, OTHER)
    at.carry()
    stream = at.streams.get(SHARED)
    assert stream is not None
    assert (stream.end, stream.own) == (3, 3)
    assert at.log.applied_position == at.writer.synced == at.log.position


def test_copies_are_sent_what_is_appended_before_it_is_synced_here() -> None:
    at, done = Primary(), list[str]()
    at.log._pump = lambda: done.append("sent")
    at.sync_runs = lambda: done.append("synced")
    asked(at, partition=SHARED)
    at.carry()
    assert done[:2] == ["sent", "synced"]


def test_who_waits_until_the_log_tells_what_has_committed_finds_it_there() -> None:
    at = Primary()
    asked(at, partition=SHARED)
    at.all_have(SHARED)
    at.records()

    async def work() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(at.log.run)
            await at.log.told()
            nursery.cancel_scope.cancel()

    at.trio(work)
    assert at.records() == upto(1)
    assert at.writer.synced == at.log.position


def test_who_waits_until_the_log_tells_what_has_committed_waits_for_the_end_of_a_hold() -> None:
    # It went on with nothing told, and a copy that came back lost its way by history.
    at, told = Primary(), list[bool]()
    asked(at, partition=SHARED)
    at.all_have(SHARED)
    at.records()
    at.log.held = True

    async def waits() -> None:
        await at.log.told()
        told.append(not at.log.held)

    async def work() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(at.log.run)
            async with trio.open_nursery() as waiting:
                waiting.start_soon(waits)
                await trio.sleep(5 * HELD_S)
                assert told == []
                at.log.let_go()
            nursery.cancel_scope.cancel()

    at.trio(work)
    assert (told, at.records()) == ([True], upto(1))


def test_a_barrier_does_not_wait_for_company_of_what_others_have_to_store() -> None:
    at = Primary()
    asked(at, partition=SHARED)
    at.sync()
    assert at.log.undecided

    async def work() -> None:
        begun = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(at.log.run)
            await at.log.passed()
            assert trio.current_time() == begun
            nursery.cancel_scope.cancel()

    at.trio(work)


def test_what_is_larger_than_a_group_goes_in_one_of_its_own() -> None:
    at = Primary()
    asked(at, value=bytes(GROUP_BYTES_MAX))
    asked(at, OTHER, number=1)

    async def work() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(at.log.run)
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()

    at.trio(work)
    assert (len(at.writer.payloads), queued(at)) == (2, 0)
