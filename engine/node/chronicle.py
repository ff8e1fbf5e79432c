"""What an operator reads in the log of a member: who leads, who is there, and what is served here.

    04.310  n1:7400 (4f0e8a11) hears that n2:7400 (b0c5d2e1) is gone: others are to serve ...
    04.311  n1:7400 (4f0e8a11) is to open 2 partitions by decision 14, of 8 that it serves then: ...
    04.395  n1:7400 (4f0e8a11) has opened 2 partitions after 0.084 s

A line for each change, never for each request: a decision is compared with the one before, and
leases and coordinators with what they were at the last look.

Left out: what went wrong (whoever meets it logs that), and exchanges as data (``exchanges``).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from itertools import zip_longest
from uuid import UUID

from ...affinity.topology import KnownMember, Topology
from ..agreement.journal_format import NO_TERM, Term
from ..agreement.machine import Agreement
from .partitions import Partitions

TOLD_MAX = 16
"""Partitions that a line names."""
STARTS_S = 5.0
"""Seconds from its first look on in which a member that starts need not reach a majority yet."""

log = logging.getLogger("tidelog.node")


class Chronicle:
    """What one incarnation has told of its cluster."""

    def __init__(
        self, path: str, address: str, agreement: Agreement, partitions: Partitions
    ) -> None:
        """``address`` is where others reach this member, of which no decision may know yet."""
        self._path = path
        self._address = address
        self._agreement = agreement
        self._partitions = partitions
        self._me = agreement.me
        self._topology = agreement.topology
        self._served: dict[int, int] = {}
        """The epochs of the partitions that the log gives to this incarnation."""
        self._led: tuple[Term, bool] = NO_TERM, False
        """Which term was followed at the last look, and whether this member led in it."""
        self._has_lease = False
        self._has_majority = True
        self._looked_first: float | None = None
        self._starts = True
        """Whether it has never reached a majority, and need not have."""
        self._opening: list[int] = []
        self._opening_since = 0.0
        self._has_begun = False

    # -------------------------------------------------------------- its life

    def begun(self) -> None:
        """Tell who this is."""
        self._has_begun = True
        log.info(
            "node.begun: Tidelog: the member at %s begins as boot %d of %s",
            self._path,
            self._me.boot,
            self._own_name,
            extra={"event": "node.begun"},
        )

    def gone(self) -> None:
        """Tell that the others go on without this incarnation."""
        log.warning(
            "node.gone: Tidelog: %s was declared gone by the others, who did not hear it: the "
            "store %s begins again, as another boot",
            self._own_name,
            self._path,
            extra={"event": "node.gone"},
        )

    def leaves(self) -> None:
        """Tell that it was told to end."""
        log.info(
            "node.leaves: Tidelog: %s is told to end, and lets others serve",
            self._own_name,
            extra={"event": "node.leaves"},
        )

    def ended(self) -> None:
        """Tell that it holds its files no more, if it has begun."""
        if self._has_begun:
            log.info(
                "node.ended: Tidelog: %s has ended", self._own_name, extra={"event": "node.ended"}
            )

    # -------------------------------------------------------------- what it sees

    def decided(self, topology: Topology, now: float) -> None:
        """Tell what a topology that has taken effect here changes."""
        before, self._topology = self._topology, topology
        for member in sorted({*before.members, *topology.members} - {self._me.member}):
            what = _became(before.members.get(member), topology.members.get(member))
            if what:
                log.info(
                    "node.member: Tidelog: %s hears that %s %s",
                    self._own_name,
                    self._name(member, before),
                    what,
                    extra={"event": "node.member"},
                )
        if topology.baseline != before.baseline:
            named = ", ".join(self._name(member) for member in topology.baseline)
            log.info(
                "node.baseline: Tidelog: %s hears that these are the baseline: %s",
                self._own_name,
                named,
                extra={"event": "node.baseline"},
            )
        if self._agreement.leads:
            self._tell_copies(before, topology)
        fresh, lost = self._share_of(before, topology)
        if lost:
            self._tell_served(f"serves {_count(lost)} no more: {_named(lost)}")
        if fresh:
            if not self._opening:
                self._opening_since = now
            count = len(self._served)
            self._tell_served(
                f"is to open {_count(fresh)} by decision {topology.index}, "
                f"of {count} that it serves then: {_named(fresh)}"
            )
        if fresh or lost:
            self._opening = sorted({*fresh, *self._opening} & self._served.keys())

    def look(self, now: float) -> None:
        """Tell of coordinators and leases that are others now, and of what has been opened."""
        led = self._agreement.coordinator, self._agreement.leads
        if led != self._led:
            self._led = led
            self._tell_led(*led)
        has_majority = self._agreement.reaches_majority(now)
        if self._looked_first is None:
            self._looked_first = now
        if has_majority or now >= self._looked_first + STARTS_S:
            self._starts = False
        if has_majority != self._has_majority and not self._starts:
            self._has_majority = has_majority
            log.log(
                logging.INFO if has_majority else logging.WARNING,
                "node.majority: Tidelog: %s, with the store %s, reaches %s majority of %d members",
                self._own_name,
                self._path,
                "a" if has_majority else "no",
                len(self._topology.baseline),
                extra={"event": "node.majority"},
            )
        has_lease = now < self._agreement.lease.end
        if has_lease != self._has_lease:
            self._has_lease = has_lease
            log.info(
                "node.lease: Tidelog: %s %s",
                self._own_name,
                _LEASE[has_lease],
                extra={"event": "node.lease"},
            )
        if self._opening and all(map(self._partitions.is_open, self._opening)):
            seconds, count = now - self._opening_since, _count(self._opening)
            self._opening = []
            self._tell_served(f"has opened {count} after {seconds:.3f} s")

    # -------------------------------------------------------------- how it is said

    def _share_of(self, before: Topology, after: Topology) -> tuple[list[int], list[int]]:
        """Take over what the log gives here; return what is in another epoch, and what is not.

        What a decision leaves as it was is the same object: there may be 32,768 partitions.
        """
        fresh, lost = [], []
        for partition, (old, new) in enumerate(zip_longest(before.partitions, after.partitions)):
            if old is new:
                continue
            mine = self._served.pop(partition, None)
            if new is not None and new.author == self._me:
                self._served[partition] = new.epoch
                if mine != new.epoch:
                    fresh.append(partition)
            elif mine is not None:
                lost.append(partition)
        return fresh, lost

    def _tell_copies(self, before: Topology, after: Topology) -> None:
        """Tell which members have copies that count no more, and which have more that do."""
        out, into = Counter[UUID](), Counter[UUID]()
        for old, new in zip(before.partitions, after.partitions, strict=False):
            if old is not new and old.in_sync != new.in_sync:
                had, has = ({copy.member for copy in one.in_sync} for one in (old, new))
                out.update(had - has)
                into.update(has - had)
        for counts, text in ((out, "counts no more for"), (into, "counts for")):
            for member, count in sorted(counts.items()):
                log.info(
                    "node.copies: Tidelog: %s decides that the copy of %s %s %d partition%s%s",
                    self._own_name,
                    self._name(member, before),
                    text,
                    count,
                    "s" * (count != 1),
                    " more" * (counts is into),
                    extra={"event": "node.copies"},
                )

    def _tell_led(self, term: Term, leads: bool) -> None:
        if term.member == self._me.member:
            what = "leads" if leads else "leads no more"
        else:
            what = f"is led by {self._name(term.member)}"
        log.info(
            "node.led: Tidelog: %s %s, in term %d",
            self._own_name,
            what,
            term.number,
            extra={"event": "node.led"},
        )

    def _tell_served(self, what: str) -> None:
        log.info(
            "node.serves: Tidelog: %s %s",
            self._own_name,
            what,
            extra={"event": "node.serves"},
        )

    @property
    def _own_name(self) -> str:
        known = self._topology.members.get(self._me.member)
        return _shown(known.address if known else self._address, self._me.member)

    def _name(self, member: UUID, before: Topology | None = None) -> str:
        known = self._topology.members.get(member)
        if known is None and before is not None:
            known = before.members.get(member)
        return _shown(known.address, member) if known else str(member)


_LEASE = {
    True: "has a lease: it may answer for what it has opened",
    False: "has no lease any more: it answers for nothing until a coordinator gives it one",
}


def _shown(address: str, member: UUID) -> str:
    return f"{address} ({str(member)[:8]})"


def _became(before: KnownMember | None, after: KnownMember | None) -> str | None:
    """Return what happened to a member; None if nothing did that anybody waits for."""
    if after is None:
        return "is not a member any more"
    if after.lost:
        return None if before and before.lost else "is lost: its disk counts no more"
    if before is None:
        if after.present:
            return f"has joined, as boot {after.boot}"
        return "is away" if after.boot else "is to join"
    if after.present and not (before.present and before.incarnation == after.incarnation):
        return f"is there, as boot {after.boot}"
    if before.present and not after.present:
        return "is gone: others are to serve what it did"
    if after.wanted is not before.wanted and after.wanted is not None:
        return f"is asked to {'be of' if after.wanted else 'leave'} the baseline"
    return None


def _count(partitions: Sequence[int]) -> str:
    return f"{len(partitions)} partition{'s' * (len(partitions) != 1)}"


def _named(partitions: Sequence[int]) -> str:
    named = ", ".join(map(str, partitions[:TOLD_MAX]))
    return named + " and others" * (len(partitions) > TOLD_MAX)
