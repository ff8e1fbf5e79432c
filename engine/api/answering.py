"""Carries out the operations of maps over a session: request by request, in this thread.

Left out: what the operations mean (``operations``), what a session does (``session``,
``transaction_session``, ``snapshots``, ``read_session``).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Any, Protocol, TypeVar

from ..data.decisions import Decide
from ..data.namespaces import Namespace
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
from .items import Items
from .pickling import WayBack

T = TypeVar("T")

BLOCK_COUNTED = 2048
"""Pairs that are wanted at once by who only counts them."""


class Session(Protocol):
    """Where a map reads and writes."""

    def getter(self, namespace: Namespace) -> Callable[[bytes], bytes | None]:
        """Return a function from encoded key to encoded value."""

    def setter(self, namespace: Namespace) -> Callable[[bytes, bytes | None], None]:
        """Return a function that sets an encoded key, or deletes it if the value is None."""

    def blocks(
        self, namespace: Namespace, start: bytes, stop: bytes | None, reverse: bool, size: int,
        *, values: bool = True,
    ) -> Iterator[list[Pair]]:  # fmt: skip
        """Yield blocks of encoded pairs, in order; without ``values`` these may be empty."""

    def count(self, namespace: Namespace) -> int | None:
        """Return the number of keys of a map; None if it has to be counted by going over it."""

    def peek(self, namespace: Namespace) -> tuple[list[Pair], int | None] | None:
        """Return the first pairs and how many there are, for whoever only looks.

        None in a transaction, for which that would be a read.  The number is None if it has to be
        counted.
        """

    def get_many(self, namespace: Namespace, keys: list[bytes]) -> list[bytes | None]:
        """Return the encoded values of encoded keys."""

    def set_many(self, namespace: Namespace, pairs: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Set or delete many encoded keys at once."""

    def rewriter(self, namespace: Namespace) -> Callable[[bytes, Decide], Any]:
        """Return a function that carries out a decision about an encoded key, in one step."""

    def pop_first(self, namespace: Namespace) -> Pair | None:
        """Delete the first key and return the encoded pair, None if the map is empty."""

    def atomically(self, namespace: Namespace, work: Callable[[Bound], T]) -> T:
        """Run ``work`` with the map of one transaction."""

    def way(self) -> WayBack:
        """Return how another process finds the store of its maps."""


class Bound(Protocol):
    """A namespace in a session: what there is to a map before it has the methods of one."""

    _namespace: Namespace
    _session: Session
    _read: Callable[[bytes], bytes | None]
    _rewrite: Callable[[bytes, Decide], Any]


def perform(operation: Operation[T], mapping: Bound) -> T:
    """Carry out an operation: answer what it asks for, and return its result."""
    send, found = operation.send, None
    while True:
        try:
            request = send(found)
        except StopIteration as end:
            result: T = end.value
            return result
        found = answer(request, mapping)


def answer(request: Request, mapping: Bound) -> Any:
    """Return the answer to a request of an operation."""
    # The frequent ones first, and not as cases of the match, which would take longer.
    if isinstance(request, DecideOn):
        return mapping._rewrite(*request)
    namespace, session = mapping._namespace, mapping._session
    if isinstance(request, GetMany):
        return session.get_many(namespace, request.keys)
    if isinstance(request, PutMany):
        return session.set_many(namespace, request.pairs)
    match request:
        case Compute(work):
            return work()
        case Has(key):
            return mapping._read(key) is not None
        case Count(b"", None, None) if (known := session.count(namespace)) is not None:
            return known
        case Count(low, high, most):
            size = BLOCK_COUNTED if most is None else most
            return _count(session.blocks(namespace, low, high, False, size, values=False), most)
        case Keys(low, high):
            blocks = session.blocks(namespace, low, high, False, BLOCK_COUNTED, values=False)
            return [key for block in blocks for key, _ in block]
        case First(reverse):
            return next(iterate(Iteration(b"", None, reverse, 1, 1, None), mapping), None)
        case PopFirst():
            return session.pop_first(namespace)
        case Together(operation):
            return session.atomically(namespace, lambda inside: perform(operation(), inside))
        case Take(source, most):
            assert not isinstance(source, AsyncIterator), "the face has refused it"
            return list(islice(source, most))


def _count(blocks: Iterator[list[Pair]], most: int | None) -> int:
    total = 0
    for block in blocks:
        total += len(block)
        if most is not None and total >= most:
            return most
    return total


def iterate(way: Iteration[T], mapping: Bound) -> Items[T]:
    """Return an iteration over a map, of which nothing has been read yet."""
    low, high, reverse, limit, size, of_block, values = way
    session, namespace = mapping._session, mapping._namespace
    blocks = session.blocks(namespace, low, high, reverse, size, values=values)
    if limit is not None:
        blocks = _limited(blocks, limit)
    found: Any = blocks if of_block is None else map(of_block, blocks)
    return Items(chain.from_iterable(found), blocks)


def _limited(blocks: Iterator[list[Pair]], left: int) -> Iterator[list[Pair]]:
    """Yield blocks with ``left`` pairs in all, and let go of the snapshot that they are from."""
    try:
        while left > 0 and (block := next(blocks, None)) is not None:
            del block[left:]  # in its place: a fork takes from a snapshot what it has handed out
            left -= len(block)
            yield block
    finally:
        blocks.close()  # type: ignore[attr-defined]  # a generator always has it
