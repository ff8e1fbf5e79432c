"""LMDB as the key-value environment: its traps are handled here and nowhere else.

Invariants:

- Default sync mode: a commit is durable when it returns.  Never ``writemap``, never ``sync=False``.
- The engine is pinned (``lib_version=0``: 0.9, data format 1).
- The child of a fork leaves what its parent opened alone, and may open the same files for itself.
- The file is measured against its own meta pages before LMDB opens it: LMDB dies by a signal on a
  truncated file and takes an empty one for an empty store.  A file is longer than these say, or
  what is missing is not part of its trees.
- A commit that failed is a ``DiskFullError`` only if nothing of the file was lost: no space, and
  no page that was written before is missing on the disk.  Everything else is a ``DiskError``.

Left out: what keys and values mean (``partition_store``).
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
import struct
import weakref
from _thread import get_ident
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from threading import Thread
from typing import Any, cast

import lmdb
import lmdb.verify

from ...affinity.errors import (
    AlreadyOpenError,
    CorruptDataError,
    DiskError,
    DiskFullError,
    ForkedError,
    FormatVersionError,
    SnapshotExpiredError,
    StorageError,
    TidelogError,
)
from .disk import READERS
from .environment import KeyValueEnvironment, KvTransaction
from .layout import DATA_FILE, FRESH_DATA_FILE, FRESH_DATA_LOCK
from .lmdb_pages import CHECKED_BYTES_MAX, Tree, check_pages, tree_of

LOCK_FILE = "lock.mdb"
READERS_MAX = 1022
LOCK_BYTES = 64 << 10
"""What a lock file for so many takes."""
FREEING = "tidelog-free"
"""The name of threads that let go of former files."""
ENGINE_VERSION = "lmdb-0.9/format-1"

_PAGE = 4096
_META_MAGIC = 0xBEEFC0DE
# After the 16-byte page header: magic, version, address, map size, two databases (the free list
# and the main one) of 48 bytes each, last page, transaction id.
_META = struct.Struct("<IIQQ48s48sQQ")
_META_OFFSET = 16
# LMDB 1.0 has a longer page header in front of magic and version.
_OTHER_META = struct.Struct("<II")
_OTHER_META_OFFSET = 24


KvReadError: type[Exception] = lmdb.Error
"""What reading may raise beside the errors of Tidelog; ``read_error`` says what it means."""

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FULL_TEXTS = tuple(os.strerror(code) for code in _FULL)
_PROBE_BYTES = 1 << 20
"""What must fit behind the file, or a write that failed is taken for one that found no space."""

_DAMAGE = (lmdb.CorruptedError, lmdb.InvalidError, lmdb.PageNotFoundError, lmdb.PanicError)


class KvFullError(Exception):
    """The map is full: the transaction is gone, the data is as it was before."""


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Turn LMDB's own errors into those of Tidelog; ``what`` says what was being done."""
    try:
        yield
    except lmdb.MapFullError as error:
        raise KvFullError(str(error)) from None
    except _DAMAGE as error:
        raise CorruptDataError(f"{what} found damage: {error}") from None
    except lmdb.VersionMismatchError as error:
        raise FormatVersionError(f"{what} failed: {error}", found=0, supported=1) from None
    except lmdb.MapResizedError:
        # Another process made the file larger than the map of this one.
        raise DiskFullError(
            f"{what} failed: the data file has outgrown this process's map of it",
            hint="Close the store and open it again, with a larger `map_size` if one was given.",
        ) from None
    except lmdb.Error as error:
        if "already open in this process" in str(error):
            # LMDB knows the folder of its file only, which lies in that of the store.
            place = os.path.dirname(what.removeprefix("opening "))
            raise open_here(place, os.getpid()) from None
        for code in (errno.EACCES, errno.EROFS):
            if os.strerror(code) in str(error):
                raise DiskError(
                    f"{what} failed: {error}",
                    hint="Run it as the owner of the files, or where they can be written.",
                ) from OSError(code, os.strerror(code))
        # py-lmdb has one class for all errors of the disk; only the text tells them apart.
        full = any(text in str(error) for text in _FULL_TEXTS)
        raise (DiskFullError if full else DiskError)(f"{what} failed: {error}") from None


