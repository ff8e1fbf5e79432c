"""Opens a store for writing: lock, manifest, LMDB, recovery, then everything that runs.

The order, and why: the lock first, so that nobody else changes what is looked at; the manifest
next, which says whose files these are; LMDB after its file has been measured; then the log is
replayed, its tail made durable, and the manifest loses its mark of a clean close.  Only then is
anything appended.  A crash at any step leaves a store that the next open recovers.

Left out: reading processes (``reading``), maps and transactions (``database``).
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
from dataclasses import dataclass, replace

from ...affinity.errors import (
    AlreadyOpenError,
    CorruptDataError,
    DiskError,
    DiskFullError,
    FormatVersionError,
    NotFoundError,
    UnsupportedError,
    UsageError,
)
from ...affinity.partitions import PARTITIONS_MAX
from ...checkpoints.marks import PartitionMark
from ...checkpoints.replay import State
from ...wal.format import SegmentHeader, segment_name
from ...wal.ports import Directory
from ...wal.records import DropNamespaceRecord, Record, RollbackRecord, Run, encode_record
from ...wal.segments import open_segment, segment_numbers
from ...wal.writer import NEXT_NAME, LogWriter, create_segment, seal_before
from ..commit.committer import Committer
from ..commit.context import AutomaticIds, CommitContext
from ..commit.lock_manager import SECONDS_MAX, LockManager
from ..commit.outcomes import automatic_prefix
from ..data.overlay import Overlay
from ..data.partition_store import read_state, verify_partitions
from ..files import manifest as manifests
from ..files.features import check_features, newest_header
from ..files.log_keeper import LogKeeper
from ..files.log_source import WAL_NAME
from ..files.manifest import Manifest
from ..files.recovery import RecoveryReport, Replayed, replay, rewrite_tail
from ..system.copying import copy_file
from ..system.environment import Disk, Environment, KeyValueEnvironment, LockHandle
from ..system.lmdb_file import DATA_FILE, ENGINE_VERSION, open_here
from .checkpointer import Checkpointer
from .data_file_growth import MapGrowth
from .relief import Relief

LOCK_NAME = "lock"
DATA_NAME = "data"
READERS_NAME = "readers"
_FOLDERS = frozenset((WAL_NAME, DATA_NAME, READERS_NAME))
_FILES = frozenset((LOCK_NAME, manifests.NEW_NAME))
"""Files of a store beside its manifest and its folders."""
_FRESH_DATA = "data.tmp"
TRANSACTION_BYTES_LIMIT = 512 << 20
"""Half of what a frame may hold: how many bytes a record will have is known roughly beforehand."""
SIZE_MAX = (1 << 63) - 1
"""What the system takes for the size of a file or of a map."""
_EMPTY_BYTES = 8192
"""Size of a data file to which nothing was ever committed."""

log = logging.getLogger("tidelog.store")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Limits and habits of an open store; sizes in bytes, times in seconds."""

    segment_bytes: int = 64 << 20
    checkpoint_bytes: int = 192 << 20
    retain_bytes: int = 256 << 20
    retain_seconds: float | None = None
    transaction_bytes_max: int = 64 << 20
    snapshot_memory_max: int = 1 << 30
    map_size: int = 1 << 40
    map_size_max: int = 16 << 40
    sync_interval: float = 0.05
    checkpoint_interval: float = 60.0
    lock_timeout: float = 10.0

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if value is None and name == "retain_seconds":
                continue
            whole = type(self.__dataclass_fields__[name].default) is int
            if type(value) not in ((int,) if whole else (int, float)) or not value > 0:
                kind = "whole number" if whole else "number"
                raise UsageError(f"{name}={value!r} is not a positive {kind}")
            limit, unit = (SIZE_MAX, "bytes") if whole else (int(SECONDS_MAX), "seconds")
            if value > limit:
                raise UsageError(f"{name} is more than {limit:,} {unit}", hint="Give less.")
        if self.transaction_bytes_max > TRANSACTION_BYTES_LIMIT:
            raise UsageError(
                f"transaction_bytes_max={self.transaction_bytes_max:,} is more than the "
                f"{TRANSACTION_BYTES_LIMIT:,} that a transaction may ever have"
            )


