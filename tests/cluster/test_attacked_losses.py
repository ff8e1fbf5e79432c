"""What a hostile engineer found in losses, rescues and authors that open nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
import trio
from cluster.test_losses import (
    QUICK,
    kept_aside,
    losses,
    lost_but_for_a_stale_copy,
    shown_values,
    stale_copy,
    two_stale_copies,
)
from cluster.test_rescue import directories

from support.copies import Group, admitted, live
from support.losing import ask, lose
from support.raw_client import FailureError
from tidelog.affinity.changes import BaselineChanged, Decision, Joined, MemberLost, NamespaceMade
from tidelog.affinity.topology import Incarnation, Loss, Topology
from tidelog.engine.agreement.journal import Journal
from tidelog.engine.agreement.messages import Acceptance, Note, Term
from tidelog.engine.agreement.noting import noted_records
from tidelog.engine.data.stored import pack_prefix
from tidelog.engine.files import manifest as manifests
from tidelog.engine.node import aside
from tidelog.engine.node.aside import Aside
from tidelog.engine.node.rescuing import rescue_members
from tidelog.engine.node.tasks import Tasks
from tidelog.engine.system.disk import RealDirectory
from tidelog.engine.system.production import production
from tidelog.errors import DiskError, UsageError
from tidelog.testing.cluster import DIRECTORY
from tidelog.wal.records import ClearRecord, NamespaceRecord

# ------------------------------------------------------------------ copies that are kept aside


class MeetingPairs:
    """Three keys of a partition; whoever reads them waits a moment for another one who does."""

    begun = 0
    met = threading.Event()

    def __init__(self, _files: object, _log: object, partition: int) -> None:
        self._partition = partition

    def __iter__(self) -> Iterator[tuple[bytes, bytes | None]]:
        for key in (b"a", b"b", b"c"):
            yield pack_prefix(self._partition, 16) + key, b"%d" % self._partition
            if key == b"a":
                MeetingPairs.begun += 1
                if MeetingPairs.begun == 2:
                    MeetingPairs.met.set()
                MeetingPairs.met.wait(0.3)

    def close(self) -> None:
        pass


def test_copies_of_several_partitions_are_kept_whole_though_they_come_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads write them: each needs its file for itself until that has its name."""
    monkeypatch.setattr(aside, "_Pairs", MeetingPairs)
    made = NamespaceRecord(
        id=16, name="m", key_codec="bytes", key_version=1, value_codec="bytes", value_version=1,
        space=0,
    )  # fmt: skip
    partitions = range(4)
    state = SimpleNamespace(
        epochs=[1] * len(partitions),
        counters=[SimpleNamespace(hwm=3) for _ in partitions],
        copies=SimpleNamespace(is_whole=lambda _partition: True, states={}),
        namespaces={16: made},
    )
    files: Any = SimpleNamespace(path=str(tmp_path), environment=production())
    node_log: Any = SimpleNamespace(state=state)
    keeper = Aside(files, node_log, Tasks())
    author = Incarnation(UUID(int=1), 1)
    reset = [
        Loss(index=9, partition=p, before=2, epoch=3, author=author, opened=0, upto=0)
        for p in partitions
    ]
    keeper.decided(Topology(losses=tuple(reset)))

    async def keep_all() -> None:
        async with trio.open_nursery() as nursery:
            for partition in partitions:
                nursery.start_soon(keeper.keep, partition)

    trio.run(keep_all)
    for partition in partitions:
        name = f"partition-{partition}-epoch-1-upto-3-map-16.jsonl"
        lines = (tmp_path / "aside" / name).read_text().splitlines()
        assert len(lines) == 4, name
        assert sum(f'"{partition}"' in line for line in lines) == 3, name


# ------------------------------------------------------------------ rescues


def note(path: str, noted: Note) -> None:
    """Let the configuration log of a member have something more."""
    manifest = manifests.read(RealDirectory(path))
    journal, _ = Journal.open(
        RealDirectory(path), identity=bytes.fromhex(manifest.member or ""), durable=0
    )
    assert journal is not None
    journal.append(noted_records([noted], None).records)
    journal.sync()
    journal.close()


def accept(path: str, term: int, name: str) -> None:
    """Let a member have accepted that a map is made, in a term."""
    made = NamespaceMade(
        name=name, key_codec="str", key_version=1, value_codec="bytes", value_version=1, space=0
    )
    note(path, Acceptance(Term(term, UUID(int=term)), Decision(2, (made,))))


@pytest.mark.parametrize("terms", [(3, 5), (5, 3)])
def test_of_what_was_accepted_only_the_newest_term_may_have_been_decided(
    tmp_path: Path, terms: tuple[int, int]
) -> None:
    paths = directories(tmp_path, count=5)[:2]
    for path, term in zip(paths, terms, strict=True):
        accept(path, term, f"term-{term}")
    topology = rescue_members(production(), paths)
    assert [known.name for known in topology.namespaces.values()] == ["term-5"]


