"""What to do about a call whose time is over: which limit has ended it, and what was in the way.

A call ends with the ``timeout`` of its client, or before that with the ``deadline`` of its
transaction.  Members know one end only, so hints name the timeout until the transaction knows
better.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any, TypeVar

from ...affinity.errors import DeadlineError, TidelogError
from ..net.failures import error_of

_Step = TypeVar("_Step")
_Event = TypeVar("_Event")
T = TypeVar("T")

LONGER_TIMEOUT = "Give a longer `timeout` to `tidelog.connect`"
_LONGER_DEADLINE = "Give a longer `deadline`"


def late_hint(otherwise: str, advice: str = "") -> str:
    """Return the hint for who is late; ``advice`` is what a member said of what was in the way."""
    return f"{LONGER_TIMEOUT}, or {otherwise}. {advice}".rstrip()


def advice_in(fields: Mapping[str, Any]) -> str:
    """Return the hint that came with a failure; empty if there was none."""
    hint = fields.get("hint")
    return hint if isinstance(hint, str) else ""


def told_error(code: str, message: str, fields: Mapping[str, Any]) -> TidelogError:
    """Return the error that a member has told, for a user who gave a timeout."""
    error = error_of(code, message, fields)
    if isinstance(error, DeadlineError):
        error.advise(error.hint.replace(DeadlineError.hint, late_hint("do less in one call")))
    return error


def _of_deadline(steps: Generator[_Step, _Event, T]) -> Generator[_Step, _Event, T]:
    """Carry out steps that end with the deadline of a transaction, ahead of the timeout."""
    try:
        return (yield from steps)
    except DeadlineError as error:
        error.advise(error.hint.replace(LONGER_TIMEOUT, _LONGER_DEADLINE))
        raise


def of_timeout(error: DeadlineError) -> None:
    """Let an error name the timeout: its deadline was made of that, and nobody gave one."""
    error.advise(error.hint.replace(_LONGER_DEADLINE, LONGER_TIMEOUT))


def within(
    steps: Callable[[float], Generator[_Step, _Event, T]], until: float, deadline: float | None
) -> Generator[_Step, _Event, T]:
    """Return steps that end with the timeout, or with a deadline if that is sooner."""
    if deadline is None or deadline >= until:
        return steps(until)
    return _of_deadline(steps(deadline))
