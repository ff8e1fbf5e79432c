"""Nested values of dicts and lists, as MessagePack and as JSON.

Owns the functions behind the codecs ``Msgpack`` and ``Json``.

Invariants:

- what is decoded equals what was encoded, but for tuples, which come back as lists; instances of
  subclasses come back as their base type;
- a value that is taken can be read again: the depth, the dict keys and the types are checked
  before anything is encoded, and no extension type of MessagePack is ever written or read;
- nothing but ``CodecError`` is raised, and a refused value is named by its path, as in
  ``$.items[3].price``;
- the functions may be called by several threads at once.

Left out: dates, decimals, UUIDs and sets, for which the formats have no form that every reader
knows; those of dataclasses are told apart by the hints of the class (``classes``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import msgpack

from .scalars import damaged, refused, unsupported

DEPTH_MAX = 32
"""How many dicts and lists may be nested within each other, the outermost counted."""

_PATH_KEY_LENGTH_MAX = 40

_ENCODE_ERRORS = (ValueError, TypeError, OverflowError)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    """What one format can hold: the types of leaves and of dict keys, and how it is written."""

    name: str
    leaves: frozenset[type]
    keys: frozenset[type]
    pack: Callable[[object], bytes]


_BASES: dict[type, Callable[[Any], object]] = {
    str: str.__str__,
    int: int.__int__,
    float: float.__float__,
    bytes: bytes,
    bytearray: bytes,
}


# ------------------------------------------------------------------ what can be held


def _encode(form: _Form, value: object) -> bytes:
    if not _is_plain(form, value, DEPTH_MAX):
        value = _plain_copy(form, value, "$", DEPTH_MAX)
    try:
        return form.pack(value)
    except _ENCODE_ERRORS as error:
        _plain_copy(form, value, "$", DEPTH_MAX)  # finds and names the part that was refused
        raise refused(form.name, str(error)) from None


def _is_plain(form: _Form, value: object, depth: int) -> bool:
    """Whether the library can be given the value as it is: the usual case, made fast."""
    leaves = form.leaves
    items: Iterable[object]
    if type(value) is dict:
        keys = form.keys
        for key in value:
            if type(key) not in keys:
                return False
        items = value.values()
    elif type(value) is list or type(value) is tuple:
        items = value
    else:
        return type(value) in leaves
    for item in items:
        if type(item) not in leaves and (depth == 1 or not _is_plain(form, item, depth - 1)):
            return False
    return True


def _plain_copy(form: _Form, value: object, path: str, depth: int) -> object:
    """Return the value in plain types, or raise the error that names what stands in the way."""
    # An ExtType is a named tuple; it would come back as a list of two.
    if not isinstance(value, (dict, list, tuple)) or isinstance(value, msgpack.ExtType):
        return _plain_scalar(form, value, form.leaves, path, "")
    if depth == 0:
        raise refused(form.name, f"nested more than {DEPTH_MAX} deep", path)
    if not isinstance(value, dict):
        return [
            _plain_copy(form, item, f"{path}[{index}]", depth - 1)
            for index, item in enumerate(value)
        ]
    copy: dict[object, object] = {}
    for name, item in value.items():
        key = _plain_scalar(form, name, form.keys, path, "dict key: ")
        copy[key] = _plain_copy(form, item, path + _step(key), depth - 1)
    return copy


def _plain_scalar(
    form: _Form, value: object, kinds: frozenset[type], path: str, role: str
) -> object:
    try:
        plain = _as_base(value, kinds)
        form.pack(plain)
    except _ENCODE_ERRORS as error:
        raise refused(form.name, f"{role}{error}", path) from None
    return plain


def _as_base(value: object, kinds: frozenset[type]) -> object:
    if type(value) in kinds:
        return value
    for base, convert in _BASES.items():
        if base in kinds and isinstance(value, base) and not isinstance(value, bool):
            return convert(value)
    raise TypeError(unsupported(value))


def _step(key: object) -> str:
    if isinstance(key, str):
        return f".{key}" if key.isidentifier() else f"[{key[:_PATH_KEY_LENGTH_MAX]!r}]"
    return f"[{key!r}]"


# ------------------------------------------------------------------ MessagePack


def _pack_msgpack(value: object) -> bytes:
    # A Packer is not safe between threads.  One kept per thread would save 0.2 of 0.9 microseconds
    # on a dict of six members, and hold on to a buffer as large as the largest value ever packed.
    return msgpack.packb(value)


_MSGPACK_KEYS: frozenset[type] = frozenset({str, bytes, int, float, bool, type(None)})

_MSGPACK = _Form(
    name="msgpack",
    leaves=_MSGPACK_KEYS | {bytearray},
    keys=_MSGPACK_KEYS,
    pack=_pack_msgpack,
)


def encode_document(codec: str, value: Any) -> bytes:
    """Return the value as MessagePack; errors name the codec that is given."""
    return _encode(replace(_MSGPACK, name=codec), value)


def encode_msgpack(value: Any) -> bytes:
    """Return the value as MessagePack."""
    return _encode(_MSGPACK, value)


def decode_msgpack(data: bytes) -> Any:
    """Return the value that one MessagePack object holds."""
    try:
        value = msgpack.unpackb(data, strict_map_key=False, ext_hook=_refuse_extension)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise damaged("msgpack", str(error) or type(error).__name__) from None
    # A timestamp does not go through the hook; its code is ff, which no text and few numbers hold.
    if b"\xff" in data and not _is_plain(_MSGPACK, value, DEPTH_MAX):
        raise damaged("msgpack", "a timestamp, or too deep")
    return value


def _refuse_extension(code: int, data: bytes) -> NoReturn:
    raise ValueError(f"extension type {code} is not supported")


# ------------------------------------------------------------------ JSON


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_json_text = json.JSONEncoder(
    ensure_ascii=False,
    allow_nan=False,
    check_circular=False,  # the depth is bounded before
    separators=(",", ":"),
).encode
_json_value = json.JSONDecoder(parse_constant=_refuse_constant).decode


def _pack_json(value: object) -> bytes:
    return _json_text(value).encode()


_JSON = _Form(
    name="json",
    leaves=frozenset({str, int, float, bool, type(None)}),
    keys=frozenset({str}),
    pack=_pack_json,
)


def encode_json(value: Any) -> bytes:
    """Return the value as JSON in UTF-8, without spaces; dict keys must be str."""
    return _encode(_JSON, value)


def decode_json(data: bytes) -> Any:
    """Return the value that a JSON text holds."""
    try:
        return _json_value(data.decode())
    except (ValueError, RecursionError) as error:
        raise damaged("json", str(error)) from None
