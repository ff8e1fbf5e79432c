"""What is asked of the logs of copies, and what these lend, on the wire."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, strategies as st

from support.messages import messages_of
from tidelog.checkpoints.supplying import FoundNumbers
from tidelog.engine.net.frames import KNOWN, FrameDecoder, FrameError, Message, frame, pack_message
from tidelog.engine.net.kinds import BY_NAME, DATA, checked_message
from tidelog.engine.replication.lent import (
    KeptNumbers,
    Lent,
    Loan,
    OpenPlace,
    lend_message,
    lent_message,
    lent_of,
    loan_of,
    reach_asked,
    reach_message,
    reached_message,
    reached_of,
)
from tidelog.tx.counter import COUNTER_MAX
from tidelog.wal.records import (
    ClearRecord,
    Closed,
    Columns,
    Run,
    Supplied,
    SuppliedRecord,
    encode_record,
)

SOURCE = UUID(int=1).bytes
HERE, THERE = OpenPlace(4, 2), OpenPlace(5, 1)
COLUMNS = Columns(16, [b"a", b"b"], [b"v", None])
FOUND = FoundNumbers(
    transactions=[Supplied(bytes(16), 1, Run(4, 1, 7, 2), 5, COLUMNS)],
    closed=[Closed(2, 11, 1, "gap")],
    lacking=[(1, 3), (5, 5)],
    not_yet=[(12, 14)],
)  # fmt: skip
NOTHING = FoundNumbers(transactions=[], closed=[], lacking=[], not_yet=[])
READERS: dict[str, Callable[[Message], object]] = {
    "reach": reach_asked, "reached": reached_of, "lend": loan_of, "lent": lent_of,
}  # fmt: skip


def arrived(message: Message) -> Message:
    """A message behind its way over the wire."""
    [found] = FrameDecoder(KNOWN).feed(frame([pack_message(message)]))
    return checked_message(found, DATA)


def test_who_is_asked_for_how_far_its_log_reaches_hears_which_partitions_are_meant() -> None:
    for places in ([HERE, THERE], []):
        assert reach_asked(arrived(reach_message(3, places))) == (3, places)


def test_how_far_a_log_reaches_arrives_as_it_was_sent() -> None:
    rows = {4: KeptNumbers(7, [(8, 9), (11, 11)]), 5: KeptNumbers(1, [])}
    assert reached_of(arrived(reached_message(3, rows))) == (3, rows)


@pytest.mark.parametrize(
    "loan", [Loan(3, 1, {HERE: [(1, 3), (7, 7)], THERE: [(2, 2)]}), Loan(3, 2, {}), Loan(0, 0, {})]
)
def test_what_is_to_be_lent_arrives_as_it_was_sent(loan: Loan) -> None:
    assert loan_of(arrived(lend_message(loan))) == loan


@pytest.mark.parametrize("more", [False, True])
def test_what_is_lent_arrives_as_it_was_sent(more: bool) -> None:
    lent = Lent(3, 1, {4: FOUND, 5: NOTHING}, more)
    assert lent_of(arrived(lent_message(lent, SOURCE))) == lent


def supplied(**more: Any) -> bytes:
    fields: dict[str, Any] = {
        "partition": 4, "admission": 0, "source": SOURCE, "transactions": (), "closed": (), **more,
    }  # fmt: skip
    return encode_record(SuppliedRecord(**fields))


def lent_with(record: bytes) -> Message:
    return BY_NAME["lent"].message(1, 1, [record], [[]], [[]], False)


def run_of(*run: int) -> bytes:
    columns = Columns(16, [b"a"] * run[3], [b"v"] * run[3])
    return supplied(transactions=(Supplied(bytes(16), 1, Run(*run), 5, columns),))


@pytest.mark.parametrize(
    "message",
    [
        BY_NAME["reach"].message(-1, [], []),
        BY_NAME["reach"].message(1, [4], [1, 2]),
        BY_NAME["reached"].message(1, [4], [-1], [[]]),
        BY_NAME["reached"].message(1, [4], [1], [[3]]),
        BY_NAME["reached"].message(1, [4], [1], [[3, 2]]),
        BY_NAME["reached"].message(1, [4], [1], [[1, 3, 3, 5]]),
        BY_NAME["reached"].message(1, [4], [1], [[0, 3]]),
        BY_NAME["reached"].message(1, [4], [1], [[1.5, 3]]),
        BY_NAME["lend"].message(1, 1, [4], [1], [[1, COUNTER_MAX + 1]]),
        BY_NAME["lend"].message(1, 1, [4], [1], [["a", "b"]]),
        BY_NAME["lend"].message(1, 1, [4, 5], [1, 1], [[1, 2]]),
        BY_NAME["lent"].message(1, 1, [supplied()], [], [[]], False),
        lent_with(b""),
        lent_with(b"junk"),
        lent_with(supplied() * 2),
        lent_with(encode_record(ClearRecord(partition=4, admission=1, reason=""))),
        lent_with(supplied(closed=(Closed(1, 0, 1, ""),))),
        lent_with(supplied(closed=(Closed(1, COUNTER_MAX, 2, ""),))),
        lent_with(run_of(5, 1, 1, 1)),
        lent_with(run_of(4, 1, 1, 0)),
        lent_with(run_of(4, 1, COUNTER_MAX, 2)),
    ],
)
def test_what_cannot_be_is_refused(message: Message) -> None:
    name = next(
        kind.name for kind in map(BY_NAME.get, READERS) if kind and kind.number == message[0]
    )
    with pytest.raises(FrameError, match=f"^{name}: "):
        READERS[name](message)


def test_a_run_of_the_partition_that_is_lent_is_none_of_these() -> None:
    found = lent_of(lent_with(run_of(4, 1, COUNTER_MAX, 1))).found
    assert [one.run for one in found[4].transactions] == [Run(4, 1, COUNTER_MAX, 1)]


@pytest.mark.slow
@given(st.data())
def test_any_message_is_read_or_refused(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(sorted(READERS)))
    message = data.draw(messages_of(BY_NAME[kind]))
    with suppress(FrameError):
        READERS[kind](message)
