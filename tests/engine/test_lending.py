"""A primary borrows history of a copy: what each says when the other one does not."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from support.takeovers import state_of
from tidelog.affinity.topology import Incarnation
from tidelog.checkpoints.supplying import FoundNumbers, WantedNumbers
from tidelog.engine.net.frames import Message
from tidelog.engine.node import lending
from tidelog.engine.node.borrowing import ASK_AGAIN_S, REACH_S_MAX, Borrowing
from tidelog.engine.node.lending import DECIDED_S_MAX, LOANS_MAX, OPENED_S_MAX, Lending
from tidelog.engine.node.own_history import NoHistoryError, SearchTurn
from tidelog.engine.node.returns import PATIENCE_S
from tidelog.engine.node.tasks import Tasks
from tidelog.engine.node.ways_back import LogHolder
from tidelog.engine.replication.lent import (
    ENOUGH,
    KeptNumbers,
    Lent,
    Loan,
    OpenPlace,
    lend_message,
    lent_message,
    lent_of,
    loan_of,
    reach_asked,
    reach_message,
    reached_message,
    reached_of,
)
from tidelog.errors import CorruptLogError
from tidelog.rebalance.choosing import LogReach

ME, BOB, CID = (Incarnation(UUID(int=number), 1) for number in (1, 2, 3))
HERE = OpenPlace(0, 1)
WANTED = {0: WantedNumbers([(1, 3)], ((1, 1),))}


def found(**more: Any) -> FoundNumbers:
    fields: dict[str, Any] = {
        "transactions": [], "closed": [], "lacking": [], "not_yet": [], **more,
    }  # fmt: skip
    return FoundNumbers(**fields)


FIRST, LAST = found(not_yet=[(2, 3)]), found()


def live(scenario: Callable[[], Awaitable[None]]) -> None:
    trio.run(scenario, clock=MockClock(autojump_threshold=0))


# ------------------------------------------------------------------ who borrows


class Primary:
    """A primary, and what it has told."""

    def __init__(self, me: Incarnation = ME) -> None:
        self.told: list[tuple[UUID, Message]] = []
        outflow: Any = SimpleNamespace(tell=lambda *said: self.told.append(said))
        self.here = Borrowing(me, outflow)

    def asked(self) -> list[Loan]:
        told, self.told = self.told, []
        return [loan_of(message) for _, message in told]

    def lend(
        self, loan: Loan, about: FoundNumbers, *, more: bool, sender: Incarnation = BOB
    ) -> None:
        lent = Lent(loan.ask, loan.piece, {0: about}, more)
        self.here.arrived(sender, lent_message(lent, sender.member.bytes))


def test_who_answers_in_time_tells_how_far_its_log_reaches() -> None:
    async def scenario() -> None:
        at, reaches = Primary(), list[Any]()

        async def ask() -> None:
            reaches.append(await at.here.reaches({CID: [HERE], BOB: [HERE]}))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await wait_all_tasks_blocked()
            asks = {to: reach_asked(message) for to, message in at.told}
            assert {places[0] for _, places in asks.values()} == {HERE}
            number = asks[BOB.member][0]
            at.here.arrived(CID, reached_message(number, {0: KeptNumbers(1, [])}))
            at.here.arrived(BOB, reached_message(number, {0: KeptNumbers(4, [(6, 6)])}))
        assert reaches == [{0: [LogReach(LogHolder(BOB), 4, [(6, 6)])]}], "Cid has said nothing"
        assert not at.here._questions
        assert trio.current_time() == pytest.approx(REACH_S_MAX)
        at.here.arrived(CID, reached_message(asks[CID.member][0], {0: KeptNumbers(1, [])}))

    live(scenario)


def test_logs_are_told_in_the_order_in_which_copies_are_asked() -> None:
    async def scenario() -> None:
        at, reaches = Primary(), list[Any]()

        async def ask() -> None:
            reaches.append(await at.here.reaches({CID: [HERE], BOB: [HERE]}))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await wait_all_tasks_blocked()
            asks = {to: reach_asked(message)[0] for to, message in at.told}
            for copy in (BOB, CID):
                answer = reached_message(asks[copy.member], {0: KeptNumbers(1, [])})
                at.here.arrived(copy, answer)
                await wait_all_tasks_blocked()
        assert [row.member.copy for row in reaches[0][0]] == [CID, BOB]
        assert trio.current_time() == 0, "all have answered"

    live(scenario)


def test_a_piece_is_asked_for_again_until_it_is_there_and_at_the_end_no_more() -> None:
    async def scenario() -> None:
        at, turns = Primary(), list[SearchTurn]()
        done = trio.Event()

        async def borrow() -> None:
            async with at.here.history(BOB, {0: 4, 1: 2}).opened("copy", WANTED) as turn:
                turns.append(await turn())
                turns.append(await turn())
            done.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(borrow)
            await trio.sleep(ASK_AGAIN_S * 1.5)
            first, again = at.asked()
            assert first == again == Loan(first.ask, 1, {OpenPlace(0, 4): [(1, 3)]})
            at.lend(first, FIRST, more=True, sender=CID)
            at.lend(first._replace(ask=first.ask + 1), FIRST, more=True)
            await wait_all_tasks_blocked()
            assert turns == [], "that was of somebody else, or of another question"
            at.lend(first, FIRST, more=True)
            await wait_all_tasks_blocked()
            assert turns == [SearchTurn({0: FIRST}, True)]
            [second] = at.asked()
            assert second == Loan(first.ask, 2, {})
            at.lend(second, LAST, more=False)
            await done.wait()
        assert turns[1:] == [SearchTurn({0: LAST}, False)]
        assert not at.here._questions
        assert at.asked() == [Loan(first.ask, ENOUGH, {})]

    live(scenario)


def test_who_does_not_lend_for_long_has_no_history() -> None:
    async def scenario() -> None:
        at = Primary()
        with pytest.raises(NoHistoryError, match="does not lend what copy has missed"):
            async with at.here.history(BOB, {0: 1}).opened("copy", WANTED) as turn:
                await turn()
        assert trio.current_time() == pytest.approx(PATIENCE_S)
        assert at.asked()[-1].piece == ENOUGH

    live(scenario)


def test_what_was_lent_to_who_ran_before_is_no_answer() -> None:
    async def scenario() -> None:
        before, at, turns = Primary(), Primary(ME._replace(boot=2)), list[SearchTurn]()

        async def borrow(primary: Primary) -> None:
            with trio.move_on_after(1):
                async with primary.here.history(BOB, {0: 1}).opened("copy", WANTED) as turn:
                    turns.append(await turn())

        async with trio.open_nursery() as nursery:
            for primary in (before, at):
                nursery.start_soon(borrow, primary)
            await wait_all_tasks_blocked()
            at.lend(before.asked()[0], LAST, more=False)
        assert turns == []

    live(scenario)


# ------------------------------------------------------------------ who lends


class Copy:
    """A copy of partition 0 with numbers 1 to 3, which Bob serves; it lends what ``turns`` says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *turns: SearchTurn | Exception) -> None:
        self.turns = list(turns)
        self.opened: list[str] = []
        self.searched: list[set[int]] = []
        self.told: list[tuple[UUID, Message]] = []
        self.state = state_of()
        self.state.counters[0].update(0, 3)
        self.following: Any = SimpleNamespace(epoch=1, author=BOB)
        self.tasks = Tasks()
        self.failure: Exception | None = None
        self.head = state_of()
        monkeypatch.setattr(lending, "oldest_state", self._oldest_state)
        environment = SimpleNamespace(run=self._run)
        files = SimpleNamespace(keeper=SimpleNamespace(directory=None), environment=environment)
        self.here = Lending(
            ME,
            cast(Any, files),
            cast(Any, SimpleNamespace(state=self.state, path="store")),
            lambda partition: self.following if partition == 0 else None,
            cast(Any, SimpleNamespace(tell=lambda *said: self.told.append(said))),
            self.tasks,
            lambda _point: None,
        )
        self.here._history = cast(Any, SimpleNamespace(opened=self._opened))

    async def _run(self, _what: str, work: Callable[[], Any]) -> Any:
        return work()

    def _oldest_state(self, _wal: object) -> Any:
        if self.failure is not None:
            raise self.failure
        return self.head.record(1)

    @asynccontextmanager
    async def _opened(self, owner: str, wanted: dict[int, Any]) -> AsyncIterator[Any]:
        self.opened.append(owner)
        self.searched.append({*wanted})
        try:
            yield lambda: self.turn()
        finally:
            self.opened.remove(owner)

    async def turn(self) -> SearchTurn:
        one = self.turns.pop(0)
        if isinstance(one, Exception):
            raise one
        return one

    async def ask(self, loan: Loan, sender: Incarnation = BOB) -> list[Lent]:
        """Ask for a piece; return what is lent upon that."""
        self.here.arrived(sender, lend_message(loan))
        return await self.lent()

    async def lent(self) -> list[Lent]:
        await wait_all_tasks_blocked()
        told, self.told = self.told, []
        return [lent_of(message) for _, message in told]


