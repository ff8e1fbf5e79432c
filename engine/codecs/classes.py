"""Dataclasses as documents: a MessagePack map with the names of the fields.

Owns the functions behind the codecs that ``codecs.dataclass`` makes.  The hints of a class are
read once and become *parts*, each of which turns values of one hint into what MessagePack holds,
and back:

=========================  ====================================================================
hint                       in the document
=========================  ====================================================================
None, bool, int, float,    themselves
str, bytes, Any
datetime, date             text as ISO 8601, a datetime in UTC and ended by Z
timedelta                  text, in seconds
Decimal, UUID              text, as ``str`` makes of them
an Enum                    the value of the member
a dataclass                a map with the names of its fields
list, tuple, dict          arrays and maps of what they hold
X | Y                      what either makes of it, if the document tells them apart
=========================  ====================================================================

Invariants:

- what comes back equals what went in, and is of the same classes, but within ``Any`` and for
  subclasses of the simple types, which come back as the type of the hint;
- a field that the document lacks takes its default; without one it is an error, and so is a field
  of the document that the class does not have, unless it is named as removed;
- nothing but ``CodecError`` is raised, and it names the field by its path.

Left out: sets, classes that are generic, and fields that ``__init__`` does not take.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, NamedTuple, NoReturn, Union, get_args, get_origin, get_type_hints
from uuid import UUID

from ...affinity.errors import CodecError
from .decimals import decimal_text, text_decimal
from .documents import DEPTH_MAX, decode_msgpack, encode_document
from .moments import (
    day_text,
    moment_text,
    span_text,
    text_day,
    text_moment,
    text_span,
)
from .scalars import damaged, mistyped, refused, shown

_NONE = type(None)
_DOCUMENT = frozenset({_NONE, bool, int, float, str, bytes, list, dict})
_SUPPORTED = (
    "Supported are None, bool, int, float, str, bytes, datetime, date, timedelta, Decimal, UUID, "
    "Enum, dataclasses, Any, and list, tuple, dict and unions of these."
)


class _PartError(Exception):
    """Why a part cannot be turned into a document or back, and the steps to it, innermost first."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.steps: list[str] = []


class _Part(NamedTuple):
    """How the values of one hint are written."""

    name: str
    takes: Callable[[Any], bool]
    """Whether a value is of the hint, as far as its own type tells."""
    wire: frozenset[type]
    """The types that it may have in a document."""
    to_plain: Callable[[Any, int], Any]
    """From a value, and how deep it may be nested, to what the document holds."""
    from_plain: Callable[[Any, int], Any]


class DataclassForm:
    """The two functions of the codec of one dataclass."""

    def __init__(self, kind: type, codec: str, removed: frozenset[str]) -> None:
        self._kind = kind
        self._codec = codec
        self._removed = removed
        self._part = _Reader(codec).part_of_class(kind, removed)

    def __reduce__(self) -> tuple[object, ...]:
        return DataclassForm, (self._kind, self._codec, self._removed)

    def encode(self, value: Any) -> bytes:
        """Return an instance of the class as a document."""
        if not self._part.takes(value):
            raise _of_another_class(self._codec, self._kind, value)
        try:
            return encode_document(self._codec, self._part.to_plain(value, DEPTH_MAX))
        except _PartError as error:
            raise refused(self._codec, str(error), _path(error)) from None

    def decode(self, data: bytes) -> Any:
        """Return the instance that a document tells."""
        document = _document(self._codec, data)
        try:
            return self._part.from_plain(document, DEPTH_MAX)
        except _PartError as error:
            raise CodecError(
                f"{self._codec}: {_path(error)}: {error}",
                hint="The document is of another class, or of another version of this one: give "
                "new fields a default, and name those that are gone with `removed=`.",
            ) from error.__cause__


