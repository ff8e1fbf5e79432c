"""What a copy has missed, sent piece by piece: what is sent, what waits, and what ends it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
import trio
from trio.testing import MockClock

from tidelog.affinity.topology import Incarnation
from tidelog.checkpoints.supplying import FoundNumbers, WantedNumbers
from tidelog.engine.node import own_history
from tidelog.engine.node.missed import MissedHistory
from tidelog.engine.node.own_history import OwnHistory
from tidelog.engine.node.returns import Return, StoppedError
from tidelog.engine.replication.returning import (
    Demanded,
    ReturnPlace,
    SupplyPiece,
    new_digest,
    supply_pieces_of,
)
from tidelog.errors import CorruptLogError
from tidelog.wal.records import Closed, Columns, Run, Supplied, encode_record

LENDER, CID = Incarnation(UUID(int=1), 1), Incarnation(UUID(int=3), 1)
FIRST, SECOND = ReturnPlace(0, 1, 7), ReturnPlace(1, 1, 7)
EPOCHS = ((1, 1),)


def transaction(partition: int, number: int) -> Supplied:
    columns = Columns(16, [b"key"], [b"value"])
    return Supplied(b"%016d" % number, 1, Run(partition, 1, number, 1), 5, columns)


def found(
    *transactions: Supplied,
    closed: tuple[Closed, ...] = (),
    lacking: tuple[int, ...] = (),
    not_yet: tuple[int, ...] = (),
) -> FoundNumbers:
    return FoundNumbers(
        transactions=list(transactions),
        closed=list(closed),
        lacking=[(number, number) for number in lacking],
        not_yet=[(number, number) for number in not_yet],
    )


class Around:
    """A primary whose log is a list of what each turn of the search finds, by partition."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *turns: dict[int, FoundNumbers]) -> None:
        self.turns = list(turns)
        self.told: list[list[SupplyPiece]] = []
        self.lacks: list[tuple[Incarnation, list[int]]] = []
        self.pins: list[str] = []
        self.error: Exception | None = None
        self.searched: list[tuple[set[int], int]] = []
        self.log = SimpleNamespace(position=10, told=self._told)
        keeper = SimpleNamespace(pins=SimpleNamespace(release=self.pins.remove))
        files = SimpleNamespace(
            environment=SimpleNamespace(run=self._run, rest=lambda: None), keeper=keeper
        )
        ways = SimpleNamespace(lacks=lambda copy, some, _of: self.lacks.append((copy, [*some])))
        self.own = OwnHistory(cast(Any, files), cast(Any, self.log))
        self.history = MissedHistory(cast(Any, ways), lambda _point: None)
        outflow = SimpleNamespace(
            tell=lambda _to, message: self.told.append(supply_pieces_of(message))
        )
        self.returning = Return(CID, cast(Any, outflow), trio.current_time, lambda *_about: True)
        monkeypatch.setattr(own_history, "begun", self._begun)

    async def _run(self, _what: str, job: Callable[[], Any]) -> Any:
        return job()

    async def _told(self) -> None:
        """Have what has committed told in the log."""
        self.log.position = 20

    def _begun(self, _keeper: object, owner: str, wanted: dict[int, Any], upto: int) -> Any:
        if self.error is not None:
            raise self.error
        self.searched.append(({*wanted}, upto))
        self.pins.append(owner)
        return SimpleNamespace(read=self._read, search=self), owner

    def _read(self, _most_bytes: int, _rest: object) -> bool:
        if self.error is not None:
            raise self.error
        self._found = self.turns.pop(0)
        return bool(self.turns)

    def take_out(self) -> dict[int, FoundNumbers]:
        return self._found

    def live(
        self,
        steps: Callable[[], Awaitable[None]] | None = None,
        places: tuple[ReturnPlace, ...] = (FIRST,),
    ) -> str:
        """Send what is missing at some places, of which nothing is at the second; return why not.

        Without ``steps`` each piece is answered at once.
        """
        wanted = {place: WantedNumbers([(1, 9)], EPOCHS) for place in places}
        wanted[ReturnPlace(5, 1, 7)] = WantedNumbers([], EPOCHS)
        told = ""

        async def send() -> None:
            nonlocal told
            for place in wanted:
                self.returning.expect(place)
            try:
                await self.history.send(self.returning, wanted, LENDER, self.own)
            except StoppedError as error:
                told = str(error)

        async def lived() -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(send)
                await (steps or self.answer_all)()

        trio.run(lived, clock=MockClock(autojump_threshold=0))
        return told

    async def answer_all(self) -> None:
        for _ in range(5):
            await trio.testing.wait_all_tasks_blocked()
            self.answer()

    def answer(self) -> None:
        """Let the copy demand what follows on the last message."""
        if self.told:
            self.returning.demands([Demanded(one.place, one.number + 1) for one in self.told[-1]])


