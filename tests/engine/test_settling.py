"""How transactions of several groups end without their near member, and when they are forgotten."""

from __future__ import annotations

from itertools import permutations
from types import SimpleNamespace
from typing import Any

import pytest

from support.group_transactions import OTHER, TX, topology
from support.primaries import BOB, CID, ME, Primary, committed, key_in, lock, prepare, rolled_back
from tidelog.affinity.topology import Incarnation
from tidelog.engine.net.failures import Failure
from tidelog.engine.node.settling import PAUSE_S, PAUSE_S_MAX, TELL_S
from tidelog.engine.node.tasks import Tasks
from tidelog.engine.node.transactions import Transactions
from tidelog.engine.node.tx_messages import (
    PreparedPart,
    Question,
    RefusedPart,
    answer_message,
    decision_message,
    forget_message,
    ids_message,
    lock_message,
    prepare_message,
    prepared_message,
    question_message,
    refused_message,
    settled_message,
)
from tidelog.wal.records import (
    CommitRecord,
    OutcomesRecord,
    Record,
    RollbackRecord,
    Run,
    Settled,
    SettledOutcome,
)

HOME = 0
"""The lowest partition that takes part: Bob has a copy of it."""
AGAIN = Failure("again", "it is not known here", {})


def run_of(partition: int, first: int = 1) -> Run:
    return Run(partition, 1, first, 1)


def part(partition: int, time: int = 3000, attempt: int = 1, tx_id: bytes = TX) -> PreparedPart:
    return PreparedPart(tx_id, attempt, run_of(partition), time)


def no(partition: int, attempt: int = 1, tx_id: bytes = TX) -> RefusedPart:
    return RefusedPart(tx_id, attempt, partition, AGAIN)


def asked(partition: int, tx_id: bytes = TX) -> Question:
    return Question(tx_id, 1, (CID.member.bytes, CID.boot), partition, 1)


def prepared(*others: int, partition: int = HOME) -> Primary:
    """A primary that has prepared its part; Cid leads the transaction."""
    at = Primary()
    at.here.prepare(CID, prepare(partition, TX, others=others or (3, 5)))
    at.all_have(partition)
    assert at.kinds() == [("cid", "prepared")]
    at.records()
    return at


def ends(at: Primary) -> list[Record]:
    """Let what is decided get into the log; return what it was."""
    at.carry()
    return at.records()


# ------------------------------------------------------------------ questions


def test_other_groups_are_asked_after_a_while_with_pauses_that_grow() -> None:
    at = prepared()
    at.settling.tick()
    assert at.said() == []
    due, pause = at.now + PAUSE_S, PAUSE_S
    for _ in range(9):
        at.now = due - 0.001
        at.settling.tick()
        assert at.said() == []
        at.now = due
        at.settling.tick()
        assert at.said() == [("cid", "question", asked(3)), ("cid", "question", asked(5))]
        due, pause = due + pause, min(2 * pause, PAUSE_S_MAX)
    assert pause == PAUSE_S_MAX


def test_other_groups_are_asked_at_once_when_the_near_member_has_gone() -> None:
    at = prepared(1, 2)
    at.decide(away=(CID,))
    at.settling.tick()
    assert at.said() == [("me", "question", asked(1)), ("me", "question", asked(2))]


def test_nobody_asks_who_has_gone_and_who_has_answered() -> None:
    at = prepared(3, 4)
    at.decide(away=(CID,))
    at.settling.tick()
    assert at.said() == [("me", "question", asked(4))]
    at.decide(away=(CID,), authors={3: BOB})
    at.settling.prepared(part(4))
    at.settling.tick()
    assert at.said() == [("bob", "question", asked(3))], "the new primary knows"


def test_a_new_epoch_of_any_other_group_is_asked_soon_and_never_later_for_that() -> None:
    at = prepared()
    for _ in range(3):
        at.now += PAUSE_S_MAX
        at.settling.tick()
    at.said()
    at.decide({5: 2})
    at.now += PAUSE_S - 0.1
    at.decide({5: 3})
    at.settling.tick()
    assert at.said() == []
    at.now += 0.1
    at.settling.tick()
    assert at.said() == [("cid", "question", asked(3)), ("cid", "question", asked(5))]


