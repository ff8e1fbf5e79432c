"""Plain locks at a primary: granted, waited for, made commit locks, given back, and probed."""

from __future__ import annotations

from typing import Any

import pytest

from support.group_transactions import BOB, CID, MAP, ME, OTHER, TX, Said, key_in
from support.primaries import Primary, committed, confirm, lock, prepare
from tidelog.affinity.topology import Incarnation
from tidelog.engine.data.scan import Range
from tidelog.engine.node.plain_locks import (
    ASK_OVER_S,
    PROBE_AFTER_S,
    PROBE_PAUSE_S_MAX,
    VALUES_BYTES_MAX,
)
from tidelog.engine.node.tx_messages import AcquireWanted, FoundAt, LockProbe
from tidelog.errors import (
    DeadlockError,
    LockTimeoutError,
    RolledBackError,
    StorageError,
    TransactionTooLargeError,
)
from tidelog.tx.locks import LockTable
from tidelog.wal.records import Run

SHARED, ALONE = 0, 1
"""A partition that Bob has a copy of, and one that is here alone."""
OLD, MIDDLE, YOUNG = b"1" * 16, b"2" * 16, b"3" * 16
LOST = RolledBackError.code
EVERYTHING = Range(namespace=MAP)


def wants(
    name: bytes,
    *partitions: int,
    ask: int = 1,
    number: int = 0,
    exclusive: bool = True,
    reads: bool = False,
    within: Range | None = None,
    wait: float = 10.0,
    epoch: int = 1,
) -> AcquireWanted:
    keys = [] if within else [key_in(partition, number) for partition in partitions]
    return AcquireWanted(
        ask, name, [*partitions], [epoch] * len(partitions), keys, exclusive, reads, within,
        int(wait * 1e6),
    )  # fmt: skip


def acquire(
    at: Primary, name: bytes, *partitions: int, keeper: Incarnation = BOB, **more: Any
) -> None:
    at.plain.acquire(keeper, wants(name, *partitions, **more))


def told(at: Primary) -> list[tuple[str, bytes, str | None]]:
    """Who was told of which locks since the last call, and why not."""
    return [
        (to, says[1], None if says[3] is None else says[3].code)
        for to, kind, says in at.said()
        if kind == "acquired"
    ]


def holding(name: bytes = OLD, *partitions: int, **more: Any) -> Primary:
    at = Primary()
    acquire(at, name, *(partitions or (SHARED,)), **more)
    assert [one[1:] for one in told(at)] == [(name, None)]
    return at


def probes(at: Primary) -> list[Said]:
    return [one for one in at.said() if one[1] == "probe"]


# ------------------------------------------------------------------ granted, or waited for


def test_what_nobody_has_is_granted_at_once_and_stops_writers_only() -> None:
    at = holding()
    assert at.locks.in_way_of([key_in(SHARED)]) is not None
    assert at.locks.in_way_of(read=[key_in(SHARED)]) is None
    assert at.locks.in_way_of(ranges=[((SHARED,), EVERYTHING)]) is None
    assert at.locks.first_written((SHARED,), EVERYTHING, reverse=False) is None
    at.plain.give_back([OLD], BOB)
    assert at.locks.idle


def test_a_range_stops_writers_in_each_of_its_partitions() -> None:
    at = holding(OLD, SHARED, ALONE, within=EVERYTHING)
    for partition in (SHARED, ALONE):
        assert at.locks.in_way_of([key_in(partition, 5)]) is not None
    acquire(at, YOUNG, SHARED, within=EVERYTHING)
    assert told(at) == [("bob", YOUNG, None)]


def test_nothing_is_granted_once_the_log_has_failed() -> None:
    at = Primary()
    at.log.failure = StorageError("the disk is gone")
    acquire(at, OLD, SHARED)
    assert told(at) == [("bob", OLD, "wait")]
    assert at.locks.idle


def test_one_lock_too_many_is_refused_and_the_others_can_be_committed() -> None:
    at = Primary()
    at.locks._table = LockTable(locks_per_owner_max=1)
    acquire(at, OLD, SHARED)
    acquire(at, OLD, SHARED, number=1)
    assert told(at) == [("bob", OLD, None), ("bob", OLD, TransactionTooLargeError.code)]
    at.commit_locks.lock(CID, opened(OLD))
    assert [(kind, says[2]) for _, kind, says in at.said()] == [("locked", None)]


