"""Every face that a map has, behind the same calls: awaited, whatever is beneath.

``FACES`` has one line for each.  A face opens a store that lies on a disk already, and gives a
``World``: the maps of that store as they are there, and what can happen to them.
"""

from __future__ import annotations

from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    ItemsView,
    Iterator,
    KeysView,
    ValuesView,
)
from contextlib import (
    AbstractAsyncContextManager,
    ExitStack,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice
from typing import Any

from support import tasks
from support.members import members
from support.real_members import shared_members
from support.stores import PATH
from tidelog import aio, connect
from tidelog.codecs import I64, Bytes, Msgpack, Str, Tuple
from tidelog.engine.api import answering, maps
from tidelog.engine.api.choices import Mode
from tidelog.engine.api.database import Database, session_of
from tidelog.engine.api.items import Items
from tidelog.engine.api.maps import namespace_of
from tidelog.engine.api.open import open_with
from tidelog.engine.client import blocking, tasks as tasks_of_clusters
from tidelog.engine.data.driving import drive, taken
from tidelog.engine.data.requests import (
    Compute,
    GetMany,
    Iteration,
    Operation,
    PutMany,
    Request,
    Take,
    Together,
)
from tidelog.engine.system.memory import without_files
from tidelog.testing import FaultyDisk, simulated
from tidelog.testing.environment import SimulatedEnvironment

CODECS: dict[str, Any] = {
    "typed": (Str, Msgpack),
    "plain": (Bytes, Bytes),
    "tuples": (Tuple, I64),
    "unordered": (Msgpack, Bytes),
    "many": (I64, I64),
    "empty": (Str, I64),
}
CONTENTS: dict[str, dict[Any, Any]] = {
    "typed": {
        "": 0, "apple": 1, "banana": None, "cherry": ["red", 2], "flag": True, "text": "five",
        "日本": "é",
    },
    "plain": {b"": b"", b"a": b"1", b"ab": b"2", b"b": b""},
    "tuples": {("a", 1): 1, ("a", 2): 2, ("ab",): 3, ("b",): 4},
    "unordered": {1: b"1"},
    "many": {n: n * n for n in range(150)},
    "empty": {},
}  # fmt: skip

DEADLINE = 10.0
"""Simulated seconds that a transaction of a face may take."""

Block = Callable[[], AbstractAsyncContextManager[Any]]


@dataclass(kw_only=True)
class World:
    """The maps of an open store on one face, and what can happen to them."""

    maps: dict[str, Any]
    environment: SimulatedEnvironment
    drop: Callable[[str], None]
    close: Callable[[], Awaitable[Any]]
    block: Block
    """A transaction block of this thread or task, around plain maps."""
    path: str = PATH
    """What errors call the store."""
    commit: Callable[[], Awaitable[Any]] | None = None
    """Ends the transaction that the maps are in."""

    def __getitem__(self, name: str) -> Any:
        return self.maps[name]


@dataclass(frozen=True, kw_only=True)
class Face:
    """A way in which users hold a map."""

    opened: Callable[[FaultyDisk], AbstractAsyncContextManager[World]]
    kind: str
    """``plain``, ``transaction``, or what is said when a write is refused."""
    loop: str = "trio"
    """What the test runs in."""

    @property
    def writes(self) -> bool:
        return self.kind in ("plain", "transaction")


# ------------------------------------------------------------------ the same calls


SPECIAL = {"contains": "__contains__", "delete": "__delitem__", "count": "__len__"}


class Call:
    """A call that begins when it is awaited, so that a list of them can be left half way."""

    def __init__(self, work: Callable[[], Awaitable[Any]]) -> None:
        self._work = work

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._work().__await__()


class OfThreads:
    """A map for threads; an iteration is the list of what it gives."""

    def __init__(self, mapping: maps.Map[Any, Any]) -> None:
        self.mapping = mapping

    def __getattr__(self, name: str) -> Callable[..., Call]:
        method = getattr(self.mapping, SPECIAL.get(name, name))

        async def call(*args: Any, **kwargs: Any) -> Any:
            found = method(*args, **kwargs)
            return (
                list(found)
                if isinstance(found, Items | KeysView | ItemsView | ValuesView)
                else found
            )

        return lambda *args, **kwargs: Call(partial(call, *args, **kwargs))


class OfTasks:
    """A map for tasks; an iteration is the list of what it gives."""

    def __init__(self, mapping: aio.Map[Any, Any]) -> None:
        self._mapping = mapping

    def __getattr__(self, name: str) -> Callable[..., Call]:
        method = getattr(self._mapping, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            found = method(*args, **kwargs)
            return [one async for one in found] if isinstance(found, aio.Items) else await found

        return lambda *args, **kwargs: Call(partial(call, *args, **kwargs))


# ------------------------------------------------------------------ threads


def in_block(db: Database | blocking.ClusterDatabase) -> Block:
    @asynccontextmanager
    async def block() -> AsyncIterator[Any]:
        with db.transaction() as tx:
            yield tx

    return block


def awaited(work: Callable[[], object]) -> Callable[[], Awaitable[Any]]:
    async def call() -> Any:
        return work()

    return call


@asynccontextmanager
async def threads(
    disk: FaultyDisk, mode: Mode | None = None, snapshot: bool = False, **options: Any
) -> AsyncIterator[World]:
    environment = simulated(2, disk)
    with open_with(environment, PATH, **options) as db:
        found = {name: db.map(name) for name in CODECS}
        world = World(
            maps={name: OfThreads(mapping) for name, mapping in found.items()},
            environment=environment,
            drop=db.drop,
            close=awaited(db.close),
            block=in_block(db),
        )
        if mode is not None:
            with db.transaction(mode, plain_writes=True, deadline=DEADLINE) as tx:
                world.maps = {name: OfThreads(tx[found[name]]) for name in found}
                world.commit = awaited(tx.commit)
                yield world
        elif snapshot:
            with db.snapshot() as old:
                world.maps = {name: OfThreads(old[found[name]]) for name in found}
                yield world
        else:
            yield world


@asynccontextmanager
async def memory(disk: FaultyDisk) -> AsyncIterator[World]:
    """A store without files, filled alike; what it holds in the end goes to the disk."""
    with open_with(without_files(PATH), PATH) as db:
        found = {name: db.map(name, key=key, value=value) for name, (key, value) in CODECS.items()}
        for name, mapping in found.items():
            mapping.update(CONTENTS[name])
        yield World(
            maps={name: OfThreads(mapping) for name, mapping in found.items()},
            environment=simulated(2, disk),
            drop=db.drop,
            close=awaited(db.close),
            block=in_block(db),
        )
        left = {name: dict(db.map(name)) for name in db.maps()}
    write_back(disk, left)


def write_back(disk: FaultyDisk, left: dict[str, dict[Any, Any]]) -> None:
    """Let the store on a disk hold what another one held in the end."""
    with open_with(simulated(3, disk), PATH) as db:
        for name, pairs in left.items():
            db.map(name).clear()
            db.map(name).update(pairs)


# ------------------------------------------------------------------ tasks


@asynccontextmanager
async def of_tasks(
    disk: FaultyDisk, mode: Mode | None = None, snapshot: bool = False, **options: Any
) -> AsyncIterator[World]:
    environment = simulated(2, disk)
    async with aio.open_with(environment, PATH, **options) as db:
        world = World(
            maps={},
            environment=environment,
            drop=db.database.drop,
            close=db.aclose,
            block=db.transaction,
        )
        found = {name: db.map(name) for name in CODECS}
        if mode is not None:
            async with db.transaction(mode, plain_writes=True, deadline=DEADLINE) as tx:
                world.commit = tx.commit
                await use(world, {name: tx[found[name]] for name in found})
                yield world
        elif snapshot:
            async with db.snapshot() as old:
                await use(world, {name: old[found[name]] for name in found})
                yield world
        else:
            await use(world, found)
            yield world


async def use(world: World, found: dict[str, aio.Map[Any, Any]]) -> None:
    """Bind maps, and let them be those of a world."""
    for name, mapping in found.items():
        await mapping.ensure()
        world.maps[name] = OfTasks(mapping)


# ------------------------------------------------------------------ at the end of a wire


class Wire:
    """The backing of a map for tasks that can only ask: what a network would let through."""

    def __init__(self, mapping: maps.Map[Any, Any], database: Database) -> None:
        self.namespace = namespace_of(mapping)
        self._mapping = mapping
        self._database = database

    async def ask(self, request: Request) -> Any:
        await tasks.checkpoint()
        return answering.answer(request, self._mapping)

    async def get(self, key: Any, default: Any, /) -> Any:
        (data,) = await self.ask(GetMany([self.namespace.encode_key(key)]))
        return default if data is None else self.namespace.decode_value(data)

    async def put(self, key: bytes, value: bytes | None, /) -> None:
        await self.ask(PutMany([(key, value)]))

    def get_nowait(self, key: Any, default: Any) -> Any:
        raise tasks.would_block()

    async def answer(self, request: Request) -> Any:
        match request:
            case Take(source, most):
                return await taken(source, most)
            case Compute(work):
                return work()
            case Together(operation):
                session_of(self._database).check_outside(self.namespace)
                with self._database.transaction(plain_writes=True) as tx:
                    return await Wire(tx[self._mapping], self._database).perform(operation())
        return await self.ask(request)

    async def perform(self, operation: Operation[Any]) -> Any:
        return await drive(operation, self.answer)

    async def read(self, operation: Operation[Any], keys: int) -> Any:
        return await self.perform(operation)

    def pages(self, way: Iteration[Any]) -> WirePages:
        return WirePages(way, self._mapping)


class WirePages:
    """Pages of encoded pairs, decoded at this end."""

    def __init__(self, way: Iteration[Any], mapping: maps.Map[Any, Any]) -> None:
        self._of_block = way.of_block or list
        self._pairs = answering.iterate(way._replace(of_block=None), mapping)

    async def fetch(self, size: int) -> list[Any]:
        await tasks.checkpoint()
        return list(self._of_block(list(islice(self._pairs, size))))

    def close(self) -> None:
        self._pairs.close()


@asynccontextmanager
async def wire(disk: FaultyDisk) -> AsyncIterator[World]:
    environment = simulated(2, disk)
    with open_with(environment, PATH) as db:
        world = World(
            maps={},
            environment=environment,
            drop=db.drop,
            close=awaited(db.close),
            block=in_block(db),
        )
        ends = {name: awaited(partial(Wire, db.map(name), db)) for name in CODECS}
        await use(
            world, {name: aio.Map(name, session_of(db).home, bind) for name, bind in ends.items()}
        )
        yield world


# ------------------------------------------------------------------ in a cluster


@contextmanager
def of_members(disk: FaultyDisk, count: int, partitions: int, real: bool) -> Iterator[str]:
    """Members filled alike; what they hold in the end goes to the disk."""
    with ExitStack() as ends:
        url = (
            shared_members(count, partitions)
            if real
            else ends.enter_context(members(count, partitions)).url
        )
        with connect(url) as db:
            for name in db.maps():
                db.drop(name)
            for name, (key, value) in CODECS.items():
                db.map(name, key=key, value=value).update(CONTENTS[name])
        yield url
        with connect(url) as db:
            left = {name: dict(db.map(name)) for name in db.maps()}
    write_back(disk, left)


@asynccontextmanager
async def clustered(
    disk: FaultyDisk, count: int, partitions: int, mode: Mode | None = None, real: bool = False
) -> AsyncIterator[World]:
    environment = simulated(2, disk)
    with (
        of_members(disk, count, partitions, real) as url,
        blocking.connect_with(environment, url) as db,
    ):
        found = {name: db.map(name) for name in CODECS}
        world = World(
            maps={name: OfThreads(mapping) for name, mapping in found.items()},
            environment=environment,
            drop=db.drop,
            close=awaited(db.close),
            block=in_block(db),
            path=url,
        )
        if mode is not None:
            with db.transaction(mode, plain_writes=True, deadline=DEADLINE) as tx:
                world.maps = {name: OfThreads(tx[found[name]]) for name in found}
                world.commit = awaited(tx.commit)
                yield world
        else:
            yield world


@asynccontextmanager
async def clustered_tasks(
    disk: FaultyDisk, count: int, partitions: int, mode: Mode | None = None, real: bool = False
) -> AsyncIterator[World]:
    environment = simulated(2, disk)
    with of_members(disk, count, partitions, real) as url, connect(url) as beside:
        async with tasks_of_clusters.connect_with(environment, url) as db:
            world = World(
                maps={},
                environment=environment,
                drop=beside.drop,
                close=db.aclose,
                block=db.transaction,
                path=url,
            )
            found = {name: db.map(name) for name in CODECS}
            if mode is not None:
                async with db.transaction(mode, plain_writes=True, deadline=DEADLINE) as tx:
                    world.commit = tx.commit
                    await use(world, {name: tx[found[name]] for name in found})
                    yield world
            else:
                await use(world, found)
                yield world


# ------------------------------------------------------------------ all of them


IN_A_CLUSTER: dict[str, dict[str, Any]] = {
    "a cluster of one": {"kind": "plain", "count": 1, "partitions": 3},
    "a cluster of three": {"kind": "plain", "count": 3, "partitions": 3},
    "a transaction in a cluster of one": {
        "kind": "transaction", "count": 1, "partitions": 3, "mode": "optimistic",
    },
    "a transaction in a cluster of three": {
        "kind": "transaction", "count": 3, "partitions": 3, "mode": "optimistic",
    },
    "a pessimistic transaction in a cluster of one": {
        "kind": "transaction", "count": 1, "partitions": 3, "mode": "pessimistic",
    },
    "a pessimistic transaction in a cluster of three": {
        "kind": "transaction", "count": 3, "partitions": 3, "mode": "pessimistic",
    },
    "a transaction in one partition of a cluster": {
        "kind": "transaction", "count": 3, "partitions": 1, "mode": "optimistic",
    },
}  # fmt: skip

SNAPSHOT = "a snapshot cannot be written"
READ_ONLY = f"{PATH} is open for reading only"


def face(kind: str, opened: Any, loop: str = "trio", **options: Any) -> Face:
    return Face(kind=kind, opened=partial(opened, **options), loop=loop)


OF_TASKS: dict[str, Callable[..., Face]] = {
    "a store": partial(face, "plain", of_tasks),
    "a store with cold reads": partial(face, "plain", of_tasks, reads="thread"),
    "an optimistic transaction": partial(face, "transaction", of_tasks, mode="optimistic"),
    "a pessimistic transaction": partial(face, "transaction", of_tasks, mode="pessimistic"),
    "a snapshot": partial(face, SNAPSHOT, of_tasks, snapshot=True),
    "a store for reading": partial(face, READ_ONLY, of_tasks, read_only=True),
    "at the end of a wire": partial(face, "plain", wire),
}

FACES: dict[str, Face] = {
    "a store": face("plain", threads),
    "a relaxed store": face("plain", threads, durability="interval"),
    "a store in memory": face("plain", memory),
    "an optimistic transaction": face("transaction", threads, mode="optimistic"),
    "a pessimistic transaction": face("transaction", threads, mode="pessimistic"),
    "a snapshot": face(SNAPSHOT, threads, snapshot=True),
    "a store for reading": face(READ_ONLY, threads, read_only=True),
    "a snapshot of a store for reading": face(SNAPSHOT, threads, snapshot=True, read_only=True),
    **{name: face(opened=clustered, **options) for name, options in IN_A_CLUSTER.items()},
    **{
        f"{title}: {name}": face(opened=clustered_tasks, loop=loop, **options)
        for title, loop in (("Trio", "trio"), ("asyncio", "asyncio"))
        for name, options in IN_A_CLUSTER.items()
    },
    **{f"Trio: {name}": made(loop="trio") for name, made in OF_TASKS.items()},
    **{f"asyncio: {name}": made(loop="asyncio") for name, made in OF_TASKS.items()},
}


REAL_FACES: dict[str, Face] = {
    **{
        f"threads: {name}": face(opened=clustered, real=True, **options)
        for name, options in IN_A_CLUSTER.items()
    },
    **{
        f"{loop}: {name}": face(opened=clustered_tasks, loop=loop, real=True, **IN_A_CLUSTER[name])
        for loop, name in (("trio", "a cluster of one"), ("asyncio", "a cluster of three"))
    },
}
"""Faces of clusters once more, of members that are the real thing."""


@cache
def filled() -> FaultyDisk:
    """A disk with a store that holds ``CONTENTS``; for copies."""
    disk = FaultyDisk()
    with open_with(simulated(1, disk), PATH, partitions=3) as db:
        for name, (key, value) in CODECS.items():
            db.map(name, key=key, value=value).update_many(CONTENTS[name])
    return disk


def contents(disk: FaultyDisk) -> dict[str, dict[Any, Any]]:
    """What the maps of a store on a disk hold."""
    with open_with(simulated(3, disk), PATH) as db:
        return {name: dict(db.map(name).items()) for name in db.maps()}
