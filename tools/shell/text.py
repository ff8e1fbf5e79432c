"""Keys, values and times as the command line takes them and as commands print them.

Owns both directions:

===============  ==============================================================================
text             meaning
===============  ==============================================================================
``utf8:text``    the bytes of the text, as they are stored
``hex:6162``     these bytes, as they are stored
``b64:YWI=``     these bytes, as they are stored
anything else    what the codec of the map makes of it: text for ``str`` and ``bytes``, decimal
                 numbers for ``i64``, ``u64`` and ``float``, JSON for ``msgpack``, ``json`` and
                 dataclasses, a JSON array for ``tuple``, ISO 8601 for times, seconds for
                 ``timedelta``.  An element of a tuple that JSON lacks is an object with one
                 field, the name of its type: ``["ada", {"date": "2026-11-21"}]``
===============  ==============================================================================

Printed bytes are ``{"s": text}`` if they are printable UTF-8, else ``{"b64": ...}``.

Invariants:

- What is taken as it is stored must still decode: no tool writes bytes that the codec refuses.
- Printing never fails: what does not decode is printed as bytes, with the reason.

Left out: which codec a map has (``engine``).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from itertools import islice
from math import isinf
from typing import Any, NamedTuple
from uuid import UUID

from ...affinity.errors import CodecError, UsageError
from ...engine.codecs.byte_text import has_prefix, inline_bytes, parse_bytes, quoted, shown_bytes
from ...engine.codecs.moments import moment_text, span_text, text_span
from ...engine.codecs.registry import Codec, Json, Msgpack, SingleFloat

MICROSECONDS = 1_000_000
_NAMES_SHOWN = 8
_UUID = re.compile("[0-9a-fA-F]{8}(-?)([0-9a-fA-F]{4}\\1){3}[0-9a-fA-F]{12}")


# ------------------------------------------------------------------ values of codecs


def parse_value(text: str, codec: Codec[Any], what: str) -> bytes:
    """Return the encoded bytes of a key or value given as text; ``what`` is for errors."""
    data = parse_bytes(text)
    if data is None and codec.of is None:
        return codec.encode(value_of_text(text, codec, what))
    if data is None:
        data = Msgpack.encode(value_of_text(text, Json, what))
    written = _WRITTEN.get(codec.name)
    hint = written.hint if written else f"Give bytes as the codec {codec.name} writes them."
    check_given(data, codec, f"the {what} {quoted(text)}", hint)
    return data


def check_given(data: bytes, codec: Codec[Any], name: str, hint: str) -> None:
    """Raise ``CodecError`` if bytes that the caller gave are not what a codec writes.

    The codec's own error speaks of what is stored, which here may well be in order.
    """
    try:
        codec.decode(data)
    except CodecError as error:
        raise CodecError(f"{name} is refused: {error}", hint=hint) from error.__cause__


def value_of_text(text: str, codec: Codec[Any], what: str) -> Any:
    """Return what a codec's plain text stands for."""
    written = _WRITTEN.get(codec.name)
    if written is None:
        raise UsageError(
            f"codec {codec.name} takes no plain text for a {what}",
            hint="Give its stored bytes as hex: or b64:.",
        )
    try:
        return written.parse(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{quoted(text)} is not a {what} for codec {codec.name}: {error}",
            hint=written.hint,
        ) from None


def _parse_text(text: str) -> str:
    return text


def _parse_float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError("not a number") from None  # Python's own text has all of it


def _parse_decimal(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:
        raise ValueError("not a decimal number") from None


def parse_uuid(text: str) -> UUID:
    """Return a UUID; what Python takes for one beside its digits and dashes is refused."""
    if _UUID.fullmatch(text) is None:
        raise ValueError("not a UUID")
    return UUID(text)


def _parse_datetime(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.utcoffset() is None:
        raise ValueError("it names no time zone")
    return moment


def _parse_json(text: str) -> Any:
    return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=unique_fields)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def unique_fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object of its fields; ``ValueError`` if one is there twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"the field {repeated(name for name, _ in pairs)!r} is there twice")
    return found


def repeated(names: Iterable[str]) -> str:
    """Return the name that is there most often."""
    return Counter(names).most_common(1)[0][0]


def first_of(names: Collection[str]) -> str:
    """Return the first names of some, and how many more there are."""
    more = len(names) - _NAMES_SHOWN
    shown = ", ".join(islice(names, _NAMES_SHOWN)) or "none"
    return f"{shown} and {more:,} more" if more > 0 else shown


