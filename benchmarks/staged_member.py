"""A member of a cluster that takes the time of its stages, until it is ended.

    python benchmarks/staged_member.py server run DIRECTORY FILE

The figures are in the file all the while, as numbers of 8 bytes (``STAGES``).  The points at which
time is taken are put around functions of the product here, so that the product has none.
"""

from __future__ import annotations

import mmap
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import trio

from tidelog.engine.commit.commit_log import CommitLog
from tidelog.engine.node.server import run_member
from tidelog.engine.system.production import production

STAGES = ("frames", "log", "sync")
"""Frames that were synced, nanoseconds in which frames were made and written, and of syncs."""
LAYOUT = struct.Struct(f"<{len(STAGES)}Q")

T = TypeVar("T")


def read_stages(file: Path) -> dict[str, int]:
    """What a member has told so far."""
    return dict(zip(STAGES, LAYOUT.unpack(file.read_bytes()), strict=True))


def main() -> None:
    """Run the member."""
    *_, directory, file = sys.argv
    environment = production()
    frames = log_ns = sync_ns = 0
    append, run = CommitLog.try_append, environment.run

    def timed_append(self: CommitLog, payload: bytes) -> bool:
        nonlocal log_ns
        begin = time.perf_counter_ns()
        try:
            return append(self, payload)
        finally:
            log_ns += time.perf_counter_ns() - begin

    async def timed_run(kind: str, work: Callable[[], T]) -> T:
        nonlocal frames
        if kind != "sync":
            return await run(kind, work)

        def timed() -> T:
            nonlocal sync_ns
            begin = time.perf_counter_ns()
            try:
                return work()
            finally:
                sync_ns += time.perf_counter_ns() - begin

        try:
            return await run(kind, timed)
        finally:
            frames += 1
            LAYOUT.pack_into(told, 0, frames, log_ns, sync_ns)

    Path(file).write_bytes(bytes(LAYOUT.size))
    CommitLog.try_append = timed_append  # type: ignore[method-assign]
    with open(file, "r+b") as opened, mmap.mmap(opened.fileno(), LAYOUT.size) as told:
        timed = replace(environment, run=timed_run)
        trio.run(lambda: run_member(timed, directory, ready=lambda _where: None, stop=trio.Event()))


if __name__ == "__main__":
    main()
