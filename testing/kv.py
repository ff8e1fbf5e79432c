"""The twin of LMDB: an ordered, transactional store in memory, on a ``FaultyDisk``.

Invariants:

- It answers as py-lmdb does, the odd parts included: an iterator from a cursor without a position
  starts at an end, ``getmulti`` leaves out what is missing, ``putmulti(append=True)`` skips what
  does not sort behind the last key.
- A commit is one operation of the disk, atomic and durable; one that changed nothing is not
  an operation of the disk.
- As with LMDB, the file's name is durable only once its directory was synced, what ``open`` and
  ``copy`` write only once the file was, and damage inside a value goes unnoticed.
- A transaction sees the state at its begin and its own changes.

The file ``data.mdb`` holds a header (magic, number of keys) and then, per key in order, two u32
lengths, key and value, little endian.

Not simulated: pages, so that neither sizes nor the moment of ``KvFullError`` are those of LMDB.
"""

from __future__ import annotations

import errno
import posixpath
import struct
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

from sortedcontainers import SortedDict

from ..affinity.errors import CorruptDataError, DiskError, DiskFullError
from ..engine.system.environment import Cursor, KeyValueEnvironment, KvTransaction
from ..engine.system.layout import DATA_FILE, FRESH_DATA_FILE, FRESH_DATA_LOCK
from ..engine.system.lmdb_file import KvFullError
from .disk import FaultyDisk, normal
from .kv_cursor import MemoryCursor, SortedPairs
from .media import FileWrite, Inode, NameChange

LOCK_FILE = "lock.mdb"
LMDB_KEY_BYTES_MAX = 511
"""That of LMDB."""

_MAGIC = b"TLMEMKV1"
_HEADER = struct.Struct("<8sQ")
_LENGTHS = struct.Struct("<II")
_PAGE_BYTES = 4096


