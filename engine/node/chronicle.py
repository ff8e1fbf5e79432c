"""What an operator reads in the log of a member: who leads, who is there, and what is served here.

    04.310  n1:7400 (4f0e8a11) hears that n2:7400 (b0c5d2e1) is gone: others serve what it did
    04.311  n1:7400 (4f0e8a11) is to open 2 partitions, of 8 that it serves then: 3, 9
    04.395  n1:7400 (4f0e8a11) has opened 2 partitions after 0.084 s

A line for each change, never for each request: a decision is compared with the one before, and
leases and coordinators with what they were at the last look.

Left out: what went wrong (whoever meets it logs that), and exchanges as data (``exchanges``).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from uuid import UUID

from ...affinity.topology import Incarnation, KnownMember, Topology
from ..agreement.journal_format import NO_TERM
from ..agreement.machine import Agreement
from .partitions import Partitions

TOLD_MAX = 16
"""Partitions that a line names."""

log = logging.getLogger("tidelog.node")


class Chronicle:
    """What one incarnation has told of its cluster."""

    def __init__(self, path: str, agreement: Agreement, partitions: Partitions) -> None:
        self._path = path
        self._agreement = agreement
        self._partitions = partitions
        self._me = agreement.me
        self._topology = agreement.topology
        self._coordinator = NO_TERM
        self._has_lease = False
        self._opening: list[int] = []
        self._opening_since = 0.0

    # -------------------------------------------------------------- its life

    def begun(self) -> None:
        """Tell who this is."""
        log.info(
            "node.begun: Tidelog: the member at %s begins as boot %d of %s",
            self._path,
            self._me.boot,
            self._name(self._me.member),
            extra={"event": "node.begun"},
        )

    def gone(self) -> None:
        """Tell that the others go on without this incarnation."""
        log.warning(
            "node.gone: Tidelog: the member at %s was declared gone by the others, who did not "
            "hear it: it begins again, as another boot",
            self._path,
            extra={"event": "node.gone"},
        )

    def leaves(self) -> None:
        """Tell that it was told to end."""
        log.info(
            "node.leaves: Tidelog: %s is told to end, and lets others serve",
            self._name(self._me.member),
            extra={"event": "node.leaves"},
        )

    def ended(self) -> None:
        """Tell that it holds its files no more."""
        log.info(
            "node.ended: Tidelog: %s has ended",
            self._name(self._me.member),
            extra={"event": "node.ended"},
        )

    # -------------------------------------------------------------- what it sees

    def decided(self, topology: Topology, now: float) -> None:
        """Tell what a topology that has taken effect here changes."""
        before, self._topology = self._topology, topology
        if topology.members is not before.members:
            for member in sorted({*before.members, *topology.members} - {self._me.member}):
                what = _became(before.members.get(member), topology.members.get(member))
                if what:
                    log.info(
                        "node.member: Tidelog: %s hears that %s %s",
                        self._name(self._me.member),
                        self._name(member, before),
                        what,
                        extra={"event": "node.member"},
                    )
        if topology.partitions is not before.partitions:
            self._tell_share(_served(before, self._me), _served(topology, self._me), now)

    def look(self, now: float) -> None:
        """Tell of coordinators and leases that are others now, and of what has been opened."""
        coordinator, has_lease = self._agreement.coordinator, now < self._agreement.lease.end
        if coordinator != self._coordinator:
            self._coordinator = coordinator
            leads = coordinator.member == self._me.member
            what = "leads" if leads else f"is led by {self._name(coordinator.member)}"
            log.info(
                "node.led: Tidelog: %s %s, in term %d",
                self._name(self._me.member),
                what,
                coordinator.number,
                extra={"event": "node.led"},
            )
        if has_lease != self._has_lease:
            self._has_lease = has_lease
            log.info(
                "node.lease: Tidelog: %s %s",
                self._name(self._me.member),
                _LEASE[has_lease],
                extra={"event": "node.lease"},
            )
        if self._opening and all(map(self._partitions.is_open, self._opening)):
            seconds, count = now - self._opening_since, _count(self._opening)
            self._opening = []
            self._tell_served(f"has opened {count} after {seconds:.3f} s")

    def _tell_share(self, before: dict[int, int], after: dict[int, int], now: float) -> None:
        lost = sorted(before.keys() - after.keys())
        if lost:
            self._tell_served(f"serves {_count(lost)} no more: {_named(lost)}")
        fresh = sorted(one for one in after if after[one] != before.get(one))
        if fresh:
            self._opening_since = now
            self._tell_served(
                f"is to open {_count(fresh)}, of {len(after)} that it serves then: {_named(fresh)}"
            )
        self._opening = sorted({*fresh, *self._opening} & after.keys())

    def _name(self, member: UUID, before: Topology | None = None) -> str:
        known = self._topology.members.get(member)
        if known is None and before is not None:
            known = before.members.get(member)
        return f"{known.address} ({str(member)[:8]})" if known else str(member)

    def _tell_served(self, what: str) -> None:
        log.info(
            "node.serves: Tidelog: %s %s",
            self._name(self._me.member),
            what,
            extra={"event": "node.serves"},
        )


_LEASE = {
    True: "has a lease: it may answer for what it has opened",
    False: "has no lease any more: it answers for nothing until a coordinator gives it one",
}


def _served(topology: Topology, me: Incarnation) -> dict[int, int]:
    """Return the epochs of the partitions that the log gives to an incarnation."""
    return {
        copies.row.partition: copies.epoch for copies in topology.partitions if copies.author == me
    }


def _became(before: KnownMember | None, after: KnownMember | None) -> str | None:
    """Return what happened to a member; None if nothing did that anybody waits for."""
    if after is None:
        return "is not a member any more"
    if before is None:
        return "has joined" if after.present else "is to join"
    if after.lost and not before.lost:
        return "is lost: its disk counts no more"
    if after.present and not (before.present and before.incarnation == after.incarnation):
        return f"is there, as boot {after.boot}"
    if before.present and not after.present:
        return "is gone: others serve what it did"
    return None


def _count(partitions: Sequence[int]) -> str:
    return f"{len(partitions)} partition{'s' * (len(partitions) != 1)}"


def _named(partitions: Sequence[int]) -> str:
    named = ", ".join(map(str, partitions[:TOLD_MAX]))
    return named + " and others" * (len(partitions) > TOLD_MAX)
