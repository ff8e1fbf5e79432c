"""What ``tidelog cluster`` shows of clusters with copies, as members of a simulated world say it.

Each picture is a file of ``golden/``; with TIDELOG_REWRITE_GOLDEN they are written anew.
"""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
from click.testing import Result

from support.pictures import local_cluster, picture_in
from tidelog import codecs
from tidelog.affinity.changes import MemberLost, MemberWanted
from tidelog.errors import TidelogError
from tidelog.testing import SimCluster
from tidelog.testing.cluster import DIRECTORY
from tidelog.tools.cluster import showing
from tidelog.tools.cluster.cluster_file import write_cluster
from tidelog.tools.cluster.standing import Picture

GOLDEN = Path(__file__).parent / "golden"

Run = Callable[..., Result]
Scenario = Callable[[SimCluster], Awaitable[int]]
"""What happens to a cluster; returns the partition whose story is told."""


async def wrote(at: SimCluster, count: int) -> None:
    numbers = at.client(timeout=30).map("m", key=codecs.Str, value=codecs.I64)
    for key in range(count):
        await numbers.set(f"k{key}", key)


def backup_of(at: SimCluster, partition: int) -> str:
    """The first copy of a partition that does not lead the cluster."""
    copies = at.topology().partitions[partition].in_sync
    names = [name for name in at.names if at.member_id(name) in {copy.member for copy in copies}]
    return next(n for n in names if n not in (at.primary(partition), at.coordinator()))


async def whole(at: SimCluster) -> int:
    return 0


async def a_primary_was_just_killed(at: SimCluster) -> int:
    led = at.coordinator()
    partition = next(p for p in range(at.partitions) if at.primary(p) != led)
    await at.kill(at.primary(partition))
    return partition


async def the_coordinator_was_just_killed(at: SimCluster) -> int:
    led = at.coordinator()
    assert led is not None
    await at.kill(led)
    return next(p for p in range(at.partitions) if at.primary(p) != led)


async def a_member_is_away_and_its_partitions_were_taken_over(at: SimCluster) -> int:
    led = at.coordinator()
    partition = next(p for p in range(at.partitions) if at.primary(p) != led)
    killed = at.primary(partition)
    await at.kill(killed)
    await trio.sleep(5)
    assert at.primary(partition) != killed
    return partition


async def _held(at: SimCluster, kind: str) -> int:
    """Kill a primary; what another one says to who takes over waits on its way."""
    led = at.coordinator()
    partition = next(p for p in range(at.partitions) if at.primary(p) != led)
    killed = at.primary(partition)
    for one in at.names:
        for other in at.names:
            if one != other:
                at.hold(kind, src=one, dst=other)
    await at.kill(killed)
    await trio.sleep(3.5)
    return partition


async def a_takeover_waits_for_a_report(at: SimCluster) -> int:
    return await _held(at, "report")


async def a_takeover_waits_for_a_list_to_be_stored(at: SimCluster) -> int:
    return await _held(at, "settle-stored")


async def a_copy_lags(at: SimCluster) -> int:
    partition = 4
    slow = backup_of(at, partition)
    at.hold("stored", src=slow, dst=at.primary(partition))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wrote, at, 24)
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    return partition


async def two_of_three_are_away(at: SimCluster) -> int:
    first, second = (name for name in at.names if name != at.coordinator())
    await at.kill(first)
    await at.kill(second)
    await trio.sleep(3)
    return 0


async def the_power_was_cut_and_one_is_not_back(at: SimCluster) -> int:
    await at.power_cut()
    at.start(["n1", "n3"])
    await trio.sleep(7)
    return 0


async def the_last_copies_are_away(at: SimCluster) -> int:
    copies = at.topology().partitions[0].in_sync
    gone = [name for name in at.names if at.member_id(name) in {copy.member for copy in copies}]
    for name in gone:
        at.nodes[name].kill()
    for name in gone:
        await at.killed(name)
    await at.settled([name for name in at.names if name not in gone])
    return 0


async def the_last_copies_are_lost(at: SimCluster) -> int:
    await the_last_copies_are_away(at)
    copies = at.topology().partitions[0].in_sync
    gone = [name for name in at.names if at.member_id(name) in {copy.member for copy in copies}]
    asked = at.running()[next(name for name in at.names if name not in gone)]
    done: list[object] = []
    for name in gone:
        while at.member_id(name) in at.topology().members_present:
            await trio.sleep(0.1)
        asked.change(MemberLost(member=at.member_id(name)), asked.now + 10, done.append)
    while len(done) < len(gone):
        await trio.sleep(0.1)
    assert done == [None] * len(gone)
    return 0


