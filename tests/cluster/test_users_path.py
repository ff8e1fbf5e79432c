"""The way of a user who tries a cluster (``docs/cluster.md``), with real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
import trio

from support.users_path import users_path
from tidelog import aio

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
