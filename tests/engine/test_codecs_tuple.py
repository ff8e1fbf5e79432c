from __future__ import annotations

import math
import struct
from collections import namedtuple
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import IntEnum, StrEnum
from typing import Any
from uuid import UUID

import pytest
from hypothesis import assume, example, given, strategies as st

from tidelog.engine.codecs.registry import SingleFloat, Tuple
from tidelog.engine.codecs.tuples import TUPLE_DEPTH_MAX
from tidelog.errors import CodecError

Point = namedtuple("Point", ["x", "y"])


class Level(IntEnum):
    HIGH = 300


class Colour(StrEnum):
    RED = "red"


def nested(depth: int) -> tuple[Any, ...]:
    value: tuple[Any, ...] = ()
    for _ in range(depth):
        value = (value,)
    return value


# ------------------------------------------------------------------ the published layout

VECTORS = [
    # The test cases of the published specification.
    ((b"foo\x00bar",), "01 66 6f 6f 00 ff 62 61 72 00"),
    (("F\u00d4O\u0000bar",), "02 46 c3 94 4f 00 ff 62 61 72 00"),
    (((b"foo\x00bar", None, ()),), "05 01 66 6f 6f 00 ff 62 61 72 00 00 ff 05 00 00"),
    ((-5551212,), "11 ab 4b 93"),
    ((-1,), "13 fe"),
    ((SingleFloat(-42.0),), "20 3d d7 ff ff"),
    # One or more for each type code.
    ((), ""),
    ((None,), "00"),
    ((None, None), "00 00"),
    ((b"",), "01 00"),
    (("",), "02 00"),
    (("hello",), "02 68 65 6c 6c 6f 00"),
    (((),), "05 00"),
    (((None,),), "05 00 ff 00"),
    (((1, (2,)), 3), "05 15 01 05 15 02 00 00 15 03"),
    ((0,), "14"),
    ((1,), "15 01"),
    ((255,), "15 ff"),
    ((256,), "16 01 00"),
    ((2**32,), "19 01 00 00 00 00"),
    ((2**64 - 1,), "1c ff ff ff ff ff ff ff ff"),
    ((2**64,), "1d 09 01 00 00 00 00 00 00 00 00"),
    ((-255,), "13 00"),
    ((-256,), "12 fe ff"),
    ((-(2**64) + 1,), "0c 00 00 00 00 00 00 00 00"),
    ((-(2**64),), "0b f6 fe ff ff ff ff ff ff ff ff"),
    ((SingleFloat(0.0),), "20 80 00 00 00"),
    ((0.0,), "21 80 00 00 00 00 00 00 00"),
    ((-42.0,), "21 3f ba ff ff ff ff ff ff"),
    ((math.inf,), "21 ff f0 00 00 00 00 00 00"),
    ((-math.inf,), "21 00 0f ff ff ff ff ff ff"),
    ((False, True), "26 27"),
    # From the codes for types of one's own.
    ((Decimal("-1.50"), Decimal(0)), "40 12 fc 9b 40 15"),
    ((date(1970, 1, 2),), "41 80 00 00 00 00 00 00 01"),
    ((datetime(1970, 1, 1, microsecond=1, tzinfo=UTC),), "42 80 00 00 00 00 00 00 01"),
    ((timedelta(microseconds=-1),), "43 7f ff ff ff ff ff ff ff"),
    (
        (UUID("00112233-4455-6677-8899-aabbccddeeff"),),
        "30 00 11 22 33 44 55 66 77 88 99 aa bb cc dd ee ff",
    ),
]


@pytest.mark.parametrize(("value", "encoded"), VECTORS)
def test_a_tuple_has_the_published_bytes(value: tuple[Any, ...], encoded: str) -> None:
    assert Tuple.encode(value).hex(" ") == encoded
    assert exact(Tuple.decode(bytes.fromhex(encoded))) == exact(value)


def exact(value: Any) -> Any:
    """The value with its types, since to Python 1, 1.0 and True are equal."""
    return tuple(map(exact, value)) if isinstance(value, tuple) else (type(value), value)


# ------------------------------------------------------------------ order

NUMBERS = st.one_of(
    st.integers(-(2**70), 2**70),
    st.integers(-300, 300),
    st.builds(
        lambda bits, off, sign: sign * (2**bits + off),
        st.integers(0, 2039),
        st.integers(-2, 1),
        st.sampled_from([1, -1]),
    ),
)
SINGLES = st.floats(width=32, allow_nan=False).map(SingleFloat)
# Few different characters, among them those that are escaped, so that many strings share a prefix.
TEXTS = st.text() | st.text("\x00\x01ab\x7f\u00ff\uffff\U00010000", max_size=4)
BINARIES = st.binary() | st.lists(st.sampled_from([0, 1, 0xFE, 0xFF]), max_size=4).map(bytes)
ITEMS = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        NUMBERS,
        st.floats(allow_nan=False),
        SINGLES,
        TEXTS,
        BINARIES,
        st.uuids(),
        st.decimals(allow_nan=False),
        st.dates(),
        st.datetimes(timezones=st.just(UTC)),
        st.timedeltas(timedelta(-(10**8)), timedelta(10**8)),
    ),
    lambda items: st.lists(items, max_size=3).map(tuple),
    max_leaves=6,
)
TUPLES = st.lists(ITEMS, max_size=4).map(tuple)

