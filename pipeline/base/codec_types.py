"""What codecs are as columns: values become what Arrow takes for a type, and the other way round.

``CODEC_TYPES`` is the one table of codecs.  One that is not in it, such as one of somebody else,
has no type of its own, and takes that of a sample of its values, or one that is given.

Invariants:

- A value that a type cannot hold is refused, and never changed but for three: a field that a
  struct does not name is left out, what is not text is JSON in a column of text, and text is read
  as a time, a day, a span or a decimal, for which documents have no other form.

Left out: which codecs a map has (``plan.decoding``), and the types themselves (``sql_types``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal, InvalidOperation
from functools import partial, reduce
from typing import Any
from uuid import UUID

from ...affinity.errors import UsageError
from ...engine.codecs.decimals import decimal_text
from ...engine.codecs.moments import day_text, moment_text, span_text, text_span
from ...engine.codecs.registry import DATACLASS_PREFIX
from ...engine.codecs.tuples import SingleFloat
from .sql_types import DECIMAL_DIGITS_MAX, SPAN, SqlType
from .times import EPOCH, time_of

_WHOLE = ("tinyint", "smallint", "int", "bigint")


@dataclass(frozen=True, slots=True)
class CodecType:
    """The type of a codec's values; None is that of a sample, or one that is given.

    ``takes`` are the types of columns that can be written, all of them if there is none.
    ``value`` makes what the codec encodes of what Arrow has in a column of some type.
    """

    kind: str | None = None
    takes: tuple[str, ...] = ()
    value: Callable[[Any, SqlType], Any] = lambda found, _kind: found


def _document(found: Any, kind: SqlType) -> Any:
    """Return a value as dicts and lists; fields that are null are left out, as by ``to_json``."""
    return _nested(found, kind, {}, nulls=False)


def _fields(found: Any, kind: SqlType) -> Any:
    """Return a value as the documents of dataclasses have it: some types as text."""
    return _nested(found, kind, _TEXTS, nulls=True)


_TEXTS: Mapping[type, Callable[[Any], str]] = {
    datetime: moment_text,
    date: day_text,
    timedelta: span_text,
    Decimal: decimal_text,
}


def _nested(
    found: Any, kind: SqlType, texts: Mapping[type, Callable[[Any], str]], *, nulls: bool
) -> Any:
    if found is None or not kind.fields:
        return texts[type(found)](found) if type(found) in texts else found
    inner = dict(kind.fields)
    if kind.name == "struct":
        pairs = ((name, _nested(found[name], inner[name], texts, nulls=nulls)) for name in inner)
        return {name: item for name, item in pairs if nulls or item is not None}
    if kind.name == "map":
        named, held = inner["key"], inner["value"]
        return {
            _nested(key, named, texts, nulls=nulls): _nested(item, held, texts, nulls=nulls)
            for key, item in found
        }
    return [_nested(item, inner["element"], texts, nulls=nulls) for item in found]


def _tuple(found: Any, _kind: SqlType) -> Any:
    """Return a struct as a tuple: nulls are elements, too."""
    if isinstance(found, dict):
        return tuple(_tuple(item, _kind) for item in found.values())
    return found


def _whole(found: Any, _kind: SqlType) -> int:
    """Return an integer or a decimal as an int; one with a fraction is refused."""
    number = int(found)
    if number != found:
        raise UnfitError(f"{found} is not a whole number")
    return number


CODEC_TYPES: Mapping[str, CodecType] = {
    "bytes": CodecType("binary", ("binary",)),
    "str": CodecType("string", ("string",)),
    "i64": CodecType("bigint", _WHOLE),
    "u64": CodecType("decimal(20,0)", (*_WHOLE, "decimal"), _whole),
    "float": CodecType("double", ("float", "double")),
    "tuple": CodecType(None, ("struct",), _tuple),
    "uuid": CodecType("string", ("string",), lambda found, _kind: UUID(found)),
    "datetime": CodecType("timestamp", ("timestamp",)),
    "date": CodecType("date", ("date",)),
    "timedelta": CodecType(SPAN, (SPAN,)),
    "decimal": CodecType(
        "decimal(38,18)", ("decimal", *_WHOLE), lambda found, _kind: Decimal(found)
    ),
    "decimal-key": CodecType(
        "decimal(38,18)", ("decimal", *_WHOLE), lambda found, _kind: Decimal(found)
    ),
    "msgpack": CodecType(None, (), _document),
    "json": CodecType(None, (), _document),
}
"""The type of each codec that comes with Tidelog, by name."""

_OF_DATACLASS = CodecType(None, ("struct",), _fields)

_UNKNOWN = CodecType()


def codec_type(name: str) -> CodecType:
    """Return what a codec is as a column."""
    if name.startswith(DATACLASS_PREFIX):
        return _OF_DATACLASS
    return CODEC_TYPES.get(name, _UNKNOWN)


def check_takes(codec: str, kind: SqlType, column: str, shown: str) -> None:
    """Raise ``UsageError`` if a column of some type cannot be encoded; ``shown`` is the map."""
    takes = codec_type(codec).takes
    if takes and kind.name.partition("(")[0] not in takes:
        raise UsageError(
            f"the column {column} is {kind}; {shown} has the codec {codec} for it, which takes "
            f"{', '.join(takes)}",
            hint=f"Cast it: `cast({column} as ...)`.",
        )


# ------------------------------------------------------------------------------ values for a type


class UnfitError(Exception):
    """Why a type cannot hold a value; ``path`` is where in it, from the innermost out."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.path: list[str] = []

    def __str__(self) -> str:
        return f"${''.join(reversed(self.path))}: {self.args[0]}"


