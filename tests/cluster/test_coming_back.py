"""Copies that were away come back: by nothing, by what they have missed, or by all there is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import trio

from support.copies import CUT, Group, age_logs, away, back, kinds, live, small_pieces
from tidelog.engine.node.supplying import Supplies
from tidelog.engine.replication.returning import Admitted, SupplyPiece
from tidelog.engine.store.options import Options
from tidelog.rebalance.choosing import SupplyKind
from tidelog.tx.counter import COUNTER_MAX
from tidelog.wal.records import Closed, CommitUptoRecord

DEAD_S = 3.0
"""Seconds behind which a member that was killed is out of all sets."""


def test_a_copy_that_has_missed_nothing_is_sent_nothing() -> None:
    async def scenario(group: Group) -> None:
        name = group.backups[-1]
        await group.put(0, b"a")
        await group.equal()
        await away(group, name)
        await back(group, name)
        assert kinds(group, name) == [SupplyKind.NONE]
        assert await group.value(0) == b"a"

    live(scenario)


def test_a_copy_gets_what_it_has_missed_and_nobody_stops_meanwhile() -> None:
    async def scenario(group: Group) -> None:
        name = group.backups[-1]
        await group.put(range(10), b"before")
        await group.equal()
        epoch = group.epoch
        await away(group, name)
        await group.put(range(5), b"meanwhile")
        await group.put(range(4, 7), b"later")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(back, group, name)
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
        await away(group, name)
        await age_logs(group)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(back, group, name)
            for turn in range(20):
                await group.put(25, b"%d" % turn)
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
        await away(group, name)
        await group.remove(range(3))
        if options is CUT:
            await age_logs(group)
            await group.remove(range(3))
        await back(group, name)
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
        await away(group, first)
        await group.put(range(5), b"of two")
        epoch = group.epoch
        await group.fall(group.primary)
        group.at.start([first])
        await group.taken_over(epoch)
        await group.put(3, b"of one")
        await back(group, next(name for name in group.at.names if name not in group.at.running()))
        assert [await group.value(i) for i in range(5)] == [b"of two"] * 3 + [b"of one", b"of two"]
        assert second in group.in_sync

    live(scenario)


def test_one_that_was_added_is_waited_for_like_the_others() -> None:
    async def scenario(group: Group) -> None:
        name = group.backups[-1]
        await away(group, name)
        await group.put(0, b"a")
        await back(group, name)
        epoch, others = group.epoch, [other for other in group.at.names if other != name]
        await group.put(0, b"b")
        await group.at.power_cut()
        group.at.start([name])
        await trio.sleep(DEAD_S)
        group.at.start([next(other for other in others if other != group.primary)])
        await group.taken_over(epoch)
        assert await group.value(0) == b"b"

    live(scenario)


@pytest.mark.parametrize("expires", [False, True])
def test_a_full_copy_in_many_pieces_while_its_keys_are_written(
    expires: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_pieces(monkeypatch)
    pieces: list[int] = []

    async def scenario(group: Group) -> None:
        name, primary = group.backups[-1], group.primary
        await group.put(range(30), b"before")
        await group.equal()
        await away(group, name)
        await age_logs(group)
        genuine, snapshots = Supplies._answered, group.at.member(primary)._files.snapshots

        async def answered(self: Supplies, *about: Any) -> None:
            await genuine(self, *about)
            pieces.append(1)
            if expires:
                for cut in list(snapshots):
                    cut.expire("the data file has to grow")
            turn = len(pieces)
            await group.put(turn % 30, b"in turn %d" % turn)
            if turn % 3 == 0:
                await group.remove((turn + 7) % 30)

        monkeypatch.setattr(Supplies, "_answered", answered)
        await back(group, name)
        assert SupplyKind.FULL in kinds(group, name)

    live(scenario, seed=5, options=CUT)
    assert len(pieces) > 10


def test_history_in_many_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    small_pieces(monkeypatch)

    async def scenario(group: Group) -> None:
        name = group.backups[-1]
        await group.put(range(10), b"before")
        await group.equal()
        await away(group, name)
        for i in range(30):
            await group.put(i, b"meanwhile")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(back, group, name)
            for turn in range(20):
                await group.put(turn, b"%d" % turn)
        assert kinds(group, name) == [SupplyKind.HISTORICAL]

    live(scenario)


def test_two_copies_come_back_at_once() -> None:
    async def scenario(group: Group) -> None:
        first, second = group.backups[-2:]
        await group.put(range(10), b"before")
        await group.equal()
        await away(group, first)
        await group.put(range(5), b"of four")
        await away(group, second)
        await group.put(range(3), b"of three")
        group.at.start([first, second])
        for turn in range(20):
            await group.put(9, b"%d" % turn)
        await back(group)
        assert kinds(group, first) == kinds(group, second) == [SupplyKind.HISTORICAL]
        assert await group.value(9) == b"19"

    live(scenario, nodes=5, backups=3)


def test_a_map_that_is_dropped_while_a_copy_is_away_is_gone_there_too() -> None:
    async def scenario(group: Group) -> None:
        name = group.backups[-1]
        await group.put(range(10), b"before")
        await group.equal()
        await away(group, name)
        await group.put(range(5), b"meanwhile")
        client = await group.client()
        await client.ask("drop", "m")
        client.close()
        await back(group, name)
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

        def put_records(records: Any, then: Any, undo: Any = None) -> None:
            made = list(records)
            if full and undo is not None and any(isinstance(r, CommitUptoRecord) for r in made):
                undo()
            else:
                genuine(made, then, undo)

        await group.put(0, b"before")
        await group.equal()
        log.put_records = put_records  # type: ignore[method-assign]
        await group.put(1, b"last")
        at.member(primary).move(group.partition, at.member_id(target).bytes, lambda _: None)
        await group.until(lambda: primary not in group.in_sync)
        await trio.sleep(5)
        assert primary not in group.in_sync
        full = False
        await group.until(lambda: primary in group.in_sync)
        await group.fall(primary)
        await back(group, primary)
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


def with_hole(piece: SupplyPiece) -> SupplyPiece:
    record = replace(piece.record, transactions=piece.record.transactions[:-1])
    return piece._replace(record=record)


def with_admit(**more: Any) -> Callable[[Admitted], Admitted]:
    def wrong(row: Admitted) -> Admitted:
        assert row.record is not None
        return replace(row, record=replace(row.record, **more))

    return wrong


WRONG: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "another partition": ("_piece", with_run(partition=1)),
    "no partition": ("_piece", with_run(partition=999)),
    "another epoch": ("_piece", with_run(epoch=99)),
    "huge numbers": ("_piece", with_run(first=COUNTER_MAX + 5)),
    "huge closed numbers": ("_piece", closing(COUNTER_MAX - 1, 50)),
    "a number left out": ("_piece", with_hole),
    "more than the copy has": ("_admitted", with_admit(lwm=12)),
    "HWM too high": ("_admitted", with_admit(hwm=COUNTER_MAX + 1)),
    "HWM too low": ("_admitted", with_admit(hwm=1)),
    "LWM too high": ("_admitted", with_admit(lwm=COUNTER_MAX + 1)),
    "an empty range": ("_admitted", with_admit(ranges=((5, 0),))),
    "epochs that go down": ("_admitted", with_admit(epochs=((5, 3), (2, 9)))),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_message_is_refused_and_the_copy_comes_back_all_the_same(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, wrong = WRONG[what]
    genuine, done = getattr(Supplies, name), False

    def once(*about: Any) -> Any:
        nonlocal done
        found = genuine(*about)
        if done or found is None or (name == "_piece" and not found.record.transactions):
            return found
        done = True
        return wrong(found)

    monkeypatch.setattr(Supplies, name, once)

    async def scenario(group: Group) -> None:
        third = group.backups[-1]
        await group.put(range(10), b"before")
        await group.equal()
        await away(group, third)
        for i in range(5):
            await group.put(i, b"meanwhile")
        await back(group, third)
        assert done

    live(scenario, seed=3)