@dataclass(slots=True, kw_only=True)
class OpenStore:
    """The parts of a store that is open for writing."""

    path: str
    environment: Environment
    options: Options
    directory: Directory
    lock: LockHandle
    manifest: Manifest
    kv: KeyValueEnvironment
    state: State
    overlay: Overlay
    writer: LogWriter
    committer: Committer
    checkpointer: Checkpointer
    locks: LockManager
    keeper: LogKeeper
    growth: MapGrowth
    report: RecoveryReport

    def end_cleanly(self) -> None:
        """Write into the manifest that the log ends here, all of it durable."""
        self.manifest = replace(self.manifest, clean_end=self.writer.position)
        with translated_disk("writing the manifest"):
            manifests.write(self.directory, self.manifest)

    def doubt(self) -> None:
        """Note, if the disk still takes it, that the data file must be copied at the next open."""
        self.manifest = replace(self.manifest, rebuild=True)
        with contextlib.suppress(OSError):
            manifests.write(self.directory, self.manifest)

    def release(self) -> None:
        """Close every file and give up the lock, whatever state the store is in."""
        with self.checkpointer.between():
            self.writer.close()
            self.kv.close()
            self.lock.release()


def place_of(path: str | os.PathLike[str], what: str = "the path of a store") -> str:
    """Return the absolute path of a store; ``UsageError`` for what is meant to be no directory."""
    given = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(given, str):
        raise UsageError(
            f"{what} is a str, or a path object of one, not {type(given).__name__}",
            hint="Make a str of bytes with `os.fsdecode`.",
        )
    if not given:
        raise UsageError(f"{what} is empty", hint="Name its directory; `.` is the current one.")
    if "\0" in given:
        raise UsageError(
            f"{what}, {given!r}, has a null character",
            hint="Name a directory without one.",
        )
    if given == ":memory:":
        raise UsageError(
            "a store is a directory, there is none in memory",
            hint="Name a temporary directory, as `tempfile.TemporaryDirectory()` makes one.",
        )
    return os.path.abspath(given)


def check_place(environment: Environment, path: str) -> None:
    """Raise where a store cannot keep its promises: no directory, or a network file system."""
    kind = environment.disk.kind(path)
    if kind not in (None, "directory"):
        raise UsageError(f"{path} is not a directory", hint="Name the directory of a store.")
    network = environment.disk.network_file_system(path)
    if network is not None:
        raise UnsupportedError(
            f"{path} is on a network file system ({network}), where locks and syncs mean less",
            hint="Put the store on a local disk.",
        )


def take_lock(environment: Environment, path: str) -> LockHandle:
    """Lock the store for writing, or raise ``AlreadyOpenError`` naming the process that has it."""
    try:
        return environment.disk.lock(os.path.join(path, LOCK_NAME))
    except BlockingIOError:
        raise _already_open(environment, path) from None


def _already_open(environment: Environment, path: str) -> AlreadyOpenError:
    """Return the error for a store that is open for writing here or elsewhere."""
    pid = owner_of(environment, path)
    if pid == environment.pid():
        return open_here(path, pid)
    owner = f"process {pid}" if pid else "another process"
    return AlreadyOpenError(
        f"{path} is open for writing in {owner}",
        path=path,
        pid=pid,
        hint="End that process, or open with `read_only=True`, which works beside it.",
    )


def owner_of(environment: Environment, path: str) -> int | None:
    """Return the process that the lock file names."""
    try:
        file = environment.disk.directory(path, read_only=True).open_read(LOCK_NAME)
    except OSError:
        return None
    try:
        text = file.read(0, 20).split()
    finally:
        file.close()
    return int(text[0]) if text and text[0].isdigit() else None


def read_manifest(environment: Environment, path: str) -> Manifest:
    """Return the manifest of the store at ``path``; ``NotFoundError`` where there is no store."""
    try:
        directory = environment.disk.directory(path, read_only=True)
        return manifests.read(directory)
    except (FileNotFoundError, NotADirectoryError) as error:
        if _holds_data(environment.disk, path):
            raise _no_manifest(path) from error
        raise NotFoundError(
            f"there is no store at {path}", hint="`tidelog.open(path)` makes one."
        ) from error
    except (CorruptDataError, FormatVersionError) as error:
        error.args = (f"{path}: {error}",)
        raise


def _holds_data(disk: Disk, path: str) -> bool:
    return disk.kind(os.path.join(path, DATA_NAME, DATA_FILE)) is not None


def _no_manifest(path: str) -> CorruptDataError:
    return CorruptDataError(
        f"{path} holds data but no manifest",
        hint="Restore the manifest from a backup; a copy that has not ended is no store.",
    )


def _check_partitions(partitions: object) -> None:
    if type(partitions) is not int or not 1 <= partitions <= PARTITIONS_MAX:
        raise UsageError(f"partitions={partitions!r} is not a number from 1 to {PARTITIONS_MAX}")