def open_here(path: str, pid: int | None) -> AlreadyOpenError:
    """Return the error for a store that this very process has open, for whatever it was opened."""
    return AlreadyOpenError(
        f"{path} is open in this process already",
        path=path,
        pid=pid,
        hint="Share the handle that is open, which any thread may use, or close it first.",
    )


def read_error(error: Exception) -> TidelogError:
    """Return what an error of a read means: damage, or a transaction that ended meanwhile."""
    if "closed/deleted/dropped" in str(error):
        return SnapshotExpiredError(
            "the store was closed, or its data file had to grow, during a read"
        )
    if isinstance(error, (*_DAMAGE, lmdb.BadTxnError)):
        # LMDB ends a transaction that met damage: later reads see only the second error.
        return CorruptDataError(f"reading the data file found damage: {error}")
    return DiskError(f"reading the data file failed: {error}")


_environments: weakref.WeakSet[lmdb.Environment] = weakref.WeakSet()
"""Those that this process has opened."""

_inherited: list[lmdb.Environment] = []
"""Those of the parents of a forked process.  They are never closed, not even by the collector:
that would close descriptors of the lock file, and by the rules of POSIX this process would lose all
its locks on that file, those of what it opened for itself, too.  LMDB would take it for dead."""

_keys: Any = None
with suppress(ImportError):  # other versions may keep them elsewhere: a child opens nothing then
    _keys = import_module("lmdb._envid")
_file_keys: Any = getattr(_keys, "env_keys", None)


def _after_fork() -> None:
    """In the child: keep what was inherited, and let its files be opened again.

    py-lmdb refuses files that are open in its process, which it knows by keys.  Its set of them
    was inherited, but this process has nothing open: it gives its files keys of its own.
    """
    _inherited.extend(_environments)
    _environments.clear()
    if _file_keys is not None:
        _keys.env_keys = partial(_own_keys, os.getpid())


def _own_keys(pid: int, path: str | bytes, subdir: bool) -> tuple[Any, ...]:
    return tuple((pid, key) for key in _file_keys(path, subdir))


os.register_at_fork(after_in_child=_after_fork)