ASKED = Loan(7, 1, {HERE: [(1, 3)]})
ONE, TWO = SearchTurn({0: FIRST}, True), SearchTurn({0: LAST}, False)


def lives(at: Copy, scenario: Callable[[], Awaitable[None]]) -> None:
    async def lived() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(at.tasks.run)
            await wait_all_tasks_blocked()
            await scenario()
            nursery.cancel_scope.cancel()

    live(lived)


def test_a_piece_is_lent_when_it_is_asked_for_and_again_if_it_was_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at = Copy(monkeypatch, ONE, TWO)

    async def scenario() -> None:
        first, second = Lent(7, 1, {0: FIRST}, True), Lent(7, 2, {0: LAST}, False)
        assert await at.ask(ASKED) == [first]
        assert await at.ask(ASKED) == [first]
        assert await at.ask(Loan(7, 2, {}), CID) == [], "a loan is of one primary"
        assert await at.ask(Loan(7, 2, {})) == [second]
        assert await at.ask(Loan(7, 2, {})) == [second]
        assert len(at.opened) == 1
        assert await at.ask(Loan(7, ENOUGH, {})) == []
        assert at.opened == []
        assert await at.ask(Loan(7, 2, {})) == [], "what is over is not begun in the middle"

    lives(at, scenario)


