"""Ctrl-C at every point of a commit where Python may raise it.

The interpreter looks for signals at the begin of a function, behind calls and at backward jumps,
and nowhere else.  What is told of each instruction raises ``KeyboardInterrupt`` at one of these
points after the other, in the modules of the commit path.
"""

from __future__ import annotations

import dis
import gc
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import pytest

import tidelog
from support.commits import commit_of
from support.interrupts import Interrupt, Tracer
from support.stores import PATH, Opened, open_store, opened
from tidelog.affinity.errors import (
    AlreadyOpenError,
    CommitUnknownError,
    ReadOnlyError,
    RolledBackError,
)
from tidelog.engine.api.database import session_of
from tidelog.engine.api.open import open as open_real
from tidelog.engine.commit.entries import Commit
from tidelog.engine.data.updates import NoUpdates
from tidelog.engine.system.limits import Limits
from tidelog.engine.system.lmdb_file import LmdbEnvironment
from tidelog.engine.upkeep.check import check_store
from tidelog.testing.disk import Around
from tidelog.wal.reader import load_index

ROOT = Path(tidelog.__file__).parent
MODULES = frozenset(
    str(ROOT / name)
    for name in (
        "engine/commit/carrier.py",
        "engine/commit/commit_log.py",
        "engine/commit/committer.py",
        "engine/commit/context.py",
        "engine/commit/entries.py",
        "engine/commit/group.py",
        "engine/commit/puts.py",
        "engine/commit/queue.py",
        "engine/commit/relaxed.py",
        "engine/commit/standing.py",
        "engine/api/rewrites.py",
        "engine/api/rewriting.py",
        "engine/data/updates.py",
        "tx/counter.py",
        "engine/files/log_keeper.py",
        "wal/writer.py",
    )
)
assert all(Path(name).is_file() for name in MODULES)
LOOKS = ("CALL", "CALL_FUNCTION_EX", "CALL_KW", "JUMP_BACKWARD", "RESUME")
WAIT = 30.0
TOOL = 4
"""Of those whom the interpreter tells of instructions; nobody else is it here."""


class Interrupter:
    """Raises at the n-th point where a signal would be looked for; without n it counts them.

    ``more`` signals that came together raise at the points that follow it.  Before Python 3.12 no
    trace function is called any more once one has raised: there the first is the only one.
    """

    def __init__(self, at: int = 0, more: int = 0) -> None:
        self.at = range(at, at + 1 + more) if at else range(0)
        self.seen = 0
        self.where = ""
        self._last: dict[int, str] = {}
        self._names: dict[CodeType, dict[int, str]] = {}

    def run(self, work: Callable[[], object]) -> None:
        if sys.version_info >= (3, 12):  # there trace functions miss instructions
            self._run_monitored(work)
            return
        before = sys.gettrace()
        sys.settrace(self._call)
        try:
            work()
        finally:
            sys.settrace(before)

    def _run_monitored(self, work: Callable[[], object]) -> None:
        monitoring: Any = sys.monitoring  # type: ignore[attr-defined]
        events, mine = monitoring.events, threading.get_ident()

        def begun(_code: CodeType, _offset: int) -> None:
            if threading.get_ident() == mine:
                self._last[id(sys._getframe(1))] = ""

        def told(code: CodeType, offset: int) -> None:
            if threading.get_ident() == mine:
                self._passed(sys._getframe(1), offset)

        monitoring.use_tool_id(TOOL, "interrupts")
        try:
            monitoring.register_callback(TOOL, events.PY_START, begun)
            monitoring.register_callback(TOOL, events.INSTRUCTION, told)
            for code in codes_of_modules():
                monitoring.set_local_events(TOOL, code, events.PY_START | events.INSTRUCTION)
            work()
        finally:
            for code in codes_of_modules():
                monitoring.set_local_events(TOOL, code, events.NO_EVENTS)
            for event in (events.PY_START, events.INSTRUCTION):
                monitoring.register_callback(TOOL, event, None)
            monitoring.free_tool_id(TOOL)

    def _call(self, frame: FrameType, event: str, _arg: object) -> Any:
        if frame.f_code.co_filename not in MODULES:
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        self._last[id(frame)] = ""
        return self._opcode

    def _opcode(self, frame: FrameType, event: str, _arg: object) -> Any:
        if event == "opcode":
            self._passed(frame, frame.f_lasti)
        return self._opcode

    def _passed(self, frame: FrameType, offset: int) -> None:
        names = self._names.get(frame.f_code)
        if names is None:
            names = {i.offset: i.opname for i in dis.get_instructions(frame.f_code)}
            self._names[frame.f_code] = names
        last, self._last[id(frame)] = self._last[id(frame)], names[offset]
        if last in LOOKS and names[offset] != "PUSH_EXC_INFO":  # there the call has raised
            self.seen += 1
            if self.seen in self.at:
                self.where += f"{frame.f_code.co_name}, line {frame.f_lineno}, behind {last}; "
                raise KeyboardInterrupt


