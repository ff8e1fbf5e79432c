"""From what the machine notes to the records of its journal, and back to a machine's beginning.

Invariants:

- What is accepted is written with the promise that it is: a snapshot keeps promises, and no
  acceptance of what it holds.
- A decision is in the journal as what was accepted for its index, and behind that, in the same
  frame, that the index is decided.  So a decision that was learnt, whose term nobody told, is
  never taken for something that this member accepted (C2): its term does not count, and is 0.
- The voter that ``restored`` returns has promised and accepted what its predecessor had, as far as
  that was durable.

Left out: when a snapshot is due, and the notes of others in the journal.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ...affinity.changes import Decision
from ...affinity.folding import ChangeError, applied
from ...affinity.topology import Topology
from ...wal.records.shapes import UndecodableRecordError
from ..system.layout import CONFIG_LOG_NAME
from .encoding import decision_bytes, decision_of, topology_bytes, topology_of
from .journal import Recovered
from .journal_format import (
    NO_TERM,
    AcceptedRecord,
    AppendedRecord,
    DecidedRecord,
    PromisedRecord,
    SnapshotRecord,
)
from .messages import Acceptance, Note, PromisedTerm
from .voter import Voter


@dataclass(frozen=True, slots=True, kw_only=True)
class NotedRecords:
    """What a batch of notes comes to: first the snapshot, if there is one, then the records.

    ``accepted`` is what the journal holds as accepted last, for the next batch.
    """

    snapshot: SnapshotRecord | None
    records: tuple[AppendedRecord, ...]
    accepted: Acceptance | None


def noted_records(notes: Iterable[Note], accepted: Acceptance | None) -> NotedRecords:
    """Return how notes are written behind a journal in which ``accepted`` was accepted last.

    A topology that was fetched is a snapshot.  What was noted of decisions before it is in it.
    """
    snapshot: SnapshotRecord | None = None
    records: list[AppendedRecord] = []
    for note in notes:
        match note:
            case PromisedTerm(term):
                records.append(PromisedRecord(term))
            case Acceptance(term, decision):
                accepted = note
                records.append(PromisedRecord(term))
                records.append(AcceptedRecord(decision.index, term, decision_bytes(decision)))
            case Decision():
                if accepted is None or accepted.decision != note:
                    records.append(AcceptedRecord(note.index, NO_TERM, decision_bytes(note)))
                records.append(DecidedRecord(note.index))
            case Topology():
                snapshot = snapshot_of(note)
                records = [record for record in records if isinstance(record, PromisedRecord)]
    return NotedRecords(snapshot=snapshot, records=tuple(records), accepted=accepted)


def snapshot_of(topology: Topology) -> SnapshotRecord:
    """Return the snapshot that a topology is; nobody asks for the term of its last decision."""
    return SnapshotRecord(topology.index, NO_TERM, topology_bytes(topology))


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What a journal that was opened tells the next machine.

    ``decisions`` are those behind the snapshot, in order.  ``damage`` says why the voter may not
    vote, and the topology may be old; else it is None.
    """

    topology: Topology
    decisions: tuple[Decision, ...]
    voter: Voter
    damage: str | None


def restored(recovered: Recovered) -> Restored:
    """Return where a machine goes on, by what its journal held."""
    topology, decisions = Topology(), list[Decision]()
    accepted, damage = None, recovered.damage
    try:
        if recovered.snapshot is not None:
            topology = topology_of(recovered.snapshot.data)
        for record in recovered.accepted:
            decision = decision_of(record.change)
            if decision.index != record.index:
                raise ChangeError(f"decision {decision.index} stands at index {record.index}")
            if record.index <= recovered.decided:
                topology = applied(topology, decision)
                decisions.append(decision)
            else:
                accepted = Acceptance(record.term, decision)
        following = topology.index + 1
        if following <= recovered.decided or (accepted and accepted.decision.index != following):
            raise ChangeError(f"decision {following} is missing")
    except (UndecodableRecordError, ChangeError) as error:
        damage = damage or f"{CONFIG_LOG_NAME}, behind decision {topology.index}: {error}"
    promised = recovered.promised
    voter = Voter(
        promised=promised if accepted is None else max(promised, accepted.term),
        accepted=accepted,
        may_vote=damage is None,
    )
    return Restored(topology=topology, decisions=tuple(decisions), voter=voter, damage=damage)
