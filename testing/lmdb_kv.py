"""Real LMDB on a ``FaultyDisk``: it works in a scratch directory, each commit is copied over.

Invariants:

- The simulated disk holds ``data.mdb`` as of the last commit; an open starts from that copy.
- A commit is one operation of the disk, atomic and durable.  A crash inside it leaves the new
  state, or old meta pages with any subset of the new data pages: what LMDB's default sync mode
  can leave, as data pages are synced before the meta page is written.

Left out: several environments on one file at a time (LMDB's locks would not see each other).
"""

from __future__ import annotations

import os
import posixpath
import random
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

from ..engine.system.environment import Cursor, KeyValueEnvironment, KvTransaction
from ..engine.system.layout import DATA_FILE, FRESH_DATA_FILE, FRESH_DATA_LOCK
from ..engine.system.lmdb_file import LmdbEnvironment, open_lmdb, translated
from .disk import FaultyDisk, normal
from .kv import LOCK_FILE, copy_into, translated_os_errors
from .media import PAGE_BYTES, FileWrite, Inode, NameChange

_META_PAGES = 2


class CopiedLmdb:
    """One LMDB file whose durable state lives on a ``FaultyDisk``."""

    def __init__(
        self,
        disk: FaultyDisk,
        path: str,
        map_size: int,
        read_only: bool,
        lock: bool,
        names: tuple[str, str] = (DATA_FILE, LOCK_FILE),
    ) -> None:
        self._disk = disk
        self._names = names
        self._path = posixpath.join(normal(path), names[0])
        self._scratch = tempfile.mkdtemp(prefix="tidelog-")
        self._remove_scratch = weakref.finalize(self, shutil.rmtree, self._scratch, True)
        with translated_os_errors(f"opening {path}"):
            disk.perform("open_kv", self._path, lambda: self._fetch(path, read_only, lock))
        self._env = open_lmdb(self._scratch, map_size, read_only, lock)
        self._inode = disk.file(self._path)
        if not self._inode.cached:
            self._inode.change(FileWrite(0, self._image()))
        self._fresh: list[CopiedLmdb] = []
        """What this has become: the last one's scratch directory is where it works."""
        self._left: list[LmdbEnvironment] = []
        """Those of former files."""
        disk.at_crash.append(self.close)

    def __repr__(self) -> str:
        return f"<CopiedLmdb {self._path}>"

    def begin(self, *, write: bool = False) -> KvTransaction:
        """Begin a transaction; a read transaction ends when its last reference goes."""
        transaction = self._env.begin(write=write)
        return CopiedTransaction(self, transaction) if write else transaction

    @contextmanager
    def write(self) -> Iterator[KvTransaction]:
        """Begin a write transaction that commits when the block ends, and aborts on an error."""
        with translated(f"writing {self._path}"):
            transaction = self.begin(write=True)
            try:
                yield transaction
                transaction.commit()
            finally:
                transaction.abort()

    def entries(self) -> int:
        """Return the number of keys that the tree says it has."""
        return self._env.entries()

    def size_used(self) -> int:
        """Return the bytes of the file that hold, or held, pages."""
        return self._env.size_used()

    def map_size(self) -> int:
        """Return the bytes that the map may grow to."""
        return self._env.map_size()

    def grow(self, map_size: int) -> None:
        """Enlarge the map; no transaction of this process may be open."""
        self._env.grow(map_size)

    def copy(self, path: str, *, compact: bool = False) -> None:
        """Write a consistent copy of the file into the directory ``path``, unsynced."""
        with tempfile.TemporaryDirectory(prefix="tidelog-") as scratch:
            self._env.copy(scratch, compact=compact)
            with open(os.path.join(scratch, DATA_FILE), "rb") as stream:
                content = stream.read()
        copy_into(self._disk, path, content)

    def beside(self) -> KeyValueEnvironment:
        """Make a new file beside this one: ``FRESH_DATA_FILE``, with ``FRESH_DATA_LOCK``."""
        folder, names = posixpath.dirname(self._path), (FRESH_DATA_FILE, FRESH_DATA_LOCK)
        return CopiedLmdb(self._disk, folder, self.map_size(), False, True, names)

    def become(self, fresh: KeyValueEnvironment) -> None:
        """Go on in a file that was made ``beside`` and has the names of this one by now."""
        assert isinstance(fresh, CopiedLmdb)
        self._left.append(self._env)
        self._fresh.append(fresh)
        self._env, self._inode, self._scratch = fresh._env, fresh._inode, fresh._scratch

    def clear_stale_readers(self) -> int:
        """Free the slots of processes that have died; return how many."""
        return self._env.clear_stale_readers()

    def close(self) -> None:
        """Close the file; closing twice is fine."""
        for env in (self._env, *self._left):
            env.close()
        self._remove_scratch()
        for fresh in self._fresh:
            fresh.close()

    def commit(self, transaction: KvTransaction) -> None:
        """Commit for real and copy the result: one operation of the disk."""

        def whole() -> None:
            transaction.commit()
            self._inode.replace(self._image())

        def partly(rng: random.Random) -> None:
            old = bytes(self._inode.cached)
            whole()
            if rng.random() < 0.75:
                self._inode.replace(_mixed(old, bytes(self._inode.cached), rng))

        with translated_os_errors(f"writing {self._path}"):
            self._disk.perform("commit", self._path, whole, partly=partly)

    def _fetch(self, path: str, read_only: bool, lock: bool) -> None:
        folder = self._disk.folder(path)
        data_name, lock_name = self._names
        if data_name in folder.cached:
            with open(os.path.join(self._scratch, DATA_FILE), "wb") as stream:
                stream.write(self._disk.read_bytes(self._path))
        elif not read_only:
            folder.change(NameChange(None, data_name, Inode()))
        if lock and lock_name not in folder.cached:
            folder.change(NameChange(None, lock_name, Inode()))

    def _image(self) -> bytes:
        with open(os.path.join(self._scratch, DATA_FILE), "rb") as stream:
            return stream.read(self._env.size_used())


class CopiedTransaction:
    """A write transaction of LMDB whose commit is an operation of the simulated disk."""

    def __init__(self, kv: CopiedLmdb, transaction: KvTransaction) -> None:
        self._kv = kv
        self._transaction = transaction

    def get(self, key: bytes, default: bytes | None = None) -> bytes | None:
        """Return the value of ``key``, or ``default``."""
        return self._transaction.get(key, default)

    def put(self, key: bytes, value: bytes) -> bool:
        """Set ``key``."""
        return self._transaction.put(key, value)

    def delete(self, key: bytes) -> bool:
        """Remove ``key``; return whether it was there."""
        return self._transaction.delete(key)

    def cursor(self) -> Cursor:
        """Return a new cursor without a position."""
        return self._transaction.cursor()

    def commit(self) -> None:
        """End the transaction, with its changes durable."""
        self._kv.commit(self._transaction)

    def abort(self) -> None:
        """End the transaction without its changes; ending twice is fine."""
        self._transaction.abort()


def _mixed(old: bytes, new: bytes, rng: random.Random) -> bytes:
    pages = [old[: _META_PAGES * PAGE_BYTES]]
    for start in range(_META_PAGES * PAGE_BYTES, max(len(old), len(new)), PAGE_BYTES):
        source = new if rng.random() < 0.5 else old
        pages.append(source[start : start + PAGE_BYTES].ljust(PAGE_BYTES, b"\0"))
    return b"".join(pages)
