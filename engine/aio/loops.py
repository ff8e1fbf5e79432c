"""What the store asks of an event loop, whoever made it.

A task *sleeps* until it is woken, by whatever thread has its result.  That is all that the store
waits for, so a loop needs little: to let a task sleep, to wake it, and to ask whether what a
cancelled task waits for can be taken back.

Invariants:

- Who is cancelled while asleep, and cannot take back what it asked for, sleeps on, learns the
  outcome, and is cancelled at its next checkpoint.

Left out: the loops that there are (``trio_loop``, ``asyncio_loop``), which one runs (``running``),
and what is built on sleeping (``waiting``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, Protocol, TypeVar

from ...affinity.errors import UsageError

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


def called(name: str) -> Callable[[F], F]:
    """Return a decorator that gives an async function the name under which users know it.

    Python warns by it of what was never awaited.
    """

    def renamed(function: F) -> F:
        function.__qualname__ = name
        return function

    return renamed


class Loop(Protocol):
    """The event loop that a store was opened in."""

    place: object
    """What ``here`` returns in this loop."""

    def here(self) -> object:
        """Return something else than ``place`` in another thread; as quick as can be."""

    def runs_here(self) -> bool:
        """Tell whether this is the loop that runs in this thread."""

    def task(self) -> Hashable:
        """Return the task that runs now."""

    def protected(self, function: F) -> F:
        """Return the function, which Ctrl-C does not interrupt if the loop can defer it."""

    def soon(self, work: Callable[..., object], /, *args: Any) -> bool:
        """Have the loop call ``work(*args)``, from any thread; False if the loop has ended."""

    def has_ended(self) -> bool:
        """Tell whether the loop has ended, in any thread."""

    def start(self, job: Callable[[], None], /) -> None:
        """Run a job, which raises nothing, in some thread."""

    def watch(self, socket: int, ready: Callable[[], bool], over: Callable[[], object], /) -> None:
        """Call ``ready()`` whenever a socket has something to read, until that is False; in the
        loop.

        Then ``over()`` is called, and also if a signal or the end of the loop comes between; not by
        a loop that is closed.
        """

    async def checkpoint(self) -> None:
        """Let other tasks run, and check for cancellation."""

    async def checkpoint_if_cancelled(self) -> None:
        """Check for cancellation."""

    async def sleep(self, seconds: float, /) -> None:
        """Pause."""

    async def within(self, seconds: float, work: Callable[[], Awaitable[object]], /) -> bool:
        """Await ``work()``; False if that takes longer, and was cancelled."""

    def sleeper(self) -> Any:
        """Return what ``wake`` wakes this task by."""

    def wait(self, sleeper: Any, give_up: Callable[..., bool], /, *args: Any) -> Awaitable[None]:
        """Sleep until ``wake(sleeper)``.

        If the task is cancelled, ``give_up(*args)`` tells whether that ends the sleep.
        """

    def wake(self, sleeper: Any, /) -> None:
        """End the sleep of a task; in the loop."""


def wrong_loop() -> UsageError:
    """Return the error for a call from another loop, or another thread, than the store's."""
    return UsageError(
        "a store of `tidelog.aio` can be used only in the loop that opened it",
        hint="Use its `.database`, which threads may share, or open with `tidelog.open`.",
    )


def take_back(queue: deque[T], entry: T) -> bool:
    """Remove an entry from a queue; False if somebody has taken it out."""
    try:
        queue.remove(entry)
    except ValueError:
        return False
    return True


def never() -> bool:
    """Refuse to give up."""
    return False
