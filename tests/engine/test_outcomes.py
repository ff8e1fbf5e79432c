"""What became of a transaction: asked by its id, after crashes, and after its time is over."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgpack
import pytest

from support.real_stores import opened as opened_shop
from support.stores import Opened, open_store, opened
from tidelog.affinity.errors import ConflictError, CorruptDataError, UsageError
from tidelog.engine import outcomes
from tidelog.engine.outcomes import decode_outcome, encode_outcome, home_of, outcome_key
from tidelog.engine.stored import split_key

ID = bytes(range(16))


def commit(store: Opened, value: bytes, tx_id: bytes | None = ID) -> Any:
    users = store.database.map("users")
    with store.database.transaction(id=tx_id) as tx:
        tx[users][b"a"] = value
    return tx.receipt


def test_an_entry_is_read_as_it_was_written() -> None:
    assert decode_outcome(encode_outcome(1_700_000_000_000_000)) == 1_700_000_000_000_000


@pytest.mark.parametrize(
    "data",
    [b"", b"\xc1", b"\x01", msgpack.packb((2, 5)), msgpack.packb((1, "x")), msgpack.packb((1,))],
)
def test_an_entry_that_is_none_is_damage(data: bytes) -> None:
    with pytest.raises(CorruptDataError):
        decode_outcome(data)


def test_an_outcome_lives_in_the_partition_that_its_id_hashes_to() -> None:
    for partitions in (1, 16):
        key = outcome_key(ID, partitions)
        assert split_key(key) == (home_of(ID, partitions), 1, ID)


@pytest.mark.parametrize("tx_id", [b"short", b"x" * 17, "x" * 16, None])
def test_an_id_that_is_none_is_refused(tx_id: Any) -> None:
    with opened() as store:
        with pytest.raises(UsageError, match="16 bytes"):
            store.database.outcome(tx_id)
        if tx_id is not None:
            with pytest.raises(UsageError, match="16 bytes"):
                store.database.transaction(id=tx_id)


def test_a_given_id_is_applied_at_most_once() -> None:
    with opened() as store:
        assert store.database.outcome(ID) == "rolled_back"
        first = commit(store, b"1")
        again = commit(store, b"2")
        assert store.database.outcome(ID) == "committed"
        assert store.database.map("users")[b"a"] == b"1"
        assert (first.tx_id, again.tx_id) == (ID, ID)
        assert again.home == home_of(ID, 4)
        assert abs(again.time - first.time) < 1_000_000


def test_an_id_outlives_a_checkpoint_a_close_and_a_crash() -> None:
    with opened() as store:
        commit(store, b"1")
        store.database.checkpoint()
    with opened(store.disk) as again:
        commit(again, b"2")
        other = b"o" * 16
        commit(again, b"3", other)
        assert again.database.map("users")[b"a"] == b"3"
    crashed = again.reopened()
    crashed.database.abandon()
    with opened(crashed.disk.crash("lost")) as last:
        commit(last, b"4")
        commit(last, b"5", other)
        assert last.database.map("users")[b"a"] == b"3"


def test_automatic_ids_are_found_in_the_log_and_too_old_once_it_is_gone() -> None:
    with opened(segment_bytes=1, retain_bytes=1) as store:
        receipt = commit(store, b"1", None)
        unknown = store.database.new_id()
        assert store.database.outcome(receipt.tx_id) == "committed"
        assert store.database.outcome(unknown) == "rolled_back"
        for number in range(12):
            commit(store, b"x" * 30_000, None if number else ID)
        store.database.checkpoint()
        assert store.database.outcome(receipt.tx_id) == "too_old"
        assert store.database.outcome(unknown) == "too_old"
        assert store.database.outcome(ID) == "committed"


def test_a_transaction_that_failed_was_rolled_back_and_may_try_again_under_its_id() -> None:
    with opened() as store:
        users = store.database.map("users")
        users[b"a"] = b"0"
        tx = store.database.transaction(id=ID)
        tx[users][b"b"] = tx[users][b"a"]
        users[b"a"] = b"1"
        with pytest.raises(ConflictError):
            tx.commit()
        assert store.database.outcome(ID) == "rolled_back"
        commit(store, b"2")
        assert store.database.outcome(ID) == "committed"


def test_an_id_is_pending_while_its_transaction_is_on_its_way() -> None:
    with opened() as store:
        seen = []
        writer = store.parts.writer
        sync = writer._file.sync

        def noted() -> None:
            seen.append(store.database.outcome(ID))
            sync()

        writer._file.sync = noted
        commit(store, b"1")
        writer._file.sync = sync
        # The map was made first, with a sync of its own.
        assert seen == ["rolled_back", "pending"]
        with store.database.pending(None):
            assert store.database.outcome(ID) == "committed"
        with store.database.pending(b"p" * 16):
            assert store.database.outcome(b"p" * 16) == "pending"
        assert store.database.outcome(b"p" * 16) == "rolled_back"


def test_a_transaction_without_writes_of_its_own_is_remembered_too() -> None:
    with opened() as store:
        with store.database.transaction(id=ID):
            pass
        assert store.database.outcome(ID) == "committed"
        with store.database.transaction() as tx:
            pass
        assert tx.receipt is not None
        assert tx.receipt.position == 0
        assert store.database.outcome(tx.receipt.tx_id) == "rolled_back"


# ------------------------------------------------------------------ the sweep


def entries(store: Opened) -> int:
    partitions = store.database.partitions
    view = store.database.overlay.view
    found = 0
    for number in range(200):
        key = outcome_key(b"%016d" % number, partitions)
        stored = view.stored(home_of(b"%016d" % number, partitions), key)
        found += stored is not None and stored[-25] == 0
    return found


def test_entries_expire_after_their_time() -> None:
    with opened() as store:
        for number in range(10):
            commit(store, b"v", b"%016d" % number)
        store.environment.time.move(outcomes.RETENTION_SECONDS / 2)
        for number in range(10, 15):
            commit(store, b"v", b"%016d" % number)
        assert store.database.sweep_outcomes() == 0
        store.environment.time.move(outcomes.RETENTION_SECONDS / 2 + 1)
        assert entries(store) == 15
        assert store.database.sweep_outcomes() == 10
        assert entries(store) == 5
        assert store.database.sweep_outcomes() == 0
        # The log still knows those that are gone from the map.
        assert store.database.outcome(b"%016d" % 3) == "committed"


def test_the_oldest_entries_go_where_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcomes, "ENTRIES_MAX", 4)
    monkeypatch.setattr(outcomes, "SWEEP_BATCH", 2)
    with opened() as store:
        for number in range(9):
            commit(store, b"v", b"%016d" % number)
            store.environment.time.move(1)
        assert store.database.sweep_outcomes() == 5
        assert entries(store) == 4
        users = store.database.map("users")
        for number in range(9):
            with store.database.transaction(id=b"%016d" % number) as tx:
                tx[users][b"%d" % number] = b"again"
        # An expired id is a new one: those kept stop a second time, those swept do not.
        assert sorted(set(users) - {b"a"}) == [b"%d" % number for number in range(5)]


def test_the_background_sweeps_now_and_then() -> None:
    with opened() as store:
        commit(store, b"v", b"%016d" % 1)
        store.environment.time.move(outcomes.RETENTION_SECONDS + 1)
        store.environment.advance(1)
        assert entries(store) == 0
        commit(store, b"v", b"%016d" % 2)
        store.environment.advance(outcomes.SWEEP_SECONDS / 2)
        assert entries(store) == 1


def test_a_store_that_stopped_writing_sweeps_nothing_and_says_so_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = open_store()
    commit(store, b"v", b"%016d" % 1)
    store.parts.committer.stopped = "for the test"
    store.environment.time.move(outcomes.RETENTION_SECONDS + 1)
    store.environment.advance(1)
    assert "maintenance.failed" in {getattr(r, "event", "") for r in caplog.records}
    assert entries(store) == 1
    store.database.abandon()


def test_threads_that_ask_for_outcomes_at_once_all_hear_the_truth(tmp_path: Path) -> None:
    # They shared out the listing of the log among them, and called a healthy store damaged.
    shop = opened_shop(tmp_path / "shop", durability="none", segment_bytes=4096)
    with shop, ThreadPoolExecutor(4) as pool:
        users, ids = shop.map("users"), []
        for number in range(40):
            with shop.transaction() as tx:
                tx[users][b"%d" % number] = bytes(1000)
            assert tx.tx_id is not None
            ids.append(tx.tx_id)
        assert set(pool.map(shop.outcome, ids * 2)) == {"committed"}
