"""Encodings of single values: bytes, text, 64-bit integers, floats.

Owns the functions behind the codecs ``Bytes``, ``Str``, ``I64``, ``U64`` and ``Float``, and the
wording of a refusal, which the other codec modules share.

Invariants:

- what is decoded equals what was encoded; an instance of a subclass comes back as its base type;
- encoded text and integers sort as the values do;
- there is one encoding per value, and other bytes do not decode;
- nothing but ``CodecError`` is raised, whatever the value or the bytes.

Left out: the codec objects themselves (``codecs``), tuples, and nested values.
"""

from __future__ import annotations

import struct

from ...affinity.errors import CodecError

_pack_u64 = struct.Struct(">Q").pack
_unpack_u64 = struct.Struct(">Q").unpack
_pack_double = struct.Struct(">d").pack
_unpack_double = struct.Struct(">d").unpack
_utf8 = str.encode

# Added to a signed number, it flips the sign bit: negative numbers then sort first.
_I64_OFFSET = 1 << 63


def refused(codec: str, reason: str, path: str = "$") -> CodecError:
    """Return the error for a value, or the part of it at ``path``, that a codec cannot take."""
    return CodecError(
        f"{codec}: {path}: {reason}",
        hint="Convert it first, or use a codec that takes it.",
    )


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
        raise refused("bytes", unsupported(value))
    try:
        return bytes(value)
    except ValueError as error:
        raise refused("bytes", str(error)) from error


def encode_str(value: str) -> bytes:
    """Return the text in UTF-8."""
    try:
        return _utf8(value)
    except TypeError:
        raise refused("str", unsupported(value)) from None
    except UnicodeEncodeError as error:
        raise refused("str", str(error)) from error


def decode_str(data: bytes) -> str:
    """Return the text that the bytes hold."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise damaged("str", str(error)) from error


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


def _plain_int(codec: str, value: object) -> int:
    # A bool is an int to Python, but True stored as 1 would come back as another type: most
    # often it is a mistake.  An IntEnum is meant as its number and equals it.
    if isinstance(value, int) and not isinstance(value, bool):
        return int.__int__(value)
    raise refused(codec, unsupported(value))


def _plain_float(value: object) -> float:
    if isinstance(value, float):
        return float.__float__(value)
    number = _plain_int("float", value)
    try:
        exact = float(number)
    except OverflowError:
        exact = float("inf")
    if exact != number:
        raise refused("float", "the int is not a double: it would be rounded")
    return exact
