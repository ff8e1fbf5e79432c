"""What one member makes of one message: a machine alone, with words put into its ears.

The storms of ``test_agreement`` rarely bring these words at the moment at which they would do harm.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, strategies as st

from support.agreement_net import begun, member
from tidelog.affinity.changes import BaselineChanged, Decision, Joined, MemberGone, Touched
from tidelog.affinity.folding import applied
from tidelog.affinity.takeovers import GivenUp
from tidelog.affinity.topology import Incarnation, Topology
from tidelog.engine.agreement.candidacy import Candidacy
from tidelog.engine.agreement.coordinator import Coordinator, Reached
from tidelog.engine.agreement.identity import DiskIdentity, misfit
from tidelog.engine.agreement.leases import CoordinatorLease, PrimaryLease, Released
from tidelog.engine.agreement.machine import Agreement, Outgoing, Ready
from tidelog.engine.agreement.messages import (
    Acceptance,
    Accepted,
    AskPromise,
    Credentials,
    Decided,
    Envelope,
    Fetch,
    Join,
    JoinRefused,
    Lease,
    Ping,
    Pong,
    Promise,
    Propose,
    Release,
    Telling,
    Term,
)
from tidelog.engine.agreement.timing import Timing
from tidelog.engine.agreement.voter import Voter
from tidelog.engine.agreement.waits import Waits

TIMING = Timing()
JOINED = 10.0
"""When all three members have joined, by the clock of each."""


def nonce(number: int) -> bytes:
    return bytes([number]) * 8


def joined(number: int) -> Joined:
    return Joined(incarnation=Incarnation(member(number), 1), nonce=nonce(number), address="host:1")


class One:
    """Member 1 of three, which have all joined under boot 1 and their nonce."""

    def __init__(self) -> None:
        disk = DiskIdentity(member=member(1), boot=1, fresh=nonce(1))
        first = begun(3, 4)
        self.machine = Agreement(
            disk=disk,
            address="host:1",
            topology=applied(Topology(), first),
            voter=Voter(),
            timing=TIMING,
            uniform=lambda: 0.5,
            now=0.0,
            decisions=[first],
        )
        everybody = Decision(2, tuple(joined(number) for number in (1, 2, 3)))
        self.hear(2, Decided(decisions=(everybody,)), JOINED)

    @property
    def decided(self) -> int:
        return self.machine.topology.index

    def word(self, sender: int, message: Telling, **different: Any) -> Envelope:
        known = Envelope(
            sender=Incarnation(member(sender), 1),
            nonce=nonce(sender),
            cluster=self.machine.topology.cluster,
            decided=self.decided,
            message=message,
        )
        return replace(known, **different)

    def hear(
        self, sender: int, message: Telling, now: float, **different: Any
    ) -> list[tuple[UUID, Telling]]:
        """Take a word, and return the answers, once all is durable."""
        self.machine.step(self.word(sender, message, **different), now)
        return self.done(now)

    def done(self, now: float) -> list[tuple[UUID, Telling]]:
        said: list[Outgoing] = []
        while (ready := self.machine.ready()) is not None:
            said += ready.send + ready.send_durable
            self.machine.advance(now)
        return [(each.target, each.envelope.message) for each in said]

    def lead(self, now: float) -> Term:
        """Have it elected; return its term."""
        self.machine.tick(now)
        self.done(now)
        for sure in (False, True):
            term = self.asked(sure)
            self.hear(2, self.promise(2, term, sure=sure), now)
        assert self.machine.leads
        return self.machine.coordinator

    def asked(self, sure: bool) -> Term:
        candidacy = self.machine._candidacy
        assert candidacy is not None
        assert candidacy.sure is sure
        return candidacy.term

    def promise(self, number: int, term: Term, *, sure: bool) -> Promise:
        who = Incarnation(member(number), 1)
        return Promise(
            term=term,
            sure=sure,
            granted=True,
            promised=term,
            credentials=Credentials(incarnation=who, last=b"", fresh=nonce(number), end=2),
            accepted=None,
        )

    def pong(self, term: Term, number: int, **different: Any) -> Pong:
        known = Pong(term=term, round=number, votes=True, promised=term, end=self.decided)
        return replace(known, **different)


LATER = JOINED + 5
"""When member 1 stands."""


# ------------------------------------------------------------------ promises and terms


def test_c5_a_term_is_promised_to_the_member_that_it_names_only() -> None:
    one = One()
    question = AskPromise(term=Term(5, member(3)), sure=True)
    assert one.hear(2, question, LATER) == []
    assert one.machine.voter.promised < question.term
    ((target, answer),) = one.hear(3, question, LATER)
    assert (target, answer.granted) == (member(3), True)  # type: ignore[union-attr]


def test_c5_a_promise_counts_for_the_member_that_gives_it_only() -> None:
    """A vote that somebody passes on under another's name is not a second one."""
    one = One()
    one.machine.tick(LATER)
    one.done(LATER)
    borrowed = one.promise(2, one.asked(sure=False), sure=False)
    one.hear(3, borrowed, LATER)
    assert not one.machine._candidacy.sure  # type: ignore[union-attr]
    one.hear(2, borrowed, LATER)
    assert one.machine._candidacy.sure  # type: ignore[union-attr]


