"""A client of a cluster for threads, against members that break, refuse, leave and come back."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import tidelog
from support.members import CLUSTER, Fault, Members, members
from tidelog.affinity.partitions import Space, partition_of
from tidelog.codecs import I64, Str
from tidelog.engine.client.blocking import ClusterDatabase, connect, connect_with
from tidelog.engine.client.changes import SeenRange
from tidelog.engine.client.places import place_of_cluster
from tidelog.engine.client.routing import Cluster
from tidelog.engine.client.unsupported import NOT_YET
from tidelog.engine.commit.outcomes import home_of
from tidelog.engine.data.digests import RANGE_KEYS_MAX
from tidelog.engine.net import frames
from tidelog.engine.net.operations import GET_KEYS_MAX
from tidelog.errors import (
    ClosedError,
    CodecError,
    CommitUnknownError,
    ConflictError,
    DeadlineError,
    ForkedError,
    LockTimeoutError,
    NotEnoughMembersError,
    NotFoundError,
    PartitionUnavailableError,
    TransactionTooLargeError,
    UnsupportedError,
    UsageError,
)
from tidelog.testing import FaultyDisk, simulated

PARTITIONS = 6
Counters = tidelog.Map[str, int]


@pytest.fixture
def alone() -> Iterator[Members]:
    with members(1, PARTITIONS) as cluster:
        yield cluster


@pytest.fixture
def three() -> Iterator[Members]:
    with members(3, PARTITIONS) as cluster:
        yield cluster


def counters(db: ClusterDatabase) -> Counters:
    return db.map("counters", key=Str, value=I64)


def key_of(member: int, count: int = 3) -> str:
    """A key that a member of so many serves."""
    names = (f"k{n}" for n in range(1000))
    space = Space(0, PARTITIONS)
    return next(k for k in names if partition_of(k.encode(), space) % count == member)


# ------------------------------------------------------------------ what breaks


@pytest.mark.parametrize("fault", ["break_before", "break_after", "pending", "remap", "wait"])
@pytest.mark.parametrize(
    ("change", "left"),
    [
        (lambda m, key: m.set(key, 5), 5),
        (lambda m, key: m.incr(key), 2),
        (lambda m, key: m.pop(key), None),
        (lambda m, key: m.update_many({key: 5}), 5),
        (lambda m, key: m.compare_and_set(key, 1, 7), 7),
    ],
)
def test_a_change_takes_effect_once_whatever_breaks(
    three: Members, fault: Fault, change: Callable[..., Any], left: int | None
) -> None:
    with connect(three.url) as db:
        m, key = counters(db), key_of(1)
        m[key] = 1
        before = sum(three.counters)
        three.members[1].faults += [fault, fault]
        change(m, key)
        three.members[1].faults.clear()
        assert m.get(key) == left
        assert sum(three.counters) == before + 1


@pytest.mark.parametrize("fault", ["break_before", "break_after", "remap", "wait"])
def test_a_read_is_asked_again_whatever_breaks(three: Members, fault: Fault) -> None:
    with connect(three.url) as db:
        m = counters(db)
        for member in range(3):
            m[key_of(member)] = member
        asks: list[Callable[[], list[int]]] = [
            lambda: [m[key_of(member)] for member in range(3)],
            lambda: sorted(m.get_many([key_of(member) for member in range(3)]).values()),
            lambda: sorted(m.values()),
        ]
        for ask in asks:
            for one in three.members:
                one.faults.append(fault)
            assert ask() == [0, 1, 2]


def test_a_transaction_whose_answer_was_lost_is_not_run_again(alone: Members) -> None:
    runs = 0

    def work(tx: tidelog.Transaction) -> None:
        nonlocal runs
        runs += 1
        alone.members[0].faults.append("wait")
        tx[m]["a"] = tx[m]["a"] + 1
        alone.members[0].faults.append("break_after")

    with connect(alone.url) as db:
        m = counters(db)
        m["a"] = 1
        db.run(work)
        assert (m["a"], runs) == (2, 1)


def test_many_keys_are_asked_for_by_several_requests(three: Members) -> None:
    with connect(three.url) as db:
        m = counters(db)
        keys = [f"n{number}" for number in range(2 * GET_KEYS_MAX + 1)]
        m[keys[0]], m[keys[-1]] = 1, 2
        assert m.get_many(keys) == {keys[0]: 1, keys[-1]: 2}


def test_the_work_of_a_client_may_commit_or_roll_back_itself(alone: Members) -> None:
    def rolls_back(tx: tidelog.Transaction) -> str:
        tx[m]["a"] = 2
        tx.rollback()
        return "rolled back"

    def commits(tx: tidelog.Transaction) -> str:
        tx[m]["a"] = 3
        tx.commit()
        return "committed"

    def commits_and_fails(tx: tidelog.Transaction) -> None:
        tx[m].incr("a")
        tx.commit()
        raise LockTimeoutError("of something else")

    with connect(alone.url) as db:
        m = counters(db)
        m["a"] = 1
        assert db.run(rolls_back) == "rolled back"
        assert m["a"] == 1
        assert db.run(commits) == "committed"
        assert m["a"] == 3
        m["a"] = 1
        with pytest.raises(LockTimeoutError, match="behind the commit, which took effect"):
            db.run(commits_and_fails)
        assert m["a"] == 2


def test_a_commit_that_nobody_can_tell_of_is_unknown_and_is_asked_for_later(
    three: Members,
) -> None:
    disk = FaultyDisk()
    with connect_with(simulated(1, disk), three.url, timeout=2) as db:
        m, key = counters(db), key_of(1)
        m[key] = 1
        three.members[1].faults.append("break_after")
        three.members[1].faults += ["wait"] * 1000
        with pytest.raises(CommitUnknownError) as caught:
            m[key] = 2
        three.members[1].faults.clear()
        error = caught.value
        assert error.home == partition_of(key.encode(), Space(0, PARTITIONS))
        assert db.outcome(error.tx_id, home=error.home) == "committed"
        assert m[key] == 2


@pytest.mark.parametrize("by_its_block", [False, True])
def test_what_the_work_may_have_committed_is_not_made_again(
    three: Members, by_its_block: bool
) -> None:
    calls = 0
    with connect_with(simulated(1, FaultyDisk()), three.url, timeout=2) as db:
        m, key = counters(db), key_of(1)
        m[key] = 1

        def work(tx: tidelog.Transaction) -> None:
            nonlocal calls
            calls += 1
            tx[m].incr(key)
            three.members[1].faults.append("break_after")
            three.members[1].faults += ["wait"] * 1000
            assert not tx.in_doubt
            with suppress(CommitUnknownError), tx if by_its_block else nullcontext():
                if not by_its_block:
                    tx.commit()
            three.members[1].faults.clear()
            assert repr(tx).startswith("<Transaction in doubt ")
            assert tx.in_doubt
            raise LockTimeoutError("of something else")

        with pytest.raises(LockTimeoutError, match="the commit, which may have taken effect"):
            db.run(work, deadline=60)
        assert (calls, m[key]) == (1, 2)


# ------------------------------------------------------------------ who is away


def test_a_member_that_is_away_is_not_waited_for_and_the_others_serve(three: Members) -> None:
    with connect(three.url, timeout=60) as db:
        m = counters(db)
        for member in range(3):
            m[key_of(member)] = member
        three.members[1].leave(told=True)
        with pytest.raises(PartitionUnavailableError) as caught:
            m.get(key_of(1))
        assert caught.value.partition == partition_of(key_of(1).encode(), Space(0, PARTITIONS))
        with pytest.raises(PartitionUnavailableError):
            m[key_of(1)] = 5
        with pytest.raises(PartitionUnavailableError):
            list(m)
        assert (m[key_of(0)], m[key_of(2)]) == (0, 2)
        three.members[1].come_back()
        assert m[key_of(1)] == 1


def test_a_partition_is_found_where_it_is_now(three: Members) -> None:
    with connect(three.url) as db:
        m = counters(db)
        for number in range(100):
            m[f"n{number:02}"] = number
        for turn in range(3):
            with three.lock:
                three.primaries = [(place + 1) % 3 for place in three.primaries]
                three.decide()
            assert m["n00"] == 0
            m["n99"] = turn
            assert list(m) == [f"n{number:02}" for number in range(100)]
            assert len(m.get_many([f"n{number:02}" for number in range(100)])) == 100


def test_an_iteration_goes_on_when_partitions_move(three: Members) -> None:
    with connect(three.url) as db:
        m = counters(db)
        for number in range(200):
            m[f"n{number:03}"] = number
        for reverse in (False, True):
            seen = []
            for key, _ in m.range(reverse=reverse):
                seen.append(key)
                if len(seen) in (1, 70, 130):
                    with three.lock:
                        three.primaries = [*three.primaries[1:], three.primaries[0]]
                        three.decide()
            assert sorted(seen, reverse=reverse) == seen
            assert len(seen) == len(set(seen)) == 200


def test_if_nobody_answers_the_error_says_who_was_tried(alone: Members) -> None:
    with connect_with(simulated(1, FaultyDisk()), alone.url, timeout=2) as db:
        m = counters(db)
        alone.members[0].leave()
        address = alone.members[0].address
        with pytest.raises(NotEnoughMembersError, match=f"{address}: .*refused"):
            m.get("a")
        with pytest.raises(NotEnoughMembersError, match=address):
            m["a"] = 1
        alone.members[0].come_back()
        assert m.get("a") is None
    alone.close()
    with pytest.raises(NotEnoughMembersError, match=address):
        connect_with(simulated(1, FaultyDisk()), alone.url, timeout=2)


# ------------------------------------------------------------------ transactions


def test_what_was_read_has_to_be_so_still(alone: Members) -> None:
    with connect(alone.url) as db:
        m = counters(db)
        m.update({"a": 1, "b": 2, "c": 3})
        reads: list[Callable[[Counters], object]] = [
            lambda inside: inside["b"],
            lambda inside: inside.get_many(["a", "b"]),
            lambda inside: list(inside),
            lambda inside: list(inside.range("b", "c")),
            lambda inside: next(iter(inside.range("aa"))),
            lambda inside: (next(inside.range("aa", reverse=True, limit=2)), len(inside)),
        ]
        for read in reads:
            with pytest.raises(ConflictError), db.transaction(plain_writes=True) as tx:  # noqa: PT012
                read(tx[m])
                m["b"] += 1
                tx[m]["z"] = 1
        with pytest.raises(ConflictError), db.transaction(plain_writes=True) as tx:  # noqa: PT012
            list(tx[m].range("b", "c"))
            m["bb"] = 1  # came into the range
            tx[m]["z"] = 1
        with db.transaction(plain_writes=True) as tx:
            list(tx[m].range("b", "bb"))
            m["c"] = 9  # outside of it
            tx[m]["z"] = 1
        assert m["z"] == 1


def test_reads_alone_are_confirmed_too_if_there_were_several(alone: Members) -> None:
    with connect(alone.url) as db:
        m = counters(db)
        m["a"] = 1
        with db.transaction(plain_writes=True) as tx:
            assert tx[m]["a"] == 1
            m["a"] = 2
            assert tx[m]["a"] == 1  # stays as it was read
        with pytest.raises(ConflictError), db.transaction(plain_writes=True) as tx:  # noqa: PT012
            assert tx[m]["a"] == 2
            m["a"] = 3
            assert tx[m].get("b") is None
        commits = [asked for asked in alone.asked if asked[1] == "commit"]
        with db.transaction() as tx:
            tx[m].get("a")
        assert [asked for asked in alone.asked if asked[1] == "commit"] == commits


def test_a_transaction_sees_its_own_writes_in_every_read(alone: Members) -> None:
    with connect(alone.url) as db:
        m = counters(db)
        m.update({f"n{number:04}": number for number in range(3000)})
        with db.transaction() as tx:
            inside = tx[m]
            inside["n0000x"] = -1
            inside["z"] = -2
            del inside["n0001"]
            expected = sorted({*m, "n0000x", "z"} - {"n0001"})
            assert list(inside) == expected
            assert list(reversed(inside)) == expected[::-1]
            assert len(inside) == 3001
            assert inside.last() == ("z", -2)
        assert list(m) == expected


def test_what_a_transaction_pops_is_gone(alone: Members) -> None:
    with connect(alone.url) as db:
        m = counters(db)
        m.update_many({"a": 1, "b": 2, "c": 3})
        with db.transaction() as tx:
            assert (tx[m].popitem(), tx[m].popitem()) == (("a", 1), ("b", 2))
            assert dict(tx[m]) == {"c": 3}
        assert dict(m) == {"c": 3}
        with db.transaction() as tx:
            assert tx[m].popitem() == ("c", 3)
            with pytest.raises(KeyError):
                tx[m].popitem()


def test_nothing_goes_on_behind_the_end_of_a_transaction_or_of_its_map(alone: Members) -> None:
    with connect(alone.url) as db:
        m = counters(db)
        m.update_many({"a": 1, "b": 2})
        tx = db.transaction()
        rows = iter(tx[m].items())
        assert next(rows) == ("a", 1)
        tx.rollback()
        with pytest.raises(ClosedError):
            list(rows)
        tx = db.transaction()
        inside = tx[m]
        db.drop(m.name)
        with pytest.raises(NotFoundError, match="was dropped"):
            inside.set("a", 2)
        tx.rollback()


def test_the_tag_and_a_given_id_travel(alone: Members) -> None:
    with connect(alone.url) as db:
        m, tx_id = counters(db), db.new_id()
        with db.transaction(id=tx_id, tag="wedding") as tx:
            tx[m]["a"] = 1
        assert (tx.tx_id, tx.receipt and tx.receipt.time) == (tx_id, 7)
        assert db.outcome(tx_id) == "committed"
        assert db.outcome(db.new_id()) == "rolled_back"
        with pytest.raises(UsageError, match="16 bytes"):
            db.outcome(b"short")
        for home in (-1, 6):
            with pytest.raises(UsageError, match="not one of the 6 partitions"):
                db.outcome(tx_id, home=home)


def test_threads_share_a_client(three: Members) -> None:
    with connect(three.url) as db:
        m, key = counters(db), key_of(2)

        def work() -> None:
            for _ in range(25):
                m.incr(key)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert m[key] == 100


# ------------------------------------------------------------------ isolation


def test_read_committed_sees_the_newest_commit_by_each_read(alone: Members) -> None:
    with connect(alone.url) as db:
        m = counters(db)
        m.update({key_of(0): 1, key_of(1): 2})
        with db.transaction(isolation="read_committed", plain_writes=True) as tx:
            inside = tx[m]
            assert inside.get(key_of(0)) == 1
            assert dict(inside.items()) == {key_of(0): 1, key_of(1): 2}
            m[key_of(0)] = 10
            assert inside.get_many([key_of(0), key_of(1)]) == {key_of(0): 10, key_of(1): 2}
            inside[key_of(1)] = 20
            m[key_of(1)] = 3
            assert inside.get_many([key_of(0), key_of(1)]) == {key_of(0): 10, key_of(1): 20}
            assert dict(inside.items()) == {key_of(0): 10, key_of(1): 20}
            del inside[key_of(0)]
            assert inside.get_many([key_of(0)]) == {}
        assert dict(m.items()) == {key_of(1): 20}


def test_read_committed_confirms_nothing_and_keeps_nothing_for_that(alone: Members) -> None:
    with connect(alone.url) as db:
        m = counters(db)
        m.update({f"k{n}": n for n in range(4)})
        with db.transaction(isolation="read_committed") as tx:
            assert len(list(tx[m])) == 4
            assert tx[m].get("k1") == 1
        assert (0, "commit") not in alone.asked[-2:], "there is nothing to confirm"


@pytest.mark.parametrize("confirms", [False, True])
def test_a_range_is_limited_only_if_it_is_confirmed(confirms: bool) -> None:
    namespace: Any = None
    seen = SeenRange(
        Cluster([]), namespace, b"", None, reverse=False, values=False, confirms=confirms
    )
    row = (b"k", b"", 1, 1) if confirms else (b"k", b"")
    seen.gave([row] * RANGE_KEYS_MAX, more=True)
    with pytest.raises(TransactionTooLargeError) if confirms else nullcontext():
        seen.gave([row], more=False)


def test_repeatable_read_is_serializable_here(alone: Members) -> None:
    with connect(alone.url) as db:
        m = counters(db)
        m.update({key_of(0): 1, key_of(1): 2})
        tx = db.transaction(isolation="repeatable_read", plain_writes=True)
        assert tx[m].get(key_of(0)) == 1
        m[key_of(0)] = 10
        assert tx[m].get(key_of(0)) == 1
        tx[m][key_of(1)] = 20
        with pytest.raises(ConflictError):
            tx.commit()
        assert dict(m.items()) == {key_of(0): 10, key_of(1): 2}


def test_read_committed_reads_and_writes_any_partitions(three: Members) -> None:
    with connect(three.url) as db:
        m = counters(db)
        for number in range(3):
            m[key_of(number)] = number
        with db.transaction(isolation="read_committed") as tx:
            found = tx[m].get_many([key_of(0), key_of(1), key_of(2)])
            tx[m][key_of(0)] = sum(found.values()) + tx[m][key_of(1)]
        assert m[key_of(0)] == 4
        with db.transaction(isolation="read_committed", plain_writes=True) as tx:
            tx[m][key_of(0)] = 5
            assert sorted(tx[m]) == sorted(key_of(number) for number in range(3))
            m[key_of(2)] = 9  # nothing is confirmed
            tx[m][key_of(1)] = len(tx[m])
        assert [m[key_of(number)] for number in range(3)] == [5, 3, 9]
        before = list(three.asked)
        with db.transaction(isolation="read_committed") as tx:
            list(tx[m])
        assert "commit" not in [what for _, what in three.asked[len(before) :]]


# ------------------------------------------------------------------ of several members


def commits_of(cluster: Members, since: int) -> list[int]:
    """Which members were asked to commit something since then."""
    return [member for member, what in cluster.asked[since:] if what == "commit"]


def test_a_transaction_writes_partitions_of_several_members(three: Members) -> None:
    with connect(three.url) as db:
        m = counters(db)
        keys = [key_of(number) for number in range(3)]
        m.update(dict.fromkeys(keys, 1))
        since = len(three.asked)
        with db.transaction() as tx:
            inside = tx[m]
            inside[keys[0]] -= 1
            inside[keys[2]] += 1
            assert inside.get_many(keys) == dict(zip(keys, [0, 1, 2], strict=True))
            assert [*inside] == sorted(keys)
        assert m.get_many(keys) == dict(zip(keys, [0, 1, 2], strict=True))
        home = min(partition_of(key.encode(), Space(0, PARTITIONS)) for key in keys[::2])
        assert commits_of(three, since) == [three.primaries[home]], "one member leads it"
        m.delete_many(keys[:2])
        assert dict(m) == {keys[2]: 2}
        m.clear()
        assert dict(m) == {}


def test_what_was_read_at_several_members_has_to_be_so_still(three: Members) -> None:
    with connect(three.url) as db:
        m = counters(db)
        keys = [key_of(number) for number in range(3)]
        reads: list[Callable[[Counters], object]] = [
            lambda inside: inside[keys[1]],
            lambda inside: inside.get_many(keys),
            lambda inside: list(inside),
            lambda inside: list(inside.range(reverse=True)),
            lambda inside: next(iter(inside.range(keys[1]))),
            lambda inside: len(inside),
        ]
        m.update(dict.fromkeys(keys, 1))
        for read in reads:
            with pytest.raises(ConflictError), db.transaction(plain_writes=True) as tx:  # noqa: PT012
                read(tx[m])
                m[keys[1]] += 1
                tx[m][keys[2]] = 100
            with db.transaction() as tx:
                read(tx[m])
                tx[m][keys[2]] = 5
        assert m.get_many(keys) == dict(zip(keys, [1, 1 + len(reads), 5], strict=True))


def test_reads_of_several_members_are_confirmed_though_nothing_was_written(
    three: Members,
) -> None:
    # What one request has shown is of one moment only if one member has answered all of it.
    with connect(three.url) as db:
        m = counters(db)
        keys = [key_of(number) for number in range(3)]
        m.update(dict.fromkeys(keys, 1))
        since = len(three.asked)
        with db.transaction() as tx:
            tx[m].get_many(keys[:1])
        assert commits_of(three, since) == []
        with db.transaction() as tx:
            tx[m].get_many(keys)
        assert len(commits_of(three, since)) == 1
        with pytest.raises(ConflictError), db.transaction(plain_writes=True) as tx:  # noqa: PT012
            list(tx[m])
            m[keys[1]] = 2
        with db.transaction() as tx:
            list(tx[m])


def test_what_came_into_a_range_at_another_member_is_a_conflict(three: Members) -> None:
    with connect(three.url) as db:
        m = counters(db)
        m["a"] = 1
        with pytest.raises(ConflictError), db.transaction(plain_writes=True) as tx:  # noqa: PT012
            assert [*tx[m].range("a", "zz")] == [("a", 1)]
            m[key_of(1)] = 1
            tx[m]["a"] = 2
        with db.transaction(plain_writes=True) as tx:
            [*tx[m].range("a", "b")]
            m[key_of(2)] = 1  # outside of it
            tx[m]["a"] = 2
        assert m["a"] == 2


@pytest.mark.slow
def test_pages_of_several_members_are_merged_with_what_was_written(three: Members) -> None:
    with connect(three.url) as db:
        m = counters(db)
        m.update({f"n{number:04}": number for number in range(6000)})
        for reverse in (False, True):
            with db.transaction() as tx:
                inside = tx[m]
                inside["n0000x"] = -1
                inside["z"] = -2
                del inside["n1501"]
                expected = sorted({*m, "n0000x", "z"} - {"n1501"}, reverse=reverse)
                assert [key for key, _ in inside.range(reverse=reverse)] == expected
                assert len(inside) == 6001
            with db.transaction() as tx:
                tx[m]["n1501"] = 1501
                tx[m].delete_many(["n0000x", "z"])
        for changed, is_shown in (("n0500", True), ("n5999", False)):
            with (
                pytest.raises(ConflictError) if is_shown else nullcontext(),
                db.transaction(plain_writes=True) as tx,
            ):
                assert len([*islice(tx[m], 1000)]) == 1000
                m[changed] = 0
                tx[m]["z"] = 1
        assert m["z"] == 1


def test_an_id_that_nobody_gave_does_not_tell_where_its_outcome_is(three: Members) -> None:
    # Asked for as a given one, which has an entry, it was told to be rolled back.
    with connect(three.url) as db:
        m = counters(db)
        with db.transaction() as tx:
            tx[m]["a"] = 1
        receipt = tx.receipt
        assert receipt is not None
        with pytest.raises(UsageError, match="nobody gave the id") as caught:
            db.outcome(receipt.tx_id)
        assert "home=receipt.home" in str(caught.value.hint)
        assert db.outcome(receipt.tx_id, home=receipt.home) == "committed"


def test_a_home_is_not_needed_for_a_given_id_and_does_no_harm(three: Members) -> None:
    with connect(three.url) as db:
        m = counters(db)
        for tx_id in (db.new_id(), b"mine".rjust(16, b"."), (7).to_bytes(16, "big")):
            with db.transaction(id=tx_id) as tx:
                tx[m]["a"] = 1
            since = len(three.asked)
            for home in (None, *range(PARTITIONS)):
                assert db.outcome(tx_id, home=home) == "committed"
            assert db.outcome(tx_id[::-1], home=0) == "rolled_back"
            assert {operation for _, operation in three.asked[since:]} == {"outcome"}


def test_only_who_can_tell_is_asked_for_an_outcome(
    three: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[tuple[bool, int]]()
    answer = "rolled_back"

    def outcome(_member: object, _tx_id: bytes, given: bool, home: int) -> str:
        asked.append((given, home))
        return answer

    monkeypatch.setattr(three, "_outcome", outcome)
    with connect(three.url) as db:
        with db.transaction() as tx:
            tx[counters(db)]["a"] = 1
        assert tx.receipt is not None
        given, automatic = db.new_id(), tx.receipt.tx_id
        place = home_of(given, PARTITIONS)
        assert db.outcome(given) == db.outcome(given, home=2) == answer
        assert asked == [(True, place), (False, 2), (True, place)]
        asked.clear()
        assert db.outcome(automatic, home=2) == answer
        assert asked == [(False, 2)], "asked for as a given one it would be refused"
        asked.clear()
        answer = "committed"
        assert db.outcome(given, home=2) == answer
        assert asked == [(False, 2)]


def test_who_has_met_nobody_asks_for_an_outcome(alone: Members) -> None:
    with connect(alone.url) as db:
        tx_id = db.new_id()
        with db.transaction(id=tx_id) as tx:
            tx[counters(db)]["a"] = 1
    with connect(alone.url) as db:
        assert db.outcome(tx_id) == "committed"


def test_a_given_id_has_its_outcome_at_a_partition_of_its_own(three: Members) -> None:
    with connect(three.url) as db:
        m, ids = counters(db), (db.new_id() for _ in range(1000))
        key, since = key_of(0), len(three.asked)
        tx_id = next(one for one in ids if three.primaries[home_of(one, PARTITIONS)] == 1)
        with db.transaction(id=tx_id) as tx:
            tx[m][key] = 1
        assert commits_of(three, since) == [1]
        with db.transaction(id=tx_id) as tx:
            tx[m][key] = 2
        assert (m[key], db.outcome(tx_id)) == (1, "committed")


def test_what_has_lost_a_race_for_locks_is_sent_anew_under_another_id(three: Members) -> None:
    with connect(three.url) as db:
        m = counters(db)
        keys = {key_of(0): 5, key_of(1): 6}
        m.update(keys)
        home = min(partition_of(key.encode(), Space(0, PARTITIONS)) for key in keys)
        leads = three.members[three.primaries[home]]
        leads.faults += ["again", "again", "wait"]
        since = len(three.asked)
        with db.transaction() as tx:
            tx[m].update(dict.fromkeys(keys, 7))
        assert commits_of(three, since) == [leads.number] * 4
        assert dict(m) == dict.fromkeys(keys, 7)
        with connect(three.url, timeout=0.05) as hasty:
            leads.faults += ["again"] * 1000
            with pytest.raises(DeadlineError, match="was not committed within"):
                counters(hasty).update(keys)
            leads.faults.clear()
        assert dict(m) == dict.fromkeys(keys, 7)


@pytest.mark.parametrize("deadline", [None, 0.05])
def test_a_run_that_is_late_is_told_of_the_limit_that_was_given(
    three: Members, deadline: float | None
) -> None:
    with connect(three.url, timeout=0.05 if deadline is None else 60) as db:
        m = counters(db)

        def work(tx: tidelog.Transaction) -> None:
            for member in three.members:
                member.faults += ["wait"] * 1000
            tx[m]["a"] = 1

        with pytest.raises(DeadlineError) as caught:
            db.run(work, deadline=deadline)
        names = "`timeout` to `tidelog.connect`" if deadline is None else "`deadline`"
        assert caught.value.hint.startswith(f"Give a longer {names}, or look at the members")


def test_a_commit_of_several_members_whose_answer_was_lost_is_asked_for(three: Members) -> None:
    with connect(three.url) as db:
        m = counters(db)
        keys = {key_of(0): 5, key_of(1): 6}
        home = min(partition_of(key.encode(), Space(0, PARTITIONS)) for key in keys)
        m[key_of(2)] = 0
        faults: list[Fault] = ["break_before", "break_after", "pending"]
        for number, fault in enumerate(faults):
            three.members[three.primaries[home]].faults.append(fault)
            before = sum(three.counters)
            m.update(dict.fromkeys(keys, number))
            assert m.get_many(keys) == dict.fromkeys(keys, number)
            assert sum(three.counters) == before + 2


# ------------------------------------------------------------------ what there is not


def test_what_a_cluster_cannot_do_yet_says_so(three: Members) -> None:
    with connect(three.url) as db:
        refused: dict[str, Callable[[], object]] = {
            "durability": lambda: db.transaction(durability="interval"),
            "attach": lambda: db.attach("/somewhere"),
            "backup": lambda: db.backup("/somewhere"),
            "statistics": db.statistics,
            "checkpoint": db.checkpoint,
            "sync": db.sync,
        }
        assert refused.keys() == NOT_YET.keys()
        for what, call in refused.items():
            with pytest.raises(UnsupportedError) as caught:
                call()
            told, hint = NOT_YET[what]
            assert str(caught.value) == f"a cluster does not have {told} for now"
            assert caught.value.hint == hint
        for options in ({"mode": "opt"}, {"isolation": "none"}, {"durability": 5}):
            with pytest.raises(UsageError, match="is not one of"):
                db.transaction(**options)


def test_documents_have_the_same_table(three: Members) -> None:
    page = (Path(tidelog.__file__).parent / "docs/cluster-client.md").read_text()
    for told, _ in NOT_YET.values():
        assert f"| {told} |" in page


# ------------------------------------------------------------------ maps and handles


def test_maps_are_made_found_renamed_and_dropped(three: Members) -> None:
    with connect(three.url) as db, connect(three.url) as other:
        with pytest.raises(NotFoundError, match="there is no map 'counters'"):
            db.map("counters", create=False)
        m = counters(db)
        assert other.maps() == db.maps() == ["counters"]
        with pytest.raises(CodecError, match="has codec str 1, not i64 1"):
            other.map("counters", key=I64)
        theirs = other.map("counters")
        theirs["a"] = 1
        db.rename("counters", "others")
        assert (m.name, m["a"], db.maps()) == ("others", 1, ["others"])
        with pytest.raises(UsageError, match="there is a map 'others' already"):
            db.rename("others", "others")
        assert other.maps() == [theirs.name] == ["others"]
        three.members[0].faults.append("break_after")
        db.drop("others")
        with pytest.raises(NotFoundError, match="the map 'others' was dropped"):
            m["a"]
        with pytest.raises(NotFoundError, match="the map 'others' was dropped"):
            theirs["a"]
        with pytest.raises(NotFoundError, match="there is no map 'others'"):
            db.drop("others")
        assert db.maps() == []


def test_a_map_shows_its_first_rows_in_a_notebook(alone: Members) -> None:
    with connect(alone.url) as db:
        m = counters(db)
        m.update({f"n{number:02}": number for number in range(30)})
        shown = m._repr_html_()
        assert "n00" in shown
        assert "n29" not in shown
        assert "counters" in db._repr_html_()


def test_a_unix_socket_and_the_directory_of_a_test_cluster(tmp_path: Path) -> None:
    with members(1, PARTITIONS, str(tmp_path)) as cluster:
        assert cluster.url == f"tidelog+unix://{tmp_path}/0"
        with connect(cluster.url) as db:
            counters(db)["a"] = 1
        told = f'[[members]]\nname = "n1"\naddress = "{tmp_path}/0"\npid = 7\n'
        file = tmp_path / "cluster.toml"
        file.write_text(f'cluster = "{UUID(bytes=CLUSTER)}"\n{told}')
        with tidelog.connect(tmp_path) as db:
            assert counters(db)["a"] == 1
        # Members of another cluster listen where those of this one did.
        file.write_text(f'cluster = "{UUID(int=5)}"\n{told}')
        with (
            pytest.raises(NotEnoughMembersError, match="refused: another cluster"),
            tidelog.connect(tmp_path, timeout=0.1) as db,
        ):
            counters(db)


PLACES = [
    ("tidelog://h1:7400, h2:7401/", ("h1:7400", "h2:7401")),
    ("tidelog://[::1]:7400", ("[::1]:7400",)),
    ("tidelog+unix:///run/t.sock", ("/run/t.sock",)),
]


@pytest.mark.parametrize(("where", "addresses"), PLACES)
def test_a_cluster_is_named_by_addresses(where: str, addresses: tuple[str, ...]) -> None:
    assert place_of_cluster(where).addresses == addresses


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("tidelog://", "'' is not the address of a member"),
        ("tidelog://host", "'host' is not the address of a member"),
        ("tidelog://host:http", "'host:http' is not the address of a member"),
        ("tidelog://host:70000", "'host:70000' is not the address of a member"),
        ("https://host:1", "'https://host:1' is not the address of a cluster"),
        (5, "a cluster is named by text, not by 5"),
        ("", "the name of the cluster is empty"),
    ],
)
def test_what_cannot_name_a_cluster_is_refused(where: Any, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        place_of_cluster(where)
    assert str(caught.value) == said


def test_what_is_no_list_of_codecs_is_refused_as_by_open() -> None:
    wrong: Any = 5
    with pytest.raises(UsageError, match="codecs=5 is not a list of codecs"):
        connect("tidelog://127.0.0.1:1", codecs=wrong)


def test_a_directory_without_a_cluster_is_told(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="there is no cluster at"):
        place_of_cluster(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(NotFoundError, match="there is no cluster at"):
        place_of_cluster(tmp_path / "file")
    cluster = f"cluster = '{UUID(int=5)}'\n"
    member = "[[members]]\naddress = 'a:1'\n"
    texts = [
        f"{cluster}{rest}" for rest in ("members = 5", "[[members]]\nname = 'x'", "members = []")
    ]
    for text in (*texts, "=", member, f"cluster = 'five'\n{member}", f"cluster = 5\n{member}"):
        (tmp_path / "cluster.toml").write_text(text)
        with pytest.raises(UsageError, match=r"cluster\.toml"):
            place_of_cluster(tmp_path)


# ------------------------------------------------------------------ the process


def test_ctrl_c_ends_a_call_and_mixes_nothing_up(alone: Members) -> None:
    with connect(alone.url) as db:
        m = counters(db)
        m.update({"a": 1, "b": 2})
        alone.members[0].faults.append("silent")
        main = threading.main_thread().ident
        assert main is not None

        def interrupt() -> None:
            while alone.members[0].faults:
                pass
            signal.pthread_kill(main, signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            m.get("a")
        thread.join()
        assert (m["b"], m["a"]) == (2, 1)


def test_a_child_of_a_fork_connects_by_itself(alone: Members) -> None:
    with connect(alone.url) as db:
        m = counters(db)
        m["a"] = 1
        pid = os.fork()
        if not pid:
            try:
                m["a"]
            except ForkedError:
                os._exit(3)
            finally:
                os._exit(4)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
        assert m["a"] == 1


def test_a_closed_client_says_so_and_cannot_be_pickled(alone: Members) -> None:
    with connect(alone.url) as db:
        m = counters(db)
        with pytest.raises(UsageError, match="cannot be pickled"):
            m.__reduce_ex__(4)
    db.close()
    with pytest.raises(ClosedError):
        m.get("a")
    with pytest.raises(ClosedError), db:
        pass


def test_values_come_only_to_who_looks_at_them(alone: Members) -> None:
    # To count or to clear 45 values of 4 MiB fetched them all, and ended in a deadline.
    with connect(alone.url) as db:
        m = counters(db)
        m.update({"a": 1, "b": 2, "c": 3})
        assert len(m) == 3
        assert [*m] == [*m.keys()] == [*m.keys(prefix="")] == ["a", "b", "c"]
        with db.transaction() as tx:
            assert [*tx[m]] == ["a", "b", "c"]
        assert m.delete_range("c", None) == 1
        m.clear()
        assert alone.values_wanted
        assert not any(alone.values_wanted)
        assert [*m.values()] == []
        assert alone.values_wanted.pop()


def test_a_transaction_that_is_too_long_to_be_sent_says_so(
    alone: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It was a `UsageError` about a message.
    small = replace(frames.SENDABLE, bytes_max=2000, items_max=500)
    with connect(alone.url) as db:
        m = db.map("bytes")
        m.update({b"a": b"x" * 1000, b"b": b"x" * 1000})
        monkeypatch.setattr(frames, "SENDABLE", small)
        many = {b"c": b"x" * 1500, b"d": b"x" * 1500}
        commits: list[Callable[[], object]] = [
            lambda: m.update(many),
            lambda: db.run(lambda tx: tx[m].update(many)),
            lambda: m.__setitem__(b"c", b"x" * 3000),
        ]
        for commit in commits:
            with pytest.raises(TransactionTooLargeError, match="too large") as raised:
                commit()
            assert "fewer or smaller" in (raised.value.hint or "")
        with pytest.raises(UsageError, match="would be refused"):
            m.get_many([b"%d" % number for number in range(1000)])
        assert [*m] == [b"a", b"b"]
