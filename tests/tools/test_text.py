"""Keys, values and times as text: what goes in comes out."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, strategies as st

from tidelog.affinity.errors import CodecError, UsageError
from tidelog.engine.codecs import registry as codecs
from tidelog.engine.codecs.byte_text import bytes_shown, parse_bytes, shown_bytes
from tidelog.engine.codecs.registry import Codec, reading_codec
from tidelog.tools.shell import text

VALUES: list[tuple[Codec[Any], Any, str]] = [
    (codecs.Str, "apples", "apples"),
    (codecs.Str, "", ""),
    (codecs.Str, "two\nlines", "hex:74776f0a6c696e6573"),
    (codecs.Str, "hex:61", "hex:6865783a3631"),
    (codecs.Bytes, b"text", "text"),
    (codecs.Bytes, b"\xff\x00", "hex:ff00"),
    (codecs.Bytes, b"hex:61", "hex:6865783a3631"),
    (codecs.I64, -5, "-5"),
    (codecs.U64, 2**64 - 1, "18446744073709551615"),
    (codecs.Float, 0.5, "0.5"),
    (codecs.Tuple, ("DE", -5), '["DE", -5]'),
    (codecs.Tuple, ("a", (1, 2)), '["a", [1, 2]]'),
    (codecs.Tuple, ("a", (date(2026, 1, 31),)), '["a", [{"date": "2026-01-31"}]]'),
    (codecs.Tuple, (b"a", b"\xff"), '[{"bytes": "a"}, {"bytes": "hex:ff"}]'),
    (codecs.Tuple, (uuid.UUID(int=5),), '[{"uuid": "00000000-0000-0000-0000-000000000005"}]'),
    (codecs.Tuple, (Decimal("-0.5"), -0.5), '[{"decimal": "-0.5"}, -0.5]'),
    (codecs.Tuple, (Decimal("Infinity"),), '[{"decimal": "Infinity"}]'),
    (codecs.Tuple, (datetime(2026, 1, 1, tzinfo=UTC),), '[{"datetime": "2026-01-01T00:00:00Z"}]'),
    (codecs.Tuple, (timedelta(seconds=-1.5),), '[{"timedelta": "-1.5"}]'),
    (codecs.Tuple, (float("-inf"), None, True), '[{"float": "-inf"}, null, true]'),
    (codecs.Tuple, (codecs.SingleFloat(0.1),), '[{"single": "0.10000000149011612"}]'),
    (codecs.Msgpack, {"a": [1, None]}, '{"a": [1, null]}'),
    (codecs.Json, "text", '"text"'),
    (codecs.Uuid, uuid.UUID(int=5), "00000000-0000-0000-0000-000000000005"),
    (codecs.Datetime, datetime(2026, 1, 1, 0, 0, 1, 5, UTC), "2026-01-01T00:00:01.000005Z"),
    (codecs.Date, date(2026, 1, 31), "2026-01-31"),
    (codecs.Timedelta, timedelta(days=-1, microseconds=-5), "-86400.000005"),
    (codecs.Dec, Decimal("10.00"), "10.00"),
    (codecs.DecKey, Decimal("-0.5"), "-0.5"),
]


def test_every_codec_that_comes_with_tidelog_has_its_text() -> None:
    known = {codec.name for codec in vars(codecs).values() if isinstance(codec, Codec)}
    assert {codec.name for codec, _, _ in VALUES} == known


@pytest.mark.parametrize(("codec", "value", "shown"), VALUES)
def test_text_of_a_value_reads_back(codec: Codec[Any], value: Any, shown: str) -> None:
    encoded = codec.encode(value)
    assert text.inline(encoded, codec) == shown
    assert text.parse_value(shown, codec, "value") == encoded


@pytest.mark.parametrize(
    ("given", "wanted"),
    [("utf8:hex:61", b"hex:61"), ("hex:6162", b"ab"), ("b64:YWI=", b"ab"), ("hex:", b""),
     ("plain", None), ("HEX:61", None)],
)  # fmt: skip
def test_bytes_on_the_command_line(given: str, wanted: bytes | None) -> None:
    assert parse_bytes(given) == wanted


@pytest.mark.parametrize("given", ["hex:6", "hex:zz", "b64:a", "b64:***"])
def test_bytes_that_are_none(given: str) -> None:
    with pytest.raises(UsageError, match="is not"):
        parse_bytes(given)


@pytest.mark.parametrize(
    ("codec", "given"),
    [(codecs.I64, "x"), (codecs.I64, ""), (codecs.Tuple, "5"), (codecs.Tuple, "[5"),
     (codecs.Tuple, "[{}]"), (codecs.Tuple, '[{"day": "2026-01-01"}]'),
     (codecs.Tuple, '[[{"date": "soon"}]]'), (codecs.Tuple, '[{"decimal": 1.5}]'),
     (codecs.Tuple, '[{"date": "2026-01-01", "uuid": "5"}]'), (codecs.Tuple, '[{"uuid": "5"}]'),
     (codecs.Msgpack, "text"), (codecs.Json, "NaN"), (codecs.Json, "[" * 100_000),
     (codecs.Float, "much"), (codecs.Uuid, "5"), (codecs.Uuid, "1234_678" + "1" * 24),
     (codecs.Datetime, "2026-01-01T00:00:00"),
     (codecs.Datetime, "soon"), (codecs.Date, "2026-13-01"), (codecs.Timedelta, "1 day"),
     (codecs.Dec, "1,5"), (codecs.DecKey, "")],
)  # fmt: skip
def test_text_that_a_codec_does_not_take(codec: Codec[Any], given: str) -> None:
    with pytest.raises(UsageError, match=f"codec {codec.name}"):
        text.parse_value(given, codec, "value")


@pytest.mark.parametrize(
    ("codec", "given"), [(codecs.I64, "hex:00"), (codecs.Str, "hex:ff"), (codecs.U64, "-1")]
)
def test_bytes_and_numbers_that_a_codec_refuses(codec: Codec[Any], given: str) -> None:
    with pytest.raises(CodecError):
        text.parse_value(given, codec, "key")


def test_a_codec_of_ones_own_takes_bytes_only() -> None:
    own = Codec(name="acme.x", encode=bytes, decode=bytes)
    assert text.parse_value("hex:61", own, "key") == b"a"
    with pytest.raises(UsageError, match="no plain text"):
        text.parse_value("a", own, "key")


@pytest.mark.parametrize(("codec", "value", "shown"), VALUES[-6:])
def test_json_tells_these_as_text(codec: Codec[Any], value: Any, shown: str) -> None:
    assert text.value_of_json(shown, codec) == value
    assert text.plain(value) == shown


@dataclass
class Box:
    size: Decimal
    name: str = ""


def test_a_dataclass_is_a_document() -> None:
    codec = codecs.dataclass(Box)
    data = codec.encode(Box(Decimal("1.50")))
    assert text.inline(data, codec) == '{"size": "1.50", "name": ""}'
    assert text.parse_value('{"size": "1.50", "name": ""}', codec, "value") == data
    assert text.value_of_json({"size": "1.50"}, codec) == Box(Decimal("1.50"))
    assert text.inline(data, reading_codec(codec.name, 1)) == text.inline(data, codec)
    with pytest.raises(
        CodecError, match=r"the value .* is refused: .*\$.size: is Decimal, not int"
    ):
        text.parse_value('{"size": 1}', codec, "value")


@given(st.binary(max_size=50))
def test_printed_bytes_read_back(data: bytes) -> None:
    shown = shown_bytes(data)
    assert bytes_shown(shown) == data
    assert len(shown) == 1


@pytest.mark.parametrize("shown", [None, 5, {}, {"s": 1}, {"s": "a", "b64": ""}, {"hex": "61"}])
def test_other_things_are_no_printed_bytes(shown: object) -> None:
    with pytest.raises(UsageError):
        bytes_shown(shown)


def test_decoded_values_fit_into_json() -> None:
    number = uuid.UUID(int=1)
    value = {1: b"\xff", "t": (1, float("nan")), None: number, "f": codecs.SingleFloat(0.5)}
    assert text.plain(value) == {
        "1": {"b64": "/w=="},
        "t": [1, "nan"],
        "null": str(number),
        "f": 0.5,
    }


def test_bytes_that_do_not_decode_are_shown_with_the_reason() -> None:
    fields = text.shown_pair_part("key", b"\xff", codecs.Str)
    assert fields["key"] == {"b64": "/w=="}
    assert "key_decoded" not in fields
    assert "str" in fields["key_problem"]
    assert "not known" in text.shown_pair_part("key", b"a", None)["key_problem"]


@pytest.mark.parametrize(
    ("given", "microseconds"),
    [
        ("1970-01-01T00:00:01Z", 1_000_000),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1970-01-02", 86_400_000_000),
        ("1.5", 1_500_000),
        ("0", 0),
    ],
)
def test_times(given: str, microseconds: int) -> None:
    assert text.parse_time(given) == microseconds


@given(st.integers(0, 250_000_000_000_000_000))
def test_a_time_that_was_shown_reads_back(microseconds: int) -> None:
    assert text.parse_time(text.shown_time(microseconds)) == microseconds


def test_a_time_beyond_the_calendar_is_shown_as_its_number() -> None:
    assert text.shown_time(1 << 62) == f"{1 << 62} us"


@pytest.mark.parametrize("given", ["yesterday", "", "2026-13-01", "-1"])
def test_texts_that_are_no_time(given: str) -> None:
    with pytest.raises(UsageError, match="not a time"):
        text.parse_time(given)


@pytest.mark.parametrize(("given", "span"), [("5", (5, 5)), ("5..9", (5, 9)), ("0..0", (0, 0))])
def test_ranges(given: str, span: tuple[int, int]) -> None:
    assert text.parse_span(given) == span


@pytest.mark.parametrize("given", ["9..3", "a", "1..", "..2", "1-2", "-1..2"])
def test_texts_that_are_no_range(given: str) -> None:
    with pytest.raises(UsageError):
        text.parse_span(given)


def test_what_was_just_typed_is_not_called_damaged() -> None:
    with pytest.raises(CodecError, match="the key 'hex:ff' is refused: str: ") as caught:
        text.parse_value("hex:ff", codecs.Str, "key")
    assert caught.value.hint == "Give text."


LONG = "x" * 300_000


@pytest.mark.parametrize(
    "refused",
    [
        lambda: text.parse_value(LONG, codecs.I64, "value"),
        lambda: text.parse_value(LONG, codecs.Float, "value"),
        lambda: text.parse_value(LONG, codecs.Json, "value"),
        lambda: text.parse_value(f"hex:{LONG}", codecs.Bytes, "value"),
        lambda: text.parse_value(f"hex:{'ff' * 150_000}", codecs.Str, "value"),
        lambda: text.parse_time(LONG),
        lambda: text.parse_span(LONG),
        lambda: text.parse_span(f"9..{'0' * 300_000}"),
        lambda: text.parse_time("9" * 300_000),
        lambda: bytes_shown({"s": LONG, "b64": LONG}),
    ],
)
def test_an_error_shows_the_beginning_of_long_text_and_its_length(
    refused: Callable[[], object],
) -> None:
    # A value of 300,000 characters stood in the error from end to end.
    with pytest.raises(UsageError) as caught:
        refused()
    assert len(str(caught.value)) < 500
    assert re.search(r"\.\.\. \([36]\d\d,\d{3} characters\)", str(caught.value))
