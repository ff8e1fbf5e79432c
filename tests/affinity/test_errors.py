"""The error tree: what every class promises, for all of them at once."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import traceback
from pathlib import Path

import pytest

from tidelog.affinity import errors
from tidelog.affinity.errors import TidelogError

CLASSES = sorted(
    (
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, TidelogError)
    ),
    key=lambda kind: kind.__name__,
)
GROUPS = (errors.UsageError, errors.TransactionError, errors.StorageError, errors.ClusterError)

SAMPLES: list[TidelogError] = [
    errors.AlreadyOpenError("open", path="/s", pid=7),
    errors.ConflictError("changed", namespace="users", key=b"k", winner=None),
    errors.CommitUnknownError("unknown", tx_id=b"i" * 16, home=3, hint="Ask."),
    errors.CorruptLogError("bad", kind="damaged", segment=1, offset=2, expected=3),
    errors.FormatVersionError("new", found=2, supported=1),
    errors.DiskFullError("full"),
    errors.DivergedError("two rows", partition=3, version=7),
    errors.PlacementError("twice", hint="Once."),
    errors.PartitionUnavailableError("nobody", partition=3),
    errors.ServerError("new", server_code="TL-NEW-001", fields={"row": 3}),
]


@pytest.mark.parametrize("kind", CLASSES)
def test_a_class_says_when_it_is_raised_and_has_its_own_code(kind: type[TidelogError]) -> None:
    assert kind.__doc__
    assert kind.__name__.endswith("Error")
    assert kind.code.startswith("TL-")
    assert [other for other in CLASSES if other.code == kind.code] == [kind]
    assert kind is TidelogError or issubclass(kind, GROUPS)


@pytest.mark.parametrize("kind", [kind for kind in CLASSES if kind.retryable])
def test_what_can_be_tried_again_says_what_to_do(kind: type[TidelogError]) -> None:
    assert kind.hint


def test_nothing_that_the_caller_did_wrong_is_tried_again() -> None:
    assert not any(kind.retryable for kind in CLASSES if issubclass(kind, errors.UsageError))


def test_what_cannot_be_placed_is_a_wrong_value_for_python_too() -> None:
    names = [kind.__name__ for kind in CLASSES if issubclass(kind, ValueError)]
    assert names == ["PlacementError"]


def test_a_hint_can_be_given_and_leaves_that_of_the_class_alone() -> None:
    assert errors.DiskFullError("full", hint="Wait.").hint == "Wait."
    assert errors.DiskFullError("full").hint == errors.DiskFullError.hint != "Wait."


@pytest.mark.parametrize("error", SAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_survives_a_copy_and_another_process(error: TidelogError) -> None:
    for twin in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert type(twin) is type(error)
        assert str(twin) == str(error)
        assert vars(twin) == vars(error)
        assert twin.hint == error.hint


def told(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


@pytest.mark.parametrize("error", SAMPLES, ids=lambda error: type(error).__name__)
def test_a_traceback_tells_code_and_hint_once(error: TidelogError) -> None:
    note = f"{error.code}; next: {error.hint}" if error.hint else error.code
    assert told(error).splitlines()[-1] == note
    pickled = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(error))))
    for twin in (copy.copy(copy.copy(error)), pickled):
        assert told(twin) == told(error)
        twin.add_note("seen by the worker")
        assert "seen by the worker" in told(twin)
        assert "seen by the worker" not in told(error)
        with pytest.raises(TidelogError) as caught:
            raise twin from KeyError("x")
        assert told(caught.value).count(note) == 1
        with pytest.raises(TidelogError) as again:
            raise caught.value
        assert told(again.value).count(note) == 1


def test_another_hint_replaces_the_note_and_keeps_those_of_others() -> None:
    error = errors.UsageError("wrong", hint="Ask.")
    error.add_note("mine")
    error.advise("Look.")
    assert (error.hint, error.__notes__) == ("Look.", ["TL-USE-001; next: Look.", "mine"])
    plain = errors.UsageError("wrong")
    plain.advise("Look.")
    assert plain.__notes__ == ["TL-USE-001; next: Look."]


def test_a_program_that_ends_by_an_error_prints_what_to_do_next(tmp_path: Path) -> None:
    program = f"import tidelog; tidelog.open({str(tmp_path / 'no')!r}, read_only=True)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    lines = done.stderr.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-2].startswith("tidelog.affinity.errors.NotFoundError: there is no store at ")
    assert lines[-1] == "TL-USE-006; next: `tidelog.open(path)` makes one."
    assert done.stderr.count("Traceback") == 1
