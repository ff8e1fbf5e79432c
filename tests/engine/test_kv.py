"""LMDB itself: its traps, which its twin in memory does not have."""

from __future__ import annotations

import errno
import os
import random
import stat
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import lmdb
import pytest

from support.real_stores import in_child
from tidelog.affinity.errors import (
    AlreadyOpenError,
    CorruptDataError,
    DiskError,
    DiskFullError,
    FormatVersionError,
    TidelogError,
)
from tidelog.engine.data.stored import KEY_BYTES_MAX, PREFIX_SIZE
from tidelog.engine.system import lmdb_file as engine_kv
from tidelog.engine.system.environment import KeyValueEnvironment
from tidelog.engine.system.layout import FRESH_DATA_FILE, FRESH_DATA_LOCK
from tidelog.engine.system.lmdb_file import (
    ENGINE_VERSION,
    FREEING,
    KvFullError,
    check_structure,
    open_lmdb,
    translated,
)

MAP_SIZE = 1 << 20


def opened(path: Path, *, read_only: bool = False, lock: bool = True) -> KeyValueEnvironment:
    return open_lmdb(str(path), MAP_SIZE, read_only, lock)


def filled(path: Path, keys: int = 50) -> Path:
    """A closed store of several pages; returns its data file."""
    kv = opened(path)
    with kv.write() as txn:
        for number in range(keys):
            txn.put(b"%04d" % number, b"x" * 300)
    kv.close()
    return path / "data.mdb"


def test_two_large_values_may_not_share_their_pages(tmp_path: Path) -> None:
    kv = opened(tmp_path)
    with kv.write() as txn:
        for key in (b"a", b"b"):
            txn.put(key, key * 9000)
    kv.close()
    file = tmp_path / "data.mdb"
    data = bytearray(file.read_bytes())
    # A node that points at pages of its own: length, 2 bytes of flags, size of the key, the key.
    first, second = (data.index(b"\x01\x00\x01\x00" + key) + 5 for key in (b"a", b"b"))
    assert data[first : first + 8] != data[second : second + 8]
    data[second : second + 8] = data[first : first + 8]
    file.write_bytes(data)
    with pytest.raises(CorruptDataError, match="part of a large value"):
        check_structure(str(file), pages=True)


# ------------------------------------------------------------------ durability


def test_commits_are_synced_and_so_is_their_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[lmdb.Environment] = []
    real = lmdb.open

    def kept(*args: Any, **named: Any) -> lmdb.Environment:
        made.append(real(*args, **named))
        return made[-1]

    monkeypatch.setattr(lmdb, "open", kept)
    filled(tmp_path, 0)
    kv = opened(tmp_path)
    flags = made[-1].flags()
    assert (flags["sync"], flags["metasync"]) == (True, True)
    assert (flags["writemap"], flags["map_async"]) == (False, False)
    kv.close()


# ------------------------------------------------------------------ the file before LMDB sees it


def test_every_truncation_is_refused_before_it_can_kill_the_process(tmp_path: Path) -> None:
    file = filled(tmp_path)
    whole = file.read_bytes()
    for size in (*range(0, 8192, 64), *range(8192, len(whole), 512)):
        os.truncate(file, size)
        with pytest.raises(TidelogError):
            opened(tmp_path)
        assert file.stat().st_size == size
        file.write_bytes(whole)
    assert opened(tmp_path).entries() == 50


def test_a_meta_page_that_counts_more_pages_than_any_file_has_is_damage(tmp_path: Path) -> None:
    file = filled(tmp_path)
    content = bytearray(file.read_bytes())
    for page in (0, 1):
        content[page * 4096 + 136 : page * 4096 + 144] = b"\xfe" * 8
        # Behind the magic: version, address, map size, two trees of 48 bytes, last page.
    file.write_bytes(content[: len(content) - 4096])
    with pytest.raises(CorruptDataError, match="but its meta page needs"):
        check_structure(str(file))


def test_a_file_of_another_format_is_named_as_such(tmp_path: Path) -> None:
    other = lmdb.open(str(tmp_path), map_size=MAP_SIZE, lib_version=1)
    with other.begin(write=True) as txn:
        txn.put(b"a", b"1")
    other.close()
    before = (tmp_path / "data.mdb").read_bytes()
    with pytest.raises(FormatVersionError) as caught:
        opened(tmp_path)
    assert (caught.value.found, caught.value.supported) == (3, 1)
    assert (tmp_path / "data.mdb").read_bytes() == before


