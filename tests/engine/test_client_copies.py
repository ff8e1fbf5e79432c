"""Who is asked by reads that any copy may answer, decided without I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tidelog.engine.client.copies import AsOf, InTurn, Stale, way_of
from tidelog.engine.client.reads import PagedScan, ReadWay, got
from tidelog.engine.client.routing import (
    Ask,
    Broke,
    ClientEvent,
    Cluster,
    Failed,
    Greet,
    Job,
    Pause,
    Quiet,
    StepDone,
    Steps,
    Unreached,
    Value,
    served,
)
from tidelog.errors import NotFoundError, PartitionUnavailableError

A, B, C = (letter * 16 for letter in (b"a", b"b", b"c"))


def cluster(copies: Sequence[Sequence[int]] = ((0, 1, 2), (1, 2, 0)), away: str = "") -> Cluster:
    """Three members, and partitions whose primary is the first of their copies."""
    made = Cluster(["a:1"])
    members = [[name, 1, chr(name[0]) not in away, chr(name[0])] for name in (A, B, C)]
    primaries = [places[0] for places in copies]
    count = len(copies)
    made.learn([5, members, [[0, count, 2]], [], primaries, [1] * count, [], list(copies)])
    return made


def carried(steps: Steps[Any], *events: ClientEvent) -> tuple[list[tuple[bytes, str]], Any]:
    """Answer each question with the next event; return whom was asked what, and the result."""
    asked, left = [], list(events)
    try:
        step = next(steps)
        while True:
            if isinstance(step, Pause):
                step = steps.send(StepDone(0.0))
                continue
            assert isinstance(step, Ask), step
            asked.append((step.member, step.operation))
            step = steps.send(left.pop(0))
    except StopIteration as end:
        assert not left
        return asked, end.value


def get(way: ReadWay, at: Cluster, *partitions: int) -> Steps[Any]:
    return way(at, Job(partitions, "get", (16, (b"k",)), 10.0))


ANSWER = Value(["found"], 0.0)
STALE = Value(["found", [0], [3], [120]], 0.0)
NO_COPY = Failed("remap", "there is no copy here", {}, 0.0)


def test_copies_take_turns_and_the_primary_is_asked_as_ever() -> None:
    at = cluster()
    asked = [carried(get(way_of(at, "copies"), at, 0), ANSWER)[0][0] for _ in range(6)]
    assert asked == [(B, "copy"), (C, "copy"), (A, "get")] * 2
    assert way_of(at, "primary") is served


@pytest.mark.parametrize(
    "event",
    [
        Failed("remap", "", {}, 0.0),
        Failed("TL-CLU-004", "too few", {}, 0.0),
        Unreached("refused", 0.0),
        Broke("reset", 0.0),
        Quiet(1.0),
    ],
    ids=lambda event: type(event).__name__,
)
def test_what_a_copy_does_not_answer_is_asked_of_the_primary(event: ClientEvent) -> None:
    at = cluster()
    assert carried(get(InTurn(at), at, 0), event, ANSWER) == ([(B, "copy"), (A, "get")], ["found"])


def test_a_copy_that_is_away_is_passed_over() -> None:
    at = cluster(away="b")
    assert [carried(get(InTurn(at), at, 0), ANSWER)[0][0] for _ in range(2)] == [(C, "copy")] * 2


def test_a_read_of_partitions_that_no_member_has_all_of_is_divided() -> None:
    at = cluster(((0, 1), (2,)))
    answers = [Value([[b"x"], [1], [n]], 0.0) for n in (1, 2)]
    asked, found = carried(got(at, 16, [b"j", b"k"], [0, 1], 10.0, InTurn(at)), *answers)
    assert sorted(asked) == [(B, "copy"), (C, "get")]
    assert found.values == [b"x", b"x"]


def test_the_pages_of_an_iteration_are_of_one_member() -> None:
    at = cluster()
    scan = PagedScan(at, 16, range(2), b"", None, reverse=False, size=1, way=InTurn(at))
    for key, more in ((b"a", True), (b"b", False)):
        page = Value([[key], [b"v"], [], [], more], 0.0)
        assert carried(scan.block(10.0), page) == ([(B, "copy")], [(key, b"v")])


def test_a_stale_view_goes_to_one_member_and_tells_how_old_its_reads_are() -> None:
    at = cluster()
    stale = Stale(at)
    for _ in range(3):
        assert carried(get(stale, at, 0), STALE) == ([(B, "stale")], "found")
    assert stale.as_of == {0: AsOf(3, 120)}
    newer = Value(["found", [0, 1], [4, 1], [2, 7]], 0.0)
    assert carried(get(stale, at, 0, 1), newer) == ([(B, "stale")], "found")
    assert stale.as_of == {0: (4, 2), 1: (1, 7)}


def test_a_stale_read_tries_copies_and_then_everybody() -> None:
    at = cluster(((0, 1),))
    asked, found = carried(get(Stale(at), at, 0), Unreached("x", 0.0), Quiet(1.0), STALE)
    assert (asked, found) == ([(B, "stale"), (A, "stale"), (C, "stale")], "found")


def test_a_connection_that_broke_is_made_anew_once() -> None:
    at = cluster(((0, 1, 2),))
    asked, _ = carried(get(Stale(at), at, 0), Broke("x", 0.0), Broke("x", 0.0), STALE)
    assert asked == [(B, "stale"), (B, "stale"), (C, "stale")]


def test_a_copy_that_is_coming_is_waited_for_and_none_is_an_error() -> None:
    at = cluster(((0, 1, 2),))
    coming = Failed("wait", "", {}, 0.0)
    asked, found = carried(get(Stale(at), at, 0), coming, NO_COPY, NO_COPY, STALE)
    assert (len(asked), found) == (4, "found")
    told = r"no copy of partition 0 is reached \(c: x; a: there is no copy here; b: no answer\)"
    with pytest.raises(PartitionUnavailableError, match=told):
        carried(get(Stale(at), at, 0), Unreached("x", 0.0), NO_COPY, Quiet(0.0))


def test_what_members_have_against_a_stale_read_is_told() -> None:
    at = cluster(((0, 1, 2),))
    dropped = Failed(NotFoundError.code, "the map was dropped", {}, 0.0)
    with pytest.raises(NotFoundError, match="the map was dropped"):
        carried(get(Stale(at), at, 0), Unreached("x", 0.0), dropped, NO_COPY)


def test_a_stale_read_of_several_partitions_is_divided_before_it_is_given_up() -> None:
    at = cluster()
    pairs = [Value([[[b"x"], [1], [1]], [n], [1], [1]], 0.0) for n in (1, 0)]
    steps = got(at, 16, [b"j", b"k"], [0, 1], 10.0, Stale(at))
    asked, found = carried(steps, NO_COPY, NO_COPY, NO_COPY, *pairs)
    assert len(asked) == 5
    assert found.values == [b"x", b"x"]


# ------------------------------------------------------------------ times


def told(now: float, code: str = "wait") -> Failed:
    return Failed(code, "", {}, now)


def test_a_copy_has_a_second_and_no_longer_than_the_call() -> None:
    at = cluster()
    for way, operation in ((InTurn(at), "copy"), (Stale(at), "stale")):
        for until, asked_until in ((10.0, 4.0), (3.5, 3.5)):
            steps = way(at, Job((0,), "get", (16, (b"k",)), until))
            assert next(steps) == Pause(0.0)
            step = steps.send(StepDone(3.0))
            assert isinstance(step, Ask)
            assert (step.operation, step.until) == (operation, asked_until)


def test_each_copy_that_is_asked_for_a_stale_read_has_a_second_of_its_own() -> None:
    at = cluster()
    steps = get(Stale(at), at, 0)
    next(steps)
    steps.send(StepDone(3.0))
    step = steps.send(Quiet(4.0))
    assert isinstance(step, Ask)
    assert step.until == 5.0


def test_a_copy_that_is_coming_is_asked_after_longer_pauses_while_there_is_time() -> None:
    at = cluster(((0, 1, 2),))
    steps = get(Stale(at), at, 0)
    next(steps)
    step, pauses = steps.send(StepDone(9.0)), []
    for now in (9.0, 9.0, 9.0, 9.9999):
        for _ in range(3):
            assert isinstance(step, Ask)
            step = steps.send(told(now))
        assert isinstance(step, Pause)
        pauses.append(step.seconds)
        step = steps.send(StepDone(now))
    assert pauses == [0.0005, 0.001, 0.002, pytest.approx(0.0001)]
    for _ in range(2):
        step = steps.send(told(10.0))
    with pytest.raises(PartitionUnavailableError, match="no copy of partition 0 is reached"):
        steps.send(told(10.0))


def test_a_client_that_knows_no_member_yet_looks_for_one_before_a_stale_read() -> None:
    at = Cluster(["a:1"])
    assert next(get(Stale(at), at, 0)) == Greet("a:1", 10.0)


def test_no_copy_is_asked_where_all_are_away() -> None:
    at = cluster(((1, 2),), away="bc")
    at.next_turn()  # then it would be the one that is no primary
    steps = get(InTurn(at), at, 0)
    step = next(steps)
    while isinstance(step, Pause):
        step = steps.send(StepDone(0.0))
    assert isinstance(step, Ask)
    assert (step.member, step.operation) == (A, "status")