def test_who_was_declared_lost_is_rescued_no_more(tmp_path: Path) -> None:
    """The others would wait for it, and it could never join."""
    paths = directories(tmp_path, count=5)
    lost = UUID(manifests.read(RealDirectory(paths[0])).member or "")
    note(paths[1], Decision(2, (MemberLost(member=lost),)))
    with pytest.raises(UsageError, match="was declared lost"):
        rescue_members(production(), paths[:2])
    topology = rescue_members(production(), paths[1:2])
    assert topology.members[lost].lost


def test_all_but_one_that_was_declared_lost_are_a_majority(tmp_path: Path) -> None:
    """A whole cluster without a lost member was taken for one that was rescued already."""
    paths = directories(tmp_path)
    lost = UUID(manifests.read(RealDirectory(paths[2])).member or "")
    for path in paths[:2]:
        note(path, Decision(2, (MemberLost(member=lost),)))
    with pytest.raises(UsageError, match="2 of the 3 members that vote are left, which is a maj"):
        rescue_members(production(), paths[:2])
    rescued = rescue_members(production(), paths[:1])
    assert rescue_members(production(), paths[:1]) == rescued, "all of it was done"


def test_a_change_of_the_baseline_that_was_accepted_takes_both_majorities(tmp_path: Path) -> None:
    """Two of three are a majority behind it, but it cannot be decided without three of four."""
    paths, voter = directories(tmp_path), Incarnation(UUID(int=1), 1)
    three = tuple(UUID(manifests.read(RealDirectory(path)).member or "") for path in paths)
    joined = Joined(incarnation=voter, nonce=bytes(8), address="127.0.0.1:9", voter=True)
    four = tuple(sorted((*three, voter.member)))
    for path in paths:
        note(path, Decision(2, (joined,)))
        note(path, Decision(3, (BaselineChanged(baseline=four),)))
        note(path, Acceptance(Term(2, three[0]), Decision(4, (BaselineChanged(baseline=three),))))
    with pytest.raises(UsageError, match="3 of the 4 members that vote are left"):
        rescue_members(production(), paths)
    assert rescue_members(production(), paths[:2]).baseline == three[:2]


# ------------------------------------------------------------------ who ends meanwhile


def end_before_it_hears(group: Group, name: str) -> None:
    """Let an incarnation end while the decision of a reset is on its way to its disk."""
    member, points = group.at.member(name), group.at.nodes[name].points
    genuine = points.reach

    def reach(found: str) -> bool:
        known = member.agreement.topology
        if found == "before sync" and member.council._told < known.index and known.losses:
            points.reach = genuine  # type: ignore[method-assign]
            member._ended.set()
        return genuine(found)

    points.reach = reach  # type: ignore[assignment, method-assign]


@pytest.mark.parametrize("empty", [True, False])
def test_who_ends_as_a_reset_by_it_is_decided_comes_back_and_goes_on(empty: bool) -> None:
    """What it hears while its tasks end begins nothing, and fails nothing."""

    async def scenario(group: Group) -> None:
        at = group.at
        stale = await lost_but_for_a_stale_copy(group)
        end_before_it_hears(group, stale)
        client = await group.client(stale)
        await client.begin("reset", group.partition, empty)
        await group.until(lambda: bool(losses(at)))
        await trio.sleep(3)
        await at.settled(at.running())
        assert await group.value(3) == (None if empty else b"old")

    live(scenario, nodes=5, timing=QUICK)


# ------------------------------------------------------------------ losses that are ignored


def test_what_waits_to_be_ignored_is_asked_for_once_by_each_member() -> None:
    """Each decision meanwhile had it asked for anew, until all else that waits is forgotten."""

    async def scenario(group: Group) -> None:
        at = group.at
        await ask(group, group.primary, "policy", "ignore")
        gone = group.primary
        away = next(name for name in at.names if name not in (gone, at.coordinator()))
        await at.kill(away)
        await group.fall(gone)
        at.may_end.add(gone)
        await lose(group, [gone])
        leading = at.member(at.coordinator() or "").agreement._leading
        assert leading is not None
        for number in range(20):
            await ask(group, at.coordinator() or "", "map", f"m{number}", "bytes", 1, "bytes", 1)
        lost, there = len(at.topology().lost), len(at.running())
        assert lost > 2
        assert not losses(at)
        assert len(leading._requests) <= 2 * lost * there

    live(scenario, nodes=5, partitions=16, backups=0, timing=replace(QUICK, restart_wait=60.0))


