"""Members agree, whoever crashes, pauses, or is cut off: the machines alone, in virtual time.

Each rule of PROTOCOL's sections 5 and 6 that prevents a failure is taken out once, by replacing one
function: the checks then have to find the failure.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, strategies as st

from support.agreement_net import QUICK, Net, Violation, begun, member, storm
from tidelog.affinity.changes import (
    Decision,
    MemberGone,
    NamespaceDropped,
    NamespaceMade,
    Takeover,
    TopologyChange,
    Touched,
)
from tidelog.affinity.folding import applied
from tidelog.affinity.takeovers import takeovers_due
from tidelog.affinity.topology import Incarnation, Topology
from tidelog.engine.agreement import coordinator, machine
from tidelog.engine.agreement.candidacy import Candidacy
from tidelog.engine.agreement.coordinator import Coordinator
from tidelog.engine.agreement.identity import DiskIdentity
from tidelog.engine.agreement.leases import CoordinatorLease, PrimaryLease
from tidelog.engine.agreement.machine import Agreement
from tidelog.engine.agreement.messages import (
    Accepted,
    AskPromise,
    Decided,
    Envelope,
    Fetch,
    Guard,
    Pong,
    Propose,
    Term,
)
from tidelog.engine.agreement.timing import Timing
from tidelog.engine.agreement.voter import Voter
from tidelog.engine.agreement.waits import Waits

EVENLY = Timing(drift=0.1)


def settled(members: int = 3, *, timing: Timing | None = None, **options: Any) -> Net:
    """A cluster that has begun, and serves."""
    net = Net(1, members, timing=timing or EVENLY, **options)
    net.start_all()
    net.run_until(net.settled, 5)
    return net


def leader(net: Net) -> int:
    (peer,) = net.leaders_now()
    return peer.id.int


# ------------------------------------------------------------------ as users see it


def test_a_new_cluster_serves_within_a_second() -> None:
    net = settled()
    assert net.time < 1
    assert {net.serving(partition)[0] for partition in range(4)} == set(net.peers)


def test_the_oldest_member_leads_first() -> None:
    assert leader(settled(5)) == 1


def test_another_member_leads_soon_if_the_coordinator_dies() -> None:
    net = settled()
    net.kill(leader(net))
    begun = net.time
    net.run_until(lambda: bool(net.leaders_now()), 5)
    assert net.time - begun < net.timing.lease + 3 * net.timing.rank_pause


def test_a_partition_of_one_copy_waits_for_its_member() -> None:
    net = settled()
    (owner,) = net.serving(1)
    net.kill(owner.int)
    net.run(5)
    assert net.serving(1) == []
    assert net.serving(0) != []
    net.start(owner.int)
    net.run_until(net.settled, 5)
    assert net.serving(1) == [owner]
    assert net.machine(1).topology.partitions[1].epoch == 2


def test_a_whole_cluster_that_lost_its_power_comes_back() -> None:
    net = settled(5)
    before = net.machine(1).topology.index
    net.power_cut(1, 2, 3, 4, 5)
    net.start_all()
    net.run_until(net.settled, 6)
    assert net.machine(1).topology.index > before


def test_the_side_without_a_majority_knows_it_and_serves_nothing() -> None:
    net = settled(5)
    first, second = leader(net), leader(net) % 5 + 1
    rest = [number for number in range(1, 6) if number not in (first, second)]
    net.cut([first, second], rest)
    net.run(4)
    for number in (first, second):
        peer = net[number]
        assert peer.machine is not None
        now = peer.clock(net.time)
        assert not peer.machine.reaches_majority(now)
        assert not any(peer.machine.may_serve(partition, now) for partition in range(4))
    (peer,) = net.leaders_now()
    assert peer.id.int in rest
    net.heal()
    net.run_until(net.settled, 6)


def test_a_member_far_behind_is_told_the_topology() -> None:
    net = settled()
    behind = 3 if leader(net) != 3 else 2
    net.kill(behind)
    for number in range(machine.DECISIONS_MAX + 1):
        net.propose(leader(net), number, Touched(partition=0))
        net.run(0.05)
    net.start(behind)
    net.run_until(net.settled, 5)
    assert net.machine(behind).topology == net.machine(leader(net)).topology
    # What it kept from before does not join on to what follows, and is told to nobody.
    net.propose(leader(net), 999, Touched(partition=0))
    net.run_until(net.settled, 5)
    kept = [decision.index for decision in net.machine(behind).decisions_kept()]
    newest = net.machine(behind).topology.index
    assert kept == list(range(newest + 1 - len(kept), newest + 1))
    assert len(kept) < 5


def test_a_decision_is_told_to_all_at_once() -> None:
    # Whoever had to ask for it would know of it a heartbeat later.
    net = settled(timing=Timing(heartbeat=0.4))
    first, told = leader(net), set()
    index = net.machine(first).topology.index + 1

    def seen(envelope: Envelope, target: UUID) -> bool:
        if isinstance(envelope.message, Decided) and envelope.message.decisions:
            told.add(target)
        return isinstance(envelope.message, Fetch)

    net.dropped = seen
    net.propose(first, 1, Touched(partition=0))
    net.run(0.1)
    assert told == {member(number) for number in (1, 2, 3) if number != first}
    assert [net.machine(number).topology.index for number in (1, 2, 3)] == [index] * 3


def test_a_coordinator_with_nothing_to_decide_makes_no_topology(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net = settled()
    monkeypatch.setattr(coordinator, "applied", None)
    net.run(1)
    assert net.settled()


# ------------------------------------------------------------------ storms


@pytest.mark.parametrize("seed", range(20))
def test_members_agree_through_a_storm(seed: int) -> None:
    storm(seed)


@pytest.mark.parametrize("seed", [11, 19, 31, 33, 59])
def test_members_agree_through_a_slow_storm(seed: int) -> None:
    """11, 31, 33, 59: a late word of a joining was taken for one of an old disk."""
    storm(seed, Timing(), seconds=30)


@pytest.mark.nightly
def test_members_agree_through_many_storms() -> None:
    for seed in range(2_000):
        storm(seed)
        storm(seed, Timing(), seconds=30)


def test_a_seed_gives_the_same_storm_each_time() -> None:
    assert storm(3).decided == storm(3).decided


# ------------------------------------------------------------------ rules taken out


def find(seeds: int = 100, **options: Any) -> None:
    for seed in range(seeds):
        storm(seed, **options)


def test_c2_what_may_be_decided_is_adopted(monkeypatch: pytest.MonkeyPatch) -> None:
    def scenario() -> None:
        net = settled(3, timing=QUICK)
        old = leader(net)
        others = [number for number in (1, 2, 3) if number != old]
        index = net.machine(old).topology.index + 1
        net.cut([old], [others[0]])
        net.dropped = lambda envelope, _target: isinstance(envelope.message, Decided)
        net.propose(old, 1, Touched(partition=0))
        net.run_until(lambda: index in net.decided, 1)  # by the old one and others[1]
        net.kill(old)
        net.dropped = lambda _envelope, _target: False
        net.heal()
        net.run_until(lambda: net.machine(others[0]).topology.index >= index, 5)

    scenario()
    monkeypatch.setattr(Candidacy, "to_adopt", lambda _self, _topology: None)
    with pytest.raises(Violation, match="two decisions"):
        scenario()


def adopting() -> None:
    """A takeover is accepted by one member, whose next coordinator reaches the old author again."""
    timing = Timing(member_timeout=1.4)
    net = settled(5, partitions=5, backups=1, timing=timing)
    old = leader(net)
    lost, last, *rest = [number for number in range(1, 6) if number != old]
    net.cut([lost], [old, last, *rest])
    net.dropped = lambda envelope, target: (
        isinstance(envelope.message, Propose) and target.int not in (old, last)
    )
    net.run_until(lambda: accepted_takeover(net, last), 5)
    net.kill(old)
    net.heal()
    net.dropped = lambda envelope, _target: (
        (isinstance(envelope.message, AskPromise) and envelope.sender.member.int != last)
        or isinstance(envelope.message, Propose)
    )
    net.run_until(lambda: bool(net.leaders_now()), 9)
    net.run(0.6)
    net.cut([lost], [old, last, *rest])
    net.dropped = lambda _envelope, _target: False
    net.run(4)


def accepted_takeover(net: Net, number: int) -> bool:
    accepted = net.machine(number).voter.accepted
    return accepted is not None and any(
        isinstance(change, Takeover) for change in accepted.decision.changes
    )


def test_c2_no_lease_is_given_while_something_is_adopted(monkeypatch: pytest.MonkeyPatch) -> None:
    adopting()
    monkeypatch.setattr(
        Coordinator, "adopting", property(lambda _: False, lambda _, __: None), raising=False
    )
    with pytest.raises(Violation, match="is served by"):
        adopting()


def test_c3_a_decision_needs_a_majority(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Coordinator.accepted

    def at_once(self: Coordinator, who: UUID, index: int, topology: Any) -> Any:
        for each in topology.baseline:
            if (decision := real(self, each, index, topology)) is not None:
                return decision
        return None

    def alone() -> None:
        net = settled(timing=QUICK)
        first = leader(net)
        net.cut([first], [number for number in (1, 2, 3) if number != first])
        net.propose(first, 1, Touched(partition=0))
        net.run(4)

    alone()
    monkeypatch.setattr(Coordinator, "accepted", at_once)
    with pytest.raises(Violation, match="two decisions"):
        alone()


def unsynced() -> None:
    """All have accepted, nobody has synced it; then all lose their power."""
    net = settled(3, timing=QUICK)
    index = net.machine(1).topology.index + 1
    net.sync = (9, 9)
    net.propose(leader(net), 1, Touched(partition=0))
    net.run(0.15)
    net.power_cut(1, 2, 3)
    net.sync = (0.001, 0.001)
    net.start_all()
    net.run_until(lambda: index in net.decided and net.settled(), 9)


def test_what_is_told_is_durable_first(monkeypatch: pytest.MonkeyPatch) -> None:
    unsynced()
    monkeypatch.setattr(machine.Agreement, "_rests_on_notes", staticmethod(lambda _: False))
    with pytest.raises(Violation, match="two decisions"):
        unsynced()


def test_l2_who_answered_a_ping_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Voter, "hold", lambda _self, _until: None)
    with pytest.raises(Violation, match="is served by"):
        apart()


def test_l2_who_was_started_again_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    def granted(net: Net) -> bool:
        asker, asked = net[2], net.machine(1)
        question = AskPromise(term=Term(9, member(2)), sure=True)
        envelope = Envelope(
            sender=Incarnation(member(2), 2),
            nonce=asker.disk.identity.fresh,
            cluster=asked.topology.cluster,
            decided=asked.topology.index,
            message=question,
        )
        asked.step(envelope, net[1].clock(net.time))
        return asked.voter.promised == question.term

    net = settled()
    net.power_cut(1, 2, 3)
    net.start(1)
    assert not granted(net)
    net.time += net.timing.lease / net[1].rate + 0.001
    assert granted(net)
    monkeypatch.setattr(Voter, "hold", lambda _self, _until: None)
    net.power_cut(1)
    net.start(1)
    assert granted(net)


def apart() -> None:
    """A coordinator and a primary are cut off from the other three, together."""
    net = settled(5, timing=QUICK, backups=2)
    first = leader(net)
    second = first % 5 + 1
    net.cut([first, second], [number for number in range(1, 6) if number not in (first, second)])
    net.run(6)
    net.heal()
    net.run_until(net.settled, 8)


def test_l3_nobody_renews_a_lease_without_a_majority(monkeypatch: pytest.MonkeyPatch) -> None:
    apart()

    def newest(self: CoordinatorLease, _baseline: object) -> int:
        return max(self._answered.values(), default=0)

    monkeypatch.setattr(CoordinatorLease, "newest", newest)
    with pytest.raises(Violation, match="is served by"):
        apart()


def test_l3_a_primary_counts_from_its_own_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(self: PrimaryLease, term: object, number: int, now: float) -> None:
        self._answers[term, number] = now + 2

    monkeypatch.setattr(PrimaryLease, "answering", late)
    with pytest.raises(Violation, match="is served by"):
        apart()


def test_l4_a_partition_waits_for_the_lease_of_its_last_primary(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def at_once(topology: Topology, _may_move: object, **known: Any) -> list[Takeover]:
        return takeovers_due(topology, **known)

    monkeypatch.setattr(coordinator, "takeovers_due", at_once)
    with pytest.raises(Violation, match="is served by"):
        find()


def losing() -> None:
    """A silent primary is heard again while the takeover of its partitions is being accepted."""
    net = settled(3, timing=Timing(member_timeout=1.4), backups=1)
    first = leader(net)
    silent, other = [number for number in (1, 2, 3) if number != first]
    leading = net.machine(first)

    def proposed() -> bool:
        coordinator = leading._leading
        assert coordinator is not None
        return coordinator.proposed is not None and len(coordinator.proposed.changes) > 1

    net.dropped = lambda envelope, _target: (
        isinstance(envelope.message, Accepted)
        or (isinstance(envelope.message, Pong) and envelope.sender.member == member(silent))
    )
    net.run_until(proposed, 5)
    net.dropped = lambda envelope, _target: isinstance(envelope.message, Accepted)
    net.run(0.6)
    net.dropped = lambda _envelope, _target: False
    net.cut([silent], [first, other])
    net.run(3)


def test_l4_who_is_about_to_lose_a_partition_gets_no_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """It got one while the takeover was accepted, and not yet decided."""
    losing()
    real = Coordinator.propose

    def lenient(self: Coordinator, decision: Decision, topology: Topology) -> None:
        real(self, decision, topology)
        self._losing.clear()

    monkeypatch.setattr(Coordinator, "propose", lenient)
    with pytest.raises(Violation, match="is served by"):
        losing()


def test_l4_who_lost_a_partition_gets_leases_for_the_others_once_that_is_decided() -> None:
    # Else it served nothing until the next decision, whenever that is.
    topology = settled().machine(1).topology
    author = topology.partitions[0].author
    me, heir = (one for one in map(member, (1, 2, 3)) if one != author.member)
    leading = Coordinator(Incarnation(me, 1), Term(1, me), EVENLY, 0.0, None, Waits(1.0))
    takeover = Takeover(
        partition=0,
        epoch=topology.partitions[0].epoch + 1,
        author=Incarnation(heir, 1),
        in_sync=(Incarnation(heir, 1),),
    )
    leading.propose(Decision(topology.index + 1, (takeover,)), topology)
    number = leading.begin_round(0.0)
    for one in (1, 2, 3):
        pong = Pong(term=leading.term, round=number, votes=True, promised=leading.term, end=1)
        leading.heard(Incarnation(member(one), 1), pong, 0.1)
    assert author not in [holder for holder, _, _ in leading.leases_due(topology, 0.1)]
    assert leading.accepted(member(1), topology.index + 1, topology) is None
    assert leading.accepted(member(2), topology.index + 1, topology) is not None
    assert [holder for holder, _, _ in leading.leases_due(topology, 0.2)] == [author]


RATES = st.floats(0.9, 1.1)
DELAYS = st.floats(0, 0.5)


def overlap(member_rate: float, coordinator_rate: float, primary_rate: float, delay: float) -> bool:
    """Whether a primary's lease outlives the promise on which it rests, by real time.

    At 0 a coordinator sends a round, which a member answers at once: its clock decides until when
    it promises nothing else.  After a while the coordinator hands out what is left.
    """
    timing = Timing()
    promised_until = timing.lease / member_rate
    lease = CoordinatorLease(timing)
    number = lease.begin_round(0.0)
    lease.answered(member(1), number)
    seconds = lease.hand_out(Incarnation(member(1), 1), [(member(1),)], delay * coordinator_rate)
    primary = PrimaryLease(timing)
    primary.answering("term", number, 0.0)
    primary.granted("term", number, seconds)
    return primary.end / primary_rate > promised_until + 1e-9


@given(one=RATES, other=RATES, third=RATES, delay=DELAYS)
def test_l1_clocks_may_drift(one: float, other: float, third: float, delay: float) -> None:
    assert not overlap(one, other, third, delay)


def test_l1_without_an_allowance_for_drift_leases_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Timing, "scaled", lambda _self, seconds: seconds)
    assert overlap(1.1, 0.9, 0.9, 0.1)


# ------------------------------------------------------------------ disks


def old_image() -> Net:
    """A member's disk is put back as it was one start ago; only a dead member knows more."""
    net = settled(3, timing=QUICK)
    old = leader(net)
    image, other = [number for number in (1, 2, 3) if number != old]
    kept = net[image].disk.copy()
    net.kill(image)
    net.start(image)
    net.run_until(net.settled, 8)
    old = leader(net)
    other = 6 - image - old
    index = net.machine(old).topology.index + 1
    net.cut([other], [old, image])
    net.propose(old, 1, Touched(partition=0))
    net.run_until(lambda: index in net.decided, 1)
    net.run(0.1)  # until what was sent meanwhile is lost
    net.power_cut(old, image)
    net[image].disk = kept
    net.heal()
    net.start(image)
    net.run(6)
    return net