def would(one: One, number: int, of: int, now: float, *, sure: bool = False) -> bool:
    """Have a member ask for a term of its own; tell whether it was granted."""
    question = AskPromise(term=Term(of, member(number)), sure=sure)
    [(_, answer)] = one.hear(number, question, now)
    assert isinstance(answer, Promise)
    return answer.granted


TURN = TIMING.rank_pause / 2
"""How long member 1, the oldest, waits for its turn."""
WAY = TIMING.member_timeout + TURN


def test_c5_a_member_gives_way_to_each_candidate_once_until_somebody_leads() -> None:
    one = One()
    asked = LATER
    assert would(one, 2, 5, asked)
    assert one.machine.next_tick() == pytest.approx(asked + WAY)
    assert would(one, 2, 6, asked + 0.4)
    assert one.machine.next_tick() == pytest.approx(asked + WAY), "that one had its time"
    assert would(one, 3, 6, asked + 0.6)
    stands = asked + 0.6 + WAY
    assert one.machine.next_tick() == pytest.approx(stands)
    assert would(one, 2, 7, asked + 0.7)
    assert would(one, 3, 7, asked + 0.8)
    assert one.machine.next_tick() == pytest.approx(stands)

    led = asked + 1
    one.hear(2, Ping(term=Term(8, member(2)), round=1, known=0), led)
    stands = led + TIMING.lease + TURN
    assert one.machine.next_tick() == pytest.approx(stands)
    assert not would(one, 3, 9, led + 1)
    assert one.machine.next_tick() == pytest.approx(stands), "who is refused has had no time"
    again = led + TIMING.lease + 0.01
    assert would(one, 3, 10, again)
    assert one.machine.next_tick() == pytest.approx(again + WAY)


def test_c5_whoever_was_promised_a_term_is_given_time_to_win_it() -> None:
    one = One()
    assert would(one, 2, 5, LATER)
    assert would(one, 3, 6, LATER + 0.1, sure=True)
    assert not would(one, 2, 7, LATER + 1)
    assert one.machine.next_tick() == pytest.approx(LATER + 0.1 + WAY)
    assert would(one, 2, 7, LATER + 1.2), "it is over"
    assert one.machine.next_tick() == pytest.approx(LATER + 1.2 + WAY), "and counts anew"
    assert would(one, 3, 8, LATER + 1.3, sure=True)
    assert would(one, 2, 9, LATER + 1.4, sure=True), "who has a majority is never refused"


