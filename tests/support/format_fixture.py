"""Makes the fixture of the format on disk: a small store with some of everything.

    python -m support.format_fixture FOLDER

with ``tests`` on the path; FOLDER is made anew.  ``store/`` in it was never closed.
``expected.json`` says what its maps hold: ``durable`` up to what the log itself shows to be
durable, which is what a reading process sees, and ``recovered`` as the next writable open finds it.

A fixture of a released format is never made again: each later version has to open it as it is.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import tidelog
from tidelog import codecs
from tidelog.engine.api.database import Database
from tidelog.engine.api.read_only import ReadOnlyDatabase

SEGMENT_BYTES = 1 << 17
GIVEN_ID = bytes(range(16))

Content = dict[str, list[list[Any]]]


def plain(value: object) -> object:
    """A key or a value as JSON can hold it; bytes as their length and distinct bytes."""
    if isinstance(value, bytes):
        return [len(value), sorted(set(value))]
    return list(value) if isinstance(value, tuple) else value


def content(db: Database | ReadOnlyDatabase) -> Content:
    """What all maps of a store hold, in order."""
    return {
        name: [[plain(key), plain(value)] for key, value in db.map(name).items()]
        for name in db.maps()
    }


def begin(path: Path) -> None:
    """A first life: typed maps, deletes, a renamed and a dropped map, a full segment."""
    with tidelog.open(path, partitions=3, segment_bytes=SEGMENT_BYTES) as db:
        people = db.map("persons", key=codecs.Str, value=codecs.Msgpack)
        visits = db.map("visits", key=codecs.Tuple, value=codecs.Json)
        for number in range(30):
            people[f"person {number}"] = {"age": number, "tags": ["a", None, 2.5]}
            visits["GB", -number, True] = [number, {"ok": False}]
        db.rename("persons", "people")
        db.map("gone")[b"key"] = b"value"
        db.checkpoint()
        for number in range(0, 30, 3):
            people.discard(f"person {number}")
            del visits["GB", -number, True]
        db.drop("gone")
        with db.transaction(id=GIVEN_ID, tag="with an id") as tx:
            tx[people]["person 1"] = "changed"
            tx[visits]["FR", 1, None] = None
        filler = db.map("filler", key=codecs.I64)
        for number in range(-3, 3):
            filler[number] = bytes([number + 3]) * 25_000


def go_on(path: Path) -> tuple[Content, Content]:
    """A second life, as a copy: a log of its own, a crash, and updates behind the checkpoint."""
    db = tidelog.open(path, segment_bytes=SEGMENT_BYTES)
    db.map("people")["before the crash"] = 1
    db.abandon()
    db = tidelog.open(path, segment_bytes=SEGMENT_BYTES)
    people, filler = db.map("people"), db.map("filler")
    people["in the data file"] = 2
    db.checkpoint()
    people["in the log"] = 3
    people.discard("person 2")
    filler[-3] = b"short"
    db.map("new", key=codecs.U64, value=codecs.Float)[2**64 - 1] = 0.5
    db.sync()
    db._maintenance.maintain()
    durable = content(db)
    people["durable, though the log does not say so"] = 4
    recovered = content(db)
    db.abandon()
    return durable, recovered


def make(folder: Path) -> None:
    """Make the fixture in a folder, in the place of what is there."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        begin(Path(scratch, "original"))
        with tidelog.open(Path(scratch, "original"), read_only=True) as reader:
            reader.backup(folder / "store")
    durable, recovered = go_on(folder / "store")
    for name in ("lock", "data/lock.mdb"):
        (folder / "store" / name).unlink()
    (folder / "store/readers").rmdir()
    expected = {"durable": durable, "recovered": recovered}
    text = json.dumps(expected, indent=1, sort_keys=True)
    (folder / "expected.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    make(Path(sys.argv[1]))
