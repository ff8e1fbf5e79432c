from __future__ import annotations

import pytest

from support.logs import (
    HISTORY_ID,
    LOG_ID,
    STORE_ID,
    LogBuilder,
    MemoryDirectory,
    MemoryFile,
    scanned,
    tx_id,
)
from tidelog.affinity.errors import (
    CorruptLogError,
    FormatVersionError,
    HistoryTruncatedError,
)
from tidelog.wal.format import (
    FRAME_MAGIC,
    FRAME_OVERHEAD,
    HEADER_SIZE,
    SegmentHeader,
    encode_frame,
    log_seed,
    pack_frame_header,
    segment_name,
)
from tidelog.wal.index import SegmentIndex, index_name
from tidelog.wal.reader import Scan, find_transaction, load_index, read_records
from tidelog.wal.records import RollbackRecord, Run, StateRecord, TxRecord, pack_record_header
from tidelog.wal.segments import CHUNK_BYTES
from tidelog.wal.tail import EndKind, LogPlace, LostRange

OTHER_LOG = b"another log's id"


@pytest.fixture
def log() -> LogBuilder:
    """Three segments with three synced transactions each."""
    log = LogBuilder()
    log.committed(3)
    for _ in range(2):
        log.rotate()
        log.committed(3, partition=1)
    return log


def of(log: LogBuilder, segment: int) -> list[tuple[int, int]]:
    """Position and offset of the frames of a segment."""
    return [(frame.position, frame.offset) for frame in log.frames if frame.segment == segment]


def flip(directory: MemoryDirectory, segment: int, offset: int) -> None:
    directory.segment(segment)[offset] ^= 0x10


# ------------------------------------------------------------------ a log without fault


def test_frames_come_in_order_over_all_segments(log: LogBuilder) -> None:
    frames, end = scanned(log.directory)
    assert frames == log.frames
    assert (end.row, end.kind, end.position) == ("B", EndKind.CLEAN, log.position)
    assert (end.segment, end.offset) == (3, log.offset)
    assert end.before == LogPlace(frames[-1].position, 3, frames[-1].offset)
    assert not end.refused


def test_w_is_the_highest_that_any_frame_or_header_says(log: LogBuilder) -> None:
    assert scanned(log.directory).end.durable == log.frames[-1].position
    log.idle()
    assert scanned(log.directory).end.durable == log.synced
    log.rotate(sealed=False)
    assert scanned(log.directory).end.durable == log.frames[-1].position
    log.rotate()
    assert scanned(log.directory).end.durable == log.position


@pytest.mark.parametrize("exact", [False, True])
def test_a_scan_may_begin_at_any_frame(log: LogBuilder, exact: bool) -> None:
    for index, frame in enumerate(log.frames):
        assert scanned(log.directory, frame.position, exact=exact).frames == log.frames[index:]


def test_a_start_inside_a_frame_yields_what_begins_above_it(log: LogBuilder) -> None:
    for index, frame in enumerate(log.frames[:-1]):
        assert scanned(log.directory, frame.position + 1).frames == log.frames[index + 1 :]


@pytest.mark.parametrize("exact", [False, True])
def test_a_scan_may_begin_at_the_end(log: LogBuilder, exact: bool) -> None:
    frames, end = scanned(log.directory, log.position, exact=exact)
    assert not frames
    assert (end.kind, end.position) == (EndKind.CLEAN, log.position)


def test_a_start_beyond_the_end_yields_nothing(log: LogBuilder) -> None:
    frames, end = scanned(log.directory, log.position + 1000)
    assert (frames, end.kind, end.position) == ([], EndKind.CLEAN, log.position)


def test_an_exact_start_reads_nothing_below_it(log: LogBuilder) -> None:
    start, offset = of(log, 3)[2]
    flip(log.directory, 3, offset - 1)
    assert scanned(log.directory, start, exact=True).frames == log.frames[-2:]


def test_the_end_is_unknown_before_it_is_reached(log: LogBuilder) -> None:
    scan = Scan(log.directory)
    with pytest.raises(AssertionError, match="not reached"):
        _ = scan.end


