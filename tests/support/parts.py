"""Transactions of several groups of a simulated cluster, as scenarios speak of them.

Partitions p, q and r have primaries of their own; p is the lowest, so its primary is the near
member of what writes it.

    async def scenario(three):
        tx = await three.begin({"p": b"1", "q": b"1"})
        ...

    together(scenario)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from itertools import permutations
from typing import Any

import trio

from support.copies import SOON_S, STAYING, Begun, Group
from support.raw_client import FailureError, RawClient
from tidelog.engine.agreement.timing import Timing
from tidelog.testing import SimCluster

PARTITIONS = 32
KEY = 0
"""Which key of a partition a scenario writes and reads."""


class Three:
    """Three partitions whose primaries are three members."""

    def __init__(self, at: SimCluster, *, apart: bool) -> None:
        """``apart`` tells whether no member has copies of two of them."""
        self.at = at
        self._apart = apart
        self._any = Group(at)
        self.groups: dict[str, Group] = {}

    async def start(self) -> None:
        await self._any.start()
        rows = self.at.topology().partitions
        found: list[int] = []
        for partition, copies in enumerate(rows):
            held = (
                {copy.member for copy in copies.in_sync} if self._apart else {copies.author.member}
            )
            others = [rows[one] for one in found]
            taken = {
                copy.member
                for row in others
                for copy in (row.in_sync if self._apart else (row.author,))
            }
            if not held & taken:
                found.append(partition)
        for name, partition in zip("pqr", found, strict=False):
            group = self.groups[name] = Group(self.at, partition, self._any._clients)
            group.number = self._any.number
            group.new_id = self._any.new_id  # type: ignore[method-assign]  # no two have one id

    # -------------------------------------------------------------- who is who

    @property
    def p(self) -> Group:
        return self.groups["p"]

    @property
    def q(self) -> Group:
        return self.groups["q"]

    @property
    def r(self) -> Group:
        return self.groups["r"]

    @property
    def near(self) -> str:
        return self.p.primary

    # -------------------------------------------------------------- what clients do

    def key(self, name: str) -> bytes:
        return self.at.key(self.groups[name].partition, KEY)

    async def versions(self, names: Iterable[str]) -> list[list[Any]]:
        """Read keys, and return what a commit says of that."""
        rows = []
        for name in names:
            client = await self._any.client(self.groups[name].primary)
            found = await client.ask("get", self._any.number, [self.key(name)])
            client.close()
            rows.append([self._any.number, [self.key(name)], found[1], found[2]])
        return rows

    async def begin(
        self,
        writes: Mapping[str, bytes],
        reads: Iterable[list[Any]] = (),
        *,
        before: Callable[[], object] = lambda: None,
    ) -> Begun:
        """Send a commit to the primary of the lowest partition that it writes.

        ``before`` is called when all is connected.
        """
        pairs = {self.key(name): value for name, value in writes.items()}
        return await self.begin_pairs(min(writes), pairs, reads, before=before)

    async def begin_pairs(
        self,
        home: str,
        pairs: Mapping[bytes, bytes],
        reads: Iterable[list[Any]] = (),
        *,
        before: Callable[[], object] = lambda: None,
    ) -> Begun:
        """Send a commit to the primary of a partition, the lowest that it writes."""
        tx_id, client = self._any.new_id(), await self._any.client(self.groups[home].primary)
        before()
        rows = [[self._any.number, [*pairs], [*pairs.values()]]]
        asked: tuple[Any, ...] = (tx_id, 1, False, None, list(reads), [], rows)
        return Begun(tx_id, client, await client.begin("commit", *asked))

    async def put(self, **writes: bytes) -> None:
        """Commit at once."""
        begun = await self.begin(writes)
        await begun.answer()
        begun.client.close()

    async def reader(self, name: str, member: str | None = None) -> Reading:
        """Begin to read a key at its primary, or at another copy."""
        group = self.groups[name]
        client = await self._any.client(member or group.primary)
        arguments: list[Any] = [self._any.number, [self.key(name)]]
        if member is None:
            return Reading(client, await client.begin("get", *arguments))
        return Reading(client, await client.begin("copy", "get", arguments))

    async def snapshot(self, *names: str, by: str) -> list[bytes | None]:
        """Return what a snapshot of the store, which a member takes, shows of some keys."""
        client = await self._any.client(by)
        with trio.fail_after(SOON_S):
            taken, members, partitions, shown = await client.ask("snapshot")
        found = []
        for name in names:
            group = self.groups[name]
            [place] = [at for at, some in enumerate(partitions) if group.partition in some]
            host = next(
                one for one in self.at.names if self.at.member_id(one).bytes == members[place]
            )
            reader = await self._any.client(host)
            arguments = [self._any.number, [self.key(name)]]
            answer = await reader.ask("pinned", taken, shown, "get", arguments)
            found.append(answer[0][0])
            reader.close()
        client.close()
        return found

    async def values(self, *names: str) -> list[bytes | None]:
        return [await self.groups[name].value(KEY) for name in names or self.groups]

    # -------------------------------------------------------------- what is so

    async def until(self, condition: Callable[[], bool]) -> None:
        await self._any.until(condition)

    async def prepared(self, tx: Begun, *names: str) -> None:
        """Wait until a transaction is pending at every copy of partitions."""
        for name in names:
            group = self.groups[name]
            await group.pending_at(tx.tx_id, *(group.in_sync & self.at.running().keys()))

    def is_under_way(self, tx: Begun) -> bool:
        """Tell whether anybody holds something of a transaction."""
        return any(
            group.has_pending(name, tx.tx_id)
            for group in self.groups.values()
            for name in self.at.running()
        )

    def hold_everywhere(self, kind: str) -> None:
        """Hold messages of a kind between any two members."""
        for one, other in permutations(self.at.names, 2):
            self.at.hold(kind, src=one, dst=other)

    async def over(self, tx: Begun) -> None:
        """Wait until nobody holds anything of a transaction any more."""
        await self.until(lambda: not self.is_under_way(tx))

    async def whole(self) -> None:
        """Start whoever is not there, and wait until everything is served, settled and equal."""
        self.at.heal()
        self.at.holds.release_all()
        for node in self.at.nodes.values():
            node.points.planned.clear()
        self.at.start(name for name in self.at.names if not self.at.nodes[name].running)
        await self.at.settled()
        await self.at.whole()
        await self.until(lambda: not any(map(self._pending, self.at.running())))
        await self.at.quiesce()
        for group in self.groups.values():
            await group.equal()

    def _pending(self, name: str) -> bool:
        pending = self.at.member(name).log.state.copies.pending
        return any(len(found) for found in pending.values())

    def remembered(self) -> int:
        """Return how many commits primaries remember, for others to ask about.

        A copy that lost with its power that something is forgotten knows it until it is one.
        """
        return sum(
            len(member.log.state.copies.remembered.get(partition, {}))
            for member in self.at.running().values()
            for partition in range(self.at.partitions)
            if member.partitions.is_open(partition)
        )


class Reading:
    """A read that was asked for."""

    def __init__(self, client: RawClient, request: int) -> None:
        self._client = client
        self._request = request

    async def value(self, seconds: float = SOON_S) -> bytes | None:
        """Return what was read; ``FailureError`` if that is told instead."""
        with trio.fail_after(seconds):
            found = await self._client.answer(self._request)
        value: bytes | None = found[0][0]
        return value

    async def seen_within(self, seconds: float) -> bytes | None:
        """Return what was read within some time; None also if there was a failure or no answer."""
        with trio.move_on_after(seconds), suppress(FailureError):
            return await self.value()
        return None

    async def is_answered(self, seconds: float) -> bool:
        """Tell whether there is an answer of any kind within some time."""
        with trio.move_on_after(seconds), suppress(OSError):
            with suppress(FailureError):
                await self._client.answer(self._request)
            return True
        return False


def together(
    scenario: Callable[[Three], Awaitable[None]],
    *,
    seed: int = 1,
    nodes: int = 3,
    backups: int = 2,
    apart: bool = False,
    timing: Timing = STAYING,
) -> None:
    """Run a scenario in a cluster that serves already."""
    at = SimCluster(seed=seed, nodes=nodes, partitions=PARTITIONS, backups=backups, timing=timing)
    three = Three(at, apart=apart)

    async def lived(_at: SimCluster) -> None:
        await three.start()
        await scenario(three)

    at.run(lived)
