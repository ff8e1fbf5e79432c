"""What may be in the way of an open: one clear error each, and nothing changed on disk."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any

import lmdb
import pytest
from crc32c import crc32c

from support.real_stores import digests, error_of, expect_sound, opened, quiet, run_python
from tidelog.engine.api.database import Database
from tidelog.engine.api.open import open as open_store
from tidelog.engine.system import lmdb_file as kv
from tidelog.engine.system.disk import RealDisk
from tidelog.errors import (
    AlreadyOpenError,
    CorruptDataError,
    CorruptLogError,
    DiskError,
    FormatVersionError,
    NotFoundError,
    TidelogError,
    UnsupportedError,
    UsageError,
)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A closed store that holds one key, with a checkpoint."""
    path = tmp_path / "store"
    with opened(path, partitions=4) as db:
        db.map("m")[b"k"] = b"v"
    return path


def expect_refused(path: Path, kind: type[TidelogError], says: str, **options: Any) -> TidelogError:
    """Fail unless an open is refused with an error that says so and names the path."""
    before = digests(path)
    with pytest.raises(kind, match=says) as caught:
        opened(path, options.pop("environment", None), **options)
    assert type(caught.value) is kind
    assert str(path) in str(caught.value)
    after = digests(path)
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    assert changed <= {"lock", "data/lock.mdb"}
    return caught.value


def edit_manifest(path: Path, **changes: Any) -> None:
    """Rewrite the manifest with a right checksum."""
    line = (path / "manifest").read_bytes().split(b"\n")[0]
    fields = json.loads(line) | changes
    text = json.dumps(fields, sort_keys=True).encode()
    (path / "manifest").write_bytes(text + b"\n%08x\n" % crc32c(text))


# ------------------------------------------------------------------ the place


def test_a_file_is_no_store(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("here")
    with pytest.raises(UsageError, match="not a directory") as caught:
        open_store(path)
    assert str(path) in str(caught.value)
    assert path.read_text() == "here"


def test_a_path_that_is_not_utf_8_holds_a_store(tmp_path: Path) -> None:
    # It was a bare UnicodeEncodeError, for py-lmdb takes text as UTF-8.
    path, copy = tmp_path / os.fsdecode(b"caf\xe9.tl"), tmp_path / os.fsdecode(b"\xff")
    with opened(path) as db:
        db.map("m")[b"k"] = b"v"
        db.backup(copy)
    expect_sound(path)
    for place in (path, copy):
        with open_store(place, read_only=True) as reader:
            assert reader.map("m")[b"k"] == b"v"


def test_below_a_file_there_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("here")
    with pytest.raises(TidelogError) as caught:
        open_store(tmp_path / "file" / "store")
    assert str(tmp_path / "file" / "store") in str(caught.value)


def test_a_store_is_made_only_where_that_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=str(tmp_path / "store")):
        open_store(tmp_path / "store", create=False)
    with pytest.raises(NotFoundError, match=str(tmp_path / "store")):
        open_store(tmp_path / "store", read_only=True)
    with pytest.raises(TidelogError, match=str(tmp_path / "no")):
        open_store(tmp_path / "no" / "such" / "folder")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_other_things_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letters.txt").write_text("dear")
    expect_refused(tmp_path, UsageError, "letters.txt")


def test_a_store_without_its_manifest_is_not_made_anew(store: Path) -> None:
    (store / "manifest").unlink()
    expect_refused(store, CorruptDataError, "manifest")


SLOT_MODES = """
import pathlib, sys, tidelog
with tidelog.open(sys.argv[1], read_only=True):
    for slot in pathlib.Path(sys.argv[1], "readers").iterdir():
        print(f"{slot.stat().st_mode & 0o777:o}")
"""


@pytest.mark.slow
def test_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        with opened(tmp_path / "store", durability="none", segment_bytes=1) as db:
            db.map("m").update_many({b"%d" % n: bytes(1000) for n in range(300)})
            db.checkpoint()
            db.map("m").update_many({b"%d" % n: bytes(1000) for n in range(300)})
            modes = modes_of(tmp_path / "store")
            slots = run_python(SLOT_MODES, tmp_path / "store")
    finally:
        os.umask(old)
    assert {mode for name, mode in modes.items() if name.endswith("/")} == {0o700}
    assert {mode for name, mode in modes.items() if not name.endswith("/")} == {0o600}
    assert any(name.endswith(".idx") for name in modes)
    assert slots == (0, "600\n", "")


def modes_of(path: Path) -> dict[str, int]:
    found = {}
    for place in [path, *path.rglob("*")]:
        name = str(place.relative_to(path)) + "/" * place.is_dir()
        found[name] = stat.S_IMODE(place.stat().st_mode)
    return found


