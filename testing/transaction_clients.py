"""Clients whose transactions touch several keys, and record what they saw: lists, sets, a bank.

A workload is a list of clients, each an async function without arguments, as in ``workloads``.

================= =================================================== ===========================
``ListAppends``   append to lists and read some, in one transaction   ``lists.check_lists``
``SetAdds``       add elements, some behind a look at those beside,   ``cycles``
                  and read all that there are
``BankTransfers`` move money between accounts, and read all of them   the sum is always the same
================= =================================================== ===========================

Invariants:

- What a client does is drawn when it is made, so it does not depend on who runs when.
- A transaction that ended by an error of ``CERTAIN`` did nothing.  After any other error of the
  store or of a connection, and if the task is cancelled, nobody knows whether it took effect.
- No transaction is run again: what was refused is part of the history.

Left out: pauses, retries and faults, which the caller's world has.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from itertools import count
from typing import Any, NamedTuple, Protocol

from ..affinity.errors import ClosedError, CommitUnknownError, TidelogError, UsageError
from .cycles import TransactionAnomaly, check_transactions
from .lists import Append, Element, ListTransaction, ReadList, check_lists
from .transactions import (
    ABORTED,
    COMMITTED,
    UNKNOWN,
    Transaction,
    TransactionHistory,
    TransactionRecorder,
    TxKey,
    TxValue,
)
from .workloads import CERTAIN, Dice, WorkloadClient

STEPS_MAX = 4
"""Steps of a transaction over lists, at most."""
APPENDS = 0.6
"""The part of them that append."""
READS = 0.3
"""The part of transactions that read everything, in a set or a bank."""
LOOKS = 0.3
"""The part of those that add elements which look first at what is beside these."""
BESIDE = 4
"""How far they look to both sides: others are adding elements there."""


class InsideMap(Protocol):
    """What these need of a map inside a transaction."""

    def get(self, key: Any, /) -> Awaitable[Any]:
        """Return the value of a key, or None."""

    def set(self, key: Any, value: Any, /) -> Awaitable[None]:
        """Set a key."""

    def range(self, start: Any, stop: Any, /) -> AsyncIterator[tuple[Any, Any]]:
        """Iterate over the pairs from a key on, and before another; None is without an end."""


BeginTransaction = Callable[[], AbstractAsyncContextManager[InsideMap]]
"""BeginTransaction a transaction; what is entered is the map in it, and its end is the commit."""


class _Clients:
    """What clients of a workload share: the store, a clock, and the ids of their transactions."""

    def __init__(self, begin: BeginTransaction, clock: Callable[[], float], chance: Dice) -> None:
        self._begin = begin
        self._clock = clock
        self._chance = chance
        self._elements = count(1)

    def _one_of(self, some: Sequence[Any]) -> Any:
        return self._chance.choices(some, [1] * len(some), k=1)[0]

    def _often(self, part: float) -> bool:
        weights = [round(part * 100), 100 - round(part * 100)]
        return bool(self._chance.choices([True, False], weights, k=1)[0])

    async def _carried_out(
        self, work: Callable[[InsideMap], Awaitable[None]], ended: Callable[[str, float], None]
    ) -> None:
        """Run a transaction, and tell how it ended, and when."""
        try:
            async with self._begin() as inside:
                await work(inside)
        except (TidelogError, OSError) as error:
            certain = isinstance(error, CERTAIN) and not isinstance(error, CommitUnknownError)
            ended(ABORTED if certain else UNKNOWN, self._clock())
            if isinstance(error, UsageError) and not isinstance(error, ClosedError):
                raise
        except BaseException:
            ended(UNKNOWN, self._clock())
            raise
        else:
            ended(COMMITTED, self._clock())


class ListAppends(_Clients):
    """Transactions that append to lists, and read some."""

    def __init__(self, begin: BeginTransaction, clock: Callable[[], float], chance: Dice) -> None:
        super().__init__(begin, clock, chance)
        self.transactions: list[ListTransaction] = []

    def clients(
        self, clients: int, *, keys: Sequence[str], transactions: int
    ) -> list[WorkloadClient]:
        """Return clients that run so many transactions each."""
        drawn = [
            [self._drawn(keys) for _ in range(transactions)] for _ in range(clients)
        ]  # fmt: skip
        return [partial(self._work, number, some) for number, some in enumerate(drawn)]

    def _drawn(self, keys: Sequence[str]) -> list[tuple[str, Element | None]]:
        """Return the steps of a transaction: a key, and what is appended if anything is."""
        steps = self._one_of(range(1, STEPS_MAX + 1))
        return [
            (self._one_of(keys), next(self._elements) if self._often(APPENDS) else None)
            for _ in range(steps)
        ]

    async def _work(
        self, number: int, drawn: Sequence[Sequence[tuple[str, Element | None]]]
    ) -> None:
        for place, steps in enumerate(drawn):
            one = ListTransaction(id=f"{number}.{place}", start=self._clock())
            self.transactions.append(one)

            def ended(status: str, end: float, one: ListTransaction = one) -> None:
                one.status = status
                if status != UNKNOWN:
                    one.end = end

            await self._carried_out(partial(_append, one, steps), ended)

    async def anomalies(self, final: InsideMap, keys: Sequence[str]) -> list[TransactionAnomaly]:
        """Return what is wrong; ``final`` is read when all clients have ended."""
        return check_lists(self.transactions, {key: await final.get(key) or () for key in keys})


async def _append(
    one: ListTransaction, steps: Sequence[tuple[str, Element | None]], inside: InsideMap
) -> None:
    for key, element in steps:
        found = tuple(await inside.get(key) or ())
        one.steps.append(ReadList(key, found))
        if element is not None:
            await inside.set(key, [*found, element])
            one.steps.append(Append(key, element))


class _Adding(NamedTuple):
    """What a transaction adds; nothing if it reads all that there are."""

    added: list[Element]
    looks: bool
    """Whether it reads the range around what it adds before."""


class SetAdds(_Clients):
    """Transactions that add some elements of a set, a key each, or read all that there are."""

    def __init__(self, begin: BeginTransaction, clock: Callable[[], float], chance: Dice) -> None:
        super().__init__(begin, clock, chance)
        self.transactions: list[Transaction] = []

    def clients(self, clients: int, *, transactions: int) -> list[WorkloadClient]:
        """Return clients that run so many transactions each."""
        drawn = [[self._drawn() for _ in range(transactions)] for _ in range(clients)]
        return [partial(self._work, number, some) for number, some in enumerate(drawn)]

    def _drawn(self) -> _Adding:
        if self._often(READS):
            return _Adding([], looks=False)
        added = [next(self._elements) for _ in range(self._one_of((1, 2, 3)))]
        return _Adding(added, self._often(LOOKS))

    async def _work(self, number: int, drawn: Sequence[_Adding]) -> None:
        for place, adding in enumerate(drawn):
            recorder = TransactionRecorder(f"{number}.{place}", self._clock())

            def ended(status: str, end: float, told: TransactionRecorder = recorder) -> None:
                self.transactions.append(told.finish(status, end))

            await self._carried_out(partial(_add, recorder, adding), ended)

    async def anomalies(self, final: InsideMap) -> list[TransactionAnomaly]:
        """Return what is wrong; ``final`` is read when all clients have ended."""
        there: dict[TxKey, list[TxValue]] = {
            _name(key): [value] async for key, value in final.range(None, None)
        }
        return check_transactions(
            TransactionHistory(transactions=self.transactions, versions=there)
        )


async def _add(recorder: TransactionRecorder, adding: _Adding, inside: InsideMap) -> None:
    if adding.looks:
        await _look(recorder, adding.added[0] - BESIDE, adding.added[-1] + BESIDE, inside)
    for element in adding.added:
        await inside.set(element, element)
        recorder.write(_name(element), element)
    if not adding.added:
        await _look(recorder, 0, None, inside)


async def _look(
    recorder: TransactionRecorder, start: Element, stop: Element | None, inside: InsideMap
) -> None:
    found: dict[TxKey, TxValue] = {
        _name(key): value async for key, value in inside.range(start, stop)
    }
    recorder.scan(_name(max(start, 0)), None if stop is None else _name(stop), found)


def _name(element: Element) -> TxKey:
    """Return the key of an element in a history, where keys are in the order of their names."""
    return f"{element:06}"


class BankTransfers(_Clients):
    """Transactions that move money between two accounts, or read all of them.

    Money is never made, nor lost, and nobody owes any.
    """

    def __init__(
        self,
        begin: BeginTransaction,
        clock: Callable[[], float],
        chance: Dice,
        *,
        accounts: Sequence[str],
        each: int = 10,
    ) -> None:
        super().__init__(begin, clock, chance)
        self._accounts = accounts
        self._each = each
        self.statuses: list[str] = []
        self.read: list[dict[str, int]] = []
        """What committed transactions have read of all accounts."""

    async def fill(self) -> None:
        """Give every account what it has at the beginning."""
        async with self._begin() as inside:
            for account in self._accounts:
                await inside.set(account, self._each)

    def clients(self, clients: int, *, transactions: int) -> list[WorkloadClient]:
        """Return clients that run so many transactions each."""
        drawn = [[self._drawn() for _ in range(transactions)] for _ in range(clients)]
        return [partial(self._work, some) for some in drawn]

    def _drawn(self) -> tuple[str, str, int] | None:
        if self._often(READS):
            return None
        payer, payee = self._one_of(self._accounts), self._one_of(self._accounts)
        return payer, payee, self._one_of(range(1, 6))

    async def _work(self, drawn: Sequence[tuple[str, str, int] | None]) -> None:
        for payment in drawn:
            found: dict[str, int] = {}

            def ended(status: str, _end: float, found: dict[str, int] = found) -> None:
                self.statuses.append(status)
                if status == COMMITTED and found:
                    self.read.append(found)

            work = partial(self._look, found) if payment is None else partial(_pay, *payment)
            await self._carried_out(work, ended)

    async def _look(self, found: dict[str, int], inside: InsideMap) -> None:
        for account in self._accounts:
            found[account] = await _held_by(account, inside)

    async def anomalies(self, final: InsideMap) -> list[TransactionAnomaly]:
        """Return what is wrong; ``final`` is read when all clients have ended."""
        last = {account: await _held_by(account, final) for account in self._accounts}
        total, found = self._each * len(self._accounts), []
        for read in (*self.read, last):
            if sum(read.values()) != total:
                text = f"{read} has {sum(read.values())} in all, and not {total}"
                found.append(TransactionAnomaly("wrong total", (), text))
            elif min(read.values()) < 0:
                found.append(TransactionAnomaly("overdrawn", (), f"{read} owes something"))
        return found


async def _pay(payer: str, payee: str, amount: int, inside: InsideMap) -> None:
    has = await _held_by(payer, inside)
    if has >= amount:
        await inside.set(payer, has - amount)
        await inside.set(payee, await _held_by(payee, inside) + amount)


async def _held_by(account: str, inside: InsideMap) -> int:
    """Return what is in an account; one that was lost with a disk has nothing."""
    held: int = await inside.get(account) or 0
    return held
