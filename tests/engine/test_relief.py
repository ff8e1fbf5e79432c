"""Checkpoints of a recovery beside its replay: what goes wrong in them, and what lists beside."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from support.real_stores import expect_sound, opened, quiet
from support.stores import PATH as STORE, open_store
from tidelog.affinity.errors import ClosedError, CorruptDataError, DiskFullError
from tidelog.checkpoints.policy import CheckpointPolicy
from tidelog.engine.api.database import session_of
from tidelog.engine.api.open import open_with
from tidelog.engine.files import manifest as manifests
from tidelog.engine.store.checkpointer import Checkpointer
from tidelog.engine.store.relief import Relief
from tidelog.engine.store.replaying import LogEnd
from tidelog.engine.system.disk import RealDisk
from tidelog.engine.system.production import production
from tidelog.testing import FaultyDisk, simulated
from tidelog.wal.ports import Directory

VALUE = bytes(1000)
POLICY = CheckpointPolicy(overlay_bytes=100, interval_seconds=60.0)


class AtOnce:
    """Background work in a thread of its own that has ended when ``wake`` returns."""

    def __init__(self, _name: str, _seconds: float, work: Callable[[], object]) -> None:
        self._work = work

    def wake(self) -> None:
        thread = threading.Thread(target=self._work)
        thread.start()
        thread.join()

    def stop(self, *, wait: bool = True) -> None:
        """There is nothing to stop."""


class Beside:
    """Background work in a thread that stops when it is told to."""

    def __init__(self, _name: str, _seconds: float, work: Callable[[], None]) -> None:
        self._work = work
        self.thread: threading.Thread | None = None
        tasks.append(self)

    def wake(self) -> None:
        if self.thread is None:
            self.thread = threading.Thread(target=self._work)
            self.thread.start()

    def stop(self, *, wait: bool = True) -> None:
        if wait and self.thread is not None:
            self.thread.join()


tasks: list[Beside] = []


class Listed(RealDisk):
    """A disk that remembers the directories it has opened."""

    def __init__(self) -> None:
        self.directories: list[Directory] = []

    def directory(self, path: str, *, read_only: bool = False) -> Directory:
        directory = super().directory(path, read_only=read_only)
        self.directories.append(directory)
        return directory


def crashed(path: Path, keys: int, **options: Any) -> None:
    """Leave a store of many segments whose checkpoint is far behind, as a crash does."""
    store = opened(path, partitions=2, durability="none", checkpoint_bytes=1 << 28, **options)
    users = store.map("users")
    for key in range(keys):
        users[b"%d" % key] = VALUE
    store.sync()
    session_of(store).abandon()


def test_a_full_disk_beside_the_replay_is_met_again_where_it_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It ended the thread by an exception that nobody saw.
    crashed(tmp_path / "shop", 20)
    tries: list[str] = []

    def full(_self: Checkpointer, _needed: Callable[[], bool], reason: str) -> None:
        tries.append(reason)
        raise DiskFullError("no space")

    monkeypatch.setattr(Checkpointer, "run_while", full)
    with pytest.raises(DiskFullError):
        opened(tmp_path / "shop", quiet(background=AtOnce), checkpoint_bytes=8192)
    assert len(tries) > 1


@pytest.mark.parametrize("error", [IndexError("a bug"), CorruptDataError("damage")])
def test_what_nobody_expects_beside_the_replay_is_raised_by_the_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    crashed(tmp_path / "shop", 20)

    def broken(_self: Checkpointer, _needed: Callable[[], bool], _reason: str) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(Checkpointer, "run_while", broken)
        with pytest.raises(type(error)) as caught:
            opened(tmp_path / "shop", quiet(background=AtOnce), checkpoint_bytes=8192)
    assert caught.value is error
    with opened(tmp_path / "shop") as store:
        assert len(store.map("users")) == 20
    expect_sound(tmp_path / "shop")


class AtTheEnd(AtOnce):
    """Background work that does not come to its turn before it is told to stop."""

    def wake(self) -> None:
        """It has to wait."""

    def stop(self, *, wait: bool = True) -> None:
        waited.append(wait)
        super().wake()


waited: list[bool] = []
"""Whether whoever stopped the work waited for it."""


def test_what_goes_wrong_beside_the_end_of_the_replay_is_raised_by_the_open_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashed(tmp_path / "shop", 20)

    def broken(_self: Checkpointer, _needed: Callable[[], bool], _reason: str) -> None:
        raise IndexError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr(Checkpointer, "run_while", broken)
        patch.setattr("threading.excepthook", lambda _args: None)
        with pytest.raises(IndexError):
            opened(tmp_path / "shop", quiet(background=AtTheEnd), checkpoint_bytes=20_000)
    # Once at the end of the replay, and once more since the store is not going to be opened.
    assert waited == [False, True]
    waited.clear()


def test_a_data_file_that_became_doubtful_beside_the_replay_stays_so(tmp_path: Path) -> None:
    disk = FaultyDisk()
    store = open_store(disk, durability="none")
    for key in range(20):
        store.database.map("users")[b"%d" % key] = VALUE
    session_of(store.database).abandon()
    disk.fail_at(disk.operations + 1, "EIO", kind="commit")
    environment = replace(simulated(2, disk), background=AtOnce)
    open_with(environment, STORE, checkpoint_bytes=20_000)
    assert manifests.read(disk.directory(STORE)).rebuild


def test_a_checkpoint_that_outlives_the_replay_leaves_the_log_to_its_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It wrote the last segment back as it had read it, beside a writer that was appending there.
    crashed(tmp_path / "shop", 20)
    released = threading.Event()
    sync = LogEnd.sync

    def late(self: LogEnd, position: int) -> None:
        assert released.wait(60)
        wal, self._wal = self._wal, cast(Directory, Untouchable())
        try:
            sync(self, position)
        finally:
            self._wal = wal

    monkeypatch.setattr(LogEnd, "sync", late)
    environment = quiet(background=Beside)
    with opened(tmp_path / "shop", environment, checkpoint_bytes=20_000) as store:
        users = store.map("users")
        users[b"new"] = VALUE
        released.set()
        recovery = tasks[0]
        assert recovery.thread is not None
        recovery.thread.join()
        tasks.clear()
        assert len(users) == 21
    expect_sound(tmp_path / "shop")


class Untouchable:
    """A directory that nobody may touch any more."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the log is its writer's: {name}")


