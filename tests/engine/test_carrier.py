"""Groups whose threads go away: what is interrupted is seen through, and nobody waits for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import length_hint
from typing import Any

import pytest

from support.commits import WAIT, commit_of, gated, records_of, standing_of
from support.stores import Opened, open_store, opened
from tidelog.affinity.errors import (
    CommitUnknownError,
    DiskFullError,
    ReadOnlyError,
    RolledBackError,
)
from tidelog.engine.api.database import session_of
from tidelog.engine.commit.carrier import Carrier
from tidelog.engine.commit.entries import Commit
from tidelog.engine.commit.standing import Lead
from tidelog.engine.data.overlay import Layer
from tidelog.engine.data.updates import NoUpdates
from tidelog.engine.system.limits import LIMITS, Limits
from tidelog.engine.system.wakes import WakeChain, held_lock
from tidelog.wal.records import IdleRecord, RollbackRecord, encode_record


@contextmanager
def closed_if_well(limits: Limits = LIMITS) -> Iterator[Opened]:
    """Open a store; where a test fails, nobody waits for the end of what it queued."""
    store = open_store(limits=limits)
    try:
        yield store
    except BaseException:
        store.parts.committer.context.stop("fork", "the test failed")
        session_of(store.database).abandon()
        raise
    store.database.close()


def interrupted(*_args: object) -> None:
    raise KeyboardInterrupt


def interrupt_times(
    monkeypatch: pytest.MonkeyPatch, owner: object, name: str, times: int, *, behind: bool = False
) -> list[int]:
    """Interrupt the first calls of a method, before what it does or behind it; count all calls."""
    method, calls = getattr(owner, name), list[int]()

    def raises(*args: Any) -> Any:
        calls.append(1)
        if len(calls) > times:
            return method(*args)
        if behind:
            method(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(owner, name, raises)
    return calls


def setting(store: Opened, key: bytes) -> Callable[[], object]:
    users = store.database.map("users")
    return lambda: users.__setitem__(key, b"")


def interrupt_a_look(
    monkeypatch: pytest.MonkeyPatch, store: Opened, name: str
) -> threading.Semaphore:
    """Interrupt a thread when it first looks whether anybody is left to wake it.

    Returns a semaphore that is released each time that it has the mutex from there on.
    """
    committer, looks, first = store.parts.committer, threading.Semaphore(0), [True]
    check_whole = committer.check_whole

    def looked() -> None:
        if threading.current_thread().name == name:
            if first:
                first.clear()
                raise KeyboardInterrupt
            looks.release()
        check_whole()

    monkeypatch.setattr(committer, "check_whole", looked)
    return looks


# ------------------------------------------------------------------ threads that wait


def test_who_waits_takes_the_lead_from_a_thread_that_was_interrupted_and_has_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with closed_if_well() as store:
        users, queue = store.database.map("users"), store.parts.committer.queue
        gone = commit_of(b"gone")
        gone.wake = held_lock()
        with gated(store, monkeypatch) as gate:
            gate.start(setting(store, b"first"))
            gate.wait_syncing()
            with store.parts.committer.mutex:
                assert queue.add_ticket(gone)
            gate.start(lambda: store.parts.committer.commit(commit_of(b"waits")))
            gate.wait_queued(store, 2)
            queue.abandoned.append(gone)
            gate.finish(2)
            assert gate.errors == []
        assert gone.receipt is None
        assert sorted(users) == [b"first", b"waits"]


def test_who_waits_leads_though_whoever_named_it_was_interrupted_before_it_woke_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with closed_if_well(Limits(patience_seconds=0.01)) as store:
        users, committer = store.database.map("users"), store.parts.committer
        gone = commit_of(b"gone")
        gone.wake = held_lock()
        with gated(store, monkeypatch) as gate:
            first = gate.start(setting(store, b"first"))
            gate.wait_syncing()
            with committer.mutex:
                assert committer.queue.add_ticket(gone)
            gate.start(lambda: committer.commit(commit_of(b"waits")))
            gate.wait_queued(store, 2)
            gate.open.release()
            first.join(WAIT)
            with committer.mutex, monkeypatch.context() as patch:
                assert committer.queue.next_leader is gone
                committer.queue.abandoned.append(gone)
                patch.setattr("tidelog.engine.commit.queue.wake_up", interrupted)
                with pytest.raises(KeyboardInterrupt):
                    committer.queue.withdraw_abandoned()
            gate.finish(1)
            assert gate.errors == []
        assert sorted(users) == [b"first", b"waits"]


def test_who_waits_is_woken_though_the_one_before_it_has_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    frozen, go = threading.Semaphore(0), threading.Semaphore(0)
    wake_next = WakeChain.wake_next

    def gone(chain: WakeChain) -> None:
        if threading.current_thread().name == "gone" and length_hint(chain.left):
            frozen.release()
            assert go.acquire(timeout=WAIT)
        wake_next(chain)

    with closed_if_well() as store:
        users = store.database.map("users")
        with gated(store, monkeypatch) as gate:
            monkeypatch.setattr(WakeChain, "wake_next", gone)
            gate.start(setting(store, b"first"))
            gate.wait_syncing()
            threads = []
            for name in ("next leader", "gone", "behind"):
                threads.append(gate.start(setting(store, name.encode()), name))
                gate.wait_queued(store, 1)
            gate.open.release(2)
            assert frozen.acquire(timeout=WAIT)
            threads[2].join(WAIT)
            assert not threads[2].is_alive()
            assert threads[1].is_alive()
            go.release()
            gate.finish(0)
            assert gate.errors == []
        assert sorted(users) == [b"behind", b"first", b"gone", b"next leader"]


def test_an_interrupted_thread_takes_back_what_it_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    with closed_if_well() as store:
        users = store.database.map("users")
        with gated(store, monkeypatch) as gate:
            looks = interrupt_a_look(monkeypatch, store, "interrupted")
            gate.start(setting(store, b"first"))
            gate.wait_syncing()
            for name in ("interrupted", "behind"):
                gate.start(setting(store, name.encode()), name)
                gate.wait_queued(store, 1)
            assert looks.acquire(timeout=WAIT)
            gate.finish(2)
            assert [type(error) for error in gate.errors] == [KeyboardInterrupt]
        assert store.parts.committer.queue.abandoned == []
        assert sorted(users) == [b"behind", b"first"]


def test_an_interrupted_next_leader_gives_the_lead_back(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen, go = threading.Semaphore(0), threading.Semaphore(0)
    wake_next = WakeChain.wake_next

    def late(chain: WakeChain) -> None:
        if threading.current_thread().name == "woken" and length_hint(chain.left):
            frozen.release()
            assert go.acquire(timeout=WAIT)
        wake_next(chain)

    with closed_if_well() as store:
        users, committer = store.database.map("users"), store.parts.committer
        committer.patience = WAIT
        with gated(store, monkeypatch) as gate:
            gate.start(setting(store, b"first"))
            gate.wait_syncing()
            for name in ("leads", "woken", "last"):
                gate.start(setting(store, name.encode()), name)
                gate.wait_queued(store, 1)
            monkeypatch.setattr(WakeChain, "wake_next", late)
            gate.open.release(2)
            assert frozen.acquire(timeout=WAIT)
            # Nobody leads: the first to come is to, once those of the last group are awake.
            committer.patience = 0.01
            looks = interrupt_a_look(monkeypatch, store, "interrupted")
            thread = gate.start(setting(store, b"interrupted"), "interrupted")
            gate.wait_queued(store, 1)
            assert looks.acquire(timeout=WAIT)
            thread.join(WAIT)
            assert not thread.is_alive()
            assert committer.context.standing.lead is Lead.IDLE
            assert committer.queue.next_leader is None
            go.release()
            gate.start(setting(store, b"behind"))
            gate.finish(1)
            assert [type(error) for error in gate.errors] == [KeyboardInterrupt]
        assert sorted(users) == [b"behind", b"first", b"last", b"leads", b"woken"]


def test_an_interrupted_thread_waits_for_the_outcome_of_what_a_leader_has_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with closed_if_well() as store:
        users = store.database.map("users")
        with gated(store, monkeypatch) as gate:
            gate.start(setting(store, b"first"))
            gate.wait_syncing()
            gate.start(setting(store, b"leads"), "leads")
            gate.wait_queued(store, 1)
            looks = interrupt_a_look(monkeypatch, store, "interrupted")
            thread = gate.start(setting(store, b"interrupted"), "interrupted")
            gate.wait_queued(store, 1)
            with store.parts.committer.mutex:  # so that it is taken before it is interrupted
                gate.open.release(1)
            gate.wait_syncing()
            # Once behind the interrupt, and once more while it waits.
            for _ in range(2):
                assert looks.acquire(timeout=WAIT)
            assert thread.is_alive()
            assert gate.errors == []
            gate.finish(1)
            assert [type(error) for error in gate.errors] == [KeyboardInterrupt]
        assert sorted(users) == [b"first", b"interrupted", b"leads"]


# ------------------------------------------------------------------ leaders that go away


def left_over(carrier: Carrier) -> bool:
    """Whether a group is there that its leader has left behind."""
    return carrier.orphan is not None


class Noted(Commit):
    """An entry that breaks as often as it is told to, and hears what became of it."""

    def __init__(self, *, record: bool, prepared: bool = True) -> None:
        super().__init__(NoUpdates(), True)
        self.told: list[str] = []
        self._record = record
        self._prepared = prepared

    def prepare(self, _context: object, _group: object, _time: int) -> bytes | None:
        if not self._prepared:
            raise KeyboardInterrupt
        return encode_record(IdleRecord()) if self._record else None

    def apply(self, _context: object, _end: int) -> None:
        raise ValueError("a bug")

    def fail(self, _cause: BaseException) -> None:
        self.told.append("failed")
        if len(self.told) <= 2 and not self._record:
            raise ValueError("a bug")

    def unknown(self, _cause: BaseException) -> None:
        self.told.append("unknown")


def test_what_is_in_the_log_is_of_unknown_outcome_when_it_cannot_take_effect() -> None:
    store = open_store()
    store.database.map("users")
    committer = store.parts.committer
    passed, refused = Noted(record=True), Noted(record=False)
    refused.told += ["", ""]  # it shall not break
    with pytest.raises(ValueError, match="a bug"):
        committer.commit_all([passed, refused])
    with pytest.raises(ReadOnlyError, match="nothing is written any more"):
        store.database.map("users")[b"a"] = b""
    assert (passed.told, refused.told[2:]) == (["unknown"], ["failed"])
    assert committer.carrier.group is committer.carrier.orphan is None
    assert committer.carrier.in_flight == ()
    assert isinstance(committer.refusal(), ReadOnlyError)
    with committer.mutex, pytest.raises(ReadOnlyError, match="nothing is written any more"):
        committer.check_writable()
    session_of(store.database).abandon()


def test_what_is_not_in_the_log_has_failed_when_its_leader_cannot_give_it_up() -> None:
    store = open_store()
    store.database.map("users")
    committer = store.parts.committer
    passed, late = Noted(record=True), Noted(record=False, prepared=False)
    passed._record, broken = True, list[str]()

    def fail(_cause: BaseException) -> None:
        broken.append("failed")
        if len(broken) <= 2:
            raise ValueError("a bug")

    passed.fail = fail  # type: ignore[method-assign]
    late.told += ["", ""]
    with pytest.raises(ValueError, match="a bug"):
        committer.commit_all([passed, late])
    with committer.mutex, pytest.raises(ReadOnlyError):
        committer.check_writable()
    assert (broken, passed.told, late.told[2:]) == (["failed"] * 3, [], ["failed"])
    assert not committer.context.standing.busy
    session_of(store.database).abandon()


@pytest.mark.parametrize("next_one", ["reads", "writes", "closes"])
def test_whoever_comes_next_lets_a_logged_commit_take_effect_whose_leader_went_away(
    monkeypatch: pytest.MonkeyPatch, next_one: str
) -> None:
    # The frame is in the log: what is read before and behind the next open has to agree.
    store = open_store()
    users = store.database.map("users")
    committer = store.parts.committer
    carrier = committer.carrier
    with monkeypatch.context() as patch:
        calls = interrupt_times(patch, committer.end_of_log, "sync", 2)
        with pytest.raises(KeyboardInterrupt):
            users[b"a"] = b"1"
        assert len(calls) == 2
    assert left_over(carrier)
    assert committer.context.changing is None
    expected = {b"a": b"1"}
    if next_one == "reads":
        assert users[b"a"] == b"1"
    elif next_one == "writes":
        users[b"b"] = b"2"
        expected[b"b"] = b"2"
    if next_one != "closes":
        assert not left_over(carrier)
        assert dict(users) == expected
    store.database.close()
    with opened(store.disk, seed=2) as again:
        assert dict(again.database.map("users")) == expected


def test_a_group_that_is_seen_through_is_synced_if_anybody_in_it_asked_for_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with closed_if_well() as store:
        users, committer = store.database.map("users"), store.parts.committer
        group = [commit_of(b"a", durable=True), commit_of(b"b", durable=False)]
        with monkeypatch.context() as patch:
            interrupt_times(patch, committer.end_of_log, "sync", 2)
            with pytest.raises(KeyboardInterrupt):
                committer.commit_all(group)
        assert left_over(committer.carrier)
        assert sorted(users) == [b"a", b"b"]
        assert store.parts.writer.synced == store.parts.writer.position


def test_a_sync_that_fails_when_a_group_is_seen_through_is_why_the_store_stops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = open_store()
    users, committer = store.database.map("users"), store.parts.committer
    with monkeypatch.context() as patch:
        interrupt_times(patch, committer.end_of_log, "sync", 2)
        with pytest.raises(KeyboardInterrupt):
            users[b"a"] = b"1"
    store.disk.fail_at(store.disk.operations + 1, "EIO", kind="sync")
    with pytest.raises(ReadOnlyError, match="a sync failed"):
        users[b"b"] = b"2"
    session_of(store.database).abandon()


def test_the_outcome_of_a_frame_that_cannot_be_made_whole_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = open_store()
    store.database.map("users")
    committer, writer, commit = store.parts.committer, store.parts.writer, commit_of(b"a")
    write = writer._file.write

    def cut_short(offset: int, data: bytes) -> None:
        write(offset, data)
        raise KeyboardInterrupt

    def bug() -> None:
        raise ValueError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr(writer._file, "write", cut_short)
        patch.setattr(writer, "make_whole", bug)
        with pytest.raises(ValueError, match="a bug"):
            committer.commit(commit)
    assert isinstance(commit.error, CommitUnknownError)
    session_of(store.database).abandon()


def test_readers_are_told_while_a_group_takes_effect() -> None:
    with opened() as store:
        store.database.map("users")
        commit, overlay, told = commit_of(b"a"), store.parts.overlay, list[bool]()
        commit.then = lambda: told.append(overlay.applying)
        store.parts.committer.commit(commit)
        assert [*told, overlay.applying] == [True, False]


def test_nobody_waits_for_a_leader_that_was_interrupted_behind_a_sync_that_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = open_store()
    users, committer = store.database.map("users"), store.parts.committer
    store.disk.fail_at(store.disk.operations + 2, "EIO", kind="sync")
    with monkeypatch.context() as patch:
        interrupt_times(patch, committer.queue, "end", 1)
        with pytest.raises(KeyboardInterrupt):
            users[b"a"] = b"1"
    assert left_over(committer.carrier)
    refused = list[BaseException]()

    def write() -> None:
        try:
            users[b"b"] = b"2"
        except ReadOnlyError as error:
            refused.append(error)

    other = threading.Thread(target=write, daemon=True)
    other.start()
    other.join(WAIT)
    assert not other.is_alive()
    assert len(refused) == 1
    assert not left_over(committer.carrier)
    assert not committer.context.standing.busy
    session_of(store.database).abandon()


def test_a_commit_that_cannot_take_effect_twice_stops_the_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = open_store()
    users = store.database.map("users")

    def bug(*_args: object) -> None:
        raise ValueError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr(Layer, "put", bug)
        with pytest.raises(ValueError, match="a bug"):
            users[b"a"] = b"1"
    with pytest.raises(ReadOnlyError, match="in the middle of a change of a commit"):
        users[b"b"] = b"2"
    assert len(users) == 0
    session_of(store.database).abandon()
    with opened(store.disk.crash("kept"), seed=2) as again:
        assert dict(again.database.map("users")) == {b"a": b"1"}


def test_a_snapshot_of_a_store_that_stopped_halfway_leaves_its_layers_as_they_are() -> None:
    store = open_store()
    users, committer = store.database.map("users"), store.parts.committer
    users[b"a"] = b"1"
    with committer.mutex:
        committer.context.stop("break", "for the test")
    view = store.parts.overlay.view
    with store.database.snapshot() as snapshot:
        assert store.parts.overlay.view is view
        assert dict(snapshot[users].items()) == {b"a": b"1"}
    session_of(store.database).abandon()


def test_the_next_leader_goes_on_behind_one_that_went_away_at_its_very_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with closed_if_well() as store:
        users, committer = store.database.map("users"), store.parts.committer
        with gated(store, monkeypatch) as gate:
            gate.start(setting(store, b"first"))
            gate.wait_syncing()
            gate.start(setting(store, b"next"))
            gate.wait_queued(store, 1)
            with committer.mutex:
                waiter = committer.queue.applied_soon()
            # It has passed the lead on, and comes no further however often it tries.
            interrupt_times(monkeypatch, committer.queue, "end", 3, behind=True)
            gate.finish(2)
            assert [type(error) for error in gate.errors] == [KeyboardInterrupt]
        assert committer.carrier.orphan is committer.carrier.group is None
        assert waiter.acquire(blocking=False)
        assert sorted(users) == [b"first", b"next"]


def test_a_group_whose_taking_was_cut_short_tells_all_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with closed_if_well() as store:
        users, queue = store.database.map("users"), store.parts.committer.queue
        take = queue.take

        def cut_short(group: Any) -> None:
            monkeypatch.setattr(queue, "take", take)
            take(group)
            group.taken = ()
            raise KeyboardInterrupt

        with gated(store, monkeypatch) as gate:
            gate.start(setting(store, b"first"))
            gate.wait_syncing()
            for key in (b"leads", b"other"):
                gate.start(lambda key=key: store.parts.committer.commit(commit_of(key)))  # type: ignore[misc]
                gate.wait_queued(store, 1)
            monkeypatch.setattr(queue, "take", cut_short)
            gate.finish(1)
            kinds = {type(error) for error in gate.errors}
            assert kinds == {KeyboardInterrupt, RolledBackError}
        assert list(users) == [b"first"]


def test_a_group_that_had_ended_when_the_store_stops_keeps_its_outcome(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with closed_if_well() as store:
        table, committer = store.database.map("users"), store.parts.committer
        commit = commit_of(b"a")
        with committer.mutex:
            waiter = committer.queue.applied_soon()
        with monkeypatch.context() as patch:
            interrupt_times(patch, committer.queue, "end", 3, behind=True)
            with pytest.raises(KeyboardInterrupt):
                committer.commit(commit)
        # Interrupted while it woke those who wait, and then somebody else in another change.
        assert committer.carrier.orphan is not None
        with committer.mutex:
            committer.context.changing = "the log"
            committer.check_whole()
        assert committer.stopped is not None
        assert committer.carrier.group is None
        assert waiter.acquire(blocking=False)
        assert commit.error is None
        assert commit.receipt is not None
        assert list(table) == [b"a"]


def test_a_transaction_is_run_again_where_the_leader_of_its_group_was_interrupted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # It had no effect, and its caller got an error that another attempt would have spared it.
    with opened() as store:
        users = store.database.map("users")
        attempts = list[object]()

        def work(tx: Any) -> None:
            attempts.append(tx)
            tx[users][b"run"] = b"%d" % len(attempts)

        def lead() -> None:
            with pytest.raises(KeyboardInterrupt):
                store.parts.committer.commit(commit_of(b"led", check=interrupted))

        with gated(store, monkeypatch) as gate:
            gate.start(setting(store, b"first"))
            gate.wait_syncing()
            for waiting in (lead, lambda: store.database.run(work)):
                gate.start(waiting)
                gate.wait_queued(store, 1)
            gate.finish(2)
            assert gate.errors == []
        assert dict(users) == {b"first": b"", b"run": b"2"}


# ------------------------------------------------------------------ commits that are interrupted


def test_a_commit_that_is_interrupted_behind_its_frame_is_not_closed_as_well() -> None:
    # Ctrl-C between append and apply: a ROLLBACK would have used the same numbers once more.
    store = open_store()
    users = store.database.map("users")
    users[b"a"] = b"1"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Commit, "apply", interrupted)
        with pytest.raises(KeyboardInterrupt), store.database.transaction() as tx:
            tx[users][b"b"] = b"2"
    users[b"c"] = b"3"
    for counter in store.parts.state.counters:
        assert counter.lwm == counter.hwm
    session_of(store.database).abandon()
    with opened(store.disk.crash("kept"), seed=2) as again:
        assert dict(again.database.map("users")) == {b"a": b"1", b"b": b"2", b"c": b"3"}


class Counted:
    """A mutex that counts how often it was taken."""

    def __init__(self, mutex: threading.Lock) -> None:
        self.taken = 0
        self._mutex = mutex

    def __enter__(self) -> None:
        self._mutex.acquire()
        self.taken += 1

    def __exit__(self, *_args: object) -> None:
        self._mutex.release()


@pytest.mark.parametrize("times", [1, 4])
def test_a_group_that_has_taken_effect_ends_however_often_that_is_interrupted(
    monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    with closed_if_well() as store:
        users = store.database.map("users")
        users[b"a"] = b"1"
        committer = store.parts.committer
        with monkeypatch.context() as patch:
            calls = interrupt_times(patch, committer.queue, "end", times)
            end, mutex, taken = committer.queue.end, Counted(committer.mutex), list[int]()

            def noted(group: Any) -> None:
                taken.append(mutex.taken)
                end(group)

            patch.setattr(committer.queue, "end", noted)
            patch.setattr(committer.carrier, "mutex", mutex)
            with pytest.raises(KeyboardInterrupt):
                users[b"b"] = b"2"
            # Again before anybody else could get the mutex.
            assert taken[0] == taken[1]
            assert len(calls) == min(times, 3) + (times == 1)
        users[b"c"] = b"3"
        assert dict(users) == {b"a": b"1", b"b": b"2", b"c": b"3"}
        assert committer.stopped is None


def test_gaps_that_a_frame_has_closed_are_not_closed_again_behind_an_interrupt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with closed_if_well() as store:
        users = store.database.map("users")
        store.disk.fail_at(store.disk.operations + 1, "ENOSPC", kind="write")
        with pytest.raises(DiskFullError):
            users[b"a"] = b"1"
        end_of_log = store.parts.committer.end_of_log
        assert standing_of(store).gaps
        with monkeypatch.context() as patch:
            interrupt_times(patch, end_of_log, "close_gaps", 1)
            with pytest.raises(KeyboardInterrupt):
                users[b"b"] = b"2"
        assert end_of_log.gaps == []
        assert not standing_of(store).gaps
        users[b"c"] = b"3"
        assert dict(users) == {b"b": b"2", b"c": b"3"}
        for counter in store.parts.state.counters:
            assert counter.lwm == counter.hwm
        kinds = [type(record) for frame in records_of(store) for record in frame]
        assert kinds.count(RollbackRecord) == 1
