"""A cluster of real processes behind links that can be cut: killed, paused, started, and asked.

Invariants:

- A member listens behind its proxy, and the others know the address of the proxy alone.
- Whoever asks a member goes past the proxy: no cut hinders that.
- All processes have ended at the end of the block.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import trio

from tidelog.engine.agreement.identity import member_id
from tidelog.engine.node.member_files import init_member
from tidelog.engine.system.layout import SERVER_LOG_NAME
from tidelog.engine.system.production import production
from tidelog.tools.cluster.running import free_ports
from tidelog.tools.server.members import identified

from .raw_client import RawClient, connected
from .real_links import HOST, Links

NAMES = ("n1", "n2", "n3")
PARTITIONS = 8
PORT_BASE = 20_000
"""Below what connections get by themselves, which would take the port of a member that is dead."""
ANSWER_S_MAX = 2.0
PATIENCE_S = 60.0
PROGRAM = ("-m", "tidelog")


class Story(NamedTuple):
    """What the newest decision says of a partition."""

    decided: int
    author: str
    in_sync: frozenset[str]


class RealCluster:
    """Three members, each a process, with two backups."""

    def __init__(
        self, folder: Path, links: Links, ports: dict[str, tuple[int, int]], program: Sequence[str]
    ) -> None:
        self.folder = folder
        self.links = links
        self.paused: set[str] = set()
        self._ports = ports
        self._program = program
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def address(self) -> str:
        """Where clients connect: through the proxies."""
        return "tidelog://" + ",".join(f"{HOST}:{front}" for front, _ in self._ports.values())

    def front(self, name: str) -> tuple[str, int]:
        """Where clients and other members reach a member: its proxy."""
        return HOST, self._ports[name][0]

    async def wait_until_up(self) -> None:
        """Wait until somebody has heard of a decision about every partition."""
        with trio.fail_after(PATIENCE_S):
            while len(await self.stories()) < PARTITIONS:
                await trio.sleep(0.05)

    def able(self) -> set[str]:
        """The members that run, and are not paused."""
        return set(self._running) - self.paused

    async def start(self, *names: str) -> None:
        """Start members that do not run."""
        for name in names:
            front, behind = self._ports[name]
            await self.links.listen(name, front, behind)
            with open(self.folder / name / SERVER_LOG_NAME, "ab") as log:
                self._running[name] = subprocess.Popen(
                    [sys.executable, *self._program, "server", "run", self.folder / name, "-v",
                     "--listen", f"{HOST}:{behind}"],
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                )  # fmt: skip

    async def kill(self, *names: str) -> None:
        """End members at once, as by ``kill -9``."""
        ending = [(name, self._running.pop(name)) for name in names]
        for _, process in ending:
            process.kill()
        for name, process in ending:
            await trio.to_thread.run_sync(process.wait, PATIENCE_S)
            self.links.refuse(name)
            self.paused.discard(name)

    def pause(self, *names: str) -> None:
        """Let members stand still."""
        for name in names:
            self._running[name].send_signal(signal.SIGSTOP)
            self.paused.add(name)

    def wake(self, *names: str) -> None:
        """Let members go on."""
        for name in names:
            self.paused.discard(name)
            self._running[name].send_signal(signal.SIGCONT)

    async def end(self) -> None:
        """Let all members end in order; assert that they do."""
        ending, self._running = self._running, {}
        for process in ending.values():
            process.terminate()
        for name, process in ending.items():
            status = await trio.to_thread.run_sync(process.wait, PATIENCE_S)
            self.links.refuse(name)
            assert status == 0, f"{process.args!r} ended with {status}"

    async def stories(self) -> list[Story]:
        """Return what the newest decision that anybody knows says of each partition."""
        found: dict[int, Story] = {}
        for name in sorted(self.able()):
            with trio.move_on_after(ANSWER_S_MAX):
                for number, told in enumerate(await self._told_by(name)):
                    story = self._story(told)
                    if number not in found or story.decided > found[number].decided:
                        found[number] = story
        return [found[number] for number in sorted(found)]

    async def _told_by(self, name: str) -> list[dict[str, Any]]:
        address = HOST, self._ports[name][1]
        try:
            client: RawClient = await connected(production().network, address, line=os.urandom(16))
            try:
                return [await client.ask("partition", one) for one in range(PARTITIONS)]
            finally:
                client.close()
        except OSError:
            return []  # it starts still

    def _story(self, told: dict[str, Any]) -> Story:
        names = self.links.members
        return Story(
            told["decided"],
            names[told["author"][0]],
            frozenset(names[member] for member, _ in told["in_sync"]),
        )

    def log_lines(self, name: str) -> list[str]:
        """Return what a member has told."""
        return (self.folder / name / SERVER_LOG_NAME).read_text(errors="replace").splitlines()


def make_members(folder: Path, cluster: UUID, fronts: Iterable[int]) -> dict[bytes, str]:
    """Make the stores of all members; return their names by id."""
    addresses = {name: f"{HOST}:{front}" for name, front in zip(NAMES, fronts, strict=True)}
    for name in NAMES:
        init_member(
            production(), str(folder / name), cluster=cluster, member=member_id(cluster, name),
            members=identified(cluster, addresses), partitions=PARTITIONS, backups=2,
        )  # fmt: skip
    return {member_id(cluster, name).bytes: name for name in NAMES}


@asynccontextmanager
async def real_cluster(
    folder: Path, cluster: UUID, program: Sequence[str] = PROGRAM
) -> AsyncIterator[RealCluster]:
    """Make a cluster in a new folder and start it; whatever of it runs at the end is killed.

    ``program`` is what Python is given to run the command ``tidelog``.
    """
    folder.mkdir(parents=True)
    ports = free_ports(PORT_BASE + os.getpid() % 1000 * 8, 2 * len(NAMES))
    fronts, behind = ports[: len(NAMES)], ports[len(NAMES) :]
    async with trio.open_nursery() as nursery:
        links = Links(nursery, make_members(folder, cluster, fronts))
        made = RealCluster(
            folder, links, dict(zip(NAMES, zip(fronts, behind, strict=True), strict=True)), program
        )
        try:
            await made.start(*NAMES)
            await made.wait_until_up()
            yield made
        finally:
            with trio.CancelScope(shield=True):
                await made.kill(*made.able() | made.paused)
            nursery.cancel_scope.cancel()