@pytest.mark.parametrize("seed", range(1, 7))
def test_the_best_copy_that_comes_in_time_is_taken_whoever_leads(seed: int) -> None:
    """What it says of its copy before it has joined is no answer: it would be refused."""

    async def scenario(group: Group) -> None:
        at = group.at
        await ask(group, group.primary, "policy", "ignore")
        _, newer = await two_stale_copies(group)
        leads = at.coordinator() or ""
        await group.fall(leads)
        await trio.sleep(0.5 * seed)
        at.start([leads])
        await trio.sleep(seed)
        at.start([newer])
        await group.until(lambda: bool(losses(at)))
        await at.settled(at.running())
        await at.whole()
        await group.equal()
        assert [await group.value(i) for i in range(4)] == [b"new"] * 2 + [b"old"] * 2
        [loss] = losses(at)
        assert loss.author.member == at.member_id(newer)

    live(scenario, seed=seed, nodes=5, timing=replace(QUICK, restart_wait=20.0))


# ------------------------------------------------------------------ copies that were catching up


@pytest.mark.parametrize("who", ["itself", "another"])
def test_what_a_copy_had_that_was_catching_up_is_kept_aside(who: str) -> None:
    """It is not whole, so nothing goes on from it; but it may be all that is left."""

    async def scenario(group: Group) -> None:
        at = group.at
        stale = await stale_copy(group)
        for name in sorted(group.in_sync):
            at.hold("supply", src=name, dst=stale)
        at.start([stale])
        await admitted(group, stale)
        await group.until(lambda: not at.member(stale).log.state.copies.is_whole(group.partition))
        counted = sorted(group.in_sync)
        await group.fall(*counted)
        at.may_end.update(counted)
        await lose(group, counted)
        with pytest.raises(FailureError, match="no copy of partition 0 at this member"):
            await ask(group, stale, "reset", group.partition, False)
        other = next(name for name in at.running() if name != stale)
        await ask(group, stale if who == "itself" else other, "reset", group.partition, True)
        await at.settled(at.running())
        await at.whole()
        await group.equal()
        assert await group.value(0) is None
        assert shown_values(kept_aside(group, stale)) == ["old"] * 4

    live(scenario, nodes=5, timing=QUICK)


# ------------------------------------------------------------------ disks that failed


@pytest.mark.parametrize("what", ["log", "data file"])
@pytest.mark.parametrize("policy", ["ignore", "read-write-safe"])
def test_nothing_that_was_lost_goes_on_where_a_disk_has_failed(what: str, policy: str) -> None:
    """It could not be opened there before that member is started again."""

    async def scenario(group: Group) -> None:
        at = group.at
        await ask(group, group.primary, "policy", policy)
        gone = group.primary
        broken = [name for name in at.names if name not in (gone, at.coordinator())][-1]
        member = at.member(broken)
        if what == "log":
            member.log.failure = DiskError("it failed")
        else:
            member._files.checkpointer.doubtful = DiskError("it failed")
        await group.fall(gone)
        at.may_end.add(gone)
        await lose(group, [gone])
        if policy != "ignore":
            with pytest.raises(FailureError, match="its disk failed: it failed"):
                await ask(group, broken, "reset", group.partition, True)
            other = next(name for name in at.running() if name != broken)
            for partition in at.topology().lost:
                await ask(group, other, "reset", partition, True)
        await group.until(lambda: not at.topology().lost)
        assert at.member_id(broken) not in {loss.author.member for loss in losses(at)}
        await at.settled(name for name in at.running() if name != broken)

    live(scenario, nodes=4, partitions=8, backups=0, timing=replace(QUICK, restart_wait=3.0))


def test_a_copy_that_is_about_to_be_cleared_is_nothing_to_go_on_with() -> None:
    """A disk that hangs has a CLEAR wait; what was here by then would be told, and is gone then."""

    async def scenario(group: Group) -> None:
        at, partition, stale = group.at, group.partition, group.backups[-1]
        await group.put(range(4), b"old")
        await group.equal()
        await group.away(stale)
        await group.put(range(4), b"new")
        group.hold("admit", group.primary, stale)
        at.start([stale])
        await group.until(lambda: stale in at.running())
        member, ended = at.member(stale), trio.Event()
        assert member._losing._has(partition)
        clear = ClearRecord(partition=partition, admission=1, reason="it is copied in full")
        disk, lost = at.nodes[stale].disk, trio.Event()
        disk.fail_at(disk.operations + 1, "ENOSPC", for_ever=True, path=f"{DIRECTORY}/wal")
        member.log.put_records([clear], ended.set, lost.set)
        await lost.wait()
        assert member.log.clearing == set()
        assert member._losing._has(partition), "it was not cleared"
        disk.heal()
        member.log.put_records([clear], ended.set)
        assert not member._losing._has(partition)
        await ended.wait()
        assert member.log.clearing == set()
        assert not member._losing._has(partition)
        at.holds.release_all()
        await group.back()
        assert await group.value(0) == b"new"

    live(scenario, timing=QUICK)