def test_random_bytes_are_no_store(tmp_path: Path) -> None:
    (tmp_path / "data.mdb").write_bytes(random.Random(1).randbytes(20_000))
    with pytest.raises(CorruptDataError, match="not an LMDB file"):
        opened(tmp_path)


def test_no_file_is_no_damage(tmp_path: Path) -> None:
    check_structure(str(tmp_path / "data.mdb"))


def test_the_older_meta_page_is_no_reason_to_refuse(tmp_path: Path) -> None:
    file = filled(tmp_path)
    data = bytearray(file.read_bytes())
    metas = [data[page * 4096 + 16 + 128 : page * 4096 + 16 + 136] for page in (0, 1)]
    older = 0 if metas[0] < metas[1] else 1
    data[older * 4096 : (older + 1) * 4096] = bytes(4096)
    file.write_bytes(data)
    check_structure(str(file))


def test_a_file_that_grows_beside_the_check_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = filled(tmp_path)
    small = file.stat()
    filled(tmp_path, keys=500)
    assert file.stat().st_size > small.st_size
    # A look at the size before the meta pages are read would be this one.
    monkeypatch.setattr(os, "stat", lambda *args, **keywords: small)
    check_structure(str(file))


# ------------------------------------------------------------------ opening


def test_only_the_owner_may_read_the_files(tmp_path: Path) -> None:
    filled(tmp_path)
    modes = {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
    assert modes == {0o600}


def test_a_file_keeps_the_mode_that_its_owner_gave_it(tmp_path: Path) -> None:
    # Only a file that is made anew follows its folder.
    tmp_path.chmod(0o755)
    opened(tmp_path).close()
    assert stat.S_IMODE((tmp_path / "data.mdb").stat().st_mode) == 0o644
    (tmp_path / "data.mdb").chmod(0o600)
    opened(tmp_path).close()
    assert stat.S_IMODE((tmp_path / "data.mdb").stat().st_mode) == 0o600


@pytest.mark.parametrize("kind", [OSError, KeyboardInterrupt])
def test_an_open_that_is_cut_short_closes_the_file_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]
) -> None:
    # Whoever kept the exception kept the file open, and LMDB opens none twice.
    def fail(*_args: object, **_more: object) -> None:
        raise kind

    with monkeypatch.context() as patch:
        patch.setattr(engine_kv, "LmdbEnvironment", fail)
        with pytest.raises(DiskError if kind is OSError else kind) as caught:
            opened(tmp_path)
    again = opened(tmp_path)
    assert again.entries() == 0
    again.close()
    assert caught.value.__traceback__ is not None  # kept until here


def test_the_kernel_reads_ahead_in_what_fits_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without, a scan of a cold file took five times as long.
    asked: list[bool] = []
    real = lmdb.open

    def noted(path: str, **keywords: Any) -> lmdb.Environment:
        asked.append(keywords["readahead"])
        return real(path, **keywords)

    monkeypatch.setattr(lmdb, "open", noted)
    for pages in (1 << 20, 1 << 20, 4):
        monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": pages, "SC_PAGE_SIZE": 4096}.get)
        kv = opened(tmp_path)
        with kv.write() as txn:
            txn.put(b"k", bytes(20_000))
        kv.close()
    assert asked == [True, True, False]


def test_the_engine_is_pinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMDB_DEFAULT_LIB_VERSION", "1")
    filled(tmp_path)
    assert opened(tmp_path).entries() > 0
    assert ENGINE_VERSION == "lmdb-0.9/format-1"


def test_a_reader_without_locks_leaves_no_trace(tmp_path: Path) -> None:
    filled(tmp_path)
    (tmp_path / "lock.mdb").unlink()
    kv = opened(tmp_path, read_only=True, lock=False)
    assert kv.entries() == 50
    kv.close()
    assert os.listdir(tmp_path) == ["data.mdb"]


def test_a_lock_file_that_a_reader_does_not_hold_may_be_removed(tmp_path: Path) -> None:
    """Its number went to a file of another store, which then was "open in this process"."""
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    new.mkdir()
    filled(old)
    reader = opened(old, read_only=True, lock=False)
    filled(new)
    (new / "lock.mdb").unlink()
    os.rename(old / "lock.mdb", new / "lock.mdb")  # as a file with its number
    opened(new).close()
    with pytest.raises(AlreadyOpenError):
        opened(old)
    reader.close()


LIMITED = """
import resource, sys
from tidelog.engine.system.lmdb_file import open_lmdb
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
kv = open_lmdb(sys.argv[1], 1 << 40, False, True)
with kv.write() as txn:
    txn.put(b"a", b"1")
print(kv.map_size() < 2 << 30, kv.entries())
"""


