"""What became of a transaction: asked by its id, after crashes, and after its time is over."""

from __future__ import annotations

import gc
import os
import random
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import msgpack
import pytest

from support.real_stores import opened as opened_shop
from support.stores import PATH, Opened, open_store, opened
from tidelog.affinity.errors import (
    CommitUnknownError,
    ConflictError,
    CorruptDataError,
    CorruptLogError,
    HistoryTruncatedError,
    UsageError,
)
from tidelog.engine.api.database import session_of
from tidelog.engine.api.open import open_with
from tidelog.engine.api.session import StoreSession
from tidelog.engine.commit import outcomes
from tidelog.engine.commit.outcomes import (
    Kind,
    OutcomeEntry,
    committed,
    decode_outcome,
    encode_outcome,
    home_of,
    outcome_key,
)
from tidelog.engine.data.stored import split_key
from tidelog.engine.system.limits import Limits
from tidelog.testing import simulated

ID = bytes(range(16))


def commit(store: Opened, value: bytes, tx_id: bytes | None = ID) -> Any:
    users = store.database.map("users")
    with store.database.transaction(id=tx_id) as tx:
        tx[users][b"a"] = value
    return tx.receipt


def test_an_entry_is_read_as_it_was_written() -> None:
    for entry in (
        OutcomeEntry(Kind.COMMITTED, 1_700_000_000_000_000),
        OutcomeEntry(Kind.REFUSED, 5, 3, ((2, 10, 4), (0, 1, 1))),
    ):
        assert decode_outcome(encode_outcome(entry)) == entry
    longer = msgpack.packb([*msgpack.unpackb(committed(7)), "appended later"])
    assert decode_outcome(longer) == OutcomeEntry(Kind.COMMITTED, 7)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x01",
        msgpack.packb((1, 5)),
        msgpack.packb((3, 5, 1, [])),
        msgpack.packb((1, "x", 1, [])),
        msgpack.packb((1, 5, None, [])),
        msgpack.packb((1, 5, 1, [1, 2])),
    ],
)
def test_an_entry_that_is_none_is_damage(data: bytes) -> None:
    with pytest.raises(CorruptDataError):
        decode_outcome(data)


def test_an_outcome_lives_in_the_partition_that_its_id_hashes_to() -> None:
    for partitions in (1, 16):
        key = outcome_key(ID, partitions)
        assert split_key(key) == (home_of(ID, partitions), 1, ID)


@pytest.mark.parametrize("tx_id", [b"short", b"x" * 17, "x" * 16, ID.hex(), None])
def test_an_id_that_is_none_is_refused(tx_id: Any) -> None:
    with opened() as store:
        with pytest.raises(UsageError, match="16 bytes") as refused:
            store.database.outcome(tx_id)
        assert "bytes.fromhex(text)" in refused.value.hint
        if tx_id is not None:
            with pytest.raises(UsageError, match="16 bytes") as refused:
                store.database.transaction(id=tx_id)
            assert "bytes.fromhex(text)" in refused.value.hint


def test_an_outcome_is_asked_for_with_the_home_of_its_receipt_as_of_a_cluster() -> None:
    with opened() as store:
        for tx_id in (None, ID):
            receipt = commit(store, b"1", tx_id)
            assert store.database.outcome(receipt.tx_id, home=receipt.home) == "committed"
        assert store.database.outcome(b"o" * 16, home=None) == "rolled_back"


@pytest.mark.parametrize("home", [-1, 4, "0", 0.0, True])
def test_a_home_that_is_no_partition_is_refused(home: Any) -> None:
    with opened() as store:
        with pytest.raises(UsageError, match="not one of the 4 partitions, 0 to 3") as refused:
            store.database.outcome(ID, home=home)
        assert "`home` of the receipt" in refused.value.hint


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
    session_of(crashed.database).abandon()
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

        def noted(sync: Callable[[], Any]) -> None:
            seen.append(store.database.outcome(ID))
            sync()

        with store.around_syncs(noted):
            commit(store, b"1")
        # The map was made first, with a sync of its own.
        assert seen == ["rolled_back", "pending"]
        with session_of(store.database).outcomes.pending(None):
            assert store.database.outcome(ID) == "committed"
        with session_of(store.database).outcomes.pending(b"p" * 16):
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
    partitions = session_of(store.database).partitions
    view = session_of(store.database).overlay.view
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
        store.environment.time.move(1)
        assert session_of(store.database).sweep_outcomes() == 0
        store.environment.time.move(outcomes.RETENTION_SECONDS / 2)
        for number in range(10, 15):
            commit(store, b"v", b"%016d" % number)
        assert session_of(store.database).sweep_outcomes() == 0
        store.environment.time.move(outcomes.RETENTION_SECONDS / 2)
        assert entries(store) == 15
        assert session_of(store.database).sweep_outcomes() == 10
        assert entries(store) == 5
        assert session_of(store.database).sweep_outcomes() == 0
        # The log still knows those that are gone from the map.
        assert store.database.outcome(b"%016d" % 3) == "committed"