def test_what_is_on_its_way_or_decided_is_not_asked_about() -> None:
    at = Primary()
    at.here.prepare(CID, prepare(HOME, TX))
    at.carry()
    at.now += 100.0
    at.settling.tick()
    assert at.said() == []
    at.stored(HOME, BOB)
    at.said()
    at.writer.fails = OSError(28, "no space")
    at.here.decision(committed(TX, run_of(HOME), run_of(3)), [HOME])
    at.carry()
    at.now += 100.0
    at.settling.tick()
    assert at.said() == []


@pytest.mark.parametrize("order", list(permutations((2, 3, 5))))
def test_what_all_groups_have_prepared_has_committed_with_the_highest_time(
    order: tuple[int, ...],
) -> None:
    at = prepared(2, 3, 5)
    for partition in order:
        assert ends(at) == []
        at.settling.prepared(part(partition, time=2000 + partition))
        at.settling.prepared(part(order[0], time=2000 + order[0]))
    [record] = ends(at)
    runs = tuple(map(run_of, (HOME, 2, 3, 5)))
    assert record == CommitRecord(
        tx_id=TX, attempt=1, time=2005, participants=runs, applied=(HOME,)
    )
    assert at.value(key_in(HOME)) == b"v"


def test_its_own_time_counts_as_those_of_others() -> None:
    at = prepared(3)
    at.settling.prepared(part(3, time=7))
    [record] = ends(at)
    assert isinstance(record, CommitRecord)
    assert record.time == 1000


@pytest.mark.parametrize("refuses", [3, 5])
@pytest.mark.parametrize("first", [True, False])
def test_what_one_group_refuses_is_rolled_back(refuses: int, first: bool) -> None:
    at = prepared()
    if not first:
        at.settling.prepared(part(8 - refuses))
    at.settling.refused(no(refuses))
    at.settling.prepared(part(3))
    at.settling.prepared(part(5))
    [record] = ends(at)
    assert isinstance(record, RollbackRecord)
    assert (at.value(key_in(HOME)), at.locks.idle) == (None, True)


def test_what_is_decided_is_not_decided_again() -> None:
    at = prepared()
    at.settling.prepared(part(3))
    at.settling.prepared(part(5))
    at.settling.refused(no(3))
    assert [type(record) for record in ends(at)] == [CommitRecord]
    at = prepared()
    at.settling.refused(no(3))
    at.settling.prepared(part(3))
    at.settling.prepared(part(5))
    assert [type(record) for record in ends(at)] == [RollbackRecord]


def test_words_about_other_attempts_transactions_and_itself_decide_nothing() -> None:
    at = prepared(3)
    at.settling.prepared(part(3, attempt=2))
    at.settling.refused(no(3, attempt=2))
    at.settling.prepared(part(3, tx_id=OTHER))
    at.settling.refused(no(3, tx_id=OTHER))
    at.settling.refused(no(HOME))
    at.settling.prepared(part(HOME))
    assert ends(at) == []
    at.settling.prepared(part(3))
    [record] = ends(at)
    assert isinstance(record, CommitRecord)
    assert record.participants == (run_of(HOME), run_of(3))


def test_what_is_decided_stays_so_though_the_log_did_not_take_it() -> None:
    for commits in (True, False):
        at = prepared(3)
        at.writer.fails = OSError(28, "no space")
        decided = committed(TX, run_of(HOME), run_of(3)) if commits else rolled_back(TX)
        at.here.decision(decided, [HOME])
        assert ends(at) == []
        if commits:
            at.settling.refused(no(3))
        else:
            at.settling.prepared(part(3))
        at.tick()
        assert [type(record) for record in ends(at)] == [
            CommitRecord if commits else RollbackRecord
        ]


