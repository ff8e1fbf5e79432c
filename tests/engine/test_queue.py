"""The queue of commits by itself: who is named next leader, and who is woken in which order."""

from __future__ import annotations

from operator import length_hint
from typing import Any

import pytest

from support.commits import commit_of
from support.stores import opened
from tidelog.engine.commit.context import AutomaticIds, CommitContext
from tidelog.engine.commit.entries import Batch, Commit
from tidelog.engine.commit.group import Group
from tidelog.engine.commit.puts import Put
from tidelog.engine.commit.queue import CommitQueue
from tidelog.engine.commit.standing import Lead
from tidelog.engine.system.wakes import WakeChain, held_lock


@pytest.fixture
def queue() -> Any:
    """The queue of a store of its own, in which a group is on its way."""
    with opened() as store:
        context = CommitContext(
            store.parts.state,
            store.parts.overlay,
            AutomaticIds(bytes(8)),
            position=0,
            now=lambda: 0.0,
            note_given_id=lambda _id: None,
        )
        context.standing = context.standing.after["serve"].after["commence"].after["lead"]
        yield CommitQueue(context, True)


def lead_of(queue: CommitQueue) -> tuple[object, Lead]:
    """Who is to lead next, and whether anybody leads."""
    return queue.next_leader, queue._context.standing.lead


def ticket(queue: CommitQueue, key: bytes) -> Commit:
    """Queue a commit as its thread does, which is not there."""
    commit = commit_of(key)
    commit.wake = held_lock()
    assert queue.add_ticket(commit)
    return commit


def put(queue: CommitQueue, key: bytes) -> Put:
    put = (0, 16, key, key, b"v", held_lock())
    assert queue.add_put(put)
    return put


def asleep(*commits: Commit) -> list[bool]:
    return [commit.wake.locked() for commit in commits]


def end(queue: CommitQueue, group: Group) -> None:
    queue.end(group)
    assert group.ended


def begin(queue: CommitQueue) -> Group:
    """Let the next leader take what is queued."""
    context, group = queue._context, Group()
    group.own, queue.next_leader, context.standing = (
        queue.next_leader, None, context.standing.after["begin"],
    )  # fmt: skip
    queue.take(group)
    return group


def test_the_end_of_a_group_names_the_first_of_the_queue_and_wakes_it_last(
    queue: CommitQueue,
) -> None:
    own, first, second = (ticket(queue, key) for key in (b"a", b"b", b"c"))
    end(queue, Group())
    assert lead_of(queue) == (own, Lead.NAMED)
    assert asleep(own, first, second) == [False, True, True]
    group = begin(queue)
    following = ticket(queue, b"d")
    end(queue, group)
    assert lead_of(queue) == (following, Lead.NAMED)
    assert asleep(first, second, following) == [False, True, True]
    queue.chain.wake_next()
    assert asleep(first, second, following) == [False, False, True]
    queue.chain.wake_next()
    assert asleep(first, second, following) == [False, False, False]


def test_the_end_of_a_group_is_the_same_when_it_is_done_twice(queue: CommitQueue) -> None:
    first = ticket(queue, b"a")
    end(queue, Group())
    group = begin(queue)
    waiter = queue.applied_soon()
    assert asleep(first) == [False]
    following = ticket(queue, b"b")
    for _ in range(2):
        end(queue, group)
        assert lead_of(queue) == (following, Lead.NAMED)
    assert waiter.acquire(blocking=False)
    assert asleep(following) == [False]


def test_whoever_waits_for_a_group_without_being_in_it_is_woken_at_its_end(
    queue: CommitQueue,
) -> None:
    waiters = [queue.applied_soon(), queue.applied_soon()]
    group = Group()
    end(queue, group)
    assert lead_of(queue) == (None, Lead.IDLE)
    assert all(waiter.acquire(blocking=False) for waiter in waiters)
    end(queue, group)
    assert all(waiter.locked() for waiter in waiters)  # nobody is woken twice