def test_each_piece_waits_until_the_one_before_is_durable_and_the_last_has_a_digest_of_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shut = Closed(1, 3, 1, "closed at the supplier")
    at = Around(
        monkeypatch,
        {0: found(transaction(0, 1), not_yet=(2, 3)), 1: found(not_yet=(4,))},
        {0: found(not_yet=(2, 3)), 1: found(not_yet=(4,))},
        {0: found(transaction(0, 2), closed=(shut,)), 1: found(transaction(1, 4))},
        {0: found(), 1: found()},
    )

    async def steps() -> None:
        await trio.testing.wait_all_tasks_blocked()
        assert len(at.told) == 1
        at.returning.demands([Demanded(FIRST, 1)])
        await trio.testing.wait_all_tasks_blocked()
        assert len(at.told) == 1, "it is busy with its disk"
        assert at.pins == [f"copy {CID}"]
        at.answer()
        await trio.testing.wait_all_tasks_blocked()
        assert len(at.told) == 2
        at.answer()

    assert at.live(steps, (FIRST, SECOND)) == ""
    [[one], [two, other]] = at.told
    digest = new_digest()
    digest.update(encode_record(one.record) + encode_record(two.record))
    assert (one.place, one.number, one.last, one.digest) == (FIRST, 1, False, b"")
    assert (two.place, two.number, two.last, two.digest) == (FIRST, 2, True, digest.digest())
    assert (other.place, other.number, other.last) == (SECOND, 1, True)
    assert {piece.record.source for piece in (one, two, other)} == {LENDER.member.bytes}
    assert (two.record.transactions, two.record.closed) == ((transaction(0, 2),), (shut,))
    assert len(at.turns) == 1, "nothing is read behind what is missing"
    assert at.searched == [({0, 1}, 20)], "behind what has committed by now, and was told"
    assert (at.pins, at.lacks) == ([], [])


def test_a_partition_that_has_all_is_sent_nothing_more_while_another_one_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at = Around(
        monkeypatch,
        {0: found(transaction(0, 1)), 1: found(not_yet=(4,))},
        {0: found(lacking=(7,)), 1: found(transaction(1, 4))},
    )
    assert at.live(places=(FIRST, SECOND)) == ""
    assert [[(one.place, one.last) for one in pieces] for pieces in at.told] == [
        [(FIRST, True)],
        [(SECOND, True)],
    ]
    assert at.lacks == []


@pytest.mark.parametrize(
    "turn",
    [
        found(transaction(0, 1), lacking=(2,)),
        found(lacking=(2,), not_yet=(3,)),
        found(not_yet=(2,)),
    ],
    ids=["a number is without its data", "a number is", "the log ends before a number"],
)
def test_a_log_that_lacks_a_number_is_not_asked_again_and_nothing_of_it_is_sent(
    turn: FoundNumbers, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = Around(monkeypatch, {0: turn})
    assert "the log lacks numbers of partitions [0]" in at.live()
    assert (at.told, at.lacks, at.pins) == ([], [(CID, [0])], [])


def test_all_partitions_that_a_log_lacks_numbers_of_are_found_in_one_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each of them took an attempt, in which all others began anew: minutes for 5,000 keys."""
    at = Around(
        monkeypatch,
        {0: found(transaction(0, 1), not_yet=(4,)), 1: found(not_yet=(4,)), 2: found(not_yet=(5,))},
        {0: found(lacking=(4,)), 1: found(transaction(1, 2), not_yet=(4,)), 2: found(not_yet=(5,))},
        {0: found(lacking=(4,)), 1: found(lacking=(4,)), 2: found(not_yet=(5,))},
    )
    third = ReturnPlace(2, 1, 7)
    told = at.live(places=(FIRST, SECOND, third))
    assert "the log lacks numbers of partitions [0, 1]" in told
    assert [[one.place for one in pieces] for pieces in at.told] == [[FIRST]]
    assert (at.lacks, at.pins) == ([(CID, [0, 1])], []), "what is not yet known may be, by then"


def test_all_partitions_that_a_log_ends_before_the_numbers_of_are_found_in_one_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at = Around(
        monkeypatch, {0: found(not_yet=(4,)), 1: found(transaction(1, 1)), 2: found(not_yet=(5,))}
    )
    told = at.live(places=(FIRST, SECOND, ReturnPlace(2, 1, 7)))
    assert "the log lacks numbers of partitions [0, 2]" in told
    assert (at.told, at.lacks) == ([], [(CID, [0, 2])])


def test_a_log_that_says_nothing_of_a_partition_lacks_all_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at = Around(monkeypatch, {0: found()}, {})
    assert "says nothing of partitions [1]" in at.live(places=(FIRST, SECOND))
    assert 1 in {partition for _, some in at.lacks for partition in some}


@pytest.mark.parametrize("begins", [False, True])
def test_a_log_that_cannot_be_read_is_not_asked_again(
    begins: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = Around(monkeypatch, {0: found(transaction(0, 1), not_yet=(2,))}, {})
    error = CorruptLogError("a hole", kind="gap", segment=1, offset=0)

    async def steps() -> None:
        await trio.testing.wait_all_tasks_blocked()
        at.error = error
        at.answer()

    if not begins:
        at.error = error
    assert "the log does not tell what is missing: a hole" in at.live(steps)
    assert (at.lacks, at.pins) == ([(CID, [0])], [])


def test_nothing_is_searched_if_nothing_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    at = Around(monkeypatch)
    assert at.live(places=()) == ""
    assert (at.searched, at.told) == ([], [])


def test_a_copy_that_says_nothing_any_more_keeps_no_log(monkeypatch: pytest.MonkeyPatch) -> None:
    at = Around(monkeypatch, {0: found(transaction(0, 1), not_yet=(2,))}, {0: found()})

    async def steps() -> None:
        await trio.sleep(60)

    assert at.live(steps) == "it says nothing any more"
    assert (len(at.told), at.pins, at.lacks) == (1, [], [])
