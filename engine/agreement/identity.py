"""Is this disk the one that the log knows?  Rule C7: boots and nonces tell an old image from it.

Every start of a member counts its boot up, and writes a fresh nonce beside the last one, before
anything is said.  The log records both when the incarnation joins.  A disk whose boot the log has
already, or that holds neither of two nonces that the log could have, is an old image, or a copy.

    the log has        the disk has             then
    boot 5, nonce n5   boot 6, n5 and n6        it is the same disk, started again
    boot 6, nonce n6   boot 6, n5 and m6        somebody else was boot 6: a copy
    boot 6, nonce n6   boot 7, n5 and m7        an image from before n6, started twice

A nonce that is not yet known to be recorded is used again: else a disk that crashed twice before it
heard of its own joining would hold none that the log has.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID, uuid5

from ...affinity.topology import Incarnation, Topology
from .messages import Credentials


def member_id(cluster: UUID, name: str) -> UUID:
    """Return the id of a member: the same wherever it is asked for."""
    return uuid5(cluster, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskIdentity:
    """What a member's disk says of it; durable before the first message of a boot."""

    member: UUID
    boot: int = 0
    last: bytes = b""
    fresh: bytes = b""

    @property
    def incarnation(self) -> Incarnation:
        """Who this disk speaks for since its last start."""
        return Incarnation(self.member, self.boot)

    def started(self, topology: Topology, nonce: bytes) -> DiskIdentity:
        """Return what to write at a start; ``topology`` is what the disk's own log tells."""
        known = topology.members.get(self.member)
        recorded = known is not None and known.nonce == self.fresh
        return DiskIdentity(
            member=self.member,
            boot=self.boot + 1,
            last=self.fresh if recorded else self.last,
            fresh=nonce if recorded else self.fresh or nonce,
        )

    def credentials(self, end: int) -> Credentials:
        """Return what is told to others; ``end`` is how far the disk's log reaches."""
        return Credentials(incarnation=self.incarnation, last=self.last, fresh=self.fresh, end=end)


def misfit(credentials: Credentials, topology: Topology) -> str | None:
    """Return why the log says that a disk is not the one it knows; None if it may be.

    One that has gone is still the one it knows: it may come back, under a new boot.
    """
    member, boot = credentials.incarnation
    known = topology.members.get(member)
    if known is not None and known.lost:
        return f"member {member} was declared lost: others go on without what this disk has"
    if known is None or is_known(credentials.incarnation, credentials.fresh, topology):
        return None
    if boot <= known.boot:
        return (
            f"member {member} was started {known.boot} times, and this disk counts {boot}: it is "
            "an old image, or a copy"
        )
    if known.nonce not in (credentials.last, credentials.fresh):
        return (
            f"this disk of member {member} does not know of its last start: it is an old image, or "
            "a copy"
        )
    return None


def is_known(incarnation: Incarnation, nonce: bytes, topology: Topology) -> bool:
    """Tell whether the log has recorded an incarnation, with this nonce, as its member's newest."""
    known = topology.members.get(incarnation.member)
    return known is not None and (known.boot, known.nonce) == (incarnation.boot, nonce)


def is_impostor(incarnation: Incarnation, nonce: bytes, topology: Topology) -> bool:
    """Tell whether somebody speaks for an incarnation that the log knows by another nonce."""
    known = topology.members.get(incarnation.member)
    return known is not None and known.boot == incarnation.boot and known.nonce != nonce