def create_store(environment: Environment, path: str, partitions: int) -> None:
    """Lay out a new, empty store; the manifest comes last and makes it one."""
    disk = environment.disk
    # The first one is there, but maybe not durably: whoever made it may have died at once. Nobody
    # but its owner can make it durable where the directory around it may not be read.
    with contextlib.suppress(PermissionError):
        disk.make_directory(path)
    for name in (WAL_NAME, DATA_NAME, READERS_NAME):
        disk.make_directory(os.path.join(path, name))
    log_id, store_id, history_id = (environment.new_id() for _ in range(3))
    header = SegmentHeader(
        log_id=log_id, store_id=store_id, history_id=history_id, number=1, first_position=0
    )
    wal = disk.directory(os.path.join(path, WAL_NAME))
    for name in wal.names():  # left behind by a creation that crashed before its manifest
        wal.unlink(name)
    state = State(store_id, partitions).record(environment.clock())
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
            spaces=[(0, partitions, 0)],
        ),
    )


def open_store(
    environment: Environment,
    path: str,
    *,
    partitions: int | None,
    create: bool,
    options: Options,
    mapped: bool,
) -> OpenStore:
    """Open the store at ``path`` for writing, making it where ``create`` allows.

    ``partitions`` is for a new store (16 by default) and has to agree with that of an old one.
    """
    if partitions is not None:
        _check_partitions(partitions)
    check_place(environment, path)
    disk = environment.disk
    made, new = disk.kind(path) is None, False
    if made and not create:
        raise NotFoundError(f"there is no store at {path}", hint="Check the path.")
    try:
        if made:
            make_place(environment, path)
        # Looked at before it is locked as well: a lock is a file, which a refusal must not leave.
        _check_no_remains(disk, path, create)
        lock = take_lock(environment, path)
    except BaseException:
        if made:
            _remove_empty(disk, path)
        raise
    try:
        _check_no_remains(disk, path, create)
        new = manifests.NAME not in disk.directory(path).names()
        lock.write(b"%d\n" % environment.pid())
        if new:
            create_store(environment, path, 16 if partitions is None else partitions)
        manifest = read_manifest(environment, path)
        if partitions not in (None, manifest.partitions):
            raise UsageError(
                f"{path} has {manifest.partitions} partitions, not {partitions}",
                hint="The number is fixed when a store is made; leave it out to open one.",
            )
        wal = disk.directory(os.path.join(path, WAL_NAME), read_only=True)
        check_features(path, manifest, wal, write=True)
        return _Opening(environment, path, lock, manifest, options, mapped).run()
    except BaseException:
        if new:
            _take_away(disk, path)
            if made:
                _remove_empty(disk, path)
        lock.release()
        raise


def _take_away(disk: Disk, path: str) -> None:
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
        if manifests.NAME in names:
            root.unlink(manifests.NAME)
            root.sync()
        for name in sorted(_FOLDERS.intersection(names)):
            folder = disk.directory(os.path.join(path, name))
            for file in folder.names():
                folder.unlink(file)
            disk.remove_directory(os.path.join(path, name))
        for name in sorted(_FILES.intersection(names)):
            root.unlink(name)


def _remove_empty(disk: Disk, path: str) -> None:
    """Remove a directory unless somebody has put something there."""
    with contextlib.suppress(OSError):
        disk.remove_directory(path)


def make_place(environment: Environment, path: str) -> None:
    """Make the directory of a new store, in one that is there already."""
    try:
        with translated_disk(f"making {path}"):
            environment.disk.make_directory(path)
    except DiskError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise NotFoundError(
                f"there is no directory {os.path.dirname(path)} to make a store in",
                hint="Check the path, or make that directory first.",
            ) from error.__cause__
        raise


def _check_no_remains(disk: Disk, path: str, create: bool) -> None:
    """Refuse to make a store where an older one may have lost its manifest, or other files lie."""
    names = set(disk.directory(path, read_only=True).names())
    if manifests.NAME in names:
        return
    if _holds_data(disk, path):
        raise _no_manifest(path)
    if not create:
        raise NotFoundError(f"there is no store at {path}", hint="Check the path.")
    strangers = names - _FOLDERS - _FILES
    if strangers:
        raise UsageError(
            f"{path} is no store and not empty: {', '.join(sorted(strangers)[:3])}",
            hint="Name an empty directory, or one that does not exist yet.",
        )


