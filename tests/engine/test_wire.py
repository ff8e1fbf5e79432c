"""What members tell each other arrives as it was told, and nonsense ends the connection."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from uuid import UUID

import pytest
from hypothesis import given, settings, strategies as st

from support.agreement_net import Disk, Net, begun, storm
from support.decisions import MEMBERS, change_of, history_of
from support.journals import new_journal, reopened, write
from support.messages import messages_of, values
from tidelog.affinity.changes import Decision, Joined, NamespaceMade
from tidelog.affinity.folding import applied
from tidelog.affinity.partitions import PARTITIONS_MAX
from tidelog.affinity.takeovers import takeovers_due
from tidelog.affinity.topology import Incarnation, Topology
from tidelog.engine.agreement import machine
from tidelog.engine.agreement.encoding import decision_bytes
from tidelog.engine.agreement.identity import DiskIdentity
from tidelog.engine.agreement.journal_format import BATCH_MAX, DecidedRecord, encode_records
from tidelog.engine.agreement.machine import Agreement
from tidelog.engine.agreement.messages import (
    Acceptance,
    Accepted,
    AskPromise,
    ChangeRefused,
    Credentials,
    Decided,
    Envelope,
    Fetch,
    Guard,
    Join,
    JoinRefused,
    Lease,
    Ping,
    Pong,
    Promise,
    Propose,
    ProposeChange,
    Release,
    Telling,
    Term,
)
from tidelog.engine.agreement.noting import noted_records, restored, snapshot_of
from tidelog.engine.agreement.timing import Timing
from tidelog.engine.agreement.voter import Voter
from tidelog.engine.agreement.wire import DECIDED_BYTES, envelope_of, message_of, telling_of
from tidelog.engine.net.frames import KNOWN, FrameDecoder, FrameError, Message, frame, pack_message
from tidelog.engine.net.handshake import Introduction
from tidelog.engine.net.kinds import BY_NAME, CONTROL, checked_message
from tidelog.testing import FaultyDisk

ADA = MEMBERS[0]
ADA_2 = Incarnation(ADA, 2)
TERM, LATER = Term(3, ADA), Term(4, MEMBERS[1])
DECISIONS, TOPOLOGIES = history_of(5, 8)
CHANGE = change_of(Random(1), TOPOLOGIES[1])
DISK = Credentials(incarnation=ADA_2, last=b"last", fresh=b"fresh", end=7)
ACCEPTED = Acceptance(TERM, DECISIONS[3])
PROMISE = Promise(
    term=LATER, sure=True, granted=True, promised=TERM, credentials=DISK, accepted=ACCEPTED
)

TELLINGS: list[Telling] = [
    AskPromise(term=TERM, sure=False),
    PROMISE,
    replace(PROMISE, sure=False, granted=False, accepted=None),
    Propose(term=TERM, decision=DECISIONS[0]),
    Accepted(term=TERM, index=5, promised=LATER),
    Decided(decisions=tuple(DECISIONS)),
    Decided(decisions=(), topology=TOPOLOGIES[-1]),
    Fetch(after=4),
    Ping(term=TERM, round=9),
    Pong(term=TERM, round=9, votes=True, promised=LATER, end=3, reaches=frozenset(MEMBERS[:3])),
    Lease(term=TERM, round=9, seconds=1.25),
    Release(partition=3, epoch=2),
    Join(credentials=DISK, address="ada:7400"),
    JoinRefused(incarnation=ADA_2, nonce=b"n", reason="it is an old image"),
    ProposeChange(request=6, change=CHANGE),
    ProposeChange(request=6, change=CHANGE, guards=(Guard(1, 2, 3), Guard(4, 5, 6))),
    ProposeChange(request=6, change=CHANGE, after=4),
    ChangeRefused(request=6, reason="there is no partition 7"),
    ChangeRefused(request=6, reason="there are other maps", stale=True),
]
KINDS = sorted({message_of(telling)[0] for telling in TELLINGS})


def carried(message: Message) -> Message:
    """A message behind its way over a control connection."""
    [found] = FrameDecoder(KNOWN).feed(frame([pack_message(message)]))
    return checked_message(found, CONTROL)


@pytest.mark.parametrize("telling", TELLINGS, ids=lambda telling: type(telling).__name__)
def test_what_is_told_arrives(telling: Telling) -> None:
    assert telling_of(carried(message_of(telling))) == telling


def test_there_is_a_telling_of_every_class_here() -> None:
    assert {type(telling) for telling in TELLINGS} == set(Telling.__args__)


@given(st.floats(0, 10))
def test_a_lease_never_gets_longer(seconds: float) -> None:
    found = telling_of(carried(message_of(Lease(term=TERM, round=1, seconds=seconds))))
    assert isinstance(found, Lease)
    assert seconds - 2e-6 < found.seconds <= seconds


@pytest.mark.parametrize("seed", [0, 2, 3])
def test_members_agree_through_a_storm_over_the_wire_and_from_their_journals(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As bytes both ways: what is told, and what a disk holds when its member is started."""
    real = Net._post
    snapshots: list[Topology] = []

    def post(self: Net, target: UUID, envelope: Envelope) -> None:
        message = telling_of(carried(message_of(envelope.message)))
        real(self, target, replace(envelope, message=message))

    def read(self: Disk) -> tuple[Topology, list[Decision], Term, Acceptance | None]:
        disk = FaultyDisk()
        journal, accepted = new_journal(disk), None
        for note in self.notes:
            accepted = write(journal, [note], accepted)
        snapshots.extend(note for note in self.notes if isinstance(note, Topology))
        found = restored(reopened(disk)[1])
        assert found.damage is None
        return found.topology, [*found.decisions], found.voter.promised, found.voter.accepted

    monkeypatch.setattr(Net, "_post", post)
    monkeypatch.setattr(Disk, "read", read)
    monkeypatch.setattr(machine, "DECISIONS_MAX", 2)
    storm(seed)
    assert snapshots


