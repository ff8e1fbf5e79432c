"""The maps of a store by name: made, found, renamed, dropped.

Invariants:

- What a map is called and which codecs it has is in the log before anybody gets the map.
- All handles of a map share one ``Namespace``, so a rename or a drop reaches every one of them.

Left out: what a map does (``maps``), how its data goes away (``checkpointer``).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..affinity.errors import NotFoundError, UsageError
from ..wal.records import DropNamespaceRecord, NamespaceRecord
from . import codecs
from .namespaces import Namespace, bound, check_codecs, check_name
from .opening import OpenStore

Codec = codecs.ValueCodec[Any]


class Catalog:
    """The maps of an open store; shared by threads."""

    def __init__(self, store: OpenStore, durable: bool, given: Sequence[Codec]) -> None:
        self._store = store
        self._durable = durable
        self._given = given
        self._namespaces: dict[int, Namespace] = {}
        self._naming = threading.Lock()

    def map(self, name: str, key: Codec | None, value: Codec | None) -> Namespace:
        """Return the namespace of a name, making it where there is none."""
        check_name(name)
        with self._naming:
            record = self._record_of(name)
            if record is None:
                record = self._new(name, key, value)
            namespace = self._namespaces.get(record.id)
            if namespace is None:
                given = [key, value, *self._given]
                namespace = bound(record, self._store.state.partitions, given)
                self._namespaces[record.id] = namespace
        check_codecs(namespace, key, value)
        return namespace

    def names(self) -> list[str]:
        """Return all names, sorted."""
        return sorted(record.name for record in list(self._store.state.namespaces.values()))

    def record(self, number: int) -> NamespaceRecord | None:
        """Return what is recorded about an id."""
        return self._store.state.namespaces.get(number)

    def name_of(self, number: int) -> str:
        """Return what to call an id, of a dropped map too."""
        record = self.record(number)
        return record.name if record else f"namespace {number}"

    def drop(self, name: str) -> None:
        """Remove a map; ``NotFoundError`` where there is none."""
        with self._naming:
            record = self._existing(name)
            time = self._store.environment.clock()
            self._log(DropNamespaceRecord(id=record.id, time=time))
            namespace = self._namespaces.pop(record.id, None)
            if namespace is not None:
                namespace.alive = False

    def rename(self, old: str, new: str) -> None:
        """Give a map another name; ``UsageError`` where that is taken."""
        check_name(new)
        with self._naming:
            record = self._existing(old)
            if self._record_of(new) is not None:
                raise UsageError(f"there is a map {new!r} already")
            self._log(replace(record, name=new))
            namespace = self._namespaces.get(record.id)
            if namespace is not None:
                namespace.name = new

    def _record_of(self, name: str) -> NamespaceRecord | None:
        for record in list(self._store.state.namespaces.values()):
            if record.name == name:
                return record
        return None

    def _existing(self, name: str) -> NamespaceRecord:
        record = self._record_of(name)
        if record is None:
            raise NotFoundError(f"there is no map {name!r}")
        return record

    def _new(self, name: str, key: Codec | None, value: Codec | None) -> NamespaceRecord:
        key = codecs.as_codec(key or codecs.Bytes)
        value = codecs.as_codec(value or codecs.Bytes)
        record = NamespaceRecord(
            id=self._store.state.next_namespace,
            name=name,
            key_codec=key.name,
            key_version=key.version,
            value_codec=value.name,
            value_version=value.version,
        )
        self._log(record)
        return record

    def _log(self, record: NamespaceRecord | DropNamespaceRecord) -> None:
        state = self._store.state
        self._store.committer.log(
            [record], durable=self._durable, then=lambda: state.apply(0, record)
        )