def test_a_dropped_scan_closes_its_files(log: LogBuilder) -> None:
    frames = iter(Scan(log.directory))
    next(frames)
    assert log.directory.left_open
    frames.close()
    assert not log.directory.left_open


def test_frames_larger_than_a_chunk_are_read_whole() -> None:
    log = LogBuilder()
    log.committed(1, value=b"v" * (3 * CHUNK_BYTES + 5))
    log.committed(2)
    log.committed(1, value=b"w" * (CHUNK_BYTES - 60))
    log.committed(50, value=b"x" * 50_000)
    assert scanned(log.directory).frames == log.frames


def test_what_follows_the_start_of_the_next_segment_is_ignored() -> None:
    log = LogBuilder()
    log.committed(2)
    border, synced = log.position, log.synced
    log.tx()
    log.position, log.synced = border, synced
    del log.frames[-1]
    log.rotate()
    log.committed(1)
    assert scanned(log.directory).frames == log.frames


def test_a_log_whose_numbers_skip_is_whole_where_its_positions_are() -> None:
    log = LogBuilder()
    log.committed(1)
    log.rotate(number=5)
    log.committed(1)
    assert scanned(log.directory).end.kind == EndKind.CLEAN
    assert scanned(log.directory).frames == log.frames


def test_segments_that_are_not_wanted_are_passed_over_unread(log: LogBuilder) -> None:
    flip(log.directory, 2, of(log, 2)[1][1])
    frames, end = scanned(log.directory, wanted=lambda number: number == 1)
    # The last one is read in any case, for how it ends.
    assert [frame.segment for frame in frames] == [1] * 4 + [3] * 4
    assert end.kind == EndKind.CLEAN


def test_a_later_format_is_an_error_of_its_own(log: LogBuilder) -> None:
    header = SegmentHeader(
        log_id=LOG_ID, store_id=STORE_ID, history_id=HISTORY_ID, number=3, first_position=0,
        required=4,
    )  # fmt: skip
    log.directory.segment(3)[:HEADER_SIZE] = header.to_bytes()
    with pytest.raises(FormatVersionError):
        scanned(log.directory)
    assert not log.directory.left_open


# ------------------------------------------------------------------ rows A and M: no segment


def test_a_no_segment_is_a_new_log() -> None:
    frames, end = scanned(MemoryDirectory(), 0)
    assert (frames, end.row, end.kind, end.position) == ([], "A", EndKind.CLEAN, 0)


@pytest.mark.parametrize(("start", "durable"), [(5, 0), (0, 5), (None, 5)])
def test_m_no_segment_where_there_was_content_is_a_gap(start: int | None, durable: int) -> None:
    end = scanned(MemoryDirectory(), start, durable=durable).end
    assert (end.row, end.kind) == ("M", EndKind.GAP)


def test_files_of_other_names_are_no_segments(log: LogBuilder) -> None:
    log.directory.files |= {"next.tmp": bytearray(b"x"), "0000000000000009.idx": bytearray()}
    assert scanned(log.directory).frames == log.frames


# ------------------------------------------------------------------ rows B to E: harmless ends


def test_b_the_writer_was_killed_between_two_frames(log: LogBuilder) -> None:
    assert scanned(log.directory, durable=log.position).end.row == "B"


@pytest.mark.parametrize("zeros", [1, 19, 20, 127, CHUNK_BYTES + 1, 3 * CHUNK_BYTES])
def test_c_the_file_is_filled_ahead_with_zeros(log: LogBuilder, zeros: int) -> None:
    log.pad(bytes(zeros))
    end = scanned(log.directory, durable=log.position).end
    assert (end.row, end.kind, end.dropped_bytes) == ("C", EndKind.PREALLOCATED, 0)
    assert (end.position, end.offset) == (log.position, log.offset)


