"""Everybody dies at every point of a takeover and of the stream, and nothing is lost.

Who dies is the primary, a copy, the one that becomes author, or the coordinator; at each of the
points that the program of that one passes.  Writers work meanwhile.  Behind it everything settles,
copies are equal, and every key has what was acknowledged last, or what was asked for after that.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio

from support.copies import Group, Writers, live

STREAM = (
    "tx.before_prepare_log", "tx.after_prepare_log", "tx.after_prepare_sync",
    "tx.after_prepared_sent", "tx.before_commit_log", "tx.after_commit_log",
)  # fmt: skip
STREAM_OF_COPIES = ("tx.before_prepare_log", "tx.after_prepare_log", "tx.after_prepare_sync")
TAKEOVER = (
    "takeover.after_seal", "takeover.after_report", "takeover.after_list_logged",
    "takeover.after_list_stored", "takeover.after_open",
)  # fmt: skip
OF_AUTHORS = ("takeover.after_seal", "takeover.after_list_logged", "takeover.after_open")
OF_COPIES = ("takeover.after_seal", "takeover.after_report", "takeover.after_list_stored")
CONFIG = ("config.after_accept", "config.after_decide")
KEYS = 4
WORK_S = 3.0


async def work(group: Group, victims: Sequence[tuple[str, str]], also: Sequence[str]) -> None:
    """Let members die at points, and others at once, while writers work; then look at it all."""
    at, writers = group.at, Writers(group)
    async with trio.open_nursery() as nursery:
        for i in range(KEYS):
            nursery.start_soon(writers.write, i)
        await trio.sleep(0.3)
        for name, point in victims:
            at.nodes[name].kill_at(point)
        await group.fall(*also, outcome="kept")
        await trio.sleep(WORK_S)
        fallen = [name for name in at.names if not at.nodes[name].running]
        for name, _ in victims:
            at.nodes[name].points.planned.clear()
        at.start(fallen)
        await at.settled()
        writers.ends = True
    assert set(fallen) == {*also, *(name for name, _ in victims)}, "its point was not reached"
    await group.equal()
    await writers.check()
    assert writers.acknowledged


def primary_and_coordinator(group: Group) -> tuple[str, str]:
    """Look at a partition whose primary does not lead; return both."""
    coordinator = group.at.coordinator()
    assert coordinator is not None
    group.partition = next(
        p for p in range(group.at.partitions) if group.at.primary(p) != coordinator
    )
    return group.primary, coordinator


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [3, 5])
@pytest.mark.parametrize("point", STREAM)
def test_a_primary_dies_at_a_point_of_its_stream(point: str, nodes: int) -> None:
    async def scenario(group: Group) -> None:
        primary, _ = primary_and_coordinator(group)
        await work(group, [(primary, point)], [])

    live(scenario, nodes=nodes, seed=nodes)


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [3, 5])
@pytest.mark.parametrize("point", STREAM_OF_COPIES)
def test_a_copy_dies_at_a_point_of_the_stream(point: str, nodes: int) -> None:
    async def scenario(group: Group) -> None:
        _primary, _ = primary_and_coordinator(group)
        await work(group, [(group.backups[-1], point)], [])

    live(scenario, nodes=nodes, seed=nodes)


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [3, 5])
@pytest.mark.parametrize("point", OF_AUTHORS)
def test_an_author_dies_at_a_point_of_its_takeover(point: str, nodes: int) -> None:
    async def scenario(group: Group) -> None:
        primary, _ = primary_and_coordinator(group)
        await work(group, [(group.backups[0], point)], [primary])

    live(scenario, nodes=nodes, seed=nodes)


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [3, 5])
@pytest.mark.parametrize("point", OF_COPIES)
def test_a_listed_copy_dies_at_a_point_of_a_takeover(point: str, nodes: int) -> None:
    async def scenario(group: Group) -> None:
        primary, _ = primary_and_coordinator(group)
        await work(group, [(group.backups[1], point)], [primary])

    live(scenario, nodes=nodes, seed=nodes)


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [3, 5])
@pytest.mark.parametrize(
    ("place", "point"),
    [
        *((0, point) for point in (*CONFIG, *OF_AUTHORS)),
        *((1, point) for point in OF_COPIES),
    ],
)
def test_a_coordinator_dies_at_a_point_of_a_takeover(place: int, point: str, nodes: int) -> None:
    # ``place`` among the copies that are left: it becomes the author, or another listed copy.
    async def scenario(group: Group) -> None:
        coordinator = group.at.coordinator()
        for partition in range(group.at.partitions):
            group.partition = partition
            if coordinator in group.backups and group.backups[place] == coordinator:
                break
        assert coordinator == group.backups[place]
        await work(group, [(coordinator, point)], [group.primary])

    live(scenario, nodes=nodes, seed=nodes, partitions=16)


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [3, 5])
@pytest.mark.parametrize("point", [*CONFIG, "takeover.after_seal", "tx.after_prepare_sync"])
def test_an_old_primary_that_was_cut_off_dies_when_it_is_heard_again(
    point: str, nodes: int
) -> None:
    # It seals, or finds itself gone, or goes on with what it had in hand.
    async def scenario(group: Group) -> None:
        at = group.at
        primary, _ = primary_and_coordinator(group)
        rest = [name for name in at.names if name != primary]
        writers = Writers(group)
        async with trio.open_nursery() as nursery:
            for i in range(KEYS):
                nursery.start_soon(writers.write, i)
            await trio.sleep(0.3)
            at.cut([primary], rest)
            await group.until(lambda: group.primary != primary)
            at.nodes[primary].kill_at(point)
            at.heal()
            await trio.sleep(WORK_S)
            at.nodes[primary].points.planned.clear()
            if not at.nodes[primary].running:
                at.start([primary])
            await at.settled()
            writers.ends = True
        await group.equal()
        await writers.check()

    live(scenario, nodes=nodes, seed=nodes)