Fit = Callable[[Any], Any]


def fitting(kind: SqlType) -> Fit:
    """Return what makes of a value what Arrow takes for a type; that raises ``UnfitError``."""
    digits = kind.decimal()
    fields = {name: fitting(inner) for name, inner in kind.fields}
    fit: Fit
    if kind.name == "struct":
        fit = partial(_as_struct, fields)
    elif kind.name == "array":
        fit = partial(_as_list, fields["element"])
    elif kind.name == "map":
        fit = partial(_as_pairs, fields["key"], fields["value"])
    elif digits is not None:
        fit = partial(_as_decimal, *digits)
    elif kind.name in _BITS:
        fit = partial(_as_whole, kind.name, 1 << _BITS[kind.name])
    elif kind.name in _PLAIN:
        fit = _PLAIN[kind.name]
    else:
        raise UsageError(f"columns of {kind} cannot be decoded into")
    return lambda value: None if value is None else fit(value)


def _unfit(value: Any, kind: str) -> UnfitError:
    return UnfitError(f"{type(value).__name__} is not {kind}")


def _inner(step: str, fit: Fit, value: Any) -> Any:
    try:
        return fit(value)
    except UnfitError as error:
        error.path.append(step)
        raise


def _as_struct(fields: Mapping[str, Fit], value: Any) -> dict[str, Any]:
    if isinstance(value, tuple):
        if len(value) > len(fields):
            raise UnfitError(f"{len(value)} elements, and {len(fields)} columns")
        value = dict(zip(fields, value, strict=False))
    if not isinstance(value, dict):
        raise _unfit(value, "struct")
    return {name: _inner(f".{name}", fit, value.get(name)) for name, fit in fields.items()}


def _as_list(fit: Fit, value: Any) -> list[Any]:
    if not isinstance(value, (list, tuple)):
        raise _unfit(value, "array")
    return [_inner(f"[{place}]", fit, item) for place, item in enumerate(value)]


def _as_pairs(key_fit: Fit, fit: Fit, value: Any) -> list[tuple[Any, Any]]:
    if not isinstance(value, dict):
        raise _unfit(value, "map")
    if None in value:
        raise UnfitError("a key is null")
    return [
        (_inner(f"[{key!r}]", key_fit, key), _inner(f"[{key!r}]", fit, item))
        for key, item in value.items()
    ]


_BITS = {"tinyint": 7, "smallint": 15, "int": 31, "bigint": 63}


def _as_whole(kind: str, limit: int, value: Any) -> int:
    if type(value) is not int:
        raise _unfit(value, kind)
    if not -limit <= value < limit:
        raise UnfitError(f"the number is not within {kind}")
    return value


_EXACT = Context(prec=DECIMAL_DIGITS_MAX)


def _as_decimal(digits: int, scale: int, value: Any) -> Decimal:
    if type(value) not in (int, float, str, Decimal):
        raise _unfit(value, "decimal")
    try:
        number = Decimal(repr(value)) if type(value) is float else Decimal(value)
    except InvalidOperation:
        raise _unfit(value, "decimal, nor text of one") from None
    _, written, exponent = number.as_tuple()
    if not isinstance(exponent, int):
        raise UnfitError(f"{number} is not a number")
    zeros = len(written) - len("".join(map(str, written)).rstrip("0"))
    if number and (-exponent - zeros > scale or number.adjusted() >= digits - scale):
        raise UnfitError(f"the number is not within decimal({digits},{scale})")
    # Arrow counts the zeros that the exponent stands for, even those of 0E+9.
    return number.quantize(Decimal((0, (1,), -scale)), context=_EXACT)


def _as_float(value: Any) -> float:
    if isinstance(value, SingleFloat):
        return value.value
    if type(value) is int and -(1 << 53) <= value <= 1 << 53:
        return float(value)
    if type(value) is not float:
        raise _unfit(value, "a number that a double holds")
    return value


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, UUID):
        return str(value)
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError):
        raise _unfit(value, "text, nor anything that JSON has") from None