def test_the_main_thread_is_woken_by_the_leader_and_is_not_in_the_chain(
    queue: CommitQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It may go away at any signal, and then nobody would wake those behind it.
    end(queue, Group())
    monkeypatch.setattr("tidelog.engine.commit.queue.get_ident", lambda: 0)
    queue._context.standing = queue._context.standing.after["lead"]
    leader, first = ticket(queue, b"a"), ticket(queue, b"b")
    monkeypatch.undo()
    main = ticket(queue, b"c")
    end(queue, Group())
    group = begin(queue)
    end(queue, group)
    assert asleep(leader, first, main) == [False, False, False]
    assert group.main_wake is main.wake
    assert length_hint(queue.chain.left) == 0


def test_a_chain_that_nobody_has_gone_through_is_woken_whole_by_the_next_end(
    queue: CommitQueue,
) -> None:
    # Its last thread was interrupted, and has gone.
    left = [held_lock(), held_lock()]
    ticket(queue, b"a")
    queue.chain = WakeChain(left)
    end(queue, Group())
    assert not any(lock.locked() for lock in left)


def test_a_thread_that_is_alone_leaves_nobody_to_be_woken(queue: CommitQueue) -> None:
    chain = queue.chain
    end(queue, Group())
    assert queue.chain is chain
    assert lead_of(queue) == (None, Lead.IDLE)
    # Whoever comes now leads at once.
    late = commit_of(b"a")
    late.wake = held_lock()
    assert not queue.add_ticket(late)
    assert lead_of(queue) == (None, Lead.IDLE)


def test_what_an_interrupted_thread_had_queued_is_taken_back_and_the_next_one_named(
    queue: CommitQueue,
) -> None:
    first, gone, second = put(queue, b"a"), put(queue, b"b"), ticket(queue, b"c")
    end(queue, Group())
    assert queue.next_leader is first
    for left in (gone, first):
        queue.abandoned.append(left)
    queue.withdraw_abandoned()
    assert queue.abandoned == []
    assert lead_of(queue) == (second, Lead.NAMED)
    assert asleep(second) == [False]
    queue.abandoned.append(second)
    queue.withdraw_abandoned()
    assert lead_of(queue) == (None, Lead.IDLE)


def test_what_was_taken_back_in_part_is_taken_back_again(
    queue: CommitQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, second = ticket(queue, b"a"), ticket(queue, b"b")
    end(queue, Group())
    queue.abandoned.append(gone)

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(queue, "_rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        queue.withdraw_abandoned()
    monkeypatch.undo()
    queue.withdraw_abandoned()
    assert queue.abandoned == []
    assert lead_of(queue) == (second, Lead.NAMED)


def test_a_lead_that_nobody_has_goes_to_the_first_of_the_queue(queue: CommitQueue) -> None:
    waiting = ticket(queue, b"a")
    queue.name_anybody()  # somebody leads: nothing happens
    assert (queue.next_leader, asleep(waiting)) == (None, [True])
    queue._context.standing = queue._context.standing.after["rest"]
    queue.name_anybody()
    assert lead_of(queue) == (waiting, Lead.NAMED)
    assert asleep(waiting) == [False]


def test_errors_of_puts_lie_ready_for_the_threads_that_are_woken(queue: CommitQueue) -> None:
    own, other = put(queue, b"a"), put(queue, b"b")
    end(queue, Group())
    group = begin(queue)
    assert group.puts is not None
    group.puts.fail(ValueError("no"))
    end(queue, group)
    assert [type(error) for error in queue.errors.values()] == [ValueError]
    assert list(queue.errors) == [other[5]]
    assert isinstance(group.puts.error_of(own[5]), ValueError)


# ------------------------------------------------------------------ what a group takes


@pytest.mark.parametrize(("room", "taken"), [(0, 1), (1, 1), (2, 2), (3, 3)])
def test_a_group_takes_what_fits_and_at_least_one(
    queue: CommitQueue, room: int, taken: int
) -> None:
    tickets = [ticket(queue, key) for key in (b"a", b"b", b"c")]
    queue.bytes_max = room * tickets[0].size
    end(queue, Group())
    assert begin(queue).tickets == tickets[:taken]


def test_a_drop_is_the_last_one_of_its_group(queue: CommitQueue) -> None:
    before, drop, behind = (ticket(queue, key) for key in (b"a", b"b", b"c"))
    drop.undo = lambda: None
    end(queue, Group())
    group = begin(queue)
    assert group.tickets == [before, drop]
    end(queue, group)
    assert begin(queue).tickets == [behind]


def test_puts_are_ahead_of_all_tickets_and_a_group_has_what_it_has_taken_only(
    queue: CommitQueue,
) -> None:
    queue.puts_max = 1
    commit, first, late = ticket(queue, b"a"), put(queue, b"b"), put(queue, b"c")
    batch = Batch([commit_of(b"d"), commit_of(b"e")])
    batch.wake = held_lock()
    assert queue.add_ticket(batch)
    end(queue, Group())
    group = begin(queue)
    assert group.taken == [group.puts, commit, *batch.entries]
    assert all(map(group.has, (commit, batch, first)))
    assert not group.has(late)
