"""How long what is queued in the log of a member waits: for company, for a tick, or for nothing."""

from __future__ import annotations

import pytest
import trio

from support.copies import Group, live
from tidelog.engine.commit.entries import Commit
from tidelog.engine.data.updates import NoUpdates
from tidelog.engine.node import log as log_module, member as member_module
from tidelog.engine.node.log import GROUP_BYTES_MAX, Haste, NodeLog
from tidelog.wal.records import IdleRecord, encode_record

GATHER_S, COMPANY_S = 0.5, 1.0
"""Here: long beside what a frame and its sync take."""
SOON_S = 0.1


class Queue:
    """The log of a primary that no tick hurries."""

    def __init__(self, log: NodeLog) -> None:
        self.log = log
        self.carried: list[str] = []
        self._groups = log.groups

    def put(self, haste: Haste, name: str, *, size: int = 0, during: str = "") -> None:
        """Queue something; ``during`` is put, in no haste, while the group of that is made."""

        def record(_time: int) -> bytes:
            if during:
                self.put(Haste.COURTESY, during)
            return encode_record(IdleRecord())

        commit = Commit(NoUpdates(), durable=True)
        commit.size, commit.record = size, record
        commit.then = lambda: self.log.fold([], lambda: self.carried.append(name))
        self.log.put(commit, haste)

    async def after(self, seconds: float) -> tuple[str, int]:
        """Return what was carried since the last call, and in how many groups."""
        await trio.sleep(seconds)
        carried, self.carried = self.carried, []
        before, self._groups = self._groups, self.log.groups
        return "".join(carried), self._groups - before


async def queue_of(group: Group, patch: pytest.MonkeyPatch) -> Queue:
    patch.setattr(member_module, "TICK_S", 1000.0)
    patch.setattr(log_module, "GATHER_S", GATHER_S)
    await group.equal()
    await trio.sleep(SOON_S)
    return Queue(group.at.member(group.primary).log)


async def hold_back(group: Group, queue: Queue) -> None:
    """Let a backup have something that the primary does not hear of."""
    group.hold("stored", group.backups[0], group.primary)
    begun = await group.begin(0, b"pending")
    await group.pending_at(begun.tx_id, *group.at.names)
    await queue.after(SOON_S)
    assert queue.log.undecided


