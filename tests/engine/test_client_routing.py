"""What a client decides, by golden scripts: no socket, no clock."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.client_scripts import played
from tidelog.engine.client.routing import (
    COMING_S_MAX,
    PAUSE_S,
    PAUSE_S_MAX,
    Ask,
    Cluster,
    Failed,
    Job,
    Pause,
    StepDone,
    Value,
    served,
)
from tidelog.errors import DeadlineError

SCRIPTS = sorted((Path(__file__).parent / "client_scripts").glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_client_decides_as_the_script_says(path: Path) -> None:
    script = path.read_text()
    assert script.startswith("# ")
    assert played(script) == script


A, B = b"a" * 16, b"b" * 16


def cluster(*, away: bytes = b"", coming: bool = False) -> Cluster:
    """Two members, of which the second serves the one partition."""
    made = Cluster(["a:1"])
    members = [[name, 1, name not in away, chr(name[0])] for name in (A, B)]
    made.learn([5, members, [[0, 1, 0]], [], [1], [1], [0] * coming, [[1, 0]]])
    return made


def test_pauses_grow_up_to_a_quarter_of_a_second_and_never_behind_the_end_of_the_call() -> None:
    steps = served(cluster(), Job((0,), "get", (), 10.0))
    step, pauses = next(steps), []
    for now in [0.0] * 12 + [9.9]:
        assert isinstance(step, Ask)
        step = steps.send(Failed("wait", "", {}, now))
        assert isinstance(step, Pause)
        pauses.append(step.seconds)
        step = steps.send(StepDone(now))
    grown = [PAUSE_S * 2**number for number in range(9)]
    assert pauses == [*grown, *[PAUSE_S_MAX] * 3, pytest.approx(0.1)]
    with pytest.raises(DeadlineError):
        steps.send(Failed("wait", "", {}, 10.0))


def test_a_partition_that_is_coming_is_looked_for_after_short_pauses_each_time_anew() -> None:
    steps = served(cluster(away=B, coming=True), Job((0,), "get", (), 10.0))
    step, pauses = next(steps), []
    for _ in range(9):
        assert step == Pause(0.0)
        step = steps.send(StepDone(1.0))
        assert step == Ask(A, "status", (), 2.0), "a member has a second for its status"
        step = steps.send(Value({"majority": True}, 1.0))
        assert isinstance(step, Pause)
        pauses.append(step.seconds)
        step = steps.send(StepDone(1.0))
    assert pauses == [*(PAUSE_S * 2**number for number in range(7)), *[COMING_S_MAX] * 2]


def test_a_status_is_not_waited_for_behind_the_end_of_the_call() -> None:
    steps = served(cluster(away=B), Job((0,), "get", (), 10.0))
    next(steps)
    assert steps.send(StepDone(9.5)) == Ask(A, "status", (), 10.0)
