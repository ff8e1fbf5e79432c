"""Makes a new store, and takes away what is left of one that could not be opened.

A store is one from the moment its manifest is there, which comes last and goes before the log.

Left out: opening it (``opening``).
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from uuid import UUID

from ...affinity.errors import NotFoundError, UsageError
from ...affinity.partitions import PARTITIONS_MAX, one_space
from ...checkpoints.replay import State
from ...wal.format import CLUSTER, PREVIEW, SegmentHeader
from ...wal.records import encode_record
from ...wal.writer import create_segment
from ..files import manifest as manifests
from ..files.manifest import Manifest
from ..system.environment import Disk, Environment
from ..system.layout import (
    CLUSTER_FILE_NAME,
    DATA_NAME,
    MANIFEST_NAME,
    STORE_FILES,
    STORE_FOLDERS,
    WAL_NAME,
)
from ..system.lmdb_file import ENGINE_VERSION
from .place import cluster_directory, holds_data, no_manifest, strangers_at

PARTITIONS = 16
"""How many a store gets of which nobody says how many it is to have."""


def check_partition_count(partitions: object) -> None:
    """Raise ``UsageError`` for what cannot be the number of partitions of a store."""
    if type(partitions) is not int or not 1 <= partitions <= PARTITIONS_MAX:
        raise UsageError(f"partitions={partitions!r} is not a number from 1 to {PARTITIONS_MAX}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """Which cluster a new store belongs to, as which member; all members have these ids but one."""

    cluster: UUID
    store: UUID
    history: UUID
    member: UUID


def create_store(
    environment: Environment, path: str, partitions: int, membership: Membership | None = None
) -> None:
    """Lay out a new, empty store; the manifest comes last and makes it one."""
    disk = environment.disk
    # The first one is there, but maybe not durably: whoever made it may have died at once. Nobody
    # but its owner can make it durable if the directory around it may not be read.
    with contextlib.suppress(PermissionError):
        disk.make_directory(path)
    for name in STORE_FOLDERS:
        disk.make_directory(os.path.join(path, name))
    log_id, store_id, history_id = (environment.new_id() for _ in range(3))
    required = 0
    if membership is not None:
        store_id, history_id = membership.store.bytes, membership.history.bytes
        required = CLUSTER | PREVIEW
    header = SegmentHeader(
        log_id=log_id,
        store_id=store_id,
        history_id=history_id,
        number=1,
        first_position=0,
        required=required,
    )
    wal = disk.directory(os.path.join(path, WAL_NAME))
    for name in wal.names():  # left behind by a creation that crashed before its manifest
        wal.unlink(name)
    spaces = one_space(partitions)
    state = State(store_id, spaces).record(environment.clock())
    file, end = create_segment(wal, header, encode_record(state))
    file.close()
    manifests.write(
        disk.directory(path),
        Manifest(
            store_id=store_id.hex(),
            history_id=history_id.hex(),
            log_id=log_id.hex(),
            logs=[(log_id.hex(), 0)],
            partitions=partitions,
            clean_end=end,
            kv_engine=ENGINE_VERSION,
            spaces=list(spaces),
            required=required,
            cluster=None if membership is None else membership.cluster.hex,
            member=None if membership is None else membership.member.hex,
        ),
    )


def check_no_remains(disk: Disk, path: str, create: bool) -> None:
    """Refuse to make a store if an older one may have lost its manifest, or other files lie."""
    names = set(disk.directory(path, read_only=True).names())
    if MANIFEST_NAME in names:
        return
    if CLUSTER_FILE_NAME in names:
        raise cluster_directory(path)
    if holds_data(disk, path):
        raise no_manifest(path)
    if not create:
        raise NotFoundError(f"there is no store at {path}", hint="Check the path.")
    strangers = strangers_at(disk, path)
    if strangers:
        raise UsageError(
            f"{path} is not a store, and not empty: {', '.join(strangers[:3])}",
            hint="Name an empty directory, or one that does not exist yet.",
        )


def take_away(disk: Disk, path: str) -> None:
    """Remove the files of a new store that failed to open, as far as the disk lets us.

    The data file goes first and then the manifest, each durably: wherever that ends, the next open
    makes a store.  One without a data file has it all in its log; a data file without a manifest
    would be refused, and so would a manifest without a log.
    """
    with contextlib.suppress(OSError):
        root = disk.directory(path)
        names = root.names()
        if DATA_NAME in names:
            data = disk.directory(os.path.join(path, DATA_NAME))
            for file in data.names():
                data.unlink(file)
            data.sync()
        if MANIFEST_NAME in names:
            root.unlink(MANIFEST_NAME)
            root.sync()
        for name in sorted(set(names).intersection(STORE_FOLDERS)):
            folder = disk.directory(os.path.join(path, name))
            for file in folder.names():
                folder.unlink(file)
            disk.remove_directory(os.path.join(path, name))
        for name in sorted(STORE_FILES.intersection(names)):
            root.unlink(name)


def remove_empty(disk: Disk, path: str) -> None:
    """Remove a directory unless somebody has put something there."""
    with contextlib.suppress(OSError):
        disk.remove_directory(path)
