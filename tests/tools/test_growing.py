"""When the commands that let members enter and leave take it that they have."""

from __future__ import annotations

import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from tidelog.tools.cluster import growing
from tidelog.tools.cluster.baseline import Seat, Stage
from tidelog.tools.shell.exits import NotServedError

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
        statuses=[True],
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


class Waiting:
    """What `wait_until` sees: seats that stay as they are, and a clock that goes on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *seats: Seat, settled: bool) -> None:
        self.told: list[str] = []
        self._now = 0.0
        monkeypatch.setattr(growing, "found_cluster", lambda _folder: None)
        monkeypatch.setattr(growing, "look", lambda *_at: picture(ADA, BOB))
        monkeypatch.setattr(growing, "shares_of", lambda _picture: [])
        monkeypatch.setattr(growing, "seats_of", lambda *_about: [*seats])
        monkeypatch.setattr(growing, "is_settled", lambda *_about: settled)
        self.checked = 0
        monkeypatch.setattr(growing, "_check_comes", self._check)
        monkeypatch.setattr(time, "monotonic", lambda: self._now)
        monkeypatch.setattr(time, "sleep", self._sleep)

    def _sleep(self, _seconds: float) -> None:
        self._now += 0.5

    def _check(self, *_about: object) -> None:
        self.checked += 1

    def until(self, stage: Stage) -> Seat:
        return growing.wait_until("d", "n1", lambda seat: seat.stage == stage, self.told.append)


AWAY = (
    "n2 is away, and its vote is missing: `tidelog cluster start d n2`; if its disk is gone, "
    "`tidelog cluster lose d n2`"
)


def test_who_has_come_hears_of_others_that_are_away(monkeypatch: pytest.MonkeyPatch) -> None:
    # `join` said that all is well while a member was dead.
    other = replace(seat(), member="n2", state="down")
    waiting = Waiting(monkeypatch, seat(), other, settled=True)
    assert waiting.until("in") == seat()
    assert waiting.told == [AWAY]


def test_who_has_come_hears_nothing_of_those_that_wait_or_have_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    others = [replace(seat(one), member="n2", state="down") for one in ("waiting", "out", "lost")]
    waiting = Waiting(monkeypatch, seat(), *others, settled=True)
    waiting.until("in")
    assert waiting.told == []


def test_who_has_come_waits_until_it_has_its_part(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotServedError):
        Waiting(monkeypatch, seat(to_come=1), settled=False).until("in")


def test_who_enters_while_all_others_leave_hears_nothing_of_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = replace(seat("leaving", to_go=3), member="n2")
    waiting = Waiting(monkeypatch, seat("entering", to_come=3), other, settled=False)
    with pytest.raises(NotServedError):
        waiting.until("in")
    assert waiting.told == ["n1 is entering; n2 is leaving"]


def test_who_waits_hears_once_of_whom_and_does_not_hear_that_it_goes_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # `baseline remove` said for 120 s, beside a dead member, that it goes on by itself.
    here, other = seat("leaving", to_go=3), replace(seat(), member="n2", state="down")
    waiting = Waiting(monkeypatch, here, other, settled=False)
    with pytest.raises(NotServedError) as caught:
        waiting.until("out")
    assert waiting.told == [f"n1 is leaving; {AWAY}"]
    assert waiting.checked > 2 * growing.CHANGED_S_MAX, "whether it has ended is looked at"
    assert caught.value.hint is not None
    assert caught.value.hint.startswith(f"{AWAY}. Then it goes on by itself. Look with")


@pytest.mark.parametrize(("copies", "is_told"), [(3, True), (0, False)])
def test_who_leaves_and_ends_before_others_have_what_it_holds_is_asked_back(
    monkeypatch: pytest.MonkeyPatch, copies: int, is_told: bool
) -> None:
    here = replace(seat("leaving", to_go=3 - copies), state="down", copies=copies)
    waiting = Waiting(monkeypatch, here, replace(seat(), member="n2"), settled=False)
    with pytest.raises(NotServedError) as caught:
        waiting.until("out")
    away = (
        "n1 is away, and others are to get what it holds: `tidelog cluster start d n1`; if its "
        "disk is gone, `tidelog cluster lose d n1`"
    )
    assert waiting.told == ["; ".join(["n1 is leaving", *([away] if is_told else [])])]
    assert caught.value.hint is not None
    said = f"{away}. Then it goes on" if is_told else "It goes on"
    assert caught.value.hint.startswith(f"{said} by itself. Look with")