def test_words_that_come_before_all_copies_have_the_own_part_decide_nothing() -> None:
    for word in ("prepared", "refused"):
        at = Primary()
        at.here.prepare(CID, prepare(HOME, TX))
        at.carry()
        if word == "prepared":
            at.settling.prepared(part(3))
        else:
            at.settling.refused(no(3))
        at.records()
        at.stored(HOME, BOB)
        assert ends(at) == []
        [work] = at.works.of(TX)
        assert (work.phase, work.decided) == ("prepared", None), "it asks again"


def test_two_partitions_of_one_member_settle_each_for_itself() -> None:
    at = Primary()
    for partition in (HOME, 4):
        at.here.prepare(CID, prepare(partition, TX, others=(0, 4)))
    at.all_have(HOME)
    at.records()
    at.settling.prepared(part(4))
    [record] = ends(at)
    assert isinstance(record, CommitRecord)
    assert record.applied == (HOME,)
    at.settling.prepared(part(HOME))
    [record] = ends(at)
    assert isinstance(record, CommitRecord)
    assert record.applied == (4,)


def test_what_was_pending_before_a_takeover_is_asked_about_by_the_next_author() -> None:
    at = prepared()
    at.seal(HOME, 2)
    at.open_again(HOME, 2, Settled(TX, 1, run_of(HOME), SettledOutcome.PENDING, 0, None))
    at.records()
    at.now += PAUSE_S
    at.settling.tick()
    assert at.said() == [("cid", "question", asked(3)), ("cid", "question", asked(5))]
    at.settling.prepared(part(3))
    at.settling.prepared(part(5))
    assert [type(record) for record in ends(at)] == [CommitRecord]


# ------------------------------------------------------------------ settled


def done(*others: int, partition: int = HOME, everywhere: bool = True) -> Primary:
    """A primary whose part has committed."""
    at = prepared(*others, partition=partition)
    runs = sorted([run_of(partition), *map(run_of, others or (3, 5))])
    at.here.decision(committed(TX, *runs), [partition])
    at.carry()
    if everywhere:
        at.all_have(partition)
    at.records()
    assert at.said() == []
    return at


def told_settled(at: Primary) -> list[tuple[str, object]]:
    at.settling.tick()
    return [(to, told) for to, kind, told in at.said() if kind == "settled"]


def test_the_collector_is_told_once_every_copy_has_the_end() -> None:
    for last in ("own log", "copy"):
        at = done(3, partition=2, everywhere=False)
        at.stored(2, BOB)
        assert told_settled(at) == []
        if last == "copy":
            at.sync()
        else:
            at.stored(2, CID)
        at.now += TELL_S
        assert told_settled(at) == [], "the end had no sync of its own"
        at.sync()
        at.stored(2, CID)
        at.now += TELL_S
        assert told_settled(at) == [("me", [(2, 2, TX)])]
    at = done(3, 1, partition=2)
    at.decide(authors={1: BOB})
    assert told_settled(at) == [("bob", [(1, 2, TX)])], "the lowest that takes part collects"


def test_what_was_rolled_back_is_settled_without_a_word() -> None:
    at = prepared()
    at.here.decision(rolled_back(TX), [HOME])
    at.all_have(HOME)
    at.now += TELL_S
    assert told_settled(at) == []
    assert at.state.copies.remembered == {}


def test_the_collector_is_told_again_with_pauses_that_grow() -> None:
    at = done(1, partition=2)
    at.decide(authors={1: BOB})
    pause = PAUSE_S
    assert told_settled(at) == [("bob", [(1, 2, TX)])]
    for _ in range(7):
        at.now += pause - 0.001
        assert told_settled(at) == []
        at.now += TELL_S
        assert told_settled(at) == [("bob", [(1, 2, TX)])]
        pause = min(2 * pause, PAUSE_S_MAX)
    assert pause == PAUSE_S_MAX


def test_it_is_looked_at_intervals_what_has_settled() -> None:
    at = Primary()
    at.settling.tick()
    at.here.prepare(CID, prepare(HOME, TX))
    at.all_have(HOME)
    at.here.decision(committed(TX, run_of(HOME), run_of(3)), [HOME])
    at.all_have(HOME)
    at.said()
    at.now += TELL_S / 2
    assert told_settled(at) == []
    at.now += TELL_S / 2
    assert len(told_settled(at)) == 1


