"""What a member does while partitions leave it by plan, step by step (K7)."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import trio

from support.copies import Group, live
from support.raw_client import FailureError
from tidelog.affinity.changes import GoalsSet
from tidelog.engine.agreement.messages import ChangeRefused
from tidelog.engine.node.departure import ASK_S_MAX, HAND_OVER_S_MAX
from tidelog.errors import ClusterError, CommitUnknownError


async def refused(group: Group, name: str) -> str:
    """Ask a member to read and to write in the partition; return why it does neither now."""
    client = await group.client(name)
    key = group.at.key(group.partition, 7)
    reasons = set()
    requests: tuple[tuple[Any, ...], ...] = (
        ("get", group.number, [key]),
        ("commit", group.new_id(), 1, False, None, [], [], [[group.number, [key], [b"no"]]]),
    )
    for asked in requests:
        with pytest.raises(FailureError) as told:
            await client.ask(*asked)
        assert told.value.code == "wait"
        reasons.add(str(told.value))
    client.close()
    [reason] = reasons
    return reason


def test_a_partition_that_moves_takes_nothing_new_and_waits_for_what_it_took() -> None:
    async def scenario(group: Group) -> None:
        old, backup, epoch = group.primary, group.backups[0], group.epoch
        group.hold("stored", backup, old)
        begun = await group.begin(0, b"pending")
        await group.pending_at(begun.tx_id, *group.at.names)
        ended: list[Exception | None] = []
        group.at.member(old).move(group.partition, group.at.member_id(backup).bytes, ended.append)
        await trio.sleep(1)
        assert "about to be served by another member" in await refused(group, old)
        assert (group.epoch, ended) == (epoch, []), "something is pending"
        group.release("stored", backup, old)
        await begun.answer()
        await group.until(lambda: ended == [None])
        assert (group.primary, group.epoch) == (backup, epoch + 1)
        assert group.at.member(backup).partitions.is_open(group.partition)
        assert await group.value(0) == b"pending"

    live(scenario)


def test_what_is_handed_over_in_an_epoch_that_is_over_moves_nothing() -> None:
    # A second command that came while the first was carried out moved the partition once more.
    async def scenario(group: Group) -> None:
        old, backups = group.primary, group.backups
        ended: dict[str, Exception | None] = {}
        epoch = group.epoch
        for target in backups:
            group.at.member(old).move(
                group.partition,
                group.at.member_id(target).bytes,
                partial(ended.__setitem__, target),
            )
        await group.until(lambda: len(ended) == 2)
        first, second = sorted(backups, key=lambda name: ended[name] is not None)
        assert ended[first] is None
        assert isinstance(ended[second], ClusterError), "it was served elsewhere by then"
        assert (group.primary, group.epoch) == (first, epoch + 1)
        old_copies = group.at.topology().partitions[group.partition]
        departure = group.at.member(first)._departure
        for target in (old, first):
            await departure.hand_over(
                [group.at.topology().partitions[group.partition]], group.at.member_id(target)
            )
            departure = group.at.member(group.primary)._departure
        assert (group.primary, group.epoch) == (first, epoch + 3)
        await departure.hand_over([old_copies], group.at.member_id(old))
        await trio.sleep(2)
        assert (group.primary, group.epoch) == (first, epoch + 3)

    live(scenario)


def test_a_member_that_stops_where_too_few_stay_takes_nothing_new_and_answers_what_it_took() -> (
    None
):
    async def scenario(group: Group) -> None:
        at, old, (backup, other) = group.at, group.primary, group.backups
        epoch, began = group.epoch, at.world.now()
        group.hold("stored", other, old)
        begun = await group.begin(0, b"pending")
        await group.pending_at(begun.tx_id, *at.names)
        async with trio.open_nursery() as stopping:
            stopping.start_soon(at.stop, old)
            stopping.start_soon(at.stop, backup)
            await trio.sleep(2)
            assert "about to stop" in await refused(group, old)
            group.release("stored", other, old)
            await begun.answer()
        assert at.world.now() < began + 4, "nobody is waited for who could serve it"
        at.start([old, backup])
        await group.taken_over(epoch)
        assert await group.value(0) == b"pending"

    live(scenario)


def test_a_member_that_stops_writes_what_is_queued() -> None:
    async def scenario(group: Group) -> None:
        begun = await group.begin(0, b"last")
        member = group.at.member(group.primary)
        await group.until(lambda: bool(member.log.queued_bytes or member.log._in_flight))
        await group.at.stop(group.primary)
        await begun.answer()
        group.at.start()
        await group.at.settled()
        assert await group.value(0) == b"last"

    live(scenario, nodes=1, backups=0)


def test_a_member_that_stops_hands_over_what_one_other_has() -> None:
    async def scenario(group: Group) -> None:
        old, epoch, [backup] = group.primary, group.epoch, group.backups
        await group.put(0, b"old")
        await group.at.stop(old)
        assert (group.primary, group.epoch) == (backup, epoch + 1)
        assert group.at.member(backup).partitions.is_open(group.partition)

    live(scenario, backups=1)


def test_a_member_that_stops_says_so_while_it_hands_over() -> None:
    async def scenario(group: Group) -> None:
        member = group.at.member(group.primary)
        assert member.status()["stopping"] is False
        async with trio.open_nursery() as stopping:
            stopping.start_soon(group.at.stop, group.primary)
            await group.until(lambda: group.partition in member.partitions._drained)
            assert member.status()["stopping"] is True

    live(scenario)


def test_a_member_that_stops_does_not_wait_for_ever_for_others_to_serve_what_it_did() -> None:
    async def scenario(group: Group) -> None:
        at, old, others = group.at, group.primary, group.backups
        async with trio.open_nursery() as stopping:
            stopping.start_soon(at.stop, old)
            await group.until(lambda: group.partition in at.member(old).partitions._drained)
            await group.fall(*others)
            began = at.world.now()
        assert at.world.now() < began + HAND_OVER_S_MAX + ASK_S_MAX + 1
        assert old not in at.running()

    live(scenario)


def test_what_is_pending_for_too_long_goes_over_and_commits_there() -> None:
    # K4 c: every copy has it; its client asks the new primary, and the old one lets go of its keys.
    async def scenario(group: Group) -> None:
        old, (backup, other) = group.primary, group.backups
        group.hold("stored", other, old)
        begun = await group.begin(0, b"pending")
        await group.pending_at(begun.tx_id, *group.at.names)
        await group.synced(*group.at.names)
        ended: list[Exception | None] = []
        group.at.member(old).move(group.partition, group.at.member_id(backup).bytes, ended.append)
        assert group.at.member(old).log.undecided
        await group.until(lambda: ended == [None])
        assert await begun.failure() == CommitUnknownError.code
        assert not group.at.member(old).log.undecided
        assert await group.outcome(begun.tx_id) == "committed"
        assert await group.value(0) == b"pending"
        group.release("stored", other, old)
        assert await group.equal() == (1, 1)

    live(scenario)


def test_a_commit_whose_epoch_ends_before_it_is_in_the_log_stands_in_nobodys_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A segment that takes longer to begin than the drain does: its client is told that nobody
    # knows, and what it would have written is not waited for any more.
    async def scenario(group: Group) -> None:
        old, backup = group.primary, group.backups[0]
        log = group.at.member(old).log
        genuine = log._append

        async def slow(payload: bytes) -> None:
            await group.until(lambda: log._streams.get(group.partition) is None)
            await genuine(payload)

        with monkeypatch.context() as patch:
            patch.setattr(log, "_append", slow)
            begun = await group.begin(0, b"late")
            await group.until(lambda: begun.tx_id in log.ids_in_flight()[1])
            ended: list[Exception | None] = []
            target = group.at.member_id(backup).bytes
            group.at.member(old).move(group.partition, target, ended.append)
            assert await begun.failure() == CommitUnknownError.code
        assert not log.undecided
        await group.until(lambda: ended == [None])
        assert group.primary == backup
        assert await group.outcome(begun.tx_id) == "rolled_back"
        assert await group.value(0) is None
        await group.put(0, b"after")
        await group.equal()

    live(scenario)


def test_a_move_whose_goal_is_refused_says_so() -> None:
    async def scenario(group: Group) -> None:
        at, (old, backup) = group.at, (group.primary, group.backups[0])
        ended: list[Exception | None] = []

        async def refused(change: object, *_about: object) -> ChangeRefused:
            assert isinstance(change, GoalsSet)
            return ChangeRefused(request=1, reason="others hold it by now")

        council: Any = at.member(old).council
        council.propose = refused
        at.member(old).move(group.partition, at.member_id(backup).bytes, ended.append)
        await group.until(lambda: bool(ended))
        assert "was not moved: others hold it by now" in str(ended[0])
        assert group.primary == old
        await group.put(0, b"a")

    live(scenario)
