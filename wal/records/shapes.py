"""What all bodies of records share: runs of numbers, updates, ids, and how they are checked.

Records are msgpack arrays.  If many rows of the same numbers stand in one, they stand flat:
``[partition, epoch, first, count, partition, ...]`` and not as arrays in an array.

Invariants:

- Whatever is wrong with a body is a ``ValueError``, ``TypeError`` or another of ``UNDECODABLE``
  here, and an ``UndecodableRecordError`` to whoever decodes (``table``).

Left out: the records themselves (``transactions``, ``partitions``, ``store``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import msgpack

ID_SIZE = 16
UNDECODABLE = (
    ValueError,
    TypeError,
    IndexError,
    KeyError,
    AttributeError,
    msgpack.UnpackException,
)
"""What taking a body apart raises if it is not a body."""

T = TypeVar("T")


class UndecodableRecordError(Exception):
    """The bytes of a record do not make a record; the reader adds where and tells users."""


class Run(NamedTuple):
    """Updates of one transaction to one partition: numbers ``first`` to ``first + count - 1``."""

    partition: int
    epoch: int
    first: int
    count: int  # type: ignore[assignment]  # hides the method of tuples, which nobody needs


class Closed(NamedTuple):
    """Numbers of one partition that no update has; ``reason`` says why."""

    epoch: int
    first: int
    count: int  # type: ignore[assignment]  # hides the method of tuples, which nobody needs
    reason: str


class Update(NamedTuple):
    """One update of a transaction; ``value`` None deletes."""

    partition: int
    epoch: int
    counter: int
    namespace: int
    key: bytes
    value: bytes | None


class Columns(NamedTuple):
    """What one transaction writes into one partition, one entry of each list per update.

    ``keys[i]`` gets ``values[i]``, or is deleted if that is None; ``namespaces`` is one id for all
    updates or one per update.
    """

    namespaces: int | list[int]
    keys: list[bytes]
    values: list[bytes | None]

    def between(self, start: int, end: int) -> Columns:
        """Return the updates from index ``start`` up to, and without, ``end``."""
        names = self.namespaces
        return Columns(
            names if isinstance(names, int) else names[start:end],
            self.keys[start:end],
            self.values[start:end],
        )


def numbered(runs: Iterable[Run], columns: Columns) -> Iterator[Update]:
    """Yield the updates of runs, in the order of the log."""
    namespaces, keys, values = columns
    index = 0
    for run in runs:
        for counter in range(run.first, run.first + run.count):
            namespace = namespaces if isinstance(namespaces, int) else namespaces[index]
            yield Update(run.partition, run.epoch, counter, namespace, keys[index], values[index])
            index += 1


def flatten(rows: Iterable[Iterable[T]]) -> list[T]:
    """Return rows as the flat list that records hold."""
    return [item for row in rows for item in row]


def check_numbers(flat: Sequence[int], width: int) -> None:
    """Raise unless a flat list holds whole numbers from 0 on, in rows of ``width``."""
    # What is not a number has no sum; what is not a whole number gives it its own type.
    if len(flat) % width or (flat and (type(sum(flat)) is not int or min(flat) < 0)):
        raise ValueError(f"{flat!r} does not hold groups of {width} numbers")


def rows_of(flat: Sequence[int], width: int) -> Iterator[tuple[int, ...]]:
    """Return the rows of a flat list of numbers, checked."""
    check_numbers(flat, width)
    return zip(*[iter(flat)] * width, strict=True)


def runs_of(flat: list[int]) -> tuple[Run, ...]:
    """Return the runs of a flat list that was checked."""
    if len(flat) == 4:
        return (Run(*flat),)
    parts = iter(flat)
    return tuple(map(Run, parts, parts, parts, parts))


def checked_run(fields: list[int]) -> Run:
    """Return the one run of four numbers."""
    check_numbers(fields, 4)
    return Run(*fields)


def closed_of(rows: list[list[Any]]) -> tuple[Closed, ...]:
    """Return closed ranges, checked."""
    for epoch, first, count, reason in rows:
        check_numbers((epoch, first, count), 3)
        checked_text(reason)
    return tuple(Closed(*row) for row in rows)


def checked_id(value: object) -> bytes:
    """Return an id of 16 bytes."""
    if not (isinstance(value, bytes) and len(value) == ID_SIZE):
        raise ValueError(f"{value!r} is not an id")
    return value


def checked_number(value: object) -> int:
    """Return a whole number from 0 on."""
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is not a number from 0 on")
    return value


def checked_text(value: object) -> str:
    """Return a text."""
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a text")
    return value


def check_columns(count: int, namespaces: object, keys: list[bytes], values: list[Any]) -> None:
    """Raise unless namespaces, keys and values fit the number of updates."""
    if not (len(keys) == len(values) == count and count > 0):
        raise ValueError(f"{len(keys)} keys and {len(values)} values in runs of {count} updates")
    if isinstance(namespaces, list) and len(namespaces) != count:
        raise ValueError(f"{len(namespaces)} namespaces for {count} updates")


def columns_of(fields: list[Any], count: int) -> Columns:
    """Return the columns of ``count`` updates, checked."""
    namespaces, keys, values = fields[:3]
    check_columns(count, namespaces, keys, values)
    return Columns(namespaces, keys, values)
