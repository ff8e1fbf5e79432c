"""Codecs: how a map turns its keys and values into bytes and back.

Owns ``Codec``, the codecs that come with Tidelog, and the way from a recorded name and version to
a codec.  A map records name and version of both its codecs when it is first used, so that tools
and later programs read it without being told.

Invariants:

- a codec is immutable and may be shared by threads;
- name and version stand for one encoding for ever: a change of the bytes is a new version;
- the names of built-in codecs cannot be taken;
- the name of a dataclass's codec begins with ``dataclass.``, so that tools know its documents
  without the class;
- packages are looked for, and a plug-in imported, only when a name is not known otherwise.

Left out: the limits on the length of keys and values, which the engine checks; and compression
and encryption, which a codec of one's own may do for values.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Generic, Protocol, TypeVar
from uuid import UUID

from ...affinity.errors import CodecError, UsageError
from . import (
    decimals as decimal_codecs,
    documents as document_codecs,
    moments as moment_codecs,
    scalars as scalar_codecs,
    tuples as tuple_codec,
)
from .tuples import SingleFloat

__all__ = [
    "I64",
    "U64",
    "Bytes",
    "Codec",
    "Date",
    "Datetime",
    "Dec",
    "DecKey",
    "Float",
    "Json",
    "KeyCodec",
    "KeyRange",
    "Msgpack",
    "SingleFloat",
    "Str",
    "Timedelta",
    "Tuple",
    "Uuid",
    "ValueCodec",
    "as_codec",
    "byte_prefix_range",
    "codec_named",
    "dataclass",
]

ENTRY_POINT_GROUP = "tidelog.codecs"
CODEC_VERSION_MAX = 65_535

DATACLASS_PREFIX = "dataclass."
"""What the names of the codecs begin with that ``dataclass`` makes."""

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_NAME_OF_CLASS = re.compile(r"dataclass\.[A-Za-z0-9_][A-Za-z0-9._-]{0,53}")

T = TypeVar("T")

KeyRange = tuple[bytes, bytes | None]
"""Encoded start (included) and stop (not included; None: no upper end) of a run of keys."""


class ValueCodec(Protocol[T]):
    """What a codec of one's own has to have, to be used for values.

    ``encode`` and ``decode`` raise ``CodecError`` for what they cannot take, and are called by
    several threads at once.
    """

    @property
    def name(self) -> str:
        """The name recorded with the map: a-z, 0-9, ``._-``, at most 64."""

    @property
    def version(self) -> int:
        """The version of the encoding, from 1."""

    def encode(self, value: T, /) -> bytes:
        """Return the bytes that stand for a value."""

    def decode(self, data: bytes, /) -> T:
        """Return the value that the bytes stand for."""


class KeyCodec(ValueCodec[T], Protocol[T]):
    """What a codec of one's own has to have, to be used for keys; equal keys, equal bytes."""

    @property
    def ordered(self) -> bool:
        """Whether the encoded bytes sort as the keys do; without it a map has no ``range``."""

    def prefix_range(self, value: T, /) -> KeyRange:
        """Return the run of keys that begin with a value, or raise ``CodecError``."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Codec(Generic[T]):
    """A codec for keys and values, made of functions.

    ``ordered`` promises that encoded keys sort as the keys do.  ``prefixes`` gives the run of
    keys that begin with a value; for a codec whose bytes are a plain prefix code, make it with
    ``byte_prefix_range``.  ``of`` is the class of the values if ``dataclass`` has made it.  Raises
    ``CodecError`` for a bad name or version.
    """

    name: str
    version: int = 1
    encode: Callable[[T], bytes]
    decode: Callable[[bytes], T]
    ordered: bool = False
    prefixes: Callable[[T], KeyRange] | None = None
    of: type | None = None

    def __post_init__(self) -> None:
        _check_parts(self.name, self.version, self.encode, self.decode, self.of)

    def __repr__(self) -> str:
        return f"<codec {self.name} {self.version}{' ordered' if self.ordered else ''}>"

    def prefix_range(self, value: T, /) -> KeyRange:
        """Return the run of keys that begin with ``value``, or raise ``CodecError``."""
        if self.prefixes is None:
            raise CodecError(
                f"codec {self.name}: its keys have no prefixes",
                hint="Use `range(start, stop)`, or a key codec such as Str or Tuple.",
            )
        return self.prefixes(value)


def _check_parts(
    name: object, version: object, encode: object, decode: object, of: type | None
) -> None:
    pattern = _NAME if of is None else _NAME_OF_CLASS
    if not isinstance(name, str) or pattern.fullmatch(name) is None:
        raise CodecError(
            f"{name!r} is not a name for a codec",
            hint="Use a-z, 0-9 and ._- (not first), at most 64 of them.",
        )
    if type(version) is not int or not 1 <= version <= CODEC_VERSION_MAX:
        raise CodecError(f"codec {name}: the version is not within 1 to {CODEC_VERSION_MAX}")
    if not callable(encode) or not callable(decode):
        raise CodecError(f"codec {name}: encode and decode must be functions")


def byte_prefix_range(prefix: bytes) -> KeyRange:
    """Return the run of byte strings that begin with ``prefix``."""
    head = prefix.rstrip(b"\xff")
    if not head:
        return prefix, None
    return prefix, head[:-1] + bytes((head[-1] + 1,))


def _bytes_prefix_range(value: bytes) -> KeyRange:
    return byte_prefix_range(scalar_codecs.encode_bytes(value))


def _str_prefix_range(value: str) -> KeyRange:
    return byte_prefix_range(scalar_codecs.encode_str(value))


# ------------------------------------------------------------------ those that come with Tidelog

Bytes: Codec[bytes] = Codec(
    name="bytes",
    encode=scalar_codecs.encode_bytes,
    decode=bytes,
    ordered=True,
    prefixes=_bytes_prefix_range,
)
"""Bytes as they are; the codec of a map that names none."""

Str: Codec[str] = Codec(
    name="str",
    encode=scalar_codecs.encode_str,
    decode=scalar_codecs.decode_str,
    ordered=True,
    prefixes=_str_prefix_range,
)
"""Text in UTF-8, in the order of Python: by code point."""

I64: Codec[int] = Codec(
    name="i64",
    encode=scalar_codecs.encode_i64,
    decode=scalar_codecs.decode_i64,
    ordered=True,
)
"""Integers from -2**63 to 2**63 - 1, eight bytes."""

U64: Codec[int] = Codec(
    name="u64",
    encode=scalar_codecs.encode_u64,
    decode=scalar_codecs.decode_u64,
    ordered=True,
)
"""Integers from 0 to 2**64 - 1, eight bytes."""

Tuple: Codec[tuple[Any, ...]] = Codec(
    name="tuple",
    encode=tuple_codec.pack,
    decode=tuple_codec.unpack,
    ordered=True,
    prefixes=tuple_codec.prefix_range,
)
"""Tuples in the FoundationDB tuple layout; a prefix is a shorter tuple."""

Float: Codec[float] = Codec(
    name="float",
    encode=scalar_codecs.encode_float,
    decode=scalar_codecs.decode_float,
)
"""Doubles, NaN and infinities included, eight bytes; as a key use ``Tuple``."""

Msgpack: Codec[Any] = Codec(
    name="msgpack",
    encode=document_codecs.encode_msgpack,
    decode=document_codecs.decode_msgpack,
)
"""Dicts, lists, text, bytes and numbers as MessagePack; tuples come back as lists."""

Json: Codec[Any] = Codec(
    name="json",
    encode=document_codecs.encode_json,
    decode=document_codecs.decode_json,
)
"""Dicts with str keys, lists, text and numbers as JSON; tuples come back as lists."""

Uuid: Codec[UUID] = Codec(
    name="uuid",
    encode=scalar_codecs.encode_uuid,
    decode=scalar_codecs.decode_uuid,
    ordered=True,
)
"""UUIDs, sixteen bytes."""

Datetime: Codec[datetime] = Codec(
    name="datetime",
    encode=moment_codecs.encode_datetime,
    decode=moment_codecs.decode_datetime,
    ordered=True,
)
"""Moments with a time zone, to the microsecond; they come back in UTC."""

Date: Codec[date] = Codec(
    name="date",
    encode=moment_codecs.encode_date,
    decode=moment_codecs.decode_date,
    ordered=True,
)
"""Days."""

Timedelta: Codec[timedelta] = Codec(
    name="timedelta",
    encode=moment_codecs.encode_timedelta,
    decode=moment_codecs.decode_timedelta,
    ordered=True,
)
"""Spans of time, to the microsecond."""

Dec: Codec[Decimal] = Codec(
    name="decimal",
    encode=decimal_codecs.encode_decimal,
    decode=decimal_codecs.decode_decimal,
)
"""Decimals with all their digits and their exponent, as text; as a key use ``DecKey``."""

DecKey: Codec[Decimal] = Codec(
    name="decimal-key",
    encode=decimal_codecs.encode_decimal_key,
    decode=decimal_codecs.decode_decimal_key,
    ordered=True,
)
"""Decimals in the order of numbers, one key per number: ``0.1`` and ``0.10`` are the same."""

_BUILT_IN: dict[str, Codec[Any]] = {
    codec.name: codec
    for codec in (
        Bytes,
        Str,
        I64,
        U64,
        Tuple,
        Float,
        Msgpack,
        Json,
        Uuid,
        Datetime,
        Date,
        Timedelta,
        Dec,
        DecKey,
    )
}

_CODECS_OF_TYPES: dict[type, str] = {
    str: "Str",
    bytes: "Bytes",
    bytearray: "Bytes",
    int: "I64",
    float: "Float",
    tuple: "Tuple",
    list: "Msgpack` or `tidelog.codecs.Json",
    dict: "Msgpack` or `tidelog.codecs.Json",
    UUID: "Uuid",
    datetime: "Datetime",
    date: "Date",
    timedelta: "Timedelta",
    Decimal: "Dec` for values, `tidelog.codecs.DecKey` for keys",
}


def dataclass(kind: type[T], *, name: str | None = None, removed: Iterable[str] = ()) -> Codec[T]:
    """Return the codec whose values are instances of a dataclass, stored by the names of fields.

    It is recorded as ``dataclass.`` and ``name``, which is that of the class unless it is given.
    ``removed`` names fields that the class had once: stored ones are left out.  Raises
    ``CodecError`` for what is not a dataclass, and for hints that cannot be stored.
    """
    from .classes import DataclassForm  # reads the hints of classes, which few stores need

    given: object = kind
    if not isinstance(given, type) or not dataclasses.is_dataclass(given):
        shown = given.__qualname__ if isinstance(given, type) else scalar_codecs.shown(given)
        raise CodecError(f"{shown} is not a dataclass", hint="Put `@dataclass` above the class.")
    if isinstance(removed, str):
        raise CodecError(f"removed={removed!r} is not a list of names", hint=f"Give [{removed!r}].")
    own = kind.__qualname__.rpartition("<locals>.")[2] if name is None else name
    form = DataclassForm(kind, f"{DATACLASS_PREFIX}{own}", frozenset(removed))
    return Codec(name=f"{DATACLASS_PREFIX}{own}", encode=form.encode, decode=form.decode, of=kind)


# ------------------------------------------------------------------ from a name to a codec


def as_codec(codec: ValueCodec[T]) -> Codec[T]:
    """Return an object that has what ``ValueCodec`` or ``KeyCodec`` ask for as a ``Codec``.

    Raises ``CodecError`` if something is missing or the name is that of a built-in codec.
    """
    if not isinstance(codec, Codec):
        codec = _codec_of(codec)
    if codec is not _BUILT_IN.get(codec.name, codec) or (
        codec.of is None and codec.name.startswith(DATACLASS_PREFIX)
    ):
        raise CodecError(
            f"codec {codec.name}: the name is taken by a built-in codec",
            hint="Give it a name of its own, such as `acme.money`.",
        )
    return codec


def given_codecs(codecs: Iterable[ValueCodec[Any]]) -> list[Codec[Any]]:
    """Return the codecs that a caller gave; ``UsageError`` for what is not a list of codecs."""
    try:
        items = iter(codecs)
    except TypeError:
        raise UsageError(
            f"codecs={codecs!r} is not a list of codecs", hint="Give a list: `codecs=[...]`."
        ) from None
    return [as_codec(codec) for codec in items]


def _codec_of(codec: ValueCodec[T]) -> Codec[T]:
    for member in ("name", "version", "encode", "decode"):
        if not hasattr(codec, member) or isinstance(codec, type):
            raise _not_a_codec(codec, member)
    return Codec(
        name=codec.name,
        version=codec.version,
        encode=codec.encode,
        decode=codec.decode,
        ordered=getattr(codec, "ordered", False),
        prefixes=getattr(codec, "prefix_range", None),
    )


def _not_a_codec(found: object, lacking: str) -> CodecError:
    if isinstance(found, type):
        return CodecError(f"the type {found.__name__} is not a codec", hint=_instead_of(found))
    if isinstance(found, str):
        built_in = _BUILT_IN.get(found.lower())
        hint = (
            f"Give `tidelog.codecs.{_spelled(built_in)}`."
            if built_in
            else _known_like(found, _spelled)
        )
        return CodecError(f"the text {scalar_codecs.shown(found)} is not a codec", hint=hint)
    return CodecError(
        f"{scalar_codecs.shown(found)} is not a codec: {type(found).__name__} has no {lacking}",
        hint="A codec has name, version, encode and decode.",
    )


def _instead_of(kind: type) -> str:
    instead = _CODECS_OF_TYPES.get(kind)
    if instead is not None:
        return f"Give `tidelog.codecs.{instead}`."
    if dataclasses.is_dataclass(kind):
        return f"Give `tidelog.codecs.dataclass({kind.__qualname__})`."
    if isinstance(getattr(kind, "encode", None), Callable):  # type: ignore[arg-type]
        return f"Give an object of it: `{kind.__name__}()`."
    return "Give one of `tidelog.codecs`, or an object with name, version, encode and decode."


def _spelled(codec: Codec[Any]) -> str:
    return next(name for name, held in globals().items() if held is codec)


def _recorded(codec: Codec[Any]) -> str:
    return codec.name


def _known_like(name: str, told: Callable[[Codec[Any]], str] = _recorded) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name.lower(), _BUILT_IN, n=1)
    guess = f"Did you mean `{told(_BUILT_IN[near[0]])}`? " if near else ""
    return f"{guess}The codecs of Tidelog are: {', '.join(map(told, _BUILT_IN.values()))}."


def codec_named(
    name: str, version: int = 1, *, given: Iterable[ValueCodec[Any]] = ()
) -> Codec[Any]:
    """Return the codec of a recorded name and version.

    Looks among the built-in ones, then among ``given``, then among those that installed packages
    register in the entry-point group ``tidelog.codecs``.  Raises ``CodecError`` if all fail.
    """
    built_in = _BUILT_IN.get(name)
    known = [built_in] if built_in else [as_codec(codec) for codec in given]
    found = _find(known, name, version)
    if found is None and built_in is None:
        known += _registered(name)
        found = _find(known, name, version)
    if found is not None:
        return found
    if built_in is not None:
        raise CodecError(
            f"codec {name} version {version} is not known: this Tidelog has {built_in.version}",
            hint="Use a newer version of tidelog.",
        )
    if name.startswith(DATACLASS_PREFIX):
        from .classes import how_to_give

        raise CodecError(
            f"codec {name} is that of a dataclass, which was not given", hint=how_to_give(name)
        )
    others = ", ".join(str(codec.version) for codec in known if codec.name == name)
    raise CodecError(
        f"codec {name} version {version} is not known" + (f", only {others}" if others else ""),
        hint=f"{_known_like(name)} For another one pass the codec object, or install the package "
        f"that registers it in the entry-point group `{ENTRY_POINT_GROUP}`.",
    )


def known_names() -> list[str]:
    """Return the names of all codecs that are known here, those of installed packages included."""
    from importlib.metadata import entry_points  # slow to import, and seldom needed

    return sorted({*_BUILT_IN, *(point.name for point in entry_points(group=ENTRY_POINT_GROUP))})


def reading_codec(name: str, version: int) -> Codec[Any]:
    """Return the codec of a recorded name and version as tools read with it.

    It differs from ``codec_named`` for dataclasses whose class is not registered: their documents
    are dicts, and nothing can be written.
    """
    try:
        return codec_named(name, version)
    except CodecError:
        if version != 1 or _NAME_OF_CLASS.fullmatch(name) is None:
            raise
    from .classes import RawForm

    form = RawForm(name)
    return Codec(name=name, encode=form.encode, decode=form.decode, of=dict)


def is_built_in(codec: Codec[Any]) -> bool:
    """Tell whether a codec is one of those that come with Tidelog."""
    return codec is _BUILT_IN.get(codec.name)


def _find(codecs: Iterable[Codec[Any]], name: str, version: int) -> Codec[Any] | None:
    return next((c for c in codecs if c.name == name and c.version == version), None)


def _registered(name: str) -> list[Codec[Any]]:
    """Return what installed packages register under a name: a codec, or a list of its versions."""
    from importlib.metadata import entry_points  # slow to import, and seldom needed

    codecs: list[Codec[Any]] = []
    for point in entry_points(group=ENTRY_POINT_GROUP, name=name):
        try:
            loaded = point.load()
        except Exception as error:  # foreign code: whatever it raises, the codec is not there
            raise CodecError(
                f"codec {name}: loading {point.value} failed: {error!r}",
                hint="Repair or remove the package that registers it.",
            ) from error
        versions = loaded if isinstance(loaded, (list, tuple)) else [loaded]
        codecs += [as_codec(codec) for codec in versions]
    return codecs
