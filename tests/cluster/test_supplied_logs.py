"""What members' logs have of every number, beside what they hold: behind kills and takeovers."""

from __future__ import annotations

import pytest
import trio

from support.copies import Group, live
from tidelog.checkpoints.replay import Applied, State
from tidelog.checkpoints.supplying import FoundNumbers, SupplySearch, WantedNumbers
from tidelog.wal.history import held_from, oldest_state
from tidelog.wal.reader import Scan, read_records
from tidelog.wal.records import AdmitRecord, CommitUptoRecord, SettleRecord, SuppliedRecord, Upto

KEYS = 12
ADMISSION = 77


def found_in_log(group: Group, name: str, first: int = 1) -> tuple[FoundNumbers, State]:
    """Search a member's log for all numbers from one on; return that, and what the member knows."""
    member, partition = group.at.member(name), group.partition
    state, wal = member.log.state, member._files.keeper.directory
    head, top = oldest_state(wal), state.counters[partition].hwm
    wanted = WantedNumbers([(first, top)], state.epoch_tables[partition])
    search = SupplySearch(head, {partition: wanted})
    for frame, record in read_records(Scan(wal, durable=member.log.position)):
        search.take(frame.position, record)
    found = search.take_out()[partition]
    assert found.lacking == held_from(head, partition).lacks(first, top)
    return found, state


def supplied(group: Group, found: FoundNumbers, known: State) -> tuple[State, dict[bytes, object]]:
    """Fold what was found into a copy that has nothing; return its state, and values by key."""
    partition = group.partition
    state = State(known.store_id, known.spaces)
    state.next_namespace, state.namespaces = known.next_namespace, dict(known.namespaces)
    table = known.epoch_tables[partition]
    state.apply(
        0,
        AdmitRecord(
            partition=partition,
            admission=ADMISSION,
            epochs=table,
            lwm=0,
            ranges=(),
            hwm=known.counters[partition].hwm,
            dropped=(),
        ),
    )
    effects = state.apply(
        1,
        SuppliedRecord(
            partition=partition,
            admission=ADMISSION,
            source=bytes(16),
            transactions=tuple(found.transactions),
            closed=tuple(found.closed),
        ),
    )
    values: dict[bytes, object] = {}
    runs = [effect for effect in effects if isinstance(effect, Applied)]
    for effect in sorted(runs, key=lambda one: one.run.first):
        values.update((update.key, update.value) for update in effect.updates())
    return state, values


@pytest.mark.parametrize("seed", range(1, 7))
def test_a_log_supplies_what_its_member_holds(seed: int) -> None:
    async def scenario(group: Group) -> None:
        random = group.at.world.random("supplied logs")
        for turn in range(4):
            for i in range(KEYS):
                if random.random() < 0.6:
                    await group.put(i, b"%d of %d" % (i, turn))
            epoch, old = group.epoch, group.primary
            begun = [await group.begin(i, b"some", old) for i in range(3)]
            if turn == 1:  # one copy has what the others have not: numbers that end otherwise
                group.hold("replicate", old, group.backups[-1])
                begun.append(await group.begin(range(4, 7), b"more", old))
                await trio.sleep(0.05)
            if turn in (1, 2):
                await group.fall(old)
                group.at.holds.release_all()
                await group.taken_over(epoch)
            for one in begun:
                one.client.close()
        await group.equal()
        await trio.sleep(0.2)  # what has committed is told to the log by ticks
        values = {group.at.key(group.partition, i): await group.value(i) for i in range(KEYS)}
        for name in sorted(group.in_sync & group.at.running().keys()):
            found, known = found_in_log(group, name)
            assert (found.lacking, found.not_yet) == ([], [])
            assert found.transactions
            state, there = supplied(group, found, known)
            assert state.counters[group.partition] == known.counters[group.partition]
            assert {**dict.fromkeys(values), **there} == values
            some, _ = found_in_log(group, name, first=5)
            assert [one for one in found.transactions if one.run.first >= 5] == some.transactions

    live(scenario, seed=seed, nodes=5, backups=3)


def tells_nothing(group: Group, name: str) -> None:
    """Let a member's ticks not tell what has committed, as if the next one was far away."""
    group.at.member(name).log.tell_decided = lambda: None  # type: ignore[method-assign]


def test_what_had_committed_when_an_epoch_ended_is_in_the_log() -> None:
    # The list of the next epoch says nothing of what all copies have applied: behind a restart it
    # was pending still, and dropped by that list.
    async def scenario(group: Group) -> None:
        old, epoch = group.primary, group.epoch
        tells_nothing(group, old)
        for i in range(3):
            await group.put(i, b"before")
        group.at.member(old).council.release([group.partition])
        await group.taken_over(epoch)
        member = group.at.member(old)
        scan = Scan(member._files.keeper.directory, durable=member.log.position)
        records = [record for _, record in read_records(scan)]
        told = [
            place
            for place, record in enumerate(records)
            if isinstance(record, CommitUptoRecord) and Upto(group.partition, 1, 3) in record.rows
        ]
        listed = [
            place
            for place, record in enumerate(records)
            if isinstance(record, SettleRecord)
            and (record.partition, record.epoch) == (group.partition, epoch + 1)
        ]
        assert told[0] < listed[0]

    live(scenario)


def test_what_had_committed_when_a_checkpoint_carried_it_over_is_in_the_log() -> None:
    async def scenario(group: Group) -> None:
        old, epoch = group.primary, group.epoch
        tells_nothing(group, old)
        for i in range(3):
            await group.put(i, b"before")
        await group.at.checkpoint(old)
        await group.fall(old)
        await group.taken_over(epoch)
        group.at.start([old])
        await group.at.settled()
        await group.at.whole()
        await group.equal()
        found, _ = found_in_log(group, old)
        assert (found.lacking, found.not_yet) == ([], [])
        assert [one.run.first for one in found.transactions] == [1, 2, 3]

    live(scenario)
