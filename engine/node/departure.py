"""How partitions leave a member by plan, and how the member itself does (K7).

    drain -> what is prepared is everywhere -> release -> takeover, in which this member is listed

Invariants:

- A partition that is handed over takes nothing new, and is released only behind what it took; what
  is still pending after ``DRAIN_S_MAX`` goes over as it is, and commits there (K4 c).
- Nothing is taken back: what was released is served again in a newer epoch only.

Left out: who serves next (``affinity.takeovers``), takeovers (``groups``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from uuid import UUID

import trio

from ...affinity.changes import MemberGone
from ...affinity.topology import PartitionCopies
from ..agreement.departures import HAND_OVER
from ..agreement.timing import Timing
from ..replication.streams import Streams
from .council import Council
from .log import NodeLog
from .partitions import Partitions

LOOK_S = 0.01
DRAIN_S_MAX = 5.0
"""Seconds that what is on its way gets before a partition is released all the same."""
HAND_OVER_S_MAX = 2 * DRAIN_S_MAX
"""Seconds that a member that stops waits for the others to serve what it did."""
HAND_OVERS_MAX = 3
"""Times that it does so: of members that all stop one may get what another one has served."""
GIVEN_BACK_MAX = 8
"""Partitions that are given back at once: clients wait meanwhile."""
ASK_S_MAX = 2.0
"""Seconds that a member that stops waits for the others to take note of it."""


class Departure:
    """What one incarnation gives away by plan."""

    def __init__(
        self,
        log: NodeLog,
        partitions: Partitions,
        streams: Streams,
        council: Council,
        timing: Timing,
    ) -> None:
        self._log = log
        self._partitions = partitions
        self._streams = streams
        self._council = council
        self._timing = timing
        self.begun = False
        """Whether this incarnation was told to end: it leaves, and does not come back."""

    def __repr__(self) -> str:
        return f"<Departure of {self._council.agreement.me}>"

    async def hand_over(self, copies: Collection[PartitionCopies], target: UUID | None) -> None:
        """Let another copy serve partitions, ``target`` if it is listed; return at their opening.

        In an epoch that is not the newest any more there is nothing to do.
        """
        self._partitions.drain(copies)
        with trio.move_on_after(DRAIN_S_MAX if self._log.failure is None else 0):
            await self._log.passed()
            await self._until(lambda: not any(map(self._has_pending, copies)))
        self._council.release([one.row.partition for one in copies if self._is_newest(one)], target)
        await self._until(lambda: all(map(self._is_opened_anew, copies)))

    async def give_back(self) -> None:
        """Let the first of each row, or goal, serve it once it can, some at a time; for ever."""
        while True:
            await trio.sleep(self._timing.swap_pause)
            for target, copies in self._to_give_back().items():
                with trio.move_on_after(HAND_OVER_S_MAX):
                    await self.hand_over(copies[:GIVEN_BACK_MAX], target)

    def _to_give_back(self) -> dict[UUID, list[PartitionCopies]]:
        """Return the partitions that others shall serve, and can, by who that is."""
        found: dict[UUID, list[PartitionCopies]] = {}
        if self._partitions.draining or self._log.failure is not None:
            return found
        for copies in self._partitions.authored():
            partition, first = copies.row.partition, copies.first
            if first != copies.author.member and self._partitions.is_open(partition):
                stream = self._streams.get(partition)
                if copies.has(first) and stream is not None and stream.has_nearly_all(first):
                    found.setdefault(first, []).append(copies)
        return found

    async def leave(self) -> None:
        """Hand over what others have, answer what is under way, and tell the others.

        If too few would stay nothing is handed over: nobody could decide who serves it.
        """
        partitions, self.begun = self._partitions, True
        if any(map(_is_shared, partitions.authored())) and await self._ask() == HAND_OVER:
            with trio.move_on_after(HAND_OVER_S_MAX):
                for _ in range(HAND_OVERS_MAX):  # others that stop may hand over to this one
                    await self.hand_over([*filter(_is_shared, partitions.authored())], None)
        partitions.draining = True
        with trio.move_on_after(DRAIN_S_MAX):
            await self._log.written()
            await self._until(lambda: not self._log.undecided)
        if not any(map(_is_shared, partitions.authored())):
            await self._ask()

    async def _ask(self) -> str | None:
        """Ask to be out of the topology; return why that is not decided, None if nobody says."""
        gone = MemberGone(incarnation=self._council.agreement.me)
        with trio.move_on_after(ASK_S_MAX):
            return (await self._council.propose(gone)).reason
        return None

    def _has_pending(self, copies: PartitionCopies) -> bool:
        stream = self._streams.get(copies.row.partition)
        return stream is not None and stream.epoch == copies.epoch and bool(stream.waiting())

    def _is_newest(self, copies: PartitionCopies) -> bool:
        topology = self._council.agreement.topology
        return topology.partitions[copies.row.partition].epoch == copies.epoch

    def _is_opened_anew(self, copies: PartitionCopies) -> bool:
        newest = self._council.agreement.topology.partitions[copies.row.partition]
        # That an epoch is open is told to nobody if its author is alone.
        return newest.epoch > copies.epoch and (newest.opened or not _is_shared(newest))

    @staticmethod
    async def _until(true: Callable[[], bool]) -> None:
        while not true():
            await trio.sleep(LOOK_S)


def _is_shared(copies: PartitionCopies) -> bool:
    return len(copies.in_sync) > 1