def instance_maker(kind: type, codec: str) -> Callable[[Any], Any]:
    """Return what makes an instance of a dataclass of what a struct of columns holds.

    That is a document with all fields: of those that are None and whose hint does not take it, the
    default is taken.  What it returns raises ``CodecError``.
    """
    part = _Reader(codec, nulls_lack=True).part_of_class(kind)

    def instance(fields: Any) -> Any:
        try:
            return part.from_plain(fields, DEPTH_MAX)
        except _PartError as error:
            raise refused(codec, str(error), _path(error)) from error.__cause__

    return instance


class RawForm:
    """The functions for documents of a dataclass whose class is not here."""

    def __init__(self, codec: str) -> None:
        self._codec = codec

    def encode(self, _value: Any) -> NoReturn:
        """Refuse: without the class nobody can tell whether it would read the document."""
        raise CodecError(
            f"{self._codec}: the class is not known here", hint=how_to_give(self._codec)
        )

    def decode(self, data: bytes) -> Any:
        """Return the document as a dict."""
        return _document(self._codec, data)


def how_to_give(codec: str) -> str:
    """Return what to do for the codec of a dataclass whose class was not given."""
    name = codec.partition(".")[2]
    return (
        f"Give the class: `tidelog.codecs.dataclass({name.rpartition('.')[2]})`, with "
        f"`name={name!r}` if it is called otherwise. So that tools find it, register the codec in "
        "the entry-point group `tidelog.codecs`."
    )


def _document(codec: str, data: bytes) -> Any:
    try:
        document = decode_msgpack(data)
    except CodecError as error:
        raise damaged(codec, str(error).rpartition("value: ")[2]) from None
    if type(document) is not dict:
        raise damaged(codec, f"a {type(document).__name__} is not a document with fields")
    return document


def _path(error: _PartError) -> str:
    return "$" + "".join(reversed(error.steps))


def _of_another_class(codec: str, kind: type, value: Any) -> CodecError:
    if type(value).__qualname__ != kind.__qualname__:
        return mistyped(codec, kind.__qualname__, value)
    return refused(
        codec,
        f"it is of another class that is called {kind.__qualname__}, too",
        hint="Was the class defined again? Open the store again, and give the new one.",
    )


# ------------------------------------------------------------------ from hints to parts


class _Reader:
    """Turns the hints of a class into parts; a class that names itself is read once.

    ``nulls_lack``: a document lacks the fields that are None in it and whose hint does not take it.
    """

    def __init__(self, codec: str, *, nulls_lack: bool = False) -> None:
        self._codec = codec
        self._nulls_lack = nulls_lack
        self._classes: dict[type, _Part] = {}

    def part_of_class(self, kind: type, removed: frozenset[str] = frozenset()) -> _Part:
        """Return the part for instances of a dataclass."""
        if kind in self._classes:
            return self._classes[kind]
        fields: dict[str, _Part] = {}
        part = _class_part(kind, fields, removed, self._nulls_lack)
        self._classes[kind] = part  # before its fields, which may be of the same class
        try:
            hints = get_type_hints(kind)
        except (NameError, TypeError, AttributeError) as error:
            raise self._refused(kind, f"its hints cannot be resolved: {error}") from None
        for field in dataclasses.fields(kind):
            if not field.init:
                raise self._refused(kind, f"the field {field.name!r} has init=False")
            fields[field.name] = self._part(kind, field.name, hints[field.name])
        try:
            inspect.signature(kind).bind(**fields)
        except TypeError as error:
            raise self._refused(kind, f"it cannot be made of its fields: {error}") from None
        if gone := removed & fields.keys():
            raise self._refused(kind, f"it has the field {min(gone)!r} that is named as removed")
        return part

    def _part(self, kind: type, field: str, hint: Any) -> _Part:
        if hint is None:  # within list[None] it stands for its type
            hint = _NONE
        origin, inner = get_origin(hint), get_args(hint)
        if origin in (Union, types.UnionType):
            parts = [self._part(kind, field, member) for member in inner]
            if overlap := _overlap(parts):
                raise self._refused(
                    kind, f"the field {field!r}: a document does not tell {overlap} apart"
                )
            return _union(parts)
        if hint in (list, dict, tuple):
            origin, inner = hint, {list: (Any,), dict: (Any, Any), tuple: (Any, ...)}[hint]
        if origin in (list, dict, tuple) and inner:
            parts = [self._part(kind, field, member) for member in inner if member is not ...]
            if origin is list:
                return _list(parts[0])
            if origin is tuple:
                return _row(parts[0]) if inner[-1] is ... else _tuple(parts)
            if parts[0].wire <= {str, bytes, int, float, bool, _NONE} or inner[0] is Any:
                return _dict(*parts)
            raise self._refused(kind, f"the field {field!r}: keys of a dict cannot be {inner[0]}")
        found = _SIMPLE.get(hint) if isinstance(hint, type) else None
        if found is not None:
            return found
        if isinstance(hint, type) and issubclass(hint, Enum):
            return self._enum(kind, field, hint)
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            return self.part_of_class(hint)
        raise self._refused(kind, f"the field {field!r}: {hint} is not supported")

    def _enum(self, kind: type, field: str, hint: type[Enum]) -> _Part:
        wire = frozenset(type(member.value) for member in hint)
        if not wire or not wire <= {str, bytes, int, float, bool, _NONE}:
            raise self._refused(
                kind, f"the field {field!r}: the values of {hint.__name__} are not text or numbers"
            )
        if unequal := [member for member in hint if member.value != member.value]:
            raise self._refused(kind, f"the field {field!r}: nothing is equal to {unequal[0]}")
        return _enum_part(hint, wire)

    def _refused(self, kind: type, reason: str) -> CodecError:
        return CodecError(
            f"{self._codec}: dataclass {kind.__qualname__}: {reason}", hint=_SUPPORTED
        )


