"""Trio as the store needs it.

A task is what is woken: Trio holds what a task sleeps for.
"""

from __future__ import annotations

from _thread import get_ident
from collections.abc import Awaitable, Callable
from typing import Any

import trio
from trio.lowlevel import (
    Abort,
    Task,
    checkpoint,
    checkpoint_if_cancelled,
    current_task,
    current_trio_token,
    enable_ki_protection,
    reschedule,
    spawn_system_task,
    start_thread_soon,
    wait_readable,
    wait_task_rescheduled,
)


class TrioLoop:
    """The Trio loop that runs in this thread."""

    task = staticmethod(current_task)
    sleeper = staticmethod(current_task)
    wake = staticmethod(reschedule)
    protected = staticmethod(enable_ki_protection)
    checkpoint = staticmethod(checkpoint)
    checkpoint_if_cancelled = staticmethod(checkpoint_if_cancelled)
    sleep = staticmethod(trio.sleep)
    here = staticmethod(get_ident)

    def __init__(self) -> None:
        self._token = current_trio_token()
        self.place: object = get_ident()

    def runs_here(self) -> bool:
        """Tell whether this is the loop that runs in this thread."""
        try:
            return current_trio_token() is self._token
        except RuntimeError:
            return False

    def soon(self, work: Callable[..., object], /, *args: Any) -> bool:
        """Have the loop call ``work(*args)``, from any thread; False if the loop has ended."""
        try:
            self._token.run_sync_soon(work, *args)
        except trio.RunFinishedError:
            return False
        return True

    def has_ended(self) -> bool:
        """Tell whether the loop has ended, in any thread."""
        try:
            self._token.run_sync_soon(int, idempotent=True)  # it does not tell otherwise
        except trio.RunFinishedError:
            return True
        return False

    @staticmethod
    def watch(socket: int, ready: Callable[[], bool], over: Callable[[], object]) -> None:
        """Call ``ready()`` whenever a socket has something to read, until that is False."""

        async def look() -> None:
            try:
                await wait_readable(socket)
                while ready():
                    await wait_readable(socket)
            finally:  # at the end of a run before generators end that are left
                over()

        try:
            spawn_system_task(look)
        except RuntimeError:  # that end has come
            over()

    @staticmethod
    def start(job: Callable[[], None]) -> None:
        """Run a job in one of the threads that Trio keeps."""
        start_thread_soon(job, lambda _: None)

    @staticmethod
    async def within(seconds: float, work: Callable[[], Awaitable[object]]) -> bool:
        """Await ``work()``; False if that takes longer, and was cancelled."""
        with trio.move_on_after(seconds):
            await work()
            return True
        return False

    @staticmethod
    def wait(_sleeper: Task, give_up: Callable[..., bool], *args: Any) -> Awaitable[Any]:
        """Sleep until this task is woken; see ``loops.Loop``."""
        return wait_task_rescheduled(lambda _: Abort.SUCCEEDED if give_up(*args) else Abort.FAILED)
