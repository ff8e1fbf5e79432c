"""Stores to read by the pipeline, and what is in them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import tidelog
from tidelog.affinity.partitions import Space, partition_of
from tidelog.engine.api.database import Database
from tidelog.engine.upkeep.load_files import check_file, read_load_manifest, read_part
from tidelog.pipeline.plan import options
from tidelog.pipeline.plan.options import ReadOptions
from tidelog.pipeline.plan.reads import Task, read

Row = dict[str, Any]


def new_store(path: Path, **given: Any) -> Database:
    """Open a store for writing."""
    db = tidelog.open(path, **given)
    assert isinstance(db, Database)
    return db


def fill(db: Database, seed: int, transactions: int) -> None:
    """Commit transactions of several puts and deletes in two maps."""
    rng = random.Random(seed)
    maps = (db.map("orders"), db.map("stock"))
    for _ in range(transactions):
        with db.transaction() as tx:
            for _ in range(rng.randint(1, 6)):
                view, key = tx[rng.choice(maps)], b"%d" % rng.randrange(60)
                if rng.random() < 0.2:
                    view.discard(key)
                else:
                    view[key] = rng.randbytes(rng.randint(0, 40))


def closed_store(path: Path) -> Path:
    """Make a store with a checkpoint in the middle of its log."""
    with new_store(path, partitions=4) as db:
        fill(db, 1, 60)
        db.checkpoint()
        fill(db, 2, 40)
    return path


def flip(path: Path, offset: int) -> None:
    """Flip a bit of one byte of a file."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def content(path: Path) -> dict[str, dict[bytes, bytes]]:
    """Return all maps of a closed store."""
    with tidelog.open(path, read_only=True) as db:
        return {name: dict(db.map(name).items()) for name in db.maps()}


def rows_of(tasks: Iterable[Task]) -> list[Row]:
    """Return what tasks read, one after the other."""
    return [row for task in tasks for batch in task.batches() for row in batch.to_pylist()]


def parse(given: Mapping[str, str], *, stream: bool | None = False) -> ReadOptions:
    """Return the options of a read that may have small tasks, so that little makes several."""
    return replace(options.parse(given, stream=stream), task_bytes_min=500)


def rows(path: Path, view: str, **given: Any) -> list[Row]:
    """Return what a read of a store gives, in small tasks."""
    texts = {name: str(value) for name, value in given.items()}
    return rows_of(read(parse({"path": str(path), "view": view, **texts})))


def replayed(changes: Iterable[Row]) -> dict[str, dict[bytes, bytes]]:
    """Apply changes in the order of each partition's numbers."""
    found: dict[str, dict[bytes, bytes]] = {}
    for row in sorted(changes, key=lambda row: (row["partition"], row["counter"])):
        pairs = found.setdefault(row["namespace"], {})
        if row["op"] == "put":
            pairs[row["key"]] = row["value"]
        else:
            pairs.pop(row["key"], None)
    return found


def greatest_closed(changes: list[Row], wanted: dict[int, int]) -> dict[int, int]:
    """The greatest vector at or below another that splits no transaction, by brute force."""
    cut = dict(wanted)
    while True:
        above = {row["tx_id"] for row in changes if row["counter"] > cut[row["partition"]]}
        split = [
            row
            for row in changes
            if row["tx_id"] in above and row["counter"] <= cut[row["partition"]]
        ]
        if not split:
            return cut
        for row in split:
            cut[row["partition"]] = min(cut[row["partition"]], row["counter"] - 1)


def load_content(directory: Path) -> dict[bytes, bytes]:
    """The pairs of a load, all of whose files are looked at."""
    manifest = read_load_manifest(str(directory))
    found: dict[bytes, bytes] = {}
    for file in manifest.files:
        check_file(str(directory), file)
        for part in file.partitions:
            for block in read_part(str(directory / file.name), part):
                for key, value in block:
                    assert partition_of(key, Space(0, manifest.partitions)) == part.partition
                    assert key not in found
                    found[key] = value
    assert len(found) == manifest.rows
    return found
