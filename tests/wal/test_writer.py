"""The writer on a simulated disk: what it leaves in the files, and what it does when they fail."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from support.interrupts import Interrupt, Line, Tracer
from support.logs import HISTORY_ID, LOG_ID, STORE_ID
from tidelog.engine.system.disk import RealDirectory
from tidelog.testing import FaultyDisk, SimulatedCrash, crash_points
from tidelog.wal import writer as writers
from tidelog.wal.format import HEADER_SIZE, SegmentHeader, encode_frame, log_seed, segment_name
from tidelog.wal.ports import Directory
from tidelog.wal.reader import Scan
from tidelog.wal.records import IdleRecord, SealRecord, encode_record
from tidelog.wal.segments import open_segment, seal_at, segment_numbers, used_end
from tidelog.wal.tail import EndKind
from tidelog.wal.writer import (
    NEXT_NAME,
    SEAL_ROOM,
    WRITE_SIZES,
    LogFailedError,
    LogWriter,
    WriteSizes,
    create_segment,
    seal_before,
)

STATE = encode_record(IdleRecord())
PIECE = WRITE_SIZES.piece
SEGMENT = 2 * PIECE


class Log:
    """A writer over a directory of a simulated disk, with what it asks for and tells."""

    def __init__(
        self,
        disk: FaultyDisk | None = None,
        directory: Directory | None = None,
        **options: Any,
    ) -> None:
        self.disk = disk if disk is not None else FaultyDisk()
        self.directory = directory or self.disk.directory("/")
        self.spares: list[str] = []
        self.sealed: list[tuple[int, int]] = []
        self.payloads: list[bytes] = [STATE]
        if options.pop("made", False):
            return
        header = SegmentHeader(
            log_id=LOG_ID, store_id=STORE_ID, history_id=HISTORY_ID, number=1, first_position=0
        )
        mapped = options.get("mapped", False)
        file, position = create_segment(self.directory, header, STATE, mapped=mapped)
        self.writer = LogWriter(
            self.directory,
            header,
            file,
            position=position,
            synced=position,
            segment_size=options.pop("segment_size", SEGMENT),
            state=lambda: STATE,
            spare=lambda: self.spares.pop() if self.spares else None,
            sealed=lambda header, end: self.sealed.append((header.number, end)),
            **options,
        )

    def append(self, payload: bytes) -> None:
        """Append as the committer does: in a new segment where the payload does not fit."""
        if not self.writer.append(payload):
            self.writer.rotate()
            self.payloads.append(STATE)
            assert self.writer.append(payload)
        self.payloads.append(payload)

    def frames(self) -> list[bytes]:
        scan = Scan(self.directory, durable=self.writer.synced)
        found = [frame.payload for frame in scan]
        assert not scan.end.refused
        assert scan.end.position == self.writer.position
        return found

    def size(self, number: int = 1) -> int:
        return len(self.disk.read_bytes(f"/{segment_name(number)}"))


# ------------------------------------------------------------------ appending


def test_frames_are_read_as_they_were_appended() -> None:
    log = Log()
    for number in range(50):
        log.append(b"%d" % number * number + b".")
        if number % 7 == 0:
            log.writer.sync()
    assert log.frames() == log.payloads


def test_the_frame_that_is_written_is_the_one_of_the_format() -> None:
    log = Log()
    log.append(b"first")
    log.writer.sync()
    position, synced = log.writer.position, log.writer.synced
    log.append(b"second")
    frame = encode_frame(log_seed(LOG_ID), position, synced, b"second")
    data = log.disk.read_bytes(f"/{segment_name(1)}")
    assert data[HEADER_SIZE + position :][: len(frame)] == frame
    assert log.writer.announced == synced == position


def test_nothing_is_durable_before_a_sync() -> None:
    log = Log()
    start = log.writer.position
    log.append(b"x")
    assert (log.writer.synced, log.writer.announced) == (start, start)
    assert log.writer.sync() == log.writer.position == log.writer.synced
    syncs = [operation for operation in log.disk.trace if operation.kind == "sync"]
    log.writer.sync()
    assert [operation for operation in log.disk.trace if operation.kind == "sync"] == syncs


@pytest.mark.parametrize(
    ("mapped", "ahead"),
    [(False, WRITE_SIZES.ahead), (True, WRITE_SIZES.ahead_mapped)],
    ids=["plain", "mapped"],
)
def test_the_file_grows_ahead_of_the_log(mapped: bool, ahead: int) -> None:
    log = Log(segment_size=8 << 20, mapped=mapped)
    log.append(b"x")
    size = log.size()
    assert size == HEADER_SIZE + log.writer.position + ahead + SEAL_ROOM
    before = log.disk.operations
    for _ in range(20):
        log.append(b"y" * 100)
    assert log.size() == size
    assert log.disk.operations == before + 20
    file = open_segment(log.directory, 1).file
    assert used_end(file, 0) == HEADER_SIZE + log.writer.position
    log.append(b"z" * size)
    assert log.size() > size + len(log.payloads[-1])
    assert log.frames() == log.payloads


def test_the_file_is_not_filled_beyond_its_segment() -> None:
    log = Log()
    log.append(b"x")
    assert log.size() == SEGMENT


def test_a_large_frame_is_written_in_pieces() -> None:
    log = Log(segment_size=1 << 20)
    log.append(bytes(range(256)) * 1024)
    pieces = [operation.size_bytes for operation in log.disk.trace if operation.kind == "write"]
    assert max(pieces) == PIECE
    assert log.frames() == log.payloads


@pytest.mark.parametrize("mapped", [False, True], ids=["plain", "mapped"])
def test_a_mapped_file_on_a_real_disk_holds_the_same(tmp_path: Path, mapped: bool) -> None:
    log = Log(directory=RealDirectory(str(tmp_path)), mapped=mapped)
    for number in range(60):
        log.append(b"%02d" % number * (number * 100 + 1))
        if number % 9 == 0:
            log.writer.sync()
    log.append(b"x" * 3 * SEGMENT)
    log.writer.sync()
    assert log.frames() == log.payloads
    assert len(log.sealed) > 2
    log.writer.close()


def test_a_mapped_file_that_grew_a_part_of_the_way_is_written_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The mapping from before it grew was closed, and the next append failed on it.
    log = Log(directory=RealDirectory(str(tmp_path)), mapped=True, segment_size=8 << 20)
    log.append(b"first")
    position = log.writer.position
    file = log.writer._file
    write, left = file.write, [1]

    def full(offset: int, data: bytes) -> None:
        if not left:
            raise OSError(errno.ENOSPC, "No space")
        left.pop()
        write(offset, data)

    with monkeypatch.context() as patch:
        patch.setattr(type(file), "write", lambda _, offset, data: full(offset, data))
        with pytest.raises(OSError, match="No space"):
            log.writer.append(b"x" * (3 << 20))
    assert log.writer.position == position
    log.append(b"second")
    log.append(b"x" * (3 << 20))
    log.writer.sync()
    assert log.frames() == log.payloads
    log.writer.close()


def test_an_interrupt_behind_the_growth_of_a_mapped_file_leaves_no_mapping_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log(directory=RealDirectory(str(tmp_path)), mapped=True, segment_size=8 << 20)
    log.append(b"first")

    def interrupted(_file: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(log.writer._file), "mapping", property(interrupted))
        with pytest.raises(KeyboardInterrupt):
            log.writer.append(b"x" * (3 << 20))
    log.append(b"second")
    log.append(b"x" * (3 << 20))
    log.append(b"third")
    log.writer.sync()
    assert log.frames() == log.payloads
    log.writer.close()


# ------------------------------------------------------------------ segments


def test_a_full_segment_is_followed_by_the_next_one_without_a_hole() -> None:
    log = Log()
    for _ in range(40):
        log.append(b"x" * 9000)
        log.writer.sync()
    assert segment_numbers(log.directory) == [1, 2, 3]
    firsts = [open_segment(log.directory, number).first_position for number in (1, 2, 3)]
    assert [end for _, end in log.sealed] == firsts[1:]
    assert [number for number, _ in log.sealed] == [1, 2]
    assert log.writer.segment.number == 3
    assert log.frames() == log.payloads


def test_a_new_segment_is_durable_with_all_before_it() -> None:
    log = Log()
    log.append(b"not synced")
    log.writer.rotate()
    log.payloads.append(STATE)
    assert log.writer.synced == log.writer.announced == log.writer.position
    after = Log.__new__(Log)
    after.directory = log.disk.crash("lost").directory("/")
    after.writer = log.writer
    assert after.frames() == log.payloads


@pytest.mark.parametrize("size", [SEGMENT, 3 * SEGMENT])
def test_a_frame_larger_than_a_segment_gets_one_of_its_own(size: int) -> None:
    log = Log()
    log.append(b"a")
    log.append(b"b" * size)
    assert segment_numbers(log.directory) == [1, 2]
    log.append(b"c")
    assert segment_numbers(log.directory) == [1, 2, 3]
    assert log.frames() == log.payloads


def test_a_frame_of_any_size_goes_behind_the_state_of_a_fresh_segment() -> None:
    log = Log()
    log.writer.rotate()
    log.payloads.append(STATE)
    assert log.writer.append(b"b" * 3 * SEGMENT)
    log.payloads.append(b"b" * 3 * SEGMENT)
    assert not log.writer.append(b"c")
    assert log.frames() == log.payloads


def test_a_frame_that_needs_a_new_segment_leaves_the_old_one_alone() -> None:
    log = Log()
    log.append(b"a" * PIECE)
    position, operations = log.writer.position, log.disk.operations
    assert not log.writer.append(b"b" * PIECE)
    assert (log.writer.position, log.disk.operations) == (position, operations)


def test_a_spare_is_used_again_and_nothing_in_it_is_taken_for_log() -> None:
    log = Log()
    log.append(b"old " * 9000)
    log.writer.rotate()
    log.payloads.append(STATE)
    old = segment_name(1)
    log.directory.rename(old, "a.spare")
    spare = log.disk.file("/a.spare")
    log.spares.append("a.spare")
    log.append(b"new")
    log.writer.rotate()
    log.payloads.append(STATE)
    assert log.directory.names() == [segment_name(2), segment_name(3)]
    assert log.disk.file(f"/{segment_name(3)}") is spare
    assert log.size(3) >= 36_000
    before = log.disk.operations
    log.append(b"newer")
    # The file has its length: nothing was filled.
    assert log.disk.operations == before + 1
    assert log.frames()[-4:] == [STATE, b"new", STATE, b"newer"]


def test_what_an_interrupted_rotation_left_is_in_nobodys_way() -> None:
    log = Log()
    log.disk.write_bytes(f"/{NEXT_NAME}", b"left over")
    log.writer.rotate()
    assert NEXT_NAME not in log.directory.names()


# ------------------------------------------------------------------ seals


def seal_of(log: Log, number: int) -> SealRecord | None:
    """What stands where the segment behind a segment begins."""
    segment, following = (open_segment(log.directory, n) for n in (number, number + 1))
    return seal_at(segment, following.first_position)


def step_of_rotation(kind: str, place: int) -> int:
    """Which operation of a rotation is the one of that kind at that place among them, from 1."""
    log = Log()
    log.append(b"first")
    before = log.disk.operations
    log.writer.rotate()
    steps = [o.number - before for o in log.disk.trace[before:] if o.kind == kind]
    return steps[place]


def test_a_segment_ends_with_a_seal_that_names_the_next_one() -> None:
    log = Log()
    log.append(b"first")
    border = log.writer.position
    log.writer.rotate()
    seal = SealRecord(number=2, first_position=border, end=log.writer.position)
    assert seal_of(log, 1) == seal
    assert seal_of(Log(log.disk.crash("lost"), made=True), 1) == seal, "it was not synced"


def test_the_seal_has_its_room_in_the_segment_from_the_beginning() -> None:
    # On a full disk it could not be written any more, and the next segment was there already.
    for size in (9000, SEGMENT - 400, 3 * SEGMENT):
        log = Log()
        log.append(b"a")
        log.append(b"b" * size)
        while log.writer.append(b"c" * 5):
            pass
        number = log.writer.segment.number
        length = log.size(number)
        log.writer.rotate()
        assert log.size(number) == length
        assert seal_of(log, number) is not None
        if size < SEGMENT:
            assert length == SEGMENT


def test_a_seal_that_finds_no_space_is_written_before_anything_is_appended() -> None:
    log = Log()
    log.append(b"first")
    at_seal = step_of_rotation("write", -1)
    for step in (at_seal, 1, 1):
        log.disk.fail_at(log.disk.operations + step, "ENOSPC", kind="write")
        with pytest.raises(OSError, match="No space"):
            log.writer.rotate()
        assert not log.writer.append(b"too early")
    assert log.writer.segment.number == 2
    assert log.writer.failure is None
    assert seal_of(Log(log.disk.crash("kept"), made=True), 1) is None


def test_a_rotation_goes_on_where_a_full_disk_stopped_it() -> None:
    log = Log()
    log.append(b"first")
    log.disk.fail_at(log.disk.operations + step_of_rotation("write", -1), "ENOSPC")
    with pytest.raises(OSError, match="No space"):
        log.writer.rotate()
    log.payloads.append(STATE)
    assert not log.writer.append(b"second")
    log.writer.rotate()
    assert log.writer.append(b"second")
    log.payloads.append(b"second")
    assert log.frames() == log.payloads
    assert log.sealed == [(1, open_segment(log.directory, 2).first_position)]
    assert seal_of(log, 1) is not None
    assert segment_numbers(log.directory) == [1, 2]


def test_a_seal_whose_sync_fails_stops_the_writer() -> None:
    log = Log()
    log.append(b"first")
    log.disk.fail_at(log.disk.operations + step_of_rotation("sync", -1), "EIO")
    with pytest.raises(OSError, match="Input/output"):
        log.writer.rotate()
    for act in acts(log):
        with pytest.raises(LogFailedError):
            act()


def test_the_segment_before_the_last_one_is_sealed_where_a_crash_came_first() -> None:
    log = Log()
    log.append(b"first")
    log.disk.fail_at(log.disk.operations + step_of_rotation("write", -1), "ENOSPC")
    with pytest.raises(OSError, match="No space"):
        log.writer.rotate()
    left = Log(log.disk.crash("lost"), made=True)
    last = open_segment(left.directory, 2).header
    assert last is not None
    seal_before(left.directory, last)
    expected = SealRecord(number=2, first_position=last.first_position, end=log.writer.position)
    assert seal_of(Log(left.disk.crash("lost"), made=True), 1) == expected
    left = Log(left.disk.copy(), made=True)
    operations = left.disk.operations
    seal_before(left.directory, last)
    assert not [o for o in left.disk.trace[operations:] if o.changes], "it was there"


@pytest.mark.parametrize("damage", ["gone", "short", "bad"])
def test_a_segment_that_is_not_as_it_was_is_not_sealed(damage: str) -> None:
    log = Log()
    log.append(b"x" * 500)
    log.writer.rotate()
    path = f"/{segment_name(1)}"
    kept = {"gone": b"", "short": log.disk.read_bytes(path)[:300], "bad": b"bad" * 500}[damage]
    log.disk.write_bytes(path, kept)
    if damage == "gone":
        log.directory.unlink(segment_name(1))
    seal_before(log.directory, log.writer.segment)
    found = log.disk.read_bytes(path) if damage != "gone" else b""
    assert found == kept


# ------------------------------------------------------------------ failures


@pytest.mark.parametrize("fault", ["ENOSPC", "short", "EIO"])
@pytest.mark.parametrize("payload", [b"small", b"x" * 3 * PIECE], ids=["small", "large"])
def test_an_append_that_fails_leaves_the_position_and_the_next_one_overwrites(
    fault: str, payload: bytes
) -> None:
    log = Log(segment_size=1 << 20)
    log.append(b"first")
    position = log.writer.position
    # At each write of it, those that fill ahead included.
    writes = 4 if len(payload) > PIECE else 1
    for number in range(writes):
        log.disk.fail_at(log.disk.operations + 1 + number, fault, kind="write")
        with pytest.raises(OSError, match=r"No space|Input/output"):
            log.writer.append(payload)
        assert log.writer.position == position
        assert log.frames() == log.payloads
    log.append(b"second")
    log.append(payload)
    log.writer.sync()
    assert log.frames() == log.payloads


@pytest.mark.parametrize("size", [100, PIECE + 1000])
@pytest.mark.parametrize("signals", [1, 3])
def test_a_frame_that_signals_cut_short_is_in_doubt_until_it_is_written_whole(
    signals: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log(segment_size=10 * PIECE)
    log.append(b"x")
    file, left = log.writer._file, [KeyboardInterrupt(), TimeoutError(), KeyboardInterrupt()]
    write, before = file.write, log.writer.position

    def interrupted(offset: int, data: bytes) -> None:
        write(offset, data)
        if len(left) > 3 - signals:
            raise left.pop(0)

    monkeypatch.setattr(file, "write", interrupted)
    payload = bytes(size)
    with pytest.raises(KeyboardInterrupt):
        log.writer.append(payload)
    for _ in range(signals - 1):
        with pytest.raises((KeyboardInterrupt, TimeoutError)):
            log.writer.make_whole()
        assert (log.writer.in_doubt, log.writer.position) == (True, before)
        assert log.writer.failure is None
    log.writer.make_whole()
    assert not log.writer.in_doubt
    after = log.writer.position
    log.writer.make_whole()
    assert log.writer.position == after
    log.payloads.append(payload)
    assert log.frames() == log.payloads
    log.append(b"y")
    assert log.frames() == log.payloads


def lines_of_an_append() -> list[Line]:
    """The lines of the writer that an append of a small frame passes."""
    log = Log()
    log.append(b"before")
    tracer = Tracer()
    tracer.run(lambda: log.writer.append(b"interrupted"))
    return [line for line in tracer.lines if line[0] == "wal/writer.py"]


@pytest.mark.parametrize("line", lines_of_an_append(), ids=lambda line: f"{line[0]}:{line[1]}")
def test_an_append_that_is_interrupted_at_any_line_is_whole_or_not_there(line: Line) -> None:
    # Behind the move of the position the frame was written once more, where the next one belongs.
    log = Log()
    log.append(b"before")
    tracer = Tracer((line, 0))
    with pytest.raises(Interrupt):
        tracer.run(lambda: log.writer.append(b"interrupted"))
    log.writer.make_whole()
    assert not log.writer.in_doubt
    if log.frames() != log.payloads:
        log.payloads.append(b"interrupted")
    log.append(b"after")
    assert log.frames() == log.payloads


@pytest.mark.parametrize("signal", [KeyboardInterrupt(), TimeoutError()])
def test_a_frame_that_a_signal_came_behind_is_not_taken_for_one_that_failed(
    signal: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    # TimeoutError is an OSError, too, but no disk gives one without a number.
    log = Log()
    log.append(b"x")
    file, left = log.writer._file, [signal]
    write = file.write

    def interrupted(offset: int, data: bytes) -> None:
        write(offset, data)
        if left:
            raise left.pop()

    monkeypatch.setattr(file, "write", interrupted)
    with pytest.raises(type(signal)):
        log.writer.append(b"y")
    log.writer.make_whole()
    log.payloads.append(b"y")
    assert log.frames() == log.payloads


def test_a_frame_that_cannot_be_written_after_all_is_the_last_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = Log()
    log.append(b"x")
    errors: list[BaseException] = [KeyboardInterrupt(), OSError(errno.EIO, "broken")]

    def fails(_offset: int, _data: bytes) -> None:
        raise errors.pop(0)

    with monkeypatch.context() as patch:
        patch.setattr(log.writer._file, "write", fails)
        with pytest.raises(KeyboardInterrupt):
            log.writer.append(b"y")
        with pytest.raises(OSError, match="broken"):
            log.writer.make_whole()
    with pytest.raises(LogFailedError):
        log.writer.append(b"z")
    with pytest.raises(LogFailedError):
        log.writer.sync()


def test_a_disk_that_stays_full_refuses_every_append_until_there_is_space() -> None:
    log = Log()
    log.append(b"first")
    log.disk.fail_at(log.disk.operations + 1, "ENOSPC", for_ever=True)
    for _ in range(3):
        with pytest.raises(OSError, match="No space") as caught:
            log.writer.append(b"second")
        assert caught.value.errno == errno.ENOSPC
    log.disk.heal()
    log.append(b"third")
    assert log.frames() == log.payloads


@pytest.mark.parametrize("kind", ["create", "write", "rename"])
def test_a_rotation_that_finds_no_space_leaves_the_old_segment_in_use(kind: str) -> None:
    log = Log()
    log.append(b"first")
    log.disk.fail_at(log.disk.operations + 1, "ENOSPC", kind=kind)
    with pytest.raises(OSError, match="No space"):
        log.writer.rotate()
    assert log.writer.segment.number == 1
    assert log.writer.failure is None
    log.append(b"second")
    log.writer.rotate()
    log.payloads.append(STATE)
    assert log.frames() == log.payloads
    assert segment_numbers(log.directory) == [1, 2]


def acts(log: Log) -> list[Callable[[], object]]:
    return [lambda: log.writer.append(b"x"), log.writer.sync, log.writer.rotate]


def test_after_a_failed_sync_nothing_is_ever_written_again() -> None:
    log = Log()
    log.append(b"first")
    durable = log.writer.synced
    log.disk.fail_at(log.disk.operations + 1, "EIO", kind="sync")
    with pytest.raises(OSError, match="Input/output") as caught:
        log.writer.sync()
    assert log.writer.failure is caught.value
    operations = log.disk.operations
    for act in acts(log):
        with pytest.raises(LogFailedError) as failed:
            act()
        assert failed.value.__cause__ is caught.value
    assert (log.writer.synced, log.disk.operations) == (durable, operations)


def test_a_sync_that_fails_in_a_rotation_is_for_good() -> None:
    log = Log()
    log.append(b"first")
    log.disk.fail_at(log.disk.operations + 1, "EIO", kind="sync")
    with pytest.raises(OSError, match="Input/output"):
        log.writer.rotate()
    for act in acts(log):
        with pytest.raises(LogFailedError):
            act()
    assert segment_numbers(log.directory) == [1]


@pytest.mark.parametrize(("kind", "number"), [("sync", 2), ("sync_directory", 1)])
def test_a_new_segment_whose_sync_fails_is_for_good(kind: str, number: int) -> None:
    # A later recovery may find the new segment, and would take nothing more from the old one.
    log = Log()
    log.append(b"first")
    rotation = Log()
    rotation.append(b"first")
    before = rotation.disk.operations
    rotation.writer.rotate()
    syncs = [o.number for o in rotation.disk.trace[before:] if o.kind == kind]
    log.disk.fail_at(syncs[number - 1], "EIO", kind=kind)
    with pytest.raises(OSError, match="Input/output"):
        log.writer.rotate()
    for act in acts(log):
        with pytest.raises(LogFailedError):
            act()


def test_a_segment_whose_old_file_does_not_close_is_begun_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = Log()

    def refuse() -> None:
        raise OSError(errno.EIO, "close")

    monkeypatch.setattr(log.writer._file, "close", refuse)
    log.writer.rotate()
    assert log.writer.segment.number == 2


def test_a_closed_writer_closed_its_file() -> None:
    log = Log()
    log.writer.close()
    with pytest.raises(OSError, match="Bad file"):
        log.writer.append(b"x")


@pytest.mark.parametrize("cut", ["before the change", "in the seal"])
def test_a_writer_that_is_closed_in_a_rotation_closes_the_files_of_both_segments(
    monkeypatch: pytest.MonkeyPatch, cut: str
) -> None:
    log = Log()
    log.append(b"first")

    def interrupted(*_args: object) -> None:
        raise KeyboardInterrupt

    owner: Any = log.writer if cut == "before the change" else writers
    with monkeypatch.context() as patch:
        patch.setattr(owner, "_change_to" if owner is log.writer else "write_seal", interrupted)
        with pytest.raises(KeyboardInterrupt):
            log.writer.rotate()
    begun = log.writer._begun
    assert begun is not None
    log.writer.close()
    for file in (begun.file, begun.old_file):
        with pytest.raises(OSError, match="Bad file"):
            file.size()


# ------------------------------------------------------------------ power cuts


def test_what_was_synced_is_there_after_any_power_cut() -> None:
    def scenario(disk: FaultyDisk, acknowledge: Callable[[object], None]) -> None:
        log = Log(disk, sizes=WriteSizes(ahead=4096))
        for number in range(12):
            log.append(b"%02d" % number * 20_000)
            if number == 6:
                old = segment_name(1)
                log.directory.rename(old, "a.spare")
                log.spares.append("a.spare")
            if number % 2:
                log.writer.sync()
                acknowledge((number, log.writer.synced))

    cuts = 0
    for point in crash_points(scenario, step=3, outcomes=("lost", "torn")):
        directory = point.disk.directory("/")
        if not segment_numbers(directory):
            assert not point.acknowledged
            continue
        acknowledged = cast("list[tuple[int, int]]", point.acknowledged)
        numbers = [number for number, _ in acknowledged]
        durable = max([0, *(position for _, position in acknowledged)])
        scan = Scan(directory, durable=durable)
        found = {frame.payload[:2] for frame in scan}
        assert not scan.end.refused, point
        assert scan.end.position >= durable, point
        if segment_name(1) in directory.names():
            assert {b"%02d" % number for number in range(max([-1, *numbers]) + 1)} <= found, point
        cuts += scan.end.kind is not EndKind.CLEAN
    assert cuts


def test_a_power_cut_leaves_a_whole_segment_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    start = FaultyDisk()
    Log(start).append(b"first")

    def scenario(disk: FaultyDisk, acknowledge: Callable[[object], None]) -> None:
        header = SegmentHeader(
            log_id=LOG_ID, store_id=STORE_ID, history_id=HISTORY_ID, number=2, first_position=99
        )
        create_segment(disk.directory("/"), header, STATE)
        acknowledge(2)

    for point in crash_points(scenario, start=start):
        directory = point.disk.directory("/")
        numbers = segment_numbers(directory)
        assert set(directory.names()) <= {segment_name(1), segment_name(2), NEXT_NAME}
        assert 2 in numbers or not point.acknowledged, point
        if 2 in numbers:
            segment = open_segment(directory, 2)
            assert segment.first_position == 99
            frame = encode_frame(log_seed(LOG_ID), 99, 99, STATE)
            assert segment.file.read(HEADER_SIZE, len(frame)) == frame, point


def test_a_crash_is_not_an_error_that_the_writer_survives() -> None:
    log = Log()
    log.disk.crash_at(log.disk.operations + 2)
    with pytest.raises(SimulatedCrash):
        log.writer.rotate()
    assert not log.writer.append(b"behind it")
    with pytest.raises(SimulatedCrash):
        log.writer.rotate()
