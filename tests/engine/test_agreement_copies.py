"""Members agree on who holds partitions with backups: whoever dies, accuses or releases.

Each rule of PROTOCOL's sections 7, 10 and 13 that prevents a failure is taken out once, by
replacing one function: the checks then have to find the failure.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from support.agreement_copies import CopiesNet, deaths
from support.agreement_net import Violation, member, storm
from tidelog.affinity import takeovers
from tidelog.affinity.changes import (
    CopiesRemoved,
    Decision,
    EpochsOpened,
    Joined,
    MemberGone,
    Takeover,
    TopologyChange,
)
from tidelog.affinity.folding import ChangeError, _Draft
from tidelog.affinity.topology import Incarnation, PartitionCopies, Topology
from tidelog.engine.agreement import coordinator, machine
from tidelog.engine.agreement.answers import Answers
from tidelog.engine.agreement.coordinator import GIVE_IT_UP, Coordinator
from tidelog.engine.agreement.machine import Agreement
from tidelog.engine.agreement.messages import (
    ChangeRefused,
    Envelope,
    Guard,
    Pong,
    ProposeChange,
    Release,
    Term,
)
from tidelog.engine.agreement.timing import Timing
from tidelog.engine.agreement.waits import Waits

SLOW = Timing(restart_wait=5)


def opened(members: int = 3, *, timing: Timing = SLOW, **options: Any) -> CopiesNet:
    """A cluster of sets of three that serves, with epochs that are known to be open."""
    net = CopiesNet(1, members, backups=2, timing=timing, **options)
    net.start_all()
    net.run_until(net.settled, 5)
    return net


def leader(net: CopiesNet) -> int:
    (peer,) = net.leaders_now()
    return peer.id.int


def serving(net: CopiesNet, partition: int, author: int) -> bool:
    copies = net.truth.partitions[partition]
    return copies.opened and net.serving(partition) == [member(author)]


def led_by_another(net: CopiesNet) -> tuple[int, int]:
    """A partition that the coordinator is a backup of, and its author."""
    first = leader(net)
    copies = next(one for one in net.truth.partitions if one.author.member != member(first))
    return copies.row.partition, copies.author.member.int


def listed(net: CopiesNet, partition: int) -> set[int]:
    return {one.member.int for one in net.truth.partitions[partition].in_sync}


def changes(net: CopiesNet, kind: type[TopologyChange]) -> list[tuple[int, Any]]:
    """What was decided of a kind, with the index of its decision."""
    return [
        (index, change)
        for index, decision in sorted(net.decided.items())
        for change in decision.changes
        if isinstance(change, kind)
    ]


def asked(
    net: CopiesNet, sender: int, change: TopologyChange, guards: tuple[Guard, ...] = ()
) -> str | None:
    """Why a change that a member asks for is refused; None if it is decided."""
    reasons: list[str] = []

    def note(envelope: Envelope, _target: UUID) -> bool:
        if isinstance(envelope.message, ChangeRefused):
            reasons.append(envelope.message.reason)
        return False

    net.dropped = note
    net.machine(sender).propose(1, change, guards)
    net._drive(net[sender])
    net.run(0.3)
    return reasons[0] if reasons else None


# ------------------------------------------------------------------ storms


@pytest.mark.parametrize("members", [3, 5])
@pytest.mark.parametrize("seed", range(8))
def test_sets_are_kept_through_a_storm(seed: int, members: int) -> None:
    storm(seed, members=members, backups=2, make=CopiesNet)


@pytest.mark.parametrize("members", [3, 5])
@pytest.mark.parametrize("seed", range(8))
def test_sets_are_kept_through_deaths_at_one_moment(seed: int, members: int) -> None:
    deaths(seed, members)


@pytest.mark.nightly
def test_sets_are_kept_through_many_storms() -> None:
    for seed in range(1_000):
        for members in (3, 5):
            storm(seed, members=members, backups=2, make=CopiesNet)
            deaths(seed, members)


# ------------------------------------------------------------------ C10, I1


def test_c10_who_is_gone_leaves_all_open_sets_in_the_same_decision() -> None:
    net = opened()
    gone = leader(net) % 3 + 1
    net.accuses = False
    net.power_cut(gone)
    net.run_until(lambda: bool(changes(net, MemberGone)), 3)
    ((index, removed),) = changes(net, CopiesRemoved)
    assert index == changes(net, MemberGone)[0][0]
    assert removed.copy == Incarnation(member(gone), 1)
    mine = [p for p, copies in enumerate(net.truth.partitions) if copies.author == removed.copy]
    assert sorted({*range(4)} - {*removed.partitions}) == mine


def test_c10_a_member_that_refuses_connections_costs_one_round_trip() -> None:
    """Its primaries answered the next round of pings, which began a heartbeat later only."""
    net = opened()
    first, gone = leader(net), leader(net) % 3 + 1
    rounds = net.machine(first)._leading
    assert rounds is not None
    begun = rounds.lease.round
    net.run_until(lambda: rounds.lease.round > begun, 1)  # the next one comes a heartbeat later
    net.accuses = False
    net.power_cut(gone)
    net.machine(first).unreachable(member(gone))
    net.run(0.1)
    assert all(gone not in listed(net, p) for p in range(4) if not is_by(net, p, gone))


def is_by(net: CopiesNet, partition: int, author: int) -> bool:
    return net.truth.partitions[partition].author.member == member(author)


def together() -> None:
    """All of a set die at one moment, the author noticed first; they come back much later.

    The last answers of the others were to a later round than that of the author, and its lease ends
    before they are missed.
    """
    net = opened(7, partitions=7, timing=Timing(member_timeout=2, restart_wait=5))
    net.accuses = False
    first = leader(net)
    copies = next(
        copies
        for copies in net.truth.partitions
        if member(first) not in {one.member for one in copies.in_sync}
    )
    partition, author = copies.row.partition, copies.author.member
    before = listed(net, partition)
    net.dropped = lambda envelope, _target: (
        isinstance(envelope.message, Pong) and envelope.sender.member == author
    )
    net.run(SLOW.heartbeat + 0.1)
    net.power_cut(*before)
    net.machine(first).unreachable(author)
    net.dropped = lambda _envelope, _target: False
    net.run(4)
    if listed(net, partition) != before:
        raise Violation(f"of {before} only {listed(net, partition)} are listed")
    net.start(*before)
    net.run_until(lambda: serving(net, partition, author.int), 3)
    assert listed(net, partition) == before


def answered_later(answers: Answers, kept: Incarnation, gone: Incarnation) -> bool:
    return answers._rounds.get(kept, 0) > answers._rounds.get(gone, 0)


@pytest.mark.parametrize("lenient", [lambda *_: True, answered_later], ids=["any", "any answer"])
def test_i1_members_of_a_set_that_die_together_are_not_dropped(
    lenient: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    together()
    monkeypatch.setattr(Answers, "outlived", lenient)
    with pytest.raises(Violation, match="are listed"):
        together()


def left_alone() -> None:
    """The only one of a set dies, while the others of its row are there."""
    net = opened()
    first = leader(net)
    partition, author = led_by_another(net)
    other = 6 - first - author
    net.power_cut(first, other)
    net.start(first, other)
    net.run_until(lambda: listed(net, partition) == {author} and bool(net.leaders_now()), 9)
    net.run_until(lambda: serving(net, partition, author), 5)
    net.power_cut(author)
    net.run(8)
    assert net.serving(partition) == []
    net.start(author)
    net.run_until(net.settled, 9)
    assert net.serving(partition) == [member(author)]


def test_i1_a_partition_without_its_set_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    left_alone()

    def anybody(topology: Topology, copies: PartitionCopies, _waited: object) -> list[Incarnation]:
        known = [topology.members[one] for one in copies.row.replicas if one is not None]
        return [one.incarnation for one in known if one.present]

    monkeypatch.setattr(takeovers, "_who_came_back", anybody)
    with pytest.raises(ChangeError, match="is not of the last in-sync set"):
        left_alone()


# ------------------------------------------------------------------ I3


def bad_links(others: int) -> CopiesNet:
    """A primary exchanges no data with some of its copies, and all reach the coordinator."""
    net = opened()
    partition, author = led_by_another(net)
    copies = [number for number in (1, 2, 3) if number != author][:others]
    net.bad.update(frozenset((member(author), member(number))) for number in copies)
    writes = len(net.acknowledged[partition])
    epoch = net.truth.partitions[partition].epoch
    net.run_until(lambda: len(net.acknowledged[partition]) > writes + 3, 5)
    moved = net.truth.partitions[partition].epoch > epoch
    if moved != (others == 2):
        raise Violation(f"it is now {net.truth.partitions[partition]}")
    return net


def test_i3_one_bad_link_does_not_block() -> None:
    """The primary goes on without the copy that it does not reach."""
    net = bad_links(1)
    assert net.settled()


def test_i3_a_primary_that_reaches_less_than_its_copies_gives_it_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net = bad_links(2)
    partition = changes(net, Takeover)[-1][1].partition
    assert len(listed(net, partition)) == 2
    monkeypatch.setattr(Answers, "reaches_more", lambda *_: False)
    with pytest.raises(Violation, match="it is now"):
        bad_links(2)


def test_i3_an_answer_to_an_accusation_says_to_give_it_up() -> None:
    net = opened()
    net.opens = False
    partition, author = led_by_another(net)
    copies = net.truth.partitions[partition]
    (accused, _) = (one for one in copies.in_sync if one != copies.author)
    net.bad.update(frozenset((member(author), one.member)) for one in copies.in_sync)
    net.run(1)
    for sender, reason in ((author, GIVE_IT_UP), (accused.member.int, "only that one asks")):
        change = CopiesRemoved(copy=accused, partitions=(partition,))
        guards = (Guard(partition, copies.epoch, copies.changed),)
        assert reason in str(asked(net, sender, change, guards))
    assert net.truth.partitions[partition] == copies


# ------------------------------------------------------------------ I4, I5


def dies_unopened() -> None:
    """A copy dies for good before the epoch is open that lists it; its author accuses nobody."""
    net = opened()
    first = leader(net)
    gone = first % 3 + 1
    net.opens = net.accuses = False
    net.power_cut(1, 2, 3)
    net.start_all()
    net.run_until(lambda: all(copies.epoch == 2 for copies in net.truth.partitions), 9)
    net.run_until(lambda: bool(net.leaders_now()), 5)
    gone = leader(net) % 3 + 1
    net.power_cut(gone)
    net.opens = True
    net.run_until(lambda: all(copies.opened for copies in net.truth.partitions), 9)
    assert all(gone not in listed(net, partition) for partition in range(4))
    kept = [copies for copies in net.truth.partitions if copies.epoch == 3]
    assert len(kept) == 4


def test_i4_a_takeover_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    dies_unopened()
    monkeypatch.setattr(takeovers, "_cannot_open", lambda *_: False)
    with pytest.raises(Violation, match="not within"):
        dies_unopened()


def test_i4_while_an_epoch_is_not_open_its_set_does_not_shrink(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def in_place(topology: Topology, *_: object) -> list[CopiesRemoved]:
        return [
            CopiesRemoved(copy=one, partitions=(partition,))
            for partition in topology.diminished
            for one in topology.partitions[partition].in_sync
            if one not in topology.present
        ]

    monkeypatch.setattr(coordinator, "removals_due", in_place)
    with pytest.raises(ChangeError, match="is not known to be open: it takes a takeover"):
        dies_unopened()


def back_at_once() -> None:
    """A backup is started again before anybody noticed that it was away."""
    net = opened()
    gone = leader(net) % 3 + 1
    net.power_cut(gone)
    net.start(gone)
    net.run_until(net.settled, 9)
    assert all(gone not in listed(net, partition) for partition in range(4))


def test_i5_who_is_started_again_is_in_no_set(monkeypatch: pytest.MonkeyPatch) -> None:
    back_at_once()
    real = _Draft.apply

    def still_listed(self: _Draft, change: TopologyChange) -> None:
        real(self, change)
        again = {}
        if isinstance(change, Joined):
            again[change.incarnation.member] = change.incarnation
        for partition, copies in enumerate(self._partitions):
            listed = tuple(again.get(one.member, one) for one in copies.in_sync)
            self._partitions[partition] = replace(copies, in_sync=listed)

    monkeypatch.setattr(_Draft, "apply", still_listed)
    with pytest.raises(Violation, match="does not only shrink within an epoch"):
        back_at_once()


# ------------------------------------------------------------------ S2, S3


def all_restarted(late: int) -> CopiesNet:
    """A whole cluster loses its power; one member comes back later than the others."""
    net = opened()
    net.power_cut(1, 2, 3)
    net.start(*(number for number in (1, 2, 3) if number != late))
    net.run(4)
    return net


def waits_for_all() -> None:
    net = all_restarted(late=3)
    net.start(3)
    net.run_until(net.settled, 9)
    for partition in range(4):
        if listed(net, partition) != {1, 2, 3}:
            raise Violation(f"only {listed(net, partition)} are listed")


def test_s2_a_whole_set_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waits_for_all()
    real = takeovers.takeovers_due

    def at_once(topology: Topology, may_move: Any, **known: Any) -> list[Takeover]:
        return real(topology, may_move, **{**known, "waited": takeovers.surely})

    monkeypatch.setattr(coordinator, "takeovers_due", at_once)
    with pytest.raises(Violation, match="are listed"):
        waits_for_all()


def opens_without() -> None:
    net = all_restarted(late=3)
    assert all(copies.epoch == 1 for copies in net.truth.partitions)
    net.run_until(
        lambda: all(copies.opened and copies.epoch == 2 for copies in net.truth.partitions),
        SLOW.restart_wait,
    )
    assert all(listed(net, partition) == {1, 2} for partition in range(4))


def test_s2_a_whole_set_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    opens_without()

    def only_all(topology: Topology, copies: PartitionCopies, _waited: object) -> list[Incarnation]:
        known = [topology.members[one.member] for one in copies.in_sync]
        return [one.incarnation for one in known] if all(one.present for one in known) else []

    monkeypatch.setattr(takeovers, "_who_came_back", only_all)
    with pytest.raises(Violation, match="not within"):
        opens_without()


def opens_though_coordinators_change() -> None:
    net = all_restarted(late=3)
    for _ in range(2):
        net.run(2)
        peer = net[leader(net)]
        net.machine(peer.id.int)._resign(peer.clock(net.time))
        net._drive(peer)
    net.run_until(lambda: all(one.epoch == 2 for one in net.truth.partitions), 4)


def test_s2_a_set_is_waited_for_once_however_often_coordinators_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opens_though_coordinators_change()

    def anew(me: Any, term: Any, timing: Any, now: Any, adopted: Any, _known: Any) -> Coordinator:
        return Coordinator(me, term, timing, now, adopted, Waits(1.0))

    monkeypatch.setattr(machine, "Coordinator", anew)
    with pytest.raises(Violation, match="not within"):
        opens_though_coordinators_change()


def test_s2_a_coordinator_who_has_known_nothing_waits_from_now_on() -> None:
    leading = Coordinator(
        Incarnation(member(1), 1), coordinator_term(), SLOW, 100.0, None, Waits(1.0)
    )
    net = all_restarted(late=3)
    decision, _ = leading.due(net.truth, (), 100.0)
    assert decision is None or not any(isinstance(one, Takeover) for one in decision.changes)
    assert set(leading._noted.deserted.values()) == {100.0}
    assert {partition for partition, _ in leading._noted.deserted} == {*range(4)}


def test_s2_everybody_notes_since_when_a_set_is_away_and_forgets_it_once_it_is_back() -> None:
    net = all_restarted(late=3)
    known = [net.machine(number)._waits for number in (1, 2)]
    assert [sorted(p for p, _ in one.deserted) for one in known] == [[0, 1, 2, 3]] * 2
    net.start(3)
    net.run_until(net.settled, 9)
    assert [one.deserted for one in known] == [{}, {}]


def test_everybody_notes_how_long_somebody_leads() -> None:
    net = opened()
    net.run(5)
    for number in (1, 2, 3):
        heard = net.machine(number)._waits._heard_at
        assert net.peers[member(number)].clock(net.time) - heard <= 2 * SLOW.heartbeat


def author_back_at_once() -> None:
    """An author is started again before anybody noticed that it was away."""
    net = opened()
    partition, author = led_by_another(net)
    net.power_cut(author)
    net.start(author)
    net.run_until(net.settled, 9)
    assert listed(net, partition) == {1, 2, 3} - {author}


def test_s3_who_stayed_goes_before_who_came_back(monkeypatch: pytest.MonkeyPatch) -> None:
    author_back_at_once()

    def there(topology: Topology, copies: PartitionCopies) -> list[Incarnation]:
        known = [topology.members[one.member] for one in copies.in_sync]
        return [one.incarnation for one in known if one.present]

    monkeypatch.setattr(takeovers, "_who_stayed", there)
    with pytest.raises(Violation, match="somebody stale is listed"):
        author_back_at_once()


# ------------------------------------------------------------------ K1, L4, L7


def test_k1_a_partition_that_was_released_moves_at_once() -> None:
    net = opened()
    partition, author = led_by_another(net)
    net.machine(author).release(partition)
    net._drive(net[author])
    net.run_until(lambda: not is_by(net, partition, author), SLOW.heartbeat + 0.1)
    assert listed(net, partition) == {1, 2, 3}
    net.run_until(net.settled, 1)


def lost_release() -> None:
    net = opened()
    partition, author = led_by_another(net)
    net.dropped = lambda envelope, _target: isinstance(envelope.message, Release)
    net.machine(author).release(partition)
    net._drive(net[author])
    net.run(0.1)
    net.dropped = lambda _envelope, _target: False
    net.run_until(lambda: not is_by(net, partition, author), 3 * SLOW.member_timeout)


def test_l7_a_release_that_was_lost_is_said_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody served the partition any more: the lease does not cover it, and nobody takes it."""
    lost_release()
    monkeypatch.setattr(Agreement, "_release_again", lambda *_: None)
    with pytest.raises(Violation, match="not within"):
        lost_release()


