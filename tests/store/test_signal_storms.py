"""Real signals at random moments in the main thread of a process whose other threads commit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

WORKER = Path(__file__).parents[1] / "support" / "storm_worker.py"


def storm(path: Path, seed: int, signals: int, durability: str) -> dict[str, int]:
    """Run a process under signals; fail with what it found wrong, or where it hung."""
    command = [sys.executable, str(WORKER), str(path), str(seed), str(signals), durability]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-6000:]
    found = json.loads(ended.stdout)
    assert found["problems"] == []
    assert min(found["told"].values()) > 0
    return dict(found["counts"])


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["always", "interval", "none"])
def test_signals_at_random_moments_lose_nothing_and_hang_nobody(
    tmp_path: Path, durability: str
) -> None:
    assert storm(tmp_path / "store.tl", 1, 200, durability)["signals"] == 200


@pytest.mark.nightly
@pytest.mark.parametrize("durability", ["always", "interval", "none"])
@pytest.mark.parametrize("seed", range(10))
def test_storms_of_signals_lose_nothing_and_hang_nobody(
    tmp_path: Path, durability: str, seed: int
) -> None:
    counts = storm(tmp_path / "store.tl", seed, 700, durability)
    assert counts["signals"] == 700