def test_c1_an_old_image_of_a_disk_has_no_vote(monkeypatch: pytest.MonkeyPatch) -> None:
    net = old_image()
    assert net.leaders_now() == []
    for place in ("candidacy", "coordinator", "machine"):
        monkeypatch.setattr(f"tidelog.engine.agreement.{place}.misfit", lambda *_: None)
    monkeypatch.setattr("tidelog.engine.agreement.machine.is_impostor", lambda *_: False)
    with pytest.raises(Violation, match="two decisions"):
        old_image()


def test_c7_an_old_image_is_refused_in_words() -> None:
    net = settled()
    one = 3 if leader(net) != 3 else 2
    kept = net[one].disk.copy()
    for _ in range(2):
        net.kill(one)
        net.start(one)
        net.run_until(net.settled, 8)
    net.kill(one)
    net[one].disk = kept
    net.start(one)
    net.run_until(lambda: net.machine(one).refusal is not None, 5)
    assert "was started 3 times, and this disk counts 2" in str(net.machine(one).refusal)


def test_c7_a_copy_of_a_disk_that_counts_the_same_boot_is_not_listened_to() -> None:
    """It was taken for the member that it is a copy of: only its nonce tells them apart."""
    net = settled()
    one = 3 if leader(net) != 3 else 2
    net.kill(one)
    copy = net[one].disk.copy()
    net.start(one)
    net.run_until(net.settled, 8)
    net.kill(one)
    net[one].disk = copy
    net.start(one)
    assert net.machine(one).me.boot == 2
    net.run_until(lambda: net.machine(one).refusal is not None, 5)
    assert "it is an old image, or a copy" in str(net.machine(one).refusal)