def test_a_piece_that_is_searched_for_is_sent_once_it_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at, found_it = Copy(monkeypatch, ONE, TWO), trio.Event()

    async def scenario() -> None:
        await at.ask(ASKED)
        genuine = at.turn

        async def turn() -> SearchTurn:
            await found_it.wait()
            return await genuine()

        at.turn = turn  # type: ignore[method-assign]
        for _ in range(2):
            assert await at.ask(Loan(7, 2, {})) == []
        found_it.set()
        assert await at.lent() == [Lent(7, 2, {0: LAST}, False)]

    lives(at, scenario)


def test_a_loan_ends_once_nothing_is_asked_for_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    at = Copy(monkeypatch, ONE, TWO)

    async def scenario() -> None:
        await at.ask(ASKED)
        await trio.sleep(PATIENCE_S - 1)
        assert at.opened
        await trio.sleep(2)
        assert at.opened == []
        assert not at.here._loans

    lives(at, scenario)


def test_nothing_is_searched_before_all_is_decided_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at = Copy(monkeypatch, TWO)

    async def scenario() -> None:
        assert await at.ask(Loan(7, 1, {HERE: [(3, 4)]})) == []
        assert at.opened == []
        at.state.counters[0].update(3, 1)
        await trio.sleep(0.1)
        [lent] = await at.lent()
        assert lent.found == {0: LAST}
        assert await at.ask(Loan(8, 1, {HERE: [(3, 5)]})) == []
        await trio.sleep(DECIDED_S_MAX)
        [lent] = await at.lent()
        assert (lent.found, lent.more) == ({0: found(lacking=[(3, 5)])}, False)

    lives(at, scenario)


