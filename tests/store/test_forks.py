"""Children of a process that has stores open: what they may do, and what they must leave alone."""

from __future__ import annotations

import gc
import os
import runpy
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.real_stores import error_of, expect_sound, in_child, opened
from tidelog import aio
from tidelog.engine.api.database import Database, session_of
from tidelog.engine.api.maps import namespace_of
from tidelog.engine.api.open import open as open_store
from tidelog.engine.system import forks
from tidelog.errors import AlreadyOpenError, ForkedError

WAIT = 60.0


def lmdb_of(db: Database) -> Any:
    """What LMDB itself knows of a store."""
    kv: Any = session_of(db).store.kv
    return kv._env


def filled(path: Path, **options: Any) -> Any:
    """An open store with two keys that other processes see."""
    db = open_store(path, **options)
    db.map("m").update_many({b"old": b"1", b"new": b"2"})
    db.checkpoint()
    return db


def expect_child(work: Callable[[], object]) -> None:
    """Do some work in a forked process, and fail unless it ends well, and in time."""
    assert in_child(work) == 0


@contextmanager
def held(lock: Any) -> Iterator[None]:
    """Another thread holds a lock for the time of the block."""
    taken, done = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            taken.set()
            done.wait(WAIT)

    thread = threading.Thread(target=hold)
    thread.start()
    assert taken.wait(WAIT)
    try:
        yield
    finally:
        done.set()
        thread.join()


# ------------------------------------------------------------------ opening in the child


@pytest.mark.parametrize("read_only", [False, True])
def test_a_child_may_read_a_store_that_its_parent_has_open(tmp_path: Path, read_only: bool) -> None:
    """LMDB's registry of open files was inherited: the store counted as open in the child."""
    path = tmp_path / "store"
    db = filled(path)
    if read_only:
        db.close()
        db = open_store(path, read_only=True)
    m = db.map("m")

    def child() -> None:
        for _ in range(2):
            with open_store(path, read_only=True) as mine:
                assert dict(mine.map("m").items()) == {b"new": b"2", b"old": b"1"}
                assert isinstance(error_of(lambda: open_store(path, read_only=True)),
                                  AlreadyOpenError)  # fmt: skip

    expect_child(child)
    assert dict(m.items()) == {b"new": b"2", b"old": b"1"}
    db.close()
    expect_sound(path)


def test_a_child_may_write_a_store_that_its_parent_has_closed(tmp_path: Path) -> None:
    path = tmp_path / "store"
    db = filled(path)
    asks, answers = os.pipe(), os.pipe()

    def child() -> None:
        assert isinstance(error_of(lambda: open_store(path)), AlreadyOpenError)
        os.write(asks[1], b"x")
        os.read(answers[0], 1)
        with open_store(path) as mine:
            mine.map("m")[b"child"] = b"3"

    def close() -> None:
        os.read(asks[0], 1)
        db.close()
        os.write(answers[1], b"x")

    closer = threading.Thread(target=close)
    closer.start()
    expect_child(child)
    closer.join()
    with open_store(path) as again:
        assert sorted(again.map("m")) == [b"child", b"new", b"old"]
    expect_sound(path)
    for end in (*asks, *answers):
        os.close(end)


def test_a_child_of_a_child_may_read_as_well(tmp_path: Path) -> None:
    path = tmp_path / "store"
    db = filled(path)

    def child() -> None:
        mine = open_store(path, read_only=True)
        m = mine.map("m")

        def grandchild() -> None:
            assert isinstance(error_of(lambda: m[b"old"]), ForkedError)
            with open_store(path, read_only=True) as own:
                assert own.map("m")[b"old"] == b"1"

        expect_child(grandchild)
        assert m[b"old"] == b"1"
        mine.close()

    expect_child(child)
    db.close()
    assert os.listdir(path / "readers") == []


