"""Who has locks of transactions of several groups, who waits for them, and for how long."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, strategies as st

from support.group_transactions import MAP, key_in, name_in
from tidelog.engine.data.scan import Range
from tidelog.engine.data.stored import pack_prefix
from tidelog.engine.node.group_locks import HELD_S_MAX, TURN_S_MAX, GroupLocks, is_locked
from tidelog.engine.node.partitions import RoutedError
from tidelog.errors import TransactionTooLargeError
from tidelog.tx.locks import KeyLock, LockTable

A, B, C = b"a", b"b", b"c"
FOREVER = float("inf")


def full(name: bytes, partition: int = 0, number: int = MAP) -> bytes:
    return pack_prefix(partition, number) + name


class Clock:
    now = 100.0


def locks_at() -> tuple[GroupLocks, Clock]:
    clock = Clock()
    return GroupLocks(lambda: clock.now), clock


def locks() -> GroupLocks:
    return locks_at()[0]


def is_idle(at: GroupLocks) -> bool:
    return at.idle


class Request:
    """A request of a client, and what became of it."""

    def __init__(self, deadline: float = FOREVER) -> None:
        self.deadline = deadline
        self.failed: list[Exception] = []

    def carry_out(self, handler: Callable[[Any], None]) -> None:
        handler(self)

    def fail(self, error: Exception) -> None:
        self.failed.append(error)


def request(deadline: float = FOREVER) -> Any:
    return Request(deadline)


def owner_of(taken: tuple[int, frozenset[int]]) -> int:
    owner, others = taken
    assert owner
    assert others == frozenset()
    return owner


def in_way(*owners: int) -> tuple[int, frozenset[int]]:
    """What is answered to somebody who meets the locks of these."""
    return 0, frozenset(owners)


# ------------------------------------------------------------------ locks


def test_what_is_written_is_locked_for_all_and_what_is_read_for_those_who_write() -> None:
    at = locks()
    assert is_idle(at)
    owner = owner_of(at.take([full(A)], [full(B)]))
    assert not is_idle(at)
    assert at.take([full(A)], []) == in_way(owner)
    assert at.take([], [full(A)]) == in_way(owner)
    assert at.take([full(B)], []) == in_way(owner)
    second = owner_of(at.take([full(C)], [full(B)]))
    assert second > owner
    at.release(owner)
    assert at.take([full(B)], []) == in_way(second), "the second one still has it"
    at.release(second)
    assert is_idle(at)
    assert owner_of(at.take([full(A), full(B)], [])) > second


def test_who_gets_no_locks_hears_of_all_who_are_in_the_way() -> None:
    at = locks()
    one = owner_of(at.take([full(A)], [full(B)]))
    two = owner_of(at.take([full(C)], [full(B)]))
    assert at.take([full(C), full(A)], []) == in_way(one, two)
    assert at.take([full(B)], []) == in_way(one, two), "both have read it"
    assert at.take([], [full(A), full(B)]) == in_way(one), "who reads is in no reader's way"
    at.release(one)
    assert at.take([full(A)], [full(C)]) == in_way(two)


def test_all_locks_are_taken_at_once_or_none() -> None:
    at = locks()
    owner = owner_of(at.take([full(B)], []))
    for written, read in (
        ([full(A), full(B), full(C)], []), ([full(A)], [full(B)]), ([full(B)], [full(A)]),
        ([full(C)], [full(A), full(B)]),
    ):  # fmt: skip
        assert at.take(written, read) == in_way(owner)
        for name in (A, C):
            assert at.in_way_of([full(name)]) is None
    at.release(owner)
    assert is_idle(at)


def test_a_key_that_one_owner_reads_and_writes_is_written() -> None:
    at = locks()
    owner = owner_of(at.take([full(A)], [full(A)]))
    assert at.in_way_of(read=[full(A)]) == owner
    at.release(owner)
    assert is_idle(at)


def test_keys_of_other_maps_and_partitions_are_others() -> None:
    at = locks()
    at.take([full(A)], [])
    assert at.in_way_of([full(A, 1), full(A, 0, 17)]) is None


def test_who_wants_too_much_has_nothing() -> None:
    at = locks()
    at._table = LockTable(locks_per_owner_max=1)
    with pytest.raises(TransactionTooLargeError):
        at.take([full(A), full(B)], [])
    assert is_idle(at)


def test_who_waits_behind_a_request_is_granted_once_that_is_withdrawn() -> None:
    at, heard = locks(), list[int]()
    at.granted = heard.append
    first, second, third = (at.new_plain() for _ in range(3))
    at.request(first, KeyLock(full(A), exclusive=False))
    at.request(second, KeyLock(full(A)))
    at.request(third, KeyLock(full(A), exclusive=False))
    at.cancel(second)
    assert heard == [third]
    for owner in (first, second, third):
        at.release(owner)
    assert (is_idle(at), at._plain) == (True, set())


def test_an_owner_may_count_for_nobody() -> None:
    at = locks()
    owner = owner_of(at.take([full(A)], []))
    everything = [((0,), Range(namespace=MAP))]
    for options in ({"written": [full(A)]}, {"read": [full(A)]}, {"ranges": everything}):
        wanted: dict[str, Any] = {**options}
        assert at.in_way_of(**wanted) == owner
        assert at.in_way_of(**wanted, but={owner}) is None


@pytest.mark.parametrize("waits_for_others", [False, True])
def test_plain_locks_that_lack_a_key_of_somebody_else_are_let_go(*, waits_for_others: bool) -> None:
    # Who would wait for itself is not queued behind anybody; it was taken for one that has it all.
    at = locks()
    old, young = at.new_plain(), at.new_plain()
    at.request(old, KeyLock(full(A)))
    at.request(young, KeyLock(full(B)))
    if waits_for_others:
        at.request(old, KeyLock(full(B)))
    assert not at.harden(young, [full(A)])
    assert at.in_way_of([full(A)]) == old
    assert at.in_way_of([full(B)]) == (old if waits_for_others else None)


# ------------------------------------------------------------------ who is in the way


def test_nobody_is_in_the_way_where_nothing_is_locked() -> None:
    at = locks()
    everything = Range(namespace=MAP)
    assert at.in_way_of([full(A)], [full(A)], [((0,), everything)]) is None
    assert at.first_written((0,), everything, reverse=False) is None


def test_who_writes_is_in_the_way_of_reads_and_who_reads_of_writes_only() -> None:
    at = locks()
    writes = owner_of(at.take([full(A)], []))
    reads = owner_of(at.take([], [full(B)]))
    assert at.in_way_of([full(A)]) == at.in_way_of(read=[full(A)]) == writes
    assert at.in_way_of([full(B)]) == reads
    assert at.in_way_of(read=[full(B), full(C)]) is None
    assert at.in_way_of([full(C)], [full(A)]) == writes


@pytest.mark.parametrize(
    ("low", "high", "meets"),
    [
        (b"", None, True), (B, None, True), (B, B + b"\0", True), (A, C, True),
        (b"", B, False), (B + b"\0", None, False), (C, None, False), (b"", b"", False),
    ],
)  # fmt: skip
def test_who_writes_inside_a_range_is_in_its_way(
    low: bytes, high: bytes | None, meets: bool
) -> None:
    at = locks()
    owner = owner_of(at.take([full(B, 1)], [full(A, 1)]))
    wanted = Range(namespace=MAP, start=low, stop=high)
    assert at.in_way_of(ranges=[((0, 1), wanted)]) == (owner if meets else None)
    assert at.in_way_of(ranges=[((0,), wanted)]) is None
    other = Range(namespace=17, start=low, stop=high)
    assert at.in_way_of(ranges=[((0, 1), other)]) is None


def test_of_several_the_oldest_is_waited_for() -> None:
    at = locks()
    oldest = owner_of(at.take([full(C)], []))
    owner_of(at.take([full(B)], []))
    assert at.in_way_of(ranges=[((0,), Range(namespace=MAP))]) == oldest
    at = locks()
    first = owner_of(at.take([], [full(A)]))
    second = owner_of(at.take([], [full(A)]))
    assert at.in_way_of([full(A)]) == first
    at.release(first)
    assert at.in_way_of([full(A)]) == second


def test_the_first_key_of_a_range_that_is_written_is_found_from_both_ends() -> None:
    at = locks()
    first, second = name_in(0, 3), name_in(1, 4)
    low = owner_of(at.take([key_in(0, 3)], [key_in(0, 1)]))
    high = owner_of(at.take([key_in(1, 4)], []))
    expected = sorted([(first, low), (second, high)])
    everything = Range(namespace=MAP)
    assert at.first_written((0, 1), everything, reverse=False) == expected[0]
    assert at.first_written((0, 1), everything, reverse=True) == expected[1]
    assert at.first_written((0,), everything, reverse=True) == (first, low)
    assert at.first_written((2,), everything, reverse=False) is None
    behind = Range(namespace=MAP, start=expected[0][0] + b"\0")
    assert at.first_written((0, 1), behind, reverse=False) == expected[1]
    before = Range(namespace=MAP, stop=expected[0][0])
    assert at.first_written((0, 1), before, reverse=False) is None


# ------------------------------------------------------------------ who waits


def test_who_waits_goes_on_in_order_once_its_owner_lets_go() -> None:
    at, heard = locks(), list[Any]()
    owner, other = owner_of(at.take([full(A)], [])), owner_of(at.take([full(B)], []))
    one, two, three = request(), request(), request()
    at.hold(owner, one, lambda r: heard.append(r))
    at.hold(other, two, lambda r: heard.append(r))
    at.hold(owner, three, lambda r: heard.append(r))
    assert "3 requests wait" in repr(at)
    at.release(owner)
    assert heard == [one, three]
    at.release(owner)
    assert heard == [one, three], "each goes on once"
    at.release(other)
    assert heard == [one, three, two]


def test_who_goes_on_finds_nothing_in_its_way() -> None:
    at, found = locks(), list[int | None]()
    owner = owner_of(at.take([full(A)], []))
    at.hold(owner, request(), lambda _: found.append(at.in_way_of([full(A)])))
    at.release(owner)
    assert found == [None]


def test_who_goes_on_may_wait_for_somebody_else() -> None:
    at, heard = locks(), list[Any]()
    owner, other = owner_of(at.take([full(A)], [])), owner_of(at.take([full(B)], []))
    at.hold(owner, request(), lambda r: at.hold(other, r, heard.append))
    at.release(owner)
    assert heard == []
    at.release(other)
    assert len(heard) == 1


def test_who_waits_too_long_is_told_to_come_again() -> None:
    at, clock = locks_at()
    owner = owner_of(at.take([full(A)], []))
    one, heard = request(), list[Any]()
    at.hold(owner, one, heard.append)
    clock.now += HELD_S_MAX / 2
    two = request()
    at.hold(owner, two, heard.append)
    clock.now += HELD_S_MAX / 2
    at.tick()
    assert one.failed == []
    clock.now += 0.01
    at.tick()
    [error] = one.failed
    assert isinstance(error, RoutedError)
    assert (error.answer, str(error)) == ("wait", str(is_locked()))
    assert "`tidelog tx pending`" in str(error.fields["hint"])
    at.tick()
    assert (len(one.failed), two.failed, heard) == (1, [], [])
    at.release(owner)
    assert heard == [two], "who was told to come again does not go on"


def test_who_waits_longer_than_its_client_does_is_told_at_its_deadline() -> None:
    at, clock = locks_at()
    owner = owner_of(at.take([full(A)], []))
    one = request(clock.now + 0.25)
    at.hold(owner, one, lambda _: None)
    clock.now += 0.25
    at.tick()
    assert one.failed == []
    clock.now += 0.01
    at.tick()
    assert len(one.failed) == 1
    assert "0 requests wait" in repr(at)


def test_of_those_who_wait_only_who_is_late_is_told() -> None:
    at, clock = locks_at()
    owner = owner_of(at.take([full(A)], []))
    one, two = request(clock.now + 0.25), request(clock.now + 0.5)
    for waiting in (one, two):
        at.hold(owner, waiting, lambda _: None)
    clock.now += 0.5
    at.tick()
    assert (len(one.failed), two.failed) == (1, [])


def test_who_has_waited_too_long_may_do_something_else() -> None:
    at, clock = locks_at()
    owner = owner_of(at.take([full(A)], []))
    one, late = request(), list[Any]()
    at.hold(owner, one, lambda _: None, late.append)
    clock.now += HELD_S_MAX + 0.01
    at.tick()
    assert (late, one.failed) == ([one], [])


def test_who_is_late_may_wait_anew_for_the_same_owner() -> None:
    at, clock = locks_at()
    owner, heard = owner_of(at.take([full(A)], [])), list[Any]()
    one = request()
    at.hold(owner, one, heard.append, lambda r: at.hold(owner, r, heard.append))
    clock.now += HELD_S_MAX + 0.01
    at.tick()
    at.release(owner)
    assert heard == [one]


def test_anything_may_wait_for_an_owner() -> None:
    at, heard = locks(), list[str]()
    owner, other = owner_of(at.take([full(A)], [])), owner_of(at.take([full(B)], []))
    at.wait(owner, lambda: heard.append("one"), lambda: heard.append("late"))
    at.wait(other, lambda: heard.append("other"), lambda: heard.append("late"))
    at.hold(owner, request(), lambda _: heard.append("two"))
    at.wait(owner, lambda: heard.append("three"), lambda: heard.append("late"))
    at.release(owner)
    assert heard == ["one", "two", "three"], "in the order in which they came"
    at.release(owner)
    assert len(heard) == 3, "each goes on once"


@pytest.mark.parametrize(
    ("patience", "waits"), [(None, HELD_S_MAX), (FOREVER, HELD_S_MAX), (0.25, 0.25)]
)
def test_whoever_waits_too_long_does_something_else_and_does_not_go_on(
    patience: float | None, waits: float
) -> None:
    at, clock = locks_at()
    owner, heard = owner_of(at.take([full(A)], [])), list[str]()
    more = () if patience is None else (clock.now + patience,)
    at.wait(owner, lambda: heard.append("goes on"), lambda: heard.append("late"), *more)
    clock.now += waits
    at.tick()
    assert heard == []
    clock.now += 0.01
    at.tick()
    at.tick()
    assert heard == ["late"], "it is told once"
    at.release(owner)
    assert heard == ["late"]


# ------------------------------------------------------------------ a twin

KEYS = [full(name) for name in (A, B, C)]
sets = st.lists(st.sampled_from(KEYS), unique=True, max_size=3)


def pairs(taken: dict[int, tuple[list[bytes], list[bytes]]]) -> Iterator[tuple[Any, Any]]:
    return combinations(taken.values(), 2)


@given(st.lists(st.tuples(st.booleans(), sets, sets), max_size=12))
def test_two_owners_never_have_what_only_one_of_them_can_have(
    steps: list[tuple[bool, list[bytes], list[bytes]]],
) -> None:
    at, taken = locks(), dict[int, tuple[list[bytes], list[bytes]]]()
    for releases, written, read in steps:
        if releases and taken:
            owner = next(iter(taken))
            del taken[owner]
            at.release(owner)
            continue
        others = frozenset(
            owner
            for owner, has in taken.items()
            if set(written) & {*has[0], *has[1]} or set(read) & set(has[0])
        )
        found, met = at.take(written, read)
        assert (found == 0, met) == (bool(others), others)
        if found:
            taken[found] = written, read
    for one, other in pairs(taken):
        assert not set(one[0]) & {*other[0], *other[1]}
        assert not set(other[0]) & {*one[0], *one[1]}
    for owner in list(taken):
        at.release(owner)
    assert is_idle(at)


def test_the_answer_for_keys_that_are_locked_is_to_come_again() -> None:
    error = is_locked()
    assert (type(error), error.answer) == (RoutedError, "wait")


# ------------------------------------------------------------------ turns


def queued(at: GroupLocks, *owners: int) -> list[int]:
    """Let owners ask for A in this order; returns who is told from then on that it is theirs."""
    told: list[int] = []
    at.granted = told.append
    for owner in owners:
        at.request(owner, KeyLock(full(A)))
    return told


def test_a_write_has_its_turn_before_those_who_came_behind_it() -> None:
    at = locks()
    first, second, third = (at.new_plain() for _ in range(3))
    told = queued(at, first, second)
    seen: list[Any] = []

    def written(_request: Any) -> None:
        seen.append((list(told), at.in_way_of([full(A)])))

    at.take_turn(full(A), request(), written, not_late)
    at.request(third, KeyLock(full(A)))
    at.release(first)
    assert (told, seen) == ([second], [])
    at.release(second)
    assert seen == [([second], None)], "nobody is in its way then"
    assert told == [second, third], "and it has let go"
    assert at.in_way_of([full(A)]) == third


def not_late(_request: Any) -> None:
    raise AssertionError("it has waited too long")


def test_who_waits_too_long_for_a_turn_is_late_and_keeps_nobody_waiting() -> None:
    at, clock = locks_at()
    first, second = at.new_plain(), at.new_plain()
    told = queued(at, first)
    late: list[Any] = []
    one, hasty = request(), request(clock.now + 1)
    at.take_turn(full(A), one, not_late, late.append)
    at.take_turn(full(A), hasty, not_late, late.append)
    at.request(second, KeyLock(full(A)))
    clock.now += 1.5
    at.tick()
    assert late == [hasty], "its deadline has passed"
    clock.now += TURN_S_MAX
    at.tick()
    assert late == [hasty, one]
    at.release(first)
    assert told == [second]


def test_who_meets_another_lock_in_its_turn_waits_anew() -> None:
    at = locks()
    first, second = at.new_plain(), at.new_plain()
    queued(at, first)
    at.request(second, KeyLock(full(B)))
    done: list[str] = []

    def written(one: Any) -> None:
        key = at.plainly_locked([full(A), full(B)])
        if key is None:
            done.append("written")
        else:
            done.append("again")
            at.take_turn(key, one, written, not_late)

    at.take_turn(full(A), request(), written, not_late)
    at.release(first)
    assert done == ["again"]
    at.release(second)
    assert done == ["again", "written"]
    assert at.idle


def test_a_thousand_writes_have_their_turns_in_order() -> None:
    at = locks()
    first = at.new_plain()
    queued(at, first)
    wanted = [request() for _ in range(2000)]
    done: list[Any] = []
    for one in wanted:
        at.take_turn(full(A), one, done.append, not_late)
    at.release(first)
    assert done == wanted
    assert at.idle


def test_a_turn_that_raises_lets_the_next_one_have_its_own() -> None:
    at = locks()
    first = at.new_plain()
    told = queued(at, first)

    def failed(_request: Any) -> None:
        raise ZeroDivisionError

    at.take_turn(full(A), request(), failed, not_late)
    second = at.new_plain()
    at.request(second, KeyLock(full(A)))
    with pytest.raises(ZeroDivisionError):
        at.release(first)
    at.cancel(first)  # whatever comes next
    assert told == [second]


def test_only_plain_locks_have_a_queue_for_writes() -> None:
    at = locks()
    owner, _ = at.take([full(A)], [])
    assert at.plainly_locked([full(A)]) is None
    plain = at.new_plain()
    at.request(plain, KeyLock(full(B), exclusive=False))
    assert at.plainly_locked([full(A), full(B)]) == full(B)
    at.release(plain)
    assert at.plainly_locked([full(A), full(B)]) is None
    at.release(owner)
