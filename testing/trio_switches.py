"""Trio's private switches: all that a run needs of them to be the same for the same seed.

Invariants:

- No other module of Tidelog names anything private of Trio.
- A switch that a newer Trio does not have, or does not use any more, is an error that names it.
- Behind a run every switch is as it was: tests beside it see an ordinary Trio.

Trio shuffles the tasks that may run, so that nobody relies on their order.  Sorted first, and
shuffled by random numbers with a seed, they are shuffled in the same way each time.  Versions need
no pin: which order it is may change with them, that it repeats may not.

A virtual clock does not wait for threads, so what a world does would depend on how fast they are:
Trio gives out none in such a run.  Left out: ``threading``, whose threads do not pass Trio.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any

import trio
from trio._core import _run, _thread_cache

SORTED, CHANCE, THREADS = "_ALLOW_DETERMINISTIC_SCHEDULING", "_r", "THREAD_CACHE"


@contextmanager
def repeatable(seed: str) -> Iterator[None]:
    """Let ``trio.run``, called in this block, take tasks in an order that ``seed`` decides.

    A task that asks Trio for a thread gets ``RuntimeError``.
    """
    check_switches()
    chance: random.Random = getattr(_run, CHANCE)
    before, state = getattr(_run, SORTED), chance.getstate()
    threads = getattr(_thread_cache, THREADS)
    setattr(_run, SORTED, True)
    setattr(_thread_cache, THREADS, _NoThreads(threads))
    chance.seed(seed)
    try:
        yield
    finally:
        setattr(_run, SORTED, before)
        setattr(_thread_cache, THREADS, threads)
        chance.setstate(state)


class _NoThreads:
    """Gives out threads, but not to the thread that made it."""

    def __init__(self, threads: Any) -> None:
        self._threads = threads
        self._refused = get_ident()

    def start_thread_soon(self, *args: Any) -> None:
        if get_ident() == self._refused:
            raise RuntimeError(
                "a simulated world has no threads, and no tidelog.aio: "
                "hand what blocks to node.environment.run"
            )
        self._threads.start_thread_soon(*args)


def end_shields(scope: trio.CancelScope) -> None:
    """Let the cancellation of ``scope`` reach every task inside it, shielded ones included."""
    status: Any = getattr(scope, "_cancel_status")  # noqa: B009  # private on purpose
    waiting = [] if status is None else list(status._children)
    while waiting:
        inner = waiting.pop()
        inner._scope.shield = False
        waiting += inner._children


def check_switches() -> None:
    """Raise ``RuntimeError`` with the names of switches that this Trio does not have."""
    missing = [name for name, found in _switches().items() if not found]
    if missing:
        raise RuntimeError(
            f"trio {trio.__version__} has no {', '.join(missing)} any more; "
            "a simulated world needs them: see testing/trio_switches.py"
        )


def _switches() -> dict[str, bool]:
    loop = getattr(_run, "unrolled_run", None)
    used = inspect.unwrap(loop).__code__.co_names if loop is not None else ()
    status = getattr(_run, "CancelStatus", None)
    starts = getattr(_thread_cache, "start_thread_soon", None)
    asked = starts.__code__.co_names if starts is not None else ()
    return {
        f"trio._core._run.{SORTED}": isinstance(getattr(_run, SORTED, None), bool)
        and SORTED in used,
        f"trio._core._run.{CHANCE}": isinstance(getattr(_run, CHANCE, None), random.Random)
        and CHANCE in used,
        f"trio._core._thread_cache.{THREADS}": {THREADS, "start_thread_soon"} <= {*asked},
        "trio.CancelScope._cancel_status": hasattr(trio.CancelScope, "_cancel_status"),
        "trio._core._run.CancelStatus._children": hasattr(status, "_children"),
        "trio._core._run.CancelStatus._scope": hasattr(status, "_scope"),
    }
