"""Transactions in doubt: a group that takes part cannot say what it has, or never will (T13, S6).

    a group is away    somebody says how it ends (`tidelog tx resolve`) -> decided -> all obey
    a group was reset  it answers "too old to tell" -> if nobody has refused it: decided, it commits

What is decided is an entry of the configuration log, so it is made once, is listed with the losses,
and is what a group finds that comes back: it locks what is pending, as ever, and ends it so.

Who dies at a step changes nothing: before the decision nothing has happened, and behind it each
primary of a group that has a part pending obeys, whenever it comes.

Invariants:

- A group that went on from an older copy never says *refused* of what that copy may have lacked
  (T9): some other group may have committed it.
- A transaction is resolved only while all of its groups that can be asked have said that they have
  prepared it; if one has refused it is rolled back without anybody.
- Once it is resolved its groups answer nothing about it, and prepare nothing of it.

What was forced may contradict what a group that was away has told, or done: such a part stays as it
is.  That is the price of forcing it, and the decision says which groups could not tell.

Left out: when such a decision can follow (``affinity.folding``), and the end (``participating``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from ...affinity.changes import TopologyChange, TransactionResolved
from ...affinity.errors import UsageError
from ...affinity.topology import Incarnation, Resolution, Topology
from ...wal.records import PrepareRecord
from ..commit.outcomes import Outcome
from .log import NodeLog
from .participating import Participating
from .partitions import Partitions, RoutedError
from .post import Post
from .tx_history import TxHistory
from .tx_messages import (
    GroupOutcome,
    PrepareWanted,
    Question,
    RefusedPart,
    TooOldPart,
    refused_message,
    told_failure,
    too_old_message,
)
from .works import Work, Works, near_of

ASK_AGAIN_S = 0.5
"""Seconds after which it is asked again for what nobody has decided."""
AT_ONCE_MAX = 64
"""Transactions that a member asks for at the same time."""


class InDoubt:
    """The transactions in doubt of which one incarnation has a part."""

    def __init__(
        self,
        works: Works,
        log: NodeLog,
        partitions: Partitions,
        participating: Participating,
        history: TxHistory,
        post: Post,
        now: Callable[[], float],
    ) -> None:
        self._works = works
        self._log = log
        self._partitions = partitions
        self._participating = participating
        self._history = history
        self._post = post
        self._now = now
        self._topology = Topology()
        self._asked_at = float("-inf")
        self.suggest: Callable[[TopologyChange], object] = lambda _change: None
        """Has a change decided; set before anything is."""
        participating.tells_otherwise = self._tells_otherwise

    def __repr__(self) -> str:
        return f"<InDoubt: {len(self._topology.resolutions)} resolved>"

    # -------------------------------------------------------------- what is decided

    def decided(self, topology: Topology) -> None:
        """Take over decisions that have taken effect here."""
        self._topology = topology
        self.obey()

    def is_resolved(self, about: PrepareWanted | Question) -> bool:
        """Tell whether it is decided what becomes of what a message is about."""
        return (about.tx_id, about.attempt) in self._topology.resolved

    def obey(self) -> None:
        """End what is prepared here as it was decided."""
        if not self._topology.resolutions:
            return
        for work in self._works.prepared():
            resolution = self._topology.resolved.get(work.name)
            if resolution is not None and work.decided is None:
                self._participating.end(work, _outcome(work, resolution))

    def tick(self) -> None:
        """Obey, and ask for what is to commit since nobody can tell any more (S6)."""
        self.obey()
        if self._now() < self._asked_at + ASK_AGAIN_S:
            return
        self._asked_at = self._now()
        lost = (work for work in self._works.prepared() if self._nobody_can_tell(work))
        for work in sorted(lost, key=lambda work: work.name)[:AT_ONCE_MAX]:
            self.suggest(self._change(work, commits=True, by_hand=False))

    def _nobody_can_tell(self, work: Work) -> bool:
        """Tell whether all other groups have prepared it or forgotten, and one was reset."""
        told = work.answers.keys() | work.too_old
        others = {row.partition for row in work.participants} - {work.partition}
        return work.decided is None and bool(work.too_old) and told >= others

    # -------------------------------------------------------------- who asks, and is told

    def _tells_otherwise(self, asker: Incarnation, question: Question) -> bool:
        """Answer about what is not known here, unless that it is unknown is the answer (T9)."""
        if self._topology.is_too_old(question.partition, question.epoch):
            self._tell_too_old(asker, question)
            return True
        if question.went_back:
            heard = partial(self._found, asker, question)
            self._history.find_outcome(question.tx_id, question.partition, heard)
        return question.went_back

    def _tell_too_old(self, asker: Incarnation, question: Question) -> None:
        part = TooOldPart(question.tx_id, question.attempt, question.partition)
        self._post.tell(asker, too_old_message(part))

    def _found(self, asker: Incarnation, question: Question, found: Outcome | Exception) -> None:
        """Tell whoever has gone back what the log says: rolled back, or forgotten since."""
        if not self._partitions.serves(question.partition, self._now()):
            return
        if found == "rolled_back":
            failure = told_failure(RoutedError("again", "it was rolled back here"))
            part = RefusedPart(question.tx_id, question.attempt, question.partition, failure)
            self._post.tell(asker, refused_message(part))
        elif not isinstance(found, Exception):
            self._tell_too_old(asker, question)

    def too_old(self, part: TooOldPart) -> None:
        """Take it that another group cannot tell what became of its part."""
        for work in self._works.of(part.tx_id):
            others = {row.partition for row in work.participants} - {work.partition}
            if work.attempt == part.attempt and part.partition in others:
                work.too_old.add(part.partition)

    # -------------------------------------------------------------- by hand

    def change(self, tx_id: bytes, *, commits: bool) -> TransactionResolved:
        """Return the change that ends a transaction in doubt; ``UsageError`` if it is not in doubt.

        Asked of a member that serves one of its partitions, and has it prepared there.
        """
        name = f"transaction {tx_id.hex()}"
        works = [one for one in self._works.of(tx_id) if one.phase == "prepared"]
        attempts = {work.attempt for work in works}
        for known in self._topology.resolutions:
            if known.tx_id == tx_id and attempts <= {known.attempt}:
                told = "has committed" if known.commits else "is rolled back"
                raise UsageError(f"{name} {told} already, by decision {known.index}")
        if not works:
            raise UsageError(
                f"{name} is not prepared in any partition that this member serves",
                hint="`tidelog tx show` tells who has it, and what became of it.",
            )
        work = works[0]
        change = self._change(work, commits=commits, by_hand=True)
        missing = {partition for partition, _ in change.missing}
        if work.decided is not None or not missing:
            raise UsageError(
                f"{name} is not in doubt: a primary is there for each of its partitions",
                hint="It ends by itself once all of them have been asked: `tidelog tx pending` "
                "shows who has not answered.",
            )
        others = {row.partition for row in work.participants} - {work.partition}
        silent = sorted(others - work.answers.keys() - missing)
        if silent:
            told = ", ".join(map(str, silent))
            raise UsageError(
                f"{name} cannot be ended by hand yet: partitions {told} have not said whether they "
                "have it",
                hint="They are asked again and again, after half a minute at most. If one has not, "
                "it is rolled back by itself.",
            )
        return change

    def _change(self, work: Work, *, commits: bool, by_hand: bool) -> TransactionResolved:
        partitions = self._topology.partitions
        missing = sorted(
            row.partition
            for row in work.participants
            if row.partition not in {work.partition, *work.answers}
            and (row.partition in work.too_old or row.partition in self._topology.deserted)
        )
        return TransactionResolved(
            tx_id=work.tx_id,
            attempt=work.attempt,
            commits=commits,
            by_hand=by_hand,
            time=max([work.time, *(part.time for part in work.answers.values())]),
            participants=tuple((row.partition, row.epoch) for row in work.participants),
            missing=tuple((partition, partitions[partition].epoch) for partition in missing),
        )

    # -------------------------------------------------------------- what is shown

    def told(self) -> dict[str, Any]:
        """Return what is pending in all copies here, and what is remembered, of several groups."""
        topology, copies = self._topology, self._log.state.copies
        return {
            "decided": topology.index,
            "deserted": list(topology.deserted),
            "pending": list(self._pending()),
            "remembered": [
                [partition, tx_id]
                for partition, known in sorted(copies.remembered.items())
                for tx_id in known
            ],
        }

    def _pending(self) -> Iterator[list[Any]]:
        for partition, pending in sorted(self._log.state.copies.pending.items()):
            for one in pending.all():
                if not isinstance(one, PrepareRecord) or len(one.participants) == 1:
                    continue
                near = near_of(one)
                yield [
                    one.tx_id, one.attempt, partition, one.home, near.member.bytes, near.boot,
                    self._topology.is_present(near), one.time, len(one.keys), len(one.locks or ()),
                    [[row.partition, row.epoch] for row in one.participants],
                ]  # fmt: skip


def _outcome(work: Work, resolution: Resolution) -> GroupOutcome:
    """Return the end of a part by what was decided, with the numbers that are known here."""
    if not resolution.commits:
        return GroupOutcome(work.tx_id, work.attempt, (), 0)
    runs = tuple(sorted(part.run for part in (*work.answers.values(), work.part())))
    return GroupOutcome(work.tx_id, work.attempt, runs, resolution.time)