def test_the_oldest_entries_go_where_there_are_too_many() -> None:
    with opened(limits=Limits(outcomes=4, sweep_outcomes=2)) as store:
        for number in range(9):
            commit(store, b"v", b"%016d" % number)
            store.environment.time.move(1)
        assert session_of(store.database).sweep_outcomes() == 5
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
        store.environment.advance(outcomes.SWEEP_SECONDS + 1)
        assert entries(store) == 1
        store.environment.time.move(outcomes.RETENTION_SECONDS)
        store.environment.advance(1)
        assert entries(store) == 0
        commit(store, b"v", b"%016d" % 2)
        store.environment.advance(outcomes.SWEEP_SECONDS / 2)
        assert entries(store) == 1


def test_the_background_does_not_sweep_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    swept = list[object]()
    monkeypatch.setattr(StoreSession, "sweep_outcomes", lambda session: swept.append(session))
    with opened() as store:
        commit(store, b"v", b"%016d" % 1)
        store.environment.advance(2.5 * outcomes.SWEEP_SECONDS)
        assert len(swept) == 2


def test_a_store_that_stopped_writing_sweeps_nothing_and_says_so_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = open_store()
    numbers = store.database.map("numbers")
    commit(store, b"v", b"%016d" % 1)
    store.disk.fail_at(store.disk.operations + 1, "EIO", kind="sync")
    with pytest.raises(CommitUnknownError):
        numbers[b"more"] = b"v"
    store.environment.time.move(outcomes.RETENTION_SECONDS + 1)
    store.environment.advance(1)
    assert "maintenance.failed" in {getattr(r, "event", "") for r in caplog.records}
    assert entries(store) == 1
    session_of(store.database).abandon()


# ------------------------------------------------------------------ what is found nowhere


def trim(store: Opened) -> None:
    """Let time pass, and let the log lose its beginning."""
    store.environment.time.move(1)
    for _ in range(12):
        commit(store, b"x" * 30_000, None)
    store.database.checkpoint()
    assert store.parts.keeper.first_position > 0


@pytest.mark.parametrize("given", [False, True])
def test_a_commit_whose_sync_failed_is_known_not_to_be_there_when_the_log_is_trimmed(
    given: bool,
) -> None:
    # Once any of the log had gone the answer was `too_old`, seconds after the failure.
    store = open_store(segment_bytes=1, retain_bytes=200_000)
    db, users = store.database, store.database.map("users")
    trim(store)
    store.environment.time.move(1)
    tx = db.transaction(id=db.new_id() if given else None)
    tx[users][b"lost"] = b"1"
    store.disk.fail_at(1, "EIO", kind="sync", path="/store/wal")
    with pytest.raises(CommitUnknownError) as caught:
        tx.commit()
    found = store.disk.crash("lost")
    session_of(db).abandon()
    with opened(found, segment_bytes=1, retain_bytes=200_000) as again:
        assert b"lost" not in again.database.map("users")
        assert again.database.outcome(caught.value.tx_id) == "rolled_back"


def test_an_id_that_was_given_out_and_not_used_is_known_to_be_unused() -> None:
    with opened(segment_bytes=1, retain_bytes=1) as store:
        db = store.database
        store.environment.time.move(1)
        early = db.new_id()
        trim(store)
        late = db.new_id()
        foreign = uuid.UUID(int=12345, version=4).bytes
        # No entry has expired since the store was opened, so either would have one.
        assert (db.outcome(late), db.outcome(early)) == ("rolled_back", "rolled_back")
        for other in (foreign, b"f" * 16, bytes(8) + b"\xff" * 8):
            assert db.outcome(other) == "too_old"
        commit(store, b"1", late)
        assert (db.outcome(late), db.outcome(early)) == ("committed", "rolled_back")


