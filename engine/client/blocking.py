"""A cluster as its user holds it in a program with threads: ``tidelog.connect``.

It has the names and signatures of ``tidelog.Database``; what a cluster cannot do yet says so
(``unsupported``).

Left out: what is behind it (``session``), who is asked (``routing``), tasks.
"""

from __future__ import annotations

import os
from _thread import get_ident
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn, TypeVar, TypeVarTuple, Unpack, overload

from ..api.attempts import ATTEMPTS, Attempt, run
from ..api.choices import Durability, Isolation, Mode, TransactionOptions, checked_seconds, choice
from ..api.maps import Map, map_of
from ..api.transaction_session import checked_tx_id
from ..api.transactions import Transaction
from ..codecs.registry import ValueCodec, given_codecs
from ..commit.outcomes import Outcome
from ..data.namespaces import not_copied
from ..system.environment import Environment
from ..system.production import production
from .commits import asked_outcome
from .copies import ReadFrom
from .places import place_of_cluster
from .routing import Job, Steps, served
from .session import ClusterSession
from .snapshots import ClusterSnapshot
from .stale import StaleView
from .transactions import ClusterTransaction, cluster_attempts
from .unsupported import not_yet

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")
A = TypeVarTuple("A")

TIMEOUT_S = 30.0
"""Seconds that a call may take, if the caller does not say."""


class ClusterDatabase:
    """A cluster; made by ``tidelog.connect``.  May be shared by threads; its transactions may not.

    Use it in a ``with`` block, or ``close`` it.
    """

    read_only = False
    durability: Durability = "always"

    def __init__(self, session: ClusterSession) -> None:
        self.path = session.path
        self._session = session

    __reduce_ex__ = not_copied

    def __repr__(self) -> str:
        """Show where the cluster is, and what is known of it."""
        state = "closed " if self._session.open_state.closed else ""
        return f"<ClusterDatabase {self.path!r} {state}{self._session.cluster!r}>"

    def _repr_html_(self) -> str:
        """Show path, state, and maps with their codecs, in a notebook."""
        from ..api.html import store_as_html

        return store_as_html(self)

    @property
    def partitions(self) -> int:
        """How many partitions the cluster has."""
        session = self._session
        if session.cluster.view is None:
            session.run(lambda until: served(session.cluster, Job((), "status", (), until)))
        assert session.cluster.view is not None
        return len(session.cluster.view.primaries)

    # -------------------------------------------------------------- maps

    @overload
    def map(
        self, name: str, *, key: ValueCodec[K], value: ValueCodec[V], create: bool = True
    ) -> Map[K, V]: ...
    @overload
    def map(
        self, name: str, *, key: ValueCodec[K], value: None = None, create: bool = True
    ) -> Map[K, Any]: ...
    @overload
    def map(
        self, name: str, *, key: None = None, value: ValueCodec[V], create: bool = True
    ) -> Map[Any, V]: ...
    @overload
    def map(
        self, name: str, *, key: None = None, value: None = None, create: bool = True
    ) -> Map[Any, Any]: ...
    def map(
        self,
        name: str,
        *,
        key: ValueCodec[Any] | None = None,
        value: ValueCodec[Any] | None = None,
        create: bool = True,
    ) -> Map[Any, Any]:
        """Return the map ``name``, making it if there is none; see ``tidelog.Database.map``."""
        session = self._session
        namespace = session.run(lambda until: session.catalog.map(name, key, value, create, until))
        return map_of(namespace, session)

    def maps(self) -> list[str]:
        """Return the names of all maps, sorted."""
        return self._session.run(self._session.catalog.names)

    def drop(self, name: str) -> None:
        """Remove a map and everything in it; ``NotFoundError`` if there is none."""
        self._change(f"dropping the map {name!r}", lambda until: self._catalog.drop(name, until))

    def rename(self, old: str, new: str) -> None:
        """Give a map another name; its handles keep working."""
        self._change(
            f"renaming the map {old!r}", lambda until: self._catalog.rename(old, new, until)
        )

    @property
    def _catalog(self) -> Any:
        return self._session.catalog

    def _change(self, what: str, steps: Callable[[float], Steps[None]]) -> None:
        self._session.open_state.check()
        self._session.inside.check_change(get_ident(), what)
        self._session.run(steps)

    # -------------------------------------------------------------- transactions

    def transaction(
        self,
        mode: Mode = "optimistic",
        *,
        isolation: Isolation = "serializable",
        durability: Durability | None = None,
        id: bytes | None = None,
        tag: str | None = None,
        deadline: float | None = None,
        lock_timeout: float | None = None,
        plain_writes: bool = False,
    ) -> Transaction:
        """Begin a transaction; use it in a ``with`` block.  See ``tidelog.Database.transaction``.

        Its reads are confirmed by its commit; until then they need not be of one moment.
        """
        self._session.open_state.check()
        inner = ClusterTransaction(
            self._session, mode, isolation, durability, id, tag, deadline, lock_timeout,
            plain_writes,
        )  # fmt: skip
        return Transaction(inner)

    def run(
        self,
        work: Callable[[Transaction, *A], T],
        *args: *A,
        attempts: int = ATTEMPTS,
        deadline: float | None = None,
        **options: Unpack[TransactionOptions],
    ) -> T:
        """Run ``work(tx, *args)`` in a transaction and commit; return what it returned.

        Runs it again after errors that are ``retryable``, up to ``attempts`` times and
        ``deadline`` seconds in all; by default as long as a call may take.
        """
        self._session.open_state.check()
        return run(cluster_attempts(self._session, attempts, deadline, options), work, *args)

    def attempts(
        self,
        attempts: int = ATTEMPTS,
        *,
        deadline: float | None = None,
        **options: Unpack[TransactionOptions],
    ) -> Iterator[Attempt]:
        """Yield attempts: ``for attempt in db.attempts(): with attempt as tx: ...``."""
        self._session.open_state.check()
        return cluster_attempts(self._session, attempts, deadline, options)

    def new_id(self) -> bytes:
        """Return a fresh transaction id, for ``transaction(id=...)``."""
        self.partitions  # noqa: B018  # the id carries that of the cluster
        return self._session.ids.to_give()

    def outcome(self, tx_id: bytes, *, home: int | None = None) -> Outcome:
        """Tell what became of a transaction; see ``tidelog.Database.outcome``.

        If its id was not given, ``home`` is that of its receipt, or of the ``CommitUnknownError``;
        ``UsageError`` without it.
        """
        checked_tx_id(tx_id)
        cluster = self._session.cluster
        return self._session.run(lambda until: asked_outcome(cluster, tx_id, home, until))

    def status(self) -> dict[str, Any]:
        """Return the status that the first member answers with (``docs/client-protocol.md``)."""
        cluster = self._session.cluster
        asked = self._session.run(lambda until: served(cluster, Job((), "status", (), until)))
        found: dict[str, Any] = asked
        return found

    def stale(self) -> StaleView:
        """Return a view for reads that may be out of date: ``db.stale()[users].get("ada")``.

        Any copy of a partition answers, without a lease and without a majority; ``as_of`` of the
        view tells how old that is.  It need not show what this client has written itself.
        """
        self._session.open_state.check()
        return StaleView(self._session)

    def snapshot(self) -> ClusterSnapshot:
        """Return the whole cluster as it is at one moment: ``with db.snapshot() as old: ...``.

        Writes stop for some milliseconds meanwhile.  ``SnapshotExpiredError`` if no moment is found
        at which all members can hold, ``PartitionUnavailableError`` if one is not there.
        """
        self._session.open_state.check()
        return ClusterSnapshot(self._session)

    # -------------------------------------------------------------- what there is not yet

    def attach(self, directory: str | os.PathLike[str], name: str | None = None) -> NoReturn:
        """Raise ``UnsupportedError``: a cluster takes no loads yet."""
        raise not_yet("attach")

    def backup(self, directory: str | os.PathLike[str], *, verify: bool = True) -> NoReturn:
        """Raise ``UnsupportedError``: a cluster is not backed up through a client yet."""
        raise not_yet("backup")

    def statistics(self) -> NoReturn:
        """Raise ``UnsupportedError``: ``status`` tells of a member."""
        raise not_yet("statistics")

    def checkpoint(self) -> NoReturn:
        """Raise ``UnsupportedError``: members take their checkpoints themselves."""
        raise not_yet("checkpoint")

    def sync(self) -> NoReturn:
        """Raise ``UnsupportedError``: every commit is durable when it is answered."""
        raise not_yet("sync")

    # -------------------------------------------------------------- end

    def close(self) -> None:
        """End all connections; closing twice is fine."""
        self._session.close()

    def __enter__(self) -> ClusterDatabase:
        """Return the database."""
        self._session.open_state.check()
        return self

    def __exit__(self, *_exc: object) -> None:
        """End all connections."""
        self.close()


