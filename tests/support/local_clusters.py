"""Clusters of real processes that ``tidelog cluster`` has started, and what commands print."""

from __future__ import annotations

import json
import signal
import socket
from pathlib import Path
from typing import Any

from click.testing import Result

from tidelog.tools.cluster.processes import process_of


def document(done: Result) -> Any:
    """Return the document that a command has printed."""
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def free_port() -> int:
    """Return a port at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def kill_members(folder: Path) -> None:
    """End the members of a cluster, and wait until they have ended."""
    for directory in folder.glob("*[0-9]"):
        with process_of(str(directory)) as process:
            if process:
                process.send(signal.SIGKILL)
                assert process.ended(60)
