"""Copies that were away come back: by nothing, by what they have missed, or by all there is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import trio

from support.copies import Group, live
from tidelog.engine.node import filling, missed, own_history
from tidelog.engine.node.returns import Return
from tidelog.engine.node.supplying import Supplies
from tidelog.engine.replication.returning import Admitted, SupplyPiece
from tidelog.engine.store.options import Options
from tidelog.rebalance.choosing import SupplyKind
from tidelog.tx.counter import COUNTER_MAX
from tidelog.wal.records import Closed, CommitUptoRecord

CUT = Options(segment_bytes=20_000, retain_bytes=1, checkpoint_bytes=1_000)
"""What a checkpoint has carried over is in no log any more."""
LARGE = b"large " * 400
DEAD_S = 3.0
"""Seconds behind which a member that was killed is out of all sets."""


def kinds(group: Group, name: str) -> list[SupplyKind]:
    """Return how a member came back to the partition, at each attempt that anybody knows of."""
    member = group.at.member_id(name)
    return [
        one.choice.kind
        for running in group.at.running().values()
        for one in running.groups.supplies.ways.explained.get(group.partition, ())
        if one.copy.member == member
    ]


async def fill(group: Group, rounds: int = 3) -> None:
    """Write so much that what is old goes from the logs."""
    for turn in range(rounds):
        for i in range(20):
            await group.put(i, LARGE + b"%d of %d" % (i, turn))
        for name in sorted(group.in_sync & group.at.running().keys()):
            await group.at.checkpoint(name)


def test_a_copy_that_has_missed_nothing_is_sent_nothing() -> None:
    async def scenario(group: Group) -> None:
        name = group.backups[-1]
        await group.put(0, b"a")
        await group.equal()
        await group.away(name)
        await group.back(name)
        assert kinds(group, name) == [SupplyKind.NONE]
        assert await group.value(0) == b"a"

    live(scenario)


def test_a_copy_gets_what_it_has_missed_and_nobody_stops_meanwhile() -> None:
    async def scenario(group: Group) -> None:
        name = group.backups[-1]
        await group.put(range(10), b"before")
        await group.equal()
        epoch = group.epoch
        await group.away(name)
        await group.put(range(5), b"meanwhile")
        await group.put(range(4, 7), b"later")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(group.back, name)
            for turn in range(20):
                with trio.fail_after(1):
                    await group.put(8, b"%d" % turn)
        assert kinds(group, name) == [SupplyKind.HISTORICAL]
        assert group.epoch == epoch
        await group.fall(group.primary)
        await group.taken_over(epoch)
        values = [await group.value(i) for i in range(10)]
        assert values == [b"meanwhile"] * 4 + [b"later"] * 3 + [b"before", b"19", b"before"]

    live(scenario)


@pytest.mark.parametrize("seed", range(1, 4))
def test_a_copy_gets_all_there_is_if_no_log_has_what_it_has_missed(seed: int) -> None:
    async def scenario(group: Group) -> None:
        name = group.backups[-1]
        await group.put(range(30), b"before")
        await group.equal()
        await group.away(name)
        await fill(group)
        group.at.start([name])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(group.at.whole)
            for turn in range(20):
                await group.put(25, b"%d" % turn)
        await group.equal()
        assert SupplyKind.FULL in kinds(group, name)
        assert await group.value(25) == b"19"
        assert await group.value(29) == b"before"

    live(scenario, seed=seed, options=CUT)


@pytest.mark.parametrize("options", [Options(), CUT], ids=["history", "full"])
def test_what_was_deleted_while_a_copy_was_away_does_not_return(options: Options) -> None:
    async def scenario(group: Group) -> None:
        name = group.backups[-1]
        await group.put(range(10), b"before")
        await group.equal()
        await group.away(name)
        await group.remove(range(3))
        if options is CUT:
            await fill(group)
            await group.remove(range(3))
        await group.back(name)
        epoch = group.epoch
        await group.at.power_cut()
        group.at.start([name])
        group.at.start([other for other in group.at.names if other != name])
        await group.taken_over(epoch)
        assert [await group.value(i) for i in range(3)] == [None] * 3

    live(scenario, options=options)


def test_a_copy_comes_back_to_a_primary_that_was_alone() -> None:
    async def scenario(group: Group) -> None:
        first, second = group.backups
        await group.away(first)
        await group.put(range(5), b"of two")
        epoch = group.epoch
        await group.fall(group.primary)
        group.at.start([first])
        await group.taken_over(epoch)
        await group.put(3, b"of one")
        await group.back(next(name for name in group.at.names if name not in group.at.running()))
        assert [await group.value(i) for i in range(5)] == [b"of two"] * 3 + [b"of one", b"of two"]
        assert second in group.in_sync

    live(scenario)


def test_one_that_was_added_is_waited_for_like_the_others() -> None:
    async def scenario(group: Group) -> None:
        name = group.backups[-1]
        await group.away(name)
        await group.put(0, b"a")
        await group.back(name)
        epoch, others = group.epoch, [other for other in group.at.names if other != name]
        await group.put(0, b"b")
        await group.at.power_cut()
        group.at.start([name])
        await trio.sleep(DEAD_S)
        group.at.start([next(other for other in others if other != group.primary)])
        await group.taken_over(epoch)
        assert await group.value(0) == b"b"

    live(scenario)


POINTS = (
    "admit.sent",
    "supply.first",
    "supply.last",
    "join.sent",
    "add.proposed",
    "add.decided",
)
"""Points that the primary reaches."""


@pytest.mark.parametrize("options", [Options(), CUT], ids=["history", "full"])
@pytest.mark.parametrize("point", POINTS)
def test_a_primary_that_dies_while_a_copy_comes_back(point: str, options: Options) -> None:
    async def scenario(group: Group) -> None:
        at, name, primary = group.at, group.backups[-1], group.primary
        await group.put(range(10), b"before")
        await group.equal()
        await group.away(name)
        await group.put(range(4), b"meanwhile")
        if options is CUT:
            await fill(group)
        await at.kill(primary, at=point)
        at.start([name])
        begun = [await group.begin(i, b"under way", primary) for i in range(4, 6)]
        await at.killed(primary)
        for one in begun:
            one.client.close()
        await group.back(primary)
        assert await group.value(2) == (b"meanwhile" if options is not CUT else LARGE + b"2 of 2")

    live(scenario, options=options)


COPY_POINTS: tuple[tuple[str, Options], ...] = (
    ("admit.logged", Options()),
    ("admit.logged", CUT),
    ("checkpoint.between_pieces", CUT),
    ("checkpoint.before_mark", CUT),
    ("checkpoint.after_mark", CUT),
)


@pytest.mark.parametrize(("point", "options"), COPY_POINTS)
@pytest.mark.parametrize("seed", range(1, 4))
def test_a_copy_that_dies_while_it_comes_back(point: str, options: Options, seed: int) -> None:
    async def scenario(group: Group) -> None:
        at, name = group.at, group.backups[-1]
        await group.put(range(10), b"before")
        await group.equal()
        await group.away(name)
        await group.put(range(4), b"meanwhile")
        if options is CUT:
            await fill(group)
        await at.kill(name, at=point)
        at.start([name])
        await at.killed(name)
        await group.put(5, b"and again")
        await group.back(name)
        assert await group.value(5) == b"and again"

    live(scenario, seed=seed, options=options)


@pytest.mark.parametrize("expires", [False, True])
def test_a_full_copy_in_many_pieces_while_its_keys_are_written(
    expires: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filling, "PIECE_ROWS", 3)
    pieces: list[int] = []

    async def scenario(group: Group) -> None:
        name, primary = group.backups[-1], group.primary
        await group.put(range(30), b"before")
        await group.equal()
        await group.away(name)
        await fill(group)
        genuine, snapshots = Return.room, group.at.member(primary)._files.snapshots

        async def room(self: Return, *about: Any) -> None:
            await genuine(self, *about)
            pieces.append(1)
            if expires:
                for cut in list(snapshots):
                    cut.expire("the data file has to grow")
            turn = len(pieces)
            await group.put(turn % 30, b"in turn %d" % turn)
            if turn % 3 == 0:
                await group.remove((turn + 7) % 30)

        monkeypatch.setattr(Return, "room", room)
        await group.back(name)
        assert SupplyKind.FULL in kinds(group, name)

    live(scenario, seed=5, options=CUT)
    assert len(pieces) >= 10


def test_history_in_many_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_history, "PIECE_BYTES", 200)

    async def scenario(group: Group) -> None:
        name = group.backups[-1]
        await group.put(range(10), b"before")
        await group.equal()
        await group.away(name)
        for i in range(30):
            await group.put(i, b"meanwhile")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(group.back, name)
            for turn in range(20):
                await group.put(turn, b"%d" % turn)
        assert kinds(group, name) == [SupplyKind.HISTORICAL]

    live(scenario)


def test_two_copies_come_back_at_once() -> None:
    async def scenario(group: Group) -> None:
        first, second = group.backups[-2:]
        await group.put(range(10), b"before")
        await group.equal()
        await group.away(first)
        await group.put(range(5), b"of four")
        await group.away(second)
        await group.put(range(3), b"of three")
        group.at.start([first, second])
        for turn in range(20):
            await group.put(9, b"%d" % turn)
        await group.back()
        assert kinds(group, first) == kinds(group, second) == [SupplyKind.HISTORICAL]
        assert await group.value(9) == b"19"

    live(scenario, nodes=5, backups=3)


def test_a_map_that_is_dropped_while_a_copy_is_away_is_gone_there_too() -> None:
    async def scenario(group: Group) -> None:
        name = group.backups[-1]
        await group.put(range(10), b"before")
        await group.equal()
        await group.away(name)
        await group.put(range(5), b"meanwhile")
        client = await group.client()
        await client.ask("drop", "m")
        client.close()
        await group.back(name)
        assert group.number not in group.at.member(name).log.state.namespaces

    live(scenario)


def test_nobody_comes_back_with_what_its_log_does_not_say() -> None:
    # It reported what it had applied, and its log had the word of that behind its ADMIT: behind
    # a restart it was a copy that counted, without an update that was acknowledged.
    async def scenario(group: Group) -> None:
        at, primary, target = group.at, group.primary, group.backups[0]
        log = at.member(primary).log
        genuine = log.put_records
        full = True

        def put_records(records: Any, then: Any, undo: Any = None, logged: Any = None) -> None:
            made = list(records)
            if full and undo is not None and any(isinstance(r, CommitUptoRecord) for r in made):
                undo()
            else:
                genuine(made, then, undo, logged)

        await group.put(0, b"before")
        await group.equal()
        log.put_records = put_records  # type: ignore[method-assign]
        await group.put(1, b"last")
        departure, copies = at.member(primary)._departure, at.topology().partitions
        async with trio.open_nursery() as nursery:
            one, named = copies[group.partition], at.member_id(target)
            nursery.start_soon(departure.hand_over, [one], named)
            await group.until(lambda: primary not in group.in_sync)
        await trio.sleep(5)
        assert primary not in group.in_sync
        full = False
        await group.until(lambda: primary in group.in_sync)
        await group.fall(primary)
        await group.back(primary)
        assert await group.value(1) == b"last"

    live(scenario)


def with_run(**more: int) -> Callable[[SupplyPiece], SupplyPiece]:
    """Return what gives the first transaction of a piece other numbers."""

    def wrong(piece: SupplyPiece) -> SupplyPiece:
        first, *others = piece.record.transactions
        other = first._replace(run=first.run._replace(**more))
        return piece._replace(record=replace(piece.record, transactions=(other, *others)))

    return wrong


def closing(first: int, count: int) -> Callable[[SupplyPiece], SupplyPiece]:
    closed = (Closed(1, first, count, "wrong"),)
    return lambda piece: piece._replace(record=replace(piece.record, closed=closed))


def with_admit(**more: Any) -> Callable[[Admitted], Admitted]:
    def wrong(row: Admitted) -> Admitted:
        assert row.record is not None
        return replace(row, record=replace(row.record, **more))

    return wrong


WRONG: dict[str, tuple[object, str, Callable[[Any], Any]]] = {
    "another partition": (missed, "_piece", with_run(partition=1)),
    "no partition": (missed, "_piece", with_run(partition=999)),
    "another epoch": (missed, "_piece", with_run(epoch=99)),
    "huge numbers": (missed, "_piece", with_run(first=COUNTER_MAX + 5)),
    "huge closed numbers": (missed, "_piece", closing(COUNTER_MAX - 1, 50)),
    "HWM too high": (Supplies, "_admitted", with_admit(hwm=COUNTER_MAX + 1)),
    "HWM too low": (Supplies, "_admitted", with_admit(hwm=1)),
    "LWM too high": (Supplies, "_admitted", with_admit(lwm=COUNTER_MAX + 1)),
    "an empty range": (Supplies, "_admitted", with_admit(ranges=((5, 0),))),
    "epochs that go down": (Supplies, "_admitted", with_admit(epochs=((5, 3), (2, 9)))),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_message_is_refused_and_the_copy_comes_back_all_the_same(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, name, wrong = WRONG[what]
    genuine, done = getattr(owner, name), False

    def once(*about: Any) -> Any:
        nonlocal done
        found = genuine(*about)
        if done or found is None or (name == "_piece" and not found.record.transactions):
            return found
        done = True
        return wrong(found)

    monkeypatch.setattr(owner, name, once)

    async def scenario(group: Group) -> None:
        third = group.backups[-1]
        await group.put(range(10), b"before")
        await group.equal()
        await group.away(third)
        for i in range(5):
            await group.put(i, b"meanwhile")
        await group.back(third)
        assert done

    live(scenario, seed=3)
