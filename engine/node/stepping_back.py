"""A member whose own log is of no use lets others serve what they have, too.

Its disk hangs, or its log has failed (I6).  In the first case it catches up once the disk is back,
in the second it leaves the sets, as nothing may rest on that log any more.

Left out: how long the disk has not answered (``disk_watch``).
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from ...affinity.changes import MemberGone
from ...affinity.topology import Incarnation, PartitionCopies, Topology
from ..replication.streams import Streams
from .disk_watch import SLOW_S, DiskWatch
from .leaving_out import ASK_AGAIN_S, REPLICA_TIMEOUT_S, Decisions
from .log import NodeLog
from .partitions import Partitions
from .taking_over import TakingOver

log = logging.getLogger("tidelog.node")


class _Released(NamedTuple):
    """A partition that was let go, and for how long it is kept if it comes back."""

    epoch: int
    asked_at: float
    pause: float


class SteppingBack:
    """What one incarnation lets go of for its own sake."""

    def __init__(
        self,
        me: Incarnation,
        log: NodeLog,
        partitions: Partitions,
        streams: Streams,
        taking_over: TakingOver,
        decisions: Decisions,
    ) -> None:
        self._me = me
        self._log = log
        self._partitions = partitions
        self._streams = streams
        self._taking_over = taking_over
        self._decisions = decisions
        self._disk = DiskWatch(log)
        self._hangs = False
        self._released: dict[int, _Released] = {}
        """What was let go while the disk hangs."""
        self._withdrawn_at = float("-inf")

    def __repr__(self) -> str:
        return f"<SteppingBack of {self._me}: {self._disk}, {len(self._released)} let go>"

    def look(self, topology: Topology, now: float) -> None:
        """Let others serve what they have, too, while the disk does not answer.

        What is on its way stays so, and they find it as behind any takeover.  They wait for what
        this member has to report as long as for anybody (I3), and it catches up later.

        What comes back, as the disks of others hang, too, is let go half as often each time.
        """
        before, self._hangs = self._hangs, self._disk.look(now)
        if self._disk.seconds >= SLOW_S:
            self._excuse(self._disk.passed, now)
        if not self._hangs:
            self._released.clear()
            return
        shared = [
            copies.row.partition
            for copies in self._partitions.authored()
            if any(copy != self._me and topology.is_present(copy) for copy in copies.in_sync)
            and self._is_due(copies, now)
        ]
        if shared:
            self._decisions.release(shared)
        if not before:
            log.error(
                "node.disk_hangs: Tidelog: the disk of the store %s has not answered for %.0f s; "
                "others serve what they have, too: %d partitions",
                self._log.path,
                self._disk.seconds,
                len(shared),
                extra={"event": "node.disk_hangs"},
            )

    def _is_due(self, copies: PartitionCopies, now: float) -> bool:
        """Tell whether to let a partition go now, or to ask for that again; note it if so."""
        partition, epoch = copies.row.partition, copies.epoch
        known = self._released.get(partition)
        if known is None:
            self._released[partition] = _Released(epoch, now, ASK_AGAIN_S)
            return True
        is_back = known.epoch != epoch
        if now < known.asked_at + (known.pause if is_back else ASK_AGAIN_S):
            return False
        pause = min(2 * known.pause, REPLICA_TIMEOUT_S) if is_back else known.pause
        self._released[partition] = _Released(epoch, now, pause)
        return True

    def _excuse(self, seconds: float, now: float) -> None:
        """Let some seconds count against no copy: what they lack is not in the own log, either.

        One array may hang for all.  Else its disk would leave this member alone in its sets, and
        nobody could go on for it.
        """
        for stream in self._streams:
            stream.excuse(seconds, now)
        self._taking_over.excuse(seconds, now)

    def withdraw(self, topology: Topology, now: float) -> None:
        """Leave all sets that have others in them: nothing rests on this log any more (I6)."""
        for stream in self._streams:
            self._log.forsake(stream)
        if now < self._withdrawn_at + ASK_AGAIN_S:
            return
        self._withdrawn_at = now
        listed = [copies for copies in topology.partitions if self._me in copies.in_sync]
        shared = [copies for copies in listed if copies.in_sync[1:]]
        if shared and shared == listed:  # else there is what only this member can show
            self._decisions.suggest(MemberGone(incarnation=self._me))
        # Who serves nothing that others have is let go, and if it is not that is served at least.
        self._decisions.release([c.row.partition for c in shared if c.author == self._me])