class _Opening:
    """One writable open on its way; the parts as they come."""

    def __init__(
        self,
        environment: Environment,
        path: str,
        lock: LockHandle,
        manifest: Manifest,
        options: Options,
        mapped: bool,
    ) -> None:
        self._environment = environment
        self._path = path
        self._lock = lock
        self._manifest = manifest
        self._options = options
        self._mapped = mapped
        self._tail = threading.Lock()
        """Held by whoever writes the end of the log before the log is open for appending."""
        self._tail_durable = False
        self._relief: Relief | None = None
        self._directory = environment.disk.directory(path)
        self._wal = environment.disk.directory(os.path.join(path, WAL_NAME))

    def run(self) -> OpenStore:
        disk = self._environment.disk
        readers = os.path.join(self._path, READERS_NAME)
        if disk.kind(readers) is None:  # a tool that copied the store left the empty folder out
            disk.make_directory(readers)
        data_path = os.path.join(self._path, DATA_NAME)
        data = disk.directory(data_path)
        new = DATA_FILE not in data.names()
        if new and not self._log_from_the_beginning():
            raise CorruptDataError(
                f"{data_path}: the data file {DATA_FILE} is missing, and the log, which goes back "
                "to its last checkpoints only, cannot replace it",
                hint="Put the file back, or restore from a backup.",
            )
        if self._manifest.rebuild and not new:
            self._rebuild(data)
        open_kv, map_size = self._environment.open_kv, self._options.map_size
        kv: KeyValueEnvironment | None = None
        try:
            try:
                kv = open_kv(data_path, map_size, False, True)
            except CorruptDataError:
                if not self._never_written(data):
                    raise
                data.unlink(DATA_FILE)
                kv = open_kv(data_path, map_size, False, True)
            # Each time: an open that gave a file its name may have failed or died at this point.
            with translated_disk("syncing the names of manifest and data file"):
                self._directory.sync()
                data.sync()
            return self._with(kv)
        except BaseException:
            if self._relief is not None:
                self._relief.abandon()
            if kv is not None:
                kv.close()
            raise

    def _never_written(self, data: Directory) -> bool:
        """Tell whether the data file is what a power cut leaves of one without any commit.

        LMDB writes the first two pages unsynced, and the others at its first commit.  Nothing is
        lost with such a file: the log still goes back to its beginning.
        """
        file = data.open_read(DATA_FILE)
        try:
            size = file.size()
        finally:
            file.close()
        return size <= _EMPTY_BYTES and self._log_from_the_beginning()

    def _log_from_the_beginning(self) -> bool:
        numbers = segment_numbers(self._wal)
        if not numbers:
            return False
        segment = open_segment(self._wal, numbers[0])
        segment.file.close()
        return segment.first_position == 0

    def _rebuild(self, data: Directory) -> None:
        """Give LMDB a fresh file, all of it synced: a failed sync made this one doubtful.

        Its name becomes durable behind this, before anything else is written.
        """
        with translated_disk("copying the data file"):
            if _FRESH_DATA in data.names():
                data.unlink(_FRESH_DATA)
            copy_file(data, DATA_FILE, data, target_name=_FRESH_DATA)
            data.rename(_FRESH_DATA, DATA_FILE)
        log.warning("data.rebuilt path=%s", self._path, extra={"event": "data.rebuilt"})

    def _check_rebuilt(self, kv: KeyValueEnvironment, marks: dict[int, PartitionMark]) -> None:
        """Refuse a data file of which the failed sync lost pages after all."""
        problems = verify_partitions(kv, marks)
        if problems:
            raise CorruptDataError(
                f"{self._path}: the data file was damaged when a sync failed: {problems[0]}"
            )

    def _doubt(self) -> None:
        """Note, if the disk still takes it, that the data file must be copied at the next open."""
        self._manifest = replace(self._manifest, rebuild=True)
        with contextlib.suppress(OSError):
            manifests.write(self._directory, self._manifest)

    def _become_a_store(self, end: int) -> None:
        """Give a hot copy a log and a history of its own from its end on.

        The manifest comes first: the segment of the new log, which it promises, is begun below,
        or by the next open if this one crashes in between.
        """
        manifest, new_id = self._manifest, self._environment.new_id
        log_id = new_id().hex()
        self._manifest = replace(
            manifest,
            log_id=log_id,
            history_id=new_id().hex(),
            logs=[*manifest.logs, (log_id, end)],
            clean_end=end,
            copied=False,
        )
        with translated_disk("writing the manifest"):
            manifests.write(self._directory, self._manifest)

    def _with(self, kv: KeyValueEnvironment) -> OpenStore:
        environment, options = self._environment, self._options
        store_id = bytes.fromhex(self._manifest.store_id)
        txn = kv.begin()
        state, marks = read_state(txn, store_id, self._manifest.partitions, self._path)
        overlay = Overlay(txn)
        del txn
        growth = MapGrowth(environment, kv, overlay, options.map_size_max)
        self._remove_leftovers()
        if self._manifest.rebuild:
            self._check_rebuilt(kv, marks)
        replayed, checkpointer = self._replay(kv, state, overlay, marks, growth)
        if self._manifest.copied:
            self._become_a_store(replayed.applied_position)
        writer, keeper = self._open_log(state, replayed.applied_position)
        context = CommitContext(
            state,
            overlay,
            AutomaticIds(self._id_prefix(state)),
            position=writer.position,
            now=environment.monotonic,
            note_given_id=keeper.note_given_id,
        )
        committer = Committer(
            environment,
            context,
            writer,
            mutex=replayed.mutex,
            transaction_bytes_max=options.transaction_bytes_max,
            puts_durable=not self._mapped,
        )

        def after_checkpoint(position: int) -> None:
            # Pages that a reader needed who has died can be used again.
            kv.clear_stale_readers()
            keeper.after_checkpoint(position)

        checkpointer.adopt(committer, after_checkpoint)
        store = OpenStore(
            path=self._path,
            environment=environment,
            options=options,
            directory=self._directory,
            lock=self._lock,
            manifest=self._manifest,
            kv=kv,
            state=state,
            overlay=overlay,
            writer=writer,
            committer=committer,
            checkpointer=checkpointer,
            locks=LockManager(environment, committer),
            keeper=keeper,
            growth=growth,
            report=replayed.report,
        )
        try:
            self._settle(store)
        except BaseException:
            writer.close()
            raise
        return store

    def _id_prefix(self, state: State) -> bytes:
        """Return the first half of automatic ids, which carries a time.

        That is behind the time of every commit so far, and of no commit to come.
        """
        time = max(self._environment.clock(), state.time + 1000)
        state.time = time = time - time % 1000
        return automatic_prefix(time, self._environment.new_id())

    def _remove_leftovers(self) -> None:
        if NEXT_NAME in self._wal.names():
            self._wal.unlink(NEXT_NAME)

    def _replay(
        self,
        kv: KeyValueEnvironment,
        state: State,
        overlay: Overlay,
        marks: dict[int, PartitionMark],
        growth: MapGrowth,
    ) -> tuple[Replayed, Checkpointer]:
        """Apply the log to the state and make its end durable."""
        limit = self._options.checkpoint_bytes
        start = state.position
        durable = max(state.durable, self._manifest.durable)
        replayed = Replayed(state, overlay, start, self._sync_replayed)
        growth.mutex = replayed.mutex
        checkpointer = Checkpointer(
            self._environment,
            replayed,
            kv,
            marks,
            position=start,
            growth=growth,
        )
        checkpointer.on_doubt = self._doubt
        relief = self._relief = Relief(self._environment, checkpointer, overlay, limit)
        end = replay(
            self._wal,
            replayed,
            start=start,
            durable=durable,
            log_ids=self._manifest.log_ids,
            relieve=relief.look,
        )
        relief.end()
        # A copy of a running store has no clean end, even where its log ends as it should.
        clean = self._manifest.clean_end == end.position and not self._manifest.copied
        replayed.report.clean = clean
        replayed.report.dropped_bytes = end.dropped_bytes
        replayed.report.end = str(end.kind)
        replayed.applied_position = end.position
        with self._tail:
            if not clean or end.dropped_segment is not None:
                with translated_disk("making the end of the log durable"):
                    # A process that was killed may have left names that are not durable yet.
                    self._wal.sync()
                    rewrite_tail(self._wal, end, min(durable, end.position))
            self._tail_durable = True
        log.log(
            logging.INFO if clean else logging.WARNING,
            "recovery.done clean=%s frames=%d updates=%d end=%s dropped_bytes=%d",
            clean,
            replayed.report.frames,
            replayed.report.updates,
            end.kind,
            end.dropped_bytes,
            extra={"event": "recovery.done"},
        )
        return replayed, checkpointer

    def _sync_replayed(self, position: int) -> None:
        """Make the log durable up to ``position`` before a checkpoint of the recovery holds it.

        It has to see the end of the log as the replay does: what a checkpoint that runs on behind
        the replay would write back here may have been cut, or be older than the next commit.
        """
        with self._tail:
            if self._tail_durable:
                return
            with translated_disk("making the replayed log durable"):
                number = segment_numbers(self._wal)[-1]
                file = self._wal.open_write(segment_name(number))
                try:
                    size = file.size()
                    for offset in range(0, size, 64 << 10):
                        file.write(offset, file.read(offset, 64 << 10))
                    file.sync()
                finally:
                    file.close()

    def _open_log(self, state: State, position: int) -> tuple[LogWriter, LogKeeper]:
        """Open the last segment for appending at ``position``, or begin a new one."""
        keeper = LogKeeper(
            self._environment,
            self._wal,
            os.path.join(self._path, READERS_NAME),
            retain_bytes=self._options.retain_bytes,
            retain_seconds=self._options.retain_seconds,
        )

        def payload() -> bytes:
            return encode_record(state.record(self._environment.clock()))

        numbers = segment_numbers(self._wal)
        segment = open_segment(self._wal, numbers[-1]) if numbers else None
        if segment is not None:
            segment.file.close()
        log_id = bytes.fromhex(self._manifest.log_id)
        if segment is None or segment.header is None or segment.log_id != log_id:
            manifest, before = self._manifest, newest_header(self._wal)
            header = SegmentHeader(
                log_id=log_id,
                store_id=state.store_id,
                history_id=bytes.fromhex(manifest.history_id),
                number=numbers[-1] + 1 if numbers else 1,
                first_position=position,
                compatible=manifest.compatible | (before.compatible if before else 0),
                read_only=manifest.read_only | (before.read_only if before else 0),
                required=manifest.required | (before.required if before else 0),
            )
            with translated_disk("beginning a segment of the log"):
                file, position = create_segment(self._wal, header, payload(), mapped=self._mapped)
        else:
            header = segment.header
            file = self._wal.open_write(segment_name(numbers[-1]), mapped=self._mapped)
        with translated_disk("sealing a segment of the log"):
            seal_before(self._wal, header)
        writer = LogWriter(
            self._wal,
            header,
            file,
            position=position,
            synced=position,
            segment_size=self._options.segment_bytes,
            state=payload,
            spare=keeper.spare,
            sealed=keeper.sealed,
            mapped=self._mapped,
        )
        keeper.begin(writer, state)
        return writer, keeper

    def _settle(self, store: OpenStore) -> None:
        """Take the mark of a clean close away, close gaps, and raise epochs where they must be.

        Hidden maps go: nobody is left who could complete them.
        """
        clean = store.report.clean
        store.checkpointer.on_doubt = store.doubt
        doubtful = store.checkpointer.doubtful is not None
        if self._manifest.clean_end is not None or self._manifest.rebuild != doubtful:
            store.manifest = replace(self._manifest, clean_end=None, rebuild=doubtful)
            with translated_disk("writing the manifest"):
                manifests.write(self._directory, store.manifest)
        with store.committer.mutex:
            gaps = _close_gaps(store.state)
        state = store.state
        time = max(self._environment.clock(), state.time)
        closing: list[Record] = []
        if gaps:
            closing.append(
                RollbackRecord(tx_id=bytes(16), time=time, reason="gap", runs=tuple(gaps))
            )
        records: list[Record] = [
            DropNamespaceRecord(id=namespace.id, time=time)
            for namespace in state.namespaces.values()
            if namespace.hidden
        ]
        if not clean:
            records.append(state.next_epochs(time))
        if closing or records:
            store.committer.log(
                [*closing, *records],
                durable=True,
                then=lambda: [state.apply(store.writer.position, record) for record in records],
            )


def _close_gaps(state: State) -> list[Run]:
    """Close what recovery found missing, and forget reservations that never reached the log."""
    gaps = []
    for partition, counter in enumerate(state.counters):
        epoch = state.epochs[partition]
        for first, last in counter.finalize():
            gaps.append(Run(partition, epoch, first, last - first + 1))
            state.touched.add(partition)
    return gaps


PERMISSION_HINT = "Run it as the owner of the files, or where they can be written."


class translated_disk:  # noqa: N801  # used as a function in `with`
    """Turn ``OSError`` into ``DiskError`` or ``DiskFullError``; says what was being done."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Translate."""
        if isinstance(error, OSError):
            text = f"{self._what} failed: {error}"
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise DiskFullError(text) from error
            forbidden = error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)
            raise DiskError(text, hint=PERMISSION_HINT if forbidden else None) from error