def codes_of_modules() -> list[CodeType]:
    """Return what is watched, with the functions in functions."""
    left = [
        one.__code__
        for one in gc.get_objects()
        if isinstance(one, FunctionType) and one.__code__.co_filename in MODULES
    ]
    found: dict[int, CodeType] = {}
    while left:
        code = left.pop()
        if id(code) not in found:
            found[id(code)] = code
            left += [one for one in code.co_consts if isinstance(one, CodeType)]
    return [*found.values()]


def put(store: Opened) -> None:
    store.database.map("m")[b"k"] = b"new"


def transact(store: Opened) -> None:
    table = store.database.map("m")
    with store.database.transaction() as tx:
        for key in (b"k", b"l"):
            tx[table][key] = b"new"


def update_many(store: Opened) -> None:
    store.database.map("m").update_many({b"k": b"new", b"l": b"new"})


def swap(store: Opened) -> None:
    assert store.database.map("m").compare_and_set(b"k", b"old", b"new")


def take_first(store: Opened) -> None:
    assert store.database.map("m").popitem() == (b"k", b"old")


ONE_KEY = (put, swap, take_first)


def check_interrupted(durability: Any, work: Callable[[Opened], None], at: int) -> str:
    """Interrupt ``work`` once; the store has all of it or nothing, and everybody goes on."""
    with opened(durability=durability, partitions=2) as store:
        table = store.database.map("m")
        table.update_many({b"k": b"old", b"l": b"old"})
        interrupter = Interrupter(at)
        try:
            interrupter.run(lambda: work(store))
        except KeyboardInterrupt:
            pass
        else:
            return ""
        at_once = dict(table.items())
        # A frame that nobody counts with came back when the process died before the next one.
        with opened(store.disk.copy(), seed=3) as killed:
            assert dict(killed.database.map("m").items()) == at_once, interrupter.where
        other = threading.Thread(target=lambda: table.__setitem__(b"other", b"1"), daemon=True)
        other.start()
        other.join(WAIT)
        assert not other.is_alive(), interrupter.where
        table[b"mine"] = b"2"
        shown = dict(table.items())
        assert shown == {**at_once, b"other": b"1", b"mine": b"2"}, interrupter.where
        both = {at_once.get(b"k"), at_once[b"l"]}
        assert len(both) == 1 or work in ONE_KEY, interrupter.where
        for counter in store.parts.state.counters:
            assert counter.lwm == counter.hwm, interrupter.where
        with opened(store.disk.copy(), seed=2) as again:
            assert dict(again.database.map("m").items()) == shown, interrupter.where
    return interrupter.where


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["always", "none"])
@pytest.mark.parametrize("work", [*ONE_KEY, transact, update_many])
def test_an_interrupt_anywhere_in_a_commit_leaves_all_of_it_or_nothing(
    durability: Any, work: Callable[[Opened], None]
) -> None:
    points = 0
    while check_interrupted(durability, work, points + 1):
        points += 1
    assert points == counted(durability, work) > 20


IMPATIENT = Limits(patience_seconds=0.01)


