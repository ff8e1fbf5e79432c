"""The files of a store that this process does not write: who else may be there, and what they need.

Owns the slot that tells a writer which part of the log is still needed, the proof that no writer
can exist if there can be no slot, and LMDB opened for reading.

A process that reads beside a writer, in the order of time; positions of the log are in bytes::

    the writer                            the reader
    a checkpoint at 4096: the data file
    has what the log has below 4096
                                          makes readers/812-5f3c, locked and empty: keep everything
                                          opens LMDB, whose mark says 4096, and reads the log from
                                          there on
                                          writes 4096 into its slot
    a checkpoint at 9000: the slot says
    4096, so no log above that is dropped
                                          reads a newer base, at 9000, and writes 9000
    drops the log below 9000
                                          closes: the slot is unlocked and gone

Had the slot been made behind the second step, the writer could have dropped 4096 to 9000 between
the two, and the reader would have a base without the log behind it.

The ways to open the files of a store, tried from the top:

====================================== ==========================================================
a slot can be made in ``readers/``     beside a writer, if there is one; LMDB with its lock file
the store's lock can be shared         alone: a writer would have to lock that file first; LMDB
                                       without its lock file
somebody holds the store's lock        ``AlreadyOpenError``: a writer, who does not know about us
there is no lock file, and the medium  alone: nobody can write here at all; LMDB without its lock
cannot be written (EROFS)              file
anything else                          ``DiskError``
====================================== ==========================================================

Invariants:

- The slot is taken, and says "everything", before anything else is opened; it is only ever raised.
  So whatever the writer drops at the same time lies below the checkpoint that is found then.
- LMDB is opened without its lock file only while the store's own lock is held shared, or if a
  medium that cannot be written has none: beside a live writer that would read wrong data without
  any error.
- Nothing but ``readers/`` and LMDB's lock file is touched.

Left out: what is read (``read_only``, ``check``, ``backup``).
"""

from __future__ import annotations

import contextlib
import errno
import os

from ...affinity.errors import AlreadyOpenError, DiskError, NotFoundError
from ...wal.ports import ReadableDirectory
from ..files.features import check_features
from ..files.manifest import Manifest
from ..system.environment import Disk, Environment, LockHandle
from ..system.layout import DATA_FILE, DATA_NAME, LOCK_NAME, READERS_NAME, WAL_NAME
from .place import check_place, owner_of, read_manifest


class Slot:
    """A file in ``readers/``, locked for as long as this process reads.

    It holds the position from which on this process needs the log; empty means everything.
    """

    def __init__(self, disk: Disk, folder: str, name: str) -> None:
        self._lock = disk.lock(os.path.join(folder, name))
        self._pid = os.getpid()
        self._disk = disk
        self._folder = folder
        self.name = name

    def raise_to(self, position: int) -> None:
        """Say that nothing below ``position`` is needed any more."""
        # If there is no space for it, the slot goes on asking for too much, which is safe.
        with contextlib.suppress(OSError):
            self._lock.write(b"%020d\n" % position)

    def release(self) -> None:
        """Need nothing any more; releasing twice is fine.  A forked child leaves it alone."""
        if self._pid == os.getpid():
            with contextlib.suppress(OSError):
                self._disk.directory(self._folder).unlink(self.name)
            self._lock.release()


class ReadAccess:
    """A store's files, opened for reading beside whoever writes them."""

    def __init__(
        self,
        environment: Environment,
        path: str,
        map_size: int,
        manifest: Manifest | None = None,
        *,
        of_members: bool = False,
    ) -> None:
        """Open them; ``manifest`` is for a copy that has none of its own yet.

        ``of_members`` tells that the store may be that of a cluster's member.
        """
        self.environment = environment
        self.path = path
        self._given = manifest
        check_place(environment, path)
        found, folder = self.manifest(), os.path.join(path, WAL_NAME)
        self.wal: ReadableDirectory = environment.disk.directory(folder, read_only=True)
        as_member = of_members and found.cluster is not None
        check_features(path, found, self.wal, write=False, as_member=as_member)
        self.slot: Slot | None = None
        self._guard: LockHandle | None = None
        self._enter()
        try:
            data = os.path.join(path, DATA_NAME)
            if environment.disk.kind(os.path.join(data, DATA_FILE)) is None:
                raise NotFoundError(
                    f"the store at {path} has no data file yet", hint="Open it for writing once."
                )
            self.kv = environment.open_kv(data, map_size, True, self.slot is not None)
        except BaseException:
            self._leave()
            raise

    @property
    def alone(self) -> bool:
        """Whether it is certain that nobody writes the store while this access is open."""
        return self.slot is None

    def manifest(self) -> Manifest:
        """Return the manifest as it is now."""
        return self._given or read_manifest(self.environment, self.path)

    def raise_slot(self, position: int) -> None:
        """Say that nothing of the log below ``position`` is needed any more."""
        if self.slot is not None:
            self.slot.raise_to(position)

    def another_slot(self) -> Slot | None:
        """Take one more slot, for work with needs of its own; None if no slots are needed."""
        return None if self.slot is None else self._new_slot()

    def close(self) -> None:
        """Close the files and give the slot back; closing twice is fine."""
        self.kv.close()
        self._leave()

    def _enter(self) -> None:
        """Take a slot; if that is impossible, hold the store's own lock instead."""
        try:
            self.slot = self._new_slot()
        except OSError as error:
            self._guard = self._shut_out_writers(error)

    def _new_slot(self) -> Slot:
        environment = self.environment
        folder = os.path.join(self.path, READERS_NAME)
        if environment.disk.kind(folder) is None:  # a tool that copied the store left it out
            environment.disk.make_directory(folder)
        while True:
            name = f"{environment.pid()}-{environment.new_id().hex()[:16]}"
            try:
                return Slot(environment.disk, folder, name)
            except BlockingIOError:
                # The writer looked at that moment whether the slot is alive, and removes it.
                continue

    def _shut_out_writers(self, refused: OSError) -> LockHandle | None:
        lock = os.path.join(self.path, LOCK_NAME)
        try:
            return self.environment.disk.lock(lock, shared=True)
        except BlockingIOError:
            raise AlreadyOpenError(
                f"{self.path} is open for writing, and this process may not take a slot in "
                f"{READERS_NAME}/ beside it: {refused}",
                path=self.path,
                pid=owner_of(self.environment, self.path),
                hint=f"Give this process the right to write into {READERS_NAME}/ and {DATA_NAME}/.",
            ) from None
        except OSError as error:
            if refused.errno == errno.EROFS and isinstance(error, FileNotFoundError):
                return None
            raise DiskError(f"{self.path} cannot be locked for reading: {error}") from error

    def _leave(self) -> None:
        if self.slot is not None:
            self.slot.release()
        if self._guard is not None:
            self._guard.release()
