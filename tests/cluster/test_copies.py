"""Partitions with copies: what was acknowledged outlives members, and copies stay equal."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import trio

from tidelog import aio, codecs
from tidelog.affinity.partitions import Space, partition_of
from tidelog.affinity.topology import Incarnation
from tidelog.engine.node.partitions import Partitions
from tidelog.engine.replication import merging
from tidelog.engine.replication.following import Following, Taken
from tidelog.engine.replication.opening import OpeningEpoch
from tidelog.engine.replication.reports import Report
from tidelog.engine.replication.stream import Item
from tidelog.engine.replication.streams import PartitionStream
from tidelog.errors import PartitionUnavailableError, TidelogError
from tidelog.testing import SimCluster
from tidelog.testing.storms import run_storm

PARTITIONS = 8
KEYS = 24


def cluster(seed: int, *, nodes: int = 3, backups: int = 2) -> SimCluster:
    return SimCluster(seed=seed, nodes=nodes, partitions=PARTITIONS, backups=backups)


async def written(at: SimCluster, value: int, name: str | None = None) -> None:
    """Write all keys, and read them back."""
    numbers = at.client(name, timeout=30).map("m", key=codecs.Str, value=codecs.I64)
    for key in range(KEYS):
        await numbers.set(f"k{key}", value)
    assert [await numbers.get(f"k{key}") for key in range(KEYS)] == [value] * KEYS


async def read(at: SimCluster, name: str | None = None) -> list[int | None]:
    numbers = at.client(name, timeout=30).map("m", key=codecs.Str, value=codecs.I64)
    return [await numbers.get(f"k{key}") for key in range(KEYS)]


def in_sync(at: SimCluster) -> set[int]:
    return {len(copies.in_sync) for copies in at.topology().partitions}


def test_every_copy_has_what_was_acknowledged() -> None:
    at = cluster(1)

    async def scenario(at: SimCluster) -> None:
        at.start()
        await at.settled()
        await written(at, 7)
        await at.quiesce()
        for partition in range(PARTITIONS):
            assert len({at.digest(name, partition) for name in at.names}) == 1
            assert len({at.counters(name, partition) for name in at.names}) == 1

    at.run(scenario)


@pytest.mark.parametrize("writes", [True, False])
def test_who_conflicts_with_a_commit_that_waits_for_a_silent_copy_waits_too(writes: bool) -> None:
    """Each attempt lost at once to what could not commit yet, until there were none left."""
    at = cluster(61)

    async def scenario(at: SimCluster) -> None:
        at.start()
        await at.settled()
        db = at.client(timeout=30)
        numbers = db.map("m", key=codecs.Str, value=codecs.I64)
        await numbers.set("k0", 1)

        space = Space(0, PARTITIONS)
        place = partition_of(b"k0", space)
        names = (f"k{number}" for number in range(1, 1000))
        twin = next(name for name in names if partition_of(name.encode(), space) == place)

        async def add(tx: aio.Transaction) -> int | None:
            await tx[numbers].get(twin)
            found = await tx[numbers].get("k0")
            if writes:
                await tx[numbers].set("k0", (found or 0) + 1)
            return found

        primary = at.primary(place)
        silent = next(name for name in at.names if name not in (primary, at.coordinator()))
        at.cut([silent], [name for name in at.names if name != silent])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(numbers.set, "k0", 10)
            await trio.sleep(0.3)
            assert await db.run(add, attempts=3) == 10
        assert await numbers.get("k0") == 10 + writes

    at.run(scenario)


@pytest.mark.parametrize("killed", ["n1", "n2", "n3"])
def test_a_member_that_is_killed_takes_nothing_with_it_and_others_serve(killed: str) -> None:
    at = cluster(2)

    async def scenario(at: SimCluster) -> None:
        at.start()
        await at.settled()
        await written(at, 1)
        await at.kill(killed)
        other = next(name for name in at.names if name != killed)
        assert await read(at, other) == [1] * KEYS
        await written(at, 2, other)
        await at.settled([name for name in at.names if name != killed])
        await at.quiesce()
        assert in_sync(at) == {2}

    at.run(scenario)


def test_a_cluster_whose_power_was_cut_has_all_copies_back() -> None:
    # S2: the last in-sync sets are waited for, so that nobody is left out who is just coming.
    at = cluster(3)

    async def scenario(at: SimCluster) -> None:
        at.start()
        await at.settled()
        await written(at, 1)
        await at.power_cut()
        at.start()
        await at.settled()
        assert await read(at) == [1] * KEYS
        await at.quiesce()
        assert in_sync(at) == {3}

    at.run(scenario)


def test_the_last_copy_serves_alone_and_is_waited_for() -> None:
    # I1: who is restarted is in no set until it is copied again, so the last member decides.
    at = cluster(4)

    async def scenario(at: SimCluster) -> None:
        at.start()
        await at.settled()
        await written(at, 1)
        await at.kill("n3")
        await at.settled(["n1", "n2"])
        at.start(["n3"])
        await at.settled()
        await at.kill("n2")
        await at.settled(["n1", "n3"])
        await written(at, 2, "n1")
        assert in_sync(at) == {1}
        at.start(["n2"])
        await at.settled()
        await at.kill("n1")
        await trio.sleep(4)
        with pytest.raises(PartitionUnavailableError):
            await read(at, "n2")
        at.start(["n1"])
        await at.settled()
        assert await read(at, "n2") == [2] * KEYS

    at.run(scenario)


def test_a_primary_that_is_cut_off_acknowledges_nothing_and_the_others_go_on() -> None:
    at = cluster(5, nodes=5)

    async def scenario(at: SimCluster) -> None:
        at.start()
        await at.settled()
        await written(at, 1)
        lonely = at.primary(0)
        rest = [name for name in at.names if name != lonely]
        inside = at.client(lonely, timeout=3).map("m", key=codecs.Str, value=codecs.I64)
        await inside.get("k0")
        at.cut([lonely, "c2"], [*rest, "c1", "c3", "c4", "c5"])
        await at.settled(rest)
        await written(at, 2, rest[0])
        at.heal()
        await at.settled()
        assert await read(at, lonely) == [2] * KEYS

    at.run(scenario)


def test_what_some_copies_have_and_nobody_was_told_is_rolled_back_everywhere() -> None:
    # K4e: the primary dies while one of its copies has the PREPARE and the other does not.
    at = cluster(6)

    async def scenario(at: SimCluster) -> None:
        at.start()
        await at.settled()
        await written(at, 1)
        await at.quiesce()
        partition = 0
        author = at.primary(partition)
        one, other = (name for name in at.names if name != author)
        at.hold("replicate", src=author, dst=other)
        key = at.key(partition, 0)
        raw = at.client(author, timeout=1).map("raw", key=codecs.Bytes, value=codecs.Bytes)
        async with trio.open_nursery() as nursery:

            async def put() -> None:
                with pytest.raises(TidelogError):
                    await raw.set(key, b"never")

            nursery.start_soon(put)
            pending = at.member(one).log.state.copies.pending
            with trio.move_on_after(20):
                while not pending.get(partition):
                    await trio.sleep(0.01)
            assert pending.get(partition), "the copy has it"
            await at.kill(author)
        at.release("replicate", src=author, dst=other)
        await at.settled([one, other])
        found = at.client(one, timeout=30).map("raw", key=codecs.Bytes, value=codecs.Bytes)
        assert await found.get(key) is None
        await at.quiesce()
        assert at.digest(one, partition) == at.digest(other, partition)

    at.run(scenario)


# ------------------------------------------------------------------ rules, taken out


def acknowledged_before_all_copies_have_it(patch: pytest.MonkeyPatch) -> None:
    def advance(self: PartitionStream) -> list[object]:
        answered: list[object] = []
        while self.everywhere < self.own:
            item = self._items[self.everywhere - self._dropped]
            self.everywhere += 1
            self.committed = max(self.committed, item.last)
            if item.waits is not None:
                answered.append(item.waits)
        least = min([self.everywhere, *(one.stored for one in self.followers.values())])
        while self._dropped < least:
            self.bytes -= self._items.popleft().size
            self._dropped += 1
        return answered

    patch.setattr(PartitionStream, "advance", advance)


def a_stream_may_have_holes(patch: pytest.MonkeyPatch) -> None:
    def take(self: Following, item: Item, sender: Incarnation) -> Taken:
        if (item.epoch, sender) != (self.epoch, self.author) or not self.listed:
            return "foreign"
        if item.number <= self.taken:
            return "again"
        self.taken, self.logged = item.number, item.number - 1
        return "new"

    patch.setattr(Following, "take", take)


def removed_before_it_is_decided(patch: pytest.MonkeyPatch) -> None:
    genuine = PartitionStream.advance

    def advance(self: PartitionStream) -> list[object]:
        for copy, one in list(self.followers.items()):
            if one.stored == one.sent < self.end:
                del self.followers[copy]
        return genuine(self)

    patch.setattr(PartitionStream, "advance", advance)


def a_list_of_some_reports(patch: pytest.MonkeyPatch) -> None:
    genuine = OpeningEpoch.waits_for

    def waits_for(self: OpeningEpoch) -> list[Incarnation]:
        return [] if self.phase == "reports" and self._reports else genuine(self)

    def reports(self: OpeningEpoch) -> list[Report]:
        return list(self._reports.values())

    patch.setattr(OpeningEpoch, "waits_for", waits_for)
    patch.setattr(OpeningEpoch, "reports", reports)


def what_all_have_is_rolled_back(patch: pytest.MonkeyPatch) -> None:
    def is_everywhere(*_anything: object) -> bool:
        return False

    patch.setattr(merging, "is_everywhere", is_everywhere)


def an_answer_without_a_lease(patch: pytest.MonkeyPatch) -> None:
    def serves(self: Partitions, partition: int, _now: float) -> bool:
        return self.is_open(partition)

    patch.setattr(Partitions, "serves", serves)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plant", "seeds"),
    [
        (acknowledged_before_all_copies_have_it, range(1, 4)),
        (a_stream_may_have_holes, range(1, 4)),
        (removed_before_it_is_decided, range(1, 12)),
        (a_list_of_some_reports, range(1, 4)),
        (what_all_have_is_rolled_back, range(1, 20)),
        (an_answer_without_a_lease, range(1, 20)),
    ],
)
def test_a_mistake_that_is_planted_in_members_with_copies_is_found(
    plant: Callable[[pytest.MonkeyPatch], None],
    seeds: Sequence[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch)
    assert any(run_storm(seed, backups=2).failure is not None for seed in seeds)
