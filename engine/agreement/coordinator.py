"""What a coordinator does in its term: rounds of pings, leases, one decision after the other.

Invariants:

- one decision at a time is undecided; what the one before may have decided comes first, and until
  that is decided no lease is handed out (C2);
- a decision is decided once a majority of the baseline before it has durably accepted it in this
  term (C3), and of the baseline behind it, too, if that is another one (C4);
- a partition gets another author only when the lease of its old one has surely ended, or that one
  has released it (L4);
- who is declared gone leaves the sets whose primaries have outlived it in the same decision; the
  others stay as they are, and are looked at again when their primaries have answered (C10, I4).

Left out: messages and durability, which are ``machine``'s; who has outlived whom (``answers``),
and which sets have to change then (``affinity.takeovers``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeGuard
from uuid import UUID

from ...affinity.changes import (
    BaselineChanged,
    Begun,
    CopiesAdded,
    CopiesAdmitted,
    CopiesRemoved,
    Decision,
    EpochsOpened,
    GoalsReached,
    GoalsSet,
    Joined,
    MemberGone,
    MemberLost,
    MemberWanted,
    NamespaceDropped,
    NamespaceMade,
    NamespaceRenamed,
    PartitionReset,
    Takeover,
    TopologyChange,
    TransactionResolved,
)
from ...affinity.folding import applied, verdicts
from ...affinity.goals import goals_due, rows_due
from ...affinity.takeovers import GivenUp, removals_due, takeovers_due
from ...affinity.topology import Incarnation, KnownMember, PartitionCopies, Topology
from .answers import Answers
from .departures import Departures
from .identity import misfit
from .leases import FOREVER, CoordinatorLease, has_majorities, majority, voting
from .messages import ChangeRefused, Credentials, Guard, Join, Pong, ProposeChange, Release, Term
from .timing import Timing
from .waits import Waits


class Reached(NamedTuple):
    """How far the log of an incarnation was durable, as it said itself."""

    boot: int
    end: int


Asked = tuple[Incarnation, ProposeChange, ChangeRefused | None]
"""Who asks for a change, which, and why it is not made."""

REQUESTS_MAX = 4096
"""Changes that are asked for and wait; of more than that the oldest are forgotten."""

GIVE_IT_UP = "the copy reaches more members than its primary: release the partition"
"""Why a copy that does not answer its primary is not taken out of the set: it is moved (I3)."""

_OF_MAPS = (NamespaceMade, NamespaceRenamed, NamespaceDropped)
_OF_COORDINATORS = (Begun, Joined, BaselineChanged, GoalsReached)
_OF_COPIES = (CopiesRemoved, CopiesAdmitted, CopiesAdded, Takeover)


class Coordinator:
    """The coordinator of one term."""

    def __init__(
        self,
        me: Incarnation,
        term: Term,
        timing: Timing,
        now: float,
        adopted: Decision | None,
        waits: Waits,
    ) -> None:
        self.term = term
        self.lease = CoordinatorLease(timing)
        self.adopting = adopted is not None
        self.proposed: Decision | None = adopted
        self.next_round = now
        self.next_end = FOREVER
        """When the lease of somebody ends whose partitions are to move then."""
        self._me = me
        self._timing = timing
        self._elected = self._round_begun = now
        self._answers = Answers(timing, now)
        self._accepted: set[UUID] = set()
        self._losing: set[Incarnation] = set()
        self._waiting: dict[Incarnation, int] = {}
        self._joins: dict[UUID, Join] = {}
        self._requests: dict[tuple[Incarnation, int], ProposeChange] = {}
        self._departures = Departures(timing)
        self._released: dict[int, GivenUp] = {}
        self._noted = waits
        self._look_again = now + timing.member_timeout  # until then all have said what is open
        self._stuck: set[Incarnation] = set()
        """Authors that answer and open nothing: they get no lease any more."""
        self._ignored_since: dict[int, float] = {}
        """Since when somebody has asked to go on with each lost partition, and may by itself."""
        self._offers: set[tuple[UUID, int]] = set()
        """Who has asked to go on with which partition that was lost."""

    # -------------------------------------------------------------- its term

    def has_lost(self, topology: Topology, now: float) -> bool:
        """Tell whether its own lease has ended, or never began."""
        begun = self._elected + self._timing.lease
        return now >= max(self.lease.end(self._voting(topology)), begun)

    def reaches_majority(self, topology: Topology, now: float) -> bool:
        """Tell whether a majority has answered lately."""
        return self._reaches(topology.baseline, now)

    def _reaches(self, baseline: Collection[UUID], now: float) -> bool:
        lately = [member for member in baseline if self._answers.lately(member, now)]
        return len(lately) >= majority(baseline)

    def _voting(self, topology: Topology) -> tuple[tuple[UUID, ...], ...]:
        return voting(topology, self.proposed)

    # -------------------------------------------------------------- rounds and leases

    def begin_round(self, now: float) -> int:
        """Return the number of the next round of pings, which are sent now."""
        self._round_begun = now
        self.next_round = now + self._timing.heartbeat
        return self.lease.begin_round(now)

    def heard(self, sender: Incarnation, pong: Pong, now: float) -> bool:
        """Take an answer to a ping; tell whether something may be due by it."""
        if pong.votes:
            self.lease.answered(sender.member, pong.round)
        self._waiting[sender] = pong.round
        return self._answers.heard(sender, pong, now)

    def leases_due(
        self, topology: Topology, now: float
    ) -> Iterator[tuple[Incarnation, int, float]]:
        """Yield who gets a lease now: of the rounds that a majority has answered."""
        voters = self._voting(topology)
        newest = self.lease.newest(voters)
        for holder, number in sorted(self._waiting.items()):
            if self.adopting or number > newest or not topology.is_present(holder):
                continue
            if holder in self._losing or holder in self._stuck:
                continue
            del self._waiting[holder]
            seconds = self.lease.hand_out(holder, voters, now)
            if seconds:
                yield holder, number, seconds

    def released(self, sender: Incarnation, release: Release, topology: Topology) -> None:
        """Note that a primary serves an epoch no more."""
        if 0 <= release.partition < len(topology.partitions):
            copies = topology.partitions[release.partition]
            if (copies.author, copies.epoch) == (sender, release.epoch):
                self._released[release.partition] = GivenUp(release.epoch, release.target)

    def unreachable(self, incarnation: Incarnation) -> None:
        """Take it that an incarnation is dead: its connection broke, and a new one was refused."""
        self._notice(incarnation)

    def _notice(self, incarnation: Incarnation) -> None:
        """Note that an incarnation ends; the next round shows who outlived it, and begins now."""
        if self._answers.notice(incarnation, self.lease.round):
            self.next_round = self._round_begun

    # -------------------------------------------------------------- decisions

    def asked(self, sender: Incarnation, request: ProposeChange, now: float) -> None:
        """Keep a change that a member asks for."""
        self._requests[sender, request.request] = request
        if _leaves(sender, request.change):
            self._departures.asked(sender, now)
        while len(self._requests) > REQUESTS_MAX:
            del self._requests[next(iter(self._requests))]

    def joining(self, join: Join) -> None:
        """Keep that an incarnation asks to be in the topology."""
        self._joins[join.credentials.incarnation.member] = join

    def next_due(self) -> float:
        """Return when there is something to do at the latest, if nobody says anything before."""
        return self.next_round if self.proposed is not None else min(self.next_round, self.next_end)

    def propose(self, decision: Decision, topology: Topology) -> None:
        """Take the next decision into work.

        From here on whoever loses a partition by it gets no lease: its last one has ended, and a
        new one could outlive the decision (L4).  A lease covers nothing that was released (L7).
        """
        assert self.proposed is None
        self.proposed = decision
        self._accepted.clear()
        self._losing = {
            copies.author
            for change in decision.changes
            if isinstance(change, Takeover)
            for copies in [topology.partitions[change.partition]]
            if copies.author != change.author and not self._is_given_up(copies)
        }

    def accepted(self, member: UUID, index: int, topology: Topology) -> Decision | None:
        """Take that a member has accepted; return the decision if majorities have now."""
        if self.proposed is None or self.proposed.index != index:
            return None
        self._accepted.add(member)
        if not has_majorities(self._accepted, self._voting(topology)):
            return None
        decided, self.proposed, self.adopting = self.proposed, None, False
        self._losing.clear()
        return decided

    def missing(self, topology: Topology) -> list[UUID]:
        """Return who has not accepted what is proposed."""
        members = {member for baseline in self._voting(topology) for member in baseline}
        return sorted(members - self._accepted)

    def refused_joins(
        self, topology: Topology, ends: Mapping[UUID, Reached]
    ) -> Iterator[tuple[Credentials, str]]:
        """Yield who may not join, with the reason, and forget that they asked."""
        for member, join in sorted(self._joins.items()):
            reason = misfit(join.credentials, topology) or _too_short(join, ends.get(member))
            if reason is not None:
                del self._joins[member]
                yield join.credentials, reason

    def due(
        self, topology: Topology, kept: Sequence[Decision], now: float
    ) -> tuple[Decision | None, list[tuple[Incarnation, ChangeRefused]]]:
        """Return the next decision, of all that is ready, and the requests that are refused.

        ``kept`` are the newest decisions behind which the topology is.
        """
        requests, self._requests = self._requests, {}
        self._noted.look(topology, now)
        self._offers = {
            (sender.member, request.change.partition)
            for (sender, _), request in requests.items()
            if isinstance(request.change, PartitionReset) and topology.is_present(sender)
        }
        asked_for = {partition for _, partition in self._offers}
        self._ignored_since = {
            p: self._ignored_since.get(p, now)
            for p in (topology.lost if topology.loss_policy == "ignore" else ())
            if p in self._ignored_since or p in asked_for
        }
        asked: list[Asked] = []
        going: set[UUID] = set()
        for (sender, number), request in sorted(requests.items(), key=_best_copies_first):
            if self._waits(sender, request, topology, now):
                self._requests[sender, number] = request
            else:
                refusal = self._refusal(sender, request, topology, kept, going)
                asked.append((sender, request, refusal))
                if refusal is None and _lets_go(request.change):
                    going.add(request.change.member)
        own = [*self._joined(topology, now), *self._gone(topology, now)]
        own += self._opens_nothing(topology, asked, now)
        self._joins.clear()
        wanted = [*own, *(request.change for _, request, refusal in asked if refusal is None)]
        reasons = verdicts(topology, wanted)
        refused = [(sender, refusal) for sender, _, refusal in asked if refusal is not None]
        fresh = ((sender, request) for sender, request, refusal in asked if refusal is None)
        refused += [
            (sender, ChangeRefused(request=request.request, reason=reason))
            for (sender, request), reason in zip(fresh, reasons[len(own) :], strict=True)
            if reason is not None
        ]
        changes = [change for change, reason in zip(wanted, reasons, strict=True) if not reason]
        following = _behind(topology, changes)
        for incarnation in topology.present - following.present:
            self._notice(incarnation)
        goals = goals_due(following)
        changes += rows_due(following) if goals is None else [goals]
        changes += self._changes_of_sets(_behind(topology, changes), now)
        if not changes and (change := self._change_of_baseline(topology, now)) is not None:
            changes = [change]
        return (Decision(topology.index + 1, tuple(changes)) if changes else None), refused

    def _change_of_baseline(self, topology: Topology, now: float) -> BaselineChanged | None:
        """Return the next change of the baseline that is due, one member at a time (C9, S5).

        Nobody is let in, or out, without whom, or with whom, too few would be there.
        """
        for member, known in sorted(topology.members.items()):
            voters = {*topology.baseline}
            if member in voters and known.leaving and not topology.needs(member):
                voters.remove(member)
            elif member not in voters and self._may_enter(known, topology, now):
                voters.add(member)
            else:
                continue
            if voters and self._hears(voters, topology, now):
                return BaselineChanged(baseline=tuple(sorted(voters)))
        return None

    def _hears(self, baseline: Collection[UUID], topology: Topology, now: float) -> bool:
        """Tell whether a majority is there, and has answered lately, in this term."""
        members = (topology.members[member] for member in baseline)
        present = [known.incarnation for known in members if known.present]
        answered = [one for one in present if self._answers.surely_lately(one, now)]
        return len(answered) >= majority(baseline)

    def _may_enter(self, known: KnownMember, topology: Topology, now: float) -> bool:
        """Tell whether a member that votes for nothing yet has been there for long enough."""
        asked = topology.auto_join if known.wanted is None else known.wanted
        return known.present and asked and self._answers.steadily(known.incarnation, now)

    def _waits(
        self, sender: Incarnation, request: ProposeChange, topology: Topology, now: float
    ) -> bool:
        """Tell whether it is too early to answer a request.

        A partition that was lost gets another author, too, only once the lease of its old one has
        ended: that one may have been cut off only (L4).  Until then it may say what it has of a
        transaction, too, so none is resolved.  Where a partition goes on by itself everybody who
        may have a better copy is waited for, but not for ever.
        """
        change = request.change
        if isinstance(change, TransactionResolved):
            places = {partition for partition, _ in change.missing} & {*topology.deserted}
            authors = [topology.partitions[partition].author for partition in sorted(places)]
            return any(now < self.lease.held_until(author) for author in authors)
        if isinstance(change, PartitionReset) and change.partition in topology.lost:
            if now < self.lease.held_until(topology.partitions[change.partition].author):
                return True
            ignored = topology.loss_policy == "ignore"
            return ignored and self._may_be_better(change.partition, topology, now)
        return _leaves(sender, change) and self._departures.waits(sender, topology, now)

    def _may_be_better(self, partition: int, topology: Topology, now: float) -> bool:
        """Tell whether somebody who has not said what it has of a partition is waited for.

        That counts from the first word, and not from the loss: members say what they have once the
        policy is to ignore losses, and of a part of what is lost at a time.
        """
        if now >= self._ignored_since.get(partition, now) + self._timing.restart_wait:
            return False
        members = (topology.members[member] for member in topology.baseline)
        awaited = [known.member for known in members if not known.lost and not known.voter]
        return any((member, partition) not in self._offers for member in awaited)

    def _refusal(
        self,
        sender: Incarnation,
        request: ProposeChange,
        topology: Topology,
        kept: Sequence[Decision],
        going: Collection[UUID],
    ) -> ChangeRefused | None:
        """Return the refusal of a change that is not made, or that was made from what is over."""
        number, after = request.request, request.after
        reason = self._objection(sender, request, topology, going)
        if reason is not None:
            return ChangeRefused(request=number, reason=reason)
        if after is None or _has_maps_of(topology, kept, after):
            return None
        reason = f"the change was made from the maps behind decision {after}; these have changed"
        return ChangeRefused(request=number, reason=reason, stale=True)

    def _objection(
        self,
        sender: Incarnation,
        request: ProposeChange,
        topology: Topology,
        going: Collection[UUID],
    ) -> str | None:
        """Return why a change that could follow is not made all the same; None if it is.

        ``going`` are the members that are told to leave in the same decision.
        """
        stale = _stale(topology, request.guards)
        change = request.change
        if isinstance(change, _OF_COORDINATORS):
            return "nobody asks for that: it follows from what is decided"
        if isinstance(change, GoalsSet) and change.members != topology.placed:
            return "the partitions are divided among other members by now"
        if isinstance(change, PartitionReset) and change.author != sender:
            return "who goes on with a partition that was lost asks for that itself"
        if isinstance(change, MemberWanted) and not change.wanted:
            return _cannot_leave(topology, change.member, going)
        if _leaves(sender, change):
            return self._departures.objection(sender, topology, self._released)
        if stale is not None or not isinstance(change, _OF_COPIES):
            return stale
        for copies in _copies_changed(topology, change):
            if copies.author != sender:
                name = f"partition {copies.row.partition}"
                return f"{name} is served by {copies.author}, and only that one asks for this"
            if isinstance(change, CopiesAdmitted | CopiesAdded):
                accused = set[Incarnation]()
            elif isinstance(change, CopiesRemoved):
                accused = {change.copy} & {*copies.in_sync}
            else:
                accused = {*copies.in_sync} - {*change.in_sync}
                if change.author != sender or not {*change.in_sync} <= {*copies.in_sync}:
                    return "who asks for a takeover goes on, with copies of the last in-sync set"
            if any(self._answers.reaches_more(one, sender, copies) for one in accused):
                return GIVE_IT_UP
        return None

    def _joined(self, topology: Topology, now: float) -> list[TopologyChange]:
        changes: list[TopologyChange] = []
        for member, join in sorted(self._joins.items()):
            known = topology.members.get(member)
            credentials = join.credentials
            if known is None or credentials.incarnation.boot > known.boot:
                self._answers.joined(member, now)
                changes.append(
                    Joined(
                        incarnation=credentials.incarnation,
                        nonce=credentials.fresh,
                        address=join.address,
                        voter=join.voter,
                    )
                )
        return changes

    def _gone(self, topology: Topology, now: float) -> list[TopologyChange]:
        """Return who is gone (C10), once the others have shown that they are not.

        While a whole cluster stops nobody is: who happens to be last would be alone in all sets.
        Nor is anybody whom no majority has outlived (X4): else one that is deaf would propose that
        the others are gone, and they were once somebody adopts that.
        """
        if self._departures.too_few(topology):
            return []
        present = sorted(topology.present - {self._me})
        for incarnation in present:
            if not self._answers.lately(incarnation.member, now):
                self._notice(incarnation)
        return [
            MemberGone(incarnation=incarnation)
            for incarnation in present
            if self._answers.is_noticed(incarnation)
            and self._answers.all_outlived(incarnation, topology, self.lease.round)
            and has_majorities(self._answers.survivors(incarnation), [topology.baseline])
        ]

    def _opens_nothing(
        self, topology: Topology, asked: Iterable[Asked], now: float
    ) -> list[TopologyChange]:
        """Return authors that answer, and have not opened an epoch for too long (X4).

        They count as gone, if others who have copies are there to go on, and can decide that.  An
        epoch whose author says just now that it is open is: that had to wait for a decision only.
        """
        if now < self._look_again:
            return []
        self._look_again = now + self._timing.heartbeat
        self._noted.led(topology, now)
        said = {
            one
            for _, request, _ in asked
            if isinstance(request.change, EpochsOpened)
            for one in request.change.opened
        }
        late = [
            topology.partitions[p]
            for (p, epoch), seconds in self._noted.unopened.items()
            if seconds >= self._timing.exchange_timeout and (p, epoch) not in said
        ]
        self._stuck = {
            copies.author
            for copies in late
            if copies.author in topology.present
            and any(copy in topology.present for copy in copies.in_sync if copy != copies.author)
        }
        there = {*topology.baseline} & topology.members_present
        if len(there - {one.member for one in self._stuck}) < majority(topology.baseline):
            self._stuck.clear()
        return [MemberGone(incarnation=incarnation) for incarnation in sorted(self._stuck)]

    def _is_given_up(self, copies: PartitionCopies) -> bool:
        """Tell whether the author of the newest epoch of a partition serves it no more."""
        given_up = self._released.get(copies.row.partition)
        return given_up is not None and given_up.epoch == copies.epoch

    def _changes_of_sets(self, topology: Topology, now: float) -> list[TopologyChange]:
        self.next_end = FOREVER

        def may_move(copies: PartitionCopies) -> bool:
            author = copies.author
            end = self.lease.held_until(author)
            if (
                self._is_given_up(copies)
                or topology.members[author.member].boot > author.boot
                or now >= end
            ):
                return True
            self.next_end = min(self.next_end, end)
            return False

        def waited(partition: int) -> bool:
            epoch = topology.partitions[partition].epoch
            since = self._noted.deserted.get((partition, epoch), now)
            return now >= since + self._timing.restart_wait

        for partition in [*self._released]:
            if not self._is_given_up(topology.partitions[partition]):
                del self._released[partition]
        outlived = self._answers.outlived
        return [
            *removals_due(topology, outlived),
            *takeovers_due(
                topology,
                may_move,
                outlived=outlived,
                waited=waited,
                released=self._released,
                leaving=self._departures.leaving(),
            ),
        ]


def _behind(topology: Topology, changes: Sequence[TopologyChange]) -> Topology:
    """Return the topology behind changes of the next decision."""
    decision = Decision(topology.index + 1, tuple(changes))
    return applied(topology, decision) if changes else topology


def _best_copies_first(asked: tuple[tuple[Incarnation, int], ProposeChange]) -> tuple[int, ...]:
    """Return where a request stands: of resets of one partition that of the best copy is first.

    Who begins with nothing has opened no epoch, and has no number.
    """
    change = asked[1].change
    if isinstance(change, PartitionReset):
        return change.partition, -change.opened, -change.upto
    return (-1,)


def _lets_go(change: TopologyChange) -> TypeGuard[MemberWanted | MemberLost]:
    """Tell whether others are to hold the data of a member by a change."""
    return isinstance(change, MemberLost) or (
        isinstance(change, MemberWanted) and not change.wanted
    )


def _cannot_leave(topology: Topology, member: UUID, going: Collection[UUID]) -> str | None:
    """Return why the data of a member cannot move to others, with all that go."""
    stay = len({*topology.holding} - {member, *going})
    if member in topology.holding and stay < topology.min_in_sync:
        return (
            f"{stay} member{'s' * (stay != 1)} with data would stay, and nothing is written to "
            f"fewer than {topology.min_in_sync} copies"
        )
    return None


def _leaves(sender: Incarnation, change: TopologyChange) -> bool:
    """Tell whether who asks for a change wants to go."""
    return isinstance(change, MemberGone) and change.incarnation == sender


def _copies_changed(
    topology: Topology, change: CopiesRemoved | CopiesAdmitted | CopiesAdded | Takeover
) -> Iterable[PartitionCopies]:
    """Return the copies of the partitions that a change names, as far as there are any."""
    named = (change.partition,) if isinstance(change, Takeover) else change.partitions
    return [topology.partitions[p] for p in named if 0 <= p < len(topology.partitions)]


def _too_short(join: Join, reached: Reached | None) -> str | None:
    """Return why a disk is an old image of one boot: its log ends before what it had told (C7)."""
    member, boot = join.credentials.incarnation
    if reached is None or boot <= reached.boot or join.credentials.end >= reached.end:
        return None
    return (
        f"member {member} had decision {reached.end} on its disk, and this one ends at "
        f"{join.credentials.end}: it is an old image"
    )


def _has_maps_of(topology: Topology, kept: Sequence[Decision], after: int) -> bool:
    """Tell whether no map has surely been made, renamed or dropped behind a decision."""
    if after >= topology.index:
        return True
    behind = [decision for decision in kept if decision.index > after]
    if len(behind) < topology.index - after:
        return False  # some of them are not kept
    return not any(isinstance(change, _OF_MAPS) for one in behind for change in one.changes)


def _stale(topology: Topology, guards: tuple[Guard, ...]) -> str | None:
    """Return why a change was made from what is not so any more (C6)."""
    for partition, epoch, changed in guards:
        if not 0 <= partition < len(topology.partitions):
            return f"there is no partition {partition}"
        copies = topology.partitions[partition]
        if (copies.epoch, copies.changed) != (epoch, changed):
            return (
                f"partition {partition} is at epoch {copies.epoch}, last changed by decision "
                f"{copies.changed}; the change was made from epoch {epoch} and decision {changed}"
            )
    return None
