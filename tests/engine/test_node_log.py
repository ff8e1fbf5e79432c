"""What a member's log says by itself, and what it has of what is on its way.

When it begins it says how far what is prepared has committed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from support.fold_scripts import PARTITIONS, id_of, record_of
from support.group_transactions import FRESH, OTHER, TX
from support.primaries import BOB, CID, ME, Primary, committed, key_in, prepare
from tidelog.affinity.partitions import one_space
from tidelog.affinity.topology import Incarnation
from tidelog.checkpoints.replay import State
from tidelog.engine.commit.entries import Commit
from tidelog.engine.data.updates import NoUpdates
from tidelog.engine.node.log import FULL_BYTES_MIN, GROUP_BYTES_MAX, HELD_S, Haste, NodeLog
from tidelog.engine.node.prepared import ClientCommit
from tidelog.engine.replication.stream import StoredUpto
from tidelog.engine.replication.streams import Streams
from tidelog.engine.store.options import Options
from tidelog.errors import CommitUnknownError, DiskError
from tidelog.wal.records import (
    ClearRecord,
    CommitUptoRecord,
    IdleRecord,
    Pending,
    Run,
    TxRecord,
    Upto,
    decode_payload,
    encode_record,
)

OPENED = ("settle p0 e1 from #1", "open p0 e1")


def state_of(*lines: str) -> State:
    """The fold of records, as scripts have them."""
    state = State(b"s" * 16, one_space(PARTITIONS))
    for position, line in enumerate(lines):
        state.apply(position, record_of(line))
    return state


def log_of(state: State, **options: int) -> NodeLog:
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
        options=Options(**options),
    )
    return NodeLog(files, Streams())


def test_who_is_forsaken_hears_of_it_once_before_nobody_is_called_any_more() -> None:
    log, told = log_of(state_of()), list[str]()
    commit = ClientCommit(NoUpdates(), Streams(), (bytes(16), 1), tx_id=TX)
    commit._runs = (0, 1, 1, 1)
    commit.then, commit.undo = lambda: told.append("then"), lambda: told.append("undo")
    stream: Any = SimpleNamespace(waiting=lambda: [commit])
    for _ in range(2):
        log.forsake(stream)
    assert told == ["undo"]
    assert isinstance(commit.error, CommitUnknownError)
    assert [getattr(commit, name) for name in ("then", "undo", "check", "record")] == [None] * 4


@pytest.mark.parametrize(("size", "most"), [(1, FULL_BYTES_MIN), (FULL_BYTES_MIN, 2 << 20)])
def test_memory_is_full_with_twice_what_a_checkpoint_takes_but_not_below_a_megabyte(
    size: int, most: int
) -> None:
    log = log_of(state_of(), checkpoint_bytes=size)
    for taken in (0, most - 1, most, 10 * most):
        log.overlay = SimpleNamespace(bytes=taken)  # type: ignore[assignment]
        assert log.is_full is (taken >= most)
        log.carries = False
        assert not log.is_full, "nobody waits for checkpoints that fail"
        log.carries = True


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

SHARED, ALONE, WIDE = 0, 1, 2
"""Partitions that Bob has a copy of too, that nobody else has, and that all three have."""


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


def test_ends_that_came_one_after_the_other_are_all_durable_with_the_next_sync() -> None:
    at, shared = Primary(), {SHARED: TX, WIDE: OTHER}
    for partition, tx_id in shared.items():
        at.here.prepare(CID, prepare(partition, tx_id, others=(3,)))
        at.all_have(partition)
    for partition, tx_id in shared.items():
        at.here.decision(committed(tx_id, Run(partition, 1, 1, 1), Run(3, 1, 1, 1)), [partition])
        at.carry()

    def rows() -> list[tuple[int, int]]:
        found = map(at.streams.get, shared)
        return [(one.end, one.own) for one in found if one is not None]

    seen = list[list[tuple[int, int]]]()
    assert rows() == [(3, 2)] * 2
    at.log.put_barrier(lambda: seen.append(rows()))
    at.carry()
    assert seen == [[(3, 3)] * 2], "who waits for the barrier finds it so"


def test_numbers_of_what_did_not_get_into_the_log_are_given_again() -> None:
    at = Primary()
    at.writer.fails = OSError(28, "no space")
    asked(at)
    at.carry()
    asked(at, OTHER)
    at.carry()
    assert [record.runs for record in at.records()] == [(Run(ALONE, 1, 1, 1),)]  # type: ignore[union-attr]


def test_a_log_whose_end_is_not_known_any_more_has_failed() -> None:
    at, ended = Primary(), list[str]()
    for failure in (None, OSError(5, "input/output error")):
        assert at.log.failure is None
        at.writer.fails, at.writer.failure = OSError(28, "no space"), failure
        at.log.put_records([IdleRecord()], lambda: None, lambda: ended.append("undo"))
        at.carry()
    assert at.log.failure is not None
    assert ended == ["undo"] * 2


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


def test_what_did_not_fit_into_a_group_waits_for_no_company() -> None:
    at = Primary()
    asked(at, partition=SHARED)
    at.sync()
    at.records()
    assert at.log.undecided, "others would wait for that"
    asked(at, OTHER, value=bytes(GROUP_BYTES_MAX))
    asked(at, FRESH, number=1)

    async def work() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(at.log.run)
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()

    at.trio(work)
    assert len(at.records()) == 2


def test_what_was_prepared_is_in_nobodys_way_once_its_epoch_has_ended() -> None:
    at = Primary()
    asked(at, partition=SHARED)
    at.sync()
    assert at.log.undecided
    at.seal(SHARED, 2, BOB)
    assert not at.log.undecided


def test_a_group_is_full_to_the_byte() -> None:
    probe = Primary()
    asked(probe, value=b"")
    one = probe.log.queued_bytes
    asked(probe, OTHER, number=1, value=b"")
    both = probe.log.queued_bytes
    for more, groups in ((0, 1), (1, 2)):
        at = Primary()
        asked(at, value=bytes(GROUP_BYTES_MAX // 2 - one))
        asked(at, OTHER, number=1, value=bytes(GROUP_BYTES_MAX // 2 - (both - one) + more))
        at.carry()
        assert len(at.writer.payloads) == groups


def test_all_of_a_group_counts() -> None:
    at = Primary()
    for number, tx_id in enumerate((TX, OTHER, FRESH)):
        asked(at, tx_id, number=number, value=bytes(GROUP_BYTES_MAX * 2 // 5))
    at.carry()
    assert [len(decode_payload(payload)) for payload in at.writer.payloads] == [2, 1]
    assert at.log.queued_bytes == 0


# ------------------------------------------------------------------ ticks and barriers


def test_a_tick_sends_to_copies_whatever_is_held_and_nothing_behind_a_failure() -> None:
    at, sent = Primary(), list[str]()
    asked(at, partition=SHARED)
    at.all_have(SHARED)
    at.records()
    at.log._pump = lambda: sent.append("sent")
    at.log.held = True
    at.log.tell_decided()
    assert (len(sent), queued(at)) == (1, 0), "what has committed is not told in a hold"
    at.log.held = False
    at.log.failure = DiskError("the disk is gone")
    at.log.tell_decided()
    assert (len(sent), queued(at)) == (1, 0)


def test_what_has_committed_is_told_once() -> None:
    at = Primary()
    asked(at, partition=SHARED)
    at.all_have(SHARED)
    at.records()
    at.log.tell_decided()
    at.log.tell_decided()
    assert queued(at) == 1, "the next frame brings it along"
    at.carry()
    at.log.tell_decided()
    assert (at.records(), queued(at)) == (upto(1), 0)


def test_what_has_committed_goes_with_a_frame_that_is_queued_or_behind_one_on_its_way() -> None:
    at, seen = Primary(), list[int]()

    def tick() -> None:
        at.log.tell_decided()
        seen.append(queued(at))

    asked(at, partition=SHARED)
    at.all_have(SHARED)
    at.records()
    asked(at)
    tick()
    at.carry()
    assert (seen, at.records()[:1]) == ([1], upto(1))
    asked(at, OTHER, partition=SHARED, number=1)
    at.all_have(SHARED)
    asked(at, FRESH, number=1)
    at.log._tells = False
    at.sync_runs = tick
    at.carry()
    assert seen == [1, 1], "only what is on its way"


def test_who_waits_for_nothing_that_is_written_writes_nothing() -> None:
    at, ended = Primary(), list[str]()
    at.log.put_records((), lambda: ended.append("then"))
    at.carry()
    assert (ended, at.writer.payloads) == (["then"], [])


def test_a_barrier_asks_the_disk_only_for_what_is_not_synced() -> None:
    at, syncs, ended = Primary(), list[int](), list[int]()
    at.sync_runs = lambda: syncs.append(at.log.position)
    at.writer.payloads.append(b"not synced")
    for number in range(2):
        at.log.put_barrier(lambda number=number: ended.append(number))  # type: ignore[misc]
        at.carry()
    assert (syncs, ended) == ([10], [0, 1])


def test_a_barrier_is_not_passed_once_the_log_has_failed() -> None:
    at, ended = Primary(), list[str]()
    at.writer.payloads.append(b"not synced")
    at.writer.sync_fails = OSError(5, "input/output error")
    for _ in range(2):
        at.log.put_barrier(lambda: ended.append("barrier"))
        at.carry()
    assert ended == []
    assert isinstance(at.log.failure, DiskError)


def test_nothing_is_passed_behind_a_failure_though_all_of_it_is_synced() -> None:
    at, ended = Primary(), list[str]()
    at.log.failure = DiskError("the disk is gone")
    at.log.put_barrier(lambda: ended.append("barrier"))
    at.carry()
    assert ended == []


class Gathering:
    """A context that knows whether it is on."""

    on = False

    def __enter__(self) -> None:
        self.on = True

    def __exit__(self, *_about: object) -> None:
        self.on = False


def test_all_that_a_group_or_a_barrier_lets_go_on_is_gathered() -> None:
    at, gathering, seen = Primary(), Gathering(), list[bool]()
    at.log._gathering = gathering
    at.log.put_records([IdleRecord()], lambda: seen.append(gathering.on))
    at.log.put_barrier(lambda: seen.append(gathering.on))
    at.carry()
    assert seen == [True, True]
    assert not gathering.on


# ------------------------------------------------------------------ company


def comes(at: Primary, haste: Haste = Haste.SHARED) -> None:
    """Queue something, which others have to store if nothing else is told."""
    commit = Commit(NoUpdates(), durable=True)
    commit.record = lambda _time: encode_record(IdleRecord())
    at.log.put(commit, haste)


def undecided() -> Primary:
    """A primary that waits for copies of two partitions."""
    at = Primary()
    asked(at, partition=SHARED)
    asked(at, OTHER, partition=WIDE)
    at.sync()
    at.records()
    return at


def stored(at: Primary, partition: int, *copies: Incarnation) -> None:
    """Let copies have all of a stream, inside the loop."""
    stream = at.streams.get(partition)
    assert stream is not None
    for copy in copies:
        at.streams.stored(copy, StoredUpto(partition, 0, 1, stream.end), at.now)
    at.log.decide()


def carried(at: Primary, *steps: Callable[[], object]) -> list[int]:
    """Return how many records each step gets into the log, with no time between them."""
    seen = list[int]()

    async def work() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(at.log.run)
            await trio.sleep(1)
            for step in steps:
                step()
                await wait_all_tasks_blocked()
                seen.append(len(at.records()))
            nursery.cancel_scope.cancel()

    at.trio(work)
    return seen


def test_what_others_have_to_store_waits_until_they_have_all_that_went_before() -> None:
    at = undecided()

    def both_come() -> None:
        comes(at)
        comes(at)

    steps = (lambda: stored(at, SHARED, BOB)), (lambda: stored(at, WIDE, BOB, CID))
    assert carried(at, both_come, *steps) == [0, 0, 2]


@pytest.mark.parametrize("at_once", [False, True])
def test_who_comes_again_waits_for_as_many_as_were_answered_before(at_once: bool) -> None:
    at = undecided()

    def both_are_answered() -> None:
        at.log.held = at_once
        stored(at, SHARED, BOB)
        at.log.held = False
        stored(at, WIDE, BOB, CID)

    assert carried(at, both_are_answered, lambda: comes(at), lambda: comes(at)) == [0, 0, 2]


def test_nothing_takes_effect_in_a_hold_though_every_copy_has_it() -> None:
    at = undecided()

    def in_a_hold() -> None:
        at.log.held = True
        stored(at, SHARED, BOB)
        stored(at, WIDE, BOB, CID)
        assert at.log.undecided

    carried(at, in_a_hold)
    assert at.value(key_in(SHARED)) is None
    carried(at, at.log.let_go)
    assert at.value(key_in(SHARED)) == b"v"
    assert not at.log.undecided


def test_a_tick_lets_go_what_waits_in_the_queue() -> None:
    at = Primary()
    comes(at, Haste.COURTESY)
    assert carried(at, lambda: None, at.log.tell_decided) == [0, 1]


def test_what_becomes_of_a_part_waits_for_the_end_of_a_hold_too() -> None:
    at = Primary()
    at.here.prepare(CID, prepare(SHARED, TX, others=(3,)))
    at.all_have(SHARED)
    at.records()
    at.here.decision(committed(TX, Run(SHARED, 1, 1, 1), Run(3, 1, 1, 1)), [SHARED])
    at.log.held = True
    assert carried(at, lambda: None, at.log.let_go) == [0, 1]


def test_what_comes_while_a_group_is_synced_is_in_no_greater_hurry_for_that() -> None:
    at = undecided()

    def comes_once() -> None:
        at.sync_runs = lambda: None
        comes(at)

    at.sync_runs = comes_once
    assert carried(at, lambda: asked(at, FRESH), lambda: stored(at, SHARED, BOB)) == [1, 0]
    assert queued(at) == 1, "it waits until the others have stored what went before"
