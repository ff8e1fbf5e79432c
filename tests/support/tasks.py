"""What tests do with tasks, the same under Trio and under asyncio, and a run of either.

A test that is marked ``loops`` runs under both (``pytest_generate_tests``); so does one for each
face of a map that is for tasks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from functools import partial, wraps
from typing import Any, Protocol, TypeVar

import trio
import trio.testing

from tidelog.engine.aio.running import in_trio

T = TypeVar("T")
Work = Callable[..., Awaitable[object]]


# ------------------------------------------------------------------ runs


def run_in_trio(main: Callable[..., Awaitable[T]], *args: Any) -> T:
    """Run an async function under Trio."""
    return trio.run(main, *args)


def run_in_asyncio(main: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
    """Run an async function under asyncio; what its loop only logs is an error."""
    told: list[dict[str, Any]] = []

    async def listened_to() -> T:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        return await main(*args)

    result = asyncio.run(listened_to())
    assert told == [], told
    return result


RUNS: dict[str, Callable[..., Any]] = {"trio": run_in_trio, "asyncio": run_in_asyncio}


def as_plain_test(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that runs an async one under asyncio."""

    @wraps(test)
    def run(**arguments: Any) -> None:
        run_in_asyncio(partial(test, **arguments))

    return run


def run_of_this_kind() -> Callable[..., Any]:
    """What runs another loop of the kind that runs here."""
    return RUNS["trio" if in_trio() else "asyncio"]


# ------------------------------------------------------------------ tasks


class Nursery(Protocol):
    """Tasks that end before its block does."""

    cancelled_caught: bool

    def start_soon(self, work: Work, *args: Any) -> None: ...

    def cancel(self) -> None: ...


class OfTrio:
    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery

    def start_soon(self, work: Work, *args: Any) -> None:
        self._nursery.start_soon(work, *args)

    def cancel(self) -> None:
        self._nursery.cancel_scope.cancel()

    @property
    def cancelled_caught(self) -> bool:
        return self._nursery.cancel_scope.cancelled_caught


class OfAsyncio:
    """Cancels its tasks, and not the block: the block would be cut off at its next await."""

    def __init__(self, group: asyncio.TaskGroup) -> None:
        self._group = group
        self._tasks: list[asyncio.Task[object]] = []

    def start_soon(self, work: Work, *args: Any) -> None:
        async def run() -> object:
            return await work(*args)

        self._tasks.append(self._group.create_task(run()))

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    @property
    def cancelled_caught(self) -> bool:
        return any(task.cancelled() for task in self._tasks)


@asynccontextmanager
async def open_nursery() -> AsyncIterator[Any]:
    """Run tasks until all have ended; an error of one cancels the others."""
    if in_trio():
        async with trio.open_nursery() as nursery:
            yield OfTrio(nursery)
    else:
        async with asyncio.TaskGroup() as group:
            yield OfAsyncio(group)


async def checkpoint() -> None:
    """Let other tasks run."""
    await (trio.lowlevel.checkpoint() if in_trio() else asyncio.sleep(0))


async def in_thread(work: Callable[..., T], *args: Any) -> T:
    """Return ``work(*args)``, called in another thread."""
    return await (trio.to_thread.run_sync if in_trio() else asyncio.to_thread)(work, *args)


def event() -> Any:
    """Something to ``set`` and to ``wait`` for."""
    return trio.Event() if in_trio() else asyncio.Event()


def would_block() -> type[Exception]:
    """What ``get_nowait`` raises."""
    return trio.WouldBlock if in_trio() else BlockingIOError


async def wait_all_tasks_blocked() -> None:
    """Let all other tasks run until they wait for something."""
    if in_trio():
        return await trio.testing.wait_all_tasks_blocked()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    while any(_is_ready(task) for task in others):
        await asyncio.sleep(0)
    return None


def _is_ready(task: asyncio.Task[Any]) -> bool:
    waiting_for: asyncio.Future[Any] | None = task._fut_waiter  # type: ignore[attr-defined]
    return not task.done() and (waiting_for is None or waiting_for.done())


# ------------------------------------------------------------------ cancellation


class Scope:
    """A part of a task of asyncio that can be cancelled, as ``asyncio.timeout`` does it."""

    cancelled_caught = False

    def __enter__(self) -> Scope:
        task = asyncio.current_task()
        assert task is not None
        self.task = task
        self._called = False
        return self

    def cancel(self) -> None:
        self._called = True
        self.task.cancel()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        left = self.task.uncancel() if self._called else 1
        self.cancelled_caught = kind is asyncio.CancelledError and not left
        return self.cancelled_caught


def scope() -> Any:
    """Begin a part of the task that can be cancelled."""
    return trio.CancelScope() if in_trio() else Scope()


def shielded() -> AbstractContextManager[object]:
    """Let nobody cancel what is inside; under asyncio nobody does."""
    return trio.CancelScope(shield=True) if in_trio() else nullcontext()


@contextmanager
def cancelled_at(scope: Any, step: int, when: str) -> Iterator[Callable[[Any], Awaitable[Any]]]:
    """Cancel a scope at the n-th step of what is awaited through the function that this gives.

    ``before`` the step begins, when its result is there already, or ``after`` it.
    """
    if not in_trio():
        yield lambda work: Stepped(work, scope, step, when)
        return
    instrument = AtStep(scope, step, when)
    trio.lowlevel.add_instrument(instrument)
    try:
        yield lambda work: work
    finally:
        trio.lowlevel.remove_instrument(instrument)


class AtStep(trio.abc.Instrument):
    """Cancels a scope when its task is about to take its n-th step, or has just taken it."""

    def __init__(self, scope: trio.CancelScope, step: int, when: str) -> None:
        self._scope = scope
        self._task = trio.lowlevel.current_task()
        self._left = step
        self._when = when

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is self._task and self._when == "before":
            self._count()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if task is self._task and self._when != "before":
            self._count()

    def _count(self) -> None:
        self._left -= 1
        if self._left == 0:
            self._scope.cancel()


class Stepped:
    """Work of a task of asyncio whose scope is cancelled when it waits for the n-th time.

    ``after`` it has begun to wait, ``before`` it goes on and when what it waits for is there, or
    ``while`` it runs, which is when a signal does it.
    """

    def __init__(self, work: Awaitable[Any], scope: Scope, step: int, when: str) -> None:
        self._work = work
        self._scope = scope
        self._left = step
        self._when = when

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._work.__await__()
        send: Callable[[], Any] = partial(next, steps)
        while True:
            try:
                waited_for = send()
            except StopIteration as end:
                return end.value
            self._left -= 1
            if self._left == 0:
                self._cancel(waited_for)
            try:
                yield waited_for
            except BaseException as error:
                send = partial(steps.throw, error)
            else:
                send = partial(next, steps)

    def _cancel(self, waited_for: asyncio.Future[Any] | None) -> None:
        if self._when == "while":
            self._scope.cancel()
        elif self._when == "before" and waited_for is not None:
            waited_for.add_done_callback(lambda _: self._scope.cancel())
        else:
            asyncio.get_running_loop().call_soon(self._scope.cancel)
