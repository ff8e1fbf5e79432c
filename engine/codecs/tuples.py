"""Tuples as keys: the published FoundationDB tuple layout, whose bytes sort as the tuples do.

Owns ``pack`` and ``unpack``.  The layout is that of ``design/tuple.md`` in apple/foundationdb, in
which the codes from 40 on are for each user's own types; one type code per element:

====  ==========================================================================================
code  element
====  ==========================================================================================
00    None; inside a nested tuple followed by ff
01    bytes, each 00 followed by ff; ended by 00
02    str in UTF-8, each 00 followed by ff; ended by 00
05    nested tuple: its elements, ended by 00
0b    negative int of 9 to 255 bytes: size with its bits flipped, one's complement
0c    negative int of 8 bytes, one's complement; ... 13 of 1 byte
14    0
15    positive int of 1 byte; ... 1c of 8 bytes
1d    positive int of 9 to 255 bytes: size, number
20    ``SingleFloat``: IEEE 754 single, sign bit flipped, all bits if negative
21    float: IEEE 754 double, the same way
26    False; 27 True
30    UUID, 16 bytes
40    Decimal: the bytes of ``DecKey``
41    date: days since 1970, 8 bytes, sign bit flipped
42    datetime: microseconds since 1970 in UTC, 8 bytes, sign bit flipped
43    timedelta: microseconds, 8 bytes, sign bit flipped
====  ==========================================================================================

Invariants:

- tuples are compared element by element, a shorter one before what it begins; elements first by
  type, in the order of the codes, then by value;
- there is one encoding per tuple: what is not the encoding of what it decodes to is refused;
- ``-0.0`` is encoded as ``0.0``, its equal, and NaN, which has no order, is refused;
- nothing but ``CodecError`` is raised, and it names the element.

Left out: versionstamps (32, 33), long doubles, and the published codes of decimals (23, 24), whose
bytes do not sort.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from struct import Struct
from typing import Any, TypeVar
from uuid import UUID

from .decimals import bytes_number, number_bytes
from .moments import (
    day_number,
    moment_number,
    number_day,
    number_moment,
    number_span,
    span_number,
)
from .scalars import damaged, decode_number, encode_number, mistyped, refused, unsupported

TUPLE_DEPTH_MAX = 32
"""How many tuples may be nested within each other below the outermost one."""

_INT_BYTES_MAX = 255

_NULL, _BYTES, _TEXT, _NESTED = 0x00, 0x01, 0x02, 0x05
_NEGATIVE_LONG, _ZERO, _POSITIVE_LONG = 0x0B, 0x14, 0x1D
_SINGLE, _DOUBLE, _FALSE, _TRUE, _UUID = 0x20, 0x21, 0x26, 0x27, 0x30
_DECIMAL, _DATE, _DATETIME, _TIMEDELTA = 0x40, 0x41, 0x42, 0x43
_VERSIONSTAMPS = (0x32, 0x33)

_single, _double = Struct(">f"), Struct(">d")
_u32, _u64 = Struct(">I"), Struct(">Q")
_coded_u32, _coded_u64 = Struct(">BI"), Struct(">BQ")
_SIGN32, _ALL32 = 1 << 31, (1 << 32) - 1
_SIGN64, _ALL64 = 1 << 63, (1 << 64) - 1


@dataclass(frozen=True, slots=True, order=True)
class SingleFloat:
    """A number that is kept in single precision, in a tuple; it is rounded when it is made."""

    value: float

    def __post_init__(self) -> None:
        try:
            (rounded,) = _single.unpack(_single.pack(self.value))
        except (OverflowError, struct.error) as error:
            raise refused("tuple", f"SingleFloat: {error}") from None
        if rounded != rounded:
            raise refused("tuple", "SingleFloat: NaN has no order")
        object.__setattr__(self, "value", rounded + 0.0)  # -0.0 becomes 0.0


T = TypeVar("T")
R = TypeVar("R")


class _ElementError(Exception):
    """Why an element cannot be encoded or decoded, and its indexes from the innermost out."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.indexes: list[int] = []


