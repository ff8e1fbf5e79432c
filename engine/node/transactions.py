"""Transactions of several groups, at one member: as near member, as primary, as settler.

Snapshots of all groups, too, since they go by the same words.

Left out: what they do (``near``, ``participating``, ``settling``, ``in_doubt``;
``open_transactions``, ``plain_locks``; ``snapshots``, ``pinning``).
"""

from __future__ import annotations

from collections.abc import Callable

from ...affinity.topology import Incarnation, Topology
from ..net.frames import Message
from ..net.kinds import BY_NUMBER
from ..replication.streams import Streams
from ..store.store_files import StoreFiles
from .commit_locks import CommitLocks
from .group_locks import GroupLocks
from .in_doubt import InDoubt
from .log import NodeLog
from .near import Near
from .open_transactions import OpenTransactions
from .outflow import Outflow
from .participating import Participating
from .partitions import Partitions
from .pinning import Pinning
from .plain_locks import PlainLocks
from .post import Post
from .settling import Settling
from .snapshots import Snapshots
from .tasks import Tasks
from .tx_history import TxHistory
from .tx_messages import KINDS, told_of
from .works import Works


class Transactions:
    """The roles of one incarnation, and what they hear."""

    def __init__(
        self,
        me: Incarnation,
        files: StoreFiles,
        log: NodeLog,
        partitions: Partitions,
        streams: Streams,
        outflow: Outflow,
        now: Callable[[], float],
        reached: Callable[[str], None],
        tasks: Tasks,
    ) -> None:
        self.locks = GroupLocks(now)
        post = Post(me, outflow)
        self.near = Near(me, post, log.new_id, now, reached)
        self.open = OpenTransactions(me, log.state, partitions, post, now)
        self.plain = PlainLocks(log, partitions, self.locks, post, now)
        self.works = Works()
        self.commit_locks = CommitLocks(
            self.works, log, partitions, streams, self.locks, self.plain, post, now
        )
        self.participating = Participating(
            self.works, self.commit_locks, log, partitions, streams, self.locks, post, now
        )
        self.settling = Settling(self.works, log, partitions, self.participating, post, now)
        self.history = TxHistory(files, tasks, now)
        self.in_doubt = InDoubt(
            self.works, log, partitions, self.participating, self.history, post, now
        )
        self.pinning = Pinning(
            files, log, partitions, streams, self.participating, post,
            lambda: self._decided, now, tasks,
        )  # fmt: skip
        self.snapshots = Snapshots(me, partitions, post, log.new_id, now)
        self._decided = 0
        post.deliver = self.arrived
        log.advanced = self._advanced

    def __repr__(self) -> str:
        return f"<Transactions: {self.near!r}, {self.participating!r}, {self.settling!r}>"

    def _advanced(self) -> None:
        self.commit_locks.advanced()
        self.plain.advanced()

    @staticmethod
    def takes(kind: str) -> bool:
        """Tell whether messages of a kind are about transactions of several groups."""
        return kind in KINDS

    def arrived(self, sender: Incarnation, message: Message) -> None:
        """Take what a member says; ``FrameError`` if that cannot be."""
        told = told_of(message)
        match BY_NUMBER[message[0]].name:
            case "prepare" | "question" if self.in_doubt.is_resolved(told):
                pass
            case "lock":
                self.commit_locks.lock(sender, told)
            case "locked":
                self.near.locked(*told)
            case "unlock":
                self.commit_locks.unlock(sender, *told[:2])
            case "confirm":
                self.commit_locks.confirm(sender, told)
            case "confirmed":
                self.near.confirmed(*told)
            case "prepare":
                self.participating.prepare(sender, told)
            case "prepared":
                self.near.prepared(told)
                self.settling.prepared(told)
            case "refused":
                self.near.refused(told)
                self.settling.refused(told)
            case "decision":
                self.participating.decision(*told)
            case "question":
                self.participating.question(sender, told)
            case "too-old":
                self.near.too_old(told)
                self.in_doubt.too_old(told)
            case "acquire":
                self.plain.acquire(sender, told)
            case "acquired":
                self.open.acquired(*told)
            case "give-back":
                self.plain.give_back(told[0], sender)
            case "probe":
                (self.plain if told.waits else self.open).probe(told)
            case "ask-over":
                self.near.asked_over(sender, [one for one in told[0] if not self.open.has(one)])
            case "over":
                self.settling.over(*told)
                self.plain.give_back(told[0], sender)
            case "settled":
                self.settling.settled(sender, told)
            case "ask-settled":
                self.settling.asked_settled(sender, told)
            case "pin":
                self.pinning.pin(sender, *told)
            case "pinned":
                self.snapshots.pinned(sender, told)
            case "resume":
                self.pinning.resume(sender, *told)
            case "held":
                self.snapshots.held(sender, *told[:2], still=told[2])
            case "forget":
                self.settling.forget(told)

    def decided(self, topology: Topology) -> None:
        """Take over decisions that have taken effect here."""
        self.settling.decided(topology)
        self.commit_locks.decided(topology)
        self.participating.decided(topology)
        self.near.decided(topology)
        self.history.decided(topology)
        self.in_doubt.decided(topology)
        self.plain.decided(topology)
        self.open.decided(topology)
        self.snapshots.decided(topology)
        self._decided = topology.index

    def sealed(self, partition: int) -> None:
        """Drop what belongs to an older epoch of a partition (K2)."""
        self.participating.sealed(partition)
        self.plain.sealed(partition)
        self.settling.sealed(partition)
        self.pinning.sealed(partition)

    def opened(self, partition: int) -> None:
        """Go on with what is pending in a partition that is served from now on."""
        self.participating.opened(partition)
        self.settling.opened(partition)
        self.in_doubt.obey()

    def log_failed(self) -> None:
        """Let nobody wait: nothing that is heard from now on may rest on the log (I6)."""
        self.locks.tick()
        self.near.log_failed()

    def tick(self) -> None:
        """Go on with what waits for time."""
        self.locks.tick()
        self.near.tick()
        self.commit_locks.tick()
        self.participating.tick()
        self.plain.tick()
        self.open.tick()
        self.settling.tick()
        self.in_doubt.tick()
        self.snapshots.tick()
        self.pinning.tick()
