"""Reads at a copy, and the word of their primaries, message by message: no network, no disk."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from tidelog.affinity.topology import Incarnation
from tidelog.checkpoints.copies import Copies
from tidelog.engine.net.frames import Message
from tidelog.engine.net.kinds import BY_NAME
from tidelog.engine.node import copy_reads as copy_reads_module
from tidelog.engine.node.copy_reads import (
    CONFIRM_S_MAX,
    PENDING_S_MAX,
    WAITING_MAX,
    CopyReads,
    CopyRow,
)
from tidelog.engine.node.partitions import RoutedError
from tidelog.engine.node.reads import LookedUp
from tidelog.engine.replication.following import Following
from tidelog.engine.replication.streams import Streams
from tidelog.errors import ClosedError, TidelogError
from tidelog.wal.records import Participant, PrepareRecord, Run

ME, BOB, CID = (Incarnation(UUID(int=number), 1) for number in (1, 2, 3))
CONFIRM, CONFIRMED = BY_NAME["confirm-copy"].number, BY_NAME["copy-confirmed"].number


class Request:
    """What a client asks: what is found is what it asks for."""

    def __init__(self, *partitions: int, key: bytes = b"k") -> None:
        value = f"{key.decode()} of {partitions}"
        self.arguments: list[object] = [
            "get",
            LookedUp((value,), frozenset(partitions), 16, frozenset([key])),
        ]
        self.told: list[object] = []

    def answer(self, value: object) -> None:
        self.told.append("answered")

    def fail(self, error: Exception) -> None:
        self.told.append(error.answer if isinstance(error, RoutedError) else type(error))


class Around:
    """A copy of three partitions: BOB serves 0 and 1, CID serves 2, and 3 is served here."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(copy_reads_module, "looked_up", lambda _state, _view, _op, found: found)
        self.now, self.hurries, self.streams = 10.0, 0, Streams()
        self.told: list[tuple[UUID, Message]] = []
        self.checked: list[int] = []
        self.refusal: Exception | None = None
        self.served = True
        self.listed = {ME, BOB, CID}
        self.following = {
            partition: Following(partition, 5, author)
            for partition, author in ((0, BOB), (1, BOB), (2, CID))
        }
        state = SimpleNamespace(
            copies=Copies(), epochs=[5] * 4, counters=[SimpleNamespace(lwm=7)] * 4
        )
        self.log: Any = SimpleNamespace(
            state=state,
            overlay=SimpleNamespace(view=None),
            failure=None,
            hurry=self._hurry,
            has_whole=state.copies.is_whole,
        )
        partitions: Any = SimpleNamespace(
            check=self._check, serves=lambda _partition, _now: self.served
        )
        self.locks = SimpleNamespace(idle=True)
        self.met = 0
        """Up to which item of a stream a copy has not met all locks."""
        self.transactions: Any = SimpleNamespace(
            locks=self.locks,
            participating=SimpleNamespace(
                copy_may_read=lambda partition, number: partition == 3 and number >= self.met
            ),
        )
        self.reads: Any = CopyReads(
            ME,
            self.log,  # type: ignore[arg-type]
            partitions,
            self.streams,
            SimpleNamespace(
                followed=self.following.get, lists=lambda copy, _partition: copy in self.listed
            ),
            SimpleNamespace(tell=lambda *said: self.told.append(said)),  # type: ignore[arg-type]
            lambda: self.now,
            self.transactions,  # type: ignore[arg-type]
        )

    def _hurry(self) -> None:
        self.hurries += 1

    def _check(self, partitions: tuple[int, ...], _now: float) -> None:
        self.checked += partitions
        if self.refusal is not None:
            raise self.refusal

    def questions(self) -> list[tuple[Incarnation, int, list[int]]]:
        """Return what was asked since the last call: whom, the number, and the partitions."""
        told, self.told = self.told, []
        assert {message[0] for _, message in told} <= {CONFIRM}
        return [(Incarnation(who, 1), message[1], message[2]) for who, message in told]

    def confirm(
        self, who: Incarnation, number: int, *partitions: int, epoch: int = 5, item: int = 0
    ) -> None:
        columns = [[*partitions], *([one] * len(partitions) for one in (epoch, 0, item))]
        self.reads.arrived(who, [CONFIRMED, number, *columns])

    def ask(self, *partitions: int, key: bytes = b"k") -> Request:
        request = Request(*partitions, key=key)
        self.reads.confirmed(request)
        return request

    def pend(self, key: bytes = b"k", number: int = 1) -> None:
        self.log.state.copies.prepared(0).add(
            PrepareRecord(
                tx_id=number.to_bytes(16, "big"), attempt=1, near=(b"n" * 16, 1), time=1, home=0,
                participants=(Participant(0, 5, 1),), run=Run(0, 5, number, 1), namespaces=16,
                keys=[key], values=[b"v"],
            )
        )  # fmt: skip


