from __future__ import annotations

from tidelog.wal.damage import lost_ranges, readable_records, transactions_in
from tidelog.wal.records import (
    CheckpointRecord,
    EpochRecord,
    IdleRecord,
    IngestRecord,
    Record,
    RollbackRecord,
    Run,
    StateRecord,
    TxRecord,
    encode_record,
)
from tidelog.wal.tail import LostRange


def state(*hwms: int) -> StateRecord:
    counters = list(hwms)
    return StateRecord(
        time=1, namespaces=[], epochs=[1] * len(hwms), lwms=counters, hwms=counters, ranges={}
    )


def tx(*runs: Run, number: int = 1) -> TxRecord:
    count = sum(run.count for run in runs)
    return TxRecord(
        tx_id=number.to_bytes(16, "big"),
        time=1,
        runs=runs,
        namespaces=16,
        keys=[b"k"] * count,
        values=[None] * count,
    )


def rollback(*runs: Run) -> RollbackRecord:
    return RollbackRecord(tx_id=bytes(16), time=1, reason="conflict", runs=runs)


def payloads(*records: Record) -> list[bytes]:
    return [encode_record(record) for record in records]


def test_what_lies_between_two_transactions_is_lost() -> None:
    before = payloads(state(4, 9), tx(Run(0, 1, 5, 2)))
    after = payloads(IdleRecord(), tx(Run(0, 1, 10, 3)), tx(Run(0, 1, 13, 1)), state(13, 9))
    assert lost_ranges(before, after) == (LostRange(0, 7, 9),)


def test_a_state_record_behind_tells_of_partitions_that_nothing_else_names() -> None:
    before = payloads(state(4, 9), rollback(Run(1, 1, 10, 1)), CheckpointRecord(position=1, time=1))
    after = payloads(state(6, 10, 3), tx(Run(0, 1, 50, 1)))
    assert lost_ranges(before, after) == (LostRange(0, 5, 6), LostRange(2, 1, 3))


def test_rollbacks_and_epochs_behind_count_too() -> None:
    before = payloads(state(4, 9, 0))
    epoch = EpochRecord(time=1, first_partition=1, epochs=[2, 2], starts=[12, 1])
    after = payloads(rollback(Run(0, 1, 7, 1)), epoch)
    assert lost_ranges(before, after) == (LostRange(0, 5, 6), LostRange(1, 10, 11))


def test_the_numbers_of_a_load_count_too() -> None:
    load = IngestRecord(
        time=1, namespace=16, load=bytes(16), runs=(Run(0, 1, 5, 9),), digests=(bytes(25),)
    )
    after = payloads(tx(Run(0, 1, 20, 1)))
    assert lost_ranges(payloads(state(4), load), after) == (LostRange(0, 14, 19),)
    assert lost_ranges(payloads(state(2)), payloads(load)) == (LostRange(0, 3, 4),)


def test_nothing_is_claimed_without_neighbours() -> None:
    assert lost_ranges([], payloads(state(5))) == ()
    assert lost_ranges(payloads(state(5)), []) == ()


def test_records_are_read_up_to_the_first_that_does_not_decode() -> None:
    whole = b"".join(payloads(tx(Run(0, 1, 1, 1)), tx(Run(0, 1, 2, 1), number=2)))
    assert len(list(readable_records(whole))) == 2
    assert len(list(readable_records(whole[:-1]))) == 1
    assert transactions_in(whole + bytes(50)) == (tx(Run(0, 1, 1, 1)).tx_id, bytes(15) + b"\2")
    assert transactions_in(b"garbage") == ()
