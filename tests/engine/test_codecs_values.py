"""UUIDs, moments, days, spans of time and decimals, as keys and as values."""

from __future__ import annotations

import decimal
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from typing import Any, NoReturn
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, example, given, strategies as st

from tidelog.engine.codecs import decimals, moments
from tidelog.engine.codecs.registry import Codec, Date, Datetime, Dec, DecKey, Timedelta, Uuid
from tidelog.errors import CodecError

ZONES = st.sampled_from(
    [UTC, timezone(timedelta(hours=14)), timezone(timedelta(hours=-12, seconds=-7, microseconds=3))]
)
MOMENTS = st.datetimes(
    datetime.fromisoformat("0001-01-02"), datetime.fromisoformat("9999-12-30"), timezones=ZONES
)
SPANS = st.timedeltas(timedelta(microseconds=-(2**63)), timedelta(microseconds=2**63 - 1))
NUMBERS = st.decimals(allow_nan=False) | st.decimals(-200, 200, places=2)
HUGE = st.builds(
    lambda digits, exponent, sign: Decimal((sign, digits, exponent)),
    st.lists(st.integers(0, 9), min_size=1, max_size=40).map(tuple),
    st.integers(-(10**15), 10**15) | st.integers(-30, 30),
    st.sampled_from([0, 1]),
)

KEYS: list[tuple[Codec[Any], st.SearchStrategy[Any]]] = [
    (Uuid, st.uuids()),
    (Datetime, MOMENTS),
    (Date, st.dates()),
    (Timedelta, SPANS),
    (DecKey, NUMBERS | HUGE),
]
ALL = [*KEYS, (Dec, NUMBERS | HUGE)]


@pytest.mark.parametrize(
    ("codec", "value", "encoded"),
    [
        (Uuid, UUID(int=258), "00000000000000000000000000000102"),
        (Datetime, datetime(1970, 1, 1, tzinfo=UTC), "8000000000000000"),
        (Datetime, datetime(1970, 1, 1, 0, 0, 1, 2, tzinfo=UTC), "80000000000f4242"),
        (Datetime, datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), "7fffffffffffffff"),
        (Date, date(1970, 1, 2), "8000000000000001"),
        (Date, date(1969, 12, 31), "7fffffffffffffff"),
        (Timedelta, timedelta(seconds=-1), "7ffffffffff0bdc0"),
        (Dec, Decimal("-1.50"), b"-1.50".hex()),
        (Dec, Decimal("1E+3"), b"1E+3".hex()),
        (Dec, Decimal("-sNaN7"), b"-sNaN7".hex()),
        # By the published rules: head, exponent, two digits a byte.
        (DecKey, Decimal(0), "15"),
        (DecKey, Decimal("0.1"), "1714"),
        (DecKey, Decimal(1), "1802"),
        (DecKey, Decimal("9.99"), "1813c6"),
        (DecKey, Decimal(100), "1902"),
        (DecKey, Decimal("-1.5"), "12fc9b"),
        (DecKey, Decimal("-0.001"), "1401eb"),
        (DecKey, Decimal("1E+40"), "221502"),
        (DecKey, Decimal("-1E+40"), "08eafd"),
        (DecKey, Decimal("-Infinity"), "07"),
        (DecKey, Decimal("Infinity"), "23"),
    ],
)
def test_a_value_has_the_documented_bytes(codec: Codec[Any], value: Any, encoded: str) -> None:
    assert codec.encode(value).hex() == encoded
    assert repr(codec.decode(bytes.fromhex(encoded))) == repr(value)