class MemoryKv:
    """One store in a directory of a ``FaultyDisk``."""

    def __init__(
        self,
        disk: FaultyDisk,
        path: str,
        map_size: int,
        read_only: bool = False,
        lock: bool = True,
        names: tuple[str, str] = (DATA_FILE, LOCK_FILE),
    ) -> None:
        self._disk = disk
        self._names = names
        self._path = posixpath.join(normal(path), names[0])
        self._map_size = map_size
        self._read_only = read_only
        self._writer = threading.Lock()
        self._writer_thread: int | None = None
        self._closed = False
        self._transactions: weakref.WeakSet[MemoryTransaction] = weakref.WeakSet()
        with translated_os_errors(f"opening {path}"):
            self._inode = disk.perform("open_kv", self._path, lambda: self._open(path, lock))
        self._tree: SortedPairs = _parse(bytes(self._inode.cached), self._path)
        self._version = self._inode.version

    def __repr__(self) -> str:
        return f"<MemoryKv {self._path} entries={self.entries()}>"

    def begin(self, *, write: bool = False) -> KvTransaction:
        """Begin a transaction; a read transaction ends when its last reference goes."""
        self._check_open()
        if not write:
            return self._track(MemoryTransaction(self, self._current(), write=False))
        if self._read_only:
            raise RuntimeError("the environment was opened for reading only")
        if self._writer_thread == threading.get_ident():
            raise RuntimeError("this thread has a write transaction already")
        self._writer.acquire()
        self._writer_thread = threading.get_ident()
        return self._track(MemoryTransaction(self, self._current(), write=True))

    @contextmanager
    def write(self) -> Iterator[KvTransaction]:
        """Begin a write transaction that commits when the block ends, and aborts on an error."""
        transaction = self.begin(write=True)
        try:
            yield transaction
            transaction.commit()
        finally:
            transaction.abort()

    def entries(self) -> int:
        """Return the number of keys."""
        return len(self._current())

    def size_used(self) -> int:
        """Return the size of the file, in whole pages."""
        return -(-len(self._inode.cached) // _PAGE_BYTES) * _PAGE_BYTES

    def map_size(self) -> int:
        """Return the bytes that the file may grow to."""
        return self._map_size

    def grow(self, map_size: int) -> None:
        """Enlarge the map; transactions that read end, one that writes is refused."""
        self._check_open()
        if self._writer_thread is not None:
            raise DiskError("growing the map failed: a write transaction is open")
        for transaction in list(self._transactions):
            transaction.abort()
        self._map_size = max(map_size, self.size_used())

    def copy(self, path: str, *, compact: bool = False) -> None:
        """Write a consistent copy of the file into the directory ``path``, unsynced.

        It has no unused pages, so ``compact`` makes no difference.
        """
        self._check_open()
        copy_into(self._disk, path, _format(self._current()))

    def beside(self) -> KeyValueEnvironment:
        """Make a new file beside this one: ``FRESH_DATA_FILE``, with ``FRESH_DATA_LOCK``."""
        folder, names = posixpath.dirname(self._path), (FRESH_DATA_FILE, FRESH_DATA_LOCK)
        return MemoryKv(self._disk, folder, self._map_size, names=names)

    def become(self, fresh: KeyValueEnvironment) -> None:
        """Go on in a file that was made ``beside`` and has the names of this one by now."""
        assert isinstance(fresh, MemoryKv)
        self._inode, self._tree, self._version = fresh._inode, fresh._tree, fresh._version

    def clear_stale_readers(self) -> int:
        """Return 0: the transactions of a dead process die with it."""
        return 0

    def open_transactions(self) -> int:
        """Return how many transactions are alive, for tests that look for forgotten ones."""
        return sum(not transaction.ended for transaction in self._transactions)

    def close(self) -> None:
        """End all transactions and close the file; closing twice is fine."""
        for transaction in list(self._transactions):
            transaction.abort()
        self._closed = True

    # ---------------------------------------------------------------- for the transactions

    def commit(self, tree: SortedPairs) -> None:
        """Make ``tree`` the content of the store: one operation of the disk."""
        content = _format(tree)
        with translated_os_errors(f"writing {self._path}"):
            self._disk.perform(
                "commit", self._path, lambda: self._inode.replace(content), size=len(content)
            )
        self._tree, self._version = tree, self._inode.version

    def end_write(self) -> None:
        """Let the next write transaction begin."""
        self._writer_thread = None
        self._writer.release()

    # ---------------------------------------------------------------- inside

    def _open(self, path: str, lock: bool) -> Inode:
        folder = self._disk.folder(path)
        data_name, lock_name = self._names
        if data_name not in folder.cached:
            if self._read_only:
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", self._path)
            inode = Inode()
            folder.change(NameChange(None, data_name, inode))
            inode.change(FileWrite(0, _format(SortedDict())))
        if lock and lock_name not in folder.cached:
            folder.change(NameChange(None, lock_name, Inode()))
        return self._disk.file(self._path)

    def _current(self) -> SortedPairs:
        self._check_open()
        # Another environment on the same file, of a simulated other process, may have written.
        if self._version != self._inode.version:
            self._tree = _parse(bytes(self._inode.cached), self._path)
            self._version = self._inode.version
        return self._tree

    def _track(self, transaction: MemoryTransaction) -> KvTransaction:
        self._transactions.add(transaction)
        return cast(KvTransaction, transaction)

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("the environment is closed")


class MemoryTransaction:
    """A view of one committed state, or a change of it."""

    def __init__(self, kv: MemoryKv, tree: SortedPairs, *, write: bool) -> None:
        self._kv = kv
        self._write = write
        self._size = _size(tree) if write else 0
        self._changed = False
        self._spoilt = False
        self.tree = tree
        self.ended = False

    def get(self, key: bytes, default: bytes | None = None) -> bytes | None:
        """Return the value of ``key``, or ``default``."""
        self.check()
        if not key:
            raise ValueError("a key has at least one byte")
        return cast("bytes | None", self.tree.get(key, default))

    def put(self, key: bytes, value: bytes) -> bool:
        """Set ``key``; ``KvFullError`` if the map has no room for it."""
        self._check_writable()
        if not 0 < len(key) <= LMDB_KEY_BYTES_MAX:
            raise ValueError(f"a key has 1 to {LMDB_KEY_BYTES_MAX} bytes, not {len(key)}")
        self._own()
        old = self.tree.get(key)
        self._size += len(value) - len(old) if old is not None else _entry_size(key, value)
        if self._size > self._kv.map_size():
            self._spoilt = True
            raise KvFullError("the map is full")
        self.tree[bytes(key)] = bytes(value)
        return True

    def delete(self, key: bytes) -> bool:
        """Remove ``key``; return whether it was there."""
        self._check_writable()
        if not key:
            raise ValueError("a key has at least one byte")
        if key not in self.tree:
            return False
        self._own()
        self._size -= _entry_size(key, self.tree.pop(key))
        return True

    def cursor(self) -> Cursor:
        """Return a new cursor without a position."""
        self.check()
        return MemoryCursor(self)

    def commit(self) -> None:
        """End the transaction, with its changes durable."""
        self.check()
        if self._spoilt:
            self.abort()
            raise KvFullError("the map was full: the transaction can only be aborted")
        try:
            if self._changed:
                self._kv.commit(self.tree)
        finally:
            self.abort()

    def abort(self) -> None:
        """End the transaction without its changes; ending twice is fine."""
        if not self.ended:
            self.ended = True
            if self._write:
                self._kv.end_write()

    def check(self) -> None:
        """Raise if the transaction has ended."""
        if self.ended:
            raise RuntimeError("the transaction has ended")

    def _check_writable(self) -> None:
        self.check()
        if not self._write:
            raise RuntimeError("the transaction can only read")
        if self._spoilt:
            raise KvFullError("the map was full: the transaction can only be aborted")

    def _own(self) -> None:
        # Others still read the committed tree: the first change works on a copy.
        if not self._changed:
            self.tree = self.tree.copy()
            self._changed = True


def copy_into(disk: FaultyDisk, path: str, content: bytes) -> None:
    """Write ``content`` as the data file of the directory ``path``, as LMDB's copy does: unsynced.

    Raises ``DiskError`` if there is such a file already, or no such directory.
    """
    target = posixpath.join(normal(path), DATA_FILE)

    def write(length: int = len(content)) -> None:
        folder = disk.folder(path)
        if DATA_FILE in folder.cached:
            raise FileExistsError(errno.EEXIST, "File exists", target)
        inode = Inode()
        folder.change(NameChange(None, DATA_FILE, inode))
        inode.change(FileWrite(0, content[:length]))

    with translated_os_errors(f"copying into {path}"):
        disk.perform(
            "copy",
            target,
            write,
            size=len(content),
            partly=lambda rng: write(rng.randint(0, len(content) - 1)),
        )


@contextmanager
def translated_os_errors(what: str) -> Iterator[None]:
    """Turn errors of the disk into those that ``engine.system.lmdb_file`` makes of LMDB's."""
    try:
        yield
    except OSError as error:
        kind = DiskFullError if error.errno == errno.ENOSPC else DiskError
        raise kind(f"{what} failed: {error}") from error


def _entry_size(key: bytes, value: bytes) -> int:
    return _LENGTHS.size + len(key) + len(value)


def _size(tree: SortedPairs) -> int:
    return _HEADER.size + sum(_entry_size(key, value) for key, value in tree.items())


def _format(tree: SortedPairs) -> bytes:
    parts = [_HEADER.pack(_MAGIC, len(tree))]
    for key, value in tree.items():
        parts += (_LENGTHS.pack(len(key), len(value)), key, value)
    return b"".join(parts)


def _parse(content: bytes, path: str) -> SortedPairs:
    if len(content) < _HEADER.size or not content.startswith(_MAGIC):
        raise CorruptDataError(f"{path} is not a store of MemoryKv ({len(content)} bytes)")
    count = _HEADER.unpack_from(content)[1]
    position = _HEADER.size
    pairs: list[tuple[bytes, bytes]] = []
    while position + _LENGTHS.size <= len(content):
        key_size, value_size = _LENGTHS.unpack_from(content, position)
        start = position + _LENGTHS.size
        middle, position = start + key_size, start + key_size + value_size
        pairs.append((content[start:middle], content[middle:position]))
    if position != len(content) or len(pairs) != count:
        raise CorruptDataError(f"{path} has {len(content)} bytes, which do not hold {count} keys")
    return SortedDict(pairs)
