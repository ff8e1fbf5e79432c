"""Clusters of real processes that ``tidelog cluster`` has started, and what commands print."""

from __future__ import annotations

import json
import os
import signal
import socket
from contextlib import suppress
from itertools import cycle
from pathlib import Path
from typing import Any

from click.testing import Result

from tidelog.tools.cluster.processes import process_of


def document(done: Result) -> Any:
    """Return the document that a command has printed.

    That of ``status`` ends with 6 while something is not served, and only then, and that of
    ``nodes`` if nobody answers.
    """
    found = json.loads(done.stdout)
    if found["type"] == "cluster":
        lacks = found["partitions_served"] < found["partitions"]
    else:
        lacks = found["type"] == "nodes" and all(row["boot"] is None for row in found["nodes"])
    assert done.exit_code == (6 if lacks else 0), done.stderr
    return found


WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
PORTS = cycle(range(12_000 + WORKER % 8 * 2_000, 14_000 + WORKER % 8 * 2_000, 20))
"""Below those that the system gives to who connects: while a cluster is down somebody would have
got one of its ports."""


def free_port() -> int:
    """Return a port at which nobody listens, with some behind it for other members."""
    for port in PORTS:
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("ports never end")


def kill_members(folder: Path) -> None:
    """End the members of a cluster, and wait until they have ended."""
    for directory in folder.glob("*[0-9]"):
        with process_of(str(directory)) as process:
            if process:
                process.send(signal.SIGKILL)
                assert process.ended(60)
