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
from uuid import UUID

import trio

from tidelog.engine.commit.commit_log import CommitLog
from tidelog.engine.commit.context import CommitContext
from tidelog.engine.commit.entries import Commit
from tidelog.engine.net.connection import Sent
from tidelog.engine.net.frames import Message
from tidelog.engine.node.log import Haste, NodeLog
from tidelog.engine.node.outflow import Outflow
from tidelog.engine.node.prepared import ClientCommit
from tidelog.engine.node.server import run_member
from tidelog.engine.system.interpreter import prepare_interpreter
from tidelog.engine.system.production import production

STAGES = ("syncs", "frames", "log", "sync", "messages", "prepared", "here", "everywhere")
"""Syncs and frames, nanoseconds in which frames were made and written, and of syncs.

Then messages of data to other members, how many transactions were prepared here, and the sums of
the nanoseconds of these from the queue to the own disk, and from there to all other copies.
"""
COPIES = 4
"""The first of the stages that have to do with other copies."""
LAYOUT = struct.Struct(f"<{len(STAGES)}Q")

T = TypeVar("T")


def read_stages(file: Path) -> dict[str, int]:
    """What a member has told so far."""
    return dict(zip(STAGES, LAYOUT.unpack(file.read_bytes()), strict=True))


def _time_copies() -> dict[str, int]:
    """Count and time what has to do with other copies; the figures are those from COPIES on."""
    figures = dict.fromkeys(STAGES[COPIES:], 0)
    send, put = Outflow._send, NodeLog.put
    apply, decided = ClientCommit.apply, ClientCommit.decided
    since: dict[ClientCommit, int] = {}

    def counted_send(self: Outflow, member: UUID, message: Message) -> Sent:
        figures["messages"] += 1
        return send(self, member, message)

    def timed_put(self: NodeLog, commit: Commit, haste: Haste = Haste.AT_ONCE) -> None:
        if isinstance(commit, ClientCommit):
            since[commit] = time.perf_counter_ns()
        put(self, commit, haste)

    def next_stage(commit: ClientCommit, stage: str) -> None:
        now = time.perf_counter_ns()
        figures[stage] += now - since.get(commit, now)
        since[commit] = now

    def timed_apply(self: ClientCommit, context: CommitContext, end: int) -> None:
        next_stage(self, "here")
        if self.record_prepared is None:
            since.pop(self, None)
        apply(self, context, end)

    def timed_decided(self: ClientCommit) -> None:
        next_stage(self, "everywhere")
        since.pop(self, None)
        figures["prepared"] += 1
        decided(self)

    Outflow._send = counted_send  # type: ignore[method-assign]
    NodeLog.put = timed_put  # type: ignore[method-assign]
    ClientCommit.apply = timed_apply  # type: ignore[method-assign]
    ClientCommit.decided = timed_decided  # type: ignore[method-assign]
    return figures


def main() -> None:
    """Run the member."""
    *_, directory, file = sys.argv
    environment = production()
    syncs = frames = log_ns = sync_ns = 0
    append, run = CommitLog.try_append, environment.run
    copies = _time_copies()

    def timed_append(self: CommitLog, payload: bytes) -> bool:
        nonlocal frames, log_ns
        begin = time.perf_counter_ns()
        try:
            appended = append(self, payload)
        finally:
            log_ns += time.perf_counter_ns() - begin
        frames += appended
        return appended

    async def timed_run(kind: str, work: Callable[[], T]) -> T:
        nonlocal syncs
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
            syncs += 1
            LAYOUT.pack_into(told, 0, syncs, frames, log_ns, sync_ns, *copies.values())

    Path(file).write_bytes(bytes(LAYOUT.size))
    CommitLog.try_append = timed_append  # type: ignore[method-assign]
    with open(file, "r+b") as opened, mmap.mmap(opened.fileno(), LAYOUT.size) as told:
        timed = replace(environment, run=timed_run)
        prepare_interpreter()
        trio.run(lambda: run_member(timed, directory, ready=lambda _where: None, stop=trio.Event()))


if __name__ == "__main__":
    main()
