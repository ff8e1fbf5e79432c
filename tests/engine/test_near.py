"""What the near member does with a transaction of several groups: every step, and every answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import permutations
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from support.group_transactions import (
    BOB,
    CID,
    FRESH,
    GIVEN,
    MAP,
    ME,
    OTHER,
    TX,
    Said,
    Told,
    key_in,
    name_in,
    topology,
)
from tidelog.affinity.topology import Topology
from tidelog.engine.data.scan import Range
from tidelog.engine.net.failures import Failure
from tidelog.engine.net.frames import Message
from tidelog.engine.net.kinds import BY_NUMBER
from tidelog.engine.node.commits import ReadRange, ReadVersion, WantedCommit
from tidelog.engine.node.near import QUESTION_PAUSE_S, STEP_S_MAX, Near
from tidelog.engine.node.partitions import RoutedError
from tidelog.engine.node.post import Post
from tidelog.engine.node.tx_messages import (
    ConfirmWanted,
    EarlierError,
    GroupOutcome,
    LockWanted,
    PreparedPart,
    PrepareWanted,
    Question,
    ReadKey,
    ReadSpan,
    RefusedPart,
    answer_message,
    refused_message,
    told_failure,
    told_of,
)
from tidelog.errors import CommitUnknownError, ConflictError, TidelogError
from tidelog.wal.records import Participant, Run

FOREVER = float("inf")
CONFLICT = ConflictError("a key was changed", namespace="m", key=b"k", winner=None)
LOST, BUSY = told_failure(CONFLICT), told_failure(RoutedError("wait", "it is locked"))
MOVED, DONE = told_failure(RoutedError("remap", "elsewhere")), told_failure(EarlierError(77))
NEAR = (ME.member.bytes, ME.boot)


class Around:
    """A member that leads transactions, and what it has said and told."""

    def __init__(self, post: Any = None) -> None:
        self.now = 100.0
        fake: Any = Told() if post is None else post
        self.post = fake
        self.ends: list[tuple[object, int, tuple[Run, ...]]] = []
        self.points: list[str] = []
        self.overs = 0
        self.near = Near(ME, fake, lambda: FRESH, lambda: self.now, self.points.append)
        self.near.over = lambda: setattr(self, "overs", self.overs + 1)
        self.near.decided(topology())

    def begin(self, wanted: WantedCommit, home: int = 0, deadline: float = FOREVER) -> None:
        def done(error: Exception | None, time: int, _logged: bytes, runs: Sequence[Run]) -> None:
            self.ends.append((error, time, tuple(runs)))

        self.near.begin(wanted, home, deadline, done)

    def said(self) -> list[Said]:
        said: list[Said] = self.post.said()
        return said

    def kinds(self) -> list[tuple[str, str]]:
        return [(to, kind) for to, kind, _ in self.said()]

    def ended(self) -> tuple[object, int, tuple[Run, ...]]:
        [end], self.ends = self.ends, []
        return end

    def error(self) -> TidelogError:
        error, time, runs = self.ended()
        assert (time, runs) == (0, ())
        assert isinstance(error, TidelogError)
        return error


def writes(*partitions: int, given: bytes | None = None) -> dict[bytes, Any]:
    return {key_in(p): (p, MAP, name_in(p), b"value %d" % p) for p in partitions}


def wanted(
    *written: int,
    reads: Sequence[int] = (),
    ranges: Sequence[int] = (),
    given: bytes | None = None,
    tx_id: bytes = TX,
    attempt: int = 1,
    tag: str | None = None,
    epochs: Sequence[tuple[int, int]] | None = None,
) -> WantedCommit:
    found = WantedCommit(
        tx_id=tx_id,
        attempt=attempt,
        given=given,
        tag=tag,
        reads=tuple(ReadVersion(p, key_in(p, 1), (1, 10 + p)) for p in reads),
        ranges=tuple(
            ReadRange(
                partitions=(p,), wanted=Range(namespace=MAP, start=b"a", stop=b"b"), count=2,
                digest=b"d" * 16,
            )
            for p in ranges
        ),
        writes=writes(*written),
        epochs=(),
    )  # fmt: skip
    rows = [(p, 1) for p in sorted(found.partitions())] if epochs is None else epochs
    return WantedCommit(
        tx_id=found.tx_id, attempt=found.attempt, given=found.given, tag=found.tag,
        reads=found.reads, ranges=found.ranges, writes=found.writes, epochs=tuple(rows),
    )  # fmt: skip


def part(partition: int, time: int = 0, tx_id: bytes = TX, attempt: int = 1) -> PreparedPart:
    return PreparedPart(tx_id, attempt, run(partition), time or 1000 + partition)


def run(partition: int) -> Run:
    return Run(partition, 1, 50 + partition, 1)


def refusal(
    partition: int, failure: Failure = LOST, tx_id: bytes = TX, attempt: int = 1
) -> RefusedPart:
    return RefusedPart(tx_id, attempt, partition, failure)


def locking(**more: Any) -> Around:
    """One that writes 0, 1 and 3, has read 5, and has asked for its locks."""
    at = Around()
    at.begin(wanted(0, 1, 3, reads=[5]), **more)
    assert at.kinds() == [("me", "lock"), ("bob", "lock"), ("cid", "lock")]
    return at


def confirming(**more: Any) -> Around:
    at = locking(**more)
    for partition in (0, 1, 3):
        at.near.locked(1 + (ME.boot << 32), partition, None)
    assert at.kinds() == [("cid", "confirm")]
    return at


def preparing(**more: Any) -> Around:
    at = confirming(**more)
    at.near.confirmed(1 + (ME.boot << 32), 5, None)
    assert at.kinds() == [("me", "prepare"), ("bob", "prepare"), ("cid", "prepare")]
    return at


ASK = 1 + (ME.boot << 32)

# ------------------------------------------------------------------ step by step


def test_locks_then_confirms_then_prepares_then_the_decision() -> None:
    at = Around()
    at.begin(wanted(0, 1, 3, reads=[1, 2, 5], ranges=[5], tag="t"))
    assert at.said() == [
        (who, "lock", LockWanted(ASK, TX, 1, None, p, 1, [key_in(p)]))
        for p, who in ((0, "me"), (1, "bob"), (3, "cid"))
    ]
    at.near.locked(ASK, 3, None)
    at.near.locked(ASK, 0, None)
    assert at.said() == [], "no confirm leaves before every lock is held"
    at.near.locked(ASK, 1, None)
    span = ReadSpan(MAP, b"a", b"b", 2, b"d" * 16)
    assert at.said() == [
        ("bob", "confirm", ConfirmWanted(ASK, 2, [ReadKey(key_in(2, 1), 1, 12)], [])),
        ("cid", "confirm", ConfirmWanted(ASK, 5, [ReadKey(key_in(5, 1), 1, 15)], [span])),
    ]
    at.near.confirmed(ASK, 5, None)
    assert at.said() == [], "no prepare leaves before every read is confirmed"
    at.near.confirmed(ASK, 2, None)
    all_of_them = tuple(Participant(p, 1, 1) for p in (0, 1, 3))
    assert at.said() == [
        (
            who,
            "prepare",
            PrepareWanted(
                ASK, TX, 1, None, "t", 0, all_of_them, True, p, 1, [key_in(p)],
                [b"value %d" % p], reads, [], [],
            ),
        )
        for p, who, reads in (
            (0, "me", []), (1, "bob", [ReadKey(key_in(1, 1), 1, 11)]), (3, "cid", []),
        )
    ]  # fmt: skip
    at.near.prepared(part(1, time=9))
    at.near.prepared(part(0, time=4))
    assert (at.said(), at.ends) == ([], [])
    at.near.prepared(part(3, time=6))
    assert at.ended() == (None, 9, (run(0), run(1), run(3)))
    decided = GroupOutcome(TX, 1, (run(0), run(1), run(3)), 9)
    assert at.said() == [
        ("me", "decision", (decided, [0])),
        ("bob", "decision", (decided, [1])),
        ("cid", "decision", (decided, [3])),
    ]
    assert at.points == ["tx.after_lock", "tx.after_confirm", "tx.after_prepared_sent"]
    assert at.overs == 1


def test_one_member_hears_once_what_all_its_partitions_have_come_to() -> None:
    at = Around()
    at.begin(wanted(1, 2, 3, 5), home=1)
    at.said()
    for partition in (1, 2, 3, 5):
        at.near.prepared(part(partition))
    said = at.said()
    assert [(to, kind) for to, kind, _ in said] == [("bob", "decision"), ("cid", "decision")]
    assert [told[1] for _, _, told in said] == [[1, 2], [3, 5]]


def test_what_reads_only_where_it_writes_is_prepared_at_once_with_what_it_read_locked() -> None:
    at = Around()
    reads = wanted(0, 1, reads=[0, 1])
    overwritten = ReadVersion(1, key_in(1), (1, 3))
    at.begin(
        WantedCommit(
            tx_id=TX, attempt=2, given=None, tag=None, reads=(*reads.reads, overwritten),
            ranges=(), writes=reads.writes, epochs=reads.epochs,
        )
    )  # fmt: skip
    both = (Participant(0, 1, 1), Participant(1, 1, 1))
    assert at.said() == [
        (
            "me",
            "prepare",
            PrepareWanted(
                ASK, TX, 2, None, None, 0, both, False, 0, 1, [key_in(0)], [b"value 0"],
                [ReadKey(key_in(0, 1), 1, 10)], [], [key_in(0, 1)],
            ),
        ),
        (
            "bob",
            "prepare",
            PrepareWanted(
                ASK, TX, 2, None, None, 0, both, False, 1, 1, [key_in(1)], [b"value 1"],
                [ReadKey(key_in(1, 1), 1, 11), ReadKey(key_in(1), 1, 3)], [], [key_in(1, 1)],
            ),
        ),
    ]  # fmt: skip


def test_a_range_is_no_shared_lock_so_its_partitions_are_locked_first() -> None:
    at = Around()
    at.begin(wanted(0, 1, ranges=[1]))
    assert at.kinds() == [("me", "lock"), ("bob", "lock")]
    at.near.locked(ASK, 0, None)
    at.near.locked(ASK, 1, None)
    said = at.said()
    assert [(to, kind) for to, kind, _ in said] == [("me", "prepare"), ("bob", "prepare")]
    spans = [told.ranges for _, _, told in said]
    assert [len(one) for one in spans] == [0, 1]
    assert all(told.locked for _, _, told in said)


def test_what_writes_nothing_only_confirms() -> None:
    at = Around()
    at.begin(wanted(reads=[1, 2], ranges=[5]), home=1)
    assert at.kinds() == [("bob", "confirm"), ("bob", "confirm"), ("cid", "confirm")]
    for partition in (5, 1):
        at.near.confirmed(ASK, partition, None)
    assert at.ends == []
    at.near.confirmed(ASK, 2, None)
    assert at.ended() == (None, 0, ())
    assert at.said() == []
    assert not at.near.leads(TX)


def test_what_writes_nothing_and_loses_fails() -> None:
    at = Around()
    at.begin(wanted(reads=[1, 2]), home=1)
    at.said()
    at.near.confirmed(ASK, 2, LOST)
    assert isinstance(at.error(), ConflictError)
    at.near.confirmed(ASK, 1, None)
    assert (at.ends, at.said()) == ([], [])


def test_what_writes_one_partition_and_reads_elsewhere_needs_no_decision() -> None:
    at = Around()
    at.begin(wanted(0, reads=[1]))
    assert at.kinds() == [("me", "lock")]
    at.near.locked(ASK, 0, None)
    assert at.kinds() == [("bob", "confirm")]
    at.near.confirmed(ASK, 1, None)
    [(to, kind, told)] = at.said()
    assert (to, kind) == ("me", "prepare")
    assert isinstance(told, PrepareWanted)
    assert (told.participants, told.locked) == ((Participant(0, 1, 1),), True)
    at.near.prepared(part(0))
    assert at.ended() == (None, 1000, (run(0),))
    assert at.said() == []


def test_what_one_partition_refuses_is_told_there() -> None:
    at = Around()
    at.begin(wanted(0, reads=[1]))
    at.near.locked(ASK, 0, None)
    at.near.confirmed(ASK, 1, None)
    at.said()
    at.near.refused(refusal(0))
    assert isinstance(at.error(), ConflictError)


# ------------------------------------------------------------------ answers in any order


@pytest.mark.parametrize("order", list(permutations((0, 1, 3))))
def test_answers_count_once_whatever_their_order(order: tuple[int, ...]) -> None:
    at = locking()
    for partition in order:
        at.near.locked(ASK, partition, None)
        at.near.locked(ASK, order[0], None)
    assert at.kinds() == [("cid", "confirm")]
    at.near.confirmed(ASK, 5, None)
    at.near.confirmed(ASK, 5, None)
    assert at.kinds() == [("me", "prepare"), ("bob", "prepare"), ("cid", "prepare")]
    for partition in order:
        at.near.prepared(part(partition))
        at.near.prepared(part(order[0], time=9999))
    assert at.ended() == (None, 1003, (run(0), run(1), run(3)))
    assert at.kinds() == [("me", "decision"), ("bob", "decision"), ("cid", "decision")]
    at.near.prepared(part(0))
    at.near.refused(refusal(0))
    assert (at.ends, at.said()) == ([], [])


@pytest.mark.parametrize("order", list(permutations((0, 1, 3))))
@pytest.mark.parametrize("refuses", [0, 1, 3])
def test_one_refusal_ends_it_whenever_it_comes(order: tuple[int, ...], refuses: int) -> None:
    at = preparing()
    for partition in order:
        if partition == refuses:
            at.near.refused(refusal(partition))
        else:
            at.near.prepared(part(partition))
    assert isinstance(at.error(), ConflictError)
    rolled_back = GroupOutcome(TX, 1, (), 0)
    assert at.said() == [
        ("me", "decision", (rolled_back, [0])),
        ("bob", "decision", (rolled_back, [1])),
        ("cid", "decision", (rolled_back, [3])),
    ]
    assert not at.near.leads(TX)


def test_answers_of_another_step_partition_or_transaction_do_not_count() -> None:
    at = locking()
    at.near.confirmed(ASK, 0, None)
    at.near.confirmed(ASK, 5, None)
    at.near.refused(refusal(0))
    at.near.prepared(part(0))
    at.near.locked(ASK + 1, 0, None)
    at.near.locked(ASK, 5, LOST)
    at.near.locked(ASK, 2, None)
    assert (at.said(), at.ends) == ([], [])
    at.near.locked(ASK, 0, None)
    at.near.locked(ASK, 1, None)
    at.near.locked(ASK, 3, None)
    assert at.kinds() == [("cid", "confirm")]
    for partition in (0, 1, 3):
        at.near.locked(ASK, partition, LOST)
        at.near.confirmed(ASK, partition, LOST)
    at.near.refused(refusal(1))
    assert (at.said(), at.ends) == ([], [])
    at.near.confirmed(ASK, 5, None)
    at.kinds()
    at.near.locked(ASK, 0, LOST)
    at.near.confirmed(ASK, 5, LOST)
    for refused in (refusal(0, attempt=2), refusal(0, tx_id=OTHER), refusal(5)):
        at.near.refused(refused)
    for other in (part(0, attempt=2), part(0, tx_id=OTHER), part(5)):
        at.near.prepared(other)
    assert (at.said(), at.ends) == ([], [])
    for partition in (0, 1, 3):
        at.near.prepared(part(partition))
    assert at.ended()[0] is None


def test_a_group_that_has_prepared_is_not_waited_for_again() -> None:
    at = preparing()
    at.near.prepared(part(0))
    at.near.refused(refusal(0))
    assert (at.said(), at.ends) == ([], []), "an answer, once given, does not change"


def test_asks_of_one_start_are_not_those_of_another() -> None:
    later = Around()
    other = Near(ME._replace(boot=ME.boot + 1), later.post, lambda: FRESH, lambda: 0.0, print)
    other.decided(topology())
    other.begin(wanted(0, 1, reads=[5]), 0, FOREVER, lambda *_: None)
    asks = {told.ask for _, _, told in later.said()}
    first = locking()
    first.begin(wanted(0, 1, reads=[5], tx_id=OTHER))
    asks |= {told.ask for _, _, told in first.said()}
    assert len(asks) == 2
    assert ASK not in asks


# ------------------------------------------------------------------ no


@pytest.mark.parametrize("step", [locking, confirming])
def test_a_no_before_any_prepare_gives_the_locks_back(step: Callable[[], Around]) -> None:
    at = step()
    if step is locking:
        at.near.locked(ASK, 1, LOST)
    else:
        at.near.confirmed(ASK, 5, LOST)
    assert isinstance(at.error(), ConflictError)
    assert at.said() == [
        ("me", "unlock", (ASK, [0], None)),
        ("bob", "unlock", (ASK, [1], None)),
        ("cid", "unlock", (ASK, [3], None)),
    ]
    assert not at.near.leads(TX)
    assert at.overs == 1


def test_who_has_locks_of_several_partitions_gives_them_back_with_one_word() -> None:
    at = Around()
    at.begin(wanted(1, 2, 3, reads=[0]), home=1)
    at.said()
    at.near.locked(ASK, 2, BUSY)
    assert at.said() == [
        ("bob", "unlock", (ASK, [1, 2], None)), ("cid", "unlock", (ASK, [3], None))
    ]  # fmt: skip
    error = at.error()
    assert isinstance(error, RoutedError)
    assert error.answer == "wait"


def test_who_is_told_to_come_again_after_a_refusal_comes_under_another_id() -> None:
    for failure in (BUSY, MOVED):
        at = preparing()
        at.near.refused(refusal(1, failure))
        error = at.error()
        assert isinstance(error, RoutedError)
        assert error.answer == "again"


def test_an_earlier_commit_under_its_id_is_its_own() -> None:
    for step in ("lock", "prepare"):
        at = locking() if step == "lock" else preparing()
        if step == "lock":
            at.near.locked(ASK, 0, DONE)
        else:
            at.near.refused(refusal(0, DONE))
        assert at.ended() == (None, 77, ())
        kind = "unlock" if step == "lock" else "decision"
        assert at.kinds() == [("me", kind), ("bob", kind), ("cid", kind)]


class Answering(Told):
    """A post whose receiver at this member says no at once."""

    def __init__(self, kind: str, answer: Callable[[], None]) -> None:
        super().__init__()
        self.kind, self.answer = kind, answer

    def tell(self, to: Any, message: Message) -> None:
        super().tell(to, message)
        if to == ME and BY_NUMBER[message[0]].name == self.kind:
            self.answer()


def test_who_is_refused_a_lock_by_its_own_member_asks_nobody_else() -> None:
    post = Answering("lock", lambda: at.near.locked(ASK, 0, LOST))
    at = Around(post)
    at.begin(wanted(0, 1, 3, reads=[5]))
    assert isinstance(at.error(), ConflictError)
    kinds = at.kinds()
    assert ("bob", "lock") not in kinds, "nobody would unlock what it takes"
    assert ("cid", "lock") not in kinds


def test_who_is_refused_a_confirm_by_its_own_member_asks_nobody_else() -> None:
    post = Answering("confirm", lambda: at.near.confirmed(ASK, 4, LOST))
    at = Around(post)
    at.begin(wanted(0, reads=[4, 5]))
    at.near.locked(ASK, 0, None)
    assert isinstance(at.error(), ConflictError)
    assert at.kinds() == [("me", "lock"), ("me", "confirm"), ("me", "unlock")]


def test_who_is_refused_a_prepare_by_its_own_member_prepares_nowhere_else() -> None:
    post = Answering("prepare", lambda: at.near.refused(refusal(0)))
    at = Around(post)
    at.begin(wanted(0, 1, 3))
    assert isinstance(at.error(), ConflictError)
    kinds = at.kinds()
    assert ("bob", "prepare") not in kinds, "it would be pending until it is asked about"
    assert ("cid", "prepare") not in kinds


# ------------------------------------------------------------------ ids


def test_a_try_under_the_id_of_a_user_has_a_name_of_its_own() -> None:
    at = Around()
    at.begin(wanted(0, 1, reads=[5], given=GIVEN, tx_id=GIVEN, attempt=4), home=1)
    rows = [(told.tx_id, told.attempt, told.given) for _, _, told in at.said()]
    assert rows == [(FRESH, 4, None), (FRESH, 4, GIVEN)], "its home looks for an earlier outcome"
    assert at.near.leads(GIVEN)
    assert not at.near.leads(FRESH)
    at.near.asked_over(BOB, [FRESH])
    assert at.said() == [], "groups know it by that name"
    at.near.locked(ASK, 0, None)
    at.near.locked(ASK, 1, None)
    at.near.confirmed(ASK, 5, None)
    parts = [(told.tx_id, told.given) for _, kind, told in at.said() if kind == "prepare"]
    assert parts == [(FRESH, None), (FRESH, GIVEN)]
    at.near.prepared(part(0, tx_id=FRESH, attempt=4))
    at.near.prepared(part(1, tx_id=FRESH, attempt=4))
    assert at.ended()[0] is None
    assert not at.near.leads(GIVEN)


def test_an_unknown_outcome_names_the_id_that_its_client_knows() -> None:
    at = Around()
    at.begin(wanted(0, 1, given=GIVEN, tx_id=GIVEN), home=1, deadline=105.0)
    at.now = 105.1
    at.near.tick()
    error = at.error()
    assert isinstance(error, CommitUnknownError)
    assert (error.tx_id, error.home) == (GIVEN, 1)


def test_whether_a_transaction_waits_for_something_here_is_told() -> None:
    at = preparing()
    at.near.asked_over(BOB, [TX])
    assert at.said() == []
    at.near.asked_over(BOB, [OTHER, TX, FRESH])
    assert at.said() == [("bob", "over", ([OTHER, FRESH],))]
    for partition in (0, 1, 3):
        at.near.prepared(part(partition))
    at.said()
    at.near.asked_over(CID, [TX])
    assert at.said() == [("cid", "over", ([TX],))]


def test_a_transaction_whose_client_was_told_that_nobody_knows_waits_still() -> None:
    at = preparing(deadline=105.0)
    at.now = 105.1
    at.near.tick()
    assert isinstance(at.error(), CommitUnknownError)
    assert at.near.leads(TX)
    at.said()
    at.near.asked_over(BOB, [TX])
    assert at.said() == []


# ------------------------------------------------------------------ epochs


def test_a_transaction_that_names_an_epoch_that_is_over_is_not_begun() -> None:
    at = Around()
    at.near.decided(topology({1: 2}))
    for epochs in ([(0, 1), (1, 1)], [(0, 1), (1, 3)]):
        with pytest.raises(RoutedError, match="partition 1 is in epoch") as caught:
            at.begin(wanted(0, 1, epochs=epochs))
        assert caught.value.answer == "remap"
    assert (at.said(), at.near.leads(TX)) == ([], False)
    at.begin(wanted(0, 1, epochs=[(0, 1), (1, 2)]))
    told = at.said()[1][2]
    assert isinstance(told, PrepareWanted)
    assert (told.epoch, told.participants[1]) == (2, Participant(1, 2, 1))


def test_what_was_read_is_bound_to_versions_and_not_to_epochs() -> None:
    at = Around()
    at.near.decided(topology({5: 2}))
    at.begin(wanted(0, reads=[5], epochs=[(0, 1), (5, 1)]))
    at.near.locked(ASK, 0, None)
    at.near.decided(topology({5: 3}, {5: BOB}))
    at.near.confirmed(ASK, 5, None)
    assert at.kinds()[-1] == ("me", "prepare")


@pytest.mark.parametrize("step", [locking, confirming])
def test_a_new_epoch_before_the_prepares_ends_it(step: Callable[[], Around]) -> None:
    at = step()
    at.near.decided(topology())
    assert at.ends == []
    at.near.decided(topology({1: 2}, {1: CID}))
    error = at.error()
    assert isinstance(error, RoutedError)
    assert error.answer == "wait"
    assert at.said() == [("me", "unlock", (ASK, [0], None)), ("cid", "unlock", (ASK, [1, 3], None))]
    at.near.locked(ASK, 1, None)
    at.near.confirmed(ASK, 5, None)
    assert at.said() == [], "nothing is sent again under another epoch (T2)"


def test_the_new_primary_is_asked_what_became_of_a_part_that_had_not_answered() -> None:
    at = preparing()
    at.near.prepared(part(0))
    at.near.decided(topology({1: 2}, {1: CID}))
    question = Question(TX, 1, NEAR, 1, 1)
    assert at.said() == [("cid", "question", question)], "in the epoch that it was bound to (T9)"
    at.near.decided(topology({0: 2, 1: 2}, {0: BOB, 1: CID}))
    assert at.said() == [("cid", "question", question)], "0 has answered"
    assert at.ends == []
    at.near.prepared(part(1))
    at.near.prepared(part(3))
    assert at.ended()[0] is None
    assert at.kinds() == [("bob", "decision"), ("cid", "decision")]


def test_a_part_alone_whose_epoch_ends_is_known_to_its_next_primary_only() -> None:
    at = Around()
    at.begin(wanted(0, reads=[1]), deadline=200.0)
    at.near.locked(ASK, 0, None)
    at.near.confirmed(ASK, 1, None)
    at.said()
    at.near.decided(topology({1: 2}))
    assert at.ends == []
    at.near.decided(topology({0: 2}, {0: BOB}))
    error = at.error()
    assert isinstance(error, CommitUnknownError)
    assert (error.tx_id, error.home) == (TX, 0)
    assert (at.said(), at.near.leads(TX)) == ([], False)


def test_what_reads_only_goes_on_through_new_epochs() -> None:
    at = Around()
    at.begin(wanted(reads=[1, 2]), home=1)
    at.near.decided(topology({1: 2, 2: 2}))
    assert at.ends == []
    at.near.confirmed(ASK, 1, None)
    at.near.confirmed(ASK, 2, None)
    assert at.ended() == (None, 0, ())


# ------------------------------------------------------------------ time


@pytest.mark.parametrize("step", [locking, confirming])
def test_a_step_that_takes_too_long_ends_it(step: Callable[[], Around]) -> None:
    at = step()
    at.now += STEP_S_MAX
    at.near.tick()
    assert at.ends == []
    at.now += 0.01
    at.near.tick()
    error = at.error()
    assert isinstance(error, RoutedError)
    assert error.answer == "wait"
    assert at.kinds() == [("me", "unlock"), ("bob", "unlock"), ("cid", "unlock")]


def test_each_step_has_its_own_time() -> None:
    at = locking()
    at.now += STEP_S_MAX
    for partition in (0, 1, 3):
        at.near.locked(ASK, partition, None)
    at.now += STEP_S_MAX
    at.near.tick()
    assert at.ends == []


@pytest.mark.parametrize("step", [locking, confirming])
def test_who_has_not_prepared_by_its_deadline_comes_again(step: Callable[..., Around]) -> None:
    at = step(deadline=100.5)
    at.now = 100.5
    at.near.tick()
    assert at.ends == []
    at.now = 100.51
    at.near.tick()
    assert isinstance(at.error(), RoutedError)
    assert not at.near.leads(TX)


def test_who_does_not_say_what_became_of_a_prepare_is_asked_at_intervals() -> None:
    at = preparing()
    at.near.prepared(part(1))
    for after, asked in (
        (QUESTION_PAUSE_S, 0), (0.01, 1), (QUESTION_PAUSE_S, 0), (0.01, 1), (5.0, 1),
    ):  # fmt: skip
        at.now += after
        at.near.tick()
        expected = [
            ("me", "question", Question(TX, 1, NEAR, 0, 1)),
            ("cid", "question", Question(TX, 1, NEAR, 3, 1)),
        ]
        assert at.said() == expected * asked
    assert at.ends == [], "time decides nothing (T6)"


def test_a_part_alone_is_not_asked_about() -> None:
    at = Around()
    at.begin(wanted(0, reads=[1]))
    at.near.locked(ASK, 0, None)
    at.near.confirmed(ASK, 1, None)
    at.said()
    at.now += 100.0
    at.near.tick()
    assert (at.said(), at.ends) == ([], [])


@pytest.mark.parametrize("end", ["prepared", "refused"])
def test_who_was_told_at_its_deadline_that_nobody_knows_is_told_nothing_more(end: str) -> None:
    at = preparing(deadline=105.0)
    at.near.prepared(part(0))
    at.now = 105.0
    at.near.tick()
    assert at.ends == []
    at.now = 105.1
    at.near.tick()
    error = at.error()
    assert isinstance(error, CommitUnknownError)
    assert (error.tx_id, error.home) == (TX, 0)
    assert "1, 3" in str(error)
    at.near.tick()
    assert (at.ends, at.overs) == ([], 0)
    at.said()
    if end == "prepared":
        at.near.prepared(part(1))
        at.near.prepared(part(3))
    else:
        at.near.refused(refusal(1))
    assert (at.ends, at.overs) == ([], 1)
    assert at.kinds() == [("me", "decision"), ("bob", "decision"), ("cid", "decision")]
    assert not at.near.leads(TX)


def test_two_transactions_do_not_mix() -> None:
    at = preparing()
    at.begin(wanted(0, 1, reads=[5], tx_id=OTHER))
    assert "leads 2 transactions" in repr(at.near)
    at.near.locked(ASK + 1, 0, LOST)
    assert isinstance(at.error(), ConflictError)
    assert at.near.leads(TX)
    assert not at.near.leads(OTHER)


# ------------------------------------------------------------------ anything in any order

WRITTEN, READ = (0, 1, 3), (2, 5)
EVENTS = st.one_of(
    st.tuples(
        st.sampled_from(["locked", "confirmed", "prepared"]), st.sampled_from([*WRITTEN, *READ]),
    ),
    st.tuples(
        st.sampled_from(["lock", "confirm", "refused", "moved"]),
        st.sampled_from([*WRITTEN, *READ]),
    ),
    st.tuples(st.just("later"), st.sampled_from([0, 1, 2])),
)  # fmt: skip
GOOD = [
    *(("locked", p) for p in WRITTEN), *(("confirmed", p) for p in READ),
    *(("prepared", p) for p in WRITTEN),
]  # fmt: skip


class Watched:
    """A transaction in which anything happens, and what has to hold at each moment."""

    def __init__(self) -> None:
        self.at = Around()
        self.at.begin(wanted(*WRITTEN, reads=READ), deadline=108.0)
        self.epochs: dict[int, int] = {}
        self.yes: dict[str, set[int]] = {"locked": set(), "confirmed": set(), "prepared": set()}
        self.was_refused = self.has_prepared = False
        self.decisions: set[bool] = set()
        self.look()

    def happen(self, event: str, number: int) -> None:
        at = self.at
        if event == "locked":
            at.near.locked(ASK, number, None)
        elif event == "lock":
            at.near.locked(ASK, number, LOST)
        elif event == "confirmed":
            at.near.confirmed(ASK, number, None)
        elif event == "confirm":
            at.near.confirmed(ASK, number, LOST)
        elif event == "prepared" and number not in READ:
            at.near.prepared(part(number))
        elif event == "refused":
            self.was_refused |= self.has_prepared
            at.near.refused(refusal(number))
        elif event == "moved":
            self.epochs[number] = self.epochs.get(number, 1) + 1
            at.near.decided(topology(self.epochs))
        elif event == "later":
            at.now += number / 2
            at.near.tick()
        if event in self.yes:
            self.yes[event].add(number)
        self.look()

    def look(self) -> None:
        for _, kind, told in self.at.said():
            if kind == "confirm":
                assert self.yes["locked"] >= set(WRITTEN)
            elif kind == "prepare":
                assert self.yes["confirmed"] >= set(READ)
                assert not any(p in self.epochs for p in WRITTEN), "it is bound to its epochs"
                self.has_prepared = True
            elif kind == "question":
                assert self.has_prepared
                assert told.epoch == 1
            elif kind == "unlock":
                assert not self.has_prepared, "what is prepared is decided, and not let go"
            elif kind == "decision":
                self.decisions.add(told[0].commits)
        if True in self.decisions:
            assert self.yes["prepared"] >= set(WRITTEN)
        if False in self.decisions:
            assert self.was_refused
        assert len(self.decisions) < 2
        assert len(self.at.ends) < 2, "its client hears once"
        for error, _, _ in self.at.ends:
            if error is None:
                assert self.yes["prepared"] >= set(WRITTEN)
            elif not isinstance(error, CommitUnknownError):
                assert self.was_refused or not self.has_prepared
        assert self.at.near.leads(TX) or self.at.ends


@given(st.lists(EVENTS, max_size=12), st.lists(EVENTS, max_size=6), st.lists(EVENTS, max_size=4))
def test_whatever_happens_no_group_is_asked_too_early_and_no_client_is_told_what_is_not_so(
    first: list[tuple[str, int]], second: list[tuple[str, int]], third: list[tuple[str, int]]
) -> None:
    tx = Watched()
    for event in [*first, *GOOD[:3], *second, *GOOD[3:5], *third, *GOOD[5:7]]:
        tx.happen(*event)
    for event in GOOD[5:]:
        tx.happen(*event)
    if tx.has_prepared:
        assert not tx.at.near.leads(TX), "all groups have said what it has come to"


# ------------------------------------------------------------------ the post


def test_what_a_member_tells_itself_is_taken_in_order_one_behind_the_other() -> None:
    heard: list[str] = []
    sent: list[tuple[object, Message]] = []
    outflow: Any = SimpleNamespace(tell=lambda member, message: sent.append((member, message)))
    post = Post(ME, outflow)
    first, second, third = (answer_message("locked", ask, 0, None) for ask in (1, 2, 3))

    def deliver(sender: object, message: Message) -> None:
        assert sender == ME
        ask = told_of(message)[0]
        heard.append(f"begin {ask}")
        if ask == 1:
            post.tell(ME, second)
            post.tell(BOB, third)
            post.tell(ME, third)
        heard.append(f"end {ask}")

    post.deliver = deliver
    post.tell(ME, first)
    assert heard == ["begin 1", "end 1", "begin 2", "end 2", "begin 3", "end 3"]
    assert sent == [(BOB.member, third)]
    post.tell(ME, second)
    assert heard[6:] == ["begin 2", "end 2"]


def test_a_post_goes_on_behind_a_message_that_could_not_be_taken() -> None:
    heard: list[int] = []
    post = Post(ME, SimpleNamespace())  # type: ignore[arg-type]  # sends nothing

    def deliver(_sender: object, message: Message) -> None:
        told = told_of(message)
        if isinstance(told, RefusedPart):
            raise ValueError("it cannot be taken")
        heard.append(told[0])

    post.deliver = deliver
    with pytest.raises(ValueError, match="it cannot be taken"):
        post.tell(ME, refused_message(refusal(0)))
    post.tell(ME, answer_message("locked", 7, 0, None))
    assert heard == [7]


def test_an_earlier_incarnation_of_this_member_is_somebody_else() -> None:
    sent: list[object] = []
    outflow: Any = SimpleNamespace(tell=lambda member, _message: sent.append(member))
    post = Post(ME, outflow)
    post.tell(ME._replace(boot=1), answer_message("locked", 7, 0, None))
    assert sent == [ME.member]


def test_a_member_that_knows_no_topology_leads_nothing() -> None:
    near = Near(ME, Told(), lambda: FRESH, lambda: 0.0, print)  # type: ignore[arg-type]  # a fake
    near.decided(Topology())
    near.tick()
    assert not near.leads(TX)
