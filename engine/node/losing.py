"""Partitions that were lost: how they go on, and what is told of them (S6).

Somebody asks a member to go on with one, from the copy there or with nothing.  Or the policy is to
``ignore`` losses: then each member that holds data asks by itself, and says what it has; the
coordinator waits for all of them, and takes the best.  Whose disk has failed says nothing: no epoch
would open there.

Left out: what is lost (``affinity.topology``), and when a reset is decided
(``agreement.coordinator``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import trio

from ...affinity.changes import PartitionReset
from ...affinity.errors import UsageError
from ...affinity.topology import Incarnation, Topology
from ..store.checkpointer import Checkpointer
from .council import Council
from .deciding import Deciding, Hear
from .log import NodeLog

LOOK_AGAIN_S = 5.0
"""Seconds after which what was refused is asked for again."""
AT_ONCE_MAX = 64
"""Partitions that a member asks for at the same time."""


class Losing:
    """The partitions that were lost, as one incarnation sees them."""

    def __init__(
        self,
        me: Incarnation,
        log: NodeLog,
        council: Council,
        deciding: Deciding,
        checkpointer: Checkpointer,
    ) -> None:
        self._me = me
        self._checkpointer = checkpointer
        self._log = log
        self._council = council
        self._deciding = deciding
        self._topology = Topology()
        self._news = trio.Event()

    def __repr__(self) -> str:
        return f"<Losing of {self._me}: {len(self._topology.lost)} lost>"

    def decided(self, topology: Topology) -> None:
        """Take over decisions that have taken effect here."""
        self._topology = topology
        news, self._news = self._news, trio.Event()
        news.set()

    # -------------------------------------------------------------- what is asked for

    def reset(self, partition: int, empty: bool, deadline: float, done: Hear) -> None:
        """Go on with a partition that was lost: from the copy here, or with nothing.

        ``UsageError`` if it is not lost, there is no whole copy here, or this disk has failed.
        """
        if partition not in self._topology.lost:
            raise UsageError(
                f"partition {partition} is not lost: a copy that counts is there, or may come back",
                hint="Start who has it; or, if those disks are gone, declare their members lost.",
            )
        if not empty and not self._has(partition):
            raise UsageError(
                f"there is no copy of partition {partition} at this member that is whole",
                hint="Name another member, or let the partition begin with nothing.",
            )
        if (failure := self._failure(empty)) is not None:
            raise UsageError(
                f"this member cannot go on with partition {partition}: its disk failed: {failure}",
                hint="Check the disk, and start this member again; or name another one.",
            )
        self._deciding.change(self._change(partition, empty, self._time()), deadline, done)

    def told(self) -> Mapping[str, Any]:
        """Return which partitions are lost, what became of those that were, and the policy."""
        topology = self._topology
        history = topology.told_history
        return {
            "decided": topology.index,
            "policy": topology.loss_policy,
            "history": None if history is None else history.bytes,
            "lost": list(topology.lost),
            "losses": [
                [
                    loss.index, loss.partition, loss.before, loss.epoch,
                    loss.author.member.bytes, loss.author.boot, loss.opened, loss.upto,
                ]
                for loss in topology.losses
            ],
            "resolved": [
                [
                    one.index, one.tx_id, one.attempt, one.commits, one.by_hand,
                    list(one.partitions), list(one.missing),
                ]
                for one in topology.resolutions
            ],
        }  # fmt: skip

    def _has(self, partition: int) -> bool:
        """Tell whether there is a whole copy here, with anything in it, that is here to stay."""
        state = self._log.state
        return self._log.has_whole(partition) and state.counters[partition].hwm > 0

    def _failure(self, empty: bool) -> BaseException | None:
        """Return what keeps a partition from opening here: a failed log, or data file.

        Only who begins with nothing has to write the data file for it.
        """
        return self._log.failure or (self._checkpointer.doubtful if empty else None)

    def _time(self) -> int:
        return max(self._log.state.time, self._log.environment.clock())

    def _change(self, partition: int, empty: bool, time: int) -> PartitionReset:
        state = self._log.state
        return PartitionReset(
            partition=partition,
            epoch=self._topology.partitions[partition].epoch + 1,
            author=self._me,
            empty=empty,
            opened=0 if empty else state.epochs[partition],
            upto=0 if empty else state.counters[partition].hwm,
            time=time,
        )

    # -------------------------------------------------------------- what goes on by itself

    async def run(self) -> None:
        """Ask for what is lost, while that is the policy, until cancelled.

        What is asked for already is not asked for anew with each decision: it would wait twice.
        """
        while True:
            time = self._time()
            offers = self._offers(time)
            async with trio.open_nursery() as nursery:
                for change in offers:
                    nursery.start_soon(partial(self._council.propose, change))
                with trio.move_on_after(LOOK_AGAIN_S if offers else math.inf):
                    while self._offers(time) == offers:
                        await self._news.wait()
                nursery.cancel_scope.cancel()

    def _offers(self, time: int) -> list[PartitionReset]:
        """Return what this member has of partitions that go on by themselves."""
        topology, me = self._topology, self._me.member
        if topology.loss_policy != "ignore" or me not in topology.baseline:
            return []
        if self._me not in topology.present:
            return []  # nobody goes on with anything before it is there
        if topology.members[me].voter:
            return []
        found = ((p, not self._has(p)) for p in topology.lost[:AT_ONCE_MAX])
        return [self._change(p, empty, time) for p, empty in found if self._failure(empty) is None]
