"""Faults under the key-value environments that live on a faulty disk."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tidelog.affinity.errors import CorruptDataError, DiskError, DiskFullError, StorageError
from tidelog.engine.system.environment import KeyValueEnvironment
from tidelog.testing import FaultyDisk, SimulatedCrash, simulated
from tidelog.testing.media import CRASH_OUTCOMES

MAP_SIZE = 1 << 20
FORMS = ["memory", "lmdb"]


def open_kv(disk: FaultyDisk, form: str, path: str = "/data") -> KeyValueEnvironment:
    return simulated(1, disk, kv=form).open_kv(path, MAP_SIZE, False, True)


def put(kv: KeyValueEnvironment, key: bytes, value: bytes) -> None:
    with kv.write() as txn:
        txn.put(key, value)


def put_many(kv: KeyValueEnvironment) -> None:
    with kv.write() as txn:
        for number in range(200):
            txn.put(b"%d" % number, b"x" * 500)


def created(disk: FaultyDisk, form: str) -> KeyValueEnvironment:
    """A store with one key, whose names are durable."""
    disk.make_directory("/data")
    kv = open_kv(disk, form)
    put(kv, b"a", b"old")
    disk.directory("/data").sync()
    return kv


def value_after(disk: FaultyDisk, form: str) -> bytes | None:
    return open_kv(disk, form).begin().get(b"a")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("outcome", CRASH_OUTCOMES)
def test_a_commit_is_durable_when_it_returns(form: str, outcome: str) -> None:
    disk = FaultyDisk(1)
    kv = created(disk, form)
    put(kv, b"a", b"new")
    assert value_after(disk.crash(outcome), form) == b"new"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("moment", "values"),
    [("before", {b"old"}), ("inside", {b"old", b"new"}), ("after", {b"new"})],
)
def test_a_commit_is_one_atomic_operation(form: str, moment: str, values: set[bytes]) -> None:
    found = set()
    for seed in range(12):
        disk = FaultyDisk(seed)
        kv = created(disk, form)
        disk.crash_at(disk.operations + 1, moment)
        with pytest.raises(SimulatedCrash, match="commit"):
            put(kv, b"a", b"new")
        found.add(value_after(disk.crash("lost"), form))
    assert found == values


@pytest.mark.parametrize("form", FORMS)
def test_a_large_commit_cut_in_the_middle_shows_one_of_the_two_states(form: str) -> None:
    for seed in range(6):
        disk = FaultyDisk(seed)
        kv = created(disk, form)
        disk.crash_at(disk.operations + 1, "inside")
        with pytest.raises(SimulatedCrash):
            put_many(kv)
        after = open_kv(disk.crash("lost"), form)
        assert len(list(after.begin().cursor().iternext())) == after.entries()
        assert after.entries() in (1, 201)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("fault", "error"), [("EIO", DiskError), ("EROFS", DiskError), ("ENOSPC", DiskFullError)]
)
def test_a_failed_commit_changes_nothing(form: str, fault: str, error: type[StorageError]) -> None:
    disk = FaultyDisk(1)
    kv = created(disk, form)
    disk.fail_at(1, fault, kind="commit")
    with pytest.raises(error):
        put(kv, b"a", b"new")
    assert kv.begin().get(b"a") == b"old"
    put(kv, b"b", b"1")
    assert kv.entries() == 2
    assert value_after(disk.crash("kept"), form) == b"old"


@pytest.mark.parametrize("form", FORMS)
def test_a_failed_open_says_so_in_errors_of_the_engine(form: str) -> None:
    disk = FaultyDisk(1)
    disk.make_directory("/data")
    disk.fail_at(1, "ENOSPC", kind="open_kv")
    with pytest.raises(DiskFullError):
        open_kv(disk, form)


@pytest.mark.parametrize("form", FORMS)
def test_the_name_of_the_file_needs_a_sync_of_its_directory(form: str) -> None:
    disk = FaultyDisk(1)
    disk.make_directory("/data")
    put(open_kv(disk, form), b"a", b"1")
    assert disk.crash("lost").paths() == []


@pytest.mark.parametrize("form", FORMS)
def test_a_store_that_never_committed_may_be_an_empty_file(form: str) -> None:
    disk = FaultyDisk(1)
    disk.make_directory("/data")
    open_kv(disk, form)
    disk.directory("/data").sync()
    after = disk.crash("lost")
    assert after.read_bytes("/data/data.mdb") == b""
    with pytest.raises(CorruptDataError):
        open_kv(after, form)


@pytest.mark.parametrize("form", FORMS)
def test_a_copy_is_durable_only_once_it_was_synced(form: str) -> None:
    disk = FaultyDisk(1)
    kv = created(disk, form)
    disk.make_directory("/copy")
    kv.copy("/copy")
    assert disk.unsynced() == ["/copy", "/copy/data.mdb"]
    directory = disk.directory("/copy")
    file = directory.open_write("data.mdb")
    file.sync()
    file.close()
    directory.sync()
    after = open_kv(disk.crash("lost"), form, "/copy")
    assert after.begin().get(b"a") == b"old"


@pytest.mark.parametrize("form", FORMS)
def test_a_copy_cut_short_leaves_a_part(form: str) -> None:
    disk = FaultyDisk(1)
    kv = created(disk, form)
    disk.make_directory("/copy")
    disk.fail_at(1, "short", kind="copy")
    with pytest.raises(DiskFullError):
        kv.copy("/copy")
    assert len(disk.read_bytes("/copy/data.mdb")) < len(disk.read_bytes("/data/data.mdb"))


def test_a_commit_of_the_twin_that_changed_nothing_is_no_operation() -> None:
    disk = FaultyDisk(1)
    kv = created(disk, "memory")
    before = disk.operations
    with kv.write() as txn:
        txn.delete(b"missing")
    assert disk.operations == before


def test_two_environments_of_the_twin_see_each_other() -> None:
    disk = FaultyDisk(1)
    writer = created(disk, "memory")
    reader = simulated(2, disk).open_kv("/data", MAP_SIZE, True, True)
    snapshot = reader.begin()
    put(writer, b"a", b"new")
    assert snapshot.get(b"a") == b"old"
    assert reader.begin().get(b"a") == b"new"


def test_a_flipped_bit_of_the_twin_goes_unnoticed_as_with_lmdb() -> None:
    disk = FaultyDisk(1)
    created(disk, "memory")
    disk.flip_bit("/data/data.mdb", 8 * len(disk.read_bytes("/data/data.mdb")) - 8)
    assert value_after(disk.crash("kept"), "memory") == b"ole"


def test_a_crash_closes_lmdb_and_removes_its_scratch_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    disk = FaultyDisk(1)
    kv = created(disk, "lmdb")
    assert len(list(tmp_path.iterdir())) == 1
    disk.crash("lost")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(Exception):  # noqa: B017, PT011 - what a closed LMDB raises is its affair
        kv.begin()
    kv.close()
