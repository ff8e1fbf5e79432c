"""Partitions that begin anew with nothing, as every copy of them was lost (S6).

    CLEAR -> what was there is removed by a checkpoint -> an ADMIT of nothing -> the author reports

Invariants:

- Nothing of an epoch that begins with nothing is reported before what was here has gone, from the
  log's fold and from the data file: no restart brings it back.

Left out: who decides that (``member``), and the takeover that follows (``groups``).
"""

from __future__ import annotations

import logging

import trio

from ...affinity.errors import TidelogError
from ...affinity.topology import Incarnation, PartitionCopies, Topology
from ...wal.records import AdmitRecord, ClearRecord
from .aside import Aside
from .log import NodeLog
from .taking_in import DataFile
from .tasks import Tasks

AGAIN_S = 1.0
"""Seconds behind a failure of the disk after which it is tried again."""

log = logging.getLogger("tidelog.node")


class Emptying:
    """The partitions that one incarnation lets begin with nothing."""

    def __init__(
        self, me: Incarnation, node_log: NodeLog, store: DataFile, aside: Aside, tasks: Tasks
    ) -> None:
        self._me = me
        self._aside = aside
        self._log = node_log
        self._store = store
        self._topology = Topology()
        self._begun: set[int] = set()
        self._ended: dict[int, int] = {}
        """The epochs for which that was done, by partition."""
        self._tasks = tasks

    def __repr__(self) -> str:
        return f"<Emptying of {self._me}: {sorted(self._begun)}>"

    def empties(self, partition: int) -> bool:
        """Tell whether what is here of a partition has to go before anything is reported."""
        return partition in self._begun

    def decided(self, topology: Topology) -> None:
        """Take over decisions that have taken effect here."""
        self._topology = topology
        newest = {loss.partition: loss.epoch for loss in topology.losses}
        for partition, lost_to in newest.items():
            copies = topology.partitions[partition]
            due = copies.author == self._me and copies.is_to_be_emptied
            due = due and not self._has_begun_anew(copies, lost_to)
            if due and partition not in self._begun:
                self._begun.add(partition)
                # If this incarnation ends nothing is reported, and the next one empties.
                self._tasks.begin(self._empty, partition)

    def _has_begun_anew(self, copies: PartitionCopies, lost_to: int) -> bool:
        """Tell whether what is here is younger than the loss: somebody may count on it.

        ``lost_to`` is the epoch that followed on the one that was lost.  That it is open need not
        be decided: who is alone tells nobody.
        """
        partition = copies.row.partition
        opened = self._log.state.epochs[partition] >= lost_to
        return opened or self._ended.get(partition) == copies.epoch

    async def _empty(self, partition: int) -> None:
        """Let a copy be a whole one that has nothing, for as long as that is wanted."""
        try:
            while (copies := self._topology.partitions[partition]).is_to_be_emptied:
                clear = ClearRecord(
                    partition=partition, admission=copies.changed, reason="every copy was lost"
                )
                nothing = AdmitRecord(
                    partition=partition,
                    admission=copies.changed,
                    epochs=((copies.epoch - 1, 1),),
                    lwm=0,
                    ranges=(),
                    hwm=0,
                    dropped=(),
                )
                try:
                    await self._aside.keep(partition)
                    await self._log.logged([clear])
                    await self._store.checkpoint("clear")
                    await self._log.logged([nothing])
                    self._ended[partition] = copies.epoch
                    return
                except (TidelogError, OSError) as error:
                    log.warning(
                        "node.empty_failed: Tidelog: the store %s cannot begin partition %d with "
                        "nothing now: %s",
                        self._log.path,
                        partition,
                        error,
                        extra={"event": "node.empty_failed"},
                    )
                    await trio.sleep(AGAIN_S)
        finally:
            self._begun.discard(partition)
