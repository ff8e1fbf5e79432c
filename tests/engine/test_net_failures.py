"""Errors survive a connection: every class, with its attributes; and what is not known is kept."""

from __future__ import annotations

import inspect
from typing import Any

import msgpack
import pytest

from tidelog.affinity import errors
from tidelog.affinity.errors import ServerError, TidelogError
from tidelog.engine.net.failures import TEXT_MAX, error_of, failure_of

CLASSES = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, TidelogError)
]
VALUES: dict[str, object] = {
    "path": "/s/é",
    "pid": None,
    "winner": bytes(range(16)),
    "key": b"\xff\0",
    "fields": {"row": 3, "key": b"\xff"},
}
"""Values of attributes; all others are the number 7."""


def made(kind: type[TidelogError]) -> TidelogError:
    """Return an error of a class that has all attributes that it can have."""
    names = [
        name
        for name, parameter in inspect.signature(kind).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY and name != "hint"
    ]
    given: dict[str, Any] = {name: VALUES.get(name, 7) for name in names}
    error = kind("what: é", hint="Do this.", **given)
    for name in vars(kind).get("__annotations__", {}):
        setattr(error, name, VALUES.get(name, "orchard"))
    return error


def travelled(error: Exception) -> TidelogError:
    """Return what comes out of an error at the other end of a connection."""
    return error_of(*msgpack.unpackb(msgpack.packb(failure_of(error))))


@pytest.mark.parametrize("kind", CLASSES)
def test_every_error_comes_back_as_it_was(kind: type[TidelogError]) -> None:
    error = made(kind)
    twin = travelled(error)
    assert (type(twin), twin.args, vars(twin)) == (kind, error.args, vars(error))
    assert twin.hint == "Do this."


@pytest.mark.parametrize("kind", [kind for kind in CLASSES if kind.hint])
def test_the_hint_of_a_class_comes_with_it(kind: type[TidelogError]) -> None:
    error = made(kind)
    error.advise(kind.hint)
    assert travelled(error).hint == kind.hint


def test_a_winner_that_has_to_be_looked_up_is_looked_up_before_it_travels() -> None:
    error = errors.ConflictError("changed", namespace="n", key=b"k", winner=lambda: b"w")
    twin = travelled(error)
    assert isinstance(twin, errors.ConflictError)
    assert twin.winner == b"w"


def test_a_code_that_is_not_known_is_kept_with_its_fields() -> None:
    error = error_of("TL-NEW-007", "later", {"row": 3, "key": b"\xff", "hint": "Wait."})
    assert isinstance(error, ServerError)
    assert (error.server_code, error.fields) == ("TL-NEW-007", {"row": 3, "key": b"\xff"})
    assert (str(error), error.hint, error.code) == ("later", "Wait.", "TL-CLU-005")
    twin = travelled(error)
    assert (type(twin), vars(twin)) == (ServerError, vars(error))


def test_a_known_code_without_its_fields_is_not_taken_for_its_class() -> None:
    error = error_of("TL-CLU-003", "nobody", {"hint": ""})
    assert isinstance(error, ServerError)
    assert error.server_code == "TL-CLU-003"


def test_fields_of_a_later_version_are_left_out() -> None:
    fields = {"partition": 3, "hint": "Wait.", "since": 5, "code": "x", "args": 1}
    error = error_of("TL-CLU-003", "nobody", fields)
    assert isinstance(error, errors.PartitionUnavailableError)
    assert (error.partition, error.code, error.args) == (3, "TL-CLU-003", ("nobody",))
    assert not hasattr(error, "since")


def test_what_is_not_an_error_of_tidelog_is_told_by_its_class() -> None:
    twin = travelled(ZeroDivisionError("division by zero"))
    assert isinstance(twin, ServerError)
    assert twin.server_code == "ZeroDivisionError"
    assert str(twin) == "ZeroDivisionError: division by zero"


def test_what_cannot_be_packed_does_not_travel() -> None:
    error = errors.FormatVersionError("\udcff" + "x" * 9000, found=1 << 80, supported=-1)
    code, message, fields = failure_of(error)
    assert (code, fields) == (error.code, {"hint": error.hint, "supported": -1})
    assert message.startswith("\\udcffx")
    assert len(message) == TEXT_MAX + len("\\udcff") - 1
    assert isinstance(travelled(error), ServerError)  # its class has `found`
