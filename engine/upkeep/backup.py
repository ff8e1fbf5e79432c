"""Hot copies: a whole store in another directory, taken while it is read and written.

The order, and why: the log is pinned, so that nothing which the copy needs is dropped; its durable
end is taken, so that the rows of every map which has its name there are in the data file; LMDB
copies that file, as of one checkpoint; then the log from that checkpoint to that end is copied; all
of that is checked; the manifest comes last and makes the copy a store.

Invariants:

- A copy is consistent at the position that is reported, and everything in it is synced.
- It shares no bytes with the store: nothing is ever hard-linked.
- A crash, an error or a check that fails leaves no manifest, so nobody takes a copy that failed for
  a store.  If we can, nothing of it is left: the next try may go to the same place.
- The original is not changed, and works on.

A copy keeps the ids of its store until it is opened for writing: then it gets a log and a history
of its own (``opening``).  Left out: incremental copies, copies of a directory by other tools.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace

from ...affinity.errors import CorruptDataError, UsageError
from ...wal.format import HEADER_SIZE, SEAL_MAGIC, segment_name
from ...wal.ports import ReadableDirectory
from ...wal.segments import open_segment, probe, segment_numbers
from ..data.partition_store import read_marks, read_store_mark
from ..files import manifest as manifests
from ..files.manifest import Manifest
from ..store.opening import OpenStore
from ..store.place import check_place, make_place
from ..system.copying import copy_file
from ..system.disk_errors import translated_disk
from ..system.environment import Disk, Environment, KeyValueEnvironment
from ..system.layout import DATA_FILE, DATA_NAME, STORE_FOLDERS, WAL_NAME
from .check import BeginPhase, inspect_store, untold


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupReport:
    """What ``db.backup`` made: a store in ``path``, as the original was at ``position`` of its log.

    ``bytes`` is the size of the copy, ``log_bytes`` the part of it that is log.  Of a verified
    copy ``partitions`` has the count of keys and the digest of each partition, as read from it.
    """

    path: str
    position: int
    checkpoint_position: int
    seconds: float
    bytes: int
    log_bytes: int
    maps: tuple[str, ...]
    verified: bool
    partitions: dict[int, tuple[int, int]]

    @property
    def keys(self) -> int | None:
        """How many keys a verified copy holds, those of internal maps included; else None."""
        return sum(count for count, _ in self.partitions.values()) if self.verified else None


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupSource:
    """A store to be copied, in use: for writing, or for reading beside its writer.

    ``durable`` returns a position up to which the log is durable, given one that surely is.
    ``pin`` says from which position on the log must be kept; at first that is everything.
    ``compact`` leaves the unused pages of the data file out of the copy.
    """

    environment: Environment
    path: str
    manifest: Manifest
    kv: KeyValueEnvironment
    wal: ReadableDirectory
    maps: tuple[str, ...]
    durable: Callable[[int], int]
    pin: Callable[[int], None]
    compact: bool = False


def source_of(store: OpenStore, maps: list[str], pin: Callable[[int], None]) -> BackupSource:
    """Return what is to be copied of a store that is open for writing."""

    def durable(_known: int) -> int:
        # After a failed sync nothing more becomes durable, but what is can still be copied.
        committer = store.committer
        return committer.sync() if committer.stopped is None else store.writer.synced

    return BackupSource(
        environment=store.environment,
        path=store.path,
        manifest=store.manifest,
        kv=store.kv,
        wal=store.environment.disk.directory(os.path.join(store.path, WAL_NAME), read_only=True),
        maps=tuple(maps),
        durable=durable,
        pin=pin,
    )


def back_up(
    source: BackupSource, directory: str, *, verify: bool, begin: BeginPhase = untold
) -> BackupReport:
    """Copy a store into ``directory``, which must not exist yet or be empty.

    ``begin`` is told of each phase of the check.  Raises ``UsageError`` for a directory that cannot
    be used, ``DiskError``, ``DiskFullError``, and ``CorruptDataError`` if the copy does not verify.
    """
    environment = source.environment
    start = environment.monotonic()
    _make_place(environment, source.path, directory, verify)
    try:
        with translated_disk(f"copying the store to {directory}"):
            report = _copied(source, directory)
        manifest = replace(source.manifest, copied=True, rebuild=False, clean_end=report.position)
        if verify:
            report = _verified(environment, report, manifest, begin)
        with translated_disk(f"making a store of the copy in {directory}"):
            manifests.write(environment.disk.directory(directory), manifest)
    except BaseException:
        _clear(environment.disk, directory)
        raise
    return replace(report, seconds=environment.monotonic() - start)


def _make_place(environment: Environment, path: str, directory: str, verify: bool) -> None:
    """Make the empty folders of a store."""
    disk = environment.disk
    if f"{directory}/".startswith(f"{path}/"):
        raise UsageError(f"{directory} lies in the store that is to be copied")
    kind = disk.kind(directory)
    if kind not in (None, "directory"):
        raise UsageError(f"{directory} is not a directory")
    if verify:  # opening the copy, which verifying does, would be refused there
        check_place(environment, directory)
    strangers = _strangers(disk, directory) if kind else []
    if set(strangers).difference(STORE_FOLDERS):
        raise UsageError(
            f"{directory} is not empty: {', '.join(strangers[:3])}",
            hint="Name an empty directory, or one that does not exist yet.",
        )
    if strangers:
        raise UsageError(
            f"{directory} holds data without a manifest, as a copy that was killed leaves",
            hint="Delete it if it is that, or name another directory.",
        )
    if kind is None:
        make_place(environment, directory)
    with translated_disk(f"making the directory {directory}"):
        for folder in (directory, *(os.path.join(directory, name) for name in STORE_FOLDERS)):
            disk.make_directory(folder)


def _strangers(disk: Disk, directory: str) -> list[str]:
    """Return what lies in a directory, but for the empty folders of a copy that failed."""
    names = disk.directory(directory).names()
    found = [name for name in names if name not in STORE_FOLDERS]
    for name in set(names).intersection(STORE_FOLDERS):
        path = os.path.join(directory, name)
        inside = disk.kind(path) == "directory" and disk.directory(path).names()
        found += [name] if inside or inside is False else []
    return sorted(found)


def _copied(source: BackupSource, directory: str) -> BackupReport:
    disk = source.environment.disk
    data_path = os.path.join(directory, DATA_NAME)
    mark = read_store_mark(source.kv.begin())
    end = source.durable(0 if mark is None else mark.position)
    source.kv.copy(data_path, compact=source.compact)
    data = disk.directory(data_path)
    file = data.open_write(DATA_FILE)
    try:
        file.sync()
        data_bytes = file.size()
    finally:
        file.close()
    data.sync()
    start, reached = _marks_of(source.environment, data_path, source.kv.map_size())
    source.pin(start)
    end = max(end, reached)
    log_bytes = _copy_log(source, os.path.join(directory, WAL_NAME), start, end)
    return BackupReport(
        path=directory,
        position=end,
        checkpoint_position=start,
        seconds=0.0,
        bytes=data_bytes + log_bytes,
        log_bytes=log_bytes,
        maps=source.maps,
        verified=False,
        partitions={},
    )


def _marks_of(environment: Environment, data_path: str, map_size: int) -> tuple[int, int]:
    """Return where replay onto a copied data file begins, and the highest position it has seen."""
    kv = environment.open_kv(data_path, map_size, True, False)
    try:
        store, marks = read_marks(kv.begin())
    finally:
        kv.close()
    start = 0 if store is None else store.position
    return start, max([start, *(mark.written for mark in marks.values())])


def _copy_log(source: BackupSource, target_path: str, start: int, end: int) -> int:
    """Copy the segments that hold the log from ``start`` to ``end``, the last only so far."""
    target = source.environment.disk.directory(target_path)
    firsts = []
    for number in reversed(segment_numbers(source.wal)):
        segment = open_segment(source.wal, number)
        segment.file.close()
        firsts.append((segment.first_position, number))
        if segment.first_position <= start:
            break
    total = 0
    stop = end
    for first, number in firsts:
        if first < end:
            size = HEADER_SIZE + min(stop, end) - first
            if stop < end:
                size += _seal_bytes(source.wal, number, stop)
            total += copy_file(source.wal, segment_name(number), target, size=size)
        stop = first
    target.sync()
    return total


def _seal_bytes(wal: ReadableDirectory, number: int, position: int) -> int:
    """Return how long the seal of a segment is whose last frame ends at ``position``, or 0."""
    segment = open_segment(wal, number)
    try:
        seal = probe(segment, position, SEAL_MAGIC).frame
    finally:
        segment.file.close()
    return seal.end - position if seal else 0


def _verified(
    environment: Environment, report: BackupReport, manifest: Manifest, begin: BeginPhase
) -> BackupReport:
    """Open the copy, check all of it, and compare it with what was copied."""
    inspection = inspect_store(environment, report.path, manifest, begin)
    problems = inspection.problems
    if not problems and inspection.position != report.position:
        problems = [f"its log ends at {inspection.position} instead of {report.position}"]
    if problems:
        raise CorruptDataError(
            f"the copy in {report.path} did not verify, and was removed: {problems[0]}",
            hint="Run `tidelog db verify` on the original.",
        )
    return replace(
        report,
        maps=tuple(inspection.maps),
        partitions=inspection.partitions,
        verified=True,
    )


def _clear(disk: Disk, directory: str) -> None:
    """Remove the files of a copy that failed, its manifest first, as far as the disk lets us."""
    with contextlib.suppress(OSError):
        root = disk.directory(directory)
        for file in set(root.names()).difference(STORE_FOLDERS):
            root.unlink(file)
    for name in STORE_FOLDERS:
        with contextlib.suppress(OSError):
            folder = disk.directory(os.path.join(directory, name))
            for file in folder.names():
                folder.unlink(file)