def test_who_waits_is_granted_in_order_once_the_others_let_go() -> None:
    at = holding()
    acquire(at, MIDDLE, SHARED)
    acquire(at, YOUNG, SHARED, keeper=CID)
    assert told(at) == []
    at.plain.give_back([OLD], BOB)
    assert told(at) == [("bob", MIDDLE, None)]
    at.plain.give_back([MIDDLE], BOB)
    assert told(at) == [("cid", YOUNG, None)]


def test_one_lock_after_the_other_and_all_of_them_are_told_at_once() -> None:
    at = holding(OLD, ALONE)
    acquire(at, YOUNG, SHARED, ALONE)
    assert told(at) == []
    assert at.locks.in_way_of([key_in(SHARED)]) is not None
    at.plain.give_back([OLD], BOB)
    assert told(at) == [("bob", YOUNG, None)]


@pytest.mark.parametrize("wait", [0.0, 2.0])
def test_who_has_waited_long_enough_is_told_and_keeps_the_rest(wait: float) -> None:
    at = holding()
    acquire(at, YOUNG, SHARED, number=1)
    acquire(at, YOUNG, SHARED, wait=wait)
    if wait:
        at.now += wait
        at.plain.tick()
    [failure] = [says[3] for _, kind, says in at.said() if kind == "acquired" and says[3]]
    assert failure.code == LockTimeoutError.code
    assert f"was not granted within {wait:g} seconds" in failure.message
    assert "longer `lock_timeout`. If something stays locked, `tidelog tx" in failure.fields["hint"]
    at.plain.give_back([OLD], BOB)
    assert told(at) == []
    assert at.locks.in_way_of([key_in(SHARED)]) is None
    assert at.locks.in_way_of([key_in(SHARED, 1)]) is not None


def test_another_question_takes_the_place_of_one_that_waits() -> None:
    at = holding()
    acquire(at, YOUNG, SHARED, ALONE, ask=1)
    acquire(at, YOUNG, SHARED, ask=2, number=1)
    assert [(says[0], says[3]) for _, _, says in at.said()] == [(2, None)]
    at.plain.give_back([OLD], BOB)
    assert at.said() == []


def test_what_was_asked_through_somebody_else_before_is_given_back() -> None:
    at = holding()
    acquire(at, OLD, SHARED, number=1, keeper=CID)
    assert told(at) == [("cid", OLD, None)]
    assert at.locks.in_way_of([key_in(SHARED)]) is None
    at.plain.give_back([OLD], BOB)
    assert at.locks.in_way_of([key_in(SHARED, 1)]) is not None


def test_locks_are_of_an_epoch_that_is_served_here() -> None:
    at = Primary()
    for partition, epoch in ((SHARED, 2), (3, 1)):
        acquire(at, OLD, partition, epoch=epoch)
        assert told(at) == [("bob", OLD, "remap")]
    at.leases.held = False
    acquire(at, OLD, SHARED)
    assert told(at) == [("bob", OLD, "wait")]
    assert at.locks.idle


def test_what_is_on_its_way_and_older_is_waited_for() -> None:
    at = Primary()
    at.here.prepare(CID, prepare(SHARED, TX, others=()))
    at.locks.release(1)  # what one partition alone writes has no locks, as commits of clients
    acquire(at, OLD, SHARED, exclusive=False, reads=True)
    acquire(at, MIDDLE, SHARED, within=EVERYTHING)
    acquire(at, YOUNG, ALONE, exclusive=False)
    assert told(at) == [("bob", YOUNG, None)]
    acquire(at, YOUNG, SHARED, ALONE, exclusive=False)
    assert told(at) == [], "one of its locks is enough"
    at.all_have(SHARED)
    found = {says[1]: says[2] for _, kind, says in at.said() if kind == "acquired"}
    assert found == {OLD: [FoundAt(b"v", 1, 1)], MIDDLE: None, YOUNG: None}