# ------------------------------------------------------------------ to bytes


def pack(items: tuple[Any, ...]) -> bytes:
    """Return the encoded tuple."""
    if not isinstance(items, tuple):
        raise mistyped("tuple", "tuple", items)
    try:
        return b"".join(_packed(items, 0))
    except _ElementError as error:
        path = "".join(f"[{index}]" for index in reversed(error.indexes))
        raise refused("tuple", str(error), "$" + path) from None


def prefix_range(items: tuple[Any, ...]) -> tuple[bytes, bytes]:
    """Return start and stop (not included) of all tuples that begin with these elements.

    A plain byte prefix would not do: the bytes of ``("a",)`` also begin those of ``("a\\0b",)``.
    No element begins with ff, so that byte ends the range.
    """
    start = pack(items)
    return start, start + b"\xff"


def _packed(items: tuple[Any, ...], depth: int) -> list[bytes]:
    parts: list[bytes] = []
    try:
        for item in items:
            pack_item = _PACKERS.get(type(item))
            parts.append(_pack_rare(item, depth) if pack_item is None else pack_item(item))
    except _ElementError as error:
        error.indexes.append(len(parts))
        raise
    return parts


def _pack_rare(item: object, depth: int) -> bytes:
    if item is None:
        return b"\x00\xff" if depth else b"\x00"
    if isinstance(item, tuple):
        if depth == TUPLE_DEPTH_MAX:
            raise _ElementError(f"tuples are nested more than {TUPLE_DEPTH_MAX} deep")
        return b"\x05" + b"".join(_packed(item, depth + 1)) + b"\x00"
    for kind, pack_item in _PACKERS.items():
        if isinstance(item, kind):
            return pack_item(item)
    raise _ElementError(unsupported(item))


def _pack_bytes(value: bytes) -> bytes:
    return b"\x01" + value.replace(b"\x00", b"\x00\xff") + b"\x00"


def _pack_str(value: str) -> bytes:
    try:
        text = str.encode(value)
    except UnicodeEncodeError as error:
        raise _ElementError(str(error)) from None
    return b"\x02" + text.replace(b"\x00", b"\x00\xff") + b"\x00"


def _pack_int(value: int) -> bytes:
    size = (value.bit_length() + 7) >> 3
    if size > 8:
        return _pack_long(value, size)
    if value < 0:
        # One's complement: the smallest number of a size is all zeroes.
        return (((_ZERO - size + 1) << 8 * size) + value - 1).to_bytes(size + 1, "big")
    return (((_ZERO + size) << 8 * size) + value).to_bytes(size + 1, "big")


def _pack_long(value: int, size: int) -> bytes:
    if size > _INT_BYTES_MAX:
        raise _ElementError(f"the int takes {size} bytes, more than {_INT_BYTES_MAX}")
    if value < 0:
        complement = value + (1 << 8 * size) - 1
        return bytes((_NEGATIVE_LONG, size ^ 0xFF)) + complement.to_bytes(size, "big")
    return bytes((_POSITIVE_LONG, size)) + value.to_bytes(size, "big")


def _pack_float(value: float) -> bytes:
    if value != value:
        raise _ElementError("NaN has no order")
    (bits,) = _u64.unpack(_double.pack(value + 0.0))  # -0.0 becomes 0.0
    return _coded_u64.pack(_DOUBLE, bits ^ (_ALL64 if bits & _SIGN64 else _SIGN64))


def _pack_single(value: SingleFloat) -> bytes:
    (bits,) = _u32.unpack(_single.pack(value.value))
    return _coded_u32.pack(_SINGLE, bits ^ (_ALL32 if bits & _SIGN32 else _SIGN32))


def _pack_bool(value: bool) -> bytes:
    return b"\x27" if value else b"\x26"


def _pack_uuid(value: UUID) -> bytes:
    return b"\x30" + value.bytes