def test_one_collector_is_told_of_several_with_one_word() -> None:
    at = Primary()
    for partition, tx_id in ((0, OTHER), (0, TX), (2, TX)):
        number = int(tx_id == OTHER)
        at.here.prepare(CID, prepare(partition, tx_id, number=number, others=(0, 3)))
        at.all_have(partition)
    for tx_id, partitions in ((OTHER, (0,)), (TX, (0, 2))):
        first = 1 if tx_id == OTHER else 2
        at.here.decision(committed(tx_id, run_of(0, first), run_of(2)), list(partitions))
    for partition in (0, 2):
        at.all_have(partition)
    at.said()
    [(to, rows)] = told_settled(at)
    assert to == "me"
    assert rows == [(0, 0, OTHER), (0, 0, TX), (0, 2, TX)]


# ------------------------------------------------------------------ at the collector


def heard(at: Primary, *partitions: int, sender: Incarnation = BOB, tx_id: bytes = TX) -> None:
    for partition in partitions:
        at.settling.settled(sender, [(HOME, partition, tx_id)])


def asks_over(at: Primary) -> list[str]:
    """Whether near members are asked now, after a look."""
    at.now += TELL_S
    at.settling.tick()
    return [to for to, kind, _ in at.said() if kind == "ask-over"]


@pytest.mark.parametrize("order", list(permutations((HOME, 3, 5))))
def test_the_near_member_is_asked_once_all_have_settled(order: tuple[int, ...]) -> None:
    at = done()
    for partition in order:
        assert asks_over(at) == []
        heard(at, partition, order[0])
    assert asks_over(at) == ["cid"]
    assert asks_over(at) == ["cid"], "it is asked until it answers"
    at.settling.over([TX])
    at.settling.over([TX])
    at.settling.write_forgotten()
    at.carry()
    assert at.said() == []
    assert [record for record in at.records() if isinstance(record, OutcomesRecord)] == [
        OutcomesRecord(partition=HOME, forgotten=(TX,))
    ]
    heard(at, 3)
    at.sync()
    assert at.said() == [], "Bob's copy remembers it, and he may collect next"
    at.stored(HOME, BOB)
    assert at.said() == [("cid", "forget", [(3, TX), (5, TX)])]
    assert asks_over(at) == []
    at.settling.over([TX])
    at.settling.write_forgotten()
    at.all_have(HOME)
    assert at.said() == []


def test_what_has_not_settled_everywhere_is_not_forgotten_whoever_says_it_is_over() -> None:
    at = done()
    heard(at, HOME, 3)
    at.settling.over([TX])
    at.settling.write_forgotten()
    at.decide(away=(CID,))
    assert asks_over(at) == []
    assert at.kinds() == []
    assert TX in at.state.copies.remembered[HOME]


def test_who_has_gone_waits_for_nothing() -> None:
    at = done()
    heard(at, HOME, 3, 5)
    at.decide(away=(CID,), authors={3: BOB, 5: BOB})
    assert asks_over(at) == []
    at.all_have(HOME)
    assert at.said() == [("bob", "forget", [(3, TX), (5, TX)])]
    at = done()
    heard(at, HOME, 3, 5)
    at.decide(boots={CID: CID.boot + 1})
    assert asks_over(at) == [], "another start of it does not wait for it"


def test_a_near_member_is_asked_about_several_with_one_word() -> None:
    at = done()
    at.here.prepare(CID, prepare(HOME, OTHER, number=1))
    at.all_have(HOME)
    at.here.decision(committed(OTHER, run_of(HOME, 2), run_of(3)), [HOME])
    at.all_have(HOME)
    heard(at, HOME, 3, 5)
    heard(at, HOME, 3, tx_id=OTHER)
    at.said()
    assert asks_over(at) == ["cid"]


