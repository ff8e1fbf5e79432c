"""What tasks stage is committed once, whole, and by whoever repeats it not again."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tidelog
from support.pipelines import content, new_store, rows
from tidelog.affinity.errors import (
    AlreadyOpenError,
    CodecError,
    KeyTooLargeError,
    NotFoundError,
    SnapshotExpiredError,
    TransactionTooLargeError,
    UsageError,
)
from tidelog.engine.upkeep.check import check_store
from tidelog.pipeline.plan.options import WriteOptions, parse_write
from tidelog.pipeline.write import sinks
from tidelog.pipeline.write.sinks import NumberedBatch, Staged

NOBODY = NumberedBatch(None)
Row = tuple[str, bytes | None, bytes | None]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with new_store(tmp_path / "store", partitions=4) as db:
        db.map("kept")[b"k"] = b"v"
    return tmp_path / "store"


def options(store: Path, **given: Any) -> WriteOptions:
    return parse_write({"path": str(store), **{name: str(text) for name, text in given.items()}})


def batch_of(rows: Iterable[Row]) -> pa.RecordBatch:
    names, keys, values = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays(
        [pa.array(values, pa.binary()), pa.array(names), pa.array(keys, pa.binary())],
        names=["value", "namespace", "key"],
    )


def staged(store: Path, task: int, *given: Row, folder: str = "job", **more: Any) -> Staged:
    chosen = options(store, **more)
    return sinks.stage(folder, f"{task}-{task}", [batch_of([row]) for row in given], chosen)


def left(store: Path) -> list[str]:
    """What is in the staging area."""
    return sorted(str(path.relative_to(store / "staging")) for path in store.glob("staging/**/*"))


def test_the_rows_of_all_tasks_are_one_transaction(store: Path) -> None:
    parts = [
        staged(store, 0, ("a", b"1", b"x"), ("kept", b"k", None)),
        staged(store, 1),
        staged(store, 2, ("a", b"2", b""), ("b", b"1", b"y")),
    ]
    assert left(store) == ["job", "job/0-0.arrow", "job/1-1.arrow", "job/2-2.arrow"]
    sinks.commit(parts, NOBODY, options(store))
    assert content(store) == {"kept": {}, "a": {b"1": b"x", b"2": b""}, "b": {b"1": b"y"}}
    newest = [row["tx_id"] for row in rows(store, "changes")][-4:]
    assert len(set(newest)) == 1
    assert not (store / "staging").exists()
    assert check_store(store) == []


def test_a_batch_that_is_brought_again_is_not_written_again(store: Path) -> None:
    first = NumberedBatch("job", 7)
    sinks.commit([staged(store, 0, ("a", b"1", b"x"))], first, options(store))
    sinks.commit([staged(store, 0, ("a", b"1", b"again"))], first, options(store))
    sinks.commit([staged(store, 0, ("a", b"1", b"older"))], NumberedBatch("job", 6), options(store))
    assert content(store)["a"] == {b"1": b"x"}
    sinks.commit(
        [staged(store, 0, ("a", b"1", b"other"))], NumberedBatch("other", 1), options(store)
    )
    assert content(store)["a"] == {b"1": b"other"}
    sinks.commit([staged(store, 0, ("a", b"1", b"next"))], NumberedBatch("job", 8), options(store))
    assert content(store)["a"] == {b"1": b"next"}
    assert left(store) == []
    assert check_store(store) == []


def test_the_ledger_is_no_map_and_no_change(store: Path) -> None:
    sinks.commit([staged(store, 0, ("a", b"1", b"x"))], NumberedBatch("job", 7), options(store))
    assert sorted(content(store)) == ["a", "kept"]
    assert {row["namespace"] for row in rows(store, "changes")} == {"a", "kept"}
    assert {row["namespace"] for row in rows(store, "snapshot")} == {"a", "kept"}


def test_partitions_are_committed_one_by_one_and_each_once(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = options(store, atomicity="partition")
    given = [("a", b"%d" % number, b"x") for number in range(20)]
    applied = sinks._apply
    calls = 0

    def dies(*args: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        applied(*args)

    with monkeypatch.context() as patch:
        patch.setattr(sinks, "_apply", dies)
        with pytest.raises(KeyboardInterrupt):
            sinks.commit([staged(store, 0, *given)], NumberedBatch("job", 1), chosen)
    half = content(store)["a"]
    assert 0 < len(half) < 20
    changed = [(name, key, b"y") for name, key, _ in given]
    sinks.commit([staged(store, 0, *changed)], NumberedBatch("job", 1), chosen)
    found = content(store)["a"]
    assert found == {key: b"x" if key in half else b"y" for _, key, _ in given}
    transactions = {
        (row["partition"], row["tx_id"]) for row in rows(store, "changes", namespace="a")
    }
    assert len(transactions) == 4
    assert check_store(store) == []


def test_a_death_behind_the_commit_changes_nothing(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dies(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(sinks, "discard", dies)
        with pytest.raises(KeyboardInterrupt):
            sinks.commit(
                [staged(store, 0, ("a", b"1", b"x"))], NumberedBatch("q", 0), options(store)
            )
    assert left(store) == ["job", "job/0-0.arrow"]
    sinks.commit([staged(store, 0, ("a", b"1", b"x"))], NumberedBatch("q", 0), options(store))
    assert len(rows(store, "changes", namespace="a")) == 1
    assert left(store) == []


def test_a_key_that_comes_twice_is_refused_or_the_last_one_counts(store: Path) -> None:
    twice = [staged(store, n, ("a", b"1", b"%d" % n), ("b", b"1", b"")) for n in range(2)]
    with pytest.raises(UsageError, match="comes twice") as caught:
        sinks.commit(twice, NOBODY, options(store))
    assert "onConflict=last" in caught.value.hint
    assert "a" not in content(store)
    sinks.commit(twice, NOBODY, options(store, onConflict="LAST"))
    assert content(store)["a"] == {b"1": b"1"}


def test_a_transaction_of_too_many_updates_is_refused_before_any_is_written(store: Path) -> None:
    before = content(store)
    rows_of_it = [staged(store, 0, *(("a", b"%d" % n, b"x") for n in range(40)))]
    for atomicity, most in (("batch", 39), ("partition", 3)):
        few = options(store, atomicity=atomicity, maxOpsPerTx=most)
        with pytest.raises(TransactionTooLargeError, match=f"maxOpsPerTx is {most}"):
            sinks.commit(rows_of_it, NOBODY, few)
        assert content(store) == before
    sinks.commit(rows_of_it, NOBODY, options(store, maxOpsPerTx=40))
    assert len(content(store)["a"]) == 40


def test_a_map_is_replaced_as_a_whole(store: Path) -> None:
    chosen = options(store, namespace="kept")
    one = staged(store, 0, ("ignored", b"new", b"x"), namespace="kept")
    sinks.commit([one], NOBODY, chosen, replace=True)
    assert content(store) == {"kept": {b"new": b"x"}}
    sinks.commit([], NOBODY, chosen, replace=True)
    assert content(store) == {"kept": {}}


def test_only_what_can_be_written_is_taken(store: Path) -> None:
    good = {"key": "binary", "value": "binary", "namespace": "string"}
    sinks.check_write(good, options(store), replace=False)
    for columns, told in (
        ({**good, "extra": "int"}, "extra int"),
        ({**good, "key": "string"}, "key string"),
        ({"key": "binary", "value": "binary"}, "no namespace"),
    ):
        with pytest.raises(UsageError, match=told) as caught:
            sinks.check_write(columns, options(store), replace=False)
        assert "Select key binary" in caught.value.hint
    with pytest.raises(UsageError, match="namespace string"):
        sinks.check_write(good, options(store, namespace="a"), replace=False)
    with pytest.raises(UsageError, match="one map"):
        sinks.check_write(good, options(store), replace=True)
    with pytest.raises(NotFoundError, match="no store"):
        sinks.check_write(good, options(store / "nowhere"), replace=False)


def test_rows_that_no_map_could_hold_leave_nothing_behind(store: Path) -> None:
    with new_store(store) as db:
        db.map("typed", key=tidelog.codecs.I64, value=tidelog.codecs.Json)
    for given, error in (
        (("a", b"k" * 481, b"v"), KeyTooLargeError),
        (("a", None, b"v"), UsageError),
        (("typed", b"text", b"1"), CodecError),
        (("typed", tidelog.codecs.I64.encode(1), b"{"), CodecError),
    ):
        with pytest.raises(error):
            sinks.commit([staged(store, 0, ("b", b"1", b"x"), given)], NOBODY, options(store))
        assert "b" not in content(store) or content(store)["b"] == {}
    sinks.commit(
        [staged(store, 0, ("typed", tidelog.codecs.I64.encode(1), b'{"a":1}'))],
        NOBODY,
        options(store),
    )
    with tidelog.open(store, read_only=True) as again:
        assert dict(again.map("typed").items()) == {1: {"a": 1}}


def test_a_batch_that_is_too_large_says_what_to_do(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = tidelog.open
    monkeypatch.setattr(
        sinks,
        "open_store",
        lambda path, **more: opened(path, transaction_bytes_max=100_000, **more),
    )
    given = [("a", b"%d" % number, bytes(10_000)) for number in range(20)]
    with pytest.raises(TransactionTooLargeError) as caught:
        sinks.commit([staged(store, 0, *given)], NumberedBatch("q", 0), options(store))
    assert any("atomicity=partition" in note for note in caught.value.__notes__)
    chosen = options(store, atomicity="partition")
    sinks.commit([staged(store, 0, *given)], NumberedBatch("q", 0), chosen)
    assert len(content(store)["a"]) == 20


def test_a_store_that_somebody_writes_is_refused(store: Path) -> None:
    one = staged(store, 0, ("a", b"1", b"x"))
    with new_store(store), pytest.raises(AlreadyOpenError) as caught:
        sinks.commit([one], NOBODY, options(store))
    assert any("driver" in note for note in caught.value.__notes__)
    sinks.commit([one], NOBODY, options(store))
    assert content(store)["a"] == {b"1": b"x"}


def test_what_was_staged_and_is_gone_is_missed(store: Path) -> None:
    one = staged(store, 0, ("a", b"1", b"x"))
    with pytest.raises(SnapshotExpiredError, match="has 1 rows"):
        sinks.commit([Staged(one.folder, one.file, 2)], NOBODY, options(store))
    sinks.discard(str(store), "job")
    with pytest.raises(SnapshotExpiredError, match="are gone"):
        sinks.commit([one], NOBODY, options(store))


def test_what_dead_jobs_left_is_removed_in_time(store: Path) -> None:
    staged(store, 0, ("a", b"1", b"x"), folder="dead")
    staged(store, 0, ("a", b"1", b"x"), folder="alive")
    old = time.time() - sinks.STAGING_SECONDS - 10
    os.utime(store / "staging" / "dead", (old, old))
    sinks.commit([staged(store, 0, ("a", b"2", b"x"))], NOBODY, options(store))
    assert left(store) == ["alive", "alive/0-0.arrow"]


def test_the_staging_area_is_private_and_no_part_of_the_store(store: Path, tmp_path: Path) -> None:
    staged(store, 0, ("a", b"1", b"x"))
    for path in store.glob("staging/**/*"):
        assert path.stat().st_mode & 0o077 == 0
    assert (store / "staging").stat().st_mode & 0o077 == 0
    with new_store(store) as db:
        db.backup(tmp_path / "copy")
    assert not (tmp_path / "copy" / "staging").exists()
    assert check_store(store) == []


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"txnAppId": "a"}, "belong together"),
        ({"txnVersion": "1"}, "belong together"),
        ({"txnAppId": "a\0", "txnVersion": "1"}, "printable"),
        ({"txnAppId": "a", "txnVersion": "-1"}, "at least 0"),
        ({"atomicity": "none"}, "batch or partition"),
        ({"onConflict": "first"}, "fail or last"),
        ({"view": "snapshot"}, "a write has no option 'view'"),
    ],
)
def test_options_of_a_write_that_are_wrong_are_told(given: dict[str, str], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        parse_write({"path": "somewhere", **given})


def test_a_stream_has_no_version(store: Path) -> None:
    assert parse_write({"path": "p", "txnAppId": "a"}, stream=True).writer == "a"
    with pytest.raises(UsageError, match="stream"):
        parse_write({"path": "p", "txnVersion": "1"}, stream=True)


def test_a_batch_that_the_ledger_knows_is_told(
    store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # A number that was too low, or a name that two jobs shared, lost batches without a word.
    for number in (5, 5, 3, 6):
        part = staged(store, 0, ("a", b"%d" % number, b"x"))
        sinks.commit([part], NumberedBatch("job", number), options(store))
    told = [record.getMessage() for record in caplog.records]
    assert [text.split(" path=")[0] for text in told] == [
        "batch.known writer=job number=5 newest=5 rows=1",
        "batch.known writer=job number=3 newest=5 rows=1",
    ]
    assert content(store)["a"] == {b"5": b"x", b"6": b"x"}
