"""A cluster for the tasks of a loop: ``tidelog.aio.connect``.

It has the names and signatures of the ``Database`` of ``tidelog.aio``; what a cluster cannot do yet
says so (``unsupported``).

Cancellation:

- A read that is cancelled is taken back.
- A commit that was sent goes on to its end; the task learns the outcome, and is cancelled at its
  next checkpoint.  Only if its connection broke, and it is cancelled while the outcome is asked
  for, it may have taken effect all the same.

Left out: connections (``links``), who is asked (``routing``).
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, NoReturn, TypeVar, TypeVarTuple, Unpack, overload

from ...affinity.errors import ClosedError, DeadlineError, UsageError
from ..aio.attempts import Attempts, run
from ..aio.loops import Loop, wrong_loop
from ..aio.maps import Map, backing_of, check_home
from ..aio.running import running_loop
from ..aio.transactions import Transaction
from ..api.attempts import ATTEMPTS
from ..api.choices import Durability, Isolation, Mode, TransactionOptions, checked_seconds, choice
from ..api.inside import Blocks
from ..api.transaction_session import checked_tag, checked_tx_id
from ..codecs.registry import ValueCodec, given_codecs
from ..commit.entries import Receipt, leaves_doubt, state_of
from ..commit.outcomes import Outcome
from ..data.decisions import KEEP, Decide
from ..data.namespaces import Home, Namespace, check_name, not_copied
from ..data.operations import Encoded
from ..data.requests import Together
from ..data.scan import Pair
from ..store.handles import open_handles
from ..store.open_state import OpenState
from ..system.environment import Environment
from ..system.production import production
from . import actions
from .blocking import TIMEOUT_S
from .catalog import ClusterCatalog, GivenCodec
from .changes import SeenRange, TransactionContent
from .commits import asked_outcome
from .copies import ReadFrom, way_of
from .ids import Ids
from .lateness import of_timeout, within
from .links import LoopLinks
from .locking import ClientLocks
from .places import ClusterPlace, place_of_cluster
from .reads import PAGE_MAX, PagedScan, ReadWay
from .remote import Remote
from .routing import Cluster, Job, Steps, served
from .snapshots import ClusterTasksSnapshot
from .stale import StaleTasksView
from .unsupported import checked_choices, not_yet

__all__ = ["ClusterTasksDatabase", "connect"]

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")
A = TypeVarTuple("A")


class ClusterLoopSession:
    """A client of a cluster for the tasks of one loop: what answers outside of transactions."""

    def __init__(
        self,
        place: ClusterPlace,
        environment: Environment,
        loop: Loop,
        timeout: float,
        given: Sequence[GivenCodec],
        read_from: ReadFrom = "primary",
    ) -> None:
        self.path = place.shown
        self.loop = loop
        self.cluster = Cluster(place.addresses, place.cluster)
        self.read_from = read_from
        self.open_state = OpenState(place.shown)
        self.links = LoopLinks(self.cluster, environment, loop, self.open_state, timeout)
        self.home = Home(place.shown)
        self.catalog = ClusterCatalog(self.cluster, given, self.home)
        self.inside = Blocks()
        self.ids = Ids(self.cluster, environment.clock, environment.new_id)
        self.new_id = self.ids.new
        self.now = environment.monotonic
        self.random = environment.random
        open_handles.add(self)

    def writer(self) -> ClusterLoopSession:
        """Return what has time and chance."""
        return self

    def check_open(self) -> None:
        """Raise unless it is open, and this is its loop."""
        self.open_state.check()
        if self.loop.place != self.loop.here():
            raise wrong_loop()

    async def run(self, steps: Callable[[float], Steps[T]]) -> T:
        """Carry out steps that are made with the time at which they have to end."""
        self.check_open()
        await self.loop.checkpoint_if_cancelled()
        return await self.links.carry(steps(self.links.until()))

    async def run_about(self, namespace: Namespace, steps: Callable[[float], Steps[T]]) -> T:
        """Carry out steps about a map."""
        return await self.run(lambda until: actions.about(namespace, steps(until)))

    # -------------------------------------------------------------- what answers to maps

    def check(self, namespace: Namespace) -> None:
        """Raise unless a map can be asked for something."""
        self.check_open()
        namespace.check_alive()

    def _check_outside(self, namespace: Namespace) -> None:
        self.check(namespace)
        if self.inside:
            self.inside.check_write(self.loop.task(), namespace.name)

    async def values(
        self, namespace: Namespace, keys: list[bytes], way: ReadWay | None = None
    ) -> list[bytes | None]:
        """Return the encoded values of encoded keys."""
        self.check(namespace)
        way = way or way_of(self.cluster, self.read_from)
        return await self.run_about(
            namespace, lambda until: actions.values_of(self.cluster, namespace, keys, until, way)
        )

    async def put_many(self, namespace: Namespace, pairs: Encoded) -> None:
        """Set or delete encoded keys in one transaction."""
        self._check_outside(namespace)
        new_id = self.new_id
        await self.run_about(
            namespace, lambda until: actions.put_many(self.cluster, namespace, pairs, new_id, until)
        )

    async def decide(self, namespace: Namespace, key: bytes, decide: Decide) -> Any:
        """Carry out a decision about an encoded key, in one step."""
        self._check_outside(namespace)
        new_id = self.new_id
        return await self.run_about(
            namespace,
            lambda until: actions.decided_on(self.cluster, namespace, key, decide, new_id, until),
        )

    async def pop_first(self, namespace: Namespace) -> Pair | None:
        """Delete the first key and return the encoded pair, None if there is none."""
        self._check_outside(namespace)
        new_id = self.new_id
        return await self.run_about(
            namespace, lambda until: actions.popped_first(self.cluster, namespace, new_id, until)
        )

    async def together(self, namespace: Namespace, request: Together) -> Any:
        """Carry out an operation in a transaction of its own, until it commits."""
        self._check_outside(namespace)
        async for attempt in self.attempts(ATTEMPTS, None, {"plain_writes": True}):
            async with attempt as tx:
                reach = reach_behind(tx)
                result = await Remote(namespace, reach).perform(request.operation())
        return result

    def blocks(
        self, namespace: Namespace, low: bytes, high: bytes | None, reverse: bool, size: int,
        *, values: bool = True, way: ReadWay | None = None,
    ) -> PlainBlocks:  # fmt: skip
        """Begin an iteration; each page is of a moment of its own."""
        scan = PagedScan(
            self.cluster, namespace.id, namespace.space.numbers, low, high,
            reverse=reverse, size=size, values=values,
            way=way or way_of(self.cluster, self.read_from),
        )  # fmt: skip
        return PlainBlocks(self, namespace, scan)

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
        """Return a transaction for an ``async with`` block."""
        self.check_open()
        confirms = checked_choices(mode, isolation, durability)
        if lock_timeout is not None:
            checked_seconds("lock_timeout", lock_timeout)
        reach = ClusterReach(
            self, id, tag, deadline, plain_writes, confirms=confirms,
            pessimistic=mode == "pessimistic", lock_timeout=lock_timeout,
        )  # fmt: skip
        return Transaction(reach)

    def attempts(
        self, attempts: int, deadline: float | None, options: TransactionOptions
    ) -> Attempts:
        """Yield attempts, which take no longer together than a call may."""
        self.check_open()
        seconds = self.links.timeout if deadline is None else deadline
        late = of_timeout if deadline is None else None
        return Attempts(_AttemptsPlace(self), attempts, seconds, options, late)

    # -------------------------------------------------------------- end

    async def aclose(self) -> None:
        """End all connections, and the calls that run; closing twice is fine."""
        if self.open_state.closed == self.open_state.forked_error:
            return
        if not self.loop.runs_here():
            raise wrong_loop()
        self.open_state.closed = self.open_state.closed_error
        open_handles.discard(self)
        await self.links.close()

    def close(self) -> None:
        """End all connections, at the end of the process."""
        self.open_state.closed = self.open_state.closed_error
        self.links.leave()

    def forked(self) -> None:
        """In the child of a fork: leave the connections to the parent."""
        self.open_state.closed = self.open_state.forked_error
        self.links.leave()


class _AttemptsPlace:
    """What the attempts of one loop are made in: each follows the one before it."""

    def __init__(self, session: ClusterLoopSession) -> None:
        self.loop = session.loop
        self.writer = session.writer
        self._session = session
        self._last: TransactionContent | None = None

    def transaction(
        self, *, deadline: float | None, **options: Unpack[TransactionOptions]
    ) -> Transaction:
        """Return a transaction for the next attempt."""
        made = self._session.transaction(deadline=deadline, **options)
        content = reach_behind(made).content()
        content.follow(self._last, mode_chosen="mode" in options)
        self._last = content
        return made


class PlainBlocks:
    """An iteration outside of transactions."""

    def __init__(self, session: ClusterLoopSession, namespace: Namespace, scan: PagedScan) -> None:
        self._session = session
        self._namespace = namespace
        self._scan = scan

    async def block(self) -> list[Pair]:
        """Return the next pairs; none at the end."""
        self._session.check(self._namespace)
        return await self._session.run_about(self._namespace, self._scan.block)


class ClusterReach:
    """What is behind a transaction of a task, and answers to its maps."""

    def __init__(
        self,
        session: ClusterLoopSession,
        tx_id: bytes | None,
        tag: str | None,
        deadline: float | None,
        plain_writes: bool,
        *,
        confirms: bool,
        pessimistic: bool = False,
        lock_timeout: float | None = None,
    ) -> None:
        self.loop = session.loop
        self.receipt: Receipt | None = None
        self.in_doubt = False
        """Whether the commit ended so that it may have taken effect, or not."""
        self._session = session
        self._given_id = None if tx_id is None else checked_tx_id(tx_id)
        tag = None if tag is None else checked_tag(tag)
        self._deadline = (
            None if deadline is None else session.now() + checked_seconds("deadline", deadline)
        )
        self._locks = None
        if pessimistic:
            name = session.new_id()
            self._locks = ClientLocks(session.cluster, name, lock_timeout, self._deadline)
        self._content = TransactionContent(
            session.cluster, self._given_id, tag, confirms=confirms, locks=self._locks
        )
        self._plain_writes = plain_writes
        self._task: Hashable | None = None
        self._begun = False
        self._open = True
        self._busy = False

    def __repr__(self) -> str:
        state = state_of(is_open=self._open, receipt=self.receipt, in_doubt=self.in_doubt)
        return f"<Transaction {state} {self._content!r}>"

    @property
    def session(self) -> ClusterReach:
        """What is known of it."""
        return self

    @property
    def tx_id(self) -> bytes | None:
        """The id that the caller gave, or the one of the commit; None before it."""
        return self.receipt.tx_id if self.receipt else self._given_id

    @property
    def is_open(self) -> bool:
        """Whether it has neither been committed nor rolled back."""
        return self._open

    def map_inside(self, mapping: Map[K, V]) -> Map[K, V]:
        """Return a map as it is inside the transaction; ``UsageError`` for a foreign one."""
        self._check_usable()
        check_home(mapping, self._session.home)

        async def bind() -> Remote:
            return Remote((await backing_of(mapping)).namespace, self)

        return Map(mapping.name, self._session.home, bind)

    # -------------------------------------------------------------- begin and end

    async def begin(self) -> None:
        """Begin its block."""
        self._session.check_open()
        if self._begun:
            raise UsageError("a transaction can be used only once", hint="Begin a new one.")
        self._begun = True
        if not self._plain_writes:
            self._task = self.loop.task()
            self._session.inside.enter(self._task, self)

    async def end(self, *, failed: bool) -> None:
        """Commit, or roll back if the block raised; after ``commit`` or ``rollback`` do nothing."""
        try:
            if self._open and not failed:
                await self.commit()
        finally:
            if self._task is not None:
                self._session.inside.leave(self._task, self)
            self._let_go()

    async def commit(self) -> Receipt:
        """Make the transaction take effect; return its receipt."""
        self._check_usable()
        await self.loop.checkpoint_if_cancelled()
        self._open = False
        new_id = self._session.new_id
        try:
            receipt = await self._carried(lambda until: self._content.committing(new_id, until))
        except BaseException as error:
            self.in_doubt = leaves_doubt(error)
            raise
        finally:
            self._let_go()
        self.receipt = receipt or Receipt(self._given_id or new_id(), 0, 0, 0)
        return self.receipt

    async def rollback(self) -> None:
        """End the transaction without any effect; after its end this does nothing."""
        self._let_go()

    def _let_go(self) -> None:
        """Be over, and let go of all locks."""
        self._open = False
        locks, self._locks = self._locks, None
        if locks is not None:
            for member in sorted(locks.asked):
                self._session.links.tell(member, "unlock", (locks.name,))

    def _check_usable(self) -> None:
        self._session.check_open()
        if not self._open:
            raise ClosedError(
                "the transaction is over",
                hint="Begin a new one; results that you still need have to be read before its end.",
            )
        if not self._begun:
            raise UsageError(
                "the transaction has not begun", hint="Use it in its `async with` block."
            )
        if self._deadline is not None and self._session.now() > self._deadline:
            raise DeadlineError("the deadline of the transaction has passed")

    async def _carried_about(self, namespace: Namespace, steps: Callable[[float], Steps[T]]) -> T:
        return await self._carried(lambda until: actions.about(namespace, steps(until)))

    async def _carried(self, steps: Callable[[float], Steps[T]]) -> T:
        """Carry out steps, for one task at a time."""
        if self._busy:
            raise UsageError(
                "another task is using the transaction", hint="Begin one in each task."
            )
        self._busy = True
        try:
            links = self._session.links
            return await links.carry(within(steps, links.until(), self._deadline))
        finally:
            self._busy = False

    # -------------------------------------------------------------- what answers to its maps

    def check(self, namespace: Namespace) -> None:
        """Raise unless a map can be asked for something."""
        self._check_usable()
        namespace.check_alive()

    async def values(
        self, namespace: Namespace, keys: list[bytes], *, to_write: bool = False
    ) -> list[bytes | None]:
        """Return the encoded values of encoded keys, which may be written then."""
        self.check(namespace)
        await self.loop.checkpoint_if_cancelled()
        return await self._carried_about(
            namespace,
            lambda until: self._content.values(namespace, keys, until, to_write=to_write),
        )

    async def put_many(self, namespace: Namespace, pairs: Encoded) -> None:
        """Set or delete encoded keys."""
        self.check(namespace)
        await self.loop.checkpoint_if_cancelled()
        if self._locks is None:
            for key, value in pairs:
                self._content.put(namespace, key, value)
        else:
            await self._carried_about(
                namespace, lambda until: self._content.writing(namespace, pairs, until)
            )

    async def decide(self, namespace: Namespace, key: bytes, decide: Decide) -> Any:
        """Carry out a decision about an encoded key."""
        result, value = decide((await self.values(namespace, [key], to_write=True))[0])
        if value is not KEEP:
            await self.put_many(namespace, [(key, value)])
        return result

    async def pop_first(self, namespace: Namespace) -> Pair | None:
        """Delete the first key and return the encoded pair, None if the map is empty."""
        block = await self.blocks(namespace, b"", None, False, 1).block()
        if not block:
            return None
        await self.put_many(namespace, [(block[0][0], None)])
        return block[0]

    async def together(self, namespace: Namespace, request: Together) -> Any:
        """Carry out an operation in this transaction."""
        self.check(namespace)
        return await Remote(namespace, self).perform(request.operation())

    def blocks(
        self, namespace: Namespace, low: bytes, high: bytes | None, reverse: bool, size: int,
        *, values: bool = True,
    ) -> InsideBlocks:  # fmt: skip
        """Begin an iteration, with this transaction's own writes."""
        seen = self._content.range(namespace, low, high, reverse=reverse, values=values)
        return InsideBlocks(self, seen, size)

    async def block(self, namespace: Namespace, steps: Callable[[float], Steps[T]]) -> T:
        """Carry out the steps to the next block of an iteration."""
        self.check(namespace)
        await self.loop.checkpoint_if_cancelled()
        return await self._carried_about(namespace, steps)

    def content(self) -> TransactionContent:
        """Return what it has read and written."""
        return self._content


