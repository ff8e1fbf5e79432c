"""A pool of processes reads a store, while this process writes what they have found.

    python examples/web/process_pool.py spawn shop.tl

Each process opens the store for itself, once, in its initializer: by the path, never by a handle
of the process that writes.  This goes for all start methods: `spawn`, `forkserver` and `fork`.
"""

from __future__ import annotations

import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor

import tidelog
from tidelog.codecs import I64, Str

reader: tidelog.ReadOnlyDatabase


def open_reader(path: str) -> None:
    """Open the store in a process of the pool."""
    global reader
    reader = tidelog.open(path, read_only=True)


def total_of(letter: str) -> tuple[str, int]:
    """Add up what begins with a letter."""
    reader.refresh()
    return letter, sum(count for _, count in reader.map("stock").items(letter))


def main(start: str, path: str) -> None:
    """Fill a store, have it added up, and write the sums."""
    context = multiprocessing.get_context(start)
    with tidelog.open(path) as db:
        stock = db.map("stock", key=Str, value=I64)
        stock.update({"apples": 3, "apricots": 4, "pears": 5})
        db.checkpoint()  # readers that come now see all of it
        sums = db.map("sums", key=Str, value=I64)
        with ProcessPoolExecutor(2, context, open_reader, (path,)) as pool:
            sums.update(pool.map(total_of, "abp"))
        print(dict(sums))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
