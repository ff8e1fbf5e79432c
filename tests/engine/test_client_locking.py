"""Pessimistic transactions as a client asks for their locks: whom, how often, and until when."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from support.members import Members, members
from tidelog import connect
from tidelog.affinity.partitions import Space, partition_of
from tidelog.codecs import I64, Str
from tidelog.engine.api.attempts import PAUSE_FIRST
from tidelog.engine.client.blocking import ClusterDatabase
from tidelog.engine.client.locking import AGE_BYTES, KEYS_MAX, ClientLocks
from tidelog.engine.client.routing import (
    COMING_S_MAX,
    PAUSE_S,
    Ask,
    ClientEvent,
    ClientStep,
    Cluster,
    Failed,
    Listen,
    Pause,
    Quiet,
    StepDone,
    Steps,
    Value,
)
from tidelog.errors import (
    ClosedError,
    ConflictError,
    DeadlineError,
    DeadlockError,
    ForkedError,
    RolledBackError,
    TidelogError,
)

PARTITIONS = 6


@pytest.fixture
def three() -> Iterator[Members]:
    with members(3, PARTITIONS) as cluster:
        yield cluster


def counters(db: ClusterDatabase) -> Any:
    return db.map("counters", key=Str, value=I64)


def key_of(member: int) -> str:
    """A key that a member serves."""
    names = (f"k{n}" for n in range(1000))
    space = Space(0, PARTITIONS)
    return next(k for k in names if partition_of(k.encode(), space) % 3 == member)


ONE, TWO = key_of(1), key_of(2)


def asked(cluster: Members, since: int, *operations: str) -> list[tuple[int, str]]:
    return [one for one in cluster.asked[since:] if one[1] in operations]


def test_all_locks_go_through_who_gave_the_first_and_bring_values(three: Members) -> None:
    with connect(three.url) as db:
        m = counters(db)
        m[ONE] = 5
        since = len(three.asked)
        with db.transaction("pessimistic") as tx:
            inside = tx[m]
            assert (inside[ONE], inside[ONE], inside.get(TWO)) == (5, 5, None)
            inside[ONE] = 6
            assert inside.incr(TWO) == 1
            assert dict(inside) == {ONE: 6, TWO: 1}
        assert asked(three, since, "lock") == [(1, "lock")] * 5, (
            "two to read, two to write, a range"
        )
        assert asked(three, since, "get") == []
        assert [one[1] for one in asked(three, since, "commit", "commit-locked")] == [
            "commit-locked"
        ]
        assert m.get_many([ONE, TWO]) == {ONE: 6, TWO: 1}
        assert asked(three, since, "unlock") == [(1, "unlock")]


def test_a_decision_locks_once_for_what_it_reads_and_writes(three: Members) -> None:
    with connect(three.url) as db:
        m = counters(db)
        since = len(three.asked)
        with db.transaction("pessimistic") as tx:
            tx[m].incr(ONE)
            tx[m].incr(ONE)
        assert asked(three, since, "lock", "get") == [(1, "lock")]


def test_read_committed_locks_what_it_writes_alone(three: Members) -> None:
    with connect(three.url) as db:
        m = counters(db)
        m[ONE] = 1
        since = len(three.asked)
        with db.transaction("pessimistic", isolation="read_committed") as tx:
            assert tx[m][ONE] == 1
            assert dict(tx[m]) == {ONE: 1}
            assert asked(three, since, "lock") == []
            tx[m][TWO] = 2
        assert asked(three, since, "lock") == [(2, "lock")]


@pytest.mark.parametrize("faults", [["remap", "wait"], ["wait", "wait", "remap"]])
def test_a_lock_that_has_to_wait_for_a_member_is_asked_again(
    three: Members, faults: list[Any]
) -> None:
    with connect(three.url) as db:
        m = counters(db)
        with db.transaction("pessimistic") as tx:
            three.members[1].faults += faults
            tx[m][ONE] = 1
            three.members[1].faults += faults
            tx[m][TWO] = 2
        assert dict(m) == {ONE: 1, TWO: 2}


@pytest.mark.parametrize("fault", ["break_before", "break_after"])
@pytest.mark.parametrize("first", [True, False])
def test_locks_are_lost_with_the_connection(three: Members, fault: Any, *, first: bool) -> None:
    with connect(three.url) as db:
        m = counters(db)
        m[ONE] = 0

        def work(tx: Any) -> None:
            if not first:
                tx[m][TWO] = 2
            three.members[1 if first else 2].faults += faults
            faults.clear()
            tx[m][ONE] = 1

        faults = [fault]
        with pytest.raises(RolledBackError, match="with its connection"):
            db.run(work, attempts=1, mode="pessimistic")
        assert m[ONE] == 0
        faults = [fault]
        db.run(work, mode="pessimistic")
        assert m[ONE] == 1


def test_a_lock_ends_with_its_call(three: Members) -> None:
    with connect(three.url, timeout=0.1) as db:
        m = counters(db)
        with db.transaction("pessimistic") as tx:
            tx[m][ONE] = 1
            three.members[1].faults += ["wait"] * 1000
            with pytest.raises(DeadlineError, match="a lock was not there") as late:
                tx[m][TWO] = 1
            assert "longer `timeout` to `tidelog.connect`" in late.value.hint
            three.members[1].faults.clear()
            tx.rollback()
        assert dict(m) == {}


def test_a_deadline_and_a_patience_are_those_of_the_transaction(
    three: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[Any, Any]] = []

    class Locks(ClientLocks):
        def __init__(self, cluster: Any, name: bytes, timeout: Any, ends: Any) -> None:
            told.append((timeout, ends))
            super().__init__(cluster, name, timeout, ends)

    monkeypatch.setattr("tidelog.engine.client.transactions.ClientLocks", Locks)
    with connect(three.url) as db:
        db._session.now = lambda: 100.0
        db.transaction("pessimistic", lock_timeout=2.0, deadline=5.0).rollback()
        db.transaction("pessimistic").rollback()
    assert told == [(2.0, 105.0), (None, None)]


def test_nothing_is_left_of_a_block_that_ended(three: Members) -> None:
    with connect(three.url) as db:
        m = counters(db)
        with db.transaction() as tx:
            tx[m][ONE] = 1
            assert len(db._session.inside) == 1
        with suppress(ZeroDivisionError), db.transaction():
            raise ZeroDivisionError
        with db.transaction() as tx:
            tx.rollback()
        assert db._session.inside == {}


def test_a_transaction_whose_deadline_has_passed_does_nothing_more(three: Members) -> None:
    with connect(three.url) as db:
        m, now = counters(db), 100.0
        db._session.now = lambda: now
        tx = db.transaction(deadline=5.0)
        tx[m][ONE] = 1
        now = 105.5
        with pytest.raises(DeadlineError, match="of the transaction has passed"):
            tx[m].get(TWO)
        with pytest.raises(DeadlineError, match="of the transaction has passed"):
            tx.commit()
        tx.rollback()
        assert m.get(ONE) is None


def test_no_call_of_a_transaction_goes_on_behind_its_deadline(three: Members) -> None:
    ends: list[float] = []

    def steps(until: float) -> Steps[None]:
        ends.append(until)
        yield from ()

    with connect(three.url) as db:
        db._session.now = lambda: 100.0
        for until in (104.0, 106.0):
            db._session.lines.until = lambda until=until: until  # type: ignore[method-assign,misc]
            tx: Any = db.transaction(deadline=5.0)
            tx._session._run(steps)
            tx.rollback()
    assert ends == [104.0, 105.0]


def test_attempts_of_a_client_pause_and_take_no_longer_together_than_one_call(
    three: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connect(three.url, timeout=1.0) as db:
        m, pauses = counters(db), [0.0]
        m[ONE] = 0
        db._session.now = lambda: sum(pauses)
        db._session.pause = pauses.append
        monkeypatch.setattr(db._session.random, "uniform", lambda _low, high: 800 * high)
        with pytest.raises(ConflictError, match="that was after 3 attempts"):
            db.run(_always_late(m), mode="optimistic", plain_writes=True)
    assert pauses[1:] == [800 * PAUSE_FIRST, 1600 * PAUSE_FIRST]


def test_a_rollback_and_a_close_let_go(three: Members) -> None:
    with connect(three.url) as db:
        m = counters(db)
        tx = db.transaction("pessimistic")
        tx[m][ONE] = 1
        since = len(three.asked)
        tx.rollback()
        tx.rollback()
        assert m.get(ONE) is None
        assert asked(three, since, "unlock") == [(1, "unlock")]
        left = db.transaction("pessimistic")
        inside = left[m]
        inside[ONE] = 2
        line = left._session._line  # type: ignore[attr-defined]  # of a cluster
        db.close()
        with pytest.raises(ClosedError):
            inside[ONE] = 3
        with pytest.raises(ConnectionError):
            line.connections[three.members[1].id].receive()
        left.rollback()
        assert line.connections == {}


def test_the_child_of_a_fork_leaves_a_transaction_to_its_parent(three: Members) -> None:
    """Any child of a fork ended the connections of its parent, and with them all locks."""
    with connect(three.url) as db:
        m = counters(db)
        with db.transaction("pessimistic") as tx:
            tx[m][ONE] = 1
            since = len(three.asked)
            pid = os.fork()
            if not pid:
                try:
                    tx.rollback()
                    tx[m]
                except ForkedError:
                    db.close()
                    os._exit(3)
                finally:
                    os._exit(4)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
            tx[m][f"{ONE}, too"] = 2
            assert asked(three, since, "lock", "unlock") == [(1, "lock")]
        assert (m.get(ONE), m.get(f"{ONE}, too")) == (1, 2)


def test_the_child_of_a_fork_keeps_no_connection_of_its_parent(three: Members) -> None:
    """One that it kept went on if its parent ended: with the locks of a transaction, too."""
    with connect(three.url) as db:
        m = counters(db)
        tx = db.transaction("pessimistic")
        tx[m][ONE] = 2
        m.get(ONE)
        lines = db._session.lines
        kept = tx._session._line  # type: ignore[attr-defined]  # of a cluster
        called = lines._taken()  # as by another thread
        made = [*kept.connections.values(), *called.connections.values()]
        pid = os.fork()
        if not pid:
            closed = [connection._socket.fileno() == -1 for connection in made]
            os._exit(3 if all(closed) else 4)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
        assert kept.connections
        assert called.connections
        lines._give_back(called)
        tx.commit()
        assert m[ONE] == 2


def test_a_transaction_that_is_dropped_lets_go_of_its_locks_and_warns(three: Members) -> None:
    with connect(three.url) as db:
        m = counters(db)

        connections: list[Any] = []

        def drop() -> None:
            tx = db.transaction("pessimistic")
            tx[m][ONE] = 1
            line = tx._session._line  # type: ignore[attr-defined]  # of a cluster
            connections.extend(line.connections.values())
            del tx, line
            gc.collect()

        with pytest.warns(ResourceWarning, match="was dropped with its locks"):
            drop()
        assert connections
        for connection in connections:
            with pytest.raises(OSError, match="Bad file descriptor"):
                connection.receive()
        tx = db.transaction("pessimistic")
        tx[m][ONE] = 2
        tx.commit()
        del tx
        optimistic = db.transaction()
        optimistic[m][ONE] = 3
        del optimistic
        gc.collect()  # neither warns
        assert m[ONE] == 2


def test_attempts_lock_from_the_third_on_and_then_at_once_what_was_written(three: Members) -> None:
    with connect(three.url) as db:
        m = counters(db)
        m[ONE] = 0
        since = len(three.asked)
        tried = 0

        def work(tx: Any) -> None:
            nonlocal tried
            tried += 1
            found = tx[m][ONE]
            if tried < 3:
                m[ONE] = tried
            tx[m][ONE] = found + 10

        db.run(work, plain_writes=True)
        assert (tried, m[ONE]) == (3, 12)
        assert asked(three, since, "lock") == [(1, "lock")]
        with pytest.raises(ConflictError):
            db.run(_always_late(m), attempts=4, mode="optimistic", plain_writes=True)
        assert asked(three, since, "lock") == [(1, "lock")]


def _always_late(m: Any) -> Any:
    def work(tx: Any) -> None:
        found = tx[m][ONE]
        m[ONE] = found + 1
        tx[m][ONE] = found

    return work


def test_an_attempt_that_others_follow_loses_two_races_at_most(three: Members) -> None:
    with connect(three.url) as db:
        m = counters(db)
        tried = 0

        def work(tx: Any) -> None:
            nonlocal tried
            tried += 1
            tx[m][ONE] = tried
            if tried < 3:
                three.members[1].faults += ["again", "again"]

        db.run(work)
        assert m[ONE] == tried == 3
        assert not three.members[1].faults


def test_attempts_of_a_loop_are_as_old_as_the_first_that_locks() -> None:
    cluster = Cluster(["a:1"])
    first, second = b"1" * 16, b"2" * 16
    locks = ClientLocks(cluster, second, None, None)
    locks.follow(None)
    assert locks.name == second
    locks.follow(ClientLocks(cluster, first, None, None))
    assert locks.name == first[:AGE_BYTES] + second[AGE_BYTES:]


# ------------------------------------------------------------------ step by step

NAMESPACE: Any = SimpleNamespace(id=16, space=Space(0, PARTITIONS))
KEEPER, FOREVER = b"m" * 16, float("inf")
LOCKED = Value((KEEPER, None), 0.0)
"""What was locked, and nothing read."""


def kept(timeout: float | None = None, ends: float | None = None) -> ClientLocks:
    """The locks of a transaction that a member keeps already."""
    locks = ClientLocks(Cluster(["a:1"]), b"1" * 16, timeout, ends)
    locks.member = KEEPER
    return locks


def done(steps: Steps[Any], *events: ClientEvent) -> list[ClientStep]:
    """What a client does to lock something if it hears all that; from the first request on."""
    next(steps)
    found = [steps.send(StepDone(events[0].now))]
    for event in events:
        try:
            found.append(steps.send(event))
        except StopIteration:
            break
    return found


def arguments(step: ClientStep) -> Any:
    assert isinstance(step, Ask)
    assert (step.member, step.operation) == (KEEPER, "lock")
    return step.arguments


def test_what_is_locked_is_asked_for_once_and_brings_nothing_to_who_only_writes() -> None:
    locks = kept()
    [step] = done(locks.written(NAMESPACE, [b"a", b"b", b"a"], FOREVER), LOCKED)
    assert arguments(step)[3:6] == ([b"a", b"b"], True, False)
    reading = locks.read(NAMESPACE, [b"b"], FOREVER, exclusive=False)
    assert next(reading) != Pause(0.0), "it goes on to read"
    [step] = done(locks.read(NAMESPACE, [b"c"], FOREVER, exclusive=False), *[_read(1)])
    assert arguments(step)[3:6] == ([b"c"], False, True)
    [step] = done(locks.written(NAMESPACE, [b"a", b"c"], FOREVER), LOCKED)
    assert arguments(step)[3:6] == ([b"c"], True, False), "it was locked to be read only"


def test_who_keeps_the_transaction_is_told_that_it_had_a_lock_before() -> None:
    """Else it would begin anew what it has lost, without the locks that there were."""
    steps = [done(kept().written(NAMESPACE, [b"a"], FOREVER), LOCKED)[0] for _ in range(2)]
    assert [arguments(step)[1] for step in steps] == [False, False]


def _read(count: int) -> Value:
    return Value((KEEPER, [[b"v", 1, 1]] * count), 0.0)


def test_only_so_many_keys_are_asked_for_at_once() -> None:
    keys = [b"%d" % number for number in range(2 * KEYS_MAX + 1)]
    steps = kept().written(NAMESPACE, keys, FOREVER)
    told: ClientEvent = LOCKED
    asked = [step for step in done(steps, *[told] * 6) if isinstance(step, Ask)]
    parts = [arguments(step)[3] for step in asked]
    assert [len(part) for part in parts] == [KEYS_MAX, KEYS_MAX, 1]
    assert [key for part in parts for key in part] == keys


@pytest.mark.parametrize(
    ("timeout", "ends", "expected"),
    [(None, None, [10_000_000, None]), (0.0, 12.5, [0, 2_500_000]), (2.0, 9.0, [2_000_000, 0])],
)
def test_how_long_a_lock_is_waited_for_is_told(
    timeout: float | None, ends: float | None, expected: list[int | None]
) -> None:
    locks = kept(timeout, ends)
    [step] = done(locks.written(NAMESPACE, [b"a"], FOREVER), LOCKED._replace(now=10.0))
    assert [*arguments(step)[7:]] == expected


def failed(code: str, now: float = 0.0) -> Failed:
    return Failed(code, "", {}, now)


def begun(three: Members) -> tuple[ClientLocks, Cluster]:
    """Return the locks of a transaction that nobody keeps yet, and what its client knows."""
    cluster = Cluster([three.url])
    cluster.learn(three.view())
    return ClientLocks(cluster, b"1" * 16, None, None), cluster


def first_asked(locks: ClientLocks, key: str, until: float = FOREVER) -> tuple[Steps[None], bytes]:
    """Return the steps of a lock behind its first request, and who was sent that."""
    steps = locks.written(NAMESPACE, [key.encode()], until)
    next(steps)
    step = steps.send(StepDone(0.0))
    assert isinstance(step, Ask)
    return steps, step.member


def test_who_may_have_given_a_first_lock_is_asked_for_the_next_one(three: Members) -> None:
    # Else two members would keep the transaction.
    locks, _ = begun(three)
    steps, member = first_asked(locks, ONE)
    assert member == three.members[1].id
    steps.close()  # nobody waits for it any more
    assert first_asked(locks, TWO)[1] == member
    locks, _ = begun(three)
    steps, member = first_asked(locks, ONE, until=1.0)
    with pytest.raises(DeadlineError):
        steps.send(failed("wait", 1.0))
    assert first_asked(locks, TWO)[1] == member


def test_of_those_that_were_asked_for_a_first_lock_the_last_may_have_given_it(
    three: Members,
) -> None:
    locks, cluster = begun(three)
    steps, _ = first_asked(locks, ONE)
    three.primaries[partition_of(ONE.encode(), Space(0, PARTITIONS))] = 2
    three.decide()
    cluster.learn(three.view())
    step = steps.send(failed("remap"))
    assert isinstance(step, Ask)
    assert step.member == three.members[2].id
    steps.close()
    assert first_asked(locks, key_of(0))[1] == step.member
    assert locks.asked == {three.members[1].id, three.members[2].id}


def test_who_has_refused_a_first_lock_keeps_nothing(three: Members) -> None:
    locks, _ = begun(three)
    steps, _ = first_asked(locks, ONE)
    with pytest.raises(DeadlockError):
        steps.send(failed(DeadlockError.code))
    assert first_asked(locks, TWO)[1] == three.members[2].id


def test_a_range_is_kept_from_who_writes_and_not_from_who_reads() -> None:
    [step] = done(kept().range(NAMESPACE, b"a", None, FOREVER), LOCKED)
    assert arguments(step)[3:7] == ([], False, False, [b"a", None])


def test_pauses_before_a_lock_is_asked_for_again_grow_and_end_with_the_call() -> None:
    steps = kept().written(NAMESPACE, [b"a"], 1.0)
    events: list[ClientEvent] = [failed("wait"), StepDone(0.0)] * 10
    paused = [one.seconds for one in done(steps, *events) if isinstance(one, Pause)]
    assert paused == [min(PAUSE_S * 2**number, COMING_S_MAX) for number in range(10)]
    assert steps.send(failed("remap", 1 - 1 / 64)) == Pause(1 / 64)
    steps.send(StepDone(1.0))
    with pytest.raises(DeadlineError, match="a lock was not there"):
        steps.send(failed("wait", 1.0))


def test_a_lock_that_failed_for_good_is_not_asked_for_again() -> None:
    steps = kept().written(NAMESPACE, [b"a"], FOREVER)
    with pytest.raises(DeadlockError):
        done(steps, failed(DeadlockError.code))


@pytest.mark.parametrize(
    ("present", "until", "error"),
    [(True, 2.0, None), (True, 1.0, DeadlineError), (False, 2.0, RolledBackError)],
)
def test_a_keeper_that_says_nothing_is_listened_to_while_it_is_there(
    monkeypatch: pytest.MonkeyPatch,
    present: bool,
    until: float,
    error: type[TidelogError] | None,
) -> None:
    def is_there(*_: object) -> Steps[bool]:
        yield from ()
        return present

    monkeypatch.setattr("tidelog.engine.client.locking.is_there", is_there)
    steps = kept().written(NAMESPACE, [b"a"], until)
    if error is None:
        assert done(steps, Quiet(1.0))[-1] == Listen(KEEPER, until)
        return
    with pytest.raises(error):
        done(steps, Quiet(1.0))
