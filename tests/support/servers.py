"""Other programs that a test runs: started, waited for by what they print, ended by SIGTERM."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "web"
SECONDS = 60
"""How long a program may take to begin, and to end."""

ENDED = "the program has closed its output\n"


class Program:
    """A program that runs; what it prints is gathered as it comes."""

    def __init__(self, *command: object, folder: Path, **variables: object) -> None:
        self.lines: list[str] = []
        self._printed = threading.Condition()
        self._process = subprocess.Popen(
            [sys.executable, *map(str, command)],
            cwd=folder,
            env={**os.environ, **{name: str(value) for name, value in variables.items()}},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._gather)
        self._reader.start()

    def _gather(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if not line.endswith("\n"):
                break  # a kill cut it
            with self._printed:
                self.lines.append(line)
                self._printed.notify_all()
        with self._printed:
            self.lines.append(ENDED)
            self._printed.notify_all()

    @property
    def printed(self) -> str:
        return "".join(self.lines)

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Wait until it has printed a line that matches."""

        def found() -> re.Match[str] | None:
            return next(filter(None, (re.search(pattern, line) for line in self.lines)), None)

        with self._printed:
            self._printed.wait_for(lambda: found() or self.lines[-1:] == [ENDED], SECONDS)
        match = found()
        assert match, f"no {pattern!r} in what it printed:\n{self.printed}"
        return match

    def address(self) -> str:
        """Where a server listens."""
        return self.wait_for(r"(?:running on|Listening at:) (http://127\.0\.0\.1:\d+)")[1]

    def wait(self) -> int:
        """Wait for its end; return its exit status."""
        status = self._process.wait(SECONDS)
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()
        return status

    def terminate(self) -> int:
        """End it as `docker stop` does; return its exit status."""
        self.send(signal.SIGTERM)
        return self.wait()

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """End it, and whatever it started, at any price."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        if self._reader.is_alive():
            self.wait()


@contextmanager
def running(*command: object, folder: Path, **variables: object) -> Iterator[Program]:
    """Run a program, which has to have ended at the end of the block."""
    program = Program(*command, folder=folder, **variables)
    try:
        yield program
        assert program._process.poll() is not None, "it runs still"
    finally:
        program.kill()