@pytest.mark.parametrize(
    "error",
    [
        NoHistoryError("a hole"),
        CorruptLogError("a hole", kind="gap", segment=1, offset=0),
        OSError("a disk"),
    ],
)
@pytest.mark.parametrize("pieces", [0, 1])
def test_a_log_that_cannot_be_read_lacks_all(
    pieces: int, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = Copy(monkeypatch, *[ONE] * pieces, error)

    async def scenario() -> None:
        asked = ASKED
        for _ in range(pieces):
            await at.ask(asked)
            asked = Loan(7, asked.piece + 1, {})
        [lent] = await at.ask(asked)
        assert (lent.piece, lent.found[0].lacking, lent.more) == (pieces + 1, [(1, 3)], False)
        assert not at.here._loans

    lives(at, scenario)


@pytest.mark.parametrize(
    "following", [None, SimpleNamespace(epoch=2, author=BOB), SimpleNamespace(epoch=1, author=CID)],
    ids=["none of the set", "in another epoch", "of another primary"],
)  # fmt: skip
def test_who_is_not_of_the_set_tells_and_lends_nothing(
    following: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = Copy(monkeypatch, SearchTurn({}, False))
    at.following = following

    async def scenario() -> None:
        at.here.arrived(BOB, reach_message(3, [HERE, OpenPlace(1, 1)]))
        await trio.sleep(OPENED_S_MAX * 1.5)
        [(_, message)] = at.told
        assert reached_of(message) == (3, {})
        at.told.clear()
        [lent] = await at.ask(ASKED)
        assert lent.found == {}
        assert at.searched == [set()]

    lives(at, scenario)


def test_a_copy_of_the_set_tells_how_far_its_log_reaches(monkeypatch: pytest.MonkeyPatch) -> None:
    at = Copy(monkeypatch)
    at.head.counters[0].update(0, 1)
    at.head.counters[0].update(2, 1)

    async def scenario() -> None:
        at.here.arrived(BOB, reach_message(3, [HERE, OpenPlace(1, 1)]))
        await trio.sleep(OPENED_S_MAX * 1.5)
        [(to, message)] = at.told
        assert (to, reached_of(message)) == (BOB.member, (3, {0: KeptNumbers(2, [(3, 3)])}))
        at.told.clear()
        at.failure = OSError("a disk")
        at.here.arrived(BOB, reach_message(4, [HERE]))
        assert await at.lent() == []

    lives(at, scenario)


def test_a_copy_that_has_not_heard_that_the_epoch_is_open_waits_a_little(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at = Copy(monkeypatch)
    following, at.following = at.following, None

    async def scenario() -> None:
        at.here.arrived(BOB, reach_message(3, [HERE]))
        await wait_all_tasks_blocked()
        assert at.told == []
        at.following = following
        await trio.sleep(OPENED_S_MAX / 2)
        [(_, message)] = at.told
        assert reached_of(message) == (3, {0: KeptNumbers(1, [])})

    lives(at, scenario)


def test_no_more_than_some_loans_go_on_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    at = Copy(monkeypatch, *[ONE] * (LOANS_MAX + 2))

    async def scenario() -> None:
        for number in range(LOANS_MAX):
            assert await at.ask(ASKED._replace(ask=number))
        assert await at.ask(ASKED._replace(ask=LOANS_MAX)) == []
        await at.ask(Loan(3, ENOUGH, {}))
        assert await at.ask(ASKED._replace(ask=LOANS_MAX))

    lives(at, scenario)
