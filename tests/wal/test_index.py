from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from support.golden_records import examples
from support.logs import LogBuilder, tx_id
from tidelog.wal.index import SegmentIndex, index_name
from tidelog.wal.records import (
    IdleRecord,
    IngestRecord,
    Record,
    RollbackRecord,
    Run,
    SettleRecord,
    SuppliedRecord,
    TxRecord,
)


def built(log: LogBuilder) -> SegmentIndex:
    return SegmentIndex.build(log.number, log.base, log.frames)


def transaction(identity: bytes, *runs: Run) -> TxRecord:
    count = sum(run.count for run in runs)
    return TxRecord(
        tx_id=identity,
        time=5,
        runs=runs,
        namespaces=16,
        keys=[b"k"] * count,
        values=[None] * count,
    )


def test_an_index_knows_updates_times_and_transactions() -> None:
    log = LogBuilder(first_position=500)
    log.committed(3)
    log.tx(partition=1, count=4)
    log.add(RollbackRecord(tx_id=tx_id(9), time=2_000, reason="conflict", runs=(Run(0, 2, 8, 2),)))
    load = Run(1, 1, 5, 6)
    log.add(
        IngestRecord(time=2_001, namespace=16, load=bytes(16), runs=(load,), digests=(bytes(25),))
    )
    index = built(log)
    assert (index.number, index.first_position, index.end_position) == (1, 500, log.position)
    assert (index.oldest, index.newest) == (1_000, 2_001)
    assert index.counters == {0: [(1, 1, 3), (2, 8, 9)], 1: [(1, 1, 10)]}
    assert index.prefixes == {b"boot-one": (1, 9)}


def test_an_index_of_nothing() -> None:
    index = SegmentIndex.build(3, 70, [])
    assert (index.end_position, index.oldest, index.newest) == (70, None, None)
    assert not index.may_contain(tx_id(1))
    index.add(IdleRecord())
    assert index.oldest is None


def times_of(record: Record) -> list[int]:
    """The times in a record: its own, and those of the listed transactions that committed."""
    listed = record.transactions if isinstance(record, SettleRecord | SuppliedRecord) else ()
    own = [record.time] if hasattr(record, "time") else []
    return [*own, *(one.time for one in listed if one.time)]


@pytest.mark.parametrize("record", examples().values(), ids=lambda record: type(record).__name__)
def test_the_time_of_any_type_of_record_is_known(record: Record) -> None:
    # The types that have a time were a list here: a new one would have been passed over.
    index = SegmentIndex(number=1, first_position=0, end_position=1)
    index.add(record)
    times = times_of(record)
    assert (index.oldest, index.newest) == (min(times, default=None), max(times, default=None))


def test_which_updates_a_segment_may_hold() -> None:
    index = SegmentIndex(number=1, first_position=0, end_position=1)
    index.add(transaction(tx_id(1), Run(3, 1, 10, 5), Run(3, 2, 30, 1), Run(3, 1, 8, 1)))
    assert index.counters == {3: [(1, 8, 14), (2, 30, 30)]}
    for first, last in ((1, 8), (14, 20), (9, 9), (1, 99), (30, 30)):
        assert index.covers(3, first, last)
    for first, last in ((1, 7), (15, 29), (31, 99)):
        assert not index.covers(3, first, last)
    assert not index.covers(4, 8, 14)


def test_which_transactions_a_segment_may_hold() -> None:
    index = SegmentIndex(number=1, first_position=0, end_position=1)
    for number in (5, 9, 7):
        index.add(transaction(tx_id(number), Run(0, 1, number, 1)))
    mine = b"an id of my own."
    index.add(transaction(mine, Run(0, 1, 20, 1)))
    assert [number for number in range(12) if index.may_contain(tx_id(number))] == [5, 6, 7, 8, 9]
    assert index.may_contain(mine)
    assert not index.may_contain(mine[::-1])
    assert not index.may_contain(tx_id(5, boot=b"boot-two"))


def test_with_too_many_prefixes_every_transaction_may_be_there() -> None:
    index = SegmentIndex(number=1, first_position=0, end_position=1, prefixes_max=3)
    for number in range(5):
        assert index.may_contain(bytes(16)) == (number > 3)
        index.add(transaction(bytes([number + 1]) * 16, Run(0, 1, number + 1, 1)))
    assert index.prefixes is None
    again = SegmentIndex.from_bytes(index.to_bytes())
    assert again == index


@pytest.mark.slow
@given(
    st.builds(
        SegmentIndex,
        number=st.integers(1, 2**63),
        first_position=st.integers(0, 2**63),
        end_position=st.integers(0, 2**63),
        oldest=st.none() | st.integers(-(2**63), 2**63 - 1),
        newest=st.none() | st.integers(-(2**63), 2**63 - 1),
        counters=st.dictionaries(
            st.integers(0, 2**32 - 1),
            st.lists(st.tuples(*[st.integers(0, 2**63 - 1)] * 3), min_size=1),
        ),
        prefixes=st.none()
        | st.dictionaries(
            st.binary(min_size=8, max_size=8), st.tuples(*[st.integers(0, 2**64 - 1)] * 2)
        ),
    )
)
def test_an_index_comes_back_as_it_was(index: SegmentIndex) -> None:
    assert SegmentIndex.from_bytes(index.to_bytes()) == index


def test_any_damage_makes_it_no_index() -> None:
    log = LogBuilder()
    log.committed(3)
    data = built(log).to_bytes()
    for length in range(len(data)):
        assert SegmentIndex.from_bytes(data[:length]) is None
    for offset in range(len(data)):
        for bit in range(8):
            broken = bytearray(data)
            broken[offset] ^= 1 << bit
            assert SegmentIndex.from_bytes(bytes(broken)) is None
    assert SegmentIndex.from_bytes(data + b"\0") is None


def test_the_name_of_an_index() -> None:
    assert index_name(12) == "0000000000000012.idx"
