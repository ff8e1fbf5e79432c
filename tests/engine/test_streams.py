"""What an author keeps of its streams, and what a copy takes of one: pure, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import pytest
from hypothesis import given, strategies as st

from tidelog.affinity.topology import Incarnation
from tidelog.engine.replication.following import Following, in_order
from tidelog.engine.replication.stream import EndRecord, Item, StoredUpto
from tidelog.engine.replication.streams import (
    BY_TAKEOVER,
    ITEM_OVERHEAD,
    NEARLY_ITEMS,
    PartitionStream,
    Streams,
)
from tidelog.wal.records import (
    CommitRecord,
    CommitUptoRecord,
    OpenRecord,
    OutcomesRecord,
    Participant,
    PrepareRecord,
    RollbackRecord,
    Run,
    Upto,
)

A, B, C = (Incarnation(UUID(int=number), 3) for number in (1, 2, 3))
PARTITION, EPOCH = 4, 7


def prepared(
    first: int, count: int = 1, partition: int = PARTITION, others: Sequence[int] = ()
) -> PrepareRecord:
    return PrepareRecord(
        tx_id=first.to_bytes(16, "big"),
        attempt=1,
        near=(A.member.bytes, A.boot),
        time=first,
        home=partition,
        participants=(
            Participant(partition, EPOCH, count),
            *(Participant(other, EPOCH, 1) for other in others),
        ),
        run=Run(partition, EPOCH, first, count),
        namespaces=16,
        keys=[b"k%d" % number for number in range(count)],
        values=[b"v"] * count,
    )


ENDS: list[EndRecord] = [
    CommitRecord(
        tx_id=bytes(16), attempt=1, time=5, participants=(Run(PARTITION, EPOCH, 1, 1),),
        applied=(PARTITION,),
    ),
    RollbackRecord(tx_id=bytes(16), time=5, reason="refused", runs=(Run(PARTITION, EPOCH, 2, 1),)),
    OutcomesRecord(partition=PARTITION, forgotten=(bytes(16),)),
]  # fmt: skip
"""What the stream of a partition has about the ends of transactions of several."""


def opened(*copies: Incarnation) -> Streams:
    streams = Streams()
    streams.open(PARTITION, EPOCH, copies, now=0.0)
    return streams


def prepare(streams: Streams, first: int, waits: object = None) -> int:
    return streams.prepare(prepared(first), 10, waits, now=0.0)


def stream_of(streams: Streams) -> PartitionStream:
    (stream,) = streams
    return stream


def upto(copy: Incarnation, number: int) -> tuple[Incarnation, StoredUpto, float]:
    return copy, StoredUpto(PARTITION, BY_TAKEOVER, EPOCH, number), 1.0


def test_what_is_everywhere_has_committed_and_its_client_is_answered_once() -> None:
    streams = opened(B, C)
    number = prepare(streams, 1, "a client")
    assert number == 2  # behind the OPEN of the epoch
    streams.logged(PARTITION, number)
    streams.stored(*upto(B, 2))
    assert streams.advance() == ([], [])
    streams.stored(*upto(C, 2))
    assert streams.advance() == ([Upto(PARTITION, EPOCH, 1)], ["a client"])
    streams.stored(*upto(C, 2))
    assert streams.advance() == ([], [])


def test_the_own_log_counts_like_any_copy() -> None:
    streams = opened(B)
    prepare(streams, 1, "a client")
    streams.stored(*upto(B, 2))
    assert streams.advance() == ([], [])
    streams.logged(PARTITION, 2)
    streams.logged(PARTITION, 1)  # takes nothing back
    assert streams.advance()[1] == ["a client"]


def test_a_removed_copy_is_waited_for_until_its_removal_is_known() -> None:
    streams = opened(B, C)
    prepare(streams, 1, "a client")
    streams.logged(PARTITION, 2)
    streams.stored(*upto(B, 2))
    assert streams.advance() == ([], [])
    streams.keep(PARTITION, (A, B))
    assert streams.advance()[1] == ["a client"]


def test_without_followers_nothing_is_streamed() -> None:
    streams = opened()
    assert streams.alone(PARTITION)
    assert streams.members_behind() == []
    assert not opened(B).alone(PARTITION)


def test_an_answer_of_another_epoch_or_admission_or_of_too_much_counts_for_nothing() -> None:
    streams = opened(B)
    prepare(streams, 1)
    streams.logged(PARTITION, 2)
    for row in (
        StoredUpto(PARTITION, BY_TAKEOVER, EPOCH - 1, 2),
        StoredUpto(PARTITION, 12, EPOCH, 2),
        StoredUpto(PARTITION, BY_TAKEOVER, EPOCH, 3),
        StoredUpto(PARTITION + 1, BY_TAKEOVER, EPOCH, 2),
    ):
        streams.stored(B, row, 1.0)
        assert streams.advance() == ([], [])
    streams.stored(Incarnation(B.member, B.boot + 1), StoredUpto(PARTITION, 0, EPOCH, 2), 1.0)
    assert streams.advance() == ([], [])


def numbers(items: Sequence[Item]) -> list[int]:
    return [item.number for item in items]


def test_a_follower_is_sent_again_what_lies_behind_what_it_has_told() -> None:
    streams = opened(B)
    for first in (1, 2, 3):
        prepare(streams, first)
    items = streams.next_items(B.member, 1 << 20)
    assert numbers(items) == [1, 2, 3, 4]
    streams.sent(B.member, items)
    assert streams.next_items(B.member, 1 << 20) == []
    streams.stored(*upto(B, 2))
    streams.send_again(B.member)
    assert numbers(streams.next_items(B.member, 1 << 20)) == [3, 4]


def test_items_go_in_messages_of_bounded_size_one_at_least() -> None:
    streams = opened(B)
    for first in (1, 2, 3):
        prepare(streams, first)
    found = []
    while items := streams.next_items(B.member, 1):
        streams.sent(B.member, items)
        found.append(numbers(items))
    assert found == [[1], [2], [3], [4]]


def test_what_has_committed_is_told_once_and_behind_it() -> None:
    streams = opened(B)
    prepare(streams, 1)
    prepare(streams, 2)
    streams.logged(PARTITION, 3)
    streams.stored(*upto(B, 3))
    assert streams.advance()[0] == [Upto(PARTITION, EPOCH, 2)]
    rows = streams.untold()
    assert rows == [Upto(PARTITION, EPOCH, 2)]
    assert streams.tell(rows, 1.0) == [(PARTITION, 4)]
    assert streams.untold() == []
    (told,) = [i.record for i in streams.next_items(B.member, 1 << 20) if i.number == 4]
    assert told == CommitUptoRecord(rows=(Upto(PARTITION, EPOCH, 2),))


def test_what_commits_while_something_is_told_is_told_later() -> None:
    streams = opened(B)
    prepare(streams, 1)
    prepare(streams, 2)
    streams.logged(PARTITION, 3)
    streams.stored(*upto(B, 2))
    streams.advance()
    rows = streams.untold()
    streams.stored(*upto(B, 3))
    streams.advance()
    streams.tell(rows, 1.0)
    assert streams.untold() == [Upto(PARTITION, EPOCH, 2)]


def test_what_is_of_several_partitions_is_everywhere_and_has_not_committed_by_that() -> None:
    streams = opened(B)
    streams.prepare(prepared(1, others=[9]), 10, "a part", 0.0)
    streams.logged(PARTITION, 2)
    streams.stored(*upto(B, 2))
    assert streams.advance() == ([], ["a part"])
    # Those of this partition alone commit by their numbers, over it.
    prepare(streams, 2, "a client")
    streams.prepare(prepared(3, others=[9]), 10, "another part", 0.0)
    streams.logged(PARTITION, 4)
    streams.stored(*upto(B, 4))
    assert streams.advance() == ([Upto(PARTITION, EPOCH, 2)], ["a client", "another part"])
    assert [one.number for one in stream_of(streams).acknowledged()] == [3]


def test_an_end_is_an_item_that_everybody_gets_and_commits_nothing_else() -> None:
    streams = opened(B)
    streams.prepare(prepared(1, others=[9]), 10, None, 0.0)
    for at, record in enumerate(ENDS, 3):
        assert streams.end(PARTITION, EPOCH, record, f"end {at}", 0.0) == at
    before = stream_of(streams).bytes
    assert before == 10 + (2 + len(ENDS)) * ITEM_OVERHEAD
    items = streams.next_items(B.member, 1 << 20)
    assert [item.record for item in items][2:] == ENDS
    streams.logged(PARTITION, 5)
    streams.stored(*upto(B, 4))
    assert streams.advance() == ([], ["end 3", "end 4"])
    assert stream_of(streams).waiting() == ["end 5"]
    streams.stored(*upto(B, 5))
    assert streams.advance() == ([], ["end 5"])
    assert stream_of(streams).bytes == 0


def test_an_end_of_an_epoch_that_is_over_is_no_item() -> None:
    streams = Streams()
    assert streams.end(PARTITION, EPOCH, ENDS[0], None, 0.0) == 0
    streams.open(PARTITION, EPOCH, [B], now=0.0)
    assert streams.end(PARTITION, EPOCH - 1, ENDS[0], None, 0.0) == 0
    assert streams.end(PARTITION, EPOCH + 1, ENDS[0], None, 0.0) == 0
    assert stream_of(streams).end == 1
    streams.close(PARTITION)
    assert streams.end(PARTITION, EPOCH, ENDS[0], None, 0.0) == 0


def test_an_end_is_everywhere_with_the_own_log_if_nobody_else_has_the_partition() -> None:
    streams = opened()
    number = streams.end(PARTITION, EPOCH, ENDS[0], "an end", 0.0)
    assert number == 1
    assert streams.advance() == ([], [])
    streams.logged(PARTITION, number)
    assert streams.advance() == ([], ["an end"])


def test_a_closed_stream_has_those_that_wait_and_takes_nothing_more() -> None:
    streams = opened(B)
    number = prepare(streams, 1, "a client")
    stream = streams.close(PARTITION)
    assert stream is not None
    assert stream.waiting() == ["a client"]
    assert prepare(streams, 2) == 0
    streams.logged(PARTITION, number)
    streams.stored(*upto(B, number))
    assert streams.advance() == ([], [])
    assert streams.members_behind() == []


def test_a_new_epoch_takes_nothing_of_the_one_before() -> None:
    streams = opened(B)
    prepare(streams, 1)
    streams.logged(PARTITION, 2)
    streams.stored(*upto(B, 2))
    streams.advance()
    rows = streams.untold()
    streams.close(PARTITION)
    assert streams.untold() == []
    streams.open(PARTITION, EPOCH + 1, [B], now=2.0)
    assert streams.tell(rows, 2.0) == []
    assert prepare(streams, 2) == 0
    (stream,) = streams
    assert stream.end == 1


def test_a_copy_that_stores_nothing_of_what_there_is_is_late() -> None:
    streams = opened(B)
    (stream,) = streams
    streams.logged(PARTITION, 1)
    streams.stored(*upto(B, 1))
    assert list(stream.late(100.0, 5.0)) == []
    streams.prepare(prepared(1), 10, None, now=100.0)
    assert list(stream.late(104.0, 5.0)) == []
    assert list(stream.late(105.5, 5.0)) == [B]


def test_a_copy_is_late_though_there_is_always_something_new_and_it_repeats_itself() -> None:
    streams = opened(B)
    (stream,) = streams
    streams.stored(*upto(B, 1))  # at 1.0, and that is all
    streams.prepare(prepared(1), 10, None, now=100.0)
    streams.prepare(prepared(2), 10, None, now=104.0)
    streams.stored(B, StoredUpto(PARTITION, BY_TAKEOVER, EPOCH, 1), 104.5)
    assert list(stream.late(105.0, 5.0)) == []
    assert list(stream.late(105.1, 5.0)) == [B]
    streams.stored(B, StoredUpto(PARTITION, BY_TAKEOVER, EPOCH, 2), 106.0)
    assert list(stream.late(111.0, 5.0)) == [], "it has stored something since"
    assert list(stream.late(111.1, 5.0)) == [B]


def test_a_copy_that_was_sent_all_and_has_stored_nothing_is_late_though_there_is_more() -> None:
    streams = opened(B)
    (stream,) = streams
    streams.prepare(prepared(1), 10, None, now=0.0)
    for now in (2.0, 4.0):
        streams.sent(B.member, streams.next_items(B.member, 1 << 20))
        streams.prepare(prepared(int(now)), 10, None, now=now)
    assert list(stream.late(5.1, 5.0)) == [B]


def test_what_is_excused_ends_now_and_no_copy_has_more_time_for_that() -> None:
    streams = opened(B)
    (stream,) = streams
    streams.prepare(prepared(1), 10, None, now=0.0)
    stream.excuse(100.0, 7.0)
    assert list(stream.late(12.0, 5.0)) == []
    assert list(stream.late(12.1, 5.0)) == [B]


def test_a_copy_that_is_waited_for_and_lacks_few_items_has_nearly_all() -> None:
    streams = opened(B)
    (stream,) = streams
    streams.admit(PARTITION, C, 9, 0.0)
    for first in range(1, NEARLY_ITEMS):
        prepare(streams, first)
    assert stream.has_nearly_all(B.member)
    assert not stream.has_nearly_all(C.member), "it is catching up"
    streams.join(PARTITION, C)
    assert stream.has_nearly_all(C.member)
    prepare(streams, NEARLY_ITEMS)
    assert not stream.has_nearly_all(B.member)
    assert not stream.has_nearly_all(A.member)


def test_an_answer_moves_what_is_sent_next_forward_only() -> None:
    streams = opened(B)
    for first in (1, 2, 3):
        prepare(streams, first)
    streams.sent(B.member, streams.next_items(B.member, 1 << 20))
    streams.stored(*upto(B, 2))
    prepare(streams, 4)
    assert numbers(streams.next_items(B.member, 1 << 20)) == [5], "3 and 4 are on their way"
    streams.send_again(B.member)
    streams.stored(*upto(B, 4))  # the answer came over the older connection
    assert numbers(streams.next_items(B.member, 1 << 20)) == [5]


def test_a_message_is_of_bounded_size_though_several_partitions_have_something() -> None:
    streams = opened(B)
    streams.open(PARTITION + 1, EPOCH, [B], now=0.0)
    size = ITEM_OVERHEAD
    found = [(item.partition, item.number) for item in streams.next_items(B.member, size + 1)]
    assert found == [(PARTITION, 1)]
    found = [(item.partition, item.number) for item in streams.next_items(B.member, 2 * size)]
    assert found == [(PARTITION, 1), (PARTITION + 1, 1)]


def test_what_has_committed_stays_so_behind_the_word_about_it() -> None:
    streams = opened(B)
    prepare(streams, 1)
    streams.logged(PARTITION, 2)
    streams.stored(*upto(B, 2))
    streams.advance()
    [(_, number)] = streams.tell(streams.untold(), 1.0)
    streams.logged(PARTITION, number)
    streams.stored(*upto(B, number))
    assert streams.advance() == ([], [])
    (stream,) = streams
    assert (stream.committed, stream.everywhere) == (1, 3)


def test_a_removed_copy_is_sent_nothing_more_and_what_went_to_others_is_not_said_twice() -> None:
    streams = opened(B, C)
    streams.sent(C.member, streams.next_items(C.member, 1 << 20))
    assert streams.members_behind() == [B.member]
    streams.keep(PARTITION, (A, C))
    assert streams.members_behind() == []
    streams.stored(*upto(C, 1))
    streams.send_again(C.member)
    assert streams.members_behind() == [], "it has everything"


def test_what_a_follower_has_acknowledged_is_told_by_update_numbers() -> None:
    streams = opened(B, C)
    prepare(streams, 1)
    streams.prepare(prepared(2, 3), 10, None, 0.0)
    streams.stored(*upto(B, 3))
    streams.stored(*upto(C, 1))
    (stream,) = streams
    assert [tuple(one) for one in stream.acknowledged()] == [
        (B.member, 3, 4),
        (C.member, 3, 0),
    ]


@given(st.lists(st.tuples(st.sampled_from("pbcl"), st.integers(0, 12)), max_size=60))
def test_nothing_commits_that_is_not_durable_here_and_at_every_follower(
    steps: list[tuple[str, int]],
) -> None:
    streams = opened(B, C)
    has = {"b": 0, "c": 0, "own": 1}
    end, committed = 1, 0
    for step, number in steps:
        if step == "p":
            end = prepare(streams, end)
        elif step == "l":
            has["own"] = max(has["own"], min(number, end))
            streams.logged(PARTITION, has["own"])
        else:
            streams.stored(*upto(B if step == "b" else C, number))
            if number <= end:
                has[step] = max(has[step], number)
        rows, _ = streams.advance()
        committed = rows[-1].last if rows else committed
        assert committed == max(min(has.values()) - 1, 0)


# ------------------------------------------------------------------ who is catching up

ADMISSION = 12


def catching_up(*copies: Incarnation, before: int = 1) -> Streams:
    """Return a stream of some copies that C follows behind some prepared transactions."""
    streams = opened(*copies)
    for first in range(1, before + 1):
        prepare(streams, first)
    streams.admit(PARTITION, C, ADMISSION, now=0.0)
    return streams


def by_admission(number: int, copy: Incarnation = C) -> tuple[Incarnation, StoredUpto, float]:
    return copy, StoredUpto(PARTITION, ADMISSION, EPOCH, number), 1.0


def test_an_admitted_copy_is_sent_what_comes_behind_the_last_item() -> None:
    streams = opened(B)
    assert prepare(streams, 1) == 2
    assert streams.admit(PARTITION, C, ADMISSION, now=0.0) == 2
    assert streams.members_behind() == [B.member], "it has everything that it gets by now"
    assert streams.next_items(C.member, 1 << 20) == []
    prepare(streams, 2)
    [item] = streams.next_items(C.member, 1 << 20)
    assert (item.number, item.admission) == (3, ADMISSION)
    assert {one.admission for one in streams.next_items(B.member, 1 << 20)} == {BY_TAKEOVER}
    streams.sent(C.member, [item])
    assert streams.next_items(C.member, 1 << 20) == []
    streams.send_again(C.member)
    assert numbers(streams.next_items(C.member, 1 << 20)) == [3]
    streams.stored(*by_admission(3))
    streams.send_again(C.member)
    assert streams.next_items(C.member, 1 << 20) == []


def test_the_first_copy_of_a_stream_that_nobody_followed_gets_its_first_item() -> None:
    streams = catching_up(before=0)
    assert prepare(streams, 1) == 1
    assert numbers(streams.next_items(C.member, 1 << 20)) == [1]


def test_nothing_waits_for_a_copy_that_does_not_count() -> None:
    streams = catching_up(B)
    number = prepare(streams, 2, "a client")
    streams.logged(PARTITION, number)
    streams.stored(*upto(B, number))
    assert streams.advance() == ([Upto(PARTITION, EPOCH, 2)], ["a client"])


def test_answers_of_a_copy_that_does_not_count_let_nothing_commit() -> None:
    streams = catching_up(B)
    number = prepare(streams, 2, "a client")
    streams.logged(PARTITION, number)
    streams.stored(*by_admission(number))
    assert streams.advance() == ([], [])


def test_what_a_copy_lacks_that_does_not_count_is_kept_and_presses_nobody() -> None:
    streams = catching_up(B)
    (stream,) = streams
    size, opening = 10 + ITEM_OVERHEAD, ITEM_OVERHEAD
    assert (stream.bytes, stream.kept_bytes) == (opening + size, opening + size)
    prepare(streams, 2)
    streams.logged(PARTITION, 3)
    streams.stored(*upto(B, 3))
    streams.advance()
    assert (stream.bytes, stream.kept_bytes) == (0, size), "what is behind its admission"
    assert numbers(streams.next_items(C.member, 1 << 20)) == [3]
    streams.stored(*by_admission(3))
    streams.advance()
    assert (stream.bytes, stream.kept_bytes) == (0, 0)


def test_nobody_waits_for_what_is_everywhere_and_kept_for_who_is_catching_up() -> None:
    streams = catching_up(B)
    number = prepare(streams, 2, "a client")
    prepare(streams, 3, "another one")
    streams.logged(PARTITION, number)
    streams.stored(*upto(B, number))
    assert streams.advance()[1] == ["a client"]
    stream = streams.close(PARTITION)
    assert stream is not None
    assert stream.waiting() == ["another one"]


def test_a_copy_that_joins_is_waited_for_from_then_on() -> None:
    streams = catching_up(B)
    first = prepare(streams, 2, "a client")
    streams.logged(PARTITION, first)
    streams.stored(*upto(B, first))
    assert streams.advance()[1] == ["a client"]
    assert streams.join(PARTITION, C) == first
    second = prepare(streams, 3, "another one")
    streams.logged(PARTITION, second)
    streams.stored(*upto(B, second))
    assert streams.advance() == ([], [])
    streams.stored(*by_admission(first))
    assert streams.advance() == ([], [])
    streams.stored(*by_admission(second))
    assert streams.advance() == ([Upto(PARTITION, EPOCH, 3)], ["another one"])


def test_a_copy_that_joins_takes_nothing_back_that_has_committed() -> None:
    streams = catching_up(B)
    prepare(streams, 2)
    streams.logged(PARTITION, 3)
    streams.stored(*upto(B, 3))
    streams.advance()
    streams.join(PARTITION, C)
    (stream,) = streams
    assert streams.advance() == ([], [])
    assert (stream.everywhere, stream.committed, stream.waiting()) == (3, 2, [])
    assert stream.bytes == 0


def test_what_a_copy_that_was_dropped_lacked_is_kept_no_longer() -> None:
    streams = catching_up(B)
    prepare(streams, 2)
    streams.logged(PARTITION, 3)
    streams.stored(*upto(B, 3))
    streams.advance()
    streams.drop(PARTITION, C)
    assert streams.members_behind() == [B.member]
    streams.advance()
    (stream,) = streams
    assert (stream.kept_bytes, list(stream.followers)) == (0, [B])
    streams.stored(*by_admission(3))
    assert streams.advance() == ([], [])


def test_a_copy_that_is_admitted_anew_follows_behind_the_last_item_again() -> None:
    streams = catching_up(B)
    prepare(streams, 2)
    assert streams.admit(PARTITION, C, ADMISSION + 5, now=0.0) == 3
    assert streams.next_items(C.member, 1 << 20) == []
    streams.stored(*by_admission(3))
    (stream,) = streams
    assert stream.followers[C].stored == 3
    prepare(streams, 3)
    streams.stored(*by_admission(4))
    assert stream.followers[C].stored == 3, "that was of the admission before"
    streams.stored(C, StoredUpto(PARTITION, ADMISSION + 5, EPOCH, 4), 1.0)
    assert stream.followers[C].stored == 4


def test_who_is_kept_by_a_decision_stays_what_it_was() -> None:
    streams = catching_up(B)
    prepare(streams, 2)
    streams.keep(PARTITION, (A, C))
    (stream,) = streams
    assert list(stream.followers) == [C]
    streams.logged(PARTITION, 3)
    assert streams.advance()[0] == [Upto(PARTITION, EPOCH, 2)], "it does not count"
    streams.keep(PARTITION, (A,))
    streams.advance()
    assert (stream.kept_bytes, streams.members_behind()) == (0, [])


def test_with_a_copy_that_is_catching_up_nobody_is_alone_but_for_what_counts() -> None:
    streams = opened()
    assert (streams.alone(PARTITION), streams.counts_alone(PARTITION)) == (True, True)
    streams.admit(PARTITION, C, ADMISSION, now=0.0)
    assert (streams.alone(PARTITION), streams.counts_alone(PARTITION)) == (False, True)
    streams.join(PARTITION, C)
    assert (streams.alone(PARTITION), streams.counts_alone(PARTITION)) == (False, False)
    assert not opened(B).counts_alone(PARTITION)
    assert streams.counts_alone(PARTITION + 1)


def test_what_has_committed_is_told_to_who_is_catching_up() -> None:
    streams = catching_up(before=0)
    prepare(streams, 1)
    streams.logged(PARTITION, 1)
    assert streams.advance()[0] == [Upto(PARTITION, EPOCH, 1)]
    assert streams.tell(streams.untold(), 1.0) == [(PARTITION, 2)]
    assert numbers(streams.next_items(C.member, 1 << 20)) == [1, 2]


@given(st.lists(st.tuples(st.sampled_from("pbcljd"), st.integers(0, 12)), max_size=60))
def test_nothing_commits_that_lacks_a_copy_that_counts_and_nothing_goes_that_one_lacks(
    steps: list[tuple[str, int]],
) -> None:
    streams = catching_up(B, before=0)
    has = {"b": 0, "c": 1, "own": 1}
    end, committed, everywhere = 1, 0, 0
    counts, follows = False, True
    for step, number in steps:
        if step == "p":
            end = prepare(streams, end)
        elif step == "l":
            has["own"] = max(has["own"], min(number, end))
            streams.logged(PARTITION, has["own"])
        elif step == "j":
            if follows and not counts:
                counts = True
                assert streams.join(PARTITION, C) == end
        elif step == "d":
            if follows and not counts:
                streams.drop(PARTITION, C)
                follows = False
        else:
            streams.stored(*(upto(B, number) if step == "b" else by_admission(number)))
            if number <= end:
                has[step] = max(has[step], number)
        rows, _ = streams.advance()
        committed = rows[-1].last if rows else committed
        waited_for = [has["own"], has["b"], *([has["c"]] if counts else [])]
        everywhere = max(everywhere, min(waited_for))
        (stream,) = streams
        assert (stream.everywhere, committed) == (everywhere, max(everywhere - 1, 0))
        kept = end - min(everywhere, has["b"], has["c"] if follows else end)
        sizes = [10 + ITEM_OVERHEAD] * (end - 1) + [ITEM_OVERHEAD]
        assert stream.kept_bytes == sum(sizes[:kept])
        assert stream.bytes == sum(sizes[: end - everywhere])


# ------------------------------------------------------------------ what a copy takes


def item(number: int, **changed: int) -> Item:
    fields = {"partition": PARTITION, "admission": BY_TAKEOVER, "epoch": EPOCH} | changed
    return Item(**fields, number=number, record=prepared(number))


def following() -> Following:
    place = Following(PARTITION, EPOCH, A)
    place.listed = True
    return place


def test_a_copy_takes_items_in_order_and_each_once() -> None:
    place = following()
    assert [place.take(item(n), A) for n in (1, 3, 2, 2, 1, 3)] == [
        "new", "foreign", "new", "again", "again", "new",
    ]  # fmt: skip


@pytest.mark.parametrize("changed", [{"epoch": EPOCH - 1}, {"epoch": EPOCH + 1}, {"admission": 5}])
def test_a_copy_takes_nothing_of_another_epoch_or_admission(changed: dict[str, int]) -> None:
    assert following().take(item(1, **changed), A) == "foreign"


def test_a_copy_takes_nothing_of_somebody_who_is_not_the_author() -> None:
    assert following().take(item(1), B) == "foreign"
    assert following().take(item(1), Incarnation(A.member, A.boot + 1)) == "foreign"


def test_a_copy_takes_nothing_before_it_has_the_list() -> None:
    assert Following(PARTITION, EPOCH, A).take(item(1), A) == "foreign"


def test_an_admitted_copy_takes_items_behind_its_admission_and_of_that_one() -> None:
    assert not following().is_admitted
    place = Following(PARTITION, EPOCH, A)
    place.admit(ADMISSION, 4)
    assert place.is_admitted
    assert (place.taken, place.logged, place.durable) == (4, 4, 4)
    assert (place.pieces, place.supplied) == (0, -1), "its ADMIT is not durable"
    found = [place.take(item(n, admission=ADMISSION), A) for n in (4, 6, 5, 6)]
    assert found == ["again", "foreign", "new", "new"]
    assert place.take(item(7), A) == "foreign"


def test_commits_of_one_message_are_one_record_behind_all_others() -> None:
    def at(number: int, record: object) -> Item:
        return Item(PARTITION, BY_TAKEOVER, EPOCH, number, record)  # type: ignore[arg-type]

    rollback = RollbackRecord(tx_id=bytes(16), time=1, reason="", runs=(Run(4, 7, 3, 1),))
    records = in_order(
        [
            at(1, OpenRecord(rows=((4, 7),))),  # type: ignore[arg-type]
            at(2, prepared(1)),
            at(3, CommitUptoRecord(rows=(Upto(4, 7, 1),))),
            at(4, prepared(2)),
            at(5, rollback),
            at(6, CommitUptoRecord(rows=(Upto(4, 7, 2),))),
            at(7, ENDS[0]),
            at(8, ENDS[2]),
        ]
    )
    assert records[1:] == [
        prepared(1),
        prepared(2),
        rollback,
        ENDS[0],
        ENDS[2],
        CommitUptoRecord(rows=(Upto(4, 7, 2),)),
    ]
