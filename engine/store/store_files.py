"""The files of a store, open for writing: from a claimed directory to a log that takes appends.

This is what any owner of a store needs, an embedded store and a member of a cluster alike.  The
steps, in this order, so that a crash at any of them leaves a store that the next open recovers:

1. Open the data file (``data_file``), and read what its last checkpoint knew.
2. Replay the log behind that, and make its end durable (``replaying``).
3. Give a hot copy that was opened for the first time a log of its own.
4. Open the last segment for appending, or begin one (``appending``).
5. Take the mark of a clean close out of the manifest.

Left out: commits, locks, and what closes gaps and raises epochs (``opening``): in a cluster others
decide about that.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from threading import Lock

from ...checkpoints.marks import PartitionMark
from ...checkpoints.replay import State
from ...wal.retention import RetentionLimits
from ...wal.writer import NEXT_NAME, LogWriter
from ..data.overlay import Overlay
from ..data.partition_store import read_state
from ..files.log_keeper import LogKeeper
from ..files.manifest import Manifest, ManifestKeeper
from ..files.recovery import RecoveryReport, Replayed
from ..system.environment import Environment, KeyValueEnvironment, LockHandle
from ..system.layout import READERS_NAME
from .appending import open_log
from .checkpointer import Checkpointer, CheckpointSource
from .claim import Claim
from .data_file import check_rebuilt, open_data_file
from .data_file_growth import MapGrowth
from .live_snapshots import LiveSnapshots
from .options import Options
from .relief import Relief
from .replaying import LogEnd, replay_log


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFiles:
    """A store that is open for writing, without whoever writes.

    ``mutex`` guards ``state``, the active layer of ``overlay``, and the end of the log.
    """

    path: str
    environment: Environment
    options: Options
    lock: LockHandle
    manifests: ManifestKeeper
    kv: KeyValueEnvironment
    mutex: Lock
    state: State
    overlay: Overlay
    snapshots: LiveSnapshots
    writer: LogWriter
    keeper: LogKeeper
    growth: MapGrowth
    checkpointer: Checkpointer
    report: RecoveryReport

    @property
    def manifest(self) -> Manifest:
        """The manifest as it is now."""
        return self.manifests.manifest

    def adopt(self, source: CheckpointSource) -> None:
        """Let whoever writes from now on be the one whose updates checkpoints carry over."""
        self.checkpointer.adopt(source, self._after_checkpoint)

    def _after_checkpoint(self, position: int) -> None:
        # Pages that a reader needed who has died can be used again.
        self.kv.clear_stale_readers()
        self.keeper.after_checkpoint(position)

    def close(self) -> None:
        """Close log and data file, whatever state the store is in; it stays locked."""
        with self.checkpointer.between():
            self.writer.close()
            self.kv.close()

    def release(self) -> None:
        """Close every file and give up the lock, whatever state the store is in."""
        with self.checkpointer.between():
            self.writer.close()
            self.kv.close()
            self.lock.release()


def open_files(claim: Claim, options: Options, *, mapped: bool) -> StoreFiles:
    """Open the files of a claimed store, and recover what its log has.

    ``mapped`` lets the log be written through a mapping of its file, which is quicker for who does
    not wait for a sync.  Raises ``CorruptLogError``, ``CorruptDataError``, ``DiskError``,
    ``DiskFullError``; the claim stays.
    """
    readers = os.path.join(claim.path, READERS_NAME)
    disk = claim.environment.disk
    if disk.kind(readers) is None:  # a tool that copied the store left the empty folder out
        disk.make_directory(readers)
    kv = open_data_file(claim, options.map_size)
    try:
        return _recovered(claim, kv, options, mapped)
    except BaseException:
        kv.close()
        raise


def _recovered(claim: Claim, kv: KeyValueEnvironment, options: Options, mapped: bool) -> StoreFiles:
    environment, manifests = claim.environment, claim.manifests
    manifest, mutex, snapshots = manifests.manifest, Lock(), LiveSnapshots()
    state, marks, overlay = _checkpointed(claim, kv)
    growth = MapGrowth(environment, kv, overlay, options, mutex=mutex, expire=snapshots.expire)
    log_end = LogEnd(claim.wal, environment.limits.copy_bytes)
    replayed = Replayed(state, overlay, state.position, log_end.sync, mutex)
    checkpointer = Checkpointer(
        environment,
        replayed,
        kv,
        marks,
        path=claim.path,
        growth=growth,
        doubt=manifests.doubt,
    )
    relief = Relief(environment, checkpointer, overlay, options.checkpoint_policy())
    try:
        replay_log(claim.path, claim.wal, log_end, manifest, replayed, relief)
        if state.cleared:
            checkpointer.run("recovery")  # who reads must not find what counts for nothing
        if manifest.copied:
            log_id, history_id = environment.new_id().hex(), environment.new_id().hex()
            manifests.become_a_store(log_id, history_id, replayed.applied_position)
        keeper = _keeper(claim, options)
        writer = open_log(
            claim,
            state,
            replayed.applied_position,
            keeper,
            segment_bytes=options.segment_bytes,
            mapped=mapped,
        )
        try:
            keeper.begin(writer, state)
            manifests.begin(rebuild=checkpointer.doubtful is not None)
            return StoreFiles(
                path=claim.path,
                environment=environment,
                options=options,
                lock=claim.lock,
                manifests=manifests,
                kv=kv,
                mutex=mutex,
                state=state,
                overlay=overlay,
                snapshots=snapshots,
                writer=writer,
                keeper=keeper,
                growth=growth,
                checkpointer=checkpointer,
                report=replayed.report,
            )
        except BaseException:
            writer.close()
            raise
    except BaseException:
        relief.abandon()
        raise


def _checkpointed(
    claim: Claim, kv: KeyValueEnvironment
) -> tuple[State, dict[int, PartitionMark], Overlay]:
    """Return what the last checkpoint knew, and an overlay with nothing in it above its data."""
    manifest = claim.manifests.manifest
    txn = kv.begin()
    store_id = bytes.fromhex(manifest.store_id)
    state, marks = read_state(txn, store_id, manifest.spaces, claim.path)
    if NEXT_NAME in claim.wal.names():
        claim.wal.unlink(NEXT_NAME)
    if manifest.rebuild:
        check_rebuilt(claim.path, kv, marks)
    return state, marks, Overlay(txn)


def _keeper(claim: Claim, options: Options) -> LogKeeper:
    limits = RetentionLimits(size_bytes=options.retain_bytes, age_seconds=options.retain_seconds)
    readers_path = os.path.join(claim.path, READERS_NAME)
    return LogKeeper(claim.environment, claim.wal, readers_path, limits)
