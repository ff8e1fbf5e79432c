"""One member's part in the agreement: the machine that a driver feeds and executes.

    step(envelope, now)   a message arrived
    tick(now)             time is told, never asked
    ready() -> Ready      what must now happen
    advance(now)          it happened; what it noted is durable

What a ``Ready`` says is done in this order: note, send, sync, send what waits for the sync.  There
is one at a time.  A member speaks to itself like to any other, so its own vote counts once it is
durable.

Invariants:

- members act on decided decisions only, in order;
- nothing that rests on a note leaves before the note is durable;
- what comes from an incarnation that has gone changes nothing (W1); it is told what was decided,
  and comes back under a new boot;
- who is not of the cluster may ask to join, and tell and hear what was decided: no more;
- a disk that the log does not know as it is, an old image or a copy, stops by itself, and nobody
  listens to it (C7);
- who is behind its sender takes no lease and accepts nothing: it fetches what is missing first.

Left out: how envelopes travel and notes are written, and what a member serves (``node``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from ...affinity.changes import Decision, TopologyChange
from ...affinity.folding import applied
from ...affinity.topology import Incarnation, PartitionCopies, Topology
from .candidacy import Candidacy
from .coordinator import Coordinator, Reached
from .identity import DiskIdentity, is_impostor, misfit
from .leases import FOREVER, NEVER, PrimaryLease, Released, majority
from .messages import (
    NO_TERM,
    Accepted,
    AskPromise,
    ChangeRefused,
    Credentials,
    Decided,
    Envelope,
    Fetch,
    Guard,
    Join,
    JoinRefused,
    Lease,
    Note,
    Ping,
    Pong,
    Promise,
    PromisedTerm,
    Propose,
    ProposeChange,
    Release,
    Telling,
    Term,
)
from .timing import Timing
from .voter import Voter
from .waits import Waits

DECISIONS_MAX = 256
"""Decisions that are kept for members that lack some, and sent at once; others get the topology."""

REFUSED_MAX = 256
"""Disks that are remembered as refused."""

_STRANGERS = (Join, Fetch, Decided)
"""What may be taken from somebody of whom the log knows nothing."""

_BEHIND = (AskPromise, Promise, Ping, Fetch, Join, JoinRefused, Decided, Accepted, ChangeRefused)
"""What may be taken from somebody who knows of more decisions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """An envelope for a member."""

    target: UUID
    envelope: Envelope


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """What must happen now, in this order."""

    notes: tuple[Note, ...]
    send: tuple[Outgoing, ...]
    send_durable: tuple[Outgoing, ...]
    refused: tuple[ChangeRefused, ...]


