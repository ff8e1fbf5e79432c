"""A group of copies of one partition that takes over again and again, and dies at every step.

No network and no disk: a copy is its fold and what the fold let take effect, a stream is a list of
which each copy has the first few records.  What the primary does, how far each copy has come, who
dies and how far a settle list gets are drawn.

What is promised, after each list, for all listed copies: equal counters, epoch tables, pending
transactions and content; what was acknowledged has committed, or is pending if others decide as
well; what was told once holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from uuid import UUID

from tidelog.affinity.partitions import one_space
from tidelog.affinity.topology import Incarnation
from tidelog.checkpoints.marks import PartitionMark, StoreMark
from tidelog.checkpoints.replay import Applied, State
from tidelog.engine.replication import merging
from tidelog.engine.replication.merging import Merged
from tidelog.engine.replication.reports import (
    Acknowledged,
    Report,
    report_message,
    report_of,
    reports_of,
    settle_message,
    settles_of,
)
from tidelog.engine.replication.stream import Streamed
from tidelog.wal.records import (
    CommitRecord,
    CommitUptoRecord,
    Opened,
    OpenRecord,
    Participant,
    PrepareRecord,
    Record,
    RollbackRecord,
    Run,
    SettledOutcome,
    SettleRecord,
    Upto,
    decode_payload,
    encode_record,
)

STORE = b"s" * 16
NOBODY = bytes(16)
KEYS = [b"a", b"b", b"c"]


def state_of() -> State:
    """The fold of a store that has nothing."""
    return State(STORE, one_space(2))


def restored(state: State) -> State:
    """The fold as a checkpoint keeps it."""
    copies = state.copies
    marks = {
        p: PartitionMark(
            position=state.position,
            written=state.position,
            counter=state.counters[p].to_bytes(),
            epochs=state.epoch_tables[p],
            count=0,
            digest=0,
            state=copies.states.get(p, 0),
            admission=copies.admissions.get(p, 0),
            sealed=copies.sealed.get(p, 0),
        )
        for p in range(state.partitions)
    }
    entries = {
        p: decode_payload(b"".join(map(encode_record, copies.entries(p))))
        for p in range(state.partitions)
    }
    store = StoreMark.from_bytes(state.mark(state.position).to_bytes())
    found = State.from_marks(STORE, state.spaces, store, marks, entries)
    found.position = state.position
    return found


@dataclass
class Copy:
    """One copy of partition 0: its log, the fold of that, and what has taken effect."""

    name: Incarnation
    state: State = field(default_factory=state_of)
    log: list[Record] = field(default_factory=list)
    content: dict[bytes, tuple[int, int, int, bytes | None]] = field(default_factory=dict)
    applied: set[Run] = field(default_factory=set)
    stored: int = 0
    """How many records of the present stream it has."""

    def take(self, record: Record) -> None:
        """Log a record and let it take effect."""
        (read,) = decode_payload(encode_record(record))
        self.log.append(read)
        self.state.position = len(self.log)
        for effect in self.state.apply(len(self.log) - 1, read):
            assert isinstance(effect, Applied)
            self.applied.add(effect.run)
            for update in effect.updates():
                known = self.content.get(update.key)
                if not effect.late or known is None or known[:2] < (update.epoch, update.counter):
                    row = update.epoch, update.counter, effect.time, update.value
                    self.content[update.key] = row

    def checkpoint(self) -> None:
        """Go on from what a checkpoint keeps, as a restart does."""
        self.state = restored(self.state)

    def twin(self) -> Copy:
        """A copy that has what this one has."""
        state = restored(self.state)
        return Copy(self.name, state, [*self.log], dict(self.content), set(self.applied))

    def pending(self) -> list[Run]:
        """The numbers of what is pending, in order."""
        return [one.run for one in self.state.copies.prepared(0).all()]

    def shape(self) -> tuple[object, ...]:
        """What is equal at all copies behind a list."""
        counter = self.state.counters[0]
        return (
            counter.lwm, counter.out_of_order, counter.hwm, self.state.epoch_tables[0],
            self.pending(), self.content, self.state.copies.ended_of(0),
        )  # fmt: skip


@dataclass
class Group:
    """The copies of partition 0 that are in the set; the first is the primary."""

    random: Random
    listed: list[Copy]
    epoch: int = 0
    stream: list[Streamed] = field(default_factory=list)
    time: int = 1
    given: int = 0
    opened: list[Copy] = field(default_factory=list)
    """Those that have heard that the epoch is open; none before that."""
    acknowledged: dict[Run, bool] = field(default_factory=dict)
    """Durable at every copy, and whether the transaction writes this partition alone."""
    skipped: list[Run] = field(default_factory=list)
    """Given out in this epoch for a record that is in no log, and not closed yet."""
    refused: set[Run] = field(default_factory=set)
    """Acknowledged as prepared, and another partition has refused: it is never committed."""
    told: dict[Run, SettledOutcome] = field(default_factory=dict)
    settled: set[Run] = field(default_factory=set)
    """Told by a list that was opened."""
    letters: list[str] = field(default_factory=list)
    attempts: dict[bytes, int] = field(default_factory=dict)

    @property
    def primary(self) -> Copy:
        return self.listed[0]

    # ------------------------------------------------------------------ an epoch

    def log(self, record: Streamed) -> None:
        """The primary logs and streams a record."""
        self.primary.take(record)
        self.stream.append(record)
        self.primary.stored = len(self.stream)

    def deliver(self, copy: Copy, most: int) -> None:
        """A copy gets the next few records of the stream, in order."""
        for record in self.stream[copy.stored : copy.stored + most]:
            copy.take(record)
            copy.stored += 1
        self.note_acknowledged()

    def note_acknowledged(self) -> None:
        """What every copy has is acknowledged: of one partition, or as prepared."""
        if len(self.opened) < len(self.listed):
            return
        ended = {run for one in self.stream if isinstance(one, RollbackRecord) for run in one.runs}
        for record in self.stream[: min(copy.stored for copy in self.listed)]:
            if isinstance(record, PrepareRecord) and record.run not in ended:
                self.acknowledged[record.run] = len(record.participants) == 1
            elif isinstance(record, RollbackRecord):
                self.told.update(dict.fromkeys(record.runs, SettledOutcome.ROLLED_BACK))

    def prepare(self) -> None:
        rnd, state = self.random, self.primary.state
        count = rnd.randint(1, 2)
        first = state.counters[0].hwm + 1
        if rnd.random() < 0.15:  # the log did not take a record before this one
            self.skipped.append(Run(0, self.epoch, first, 1))
            first += 1
        run = Run(0, self.epoch, first, count)
        again = sorted(self.attempts)
        tx_id = rnd.choice(again) if again and rnd.random() < 0.3 else b""
        if not tx_id or any(one.tx_id == tx_id for one in state.copies.prepared(0).all()):
            self.given += 1
            tx_id = b"transact" + self.given.to_bytes(8, "big")
        attempt = self.attempts.pop(tx_id, 0) + 1
        self.time += rnd.randint(0, 2)
        others = (Participant(1, 1, 1),) if rnd.random() < 0.5 else ()
        self.log(
            PrepareRecord(
                tx_id=tx_id,
                attempt=attempt,
                near=(b"m" * 16, 1),
                time=self.time,
                home=0,
                participants=(Participant(0, self.epoch, count), *others),
                run=run,
                namespaces=16,
                keys=rnd.sample(KEYS, count),
                values=[rnd.choice([None, b"%d.%d" % (self.given, n)]) for n in range(count)],
            )
        )

    def commit_upto(self) -> None:
        """Commit what this partition alone writes, up to where all have it."""
        last = 0
        for record in self.stream[: min(copy.stored for copy in self.listed)]:
            if isinstance(record, PrepareRecord):
                last = record.run.first + record.run.count - 1
        if last and len(self.opened) == len(self.listed):
            self.log(CommitUptoRecord(rows=(Upto(0, self.epoch, last),)))

    def pending_of_several(self) -> list[PrepareRecord]:
        return [
            one
            for one in self.primary.state.copies.prepared(0).all()
            if isinstance(one, PrepareRecord) and len(one.participants) > 1
        ]

    def commit(self) -> None:
        """Commit one of several partitions that all have prepared."""
        ready = [
            one
            for one in self.pending_of_several()
            if one.run in self.acknowledged and one.run not in self.refused
        ]
        if ready:
            one = self.random.choice(ready)
            self.time += self.random.randint(0, 2)
            self.told[one.run] = SettledOutcome.COMMITTED
            self.log(
                CommitRecord(
                    tx_id=one.tx_id,
                    attempt=one.attempt,
                    time=self.time + 3,
                    participants=(one.run, Run(1, 1, one.run.first, 1)),
                    applied=(0,),
                )
            )

    def roll_back(self) -> None:
        """Roll back one that another group refused, or that nobody was told to be prepared."""
        ready = [
            one
            for one in self.primary.state.copies.prepared(0).all()
            if isinstance(one, PrepareRecord)
            and (len(one.participants) > 1 or one.run not in self.acknowledged)
            and one.run not in self.told
        ]
        if ready:
            one = self.random.choice(ready)
            if one.run in self.acknowledged:
                self.refused.add(one.run)
            self.attempts[one.tx_id] = one.attempt
            self.log(
                RollbackRecord(
                    tx_id=one.tx_id,
                    time=self.time,
                    reason="told",
                    runs=(one.run,),
                    attempt=one.attempt,
                )
            )

    def close_gap(self) -> None:
        """Close numbers of which the log did not take the record."""
        hwm = self.primary.state.counters[0].hwm
        run = self.skipped.pop() if self.skipped else Run(0, self.epoch, hwm + 1, 2)
        self.log(RollbackRecord(tx_id=NOBODY, time=self.time, reason="failed", runs=(run,)))

    def live(self, steps: int) -> None:
        """Let some steps of an open epoch happen."""
        calls = [
            (6, self.prepare), (3, self.commit_upto), (3, self.commit), (2, self.roll_back),
            (1, self.close_gap),
        ]  # fmt: skip
        for _ in range(steps):
            behind = [one for one in self.opened[1:] if one.stored < len(self.stream)]
            if behind and self.random.random() < 0.5:
                self.deliver(self.random.choice(behind), self.random.randint(1, 4))
            elif self.random.random() < 0.05:
                self.random.choice(self.listed).checkpoint()
            else:
                weights = [weight for weight, _ in calls]
                self.random.choices(calls, weights)[0][1]()
                self.note_acknowledged()

    # ------------------------------------------------------------------ a takeover

    def take_over(self) -> None:
        """Some are left; the author makes a list, and it gets as far as it does."""
        rnd = self.random
        before = self.primary, {one.name: one.stored for one in self.listed}, self.stream
        left = [one for one in self.listed if rnd.random() < 0.75] or [rnd.choice(self.listed)]
        rnd.shuffle(left)
        self.listed, self.opened, self.stream, self.skipped = left, [], [], []
        self.epoch += 1
        for copy in left:
            copy.stored = 0
        made = self.merge(before)
        self.expect_promises(made.settle)
        for copy in [self.primary, *(one for one in left[1:] if rnd.random() < 0.85)]:
            copy.take(made.settle)
            if rnd.random() < 0.2:
                copy.checkpoint()
            if rnd.random() < 0.05:
                return
        if all(one.state.copies.lists.get(0) == made.settle for one in left):
            self.open(made.settle)

    def merge(self, before: tuple[Copy, dict[Incarnation, int], list[Streamed]]) -> Merged:
        """The list of the reports, which go over the wire and come in any order."""
        reports = [self.report(copy, before) for copy in self.listed]
        made = merging.merged(0, self.epoch, reports)
        self.random.shuffle(reports)
        assert merging.merged(0, self.epoch, reports) == made
        assert made.lacking == {}, made.lacking
        assert settles_of(settle_message([made.settle])) == [made.settle]
        self.letters += made.letters.values()
        return made

    def report(
        self, copy: Copy, before: tuple[Copy, dict[Incarnation, int], list[Streamed]]
    ) -> Report:
        primary, stored, stream = before
        seen = []
        for name, count in stored.items() if copy is primary else ():
            runs = [record.run for record in stream[:count] if isinstance(record, PrepareRecord)]
            if runs and name != copy.name:
                number = runs[-1].first + runs[-1].count - 1
                seen.append(Acknowledged(name.member, name.boot, number))
        report = report_of(copy.state, 0, copy=copy.name, epoch=self.epoch, acknowledged=seen)
        assert reports_of(report_message([report]), copy.name) == [report]
        return report

    def open(self, settle: SettleRecord) -> None:
        """The author logs that the epoch is open, serves, and some of the others hear of it."""
        for one in settle.transactions:
            if one.outcome is not SettledOutcome.PENDING:
                self.told[one.run] = one.outcome
                self.settled.add(one.run)
        for copy in [self.primary, *(one for one in self.listed[1:] if self.random.random() < 0.9)]:
            copy.take(OpenRecord(rows=(Opened(0, self.epoch),)))
            self.opened.append(copy)
            if self.random.random() < 0.05:
                return
        self.time += 5

    # ------------------------------------------------------------------ promises

    def expect_promises(self, settle: SettleRecord) -> None:
        """Let twins of all copies take the list, and look at what they are then."""
        twins = [copy.twin() for copy in self.listed]
        for twin in twins:
            twin.take(settle)
            twin.take(OpenRecord(rows=(Opened(0, self.epoch),)))
        self.expect_equal(twins)
        table = twins[0].state.epoch_tables[0]
        for twin in twins:
            for run, alone in self.acknowledged.items():
                if run not in self.refused:
                    pending = not alone and run in twin.pending()
                    assert run in twin.applied or pending, f"{run} is lost at {twin.name}"
            for run, outcome in self.told.items():
                # A COMMIT may have got to nobody: then it is asked for again.
                asked = run in twin.pending() and run not in self.settled
                committed = run in twin.applied or asked
                assert committed == (outcome is SettledOutcome.COMMITTED), f"{run} at {twin.name}"
            missing = {
                number
                for first, last in twin.state.counters[0].missing
                for number in range(first, last + 1)
            }
            stay = {number for run in twin.pending() for number in range(run[2], run[2] + run[3])}
            counter = twin.state.counters[0]
            top = {*range(counter.highest_applied + 1, counter.hwm + 1)}
            assert missing | top == stay, "a gap that nothing will fill"
            assert table[-1] == (self.epoch, settle.start)

    @staticmethod
    def expect_equal(twins: Sequence[Copy]) -> None:
        first = twins[0].shape()
        for twin in twins[1:]:
            assert twin.shape() == first, f"{twin.name} differs from {twins[0].name}"
        refused = [run for twin in twins for run in twin.pending() if run in twin.applied]
        assert refused == []


def lived_group(random: Random, copies: int = 3, epochs: int = 5, steps: int = 25) -> Group:
    """A group that has gone through some epochs; ``AssertionError`` if a promise was broken."""
    names = [Incarnation(UUID(int=number + 1), 1) for number in range(copies)]
    group = Group(random, [Copy(name) for name in names])
    for _ in range(epochs):
        group.take_over()
        if group.opened:
            group.live(random.randint(0, steps))
    group.take_over()
    return group
