"""Full copies that come in: what is stored together, and when."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import trio
from trio.testing import wait_all_tasks_blocked

from tidelog.affinity.errors import DiskError
from tidelog.affinity.topology import Incarnation
from tidelog.engine.data.full_pairs import PackedPairs, PairTally
from tidelog.engine.node.taking_in import (
    HELD_BYTES,
    PATIENCE_S,
    STORE_BYTES,
    TakingIn,
)
from tidelog.engine.node.tasks import Tasks
from tidelog.engine.replication.returning import FillEnd, FillPiece, ReturnPlace
from tidelog.wal.records import AdmitRecord

PRIMARY = Incarnation(UUID(int=1), 1)
OTHER = Incarnation(UUID(int=2), 1)
FEW = PackedPairs(b"", bytes(STORE_BYTES // 2))
"""Pairs of a piece, too few for a transaction."""
MANY = range(HELD_BYTES // FEW.size + 1)
"""Partitions: a piece of each, but for one, is as much as may be held, to the last byte."""


class Around:
    """A copy of some partitions, and its data file, which takes its time."""

    def __init__(self) -> None:
        self.stored: list[tuple[int, int]] = []
        """Partition, and how many pieces, of each transaction."""
        self.logged: list[int] = []
        self.error: Exception | None = None
        self.cleared = trio.Event()
        self._turn = trio.Semaphore(0)
        node_log: Any = SimpleNamespace(logged=self._logged, position=7, path="here")
        outflow: Any = SimpleNamespace(tell=lambda *_: None)
        self.tasks = Tasks()
        self.taking_in = TakingIn(
            node_log,
            outflow,
            self,
            trio.current_time,
            lambda _point: None,
            {},
            self.tasks,
            lambda: False,
        )

    async def checkpoint(self, reason: str) -> None:
        assert reason == "clear"
        self.cleared.set()

    async def fill(self, partition: int, pieces: Sequence[PackedPairs], position: int) -> PairTally:
        assert position == 7
        self.stored.append((partition, len(pieces)))
        await self._turn.acquire()
        if self.error is not None:
            raise self.error
        return PairTally()

    async def _logged(self, records: Iterator[Any]) -> None:
        self.logged += [one.partition for one in records if isinstance(one, AdmitRecord)]

    async def store_one(self) -> None:
        """Let the data file come to the end of a transaction."""
        self._turn.release()
        await wait_all_tasks_blocked()

    async def send(self, partition: int, number: int = 1, sender: Incarnation = PRIMARY) -> None:
        self.taking_in.filled(sender, FillPiece(place(partition), number, FEW))
        await wait_all_tasks_blocked()

    async def end(self, partition: int, number: int = 2) -> None:
        record = AdmitRecord(
            partition=partition, admission=9, epochs=((1, 1),), lwm=0, ranges=(), hwm=0, dropped=()
        )
        end = FillEnd(record, PairTally())
        piece = FillPiece(place(partition), number, PackedPairs(b"", b""), end)
        self.taking_in.filled(PRIMARY, piece)
        await wait_all_tasks_blocked()


def place(partition: int) -> ReturnPlace:
    return ReturnPlace(partition, 1, 9)


@asynccontextmanager
async def begun() -> AsyncIterator[Around]:
    """A copy to which all pieces may come."""
    around = Around()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(around.tasks.run)
        await wait_all_tasks_blocked()
        around.taking_in.begin(map(place, MANY), PRIMARY)
        await around.cleared.wait()
        await wait_all_tasks_blocked()
        yield around
        nursery.cancel_scope.cancel()


async def test_few_pieces_are_not_stored_alone_while_others_are_stored() -> None:
    async with begun() as around:
        await around.send(0)
        await around.end(0)
        assert around.stored == [(0, 1)]
        for partition in MANY[1:-1]:
            await around.send(partition)
        assert around.taking_in.bytes_held >= HELD_BYTES
        assert around.stored == [(0, 1)]
        await around.store_one()
        assert around.logged == [0]
        assert around.stored == [(0, 1)], "there is room again"
        await around.end(1)
        assert around.stored == [(0, 1), (1, 1)]
        await around.store_one()
        assert around.logged == [0, 1]


async def test_few_pieces_are_stored_one_after_the_other_if_there_is_no_room() -> None:
    async with begun() as around:
        for partition in MANY[1:]:
            await around.send(partition)
        [(first, _)] = around.stored
        await around.send(first, 2)
        assert around.stored == [(first, 1)]
        await around.store_one()
        assert around.taking_in.bytes_held >= HELD_BYTES
        assert len(around.stored) == 2, "there is no room still"
        await around.store_one()
        assert around.taking_in.bytes_held < HELD_BYTES
        assert len(around.stored) == 2


async def test_another_one_is_stored_if_one_fails_that_others_waited_for() -> None:
    async with begun() as around:
        await around.send(0)
        await around.end(0)
        for partition in MANY[1:]:
            await around.send(partition)
        assert around.stored == [(0, 1)]
        around.error = DiskError("no more")
        await around.store_one()
        assert around.logged == []
        assert len(around.stored) == 2, "there is no room still"


async def test_what_arrives_while_others_are_stored_is_stored_together_the_most_first() -> None:
    async with begun() as around:
        await around.send(0)
        assert around.stored == [], "it is less than is worth it"
        await around.send(0, 2)
        assert around.stored == [(0, 2)]
        for number in (1, 2, 3):
            await around.send(1, number)
        for number in (1, 2, 3, 4):
            await around.send(2, number)
        await around.send(3, 1)
        assert around.stored == [(0, 2)], "one at a time"
        await around.store_one()
        assert around.stored[1:] == [(2, 4)]
        await around.send(0, 3)
        await around.send(0, 4)
        await around.store_one()
        assert around.stored[2:] == [(1, 3)], "not again who was stored just now"
        await around.store_one()
        assert around.stored[3:] == [(0, 2)]
        await around.store_one()
        assert len(around.stored) == 4, "it is too little still"


async def test_who_is_stored_lets_those_go_on_who_have_more_by_then() -> None:
    # It has enough again when it comes to its end: it must not keep others waiting for good.
    async with begun() as around:
        for number in (1, 2):
            await around.send(0, number)
        for number in (3, 4):
            await around.send(0, number)
        for number in (1, 2, 3):
            await around.send(1, number)
        await around.store_one()
        assert around.stored == [(0, 2), (1, 3)]


async def test_a_primary_is_not_given_up_that_waits_for_room_while_others_are_stored(
    autojump_clock: trio.testing.MockClock,
) -> None:
    # All that it has sent is stored, and it may go on only when there is room.
    async with begun() as around:
        theirs = MANY[-1] + 1
        around.taking_in.begin([place(theirs)], OTHER)
        await trio.sleep(1)
        for partition in MANY:
            await around.send(partition)
        assert len(around.stored) == 1
        for number in (1, 2):
            await around.send(theirs, number, OTHER)
        await around.store_one()
        assert around.stored[1:] == [(theirs, 2)]
        await around.store_one()
        assert len(around.stored) == 3
        assert around.taking_in.bytes_held >= HELD_BYTES
        await trio.sleep(2 * PATIENCE_S)
        assert around.taking_in.place(theirs) is not None
        for _ in MANY:
            await around.store_one()
        await trio.sleep(2 * PATIENCE_S)
        assert around.taking_in.place(theirs) is None, "there is room, and nothing comes"