class InsideBlocks:
    """An iteration inside a transaction."""

    def __init__(self, reach: ClusterReach, seen: SeenRange, size: int) -> None:
        self._reach = reach
        self._seen = seen
        self._size = min(max(size, 1), PAGE_MAX)

    async def block(self) -> list[Pair]:
        """Return the next pairs; none at the end."""
        content, seen, size = self._reach.content(), self._seen, self._size
        return await self._reach.block(
            seen.namespace, lambda until: content.block(seen, size, until)
        )


def reach_behind(transaction: Transaction) -> ClusterReach:
    """Return what is behind a transaction of a cluster."""
    reach = transaction._place
    assert isinstance(reach, ClusterReach)
    return reach


class ClusterTasksDatabase:
    """A cluster for the tasks of a loop; made by ``tidelog.aio.connect``."""

    read_only = False

    def __init__(self, session: ClusterLoopSession) -> None:
        self.path = session.path
        self._session = session

    __reduce_ex__ = not_copied

    def __repr__(self) -> str:
        """Show where the cluster is, and what is known of it."""
        state = "closed " if self._session.open_state.closed else ""
        return f"<aio ClusterDatabase {self.path!r} {state}{self._session.cluster!r}>"

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
        """Return the map ``name``, which is made if there is none, when it is first used.

        That is also when a ``CodecError`` comes, and with ``create=False`` a ``NotFoundError``;
        ``await map.ensure()`` does it now.
        """
        session = self._session
        session.check_open()
        check_name(name)

        async def bind() -> Remote:
            namespace = await session.run(
                lambda until: session.catalog.map(name, key, value, create, until)
            )
            return Remote(namespace, session)

        return Map(name, session.home, bind)

    def maps(self) -> list[str]:
        """Return the names of all maps, sorted, as the newest view has them."""
        self._session.check_open()
        return self._session.catalog.known_names()

    async def drop(self, name: str) -> None:
        """Remove a map and everything in it; ``NotFoundError`` if there is none."""
        catalog = self._session.catalog
        await self._change(f"dropping the map {name!r}", lambda until: catalog.drop(name, until))

    async def rename(self, old: str, new: str) -> None:
        """Give a map another name; its handles keep working."""
        catalog = self._session.catalog
        await self._change(
            f"renaming the map {old!r}", lambda until: catalog.rename(old, new, until)
        )

    async def _change(self, what: str, steps: Callable[[float], Steps[None]]) -> None:
        self._session.check_open()
        self._session.inside.check_change(self._session.loop.task(), what)
        await self._session.run(steps)

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
        """Return a transaction for an ``async with`` block; see ``ClusterDatabase.transaction``."""
        return self._session.transaction(
            mode,
            isolation=isolation,
            durability=durability,
            id=id,
            tag=tag,
            deadline=deadline,
            lock_timeout=lock_timeout,
            plain_writes=plain_writes,
        )

    async def run(
        self,
        work: Callable[[Transaction, *A], Awaitable[T]],
        *args: *A,
        attempts: int = ATTEMPTS,
        deadline: float | None = None,
        **options: Unpack[TransactionOptions],
    ) -> T:
        """Run ``await work(tx, *args)`` in a transaction and commit; return what it returned."""
        tries = self.attempts(attempts, deadline=deadline, **options)
        return await run(tries, work, *args)

    def attempts(
        self,
        attempts: int = ATTEMPTS,
        *,
        deadline: float | None = None,
        **options: Unpack[TransactionOptions],
    ) -> Attempts:
        """Yield attempts: ``async for attempt in db.attempts(): async with attempt as tx: ...``."""
        return self._session.attempts(attempts, deadline, options)

    def new_id(self) -> bytes:
        """Return a fresh transaction id, for ``transaction(id=...)``."""
        self._session.check_open()
        return self._session.ids.to_give()

    async def outcome(self, tx_id: bytes, *, home: int | None = None) -> Outcome:
        """Tell what became of a transaction; see ``ClusterDatabase.outcome``."""
        checked_tx_id(tx_id)
        cluster = self._session.cluster
        return await self._session.run(lambda until: asked_outcome(cluster, tx_id, home, until))

    async def status(self) -> dict[str, Any]:
        """Return the status that the first member answers with (``docs/client-protocol.md``)."""
        cluster = self._session.cluster
        asked = await self._session.run(lambda until: served(cluster, Job((), "status", (), until)))
        found: dict[str, Any] = asked
        return found

    def stale(self) -> StaleTasksView:
        """Return a view for reads that may be out of date; see ``ClusterDatabase.stale``."""
        self._session.check_open()
        return StaleTasksView(self._session)

    def snapshot(self) -> ClusterTasksSnapshot:
        """Return a snapshot: ``async with db.snapshot() as old: ...``; see ``ClusterDatabase``."""
        self._session.check_open()
        return ClusterTasksSnapshot(self._session)

    # -------------------------------------------------------------- what there is not yet

    async def attach(self, directory: str | os.PathLike[str], name: str | None = None) -> NoReturn:
        """Raise ``UnsupportedError``: a cluster takes no loads yet."""
        raise not_yet("attach")

    async def backup(self, directory: str | os.PathLike[str], *, verify: bool = True) -> NoReturn:
        """Raise ``UnsupportedError``: a cluster is not backed up through a client yet."""
        raise not_yet("backup")

    async def statistics(self) -> NoReturn:
        """Raise ``UnsupportedError``: ``status`` tells of a member."""
        raise not_yet("statistics")

    async def checkpoint(self) -> NoReturn:
        """Raise ``UnsupportedError``: members take their checkpoints themselves."""
        raise not_yet("checkpoint")

    async def sync(self) -> NoReturn:
        """Raise ``UnsupportedError``: every commit is durable when it is answered."""
        raise not_yet("sync")

    # -------------------------------------------------------------- end

    async def aclose(self) -> None:
        """End all connections; closing twice is fine."""
        await self._session.aclose()


