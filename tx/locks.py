"""The lock table of pessimistic transactions: who holds what, who waits, and who must give way.

Owns point locks (shared or exclusive) on full keys, shared locks on ranges ``[start, stop)`` of
full keys, the queue of waiting requests, and the search for deadlocks.  An *owner* is the
increasing number of a transaction; the youngest has the highest.

Invariants:

- two owners never hold locks that conflict: an exclusive lock conflicts with every lock of another
  owner on its key or on a range around it, and nothing else conflicts;
- an owner waits for at most one request, and never once it holds what it asked for;
- requests are granted in the order they came.  A later one overtakes only requests that it does not
  conflict with, and requests that wait for its own owner's locks anyway (as in an upgrade from
  shared to exclusive), so nobody waits for ever while others keep coming;
- a request waits exactly for its *blockers*, which only ever become fewer: the owners of
  conflicting locks, and of earlier conflicting requests that it may not overtake;
- after a ``Deadlock`` whose victims have been released, no owner waits for itself through others.

Left out: threads, clocks and time-outs (the commit path wakes whom ``release()`` and ``cancel()``
name, and cancels what took too long), and what a key means.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from sortedcontainers import SortedDict

from ..affinity.errors import TransactionTooLargeError, UsageError

LOCKS_PER_OWNER_MAX = 1_000_000

# Ranges within one (partition, namespace), the first 8 bytes of a full key, are kept together, so
# that a write looks at those of its own map only.  Wider ranges are kept under _ANYWHERE.
_GROUP_SIZE = 8
_ANYWHERE = b""


@dataclass(frozen=True, slots=True)
class KeyLock:
    """Asks for one full key: exclusive to write it, shared to keep it as it was read."""

    key: bytes
    exclusive: bool = True


@dataclass(frozen=True, slots=True)
class RangeLock:
    """Asks that others write no full key from ``start`` to before ``stop`` (None: no end)."""

    start: bytes
    stop: bytes | None

    def __contains__(self, key: bytes) -> bool:
        return self.start <= key and (self.stop is None or key < self.stop)


Want = KeyLock | RangeLock


@dataclass(frozen=True, slots=True)
class Granted:
    """The owner holds the lock now."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """The request is queued behind the locks and requests of ``blockers``."""

    blockers: frozenset[int]


@dataclass(frozen=True, slots=True)
class Deadlock:
    """The request closes a circle of waiting owners; ``victims`` must be released at once.

    Either the only victim is the owner that asked, and its request was not queued; or the request
    is queued, and releasing the victims, youngest first, opens every circle that it closed.
    """

    victims: tuple[int, ...]


LockAnswer = Granted | Waiting | Deadlock

GRANTED = Granted()


@dataclass(slots=True)
class _Holdings:
    """What one owner holds; an exclusive key is not listed as shared too."""

    exclusive: set[bytes] = field(default_factory=set)
    shared: set[bytes] = field(default_factory=set)
    ranges: dict[bytes, list[RangeLock]] = field(default_factory=dict)
    count: int = 0


@dataclass(slots=True)
class _Request:
    owner: int
    want: Want
    blockers: set[int]


class LockTable:
    """Grants, queues and releases the locks of transactions.

    Not thread-safe: all calls are made under one mutex.
    """

    __slots__ = ("_exclusive", "_held", "_locks_per_owner_max", "_ranges", "_shared", "_waiting")

    def __init__(self, *, locks_per_owner_max: int = LOCKS_PER_OWNER_MAX) -> None:
        self._locks_per_owner_max = locks_per_owner_max
        self._held: dict[int, _Holdings] = {}
        self._exclusive: SortedDict[bytes, int] = SortedDict()
        self._shared: dict[bytes, set[int]] = {}
        self._ranges: dict[bytes, set[int]] = {}
        # By owner, in the order of arrival.
        self._waiting: dict[int, _Request] = {}

    @property
    def idle(self) -> bool:
        """Whether no lock is held (and so none waited for)."""
        return not self._held

    def request(self, owner: int, want: Want) -> LockAnswer:
        """Ask for a lock; what the owner holds already, in this or a stronger form, is granted.

        Raises ``UsageError`` while the owner waits for another one, and
        ``TransactionTooLargeError`` when it holds as many as one owner may; both change nothing.
        """
        if owner in self._waiting:
            raise UsageError(f"transaction {owner} waits for a lock already")
        if self._covers(owner, want):
            return GRANTED
        self._check_count(owner)
        blockers = self._blockers(owner, want)
        if not blockers:
            self._grant(owner, want)
            return GRANTED
        victims = self._victims(owner, blockers)
        if owner in victims:
            return Deadlock(victims)
        self._waiting[owner] = _Request(owner, want, blockers)
        return Deadlock(victims) if victims else Waiting(frozenset(blockers))

    def release(self, owner: int) -> list[int]:
        """Drop every lock and request of an owner; return the owners whose requests are granted."""
        self._waiting.pop(owner, None)
        held = self._held.pop(owner, None)
        if held is not None:
            self._drop(owner, held)
        return self._wake(owner)

    def cancel(self, owner: int) -> list[int]:
        """Drop the waiting request of an owner, if any; return the owners granted because of it."""
        if self._waiting.pop(owner, None) is None:
            return []
        return self._wake(owner)

    def blockers(self, owner: int) -> list[int]:
        """Return the owners that this one waits for, ascending; empty if it does not wait."""
        request = self._waiting.get(owner)
        return sorted(request.blockers) if request else []

    def would_block(self, owner: int, keys: Iterable[bytes]) -> tuple[bytes, int] | None:
        """Return the first key that ``owner`` may not write now, and the oldest owner in its way.

        For a commit that takes no locks: it must not write what another one holds in any way.
        Requests that still wait hold nothing, so they do not count.
        """
        if self.idle:
            return None
        for key in keys:
            holders = self._holders(owner, KeyLock(key))
            if holders:
                return key, min(holders)
        return None

    def holders(self, want: Want) -> set[int]:
        """Return the owners who hold what a new one could not have beside them."""
        return self._holders(0, want)

    def written(self, start: bytes, stop: bytes | None) -> Iterator[bytes]:
        """Yield the keys that somebody holds exclusively, from ``start`` to before ``stop``."""
        return iter(self._exclusive.irange(start, stop, inclusive=(True, False)))

    def restore(self) -> None:
        """Make whole what an exception in the middle of any other call left behind.

        What each owner holds is the truth, and changes in one step; all else follows from it.
        Requests that wait are granted if nothing blocks them, as if they came anew in their order:
        ask ``waits`` which ones are left.
        """
        self._exclusive = SortedDict()
        self._shared, self._ranges = {}, {}
        held, self._held = self._held, {}
        for owner, mine in held.items():
            mine.shared -= mine.exclusive
            for key in mine.exclusive:
                self._exclusive[key] = owner
            for key in mine.shared:
                self._shared.setdefault(key, set()).add(owner)
            mine.ranges = {group: ranges for group, ranges in mine.ranges.items() if ranges}
            for group in mine.ranges:
                self._ranges.setdefault(group, set()).add(owner)
            ranges = sum(map(len, mine.ranges.values()))
            mine.count = len(mine.exclusive) + len(mine.shared) + ranges
            if mine.count:
                self._held[owner] = mine
        waiting, self._waiting = self._waiting, {}
        for request in waiting.values():
            request.blockers = self._blockers(request.owner, request.want)
            if request.blockers:
                self._waiting[request.owner] = request
            elif not self._covers(request.owner, request.want):
                self._grant(request.owner, request.want)

    def waits(self, owner: int) -> bool:
        """Tell whether a request of an owner is still queued."""
        return owner in self._waiting

    def __repr__(self) -> str:
        locks = sum(held.count for held in self._held.values())
        return f"<LockTable owners={len(self._held)} locks={locks} waiting={len(self._waiting)}>"

    # ------------------------------------------------------------------ holding

    def _covers(self, owner: int, want: Want) -> bool:
        held = self._held.get(owner)
        if held is None:
            return False
        if isinstance(want, RangeLock):
            mine = held.ranges.get(_group(want), [])
            return any(_holds_range(lock, want) for lock in mine)
        if want.key in held.exclusive:
            return True
        if want.exclusive:
            return False
        return want.key in held.shared or _in_ranges(held, want.key)

    def _check_count(self, owner: int) -> None:
        held = self._held.get(owner)
        if held is not None and held.count >= self._locks_per_owner_max:
            raise TransactionTooLargeError(
                f"transaction {owner} holds {held.count} locks, which is the limit",
                hint="Do less in one transaction, or lock a range instead of its keys.",
            )

    def _grant(self, owner: int, want: Want) -> None:
        held = self._held.get(owner)
        if held is None:
            held = self._held[owner] = _Holdings()
        held.count += 1
        if isinstance(want, RangeLock):
            group = _group(want)
            held.ranges.setdefault(group, []).append(want)
            self._ranges.setdefault(group, set()).add(owner)
        elif want.exclusive:
            held.exclusive.add(want.key)
            self._exclusive[want.key] = owner
            if want.key in held.shared:
                held.shared.remove(want.key)
                held.count -= 1
                self._unshare(owner, want.key)
        else:
            held.shared.add(want.key)
            self._shared.setdefault(want.key, set()).add(owner)

    def _drop(self, owner: int, held: _Holdings) -> None:
        for key in held.exclusive:
            del self._exclusive[key]
        for key in held.shared:
            self._unshare(owner, key)
        for group in held.ranges:
            owners = self._ranges[group]
            owners.remove(owner)
            if not owners:
                del self._ranges[group]

    def _unshare(self, owner: int, key: bytes) -> None:
        owners = self._shared[key]
        owners.remove(owner)
        if not owners:
            del self._shared[key]

    # ------------------------------------------------------------------ conflicts

    def _blockers(self, owner: int, want: Want) -> set[int]:
        """Return whom a new request must wait for; see the invariants for who may be overtaken."""
        blockers = self._holders(owner, want)
        for request in self._waiting.values():
            if owner not in request.blockers and _conflict(request.want, want):
                blockers.add(request.owner)
        return blockers

    def _holders(self, owner: int, want: Want) -> set[int]:
        """Return the other owners whose locks conflict with ``want``."""
        if isinstance(want, RangeLock):
            inside = self._exclusive.irange(want.start, want.stop, inclusive=(True, False))
            holders = {self._exclusive[key] for key in inside}
        else:
            holders = set()
            if want.key in self._exclusive:
                holders.add(self._exclusive[want.key])
            if want.exclusive:
                holders |= self._shared.get(want.key, set())
                if self._ranges:
                    holders.update(self._range_owners(want.key))
        holders.discard(owner)
        return holders

    def _range_owners(self, key: bytes) -> Iterator[int]:
        for group in (key[:_GROUP_SIZE], _ANYWHERE):
            for owner in self._ranges.get(group, ()):
                if any(key in lock for lock in self._held[owner].ranges[group]):
                    yield owner

    # ------------------------------------------------------------------ waiting

    def _wake(self, owner: int) -> list[int]:
        """Take ``owner``, which waits no more, off the requests that none of its locks blocks.

        What has no blockers left is granted.  One pass in the order of arrival is enough: a request
        that is granted blocks the later ones as a lock exactly as it did in the queue.
        """
        granted = []
        for request in list(self._waiting.values()):
            if owner not in request.blockers:
                continue
            if owner in self._holders(request.owner, request.want):
                continue
            request.blockers.remove(owner)
            if not request.blockers:
                # In this order: cut short between the two, it is not lost, and `restore` finds it.
                self._grant(request.owner, request.want)
                del self._waiting[request.owner]
                granted.append(request.owner)
        return granted

    def _victims(self, owner: int, blockers: set[int]) -> tuple[int, ...]:
        """Choose whom to end so that ``owner`` can wait without waiting for itself.

        Every edge of the wait-for graph is drawn when a request is queued, so a new circle always
        runs through the newest request.  Ending the owner itself would open all its circles.
        """
        if not any(owner in request.blockers for request in self._waiting.values()):
            return ()  # most often: nobody waits for who comes last to a queue
        victims: list[int] = []
        while circle := self._circles(owner, blockers, victims):
            youngest = max(circle)
            if youngest == owner:
                return (owner,)
            victims.append(youngest)
        return tuple(victims)

    def _circles(self, owner: int, blockers: set[int], ended: list[int]) -> set[int]:
        """Return every owner on some circle of waiting through ``owner``, or an empty set."""
        waits_for_me: dict[int, list[int]] = {}
        reached = {owner, *ended}
        frontier = [(owner, blockers)]
        while frontier:
            waiter, ahead = frontier.pop()
            for blocker in ahead:
                waits_for_me.setdefault(blocker, []).append(waiter)
                if blocker not in reached:
                    reached.add(blocker)
                    request = self._waiting.get(blocker)
                    if request is not None:
                        frontier.append((blocker, request.blockers))
        circle: set[int] = set()
        behind = list(waits_for_me.get(owner, ()))
        while behind:
            waiter = behind.pop()
            if waiter not in circle:
                circle.add(waiter)
                behind.extend(waits_for_me.get(waiter, ()))
        return circle


def _group(lock: RangeLock) -> bytes:
    """Return the prefix that all keys of a range share, or _ANYWHERE when it is too short."""
    prefix = lock.start[:_GROUP_SIZE]
    if len(prefix) < _GROUP_SIZE or lock.stop is None:
        return _ANYWHERE
    if lock.stop.startswith(prefix):
        return prefix
    after = int.from_bytes(prefix) + 1
    ends_with_it = after.bit_length() <= 8 * _GROUP_SIZE and lock.stop == after.to_bytes(
        _GROUP_SIZE
    )
    return prefix if ends_with_it else _ANYWHERE


def _holds_range(outer: RangeLock, inner: RangeLock) -> bool:
    if inner.start < outer.start:
        return False
    return outer.stop is None or (inner.stop is not None and inner.stop <= outer.stop)


def _in_ranges(held: _Holdings, key: bytes) -> bool:
    for group in (key[:_GROUP_SIZE], _ANYWHERE):
        if any(key in lock for lock in held.ranges.get(group, ())):
            return True
    return False


def _conflict(one: Want, other: Want) -> bool:
    """Return whether two owners could not hold both."""
    if isinstance(one, KeyLock) and isinstance(other, KeyLock):
        return one.key == other.key and (one.exclusive or other.exclusive)
    if isinstance(one, KeyLock):
        return isinstance(other, RangeLock) and one.exclusive and one.key in other
    return isinstance(other, KeyLock) and other.exclusive and other.key in one