def test_an_id_as_old_as_what_has_expired_is_too_old() -> None:
    with opened(segment_bytes=1, retain_bytes=1) as store:
        db, time = store.database, store.environment.time
        used, unused = db.new_id(), db.new_id()
        commit(store, b"1", used)
        time.move(1)
        session_of(db).sweep_outcomes()
        later = db.new_id()
        time.move(outcomes.RETENTION_SECONDS)
        assert session_of(db).sweep_outcomes() == 1
        trim(store)
        assert [db.outcome(tx_id) for tx_id in (used, unused)] == ["too_old", "too_old"]
        assert db.outcome(later) == "rolled_back"
    with opened(store.disk, segment_bytes=1, retain_bytes=1) as again:
        trim(again)
        known = [again.database.outcome(tx_id) for tx_id in (used, unused, later)]
        assert known == ["too_old", "too_old", "rolled_back"]


def test_the_id_of_the_horizon_is_no_transactions() -> None:
    with opened() as store, pytest.raises(UsageError, match="taken by the store"):
        store.database.transaction(id=outcomes.HORIZON_ID)


def test_a_transaction_without_writes_takes_no_number_of_the_log() -> None:
    # Counted without a lock, a number could be given twice: to it, and to a commit beside it.
    with opened() as store:
        first = commit(store, b"1", None).tx_id
        empty = store.database.transaction().commit().tx_id
        second = commit(store, b"2", None).tx_id
        assert int.from_bytes(second, "big") == int.from_bytes(first, "big") + 1
        assert empty[:8] == first[:8]
        assert outcomes.number_of(empty) > 1 << 61


@pytest.mark.parametrize("days", [3, -5])
def test_a_clock_that_jumps_and_comes_back_lets_no_id_apply_twice(days: int) -> None:
    # The sweep believed the clock: entries went, and the same id was applied once more.
    with opened(segment_bytes=1, retain_bytes=1) as store:
        time, before, during = store.environment.time, b"b" * 16, b"d" * 16
        commit(store, b"1", before)
        time.jump(days * 24 * 3600)
        commit(store, b"2", during)
        for _ in range(3):
            time.move(outcomes.SWEEP_SECONDS)
            assert session_of(store.database).sweep_outcomes() == 0
        time.jump(-days * 24 * 3600)
        for _ in range(3):
            time.move(outcomes.SWEEP_SECONDS)
            assert session_of(store.database).sweep_outcomes() == 0
        for tx_id in (before, during):
            commit(store, b"again", tx_id)
        assert store.database.map("users")[b"a"] == b"2"


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [*range(6), *(pytest.param(s, marks=pytest.mark.nightly) for s in range(6, 300))]
)
def test_outcomes_are_never_wrong_whatever_happens_to_clock_log_and_store(seed: int) -> None:
    chance, seeds = random.Random(seed), count(1000 * seed + 500)
    sizes: dict[str, Any] = {"segment_bytes": 1 << 14, "retain_bytes": 1 << 15, "partitions": 2}
    store = open_store(seed=seed, **sizes)
    committed: set[bytes] = set()
    absent: set[bytes] = set()
    for step in range(80):
        db, users = store.database, store.database.map("users")
        what = chance.choice(["auto"] * 4 + ["given"] * 3 + ["again", "lose", "mint", "trim"] * 2
                             + ["sweep", "move", "jump", "close", "crash"])  # fmt: skip
        if what in ("auto", "given"):
            with db.transaction(id=db.new_id() if what == "given" else None) as tx:
                tx[users][b"%d" % step] = bytes(chance.randrange(8000))
            assert tx.tx_id is not None
            committed.add(tx.tx_id)
        elif what == "again" and absent | committed:
            # An id of an earlier step once more: what has been applied is not applied again.
            tx_id = chance.choice(sorted(absent | committed))
            with db.transaction(id=tx_id) as tx:
                tx[users][b"again"] = tx_id
            if not outcomes.is_automatic(tx_id):
                assert (users.get(b"again") == tx_id) == (tx_id in absent)
            users.discard(b"again")
            absent.discard(tx_id)
            committed.add(tx_id)
        elif what == "lose":
            tx = db.transaction(id=chance.choice([None, db.new_id()]))
            tx[users][b"lost%d" % step] = b"1"
            store.disk.fail_at(1, "EIO", kind="sync", path="/store/wal")
            with pytest.raises(CommitUnknownError) as caught:
                tx.commit()
            store = reborn(store, "lost", seeds, sizes)
            there = b"lost%d" % step in store.database.map("users")
            (committed if there else absent).add(caught.value.tx_id)
        elif what == "mint":
            absent.add(db.new_id())
        elif what == "trim":
            db.checkpoint()
        elif what == "sweep":
            session_of(db).sweep_outcomes()
        elif what == "move":
            store.environment.time.move(chance.randrange(400))
        elif what == "jump":
            store.environment.time.jump(chance.choice([-5, -1, -0.1, 0.1, 1, 3]) * 86_400)
        elif what == "close":
            db.close()
            store = reborn(store, None, seeds, sizes)
        elif what == "crash":
            store = reborn(store, "lost", seeds, sizes)
        for tx_id in sorted(committed):
            assert store.database.outcome(tx_id) in ("committed", "too_old")
        for tx_id in sorted(absent):
            assert store.database.outcome(tx_id) in ("rolled_back", "too_old")
    store.database.close()