def check_interrupted_twice(durability: Any, work: Callable[[Opened], None], at: int) -> str:
    """Two signals that came together: what is read is what is recovered, or the store stopped."""
    store = open_store(limits=IMPATIENT, durability=durability, partitions=2)
    table = store.database.map("m")
    table.update_many({b"k": b"old", b"l": b"old"})
    interrupter = Interrupter(at, more=1)
    try:
        interrupter.run(lambda: work(store))
    except KeyboardInterrupt:
        pass
    else:
        store.database.close()
        return ""
    at_once = dict(table.items())
    with opened(store.disk.copy(), seed=3) as killed:
        recovered = dict(killed.database.map("m").items())
    refused = list[str]()

    def write() -> None:
        try:
            table[b"other"] = b"1"
        except ReadOnlyError:
            refused.append("other")

    other = threading.Thread(target=write, daemon=True)
    other.start()
    other.join(WAIT)
    assert not other.is_alive(), interrupter.where
    if refused:
        session_of(store.database).abandon()
        expected = recovered
    else:
        assert at_once == recovered, interrupter.where
        expected = {**recovered, b"other": b"1"}
        assert dict(table.items()) == expected, interrupter.where
        store.database.close()
    with opened(store.disk, seed=2) as again:
        assert dict(again.database.map("m").items()) == expected, interrupter.where
    return interrupter.where


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["always", "none"])
@pytest.mark.parametrize("work", [put, transact])
def test_two_interrupts_anywhere_in_a_commit_leave_all_of_it_or_nothing_or_stop_the_store(
    durability: Any, work: Callable[[Opened], None]
) -> None:
    """The second one came where the first was being made good, before anything was noted."""
    points = twice = 0
    while where := check_interrupted_twice(durability, work, points + 1):
        points += 1
        twice += where.count(";") == 2
    assert points > 20
    assert twice > 20 or sys.version_info < (3, 12)


def counted(durability: Any, work: Callable[[Opened], None]) -> int:
    """How many points there are where nobody interrupts."""
    counter = Interrupter()
    with opened(durability=durability, partitions=2) as store:
        store.database.map("m").update_many({b"k": b"old", b"l": b"old"})
        counter.run(lambda: work(store))
    return counter.seen


def check_begun_segment(at: int, seen: list[int]) -> str:
    """Interrupt a rotation; nothing that was acknowledged is lost, or taken from two segments.

    Where nothing is interrupted any more, ``seen`` gets the number of points.
    """
    with opened(partitions=2, segment_bytes=128 << 10) as store:
        table = store.database.map("m")
        while store.parts.writer.segment.number == 1:
            image = store.disk.copy()
            before = dict(table.items())
            table[b"%d" % len(before)] = b"x" * 15_000
    store = open_store(image, segment_bytes=128 << 10)
    table = store.database.map("m")
    interrupter = Interrupter(at)
    try:
        interrupter.run(lambda: table.__setitem__(b"%d" % len(before), b"y" * 15_000))
    except KeyboardInterrupt:
        pass
    else:
        store.database.close()
        seen.append(interrupter.seen)
        return ""
    # Writing had stopped for good, as if a sync had failed.
    table[b"after"] = b"z" * 15_000
    acknowledged = dict(table.items())
    assert store.parts.committer.stopped is None, interrupter.where
    assert store.parts.writer.segment.number == 2, interrupter.where
    index = load_index(store.disk.directory("/store/wal"), 1)
    assert index is None or index.newest is not None, interrupter.where
    assert [info.number for info in store.parts.keeper._sealed] == [1], interrupter.where
    session_of(store.database).abandon()
    for outcome in ("lost", "kept"):
        with opened(store.disk.crash(outcome), seed=3) as again:
            found = dict(again.database.map("m").items())
            assert found.items() >= acknowledged.items(), interrupter.where
            assert found == acknowledged, interrupter.where
            assert check_store("/store", again.environment) == [], interrupter.where
    return interrupter.where


