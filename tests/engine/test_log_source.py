"""What a path stands for: a store, a folder of segments, or one segment."""

from __future__ import annotations

from pathlib import Path

import pytest

import tidelog
from tidelog.engine.files.log_source import find_log
from tidelog.errors import NotFoundError, UsageError
from tidelog.wal.tail import EndKind


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with tidelog.open(tmp_path / "store", partitions=1) as db:
        db.map("m")[b"k"] = b"v"
    return tmp_path / "store"


def segment_of(store: Path) -> Path:
    (segment,) = (store / "wal").glob("*.log")
    return segment


def test_a_store_its_folder_of_segments_and_each_of_these_are_logs(store: Path) -> None:
    moved = segment_of(store).with_name("by-content")
    moved.write_bytes(segment_of(store).read_bytes())
    places = [store, store / "wal", segment_of(store), moved]
    sources = [find_log(str(place)) for place in places]
    assert [source.kind for source in sources] == ["store", "folder", "segment", "segment"]
    assert len({len(list(source.scan())) for source in sources}) == 1


def test_a_store_without_a_manifest_is_a_folder_of_segments(store: Path) -> None:
    (store / "manifest").unlink()
    source = find_log(str(store))
    assert source.kind == "folder"
    assert "no manifest" in source.notes[0]


def test_another_folder_of_segments_in_a_store_is_not_taken_for_its_log(store: Path) -> None:
    (store / "older").mkdir()
    (store / "older" / segment_of(store).name).write_bytes(segment_of(store).read_bytes())
    assert find_log(str(store / "older")).manifest is None
    (store.parent / "log").symlink_to(store / "wal")
    for path in (f"{store}/wal", f"{store}/wal/", f"{store.parent}/log"):
        assert find_log(path).manifest is not None


def test_the_log_of_a_copy_that_went_on_is_whole_by_its_folder_too(
    store: Path, tmp_path: Path
) -> None:
    # Its two ids are linked by the manifest: without it the log belonged to another one.
    copy = tmp_path / "copy"
    with tidelog.open(store) as db:
        db.backup(copy)
    with tidelog.open(copy) as db:
        db.map("m")[b"more"] = b"v"
    scans = [find_log(str(place)).scan() for place in (copy, copy / "wal")]
    assert len({len(list(scan)) for scan in scans}) == 1
    assert not any(scan.end.refused for scan in scans)
    (copy / "manifest").write_text("damaged")
    scan = find_log(str(copy / "wal")).scan()
    list(scan)
    assert scan.end.kind == EndKind.FOREIGN


def test_a_folder_without_segments_is_no_log(tmp_path: Path) -> None:
    (tmp_path / "empty" / "wal").mkdir(parents=True)
    for place in (tmp_path, tmp_path / "empty", tmp_path / "empty" / "wal"):
        with pytest.raises(NotFoundError, match="there is no log"):
            find_log(str(place))


def test_a_file_that_is_no_segment_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no segment")
    with pytest.raises(UsageError, match="is not a segment of a log"):
        find_log(str(tmp_path / "text"))
