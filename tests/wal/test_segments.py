from __future__ import annotations

import pytest

from support.logs import LOG_ID, LogBuilder, MemoryDirectory
from tidelog.wal.format import FRAME_MAGIC, HEADER_SIZE, pack_frame_header, segment_name
from tidelog.wal.segments import (
    CHUNK_BYTES,
    Segment,
    Stop,
    headers,
    later_frames,
    open_segment,
    probe,
    segment_numbers,
    used_end,
    walk,
)


def opened(log: LogBuilder) -> Segment:
    return open_segment(log.directory, 1)


def file_of(data: bytes) -> Segment:
    directory = MemoryDirectory({segment_name(1): bytearray(data)})
    file = directory.open_read(segment_name(1))
    return Segment(number=1, first_position=0, log_id=LOG_ID, file=file, header=None)


def test_positions_and_offsets() -> None:
    segment = opened(LogBuilder(first_position=1000))
    assert segment.offset_of(1000) == HEADER_SIZE
    assert segment.position_of(HEADER_SIZE + 5) == 1005


def test_numbers_are_sorted() -> None:
    names = [segment_name(10), segment_name(9), "lock", segment_name(100)]
    assert segment_numbers(MemoryDirectory(dict.fromkeys(names, bytearray()))) == [9, 10, 100]


def test_a_walk_tells_where_and_with_what_it_ended() -> None:
    log = LogBuilder()
    log.committed(2)
    walked = walk(opened(log), 0)
    frames = []
    try:
        while True:
            frames.append(next(walked))
    except StopIteration as stopped:
        stop = stopped.value
    assert frames == log.frames
    assert stop == Stop(log.position, log.frames[-1].position, log.frames[-1].synced)


def test_a_walk_stays_below_its_limit() -> None:
    log = LogBuilder()
    log.committed(3)
    border = log.frames[2].position
    assert list(walk(opened(log), 0, border)) == log.frames[:2]
    assert list(walk(opened(log), 0, border + 1)) == log.frames[:2]
    assert list(walk(opened(log), border, border)) == []
    assert list(walk(opened(log), border, 0)) == []


def test_a_file_that_shrinks_under_a_walk_ends_it() -> None:
    log = LogBuilder()
    log.committed(1, value=b"v" * (2 * CHUNK_BYTES))
    segment = opened(log)
    size, sizes = segment.file.size, [CHUNK_BYTES * 3]

    class Shrinking:
        read = staticmethod(segment.file.read)
        close = staticmethod(segment.file.close)

        @staticmethod
        def size() -> int:
            return sizes.pop() if sizes else size() // 2

    shrinking = Segment(
        number=1, first_position=0, log_id=LOG_ID, file=Shrinking(), header=segment.header
    )
    del log.directory.segment(1)[-100:]
    assert list(walk(shrinking, 0)) == log.frames[:1]


def test_a_probe_tells_a_frame_from_a_wrong_one_and_from_nothing() -> None:
    log = LogBuilder()
    frame = log.tx()
    segment = opened(log)
    assert probe(segment, frame.position).frame == frame
    assert probe(segment, frame.position + 1) == (None, None, None)
    assert probe(segment, log.position) == (None, None, None)
    log.directory.segment(1)[frame.offset + 25] ^= 1
    seen = probe(segment, frame.position)
    assert seen.frame is None
    assert seen.expected != seen.found
    log.directory.segment(1)[frame.offset + 4 : frame.offset + 8] = b"\xff\xff\xff\x00"
    assert probe(segment, frame.position) == (None, None, None)


@pytest.mark.parametrize("shift", range(-22, 3))
def test_headers_are_found_over_the_border_of_two_chunks(shift: int) -> None:
    at = CHUNK_BYTES + shift
    header = pack_frame_header(FRAME_MAGIC, 5, 1, 2)
    for filler in (b"\0", b"T"):
        data = filler * at + header + filler * 40
        assert list(headers(file_of(data).file, 0)) == [(at, 5, 2)]


def test_headers_at_the_end_of_a_file() -> None:
    header = pack_frame_header(FRAME_MAGIC, 5, 1, 2)
    assert list(headers(file_of(header).file, 0)) == [(0, 5, 2)]
    assert list(headers(file_of(header[:-1]).file, 0)) == []
    assert list(headers(file_of(b"").file, 0)) == []
    assert list(headers(file_of(header + header[:10]).file, 0)) == [(0, 5, 2)]


def test_what_only_looks_like_a_header_is_passed_by() -> None:
    log = LogBuilder()
    log.committed(2)
    fake = pack_frame_header(FRAME_MAGIC, 30, 7, 0)
    log.tx(value=fake + b"x" * 50)
    log.sync()
    log.committed(1)
    after = log.frames[2].offset + 1
    assert list(later_frames(opened(log), after)) == log.frames[3:]
    # The same bytes where a frame could begin, with a length beyond the file.
    log.directory.segment(1)[log.frames[3].offset :][:20] = fake
    assert list(later_frames(opened(log), after, log.frames[4].position)) == log.frames[3:4]


def test_later_frames_are_found_behind_each_of_several_damaged_ones() -> None:
    log = LogBuilder()
    log.committed(9)
    for index in (2, 5):
        log.directory.segment(1)[log.frames[index].offset + 5] ^= 1
    expected = [frame for index, frame in enumerate(log.frames) if index not in (0, 2, 5)]
    assert list(later_frames(opened(log), HEADER_SIZE + 1)) == expected


def test_where_the_used_part_of_a_file_ends() -> None:
    for used in (0, 1, 100, CHUNK_BYTES, CHUNK_BYTES + 1):
        data = b"x" * used + bytes(2 * CHUNK_BYTES)
        assert used_end(file_of(data).file, 0) == used
        assert used_end(file_of(data).file, used) == used
