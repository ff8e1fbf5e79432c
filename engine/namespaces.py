"""A namespace as maps use it: its id, its codecs, and the prefix of its keys in each partition."""

from __future__ import annotations

from typing import Any

from ..affinity.errors import NotFoundError, UsageError
from ..wal.records import NamespaceRecord
from .codecs import Codec
from .stored import pack_prefix

NAME_BYTES_MAX = 255
OUTCOMES = 1
"""The internal namespace of the outcomes of transactions whose id the caller gave."""


class Namespace:
    """A named map: shared by all handles, in transactions and snapshots too."""

    __slots__ = ("alive", "id", "key_codec", "name", "prefixes", "value_codec")

    def __init__(
        self, record: NamespaceRecord, key: Codec[Any], value: Codec[Any], partitions: int
    ) -> None:
        self.id = record.id
        self.name = record.name
        self.key_codec = key
        self.value_codec = value
        self.prefixes = [pack_prefix(partition, record.id) for partition in range(partitions)]
        self.alive = True

    def check_alive(self) -> None:
        """Raise ``NotFoundError`` if the map has been dropped."""
        if not self.alive:
            raise NotFoundError(
                f"the map {self.name!r} was dropped", hint="Ask `db.map` for a new one."
            )


def check_name(name: object) -> str:
    """Return the name of a map, or raise ``UsageError`` for what cannot be one."""
    if not isinstance(name, str) or not name or not name.isprintable():
        raise UsageError(f"{name!r} is no name for a map", hint="Use printable text.")
    if len(name.encode()) > NAME_BYTES_MAX:
        raise UsageError(
            f"the name of a map has at most {NAME_BYTES_MAX} bytes, not {len(name.encode())}"
        )
    return name