POOL = """
import multiprocessing
import sys
import tidelog

def value(key):
    with tidelog.open(sys.argv[1], read_only=True) as mine:
        return mine.map("m")[key]

def error(key):
    try:
        return inherited[key]
    except Exception as error:
        return type(error).__name__

db = tidelog.open(sys.argv[1])
inherited = db.map("m")
with multiprocessing.get_context("fork").Pool(2) as pool:
    print(pool.map(value, [b"old", b"new"]), pool.map(error, [b"old"]))
db.close()
"""


def test_a_pool_of_forked_workers_reads_a_store_that_is_open(tmp_path: Path) -> None:
    filled(tmp_path / "store").close()
    # In a process of its own: this one may have threads of others, with which a fork may hang.
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", POOL, str(tmp_path / "store")],
        capture_output=True, text=True, timeout=WAIT,
    )  # fmt: skip
    assert done.stdout == "[b'1', b'2'] ['ForkedError']\n", done.stderr


@pytest.mark.slow
def test_what_a_child_drops_of_its_parent_takes_nothing_from_what_it_has_opened(
    tmp_path: Path,
) -> None:
    """POSIX: whoever closes any descriptor of a file loses all locks on it, and LMDB its reader."""
    path = tmp_path / "store"
    db: Any = filled(path)
    asks, answers = os.pipe(), os.pipe()

    def child() -> None:
        nonlocal db
        with open_store(path, read_only=True) as mine, mine.snapshot() as snapshot:
            db = None
            gc.collect()
            os.write(asks[1], b"x")
            os.read(answers[0], 1)
            assert snapshot[mine.map("m")][b"old"] == b"1"

    cleared = []

    def look() -> None:
        os.read(asks[0], 1)
        cleared.append(session_of(db).store.kv.clear_stale_readers())
        os.write(answers[1], b"x")

    looker = threading.Thread(target=look)
    looker.start()
    expect_child(child)
    looker.join()
    assert cleared == [0]
    db.close()
    for end in (*asks, *answers):
        os.close(end)


@pytest.mark.slow
def test_the_reader_slots_of_a_parent_outlive_its_children(tmp_path: Path) -> None:
    """The table of readers is shared memory: a child that gave a slot up took it away."""
    path = tmp_path / "store"
    with filled(path) as db:
        m, snapshot = db.map("m"), db.snapshot()
        slots = lmdb_of(db).readers()

        def child() -> None:
            nonlocal m, snapshot
            m = snapshot = None
            gc.collect()
            db.close()
            session_of(db).abandon()

        expect_child(child)
        assert lmdb_of(db).readers() == slots
        assert snapshot[m][b"old"] == b"1"
        snapshot.close()


# ------------------------------------------------------------------ what was inherited