def connect(
    where: str | os.PathLike[str],
    *,
    timeout: float = TIMEOUT_S,
    codecs: Iterable[ValueCodec[Any]] = (),
    read_from: ReadFrom = "primary",
) -> AbstractAsyncContextManager[ClusterTasksDatabase]:
    """Connect to a cluster for the tasks of this loop; leaving the ``async with`` block closes.

    All is as in ``tidelog.connect``; the block begins once a member has answered.
    """
    return connect_with(production(), where, timeout=timeout, codecs=codecs, read_from=read_from)


@asynccontextmanager
async def connect_with(
    environment: Environment,
    where: str | os.PathLike[str],
    *,
    timeout: float = TIMEOUT_S,
    codecs: Iterable[ValueCodec[Any]] = (),
    read_from: ReadFrom = "primary",
) -> AsyncIterator[ClusterTasksDatabase]:
    """Connect in a given environment: ``connect`` with another clock, or other chance."""
    place = place_of_cluster(where)
    session = ClusterLoopSession(
        place,
        environment,
        running_loop(),
        checked_seconds("timeout", timeout),
        given_codecs(codecs),
        choice("read_from", read_from, ReadFrom),
    )
    database = ClusterTasksDatabase(session)
    try:
        await database.status()
        yield database
    finally:
        await database.aclose()
