"""The real environment: threads that run what is due, and sources that are not the same twice."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType

import pytest

from tidelog.engine.system.production import production
from tidelog.engine.system.thread_task import ThreadTask

WAIT = 60.0
NEVER = 3600.0


def test_a_task_runs_when_it_is_woken_and_not_after_it_was_stopped() -> None:
    ran = threading.Semaphore(0)
    task = ThreadTask("test", NEVER, ran.release)
    for _ in range(3):
        task.wake()
        assert ran.acquire(timeout=WAIT)
    task.stop()
    task.stop()
    task.wake()
    task._thread.join(WAIT)
    assert not task._thread.is_alive()
    assert not ran.acquire(blocking=False)


def test_a_task_runs_by_itself_after_its_interval() -> None:
    ran = threading.Semaphore(0)
    task = ThreadTask("test", 0.001, ran.release)
    for _ in range(3):
        assert ran.acquire(timeout=WAIT)
    task.stop()


def test_a_task_may_stop_itself() -> None:
    stopped = threading.Semaphore(0)

    def work() -> None:
        task.stop()
        stopped.release()

    task = ThreadTask("test", NEVER, work)
    task.wake()
    assert stopped.acquire(timeout=WAIT)
    task._thread.join(WAIT)
    assert not task._thread.is_alive()


def test_work_that_is_done_for_good_ends_its_thread() -> None:
    task = ThreadTask("test", NEVER, lambda: True)
    task.wake()
    task._thread.join(WAIT)
    assert not task._thread.is_alive()
    task.stop()


def test_work_that_fails_is_told_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler of logging that raised once ended the syncs of `interval` without a word."""
    ran, told = threading.Semaphore(0), list[BaseException | None]()

    def work() -> None:
        ran.release()
        raise ValueError("a handler of logging")

    monkeypatch.setattr(threading, "excepthook", lambda what: told.append(what.exc_value))
    task = ThreadTask("test", NEVER, work)
    for _ in range(2):
        task.wake()
        assert ran.acquire(timeout=WAIT)
    task.stop()
    assert [str(error) for error in told] == ["a handler of logging"] * 2


def test_the_clock_of_the_boot_never_runs_backwards_and_points_do_nothing() -> None:
    environment = production()
    first = environment.boottime()
    environment.reached("anything")
    assert 0 < first <= environment.boottime()


class Alarm(BaseException):
    """What the handler of a signal raises."""


class Interrupts:
    """Interrupts the main thread once, in a function of a certain name."""

    def __init__(self, *names: str) -> None:
        self._names = names
        self._done = False
        self._sent = threading.Event()
        self._main = threading.main_thread().ident or 0

    def __enter__(self) -> Interrupts:
        self._before = signal.signal(signal.SIGUSR1, self._handle)
        return self

    def __exit__(self, *_exc: object) -> None:
        assert self._sent.wait(WAIT)
        signal.signal(signal.SIGUSR1, self._before)

    def _handle(self, _number: int, frame: FrameType | None) -> None:
        if not self._done and frame is not None and frame.f_code.co_name in self._names:
            self._done = True
            raise Alarm

    def send(self) -> None:
        """Send signals, from another thread, until one has come where it should."""
        # One that comes just before a wait does not end it.
        while not self._done:
            signal.pthread_kill(self._main, signal.SIGUSR1)
        self._sent.set()


def test_what_begins_a_task_waits_for_nothing_that_is_taken_in_python(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A signal in `Thread.start` left its event's lock as it was, and the error was another one."""
    calls, start = list[int](), threading.Thread.start

    def spy(thread: threading.Thread) -> None:
        calls.append(threading.get_ident())
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", spy)
    task = ThreadTask("test", NEVER, lambda: None)
    task.stop()
    assert len(calls) == 1
    assert threading.get_ident() not in calls


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_task_whose_work_ends_its_thread_holds_up_nobody_who_stops_it() -> None:
    def work() -> None:
        raise SystemExit

    task = ThreadTask("test", NEVER, work)
    task.wake()
    task._thread.join(WAIT)
    assert not task._ended.locked()
    task.stop()


def test_a_task_that_is_woken_to_stop_can_see_that(monkeypatch: pytest.MonkeyPatch) -> None:
    # Else it would do its work once more, and then sleep for its whole interval.
    seen, wake = list[bool](), ThreadTask.wake

    def noted(task: ThreadTask) -> None:
        seen.append(task._stopping)
        wake(task)

    task = ThreadTask("test", NEVER, lambda: None)
    monkeypatch.setattr(ThreadTask, "wake", noted)
    task.stop()
    assert seen == [True]


def test_a_task_without_a_thread_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="can't start"):
        ThreadTask("test", NEVER, lambda: None)


def test_a_task_whose_beginning_is_interrupted_runs_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ran = threading.Semaphore(0)
    threads, start = list[threading.Thread](), threading.Thread.start

    def work() -> None:
        ran.release()
        raise SystemExit

    with Interrupts("__init__") as interrupts, monkeypatch.context() as patch:

        def slow(thread: threading.Thread) -> None:
            start(thread)
            threads.append(thread)
            interrupts.send()

        patch.setattr(threading.Thread, "start", slow)
        with pytest.raises(Alarm):
            ThreadTask("test", NEVER, work)
    threads[0].join(WAIT)
    assert not threads[0].is_alive()
    assert not ran.acquire(blocking=False)


def test_a_stop_waits_for_the_running_work_behind_an_interrupted_one() -> None:
    """CPython's own `join`, interrupted, takes the thread for ended."""
    begun, go = threading.Semaphore(0), threading.Semaphore(0)
    finished: list[int] = []

    with Interrupts("stop", "_wait_for_tstate_lock") as interrupts:

        def work() -> None:
            begun.release()
            interrupts.send()
            assert go.acquire(timeout=WAIT)
            finished.append(1)

        task = ThreadTask("test", NEVER, work)
        task.wake()
        assert begun.acquire(timeout=WAIT)
        with pytest.raises(Alarm):
            task.stop()
    threading.Timer(0.05, go.release).start()
    task.stop()
    assert finished == [1]


def test_the_running_work_is_finished_before_a_stop_returns() -> None:
    begun, go = threading.Semaphore(0), threading.Semaphore(0)
    finished: list[int] = []

    def work() -> None:
        begun.release()
        assert go.acquire(timeout=WAIT)
        finished.append(1)

    task = ThreadTask("test", NEVER, work)
    task.wake()
    assert begun.acquire(timeout=WAIT)
    go.release()
    task.stop()
    assert finished == [1]


def test_the_real_environment_has_clocks_ids_and_this_process() -> None:
    environment = production()
    assert environment.clock() > 1_700_000_000_000_000
    assert environment.monotonic() <= environment.monotonic()
    ids = {environment.new_id() for _ in range(100)}
    assert len(ids) == 100
    assert {len(one) for one in ids} == {16}
    assert environment.pid() == os.getpid()
