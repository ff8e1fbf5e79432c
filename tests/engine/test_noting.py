"""What the machine notes is in the journal, and the next machine begins where the last one was."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

import pytest
from hypothesis import given, settings, strategies as st

from support.decisions import MEMBERS, following, history_of
from support.journals import CLUSTER, new_journal, put, reopened, write
from tidelog.affinity.changes import Decision
from tidelog.affinity.folding import applied
from tidelog.affinity.topology import Topology
from tidelog.engine.agreement.encoding import decision_bytes, topology_bytes
from tidelog.engine.agreement.journal import Recovered
from tidelog.engine.agreement.journal_format import (
    NO_TERM,
    AcceptedRecord,
    DecidedRecord,
    PromisedRecord,
    SnapshotRecord,
    Term,
)
from tidelog.engine.agreement.messages import Acceptance, Note, PromisedTerm
from tidelog.engine.agreement.noting import Restored, noted_records, restored, snapshot_of
from tidelog.testing import FaultyDisk

T3, T4 = Term(3, MEMBERS[0]), Term(4, MEMBERS[1])
(FIRST, SECOND, THIRD), TOPOLOGIES = history_of(1, 3)
OTHER = replace(SECOND, changes=())


@dataclass(frozen=True)
class Held:
    """What a member holds, in the simplest words."""

    topology: Topology = TOPOLOGIES[0]
    decisions: tuple[Decision, ...] = ()
    promised: Term = NO_TERM
    accepted: Acceptance | None = None

    def after(self, note: Note) -> Held:
        match note:
            case PromisedTerm(term):
                return replace(self, promised=max(self.promised, term))
            case Acceptance(term):
                return replace(self, promised=max(self.promised, term), accepted=note)
            case Decision():
                topology = applied(self.topology, note)
                decisions = (*self.decisions, note)
                return replace(self, topology=topology, decisions=decisions).settled()
            case Topology():
                return replace(self, topology=note, decisions=()).settled()

    def settled(self) -> Held:
        accepted = self.accepted
        if accepted is not None and accepted.decision.index <= self.topology.index:
            return replace(self, accepted=None)
        return self


def held_in(found: Restored) -> Held:
    assert found.damage is None
    assert found.voter.may_vote
    return Held(found.topology, found.decisions, found.voter.promised, found.voter.accepted)


def some_notes(random: Random, held: Held) -> list[Note]:
    """What a machine may note between two syncs."""
    notes: list[Note] = []
    for _ in range(random.randint(0, 5)):
        number = held.promised.number + random.randint(0, 2)
        term = max(held.promised, Term(number, random.choice(MEMBERS)))
        match random.randrange(5):
            case 0:
                note: Note = PromisedTerm(term)
            case 1 | 2:
                note = Acceptance(term, following(random, held.topology))
            case 3 if held.accepted is not None and random.random() < 0.8:
                note = held.accepted.decision
            case 4 if random.random() < 0.3:
                note = held.topology
                for _ in range(random.randint(1, 4)):
                    note = applied(note, following(random, note))
            case _:
                note = following(random, held.topology)
        held = held.after(note)
        notes.append(note)
    return notes


@given(st.integers(0, 1 << 32))
@settings(max_examples=150)
def test_a_machine_begins_where_the_last_one_was(seed: int) -> None:
    random = Random(seed)
    disk = FaultyDisk()
    journal = new_journal(disk)
    held, accepted = Held(), None
    for _ in range(random.randint(1, 8)):
        notes = some_notes(random, held)
        accepted = write(journal, notes, accepted)
        for note in notes:
            held = held.after(note)
        match random.randrange(4):
            case 0:
                put(journal, snapshot_of(held.topology))
                held = replace(held, decisions=())
            case 1:
                journal.close()
                disk = disk.crash("lost")
                journal, recovered = reopened(disk)
                accepted = restored(recovered).voter.accepted
    _, recovered = reopened(disk.crash("lost"))
    assert held_in(restored(recovered)) == held


def test_a_decision_that_was_accepted_here_is_written_once() -> None:
    accepted = Acceptance(T3, FIRST)
    data = decision_bytes(FIRST)
    first = (PromisedRecord(T3), AcceptedRecord(1, T3, data))
    assert noted_records([accepted, FIRST], None).records == (*first, DecidedRecord(1))
    assert noted_records([FIRST], accepted).records == (DecidedRecord(1),)
    learnt = (AcceptedRecord(1, NO_TERM, data), DecidedRecord(1))
    assert noted_records([FIRST], None).records == learnt
    assert noted_records([FIRST], Acceptance(T3, SECOND)).records == learnt


def test_another_decision_than_the_one_that_was_accepted_takes_its_place() -> None:
    journal = new_journal(disk := FaultyDisk())
    accepted = write(journal, [FIRST, Acceptance(T3, OTHER)], None)
    _, recovered = reopened(disk)
    assert held_in(restored(recovered)).accepted == accepted == Acceptance(T3, OTHER)
    write(journal, [SECOND], accepted)
    found = held_in(restored(reopened(disk)[1]))
    assert found == Held(TOPOLOGIES[2], (FIRST, SECOND), T3, None)


def test_what_was_accepted_before_a_snapshot_stays_promised() -> None:
    journal = new_journal(disk := FaultyDisk())
    accepted = write(journal, [Acceptance(T3, FIRST), FIRST], None)
    put(journal, snapshot_of(TOPOLOGIES[1]))
    assert held_in(restored(reopened(disk)[1])) == Held(TOPOLOGIES[1], (), T3, None)
    assert accepted is not None


def test_a_topology_that_was_fetched_is_a_snapshot_and_what_follows_stands_behind_it() -> None:
    behind = Acceptance(T4, THIRD)
    notes: list[Note] = [PromisedTerm(T3), Acceptance(T3, FIRST), FIRST, TOPOLOGIES[2], behind]
    written = noted_records(notes, None)
    assert written.snapshot == SnapshotRecord(2, NO_TERM, topology_bytes(TOPOLOGIES[2]))
    assert written.records == (
        PromisedRecord(T3),
        PromisedRecord(T3),
        PromisedRecord(T4),
        AcceptedRecord(3, T4, decision_bytes(THIRD)),
    )
    assert written.accepted == behind


def test_nothing_was_noted_in_a_new_journal() -> None:
    _, recovered = reopened(new_disk())
    assert held_in(restored(recovered)) == Held()


def new_disk() -> FaultyDisk:
    new_journal(disk := FaultyDisk())
    return disk


# ------------------------------------------------------------------ damage


def recovered_of(*accepted: AcceptedRecord, decided: int, damage: str | None = None) -> Recovered:
    return Recovered(
        promised=T3,
        decided=decided,
        snapshot=None,
        accepted=accepted,
        notes=(),
        cluster=CLUSTER,
        end=100,
        damage=damage,
    )


def accepted_as(decision: Decision, index: int | None = None) -> AcceptedRecord:
    return AcceptedRecord(index or decision.index, T3, decision_bytes(decision))


def test_a_damaged_journal_gives_what_was_read_and_no_vote() -> None:
    recovered = recovered_of(accepted_as(FIRST), decided=2, damage="a flipped bit")
    found = restored(recovered)
    assert (found.damage, found.voter.may_vote) == ("a flipped bit", False)
    assert found.topology == TOPOLOGIES[1]


@pytest.mark.parametrize(
    ("accepted", "decided", "damage"),
    [
        ([accepted_as(FIRST)], 2, "behind decision 1: decision 2 is missing"),
        ([accepted_as(FIRST), accepted_as(THIRD)], 1, "behind decision 1: decision 2 is missing"),
        ([accepted_as(SECOND)], 2, "behind decision 0: decision 2 does not follow on 0"),
        ([accepted_as(FIRST, 2)], 2, "behind decision 0: decision 1 stands at index 2"),
        ([AcceptedRecord(1, T3, b"\x90")], 1, "behind decision 0: expected 4 fields, found 0"),
    ],
)
def test_what_does_not_fit_together_is_damage(
    accepted: list[AcceptedRecord], decided: int, damage: str
) -> None:
    found = restored(recovered_of(*accepted, decided=decided))
    assert found.damage is not None
    assert found.damage.startswith(f"config.log, {damage}")
    assert not found.voter.may_vote


def test_a_snapshot_that_cannot_be_read_is_damage() -> None:
    journal = new_journal(disk := FaultyDisk())
    journal.snapshot(1, T3, b"state", [])
    found = restored(reopened(disk)[1])
    assert found.damage is not None
    assert (found.topology, found.voter.may_vote) == (Topology(), False)