@pytest.mark.slow
def test_an_interrupt_anywhere_in_a_rotation_loses_nothing() -> None:
    points, seen = 0, list[int]()
    while check_begun_segment(points + 1, seen):
        points += 1
    assert points == seen[0] > 40


def test_what_was_not_checked_yet_when_a_stopped_store_was_interrupted_has_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # It had none, and its thread took that for committed.
    store = open_store()
    store.database.map("m")[b"k"] = b"v"
    store.disk.fail_at(store.disk.operations + 1, kind="sync")
    with pytest.raises(CommitUnknownError):
        store.database.map("m")[b"k"] = b"lost"
    committer = store.parts.committer
    entries = [Commit(NoUpdates(), True), Commit(NoUpdates(), True)]
    with monkeypatch.context() as patch:
        patch.setattr(committer.context, "refusal", interrupted)
        with pytest.raises(KeyboardInterrupt):
            committer.commit_all(entries)
    assert [type(entry.error) for entry in entries] == [RolledBackError, RolledBackError]
    session_of(store.database).abandon()


def interrupted(*_args: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("threads", [2, 3, 8])
def test_nobody_is_left_asleep_however_groups_follow_each_other(
    tmp_path: Path, threads: int
) -> None:
    # Some of a group were never woken where nobody had queued, and the next to come led alone.
    with open_real(tmp_path / "store") as db:
        table = db.map("m")

        def work(number: int) -> None:
            for step in range(150):
                table[b"%d %d" % (number, step)] = b"v"

        workers = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(WAIT)
            assert not worker.is_alive()
        assert len(table) == 150 * threads
    assert check_store(tmp_path / "store") == []


class LateError(TimeoutError):
    """What the handler of an alarm raises: an ``OSError``, which no disk has raised."""


@pytest.mark.parametrize("durability", ["always", "none"])
def test_an_alarm_behind_the_frame_leaves_a_commit_that_took_effect(
    durability: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It was taken for a failed append: an error said "no effect", and the next open had it.
    store = open_store(durability=durability, partitions=1)
    writer = store.parts.writer
    append, armed = writer.append, threading.Event()

    def alarmed(payload: bytes) -> bool:
        done: bool = append(payload)
        if armed.is_set():
            armed.clear()
            raise LateError
        return done

    table = store.database.map("m")
    monkeypatch.setattr(writer, "append", alarmed)
    other = store.database.map("other")  # whose puts take the append as it is now
    armed.set()
    with pytest.raises(LateError):
        other[b"k"] = b"v"
    assert other[b"k"] == b"v"
    table[b"later"] = b"1"
    store.database.sync()
    session_of(store.database).abandon()
    with opened(store.disk, seed=2) as again:
        assert again.database.map("other")[b"k"] == b"v"


@pytest.mark.parametrize(("method", "lands"), [("append", False), ("sync", True)])
def test_an_alarm_is_no_error_of_the_disk(method: str, lands: bool) -> None:
    # It was raised as a DiskError, "appending to the log failed".
    store = open_store(partitions=1)
    table = store.database.map("m")
    writer = store.parts.writer
    whole = getattr(writer, method)

    def alarmed(*_: object) -> None:
        setattr(writer, method, whole)
        raise LateError

    setattr(writer, method, alarmed)
    with pytest.raises(LateError):
        store.database.run(lambda tx: tx[table].set(b"k", b"v"))
    expected = {b"k": b"v"} if lands else {}
    assert dict(table.items()) == expected
    table[b"later"] = b"1"
    session_of(store.database).abandon()
    with opened(store.disk, seed=2) as again:
        assert dict(again.database.map("m").items()) == {**expected, b"later": b"1"}


def late(*_args: object) -> None:
    raise LateError("too late")


def test_an_alarm_in_a_leader_acknowledges_nothing_that_was_not_logged() -> None:
    # Those of the group that had not been looked at had no error, and counted as committed.
    store = open_store()
    store.database.map("m")
    entries = [commit_of(b"a", check=late), commit_of(b"b")]
    with pytest.raises(LateError):
        store.parts.committer.commit_all(entries)
    assert all(entry.error is not None for entry in entries)
    assert len(store.database.map("m")) == 0
    session_of(store.database).abandon()


def test_an_alarm_in_a_leader_is_raised_in_no_other_thread() -> None:
    # Being an OSError it was, as if their own disk had failed.
    store = open_store()
    store.database.map("m")
    entry = commit_of(b"b")
    with pytest.raises(LateError):
        store.parts.committer.commit_all([commit_of(b"a", check=late), entry])
    assert isinstance(entry.error, RolledBackError)
    assert "interrupted" in str(entry.error)
    session_of(store.database).abandon()


def alarm_once() -> Around:
    """Raise an alarm behind the first operation."""
    left = [LateError("too late")]

    def alarmed(do: Callable[[], Any]) -> None:
        do()
        if left:
            raise left.pop()

    return alarmed


def test_an_alarm_inside_the_sync_of_the_disk_is_no_failure_of_that_sync() -> None:
    # Nothing was written any more, as after an error of the disk.
    store = open_store(partitions=1)
    table = store.database.map("m")
    with store.around_syncs(alarm_once()), pytest.raises(LateError):
        table[b"k"] = b"v"
    assert table[b"k"] == b"v"
    table[b"later"] = b"1"
    with opened(store.disk.crash("lost"), seed=2) as again:
        assert dict(again.database.map("m").items()) == {b"k": b"v", b"later": b"1"}
    session_of(store.database).abandon()


def test_an_alarm_while_a_segment_is_begun_leaves_its_begin_to_the_next_append() -> None:
    # It was taken for a failed sync, after which nothing is written.
    store = open_store(partitions=1)
    table = store.database.map("m")
    table[b"k"] = b"v"
    during = store.disk.around("sync_directory", f"{PATH}/wal", alarm_once())
    with during, pytest.raises(LateError):
        store.parts.committer.end_of_log.rotate()
    table[b"later"] = b"1"
    assert store.parts.writer.segment.number == 2
    with opened(store.disk.crash("lost"), seed=2) as again:
        assert dict(again.database.map("m").items()) == {b"k": b"v", b"later": b"1"}
    session_of(store.database).abandon()


def test_an_open_that_two_signals_interrupt_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The second one kept the data file from being closed, and the next open found it in use.
    with open_real(tmp_path / "store") as db:
        db.map("m")[b"k"] = b"v"

    def signal(*_: object) -> None:
        raise KeyboardInterrupt

    def interrupted(kv: LmdbEnvironment) -> None:
        kv.circle = kv  # type: ignore[attr-defined]  # parts of a store name each other, too
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(LmdbEnvironment, "begin", interrupted)
        patch.setattr(LmdbEnvironment, "close", signal)
        with pytest.raises(KeyboardInterrupt):
            open_real(tmp_path / "store")
    with open_real(tmp_path / "store") as db:
        assert db.map("m")[b"k"] == b"v"
        with pytest.raises(AlreadyOpenError, match="in this process"):
            open_real(tmp_path / "store")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the store .* was not closed:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("read_only", [False, True])
def test_an_open_that_is_interrupted_at_any_line_leaves_nothing_open(
    tmp_path: Path, read_only: bool
) -> None:
    # Behind the last `try`, at a `return`, nobody closed what was open already.
    path = tmp_path / "store"
    with open_real(path) as db:
        db.map("m")[b"k"] = b"v"

    def open_it() -> tidelog.Database | tidelog.ReadOnlyDatabase:
        return open_real(path, read_only=True) if read_only else open_real(path)

    counting = Tracer()
    opened_once: list[tidelog.Database | tidelog.ReadOnlyDatabase] = []
    counting.run(lambda: opened_once.append(open_it()))
    opened_once.pop().close()
    assert len(counting.lines) > 150
    for line in counting.lines:
        try:
            Tracer((line, 0)).run(lambda: opened_once.append(open_it()))
        except Interrupt:
            with open_it() as again:  # while the traceback refers to what the frames had
                assert again.map("m")[b"k"] == b"v"
        else:
            opened_once.pop().close()  # interrupted in a finalizer
