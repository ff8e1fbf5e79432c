"""Stores of every released format are opened, and hold what they held when they were left."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import msgpack
import pytest

import tidelog
from support import format_fixture
from support.format_fixture import GIVEN_ID, OTHER_ID, content
from support.golden_records import OF_COPIES
from tidelog.affinity.partitions import Space
from tidelog.checkpoints.marks import PartitionMark
from tidelog.checkpoints.replay import State
from tidelog.engine.data.partition_store import read_state
from tidelog.engine.files import manifest as manifests
from tidelog.engine.files.manifest import Manifest
from tidelog.engine.system.lmdb_file import open_lmdb
from tidelog.engine.system.production import production
from tidelog.testing import check_database, check_store
from tidelog.wal.files import ReadOnlyDirectory
from tidelog.wal.reader import Scan, read_records
from tidelog.wal.records import (
    RECORD_FORMS,
    Record,
    RecordType,
    RollbackRecord,
    StateRecord,
    TxRecord,
    decode_record,
    encode_record,
    split_records,
)
from tidelog.wal.segments import open_segment, seal_at, segment_numbers

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
FORMATS = sorted(path.name for path in FIXTURES.glob("format-*"))


def as_read(found: object) -> Any:
    """What comes back from JSON: no tuples."""
    return json.loads(json.dumps(found))


@pytest.fixture(params=FORMATS)
def fixture(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """A copy of a fixture's store, and what is in it."""
    folder = FIXTURES / request.param
    shutil.copytree(folder / "store", tmp_path / "store")
    return tmp_path / "store", json.loads((folder / "expected.json").read_text("utf-8"))


def test_there_is_a_fixture_of_the_format_that_is_written() -> None:
    assert f"format-{manifests.STORE_FORMAT}" in FORMATS


def test_a_store_of_each_format_is_read(fixture: tuple[Path, dict[str, Any]]) -> None:
    store, expected = fixture
    with tidelog.open(store, read_only=True) as reader:
        assert as_read(content(reader)) == expected["durable"]


def test_a_store_of_each_format_is_sound(fixture: tuple[Path, dict[str, Any]]) -> None:
    store, _ = fixture
    assert check_store(store) == []


def test_a_store_of_each_format_is_recovered_and_goes_on(
    fixture: tuple[Path, dict[str, Any]],
) -> None:
    store, expected = fixture
    with tidelog.open(store) as db:
        assert as_read(content(db)) == expected["recovered"]
        assert db.outcome(GIVEN_ID) == db.outcome(OTHER_ID) == "committed"
        db.map("people")["written later"] = True
        assert check_database(db) == []
    with tidelog.open(store) as db:
        assert db.map("people")["written later"] is True
        del db.map("people")["written later"]
        assert as_read(content(db)) == expected["recovered"]
    assert check_store(store) == []


class Held(NamedTuple):
    """What is in a fixture's store, in its log and in its data file."""

    manifest: Manifest
    records: list[Record]
    state: State
    marks: dict[int, PartitionMark]


@pytest.fixture
def held(fixture: tuple[Path, dict[str, Any]]) -> Held:
    store, _ = fixture
    manifest = manifests.read(production().disk.directory(str(store)))
    scan = Scan(ReadOnlyDirectory(store / "wal"), log_ids=manifest.log_ids)
    records = [record for _, record in read_records(scan)]
    kv = open_lmdb(str(store / "data"), 1 << 30, True, True)
    state, marks = read_state(kv.begin(), bytes.fromhex(manifest.store_id), manifest.spaces, "")
    kv.close()
    for frame, record in read_records(
        Scan(ReadOnlyDirectory(store / "wal"), state.position, exact=True, log_ids=manifest.log_ids)
    ):
        state.apply(frame.position, record)
    return Held(manifest, records, state, marks)


def test_a_fixture_has_a_log_of_several_segments_that_goes_on_another_one(
    fixture: tuple[Path, dict[str, Any]], held: Held
) -> None:
    store, expected = fixture
    assert held.manifest.clean_end is None
    assert len(held.manifest.logs) == 2
    wal = ReadOnlyDirectory(store / "wal")
    numbers = segment_numbers(wal)
    assert len(numbers) >= 2
    segments = [open_segment(wal, number) for number in numbers]
    for segment, following in pairwise(segments):
        seal = seal_at(segment, following.first_position)
        assert seal is not None
        assert seal.number == following.number
    assert set(expected["recovered"]) == {"cities", "filler", "new", "people", "visits"}
    assert expected["durable"] != expected["recovered"]


def test_a_fixture_has_every_type_of_record_that_is_written(
    fixture: tuple[Path, dict[str, Any]], held: Held
) -> None:
    kinds = {row.record: row.kind for row in RECORD_FORMS}
    assert {kinds[type(record)] for record in held.records} == set(kinds.values()) - OF_COPIES
    transactions = [record for record in held.records if isinstance(record, TxRecord)]
    assert any(len({run.partition for run in tx.runs}) > 1 for tx in transactions)
    assert any({"tag", "user_id"} <= (tx.details or {}).keys() for tx in transactions)
    states = [record for record in held.records if isinstance(record, StateRecord)]
    assert any(state.ranges for state in states)
    assert all(state.spaces == (Space(0, 3),) for state in states)
    closed = [record.reason for record in held.records if isinstance(record, RollbackRecord)]
    assert closed == ["gap"]


def test_a_fixture_has_a_map_that_was_being_attached_and_a_checkpoint_that_was_cut_short(
    held: Held,
) -> None:
    assert [name.id for name in held.state.namespaces.values() if name.hidden]
    assert any(mark.position < mark.written for mark in held.marks.values())
    assert any(mark.tombstones for mark in held.marks.values())


@pytest.mark.parametrize("name", FORMATS)
def test_records_that_no_store_writes_are_decoded_as_they_always_were(name: str) -> None:
    records = json.loads((FIXTURES / name / "records.json").read_text("utf-8"))
    assert set(records) == {kind.name for kind in OF_COPIES}
    for record, one in records.items():
        data = bytes.fromhex(one["hex"])
        ((kind, flags, body),) = split_records(data)
        assert kind == RecordType[record]
        assert format_fixture.shown(msgpack.unpackb(body)) == one["fields"]
        assert encode_record(decode_record(kind, flags, body)) == data


def test_the_fixture_can_still_be_made(tmp_path: Path) -> None:
    format_fixture.make(tmp_path / "made")
    newest = FIXTURES / f"format-{manifests.STORE_FORMAT}"
    for name in ("expected.json", "records.json"):
        assert (tmp_path / "made" / name).read_text("utf-8") == (newest / name).read_text("utf-8")
    assert check_store(tmp_path / "made/store") == []
