"""What a simulated world is for: an echo with clients and stores that are killed, under faults."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from support.worlds import EchoWorld, StoreWorld

TESTS = Path(__file__).resolve().parents[1]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_no_question_is_answered_twice_and_none_is_lost_without_an_error(seed: int) -> None:
    echo = EchoWorld(seed)
    echo.run()
    assert max(echo.served.values()) == 1
    assert max(echo.answered.values()) == 1
    assert echo.answered.keys() <= echo.served.keys()
    assert not echo.answered.keys() & echo.failed.keys()
    # Only who was killed, or asked when the world ended, left a question: one each time.
    left = Counter(echo.asked[number] for number in echo.unknown())
    assert set(left.values()) <= {1}
    assert len(left) <= sum(client.starts for client in echo.clients)
    assert echo.failed
    assert left
    assert echo.faults.total() > 10


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_stores_keep_what_they_acknowledged_through_every_end_of_their_nodes(seed: int) -> None:
    stores = StoreWorld(seed)
    stores.run()
    assert all(stores.acknowledged.values())
    assert sum(stores.opened.values()) > 8
    assert stores.ended


@pytest.mark.slow
def test_stores_on_lmdb_keep_it_too() -> None:
    stores = StoreWorld(100, kv="lmdb", kills=6)
    stores.run()
    assert all(stores.acknowledged.values())


@pytest.mark.slow
def test_stores_that_acknowledge_before_they_sync_are_caught() -> None:
    with pytest.raises(AssertionError, match="lost"):
        StoreWorld(0, durability="none").run()


@pytest.mark.slow
@pytest.mark.parametrize("service", ["echo", "stores"])
def test_a_seed_is_the_same_world_whatever_the_seed_of_hashes(service: str) -> None:
    def printed(hash_seed: int) -> str:
        return subprocess.run(
            [sys.executable, "-m", "support.worlds", service, "7"],
            cwd=TESTS,
            env={"PYTHONHASHSEED": str(hash_seed)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    assert printed(1) == printed(2)
