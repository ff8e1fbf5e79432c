"""PySyncObj as a peer: two processes on loopback, and the one of the clients as the third member.

Its client is always a member, and here the one that leads, which is quickest: the others wait long
before they stand.  A put is answered when a majority has it in its journal, which is a
mapped file that is never synced: it outlives a process, no loss of power.  Its gets are of the own
copy, however old that is, so they have no row here.

    python benchmarks/pysync.py FOLDER NUMBER ADDRESS,ADDRESS,ADDRESS
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from time import monotonic, sleep
from typing import Any

from etcd import free_ports

START_S_MAX = 60.0
PUT_S_MAX = 30.0
MEMBERS = 3
STANDS_S, WAITS_S = 0.4, 20.0
"""Seconds without a leader until the member of the clients stands, and until another does."""


def missing() -> str | None:
    """Why PySyncObj cannot take part here; None if it can."""
    if importlib.util.find_spec("pysyncobj") is None:
        return "PySyncObj is not installed"
    return None


def version() -> str:
    """Of the library that is here."""
    return importlib.metadata.version("pysyncobj")


@contextmanager
def running(folder: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Run two members until the block ends; yields what the third needs, and who they are."""
    addresses = ",".join(f"127.0.0.1:{port}" for port in free_ports(MEMBERS))
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, str(folder), str(number), addresses], stdout=sys.stderr
        )
        for number in range(1, MEMBERS)
    ]
    try:
        yield f"{folder}|{addresses}", tuple(process.pid for process in processes)
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()


def _member(folder: str, number: int, addresses: str) -> tuple[Any, Any]:
    """A member, and the dictionary that it has a copy of."""
    from pysyncobj import SyncObj, SyncObjConf
    from pysyncobj.batteries import ReplDict

    logging.disable(logging.WARNING)
    own, *others = [*addresses.split(",")[number:], *addresses.split(",")[:number]]
    table = ReplDict()
    patience = STANDS_S if number == 0 else WAITS_S
    options = SyncObjConf(
        journalFile=f"{folder}/journal{number}",
        raftMinTimeout=patience,
        raftMaxTimeout=2 * patience,
        connectionTimeout=3 * WAITS_S,
    )
    return SyncObj(own, others, options, consumers=[table]), table


class Threads:
    """A member of its own that threads share."""

    def __init__(self, where: str) -> None:
        folder, _, addresses = where.partition("|")
        self._member, self._table = _member(folder, 0, addresses)
        deadline = monotonic() + START_S_MAX
        while not self._member.isReady():
            if monotonic() > deadline:
                raise TimeoutError("the members of PySyncObj have no leader")
            sleep(0.05)

    def put(self, key: bytes, value: bytes) -> object:
        return self._table.set(key, value, sync=True, timeout=PUT_S_MAX)

    def get(self, key: bytes) -> object:
        return self._table.get(key)

    def close(self) -> None:
        self._member.destroy()


if __name__ == "__main__":
    _member(sys.argv[1], int(sys.argv[2]), sys.argv[3])
    Event().wait()
