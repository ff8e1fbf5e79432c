"""A full copy that comes in, step by step: no network, and no disk."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
import trio
from trio.testing import MockClock

from tidelog.affinity.topology import Incarnation
from tidelog.engine.data.full_pairs import PackedPairs, PairTally
from tidelog.engine.net.frames import Message
from tidelog.engine.node.taking_in import (
    ALIVE_S,
    GATHER_S,
    GATHER_S_MAX,
    HELD_BYTES,
    PATIENCE_S,
    STORE_BYTES,
    TELL_BYTES,
    TakingIn,
)
from tidelog.engine.node.tasks import Tasks
from tidelog.engine.replication.returning import (
    Demanded,
    FillEnd,
    FillPiece,
    ReturnPlace,
    demanded_of,
)
from tidelog.wal.records import AdmitRecord, ClearRecord, Record

BOB, CID = (Incarnation(UUID(int=number), 1) for number in (2, 3))
PLACE, LATER = ReturnPlace(4, 2, 9), ReturnPlace(4, 2, 10)
ELSE = ReturnPlace(7, 2, 9)
"""The place of another partition."""
PAIRS = PackedPairs(b"lengths", b"keys and values")
STORED = PairTally(2, 1, 77)
"""What each of the pieces counts for."""


class Around:
    """A copy, its log and its data file; what these do waits for ``goes`` if that is not set."""

    def __init__(self) -> None:
        self.done: list[object] = []
        self.goes = trio.Event()
        self.goes.set()
        self.told: list[tuple[UUID, Message]] = []
        self.position = 50
        self.shown: dict[int, float] = {4: 1.0}
        around: Any = self
        self.tasks = Tasks()
        self.here = TakingIn(
            around, SimpleNamespace(tell=lambda *said: self.told.append(said)),  # type: ignore[arg-type]
            around, trio.current_time, lambda _point: None, self.shown, self.tasks,
            lambda: self.expects,
        )  # fmt: skip
        self.expects = False
        self.path = "store"

    def wait(self) -> None:
        """Let the log and the data file wait from here on."""
        self.goes = trio.Event()

    async def logged(self, records: Sequence[Record]) -> None:
        for record in records:
            await self._do(type(record))
            self.position += 10

    async def checkpoint(self, reason: str) -> None:
        await self._do(reason)

    async def fill(self, partition: int, pieces: Sequence[PackedPairs], position: int) -> PairTally:
        await self._do((partition, len(pieces), position))
        tally = PairTally()
        for _ in pieces:
            tally = tally.plus(STORED)
        return tally

    async def _do(self, what: object) -> None:
        await self.goes.wait()
        self.done.append(what)

    async def begin(self, place: ReturnPlace = PLACE, sender: Incarnation = BOB) -> list[object]:
        """Let a full copy begin, with nobody else; return what was done."""
        self.here.begin([place], sender)
        await trio.sleep(GATHER_S)
        return await self.rest()

    async def rest(self) -> list[object]:
        """Return what was done since the last call."""
        await trio.testing.wait_all_tasks_blocked()
        done, self.done = self.done, []
        return done

    def demands(self) -> list[tuple[Incarnation, ReturnPlace, int]]:
        """Return what was demanded of whom since the last call."""
        told, self.told = self.told, []
        primaries = {one.member: one for one in (BOB, CID)}
        return [(primaries[to], *row) for to, message in told for row in demanded_of(message)]

    def send(
        self, number: int, *, place: ReturnPlace = PLACE, sender: Incarnation = BOB, size: int = 15
    ) -> None:
        pairs = PackedPairs(b"lengths", bytes(size))
        self.here.filled(sender, FillPiece(place, number, pairs))

    def end(self, number: int, *pieces: PairTally) -> None:
        tally = PairTally()
        for one in pieces:
            tally = tally.plus(one)
        record = AdmitRecord(
            partition=4, admission=9, epochs=((2, 1),), lwm=3, ranges=(), hwm=3, dropped=()
        )
        self.here.filled(
            BOB, FillPiece(PLACE, number, PackedPairs(b"", b""), FillEnd(record, tally))
        )


def live(scenario: Callable[[Around], Awaitable[None]]) -> None:
    async def lived() -> None:
        at = Around()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(at.tasks.run)
            await trio.testing.wait_all_tasks_blocked()
            await scenario(at)
            nursery.cancel_scope.cancel()

    trio.run(lived, clock=MockClock(autojump_threshold=0))


async def begun(at: Around) -> None:
    """Let a full copy begin, and come to where it wants the first piece."""
    assert await at.begin() == [ClearRecord, "clear"]
    assert at.demands() == [(BOB, PLACE, 1)]


def test_what_was_here_is_removed_before_the_first_piece_is_demanded() -> None:
    async def scenario(at: Around) -> None:
        at.wait()
        await at.begin()
        assert 4 not in at.shown
        at.here.begin([PLACE], BOB)
        assert at.demands() == [(BOB, PLACE, 0)], "it is busy with that"
        at.goes.set()
        assert await at.rest() == [ClearRecord, "clear"]
        assert at.demands() == [(BOB, PLACE, 1)]

    live(scenario)


def test_one_checkpoint_clears_for_primaries_that_begin_about_the_same_time() -> None:
    async def scenario(at: Around) -> None:
        other = ReturnPlace(7, 2, 9)
        at.here.begin([PLACE], BOB)
        await trio.sleep(GATHER_S / 2)
        at.here.begin([other], CID)
        await trio.sleep(GATHER_S / 2)
        assert await at.rest() == [ClearRecord, ClearRecord, "clear"]
        assert sorted(at.demands()) == [(BOB, PLACE, 1), (CID, other, 1)]
        third = ReturnPlace(8, 2, 9)
        assert await at.begin(third, CID) == [ClearRecord, "clear"]

    live(scenario)


def test_primaries_that_have_still_to_answer_are_waited_for() -> None:
    async def scenario(at: Around) -> None:
        other = ReturnPlace(7, 2, 9)
        at.expects = True
        at.here.begin([PLACE], BOB)
        await trio.sleep(GATHER_S_MAX / 2)
        assert await at.rest() == []
        at.here.begin([other], CID)
        at.expects = False
        await trio.sleep(GATHER_S)
        assert await at.rest() == [ClearRecord, ClearRecord, "clear"]

    live(scenario)


def test_who_does_not_answer_is_waited_for_no_longer_than_that() -> None:
    async def scenario(at: Around) -> None:
        at.expects = True
        at.here.begin([PLACE], BOB)
        await trio.sleep(GATHER_S_MAX - GATHER_S)
        assert await at.rest() == []
        await trio.sleep(1.5 * GATHER_S)
        assert await at.rest() == [ClearRecord, "clear"]

    live(scenario)


def test_who_begins_while_others_are_cleared_comes_behind_them() -> None:
    async def scenario(at: Around) -> None:
        at.wait()
        await at.begin()
        other = ReturnPlace(7, 2, 9)
        assert await at.begin(other, CID) == []
        at.goes.set()
        await trio.sleep(GATHER_S)
        assert await at.rest() == [ClearRecord, "clear", ClearRecord, "clear"]
        assert at.demands() == [(BOB, PLACE, 1), (CID, other, 1)]

    live(scenario)


def test_what_is_stopped_before_anything_was_cleared_is_left_alone() -> None:
    async def scenario(at: Around) -> None:
        other = ReturnPlace(7, 2, 9)
        at.here.begin([PLACE, other], BOB)
        at.here.stop(4)
        await trio.sleep(GATHER_S)
        assert await at.rest() == [ClearRecord, "clear"]
        assert at.demands() == [(BOB, other, 1)]
        assert at.here.place(4) is None
        assert 4 in at.shown

    live(scenario)


def test_a_clearing_tells_of_each_partition_whose_copy_it_is_for() -> None:
    async def scenario(at: Around) -> None:
        reasons, other = list[tuple[int, str]](), Incarnation(UUID(int=3 << 100), 1)

        async def logged(records: Sequence[ClearRecord]) -> None:
            reasons.extend((record.partition, record.reason) for record in records)

        at.logged = logged  # type: ignore[assignment, method-assign]
        at.here.begin([PLACE], BOB)
        at.here.begin([ReturnPlace(7, 2, 9)], other)
        await trio.sleep(GATHER_S)
        await at.rest()
        assert reasons == [(4, f"a full copy of {BOB}"), (7, f"a full copy of {other}")]

    live(scenario)


def test_what_begins_before_the_member_runs_is_cleared_for_with_what_begins_then() -> None:
    async def scenario() -> None:
        at = Around()
        at.here.begin([PLACE], BOB)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(at.tasks.run)
            await trio.testing.wait_all_tasks_blocked()
            assert await at.begin(ReturnPlace(7, 2, 9)) == [ClearRecord, ClearRecord, "clear"]
            nursery.cancel_scope.cancel()

    trio.run(scenario, clock=MockClock(autojump_threshold=0))


def test_if_all_was_stopped_nothing_is_cleared() -> None:
    async def scenario(at: Around) -> None:
        at.here.begin([PLACE], BOB)
        at.here.stop(4)
        await trio.sleep(GATHER_S)
        assert await at.rest() == []

    live(scenario)


def test_a_copy_counts_again_once_all_is_stored_and_its_admission_is_durable() -> None:
    async def scenario(at: Around) -> None:
        await begun(at)
        at.send(1)
        at.send(2)
        assert await at.rest() == []
        at.end(3, STORED, STORED)
        at.wait()
        await at.rest()
        assert at.demands() == []
        at.goes.set()
        assert await at.rest() == [(4, 2, 60), AdmitRecord]
        assert at.demands()[-1] == (BOB, PLACE, 4)
        assert at.here.place(4) is None

    live(scenario)


def test_nothing_is_said_to_be_there_before_the_admission_is_durable() -> None:
    async def scenario(at: Around) -> None:
        await begun(at)
        at.wait()
        at.end(1)
        assert await at.rest() == []
        assert at.demands() == []
        at.goes.set()
        assert await at.rest() == [AdmitRecord]
        assert at.demands() == [(BOB, PLACE, 2)]

    live(scenario)


@pytest.mark.parametrize("sent", [[STORED], [STORED] * 3, [STORED, PairTally(2, 1, 78)]])
def test_a_copy_that_has_not_what_was_sent_does_not_count(
    sent: list[PairTally], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(at: Around) -> None:
        await begun(at)
        at.send(1)
        at.send(2)
        at.end(3, *sent)
        assert await at.rest() == [(4, 2, 60)]
        assert at.here.place(4) is None
        assert at.shown[4] == trio.current_time(), "it reports again a little later"

    live(scenario)
    assert "node.fill_differs" in caplog.text


def test_a_piece_is_taken_in_its_turn_and_from_who_was_begun_with() -> None:
    async def scenario(at: Around) -> None:
        await begun(at)
        at.send(2)
        at.send(1, sender=CID)
        at.send(1, place=LATER)
        assert at.here.bytes_held == 0
        at.send(1)
        size = at.here.bytes_held
        at.send(1)
        assert at.here.bytes_held == size > 0
        at.send(2, size=TELL_BYTES)
        assert at.demands() == [(BOB, PLACE, 3)], "so much has arrived"
        at.send(2)
        assert at.demands() == [(BOB, PLACE, 3)], "what comes again is answered"

    live(scenario)


def test_no_more_is_demanded_than_there_is_room_for_and_what_is_stored_makes_room() -> None:
    async def scenario(at: Around) -> None:
        await begun(at)
        at.send(1, size=TELL_BYTES)
        assert at.demands() == [(BOB, PLACE, 2)]
        at.wait()
        at.send(2, size=HELD_BYTES)
        assert await at.rest() == []
        assert at.demands() == []
        at.goes.set()
        assert await at.rest() == [(4, 2, 60)]
        assert at.demands() == [(BOB, PLACE, 3)]
        assert at.here.bytes_held == 0

    live(scenario)


def test_a_primary_has_its_time_again_behind_what_took_long_to_store() -> None:
    async def scenario(at: Around) -> None:
        await begun(at)
        at.wait()
        at.send(1, size=STORE_BYTES)
        await trio.sleep(PATIENCE_S - 1)
        at.goes.set()
        assert await at.rest() == [(4, 1, 60)]
        await trio.sleep(PATIENCE_S - 1)
        at.send(2, size=STORE_BYTES)
        assert await at.rest() == [(4, 1, 60)]

    live(scenario)


@pytest.mark.parametrize(("missing", "stored"), [(1, []), (0, [(4, 1, 60)])])
def test_so_much_is_stored_in_one_transaction_before_the_end(
    missing: int, stored: list[object]
) -> None:
    async def scenario(at: Around) -> None:
        await begun(at)
        at.send(1, size=STORE_BYTES - len(PAIRS.lengths) - missing)
        assert await at.rest() == stored

    live(scenario)


def test_who_begins_anew_goes_on_alone_with_what_is_sent_from_there_on() -> None:
    async def scenario(at: Around) -> None:
        await begun(at)
        at.send(1)
        assert await at.begin(LATER, CID) == [ClearRecord, "clear"]
        assert at.demands() == [(CID, LATER, 1)]
        assert at.here.place(4) == LATER
        at.end(2, STORED)
        assert await at.rest() == [], "the first one has ended"
        at.send(1, place=LATER, sender=CID)
        assert at.here.bytes_held > 0

    live(scenario)


def test_a_copy_that_begins_anew_while_the_last_pieces_are_stored_is_not_admitted_by_these() -> (
    None
):
    async def scenario(at: Around) -> None:
        await begun(at)
        at.send(1)
        at.wait()
        at.end(2, STORED)
        await at.rest()
        await at.begin(LATER)
        at.goes.set()
        assert AdmitRecord not in await at.rest()
        assert at.here.place(4) == LATER

    live(scenario)


def test_a_full_copy_that_stops_or_of_which_nothing_more_comes_begins_anew() -> None:
    async def scenario(at: Around) -> None:
        await begun(at)
        at.here.stop(4)
        assert await at.rest() == []
        assert at.here.place(4) is None
        await begun(at)
        await trio.sleep(PATIENCE_S - 1)
        at.send(1)
        await trio.sleep(PATIENCE_S - 1)
        assert at.here.place(4) == PLACE
        await trio.sleep(2)
        assert at.here.place(4) is None
        assert at.done == []

    live(scenario)


def test_a_disk_that_fails_ends_what_comes_in_and_is_tried_again_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(at: Around) -> None:
        async def fails(reason: str) -> None:
            raise OSError(reason)

        at.checkpoint = fails  # type: ignore[method-assign]
        assert await at.begin() == [ClearRecord]
        assert at.demands() == []
        assert at.here.place(4) is None
        assert at.shown[4] == trio.current_time()

    live(scenario)
    assert "node.fill_failed" in caplog.text


def test_a_primary_hears_once_of_each_mebibyte_and_of_the_end_only_once_it_is_logged() -> None:
    async def scenario(at: Around) -> None:
        await begun(at)
        at.send(1, size=STORE_BYTES)
        assert await at.rest() == [(4, 1, 60)]
        assert at.demands() == [(BOB, PLACE, 2)]
        at.send(2)
        at.end(3, STORED, STORED)
        assert await at.rest() == [(4, 1, 60), AdmitRecord]
        assert at.demands() == [(BOB, PLACE, 4)]

    live(scenario)


def test_room_that_is_taken_to_the_last_byte_is_none() -> None:
    async def scenario(at: Around) -> None:
        await begun(at)
        at.send(1, size=HELD_BYTES - len(PAIRS.lengths))
        assert at.here.bytes_held == HELD_BYTES
        assert at.demands() == []

    live(scenario)


@pytest.mark.parametrize(
    ("primary", "pieces", "stays"), [(BOB, 0, True), (CID, 1, True), (CID, 0, False)]
)
def test_while_others_are_stored_a_primary_waits_of_which_something_has_come(
    primary: Incarnation, pieces: int, stays: bool
) -> None:
    async def scenario(at: Around) -> None:
        await begun(at)
        await at.begin(ELSE, primary)
        at.wait()
        at.send(1, size=STORE_BYTES)
        for number in range(pieces):
            at.send(number + 1, place=ELSE, sender=primary)
        await trio.sleep(3 * PATIENCE_S)
        assert at.here.place(7) == (ELSE if stays else None)

    live(scenario)


def test_primaries_hear_each_second_that_a_copy_clears_stores_or_waits_for_that() -> None:
    async def scenario(at: Around) -> None:
        at.wait()
        await at.begin()
        at.here.tick()
        assert at.demands() == [(BOB, PLACE, 0)], "it clears"
        at.here.tick()
        assert at.demands() == []
        await trio.sleep(ALIVE_S)
        at.here.tick()
        assert at.demands() == [(BOB, PLACE, 0)]
        at.goes.set()
        await at.rest()
        await at.begin(ELSE, CID)
        at.demands()
        await trio.sleep(ALIVE_S)
        at.here.tick()
        assert at.demands() == [], "it waits for what they send"
        at.wait()
        at.send(1, size=STORE_BYTES)
        at.send(1, place=ELSE, sender=CID)
        await at.rest()
        at.demands()
        at.here.tick()
        assert at.demands() == [(BOB, PLACE, 2), (CID, ELSE, 1)]

    live(scenario)


def test_the_end_of_a_partition_does_not_wait_until_others_are_stored() -> None:
    async def scenario(at: Around) -> None:
        began, genuine = list[int](), at.fill

        async def fill(partition: int, pieces: Sequence[PackedPairs], position: int) -> PairTally:
            began.append(partition)
            return await genuine(partition, pieces, position)

        at.fill = fill  # type: ignore[method-assign]
        await begun(at)
        await at.begin(ELSE)
        at.wait()
        at.send(1, size=STORE_BYTES, place=ELSE)
        at.send(1)
        await at.rest()
        assert began == [7]
        at.end(2, STORED)
        await at.rest()
        assert began == [7, 4]

    live(scenario)


def test_only_a_primary_whose_connection_broke_is_told_again() -> None:
    async def scenario(at: Around) -> None:
        await begun(at)
        assert at.here.unheard(BOB.member) == [Demanded(PLACE, 1)]
        assert at.here.unheard(CID.member) == []

    live(scenario)


def test_a_primary_that_was_silent_since_an_earlier_copy_has_its_time_with_the_next() -> None:
    async def scenario(at: Around) -> None:
        await begun(at)
        at.end(1)
        await at.rest()
        at.demands()
        await trio.sleep(2 * PATIENCE_S)
        await begun(at)
        await trio.sleep(1)
        assert at.here.place(4) == PLACE

    live(scenario)