def _parse_tuple(text: str) -> tuple[Any, ...]:
    value = _parse_json(text)
    if not isinstance(value, list):
        raise ValueError("a JSON array is needed")
    return tuple(map(_parse_element, value))


def _parse_element(item: Any) -> Any:
    """Return what an element of a JSON array stands for in a tuple."""
    if isinstance(item, list):
        return tuple(map(_parse_element, item))
    if not isinstance(item, dict):
        return item
    name, *others = item or [""]
    if others or name not in _PARSED_ELEMENTS or not isinstance(item[name], str):
        raise ValueError(f"an object in it has text in one field of {', '.join(_PARSED_ELEMENTS)}")
    return _PARSED_ELEMENTS[name](item[name])


def _shown_element(value: Any) -> Any:
    """Return an element of a tuple in JSON, as ``_parse_element`` takes it back."""
    if isinstance(value, tuple):
        return list(map(_shown_element, value))
    if isinstance(value, bytes):
        return {"bytes": inline_bytes(value)}
    if isinstance(value, float) and isinf(value):
        return {"float": str(value)}
    name = _NAMED_ELEMENTS.get(type(value))
    return value if name is None else {name: str(plain(value))}


def as_tuple(value: list[Any]) -> tuple[Any, ...]:
    """Return a list as a tuple, the lists in it too."""
    return tuple(as_tuple(item) if isinstance(item, list) else item for item in value)


class _Written(NamedTuple):
    """How the values of a codec are written as text.

    ``in_json``: they may be so in JSON, too.  ``bare``: they are printed without quotes.
    """

    parse: Callable[[str], Any]
    hint: str
    in_json: bool = False
    bare: bool = False


_JSON_HINT = """Give JSON; text needs quotes: '"text"'."""
_TUPLE_HINT = """Give a JSON array: '["DE", 1]'; a day in it is {"date": "2026-11-21"}."""

_WRITTEN: dict[str, _Written] = {
    "bytes": _Written(str.encode, "Give text, or utf8:, hex: or b64:.", in_json=True),
    "str": _Written(_parse_text, "Give text."),
    "i64": _Written(int, "Give a decimal number.", in_json=True),
    "u64": _Written(int, "Give a decimal number that is not negative.", in_json=True),
    "float": _Written(_parse_float, "Give a number."),
    "tuple": _Written(_parse_tuple, _TUPLE_HINT),
    "msgpack": _Written(_parse_json, _JSON_HINT),
    "json": _Written(_parse_json, _JSON_HINT),
    "uuid": _Written(parse_uuid, "Give 32 hexadecimal digits, with dashes or without.", True, True),
    "datetime": _Written(
        _parse_datetime, "Give a time with its zone: 2026-11-21T15:30:00Z.", True, True
    ),
    "date": _Written(date.fromisoformat, "Give a day: 2026-11-21.", True, True),
    "timedelta": _Written(text_span, "Give seconds: 90 or 0.5.", True, True),
    "decimal": _Written(_parse_decimal, "Give a number: 10.00.", True, True),
    "decimal-key": _Written(_parse_decimal, "Give a number: 10.00.", True, True),
}
"""By the names of the codecs that come with Tidelog; others take stored bytes only."""


def _parse_bytes_or_text(text: str) -> bytes:
    data = parse_bytes(text)
    return text.encode() if data is None else data


_NAMED_ELEMENTS: dict[type, str] = {
    SingleFloat: "single",
    UUID: "uuid",
    Decimal: "decimal",
    date: "date",
    datetime: "datetime",
    timedelta: "timedelta",
}
_PARSED_ELEMENTS: dict[str, Callable[[str], Any]] = {
    "bytes": _parse_bytes_or_text,
    "float": _parse_float,
    "single": lambda text: SingleFloat(_parse_float(text)),
    **{name: _WRITTEN[name].parse for name in ("uuid", "decimal", "date", "datetime", "timedelta")},
}
"""What in a tuple JSON has no form of its own for, by the name of its only field."""


def value_of_json(value: Any, codec: Codec[Any]) -> Any:
    """Return what a value in a JSON file stands for.

    JSON cannot say all of it: tuples are arrays, bytes are text, and so may be numbers.
    """
    if codec.of is not None:
        return codec.decode(Msgpack.encode(value))
    if codec.name == "tuple" and isinstance(value, list):
        return as_tuple(value)
    written = _WRITTEN.get(codec.name)
    if isinstance(value, str) and written is not None and written.in_json:
        return codec.decode(parse_value(value, codec, "key"))
    return value


