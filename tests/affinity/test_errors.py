"""The error tree: what every class promises, for all of them at once."""

from __future__ import annotations

import copy
import pickle

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
