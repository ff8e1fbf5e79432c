"""What a notebook shows of a map and of a store: names, codecs, and the first rows of a map.

Invariants:

- All that comes from a store is escaped: names, keys and values are of whoever wrote them.
- Few rows are shown, and of each no more than a line.  What takes long to decode is not decoded.
- It is never an error: what has ended, or cannot be read, says so.

Left out: which rows are first (``SnapshotSession.peek``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from html import escape
from reprlib import Repr
from typing import Any, Protocol

from ...affinity.errors import TidelogError
from ..data.namespaces import Namespace
from .answering import Bound

MAPS = 50
"""Maps of a store that are shown."""
BYTES = 1024
"""Longest key or value that is decoded to be shown."""
TEXT = 120
"""Characters of a key or value that are shown, about."""

_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxlong = _SHORT.maxother = TEXT


class Named(Protocol):
    """A store with maps, open or not."""

    def map(self, name: str, *, create: bool) -> Any:
        """Return the map ``name``."""

    def maps(self) -> list[str]:
        """Return the names of all maps."""


def map_as_html(mapping: Bound) -> str:
    """Return a map as notebooks show it."""
    namespace = mapping._namespace
    head = f"<p>{_codecs(namespace)}</p>"
    try:
        seen = mapping._session.peek(namespace)
    except TidelogError as error:
        return head + _said(error)
    if seen is None:
        return f"{head}<p>in a transaction: what is shown would count as read</p>"
    rows, count = seen
    few = "" if count == len(rows) else "<p>the first ones"
    if few and count is not None:
        few += f" of {count:,}"
    cells = (
        (_decoded(namespace.decode_key, key), _decoded(namespace.decode_value, value))
        for key, value in rows
    )
    return head + _table(("key", "value"), cells) + few + ("</p>" if few else "")


def store_as_html(store: Named) -> str:
    """Return a store as notebooks show it."""
    head = f"<p>{_escaped(repr(store))}</p>"
    try:
        names = store.maps()
    except TidelogError as error:
        return head + _said(error)
    rest = len(names) - MAPS
    more = f"<p>and {rest:,} more</p>" if rest > 0 else ""
    return head + _table(("map", "codecs"), (_map_row(store, name) for name in names[:MAPS])) + more


def _map_row(store: Named, name: str) -> tuple[str, str]:
    try:
        namespace = store.map(name, create=False)._namespace
    except TidelogError as error:  # a codec that is not installed, or a drop in between
        return _text(name), _escaped(str(error))
    return _text(name), _kinds(namespace)


def _codecs(namespace: Namespace) -> str:
    return f"<b>Map</b> {_text(namespace.name)} {_kinds(namespace)}"


def _kinds(namespace: Namespace) -> str:
    return _escaped(f"{namespace.key_codec.name} \N{RIGHTWARDS ARROW} {namespace.value_codec.name}")


def _said(error: TidelogError) -> str:
    return f"<p><i>{_escaped(str(error))}</i></p>"


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table of cells that are escaped already."""
    lines = ["".join(f"<th>{cell}</th>" for cell in head)]
    lines += ["".join(f"<td>{cell}</td>" for cell in row) for row in rows]
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _decoded(decode: Callable[[bytes], object], data: bytes) -> str:
    if len(data) > BYTES:
        return f"<i>{len(data):,} bytes</i>"
    try:
        return _text(decode(data))
    except Exception:  # foreign code: whatever it raises, the bytes are there
        return _text(data)


def _text(value: object) -> str:
    shown = _SHORT.repr(value)
    return _escaped(shown if len(shown) <= 3 * TEXT else f"{shown[: 3 * TEXT]}...")


def _escaped(text: str) -> str:
    # Half a surrogate pair would stop the notebook, which sends UTF-8.
    return escape(text.encode("utf-8", "backslashreplace").decode())