def test_what_is_in_no_haste_goes_with_the_next_group(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(group: Group) -> None:
        queue = await queue_of(group, monkeypatch)
        queue.put(Haste.COURTESY, "a")
        assert await queue.after(SOON_S) == ("", 0)
        queue.put(Haste.AT_ONCE, "b")
        queue.put(Haste.COURTESY, "c")
        assert await queue.after(SOON_S) == ("abc", 1)
        queue.put(Haste.AT_ONCE, "d", during="e")
        assert await queue.after(SOON_S) == ("d", 1)
        queue.log.hurry()
        assert await queue.after(SOON_S) == ("e", 1)
        queue.log.put_barrier(lambda: queue.carried.append("|"))
        assert await queue.after(SOON_S) == ("|", 0)
        queue.put(Haste.COURTESY, "f")
        assert await queue.after(SOON_S) == ("", 0)

    live(scenario)


def test_what_one_group_leaves_over_goes_with_the_next_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(group: Group) -> None:
        queue = await queue_of(group, monkeypatch)
        queue.put(Haste.COURTESY, "a", size=GROUP_BYTES_MAX)
        queue.put(Haste.AT_ONCE, "b", size=GROUP_BYTES_MAX)
        queue.put(Haste.COURTESY, "c", size=1)
        assert queue.log.queued_bytes == 2 * GROUP_BYTES_MAX + 1
        queue.log.put_barrier(lambda: queue.carried.append("|"))
        queue.put(Haste.COURTESY, "d")
        assert await queue.after(SOON_S) == ("abc|d", 4)
        assert queue.log.queued_bytes == 0

    live(scenario)


def test_what_others_store_waits_for_company_while_something_is_on_its_way_to_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(group: Group) -> None:
        queue, backup = await queue_of(group, monkeypatch), group.backups[0]

        queue.put(Haste.SHARED, "a")
        assert await queue.after(SOON_S) == ("a", 1), "nothing is on its way"
        await hold_back(group, queue)
        queue.put(Haste.SHARED, "b")
        assert await queue.after(SOON_S) == ("", 0)
        queue.put(Haste.SHARED, "c")
        assert await queue.after(SOON_S) == ("", 0)
        assert await queue.after(GATHER_S - SOON_S) == ("bc", 1)
        queue.put(Haste.SHARED, "d")
        assert await queue.after(SOON_S) == ("", 0)
        queue.put(Haste.AT_ONCE, "e")
        assert await queue.after(SOON_S) == ("e", 1), "what is in haste takes nobody along"
        queue.put(Haste.SHARED, "D")
        queue.log.hurry()
        assert await queue.after(SOON_S) == ("dD", 1)
        queue.put(Haste.SHARED, "f")
        assert await queue.after(SOON_S) == ("", 0)
        group.release("stored", backup, group.primary)
        assert await queue.after(SOON_S) == ("f", 1), "nothing is on its way any more"
        await hold_back(group, queue)
        queue.put(Haste.SHARED, "g")
        assert await queue.after(SOON_S) == ("", 0)
        assert await queue.after(2 * GATHER_S) == ("g", 1)

    live(scenario)


def test_what_is_shared_is_passed_by_what_is_in_haste_but_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(group: Group) -> None:
        queue = await queue_of(group, monkeypatch)
        await hold_back(group, queue)
        queue.put(Haste.SHARED, "a")
        queue.put(Haste.SHARED, "b")
        carried = ""
        while "a" not in carried:
            queue.put(Haste.AT_ONCE, ".")
            carried += (await queue.after(SOON_S))[0]
        assert carried == ".....ab.", "so many times ``SOON_S`` are ``GATHER_S``"
        queue.put(Haste.SHARED, "c")
        queue.log.put_barrier(lambda: queue.carried.append("|"))
        assert await queue.after(SOON_S) == ("c|", 1), "it goes before what is behind it"
        queue.put(Haste.SHARED, "d")
        queue.log.put_barrier(lambda: queue.carried.append("|"))
        queue.put(Haste.SHARED, "e")
        queue.log.put_barrier(lambda: queue.carried.append("|"))
        assert await queue.after(SOON_S) == ("d|e|", 2), "whatever comes between"
        queue.put(Haste.SHARED, "f", size=GROUP_BYTES_MAX)
        queue.put(Haste.SHARED, "g", size=GROUP_BYTES_MAX)
        queue.log.put_barrier(lambda: queue.carried.append("|"))
        assert await queue.after(SOON_S) == ("fg|", 2), "in however many groups"
        queue.log.put_barrier(lambda: queue.carried.append("|"))
        queue.put(Haste.SHARED, "h")
        assert await queue.after(SOON_S) == ("|", 0), "nothing is behind that"

    live(scenario, slow_disks=False)


def test_what_is_in_haste_does_not_wait_for_what_is_on_its_way_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(group: Group) -> None:
        queue = await queue_of(group, monkeypatch)
        await hold_back(group, queue)
        queue.put(Haste.AT_ONCE, "a")
        assert await queue.after(SOON_S) == ("a", 1)
        assert queue.log.undecided

    live(scenario)


def test_who_was_answered_together_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(group: Group) -> None:
        monkeypatch.setattr(log_module, "COMPANY_S", COMPANY_S)
        queue, backup = await queue_of(group, monkeypatch), group.backups[0]

        async def answered(count: int) -> None:
            """Let clients be answered: one of one group, and then the others, of the next."""
            group.hold("stored", backup, group.primary)
            first = await group.begin(0, b"pending")
            await group.pending_at(first.tx_id, *group.at.names)
            others = [await group.begin(number, b"pending") for number in range(1, count)]
            for begun in others:
                await group.pending_at(begun.tx_id, *group.at.names)
            group.release("stored", backup, group.primary)
            await queue.after(SOON_S)
            assert not queue.log.undecided

        await answered(3)
        for name in "ab":
            queue.put(Haste.SHARED, name)
            assert await queue.after(SOON_S) == ("", 0)
        queue.put(Haste.SHARED, "c")
        assert await queue.after(SOON_S) == ("abc", 1), "they are all here"
        queue.put(Haste.SHARED, "d")
        assert await queue.after(SOON_S) == ("d", 1), "nobody was answered since"
        await answered(3)
        queue.put(Haste.SHARED, "e")
        assert await queue.after(SOON_S) == ("", 0)
        queue.put(Haste.AT_ONCE, "f")
        assert await queue.after(SOON_S) == ("ef", 1)
        await answered(3)
        queue.put(Haste.AT_ONCE, "0")
        assert await queue.after(SOON_S) == ("0", 1), "it waits for nobody"
        await answered(3)
        queue.put(Haste.SHARED, "g")
        assert await queue.after(COMPANY_S - 3 * SOON_S) == ("", 0)
        assert await queue.after(3 * SOON_S) == ("g", 1), "the others have not come"
        await answered(3)
        await queue.after(COMPANY_S)
        queue.put(Haste.SHARED, "h")
        assert await queue.after(SOON_S) == ("h", 1), "it has been too long"
        await answered(1)
        queue.put(Haste.SHARED, "i")
        assert await queue.after(SOON_S) == ("i", 1), "one client never waits for itself"
        await answered(2)
        for name in "jk":
            queue.put(Haste.SHARED, name)
            await trio.sleep(SOON_S)
        assert await queue.after(SOON_S) == ("jk", 1)
        await hold_back(group, queue)
        for name in "lm":
            queue.put(Haste.SHARED, name)
            assert await queue.after(SOON_S) == ("", 0), "so many are waited for no more"

    live(scenario, slow_disks=False)


def test_one_copy_of_two_that_has_what_is_on_its_way_ends_no_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(group: Group) -> None:
        queue = await queue_of(group, monkeypatch)
        group.hold("stored", group.backups[1], group.primary)
        await hold_back(group, queue)
        queue.put(Haste.SHARED, "a")
        assert await queue.after(SOON_S) == ("", 0)
        group.release("stored", group.backups[0], group.primary)
        assert await queue.after(SOON_S) == ("", 0)
        group.release("stored", group.backups[1], group.primary)
        assert await queue.after(SOON_S) == ("a", 1)

    live(scenario)


def test_what_has_committed_is_told_by_ticks_and_not_by_groups(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(group: Group) -> None:
        queue = await queue_of(group, monkeypatch)
        for number in range(3):
            await group.put(number, b"value")
        await queue.after(SOON_S)
        assert [group.numbers(name)[0] for name in group.backups] == [0, 0]
        assert group.numbers(group.primary)[0] == 3
        queue.log.tell_decided()
        assert await queue.after(SOON_S) == ("", 1)
        for name in group.backups:
            group.at.member(name).log.hurry()
        await queue.after(SOON_S)
        assert [group.numbers(name)[0] for name in group.backups] == [3, 3]

    live(scenario)
