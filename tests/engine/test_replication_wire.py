"""What copies tell each other arrives as it was told, and nonsense ends the connection."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, strategies as st

from support.messages import messages_of
from tidelog.affinity.partitions import one_space
from tidelog.affinity.topology import Incarnation
from tidelog.checkpoints.copies import CopyState
from tidelog.checkpoints.replay import State
from tidelog.engine.net.frames import KNOWN, FrameDecoder, FrameError, Message, frame, pack_message
from tidelog.engine.net.kinds import BY_NAME, DATA, checked_message
from tidelog.engine.replication.reports import (
    Acknowledged,
    CommittedHere,
    PreparedHere,
    Report,
    RolledBackHere,
    epochs_of,
    report_message,
    report_of,
    reports_of,
    settle_message,
    settle_stored_message,
    settles_of,
)
from tidelog.engine.replication.stream import (
    Item,
    StoredUpto,
    replicate_message,
    replicated_of,
    stored_message,
    stored_of,
)
from tidelog.tx.counter import COUNTER_MAX
from tidelog.wal.records import (
    Closed,
    Columns,
    CommitRecord,
    Committed,
    CommitUptoRecord,
    Opened,
    OpenRecord,
    OutcomesRecord,
    Participant,
    PrepareRecord,
    RollbackRecord,
    Run,
    Settled,
    SettledOutcome,
    SettleRecord,
    Upto,
)

ADA, BOB = UUID(int=1), UUID(int=2)
COPY = Incarnation(ADA, 3)
TX, OTHER = b"a transaction's "[:16], b"another one's id"
NOBODY = bytes(16)


def arrived(message: Message) -> Message:
    """A message behind its way over the wire."""
    [found] = FrameDecoder(KNOWN).feed(frame([pack_message(message)]))
    return checked_message(found, DATA)


def prepare(partition: int, epoch: int, first: int, *others: int, count: int = 1) -> PrepareRecord:
    return PrepareRecord(
        tx_id=TX,
        attempt=1,
        near=(BOB.bytes, 7),
        time=5,
        home=partition,
        participants=(
            Participant(partition, epoch, count),
            *(Participant(other, 1, 1) for other in others),
        ),
        run=Run(partition, epoch, first, count),
        namespaces=16,
        keys=[b"key%d" % n for n in range(count)],
        values=[b"value", None][:count] if count < 3 else [b"v"] * count,
        locks=[(16, b"read")],
        details={"tag": "t"},
    )


LIST = SettleRecord(
    partition=4,
    epoch=3,
    start=12,
    transactions=(
        Settled(TX, 1, Run(4, 2, 9, 2), SettledOutcome.COMMITTED, 6, None),
        Settled(
            OTHER, 2, Run(4, 2, 11, 1), SettledOutcome.COMMITTED, 6, Columns(16, [b"k"], [None])
        ),
        Settled(OTHER, 1, Run(4, 1, 8, 1), SettledOutcome.PENDING, 0, None),
    ),
    closed=(Closed(1, 7, 1, "gap"),),
    epochs=((1, 1), (2, 9)),
)
FULL = Report(
    copy=COPY,
    partition=4,
    epoch=5,
    lwm=6,
    ranges=((8, 2), (11, 1)),
    hwm=14,
    epochs=((1, 1), (2, 9)),
    pending=(
        PreparedHere(TX, 1, Run(4, 1, 7, 1), 5, 1),
        PreparedHere(OTHER, 2, Run(4, 2, 13, 2), 7, 3),
    ),
    rolled_back=(RolledBackHere(NOBODY, 1, Run(4, 2, 9, 1)),),
    committed=(CommittedHere(OTHER, 1, Run(4, 2, 12, 1), 6),),
    bound=LIST,
    acknowledged=(Acknowledged(BOB, 4, 13), Acknowledged(ADA, 1, 0)),
    state=CopyState.MOVING,
)
EMPTY = Report(copy=COPY, partition=0, epoch=1, lwm=0, ranges=(), hwm=0, epochs=((1, 1),))

ITEMS = [
    Item(4, 9, 2, 1, prepare(4, 2, 13, 6, count=2)),
    Item(5, 9, 1, 2, prepare(5, 1, 1)),
    Item(
        4, 9, 2, 2,
        CommitRecord(tx_id=TX, attempt=1, time=8, participants=(Run(4, 2, 13, 2), Run(6, 1, 3, 1)),
                     applied=(4,)),
    ),
    Item(5, 9, 1, 3, CommitUptoRecord(rows=(Upto(5, 1, 1),))),
    Item(4, 9, 2, 3, RollbackRecord(tx_id=OTHER, time=8, reason="told", runs=(Run(4, 1, 8, 1),))),
    Item(
        4, 9, 2, 4,
        OutcomesRecord(
            partition=4,
            committed=(
                Committed(TX, 1, (BOB.bytes, 7), 8, Run(4, 2, 13, 2),
                          (Participant(4, 2, 2), Participant(6, 1, 1))),
            ),
            forgotten=(OTHER,),
        ),
    ),
    Item(4, 9, 2, 5, OutcomesRecord(partition=4)),
]  # fmt: skip


def test_reports_arrive_as_they_were_sent() -> None:
    for reports in ([FULL, EMPTY], [EMPTY], []):
        assert reports_of(arrived(report_message(reports)), COPY) == reports


def test_settle_lists_arrive_as_they_were_sent() -> None:
    for lists in ([LIST, replace(LIST, partition=7, epochs=(), transactions=())], []):
        assert settles_of(arrived(settle_message(lists))) == lists


def test_epochs_arrive_as_they_were_sent() -> None:
    for rows in ([Opened(4, 3), Opened(9, 1)], []):
        assert epochs_of(arrived(settle_stored_message(rows))) == rows


def test_items_of_streams_arrive_as_they_were_sent() -> None:
    assert replicated_of(arrived(replicate_message(ITEMS))) == ITEMS
    assert replicated_of(arrived(replicate_message([]))) == []


@pytest.mark.parametrize(
    ("locks", "details"),
    [(None, {}), (None, {"tag": "t"}), ([(16, b"read")], {}), ([(16, b"read")], {"tag": "t"})],
)
def test_a_prepare_of_one_group_arrives_with_all_that_it_has(
    locks: list[tuple[int, bytes]] | None, details: dict[str, Any]
) -> None:
    record = prepare(5, 1, COUNTER_MAX)._replace(locks=locks, details=details)
    items = [Item(5, 9, 1, 2, record)]
    assert replicated_of(arrived(replicate_message(items))) == items


def test_a_prepare_of_one_group_has_its_home_in_a_partition() -> None:
    record = prepare(5, 1, 1)._replace(locks=None, details={}, home=-1)
    with pytest.raises(FrameError, match="not numbers of 63 bits"):
        replicated_of(replicate_message([Item(5, 9, 1, 2, record)]))


def test_how_far_a_copy_has_streams_arrives_as_it_was_sent() -> None:
    for rows in ([StoredUpto(4, 9, 2, 3), StoredUpto(5, 9, 1, 0)], []):
        assert stored_of(arrived(stored_message(rows))) == rows


def test_a_report_is_what_the_fold_has() -> None:
    state = State(b"s" * 16, one_space(8))
    first = SettleRecord(partition=4, epoch=1, start=1, transactions=(), closed=())
    state.apply(1, first)
    state.apply(2, OpenRecord(rows=(Opened(4, 1),)))
    pending = prepare(4, 1, 1, 6)._replace(tx_id=OTHER)
    state.apply(3, pending)
    state.apply(4, prepare(4, 1, 2))
    state.apply(5, RollbackRecord(tx_id=TX, time=6, reason="told", runs=(Run(4, 1, 2, 1),)))
    state.apply(6, prepare(4, 1, 3, 6))
    runs = (Run(4, 1, 3, 1), Run(6, 1, 1, 1))
    commit = CommitRecord(tx_id=TX, attempt=1, time=9, participants=runs, applied=(4,))
    listed = replace(first, epoch=2, start=4)
    state.apply(7, listed)
    assert report_of(state, 4, copy=COPY, epoch=3, acknowledged=[Acknowledged(BOB, 1, 2)]) == (
        Report(
            copy=COPY,
            partition=4,
            epoch=3,
            lwm=0,
            ranges=((1, 1),),
            hwm=3,
            epochs=((1, 1),),
            pending=(
                PreparedHere(OTHER, 1, Run(4, 1, 1, 1), 5, 2),
                PreparedHere(TX, 1, Run(4, 1, 3, 1), 5, 2),
            ),
            rolled_back=(RolledBackHere(TX, 1, Run(4, 1, 2, 1)),),
            bound=listed,
            acknowledged=(Acknowledged(BOB, 1, 2),),
        )
    )
    state.apply(8, commit)
    found = report_of(state, 4, copy=COPY, epoch=3)
    # What was prepared behind the end of another has committed: every copy has that end.
    assert found.rolled_back == ()
    assert found.committed == (CommittedHere(TX, 1, Run(4, 1, 3, 1), 9),)
    assert report_of(state, 5, copy=COPY, epoch=3) == replace(EMPTY, partition=5, epoch=3)


@pytest.mark.parametrize("copy_state", list(CopyState))
def test_a_report_says_what_its_copy_is_good_for(copy_state: CopyState) -> None:
    state = State(b"s" * 16, one_space(8))
    state.copies.states[0] = copy_state
    report = report_of(state, 0, copy=COPY, epoch=1)
    assert report == replace(EMPTY, state=copy_state)
    assert reports_of(arrived(report_message([report])), COPY) == [report]


# ------------------------------------------------------------------ nonsense


def report_with(name: str, value: Any) -> Message:
    """A message of one report in which one field is another one."""
    message = report_message([FULL])
    names = [field.name for field in BY_NAME["report"].fields]
    message[1 + names.index(name)] = [value]
    return message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("partitions", 5),  # the list is of another one
        ("partitions", -1),
        ("epochs", -1),
        ("lwms", 1 << 63),
        ("lwms", 8),  # the first range touches it
        ("hwms", 11),  # below the last range
        ("ranges", [8]),
        ("ranges", [8, 0]),
        ("ranges", [8, 2, 10, 1]),
        ("epoch_tables", []),
        ("epoch_tables", [1, 1, 1, 9]),
        ("epoch_tables", [1, 1, 2, 1]),
        ("epoch_tables", [b"", 1]),
        ("pending", [TX, 1, 1, 7, 1, 5]),
        ("pending", [b"short", 1, 1, 7, 1, 5, 1]),
        ("pending", [TX, 1, 1, 0, 1, 5, 1]),
        ("pending", [TX, 1, 1, 7, 0, 5, 1]),
        ("pending", [TX, 1, 1, 7, 1, 5, 0]),
        ("pending", [TX, 1, 1, (1 << 63) - 1, 2, 5, 1]),
        ("rolled_back", [TX, 1, 1, 7]),
        ("rolled_back", [TX, None, 1, 7, 1]),
        ("committed", [TX, 1, 1, 7, 1, -1]),
        ("bound", []),
        ("bound", [4, 3, 12, [[TX, 1, [4, 2, 9], 1, 6, None]], []]),
        ("bound", "no list"),
        ("acknowledged", [BOB.bytes, 4]),
        ("acknowledged", [BOB.bytes[:15], 4, 1]),
        ("states", 4),
        ("states", -1),
    ],
)
def test_a_report_that_cannot_be_is_refused(name: str, value: Any) -> None:
    with pytest.raises(FrameError, match=r"^report: "):
        reports_of(report_with(name, value), COPY)


def test_columns_of_different_lengths_are_refused() -> None:
    for message in (
        report_message([FULL, EMPTY]),
        settle_message([LIST]),
        settle_stored_message([Opened(1, 1)]),
        replicate_message(ITEMS),
        stored_message([StoredUpto(4, 9, 2, 3)]),
    ):
        message[2] = [*message[2], 1]
        reader = READERS[message[0]]
        with pytest.raises(FrameError):
            reader(message)


def items_with(name: str, value: Any, at: int = 0) -> Message:
    """A message of the items in which one field is another one."""
    message = replicate_message(ITEMS)
    names = [field.name for field in BY_NAME["replicate"].fields]
    column = 1 + names.index(name)
    message[column] = [*message[column][:at], value, *message[column][at + 1 :]]
    return message


def test_the_fields_of_items_stand_where_these_tests_say() -> None:
    assert replicated_of(items_with("times", 5)) == ITEMS
    assert replicated_of(items_with("values", b"other"))[0] != ITEMS[0]


@pytest.mark.parametrize(
    ("name", "value", "at", "text"),
    [
        ("partitions", 5, 0, "does not take part as prepared"),
        ("partitions", -1, 1, "not numbers of 63 bits"),
        ("numbers", 1 << 63, 0, "not numbers of 63 bits"),
        ("epochs", 3, 0, "in the stream of epoch 3"),
        ("run_epochs", 1, 0, "in the stream of epoch 2"),
        ("firsts", 0, 0, "2 numbers from 0 on"),
        ("firsts", (1 << 63) - 1, 0, "2 numbers from"),
        ("counts", 0, 1, "0 numbers from 1 on"),
        ("counts", 3, 0, "does not take part"),
        ("counts", 4, 0, "in the stream of epoch 2"),
        ("counts", 1, 0, "does not take part"),
        ("counts", 1, 2, "which is not of its transaction"),
        ("types", 1, 2, "a record of type 1"),
        ("types", 2, 2, "3 PREPAREs, and fields of 2"),
        ("types", 4, 3, "not a text"),
        ("txs", b"short", 0, "an id that has not 16 bytes"),
        ("nears", b"short", 0, "an id that has not 16 bytes"),
        ("attempts", -1, 0, "not numbers of 63 bits"),
        ("times", -1, 0, "not numbers of 63 bits"),
        ("more", 7, 0, "cannot unpack"),
        ("more", [[4, 2, 2], None, "text"], 0, "are not details"),
        ("more", "text", 2, "groups of 4|unsupported|not supported"),
        ("more", None, 4, "not a text"),
        ("more", None, 5, "not subscriptable"),
        ("more", [5, [], []], 5, "OUTCOMES of partition 5"),
        ("partitions", 5, 6, "OUTCOMES of partition 4"),
        ("more", [4, [[TX, 1]], []], 5, "unpack"),
        ("more", [4, [], [b"short"]], 6, "not an id"),
        ("namespaces", "text", 0, "are not namespaces of 2 updates"),
        ("namespaces", [16], 0, "are not namespaces of 2 updates"),
        ("namespaces", [16, b""], 0, "are not namespaces of 2 updates"),
        ("values", 7, 0, "a value that is not bytes"),
        ("values", b"", 9, "3 keys and 4 values"),
    ],
)  # fmt: skip
def test_an_item_that_cannot_be_is_refused(name: str, value: Any, at: int, text: str) -> None:
    with pytest.raises(FrameError, match=f"^replicate: .*({text})"):
        replicated_of(items_with(name, value, at))


def test_updates_without_a_prepare_are_refused() -> None:
    message = replicate_message(ITEMS)
    message[-2], message[-1] = [*message[-2], b"k"], [*message[-1], b"v"]
    with pytest.raises(FrameError, match="updates without a PREPARE"):
        replicated_of(message)


def test_a_place_of_a_stream_that_cannot_be_is_refused() -> None:
    with pytest.raises(FrameError, match="not numbers of 63 bits"):
        stored_of(stored_message([StoredUpto(1 << 63, 1, 1, 1)]))


READERS: dict[int, Callable[[Message], object]] = {
    70: replicated_of,
    71: stored_of,
    72: lambda message: reports_of(message, COPY),
    73: settles_of,
    74: epochs_of,
    75: epochs_of,
}


@pytest.mark.slow
@given(st.data())
def test_any_message_is_read_or_refused(data: st.DataObject) -> None:
    number = data.draw(st.sampled_from(sorted(READERS)))
    kind = next(kind for kind in BY_NAME.values() if kind.number == number)
    message = data.draw(messages_of(kind))
    with suppress(FrameError):
        READERS[number](message)
