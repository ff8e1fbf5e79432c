"""Every small thing that a disk can do to a log: whatever is read afterwards was written before.

Each sweep knows w and checks the same three promises: frames are a prefix of those that were
written; a log is refused if the first missing frame was durable, and only then; a refused one says
where.
"""

from __future__ import annotations

import random

import pytest

from support.logs import LogBuilder, MemoryDirectory, Scanned, scanned
from tidelog.wal.format import HEADER_SIZE, Frame
from tidelog.wal.tail import EndKind

SECTOR = 512
PAGE = 4096
SWEPT_BYTES = 8 << 10


def one_segment() -> LogBuilder:
    """More than 8 KiB of synced frames, then three unsynced ones."""
    log = LogBuilder()
    while log.position < SWEPT_BYTES:
        log.committed(1, partition=log.transactions % 2, value=b"v" * 900)
    for _ in range(3):
        log.tx(value=b"unsynced")
    return log


def two_segments() -> LogBuilder:
    log = LogBuilder()
    log.committed(5, value=b"v" * 100)
    log.rotate()
    log.committed(5, partition=1, value=b"w" * 100)
    log.tx()
    log.tx()
    return log


def check(log: LogBuilder, found: Scanned, durable: int) -> None:
    """The three promises, for a log of which all below ``durable`` was durable."""
    frames, end = found
    assert frames == log.frames[: len(frames)]
    missing = log.frames[len(frames)] if len(frames) < len(log.frames) else None
    assert end.position == (missing.position if missing else log.position)
    assert end.refused == (missing is not None and missing.position < durable)
    if end.refused:
        assert end.kind == EndKind.DAMAGED
        assert missing is not None
        assert (end.segment, end.offset) in places_of(missing)
        assert end.durable > end.position


def places_of(frame: Frame) -> list[tuple[int, int]]:
    """Where a missing frame may be blamed: itself, or the header of its segment."""
    return [(frame.segment, frame.offset), (frame.segment, 0)]