def test_c7_two_crashes_during_a_start_are_no_old_image() -> None:
    net = settled()
    one = 3 if leader(net) != 3 else 2
    for _ in range(2):
        net.kill(one)
        net.start(one)
        net.run(0.001)
    net.kill(one)
    net.start(one)
    net.run_until(net.settled, 8)
    assert net.machine(one).me == Incarnation(member(one), 4)


# ------------------------------------------------------------------ C5, C6, C10


def test_c5_who_hears_nothing_but_is_heard_disturbs_nobody() -> None:
    net = settled(5)
    first = leader(net)
    deaf = first % 5 + 1
    term = net.machine(first).coordinator
    net.cut([first], [deaf], both=False)
    net.dropped = lambda envelope, target: target == member(deaf)
    net.run(10)
    assert leader(net) == first
    assert net.machine(first).coordinator == term


def test_c6_a_change_made_from_what_is_not_so_any_more_is_refused() -> None:
    net = settled()
    first, other = leader(net), leader(net) % 3 + 1
    topology = net.machine(other).topology
    copies = topology.partitions[0]
    guards = (Guard(0, copies.epoch, copies.changed),)
    asker = net.machine(other)
    for request in (1, 2):
        asker.propose(request, Touched(partition=0), guards)
        net._drive(net[other])
        net.run(0.5)
    assert net.machine(first).topology.index == topology.index + 1
    asker.propose(3, Touched(partition=0), (Guard(len(topology.partitions), 1, 1),))
    asker.propose(4, Touched(partition=0), (Guard(-1, copies.epoch, topology.index + 1),))
    net._drive(net[other])
    net.run(0.5)
    assert net.machine(first).topology.index == topology.index + 1
    asker.propose(5, MemberGone(incarnation=Incarnation(member(other), 99)))
    net._drive(net[other])
    net.run(0.5)
    assert net.machine(first).topology.index == topology.index + 1


