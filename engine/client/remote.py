"""Maps for tasks at the other end of a connection: the backing of ``aio.maps``, over a *reach*.

A reach is what answers: the cluster itself, where each write is a transaction, or a transaction.

Left out: the reaches (``tasks``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Generic, Protocol, TypeVar

from ...affinity.errors import CodecError
from ..aio.loops import Loop, called
from ..aio.running import would_block
from ..aio.workers import in_thread
from ..data.decisions import Decide
from ..data.driving import drive, taken
from ..data.namespaces import Namespace
from ..data.operations import Encoded
from ..data.requests import (
    Compute,
    Count,
    DecideOn,
    First,
    GetMany,
    Has,
    Iteration,
    Keys,
    Operation,
    PopFirst,
    PutMany,
    Request,
    Take,
    Together,
)
from ..data.scan import Pair
from .reads import PAGE_MAX

T = TypeVar("T")


class PairBlocks(Protocol):
    """An iteration over encoded pairs."""

    async def block(self) -> list[Pair]:
        """Return the next pairs; none at the end."""


class Reach(Protocol):
    """What answers to the maps of tasks."""

    @property
    def loop(self) -> Loop:
        """The loop of the tasks."""

    def check(self, namespace: Namespace) -> None:
        """Raise unless a map can be asked for something."""

    async def values(self, namespace: Namespace, keys: list[bytes]) -> list[bytes | None]:
        """Return the encoded values of encoded keys."""

    async def put_many(self, namespace: Namespace, pairs: Encoded) -> None:
        """Set or delete encoded keys."""

    async def decide(self, namespace: Namespace, key: bytes, decide: Decide) -> Any:
        """Carry out a decision about an encoded key."""

    async def pop_first(self, namespace: Namespace) -> Pair | None:
        """Delete the first key and return the encoded pair."""

    async def together(self, namespace: Namespace, request: Together) -> Any:
        """Carry out an operation in one transaction."""

    def blocks(
        self, namespace: Namespace, low: bytes, high: bytes | None, reverse: bool, size: int,
        *, values: bool = True,
    ) -> PairBlocks:  # fmt: skip
        """Begin an iteration over encoded pairs."""


class Remote:
    """What a map for tasks is bound to."""

    def __init__(self, namespace: Namespace, reach: Reach) -> None:
        self.namespace = namespace
        self._reach = reach

    @called("Map.get")
    async def get(self, key: Any, default: Any, /) -> Any:
        """Return the value of a key, or ``default``."""
        namespace = self.namespace
        (data,) = await self._reach.values(namespace, [namespace.encode_key(key)])
        if data is None:
            return default
        try:
            return namespace.decode_value(data)
        except CodecError as error:
            raise namespace.at_key(error, key) from error.__cause__

    @called("Map.set")
    async def put(self, key: bytes, value: bytes | None, /) -> None:
        """Set an encoded key, or delete it."""
        await self._reach.put_many(self.namespace, [(key, value)])

    def get_nowait(self, key: Any, default: Any) -> Any:
        """Raise: nothing of a cluster is here."""
        self._reach.check(self.namespace)
        raise would_block()

    async def perform(self, operation: Operation[T]) -> T:
        """Carry out an operation, request by request."""
        return await drive(operation, self.answer)

    async def read(self, operation: Operation[T], keys: int) -> T:
        """Carry out an operation that only reads."""
        return await drive(operation, self.answer)

    def pages(self, way: Iteration[T]) -> RemotePages[T]:
        """Begin an iteration, of which nothing is read yet."""
        reach = self._reach
        reach.check(self.namespace)
        blocks = reach.blocks(
            self.namespace, way.low, way.high, way.reverse, way.size, values=way.values
        )
        return RemotePages(way, blocks)

    async def answer(self, request: Request) -> Any:
        """Return the answer to a request of an operation."""
        reach, namespace = self._reach, self.namespace
        match request:
            case DecideOn(key, decide):
                return await reach.decide(namespace, key, decide)
            case GetMany(keys):
                return await reach.values(namespace, keys)
            case PutMany(pairs):
                return await reach.put_many(namespace, pairs)
            case Has(key):
                return (await reach.values(namespace, [key]))[0] is not None
            case Count(low, high, most):
                return await self._count(low, high, most)
            case Keys(low, high):
                blocks = reach.blocks(namespace, low, high, False, PAGE_MAX, values=False)
                found: list[bytes] = []
                while block := await blocks.block():
                    found += [key for key, _ in block]
                return found
            case First(reverse):
                first = await reach.blocks(namespace, b"", None, reverse, 1).block()
                return first[0] if first else None
            case PopFirst():
                return await reach.pop_first(namespace)
            case Together():
                return await reach.together(namespace, request)
            case Take(source, most):
                return await taken(source, most)
            case Compute(work):
                reach.check(namespace)
                return await in_thread(reach.loop, work)

    async def _count(self, low: bytes, high: bytes | None, most: int | None) -> int:
        size = PAGE_MAX if most is None else most
        blocks = self._reach.blocks(self.namespace, low, high, False, size, values=False)
        total = 0
        while (most is None or total < most) and (block := await blocks.block()):
            total += len(block)
        return total if most is None else min(total, most)


class RemotePages(Generic[T]):
    """The pages of an iteration, made of the blocks that come."""

    def __init__(self, way: Iteration[T], blocks: PairBlocks) -> None:
        self._of_block = way.of_block
        self._left = way.limit
        self._blocks = blocks
        self._pairs: list[Pair] = []
        self._ended = False

    async def fetch(self, size: int) -> list[T]:
        """Return the next ``size``; fewer at the end."""
        wanted = size if self._left is None else min(size, self._left)
        while len(self._pairs) < wanted and not self._ended:
            block = await self._blocks.block()
            self._pairs += block
            self._ended = not block
        page, self._pairs = self._pairs[:wanted], self._pairs[wanted:]
        if self._left is not None:
            self._left -= len(page)
        made: Iterable[Any] = page if self._of_block is None else self._of_block(page)
        return list(made)

    def close(self) -> None:
        """Let go of what has come."""
        self._pairs, self._ended = [], True
