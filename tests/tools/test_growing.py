"""When the commands that let members enter and leave take it that they have."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from tidelog.tools.cluster import growing
from tidelog.tools.cluster.baseline import Seat, Stage

ADA, BOB = UUID(int=1), UUID(int=2)
NAMES = {ADA: "n1", BOB: "n2"}


def seat(stage: Stage = "in", *, voter: bool = False, to_come: int = 0, to_go: int = 0) -> Seat:
    return Seat(
        member="n1", stage=stage, votes=True, voter=voter, state="up", copies=3, to_come=to_come,
        to_go=to_go, wanted=None,
    )  # fmt: skip


def picture(*placed: UUID, away: tuple[str, ...] = ("n2",)) -> Any:
    return SimpleNamespace(
        newest=SimpleNamespace(placed=placed),
        away=lambda: [*away],
        names_of=lambda members: [NAMES[one] for one in members],
    )


@pytest.mark.parametrize(
    ("here", "seen", "has_moved"),
    [
        (seat(), picture(ADA), True),
        (seat(to_come=1), picture(ADA), False),
        (seat(), picture(BOB), False),  # nobody has said yet what it is to hold
        (seat(voter=True), picture(BOB), True),
        (seat("leaving", to_go=1), picture(BOB), False),
        (seat("out"), picture(BOB), True),
        (seat(), picture(ADA, away=()), False),  # all are there: all of it is waited for
    ],
)
def test_what_is_to_go_to_members_that_are_away_is_not_waited_for(
    here: Seat, seen: Any, has_moved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growing, "is_settled", lambda *_about: False)
    assert growing._has_moved(seen, [], here) is has_moved
    monkeypatch.setattr(growing, "is_settled", lambda *_about: True)
    assert growing._has_moved(seen, [], here)
