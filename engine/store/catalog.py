"""The maps of a store by name: made, found, renamed, dropped.

Invariants:

- What a map is called and which codecs it has is in the log before anybody gets the map.
- All handles of a map share one ``Namespace``, so a rename or a drop reaches every one of them.
- Nobody gets a hidden map, or hears of it, before it has its name.
- A drop is ordered with commits by the log: what comes behind it and touched the map is refused.
  It waits for pessimistic transactions that have locked anything in the map.

Left out: what a map does (``maps``), how its data goes away (``checkpointer``).
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ...affinity.errors import DeadlockError, UsageError
from ...tx.locks import KeyLock
from ...wal.records import HIDDEN, DropNamespaceRecord, NamespaceRecord, encode_record
from ..codecs import registry as codecs
from ..commit.entries import Commit
from ..commit.lock_manager import map_key
from ..data.namespaces import Home, Namespace, bound, check_codecs, check_name, no_map
from ..data.updates import NoUpdates
from ..system.forks import free
from .opening import OpenStore

AnyCodec = codecs.ValueCodec[Any]
Version = tuple[str, int]
"""Name and version of a codec."""


class Catalog:
    """The maps of an open store; shared by threads."""

    def __init__(
        self, store: OpenStore, durable: bool, given: Sequence[AnyCodec], home: Home
    ) -> None:
        self._store = store
        self._home = home
        self._durable = durable
        self._given = given
        self._namespaces: dict[int, Namespace] = {}
        self._naming = threading.Lock()

    def map(
        self, name: str, key: AnyCodec | None, value: AnyCodec | None, *, create: bool = True
    ) -> Namespace:
        """Return the namespace of a name; if there is none ``create`` makes it."""
        check_name(name)
        with self._naming:
            record = self._record_of(name)
            if record is None:
                if not create:
                    raise no_map(name, self.names())
                record = self._new(name, key, value)
            namespace = self._namespaces.get(record.id)
            if namespace is None:
                given = [key, value, *self._given]
                namespace = bound(record, self._store.state.space_of(record), self._home, given)
                self._namespaces[record.id] = namespace
        check_codecs(namespace, key, value)
        return namespace

    def forked(self) -> None:
        """In the child of a fork: wait for nobody of the parent."""
        free(self._naming)

    def names(self) -> list[str]:
        """Return all names, sorted."""
        return sorted(record.name for record in self._visible())

    def record(self, number: int) -> NamespaceRecord | None:
        """Return what is recorded about an id."""
        return self._store.state.namespaces.get(number)

    def name_of(self, number: int) -> str:
        """Return what to call an id, of a dropped map too."""
        return self._store.committer.context.name_of(number)

    def drop(self, name: str, lock_timeout: float) -> None:
        """Remove a map; ``NotFoundError`` if there is none.

        ``LockTimeoutError`` if somebody keeps locks in it for ``lock_timeout`` seconds.
        """
        while True:
            try:
                if self._dropped(name, lock_timeout):
                    return
            except DeadlockError:
                # It stood, waiting, in the way of those it waits for: they go first.
                continue

    def _dropped(self, name: str, lock_timeout: float) -> bool:
        """Drop a map; False, and nothing done, if another one has got its name meanwhile."""
        locks = self._store.locks
        with self._naming:
            wanted = self._existing(name).id
        owner = locks.new_owner()
        try:
            # Not under the naming lock: whoever is waited for may want a map.
            locks.acquire(owner, KeyLock(map_key(wanted)), timeout=lock_timeout, deadline=None)
            with self._naming:
                record = self._existing(name)
                if record.id != wanted:
                    return False
                self._drop(record)
                return True
        finally:
            locks.release(owner)

    def _drop(self, record: NamespaceRecord) -> None:
        """Log that a map is gone; from there on no commit may touch it."""
        committer, state = self._store.committer, self._store.state
        number, dropped = record.id, committer.context.dropped
        logged = DropNamespaceRecord(id=number, time=self._store.environment.clock())
        payload = encode_record(logged)

        def refuse_others(_time: int) -> bytes:
            # Those behind it in its own group hear of it before it takes effect.
            dropped[number] = record.name
            return payload

        def take_effect() -> None:
            state.apply(0, logged)
            namespace = self._namespaces.get(number)
            if namespace is not None:
                namespace.drop(self._store.writer.position)  # first: a signal may come behind it
                self._namespaces.pop(number, None)

        commit = Commit(NoUpdates(), self._durable)
        commit.record, commit.then = refuse_others, take_effect
        commit.undo = lambda: dropped.pop(number, None)
        committer.commit(commit)

    def rename(self, old: str, new: str) -> None:
        """Give a map another name; ``UsageError`` if that is taken."""
        with self._naming:
            record = self._existing(old)
            self.check_free(new)
            self._log(replace(record, name=new))
            namespace = self._namespaces.get(record.id)
            if namespace is not None:
                namespace.name = new

    def check_free(self, name: str) -> None:
        """Raise ``UsageError`` if a map has the name, or no map may have it."""
        if self._record_of(check_name(name)) is not None:
            raise UsageError(
                f"there is a map {name!r} already", hint="Give another name, or drop that map."
            )

    # -------------------------------------------------------------- hidden maps

    def make_hidden(self, load: bytes, key: Version, value: Version) -> Namespace:
        """Make a map for a load; raises ``CodecError`` if nobody knows its codecs."""
        with self._naming:
            record = NamespaceRecord(
                id=self._store.state.next_namespace,
                name=HIDDEN + load.hex(),
                key_codec=key[0],
                key_version=key[1],
                value_codec=value[0],
                value_version=value[1],
            )
            namespace = bound(record, self._store.state.space_of(record), self._home, self._given)
            self._log(record)
        return namespace

    def publish(self, namespace: Namespace, name: str) -> None:
        """Give a hidden map its name, durably, unless that was taken meanwhile (``UsageError``)."""
        with self._naming:
            self.check_free(name)
            hidden = self._store.state.namespaces[namespace.id]
            namespace.name = name
            namespace.since = self._store.committer.applied_position + 1
            self._namespaces[namespace.id] = namespace
            self._log(replace(hidden, name=name), durable=True)

    def drop_hidden(self) -> None:
        """Remove what has not got its name; a store that is opened begins without such maps."""
        with self._naming:
            for record in list(self._store.state.namespaces.values()):
                if record.hidden:
                    self._drop(record)

    # -------------------------------------------------------------- records

    def _visible(self) -> list[NamespaceRecord]:
        records = list(self._store.state.namespaces.values())
        return [record for record in records if not record.hidden]

    def _record_of(self, name: str) -> NamespaceRecord | None:
        return next((record for record in self._visible() if record.name == name), None)

    def _existing(self, name: str) -> NamespaceRecord:
        record = self._record_of(name)
        if record is None:
            raise no_map(name, self.names())
        return record

    def _new(self, name: str, key: AnyCodec | None, value: AnyCodec | None) -> NamespaceRecord:
        key = codecs.as_codec(codecs.Bytes if key is None else key)
        value = codecs.as_codec(codecs.Bytes if value is None else value)
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

    def _log(self, record: NamespaceRecord, *, durable: bool = False) -> None:
        state = self._store.state
        self._store.committer.log(
            [record], durable=durable or self._durable, then=lambda: state.apply(0, record)
        )
