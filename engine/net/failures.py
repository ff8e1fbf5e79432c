"""From errors to what travels of them, and back: code, message and fields.

The fields are the hint and every attribute that has a plain value.

Invariants:

- An error of a class that both ends know comes back as that class, with the same attributes.
- A code that is not known here, or fields that are not those of its class, make a ``ServerError``
  that keeps code and fields.
- Whatever is raised at one end can be packed: text is UTF-8, integers have 64 bits.

Left out: codes of the protocol alone (``docs/client-protocol.md``).
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import NamedTuple

from ...affinity import errors
from ...affinity.errors import ServerError, TidelogError

TEXT_MAX = 8192
"""Characters of one text that travels with an error; what is behind them is cut off."""
INTEGERS = range(-(1 << 63), 1 << 64)


class Failure(NamedTuple):
    """What travels of an error."""

    code: str
    message: str
    fields: dict[str, object]


class _Shape(NamedTuple):
    kind: type[TidelogError]
    given: frozenset[str]
    """Attributes that its constructor takes."""
    needed: frozenset[str]
    """Those of them that have no default."""
    others: frozenset[str]
    """Attributes that are set later."""


def failure_of(error: Exception) -> Failure:
    """Return what travels of an error; of one that is not Tidelog's, as of a ``ServerError``."""
    if not isinstance(error, TidelogError):
        name = type(error).__name__
        error = ServerError(f"{name}: {error}", server_code=name)
    shape = _SHAPES[error.code]
    fields = {"hint": _plain(error.hint)}
    for name in sorted(shape.given | shape.others):
        value = getattr(error, name, None)
        if _is_plain(value):
            fields[name] = _plain(value)
    return Failure(error.code, str(_plain(str(error))), fields)


def error_of(code: str, message: str, fields: Mapping[str, object]) -> TidelogError:
    """Return the error that arrived."""
    hint = fields.get("hint")
    hint = hint if isinstance(hint, str) else None
    shape = _SHAPES.get(code)
    if shape is None or not shape.needed <= fields.keys():
        left = {name: value for name, value in fields.items() if name != "hint"}
        return ServerError(message, server_code=code, fields=left, hint=hint or None)
    given = {name: fields[name] for name in shape.given if name in fields}
    error: TidelogError = shape.kind(message, hint=hint, **given)
    for name in shape.others:
        if fields.get(name) is not None:
            setattr(error, name, fields[name])
    return error


def _is_plain(value: object) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    if type(value) is int:
        return value in INTEGERS
    return value is None or type(value) in (bool, float, str, bytes)


def _plain(value: object) -> object:
    if isinstance(value, str):
        return value[:TEXT_MAX].encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {str(_plain(key)): _plain(item) for key, item in value.items()}
    return value


def _shape(kind: type[TidelogError]) -> _Shape:
    taken = [
        parameter
        for parameter in inspect.signature(kind).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.name != "hint"
    ]
    return _Shape(
        kind,
        frozenset(parameter.name for parameter in taken),
        frozenset(parameter.name for parameter in taken if parameter.default is parameter.empty),
        frozenset(name for name in vars(kind).get("__annotations__", {}) if name[0] != "_"),
    )


_SHAPES: Mapping[str, _Shape] = {
    kind.code: _shape(kind)
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, TidelogError)
}
"""Of every class of error, by its code."""