def test_c5_one_that_may_not_vote_looks_again_later() -> None:
    one = One()
    one.machine.voter.may_vote = False
    one.machine.tick(LATER)
    assert not any(isinstance(message, AskPromise) for _, message in one.done(LATER))
    assert one.machine.next_tick() == pytest.approx(LATER + WAY)


def test_c5_one_outside_the_baseline_never_stands() -> None:
    one = One()
    others = replace(one.machine.topology, baseline=(member(2), member(3)))
    one.machine.topology = others
    one.machine.tick(LATER + 9)
    assert one.machine._candidacy is None
    assert one.machine.next_tick() > LATER + 9


def test_c5_a_term_that_others_know_of_is_not_asked_for() -> None:
    one = One()
    one.machine.tick(LATER)
    one.done(LATER)
    term = one.asked(sure=False)
    high = Term(term.number + 6, member(3))
    refused = replace(one.promise(2, term, sure=False), granted=False, promised=high)
    one.hear(2, refused, LATER)
    assert one.machine.voter.promised < term
    for now in (LATER + 1, LATER + 2):
        one.machine.tick(now)
    assert one.asked(sure=False) > high


def test_c1_a_candidate_that_hears_of_a_higher_term_stands_no_more() -> None:
    one = One()
    one.machine.tick(LATER)
    one.done(LATER)
    one.hear(2, one.promise(2, one.asked(sure=False), sure=False), LATER)
    term = one.asked(sure=True)
    assert one.machine.next_tick() == pytest.approx(LATER + TIMING.member_timeout)
    ping = Ping(term=Term(term.number + 1, member(2)), round=1, known=0)
    one.hear(2, ping, LATER + 0.1)
    assert one.hear(3, one.promise(3, term, sure=True), LATER + 0.1) == []
    assert not one.machine.leads


def test_c5_one_that_was_not_answered_asks_again_soon() -> None:
    one = One()
    one.machine.tick(LATER)
    one.done(LATER)
    ends = LATER + 2 * TIMING.heartbeat
    assert one.machine.next_tick() == pytest.approx(ends)
    one.machine.tick(ends)
    assert one.machine.next_tick() == pytest.approx(ends + TURN)


def test_c1_a_coordinator_that_promises_another_term_leads_no_more() -> None:
    one = One()
    term = one.lead(LATER)
    higher = AskPromise(term=Term(term.number + 1, member(2)), sure=True)
    end = LATER + TIMING.member_timeout + TIMING.lease
    ((_, answer),) = one.hear(2, higher, end)
    assert answer.granted  # type: ignore[union-attr]
    assert not one.machine.leads


def test_c2_whoever_sees_another_decide_what_it_proposed_leads_no_more() -> None:
    one = One()
    one.lead(LATER)
    one.machine.propose(1, Touched(partition=0))
    one.done(LATER)
    other = Decision(one.decided + 1, (Touched(partition=1),))
    one.hear(2, Decided(decisions=(other,)), LATER, decided=other.index)
    assert not one.machine.leads


@pytest.mark.parametrize("other", [0, 1])
def test_c3_an_acceptance_counts_in_its_own_term_only(other: int) -> None:
    one = One()
    term = one.lead(LATER)
    one.machine.propose(1, Touched(partition=0))
    one.done(LATER)
    index = one.decided
    spoken = Term(term.number - other, member(2) if other else term.member)
    one.hear(2, Accepted(term=spoken, index=index + 1, promised=term), LATER)
    assert one.decided == index + (not other)


def touched(index: int, partition: int = 0) -> Decision:
    return Decision(index, (Touched(partition=partition),))


def test_c1_a_voter_accepts_nothing_of_a_term_below_the_one_it_promised() -> None:
    voter = Voter(promised=Term(5, member(2)))
    assert not voter.accept(Term(4, member(3)), touched(3), 2)
    assert not voter.accept(Term(5, member(1)), touched(3), 2)
    assert voter.accepted is None
    assert voter.accept(Term(5, member(2)), touched(3), 2)


