"""A cluster of real processes under load; members are killed and stopped, round after round."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from tidelog import aio
from tidelog.codecs import Msgpack, Str
from tidelog.testing.histories import Get, History
from tidelog.testing.linear import check
from tidelog.testing.moves import COUNTER, REGISTER, CallModel
from tidelog.testing.storms import PacedMap
from tidelog.testing.workloads import counter_clients, register_clients
from tidelog.tools.cluster.processes import process_of

PORT_BASE = 30_000 + os.getpid() % 1000 * 4
NAMES = ("n1", "n2", "n3")
KEYS = {name: [f"{name[0]}{number}" for number in range(6)] for name in ("registers", "counters")}
CALLS = 40
"""Calls that end between two faults."""
PATIENCE_S = 60.0


class Rounds:
    """One cluster, its load, and what is done to it."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.histories = {"registers": History(), "counters": History()}
        self._folder = folder
        self._chance = random.Random(seed)

    async def command(self, name: str, *arguments: object) -> None:
        words = [sys.executable, "-m", "tidelog", "cluster", name, *map(str, arguments)]
        done = await trio.run_process(
            words, capture_stdout=True, stderr=subprocess.STDOUT, check=False
        )
        assert done.returncode == 0, done.stdout.decode()

    def signal(self, name: str, number: signal.Signals) -> None:
        with process_of(str(self._folder / name)) as process:
            assert process is not None
            process.send(number)
            if number == signal.SIGKILL:
                assert process.ended(PATIENCE_S)

    async def calls_go_on(self) -> None:
        wanted = self._ended() + CALLS
        with trio.fail_after(PATIENCE_S):
            while self._ended() < wanted:
                await trio.sleep(0.02)

    def _ended(self) -> int:
        return sum(
            call.ending is not None
            for history in self.histories.values()
            for call in history.calls()
        )

    async def go_through(self, rounds: int) -> None:
        for _ in range(rounds):
            one, other, _ = self._chance.sample(NAMES, 3)
            kind = self._chance.choice(["one", "two", "at start", "stopped"])
            if kind == "stopped":
                self.signal(one, signal.SIGSTOP)
                await self.calls_go_on()
                self.signal(one, signal.SIGCONT)
                continue
            self.signal(one, signal.SIGKILL)
            if kind == "two":
                self.signal(other, signal.SIGKILL)
                await self.command("start", self._folder, other)
            if kind == "at start":
                with subprocess.Popen(
                    [sys.executable, "-m", "tidelog", "server", "run", self._folder / one],
                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                ) as process:  # fmt: skip
                    await self.calls_go_on()
                    process.kill()
            await self.calls_go_on()
            await self.command("start", self._folder, one)

    @asynccontextmanager
    async def load(self) -> AsyncIterator[None]:
        made = {"registers": register_clients, "counters": counter_clients}
        async with (
            aio.connect(self._folder, timeout=5) as one,
            aio.connect(self._folder, timeout=5) as two,
            trio.open_nursery() as nursery,
        ):
            for name, clients in made.items():
                maps = [db.map(name, key=Str, value=Msgpack) for db in (one, two)]
                for worker in clients(
                    PacedMap(maps, self._chance), self.histories[name], clients=8, keys=KEYS[name],
                    operations=5000, chance=self._chance, clock=time.monotonic,
                ):  # fmt: skip
                    nursery.start_soon(worker)
            yield
            nursery.cancel_scope.cancel()

    async def read_back(self) -> None:
        async with aio.connect(self._folder) as db:
            for name, history in self.histories.items():
                for key in KEYS[name]:
                    call = history.begin("reader", Get(key), time.monotonic())
                    call.ok(await db.map(name).get(key), time.monotonic())


def run_rounds(folder: Path, rounds: int, seed: int) -> None:
    at = Rounds(folder, seed)

    async def scenario() -> None:
        await at.command(
            "up", "-n", 3, "--dir", folder, "--partitions", 8, "--base-port", PORT_BASE
        )
        try:
            async with at.load():
                await at.calls_go_on()
                await at.go_through(rounds)
                await at.calls_go_on()
            await at.command("up", "--dir", folder)
            await at.read_back()
        finally:
            with trio.CancelScope(shield=True):
                await at.command("down", folder)

    trio.run(scenario)
    both: list[tuple[str, CallModel]] = [("registers", REGISTER), ("counters", COUNTER)]
    for name, model in both:
        violation = check(at.histories[name], model)
        assert violation is None, f"{name}: {violation}"


@pytest.mark.slow
def test_three_rounds_of_kill_9_lose_nothing(tmp_path: Path) -> None:
    run_rounds(tmp_path / "cluster", 3, seed=3)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(3))
def test_thirty_rounds_of_kill_9_lose_nothing(tmp_path: Path, seed: int) -> None:
    run_rounds(tmp_path / "cluster", 30, seed)
