"""Where a search for what a copy has missed begins and ends, and what is pinned for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from support.logs import LogBuilder
from support.takeovers import state_of
from tidelog.checkpoints.supplying import WantedNumbers
from tidelog.engine.node import supply_log
from tidelog.engine.node.supply_log import PIN_BYTES_MAX, READ_BYTES, SearchedLog, begun
from tidelog.errors import CorruptLogError
from tidelog.wal.format import segment_name
from tidelog.wal.records import Columns, Record, Run, TxRecord

EPOCHS = ((1, 1),)
WANTED = {0: WantedNumbers([(2, 3), (7, 7)], EPOCHS), 1: WantedNumbers([(4, 4)], EPOCHS)}


def tx(number: int, value: bytes = b"value") -> TxRecord:
    """Return a commit of one number of partition 0."""
    updates = Columns(16, [b"key"], [value])
    return TxRecord(
        tx_id=b"%016d" % number, time=number, runs=(Run(0, 1, number, 1),),
        namespaces=updates.namespaces, keys=updates.keys, values=updates.values,
    )  # fmt: skip


def no_rest() -> None:
    """Nobody else needs the interpreter."""


class Log:
    """A log whose n-th segment begins at position 100 n, and the pins in it."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *records: Record, **segments: list[int]
    ) -> None:
        """``segments`` are those that may hold numbers, by the letter p and the partition."""
        self.records: list[Record] = [state_of().record(1), *records]
        self.asked: list[tuple[int, object]] = []
        self.pins: list[Any] = []
        self.record_bytes = 10
        self.first_position, self.directory = 100, None

        def segments_with(_wal: object, partition: int, spans: Iterable[Any]) -> Iterator[int]:
            self.asked.append((partition, list(spans)))
            return iter(segments.get(f"p{partition}", ()))

        def open_segment(_wal: object, number: int) -> Any:
            assert self.pins or not self.pinned, "it might go meanwhile"
            file = SimpleNamespace(close=lambda: None)
            return SimpleNamespace(first_position=100 * number, file=file)

        def scan(_wal: object, position: int, *, durable: int) -> Iterator[Any]:
            for place, record in enumerate(self.records):
                yield SimpleNamespace(position=position + self.record_bytes * place, record=record)

        monkeypatch.setattr(supply_log, "segments_with", segments_with)
        monkeypatch.setattr(supply_log, "open_segment", open_segment)
        monkeypatch.setattr(supply_log, "Scan", scan)
        monkeypatch.setattr(
            supply_log, "read_records", lambda frames: ((one, one.record) for one in frames)
        )
        self.pinned = False

    def searched(self, upto: int = 1000) -> SearchedLog:
        return SearchedLog(cast(Any, None), WANTED, upto)

    def begun(self) -> tuple[SearchedLog, Any]:
        self.pinned = True
        keeper: Any = SimpleNamespace(
            pins=self, first_position=self.first_position, directory=self.directory
        )
        return begun(keeper, "copy", WANTED, 1000)

    def set(self, owner: str, position: int) -> Any:
        pin = SimpleNamespace(owner=owner, position=position, limit=None)
        pin.move_to = lambda position: setattr(pin, "position", position)
        self.pins.append(pin)
        return pin

    def release(self, pin: Any) -> None:
        self.pins.remove(pin)


def test_a_search_begins_at_the_first_segment_that_may_hold_any_of_the_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = Log(monkeypatch, p0=[5, 6], p1=[3])
    assert log.searched().position == 300
    assert log.asked == [(0, [(2, 3), (7, 7)]), (1, [(4, 4)])], "by all of them, not by the first"
    assert Log(monkeypatch, p0=[5, 6]).searched().position == 500


def test_a_log_without_a_segment_for_the_numbers_or_a_head_of_it_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(CorruptLogError, match="no segment"):
        Log(monkeypatch).searched()
    log = Log(monkeypatch, p0=[5])
    log.records = [tx(2)]
    with pytest.raises(CorruptLogError, match="does not begin with a STATE"):
        log.searched()


def test_nothing_is_read_from_where_the_log_was_durable_on(monkeypatch: pytest.MonkeyPatch) -> None:
    for upto, numbers in ((519, [1]), (520, [1]), (521, [1, 2]), (1000, [1, 2])):
        log = Log(monkeypatch, tx(1), tx(2), p0=[5])
        searched = SearchedLog(cast(Any, None), {0: WantedNumbers([(1, 9)], EPOCHS)}, upto)
        assert not searched.read(1 << 20, no_rest)
        found = searched.search.take_out()[0]
        assert [one.run.first for one in found.transactions] == numbers
        assert log.pins == []


def test_a_piece_ends_with_the_record_that_fills_it(monkeypatch: pytest.MonkeyPatch) -> None:
    Log(monkeypatch, *map(tx, (1, 2, 3, 4)), p0=[5])
    searched = SearchedLog(cast(Any, None), {0: WantedNumbers([(1, 9)], EPOCHS)}, 1000)
    found = []
    for goes_on in (True, True, False):
        assert searched.read(9, no_rest) is goes_on
        found.append([one.run.first for one in searched.search.take_out()[0].transactions])
    assert found == [[1, 2], [3, 4], []]


def test_a_search_that_finds_nothing_stops_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(monkeypatch, *map(tx, range(1, 8)), p0=[5])
    log.record_bytes = READ_BYTES // 3 + 1
    searched = SearchedLog(cast(Any, None), {0: WantedNumbers([(7, 7)], EPOCHS)}, 9 * READ_BYTES)
    assert [searched.read(1 << 20, no_rest) for _ in range(3)] == [True, True, False]
    assert [one.run.first for one in searched.search.take_out()[0].transactions] == [7]


def test_the_log_is_pinned_before_it_is_looked_at_and_then_from_where_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = Log(monkeypatch, p0=[5])
    searched, pin = log.begun()
    assert log.pins == [pin]
    assert (pin.owner, pin.position, pin.limit) == ("copy", searched.position, PIN_BYTES_MAX)
    log = Log(monkeypatch)
    with pytest.raises(CorruptLogError):
        log.begun()
    assert log.pins == []


def test_a_log_that_lost_segments_just_before_it_is_searched_has_no_history() -> None:
    # Where it was durable was noted, then a checkpoint dropped all up to there: the member ended.
    log = LogBuilder()
    log.committed(3)
    log.rotate()
    del log.directory.files[segment_name(1)]
    wanted = {0: WantedNumbers([(1, 1)], EPOCHS)}
    with pytest.raises(CorruptLogError, match="does not begin with a STATE"):
        SearchedLog(log.directory, wanted, log.base)
