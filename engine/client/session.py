"""A cluster as the maps of a client use it: the session of ``api.answering``, over lines.

Left out: what users hold (``blocking``), transactions (``transactions``), who is asked
(``routing``).
"""

from __future__ import annotations

from _thread import get_ident
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar

from ...affinity.errors import UsageError
from ...affinity.partitions import partition_of
from ..api.answering import Session
from ..api.inside import Blocks
from ..api.maps import Map, map_of
from ..api.pickling import WayBack
from ..commit.entries import Receipt
from ..data.decisions import Decide
from ..data.namespaces import Home, Namespace
from ..data.scan import Pair
from ..store.handles import open_handles
from ..store.open_state import OpenState
from ..system.environment import Environment
from . import actions
from .catalog import ClusterCatalog, GivenCodec
from .commits import committing, put_of
from .copies import ReadFrom, way_of
from .ids import Ids
from .lines import Lines
from .places import ClusterPlace
from .reads import PagedScan, ReadWay
from .routing import Cluster, Job, Steps, Tried, served
from .transactions import run_inside

T = TypeVar("T")

PEEKED = 10
"""Pairs that are fetched for whoever only looks."""


class ClusterSession:
    """A client of a cluster; shared by threads."""

    def __init__(
        self,
        place: ClusterPlace,
        environment: Environment,
        timeout: float,
        given: Sequence[GivenCodec],
        read_from: ReadFrom = "primary",
    ) -> None:
        self.path = place.shown
        self.cluster = Cluster(place.addresses, place.cluster)
        self.read_from = read_from
        self.lines = Lines(self.cluster, environment, timeout)
        self.home = Home(place.shown)
        self.catalog = ClusterCatalog(self.cluster, given, self.home)
        self.open_state = OpenState(place.shown)
        self.inside = Blocks()
        self.ids = Ids(self.cluster, environment.clock, environment.new_id)
        self.new_id = self.ids.new
        self.now = environment.monotonic
        self.pause = environment.wait
        self.random = environment.random
        open_handles.add(self)

    def run(self, steps: Callable[[float], Steps[T]]) -> T:
        """Carry out steps that are made with the time at which they have to end."""
        self.open_state.check()
        return self.lines.carry(steps(self.lines.until()))

    def run_about(self, namespace: Namespace, steps: Callable[[float], Steps[T]]) -> T:
        """Carry out steps about a map."""
        return self.run(lambda until: actions.about(namespace, steps(until)))

    def check(self, namespace: Namespace) -> None:
        """Raise unless a map can be asked for something."""
        self.open_state.check()
        namespace.check_alive()

    def check_outside(self, namespace: Namespace) -> None:
        """Raise ``UsageError`` for a plain write in a transaction block of this thread."""
        self.check(namespace)
        if self.inside:
            self.inside.check_write(get_ident(), namespace.name)

    # -------------------------------------------------------------- what maps read and write

    def getter(self, namespace: Namespace) -> Callable[[bytes], bytes | None]:
        """Return a function from encoded key to encoded value."""
        if self.read_from != "primary":
            return lambda key: self.get_many(namespace, [key])[0]
        state, lines, cluster = self.open_state, self.lines, self.cluster
        number, space = namespace.id, namespace.space
        asked = lines.asked

        def get(key: bytes) -> bytes | None:
            if state.closed is not None or not namespace.alive:
                self.check(namespace)
            partition = partition_of(key, space)
            arguments = (number, (key,))

            def otherwise(tried: Tried | None) -> Steps[Any]:
                job = Job((partition,), "get", arguments, lines.until())
                return actions.about(namespace, served(cluster, job, tried))

            value: bytes | None = asked(partition, "get", arguments, otherwise)[0][0]
            return value

        return get

    def setter(self, namespace: Namespace) -> Callable[[bytes, bytes | None], None]:
        """Return a function that commits one update."""
        state, lines, cluster = self.open_state, self.lines, self.cluster
        number, space = namespace.id, namespace.space
        asked, new_id, inside = lines.asked, self.new_id, self.inside

        def put(key: bytes, value: bytes | None) -> None:
            if inside or state.closed is not None or not namespace.alive:
                self.check_outside(namespace)
            partition = partition_of(key, space)
            tx_id = new_id()

            def otherwise(tried: Tried | None) -> Steps[Receipt]:
                commit = put_of(number, partition, key, value)
                begun = None if tried is None else (tx_id, tried)
                steps = committing(cluster, commit, None, new_id, lines.until(), begun)
                return actions.about(namespace, steps)

            view = cluster.view
            epoch = 0 if view is None else view.epochs[partition]
            writes = ((number, (key,), (value,)),)
            arguments = (tx_id, 1, False, None, (), (), writes, (partition,), (epoch,))
            asked(partition, "commit", arguments, otherwise)

        return put

    def get_many(
        self, namespace: Namespace, keys: list[bytes], way: ReadWay | None = None
    ) -> list[bytes | None]:
        """Return the encoded values of encoded keys: one request for each member."""
        self.check(namespace)
        way = way or way_of(self.cluster, self.read_from)
        return self.run_about(
            namespace,
            lambda until: actions.values_of(self.cluster, namespace, keys, until, way),
        )

    def set_many(self, namespace: Namespace, pairs: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Set or delete many encoded keys in one transaction."""
        self.check_outside(namespace)
        self.run_about(
            namespace,
            lambda until: actions.put_many(self.cluster, namespace, pairs, self.new_id, until),
        )

    def rewriter(self, namespace: Namespace) -> Callable[[bytes, Decide], Any]:
        """Return a function that carries out a decision about an encoded key, in one step."""

        def rewrite(key: bytes, decide: Decide) -> Any:
            self.check_outside(namespace)
            return self.run_about(
                namespace,
                lambda until: actions.decided_on(
                    self.cluster, namespace, key, decide, self.new_id, until
                ),
            )

        return rewrite

    def pop_first(self, namespace: Namespace) -> Pair | None:
        """Delete the first key and return the encoded pair, None if there is none."""
        self.check_outside(namespace)
        return self.run_about(
            namespace,
            lambda until: actions.popped_first(self.cluster, namespace, self.new_id, until),
        )

    def atomically(self, namespace: Namespace, work: Callable[[Map[Any, Any]], T]) -> T:
        """Run ``work`` with the map inside a transaction, until it commits."""
        self.check_outside(namespace)
        return run_inside(self, map_of(namespace, self), work)

    def blocks(
        self, namespace: Namespace, start: bytes, stop: bytes | None, reverse: bool, size: int,
        *, values: bool = True, way: ReadWay | None = None,
    ) -> Iterator[list[Pair]]:  # fmt: skip
        """Yield blocks of encoded pairs, in order; each page is of a moment of its own."""
        self.check(namespace)
        way = way or way_of(self.cluster, self.read_from)
        scan = PagedScan(
            self.cluster, namespace.id, namespace.space.numbers, start, stop,
            reverse=reverse, size=size, values=values, way=way,
        )  # fmt: skip
        while block := self.run_about(namespace, scan.block):
            yield block
            self.check(namespace)

    def count(self, namespace: Namespace) -> None:
        """Return nothing: a cluster counts by going over all keys."""
        self.check(namespace)

    def peek(self, namespace: Namespace) -> tuple[list[Pair], int | None]:
        """Return the first pairs, for whoever only looks."""
        return peeked(self, namespace)

    def way(self) -> WayBack:
        """Raise: a client belongs to its process."""
        raise UsageError(
            f"handles of the cluster {self.path} cannot be pickled",
            hint="Connect in the other process: `tidelog.connect`.",
        )

    # -------------------------------------------------------------- end

    def close(self) -> None:
        """End all connections; closing twice is fine."""
        if self.open_state.closed is None:
            self.open_state.closed = self.open_state.closed_error
        self.lines.close()
        open_handles.discard(self)

    def forked(self) -> None:
        """In the child of a fork: leave the connections to the parent."""
        self.open_state.closed = self.open_state.forked_error
        self.lines.leave()


def peeked(session: Session, namespace: Namespace) -> tuple[list[Pair], int | None]:
    """Return the first pairs of a map, and how many there are if that is known then."""
    blocks = session.blocks(namespace, b"", None, False, PEEKED)
    found = list(islice((pair for block in blocks for pair in block), PEEKED + 1))
    return found[:PEEKED], None if len(found) > PEEKED else len(found)
