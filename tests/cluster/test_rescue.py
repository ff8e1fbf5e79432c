"""Most members of a cluster are gone for good: those that are left make one of their own (S8)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import trio
from click.testing import CliRunner

from support.copies import Group, live
from support.raw_client import FailureError
from tidelog.affinity.changes import Decision, NamespaceMade
from tidelog.affinity.topology import Topology
from tidelog.engine.agreement.journal import Journal
from tidelog.engine.agreement.messages import Acceptance, Term
from tidelog.engine.agreement.noting import noted_records
from tidelog.engine.agreement.timing import Timing
from tidelog.engine.files import manifest as manifests
from tidelog.engine.node.member_files import init_member
from tidelog.engine.node.rescuing import rescue_members
from tidelog.engine.system.disk import RealDirectory
from tidelog.engine.system.layout import CONFIG_LOG_NAME
from tidelog.engine.system.production import production
from tidelog.errors import CorruptLogError, DiskError, UsageError
from tidelog.testing import SimCluster
from tidelog.tools.main import cli
from tidelog.tools.shell.exits import Exit

QUICK = Timing(join_wait=1.0, swap_pause=0.2)


class Disks:
    """The disks of several machines as one: /n2/member is /member of n2."""

    def __init__(self, at: SimCluster) -> None:
        self._at = at

    def __getattr__(self, name: str) -> Any:
        def call(path: str, *more: Any, **named: Any) -> Any:
            _, machine, rest = path.split("/", 2)
            return getattr(self._at.nodes[machine].disk, name)(f"/{rest}", *more, **named)

        return call


def rescue(at: SimCluster, *names: str) -> Topology:
    disks: Any = Disks(at)
    environment = replace(at.nodes[names[0]].environment, disk=disks)
    return rescue_members(environment, [f"/{name}/member" for name in names])


async def all_fall(group: Group) -> tuple[str, str]:
    """Write something, and end all five; return who is left: one with a copy, one without."""
    await group.at.whole()
    await group.put(range(3), b"kept")
    with_copy = group.backups[0]
    without = next(name for name in group.at.names if name not in group.in_sync)
    await group.equal()
    await group.fall(*group.at.names)
    return with_copy, without


def test_those_who_are_left_go_on_with_what_they_have() -> None:
    async def scenario(group: Group) -> None:
        at = group.at
        before = at.topology().cluster
        left = await all_fall(group)
        topology = rescue(at, *left)
        assert {*topology.baseline} == {at.member_id(name) for name in left}
        assert group.partition not in topology.lost
        at.start(left)
        await group.until(lambda: {*left} <= at.running().keys())
        await at.settled(left)
        assert [await group.value(i) for i in range(3)] == [b"kept"] * 3
        await group.put(0, b"new")
        assert at.topology().cluster == topology.cluster != before
        await at.whole()
        copies = at.topology().partitions[group.partition]
        assert {copy.member for copy in copies.in_sync} == {at.member_id(name) for name in left}
        assert await group.value(0) == b"new"

    live(scenario, nodes=5, timing=QUICK)


def test_what_only_the_others_had_is_lost_and_can_be_reset() -> None:
    async def scenario(group: Group) -> None:
        at = group.at
        await group.put(range(3), b"gone")
        await group.equal()
        left = [name for name in at.names if name not in group.in_sync]
        await group.fall(*at.names)
        topology = rescue(at, *left)
        assert group.partition in topology.lost
        at.start(left)
        await group.until(lambda: {*left} <= at.running().keys())
        await trio.sleep(5)
        client = await group.client(left[0])
        with pytest.raises(FailureError, match="is lost: the disks of all who had it are gone"):
            await client.ask("get", group.number, [at.key(group.partition, 0)])
        await client.ask("reset", group.partition, True)
        await at.settled(left)
        await group.put(0, b"again")
        assert [await group.value(i) for i in range(2)] == [b"again", None]

    live(scenario, nodes=5, timing=QUICK)


def test_whoever_was_lost_and_turns_up_is_a_stranger() -> None:
    async def scenario(group: Group) -> None:
        at = group.at
        left = await all_fall(group)
        rescue(at, *left)
        others = [name for name in at.names if name not in left]
        at.start(at.names)
        await group.until(lambda: {*left} <= at.running().keys())
        newest = {at.member(name).agreement.topology.cluster for name in left}
        await trio.sleep(20)
        for name in left:
            member = at.member(name)
            assert {member.agreement.topology.cluster} == newest
            present = member.agreement.topology.members_present
            assert present == {at.member_id(one) for one in left}
        for name in others:
            assert at.member(name).agreement.topology.cluster not in newest

    live(scenario, nodes=5, timing=QUICK)


def test_nobody_connects_to_who_was_lost() -> None:
    """Their addresses were dialled for ever, also when others had them by then."""

    async def scenario(group: Group) -> None:
        at = group.at
        left = await all_fall(group)
        rescue(at, *left)
        at.start(left)
        await group.until(lambda: {*left} <= at.running().keys())
        await at.settled(left)
        for one, other in (left, left[::-1]):
            assert [*at.member(one).transport._ways] == [at.member_id(other).bytes]

    live(scenario, nodes=5, timing=QUICK)


@pytest.mark.parametrize("outcome", ["kept", "lost", "torn"])
def test_a_rescue_that_was_cut_short_anywhere_is_carried_on(outcome: str) -> None:
    async def scenario(group: Group) -> None:
        at = group.at
        left = await all_fall(group)
        disks = {name: at.nodes[name].disk for name in left}
        whole = None
        for name in left:
            operation = 0
            while True:
                operation += 1
                for one, disk in disks.items():
                    at.nodes[one].disk = disk.copy()
                broken = at.nodes[name].disk
                broken.fail_at(broken.operations + operation)
                try:
                    topology = rescue(at, *left)
                except (DiskError, OSError):
                    pass
                else:
                    assert whole in (None, topology)
                    whole = topology
                    broken.heal()
                    break
                for one in left:
                    at.nodes[one].disk.heal()
                    at.nodes[one].disk = at.nodes[one].disk.crash(outcome)
                again = rescue(at, *left)
                assert whole in (None, again)
                whole = again
            assert operation > 5
        at.start(left)
        await group.until(lambda: {*left} <= at.running().keys())
        await at.settled(left)
        assert [await group.value(i) for i in range(3)] == [b"kept"] * 3

    live(scenario, nodes=5, timing=QUICK)


# ------------------------------------------------------------------ what cannot be


def directories(tmp_path: Path, count: int = 3, cluster: int = 7) -> list[str]:
    ids = [UUID(int=100 * cluster + number) for number in range(count)]
    made = []
    for number, member in enumerate(ids):
        path = tmp_path / f"c{cluster}-{number}"
        init_member(
            production(), str(path), cluster=UUID(int=cluster), member=member,
            members=[(one, f"127.0.0.1:{place + 1}") for place, one in enumerate(ids)],
            partitions=4, backups=1,
        )  # fmt: skip
        made.append(str(path))
    return made


def files_of(path: str) -> Mapping[str, bytes]:
    found = Path(path)
    names = ("manifest", CONFIG_LOG_NAME)
    return {name: (found / name).read_bytes().rstrip(b"\0") for name in names}


def test_a_majority_needs_no_rescue(tmp_path: Path) -> None:
    paths = directories(tmp_path)
    before = files_of(paths[0])
    with pytest.raises(UsageError, match="2 of the 3 members that vote are left") as caught:
        rescue_members(production(), paths[:2])
    assert "tidelog cluster lose" in str(caught.value.hint)
    assert files_of(paths[0]) == before


def test_members_of_two_clusters_are_not_one(tmp_path: Path) -> None:
    paths = [directories(tmp_path)[0], directories(tmp_path, cluster=8)[0]]
    with pytest.raises(UsageError, match="members of 2 clusters"):
        rescue_members(production(), paths)


def test_a_directory_is_named_once(tmp_path: Path) -> None:
    path = directories(tmp_path)[0]
    with pytest.raises(UsageError):
        rescue_members(production(), [path, path])
    with pytest.raises(UsageError, match="once"):
        rescue_members(production(), [])


def test_a_damaged_configuration_log_is_told_of(tmp_path: Path) -> None:
    path = directories(tmp_path)[0]
    log = Path(path, CONFIG_LOG_NAME)
    log.write_bytes(log.read_bytes()[:70] + b"\xff" * 9 + log.read_bytes()[79:])
    with pytest.raises(CorruptLogError, match="is damaged") as caught:
        rescue_members(production(), [path])
    assert "tidelog db salvage" in str(caught.value.hint)


def test_what_was_accepted_and_may_have_been_decided_is_taken(tmp_path: Path) -> None:
    path = directories(tmp_path)[0]
    manifest = manifests.read(RealDirectory(path))
    journal, _ = Journal.open(
        RealDirectory(path), identity=bytes.fromhex(manifest.member or ""), durable=0
    )
    assert journal is not None
    made = NamespaceMade(
        name="m", key_codec="str", key_version=1, value_codec="bytes", value_version=1, space=0
    )
    accepted = Acceptance(Term(3, UUID(int=3)), Decision(2, (made,)))
    journal.append(noted_records([accepted], None).records)
    journal.sync()
    journal.close()
    topology = rescue_members(production(), [path])
    assert [known.name for known in topology.namespaces.values()] == ["m"]
    assert topology.index == 3


def test_the_command_wants_a_yes_and_tells_what_is_lost(tmp_path: Path) -> None:
    path = directories(tmp_path)[1]
    unsure = CliRunner().invoke(cli, ["server", "rescue", path])
    assert "give --yes" in unsure.stderr.replace("\n", " ")
    assert unsure.exit_code == Exit.REFUSED
    done = CliRunner().invoke(cli, ["server", "rescue", path, "--yes", "--json"])
    assert done.exit_code == 0, done.stderr
    assert '"partitions_lost"' in done.stdout
    again = CliRunner().invoke(cli, ["server", "rescue", path, "--yes", "--json"])
    assert (again.exit_code, again.stdout) == (0, done.stdout)
