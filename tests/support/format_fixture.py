"""Makes the fixture of the format on disk: a small store with some of everything.

    python -m support.format_fixture FOLDER

with ``tests`` on the path; FOLDER is made anew.  ``store/`` in it was never closed.
``expected.json`` says what its maps hold: ``durable`` up to what the log itself shows to be
durable, which is what a reading process sees, and ``recovered`` as the next writable open finds it.
``records.json`` has the bytes of one record of each type that no store writes by itself yet, and
what their bodies decode to.

The log of the store has every other type, and of each what is rare: a transaction with several runs
and details, numbers that are missing at the head of a segment, a map that was being attached.  Its
data file was left in the middle of a checkpoint, and holds a tombstone.

A fixture of a released format is never made again: each later version has to open it as it is.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgpack

import tidelog
from support.golden_records import OF_COPIES, golden
from support.loads import make_load, rows_of
from support.stores import took_steps
from tidelog import codecs
from tidelog.engine.api.database import Database, session_of
from tidelog.engine.api.read_only import ReadOnlyDatabase
from tidelog.engine.system.limits import Limits
from tidelog.wal.records import split_records

SEGMENT_BYTES = 1 << 17
GIVEN_ID = bytes(range(16))
OTHER_ID = bytes(range(16, 32))

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


def cut_short(db: Database) -> None:
    """Take a checkpoint of which only the first transaction gets into the data file."""
    assert not took_steps(db, 2, Limits(piece_updates=3))


def leave_a_gap(db: Database) -> None:
    """Reserve a number that no record has, as a write that fails does."""
    for counter in session_of(db).store.state.counters:
        counter.reserve(1)


def reopened(path: Path) -> Database:
    """Open the store to go on; all of its log is kept."""
    return tidelog.open(path, segment_bytes=SEGMENT_BYTES, retain_bytes=1 << 30)


def go_on(path: Path, load: str) -> tuple[Content, Content]:
    """A second life, as a copy: a log of its own, crashes, and updates behind the checkpoint."""
    db = reopened(path)
    db.map("people")["before the crash"] = 1
    session_of(db).abandon()
    db = reopened(path)
    people, visits, filler = db.map("people"), db.map("visits"), db.map("filler")
    db.attach(load)
    db.map("short-lived")[b"key"] = b"value"
    db.drop("short-lived")
    leave_a_gap(db)
    with db.transaction(id=OTHER_ID, tag="behind a gap") as tx:
        for number in range(3, 12):
            tx[people][f"person {number}"] = {"rewritten": number}
        tx[visits].pop(("GB", -1, True))
    people["in the data file"] = 2
    db.checkpoint()  # the delete leaves a tombstone: older numbers may still come
    for number in range(-3, 3):
        filler[number] = bytes([number + 13]) * 25_000  # which begins the next segment
    session_of(db).abandon()
    db = reopened(path)  # which closes the gaps
    people, filler = db.map("people"), db.map("filler")
    for number in range(12, 30):
        people[f"person {number}"] = {"in a piece": number}
    cut_short(db)
    people["in the log"] = 3
    people.discard("person 2")
    filler[-3] = b"short"
    db.map("new", key=codecs.U64, value=codecs.Float)[2**64 - 1] = 0.5
    session_of(db).catalog.make_hidden(bytes(range(16)), ("bytes", 1), ("bytes", 1))
    db.sync()
    session_of(db).maintenance.maintain()
    durable = content(db)
    people["durable, though the log does not say so"] = 4
    recovered = content(db)
    session_of(db).abandon()
    return durable, recovered


def shown(value: object) -> object:
    """A field of a record as JSON can hold it; bytes in hex."""
    if isinstance(value, bytes):
        return f"0x{value.hex()}"
    if isinstance(value, list):
        return [shown(item) for item in value]
    return value


def records_of_copies() -> dict[str, dict[str, object]]:
    """The bytes of each record that no store writes by itself, and the fields in them."""
    found: dict[str, dict[str, object]] = {}
    for kind in sorted(OF_COPIES):
        data = golden()[kind]
        ((_, _, body),) = split_records(data)
        found[kind.name] = {"hex": data.hex(), "fields": shown(msgpack.unpackb(body))}
    return found


def make(folder: Path) -> None:
    """Make the fixture in a folder, in the place of what is there."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        begin(Path(scratch, "original"))
        with tidelog.open(Path(scratch, "original"), read_only=True) as reader:
            reader.backup(folder / "store")
        load = make_load(Path(scratch, "load"), rows_of(30), partitions=3)
        durable, recovered = go_on(folder / "store", load)
    for name in ("lock", "data/lock.mdb"):
        (folder / "store" / name).unlink()
    (folder / "store/readers").rmdir()
    expected = {"durable": durable, "recovered": recovered}
    text = json.dumps(expected, indent=1, sort_keys=True)
    (folder / "expected.json").write_text(text + "\n", encoding="utf-8")
    text = json.dumps(records_of_copies(), indent=1, sort_keys=True)
    (folder / "records.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    make(Path(sys.argv[1]))
