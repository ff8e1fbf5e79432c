"""Many puts in one entry of a group: the same log, numbers and answers as one by one."""

from __future__ import annotations

from typing import Any

import pytest

from support.stores import Opened, open_store, opened
from tidelog.affinity.partitions import partition_of
from tidelog.engine.api.maps import namespace_of
from tidelog.engine.api.transactions import behind
from tidelog.engine.commit.lock_manager import LockedError
from tidelog.engine.commit.puts import Put, Puts
from tidelog.errors import CommitUnknownError, ConflictError, DiskFullError

PAIRS = [(b"%d" % (number % 40), b"value %d" % number) for number in range(60)]


def fields_of(store: Opened) -> list[Put]:
    """The pairs as the log thread would queue them."""
    namespace = namespace_of(store.database.map("data"))
    found: list[Put] = []
    for key, value in PAIRS:
        partition = partition_of(key, namespace.space)
        full_key = namespace.prefixes[partition] + key
        found.append((partition, namespace.id, full_key, key, value, len(found)))
    return found


def state_of(store: Opened) -> Any:
    """Log, counters and content of a store."""
    state = store.parts.state
    content = dict(store.database.map("data").items())
    counters = [(counter.lwm, counter.hwm, counter.out_of_order) for counter in state.counters]
    return store.parts.writer.position, counters, content, store.database.statistics().transactions


def test_they_leave_the_same_as_puts_one_by_one_in_one_group() -> None:
    with opened() as together, opened() as alone:
        puts = Puts(fields_of(together), True)
        together.parts.committer.commit_all([puts])
        one_by_one = [Puts([put], True) for put in fields_of(alone)]
        alone.parts.committer.commit_all(one_by_one)
        assert [puts.error_of(place) for place in range(len(PAIRS))] == [None] * len(PAIRS)
        assert state_of(together) == state_of(alone)
        assert state_of(together)[2] == dict(PAIRS)
        image = together.disk.copy()
        with opened(image) as again:  # and again from the log
            assert dict(again.database.map("data").items()) == dict(PAIRS)


def test_a_transaction_behind_them_in_the_group_is_checked_against_them() -> None:
    with opened() as store:
        data = store.database.map("data")
        data[b"1"] = b"old"
        for key, conflict in ((b"1", True), (b"absent", False)):
            tx = store.database.transaction()
            tx[data].get(key)
            tx[data][b"result"] = key
            commit = behind(tx).prepare()
            assert commit is not None
            store.parts.committer.commit_all([Puts(fields_of(store), True), commit])
            behind(tx).end(commit.receipt)
            assert isinstance(commit.error, ConflictError) == conflict
        assert data[b"result"] == b"absent"


def test_a_lock_refuses_the_puts_of_its_key_and_no_other() -> None:
    with opened() as store:
        data = store.database.map("data")
        with store.database.transaction("pessimistic") as tx:
            tx[data].get(b"7")
            puts = Puts(fields_of(store), True)
            store.parts.committer.commit_all([puts])
            refused = [key for place, (key, _) in enumerate(PAIRS) if puts.error_of(place)]
            assert refused == [b"7", b"7"]
            assert isinstance(puts.error_of(7), LockedError)
        assert dict(data.items()) == {key: value for key, value in PAIRS if key != b"7"}


def test_where_all_are_locked_nothing_is_logged() -> None:
    with opened() as store:
        data = store.database.map("data")
        with store.database.transaction("pessimistic") as tx:
            tx[data].get(b"7")
            position = store.parts.writer.position
            puts = Puts(fields_of(store)[7:8], True)
            store.parts.committer.commit_all([puts])
            assert isinstance(puts.error_of(7), LockedError)
            assert store.parts.writer.position == position


def test_their_numbers_are_closed_when_they_do_not_reach_the_log() -> None:
    with opened() as store:
        data = store.database.map("data")
        puts = Puts(fields_of(store), True)
        store.disk.fail_at(store.disk.operations + 1, "ENOSPC", kind="write")
        store.parts.committer.commit_all([puts])
        assert isinstance(puts.error_of(0), DiskFullError)
        data[b"after"] = b"1"
        for counter in store.parts.state.counters:
            assert counter.lwm == counter.hwm
        assert dict(data.items()) == {b"after": b"1"}


def test_after_a_failed_sync_each_has_an_id_to_ask_about() -> None:
    store = open_store()
    data = store.database.map("data")
    puts = Puts(fields_of(store), True)
    store.disk.fail_at(store.disk.operations + 1, kind="sync")
    store.parts.committer.commit_all([puts])
    errors = [puts.error_of(place) for place in range(len(PAIRS))]
    ids = {error.tx_id for error in errors if isinstance(error, CommitUnknownError)}
    assert len(ids) == len(PAIRS)
    assert dict(data.items()) == {}
    image = store.disk.crash("kept")
    with opened(image) as again:
        outcomes = {again.database.outcome(tx_id) for tx_id in ids}
        content = dict(again.database.map("data").items())
        assert (outcomes, content) in (({"committed"}, dict(PAIRS)), ({"rolled_back"}, {}))


def test_a_store_that_has_stopped_takes_none() -> None:
    store = open_store()
    puts = Puts(fields_of(store), True)
    store.database.close()
    store.parts.committer.commit_all([puts])
    with pytest.raises(Exception, match="closed"):
        raise puts.error_of(0) or AssertionError
