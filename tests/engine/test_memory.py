"""Stores without files: they do what others do, and nothing of them is left."""

from __future__ import annotations

import gc
import os
import tempfile
import threading
from pathlib import Path
from typing import Any, NoReturn

import pytest

import tidelog.aio
from support.descriptors import open_files
from support.loads import make_load, rows_of
from support.real_stores import expect_sound, in_child, run_python
from tidelog.codecs import I64, Str
from tidelog.engine.system import memory
from tidelog.engine.system.memory import MemoryDisk
from tidelog.errors import ClosedError, ConflictError, DiskError, ForkedError, UsageError
from tidelog.testing import check_database


@pytest.mark.parametrize("durability", ["always", "interval", "none"])
def test_a_store_in_memory_does_what_a_store_does(durability: Any) -> None:
    with tidelog.memory(partitions=3, durability=durability) as db:
        stock = db.map("stock", key=Str, value=I64)
        stock.update({"apples": 3, "pears": 5})
        with db.snapshot() as before, db.transaction() as tx:
            tx[stock]["apples"] += 1
            assert before[stock]["apples"] == 3
        assert db.run(lambda tx: tx[stock].incr("pears")) == 6
        one, other = db.transaction(), db.transaction()
        for transaction in (one, other):
            transaction[stock]["apples"] += 1
        one.commit()
        with pytest.raises(ConflictError):
            other.commit()
        given = db.new_id()
        db.run(lambda tx: tx[stock].incr("plums"), id=given)
        assert db.outcome(given) == "committed"
        db.rename("stock", "fruit")
        db.map("other")[b"k"] = b"v"
        db.drop("other")
        assert 0 < db.checkpoint() <= db.sync()
        stock["late"] = 1
        assert stock == {"apples": 5, "late": 1, "pears": 6, "plums": 1}
        assert (db.maps(), db.partitions, db.statistics().checkpoints) == (["fruit"], 3, 1)
        assert check_database(db) == []
    with pytest.raises(ClosedError):
        stock["apples"]


@pytest.mark.loops
async def test_tasks_have_a_store_in_memory() -> None:
    async with tidelog.aio.memory(partitions=3, durability="none") as db:
        stock = db.map("stock", key=Str, value=I64)
        await stock.update_many({"apples": 3, "pears": 5})
        assert await db.run(stock_of_pears, stock) == 6
        await db.checkpoint()
        assert [pair async for pair in stock.items()] == [("apples", 3), ("pears", 6)]
        assert db.database.partitions == 3
        assert db.path.startswith(":memory:")
    with pytest.raises(ClosedError):
        await stock.get("apples")
    with pytest.raises(UsageError, match="it always makes a new store"):
        async with tidelog.aio.memory(read_only=True):  # type: ignore[call-arg]
            pass


async def stock_of_pears(tx: tidelog.aio.Transaction, stock: tidelog.aio.Map[str, int]) -> int:
    return await tx[stock].incr("pears")


def test_its_log_goes_on_in_new_segments_and_is_trimmed() -> None:
    with tidelog.memory(partitions=2, segment_bytes=1 << 16, retain_bytes=1) as db:
        m = db.map("m")
        for number in range(400):
            m[b"%d" % (number % 50)] = bytes(1000)
            if number % 100 == 99:
                db.checkpoint()
        assert db.statistics().log_first_position > 0
        assert db.statistics().log_bytes < 200_000
        assert check_database(db) == []


def test_its_data_file_grows() -> None:
    with tidelog.memory(partitions=1, map_size=1 << 20) as db:
        m = db.map("m")
        m.update((b"%d" % number, bytes(10_000)) for number in range(300))
        db.checkpoint()
        assert db.statistics().data_bytes > 3_000_000
        assert len(m) == 300
        assert check_database(db) == []


def test_two_stores_know_nothing_of_each_other() -> None:
    with tidelog.memory() as one, tidelog.memory() as other:
        assert one.path != other.path
        mine, theirs = one.map("m"), other.map("m")
        mine[b"k"] = b"1"
        assert dict(theirs) == {}
        with (
            pytest.raises(UsageError, match=f"belongs to the store {other.path}"),
            one.transaction() as tx,
        ):
            tx[theirs]
        other.close()
        assert mine[b"k"] == b"1"


def test_threads_share_it() -> None:
    with tidelog.memory() as db:
        counts = db.map("counts", key=Str, value=I64)

        def count() -> None:
            for _ in range(50):
                counts.incr("n")

        threads = [threading.Thread(target=count) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert counts == {"n": 200}


USED = """
import os, signal, sys, tidelog
def opened():
    links = (f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd"))
    return [os.readlink(link) for link in links if os.path.lexists(link)]
db = tidelog.memory()
db.map("m").update((b"%d" % number, bytes(1000)) for number in range(1000))
db.checkpoint()
print(sorted({os.path.basename(link) for link in opened() if ".mdb" in link}))
sys.stdout.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_no_file_has_a_name_while_it_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = run_python(f"import os; os.chdir({str(tmp_path)!r})\n{USED}")
    assert ran.out == "['data.mdb (deleted)', 'lock.mdb (deleted)']\n"
    assert (ran.status, ran.err) == (-9, "")
    # As on a machine that has no file system in memory.
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with tidelog.memory() as db:
        db.map("m")[b"k"] = b"v"
        db.checkpoint()
        assert list(tmp_path.iterdir()) == []


SHORT_OF_DESCRIPTORS = """
import os, resource, sys, tempfile, tidelog
os.access, tempfile.tempdir = (lambda *_: False), sys.argv[1]
tidelog.memory().close()
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
limit, refused = 4, 0
while True:
    limit += 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))
    try:
        tidelog.memory().close()
        break
    except (OSError, tidelog.TidelogError):
        refused += 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    assert os.listdir(sys.argv[1]) == [], limit
