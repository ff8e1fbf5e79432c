"""The processes of members: started, found, and ended.

A number of a process may be another one's by the time that it is used.  So a member's process is
found by its command line, which names its directory, and what is signalled is a descriptor of that
process, which no other one takes over.

Invariants:

- Nothing is signalled but a process that runs the member of the directory that was named.
- A process has its own session: Ctrl-C at the terminal is not for it.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from ...engine.system.layout import SERVER_LOG_NAME

LOG_BYTES_SHOWN = 4096
LOG_LINES_SHOWN = 12


def command_line(directory: str, options: Sequence[str] = ()) -> list[str]:
    """Return the command that runs the member of a directory."""
    place = os.path.realpath(directory)
    return [sys.executable, "-m", "tidelog", "server", "run", place, "-v", *options]


def start_process(directory: str, options: Sequence[str] = ()) -> int:
    """Run the member of a directory; its output goes to its log.  Returns the process.

    It imports nothing from the directory in which it is started: files of users have any names.
    """
    log = os.path.join(directory, SERVER_LOG_NAME)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    command = command_line(directory, options)
    return os.posix_spawn(
        command[0],
        command,
        {**os.environ, "PYTHONSAFEPATH": "1"},
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, log, flags, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
    )


@dataclass(frozen=True, slots=True)
class MemberProcess:
    """A process that runs a member: its number, and a descriptor of it."""

    pid: int
    descriptor: int

    def send(self, number: signal.Signals) -> None:
        """Send a signal; nothing happens if it has ended."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.descriptor, number)

    def ended(self, seconds: float) -> bool:
        """Tell whether it has ended, or does so within some seconds."""
        poll = select.poll()
        poll.register(self.descriptor, select.POLLIN)
        if not poll.poll(seconds * 1000):
            return False
        with suppress(ChildProcessError):  # of who started it; this may be another one
            os.waitpid(self.pid, os.WNOHANG)
        return True


@contextmanager
def process_of(directory: str) -> Iterator[MemberProcess | None]:
    """Yield the process that runs the member of a directory; None if there is none."""
    for name in os.listdir("/proc"):
        if not name.isdigit() or not _runs(name, directory):
            continue
        with suppress(ProcessLookupError):
            descriptor = os.pidfd_open(int(name))
            try:
                if _runs(name, directory):  # the one that the descriptor is of
                    yield MemberProcess(int(name), descriptor)
                    return
            finally:
                os.close(descriptor)
    yield None


def pid_of(directory: str) -> int:
    """Return the number of the process that runs the member of a directory; 0 if there is none."""
    with process_of(directory) as process:
        return process.pid if process else 0


def _runs(pid: str, directory: str) -> bool:
    wanted = [os.fsencode(part) for part in command_line(directory)[3:6]]
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            parts = file.read().split(b"\0")
    except OSError:
        return False
    return any(parts[at : at + len(wanted)] == wanted for at in range(len(parts)))


def end_of_log(directory: str) -> list[str]:
    """Return the last lines that the member of a directory has written to its log."""
    try:
        with open(os.path.join(directory, SERVER_LOG_NAME), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LOG_BYTES_SHOWN))
            return file.read().decode(errors="replace").splitlines()[-LOG_LINES_SHOWN:]
    except FileNotFoundError:
        return []
