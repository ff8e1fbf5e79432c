"""From which time on a log has a record of every commit, behind lost beginnings and full copies."""

from __future__ import annotations

from dataclasses import replace

import pytest

from support.logs import LogBuilder, MemoryDirectory
from tidelog.engine.files.recorded import fills, known_since
from tidelog.errors import CorruptLogError
from tidelog.wal.reader import Scan
from tidelog.wal.records import (
    AdmitRecord,
    CheckpointRecord,
    ClearRecord,
    EpochRecord,
    Participant,
    PrepareRecord,
    Run,
    TxRecord,
)

ONE, OTHER = 0, 1


def clear(partition: int = ONE) -> ClearRecord:
    return ClearRecord(partition=partition, admission=1, reason="a full copy")


def admit(partition: int = ONE) -> AdmitRecord:
    return AdmitRecord(
        partition=partition, admission=1, epochs=((1, 1),), lwm=5, ranges=(), hwm=7, dropped=()
    )


def prepare(time: int, partition: int = OTHER) -> PrepareRecord:
    run = Run(partition, 1, 9, 1)
    part = Participant(partition, 1, 1)
    return PrepareRecord(
        b"t" * 16, 1, (b"m" * 16, 1), time, partition, (part,), run, 16, [b"k"], [b"v"], None, {}
    )


def checkpoint(time: int) -> CheckpointRecord:
    return CheckpointRecord(position=1, time=time)


def until(log: LogBuilder, partition: int = ONE, *, from_beginning: bool = True) -> int | None:
    return fills(Scan(log.directory), from_beginning=from_beginning).of(partition).until


def begin_anew(log: LogBuilder) -> None:
    """Let a log lose what it has: it goes on with the STATE of the next segment."""
    log.rotate()
    del log.directory.files[sorted(log.directory.files)[0]]


def test_a_partition_that_was_never_copied_in_full_has_a_record_of_everything() -> None:
    log = LogBuilder()
    log.committed(3)
    log.add(admit())  # it has come back by history
    log.add(prepare(5_000))
    assert until(log) == 0


def test_what_came_with_pairs_is_older_than_the_next_checkpoint() -> None:
    log = LogBuilder()
    log.committed(3, OTHER)
    log.add(clear())
    assert until(log) is None, "the copy is not there"
    log.add(checkpoint(5_000))
    assert until(log) is None, "what is written meanwhile may come with the pairs"
    log.add(admit())
    assert until(log) is None, "nothing has a time"
    log.add(checkpoint(6_000))
    log.add(checkpoint(7_000))
    assert until(log) == 6_000
    assert until(log, OTHER) == 0


def test_what_is_in_doubt_comes_again_behind_a_copy_and_is_older_than_that() -> None:
    # Its time was taken for one that nothing of the copy lies behind, and an acknowledged commit,
    # which could be read, was told to be rolled back.
    log = LogBuilder()
    log.add(clear(), admit())
    log.add(prepare(4_000, ONE))
    assert until(log) is None
    log.add(checkpoint(6_000))
    assert until(log) == 6_000


def test_a_transaction_of_its_own_tells_and_so_does_the_head_of_a_segment() -> None:
    log = LogBuilder()
    log.add(clear(), admit())
    log.tx(OTHER)
    assert until(log) == 1_001
    log.add(clear(), admit())
    log.rotate()
    assert until(log) == 1_001
    log.add(clear(), admit(), checkpoint(6_000))
    assert until(log) == 6_000, "all of them in one frame"


def test_a_copy_that_begins_anew_before_anything_had_a_time_is_not_there_again() -> None:
    log = LogBuilder()
    log.add(clear(), admit())
    log.add(clear())
    log.add(checkpoint(5_000))
    assert until(log) is None, "it may come with the pairs of the second one"
    log.add(admit(), checkpoint(6_000))
    assert until(log) == 6_000


