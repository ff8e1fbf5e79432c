"""Running a transaction again until it commits: bounded, jittered, and only where it can help.

Left out: what makes an error ``retryable``; each class of error says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from ..affinity.errors import TidelogError, UsageError
from .transactions import Transaction

if TYPE_CHECKING:
    from .database import Database

P = ParamSpec("P")
T = TypeVar("T")

ATTEMPTS = 16
PAUSE_FIRST = 0.0005
PAUSE_MAX = 0.25


class Attempt:
    """One attempt: ``with attempt as tx``.  Swallows an error that the next attempt may cure."""

    def __init__(self, retries: _Retries, transaction: Transaction, last: bool) -> None:
        self._retries = retries
        self._transaction = transaction
        self._last = last

    def __enter__(self) -> Transaction:
        """Return the transaction of this attempt."""
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
            if self._last or not failure.retryable:
                raise
        if error is None:
            self._retries.done = True
            return False
        return not self._last and isinstance(error, TidelogError) and error.retryable


class _Retries:
    """The state that the attempts of one loop share."""

    def __init__(self) -> None:
        self.done = False


def attempts(
    database: Database, count: int, deadline: float | None, options: dict[str, Any]
) -> Iterator[Attempt]:
    """Yield attempts until one has committed; the last one raises whatever happens in it.

    ``deadline`` is in seconds from now, for all attempts together.  Pauses grow from half a
    millisecond to a quarter of a second, each with full jitter.
    """
    if type(count) is not int or count < 1:
        raise UsageError(f"attempts={count!r} is not a positive number")
    end = None if deadline is None else database.now() + deadline
    retries = _Retries()
    pause = PAUSE_FIRST
    for number in range(1, count + 1):
        left = None if end is None else max(end - database.now(), 0.0)
        last = number == count or (left is not None and left <= pause)
        transaction = Transaction(database, deadline=left, **options)
        try:
            yield Attempt(retries, transaction, last)
        finally:
            transaction.rollback()
        if retries.done or last:
            return
        database.pause(database.random.uniform(0.0, pause))
        pause = min(2 * pause, PAUSE_MAX)


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
    for attempt in attempts(database, count, deadline, options):
        with attempt as tx:
            result = work(tx, *args, **kwargs)
            tx.commit()
            return result
    raise AssertionError("the last attempt neither committed nor raised")
