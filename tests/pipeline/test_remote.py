"""Copies that lie elsewhere: on network file systems, and where only PyArrow gets by a URI."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, NoReturn

import pytest

import tidelog
from support.pipelines import closed_store, parse, rows, rows_of
from tidelog.affinity.errors import (
    NotFoundError,
    SnapshotExpiredError,
    UnsupportedError,
    UsageError,
)
from tidelog.engine.system.disk import RealDisk
from tidelog.pipeline.base import private, remote
from tidelog.pipeline.jobs.compaction import compact
from tidelog.pipeline.jobs.runner import WHOLE_NAME, Runner, export
from tidelog.pipeline.plan.reads import read, read_snapshot
from tidelog.pipeline.plan.streams import stream

HERE = Runner()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a hot copy beside it."""
    path = closed_store(tmp_path_factory.mktemp("stores") / "store")
    with tidelog.open(path) as db:
        db.backup(path.parent / "copy")
    return path


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is ``fake://host``, and copies of what is there in a folder of this test."""
    from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

    folder = tmp_path / "elsewhere"
    folder.mkdir()

    def fake(uri: str) -> tuple[Any, str]:
        scheme, _, path = uri.partition("://host/")
        assert scheme == "fake"
        return SubTreeFileSystem(str(folder), LocalFileSystem()), path

    monkeypatch.setattr(remote, "file_system", fake)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    return folder


def uri_rows(name: str, view: str, **given: str) -> list[dict[str, Any]]:
    return rows_of(read(parse({"path": f"fake://host/{name}", "view": view, **given})))


def without(found: list[dict[str, Any]], *names: str) -> list[dict[str, Any]]:
    return [{n: v for n, v in row.items() if n not in names} for row in found]


@pytest.mark.parametrize("view", ["snapshot", "changes", "wal", "meta"])
def test_a_hot_copy_is_read_by_its_uri(store: Path, elsewhere: Path, view: str) -> None:
    (store.parent / "copy").rename(elsewhere / "copy")
    try:
        seen = uri_rows("copy", view, minPartitions="3")
        assert uri_rows("copy", view, minPartitions="3") == seen
        nodes = {row["node"] for row in seen if "node" in row}
        assert nodes == ({"fake://host/copy"} if view in ("wal", "meta") else set())
        assert without(seen, "node") == without(rows(elsewhere / "copy", view), "node")
        named = uri_rows("copy", view, columns="node,partition")
        assert {row["node"] for row in named} == {"fake://host/copy"}
    finally:
        (elsewhere / "copy").rename(store.parent / "copy")


def copied(store: Path, elsewhere: Path) -> None:
    with tidelog.open(store) as db:
        db.backup(elsewhere / "copy")


def test_one_copy_is_made_for_all_tasks_and_another_machine_makes_the_same(
    store: Path, elsewhere: Path, tmp_path: Path
) -> None:
    copied(store, elsewhere)
    tasks, cuts = read_snapshot(parse({"path": "fake://host/copy", "minPartitions": "4"}))
    assert list(cuts) == ["fake://host/copy"]
    (own,) = (tmp_path / "tmp").iterdir()
    (made,) = own.iterdir()
    assert own.stat().st_mode & 0o077 == 0
    expected = rows_of(tasks)
    made.rename(tmp_path / "gone")  # as on a machine where nothing was read yet
    assert rows_of(tasks) == expected
    assert [path.name for path in own.iterdir()] == [made.name]
    assert expected == rows(elsewhere / "copy", "snapshot")


def test_a_copy_that_changed_is_another_one(store: Path, elsewhere: Path) -> None:
    copied(store, elsewhere)
    tasks = read(parse({"path": "fake://host/copy"}))
    os.utime(elsewhere / "copy" / "manifest", ns=(1, 1))
    with pytest.raises(SnapshotExpiredError, match="was changed since the read was planned"):
        rows_of(tasks)
    assert uri_rows("copy", "snapshot") == rows(elsewhere / "copy", "snapshot")


