"""A partition that begins anew with nothing: what is durable when, and when it is not emptied."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
import trio
from trio.testing import MockClock

from support.takeovers import state_of
from tidelog.affinity.table import PartitionRow
from tidelog.affinity.topology import Incarnation, Loss, PartitionCopies, Topology
from tidelog.engine.node.emptying import AGAIN_S, Emptying
from tidelog.engine.node.tasks import Tasks
from tidelog.wal.records import AdmitRecord, ClearRecord, Record

ME, BOB = Incarnation(UUID(int=1), 1), Incarnation(UUID(int=2), 1)
LOST, EPOCH = 4, 5
"""The epoch that was lost, and that in which the partition goes on."""
EMPTIED = PartitionCopies(
    row=PartitionRow(partition=0, version=1, replicas=(ME.member,)),
    epoch=EPOCH, author=ME, in_sync=(ME,), changed=9, opened=False, emptied=EPOCH,
)  # fmt: skip
CLEAR = ClearRecord(partition=0, admission=9, reason="every copy was lost")
NOTHING = AdmitRecord(
    partition=0, admission=9, epochs=((LOST, 1),), lwm=0, ranges=(), hwm=0, dropped=()
)
DONE = [CLEAR, "clear", NOTHING]


class Around:
    """A member whose log and data file wait for ``goes``."""

    def __init__(self) -> None:
        self.state = state_of()
        self.state.epochs[0] = LOST - 1
        self.path = "store"
        self.done: list[object] = []
        self.goes = trio.Event()
        self.goes.set()
        self.fails = False
        log: Any = SimpleNamespace(state=self.state, path="store", logged=self._logged)
        store: Any = SimpleNamespace(checkpoint=self._do)
        aside: Any = SimpleNamespace(keep=self._keep)
        self.tasks = Tasks()
        self.here = Emptying(ME, log, store, aside, self.tasks)

    async def _keep(self, _partition: int) -> None:
        await self.goes.wait()

    async def _logged(self, records: Sequence[Record]) -> None:
        for record in records:
            await self._do(record)

    async def _do(self, what: object) -> None:
        await self.goes.wait()
        if self.fails:
            raise OSError("full")
        self.done.append(what)

    async def decide(self, copies: PartitionCopies, *losses: int) -> list[object]:
        """Take over a decision; return what is done upon it."""
        told = tuple(
            Loss(index=9, partition=0, before=epoch - 1, epoch=epoch, author=ME, opened=0, upto=0)
            for epoch in losses or (EPOCH,)
        )
        self.here.decided(Topology(index=copies.changed, partitions=(copies,), losses=told))
        return await self.rest()

    async def rest(self) -> list[object]:
        await trio.testing.wait_all_tasks_blocked()
        done, self.done = self.done, []
        return done


def live(scenario: Callable[[Around], Awaitable[None]]) -> None:
    async def lived() -> None:
        at = Around()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(at.tasks.run)
            await trio.testing.wait_all_tasks_blocked()
            await scenario(at)
            nursery.cancel_scope.cancel()

    trio.run(lived, clock=MockClock(autojump_threshold=0))


def test_what_was_there_has_gone_from_the_data_file_before_the_copy_is_whole() -> None:
    async def scenario(at: Around) -> None:
        at.goes = trio.Event()
        assert await at.decide(EMPTIED) == []
        assert at.here.empties(0)
        at.goes.set()
        assert await at.rest() == DONE
        assert not at.here.empties(0)
        assert await at.decide(replace(EMPTIED, changed=10)) == [], "it is emptied once"

    live(scenario)


@pytest.mark.parametrize(
    "other",
    [{"author": BOB}, {"author": Incarnation(ME.member, 2)}, {"opened": True}, {"emptied": 0}],
    ids=["by another", "by another boot", "its epoch is open", "it goes on from a copy"],
)
def test_nothing_is_emptied_that_another_one_has_or_that_is_not_to_be(
    other: dict[str, Any],
) -> None:
    async def scenario(at: Around) -> None:
        assert await at.decide(replace(EMPTIED, **other)) == []
        assert not at.here.empties(0)

    live(scenario)


def test_what_has_begun_anew_by_the_log_is_not_emptied_again() -> None:
    async def scenario(at: Around) -> None:
        at.state.epochs[0] = EPOCH
        later = replace(EMPTIED, epoch=EPOCH + 1, emptied=EPOCH + 1)
        assert await at.decide(EMPTIED) == []
        assert await at.decide(later) == []
        # It was lost again meanwhile.
        again = replace(NOTHING, epochs=((EPOCH, 1),))
        assert await at.decide(later, EPOCH, EPOCH + 1) == [CLEAR, "clear", again]

    live(scenario)


def test_who_was_to_empty_it_does_so_in_each_epoch_until_one_is_open() -> None:
    async def scenario(at: Around) -> None:
        assert await at.decide(EMPTIED) == DONE
        later = replace(EMPTIED, epoch=EPOCH + 1, emptied=EPOCH + 1)
        again = replace(NOTHING, epochs=((EPOCH, 1),))
        assert await at.decide(later) == [CLEAR, "clear", again]

    live(scenario)


def test_a_disk_that_fails_is_tried_again_for_as_long_as_that_is_wanted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(at: Around) -> None:
        at.fails = True
        assert await at.decide(EMPTIED) == []
        assert at.here.empties(0)
        at.fails = False
        await trio.sleep(AGAIN_S + 0.1)
        assert await at.rest() == DONE
        at.fails = True
        later = replace(EMPTIED, epoch=EPOCH + 1, emptied=EPOCH + 1)
        assert await at.decide(later) == []
        await at.decide(replace(later, opened=True))
        at.fails = False
        await trio.sleep(AGAIN_S + 0.1)
        assert await at.rest() == []
        assert not at.here.empties(0)

    live(scenario)
    assert "node.empty_failed" in caplog.text
