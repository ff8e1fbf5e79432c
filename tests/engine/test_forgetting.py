"""How commits of several groups are remembered and forgotten: no network, no disk, no clock."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from support.fold_scripts import record_of
from tidelog.affinity.partitions import one_space
from tidelog.affinity.table import PartitionRow
from tidelog.affinity.topology import Incarnation, KnownMember, PartitionCopies, Topology
from tidelog.checkpoints.replay import State
from tidelog.engine.net.kinds import BY_NUMBER
from tidelog.engine.node.log import Haste
from tidelog.engine.node.prepared import EndCommit
from tidelog.engine.node.settling import PAUSE_S, TELL_S, Settling
from tidelog.engine.node.tx_messages import told_of
from tidelog.wal.records import PrepareRecord

ME, BOB, NEAR = (Incarnation(UUID(int=number), 1) for number in (1, 2, 3))
COMMITS = (b"A".ljust(16, b"."), b"B".ljust(16, b"."))


class Around:
    """The primary of partition 0, which is the collector; BOB has partition 1, NEAR leads."""

    def __init__(self) -> None:
        self.now, self.queue = 10.0, list[EndCommit]()
        self.told: list[tuple[Incarnation, str, Any]] = []
        self.under_way: set[tuple[int, bytes]] = set()
        self.served, self.hastes = {0}, list[Haste]()
        self.state = State(b"s" * 16, one_space(2))
        log: Any = SimpleNamespace(state=self.state, put=self._put, fold=self._fold)
        partitions: Any = SimpleNamespace(is_open=self.served.__contains__, epoch=lambda _one: 1)
        works: Any = SimpleNamespace(
            prepared=list, at=lambda *one: one if one in self.under_way else None
        )
        participating: Any = SimpleNamespace()
        post: Any = SimpleNamespace(tell=self._tell)
        self.settling = Settling(works, log, partitions, participating, post, lambda: self.now)
        self.here = participating
        self.decide()
        self.settling.opened(0)

    def _put(self, commit: EndCommit, haste: Haste) -> None:
        self.queue.append(commit)
        self.hastes.append(haste)

    def _fold(self, records: Any, then: Any) -> None:
        for record in records:
            self.state.apply(0, record)
        then()

    def _tell(self, to: Incarnation, message: Any) -> None:
        self.told.append((to, BY_NUMBER[message[0]].name, told_of(message)))

    def decide(self, *away: Incarnation) -> None:
        members = {
            one.member: KnownMember(
                member=one.member, address="", since=1, boot=1, present=one not in away
            )
            for one in (ME, BOB, NEAR)
        }
        partitions = tuple(
            PartitionCopies(
                row=PartitionRow(partition=at, version=1, replicas=(one.member,)),
                epoch=1, author=one, in_sync=(one,), changed=1, opened=True,
            )
            for at, one in enumerate((ME, BOB))
        )  # fmt: skip
        self.settling.decided(Topology(index=1, members=members, partitions=partitions))

    def commit(self, name: str, number: int, *, everywhere: bool = True) -> bytes:
        """Let a transaction of both partitions commit here, on every copy if not told otherwise."""
        prepare = record_of(f"prepare {name} p0 e1 #{number} with p1: k=1")
        assert isinstance(prepare, PrepareRecord)
        self.state.apply(1, prepare._replace(near=(NEAR.member.bytes, 1)))
        runs = f"p0 e1 #{number}+1, p1 e1 #{number}+1"
        self.state.apply(2, record_of(f"commit {name} time 7: {runs}; here p0"))
        tx_id = COMMITS["AB".index(name)]
        if everywhere:
            self.here.committed_here(0, tx_id)
        return tx_id

    def tick(self, seconds: float = TELL_S) -> list[tuple[Incarnation, str, Any]]:
        self.now += seconds
        self.told.clear()
        self.settling.tick()
        return list(self.told)

    def carry(self) -> None:
        """Let what is queued get into the log, and take effect."""
        queue, self.queue = self.queue, []
        for commit in queue:
            assert commit.record is not None
            commit.record(1)
            assert commit.then is not None
            commit.then()
            commit.decided()

    def remembered(self) -> list[bytes]:
        return sorted(self.state.copies.remembered.get(0, {}))


def test_a_commit_is_forgotten_once_all_have_its_end_and_its_leader_waits_no_more() -> None:
    around = Around()
    tx_id = around.commit("A", 1)
    assert around.tick() == [(ME, "settled", [(0, 0, tx_id)])]
    around.settling.settled(ME, [(0, 0, tx_id)])
    assert around.tick() == [], "another partition may not have its end"
    around.settling.settled(BOB, [(0, 1, tx_id)])
    assert around.tick() == [(NEAR, "ask-over", ([tx_id],))]
    around.told.clear()
    around.settling.over([tx_id])
    around.settling.over([tx_id])
    around.settling.forget([(0, tx_id)])
    around.settling.write_forgotten()
    around.settling.forget([(0, tx_id)])
    around.settling.write_forgotten()
    assert len(around.queue) == 1, "once"
    assert (around.told, around.remembered()) == ([], [tx_id])
    around.carry()
    assert around.told == [(BOB, "forget", [(1, tx_id)])], "behind its own"
    assert around.remembered() == []
    assert around.tick(9.0) == []


def test_who_has_gone_is_not_asked_what_is_over() -> None:
    around = Around()
    tx_id = around.commit("A", 1)
    for partition in (0, 1):
        around.settling.settled(ME, [(0, partition, tx_id)])
    around.decide(NEAR)
    told = [(to, kind) for to, kind, _ in around.tick()]
    assert told == [(ME, "settled")]
    around.carry()
    assert around.told[1:] == [(BOB, "forget", [(1, tx_id)])]
    assert around.remembered() == []


def test_what_is_settled_is_told_again_after_pauses_that_grow() -> None:
    around = Around()
    tx_id = around.commit("A", 1)
    times = []
    for _ in range(40):
        if around.tick():
            times.append(around.now)
    pauses = [later - now for now, later in pairwise(times)]
    assert pauses == [PAUSE_S, 2 * PAUSE_S, 4 * PAUSE_S]
    assert around.remembered() == [tx_id]


def test_of_what_is_forgotten_nothing_is_left() -> None:
    # Each one stayed in a set for as long as the epoch lasted, some in two.
    around = Around()
    for number, name in enumerate("AB", 1):
        tx_id = around.commit(name, number)
        around.tick()
        for partition in (0, 1):
            around.settling.settled(ME, [(0, partition, tx_id)])
        around.settling.over([tx_id])
        around.settling.write_forgotten()
        around.settling.settled(ME, [(0, 0, tx_id)])  # said again meanwhile
        around.settling.forget([(0, tx_id)])
        around.settling.write_forgotten()
        around.carry()
        around.tick()
    settling = around.settling
    assert (settling._going, settling._due, settling._having, settling._ripe) == (
        set(), {}, {}, {},
    )  # fmt: skip
    assert settling._everywhere == {0: set()}


def test_what_did_not_get_into_the_log_may_be_forgotten_later() -> None:
    around = Around()
    tx_id = around.commit("A", 1)
    around.settling.forget([(0, tx_id)])
    around.settling.write_forgotten()
    [lost] = around.queue
    around.queue.clear()
    assert lost.undo is not None
    lost.undo()
    around.settling.forget([(0, tx_id)])
    around.settling.write_forgotten()
    around.carry()
    assert around.remembered() == []


def test_who_asks_to_forget_what_nobody_remembers_is_told_to() -> None:
    around = Around()
    around.settling.settled(BOB, [(0, 1, COMMITS[0])])
    assert around.told == [(BOB, "forget", [(1, COMMITS[0])])]
    around.told.clear()
    around.under_way = {(0, COMMITS[0])}
    around.settling.settled(BOB, [(0, 1, COMMITS[0])])
    assert around.told == [], "it is not known here yet"
    around.settling.settled(BOB, [(1, 0, COMMITS[0])])
    assert around.told == [], "that partition is served elsewhere"


def test_a_new_author_settles_what_is_remembered() -> None:
    around = Around()
    tx_id = around.commit("A", 1)
    around.settling.sealed(0)
    assert around.tick(9.0) == []
    around.settling.opened(0)
    assert around.tick() == [(ME, "settled", [(0, 0, tx_id)])]


def test_what_every_copy_has_behind_a_seal_is_for_the_next_author_to_tell() -> None:
    around = Around()
    tx_id = around.commit("A", 1, everywhere=False)
    around.settling.sealed(0)
    around.here.committed_here(0, tx_id)
    assert around.tick() == []


def test_a_collector_asks_those_that_have_not_told_it() -> None:
    around = Around()
    tx_id = around.commit("A", 1)
    settled, asked = (ME, "settled", [(0, 0, tx_id)]), (BOB, "ask-settled", [(0, 1, tx_id)])
    assert around.tick() == [settled], "they are about to tell it"
    assert around.tick(PAUSE_S) == [settled, asked]
    around.settling.settled(BOB, [(0, 1, tx_id)])
    assert around.tick(2 * PAUSE_S) == [settled]


def test_a_collector_that_asks_is_told_what_every_copy_has_and_what_was_forgotten() -> None:
    around = Around()
    tx_id, lagging = around.commit("A", 1), around.commit("B", 2, everywhere=False)
    gone, under_way = b"C".ljust(16, b"."), b"D".ljust(16, b".")
    around.under_way = {(0, under_way)}
    asked = [(1, 0, one) for one in (tx_id, lagging, gone, under_way)]
    around.settling.asked_settled(BOB, asked)
    assert around.told == [(BOB, "settled", [(1, 0, tx_id), (1, 0, gone)])]
    around.told.clear()
    around.settling.asked_settled(BOB, [(1, 0, lagging), (0, 1, gone)])
    assert around.told == [], "a copy lacks the one, and the other is of another member"
    around.served.clear()
    around.settling.asked_settled(BOB, asked)
    assert around.told == [], "whoever serves it next knows"


def test_of_what_another_collector_lets_be_forgotten_nothing_is_left() -> None:
    # It was the collector that had heard of some partitions, and of this one not yet.
    for everywhere in (True, False):
        around = Around()
        tx_id = around.commit("A", 1, everywhere=everywhere)
        around.settling.settled(BOB, [(0, 1, tx_id)])
        around.settling.forget([(0, tx_id)])
        around.settling.write_forgotten()
        around.carry()
        if everywhere:
            around.tick()
        else:
            around.settling.settled(BOB, [(0, 1, tx_id)])
        assert around.settling._having == {}


def test_what_another_partition_of_the_collector_forgets_is_not_forgotten_by_all() -> None:
    around = Around()
    tx_id = around.commit("A", 1)
    around.state.apply(3, record_of("prepare A p1 e1 #1 with p0: k=1"))
    around.state.apply(4, record_of("commit A time 7: p0 e1 #1+1, p1 e1 #1+1; here p1"))
    around.served.add(1)
    for partition in (0, 1):
        around.settling.settled(ME, [(0, partition, tx_id)])
    around.settling.forget([(1, tx_id)])
    around.settling.write_forgotten()
    around.carry()
    assert around.told == []
    assert (NEAR, "ask-over", ([tx_id],)) in around.tick()


def test_what_is_forgotten_waits_for_what_is_written_anyway() -> None:
    around = Around()
    around.settling.forget([(0, around.commit("A", 1))])
    around.settling.write_forgotten()
    assert around.hastes == [Haste.COURTESY]