class LmdbEnvironment:
    """One LMDB file, opened for this process."""

    def __init__(
        self, env: lmdb.Environment, path: str, file: str, *, watched: bool = False
    ) -> None:
        self._env = env
        self._path = path
        self._file = file
        self._pid = os.getpid()
        self._writing: tuple[lmdb.Transaction, int] | None = None
        """A transaction that writes, and its thread."""
        self._watch = os.open(file, os.O_RDWR | os.O_CLOEXEC) if watched else -1
        self._left: weakref.WeakSet[lmdb.Environment] = weakref.WeakSet()
        """Those of former files, while anybody reads in them."""
        self._former: list[int] = []
        """Descriptors of former files: while there is one no reader who leaves has to free it."""
        _environments.add(env)

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            raise ForkedError(f"{self._path} was opened before this process was forked")

    def begin(self, *, write: bool = False) -> KvTransaction:
        """Begin a transaction; a read transaction ends when its last reference goes."""
        self._check_process()
        with translated("beginning a transaction"):
            try:
                return cast(KvTransaction, self._env.begin(write=write))
            except lmdb.ReadersFullError:
                self._env.reader_check()
            return cast(KvTransaction, self._env.begin(write=write))

    @contextmanager
    def write(self) -> Iterator[KvTransaction]:
        """Begin a write transaction that commits when the block ends, and aborts on an error."""
        self._check_process()
        self._end_interrupted()
        try:
            with translated(f"writing {self._path}"), self._env.begin(write=True) as txn:
                self._writing = (txn, get_ident())
                yield cast(KvTransaction, txn)
        except (DiskError, DiskFullError) as error:
            if self._watch < 0:
                raise
            raise self._judged(error) from error.__cause__
        finally:
            self._writing = None
        self._fill_up()

    def _end_interrupted(self) -> None:
        """End a transaction that an interrupt left open: the next would wait for it for ever."""
        if self._writing is None:
            return
        txn, thread = self._writing
        if thread != get_ident():  # LMDB lets go of it in its own thread only
            raise DiskError(
                f"writing {self._path} was interrupted in another thread, which holds it still",
                hint="Close the store in that thread and open it again: the log has everything.",
            )
        txn.abort()
        self._writing = None

    def _judged(self, error: DiskError | DiskFullError) -> DiskError | DiskFullError:
        """Return what a write that failed means: no space and nothing lost, or doubt.

        LMDB calls a write of which only a part fitted an I/O error, as it does a failed sync.  But
        Linux tells every descriptor of a file, once, that a page of it could not be written.  Ours
        has been open all the time: if its sync finds nothing, nothing was lost, and what failed
        was a write into pages that nobody uses yet.
        """
        try:
            os.fdatasync(self._watch)
        except OSError as failure:
            return DiskError(f"{error}; a sync of the file failed, too: {failure}")
        if isinstance(error, DiskFullError):
            self._cut_back()
            return error
        try:
            end = os.fstat(self._watch).st_size
            os.posix_fallocate(self._watch, end, _PROBE_BYTES)
        except OSError as failure:
            if failure.errno in _FULL:
                return DiskFullError(f"writing {self._path} failed: {failure}")
        finally:
            self._cut_back()
        return error

    def _cut_back(self) -> None:
        """Give back the space of pages that belong to no commit."""
        with suppress(OSError):
            needed = self.size_used()
            if os.fstat(self._watch).st_size > needed:
                os.ftruncate(self._watch, needed)

    def _fill_up(self) -> None:
        """Let the file be as long as its meta page says.

        LMDB counts pages at the end that a transaction took and gave back, and does not write
        them.  If this cannot be done, or a crash comes before it, the next open takes a closer
        look at the file.
        """
        needed = self.size_used()
        with suppress(OSError):
            if os.stat(self._file).st_size < needed:
                os.truncate(self._file, needed)

    def entries(self) -> int:
        """Return the number of keys that the tree says it has."""
        return self._env.stat()["entries"]

    def size_used(self) -> int:
        """Return the bytes of the file that hold, or held, pages."""
        return (self._env.info()["last_pgno"] + 1) * self._env.stat()["psize"]

    def map_size(self) -> int:
        """Return the bytes that the map may grow to."""
        return self._env.info()["map_size"]

    def grow(self, map_size: int) -> None:
        """Enlarge the map; no transaction of this process may be open."""
        with translated(f"growing the map of {self._path}"):
            self._env.set_mapsize(map_size)

    def copy(self, path: str, *, compact: bool = False) -> None:
        """Write a consistent copy of the file into the directory ``path``.

        A ``compact`` one leaves unused pages out, and takes longer.
        """
        with translated(f"copying {self._path}"):
            place: Any = os.fsencode(path)  # the stubs want text, which would have to be UTF-8
            self._env.copy(place, compact=compact)
            # LMDB lets everybody read what it copies; the folder tells whether the group may.
            group = os.stat(path).st_mode & 0o040
            os.chmod(os.path.join(path, DATA_FILE), 0o600 | group)

    def beside(self) -> KeyValueEnvironment:
        """Make a new file beside this one: ``FRESH_DATA_FILE``, with ``FRESH_DATA_LOCK``."""
        file = os.path.join(self._path, FRESH_DATA_FILE)
        env = _open(file, file, self.map_size(), read_only=False, lock=True)
        try:
            _let_readers_in(self._path, (FRESH_DATA_FILE, FRESH_DATA_LOCK))
            return LmdbEnvironment(env, self._path, file, watched=True)
        except BaseException as error:
            env.close()
            if isinstance(error, OSError):
                raise DiskError(f"opening {file} failed: {error}") from error
            raise

    def become(self, fresh: KeyValueEnvironment) -> None:
        """Go on in a file that was made ``beside`` and has the names of this one by now.

        Transactions that read go on seeing the old file; none may be writing.
        """
        assert isinstance(fresh, LmdbEnvironment)
        former = self._env, self._watch
        self._env, self._watch = fresh._env, fresh._watch  # from here on: nothing before it fails
        self._left.add(former[0])
        self._former.append(former[1])

    def clear_stale_readers(self) -> int:
        """Free the slots of processes that have died, and former files; return how many slots."""
        with translated("looking for readers that have died"):
            freed = self._env.reader_check()
        while self._former:  # a file of gigabytes takes a while, and nobody waits for it
            descriptor = self._former.pop()
            try:
                Thread(target=os.close, args=(descriptor,), name=FREEING, daemon=True).start()
            except RuntimeError:
                os.close(descriptor)
        return freed

    def close(self) -> None:
        """Close the file; closing twice is fine."""
        # A forked child would give up the reader slots of its parent's open transactions.
        if self._pid == os.getpid():
            for env in (self._env, *self._left):
                env.close()
        descriptors, self._watch, self._former = [self._watch, *self._former], -1, []
        for descriptor in descriptors:
            if descriptor >= 0:
                os.close(descriptor)


