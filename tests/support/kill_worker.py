"""A process that commits until it is killed, telling of each transaction before and after.

Transaction n of client c puts ``pieces(c, n)`` keys into two maps, sets ``last[c] = n``, moves an
amount between two accounts, and counts itself; so whoever opens the store afterwards can tell
whether every one of them is there, whole, or not at all.

Usage: ``python -m support.kill_worker PATH SEED OPTIONS`` with the options of ``open`` as JSON.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
from pathlib import Path
from typing import Any, NamedTuple

from tidelog import codecs
from tidelog.engine.api.choices import Mode
from tidelog.engine.api.database import Database
from tidelog.engine.api.maps import Map
from tidelog.engine.api.open import open as open_store

CLIENTS = 4
ACCOUNTS = 5
START = 1000
MODES: list[Mode] = ["optimistic", "pessimistic"]


def pieces(client: int, number: int) -> tuple[int, int]:
    """How many keys transaction ``number`` of a client has in each of the two maps."""
    chance = random.Random(f"{client}:{number}")
    return chance.randint(0, 3), chance.choice([0, 1, 2, 40])


def content(client: int, number: int, piece: int) -> bytes:
    """What it puts there."""
    return f"{client}/{number}/{piece}".encode() * (1 + number % 7)


class Maps(NamedTuple):
    """The maps of such a store."""

    left: Map[Any, Any]
    right: Map[Any, Any]
    last: Map[Any, Any]
    accounts: Map[Any, Any]


def maps_of(db: Database) -> Maps:
    return Maps(
        db.map("left", key=codecs.Tuple),
        db.map("right", key=codecs.Tuple, value=codecs.Bytes),
        db.map("last", key=codecs.Str, value=codecs.I64),
        db.map("accounts", key=codecs.I64, value=codecs.I64),
    )


def transact(tx: Any, maps: Maps, client: int, number: int, chance: random.Random) -> None:
    """Do all that one transaction does."""
    for mapping, count in zip((maps.left, maps.right), pieces(client, number), strict=True):
        for piece in range(count):
            tx[mapping][client, number, piece] = content(client, number, piece)
    tx[maps.last][str(client)] = number
    tx[maps.last]["count"] = tx[maps.last].get("count", 0) + 1
    source, target = chance.sample(range(ACCOUNTS), 2)
    accounts = tx[maps.accounts]
    accounts[source] = accounts.get(source, START) - 1
    accounts[target] = accounts.get(target, START) + 1


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def work(db: Database, maps: Maps, client: int, seed: int, done: threading.Semaphore) -> None:
    chance = random.Random(f"{seed}:{client}")
    number = maps.last.get(str(client), 0)
    while True:
        number += 1
        say(f"before {client} {number}")
        mode = chance.choice(MODES)
        db.run(transact, maps, client, number, chance, attempts=10_000, mode=mode)
        say(f"after {client} {number}")
        done.release()


def main() -> None:
    path, seed, options = Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
    say("starting")
    db: Database = open_store(path, **options)
    maps = maps_of(db)
    say("open")
    done = threading.Semaphore(0)
    threads = [
        threading.Thread(target=work, args=(db, maps, client, seed, done))
        for client in range(CLIENTS)
    ]
    for thread in threads:
        thread.start()
    while True:
        # Checkpoints beside the commits, whatever the limits say.
        for _ in range(20):
            done.acquire()
        db.checkpoint()


if __name__ == "__main__":
    main()
