"""Running a transaction again until it commits: bounded, jittered, and only where it can help.

The first attempts are optimistic.  From the third on a transaction takes locks, unless its mode was
chosen: who has lost twice meets others on these keys all the time, and waits for them instead.

Left out: what makes an error ``retryable``; each class of error says so.  The loop of tasks is in
``aio_transactions``; what both decide is here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from types import AsyncGeneratorType, CoroutineType, GeneratorType, TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, NamedTuple, ParamSpec, TypeVar

from ...affinity.errors import ConflictError, TidelogError, UsageError
from .transactions import Transaction, checked_seconds

if TYPE_CHECKING:
    from .database import Database

P = ParamSpec("P")
T = TypeVar("T")

ATTEMPTS = 16
OPTIMISTIC_ATTEMPTS = 2
"""Attempts without locks, where the mode was not chosen."""
PAUSE_FIRST = 0.0005
PAUSE_MAX = 0.25

_NOT_BEGUN = frozenset((CoroutineType, GeneratorType, AsyncGeneratorType))
"""What an async or a generator function returns before any of its lines has run."""


def check_has_run(work: Callable[..., object], result: object) -> None:
    """Raise ``UsageError`` where calling ``work`` ran none of it, so that nothing is committed.

    A generator that a plain function made is a result like any other.
    """
    if isinstance(result, CoroutineType):
        result.close()  # or it complains that nobody has awaited it
        raise UsageError(
            f"{work!r} is an async function, none of which has run",
            hint="Give a plain function, or open the store with `tidelog.aio`.",
        )
    if inspect.isgeneratorfunction(work) or inspect.isasyncgenfunction(work):
        raise UsageError(
            f"{work!r} is a generator function, none of which has run",
            hint="Give a function that does its work and returns: `return`, not `yield`.",
        )


def check_callable(work: object) -> None:
    """Raise ``UsageError`` for work that is no function."""
    if not callable(work):
        raise UsageError(
            f"{work!r} is not a function to run",
            hint="Give one that takes the transaction: `db.run(work)`.",
        )


class Plan(NamedTuple):
    """How an attempt is made, and what comes after it."""

    options: dict[str, Any]
    """Those of its transaction."""
    last: bool
    pause: float
    """The longest pause before the next attempt, in seconds."""


def plan(number: int, count: int, left: float | None, options: dict[str, Any]) -> Plan:
    """Return the plan of attempt ``number``, from 1, of ``count``.

    ``left`` are the seconds until the deadline of all attempts, None where there is none.  Pauses
    grow from half a millisecond to a quarter of a second, each with full jitter; an attempt whose
    pause would reach the deadline is the last one.
    """
    pause = min(PAUSE_FIRST * 2 ** (number - 1), PAUSE_MAX)
    last = number == count or (left is not None and left <= pause)
    if number > OPTIMISTIC_ATTEMPTS and "mode" not in options:
        options = {**options, "mode": "pessimistic"}
    return Plan(options, last, pause)


def checked_count(count: object) -> int:
    """Return a number of attempts, or raise ``UsageError`` for what is none."""
    if type(count) is not int or count < 1:
        raise UsageError(f"attempts={count!r} is not a positive number")
    return count


def tell_attempts(error: TidelogError, number: int) -> None:
    """Let the error of the last attempt tell how many there were, and what helps."""
    error.args = (f"{error}; that was after {number} attempt{'s' if number > 1 else ''}",)
    if isinstance(error, ConflictError):
        error.hint = (
            'Give `mode="pessimistic"`, which waits for others where this one met them, allow '
            "more attempts, or let fewer write the same keys at once."
        )


def not_entered(block: str) -> UsageError:
    """Return the error for an attempt that the loop went past without its block."""
    return UsageError(
        "an attempt was not used, so that nothing can be committed",
        hint=f"Write `{block} attempt as tx:` as what the loop does, and all the work in there.",
    )


class Attempt:
    """One attempt: ``with attempt as tx``.  Swallows an error that the next attempt may cure."""

    def __init__(
        self, retries: _Retries, transaction: Transaction, number: int, last: bool
    ) -> None:
        self._retries = retries
        self._transaction = transaction
        self._number = number
        self._last = last

    def __enter__(self) -> Transaction:
        """Return the transaction of this attempt."""
        self._retries.entered = True
        return self._transaction.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        """Commit or roll back; tell whether the error is for the next attempt."""
        try:
            self._transaction.__exit__(kind, error, trace)
        except TidelogError as failure:
            error = failure
            if self._ends(failure):
                raise
        if error is None:
            self._retries.done = True
            return False
        return isinstance(error, TidelogError) and not self._ends(error)

    def _ends(self, error: TidelogError) -> bool:
        """Tell whether an error ends the loop."""
        if error.retryable and self._last:
            tell_attempts(error, self._number)
        return self._last or not error.retryable


class _Retries:
    """The state that the attempts of one loop share."""

    def __init__(self) -> None:
        self.done = False
        self.entered = False


def attempts(
    database: Database, count: int, deadline: float | None, options: dict[str, Any]
) -> Iterator[Attempt]:
    """Yield attempts until one has committed; the last one raises whatever happens in it.

    ``deadline`` is in seconds from now, for all attempts together.
    """
    count = checked_count(count)
    end = None
    if deadline is not None:
        end = database.now() + checked_seconds("deadline", deadline)
    retries = _Retries()
    for number in range(1, count + 1):
        left = None if end is None else max(end - database.now(), 0.0)
        chosen, last, pause = plan(number, count, left, options)
        transaction = Transaction(database, deadline=left, **chosen)
        retries.entered = False
        try:
            yield Attempt(retries, transaction, number, last)
        finally:
            transaction.rollback()
        if not retries.entered:
            raise not_entered("with")
        if retries.done or last:
            return
        database.pause(database.random.uniform(0.0, pause))


def run(
    database: Database,
    work: Callable[Concatenate[Transaction, P], T],
    count: int,
    deadline: float | None,
    options: dict[str, Any],
    *args: P.args,
    **kwargs: P.kwargs,
) -> T:
    """Run ``work`` in a transaction until it commits; return what it returned."""
    check_callable(work)
    # A swallowed error goes on with the loop; the `return` leaves the block, and so the loop.
    for attempt in attempts(database, count, deadline, options):
        with attempt as tx:
            result = work(tx, *args, **kwargs)
            if type(result) in _NOT_BEGUN:
                check_has_run(work, result)
            tx.commit()
            return result
    raise AssertionError("the last attempt neither committed nor raised")