def open_lmdb(path: str, map_size: int, read_only: bool, lock: bool) -> LmdbEnvironment:
    """Open the LMDB file in the directory ``path``, after a look at its structure.

    Raises ``CorruptDataError`` if the file is shorter than its meta pages say or is not an LMDB
    file, ``FormatVersionError`` for the data format of another LMDB.
    """
    file = os.path.join(path, DATA_FILE)
    # Beside a writer pages change while they are looked at; then LMDB alone knows which count.
    check_structure(file, pages=not read_only)
    new = not os.path.exists(file)
    env: lmdb.Environment | None = None
    try:
        env = _open(path, file, map_size, read_only=read_only, lock=lock)
        if lock and not read_only:
            env.reader_check()
        try:
            if new:
                _let_readers_in(path)
            return LmdbEnvironment(env, path, file, watched=not read_only)
        except OSError as error:
            raise DiskError(f"opening {file} failed: {error}") from error
    except BaseException:
        # At once: while anybody has the exception, the file could not be opened again.
        if env is not None:
            env.close()
        raise


def _let_readers_in(path: str, names: Iterable[str] = (DATA_FILE, LOCK_FILE)) -> None:
    """Let those read new files of LMDB whom the owner of the directory has let in."""
    readers = os.stat(path).st_mode & READERS
    for name in names if readers else ():
        file = os.path.join(path, name)
        if os.path.exists(file):
            os.chmod(file, os.stat(file).st_mode & 0o777 | readers)


def open_file(path: str, map_size: int, *, read_only: bool) -> LmdbEnvironment:
    """Open a single LMDB file, which no other process writes meanwhile; raises as ``open_lmdb``."""
    check_structure(path)
    env = _open(path, path, map_size, read_only=read_only, lock=False)
    return LmdbEnvironment(env, path, path)


def _open(path: str, file: str, map_size: int, *, read_only: bool, lock: bool) -> lmdb.Environment:
    readahead = _fits_in_memory(file)
    # py-lmdb counts a lock file beside the data as open, even if it is not: nobody would hold its
    # number, which the system could give to a file of another store.
    place = path if lock else file
    with translated(f"opening {path}"):
        if lock and not read_only:
            _reserve_lock(os.path.join(path, LOCK_FILE) if place != file else f"{file}-lock")
        while True:
            try:
                return lmdb.open(
                    os.fsencode(place),  # text has to be UTF-8 for py-lmdb
                    map_size=map_size,
                    subdir=place != file,
                    readonly=read_only,
                    create=not read_only,
                    lock=lock,
                    mode=0o600,
                    max_readers=READERS_MAX,
                    max_dbs=0,
                    readahead=readahead,
                    meminit=False,
                    lib_version=0,
                )
            except lmdb.MemoryError:
                # An address-space limit (ulimit -v): a smaller map still works, and grows.
                map_size //= 4
                if map_size < 64 << 20:
                    raise


def _reserve_lock(name: str) -> None:
    """Make a lock file with its space, if there is none: LMDB writes through a mapping of it.

    Without space that is the end of the process.  One that is there may be open here: to close a
    descriptor of it would give up the locks of who reads.
    """
    try:
        descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError:
        return  # it is there, or LMDB says why it cannot be
    try:
        os.posix_fallocate(descriptor, 0, LOCK_BYTES)
    except OSError as error:
        with suppress(OSError):
            os.unlink(name)
        kind = DiskFullError if error.errno in _FULL else DiskError
        raise kind(f"making {name} failed: {error}") from error
    finally:
        os.close(descriptor)


