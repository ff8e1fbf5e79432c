"""When a new data file pays, what goes into it, and what is left when it comes to nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tidelog.checkpoints.marks import PartitionMark
from tidelog.engine.data.flush import CHUNK
from tidelog.engine.data.partition_store import MARKS_NAMESPACE, STORE_KEY, mark_key
from tidelog.engine.data.stored import PENDING, pack_prefix, user_value
from tidelog.engine.store.renewal import end_renewal, pays, remove_fresh, take_place, write_fresh
from tidelog.engine.system.disk import RealDisk
from tidelog.engine.system.environment import KeyValueEnvironment
from tidelog.engine.system.layout import (
    DATA_FILE,
    FRESH_DATA_FILE,
    FRESH_DATA_LOCK,
    WHOLE_DATA_FILE,
)
from tidelog.engine.system.limits import LIMITS, Limits
from tidelog.engine.system.lmdb_file import LOCK_FILE, open_lmdb
from tidelog.testing import FaultyDisk, MemoryKv
from tidelog.wal.ports import Directory


def mark(count: int, tombstones: int = 0) -> PartitionMark:
    return replace(PartitionMark.empty(), count=count, tombstones=tombstones)


@pytest.mark.parametrize(("stays", "expected"), [(6_000, True), (6_250, True), (6_251, False)])
def test_it_pays_where_much_was_cleared_and_little_stays(stays: int, expected: bool) -> None:
    marks = {0: mark(30_000, 20_000), 1: mark(stays - 50, 50)}
    assert pays(marks, [0]) is expected
    assert not pays(marks, [1])
    assert not pays(marks, [])


def test_it_pays_from_some_pairs_on_only() -> None:
    marks = {0: mark(99), 1: mark(1)}
    assert pays(marks, [0], Limits(renewed_pairs=99))
    assert not pays(marks, [0], Limits(renewed_pairs=100))
    assert not pays(marks, [0], Limits(renewed_pairs=9, renewed_share=100))


# ------------------------------------------------------------------ what goes along


def with_pairs(kv: KeyValueEnvironment, pairs: dict[bytes, bytes]) -> KeyValueEnvironment:
    with kv.write() as txn:
        txn.cursor().putmulti(list(pairs.items()))
    return kv


def in_memory(pairs: dict[bytes, bytes]) -> tuple[FaultyDisk, KeyValueEnvironment]:
    disk = FaultyDisk()
    return disk, with_pairs(MemoryKv(disk, "/", 1 << 30), pairs)


def pairs_of(kv: KeyValueEnvironment) -> dict[bytes, bytes]:
    return dict(kv.begin().cursor().iternext())


def written(
    disk: FaultyDisk,
    kv: KeyValueEnvironment,
    cleared: dict[int, PartitionMark],
    limits: Limits = LIMITS,
    rest: Callable[[], object] = lambda: None,
) -> tuple[int, KeyValueEnvironment]:
    """Write a new file; return how many transactions that took, and the file."""
    steps, count = write_fresh(kv, disk.directory("/"), cleared, limits, rest), 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return count, end.value
        count += 1


def test_all_goes_along_but_the_data_of_what_was_cleared() -> None:
    keys = [
        pack_prefix(partition, namespace) + key
        for partition in (0, 1, 2, 3, 4, 255, 256, 32_767)
        for namespace in (MARKS_NAMESPACE + 1, 2, PENDING - 1, PENDING, PENDING + 1, 16, 2**32 - 1)
        for key in (b"", b"\0", b"\xff" * 20)
    ]
    marks = [mark_key(partition) for partition in (0, 1, 2, 3, 4, 255, 256, 32_767)]
    disk, kv = in_memory(dict.fromkeys([*keys, *marks, STORE_KEY], b"old"))
    gone = {3: mark(0), 255: mark(1), 0: mark(2), 2: mark(3), 32_767: mark(4)}
    _, fresh = written(disk, kv, gone)
    stays = {
        key
        for key in keys
        if int.from_bytes(key[:4], "big") not in gone or int.from_bytes(key[4:8], "big") == PENDING
    }
    found = pairs_of(fresh)
    assert found.keys() == {*stays, *marks, STORE_KEY}
    for partition, after in gone.items():
        key = mark_key(partition)
        assert user_value(key, found.pop(key)) == after.to_bytes()
    assert set(found.values()) == {b"old"}
    assert pairs_of(kv) == dict.fromkeys([*keys, *marks, STORE_KEY], b"old")


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (Limits(), 1),
        (Limits(attach_rows=CHUNK), 3),
        (Limits(attach_rows=CHUNK + 1), 2),
        (Limits(attach_bytes=10 * CHUNK), 3),
        (Limits(attach_bytes=10 * CHUNK + 1), 2),
    ],
)
def test_a_transaction_takes_so_many_pairs_or_bytes_and_others_go_first_behind_each_chunk(
    limits: Limits, expected: int
) -> None:
    pairs = {pack_prefix(1, 16) + b"%04d" % number: b"x" * 10 for number in range(2 * CHUNK + 9)}
    disk, kv = in_memory(pairs)
    rests: list[int] = []
    count, fresh = written(disk, kv, {}, limits, lambda: rests.append(1))
    assert (count, len(rests)) == (expected, 3)
    assert pairs_of(fresh) == pairs


# ------------------------------------------------------------------ on a real disk


def renewing(
    path: Path, rest: Callable[[], object] = lambda: None
) -> tuple[KeyValueEnvironment, Directory, Generator[None, None, KeyValueEnvironment]]:
    """Return a data file, its folder, and what writes a new one of two transactions beside it."""
    pairs = {pack_prefix(1, 16) + b"%04d" % number: b"x" * 200 for number in range(2 * CHUNK)}
    kv = with_pairs(open_lmdb(str(path), 1 << 24, False, True), pairs)
    folder = RealDisk().directory(str(path))
    limits = Limits(attach_rows=CHUNK + 1)
    return kv, folder, write_fresh(kv, folder, {}, limits, rest)


def end(steps: Generator[None, None, KeyValueEnvironment]) -> KeyValueEnvironment:
    """Take all steps; return what they lead to."""
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            fresh: KeyValueEnvironment = ended.value
            return fresh


def open_files(path: Path) -> list[str]:
    """Return the files of a folder that this process has open, or had when they were removed."""
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return [name for name in found if name.startswith(f"{path}/")]


def test_a_renewal_that_is_given_up_leaves_nothing_open(tmp_path: Path) -> None:
    kv, folder, steps = renewing(tmp_path)
    before = open_files(tmp_path)
    next(steps)
    assert len(open_files(tmp_path)) > len(before)
    steps.close()
    assert open_files(tmp_path) == before
    remove_fresh(folder)
    assert sorted(folder.names()) == [DATA_FILE, LOCK_FILE]
    end(write_fresh(kv, folder, {}, LIMITS, lambda: None)).close()
    kv.close()


def test_a_name_that_cannot_be_given_leaves_nothing_open(tmp_path: Path) -> None:
    kv, folder, steps = renewing(tmp_path)
    before = open_files(tmp_path)
    fresh = end(steps)
    folder.unlink(FRESH_DATA_LOCK)
    with pytest.raises(FileNotFoundError):
        take_place(kv, folder, fresh)
    assert open_files(tmp_path) == before
    kv.close()


def test_whoever_finds_the_new_file_finds_its_lock_file() -> None:
    disk, kv = in_memory({pack_prefix(1, 16) + b"a": b"x"})
    _, fresh = written(disk, kv, {})
    take_place(kv, disk.directory("/"), fresh)
    names = [operation.path for operation in disk.trace if operation.kind == "rename"]
    assert names == [f"/{FRESH_DATA_FILE}", f"/{FRESH_DATA_LOCK}", f"/{WHOLE_DATA_FILE}"]


def test_a_renewal_is_ended_if_its_lock_file_has_its_name_and_else_removed() -> None:
    for done in range(4):
        disk, kv = in_memory({pack_prefix(1, 16) + b"a": b"old"})
        written(disk, kv, {1: mark(7)})
        folder = disk.directory("/")
        for name, other in (
            (FRESH_DATA_FILE, WHOLE_DATA_FILE),
            (FRESH_DATA_LOCK, LOCK_FILE),
            (WHOLE_DATA_FILE, DATA_FILE),
        )[:done]:
            folder.rename(name, other)
        end_renewal(folder)
        assert sorted(folder.names()) == [DATA_FILE, LOCK_FILE]
        found = pairs_of(MemoryKv(disk, "/", 1 << 20))
        assert (mark_key(1) in found) is (done >= 2)


def test_an_open_removes_all_that_a_renewal_left_and_nothing_else() -> None:
    disk, kv = in_memory({pack_prefix(1, 16) + b"a": b"x"})
    written(disk, kv, {})
    folder = disk.directory("/")
    for _ in range(2):
        remove_fresh(folder)
        assert sorted(folder.names()) == [DATA_FILE, LOCK_FILE]
    written(disk, kv, {})
    folder.unlink(FRESH_DATA_FILE)
    remove_fresh(folder)
    assert sorted(folder.names()) == [DATA_FILE, LOCK_FILE]
