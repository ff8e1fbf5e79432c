"""An embedded store becomes the first member of a new cluster (S9).

    its end is clean -> a configuration log beside it: one member, which has all -> the manifest

Partitions, maps with their ids, counters and epochs stay as they are, and so does the history.
The first start takes over from the store as it was: with itself, in the epochs that follow.

Invariants:

- The manifest comes last and alone makes it a member's: whatever ends before leaves a store of its
  own, with a file beside it that the next attempt replaces.
- Behind it the store is a member's for good: ``tidelog.open`` refuses it.
- The log goes on in a segment of its own, of which older versions know that it is a cluster's.

Left out: members that join it (``joining``), and copies for them, which come by themselves.
"""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from ...affinity.changes import Begun, Decision
from ...affinity.errors import UsageError
from ...affinity.folding import applied
from ...affinity.partitions import Space
from ...affinity.rows import REPLICAS_MAX
from ...affinity.topology import FIRST_NAMESPACE, KnownNamespace, Topology
from ...checkpoints.replay import State
from ...wal.format import CLUSTER, PREVIEW
from ..agreement.journal import Journal
from ..agreement.noting import snapshot_of
from ..files.manifest import Manifest
from ..store.claim import Claim, claim_store
from ..store.options import Options
from ..store.store_files import open_files
from ..system.disk_errors import translated_disk
from ..system.environment import Environment
from ..system.layout import CONFIG_LOG_NAME, NEW_CONFIG_LOG_NAME


def adopt_store(
    environment: Environment,
    directory: str,
    *,
    cluster: UUID,
    member: UUID,
    address: str,
    backups: int = 0,
    auto_join: bool = True,
    options: Options | None = None,
) -> Topology:
    """Make a store that was closed the first member of a new cluster; return what that begins as.

    Each partition is to have so many ``backups`` once there are members for them.  Raises
    ``UsageError`` for a store that was not closed in order or is a member's already, and for
    backups that cannot be; what opening it raises.
    """
    if not 0 <= backups < REPLICAS_MAX:
        raise UsageError(
            f"{backups} backups cannot be had", hint=f"Give from 0 to {REPLICAS_MAX - 1}."
        )
    with translated_disk(f"making {directory} a member's"):
        claim = claim_store(environment, directory, partitions=None, create=False)
        try:
            if claim.manifests.manifest.clean_end is None:
                raise UsageError(
                    f"{directory} was not closed in order: nobody has looked at the end of its log",
                    hint="Open it once, and close it; then try again.",
                )
            files = open_files(claim, options or Options(), mapped=False)
            try:
                topology = _first_topology(
                    files.manifest, files.state, cluster, member, address, backups, auto_join
                )
                _write_journal(claim, topology, member)
                files.manifests.put(
                    _of_member(
                        files.manifest,
                        environment.new_id().hex(),
                        files.writer.position,
                        cluster,
                        member,
                    )
                )
            finally:
                files.close()
        finally:
            claim.lock.release()
    return topology


def _first_topology(
    manifest: Manifest,
    state: State,
    cluster: UUID,
    member: UUID,
    address: str,
    backups: int,
    auto_join: bool,
) -> Topology:
    """Return a topology of one member that has everything as it is."""
    begun = Begun(
        cluster=cluster,
        store=UUID(manifest.store_id),
        history=UUID(manifest.history_id),
        members=((member, address),),
        spaces=(Space(0, manifest.partitions, backups),),
        rows=((member,),) * manifest.partitions,
        auto_join=auto_join,
    )
    topology = applied(Topology(), Decision(1, (begun,)))
    maps = {
        one.id: KnownNamespace(
            id=one.id,
            name=one.name,
            key_codec=one.key_codec,
            key_version=one.key_version,
            value_codec=one.value_codec,
            value_version=one.value_version,
            space=0,
        )
        for one in state.namespaces.values()
        if one.id >= FIRST_NAMESPACE
    }
    return replace(
        topology,
        partitions=tuple(
            replace(copies, epoch=epoch)
            for copies, epoch in zip(topology.partitions, state.epochs, strict=True)
        ),
        namespaces=maps,
        next_namespace=max(state.next_namespace, FIRST_NAMESPACE),
    )


def _write_journal(claim: Claim, topology: Topology, member: UUID) -> None:
    for name in {CONFIG_LOG_NAME, NEW_CONFIG_LOG_NAME} & {*claim.directory.names()}:
        claim.directory.unlink(name)  # of an attempt that did not come to its end
    claim.directory.sync()
    assert topology.cluster is not None
    journal = Journal.create(claim.directory, identity=member.bytes, cluster=topology.cluster.bytes)
    snapshot = snapshot_of(topology)
    try:
        journal.snapshot(snapshot.index, snapshot.term, snapshot.data, ())
    finally:
        journal.close()


def _of_member(manifest: Manifest, log_id: str, end: int, cluster: UUID, member: UUID) -> Manifest:
    """Return the manifest of the member that a store becomes, whose log goes on under a new id."""
    return replace(
        manifest,
        log_id=log_id,
        logs=[*manifest.logs, (log_id, end)],
        clean_end=end,
        required=manifest.required | CLUSTER | PREVIEW,
        cluster=cluster.hex,
        member=member.hex,
    )
