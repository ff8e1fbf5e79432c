"""Views of a cluster that may be out of date, for threads and for tasks: what ``stale`` returns.

    stale = db.stale()
    stale[users].get("ada")
    stale.as_of               {14: AsOf(epoch=3, lwm=120)}

Invariants:

- What one request shows of a partition is what its transactions up to some number have made of it,
  and of later ones nothing, or all that they wrote there.
- A view never writes.

Left out: who is asked (``copies``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn, Protocol, TypeVar

from ...affinity.errors import ReadOnlyError
from ..aio import maps as aio_maps
from ..aio.loops import Loop
from ..api.maps import Map, map_of
from ..api.pickling import WayBack
from ..api.unwritable import Unwritable
from ..data.decisions import Decide
from ..data.namespaces import Home, Namespace, namespace_at, not_copied
from ..data.operations import Encoded
from ..data.requests import Together
from ..data.scan import Pair
from .copies import AsOf, Stale
from .reads import ReadWay
from .remote import PairBlocks, Remote
from .routing import Cluster, Steps
from .session import ClusterSession, peeked

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")


WRITES = "a stale view cannot be written"


def _refusal(what: str) -> ReadOnlyError:
    return ReadOnlyError(what, hint="Write to the database's own map.")


# ------------------------------------------------------------------ threads


class StaleSession(Unwritable):
    """What the maps of a view for threads read: the session of ``api.answering``.

    ``way`` is who is asked, ``what`` says that it cannot be written.
    """

    def __init__(self, session: ClusterSession, way: ReadWay, what: str) -> None:
        self._session = session
        self._way = way
        self._what = what

    def getter(self, namespace: Namespace) -> Callable[[bytes], bytes | None]:
        """Return a function from encoded key to encoded value."""
        return lambda key: self.get_many(namespace, [key])[0]

    def get_many(self, namespace: Namespace, keys: list[bytes]) -> list[bytes | None]:
        """Return the encoded values of encoded keys."""
        return self._session.get_many(namespace, keys, self._way)

    def blocks(
        self, namespace: Namespace, start: bytes, stop: bytes | None, reverse: bool, size: int,
        *, values: bool = True,
    ) -> Iterator[list[Pair]]:  # fmt: skip
        """Yield blocks of encoded pairs, in order; each page is of a moment of its own."""
        return self._session.blocks(
            namespace, start, stop, reverse, size, values=values, way=self._way
        )

    def count(self, namespace: Namespace) -> None:
        """Return nothing: a cluster counts by going over all keys."""
        self._session.check(namespace)

    def peek(self, namespace: Namespace) -> tuple[list[Pair], int | None]:
        """Return the first pairs, for whoever only looks."""
        return peeked(self, namespace)

    def way(self) -> WayBack:
        """Raise: a client belongs to its process."""
        return self._session.way()

    def refuse(self) -> NoReturn:
        """Raise ``ReadOnlyError``."""
        raise _refusal(self._what)


class StaleView:
    """A cluster as any copy has it, for threads; made by ``db.stale``, and never closed.

    Reads of one view go to one member as long as that answers, and has what is read.
    """

    def __init__(self, session: ClusterSession) -> None:
        self._home = session.home
        self._way = Stale(session.cluster)
        self._session = StaleSession(session, self._way, WRITES)

    __reduce_ex__ = not_copied

    def __repr__(self) -> str:
        return f"<StaleView of {len(self._way.as_of)} partitions>"

    def __getitem__(self, mapping: Map[K, V]) -> Map[K, V]:
        """Return a map as it is in this view; ``UsageError`` for a foreign one."""
        return map_of(namespace_at(self._home, mapping), self._session)

    @property
    def as_of(self) -> Mapping[int, AsOf]:
        """By partition, how old the newest read through this view was: epoch and LWM."""
        return dict(self._way.as_of)


# ------------------------------------------------------------------ tasks


class TasksSession(Protocol):
    """What stands behind a database for tasks."""

    cluster: Cluster
    home: Home
    loop: Loop

    def check(self, namespace: Namespace) -> None:
        """Raise unless a map can be asked for something."""

    async def run(self, steps: Callable[[float], Steps[T]]) -> T:
        """Carry out steps that are made with the time at which they have to end."""

    async def values(
        self, namespace: Namespace, keys: list[bytes], way: ReadWay | None = None
    ) -> list[bytes | None]:
        """Return the encoded values of encoded keys."""

    def blocks(
        self, namespace: Namespace, low: bytes, high: bytes | None, reverse: bool, size: int,
        *, values: bool = True, way: ReadWay | None = None,
    ) -> PairBlocks:  # fmt: skip
        """Begin an iteration over encoded pairs."""


class StaleReach:
    """What answers to the maps of a view for tasks; see ``StaleSession``."""

    def __init__(self, session: TasksSession, way: ReadWay, what: str) -> None:
        self._session = session
        self._way = way
        self._what = what

    @property
    def loop(self) -> Loop:
        """The loop of the tasks."""
        return self._session.loop

    def check(self, namespace: Namespace) -> None:
        """Raise unless a map can be asked for something."""
        self._session.check(namespace)

    async def values(self, namespace: Namespace, keys: list[bytes]) -> list[bytes | None]:
        """Return the encoded values of encoded keys."""
        return await self._session.values(namespace, keys, self._way)

    def blocks(
        self, namespace: Namespace, low: bytes, high: bytes | None, reverse: bool, size: int,
        *, values: bool = True,
    ) -> PairBlocks:  # fmt: skip
        """Begin an iteration; each page is of a moment of its own."""
        return self._session.blocks(
            namespace, low, high, reverse, size, values=values, way=self._way
        )

    async def put_many(self, namespace: Namespace, pairs: Encoded) -> None:
        """Raise ``ReadOnlyError``."""
        raise _refusal(self._what)

    async def decide(self, namespace: Namespace, key: bytes, decide: Decide) -> Any:
        """Raise ``ReadOnlyError``."""
        raise _refusal(self._what)

    async def pop_first(self, namespace: Namespace) -> Pair | None:
        """Raise ``ReadOnlyError``."""
        raise _refusal(self._what)

    async def together(self, namespace: Namespace, request: Together) -> Any:
        """Raise ``ReadOnlyError``."""
        raise _refusal(self._what)


class StaleTasksView:
    """A cluster as any copy has it, for the tasks of a loop; see ``StaleView``."""

    def __init__(self, session: TasksSession) -> None:
        self._home = session.home
        self._way = Stale(session.cluster)
        self._reach = StaleReach(session, self._way, WRITES)

    __reduce_ex__ = not_copied

    def __repr__(self) -> str:
        return f"<aio StaleView of {len(self._way.as_of)} partitions>"

    def __getitem__(self, mapping: aio_maps.Map[K, V]) -> aio_maps.Map[K, V]:
        """Return a map as it is in this view; ``UsageError`` for a foreign one."""
        aio_maps.check_home(mapping, self._home)

        async def bind() -> Remote:
            return Remote((await aio_maps.backing_of(mapping)).namespace, self._reach)

        return aio_maps.Map(mapping.name, self._home, bind)

    @property
    def as_of(self) -> Mapping[int, AsOf]:
        """By partition, how old the newest read through this view was: epoch and LWM."""
        return dict(self._way.as_of)