@pytest.mark.parametrize(("codec", "values"), ALL)
@given(data=st.data())
def test_what_comes_back_equals_what_went_in(
    codec: Codec[Any], values: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    value = data.draw(values)
    back = codec.decode(codec.encode(value))
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize(("codec", "values"), KEYS)
@given(data=st.data())
def test_encoded_keys_sort_as_the_values(
    codec: Codec[Any], values: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    one, other = data.draw(values), data.draw(values)
    first, second = codec.encode(one), codec.encode(other)
    assert (first < second, first == second) == (one < other, one == other)


@pytest.mark.parametrize(("codec", "values"), ALL)
@given(data=st.data())
def test_bytes_that_were_cut_or_changed_are_refused_or_mean_another_value(
    codec: Codec[Any], values: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    encoded = bytearray(codec.encode(data.draw(values)))
    at = data.draw(st.integers(0, len(encoded) - 1))
    check_canonical(codec, bytes(encoded[:at]))
    check_canonical(codec, bytes(encoded) + b"\x00")
    encoded[at] ^= data.draw(st.integers(1, 255))
    check_canonical(codec, bytes(encoded))


@pytest.mark.parametrize("codec", [codec for codec, _ in ALL])
@given(data=st.binary(max_size=20))
def test_any_bytes_are_refused_or_the_only_form_of_a_value(codec: Codec[Any], data: bytes) -> None:
    check_canonical(codec, data)


def check_canonical(codec: Codec[Any], data: bytes) -> None:
    try:
        value = codec.decode(data)
    except CodecError:
        return
    assert codec.encode(value) == data


@pytest.mark.parametrize(
    ("codec", "value", "message"),
    [
        (Uuid, "00000000-0000-0000-0000-000000000000", "uuid: a value is UUID, not str"),
        (Datetime, date(2026, 1, 1), "datetime: a value is datetime, not date"),
        (
            Datetime,
            datetime.fromisoformat("2026-01-01"),
            r"datetime: \$: a datetime without a time zone is",
        ),
        (Datetime, datetime.min.replace(tzinfo=timezone(timedelta(hours=1))), "beyond the years"),
        (Datetime, datetime.max.replace(tzinfo=timezone(-timedelta(hours=1))), "beyond the years"),
        (Date, datetime(2026, 1, 1, tzinfo=UTC), "date: a value is date, not datetime"),
        (Timedelta, 5, "timedelta: a value is timedelta, not int"),
        (Timedelta, timedelta(microseconds=2**63), r"not within 2\*\*63 microseconds"),
        (Timedelta, timedelta(microseconds=-(2**63) - 1), r"not within 2\*\*63 microseconds"),
        (Timedelta, timedelta.max, r"not within 2\*\*63 microseconds"),
        (Timedelta, timedelta.min, r"not within 2\*\*63 microseconds"),
        (Dec, 1.5, "decimal: a value is Decimal, not float"),
        (DecKey, 1, "decimal-key: a value is Decimal, not int"),
        (DecKey, Decimal("NaN"), "NaN has no order"),
        (DecKey, Decimal("sNaN"), "NaN has no order"),
    ],
)
def test_a_value_that_cannot_be_taken_is_refused(
    codec: Codec[Any], value: Any, message: str
) -> None:
    with pytest.raises(CodecError, match=message):
        codec.encode(value)


# ------------------------------------------------------------------ moments


def test_a_moment_without_a_zone_is_told_what_to_do() -> None:
    with pytest.raises(CodecError) as caught:
        Datetime.encode(datetime.fromisoformat("2026-01-01"))
    assert "replace(tzinfo=UTC)" in caught.value.hint


def test_a_zone_that_does_not_know_is_no_zone() -> None:
    class Nowhere(tzinfo):
        def utcoffset(self, _moment: datetime | None) -> None:
            return None

        dst = tzname = utcoffset

    with pytest.raises(CodecError, match="without a time zone"):
        Datetime.encode(datetime(2026, 1, 1, tzinfo=Nowhere()))


def test_the_same_moment_is_one_key_in_whatever_zone_it_is_told() -> None:
    berlin = datetime(2026, 11, 21, 16, 30, tzinfo=ZoneInfo("Europe/Berlin"))
    assert Datetime.encode(berlin) == Datetime.encode(berlin.astimezone(UTC))
    assert Datetime.decode(Datetime.encode(berlin)).isoformat() == "2026-11-21T15:30:00+00:00"


def test_the_hour_that_comes_twice_is_two_moments() -> None:
    # Python calls neither equal to its moment in UTC: only `fold` tells the two apart.
    first = datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))
    back = Datetime.decode(Datetime.encode(first))
    second = Datetime.decode(Datetime.encode(first.replace(fold=1)))
    assert (back.hour, second.hour) == (0, 1)


def test_nanoseconds_are_refused_not_rounded() -> None:
    class Span(timedelta):
        nanoseconds = 0

        def __floordiv__(self, _other: object) -> NoReturn:
            raise AssertionError("what a subclass makes of arithmetic is its own")

    class Stamp(datetime):
        nanosecond = 0

        def __sub__(self, other: Any) -> Any:
            return Span(seconds=super().__sub__(other).total_seconds())

    moment = Stamp(2026, 1, 1, tzinfo=UTC)
    assert Datetime.decode(Datetime.encode(moment)) == moment
    span = Span(seconds=1)
    assert Timedelta.decode(Timedelta.encode(span)) == span
    Stamp.nanosecond = Span.nanoseconds = 1
    for codec, value in ((Datetime, moment), (Timedelta, span)):
        with pytest.raises(CodecError, match="it has nanoseconds"):
            codec.encode(value)  # type: ignore[arg-type]  # each has its own


@given(MOMENTS, st.dates(), SPANS)
@example(datetime(1, 1, 1, tzinfo=UTC), date.min, timedelta(microseconds=-(2**63)))
@example(datetime(9999, 1, 1, tzinfo=UTC), date.max, timedelta(0))
def test_the_text_of_a_time_means_the_same(moment: datetime, day: date, span: timedelta) -> None:
    assert moments.text_moment(moments.moment_text(moment)) == moment
    assert moments.text_day(moments.day_text(day)) == day
    assert moments.text_span(moments.span_text(span)) == span


@pytest.mark.parametrize("text", ["", "1.", ".5", "1.1234567", "1e3", "٣", "9" * 20, "--1", "1 "])
def test_what_is_no_number_of_seconds_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not "):
        moments.text_span(text)


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (moments.text_moment, "2026-11-21T15:30:00+00:00"),
        (moments.text_moment, "2026-11-21T16:30:00+01:00"),
        (moments.text_moment, "2026-11-21 15:30:00Z"),
        (moments.text_moment, "20261121T153000Z"),
        (moments.text_moment, "2026-11-21T15:30:00.500Z"),
        (moments.text_moment, "2026-11-21T15:30:00"),
        (moments.text_day, "20261121"),
        (moments.text_day, "2026-W47-6"),
    ],
)
def test_other_spellings_of_a_time_are_refused(parse: Callable[[str], object], text: str) -> None:
    with pytest.raises(ValueError, match=r"not |without a time zone"):
        parse(text)