def connect(
    where: str | os.PathLike[str],
    *,
    timeout: float = TIMEOUT_S,
    codecs: Iterable[ValueCodec[Any]] = (),
    read_from: ReadFrom = "primary",
) -> ClusterDatabase:
    """Connect to a cluster, and return it once a member has answered.

    ``where``: ``tidelog://HOST:PORT,HOST:PORT`` (some of its members), ``tidelog+unix:///PATH``,
    or the directory of a test cluster.  ``timeout`` is how many seconds a call may take, with all
    that it tries.  ``codecs`` are codecs of your own that the maps name.  With ``copies`` as
    ``read_from`` all copies in turn answer reads outside of transactions, which are as new as from
    the primary.  Raises ``NotEnoughMembersError`` if nobody answers in that time,
    ``NotFoundError``, ``UsageError``.
    """
    return connect_with(production(), where, timeout=timeout, codecs=codecs, read_from=read_from)


def connect_with(
    environment: Environment,
    where: str | os.PathLike[str],
    *,
    timeout: float = TIMEOUT_S,
    codecs: Iterable[ValueCodec[Any]] = (),
    read_from: ReadFrom = "primary",
) -> ClusterDatabase:
    """Connect in a given environment: ``connect`` with another clock, or other chance."""
    place = place_of_cluster(where)
    session = ClusterSession(
        place,
        environment,
        checked_seconds("timeout", timeout),
        given_codecs(codecs),
        choice("read_from", read_from, ReadFrom),
    )
    database = ClusterDatabase(session)
    try:
        database.status()
        return database
    except BaseException:
        session.close()
        raise
