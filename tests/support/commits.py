"""Commits made by hand, and a gate that holds the syncs of a store while others queue."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from support.stores import Opened
from tidelog.affinity.partitions import Space, partition_of
from tidelog.engine.commit.entries import Commit
from tidelog.engine.commit.puts import Puts
from tidelog.engine.commit.standing import Standing
from tidelog.engine.data.stored import pack_prefix
from tidelog.engine.data.updates import FewUpdates, Writes
from tidelog.wal.reader import Scan, read_records

WAIT = 60.0
"""Longer than anything takes; a test that waits so long has failed."""


def records_of(store: Opened) -> list[list[Any]]:
    """The records of the log, frame by frame."""
    scan = Scan(store.disk.directory("/store/wal"), 0, exact=True)
    frames = list(scan)
    return [[record for _, record in read_records([frame])] for frame in frames]


def put_of(key: bytes, value: bytes = b"v", durable: bool = True) -> Puts:
    """A put of a key of the first map."""
    partition = partition_of(key, Space(0, 4))
    full_key = pack_prefix(partition, 16) + key
    return Puts([(partition, 16, full_key, key, value, key)], durable)


def commit_of(key: bytes, value: bytes = b"v", **options: Any) -> Commit:
    """A transaction that sets a key of the first map; ``options`` are attributes of it."""
    partition = partition_of(key, Space(0, 4))
    writes: Writes = {pack_prefix(partition, 16) + key: (partition, 16, key, value)}
    commit = Commit(FewUpdates(writes), options.pop("durable", True), options.pop("check", None))
    for name, option in options.items():
        setattr(commit, name, option)
    return commit


def error_of(entry: Puts | Commit) -> BaseException | None:
    """The error of a commit, or of the only put of a test."""
    errors = entry.errors.values() if isinstance(entry, Puts) else ()
    return next(iter(errors), entry.error)


def standing_of(store: Opened) -> Standing:
    """The standing of its committer as it is now."""
    return store.parts.committer.context.standing


@dataclass
class Gate:
    """Holds every sync of the log until the test lets it go on."""

    entered: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    open: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    queued: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    errors: list[BaseException] = field(default_factory=list)
    threads: list[threading.Thread] = field(default_factory=list)

    def start(self, work: Callable[[], object], name: str = "") -> threading.Thread:
        """Do something in a thread; what it raises is in ``errors``."""

        def run() -> None:
            try:
                work()
            except BaseException as error:
                self.errors.append(error)

        thread = threading.Thread(target=run, name=name or None, daemon=True)
        self.threads.append(thread)
        thread.start()
        return thread

    def wait_syncing(self) -> None:
        """Return once a thread is inside a sync."""
        assert self.entered.acquire(timeout=WAIT)

    def wait_queued(self, store: Opened, count: int) -> None:
        """Return once so many more have queued."""
        for _ in range(count):
            assert self.queued.acquire(timeout=WAIT)
        with store.parts.committer.mutex:
            pass

    def finish(self, syncs: int) -> None:
        """Let so many syncs end, and wait for all threads."""
        for _ in range(syncs):
            self.open.release()
        for thread in self.threads:
            thread.join(WAIT)
            assert not thread.is_alive()


@contextmanager
def gated(store: Opened, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """Let commits of other threads queue up behind a sync that does not end by itself."""
    gate = Gate()

    def held(sync: Callable[[], Any]) -> None:
        gate.entered.release()
        assert gate.open.acquire(timeout=WAIT)
        sync()

    queue = store.parts.committer.queue

    def counted(add: Callable[[Any], bool]) -> Callable[[Any], bool]:
        def added(queued: Any) -> bool:
            taken = add(queued)
            if taken:
                gate.queued.release()
            return taken

        return added

    with monkeypatch.context() as patch, store.around_syncs(held):
        patch.setattr(queue, "add_put", counted(queue.add_put))
        patch.setattr(queue, "add_ticket", counted(queue.add_ticket))
        yield gate
