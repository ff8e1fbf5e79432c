"""The directory of a member: made once by ``server init``, opened at each start.

Beside the files of every store there is the configuration log.  Each start counts the boot up and
writes a fresh nonce, durably, before anything is said (C7).

What a crash leaves: in ``init_member`` a directory without a manifest, which is made anew; in
``open_member`` a boot that nobody has heard of, which does no harm.

Left out: what runs on these files (``member``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from uuid import UUID, uuid5

from ...affinity.assignment import assign
from ...affinity.changes import Begun, Decision
from ...affinity.errors import ClusterError, CorruptLogError, UsageError
from ...affinity.partitions import Space
from ...affinity.rows import REPLICAS_MAX
from ...affinity.topology import Topology
from ...wal.ports import Directory
from ..agreement.identity import DiskIdentity, misfit
from ..agreement.journal import Journal
from ..agreement.noting import Restored, noted_records, restored, snapshot_of
from ..files.manifest import read as manifest_at
from ..store.claim import Claim, claim_store
from ..store.creation import Membership, check_partition_count, create_store
from ..store.options import Options
from ..store.place import check_place, make_place, take_lock
from ..store.store_files import StoreFiles, open_files
from ..system.disk_errors import translated_disk
from ..system.environment import Environment
from ..system.layout import (
    CONFIG_LOG_NAME,
    MANIFEST_NAME,
    NEW_CONFIG_LOG_NAME,
    SERVER_LOG_NAME,
)

REMAINS = frozenset((CONFIG_LOG_NAME, NEW_CONFIG_LOG_NAME))
"""What an ``init_member`` that was interrupted leaves beside the files of a store."""
OLD_DISK_HINT = (
    "Keep the directory aside. If there is a newer one of this member that was not declared lost, "
    "start that; if not, let the others run, and a new member join with a directory of its own."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenMember:
    """A member's directory that is open: its store, its configuration log, who it is now."""

    files: StoreFiles
    journal: Journal
    disk: DiskIdentity
    known: Restored
    cluster: UUID

    def close(self) -> None:
        """Let go of all files, whatever state they are in."""
        self.journal.close()
        self.files.release()


def first_decision(
    cluster: UUID,
    members: Sequence[tuple[UUID, str]],
    partitions: int,
    backups: int = 0,
    min_in_sync: int = 1,
    auto_join: bool = True,
) -> Decision:
    """Return what begins a cluster: each of its members makes the same by itself (C9).

    Whoever is made with other members, addresses, partitions, backups or copies to write to, or
    with another ``auto_join``, has another history, and is told so.
    """
    rows = assign([member for member, _ in members], partitions, backups)
    places = " ".join(f"{member}={address}" for member, address in sorted(members))
    if not auto_join:
        places += ", who enter when they are asked to"
    return Decision(
        1,
        (
            Begun(
                cluster=cluster,
                store=uuid5(cluster, "store"),
                history=uuid5(
                    cluster, f"history of {partitions}, {backups} and {min_in_sync} at {places}"
                ),
                members=tuple(sorted(members)),
                spaces=(Space(0, partitions, backups),),
                rows=tuple(map(tuple, rows)),
                min_in_sync=min_in_sync,
                auto_join=auto_join,
            ),
        ),
    )


def init_member(
    environment: Environment,
    directory: str,
    *,
    cluster: UUID,
    member: UUID,
    members: Sequence[tuple[UUID, str]],
    partitions: int,
    backups: int = 0,
    min_in_sync: int = 1,
    auto_join: bool = True,
) -> None:
    """Make the directory of a member that begins a cluster together with ``members``.

    ``members`` are ids and addresses, of this one, too.  Raises ``UsageError`` for a directory that
    has something in it, ``DiskError``, ``DiskFullError``.
    """
    check_partition_count(partitions)
    if not 0 <= backups < min(len(members), REPLICAS_MAX):
        raise UsageError(
            f"{backups} backups cannot be had with {len(members)} members",
            hint=f"Give at most {min(len(members), REPLICAS_MAX) - 1}. How many there are is said "
            "when a cluster begins, for good: with more of them it begins with more members.",
        )
    if not 1 <= min_in_sync <= backups + 1:
        raise UsageError(
            f"{min_in_sync} copies in sync cannot be had with {backups} backups",
            hint=f"Give from 1 to {backups + 1}, or more backups.",
        )
    if member not in dict(members):
        raise UsageError(f"member {member} is not among the members of its cluster")
    decision = first_decision(cluster, members, partitions, backups, min_in_sync, auto_join)
    [begun] = decision.changes
    assert isinstance(begun, Begun)
    membership = Membership(
        cluster=cluster, store=begun.store, history=begun.history, member=member
    )
    with _empty_place(environment, directory) as root:
        journal = Journal.create(root, identity=member.bytes, cluster=cluster.bytes)
        try:
            journal.append(noted_records([decision], None).records)
            journal.sync()
        finally:
            journal.close()
        create_store(environment, directory, partitions, membership)


@dataclass(frozen=True, slots=True, kw_only=True)
class Newcomer:
    """Who a new member of a cluster that runs will be: its name, its address, what it is for.

    ``seeds`` are addresses of members that may tell of the cluster.  Without a name its id is a
    random one.
    """

    seeds: tuple[str, ...]
    address: str
    name: str | None = None
    voter: bool = False