def test_the_last_one_counts() -> None:
    log = LogBuilder()
    log.add(clear(), admit(), checkpoint(6_000))
    log.add(clear(OTHER), admit(OTHER), checkpoint(7_000))
    assert (until(log), until(log, OTHER)) == (6_000, 7_000)
    log.add(clear())
    assert (until(log), until(log, OTHER)) == (None, 7_000)
    log.add(admit(OTHER))
    assert until(log) is None, "it is the other one's"
    log.add(admit(), checkpoint(8_000))
    log.add(admit())  # it came back by history since
    assert (until(log), until(log, OTHER)) == (8_000, 7_000)


def test_a_log_that_begins_between_the_two_has_a_full_copy_in_it() -> None:
    # Checkpoints go on while pairs come in, and segments go: what was written meanwhile is in no
    # record, and younger than what the log begins with.
    log = LogBuilder(first_position=1 << 20)
    log.committed(2, OTHER)
    assert until(log, from_beginning=False) == 0, "nobody has it, nobody asks"
    log.add(admit())
    assert until(log, from_beginning=False) is None
    log.add(checkpoint(6_000))
    assert until(log, from_beginning=False) == 6_000
    assert until(log, OTHER, from_beginning=False) == 0


def test_numbers_of_another_partition_do_not_tell_that_no_half_of_a_copy_is_lost() -> None:
    log = LogBuilder(first_position=1 << 20)
    log.committed(2, OTHER)
    begin_anew(log)
    log.add(admit(), checkpoint(6_000))
    assert until(log, from_beginning=False) == 6_000


def test_a_number_that_is_pending_is_one_of_the_partition_too() -> None:
    log = LogBuilder(first_position=1 << 20)
    head = replace(log.state(), lwms=[0, 0], hwms=[1, 0])
    log.state = lambda: head  # type: ignore[method-assign]
    begin_anew(log)
    log.add(admit(), checkpoint(6_000))
    assert until(log, from_beginning=False) == 0


def test_a_log_that_begins_with_numbers_of_the_partition_has_lost_no_half_of_a_copy() -> None:
    log = LogBuilder(first_position=1 << 20)
    log.committed(2)
    begin_anew(log)
    log.add(admit(), checkpoint(6_000))
    assert until(log, from_beginning=False) == 0


def test_partitions_that_came_later_are_asked_about_as_well() -> None:
    log = LogBuilder(first_position=1 << 20)
    log.grow(2)
    log.add(admit(3), checkpoint(6_000))
    assert until(log, 3, from_beginning=False) == 6_000


def test_the_place_of_the_last_clear_is_told() -> None:
    log = LogBuilder()

    def cleared(partition: int = ONE) -> int | None:
        return fills(Scan(log.directory), from_beginning=True).of(partition).cleared

    assert cleared() is None
    log.add(clear())
    second = log.add(clear())
    assert (cleared(), cleared(OTHER)) == (second.position, None)
    log.add(admit(), checkpoint(6_000))
    log.add(clear(OTHER))
    assert cleared() == second.position


def test_what_is_not_read_may_have_it() -> None:
    log = LogBuilder()
    for _ in range(2):
        log.committed(2)
        log.rotate()
    del log.directory.files[sorted(log.directory.files)[1]]
    with pytest.raises(CorruptLogError):
        until(log)


def test_a_log_without_transactions_does_not_tell_since_when_it_knows() -> None:
    log = LogBuilder(first_position=1 << 20)
    assert known_since(Scan(log.directory)) is None
    log.add(prepare(900))
    assert known_since(Scan(log.directory)) == 1_000, "the STATE is behind all that was dropped"
    assert known_since(Scan(MemoryDirectory())) is None


@pytest.mark.parametrize(
    "first",
    [
        LogBuilder().tx_record(),
        prepare(1_001),
        EpochRecord(time=1_001, first_partition=0, epochs=[1, 1], starts=[1, 1]),
    ],
)
def test_the_first_record_with_a_time_tells_since_when_a_log_knows(
    first: TxRecord | PrepareRecord | EpochRecord,
) -> None:
    log = LogBuilder(first_position=1 << 20)
    log.add(admit())
    log.add(first)
    log.add(prepare(9_000))
    assert known_since(Scan(log.directory)) == 1_001