def test_c6_a_change_of_maps_that_is_asked_for_twice_is_decided_once() -> None:
    net = settled()
    first, other = leader(net), leader(net) % 3 + 1
    asker, after = net.machine(other), net.machine(other).topology.index
    made = NamespaceMade(
        name="m", key_codec="k", key_version=1, value_codec="v", value_version=1, space=0
    )
    dropped = NamespaceDropped(name="m")

    def ask(request: int, change: TopologyChange, after: int) -> list[str]:
        asker.propose(request, change, after=after)
        net._drive(net[other])
        net.run(0.5)
        return [known.name for known in net.machine(first).topology.namespaces.values()]

    assert ask(1, made, after) == ["m"]
    assert ask(2, dropped, after + 1) == []
    assert ask(1, made, after) == []
    assert ask(3, made, after + 2) == ["m"]
    assert ask(2, dropped, after + 1) == ["m"]
    net.machine(first)._decisions.clear()  # nobody knows what was decided
    assert ask(4, dropped, after + 2) == ["m"]
    assert ask(5, dropped, after + 3) == []


def test_a_member_of_another_cluster_is_not_heard() -> None:
    net = settled()
    first = net.machine(leader(net))
    index = first.topology.index
    stranger = Accepted(term=first.coordinator, index=index + 1, promised=first.coordinator)
    envelope = Envelope(
        sender=Incarnation(member(2), 1),
        nonce=net[2].disk.identity.fresh,
        cluster=UUID(int=9),
        decided=index,
        message=stranger,
    )
    before = first.ready()
    first.step(envelope, 0.0)
    first.step(replace(envelope, decided=99), 0.0)
    assert first.topology.index == index
    assert before is None or first.ready() is None