def cluster_at(environment: Environment, directory: str) -> UUID | None:
    """Return the cluster whose member's directory this is; None if it is not a member's."""
    disk = environment.disk
    if disk.kind(directory) is None or MANIFEST_NAME not in disk.directory(directory).names():
        return None
    cluster = manifest_at(disk.directory(directory)).cluster
    return None if cluster is None else UUID(cluster)


def join_member(
    environment: Environment, directory: str, *, member: UUID, topology: Topology
) -> None:
    """Make the directory of a member that joins a cluster of this topology, without data.

    Raises ``UsageError`` for a directory that has something in it, ``DiskError``,
    ``DiskFullError``.
    """
    assert topology.cluster is not None
    assert topology.store is not None
    assert topology.history is not None
    membership = Membership(
        cluster=topology.cluster, store=topology.store, history=topology.history, member=member
    )
    snapshot = snapshot_of(topology)
    with _empty_place(environment, directory) as root:
        journal = Journal.create(root, identity=member.bytes, cluster=topology.cluster.bytes)
        try:
            journal.snapshot(snapshot.index, snapshot.term, snapshot.data, ())
        finally:
            journal.close()
        create_store(environment, directory, len(topology.partitions), membership)


@contextmanager
def _empty_place(environment: Environment, directory: str) -> Iterator[Directory]:
    """Lock a directory that becomes a member's; made if need be, and empty."""
    check_place(environment, directory)
    disk = environment.disk
    if disk.kind(directory) is None:
        make_place(environment, directory)
    with translated_disk("making a member's directory"):
        _check_remains(environment, directory)  # before anything is written, a lock, too
    lock = take_lock(environment, directory)
    try:
        with translated_disk("making a member's directory"):
            _clear_remains(environment, directory)
            yield disk.directory(directory)
    finally:
        lock.release()


def _check_remains(environment: Environment, directory: str) -> set[str]:
    """Return what an interrupted ``init_member`` left; raise if there is anything else."""
    names = set(environment.disk.directory(directory).names())
    strangers = names - REMAINS - {"lock", "wal", "data", "readers", SERVER_LOG_NAME}
    if MANIFEST_NAME in names or strangers:
        what = "holds a store already" if MANIFEST_NAME in names else "is not empty"
        raise UsageError(
            f"{directory} {what}: it cannot become a member's directory",
            hint="Name an empty directory, or one that does not exist yet.",
        )
    return names & REMAINS


def _clear_remains(environment: Environment, directory: str) -> None:
    """Remove what an interrupted ``init_member`` left; raise for anything else."""
    remains = _check_remains(environment, directory)
    root = environment.disk.directory(directory)
    for name in sorted(remains):
        root.unlink(name)
    root.sync()


def open_member(environment: Environment, path: str, options: Options) -> OpenMember:
    """Open a member's directory for a new start of it.

    Raises ``UsageError`` for a directory that is not a member's, ``CorruptLogError`` if the
    configuration log is damaged, ``ClusterError`` if it is newer than the manifest, and as
    ``open_files`` does.
    """
    with translated_disk(f"opening {path}"):
        claim = claim_store(environment, path, partitions=None, create=False, as_member=True)
        try:
            files = open_files(claim, options, mapped=False)
            try:
                return _started(claim, files)
            except BaseException:
                files.close()
                raise
        except BaseException:
            claim.give_up()
            raise


def _started(claim: Claim, files: StoreFiles) -> OpenMember:
    manifest = files.manifest
    assert manifest.member is not None
    assert manifest.cluster is not None
    member, cluster = UUID(manifest.member), UUID(manifest.cluster)
    journal, recovered = Journal.open(
        claim.directory, identity=member.bytes, durable=manifest.config_durable
    )
    if journal is None:
        raise _damaged(claim, recovered.damage)
    try:
        known = restored(recovered)
        if known.damage is not None:
            raise _damaged(claim, known.damage)
        if known.topology.cluster != cluster:
            raise UsageError(
                f"the configuration log at {claim.path} is that of cluster "
                f"{known.topology.cluster}, and its store that of {cluster}",
                hint="Put the files of one member into one directory.",
            )
        last, fresh = (bytes.fromhex(text) for text in manifest.nonces or ("", ""))
        disk = DiskIdentity(member=member, boot=manifest.boot, last=last, fresh=fresh)
        disk = disk.started(known.topology, claim.environment.new_id())
        refusal = misfit(disk.credentials(known.topology.index), known.topology)
        if refusal is not None:
            raise ClusterError(
                f"the manifest at {claim.path} is older than the configuration log beside it: "
                f"{refusal}",
                hint=OLD_DISK_HINT,
            )
        files.manifests.put(
            replace(
                files.manifest,
                boot=disk.boot,
                nonces=[disk.last.hex(), disk.fresh.hex()],
                config_durable=journal.synced,
            )
        )
        return OpenMember(files=files, journal=journal, disk=disk, known=known, cluster=cluster)
    except BaseException:
        journal.close()
        raise


def _damaged(claim: Claim, damage: str | None) -> CorruptLogError:
    return CorruptLogError(
        f"the configuration log of the member at {claim.path} is damaged: {damage}",
        kind="damaged",
        segment=0,
        offset=0,
        hint="This member votes for nothing, as what it promised may be lost. Keep the directory, "
        "and let the other members run. If nobody has copies, write its data into a store: "
        f"`tidelog db salvage {claim.path} DIR`.",
    )
