"""What changes say of maps that come, go and get other names, wherever they are read."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from support.pipelines import Row, new_store, rows, rows_of
from tidelog.affinity.errors import UsageError
from tidelog.engine.api.database import Database
from tidelog.pipeline.jobs import runner as jobs
from tidelog.pipeline.jobs.compaction import compact
from tidelog.pipeline.jobs.runner import Runner
from tidelog.pipeline.plan.options import parse
from tidelog.pipeline.plan.streams import stream

HERE = Runner()
SMALL: dict[str, Any] = {"partitions": 2, "segment_bytes": 1 << 16, "retain_bytes": 1 << 30}


def rotate(db: Database) -> None:
    """Begin another segment or two."""
    other = db.map("other")
    for number in range(90):
        other[b"%d" % number] = bytes(3_000)


def counted(found: list[Row]) -> Counter[str | None]:
    return Counter(row["namespace"] for row in found)


@pytest.fixture
def dropped(tmp_path: Path) -> Path:
    """A store that has dropped a map whose rows lie in an older segment, and made another one."""
    with new_store(tmp_path / "s", **SMALL) as db:
        db.map("orders").update_many({b"1": b"a", b"2": b"b"})
        db.drop("orders")
        db.map("orders")[b"3"] = b"c"
        db.rename("orders", "sales")
        db.map("sales")[b"4"] = b"d"
        rotate(db)
    return tmp_path / "s"


@pytest.mark.parametrize("tasks", [1, 2, 40])
def test_changes_have_the_names_that_maps_had_when_they_were_committed(
    dropped: Path, tasks: int
) -> None:
    # Names came from the newest segment alone: rows of a dropped map had its id for a name.
    found = rows(dropped, "changes", minPartitions=tasks)
    assert counted(found) == {"orders": 3, "sales": 1, "other": 90}
    only = rows(dropped, "changes", minPartitions=tasks, namespace="orders")
    assert [row for row in found if row["namespace"] == "orders"] == only
    assert len({row["map_id"] for row in only}) == 2


def test_a_batch_of_a_stream_is_the_same_when_it_is_read_again(tmp_path: Path) -> None:
    # A new stream did not know the names of dropped maps, and left their rows out.
    with new_store(tmp_path / "s", **SMALL) as db:
        options = parse(
            {"path": str(tmp_path / "s"), "view": "changes", "startingCounters": "earliest",
             "includeCatalog": "true"},
            stream=True,
        )  # fmt: skip
        db.map("orders")[b"1"] = b"a"
        follower = stream(options)
        offsets = [follower.initial()]
        first = []
        steps: list[Callable[[], object]] = [
            lambda: db.map("orders").update_many({b"1": b"a", b"2": b"b"}),
            lambda: db.drop("orders"),
            lambda: rotate(db),
            lambda: db.map("orders").update_many({b"1": b"c"}),
            lambda: db.rename("orders", "sales"),
            lambda: rotate(db),
        ]
        for step in steps:
            step()
            offsets.append(follower.latest(offsets[-1], None))
            first.append(rows_of(follower.tasks(offsets[-2], offsets[-1])))
    offsets.append(follower.latest(offsets[-1], None))
    first.append(rows_of(follower.tasks(offsets[-2], offsets[-1])))
    pairs = list(pairwise(offsets))
    assert [rows_of(stream(options).tasks(*pair)) for pair in pairs] == first
    everything = rows(tmp_path / "s", "changes", includeCatalog="true")
    assert sorted(map(repr, everything)) == sorted(repr(row) for found in first for row in found)
    ops = [(row["op"], row["namespace"]) for found in first for row in found]
    assert ops.count(("drop", "orders")) == ops.count(("rename", "orders")) == 1


def test_a_map_is_found_by_its_key_after_it_was_dropped_or_renamed(dropped: Path) -> None:
    assert [row["value"] for row in jobs.history(str(dropped), "orders", b"1", HERE)] == [b"a"]
    assert [row["value"] for row in jobs.history(str(dropped), "sales", b"3", HERE)] == [b"c"]


def test_rows_of_drops_and_renames_come_where_they_are_asked_for(dropped: Path) -> None:
    # Whoever folded the changes of a map that was dropped and made again had the keys of both.
    plain = rows(dropped, "changes")
    found = rows(dropped, "changes", includeCatalog="true")
    told = [row for row in found if row not in plain]
    assert len(told) == len(found) - len(plain)
    assert {row["op"] for row in plain} == {"put"}
    assert [(row["op"], row["namespace"], row["value"]) for row in told] == [
        ("drop", "orders", None),
        ("rename", "orders", b"sales"),
    ]
    for row in told:
        assert row["partition"] is row["key"] is row["tx_id"] is row["tx_seq"] is None
    assert told[0]["counter"] < told[1]["counter"]
    assert told[0]["commit_ts"] is not None
    state: dict[tuple[int, bytes], bytes] = {}
    for row in found:
        if row["op"] == "drop":
            state = {key: value for key, value in state.items() if key[0] != row["map_id"]}
        elif row["op"] == "put":
            state[row["map_id"], row["key"]] = row["value"]
    data = rows(dropped, "snapshot")
    assert state == {(row["map_id"], row["key"]): row["value"] for row in data}
    for name, ops in (("orders", 2), ("sales", 1), ("other", 0)):
        asked = rows(dropped, "changes", includeCatalog="true", namespace=name)
        assert sum(row["key"] is None for row in asked) == ops
    cdf = rows(
        dropped, "changes", includeCatalog="true", changeFormat="cdf", columns="_change_type"
    )
    assert Counter(row["_change_type"] for row in cdf) == {
        "update_postimage": 94, "drop": 1, "rename": 1
    }  # fmt: skip


def test_an_archive_has_the_same_rows_of_maps(dropped: Path, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    compact(str(dropped), str(archive), HERE)
    with new_store(dropped, **SMALL) as db:
        db.rename("sales", "orders")
        middle = rows(dropped, "changes")
        compact(str(dropped), str(archive), HERE)
        db.drop("other")
        db.map("last")[b"1"] = b"1"
    compact(str(dropped), str(archive), HERE)
    start = json.dumps({row["partition"]: row["counter"] for row in middle})
    for given in (
        {},
        {"namespace": "orders"},
        {"namespace": "last"},
        {"startingCounters": start},
        {"endingCounters": start},
        {"startingTimestamp": middle[-1]["commit_ts"].isoformat()},
    ):
        options: dict[str, Any] = {**given, "includeCatalog": "true"}
        found = rows(archive, "changes", **options)
        assert sorted(map(repr, found)) == sorted(map(repr, rows(dropped, "changes", **options)))
    assert Counter(row["op"] for row in rows(archive, "changes", includeCatalog="true")) == {
        "put": 95, "drop": 2, "rename": 2
    }  # fmt: skip


def test_data_at_a_vector_is_the_same_from_an_archive_made_early_or_late(tmp_path: Path) -> None:
    # The time of a stretch counted drops behind its last change.
    store = tmp_path / "s"
    with new_store(store, partitions=1) as db:
        db.map("m")[b"k"] = b"1"
        db.map("n")[b"k"] = b"2"
        db.drop("m")
        db.rename("n", "o")
        db.backup(tmp_path / "copy")
    compact(str(store), str(tmp_path / "early"), HERE)
    with new_store(store) as db:
        db.map("n")[b"k"] = b"3"
    for name in ("early", "late"):
        compact(str(store), str(tmp_path / name), HERE)
    for name in ("copy", "early", "late"):
        found = rows(tmp_path / name, "snapshot", asOf='{"0": 2}')
        assert sorted((row["namespace"], row["value"]) for row in found) == [
            ("m", b"1"), ("n", b"2")
        ]  # fmt: skip
    for name in ("early", "late"):
        found = rows(tmp_path / name, "snapshot", asOf='{"0": 3}')
        assert sorted((row["namespace"], row["value"]) for row in found) == [
            ("n", b"3"), ("o", b"2")
        ]  # fmt: skip


def test_an_archive_that_ends_behind_a_drop_shows_the_map_at_its_last_number(
    tmp_path: Path,
) -> None:
    store, archive = tmp_path / "s", tmp_path / "a"
    with new_store(store, partitions=1) as db:
        db.map("m")[b"k"] = b"1"
        db.map("n")[b"k"] = b"2"
        db.drop("m")
    compact(str(store), str(archive), HERE)
    assert counted(rows(archive, "snapshot", asOf='{"0": 2}')) == {"m": 1, "n": 1}
    assert counted(rows(archive, "snapshot")) == {"n": 1}


def test_a_map_that_nobody_knows_is_an_error_in_changes_too(dropped: Path, tmp_path: Path) -> None:
    # Changes of a map whose name was mistyped were none, for ever.
    compact(str(dropped), str(tmp_path / "a"), HERE)
    for path in (dropped, tmp_path / "a"):
        with pytest.raises(UsageError, match="there is no map 'oders'") as raised:
            rows(path, "changes", namespace="oders")
        assert raised.value.hint == "There are other, sales."
    options = parse({"path": str(dropped), "view": "changes", "namespace": "oders"}, stream=True)
    with pytest.raises(UsageError, match="there is no map 'oders'"):
        stream(options).initial()


def test_a_map_that_came_and_went_within_an_older_segment_is_known(tmp_path: Path) -> None:
    with new_store(tmp_path / "s", **SMALL) as db:
        rotate(db)
        db.map("short")[b"k"] = b"v"
        db.drop("short")
        rotate(db)
    assert len(rows(tmp_path / "s", "changes", namespace="short")) == 1


def test_a_start_behind_the_end_is_refused(dropped: Path) -> None:
    # A batch from there on had no rows: a store that lost its tail looked like one without news.
    with pytest.raises(UsageError, match="has come to number"):
        rows(dropped, "changes", startingCounters='{"0": 1000000}')
    given = {"path": str(dropped), "view": "changes", "startingCounters": '{"0": 1000000}'}
    with pytest.raises(UsageError, match="has come to number"):
        stream(parse(given, stream=True)).initial()


def test_columns_come_in_the_order_in_which_they_are_asked_for(
    dropped: Path, tmp_path: Path
) -> None:
    # Batches had the order of the view, which Spark refused.
    compact(str(dropped), str(tmp_path / "a"), HERE)
    for view, wanted in (
        ("changes", ["value", "op", "partition"]),
        ("snapshot", ["counter", "map_id", "key"]),
        ("wal", ["offset", "segment"]),
        ("meta", ["hwm", "lwm"]),
    ):
        for path in (dropped, tmp_path / "a"):
            if path == dropped or view in ("changes", "snapshot"):
                found = rows(path, view, columns=",".join(wanted))
                assert found
                assert all(list(row) == wanted for row in found)
