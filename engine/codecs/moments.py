"""Moments, days and spans of time: as eight bytes that sort, and as text.

Owns the functions behind the codecs ``Datetime``, ``Date`` and ``Timedelta``, their bytes in
tuples, and their text in documents and on the command line.

Invariants:

- a moment has a time zone: one without would mean another moment on each machine, and is refused;
- a moment is kept as microseconds since 1970 in UTC and comes back in UTC: a moment is the same
  bytes in whatever zone it was told;
- nothing is rounded: an instance of a subclass that has nanoseconds is refused;
- there is one encoding per value, and other bytes and other text do not decode.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta

from .scalars import damaged, decode_number, encode_number, mistyped, refused

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_SECOND = 1_000_000
_FIRST_DAY = date(1970, 1, 1).toordinal()
_MOST = 1 << 63

_NO_ZONE = "a datetime without a time zone is another moment on each machine"
_NAIVE = "Give it the zone that is meant: `moment.replace(tzinfo=UTC)`, or a `ZoneInfo`."
_FINER = "it has nanoseconds, and microseconds are kept"


# ------------------------------------------------------------------ as numbers


def moment_number(value: datetime) -> int:
    """Return the microseconds since 1970 of a moment, or raise ``ValueError``."""
    if getattr(value, "nanosecond", 0):
        raise ValueError(_FINER)
    if value.utcoffset() is None:
        raise ValueError(_NO_ZONE)
    since = value - _EPOCH
    number = timedelta(since.days, since.seconds, since.microseconds) // _MICROSECOND
    number_moment(number)  # at both ends of the calendar UTC may be beyond it
    return number


def number_moment(number: int) -> datetime:
    """Return the moment in UTC, or raise ``ValueError`` for one beyond the calendar."""
    try:
        return _EPOCH + timedelta(microseconds=number)
    except OverflowError:
        raise ValueError("in UTC the moment is beyond the years 1 to 9999") from None


def day_number(value: date) -> int:
    """Return the days since 1970; ``ValueError`` for a datetime, which is more than a day."""
    if isinstance(value, datetime):
        raise ValueError("a datetime is more than a day")
    return value.toordinal() - _FIRST_DAY


def number_day(number: int) -> date:
    """Return the day, or raise ``ValueError`` for one beyond the calendar."""
    try:
        return date.fromordinal(number + _FIRST_DAY)
    except (ValueError, OverflowError):
        raise ValueError("the day is beyond the years 1 to 9999") from None


def span_number(value: timedelta) -> int:
    """Return the microseconds of a span, or raise ``ValueError``."""
    if getattr(value, "nanoseconds", 0):
        raise ValueError(_FINER)
    number = timedelta(value.days, value.seconds, value.microseconds) // _MICROSECOND
    if not -_MOST <= number < _MOST:
        raise ValueError("the span is not within 2**63 microseconds, about 292,000 years")
    return number


def number_span(number: int) -> timedelta:
    """Return the span of so many microseconds."""
    return timedelta(microseconds=number)


# ------------------------------------------------------------------ as bytes


def encode_datetime(value: datetime) -> bytes:
    """Return a moment as microseconds since 1970 in UTC, in the bytes of an ``I64``."""
    if not isinstance(value, datetime):
        raise mistyped("datetime", "datetime", value)
    try:
        return encode_number(moment_number(value))
    except ValueError as error:
        reason = str(error)
        raise refused("datetime", reason, hint=_NAIVE if reason == _NO_ZONE else None) from None


def decode_datetime(data: bytes) -> datetime:
    """Return the moment that eight bytes hold, in UTC."""
    try:
        return number_moment(decode_number(data))
    except ValueError as error:
        raise damaged("datetime", str(error)) from None


def encode_date(value: date) -> bytes:
    """Return a day as days since 1970, in the bytes of an ``I64``."""
    if not isinstance(value, date):
        raise mistyped("date", "date", value)
    try:
        return encode_number(day_number(value))
    except ValueError:
        raise mistyped("date", "date", value) from None


def decode_date(data: bytes) -> date:
    """Return the day that eight bytes hold."""
    try:
        return number_day(decode_number(data))
    except ValueError as error:
        raise damaged("date", str(error)) from None


def encode_timedelta(value: timedelta) -> bytes:
    """Return a span of time as microseconds, in the bytes of an ``I64``."""
    if not isinstance(value, timedelta):
        raise mistyped("timedelta", "timedelta", value)
    try:
        return encode_number(span_number(value))
    except ValueError as error:
        raise refused("timedelta", str(error)) from None


def decode_timedelta(data: bytes) -> timedelta:
    """Return the span that eight bytes hold."""
    try:
        return number_span(decode_number(data))
    except ValueError as error:
        raise damaged("timedelta", str(error)) from None


# ------------------------------------------------------------------ as text


def moment_text(value: datetime) -> str:
    """Return a moment as ISO 8601 in UTC, ended by Z, or raise ``ValueError``."""
    return number_moment(moment_number(value)).isoformat().replace("+00:00", "Z")


def text_moment(text: str) -> datetime:
    """Return the moment of which ``moment_text`` makes this text, or raise ``ValueError``."""
    value = datetime.fromisoformat(text)
    if moment_text(value) != text:
        raise ValueError("not ISO 8601 in UTC, as in 2026-11-21T15:30:00Z")
    return value


def day_text(value: date) -> str:
    """Return a day as ISO 8601, or raise ``ValueError``."""
    return number_day(day_number(value)).isoformat()


def text_day(text: str) -> date:
    """Return the day of which ``day_text`` makes this text, or raise ``ValueError``."""
    value = date.fromisoformat(text)
    if value.isoformat() != text:
        raise ValueError("not a day as in 2026-11-21")
    return value


def span_text(value: timedelta) -> str:
    """Return a span of time in seconds with as many decimals as it needs, or ``ValueError``."""
    number = span_number(value)
    seconds, rest = divmod(abs(number), _SECOND)
    decimals = f".{rest:06d}".rstrip("0").rstrip(".")
    return f"{'-' * (number < 0)}{seconds}{decimals}"


def text_span(text: str) -> timedelta:
    """Return the span of so many seconds, at most six decimals; or raise ``ValueError``."""
    match = re.fullmatch(r"(-?)([0-9]{1,20})(?:\.([0-9]{1,6}))?", text)
    if match is None:
        raise ValueError("not a number of seconds with at most six decimals")
    number = int(match[2]) * _SECOND + int((match[3] or "").ljust(6, "0"))
    try:
        value = number_span(-number if match[1] else number)
    except OverflowError:
        raise ValueError("not within 2**63 microseconds") from None
    span_number(value)
    return value