def test_c1_whoever_accepts_in_a_term_has_promised_it() -> None:
    voter = Voter(promised=Term(5, member(2)))
    assert voter.accept(Term(7, member(3)), touched(3), 2)
    assert not voter.accept(Term(6, member(2)), touched(3, 1), 2)
    assert not voter.would_promise(Term(7, member(3)), LATER)
    assert voter.accepted == Acceptance(Term(7, member(3)), touched(3))


def elected(one: One, *promises: Promise, decided: tuple[int, ...] = ()) -> Candidacy:
    candidacy = Candidacy(Term(9, member(1)), sure=True, until=LATER)
    for place, promise in enumerate(promises):
        candidacy.take(promise, decided[place] if decided else one.decided)
    return candidacy


def test_c2_of_all_that_may_be_decided_the_highest_terms_is_adopted() -> None:
    one = One()
    index, term = one.decided + 1, Term(9, member(1))
    low = Acceptance(Term(3, member(2)), touched(index, 1))
    high = Acceptance(Term(4, member(1)), touched(index, 2))
    for first, second in ((low, high), (high, low)):
        candidacy = elected(
            one,
            replace(one.promise(2, term, sure=True), accepted=first),
            replace(one.promise(3, term, sure=True), accepted=second),
        )
        assert candidacy.wins(one.machine.topology)
        assert candidacy.to_adopt(one.machine.topology) == high


@pytest.mark.parametrize("distance", [0, 2])
def test_c2_only_what_was_accepted_at_the_next_index_is_adopted(distance: int) -> None:
    one = One()
    stale = Acceptance(Term(3, member(2)), touched(one.decided + distance))
    promise = replace(one.promise(2, Term(9, member(1)), sure=True), accepted=stale)
    assert elected(one, promise).to_adopt(one.machine.topology) is None


def test_c1_a_term_is_won_once_nothing_is_missing_that_is_decided() -> None:
    one = One()
    term = Term(9, member(1))
    promises = [one.promise(number, term, sure=True) for number in (2, 3)]
    ahead = elected(one, *promises, decided=(one.decided, one.decided + 1))
    assert not ahead.wins(one.machine.topology)
    assert elected(one, *promises).wins(one.machine.topology)


def test_c1_a_disk_that_the_log_does_not_know_does_not_count() -> None:
    one = One()
    term = Term(9, member(1))
    old = one.promise(3, term, sure=True)
    old = replace(old, credentials=replace(old.credentials, fresh=b"another"))
    candidacy = elected(one, one.promise(2, term, sure=True), old)
    assert not candidacy.would_win(one.machine.topology)
    assert not candidacy.wins(one.machine.topology)
    assert len(candidacy._fitting(one.machine.topology)) == 1


@pytest.mark.parametrize("sure", [False, True])
def test_c1_who_refuses_counts_for_nothing(sure: bool) -> None:
    one = One()
    term = Term(9, member(1))
    candidacy = Candidacy(term, sure=sure, until=LATER)
    candidacy.take(one.promise(1, term, sure=sure), one.decided)
    candidacy.take(replace(one.promise(2, term, sure=sure), granted=False), one.decided)
    assert not candidacy.would_win(one.machine.topology)
    assert not candidacy.wins(one.machine.topology)


def test_c2_what_somebody_outside_the_baseline_has_accepted_is_not_adopted() -> None:
    one = One()
    term = Term(9, member(1))
    accepted = Acceptance(Term(3, member(2)), touched(one.decided + 1))
    outside = replace(one.promise(4, term, sure=True), accepted=accepted)
    promises = [one.promise(number, term, sure=True) for number in (1, 2)]
    assert elected(one, *promises, outside).to_adopt(one.machine.topology) is None


