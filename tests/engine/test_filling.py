"""A full copy that goes out, piece by piece: which pieces, how many at once, and what is pinned."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
import trio
from trio.testing import MockClock

from tidelog.affinity.topology import Incarnation
from tidelog.engine.data.full_pairs import PackedPairs, PairTally
from tidelog.engine.net.frames import Message
from tidelog.engine.net.kinds import BY_NUMBER
from tidelog.engine.node import filling
from tidelog.engine.node.filling import (
    AHEAD_BYTES,
    BLOCK_BYTES,
    BLOCK_ROWS,
    PENDING_BYTES,
    PIECE_BYTES,
    Filling,
)
from tidelog.engine.node.returns import Return
from tidelog.engine.node.supply_log import PIN_BYTES_MAX
from tidelog.engine.replication.returning import Demanded, FillPiece, ReturnPlace, fill_of
from tidelog.engine.store.partition_cuts import PartitionState
from tidelog.errors import SnapshotExpiredError
from tidelog.tx.counter import PartitionUpdateCounter

CID = Incarnation(UUID(int=3), 1)
PLACE = ReturnPlace(0, 2, 9)
Block = list[tuple[bytes, bytes]]


class Cut:
    """The pairs of one moment; reading on behind some of them may be too late."""

    def __init__(self, around: Around) -> None:
        self.around = around
        counter = PartitionUpdateCounter(around.lwm)
        self.state = PartitionState(
            partition=0,
            position=0,
            counter=counter.to_bytes(),
            epochs=((1, 1), (2, 4)),
            pending=(),
        )
        self.closed = False
        around.cuts.append(self)

    def blocks(self, after: bytes | None, *, rows: int, most_bytes: int) -> Iterator[Block]:
        assert (rows, most_bytes) == (BLOCK_ROWS, BLOCK_BYTES)
        for key, value in self.around.pairs:
            if after is None or key > after:
                if key in self.around.expires:
                    self.around.expires.remove(key)
                    raise SnapshotExpiredError("it had to go")
                yield [(key, value)]

    def close(self) -> None:
        self.closed = True


PAIRS = ((b"a", b"1"), (b"b", b"2"), (b"c", b"3"))


class Around:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # Each of them is a piece by itself.
        self.pairs = [(key, digit.ljust(PIECE_BYTES)) for key, digit in PAIRS]
        self.expires: set[bytes] = set()
        self.lwm = 5
        self.cuts: list[Cut] = []
        self.told: list[Message] = []
        self.pins: list[tuple[str, int]] = []
        self.log = SimpleNamespace(position=PENDING_BYTES + 700)
        self.keeper = SimpleNamespace(pins=self, first_position=100)
        self.environment = SimpleNamespace(run=self._run, monotonic=trio.current_time)
        files = SimpleNamespace(environment=self.environment, keeper=self.keeper)
        self.here = Filling(cast(Any, files), cast(Any, self.log), lambda _point: None)
        outflow = SimpleNamespace(tell=lambda _to, message: self.told.append(message))
        self.returning = Return(CID, cast(Any, outflow), trio.current_time, lambda *_about: True)
        monkeypatch.setattr(filling, "cut_partition", lambda *_about: Cut(self))
        monkeypatch.setattr(filling, "packed", self._packed)
        self.size = 10

    def _packed(self, block: Block) -> tuple[PackedPairs, PairTally]:
        [(key, value)] = block
        return PackedPairs(key, value.ljust(self.size)), PairTally(1, 0, value[0])

    async def _run(self, _what: str, job: Callable[[], Any]) -> Any:
        return job()

    def set(self, owner: str, position: int, *, limit: int) -> tuple[str, int]:
        assert limit == PIN_BYTES_MAX
        self.pins.append((owner, position))
        return owner, position

    def release(self, pin: tuple[str, int]) -> None:
        self.pins.remove(pin)

    def pieces(self) -> list[FillPiece]:
        return [fill_of(one) for one in self.told if BY_NUMBER[one[0]].name == "pairs"]

    def live(self, job: Callable[[], Awaitable[None]], *steps: Callable[[], object]) -> None:
        """Do something; each step is gone once nothing else goes on."""

        async def lived() -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(job)
                for step in steps:
                    await trio.testing.wait_all_tasks_blocked()
                    step()

        trio.run(lived, clock=MockClock(autojump_threshold=0))

    async def send(self) -> None:
        self.returning.expect(PLACE)
        await self.here.send(self.returning, PLACE)


def test_no_two_full_copies_have_one_number_though_nothing_is_decided_between_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at = Around(monkeypatch)
    places = [at.here.new_place(0, 2, index) for index in (9, 9, 9, 20, 12)]
    assert places == [ReturnPlace(0, 2, number) for number in (9, 10, 11, 20, 21)]


def test_a_copy_removes_what_it_has_before_pairs_are_read_and_the_log_is_pinned_before_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at = Around(monkeypatch)
    ended: list[bool] = []

    async def begin() -> None:
        await at.here.begin(at.returning, [PLACE])
        ended.append(True)

    def busy() -> None:
        assert at.pins == [(f"copy {CID}", 700)], "as far back as what is pending may have begun"
        at.returning.demands([Demanded(PLACE, 0)])

    def cleared() -> None:
        assert not ended
        at.returning.demands([Demanded(PLACE, 1)])

    at.live(begin, busy, cleared)
    assert ended
    assert [BY_NUMBER[one[0]].name for one in at.told] == ["admit"]


def test_a_partition_that_is_copied_anew_has_one_pin_that_begins_where_the_log_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at = Around(monkeypatch)
    for first, position in ((100, 700), (800, 800)):
        at.keeper.first_position = first
        at.live(
            lambda: at.here.begin(at.returning, [PLACE]),
            lambda: at.returning.demands([Demanded(PLACE, 1)]),
        )
        assert at.pins == [(f"copy {CID}", position)]
        assert [*at.returning.pins] == [0]


def test_all_pairs_go_once_and_the_end_has_the_counter_of_the_first_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at = Around(monkeypatch)
    at.expires = {b"b", b"c"}

    def later() -> None:
        at.lwm += 1  # what is written meanwhile comes by history

    genuine = at._packed

    def packed(block: Block) -> Any:
        later()
        return genuine(block)

    monkeypatch.setattr(filling, "packed", packed)
    at.live(at.send)
    *pieces, last = at.pieces()
    assert [one.pairs.lengths for one in pieces] == [b"a", b"b", b"c"]
    assert [one.number for one in at.pieces()] == [1, 2, 3, 4]
    assert last.end is not None
    assert last.end.tally == PairTally(3, 0, ord("1") ^ ord("2") ^ ord("3"))
    record = last.end.record
    assert (record.admission, record.lwm, record.hwm, record.epochs) == (9, 5, 5, ((1, 1), (2, 4)))
    assert len(at.cuts) == 3
    assert at.cuts[-1].closed


def test_no_more_is_under_way_than_a_copy_may_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    at = Around(monkeypatch)
    at.size = AHEAD_BYTES

    def answer(number: int) -> Callable[[], object]:
        def step() -> None:
            assert [one.number for one in at.pieces()] == [*range(1, number + 1)]
            at.returning.demands([Demanded(PLACE, number + 1)])

        return step

    at.live(at.send, *map(answer, (1, 2, 3)))
    assert len(at.pieces()) == 4


@pytest.mark.parametrize(
    ("took", "writes", "pauses"), [(0.01, 1, 3 * [0.06]), (1.0, 1, 3 * [0.5]), (0.01, 0, [])]
)
def test_writers_have_several_times_as_long_as_a_piece_takes_to_themselves(
    monkeypatch: pytest.MonkeyPatch, took: float, writes: int, pauses: list[float]
) -> None:
    at, slept, sleep = Around(monkeypatch), list[float](), trio.sleep

    async def run(_what: str, job: Callable[[], Any]) -> Any:
        await sleep(took)
        at.log.position += writes
        return job()

    async def recorded(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(at.environment, "run", run)
    monkeypatch.setattr(filling, "trio", SimpleNamespace(sleep=recorded))
    at.live(at.send)
    assert slept == pytest.approx(pauses)