def _as_time(value: Any) -> datetime:
    if isinstance(value, str):
        try:
            return EPOCH + timedelta(microseconds=time_of(value))
        except ValueError as error:
            raise UnfitError(str(error)) from None
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise _unfit(value, "a time with a zone, nor text of one")
    return value.astimezone(UTC)


def _as_date(value: Any) -> date:
    if isinstance(value, str):
        try:
            return date.fromisoformat(value)
        except ValueError as error:
            raise UnfitError(str(error)) from None
    if type(value) is not date:
        raise _unfit(value, "date")
    return value


def _as_span(value: Any) -> timedelta:
    if isinstance(value, str):
        try:
            return text_span(value)
        except ValueError as error:
            raise UnfitError(str(error)) from None
    if type(value) is not timedelta:
        raise _unfit(value, SPAN)
    return value


def _exactly(kind: type, shown: str, value: Any) -> Any:
    if type(value) is not kind:
        raise _unfit(value, shown)
    return value


_PLAIN: Mapping[str, Fit] = {
    "boolean": partial(_exactly, bool, "boolean"),
    "float": _as_float,
    "double": _as_float,
    "string": _as_text,
    "binary": partial(_exactly, bytes, "binary"),
    "date": _as_date,
    "timestamp": _as_time,
    "timestamp_ntz": partial(_exactly, datetime, "timestamp_ntz"),
    SPAN: _as_span,
}


# ------------------------------------------------------------------------------ a type for values

_TEXT = SqlType("string")
_NULL = SqlType("null")
_TYPES: Mapping[type, SqlType] = {
    type(None): _NULL,
    bool: SqlType("boolean"),
    float: SqlType("double"),
    SingleFloat: SqlType("float"),
    str: _TEXT,
    UUID: _TEXT,
    bytes: SqlType("binary"),
    date: SqlType("date"),
    datetime: SqlType("timestamp"),
    timedelta: SqlType(SPAN),
    Decimal: SqlType("decimal(38,18)"),
}
_EMPTY = SqlType("map", (("key", _TEXT), ("value", _NULL)))
_LONG = SqlType("bigint")
_LARGE = SqlType(f"decimal({DECIMAL_DIGITS_MAX},0)")


def sampled_type(values: Iterable[Any]) -> SqlType:
    """Return the type that holds all of some values.

    A dict is a struct of all names that were seen, and a tuple one of ``_1``, ``_2`` and so on.
    What is of several types is text.
    """
    return _known(reduce(_merged, map(_type_of, values), _NULL))


def _type_of(value: Any) -> SqlType:
    if type(value) is int:
        return _LONG if -(1 << 63) <= value < 1 << 63 else _LARGE
    if isinstance(value, tuple):
        named = [(f"_{place}", _type_of(item)) for place, item in enumerate(value, 1)]
        return SqlType("struct", tuple(named)) if named else _EMPTY
    if isinstance(value, list):
        return SqlType("array", (("element", reduce(_merged, map(_type_of, value), _NULL)),))
    if isinstance(value, dict):
        if not value:
            return _EMPTY
        if all(type(name) is str for name in value):
            return SqlType("struct", tuple((name, _type_of(item)) for name, item in value.items()))
        kinds = (reduce(_merged, map(_type_of, of), _NULL) for of in (value, value.values()))
        return SqlType("map", tuple(zip(("key", "value"), kinds, strict=True)))
    return _TYPES.get(type(value), _TEXT)


def _merged(one: SqlType, other: SqlType) -> SqlType:
    """Return a type that holds what two hold."""
    if one == other or other == _NULL:
        return one
    if one == _NULL:
        return other
    kinds = {one.name, other.name}
    if kinds == {"struct", "map"} and _EMPTY in (one, other):
        return other if one == _EMPTY else one
    if len(kinds) == 1 and one.fields:
        fields = dict(one.fields)
        for name, kind in other.fields:
            fields[name] = _merged(fields.get(name, _NULL), kind)
        return SqlType(one.name, tuple(fields.items()))
    for wider, narrower in (("double", {"bigint", "float"}), (_LARGE.name, {"bigint"})):
        if wider in kinds and kinds <= {wider, *narrower}:
            return SqlType(wider)
    return _TEXT


def _known(kind: SqlType) -> SqlType:
    """Return a type with text instead of what was null everywhere."""
    if kind == _NULL:
        return _TEXT
    names = [name.lower() for name, _ in kind.fields]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(
            f"Spark does not tell apart the names of fields that differ in case: {twice[0]}",
            hint="Give the schema, with a map: `map<string,...>`.",
        )
    return SqlType(kind.name, tuple((name, _known(inner)) for name, inner in kind.fields))