print(refused > 0)
"""


def test_an_open_that_fails_leaves_no_file_either(tmp_path: Path) -> None:
    ran = run_python(SHORT_OF_DESCRIPTORS, tmp_path)
    assert (ran.out, ran.err) == ("True\n", "")


def test_an_open_that_fails_before_there_is_a_file_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folders: list[str] = []

    def refuse(folder: str, *_: object) -> NoReturn:
        folders.append(folder)
        raise DiskError("no data file today")

    monkeypatch.setattr(memory, "open_lmdb", refuse)
    with pytest.raises(DiskError, match="no data file today"):
        tidelog.memory()
    assert [Path(folder).exists() for folder in folders] == [False]


def test_only_a_mapped_file_that_has_bytes_can_be_written_in_place() -> None:
    disk = MemoryDisk(":memory:1")
    disk.make_directory(":memory:1")
    directory = disk.directory(":memory:1")
    for mapped in (False, True):
        file = directory.create(f"{mapped}", mapped=mapped)
        assert file.mapping is None
        file.write(0, b"x")
        assert (file.mapping is not None) == mapped


def test_a_backup_is_a_store_on_the_disk(tmp_path: Path) -> None:
    with tidelog.memory() as db:
        db.map("m", key=Str, value=I64)["n"] = 5
        position = db.checkpoint()
        report = db.backup(tmp_path / "copy")
        assert (report.maps, report.checkpoint_position) == (("m",), position)
    expect_sound(tmp_path / "copy")
    with tidelog.open(tmp_path / "copy") as copy:
        assert dict(copy.map("m")) == {"n": 5}


def test_a_load_is_attached_from_the_disk(tmp_path: Path) -> None:
    rows = rows_of(60)
    load = make_load(tmp_path / "load", rows)
    with tidelog.memory(partitions=4) as db:
        assert dict(db.attach(load)) == rows
        assert check_database(db) == []


def refused_option(name: str) -> None:
    options: dict[str, Any] = {name: True}
    tidelog.memory(**options)


@pytest.mark.parametrize("name", ["create", "read_only"])
def test_options_that_mean_nothing_without_files_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match=rf"memory\(\) has no option '{name}'") as caught:
        refused_option(name)
    assert "tidelog.open" in caught.value.hint
    with pytest.raises(UsageError, match="has no option 'partition'"):
        tidelog.memory(partition=3)  # type: ignore[call-arg]
    with pytest.raises(UsageError, match="durability"):
        tidelog.memory(durability="never")  # type: ignore[arg-type]  # as a typo does


def test_nobody_else_opens_it_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with tidelog.memory() as db:
        with pytest.raises(UsageError, match="cannot be in memory") as caught:
            tidelog.open(db.path)
        assert "share its handle" in caught.value.hint
        with pytest.raises(UsageError, match="cannot be in memory"):
            tidelog.open(db.path, read_only=True)
        with pytest.raises(UsageError, match="cannot be in memory"):
            db.backup(db.path)
    assert list(tmp_path.iterdir()) == []


def test_the_child_of_a_fork_has_none_and_may_make_its_own() -> None:
    with tidelog.memory() as db:
        m = db.map("m")
        m[b"k"] = b"parent"

        def child() -> None:
            with pytest.raises(ForkedError):
                m[b"k"]
            with tidelog.memory() as own:
                own.map("m")[b"k"] = b"child"
                own.checkpoint()

        assert in_child(child) == 0
        db.checkpoint()
        assert m[b"k"] == b"parent"


def test_one_that_is_lost_warns_and_gives_back_its_descriptors() -> None:
    tidelog.memory().close()
    gc.collect()
    before = open_files()
    with pytest.warns(ResourceWarning, match="was not closed"):
        tidelog.memory()
    gc.collect()
    tidelog.memory().abandon()
    assert open_files() == before


def test_other_paths_are_on_the_real_disk(tmp_path: Path) -> None:
    disk, place = MemoryDisk(":memory:1"), str(tmp_path / "place")
    disk.make_directory(place)
    disk.directory(place).create("a").close()
    lock = disk.lock(f"{place}/lock")
    assert (tmp_path / "place" / "a").exists()
    assert disk.kind(f"{place}/lock") == "file"
    assert disk.network_file_system(place) is None
    lock.release()
    for name in ("a", "lock"):
        disk.directory(place).unlink(name)
    disk.remove_directory(place)
    assert list(tmp_path.iterdir()) == []
    assert not disk.holds(":memory:10")
    assert disk.holds(":memory:1/wal")


def test_opening_one_loads_neither_tests_nor_trio() -> None:
    ran = run_python(
        "import sys, tidelog; tidelog.open; print('tidelog.engine.system.memory' in sys.modules)\n"
        "tidelog.memory().close()\n"
        "print([name for name in sys.modules if name in ('trio', 'tidelog.testing')])"
    )
    assert (ran.out, ran.err) == ("False\n[]\n", "")
