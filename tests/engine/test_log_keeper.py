"""What is kept of the log, by whom it is held, and what the indexes beside it say."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from support.logs import STORE_ID, LogBuilder
from support.stores import Opened, open_store, opened
from tidelog.affinity.partitions import one_space
from tidelog.checkpoints.replay import State
from tidelog.engine.api.database import session_of
from tidelog.engine.files import log_keeper
from tidelog.engine.files.log_keeper import SPARE_SUFFIX, SPARES_MAX, LogKeeper
from tidelog.errors import CorruptLogError
from tidelog.wal.format import FRAME_MAGIC, segment_name
from tidelog.wal.index import SegmentIndex, index_name
from tidelog.wal.reader import Scan, load_index, read_records
from tidelog.wal.records import AdmitRecord, TxRecord
from tidelog.wal.segments import Segment, open_segment, segment_numbers, walk

SMALL: dict[str, Any] = {"segment_bytes": 1, "retain_bytes": 1}
"""Segments as small as they get, and no history beyond what is needed."""
VALUE = b"x" * 20_000


def fill(store: Opened, count: int = 24, first: int = 0) -> list[bytes]:
    """Put large values in transactions; return their ids."""
    users = store.database.map("users")
    ids = []
    for number in range(first, first + count):
        with store.database.transaction() as tx:
            tx[users][b"%d" % number] = VALUE
        assert tx.receipt is not None
        ids.append(tx.receipt.tx_id)
    return ids


def segments(store: Opened) -> list[int]:
    return segment_numbers(store.disk.directory("/store/wal"))


def index_by_reading(store: Opened, number: int) -> SegmentIndex:
    segment = open_segment(store.disk.directory("/store/wal"), number)
    following = open_segment(store.disk.directory("/store/wal"), number + 1)
    frames = walk(segment, segment.first_position, following.first_position)
    return SegmentIndex.build(number, segment.first_position, frames)


# ------------------------------------------------------------------ indexes


@pytest.mark.parametrize("how", ["transactions", "puts", "relaxed", "given"])
def test_an_index_promises_all_that_its_segment_holds(how: str) -> None:
    # What did not fit into the old segment had its numbers and ids before the new one began, and
    # was missing in the index of both.
    durability: Any = "none" if how == "relaxed" else "always"
    with opened(segment_bytes=1, durability=durability) as store:
        users = store.database.map("users")
        for number in range(30):
            if how == "given":
                with store.database.transaction(id=b"%016d" % number) as tx:
                    tx[users][b"%d" % number] = VALUE
            elif how == "transactions":
                users.update_many({b"%d" % number: VALUE, b"b%d" % number: VALUE})
            else:
                users[b"%d" % number] = VALUE
        store.database.checkpoint()
        directory = store.disk.directory("/store/wal")
        assert len(segments(store)) > 4
        for number in segments(store)[:-1]:
            index, truth = load_index(directory, number), index_by_reading(store, number)
            assert index is not None
            assert (index.first_position, index.end_position) == (
                truth.first_position,
                truth.end_position,
            )
            assert index.newest is not None
            assert truth.newest is not None
            assert index.newest >= truth.newest
            for partition, ranges in truth.counters.items():
                for _, low, high in ranges:
                    assert index.covers(partition, low, low)
                    assert index.covers(partition, high, high)
        scan = Scan(directory)
        for frame, record in read_records(scan):
            if isinstance(record, TxRecord) and frame.segment != segments(store)[-1]:
                index = load_index(directory, frame.segment)
                assert index is not None
                assert index.may_contain(record.tx_id)
                assert store.database.outcome(record.tx_id) == "committed"


def test_an_index_that_is_missing_is_made_at_the_next_checkpoint() -> None:
    with opened(segment_bytes=1) as store:
        fill(store)
        store.database.checkpoint()
    directory = store.disk.directory("/store/wal")
    numbers = segments(store)[:-1]
    for number in numbers:
        directory.unlink(index_name(number))
    # By age they may go one day, by their content, not for want of an index.
    with opened(store.disk, segment_bytes=1, retain_bytes=1 << 40, retain_seconds=3600.0) as again:
        again.database.checkpoint()
        for number in numbers:
            index = load_index(directory, number)
            assert index is not None
            assert index.counters == index_by_reading(again, number).counters
        assert segments(again)[: len(numbers)] == numbers


def test_an_index_that_cannot_be_written_costs_nothing() -> None:
    with opened(segment_bytes=1) as store:
        store.disk.fail_at(
            1, "ENOSPC", kind="create", for_ever=True, path="/store/wal/0000000000000002.idx"
        )
        ids = fill(store)
        assert {store.database.outcome(tx_id) for tx_id in ids} == {"committed"}
        names = store.disk.directory("/store/wal").names()
        assert index_name(2) not in names
        assert index_name(3) in names


def test_a_segment_that_cannot_be_read_has_no_index() -> None:
    with opened(segment_bytes=1) as store:
        fill(store)
        store.disk.fail_at(1, "EIO", kind="open_read", path="/store/wal/0000000000000001.log")
        store.database.checkpoint()
        names = store.disk.directory("/store/wal").names()
        assert index_name(1) not in names
        assert index_name(2) in names


# ------------------------------------------------------------------ retention


def test_a_checkpoint_lets_go_of_what_nobody_needs() -> None:
    with opened(**SMALL) as store:
        fill(store)
        before = segments(store)
        assert store.database.statistics().log_first_position == 0
        assert {"recovery"} <= set(store.database.statistics().log_held_by[before[0]])
        store.database.checkpoint()
        after = segments(store)
        assert after == before[-len(after) :]
        assert len(after) <= 2
        statistics = store.database.statistics()
        assert statistics.log_first_position > 0
        assert statistics.log_bytes < 200_000
        names = store.disk.directory("/store/wal").names()
        assert sum(name.endswith(SPARE_SUFFIX) for name in names) == SPARES_MAX
        assert not [name for name in names if name.endswith(".idx") and int(name[:16]) < after[0]]


def test_history_is_kept_within_its_size() -> None:
    with opened(segment_bytes=1, retain_bytes=300_000) as store:
        fill(store)
        store.database.checkpoint()
        assert 200_000 < store.database.statistics().log_bytes < 450_000
        assert "history" in store.database.statistics().log_held_by[segments(store)[0]]


def test_history_is_kept_for_its_time() -> None:
    limits: dict[str, Any] = {"segment_bytes": 1, "retain_bytes": 1 << 40, "retain_seconds": 60.0}
    with opened(**limits) as store:
        fill(store)
        store.database.checkpoint()
        old = segments(store)
        store.environment.time.move(30)
        fill(store, first=100)
        store.environment.time.move(31)
        store.database.checkpoint()
        left = segments(store)
        assert old[0] not in left
        assert len(left) > len(old) // 2


def test_spares_are_written_over_and_the_space_is_used_again() -> None:
    with opened(**SMALL) as store:
        for round_number in range(6):
            fill(store, 8, first=100 * round_number)
            store.database.checkpoint()
        created = [o.path for o in store.disk.trace if o.kind == "create" and "next.tmp" in o.path]
        renamed = [o for o in store.disk.trace if o.kind == "rename" and SPARE_SUFFIX in o.path]
        assert len(renamed) > len(created)
        names = store.disk.directory("/store/wal").names()
        assert sum(name.endswith(SPARE_SUFFIX) for name in names) <= SPARES_MAX
    with opened(store.disk, **SMALL) as again:
        # A new opening knows nothing of the spares of the old one.
        assert not any(
            name.endswith(SPARE_SUFFIX) for name in again.disk.directory("/store/wal").names()
        )
        assert len(again.database.map("users")) == 48


def test_a_pin_holds_the_log_from_its_position_on() -> None:
    with opened(**SMALL) as store:
        fill(store, 8)
        pinned = segments(store)[1]
        position = open_segment(store.disk.directory("/store/wal"), pinned).first_position
        pin = store.parts.keeper.pins.set("backup", position)
        fill(store, 16, first=100)
        store.database.checkpoint()
        statistics = store.database.statistics()
        assert segments(store)[0] == pinned
        assert statistics.oldest_pin == position
        assert statistics.pins == {"backup": position}
        assert "pin backup" in statistics.log_held_by[pinned]
        store.parts.keeper.pins.release(pin)
        store.database.checkpoint()
        assert segments(store)[0] > pinned


def test_a_reader_holds_the_log_until_its_process_has_gone() -> None:
    with opened(**SMALL) as store:
        fill(store, 8)
        slot = store.disk.lock("/store/readers/77-abc")
        unready = store.disk.lock("/store/readers/78-abc")
        slot.write(b"%020d\n" % 50)
        fill(store, 8, first=100)
        store.database.checkpoint()
        statistics = store.database.statistics()
        # One that has not said anything yet needs everything.
        assert statistics.readers == {"77-abc": 50, "78-abc": 0}
        assert segments(store)[0] == 1
        assert {"reader 77-abc", "reader 78-abc"} <= set(statistics.log_held_by[1])
        slot.release()
        unready.release()
        store.database.checkpoint()
        assert store.database.statistics().readers == {}
        assert segments(store)[0] > 1
        assert store.disk.directory("/store/readers").names() == []


def test_without_the_folder_of_readers_there_are_none() -> None:
    with opened() as store:
        store.parts.keeper._readers_path = "/store/nowhere"
        assert store.parts.keeper.readers() == {}


@pytest.mark.parametrize("kind", ["rename", "unlink", "names"])
def test_an_error_while_trimming_fails_no_checkpoint_and_is_made_up_for(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    # The background thread died of it, and nobody took checkpoints any more.
    with opened(**SMALL) as store:
        fill(store)
        before = segments(store)
        path = "/store/readers" if kind == "names" else "/store/wal"
        store.disk.fail_at(1, "EIO", kind=kind, path=path)
        with caplog.at_level(logging.WARNING, "tidelog"):
            store.database.checkpoint()
        assert [record.event for record in caplog.records] == ["log.trim_failed"]  # type: ignore[attr-defined]
        assert segments(store) == before
        store.database.checkpoint()
        assert len(segments(store)) <= 2


def test_a_segment_that_cannot_be_measured_is_not_lost_sight_of() -> None:
    with opened(**SMALL) as store:
        store.disk.fail_at(1, "EIO", kind="open_read", path="/store/wal/0000000000000001.log")
        fill(store)
        assert store.database.statistics().log_first_position == 0
        store.database.checkpoint()
        assert segments(store)[0] > 1


# ------------------------------------------------------------------ who wrote it


def test_the_winner_of_a_conflict_is_found_in_the_newest_log() -> None:
    with opened(partitions=1) as store:
        ids = fill(store, 5)
        keeper, writer = store.parts.keeper, store.parts.writer
        segment, end = writer.segment, writer.position
        fill(store, 1)
        found = [keeper.writer_of(0, counter, segment, end) for counter in range(7)]
        assert found == [None, *ids, None]


def test_the_winner_of_a_conflict_is_looked_for_from_the_end_of_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The segment was read from its beginning: up to a second, with everybody waiting.
    with opened(partitions=1) as store:
        users = store.database.map("users")
        ids = []
        for number in range(100):
            with store.database.transaction() as tx:
                tx[users][b"%d" % number] = FRAME_MAGIC * 250
            ids.append(tx.tx_id)
        keeper, writer = store.parts.keeper, store.parts.writer
        looked = []
        walk: Any = vars(log_keeper)["walk"]

        def noted(segment: Segment, position: int, limit: int) -> Any:
            looked.append(limit - position)
            return walk(segment, position, limit)

        monkeypatch.setattr(log_keeper, "walk", noted)
        end, back = writer.position, (4096, 20_000)
        find = partial(keeper.writer_of, 0, header=writer.segment, end=end, look_back=back)
        assert [find(100), find(90), find(50)] == [ids[99], ids[89], None]
        assert len(looked) == 5
        assert looked[0] <= 4096
        assert max(looked) <= 20_000


def test_the_winner_of_a_conflict_in_a_segment_that_is_gone_is_not_known() -> None:
    with opened(partitions=1, **SMALL) as store:
        keeper, writer = store.parts.keeper, store.parts.writer
        fill(store, 5)
        segment, end = writer.segment, writer.position
        fill(store)
        store.database.checkpoint()
        with pytest.raises(FileNotFoundError):
            keeper.writer_of(0, 1, segment, end)


def test_a_reopened_log_goes_on_where_it_ended() -> None:
    store = open_store(**SMALL)
    ids = fill(store)
    session_of(store.database).abandon()
    with opened(store.disk.crash("lost"), **SMALL) as again:
        assert {again.database.outcome(tx_id) for tx_id in ids} == {"committed"}
        fill(again, first=50)
        again.database.checkpoint()
        assert len(again.database.map("users")) == 48
        assert again.database.outcome(ids[0]) == "too_old"


def test_frames_near_the_end_are_those_from_a_place_on_and_no_more_is_read() -> None:
    log = LogBuilder()
    log.committed(4)
    segment = open_segment(log.directory, 1)
    file, reads = segment.file, list[int]()

    class Noting:
        def read(self, offset: int, length: int) -> bytes:
            reads.append(length)
            return file.read(offset, length)

        def size(self) -> int:
            return file.size()

    noted: Any = Noting()
    noting = replace(segment, file=noted)
    first, second, third, fourth = log.frames[1:]
    for start, end, expected in (
        (second.position, log.position, [second, third, fourth]),
        (second.position + 1, log.position, [third, fourth]),
        (first.position, third.position, [first, second]),
        (fourth.position + 1, log.position, []),
    ):
        reads.clear()
        assert list(log_keeper._frames_near(noting, start, end)) == expected
        assert reads[0] == end - start


def test_a_spare_that_was_prepared_is_the_next_segment_whole_and_full_of_zeros() -> None:
    with opened(segment_bytes=1) as store:
        size = 3 << 20
        store.parts.keeper.prepare_spare(size)
        store.parts.keeper.prepare_spare(size)  # there is one
        wal = store.disk.directory("/store/wal")
        spare = f"{0:016d}{SPARE_SUFFIX}"
        assert [name for name in wal.names() if name.endswith(SPARE_SUFFIX)] == [spare]
        before = segments(store)
        ids = fill(store)
        assert len(segments(store)) > len(before)
        assert open_segment(wal, before[-1] + 1).file.size() == size
    wal.create(spare).close()  # as a crash leaves one
    with opened(store.disk, segment_bytes=1) as again:
        assert spare not in again.disk.directory("/store/wal").names()
        assert all(again.database.outcome(one) == "committed" for one in ids)


# ------------------------------------------------------------------ what it has a record of


def keeper_of(log: LogBuilder, *, synced: int | None = None, time: int = 0) -> LogKeeper:
    """The keeper of a log that was built by hand, and that nobody writes to."""
    nobody: Any = None
    directory: Any = log.directory
    state = State(STORE_ID, one_space(log.partitions))
    state.time = time
    segment = SimpleNamespace(number=log.number, first_position=log.base)
    writer: Any = SimpleNamespace(segment=segment, synced=log.synced if synced is None else synced)
    keeper = LogKeeper(nobody, directory, "/store/readers", nobody)
    keeper.begin(writer, state)
    return keeper


def came_back() -> AdmitRecord:
    """The record of a copy of partition 0 that is whole again."""
    return AdmitRecord(
        partition=0, admission=1, epochs=((1, 1),), lwm=5, ranges=(), hwm=7, dropped=()
    )


@pytest.mark.parametrize(("first_position", "filled"), [(0, 0), (1 << 20, 1_001)])
def test_a_copy_came_by_history_unless_the_log_may_have_lost_that_it_began_anew(
    first_position: int, filled: int
) -> None:
    log = LogBuilder(first_position=first_position)
    log.add(came_back())
    log.tx(1)
    log.rotate()
    log.tx(1)
    keeper = keeper_of(log)
    assert keeper.first_position == first_position
    assert (keeper.fills().of(0).until, keeper.fills().of(1).until) == (filled, 0)


def test_a_log_without_transactions_knows_all_since_the_newest_one() -> None:
    log = LogBuilder(first_position=1 << 20)
    assert keeper_of(log, time=7_000).known_since() == 7_000
    log.tx()
    assert keeper_of(log, time=7_000).known_since() == 1_001


def test_what_lies_below_a_hole_is_not_asked_what_the_log_has_a_record_of() -> None:
    log = LogBuilder()
    for _ in range(2):
        log.add(came_back())
        log.tx(1)
        log.rotate()
    log.tx(1)
    del log.directory.files[segment_name(2)]
    keeper = keeper_of(log)
    assert keeper.first_position == log.base > 0
    assert keeper.fills().of(0).until == 0
    assert keeper.known_since() == 1_003


def test_what_is_durable_and_does_not_read_may_be_a_copy_that_was_made_in_full() -> None:
    log = LogBuilder()
    log.tx()
    whole, frame = log.position, log.tx()
    log.directory.segment(1)[frame.offset :] = bytes(log.offset - frame.offset)
    assert keeper_of(log, synced=whole).fills().of(0).until == 0, "it never got to the disk"
    with pytest.raises(CorruptLogError):
        keeper_of(log, synced=log.position).fills()