def _overlap(parts: list[_Part]) -> str | None:
    seen: dict[type, str] = {}
    for part in parts:
        for wire in part.wire:
            if wire in seen:
                return f"{seen[wire]} and {part.name}"
            seen[wire] = part.name
    return None


# ------------------------------------------------------------------ simple parts


def _leaf(kind: type) -> _Part:
    def takes(value: Any) -> bool:
        return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))

    def to_plain(value: Any, _depth: int) -> Any:
        if type(value) is kind or takes(value):
            return value
        raise _mistyped(kind.__name__, value)

    def from_plain(value: Any, _depth: int) -> Any:
        if type(value) is kind:
            return value
        raise _mistyped(kind.__name__, value)

    return _Part(kind.__name__, takes, frozenset({kind}), to_plain, from_plain)


def _float() -> _Part:
    def takes(value: Any) -> bool:
        return isinstance(value, float | int) and not isinstance(value, bool)

    def convert(value: Any, _depth: int) -> float:
        if type(value) is float:
            return value
        if not takes(value):
            raise _mistyped("float", value)
        try:
            number = float(value)
        except OverflowError:
            number = float("inf")
        if number != value:
            raise _PartError("the int is not a double: it would be rounded")
        return number

    return _Part("float", takes, frozenset({float}), convert, convert)


def _any() -> _Part:
    def same(value: Any, _depth: int) -> Any:
        return value

    return _Part("Any", lambda _value: True, _DOCUMENT, same, same)


def _text(kind: type, to_text: Callable[[Any], str], from_text: Callable[[str], Any]) -> _Part:
    def takes(value: Any) -> bool:
        return isinstance(value, kind) and (kind is not date or not isinstance(value, datetime))

    def to_plain(value: Any, _depth: int) -> str:
        if not takes(value):
            raise _mistyped(kind.__name__, value)
        try:
            return to_text(value)
        except ValueError as error:
            raise _PartError(str(error)) from None

    def from_plain(value: Any, _depth: int) -> Any:
        if type(value) is not str:
            raise _mistyped(kind.__name__, value)
        try:
            return from_text(value)
        except (ValueError, OverflowError) as error:
            raise _PartError(f"not a {kind.__name__}: {error}") from None

    return _Part(kind.__name__, takes, frozenset({str}), to_plain, from_plain)


