"""What the commands about losses make of answers of members."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from tidelog.errors import ClusterError
from tidelog.tools.cluster.losing import (
    best_copy,
    check_nobody_is_away,
    copies_left,
    loss_rows,
    loss_text,
)
from tidelog.tools.shell.exits import RefusedError

ADA, BOB = UUID(int=1), UUID(int=2)
CLUSTER: Any = SimpleNamespace(members=[SimpleNamespace(id=ADA, name="n1")])


def pictured(**stories: dict[str, Any] | None) -> Any:
    answers = {name: SimpleNamespace(story=story) for name, story in stories.items()}
    return SimpleNamespace(answers=answers)


def story(opened: int, hwm: int, *, whole: bool = True) -> dict[str, Any]:
    return {"whole": whole, "hwm": hwm, "epochs": [[1, 1], [opened, 5]]}


def test_the_best_copy_is_of_the_newest_epoch_and_then_the_longest() -> None:
    picture = pictured(
        n1=story(2, 90), n2=story(3, 10), n3=story(3, 12), n4=None,
        n5=story(9, 99, whole=False), n6=story(9, 0),
    )  # fmt: skip
    assert best_copy(picture) == "n3"
    assert [one.member for one in copies_left(picture)] == ["n3", "n2", "n1"]


def test_without_a_copy_there_is_nothing_to_go_on_from() -> None:
    assert best_copy(pictured(n1=None, n2=story(3, 9, whole=False))) is None


def of_row(*row: str) -> Any:
    return SimpleNamespace(partition=4, row=row)


def standing(**states: str) -> Any:
    """Members, which are up, down, silent, or lost."""
    members = [SimpleNamespace(name=name, directory=name) for name in states]
    return SimpleNamespace(
        cluster=SimpleNamespace(members=members),
        is_lost=lambda one: states[one.name] == "lost",
        state_of=states.__getitem__,
    )


def test_who_is_away_and_may_have_a_newer_copy_keeps_a_partition_from_being_reset() -> None:
    # It went on from the copy of n5, and what n3 had beyond that was kept aside.
    picture = standing(n1="lost", n2="down", n3="down", n4="silent", n5="up")
    check_nobody_is_away("a place", picture, of_row("n1", "n5", "gone"))
    with pytest.raises(RefusedError) as refused:
        check_nobody_is_away("a place", picture, of_row("n1", "n3", "n5"))
    assert str(refused.value) == (
        "n3 does not answer, and may have a newer copy of partition 4 than those that answer"
    )
    assert refused.value.hint == (
        "Start it: `tidelog cluster start 'a place' n3`. If that cannot be, give --yes."
    )
    with pytest.raises(
        RefusedError, match=r"^n3 and n4 do not answer, and may have a newer copy"
    ) as of_both:
        check_nobody_is_away("a place", picture, of_row("n3", "n4", "n5"))
    assert of_both.value.hint is not None
    assert of_both.value.hint.startswith("Start each of them: `tidelog cluster start 'a place' n3`")


def test_what_became_of_a_loss_is_told_by_names() -> None:
    rows = [[7, 3, 2, 4, ADA.bytes, 5, 2, 40], [8, 1, 1, 2, BOB.bytes, 1, 0, 0]]
    kept, empty = loss_rows(CLUSTER, {"losses": rows})
    assert kept == {
        "decision": 7, "partition": 3, "lost_epoch": 2, "epoch": 4, "from": "n1", "boot": 5,
        "opened": 2, "upto": 40, "empty": False,
    }  # fmt: skip
    assert loss_text(kept) == kept
    assert empty["from"] == str(BOB)[:8]
    shown = loss_text(empty)
    assert (shown["from"], shown["upto"]) == (f"nothing, at {str(BOB)[:8]}", "-")


def test_answers_of_another_form_are_told_as_such() -> None:
    with pytest.raises(ClusterError):
        loss_rows(CLUSTER, {"losses": [[1, 2]]})
    with pytest.raises(ClusterError):
        copies_left(pictured(n1={"whole": True}))
