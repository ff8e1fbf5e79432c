"""Plain reads of whatever stands behind a view: the hot path of maps outside of transactions.

Owns the functions that ``Database`` and ``ReadOnlyDatabase`` hand to their maps, and what stands
in place of a view once reading is no longer allowed.

Invariants:

- A read takes the view once, and sees layers and LMDB of one generation.
- A commit is seen whole: who meets one that is being applied waits for its end and reads again.
- Every value that leaves LMDB is checked, and so are the neighbours of a key that is missing.

Left out: ordered reads (``scan``), what a transaction has written itself.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from typing import NoReturn, Protocol, cast

from crc32c import crc32c
from mmh3 import hash as murmur3

from ...affinity.errors import CorruptDataError, TidelogError
from ..system.lmdb_file import KvReadError, read_error
from .namespaces import Namespace, named
from .overlay import View
from .partition_store import check_neighbours
from .stored import (
    FLAGS,
    VALUE,
    check_block,
    check_pair,
    damaged_pair,
    flags_of,
    slice_of,
    user_value,
)


class Viewed(Protocol):
    """Whoever has a view; it may be replaced at any time."""

    @property
    def view(self) -> View:
        """What is to be read now."""

    @property
    def applying(self) -> bool:
        """Whether a commit is half in the view just now."""

    @property
    def changes(self) -> int:
        """How many times commits were applied so far."""


class ClosedView:
    """Stands where a view was, once the store may not be read any more."""

    def __init__(self, error: Callable[[], TidelogError]) -> None:
        self._error = error

    @property
    def layers(self) -> NoReturn:
        """Raise why not."""
        raise self._error()

    txn = stored = newer = layers


def closed_view(error: Callable[[], TidelogError]) -> View:
    """Return a view of which every use raises ``error()``."""
    return cast(View, ClosedView(error))


def failed(source: Viewed, error: Exception) -> TidelogError:
    """Return why a read failed; raises it at once if the store was closed meanwhile."""
    assert source.view.layers is not None
    return read_error(error)


def _check_alive(source: Viewed, namespace: Namespace) -> None:
    """Raise if the store was closed, or else if the map was dropped."""
    assert source.view.layers is not None
    namespace.check_alive()


def getter(
    source: Viewed, namespace: Namespace, wait_applied: Callable[[], None]
) -> Callable[[bytes], bytes | None]:
    """Return a function from encoded key to encoded value: the path of every plain ``get``.

    ``wait_applied`` returns once no commit is half in the view.
    """
    prefixes, (first, count, _) = namespace.prefixes, namespace.space

    def get(key: bytes) -> bytes | None:
        if not namespace.alive:
            _check_alive(source, namespace)
        partition = first + murmur3(key, 0, False) % count
        full_key = prefixes[partition] + key
        view = source.view
        for layer in view.layers:
            part = layer.parts.get(partition)
            if part:
                stored = part.get(full_key)
                if stored is not None:
                    if source.applying:
                        wait_applied()
                        return get(key)
                    if stored[FLAGS]:
                        return None
                    return stored[VALUE]
        try:
            stored = view.txn.get(full_key)
        except KvReadError as error:
            raise failed(source, error) from None
        if source.applying:
            wait_applied()
            return get(key)
        if stored is None:
            try:
                check_neighbours(view.txn, full_key)
            except CorruptDataError as error:
                raise named(error, namespace) from error.__cause__
            if not namespace.alive:  # a checkpoint may have removed what was dropped meanwhile
                _check_alive(source, namespace)
            return None
        if crc32c(full_key + stored):
            raise named(damaged_pair(full_key), namespace)
        if stored[FLAGS]:
            return user_value(full_key, stored)
        return stored[VALUE]

    return get


def read_view(
    view: View, namespace: Namespace | None, partition: int, full_key: bytes
) -> bytes | None:
    """Return the user's value of a key in a view, checked; None if there is none.

    ``namespace``, that of the key, is for errors.
    """
    try:
        stored = read_stored(view, partition, full_key)
    except CorruptDataError as error:
        raise error if namespace is None else named(error, namespace) from error.__cause__
    return None if stored is None else stored[VALUE]


def read_stored(view: View, partition: int, full_key: bytes) -> bytes | None:
    """Return the stored value of a key in a view, checked; None if there is none, or a delete."""
    stored = view.newer(partition, full_key)
    if stored is not None:
        return None if stored[FLAGS] else stored
    try:
        stored = view.txn.get(full_key)
    except KvReadError as error:
        raise read_error(error) from None
    if stored is None:
        check_neighbours(view.txn, full_key)
        return None
    check_pair(full_key, stored)
    return None if user_value(full_key, stored) is None else stored


def get_many(
    source: Viewed, namespace: Namespace, keys: list[bytes], wait_applied: Callable[[], None]
) -> list[bytes | None] | None:
    """Return the encoded values of encoded keys, all of one moment, checked all at once.

    None if a commit came in between: a snapshot will do.
    """
    changes = source.changes
    found = _get_all(source, namespace, keys, wait_applied)
    return found if source.changes == changes and not source.applying else None


def _get_all(
    source: Viewed, namespace: Namespace, keys: list[bytes], wait_applied: Callable[[], None]
) -> list[bytes | None]:
    prefixes, (first, count, _) = namespace.prefixes, namespace.space
    view = source.view
    if not namespace.alive:
        _check_alive(source, namespace)
    for layer in view.layers:
        if layer.parts:
            return list(map(getter(source, namespace, wait_applied), keys))
    full_keys = [prefixes[first + murmur3(key, 0, False) % count] + key for key in keys]
    try:
        stored = list(map(view.txn.get, full_keys))
    except KvReadError as error:
        raise failed(source, error) from None
    if None in stored:
        return list(map(getter(source, namespace, wait_applied), keys))
    found = cast("list[bytes]", stored)
    try:
        check_block(full_keys, found)
    except CorruptDataError as error:
        raise named(error, namespace) from error.__cause__
    if any(map(flags_of, found)):
        return list(map(user_value, full_keys, found))
    return list(map(slice_of, found, repeat(VALUE)))
