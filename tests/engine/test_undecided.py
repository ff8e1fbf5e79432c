"""What is prepared here and not decided: whose keys are in the way, and what became of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from support.takeovers import state_of
from tidelog.affinity.topology import Incarnation
from tidelog.engine.commit.context import AutomaticIds, CommitContext
from tidelog.engine.commit.outcomes import Outcome
from tidelog.engine.data.updates import NoUpdates
from tidelog.engine.node.prepared import (
    ClientCommit,
    EndCommit,
    GroupPart,
    Undecided,
    outcome_of,
)
from tidelog.engine.replication.streams import Streams
from tidelog.wal.records import (
    AdmitRecord,
    CommitRecord,
    Participant,
    PrepareRecord,
    Record,
    RollbackRecord,
    Run,
    Settled,
    SettledOutcome,
    SettleRecord,
    SuppliedRecord,
    TxRecord,
    decode_payload,
)

TX, OTHER = b"t" * 16, b"o" * 16


def writes(*keys: bytes) -> Any:
    return SimpleNamespace(full_keys=lambda: keys)


def test_keys_are_in_the_way_until_the_last_of_their_writers_is_decided() -> None:
    undecided = Undecided()
    one, two = writes(b"a", b"b"), writes(b"b")
    undecided.add(one)
    undecided.add(two)
    assert undecided.changed({b"a", b"b", b"c"}) == {b"a", b"b"}
    undecided.remove(one)
    assert (undecided.changed({b"a", b"b"}), len(undecided)) == ({b"b"}, 1)
    undecided.remove(two)
    assert (undecided.changed({b"a", b"b"}), len(undecided)) == (set(), 0)


# ------------------------------------------------------------------ what became of it


def prepared(
    first: int, tx_id: bytes = TX, epoch: int = 1, partition: int = 0, others: Sequence[int] = ()
) -> PrepareRecord:
    return PrepareRecord(
        tx_id=tx_id, attempt=1, near=(b"n" * 16, 1), time=1, home=0,
        participants=tuple(Participant(one, epoch, 1) for one in (partition, *others)),
        run=Run(partition, epoch, first, 1), namespaces=16, keys=[b"k"], values=[b"v"],
    )  # fmt: skip


def settled(outcome: SettledOutcome, epoch: int = 2, partition: int = 0) -> SettleRecord:
    one = Settled(TX, 1, Run(0, 1, 7, 1), outcome, 5, None)
    another = one._replace(tx_id=OTHER, outcome=SettledOutcome.PENDING)
    return SettleRecord(
        partition=partition, epoch=epoch, start=8, transactions=(another, one), closed=()
    )


def ended(*applied: int) -> CommitRecord:
    runs = Run(0, 1, 4, 1), Run(1, 1, 4, 1)
    return CommitRecord(tx_id=TX, attempt=1, time=5, participants=runs, applied=applied)


def undone(partition: int) -> RollbackRecord:
    return RollbackRecord(tx_id=TX, time=5, reason="refused", runs=(Run(partition, 1, 4, 1),))


def brought(partition: int) -> SuppliedRecord:
    return SuppliedRecord(
        partition=partition, admission=9, source=b"n" * 16, transactions=(), closed=()
    )


def admitted(partition: int) -> AdmitRecord:
    return AdmitRecord(
        partition=partition, admission=9, epochs=((1, 1),), lwm=3, ranges=(), hwm=9, dropped=(TX,)
    )


ALONE_WRITTEN = TxRecord(
    tx_id=TX, time=5, runs=(Run(0, 1, 4, 1),), namespaces=16, keys=[b"k"], values=[b"v"]
)
PART, THERE = prepared(4, others=[1]), prepared(4, partition=1, others=[0])
"""What a transaction of two groups has in the partition of its home, and in the other one."""


@pytest.mark.parametrize(
    ("found", "outcome"),
    [
        ([], "rolled_back"),
        ([prepared(4)], "committed"),  # its numbers are of its epoch
        ([prepared(7)], "rolled_back"),  # a newer one has given them to others
        ([prepared(7, epoch=2)], "committed"),
        ([prepared(7), settled(SettledOutcome.COMMITTED)], "committed"),
        ([prepared(4), settled(SettledOutcome.ROLLED_BACK)], "rolled_back"),
        ([prepared(4), settled(SettledOutcome.PENDING)], "committed"),
        ([prepared(7), settled(SettledOutcome.COMMITTED, epoch=3)], "rolled_back"),
        ([prepared(4), settled(SettledOutcome.ROLLED_BACK, epoch=3)], "committed"),
        ([ALONE_WRITTEN], "committed"),
        # Of several groups: the end counts, and without one it was closed.
        ([PART], "rolled_back"),
        ([PART, ended(0)], "committed"),
        ([PART, undone(0)], "rolled_back"),
        ([PART, settled(SettledOutcome.COMMITTED)], "committed"),
        ([PART, settled(SettledOutcome.ROLLED_BACK)], "rolled_back"),
        ([PART, settled(SettledOutcome.PENDING)], "rolled_back"),
        ([PART, settled(SettledOutcome.PENDING), ended(0)], "committed"),
        ([PART, settled(SettledOutcome.COMMITTED, epoch=3)], "rolled_back"),
        ([brought(0)], "committed"),
        # What was pending when a copy was admitted was cut: the supply has it, or nobody has.
        ([prepared(4), admitted(0)], "rolled_back"),
        ([prepared(4), admitted(0), brought(0)], "committed"),
        ([prepared(4), admitted(0), prepared(4)], "committed"),
        ([prepared(4), admitted(1)], "committed"),
        # What is here of another partition says nothing of the home.
        ([THERE], "rolled_back"),
        ([THERE, ended(1)], "rolled_back"),
        ([PART, THERE, ended(1), ended(0)], "committed"),
        ([PART, ended(0), undone(1)], "committed"),
        ([PART, ended(0), settled(SettledOutcome.ROLLED_BACK, partition=1)], "committed"),
        ([PART, settled(SettledOutcome.COMMITTED, partition=1)], "rolled_back"),
        ([brought(1)], "rolled_back"),
    ],
)
def test_the_outcome_is_what_the_epochs_and_the_lists_that_count_say(
    found: list[Record], outcome: str
) -> None:
    state = state_of()
    state.epoch_tables[0], state.epochs[0] = ((1, 1), (2, 6)), 2
    state.copies.prepared(0).add(prepared(9, OTHER, epoch=2))
    state.copies.prepared(1).add(THERE)
    assert outcome_of(found, TX, 0, state) == outcome
    state.copies.prepared(0).add(prepared(4))
    if found[:1] in ([prepared(4)], [PART]):
        assert outcome_of(found, TX, 0, state) == "pending"


@pytest.mark.parametrize("known", ["committed", "rolled_back", "pending"])
def test_an_outcome_that_is_known_needs_no_records(known: Outcome) -> None:
    assert outcome_of(known, TX, 0, state_of()) == known


# ------------------------------------------------------------------ its client


class Client:
    """A commit, and what its client was told."""

    def __init__(self, streams: Streams) -> None:
        self.commit = ClientCommit(NoUpdates(), streams, (b"n" * 16, 1), tx_id=TX)
        self.commit._runs = (0, 1, 4, 1)
        self.commit.record_prepared = prepared(4)
        self.told: list[str] = []
        self.commit.then = lambda: self.told.append("committed")
        self.commit.undo = lambda: self.told.append(type(self.commit.error).__name__)


def context() -> Any:
    return SimpleNamespace(state=SimpleNamespace(apply=lambda _end, _record: None))


def test_a_client_is_told_once_that_its_commit_was_forsaken() -> None:
    client = Client(Streams())
    client.commit.forsaken()
    client.commit.forsaken()
    client.commit.decided()
    assert client.told == ["CommitUnknownError"]


def test_a_client_that_was_told_that_nobody_knows_is_not_told_again() -> None:
    client = Client(Streams())
    client.commit.unknown(OSError())
    client.commit.decided()
    client.commit.forsaken()
    assert client.told == []


def test_a_commit_whose_epoch_ended_during_its_sync_is_forsaken() -> None:
    streams = Streams()
    for epoch, told in ((0, ["CommitUnknownError"]), (2, ["CommitUnknownError"]), (1, [])):
        if epoch:
            streams.open(0, epoch, (), 0.0)
        client = Client(streams)
        client.commit.apply(context(), 100)
        assert client.told == told


# ------------------------------------------------------------------ of several groups


def record_of(commit: ClientCommit) -> bytes:
    """Return what a commit of one key writes, once it has its numbers."""
    commit._runs = (0, 1, 4, 1)
    overlay: Any = None  # nothing is read
    around = CommitContext(
        state_of(), overlay, AutomaticIds(b"opening1"), position=0, now=lambda: 1.0,
        note_given_id=lambda _tx_id: None,
    )  # fmt: skip
    return commit._record_of(around, 16, [b"k"], [b"v"])


@pytest.mark.parametrize("shared", [False, True])
def test_a_part_of_several_groups_is_always_prepared(shared: bool) -> None:
    streams, participants = Streams(), (Participant(0, 1, 1), Participant(1, 1, 2))
    streams.open(0, 1, [Incarnation(UUID(int=2), 1)] if shared else [], 0.0)
    part = GroupPart(participants, 1, [(16, b"read")])
    commit = ClientCommit(NoUpdates(), streams, (b"n" * 16, 1), 3, part, tx_id=TX)
    data = record_of(commit)
    assert commit.record_prepared == PrepareRecord(
        tx_id=TX, attempt=3, near=(b"n" * 16, 1), time=0, home=1, participants=participants,
        run=Run(0, 1, 4, 1), namespaces=16, keys=[b"k"], values=[b"v"], locks=[(16, b"read")],
    )  # fmt: skip
    assert decode_payload(data) == [commit.record_prepared]


@pytest.mark.parametrize("part", [None, GroupPart((Participant(0, 1, 1),), 0, None)])
def test_what_is_of_one_group_is_prepared_only_if_others_have_it(part: GroupPart | None) -> None:
    streams = Streams()
    for others, prepares in ([], False), ([Incarnation(UUID(int=2), 1)], True):
        streams.open(0, 1, others, 0.0)
        commit = ClientCommit(NoUpdates(), streams, (b"n" * 16, 1), 1, part, tx_id=TX)
        (record,) = decode_payload(record_of(commit))
        assert isinstance(record, PrepareRecord) is prepares
        assert (commit.record_prepared is not None) is prepares


def test_an_end_has_the_record_that_is_made_for_its_time() -> None:
    said: list[str] = []
    commit = EndCommit(0, 1, lambda time: replace(ended(0), time=time), lambda: said.append("end"))
    assert (commit.partition, commit.epoch, commit.record_ended) == (0, 1, None)
    assert commit.record is not None
    assert decode_payload(commit.record(77)) == [replace(ended(0), time=77)]
    assert commit.ended() == [commit.record_ended] == [replace(ended(0), time=77)]
    commit.forsaken()
    assert said == []
    commit.decided()
    assert said == ["end"]
