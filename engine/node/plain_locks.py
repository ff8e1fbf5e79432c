"""Plain locks: those of open pessimistic transactions, at the primary of what they lock (T3, T16).

    acquire -> in the queue, until it is there -> acquired -> commit locks, or given back

The member through which a client locks *keeps* its transaction (``open_transactions``), and asks
for its locks, by the name that the client gave it.  An *acquiring* is one such question: keys, or
a range, of some partitions that are served here.

Invariants:

- A transaction has all plain locks that it was granted in a partition, or none: they go together,
  at its commit, when they are given back, when their keeper has gone, and with the epoch (T2).
- A transaction acquires at one member at a time, one lock after the other.
- What was acquired is read behind every older write of it: none is on its way any more.  It is
  read under the lock, and told with a lease (L5).
- Of those who wait for each other the youngest ends, and nobody else: a *probe* is sent for each
  that waits, goes on to those it waits for, and stops at who is younger than it.  If it comes back,
  the one it was sent for is the youngest of a circle.

Left out: who has which keys (``group_locks``), what commits (``participating``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from ...affinity.errors import DeadlockError, LockTimeoutError, RolledBackError, TidelogError
from ...affinity.topology import Incarnation, Topology
from ...tx.locks import Deadlock, Granted, KeyLock, RangeLock, Want
from ..commit.entries import Entry
from ..commit.lock_manager import covers, shown_lock
from ..data.stored import split_key
from . import reads
from .group_locks import LOCKED_HINT, GroupLocks, is_locked
from .log import NodeLog
from .partitions import Partitions, RoutedError
from .post import Post
from .tx_messages import (
    AcquireWanted,
    FoundAt,
    LockProbe,
    acquired_message,
    ids_message,
    probe_message,
    told_failure,
)

PROBE_AFTER_S, PROBE_PAUSE_S_MAX = 0.05, 0.4
"""Seconds of a wait after which it is probed; pauses double from that on, up to the second."""
VALUES_BYTES_MAX = 1 << 20
"""Bytes of values that come with their locks; of more the client asks by itself."""
ASK_OVER_S = 2.0
"""Seconds after which the keeper of locks is asked whether they are wanted still."""


@dataclass(slots=True, eq=False)
class _Holding:
    """What an open transaction has in one partition."""

    name: bytes
    keeper: Incarnation
    partition: int
    owner: int
    ask_at: float


@dataclass(slots=True, eq=False)
class _Acquiring:
    """What an open transaction is about to get."""

    keeper: Incarnation
    wanted: AcquireWanted
    left: deque[tuple[int, Want]]
    """Partition and lock of each; the first one is waited for."""
    got: list[Want] = field(default_factory=list)
    until: float = 0.0
    probe_at: float = 0.0
    pause: float = PROBE_AFTER_S
    round: int = 0


class PlainLocks:
    """The plain locks of all partitions that one incarnation serves."""

    def __init__(
        self,
        log: NodeLog,
        partitions: Partitions,
        locks: GroupLocks,
        post: Post,
        now: Callable[[], float],
    ) -> None:
        self._log = log
        self._partitions = partitions
        self._locks = locks
        self._post = post
        self._now = now
        self._holdings: dict[bytes, dict[int, _Holding]] = {}
        """By transaction and partition."""
        self._by_owner: dict[int, _Holding] = {}
        self._acquiring: dict[bytes, _Acquiring] = {}
        locks.granted = self._granted

    def __repr__(self) -> str:
        return f"<PlainLocks of {len(self._holdings)}, {len(self._acquiring)} to get some>"

    # -------------------------------------------------------------- acquiring

    def acquire(self, keeper: Incarnation, wanted: AcquireWanted) -> None:
        """Lock something for an open transaction; its keeper hears once that is so, or why not."""
        self._forget(wanted.name)
        if keeper not in self._keepers(wanted.name):
            self.give_back([wanted.name])  # an earlier try, through somebody else
        now = self._now()
        acquiring = _Acquiring(keeper, wanted, deque(_wants(wanted)))
        acquiring.until = now + wanted.wait_us / 1e6
        acquiring.probe_at = now + PROBE_AFTER_S
        try:
            self._check(wanted)
        except TidelogError as error:
            self._tell(acquiring, error)
            return
        self._acquiring[wanted.name] = acquiring
        self._go_on(acquiring)

    def _check(self, wanted: AcquireWanted) -> None:
        """Raise if nothing can be locked there: before anything is."""
        if self._log.failure is not None:
            raise RoutedError("wait", "the log of this member failed")
        self._partitions.check(wanted.partitions, self._now())
        self._partitions.check_epochs(zip(wanted.partitions, wanted.epochs, strict=True))

    def _go_on(self, acquiring: _Acquiring) -> None:
        """Take lock after lock, until one is waited for, or all are there."""
        while acquiring.left:
            partition, want = acquiring.left[0]
            owner = self._owner(acquiring, partition)
            try:
                answer = self._locks.request(owner, want)
            except TidelogError as error:
                self._fail(acquiring, error)
                return
            if not isinstance(answer, Granted):
                self._waits(
                    acquiring, owner, answer.victims if isinstance(answer, Deadlock) else ()
                )
                return
            acquiring.got.append(want)
            acquiring.left.popleft()
        if not self._is_overtaken(acquiring):
            found = self._found(acquiring.wanted)
            now, partitions = self._now(), acquiring.wanted.partitions
            if all(self._partitions.serves(partition, now) for partition in partitions):  # L5
                del self._acquiring[acquiring.wanted.name]
                self._tell(acquiring, None, found)

    def _waits(self, acquiring: _Acquiring, owner: int, victims: Iterable[int]) -> None:
        """Let it wait; but not if it may not, and nobody for whom that would be for ever."""
        for victim in victims:
            holding = self._by_owner.get(victim)
            if holding is not None:
                self._end(holding.name, DeadlockError("transactions waited for each other's locks"))
        # Behind a victim it may have all by now.
        if self._locks.blockers(owner) and acquiring.until <= self._now():
            self._late(acquiring)

    def _owner(self, acquiring: _Acquiring, partition: int) -> int:
        name = acquiring.wanted.name
        held = self._holdings.setdefault(name, {})
        if partition not in held:
            owner, ask_at = self._locks.new_plain(), self._now() + ASK_OVER_S
            holding = _Holding(name, acquiring.keeper, partition, owner, ask_at)
            held[partition] = self._by_owner[owner] = holding
        return held[partition].owner

    def _granted(self, owner: int) -> None:
        """Go on with who has waited for a lock, and has it."""
        acquiring = self._acquiring.get(self._by_owner[owner].name)
        if acquiring is not None:
            self._go_on(acquiring)

    def _is_overtaken(self, acquiring: _Acquiring) -> bool:
        """Tell whether something older that writes there is on its way, and not to be seen yet."""
        return any(_changes(entry, acquiring.got) for entry in self._log.waiting)

    def advanced(self) -> None:
        """Tell of locks that have waited for what was on its way, or for a lease."""
        for acquiring in [one for one in self._acquiring.values() if not one.left]:
            self._go_on(acquiring)

    def _late(self, acquiring: _Acquiring) -> None:
        shown = shown_lock(acquiring.left[0][1], self._log.context.name_of)
        seconds = acquiring.wanted.wait_us / 1e6
        text = f"{shown} was not granted within {seconds:g} seconds"
        hint = f"{LockTimeoutError.hint} {LOCKED_HINT}"
        self._fail(acquiring, LockTimeoutError(text, hint=hint))

    def _fail(self, acquiring: _Acquiring, error: TidelogError) -> None:
        """End a question; what the transaction has already stays locked."""
        self._forget(acquiring.wanted.name)
        self._tell(acquiring, error)

    def _forget(self, name: bytes) -> None:
        """Wait for nothing more that a transaction has asked for."""
        acquiring = self._acquiring.pop(name, None)
        if acquiring is not None:
            owner = self._waiting_owner(acquiring)
            if owner:
                self._locks.cancel(owner)

    def _waiting_owner(self, acquiring: _Acquiring) -> int:
        """Return the owner whose lock is waited for; 0 if there is none."""
        held = self._holdings.get(acquiring.wanted.name, {})
        holding = held.get(acquiring.left[0][0]) if acquiring.left else None
        return 0 if holding is None else holding.owner

    def _found(self, wanted: AcquireWanted) -> list[FoundAt] | None:
        """Return what is at keys that were locked; None if that is not wanted, or too large."""
        if not wanted.reads:
            return None
        view, found, size = self._log.overlay.view, [], 0
        for full_key in wanted.keys:
            place, number, key = split_key(full_key)
            [value], [epoch], [counter] = reads.get(view, number, [key], [place])
            found.append(FoundAt(value, epoch, counter))
            size += 0 if value is None else len(value)
            if size > VALUES_BYTES_MAX:
                return None
        return found

    def _tell(
        self,
        acquiring: _Acquiring,
        error: Exception | None,
        found: Sequence[FoundAt] | None = None,
    ) -> None:
        failure = None if error is None else told_failure(error)
        ask, name = acquiring.wanted[:2]
        self._post.tell(acquiring.keeper, acquired_message(ask, name, found, failure))

    # -------------------------------------------------------------- their end

    def give_back(self, names: Iterable[bytes], keeper: Incarnation | None = None) -> None:
        """Let go of all that transactions have here, and want; if somebody keeps them."""
        for name in names:
            if keeper is not None and keeper not in self._keepers(name):
                continue
            self._forget(name)
            for holding in list(self._holdings.get(name, {}).values()):
                self._detach(holding)
                self._locks.release(holding.owner)

    def _keepers(self, name: bytes) -> set[Incarnation]:
        """Return who keeps a transaction that has something here: one, or nobody."""
        return {holding.keeper for holding in self._holdings.get(name, {}).values()}

    def _end(self, name: bytes, error: TidelogError) -> None:
        """End a transaction here that waits; its keeper ends it everywhere else."""
        acquiring = self._acquiring.get(name)
        self.give_back([name])
        if acquiring is not None:
            self._tell(acquiring, error)

    def _detach(self, holding: _Holding) -> None:
        del self._by_owner[holding.owner]
        held = self._holdings[holding.name]
        del held[holding.partition]
        if not held:
            del self._holdings[holding.name]

    def sealed(self, partition: int) -> None:
        """Drop what belongs to an older epoch: who has lost a lock loses all (T2)."""
        lost = {name for name, held in self._holdings.items() if partition in held}
        lost |= {n for n, one in self._acquiring.items() if partition in one.wanted.partitions}
        for name in sorted(lost):
            self._end(name, locks_lost(f"partition {partition} has a new epoch"))

    def decided(self, topology: Topology) -> None:
        """Let go of what nobody keeps any more."""
        held = self._by_owner.values()
        lost = {one.name for one in held if not topology.is_present(one.keeper)}
        self.give_back(sorted(lost))

    # -------------------------------------------------------------- commits

    def owners(self, name: bytes | None, partitions: Iterable[int]) -> frozenset[int]:
        """Return the owners of the locks that a transaction has in partitions, nobody without one.

        ``RolledBackError`` if it has lost those of any.
        """
        if name is None:
            return frozenset()
        return frozenset(self._held(name, partition).owner for partition in partitions)

    def _held(self, name: bytes, partition: int) -> _Holding:
        holding = self._holdings.get(name, {}).get(partition)
        if holding is None or name in self._acquiring:
            raise locks_lost(
                f"partition {partition} has none of them, as if it had locked nothing for too "
                "long, or a member had gone"
            )
        return holding

    def has(self, name: bytes, partition: int) -> bool:
        """Tell whether a transaction has plain locks in a partition."""
        return partition in self._holdings.get(name, ())

    def hardened(self, name: bytes, partition: int, written: Iterable[bytes]) -> int:
        """Make the locks of a transaction in a partition commit locks, and return their owner.

        They are those of its commit from then on.  ``RolledBackError`` if it has lost them.
        """
        holding = self._held(name, partition)
        self._detach(holding)
        if not self._locks.harden(holding.owner, written):
            raise is_locked()
        return holding.owner

    # -------------------------------------------------------------- probes

    def probe(self, probe: LockProbe) -> None:
        """Pass on a probe to those for whom a transaction waits here."""
        acquiring = self._acquiring.get(probe.path[-1])
        if acquiring is not None:
            self._chase(acquiring, probe)

    def _probe(self, acquiring: _Acquiring) -> None:
        """Send a probe for who waits."""
        wanted = acquiring.wanted
        acquiring.round += 1
        acquiring.pause = min(2 * acquiring.pause, PROBE_PAUSE_S_MAX)
        acquiring.probe_at = self._now() + acquiring.pause
        probe = LockProbe(wanted.name, [wanted.name], wanted.ask, acquiring.round, waits=True)
        self._chase(acquiring, probe)

    def _chase(self, acquiring: _Acquiring, probe: LockProbe) -> None:
        """Ask on at the keepers of those who are in the way, and do not wait here themselves."""
        seen: set[bytes] = set()
        behind = [acquiring]
        while behind:
            one = behind.pop()
            for blocker in self._locks.blockers(self._waiting_owner(one)):
                holding = self._by_owner.get(blocker)
                if holding is None or holding.name in seen or holding.name > probe.initiator:
                    continue  # commit locks wait for nobody
                seen.add(holding.name)
                waiting = self._acquiring.get(holding.name)
                if waiting is not None and waiting.left and holding.name != probe.initiator:
                    # Whoever is before it in the same queue has in its way what it has itself.
                    if waiting.left[0] != one.left[0]:
                        behind.append(waiting)
                    continue
                path = [*probe.path, holding.name]
                onward = probe._replace(path=path, waits=False)
                self._post.tell(holding.keeper, probe_message(onward))

    # -------------------------------------------------------------- time

    def tick(self) -> None:
        """End waits that were too long, probe the others, and ask after old locks."""
        now = self._now()
        self.advanced()
        for acquiring in list(self._acquiring.values()):
            if self._acquiring.get(acquiring.wanted.name) is not acquiring:
                continue  # it has ended with another one
            if acquiring.until <= now and acquiring.left:
                self._late(acquiring)
            elif acquiring.probe_at <= now and acquiring.left:
                self._probe(acquiring)
        old: dict[Incarnation, set[bytes]] = {}
        for holding in self._by_owner.values():
            if holding.ask_at <= now:
                holding.ask_at = now + ASK_OVER_S
                old.setdefault(holding.keeper, set()).add(holding.name)
        for keeper, names in old.items():
            self._post.tell(keeper, ids_message("ask-over", sorted(names)))


def locks_lost(why: str) -> RolledBackError:
    """Return the error for an open transaction that has lost locks."""
    return RolledBackError(f"the locks of the transaction were let go: {why}")


def _wants(wanted: AcquireWanted) -> Iterable[tuple[int, Want]]:
    for key in wanted.keys:
        yield split_key(key)[0], KeyLock(key, exclusive=wanted.exclusive)
    if wanted.within is not None:
        for partition in wanted.partitions:
            yield partition, RangeLock(*wanted.within.bounds(partition))


def _changes(entry: Entry, locks: Iterable[Want]) -> bool:
    return any(covers(want, entry) for want in locks)
