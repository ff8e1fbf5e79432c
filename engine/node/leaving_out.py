"""Copies that are left out of the sets of this member: who says nothing, and who lacks something.

Invariants:

- A copy is accused for what it has not acknowledged within ``REPLICA_TIMEOUT_S`` (I3), and by the
  change of its row that this member knows: one that was made meanwhile refuses it.
- If the others will not have a copy left out, what it was to be left out of is let go: then one of
  the two is cut off, and whoever reaches more of the set goes on.

Left out: that the own log has failed, or waits (``stepping_back``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Protocol
from uuid import UUID

from ...affinity.changes import CopiesRemoved, Takeover
from ...affinity.topology import Incarnation, PartitionCopies, Topology
from ..agreement.coordinator import GIVE_IT_UP
from ..agreement.messages import Guard
from ..replication.opening import OpeningEpoch
from ..replication.streams import Streams
from .log import NodeLog
from .supplying import Suggestions

REPLICA_TIMEOUT_S = 5.0
"""Seconds in which a copy has to answer before the set goes on without it (I3)."""
ASK_AGAIN_S = 0.5

log = logging.getLogger("tidelog.node")


class Decisions(Suggestions, Protocol):
    """Who has changes decided, and lets go of what this member serves."""

    @property
    def is_led(self) -> bool:
        """Whether somebody is known to lead, who hears what is suggested."""

    def release(self, partitions: list[int], target: UUID | None = None) -> None:
        """Serve some partitions no more in their epochs; ``target`` shall, if it is listed."""


class LeavingOut:
    """What one incarnation asks for about copies of what it serves, or is about to open."""

    def __init__(
        self,
        me: Incarnation,
        log: NodeLog,
        streams: Streams,
        decisions: Decisions,
        topology: Callable[[], Topology],
    ) -> None:
        """``topology`` returns the decisions that have taken effect here."""
        self._me = me
        self._log = log
        self._streams = streams
        self._decisions = decisions
        self._topology = topology
        self._late: dict[int, list[int]] = {}
        """The partitions of each request of the last look."""
        self._anew: dict[int, int] = {}
        """The newest request for another epoch of each partition that is not open."""
        self._asked_at = float("-inf")

    def __repr__(self) -> str:
        return f"<LeavingOut of {self._me}: {len(self._late)} late, {len(self._anew)} begun anew>"

    def look(self, now: float) -> None:
        """Go on without copies that do not store what this member sends."""
        late: dict[tuple[Incarnation, frozenset[Incarnation]], list[int]] = {}
        for stream in self._streams:
            for copy in stream.late(now, REPLICA_TIMEOUT_S):
                late.setdefault((copy, frozenset(stream.followers)), []).append(stream.partition)
        if not late or now < self._asked_at + ASK_AGAIN_S:
            return
        self._asked_at = now
        self._late.clear()
        rows = self._topology().partitions
        for (copy, _), partitions in late.items():
            shown = [partition for partition in partitions if rows[partition].opened]
            guards = tuple(_guard(rows[partition]) for partition in shown)
            change = CopiesRemoved(copy=copy, partitions=tuple(shown))
            if shown:
                self._late[self._decisions.suggest(change, guards)] = shown

    def begin_without(self, takeover: OpeningEpoch, left_out: Collection[Incarnation]) -> None:
        """Ask for a new epoch, with the copies of the set that there are but for some."""
        topology = self._topology()
        copies = topology.partitions[takeover.partition]
        kept = tuple(
            copy for copy in copies.in_sync if copy not in left_out and topology.is_present(copy)
        )
        if not kept or not left_out:
            return
        change = Takeover(
            partition=copies.row.partition,
            epoch=copies.epoch + 1,
            author=copies.author if copies.author in kept else kept[0],
            in_sync=kept,
        )
        self._anew[takeover.partition] = self._decisions.suggest(change, (_guard(copies),))

    def begin_without_lacking(
        self, takeover: OpeningEpoch, lacking: Mapping[Incarnation, str]
    ) -> None:
        """Ask for an epoch without copies that lack what they must have (I6).

        An author that lacks it lets a copy go on that does not.
        """
        takeover.left_out = frozenset(lacking)
        for copy, what in lacking.items():
            self.tell_of_lack(f"partition {takeover.partition}: {copy} lacks {what}")
        whole = [copy for copy in takeover.copies.in_sync if copy not in lacking]
        if self._me not in lacking:
            self.begin_without(takeover, takeover.left_out)
        elif whole:
            self._decisions.release([takeover.partition], whole[0].member)

    def tell_of_lack(self, what: str) -> None:
        """Let the operator know that copies are not what they have to be."""
        log.error(
            "node.copy_lacks: Tidelog: copies of the store %s are not equal; one is left out, or "
            "its partition stays closed: %s",
            self._log.path,
            what,
            extra={"event": "node.copy_lacks"},
        )

    def refused(self, request: int, reason: str) -> None:
        """Hear that a change which was suggested is not made."""
        begun = [partition for partition, newest in self._anew.items() if newest == request]
        partitions = self._late.pop(request, begun)
        if reason == GIVE_IT_UP:
            self._decisions.release(partitions)


def _guard(copies: PartitionCopies) -> Guard:
    return Guard(copies.row.partition, copies.epoch, copies.changed)