def test_c5_one_that_reaches_too_few_of_the_next_baseline_asks_for_no_term() -> None:
    """Else it has those that could win promise, and wait, again and again."""
    one = One()
    grown = BaselineChanged(baseline=tuple(member(number) for number in (1, 2, 3, 4)))
    adopted = Acceptance(Term(1, member(3)), Decision(one.decided + 1, (grown,)))
    one.machine.tick(LATER)
    one.done(LATER)
    term = one.asked(sure=False)
    one.hear(2, replace(one.promise(2, term, sure=False), accepted=adopted), LATER)
    assert one.asked(sure=False) == term
    assert one.machine.voter.promised < term
    one.hear(3, one.promise(3, term, sure=False), LATER)
    assert one.machine.voter.promised == one.asked(sure=True)


def test_c5_one_that_is_behind_takes_the_majority_that_it_knows() -> None:
    """What it lacks may be what its answers rest on: it fetches that, and asks meanwhile."""
    one = One()
    grown = BaselineChanged(baseline=tuple(member(number) for number in (1, 2, 3, 4)))
    decided = Acceptance(Term(1, member(3)), Decision(one.decided + 1, (grown,)))
    promise = replace(one.promise(2, Term(9, member(1)), sure=True), accepted=decided)
    own = one.promise(1, Term(9, member(1)), sure=True)
    assert not elected(one, own, promise).would_win(one.machine.topology)
    ahead = elected(one, own, promise, decided=(one.decided, one.decided + 1))
    assert ahead.would_win(one.machine.topology)
    assert not ahead.wins(one.machine.topology)
    ahead = elected(one, promise, decided=(one.decided + 1,))
    assert not ahead.would_win(one.machine.topology)


def test_c3_an_acceptance_counts_at_its_own_index_only() -> None:
    """A late one of the decision before is none of this one."""
    one = One()
    leading = coordinator(one)
    leading.propose(touched(one.decided + 1), one.machine.topology)
    for number in (1, 2, 3):
        assert leading.accepted(member(number), one.decided, one.machine.topology) is None
    assert leading.accepted(member(1), one.decided + 1, one.machine.topology) is None
    assert leading.accepted(member(2), one.decided + 1, one.machine.topology) is not None


def test_c3_whoever_is_not_in_the_baseline_is_no_part_of_a_majority() -> None:
    one = One()
    leading = coordinator(one)
    leading.propose(touched(one.decided + 1), one.machine.topology)
    for number in (1, 8, 9):
        decided = leading.accepted(member(number), one.decided + 1, one.machine.topology)
        assert decided is None
    assert leading.accepted(member(2), one.decided + 1, one.machine.topology) is not None


def coordinator(one: One) -> Coordinator:
    return Coordinator(one.machine.me, Term(9, member(1)), TIMING, LATER, None, Waits(1.0))


# ------------------------------------------------------------------ pings and leases


def test_c1_who_may_not_vote_extends_no_lease() -> None:
    one = One()
    leading = coordinator(one)
    number = leading.begin_round(LATER)
    for voter in (2, 3):
        silent = one.pong(leading.term, number, votes=False)
        leading.heard(Incarnation(member(voter), 1), silent, LATER)
    assert list(leading.leases_due(one.machine.topology, LATER)) == []
    for voter in (2, 3):
        leading.heard(Incarnation(member(voter), 1), one.pong(leading.term, number), LATER)
    assert len(list(leading.leases_due(one.machine.topology, LATER))) == 2


def test_m9_a_ping_tells_what_all_that_are_present_have_on_their_disks() -> None:
    one = One()
    term = one.lead(LATER)

    def known(now: float, **ends: int) -> int:
        number = one.machine._leading.lease.round  # type: ignore[union-attr]
        for name, end in ends.items():
            pong = replace(one.pong(term, number), end=end)
            one.hear(int(name[1:]), pong, now)
        one.machine.tick(now + TIMING.heartbeat)
        told = {word.known for _, word in one.done(now) if isinstance(word, Ping)}
        [found] = told
        return found

    assert known(LATER) == 0, "nobody has said anything"
    assert known(LATER + 0.3, m2=2) == 0, "one is silent still"
    assert known(LATER + 0.6, m2=2, m3=1) == 1
    assert known(LATER + 0.9, m2=2, m3=2) == 2