def test_nothing_that_was_read_is_told_without_a_lease() -> None:
    at = holding()
    acquire(at, YOUNG, SHARED, reads=True)
    at.leases.held = False
    at.plain.give_back([OLD], BOB)
    at.now += 10.0
    at.plain.tick()
    assert told(at) == [], "it has waited long enough for no lock"
    at.leases.held = True
    at.plain.tick()
    assert told(at) == [("bob", YOUNG, None)]


@pytest.mark.parametrize("beyond", [0, 1])
def test_large_values_do_not_come_with_their_locks(beyond: int) -> None:
    at = Primary()
    value = bytes(VALUES_BYTES_MAX + beyond)
    at.here.prepare(CID, prepare(ALONE, TX, others=(), value=value))
    at.all_have(ALONE)
    at.said()
    acquire(at, OLD, ALONE, reads=True)
    [(_, _, (_, _, found, _))] = at.said()
    assert found == (None if beyond else [FoundAt(value, 1, 1)])


def test_values_that_are_large_together_do_not_come_with_their_locks() -> None:
    at = Primary()
    for number, tx_id in enumerate((TX, OTHER)):
        value = bytes(VALUES_BYTES_MAX - number)
        at.here.prepare(CID, prepare(ALONE, tx_id, others=(), number=number, value=value))
    at.all_have(ALONE)
    at.said()
    wanted = wants(OLD, ALONE, reads=True)
    at.plain.acquire(BOB, wanted._replace(keys=[key_in(ALONE, 0), key_in(ALONE, 1)]))
    [(_, _, (_, _, found, failure))] = at.said()
    assert (found, failure) == (None, None)


# ------------------------------------------------------------------ commit locks


def opened(name: bytes, **more: Any) -> Any:
    return lock(SHARED, TX, **more)._replace(opened=name)


def test_plain_locks_become_commit_locks_and_then_stop_readers() -> None:
    at = holding()
    acquire(at, OLD, SHARED, number=1, exclusive=False)
    at.said()
    at.commit_locks.lock(CID, opened(OLD))
    assert [(to, kind, says[2]) for to, kind, says in at.said()] == [("cid", "locked", None)]
    assert at.locks.in_way_of(read=[key_in(SHARED)]) is not None
    at.plain.give_back([OLD], BOB)
    assert at.locks.in_way_of([key_in(SHARED, 1)]) is not None, "they are of the commit by now"
    at.commit_locks.unlock(CID, 1, [SHARED])
    assert at.locks.idle


def test_locks_that_are_gone_are_refused_so_that_the_transaction_runs_again() -> None:
    at = Primary()
    at.commit_locks.lock(CID, opened(OLD))
    [(_, _, (_, _, failure))] = at.said()
    assert failure.code == LOST
    at.commit_locks.confirm(CID, confirm(SHARED)._replace(opened=OLD))
    [(_, _, (_, _, failure))] = at.said()
    assert failure.code == LOST
    at.here.prepare(CID, prepare(SHARED, TX)._replace(opened=OLD))
    [(_, _, part)] = at.said()
    assert part.failure.code == LOST


def test_a_commit_while_it_waits_for_a_lock_finds_none() -> None:
    at = holding()
    acquire(at, YOUNG, SHARED, number=1)
    acquire(at, YOUNG, SHARED)
    at.said()
    at.commit_locks.lock(CID, opened(YOUNG, number=1))
    [(_, _, (_, _, failure))] = at.said()
    assert failure.code == LOST


def test_a_key_that_somebody_else_has_is_refused_and_all_is_let_go() -> None:
    at = holding()
    acquire(at, YOUNG, SHARED, number=1)
    at.said()
    at.commit_locks.lock(CID, opened(YOUNG))
    [(_, _, (_, _, failure))] = at.said()
    assert failure.code == "wait"
    assert at.locks.in_way_of([key_in(SHARED, 1)]) is None


def test_a_confirm_and_a_prepare_take_what_is_held() -> None:
    at = holding()
    at.commit_locks.confirm(CID, confirm(SHARED, [(0, 0, 0)])._replace(opened=OLD))
    assert [(kind, says[2]) for _, kind, says in at.said()] == [("confirmed", None)]
    at.here.prepare(CID, prepare(SHARED, TX)._replace(opened=OLD))
    at.all_have(SHARED)
    assert [kind for _, kind, _ in at.said()] == ["prepared"]
    acquire(at, YOUNG, SHARED)
    at.here.decision(committed(TX, Run(SHARED, 1, 1, 1), Run(3, 1, 7, 1)), [SHARED])
    at.sync()
    assert told(at) == [("bob", YOUNG, None)]