def plain(value: Any) -> Any:
    """Return a decoded value in what JSON can hold."""
    if isinstance(value, dict):
        return {_name(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, bytes | bytearray):
        return shown_bytes(bytes(value))
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    if isinstance(value, SingleFloat):
        return value.value
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, datetime):
        return moment_text(value)
    if isinstance(value, timedelta):
        return span_text(value)
    return str(value) if isinstance(value, UUID | date | Decimal) else repr(value)


def _name(key: Any) -> str:
    return key if isinstance(key, str) else json.dumps(plain(key), ensure_ascii=False)


def decoded(data: bytes, codec: Codec[Any] | None) -> tuple[Any, str | None]:
    """Return (value in what JSON can hold, None), or (None, why it does not decode)."""
    if codec is None:
        return None, "the codec is not known here"
    try:
        value = codec.decode(data)
        return plain(Msgpack.decode(data) if codec.of else value), None
    except CodecError as error:
        return None, str(error)


def shown_pair_part(name: str, data: bytes, codec: Codec[Any] | None) -> dict[str, Any]:
    """Return the fields that print a key or value: its bytes and, beside them, what they mean."""
    fields: dict[str, Any] = {name: shown_bytes(data)}
    value, problem = decoded(data, codec)
    if problem is None:
        fields[f"{name}_decoded"] = value
    else:
        fields[f"{name}_problem"] = problem
    return fields


def inline(data: bytes, codec: Codec[Any] | None) -> str:
    """Return a key or value on one line, as ``parse_value`` takes it back.

    It does not of documents with what JSON lacks, such as bytes: ``exact`` is for those.
    """
    if codec is None or codec.name == "bytes":
        return inline_bytes(data)
    value, problem = decoded(data, codec)
    if problem is not None:
        return f"hex:{data.hex()}"
    if codec.name == "str":
        return value if value.isprintable() and not has_prefix(value) else f"hex:{data.hex()}"
    written = _WRITTEN.get(codec.name)
    if written is not None and written.bare:
        return str(value)
    if codec.name == "tuple":
        value = _shown_element(codec.decode(data))
    return json.dumps(value, ensure_ascii=False)


def exact(data: bytes, codec: Codec[Any]) -> str:
    """Return a key or value as text of which ``parse_value`` makes the very same bytes."""
    text = inline(data, codec)
    try:
        same = parse_value(text, codec, "value") == data
    except UsageError:
        same = False
    return text if same else f"hex:{data.hex()}"


def exact_json(data: bytes, codec: Codec[Any]) -> Any:
    """Return a key or value in JSON of which ``value_of_json`` makes the very same bytes.

    ``UsageError`` if JSON cannot say it.
    """
    if codec.name == "bytes":
        text = shown_bytes(data).get("s")
        if text is not None and not has_prefix(text):
            return text
    else:
        value = codec.decode(data)
        shown = plain(value)
        # A codec of somebody else's is asked for its own values only.
        known = codec.name in _WRITTEN or shown == value
        if known and codec.encode(value_of_json(shown, codec)) == data:
            return shown
    raise CodecError(f"{codec.name}: JSON does not have all of the value")


# ------------------------------------------------------------------ times, ranges


def shown_time(microseconds: int) -> str:
    """Return a commit time as ISO 8601 in UTC; a time beyond the calendar as its number."""
    try:
        moment = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=microseconds)
    except OverflowError:
        return f"{microseconds} us"
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def parse_time(text: str) -> int:
    """Return a time in microseconds UTC: ISO 8601 (UTC if it names no zone), or Unix seconds."""
    if re.fullmatch(r"\d{1,20}(\.\d+)?", text):
        return round(float(text) * MICROSECONDS)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"{quoted(text)} is not a time",
            hint="Give 2026-11-21T15:30:00Z, or seconds since 1970.",
        ) from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (moment - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1)


def parse_span(text: str) -> tuple[int, int]:
    """Return (first, last) of ``5..9``, or of a single number."""
    match = re.fullmatch(r"(\d{1,20})(?:\.\.(\d{1,20}))?", text)
    if match is None:
        raise UsageError(f"{quoted(text)} is not a range of numbers", hint="Give 5..9, or 5.")
    first = int(match[1])
    last = first if match[2] is None else int(match[2])
    if last < first:
        raise UsageError(f"the range {quoted(text)} ends before it begins", hint="Give 5..9, or 5.")
    return first, last
