"""The lock table: conflicts, queues, upgrades and deadlocks by hand, then against a slow twin."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from support.interrupts import Interrupt, Tracer
from tidelog.errors import TransactionTooLargeError, UsageError
from tidelog.tx.locks import (
    GRANTED,
    Deadlock,
    KeyLock,
    LockAnswer,
    LockTable,
    RangeLock,
    Waiting,
    Want,
)

A, B, C, D, E = 1, 2, 3, 4, 5


def full(key: str, *, partition: int = 0, namespace: int = 16) -> bytes:
    return partition.to_bytes(4) + namespace.to_bytes(4) + key.encode()


def read(key: str) -> KeyLock:
    return KeyLock(full(key), exclusive=False)


def write(key: str) -> KeyLock:
    return KeyLock(full(key))


def scan(start: str, stop: str) -> RangeLock:
    return RangeLock(full(start), full(stop))


def waiting(*blockers: int) -> Waiting:
    return Waiting(frozenset(blockers))


def table_with(*granted: tuple[int, Want]) -> LockTable:
    table = LockTable()
    for owner, want in granted:
        assert table.request(owner, want) == GRANTED
    return table


# ------------------------------------------------------------------ what conflicts with what

CONFLICTS: list[tuple[str, Want, Want, bool]] = [
    ("readers of one key share it", read("k"), read("k"), False),
    ("a writer waits for a reader", read("k"), write("k"), True),
    ("a reader waits for a writer", write("k"), read("k"), True),
    ("a writer waits for a writer", write("k"), write("k"), True),
    ("writers of two keys are strangers", write("k"), write("l"), False),
    ("a write inside a scanned range waits", scan("a", "m"), write("k"), True),
    ("a scan over a written key waits", write("k"), scan("a", "m"), True),
    ("the start of a range belongs to it", scan("k", "m"), write("k"), True),
    ("the stop of a range does not", scan("a", "k"), write("k"), False),
    ("a write below the range is free", scan("b", "m"), write("a"), False),
    ("the start belongs to a scan", write("k"), scan("k", "m"), True),
    ("the stop does not belong to a scan", write("k"), scan("a", "k"), False),
    ("a longer key lies after its prefix", scan("a", "k"), write("k\0"), False),
    ("a longer key lies inside", scan("k", "l"), write("k\0"), True),
    ("a read inside a range is free", scan("a", "m"), read("k"), False),
    ("a range over a read key is free", read("k"), scan("a", "m"), False),
    ("ranges may overlap", scan("a", "m"), scan("k", "z"), False),
    ("an empty range stops nobody", scan("k", "k"), write("k"), False),
    ("an empty range waits for nobody", write("k"), scan("k", "k"), False),
    ("a range turned round stops nobody", scan("m", "a"), write("k"), False),
    ("a range turned round waits for nobody", write("k"), scan("m", "a"), False),
]


@pytest.mark.parametrize(
    ("held", "want", "waits"), [pytest.param(*row[1:], id=row[0]) for row in CONFLICTS]
)
def test_conflicting_locks_of_two_owners_wait(held: Want, want: Want, waits: bool) -> None:
    table = table_with((A, held))
    assert table.request(B, want) == (waiting(A) if waits else GRANTED)
    assert table.blockers(B) == ([A] if waits else [])
    assert table.release(A) == ([B] if waits else [])
    assert table.blockers(B) == []


@pytest.mark.parametrize(
    ("first", "second"), [pytest.param(*row[1:3], id=row[0]) for row in CONFLICTS]
)
def test_no_owner_waits_for_itself(first: Want, second: Want) -> None:
    table = table_with((A, first), (A, second), (A, first), (A, second))
    assert table.release(A) == []
    assert table.idle


RANGES: list[tuple[str, RangeLock, bytes, bool]] = [
    # What a range covers must not depend on whether its keys share one partition and namespace.
    ("no end", RangeLock(full("k"), None), full("z", partition=9), True),
    ("no end, key below", RangeLock(full("k"), None), full("a"), False),
    ("a whole namespace", RangeLock(full(""), full("", namespace=17)), full("z"), True),
    (
        "the next namespace",
        RangeLock(full(""), full("", namespace=17)),
        full("", namespace=17),
        False,
    ),
    ("two namespaces", RangeLock(full(""), full("", namespace=18)), full("a", namespace=17), True),
    ("two partitions", RangeLock(full("k"), full("", partition=2)), full("z", partition=1), True),
    ("everything", RangeLock(b"", None), full("k"), True),
    ("a part of a prefix", RangeLock(b"\0\0", b"\0\1"), full("k"), True),
    ("the last prefix", RangeLock(b"\xff" * 8, b"\xff" * 12), b"\xff" * 9, True),
    ("past the last prefix", RangeLock(b"\xff" * 8, b"\xff" * 12), b"\xff" * 13, False),
]


@pytest.mark.parametrize(
    ("lock", "key", "inside"), [pytest.param(*row[1:], id=row[0]) for row in RANGES]
)
def test_a_range_covers_exactly_its_keys(lock: RangeLock, key: bytes, inside: bool) -> None:
    assert (key in lock) == inside
    expected = waiting(A) if inside else GRANTED
    assert table_with((A, lock)).request(B, KeyLock(key)) == expected
    assert table_with((A, KeyLock(key))).request(B, lock) == expected
    own = table_with((A, lock))
    own.request(A, KeyLock(key, exclusive=False))
    assert own.request(B, KeyLock(key)) == waiting(A)


# ------------------------------------------------------------------ holding, again and more

COVERED: list[tuple[str, Want, Want, bool]] = [
    ("the same shared lock", read("k"), read("k"), True),
    ("the same exclusive lock", write("k"), write("k"), True),
    ("a shared one under an exclusive one", write("k"), read("k"), True),
    ("an exclusive one over a shared one", read("k"), write("k"), False),
    ("a read inside the own range", scan("a", "m"), read("k"), True),
    ("a read outside the own range", scan("a", "m"), read("z"), False),
    ("a write inside the own range", scan("a", "m"), write("k"), False),
    ("the same range", scan("a", "m"), scan("a", "m"), True),
    ("a smaller range", scan("a", "m"), scan("b", "l"), True),
    ("a range that starts earlier", scan("b", "m"), scan("a", "m"), False),
    ("a range that ends later", scan("a", "m"), scan("a", "n"), False),
    ("a range without end", scan("a", "m"), RangeLock(full("a"), None), False),
]


@pytest.mark.parametrize(
    ("held", "want", "covered"), [pytest.param(*row[1:], id=row[0]) for row in COVERED]
)
def test_what_is_held_already_is_granted_past_the_queue(
    held: Want, want: Want, covered: bool
) -> None:
    table = table_with((A, held))
    shown = repr(table)
    assert table.request(A, want) == GRANTED
    upgraded = isinstance(want, KeyLock) and want.exclusive and held == KeyLock(want.key, False)
    assert (repr(table) == shown) == (covered or upgraded)


def test_a_range_without_end_covers_one_that_has_an_end() -> None:
    table = table_with((A, RangeLock(full("a"), None)))
    shown = repr(table)
    assert table.request(A, RangeLock(b"\xff", None)) == GRANTED
    assert repr(table) == shown
    assert table.request(A, RangeLock(full("a"), b"\xff" * 20)) == GRANTED


def test_an_upgrade_is_granted_when_nobody_else_reads() -> None:
    table = table_with((A, read("k")), (A, write("k")))
    assert table.request(B, read("k")) == waiting(A)
    assert table.release(A) == [B]


def test_an_upgrade_waits_for_the_other_readers_and_goes_before_the_queue() -> None:
    table = table_with((A, read("k")), (B, read("k")))
    assert table.request(C, write("k")) == waiting(A, B)
    assert table.request(A, write("k")) == waiting(B)
    assert table.request(D, read("k")) == waiting(A, C)
    assert table.release(B) == [A]
    assert table.release(A) == [C]
    assert table.release(C) == [D]


def test_an_owner_overtakes_who_waits_for_it_anyway() -> None:
    table = table_with((A, scan("a", "m")))
    assert table.request(B, write("k")) == waiting(A)
    assert table.request(A, write("k")) == GRANTED
    assert table.request(A, read("k")) == GRANTED
    assert table.release(A) == [B]


def test_a_write_inside_a_range_shared_with_others_waits_for_them() -> None:
    table = table_with((A, scan("a", "m")), (B, scan("f", "z")))
    assert table.request(A, write("k")) == waiting(B)
    assert table.release(B) == [A]
    assert table.request(A, write("c")) == GRANTED


def test_release_drops_everything_of_an_owner_and_the_table_is_idle_again() -> None:
    table = table_with((A, read("a")), (A, write("b")), (A, scan("c", "d")), (B, read("a")))
    assert repr(table) == "<LockTable owners=2 locks=4 waiting=0>"
    assert table.release(A) == []
    assert repr(table) == "<LockTable owners=1 locks=1 waiting=0>"
    assert table.release(B) == []
    assert table.idle
    for want in (write("a"), write("b"), write("c")):
        assert table.request(C, want) == GRANTED


def test_releasing_or_cancelling_a_stranger_does_nothing() -> None:
    table = table_with((A, write("k")))
    assert table.release(B) == []
    assert table.cancel(B) == []
    assert table.blockers(B) == []
    assert table.request(B, read("k")) == waiting(A)


def test_a_request_while_waiting_is_refused_and_changes_nothing() -> None:
    table = table_with((A, write("k")))
    table.request(B, write("k"))
    shown = repr(table)
    with pytest.raises(UsageError, match="waits for a lock already"):
        table.request(B, write("l"))
    assert repr(table) == shown
    assert table.request(C, write("l")) == GRANTED
    assert table.release(A) == [B]


def test_one_lock_too_many_is_refused_and_changes_nothing() -> None:
    table = LockTable(locks_per_owner_max=2)
    assert table.request(A, read("a")) == GRANTED
    assert table.request(A, scan("c", "d")) == GRANTED
    with pytest.raises(TransactionTooLargeError, match="holds 2 locks"):
        table.request(A, write("z"))
    assert repr(table) == "<LockTable owners=1 locks=2 waiting=0>"
    assert table.request(A, read("a")) == GRANTED
    assert table.request(B, write("z")) == GRANTED


# ------------------------------------------------------------------ queues


def test_requests_are_granted_in_the_order_they_came() -> None:
    table = table_with((A, write("k")))
    for owner in (E, C, D, B):
        table.request(owner, write("k"))
    order = [A]
    while order[-1:] != [B]:
        (granted,) = table.release(order[-1])
        order.append(granted)
    assert order == [A, E, C, D, B]


def test_readers_that_wait_together_are_granted_together() -> None:
    table = table_with((A, write("k")))
    for owner, want in ((B, read("k")), (C, scan("a", "m")), (D, write("k")), (E, read("k"))):
        table.request(owner, want)
    assert table.release(A) == [B, C]
    assert table.release(B) == []
    assert table.release(C) == [D]
    assert table.release(D) == [E]


def test_readers_that_keep_coming_do_not_starve_a_writer() -> None:
    table = table_with((A, read("k")))
    assert table.request(B, write("k")) == waiting(A)
    newest = C
    for owner in range(C, C + 50):
        assert table.request(owner, read("k")) == waiting(B)
        newest = owner
    assert table.release(A) == [B]
    assert table.release(B) == list(range(C, newest + 1))


def test_scans_that_keep_coming_do_not_starve_a_writer() -> None:
    table = table_with((A, scan("a", "m")))
    assert table.request(B, write("k")) == waiting(A)
    assert table.request(C, scan("j", "l")) == waiting(B)
    assert table.request(D, scan("a", "b")) == GRANTED
    assert table.release(A) == [B]


def test_writers_that_keep_coming_do_not_starve_a_scan() -> None:
    table = table_with((A, write("k")))
    assert table.request(B, scan("a", "m")) == waiting(A)
    assert table.request(C, write("c")) == waiting(B)
    assert table.request(D, write("z")) == GRANTED
    assert table.release(A) == [B]
    assert table.release(B) == [C]


def test_cancelling_a_waiting_writer_lets_the_readers_behind_it_go() -> None:
    table = table_with((A, read("k")))
    table.request(B, write("k"))
    assert table.request(C, read("k")) == waiting(B)
    assert table.cancel(B) == [C]
    assert table.cancel(B) == []
    assert table.blockers(B) == []


def test_a_cancelled_request_leaves_the_locks_of_its_owner_in_the_way() -> None:
    table = table_with((A, write("a")), (B, write("b")))
    table.request(B, write("a"))
    assert table.request(C, write("b")) == waiting(B)
    assert table.cancel(B) == []
    assert table.blockers(C) == [B]
    assert table.release(B) == [C]


def test_a_request_that_was_granted_before_its_time_out_stays_granted() -> None:
    table = table_with((A, write("k")))
    table.request(B, write("k"))
    assert table.release(A) == [B]
    assert table.cancel(B) == []
    assert table.request(C, write("k")) == waiting(B)


# ------------------------------------------------------------------ deadlocks


def test_two_owners_that_wait_for_each_other_end_the_younger_one() -> None:
    table = table_with((A, write("a")), (B, write("b")))
    table.request(A, write("b"))
    assert table.request(B, write("a")) == Deadlock((B,))
    assert table.blockers(B) == []
    assert table.release(B) == [A]


def test_the_older_one_that_closes_the_circle_waits_and_the_younger_one_is_named() -> None:
    table = table_with((A, write("a")), (B, write("b")))
    table.request(B, write("a"))
    assert table.request(A, write("b")) == Deadlock((B,))
    assert table.blockers(A) == [B]
    assert table.release(B) == [A]


def test_two_upgrades_of_one_key_end_the_younger_one() -> None:
    table = table_with((A, read("k")), (B, read("k")))
    assert table.request(A, write("k")) == waiting(B)
    assert table.request(B, write("k")) == Deadlock((B,))
    assert table.release(B) == [A]


def test_two_scans_that_write_into_the_common_part_end_the_younger_one() -> None:
    table = table_with((A, scan("a", "m")), (B, scan("f", "z")))
    assert table.request(B, write("k")) == waiting(A)
    assert table.request(A, write("l")) == Deadlock((B,))
    assert table.release(B) == [A]


def test_a_circle_of_five_ends_its_youngest_member() -> None:
    owners = [C, A, E, B, D]
    table = table_with(*[(owner, write(str(owner))) for owner in owners])
    for owner, ahead in zip(owners[1:], owners, strict=False):
        assert table.request(owner, write(str(ahead))) == waiting(ahead)
    assert table.request(C, write(str(D))) == Deadlock((E,))
    assert table.release(E) == [B]


def test_a_deadlock_through_the_queue_alone_is_found() -> None:
    # C waits behind B's place in the queue for a, and holds no lock that A or B asks for first.
    table = table_with((A, read("a")), (C, write("c")))
    assert table.request(B, write("a")) == waiting(A)
    assert table.request(C, read("a")) == waiting(B)
    assert table.request(A, write("c")) == Deadlock((C,))
    assert table.release(C) == [A]
    assert table.release(A) == [B]


def test_a_deadlock_through_the_queue_of_a_range_is_found() -> None:
    table = table_with((A, write("k")), (C, write("z")))
    assert table.request(B, scan("a", "m")) == waiting(A)
    assert table.request(C, write("b")) == waiting(B)
    assert table.request(A, write("z")) == Deadlock((C,))
    assert table.release(C) == [A]
    assert table.release(A) == [B]


def test_one_request_that_closes_two_circles_ends_the_youngest_of_each() -> None:
    table = table_with((A, write("a")), (B, read("k")), (C, read("k")))
    assert table.request(B, read("a")) == waiting(A)
    assert table.request(C, read("a")) == waiting(A)
    assert table.request(A, write("k")) == Deadlock((C, B))
    assert table.release(C) == []
    assert table.release(B) == [A]


def test_the_owner_that_closes_two_circles_is_the_only_victim_when_it_is_the_youngest() -> None:
    table = table_with((C, write("c")), (A, read("k")), (B, read("k")))
    table.request(A, read("c"))
    table.request(B, read("c"))
    assert table.request(C, write("k")) == Deadlock((C,))
    assert table.release(C) == [A, B]


def test_when_the_owner_is_youngest_in_one_of_two_circles_nobody_else_need_end() -> None:
    table = table_with((B, write("b")), (A, read("k")), (C, read("k")))
    table.request(A, read("b"))
    table.request(C, read("b"))
    assert table.request(B, write("k")) == Deadlock((B,))
    assert table.release(B) == [A, C]


def test_waiting_for_who_does_not_wait_is_no_deadlock() -> None:
    table = table_with((A, write("a")), (B, write("b")), (C, write("c")))
    assert table.request(A, write("b")) == waiting(B)
    assert table.request(C, write("a")) == waiting(A)
    assert table.request(D, write("c")) == waiting(C)
    assert table.release(B) == [A]


def test_a_very_long_chain_of_waiting_owners_is_searched_without_recursion() -> None:
    count = 1_100
    table = table_with(*[(owner, write(str(owner))) for owner in range(count)])
    for owner in range(count - 1):
        table.request(owner, write(str(owner + 1)))
    assert table.request(count - 1, write("0")) == Deadlock((count - 1,))


# ------------------------------------------------------------------ commits that take no locks


def test_a_commit_without_locks_is_told_the_first_key_that_it_may_not_write() -> None:
    table = table_with((A, write("a")), (C, read("b")), (B, read("b")), (D, scan("c", "e")))
    keys = [full("z"), full("b"), full("a")]
    assert table.would_block(E, keys) == (full("b"), B)
    assert table.would_block(E, keys[2:]) == (full("a"), A)
    assert table.would_block(E, [full("d")]) == (full("d"), D)
    assert table.would_block(E, [full("e"), full("z")]) is None
    assert table.would_block(E, []) is None


def test_own_locks_do_not_stop_a_commit() -> None:
    table = table_with((A, write("a")), (A, scan("c", "e")), (A, read("b")))
    assert table.would_block(A, [full("a"), full("b"), full("d")]) is None


def test_requests_that_only_wait_do_not_stop_a_commit_without_locks() -> None:
    table = table_with((A, scan("a", "m")))
    table.request(B, scan("a", "z"))
    table.release(B)
    table.request(C, write("k"))
    assert table.would_block(E, [full("z")]) is None
    assert table.would_block(E, [full("k")]) == (full("k"), A)


def test_an_idle_table_does_not_look_at_the_keys() -> None:
    raises_when_read = map(bytes.fromhex, ["not hexadecimal"])
    assert LockTable().would_block(A, raises_when_read) is None


# ------------------------------------------------------------------ against a slow twin


def conflicting(one: Want, other: Want) -> bool:
    def keys(want: Want) -> set[bytes]:
        if isinstance(want, KeyLock):
            return {want.key}
        return {key for key in ALL_KEYS if key in want}

    exclusive = [w for w in (one, other) if isinstance(w, KeyLock) and w.exclusive]
    return bool(exclusive) and bool(keys(one) & keys(other))


ALL_KEYS = [full(letter, partition=p) for p in range(2) for letter in "abcdefgh"]


@dataclass
class SlowTable:
    """The twin: two flat lists, and everything worked out anew from them at every call."""

    held: list[tuple[int, Want]] = field(default_factory=list)
    queue: list[tuple[int, Want]] = field(default_factory=list)

    def holders(self, owner: int, want: Want) -> set[int]:
        return {o for o, lock in self.held if o != owner and conflicting(lock, want)}

    def blockers(self, owner: int, want: Want, ahead: list[tuple[int, Want]]) -> set[int]:
        blockers = self.holders(owner, want)
        for other, wanted in ahead:
            overtaken = owner in self.holders(other, wanted)
            if other != owner and conflicting(wanted, want) and not overtaken:
                blockers.add(other)
        return blockers

    def graph(self) -> dict[int, set[int]]:
        return {
            owner: self.blockers(owner, want, self.queue[:place])
            for place, (owner, want) in enumerate(self.queue)
        }

    def request(self, owner: int, want: Want) -> LockAnswer:
        if self.covered(owner, want):
            return GRANTED
        blockers = self.blockers(owner, want, self.queue)
        if not blockers:
            self.held.append((owner, want))
            return GRANTED
        self.queue.append((owner, want))
        victims: list[int] = []
        while circles := self.circles(owner, victims):
            youngest = max(max(circle) for circle in circles)
            if youngest == owner:
                self.queue.pop()
                return Deadlock((owner,))
            victims.append(youngest)
        return Deadlock(tuple(victims)) if victims else Waiting(frozenset(blockers))

    def covered(self, owner: int, want: Want) -> bool:
        mine = [lock for other, lock in self.held if other == owner]
        if isinstance(want, RangeLock):
            ranges = [lock for lock in mine if isinstance(lock, RangeLock)]
            return any(_covers(lock, want) for lock in ranges)
        if want in mine or KeyLock(want.key) in mine:
            return True
        return not want.exclusive and any(
            isinstance(lock, RangeLock) and want.key in lock for lock in mine
        )

    def circles(self, owner: int, ended: list[int]) -> list[list[int]]:
        graph = self.graph()
        found: list[list[int]] = []

        def walk(path: list[int]) -> None:
            for ahead in graph.get(path[-1], ()):
                if ahead == owner:
                    found.append(path)
                elif ahead not in path and ahead not in ended:
                    walk([*path, ahead])

        walk([owner])
        return found

    def release(self, owner: int) -> list[int]:
        self.held = [entry for entry in self.held if entry[0] != owner]
        return self.cancel(owner)

    def cancel(self, owner: int) -> list[int]:
        self.queue = [entry for entry in self.queue if entry[0] != owner]
        granted: list[int] = []
        place = 0
        while place < len(self.queue):
            waiter, want = self.queue[place]
            if self.blockers(waiter, want, self.queue[:place]):
                place += 1
                continue
            self.held.append(self.queue.pop(place))
            granted.append(waiter)
            place = 0
        return granted


def _covers(outer: RangeLock, inner: RangeLock) -> bool:
    assert outer.stop is not None
    assert inner.stop is not None
    return outer.start <= inner.start and inner.stop <= outer.stop


def random_want(rng: random.Random) -> Want:
    key = rng.choice(ALL_KEYS)
    kind = rng.random()
    if kind < 0.35:
        return KeyLock(key, exclusive=False)
    if kind < 0.75:
        return KeyLock(key)
    first, last = sorted(rng.sample(ALL_KEYS, 2))
    return RangeLock(first, last)


class Pair:
    """A table and its twin, given the same calls, with every answer compared."""

    def __init__(self, rng: random.Random, owners: int) -> None:
        self.rng = rng
        self.owners = range(owners)
        self.table = LockTable()
        self.twin = SlowTable()
        self.deadlocks = 0

    def step(self) -> None:
        owner = self.rng.choice(self.owners)
        waits = owner in self.twin.graph()
        action = self.rng.random()
        if action < 0.12:
            assert self.table.release(owner) == self.twin.release(owner)
        elif waits and action < 0.3:
            assert self.table.cancel(owner) == self.twin.cancel(owner)
        elif not waits:
            self.request(owner, random_want(self.rng))
        self.compare()

    def request(self, owner: int, want: Want) -> None:
        outcome = self.table.request(owner, want)
        assert outcome == self.twin.request(owner, want)
        if isinstance(outcome, Deadlock):
            self.deadlocks += 1
            for victim in outcome.victims:
                assert self.table.release(victim) == self.twin.release(victim)

    def compare(self) -> None:
        graph = self.twin.graph()
        for owner in self.owners:
            assert self.table.blockers(owner) == sorted(graph.get(owner, ()))
        owner = self.rng.choice(self.owners)
        expected = [(key, min(h)) for key in ALL_KEYS if (h := self.holders(owner, key))]
        assert self.table.would_block(owner, ALL_KEYS) == (expected[0] if expected else None)
        assert self.table.idle == (not self.twin.held)
        assert all(graph.values()), "somebody waits for nobody: a lost wake-up"
        assert not any(self.twin.circles(owner, []) for owner in graph), "a circle was left"
        for place, (owner, lock) in enumerate(self.twin.held):
            for other, held in self.twin.held[:place]:
                assert owner == other or not conflicting(lock, held)

    def holders(self, owner: int, key: bytes) -> set[int]:
        return self.twin.holders(owner, KeyLock(key))

    def drain(self) -> None:
        """End whoever does not wait, until nobody is left; everybody must get a turn."""
        left = {owner for owner, _ in [*self.twin.held, *self.twin.queue]}
        while left:
            ready = sorted(left - set(self.twin.graph()))
            assert ready, "all wait"
            owner = self.rng.choice(ready)
            assert self.table.release(owner) == self.twin.release(owner)
            left.remove(owner)
        assert self.table.idle
        assert repr(self.table) == "<LockTable owners=0 locks=0 waiting=0>"


@pytest.mark.parametrize("seed", range(15))
def test_a_table_and_its_twin_never_differ(seed: int) -> None:
    pair = Pair(random.Random(seed), owners=3 + seed % 5)
    for _ in range(80):
        pair.step()
    pair.drain()


def test_the_random_runs_meet_deadlocks() -> None:
    pair = Pair(random.Random(1), owners=5)
    for _ in range(200):
        pair.step()
    assert pair.deadlocks > 5


# ------------------------------------------------------------------ interrupts


def upgraded() -> LockTable:
    return table_with((A, read("k")), (A, read("l")))


def waited_for() -> LockTable:
    table = table_with((A, write("k")), (A, read("l")), (A, scan("p", "r")))
    table.request(B, write("k"))
    table.request(C, read("k"))
    table.request(D, scan("j", "m"))
    return table


def cancelled() -> LockTable:
    table = table_with((A, read("k")))
    table.request(B, write("k"))
    table.request(C, read("k"))
    table.request(D, scan("j", "m"))
    return table


def check_whole(table: LockTable, where: str) -> None:
    """What is known by key, by range and by number is what the owners hold."""
    exclusive = {key: owner for owner, held in table._held.items() for key in held.exclusive}
    assert dict(table._exclusive) == exclusive, where
    shared: dict[bytes, set[int]] = {}
    ranges: dict[bytes, set[int]] = {}
    for owner, held in table._held.items():
        assert not held.shared & held.exclusive, where
        for key in held.shared:
            shared.setdefault(key, set()).add(owner)
        for group, locks in held.ranges.items():
            assert locks, where
            ranges.setdefault(group, set()).add(owner)
        count = sum(map(len, held.ranges.values()))
        assert held.count == len(held.exclusive) + len(held.shared) + count > 0, where
    assert (table._shared, table._ranges) == (shared, ranges), where
    there = table._held.keys() | table._waiting.keys()
    assert all(request.blockers <= there for request in table._waiting.values()), where


@pytest.mark.parametrize(
    ("make", "change"),
    [
        (upgraded, lambda table: table.request(A, write("k"))),
        (upgraded, lambda table: table.request(A, scan("a", "c"))),
        (upgraded, lambda table: table.request(B, read("k"))),
        (waited_for, lambda table: table.release(A)),
        (cancelled, lambda table: table.cancel(B)),
    ],
    ids=["upgrade", "range", "share", "release", "cancel"],
)
def test_a_table_is_whole_again_behind_an_interrupt_at_any_line_of_a_change(
    make: Callable[[], LockTable], change: Callable[[LockTable], object]
) -> None:
    lines = Tracer()
    table = make()
    lines.run(lambda: change(table))
    asked = {owner: request.want for owner, request in make()._waiting.items()}
    for line, times in lines.lines.items():
        for passed in range(times):
            table, tracer = make(), Tracer((line, passed))
            with pytest.raises(Interrupt):
                tracer.run(lambda table=table: change(table))  # type: ignore[misc]
            table.restore()
            check_whole(table, tracer.where)
            # Who asked for a lock waits for it or has it, but for the one that gave up.
            for owner, want in asked.items():
                gave_up = make is cancelled and owner == B
                found = table.waits(owner) or table._covers(owner, want)
                assert found or gave_up, tracer.where
            for owner in (A, B, C, D):
                assert not table.waits(owner), tracer.where
                table.release(owner)
                check_whole(table, tracer.where)
            assert table.idle, tracer.where


def test_a_range_that_was_cut_short_before_it_was_noted_is_forgotten() -> None:
    table = table_with((A, read("k")))
    table._held[A].ranges[full("k")[:8]] = []
    table.restore()
    check_whole(table, "")
    assert table.request(B, write("l")) == GRANTED
