"""Bytes as text: as people type them, and as JSON holds them.

``utf8:text``, ``hex:6162`` and ``b64:YWI=`` stand for bytes; printed they are ``{"s": text}`` if
they are printable UTF-8, else ``{"b64": ...}``.  In errors long text is shortened.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable

from ...affinity.errors import UsageError

QUOTED_LENGTH_MAX = 80


def _from_hex(text: str) -> bytes:
    return bytes.fromhex(text)


def _from_base64(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


_PREFIXES: dict[str, Callable[[str], bytes]] = {
    "utf8:": str.encode,
    "hex:": _from_hex,
    "b64:": _from_base64,
}


def parse_bytes(text: str) -> bytes | None:
    """Return the bytes of ``utf8:``, ``hex:`` or ``b64:`` text, or None for any other text."""
    for prefix, decode in _PREFIXES.items():
        if text.startswith(prefix):
            try:
                return decode(text.removeprefix(prefix))
            except (ValueError, binascii.Error) as error:
                raise UsageError(
                    f"{quoted(text)} is not {prefix.rstrip(':')}: {error}",
                    hint="Give utf8:text, hex:6162 or b64:YWI=.",
                ) from None
    return None


def quoted(text: str) -> str:
    """Return text in quotes for an error; of a long one its beginning, and how long it is."""
    if len(text) <= QUOTED_LENGTH_MAX:
        return repr(text)
    return f"{text[:QUOTED_LENGTH_MAX]!r}... ({len(text):,} characters)"


def has_prefix(text: str) -> bool:
    """Tell whether text begins with one of the prefixes, so that it is more than itself."""
    return text.startswith(tuple(_PREFIXES))


def shown_bytes(data: bytes) -> dict[str, str]:
    """Return bytes as they are printed: ``s`` if they are printable text, else ``b64``."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = ""
    if text.isprintable() and (text or not data):
        return {"s": text}
    return {"b64": base64.b64encode(data).decode()}


def bytes_shown(shown: object) -> bytes:
    """Return the bytes that ``shown_bytes`` printed; ``UsageError`` for anything else."""
    match shown:
        case {"s": str(text), **rest} if not rest:
            return text.encode()
        case {"b64": str(text), **rest} if not rest:
            data = parse_bytes(f"b64:{text}")
            assert data is not None
            return data
    raise UsageError(f'{quoted(repr(shown))} is neither {{"s": text}} nor {{"b64": text}}')


def inline_bytes(data: bytes) -> str:
    """Return bytes as people read them, and as ``parse_bytes`` takes them if not text."""
    text = shown_bytes(data).get("s")
    return f"hex:{data.hex()}" if text is None or has_prefix(text) else text