def test_a_network_file_system_is_refused(store: Path) -> None:
    class NetworkDisk(RealDisk):
        def network_file_system(self, path: str) -> str | None:
            return "nfs4"

    expect_refused(store, UnsupportedError, "nfs4", environment=quiet(disk=NetworkDisk()))


class RefusingDisk(RealDisk):
    """A disk that may not be written."""

    def __init__(self, code: int) -> None:
        self._code = code

    def _refuse(self, path: str) -> OSError:
        return OSError(self._code, os.strerror(self._code), path)

    def make_directory(self, path: str) -> None:
        raise self._refuse(path)

    def lock(self, path: str, *, shared: bool = False) -> Any:
        raise self._refuse(path)


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS, errno.EPERM])
def test_a_place_that_may_not_be_written_is_named(store: Path, code: int) -> None:
    environment = quiet(disk=RefusingDisk(code))
    expect_refused(store, DiskError, os.strerror(code), environment=environment)
    with pytest.raises(DiskError, match=str(store.parent / "new")):
        opened(store.parent / "new", environment)


def test_wrong_options_are_refused(tmp_path: Path) -> None:
    for options, says in (
        ({"partitions": 0}, "partitions"),
        ({"partitions": 40_000}, "partitions"),
        ({"partitions": "4"}, "partitions"),
        ({"durability": "maybe"}, "durability"),
        ({"segment_byte": 1}, "segment_byte"),
        ({"segment_bytes": -1}, "segment_bytes"),
        ({"checkpoint_interval": True}, "checkpoint_interval"),
        ({"map_size": "1 TiB"}, "map_size"),
    ):
        with pytest.raises(UsageError, match=says) as caught:
            open_store(tmp_path / "store", **options)
        if "segment_byte" in options:
            assert "segment_bytes" in caught.value.hint
    opened(tmp_path / "store").close()


# ------------------------------------------------------------------ who else is there


def test_a_second_open_in_one_process_is_refused(store: Path) -> None:
    """It was told in three ways, one of which advised what had just been refused."""
    writing: dict[str, Any] = {"read_only": False}
    reading: dict[str, Any] = {"read_only": True}
    for first in (writing, reading):
        for options in (writing, reading):
            with opened(store, **first) as db:
                with pytest.raises(AlreadyOpenError) as caught:
                    opened(store, **options)
                assert caught.value.pid == os.getpid()
                assert caught.value.path == str(store)
                assert str(caught.value) == f"{store} is open in this process already"
                assert "read_only" not in caught.value.hint
                assert db.map("m")[b"k"] == b"v"
    expect_sound(store)


@pytest.mark.slow
def test_what_a_group_may_read_stays_readable_when_files_are_made_anew(tmp_path: Path) -> None:
    """The manifest went back to 0600 at the next open, and so did every new segment."""
    path = tmp_path / "store"
    opened(path).close()
    for place in [path, *path.rglob("*")]:
        place.chmod(0o750 if place.is_dir() else 0o640)
    old = os.umask(0o077)
    try:
        with opened(path, durability="none", segment_bytes=1) as db:
            db.map("m").update_many({b"%d" % n: bytes(1000) for n in range(300)})
            db.checkpoint()
            db.map("m").update_many({b"%d" % n: bytes(1000) for n in range(300)})
    finally:
        os.umask(old)
    modes = modes_of(path)
    assert len([name for name in modes if name.endswith(".log")]) > 1
    assert {mode for name, mode in modes.items() if not name.endswith("/")} == {0o640}
    assert {mode for name, mode in modes.items() if name.endswith("/")} == {0o750}


def test_a_data_file_that_is_made_anew_from_the_log_stays_readable_for_a_group(store: Path) -> None:
    """It was for its owner alone, whatever the files around it were."""
    for place in [store, *store.rglob("*")]:
        place.chmod(0o750 if place.is_dir() else 0o640)
    for file in (store / "data").iterdir():
        file.unlink()
    opened(store).close()
    assert {mode for name, mode in modes_of(store / "data").items() if name != "./"} == {0o640}


class ForbiddenDisk(RealDisk):
    """A disk that may not be looked at."""

    def kind(self, path: str) -> str | None:
        raise PermissionError(errno.EACCES, "Permission denied", path)


