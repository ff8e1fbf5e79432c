"""Running a transaction again until it commits: bounded, jittered, and only if it can help.

The first attempts are optimistic.  From the third on a transaction takes locks, unless its mode was
chosen: who has lost twice meets others on these keys all the time, and waits for them instead.

``Retries`` decides, for the loop of threads here as for that of tasks in ``aio.attempts``.  It
neither waits nor runs anything.

Left out: what makes an error retryable; each class of error says so.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from types import AsyncGeneratorType, CoroutineType, GeneratorType, TracebackType
from typing import NamedTuple, Protocol, TypeVar, TypeVarTuple

from ...affinity.errors import ConflictError, DeadlineError, TidelogError, UsageError
from ..commit.entries import Receipt
from .choices import TransactionOptions, checked_seconds
from .transaction_session import TransactionSession, TransactionSource
from .transactions import Transaction

A = TypeVarTuple("A")
T = TypeVar("T")

ATTEMPTS = 16
OPTIMISTIC_ATTEMPTS = 2
"""Attempts without locks, if the mode was not chosen."""
ADVICE = (
    'Give `mode="pessimistic"`, which waits for others instead of failing, allow '
    "more attempts, or let fewer write the same keys at once."
)
"""For who has lost every attempt."""
PAUSE_FIRST = 0.0005
PAUSE_MAX = 0.25

_NOT_BEGUN = frozenset((CoroutineType, GeneratorType, AsyncGeneratorType))
"""What an async or a generator function returns before any of its lines has run."""


def check_has_run(work: Callable[..., object], result: object) -> None:
    """Raise ``UsageError`` if calling ``work`` ran none of it, so that nothing is committed.

    A generator that a plain function made is a result like any other.
    """
    if isinstance(result, CoroutineType):
        result.close()  # or it complains that nobody has awaited it
        raise UsageError(
            f"{work!r} is an async function; nothing of it has run",
            hint="Give a plain function, or open the store with `tidelog.aio`.",
        )
    if inspect.isgeneratorfunction(work) or inspect.isasyncgenfunction(work):
        raise UsageError(
            f"{work!r} is a generator function; nothing of it has run",
            hint="Give a function that does its work and returns: `return`, not `yield`.",
        )


def check_callable(work: object) -> None:
    """Raise ``UsageError`` for work that is not a function."""
    if not callable(work):
        raise UsageError(
            f"{work!r} is not a function to run",
            hint="Give one that takes the transaction: `db.run(work)`.",
        )


class Plan(NamedTuple):
    """How an attempt is made, and what comes after it."""

    options: TransactionOptions
    """Those of its transaction."""
    left: float | None
    """Seconds until the deadline of all attempts; None if there is none."""
    last: bool
    pause: float
    """The longest pause before the next attempt, in seconds."""


def plan(number: int, count: int, left: float | None, options: TransactionOptions) -> Plan:
    """Return the plan of attempt ``number``, from 1, of ``count``.

    Pauses grow from half a millisecond to a quarter of a second, each with full jitter; an attempt
    whose pause would reach the deadline is the last one.
    """
    pause = min(PAUSE_FIRST * 2 ** (number - 1), PAUSE_MAX)
    last = number == count or (left is not None and left <= pause)
    if number > OPTIMISTIC_ATTEMPTS and "mode" not in options:
        options = {**options, "mode": "pessimistic"}
    return Plan(options, left, last, pause)


class EndedTransaction(Protocol):
    """What is known of a transaction that has ended."""

    @property
    def receipt(self) -> Receipt | None:
        """What the commit gave."""

    @property
    def in_doubt(self) -> bool:
        """Whether nobody knows if it took effect."""


class Retries:
    """The attempts of one loop: how each is made, and whether another one follows.

    ``block`` is what users write around an attempt; ``deadline`` is in seconds from now, for all
    attempts together.
    """

    def __init__(
        self,
        block: str,
        count: object,
        deadline: float | None,
        options: TransactionOptions,
        now: Callable[[], float],
        late: Callable[[DeadlineError], None] | None = None,
    ) -> None:
        """``late`` is told of an error of the deadline, if the user has not given that."""
        if type(count) is not int or count < 1:
            raise UsageError(f"attempts={count!r} is not a positive number")
        self.number = 0
        """How many there were so far."""
        self.entered = False
        """Whether the block of the newest one was begun."""
        self._done = False
        self._earlier: TidelogError | None = None
        """What ended the attempt before this one: why there is no time left."""
        self._block = block
        self._count = count
        self._options = options
        self._now = now
        self._late = late
        self._end = None if deadline is None else now() + checked_seconds("deadline", deadline)

    def next(self) -> Plan:
        """Begin the next attempt, and return its plan."""
        left = None if self._end is None else max(self._end - self._now(), 0.0)
        self.number = number = self.number + 1
        self._plan = made = plan(number, self._count, left, self._options)
        # Done unless the attempt says otherwise: an error that it does not swallow ends the loop.
        self._done, self.entered = True, False
        return made

    def again(self, error: BaseException, ended: EndedTransaction | None = None) -> bool:
        """Tell whether another attempt may cure the error that ended one.

        If the transaction has ``ended`` before that, as the work did that itself, and may have
        committed, it is not made again: it would take effect twice.
        """
        if isinstance(error, DeadlineError) and self._late is not None:
            self._late(error)
        if isinstance(error, DeadlineError) and self._earlier is not None:
            error.args = (f"{error}; the attempt before it: {self._earlier}",)
        if not isinstance(error, TidelogError) or not error.retryable:
            return False
        if ended is not None and ended.receipt is not None:
            error.args = (f"{error}; that was behind the commit, which took effect",)
            return False
        if ended is not None and ended.in_doubt:
            error.args = (f"{error}; that was behind the commit, which may have taken effect",)
            return False
        if self._plan.last or (self._end is not None and self._now() >= self._end):
            _tell_attempts(error, self.number)
            return False
        self._earlier = error
        self._done = False
        return True

    def goes_on(self) -> bool:
        """Tell whether there is another attempt; raise if the newest one was not used."""
        if not self.entered:
            raise UsageError(
                "an attempt was not used, so that nothing can be committed",
                hint=f"Write `{self._block} attempt as tx:` as what the loop does, and all the "
                "work in there.",
            )
        return not self._done


def _tell_attempts(error: TidelogError, number: int) -> None:
    """Let the error of the last attempt tell how many there were, and what helps."""
    error.args = (f"{error}; that was after {number} attempt{'s' if number > 1 else ''}",)
    if isinstance(error, ConflictError):
        error.advise(ADVICE)


class Attempt:
    """One attempt: ``with attempt as tx``.  Swallows an error that the next attempt may cure."""

    def __init__(self, retries: Retries, transaction: Transaction) -> None:
        self._retries = retries
        self._transaction = transaction

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
            if not self._retries.again(failure):
                raise
            return True
        if error is None:
            return False
        return self._retries.again(error, self._transaction)


class Chance(Protocol):
    """Random numbers."""

    def uniform(self, a: float, b: float, /) -> float:
        """Return a number from ``a`` to ``b``."""


class AttemptSource(TransactionSource, Protocol):
    """The store that attempts are made in."""

    @property
    def random(self) -> Chance:
        """Where the length of a pause comes from."""

    @property
    def pause(self) -> Callable[[float], object]:
        """Wait some seconds."""


def attempts(
    database: AttemptSource, count: int, deadline: float | None, options: TransactionOptions
) -> Iterator[Attempt]:
    """Yield attempts until one has committed; the last one raises whatever happens in it.

    ``deadline`` is in seconds from now, for all attempts together.
    """
    retries = Retries("with", count, deadline, options, database.now)
    while True:
        plan = retries.next()
        session = TransactionSession(database, deadline=plan.left, **plan.options)
        transaction = Transaction(session)
        try:
            yield Attempt(retries, transaction)
        finally:
            session.rollback()
        if not retries.goes_on():
            return
        database.pause(database.random.uniform(0.0, plan.pause))


def run(attempts: Iterable[Attempt], work: Callable[[Transaction, *A], T], *args: *A) -> T:
    """Run ``work`` in attempts until one commits, or was ended by itself; return what it returned.

    A retryable error is swallowed by the block of its attempt, and the loop goes on.
    """
    check_callable(work)
    for attempt in attempts:
        with attempt as tx:
            result = work(tx, *args)
            if type(result) in _NOT_BEGUN:
                check_has_run(work, result)
    return result
