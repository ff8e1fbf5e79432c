"""How a member takes a snapshot of the whole store: whom it asks, how often, what is shown."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import count, permutations
from typing import Any
from uuid import UUID

import pytest

from support.group_transactions import AUTHORS, BOB, CID, ME, OTHER, PARTITIONS, TX, Told, topology
from support.primaries import Leases
from tidelog.affinity.topology import Incarnation, Topology
from tidelog.engine.net.kinds import BY_NUMBER
from tidelog.engine.node.partitions import Partitions, RoutedError
from tidelog.engine.node.snapshots import (
    ATTEMPT_S_MAX,
    ATTEMPTS_MAX,
    Snapshots,
    TakenSnapshot,
    shown_of,
)
from tidelog.engine.node.tx_messages import PinnedHere, PreparedAtPin
from tidelog.errors import (
    NotEnoughMembersError,
    PartitionUnavailableError,
    SnapshotExpiredError,
)

EVERYBODY = (ME, BOB, CID)
ELSEWHERE = Incarnation(UUID(int=99), 1)
"""A member that serves nothing: what it says goes to all in their order."""
DECIDED = 9
"""Decisions that have taken effect, in topologies of tests."""
SERVED = {
    one: [partition for partition in range(PARTITIONS) if AUTHORS[partition] == one]
    for one in EVERYBODY
}


class Taker:
    """One that takes snapshots, and what became of them."""

    def __init__(self, me: Incarnation = ELSEWHERE) -> None:
        self.now, self.post = 100.0, Told()
        post: Any = self.post
        numbers = count(1)
        self.leases = Leases(me)
        self.snapshots = Snapshots(
            me, Partitions(self.leases, 0.0), post, lambda: name(next(numbers)), lambda: self.now
        )
        self.decide(topology())
        self.ended: list[TakenSnapshot | Exception] = []

    def decide(self, topology: Topology) -> None:
        self.leases.topology = topology
        self.snapshots.decided(topology)

    def take(self, patience: float = 10.0) -> None:
        self.snapshots.take(self.now + patience, self.ended.append)

    def pinned(self, *members: Incarnation, number: int = 1, **more: Any) -> None:
        for member in members:
            self.snapshots.pinned(member, told(member, number=number, **more))

    def held(
        self, *members: Incarnation, attempt: int = 1, number: int = 1, still: bool = True
    ) -> None:
        for member in members:
            self.snapshots.held(member, name(number), attempt, still=still)

    def said(self) -> list[tuple[str, str, int]]:
        """To whom what was said since the last call, and of which attempt."""
        return [(to, kind, what[1]) for to, kind, what in self.post.said()]

    def passes(self, seconds: float) -> None:
        self.now += seconds
        self.snapshots.tick()


def name(number: int) -> bytes:
    """The id of the n-th snapshot."""
    return number.to_bytes(16, "big")


def told(
    member: Incarnation, *, number: int = 1, attempt: int = 1, decided: int = DECIDED,
    partitions: list[int] | None = None, prepared: Iterable[PreparedAtPin] = (),
    committed: Iterable[tuple[int, bytes]] = (),
) -> PinnedHere:  # fmt: skip
    served = SERVED[member] if partitions is None else partitions
    return PinnedHere(name(number), attempt, decided, served, list(prepared), list(committed))


def to_all(kind: str, attempt: int = 1) -> list[tuple[str, str, int]]:
    return [(to, kind, attempt) for to in ("me", "bob", "cid")]


def the_answer(at: Taker) -> TakenSnapshot:
    [found] = at.ended
    assert isinstance(found, TakenSnapshot)
    return found


def the_error(at: Taker) -> Exception:
    [found] = at.ended
    assert isinstance(found, Exception)
    return found


# ------------------------------------------------------------------ all goes well


@pytest.mark.parametrize("order", list(permutations(EVERYBODY)))
def test_all_who_serve_anything_pin_then_all_go_on_then_it_is_taken(
    order: tuple[Incarnation, ...],
) -> None:
    at = Taker()
    at.take()
    assert at.post.said() == [
        (to, "pin", (name(1), 1, DECIDED)) for to in ("me", "bob", "cid")
    ]  # fmt: skip
    for member in order:
        assert at.said() == [], "nobody goes on before all have pinned"
        at.pinned(member)
    assert at.said() == to_all("resume")
    for member in order:
        assert at.ended == []
        at.held(member, order[0])
    assert the_answer(at) == TakenSnapshot(name(1), SERVED, [])
    assert "0 are being taken" in repr(at.snapshots)


def test_only_members_that_serve_something_are_asked() -> None:
    at = Taker()
    at.decide(topology(authors=dict.fromkeys(range(PARTITIONS), BOB)))
    at.take()
    assert at.said() == [("bob", "pin", 1)]
    at.pinned(BOB, partitions=list(range(PARTITIONS)))
    at.held(BOB)
    assert the_answer(at).members == {BOB: list(range(PARTITIONS))}


def test_several_are_taken_at_a_time() -> None:
    at = Taker()
    at.take()
    at.take()
    assert "2 are being taken" in repr(at.snapshots)
    at.pinned(*EVERYBODY, number=2)
    at.held(*EVERYBODY, number=2)
    assert the_answer(at).snapshot == name(2)
    at.pinned(*EVERYBODY)
    at.held(*EVERYBODY)
    assert [one.snapshot for one in at.ended if isinstance(one, TakenSnapshot)] == [
        name(2), name(1)
    ]  # fmt: skip


def test_a_snapshot_shows_what_all_groups_have_prepared() -> None:
    at = Taker()
    at.take()
    at.pinned(ME, prepared=[PreparedAtPin(0, TX, [0, 1]), PreparedAtPin(4, OTHER, [3, 4])])
    at.pinned(BOB, committed=[(1, TX)])
    at.pinned(CID)
    at.held(*EVERYBODY)
    assert the_answer(at).shown == [TX]


# ------------------------------------------------------------------ words that do not count


def test_pins_of_another_attempt_decision_or_snapshot_do_not_count() -> None:
    at = Taker()
    at.take()
    at.said()
    at.pinned(ME, BOB)
    for wrong in ({"attempt": 0}, {"attempt": 2}, {"decided": 8}, {"decided": 10}, {"number": 2}):
        at.pinned(CID, **wrong)
    at.snapshots.pinned(Incarnation(CID.member, CID.boot + 1), told(CID))
    at.pinned(ME, BOB)
    assert at.said() == []
    at.pinned(CID)
    assert at.said() == to_all("resume")


def test_who_says_again_that_it_has_pinned_is_not_told_again_to_go_on() -> None:
    at = Taker()
    at.take()
    at.pinned(*EVERYBODY)
    at.said()
    at.pinned(*EVERYBODY, partitions=[])
    assert at.said() == []
    at.held(*EVERYBODY)
    assert the_answer(at).members == SERVED


def test_words_of_holds_count_for_their_attempt_and_once_all_have_pinned() -> None:
    at = Taker()
    at.take()
    at.held(*EVERYBODY)
    at.held(ME, still=False)
    at.pinned(*EVERYBODY)
    at.said()
    for attempt in (0, 2):
        at.held(*EVERYBODY, attempt=attempt)
        at.held(ME, attempt=attempt, still=False)
    at.held(*EVERYBODY, number=2)
    at.held(Incarnation(ME.member, ME.boot + 1), BOB, CID)
    assert (at.ended, at.said()) == ([], [])
    at.held(ME)
    assert the_answer(at).members == SERVED


def test_words_that_come_behind_the_end_are_dropped() -> None:
    at = Taker()
    at.take()
    at.pinned(*EVERYBODY)
    at.held(*EVERYBODY)
    at.said()
    at.pinned(*EVERYBODY)
    at.held(*EVERYBODY, still=False)
    at.passes(100.0)
    assert (len(at.ended), at.said()) == (1, [])


# ------------------------------------------------------------------ attempts


def test_if_one_has_not_held_all_pin_anew() -> None:
    at = Taker()
    at.take()
    at.pinned(ME, BOB)
    at.pinned(CID, prepared=[PreparedAtPin(3, TX, [3])])
    at.held(ME)
    at.said()
    at.held(BOB, still=False)
    assert at.said() == to_all("pin", 2)
    at.held(CID)
    at.held(CID, attempt=2)
    assert at.ended == []
    at.pinned(*EVERYBODY, attempt=2)
    assert at.said() == to_all("resume", 2)
    at.held(*EVERYBODY, attempt=2)
    assert the_answer(at) == TakenSnapshot(name(1), SERVED, []), "of the second pins"


def test_after_too_many_attempts_it_is_given_up() -> None:
    at = Taker()
    at.take()
    for attempt in range(1, ATTEMPTS_MAX + 1):
        assert (at.ended, at.said()) == ([], to_all("pin", attempt))
        at.pinned(*EVERYBODY, attempt=attempt)
        at.said()
        at.held(BOB, attempt=attempt, still=False)
    assert at.said() == []
    error = the_error(at)
    assert isinstance(error, SnapshotExpiredError)
    assert f"no moment was found in {ATTEMPTS_MAX} attempts" in str(error)


def test_an_attempt_that_takes_too_long_ends_and_who_has_pinned_goes_on() -> None:
    at = Taker()
    at.take()
    at.pinned(BOB, CID)
    at.said()
    at.passes(ATTEMPT_S_MAX)
    assert at.said() == []
    at.passes(0.01)
    assert at.said() == [("bob", "resume", 1), ("cid", "resume", 1), *to_all("pin", 2)]
    at.pinned(ME)
    at.pinned(*EVERYBODY, attempt=2)
    at.said()
    at.passes(ATTEMPT_S_MAX)
    assert at.said() == [], "each attempt has its own time"
    at.passes(0.01)
    assert at.said() == to_all("pin", 3), "they were told to go on before"


def test_what_takes_longer_than_its_client_waits_is_given_up() -> None:
    at = Taker()
    at.take(0.25)
    at.take()
    at.said()
    at.passes(0.25)
    assert at.ended == []
    at.passes(0.01)
    error = the_error(at)
    assert isinstance(error, RoutedError)
    assert (error.answer, str(error)) == ("wait", "members have not answered")
    assert at.said() == []
    at.passes(0.01)
    assert len(at.ended) == 1


def test_while_an_author_is_away_none_is_taken() -> None:
    at = Taker()
    at.decide(topology(away=(CID,)))
    at.take()
    error = the_error(at)
    assert isinstance(error, PartitionUnavailableError), "nobody else has what Cid serves"
    assert at.said() == []
    at = Taker()
    at.decide(topology(away=(CID,)))
    at.leases.has_majority = False
    at.take()
    assert isinstance(the_error(at), NotEnoughMembersError), "Cid may be there all the same"
    at = Taker()
    at.take()
    at.said()
    at.decide(topology(boots={CID: CID.boot + 1}))
    assert at.ended == []
    at.passes(ATTEMPT_S_MAX + 0.01)
    error = the_error(at)
    assert isinstance(error, PartitionUnavailableError)
    assert "started again" in str(error)
    assert at.said() == []


def test_what_one_does_not_serve_yet_is_tried_again() -> None:
    at = Taker()
    at.take()
    at.pinned(ME, BOB)
    at.pinned(CID, partitions=SERVED[CID][:1])
    at.said()
    at.held(*EVERYBODY)
    assert (at.ended, at.said()) == ([], to_all("pin", 2))


def test_a_later_attempt_is_of_the_decisions_by_then() -> None:
    at = Taker()
    at.take()
    at.post.said()
    at.decide(replace(topology(authors=dict.fromkeys(range(PARTITIONS), BOB)), index=DECIDED + 1))
    at.pinned(*EVERYBODY, decided=DECIDED + 1)
    assert at.said() == []
    at.passes(ATTEMPT_S_MAX + 0.01)
    assert at.post.said() == [("bob", "pin", (name(1), 2, DECIDED + 1))]
    at.pinned(BOB, attempt=2, decided=DECIDED)
    assert at.said() == []
    at.pinned(BOB, attempt=2, decided=DECIDED + 1, partitions=list(range(PARTITIONS)))
    assert at.said() == [("bob", "resume", 2)]


def test_who_has_pinned_for_an_earlier_attempt_and_serves_nothing_by_now_is_not_of_it() -> None:
    at, everything = Taker(), list(range(PARTITIONS))
    at.take()
    at.pinned(ME, CID)
    at.decide(replace(topology(authors=dict.fromkeys(everything, BOB)), index=DECIDED + 1))
    at.passes(ATTEMPT_S_MAX + 0.01)
    at.said()
    at.pinned(BOB, attempt=2, decided=DECIDED + 1, partitions=everything)
    assert at.said() == [("bob", "resume", 2)]
    at.held(BOB, attempt=2)
    assert the_answer(at).members == {BOB: everything}


def test_an_own_answer_that_comes_at_once_and_begins_another_attempt_confuses_nobody() -> None:
    # The others were told to go on with the second attempt, of which they had no pin yet.
    at = Taker()
    said: list[tuple[str, Incarnation, int]] = []

    def tell(to: Incarnation, message: Any) -> None:
        said.append((BY_NUMBER[message[0]].name, to, message[2]))
        if said[-1] == ("resume", ME, 1):
            at.held(ME, still=False)

    at.post.tell = tell  # type: ignore[method-assign]
    at.take()
    said.clear()
    at.pinned(*EVERYBODY)
    assert sorted(said) == [
        *(("pin", one, 2) for one in EVERYBODY), *(("resume", one, 1) for one in EVERYBODY)
    ]  # fmt: skip


# ------------------------------------------------------------------ what it shows

A, B, C = b"a" * 16, b"b" * 16, b"c" * 16


def at_pin(partition: int, tx_id: bytes, *participants: int) -> PreparedAtPin:
    return PreparedAtPin(partition, tx_id, list(participants))


@pytest.mark.parametrize(
    ("pins", "shown"),
    [
        ([], []),
        ([([], [])], []),
        # One group alone: every copy has it, so it has committed.
        ([([at_pin(0, A, 0)], [])], [A]),
        # All are at one member, or at several.
        ([([at_pin(0, A, 0, 4), at_pin(4, A, 0, 4)], [])], [A]),
        ([([at_pin(0, A, 0, 1)], []), ([at_pin(1, A, 0, 1)], [])], [A]),
        ([([at_pin(0, A, 1, 0)], []), ([], [(1, A)])], [A]),
        # One of them does not have it.
        ([([at_pin(0, A, 0, 1)], []), ([], [])], []),
        ([([at_pin(0, A, 0, 1)], []), ([at_pin(1, B, 1)], [])], [B]),
        ([([at_pin(0, A, 0, 1, 3)], []), ([at_pin(1, A, 0, 1, 3)], []), ([], [])], []),
        ([([at_pin(0, A, 0, 1, 3)], []), ([at_pin(1, A, 0, 1, 3)], []), ([], [(3, A)])], [A]),
        # What another transaction has committed there says nothing of this one.
        ([([at_pin(0, A, 0, 1)], []), ([], [(1, B)])], []),
        ([([at_pin(0, A, 0, 1)], [(1, A), (3, A)])], [A]),
        # What has committed everywhere is in the pins themselves.
        ([([], [(0, A)]), ([], [(1, A)])], []),
        # In order.
        ([([at_pin(0, C, 0), at_pin(0, A, 0), at_pin(0, B, 0)], [])], [A, B, C]),
    ],
)  # fmt: skip
def test_what_a_snapshot_shows_of_what_was_prepared(
    pins: list[tuple[list[PreparedAtPin], list[tuple[int, bytes]]]], shown: list[bytes]
) -> None:
    made = [told(ME, prepared=prepared, committed=committed) for prepared, committed in pins]
    assert shown_of(made) == shown
    assert shown_of(reversed(made)) == shown


def test_a_member_tells_itself_last() -> None:
    # It answers at once, and what that begins must not come before what others are told.
    at = Taker(BOB)
    at.take()
    assert [to for to, _, _ in at.said()] == ["me", "cid", "bob"]
    at.pinned(*EVERYBODY)
    assert [to for to, _, _ in at.said()] == ["me", "cid", "bob"]
