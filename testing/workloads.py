"""Clients that use one map at the same time and record what they are told: registers and counters.

A workload is a list of clients, each an async function without arguments.  Start each as a task of
Trio or asyncio, let things go wrong meanwhile, and ``check`` the history behind it.

Invariants:

- What a client does is drawn when it is made, so it does not depend on who runs when.
- No two writes of a workload have the same value: an answer tells whose write it saw.
- A call that ended by an error of ``CERTAIN`` did nothing.  After any other error, and if the task
  is cancelled, its outcome is unknown.
- A client goes on after errors of the store and of connections, and raises those that tell of a
  mistake: else a workload that is used wrongly would pass, as it does nothing.

Left out: pauses between operations, retries and faults.  The caller's map has them, or its world.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Protocol

from ..affinity.errors import (
    ClosedError,
    CommitUnknownError,
    NotEnoughMembersError,
    PartitionUnavailableError,
    TidelogError,
    TransactionError,
    UsageError,
)
from .histories import (
    Action,
    CompareAndSet,
    Delete,
    Get,
    History,
    HistoryKey,
    HistoryValue,
    Incr,
    Put,
)

CERTAIN: tuple[type[TidelogError], ...] = (
    UsageError,
    TransactionError,
    PartitionUnavailableError,
    NotEnoughMembersError,
)
"""Errors after which nothing was done; ``CommitUnknownError`` is a class of its own."""

REGISTER_MIX = {Get: 4, Put: 3, CompareAndSet: 2, Delete: 1}
"""How often a client of registers does what."""

COUNTER_MIX = {Get: 1, Incr: 2}
"""How often a client of counters does what."""

WorkloadClient = Callable[[], Awaitable[None]]


class SharedMap(Protocol):
    """What a workload needs of a map; the maps of ``tidelog.aio`` have it."""

    def get(self, key: Any, /) -> Awaitable[Any]:
        """Return the value of a key, or None."""

    def set(self, key: Any, value: Any, /) -> Awaitable[None]:
        """Set a key."""

    def discard(self, key: Any, /) -> Awaitable[None]:
        """Delete a key if it is there."""

    def compare_and_set(self, key: Any, expected: Any, value: Any, /) -> Awaitable[bool]:
        """Set a key if it has what is expected; tell whether it did."""

    def incr(self, key: Any, delta: int = 1, /) -> Awaitable[int]:
        """Add to a number; return the sum."""


class Dice(Protocol):
    """What a workload needs of ``random.Random``."""

    def choices(self, population: Sequence[Any], weights: Sequence[int], *, k: int) -> list[Any]:
        """Draw ``k`` times, each by its weight."""


def register_clients(
    registers: SharedMap,
    history: History,
    *,
    clients: int,
    keys: Sequence[HistoryKey],
    operations: int,
    chance: Dice,
    clock: Callable[[], float],
) -> list[WorkloadClient]:
    """Return clients that get, set, delete, and compare and set; each does so many operations."""
    return [
        partial(
            _use_registers,
            _Told(f"client {number}", registers, history, clock),
            _drawn(chance, REGISTER_MIX, keys, operations),
            [value * clients + number for value in range(operations)],
        )
        for number in range(clients)
    ]


def counter_clients(
    counters: SharedMap,
    history: History,
    *,
    clients: int,
    keys: Sequence[HistoryKey],
    operations: int,
    chance: Dice,
    clock: Callable[[], float],
) -> list[WorkloadClient]:
    """Return clients that increment and get; each does so many operations."""
    return [
        partial(
            _use_counters,
            _Told(f"client {number}", counters, history, clock),
            _drawn(chance, COUNTER_MIX, keys, operations),
        )
        for number in range(clients)
    ]


Drawn = list[tuple[type[Action], HistoryKey]]


def _drawn(chance: Dice, mix: dict[Any, int], keys: Sequence[HistoryKey], operations: int) -> Drawn:
    kinds = chance.choices(list(mix), list(mix.values()), k=operations)
    return list(zip(kinds, chance.choices(keys, [1] * len(keys), k=operations), strict=True))


async def _use_registers(told: _Told, drawn: Drawn, values: Sequence[int]) -> None:
    known: dict[HistoryKey, HistoryValue] = {}  # what this client thinks there is
    for (kind, key), value in zip(drawn, values, strict=True):
        if kind is Get:
            await told.carry_out(Get(key), known)
        elif kind is Put:
            await told.carry_out(Put(key, value), known)
        elif kind is Delete:
            await told.carry_out(Delete(key), known)
        else:
            await told.carry_out(CompareAndSet(key, known.get(key), value), known)


async def _use_counters(told: _Told, drawn: Drawn) -> None:
    for kind, key in drawn:
        await told.carry_out(Get(key) if kind is Get else Incr(key), {})


class _Told:
    """One client: asks its map, and tells the history."""

    def __init__(
        self, name: str, shared: SharedMap, history: History, clock: Callable[[], float]
    ) -> None:
        self._name = name
        self._map = shared
        self._history = history
        self._clock = clock

    async def carry_out(self, action: Action, known: dict[HistoryKey, HistoryValue]) -> None:
        """Do one operation; note what is known of its key behind it."""
        call = self._history.begin(self._name, action, self._clock())
        try:
            result = await self._asked(action)
        except (TidelogError, OSError) as error:
            if isinstance(error, CERTAIN) and not isinstance(error, CommitUnknownError):
                call.failed(self._clock())
            else:
                call.unknown(self._clock())
            if isinstance(error, UsageError) and not isinstance(error, ClosedError):
                raise
        except BaseException:
            call.unknown(self._clock())
            raise
        else:
            call.ok(result, self._clock())
            match action:
                case Get(key):
                    known[key] = result
                case Put(key, value):
                    known[key] = value
                case Delete(key):
                    known[key] = None
                case CompareAndSet(key, _, value) if result:
                    known[key] = value

    async def _asked(self, action: Action) -> Any:
        match action:
            case Get(key):
                return await self._map.get(key)
            case Put(key, value):
                return await self._map.set(key, value)
            case Delete(key):
                return await self._map.discard(key)
            case CompareAndSet(key, expected, value):
                return await self._map.compare_and_set(key, expected, value)
            case Incr(key, delta):
                return await self._map.incr(key, delta)