# ------------------------------------------------------------------ nonsense


def with_field(telling: Telling, at: int, value: object) -> Message:
    message = message_of(telling)
    message[at] = value
    return carried(message)


NO_ID = [3, b"short"]
PING, CHANGED = TELLINGS[8], TELLINGS[15]


@pytest.mark.parametrize(
    ("telling", "at", "value", "reason"),
    [
        (PING, 1, NO_ID, "ping: expected the 16 bytes of an id, found 5 of bytes"),
        (PING, 1, [-1, ADA.bytes], "ping: expected a number of 63 bits, found -1"),
        (PING, 1, [1 << 63, ADA.bytes], "ping: expected a number of 63 bits"),
        (PING, 1, [3], "ping: expected 2 fields, found 1"),
        (PING, 2, -1, "ping: expected a number of 63 bits, found -1"),
        (TELLINGS[9], 6, [b"short"], "pong: expected the 16 bytes of an id, found 5 of bytes"),
        (PROMISE, 4, NO_ID, "promise: expected the 16 bytes of an id"),
        (PROMISE, 5, [ADA.bytes, 2, "last", b"", 1], "promise: expected bytes, found 4 of str"),
        (PROMISE, 6, [], "promise: expected 2 fields, found 0"),
        (PROMISE, 6, [[3, ADA.bytes], b"\x90"], "promise: expected 4 fields, found 0"),
        (PROMISE, 6, [3, b""], "promise: expected an array, found 3"),
        (TELLINGS[3], 2, b"\x94\x01\x90\x90\x91\x91\x63", "propose: expected a change of kind"),
        (TELLINGS[5], 1, [b""], "decided: "),
        (TELLINGS[6], 2, b"\x94", "decided: "),
        (TELLINGS[7], 1, -1, "fetch: expected a number of 63 bits, found -1"),
        (TELLINGS[10], 3, -1, "lease: expected a number of 63 bits, found -1"),
        (TELLINGS[11], 1, -1, "release: expected a number of 63 bits, found -1"),
        (TELLINGS[13], 1, b"", "join-refused: expected the 16 bytes of an id"),
        (CHANGED, 2, decision_bytes(Decision(0, ())), "propose-change: expected one change"),
        (CHANGED, 3, [1], "propose-change: "),
        (CHANGED, 3, [1, -1], "propose-change: expected a number of 63 bits, found -1"),
    ],
)
def test_nonsense_of_the_right_type_is_refused(
    telling: Telling, at: int, value: object, reason: str
) -> None:
    message = with_field(telling, at, value)
    with pytest.raises(FrameError, match=f"^{reason}"):
        telling_of(message)


def test_what_members_do_not_say_yet_is_refused() -> None:
    with pytest.raises(FrameError, match=r"^leave is not said to members of this version$"):
        telling_of(BY_NAME["leave"].message(ADA.bytes, 1))


@given(st.sampled_from(KINDS), st.data())
@settings(max_examples=300)
def test_any_message_is_something_told_or_a_frame_error(kind: int, data: st.DataObject) -> None:
    (known,) = (one for one in BY_NAME.values() if one.number == kind)
    check_any(data.draw(messages_of(known)))