def test_under_an_address_space_limit_the_map_is_smaller(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "True 1\n"


ABANDON = """
import sys
from tidelog.engine.system.lmdb_file import open_lmdb
kv = open_lmdb(sys.argv[1], 1 << 20, False, True)
reader = kv.begin()
reader.get(b"0000")
print("reading", flush=True)
sys.stdin.read()
"""


def test_the_slot_of_a_killed_reader_is_freed(tmp_path: Path) -> None:
    filled(tmp_path)
    kv = opened(tmp_path)
    child = subprocess.Popen(
        [sys.executable, "-c", ABANDON, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"reading\n"
        assert kv.clear_stale_readers() == 0
        child.kill()
    assert kv.clear_stale_readers() == 1
    assert kv.clear_stale_readers() == 0
    kv.close()


def test_the_longest_key_of_a_map_has_room_in_lmdb_with_its_prefix(tmp_path: Path) -> None:
    env = lmdb.open(str(tmp_path), map_size=MAP_SIZE, lib_version=0)
    assert env.max_key_size() >= PREFIX_SIZE + KEY_BYTES_MAX
    env.close()


# ------------------------------------------------------------------ errors

TRANSLATIONS = [
    (lmdb.MapFullError("mdb_put: MDB_MAP_FULL"), KvFullError),
    (lmdb.DiskError("mdb_txn_commit: No space left on device"), DiskFullError),
    (lmdb.DiskError("mdb_txn_commit: Input/output error"), DiskError),
    (lmdb.CorruptedError("mdb_get: MDB_CORRUPTED"), CorruptDataError),
    (lmdb.InvalidError("mdb_env_open: MDB_INVALID"), CorruptDataError),
    (lmdb.PageNotFoundError("mdb_get: MDB_PAGE_NOTFOUND"), CorruptDataError),
    (lmdb.PanicError("mdb_txn_begin: MDB_PANIC"), CorruptDataError),
    (lmdb.VersionMismatchError("mdb_env_open: MDB_VERSION_MISMATCH"), FormatVersionError),
    (lmdb.Error("mdb_env_copy3: No space left on device"), DiskFullError),
    (lmdb.Error("mdb_env_copy3: File exists"), DiskError),
]


@pytest.mark.parametrize(
    ("raised", "expected"), TRANSLATIONS, ids=[str(raised) for raised, _ in TRANSLATIONS]
)
def test_errors_of_lmdb_become_those_of_tidelog(
    raised: lmdb.Error, expected: type[Exception]
) -> None:
    with pytest.raises(expected) as caught, translated("doing something"):
        raise raised
    assert type(caught.value) is expected
    # The text has all that LMDB says; its class and its frames are nobody's business.
    assert str(raised) in str(caught.value) or expected is DiskFullError
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_other_errors_pass_as_they_are() -> None:
    with pytest.raises(ZeroDivisionError), translated("doing something"):
        raise ZeroDivisionError


# ------------------------------------------------------------------ a new file in its place


def renew(kv: KeyValueEnvironment, path: Path) -> None:
    """Let a file with the pairs of another one take its place."""
    fresh = kv.beside()
    with fresh.write() as txn:
        txn.cursor().putmulti(list(kv.begin().cursor().iternext()), append=True)
    os.rename(path / FRESH_DATA_LOCK, path / "lock.mdb")
    os.rename(path / FRESH_DATA_FILE, path / "data.mdb")
    kv.become(fresh)


READING = """
import sys
from tidelog.engine.system.lmdb_file import open_lmdb
kv = open_lmdb(sys.argv[1], 1 << 20, True, True)
txn = kv.begin()
print("reads", flush=True)
sys.stdin.readline()
print(sum(value == b"x" * 300 for value in txn.cursor().iternext(keys=False)), kv.entries())
"""


def test_another_process_reads_a_new_file_while_it_is_written(tmp_path: Path) -> None:
    filled(tmp_path)
    kv = opened(tmp_path)
    renew(kv, tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", READING, str(tmp_path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as reader:  # fmt: skip
        assert reader.stdout is not None
        assert reader.stdin is not None
        assert reader.stdout.readline() == "reads\n"
        for number in range(20):  # who did not know of the reader would use its pages again
            with kv.write() as txn:
                for key in range(50):
                    txn.put(b"%04d" % key, b"%d" % number * 300)
        reader.stdin.write("\n")
        reader.stdin.flush()
        assert reader.stdout.readline() == "50 50\n"
    kv.close()


def test_a_former_file_goes_when_nobody_reads_in_it(tmp_path: Path) -> None:
    filled(tmp_path)
    kv = opened(tmp_path)
    renew(kv, tmp_path)
    assert len(unnamed(tmp_path)) == 1, "who leaves it as the last one need not wait for that"
    renew(kv, tmp_path)
    kv.clear_stale_readers()
    for thread in threading.enumerate():
        if thread.name == FREEING:
            thread.join()
    assert unnamed(tmp_path) == []
    renew(kv, tmp_path)
    kv.close()
    assert unnamed(tmp_path) == []


def unnamed(folder: Path) -> list[str]:
    """Return the open files of a folder that have no name any more."""
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return [name for name in found if name.startswith(str(folder)) and name.endswith("(deleted)")]


def test_a_new_file_lets_in_whom_the_folder_lets_in(tmp_path: Path) -> None:
    tmp_path.chmod(0o750)
    kv = opened(tmp_path)
    renew(kv, tmp_path)
    modes = {name: (tmp_path / name).stat().st_mode & 0o777 for name in os.listdir(tmp_path)}
    assert modes == {"data.mdb": 0o640, "lock.mdb": 0o640}
    kv.close()


def test_a_renewed_file_is_sound_and_open_in_this_process_once(tmp_path: Path) -> None:
    filled(tmp_path)
    kv = opened(tmp_path)
    renew(kv, tmp_path)
    with pytest.raises(AlreadyOpenError):
        opened(tmp_path)
    kv.close()
    check_structure(str(tmp_path / "data.mdb"), pages=True)
    again = opened(tmp_path)
    assert again.entries() == 50
    again.close()


def test_a_new_file_that_cannot_be_made_is_not_left_open_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path)
    kv = opened(tmp_path)
    monkeypatch.setattr(engine_kv, "_let_readers_in", lambda *_: os.stat("/nowhere"))
    with pytest.raises(DiskError, match=r"data\.tmp failed") as failed:
        kv.beside()
    monkeypatch.undo()
    renew(kv, tmp_path)  # while somebody has the error, and what it came from
    assert failed.value is not None
    assert kv.entries() == 50
    kv.close()


def test_lock_files_have_their_space_before_lmdb_writes_through_a_mapping(tmp_path: Path) -> None:
    kv = opened(tmp_path)
    renew(kv, tmp_path)
    assert (tmp_path / "lock.mdb").stat().st_blocks * 512 >= 1022 * 64
    kv.close()


def test_without_space_for_a_lock_file_nothing_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # LMDB died by a signal: it writes into the file before the file has any space.
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    filled(tmp_path)
    kv = opened(tmp_path)
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(DiskFullError, match="No space left"):
        kv.beside()
    assert sorted(os.listdir(tmp_path)) == ["data.mdb", "lock.mdb"]
    kv.close()
    (tmp_path / "new").mkdir()
    with pytest.raises(DiskFullError, match="No space left"):
        opened(tmp_path / "new")


def test_a_former_file_is_freed_in_a_thread_of_its_own_and_counts_as_no_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path)
    kv = opened(tmp_path)
    renew(kv, tmp_path)
    renew(kv, tmp_path)
    closing, close = list[str](), os.close

    def noted(descriptor: int) -> None:
        closing.append(threading.current_thread().name)
        close(descriptor)

    monkeypatch.setattr(os, "close", noted)
    assert kv.clear_stale_readers() == 0
    for thread in threading.enumerate():
        if thread.name == FREEING:
            thread.join()
    assert closing == [FREEING] * 2
    kv.close()


def test_a_renewed_file_may_be_closed_twice(tmp_path: Path) -> None:
    filled(tmp_path)
    kv = opened(tmp_path)
    renew(kv, tmp_path)
    kv.close()
    kv.close()
    assert unnamed(tmp_path) == []


# ------------------------------------------------------------------ children


@pytest.mark.parametrize("renewed", [False, True], ids=["this file", "a former file"])
def test_a_child_that_closes_what_it_inherited_takes_no_slot_from_who_reads_in_its_parent(
    tmp_path: Path, *, renewed: bool
) -> None:
    """The table of readers is shared memory; pages of whom it does not list are used again."""
    filled(tmp_path)
    kv: Any = opened(tmp_path)
    reader, env = kv.begin(), kv._env
    if renewed:
        renew(kv, tmp_path)
    slots = env.readers()
    assert str(os.getpid()) in slots
    assert in_child(kv.close) == 0
    assert env.readers() == slots
    for number in range(5):
        with kv.write() as txn:
            for key in range(50):
                txn.put(b"%04d" % key, b"%d" % number * 300)
    assert {bytes(value) for value in reader.cursor().iternext(keys=False)} == {b"x" * 300}
    kv.close()
