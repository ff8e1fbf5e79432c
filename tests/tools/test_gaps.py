"""What ``tidelog cluster gaps`` makes of answers of members."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

from tidelog.tools.cluster.gaps import gap_rows, gap_text, gaps_of
from tidelog.tools.cluster.standing import HeldPartition

ADA = UUID(int=1)


def held(lwm: int, hwm: int, *ranges: tuple[int, int]) -> HeldPartition:
    return HeldPartition(
        partition=0, row=(ADA,), goal=(), epoch=1, author=ADA, boot=1, in_sync=(ADA,), boots=(1,),
        opened=True, changed=1, lwm=lwm, hwm=hwm, ranges=ranges,
    )  # fmt: skip


def test_what_is_missing_lies_between_what_is_applied() -> None:
    assert gaps_of(held(90, 100, (94, 5))) == [[91, 94], [100, 100]]
    assert gaps_of(held(0, 7, (2, 1), (4, 3))) == [[1, 2], [4, 4]]
    assert gaps_of(held(5, 9)) == [[6, 9]]


def test_copies_that_lack_something_have_a_row_each_and_others_none() -> None:
    answers = {
        "n1": SimpleNamespace(held=(held(7, 9),)),
        "n2": SimpleNamespace(held=(held(7, 7),)),
        "n3": SimpleNamespace(held=(held(2, 6, (3, 1)),)),
        "n4": SimpleNamespace(held=()),
    }
    picture: Any = SimpleNamespace(answers=answers)
    share: Any = SimpleNamespace(partition=0, primary="n1", in_sync=("n1", "n2"))
    rows = gap_rows(picture, [share])
    assert [(row["member"], row["here"], row["missing"]) for row in rows] == [
        ("n1", "primary", 2), ("n3", "stale", 3),
    ]  # fmt: skip
    assert rows[1]["gaps"] == [[3, 3], [5, 6]]


def test_people_are_shown_the_first_gaps() -> None:
    assert gap_text({"gaps": [[1, 2], [4, 4]]})["gaps"] == "1-2, 4-4"
    many = [[n, n] for n in range(1, 13, 2)]
    assert gap_text({"gaps": many})["gaps"] == "1-1, 3-3, 5-5, 7-7 and 2 more"
