"""The real disk and the real LMDB, seen from the kernel: nothing is told before it is synced.

The crash suites lose power on a disk of their own.  Here a real program runs under ``strace``, and
what it did is replayed as a disk sees it; a program with a mistake planted in it shows that the
replay would tell.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import tidelog
from support.real_stores import in_child, opened
from support.system_calls import Call, Disk, calls_of, trace
from tidelog.engine.files.log_source import find_log
from tidelog.testing import check_store
from tidelog.wal.format import HEADER_SIZE

PROGRAM = """
import os, sys
import lmdb, tidelog
from support.real_stores import opened
from tidelog.engine.system.disk import RealDirectory, RealDisk, RealFile
from tidelog.engine.commit.committer import Committer

def tell(text):
    os.write(1, text.encode() + b"\\n")

real_open = lmdb.open
PLANTS = {
    "nothing": lambda: None,
    "a sync of a file does nothing": lambda: setattr(
        RealFile, "sync", lambda self: os.fstat(self._fd) and None
    ),
    "a sync of a directory does nothing": lambda: setattr(
        RealDirectory, "sync", lambda self: os.fstat(self._fd) and None
    ),
    "LMDB does not sync": lambda: setattr(
        lmdb, "open", lambda *args, **named: real_open(*args, **{**named, "sync": False})
    ),
    "LMDB does not sync its root": lambda: setattr(
        lmdb, "open", lambda *args, **named: real_open(*args, **{**named, "metasync": False})
    ),
    "a checkpoint does not sync the log": lambda: setattr(
        Committer, "sync", lambda self, position=None: self.end_of_log.writer.position
    ),
}
PLANTS[sys.argv[1]]()
"""

LIFE = (
    PROGRAM
    + """
path = sys.argv[2]
db = opened(path, partitions=2, segment_bytes=1, retain_bytes=1)
stock = db.map("stock")
tell("map")
for number in range(6):
    stock[b"%d" % number] = bytes(30_000)
    tell(f"put {number}")
with db.transaction(durability="none") as tx:
    tx[stock][b"relaxed"] = b"x"
tell("relaxed")
db.checkpoint()
tell("checkpoint")
for number in range(6):
    stock.update_many({b"%d" % number: bytes(30_000), b"other": b"x"})
    tell(f"update {number}")
db.rename("stock", "goods")
tell("rename")
db.backup(os.path.join(os.path.dirname(path), "copy"))
tell("backup")
with db.transaction(durability="none") as tx:
    tx[stock][b"relaxed"] = b"y"
tell("relaxed")
db.sync()
tell("sync")
stock.discard(b"1")
db.close()
tell("close")
"""
)

RECOVERY = (
    PROGRAM
    + """
with opened(sys.argv[2], checkpoint_bytes=int(sys.argv[3])) as db:
    tell("open")
    assert len(db.map("stock")) == 100
"""
)

MAPPED = (
    PROGRAM
    + """
with opened(sys.argv[2], partitions=2, durability="none") as db:
    stock = db.map("stock")
    for number in range(3):
        stock[b"%d" % number] = b"x"
    tell("relaxed")
    db.sync()
    tell("sync")
    stock[b"relaxed"] = b"x"
    tell("relaxed")
    db.checkpoint()
    tell("checkpoint")