@pytest.fixture
def around(monkeypatch: pytest.MonkeyPatch) -> Around:
    return Around(monkeypatch)


def test_a_read_is_answered_once_every_primary_has_confirmed_all_its_rows(around: Around) -> None:
    one = around.ask(0, 1, 2)
    assert around.questions() == [(BOB, 1, [0, 1]), (CID, 2, [2])]
    around.confirm(BOB, 1, 0, 1)
    assert one.told == []
    around.confirm(CID, 2, 2)
    assert one.told == ["answered"]
    two = around.ask(0, 1, 2)
    around.questions()
    around.confirm(BOB, 3, 0)
    around.confirm(CID, 4, 2)
    assert two.told == ["remap"], "once"
    three = around.ask(0, 1, 2)
    around.questions()
    around.confirm(BOB, 5, 0)
    around.confirm(CID, 6, 2, epoch=4)
    assert three.told == ["remap"], "once, too"


def test_one_question_is_on_its_way_and_what_comes_meanwhile_goes_with_the_next(
    around: Around,
) -> None:
    first, second, third = around.ask(0), around.ask(1), around.ask(0)
    assert around.questions() == [(BOB, 1, [0])]
    around.confirm(BOB, 7, 0)
    around.confirm(CID, 1, 0)
    assert first.told == [], "it names the question, and is of the one who was asked"
    around.confirm(BOB, 1, 0)
    assert (first.told, second.told, third.told) == (["answered"], [], [])
    assert around.questions() == [(BOB, 2, [1, 0])]
    around.confirm(BOB, 2, 1)
    assert (second.told, third.told) == (["answered"], ["remap"])
    assert around.questions() == []


def test_a_question_tells_how_far_the_copy_had_the_stream_when_it_read(around: Around) -> None:
    around.following[0].durable = 7
    one = around.ask(0)
    around.following[0].durable = 9
    [(_, question)] = around.told
    assert question == [CONFIRM, 1, [0], [5], [0], [7]]
    around.confirm(BOB, 1, 0, item=7)
    assert one.told == ["answered"]
    two = around.ask(0)
    around.confirm(BOB, 2, 0, item=7)
    assert two.told == ["remap"], "of another read"


def test_what_is_served_here_is_not_read_beside_copies_while_something_is_locked(
    around: Around,
) -> None:
    around.locks.idle = False
    for partitions in ((3,), (2, 3)):
        with pytest.raises(RoutedError) as refused:
            around.ask(*partitions)
        assert refused.value.answer == "remap"
    one = around.ask(2)
    around.confirm(CID, around.questions()[-1][1], 2)
    assert one.told == ["answered"], "these locks are of other partitions"


def test_a_primary_that_does_not_answer_in_time_is_asked_by_the_client(around: Around) -> None:
    one, behind = around.ask(0), around.ask(1)
    around.questions()
    around.now += CONFIRM_S_MAX
    around.reads.tick()
    assert one.told == []
    around.now += 0.01
    around.reads.tick()
    assert (one.told, behind.told) == (["remap"], [])
    assert around.questions() == [(BOB, 2, [1])]
    around.confirm(BOB, 1, 0)
    around.reads.tick()
    around.confirm(BOB, 2, 1)
    assert (one.told, behind.told) == (["remap"], ["answered"])
    around.reads.tick()
    assert around.reads._questions == {}


