from __future__ import annotations

import math
import struct
from collections.abc import Callable
from enum import IntEnum, StrEnum
from typing import Any

import pytest
from hypothesis import given, strategies as st

from tidelog.engine.codecs.registry import I64, U64, Bytes, Codec, Float, Str
from tidelog.errors import CodecError

I64_NUMBERS = st.integers(-(2**63), 2**63 - 1)
U64_NUMBERS = st.integers(0, 2**64 - 1)


class Level(IntEnum):
    HIGH = 3


class Colour(StrEnum):
    RED = "red"


class Metres(float):
    pass


@pytest.mark.parametrize(
    ("codec", "value", "encoded"),
    [
        (Bytes, b"", ""),
        (Bytes, b"\x00\xff", "00ff"),
        (Str, "", ""),
        (Str, "Zoë", "5a6fc3ab"),
        (I64, 0, "8000000000000000"),
        (I64, -1, "7fffffffffffffff"),
        (I64, -(2**63), "0000000000000000"),
        (I64, 2**63 - 1, "ffffffffffffffff"),
        (U64, 0, "0000000000000000"),
        (U64, 258, "0000000000000102"),
        (U64, 2**64 - 1, "ffffffffffffffff"),
        (Float, 1.0, "3ff0000000000000"),
        (Float, -0.0, "8000000000000000"),
        (Float, math.inf, "7ff0000000000000"),
    ],
)
def test_a_value_has_the_documented_bytes(codec: Codec[Any], value: Any, encoded: str) -> None:
    assert codec.encode(value).hex() == encoded
    assert codec.decode(bytes.fromhex(encoded)) == value


@given(st.binary(), st.binary())
def test_encoded_bytes_sort_as_the_bytes(one: bytes, other: bytes) -> None:
    check_order(Bytes, one, other)


@given(st.text(), st.text())
def test_encoded_text_sorts_as_the_text(one: str, other: str) -> None:
    check_order(Str, one, other)


def test_text_sorts_by_code_point_beyond_the_first_plane() -> None:
    # UTF-16 would sort these the other way round.
    check_order(Str, "\uffff", "\U00010000")


@given(I64_NUMBERS, I64_NUMBERS)
def test_encoded_signed_numbers_sort_as_the_numbers(one: int, other: int) -> None:
    check_order(I64, one, other)


@given(U64_NUMBERS, U64_NUMBERS)
def test_encoded_unsigned_numbers_sort_as_the_numbers(one: int, other: int) -> None:
    check_order(U64, one, other)


def check_order(codec: Codec[Any], one: Any, other: Any) -> None:
    first, second = codec.encode(one), codec.encode(other)
    assert (first < second, first == second) == (one < other, one == other)
    assert codec.decode(first) == one
    assert codec.decode(second) == other


@given(st.floats())
def test_every_double_comes_back_bit_by_bit(number: float) -> None:
    assert struct.pack(">d", Float.decode(Float.encode(number))) == struct.pack(">d", number)


@given(st.integers())
def test_a_float_codec_takes_an_int_only_if_it_is_not_rounded(number: int) -> None:
    try:
        decoded = Float.decode(Float.encode(number))
    except CodecError:
        assert int(float(number)) != number
    else:
        assert decoded == number


def test_plain_bytes_are_passed_on_without_a_copy() -> None:
    value = bytes(range(100))
    assert Bytes.encode(value) is value
    assert Bytes.decode(value) is value


@pytest.mark.parametrize("kind", [bytearray, memoryview, type("Own", (bytes,), {})])
def test_other_kinds_of_bytes_are_copied(kind: Callable[[bytes], Any]) -> None:
    encoded = Bytes.encode(kind(b"abc"))
    assert type(encoded) is bytes
    assert encoded == b"abc"


@pytest.mark.parametrize(
    ("codec", "value"),
    [
        (I64, Level.HIGH),
        (U64, Level.HIGH),
        (Float, Level.HIGH),
        (Float, Metres(1.5)),
        (Str, Colour.RED),
    ],
)
def test_an_instance_of_a_subclass_comes_back_as_its_base_type(
    codec: Codec[Any], value: Any
) -> None:
    decoded = codec.decode(codec.encode(value))
    assert decoded == value
    assert type(decoded) in (int, float, str)


RELEASED = memoryview(b"abc")
RELEASED.release()


@pytest.mark.parametrize(
    ("codec", "value", "reason"),
    [
        (Bytes, "text", "a value is bytes, not str "),
        (Bytes, 3, "a value is bytes, not int "),
        (Bytes, RELEASED, "released"),
        (Str, b"bytes", "a value is str, not bytes "),
        (Str, None, "a value is str, not NoneType "),
        (Str, "\ud800", "surrogates not allowed"),
        (I64, True, "a value is int, not bool "),
        (I64, 1.0, "a value is int, not float "),
        (I64, 2**63, "not within -2"),
        (I64, -(2**63) - 1, "not within -2"),
        (U64, False, "a value is int, not bool "),
        (U64, -1, "not within 0"),
        (U64, 2**64, "not within 0"),
        (U64, "1", "a value is int, not str "),
        (Float, True, "a value is float, not bool "),
        (Float, "1.0", "a value is float, not str "),
        (Float, 2**53 + 1, "rounded"),
        (Float, 10**400, "rounded"),
    ],
)
def test_a_value_of_another_kind_is_refused(codec: Codec[Any], value: Any, reason: str) -> None:
    with pytest.raises(CodecError, match=reason) as caught:
        codec.encode(value)
    assert str(caught.value).startswith((f"{codec.name}: $: ", f"{codec.name}: a value is "))
    assert caught.value.hint


@pytest.mark.parametrize("codec", [I64, U64, Float])
def test_a_number_too_long_to_print_is_refused_without_printing_it(codec: Codec[Any]) -> None:
    with pytest.raises(CodecError, match=f"^{codec.name}: "):
        codec.encode(10**5000)


@pytest.mark.parametrize("codec", [I64, U64, Float])
@pytest.mark.parametrize("size", [0, 7, 9])
def test_bytes_of_another_length_are_not_a_number(codec: Codec[Any], size: int) -> None:
    with pytest.raises(CodecError, match=f"{size} bytes, not 8"):
        codec.decode(bytes(size))


@given(st.binary())
def test_bytes_decode_to_text_that_encodes_to_them_or_not_at_all(data: bytes) -> None:
    try:
        text = Str.decode(data)
    except CodecError:
        return
    assert Str.encode(text) == data


class Shy:
    def __repr__(self) -> str:
        raise RuntimeError("ask somebody else")


LARGE = [("x" * 10**6,), [[["y" * 99] * 9] * 9] * 9, 10**5_000, [10**5_000], Shy(), {1: Shy()}]


@pytest.mark.parametrize("value", LARGE, ids=range(len(LARGE)))
def test_an_error_shows_the_beginning_of_a_value(value: object) -> None:
    with pytest.raises(CodecError, match="a value is bytes, not ") as caught:
        Bytes.encode(value)  # type: ignore[arg-type]  # the error is the point
    assert len(str(caught.value)) < 150
