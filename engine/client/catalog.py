"""The maps of a cluster by name, as a client has them: found in the newest view, or asked for.

Invariants:

- All handles of a map share one ``Namespace``, so a rename or a drop that a member tells of reaches
  every one of them.

Left out: what a map does, and who is asked (``routing``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...affinity.errors import UsageError
from ...wal.records import NamespaceRecord
from ..codecs import registry as codecs
from ..data.namespaces import Home, Namespace, bound, check_codecs, check_name, no_map
from .routing import PAUSE_S, AnswerLostError, Cluster, Job, Pause, Steps, served
from .views import ClusterView

MAP_PAUSE_S_MAX = 0.5
"""The longest pause before a map is looked for again that exists, and that nobody has told of."""

GivenCodec = codecs.ValueCodec[Any]


class ClusterCatalog:
    """The maps of a cluster."""

    def __init__(self, cluster: Cluster, given: Sequence[GivenCodec], home: Home) -> None:
        self._cluster = cluster
        self._given = given
        self._home = home
        self._namespaces: dict[int, Namespace] = {}
        cluster.changed = self._changed

    def _changed(self, view: ClusterView) -> None:
        for number, namespace in list(self._namespaces.items()):
            record = view.namespaces.get(number)
            if record is None:
                namespace.drop(0)
                self._namespaces.pop(number, None)
            else:
                namespace.name = record.name

    def map(
        self,
        name: str,
        key: GivenCodec | None,
        value: GivenCodec | None,
        create: bool,
        until: float,
    ) -> Steps[Namespace]:
        """Return the namespace of a name; if there is none ``create`` makes it."""
        check_name(name)
        record = self._record(name)
        if record is None and not create:
            yield from self._refreshed(until)
            record = self._existing(name)
        pause = PAUSE_S
        while record is None:
            names = [codecs.as_codec(codecs.Bytes if c is None else c) for c in (key, value)]
            arguments = (name, *(part for codec in names for part in (codec.name, codec.version)))
            refused = None
            try:
                yield from served(self._cluster, Job((), "map", arguments, until))
            except UsageError as error:
                refused = error
            record = self._record(name)
            if record is None:
                yield from self._refreshed(until)
                record = self._record(name)
            if record is None and refused is not None:
                # Somebody has made it, with codecs that are taken as they are, and who was asked
                # has not heard of it yet.
                if None not in (key, value) or pause > MAP_PAUSE_S_MAX:
                    raise refused
                yield Pause(pause)
                pause *= 2
        namespace = self._bound(record, key, value)
        check_codecs(namespace, key, value)
        return namespace

    def _bound(
        self, record: NamespaceRecord, key: GivenCodec | None, value: GivenCodec | None
    ) -> Namespace:
        found = self._namespaces.get(record.id)
        if found is None:
            view = self._cluster.view
            assert view is not None
            made = bound(record, view.spaces[record.space], self._home, [key, value, *self._given])
            found = self._namespaces.setdefault(record.id, made)  # another thread may have made one
        return found

    def names(self, until: float) -> Steps[list[str]]:
        """Return all names, sorted."""
        yield from self._refreshed(until)
        return self.known_names()

    def drop(self, name: str, until: float) -> Steps[None]:
        """Remove a map; ``NotFoundError`` if there is none."""
        yield from self._refreshed(until)
        number = self._existing(name).id
        yield from self._changes(
            "drop", (name, number), until, lambda view: number not in view.namespaces
        )

    def rename(self, old: str, new: str, until: float) -> Steps[None]:
        """Give a map another name; ``UsageError`` if that is taken."""
        yield from self._refreshed(until)
        number = self._existing(old).id
        if self._record(check_name(new)) is not None:
            raise UsageError(
                f"there is a map {new!r} already", hint="Give another name, or drop that map."
            )

        def done(view: ClusterView) -> bool:
            return number in view.namespaces and view.namespaces[number].name == new

        yield from self._changes("rename", (old, new, number), until, done)

    def _changes(
        self,
        operation: str,
        arguments: tuple[str | int, ...],
        until: float,
        done: Callable[[ClusterView], bool],
    ) -> Steps[None]:
        """Ask for a change; if an answer is lost the newest view tells whether it was made."""
        lost = False
        while True:
            refused = None
            try:
                yield from served(self._cluster, Job((), operation, arguments, until, once=True))
                return
            except AnswerLostError:
                lost = True
            except UsageError as error:
                refused = error
            if lost:
                yield from self._refreshed(until)
                if self._cluster.view is not None and done(self._cluster.view):
                    return
            if refused is not None:
                raise refused

    def _refreshed(self, until: float) -> Steps[None]:
        """Hear from a member what is new."""
        yield from served(self._cluster, Job((), "status", (), until))

    def _record(self, name: str) -> NamespaceRecord | None:
        view = self._cluster.view
        return None if view is None else view.names.get(name)

    def known_names(self) -> list[str]:
        """Return all names that the newest view has, sorted."""
        return [] if self._cluster.view is None else sorted(self._cluster.view.names)

    def _existing(self, name: str) -> NamespaceRecord:
        record = self._record(name)
        if record is None:
            raise no_map(name, self.known_names())
        return record
