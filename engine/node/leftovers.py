"""Copies that this member has and shall not hold any more: they are cleared, in the log.

A copy is left over once it stands in no row, no goal and no in-sync set, and catches up no more: a
row can come to others while one of its members is on its way back, and then it follows its primary
until that lets it go.  It is cleared only when all members that are present know the decision that
took it out (MIGRATIONS M9): whoever has to go on from an older log still finds it.

Left out: removing what was cleared, which the next checkpoint does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ...affinity.topology import Incarnation, PartitionCopies, Topology
from ...checkpoints.copies import CopyState
from ...wal.records import ClearRecord
from .aside import Aside
from .log import NodeLog

LOOK_AGAIN_S = 1.0


class Knowledge(Protocol):
    """Who knows what the others know."""

    @property
    def known_by_all(self) -> int:
        """Up to which index all members that are present have durably what was decided."""


class Leftovers:
    """The copies of one incarnation that nobody wants it to have."""

    def __init__(
        self,
        me: Incarnation,
        log: NodeLog,
        knowledge: Knowledge,
        aside: Aside,
        now: Callable[[], float],
    ) -> None:
        self._me = me
        self._log = log
        self._knowledge = knowledge
        self._aside = aside
        self._now = now
        self._looked = float("-inf")
        self._topology = Topology()
        self._found: dict[int, int] = {}
        """The partitions that are left over, with the decision that said so last."""

    def __repr__(self) -> str:
        return f"<Leftovers of {self._me}: {len(self._found)} partitions>"

    def decided(self, before: Topology, topology: Topology) -> None:
        """Take over decisions that have taken effect here."""
        self._topology = topology
        known = before.partitions
        for partition, copies in enumerate(topology.partitions):
            if partition < len(known) and known[partition] is copies:
                continue
            if self._is_held(copies):
                self._found.pop(partition, None)
            else:
                self._found[partition] = copies.changed

    def _is_held(self, copies: PartitionCopies) -> bool:
        wanted = copies.may_hold(self._me.member) or copies.has(self._me.member)
        return wanted or copies.admission(self._me) is not None

    def tick(self) -> None:
        """Clear what all know to be left over."""
        if not self._found or self._now() < self._looked + LOOK_AGAIN_S:
            return
        self._looked = self._now()
        everybody = self._knowledge.known_by_all
        due = [
            partition
            for partition, index in self._found.items()
            if index <= everybody
            and self._is_elsewhere(partition)
            and self._aside.has_kept(partition)
        ]
        records = [
            ClearRecord(
                partition=partition,
                admission=self._found[partition],
                reason="others hold it",
            )
            for partition in due
            if self._has(partition)
        ]
        for partition in due:
            del self._found[partition]
        if records:
            self._log.put_records(records, _nothing)

    def _is_elsewhere(self, partition: int) -> bool:
        """Tell whether somebody that counts is there: else this may be all that is left (S6)."""
        copies, present = self._topology.partitions[partition], self._topology.present
        return any(copy in present for copy in copies.in_sync)

    def _has(self, partition: int) -> bool:
        """Tell whether there is something of a partition here that counts."""
        state = self._log.state
        here = state.copies.states.get(partition, CopyState.OWNING)
        return state.counters[partition].hwm > 0 and here is not CopyState.NOT_WHOLE


def _nothing() -> None:
    """The next checkpoint goes on with it."""
