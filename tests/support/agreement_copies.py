"""Members that agree on partitions with backups, and a model of what they do with them.

An author opens its epoch once it reaches all that are listed, and they know of it; from then on it
writes, and a write is acknowledged once all of its in-sync set hold it, as far as it has learnt of
that set (I2).  Whom it does not reach for a while it accuses; if it is told to give the partition
up it does.  Opening keeps what all that are listed hold, as a settle list does of what is pending
everywhere (K4): so one that is listed and lacks a write loses it for all.

At every step, beside the checks of ``Net``:

(3) what was acknowledged is held by every copy of the latest decided in-sync set;
(I1, I4, S3) sets are never empty; within an epoch they shrink only, and only once it was opened; an
epoch follows on the one before, and lists members of the last set, no stale ones if anybody stayed;
(S2) of members that ended at one moment none is dropped for another.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from random import Random
from typing import Any
from uuid import UUID

from support.agreement_net import QUICK, Net, Peer, Violation, member
from tidelog.affinity.changes import CopiesRemoved, Decision, EpochsOpened, Takeover, TopologyChange
from tidelog.affinity.folding import applied
from tidelog.affinity.topology import Incarnation, PartitionCopies, Topology
from tidelog.engine.agreement.coordinator import GIVE_IT_UP
from tidelog.engine.agreement.machine import Agreement, Ready
from tidelog.engine.agreement.messages import Envelope, Guard, Propose

WORK_SECONDS = 0.02
"""Between two looks of all authors at their partitions."""

PATIENCE_SECONDS = 0.4
"""How long a copy may not answer before it is accused."""


class CopiesNet(Net):
    """A cluster whose partitions have in-sync sets, with their authors at work."""

    def __init__(self, seed: int, members: int = 3, partitions: int = 4, **options: Any) -> None:
        self.truth = Topology()
        """What the decisions that anybody knows come to."""
        self.extra = Random(seed)
        self.bad: set[frozenset[UUID]] = set()
        """Pairs of members that exchange no data, and everything else."""
        self.acknowledged: list[set[int]] = [set() for _ in range(partitions)]
        self.held = {
            member(number): [set[int]() for _ in range(partitions)]
            for number in range(1, members + 1)
        }
        self.by_deaths = False
        """Whether members end by dying only: then who died together is known."""
        self.opens = self.accuses = True
        self._died: dict[Incarnation, float] = {}
        self._proposed: set[Decision] = set()
        self._opened: dict[Incarnation, dict[int, int]] = {}
        self._silent: dict[tuple[Incarnation, int, Incarnation], float] = {}
        self._asked: dict[tuple[Incarnation, int], int] = {}
        self._requests = count(1)
        self._writes = count(1)
        super().__init__(seed, members, partitions, **options)
        self._at(WORK_SECONDS, self._work)

    # -------------------------------------------------------------- members

    def kill(self, *numbers: int) -> None:
        died = [one.me for one in self._machines(numbers)]
        self._died.update(dict.fromkeys(died, self.time))
        super().kill(*numbers)
        for one in died:
            self._refuse(one)

    def power_cut(self, *numbers: int) -> None:
        self._died.update((one.me, self.time) for one in self._machines(numbers))
        super().power_cut(*numbers)

    def heal(self) -> None:
        super().heal()
        self.bad.clear()

    def _machines(self, numbers: tuple[int, ...]) -> Iterator[Agreement]:
        found = [self[number].machine for number in numbers]
        return (machine for machine in found if machine is not None)

    def _refuse(self, dead: Incarnation) -> None:
        """Have some of the others find that nothing listens where a member was."""

        def event() -> None:
            for peer in self._running():
                if self.peers[dead.member].machine is None and self.extra.random() < 0.5:
                    assert peer.machine is not None
                    peer.machine.unreachable(dead.member)
                    self._drive(peer)

        self._at(self.time + self.extra.uniform(0.001, 0.1), event)

    def _exchange(self, one: UUID, other: UUID) -> bool:
        """Whether two members exchange data now."""
        if one == other:
            return True
        cut = {(one, other), (other, one)} & self.blocked
        return not cut and frozenset((one, other)) not in self.bad

    def _awake_now(self, member: UUID) -> Agreement | None:
        peer = self.peers[member]
        return peer.machine if peer.paused_until <= self.time else None

    # -------------------------------------------------------------- authors at work

    def _work(self) -> None:
        self._at(self.time + WORK_SECONDS, self._work)
        for peer in self.peers.values():
            machine = self._awake_now(peer.id)
            if machine is None:
                continue
            machine.reaches = frozenset(
                other.id
                for other in self.peers.values()
                if other.machine is not None and self._exchange(peer.id, other.id)
            )
            if self.opens:
                self._serve(peer, machine)
            self._drive(peer)

    def _serve(self, peer: Peer, machine: Agreement) -> None:
        mine = self._opened.setdefault(machine.me, {})
        known = machine.topology.partitions
        told: list[tuple[int, int]] = []
        for partition, copies in enumerate(known):
            if not machine.is_author(copies) or not copies.epoch:
                continue
            silent = self._silent_of(machine.me, partition, copies)
            if mine.get(partition) != copies.epoch:
                if not silent and self.extra.random() < 0.2:
                    self._open(partition, copies)
                    mine[partition] = copies.epoch
            elif self.extra.random() < 0.3:
                self._write(peer, machine, partition, copies)
            if mine.get(partition) == copies.epoch and not copies.opened:
                told.append((partition, copies.epoch))
            late = [one for one in silent if self._since(machine.me, partition, one)]
            if self.accuses and late and self.extra.random() < 0.2:
                self._accuse(machine, partition, late)
        if told and self.extra.random() < 0.2:
            machine.propose(next(self._requests), EpochsOpened(opened=tuple(told)))

    def _silent_of(
        self, author: Incarnation, partition: int, copies: PartitionCopies
    ) -> list[Incarnation]:
        """Who of a set does not answer its author, under the same epoch."""
        silent = []
        for listed in copies.in_sync:
            machine = self._awake_now(listed.member)
            if (
                machine is None
                or machine.me != listed
                or machine.topology.partitions[partition].epoch != copies.epoch
                or not self._exchange(author.member, listed.member)
            ):
                silent.append(listed)
                self._silent.setdefault((author, partition, listed), self.time)
            else:
                self._silent.pop((author, partition, listed), None)
        return silent

    def _since(self, author: Incarnation, partition: int, silent: Incarnation) -> bool:
        return self.time - self._silent[author, partition, silent] > PATIENCE_SECONDS

    def _open(self, partition: int, copies: PartitionCopies) -> None:
        held = [self.held[listed.member] for listed in copies.in_sync]
        everywhere = set.intersection(*(one[partition] for one in held))
        for one in held:
            one[partition] = set(everywhere)

    def _write(
        self, peer: Peer, machine: Agreement, partition: int, copies: PartitionCopies
    ) -> None:
        """Let those that are reached hold a write; it is acknowledged if that is everybody."""
        write = next(self._writes)
        silent = self._silent_of(machine.me, partition, copies)
        for listed in copies.in_sync:
            if listed not in silent:
                self.held[listed.member][partition].add(write)
        alone = len(copies.in_sync) == 1
        if not silent and (not alone or machine.may_serve(partition, peer.clock(self.time))):
            self.acknowledged[partition].add(write)

    def _accuse(self, machine: Agreement, partition: int, accused: list[Incarnation]) -> None:
        """Ask for a set without some copies: in place, or by a takeover (I3, I4)."""
        copies = machine.topology.partitions[partition]
        guards = (Guard(partition, copies.epoch, copies.changed),)
        change: TopologyChange
        if copies.opened:
            change = CopiesRemoved(copy=self.extra.choice(accused), partitions=(partition,))
        else:
            left = tuple(one for one in copies.in_sync if one not in accused)
            epoch = copies.epoch + 1
            change = Takeover(partition=partition, epoch=epoch, author=machine.me, in_sync=left)
        request = next(self._requests)
        self._asked[machine.me, request] = partition
        machine.propose(request, change, guards)

    def _done(self, peer: Peer, ready: Ready) -> None:
        assert peer.machine is not None
        for refusal in ready.refused:
            partition = self._asked.get((peer.machine.me, refusal.request))
            if partition is None or refusal.reason != GIVE_IT_UP:
                continue
            if peer.machine.is_author(peer.machine.topology.partitions[partition]):
                peer.machine.release(partition)
        super()._done(peer, ready)

    def meddle(self, random: Random) -> None:
        """Have some author accuse or release for no reason, or break a line, or nothing."""
        running = [peer for peer in self.peers.values() if peer.machine is not None]
        authored = [
            (peer, peer.machine, partition, copies)
            for peer in running
            if peer.machine is not None
            for partition, copies in enumerate(peer.machine.topology.partitions)
            if peer.machine.is_author(copies)
        ]
        if not authored:
            return super().meddle(random)
        peer, machine, partition, copies = random.choice(authored)
        others = [listed for listed in copies.in_sync if listed != machine.me]
        match random.randrange(5):
            case 0 if others:
                self._accuse(machine, partition, [random.choice(others)])
            case 1:
                machine.release(partition)
            case 2 if len(self.peers) > 1:
                self.bad.add(frozenset(random.sample(sorted(self.peers), 2)))
            case _:
                super().meddle(random)
        if peer.machine is not None:
            self._drive(peer)
        return None

    def settled(self) -> bool:
        return super().settled() and (
            not self.opens or all(copies.opened for copies in self.truth.partitions)
        )

    # -------------------------------------------------------------- checks

    def _seen(self, decision: Decision) -> None:
        super()._seen(decision)
        while (following := self.decided.get(self.truth.index + 1)) is not None:
            self._follow(following)

    def _follow(self, decision: Decision) -> None:
        before = self.truth
        for change in decision.changes:
            after = applied(
                replace(before, index=decision.index - 1), Decision(decision.index, (change,))
            )
            for partition, pair in enumerate(
                zip(before.partitions, after.partitions, strict=False)
            ):
                check_sets(partition, *pair, after)
            before = after
        self.truth = applied(self.truth, decision)
        if before != self.truth:
            raise Violation(f"its changes one by one come to something else: {decision}")

    def check(self) -> None:
        super().check()
        for partition, copies in enumerate(self.truth.partitions):
            for listed in copies.in_sync:
                lost = self.acknowledged[partition] - self.held[listed.member][partition]
                if lost:
                    raise Violation(f"{listed} lacks {len(lost)} writes of partition {partition}")

    def _post(self, target: UUID, envelope: Envelope) -> None:
        message = envelope.message
        if isinstance(message, Propose) and message.decision not in self._proposed:
            self._proposed.add(message.decision)
            machine = self.peers[envelope.sender.member].machine
            if self.by_deaths and machine is not None:
                self._check_deaths(machine.topology, message.decision)
        super()._post(target, envelope)

    def _check_deaths(self, before: Topology, decision: Decision) -> None:
        """(S2) Of what is proposed: who stays in a set has outlived who is dropped from it."""
        if decision.index != before.index + 1:
            return
        after = applied(before, decision)
        for last, next_ in zip(before.partitions, after.partitions, strict=True):
            kept = {listed.member for listed in next_.in_sync}
            stays = next_.in_sync if next_.epoch > last.epoch else (next_.author,)
            for gone in last.in_sync:
                ends = self._died.get(gone)
                if gone.member in kept or ends is None:
                    continue
                for one in stays:
                    if self._died.get(one, self.time + 1) <= ends:
                        raise Violation(f"{gone} is dropped for {one}, which died with it")


def check_sets(
    partition: int, before: PartitionCopies, after: PartitionCopies, topology: Topology
) -> None:
    """Raise unless one change leaves a set as the rules say (I1, I4, I5, S3)."""

    def require(holds: bool, what: str) -> None:
        if not holds:
            raise Violation(f"partition {partition}: {what}: {before} and then {after}")

    require(bool(after.in_sync), "its set is empty")
    require(after.author in after.in_sync or not after.epoch, "its author is not in its set")
    left = [one for one in before.in_sync if one in after.in_sync]
    if after.epoch == before.epoch:
        require(after.author == before.author, "one epoch has two authors")
        require([*after.in_sync] == left, "its set does not only shrink within an epoch")
        require(after.in_sync == before.in_sync or before.opened, "it shrinks and is not open")
        require(after.opened or not before.opened, "it is closed again")
        return
    require(after.epoch == before.epoch + 1, "its epoch does not follow")
    require(not after.opened, "its new epoch is open at once")
    listed = {one.member for one in after.in_sync}
    require(listed <= {one.member for one in before.in_sync}, "somebody is listed who was not")
    require(all(map(topology.is_present, after.in_sync)), "somebody is listed who is not there")
    if any(map(topology.is_present, before.in_sync)):
        require([*after.in_sync] == left, "somebody stale is listed, though somebody stayed")


def deaths(seed: int, members: int = 3, seconds: float = 6) -> CopiesNet:
    """Let members die, several at one moment, and come back; nothing else goes wrong."""
    random = Random(seed)
    net = CopiesNet(seed, members, partitions=6, backups=2, timing=QUICK)
    net.by_deaths = True
    net.start_all()
    numbers = range(1, members + 1)
    while net.time < seconds:
        net.run(random.uniform(0.02, 1.2))
        alive = [number for number in numbers if net[number].machine is not None]
        if random.random() < 0.5:
            net.kill(*random.sample(alive, random.randint(min(1, len(alive)), len(alive))))
        else:
            dead = [number for number in numbers if number not in alive]
            net.start(*(number for number in dead if random.random() < 0.7))
    net.start(*(number for number in numbers if net[number].machine is None))
    net.run_until(net.settled, 12)
    return net
