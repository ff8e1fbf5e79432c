"""Codecs: how a map turns its keys and values into bytes and back.

Owns ``Codec``, the codecs that come with Tidelog, and the way from a recorded name and version to
a codec.  A map records name and version of both its codecs when it is first used, so that tools
and later programs read it without being told.

Invariants:

- a codec is immutable and may be shared by threads;
- name and version stand for one encoding for ever: a change of the bytes is a new version;
- the names of built-in codecs cannot be taken;
- packages are looked for, and a plug-in imported, only when a name is not known otherwise.

Left out: the limits on the length of keys and values, which the engine checks; and compression
and encryption, which a codec of one's own may do for values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from ...affinity.errors import CodecError
from . import documents as document_codecs, scalars as scalar_codecs, tuples as tuple_codec
from .tuples import SingleFloat

__all__ = [
    "I64",
    "U64",
    "Bytes",
    "Codec",
    "Float",
    "Json",
    "KeyCodec",
    "KeyRange",
    "Msgpack",
    "SingleFloat",
    "Str",
    "Tuple",
    "ValueCodec",
    "as_codec",
    "byte_prefix_range",
    "codec_named",
]

ENTRY_POINT_GROUP = "tidelog.codecs"
CODEC_VERSION_MAX = 65_535

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")

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


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Codec(Generic[T]):
    """A codec for keys and values, made of functions.

    ``ordered`` promises that encoded keys sort as the keys do.  ``prefixes`` gives the run of
    keys that begin with a value; for a codec whose bytes are a plain prefix code, make it with
    ``byte_prefix_range``.  Raises ``CodecError`` for a bad name or version.
    """

    name: str
    version: int = 1
    encode: Callable[[T], bytes]
    decode: Callable[[bytes], T]
    ordered: bool = False
    prefixes: Callable[[T], KeyRange] | None = None

    def __post_init__(self) -> None:
        _check_parts(self.name, self.version, self.encode, self.decode)

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


def _check_parts(name: object, version: object, encode: object, decode: object) -> None:
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
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

_BUILT_IN: dict[str, Codec[Any]] = {
    codec.name: codec for codec in (Bytes, Str, I64, U64, Tuple, Float, Msgpack, Json)
}

_CODECS_OF_TYPES: dict[type, str] = {
    str: "Str",
    bytes: "Bytes",
    int: "I64",
    float: "Float",
    tuple: "Tuple",
    list: "Msgpack",
    dict: "Msgpack",
}


# ------------------------------------------------------------------ from a name to a codec


def as_codec(codec: ValueCodec[T]) -> Codec[T]:
    """Return an object that has what ``ValueCodec`` or ``KeyCodec`` ask for as a ``Codec``.

    Raises ``CodecError`` if something is missing or the name is that of a built-in codec.
    """
    if not isinstance(codec, Codec):
        codec = _codec_of(codec)
    if codec is not _BUILT_IN.get(codec.name, codec):
        raise CodecError(
            f"codec {codec.name}: the name is taken by a built-in codec",
            hint="Give it a name of its own, such as `acme.money`.",
        )
    return codec


def _codec_of(codec: ValueCodec[T]) -> Codec[T]:
    try:
        return Codec(
            name=codec.name,
            version=codec.version,
            encode=codec.encode,
            decode=codec.decode,
            ordered=getattr(codec, "ordered", False),
            prefixes=getattr(codec, "prefix_range", None),
        )
    except AttributeError as error:
        raise _no_codec(codec, error) from error


def _no_codec(found: object, reason: AttributeError) -> CodecError:
    if isinstance(found, type):
        instead = _CODECS_OF_TYPES.get(found)
        return CodecError(
            f"the type {found.__name__} is not a codec",
            hint=f"Give `tidelog.codecs.{instead}`."
            if instead
            else "Give an object of it that has name, version, encode and decode.",
        )
    return CodecError(
        f"{type(found).__name__} is not a codec: {reason}",
        hint="A codec has name, version, encode and decode.",
    )


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
    others = ", ".join(str(codec.version) for codec in known if codec.name == name)
    raise CodecError(
        f"codec {name} version {version} is not known" + (f", only {others}" if others else ""),
        hint=f"Install the package that registers {name} in the entry-point group "
        f"`{ENTRY_POINT_GROUP}`, or pass the codec object.",
    )


def known_names() -> list[str]:
    """Return the names of all codecs that are known here, those of installed packages included."""
    from importlib.metadata import entry_points  # slow to import, and seldom needed

    return sorted({*_BUILT_IN, *(point.name for point in entry_points(group=ENTRY_POINT_GROUP))})


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