def _text_uuid(text: str) -> UUID:
    value = UUID(text)
    if str(value) != text:
        raise ValueError("not 36 characters in lower case")
    return value


_SIMPLE: Mapping[Any, _Part] = {
    **{kind: _leaf(kind) for kind in (_NONE, bool, int, str, bytes)},
    float: _float(),
    Any: _any(),
    datetime: _text(datetime, moment_text, text_moment),
    date: _text(date, day_text, text_day),
    timedelta: _text(timedelta, span_text, text_span),
    Decimal: _text(Decimal, decimal_text, text_decimal),
    UUID: _text(UUID, str, _text_uuid),
}


def _enum_part(kind: type[Enum], wire: frozenset[type]) -> _Part:
    def to_plain(value: Any, _depth: int) -> Any:
        if type(value) is not kind:
            raise _mistyped(kind.__name__, value)
        return value.value

    def from_plain(value: Any, _depth: int) -> Any:
        try:
            member = kind(value)
        except ValueError:
            raise _PartError(f"{shown(value)} is not a value of {kind.__name__}") from None
        except Exception as error:  # what it does with other values is the user's code
            raise _PartError(f"{kind.__name__} refused it: {error!r}") from error
        if (
            type(member) is not kind
            or type(value) is not type(member.value)
            or member.value != value
        ):
            raise _PartError(f"{shown(value)} is not a value of {kind.__name__}")
        return member

    return _Part(kind.__name__, lambda value: type(value) is kind, wire, to_plain, from_plain)


# ------------------------------------------------------------------ parts made of parts


def _union(parts: list[_Part]) -> _Part:
    by_wire = {wire: part for part in parts for wire in part.wire}
    # An int may stand for a float, unless ints are meant by themselves.
    if float in by_wire:
        by_wire.setdefault(int, by_wire[float])
    name = " | ".join(part.name for part in parts)
    exact_first = sorted(parts, key=lambda part: part.name in ("float", "Any"))

    def to_plain(value: Any, depth: int) -> Any:
        for part in exact_first:
            if part.takes(value):
                return part.to_plain(value, depth)
        raise _mistyped(name, value)

    def from_plain(value: Any, depth: int) -> Any:
        part = by_wire.get(type(value))
        if part is None:
            raise _mistyped(name, value)
        return part.from_plain(value, depth)

    def takes(value: Any) -> bool:
        return any(part.takes(value) for part in parts)

    return _Part(name, takes, frozenset(by_wire), to_plain, from_plain)


def _list(item: _Part) -> _Part:
    def to_plain(value: Any, depth: int) -> list[Any]:
        if type(value) is not list:
            raise _mistyped("list", value)
        return _each(item.to_plain, value, depth)

    def from_plain(value: Any, depth: int) -> list[Any]:
        if type(value) is not list:
            raise _mistyped("list", value)
        return _each(item.from_plain, value, depth)

    return _Part("list", lambda value: type(value) is list, frozenset({list}), to_plain, from_plain)


def _row(item: _Part) -> _Part:
    def to_plain(value: Any, depth: int) -> list[Any]:
        if type(value) is not tuple:
            raise _mistyped("tuple", value)
        return _each(item.to_plain, value, depth)

    def from_plain(value: Any, depth: int) -> tuple[Any, ...]:
        if type(value) is not list:
            raise _mistyped("tuple", value)
        return tuple(_each(item.from_plain, value, depth))

    return _Part(
        "tuple", lambda value: type(value) is tuple, frozenset({list}), to_plain, from_plain
    )


