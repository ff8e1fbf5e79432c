"""The child process of the demo: threads that move people between cities until it is killed.

Each move is one transaction over three maps: both cities, their two places in the index, and a
note of the move under the transaction's id.  The child tells its parent ``B id from to people``
before it commits and ``A id`` once the commit is acknowledged, each in one write to a pipe, which
outlives it.

Left out: who kills it, and the proof (``cli``, ``check``).
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
from collections.abc import Callable, Sequence

from ...affinity.errors import TransactionError
from ...engine.api import open as opens
from ...engine.api.database import Database
from ...engine.api.transactions import Transaction
from .check import Move
from .data import cities_of, index_key, index_of, moves_of

PEOPLE_MAX = 100
HOT_SHARE = 0.25
"""How many of the moves are among few cities, so that transactions meet."""

Tell = Callable[[str], None]


def apply_move(tx: Transaction, db: Database, tx_id: bytes, move: Move) -> None:
    """Move people in a transaction."""
    cities, index = tx[cities_of(db)], tx[index_of(db)]
    for number, change in ((move.source, -move.people), (move.target, move.people)):
        record = cities[number]
        index.discard(index_key(number, record))
        record["population"] += change
        cities[number] = record
        index[index_key(number, record)] = record["name"]
    tx[moves_of(db)][tx_id] = list(move)


def next_move(chance: random.Random, cities: Sequence[int], hot: int) -> Move:
    """Choose two cities; ``hot`` of them are chosen far more often."""
    among = cities[:hot] if chance.random() < HOT_SHARE else cities
    source, target = chance.sample(among, 2)
    return Move(source, target, chance.randint(1, PEOPLE_MAX))


def move_on(db: Database, cities: Sequence[int], hot: int, seed: int, tell: Tell) -> None:
    """Make moves for ever."""
    chance = random.Random(seed)
    while True:
        move, tx_id = next_move(chance, cities, hot), db.new_id()
        tell(f"B {tx_id.hex()} {move.source} {move.target} {move.people}\n")
        try:
            db.run(apply_move, db, tx_id, move, id=tx_id, attempts=100)
        except TransactionError:
            continue
        tell(f"A {tx_id.hex()}\n")


def tell_parent(line: str) -> None:
    """Write a line to the parent: short enough to arrive whole, whoever writes beside."""
    os.write(sys.stdout.fileno(), line.encode())


def work(path: str, cities: Sequence[int], hot: int, threads: int, seed: int) -> None:
    """Open the store and let threads move people; ends only with the process."""
    with opens.open(path, create=False) as db:
        workers = [
            threading.Thread(
                target=move_on, args=(db, cities, hot, seed + number, tell_parent), daemon=True
            )
            for number in range(threads)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()


if __name__ == "__main__":
    work(**json.loads(sys.stdin.readline()))