def recover_beside_listings(tmp_path: Path, rounds: int) -> None:
    """Recover one store again and again, while somebody else lists the directories that it uses."""
    crashed(tmp_path / "crashed", 150, segment_bytes=1 << 14, retain_bytes=1 << 30)
    shop = tmp_path / "shop"
    stop = threading.Event()
    lists: list[int] = []
    disk = Listed()

    def busy() -> None:
        while not stop.is_set():
            for directory in disk.directories[-3:]:
                with suppress(OSError):  # closed meanwhile
                    lists.append(len(directory.names()))

    thread = threading.Thread(target=busy)
    thread.start()
    try:
        for _ in range(rounds):
            disk.directories.clear()
            shutil.copytree(tmp_path / "crashed", shop)
            environment = replace(production(), disk=disk)
            sizes: dict[str, Any] = {"segment_bytes": 1 << 14, "checkpoint_bytes": 1 << 14}
            with open_with(environment, shop, **sizes) as store:
                assert len(store.map("users")) == 150
            shutil.rmtree(shop)
    finally:
        stop.set()
        thread.join()
    assert lists


@pytest.mark.slow
def test_recoveries_beside_busy_listings_of_the_log_lose_nothing(tmp_path: Path) -> None:
    recover_beside_listings(tmp_path, 5)


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(8))
def test_two_thousand_recoveries_beside_busy_listings_lose_nothing(
    tmp_path: Path, part: int
) -> None:
    recover_beside_listings(tmp_path, 250)


def test_a_replay_waits_where_the_overlay_is_twice_as_full_as_it_may_be() -> None:
    class Full:
        bytes = 0

    class Noting:
        def run_while(self, full: Callable[[], bool], why: str) -> None:
            noted.append((overlay.bytes, full(), why))
            overlay.bytes -= 1
            noted.append((overlay.bytes, full(), why))

    class Woken:
        def background(self, name: str, seconds: float, work: object) -> Any:
            return Woken()

        def wake(self) -> None:
            noted.append((overlay.bytes, True, "woken"))

    noted: list[tuple[int, bool, str]] = []
    environment: Any = Woken()
    checkpointer: Any = Noting()
    overlay: Any = Full()
    relief = Relief(environment, checkpointer, overlay, POLICY)
    for size in (99, 100, 199, 200):
        overlay.bytes = size
        relief.look()
    assert noted == [
        (100, True, "woken"), (199, True, "woken"),
        (200, True, "recovery"), (199, False, "recovery"),
    ]  # fmt: skip


def test_a_store_that_is_closed_needs_no_checkpoint_of_its_replay() -> None:
    # The thread ended with an error that nobody could act on.
    class Closing:
        @property
        def bytes(self) -> int:
            raise ClosedError("the store is closed")

    class Asking:
        def run_while(self, full: Callable[[], bool], _why: str) -> None:
            full()

    asking: Any = Asking()
    closing: Any = Closing()
    relief = Relief(production(), asking, closing, POLICY)
    relief.end()
    relief._beside()
    relief.end()