def _tuple(items: list[_Part]) -> _Part:
    def checked(value: Any, depth: int) -> list[tuple[str, _Part, Any, int]]:
        if len(value) != len(items):
            raise _PartError(f"a tuple of {len(items)}, not of {len(value)}")
        left = _deeper(depth)
        pairs = enumerate(zip(items, value, strict=True))
        return [(f"[{index}]", item, element, left) for index, (item, element) in pairs]

    def to_plain(value: Any, depth: int) -> list[Any]:
        if type(value) is not tuple:
            raise _mistyped("tuple", value)
        return [_at(step, item.to_plain, *rest) for step, item, *rest in checked(value, depth)]

    def from_plain(value: Any, depth: int) -> tuple[Any, ...]:
        if type(value) is not list:
            raise _mistyped("tuple", value)
        found = checked(value, depth)
        return tuple(_at(step, item.from_plain, *rest) for step, item, *rest in found)

    return _Part(
        "tuple", lambda value: type(value) is tuple, frozenset({list}), to_plain, from_plain
    )


def _dict(key: _Part, item: _Part) -> _Part:
    def converted(value: Any, depth: int, way: str) -> dict[Any, Any]:
        if type(value) is not dict:
            raise _mistyped("dict", value)
        left, found = _deeper(depth), {}
        for name, element in value.items():
            step = f"[{shown(name)}]"
            turned = _at(step, getattr(key, way), name, left)
            found[turned] = _at(step, getattr(item, way), element, left)
        if len(found) != len(value):
            raise _PartError("two keys of the dict are one in the document")
        return found

    return _Part(
        "dict",
        lambda value: type(value) is dict,
        frozenset({dict}),
        lambda value, depth: converted(value, depth, "to_plain"),
        lambda value, depth: converted(value, depth, "from_plain"),
    )


def _class_part(
    kind: type, fields: dict[str, _Part], removed: frozenset[str], nulls_lack: bool
) -> _Part:
    def to_plain(value: Any, depth: int) -> dict[str, Any]:
        if type(value) is not kind:
            raise _mistyped(kind.__qualname__, value)
        left, found = _deeper(depth), {}
        for name, part in fields.items():
            try:
                held = getattr(value, name)
            except AttributeError:
                raise _PartError(f"the field {name!r} is not set") from None
            found[name] = _at(f".{name}", part.to_plain, held, left)
        return found

    def from_plain(value: Any, depth: int) -> Any:
        if type(value) is not dict:
            raise _mistyped(kind.__qualname__, value)
        left, given = _deeper(depth), {}
        for name, element in value.items():
            part = fields.get(name)
            if part is not None and nulls_lack and element is None and _NONE not in part.wire:
                continue
            if part is not None:
                given[name] = _at(f".{name}", part.from_plain, element, left)
            elif name not in removed:
                raise _PartError(f"{kind.__qualname__} has no field {shown(name)}")
        return _made(kind, given, [name for name in fields if name not in given])

    return _Part(
        kind.__qualname__,
        lambda value: type(value) is kind,
        frozenset({dict}),
        to_plain,
        from_plain,
    )


def _made(kind: Any, given: dict[str, Any], lacking: list[str]) -> Any:
    if lacking:
        for field in dataclasses.fields(kind):
            without = field.default is field.default_factory is dataclasses.MISSING
            if field.name in lacking and without:
                raise _PartError(f"the document has no field {field.name!r}, which has no default")
    try:
        return kind(**given)
    except Exception as error:  # what a class has against a document is the user's code
        raise _PartError(f"{kind.__qualname__} refused it: {error!r}") from error


def _each(convert: Callable[[Any, int], Any], items: Sequence[Any], depth: int) -> list[Any]:
    left = _deeper(depth)
    found: list[Any] = []
    try:
        for item in items:
            found.append(convert(item, left))  # its length tells where it failed
    except _PartError as error:
        error.steps.append(f"[{len(found)}]")
        raise
    return found


def _at(step: str, convert: Callable[[Any, int], Any], value: Any, depth: int) -> Any:
    try:
        return convert(value, depth)
    except _PartError as error:
        error.steps.append(step)
        raise


def _deeper(depth: int) -> int:
    if depth == 0:
        raise _PartError(f"nested more than {DEPTH_MAX} deep")
    return depth - 1


def _mistyped(wanted: str, value: Any) -> _PartError:
    return _PartError(f"is {wanted}, not {type(value).__name__} ({shown(value)})")