def test_l3_a_round_that_is_answered_twice_counts_from_the_first_answer() -> None:
    """A ping that the network doubled gave a lease from the second answer."""
    lease = PrimaryLease(TIMING)
    lease.answering("term", 1, LATER)
    lease.answering("term", 1, LATER + 1)
    lease.granted("term", 1, 1.0)
    assert lease.end == LATER + TIMING.scaled(1.0)


def test_l4_only_its_primary_releases_a_partition() -> None:
    one = One()
    topology = one.machine.topology
    author, epoch = topology.partitions[0].author, topology.partitions[0].epoch
    leading = coordinator(one)
    other = Incarnation(member(author.member.int % 3 + 1), 1)
    for sender, told in ((other, epoch), (author, epoch - 1), (author, epoch + 1)):
        leading.released(sender, Release(partition=0, epoch=told), topology)
        assert not leading._released
    leading.released(author, Release(partition=0, epoch=epoch), topology)
    assert leading._released == {0: GivenUp(epoch)}


def test_l7_what_was_released_stays_so_in_its_epoch_and_those_before() -> None:
    released = Released()
    released.release(0, 4)
    assert [released.covers(0, epoch) for epoch in (3, 4, 5)] == [True, True, False]
    released.release(0, 2)
    assert released.covers(0, 4)
    assert not released.covers(1, 0)


@pytest.mark.parametrize("other", [0, 1])
def test_l3_an_answer_to_a_ping_counts_in_its_own_term_only(other: int) -> None:
    one = One()
    term = one.lead(LATER)
    spoken = Term(term.number - other, member(2) if other else term.member)
    answers = one.hear(2, one.pong(spoken, 1, promised=term), LATER)
    assert any(isinstance(message, Lease) for _, message in answers) is not bool(other)


def test_c7_a_member_tells_of_its_log_what_is_durable() -> None:
    """Else an honest disk that lost what it had not synced is taken for an old image."""
    one = One()
    more = Decision(one.decided + 1, (Touched(partition=0),))
    one.machine.step(one.word(2, Decided(decisions=(more,)), decided=more.index), LATER)
    ping = one.word(2, Ping(term=Term(5, member(2)), round=1), decided=more.index)
    one.machine.step(ping, LATER)
    running = one.machine.ready()
    assert ends(running) == [more.index - 1]
    one.machine.advance(LATER)
    one.machine.step(ping, LATER)
    assert ends(one.machine.ready()) == [more.index]


def ends(ready: Ready | None) -> list[int]:
    assert ready is not None
    said = [each.envelope.message for each in (*ready.send, *ready.send_durable)]
    return [message.end for message in said if isinstance(message, Pong)]


def test_l7_an_incarnation_that_has_gone_takes_no_lease() -> None:
    one = One()
    term = Term(5, member(2))
    one.hear(2, Ping(term=term, round=1), LATER)
    one.hear(2, Lease(term=term, round=1, seconds=1.0), LATER)
    assert one.machine.lease.end > LATER
    gone = Decision(one.decided + 1, (MemberGone(incarnation=one.machine.me),))
    one.hear(2, Decided(decisions=(gone,)), LATER, decided=gone.index)
    one.hear(2, Lease(term=term, round=1, seconds=1.0), LATER)
    assert one.machine.gone
    assert one.machine.lease.end < LATER


RATES = st.floats(0.9, 1.1)
DELAYS = st.floats(0, 0.3)