def test_what_may_not_be_read_is_an_error_of_tidelog_that_speaks_of_permission(
    store: Path,
) -> None:
    """A reader got a bare PermissionError, and LMDB's own advised to check the disk."""
    options: Any
    for options in ({}, {"read_only": True}):
        with pytest.raises(DiskError, match="Permission denied") as caught:
            opened(store, quiet(disk=ForbiddenDisk()), **options)
        assert "owner" in caught.value.hint
    with pytest.raises(DiskError) as caught, kv.translated("opening /store/data"):
        raise lmdb.Error("/store/data: Permission denied")
    assert isinstance(caught.value.__cause__, PermissionError)
    assert "owner" in caught.value.hint


@pytest.mark.slow
def test_a_second_open_in_another_process_is_refused(store: Path) -> None:
    program = (
        "import sys, tidelog\n"
        "try: tidelog.open(sys.argv[1]).close()\n"
        "except tidelog.errors.AlreadyOpenError as error: print(error.pid, error)\n"
    )
    with open_store(store):
        ran = run_python(program, store)
        assert ran.out.startswith(f"{os.getpid()} {store}")
    assert run_python(program, store) == (0, "", "")
    expect_sound(store)


@pytest.mark.slow
def test_the_lock_of_a_dead_process_is_in_nobodys_way(store: Path) -> None:
    program = "import os, sys, tidelog\ntidelog.open(sys.argv[1])\nos._exit(9)\n"
    ran = run_python(program, store)
    assert ran.status == 9
    assert (store / "lock").read_text().strip().isdigit()
    with opened(store) as db:
        assert db.map("m")[b"k"] == b"v"
    (store / "lock").write_bytes(b"999999999\n")
    with opened(store) as db:
        assert db.map("m")[b"k"] == b"v"
    expect_sound(store)


# ------------------------------------------------------------------ the manifest


def test_a_newer_format_is_refused_naming_both_versions(store: Path) -> None:
    for changes in ({"format": 2}, {"required": 4}):
        edit_manifest(store, **{"format": 1, "required": 0} | changes)
        error = expect_refused(store, FormatVersionError, "format 1")
        assert isinstance(error, FormatVersionError)
        assert (error.found, error.supported) == (changes.get("format", 1), 1)


def test_what_a_later_minor_version_adds_is_no_reason_to_refuse(store: Path) -> None:
    edit_manifest(store, compatible=1, something_new={"a": 1})
    with opened(store) as db:
        assert db.map("m")[b"k"] == b"v"


def test_another_number_of_partitions_is_refused(store: Path) -> None:
    expect_refused(store, UsageError, "4 partitions, not 8", partitions=8)
    with opened(store, partitions=4) as db:
        assert db.map("m")[b"k"] == b"v"


@pytest.mark.parametrize("written", [True, False])
def test_a_manifest_of_another_store_is_refused(tmp_path: Path, written: bool) -> None:
    for name in ("store", "other"):
        with opened(tmp_path / name) as db:
            if written:
                db.map("m")[b"k"] = b"v"
    os.replace(tmp_path / "other" / "manifest", tmp_path / "store" / "manifest")
    before = digests(tmp_path / "store")
    with pytest.raises(TidelogError) as caught:
        opened(tmp_path / "store")
    assert isinstance(caught.value, (CorruptLogError, CorruptDataError)) or "belongs" in str(
        caught.value
    )
    assert {n: d for n, d in digests(tmp_path / "store").items() if "lock" not in n} == {
        n: d for n, d in before.items() if "lock" not in n
    }


@pytest.mark.slow
def test_manifests_that_lack_something_are_refused(store: Path) -> None:
    kept = (store / "manifest").read_bytes()
    for name in sorted(json.loads(kept.split(b"\n")[0])):
        values: list[object] = [None, "text", -1, [[]], {"a": 1}]
        for value in values:
            edit_manifest(store, **{name: value})
            error = error_of(lambda: opened(store).close())
            assert error is None or str(store) in str(error)
            (store / "manifest").write_bytes(kept)


# ------------------------------------------------------------------ the data file


def test_a_data_file_that_is_no_lmdb_file_is_refused(store: Path) -> None:
    file = store / "data" / "data.mdb"
    kept = file.read_bytes()
    for content in (bytes(20_000), b"noise" * 4000, kept[:8193]):
        file.write_bytes(content)
        expect_refused(store, CorruptDataError, "data.mdb")
    # Less than two whole pages is what a power cut leaves of one that was never written; here the
    # log still has everything.
    for content in (b"", b"x", kept[:4096], bytes(8192)):
        file.write_bytes(content)
        with opened(store) as db:
            assert db.map("m")[b"k"] == b"v"
        expect_sound(store)