@pytest.mark.parametrize("durability", ["always", "none"])
@pytest.mark.parametrize(
    "held_by", ["nobody", "mutex", "sync", "turn", "checkpoint", "naming", "looking"]
)
def test_every_inherited_handle_raises_at_once_whatever_other_threads_held(
    tmp_path: Path, durability: str, held_by: str
) -> None:
    """A child that closed its parent's store waited for a lock that nobody would ever release."""
    path = tmp_path / "store"
    with filled(path, durability=durability, checkpoint_bytes=100_000) as db:
        m = db.map("m")
        m.update_many({b"%05d" % number: bytes(50) for number in range(300)})
        m[b"x"] = b"1"
        snapshot, locking, tx = db.snapshot(), db.transaction("pessimistic"), db.transaction()
        pairs, keys, old = iter(m.items()), iter(m.keys()), iter(snapshot[m].items())
        locking[m][b"locked"] = b"1"
        inside, outside = tx[m], locking[m]
        inside[b"mine"] = b"1"
        assert next(pairs)[0] == next(keys) == next(old)[0] == b"00000"
        assert inside[b"old"] == b"1"

        def child() -> None:
            uses: dict[str, Callable[[], object]] = {
                "get": lambda: m[b"old"],
                "set": lambda: m.set(b"old", b"child"),
                "update_many": lambda: m.update_many({b"old": b"child"}),
                "incr": lambda: m.incr(b"n"),
                "popitem": m.popitem,
                "pairs": lambda: next(pairs),
                "keys": lambda: next(keys),
                "old": lambda: next(old),
                "snapshot": db.snapshot,
                "snapshot map": lambda: snapshot[m],
                "tx get": lambda: inside[b"mine"],
                "tx set": lambda: inside.set(b"mine", b"2"),
                "commit": tx.commit,
                "locked get": lambda: outside[b"old"],
                "locked set": lambda: outside.set(b"old", b"2"),
                "transaction": db.transaction,
                "run": lambda: db.run(lambda _: None),
                "map": lambda: db.map("other"),
                "maps": db.maps,
                "drop": lambda: db.drop("m"),
                "checkpoint": db.checkpoint,
                "sync": db.sync,
                "statistics": db.statistics,
                "backup": lambda: db.backup(tmp_path / "copy"),
                "attach": lambda: db.attach(tmp_path / "load"),
                "outcome": lambda: db.outcome(bytes(16)),
                "with": db.__enter__,
            }
            for name, use in uses.items():
                assert isinstance(error_of(use), ForkedError), name
            assert list(pairs) == list(keys) == []
            # As those do that were on their way in the thread that forked.
            session, checkpointer = session_of(db), session_of(db).store.checkpointer
            session.store.committer.yield_to_checkpoint()
            assert session.catalog.map("m", None, None) is namespace_of(m)
            assert isinstance(error_of(lambda: checkpointer.run("test")), ForkedError)
            locking.rollback()
            tx.rollback()
            snapshot.close()
            db.close()
            session_of(db).abandon()

        locks = {
            "nobody": threading.Lock(),
            "mutex": session_of(db).store.committer.mutex,
            "sync": session_of(db).store.committer.end_of_log.sync_lock,
            "turn": session_of(db).store.committer.flush_turn,
            "checkpoint": session_of(db).store.checkpointer._lock,
            "naming": session_of(db).catalog._naming,
            "looking": session_of(db).rewriting._looking,
        }
        with held(locks[held_by]):
            expect_child(child)
        assert not (tmp_path / "copy").exists()
        locking.rollback()
        m[b"after"] = b"1"
        assert len(list(pairs)) == 302
    expect_sound(path)


def test_a_child_has_no_segment_of_its_parents_log_open(tmp_path: Path) -> None:
    with filled(tmp_path / "store") as db:

        def segments() -> list[str]:
            """The segments that this process has open for writing."""
            files = [file.resolve() for file in Path("/proc/self/fd").iterdir()]
            return [file.name for file in files if file.parent == tmp_path / "store" / "wal"]

        def child() -> None:
            assert segments() == []

        assert len(segments()) == 1
        expect_child(child)
        db.map("m")[b"after"] = b"1"


@pytest.mark.parametrize("held_by", ["nobody", "mutex", "refreshing"])
def test_an_inherited_reader_raises_at_once_whatever_other_threads_held(
    tmp_path: Path, held_by: str
) -> None:
    path = tmp_path / "store"
    filled(path).close()
    with open_store(path, read_only=True) as db:
        m, snapshot = db.map("m"), db.snapshot()
        pairs = iter(m.items())
        next(pairs)

        def child() -> None:
            uses: list[Callable[[], object]] = [
                lambda: m[b"old"],
                lambda: next(pairs),
                lambda: snapshot[m],
                lambda: session_of(db).state,
                db.refresh,
                db.snapshot,
                db.maps,
                db.statistics,
                lambda: db.map("m"),
                lambda: db.backup(tmp_path / "copy"),
            ]
            for use in uses:
                error = error_of(use)
                assert isinstance(error, ForkedError), error
            db.close()
            session_of(db).access.close()

        session = session_of(db)
        locks = {
            "nobody": threading.Lock(),
            "mutex": session._mutex,
            "refreshing": session._refreshing,
        }
        with held(locks[held_by]):
            expect_child(child)
        assert len(os.listdir(path / "readers")) == 1
        assert m[b"old"] == b"1"
        db.refresh()