def lease_ends(
    coordinator_rate: float, primary_rate: float, answered: float, handed: float
) -> tuple[float, float, float]:
    """Return when the promise, the lease, and what the coordinator waits for end, by real time.

    At 0 a coordinator sends a round; a voter of the fastest clock answers at once, the primary
    after a while, and later yet the coordinator hands out what is left.
    """
    lease = CoordinatorLease(TIMING)
    holder = Incarnation(member(1), 1)
    number = lease.begin_round(0.0)
    lease.answered(member(1), number)
    seconds = lease.hand_out(holder, [(member(1),)], (answered + handed) * coordinator_rate)
    primary = PrimaryLease(TIMING)
    primary.answering("term", number, answered * primary_rate)
    primary.granted("term", number, seconds)
    return (
        TIMING.lease / 1.1,
        primary.end / primary_rate,
        lease.held_until(holder) / coordinator_rate,
    )


@given(coordinator=RATES, primary=RATES, answered=DELAYS, handed=DELAYS)
def test_l3_l4_a_lease_ends_before_all_that_rests_on_its_end(
    coordinator: float, primary: float, answered: float, handed: float
) -> None:
    promised, lease, waited = lease_ends(coordinator, primary, answered, handed)
    assert lease <= promised + 1e-9
    assert lease <= waited + 1e-9