def test_a_data_file_of_lmdb_1_0_is_refused(store: Path) -> None:
    file = store / "data" / "data.mdb"
    file.unlink()
    environment = lmdb.open(str(store / "data"), lib_version=1)
    with environment, environment.begin(write=True) as txn:
        txn.put(b"k", b"v")
    error = expect_refused(store, FormatVersionError, "data format")
    assert isinstance(error, FormatVersionError)
    assert error.supported == 1


def test_a_flipped_bit_in_a_value_is_found_by_whoever_reads_it(tmp_path: Path) -> None:
    with opened(tmp_path / "store") as db:
        db.map("m").update_many({b"a": b"first value", b"z": b"last value"})
    file = tmp_path / "store" / "data" / "data.mdb"
    data = file.read_bytes()
    file.write_bytes(data.replace(b"first value", b"girst value"))
    with opened(tmp_path / "store") as db:
        m = db.map("m")
        for read in (
            lambda: m[b"a"],
            lambda: m.get_many([b"a", b"z"]),
            lambda: list(m.items()),
            lambda: list(m.range(reverse=True)),
            lambda: db.snapshot()[m][b"a"],
            lambda: db.transaction()[m][b"a"],
        ):
            with pytest.raises(CorruptDataError):
                read()
        assert m[b"z"] == b"last value"
        m[b"a"] = b"written again"
        db.checkpoint()
        assert dict(m.items()) == {b"a": b"written again", b"z": b"last value"}


@pytest.mark.slow
def test_a_format_from_outside_is_not_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LMDB_DEFAULT_LIB_VERSION", "1")
    program = "import sys, tidelog\nwith tidelog.open(sys.argv[1]) as db: db.map('m')[b'k'] = b'v'"
    assert run_python(program, tmp_path / "store") == (0, "", "")
    monkeypatch.delenv("LMDB_DEFAULT_LIB_VERSION")
    with opened(tmp_path / "store") as db:
        assert db.map("m")[b"k"] == b"v"


# ------------------------------------------------------------------ the log


def newest_log(store: Path) -> Path:
    return sorted((store / "wal").glob("*.log"))[-1]


def test_an_emptied_log_is_refused(store: Path) -> None:
    newest_log(store).write_bytes(b"")
    expect_log_refused(store)


def test_a_log_that_is_missing_is_refused(store: Path) -> None:
    newest_log(store).unlink()
    expect_log_refused(store)


def expect_log_refused(store: Path) -> None:
    before = digests(store)
    with pytest.raises(CorruptLogError):
        opened(store)
    changed = {n for n, d in digests(store).items() if before.get(n) != d}
    assert changed <= {"lock", "data/lock.mdb"}


def test_an_empty_segment_behind_the_end_is_dropped(store: Path) -> None:
    (store / "wal" / "0000000000000002.log").write_bytes(b"")
    with opened(store) as db:
        assert db.map("m")[b"k"] == b"v"
    expect_sound(store)


def test_two_segments_with_one_content_are_refused(store: Path) -> None:
    (store / "wal" / "0000000000000002.log").write_bytes(newest_log(store).read_bytes())
    expect_log_refused(store)


def test_what_an_interrupted_open_leaves_is_cleared_away(store: Path) -> None:
    for name in ("manifest.tmp", "wal/next.tmp", "data/data.tmp"):
        (store / name).write_bytes(b"half a file")
    with opened(store) as db:
        assert db.map("m")[b"k"] == b"v"
        assert not (store / "wal" / "next.tmp").exists()
    assert not (store / "manifest.tmp").exists()
    expect_sound(store)


def test_errors_of_the_disk_at_a_close_are_errors_of_tidelog(tmp_path: Path) -> None:
    """Was: an OSError from writing the manifest left ``close`` as it was."""

    class FullAtTheEnd(RealDisk):
        full = False

        def directory(self, path: str, *, read_only: bool = False) -> Any:
            directory = super().directory(path, read_only=read_only)
            if path == str(tmp_path / "store"):
                create = directory.create

                def refuse(name: str, *, mapped: bool = False) -> Any:
                    if self.full:
                        raise OSError(errno.ENOSPC, "No space left on device", name)
                    return create(name, mapped=mapped)

                directory.create = refuse  # type: ignore[method-assign]
            return directory

    disk = FullAtTheEnd()
    db: Database = opened(tmp_path / "store", quiet(disk=disk))
    db.map("m")[b"k"] = b"v"
    disk.full = True
    with pytest.raises(DiskError.__mro__[1]):
        db.close()
    db.close()
    disk.full = False
    with opened(tmp_path / "store") as db:
        assert db.map("m")[b"k"] == b"v"
    expect_sound(tmp_path / "store")