ORDER_OF_TYPES: list[type] = [
    type(None), bytes, str, tuple, int, SingleFloat, float, bool, UUID,
    Decimal, date, datetime, timedelta,
]  # fmt: skip


def natural(item: Any) -> Any:
    """The documented order as a sort key: by type, then by value, tuples element by element."""
    rank = ORDER_OF_TYPES.index(type(item))
    if isinstance(item, tuple):
        return (rank, tuple(map(natural, item)))
    return (rank, 0 if item is None else item)


@pytest.mark.slow
@given(TUPLES, TUPLES)
@example((1,), (1, None))
@example(((1,), None), ((1, None),))
@example(("a", 1), ("a\x00", 0))
@example((b"\x00",), (b"\x00\xff",))
@example((b"",), (b"\x00",))
@example((-0.0,), (0.0,))
@example((2**64 - 1,), (2**64,))
def test_encoded_tuples_sort_as_the_tuples(one: tuple[Any, ...], other: tuple[Any, ...]) -> None:
    first, second = Tuple.encode(one), Tuple.encode(other)
    expected = (natural(one) < natural(other), natural(one) == natural(other))
    assert (first < second, first == second) == expected


@pytest.mark.slow
@given(TUPLES, ITEMS, ITEMS)
def test_tuples_with_a_common_beginning_sort_by_what_follows(
    common: tuple[Any, ...], one: Any, other: Any
) -> None:
    first, second = Tuple.encode((*common, one)), Tuple.encode((*common, other))
    assert (first < second) == (natural(one) < natural(other))
    assert Tuple.encode(common) < min(first, second)


@given(TUPLES)
def test_a_tuple_comes_back_with_its_types(value: tuple[Any, ...]) -> None:
    assert exact(Tuple.decode(Tuple.encode(value))) == exact(value)


def test_negative_zero_is_stored_as_its_equal() -> None:
    assert Tuple.encode((-0.0,)) == Tuple.encode((0.0,))
    assert Tuple.encode((SingleFloat(-0.0),)) == Tuple.encode((SingleFloat(0.0),))
    (stored,) = Tuple.decode(Tuple.encode((-0.0,)))
    assert math.copysign(1, stored) == 1


def test_equal_numbers_of_different_types_are_different_keys() -> None:
    encoded = {Tuple.encode(key) for key in [(1,), (1.0,), (SingleFloat(1.0),), (True,)]}
    assert len(encoded) == 4


# ------------------------------------------------------------------ prefixes


@pytest.mark.slow
@given(TUPLES, TUPLES)
@example(("a",), ("a\x00b",))
@example(((1,),), ((1, None),))
@example((), ())
def test_a_prefix_range_holds_the_tuples_that_begin_so(
    prefix: tuple[Any, ...], key: tuple[Any, ...]
) -> None:
    start, stop = Tuple.prefix_range(prefix)
    assert stop is not None
    assert (start <= Tuple.encode(key) < stop) == (natural(key[: len(prefix)]) == natural(prefix))


@pytest.mark.slow
@given(TUPLES, TUPLES)
def test_a_prefix_range_holds_every_longer_tuple(
    prefix: tuple[Any, ...], rest: tuple[Any, ...]
) -> None:
    start, stop = Tuple.prefix_range(prefix)
    assert stop is not None
    assert start <= Tuple.encode(prefix + rest) < stop


# ------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("text", r"a value is tuple, not str \('text'\)"),
        ([1], r"a value is tuple, not list \(\[1\]\)"),
        ((1, [2]), r"\$\[1\]: list is not supported"),
        ((1, ("a", {2})), r"\$\[1\]\[1\]: set is not supported"),
        ((bytearray(b"a"),), r"\$\[0\]: bytearray is not supported"),
        (("", 1.5j), r"\$\[1\]: complex is not supported"),
        ((math.nan,), r"\$\[0\]: NaN has no order"),
        (((), ((-math.nan,),)), r"\$\[1\]\[0\]\[0\]: NaN has no order"),
        ((1, Decimal("NaN")), r"\$\[1\]: NaN has no order"),
        ((datetime.fromisoformat("2026-01-01"),), r"\$\[0\]: a datetime without a time zone"),
        ((timedelta.max,), r"\$\[0\]: the span is not within 2\*\*63"),
        (("\udc00",), r"\$\[0\]: .* surrogates not allowed"),
        ((256**255,), r"\$\[0\]: the int takes 256 bytes, more than 255"),
        ((-(256**255),), r"\$\[0\]: the int takes 256 bytes, more than 255"),
        (nested(TUPLE_DEPTH_MAX + 1), r"\$(\[0\]){33}: tuples are nested more than 32 deep"),
    ],
)
def test_a_refusal_names_the_element(value: Any, message: str) -> None:
    with pytest.raises(CodecError, match=f"^tuple: {message}"):
        Tuple.encode(value)


