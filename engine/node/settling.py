"""How transactions of several groups end without their near member, and are forgotten.

Whoever has a part that is prepared, and hears no decision, asks the other groups (T10).  All have
prepared: it has committed.  One has refused: it is rolled back.  Everybody who asks comes to the
same, so several may.

A commit is remembered, for groups that do not know it yet ask about it (T14).  Once all copies of a
partition have its end, the primary tells the *collector*: the primary of the lowest partition that
takes part.  Once that has heard of all, and the near member has gone or waits for nothing of it any
more, it forgets it, and tells all others to.

Invariants:

- Nothing is forgotten before each group has the end on every copy, and nobody else waits for it.
- What was lost on the way is said again, after pauses that grow.

Left out: the answers (``participating``), and how it is decided otherwise (``near``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ...affinity.topology import Incarnation, Topology, incarnation_of
from ...wal.records import Committed, OutcomesRecord
from .log import Haste, NodeLog
from .participating import Participating
from .partitions import Partitions
from .post import Post
from .prepared import EndCommit
from .tx_messages import (
    GroupOutcome,
    PreparedPart,
    Question,
    RefusedPart,
    forget_message,
    ids_message,
    question_message,
    settled_message,
)
from .works import Work, Works

PAUSE_S, PAUSE_S_MAX = 1.0, 30.0
"""Seconds between two questions, and between two words that something has settled."""
TELL_S = 0.25
"""Seconds between looks at what has settled."""


class Settling:
    """What one incarnation settles as a primary."""

    def __init__(
        self,
        works: Works,
        log: NodeLog,
        partitions: Partitions,
        participating: Participating,
        post: Post,
        now: Callable[[], float],
    ) -> None:
        self._works = works
        self._log = log
        self._partitions = partitions
        self._participating = participating
        self._post = post
        self._now = now
        self._topology = Topology()
        self._everywhere: dict[int, set[bytes]] = {}
        """Commits whose end every copy of a partition has, by partition served here."""
        self._due: dict[tuple[int, bytes], tuple[float, float]] = {}
        """When the collector is told again, and the pause behind that."""
        self._having: dict[tuple[int, bytes], set[int]] = {}
        """At the collector: the partitions that have the end of a commit."""
        self._ripe: dict[bytes, Committed] = {}
        """At the collector: what all partitions have, while the near member may wait for it."""
        self._leaving: dict[int, dict[bytes, None]] = {}
        """What is to be forgotten here with the next look, by partition."""
        self._going: set[tuple[int, bytes]] = set()
        """What is about to be forgotten here."""
        self._told_at = float("-inf")
        participating.committed_here = self._committed

    def __repr__(self) -> str:
        return f"<Settling {sum(map(len, self._everywhere.values()))} commits>"

    def _remembered(self, partition: int) -> dict[bytes, Committed]:
        return self._log.state.copies.remembered.get(partition, {})

    def _serves(self, partition: int) -> bool:
        return self._partitions.is_open(partition)

    # -------------------------------------------------------------- questions

    def tick(self) -> None:
        """Ask about what hears no decision, and say what has settled."""
        now = self._now()
        for work in self._works.prepared():
            if work.decided is None and now >= work.ask_at:
                work.ask_at = now + work.pause
                work.pause = min(2 * work.pause, PAUSE_S_MAX)
                self._ask(work)
        if now >= self._told_at + TELL_S:
            self._told_at = now
            self._tell_settled(now)
            self._ask_over()
            self.write_forgotten()

    def _ask(self, work: Work) -> None:
        near = work.near.member.bytes, work.near.boot
        went_back = self._topology.is_too_old(work.partition, work.epoch)
        for partition, epoch, _ in work.participants:
            if partition == work.partition or partition in work.answers:
                continue
            author = self._topology.partitions[partition].author
            if self._topology.is_present(author):
                question = Question(work.tx_id, work.attempt, near, partition, epoch, went_back)
                self._post.tell(author, question_message(question))

    def prepared(self, part: PreparedPart) -> None:
        """Take it that another group has prepared its part."""
        for work in self._works.of(part.tx_id):
            partition = part.run.partition
            if work.attempt != part.attempt or work.partition == partition or work.run is None:
                continue
            work.answers[partition] = part
            others = {row.partition for row in work.participants} - {work.partition}
            if work.decided is None and work.answers.keys() >= others:
                parts = [*work.answers.values(), work.part()]
                runs = tuple(sorted(one.run for one in parts))
                time = max(one.time for one in parts)
                decided = GroupOutcome(work.tx_id, work.attempt, runs, time)
                self._participating.end(work, decided)

    def refused(self, part: RefusedPart) -> None:
        """Take it that another group will never have its part."""
        for work in self._works.of(part.tx_id):
            if work.attempt != part.attempt or work.partition == part.partition:
                continue
            if work.decided is None and work.run is not None:
                self._participating.end(work, GroupOutcome(work.tx_id, work.attempt, (), 0))

    # -------------------------------------------------------------- settled, forgotten

    def _committed(self, partition: int, tx_id: bytes) -> None:
        """Take it that every copy of a partition has the end of a commit."""
        if partition in self._everywhere:
            self._everywhere[partition].add(tx_id)

    def sealed(self, partition: int) -> None:
        """Leave a partition to its next author."""
        gone = self._everywhere.pop(partition, ())
        for tx_id in gone:
            self._due.pop((partition, tx_id), None)
        self._having = {key: known for key, known in self._having.items() if key[0] != partition}
        self._ripe = {
            tx_id: one for tx_id, one in self._ripe.items() if one.run.partition != partition
        }
        self._going -= {key for key in self._going if key[0] == partition}

    def opened(self, partition: int) -> None:
        """Take it that all copies have what is remembered: the settle list has seen to that."""
        self._everywhere[partition] = set(self._remembered(partition))

    def _outcomes(self, record: OutcomesRecord) -> EndCommit:
        partition = record.partition

        def done() -> None:
            self._going.difference_update((partition, tx_id) for tx_id in record.forgotten)

        commit = EndCommit(
            partition,
            self._partitions.epoch(partition),
            lambda _time: record,
            lambda: self._forgotten(partition, record.forgotten),
        )
        commit.then = lambda: self._log.fold(commit.ended(), done)
        commit.undo = done
        return commit

    def _tell_settled(self, now: float) -> None:
        """Tell collectors what has settled; as one of them ask those that have not told it."""
        told: dict[Incarnation, list[tuple[int, int, bytes]]] = {}
        asked: dict[Incarnation, list[tuple[int, int, bytes]]] = {}
        for partition, known in self._everywhere.items():
            for tx_id in sorted(known):
                committed = self._remembered(partition).get(tx_id)
                if committed is None:
                    known.discard(tx_id)
                    self._due.pop((partition, tx_id), None)
                    self._having.pop((partition, tx_id), None)
                    continue
                at, pause = self._due.get((partition, tx_id), (now, PAUSE_S))
                if at > now:
                    continue
                self._due[partition, tx_id] = now + pause, min(2 * pause, PAUSE_S_MAX)
                collector = min(row.partition for row in committed.participants)
                author = self._topology.partitions[collector].author
                told.setdefault(author, []).append((collector, partition, tx_id))
                if partition != collector or pause == PAUSE_S:
                    continue
                having = self._having.get((collector, tx_id), set())
                for other, _, _ in committed.participants:
                    if other not in having and other != collector:
                        author = self._topology.partitions[other].author
                        asked.setdefault(author, []).append((collector, other, tx_id))
        for kind, by_author in (("settled", told), ("ask-settled", asked)):
            for author, rows in by_author.items():
                self._post.tell(author, settled_message(kind, rows))

    def asked_settled(self, sender: Incarnation, rows: Iterable[tuple[int, int, bytes]]) -> None:
        """Tell a collector what every copy has here; what is not known has been forgotten.

        It has committed, so a group to which it means nothing has had it before.
        """
        told = [
            (collector, partition, tx_id)
            for collector, partition, tx_id in rows
            if partition in self._everywhere
            and self._serves(partition)
            and self._works.at(partition, tx_id) is None
            and (tx_id in self._everywhere[partition] or tx_id not in self._remembered(partition))
        ]
        if told:
            self._post.tell(sender, settled_message("settled", told))

    def settled(self, sender: Incarnation, rows: Iterable[tuple[int, int, bytes]]) -> None:
        """Take it, as the collector, that partitions have the ends of commits."""
        forgotten: list[tuple[int, bytes]] = []
        for collector, partition, tx_id in rows:
            if collector not in self._everywhere or not self._serves(collector):
                continue
            if tx_id in self._ripe:
                continue
            committed = self._remembered(collector).get(tx_id)
            if committed is None:
                self._having.pop((collector, tx_id), None)
                if self._works.at(collector, tx_id) is None:
                    forgotten.append((partition, tx_id))  # all have settled, and it got lost
                continue
            having = self._having.setdefault((collector, tx_id), set())
            having.add(partition)
            if having >= {row.partition for row in committed.participants}:
                del self._having[collector, tx_id]
                self._ripe[tx_id] = committed
        if forgotten:
            self._post.tell(sender, forget_message(forgotten))

    def _ask_over(self) -> None:
        """Ask near members which transactions are over for them."""
        asked: dict[Incarnation, list[bytes]] = {}
        for tx_id, committed in list(self._ripe.items()):
            place = committed.run.partition
            if (place, tx_id) in self._going or tx_id in self._leaving.get(place, ()):
                continue
            near = incarnation_of(*committed.near)
            if self._topology.is_present(near):
                asked.setdefault(near, []).append(tx_id)
            else:
                self.over([tx_id])
        for near, tx_ids in asked.items():
            self._post.tell(near, ids_message("ask-over", tx_ids))

    def over(self, tx_ids: Iterable[bytes]) -> None:
        """Let commits be forgotten for which nobody waits any more: here first.

        Others that remember one are told so when they say again that it has settled.  What this
        partition alone remembered would stay for ever, for nobody would say it again.
        """
        ripe = [self._ripe[tx_id] for tx_id in tx_ids if tx_id in self._ripe]
        self.forget((one.run.partition, one.tx_id) for one in ripe)

    def _forgotten(self, partition: int, tx_ids: Iterable[bytes]) -> None:
        """Let others forget what has been collected here, and no copy here remembers any more."""
        told: dict[Incarnation, list[tuple[int, bytes]]] = {}
        for tx_id in tx_ids:
            committed = self._ripe.get(tx_id)
            if committed is None or committed.run.partition != partition:
                continue
            del self._ripe[tx_id]
            for other, _, _ in committed.participants:
                if other != partition:
                    author = self._topology.partitions[other].author
                    told.setdefault(author, []).append((other, tx_id))
        for author, rows in told.items():
            self._post.tell(author, forget_message(rows))

    def forget(self, rows: Iterable[tuple[int, bytes]]) -> None:
        """Forget commits that nobody asks about any more: with the next look, many at once."""
        for partition, tx_id in rows:
            self._leaving.setdefault(partition, {})[tx_id] = None

    def write_forgotten(self) -> None:
        """Let go of what is to be forgotten: a record for each partition."""
        leaving, self._leaving = self._leaving, {}
        for partition, tx_ids in leaving.items():
            known = self._remembered(partition) if self._serves(partition) else {}
            forgotten = [
                tx_id for tx_id in tx_ids
                if tx_id in known and (partition, tx_id) not in self._going
            ]  # fmt: skip
            if forgotten:
                self._going.update((partition, tx_id) for tx_id in forgotten)
                record = OutcomesRecord(partition=partition, forgotten=tuple(forgotten))
                self._log.put(self._outcomes(record), Haste.COURTESY)

    def decided(self, topology: Topology) -> None:
        """Take over decisions that have taken effect here; whoever is new is asked soon."""
        older, self._topology = self._topology.partitions, topology
        soon = self._now() + PAUSE_S
        for work in self._works.prepared():
            others = (row.partition for row in work.participants)
            if any(older[one].epoch != topology.partitions[one].epoch for one in others):
                work.ask_at, work.pause = min(work.ask_at, soon), PAUSE_S