def test_what_is_being_written_is_waited_for_and_then_computed_anew(around: Around) -> None:
    around.pend()
    one, other = around.ask(0), around.ask(0, key=b"other")
    assert (around.reads.waits, around.hurries) == (True, 1)
    assert around.questions() == [(BOB, 1, [0])], "of the other one"
    around.reads.applied()
    assert around.reads.waits
    around.log.state.copies.pending.clear()
    around.reads.applied()
    assert not around.reads.waits
    around.confirm(BOB, 1, 0)
    around.confirm(BOB, 2, 0)
    assert (one.told, other.told) == (["answered"], ["answered"])


def test_what_is_written_for_too_long_is_asked_of_the_primary(around: Around) -> None:
    around.pend()
    one, until = around.ask(0), around.now + PENDING_S_MAX
    around.now += PENDING_S_MAX / 2
    around.reads.applied()  # it waits on, and no longer by that
    around.now = until
    around.reads.tick()
    assert one.told == []
    around.now += 0.01
    two = around.ask(0)
    around.reads.tick()
    assert (one.told, two.told) == (["remap"], [])
    others = [around.ask(0) for _ in range(WAITING_MAX)]
    assert (two.told, others[0].told, others[-1].told) == (["remap"], [], [])


@pytest.mark.parametrize(
    ("error", "told"), [(ClosedError("closed"), ClosedError), (RoutedError("wait", ""), "wait")]
)
def test_a_read_that_waited_and_fails_then_is_told_so(
    around: Around, error: TidelogError, told: object
) -> None:
    around.pend()
    one, two = around.ask(0), around.ask(0)
    around.log.failure = error
    around.reads.applied()
    assert (one.told, two.told) == ([told], [told])
    with pytest.raises(type(error)):
        around.ask(1)


def test_what_is_served_here_needs_no_word_but_its_own_lease(around: Around) -> None:
    assert around.ask(3).told == ["answered"]
    assert (around.checked, around.questions()) == ([3], [])
    mixed = around.ask(2, 3)
    assert mixed.told == []
    around.confirm(CID, 1, 2)
    assert mixed.told == ["answered"]
    around.refusal = RoutedError("remap", "it is served elsewhere")
    with pytest.raises(RoutedError):
        around.ask(3)


def test_a_stale_read_needs_whole_copies_and_may_wait_for_one_that_is_listed(
    around: Around,
) -> None:
    around.log.state.copies.open(0, 5)
    request = Request(0)
    around.reads.stale(request)
    assert request.told == ["answered"]
    for listed, answer in ((True, "wait"), (False, "remap")):
        around.listed = {ME} if listed else {BOB}
        with pytest.raises(RoutedError) as refused:
            around.reads.stale(Request(0, 1))
        assert refused.value.answer == answer


def test_a_primary_confirms_whom_it_lists_and_streams_to_while_it_serves(around: Around) -> None:
    around.streams.open(3, 5, [BOB], 0.0)

    def confirmed(row: CopyRow, who: Incarnation = BOB) -> bool:
        around.reads.arrived(who, [CONFIRM, 9, *([field] for field in row)])
        [(member, message)] = around.told
        around.told.clear()
        assert (member, message[:2]) == (who.member, [CONFIRMED, 9])
        return bool(message[2])

    row = CopyRow(3, 5, 0, 8)
    assert confirmed(row)
    around.met = 9
    assert not confirmed(row), "what is locked there may be confirmed by others already"
    assert confirmed(row._replace(number=9))
    around.met = 8
    assert not confirmed(row, CID)
    for other in (row._replace(epoch=4), row._replace(admission=1), row._replace(partition=2)):
        assert not confirmed(other)
    around.listed = {ME}
    assert not confirmed(row)
    around.listed, around.served = {ME, BOB}, False
    assert not confirmed(row)
