from __future__ import annotations

import datetime
import decimal
import math
from collections import OrderedDict, defaultdict, namedtuple
from concurrent.futures import ThreadPoolExecutor
from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import Any

import msgpack
import pytest
from hypothesis import given, strategies as st

from tidelog.engine.codecs.documents import DEPTH_MAX
from tidelog.engine.codecs.registry import Codec, Json, Msgpack
from tidelog.errors import CodecError

Point = namedtuple("Point", ["x", "y"])


class Level(IntEnum):
    HIGH = 3


class Colour(StrEnum):
    RED = "red"


def nested(depth: int, kind: type) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value} if kind is dict else kind([value])
    return value


# ------------------------------------------------------------------ round trips

FINITE = st.floats(allow_nan=False, allow_infinity=False)
NUMBERS = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False)
SCALARS = st.none() | st.booleans() | NUMBERS | st.text()


def documents(
    scalars: st.SearchStrategy[Any], keys: st.SearchStrategy[Any]
) -> st.SearchStrategy[Any]:
    return st.recursive(
        scalars,
        lambda items: st.lists(items, max_size=4) | st.dictionaries(keys, items, max_size=4),
        max_leaves=12,
    )


@given(documents(SCALARS | st.binary(), SCALARS | st.binary()))
def test_a_msgpack_value_comes_back(value: Any) -> None:
    assert exact(Msgpack.decode(Msgpack.encode(value))) == exact(value)


@given(documents(st.none() | st.booleans() | st.text() | st.integers() | FINITE, st.text()))
def test_a_json_value_comes_back(value: Any) -> None:
    assert exact(Json.decode(Json.encode(value))) == exact(value)


def exact(value: Any) -> Any:
    """The value with its types, since to Python 1, 1.0 and True are equal."""
    if isinstance(value, dict):
        return {(type(key), key): exact(item) for key, item in value.items()}
    if isinstance(value, list):
        return [exact(item) for item in value]
    return (type(value), value)


@pytest.mark.parametrize(
    ("codec", "value", "encoded"),
    [
        (Msgpack, {"a": [1, None, True]}, b"\x81\xa1a\x93\x01\xc0\xc3"),
        (Msgpack, b"\xff", b"\xc4\x01\xff"),
        (Msgpack, 1.5, b"\xcb\x3f\xf8\x00\x00\x00\x00\x00\x00"),
        (Msgpack, 2**64 - 1, b"\xcf" + b"\xff" * 8),
        (Json, {"a": [1, None, True], "b": 1.5}, b'{"a":[1,null,true],"b":1.5}'),
        (Json, "Zo\u00eb \U0001f30a", '"Zo\u00eb \U0001f30a"'.encode()),
    ],
)
def test_a_value_has_compact_bytes(codec: Codec[Any], value: Any, encoded: bytes) -> None:
    assert codec.encode(value) == encoded
    assert codec.decode(encoded) == value


def test_msgpack_holds_nan_and_infinity() -> None:
    assert Msgpack.decode(Msgpack.encode(math.inf)) == math.inf
    assert math.isnan(Msgpack.decode(Msgpack.encode(math.nan)))


@pytest.mark.parametrize("codec", [Msgpack, Json])
@pytest.mark.parametrize(
    ("value", "decoded"),
    [
        ((1, (2, "a")), [1, [2, "a"]]),
        ({"at": Point(1, 2)}, {"at": [1, 2]}),
        (OrderedDict(a=1), {"a": 1}),
        (defaultdict(int, a=1), {"a": 1}),
        ({"level": Level.HIGH, "colour": Colour.RED}, {"level": 3, "colour": "red"}),
        ({Colour.RED: [Level.HIGH]}, {"red": [3]}),
    ],
)
def test_tuples_become_lists_and_subclasses_their_base(
    codec: Codec[Any], value: Any, decoded: Any
) -> None:
    assert exact(codec.decode(codec.encode(value))) == exact(decoded)


def test_msgpack_stores_a_bytearray_as_bytes() -> None:
    assert exact(Msgpack.decode(Msgpack.encode([bytearray(b"a")]))) == exact([b"a"])


@pytest.mark.parametrize("codec", [Msgpack, Json])
@pytest.mark.parametrize("kind", [dict, list, tuple, OrderedDict])
def test_a_value_may_be_nested_as_deep_as_stated_and_no_deeper(
    codec: Codec[Any], kind: type
) -> None:
    make = list if kind is tuple else kind
    if kind is OrderedDict:
        deepest: Any = OrderedDict(a=nested(DEPTH_MAX - 1, dict))
        make = dict
    else:
        deepest = nested(DEPTH_MAX, kind)
    assert codec.decode(codec.encode(deepest)) == nested(DEPTH_MAX, make)
    with pytest.raises(CodecError, match=r": nested more than 32 deep(?m:$)"):
        codec.encode([deepest])


@pytest.mark.parametrize("codec", [Msgpack, Json])
def test_a_value_that_holds_itself_is_refused(codec: Codec[Any]) -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(CodecError, match="nested more than 32 deep"):
        codec.encode(value)


# ------------------------------------------------------------------ what is refused

ORDER = {"items": [{"price": 1}, {}, {}, {"price": {1, 2}}]}


