"""What a client decides, by golden scripts: no socket, no clock."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from support.client_scripts import played
from tidelog.affinity.partitions import Space, partition_of
from tidelog.engine.client.changes import TransactionContent
from tidelog.engine.client.commits import AGAIN_PAUSE_S_MAX, committing, put_of
from tidelog.engine.client.lateness import within
from tidelog.engine.client.routing import (
    ATTEMPTS_KEPT_MAX,
    COMING_S_MAX,
    PAUSE_S,
    PAUSE_S_MAX,
    Ask,
    Broke,
    ClientEvent,
    ClientStep,
    Cluster,
    Failed,
    Greet,
    Job,
    Pause,
    StepDone,
    Steps,
    Unreached,
    Value,
    is_there,
    served,
)
from tidelog.errors import (
    CommitUnknownError,
    DeadlineError,
    DiskError,
    NotEnoughMembersError,
    PartitionUnavailableError,
)

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


# ------------------------------------------------------------------ what to do about a late call

LOCKED = Failed("wait", "locked", {"hint": "Look at what is in doubt."}, 10.0)
LATE = Failed(DeadlineError.code, "the deadline passed", {"hint": DeadlineError.hint}, 1.0)


def late(event: ClientEvent, deadline: float | None = None) -> DeadlineError:
    """The error of a call with a timeout of ten seconds."""
    steps = within(lambda until: served(cluster(), Job((0,), "get", (), until)), 10.0, deadline)
    next(steps)
    with pytest.raises(DeadlineError) as caught:
        steps.send(event)
    return caught.value


def test_who_is_late_is_told_what_the_member_says_about_what_is_in_the_way() -> None:
    told = "Give a longer `timeout` to `tidelog.connect`, or look at the members."
    assert late(LOCKED).hint == f"{told} Look at what is in doubt."
    assert late(Failed("wait", "coming", {}, 10.0)).hint == told
    assert late(Failed("wait", "coming", {"hint": 7}, 10.0)).hint == told


@pytest.mark.parametrize("event", [LOCKED, LATE])
def test_who_is_late_is_told_of_the_limit_that_has_ended_the_call(event: Failed) -> None:
    for deadline in (None, 10.0, 11.0):
        error = late(event, deadline)
        assert error.hint.startswith("Give a longer `timeout` to `tidelog.connect`, or ")
        assert "`deadline`" not in error.advice()
    error = late(event, 9.0)
    assert error.hint.startswith("Give a longer `deadline`, or ")
    assert "`timeout`" not in error.advice()


def test_a_commit_that_lost_all_its_races_is_told_what_was_in_the_way() -> None:
    commit = put_of(7, 0, b"k", b"v")
    steps = committing(cluster(), commit, None, lambda: b"i" * 16, 10.0)
    next(steps)
    with pytest.raises(DeadlineError) as caught:
        steps.send(LOCKED._replace(code="again"))
    assert caught.value.hint.endswith("same keys. Look at what is in doubt.")


def committed(first: Any = None) -> Steps[Any]:
    """Begin the commit of one key; each attempt has an id of its own."""
    ids = iter([b"%016d" % number for number in range(99)])
    return committing(cluster(), put_of(7, 0, b"k", b"v"), None, lambda: next(ids), 10.0, first)


def test_pauses_between_lost_races_grow_up_to_a_limit_and_never_behind_the_end_of_the_call() -> (
    None
):
    steps = committed()
    step, pauses = next(steps), []
    for now in [0.0] * 12 + [9.99]:
        assert isinstance(step, Ask)
        step = steps.send(Failed("again", "", {}, now))
        assert isinstance(step, Pause)
        pauses.append(step.seconds)
        step = steps.send(StepDone(now))
    grown = [min(PAUSE_S * 2**number, AGAIN_PAUSE_S_MAX) for number in range(12)]
    assert pauses == [*grown, pytest.approx(0.01)]


def test_a_first_attempt_that_others_made_and_that_lost_its_race_is_followed_by_a_new_one() -> None:
    view = cluster().view
    assert view is not None
    steps = committed((b"of the others' id", (view.members[1], Failed("again", "", {}, 1.0))))
    assert next(steps) == Pause(PAUSE_S)
    step = steps.send(StepDone(1.0))
    assert isinstance(step, Ask)
    assert step.arguments[0] == b"%016d" % 0


def test_a_commit_whose_outcome_nobody_can_tell_is_unknown_whatever_was_said() -> None:
    steps = committed()
    next(steps)
    step = steps.send(Broke("it broke", 1.0))
    while not isinstance(step, Ask) or step.operation != "outcome":
        step = steps.send(StepDone(1.0) if isinstance(step, Pause) else MORE)
    with pytest.raises(CommitUnknownError, match=r"it broke; then .*the disk is gone") as caught:
        steps.send(Failed(DiskError.code, "the disk is gone", {}, 2.0))
    assert (caught.value.tx_id, caught.value.home) == (b"%016d" % 0, 0)


def test_a_commit_whose_answer_was_lost_behind_its_time_is_unknown_at_once() -> None:
    steps = committed()
    next(steps)
    with pytest.raises(CommitUnknownError):
        steps.send(Broke("it broke", 10.0))


def test_a_commit_names_the_epochs_of_its_own_partitions() -> None:
    at = Cluster(["a:1"])
    members = [[name, 1, True, chr(name[0])] for name in (A, B)]
    at.learn([5, members, [[0, 3, 0]], [], [0, 1, 0], [4, 5, 6], [], [[0], [1], [0]]])
    assert at.view is not None
    job = Job((0, 2), "commit", ("what",), 10.0, named=(0, 2))
    assert tuple(job.told(at.view)) == ("what", (0, 2), [4, 6])


# ------------------------------------------------------------------ whom others know of

LESS, MORE = Value({"majority": False}, 2.0), Value({"majority": True}, 2.0)
REFUSED = Unreached("refused", 2.0)
TOO_FEW = Failed(NotEnoughMembersError.code, "too few", {}, 2.0)


def cluster_of(*seeds: str, away: bytes = b"") -> Cluster:
    made = cluster(away=away)
    made.seeds = seeds
    return made


def moved(at: Cluster, *, away: bytes = b"") -> None:
    """Let the first member serve, by a newer view."""
    members = [[name, 1, name not in away, chr(name[0])] for name in (A, B)]
    at.learn([6, members, [[0, 1, 0]], [], [0], [1], [], [[0, 1]]])


def begun(at: Cluster, *, patient: bool = False) -> tuple[Steps[Any], ClientStep]:
    steps = served(at, Job((0,), "get", (), 10.0, patient=patient))
    step = next(steps)
    while step == Pause(0.0):
        step = steps.send(StepDone(1.0))
    return steps, step


def test_who_was_just_asked_is_not_looked_for_at_an_address_of_the_users() -> None:
    at = cluster_of("a", "b", "s")
    steps, step = begun(at)
    assert isinstance(step, Ask)
    assert step.member == B
    members = [[name, 1, name == A, chr(name[0])] for name in (A, B)]
    at.learn([6, members, [[0, 1, 0]], [], [1], [1], [], [[1, 0]]])
    assert steps.send(REFUSED) == Ask(A, "status", (), 3.0)
    assert steps.send(REFUSED) == Greet("s", 10.0)


def test_who_is_away_is_looked_for_at_its_address_and_is_coming_if_it_answers_there() -> None:
    steps, step = begun(cluster_of("a", "b", "s", away=B))
    assert step == Ask(A, "status", (), 2.0)
    assert steps.send(REFUSED) == Greet("b", 10.0)
    assert steps.send(StepDone(2.0)) == Pause(PAUSE_S)
    assert steps.send(StepDone(2.0)) == Pause(0.0)
    assert steps.send(StepDone(2.0)) == Ask(A, "status", (), 3.0)
    with pytest.raises(PartitionUnavailableError):
        steps.send(MORE)  # this time somebody else has answered: it is away


def test_a_member_that_is_known_and_away_is_not_there() -> None:
    for away in (b"", B):
        steps = is_there(cluster(away=away), B, 10.0, 1.0)
        assert next(steps) == Ask(A, "status", (), 2.0)
        with pytest.raises(StopIteration) as ended:
            steps.send(MORE)
        assert ended.value.value is (away != B)


def test_a_member_that_cannot_tell_its_status_has_been_heard_of() -> None:
    steps, _ = begun(cluster_of("s"))
    assert steps.send(REFUSED) == Ask(A, "status", (), 3.0)
    assert isinstance(steps.send(Failed("wait", "it has just started", {}, 2.0)), Pause)


def test_a_status_that_does_not_tell_of_a_majority_is_none_of_a_minority() -> None:
    steps, _ = begun(cluster_of("a"))
    assert steps.send(TOO_FEW) == Ask(A, "status", (), 3.0)
    assert isinstance(steps.send(Value({}, 2.0)), Pause)


def test_several_partitions_are_coming_if_all_of_them_are() -> None:
    at = Cluster(["a:1"])
    members = [[name, 1, name == A, chr(name[0])] for name in (A, B)]
    at.learn([5, members, [[0, 2, 0]], [], [1, 1], [1, 1], [0], [[1, 0], [1]]])
    steps = served(at, Job((0, 1), "get", (), 10.0))
    assert next(steps) == Pause(0.0)
    assert steps.send(StepDone(1.0)) == Ask(A, "status", (), 2.0)
    with pytest.raises(PartitionUnavailableError):
        steps.send(MORE)


def test_a_cluster_that_was_named_keeps_its_id_whoever_answers() -> None:
    at = Cluster(["a:1"], b"c" * 16)
    members = [[A, 1, True, "a"]]
    at.meet(b"d" * 16, b"s" * 16, [5, members, [[0, 1, 0]], [], [0], [1], [], [[0]]])
    assert (at.id, at.store) == (b"c" * 16, b"s" * 16)


def test_a_minority_that_nobody_can_tell_more_about_is_an_error() -> None:
    steps, _ = begun(cluster_of("a"))
    assert steps.send(TOO_FEW) == Ask(A, "status", (), 3.0)
    with pytest.raises(NotEnoughMembersError):
        steps.send(REFUSED)


@pytest.mark.parametrize("event", [TOO_FEW, REFUSED], ids=["answered", "refused"])
def test_who_serves_by_a_newer_view_is_asked_though_a_minority_told_it(event: ClientEvent) -> None:
    at = cluster_of("a")
    steps, _ = begun(at)
    assert steps.send(event) == Ask(A, "status", (), 3.0)
    moved(at)
    assert steps.send(LESS) == Ask(A, "get", (), 10.0)


@pytest.mark.parametrize("others", ["greeted", "served"])
def test_what_a_minority_has_told_counts_until_somebody_else_is_heard(others: str) -> None:
    steps, _ = begun(cluster_of("s"), patient=True)
    steps.send(REFUSED)
    step = steps.send(LESS)
    assert step == Pause(PAUSE_S), "one that is patient waits"
    step = steps.send(StepDone(9.0))
    assert step == Ask(B, "get", (), 10.0)
    if others == "greeted":
        steps.send(Unreached("refused", 9.5))
        assert steps.send(Unreached("refused", 9.5)) == Greet("s", 10.0)
        event: ClientEvent = StepDone(10.0)
    else:
        event = Failed("wait", "", {}, 10.0)
    with pytest.raises(DeadlineError):
        steps.send(event)


def test_what_two_members_have_answered_is_confirmed_though_one_was_known_before() -> None:
    at = Cluster(["a:1"])
    one = [A, 1, True, "a"]
    at.learn([5, [one], [[0, 2, 0]], [], [0, 0], [1, 1], [], [[0], [0]]])
    space = Space(0, 2)
    keys = sorted({partition_of(b"%d" % n, space): b"%d" % n for n in range(9)}.values())
    content = TransactionContent(at, None, None, confirms=True)
    steps = content.values(cast(Any, SimpleNamespace(id=16, space=space)), keys, 10.0)
    step = next(steps)
    at.learn([6, [one, [B, 1, True, "b"]], [[0, 2, 0]], [], [0, 1], [1, 2], [], [[0], [1]]])
    step, asked = steps.send(Failed("remap", "", {}, 0.0)), list[bytes]()
    with suppress(StopIteration):
        while isinstance(step, Ask):
            asked.append(step.member)
            step = steps.send(Value([[None], [0], [0]], 0.0))
    assert sorted(asked) == [A, B]
    assert content.to_commit() is not None


def test_a_view_that_is_not_newer_changes_nothing() -> None:
    at, told = Cluster(["a:1"]), list[int]()
    at.changed = lambda view: told.append(view.decided)
    members = [[A, 1, True, "a"], [B, 1, True, "b"]]
    for decided, primary in ((5, 0), (4, 1), (5, 1), (6, 1)):
        at.learn([decided, members, [[0, 1, 0]], [], [primary], [1], [], [[primary]]])
    assert told == [5, 6]
    assert at.view is not None
    assert (at.decided, at.view.decided) == (6, 6)


def test_refused_attempts_of_so_many_ids_are_remembered() -> None:
    at = Cluster(["a:1"])
    ids = [b"%016d" % number for number in range(ATTEMPTS_KEPT_MAX + 1)]
    for one in ids[:-1]:
        assert at.refused(one, 1) == 2
    assert at.next_attempt(ids[0]) == 2
    at.refused(ids[-1], 3)
    assert [at.next_attempt(ids[number]) for number in (0, 1, -1)] == [1, 2, 4]