def _pack_decimal(value: Decimal) -> bytes:
    return bytes((_DECIMAL,)) + _told(number_bytes, value)


def _pack_datetime(value: datetime) -> bytes:
    return bytes((_DATETIME,)) + encode_number(_told(moment_number, value))


def _pack_date(value: date) -> bytes:
    return bytes((_DATE,)) + encode_number(day_number(value))


def _pack_timedelta(value: timedelta) -> bytes:
    return bytes((_TIMEDELTA,)) + encode_number(_told(span_number, value))


def _told(convert: Callable[[T], R], value: T) -> R:
    try:
        return convert(value)
    except ValueError as error:
        raise _ElementError(str(error)) from None


# Instances of subclasses take the first that fits: a datetime is a date, too.
_PACKERS: dict[type, Callable[[Any], bytes]] = {
    bytes: _pack_bytes,
    str: _pack_str,
    int: _pack_int,
    SingleFloat: _pack_single,
    float: _pack_float,
    bool: _pack_bool,
    UUID: _pack_uuid,
    Decimal: _pack_decimal,
    datetime: _pack_datetime,
    date: _pack_date,
    timedelta: _pack_timedelta,
}


# ------------------------------------------------------------------ from bytes


def unpack(data: bytes) -> tuple[Any, ...]:
    """Return the tuple that the bytes encode."""
    try:
        return _unpacked(data, 0, 0)[0]
    except (_ElementError, UnicodeDecodeError) as error:
        raise damaged("tuple", str(error)) from None


def _unpacked(data: bytes, at: int, depth: int) -> tuple[tuple[Any, ...], int]:
    items: list[Any] = []
    while at < len(data):
        code = data[at]
        unpack_item = _UNPACKERS.get(code)
        if unpack_item is not None:
            item, at = unpack_item(data, at)
        elif code == _NULL and depth and data[at + 1 : at + 2] != b"\xff":
            return tuple(items), at + 1
        elif code == _NULL:
            item, at = None, at + (2 if depth else 1)
        elif code == _NESTED and depth < TUPLE_DEPTH_MAX:
            item, at = _unpacked(data, at + 1, depth + 1)
        else:
            raise _unknown(code, at)
        items.append(item)
    if depth:
        raise _ElementError("a nested tuple does not end")
    return tuple(items), at


def _unknown(code: int, at: int) -> _ElementError:
    if code == _NESTED:
        return _ElementError(f"byte {at}: tuples are nested more than {TUPLE_DEPTH_MAX} deep")
    if code in _VERSIONSTAMPS:
        return _ElementError(f"byte {at}: versionstamps are not supported")
    return _ElementError(f"byte {at}: type code {code:02x} is not supported")


def _take(data: bytes, at: int, size: int) -> bytes:
    part = data[at : at + size]
    if len(part) != size:
        raise _ElementError(f"byte {at}: {size} bytes expected, {len(part)} left")
    return part


def _unpack_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    end = data.find(b"\x00", at + 1)
    if end >= 0 and data[end + 1 : end + 2] != b"\xff":
        return data[at + 1 : end], end + 1
    while end >= 0 and data[end + 1 : end + 2] == b"\xff":
        end = data.find(b"\x00", end + 2)
    if end < 0:
        raise _ElementError(f"byte {at}: the string does not end")
    return data[at + 1 : end].replace(b"\x00\xff", b"\x00"), end + 1


def _unpack_str(data: bytes, at: int) -> tuple[str, int]:
    text, end = _unpack_bytes(data, at)
    return text.decode(), end


def _unpack_positive(data: bytes, at: int) -> tuple[int, int]:
    end = at + data[at] - _ZERO + 1
    part = data[at + 1 : end]
    if end > len(data) or part[:1] == b"\x00":
        raise _bad_int(at)
    return int.from_bytes(part, "big"), end


def _unpack_negative(data: bytes, at: int) -> tuple[int, int]:
    size = _ZERO - data[at]
    return _complement(_take(data, at + 1, size), at), at + 1 + size


