from __future__ import annotations

import pytest

from support.logs import HISTORY_ID, LOG_ID, STORE_ID
from tidelog.affinity.errors import CorruptLogError, FormatVersionError
from tidelog.wal import format as wal_format
from tidelog.wal.format import (
    FRAME_OVERHEAD,
    HEADER_SIZE,
    PAYLOAD_MAX,
    Frame,
    SegmentHeader,
    encode_frame,
    log_seed,
    parse_frame_header,
    parse_segment_header,
    segment_name,
    segment_number,
)

HEADER = SegmentHeader(
    log_id=LOG_ID, store_id=STORE_ID, history_id=HISTORY_ID, number=7, first_position=4096
)
GOLDEN_HEADER = (
    "544944454c4f4700" "01000000" "00000000" "00000000" "00000000"
    "000102030405060708090a0b0c0d0e0f"
    "73746f72652d69642d31366279746573"
    "686973746f72792d31362d6279746573"
    "0700000000000000" "0010000000000000"
)  # fmt: skip
GOLDEN_FRAME = "544c4601" "03000000" "e8ec109a" "e803000000000000" "616263"  # fmt: skip


def test_a_header_has_the_bytes_of_the_format() -> None:
    data = HEADER.to_bytes()
    assert len(data) == HEADER_SIZE
    assert data.hex().startswith(GOLDEN_HEADER)
    assert set(data[len(GOLDEN_HEADER) // 2 : -4]) == {0}
    assert parse_segment_header(data, 7) == HEADER


def test_a_frame_has_the_bytes_of_the_format() -> None:
    assert encode_frame(log_seed(LOG_ID), 2000, 1000, b"abc").hex() == GOLDEN_FRAME


@pytest.mark.parametrize("bit", range(8))
def test_no_flipped_bit_of_a_header_is_accepted(bit: int) -> None:
    for offset in range(HEADER_SIZE):
        data = bytearray(HEADER.to_bytes())
        data[offset] ^= 1 << bit
        with pytest.raises(CorruptLogError) as caught:
            parse_segment_header(bytes(data), 7)
        assert (caught.value.kind, caught.value.segment, caught.value.offset) == ("damaged", 7, 0)


def test_no_shorter_header_is_accepted() -> None:
    for length in range(HEADER_SIZE):
        with pytest.raises(CorruptLogError, match="segment 7 does not begin"):
            parse_segment_header(HEADER.to_bytes()[:length], 7)


def test_a_later_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wal_format, "FORMAT_VERSION", 2)
    later = HEADER.to_bytes()
    monkeypatch.undo()
    with pytest.raises(FormatVersionError, match="segment 7 has format 2") as caught:
        parse_segment_header(later, 7)
    assert (caught.value.found, caught.value.supported) == (2, 1)


def test_an_unknown_required_feature_is_refused_and_others_are_not() -> None:
    fields = {"log_id": LOG_ID, "store_id": STORE_ID, "history_id": HISTORY_ID}
    required = SegmentHeader(**fields, number=7, first_position=0, required=4)  # type: ignore[arg-type] # all are bytes
    with pytest.raises(FormatVersionError, match="required features 0x4"):
        parse_segment_header(required.to_bytes(), 7)
    others = SegmentHeader(**fields, number=7, first_position=0, compatible=1, read_only=2)  # type: ignore[arg-type] # all are bytes
    assert parse_segment_header(others.to_bytes(), 7) == others


def test_the_crc_of_a_frame_covers_its_log_position_length_synced_and_payload() -> None:
    header = parse_frame_header(encode_frame(log_seed(LOG_ID), 2000, 1000, b"abc"))
    assert header is not None
    assert (header.length, header.synced) == (3, 1000)
    seed = log_seed(LOG_ID)
    assert header.crc_found(seed, 2000, b"abc") == header.crc
    other_synced = wal_format.FrameHeader(3, header.crc, 1001)
    other_length = wal_format.FrameHeader(4, header.crc, 1000)
    wrong = [
        header.crc_found(log_seed(STORE_ID), 2000, b"abc"),
        header.crc_found(seed, 2001, b"abc"),
        header.crc_found(seed, 2000, b"abd"),
        other_synced.crc_found(seed, 2000, b"abc"),
        other_length.crc_found(seed, 2000, b"abc"),
    ]
    assert header.crc not in wrong


@pytest.mark.parametrize(
    "data",
    [
        b"",
        bytes(FRAME_OVERHEAD),
        encode_frame(0, 0, 0, b"abc")[: FRAME_OVERHEAD - 1],
        encode_frame(0, 0, 0, b""),
        wal_format.pack_frame_header(b"TLF\x01", PAYLOAD_MAX + 1, 0, 0),
        wal_format.pack_frame_header(b"TLF\x01", 0xFFFFFFFF, 0, 0),
        wal_format.pack_frame_header(b"TLF\x02", 1, 0, 0),
    ],
    ids=["nothing", "zeros", "short", "empty", "too long", "far too long", "other magic"],
)
def test_what_cannot_be_a_frame_has_no_header(data: bytes) -> None:
    assert parse_frame_header(data) is None


def test_a_frame_knows_where_it_ends() -> None:
    assert Frame(100, 0, b"abc", 1, 228).end == 123


def test_names_of_segments_and_back() -> None:
    assert segment_name(12) == "0000000000000012.log"
    assert segment_number("0000000000000012.log") == 12
    for name in ("12.log", "0000000000000012.idx", "000000000000001x.log", "next.tmp", ""):
        assert segment_number(name) is None
    assert segment_number("\N{ARABIC-INDIC DIGIT ONE}" * 16 + ".log") is None
