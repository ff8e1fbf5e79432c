"""A new cluster of what is left of one, when most of its members are lost for good (S8).

    the longest log of decisions that is left -> another cluster, whose members are those that are
    here -> a configuration log with that in each directory -> its manifest

Nothing of a partition changes: each goes on from the members of its last in-sync set that are here.
A partition with none of these is lost, and waits to be reset, as ever.  What was accepted somewhere
and is not known to be decided is taken: it may have been decided by those who are lost.

Cluster and history have new ids, so nobody takes it for the old one: members of that which turn up
are strangers.

Invariants:

- A majority of the members can decide by itself, so it is never rescued.
- A rescue that was cut short is carried on by the next one of the same directories.
- Of each directory the configuration log changes first, at once, and then the manifest; nothing
  else is touched.

Left out: partitions that are lost (``losing``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from uuid import UUID, uuid5

from ...affinity.errors import CorruptLogError, UsageError
from ...affinity.folding import applied
from ...affinity.topology import Incarnation, KnownMember, PartitionCopies, Topology
from ..agreement.journal import Journal
from ..agreement.leases import has_majorities
from ..agreement.noting import Restored, restored, snapshot_of
from ..store.claim import Claim, claim_store
from ..system.disk_errors import translated_disk
from ..system.environment import Environment
from ..system.layout import NEW_CONFIG_LOG_NAME


@dataclass(frozen=True, slots=True, kw_only=True)
class _Left:
    """A member's directory that is left, and what its configuration log tells."""

    claim: Claim
    member: UUID
    known: Restored

    @property
    def boot(self) -> int:
        """How often it was started."""
        return self.claim.manifests.manifest.boot

    @property
    def was_cut_short(self) -> bool:
        """Whether an attempt has changed the configuration log here, and not the manifest."""
        cluster = self.known.topology.cluster
        return cluster is not None and cluster.hex != self.claim.manifests.manifest.cluster

    @property
    def nonce(self) -> bytes:
        """What tells this disk from others."""
        return bytes.fromhex((self.claim.manifests.manifest.nonces or ("", ""))[1])


def rescue_members(environment: Environment, directories: Sequence[str]) -> Topology:
    """Make the members in some directories a new cluster, by themselves; return what it begins as.

    None of them may run.  Raises ``UsageError`` if they are not of one cluster, or a majority of it
    that needs no rescue, ``CorruptLogError`` for a configuration log that is damaged, and as
    ``claim_store`` does.
    """
    with ExitStack() as stack:
        left = [stack.enter_context(_left_in(environment, path)) for path in directories]
        members = {one.member: one for one in left}
        if len(members) < len(directories) or not members:
            raise UsageError("name the directory of each member that is left once")
        topology = _rescued(members)
        for one in left:
            _begin_again(one, topology)
    return topology


@contextmanager
def _left_in(environment: Environment, path: str) -> Iterator[_Left]:
    """Lock a member's directory, and read what its configuration log has."""
    with translated_disk(f"rescuing {path}"):
        claim = claim_store(environment, path, partitions=None, create=False, as_member=True)
        try:
            manifest = claim.manifests.manifest
            assert manifest.member is not None
            member = UUID(manifest.member)
            journal, recovered = Journal.open(
                claim.directory, identity=member.bytes, durable=manifest.config_durable
            )
            if journal is not None:
                journal.close()
            known = restored(recovered)
            if known.damage is not None:
                raise CorruptLogError(
                    f"the configuration log of the member at {path} is damaged: {known.damage}",
                    kind="damaged",
                    segment=0,
                    offset=0,
                    hint="Rescue the others without it. What it alone has may be read all the "
                    f"same: `tidelog db salvage {path} DIR`.",
                )
            yield _Left(claim=claim, member=member, known=known)
        finally:
            claim.lock.release()


def _rescued(members: Mapping[UUID, _Left]) -> Topology:
    """Return what the new cluster begins as: the same each time for the same members."""
    for one in members.values():
        if one.was_cut_short:
            return one.known.topology
    tops = [one.known.topology for one in members.values()]
    clusters = {top.cluster for top in tops}
    names = " and ".join(map(str, sorted(members)))
    for old in clusters:
        assert old is not None
        new = uuid5(old, f"rescued by {names}")
        begun = [top for top in tops if top.cluster == new]
        if begun and clusters <= {old, new}:
            return begun[0]  # of an attempt that was cut short
    if len(clusters) > 1:
        raise UsageError(
            f"these are members of {len(clusters)} clusters: {', '.join(map(str, clusters))}",
            hint="Name the directories of one of them.",
        )
    newest = max(tops, key=lambda top: top.index)
    expected = {known.member for known in newest.members.values() if not known.lost}
    if expected == members.keys() and newest.history == _history_of(newest.cluster):
        return newest  # all of it was done
    return _among(_with_accepted(newest, members), members, new, newest.baseline)


