"""The attempts of one loop of tasks: ``async for`` each of them, ``async with`` its block.

Left out: how an attempt is made and whether another one follows, which is ``api.attempts``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Protocol, TypeVar, TypeVarTuple, Unpack

from ...affinity.errors import DeadlineError, TidelogError, UsageError
from ..api.attempts import Chance, Retries, check_callable
from ..api.choices import TransactionOptions
from .loops import Loop
from .transactions import Transaction

A = TypeVarTuple("A")
T = TypeVar("T")


class Attempt:
    """One attempt: ``async with attempt as tx``.  Swallows an error that the next may cure."""

    def __init__(self, retries: Retries, transaction: Transaction) -> None:
        self._retries = retries
        self._transaction = transaction

    async def __aenter__(self) -> Transaction:
        """Return the transaction of this attempt."""
        self._retries.entered = True
        return await self._transaction.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        """Commit or roll back; tell whether the error is for the next attempt."""
        try:
            await self._transaction.__aexit__(kind, error, trace)
        except TidelogError as failure:
            if not self._retries.again(failure):
                raise
            return True
        if error is None:
            return False
        return self._retries.again(error, self._transaction)


class Writer(Protocol):
    """Time and chance of a store that can be written."""

    @property
    def now(self) -> Callable[[], float]:
        """Seconds that never run backwards."""

    @property
    def random(self) -> Chance:
        """Where the length of a pause comes from."""


class AttemptPlace(Protocol):
    """What attempts are made in: a store here, or a cluster."""

    @property
    def loop(self) -> Loop:
        """The loop of the tasks."""

    def writer(self) -> Writer:
        """Return what can be written, else raise ``ReadOnlyError``."""

    def transaction(
        self, *, deadline: float | None, **options: Unpack[TransactionOptions]
    ) -> Transaction:
        """Return a transaction for an ``async with`` block."""


class Attempts(AsyncIterator[Attempt]):
    """The attempts of one loop: ends after the one that commits; the last one raises."""

    def __init__(
        self,
        store: AttemptPlace,
        count: int,
        deadline: float | None,
        options: TransactionOptions,
        late: Callable[[DeadlineError], None] | None = None,
    ) -> None:
        """``late`` is as in ``Retries``."""
        self._store = store
        now = store.writer().now
        self._retries = Retries("async with", count, deadline, options, now, late)
        self._pause = 0.0

    async def __anext__(self) -> Attempt:
        """Pause, and return the next attempt."""
        retries = self._retries
        if retries.number:
            if not retries.goes_on():
                raise StopAsyncIteration
            await self._store.loop.sleep(self._store.writer().random.uniform(0.0, self._pause))
        plan = retries.next()
        self._pause = plan.pause
        return Attempt(retries, self._store.transaction(deadline=plan.left, **plan.options))


async def run(attempts: Attempts, work: Callable[[Transaction, *A], Awaitable[T]], *args: *A) -> T:
    """Run ``work`` in attempts until one commits; see ``api.attempts``."""
    check_callable(work)
    async for attempt in attempts:
        async with attempt as tx:
            running = work(tx, *args)
            if not isinstance(running, Awaitable):
                raise UsageError(
                    f"{work!r} is not an async function",
                    hint="Give one that is made with `async def`, and does not `yield`.",
                )
            result = await running
    return result
