"""Decimals: as text that keeps all of one, and as keys that sort by number.

Owns the functions behind the codecs ``Dec`` and ``DecKey``, and the bytes of decimals in tuples.

The keys are numbers in the key encoding of SQLite 4, published at
https://sqlite.org/src4/doc/trunk/www/key_encoding.wiki.  A number is ``M * 100**E`` with ``M``
from 0.01 to below 1:

=========  ====================================================================================
head       number
=========  ====================================================================================
07         negative infinity
08         negative, E from 11 on: flipped varint of E, flipped M
09 to 13   negative, E from 10 down to 0: 13 less E, flipped M
14         negative, E below 0: varint of -E, flipped M
15         0
16         positive, E below 0: flipped varint of -E, M
17 to 21   positive, E from 0 to 10: 17 and E, M
22         positive, E from 11 on: varint of E, M
23         infinity
=========  ====================================================================================

M has a byte for each two digits X: 2X + 1, and 2X for the last; flipped is one's complement.

Invariants:

- text keeps sign, digits and exponent, NaN and its payload; nothing depends on a decimal context;
- of a key there is one encoding per number, so ``0.1`` and ``0.10`` are one key, and ``-0`` is 0;
- other bytes do not decode.
"""

from __future__ import annotations

from decimal import Context, Decimal, InvalidOperation

from .scalars import damaged, mistyped, refused

DIGITS_WRITTEN_OUT = 28
"""Whole numbers of so many digits come back from a key without an exponent."""

_LOWEST, _ZERO, _HIGHEST = 0x07, 0x15, 0x23
_NEGATIVE_LARGE, _NEGATIVE, _NEGATIVE_SMALL = 0x08, 0x13, 0x14
_POSITIVE_SMALL, _POSITIVE, _POSITIVE_LARGE = 0x16, 0x17, 0x22
_MEDIUM_MAX = 10
_ALONE = {_LOWEST: Decimal("-Infinity"), _ZERO: Decimal(0), _HIGHEST: Decimal("Infinity")}
_FLIPPED = bytes(255 - byte for byte in range(256))

# Where nothing traps, what is out of bounds becomes NaN, which is looked for.
_CONTEXT = Context(capitals=1, traps=[])


# ------------------------------------------------------------------ all of it, as text


def decimal_text(value: Decimal) -> str:
    """Return a decimal as text, whatever the context of the thread says."""
    return _CONTEXT.to_sci_string(value)


def text_decimal(text: str) -> Decimal:
    """Return the decimal of which ``decimal_text`` makes this text, or raise ``ValueError``."""
    try:
        value = Decimal(text)
    except InvalidOperation:
        raise ValueError("not a decimal number") from None
    if decimal_text(value) != text:
        raise ValueError("not a decimal number, or not as one is written")
    return value


def encode_decimal(value: Decimal) -> bytes:
    """Return a decimal as text in ASCII."""
    if not isinstance(value, Decimal):
        raise mistyped("decimal", "Decimal", value)
    return decimal_text(value).encode()


def decode_decimal(data: bytes) -> Decimal:
    """Return the decimal that the text tells."""
    try:
        return text_decimal(data.decode("ascii"))
    except ValueError as error:
        raise damaged("decimal", str(error)) from None


# ------------------------------------------------------------------ by number


def encode_decimal_key(value: Decimal) -> bytes:
    """Return bytes that sort as the numbers do; NaN, which has no order, is refused."""
    if not isinstance(value, Decimal):
        raise mistyped("decimal-key", "Decimal", value)
    try:
        return number_bytes(value)
    except ValueError as error:
        raise refused("decimal-key", str(error)) from None


def decode_decimal_key(data: bytes) -> Decimal:
    """Return the number that the bytes hold, with the fewest digits."""
    try:
        value, end = bytes_number(data, 0)
    except ValueError as error:
        raise damaged("decimal-key", str(error)) from None
    if end != len(data):
        raise damaged("decimal-key", f"{len(data) - end} bytes too many")
    return value