@pytest.mark.parametrize(("boot", "waits"), [(1, False), (2, True)])
def test_l2_a_disk_that_was_started_before_may_have_promised_a_lease(
    boot: int, waits: bool
) -> None:
    # Also one that ended before it heard of any decision but the first.
    voter = Voter()
    one = Agreement(
        disk=DiskIdentity(member=member(1), boot=boot),
        address="host1:7400",
        topology=applied(Topology(), begun(3, 4)),
        voter=voter,
        timing=EVENLY,
        uniform=lambda: 0.0,
        now=100.0,
    )
    later = Term(1, member(2))
    assert voter.would_promise(later, 100.0) is not waits
    assert voter.would_promise(later, 100.0 + EVENLY.lease)
    assert one.next_tick() <= 100.0 + EVENLY.lease + 3 * EVENLY.rank_pause
    assert (one._stand_at >= 100.0 + EVENLY.lease) is waits, "its own vote would be none"


@pytest.mark.parametrize(("index", "votes"), [(3, True), (2, False)])
def test_c3_what_cannot_be_accepted_is_not_said_to_be(index: int, votes: bool) -> None:
    first = applied(Topology(), begun(3, 4))
    one = Agreement(
        disk=DiskIdentity(member=member(1), boot=1),
        address="host1:7400",
        topology=first,
        voter=Voter(may_vote=votes),
        timing=EVENLY,
        uniform=lambda: 0.5,
        now=0.0,
    )
    decision = Decision(index, (Touched(partition=0),))
    proposal = Envelope(
        sender=Incarnation(member(2), 1),
        nonce=b"",
        cluster=first.cluster,
        decided=1,
        message=Propose(term=Term(1, member(2)), decision=decision),
    )
    one.step(proposal, 0.0)
    assert one.ready() is None
    assert one.voter.accepted is None
