"""Encodings of single values: bytes, text, 64-bit integers, floats, UUIDs.

Owns the functions behind the codecs ``Bytes``, ``Str``, ``I64``, ``U64``, ``Float`` and ``Uuid``,
and the wording of a refusal, which the other codec modules share.

Invariants:

- what is decoded equals what was encoded; an instance of a subclass comes back as its base type;
- encoded text, integers and UUIDs sort as the values do;
- there is one encoding per value, and other bytes do not decode;
- nothing but ``CodecError`` is raised, whatever the value or the bytes.

Left out: the codec objects themselves (``codecs``), tuples, and nested values.
"""

from __future__ import annotations

import struct
from reprlib import Repr
from uuid import UUID

from ...affinity.errors import CodecError

_pack_u64 = struct.Struct(">Q").pack
_unpack_u64 = struct.Struct(">Q").unpack
_pack_double = struct.Struct(">d").pack
_unpack_double = struct.Struct(">d").unpack
_utf8 = str.encode

# Added to a signed number, it flips the sign bit: negative numbers then sort first.
_I64_OFFSET = 1 << 63


SHOWN_LENGTH_MAX = 90
"""Characters of a value that an error shows."""

_repr = Repr()
_repr.maxstring = _repr.maxother = 80


def shown(value: object) -> str:
    """Return a value as errors show it: its repr, of a long one both ends."""
    try:
        text = _repr.repr(value)
    except ValueError:  # an int that is longer than Python prints
        return f"<{type(value).__name__}>"
    half = SHOWN_LENGTH_MAX // 2
    return text if len(text) <= SHOWN_LENGTH_MAX else f"{text[:half]}...{text[-half + 3 :]}"


def refused(codec: str, reason: str, path: str = "$", hint: str | None = None) -> CodecError:
    """Return the error for a value, or the part of it at ``path``, that a codec cannot take."""
    return CodecError(
        f"{codec}: {path}: {reason}",
        hint=hint or "Convert it first, or use a codec that takes it.",
    )


def mistyped(codec: str, wanted: str, value: object) -> CodecError:
    """Return the error for a value of another type than the one that a codec takes."""
    reason = f"is {wanted}, not {type(value).__name__} ({shown(value)})"
    error = CodecError(
        f"{codec}: a value {reason}", hint="Convert it first, or use a codec that takes it."
    )
    error.reason = reason
    return error


def damaged(codec: str, reason: str) -> CodecError:
    """Return the error for bytes that are not a value of a codec."""
    return CodecError(
        f"{codec}: the bytes are not an encoded value: {reason}",
        hint="They were written with another codec, or are damaged.",
    )


def unsupported(value: object) -> str:
    """Return the reason for a refusal by type; the value itself may be large, or secret."""
    return f"{type(value).__name__} is not supported"


def encode_bytes(value: bytes) -> bytes:
    """Return the value itself; a bytearray or memoryview is copied."""
    if type(value) is bytes:
        return value
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise mistyped("bytes", "bytes", value)
    try:
        return bytes(value)
    except ValueError as error:
        raise refused("bytes", str(error)) from None


def encode_str(value: str) -> bytes:
    """Return the text in UTF-8."""
    try:
        return _utf8(value)
    except TypeError:
        raise mistyped("str", "str", value) from None
    except UnicodeEncodeError as error:
        raise refused("str", str(error)) from None


def decode_str(data: bytes) -> str:
    """Return the text that the bytes hold."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise damaged("str", str(error)) from None


def encode_u64(value: int) -> bytes:
    """Return the number as eight bytes, big-endian."""
    if type(value) is not int:
        value = _plain_int("u64", value)
    try:
        return _pack_u64(value)
    except struct.error:
        raise refused("u64", "the number is not within 0 to 2**64 - 1") from None


def decode_u64(data: bytes) -> int:
    """Return the number that eight bytes hold."""
    try:
        number: int = _unpack_u64(data)[0]
    except struct.error:
        raise damaged("u64", f"{len(data)} bytes, not 8") from None
    return number


def encode_i64(value: int) -> bytes:
    """Return the number as eight bytes, big-endian, with the sign bit flipped."""
    if type(value) is not int:
        value = _plain_int("i64", value)
    try:
        return _pack_u64(value + _I64_OFFSET)
    except struct.error:
        raise refused("i64", "the number is not within -2**63 to 2**63 - 1") from None


def decode_i64(data: bytes) -> int:
    """Return the signed number that eight bytes hold."""
    try:
        number: int = _unpack_u64(data)[0]
    except struct.error:
        raise damaged("i64", f"{len(data)} bytes, not 8") from None
    return number - _I64_OFFSET


def encode_number(number: int) -> bytes:
    """Return a number of 64 bits that is known to be one, as ``encode_i64`` does."""
    return _pack_u64(number + _I64_OFFSET)


def decode_number(data: bytes) -> int:
    """Return the signed number that eight bytes hold, or raise ``ValueError``."""
    if len(data) != 8:
        raise ValueError(f"{len(data)} bytes, not 8")
    number: int = _unpack_u64(data)[0]
    return number - _I64_OFFSET


def encode_uuid(value: UUID) -> bytes:
    """Return the sixteen bytes of a UUID."""
    if not isinstance(value, UUID):
        raise mistyped("uuid", "UUID", value)
    return value.bytes


def decode_uuid(data: bytes) -> UUID:
    """Return the UUID that sixteen bytes hold."""
    if len(data) != 16:
        raise damaged("uuid", f"{len(data)} bytes, not 16")
    return UUID(bytes=bytes(data))


def encode_float(value: float) -> bytes:
    """Return the IEEE 754 double, big-endian; an int is taken if a double holds it exactly."""
    if type(value) is not float:
        value = _plain_float(value)
    return _pack_double(value)


def decode_float(data: bytes) -> float:
    """Return the number that eight bytes hold."""
    try:
        number: float = _unpack_double(data)[0]
    except struct.error:
        raise damaged("float", f"{len(data)} bytes, not 8") from None
    return number


def _plain_int(codec: str, value: object, wanted: str = "int") -> int:
    # A bool is an int to Python, but True stored as 1 would come back as another type: most
    # often it is a mistake.  An IntEnum is meant as its number and equals it.
    if isinstance(value, int) and not isinstance(value, bool):
        return int.__int__(value)
    raise mistyped(codec, wanted, value)


def _plain_float(value: object) -> float:
    if isinstance(value, float):
        return float.__float__(value)
    number = _plain_int("float", value, "float")
    try:
        exact = float(number)
    except OverflowError:
        exact = float("inf")
    if exact != number:
        raise refused("float", "the int is not a double: it would be rounded")
    return exact