def reborn(store: Opened, how: str | None, seeds: Iterator[int], sizes: dict[str, Any]) -> Opened:
    """The store after a crash, or after its close, in a world whose clock goes on."""
    disk = store.disk if how is None else store.disk.crash(how)
    if how is not None:
        session_of(store.database).abandon()
    wall = store.environment.time.wall_us()
    environment = simulated(next(seeds), disk)
    environment.time.jump((wall - environment.time.wall_us()) / 1e6)
    return Opened(open_with(environment, PATH, **sizes), environment, disk)


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


def test_an_id_is_pending_as_long_as_any_attempt_under_it_is() -> None:
    # The first attempt to fail made it `rolled_back`, and another one committed it later.
    with opened() as store:
        database = store.database
        with session_of(database).outcomes.pending(ID):
            users = database.map("users")
            users[b"a"] = b"1"
            retry = database.transaction(id=ID)
            retry[users][b"b"] = retry[users][b"a"]
            users[b"a"] = b"2"
            with pytest.raises(ConflictError):
                retry.commit()
            assert database.outcome(ID) == "pending"
        assert database.outcome(ID) == "rolled_back"


def test_ids_of_a_clock_that_is_before_1970_tell_the_earliest_time() -> None:
    assert outcomes.automatic_prefix(-5_000, b"ab") == bytes(6) + b"ab"


def test_the_id_of_a_transaction_that_wrote_nothing_tells_its_time() -> None:
    prefix = outcomes.automatic_prefix(7_000, b"ab")
    assert outcomes.born(outcomes.empty_id(prefix, 3), bytes(16)) == 7_000


def test_an_id_of_another_store_tells_no_time() -> None:
    mine, other = bytes(range(16)), bytes(range(100, 116))
    tx_id = outcomes.dated_id(7_000, bytes(range(16)), mine)
    assert outcomes.born(tx_id, mine) == 7_000
    assert outcomes.born(tx_id, other) is None


@pytest.mark.parametrize("fresh", [bytes(16), b"\xff" * 16])
def test_an_id_tells_whether_it_was_made_to_be_given(fresh: bytes) -> None:
    store, other = bytes(range(16)), bytes(range(100, 116))
    own = outcomes.dated_id(7_000, fresh, store, given=False)
    given = outcomes.dated_id(7_000, fresh, store)
    assert outcomes.is_of_client(own, store)
    assert not outcomes.is_of_client(given, store)
    assert not outcomes.is_of_client(own, other), "of that nothing is known"
    assert all(outcomes.born(one, store) == 7_000 for one in (own, given))
    assert all(uuid.UUID(bytes=one).version == 8 for one in (own, given))


LOSING_SEED = 2
"""With it the failed sync drops the frame; with others it may get to the disk all the same."""


