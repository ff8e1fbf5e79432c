"""A journal of the configuration log for tests, and what it should hold after each step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from uuid import UUID

from tidelog.engine.agreement.journal import Journal, Recovered
from tidelog.engine.agreement.journal_format import (
    NO_TERM,
    AcceptedRecord,
    AppendedRecord,
    DecidedRecord,
    NoteRecord,
    PromisedRecord,
    SnapshotRecord,
    Term,
)
from tidelog.engine.agreement.messages import Acceptance, Note
from tidelog.engine.agreement.noting import noted_records
from tidelog.testing import FaultyDisk

IDENTITY = b"config log, 16 b"
CLUSTER = b"cluster, 16 byte"
MEMBER = UUID(bytes=b"member, 16 bytes")
PATH = "/config.log"
EARLY, LATE = Term(3, MEMBER), Term(4, MEMBER)

Batch = list[AppendedRecord]
Step = Batch | SnapshotRecord | None
"""A batch, a snapshot, or a sync."""

STEPS: list[Step] = [
    [PromisedRecord(EARLY), AcceptedRecord(1, EARLY, b"first")],
    None,
    [DecidedRecord(1), NoteRecord(1, b"seal")],
    [AcceptedRecord(2, EARLY, b"second" * 100)],
    None,
    [PromisedRecord(LATE)],
    [AcceptedRecord(2, LATE, b"second again")],
    None,
    [DecidedRecord(2)],
    [AcceptedRecord(3, LATE, b"third")],
    SnapshotRecord(2, LATE, b"state" * 200),
    [DecidedRecord(3), AcceptedRecord(4, LATE, b"fourth")],
    None,
    [NoteRecord(2, b"vote")],
]


@dataclass(frozen=True)
class Held:
    """What a journal holds; snapshots of these tests keep no notes."""

    promised: Term = NO_TERM
    decided: int = 0
    snapshot: SnapshotRecord | None = None
    accepted: tuple[AcceptedRecord, ...] = ()
    notes: tuple[NoteRecord, ...] = ()

    def after(self, step: Step) -> Held:
        """What it holds after a step, in the simplest words."""
        held = self
        if isinstance(step, SnapshotRecord):
            above = tuple(one for one in held.accepted if one.index > step.index)
            decided = max(held.decided, step.index)
            return replace(held, snapshot=step, accepted=above, decided=decided, notes=())
        for record in step or []:
            held = held.with_record(record)
        return held

    def with_record(self, record: AppendedRecord) -> Held:
        match record:
            case PromisedRecord(term):
                return replace(self, promised=max(self.promised, term))
            case DecidedRecord(index):
                return replace(self, decided=max(self.decided, index))
            case NoteRecord():
                return replace(self, notes=(*self.notes, record))
        if self.snapshot is not None and record.index <= self.snapshot.index:
            return self
        others = [one for one in self.accepted if one.index != record.index]
        above = sorted([*others, record], key=lambda one: one.index)
        return replace(self, accepted=tuple(above))


def held_after(steps: Iterable[Step]) -> Held:
    held = Held()
    for step in steps:
        held = held.after(step)
    return held


def held_in(found: Recovered) -> Held:
    return Held(found.promised, found.decided, found.snapshot, found.accepted, found.notes)


def do(journal: Journal, step: Step) -> None:
    if step is None:
        journal.sync()
    elif isinstance(step, SnapshotRecord):
        put(journal, step)
    else:
        journal.append(step)


def new_journal(disk: FaultyDisk) -> Journal:
    return Journal.create(disk.directory("/"), identity=IDENTITY, cluster=CLUSTER)


def reopened(disk: FaultyDisk, durable: int = 0) -> tuple[Journal, Recovered]:
    """The journal on a disk, which has to be whole."""
    journal, found = Journal.open(disk.directory("/"), identity=IDENTITY, durable=durable)
    assert journal is not None, found.damage
    return journal, found


def write(
    journal: Journal, notes: Iterable[Note], accepted: Acceptance | None
) -> Acceptance | None:
    """Write what a machine noted as a node does, durably; return what was accepted last."""
    written = noted_records(notes, accepted)
    if written.snapshot is not None:
        put(journal, written.snapshot)
    journal.append(written.records)
    journal.sync()
    return written.accepted


def put(journal: Journal, snapshot: SnapshotRecord) -> None:
    journal.snapshot(snapshot.index, snapshot.term, snapshot.data, [])


def scenario(disk: FaultyDisk, acknowledge: Callable[[object], None]) -> None:
    """Do all steps; acknowledge how many of them are durable."""
    journal = new_journal(disk)
    acknowledge(0)
    for number, step in enumerate(STEPS, 1):
        do(journal, step)
        if step is None or isinstance(step, SnapshotRecord):
            acknowledge(number)
    journal.close()