def test_a_word_about_what_was_forgotten_is_answered_with_that() -> None:
    at = Primary()
    at.settling.settled(BOB, [(HOME, 3, TX), (HOME, 5, OTHER)])
    assert at.said() == [("bob", "forget", [(3, TX), (5, OTHER)])]


def test_a_word_about_what_is_pending_here_forgets_nothing() -> None:
    at = prepared()
    heard(at, 3, 5)
    assert at.said() == []
    at.here.decision(committed(TX, run_of(HOME), run_of(3), run_of(5)), [HOME])
    heard(at, 3, 5)
    assert at.said() == []
    at.all_have(HOME)
    heard(at, 3, 5)
    assert asks_over(at) == []
    heard(at, HOME)
    assert asks_over(at) == ["cid"]


def test_only_who_serves_the_lowest_partition_collects() -> None:
    at = done()
    at.settling.settled(BOB, [(3, 3, OTHER)])
    assert at.said() == []
    at.seal(HOME, 2)
    heard(at, HOME, 3, 5)
    at.settling.settled(BOB, [(HOME, 3, OTHER)])
    assert at.said() == []
    at.open_again(HOME, 2)
    at.decide({HOME: 3}, authors={HOME: BOB})
    at.settling.settled(BOB, [(HOME, 3, OTHER)])
    assert at.said() == []


def test_the_next_collector_hears_everything_anew() -> None:
    at = done()
    heard(at, 3, 5)
    at.seal(HOME, 2)
    at.open_again(HOME, 2)
    assert TX in at.state.copies.remembered[HOME]
    heard(at, HOME)
    assert asks_over(at) == []
    heard(at, 3, 5)
    assert asks_over(at) == ["cid"]
    at.seal(HOME, 3)
    at.open_again(HOME, 3)
    assert asks_over(at) == []
    at.settling.over([TX])
    at.settling.write_forgotten()
    assert "forget" not in [kind for _, kind in at.kinds()]


def test_what_is_remembered_has_settled_once_an_epoch_is_open() -> None:
    at = done(everywhere=False)
    at.now += TELL_S
    assert told_settled(at) == []
    at.seal(HOME, 2)
    at.open_again(HOME, 2)
    at.now += TELL_S
    assert told_settled(at) == [("me", [(HOME, HOME, TX)])], "the list has seen to that"


def test_the_next_author_says_at_once_what_has_settled() -> None:
    at = done()
    for _ in range(8):
        at.now += PAUSE_S_MAX
        told_settled(at)
    at.seal(HOME, 2)
    at.open_again(HOME, 2)
    at.now += TELL_S
    assert told_settled(at) == [("me", [(HOME, HOME, TX)])]


def test_who_serves_a_partition_no_more_says_nothing_of_it() -> None:
    at = done()
    at.seal(HOME, 2, author=BOB)
    at.now += 2 * PAUSE_S_MAX
    assert told_settled(at) == []
    assert "0 commits" in repr(at.settling)


def test_another_partition_keeps_what_it_has_collected() -> None:
    at = done(3, partition=1)
    at.settling.settled(BOB, [(1, 1, TX)])
    at.seal(HOME, 2)
    at.settling.settled(BOB, [(1, 3, TX)])
    at.seal(2, 2)
    assert asks_over(at) == ["cid"]


# ------------------------------------------------------------------ forgotten


def test_what_is_to_be_forgotten_goes_from_log_and_copies_once() -> None:
    at = done()
    at.settling.forget([(HOME, TX), (3, TX), (4, TX)])
    at.settling.forget([(HOME, TX)])
    at.settling.write_forgotten()
    assert TX in at.state.copies.remembered[HOME]
    assert ends(at) == [OutcomesRecord(partition=HOME, forgotten=(TX,))]
    assert at.state.copies.remembered == {}
    items = at.streams.next_items(BOB.member, 1 << 20)
    assert [one.partition for one in items if isinstance(one.record, OutcomesRecord)] == [HOME]
    at.settling.forget([(HOME, TX)])
    at.settling.write_forgotten()
    assert ends(at) == []
    assert "1 commits" in repr(at.settling)
    at.now += 2 * PAUSE_S_MAX
    assert told_settled(at) == []
    assert "0 commits" in repr(at.settling)