def test_l7_a_release_is_said_again_to_a_new_coordinator() -> None:
    net = opened(5, partitions=5)
    old = leader(net)
    author = old % 5 + 1
    (partition,) = (p for p in range(5) if is_by(net, p, author))
    net.dropped = lambda envelope, target: (
        isinstance(envelope.message, Release) and target == member(old)
    )
    net.machine(author).release(partition)
    net._drive(net[author])
    net.run(0.1)
    net.power_cut(old)
    net.run_until(lambda: bool(net.leaders_now()), 5)
    net.run_until(lambda: not is_by(net, partition, author), 2 * SLOW.heartbeat)


def test_l4_an_author_that_goes_on_keeps_its_lease() -> None:
    """It got none while its next epoch was decided, though it loses nothing."""
    topology = opened().truth
    leading = Coordinator(
        Incarnation(member(1), 1), coordinator_term(), SLOW, 0.0, None, Waits(1.0)
    )
    copies = topology.partitions[1]
    others = tuple(one for one in copies.in_sync if one != copies.author)
    same = Takeover(partition=1, epoch=2, author=copies.author, in_sync=copies.in_sync)
    other = Takeover(partition=1, epoch=2, author=others[0], in_sync=copies.in_sync)
    for change, losing in ((same, set[Incarnation]()), (other, {copies.author})):
        leading.proposed = None
        leading.propose(Decision(topology.index + 1, (change,)), topology)
        assert leading._losing == losing
    leading.released(copies.author, Release(partition=1, epoch=copies.epoch), topology)
    leading.proposed = None
    leading.propose(Decision(topology.index + 1, (other,)), topology)
    assert leading._losing == set()


