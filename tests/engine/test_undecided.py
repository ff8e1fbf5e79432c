"""What is prepared here and not decided: whose keys are in the way, and what became of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from support.takeovers import state_of
from tidelog.engine.data.updates import NoUpdates
from tidelog.engine.node.prepared import ClientCommit, Undecided, outcome_of
from tidelog.engine.replication.streams import Streams
from tidelog.wal.records import (
    Participant,
    PrepareRecord,
    Record,
    Run,
    Settled,
    SettledOutcome,
    SettleRecord,
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


def prepared(first: int, tx_id: bytes = TX, epoch: int = 1) -> PrepareRecord:
    return PrepareRecord(
        tx_id=tx_id, attempt=1, near=(b"n" * 16, 1), time=1, home=0,
        participants=(Participant(0, epoch, 1),), run=Run(0, epoch, first, 1), namespaces=16,
        keys=[b"k"], values=[b"v"],
    )  # fmt: skip


def settled(outcome: SettledOutcome, epoch: int = 2) -> SettleRecord:
    one = Settled(TX, 1, Run(0, 1, 7, 1), outcome, 5, None)
    another = one._replace(tx_id=OTHER, outcome=SettledOutcome.PENDING)
    return SettleRecord(partition=0, epoch=epoch, start=8, transactions=(another, one), closed=())


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
    ],
)
def test_the_outcome_is_what_the_epochs_and_the_lists_that_count_say(
    found: list[Record], outcome: str
) -> None:
    state = state_of()
    state.epoch_tables[0], state.epochs[0] = ((1, 1), (2, 6)), 2
    state.copies.prepared(0).add(prepared(9, OTHER, epoch=2))
    assert outcome_of(found, TX, state) == outcome
    state.copies.prepared(0).add(prepared(4))
    if found[:1] == [prepared(4)]:
        assert outcome_of(found, TX, state) == "pending"


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
