"""How fields that were decoded are read: each is of its type, or ``ValueError`` says what it is.

What is read here came from a disk or over a network as msgpack, so it is nothing, a flag, a number,
text, bytes, an array or a map.  Arrays may be longer than what is read of them: later versions
append fields.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from uuid import UUID

from ...wal.records.shapes import ID_SIZE

T = TypeVar("T")

NUMBERS_END = 1 << 63


def as_number(value: object) -> int:
    """Return a whole number of 63 bits."""
    if type(value) is not int or not 0 <= value < NUMBERS_END:
        raise _unexpected("a number of 63 bits", value)
    return value


def as_flag(value: object) -> bool:
    """Return a flag."""
    if type(value) is not bool:
        raise _unexpected("a flag", value)
    return value


def as_bytes(value: object) -> bytes:
    """Return bytes."""
    if type(value) is not bytes:
        raise _unexpected("bytes", value)
    return value


def as_text(value: object) -> str:
    """Return text."""
    if type(value) is not str:
        raise _unexpected("text", value)
    return value


def as_id(value: object) -> UUID:
    """Return the id that its bytes stand for."""
    if type(value) is not bytes or len(value) != ID_SIZE:
        raise _unexpected(f"the {ID_SIZE} bytes of an id", value)
    return UUID(bytes=value)


def maybe(reader: Callable[[object], T]) -> Callable[[object], T | None]:
    """Return what reads a field that may be nothing."""
    return lambda value: None if value is None else reader(value)


def each(reader: Callable[[object], T]) -> Callable[[object], tuple[T, ...]]:
    """Return what reads an array whose items are all of one kind."""

    def items_of(value: object) -> tuple[T, ...]:
        return tuple(map(reader, as_list(value)))

    return items_of


def as_list(value: object) -> list[Any]:
    """Return an array whose items nobody has read."""
    if type(value) is not list:
        raise _unexpected("an array", value)
    return value


def read_fields(
    row: object,
    *readers: Callable[[object], Any],
    later: Sequence[tuple[Callable[[object], Any], Any]] = (),
) -> list[Any]:
    """Return the first fields of an array, a reader for each; ``ValueError`` if one is missing.

    ``later`` has readers of fields that earlier versions did not write, each with what it is then.
    """
    fields = as_list(row)
    if len(fields) < len(readers):
        raise ValueError(f"expected {len(readers)} fields, found {len(fields)}")
    found = [reader(field) for reader, field in zip(readers, fields, strict=False)]
    behind = fields[len(readers) :]
    return found + [
        reader(behind[place]) if place < len(behind) else missing
        for place, (reader, missing) in enumerate(later)
    ]


def _unexpected(what: str, found: object) -> ValueError:
    shown = repr(found) if type(found) is int else type(found).__name__
    if isinstance(found, (bytes, str)):
        shown = f"{len(found)} of {shown}"
    return ValueError(f"expected {what}, found {shown}")
