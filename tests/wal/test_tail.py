from __future__ import annotations

from itertools import product

import pytest

from tidelog.affinity.errors import CorruptLogError
from tidelog.wal.tail import (
    END_RULES,
    REFUSED,
    End,
    EndKind,
    LogPlace,
    LostRange,
    Sight,
    verdict,
)


def test_every_sight_has_exactly_one_row() -> None:
    for sight, proven in product(Sight, (False, True)):
        rows = [row for row in END_RULES if row.sight is sight and row.proven in (None, proven)]
        assert [verdict(sight, proven)] == rows


def test_letters_name_one_row_each() -> None:
    assert len({row.letter for row in END_RULES}) == len(END_RULES)


def test_what_w_proves_durable_is_never_cut() -> None:
    for sight in Sight:
        assert verdict(sight, True).kind in REFUSED


@pytest.mark.parametrize(
    ("sight", "letter", "kind"),
    [
        (Sight.NO_SEGMENT, "A", EndKind.CLEAN),
        (Sight.FILE_END, "B", EndKind.CLEAN),
        (Sight.ZEROS, "C", EndKind.PREALLOCATED),
        (Sight.STALE, "D", EndKind.RECYCLED),
        (Sight.BYTES, "E", EndKind.TORN),
        (Sight.BAD_HEADER, "F", EndKind.TORN),
    ],
)
def test_what_an_interrupted_writer_leaves_is_not_refused(
    sight: Sight, letter: str, kind: EndKind
) -> None:
    row = verdict(sight, False)
    assert (row.letter, row.kind) == (letter, kind)


DAMAGED = End(
    row="J",
    kind=EndKind.DAMAGED,
    reason="an invalid frame",
    position=100,
    segment=2,
    offset=228,
    durable=300,
    expected=0xAB,
    found=0xCD,
    after=LogPlace(200, 2, 328),
    lost=(LostRange(3, 7, 9),),
    transactions=(bytes(16),),
)


def test_a_refused_log_raises_with_everything_that_a_program_may_want() -> None:
    with pytest.raises(CorruptLogError) as caught:
        DAMAGED.raise_if_refused()
    error = caught.value
    assert (error.kind, error.segment, error.offset) == ("damaged", 2, 228)
    assert (error.expected, error.found) == (0xAB, 0xCD)
    assert str(error) == (
        "segment 2, offset 228: an invalid frame; position 100, durable up to 300; "
        "CRC 000000ab stored, 000000cd computed; next valid frame in segment 2, offset 328; "
        "lost: partition 3 7..9; transactions: " + "00" * 16
    )
    assert "tidelog wal verify" in error.hint


def test_a_torn_tail_raises_nothing_and_says_what_it_drops() -> None:
    torn = End(
        row="E",
        kind=EndKind.TORN,
        reason="an incomplete frame",
        position=100,
        segment=2,
        offset=228,
        durable=100,
        dropped_bytes=55,
        dropped_frames=1,
    )
    torn.raise_if_refused()
    assert not torn.refused
    assert "55 bytes, 1 valid frames dropped" in str(torn)


def test_long_lists_are_cut_in_the_account() -> None:
    many = End(
        row="J",
        kind=EndKind.DAMAGED,
        reason="x",
        position=0,
        segment=1,
        offset=128,
        durable=1,
        lost=tuple(LostRange(p, 1, 2) for p in range(20)),
    )
    assert str(many).endswith("partition 7 1..2 and 12 more")