class Agreement:
    """The part of one incarnation.

    ``votes_only`` tells that it is to hold no data.  ``uniform`` gives random numbers from 0 to 1.
    A disk that was never started before waits for no lease, as it cannot have promised one.
    """

    def __init__(
        self,
        *,
        disk: DiskIdentity,
        address: str,
        topology: Topology,
        voter: Voter,
        timing: Timing,
        uniform: Callable[[], float],
        now: float,
        decisions: Sequence[Decision] = (),
        votes_only: bool = False,
    ) -> None:
        self.me = disk.incarnation
        self.topology = topology
        self.voter = voter
        self.lease = PrimaryLease(timing)
        self.released = Released()
        self.reaches: frozenset[UUID] | None = None
        """With whom this member exchanges data, in both directions; None: with all that are there.

        Who finds that out sets it; the next answer to a ping tells the coordinator (I3).
        """
        self.gone = False
        self.refusal: str | None = None
        """Why the cluster will not have this disk."""
        self._waits = Waits(timing.member_timeout)
        self._disk = disk
        self._address = address
        self._votes_only = votes_only
        self._timing = timing
        self._uniform = uniform
        self._decisions = list(decisions)
        self._ends: dict[UUID, Reached] = {}
        self.known_by_all = 0
        """Up to which index all members that are present have durably what was decided."""
        self._following = NO_TERM
        self._heard = NEVER
        self._told: dict[UUID, float] = {}
        """When each member has said anything last."""
        self._awake_since = NEVER
        self._candidacy: Candidacy | None = None
        self._leading: Coordinator | None = None
        self._highest = voter.promised.number
        self._next_join = now
        self._fetched: dict[UUID, tuple[int, float]] = {}
        self._notes: list[Note] = []
        self._send_now: list[Outgoing] = []
        self._send_later: list[Outgoing] = []
        self._refused: list[ChangeRefused] = []
        self._to_self: list[Envelope] = []
        self._running: Ready | None = None
        self._noted = self._durable = topology.index
        """Up to which index decisions are noted, and are durable."""
        self._releases_told = NO_TERM
        self._tell_releases = NEVER
        """When the coordinator of that term, which only has them in memory, is told them again."""
        self._refused_disks: dict[tuple[Incarnation, bytes], None] = {}
        self._quiet_until = NEVER
        """Until when somebody who was promised a term is let try."""
        self._given_way: set[UUID] = set()
        """Who was let try since somebody led, or was promised a term: once each, for one that hears
        no answers would ask for ever, and nobody else would stand."""
        if disk.boot > 1 or topology.index > 1:
            voter.hold(now + timing.lease)  # of a promise that the last boot may have made
        self._pause(max(now, voter.held_until))

    # -------------------------------------------------------------- what a node asks

    @property
    def leads(self) -> bool:
        """Whether this member is the coordinator, as far as it knows."""
        return self._leading is not None

    @property
    def coordinator(self) -> Term:
        """The term that is followed, with the member that leads in it."""
        return self._leading.term if self._leading else self._following

    def reaches_majority(self, now: float) -> bool:
        """Tell whether this member is on the side that can decide, as far as it knows.

        One that was busy or asleep, and so heard nobody, cannot know that there are too few.  Nor
        can one whose coordinator has fallen silent, before it has asked the others to be elected;
        as long as a majority says anything, there will be a coordinator soon.
        """
        timing, members = self._timing, len(self.topology.baseline)
        promised = max(timing.member_timeout, timing.lease)  # nobody stands before that is over
        patience = promised + timing.rank_pause * members + timing.heartbeat
        if self._overslept(now) or now < self._awake_since + self._timing.member_timeout:
            return True
        if self._leading is not None:
            return self._leading.reaches_majority(self.topology, now)
        told = [m for m in self.topology.baseline if self._told.get(m, NEVER) + patience > now]
        votes = {*told} | {self.me.member} & {*self.topology.baseline}
        return now < self._heard + patience or len(votes) >= majority(self.topology.baseline)

    def may_serve(self, partition: int, now: float) -> bool:
        """Tell whether this incarnation may answer for a partition: asked behind the work (L5)."""
        copies = self.topology.partitions[partition]
        return now < self.lease.end and self.is_author(copies)

    def is_author(self, copies: PartitionCopies) -> bool:
        """Tell whether the log gives a partition to this incarnation, and it was not released."""
        return copies.author == self.me and not self.gone and not self.is_released(copies)

    def is_released(self, copies: PartitionCopies) -> bool:
        """Tell whether the log gives a partition to this incarnation, which released it."""
        released = self.released.covers(copies.row.partition, copies.epoch)
        return released and copies.author == self.me

    def has_refused(self, incarnation: Incarnation, nonce: bytes) -> bool:
        """Tell whether this member, as coordinator, has refused the join of a disk.

        Who calls is told so there as well: at the address of the member another one may answer.
        """
        return (incarnation, nonce) in self._refused_disks

    def decisions_kept(self) -> tuple[Decision, ...]:
        """Return the newest decisions, in order."""
        return tuple(self._decisions)

    # -------------------------------------------------------------- what a node tells

    def propose(
        self,
        request: int,
        change: TopologyChange,
        guards: tuple[Guard, ...] = (),
        after: int | None = None,
    ) -> None:
        """Ask for a change; it is to be asked for again until it is seen, or refused."""
        message = ProposeChange(request=request, change=change, guards=guards, after=after)
        self._send(self.coordinator.member, message)

    def release(self, partition: int, target: UUID | None = None) -> None:
        """Serve a partition no more in its epoch, and say so until somebody else does (K1, L7).

        ``target`` is the member that shall, if it is in the in-sync set.
        """
        copies = self.topology.partitions[partition]
        self.released.release(partition, copies.epoch, target)
        message = Release(partition=partition, epoch=copies.epoch, target=target)
        self._send(self.coordinator.member, message)

    def unreachable(self, member: UUID) -> None:
        """Take it that a member's present incarnation is dead: its port refuses connections."""
        known = self.topology.members.get(member)
        if self._leading is not None and known is not None:
            self._leading.unreachable(known.incarnation)

    def refused(self, reason: str) -> None:
        """Take it that the cluster knows another disk of this member: it says nothing any more."""
        self.refusal = reason
        self.lease.give_up()
        self._leading = self._candidacy = None

    # -------------------------------------------------------------- the driver's side

    def ready(self) -> Ready | None:
        """Return what must happen; None if there is nothing, or the last one is not done."""
        if self._running is not None or not (
            self._notes or self._send_now or self._send_later or self._refused or self._to_self
        ):  # fmt: skip
            return None
        self._noted = self.topology.index
        self._running = Ready(
            notes=tuple(self._notes),
            send=tuple(self._send_now),
            send_durable=tuple(self._send_later),
            refused=tuple(self._refused),
        )
        for queue in (
            self._notes, self._send_now, self._send_later, self._refused
        ):  # fmt: skip
            queue.clear()
        return self._running

    def advance(self, now: float) -> None:
        """Take it that the last ``Ready`` was executed, and its notes are durable."""
        assert self._running is not None
        self._running = None
        self._durable = self._noted
        own, self._to_self = self._to_self, []
        for envelope in own:
            self.step(envelope, now)

    # -------------------------------------------------------------- time

    def tick(self, now: float) -> None:
        """Do what is due by now."""
        if self._overslept(now):
            self._awake_since = now
        if self.gone or self.refusal is not None or not self.topology.index:
            return
        if now >= self._next_join and not self.topology.is_present(self.me):
            self._next_join = now + self._timing.heartbeat
            join = Join(
                credentials=self._credentials(), address=self._address, voter=self._votes_only
            )
            self._tell_baseline(join)
        if self._leading is not None:
            self._lead_on(self._leading, now)
        elif self._candidacy is not None:
            if now >= self._candidacy.until:
                self._candidacy = None
                self._pause(now)
        elif now >= self._stand_at:
            self._stand(now)

    def next_tick(self) -> float:
        """Return when ``tick`` has something to do at the latest."""
        if self.gone or self.refusal is not None or not self.topology.index:
            return FOREVER
        times = [self._stand_at]
        if self._leading is not None:
            times = [self._leading.next_due()]
        elif self._candidacy is not None:
            times = [self._candidacy.until]
        if not self.topology.is_present(self.me):
            times.append(self._next_join)
        return min(times)

    def _overslept(self, now: float) -> bool:
        """Tell whether what was due has not been done for as long as a round takes."""
        return now > self.next_tick() + self._timing.heartbeat

    def _pause(self, since: float) -> None:
        """Choose when to stand next."""
        self._stand_at = self._turn_behind(since)

    def _turn_behind(self, since: float) -> float:
        """Return when to stand: the older a member is, the earlier, and by chance (C5, C10)."""
        ages = self.topology.by_age()
        rank = ages.index(self.me.member) if self.me.member in ages else len(ages)
        return since + self._timing.rank_pause * (rank + self._uniform())

    # -------------------------------------------------------------- standing

    def _stand(self, now: float) -> None:
        self._pause(now + self._timing.member_timeout)
        if self.me.member in self.topology.baseline and self.voter.may_vote:
            self._ask(now, sure=False)
        else:  # nobody pings who is gone, and whoever asks for nothing is not told of it
            self._tell_baseline(Fetch(after=self.topology.index))

    def _ask(self, now: float, *, sure: bool) -> None:
        number = 1 + max(self._highest, self.voter.promised.number)
        term = self._candidacy.term if self._candidacy and sure else Term(number, self.me.member)
        patience = self._timing.member_timeout if sure else 2 * self._timing.heartbeat
        self._candidacy = Candidacy(term, sure=sure, until=now + patience)
        question = AskPromise(term=term, sure=sure)
        self._send(self.me.member, self._answer(question, now))
        for member in sorted(self._asked()):
            if member != self.me.member:
                self._send(member, question)

    def _asked(self) -> set[UUID]:
        """Return who is pinged, and asked to promise: the baseline, and who may come into it."""
        return {*self.topology.baseline, *self.topology.members_present}

    def _on_ask_promise(self, message: AskPromise, envelope: Envelope, now: float) -> None:
        if message.term.member == envelope.sender.member:
            answer = self._answer(message, now)
            if answer.granted and envelope.sender.member not in self._given_way:
                turn = self._turn_behind(now + self._timing.member_timeout)
                self._stand_at = max(self._stand_at, turn)
                self._given_way.add(envelope.sender.member)
            self._send(envelope.sender.member, answer)

    def _answer(self, question: AskPromise, now: float) -> Promise:
        """Promise a term, or tell whether it would be promised."""
        granted = self.voter.would_promise(question.term, now)
        if not question.sure and now < self._quiet_until:
            granted = False
        if granted and question.sure:
            self.voter.promise(question.term)
            self._note(PromisedTerm(question.term))
            self._given_way.clear()
            self._resign_before(question.term, now)
            self._quiet_until = now + self._timing.member_timeout
            self._pause(self._quiet_until)
        return Promise(
            term=question.term,
            sure=question.sure,
            granted=granted,
            promised=self.voter.promised,
            credentials=self._credentials(),
            accepted=self.voter.accepted,
        )

    def _on_promise(self, message: Promise, envelope: Envelope, now: float) -> None:
        self._highest = max(self._highest, message.promised.number)
        candidacy = self._candidacy
        if candidacy is None or message.credentials.incarnation != envelope.sender:
            return
        candidacy.take(message, envelope.decided)
        if not candidacy.sure:
            if candidacy.would_win(self.topology):
                self._ask(now, sure=True)
        else:
            self._lead_if_won(now)

    def _lead_if_won(self, now: float) -> None:
        candidacy = self._candidacy
        if candidacy is None or not candidacy.sure or not candidacy.wins(self.topology):
            return
        self._candidacy = None
        accepted = candidacy.to_adopt(self.topology)
        adopted = None if accepted is None else accepted.decision
        self._leading = Coordinator(
            self.me, candidacy.term, self._timing, now, adopted, self._waits
        )
        self._following = candidacy.term
        self._lead_on(self._leading, now)

    # -------------------------------------------------------------- leading

    def _lead_on(self, leading: Coordinator, now: float) -> None:
        if leading.has_lost(self.topology, now):
            return self._resign(now)
        if now >= leading.next_round:
            ping = Ping(
                term=leading.term, round=leading.begin_round(now), known=self._known_by_all()
            )
            for member in sorted(self._asked()):
                self._send(member, ping)
            self._propose_again(leading)
        self._decide_more(leading, now)

    def _known_by_all(self) -> int:
        """Return up to where all members that are present have what was decided, durably."""
        ends = (self._ends.get(one.member) for one in self.topology.present)
        shown = zip(self.topology.present, ends, strict=True)
        return min(
            (end.end if end and end.boot == one.boot else 0 for one, end in shown), default=0
        )

    def _decide_more(self, leading: Coordinator, now: float) -> None:
        for disk, reason in leading.refused_joins(self.topology, self._ends):
            self._refused_disks[disk.incarnation, disk.fresh] = None
            if len(self._refused_disks) > REFUSED_MAX:
                del self._refused_disks[next(iter(self._refused_disks))]
            refusal = JoinRefused(incarnation=disk.incarnation, nonce=disk.fresh, reason=reason)
            self._send(disk.incarnation.member, refusal)
        if leading.proposed is not None:
            return
        decision, refused = leading.due(self.topology, self._decisions, now)
        for asker, answer in refused:
            self._send(asker.member, answer)
        if decision is not None:
            leading.propose(decision, self.topology)
            self._propose_again(leading)

    def _propose_again(self, leading: Coordinator) -> None:
        if leading.proposed is not None:
            for member in leading.missing(self.topology):
                self._send(member, Propose(term=leading.term, decision=leading.proposed))

    def _resign(self, now: float) -> None:
        self._leading = None
        self._heard = NEVER
        self._pause(now)

    def _resign_before(self, term: Term, now: float) -> None:
        """Lead no more, and stand no more, if a higher term is promised to somebody."""
        self._highest = max(self._highest, term.number)
        if self._leading is not None and self._leading.term < term:
            self._resign(now)
        if self._candidacy is not None and self._candidacy.term < term:
            self._candidacy = None

    def _on_pong(self, message: Pong, envelope: Envelope, now: float) -> None:
        self._resign_before(message.promised, now)
        leading = self._leading
        if leading is None or message.term != leading.term:
            return
        member, boot = envelope.sender
        self._ends[member] = max(Reached(boot, message.end), self._ends.get(member, Reached(0, 0)))
        news = leading.heard(envelope.sender, message, now)
        for holder, number, seconds in list(leading.leases_due(self.topology, now)):
            lease = Lease(term=leading.term, round=number, seconds=seconds)
            self._send(holder.member, lease)
        if news:
            self._decide_more(leading, now)

    def _on_accepted(self, message: Accepted, envelope: Envelope, now: float) -> None:
        self._resign_before(message.promised, now)
        leading = self._leading
        if leading is None or message.term != leading.term:
            return
        decision = leading.accepted(envelope.sender.member, message.index, self.topology)
        if decision is not None:
            self._learn([decision], now)
            for member in sorted(self.topology.members):
                if member != self.me.member:
                    self._send(member, Decided(decisions=(decision,)))
            self._decide_more(leading, now)

    def _on_join(self, message: Join, envelope: Envelope, now: float) -> None:
        if self._leading is not None and message.credentials.incarnation == envelope.sender:
            self._leading.joining(message)

    def _on_propose_change(self, message: ProposeChange, envelope: Envelope, now: float) -> None:
        if self._leading is not None:
            self._leading.asked(envelope.sender, message, now)
            self._decide_more(self._leading, now)

    def _on_release(self, message: Release, envelope: Envelope, now: float) -> None:
        if self._leading is not None:
            self._leading.released(envelope.sender, message, self.topology)
            self._decide_more(self._leading, now)

    # -------------------------------------------------------------- following

    def _on_ping(self, message: Ping, envelope: Envelope, now: float) -> None:
        votes = self.voter.may_vote and message.term >= self.voter.promised
        if votes:
            if message.term > self.voter.promised:
                self.voter.promise(message.term)
                self._note(PromisedTerm(message.term))
            self.voter.hold(now + self._timing.lease)
        self.known_by_all = max(self.known_by_all, message.known)
        if message.term >= self.voter.promised:
            self._resign_before(message.term, now)
            self._following = message.term
            self._heard = now
            self._waits.led(self.topology, now)
            self._given_way.clear()
            # Whoever stood before the others may promise anything would only lose time.
            self._pause(max(now + self._timing.member_timeout, self.voter.held_until))
        self.lease.answering(message.term, message.round, now)
        pong = Pong(
            term=message.term,
            round=message.round,
            votes=votes,
            promised=self.voter.promised,
            end=self._durable,
            reaches=self.topology.members_present if self.reaches is None else self.reaches,
        )
        self._send(envelope.sender.member, pong)
        if message.term != self._releases_told or now >= self._tell_releases:
            self._releases_told, self._tell_releases = (
                message.term,
                now + self._timing.member_timeout,
            )
            self._release_again(envelope.sender.member)

    def _release_again(self, coordinator: UUID) -> None:
        """Say again what was released of what the log still gives to this incarnation."""
        for partition, (epoch, target) in self.released.epochs().items():
            copies = self.topology.partitions[partition]
            if (copies.author, copies.epoch) == (self.me, epoch):
                release = Release(partition=partition, epoch=epoch, target=target)
                self._send(coordinator, release)

    def _on_lease(self, message: Lease, envelope: Envelope, now: float) -> None:
        if not self.gone:
            self.lease.granted(message.term, message.round, message.seconds)

    def _on_propose(self, message: Propose, envelope: Envelope, now: float) -> None:
        accepted = self.voter.accepted
        index = message.decision.index
        if self.voter.accept(message.term, message.decision, self.topology.index):
            if accepted != self.voter.accepted:
                assert self.voter.accepted is not None
                self._note(self.voter.accepted)
            self._resign_before(message.term, now)
        elif message.term >= self.voter.promised:
            return  # it is behind, or has that decided already
        answer = Accepted(term=message.term, index=index, promised=self.voter.promised)
        self._send(envelope.sender.member, answer)

    def _on_refusal(self, message: JoinRefused, envelope: Envelope, now: float) -> None:
        if message.incarnation == self.me and message.nonce == self._disk.fresh:
            self.refused(message.reason)

    def _on_change_refused(self, message: ChangeRefused, envelope: Envelope, now: float) -> None:
        self._refused.append(message)

    # -------------------------------------------------------------- what is decided

    def _on_fetch(self, message: Fetch, envelope: Envelope, now: float) -> None:
        self._tell_decided(envelope.sender.member, message.after)

    def _tell_decided(self, member: UUID, after: int) -> None:
        first = self._decisions[0].index if self._decisions else self.topology.index + 1
        if after >= self.topology.index:
            return
        if after + 1 >= first:
            behind = self._decisions[after + 1 - first :]
            self._send(member, Decided(decisions=tuple(behind)))
        else:
            self._send(member, Decided(decisions=(), topology=self.topology))

    def _on_decided(self, message: Decided, envelope: Envelope, now: float) -> None:
        topology = message.topology
        if topology is not None and topology.index > self.topology.index:
            self._note(topology)
            self._take(topology, now)
        before = self.topology.index
        self._learn(message.decisions, now)
        if before < self.topology.index < envelope.decided:
            self._fetch(envelope, now)  # there was more than one message holds
        self._lead_if_won(now)

    def _learn(self, decisions: Sequence[Decision], now: float) -> None:
        for decision in decisions:
            if decision.index == self.topology.index + 1:
                topology = applied(self.topology, decision)
                self._decisions.append(decision)
                del self._decisions[:-DECISIONS_MAX]
                self._note(decision)
                self._take(topology, now)

    def _take(self, topology: Topology, now: float) -> None:
        self.topology = topology
        self._waits.look(topology, now)
        self.voter.learned(topology.index)
        if self._decisions and self._decisions[-1].index != topology.index:
            self._decisions.clear()
        leading = self._leading
        proposed = None if leading is None else leading.proposed
        is_over = proposed is not None and proposed.index <= topology.index
        if leading is not None and (is_over or self.me.member not in topology.baseline):
            self._resign(now)  # somebody else decided that one, or others vote
        if topology.is_gone(self.me) or is_impostor(self.me, self._disk.fresh, topology):
            self.lease.give_up()
            self._leading = self._candidacy = None
            self.refusal = misfit(self._credentials(), topology)
            self.gone = self.refusal is None

    # -------------------------------------------------------------- messages

    def step(self, envelope: Envelope, now: float) -> None:
        """Take a message.

        Raises ``ChangeError`` for decisions that cannot follow on those that are known here; it
        has changed nothing then.
        """
        known = self.topology.cluster
        foreign = None not in (known, envelope.cluster) and known != envelope.cluster
        impostor = is_impostor(envelope.sender, envelope.nonce, self.topology)
        impostor = impostor and not isinstance(envelope.message, Join)  # that is refused in words
        if self.gone or self.refusal is not None or foreign or impostor:
            return
        self._told[envelope.sender.member] = now
        if self.topology.is_gone(envelope.sender):
            return self._tell_decided(envelope.sender.member, envelope.decided)
        message = envelope.message
        member, members = envelope.sender.member, self.topology.members
        if members and member not in members and not isinstance(message, _STRANGERS):
            return
        if envelope.decided > self.topology.index:
            if not isinstance(message, Decided):
                self._fetch(envelope, now)
            if not isinstance(message, _BEHIND):
                return
        _STEPS[type(message)](self, message, envelope, now)

    def _fetch(self, envelope: Envelope, now: float) -> None:
        """Ask for what is missing; not again within a heartbeat, unless more is known since."""
        member, after = envelope.sender.member, self.topology.index
        asked, when = self._fetched.get(member, (-1, NEVER))
        if asked != after or now >= when + self._timing.heartbeat:
            self._fetched[member] = after, now
            self._send(member, Fetch(after=after))

    def _credentials(self) -> Credentials:
        return self._disk.credentials(self._durable)

    def _note(self, note: Note) -> None:
        self._notes.append(note)

    def _tell_baseline(self, message: Telling) -> None:
        for member in self.topology.baseline:
            self._send(member, message)

    @staticmethod
    def _rests_on_notes(message: Telling) -> bool:
        """Tell whether a message speaks of what has to be durable before anybody hears of it."""
        return isinstance(message, (AskPromise, Promise, Accepted, Pong))

    def _send(self, member: UUID, message: Telling) -> None:
        """Send, behind the sync if the message rests on what was noted and is not durable."""
        envelope = Envelope(
            sender=self.me,
            nonce=self._disk.fresh,
            cluster=self.topology.cluster,
            decided=self.topology.index,
            message=message,
        )
        if member == self.me.member:
            self._to_self.append(envelope)
        elif self._notes and self._rests_on_notes(message):
            self._send_later.append(Outgoing(target=member, envelope=envelope))
        else:
            self._send_now.append(Outgoing(target=member, envelope=envelope))


_STEPS: Mapping[type, Callable[[Agreement, Any, Envelope, float], None]] = {
    AskPromise: Agreement._on_ask_promise,
    Promise: Agreement._on_promise,
    Propose: Agreement._on_propose,
    Accepted: Agreement._on_accepted,
    Decided: Agreement._on_decided,
    Fetch: Agreement._on_fetch,
    Ping: Agreement._on_ping,
    Pong: Agreement._on_pong,
    Lease: Agreement._on_lease,
    Release: Agreement._on_release,
    Join: Agreement._on_join,
    JoinRefused: Agreement._on_refusal,
    ProposeChange: Agreement._on_propose_change,
    ChangeRefused: Agreement._on_change_refused,
}
