"""Handles that are pickled: the same store in this process, by its path in another one."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import tidelog
from support.real_stores import expect_sound, in_child
from support.stores import PATH, open_store
from tidelog.codecs import I64, Str
from tidelog.engine.api.database import session_of
from tidelog.engine.api.open import open_with
from tidelog.errors import (
    AlreadyOpenError,
    ClosedError,
    CodecError,
    ForkedError,
    NotFoundError,
    UsageError,
)
from tidelog.testing import simulated

STARTS = ["spawn", "forkserver"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with a map."""
    with tidelog.open(tmp_path / "store", partitions=2) as db:
        db.map("stock", key=Str, value=I64).update({"apples": 3, "pears": 5})
    return tmp_path / "store"


def again(handle: Any) -> Any:
    return pickle.loads(pickle.dumps(handle))


# ------------------------------------------------------------------ in the same process


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_here_a_handle_comes_back_as_what_is_open(path: Path, protocol: int) -> None:
    with tidelog.open(path) as db:
        stock = db.map("stock")
        found, mapping = pickle.loads(pickle.dumps([db, stock], protocol))
        assert found is db
        mapping["plums"] = 8
        assert stock["plums"] == 8
        with db.transaction() as tx:
            tx[mapping]["plums"] = 9
        assert mapping == {"apples": 3, "pears": 5, "plums": 9}
    with tidelog.open(path, read_only=True) as reader:
        stock = reader.map("stock")
        assert again(reader) is reader
        assert again(stock) == stock
    expect_sound(path)


def tidelog_of(mapping: Any) -> Any:
    """The database of a map, by the way that it is pickled with."""
    way = mapping._session.way()
    return way.database(*way.arguments)


def test_a_map_finds_its_store_when_the_database_has_gone(path: Path) -> None:
    stock = tidelog.open(path).map("stock")
    gc.collect()
    again(stock)["apples"] = 4
    assert stock["apples"] == 4
    with tidelog_of(stock) as db:
        assert session_of(db) is stock._session
        assert tidelog_of(stock) is db
    with pytest.raises(ClosedError):
        stock["apples"]
    stock = tidelog.open(path, read_only=True).map("stock")
    gc.collect()
    with tidelog_of(stock) as reader:
        assert reader.refresh() == reader.position
        assert reader.map("stock") == again(stock) == stock