@pytest.mark.parametrize("codec", [Msgpack, Json])
@pytest.mark.parametrize(
    ("value", "message"),
    [
        (ORDER, "$.items[3].price: set is not supported"),
        (object(), "$: object is not supported"),
        (
            {"when": datetime.datetime(2026, 11, 21, tzinfo=datetime.UTC)},
            "$.when: datetime is not supported",
        ),
        ([decimal.Decimal(1)], "$[0]: Decimal is not supported"),
        ({"a b": 1j}, "$['a b']: complex is not supported"),
        ({"x" * 99: 1j}, f"$.{'x' * 99}: complex is not supported"),
        ({"x y" * 99: 1j}, f"$['{'x y' * 13}x']: complex is not supported"),
        ({"a": MappingProxyType({})}, "$.a: mappingproxy is not supported"),
        ({"a": {(1, 2): 3}}, "$.a: dict key: tuple is not supported"),
        ((1, memoryview(b"a")), "$[1]: memoryview is not supported"),
        ({"t": msgpack.Timestamp(1)}, "$.t: Timestamp is not supported"),
    ],
)
def test_a_refusal_names_the_path(codec: Codec[Any], value: Any, message: str) -> None:
    with pytest.raises(CodecError) as caught:
        codec.encode(value)
    assert str(caught.value) == f"{codec.name}: {message}"
    assert caught.value.hint


@pytest.mark.parametrize(
    ("codec", "value", "message"),
    [
        (Msgpack, {"a": [2**64]}, r"\$\.a\[0\]: Integer value out of range"),
        (Msgpack, {2**64: 1}, r"\$: dict key: Integer value out of range"),
        (Msgpack, {1: {b"k": {1}}}, r"\$\[1\]\[b'k'\]: set is not supported"),
        (Msgpack, ["\ud800"], r"\$\[0\]: .* surrogates not allowed"),
        (Msgpack, msgpack.ExtType(1, b""), r"\$: ExtType is not supported"),
        (Json, {"a": b"x"}, r"\$\.a: bytes is not supported"),
        (Json, {"a": {1: 2}}, r"\$\.a: dict key: int is not supported"),
        (Json, {"a": {None: 2}}, r"\$\.a: dict key: NoneType is not supported"),
        (Json, {"a": [0.0, math.nan]}, r"\$\.a\[1\]: Out of range float values"),
        (Json, [-math.inf], r"\$\[0\]: Out of range float values"),
        (Json, {"a": "\ud800"}, r"\$\.a: .* surrogates not allowed"),
        (Json, {"\ud800": 1}, r"\$: dict key: .* surrogates not allowed"),
        (Json, {"n": 10**5000}, r"\$\.n: Exceeds the limit"),
    ],
)
def test_what_one_format_cannot_hold_is_named(codec: Codec[Any], value: Any, message: str) -> None:
    with pytest.raises(CodecError, match=f"^{codec.name}: {message}"):
        codec.encode(value)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x01\x02",
        b"\x92\x01",
        b"\xa1\xff",
        b"\xdd\xff\xff\xff\xff",
        b"\x81\x90\x01",
        b"\x81\x80\x01",
        b"\xd4\x01\x00",
        b"\xd6\xff\x00\x00\x00\x01",
        b"\x91\xd7\xff" + bytes(8),
        b"\x81\xd6\xff\x00\x00\x00\x01\x01",
        b"\xc7\x0c\xff" + b"\xff" * 12,
        b"\x91" * 2000 + b"\x01",
    ],
)
def test_bytes_that_are_no_msgpack_value_are_refused(data: bytes) -> None:
    with pytest.raises(CodecError, match=r"^msgpack: the bytes are not an encoded value"):
        Msgpack.decode(data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"1 2",
        b"\xff",
        b'"\xff"',
        b"NaN",
        b"[-Infinity]",
        b"\xef\xbb\xbf1",
        '"a"'.encode("utf-16"),
        b"{1:2}",
        b"[" * 100_000,
        b"1" * 5000,
    ],
)
def test_bytes_that_are_no_json_value_are_refused(data: bytes) -> None:
    with pytest.raises(CodecError, match=r"^json: the bytes are not an encoded value"):
        Json.decode(data)


@pytest.mark.slow
@pytest.mark.parametrize("codec", [Msgpack, Json])
@given(data=st.data())
def test_damaged_bytes_raise_nothing_but_a_codec_error(
    codec: Codec[Any], data: st.DataObject
) -> None:
    encoded = bytearray(codec.encode(data.draw(documents(st.text() | FINITE, st.text()))))
    at = data.draw(st.integers(0, len(encoded) - 1))
    encoded[at] ^= data.draw(st.integers(1, 255))
    check_decoded_or_refused(codec, bytes(encoded))
    check_decoded_or_refused(codec, bytes(encoded[:at]))


@pytest.mark.parametrize("codec", [Msgpack, Json])
@given(data=st.binary())
def test_any_bytes_raise_nothing_but_a_codec_error(codec: Codec[Any], data: bytes) -> None:
    check_decoded_or_refused(codec, data)


def check_decoded_or_refused(codec: Codec[Any], data: bytes) -> None:
    try:
        value = codec.decode(data)
    except CodecError:
        return
    assert not isinstance(value, (msgpack.ExtType, msgpack.Timestamp))


# ------------------------------------------------------------------ several callers at once


@pytest.mark.parametrize("codec", [Msgpack, Json])
def test_threads_may_share_a_codec(codec: Codec[Any]) -> None:
    def round_trips(number: int) -> bool:
        value = {"number": number, "items": [number] * 50}
        return all(codec.decode(codec.encode(value)) == value for _ in range(200))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(round_trips, range(8)))