def _history_of(cluster: UUID | None) -> UUID:
    """Return the history with which a cluster begins that was rescued; no other one has it."""
    assert cluster is not None
    return uuid5(cluster, "history")


def _with_accepted(newest: Topology, members: Mapping[UUID, _Left]) -> Topology:
    """Return the longest list of decisions, and behind it what may have been one.

    Of what several have accepted only that of the highest term may have been decided (C2).
    """
    accepted = [
        one.known.voter.accepted
        for one in members.values()
        if one.known.voter.accepted is not None
        and one.known.voter.accepted.decision.index == newest.index + 1
    ]
    if not accepted:
        return newest
    return applied(newest, max(accepted, key=lambda acceptance: acceptance.term).decision)


def _among(
    old: Topology, members: Mapping[UUID, _Left], cluster: UUID, decided: tuple[UUID, ...]
) -> Topology:
    """Return the cluster that members make by themselves behind an old topology.

    ``decided`` is the baseline without what was only accepted: while it changes nothing is decided
    without a majority of both (C4).
    """
    strangers = sorted(members.keys() - old.members.keys())
    if strangers:
        raise UsageError(
            f"{strangers[0]} is not a member by what the others know",
            hint="Leave its directory out; it can join the new cluster with an empty one.",
        )
    declared = sorted(member for member in members if old.members[member].lost)
    if declared:
        raise UsageError(
            f"{declared[0]} was declared lost: it never comes back",
            hint="Leave its directory out; `tidelog db salvage` writes what it has into a store.",
        )
    voting = members.keys() & {*old.baseline}
    if has_majorities(members, (decided, old.baseline)):
        raise UsageError(
            f"{len(members.keys() & {*decided})} of the {len(decided)} members that vote are left, "
            "which is a majority: they need no rescue",
            hint="Start them; then declare the others lost: `tidelog cluster lose`.",
        )
    holding = [member for member in members if not old.members[member].voter]
    if not holding:
        raise UsageError(
            "none of these members holds data", hint="Name the directory of one that does."
        )
    return replace(
        old,
        cluster=cluster,
        history=_history_of(cluster),
        index=old.index + 1,
        baseline=tuple(sorted(voting or members)),
        members={
            member: _as_left(known, members.get(member)) for member, known in old.members.items()
        },
        partitions=tuple(_of_those_left(copies, members) for copies in old.partitions),
        min_in_sync=min(old.min_in_sync, len(holding)),
    )


def _as_left(known: KnownMember, left: _Left | None) -> KnownMember:
    """Return a member as the new cluster knows it: none of those that are not left comes back."""
    if left is None:
        return replace(known, present=False, lost=True, wanted=False)
    return replace(known, present=False, boot=left.boot, nonce=left.nonce, wanted=None)


def _of_those_left(copies: PartitionCopies, members: Mapping[UUID, _Left]) -> PartitionCopies:
    """Return the copies of a partition that are left of its set; all if none is."""
    in_sync = tuple(copy for copy in copies.in_sync if copy.member in members)
    author: Incarnation = copies.author
    if in_sync and author not in in_sync:
        author = in_sync[0]
    return replace(copies, in_sync=in_sync or copies.in_sync, author=author, moving=(), goal=())


def _begin_again(one: _Left, topology: Topology) -> None:
    """Let a directory be that of a member of the new cluster."""
    claim, manifest = one.claim, one.claim.manifests.manifest
    assert topology.cluster is not None
    assert topology.history is not None
    with translated_disk(f"rescuing {claim.path}"):
        if one.known.topology.cluster != topology.cluster:
            Journal.succeed(
                claim.directory,
                identity=one.member.bytes,
                cluster=topology.cluster.bytes,
                snapshot=snapshot_of(topology),
            )
        elif NEW_CONFIG_LOG_NAME in claim.directory.names():
            claim.directory.unlink(NEW_CONFIG_LOG_NAME)
        claim.manifests.put(
            replace(manifest, cluster=topology.cluster.hex, history_id=topology.history.hex)
        )