async def test_an_inherited_async_store_raises_at_once(tmp_path: Path) -> None:
    path = tmp_path / "store"
    async with aio.open(path) as db:
        m, other = db.map("m"), db.map("other")
        for each in (m, other):
            await each.set(b"old", b"1")

        async def uses() -> None:
            calls: list[Callable[[], Any]] = [
                lambda: m.set(b"old", b"child"),
                lambda: m.update_many({b"old": b"child"}),
                lambda: m.get(b"old"),
                lambda: db.run(_sets),
                db.checkpoint,
            ]
            for call in calls:
                with pytest.raises(ForkedError):
                    await call()

        async def _sets(tx: Any) -> None:
            await tx[m].set(b"old", b"child")

        def child() -> None:
            # There is no loop here: whatever waits comes back to where it is sent on.
            with pytest.raises(StopIteration):
                uses().send(None)

        expect_child(child)
        assert await m.get(b"old") == b"1"
    expect_sound(path)


def test_a_child_forked_in_the_middle_of_a_commit_ends_and_the_commit_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "store"
    with filled(path) as db:
        m, writer = db.map("m"), session_of(db).store.writer
        inside, go_on, sync = threading.Event(), threading.Event(), writer.sync

        def slow() -> int:
            inside.set()
            go_on.wait(WAIT)
            return int(sync())

        monkeypatch.setattr(writer, "sync", slow)
        threads = [threading.Thread(target=m.set, args=(b"%d" % n, b"1")) for n in range(3)]
        for thread in threads:
            thread.start()
        assert inside.wait(WAIT)

        def child() -> None:
            assert isinstance(error_of(lambda: m.set(b"child", b"1")), ForkedError)
            db.close()
            with open_store(path, read_only=True) as mine:
                assert mine.map("m")[b"old"] == b"1"

        expect_child(child)
        monkeypatch.undo()
        go_on.set()
        for thread in threads:
            thread.join()
        assert len(m) == 5
    expect_sound(path)


def test_a_fork_in_the_hands_of_a_commit_writes_nothing_in_the_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a signal handler does that forks: the child comes back into the middle of a commit."""
    path = tmp_path / "store"
    with filled(path) as db:
        m, writer = db.map("m"), session_of(db).store.writer
        append, statuses = writer.append, list[int]()

        def forks(payload: bytes) -> bool:
            monkeypatch.undo()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                pid = os.fork()
            if pid:
                statuses.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            return bool(append(payload))

        monkeypatch.setattr(writer, "append", forks)
        me, before = os.getpid(), writer.position
        try:
            m[b"both"] = b"1"
        except BaseException:
            if os.getpid() == me:
                raise
            os._exit(7)
        if os.getpid() != me:
            os._exit(8)
        assert statuses == [7]
        assert writer.position > before
        assert m[b"both"] == b"1"
    expect_sound(path)


# ------------------------------------------------------------------ the end of a child

EXITS = """
import os, signal, sys, threading, time, warnings
import tidelog
warnings.simplefilter("ignore", DeprecationWarning)
path, how, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
db = tidelog.open(path, durability="none", checkpoint_bytes=1 << 20)
m = db.map("m")
stop = calm = False
def write():
    n = 0
    while not stop:
        if calm:
            time.sleep(0.01)
        m[b"%d" % (n % 100)] = bytes(200)
        n += 1
threads = [threading.Thread(target=write) for _ in range(3)]
for thread in threads:
    thread.start()
hung = failed = 0
for number in range(count):
    way = ("close", "exit", "with", "lock", "read")[number % 5] if how == "all" else how
    calm = way == "read"  # a child would run after the end of the log
    if calm:
        db.checkpoint()
    pid = os.fork()
    if pid == 0:
        stop = True
        signal.alarm(20)
        if way == "close":
            db.close()
            os._exit(0)
        if way == "exit":
            sys.exit(0)
        if way == "with":
            try:
                with db:
                    pass
            except tidelog.errors.ForkedError:
                os._exit(0)
            os._exit(1)
        if way == "lock":
            try:
                with db.transaction("pessimistic") as tx:
                    tx[m][b"1"] = b"2"
            except tidelog.errors.ForkedError:
                sys.exit(0)
            os._exit(1)
        with tidelog.open(path, read_only=True) as mine:
            mine.map("m").get(b"1")
        sys.exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    hung += status == -signal.SIGALRM
    failed += status != 0