@pytest.mark.parametrize("given", [False, True])
def test_what_a_failed_sync_left_open_is_pending_until_the_next_open(given: bool) -> None:
    # It was said to be committed, and a power cut took it back.
    store = open_store(seed=LOSING_SEED)
    users = store.database.map("users")
    users[b"a"] = b"1"
    tx_id = store.database.new_id() if given else None
    store.disk.fail_at(1, "EIO", kind="sync", path="/store/wal")
    with pytest.raises(CommitUnknownError) as caught:  # noqa: SIM117
        with store.database.transaction(id=tx_id) as tx:
            tx[users][b"b"] = b"2"
    assert store.database.outcome(caught.value.tx_id) == "pending"
    left = store.disk.crash("lost")
    session_of(store.database).abandon()
    with opened(left, seed=2) as again:
        assert again.database.outcome(caught.value.tx_id) == "rolled_back"


def test_asking_for_outcomes_leaves_no_file_open(tmp_path: Path) -> None:
    ids = []
    with opened_shop(tmp_path / "shop", segment_bytes=1, retain_bytes=1 << 18) as db:
        for number in range(24):
            with db.transaction() as tx:
                tx[db.map("users")][b"%d" % number] = b"x" * 20_000
            assert tx.receipt is not None
            ids.append(tx.receipt.tx_id)
        db.checkpoint()
    with opened_shop(tmp_path / "shop", retain_bytes=1 << 30) as db:
        gc.collect()  # what other tests have left behind
        before = len(os.listdir("/proc/self/fd"))
        assert {db.outcome(tx_id) for tx_id in ids} == {"committed", "too_old"}
        # A number that was never given: the log is searched for the first of that opening.
        assert db.outcome(ids[0][:8] + (1 << 40).to_bytes(8, "big")) == "rolled_back"
        assert len(os.listdir("/proc/self/fd")) == before


LOSES = [
    CorruptLogError("a segment is missing", kind="gap", segment=1, offset=0),
    HistoryTruncatedError("it was dropped"),
]


@pytest.mark.parametrize("error", LOSES)
def test_a_log_that_loses_segments_is_looked_through_so_often_and_no_more(error: Exception) -> None:
    for fails in range(outcomes.LOOK_ATTEMPTS + 2):
        looks = list[int]()

        def look(fails: int = fails, looks: list[int] = looks) -> str:
            looks.append(1)
            if len(looks) <= fails:
                raise error
            return "found"

        if fails < outcomes.LOOK_ATTEMPTS:
            assert outcomes.looked_through(look) == "found"
        else:
            with pytest.raises(type(error)):
                outcomes.looked_through(look)
        assert len(looks) == min(fails + 1, outcomes.LOOK_ATTEMPTS)


def test_a_log_that_cannot_be_read_at_all_is_not_looked_through_again() -> None:
    looks = list[int]()

    def look() -> None:
        looks.append(1)
        raise OSError(5, "input/output error")

    with pytest.raises(OSError, match="input/output"):
        outcomes.looked_through(look)
    assert len(looks) == 1


def test_the_id_of_a_store_is_told_by_what_stands_in_its_own_bits_alone() -> None:
    store = bytes(range(111, 127))
    tx_id = outcomes.dated_id(7_000, bytes(range(16)), store)
    assert outcomes.is_dated(tx_id, store)
    for place, bits in ((6, 0x0F), (6, 0xF0), (7, 0xFF), (8, 0xC0)):
        for bit in (1 << number for number in range(8) if bits >> number & 1):
            other = bytearray(tx_id)
            other[place] ^= bit
            assert not outcomes.is_dated(bytes(other), store)
    for place in (0, 5, 9, 15):
        other = bytearray(tx_id)
        other[place] ^= 0xFF
        assert outcomes.is_dated(bytes(other), store)


def test_ids_that_are_made_at_one_time_differ_by_all_their_fresh_bits() -> None:
    store, fresh = bytes(16), bytes(16)
    first = outcomes.dated_id(7_999, fresh, store)
    assert outcomes.born(first, store) == 7_000, "to the millisecond, and not later"
    for place, bits in ((8, 0x1F), *((place, 0xFF) for place in range(9, 16))):
        for bit in (1 << number for number in range(8) if bits >> number & 1):
            changed = bytes(bit if one == place else 0 for one in range(16))
            assert outcomes.dated_id(7_999, changed, store) != first
