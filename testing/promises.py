"""What must never be in a cluster, whatever happens to its members: looked at while it runs.

By the numbers of the protocol:

1. of one transaction no group says both that it has committed, and that it was refused;
2. nothing is committed at one copy and rolled back at another one that is in-sync: no settle list
   rolls back what was acknowledged, and copies that are equally far have equal content;
3. what was acknowledged is pending or applied at every in-sync copy, when it is and ever after;
4. in-sync copies agree on every number that both know to be decided: see 2;
5. an index of the configuration log has one decision;
6. two members never serve one partition at one moment;
7. what is applied at a copy that comes back is applied at its primary.

1 and 3 are looked at whenever a client is told something, 2 to 7 whenever ``check`` is called.

Left out: that everything settles (8): ``SimCluster`` waits for that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any
from uuid import UUID

from ..affinity.changes import Decision
from ..affinity.topology import PartitionCopies, Topology
from ..engine.node.member import RunningMember
from ..tx.counter import PartitionUpdateCounter
from ..tx.numbers import applied_in, run_numbers, united, without
from ..wal.records import PrepareRecord, Run, SettledOutcome


class BrokenPromiseError(AssertionError):
    """Something happened in a cluster that must never happen; the text says what, and when."""


Members = Mapping[str, RunningMember]


class Promises:
    """What the members of one cluster have decided, and told their clients."""

    def __init__(
        self, cluster: UUID, now: Callable[[], float], digest: Callable[[str, int], str]
    ) -> None:
        """``digest`` returns a hash of all that a member has in a partition."""
        self.decided: dict[int, Decision] = {}
        """Decisions that were seen, by index."""
        self._cluster = cluster
        self._now = now
        self._digest = digest
        self._digests: dict[tuple[str, int], tuple[tuple[object, ...], str]] = {}
        self._acknowledged: dict[bytes, Run] = {}
        self._refused: dict[bytes, str] = {}
        self._highest: dict[int, int] = {}
        self._newest = Topology()
        """The newest decisions that anybody has known: those who run now may know less."""

    def __repr__(self) -> str:
        return f"<Promises: {len(self.decided)} decisions, {len(self._acknowledged)} commits>"

    def watch(self, name: str, member: RunningMember, running: Callable[[], Members]) -> None:
        """Hear what an incarnation tells its clients."""
        committing, told = member.committing, member.committing._tell
        committing.acknowledged = partial(self._on_acknowledged, name, running)

        def tell(request: Any, home: int, found: Any) -> None:
            if request.operation == "outcome" and member.partitions.serves(home, member.now):
                tx_id, given, _ = request.arguments
                if not given:
                    self._on_outcome(name, tx_id, found)
            told(request, home, found)

        committing._tell = tell  # type: ignore[method-assign]  # nobody else may look over its shoulder

    # ---------------------------------------------------------------- what clients are told

    def _on_outcome(self, name: str, tx_id: bytes, found: object) -> None:
        if found == "rolled_back":
            if tx_id in self._acknowledged:
                raise self._broken(
                    f"{name} tells that {tx_id.hex()} was refused: it was acknowledged"
                )
            self._refused[tx_id] = name

    def _on_acknowledged(
        self, name: str, running: Callable[[], Members], tx_id: bytes, runs: Sequence[int]
    ) -> None:
        """Raise unless every copy that runs has what is being acknowledged."""
        if tx_id in self._refused:
            told = self._refused[tx_id]
            raise self._broken(f"{name} acknowledged {tx_id.hex()}, and {told} told it refused")
        members = running()
        topology = members[name].agreement.topology
        self._learn(members)
        for run in (Run(*fields) for fields in zip(*[iter(runs)] * 4, strict=True)):
            copies, last = topology.partitions[run.partition], run.first + run.count - 1
            self._acknowledged[tx_id] = run
            self._highest[run.partition] = max(last, self._highest.get(run.partition, 0))
            for other, member in members.items():
                if member.agreement.me in copies.in_sync and not _holds(member, run):
                    raise self._broken(
                        f"{name} acknowledged {tx_id.hex()}, numbers from {run.first} on of "
                        f"partition {run.partition}, and {other} has it not"
                    )

    # ---------------------------------------------------------------- at every step

    def check(self, running: Members) -> None:
        """Raise ``BrokenPromiseError`` for what must never be."""
        members = {
            name: member
            for name, member in sorted(running.items())
            if member.agreement.topology.cluster == self._cluster  # else somebody put it there
        }
        serving: dict[int, str] = {}
        for name, member in members.items():
            self._check_decisions(name, member)
            for copies in member.partitions.authored():
                partition = copies.row.partition
                if member.partitions.serves(partition, member.now):
                    other = serving.setdefault(partition, name)
                    if other != name:
                        raise self._broken(f"{other} and {name} both serve partition {partition}")
        self._learn(members)
        for copies in self._newest.partitions:
            listed = {
                name: member
                for name, member in members.items()
                if member.agreement.me in copies.in_sync and not member.ended
            }
            self._check_copies(copies, listed)
            if copies.moving:
                self._check_moving(copies, members)

    def _check_moving(self, copies: PartitionCopies, members: Members) -> None:
        """Raise if a copy that comes back has applied what its primary has not."""
        partition = copies.row.partition
        running = {member.agreement.me: member for member in members.values() if not member.ended}
        primary = running.get(copies.author)
        if primary is None or not primary.partitions.is_open(partition):
            return
        state = primary.log.state
        pending = state.copies.pending.get(partition)
        # What several groups have committed is sent before it has taken effect at the primary.
        decided = [
            run_numbers(one.run)
            for one in (pending.all() if pending is not None else ())
            if isinstance(one, PrepareRecord) and len(one.participants) > 1
        ]
        there = united([*applied_in(state.counters[partition]), *decided])
        for copy, admission in copies.moving:
            member = running.get(copy)
            following = member.groups.following(partition) if member is not None else None
            if following is None or following.admission != admission:
                continue
            assert member is not None
            more = without(applied_in(member.log.state.counters[partition]), there)
            if more:
                raise self._broken(
                    f"{copy} has {more} of partition {partition}, and its primary has not"
                )

    def _learn(self, members: Members) -> None:
        known = [self._newest, *(member.agreement.topology for member in members.values())]
        before, self._newest = self._newest, max(known, key=lambda topology: topology.index)
        for loss in self._newest.losses[len(before.losses) :]:
            self._forget(loss.partition)

    def _forget(self, partition: int) -> None:
        """Take back what was promised of a partition that was lost, and then reset (S6)."""
        self._highest.pop(partition, None)
        self._acknowledged = {
            tx_id: run for tx_id, run in self._acknowledged.items() if run.partition != partition
        }

    def _check_decisions(self, name: str, member: RunningMember) -> None:
        for decision in member.agreement.decisions_kept():
            known = self.decided.setdefault(decision.index, decision)
            if known != decision:
                raise self._broken(
                    f"{decision.index} was decided twice: {known}, and at {name} {decision}"
                )

    def _check_copies(self, copies: PartitionCopies, listed: Members) -> None:
        partition = copies.row.partition
        seen: dict[tuple[object, ...], tuple[str, str]] = {}
        for name, member in listed.items():
            state, counter = member.log.state, member.log.state.counters[partition]
            highest = self._highest.get(partition, 0)
            if counter.hwm < highest:
                raise self._broken(
                    f"number {highest} of partition {partition} was acknowledged, and {name}, "
                    f"which is in-sync, ends at {counter.hwm}"
                )
            settled = state.copies.lists.get(partition)
            for one in settled.transactions if settled is not None else ():
                rolled_back = one.outcome is SettledOutcome.ROLLED_BACK
                if rolled_back and self._acknowledged.get(one.tx_id) == one.run:
                    raise self._broken(
                        f"{name} has a list that rolls {one.tx_id.hex()} back: it was acknowledged"
                    )
            if len(copies.in_sync) < 2 or counter.out_of_order:
                continue
            place = (state.epoch_tables[partition], counter.lwm, member.decided)
            known = self._digests.get((name, partition))
            if known is None or known[0] != place:
                known = self._digests[name, partition] = place, self._digest(name, partition)
            other = seen.setdefault(place, (name, known[1]))
            if other[1] != known[1]:
                raise self._broken(
                    f"{other[0]} and {name} have other content of partition {partition} up to "
                    f"number {counter.lwm} of epochs {place[0]}"
                )

    def _broken(self, what: str) -> BrokenPromiseError:
        return BrokenPromiseError(f"at {self._now():.3f} s: {what}")


def _holds(member: RunningMember, run: Run) -> bool:
    """Tell whether a transaction is pending at a copy, or its numbers are applied.

    With an id of a user it has another one there if it is of several groups.
    """
    state = member.log.state
    pending = state.copies.pending.get(run.partition)
    if pending is not None and any(one.run == run for one in pending.all()):
        return True
    return _has(state.counters[run.partition], run.first, run.count)


def _has(counter: PartitionUpdateCounter, first: int, count: int) -> bool:
    """Tell whether all numbers of a run are applied."""
    last = first + count - 1
    return last <= counter.lwm or any(
        start < first and last <= start + delta for start, delta in counter.out_of_order
    )
