"""Which numbers the kept log has, and where: against a log that is read whole."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, strategies as st

from support.stores import Opened, opened
from tidelog.affinity.errors import CorruptLogError
from tidelog.testing import FaultyDisk
from tidelog.wal.format import segment_name
from tidelog.wal.history import Held, held_from, oldest_state, segments_with
from tidelog.wal.index import SegmentIndex
from tidelog.wal.reader import read_records
from tidelog.wal.records import (
    AdmitRecord,
    Closed,
    Columns,
    CommitRecord,
    Participant,
    Pending,
    PrepareRecord,
    Record,
    Run,
    Settled,
    SettledOutcome,
    SettleRecord,
    StateRecord,
    Supplied,
    SuppliedRecord,
    TxRecord,
)
from tidelog.wal.segments import open_segment, segment_numbers, walk

ID = b"t" * 16
ONE = Columns(16, [b"k"], [b"v"])


def state(lwm: int, ranges: list[tuple[int, int]], pending: Iterable[Run] = ()) -> StateRecord:
    return StateRecord(
        time=0,
        namespaces=[],
        epochs=[1, 4],
        lwms=[0, lwm],
        hwms=[0, lwm],
        ranges={1: ranges} if ranges else {},
        epoch_tables={1: ((1, 1), (4, 60))},
        pending=tuple(Pending(ID, 1, run) for run in pending),
    )


def test_what_was_logged_before_the_oldest_segment_is_not_held() -> None:
    # The example at the head of the module.
    held = held_from(state(90, [(94, 3)], [Run(1, 4, 99, 2), Run(0, 1, 91, 9)]), 1)
    assert held == Held(90, ((95, 97), (99, 100)), ((1, 1), (4, 60)))
    assert held.lacks(91, 94) == held.lacks(98, 98) == held.lacks(101, 10_000) == []
    assert held.lacks(90, 90) == [(90, 90)]
    assert held.lacks(97, 98) == [(97, 97)]
    assert held.lacks(80, 99) == [(80, 90), (95, 97), (99, 99)]
    assert held_from(state(90, []), 0).epochs == ((1, 1),)


@given(
    above=st.integers(0, 12),
    ranges=st.lists(st.tuples(st.integers(1, 20), st.integers(1, 3)), max_size=3),
    first=st.integers(1, 24),
    count=st.integers(1, 12),
)
def test_what_is_lacked_is_told_number_by_number(
    above: int, ranges: list[tuple[int, int]], first: int, count: int
) -> None:
    without = tuple(sorted((at, at + size - 1) for at, size in ranges if at > above))
    held = Held(above, without, ((1, 1),))
    gone = {n for low, high in without for n in range(low, high + 1)} | set(range(above + 1))
    told = {n for low, high in held.lacks(first, first + count - 1) for n in range(low, high + 1)}
    assert told == gone.intersection(range(first, first + count))


INDEXED: list[tuple[Record, dict[int, list[tuple[int, int, int]]]]] = [
    (
        PrepareRecord(ID, 1, (ID, 1), 5, 0, (Participant(7, 1, 1),), Run(3, 2, 8, 1), *ONE),
        {3: [(2, 8, 8)]},
    ),
    (
        CommitRecord(
            tx_id=ID, attempt=1, time=5, participants=(Run(3, 2, 8, 1), Run(4, 1, 5, 2)),
            applied=(4,),
        ),
        {4: [(1, 5, 6)]},
    ),
    (
        SettleRecord(
            partition=3, epoch=4, start=12,
            transactions=(Settled(ID, 1, Run(3, 2, 8, 1), SettledOutcome.COMMITTED, 5, ONE),),
            closed=(Closed(2, 10, 2, "gap"),),
        ),
        {3: [(2, 8, 11)]},
    ),
    (
        SuppliedRecord(
            partition=3, admission=1, source=ID,
            transactions=(Supplied(ID, 1, Run(3, 2, 8, 1), 5, ONE),),
            closed=(Closed(3, 9, 1, "gap"),),
        ),
        {3: [(2, 8, 8), (3, 9, 9)]},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("record", "counters"), INDEXED)
def test_no_index_denies_the_numbers_of_a_copy(
    record: Record, counters: dict[int, list[tuple[int, int, int]]]
) -> None:
    index = SegmentIndex(number=1, first_position=0, end_position=1)
    index.add(record)
    assert index.counters == counters
    assert index.may_contain(ID)
    assert (index.oldest, index.newest) == (5, 5)


def test_no_index_denies_what_was_pending_when_a_copy_was_admitted() -> None:
    index = SegmentIndex(number=1, first_position=0, end_position=1)
    index.add(
        AdmitRecord(partition=3, admission=1, epochs=(), lwm=0, ranges=(), hwm=0, dropped=(ID,))
    )
    assert index.may_contain(ID)


def filled(store: Opened) -> None:
    """Several segments of which the first ones have been dropped."""
    numbers = store.database.map("numbers")
    for at in range(60):
        numbers.update_many({b"%d" % (at + more): bytes(3000) for more in range(at % 4 + 1)})
        if at % 20 == 19:
            store.database.checkpoint()


def logged(disk: FaultyDisk, number: int) -> list[Run]:
    """The runs in one segment, read."""
    wal = disk.directory("/store/wal")
    segment = open_segment(wal, number)
    try:
        records = read_records(walk(segment, segment.first_position))
        return [run for _, record in records if isinstance(record, TxRecord) for run in record.runs]
    finally:
        segment.file.close()


def test_the_log_of_a_store_has_all_that_it_says_and_where_it_says() -> None:
    with opened(segment_bytes=1, retain_bytes=200_000, partitions=2) as store:
        filled(store)
        wal, state = store.disk.directory("/store/wal"), store.parts.state
        numbers = segment_numbers(wal)
        assert numbers[0] > 1
        runs = {number: logged(store.disk, number) for number in numbers}
        oldest = oldest_state(wal)
        for partition in range(2):
            held = held_from(oldest, partition)
            there = {
                n: number
                for number in numbers
                for run in runs[number]
                for n in range(run.first, run.first + run.count)
                if run.partition == partition
            }
            everything = range(1, state.counters[partition].hwm + 1)
            assert set(there) == {n for n in everything if not held.lacks(n, n)}
            for n, number in there.items():
                assert number in segments_with(wal, partition, [(n, n)])
            last = max(there)
            assert len(list(segments_with(wal, partition, [(last, last)]))) == 1
        assert numbers[-1] in segments_with(wal, 0, [(10**9, 10**9)])  # it has no index yet


def test_a_log_begins_behind_its_last_hole() -> None:
    with opened(segment_bytes=1, retain_bytes=10**9, partitions=1) as store:
        filled(store)
        store.database.close()
        lost = store.disk.copy()
    wal = lost.directory("/store/wal")
    wal.unlink(segment_name(3))
    assert oldest_state(wal).lwms[0] > 0
    assert min(segments_with(wal, 0, [(1, 10**6)])) == 4


def test_a_log_without_a_segment_has_no_oldest_state() -> None:
    disk = FaultyDisk()
    disk.make_directory("/empty")
    with pytest.raises(CorruptLogError, match="does not begin with a STATE record"):
        oldest_state(disk.directory("/empty"))
