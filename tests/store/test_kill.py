"""Real processes, killed by SIGKILL: what they were told is there, whole; nothing is half there."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.kill_worker import ACCOUNTS, CLIENTS, START, Maps, content, maps_of, pieces
from support.real_stores import TESTS, expect_sound
from tidelog.engine.api.open import open as open_store


class Told:
    """What a worker told before it died: per client the newest number begun, and acknowledged."""

    def __init__(self) -> None:
        self.begun = dict.fromkeys(range(CLIENTS), 0)
        self.acknowledged = dict.fromkeys(range(CLIENTS), 0)

    def hear(self, line: str) -> None:
        word, *numbers = line.split()
        if numbers:
            client, number = map(int, numbers)
            heard = self.begun if word == "before" else self.acknowledged
            heard[client] = number


def options_of(chance: random.Random) -> dict[str, Any]:
    return {
        "durability": chance.choice(["always", "interval", "none"]),
        "segment_bytes": chance.choice([1, 200_000, 1 << 26]),
        "checkpoint_bytes": chance.choice([3_000, 100_000, 1 << 27]),
        "retain_bytes": chance.choice([1, 1 << 28]),
        "sync_interval": chance.choice([0.001, 0.05]),
        "checkpoint_interval": chance.choice([0.01, 60.0]),
    }


def killed(path: Path, seed: int, chance: random.Random, told: Told) -> int:
    """Let a worker run up to a random line of what it tells, kill it, and read the rest."""
    command = [sys.executable, "-m", "support.kill_worker", str(path), str(seed)]
    lines = 0
    # Mostly in the middle of the work; now and then while it opens the store.
    allowed = chance.choice([1, 2, 3, *[chance.randint(4, 400) for _ in range(5)]])
    with subprocess.Popen(
        [*command, json.dumps(options_of(chance))], cwd=TESTS, stdout=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdout is not None
        for line in worker.stdout:
            lines += 1
            told.hear(line)
            if lines == allowed:
                worker.send_signal(signal.SIGKILL)
    assert worker.returncode == -signal.SIGKILL
    return lines


def expect_promises_kept(path: Path, told: Told, durability: Any) -> None:
    with open_store(path, durability=durability) as db:
        maps = maps_of(db)
        last = {client: maps.last.get(str(client), 0) for client in range(CLIENTS)}
        for client, number in last.items():
            assert told.acknowledged[client] <= number <= told.begun[client]
            told.acknowledged[client] = told.begun[client] = number
        assert maps.last.get("count", 0) == sum(last.values())
        assert sum(maps.accounts.get(a, START) for a in range(ACCOUNTS)) == ACCOUNTS * START
        expect_whole(maps, last)


def expect_whole(maps: Maps, last: dict[int, int]) -> None:
    for place, mapping in enumerate((maps.left, maps.right)):
        expected = {
            (client, number, piece): content(client, number, piece)
            for client, newest in last.items()
            for number in range(1, newest + 1)
            for piece in range(pieces(client, number)[place])
        }
        assert dict(mapping.items()) == expected


def kill_often(folder: Path, seed: int, kills: int) -> None:
    """Kill workers on one store again and again, in the middle of their work."""
    chance = random.Random(seed)
    path, told, heard = folder / f"store-{seed}", Told(), 0
    partitions = chance.choice([1, 4, 16])
    open_store(path, partitions=partitions).close()
    for number in range(kills):
        heard += killed(path, 1000 * seed + number, chance, told)
        # Mostly the next one finds the store as the kill left it.
        if chance.random() < 0.5 or number == kills - 1:
            expect_sound(path)
            expect_promises_kept(path, told, chance.choice(["always", "none"]))
    expect_sound(path)
    # Of a transaction two lines are told: with four clients nearly half of all are receipts.
    assert heard > 20 * kills
    assert sum(told.acknowledged.values()) > (heard - 2 * kills) // 2 - CLIENTS * kills


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_nothing_acknowledged_is_lost_when_the_process_is_killed(seed: int, tmp_path: Path) -> None:
    kill_often(tmp_path, seed, 6)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(100, 120))
def test_nothing_acknowledged_is_lost_in_three_hundred_kills(seed: int, tmp_path: Path) -> None:
    kill_often(tmp_path, seed, 15)
