"""Snapshots of a cluster as its client takes, reads and closes them: no socket."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tidelog.aio import Map
from tidelog.engine.client.routing import (
    PAUSE_S,
    PAUSE_S_MAX,
    REMAP,
    WAIT,
    Ask,
    Broke,
    ClientEvent,
    ClientStep,
    Cluster,
    Failed,
    Job,
    Listen,
    Pause,
    Quiet,
    SplitError,
    StepDone,
    Steps,
    Unreached,
    Value,
)
from tidelog.engine.client.snapshots import (
    ClusterSnapshot,
    ClusterTasksSnapshot,
    Pinned,
    PinnedWay,
    let_go,
    take_snapshot,
)
from tidelog.engine.data.namespaces import Home
from tidelog.errors import ClosedError, DeadlineError, SnapshotExpiredError, UsageError

A, B, C = MEMBERS = (b"a" * 16, b"b" * 16, b"c" * 16)
UNTIL = 10.0
ID, TX = b"s" * 16, b"t" * 16
TAKEN = ID, [B, A], [[1], [0, 2]], [TX]
PINNED = Pinned(ID, {1: 0, 0: 1, 2: 1}, [B, A], [TX])
READ = Job((0, 2), "get", ("what is read",), UNTIL)
GROWING = [min(PAUSE_S * 2**n, PAUSE_S_MAX) for n in range(12)]


def cluster() -> Cluster:
    """Three members, of which each serves one partition."""
    made, places = Cluster(["a:1"]), [0, 1, 2]
    members = [[name, 1, True, chr(name[0])] for name in MEMBERS]
    made.learn([5, members, [[0, 3, 0]], [], places, [1] * 3, [], [[place] for place in places]])
    return made


def refusal(code: str, now: float = 1.0) -> Failed:
    return Failed(code, "it is not there", {}, now)


def steps_of(steps: Steps[Any], *events: ClientEvent) -> tuple[list[ClientStep], Any]:
    """Carry out steps, one for each event; return them, and what comes of them or is next."""
    seen = [next(steps)]
    try:
        for event in events:
            seen.append(steps.send(event))
    except StopIteration as end:
        return seen, end.value
    return seen[:-1], seen[-1]


# ------------------------------------------------------------------ taken


def test_a_snapshot_is_where_its_members_say_that_they_have_pinned_it() -> None:
    seen, found = steps_of(take_snapshot(cluster(), UNTIL), Value(TAKEN, 1.0))
    assert seen == [Ask(A, "snapshot", (), UNTIL)]
    assert found == PINNED


def test_a_snapshot_for_which_no_moment_is_found_is_taken_anew_after_pauses_that_grow() -> None:
    events: list[ClientEvent] = [refusal(SnapshotExpiredError.code), StepDone(1.0)] * 12
    seen, found = steps_of(take_snapshot(cluster(), UNTIL), *events, Value(TAKEN, 1.0))
    assert [step.seconds for step in seen if isinstance(step, Pause)] == GROWING
    assert found == PINNED


def test_a_snapshot_for_which_no_moment_was_found_in_time_is_an_error() -> None:
    events = refusal(SnapshotExpiredError.code), StepDone(UNTIL)
    with pytest.raises(SnapshotExpiredError, match="it is not there"):
        steps_of(take_snapshot(cluster(), UNTIL), *events)


def test_all_members_are_told_that_a_snapshot_is_not_read_any_more() -> None:
    gone = Unreached("it has gone", 1.0)
    seen, _ = steps_of(let_go(PINNED, UNTIL), gone, Value(None, 1.0))
    assert seen == [Ask(member, "unpin", (ID,), UNTIL) for member in (B, A)]


# ------------------------------------------------------------------ read


def test_what_is_read_is_asked_of_the_member_that_has_pinned_it() -> None:
    steps = PinnedWay(PINNED)(cluster(), READ)
    seen, found = steps_of(steps, Value("what is there", 1.0))
    assert seen == [Ask(A, "pinned", (ID, [TX], "get", ("what is read",)), UNTIL)]
    assert found == "what is there"


@pytest.mark.parametrize(
    "event",
    [refusal(REMAP), refusal(WAIT), Unreached("", 1.0), Broke("", 1.0)],
    ids=["remap", "wait", "unreached", "broke"],
)
def test_a_member_that_has_pinned_something_is_asked_again_and_nobody_else(
    event: ClientEvent,
) -> None:
    steps = PinnedWay(PINNED)(cluster(), READ)
    seen, found = steps_of(steps, *[event, StepDone(1.0)] * 12, Value("what is there", 1.0))
    assert [step.seconds for step in seen if isinstance(step, Pause)] == GROWING
    assert {step.member for step in seen if isinstance(step, Ask)} == {A}
    assert found == "what is there"


def test_an_answer_about_a_snapshot_that_takes_long_is_waited_for() -> None:
    """It was asked for anew each second, and the answer to what was asked before dropped."""
    events = Quiet(1.0), Quiet(2.0), Value("what is there", 3.0)
    seen, found = steps_of(PinnedWay(PINNED)(cluster(), READ), *events)
    assert [type(step) for step in seen] == [Ask, Listen, Listen]
    assert seen[1:] == [Listen(A, UNTIL)] * 2
    assert found == "what is there"


def test_what_is_refused_or_breaks_behind_a_silence_is_asked_for_again() -> None:
    for event in (refusal(WAIT), Broke("", 1.0)):
        seen, _ = steps_of(PinnedWay(PINNED)(cluster(), READ), Quiet(1.0), event, StepDone(1.0))
        assert [type(step) for step in seen] == [Ask, Listen, Pause]


@pytest.mark.parametrize("event", [refusal(WAIT, UNTIL), Quiet(UNTIL)], ids=["wait", "quiet"])
def test_a_member_that_has_pinned_something_and_does_not_answer_in_time_is_an_error(
    event: ClientEvent,
) -> None:
    with pytest.raises(DeadlineError, match="did not answer in time"):
        steps_of(PinnedWay(PINNED)(cluster(), READ), event)


def test_a_snapshot_that_has_ended_at_its_member_says_so() -> None:
    with pytest.raises(SnapshotExpiredError, match="it is not there"):
        steps_of(PinnedWay(PINNED)(cluster(), READ), refusal(SnapshotExpiredError.code))


def test_what_several_members_have_pinned_is_asked_of_each() -> None:
    with pytest.raises(SplitError):
        steps_of(PinnedWay(PINNED)(cluster(), READ._replace(partitions=(0, 1))))


def test_a_snapshot_is_closed_once_and_not_read_behind_that() -> None:
    way = PinnedWay(PINNED)
    assert (way.close(), way.close()) == (PINNED, None)
    with pytest.raises(ClosedError):
        steps_of(way(cluster(), READ))


# ------------------------------------------------------------------ handles


class Client:
    """What stands behind the handles of threads: it tells what members were asked."""

    def __init__(self) -> None:
        self.cluster, self.home = cluster(), Home("here")
        self.asked: list[tuple[bytes, str]] = []
        self.late = False
        """Whether nobody answers to the end of a snapshot."""

    def run(self, steps: Callable[[float], Steps[Any]]) -> Any:
        carried = steps(UNTIL)
        try:
            step = next(carried)
            while True:
                assert isinstance(step, Ask)
                self.asked.append((step.member, step.operation))
                if self.late and step.operation == "unpin":
                    raise DeadlineError("no answer")
                step = carried.send(Value(TAKEN, 1.0))
        except StopIteration as end:
            return end.value


class TasksClient(Client):
    """The same for tasks."""

    async def run(self, steps: Callable[[float], Steps[Any]]) -> Any:
        return super().run(steps)


CLOSED = [(A, "snapshot"), (B, "unpin"), (A, "unpin")]


def test_the_end_of_a_block_closes_a_snapshot_of_a_cluster() -> None:
    client: Any = Client()
    with ClusterSnapshot(client) as snapshot:
        assert client.asked == CLOSED[:1]
    assert client.asked == CLOSED
    snapshot.close()
    assert client.asked == CLOSED
    with pytest.raises(ClosedError), snapshot:
        pass


async def test_the_end_of_a_block_of_tasks_closes_a_snapshot_of_a_cluster() -> None:
    client: Any = TasksClient()
    async with ClusterTasksSnapshot(client) as snapshot:
        assert client.asked == CLOSED[:1]
    assert client.asked == CLOSED
    await snapshot.aclose()
    assert client.asked == CLOSED


async def test_a_snapshot_of_a_cluster_is_closed_though_nobody_answers() -> None:
    client, tasks_client = Client(), TasksClient()
    client.late = tasks_client.late = True
    with ClusterSnapshot(client):  # type: ignore[arg-type]
        pass
    async with ClusterTasksSnapshot(tasks_client):  # type: ignore[arg-type]
        pass
    assert client.asked == tasks_client.asked == CLOSED[:2], "members find out that nobody reads"


def test_a_snapshot_of_tasks_has_maps_of_its_own_cluster_and_only_in_its_block() -> None:
    client: Any = TasksClient()
    snapshot = ClusterTasksSnapshot(client)

    async def nothing() -> Any:
        raise AssertionError("nobody reads")

    with pytest.raises(UsageError) as caught:
        snapshot[Map("m", Home("elsewhere"), nothing)]
    assert not isinstance(caught.value, ClosedError)
    with pytest.raises(ClosedError, match="is not taken"):
        snapshot[Map("m", client.home, nothing)]