@pytest.mark.parametrize("rule", ["the rest is handed out", "a primary allows for its clock"])
def test_l3_l4_each_step_of_a_lease_is_needed(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if rule == "the rest is handed out":
        monkeypatch.setattr(CoordinatorLease, "hand_out", lambda *_: TIMING.lease)
    else:

        def granted(self: PrimaryLease, term: object, number: int, seconds: float) -> None:
            self.end = self._answers[term, number] + seconds

        monkeypatch.setattr(PrimaryLease, "granted", granted)
    _, lease, waited = lease_ends(1.1, 0.9, 0.3, 0.0)
    assert lease > waited


# ------------------------------------------------------------------ too few members


@pytest.mark.parametrize("leads", [True, False])
def test_a_member_that_was_asleep_does_not_say_that_there_are_too_few(leads: bool) -> None:
    """A member that was busy with a large answer said it reached no majority, even of itself."""
    one = One()
    if leads:
        term = one.lead(LATER)
        one.hear(2, one.pong(term, 1), LATER)
    else:
        one.hear(2, Ping(term=Term(5, member(2)), round=1), LATER)
    awake = LATER + 3
    assert one.machine.reaches_majority(awake)
    one.machine.tick(awake)
    one.done(awake)
    assert one.machine.reaches_majority(awake)
    alone = awake
    while alone < awake + TIMING.member_timeout:
        alone = max(alone + 0.01, min(one.machine.next_tick(), alone + TIMING.heartbeat))
        one.machine.tick(alone)
        one.done(alone)
    assert not one.machine.reaches_majority(alone)


# ------------------------------------------------------------------ who is not heard


def test_c1_whoever_lacks_decisions_fetches_them_before_it_takes_a_lease_or_accepts() -> None:
    one = One()
    term = Term(5, member(2))
    one.hear(2, Ping(term=term, round=1), LATER)
    ahead = one.decided + 1
    proposal = Propose(term=term, decision=touched(one.decided + 1))
    fetch = [(member(2), Fetch(after=one.decided))]
    assert one.hear(2, proposal, LATER, decided=ahead) == fetch
    one.hear(2, Lease(term=term, round=1, seconds=1.0), LATER, decided=ahead)
    assert one.machine.voter.accepted is None
    assert one.machine.lease.end < LATER


def test_whoever_may_not_stand_and_hears_nobody_asks_what_was_decided() -> None:
    # Nobody pings who is gone, and who asks for nothing is not told of it.
    one = One()
    one.machine.voter.may_vote = False
    one.machine.tick(LATER)
    fetch = Fetch(after=one.decided)
    assert one.done(LATER) == [(member(2), fetch), (member(3), fetch)]
    again = one.machine.next_tick()
    assert LATER + TIMING.member_timeout <= again <= LATER + 2 * TIMING.member_timeout
    one.hear(2, Ping(term=Term(5, member(2)), round=1), again)
    one.machine.tick(again)
    assert one.done(again) == []


def without_two(one: One) -> None:
    gone = Decision(one.decided + 1, (MemberGone(incarnation=Incarnation(member(2), 1)),))
    one.hear(3, Decided(decisions=(gone,)), LATER, decided=gone.index)


def nobody(one: One) -> None:
    del one


@pytest.mark.parametrize(
    ("before", "different"),
    [
        pytest.param(without_two, {}, id="it has gone"),
        pytest.param(nobody, {"nonce": b"another"}, id="another disk of it is known"),
        pytest.param(nobody, {"cluster": UUID(int=9)}, id="it is of another cluster"),
    ],
)
def test_w1_nothing_changes_by_a_word_of_somebody_who_is_not_heard(
    before: Callable[[One], None], different: dict[str, Any]
) -> None:
    one = One()
    term = Term(5, member(2))
    before(one)
    words: list[Telling] = [
        Ping(term=term, round=1),
        AskPromise(term=term, sure=True),
        Propose(term=term, decision=Decision(one.decided + 1, (Touched(partition=0),))),
        Lease(term=term, round=1, seconds=1.0),
        Decided(decisions=(Decision(one.decided + 1, (Touched(partition=0),)),)),
    ]
    index = one.decided
    for word in words:
        for _, answer in one.hear(2, word, LATER, **different):
            assert isinstance(answer, Decided)
    assert one.decided == index
    assert one.machine.voter.promised < term
    assert one.machine.voter.accepted is None


def test_c7_a_refusal_that_another_disk_earned_does_not_end_this_one() -> None:
    one = One()
    refusal = JoinRefused(incarnation=one.machine.me, nonce=b"another", reason="an old image")
    one.hear(2, refusal, LATER)
    assert one.machine.refusal is None
    one.hear(2, replace(refusal, nonce=nonce(1)), LATER)
    assert one.machine.refusal == "an old image"


def test_c7_a_disk_that_learns_that_another_one_speaks_for_it_stops() -> None:
    one = One()
    other = replace(joined(1), incarnation=Incarnation(member(1), 1), nonce=b"another!")
    topology = applied(Topology(), begun(3, 4))
    topology = applied(topology, Decision(2, (other, joined(2), joined(3))))
    later = applied(topology, Decision(3, (Touched(partition=0),)))
    one.hear(2, Decided(decisions=(), topology=later), LATER, decided=3)
    assert one.machine.refusal is not None
    assert not one.machine.may_serve(0, LATER)


@pytest.mark.parametrize(("end", "fits"), [(2, True), (1, False)])
def test_c7_a_disk_whose_log_is_shorter_than_it_once_said_may_not_join(
    end: int, fits: bool
) -> None:
    one = One()
    leading = coordinator(one)
    said = {member(2): Reached(boot=1, end=2)}
    shown = Credentials(
        incarnation=Incarnation(member(2), 2), last=nonce(2), fresh=b"another!", end=end
    )
    leading.joining(Join(credentials=shown, address="host:1"))
    refused = list(leading.refused_joins(one.machine.topology, said))
    assert [disk for disk, _ in refused] == ([] if fits else [shown])
    decision, _ = leading.due(one.machine.topology, (), LATER)
    assert decision is not None
    assert any(isinstance(change, Joined) for change in decision.changes) is fits


def test_c7_a_disk_of_the_same_boot_and_another_nonce_is_a_copy() -> None:
    one = One()
    shown = Credentials(
        incarnation=Incarnation(member(2), 1), last=nonce(2), fresh=b"another!", end=2
    )
    assert "it is an old image, or a copy" in str(misfit(shown, one.machine.topology))
