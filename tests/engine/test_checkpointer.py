"""Checkpoints: what they carry over, who takes them, and what they leave when they fail."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from threading import Lock
from typing import Any

import pytest

from support.loads import make_load, rows_of
from support.stores import PATH, Opened, expect_sound, in_data_file, open_store, opened
from tidelog.affinity.errors import CorruptLogError, DiskError, DiskFullError, ReadOnlyError
from tidelog.affinity.partitions import Space, partition_of
from tidelog.checkpoints.marks import PartitionMark
from tidelog.engine.api.database import session_of
from tidelog.engine.data.flush import append_pairs
from tidelog.engine.data.full_pairs import PairTally, WrongPairsError, tally_of
from tidelog.engine.data.partition_store import (
    measure_partition,
    read_marks,
    verify_partitions,
)
from tidelog.engine.data.stored import pack_prefix, user_value, version_of
from tidelog.engine.files import manifest as manifests
from tidelog.engine.store import checkpointer
from tidelog.engine.system.limits import Limits
from tidelog.testing import FaultyDisk, SimulatedCrash
from tidelog.wal.format import FRAME_OVERHEAD
from tidelog.wal.reader import Scan, read_records
from tidelog.wal.records import CheckpointRecord


def fill(store: Opened, count: int = 40, value: bytes = b"v", name: str = "users") -> None:
    store.database.map(name).update_many({b"%d" % number: value for number in range(count)})


def content(store: Opened, name: str = "users") -> dict[bytes, bytes]:
    return dict(store.database.map(name))


def commits(store: Opened) -> int:
    return sum(operation.kind == "commit" for operation in store.disk.trace)


def cut_short(prepared: Callable[[], Opened]) -> list[FaultyDisk]:
    """Return what a power cut before each commit of a checkpoint leaves."""
    probe = prepared()
    before = probe.disk.operations
    probe.database.checkpoint()
    numbers = [o.number for o in probe.disk.trace[before:] if o.kind == "commit"]
    session_of(probe.database).abandon()
    disks = []
    for number in numbers:
        store = prepared()
        store.disk.crash_at(number, "before")
        with pytest.raises(SimulatedCrash):
            store.database.checkpoint()
        disks.append(store.disk.crash("lost"))
    return disks


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [getattr(record, "event", "") for record in caplog.records]


def test_a_checkpoint_carries_everything_over_and_notes_it_in_the_log() -> None:
    with opened(durability="none") as store:
        fill(store)
        store.database.map("users").discard(b"7")
        end = store.parts.writer.position
        assert store.database.checkpoint() == end
        assert store.parts.writer.synced >= end
        assert session_of(store.database).overlay.bytes == 0
        assert len(content(store)) == 39
        scan = Scan(store.disk.directory(f"{PATH}/wal"))
        (note,) = [r for _, r in read_records(scan) if isinstance(r, CheckpointRecord)]
        assert note.position == end
        assert store.parts.checkpointer.figures.updates == 40


def test_a_checkpoint_of_nothing_is_one_commit() -> None:
    with opened() as store:
        before = commits(store)
        store.database.checkpoint()
        store.database.checkpoint()
        assert commits(store) == before + 2


def test_a_large_checkpoint_is_several_transactions() -> None:
    with opened(limits=Limits(batch_updates=10), partitions=8) as store:
        fill(store, 80)
        before = commits(store)
        store.database.checkpoint()
        assert 4 <= commits(store) - before <= 8
        assert len(content(store)) == 80


def test_a_checkpoint_that_dies_between_two_transactions_is_made_up_for() -> None:

    def prepared() -> Opened:
        store = open_store(limits=Limits(batch_updates=10), partitions=8)
        fill(store, 80)
        fill(store, 10, name="gone")
        store.database.checkpoint()
        fill(store, 60, b"w")
        fill(store, 5, name="others")
        store.database.drop("gone")
        return store

    disks = cut_short(prepared)
    assert len(disks) > 3
    for disk in disks:
        with opened(disk, seed=2, limits=Limits(batch_updates=10)) as again:
            assert again.database.maps() == ["others", "users"]
            assert len(content(again, "others")) == 5
            values = list(content(again).values())
            assert (values.count(b"w"), values.count(b"v")) == (60, 20)
            again.database.checkpoint()
            assert again.parts.kv.entries() == 85 + 8 + 1


def test_a_partition_that_was_left_between_two_pieces_is_made_up_for() -> None:

    def prepared() -> Opened:
        store = open_store(limits=Limits(piece_updates=10), partitions=1)
        fill(store, 80)
        store.database.checkpoint()
        fill(store, 60, b"w")
        for number in (*range(10), *range(70, 75)):
            store.database.map("users").discard(b"%d" % number)
        return store

    disks = cut_short(prepared)
    assert len(disks) == 7
    for disk in disks:
        expect_sound(disk)
        with opened(disk, seed=2, limits=Limits(piece_updates=10)) as again:
            values = list(content(again).values())
            assert (values.count(b"w"), values.count(b"v")) == (50, 15)
            again.database.checkpoint()
            assert again.parts.kv.entries() == 65 + 1 + 1


def test_a_log_that_ends_below_a_piece_is_refused() -> None:
    # The data file holds what the log lost, so this is no torn tail.

    def prepared() -> Opened:
        store = open_store(limits=Limits(piece_updates=10), partitions=1, durability="none")
        fill(store, 30)
        return store

    _, disk, _ = cut_short(prepared)  # behind the first of three pieces
    last = list(Scan(disk.directory(f"{PATH}/wal")))[-1]
    disk.flip_bit(f"{PATH}/wal/{last.segment:016d}.log", 8 * (last.offset + FRAME_OVERHEAD))
    with pytest.raises(CorruptLogError):
        open_store(disk, seed=2)


def test_after_a_failed_write_of_the_data_file_no_checkpoint_is_taken_before_the_next_open(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = open_store()
    fill(store)
    store.disk.fail_at(store.disk.operations + 1, "EIO", kind="commit")
    for _ in range(2):
        with pytest.raises(DiskError):
            store.database.checkpoint()
    assert "checkpoint.failed" in events(caplog)
    assert manifests.read(store.disk.directory(PATH)).rebuild
    # Nothing is lost, and everything but a checkpoint goes on.
    fill(store, 50, b"w")
    assert len(content(store)) == 50
    with pytest.raises(DiskError):
        store.database.close()
    with opened(store.disk, seed=2) as again:
        assert content(again) == {b"%d" % number: b"w" for number in range(50)}
        again.database.checkpoint()


def test_a_checkpoint_whose_sync_of_the_log_fails_writes_nothing_into_the_data_file() -> None:
    store = open_store(durability="none")
    fill(store)
    before = commits(store)
    store.disk.fail_at(store.disk.operations + 1, "EIO", kind="sync")
    with pytest.raises(DiskError):
        store.database.checkpoint()
    assert commits(store) == before
    assert len(content(store)) == 40
    session_of(store.database).abandon()


def test_a_checkpoint_without_space_is_tried_again() -> None:
    with opened() as store:
        fill(store)
        store.disk.fail_at(store.disk.operations + 1, "ENOSPC", kind="commit")
        with pytest.raises(DiskFullError):
            store.database.checkpoint()
        store.database.map("users")[b"more"] = b"1"
        store.database.checkpoint()
        assert len(content(store)) == 41


def test_what_a_failed_checkpoint_had_to_write_the_next_one_writes() -> None:
    # Epochs rose without any data: only `touched` says which marks are stale.
    store = open_store()
    fill(store, 4)
    session_of(store.database).abandon()
    with opened(store.disk, seed=2) as again:
        again.disk.fail_at(again.disk.operations + 1, "ENOSPC", kind="commit")
        with pytest.raises(DiskFullError):
            again.database.checkpoint()
        again.database.checkpoint()
        state = again.parts.state
        assert [again.parts.checkpointer.marks[p].epochs for p in range(4)] == state.epoch_tables
        assert {epochs[-1][0] for epochs in state.epoch_tables} == {2}


def test_a_checkpoint_that_two_signals_interrupt_forgets_no_partition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The second one came while the first was seen to: marks stayed in the epoch before, the next
    # checkpoint let replay begin behind the record that had raised it, and no open succeeded.
    store = open_store()
    fill(store, 4)
    store.database.checkpoint()
    session_of(store.database).abandon()
    again = open_store(store.disk, seed=2)

    def signal(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(again.parts.checkpointer, "_write", signal)
        patch.setattr(again.parts.overlay, "abandon_flush", signal)
        with pytest.raises(KeyboardInterrupt):
            again.database.checkpoint()
    again.database.checkpoint()
    fill(again, 4, b"w")
    session_of(again.database).abandon()
    with opened(again.disk, seed=3) as last:
        assert content(last) == {b"%d" % number: b"w" for number in range(4)}


def test_failed_checkpoints_leave_no_more_layers_than_one_has() -> None:
    with opened() as store:
        for number in range(6):
            fill(store, 3, b"%d" % number)
            store.disk.fail_at(store.disk.operations + 1, "ENOSPC", kind="commit")
            with pytest.raises(DiskFullError):
                store.database.checkpoint()
            with store.database.snapshot() as snapshot:
                assert len(dict(snapshot[store.database.map("users")].items())) == 3
        assert len(session_of(store.database).overlay.view.layers) <= 3


def test_nothing_is_attached_to_a_data_file_that_is_in_doubt(tmp_path: Path) -> None:
    store = open_store()
    fill(store)
    store.disk.fail_at(store.disk.operations + 1, "EIO", kind="commit")
    with pytest.raises(DiskError):
        store.database.checkpoint()
    before = commits(store)
    with pytest.raises(DiskError, match="no checkpoint is taken any more"):
        store.database.attach(make_load(tmp_path / "load", rows_of(20)))
    assert commits(store) == before
    session_of(store.database).abandon()


def test_nothing_is_attached_to_a_store_that_must_not_be_written_any_more() -> None:
    def refuse() -> None:
        raise ReadOnlyError("nothing is written any more")

    with opened() as store:
        before = commits(store)
        with pytest.raises(ReadOnlyError):
            store.parts.checkpointer.add({}, 0, refuse)
        assert commits(store) == before


def test_a_note_that_cannot_be_left_fails_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with opened() as store:
        fill(store)
        store.disk.fail_at(store.disk.operations + 1, "ENOSPC", kind="write", path=f"{PATH}/wal")
        store.database.checkpoint()
        assert "checkpoint.unnoted" in events(caplog)
        assert session_of(store.database).overlay.bytes == 0
        store.database.map("users")[b"more"] = b"1"


def test_a_checkpoint_that_another_one_made_needless_is_not_taken() -> None:
    with opened() as store:
        before = commits(store)
        store.parts.checkpointer.run_while(lambda: False, "needless")
        assert commits(store) == before


def test_counters_that_moved_without_data_are_in_the_checkpoint() -> None:
    store = open_store()
    fill(store, 4)
    session_of(store.database).abandon()
    with opened(store.disk, seed=2) as again:
        # Epochs have risen, so each partition's mark is written though nothing was updated.
        again.database.checkpoint()
        assert all(mark.epochs[-1][0] == 2 for mark in again.parts.checkpointer.marks.values())
        assert len(again.parts.checkpointer.marks) == 4


# ------------------------------------------------------------------ who takes them, and when


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"checkpoint_bytes": 5000}, "overlay"),
        ({"checkpoint_interval": 1.0}, "idle"),
    ],
)
def test_the_background_takes_a_checkpoint_that_is_due(
    limits: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "tidelog.checkpoint"), opened(**limits) as store:
        fill(store)
        assert store.database.statistics().checkpoints == 0
        store.environment.advance(2.0)
        assert store.database.statistics().checkpoints == 1
        assert f"reason={reason}" in caplog.text
        store.environment.advance(10.0)
        assert store.database.statistics().checkpoints == 1


def test_a_long_log_alone_makes_a_checkpoint_due() -> None:
    with opened(checkpoint_bytes=5000) as store:
        for _ in range(30):
            fill(store, 1, b"x" * 1000)
            session_of(store.database).overlay.active.bytes = 0
        store.environment.advance(1.0)
        assert store.database.statistics().checkpoints == 1


@pytest.mark.parametrize("writer", ["put", "transaction"])
@pytest.mark.parametrize("durability", ["always", "none"])
def test_whoever_finds_the_overlay_at_twice_its_limit_takes_the_checkpoint(
    durability: Any, writer: str
) -> None:
    with opened(checkpoint_bytes=5000, durability=durability) as store:
        users = store.database.map("users")
        most = 0
        for number in range(100):
            if writer == "put":
                users[b"%d" % number] = b"x" * 300
            else:
                with store.database.transaction() as tx:
                    tx[users][b"%d" % number] = b"x" * 300
            most = max(most, session_of(store.database).overlay.bytes)
        assert store.database.statistics().checkpoints > 2
        assert most < 12_000
        assert len(users) == 100


def test_an_interval_is_how_long_a_relaxed_commit_waits_for_its_sync() -> None:
    with opened(durability="interval", sync_interval=0.5) as store:
        fill(store)
        position = store.parts.writer.position
        store.environment.advance(0.4)
        assert store.parts.writer.synced < position
        store.environment.advance(0.2)
        assert store.parts.writer.synced >= position


def test_without_durability_only_checkpoints_sync() -> None:
    with opened(durability="none") as store:
        fill(store)
        position = store.parts.writer.position
        store.environment.advance(10.0)
        assert store.parts.writer.synced < position
        store.database.checkpoint()
        assert store.parts.writer.synced >= position


def test_behind_an_interrupted_write_the_marks_are_those_of_the_data_file() -> None:
    class Interrupted(dict[int, PartitionMark]):
        def update(self, *_args: Any, **_named: Any) -> None:
            raise KeyboardInterrupt

    with opened() as store:
        fill(store)
        store.database.checkpoint()
        checkpointer = store.parts.checkpointer
        before, checkpointer.marks = checkpointer.marks, Interrupted(checkpointer.marks)
        fill(store, value=b"w")
        with pytest.raises(KeyboardInterrupt):
            store.database.checkpoint()
        checkpointer.marks = before
        store.database.map("users")[b"0"] = b"x"
        # One partition alone: the others are read.
        partition = partition_of(b"0", Space(0, 4))
        flush = checkpointer._flush_of(partition, {}, checkpointer.position)
        assert read_marks(store.parts.kv.begin())[1] != before
        checkpointer._commit(list(flush.pieces(10)), None, None)
        assert read_marks(store.parts.kv.begin())[1] == checkpointer.marks
        store.database.checkpoint()
        assert len(content(store)) == 40


# ------------------------------------------------------------------ full copies

PREFIX = pack_prefix(0, 16)

Row = tuple[int, bytes | None]


def copied(store: Opened, position: int, **rows: Row) -> PairTally:
    """Write pairs of a full copy: by key the number of an update, and its value."""
    fill = store.parts.checkpointer.fill
    return fill(0, *columns_of(**rows), position, lambda: None, nullcontext())


def columns_of(**rows: Row) -> tuple[list[bytes], list[bytes]]:
    keys = [PREFIX + key.encode() for key in rows]
    return keys, [
        in_data_file(key, value, 1, number, 5)
        for key, (number, value) in zip(keys, rows.values(), strict=True)
    ]


def held(store: Opened) -> dict[str, Row]:
    """What the data file has of partition 0, by key: the number of an update, and its value."""
    cursor = store.parts.kv.begin().cursor()
    pairs = dict(cursor.iternext() if cursor.first() else ())
    return {
        key[len(PREFIX) :].decode(): (version_of(stored)[1], user_value(key, stored))
        for key, stored in pairs.items()
        if key.startswith(PREFIX)
    }


def expect_counted(store: Opened) -> PartitionMark:
    """Expect the mark of partition 0 to fit what is there; return it."""
    kv = store.parts.kv
    mark = read_marks(kv.begin())[1][0]
    assert measure_partition(kv.begin(), 0) == (mark.count, mark.digest, mark.tombstones)
    assert verify_partitions(kv, {0: mark}) == []
    assert store.parts.checkpointer.marks[0] == mark
    return mark


def test_pairs_of_a_full_copy_are_there_with_their_deletes_and_are_counted() -> None:
    store = open_store(partitions=1)
    store.database.checkpoint()
    before = store.parts.checkpointer.marks.get(0, PartitionMark.empty())
    first = copied(store, 700, a=(3, b"three"), b=(4, None), c=(5, b"five"), d=(6, None))
    assert first == tally_of(
        columns_of(a=(3, b"three"), b=(4, None), c=(5, b"five"), d=(6, None))[1]
    )
    more = copied(store, 600, e=(7, b""), f=(8, None))
    assert held(store) == {
        "a": (3, b"three"), "b": (4, None), "c": (5, b"five"), "d": (6, None), "e": (7, b""),
        "f": (8, None),
    }  # fmt: skip
    mark = expect_counted(store)
    assert first.plus(more) == (mark.count, mark.tombstones, mark.digest) == (3, 3, mark.digest)
    assert mark.counts == {16: 3}
    assert (mark.position, mark.counter, mark.state) == (
        before.position, before.counter, before.state,
    )  # fmt: skip
    assert mark.written == 700
    session_of(store.database).abandon()


def test_who_writes_a_full_copy_has_its_turn_while_lmdb_takes_pairs_and_not_while_it_syncs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, turn, held_when = open_store(partitions=1), Lock(), list[tuple[str, bool]]()
    columns = columns_of(**{f"{n:04d}": (n, b"v" if n % 3 else None) for n in range(1, 2501)})

    def append(*about: Any) -> PartitionMark:
        held_when.append(("append", turn.locked()))
        return append_pairs(*about)

    def committing(commit: Callable[[], object]) -> object:
        held_when.append(("commit", turn.locked()))
        return commit()

    monkeypatch.setattr(checkpointer, "append_pairs", append)
    with store.disk.around("commit", PATH, committing):
        tally = store.parts.checkpointer.fill(0, *columns, 700, lambda: None, turn)
    assert held_when == [("append", True), ("commit", False)]
    assert tally[:2] == (1667, 833)
    mark = expect_counted(store)
    assert tally == (mark.count, mark.tombstones, mark.digest)
    session_of(store.database).abandon()


@pytest.mark.parametrize("key", ["a", "bb", "c"])
def test_pairs_that_do_not_lie_behind_those_that_came_before_are_refused(key: str) -> None:
    store = open_store(partitions=1)
    copied(store, 700, b=(3, b"three"), c=(4, None))
    before = commits(store)
    with pytest.raises(WrongPairsError):
        copied(store, 700, **{key: (9, b"nine"), "d": (10, b"ten")})
    assert commits(store) == before
    copied(store, 700, d=(10, b"ten"))
    assert held(store) == {"b": (3, b"three"), "c": (4, None), "d": (10, b"ten")}
    expect_counted(store)
    session_of(store.database).abandon()


def test_pairs_of_a_full_copy_are_one_transaction() -> None:
    store = open_store(partitions=1, limits=Limits(batch_updates=1, piece_updates=1))
    before = commits(store)
    copied(store, 700, a=(1, b"1"), b=(2, None), c=(3, b"3"))
    assert commits(store) == before + 1
    assert list(held(store)) == ["a", "b", "c"]
    session_of(store.database).abandon()


def test_a_full_copy_that_power_cuts_short_is_there_or_not() -> None:
    for moment, expected in (("before", {}), ("after", {"a": (3, b"three")})):
        store = open_store(partitions=1)
        store.database.checkpoint()
        number = store.disk.operations + 1
        store.disk.crash_at(number, moment)
        with pytest.raises(SimulatedCrash):
            copied(store, 0, a=(3, b"three"))
        again = open_store(store.disk.crash("lost"), seed=2)
        assert held(again) == expected
        marks = read_marks(again.parts.kv.begin())[1]
        assert verify_partitions(again.parts.kv, marks) == []
        session_of(again.database).abandon()


def test_no_full_copy_goes_into_a_data_file_that_must_not_be_written() -> None:
    def refuse() -> None:
        raise ReadOnlyError("nothing is written any more")

    store, columns = open_store(partitions=1), columns_of(a=(3, b"v"))
    with pytest.raises(ReadOnlyError):
        store.parts.checkpointer.fill(0, *columns, 700, refuse, nullcontext())
    assert held(store) == {}
    store.disk.fail_at(store.disk.operations + 1, "EIO", kind="commit")
    with pytest.raises(DiskError):
        copied(store, 700, a=(3, b"three"))
    before = commits(store)
    with pytest.raises(DiskError, match="no checkpoint is taken any more"):
        copied(store, 700, a=(3, b"three"))
    assert commits(store) == before
    session_of(store.database).abandon()