def test_d_a_recycled_file_ends_with_its_old_frames() -> None:
    old = LogBuilder()
    old.committed(40)
    stale = bytes(old.directory.segment(1))
    for count in range(1, 30):
        log = LogBuilder(first_position=1_000_000)
        log.directory.files[segment_name(1)][HEADER_SIZE:] = stale[HEADER_SIZE:]
        log.position = log.synced = log.first_position
        log.frames.clear()
        log.add(log.state())
        log.committed(count, value=b"longer value")
        frames, end = scanned(log.directory, durable=log.position)
        assert frames == log.frames
        assert (end.row, end.kind, end.position) == ("D", EndKind.RECYCLED, log.position)
        assert end.dropped_bytes == 0


@pytest.mark.parametrize("garbage", [b"x", b"x" * 19, b"TLF\x01" * 30, bytes(100) + b"x"])
def test_e_garbage_behind_the_end_is_told_and_dropped(log: LogBuilder, garbage: bytes) -> None:
    log.pad(garbage + bytes(50))
    end = scanned(log.directory, durable=log.position).end
    assert (end.row, end.kind, end.position) == ("E", EndKind.TORN, log.position)
    assert (end.dropped_bytes, end.dropped_frames) == (len(garbage), 0)


def test_e_a_torn_frame_is_cut_with_valid_unsynced_ones_behind_it(log: LogBuilder) -> None:
    first = log.tx()
    log.tx()
    log.tx()
    flip(log.directory, 3, first.offset + 30)
    frames, end = scanned(log.directory)
    assert frames == log.frames[:-3]
    assert (end.row, end.kind, end.position) == ("E", EndKind.TORN, first.position)
    assert (end.dropped_bytes, end.dropped_frames) == (log.position - first.position, 2)
    assert end.expected is not None
    assert end.found not in (None, end.expected)


# ------------------------------------------------------------------ row F: an unreadable one


@pytest.mark.parametrize("content", [b"", bytes(4096), b"garbage" * 50])
def test_f_an_unreadable_last_segment_that_was_never_durable_is_dropped(content: bytes) -> None:
    log = LogBuilder()
    log.committed(3)
    log.directory.files[segment_name(2)] = bytearray(content)
    frames, end = scanned(log.directory)
    assert frames == log.frames
    assert (end.row, end.kind, end.position) == ("F", EndKind.TORN, log.position)
    assert (end.segment, end.offset, end.dropped_segment) == (2, 0, 2)
    assert end.dropped_bytes == len(content.rstrip(b"\0"))


def test_f_an_empty_only_segment_of_a_new_store_is_dropped() -> None:
    directory = MemoryDirectory({segment_name(1): bytearray(4096)})
    end = scanned(directory, 0).end
    assert (end.row, end.kind, end.position, end.dropped_segment) == ("F", EndKind.TORN, 0, 1)


def test_f_holds_only_a_state_frame_that_proves_nothing(log: LogBuilder) -> None:
    log.rotate(sealed=False)
    flip(log.directory, 4, 40)
    end = scanned(log.directory, durable=log.frames[-1].position).end
    assert (end.row, end.dropped_segment, end.dropped_frames) == ("F", 4, 1)


# ------------------------------------------------------------------ rows G to J: damaged segments


def test_g_a_file_that_ends_below_w_is_damaged(log: LogBuilder) -> None:
    position, offset = of(log, 3)[2]
    del log.directory.segment(3)[offset:]
    end = scanned(log.directory, durable=log.position).end
    assert (end.row, end.kind, end.position) == ("G", EndKind.DAMAGED, position)


def test_g_a_file_that_ends_below_an_exact_start_is_damaged(log: LogBuilder) -> None:
    del log.directory.segment(3)[of(log, 3)[2][1] :]
    end = scanned(log.directory, log.position, exact=True).end
    assert (end.row, end.position) == ("G", of(log, 3)[2][0])


def test_g_a_sealed_segment_that_was_cut_names_what_is_lost(log: LogBuilder) -> None:
    position, offset = of(log, 2)[2]
    del log.directory.segment(2)[offset:]
    end = scanned(log.directory).end
    assert (end.row, end.segment, end.position) == ("G", 2, position)
    assert end.lost == (LostRange(1, 2, 3),)
    assert end.after == LogPlace(of(log, 3)[0][0], 3, HEADER_SIZE)