def coordinator_term() -> Any:
    return Term(9, member(1))


# ------------------------------------------------------------------ what is asked for


def test_who_serves_a_partition_asks_for_its_next_epoch_only_and_goes_on_in_it() -> None:
    net = opened()
    net.opens = False
    partition, author = led_by_another(net)
    copies = net.truth.partitions[partition]
    first, second, third = copies.in_sync
    stale = Incarnation(second.member, 2)
    wrong = [
        (
            second.member.int,
            Takeover(partition=partition, epoch=2, author=second, in_sync=(second,)),
        ),
        (author, Takeover(partition=partition, epoch=2, author=second, in_sync=(first, second))),
        (author, Takeover(partition=partition, epoch=2, author=first, in_sync=(first, stale))),
    ]
    for sender, change in wrong:
        assert asked(net, sender, change) is not None
    fine = Takeover(partition=partition, epoch=2, author=first, in_sync=(first, third))
    assert asked(net, author, fine) is None
    assert net.truth.partitions[partition].in_sync == (first, third)
    assert not net.truth.partitions[partition].opened
    removal = CopiesRemoved(copy=third, partitions=(partition,))
    assert "it takes a takeover" in str(asked(net, author, removal))


def test_what_several_authors_opened_is_one_decision() -> None:
    net = CopiesNet(1, 3, backups=2, timing=SLOW)
    net.opens = False
    net.start_all()
    net.run_until(lambda: all(copies.epoch for copies in net.truth.partitions), 5)
    net.run(1)
    index = net.truth.index
    first = net.machine(leader(net))._leading
    assert first is not None
    for request, partition in enumerate(range(4)):
        asker = net.truth.partitions[partition].author
        change = EpochsOpened(opened=((partition, 1),))
        first.asked(asker, ProposeChange(request=request, change=change), net.time)
    net.run(1)
    assert net.truth.index == index + 1
    assert all(copies.opened for copies in net.truth.partitions)


