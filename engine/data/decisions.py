"""What ``incr``, ``pop``, ``setdefault``, ``compare_and_set`` and ``del`` make of a key's value.

A *decision* is a function from the encoded value of a key (None if there is none) to what the
caller is told and what the key holds from then on: bytes, None for a delete, or ``KEEP``.

Invariants:

- A decision is a function of the value alone: made again of the same bytes it is the same, and
  made in vain it has no effect.
- What it raises is for its caller, and nothing is written then.

Left out: where the value comes from, and when a decision is made (``rewrites``, ``transactions``).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, Literal

from ...affinity.errors import CodecError, UsageError
from .namespaces import Namespace


class Keep(Enum):
    """The type of ``KEEP``."""

    KEEP = "keep"


KEEP = Keep.KEEP
"""In the place of a new value: nothing is written."""

New = bytes | None | Literal[Keep.KEEP]
Decide = Callable[[bytes | None], tuple[Any, New]]

MISSING: Any = object()
"""Stands for a default that was not given."""


def incr(namespace: Namespace, key: Any, delta: int) -> Decide:
    """Add to an integer, taken as 0 if there is none; tell the sum."""
    encode, decode = namespace.encode_value, namespace.decode_value

    def decide(data: bytes | None) -> tuple[int, New]:
        try:
            value = 0 if data is None else decode(data)
            if type(value) is not int:
                raise UsageError(f"the value of {key!r} is {type(value).__name__}, not an integer")
            return value + delta, encode(value + delta)
        except CodecError as error:
            raise namespace.at_key(error, key) from error.__cause__

    return decide


def pop(namespace: Namespace, key: Any, default: Any = MISSING) -> Decide:
    """Delete a key and tell its value; if there is none, ``default`` or ``KeyError``."""
    decode = namespace.decode_value

    def decide(data: bytes | None) -> tuple[Any, New]:
        if data is not None:
            try:
                return decode(data), None
            except CodecError as error:
                raise namespace.at_key(error, key) from error.__cause__
        if default is MISSING:
            raise KeyError(key)
        return default, KEEP

    return decide


def delete(key: Any) -> Decide:
    """Delete a key; ``KeyError`` if there is none."""

    def decide(data: bytes | None) -> tuple[None, New]:
        if data is None:
            raise KeyError(key)
        return None, None

    return decide


def setdefault(namespace: Namespace, key: Any, default: Any) -> Decide:
    """Tell the value of a key, setting it first if there is none."""
    encode, decode = namespace.encode_value, namespace.decode_value

    def decide(data: bytes | None) -> tuple[Any, New]:
        try:
            return (default, encode(default)) if data is None else (decode(data), KEEP)
        except CodecError as error:
            raise namespace.at_key(error, key) from error.__cause__

    return decide


def restore(value: bytes) -> Decide:
    """Give a key the encoded value that it had, unless it has one again."""

    def decide(data: bytes | None) -> tuple[None, New]:
        return None, value if data is None else KEEP

    return decide


def compare_and_set(namespace: Namespace, key: Any, expected: Any, value: Any) -> Decide:
    """Set a key to ``value`` if it has ``expected``, None being no value; tell whether it did."""
    encode, decode = namespace.encode_value, namespace.decode_value

    def decide(data: bytes | None) -> tuple[bool, New]:
        try:
            if (None if data is None else decode(data)) != expected:
                return False, KEEP
            if value is not None:
                return True, encode(value)
        except CodecError as error:
            raise namespace.at_key(error, key) from error.__cause__
        return True, KEEP if data is None else None

    return decide