"""
)


def replayed(folder: Path, plant: str) -> Disk:
    """The life of a store, with a mistake in the program, as the disk sees it."""
    disk = Disk(folder)
    disk.replay(trace(LIFE, plant, folder / "store"))
    return disk


@pytest.mark.slow
def test_nothing_is_told_or_built_upon_before_it_is_synced(tmp_path: Path) -> None:
    disk = replayed(tmp_path, "nothing")
    assert disk.early == []
    # Segments, spares and manifests; pages and root of each commit of LMDB.
    assert disk.counts["told"] == 20
    assert disk.counts["renamed"] >= 10
    assert disk.counts["pages"] > disk.counts["root"] >= 2
    for path in (tmp_path / "store", tmp_path / "copy"):
        assert check_store(path) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plant", "told"),
    [
        ("a sync of a file does nothing", r"tell put 0: \d+.log was not synced"),
        ("a sync of a directory does nothing", "the directory was not synced since"),
        ("LMDB does not sync", "tell checkpoint: data.mdb was not synced"),
        ("LMDB does not sync its root", "tell checkpoint: data.mdb was not synced"),
        ("a checkpoint does not sync the log", r"write data.mdb: \d+.log was not synced"),
    ],
)
def test_a_program_with_a_mistake_is_seen_through(tmp_path: Path, plant: str, told: str) -> None:
    early = "\n".join(replayed(tmp_path, plant).early)
    with pytest.raises(AssertionError, match=told):
        raise AssertionError(early)


@pytest.fixture
def unsynced(tmp_path: Path) -> tuple[Path, int]:
    """A store whose process was killed: its log, up to a position, is in the page cache only."""
    path = tmp_path / "store"

    def die() -> None:
        db = opened(path, partitions=2, durability="none")
        stock = db.map("stock")
        for number in range(100):
            stock[b"%d" % number] = bytes(1000)
        os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(die) == -signal.SIGKILL
    scan = find_log(str(path)).scan()
    assert len(list(scan)) > 100
    return path, HEADER_SIZE + scan.end.position


@pytest.mark.slow
def test_a_recovery_makes_the_tail_durable_before_it_appends(unsynced: tuple[Path, int]) -> None:
    path, end = unsynced
    calls = [c for c in trace(RECOVERY, "nothing", path, 1 << 20) if c.path.endswith(".log")]
    appended = next(n for n, c in enumerate(calls) if c.kind == "write" and c.start >= end)
    rewritten = [n for n, c in enumerate(calls[:appended]) if c.kind == "write"]
    reached = calls[rewritten[0]].start
    assert reached < 1000
    for place in rewritten:
        assert calls[place].start <= reached
        reached = calls[place].stop
    assert reached == end
    assert "sync" in [call.kind for call in calls[rewritten[-1] : appended]]


@pytest.mark.slow
def test_a_recovery_builds_on_nothing_that_a_dead_process_has_not_synced(
    tmp_path: Path, unsynced: tuple[Path, int]
) -> None:
    path, _ = unsynced
    newest = max((path / "wal").glob("*.log"))
    disk = Disk(tmp_path, stale={str(newest)})
    assert disk.replay(trace(RECOVERY, "nothing", path, 20_000)) == []
    assert disk.counts["root"] >= 2
    assert disk.stale == set()
    with tidelog.open(path, read_only=True) as db:
        assert len(db.map("stock")) == 100


@pytest.mark.slow
def test_a_mapped_segment_is_synced_before_it_is_told_or_built_upon(tmp_path: Path) -> None:
    """Writes through a mapping are no calls: a sync has to lie between them and the next step."""
    calls = trace(MAPPED, "nothing", tmp_path / "store")
    relaxed = [place for place, call in enumerate(calls) if call.other == "relaxed"]
    synced = next(place for place, call in enumerate(calls) if call.other == "sync")
    assert any(is_log_sync(call) for call in calls[relaxed[0] : synced])
    pages = next(
        place
        for place, call in enumerate(calls)
        if place > relaxed[1] and call.kind == "write" and call.path.endswith("data.mdb")
    )
    assert any(is_log_sync(call) for call in calls[relaxed[1] : pages])


def is_log_sync(call: Call) -> bool:
    return call.kind == "sync" and call.path.endswith(".log")


# ---------------------------------------------------------------------- the replay itself


def log(kind: str, name: str = "1.log", other: str = "") -> Call:
    return Call(kind, f"/s/wal/{name}", other)


ACKNOWLEDGED = Call("tell", "pipe:[1]", "put 1")
PAGES, ROOT = Call("write", "/s/data/data.mdb"), Call("write", "/s/data/data.mdb", through=True)
RENAMED = log("rename", "next.tmp", other="/s/wal/2.log")
DIRECTORY = Call("sync", "/s/wal")


@pytest.mark.parametrize(
    ("calls", "early"),
    [
        ([log("write"), log("sync"), ACKNOWLEDGED], []),
        ([log("write"), ACKNOWLEDGED], ["tell put 1: 1.log was not synced"]),
        ([log("sync"), log("write"), ACKNOWLEDGED], ["tell put 1: 1.log was not synced"]),
        ([log("write"), PAGES], ["write data.mdb: 1.log was not synced"]),
        ([PAGES, Call("sync", PAGES.path), ROOT], []),
        (
            [PAGES, ROOT],
            ["write data.mdb: the pages below the root of the data file were not synced"],
        ),
        ([RENAMED, DIRECTORY, log("write", "2.log")], []),
        (
            [RENAMED, log("write", "2.log")],
            ["write 2.log: the directory was not synced since 2.log was renamed"],
        ),
        (
            [log("write", "next.tmp"), RENAMED, DIRECTORY],
            ["rename next.tmp: what the file holds was not synced"],
        ),
        ([Call("write", "/elsewhere/1.log"), ACKNOWLEDGED], []),
    ],
)
def test_the_replay_notes_what_comes_too_early(calls: list[Call], early: list[str]) -> None:
    assert Disk(Path("/s")).replay(calls) == early


def test_what_a_dead_process_left_has_to_be_written_again() -> None:
    path = "/s/wal/1.log"
    assert Disk(Path("/s"), stale={path}).replay([log("sync"), PAGES]) == [
        "write data.mdb: 1.log was not synced"
    ]
    assert Disk(Path("/s"), stale={path}).replay([log("write"), log("sync"), PAGES]) == []


def test_calls_are_read_as_strace_tells_them() -> None:
    told = """\
7 openat(AT_FDCWD</tmp>, "/s/data/data.mdb", O_WRONLY|O_DSYNC|O_CLOEXEC) = 9</s/data/data.mdb>
7 pwrite64(9</s/data/data.mdb>, "\\0\\1"..., 120, 4128) = 120
8 fdatasync(6</s/wal/2.log> <unfinished ...>
7 pwrite64(6</s/wal/2.log>, "TLF\\1", 46, 175) = 46
8 <... fdatasync resumed>) = 0
7 renameat(4</s/wal>, "next.tmp", 4</s/wal>, "3.log") = 0
7 openat(AT_FDCWD</tmp>, "/none", O_RDONLY) = -1 ENOENT (No such file or directory)
7 write(1<pipe:[5]>, "put 1\\n", 6) = 6
7 unlinkat(5</s/wal>, "1.idx", 0) = 0
7 +++ exited with 0 +++"""
    assert list(calls_of(told.splitlines())) == [
        Call("write", "/s/data/data.mdb", through=True, start=4128, stop=4248),
        Call("write", "/s/wal/2.log", start=175, stop=221),
        Call("sync", "/s/wal/2.log"),
        Call("rename", "/s/wal/next.tmp", "/s/wal/3.log"),
        Call("tell", "pipe:[5]", "put 1"),
        Call("unlink", "/s/wal/1.idx"),
    ]
