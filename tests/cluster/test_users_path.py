"""The way of a user who tries a cluster (``docs/cluster.md``): real processes, and simulated."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from support.users_path import users_path
from tidelog import aio
from tidelog.testing import SimCluster

PARTITIONS = 16
PORT_BASE = 12_000 + os.getpid() % 2000 * 8
"""Not where other tests that run just now look for free ports."""


class Processes:
    """A test cluster, as the command keeps it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def _command(self, name: str, *arguments: str) -> str:
        command = [sys.executable, "-m", "tidelog", "cluster", name, *arguments]
        done = await trio.run_process(
            command, capture_stdout=True, stderr=subprocess.STDOUT, check=False
        )
        text = done.stdout.decode()
        assert done.returncode == 0, text
        return text

    async def up(self) -> None:
        """Start it, and return when everything is served."""
        options: dict[str, object] = {"-n": 3, "--partitions": PARTITIONS, "--dir": self._folder}
        options["--base-port"] = PORT_BASE
        await self._command("up", *(str(part) for pair in options.items() for part in pair))

    def connect(self) -> AbstractAsyncContextManager[Any]:
        """Connect to it, for tasks."""
        return aio.connect(self._folder)

    async def kill(self, name: str) -> None:
        """End a member at once."""
        await self._command("kill", str(self._folder), name)

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


@pytest.mark.slow
def test_the_way_of_a_user_with_real_processes(tmp_path: Path) -> None:
    stage = Processes(tmp_path / "demo")

    async def way() -> None:
        try:
            await users_path(stage, PARTITIONS)
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
        self._cluster.start([name])
        await self._cluster.settled()

    async def status(self) -> dict[str, Any]:
        """Return what the members know."""
        cluster = self._cluster
        running = cluster.running()
        served = sum(
            member.partitions.serves(copies.row.partition, member.now)
            for member in running.values()
            for copies in member.partitions.authored()
        )
        return {
            "coordinator": cluster.coordinator(),
            "members_up": len(running),
            "partitions_served": served,
        }

    async def down(self) -> None:
        """End all members in order."""
        async with trio.open_nursery() as nursery:
            for name in self._cluster.running():
                nursery.start_soon(self._cluster.stop, name)


@pytest.mark.parametrize("seed", range(70, 73))
def test_the_way_of_a_user_in_a_simulated_world(seed: int) -> None:
    cluster = SimCluster(seed=seed, nodes=3, partitions=PARTITIONS)
    cluster.run(lambda at: users_path(Simulated(at), PARTITIONS))
