"""Pairs of a full copy arrive as they are stored, or are refused."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c
from hypothesis import given, strategies as st

from support.stores import in_data_file
from tidelog.engine.data.full_pairs import (
    PackedPairs,
    PairTally,
    WrongPairsError,
    packed,
    tally_of,
    unpacked,
)
from tidelog.engine.data.stored import (
    KEY_BYTES_MAX,
    StoredPair,
    checked,
    is_tombstone,
    pack_prefix,
    pack_trailer,
    stored_value,
    xor_trailers,
)

PARTITION = 3
MAPS = (16, 17, 400)
Rows = dict[tuple[int, bytes], bytes | None]

rows = st.dictionaries(
    st.tuples(st.sampled_from(MAPS), st.binary(max_size=12)),
    st.none() | st.binary(max_size=40),
    min_size=1,
    max_size=30,
)


def pairs_of(given_rows: Rows) -> list[StoredPair]:
    """Pairs in order, as the data file has them."""
    named = {pack_prefix(PARTITION, at) + key: value for (at, key), value in given_rows.items()}
    return [
        (key, in_data_file(key, named[key], 1, number, 5))
        for number, key in enumerate(sorted(named), 1)
    ]


def every(_namespace: int) -> bool:
    return True


def columns(pairs: list[StoredPair]) -> tuple[list[bytes], list[bytes]]:
    return [key for key, _ in pairs], [value for _, value in pairs]


@given(rows, st.integers(1, 7))
def test_pairs_arrive_as_they_are_stored(given_rows: Rows, size: int) -> None:
    pairs = pairs_of(given_rows)
    pieces = [packed(pairs[first : first + size]) for first in range(0, len(pairs), size)]
    found = unpacked(PARTITION, [piece for piece, _ in pieces], every)
    assert found == (*columns(pairs), PairTally())
    tally = PairTally()
    for _, of_piece in pieces:
        tally = tally.plus(of_piece)
    live = [value for _, value in pairs if not is_tombstone(value)]
    assert tally == (len(live), len(pairs) - len(live), xor_trailers(live))


@given(rows)
def test_pairs_of_the_overlay_get_their_checks(given_rows: Rows) -> None:
    pairs = pairs_of(given_rows)
    bare = [(key, value[:-4] + bytes(4)) for key, value in pairs]
    assert packed(bare[:1] + pairs[1:]) == packed(pairs)
    assert packed(bare) == packed(pairs)


@given(rows, st.sets(st.sampled_from(MAPS)))
def test_pairs_of_maps_that_have_gone_are_left_out_and_told(
    given_rows: Rows, gone: set[int]
) -> None:
    pairs = pairs_of(given_rows)
    dead = [p for p in pairs if int.from_bytes(p[0][4:8], "big") in gone]
    piece, tally = packed(pairs)
    keys, stored, left_out = unpacked(PARTITION, [piece], lambda number: number not in gone)
    assert (keys, stored) == columns([pair for pair in pairs if pair not in dead])
    assert left_out == tally_of([value for _, value in dead])
    assert tally_of(stored).plus(left_out) == tally


def test_a_pair_that_is_missing_doubled_or_another_one_shows_in_a_tally() -> None:
    pairs = pairs_of({(16, b"%d" % i): b"v" for i in range(5)} | {(17, b"gone"): None})
    _, stored = columns(pairs)
    other = in_data_file(pairs[0][0], b"w", 1, 1, 5)
    tally = tally_of(stored)
    for wrong in (stored[1:], [*stored, stored[2]], [other, *stored[1:]], stored[:-1]):
        assert tally_of(wrong) != tally
    assert tally_of(stored[::-1]) == tally


# ------------------------------------------------------------------ nonsense

FEW = pairs_of({(16, b"a"): b"1", (16, b"b"): None, (17, b"c"): b"3"})


def with_checks(pairs: list[StoredPair]) -> list[StoredPair]:
    keys, stored = columns(pairs)
    return list(zip(keys, checked(keys, stored), strict=True))


def value(flags: int = 0) -> bytes:
    return b"v" + pack_trailer(flags, 1, 1, 5)


def lengths_of(*sizes: int) -> bytes:
    """The lengths of items as they travel, with their check."""
    lengths = struct.pack(f"<{len(sizes)}I", *sizes)
    return lengths + struct.pack("<I", crc32c(lengths))


PREFIX = pack_prefix(PARTITION, 16)
WRONG: dict[str, PackedPairs] = {
    "nothing": PackedPairs(b"", b""),
    "nothing, with a check": PackedPairs(lengths_of(), b""),
    "half a length": PackedPairs(packed(FEW)[0].lengths[:-1], packed(FEW)[0].data),
    "no check of the lengths": PackedPairs(packed(FEW)[0].lengths[:-4], packed(FEW)[0].data),
    "a key without a value": PackedPairs(lengths_of(9), PREFIX + b"a"),
    "too few bytes": PackedPairs(packed(FEW)[0].lengths, packed(FEW)[0].data[:-1]),
    "too many bytes": PackedPairs(packed(FEW)[0].lengths, packed(FEW)[0].data + b"x"),
    "huge lengths": PackedPairs(lengths_of(1 << 31, 1 << 31), b"x"),
    "keys that descend": packed(FEW[::-1])[0],
    "a key twice": packed([FEW[0], FEW[0]])[0],
    "another partition": packed(with_checks([(pack_prefix(4, 16) + b"a", value())]))[0],
    "a partition before": packed(with_checks([(pack_prefix(2, 16) + b"a", value())]))[0],
    "the mark of the partition": packed(with_checks([(pack_prefix(3, 0) + b"mark", value())]))[0],
    "a key without a namespace": packed(with_checks([(PREFIX[:7], value())]))[0],
    "a key that is too long": packed(with_checks([(PREFIX + bytes(KEY_BYTES_MAX + 1), value())]))[
        0
    ],
    "a flag of a later version": packed(with_checks([(PREFIX + b"a", value(4))]))[0],
    "a value without a trailer": PackedPairs(
        lengths_of(len(packed(FEW)[0].data) - 3, 3), packed(FEW)[0].data
    ),
    "nothing at all, twice": PackedPairs(lengths_of(0, 0), b""),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_not_pairs_of_the_partition_in_order_is_refused(what: str) -> None:
    with pytest.raises(WrongPairsError):
        unpacked(PARTITION, [WRONG[what]], every)


def test_any_bit_that_is_flipped_is_refused() -> None:
    lengths, data = packed(FEW)[0]
    for place in range(len(data) * 8):
        with pytest.raises(WrongPairsError):
            unpacked(PARTITION, [PackedPairs(lengths, flipped(data, place))], every)
    for place in range(len(lengths) * 8):
        with pytest.raises(WrongPairsError):
            unpacked(PARTITION, [PackedPairs(flipped(lengths, place), data)], every)


def flipped(whole: bytes, place: int) -> bytes:
    broken = bytearray(whole)
    broken[place // 8] ^= 1 << place % 8
    return bytes(broken)


def test_pairs_that_end_elsewhere_are_refused() -> None:
    # The CRC of all of them is right, and so is the sum of the lengths.
    lengths, data = packed(FEW)[0]
    sizes = list(struct.unpack(f"<{2 * len(FEW)}I", lengths[:-4]))
    for place in range(len(sizes) - 1):
        moved = [*sizes]
        moved[place] += 1
        moved[place + 1] -= 1
        wrong = struct.pack(f"<{len(moved)}I", *moved) + lengths[-4:]
        with pytest.raises(WrongPairsError):
            unpacked(PARTITION, [PackedPairs(wrong, data)], every)


def test_pieces_in_another_order_and_a_piece_twice_are_refused() -> None:
    first, second = packed(FEW[:2])[0], packed(FEW[2:])[0]
    assert unpacked(PARTITION, [first, second], every)[0] == columns(FEW)[0]
    for wrong in ([second, first], [first, second, second], [first, first]):
        with pytest.raises(WrongPairsError):
            unpacked(PARTITION, wrong, every)


def test_a_value_of_the_overlay_is_what_the_data_file_would_have() -> None:
    key = PREFIX + b"k"
    [piece] = [packed([(key, stored_value(b"v", 1, 7, 5))])[0]]
    assert unpacked(PARTITION, [piece], every)[1] == [in_data_file(key, b"v", 1, 7, 5)]