@pytest.mark.slow
@pytest.mark.parametrize("part", range(SWEPT_BYTES // 1024))
def test_no_flipped_bit_is_accepted(part: int) -> None:
    """w is what the log itself says: the last frames that it proves durable are below it."""
    log = one_segment()
    segment = log.directory.segment(1)
    for offset in range(HEADER_SIZE + part * 1024, HEADER_SIZE + (part + 1) * 1024):
        for bit in range(8):
            segment[offset] ^= 1 << bit
            check(log, scanned(log.directory), log.synced)
            segment[offset] ^= 1 << bit
            log.directory.opened.clear()


def test_flipped_bits_of_the_frames_that_nothing_proves_durable_are_a_torn_tail() -> None:
    log = one_segment()
    segment = log.directory.segment(1)
    for frame in log.frames[-3:]:
        for offset in range(frame.offset, frame.offset + frame.end - frame.position):
            segment[offset] ^= 0x20
            found = scanned(log.directory)
            check(log, found, log.synced)
            assert found.end.kind == EndKind.TORN
            segment[offset] ^= 0x20


@pytest.mark.parametrize("number", [1, 2])
def test_flipped_bits_of_headers_are_damage(number: int) -> None:
    log = two_segments()
    segment = log.directory.segment(number)
    for offset in range(HEADER_SIZE):
        segment[offset] ^= 1 << offset % 8
        end = scanned(log.directory).end
        assert (end.kind, end.segment, end.offset) == (EndKind.DAMAGED, number, 0)
        segment[offset] ^= 1 << offset % 8


@pytest.mark.slow
@pytest.mark.parametrize("knows_w", [False, True])
def test_a_segment_cut_at_any_length(knows_w: bool) -> None:
    log = two_segments()
    whole = bytes(log.directory.segment(2))
    for length in range(len(whole)):
        log.directory.segment(2)[:] = whole[:length]
        found = scanned(log.directory, durable=log.synced if knows_w else 0)
        # Without help from outside, a file cut on its way to a copy looks like one torn by a crash;
        # but the seal of the segment before knows that there was a header, and a STATE frame.
        check(log, found, log.synced if knows_w else log.frames[6].end)


@pytest.mark.slow
def test_a_sealed_segment_cut_at_any_length_is_damage() -> None:
    log = two_segments()
    whole = bytes(log.directory.segment(1))
    border = log.frames[6].position
    for length in range(HEADER_SIZE, len(whole)):
        log.directory.segment(1)[:] = whole[:length]
        check(log, scanned(log.directory), border)
    for length in range(HEADER_SIZE):
        log.directory.segment(1)[:] = whole[:length]
        assert scanned(log.directory).end.row == "K"


@pytest.mark.slow
def test_any_damage_to_a_seal_costs_its_proof_and_nothing_else() -> None:
    log = two_segments()
    border = log.frames[6].position
    segment = log.directory.segment(1)
    begins, whole = HEADER_SIZE + border, bytes(segment)
    assert len(whole) > begins + 30
    for offset in range(begins, len(whole)):
        for bit in range(8):
            segment[offset] ^= 1 << bit
            frames, end = scanned(log.directory)
            assert (frames, end.refused) == (log.frames, False)
            segment[offset] ^= 1 << bit
            log.directory.opened.clear()
        segment[:] = whole[:offset]
        check(log, scanned(log.directory), border)
        segment[:] = whole
    last = log.directory.files.pop("0000000000000002.log")
    assert last
    for offset in range(begins, len(whole)):
        segment[offset] ^= 0x10
        assert not scanned(log.directory).end.refused
        segment[offset] ^= 0x10
        assert scanned(log.directory).end.row == "Q"


def sectors(directory: MemoryDirectory) -> list[slice]:
    size = len(directory.segment(1))
    return [slice(start, min(start + SECTOR, size)) for start in range(0, size, SECTOR)]


def test_every_sector_zeroed() -> None:
    log = one_segment()
    segment = log.directory.segment(1)
    for sector in sectors(log.directory)[1:]:
        kept = bytes(segment[sector])
        segment[sector] = bytes(len(kept))
        check(log, scanned(log.directory, durable=log.synced), log.synced)
        segment[sector] = kept


def test_every_sector_swapped_with_every_other() -> None:
    log = one_segment()
    segment = log.directory.segment(1)
    full = sectors(log.directory)[:-1]
    for index, one in enumerate(full):
        for other in full[:index]:
            segment[one], segment[other] = segment[other], segment[one]
            found = scanned(log.directory, durable=log.synced)
            segment[one], segment[other] = segment[other], segment[one]
            if other.start == 0:
                assert (found.end.row, found.end.offset) == ("K", 0)
            else:
                check(log, found, log.synced)


def test_a_sector_with_the_frames_of_the_previous_use_of_its_file() -> None:
    """A write that was lost in a recycled file shows older frames, whole and with magic."""
    old = LogBuilder(first_position=0)
    old.committed(60, value=b"v" * 300)
    stale = old.directory.segment(1)
    log = LogBuilder(first_position=1 << 20)
    log.committed(25, value=b"w" * 300)
    log.tx()
    segment = log.directory.segment(1)
    segment[log.offset :] = stale[log.offset :]
    check(log, scanned(log.directory), log.synced)
    for sector in sectors(log.directory)[1 : log.offset // SECTOR + 1]:
        kept = bytes(segment[sector])
        segment[sector] = stale[sector]
        check(log, scanned(log.directory, durable=log.synced), log.synced)
        segment[sector] = kept


@pytest.mark.parametrize("size", [SECTOR, PAGE])
@pytest.mark.parametrize("seed", range(4))
def test_an_unsynced_tail_of_which_pages_were_lost_is_never_damage(seed: int, size: int) -> None:
    """Pages land in any order: valid frames behind a torn one prove nothing unless synced."""
    chance = random.Random(seed)
    for _ in range(25):
        log = LogBuilder(first_position=chance.choice([0, 1 << 20]))
        log.committed(chance.randrange(1, 8), value=b"v" * chance.randrange(900))
        border = log.offset
        before = bytearray(log.directory.segment(1))
        for _ in range(chance.randrange(1, 40)):
            log.tx(value=b"u" * chance.randrange(1200))
        segment = log.directory.segment(1)
        before.extend(stale_bytes(chance, len(segment) - len(before)))
        for start in range(border - border % size, len(segment), size):
            if chance.random() < 0.4:
                page = slice(start, min(start + size, len(segment)))
                segment[page] = before[page]
        check(log, scanned(log.directory), log.synced)
        assert not scanned(log.directory, durable=log.synced).end.refused


def stale_bytes(chance: random.Random, count: int) -> bytes:
    """What was in the file before: zeros, or frames of its previous use."""
    if chance.random() < 0.5:
        return bytes(count)
    old = LogBuilder()
    old.committed(4, value=b"old" * 40)
    frames = bytes(old.directory.segment(1)[HEADER_SIZE:])
    return (frames * (count // len(frames) + 1))[chance.randrange(20) :][:count].ljust(count)


@pytest.mark.parametrize("seed", range(3))
def test_random_damage_to_any_segment_never_changes_a_record(seed: int) -> None:
    chance = random.Random(seed)
    log = two_segments()
    for _ in range(200):
        directory = log.directory.copy()
        for _ in range(chance.randrange(1, 4)):
            segment = directory.segment(chance.randrange(1, 3))
            start = chance.randrange(len(segment))
            garbage = chance.randbytes(chance.randrange(1, 60))
            segment[start : start + len(garbage)] = garbage
        frames, end = scanned(directory, durable=log.synced)
        assert frames == log.frames[: len(frames)]
        assert end.refused or end.position >= log.synced


def test_an_idle_frame_proves_the_last_group() -> None:
    log = LogBuilder()
    log.committed(2)
    last = log.frames[-1]
    log.directory.segment(1)[last.offset + 25] ^= 1
    assert scanned(log.directory).end.kind == EndKind.TORN
    log.idle()
    assert scanned(log.directory).end.kind == EndKind.DAMAGED


def test_the_sweeps_sweep_what_they_promise() -> None:
    log = one_segment()
    assert len(log.directory.segment(1)) > HEADER_SIZE + SWEPT_BYTES
    assert log.synced == log.frames[-3].position > SWEPT_BYTES
