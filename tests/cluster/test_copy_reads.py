"""Reads at copies that are not the primary: as new as there, or stale and telling how old."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from uuid import UUID

import pytest
import trio

from tidelog import codecs
from tidelog.affinity.topology import Incarnation
from tidelog.engine.net.frames import FrameError
from tidelog.engine.node.copy_reads import CopyReads, CopyRow, PendingKeys
from tidelog.engine.node.outflow import Outflow
from tidelog.errors import (
    NotEnoughMembersError,
    PartitionUnavailableError,
    ReadOnlyError,
    TidelogError,
)
from tidelog.testing import SimCluster
from tidelog.testing.anomalies import Violation
from tidelog.testing.histories import Get, History, Put
from tidelog.testing.linear import check
from tidelog.testing.moves import REGISTER
from tidelog.testing.storms import run_storm

PARTITIONS = 8


def cluster(seed: int, *, nodes: int = 3, backups: int = 2) -> SimCluster:
    return SimCluster(seed=seed, nodes=nodes, partitions=PARTITIONS, backups=backups)


def test_copies_answer_reads_and_what_was_acknowledged_is_in_them() -> None:
    at = cluster(1)

    async def scenario(at: SimCluster) -> None:
        at.start()
        await at.settled()
        writing = at.client().map("m", key=codecs.Str, value=codecs.I64)
        database = at.client(read_from="copies")
        reading = database.map("m", key=codecs.Str, value=codecs.I64)
        names = [f"k{number}" for number in range(40)]
        for number, name in enumerate(names):
            await writing.set(name, number)
            assert await reading.get(name) == number
        await at.quiesce()
        counted = {name: at.member(name).requests.count for name in at.names}
        for number, name in enumerate(names * 3):
            assert await reading.get(name) == number % 40
        asked = [at.member(name).requests.count - counted[name] for name in at.names]
        assert sum(asked) == 120, "nobody had to be asked again"
        assert min(asked) == 40, asked
        assert await reading.get_many(names) == {name: at for at, name in enumerate(names)}
        assert [pair async for pair in reading.items()] == sorted(
            zip(names, range(40), strict=True)
        )

    at.run(scenario)


async def raw(at: SimCluster, name: str | None = None, **options: Any) -> Any:
    """Return a database whose map `raw` has been used."""
    database = at.client(name, **options)
    await database.map("raw", key=codecs.Bytes, value=codecs.Bytes).ensure()
    return database


def raw_map(database: Any) -> Any:
    return database.map("raw", key=codecs.Bytes, value=codecs.Bytes)


def test_a_removed_copy_that_does_not_know_it_answers_no_read_but_a_stale_one() -> None:
    at = cluster(2)

    async def scenario(at: SimCluster) -> None:
        at.start()
        await at.settled()
        key, primary = at.key(0, 0), at.primary(0)
        lonely, other = (name for name in at.names if name != primary)
        writer = await raw(at, other, timeout=30)
        inside = await raw(at, lonely, timeout=4, read_from="copies")
        await raw_map(writer).set(key, b"old")
        await at.quiesce()
        assert {await raw_map(inside).get(key) for _ in range(3)} == {b"old"}
        at.cut([lonely, "c2"], [primary, other, "c1"])
        await raw_map(writer).set(key, b"new")
        assert at.member(lonely).groups.followed(0), "it does not know"
        before = at.member(lonely).requests.count
        for _ in range(3):
            with pytest.raises(NotEnoughMembersError):
                await raw_map(inside).get(key)
        assert at.member(lonely).requests.count > before, "it was asked"
        stale = inside.stale()
        assert await stale[raw_map(inside)].get(key) == b"old"
        epoch, lwm = stale.as_of[0]
        at.heal()
        await at.settled()
        newest = writer.stale()
        assert await newest[raw_map(writer)].get(key) == b"new"
        assert newest.as_of[0] > (epoch, lwm)

    at.run(scenario)


def test_a_stale_read_is_answered_while_a_takeover_does_not_go_on() -> None:
    at = cluster(3)

    async def scenario(at: SimCluster) -> None:
        at.start()
        await at.settled()
        key, primary = at.key(0, 0), at.primary(0)
        one, other = (name for name in at.names if name != primary)
        database = await raw(at, one, timeout=3)
        await raw_map(database).set(key, b"value")
        await at.quiesce()
        for ends in ((one, other), (other, one)):
            at.hold("settle", src=ends[0], dst=ends[1])
        await at.kill(primary)
        while at.topology().partitions[0].author.member == at.member_id(primary):
            await trio.sleep(0.01)
        began = at.world.now()
        stale = database.stale()
        assert await stale[raw_map(database)].get(key) == b"value"
        assert [pair async for pair in stale[raw_map(database)].items()] == [(key, b"value")]
        assert at.world.now() - began < 0.5
        assert not at.member(at.primary(0)).partitions.is_open(0)
        assert stale.as_of[0] == (at.member(one).log.state.epochs[0], at.counters(one, 0)[0])
        for ends in ((one, other), (other, one)):
            at.release("settle", src=ends[0], dst=ends[1])
        await at.settled([one, other])

    at.run(scenario)


def test_what_is_pending_is_not_in_a_stale_read_and_a_confirmed_one_waits_for_it() -> None:
    # T12: the primary has not heard that all copies have it, so nobody may see it yet.
    at = cluster(4)

    async def scenario(at: SimCluster) -> None:
        at.start()
        await at.settled()
        key, primary = at.key(0, 0), at.primary(0)
        one, other = (name for name in at.names if name != primary)
        writer = await raw(at, primary)
        await raw_map(writer).set(key, b"old")
        await at.quiesce()
        at.hold("stored", src=other, dst=primary)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(raw_map(writer).set, key, b"new")
            pending = at.member(one).log.state.copies.pending
            while not pending.get(0):
                await trio.sleep(0.01)
            lwm, hwm = at.counters(one, 0)
            assert hwm == lwm + 1
            reader = await raw(at, one, read_from="copies")
            stale = reader.stale()
            assert await stale[raw_map(reader)].get(key) == b"old"
            assert stale.as_of[0] == (at.member(one).log.state.epochs[0], lwm)
            asked = at.member(primary).requests.count
            assert [await raw_map(reader).get(key) for _ in range(3)] == [b"old"] * 3
            assert [pair async for pair in raw_map(reader).items()] == [(key, b"old")]
            assert at.member(primary).requests.count >= asked + 3, "it did not come in time"
            took = []
            for _ in at.names:
                began = at.world.now()
                assert await raw_map(reader).get(at.key(0, 1)) is None
                took.append(at.world.now() - began)
            assert sorted(took)[1] < 0.1, "no other key waits, but at a copy that nobody hears"
            at.release("stored", src=other, dst=primary)
        reader = await raw(at, one, read_from="copies")
        assert [await raw_map(reader).get(key) for _ in range(3)] == [b"new"] * 3

    at.run(scenario)


def test_a_stale_read_needs_one_copy_and_says_so_without_any() -> None:
    at = cluster(5, backups=1)

    async def scenario(at: SimCluster) -> None:
        at.start()
        await at.settled()
        key, primary = at.key(0, 0), at.primary(0)
        database = await raw(at)
        await raw_map(database).set(key, b"value")
        await at.quiesce()
        copies = {copy.member for copy in at.topology().partitions[0].in_sync}
        [stranger] = [name for name in at.names if at.member_id(name) not in copies]
        [backup] = [name for name in at.names if name not in (primary, stranger)]
        stale = database.stale()
        await at.kill(primary)
        assert await stale[raw_map(database)].get_many([key]) == {key: b"value"}
        await at.kill(backup)
        with pytest.raises(PartitionUnavailableError, match="no copy of partition 0 is reached"):
            await stale[raw_map(database)].get(key)
        at.start([primary])  # which is out of the set by now, and alone with a stranger
        await at.settled([stranger])
        assert await stale[raw_map(database)].get(key) == b"value"
        writes: list[Callable[[Any], Awaitable[object]]] = [
            lambda m: m.set(key, b"x"),
            lambda m: m.discard(key),
            lambda m: m.pop(key, None),
            lambda m: m.popitem(),
            lambda m: m.clear(),
            lambda m: m.update_many({key: b"x"}),
        ]
        for write in writes:
            with pytest.raises(ReadOnlyError, match="a stale view cannot be written"):
                await write(stale[raw_map(database)])

    at.run(scenario)


def test_only_whoever_is_in_the_set_as_it_says_is_confirmed() -> None:
    at = cluster(6)

    async def scenario(at: SimCluster) -> None:
        at.start()
        await at.settled()
        primary = at.member(at.primary(0))
        [one] = [copy for copy in at.topology().partitions[0].in_sync if copy.boot == 1][1:2]
        told: list[tuple[UUID, list[Any]]] = []
        readers, epoch = primary.groups.readers, at.topology().partitions[0].epoch
        assert isinstance(readers, CopyReads)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Outflow, "tell", lambda _self, *said: told.append(said))
            for sender, *row in (
                (one, 0, epoch, 0, 1),
                (one, 0, epoch + 1, 0, 1),
                (one, 0, epoch, 5, 1),
                (one, 99, epoch, 0, 1),
                (one._replace(boot=2), 0, epoch, 0, 1),
            ):
                readers.arrived(sender, [80, 7, *([number] for number in row)])
            uneven: list[list[list[int]]] = [[[0], [], [], []], [[], [1, 2], [], []]]
            for columns in uneven:
                with pytest.raises(FrameError, match="confirm-copy: zip"):
                    readers.arrived(one, [80, 7, *columns])
        assert [message for _, message in told] == [
            [81, 7, [0], [epoch], [0], [1]],
            *([[81, 7, [], [], [], []]] * 4),
        ]

    at.run(scenario)


# ------------------------------------------------------------------ storms


@pytest.mark.parametrize("seed", range(1, 7))
def test_what_copies_answer_holds_through_a_storm(seed: int) -> None:
    outcome = run_storm(seed, backups=2, read_from="copies")
    assert outcome.failure is None, outcome


def violation(seed: int, nodes: int, away: Sequence[int]) -> Violation | None:
    """Let one client write, and one read from copies, who is cut off with some members meanwhile.

    Returns what of it is not linearizable.
    """
    at = SimCluster(seed=seed, nodes=nodes, partitions=PARTITIONS, backups=2)
    history = History()

    async def write(database: Any, keys: list[bytes]) -> None:
        for number in range(40):
            for key in keys:
                call = history.begin(
                    f"writer of {key!r}", Put(key.decode(), number), at.world.now()
                )
                await raw_map(database).set(key, b"%d" % number)
                call.ok(True, at.world.now())
            await trio.sleep(0.1)

    async def read(database: Any, key: bytes) -> None:
        while True:
            call = history.begin(f"reader of {key!r}", Get(key.decode()), at.world.now())
            try:
                found = await raw_map(database).get(key)
            except TidelogError:
                call.failed(at.world.now())
            else:
                call.ok(None if found is None else int(found), at.world.now())
            await trio.sleep(0.05)

    async def scenario(at: SimCluster) -> None:
        at.start()
        await at.settled()
        keys = [at.key(partition, 0) for partition in range(PARTITIONS)]
        lonely = [f"n{number}" for number in away]
        rest = [name for name in at.names if name not in lonely]
        writer = await raw(at, rest[0], timeout=30)
        reader = await raw(at, lonely[0] if lonely else None, timeout=1, read_from="copies")
        async with trio.open_nursery() as nursery:
            for key in keys:
                nursery.start_soon(read, reader, key)
            async with trio.open_nursery() as writing:
                writing.start_soon(write, writer, keys)
                await trio.sleep(1)
                at.cut([*lonely, "c2"] if lonely else [], [*rest, "c1"])
            nursery.cancel_scope.cancel()
        at.heal()

    at.run(scenario)
    return check(history, REGISTER)


WHERE_MISTAKES_SHOW = [(3, ()), (3, (3,)), (5, (4, 5))]
"""Members, and which of them are cut off with the reader."""


@pytest.mark.parametrize(("nodes", "away"), WHERE_MISTAKES_SHOW)
def test_reads_from_copies_are_linearizable_beside_writes(nodes: int, away: Sequence[int]) -> None:
    assert violation(1, nodes, away) is None


def nobody_is_waited_for(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PendingKeys, "meets", lambda *_anything: False)


def nobody_confirms(patch: pytest.MonkeyPatch) -> None:
    def ask(self: CopyReads, author: Incarnation) -> None:
        questions = self._questions[author]
        if not questions.next:
            return
        questions.asked, questions.next = questions.next, []
        rows = [row for _, rows in questions.asked for row in rows]
        self._take_answer(author, questions.number, rows)

    patch.setattr(CopyReads, "_ask", ask)


def a_primary_confirms_without_a_lease(patch: pytest.MonkeyPatch) -> None:
    def confirms(self: CopyReads, copy: Incarnation, row: CopyRow) -> bool:
        stream = self._streams.get(row.partition)
        return stream is not None and stream.epoch == row.epoch and copy in stream.followers

    patch.setattr(CopyReads, "_confirms", confirms)


@pytest.mark.parametrize(
    ("plant", "nodes", "away"),
    [
        (nobody_is_waited_for, *WHERE_MISTAKES_SHOW[0]),
        (nobody_confirms, *WHERE_MISTAKES_SHOW[1]),
        (a_primary_confirms_without_a_lease, *WHERE_MISTAKES_SHOW[2]),
    ],
)
def test_a_mistake_that_is_planted_in_copies_is_found(
    plant: Callable[[pytest.MonkeyPatch], None],
    nodes: int,
    away: Sequence[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch)
    assert any(violation(seed, nodes, away) is not None for seed in range(1, 6))