def test_several_are_forgotten_with_one_record_of_their_partition() -> None:
    at = done()
    at.here.prepare(CID, prepare(HOME, OTHER, number=1))
    at.all_have(HOME)
    at.here.decision(committed(OTHER, run_of(HOME, 2), run_of(3)), [HOME])
    at.all_have(HOME)
    at.records()
    at.settling.forget([(HOME, TX)])
    at.settling.forget([(HOME, OTHER), (HOME, TX)])
    assert ends(at) == [], "others may come until the next look"
    at.settling.write_forgotten()
    assert ends(at) == [OutcomesRecord(partition=HOME, forgotten=(TX, OTHER))]


def test_what_could_not_be_forgotten_is_forgotten_later() -> None:
    at = done()
    at.writer.fails = OSError(28, "no space")
    at.settling.forget([(HOME, TX)])
    at.settling.write_forgotten()
    at.carry()
    assert TX in at.state.copies.remembered[HOME]
    at.settling.forget([(HOME, TX)])
    at.settling.write_forgotten()
    at.carry()
    assert at.state.copies.remembered == {}


def test_a_collector_that_could_not_forget_has_not_told_others_to() -> None:
    at = done()
    heard(at, HOME, 3, 5)
    at.writer.fails = OSError(28, "no space")
    at.settling.over([TX])
    at.settling.write_forgotten()
    at.carry()
    assert "forget" not in [kind for _, kind in at.kinds()], "nobody would say it again"
    assert asks_over(at) == ["cid"]
    at.settling.over([TX])
    at.settling.write_forgotten()
    at.all_have(HOME)
    assert at.state.copies.remembered == {}
    assert at.kinds() == [("cid", "forget")]


def test_nothing_is_forgotten_for_ever_that_comes_back() -> None:
    at = done()
    [known] = at.state.copies.remembered[HOME].values()
    at.settling.forget([(HOME, TX)])
    at.settling.write_forgotten()
    at.carry()
    at.state.copies.take_outcomes(OutcomesRecord(partition=HOME, committed=(known,)))
    at.settling.forget([(HOME, TX)])
    at.settling.write_forgotten()
    at.carry()
    assert at.state.copies.remembered == {}, "it does not count as on its way"


def test_only_who_serves_a_partition_forgets_there() -> None:
    at = done()
    at.decide({HOME: 2})
    at.settling.forget([(HOME, TX)])
    at.settling.write_forgotten()
    assert ends(at) == []
    at = done()
    at.settling.forget([(HOME, TX)])
    at.settling.write_forgotten()
    at.seal(HOME, 2)
    at.open_again(HOME, 2)
    assert at.state.copies.remembered == {}


def test_a_forget_that_was_lost_with_its_epoch_is_done_in_the_next_one() -> None:
    at = done()
    at.settling.forget([(HOME, TX)])
    at.settling.write_forgotten()
    at.log.failure = None
    at.writer.fails = OSError(28, "no space")
    at.seal(HOME, 2)
    at.carry()
    assert TX in at.state.copies.remembered[HOME]
    at.open_again(HOME, 2)
    at.settling.forget([(HOME, TX)])
    at.settling.write_forgotten()
    at.carry()
    assert at.state.copies.remembered == {}


def test_words_that_come_again_while_a_near_member_is_asked_leave_nothing_behind() -> None:
    at = done()
    heard(at, HOME, 3, 5)
    heard(at, HOME, 3, 5)
    heard(at, 3)
    at.settling.over([TX])
    at.settling.write_forgotten()
    heard(at, 5)
    at.all_have(HOME)
    assert at.kinds() == [("cid", "forget")]
    heard(at, 5)
    assert at.kinds() == [("bob", "forget")]
    having: dict[Any, Any] = at.settling._having
    assert having == {}


# ------------------------------------------------------------------ all roles of one member


