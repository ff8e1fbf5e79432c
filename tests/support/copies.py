"""One partition of a simulated cluster and its copies, as scenarios of copies speak of them.

async def scenario(group):
    await group.put(0, b"a")
    tx = await group.begin(1, b"b")
    ...

live(scenario, seed=7)
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
import trio

from support.raw_client import FailureError, RawClient
from support.sim_clients import Clients, made_map
from tidelog import codecs
from tidelog.affinity.topology import Incarnation
from tidelog.engine.agreement.timing import Timing
from tidelog.engine.node import filling, own_history
from tidelog.engine.node.ways_back import ReturnExplained
from tidelog.engine.store.options import Options
from tidelog.errors import TidelogError
from tidelog.rebalance.choosing import SupplyKind
from tidelog.testing import SimCluster
from tidelog.testing.process import leaves

PARTITIONS = 2
STAYING = Timing(swap_pause=1e6)
"""Primaries stay where takeovers put them: they are not given back to the first of their rows."""
SOON_S = 30.0
"""Seconds in which whatever a scenario waits for has to be so."""
BACK_S = 60.0
"""Seconds in which all copies have to be there again, and equal."""
CUT = Options(segment_bytes=20_000, retain_bytes=1, checkpoint_bytes=1_000)
"""What a checkpoint has carried over is in no log any more."""
LARGE = b"large " * 400
AGED_KEYS = 20
"""How many keys ``age_logs`` writes, from the first on."""


class Begun:
    """A commit that was sent."""

    def __init__(self, tx_id: bytes, client: RawClient, request: int) -> None:
        self.tx_id = tx_id
        self.client = client
        self.request = request

    async def answer(self) -> Any:
        with trio.fail_after(SOON_S):
            return await self.client.answer(self.request)

    async def is_answered(self, seconds: float) -> bool:
        """Tell whether it is acknowledged within some time."""
        with trio.move_on_after(seconds), suppress(OSError, FailureError):
            await self.client.answer(self.request)
            return True
        return False

    async def failure(self) -> str:
        """Return the code of the answer that is no acknowledgement; "" if the connection broke."""
        try:
            await self.answer()
        except FailureError as failure:
            return failure.code
        except OSError:
            return ""
        raise AssertionError(f"{self.tx_id!r} was acknowledged")


class Group:
    """The copies of one partition."""

    def __init__(self, at: SimCluster, partition: int = 0, clients: Clients | None = None) -> None:
        self.at = at
        self.partition = partition
        self.number = 0
        self._clients = clients or Clients(at)
        self._txs = 0

    # -------------------------------------------------------------- who is who

    def name(self, copy: Incarnation) -> str:
        return next(name for name in self.at.names if self.at.member_id(name) == copy.member)

    @property
    def in_sync(self) -> set[str]:
        copies = self.at.topology().partitions[self.partition]
        return {self.name(copy) for copy in copies.in_sync}

    @property
    def primary(self) -> str:
        return self.at.primary(self.partition)

    @property
    def backups(self) -> list[str]:
        """The copies but the primary, in the order of the row: the first is the next author."""
        copies = self.at.topology().partitions[self.partition]
        row = [member for member in copies.row.replicas if member is not None]
        names = [name for m in row for name in self.at.names if self.at.member_id(name) == m]
        return [name for name in names if name in self.in_sync - {self.primary}]

    @property
    def epoch(self) -> int:
        return self.at.topology().partitions[self.partition].epoch

    # -------------------------------------------------------------- what clients do

    async def start(self) -> None:
        self.at.start()
        self._clients.start()
        await self.at.settled()
        self.number = await made_map(await self._clients.to("n1"))
        there = self.at.running().values()
        await self.until(lambda: all(self.number in one.log.state.namespaces for one in there))
        await self.at.quiesce()

    async def client(self, name: str | None = None) -> RawClient:
        return await self._clients.to(name or self.primary)

    def new_id(self) -> bytes:
        self._txs += 1
        return b"%016d" % self._txs

    async def begin(self, i: int | range, value: bytes | None, name: str | None = None) -> Begun:
        """Send a commit that sets the i-th key, or several, or deletes them."""
        tx_id, client = self.new_id(), await self.client(name)
        places = [i] if isinstance(i, int) else i
        keys = [self.at.key(self.partition, place) for place in places]
        writes = [[self.number, keys, [value] * len(keys)]]
        asked: tuple[Any, ...] = (tx_id, 1, False, None, [], [], writes)
        return Begun(tx_id, client, await client.begin("commit", *asked))

    async def put(self, i: int | range, value: bytes) -> bytes:
        """Set the i-th key, or several; return the id of the transaction, which is acknowledged."""
        begun = await self.begin(i, value)
        await begun.answer()
        begun.client.close()
        return begun.tx_id

    async def remove(self, i: int | range) -> None:
        """Delete the i-th key, or several."""
        begun = await self.begin(i, None)
        await begun.answer()
        begun.client.close()

    async def value(self, i: int, name: str | None = None) -> bytes | None:
        client = await self.client(name)
        with trio.fail_after(SOON_S):
            found = await client.ask("get", self.number, [self.at.key(self.partition, i)])
        client.close()
        value: bytes | None = found[0][0]
        return value

    async def outcome(self, tx_id: bytes) -> str:
        """Return what the primary says that became of a transaction."""
        client = await self.client()
        with trio.fail_after(SOON_S):
            found: str = await client.ask("outcome", tx_id, False, self.partition)
        client.close()
        return found

    # -------------------------------------------------------------- what copies have

    def has_pending(self, name: str, tx_id: bytes) -> bool:
        member = self.at.running().get(name)
        if member is None:
            return False
        pending = member.log.state.copies.pending.get(self.partition)
        return pending is not None and any(one.tx_id == tx_id for one in pending.all())

    def numbers(self, name: str) -> tuple[int, int, tuple[Any, ...]]:
        """Return LWM, HWM and what is applied above LWM."""
        counter = self.at.member(name).log.state.counters[self.partition]
        return counter.lwm, counter.hwm, (*counter.out_of_order,)

    async def until(self, condition: Callable[[], bool]) -> None:
        with trio.fail_after(SOON_S):
            while not condition():
                await trio.sleep(0.002)

    async def pending_at(self, tx_id: bytes, *names: str) -> None:
        await self.until(lambda: all(self.has_pending(name, tx_id) for name in names))

    async def synced(self, *names: str) -> None:
        """Wait until the logs of members are durable to their end."""
        writers = [self.at.member(name).log._writer for name in names]
        await self.until(lambda: all(one.synced >= one.position for one in writers))

    async def equal(self) -> tuple[int, int]:
        """Wait until nothing is under way; return LWM and HWM, which all copies have to share."""
        await self.at.quiesce()
        there = sorted(self.in_sync & self.at.running().keys())
        assert len({self.at.digest(name, self.partition) for name in there}) == 1, there
        [found] = {self.at.counters(name, self.partition) for name in there}
        assert all(not self.numbers(name)[2] for name in there)
        return found

    async def taken(self, name: str, number: int) -> None:
        """Wait until the log of a copy has given out, or seen, a number."""
        await self.until(lambda: self.at.counters(name, self.partition)[1] >= number)

    def table(self, name: str) -> Any:
        """Return the epoch table of a copy: epochs and the numbers that they begin at."""
        return self.at.member(name).log.state.epoch_tables[self.partition]

    def phase(self, name: str) -> str | None:
        """Return how far an author has come with its takeover; None if it has none."""
        found = self.at.member(name).groups.story(self.partition)["phase"]
        assert found is None or isinstance(found, str)
        return found

    def has_list(self, name: str) -> bool:
        """Tell whether a copy has a settle list whose epoch is not open there."""
        return self.partition in self.at.member(name).log.state.copies.lists

    # -------------------------------------------------------------- ways

    def hold(self, kind: str, src: str, dst: str) -> None:
        self.at.hold(kind, src=src, dst=dst)

    def release(self, kind: str, src: str, dst: str) -> None:
        self.at.release(kind, src=src, dst=dst)

    async def fall(self, *names: str, outcome: str = "lost") -> None:
        """Kill members at one moment."""
        for name in names:
            self.at.nodes[name].kill(outcome)
        for name in names:
            await self.at.killed(name)

    async def away(self, name: str) -> None:
        """Kill a member, and wait until the others go on without it."""
        await self.at.kill(name)
        await self.until(lambda: name not in self.in_sync)

    async def back(self, *names: str) -> None:
        """Start members, and wait until all copies are in sync, and equal."""
        self.at.start(names)
        with trio.fail_after(BACK_S):
            await self.at.settled()
            await self.at.whole()
            await self.equal()

    async def author(self, *not_these: str) -> str:
        """Wait for a newer epoch by another member than these; return who that is."""
        await self.until(lambda: self.primary not in not_these)
        return self.primary

    async def served_by_another(self, old: str) -> None:
        """Wait until another member than this one has opened the partition."""
        await self.author(old)
        await self.until(lambda: self.at.member(self.primary).partitions.is_open(self.partition))

    async def taken_over(self, epoch: int) -> None:
        """Wait until everything is served, and the partition in a newer epoch than this one."""
        await self.until(lambda: bool(self.at.running()) and self.epoch > epoch)
        await self.at.settled(name for name in self.at.names if self.at.nodes[name].running)


def live(
    scenario: Callable[[Group], Awaitable[None]],
    *,
    seed: int = 1,
    nodes: int = 3,
    partitions: int = PARTITIONS,
    backups: int = 2,
    timing: Timing = STAYING,
    **options: Any,
) -> None:
    """Run a scenario in a cluster that serves already."""
    at = SimCluster(
        seed=seed, nodes=nodes, partitions=partitions, backups=backups, timing=timing, **options
    )
    group = Group(at)

    async def lived(_at: SimCluster) -> None:
        await group.start()
        await scenario(group)

    at.run(lived)


# ------------------------------------------------------------------ copies that were away


def explained(group: Group, name: str) -> list[ReturnExplained]:
    """Return how a member came back to the partition, at each attempt that anybody knows of."""
    member = group.at.member_id(name)
    found = [
        one
        for running in group.at.running().values()
        for one in running.groups.supplies.ways.explained.get(group.partition, ())
        if one.copy.member == member
    ]
    return sorted(found, key=lambda one: one.copy.boot)


def kinds(group: Group, name: str) -> list[SupplyKind]:
    """Return the ways in which a member came back, or began to."""
    return [one.choice.kind for one in explained(group, name)]


async def age_logs(group: Group, rounds: int = 3) -> None:
    """Write so much that what is old goes from the logs, if they are ``CUT``."""
    for turn in range(rounds):
        for first in range(0, AGED_KEYS, 5):
            await group.put(range(first, first + 5), LARGE + b"%d" % turn)
        for name in sorted(group.in_sync & group.at.running().keys()):
            await group.at.checkpoint(name)


def small_pieces(patch: pytest.MonkeyPatch, rows: int = 3) -> None:
    """Let each transaction of a history, and so many rows of a full copy, be a piece."""
    patch.setattr(own_history, "PIECE_BYTES", 20)
    patch.setattr(filling, "PIECE_ROWS", rows)


def when_reached(group: Group, name: str, point: str, then: Callable[[], object]) -> None:
    """Do something when a member reaches a point for the next time; it ends there if that is true.

    What is done is done before the member goes on.
    """
    points = group.at.nodes[name].points
    genuine = points.reach

    def reach(found: str) -> bool:
        ends = genuine(found)
        if found == point:
            points.reach = genuine  # type: ignore[method-assign]
            return bool(then()) or ends
        return ends

    points.reach = reach  # type: ignore[assignment, method-assign]


def supply_waits(group: Group) -> trio.Event:
    """Let whoever is admitted by the primary wait for what it has missed, until that is set."""
    gate, history = trio.Event(), group.at.member(group.primary).groups.supplies._history
    genuine = history.send

    async def send(returning: Any, wanted: Any, *source: Any) -> None:
        if group.partition in {place.partition for place in wanted}:
            await gate.wait()
        await genuine(returning, wanted, *source)

    history.send = send  # type: ignore[assignment, method-assign]
    return gate


async def admitted(group: Group, name: str) -> None:
    """Wait until a copy that comes back follows the stream."""
    await group.until(lambda: _follows(group, name))


def _follows(group: Group, name: str) -> bool:
    member = group.at.running().get(name)
    return member is not None and member.groups.following(group.partition) is not None


class Writers:
    """One for each key; what each was told last, and what it has asked for since."""

    def __init__(self, group: Group, pause_s: float = 0.0) -> None:
        """``pause_s`` lies between two writes of each."""
        self._group = group
        self._pause_s = pause_s
        self._map = group.at.client(timeout=30).map("m", key=codecs.Bytes, value=codecs.Bytes)
        self.acknowledged: dict[int, int] = {}
        self.asked: dict[int, int] = {}
        self.ends = False

    async def write(self, i: int) -> None:
        """Write to the i-th key, until it is to end."""
        key = self._group.at.key(self._group.partition, i)
        while not self.ends:
            self.asked[i] = self.asked.get(i, 0) + 1
            try:
                await self._map.set(key, b"%d" % self.asked[i])
                self.acknowledged[i] = self.asked[i]
                await trio.sleep(self._pause_s)
            except TidelogError:
                await trio.sleep(0.05)  # nobody knows, or nobody serves; so the next one tells

    async def check(self) -> None:
        """Check that no key has less than what was acknowledged, or what nobody asked for."""
        for i, asked in self.asked.items():
            found = await self._map.get(self._group.at.key(self._group.partition, i))
            last = self.acknowledged.get(i, 0)
            assert last <= int(found or b"0") <= asked, f"key {i}: {found!r}, {last} was told"


def assert_found(told: str, run: Callable[[], object]) -> None:
    """Check that a run fails, and that what it tells matches a pattern."""
    found = ""
    try:
        run()
    except Exception as error:
        found = "; ".join(str(leaf) for leaf in leaves(error))
    assert re.search(told, found), found or "nothing was found"
