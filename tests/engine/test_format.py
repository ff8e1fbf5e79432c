"""Stores of every released format are opened, and hold what they held when they were left."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import tidelog
from support import format_fixture
from support.format_fixture import GIVEN_ID, content
from tidelog.engine.files import manifest as manifests
from tidelog.engine.system.production import production
from tidelog.testing import check_database, check_store
from tidelog.wal.files import ReadOnlyDirectory
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
        assert db.outcome(GIVEN_ID) == "committed"
        db.map("people")["written later"] = True
        assert check_database(db) == []
    with tidelog.open(store) as db:
        assert db.map("people")["written later"] is True
        del db.map("people")["written later"]
        assert as_read(content(db)) == expected["recovered"]
    assert check_store(store) == []


def test_a_fixture_has_some_of_everything(fixture: tuple[Path, dict[str, Any]]) -> None:
    store, expected = fixture
    manifest = manifests.read(production().disk.directory(str(store)))
    assert manifest.clean_end is None
    assert len(manifest.logs) == 2
    wal = ReadOnlyDirectory(store / "wal")
    numbers = segment_numbers(wal)
    assert len(numbers) >= 2
    segments = [open_segment(wal, number) for number in numbers]
    for segment, following in pairwise(segments):
        seal = seal_at(segment, following.first_position)
        assert seal is not None
        assert seal.number == following.number
    assert set(expected["recovered"]) == {"filler", "new", "people", "visits"}
    assert expected["durable"] != expected["recovered"]


def test_the_fixture_can_still_be_made(tmp_path: Path) -> None:
    format_fixture.make(tmp_path / "made")
    newest = FIXTURES / f"format-{manifests.STORE_FORMAT}" / "expected.json"
    assert (tmp_path / "made/expected.json").read_text("utf-8") == newest.read_text("utf-8")
    assert check_store(tmp_path / "made/store") == []
