"""Stores of real files and real LMDB: environments with parts replaced, other processes."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from tidelog.engine.api.database import Database
from tidelog.engine.api.open import open_with
from tidelog.engine.system.environment import Environment
from tidelog.engine.system.production import production
from tidelog.engine.upkeep.check import check_store
from tidelog.errors import TidelogError

CHILD_SECONDS = 20
TESTS = Path(__file__).resolve().parents[1]


class IdleTask:
    """Background work that nobody does; the test calls ``maintain`` where it wants it."""

    def __init__(self, name: str, seconds: float, work: Callable[[], object]) -> None:
        self.name = name
        self.work = work
        self.woken = 0

    def wake(self) -> None:
        self.woken += 1

    def stop(self, *, wait: bool = True) -> None:
        """There is nothing to stop."""


def quiet(**parts: Any) -> Environment:
    """The real environment without background work, with other parts replaced too."""
    return replace(production(), **{"background": IdleTask, **parts})


def opened(path: Path, environment: Environment | None = None, **options: Any) -> Database:
    """Open a store without background work."""
    database: Database = open_with(environment or quiet(), path, **options)
    return database


def expect_sound(path: Path) -> None:
    """Fail with what the built-in check finds wrong with a closed store."""
    assert check_store(path) == []


def digests(path: Path) -> dict[str, str]:
    """The content of every file below a directory, links and other things by what they are."""
    found = {}
    for file in files_of(path):
        if file.is_symlink() or not file.is_file():
            found[str(file.relative_to(path))] = f"{os.lstat(file).st_mode:o}"
        else:
            found[str(file.relative_to(path))] = hashlib.sha256(file.read_bytes()).hexdigest()
    return found


def files_of(path: Path) -> Iterator[Path]:
    for folder, _, names in os.walk(path):
        for name in sorted(names):
            yield Path(folder, name)


class Ran(NamedTuple):
    """How another process ended: its exit status, and what it printed."""

    status: int
    out: str
    err: str


def run_python(program: str, *arguments: object, timeout: float = 120) -> Ran:
    """Run a program in an interpreter of its own, warnings as errors."""
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-W", "error", "-c", program, *map(str, arguments)],
        cwd=TESTS,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def in_child(work: Callable[[], object]) -> int:
    """Do some work in a forked process; return its status: 0, 1 with a traceback, or -signal.

    A child that hangs is ended by SIGALRM.
    """
    with warnings.catch_warnings():
        # Python warns of forks beside threads; those of a store are of no concern to the child.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        status = 1
        try:
            signal.alarm(CHILD_SECONDS)
            work()
            status = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(status)
    _, ended = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(ended)


def error_of(work: Callable[[], object]) -> TidelogError | None:
    """Do some work; return the error of Tidelog that it ends in, or None.  Others go through."""
    try:
        work()
    except TidelogError as error:
        return error
    return None