def test_a_pin_leaves_plain_locks_and_takes_commit_locks() -> None:
    at = holding()
    acquire(at, YOUNG, SHARED, number=1)
    at.commit_locks.lock(CID, opened(OLD))
    at.log.held = True
    at.here.lose_locks()
    assert at.locks.in_way_of([key_in(SHARED)]) is None
    assert at.locks.in_way_of([key_in(SHARED, 1)]) is not None
    at.said()
    at.commit_locks.lock(CID, lock(SHARED, OTHER, number=1)._replace(opened=YOUNG))
    assert at.said() == [], "none is granted during a hold"


def test_who_prepares_several_groups_is_not_let_past_a_queue() -> None:
    at = holding(OLD, exclusive=False)
    acquire(at, YOUNG, SHARED)
    at.here.prepare(CID, prepare(SHARED, TX, number=1, shared=[0]))
    [(_, kind, part)] = at.said()
    assert (kind, part.failure.code) == ("refused", "wait")
    assert at.locks.in_way_of([key_in(SHARED, 1)]) is None


# ------------------------------------------------------------------ their end


def test_locks_go_with_the_epoch_and_those_of_other_partitions_with_them() -> None:
    at = holding(OLD, SHARED, ALONE)
    acquire(at, YOUNG, ALONE, SHARED)
    at.seal(SHARED, 2)
    assert told(at) == [("bob", YOUNG, LOST)]
    assert at.locks.idle


def test_an_epoch_leaves_the_locks_of_other_partitions() -> None:
    at = holding(OLD, ALONE)
    at.seal(SHARED, 2)
    assert at.locks.in_way_of([key_in(ALONE)]) is not None


def test_what_was_given_back_waits_for_nothing() -> None:
    at = holding()
    acquire(at, YOUNG, SHARED, wait=2.0)
    at.plain.give_back([YOUNG], BOB)
    at.now += 2.0
    at.plain.tick()
    assert told(at) == []


def test_locks_go_with_who_keeps_them() -> None:
    at = holding()
    acquire(at, YOUNG, SHARED, keeper=CID)
    at.decide(away=(CID,))
    assert told(at) == []
    at.decide(away=(BOB,))
    assert at.locks.idle


def test_old_locks_are_asked_after_and_go_if_nobody_keeps_them() -> None:
    at = holding()
    acquire(at, YOUNG, ALONE)
    at.said()
    at.plain.tick()
    assert at.said() == []
    at.now += ASK_OVER_S
    at.plain.tick()
    at.plain.tick()
    assert at.said() == [("bob", "ask-over", ([OLD, YOUNG],))], "once"
    at.plain.give_back([YOUNG], BOB)
    at.plain.give_back([OLD], CID)
    assert not at.locks.idle, "it is not for Cid to say"
    at.plain.give_back([OLD], BOB)
    assert at.locks.idle


# ------------------------------------------------------------------ who waits for whom


def test_of_two_who_wait_here_for_each_other_one_ends_at_once() -> None:
    at = holding(OLD, exclusive=False)
    acquire(at, YOUNG, SHARED, exclusive=False)
    acquire(at, OLD, SHARED)
    assert told(at) == [("bob", YOUNG, None)]
    acquire(at, YOUNG, SHARED)
    assert told(at) == [("bob", OLD, None), ("bob", YOUNG, DeadlockError.code)]


@pytest.mark.parametrize("wait", [0.0, 10.0])
def test_one_who_waits_already_may_be_the_one_that_ends(wait: float) -> None:
    at = holding(OLD, exclusive=False)
    acquire(at, YOUNG, SHARED, exclusive=False)
    acquire(at, YOUNG, SHARED)
    assert told(at) == [("bob", YOUNG, None)]
    acquire(at, OLD, SHARED, wait=wait)
    assert told(at) == [("bob", OLD, None), ("bob", YOUNG, DeadlockError.code)]


