"""What a primary answers to transactions of several groups: in each phase, and behind each end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from support.group_transactions import FRESH, GIVEN, OTHER, PARTITIONS, TX
from support.primaries import (
    BOB,
    CID,
    MAP,
    ME,
    Primary,
    committed,
    confirm,
    key_in,
    lock,
    name_in,
    prepare,
    prepared_of,
    question,
    rolled_back,
)
from tidelog.engine.commit import outcomes
from tidelog.engine.data.digests import range_digest
from tidelog.engine.data.namespaces import OUTCOMES
from tidelog.engine.node.commit_locks import LOCKED_S_MAX
from tidelog.engine.node.group_locks import HELD_S_MAX
from tidelog.engine.node.tx_messages import PreparedPart, ReadSpan, RefusedPart
from tidelog.engine.node.works import DECISION_TIMEOUT_S, Work
from tidelog.errors import ConflictError, TooFewCopiesError
from tidelog.wal.records import (
    CommitRecord,
    Participant,
    PrepareRecord,
    RollbackRecord,
    Run,
    Settled,
    SettledOutcome,
    TxRecord,
)

THIRD = b"3" * 16
LOST = ConflictError.code
SHARED = 0
"""A partition that Bob has a copy of."""
ALONE = 1
"""A partition that nobody else has a copy of."""


def run_of(partition: int, first: int = 1, epoch: int = 1) -> Run:
    return Run(partition, epoch, first, 1)


ELSEWHERE = run_of(3, 7)


def answers(at: Primary) -> list[tuple[str, str, str | None]]:
    """Who was told what since the last call, and why not."""
    found = []
    for to, kind, told in at.said():
        failure = None
        if kind == "refused":
            failure = told.failure.code
        elif kind in ("locked", "confirmed") and told[2] is not None:
            failure = told[2].code
        found.append((to, kind, failure))
    return found


def work_of(at: Primary, tx_id: bytes = TX) -> Work:
    [work] = at.works.of(tx_id)
    return work


def is_free(at: Primary) -> bool:
    """Whether nothing is locked."""
    return at.locks.idle


def locked(partition: int = SHARED, **more: Any) -> Primary:
    at = Primary()
    at.commit_locks.lock(CID, lock(partition, TX, **more))
    assert answers(at) == [("cid", "locked", None)]
    return at


def preparing(partition: int = SHARED, **more: Any) -> Primary:
    """One whose PREPARE is on its way to its copies, for Cid."""
    at = Primary()
    at.here.prepare(CID, prepare(partition, TX, **more))
    at.carry()
    assert at.said() == []
    return at


def prepared(partition: int = SHARED, **more: Any) -> Primary:
    at = Primary()
    at.here.prepare(CID, prepare(partition, TX, **more))
    at.all_have(partition)
    assert answers(at) == [("cid", "prepared", None)]
    return at


def ended(at: Primary, partition: int = SHARED, *, commits: bool = True) -> None:
    runs = (run_of(partition), ELSEWHERE) if commits else ()
    at.here.decision(committed(TX, *runs), [partition])
    at.carry()


# ------------------------------------------------------------------ locks


def test_locks_are_granted_at_once_where_nothing_is_in_the_way() -> None:
    at = Primary()
    at.commit_locks.lock(CID, lock(SHARED, TX, 7))
    assert at.said() == [("cid", "locked", (7, SHARED, None))]
    assert at.locks.in_way_of(read=[key_in(SHARED)]) is not None
    assert at.works.at(SHARED, TX) is not None
    assert at.works.at(ALONE, TX) is None
    at.commit_locks.unlock(CID, 7, [SHARED])
    assert is_free(at)
    assert at.works.of(TX) == []
    assert at.records() == [], "locks are in no log"


def test_only_who_asked_unlocks_and_only_what_it_asked_for() -> None:
    at = locked(ask=7)
    at.commit_locks.unlock(BOB, 7, [SHARED])
    at.commit_locks.unlock(CID, 8, [SHARED])
    at.commit_locks.unlock(CID, 7, [ALONE, 3])
    assert not is_free(at)
    at.commit_locks.unlock(CID, 7, [ALONE, SHARED])
    assert is_free(at)
    at.commit_locks.unlock(CID, 7, [SHARED])


def test_a_lock_that_somebody_holds_is_refused_at_once() -> None:
    at = locked()
    at.commit_locks.lock(BOB, lock(SHARED, OTHER))
    assert answers(at) == [("bob", "locked", "wait")]
    assert at.works.of(OTHER) == []
    at.commit_locks.lock(BOB, lock(SHARED, OTHER, number=1))
    assert answers(at) == [("bob", "locked", None)]


def test_locks_of_a_transaction_that_is_under_way_are_not_given_twice() -> None:
    at = locked()
    at.commit_locks.lock(CID, lock(SHARED, TX, 2, attempt=2, number=1))
    assert answers(at) == [("cid", "locked", "wait")]
    at = prepared()
    at.commit_locks.lock(CID, lock(SHARED, TX, 2, attempt=2, number=1))
    assert answers(at) == [("cid", "locked", "wait")]


def test_locks_are_of_the_epoch_that_is_open_here() -> None:
    at = Primary()
    for epoch in (0, 2):
        at.commit_locks.lock(CID, lock(SHARED, TX, epoch=epoch))
        assert answers(at) == [("cid", "locked", "remap")]
    at.commit_locks.lock(CID, lock(3, TX))
    assert answers(at) == [("cid", "locked", "remap")]
    at.seal(SHARED, 2)
    at.commit_locks.lock(CID, lock(SHARED, TX, epoch=2))
    assert answers(at) == [("cid", "locked", "wait")]
    assert is_free(at)


def test_without_a_lease_or_a_log_nothing_is_locked() -> None:
    at = Primary()
    at.leases.held = False
    at.commit_locks.lock(CID, lock(SHARED, TX))
    assert answers(at) == [("cid", "locked", "wait")]
    at = failed()
    at.commit_locks.lock(CID, lock(ALONE, OTHER))
    assert answers(at) == [("cid", "locked", "wait")]
    assert is_free(at)


def test_a_set_that_is_too_small_locks_and_prepares_nothing() -> None:
    at = Primary()
    object.__setattr__(at.leases.topology, "min_in_sync", 2)
    at.commit_locks.lock(CID, lock(SHARED, TX))
    assert answers(at) == [("cid", "locked", TooFewCopiesError.code)]
    at.here.prepare(CID, prepare(SHARED, OTHER))
    assert answers(at) == [("cid", "refused", TooFewCopiesError.code)]
    assert is_free(at)


def test_a_lock_waits_for_what_is_on_its_way_and_older() -> None:
    at = Primary()
    at.here.prepare(BOB, prepare(SHARED, OTHER, others=(), number=0))
    at.locks.release(1)  # what one partition alone writes has no locks, as commits of clients
    at.commit_locks.lock(CID, lock(SHARED, TX))
    assert at.said() == []
    assert work_of(at).phase == "locking"
    at.carry()
    assert at.said() == [], "not every copy has it"
    at.stored(SHARED, BOB)
    assert ("cid", "locked", None) in answers(at)
    assert work_of(at).phase == "locked"
    at.decide_log()
    assert at.said() == [], "it is granted once"


def test_a_lock_does_not_wait_for_what_writes_other_keys() -> None:
    at = Primary()
    at.here.prepare(BOB, prepare(SHARED, OTHER, number=1))
    at.commit_locks.lock(CID, lock(SHARED, TX))
    assert answers(at) == [("cid", "locked", None)]


def test_a_lock_that_waits_can_be_given_back_and_is_in_the_way_of_others() -> None:
    at = Primary()
    at.here.prepare(BOB, prepare(SHARED, OTHER, others=()))
    at.locks.release(1)
    at.commit_locks.lock(CID, lock(SHARED, TX))
    at.commit_locks.lock(BOB, lock(SHARED, THIRD))
    assert answers(at) == [("bob", "locked", "wait")]
    at.commit_locks.unlock(CID, 1, [SHARED])
    at.all_have(SHARED)
    assert ("cid", "locked", None) not in answers(at)


def test_locks_go_after_a_while_if_no_prepare_comes() -> None:
    at = locked()
    at.now += LOCKED_S_MAX
    at.tick()
    assert not is_free(at)
    at.now += 0.01
    at.tick()
    assert is_free(at)
    at.here.prepare(CID, prepare(SHARED, TX, locked=True))
    assert answers(at) == [("cid", "refused", "again")], "others may have been there (T5)"


def test_locks_that_were_prepared_do_not_go_with_time() -> None:
    for at in (preparing(), prepared()):
        at.now += 1000.0
        at.tick()
        assert not is_free(at)


def test_locks_go_with_the_member_that_asked_for_them() -> None:
    at = locked()
    at.decide(away=(BOB,))
    assert not is_free(at)
    at.decide(away=(CID,))
    assert is_free(at)
    at = locked()
    at.decide(boots={CID: CID.boot + 1})
    assert is_free(at), "an incarnation never returns"


# ------------------------------------------------------------------ ids of users


def known_outcome(kind: outcomes.Kind, attempt: int = 1) -> tuple[Primary, int]:
    """A primary that knows what became of an id that a user gave; its home."""
    home = outcomes.home_of(GIVEN, PARTITIONS)
    at = Primary()
    if home not in (0, 1, 2, 4):
        raise AssertionError("another id is needed")
    entry = outcomes.encode_outcome(outcomes.OutcomeEntry(kind, 5, attempt))
    full_key = outcomes.outcome_key(GIVEN, PARTITIONS)
    wanted = prepare(home, OTHER, others=())._replace(keys=[full_key], values=[entry])
    at.here.prepare(CID, wanted)
    at.all_have(home)
    assert answers(at) == [("cid", "prepared", None)]
    assert full_key[4:8] == OUTCOMES.to_bytes(4, "big")
    at.decide_log()
    return at, home


def test_a_lock_and_a_prepare_under_an_id_that_has_committed_say_when() -> None:
    at, home = known_outcome(outcomes.Kind.COMMITTED)
    at.commit_locks.lock(CID, lock(home, TX, given=GIVEN))
    at.here.prepare(CID, prepare(home, FRESH, given=GIVEN))
    at.carry()
    (_, _, answer), (_, _, part) = at.said()
    assert answer[2].code == part.failure.code == "earlier"
    assert answer[2].fields == part.failure.fields == {"time": 1000}
    assert is_free(at)
    assert len(at.records()) == 1, "nothing was prepared"


def test_an_attempt_that_was_refused_gets_no_locks_and_the_next_one_does() -> None:
    at, home = known_outcome(outcomes.Kind.REFUSED, 2)
    at.commit_locks.lock(CID, lock(home, TX, given=GIVEN, attempt=2))
    [(_, _, failure)] = answers(at)
    assert failure not in (None, "wait", "again", "remap", "earlier")
    at.commit_locks.lock(CID, lock(home, TX, given=GIVEN, attempt=3))
    assert answers(at) == [("cid", "locked", None)]


# ------------------------------------------------------------------ confirms


def written(at: Primary, partition: int, number: int = 0, tx_id: bytes = THIRD) -> None:
    """Let a key get a value."""
    at.here.prepare(ME, prepare(partition, tx_id, others=(), number=number))
    at.all_have(partition)
    at.said()


def test_what_was_read_is_confirmed_if_it_is_so_still() -> None:
    at = Primary()
    written(at, SHARED)
    at.commit_locks.confirm(CID, confirm(SHARED, [(0, 1, 1), (1, 0, 0)], ask=9))
    assert at.said() == [("cid", "confirmed", (9, SHARED, None))]
    for read in ((0, 1, 2), (0, 2, 1), (0, 0, 0), (1, 1, 1)):
        at.commit_locks.confirm(CID, confirm(SHARED, [read]))
        assert answers(at) == [("cid", "confirmed", LOST)]


def test_what_somebody_has_locked_is_not_confirmed() -> None:
    at = locked()
    at.commit_locks.confirm(BOB, confirm(SHARED, [(0, 0, 0)]))
    assert answers(at) == [("bob", "confirmed", "wait")]
    at.commit_locks.confirm(BOB, confirm(SHARED, [(1, 0, 0)]))
    assert answers(at) == [("bob", "confirmed", None)]
    at.commit_locks.unlock(CID, 1, [SHARED])
    at.commit_locks.confirm(BOB, confirm(SHARED, [(0, 0, 0)]))
    assert answers(at) == [("bob", "confirmed", None)]


@pytest.mark.parametrize("phase", [preparing, prepared])
def test_what_somebody_prepares_is_not_confirmed(phase: Callable[[], Primary]) -> None:
    at = phase()
    at.commit_locks.confirm(BOB, confirm(SHARED, [(0, 0, 0)]))
    assert answers(at) == [("bob", "confirmed", "wait")]


def test_what_is_read_by_somebody_who_prepares_may_be_confirmed() -> None:
    at = prepared(shared=(1,))
    at.commit_locks.confirm(BOB, confirm(SHARED, [(1, 0, 0)]))
    assert answers(at) == [("bob", "confirmed", None)]


def test_what_is_on_its_way_is_not_confirmed() -> None:
    at = Primary()
    at.here.prepare(BOB, prepare(SHARED, OTHER, others=()))
    at.locks.release(1)
    at.commit_locks.confirm(CID, confirm(SHARED, [(0, 0, 0)]))
    assert answers(at) == [("cid", "confirmed", LOST)]
    at.carry()
    at.commit_locks.confirm(CID, confirm(SHARED, [(0, 0, 0)]))
    assert answers(at) == [("cid", "confirmed", LOST)]


def span(at: Primary, partition: int, *numbers: int, high: bytes | None = None) -> ReadSpan:
    """The whole of a map in a partition, as it is while it has these keys."""
    names = sorted(name_in(partition, number) for number in numbers)
    versions = {
        name_in(partition, number): at.version(key_in(partition, number)) for number in numbers
    }
    digest = range_digest(
        names, [versions[name][0] for name in names], [versions[name][1] for name in names]
    )
    return ReadSpan(MAP, b"", high, len(names), digest)


def test_a_range_is_confirmed_if_it_has_the_same_keys_still_and_nobody_writes_into_it() -> None:
    at = Primary()
    written(at, SHARED)
    one = span(at, SHARED, 0)
    at.commit_locks.confirm(CID, confirm(SHARED, ranges=[one]))
    assert answers(at) == [("cid", "confirmed", None)]
    for wrong in (one._replace(count=0), one._replace(count=2), one._replace(digest=b"d" * 16)):
        at.commit_locks.confirm(CID, confirm(SHARED, ranges=[wrong]))
        assert answers(at) == [("cid", "confirmed", LOST)]
    at.commit_locks.lock(BOB, lock(SHARED, OTHER, number=1))
    at.said()
    at.commit_locks.confirm(CID, confirm(SHARED, ranges=[one]))
    assert answers(at) == [("cid", "confirmed", "wait")], "absent keys included (T3)"
    narrow = ReadSpan(MAP, b"", b"", 0, range_digest([], [], []))
    at.commit_locks.confirm(CID, confirm(SHARED, ranges=[narrow]))
    assert answers(at) == [("cid", "confirmed", None)]


def test_only_who_serves_a_partition_confirms_what_was_read_there() -> None:
    at = Primary()
    at.leases.held = False
    at.commit_locks.confirm(CID, confirm(SHARED, [(0, 0, 0)]))
    at.leases.held = True
    at.commit_locks.confirm(CID, confirm(3, [(0, 0, 0)]))
    assert answers(at) == [("cid", "confirmed", "wait"), ("cid", "confirmed", "remap")]


def test_a_lease_that_ends_while_it_is_looked_confirms_nothing() -> None:
    at = Primary()
    asked: list[float] = []

    def may_serve(_partition: int, now: float) -> bool:
        asked.append(now)
        return len(asked) == 1

    leases: Any = at.leases
    leases.may_serve = may_serve
    at.commit_locks.confirm(CID, confirm(SHARED, [(0, 0, 0)]))
    assert answers(at) == [("cid", "confirmed", "wait")], "it is asked for behind the work (L5)"


# ------------------------------------------------------------------ prepares


def test_a_part_is_prepared_once_every_copy_has_it() -> None:
    at = Primary()
    wanted = prepare(2, TX, tag="t", shared=(1,), reads=((2, 0, 0),), home=3)
    at.here.prepare(CID, wanted)
    assert at.records() == []
    at.carry()
    record = prepared_of(at.records())
    assert record == PrepareRecord(
        tx_id=TX, attempt=1, near=(CID.member.bytes, CID.boot), time=1000, home=3,
        participants=(Participant(2, 1, 1), Participant(3, 1, 1)), run=run_of(2),
        namespaces=MAP, keys=[name_in(2)], values=[b"v"], locks=[(MAP, name_in(2, 1))],
        details={"tag": "t"},
    )  # fmt: skip
    at.stored(2, BOB)
    assert at.said() == [], "Cid has it not"
    at.stored(2, CID)
    assert at.said() == [("cid", "prepared", PreparedPart(TX, 1, run_of(2), 1000))]
    assert at.value(key_in(2)) is None, "it has no effect yet"
    assert [one.phase for one in at.works.prepared()] == ["prepared"]


def test_a_sole_copy_prepares_once_it_is_durable_here() -> None:
    at = Primary()
    at.sync_runs = lambda: synced.append(at.kinds())
    synced: list[Any] = []
    at.here.prepare(CID, prepare(ALONE, TX))
    at.carry()
    assert (synced, at.kinds()) == ([[]], [("cid", "prepared")])


def test_what_is_prepared_holds_its_keys_and_what_it_read() -> None:
    at = prepared(shared=(1,))
    for number in (0, 1):
        at.here.prepare(BOB, prepare(SHARED, OTHER, number=number, attempt=number))
        assert answers(at) == [("bob", "refused", "wait")], "never a wait (T4)"
    at.here.prepare(BOB, prepare(SHARED, THIRD, number=2, shared=(0,)))
    assert answers(at) == [("bob", "refused", "wait")]
    at.here.prepare(BOB, prepare(SHARED, FRESH, number=2, shared=(1,)))
    at.all_have(SHARED)
    assert answers(at) == [("bob", "prepared", None)]


def test_locks_become_those_of_the_prepare_without_a_break() -> None:
    at = locked()
    at.here.prepare(CID, prepare(SHARED, TX, locked=True))
    at.commit_locks.lock(BOB, lock(SHARED, OTHER))
    at.all_have(SHARED)
    assert answers(at) == [("bob", "locked", "wait"), ("cid", "prepared", None)]
    at.now += LOCKED_S_MAX + 1
    at.tick()
    at.commit_locks.unlock(CID, 1, [SHARED])
    assert not is_free(at), "no word about locks lets go of what is prepared"
    assert work_of(at).phase == "prepared"


def test_a_prepare_that_names_locks_needs_them() -> None:
    at = Primary()
    at.here.prepare(CID, prepare(SHARED, TX, locked=True))
    assert answers(at) == [("cid", "refused", "again")]
    assert (is_free(at), at.works.of(TX)) == (True, [])
    at.carry()
    assert at.records() == []


def test_a_prepare_that_names_locks_needs_them_granted() -> None:
    at = Primary()
    at.here.prepare(BOB, prepare(SHARED, OTHER, others=()))
    at.locks.release(1)
    at.commit_locks.lock(CID, lock(SHARED, TX))
    at.here.prepare(CID, prepare(SHARED, TX, locked=True))
    assert answers(at) == [("cid", "refused", "again")]
    assert is_free(at)


def test_a_prepare_of_somebody_else_does_not_get_locks_that_another_one_holds() -> None:
    for sender, ask in ((BOB, 1), (CID, 2)):
        at = locked()
        at.here.prepare(sender, prepare(SHARED, TX, ask, locked=True))
        [(_, kind, failure)] = answers(at)
        assert (kind, failure) == ("refused", "again")
        assert work_of(at).phase == "locked", "that one goes on"


def test_another_attempt_is_refused_while_one_is_under_way() -> None:
    for at in (locked(), preparing(), prepared()):
        at.here.prepare(CID, prepare(SHARED, TX, 2, attempt=2, number=1))
        assert answers(at) == [("cid", "refused", "again")]
        at.here.prepare(BOB, prepare(SHARED, TX, 1, attempt=2, number=1))
        assert answers(at) == [("bob", "refused", "again")]
        assert work_of(at).attempt == 1


def test_a_prepare_is_of_the_epoch_that_is_open_here() -> None:
    at = Primary()
    for tx_id, epoch in ((TX, 0), (OTHER, 2)):
        at.here.prepare(CID, prepare(SHARED, tx_id, epoch=epoch))
        assert answers(at) == [("cid", "refused", "remap")]
    at.here.prepare(CID, prepare(3, THIRD, others=(0,)))
    assert answers(at) == [("cid", "refused", "remap")]
    assert is_free(at)


def test_an_epoch_that_ends_before_a_prepare_is_logged_leaves_nothing_of_it() -> None:
    at = Primary()
    at.here.prepare(CID, prepare(SHARED, TX))
    at.seal(SHARED, 2)
    at.carry()
    assert (at.records(), is_free(at)) == ([], True)
    assert [kind for _, kind, _ in answers(at)] == ["refused"]


def test_what_was_read_is_looked_at_when_a_part_is_prepared() -> None:
    at = Primary()
    written(at, SHARED, 1)
    for tx_id, read in ((TX, (1, 0, 0)), (OTHER, (1, 1, 2))):
        at.here.prepare(CID, prepare(SHARED, tx_id, reads=(read,)))
        at.carry()
        assert answers(at) == [("cid", "refused", LOST)]
        assert is_free(at)
    at.here.prepare(CID, prepare(SHARED, THIRD, ranges=(span(at, SHARED),)))
    at.carry()
    assert answers(at) == [("cid", "refused", LOST)]
    at.here.prepare(
        CID, prepare(SHARED, FRESH, reads=((1, 1, 1), (2, 0, 0)), ranges=(span(at, SHARED, 1),))
    )
    at.all_have(SHARED)
    assert answers(at) == [("cid", "prepared", None)]


def test_what_comes_before_it_in_its_group_counts() -> None:
    at = Primary()
    at.here.prepare(BOB, prepare(SHARED, OTHER, number=1))
    at.here.prepare(CID, prepare(SHARED, TX, reads=((1, 0, 0),)))
    at.all_have(SHARED)
    assert sorted(answers(at)) == [("bob", "prepared", None), ("cid", "refused", LOST)]


def test_one_partition_alone_commits_once_every_copy_has_its_prepare() -> None:
    at = Primary()
    at.commit_locks.lock(ME, lock(SHARED, TX))
    at.here.prepare(ME, prepare(SHARED, TX, locked=True, others=()))
    at.carry()
    assert (answers(at), at.value(key_in(SHARED))) == ([("me", "locked", None)], None)
    at.stored(SHARED, BOB)
    assert answers(at) == [("me", "prepared", None)]
    assert (at.value(key_in(SHARED)), is_free(at)) == (b"v", True)
    assert at.works.of(TX) == []
    at.here.prepare(ME, prepare(ALONE, OTHER, others=()))
    at.carry()
    assert answers(at) == [("me", "prepared", None)]
    assert (at.value(key_in(ALONE)), is_free(at)) == (b"v", True)
    assert isinstance(at.records()[-1], TxRecord)


# ------------------------------------------------------------------ said again


def test_a_prepare_that_comes_again_is_answered_again_and_logged_once() -> None:
    at = preparing()
    at.here.prepare(CID, prepare(SHARED, TX))
    at.here.prepare(BOB, prepare(SHARED, TX, 9))
    at.stored(SHARED, BOB)
    assert answers(at) == [("bob", "prepared", None), ("cid", "prepared", None)]
    at.here.prepare(CID, prepare(SHARED, TX))
    assert answers(at) == [("cid", "prepared", None)]
    at.all_have(SHARED)
    assert len(at.records()) == 1


def test_a_prepare_that_comes_again_behind_its_commit_is_not_prepared_anew() -> None:
    at = prepared()
    ended(at)
    at.said()
    at.here.prepare(CID, prepare(SHARED, TX, value=b"again"))
    at.all_have(SHARED)
    assert at.pending(SHARED) == [], "it is done here (T5)"
    assert at.said() == [("cid", "prepared", PreparedPart(TX, 1, run_of(SHARED), 2000))]
    assert at.value(key_in(SHARED)) == b"v"


def test_what_was_asked_about_before_it_came_is_refused_when_it_comes() -> None:
    at = locked()
    at.here.question(CID, question(SHARED, OTHER, near=BOB))
    assert answers(at) == [("cid", "refused", "again")]
    at.commit_locks.unlock(CID, 1, [SHARED])
    at.here.prepare(BOB, prepare(SHARED, OTHER))
    assert answers(at) == [("bob", "refused", "again")]
    at.carry()
    assert at.records() == []
    at.here.prepare(BOB, prepare(SHARED, OTHER, attempt=2))
    at.all_have(SHARED)
    assert answers(at) == [("bob", "prepared", None)], "another attempt is another name"


def test_a_refusal_is_remembered_until_its_near_member_is_gone() -> None:
    at = Primary()
    at.here.question(ME, question(SHARED, TX, near=CID))
    assert answers(at) == [("me", "refused", "again")]
    at.decide(away=(BOB,))
    at.here.prepare(CID, prepare(SHARED, TX))
    assert answers(at) == [("cid", "refused", "again")]
    at.decide(away=(CID,))
    at.here.prepare(BOB, prepare(SHARED, TX))
    at.all_have(SHARED)
    assert answers(at) == [("bob", "prepared", None)], "it is not remembered for ever"


def test_a_refusal_is_remembered_until_its_epoch_ends() -> None:
    at = Primary()
    at.here.question(ME, question(SHARED, TX))
    at.seal(SHARED, 2)
    at.open_again(SHARED, 2)
    at.said()
    at.here.prepare(CID, prepare(SHARED, TX))
    assert answers(at) == [("cid", "refused", "remap")], "it is bound to an older epoch (T2)"
    at.here.prepare(CID, prepare(SHARED, OTHER, epoch=2))
    at.here.question(ME, question(ALONE, OTHER))
    at.all_have(SHARED)
    assert answers(at) == [("me", "refused", "again"), ("cid", "prepared", None)]


def test_refusals_of_one_partition_are_not_those_of_another() -> None:
    at = Primary()
    at.here.question(ME, question(SHARED, TX))
    at.said()
    at.here.prepare(CID, prepare(ALONE, TX))
    at.carry()
    assert answers(at) == [("cid", "prepared", None)]


def test_a_refusal_for_locks_that_the_same_transaction_holds_lets_go_of_them() -> None:
    at = locked()
    at.here.prepare(CID, prepare(SHARED, TX, epoch=2, locked=True))
    assert answers(at) == [("cid", "refused", "remap")]
    assert is_free(at)


# ------------------------------------------------------------------ questions


def test_a_question_about_what_is_not_known_is_answered_with_a_refusal() -> None:
    at = Primary()
    at.here.question(BOB, question(SHARED, TX))
    [(to, kind, part)] = at.said()
    assert (to, kind) == ("bob", "refused")
    assert isinstance(part, RefusedPart)
    assert part[:3] == (TX, 1, SHARED)
    at.here.prepare(CID, prepare(SHARED, TX))
    assert answers(at) == [("cid", "refused", "again")]
    assert is_free(at)


def test_a_question_about_locks_lets_go_of_them_and_refuses() -> None:
    at = locked()
    at.here.question(BOB, question(SHARED, TX))
    assert answers(at) == [("bob", "refused", "again")]
    assert is_free(at)
    at.here.prepare(CID, prepare(SHARED, TX, locked=True))
    assert answers(at) == [("cid", "refused", "again")]


def test_a_question_about_another_attempt_leaves_this_one() -> None:
    for at in (locked(), prepared()):
        at.here.question(BOB, question(SHARED, TX, attempt=2))
        assert answers(at) == [("bob", "refused", "again")]
        assert work_of(at).attempt == 1


def test_a_question_about_a_prepare_on_its_way_is_answered_when_all_have_it() -> None:
    at = preparing()
    at.here.question(BOB, question(SHARED, TX))
    assert at.said() == []
    at.stored(SHARED, BOB)
    assert answers(at) == [("bob", "prepared", None), ("cid", "prepared", None)]


def test_a_question_about_a_prepare_that_fails_on_its_way_is_answered_with_a_refusal() -> None:
    at = Primary()
    written(at, SHARED, 1)
    at.here.prepare(CID, prepare(SHARED, TX, reads=((1, 0, 0),)))
    at.here.question(BOB, question(SHARED, TX))
    at.carry()
    assert answers(at) == [("bob", "refused", LOST), ("cid", "refused", LOST)]


def test_a_question_is_answered_with_prepared_before_and_behind_the_commit() -> None:
    at = prepared()
    at.here.question(BOB, question(SHARED, TX))
    assert at.said() == [("bob", "prepared", PreparedPart(TX, 1, run_of(SHARED), 1000))]
    at.here.decision(committed(TX, run_of(SHARED), ELSEWHERE), [SHARED])
    at.here.question(BOB, question(SHARED, TX))
    assert answers(at) == [("bob", "prepared", None)]
    at.carry()
    assert at.works.of(TX) == []
    at.here.question(BOB, question(SHARED, TX))
    assert at.said() == [("bob", "prepared", PreparedPart(TX, 1, run_of(SHARED), 2000))]
    at.here.question(BOB, question(SHARED, TX, attempt=2))
    assert answers(at) == [("bob", "refused", "again")]


def test_a_question_is_answered_with_a_refusal_behind_the_rollback() -> None:
    at = prepared()
    ended(at, commits=False)
    at.said()
    at.here.question(BOB, question(SHARED, TX))
    assert answers(at) == [("bob", "refused", "again")]


def test_only_who_serves_a_partition_in_the_named_epoch_or_a_later_one_answers() -> None:
    at = Primary()
    at.here.question(BOB, question(SHARED, TX, epoch=2))
    at.here.question(BOB, question(3, TX))
    at.here.question(BOB, question(ALONE, TX)._replace(partition=PARTITIONS))
    at.leases.held = False
    at.here.question(BOB, question(SHARED, TX))
    at.leases.held = True
    at.seal(SHARED, 2)
    at.here.question(BOB, question(SHARED, TX))
    assert at.said() == []
    at.open_again(SHARED, 2)
    at.here.question(BOB, question(SHARED, TX))
    assert answers(at) == [("bob", "refused", "again")]


# ------------------------------------------------------------------ a sole copy


@pytest.mark.parametrize("others", [(3,), ()])
def test_a_sole_copy_says_nothing_without_its_lease(others: tuple[int, ...]) -> None:
    at = Primary()
    at.here.prepare(CID, prepare(ALONE, TX, others=others))
    at.leases.held = False
    at.carry()
    at.tick()
    assert at.said() == []
    if others:
        at.here.prepare(CID, prepare(ALONE, TX))
        assert at.said() == []
    at.leases.held = True
    at.tick()
    assert answers(at) == [("cid", "prepared", None)]
    at.tick()
    assert at.said() == []


def test_who_has_other_copies_needs_no_lease_to_say_what_all_have() -> None:
    at = preparing()
    at.leases.held = False
    at.stored(SHARED, BOB)
    assert answers(at) == [("cid", "prepared", None)]


def test_what_a_sole_copy_has_not_said_is_not_said_behind_its_epoch() -> None:
    at = Primary()
    at.here.prepare(CID, prepare(ALONE, TX))
    at.leases.held = False
    at.carry()
    at.seal(ALONE, 2)
    one = Settled(TX, 1, run_of(ALONE), SettledOutcome.ROLLED_BACK, 0, None)
    at.open_again(ALONE, 2, one)
    at.leases.held = True
    at.tick()
    assert at.said() == []
    at.here.question(BOB, question(ALONE, TX))
    assert answers(at) == [("bob", "refused", "again")]


# ------------------------------------------------------------------ decisions


def test_a_decision_to_commit_takes_effect_and_lets_go() -> None:
    at = prepared()
    at.records()
    at.here.decision(committed(TX, run_of(SHARED), ELSEWHERE), [SHARED])
    assert (work_of(at).phase, is_free(at)) == ("ending", False)
    assert at.value(key_in(SHARED)) is None
    at.carry()
    assert at.records() == [
        CommitRecord(
            tx_id=TX, attempt=1, time=2000, participants=(run_of(SHARED), ELSEWHERE),
            applied=(SHARED,),
        )
    ]  # fmt: skip
    assert (at.value(key_in(SHARED)), is_free(at)) == (b"v", True)
    assert (at.works.of(TX), at.pending(SHARED)) == ([], [])


def test_a_decision_to_roll_back_has_no_effect_and_lets_go() -> None:
    at = prepared()
    at.records()
    ended(at, commits=False)
    [record] = at.records()
    assert isinstance(record, RollbackRecord)
    assert (record.tx_id, record.attempt, record.runs) == (TX, 1, (run_of(SHARED),))
    assert (at.value(key_in(SHARED)), is_free(at), at.pending(SHARED)) == (None, True, [])


def test_the_end_goes_to_all_copies_and_who_hears_of_commits_hears_when_all_have_it() -> None:
    for commits in (True, False):
        at, heard = prepared(), list[tuple[int, bytes]]()
        at.here.committed_here = lambda *told, heard=heard: heard.append(told)
        ended(at, commits=commits)
        assert heard == []
        at.stored(SHARED, BOB)
        assert heard == [], "it is in the log here, and not durable"
        at.sync()
        assert heard == ([(SHARED, TX)] if commits else [])


def test_a_decision_counts_once_and_for_its_attempt_and_its_partitions() -> None:
    at = prepared()
    at.records()
    at.here.decision(rolled_back(TX, attempt=2), [SHARED])
    at.here.decision(rolled_back(OTHER), [SHARED])
    at.here.decision(rolled_back(TX), [ALONE, 3])
    assert work_of(at).phase == "prepared"
    at.here.decision(committed(TX, run_of(SHARED), ELSEWHERE), [SHARED])
    at.here.decision(rolled_back(TX), [SHARED])
    at.here.decision(committed(TX, run_of(SHARED), ELSEWHERE), [SHARED])
    at.carry()
    assert [type(record) for record in at.records()] == [CommitRecord]


def test_a_decision_for_who_only_has_locks_lets_go_of_them() -> None:
    at = locked()
    at.here.decision(rolled_back(TX, attempt=2), [SHARED])
    assert not is_free(at)
    at.here.decision(rolled_back(TX), [SHARED])
    assert is_free(at)
    at.carry()
    assert at.records() == []


@pytest.mark.parametrize("commits", [True, False])
def test_a_decision_before_all_copies_have_the_prepare_waits_for_that(commits: bool) -> None:
    at = preparing()
    at.records()
    ended(at, commits=commits)
    assert (work_of(at).phase, at.records()) == ("preparing", [])
    at.stored(SHARED, BOB)
    assert work_of(at).phase == "ending"
    assert answers(at) == [("cid", "prepared", None)]
    at.carry()
    assert [type(record) for record in at.records()] == [
        CommitRecord if commits else RollbackRecord
    ]
    assert is_free(at)


def test_the_first_decision_counts_while_it_waits() -> None:
    at = preparing()
    at.records()
    at.here.decision(committed(TX, run_of(SHARED), ELSEWHERE), [SHARED])
    at.here.decision(rolled_back(TX), [SHARED])
    at.stored(SHARED, BOB)
    at.carry()
    assert [type(record) for record in at.records()] == [CommitRecord]


def test_an_end_that_did_not_get_into_the_log_is_tried_again() -> None:
    at = prepared()
    at.records()
    at.writer.fails = OSError(28, "no space")
    ended(at)
    assert (at.records(), work_of(at).phase, is_free(at)) == ([], "prepared", False)
    at.tick()
    at.carry()
    assert [type(record) for record in at.records()] == [CommitRecord]
    assert is_free(at)


def test_a_tick_ends_nothing_twice() -> None:
    at = prepared()
    at.records()
    at.here.decision(committed(TX, run_of(SHARED), ELSEWHERE), [SHARED])
    at.tick()
    at.carry()
    at.tick()
    at.carry()
    assert len(at.records()) == 1


def test_who_waits_for_locks_goes_on_behind_the_end() -> None:
    at, seen = prepared(), list[bytes | None]()
    owner = at.locks.in_way_of(read=[key_in(SHARED)])
    assert owner is not None

    class Request:
        deadline = float("inf")

        def carry_out(self, _handler: object) -> None:
            seen.append(at.value(key_in(SHARED)))

    request: Any = Request()
    at.locks.hold(owner, request, lambda _: None)
    ended(at)
    assert seen == [b"v"], "it reads what has taken effect (T12)"


# ------------------------------------------------------------------ what is about to end


def ending(**more: Any) -> Primary:
    """One whose transaction has committed, which is on its way into the log only."""
    at = prepared(**more)
    at.here.decision(committed(TX, run_of(SHARED), ELSEWHERE), [SHARED])
    assert (work_of(at).phase, is_free(at)) == ("ending", False)
    return at


def ask_for_lock(at: Primary, ask: int = 5, tx_id: bytes = OTHER) -> None:
    at.commit_locks.lock(BOB, lock(SHARED, tx_id, ask))


def ask_to_prepare(at: Primary, ask: int = 5, tx_id: bytes = OTHER) -> None:
    at.here.prepare(BOB, prepare(SHARED, tx_id, ask))


ASKS = pytest.mark.parametrize(
    ("ask", "kind", "refusal"),
    [(ask_for_lock, "locked", "locked"), (ask_to_prepare, "prepared", "refused")],
)


@ASKS
def test_who_meets_only_what_is_about_to_end_waits_for_that(
    ask: Callable[[Primary], None], kind: str, refusal: str
) -> None:
    at = ending()
    ask(at)
    assert (at.said(), at.works.of(OTHER)) == ([], [])
    at.carry()
    at.stored(SHARED, BOB)
    assert answers(at) == [("bob", kind, None)]
    assert at.value(key_in(SHARED)) == b"v", "behind the end (T12)"


def test_who_waits_goes_on_behind_a_rollback_too() -> None:
    at = prepared()
    at.here.decision(rolled_back(TX), [SHARED])
    ask_for_lock(at)
    assert at.said() == []
    at.carry()
    assert answers(at) == [("bob", "locked", None)]


def test_who_meets_anybody_else_too_does_not_wait() -> None:
    at = ending(number=1)
    at.commit_locks.lock(CID, lock(SHARED, THIRD, 2))
    at.said()
    at.here.prepare(BOB, prepare(SHARED, OTHER, 5, shared=(1,)))
    assert answers(at) == [("bob", "refused", "wait")]
    at.commit_locks.lock(BOB, lock(SHARED, OTHER, 6))
    assert answers(at) == [("bob", "locked", "wait")]


def test_who_meets_several_that_are_about_to_end_waits_for_all_of_them() -> None:
    at = prepared()
    at.here.prepare(CID, prepare(SHARED, THIRD, 2, number=1))
    at.all_have(SHARED)
    at.said()
    for tx_id, first in ((THIRD, 2), (TX, 1)):
        at.here.decision(committed(tx_id, run_of(SHARED, first), ELSEWHERE), [SHARED])
    at.here.prepare(BOB, prepare(SHARED, OTHER, 5, shared=(1,)))
    assert at.said() == []
    at.all_have(SHARED)
    assert answers(at) == [("bob", "prepared", None)]


@ASKS
def test_who_waits_too_long_is_refused_and_does_not_go_on(
    ask: Callable[[Primary], None], kind: str, refusal: str
) -> None:
    at = ending()
    ask(at)
    at.now += HELD_S_MAX
    at.locks.tick()
    assert at.said() == []
    at.now += 0.01
    at.locks.tick()
    assert answers(at) == [("bob", refusal, "wait")]
    at.all_have(SHARED)
    assert (at.said(), is_free(at)) == ([], True)


def test_a_prepare_that_waited_too_long_is_refused() -> None:
    at = ending()
    ask_to_prepare(at)
    at.now += HELD_S_MAX + 0.01
    at.locks.tick()
    assert answers(at) == [("bob", "refused", "wait")]


def test_a_prepare_that_was_refused_while_it_waits_stays_refused() -> None:
    at = ending()
    ask_to_prepare(at)
    at.here.question(CID, question(SHARED, OTHER, near=BOB))
    assert answers(at) == [("cid", "refused", "again")]
    at.all_have(SHARED)
    assert (answers(at), is_free(at)) == ([("bob", "refused", "again")], True)


@ASKS
def test_who_waits_while_its_epoch_ends_is_refused(
    ask: Callable[[Primary], None], kind: str, refusal: str
) -> None:
    at = ending()
    ask(at)
    at.seal(SHARED, 2)
    [(to, said, failure)] = answers(at)
    assert (to, said) == ("bob", refusal)
    assert failure in ("wait", "remap")
    at.carry()
    assert is_free(at)


def test_a_lock_that_waits_can_be_given_up() -> None:
    at = ending()
    at.commit_locks.lock(BOB, lock(SHARED, OTHER, 5))
    at.commit_locks.lock(CID, lock(SHARED, THIRD, 6))
    at.commit_locks.unlock(CID, 5, [SHARED])
    at.commit_locks.unlock(BOB, 5, [ALONE])
    at.commit_locks.unlock(BOB, 6, [SHARED])
    at.commit_locks.unlock(BOB, 5, [SHARED])
    at.carry()
    assert answers(at) == [("cid", "locked", None)], "it would hold its keys for seconds"


def test_a_prepare_that_waits_can_be_decided() -> None:
    at = ending()
    ask_to_prepare(at)
    at.here.decision(rolled_back(OTHER, attempt=2), [SHARED])
    at.here.decision(rolled_back(OTHER), [ALONE])
    at.here.decision(rolled_back(THIRD), [SHARED])
    at.here.decision(rolled_back(OTHER), [SHARED])
    at.all_have(SHARED)
    assert (at.said(), is_free(at), at.pending(SHARED)) == ([], True, [])
    at = ending()
    ask_to_prepare(at)
    at.here.decision(rolled_back(OTHER, attempt=2), [SHARED])
    at.here.decision(rolled_back(OTHER), [ALONE])
    at.here.decision(rolled_back(THIRD), [SHARED])
    at.all_have(SHARED)
    assert answers(at) == [("bob", "prepared", None)]


@ASKS
def test_what_waits_goes_with_the_member_that_asked(
    ask: Callable[[Primary], None], kind: str, refusal: str
) -> None:
    # What was refused meanwhile is forgotten with that member, and would be prepared (T8a).
    at = ending()
    ask(at)
    at.here.question(CID, question(SHARED, OTHER, near=BOB))
    assert answers(at) == [("cid", "refused", "again")]
    at.decide(away=(BOB,))
    at.all_have(SHARED)
    assert (at.said(), is_free(at), at.pending(SHARED)) == ([], True, [])
    at = ending()
    ask(at)
    at.decide(away=(CID,))
    at.all_have(SHARED)
    assert answers(at) == [("bob", kind, None)]


def test_what_comes_again_while_it_waits_is_done_once() -> None:
    at = ending()
    ask_to_prepare(at)
    ask_to_prepare(at)
    at.all_have(SHARED)
    assert answers(at) == [("bob", "prepared", None)]
    assert [one.first for one in at.pending(SHARED)] == [2]


# ------------------------------------------------------------------ ends without a sync


def syncs(at: Primary) -> list[bool]:
    """A list that gets an item with each sync."""
    found: list[bool] = []
    at.sync_runs = lambda: found.append(True)
    return found


@pytest.mark.parametrize("commits", [True, False])
def test_an_end_takes_effect_without_a_sync_and_is_everywhere_with_the_next_one(
    commits: bool,
) -> None:
    at, heard = prepared(), list[tuple[int, bytes]]()
    at.here.committed_here = lambda *told: heard.append(told)
    at.records()
    made = syncs(at)
    ended(at, commits=commits)
    assert (made, len(at.records()), is_free(at)) == ([], 1, True)
    assert at.value(key_in(SHARED)) == (b"v" if commits else None)
    stream = at.streams.get(SHARED)
    assert stream is not None
    assert (stream.own, stream.end) == (2, 3)
    at.stored(SHARED, BOB)
    assert (stream.everywhere, heard) == (2, [])
    at.here.prepare(CID, prepare(ALONE, OTHER))
    at.carry()
    assert (made, stream.own, stream.everywhere) == ([True], 3, 3)
    assert heard == ([(SHARED, TX)] if commits else [])


def test_an_end_that_goes_with_something_else_is_synced_with_that() -> None:
    at = prepared()
    made = syncs(at)
    at.here.decision(committed(TX, run_of(SHARED), ELSEWHERE), [SHARED])
    at.here.prepare(CID, prepare(ALONE, OTHER))
    at.carry()
    stream = at.streams.get(SHARED)
    assert stream is not None
    assert (made, stream.own, stream.end) == ([True], 3, 3)


def test_several_ends_are_everywhere_with_one_sync_that_an_idle_log_makes() -> None:
    at, heard = Primary(), list[tuple[int, bytes]]()
    at.here.committed_here = lambda *told: heard.append(told)
    for number, tx_id in enumerate((TX, OTHER), 1):
        at.here.prepare(CID, prepare(SHARED, tx_id, number=number))
    at.all_have(SHARED)
    made = syncs(at)
    for first, tx_id in enumerate((TX, OTHER), 1):
        at.here.decision(committed(tx_id, run_of(SHARED, first), ELSEWHERE), [SHARED])
        at.carry()
    at.stored(SHARED, BOB)
    assert (made, heard) == ([], [])
    at.log.tell_durable()
    at.carry()
    assert (made, heard) == ([True], [(SHARED, TX), (SHARED, OTHER)])


def test_a_sync_that_fails_behind_an_end_lets_nobody_count_on_it() -> None:
    at, heard = prepared(), list[tuple[int, bytes]]()
    at.here.committed_here = lambda *told: heard.append(told)
    ended(at)
    at.stored(SHARED, BOB)
    at.writer.sync_fails = OSError(5, "the disk")
    at.log.put_barrier(lambda: None)
    at.carry()
    at.decide_log()
    assert at.log.failure is not None
    assert heard == []


# ------------------------------------------------------------------ epochs


@pytest.mark.parametrize("phase", [locked, preparing, prepared])
def test_an_epoch_that_ends_takes_everything_with_it(phase: Callable[[], Primary]) -> None:
    at = phase()
    at.commit_locks.lock(BOB, lock(ALONE, OTHER))
    at.said()
    at.seal(SHARED, 2)
    assert at.works.of(TX) == []
    assert len(at.works.of(OTHER)) == 1, "that is another partition"
    assert at.said() == [], "nobody knows (T7)"
    at.commit_locks.unlock(BOB, 1, [ALONE])
    assert is_free(at)


def test_what_was_on_its_way_when_its_epoch_ended_is_not_refused() -> None:
    at = preparing()
    at.seal(SHARED, 2)
    at.carry()
    assert at.said() == [], "a takeover may keep it"


def test_what_is_pending_is_locked_again_in_the_next_epoch() -> None:
    at = prepared(shared=(1,))
    at.seal(SHARED, 2)
    assert is_free(at)
    one = Settled(TX, 1, run_of(SHARED), SettledOutcome.PENDING, 0, None)
    at.open_again(SHARED, 2, one)
    work = work_of(at)
    assert (work.phase, work.epoch, work.near, work.run) == ("prepared", 1, CID, run_of(SHARED))
    assert work.participants == (Participant(0, 1, 1), Participant(3, 1, 1))
    assert work.ask_at == at.now + DECISION_TIMEOUT_S
    for number, free in ((0, False), (1, True), (2, True)):
        assert (at.locks.in_way_of(read=[key_in(SHARED, number)]) is None) is free
    assert at.locks.in_way_of([key_in(SHARED, 1)]) is not None
    at.here.question(BOB, question(SHARED, TX))
    at.here.prepare(CID, prepare(SHARED, TX))
    assert at.said() == [
        (to, "prepared", PreparedPart(TX, 1, run_of(SHARED), 1000)) for to in ("bob", "cid")
    ]
    ended(at)
    assert (at.value(key_in(SHARED)), is_free(at)) == (b"v", True)


def test_what_is_pending_in_one_partition_alone_has_no_locks() -> None:
    at = Primary()
    alone = PrepareRecord(
        tx_id=TX, attempt=1, near=(CID.member.bytes, CID.boot), time=5, home=SHARED,
        participants=(Participant(SHARED, 1, 1),), run=run_of(SHARED), namespaces=MAP,
        keys=[name_in(SHARED)], values=[b"v"],
    )  # fmt: skip
    at.state.copies.prepared(SHARED).add(alone)
    at.here.opened(SHARED)
    assert (is_free(at), at.works.of(TX)) == (True, [])


def test_several_that_are_pending_share_what_they_read() -> None:
    at = prepared(shared=(5,))
    at.here.prepare(BOB, prepare(SHARED, OTHER, number=1, shared=(5,)))
    at.all_have(SHARED)
    at.said()
    at.seal(SHARED, 2)
    settled = [
        Settled(tx_id, 1, run_of(SHARED, first), SettledOutcome.PENDING, 0, None)
        for tx_id, first in ((TX, 1), (OTHER, 2))
    ]
    at.open_again(SHARED, 2, *settled)
    assert [one.tx_id for one in at.works.prepared()] == [TX, OTHER]


def test_an_end_that_was_on_its_way_when_its_epoch_ended_takes_effect_once() -> None:
    at = prepared()
    at.here.decision(committed(TX, run_of(SHARED), ELSEWHERE), [SHARED])
    at.seal(SHARED, 2)
    at.carry()
    assert at.value(key_in(SHARED)) == b"v"
    at.open_again(SHARED, 2)
    assert (at.works.of(TX), is_free(at)) == ([], True)


def test_a_partition_that_is_not_open_ends_nothing() -> None:
    at = prepared()
    work = work_of(at)
    at.records()
    at.decide({SHARED: 2})
    at.here.decision(committed(TX, run_of(SHARED), ELSEWHERE), [SHARED])
    at.carry()
    assert (at.records(), work.phase) == ([], "prepared")


# ------------------------------------------------------------------ a log that fails


def failed(partition: int = ALONE) -> Primary:
    """A member whose log fails while a PREPARE is on its way."""
    at = Primary()
    at.here.prepare(CID, prepare(partition, TX))
    at.writer.sync_fails = OSError(5, "the disk")
    at.carry()
    assert at.log.failure is not None
    return at


@pytest.mark.parametrize("partition", [SHARED, ALONE])
def test_what_a_failed_log_may_have_is_neither_prepared_nor_refused(partition: int) -> None:
    at = failed(partition)
    assert at.said() == []
    at.here.question(BOB, question(partition, TX))
    assert at.said() == [], "a copy may have it, and a takeover keep it (T8)"
    if partition == SHARED:
        at.stored(SHARED, BOB)
    at.tick()
    assert at.said() == []


def test_what_did_not_get_into_the_log_is_refused() -> None:
    at = Primary()
    at.writer.fails = OSError(28, "no space")
    at.here.prepare(CID, prepare(SHARED, TX))
    at.carry()
    [(to, kind, _)] = answers(at)
    assert (to, kind) == ("cid", "refused")
    assert (is_free(at), at.records(), at.pending(SHARED)) == (True, [], [])


def test_what_was_queued_when_the_log_failed_is_not_spoken_of() -> None:
    at = Primary()
    at.here.prepare(CID, prepare(ALONE, TX))
    at.log.put_barrier(lambda: None)
    at.here.prepare(CID, prepare(SHARED, OTHER))
    at.writer.sync_fails = OSError(5, "the disk")
    at.carry()
    assert at.said() == []
    assert is_free(at)


def test_a_log_that_failed_takes_no_prepare_and_no_end() -> None:
    at = prepared()
    at.here.prepare(BOB, prepare(ALONE, OTHER))
    at.writer.sync_fails = OSError(5, "the disk")
    at.carry()
    at.records()
    at.here.prepare(CID, prepare(ALONE, THIRD))
    assert [kind for _, kind, _ in answers(at)] == ["refused"]
    ended(at)
    at.tick()
    assert (at.records(), work_of(at).phase) == ([], "prepared")


# ------------------------------------------------------------------ near members that have gone


def test_what_is_prepared_is_asked_about_after_a_while_or_when_its_near_member_has_gone() -> None:
    at = prepared()
    work = work_of(at)
    assert work.ask_at == at.now + DECISION_TIMEOUT_S
    at.now += 0.25
    at.decide(away=(BOB,))
    assert work.ask_at == 100.0 + DECISION_TIMEOUT_S
    at.decide(away=(CID,))
    assert work.ask_at == at.now
    at.now += 0.25
    at.decide(away=(CID,))
    assert work.ask_at == 100.25, "it is due already"


def test_what_is_on_its_way_stays_when_its_near_member_has_gone() -> None:
    at = preparing()
    at.decide(away=(CID,))
    assert work_of(at).phase == "preparing"
    at.stored(SHARED, BOB)
    assert work_of(at).phase == "prepared"


# ------------------------------------------------------------------ copies that read


def test_a_copy_may_read_where_nothing_is_locked() -> None:
    assert Primary().here.copy_may_read(SHARED, 0)


def test_locks_that_are_older_than_their_prepare_stop_copies_until_they_have_that() -> None:
    at = Primary()
    assert at.here.copy_may_read(SHARED, 1)
    at.commit_locks.lock(CID, lock(SHARED, TX))
    assert not at.here.copy_may_read(SHARED, 99)
    assert at.here.copy_may_read(2, 1), "that is another partition"
    at.here.prepare(CID, prepare(SHARED, TX, locked=True))
    assert not at.here.copy_may_read(SHARED, 99)
    at.carry()
    assert not at.here.copy_may_read(SHARED, 99)
    at.stored(SHARED, BOB)
    assert [at.here.copy_may_read(SHARED, number) for number in (1, 2, 3)] == [False, True, True]
    ended(at)
    assert [at.here.copy_may_read(SHARED, number) for number in (1, 2, 3)] == [False, True, True]
    at.seal(SHARED, 2)
    assert at.here.copy_may_read(SHARED, 0), "the next stream begins anew"


def test_a_lock_that_waits_stops_copies_too() -> None:
    at = Primary()
    at.here.prepare(BOB, prepare(SHARED, OTHER, others=()))
    at.locks.release(1)
    at.commit_locks.lock(CID, lock(SHARED, TX))
    assert work_of(at).phase == "locking"
    assert not at.here.copy_may_read(SHARED, 99)


def test_locks_that_come_with_their_prepare_are_known_to_copies_by_that() -> None:
    for at in (preparing(), prepared()):
        assert at.here.copy_may_read(SHARED, 1)


def test_locks_that_were_let_go_stop_no_copy() -> None:
    at = locked()
    at.commit_locks.unlock(CID, 1, [SHARED])
    assert at.here.copy_may_read(SHARED, 1)