def test_i3_what_a_copy_said_before_it_fell_silent_counts_for_nothing() -> None:
    """A primary was told to give up for a copy that was dead, and not noticed yet."""
    topology = opened().truth
    copies = topology.partitions[1]
    accused, accuser, _ = copies.in_sync
    answers = Answers(SLOW, 0.0)
    many, few = topology.members_present, frozenset[UUID]()

    def heard(sender: Incarnation, number: int, reaches: frozenset[UUID]) -> None:
        term = Term(9, member(1))
        pong = Pong(term=term, round=number, votes=True, promised=term, end=1, reaches=reaches)
        answers.heard(sender, pong, 0.0)

    heard(accuser, 1, few)
    assert not answers.reaches_more(accused, accuser, copies)
    heard(accused, 1, many)
    assert answers.reaches_more(accused, accuser, copies)
    heard(accuser, 2, few)
    assert answers.reaches_more(accused, accuser, copies)
    heard(accuser, 3, few)
    assert not answers.reaches_more(accused, accuser, copies)
    heard(accused, 3, many)
    answers.notice(accused, 3)
    assert not answers.reaches_more(accused, accuser, copies)


def test_members_tell_whom_they_reach() -> None:
    net = opened()
    told: dict[UUID, frozenset[UUID]] = {}

    def note(envelope: Envelope, _target: UUID) -> bool:
        if isinstance(envelope.message, Pong):
            told[envelope.sender.member] = envelope.message.reaches
        return False

    net.dropped = note
    net.bad.add(frozenset((member(2), member(3))))
    net.run(1)
    rest = [number for number in (1, 2, 3) if number != leader(net)]
    assert {number: told[member(number)] for number in rest} == {
        number: frozenset(map(member, {1, 2, 3} - ({2: {3}, 3: {2}}.get(number, set()))))
        for number in rest
    }


def test_until_a_member_knows_whom_it_reaches_that_is_everybody() -> None:
    net = opened()
    machine = net.machine(2)
    machine.reaches = None
    assert machine.topology.members_present == frozenset(map(member, (1, 2, 3)))