def test_h_zeros_below_w_are_damage(log: LogBuilder) -> None:
    _, offset = of(log, 3)[2]
    segment = log.directory.segment(3)
    segment[offset:] = bytes(len(segment) - offset)
    end = scanned(log.directory, durable=log.position).end
    assert (end.row, end.kind, end.offset) == ("H", EndKind.DAMAGED, offset)


def test_i_a_recycled_files_frames_below_w_are_damage() -> None:
    old = LogBuilder()
    old.committed(9)
    log = LogBuilder(first_position=1_000_000)
    log.committed(2)
    log.pad(bytes(old.directory.segment(1))[log.offset :])
    end = scanned(log.directory, durable=log.position + 1).end
    assert (end.row, end.kind, end.position) == ("I", EndKind.DAMAGED, log.position)


def test_j_a_flipped_bit_below_w_is_damage_with_all_that_can_be_told(log: LogBuilder) -> None:
    before, damaged, after = of(log, 3)[1:4]
    flip(log.directory, 3, after[1] - 3)
    frames, end = scanned(log.directory)
    assert frames == log.frames[:-2]
    assert (end.row, end.kind) == ("J", EndKind.DAMAGED)
    assert (end.position, end.segment, end.offset) == (damaged[0], 3, damaged[1])
    assert end.before == LogPlace(before[0], 3, before[1])
    assert end.after == LogPlace(after[0], 3, after[1])
    assert end.durable > end.position
    assert end.lost == (LostRange(1, 5, 5),)
    assert end.transactions == (tx_id(8),)
    assert end.expected != end.found
    with pytest.raises(CorruptLogError, match=r"partition 1 5\.\.5"):
        end.raise_if_refused()


@pytest.mark.parametrize("length", [0, 1, 0xFFFFFFFF, 1 << 29, 1 << 30])
def test_j_a_changed_length_does_not_hide_the_frames_that_prove_damage(
    log: LogBuilder, length: int
) -> None:
    position, offset = of(log, 3)[1]
    segment = log.directory.segment(3)
    segment[offset : offset + FRAME_OVERHEAD] = pack_frame_header(FRAME_MAGIC, length, 1, position)
    frames, end = scanned(log.directory)
    assert frames == log.frames[:-3]
    assert (end.row, end.position) == ("J", position)
    assert end.after == LogPlace(*of(log, 3)[2][:1], 3, of(log, 3)[2][1])


