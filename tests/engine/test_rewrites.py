"""Changes of one key that depend on what it holds: never a conflict, one frame for many."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest

from support.stores import Opened, open_store, opened
from tidelog.codecs import I64, Codec, Json, Str
from tidelog.engine.api.database import session_of
from tidelog.engine.api.maps import Map, namespace_of
from tidelog.engine.api.rewrites import FirstKey, Look, OneKey, RacedError, Rewrite, StaleError
from tidelog.engine.api.rewriting import FIRST_KEYS
from tidelog.engine.api.transactions import behind
from tidelog.engine.commit.entries import Commit, Entry
from tidelog.engine.commit.lock_manager import LockedError
from tidelog.engine.commit.puts import LonePut, Puts
from tidelog.engine.data import decisions
from tidelog.engine.data.decisions import Decide
from tidelog.engine.data.updates import FewUpdates
from tidelog.errors import (
    CommitUnknownError,
    ConflictError,
    DiskError,
    DiskFullError,
    NotFoundError,
    RolledBackError,
    UsageError,
)
from tidelog.wal.reader import Scan, read_records
from tidelog.wal.records import TxRecord


@pytest.fixture
def store() -> Iterator[Opened]:
    with opened() as store:
        yield store


def counters(store: Opened) -> Map[Any, Any]:
    return store.database.map("counters", key=Str, value=Json)


def rewrite(store: Opened, mapping: Map[Any, Any], key: Any, decide: Decide) -> Rewrite:
    """A rewrite that has read its key, and is not committed yet."""
    namespace = namespace_of(mapping)
    return session_of(store.database).rewriting.maker(namespace)(namespace.encode_key(key), decide)


def increments(store: Opened, key: str, count: int) -> list[Rewrite]:
    mapping = counters(store)
    decide = decisions.incr(namespace_of(mapping), key, 1)
    return [rewrite(store, mapping, key, decide) for _ in range(count)]


def hand_out(store: Opened, made: Rewrite) -> None:
    """Let the next one that a map makes be this one, which has read its key some time ago."""
    rewriting = session_of(store.database).rewriting
    maker, left = rewriting.maker, [made]
    made.error = None

    def handing_out(namespace: Any) -> Callable[[bytes, Decide], Rewrite]:
        make = maker(namespace)
        return lambda key, decide: left.pop() if left else make(key, decide)

    rewriting.maker = handing_out  # type: ignore[method-assign]


def results(rewrites: list[Rewrite]) -> list[Any]:
    return [rewrite.choice.result for rewrite in rewrites]


def errors(rewrites: list[Rewrite]) -> list[type[BaseException] | None]:
    return [None if r.error is None else type(r.error) for r in rewrites]


def tx_records(store: Opened) -> list[TxRecord]:
    directory = store.environment.disk.directory("/store/wal")
    return [r for _, r in read_records(Scan(directory)) if isinstance(r, TxRecord)]


# ------------------------------------------------------------------ one group


def test_increments_of_one_key_go_into_one_frame_and_none_is_lost(store: Opened) -> None:
    counters(store)["n"] = 5
    syncs, groups = (
        store.parts.committer.end_of_log.times.count,
        store.parts.committer.carrier.groups,
    )
    made = increments(store, "n", 32)
    store.parts.committer.commit_all(made)
    assert results(made) == list(range(6, 38))
    assert store.parts.committer.end_of_log.times.count == syncs + 1
    assert store.parts.committer.carrier.groups == groups + 1
    with opened(store.disk.copy()) as again:
        assert counters(again)["n"] == 37
    values = [record.values[0] for record in tx_records(store)[-33:]]
    assert values == [b"%d" % number for number in range(5, 38)]
    numbers = [record.runs[0].first for record in tx_records(store)[-33:]]
    assert numbers == list(range(numbers[0], numbers[0] + 33))


def test_a_rewrite_sees_what_every_kind_of_entry_of_its_group_writes(store: Opened) -> None:
    mapping = counters(store)
    namespace = namespace_of(mapping)
    made = {key: increments(store, key, 2) for key in "abcdz"}

    def fields(key: str, value: int) -> tuple[int, int, bytes, bytes, bytes]:
        one = made[key][0].choice
        return one.partition, namespace.id, one.full_key, one.key, b"%d" % value

    partition, number, full_key, key, value = fields("b", 20)
    few = Commit(FewUpdates({full_key: (partition, number, key, value)}), True)
    many = session_of(store.database).commit_of(namespace, [(b"c", b"30"), (b"z", None)])
    assert many is not None
    puts = Puts([(*fields("d", 40), object())], True)
    group: list[Entry] = [
        LonePut(*fields("a", 10), True),
        few,
        many,
        made["a"][0],
        made["z"][0],
        puts,
    ]
    group += [made["b"][0], made["c"][0], made["d"][0]]
    group += [second for _, second in made.values()]
    store.parts.committer.commit_all(group)
    found = {key: results(pair) for key, pair in made.items()}
    assert found == {"a": [11, 12], "b": [21, 22], "c": [31, 32], "d": [41, 42], "z": [1, 2]}
    assert dict(mapping) == {"a": 12, "b": 22, "c": 32, "d": 42, "z": 2}


def test_a_rewrite_does_not_see_a_transaction_that_was_committed_earlier(store: Opened) -> None:
    mapping, tx_id = counters(store), store.database.new_id()
    for value in (1, 2):
        with store.database.transaction(id=tx_id) as tx:
            tx[mapping]["n"] = value
    mapping["n"] = 10
    tx = store.database.transaction(id=tx_id)
    tx[mapping]["n"] = 99
    repeated = behind(tx).prepare()
    assert repeated is not None
    (made,) = increments(store, "n", 1)
    store.parts.committer.commit_all([repeated, made])
    behind(tx).end(repeated.receipt)
    assert (made.choice.result, mapping["n"]) == (11, 11)


def test_a_transaction_behind_one_in_its_group_is_checked_against_it(store: Opened) -> None:
    mapping = counters(store)
    mapping["n"] = 1
    for key, conflict in (("n", True), ("absent", False)):
        tx = store.database.transaction()
        tx[mapping].get(key)
        tx[mapping]["result"] = key
        commit = behind(tx).prepare()
        assert commit is not None
        store.parts.committer.commit_all([*increments(store, "n", 1), commit])
        behind(tx).end(commit.receipt)
        assert isinstance(commit.error, ConflictError) == conflict
    assert mapping["result"] == "absent"


def test_what_writes_nothing_stands_in_nobodys_way(store: Opened) -> None:
    mapping = counters(store)
    first = rewrite(store, mapping, "n", decisions.setdefault(namespace_of(mapping), 1))
    second = rewrite(store, mapping, "n", decisions.setdefault(namespace_of(mapping), 2))
    store.parts.committer.commit_all([first, second])
    assert results([first, second]) == [1, 1]
    # Who holds a transaction of LMDB keeps the data file from growing.
    assert isinstance(first.choice, OneKey)
    assert first.choice._txn is None
    assert list(second.full_keys()) == list(first.changed(set())) == []
    position = store.parts.writer.position
    assert mapping.setdefault("n", 3) == 1
    assert not mapping.compare_and_set("n", 7, 8)
    assert mapping.pop("absent", None) is None
    with pytest.raises(KeyError):
        del mapping["absent"]
    assert store.parts.writer.position == position


def test_what_a_decision_raises_ends_only_its_own_rewrite(store: Opened) -> None:
    mapping = counters(store)
    made = increments(store, "n", 3)
    text = rewrite(
        store, mapping, "n", decisions.compare_and_set(namespace_of(mapping), None, "five")
    )
    gone = rewrite(store, mapping, "n", decisions.setdefault(namespace_of(mapping), 0))
    delete = rewrite(store, mapping, "m", decisions.setdefault(namespace_of(mapping), 7))
    store.parts.committer.commit_all([text, *made, gone, delete])
    assert errors([text, *made, gone, delete]) == [None, *[UsageError] * 3, None, None]
    assert dict(mapping) == {"m": 7, "n": "five"}


# ------------------------------------------------------------------ beside transactions


def test_a_serializable_transaction_that_read_the_key_before_conflicts(store: Opened) -> None:
    mapping = counters(store)
    mapping["n"] = 1
    tx = store.database.transaction()
    seen = tx[mapping]["n"]
    assert mapping.incr("n") == 2
    tx[mapping]["n"] = seen + 10
    with pytest.raises(ConflictError):
        tx.commit()
    assert mapping["n"] == 2


def in_thread(work: Callable[[], object]) -> tuple[threading.Thread, list[Any]]:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    return thread, found


def wait_for_waiter(store: Opened) -> None:
    """Return once somebody waits for a lock."""
    while not store.parts.locks._waiting:
        pass


@pytest.mark.parametrize(
    ("act", "told", "left"),
    [
        (lambda m: m.incr("n"), 11, 11),
        (lambda m: m.pop("n"), 10, None),
        (lambda m: m.popitem(), ("n", 10), None),
        (lambda m: m.compare_and_set("n", 1, 4), False, 10),
    ],
)
def test_a_key_that_is_locked_is_waited_for(
    store: Opened, act: Callable[[Map[Any, Any]], object], told: object, left: object
) -> None:
    mapping = counters(store)
    mapping["n"] = 1
    with store.database.transaction("pessimistic") as tx:
        tx[mapping]["n"] = 10
        thread, found = in_thread(lambda: act(mapping))
        wait_for_waiter(store)
    thread.join()
    assert found == [told]
    assert mapping.get("n") == left


def test_a_lock_refuses_a_rewrite_that_would_write_and_no_other(store: Opened) -> None:
    mapping = counters(store)
    mapping["n"] = 1
    with store.database.transaction("pessimistic", plain_writes=True) as tx:
        assert tx[mapping]["n"] == 1
        (locked,), (free,) = increments(store, "n", 1), increments(store, "m", 1)
        store.parts.committer.commit_all([locked, free])
        assert errors([locked, free]) == [LockedError, None]
        assert mapping.setdefault("n", 5) == 1
    assert dict(mapping) == {"m": 1, "n": 1}


# ------------------------------------------------------------------ codecs of one's own


def test_a_codec_of_ones_own_may_use_the_store_and_loses_no_increment(store: Opened) -> None:
    # Run under the commit mutex it would have waited for itself, for ever.
    seen = store.database.map("seen", key=Str, value=I64)

    def encode(value: int) -> bytes:
        seen.incr("calls")
        return b"%d" % value

    mapping = store.database.map("own", key=Str, value=Codec(name="own", encode=encode, decode=int))
    made = [
        rewrite(store, mapping, "n", decisions.incr(namespace_of(mapping), "n", 1))
        for _ in range(3)
    ]
    store.parts.committer.commit_all(made)
    assert errors(made) == [None, RacedError, RacedError]
    hand_out(store, made[1])
    assert store.database.map("own").incr("n") == 2
    assert mapping["n"] == 2
    assert seen["calls"] == 4


# ------------------------------------------------------------------ the data file moves on


def test_a_value_that_was_read_from_an_older_data_file_is_read_again(store: Opened) -> None:
    mapping = counters(store)
    mapping["n"] = 1
    store.database.checkpoint()
    (early,) = increments(store, "n", 1)
    mapping["n"] = 50
    store.database.checkpoint()
    (late,) = increments(store, "n", 1)
    store.parts.committer.commit_all([early, late])
    assert errors([early, late]) == [StaleError, None]
    assert late.choice.result == 51
    store.database.checkpoint()
    hand_out(store, early)
    assert counters(store).incr("n") == 52


@pytest.mark.parametrize("where", ["memory", "data file"])
def test_every_change_of_one_key_is_made_of_the_newest_value(store: Opened, where: str) -> None:
    mapping = counters(store)
    mapping.update({"n": 1, "p": 2, "q": 3})
    if where == "data file":
        store.database.checkpoint()
    assert mapping.incr("n", 4) == 5
    assert mapping.pop("p") == 2
    assert mapping.setdefault("p", 8) == 8
    assert mapping.compare_and_set("q", 3, None)
    assert mapping.popitem() == ("n", 5)
    assert dict(mapping) == {"p": 8}
    with opened(store.disk.copy()) as again:
        assert dict(counters(again)) == {"p": 8}


# ------------------------------------------------------------------ failures


def test_numbers_are_closed_when_they_do_not_reach_the_log(store: Opened) -> None:
    made = increments(store, "n", 3)
    store.disk.fail_at(store.disk.operations + 1, "ENOSPC", kind="write")
    store.parts.committer.commit_all(made)
    assert errors(made) == [DiskFullError] * 3
    assert counters(store).incr("n") == 1
    for counter in store.parts.state.counters:
        assert counter.lwm == counter.hwm


@pytest.mark.parametrize(
    "act", [lambda mapping: mapping.incr("n"), lambda mapping: mapping.popitem()]
)
def test_an_append_that_fails_is_told_and_not_tried_again(
    store: Opened, act: Callable[[Map[Any, Any]], object]
) -> None:
    mapping = counters(store)
    mapping["n"] = 1
    store.disk.fail_at(store.disk.operations + 1, "EIO", kind="write")
    with pytest.raises(DiskError):
        act(mapping)
    assert mapping.get("n") == 1


def test_after_a_failed_sync_each_has_an_id_to_ask_about() -> None:
    store = open_store()
    mapping = counters(store)
    made = increments(store, "n", 3)
    kept = rewrite(store, mapping, "n", decisions.setdefault(namespace_of(mapping), 0))
    store.disk.fail_at(store.disk.operations + 1, kind="sync")
    store.parts.committer.commit_all([*made, kept])
    assert errors(made) == [CommitUnknownError] * 3
    assert kept.error is not None, "what it saw is as unknown as what it would have written"
    ids = {made_.error.tx_id for made_ in made}  # type: ignore[union-attr]
    assert len(ids) == 3
    assert dict(mapping) == {}
    with opened(store.disk.crash("kept")) as again:
        outcomes = {again.database.outcome(tx_id) for tx_id in ids}
        content = dict(counters(again))
        assert (outcomes, content) in (({"committed"}, {"n": 3}), ({"rolled_back"}, {}))


def test_an_interrupt_while_one_is_decided_leaves_nothing_behind(store: Opened) -> None:
    made = increments(store, "n", 2)
    second = made[1]

    def interrupted(_data: bytes | None) -> Any:
        raise KeyboardInterrupt

    second.choice._decide = interrupted  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        store.parts.committer.commit_all(made)
    assert errors(made) == [RolledBackError, RolledBackError]
    assert counters(store).incr("n") == 1
    for counter in store.parts.state.counters:
        assert counter.lwm == counter.hwm


def test_one_whose_group_was_interrupted_begins_again(
    store: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit_all, calls = store.parts.committer.commit_all, 0

    def unlucky(entries: Sequence[Rewrite]) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            entries[0].error = RolledBackError("the leader was interrupted")
        else:
            commit_all(entries)

    monkeypatch.setattr(store.parts.committer, "commit_all", unlucky)
    assert counters(store).incr("n") == 1
    assert calls == 2


def test_a_map_that_is_dropped_takes_none(store: Opened) -> None:
    mapping = counters(store)
    mapping["n"] = 1
    made = increments(store, "n", 1)
    store.database.drop("counters")
    store.parts.committer.commit_all(made)
    assert errors(made) == [NotFoundError]
    incr, pop = partial(mapping.incr, "n"), partial(mapping.pop, "n")
    for act in (incr, mapping.popitem, pop):
        with pytest.raises(NotFoundError):
            act()


def test_a_store_that_has_stopped_takes_none() -> None:
    store = open_store()
    made = increments(store, "n", 1)
    store.database.close()
    store.parts.committer.commit_all(made)
    with pytest.raises(Exception, match="closed"):
        raise made[0].error or AssertionError


# ------------------------------------------------------------------ the first key


def pops(store: Opened, count: int, first_keys: int = FIRST_KEYS) -> list[Rewrite]:
    """Rewrites that have looked at the first keys, and are not committed yet."""
    namespace = namespace_of(counters(store))
    looks = [
        Look(namespace, session_of(store.database).snapshot(), first_keys) for _ in range(count)
    ]
    return [Rewrite(FirstKey(namespace, look), True) for look in looks]


def keys_of(rewrites: list[Rewrite]) -> list[str | None]:
    return [None if pair is None else pair[0].decode() for pair in results(rewrites)]


def test_pops_of_one_group_take_one_key_after_the_other(store: Opened) -> None:
    mapping = counters(store)
    mapping.update({"a": 1, "b": 2, "c": 3})
    made = pops(store, 4)
    syncs = store.parts.committer.end_of_log.times.count
    store.parts.committer.commit_all(made)
    assert keys_of(made) == ["a", "b", "c", None]
    assert store.parts.committer.end_of_log.times.count == syncs + 1
    assert dict(mapping) == {}


def test_a_pop_takes_what_is_first_when_its_turn_comes(store: Opened) -> None:
    mapping = counters(store)
    mapping.update({"b": 2, "c": 3, "d": 4})
    made = pops(store, 4)
    mapping["a"] = 1  # before all of them
    del mapping["b"]
    mapping["c"] = 30
    taken = rewrite(store, mapping, "d", decisions.pop(namespace_of(mapping), "d"))
    back = rewrite(store, mapping, "b", decisions.setdefault(namespace_of(mapping), 20))
    store.parts.committer.commit_all([made[0], taken, made[1], back, *made[2:]])
    assert keys_of(made) == ["a", "c", "b", None]
    assert [pair and pair[1] for pair in results(made)] == [b"1", b"30", b"20", None]


def test_a_pop_whose_first_keys_are_all_gone_looks_again(store: Opened) -> None:
    mapping = counters(store)
    mapping.update({f"{number:03}": number for number in range(100)})
    (made,) = pops(store, 1, first_keys=4)
    store.database.checkpoint()
    for number in range(4):
        assert mapping.popitem() == (f"{number:03}", number)
    mapping["050+"] = 0  # lies behind what it has seen, others may lie before it
    store.parts.committer.commit_all([made])
    assert errors([made]) == [StaleError]
    mapping["0000"] = 0  # before the last one that it has seen
    (made,) = pops(store, 1, first_keys=4)
    store.parts.committer.commit_all([made])
    assert keys_of([made]) == ["0000"]


def test_a_pop_whose_snapshot_has_ended_looks_again(store: Opened) -> None:
    mapping = counters(store)
    mapping.update({"a": 1, "b": 2})
    (made,) = pops(store, 1)
    mapping["0"] = 0
    for snapshot in session_of(store.database).snapshots:
        snapshot.expire("the data file had to grow")
    for _ in range(2):
        store.database.snapshot().close()
    store.parts.committer.commit_all([made])
    assert errors([made]) == [StaleError]
    assert isinstance(made.choice, FirstKey)
    assert made.choice._look.used_up
    assert mapping.popitem() == ("0", 0)


def test_those_who_pop_at_once_share_a_look_and_leave_no_snapshot_behind(store: Opened) -> None:
    mapping = counters(store)
    mapping.update({f"{number:03}": number for number in range(100)})
    first = partial(session_of(store.database).rewriting.first, namespace_of(mapping))
    made = [first() for _ in range(FIRST_KEYS + 1)]
    assert len(list(session_of(store.database).snapshots)) == 1
    store.parts.committer.commit_all(made)
    assert keys_of(made[:-1]) == [f"{number:03}" for number in range(FIRST_KEYS)]
    assert errors(made[-1:]) == [StaleError]
    mapping["0"] = 0
    made += [first() for _ in range(3)]
    store.parts.committer.commit_all(made[-3:])
    assert keys_of(made[-3:]) == ["0", "032", "033"]
    # Who finds one used up looks at more.
    first_choices: list[Any] = [one.choice for one in made[-4:]]
    assert [choice._look.count // FIRST_KEYS for choice in first_choices] == [1, 4, 4, 4]
    assert len(list(session_of(store.database).snapshots)) == 2
    del made, first_choices
    store.environment.advance(0.1)
    assert list(session_of(store.database).snapshots) == []


def test_a_look_at_an_empty_map_is_for_one_pop_only(store: Opened) -> None:
    mapping = counters(store)
    empty = session_of(store.database).rewriting.first(namespace_of(mapping))
    assert empty.choice.nothing_to_write
    mapping["a"] = 1
    assert mapping.popitem() == ("a", 1)


def test_the_first_key_of_an_empty_map_is_none(store: Opened) -> None:
    mapping = counters(store)
    position = store.parts.writer.position
    with pytest.raises(KeyError, match="empty"):
        mapping.popitem()
    assert store.parts.writer.position == position


@pytest.mark.parametrize("durability", ["interval", "none"])
def test_a_relaxed_store_takes_them_without_a_sync(durability: Any) -> None:
    with opened(durability=durability) as store:
        mapping = counters(store)
        syncs = store.parts.committer.end_of_log.times.count
        for number in range(5):
            mapping["k"] = number
            assert mapping.incr("n") == number + 1
        assert mapping.popitem() == ("k", 4)
        assert mapping.pop("n") == 5
        assert store.parts.committer.end_of_log.times.count == syncs
