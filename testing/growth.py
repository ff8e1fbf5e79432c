"""Members of a simulated cluster that join, are told to leave, and lose their disks.

Whose disk is lost never runs again.  ``keep_going`` has that decided, and goes on with what was
lost with it: from the best copy that runs, or with nothing, as the seed has it.

Invariants:

- A disk is lost only if the members that are left can decide without it, those that stay, too,
  while others leave: a change of the baseline that was accepted cannot be taken back.
- ``is_over`` tells that every loss has been decided, and no partition waits to be reset.

Left out: when any of it happens (``storms``).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial

import trio

from ..affinity.changes import LossPolicySet, MemberLost, MemberWanted
from ..affinity.errors import UsageError
from ..affinity.topology import LOSS_POLICIES
from ..engine.node.deciding import Hear
from ..engine.node.member import RunningMember
from .cluster import SimCluster

DECIDED_S_MAX = 5.0
"""Seconds that a member gets to have a change decided, before another one is asked."""
PAUSE_S = 0.3
EMPTY = 0.2
"""How often a lost partition goes on with nothing although there is a copy."""


class Growth:
    """Who joined, left and was lost."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._chance = cluster.world.random("growth")
        self.lost: list[str] = []
        """The names of members whose disks are gone."""

    def __repr__(self) -> str:
        return f"<Growth of {self._cluster!r}, lost {self.lost}>"

    @property
    def names(self) -> set[str]:
        """The members whose disks are there."""
        return {*self._cluster.names} - {*self.lost}

    def join(self, name: str) -> bool:
        """Start a new member; tell whether it was not there yet."""
        if name in self._cluster.nodes:
            return False
        self._cluster.may_end.add(name)  # nobody may answer it
        self._cluster.join(name)
        return True

    async def want(self, name: str, wanted: bool) -> None:
        """Tell a member to enter, or to leave; that may be refused."""
        change = MemberWanted(member=self._cluster.member_id(name), wanted=wanted)
        await self._ask(lambda one, done: one.change(change, one.now + DECIDED_S_MAX, done))

    async def choose(self, policy: str) -> None:
        """Have another policy for losses decided; that may come too late, or never."""
        [chosen] = [one for one in LOSS_POLICIES if one == policy]
        change = LossPolicySet(policy=chosen)
        await self._ask(lambda one, done: one.change(change, one.now + DECIDED_S_MAX, done))

    def lose(self, name: str) -> None:
        """End a member for good, unless the others could not decide without it.

        Who else leaves may do so before it.
        """
        cluster = self._cluster
        if not cluster.running() or not (topology := cluster.topology()).index:
            return
        lost = {cluster.member_id(one) for one in (*self.lost, name)}
        leaving = {one for one in topology.baseline if topology.members[one].leaving}
        baselines = [{*topology.baseline} - gone for gone in (set(), leaving - lost, leaving)]
        if all(2 * len(lost & baseline) < len(baseline) for baseline in baselines):
            self.lost.append(name)
            cluster.nodes[name].kill("lost")

    async def keep_going(self) -> None:
        """Declare lost who is, and reset what was lost, for ever."""
        while True:
            await trio.sleep(PAUSE_S)
            if not self._cluster.running():
                continue
            topology = self._cluster.topology()
            for member in map(self._cluster.member_id, self.lost):
                if member in topology.members and not topology.members[member].lost:
                    await self._declare(MemberLost(member=member))
            if topology.lost:
                await self._reset(self._chance.choice(topology.lost))

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to declare, or to reset."""
        if not self._cluster.running():
            return False
        topology = self._cluster.topology()
        known = map(topology.members.get, map(self._cluster.member_id, self.lost))
        return not topology.lost and all(one is None or one.lost for one in known)

    async def _declare(self, change: MemberLost) -> None:
        await self._ask(lambda one, done: one.change(change, one.now + DECIDED_S_MAX, done))

    async def _reset(self, partition: int) -> None:
        best = max(self._cluster.running().values(), key=partial(_has_of, partition))
        empty = not any(_has_of(partition, best)) or self._chance.random() < EMPTY

        def reset(one: RunningMember, done: Hear) -> None:
            with suppress(UsageError):  # it is lost no more, or this one is out of date
                one.reset(partition, empty, one.now + DECIDED_S_MAX, done)

        await self._ask(reset, best)

    async def _ask(
        self, ask: Callable[[RunningMember, Hear], None], member: RunningMember | None = None
    ) -> None:
        """Ask a member to have something decided, and give it time for that."""
        running = [one for one in self._cluster.running().values() if not one.ended]
        member = member or (self._chance.choice(running) if running else None)
        if member is None or member.ended:
            return
        answered = trio.Event()
        ask(member, lambda _refused: answered.set())
        with trio.move_on_after(DECIDED_S_MAX):
            await answered.wait()


def _has_of(partition: int, member: RunningMember) -> tuple[int, int]:
    """Return the newest epoch that a whole copy has opened, and its HWM; zeros without one."""
    state = member.log.state
    if not state.copies.is_whole(partition):
        return 0, 0
    hwm = state.counters[partition].hwm
    return (state.epochs[partition], hwm) if hwm else (0, 0)