def test_a_link_leads_to_the_store_that_is_open(path: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(path)
    with tidelog.open(tmp_path / "link") as db:
        data = pickle.dumps(db)
    with tidelog.open(path) as db:
        assert pickle.loads(data) is db
    with tidelog.open(tmp_path / "link") as db:
        assert pickle.loads(data) is db


def test_a_relative_path_is_that_of_where_it_was_opened(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with tidelog.open("store") as db:
        data = pickle.dumps(db)
    monkeypatch.chdir("/")
    with pickle.loads(data) as found:
        assert found.path == str(path)


def test_a_store_that_was_moved_is_not_taken_for_the_one_in_its_place(
    path: Path, tmp_path: Path
) -> None:
    """It came back as the other store, without a word."""
    with tidelog.open(path) as db:
        stock = db.map("stock")
        path.rename(tmp_path / "moved.tl")
        assert pickle.loads(pickle.dumps(db)) is db
        sent = pickle.dumps(db)
        with tidelog.open(path) as other:
            assert pickle.loads(pickle.dumps(other)) is other
            for handle in (db, stock):
                with pytest.raises(UsageError, match="another store is at that path by now"):
                    pickle.dumps(handle)
            assert pickle.loads(sent) is other  # by its path, as ever


def test_a_store_that_is_open_in_the_other_way_is_not_taken(path: Path) -> None:
    with tidelog.open(path) as db:
        writing = pickle.dumps(db.map("stock"))
    with tidelog.open(path, read_only=True) as reader:
        reading = pickle.dumps(reader)
        with pytest.raises(AlreadyOpenError, match="is open in this process already") as caught:
            pickle.loads(writing)
        assert "for writing, and" not in str(caught.value)  # which is for other processes
    with tidelog.open(path), pytest.raises(AlreadyOpenError, match="is open in this process"):
        pickle.loads(reading)


def test_what_is_closed_is_not_pickled_and_opens_anew(path: Path) -> None:
    with tidelog.open(path, durability="interval", lock_timeout=3.5) as db:
        stock = db.map("stock")
        data = pickle.dumps(stock)
    for handle in (db, stock):
        with pytest.raises(ClosedError):
            pickle.dumps(handle)
    mapping = pickle.loads(data)
    mapping["plums"] = 8
    session: Any = session_of(tidelog_of(mapping))
    assert (session.durability, session.lock_timeout) == ("interval", 3.5)
    session.close()
    expect_sound(path)


def test_a_store_for_reading_is_opened_anew_with_its_options(path: Path) -> None:
    with tidelog.open(path, read_only=True, map_size=1 << 34) as reader:
        data = pickle.dumps(reader)
    with pickle.loads(data) as again:
        session: Any = session_of(again)
        assert session.access.kv.map_size() == 1 << 34


def test_what_unpickling_has_opened_goes_with_its_last_handle(path: Path) -> None:
    with tidelog.open(path) as db:
        writing = pickle.dumps(db.map("stock"))
    with tidelog.open(path, read_only=True) as reader:
        reading = pickle.dumps(reader.map("stock"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for data in (writing, reading):
            mapping = pickle.loads(data)
            assert mapping["pears"] == 5
            del mapping
    tidelog.open(path).close()
    expect_sound(path)


def test_threads_that_unpickle_at_once_share_one_store(path: Path) -> None:
    with tidelog.open(path) as db:
        data = pickle.dumps(db.map("stock"))
    found: list[Any] = []
    start = threading.Barrier(6)

    def load() -> None:
        start.wait()
        mapping = pickle.loads(data)
        mapping.incr("apples")
        found.append(mapping)

    threads = [threading.Thread(target=load) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(mapping._session) for mapping in found}) == 1
    with tidelog_of(found[0]) as db:
        assert db.map("stock")["apples"] == 9


# ------------------------------------------------------------------ what has changed meanwhile


def test_a_store_that_is_gone_is_not_made_anew(path: Path, tmp_path: Path) -> None:
    with tidelog.open(path) as db:
        data = pickle.dumps(db)
    path.rename(tmp_path / "elsewhere")
    with pytest.raises(NotFoundError, match="there is no store at"):
        pickle.loads(data)
    assert not path.exists()


def test_a_map_that_was_dropped_or_made_anew_is_not_taken_for_the_old_one(path: Path) -> None:
    with tidelog.open(path) as db:
        stock = db.map("stock")
        data = pickle.dumps(stock)
        db.drop("stock")
        with pytest.raises(NotFoundError, match="was dropped"):
            pickle.dumps(stock)
        with pytest.raises(NotFoundError, match="there is no map 'stock'"):
            pickle.loads(data)
        db.map("stock", key=Str, value=Str)
        with pytest.raises(CodecError, match="had codecs str and i64, and this one is") as caught:
            pickle.loads(data)
        assert "made anew" in caught.value.hint
    # Whoever has the exception does not have the store open.
    with pytest.raises(CodecError) as caught:
        pickle.loads(data)
    tidelog.open(path).close()
    assert caught.value.__traceback__ is not None
    expect_sound(path)


@pytest.mark.parametrize("opened", [tidelog.memory, lambda: open_store().database])
def test_stores_that_no_other_process_finds_are_not_pickled(
    opened: Callable[[], tidelog.Database],
) -> None:
    with opened() as db:
        for handle in (db, db.map("m")):
            with pytest.raises(UsageError, match="cannot be pickled: no other process") as caught:
                pickle.dumps(handle)
            assert "`tidelog.open`" in caught.value.hint


def test_a_reader_of_a_disk_of_somebodys_own_is_not_pickled() -> None:
    store = open_store()
    store.database.map("m")
    store.database.close()
    with open_with(simulated(9, store.disk), PATH, read_only=True) as reader:
        for handle in (reader, reader.map("m")):
            with pytest.raises(UsageError, match="cannot be pickled: no other process"):
                pickle.dumps(handle)


# ------------------------------------------------------------------ in other processes


def look(handle: Any) -> tuple[int, bool, dict[str, int]]:
    """What a handle is in the process that it was sent to."""
    mapping = handle.map("stock") if isinstance(handle, tidelog.ReadOnlyDatabase) else handle
    return os.getpid(), again(handle) == handle, dict(mapping)


def add(handle: Any) -> int:
    """Write through a handle, and close its store."""
    with handle as db:
        total: int = db.map("stock").incr("apples")
    return total


@contextmanager
def workers(start: str) -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context(start)) as pool:
        yield pool


@pytest.mark.parametrize("start", STARTS)
def test_other_processes_open_what_they_are_sent(path: Path, start: str) -> None:
    with workers(start) as pool:
        with tidelog.open(path, read_only=True) as reader:
            stock = reader.map("stock")
            for found in pool.map(look, [reader, stock, stock, stock]):
                assert found[0] != os.getpid()
                assert found[1:] == (True, {"apples": 3, "pears": 5})
        with tidelog.open(path) as db:
            data = pickle.dumps(db)
            opening = pool.submit(pickle.loads, data)
            with pytest.raises(AlreadyOpenError) as caught:
                opening.result()
        assert str(caught.value) == (
            "the handle that was pickled is one for writing, and "
            f"{path} is open for writing in process {os.getpid()}"
        )
        assert caught.value.pid == os.getpid()
        assert "read_only=True" in caught.value.hint
        assert pool.submit(add_to, data).result() == 4
        with tidelog.open(path) as db:
            assert db.map("stock")["apples"] == 4
    expect_sound(path)


def add_to(data: bytes) -> int:
    return add(pickle.loads(data))


def test_the_child_of_a_fork_opens_for_itself_what_it_unpickles(path: Path) -> None:
    with tidelog.open(path, read_only=True) as reader:
        data = pickle.dumps(reader.map("stock"))

        def child() -> None:
            mapping = pickle.loads(data)
            assert mapping == {"apples": 3, "pears": 5}
            with pytest.raises(ForkedError):
                pickle.dumps(reader)

        assert in_child(child) == 0
        assert again(reader) is reader
