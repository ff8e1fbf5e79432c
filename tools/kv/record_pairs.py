"""What the records of an import mean for a map: which codecs it has, and its keys and values.

A ``map`` line and ``pair`` lines of an export of our own keep every byte.  Any other record is
somebody else's: ``ImportFields`` says where its key and its value are.

Invariants:

- A record is taken as its form has it: text of the command line in CSV, JSON in JSON lines, values
  of Python in Parquet and SQLite.
- A record that cannot be loaded is refused with its line or row.

Left out: the forms of files (``record_files``, ``parquet``, ``sqlite_tables``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Literal, TypeGuard
from uuid import UUID

from ...affinity.errors import CodecError, UsageError
from ...engine.codecs.byte_text import bytes_shown
from ...engine.codecs.registry import Codec
from ...engine.data.namespaces import Namespace
from ..shell.text import as_tuple, first_of, parse_value, value_of_json
from ..wal.records import SCHEMA
from .record_files import Numbered, bad_line

DecodedPair = tuple[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportFields:
    """Where key and value are in the records of an import."""

    key: tuple[str, ...]
    value: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """Records, and what their fields are: JSON, or values of Python.

    ``is_text`` tells of a field that it is text as people type it.
    """

    numbered: Iterator[Numbered]
    form: Literal["json", "typed"]
    is_text: Callable[[str], bool] = lambda _field: False
    unit: Literal["line", "row"] = "line"


# ------------------------------------------------------------------ heads of exports


@dataclass(frozen=True, slots=True)
class Head:
    """Name and version of the codecs in the ``map`` line of an export, or None."""

    key_codec: tuple[str, int] | None = None
    value_codec: tuple[str, int] | None = None


def is_head(record: dict[str, Any]) -> bool:
    """Tell whether a record is the ``map`` line of an export, of this version or another one."""
    return (
        type(record.get("v")) is int
        and record.get("type") == "map"
        and {"key_codec", "value_codec"} <= record.keys()
    )


def split_head(records: Iterator[Numbered]) -> tuple[Head, Iterator[Numbered]]:
    """Take the ``map`` line off the front of an export of our own."""
    for number, record in records:
        head = head_of(record, number)
        if head is not None:
            return head, records
        return Head(), _with_first((number, record), records)
    return Head(), iter(())


def head_of(record: dict[str, Any], number: int) -> Head | None:
    """Return what the ``map`` line of an export says; None for any other record."""
    if is_head(record) and record["v"] > SCHEMA:
        raise bad_line(
            number,
            f"an export of version {record['v']} of the format; this version of tidelog reads "
            f"version {SCHEMA}",
            "Load it with the version of tidelog that wrote it, or a later one.",
        )
    if record.get("v") != SCHEMA or record.get("type") != "map":
        return None
    key, value = (record.get(name) for name in ("key_codec", "value_codec"))
    if not (_names_codec(key) and _names_codec(value)):
        raise bad_line(number, "a map line without the codecs of the map")
    return Head((key["name"], key["version"]), (value["name"], value["version"]))


def _names_codec(codec: Any) -> TypeGuard[dict[str, Any]]:
    return (
        isinstance(codec, dict)
        and isinstance(codec.get("name"), str)
        and type(codec.get("version")) is int
    )


def _with_first(first: Numbered, rest: Iterator[Numbered]) -> Iterator[Numbered]:
    yield first
    yield from rest


# ------------------------------------------------------------------ pairs


def pairs_of_records(
    records: Records, namespace: Namespace, fields: ImportFields
) -> Iterator[tuple[DecodedPair, int]]:
    """Yield key and value of each record, and how many bytes both have in the store."""
    for number, record in records.numbered:
        if records.form == "json" and is_head(record):
            raise bad_line(
                number,
                "a second head line: another export begins here",
                "Split the file in front of this line, and load each export by itself.",
            )
        pair = None
        try:
            pair = _pair(record, records, namespace, fields)
            size = len(namespace.encode_key(pair[0])) + len(namespace.encode_value(pair[1]))
        except UsageError as error:
            hint = _field_hint(error, namespace, pair, records.unit)
            raise bad_line(number, str(error), hint, records.unit) from error.__cause__
        except RecursionError:
            raise bad_line(number, "it is nested too deep", unit=records.unit) from None
        yield pair, size


class MissingFieldError(UsageError):
    """A record lacks a field that holds the key or the value."""


_CODECS_OF_TYPES = {
    str: "str", bytes: "bytes", int: "i64", tuple: "tuple", UUID: "uuid", datetime: "datetime",
    date: "date", Decimal: "decimal-key",
}  # fmt: skip
"""Which codec takes keys of a type."""
_NOT_IN_RECORDS = (UUID, date, Decimal)
"""Types that ``msgpack`` and ``json`` do not have; a datetime is a date, too."""


def _field_hint(
    error: UsageError, namespace: Namespace, pair: DecodedPair | None, unit: str
) -> str | None:
    """Return what to do about a record that cannot be loaded; None if the line is to blame."""
    if isinstance(error, MissingFieldError):
        return error.hint
    if not isinstance(error, CodecError):
        return None
    key, value = pair or (None, None)
    wanted = _CODECS_OF_TYPES.get(type(key), namespace.key_codec.name)
    if wanted != namespace.key_codec.name:
        return f"Correct the {unit}, or give --key-codec {wanted} for a new map."
    found = [name for name, part in _parts(value) if isinstance(part, _NOT_IN_RECORDS)]
    if found and isinstance(value, dict):
        return (
            f"A record of {namespace.value_codec.name} has no such type: give the column "
            f"{found[0]!r} as str or float, or make it a value of its own with --value-field."
        )
    if found:
        wanted = _CODECS_OF_TYPES[type(value)].removesuffix("-key")
        return f"Correct the {unit}, or give --value-codec {wanted} for a new map."
    return (
        f"Correct the {unit}, or give other codecs than {namespace.key_codec.name} and "
        f"{namespace.value_codec.name} for a new map: --key-codec, --value-codec."
    )


def _parts(value: Any) -> Iterable[tuple[Any, Any]]:
    return value.items() if isinstance(value, dict) else ((None, value),)


def _pair(
    record: dict[str, Any], records: Records, namespace: Namespace, fields: ImportFields
) -> DecodedPair:
    key_codec, value_codec = namespace.key_codec, namespace.value_codec
    if records.form == "json" and record.get("v") == SCHEMA and record.get("type") == "pair":
        stored = bytes_shown(record.get("key")), bytes_shown(record.get("value"))
        return key_codec.decode(stored[0]), value_codec.decode(stored[1])
    parts = [_field(record, name, "key") for name in fields.key]
    if len(parts) == 1:
        key = _meant(parts[0], fields.key[0], records, key_codec, "key")
    else:
        key = as_tuple(parts)
    name = _value_field(record, fields)
    if name is not None:
        value = _field(record, name, "value")
        return key, _meant(value, name, records, value_codec, "value")
    whole = {name: _field(record, name, "value") for name in fields.value} or record
    return key, value_of_json(whole, value_codec)


def _meant(value: Any, field: str, records: Records, codec: Codec[Any], what: str) -> Any:
    """Return what one field stands for."""
    if isinstance(value, str) and records.is_text(field):
        return codec.decode(parse_value(value, codec, what))
    if isinstance(value, str) and records.form == "typed":
        return value
    return value_of_json(value, codec)


def _field(record: dict[str, Any], name: str, what: str) -> Any:
    if name not in record:
        raise MissingFieldError(
            f"there is no field {name!r}; the record has {first_of(record)}",
            hint=f"Name the field that holds the {what}: --{what}-field.",
        )
    return record[name]


def _value_field(record: dict[str, Any], fields: ImportFields) -> str | None:
    """Return the one field that is the value; None if several are, or the whole record."""
    if fields.value:
        return fields.value[0] if len(fields.value) == 1 else None
    return "value" if set(record) == {*fields.key, "value"} else None
