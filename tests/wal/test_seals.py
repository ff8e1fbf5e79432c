"""The seal of a segment: a newest segment that was in use is never taken for one yet to come."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.logs import LogBuilder, MemoryDirectory, scanned
from tidelog.affinity.errors import CorruptLogError
from tidelog.wal.format import HEADER_SIZE, SEAL_MAGIC, encode_frame, log_seed, segment_name
from tidelog.wal.index import SegmentIndex, index_name
from tidelog.wal.records import (
    IdleRecord,
    RecordType,
    SealRecord,
    decode_seal,
    encode_record,
    encode_seal,
    pack_record_header,
)
from tidelog.wal.segments import open_segment, seal_at, walk


def two_segments(*, sealed: bool = True) -> LogBuilder:
    """A full segment, and one with transactions that nothing in the first one knows of."""
    log = LogBuilder()
    log.committed(4)
    log.rotate(sealed=sealed)
    log.committed(3)
    return log


def border_of(log: LogBuilder) -> int:
    segment = open_segment(log.directory, 2)
    segment.file.close()
    return segment.first_position


def index_of(log: LogBuilder, number: int) -> bytes:
    segment, following = (open_segment(log.directory, n) for n in (number, number + 1))
    frames = walk(segment, segment.first_position, following.first_position)
    index = SegmentIndex.build(number, segment.first_position, frames)
    index.log_id = log.log_id
    segment.file.close()
    following.file.close()
    return index.to_bytes()


SEAL = SealRecord(number=7, first_position=1 << 40, end=(1 << 40) + 99)


def test_a_seal_comes_back_as_it_was_written() -> None:
    assert decode_seal(encode_seal(SEAL)) == SEAL


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"short",
        encode_record(IdleRecord()),
        pack_record_header(1, RecordType.SEAL, 1) + b"\x90",
        pack_record_header(1, RecordType.SEAL, 1) + b"\xc0",
        pack_record_header(4, RecordType.SEAL, 1) + b"\x93\x01\x02\xc0",
    ],
)
def test_what_says_nothing_of_a_next_segment_is_no_seal(payload: bytes) -> None:
    assert decode_seal(payload) is None


def test_readers_never_meet_a_seal() -> None:
    log = two_segments()
    assert scanned(log.directory).frames == log.frames
    first = open_segment(log.directory, 1)
    assert list(walk(first, 0)) == [frame for frame in log.frames if frame.segment == 1]
    border = border_of(log)
    assert seal_at(first, border) == SealRecord(
        number=2, first_position=border, end=log.frames[5].end
    )
    assert seal_at(first, 0) is None
    first.file.close()


def removed(directory: MemoryDirectory) -> None:
    del directory.files[segment_name(2)]


def emptied(directory: MemoryDirectory) -> None:
    directory.segment(2)[:] = b""


def zeroed(directory: MemoryDirectory) -> None:
    directory.segment(2)[:] = bytes(500)


def cut_to_its_header(directory: MemoryDirectory) -> None:
    del directory.segment(2)[HEADER_SIZE:]


def without_its_state(directory: MemoryDirectory) -> None:
    segment = directory.segment(2)
    segment[HEADER_SIZE:] = bytes(len(segment) - HEADER_SIZE)


LOSSES = [removed, emptied, zeroed, cut_to_its_header, without_its_state]


@pytest.mark.parametrize(("lose", "row"), list(zip(LOSSES, "QKKGH", strict=True)))
def test_a_lost_newest_segment_is_damage(lose: Callable[[MemoryDirectory], None], row: str) -> None:
    # It looked like a segment that was yet to come, and took up to 64 MiB of commits with it.
    log = two_segments()
    lose(log.directory)
    frames, end = scanned(log.directory)
    assert [frame.segment for frame in frames] == [1] * 5
    assert (end.row, end.segment, end.position) == (row, 2, border_of_first(log))
    assert end.durable > end.position
    with pytest.raises(CorruptLogError, match="segment 2"):
        end.raise_if_refused()
    start = end.position
    assert scanned(log.directory, start, exact=True).end.refused or row in "GH"


def border_of_first(log: LogBuilder) -> int:
    return next(frame.position for frame in log.frames if frame.segment == 2)


@pytest.mark.parametrize("lose", LOSSES)
def test_a_new_segment_that_was_not_used_yet_may_be_lost(
    lose: Callable[[MemoryDirectory], None],
) -> None:
    """Only a disk that lies about syncs does that; but without a seal nothing was in it."""
    log = LogBuilder()
    log.committed(4)
    log.rotate(sealed=False)
    lose(log.directory)
    assert not scanned(log.directory).end.refused


def test_a_crash_before_the_seal_leaves_a_segment_to_go_on_with() -> None:
    log = LogBuilder()
    log.committed(4)
    log.rotate(sealed=False)
    frames, end = scanned(log.directory)
    assert frames == log.frames
    assert (end.row, end.segment) == ("B", 2)


def test_a_seal_of_which_not_all_landed_is_none() -> None:
    """The power went during its sync: the new segment was there already, and is."""
    log = LogBuilder()
    log.committed(4)
    log.rotate()
    first = log.directory.segment(1)
    whole, border = bytes(first), open_segment(log.directory, 1).offset_of(border_of(log))
    log.directory.opened.clear()
    for offset in range(border, len(whole)):
        first[offset] ^= 0x55
        assert scanned(log.directory).frames == log.frames
        segment = open_segment(log.directory, 1)
        assert seal_at(segment, border_of(log)) is None
        log.directory.opened.clear()
        first[offset] ^= 0x55


def test_a_seal_of_another_place_or_log_is_none() -> None:
    log = two_segments()
    border = border_of(log)
    segment = open_segment(log.directory, 1)
    offset = segment.offset_of(border)
    for log_id, position in ((b"other log 16byte", border), (log.log_id, border + 1)):
        seal = encode_frame(log_seed(log_id), position, border, encode_seal(SEAL), SEAL_MAGIC)
        log.directory.segment(1)[offset:] = seal
        assert seal_at(segment, border) is None
    segment.file.close()


def test_the_index_of_a_segment_proves_that_it_was_followed() -> None:
    log = two_segments(sealed=False)
    log.directory.files[index_name(1)] = bytearray(index_of(log, 1))
    del log.directory.files[segment_name(2)]
    log.directory.opened.clear()
    end = scanned(log.directory).end
    assert (end.row, end.segment) == ("Q", 2)


@pytest.mark.parametrize("wrong", ["number", "end", "log", "bytes"])
def test_an_index_of_something_else_proves_nothing(wrong: str) -> None:
    log = two_segments(sealed=False)
    index = SegmentIndex.from_bytes(index_of(log, 1))
    log.directory.opened.clear()
    assert index is not None
    match wrong:
        case "number":
            index.number = 2
        case "end":
            index.end_position -= 1
        case "log":
            index.log_id = b"other log 16byte"
    data = bytearray(index.to_bytes())
    if wrong == "bytes":
        data[-1] ^= 1
    log.directory.files[index_name(1)] = data
    del log.directory.files[segment_name(2)]
    assert scanned(log.directory).end.row == "B"


def test_one_segment_alone_is_whole_though_it_is_sealed() -> None:
    log = two_segments()
    log.directory.files[index_name(1)] = bytearray(index_of(log, 1))
    del log.directory.files[segment_name(2)]
    log.directory.opened.clear()
    frames, end = scanned(log.directory, alone=True)
    assert frames == log.frames[:5]
    assert not end.refused


def test_a_reader_that_met_the_seal_first_finds_the_segment_that_was_begun_meanwhile() -> None:
    log = LogBuilder()
    log.committed(4)
    seen = MemoryDirectory({segment_name(1): log.directory.segment(1)})
    listings = 0

    def rotate_after_the_second_look() -> None:
        nonlocal listings
        listings += 1
        if listings == 3:
            log.rotate()
            log.committed(2)
            seen.files[segment_name(2)] = log.directory.segment(2)

    seen.before_names = rotate_after_the_second_look
    frames, end = scanned(seen)
    assert frames == log.frames
    assert not end.refused
