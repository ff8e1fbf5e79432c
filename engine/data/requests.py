"""What the operations of a map ask for: frozen values that any session of the map can answer.

Keys and values are encoded here.  The comment behind each request says what its answer is.  A
request does not say where it is answered: in this thread, in another one, or in another process.
``Together``, ``Take`` and ``Compute`` are for the face itself, and never leave its process.

An *operation* is a generator that yields requests and returns its result.  An *iteration* is not
asked for: it is a range, and what to make of the blocks of pairs that a session finds there.

Left out: the operations (``operations``), and who answers (the maps of ``api`` and of ``aio``).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator
from typing import Any, Generic, NamedTuple, TypeVar

from .decisions import Decide
from .scan import Pair

T = TypeVar("T")

Source = Iterator[Any] | AsyncIterator[Any]
"""Pairs of the caller's own, which a face takes from in its own way."""


class Has(NamedTuple):
    """Whether a key is there."""

    key: bytes
    # -> bool


class GetMany(NamedTuple):
    """The values of keys, all of one moment."""

    keys: list[bytes]
    # -> list[bytes | None]


class PutMany(NamedTuple):
    """Set keys, or delete them if their value is None: all at once, the last value counts."""

    pairs: list[tuple[bytes, bytes | None]]
    # -> None


class DecideOn(NamedTuple):
    """Carry out a decision about a key, in one step that nobody comes between."""

    key: bytes
    decide: Decide
    # -> what the decision tells


class First(NamedTuple):
    """The first key with its value; the last one if ``reverse``."""

    reverse: bool
    # -> Pair | None


class PopFirst(NamedTuple):
    """Delete the first key, and return it with its value."""

    # -> Pair | None


class Keys(NamedTuple):
    """The keys from ``low`` to below ``high``, in order; None is the end of the map."""

    low: bytes
    high: bytes | None
    # -> list[bytes]


class Count(NamedTuple):
    """The number of keys from ``low`` to below ``high``; ``most`` if there are so many or more."""

    low: bytes
    high: bytes | None
    most: int | None
    # -> int


class Together(NamedTuple):
    """Carry out an operation in one transaction, from the start again if that meets a conflict."""

    operation: Callable[[], Operation[Any]]
    # -> what the operation returns


class Take(NamedTuple):
    """The next of what the caller gave, up to ``most`` of them; none at its end."""

    source: Source
    most: int
    # -> list[Any]


class Compute(NamedTuple):
    """The result of a function that asks for nothing, and takes long enough to be in the way."""

    work: Callable[[], Any]
    # -> Any


Request = (
    Has | GetMany | PutMany | DecideOn | First | PopFirst | Keys | Count | Together | Take | Compute
)

Operation = Generator[Request, Any, T]


class Iteration(NamedTuple, Generic[T]):
    """An iteration over a map: where it goes, and what it gives."""

    low: bytes
    high: bytes | None
    """The first key that is not in it; None is the end of the map."""
    reverse: bool
    limit: int | None
    size: int
    """About how many pairs are wanted first."""
    of_block: Callable[[list[Pair]], Iterable[T]] | None
    """What it gives of a block of pairs; None: the pairs themselves."""
    values: bool = True
    """Whether it looks at values; else they need not be fetched, and may be empty."""
