"""asyncio as the store needs it: sleeping, so that a cancellation waits for what has begun.

A task of asyncio that is cancelled is thrown out of what it awaits.  Here it asks first: a
``Sleeper`` that cannot give up refuses, and its task learns the outcome.  The cancellation comes
back right behind that, unless whoever asked for it has taken it back: ``asyncio.timeout`` does at
the end of its block.

Invariants:

- A task that ends before its cancellation comes back ends as it would have ended without it.
- How often a task counts that it was cancelled does not change here.
- What was given to ``soon`` is called, even if Ctrl-C interrupts the loop at a wrong moment: a
  task that is cancelled and sleeps on has the loop look again.
"""

from __future__ import annotations

import asyncio
from _thread import get_ident
from asyncio import current_task
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from .threads import threads

F = TypeVar("F", bound=Callable[..., Any])


class AsyncioLoop:
    """The asyncio loop that runs in this thread."""

    start = staticmethod(threads.start)
    sleep = staticmethod(asyncio.sleep)

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.place: object = get_ident()
        self._calls: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._is_running = self.loop.is_running
        self._late: set[asyncio.Task[Any]] = set()
        """Tasks that slept on, and whose cancellation is about to come back."""

    def here(self) -> object:
        """Return this thread if the loop runs."""
        return self._is_running() and get_ident()

    def runs_here(self) -> bool:
        """Tell whether this is the loop that runs in this thread."""
        return asyncio._get_running_loop() is self.loop

    def task(self) -> asyncio.Task[Any]:
        """Return the task that runs now."""
        task = current_task(self.loop)
        assert task is not None
        return task

    @staticmethod
    def protected(function: F) -> F:
        """Return the function: asyncio cancels its main task upon Ctrl-C, as others do."""
        return function

    def soon(self, work: Callable[..., object], /, *args: Any) -> bool:
        """Have the loop call ``work(*args)``, from any thread; False if the loop has ended."""
        self._calls.append((work, args))
        try:
            self.loop.call_soon_threadsafe(self._call)
        except RuntimeError:
            return False
        return True

    def has_ended(self) -> bool:
        """Tell whether the loop has ended, in any thread."""
        return self.loop.is_closed()

    def watch(self, socket: int, ready: Callable[[], bool], over: Callable[[], object]) -> None:
        """Call ``ready()`` whenever a socket has something to read, until that is False."""

        def look() -> None:
            goes_on = False
            try:
                goes_on = ready()
            finally:
                if not goes_on:
                    self.loop.remove_reader(socket)
                    over()

        self.loop.add_reader(socket, look)

    def look_again(self) -> None:
        """Have the loop call what is left, should an interrupt have cut it off."""
        self.loop.call_soon(self._call)

    def _call(self) -> None:
        # What is interrupted is called again: waking twice does nothing.
        while self._calls:
            work, args = self._calls[0]
            work(*args)
            self._calls.popleft()

    @staticmethod
    async def checkpoint() -> None:
        """Let other tasks run, and check for cancellation."""
        await asyncio.sleep(0)

    async def checkpoint_if_cancelled(self) -> None:
        """Check for cancellation."""
        task = current_task(self.loop)  # which is asked for: to look for it takes longer
        if getattr(task, "_must_cancel", False) or (self._late and task in self._late):
            await asyncio.sleep(0)

    @staticmethod
    async def within(seconds: float, work: Callable[[], Awaitable[object]]) -> bool:
        """Await ``work()``; False if that takes longer, and was cancelled."""
        try:
            async with asyncio.timeout(seconds):
                await work()
                return True
        except TimeoutError:
            return False

    def sleeper(self) -> Sleeper:
        """Return what ``wake`` wakes this task by."""
        return Sleeper(loop=self.loop)

    async def wait(self, sleeper: Sleeper, give_up: Callable[..., bool], *args: Any) -> None:
        """Sleep until the sleeper is woken; see ``loops.Loop``."""
        sleeper.asked = (self, give_up, args)
        try:
            while True:
                try:
                    return await sleeper
                except asyncio.CancelledError as error:
                    if sleeper.cancelled():
                        raise
                    self._cancel_again(*error.args)
        finally:
            del sleeper.asked  # which may hold it

    def _cancel_again(self, message: object = None) -> None:
        """Cancel this task when it next waits for something, unless that is taken back."""
        task = self.task()
        wanted = task.cancelling()

        def cancel() -> None:
            self._late.discard(task)
            if task.cancelling() >= wanted > 0:
                task.uncancel()
                task.cancel(message)

        self._late.add(task)
        self.loop.call_soon(cancel)

    @staticmethod
    def wake(sleeper: Sleeper) -> None:
        """End the sleep of a task; in the loop."""
        if not sleeper.done():
            sleeper.set_result(None)


class Sleeper(asyncio.Future[None]):
    """What a task sleeps on; its cancellation asks whether the sleep may be given up."""

    asked: tuple[AsyncioLoop, Callable[..., bool], tuple[Any, ...]]

    def cancel(self, msg: object = None) -> bool:
        """End the sleep if it may be given up; else the task sleeps on."""
        if self.done():
            return False
        port, give_up, args = self.asked
        if give_up(*args):
            return super().cancel(msg)
        port.look_again()
        return False
