"""How long a takeover takes, in simulated time: links of 10 ms, and disks that are not slow.

Five members, two backups, one writer for each partition who writes one value after the other.  If
a member dies that does not lead, its partitions are written again soon behind the end of its lease,
those where it was a backup once it is declared gone, and the others never stop.  If it led, leases
end, too: everything is written again soon behind the promises to it, once somebody has stood.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import pytest
import trio

from tidelog import codecs
from tidelog.affinity.errors import TidelogError
from tidelog.affinity.topology import Incarnation
from tidelog.aio import Map
from tidelog.engine.agreement.timing import Timing
from tidelog.testing import SimCluster

PARTITIONS = 10
LINK_S = 0.010
ROUND_TRIP_S = 2 * LINK_S
WRITE_S = 2 * ROUND_TRIP_S
"""What a write takes on its way: to the primary, to the copies, and back."""
SLACK_S = 0.2
BEFORE_S, BEHIND_S = 1.0, 2.0
LED_S, CUT_S = 4.0, 2.0
"""How long somebody leads, and a cut that ends that, where nobody leads for long."""


@dataclass
class Watched:
    """What was seen; all times in seconds since the kill."""

    lease_end: float = 0.0
    """When the coordinator knew the lease of the dead one to have ended."""
    decided: float = 0.0
    """When the coordinator knew all its partitions to have another primary."""
    served: list[float] = field(default_factory=list)
    """When partitions of the dead one were written again."""
    backed: list[float] = field(default_factory=list)
    """The longest pauses of those where it was a backup."""
    untouched: list[float] = field(default_factory=list)
    """The longest pauses of the others."""


def killed(seed: int, outcome: str, *, leads: bool = False) -> Watched:
    """Kill a primary under load that leads, or does not, and return what was seen."""
    at = SimCluster(
        seed=seed, nodes=5, partitions=PARTITIONS, backups=2, delay_s=LINK_S, slow_disks=False
    )
    seen, behind_s = Watched(), 2 * BEHIND_S if leads else BEHIND_S

    async def scenario(at: SimCluster) -> None:
        at.start()
        await at.settled()
        told: dict[int, list[float]] = {p: [] for p in range(PARTITIONS)}
        numbers = at.client(timeout=30).map("m", key=codecs.Bytes, value=codecs.I64)
        await numbers.set(b"first", 0)

        async def write(partition: int) -> None:
            key = at.key(partition, 0)
            while True:
                await numbers.set(key, len(told[partition]))
                told[partition].append(at.world.now())

        async def look(coordinator: str, incarnation: Incarnation) -> None:
            member = at.member(coordinator)
            while True:
                leading = member.agreement._leading
                assert leading is not None
                left = leading.lease.held_until(incarnation) - member.now
                seen.lease_end = max(seen.lease_end, at.world.now() + left - began)
                if any(one.author == incarnation for one in member.agreement.topology.partitions):
                    seen.decided = at.world.now() - began
                await trio.sleep(LINK_S / 4)

        async with trio.open_nursery() as nursery:
            for partition in range(PARTITIONS):
                nursery.start_soon(write, partition)
            await trio.sleep(BEFORE_S)
            coordinator = at.coordinator()
            assert coordinator is not None
            primaries = [at.primary(partition) for partition in range(PARTITIONS)]
            dead = coordinator if leads else sorted({*primaries} - {coordinator})[seed % 4]
            sets = [at.topology().partitions[p].in_sync for p in range(PARTITIONS)]
            began = at.world.now()
            if not leads:
                nursery.start_soon(look, coordinator, at.member(dead).agreement.me)
            await at.kill(dead, outcome=outcome)
            await trio.sleep(behind_s)
            nursery.cancel_scope.cancel()
        for partition, times in told.items():
            behind = [time - began for time in times if time > began - 1.0]
            assert behind[-1] > behind_s - 3 * WRITE_S, f"partition {partition} is not written"
            pauses = [later - time for time, later in itertools.pairwise(behind)]
            if primaries[partition] == dead:
                answers = [t for t in behind if t > LINK_S]  # what it had answered may arrive still
                seen.served.append(answers[0])
            elif at.member_id(dead) in {copy.member for copy in sets[partition]}:
                seen.backed.append(max(pauses))
            else:
                seen.untouched.append(max(pauses))

    at.run(scenario)
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 11))
def test_a_dead_primary_of_five_is_replaced_soon_behind_its_lease(seed: int) -> None:
    timing = Timing()
    seen = killed(seed, ("kept", "lost")[seed % 2])
    assert seen.served
    assert seen.backed
    assert seen.untouched
    assert seen.lease_end <= timing.lease
    decision = ROUND_TRIP_S + LINK_S  # with what the disks take
    assert seen.decided <= max(timing.member_timeout, seen.lease_end) + decision, seen
    assert max(seen.served) <= max(timing.member_timeout, seen.lease_end) + SLACK_S, seen
    assert max(seen.untouched) <= WRITE_S + ROUND_TRIP_S, seen
    gone = timing.member_timeout + timing.heartbeat if seed % 2 else 0.0
    assert max(seen.backed) <= gone + SLACK_S, seen


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3, 8, 16])
def test_a_dead_coordinator_of_five_is_replaced_soon_behind_what_was_promised_to_it(
    seed: int,
) -> None:
    # Who stood before those promises ended was refused, and stood again a second later; who led
    # found out up to a second later that nobody listens where the last one did.
    timing = Timing()
    seen = killed(seed, ("kept", "lost")[seed % 2], leads=True)
    assert seen.served
    stood = timing.lease + 3 * timing.rank_pause
    assert max(seen.untouched) <= stood + SLACK_S, seen
    # Nobody is there any more who refuses connections, so the next one waits for it, too.
    silent = timing.member_timeout + timing.heartbeat if seed % 2 else 0.0
    assert max(*seen.served, *seen.backed) <= stood + silent + SLACK_S, seen


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_who_died_together_is_waited_for_once_however_often_coordinators_change(seed: int) -> None:
    at = SimCluster(seed=seed, nodes=3, partitions=PARTITIONS, backups=2)

    async def scenario(at: SimCluster) -> float:
        at.start()
        await at.settled()
        client = at.client()
        numbers = client.map("m", key=codecs.Bytes, value=codecs.I64)
        await at.kill("n1")
        await trio.sleep(4)
        for partition in range(PARTITIONS):  # so n1 lacks something, and has to be brought up
            await numbers.set(at.key(partition, 0), 1)
        at.start(["n1"])
        await trio.sleep(0.5)
        await at.kill("n2")
        await at.kill("n3")
        await trio.sleep(1)
        began = at.world.now()
        at.start(["n2"])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(others_lead, at)
            for partition in range(PARTITIONS):
                with trio.fail_after(60):
                    while not await is_written(numbers, at.key(partition, 0)):
                        await trio.sleep(0.1)
            nursery.cancel_scope.cancel()
        return at.world.now() - began

    async def others_lead(at: SimCluster) -> None:
        while True:
            await trio.sleep(LED_S)
            at.cut(["n1"], ["n2"])
            await trio.sleep(CUT_S)
            at.heal()

    async def is_written(numbers: Map[bytes, int], key: bytes) -> bool:
        try:
            await numbers.set(key, 2)
        except TidelogError:
            return False
        return True

    assert at.run(scenario) < Timing().restart_wait + 2 * (LED_S + CUT_S)
