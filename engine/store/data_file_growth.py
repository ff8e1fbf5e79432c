"""Enlarges LMDB's map while readers are about.

LMDB may change its map only while no transaction of the process is open; py-lmdb ends those that
are, without asking.  So growth lets readers leave: new ones wait at a gate, old ones get some
patience; whoever is left then (snapshots, transactions and scans that were begun before) is expired
and gets ``SnapshotExpiredError`` at its next read.

Invariants:

- No reader waits longer than twice the patience, and what the system takes to map a file.
- While the map changes, no thread is inside a read: the gate is shut, and expired views are gone.
- Nobody waits at the gate while holding the commit mutex: ``check_open`` lets a committer turn back
  with ``GrowingError``.  The gate opens before the mutex is asked for.
- However growth ends, the gate is open then: readers read through it until it is gone, and it is
  before the data file is written again.
- An event loop sends its reads to a thread while ``overlay.gated`` is set, which it is first.
- No committed data is touched; the checkpoint that found the map full is begun again.
"""

from __future__ import annotations

import logging
import weakref
from _thread import allocate_lock
from collections.abc import Callable
from contextlib import AbstractContextManager

from ...affinity.errors import DiskFullError, TidelogError
from ..data.overlay import Overlay
from ..system.environment import Cursor, Environment, KeyValueEnvironment, KvTransaction
from .options import Options

LEAVE_SECONDS = 1.0
"""How long one that was ended may take, at most, to come to the end of what it reads just now."""
_STEP_SECONDS = 0.005

log = logging.getLogger("tidelog.store")


class GrowingError(TidelogError):
    """The data file would have to be read under the commit mutex; users never see this."""

    code = "TL-INT-002"

    def __init__(self, gate: Gate) -> None:
        super().__init__("the data file is growing")
        self.gate = gate


class Gate:
    """Stands in for a read transaction while there is none: readers wait, then go on.

    Whoever grows the map holds ``lock`` in a ``with`` block.  It is a lock of the interpreter: no
    signal leaves it locked, as it can what ``threading`` has.
    """

    def __init__(self, begin: Callable[[], KvTransaction]) -> None:
        self.lock = allocate_lock()
        self._begin = begin
        self._found: KvTransaction | None = None

    @property
    def shut(self) -> bool:
        """Whether readers wait here."""
        return self.lock.locked()

    def wait(self) -> None:
        """Wait until the map has grown, or has failed to."""
        with self.lock:
            pass

    def txn(self) -> KvTransaction:
        """Return what there is to read, as soon as the map has grown.

        The first one begins it, and for all: what a snapshot found here must not change later.
        Nothing is written into the data file before that (``MapGrowth.let_through``).
        """
        with self.lock:
            if self._found is None:
                self._found = self._begin()
            return self._found

    def get(self, key: bytes, default: bytes | None = None) -> bytes | None:
        """Return a value as soon as the map has grown."""
        return self.txn().get(key, default)

    def cursor(self) -> Cursor:
        """Return a cursor as soon as the map has grown."""
        return self.txn().cursor()

    def put(self, key: bytes, value: bytes) -> bool:
        """Read transactions do not write."""
        raise AssertionError("a read transaction was written to")

    def delete(self, key: bytes) -> bool:
        """Read transactions do not write."""
        raise AssertionError("a read transaction was written to")

    def commit(self) -> None:
        """There is nothing to end."""

    def abort(self) -> None:
        """There is nothing to end."""


class MapGrowth:
    """Knows the read transactions of a store, and grows its map when they have gone."""

    def __init__(
        self,
        environment: Environment,
        kv: KeyValueEnvironment,
        overlay: Overlay,
        options: Options,
        *,
        mutex: AbstractContextManager[object],
        expire: Callable[[str], None],
    ) -> None:
        self._mutex = mutex
        self._expire = expire
        self._environment = environment
        self._kv = kv
        self._overlay = overlay
        self._map_size_max = options.map_size_max
        self._patience = options.growth_patience
        self._read_transactions: list[weakref.ref[KvTransaction]] = [weakref.ref(overlay.view.txn)]

    def begin(self) -> KvTransaction:
        """Begin the read transaction that readers use from now on."""
        txn = self._kv.begin()
        alive = [ref for ref in self._read_transactions if ref() is not None]
        self._read_transactions = [*alive, weakref.ref(txn)]
        return txn

    def grow(self) -> None:
        """Double the map; ``DiskFullError`` if it has its greatest size already."""
        size = self._kv.map_size()
        if size >= self._map_size_max:
            raise DiskFullError(
                f"the data file has reached its limit of {self._map_size_max:,} bytes",
                hint="Open the store with a larger `map_size_max`, or delete some data.",
            )
        gate = Gate(self.begin)
        try:
            with gate.lock:
                self._overlay.gated = True
                with self._mutex:
                    self._overlay.refresh(gate)
                if not self._wait_for_readers(self._patience):
                    self._expire("the data file had to grow")
                    self._wait_for_readers(min(self._patience, LEAVE_SECONDS))
                larger = min(2 * size, self._map_size_max)
                self._kv.grow(larger)
                log.info("map.grown bytes=%d", larger, extra={"event": "map.grown"})
        finally:
            self.let_through()

    def let_through(self) -> None:
        """Let readers read without a gate: behind growth, and if an interrupt left one."""
        gate = self._overlay.view.txn
        # Before the mutex: its holder may be the one who waits at the gate.
        txn = gate.txn() if isinstance(gate, Gate) else None
        self._overlay.gated = False
        if txn is not None:
            with self._mutex:
                self._overlay.refresh(txn)

    def _wait_for_readers(self, seconds: float) -> bool:
        """Wait until no read transaction is left, at most some seconds; tell whether none is."""
        monotonic, wait = self._environment.monotonic, self._environment.wait
        end = monotonic() + seconds
        while any(ref() is not None for ref in self._read_transactions):
            if monotonic() >= end:
                return False
            wait(_STEP_SECONDS)
        return True


def check_open(txn: KvTransaction) -> None:
    """Raise ``GrowingError`` if a read through ``txn`` would wait; for holders of the mutex."""
    if isinstance(txn, Gate) and txn.shut:
        raise GrowingError(txn)