class Member(Primary):
    """A primary whose messages to itself arrive, as do those that a test lets arrive."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[tuple[Any, Any]] = []
        outflow: Any = SimpleNamespace(tell=lambda *said: self.sent.append(said))
        self.all = Transactions(
            ME, self.files, self.log, self.partitions, self.streams, outflow, lambda: self.now,
            lambda _point: None, Tasks(),
        )  # fmt: skip
        self.all.decided(topology())
        for partition in (0, 1, 2, 4):
            self.all.opened(partition)

    def kinds_sent(self) -> list[Any]:
        sent, self.sent = self.sent, []
        return [message[0] for _, message in sent]


def test_every_message_reaches_the_role_that_it_is_for() -> None:
    at = Member()
    at.all.arrived(CID, prepare_message(prepare(HOME, TX, others=(3,))))
    at.all_have(HOME)
    assert at.kinds_sent() == [prepared_message(part(HOME))[0]]
    at.now += PAUSE_S
    at.all.tick()
    assert at.kinds_sent() == [question_message(asked(3))[0]]
    at.all.arrived(CID, prepared_message(part(3)))
    at.all_have(HOME)
    assert at.value(key_in(HOME)) == b"v"
    at.all.tick()
    at.now += TELL_S
    at.all.tick()
    assert at.kinds_sent() == [], "this member collects, and 3 has not settled"
    at.all.arrived(CID, settled_message("settled", [(HOME, 3, TX)]))
    at.now += TELL_S
    at.all.tick()
    assert at.kinds_sent() == [ids_message("ask-over", [TX])[0]]
    at.all.arrived(CID, ids_message("over", [TX]))
    at.now += TELL_S
    at.all.tick()
    at.all_have(HOME)
    assert at.kinds_sent() == [forget_message([])[0]]
    assert at.state.copies.remembered == {}
    at.all.arrived(BOB, ids_message("ask-over", [TX]))
    at.all.arrived(BOB, forget_message([(HOME, TX)]))
    assert at.kinds_sent() == [ids_message("over", [TX])[0]]


def test_a_refusal_reaches_who_has_prepared_and_a_seal_all_that_was_there() -> None:
    at = Member()
    at.all.arrived(CID, prepare_message(prepare(HOME, TX, others=(3,))))
    at.all_have(HOME)
    at.records()
    at.all.arrived(CID, refused_message(no(3)))
    assert [type(record) for record in ends(at)] == [RollbackRecord]
    at.all.arrived(CID, prepare_message(prepare(HOME, OTHER, others=(3,))))
    assert not at.all.locks.idle
    at.all.sealed(HOME)
    assert at.all.locks.idle


def test_what_is_pending_is_there_again_when_a_partition_is_opened_anew() -> None:
    at = Member()
    at.all.arrived(CID, prepare_message(prepare(HOME, TX, others=(3,))))
    at.all_have(HOME)
    at.all.sealed(HOME)
    at.all.opened(HOME)
    assert at.all.works.at(HOME, TX) is not None
    at.all.arrived(CID, decision_message(committed(TX, run_of(HOME), run_of(3)), [HOME]))
    at.all_have(HOME)
    assert at.value(key_in(HOME)) == b"v"
    assert "1 commits" in repr(at.all)
    at.all.sealed(HOME)
    assert "0 commits" in repr(at.all)


def test_who_waits_hears_that_what_was_in_the_way_is_no_more_or_that_time_is_up() -> None:
    at, late = Member(), list[Any]()
    at.all.arrived(CID, prepare_message(prepare(HOME, OTHER, others=())))
    owner = at.all.locks.in_way_of([key_in(HOME)])
    assert owner is not None
    request: Any = SimpleNamespace(deadline=at.now + 0.5, carry_out=lambda _handler: None)
    at.all.locks.hold(owner, request, lambda _: None, late.append)
    at.now += 0.6
    at.all.tick()
    assert late == [request]
    at.all.locks.release(owner)
    at.all.arrived(CID, lock_message(lock(HOME, TX, 2)))
    assert at.kinds_sent() == []
    at.all_have(HOME)
    assert answer_message("locked", 2, HOME, None)[0] in at.kinds_sent()