@pytest.mark.parametrize("while_copied", ["data.mdb", "manifest"])
def test_what_changes_while_it_is_copied_leaves_nothing(
    while_copied: str, store: Path, elsewhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied(store, elsewhere)

    def growing(path: str) -> Any:
        if path.endswith(while_copied):
            with (elsewhere / "copy" / "data" / "data.mdb").open("ab") as file:
                file.write(b"x")
        return private.new_file(path)

    monkeypatch.setattr(remote, "new_file", growing)
    with pytest.raises(SnapshotExpiredError, match="was changed while it was copied"):
        uri_rows("copy", "snapshot")
    (own,) = (tmp_path / "tmp").iterdir()
    assert list(own.iterdir()) == []


@pytest.mark.parametrize("whole", [True, False])
def test_of_two_tasks_that_make_a_copy_at_once_the_faster_one_counts(
    whole: bool, store: Path, elsewhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied(store, elsewhere)

    def overtaken(path: str) -> Any:
        if path.endswith("manifest"):
            made = Path(path).parent.with_suffix("")
            if whole:
                shutil.copytree(elsewhere / "copy", made)
            else:
                made.write_bytes(b"in the way")
        return private.new_file(path)

    monkeypatch.setattr(remote, "new_file", overtaken)
    if whole:
        assert uri_rows("copy", "snapshot") == rows(elsewhere / "copy", "snapshot")
    else:
        with pytest.raises(NotADirectoryError):
            uri_rows("copy", "snapshot")
    (own,) = (tmp_path / "tmp").iterdir()
    assert len(list(own.iterdir())) == 1


def test_a_copy_that_was_asked_for_stays_another_day(
    store: Path, elsewhere: Path, tmp_path: Path
) -> None:
    copied(store, elsewhere)
    uri_rows("copy", "snapshot")
    (own,) = (tmp_path / "tmp").iterdir()
    (made,) = own.iterdir()
    os.utime(made, (1, 1))
    uri_rows("copy", "snapshot")
    (elsewhere / "copy").rename(elsewhere / "other")
    uri_rows("other", "snapshot")
    assert len(list(own.iterdir())) == 2
    assert made.exists()


def test_a_place_that_cannot_be_listed_is_told(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(_fs: object, _path: str) -> NoReturn:
        raise OSError("no route to host")

    monkeypatch.setattr(remote, "_files", failing)
    with pytest.raises(NotFoundError, match=r"fake://host/copy cannot be listed: no route to host"):
        uri_rows("copy", "snapshot")


def test_copies_that_nobody_asks_for_go_after_a_day(
    store: Path, elsewhere: Path, tmp_path: Path
) -> None:
    copied(store, elsewhere)
    uri_rows("copy", "snapshot")
    (own,) = (tmp_path / "tmp").iterdir()
    (made,) = own.iterdir()
    (own / "old").mkdir()
    os.utime(own / "old", (1, 1))
    os.utime(made, (1, 1))
    uri_rows("copy", "snapshot")
    assert [path.name for path in own.iterdir()] == [made.name]


def test_a_store_that_may_be_written_is_refused(store: Path, elsewhere: Path) -> None:
    with tidelog.open(elsewhere / "live") as db:
        db.map("m")[b"k"] = b"v"
    for view in ("snapshot", "changes", "wal"):
        with pytest.raises(UnsupportedError, match="may be written") as caught:
            uri_rows("live", view)
        assert "tidelog db backup" in (caught.value.hint or "")
    with pytest.raises(NotFoundError, match="there is nothing at fake://host/gone"):
        uri_rows("gone", "snapshot")
    copied(store, elsewhere)
    options = {"path": "fake://host/copy", "view": "changes", "startingCounters": "earliest"}
    with pytest.raises(UsageError, match="nothing is added"):
        stream(parse(options, stream=True))


def test_a_folder_of_somebody_else_is_not_used(
    store: Path, elsewhere: Path, tmp_path: Path
) -> None:
    copied(store, elsewhere)
    own = tmp_path / "tmp" / f"tidelog-{os.getuid()}"
    own.mkdir(mode=0o755)
    with pytest.raises(UnsupportedError, match="only its owner can use"):
        uri_rows("copy", "snapshot")
    own.rmdir()
    own.symlink_to(tmp_path)
    with pytest.raises(UnsupportedError, match="only its owner can use"):
        uri_rows("copy", "snapshot")


def test_segments_and_archives_are_read_and_archives_written_by_uri(
    store: Path, elsewhere: Path, tmp_path: Path
) -> None:
    copied(store, elsewhere)
    assert uri_rows("copy/wal", "changes") == rows(elsewhere / "copy" / "wal", "changes")
    half, whole = tmp_path / "half", tmp_path / "whole"
    for path in (half, whole):
        compact(str(elsewhere / "copy"), str(path), HERE)
    first = compact(str(elsewhere / "copy"), "fake://host/archive", HERE)
    assert compact(str(elsewhere / "copy"), "fake://host/archive", HERE)["rows"] == 0
    assert first["rows"] == len(rows(whole, "changes"))
    for view in ("snapshot", "changes"):
        assert uri_rows("archive", view) == rows(whole, view)
    (elsewhere / "other").mkdir()
    (elsewhere / "other" / "x").write_bytes(b"")
    with pytest.raises(UsageError, match="do not belong to an archive"):
        compact(str(store), "fake://host/other", HERE)


def test_an_archive_at_a_uri_grows(elsewhere: Path, tmp_path: Path) -> None:
    for number in range(2):
        with tidelog.open(tmp_path / "s", partitions=2) as db:
            db.map("m")[b"%d" % number] = b"v"
        compact(str(tmp_path / "s"), "fake://host/archive", HERE)
    assert [row["key"] for row in uri_rows("archive", "changes")] == [b"0", b"1"]
    assert len(list((elsewhere / "archive").glob("changes-*"))) == 2


def test_an_export_goes_to_a_uri(store: Path, elsewhere: Path) -> None:
    from pyarrow import parquet

    given = {"path": str(store), "view": "changes", "minPartitions": "3"}
    count, names = export(given, "fake://host/out/day", "parquet", HERE)
    assert sorted(path.name for path in (elsewhere / "out" / "day").iterdir()) == [
        WHOLE_NAME, *names,
    ]  # fmt: skip
    assert parquet.read_table(elsewhere / "out" / "day").num_rows == count
    with pytest.raises(UsageError, match="is there already"):
        export(given, "fake://host/out/day", "parquet", HERE)


def test_a_copy_on_a_network_file_system_is_read_without_locks(
    store: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It was refused, as a store would be.
    copied(store, elsewhere)
    expected = rows(elsewhere / "copy", "snapshot")
    monkeypatch.setattr(
        RealDisk, "network_file_system",
        lambda self, path: "nfs4" if Path(path).is_relative_to(elsewhere) else None,
    )  # fmt: skip
    with pytest.raises(UnsupportedError, match="network file system"):
        tidelog.open(elsewhere / "copy", read_only=True)
    before = sorted(path.name for path in (elsewhere / "copy").rglob("*"))
    assert rows(elsewhere / "copy", "snapshot") == expected
    assert {row["node"] for row in rows(elsewhere / "copy", "meta")} == {str(elsewhere / "copy")}
    assert sorted(path.name for path in (elsewhere / "copy").rglob("*")) == before
    monkeypatch.setattr(RealDisk, "network_file_system", lambda self, path: "nfs4")
    with pytest.raises(UnsupportedError, match="no hot copy"):
        rows(store, "snapshot")
    assert rows(store, "changes")


def test_names_that_lead_elsewhere_are_not_copied(
    elsewhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In an object store anything is a name.
    (elsewhere / "copy").mkdir()
    for name in ("../x", "a//b", "a/../../../x", "."):
        monkeypatch.setattr(remote, "_files", lambda fs, path, name=name: [(name, 1, 1)])
        with pytest.raises(UnsupportedError, match="has a file that is called"):
            uri_rows("copy", "snapshot")
    assert not list((tmp_path / "tmp").rglob("x"))


def test_a_password_is_not_shown() -> None:
    with pytest.raises(UsageError, match="has a password") as caught:
        read(parse({"path": "s3://key:hush@bucket/x"}))
    assert "hush" not in str(caught.value)


def test_a_scheme_that_nothing_knows_is_told() -> None:
    with pytest.raises(UsageError, match="nonsense://h/x is on no file system"):
        read(parse({"path": "nonsense://h/x"}))
    with pytest.raises(UsageError, match="nonsense://h/x is on no file system"):
        compact("/s", "nonsense://h/x", HERE)


def test_a_uri_has_a_file_system_and_a_path_there() -> None:
    fs, path = remote.file_system("mock:///a/b")
    assert (fs.type_name, path) == ("mock", "a/b")