def _fits_in_memory(file: str) -> bool:
    """Tell whether it pays to have the kernel read more of a file than is asked for.

    A scan of a cold file takes five times as long without.  If not all of it stays in memory,
    what is read ahead of single gets would drive out what is needed.
    """
    try:
        size = os.stat(file).st_size
    except FileNotFoundError:
        return True
    return size <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def verify_file(file: str) -> list[str]:
    """Return what is wrong with the structure of an LMDB file that nobody writes, as sentences.

    Every page is read without LMDB's help, so no damage can end the process.
    """
    try:
        check_structure(file)
        findings = lmdb.verify.verify(file, subdir=False)  # type: ignore[no-untyped-call]  # untyped
    except (lmdb.verify.VerifyError, StorageError, OSError) as error:
        return [f"{file}: {error}"]
    return [f"{file}: {finding}" for finding in findings]


def check_structure(file: str, *, pages: bool = False) -> None:
    """Raise unless ``file`` is absent, or an LMDB file of format 1 that is as long as it says.

    All pages (``kv_pages``) of a file that is shorter are looked at: those that are missing may be
    unused.  With ``pages`` those of a small file are, too.
    """
    for last in (False, False, True):
        try:
            return _check_structure(file, pages)
        except CorruptDataError:
            if last:  # beside a writer what is looked at may change meanwhile
                raise


def trees_of(head: bytes) -> list[tuple[Tree, Tree]]:
    """Return the trees (free pages, data) of the meta pages that can be read, newest first.

    The older ones are those of the commit before: LMDB has not written over any page of it.
    """
    found = []
    for page in (0, 1):
        meta = head[page * _PAGE + _META_OFFSET : (page + 1) * _PAGE]
        if len(meta) < _META.size:
            continue
        magic, version, _, _, free, main, _, txn_id = _META.unpack_from(meta)
        if magic == _META_MAGIC and version & 0xFFFF == 1:
            with suppress(CorruptDataError):
                found.append((txn_id, (tree_of("free", free), tree_of("main", main))))
    return [trees for _, trees in sorted(found, reverse=True)]


def mapped(fd: int) -> mmap.mmap:
    """Return the bytes of a file, however large it is, without taking memory for them."""
    return mmap.mmap(fd, 0, access=mmap.ACCESS_READ)


def _check_structure(file: str, pages: bool) -> None:
    try:
        if not stat.S_ISREG(os.lstat(file).st_mode):  # reading a FIFO would never end
            raise CorruptDataError(f"{file} is not a regular file")
        with open(file, "rb") as stream:
            head = stream.read(2 * _PAGE)
            # Only now: a writer beside us lets the file grow before its meta page says so.
            size = os.fstat(stream.fileno()).st_size
    except FileNotFoundError:
        return
    if _OTHER_META.unpack_from(head.ljust(2 * _PAGE, b"\0"), _OTHER_META_OFFSET)[0] == _META_MAGIC:
        found = _OTHER_META.unpack_from(head, _OTHER_META_OFFSET)[1] & 0xFFFF
        raise FormatVersionError(
            f"{file} has LMDB data format {found}; this version reads format 1",
            found=found,
            supported=1,
        )
    newest = None
    for page in (0, 1):
        meta = head[page * _PAGE + _META_OFFSET : (page + 1) * _PAGE]
        if len(meta) < _META.size:
            continue
        magic, version, _, _, free, main, last_page, txn_id = _META.unpack_from(meta)
        if magic != _META_MAGIC:
            continue
        if version & 0xFFFF != 1:
            raise FormatVersionError(
                f"{file} has LMDB data format {version & 0xFFFF}; this version reads format 1",
                found=version & 0xFFFF,
                supported=1,
            )
        if newest is None or txn_id > newest[0]:
            newest = (txn_id, last_page, free, main)
    if newest is None:
        raise CorruptDataError(f"{file} is not an LMDB file ({size} bytes, no valid meta page)")
    count = newest[1] + 1
    needed = count * _PAGE
    if size >= needed and not (pages and needed <= CHECKED_BYTES_MAX):
        return
    trees = tree_of("free", newest[2]), tree_of("main", newest[3])
    try:
        with open(file, "rb") as stream, mapped(stream.fileno()) as content:
            check_pages(cast(bytes, content), count, *trees)
    except CorruptDataError as error:
        if size >= needed:
            raise
        raise CorruptDataError(
            f"{file} has {size} bytes, but its meta page needs {needed}: {error}"
        ) from error.__cause__
