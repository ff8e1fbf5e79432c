"""Open transactions at the member that keeps them: what it asks of primaries, and when they end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from support.group_transactions import BOB, MAP, ME, Said, Told, key_in, name_in, topology
from support.primaries import Leases
from tidelog.affinity.partitions import one_space
from tidelog.checkpoints.replay import State
from tidelog.engine.data.scan import Range
from tidelog.engine.node.client_request import ClientRequest
from tidelog.engine.node.open_transactions import (
    ANSWER_S_MAX,
    IDLE_S_MAX,
    KEYS_MAX,
    OPEN_MAX,
    WAIT_S_MAX,
    OpenTransactions,
)
from tidelog.engine.node.partitions import Partitions, RoutedError
from tidelog.engine.node.tx_messages import AcquireWanted, FoundAt, LockProbe, told_failure
from tidelog.errors import (
    DeadlineError,
    DeadlockError,
    LockTimeoutError,
    NotFoundError,
    PartitionUnavailableError,
    RolledBackError,
    TidelogError,
    TransactionTooLargeError,
    UsageError,
)
from tidelog.wal.records import NamespaceRecord

OLD, YOUNG = b"1" * 16, b"3" * 16
HERE, BOBS, CIDS, HERE_TOO = 0, 1, 3, 4
"""Partitions of three members."""
LATE = LockTimeoutError("a lock on a key was not granted")
ENDED = "give-back"


class Client:
    """A connection, and what was answered on it."""

    def __init__(self) -> None:
        self.up = True
        self.answers: list[Any] = []

    def send(self, message: Sequence[Any]) -> None:
        self.answers.append(message[2] if len(message) == 3 else message[2:4])

    def answered(self) -> Any:
        """What the only answer since the last call was: a value, or a code."""
        [found], self.answers = self.answers, []
        return found if isinstance(found, tuple) else found[0]


class Keeper:
    """A member that keeps transactions."""

    def __init__(self) -> None:
        self.now, self.post = 100.0, Told()
        state = State(b"s" * 16, one_space(6))
        state.namespaces = {
            MAP: NamespaceRecord(
                id=MAP, name="m", key_codec="bytes", key_version=1, value_codec="bytes",
                value_version=1,
            )
        }  # fmt: skip
        post: Any = self.post
        self.leases = Leases(ME)
        self.here = OpenTransactions(
            ME, state, Partitions(self.leases, 0.0), post, lambda: self.now
        )
        self.here.decided(topology())
        self.client = Client()

    def lock(
        self,
        *partitions: int,
        name: bytes = OLD,
        first: bool = False,
        exclusive: bool = True,
        reads: bool = False,
        bounds: Sequence[Any] = (),
        wait: float = 1.0,
        left: float | None = None,
        deadline: float = 1e9,
        client: Client | None = None,
        number: int = MAP,
    ) -> None:
        keys = [name_in(partition) for partition in partitions]
        left_us = None if left is None else int(left * 1e6)
        connection: Any = client or self.client
        arguments = [
            name,
            first,
            number,
            keys,
            exclusive,
            reads,
            list(bounds),
            int(wait * 1e6),
            left_us,
        ]
        request = ClientRequest(connection, 1, deadline, "lock", arguments)
        request.carry_out(self.here.lock)

    def unlock(self, name: bytes = OLD, client: Client | None = None) -> None:
        connection: Any = client or self.client
        ClientRequest(connection, 2, 1e9, "unlock", [name]).carry_out(self.here.unlock)

    def asked(self) -> tuple[str, AcquireWanted]:
        [(to, kind, wanted)] = self.post.said()
        assert kind == "acquire"
        return to, wanted

    def told(self, error: TidelogError | None = None, found: list[FoundAt] | None = None) -> None:
        """Let the primary that was asked last answer."""
        _, wanted = self.asked()
        failure = None if error is None else told_failure(error)
        self.here.acquired(wanted.ask, wanted.name, found, failure)

    def has_locked(self, *partitions: int, **more: Any) -> None:
        self.lock(*partitions, first=True, **more)
        while not self.client.answers:
            self.told()
        assert self.client.answered() == (ME.member.bytes, None)

    def kinds(self) -> list[tuple[str, str]]:
        return self.post.kinds()


@pytest.fixture
def at() -> Keeper:
    return Keeper()


# ------------------------------------------------------------------ locks


def test_each_member_is_asked_for_its_part_one_after_the_other(at: Keeper) -> None:
    at.lock(BOBS, HERE, CIDS, first=True, exclusive=False, wait=2.5)
    for name, partition in (("me", HERE), ("bob", BOBS), ("cid", CIDS)):
        to, wanted = at.asked()
        assert to == name
        assert wanted[1:] == (
            OLD, [partition], [1], [key_in(partition)], False, False, None, 2_500_000,
        )  # fmt: skip
        assert at.client.answers == []
        at.here.acquired(wanted.ask, OLD, None, None)
    assert at.client.answered() == (ME.member.bytes, None)
    assert at.here.has(OLD)


def test_members_are_asked_in_one_order_whatever_their_partitions(at: Keeper) -> None:
    """So two that lock the same at once do not wait for each other."""
    at.lock(CIDS, HERE_TOO, first=True)
    assert at.asked()[0] == "me"


@pytest.mark.parametrize("stop", [None, b"z"])
def test_a_range_is_locked_in_all_partitions_of_its_map(at: Keeper, stop: bytes | None) -> None:
    at.lock(first=True, bounds=(b"a", stop))
    asked = []
    while not at.client.answers:
        _, wanted = at.asked()
        asked += wanted.partitions
        assert wanted.within == Range(namespace=MAP, start=b"a", stop=stop)
        at.here.acquired(wanted.ask, OLD, None, None)
    assert sorted(asked) == list(range(6))


def test_what_was_read_is_told_in_the_order_of_the_keys(at: Keeper) -> None:
    at.lock(CIDS, HERE, first=True, reads=True)
    at.told(found=[FoundAt(b"here", 1, 1)])
    at.told(found=[FoundAt(b"there", 1, 3)])
    rows = [FoundAt(b"there", 1, 3), FoundAt(b"here", 1, 1)]
    assert at.client.answered() == (ME.member.bytes, rows)
    at.lock(CIDS, HERE, reads=True)
    at.told(found=[FoundAt(b"here", 1, 1)])
    at.told(found=None)  # too large
    assert at.client.answered() == (ME.member.bytes, None)
    at.lock(CIDS, reads=True)
    at.told(found=[])
    assert at.client.answered() == (ME.member.bytes, None), "it is not of these keys"


@pytest.mark.parametrize(
    ("wait", "left", "expected"), [(10.0, 2.0, 2.0), (10.0, -1.0, 0.0), (1e6, 1e6, WAIT_S_MAX)]
)
def test_the_wait_is_no_longer_than_the_call_and_an_hour(
    at: Keeper, wait: float, left: float, expected: float
) -> None:
    at.lock(HERE, first=True, wait=wait, deadline=at.now + left)
    assert at.asked()[1].wait_us == expected * 1e6


def test_so_many_keys_are_locked_at_once_and_no_more(at: Keeper) -> None:
    at.lock(*[HERE] * KEYS_MAX, first=True)
    assert len(at.asked()[1].keys) == KEYS_MAX
    at.lock(*[HERE] * (KEYS_MAX + 1), first=True, name=YOUNG)
    assert at.client.answered() == UsageError.code


@pytest.mark.parametrize(
    "error", [LATE, RoutedError("remap", "elsewhere"), TransactionTooLargeError("too many locks")]
)
def test_a_lock_that_is_not_there_leaves_the_others(at: Keeper, error: TidelogError) -> None:
    at.has_locked(HERE)
    at.lock(BOBS)
    at.told(error)
    code = "wait" if isinstance(error, RoutedError) else error.code
    assert at.client.answered() == code
    at.now += 1.0 + ANSWER_S_MAX + 0.01
    at.here.tick()
    assert at.here.has(OLD), "no answer is missing"
    at.here.decided(topology({BOBS: 2}))
    assert at.here.has(OLD) is isinstance(error, RoutedError), "of Bob's nothing was touched"


def test_a_partition_that_has_locks_already_is_given_back_though_another_lock_failed(
    at: Keeper,
) -> None:
    at.has_locked(HERE)
    at.lock(HERE)
    at.told(RoutedError("wait", "a lease"))
    at.unlock()
    assert at.kinds() == [("me", ENDED)]


def test_locks_of_one_partition_are_of_one_epoch(at: Keeper) -> None:
    at.lock(HERE, BOBS, first=True)
    at.here.decided(topology({BOBS: 2}))
    at.told()
    assert at.asked()[1].epochs == [1], "that was the newest when it was asked for"
    at.client.answers.clear()
    at.lock(BOBS)
    assert "wait" in at.client.answers[0]
    assert RolledBackError.code in at.client.answers[1]
    assert not at.here.has(OLD)


def test_a_wait_up_to_the_end_of_the_call_is_its_deadline(at: Keeper) -> None:
    at.has_locked(HERE)
    at.lock(BOBS, deadline=at.now + 1)
    at.now += 1
    at.told(LATE)
    assert at.client.answered() == DeadlineError.code


@pytest.mark.parametrize("error", [LATE, RoutedError("wait", "a lease")])
def test_a_transaction_that_has_locked_nothing_yet_ends_with_any_failure(
    at: Keeper, error: TidelogError
) -> None:
    """Its client may try it through somebody else."""
    at.lock(HERE, BOBS, first=True)
    at.told()
    at.told(error)
    assert at.client.answers
    assert not at.here.has(OLD)
    assert ("me", ENDED) in at.kinds()


@pytest.mark.parametrize("error", [DeadlockError("a circle"), RolledBackError("gone")])
def test_any_other_failure_ends_the_transaction(at: Keeper, error: TidelogError) -> None:
    at.has_locked(HERE)
    at.lock(BOBS)
    at.told(error)
    assert at.client.answered() == error.code
    assert at.kinds() == [("me", ENDED), ("bob", ENDED)]
    at.lock(HERE)
    assert at.client.answered() == RolledBackError.code


def test_an_answer_to_something_else_is_none(at: Keeper) -> None:
    at.lock(HERE, first=True)
    _, wanted = at.asked()
    at.here.acquired(wanted.ask + 1, OLD, None, None)
    at.here.acquired(wanted.ask, YOUNG, None, None)
    assert at.client.answers == []


def test_a_new_question_takes_the_place_of_one_that_nobody_waits_for(at: Keeper) -> None:
    at.has_locked(HERE)
    at.lock(BOBS)
    at.post.said()
    at.lock(CIDS)
    assert at.client.answered() == "wait"
    at.told()
    assert at.client.answered() == (ME.member.bytes, None)


def test_what_cannot_be_meant_is_refused(at: Keeper) -> None:
    for more in (
        {"name": b"short"}, {"wait": -1.0}, {"left": -1.0}, {"bounds": (b"a",)},
        {"bounds": (None, None)}, {"bounds": (b"a", "b")},
    ):  # fmt: skip
        options: dict[str, Any] = {"first": True, **more}
        at.lock(HERE, **options)
        assert at.client.answered() == UsageError.code
    at.lock(HERE, first=True, number=99)
    assert at.client.answered() == NotFoundError.code
    assert not at.here.has(OLD)


@pytest.mark.parametrize("sole", [True, False])
def test_what_nobody_serves_is_not_waited_for(at: Keeper, *, sole: bool) -> None:
    at.leases.topology = topology(away=(BOB,))
    if not sole:
        rows = list(at.leases.topology.partitions)
        rows[BOBS] = replace(rows[BOBS], in_sync=(BOB, ME))
        at.leases.topology = replace(at.leases.topology, partitions=tuple(rows))
    at.lock(BOBS, first=True)
    assert at.client.answered() == (PartitionUnavailableError.code if sole else "wait")
    assert not at.here.has(OLD)


def test_a_cancelled_lock_is_withdrawn(at: Keeper) -> None:
    at.has_locked(HERE)
    at.lock(BOBS, number=MAP)
    _, wanted = at.asked()
    connection: Any = at.client
    other: Any = Client()
    at.here.cancelled(connection, 99)
    at.here.cancelled(other, 1)
    assert at.post.said() == []
    at.here.cancelled(connection, 1)
    to, nothing = at.asked()
    assert (to, nothing.keys, nothing.partitions) == ("bob", [], [])
    at.now += 1.0 + ANSWER_S_MAX + 0.01
    at.here.tick()
    assert at.here.has(OLD), "no answer is missing"
    at.here.acquired(wanted.ask, OLD, None, None)
    at.here.acquired(nothing.ask, OLD, None, None)
    assert at.client.answered() == "wait", "once"
    assert at.here.has(OLD)


def test_a_cancelled_first_lock_ends_its_transaction(at: Keeper) -> None:
    at.lock(HERE, first=True)
    connection: Any = at.client
    at.here.cancelled(connection, 1)
    assert not at.here.has(OLD)
    assert ("me", ENDED) in at.kinds()


# ------------------------------------------------------------------ ends


def test_unlocking_gives_all_back_and_only_to_whom_it_belongs(at: Keeper) -> None:
    at.has_locked(HERE, BOBS)
    other = Client()
    at.unlock(client=other)
    assert at.here.has(OLD)
    at.unlock()
    assert at.kinds() == [("me", ENDED), ("bob", ENDED)]
    at.unlock()
    assert at.kinds() == []


def test_another_connection_has_no_part_in_it(at: Keeper) -> None:
    at.has_locked(HERE)
    other = Client()
    at.lock(HERE, first=True, client=other)
    assert other.answered() == RolledBackError.code
    assert not at.here.has(OLD)


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("how", ["connection", "deadline", "silence", "idle", "epoch"])
def test_what_ends_a_transaction(at: Keeper, how: str, *, waits: bool) -> None:
    at.has_locked(HERE, left=20.0 if how == "deadline" else None)
    if waits:
        at.lock(BOBS, wait=1.0)
        at.post.said()
    if how == "connection":
        at.client.up = False
    elif how == "epoch":
        at.here.decided(topology({HERE: 2}))
    else:
        seconds = {"deadline": 20.0, "silence": 1.0 + ANSWER_S_MAX, "idle": IDLE_S_MAX}
        at.now += seconds[how]
        at.here.tick()
        assert at.here.has(OLD) or (waits and how != "silence")
        at.now += 0.01
    at.here.tick()
    assert at.here.has(OLD) is (how == "silence" and not waits)
    if not at.here.has(OLD):
        assert ("me", ENDED) in at.kinds()
        assert len(at.client.answers) == waits


def test_each_lock_shows_that_a_transaction_is_wanted(at: Keeper) -> None:
    at.has_locked(HERE)
    for _ in range(2):
        at.now += IDLE_S_MAX
        at.here.tick()
        at.lock(BOBS)
        at.told()
    assert at.here.has(OLD)
    at.lock(BOBS, wait=2 * IDLE_S_MAX)
    at.now += IDLE_S_MAX + 0.01
    at.here.tick()
    assert at.here.has(OLD), "it waits for one"


# ------------------------------------------------------------------ probes


def waiting(at: Keeper, name: bytes = OLD) -> int:
    """Let a transaction wait for what Bob serves; return the number of its question."""
    at.lock(HERE, name=name, first=True)
    at.told()
    at.client.answers.clear()
    at.lock(BOBS, name=name)
    return at.asked()[1].ask


def passed(at: Keeper) -> list[Said]:
    return [one for one in at.post.said() if one[1] == "probe"]


def test_a_probe_goes_to_where_its_transaction_waits_once_a_round(at: Keeper) -> None:
    waiting(at)
    probe = LockProbe(YOUNG, [YOUNG, OLD], 5, 1, waits=False)
    at.here.probe(probe)
    assert passed(at) == [("bob", "probe", probe._replace(waits=True))]
    at.here.probe(probe._replace(path=[YOUNG, b"2" * 16, OLD]))
    assert passed(at) == [], "it came by another way"
    for later in (probe._replace(round=2), probe._replace(ask=6, round=1)):
        at.here.probe(later)
        assert len(passed(at)) == 1


def test_a_probe_goes_on_again_from_another_wait(at: Keeper) -> None:
    at.lock(HERE, BOBS, first=True)
    probe = LockProbe(YOUNG, [YOUNG, OLD], 5, 1, waits=False)
    _, wanted = at.asked()
    for name in ("me", "bob"):
        at.here.probe(probe)
        assert [to for to, _, _ in passed(at)] == [name]
        at.here.acquired(wanted.ask, OLD, None, None)
        if name == "me":
            _, wanted = at.asked()


def test_a_probe_of_who_does_not_wait_ends_here(at: Keeper) -> None:
    at.has_locked(HERE)
    at.here.probe(LockProbe(YOUNG, [YOUNG, OLD], 5, 1, waits=False))
    at.here.probe(LockProbe(YOUNG, [YOUNG, b"2" * 16], 5, 1, waits=False))
    assert at.kinds() == []


def test_a_probe_that_comes_back_ends_its_transaction_if_it_waits_still(at: Keeper) -> None:
    ask = waiting(at)
    back = LockProbe(OLD, [OLD, YOUNG, OLD], ask, 1, waits=False)
    at.here.probe(back._replace(ask=ask - 1))
    assert at.client.answers == []
    at.here.probe(back)
    assert at.client.answers[0][1] == "transactions waited for each other's locks"
    assert at.client.answered() == DeadlockError.code
    assert at.kinds() == [("me", ENDED), ("bob", ENDED)]


def test_only_so_many_are_open_over_one_connection() -> None:
    at, other = Keeper(), Client()
    first, *names = (b"%016d" % number for number in range(OPEN_MAX + 3))
    at.has_locked(HERE, name=first)
    for name in names[: OPEN_MAX - 1]:
        at.has_locked(HERE, name=name)
    *_, second, third, fourth = names
    at.lock(HERE, name=second, first=True)
    assert at.client.answered() == "TL-USE-001"
    assert not at.here.has(second)
    at.lock(BOBS, name=first)  # those that are open go on
    at.told()
    assert at.client.answered() == (ME.member.bytes, None)
    at.lock(HERE, name=third, first=True, client=other)
    at.told()
    assert other.answered() == (ME.member.bytes, None)
    at.unlock(first)
    assert at.client.answers == [None]
    at.client.answers.clear()
    at.post.said()
    at.has_locked(HERE, name=fourth)


def test_nobody_counts_what_has_ended() -> None:
    at = Keeper()
    at.has_locked(HERE)
    at.client.up = False
    at.here.tick()
    assert at.here._by_connection == {}
