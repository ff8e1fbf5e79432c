"""Work that a thread of its own does now and then, or as soon as it is woken.

Invariants:

- Whoever makes, wakes or stops a task may be interrupted by a signal at any line.
- What goes wrong with the work once is told, and does not end it.

Left out: what is done (``store.maintenance`` most of all).
"""

from __future__ import annotations

import sys
import threading
from _thread import LockType, start_new_thread
from collections.abc import Callable
from contextlib import suppress

from .wakes import held_lock


class ThreadTask:
    """A daemon thread that runs ``work`` each ``seconds``, and whenever it is woken.

    Whoever makes, wakes or stops it may be interrupted by a signal, and waits for locks of the
    interpreter only.  What ``threading`` waits for is taken in Python, where a signal can come
    between the taking and the ``with``: the lock would stay taken.  So not even ``Thread.start``
    is called here, but by a thread of its own, and a ``join`` that is interrupted would take the
    thread for ended.
    """

    def __init__(self, name: str, seconds: float, work: Callable[[], object]) -> None:
        self._seconds = seconds
        self._work = work
        self._stopping = False
        self._bell = held_lock()
        """Released when there is something to do."""
        self._ended = held_lock()
        """Released when the work has been done for the last time."""
        self._failure: RuntimeError | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        begun = held_lock()
        try:
            start_new_thread(self._begin, (begun,))
            with begun:
                pass
        except BaseException:  # nobody will stop it
            self.stop(wait=False)
            raise
        if self._failure is not None:
            raise self._failure

    def _begin(self, begun: LockType) -> None:
        try:
            self._thread.start()
        except RuntimeError as error:  # no further thread can be had
            self._failure = error
        finally:
            begun.release()

    def _run(self) -> None:
        try:
            while True:
                self._bell.acquire(timeout=self._seconds)
                if self._stopping or self._done():
                    return
        finally:
            self._ended.release()

    def _done(self) -> bool:
        """Do the work once; whatever goes wrong with it is told, and it is tried again later."""
        try:
            return bool(self._work())
        except Exception:  # no bug alone: so may a handler of logging, or memory that ran out
            with suppress(Exception):
                threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), self._thread)))
            return False

    def wake(self) -> None:
        """Run the work soon."""
        with suppress(RuntimeError):  # it rings already
            self._bell.release()

    def stop(self, *, wait: bool = True) -> None:
        """Run the work no more; return when it has finished, unless told not to wait."""
        self._stopping = True
        self.wake()
        if wait and self._thread is not threading.current_thread():
            with self._ended:
                pass
