"""Threads that are woken one after the other."""

from __future__ import annotations

from _thread import LockType, allocate_lock
from collections.abc import Iterator
from operator import length_hint

import pytest

from tidelog.engine.system import wakes
from tidelog.engine.system.wakes import WakeChain, wake


def held() -> LockType:
    lock = allocate_lock()
    lock.acquire()
    return lock


def test_each_is_woken_once_in_order() -> None:
    locks = [held() for _ in range(3)]
    chain = WakeChain(locks)
    for number in range(1, 4):
        assert length_hint(chain.left) == 4 - number
        assert repr(chain) == f"<WakeChain left={4 - number}>"
        chain.wake_next()
        assert [lock.locked() for lock in locks] == [False] * number + [True] * (3 - number)
    chain.wake_next()
    assert length_hint(chain.left) == 0


def test_who_joins_a_chain_is_the_last_of_it() -> None:
    first, late = held(), held()
    chain = WakeChain([held(), first])
    chain.wake_next()
    assert chain.join(late)
    assert length_hint(chain.left) == 2
    chain.wake_next()
    assert (first.locked(), late.locked()) == (False, True)
    chain.wake_next()
    assert not late.locked()


def test_who_joins_a_chain_that_has_ended_is_not_in_it() -> None:
    # The committer relies on it: who comes too late for the chain leads at once.
    late = held()
    chain = WakeChain([held()])
    chain.wake_next()
    chain.wake_next()
    assert not chain.join(late)
    assert length_hint(chain.left) == 0
    chain.wake_next()
    chain.wake_all()
    assert late.locked()


def test_who_joins_a_chain_that_ends_meanwhile_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    # The threads of a chain go on without the mutex: nobody would have woken the newcomer.
    late, chain = held(), WakeChain([held()])

    def looked(left: Iterator[object]) -> int:
        found = length_hint(left)
        chain.wake_all()
        return found

    monkeypatch.setattr(wakes, "length_hint", looked)
    assert not chain.join(late)
    assert late.locked()


def test_all_that_are_left_are_woken_at_once() -> None:
    locks = [held() for _ in range(3)]
    chain = WakeChain(locks)
    chain.wake_next()
    chain.join(held())
    chain.wake_all()
    assert not any(lock.locked() for lock in locks)
    assert length_hint(chain.left) == 0


def test_to_wake_twice_is_to_wake_once() -> None:
    lock = held()
    for _ in range(2):
        wake(lock)
        assert not lock.locked()
