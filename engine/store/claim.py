"""The first steps of a writable open: make the place, lock it, make the store, know whose it is.

The lock comes first, so that nobody else changes what is looked at.  A crash at any step leaves a
directory that the next open takes as it is.

Left out: everything behind the manifest (``store_files``).
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from ...affinity.errors import NotFoundError, UsageError
from ...wal.ports import Directory
from ..files.features import check_features
from ..files.manifest import ManifestKeeper
from ..system.environment import Environment, LockHandle
from ..system.layout import MANIFEST_NAME, WAL_NAME
from .creation import PARTITIONS, check_no_remains, create_store, remove_empty, take_away
from .place import check_place, make_place, read_manifest, take_lock


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A store's directory, locked for writing.

    ``new`` tells that this open has made the store, ``made`` that it has made the directory, too.
    """

    environment: Environment
    path: str
    lock: LockHandle
    directory: Directory
    wal: Directory
    manifests: ManifestKeeper
    new: bool
    made: bool

    def give_up(self) -> None:
        """Leave the directory as it was found, as far as the disk lets us, and unlocked."""
        _leave(self.environment, self.path, self.lock, new=self.new, made=self.made)


def claim_store(
    environment: Environment,
    path: str,
    *,
    partitions: int | None,
    create: bool,
    as_member: bool = False,
) -> Claim:
    """Lock the store at ``path``, and make it if there is none and ``create`` allows.

    ``partitions`` is for a new store, and has to agree with that of an old one.  The store of a
    cluster's member is claimed ``as_member``, and only that.
    """
    check_place(environment, path)
    disk = environment.disk
    made, new = disk.kind(path) is None, False
    if made and not create:
        raise NotFoundError(f"there is no store at {path}", hint="Check the path.")
    try:
        if made:
            make_place(environment, path)
        # Looked at before it is locked as well: a lock is a file, which a refusal must not leave.
        check_no_remains(disk, path, create)
        lock = take_lock(environment, path)
    except BaseException:
        if made:
            remove_empty(disk, path)
        raise
    try:
        check_no_remains(disk, path, create)
        new = MANIFEST_NAME not in disk.directory(path).names()
        lock.write(b"%d\n" % environment.pid())
        if new:
            create_store(environment, path, PARTITIONS if partitions is None else partitions)
        return _checked(
            environment, path, lock, partitions, new=new, made=made, as_member=as_member
        )
    except BaseException:
        _leave(environment, path, lock, new=new, made=made)
        raise


def _checked(
    environment: Environment,
    path: str,
    lock: LockHandle,
    partitions: int | None,
    *,
    new: bool,
    made: bool,
    as_member: bool,
) -> Claim:
    """Return the claim of a store that is locked, unless it must not be written."""
    manifest = read_manifest(environment, path)
    if partitions not in (None, manifest.partitions):
        raise UsageError(
            f"{path} has {manifest.partitions} partitions, not {partitions}",
            hint="The number is fixed when a store is made; leave it out to open one.",
        )
    folder, disk = os.path.join(path, WAL_NAME), environment.disk
    segments = disk.directory(folder, read_only=True)
    check_features(path, manifest, segments, write=True, as_member=as_member)
    directory = disk.directory(path)
    return Claim(
        environment=environment,
        path=path,
        lock=lock,
        directory=directory,
        wal=disk.directory(folder),
        manifests=ManifestKeeper(directory, manifest),
        new=new,
        made=made,
    )


def _leave(environment: Environment, path: str, lock: LockHandle, *, new: bool, made: bool) -> None:
    if new:
        take_away(environment.disk, path)
        if made:
            remove_empty(environment.disk, path)
    lock.release()