def test_the_largest_ints_and_the_deepest_tuple_come_back() -> None:
    for value in [(256**255 - 1,), (1 - 256**255,), nested(TUPLE_DEPTH_MAX)]:
        assert Tuple.decode(Tuple.encode(value)) == value


def test_instances_of_subclasses_come_back_as_their_base_types() -> None:
    key = (Level.HIGH, Colour.RED, Point(1, 2))
    assert Tuple.encode(key) == Tuple.encode((300, "red", (1, 2)))
    assert Tuple.encode(Point(1, 2)) == Tuple.encode((1, 2))


@pytest.mark.parametrize("value", [math.nan, 1e39, "1", None])
def test_a_single_float_takes_only_numbers_of_its_range(value: Any) -> None:
    with pytest.raises(CodecError, match="SingleFloat"):
        SingleFloat(value)


def test_a_single_float_is_rounded_when_it_is_made() -> None:
    assert SingleFloat(0.1) == SingleFloat(struct.unpack(">f", struct.pack(">f", 0.1))[0])
    assert SingleFloat(1) < SingleFloat(1.5) < SingleFloat(math.inf)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("01 61", "does not end"),
        ("02 61 00 ff", "does not end"),
        ("02 ff 00", "utf-8"),
        ("05 15 01", "nested tuple does not end"),
        ("05 00 ff", "nested tuple does not end"),
        ("05 " * 33 + "00 " * 33, "nested more than 32 deep"),
        ("15", "cut short"),
        ("16 00 01", "shorter form"),
        ("13", "1 bytes expected, 0 left"),
        ("13 ff", "shorter form"),
        ("12 ff 00", "shorter form"),
        ("1d", "1 bytes expected"),
        ("1d 08 01 02 03 04 05 06 07 08", "shorter form"),
        ("1d 09 00 02 03 04 05 06 07 08 09", "shorter form"),
        ("1d 09 01", "9 bytes expected, 1 left"),
        ("0b f7 01 02 03 04 05 06 07 08", "shorter form"),
        ("0b f6 ff 02 03 04 05 06 07 08 09", "shorter form"),
        ("20 80 00 00", "4 bytes expected, 3 left"),
        ("20 7f ff ff ff", "-0.0"),
        ("20 ff c0 00 00", "NaN"),
        ("21 80", "8 bytes expected, 1 left"),
        ("21 7f ff ff ff ff ff ff ff", "-0.0"),
        ("21 ff f8 00 00 00 00 00 00", "NaN"),
        ("21 00 00 00 00 00 00 00 00", "NaN"),
        ("30 00", "16 bytes expected, 1 left"),
        ("40", "no number begins so"),
        ("40 17", "cut short"),
        ("40 18 03 00", "shorter form"),
        ("41 80", "8 bytes expected, 1 left"),
        ("41 ff 00 00 00 00 00 00 00", "beyond the years"),
        ("42 ff 00 00 00 00 00 00 00", "beyond the years"),
        ("44", "type code 44 is not supported"),
        ("33 00 00 00 00 00 00 00 00 00 00 00 00", "versionstamps are not supported"),
        ("32 00 00 00 00 00 00 00 00 00 00", "versionstamps are not supported"),
        ("03 04", "type code 03 is not supported"),
        ("22", "type code 22 is not supported"),
        ("ff", "type code ff is not supported"),
    ],
)
def test_bytes_that_are_no_tuple_are_refused(data: str, reason: str) -> None:
    with pytest.raises(CodecError, match=f"^tuple: the bytes are not an encoded value.*{reason}"):
        Tuple.decode(bytes.fromhex(data))


@pytest.mark.slow
@given(TUPLES, st.data())
def test_damaged_bytes_are_refused_or_encode_another_tuple(
    value: tuple[Any, ...], data: st.DataObject
) -> None:
    encoded = bytearray(Tuple.encode(value))
    assume(encoded)
    at = data.draw(st.integers(0, len(encoded) - 1))
    encoded[at] ^= data.draw(st.integers(1, 255))
    check_canonical(bytes(encoded))
    check_canonical(bytes(encoded[:at]))


@given(st.binary())
def test_any_bytes_are_refused_or_the_only_form_of_a_tuple(data: bytes) -> None:
    check_canonical(data)


def check_canonical(data: bytes) -> None:
    try:
        value = Tuple.decode(data)
    except CodecError:
        return
    assert Tuple.encode(value) == data


def test_a_subclass_of_a_moment_is_no_day() -> None:
    class Stamp(datetime):
        pass

    class Day(date):
        pass

    plain = (datetime(2026, 11, 21, 15, 30, tzinfo=UTC), date(2026, 11, 21))
    given = (Stamp(2026, 11, 21, 15, 30, tzinfo=UTC), Day(2026, 11, 21))
    assert Tuple.encode(given) == Tuple.encode(plain)
