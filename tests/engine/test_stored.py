"""Stored values: the check that makes every pair a zero, and what shows when a bit flips."""

from __future__ import annotations

import functools
import operator
import random
import re

import pytest
from crc32c import crc32c

from support.stores import in_data_file
from tidelog.affinity.errors import CorruptDataError
from tidelog.engine.data.stored import (
    PREFIX_SIZE,
    TRAILER_SIZE,
    check_block,
    check_pair,
    damaged_pair,
    is_tombstone,
    pack_prefix,
    shown_key,
    split_key,
    stored_run,
    stored_value,
    version_of,
    xor_trailers,
)

PREFIX = pack_prefix(3, 16)


def random_pair(rng: random.Random) -> tuple[bytes, bytes]:
    key = PREFIX + rng.randbytes(rng.randint(0, 40))
    value = None if rng.random() < 0.2 else rng.randbytes(rng.randint(0, 60))
    number, time = rng.getrandbits(63), rng.getrandbits(63) - (1 << 62)
    return key, in_data_file(key, value, rng.getrandbits(32), number, time)


def test_a_stored_value_ends_with_its_flag_epoch_number_and_time() -> None:
    # Own deletes of a transaction are written out in bytes where it is scanned.
    trailer = (7).to_bytes(4, "little") + (8).to_bytes(8, "little") + (9).to_bytes(8, "little")
    assert stored_value(b"value", 7, 8, 9) == b"value\0" + trailer + bytes(4)
    assert stored_value(None, 7, 8, 9) == b"\1" + trailer + bytes(4)


@pytest.mark.parametrize("seed", range(30))
def test_the_checksum_of_any_pairs_joined_is_zero(seed: int) -> None:
    rng = random.Random(seed)
    pairs = [random_pair(rng) for _ in range(rng.randint(0, 30))]
    assert all(crc32c(key + stored) == 0 for key, stored in pairs)
    assert crc32c(b"".join(key + stored for key, stored in pairs)) == 0
    check_block([key for key, _ in pairs], [stored for _, stored in pairs])


@pytest.mark.parametrize("value", [None, b"", b"some value"])
def test_every_flipped_bit_of_key_or_value_is_found(value: bytes | None) -> None:
    key = PREFIX + b"key"
    other = PREFIX + b"other"
    good = in_data_file(other, b"v", 1, 2, 3)
    stored = in_data_file(key, value, 1, 7, 1_700_000_000_000_000)
    for bit in range(8 * (len(key) + len(stored))):
        pair = bytearray(key + stored)
        pair[bit // 8] ^= 1 << bit % 8
        bad = bytes(pair[: len(key)]), bytes(pair[len(key) :])
        with pytest.raises(CorruptDataError):
            check_pair(*bad)
        with pytest.raises(CorruptDataError, match=re.escape(shown_key(bad[0][PREFIX_SIZE:]))):
            check_block([other, bad[0]], [good, bad[1]])


def test_a_pair_that_was_cut_is_found_even_where_its_checksum_is_zero() -> None:
    with pytest.raises(CorruptDataError):
        check_pair(b"", b"")
    short = (0).to_bytes(4, "little")
    key = PREFIX + b"k"
    with pytest.raises(CorruptDataError):
        check_pair(key, short)


def test_a_block_of_bad_pairs_that_cancel_out_names_one_of_them() -> None:
    key = PREFIX + b"key"
    stored = in_data_file(key, b"value", 1, 2, 3)
    with pytest.raises(CorruptDataError, match="'key'"):
        check_block([key, b"x"], [stored[:-1], stored[-1:] + b"y"])


@pytest.mark.parametrize("value", [None, b"", b"value"])
@pytest.mark.parametrize("epoch", [1, 2**32 - 1])
@pytest.mark.parametrize(("counter", "time"), [(1, 0), (2**63 - 1, -(2**63)), (7, 2**63 - 1)])
def test_what_was_put_in_comes_out(
    value: bytes | None, epoch: int, counter: int, time: int
) -> None:
    key = PREFIX + b"key"
    stored = in_data_file(key, value, epoch, counter, time)
    assert is_tombstone(stored) == (value is None)
    assert stored[:-TRAILER_SIZE] == (value or b"")
    assert version_of(stored) == (epoch, counter, time)
    assert split_key(key) == (3, 16, b"key")


@pytest.mark.parametrize("count", range(6))
def test_a_run_is_its_values_one_by_one(count: int) -> None:
    values = [None if number % 3 == 1 else b"v" * number for number in range(count)]
    assert list(stored_run(values, 5, 100, 9)) == [
        stored_value(value, 5, 100 + place, 9) for place, value in enumerate(values)
    ]


def test_an_error_names_the_key() -> None:
    assert str(damaged_pair(PREFIX + b"key")).endswith("namespace 16, key 'key' (partition 3)")
    assert str(damaged_pair(b"\x01\x02")).endswith("key 0x0102")


@pytest.mark.parametrize("count", [*range(20), 100, 1023])
def test_the_xor_of_trailers_is_the_fold_of_them_all(count: int) -> None:
    rng = random.Random(count)
    stored = [rng.randbytes(TRAILER_SIZE + rng.randint(0, 30)) for _ in range(count)]
    words = [int.from_bytes(value[-TRAILER_SIZE:], "little") for value in stored]
    assert xor_trailers(stored) == functools.reduce(operator.xor, words, 0)
    rng.shuffle(stored)
    assert xor_trailers(stored) == functools.reduce(operator.xor, words, 0)