async def a_log_failed(at: SimCluster) -> int:
    name = at.primary(1)
    disk = at.nodes[name].disk
    disk.fail_at(disk.operations + 1, kind="sync", path=f"{DIRECTORY}/wal")
    with pytest.raises(TidelogError):
        await wrote(at, 24)
    await trio.sleep(1)
    return 1


async def _entering(at: SimCluster, *, voter: bool = False) -> None:
    at.join("n4", voter=voter)
    while at.member_id("n4") not in at.topology().members:
        await trio.sleep(0.02)


async def a_member_is_about_to_enter(at: SimCluster) -> int:
    await _entering(at, voter=True)
    return 0


async def partitions_are_on_their_way_to_a_member_that_entered(at: SimCluster) -> int:
    await _entering(at)
    while not (moving := [copies for copies in at.topology().partitions if copies.goal]):
        await trio.sleep(0.02)
    return moving[0].row.partition


async def a_member_leaves(at: SimCluster) -> int:
    name = next(name for name in at.names if name != at.coordinator())
    held = [p for p in range(at.partitions) if at.primary(p) == name]
    change = MemberWanted(member=at.member_id(name), wanted=False)
    heard: list[Exception | None] = []
    at.member(at.names[0]).change(change, at.member(at.names[0]).now + 10, heard.append)
    while at.topology().placed == at.topology().baseline:
        await trio.sleep(0.02)
    return held[0]


PICTURES = [
    (whole, 3, 2),
    (a_primary_was_just_killed, 3, 2),
    (the_coordinator_was_just_killed, 3, 2),
    (a_member_is_away_and_its_partitions_were_taken_over, 3, 2),
    (a_takeover_waits_for_a_report, 3, 2),
    (a_takeover_waits_for_a_list_to_be_stored, 3, 2),
    (a_copy_lags, 3, 2),
    (two_of_three_are_away, 3, 2),
    (the_power_was_cut_and_one_is_not_back, 3, 2),
    (the_last_copies_are_away, 5, 1),
    (the_last_copies_are_lost, 5, 1),
    (a_log_failed, 3, 0),
    (a_member_is_about_to_enter, 3, 2),
    (partitions_are_on_their_way_to_a_member_that_entered, 3, 1),
    (a_member_leaves, 3, 1),
]


def pictured(situation: Scenario, nodes: int, backups: int) -> tuple[SimCluster, Picture, int]:
    at = SimCluster(seed=5, nodes=nodes, partitions=6, backups=backups)

    async def scenario(at: SimCluster) -> tuple[Picture, int]:
        at.start()
        await at.settled()
        await wrote(at, 12)
        await at.quiesce()
        await trio.sleep(0.2)  # until copies have heard of the last commit
        partition = await situation(at)
        picture = picture_in(at, partition)
        at.holds.release_all()
        return picture, partition

    picture, partition = at.run(scenario)
    return at, picture, partition


@pytest.mark.slow
@pytest.mark.parametrize(("situation", "nodes", "backups"), PICTURES)
def test_every_picture_as_it_always_was(
    situation: Scenario,
    nodes: int,
    backups: int,
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at, picture, partition = pictured(situation, nodes, backups)
    write_cluster(str(tmp_path), local_cluster(at))
    monkeypatch.setattr(showing, "look", lambda *_place: picture)
    shown = ""
    for words in (
        "status DIR",
        "partitions DIR",
        f"partition DIR {partition}",
        "exchanges DIR",
        "baseline show DIR",
    ):
        done = run("cluster", *(tmp_path if word == "DIR" else word for word in words.split()))
        printed = done.stdout + (f"[exit {done.exit_code}]\n" if done.exit_code else "")
        if words.startswith("exchanges"):  # how long it takes is a matter of the links
            printed = re.sub(r"\b(\d+)\.\d+ s", r"\1.x s", printed)
        shown += f"$ tidelog cluster {words}\n{printed}\n"
    shown = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "(an id)", shown)
    shown = shown.replace(str(tmp_path), "DIR")
    # How many items say what has committed is a matter of time.
    shown = re.sub(r"\b(\d+) of \1 durable( and \1 everywhere)?", r"all durable\2", shown)
    golden = GOLDEN / "cluster" / f"{situation.__name__}.txt"
    if "TIDELOG_REWRITE_GOLDEN" in os.environ:
        golden.write_text(shown)
        pytest.fail(f"{golden.name} was written anew: read the difference, then run without it")
    assert shown == golden.read_text()
