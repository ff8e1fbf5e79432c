"""The real environment: threads that run what is due, and sources that are not the same twice."""

from __future__ import annotations

import os
import threading

import pytest

from tidelog.engine.environment import ThreadTask, production

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


def test_a_task_whose_start_is_interrupted_runs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    ran, threads = threading.Semaphore(0), list[threading.Thread]()
    start = threading.Thread.start

    def work() -> None:
        ran.release()
        raise SystemExit

    def interrupted(self: threading.Thread) -> None:
        start(self)
        threads.append(self)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ThreadTask("test", NEVER, work)
    threads[0].join(WAIT)
    assert not threads[0].is_alive()
    assert not ran.acquire(blocking=False)


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
