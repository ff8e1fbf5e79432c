"""The journal of the configuration log on a disk that fails, loses power, or flips bits."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

from support.journals import (
    CLUSTER,
    EARLY,
    IDENTITY,
    LATE,
    PATH,
    STEPS,
    Batch,
    Held,
    held_after,
    held_in,
    new_journal,
    reopened,
    scenario,
)
from tidelog.affinity.errors import DiskError, DiskFullError, ReadOnlyError, StorageError
from tidelog.engine.agreement.journal import AHEAD, Journal, Recovered
from tidelog.engine.agreement.journal_format import (
    CONFIG_MAGIC,
    AcceptedRecord,
    DecidedRecord,
    NoteRecord,
    PromisedRecord,
    config_header,
)
from tidelog.testing import FaultyDisk, crash_points
from tidelog.testing.crash import error_points
from tidelog.wal.format import HEADER_SIZE, encode_frame, log_seed

VERSIONS = [held_after(STEPS[:count]) for count in range(len(STEPS) + 1)]
LAST = NoteRecord(9, b"after the recovery")


def opened(disk: FaultyDisk, durable: int = 0) -> Recovered:
    """What the journal on a disk holds, damaged or not."""
    journal, found = Journal.open(disk.directory("/"), identity=IDENTITY, durable=durable)
    assert (journal is None) == (found.damage is not None) == (not found.may_vote)
    return found


def check_goes_on(disk: FaultyDisk, least: int) -> None:
    """A disk holds what some step left, not one before ``least``, and what comes next stays."""
    journal, found = reopened(disk)
    held = held_in(found)
    assert held in VERSIONS[least:], held
    journal.append([LAST])
    journal.sync()
    later = opened(disk.crash("lost"), durable=journal.synced)
    assert later.damage is None
    assert later.notes == (*held.notes, LAST)


# ------------------------------------------------------------------ power cuts


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_power_cut_at_any_operation_loses_nothing_that_was_synced(seed: int) -> None:
    points = 0
    for point in crash_points(scenario, seed=seed):
        points += 1
        if PATH not in point.disk.paths():
            assert not point.acknowledged, point
            new_journal(point.disk)  # what an interrupted creation leaves is in nobody's way
            continue
        least = max([0, *(n for n in point.acknowledged if isinstance(n, int))])
        check_goes_on(point.disk, least)
    assert points > 200


@pytest.mark.slow
def test_a_power_cut_in_a_recovery_loses_nothing_that_was_recovered() -> None:
    for point in crash_points(scenario, moments=("inside",)):
        if PATH not in point.disk.paths():
            continue

        def recover(disk: FaultyDisk, acknowledge: Callable[[object], None]) -> None:
            acknowledge(held_in(reopened(disk)[1]))

        before = held_in(opened(point.disk.copy()))
        for inner in crash_points(recover, start=point.disk, moments=("inside", "after")):
            after = held_in(opened(inner.disk))
            assert after == before, f"{point}, then {inner}"


def test_what_is_recovered_from_a_process_that_ended_is_on_the_disk() -> None:
    """A batch that was appended, and read again by the next process, was gone with the power."""
    disk = FaultyDisk()
    new_journal(disk).append([PromisedRecord(EARLY)])
    assert reopened(disk)[1].promised == EARLY
    assert opened(disk.crash("lost")).promised == EARLY


@pytest.mark.parametrize("length", [0, 2 * AHEAD])
def test_what_is_cut_never_comes_back(length: int) -> None:
    """A frame behind a torn one was valid again as soon as new ones ended where it began."""
    disk = FaultyDisk()
    journal = new_journal(disk)
    start = journal.synced
    long = NoteRecord(1, bytes(length))
    journal.append([long])
    journal.append([NoteRecord(2, b"never synced")])
    disk.flip_bit(PATH, 8 * (HEADER_SIZE + start + 22))
    journal, found = reopened(disk)
    assert (held_in(found), found.end) == (Held(), start)
    assert found.dropped_bytes > length
    journal.append([long])
    assert held_in(opened(disk)) == Held(notes=(long,))


def test_an_opening_writes_nothing_below_what_is_proven() -> None:
    disk = FaultyDisk()
    journal = new_journal(disk)
    for number in range(1, 4):
        journal.append([DecidedRecord(number)])
        journal.sync()
    journal.append([DecidedRecord(4)])
    proven, count = journal.synced, disk.operations
    reopened(disk)
    sizes = [one.size_bytes for one in disk.trace[count:] if one.kind == "write"]
    assert sizes == [journal.position - proven + AHEAD]


# ------------------------------------------------------------------ errors of the disk


@pytest.mark.slow
def test_an_error_at_any_operation_loses_nothing_that_was_synced() -> None:
    """The next process goes on, also from what a failed sync left in the page cache alone."""
    for point in error_points(scenario):
        durable: list[object] = []
        with suppress(StorageError):
            scenario(point.disk, durable.append)
        point.disk.heal()
        if PATH not in point.disk.paths():
            assert not durable, point
            new_journal(point.disk)
            continue
        check_goes_on(point.disk, max([0, *(n for n in durable if isinstance(n, int))]))


def append_and_sync(journal: Journal) -> None:
    journal.append([DecidedRecord(1)])
    journal.sync()


@pytest.mark.parametrize("kind", ["write", "sync"])
def test_nothing_is_written_after_a_failed_append_or_sync(kind: str) -> None:
    disk = FaultyDisk()
    journal = new_journal(disk)
    disk.fail_at(1, "EIO", kind=kind)
    with pytest.raises(DiskError, match="configuration log"):
        append_and_sync(journal)
    count = disk.operations
    for call in (
        lambda: journal.append([DecidedRecord(2)]),
        journal.sync,
        lambda: journal.snapshot(2, EARLY, b"", []),
    ):
        with pytest.raises(ReadOnlyError, match=r"not written any more .*Input/output"):
            call()
    assert disk.operations == count
    journal.close()


def test_a_snapshot_that_finds_no_space_leaves_the_old_file() -> None:
    disk = FaultyDisk()
    journal = new_journal(disk)
    journal.append([PromisedRecord(EARLY)])
    for fault in ("ENOSPC", "short"):
        disk.fail_at(1, fault, kind="write")
        with pytest.raises(DiskFullError, match="snapshot"):
            journal.snapshot(1, EARLY, b"state", [])
    journal.append([DecidedRecord(1)])
    journal.sync()
    assert held_in(opened(disk.crash("lost"))) == Held(EARLY, 1)


@pytest.mark.parametrize("kind", ["sync", "rename", "sync_directory"])
def test_after_a_snapshot_that_may_be_there_nothing_is_written(kind: str) -> None:
    disk = FaultyDisk()
    journal = new_journal(disk)
    journal.append([PromisedRecord(EARLY)])
    disk.fail_at(1, "EIO", kind=kind)
    with pytest.raises(DiskError, match="snapshot"):
        journal.snapshot(1, EARLY, b"state", [])
    with pytest.raises(ReadOnlyError):
        journal.append([DecidedRecord(1)])
    journal.close()
    assert reopened(disk)[1].promised == EARLY


def test_an_interrupt_ends_the_journal_as_an_error_does() -> None:
    def interrupt(_write: object) -> None:
        raise KeyboardInterrupt

    disk = FaultyDisk()
    journal = new_journal(disk)
    with disk.around("write", "/", interrupt), pytest.raises(KeyboardInterrupt):
        journal.append([DecidedRecord(1)])
    with pytest.raises(ReadOnlyError):
        journal.append([DecidedRecord(1)])


@pytest.mark.parametrize("kind", ["open_read", "read", "open_write", "write", "sync"])
def test_a_disk_that_cannot_be_read_is_not_a_damaged_log(kind: str) -> None:
    disk = FaultyDisk()
    new_journal(disk)
    disk.fail_at(1, "EIO", kind=kind)
    with pytest.raises(DiskError, match="opening the configuration log"):
        opened(disk)


# ------------------------------------------------------------------ damage


BATCHES: list[Batch] = [
    [PromisedRecord(EARLY)],
    [AcceptedRecord(1, EARLY, b"change")],
    [DecidedRecord(1), PromisedRecord(LATE)],
]


def three_batches() -> tuple[bytes, list[int], list[Held]]:
    """A file with three batches, all synced, the ends of its frames, and what each of them held."""
    disk = FaultyDisk()
    journal = new_journal(disk)
    ends = [journal.position]
    for batch in BATCHES:
        ends.append(journal.append(batch))
        journal.sync()
    versions = [held_after(BATCHES[:count]) for count in range(len(BATCHES) + 1)]
    return disk.read_bytes(PATH)[: HEADER_SIZE + ends[-1] + 40], ends, versions


@pytest.mark.slow
def test_every_flipped_bit_is_damage_or_in_a_tail_that_nothing_proves() -> None:
    data, ends, versions = three_batches()
    for bit in range(8 * len(data)):
        disk = FaultyDisk()
        disk.write_bytes(PATH, data)
        disk.flip_bit(PATH, bit)
        position = bit // 8 - HEADER_SIZE
        alone, known = opened(disk.copy()), opened(disk, durable=ends[-1])
        if position < ends[-2]:  # the last frame says so
            assert alone.damage is not None
            assert alone.damage.startswith("config.log, offset "), bit
        else:
            assert alone.damage is None
            whole = position >= ends[-1]
            assert held_in(alone) == versions[-1 if whole else -2]
            assert alone.dropped_bytes > 0
        assert (known.damage is None) == (position >= ends[-1]), bit


def test_the_first_frame_was_durable_before_the_file_had_its_name() -> None:
    disk = FaultyDisk()
    end = new_journal(disk).position
    for bit in range(8 * (HEADER_SIZE + end)):
        damaged = disk.copy()
        damaged.flip_bit(PATH, bit)
        assert opened(damaged).damage is not None, bit


def test_every_length_is_damage_or_ends_behind_what_is_proven() -> None:
    data, ends, versions = three_batches()
    for length in range(len(data)):
        disk = FaultyDisk()
        disk.write_bytes(PATH, data[:length])
        position = length - HEADER_SIZE
        durable = ends[1]
        found = opened(disk, durable=durable)
        assert (found.damage is None) == (position >= durable), length
        if found.damage is None:
            whole = max(n for n, end in enumerate(ends) if end <= position)
            assert held_in(found) == versions[whole]


def test_damage_is_told_with_file_place_and_checksums() -> None:
    data, ends, versions = three_batches()
    disk = FaultyDisk()
    disk.write_bytes(PATH, data)
    disk.flip_bit(PATH, 8 * (HEADER_SIZE + ends[1] + 24))
    before = disk.read_bytes(PATH)
    found = opened(disk)
    assert found.damage is not None
    place = f"config.log, offset {HEADER_SIZE + ends[1]}: an invalid frame below what was durable"
    assert found.damage.startswith(f"{place}; position {ends[1]}, durable up to {ends[2]}; CRC ")
    assert held_in(found) == versions[1]  # for a rescue
    assert disk.read_bytes(PATH) == before


def test_a_file_that_is_gone_is_damage() -> None:
    found = opened(FaultyDisk())
    assert found.damage == "config.log is gone: expected the file of this member, found none"
    assert held_in(found) == Held()


def test_an_older_file_that_was_put_back_is_damage() -> None:
    disk = FaultyDisk()
    journal = new_journal(disk)
    older = disk.read_bytes(PATH)
    journal.append([PromisedRecord(EARLY)])
    journal.sync()
    journal.snapshot(1, EARLY, b"state", [])
    disk.write_bytes(PATH, older)
    found = opened(disk, durable=journal.synced)
    assert found.damage is not None
    assert f"durable up to {journal.synced}" in found.damage


def test_the_log_of_another_member_is_damage() -> None:
    disk = FaultyDisk()
    Journal.create(disk.directory("/"), identity=CLUSTER).append([DecidedRecord(1)])
    found = opened(disk)
    assert found.damage == (
        "config.log, offset 0: the file belongs to another log: "
        f"expected identity {IDENTITY.hex()}, found {CLUSTER.hex()}"
    )
    assert found.decided == 1


def with_header(change: dict[str, int], frame: bytes = b"\x90") -> FaultyDisk:
    """A disk with a journal of one frame, and a header that is not the usual one."""
    header = config_header(IDENTITY, CLUSTER)
    for name, value in change.items():
        object.__setattr__(header, name, value)
    disk = FaultyDisk()
    data = header.to_bytes(CONFIG_MAGIC) + encode_frame(log_seed(IDENTITY), 0, 0, frame)
    disk.write_bytes(PATH, data)
    return disk


@pytest.mark.parametrize("mask", ["required", "read_only"])
def test_a_log_with_unknown_features_is_damage(mask: str) -> None:
    found = opened(with_header({mask: 64}))
    assert found.damage is not None
    assert found.damage.startswith("config.log, offset 0: config.log has")
    assert "0x40" in found.damage


def test_features_that_may_be_ignored_are_carried_on() -> None:
    disk = with_header({"compatible": 64})
    journal, _ = reopened(disk)
    journal.snapshot(1, EARLY, b"", [])
    assert disk.read_bytes(PATH)[12:16] == (64).to_bytes(4, "little")


def test_a_record_of_a_later_version_is_damage() -> None:
    found = opened(with_header({}, bytes.fromhex("91 92 06 05")))
    assert found.damage is not None
    assert "offset 128" in found.damage
    assert "expected a record of kind 1 to 5, found kind 6" in found.damage