def test_nothing_is_allocated_for_a_length_beyond_the_file(
    log: LogBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    position, offset = of(log, 3)[1]
    segment = log.directory.segment(3)
    segment[offset : offset + FRAME_OVERHEAD] = pack_frame_header(FRAME_MAGIC, 1 << 30, 1, position)
    asked: list[int] = []
    read = MemoryFile.read

    def noting(file: MemoryFile, at: int, length: int) -> bytes:
        asked.append(length)
        return read(file, at, length)

    monkeypatch.setattr(MemoryFile, "read", noting)
    assert scanned(log.directory).end.refused
    assert max(asked) == CHUNK_BYTES


def test_damage_in_a_sealed_segment_is_proven_by_the_next_one() -> None:
    log = LogBuilder()
    log.tx()
    torn = log.tx()
    log.rotate()
    flip(log.directory, 1, torn.offset)
    end = scanned(log.directory).end
    assert (end.row, end.position, end.durable) == ("J", torn.position, log.base)
    assert end.lost == (LostRange(0, 2, 2),)


def test_valid_frames_far_behind_the_damage_are_found_over_chunk_borders() -> None:
    log = LogBuilder()
    log.committed(1)
    broken = log.tx(value=b"v" * (CHUNK_BYTES - 300))
    log.committed(20, value=b"w" * 37)
    flip(log.directory, 1, broken.offset + 1000)
    end = scanned(log.directory).end
    assert (end.row, end.position) == ("J", broken.position)
    assert end.after is not None
    assert end.after.position == broken.end


def test_a_frame_that_proves_nothing_does_not_hide_the_one_behind_it_that_does() -> None:
    log = LogBuilder()
    log.committed(2)
    torn = log.tx()
    log.tx()  # says that all before the damage is durable, and no more
    log.sync()
    log.tx()  # says that the damaged one was durable, too
    flip(log.directory, 1, torn.offset + FRAME_OVERHEAD)
    end = scanned(log.directory).end
    assert (end.row, end.kind, end.position) == ("J", EndKind.DAMAGED, torn.position)


def test_a_later_frame_that_claims_an_impossible_synced_is_not_believed() -> None:
    log = LogBuilder()
    log.committed(1)
    torn = log.tx()
    log.synced = log.position + 1
    log.tx()
    flip(log.directory, 1, torn.offset + 30)
    assert scanned(log.directory).end.row == "E"


# ------------------------------------------------------------------ row K: a damaged header


def test_k_a_damaged_header_before_readable_segments_is_damage(log: LogBuilder) -> None:
    flip(log.directory, 2, 50)
    frames, end = scanned(log.directory)
    assert frames == [frame for frame in log.frames if frame.segment == 1]
    assert (end.row, end.kind, end.segment, end.offset) == ("K", EndKind.DAMAGED, 2, 0)
    assert end.position == of(log, 2)[0][0]
    assert end.expected != end.found
    assert end.dropped_segment is None


def test_k_frames_behind_a_damaged_last_header_prove_it_durable(log: LogBuilder) -> None:
    flip(log.directory, 3, 50)
    end = scanned(log.directory).end
    assert (end.row, end.kind, end.segment) == ("K", EndKind.DAMAGED, 3)
    assert end.after == LogPlace(of(log, 3)[0][0], 3, HEADER_SIZE)


def test_k_two_unreadable_segments_are_more_than_a_crash_leaves() -> None:
    log = LogBuilder()
    log.committed(1)
    log.directory.files |= {segment_name(n): bytearray(64) for n in (2, 3)}
    assert scanned(log.directory).end.row == "K"


@pytest.mark.parametrize("start", [None, 0])
def test_k_a_damaged_only_segment_with_content_is_damage(start: int | None) -> None:
    log = LogBuilder()
    log.committed(1)
    flip(log.directory, 1, 50)
    frames, end = scanned(log.directory, start)
    assert (frames, end.row, end.segment) == ([], "K", 1)


def test_k_a_damaged_first_header_is_damage_though_the_start_is_above_it(log: LogBuilder) -> None:
    flip(log.directory, 1, 50)
    assert scanned(log.directory, of(log, 1)[2][0]).end.row == "K"
    assert scanned(log.directory, of(log, 2)[0][0], exact=True).end.kind == EndKind.CLEAN


def test_k_an_exact_start_in_a_segment_with_a_damaged_header_is_not_taken_on_trust(
    log: LogBuilder,
) -> None:
    start = of(log, 3)[2][0]
    flip(log.directory, 3, 50)
    log.directory.segment(2).extend(bytes(8192))
    frames, end = scanned(log.directory, start, exact=True)
    assert (frames, end.row, end.segment) == ([], "K", 3)


# ------------------------------------------------------------------ rows L to P: files out of place


def test_l_a_segment_under_another_name_is_damage(log: LogBuilder) -> None:
    log.directory.files[segment_name(2)] = log.directory.files[segment_name(3)]
    end = scanned(log.directory).end
    assert (end.row, end.kind, end.segment) == ("L", EndKind.DAMAGED, 2)
    assert "its header says 3" in end.reason


def test_n_segments_that_overlap_are_damage(log: LogBuilder) -> None:
    for first_position in (0, of(log, 2)[2][0] + 1):
        header = SegmentHeader(
            log_id=LOG_ID, store_id=STORE_ID, history_id=HISTORY_ID, number=3,
            first_position=first_position,
        )  # fmt: skip
        directory = log.directory.copy()
        directory.segment(3)[:HEADER_SIZE] = header.to_bytes()
        end = scanned(directory).end
        assert (end.row, end.kind) == ("N", EndKind.DAMAGED)


def test_o_a_missing_segment_is_a_gap_with_the_numbers_that_it_held(log: LogBuilder) -> None:
    del log.directory.files[segment_name(2)]
    frames, end = scanned(log.directory)
    assert len(frames) == 4
    assert (end.row, end.kind, end.segment) == ("O", EndKind.GAP, 2)
    assert end.lost == (LostRange(1, 1, 3),)
    assert end.after == LogPlace(of(log, 3)[0][0], 3, HEADER_SIZE)


def test_o_a_log_that_begins_above_the_start_has_a_gap(log: LogBuilder) -> None:
    del log.directory.files[segment_name(1)]
    end = scanned(log.directory, 0).end
    assert (end.row, end.kind, end.segment) == ("O", EndKind.GAP, 1)
    assert scanned(log.directory).frames == log.frames[4:]


def test_p_a_segment_of_another_log_is_foreign(log: LogBuilder) -> None:
    other = LogBuilder(log_id=OTHER_LOG, first_position=of(log, 3)[0][0])
    other.rotate(number=3)
    log.directory.files[segment_name(3)] = other.directory.files[segment_name(3)]
    frames, end = scanned(log.directory)
    assert len(frames) == 8
    assert (end.row, end.kind, end.segment) == ("P", EndKind.FOREIGN, 3)
    assert OTHER_LOG.hex() in end.reason


def test_p_one_frame_of_another_log_is_damage_like_any_other(log: LogBuilder) -> None:
    position, offset = of(log, 3)[1]
    frame = log.frames[-3]
    data = encode_frame(log_seed(OTHER_LOG), position, frame.synced, frame.payload)
    log.directory.segment(3)[offset : offset + len(data)] = data
    assert scanned(log.directory).end.row == "J"


def two_logs() -> tuple[LogBuilder, list[tuple[bytes, int]]]:
    """A log that was continued under another id, as a copy is."""
    log = LogBuilder()
    log.committed(2)
    log.rotate()
    log.committed(2)
    log.log_id = OTHER_LOG
    log.rotate()
    log.committed(2)
    return log, [(LOG_ID, 0), (OTHER_LOG, log.base)]


def test_the_list_of_ids_tells_which_one_a_segment_must_have() -> None:
    log, ids = two_logs()
    assert scanned(log.directory, log_ids=ids).frames == log.frames
    assert scanned(log.directory).end.row == "P"
    assert scanned(log.directory, log_ids=ids[:1]).end.row == "P"
    late = scanned(log.directory, log_ids=[(OTHER_LOG, log.base)]).end
    assert (late.row, late.segment) == ("P", 1)


def test_a_damaged_header_is_judged_by_the_id_that_belongs_there() -> None:
    log, ids = two_logs()
    flip(log.directory, 3, 50)
    assert scanned(log.directory, log_ids=ids).end.row == "K"


# ------------------------------------------------------------------ beside a live writer


def test_a_frame_that_was_half_written_at_first_is_read_again() -> None:
    log = LogBuilder()
    log.committed(5)
    frame = log.frames[2]
    whole = bytes(log.directory.segment(1))
    log.directory.segment(1)[frame.offset : frame.offset + 40] = bytes(40)
    times: list[str] = []

    def open_read(name: str) -> None:
        times.append(name)
        if len(times) == 2:
            log.directory.segment(1)[:] = whole

    log.directory.before_open = open_read
    assert scanned(log.directory).frames == log.frames


def test_a_segment_that_appears_meanwhile_is_followed() -> None:
    log = LogBuilder()
    log.committed(3)
    log.rotate()
    log.committed(3)
    later = log.directory.files.pop(segment_name(2))
    listed: list[int] = []

    def names() -> None:
        listed.append(1)
        if len(listed) == 3:
            log.directory.files[segment_name(2)] = later

    log.directory.before_names = names
    assert scanned(log.directory).frames == log.frames


def test_a_segment_that_is_dropped_before_it_is_opened_says_so(log: LogBuilder) -> None:
    def open_read(name: str) -> None:
        if name == segment_name(2):
            log.directory.files.pop(name, None)

    log.directory.before_open = open_read
    with pytest.raises(HistoryTruncatedError, match="segment 2 was dropped"):
        scanned(log.directory)
    assert not log.directory.left_open


def test_a_file_that_is_recycled_while_it_is_read_is_no_damage(log: LogBuilder) -> None:
    def open_read(name: str) -> None:
        if name == segment_name(2) and segment_name(1) in log.directory.files:
            data = log.directory.files.pop(segment_name(1))
            data[:] = bytes(len(data))

    log.directory.before_open = open_read
    with pytest.raises(HistoryTruncatedError, match="segment 1 was dropped"):
        scanned(log.directory)


def test_a_header_that_turns_bad_meanwhile_keeps_the_verdict(log: LogBuilder) -> None:
    flip(log.directory, 2, of(log, 2)[1][1])
    times: list[str] = []

    def open_read(name: str) -> None:
        times.append(name)
        if times.count(segment_name(2)) == 2:
            log.directory.segment(2)[0] ^= 1

    log.directory.before_open = open_read
    assert scanned(log.directory).end.row == "J"


# ------------------------------------------------------------------ records, index, transactions


def test_records_come_with_their_frames(log: LogBuilder) -> None:
    pairs = list(read_records(Scan(log.directory)))
    assert [type(record) for _, record in pairs] == [StateRecord, *[TxRecord] * 3] * 3
    assert [frame for frame, _ in pairs] == log.frames


@pytest.mark.parametrize("payload", [b"x", pack_record_header(1, 1, 0) + b"\xc1"])
def test_an_undecodable_record_in_a_valid_frame_is_damage(payload: bytes) -> None:
    log = LogBuilder()
    frame = log.add(payload=payload)
    with pytest.raises(CorruptLogError, match="valid CRC") as caught:
        list(read_records(Scan(log.directory)))
    assert (caught.value.segment, caught.value.offset) == (1, frame.offset)


def test_an_unknown_record_is_refused_with_its_place() -> None:
    log = LogBuilder()
    frame = log.add(payload=pack_record_header(0, 77, 0))
    with pytest.raises(FormatVersionError, match=f"segment 1, offset {frame.offset}: .* type 77"):
        list(read_records(Scan(log.directory)))


def indexed(log: LogBuilder) -> None:
    for number in (1, 2):
        frames = [frame for frame in log.frames if frame.segment == number]
        index = SegmentIndex.build(number, frames[0].position, frames)
        log.directory.files[index_name(number)] = bytearray(index.to_bytes())


@pytest.mark.parametrize("with_index", [False, True])
def test_a_transaction_is_found_by_its_id(log: LogBuilder, with_index: bool) -> None:
    if with_index:
        indexed(log)
    for number in range(1, 10):
        found = find_transaction(log.directory, tx_id(number))
        assert found is not None
        frame, record = found
        assert record.tx_id == tx_id(number)
        assert frame in log.frames
    assert find_transaction(log.directory, tx_id(10)) is None
    assert not log.directory.left_open


def test_the_last_record_of_an_id_is_the_answer() -> None:
    log = LogBuilder()
    log.add(RollbackRecord(tx_id=tx_id(1), time=5, reason="conflict", runs=(Run(0, 1, 1, 1),)))
    log.counters[0] = 1
    frame = log.tx(value=tx_id(2))
    found = find_transaction(log.directory, tx_id(1))
    assert found is not None
    assert isinstance(found[1], TxRecord)
    assert found[0] == frame
    # The bytes of an id inside a value are no transaction.
    assert find_transaction(log.directory, tx_id(2)) is None


def test_a_damaged_log_does_not_say_that_a_transaction_is_not_there(log: LogBuilder) -> None:
    flip(log.directory, 2, of(log, 2)[1][1] + 30)
    with pytest.raises(CorruptLogError):
        find_transaction(log.directory, tx_id(9))


def test_an_index_that_is_missing_damaged_or_of_another_segment_is_none(log: LogBuilder) -> None:
    indexed(log)
    index = load_index(log.directory, 1)
    assert index is not None
    assert index.counters == {0: [(1, 1, 3)]}
    assert load_index(log.directory, 3) is None
    log.directory.files[index_name(3)] = log.directory.files[index_name(1)]
    assert load_index(log.directory, 3) is None
    log.directory.files[index_name(2)][20] ^= 1
    assert load_index(log.directory, 2) is None
    assert not log.directory.left_open