def _unpack_long_positive(data: bytes, at: int) -> tuple[int, int]:
    size = _take(data, at + 1, 1)[0]
    part = _take(data, at + 2, size)
    if size < 9 or part[0] == 0:
        raise _bad_int(at)
    return int.from_bytes(part, "big"), at + 2 + size


def _unpack_long_negative(data: bytes, at: int) -> tuple[int, int]:
    size = _take(data, at + 1, 1)[0] ^ 0xFF
    if size < 9:
        raise _bad_int(at)
    return _complement(_take(data, at + 2, size), at), at + 2 + size


def _complement(part: bytes, at: int) -> int:
    if part[0] == 0xFF:
        raise _bad_int(at)
    return int.from_bytes(part, "big") - (1 << 8 * len(part)) + 1


def _bad_int(at: int) -> _ElementError:
    return _ElementError(f"byte {at}: the int is cut short, or has a shorter form")


def _unpack_float(data: bytes, at: int) -> tuple[float, int]:
    (bits,) = _u64.unpack(_take(data, at + 1, 8))
    (number,) = _double.unpack(_u64.pack(bits ^ (_SIGN64 if bits & _SIGN64 else _ALL64)))
    return _checked(number, bits == _SIGN64 - 1, at), at + 9


def _unpack_single(data: bytes, at: int) -> tuple[SingleFloat, int]:
    (bits,) = _u32.unpack(_take(data, at + 1, 4))
    (number,) = _single.unpack(_u32.pack(bits ^ (_SIGN32 if bits & _SIGN32 else _ALL32)))
    return SingleFloat(_checked(number, bits == _SIGN32 - 1, at)), at + 5


def _checked(number: float, negative_zero: bool, at: int) -> float:
    if number != number or negative_zero:
        raise _ElementError(f"byte {at}: NaN and -0.0 are never written")
    return number


def _unpack_bool(data: bytes, at: int) -> tuple[bool, int]:
    return data[at] == _TRUE, at + 1


def _unpack_uuid(data: bytes, at: int) -> tuple[UUID, int]:
    return UUID(bytes=_take(data, at + 1, 16)), at + 17


def _unpack_decimal(data: bytes, at: int) -> tuple[Decimal, int]:
    try:
        return bytes_number(data, at + 1)
    except ValueError as error:
        raise _ElementError(str(error)) from None


def _unpack_datetime(data: bytes, at: int) -> tuple[datetime, int]:
    return _numbered(number_moment, data, at)


def _unpack_date(data: bytes, at: int) -> tuple[date, int]:
    return _numbered(number_day, data, at)


def _unpack_timedelta(data: bytes, at: int) -> tuple[timedelta, int]:
    return _numbered(number_span, data, at)


def _numbered(made: Callable[[int], T], data: bytes, at: int) -> tuple[T, int]:
    number = decode_number(_take(data, at + 1, 8))
    try:
        return made(number), at + 9
    except ValueError as error:
        raise _ElementError(f"byte {at}: {error}") from None


_UNPACKERS: dict[int, Callable[[bytes, int], tuple[Any, int]]] = {
    _BYTES: _unpack_bytes,
    _TEXT: _unpack_str,
    _NEGATIVE_LONG: _unpack_long_negative,
    **dict.fromkeys(range(_NEGATIVE_LONG + 1, _ZERO), _unpack_negative),
    **dict.fromkeys(range(_ZERO, _POSITIVE_LONG), _unpack_positive),
    _POSITIVE_LONG: _unpack_long_positive,
    _SINGLE: _unpack_single,
    _DOUBLE: _unpack_float,
    _FALSE: _unpack_bool,
    _TRUE: _unpack_bool,
    _UUID: _unpack_uuid,
    _DECIMAL: _unpack_decimal,
    _DATE: _unpack_date,
    _DATETIME: _unpack_datetime,
    _TIMEDELTA: _unpack_timedelta,
}
