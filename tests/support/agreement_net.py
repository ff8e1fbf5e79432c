"""Members that agree over a network of their own: pure machines, with faults that a seed decides.

Real time is virtual, and each member has a clock that runs wrong by at most ``drift``.  Messages
are delayed, lost, doubled and reordered; members crash, lose what they had not synced, come back,
and pause.  At every step the checks of PROTOCOL look at all members at once:

(5) an index has one decided decision;
(6) by real time, a partition has one primary with a lease.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from random import Random
from uuid import UUID

from tidelog.affinity.changes import Begun, Decision, TopologyChange, Touched
from tidelog.affinity.folding import applied
from tidelog.affinity.partitions import Space
from tidelog.affinity.topology import Topology
from tidelog.engine.agreement.identity import DiskIdentity
from tidelog.engine.agreement.machine import Agreement, Ready
from tidelog.engine.agreement.messages import (
    NO_TERM,
    Acceptance,
    Envelope,
    Note,
    PromisedTerm,
    Term,
)
from tidelog.engine.agreement.timing import Timing
from tidelog.engine.agreement.voter import Voter

CLUSTER, STORE, HISTORY = UUID(int=0xC1), UUID(int=0xC2), UUID(int=0xC3)

TICK_MIN, TICK_MAX = 0.005, 0.05
"""Seconds between two ticks of a member."""


class Violation(AssertionError):  # noqa: N818  # what a check finds, not an error of the caller
    """A check failed."""


def member(number: int) -> UUID:
    return UUID(int=number)


def begun(members: int, partitions: int, backups: int = 0) -> Decision:
    """The first decision of a cluster of members 1, 2, 3 ..."""
    ids = [member(number) for number in range(1, members + 1)]
    rows = tuple(
        tuple(ids[(partition + index) % members] for index in range(backups + 1))
        for partition in range(partitions)
    )
    first = Begun(
        cluster=CLUSTER,
        store=STORE,
        history=HISTORY,
        members=tuple((one, f"host{place}:7400") for place, one in enumerate(ids, 1)),
        spaces=(Space(0, partitions, backups),),
        rows=rows,
    )
    return Decision(1, (first,))


@dataclass
class Disk:
    """What a member has noted; the last ``unsynced`` notes may be lost in a crash."""

    identity: DiskIdentity
    notes: list[Note] = field(default_factory=list)
    synced: int = 0

    def copy(self) -> Disk:
        return Disk(self.identity, list(self.notes), self.synced)

    def crash(self, random: Random) -> None:
        del self.notes[random.randint(self.synced, len(self.notes)) :]
        self.synced = len(self.notes)

    def read(self) -> tuple[Topology, list[Decision], Term, Acceptance | None]:
        """What a start finds."""
        topology = Topology()
        decisions: list[Decision] = []
        promised, accepted = NO_TERM, None
        for note in self.notes:
            if isinstance(note, PromisedTerm):
                promised = max(promised, note.term)
            elif isinstance(note, Acceptance):
                promised, accepted = max(promised, note.term), note
            elif isinstance(note, Topology):
                topology = note
                decisions.clear()
            else:
                topology = applied(topology, note)
                decisions.append(note)
        if accepted is not None and accepted.decision.index <= topology.index:
            accepted = None
        return topology, decisions, promised, accepted


class Peer:
    """A member: its disk, its clock, and its machine while it runs."""

    def __init__(self, number: int, disk: Disk, random: Random, drift: float) -> None:
        self.id = member(number)
        self.disk = disk
        self.rate = 1 + random.uniform(-drift, drift)
        self.offset = random.uniform(0, 1000)
        self.machine: Agreement | None = None
        self.paused_until = 0.0
        self.looked_at: Topology | None = None
        self.starts = 0

    def clock(self, time: float) -> float:
        return self.offset + time * self.rate

    def time_of(self, clock: float) -> float:
        return (clock - self.offset) / self.rate


class Net:
    """A cluster in virtual time."""

    def __init__(
        self,
        seed: int,
        members: int = 3,
        partitions: int = 4,
        backups: int = 0,
        timing: Timing | None = None,
        drift: float | None = None,
    ) -> None:
        self.random = Random(seed)
        self.timing = timing or Timing()
        self.time = 0.0
        self.loss = 0.0
        self.doubled = 0.0
        self.delay = (0.001, 0.01)
        self.sync = (0.0005, 0.005)
        self.blocked: set[tuple[UUID, UUID]] = set()
        self.decided: dict[int, Decision] = {}
        self.leaders: dict[Term, UUID] = {}
        self.dropped: Callable[[Envelope, UUID], bool] = lambda _envelope, _target: False
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        first = begun(members, partitions, backups)
        spread = self.timing.drift if drift is None else drift
        self.peers = {}
        for number in range(1, members + 1):
            disk = Disk(DiskIdentity(member=member(number)), [first], 1)
            self.peers[member(number)] = Peer(number, disk, self.random, spread)
        self._seen(first)

    def __getitem__(self, number: int) -> Peer:
        return self.peers[member(number)]

    def machine(self, number: int) -> Agreement:
        found = self[number].machine
        assert found is not None
        return found

    # -------------------------------------------------------------- members

    def start(self, *numbers: int) -> None:
        for number in numbers:
            self._start(self[number])

    def start_all(self) -> None:
        self.start(*range(1, len(self.peers) + 1))

    def _start(self, peer: Peer) -> None:
        topology, decisions, promised, accepted = peer.disk.read()
        nonce = self.random.randbytes(8)
        peer.disk.identity = peer.disk.identity.started(topology, nonce)
        peer.starts += 1
        peer.machine = Agreement(
            disk=peer.disk.identity,
            address=f"{peer.id}",
            topology=topology,
            voter=Voter(promised=promised, accepted=accepted),
            timing=self.timing,
            uniform=self.random.random,
            now=peer.clock(self.time),
            decisions=decisions,
        )
        self._tick_later(peer, peer.starts)

    def kill(self, *numbers: int) -> None:
        """Crash members; of what they had not synced, any beginning is left."""
        for number in numbers:
            self[number].machine = None
            self[number].disk.crash(self.random)

    def power_cut(self, *numbers: int) -> None:
        """Crash members; nothing is left of what they had not synced."""
        for number in numbers:
            self[number].machine = None
            del self[number].disk.notes[self[number].disk.synced :]

    def pause(self, number: int, seconds: float) -> None:
        self[number].paused_until = self.time + seconds

    def cut(self, side: Iterable[int], other: Iterable[int], *, both: bool = True) -> None:
        """Let nothing pass from one side to the other, nor back."""
        for one in map(member, side):
            for another in map(member, other):
                self.blocked.add((one, another))
                if both:
                    self.blocked.add((another, one))

    def heal(self) -> None:
        self.blocked.clear()

    def meddle(self, random: Random) -> None:
        """Have some member ask for a change: of nothing."""
        running = [peer for peer in self.peers.values() if peer.machine is not None]
        if running:
            peer = random.choice(running)
            partitions = len(begun_partitions(self))
            assert peer.machine is not None
            peer.machine.propose(0, Touched(partition=random.randrange(partitions)))
            self._drive(peer)

    def propose(self, number: int, request: int, change: TopologyChange) -> None:
        peer = self[number]
        assert peer.machine is not None
        peer.machine.propose(request, change)
        self._drive(peer)

    # -------------------------------------------------------------- time

    def run(self, seconds: float) -> None:
        end = self.time + seconds
        while self._events and self._events[0][0] <= end:
            self.time, _, event = heapq.heappop(self._events)
            event()
            self.check()
        self.time = end

    def run_until(self, condition: Callable[[], bool], within: float) -> None:
        end = self.time + within
        while not condition():
            if not self._events or self._events[0][0] > end:
                raise Violation(f"not within {within} s: {self}")
            self.run(self._events[0][0] - self.time)

    def _at(self, time: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._numbers), event))

    def _between(self, bounds: tuple[float, float]) -> float:
        return self.time + self.random.uniform(*bounds)

    def _awake(self, peer: Peer, start: int, event: Callable[[], None]) -> bool:
        """Whether a member runs since a start; what it sleeps through comes later."""
        if peer.machine is None or peer.starts != start:
            return False
        if peer.paused_until > self.time:
            self._at(peer.paused_until, event)
            return False
        return True

    def _tick_later(self, peer: Peer, start: int) -> None:
        assert peer.machine is not None

        def tick() -> None:
            if self._awake(peer, start, tick):
                assert peer.machine is not None
                peer.machine.tick(peer.clock(self.time))
                self._drive(peer)
                self._tick_later(peer, start)

        due = peer.time_of(peer.machine.next_tick())
        self._at(min(max(due, self.time + TICK_MIN), self.time + TICK_MAX), tick)

    # -------------------------------------------------------------- messages and notes

    def _drive(self, peer: Peer) -> None:
        assert peer.machine is not None
        ready = peer.machine.ready()
        if ready is None:
            return
        start = peer.starts
        peer.disk.notes += ready.notes
        for outgoing in ready.send:
            self._post(outgoing.target, outgoing.envelope)

        def done() -> None:
            if self._awake(peer, start, done):
                self._done(peer, ready)

        self._at(self._between(self.sync) if ready.notes else self.time, done)

    def _done(self, peer: Peer, ready: Ready) -> None:
        assert peer.machine is not None
        if ready.notes:
            peer.disk.synced = len(peer.disk.notes)
        for outgoing in ready.send_durable:
            self._post(outgoing.target, outgoing.envelope)
        peer.machine.advance(peer.clock(self.time))
        if peer.machine.gone:
            self._start(peer)
        self._drive(peer)

    def _post(self, target: UUID, envelope: Envelope) -> None:
        times = 1 + (self.random.random() < self.doubled)
        for _ in range(times):
            if self.random.random() >= self.loss and not self.dropped(envelope, target):
                self._at(self._between(self.delay), lambda: self._deliver(target, envelope))

    def _deliver(self, target: UUID, envelope: Envelope) -> None:
        peer = self.peers.get(target)
        if peer is None or peer.machine is None:
            return
        if (envelope.sender.member, target) in self.blocked:
            return

        def event() -> None:
            self._deliver(target, envelope)

        if self._awake(peer, peer.starts, event):
            peer.machine.step(envelope, peer.clock(self.time))
            self._drive(peer)

    # -------------------------------------------------------------- checks

    def _seen(self, decision: Decision) -> None:
        """Check (5)."""
        known = self.decided.setdefault(decision.index, decision)
        if known != decision:
            raise Violation(f"two decisions {decision.index}: {known} and {decision}")

    def check(self) -> None:
        for peer in self._running():
            machine = peer.machine
            assert machine is not None
            if machine.topology is not peer.looked_at:
                peer.looked_at = machine.topology
                for decision in machine.decisions_kept():
                    self._seen(decision)
            if machine.leads:
                known = self.leaders.setdefault(machine.coordinator, peer.id)
                if known != peer.id:
                    raise Violation(f"two coordinators of {machine.coordinator}")
        for partition in range(len(begun_partitions(self))):
            self.serving(partition)

    def serving(self, partition: int) -> list[UUID]:
        """Who may serve a partition now; check (6)."""
        found = [
            peer.id
            for peer in self._running()
            if peer.machine is not None and peer.machine.may_serve(partition, peer.clock(self.time))
        ]
        if len(found) > 1:
            raise Violation(f"partition {partition} is served by {found} at {self.time}")
        return found

    def _running(self) -> Iterator[Peer]:
        return (peer for peer in self.peers.values() if peer.machine is not None)

    def leaders_now(self) -> list[Peer]:
        return [peer for peer in self._running() if peer.machine and peer.machine.leads]

    def settled(self) -> bool:
        """Whether one member leads, all are present and know the same, and all is served."""
        machines = [peer.machine for peer in self.peers.values() if peer.machine]
        return (
            len(self.leaders_now()) == 1
            and len(machines) == len(self.peers)
            and all(machine.topology.is_present(machine.me) for machine in machines)
            and len({machine.topology.index for machine in machines}) == 1
            and all(self.serving(p) for p in range(len(machines[0].topology.partitions)))
        )

    def __repr__(self) -> str:
        told = [
            f"{str(peer.id)[-2:]}:{'-' if peer.machine is None else peer.machine.topology}"
            f"{'*' if peer.machine and peer.machine.leads else ''}"
            for peer in self.peers.values()
        ]
        return f"<Net {self.time:.3f} s {' '.join(told)}>"


# ------------------------------------------------------------------ storms

QUICK = Timing(heartbeat=0.05, member_timeout=0.2, rank_pause=0.02, restart_wait=0.5)
"""Members are taken for dead long before a lease of theirs ends: the leases alone keep order."""


def storm(
    seed: int,
    timing: Timing | None = None,
    seconds: float = 12,
    members: int = 5,
    backups: int | None = None,
    make: type[Net] = Net,
) -> Net:
    """Run a cluster through faults that a seed decides, then without any until it has settled."""
    random = Random(seed * 7 + 1)
    timing = timing or QUICK
    slow = timing.member_timeout / 0.4
    some = random.choice([0, 1, 2])
    backups = some if backups is None else backups
    net = make(seed, members, partitions=6, backups=backups, timing=timing)
    net.loss, net.doubled = random.choice([0, 0.02, 0.1]), random.choice([0, 0.1])
    net.delay = random.choice([(0.001, 0.01), (0.001, 0.1 * slow)])
    net.sync = random.choice([(0.0005, 0.005), (0.001, 0.1 * slow)])
    net.start_all()
    numbers = range(1, members + 1)
    while net.time < seconds:
        net.run(random.uniform(0.02, 0.6) * slow)
        one = random.choice(numbers)
        match random.randrange(8):
            case 0 if net[one].machine is not None:
                net.kill(one)
            case 1 | 2:
                net.start(*(n for n in numbers if net[n].machine is None and random.random() < 0.7))
            case 3:
                net.pause(one, random.uniform(0, 1.5) * slow)
            case 4:
                side = random.sample(numbers, random.randrange(1, members))
                other = [number for number in numbers if number not in side]
                net.cut(side, other, both=random.random() < 0.6)
            case 5:
                net.heal()
            case 6 if random.random() < 0.3:
                net.kill(*(number for number in numbers if net[number].machine is not None))
            case _:
                net.meddle(random)
    net.heal()
    net.loss = net.doubled = 0
    net.delay, net.sync = (0.001, 0.01), (0.0005, 0.005)
    net.start(*(number for number in numbers if net[number].machine is None))
    net.run_until(net.settled, 12)  # check (8)
    return net


def begun_partitions(net: Net) -> tuple[object, ...]:
    first = net.decided[1].changes[0]
    assert isinstance(first, Begun)
    return first.rows
