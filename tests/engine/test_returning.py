"""What a copy that comes back and its primary say arrives as it was said, or is refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, strategies as st

from support.messages import messages_of
from tidelog.engine.data.full_pairs import PackedPairs, PairTally
from tidelog.engine.net.frames import KNOWN, FrameDecoder, FrameError, Message, frame, pack_message
from tidelog.engine.net.kinds import BY_NAME, DATA, checked_message
from tidelog.engine.replication.returning import (
    DIGEST_BYTES,
    Admitted,
    Demanded,
    FillEnd,
    FillPiece,
    ReturnPlace,
    SupplyPiece,
    admit_message,
    admitted_of,
    demand_message,
    demanded_of,
    fill_message,
    fill_of,
    supply_message,
    supply_pieces_of,
)
from tidelog.rebalance.choosing import SupplyKind
from tidelog.tx.counter import COUNTER_MAX
from tidelog.wal.records import (
    AdmitRecord,
    ClearRecord,
    Closed,
    Columns,
    Committed,
    OutcomesRecord,
    Participant,
    PrepareRecord,
    Run,
    Supplied,
    SuppliedRecord,
    encode_record,
)

TX, SOURCE = b"a transaction's "[:16], UUID(int=1).bytes
HERE, THERE = ReturnPlace(4, 2, 9), ReturnPlace(5, 1, 9)


def prepare(first: int) -> PrepareRecord:
    return PrepareRecord(
        tx_id=first.to_bytes(16, "big"), attempt=1, near=(SOURCE, 7), time=5, home=4,
        participants=(Participant(4, 2, 1), Participant(6, 1, 1)), run=Run(4, 2, first, 1),
        namespaces=16, keys=[b"k"], values=[None],
    )  # fmt: skip


ADMIT = AdmitRecord(
    partition=4, admission=9, epochs=((1, 1), (2, 9)), lwm=6, ranges=((8, 2),), hwm=14,
    dropped=(TX,),
)  # fmt: skip
SUPPLIED = SuppliedRecord(
    partition=4,
    admission=9,
    source=SOURCE,
    transactions=(Supplied(TX, 1, Run(4, 1, 7, 2), 5, Columns(16, [b"a", b"b"], [b"v", None])),),
    closed=(Closed(2, 11, 1, "gap"),),
)
OUTCOMES = OutcomesRecord(
    partition=4, committed=(Committed(TX, 1, (SOURCE, 7), 5, Run(4, 2, 3, 1), prepare(3)[5]),)
)
BY_HISTORY = Admitted(
    place=HERE,
    kind=SupplyKind.HISTORICAL,
    begin=3,
    record=ADMIT,
    pending=(prepare(12), prepare(13)),
    outcomes=(OUTCOMES, OUTCOMES),
)
IN_FULL = Admitted(place=THERE, kind=SupplyKind.FULL)
PIECE = SupplyPiece(HERE, 1, False, SUPPLIED)
LAST = SupplyPiece(
    THERE, 2, True, replace(SUPPLIED, partition=5, transactions=(), closed=()), b"d" * DIGEST_BYTES
)
PAIRS = FillPiece(HERE, 1, PackedPairs(b"lengths", b"keys and values"))
END = FillPiece(HERE, 2, PackedPairs(b"", b""), FillEnd(ADMIT, PairTally(7, 2, 1 << 199)))


def arrived(message: Message) -> Message:
    """A message behind its way over the wire."""
    [found] = FrameDecoder(KNOWN).feed(frame([pack_message(message)]))
    return checked_message(found, DATA)


@pytest.mark.parametrize(
    "rows",
    [
        [BY_HISTORY, IN_FULL],
        [replace(BY_HISTORY, kind=SupplyKind.NONE, pending=(), outcomes=())],
        [],
    ],
)
def test_how_copies_are_admitted_arrives_as_it_was_sent(rows: Sequence[Admitted]) -> None:
    assert admitted_of(arrived(admit_message(rows))) == rows


@pytest.mark.parametrize("rows", [[Demanded(HERE, 0), Demanded(THERE, 7)], []])
def test_what_a_copy_demands_arrives_as_it_was_sent(rows: Sequence[Demanded]) -> None:
    assert demanded_of(arrived(demand_message(rows))) == rows


@pytest.mark.parametrize("pieces", [[PIECE, LAST], []])
def test_pieces_of_history_arrive_as_they_were_sent(pieces: Sequence[SupplyPiece]) -> None:
    found = supply_pieces_of(arrived(supply_message(pieces)))
    assert found == pieces
    assert [type(piece.last) for piece in found] == [bool] * len(pieces)


@pytest.mark.parametrize("piece", [PAIRS, END])
def test_pieces_of_a_full_copy_arrive_as_they_were_sent(piece: FillPiece) -> None:
    assert fill_of(arrived(fill_message(piece))) == piece


# ------------------------------------------------------------------ nonsense

READERS: dict[str, Callable[[Message], object]] = {
    "admit": admitted_of,
    "demand": demanded_of,
    "supply": supply_pieces_of,
    "pairs": fill_of,
}
MESSAGES: dict[str, Callable[[], Message]] = {
    "admit": lambda: admit_message([BY_HISTORY]),
    "demand": lambda: demand_message([Demanded(HERE, 1)]),
    "supply": lambda: supply_message([PIECE]),
    "pairs": lambda: fill_message(PAIRS),
}
PREPARED, CLEAR = prepare(12), ClearRecord(partition=4, admission=9, reason="told")
WRONG_RECORDS = [
    b"no record",
    encode_record(CLEAR),
    encode_record(ADMIT)[:-1],
]


def altered(kind: str, name: str, value: Any) -> Message:
    """A message in which one field is another one."""
    message = MESSAGES[kind]()
    at = 1 + [field.name for field in BY_NAME[kind].fields].index(name)
    message[at] = [value] if kind != "pairs" else value
    return message


def refused(kind: str, message: Message) -> str:
    """Return why a message is refused."""
    checked_message(message, DATA)
    with pytest.raises(FrameError, match=f"^{kind}: ") as caught:
        READERS[kind](message)
    return str(caught.value)


@pytest.mark.parametrize("kind", READERS)
def test_a_number_below_0_is_refused(kind: str) -> None:
    for field in BY_NAME[kind].fields:
        if field.type_name.startswith("int") and field.name != "lasts":
            assert "not a number from 0 on" in refused(kind, altered(kind, field.name, -1))


@pytest.mark.parametrize("kind", ["admit", "demand", "supply"])
def test_columns_of_different_lengths_are_refused(kind: str) -> None:
    for at in range(1, len(BY_NAME[kind].fields) + 1):
        message = MESSAGES[kind]()
        message[at] = [*message[at], *message[at]]
        assert refused(kind, message)


@pytest.mark.parametrize(
    "records",
    [
        *WRONG_RECORDS,
        encode_record(PREPARED),
        encode_record(ADMIT) + encode_record(ADMIT),
        encode_record(ADMIT) + encode_record(PREPARED) + encode_record(CLEAR),
    ],
)
def test_an_admission_with_other_records_is_refused(records: bytes) -> None:
    assert refused("admit", altered("admit", "records", records))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"partition": 5}, "an ADMIT of partition 5"),
        ({"admission": 8}, "an ADMIT of partition 4"),
        ({"ranges": ((6, 2),)}, r"a range \(6, 2\) at 6"),
        ({"ranges": ((8, 2), (9, 1))}, r"a range \(9, 1\) at 10"),
        ({"ranges": ((8, 2), (10, 1))}, r"a range \(10, 1\) at 10"),
        ({"hwm": 9}, "HWM 9 with number 10 applied"),
        ({"hwm": COUNTER_MAX + 1}, "HWM 9223372036854775808 with number 10 applied"),
        ({"epochs": ((1, 1), (1, 9))}, "epoch"),
    ],
)
def test_an_admission_of_which_no_counter_can_be_made_is_refused(
    changes: dict[str, Any], why: str
) -> None:
    record = encode_record(replace(ADMIT, **changes))
    for said in (
        refused("admit", altered("admit", "records", record)),
        refused("pairs", ended("record", record)),
    ):
        assert re.search(why, said)


def elsewhere(*run: int) -> PrepareRecord:
    """What is pending at another place than the one that is spoken of."""
    return prepare(12)._replace(run=Run(*run), participants=(Participant(run[0], run[1], run[3]),))


@pytest.mark.parametrize(
    ("records", "why"),
    [
        ((elsewhere(5, 2, 12, 1),), "is not of partition 4"),
        ((elsewhere(4, 1, 12, 1),), "is pending in another epoch"),
        ((elsewhere(4, 2, 8, 1),), "is pending in another epoch"),
        ((replace(OUTCOMES, partition=5, committed=()),), "outcomes of another partition"),
    ],
)
def test_what_comes_with_an_admission_is_of_its_partition_and_its_epochs(
    records: tuple[Any, ...], why: str
) -> None:
    payload = b"".join(map(encode_record, (ADMIT, *records)))
    assert why in refused("admit", altered("admit", "records", payload))


@pytest.mark.parametrize(
    "changes",
    [
        {"transactions": (SUPPLIED.transactions[0]._replace(run=Run(5, 1, 7, 2)),)},
        {"transactions": (SUPPLIED.transactions[0]._replace(run=Run(4, 1, 0, 2)),)},
        {"closed": (Closed(2, 0, 1, "gap"),)},
        {"closed": (Closed(0, 11, 1, "gap"),)},
        {"closed": (Closed(2, COUNTER_MAX, 2, "gap"),)},
    ],
)
def test_a_piece_of_history_has_numbers_that_there_may_be_and_of_its_partition(
    changes: dict[str, Any],
) -> None:
    record = encode_record(replace(SUPPLIED, **changes))
    said = refused("supply", altered("supply", "records", record))
    assert "is not of partition 4, or not of its numbers" in said


def test_the_last_number_that_there_may_be_is_none_too_many() -> None:
    last = replace(SUPPLIED, closed=(Closed(2, COUNTER_MAX, 1, "gap"),))
    pieces = [PIECE._replace(record=last)]
    assert supply_pieces_of(arrived(supply_message(pieces))) == pieces
    assert demanded_of(arrived(demand_message([Demanded(HERE, COUNTER_MAX)])))
    said = refused("demand", demand_message([Demanded(HERE, COUNTER_MAX + 1)]))
    assert "is not a number of 63 bits" in said


def test_a_way_to_come_back_that_nobody_knows_is_refused() -> None:
    assert "by pigeon" in refused("admit", altered("admit", "plans", "by pigeon"))


@pytest.mark.parametrize(
    "record", [*WRONG_RECORDS, b"", encode_record(ADMIT), encode_record(SUPPLIED) * 2]
)
def test_a_piece_of_history_that_is_not_one_record_of_its_type_is_refused(record: bytes) -> None:
    assert refused("supply", altered("supply", "records", record))


@pytest.mark.parametrize(
    "record", [*WRONG_RECORDS, encode_record(SUPPLIED), encode_record(ADMIT) * 2]
)
def test_a_full_copy_that_ends_with_anything_but_one_admission_is_refused(record: bytes) -> None:
    assert refused("pairs", ended("record", record))


def ended(name: str, value: Any) -> Message:
    """The end of a full copy in which one field is another one."""
    message = fill_message(END)
    message[1 + [field.name for field in BY_NAME["pairs"].fields].index(name)] = value
    return message


@pytest.mark.parametrize(
    "message",
    [
        altered("pairs", "record", encode_record(ADMIT)),
        altered("pairs", "tally", [1, 0, bytes(25)]),
        altered("pairs", "lengths", b""),
        ended("record", b""),
        ended("tally", None),
        ended("lengths", b"lengths"),
    ],
)
def test_a_piece_of_a_full_copy_has_either_pairs_or_an_end(message: Message) -> None:
    said = refused("pairs", message)
    assert said == "pairs: a piece has either pairs, or an ADMIT and a tally"


@pytest.mark.parametrize(
    "tally", [[], [1, 2], [-1, 0, bytes(25)], [1, -1, bytes(25)], [1, 0, bytes(24)], [1, 0, 0]]
)
def test_a_tally_that_cannot_be_is_refused(tally: list[Any]) -> None:
    assert refused("pairs", ended("tally", tally))


@pytest.mark.parametrize(
    ("last", "digest"), [(1, b""), (1, b"d" * (DIGEST_BYTES - 1)), (0, b"d" * DIGEST_BYTES)]
)
def test_a_digest_stands_in_the_last_piece_of_history_only(last: int, digest: bytes) -> None:
    message = altered("supply", "lasts", last)
    message[-1] = [digest]
    said = refused("supply", message)
    assert said == "supply: a digest stands in the last piece, and in no other"


@pytest.mark.slow
@given(st.data())
def test_any_message_is_read_or_refused(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(sorted(READERS)))
    message = data.draw(messages_of(BY_NAME[kind]))
    with suppress(FrameError):
        READERS[kind](message)