def test_who_ends_since_another_wait_was_too_long_is_told_once() -> None:
    first, late, behind, ended = (bytes([number]) * 16 for number in range(4))
    at = holding(first, number=2, exclusive=False)
    acquire(at, behind, SHARED, number=1)
    acquire(at, ended, SHARED, number=3)
    acquire(at, late, SHARED, number=2, wait=2.0)
    both = [key_in(SHARED, 2), key_in(SHARED, 3)]
    at.plain.acquire(BOB, wants(behind, SHARED, exclusive=False)._replace(keys=both))
    acquire(at, ended, SHARED, number=1, wait=2.0)
    assert [one[1] for one in told(at)] == [behind, ended]
    at.now += 2.0
    at.plain.tick()
    assert sorted(told(at)) == [
        ("bob", late, LockTimeoutError.code), ("bob", behind, None),
        ("bob", ended, DeadlockError.code),
    ]  # fmt: skip


def test_a_wait_is_probed_behind_a_while_then_less_and_less_often() -> None:
    at = holding()
    acquire(at, YOUNG, SHARED, ask=7, keeper=CID, wait=60)
    began, pauses = at.now, list[float]()
    for _ in range(200):
        at.now += 0.01
        at.plain.tick()
        if found := probes(at):
            round_ = len(pauses) + 1
            probe = LockProbe(YOUNG, [YOUNG, OLD], 7, round_, waits=False)
            assert found == [("bob", "probe", probe)]
            pauses.append(at.now - began)
            began = at.now
    assert pauses[0] == pytest.approx(PROBE_AFTER_S, abs=0.011)
    assert pauses == sorted(pauses)
    assert pauses[-1] == pytest.approx(PROBE_PAUSE_S_MAX, abs=0.011)


def test_a_probe_goes_on_to_whoever_does_not_wait_here_and_is_not_younger() -> None:
    at = holding(OLD, SHARED, exclusive=False)
    acquire(at, YOUNG, SHARED, exclusive=False, keeper=CID)  # has it, too, and is younger
    acquire(at, MIDDLE, SHARED)
    at.said()
    at.plain.probe(LockProbe(MIDDLE, [MIDDLE], 1, 1, waits=True))
    assert [(to, probe.path) for to, _, probe in probes(at)] == [("bob", [MIDDLE, OLD])]
    at.plain.probe(LockProbe(YOUNG, [YOUNG, MIDDLE], 1, 1, waits=True))
    assert [(to, probe.path) for to, _, probe in probes(at)] == [
        ("bob", [YOUNG, MIDDLE, OLD]), ("cid", [YOUNG, MIDDLE, YOUNG]),
    ]  # fmt: skip
    at.plain.probe(LockProbe(OLD, [OLD], 1, 1, waits=True))
    assert probes(at) == [], "it does not wait here"


def test_a_probe_goes_once_to_whom_it_meets_on_two_ways() -> None:
    at = holding(OLD, exclusive=False)
    acquire(at, MIDDLE, SHARED, exclusive=False)
    acquire(at, OLD, SHARED, number=1)
    acquire(at, MIDDLE, SHARED, number=1)
    acquire(at, YOUNG, SHARED)
    at.said()
    at.plain.probe(LockProbe(YOUNG, [YOUNG], 1, 1, waits=True))
    assert [(to, probe.path) for to, _, probe in probes(at)] == [("bob", [YOUNG, OLD])]


def test_a_probe_passes_those_who_wait_here_and_comes_back_to_its_own() -> None:
    """Two partitions of one member have owners of their own; it sees through that by itself."""
    at = holding(MIDDLE, SHARED, keeper=CID)
    acquire(at, OLD, ALONE)
    acquire(at, OLD, SHARED, wait=60)
    acquire(at, MIDDLE, ALONE, keeper=CID, wait=60)
    at.said()
    at.now += PROBE_AFTER_S
    at.plain.tick()
    back = LockProbe(MIDDLE, [MIDDLE, MIDDLE], 1, 1, waits=False)
    assert probes(at) == [("cid", "probe", back)]


def test_nobody_is_probed_who_commits() -> None:
    at = holding(OLD, keeper=ME)
    at.commit_locks.lock(CID, opened(OLD))
    acquire(at, YOUNG, SHARED, wait=60)
    at.now += PROBE_AFTER_S
    at.plain.tick()
    assert probes(at) == []