def number_bytes(value: Decimal) -> bytes:
    """Return bytes that sort as numbers do and tell where they end; ``ValueError`` for NaN."""
    if value.is_nan():
        raise ValueError("NaN has no order")
    if value.is_infinite():
        return bytes((_HIGHEST if value > 0 else _LOWEST,))
    sign, numerals, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    digits = "".join(map(str, numerals)).lstrip("0")
    if not digits:
        return bytes((_ZERO,))
    point = len(digits) + exponent
    digits = digits.rstrip("0")
    if point % 2:
        digits, point = "0" + digits, point + 1
    if len(digits) % 2:
        digits += "0"
    pairs = bytearray(2 * int(digits[at : at + 2]) + 1 for at in range(0, len(digits), 2))
    pairs[-1] -= 1
    head = _head(point // 2, sign == 1)
    return head + (pairs.translate(_FLIPPED) if sign else bytes(pairs))


def _head(exponent: int, negative: bool) -> bytes:
    if 0 <= exponent <= _MEDIUM_MAX:
        return bytes((_NEGATIVE - exponent if negative else _POSITIVE + exponent,))
    size = _varint(abs(exponent))
    if negative == (exponent > 0):
        size = size.translate(_FLIPPED)
    if negative:
        return bytes((_NEGATIVE_LARGE if exponent > 0 else _NEGATIVE_SMALL,)) + size
    return bytes((_POSITIVE_LARGE if exponent > 0 else _POSITIVE_SMALL,)) + size


def bytes_number(data: bytes, at: int) -> tuple[Decimal, int]:
    """Return the number whose bytes begin at ``at``, and where they end; or ``ValueError``."""
    head = data[at] if at < len(data) else 0
    if head in (_LOWEST, _ZERO, _HIGHEST):
        return _ALONE[head], at + 1
    if not _NEGATIVE_LARGE <= head <= _POSITIVE_LARGE:
        raise ValueError(f"byte {at}: no number begins so")
    negative = head < _ZERO
    start = at + 1
    if head in (_NEGATIVE_LARGE, _POSITIVE_LARGE):
        exponent, start = _size(data, start, flipped=negative)
    elif head in (_NEGATIVE_SMALL, _POSITIVE_SMALL):
        exponent, start = _size(data, start, flipped=not negative)
        exponent = -exponent
    else:
        exponent = _NEGATIVE - head if negative else head - _POSITIVE
    digits, end = _digits(data, start, flipped=negative)
    digits = digits.rstrip("0")
    power, stripped = 2 * exponent - len(digits), digits.lstrip("0") or "0"
    zeros = power if 0 < power <= DIGITS_WRITTEN_OUT - len(stripped) else 0
    text = f"{'-' * negative}{stripped}{'0' * zeros}E{power - zeros}"
    value = _exactly(text)
    if number_bytes(value) != data[at:end]:
        raise ValueError(f"byte {at}: the number has a shorter form")
    return value, end


def _exactly(text: str) -> Decimal:
    try:
        value = Decimal(text)
    except InvalidOperation:
        raise ValueError("the exponent is too large") from None
    if not value.is_finite():  # where the thread has switched the exception off
        raise ValueError("the exponent is too large")
    return value


def _digits(data: bytes, at: int, *, flipped: bool) -> tuple[str, int]:
    parts: list[str] = []
    for end in range(at, len(data)):
        byte = data[end] ^ (0xFF if flipped else 0)
        if byte > 199:
            break
        parts.append(f"{byte >> 1:02d}")
        if not byte & 1:
            return "".join(parts), end + 1
    raise ValueError(f"byte {at}: the number is cut short, or its digits are not digits")


# ------------------------------------------------------------------ the varints of SQLite 4


def _varint(number: int) -> bytes:
    if number <= 240:
        return bytes((number,))
    if number <= 2287:
        return bytes((241 + (number - 240 >> 8), number - 240 & 0xFF))
    if number <= 67823:
        return b"\xf9" + (number - 2288).to_bytes(2, "big")
    size = (number.bit_length() + 7) // 8
    return bytes((247 + size,)) + number.to_bytes(size, "big")


def _size(data: bytes, at: int, *, flipped: bool) -> tuple[int, int]:
    part = data[at : at + 9]
    if flipped:
        part = part.translate(_FLIPPED)
    head = part[0] if part else 0
    length = 1 if head <= 240 else 2 if head <= 248 else head - 246
    if len(part) < length:
        raise ValueError(f"byte {at}: the number is cut short")
    if length == 1:
        return head, at + 1
    rest = int.from_bytes(part[1:length], "big")
    if length == 2:
        return 240 + 256 * (head - 241) + rest, at + 2
    return rest + (2288 if length == 3 else 0), at + length
