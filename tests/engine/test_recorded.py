"""From which time on a log has a record of every commit, behind lost beginnings and full copies."""

from __future__ import annotations

import pytest

from support.logs import LogBuilder, MemoryDirectory
from tidelog.engine.files.recorded import filled_until, known_since
from tidelog.errors import CorruptLogError
from tidelog.wal.reader import Scan
from tidelog.wal.records import (
    AdmitRecord,
    ClearRecord,
    EpochRecord,
    Participant,
    PrepareRecord,
    Run,
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


def epochs(time: int) -> EpochRecord:
    return EpochRecord(time=time, first_partition=0, epochs=[1, 1], starts=[1, 1])


def until(log: LogBuilder, partition: int = ONE, *, from_beginning: bool = True) -> int | None:
    return filled_until(Scan(log.directory), partition, from_beginning=from_beginning)


def test_a_partition_that_was_never_copied_in_full_has_a_record_of_everything() -> None:
    log = LogBuilder()
    log.committed(3)
    log.add(admit())  # it has come back by history
    log.add(prepare(5_000))
    assert until(log) == 0


def test_what_came_with_pairs_is_older_than_the_first_record_with_a_time_behind_them() -> None:
    log = LogBuilder()
    log.committed(3, OTHER)
    log.add(clear())
    assert until(log) is None, "the copy is not there"
    log.add(prepare(5_000))
    assert until(log) is None, "what is written meanwhile may come with the pairs"
    log.add(admit())
    assert until(log) is None, "nothing has a time"
    log.add(prepare(6_000))
    log.add(prepare(7_000))
    assert until(log) == 6_000
    assert until(log, OTHER) == 0


@pytest.mark.parametrize("behind", [prepare(6_000, ONE), epochs(6_000)])
def test_any_record_with_a_time_tells(behind: PrepareRecord | EpochRecord) -> None:
    log = LogBuilder()
    log.add(clear(), admit())
    log.add(behind)
    assert until(log) == 6_000
    log.add(clear(), admit(), behind)
    assert until(log) == 6_000, "all of them in one frame"


def test_a_transaction_of_its_own_tells_too() -> None:
    log = LogBuilder()
    log.add(clear(), admit())
    log.tx(OTHER)
    assert until(log) == 1_001


def test_a_clock_that_is_behind_does_not_make_it_earlier_than_what_the_log_was_told() -> None:
    # A record of another primary is next, whose clock is behind that of the one that was copied.
    log = LogBuilder()
    log.add(prepare(9_000))
    log.transactions = 8_000  # the STATE of the next segment has a time of 9,000
    log.rotate()
    log.add(clear(), admit(), prepare(6_000))
    assert until(log) == 9_000


def test_the_last_one_counts() -> None:
    log = LogBuilder()
    log.add(clear(), admit(), prepare(6_000))
    log.add(clear(OTHER), admit(OTHER), prepare(7_000))
    assert (until(log), until(log, OTHER)) == (6_000, 7_000)
    log.add(clear())
    assert (until(log), until(log, OTHER)) == (None, 7_000)
    log.add(admit(OTHER))
    assert until(log) is None, "it is the other one's"
    log.add(admit(), prepare(8_000))
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
    log.add(prepare(6_000))
    assert until(log, from_beginning=False) == 6_000
    assert until(log, OTHER, from_beginning=False) == 0


def test_a_log_that_begins_with_numbers_of_the_partition_has_lost_no_half_of_a_copy() -> None:
    log = LogBuilder(first_position=1 << 20)
    log.committed(2)
    log.rotate()
    del log.directory.files[sorted(log.directory.files)[0]]
    log.add(admit(), prepare(6_000))
    assert until(log, from_beginning=False) == 0


def test_partitions_that_came_later_are_asked_about_as_well() -> None:
    log = LogBuilder(first_position=1 << 20)
    log.grow(2)
    log.add(admit(3), prepare(6_000))
    assert until(log, 3, from_beginning=False) == 6_000


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