@given(st.sampled_from(TELLINGS), st.data())
@settings(max_examples=300)
def test_a_telling_with_nonsense_in_it_is_something_told_or_a_frame_error(
    telling: Telling, data: st.DataObject
) -> None:
    message = message_of(telling)
    inner, lowest = message, 1
    while True:
        at = data.draw(st.integers(lowest, len(inner) - 1))
        if not isinstance(inner[at], list) or not inner[at] or data.draw(st.booleans()):
            break
        inner, lowest = inner[at], 0
    inner[at] = data.draw(values)
    check_any(message)


def check_any(message: Message) -> None:
    try:
        telling = telling_of(checked_message(message, CONTROL))
    except FrameError:
        return
    assert telling_of(carried(message_of(telling))) == telling


# ------------------------------------------------------------------ envelopes


def test_an_envelope_is_what_the_connection_says_and_the_message() -> None:
    sender = Introduction(
        role="member",
        channel="control",
        member=ADA.bytes,
        boot=2,
        nonce=b"fresh",
        cluster=UUID(int=9).bytes,
    )
    envelope = envelope_of(sender, 7, message_of(PING))
    assert envelope == Envelope(
        sender=ADA_2, nonce=b"fresh", cluster=UUID(int=9), decided=7, message=PING
    )
    assert envelope_of(replace(sender, cluster=b""), 7, message_of(PING)).cluster is None
    with pytest.raises(FrameError, match="ping"):
        envelope_of(sender, 7, with_field(PING, 2, -1))


# ------------------------------------------------------------------ sizes


def large() -> tuple[Topology, Decision]:
    """The largest topology, of seven members with six backups, and the largest decision on it."""
    first = applied(Topology(), begun(7, PARTITIONS_MAX, 6))
    joined = tuple(
        Joined(incarnation=Incarnation(member, 1), nonce=bytes(16), address="host:7400")
        for member in first.members
    )
    topology = applied(first, Decision(2, joined))
    return topology, Decision(3, tuple(takeovers_due(topology)))


def test_the_largest_topology_and_decision_fit_into_a_frame_and_into_the_journal() -> None:
    topology, decision = large()
    assert len(decision.changes) == PARTITIONS_MAX
    told: list[Telling] = [
        Decided(decisions=(), topology=topology),
        Decided(decisions=(decision, decision)),
        Propose(term=TERM, decision=decision),
    ]
    for telling in told:
        assert len(pack_message(message_of(telling))) < DECIDED_BYTES
    assert telling_of(carried(message_of(told[0]))) == told[0]
    assert telling_of(carried(message_of(told[2]))) == told[2]
    written = noted_records([decision], None)
    assert len(encode_records(written.records)) < BATCH_MAX // 10
    assert len(encode_records([snapshot_of(topology), DecidedRecord(2)])) < BATCH_MAX // 10


def long_decisions() -> list[Decision]:
    """Decisions on the first topology of which two fit into a message."""
    return [
        Decision(
            index,
            (
                NamespaceMade(
                    name=f"{index}".ljust(DECIDED_BYTES * 2 // 5, "."),
                    key_codec="str",
                    key_version=1,
                    value_codec="str",
                    value_version=1,
                    space=0,
                ),
            ),
        )
        for index in range(2, 7)
    ]


def test_of_many_large_decisions_the_first_few_are_told() -> None:
    decisions = long_decisions()
    found = telling_of(carried(message_of(Decided(decisions=tuple(decisions)))))
    assert found == Decided(decisions=tuple(decisions[:2]))
    larger = Decision(2, tuple(change for one in decisions for change in one.changes))
    found = telling_of(carried(message_of(Decided(decisions=(larger, larger)))))
    assert found == Decided(decisions=(larger,))


def test_who_is_still_behind_asks_again() -> None:
    first = applied(Topology(), begun(3, 3))
    behind = Agreement(
        disk=DiskIdentity(member=ADA).started(first, b"n"),
        address="ada:7400",
        topology=first,
        voter=Voter(),
        timing=Timing(),
        uniform=lambda: 0.5,
        now=0.0,
    )
    decisions = long_decisions()
    asked = []
    sender = Incarnation(MEMBERS[1], 1)
    for _ in range(4):
        left = tuple(decisions[behind.topology.index - 1 :])
        message = telling_of(message_of(Decided(decisions=left)))
        behind.step(
            Envelope(sender=sender, nonce=b"", cluster=first.cluster, decided=6, message=message),
            0.0,
        )
        ready = behind.ready()
        if ready is None:
            break
        behind.advance(0.0)
        asked += [outgoing.envelope.message for outgoing in ready.send]
    assert behind.topology.index == 6
    assert asked == [Fetch(after=3), Fetch(after=5)]
