"""Opens the data file of a store for writing: whether it may be missing, young, or doubtful.

Left out: the file itself (``lmdb_file``), and what is in it (``partition_store``).
"""

from __future__ import annotations

import logging
import os

from ...affinity.errors import CorruptDataError
from ...checkpoints.marks import PartitionMark
from ...wal.ports import Directory
from ...wal.segments import open_segment, segment_numbers
from ..data.partition_store import verify_partitions
from ..system.copying import copy_file
from ..system.disk_errors import translated_disk
from ..system.environment import KeyValueEnvironment
from ..system.layout import DATA_FILE, DATA_NAME, FRESH_DATA_FILE
from .claim import Claim
from .renewal import end_renewal

_EMPTY_BYTES = 8192
"""Size of a data file to which nothing was ever committed."""

log = logging.getLogger("tidelog.store")


def open_data_file(claim: Claim, map_size: int) -> KeyValueEnvironment:
    """Open LMDB over the data file of a claimed store, and make the file's name durable.

    Raises ``CorruptDataError`` if the file is missing or damaged and the log cannot replace it.
    """
    path = os.path.join(claim.path, DATA_NAME)
    data = claim.environment.disk.directory(path)
    with translated_disk("ending the renewal of a data file"):
        end_renewal(data)
    missing = DATA_FILE not in data.names()
    if missing and not _goes_back_to_the_beginning(claim.wal):
        raise CorruptDataError(
            f"{path}: the data file {DATA_FILE} is missing, and the log, which goes back "
            "to its last checkpoints only, cannot replace it",
            hint="Put the file back, or restore from a backup.",
        )
    if claim.manifests.manifest.rebuild and not missing:
        _rebuild(claim.path, data)
    open_kv = claim.environment.open_kv
    kv: KeyValueEnvironment | None = None
    try:
        try:
            kv = open_kv(path, map_size, False, True)
        except CorruptDataError:
            if not _was_never_written(data, claim.wal):
                raise
            data.unlink(DATA_FILE)
            kv = open_kv(path, map_size, False, True)
        # Each time: an open that gave a file its name may have failed or died at this point.
        with translated_disk("syncing the names of manifest and data file"):
            claim.directory.sync()
            data.sync()
        return kv
    except BaseException:
        if kv is not None:
            kv.close()
        raise


def check_rebuilt(path: str, kv: KeyValueEnvironment, marks: dict[int, PartitionMark]) -> None:
    """Raise ``CorruptDataError`` if the sync that failed has lost pages of the data file."""
    problems = verify_partitions(kv, marks)
    if problems:
        raise CorruptDataError(
            f"{path}: the data file was damaged when a sync failed: {problems[0]}"
        )


def _was_never_written(data: Directory, wal: Directory) -> bool:
    """Tell whether the data file is what a power cut leaves of one without any commit.

    LMDB writes the first two pages unsynced, and the others at its first commit.  Nothing is
    lost with such a file: the log still goes back to its beginning.
    """
    file = data.open_read(DATA_FILE)
    try:
        size = file.size()
    finally:
        file.close()
    return size <= _EMPTY_BYTES and _goes_back_to_the_beginning(wal)


def _goes_back_to_the_beginning(wal: Directory) -> bool:
    numbers = segment_numbers(wal)
    if not numbers:
        return False
    segment = open_segment(wal, numbers[0])
    segment.file.close()
    return segment.first_position == 0


def _rebuild(path: str, data: Directory) -> None:
    """Give LMDB a fresh file, all of it synced: a failed sync made this one doubtful.

    Its name becomes durable behind this, before anything else is written.
    """
    with translated_disk("copying the data file"):
        copy_file(data, DATA_FILE, data, target_name=FRESH_DATA_FILE)
        data.rename(FRESH_DATA_FILE, DATA_FILE)
    log.warning(
        "data.rebuilt: Tidelog copied the data file of the store %s, since a sync of it had failed",
        path,
        extra={"event": "data.rebuilt"},
    )
