"""Transactions of several groups among three members, through words that get lost and logs that
are full: what is so at one group is so at all, and clients are told what is so.

Each partition has one copy.  Which words arrive, and when, is drawn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from random import Random
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from support.group_transactions import AUTHORS, BOB, CID, ME, key_in, name_in, topology
from support.primaries import MAP, Primary
from tidelog.affinity.topology import Incarnation
from tidelog.engine.net.frames import Message
from tidelog.engine.net.kinds import BY_NUMBER
from tidelog.engine.node.commits import ReadVersion, WantedCommit
from tidelog.engine.node.tasks import Tasks
from tidelog.engine.node.transactions import Transactions
from tidelog.errors import CommitUnknownError
from tidelog.wal.records import Run

MEMBERS = (ME, BOB, CID)
KEYS = 3


class Member(Primary):
    """One member, and all its roles."""

    def __init__(self, me: Incarnation, cluster: Cluster) -> None:
        super().__init__(me, {p: (one,) for p, one in AUTHORS.items() if one == me})
        outflow: Any = SimpleNamespace(
            tell=lambda member, message: cluster.sent(me, member, message)
        )
        self.all = Transactions(
            me, self.files, self.log, self.partitions, self.streams, outflow, lambda: self.now,
            lambda _point: None, Tasks(),
        )  # fmt: skip
        self.leases.topology = topology()
        self.all.decided(topology())
        for partition in self.copies:
            self.all.opened(partition)


class Client:
    """A transaction, what it wants, and what its client was told."""

    def __init__(self, number: int, wanted: WantedCommit) -> None:
        self.number, self.wanted = number, wanted
        self.told: list[Exception | None] = []

    def done(
        self, error: Exception | None, _time: int, _logged: bytes, _runs: Sequence[Run]
    ) -> None:
        self.told.append(error)

    @property
    def value(self) -> bytes:
        return b"by %d" % self.number


class Cluster:
    """Three members, and the words between them."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.lines: dict[tuple[Incarnation, UUID], deque[Message]] = {}
        self.lossy = True
        self.members = {one.member: Member(one, self) for one in MEMBERS}
        self.clients: list[Client] = []
        self.applied: dict[int, set[int]] = {}
        """The partitions in which a transaction was seen to have taken effect."""

    def sent(self, sender: Incarnation, to: UUID, message: Message) -> None:
        self.lines.setdefault((sender, to), deque()).append(message)

    def at(self, partition: int) -> Member:
        return self.members[AUTHORS[partition].member]

    def begin(self) -> None:
        """Let a client write some keys, and rest on others that it has read."""
        random, number = self.random, len(self.clients) + 1
        places = random.sample(range(6), random.randint(2, 4))
        written = places[: random.randint(1, len(places))]
        keys = {p: random.randrange(KEYS) for p in places}
        reads = [p for p in places if p not in written or random.random() < 0.5]
        is_stale = random.random() < 0.1
        client = Client(
            number,
            WantedCommit(
                tx_id=number.to_bytes(16, "big"), attempt=1, given=None, tag=None,
                reads=tuple(
                    ReadVersion(
                        p, key_in(p, keys[p]),
                        (1, 99) if is_stale else self.at(p).version(key_in(p, keys[p])),
                    )
                    for p in reads
                ),
                ranges=(),
                writes={
                    key_in(p, keys[p]): (p, MAP, name_in(p, keys[p]), b"by %d" % number)
                    for p in written
                },
                epochs=tuple((p, 1) for p in places),
            ),
        )  # fmt: skip
        self.clients.append(client)
        home = min(written)
        at = self.at(home)
        at.all.near.begin(client.wanted, home, at.now + 5.0, client.done)

    def step(self) -> None:
        """Let one thing happen."""
        random = self.random
        member = random.choice(list(self.members.values()))
        match random.randrange(12):
            case 0:
                self.begin()
            case 1 | 2 | 3:
                self.carry(member)
            case 4:
                for one in self.members.values():
                    one.now += random.choice([0.05, 0.3, 1.1])
                member.all.tick()
                self.carry(member, syncs=True)
            case 5 if self.lossy and random.random() < 0.1:
                member.leases.held = not member.leases.held
            case 6 if self.lossy and random.random() < 0.3:
                member.writer.fails = OSError(28, "no space")
            case _:
                for _ in range(random.randint(1, 6)):
                    self.deliver()

    def carry(self, member: Member, *, syncs: bool = False) -> None:
        """Let a log write; ends have no sync of their own, so members sync now and then."""
        if syncs:
            member.sync()
        else:
            member.carry()
        for partition in member.copies:
            for number in range(KEYS):
                value = member.value(key_in(partition, number))
                if value is not None:
                    self.applied.setdefault(int(value[3:]), set()).add(partition)

    def deliver(self) -> None:
        lines = [line for line, waiting in self.lines.items() if waiting]
        if not lines:
            return
        sender, to = self.random.choice(lines)
        waiting = self.lines[sender, to]
        if self.lossy and self.random.random() < 0.03:
            waiting.clear()  # the connection broke
            return
        self.members[to].all.arrived(sender, waiting.popleft())

    def settle(self) -> None:
        """Let everything go on until nothing is left, with nothing lost any more."""
        self.lossy = False
        for one in self.members.values():
            one.leases.held, one.writer.fails = True, None
        for _ in range(400):
            while any(self.lines.values()):
                self.deliver()
            for one in self.members.values():
                one.now += 0.3
                self.carry(one)
                one.all.tick()
                self.carry(one, syncs=True)
            if not any(self.lines.values()) and self.is_quiet():
                return
        raise AssertionError(f"not everything has settled: {self.lines}")

    def is_quiet(self) -> bool:
        return all(
            one.all.locks.idle and not one.state.copies.remembered
            and "leads 0" in repr(one.all.near)
            for one in self.members.values()
        )  # fmt: skip


@pytest.mark.parametrize("seed", range(16))
def test_what_is_so_at_one_group_is_so_at_all_and_is_what_clients_are_told(seed: int) -> None:
    cluster = Cluster(seed)
    for _ in range(250):
        cluster.step()
    cluster.settle()
    versions: dict[tuple[int, tuple[int, int]], int] = {}
    for client in cluster.clients:
        written = {row[0] for row in client.wanted.writes.values()}
        applied = cluster.applied.get(client.number, set())
        [error] = client.told
        if error is None:
            assert written == applied, "it was told that it has committed"
        elif not isinstance(error, CommitUnknownError):
            assert applied == set(), "it was told that it has not"
        assert applied in (set(), written)
        if applied:
            for read in client.wanted.reads:
                if read.full_key in client.wanted.writes:
                    # Nobody else has replaced the same version: one of both would be lost.
                    key = int.from_bytes(read.full_key, "big"), read.version
                    assert versions.setdefault(key, client.number) == client.number


def test_something_of_everything_happens() -> None:
    kinds, ends = set[str](), set[str]()
    for seed in range(5):
        cluster = Cluster(seed)
        sent = cluster.sent

        def noted(sender: Incarnation, to: UUID, message: Message, sent: Any = sent) -> None:
            kinds.add(BY_NUMBER[message[0]].name)
            sent(sender, to, message)

        cluster.sent = noted  # type: ignore[method-assign]
        for _ in range(250):
            cluster.step()
        cluster.settle()
        ends |= {type(client.told[0]).__name__ for client in cluster.clients}
    assert kinds >= {
        "lock", "locked", "unlock", "confirm", "confirmed", "prepare", "prepared", "refused",
        "decision", "question", "settled", "forget",
    }  # fmt: skip
    assert ends >= {"NoneType", "ConflictError", "RoutedError"}