# ------------------------------------------------------------------ decimals


@given(st.decimals() | HUGE)
def test_a_decimal_keeps_its_digits_its_exponent_and_its_payload(value: Decimal) -> None:
    assert Dec.decode(Dec.encode(value)).as_tuple() == value.as_tuple()


def test_equal_numbers_are_one_key_and_come_back_with_the_fewest_digits() -> None:
    for text, short in [
        ("0.10", "0.1"),
        ("1E+1", "10"),
        ("10.00", "10"),
        ("-0", "0"),
        ("0E+9", "0"),
        ("1" + "0" * 27, "1" + "0" * 27),
        ("1" + "0" * 28, "1E+28"),
    ]:
        key = DecKey.encode(Decimal(text))
        assert key == DecKey.encode(Decimal(short))
        assert str(DecKey.decode(key)) == short


def test_no_context_changes_what_is_stored() -> None:
    value = Decimal("1.2345678901234567890123456789012345E+40")
    text, key = Dec.encode(value), DecKey.encode(value)
    with decimal.localcontext() as context:
        context.prec, context.capitals, context.Emax = 3, 0, 5
        context.traps[decimal.InvalidOperation] = False
        assert (Dec.encode(value), DecKey.encode(value)) == (text, key)
        assert Dec.decode(text) == DecKey.decode(key) == value
        for codec, data in (
            (Dec, b"1E+9999999999999999999"),
            (DecKey, b"\x22" + b"\xff" * 9 + b"\x02"),
        ):
            with pytest.raises(CodecError):
                codec.decode(data)


@pytest.mark.parametrize("text", ["", "1_000", " 1", "1e3", "0x1", "٣", "01", "+1", "1.E3", "nan"])
def test_text_that_no_decimal_writes_is_refused(text: str) -> None:
    with pytest.raises(CodecError, match="decimal: the bytes are not an encoded value"):
        Dec.decode(text.encode())


@pytest.mark.parametrize(
    ("number", "written"),
    [
        (240, "f0"),
        (241, "f101"),
        (2287, "f8ff"),
        (2288, "f90000"),
        (67823, "f9ffff"),
        (67824, "fa0108f0"),
        (2**64 - 1, "ff" * 9),
    ],
)
def test_the_varints_are_those_of_sqlite(number: int, written: str) -> None:
    assert decimals._varint(number).hex() == written


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
@example(240, 241)
@example(2287, 2288)
@example(67823, 67824)
@example(2**24 - 1, 2**24)
def test_the_varints_sort_and_come_back(one: int, other: int) -> None:
    first, second = decimals._varint(one), decimals._varint(other)
    assert (first < second) == (one < other)
    assert decimals._size(first, 0, flipped=False) == (one, len(first))
    assume(one != other)
    assert first != second
