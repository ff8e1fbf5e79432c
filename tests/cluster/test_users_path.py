"""The way of a user who tries a cluster (``docs/cluster.md``): real processes, and simulated."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, ExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from support.pictures import picture_in
from support.users_path import Stage, copies_path, users_path
from tidelog import aio
from tidelog.testing import SimCluster
from tidelog.tools.cluster.blocks import blocks_of
from tidelog.tools.cluster.cluster_file import read_cluster
from tidelog.tools.cluster.processes import process_of
from tidelog.tools.cluster.shares import shares_of
from tidelog.tools.cluster.tables import summary_of

PARTITIONS = 16
PORT_BASE = 12_000 + os.getpid() % 2000 * 8
"""Not where other tests that run just now look for free ports."""


class Processes:
    """A test cluster, as the command keeps it."""

    def __init__(self, folder: Path, backups: int = 0) -> None:
        self._folder = folder
        self._backups = backups

    async def _command(self, name: str, *arguments: str) -> str:
        command = [sys.executable, "-m", "tidelog", "cluster", name, *arguments]
        done = await trio.run_process(
            command, capture_stdout=True, stderr=subprocess.STDOUT, check=False
        )
        text = done.stdout.decode()
        # A status ends with 6 while something is not served.
        assert done.returncode in ((0, 6) if name == "status" else (0,)), text
        return text

    async def up(self) -> None:
        """Start it, and return when everything is served."""
        options: dict[str, object] = {"-n": 3, "--partitions": PARTITIONS, "--dir": self._folder}
        options |= {"--base-port": PORT_BASE, "--backups": self._backups}
        await self._command("up", *(str(part) for pair in options.items() for part in pair))

    def connect(self) -> AbstractAsyncContextManager[Any]:
        """Connect to it, for tasks."""
        return aio.connect(self._folder)

    async def kill(self, name: str) -> None:
        """End a member at once."""
        await self._command("kill", str(self._folder), name)

    async def kill_all(self) -> None:
        """End all members at the same moment."""
        with ExitStack() as held:
            found = [
                held.enter_context(process_of(str(self._folder / member.directory)))
                for member in read_cluster(str(self._folder)).members
            ]
            for process in found:
                assert process is not None
                process.send(signal.SIGKILL)
            for process in found:
                assert process is not None
                assert process.ended(60)

    async def start(self, name: str) -> None:
        """Start a member again."""
        await self._command("start", str(self._folder), name)

    async def status(self) -> dict[str, Any]:
        """Return what the command says."""
        found: dict[str, Any] = json.loads(
            await self._command("status", str(self._folder), "--json")
        )
        return found

    async def down(self) -> None:
        """End all members in order."""
        await self._command("down", str(self._folder))


Way = Callable[[Stage, int], Awaitable[None]]
WAYS: list[tuple[Way, int]] = [(users_path, 0), (copies_path, 2)]


@pytest.mark.slow
@pytest.mark.parametrize(("path", "backups"), WAYS)
def test_the_way_of_a_user_with_real_processes(tmp_path: Path, path: Way, backups: int) -> None:
    stage = Processes(tmp_path / "demo", backups)

    async def way() -> None:
        try:
            await path(stage, PARTITIONS)
        finally:
            with trio.CancelScope(shield=True):
                await stage.down()

    trio.run(way)


class Simulated:
    """A cluster in a world of its own."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster

    async def up(self) -> None:
        """Start it, and return when everything is served."""
        self._cluster.start()
        await self._cluster.settled()
        while any(member.groups.lagging() for member in self._cluster.running().values()):
            await trio.sleep(0.05)  # a disk may be slow

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Any]:
        """Connect to it, for tasks."""
        async with aclosing(self._cluster.client()) as db:
            await db.status()
            yield db

    async def kill(self, name: str) -> None:
        """End a member at once."""
        await self._cluster.kill(name)

    async def start(self, name: str) -> None:
        """Start a member again."""
        at = self._cluster
        at.start([name])
        await at.settled()
        await at.whole()
        while not all(one.author.member == one.first for one in at.topology().partitions):
            await trio.sleep(0.05)
        await at.settled()

    async def kill_all(self) -> None:
        """End all members at the same moment."""
        await self._cluster.power_cut()

    async def status(self) -> dict[str, Any]:
        """Return what the command would say."""
        picture = picture_in(self._cluster)
        shares = shares_of(picture)
        return summary_of(picture, shares, blocks_of(picture, shares, "demo"))

    async def down(self) -> None:
        """End all members in order."""
        async with trio.open_nursery() as nursery:
            for name in self._cluster.running():
                nursery.start_soon(self._cluster.stop, name)


@pytest.mark.parametrize("seed", range(70, 73))
@pytest.mark.parametrize(("path", "backups"), WAYS)
def test_the_way_of_a_user_in_a_simulated_world(path: Way, backups: int, seed: int) -> None:
    cluster = SimCluster(seed=seed, nodes=3, partitions=PARTITIONS, backups=backups)
    cluster.run(lambda at: path(Simulated(at), PARTITIONS))