stop = True
for thread in threads:
    thread.join()
db.close()
print(count, hung, failed)
with tidelog.open(path) as db:
    assert 0 < len(db.map("m")) <= 100
"""


def run_exits(path: Path, how: str, count: int) -> str:
    done = subprocess.run(
        [sys.executable, "-c", EXITS, str(path), how, str(count)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    expect_sound(path)
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("how", ["close", "exit", "with", "lock", "read"])
def test_children_of_a_busy_writer_end(tmp_path: Path, how: str) -> None:
    """Two of three hung in `close`, behind their `with` block, or in `sys.exit`."""
    assert run_exits(tmp_path / "store", how, 12) == "12 0 0\n"


@pytest.mark.nightly
def test_two_hundred_children_of_a_busy_writer_end(tmp_path: Path) -> None:
    assert run_exits(tmp_path / "store", "all", 200) == "200 0 0\n"


LEAVES_A_CHILD = """
import os, sys, warnings, tidelog
warnings.simplefilter("ignore", DeprecationWarning)
db = tidelog.open(sys.argv[1], read_only=sys.argv[2] == "reader")
ready, tell = os.pipe()
child = os.fork()
if child == 0:
    os.close(1)
    os.write(tell, b"x")
    os.read(0, 1)
    os._exit(0)
os.read(ready, 1)
print(child, flush=True)
os.kill(os.getpid(), 9)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["writer", "reader"])
def test_no_lock_outlives_its_process_in_a_child(tmp_path: Path, kind: str) -> None:
    """A killed writer's store could not be opened while a child of it was alive."""
    path = tmp_path / "store"
    filled(path).close()
    dying = subprocess.Popen(
        [sys.executable, "-c", LEAVES_A_CHILD, str(path), kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert dying.stdin is not None
    assert dying.stdout is not None
    child = int(dying.stdout.readline())
    assert dying.wait() == -signal.SIGKILL
    os.kill(child, 0)
    with open_store(path) as db:
        db.checkpoint()
        assert db.statistics().readers == {}
    dying.stdin.close()
    dying.stdout.close()
    expect_sound(path)


def test_a_lock_that_is_being_taken_holds_a_fork_up() -> None:
    """A child forked between the open of the file and the lock would keep the lock for ever."""

    def child() -> None:
        module: dict[str, Any] = {}
        owned: list[bool] = []
        # What is registered first is called last: behind that of the module, which runs once more.
        os.register_at_fork(before=lambda: owned.append(module["no_fork"]._is_owned()))
        module.update(runpy.run_path(forks.__file__))
        expect_child(lambda: None)
        assert owned == [True]
        assert not module["no_fork"]._is_owned()

    expect_child(child)


def test_any_thread_of_a_child_may_take_locks() -> None:
    def child() -> None:
        found: list[bool] = []
        thread = threading.Thread(
            target=lambda: found.append(forks.no_fork.acquire(timeout=WAIT / 2))
        )
        thread.start()
        thread.join()
        assert found == [True]

    expect_child(child)


def test_a_store_opened_and_closed_beside_forks_is_free_again(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with opened(path) as db:
        db.map("m")[b"k"] = b"v"
    asks, children = os.pipe(), []
    with opened(path) as db:
        for _ in range(3):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                children.append(os.fork())
            if not children[-1]:
                os.close(asks[1])
                os.read(asks[0], 1)
                os._exit(0)
    with opened(path) as db:
        assert db.map("m")[b"k"] == b"v"
    os.close(asks[1])
    for child in children:
        os.waitpid(child, 0)
    os.close(asks[0])
