"""The locks of transactions of several groups at this member, and the requests that wait for them.

What such a transaction writes may have its place in the serial order already, and is not applied
yet (T12).  So whoever reads it, or writes it, waits until the outcome is known.  Those who prepare
several groups themselves never wait for an outcome: two that hold something would wait for each
other.

Such locks are *commit locks*.  *Plain* ones are those of open pessimistic transactions, which take
one after the other, and wait in a queue for each; they stop writers, and no reader.  Who writes one
group without locks, and meets plain ones, has a *turn* in that queue: else those who lock the key
again and again would always be before it.

Invariants:

- All commit locks of an owner are taken at once, or none is; or all its plain ones become such.
- A request waits for one owner, and is looked at anew when that lets go, behind the queue; or for
  its turn, and is looked at anew while nobody else has the key.  Who waits so has no locks, and
  closes no circle.

Left out: who conflicts with whom (``tx.locks``), and when locks end (``participating``,
``plain_locks``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence, Set as AbstractSet
from itertools import chain, count
from typing import NamedTuple

from ...affinity.errors import TransactionTooLargeError
from ...tx.locks import Granted, KeyLock, LockAnswer, LockTable, RangeLock, Want
from ..data.scan import Range
from ..data.stored import split_key
from .client_request import ClientRequest
from .partitions import RoutedError

NOBODY: frozenset[int] = frozenset()
HELD_S_MAX = 1.0
"""Seconds that a request waits for an outcome before its client is told to come again."""
TURN_S_MAX = 5.0
"""Seconds that it waits for its turn: who comes again is the last in the queue."""

LOCKED_HINT = (
    "If something stays locked, `tidelog tx pending` tells whether a transaction in doubt has it "
    "locked, and what to do."
)

Handler = Callable[[ClientRequest], None]


class _Held(NamedTuple):
    goes_on: Callable[[], object]
    late: Callable[[], object]
    until: float


class GroupLocks:
    """Who holds which keys of this member's partitions, and who waits."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._table = LockTable()
        self._owners = count(1)
        self._held: dict[int, list[_Held]] = {}
        self._plain: set[int] = set()
        """Owners of plain locks."""
        self._turns: dict[int, _Held] = {}
        """Owners that stand in the queue for a request."""
        self._turn = 0
        """Whose turn it is just now."""
        self._untold: deque[int] = deque()
        """Whom something was granted, and who has not heard of it."""
        self._tells = False
        self.granted: Callable[[int], object] = lambda _owner: None
        """Called with an owner whose request has come to its end in the queue."""

    def __repr__(self) -> str:
        held = sum(map(len, self._held.values()))
        return f"<GroupLocks {self._table!r}, {held} requests wait>"

    @property
    def idle(self) -> bool:
        """Whether nothing is locked."""
        return self._table.idle

    # -------------------------------------------------------------- locks

    def take(self, written: Iterable[bytes], read: Iterable[bytes]) -> tuple[int, frozenset[int]]:
        """Lock full keys for a new owner, and return it; or 0, and all who are in the way.

        ``TransactionTooLargeError`` for more than one owner may have.
        """
        wants: list[Want] = [KeyLock(key) for key in written]
        wants += [KeyLock(key, exclusive=False) for key in read]
        if not self.idle:
            others = frozenset(one for want in wants for one in self._table.holders(want))
            if others:
                return 0, others
        owner = next(self._owners)
        others = self._add(owner, wants)
        return (0, others) if others else (owner, NOBODY)

    def _add(self, owner: int, wants: Iterable[Want]) -> frozenset[int]:
        """Lock at once what an owner wants; if that cannot be, let go of all it has.

        Returns who is in the way then: a queue is, too, and an owner that would wait for itself.
        """
        try:
            for want in wants:
                if not isinstance(self._table.request(owner, want), Granted):
                    others = frozenset(self._table.blockers(owner) or [owner])
                    self.release(owner)
                    return others
        except TransactionTooLargeError:
            self.release(owner)
            raise
        return NOBODY

    def release(self, owner: int) -> None:
        """Let go of all locks of an owner; whoever waits for it goes on, the queue first."""
        self._plain.discard(owner)
        self._tell_granted(self._table.release(owner))
        for held in self._held.pop(owner, ()):
            held.goes_on()

    # -------------------------------------------------------------- plain locks

    def new_plain(self) -> int:
        """Return a new owner of plain locks."""
        owner = next(self._owners)
        self._plain.add(owner)
        return owner

    def request(self, owner: int, want: Want) -> LockAnswer:
        """Ask for a plain lock; one that is not there yet is queued for (``tx.locks``)."""
        return self._table.request(owner, want)

    def cancel(self, owner: int) -> None:
        """Ask no more for what an owner waits for."""
        self._tell_granted(self._table.cancel(owner))

    def blockers(self, owner: int) -> list[int]:
        """Return whom an owner waits for; nobody if it does not wait."""
        return self._table.blockers(owner)

    def harden(self, owner: int, written: Iterable[bytes]) -> bool:
        """Make plain locks commit locks, those of some keys among them.

        If somebody else has one of these keys, all are let go, and that is False.
        """
        if self._add(owner, map(KeyLock, written)):
            return False
        self._plain.discard(owner)
        return True

    def _tell_granted(self, owners: Iterable[int]) -> None:
        self._untold.extend(owners)
        if self._tells:
            return
        self._tells = True
        try:
            while self._untold:
                owner = self._untold.popleft()
                turn = self._turns.pop(owner, None)
                if turn is None:
                    self.granted(owner)
                else:
                    self._have_turn(owner, turn)
        finally:
            self._tells = False

    def _have_turn(self, owner: int, turn: _Held) -> None:
        """Look at a request anew; what it writes is in the queue of the log then."""
        self._turn = owner
        try:
            turn.goes_on()
        finally:
            self._turn = 0
            self.release(owner)

    # -------------------------------------------------------------- who is in the way

    def in_way_of(
        self,
        written: Iterable[bytes] = (),
        read: Iterable[bytes] = (),
        ranges: Iterable[tuple[Sequence[int], Range]] = (),
        but: AbstractSet[int] = NOBODY,
    ) -> int | None:
        """Return an owner who is in the way of writes and reads, None if there is none.

        ``ranges`` are partitions with a range of one of their maps; ``but`` are owners who count
        for nobody.  Plain locks are in the way of writes only.
        """
        if self.idle:
            return None
        if self._turn:
            but = but | {self._turn}
        for key in written:
            holders = self._table.holders(KeyLock(key)) - but
            if holders:
                return min(holders)
        wants: Iterable[Want] = chain(
            (KeyLock(key, exclusive=False) for key in read),
            (
                RangeLock(*wanted.bounds(partition))
                for partitions, wanted in ranges
                for partition in partitions
            ),
        )
        for want in wants:
            holders = self._table.holders(want) - but - self._plain
            if holders:
                return min(holders)
        return None

    def plainly_locked(self, written: Iterable[bytes]) -> bytes | None:
        """Return a key that is to be written and has a plain lock, None if there is none."""
        for key in written if self._plain else ():
            if self._table.holders(KeyLock(key)) & self._plain:
                return key
        return None

    def first_written(
        self, partitions: Iterable[int], wanted: Range, *, reverse: bool
    ) -> tuple[bytes, int] | None:
        """Return the first key of a range that is being written, and by whom."""
        if self.idle:
            return None
        found = [
            (split_key(full_key)[2], writers)
            for partition in partitions
            for full_key in self._table.written(*wanted.bounds(partition))
            if (writers := self._table.holders(KeyLock(full_key, exclusive=False)) - self._plain)
        ]
        if not found:
            return None
        key, writers = (max if reverse else min)(found, key=lambda one: one[0])
        return key, min(writers)

    # -------------------------------------------------------------- who waits

    def hold(
        self, owner: int, request: ClientRequest, handler: Handler, late: Handler | None = None
    ) -> None:
        """Let a request wait until an owner lets go; it is carried out by ``handler`` then.

        By ``late`` if that takes too long; without it the client is told to come again.
        """
        self.wait(
            owner,
            lambda: request.carry_out(handler),
            lambda: (late or _come_again)(request),
            request.deadline,
        )

    def take_turn(
        self, key: bytes, request: ClientRequest, handler: Handler, late: Handler
    ) -> None:
        """Let a request that writes a key wait in the queue for it; ``handler`` carries it out.

        ``late`` does if that takes too long.
        """
        owner = next(self._owners)
        until = min(self._now() + TURN_S_MAX, request.deadline)
        self._turns[owner] = _Held(lambda: request.carry_out(handler), lambda: late(request), until)
        if isinstance(self._table.request(owner, KeyLock(key)), Granted):
            self._tell_granted([owner])

    def wait(
        self,
        owner: int,
        goes_on: Callable[[], object],
        late: Callable[[], object],
        deadline: float = float("inf"),
    ) -> None:
        """Call something once an owner lets go, or something else if that takes too long."""
        until = min(self._now() + HELD_S_MAX, deadline)
        self._held.setdefault(owner, []).append(_Held(goes_on, late, until))

    def tick(self) -> None:
        """Let those come again who have waited too long."""
        now = self._now()
        for owner, turn in list(self._turns.items()):
            if turn.until < now and self._turns.pop(owner, None) is not None:
                self.cancel(owner)
                turn.late()
        for owner, waiting in list(self._held.items()):
            left = [held for held in waiting if held.until >= now]
            if len(left) == len(waiting):
                continue
            if left:
                self._held[owner] = left
            else:
                del self._held[owner]
            for held in waiting:
                if held.until < now:
                    held.late()


def _come_again(request: ClientRequest) -> None:
    request.fail(is_locked())


def is_locked() -> RoutedError:
    """Return the answer for keys of a transaction whose outcome is not known yet."""
    return RoutedError("wait", "another transaction has keys of this locked", LOCKED_HINT)
