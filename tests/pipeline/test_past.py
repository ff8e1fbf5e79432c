"""Data as of older cuts: beside archives, a model, and whatever stands in the way."""

from __future__ import annotations

import json
import random
import shutil
import tempfile
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings, strategies as st

import tidelog
from support.loads import make_load, rows_of as load_rows
from support.pipelines import Row, content, fill, greatest_closed, new_store, rows, rows_of
from support.stores import took_steps
from tidelog.affinity.errors import DiskFullError, SnapshotExpiredError, UsageError
from tidelog.affinity.partitions import Space, partition_of
from tidelog.engine.api.database import Database, session_of
from tidelog.engine.api.maps import namespace_of
from tidelog.engine.data.overlay import Layer, View
from tidelog.engine.files.recovery import take_over
from tidelog.engine.store.catalog import Catalog
from tidelog.engine.store.checkpointer import Checkpointer
from tidelog.engine.system.environment import KvTransaction
from tidelog.engine.system.limits import Limits
from tidelog.pipeline.data import past
from tidelog.pipeline.jobs.compaction import compact
from tidelog.pipeline.jobs.runner import Runner
from tidelog.pipeline.log.logs import Log
from tidelog.pipeline.plan.options import parse
from tidelog.pipeline.plan.reads import read
from tidelog.wal.reader import read_records
from tidelog.wal.records import (
    DropNamespaceRecord,
    NamespaceRecord,
    RollbackRecord,
    Run,
    TxRecord,
)

PARTITIONS = 4
COLUMNS = "namespace,key,value,partition,counter,tx_id,commit_ts"
Maps = dict[str, dict[bytes, bytes]]


def as_maps(found: list[Row]) -> Maps:
    """The rows of a snapshot as maps; each key comes once."""
    maps: Maps = {}
    for row in found:
        assert row["key"] not in maps.setdefault(row["namespace"], {})
        maps[row["namespace"]][row["key"]] = row["value"]
    return maps


def filled(maps: Maps) -> Maps:
    return {name: pairs for name, pairs in maps.items() if pairs}


def numbers_of(db: Database) -> dict[int, int]:
    """How far each partition has come."""
    return {p: counter.lwm for p, counter in enumerate(session_of(db).store.state.counters)}


def shown(path: Path, cut: dict[int, int], **options: Any) -> Maps:
    """The data of a store as of some numbers."""
    text = json.dumps({str(p): number for p, number in cut.items()})
    return as_maps(rows(path, "snapshot", asOf=text, **options))


def text_of(time: int) -> str:
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time)).isoformat()


# ------------------------------------------------------------------ beside an archive


@dataclass(frozen=True)
class World:
    """A copy of a store, an archive of the same, all changes, and what the checkpoint had."""

    copy: Path
    archive: Path
    changes: list[Row]
    low: dict[int, int]
    high: dict[int, int]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("past")
    with new_store(folder / "store", partitions=PARTITIONS) as db:
        fill(db, 1, 30)
        db.checkpoint()
        low = numbers_of(db)
        fill(db, 2, 60)
        high = numbers_of(db)
        db.backup(folder / "copy", verify=False)
        db.sync()
        session_of(db).maintenance.maintain()
        compact(str(folder / "store"), str(folder / "archive"), Runner())
    changes = rows(folder / "copy", "changes")
    return World(folder / "copy", folder / "archive", changes, low, high)


def random_cut(world: World, seed: int) -> dict[int, int]:
    rng = random.Random(seed)
    return {p: rng.randint(world.low[p], world.high[p]) for p in world.low}


def test_the_example_of_the_module_is_as_it_says(tmp_path: Path) -> None:
    a, b, x = (_key_of(partition, place) for partition, place in ((0, 0), (0, 1), (1, 0)))
    with new_store(tmp_path / "s", partitions=2) as db:
        db.map("m")[a] = b"1"
        db.map("m").update_many({b: b"1", x: b"1"})
        checkpoint = db.checkpoint()
        db.map("m").update_many({a: b"2", x: b"2"})
        time = session_of(db).store.state.time
        del db.map("m")[b]
        db.backup(tmp_path / "copy", verify=False)
    first, later = {a: b"1", b: b"1", x: b"1"}, {a: b"2", b: b"1", x: b"2"}
    cuts = {str(checkpoint): first, text_of(time): later, '{"0": 3}': later}
    cuts['{"0": 3, "1": 1}'] = first
    for asked, pairs in cuts.items():
        assert as_maps(rows(tmp_path / "copy", "snapshot", asOf=asked)) == {"m": pairs}
    split = shown(tmp_path / "copy", {0: 3, 1: 1}, consistency="partition")
    assert split == {"m": {**later, x: b"1"}}
    with pytest.raises(SnapshotExpiredError, match="number 1 of partition 0"):
        shown(tmp_path / "copy", {0: 1})


def _key_of(partition: int, place: int) -> bytes:
    """One of the keys that lie in a partition of two."""
    keys = (b"%d" % number for number in range(100))
    return [key for key in keys if partition_of(key, Space(0, 2)) == partition][place]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("consistency", ["transaction", "partition"])
def test_a_store_and_its_archive_show_the_same_at_any_cut(
    world: World, consistency: str, seed: int
) -> None:
    cut = random_cut(world, seed)
    asked = {"asOf": json.dumps(cut), "consistency": consistency, "columns": COLUMNS}
    found, kept = (
        sorted(map(repr, rows(path, "snapshot", minPartitions=tasks, **asked)))
        for path, tasks in ((world.copy, 1 + seed % 5), (world.archive, 1))
    )
    assert found == kept
    assert found


@pytest.mark.parametrize(
    "options",
    [
        {"namespace": "stock"},
        {"partitions": "0,2-3"},
        {"keyPrefix": "1"},
        {"startKey": "2", "endKey": "45"},
        {"columns": "key,tx_id"},
        {"batchRows": "3", "minPartitions": "4"},
    ],
)
def test_an_older_cut_obeys_all_other_options(world: World, options: dict[str, str]) -> None:
    half = {p: (world.low[p] + world.high[p]) // 2 for p in world.low}
    asked = {**options, "asOf": json.dumps(half), "consistency": "partition"}
    found = sorted(map(repr, rows(world.copy, "snapshot", **asked)))
    kept = rows(world.archive, "snapshot", **asked)
    if "tx_id" not in options.get("columns", ""):
        kept = [{**row, "tx_id": None} for row in kept]
    assert found == sorted(map(repr, kept))
    assert found


@pytest.mark.parametrize("place", [0.4, 0.7, 1.0])
def test_a_time_shows_all_that_was_committed_by_then(world: World, place: float) -> None:
    behind = [row for row in world.changes if row["counter"] > world.low[row["partition"]]]
    times = sorted({row["commit_ts"] for row in behind})
    time = times[int(place * (len(times) - 1))].isoformat()
    asked = {"asOf": time, "columns": COLUMNS}
    found = sorted(map(repr, rows(world.copy, "snapshot", **asked)))
    assert found == sorted(map(repr, rows(world.archive, "snapshot", **asked)))


def test_numbers_that_are_not_named_are_the_newest(world: World) -> None:
    cut = {0: world.low[0]}
    assert shown(world.copy, cut, consistency="partition") == shown(
        world.copy, {**world.high, **cut}, consistency="partition"
    )
    assert shown(world.copy, {}) == as_maps(rows(world.copy, "snapshot")) == content(world.copy)


# ------------------------------------------------------------------ beside a model


@dataclass
class Model:
    """A store, and beside it what was true after each transaction, by ids of maps."""

    db: Database
    data: dict[int, dict[bytes, bytes]] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    moments: list[tuple[dict[int, int], Maps, set[int]]] = field(default_factory=list)
    """Numbers, maps, and ids of these."""
    low: dict[int, int] = field(default_factory=dict)
    """The numbers of the last checkpoint."""
    kept: set[int] = field(default_factory=set)
    """The maps that it had, and later ones."""
    half: tuple[dict[int, int], set[int]] = field(default_factory=lambda: ({}, set()))
    """Numbers and maps of a checkpoint that died since then."""

    def commit(self, writes: list[tuple[str, int, bytes | None]]) -> None:
        handles = {name: self.db.map(name) for name, _, _ in writes}
        self.learn()
        with self.db.transaction() as tx:
            for name, number, value in writes:
                key = b"%d" % number
                pairs = self.data[namespace_of(handles[name]).id]
                if value is None:
                    tx[handles[name]].discard(key)
                    pairs.pop(key, None)
                else:
                    tx[handles[name]][key] = pairs[key] = value
        now = {self.names[number]: dict(pairs) for number, pairs in self.data.items()}
        before = self.moments[-1][0] if self.moments else None
        if numbers_of(self.db) != before:
            self.moments.append((numbers_of(self.db), now, set(self.data)))

    def learn(self) -> None:
        """Look which maps there are."""
        state = session_of(self.db).store.state
        for number, record in state.namespaces.items():
            if number not in self.data:
                self.data[number] = {}
                self.kept.add(number)
            self.names[number] = record.name

    def drop(self, name: str) -> None:
        if name in self.db.maps():
            number = next(n for n in self.data if self.names[n] == name)
            self.db.drop(name)
            del self.data[number], self.names[number]

    def rename(self, old: str, new: str) -> None:
        if old in self.db.maps() and new not in self.db.maps():
            self.db.rename(old, new)
            number = next(n for n in self.data if self.names[n] == old)
            self.names[number] = new

    def checkpoint(self) -> None:
        self.db.checkpoint()
        self.low = numbers_of(self.db)
        self.kept = set(self.data)
        self.half = {}, set()

    def half_checkpoint(self, most: int) -> None:
        """Take a checkpoint that ends after some transactions of one update."""
        numbers, maps = numbers_of(self.db), set(self.data)
        if took_steps(self.db, 1 + most, Limits(batch_updates=1, piece_updates=2)):
            self.checkpoint()
            return
        self.half = numbers, maps

    def may_be_refused(self, place: int) -> bool:
        """Whether a checkpoint that died can have gone beyond a moment."""
        numbers, _, ids = self.moments[place]
        reached, maps = self.half
        return any(numbers[p] < n for p, n in reached.items()) or bool(reached and ids - maps)

    def expected(self, place: int) -> Maps | None:
        """What a read as of a moment shows; None where it is refused."""
        numbers, maps, ids = self.moments[place]
        if any(numbers[p] < low for p, low in self.low.items()):
            return None
        # Maps that the checkpoint did not have any more had been there, and no number moved since.
        if ids - self.kept and all(numbers[p] == low for p, low in self.low.items()):
            return None
        return filled(maps)


NAMES = st.sampled_from("abc")
WRITES = st.lists(
    st.tuples(NAMES, st.integers(0, 11), st.none() | st.binary(max_size=2)), min_size=1, max_size=5
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), WRITES),
        st.tuples(st.just("commit"), WRITES),
        st.tuples(st.just("drop"), NAMES),
        st.tuples(st.just("rename"), NAMES, NAMES),
        st.tuples(st.just("checkpoint")),
        st.tuples(st.just("half_checkpoint"), st.integers(0, 6)),
    ),
    max_size=14,
)


@pytest.mark.slow
@settings(max_examples=40)
@given(STEPS, st.randoms(use_true_random=False))
def test_any_moment_is_shown_as_a_model_has_it_or_refused(
    steps: list[tuple[Any, ...]], rng: random.Random
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path, copy = Path(folder, "store"), Path(folder, "copy")
        with new_store(path, partitions=PARTITIONS, durability="none") as db:
            model = Model(db)
            for step, *given_to_it in steps:
                getattr(model, step)(*given_to_it)
            db.backup(copy, verify=False)
        for place, (numbers, _, _) in enumerate(model.moments):
            found = _or_refused(copy, numbers, minPartitions=3)
            if found is not None or not model.may_be_refused(place):
                assert found == model.expected(place)
        if model.moments:
            _check_between(copy, model, rng)


def _check_between(copy: Path, model: Model, rng: random.Random) -> None:
    """Cuts of no moment at all, against the changes."""
    changes = rows(copy, "changes")
    high = model.moments[-1][0]
    cut = {p: rng.randint(model.low.get(p, 0), number) for p, number in high.items()}
    for consistency, closed in (
        ("partition", cut),
        ("transaction", greatest_closed(changes, cut)),
    ):
        found = _or_refused(copy, cut, consistency=consistency)
        if any(closed[p] < low for p, low in model.low.items()):
            assert found is None
        if found is None:
            continue
        values = sorted(value for pairs in found.values() for value in pairs.values())
        newest: dict[tuple[str, bytes], Row] = {}
        below = [row for row in changes if row["counter"] <= closed[row["partition"]]]
        for row in sorted(below, key=lambda row: (row["partition"], row["counter"])):
            newest[row["namespace"], row["key"]] = row
        kept = [row["value"] for row in newest.values() if row["op"] == "put"]
        if not any(kind == "drop" for kind in _kinds(copy)):
            assert values == sorted(kept)


def _kinds(copy: Path) -> list[str]:
    return ["drop" for row in rows(copy, "wal") if row["record_type"] == "DROP_NAMESPACE"]


def _or_refused(path: Path, cut: dict[int, int], **options: Any) -> Maps | None:
    try:
        return shown(path, cut, **options)
    except SnapshotExpiredError:
        return None


# ------------------------------------------------------------------ what cannot be shown


def test_numbers_below_the_checkpoint_are_refused(world: World) -> None:
    cut = {**world.high, 2: world.low[2] - 1}
    with pytest.raises(SnapshotExpiredError) as raised:
        shown(world.copy, cut)
    assert str(world.copy) in str(raised.value)
    assert f"number {cut[2]} of partition 2" in str(raised.value)
    assert f"at {world.low[2]}, the earliest" in str(raised.value)
    assert "tidelog spark compact" in raised.value.hint
    time = min(row["commit_ts"] for row in world.changes).isoformat()
    with pytest.raises(SnapshotExpiredError, match="of partition"):
        rows(world.copy, "snapshot", asOf=time)
    with pytest.raises(SnapshotExpiredError, match="partition 0"):
        rows(world.copy, "snapshot", asOf="1999-01-01")


def test_what_the_store_has_not_reached_is_refused(world: World) -> None:
    with pytest.raises(UsageError, match=f"has come to number {world.high[1]}, but"):
        shown(world.copy, {1: world.high[1] + 1})
    with pytest.raises(UsageError, match="4 partitions, and no partition 9"):
        shown(world.copy, {9: 1})
    with pytest.raises(UsageError, match="belongs to store"):
        rows(world.copy, "snapshot", asOf=json.dumps({"v": 1, "store": "00", "p": {}}))
    with pytest.raises(UsageError, match="is a copy, which ends at"):
        rows(world.copy, "snapshot", asOf="2999-01-01")


def test_a_closed_store_has_its_newest_cut_at_any_later_time(tmp_path: Path) -> None:
    with new_store(tmp_path / "s", partitions=PARTITIONS) as db:
        fill(db, 1, 20)
        numbers = numbers_of(db)
    everything = content(tmp_path / "s")
    assert shown(tmp_path / "s", numbers) == everything
    assert as_maps(rows(tmp_path / "s", "snapshot", asOf="2999-01-01")) == everything
    # It closed with a checkpoint.
    with pytest.raises(SnapshotExpiredError):
        shown(tmp_path / "s", {0: numbers[0] - 1}, consistency="partition")


def test_a_checkpoint_is_shown_by_its_id(tmp_path: Path) -> None:
    with new_store(tmp_path / "s", partitions=PARTITIONS) as db:
        fill(db, 1, 20)
        db.checkpoint()
        db.backup(tmp_path / "first", verify=False)
        db.rename("stock", "goods")
        fill(db, 2, 20)
        db.backup(tmp_path / "second", verify=False)
        compact(str(tmp_path / "second"), str(tmp_path / "archive"), Runner())
    (number,) = {row["checkpoint_id"] for row in rows(tmp_path / "second", "meta")}
    assert as_maps(rows(tmp_path / "second", "snapshot", asOf=number)) == content(
        tmp_path / "first"
    )
    for other in ("0", str(int(number) - 1), "20260101"):
        with pytest.raises(SnapshotExpiredError, match=f"that of checkpoint {number}, the only"):
            rows(tmp_path / "second", "snapshot", asOf=other)
    with pytest.raises(UsageError, match="an archive, which has no checkpoints"):
        rows(tmp_path / "archive", "snapshot", asOf=number)


@pytest.mark.parametrize("most", [1, 4])
def test_a_checkpoint_that_died_is_not_shown_by_its_id_where_it_went_on(
    tmp_path: Path, most: int
) -> None:
    with new_store(tmp_path / "s", partitions=PARTITIONS) as db:
        model = Model(db)
        model.commit([("a", number, b"1") for number in range(20)])
        model.checkpoint()
        model.commit([("a", number, b"2") for number in range(20)])
        model.half_checkpoint(most)
        db.backup(tmp_path / "copy", verify=False)
    (number,) = {row["checkpoint_id"] for row in rows(tmp_path / "copy", "meta")}
    with pytest.raises(SnapshotExpiredError, match="of partition 0 any more"):
        rows(tmp_path / "copy", "snapshot", asOf=number)
    # Not even in a part of it, and the newest cut is whole.
    (old, _, _), (new, maps, _) = model.moments
    with pytest.raises(SnapshotExpiredError):
        shown(tmp_path / "copy", old)
    assert shown(tmp_path / "copy", new) == maps
    # A cut that splits the second transaction is lowered below what partition 0 has come to.
    split = {**new, 3: old[3]}
    with pytest.raises(SnapshotExpiredError, match="of partition 0 any more"):
        shown(tmp_path / "copy", split)
    found = shown(tmp_path / "copy", split, consistency="partition")["a"]
    assert {partition_of(key, Space(0, PARTITIONS)) for key in found if found[key] == b"1"} == {3}


def test_pieces_of_a_checkpoint_that_died_are_newer_than_their_mark(tmp_path: Path) -> None:
    # One partition: its mark tells the old number, and a part of the data is newer.
    with new_store(tmp_path / "s", partitions=1) as db:
        model = Model(db)
        model.commit([("a", number, b"1") for number in range(9)])
        model.checkpoint()
        for value in (b"2", b"3"):
            model.commit([("a", number, value) for number in range(9)])
        model.half_checkpoint(1)
        db.backup(tmp_path / "copy", verify=False)
    for numbers, maps, _ in model.moments[:2]:
        assert maps
        with pytest.raises(SnapshotExpiredError, match="at 27, the earliest"):
            shown(tmp_path / "copy", numbers)
    assert shown(tmp_path / "copy", model.moments[2][0]) == model.moments[2][1]


def test_a_store_that_was_written_since_the_plan_ends_the_read(tmp_path: Path) -> None:
    def planned(path: Path) -> list[Any]:
        return read(parse({"path": str(path), "asOf": "{}"}))

    with new_store(tmp_path / "s", partitions=PARTITIONS) as db:
        fill(db, 1, 20)
        db.backup(tmp_path / "copy", verify=False)
    tasks = planned(tmp_path / "copy")
    with tidelog.open(tmp_path / "copy") as again:
        fill(again, 2, 1)
        again.sync()
        session_of(again).abandon()
    with pytest.raises(SnapshotExpiredError, match="was written since"):
        rows_of(tasks)
    tasks = planned(tmp_path / "s")
    with tidelog.open(tmp_path / "s") as again:
        fill(again, 2, 1)
    with pytest.raises(SnapshotExpiredError, match="was written since"):
        rows_of(tasks)


def test_a_data_file_that_went_on_without_a_trace_in_the_log_ends_the_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A recovery may take a checkpoint and die before it has logged anything.
    monkeypatch.setattr(Checkpointer, "_note", lambda _self, _position: None)
    with new_store(tmp_path / "s", partitions=PARTITIONS) as db:
        fill(db, 1, 20)
        db.checkpoint()
        fill(db, 2, 20)
        db.backup(tmp_path / "copy", verify=False)
        db.checkpoint()
        db.backup(tmp_path / "later", verify=False)
    tasks = read(parse({"path": str(tmp_path / "copy"), "asOf": "{}"}))
    shutil.copy(tmp_path / "later/data/data.mdb", tmp_path / "copy/data/data.mdb")
    with pytest.raises(SnapshotExpiredError, match=r"the data file of .* was written since"):
        rows_of(tasks)


# ------------------------------------------------------------------ maps


def test_a_map_that_was_dropped_later_is_shown_until_its_rows_are_removed(tmp_path: Path) -> None:
    with new_store(tmp_path / "s", partitions=PARTITIONS) as db:
        db.map("stay")[b"k"] = b"1"
        db.map("gone")[b"k"] = b"2"
        numbers = numbers_of(db)
        before = session_of(db).store.state.time
        db.drop("gone")
        db.backup(tmp_path / "early", verify=False)
        db.checkpoint()
        db.backup(tmp_path / "late", verify=False)
        after = db.map("stay")
        after[b"k"] = b"3"
        db.backup(tmp_path / "last", verify=False)
    there = {"stay": {b"k": b"1"}, "gone": {b"k": b"2"}}
    for asked in (json.dumps(numbers), text_of(before)):
        assert as_maps(rows(tmp_path / "early", "snapshot", asOf=asked)) == there
        for copy in ("late", "last"):
            with pytest.raises(SnapshotExpiredError, match="map 'gone', which was dropped"):
                rows(tmp_path / copy, "snapshot", asOf=asked)
    assert as_maps(rows(tmp_path / "late", "snapshot")) == {"stay": {b"k": b"1"}}
    last = as_maps(rows(tmp_path / "last", "snapshot", asOf="{}"))
    assert last == {"stay": {b"k": b"3"}}
    with pytest.raises(UsageError, match="no map 'gone'"):
        rows(tmp_path / "last", "snapshot", asOf="{}", namespace="gone")


def test_a_time_between_a_drop_and_the_next_commit_is_without_the_map(tmp_path: Path) -> None:
    with new_store(tmp_path / "s", partitions=PARTITIONS) as db:
        db.map("stay")[b"k"] = b"1"
        db.map("gone")[b"k"] = b"2"
        db.rename("stay", "kept")
        db.drop("gone")
        db.backup(tmp_path / "first", verify=False)
        (dropped,) = [
            record.time
            for _, record in read_records(Log(str(tmp_path / "first")).between(*_extent(tmp_path)))
            if isinstance(record, DropNamespaceRecord)
        ]
        db.map("kept")[b"k"] = b"3"
        db.backup(tmp_path / "second", verify=False)
    found = as_maps(rows(tmp_path / "second", "snapshot", asOf=text_of(dropped)))
    assert found == {"kept": {b"k": b"1"}}


def _extent(folder: Path) -> tuple[int, int]:
    return Log(str(folder / "first")).extent(permissive=False)


def test_rows_that_a_dead_checkpoint_has_removed_are_missed(tmp_path: Path) -> None:
    # Nothing of the map's partitions changed since: their numbers alone would not tell.
    with new_store(tmp_path / "s", partitions=PARTITIONS) as db:
        model = Model(db)
        model.commit([("gone", number, b"1") for number in range(12)])
        model.checkpoint()
        model.commit([("a", 0, b"2")])
        model.drop("gone")
        model.half_checkpoint(1)
        db.backup(tmp_path / "copy", verify=False)
        place = partition_of(b"0", Space(0, PARTITIONS))
        assert place, "the dead checkpoint has to reach another partition"
    with pytest.raises(SnapshotExpiredError, match="map 'gone', which was dropped"):
        shown(tmp_path / "copy", model.moments[-1][0])


@pytest.mark.slow
@pytest.mark.parametrize("drop", [True, False])
def test_drops_that_the_log_does_not_tell_any_more_are_feared(tmp_path: Path, drop: bool) -> None:
    options = {"segment_bytes": 1 << 20, "retain_bytes": 1}
    with new_store(tmp_path / "s", partitions=PARTITIONS, **options) as db:
        db.map("stay")[b"k"] = b"1"
        db.map("other")[b"k"] = b"2"
        numbers, time = numbers_of(db), session_of(db).store.state.time
        if drop:
            db.drop("other")
        db.checkpoint()
        again = next(iter(session_of(db).store.state.namespaces.values()))
        for _ in range(2):  # the log grows into another segment, and no number moves
            for _ in range(10):
                session_of(db).store.committer.log([again] * 3_000)
            db.checkpoint()
    head = Log(str(tmp_path / "s")).earliest()
    assert any(number for _, number in head.vector().values())
    everything = content(tmp_path / "s")
    assert len(everything) == 2 - drop
    if drop:
        with pytest.raises(SnapshotExpiredError, match="of which the log has gone"):
            shown(tmp_path / "s", numbers)
    else:
        assert shown(tmp_path / "s", numbers) == everything
    with pytest.raises(SnapshotExpiredError, match="the earliest time that can be read"):
        rows(tmp_path / "s", "snapshot", asOf=text_of(time))
    for asked in ("latest", "2999-01-01"):
        assert as_maps(rows(tmp_path / "s", "snapshot", asOf=asked)) == everything


def test_a_time_has_the_names_of_now_where_nothing_was_committed_since(tmp_path: Path) -> None:
    with new_store(tmp_path / "s", partitions=PARTITIONS) as db:
        db.map("a")[b"k"] = b"1"
        time = session_of(db).store.state.time
        checkpoint, numbers = db.checkpoint(), numbers_of(db)
        db.rename("a", "b")
        db.backup(tmp_path / "first", verify=False)
        db.map("c")[b"k"] = b"2"
        db.backup(tmp_path / "second", verify=False)
    for copy, name in (("first", "b"), ("second", "a")):
        found = as_maps(rows(tmp_path / copy, "snapshot", asOf=text_of(time)))
        assert found == {name: {b"k": b"1"}}
    # A vector ends with its last number, whatever follows, and a checkpoint has a position.
    for copy in ("first", "second"):
        for asked in (json.dumps(numbers), checkpoint):
            found = as_maps(rows(tmp_path / copy, "snapshot", asOf=asked))
            assert found == {"a": {b"k": b"1"}}


NAME = NamespaceRecord(
    id=16, name="b", key_codec="bytes", key_version=1, value_codec="bytes", value_version=1
)
NUMBER = RollbackRecord(tx_id=bytes(16), time=1_001, runs=(), reason="failed")
EARLY, LATE = (DropNamespaceRecord(id=17, time=time) for time in (999, 1_001))


@pytest.mark.parametrize(
    ("told", "counted"),
    [
        pytest.param([], 0, id="A"),
        pytest.param([NAME], 1, id="B"),
        pytest.param([NAME, NUMBER], 0, id="C"),
        pytest.param([NAME, EARLY, NAME, NUMBER], 2, id="D"),
        pytest.param([NAME, EARLY, NAME], 3, id="E"),
        pytest.param([NAME, LATE], 0, id="F"),
        pytest.param([NAME, EARLY, NAME, LATE], 2, id="G"),
    ],
)
def test_a_time_has_the_names_and_drops_that_the_table_counts_with_it(
    told: list[past.Told], counted: int
) -> None:
    assert past.counted_with(1_000, told) == counted


def test_two_maps_of_one_name_are_never_mixed(tmp_path: Path) -> None:
    with new_store(tmp_path / "s", partitions=PARTITIONS) as db:
        db.map("a")[b"k"] = b"1"
        db.map("b")[b"k"] = b"2"
        numbers = numbers_of(db)
        db.drop("a")
        db.rename("b", "a")
        db.backup(tmp_path / "copy", verify=False)
    assert shown(tmp_path / "copy", numbers) == {"a": {b"k": b"1"}, "b": {b"k": b"2"}}
    assert as_maps(rows(tmp_path / "copy", "snapshot")) == {"a": {b"k": b"2"}}


# ------------------------------------------------------------------ loads


def test_the_rows_of_a_load_count_from_their_numbers_on(tmp_path: Path) -> None:
    load, loaded = make_load(tmp_path / "load", load_rows(40)), load_rows(40)
    with new_store(tmp_path / "s", partitions=PARTITIONS) as db:
        db.map("users")[b"ada"] = b"x"
        before = numbers_of(db)
        db.attach(load)
        attached, time = numbers_of(db), session_of(db).store.state.time
        db.map("users")[b"bob"] = b"y"
        later = numbers_of(db)
        db.rename("cities", "towns")
        db.map("towns")[b"key00001"] = b"z"
        db.backup(tmp_path / "copy", verify=False)
        (number,) = {row["checkpoint_id"] for row in rows(tmp_path / "copy", "meta")}
    whole = {"users": {b"ada": b"x"}, "cities": loaded}
    for asked in (json.dumps(attached), text_of(time), number):
        assert as_maps(rows(tmp_path / "copy", "snapshot", asOf=asked)) == whole
    whole["users"][b"bob"] = b"y"
    assert shown(tmp_path / "copy", later) == whole
    with pytest.raises(SnapshotExpiredError):
        shown(tmp_path / "copy", before)
    newest = shown(tmp_path / "copy", {})
    assert newest == {"users": whole["users"], "towns": {**loaded, b"key00001": b"z"}}


def test_a_load_that_never_got_its_name_is_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = make_load(tmp_path / "load", load_rows(40))

    def die(*_args: object) -> None:
        raise DiskFullError("full")

    with new_store(tmp_path / "s", partitions=PARTITIONS) as db:
        db.map("users")[b"ada"] = b"x"
        before = numbers_of(db)
        for owner, name in ((Checkpointer, "run"), (Catalog, "publish")):
            with monkeypatch.context() as patch:
                patch.setattr(owner, name, die)
                patch.setattr(Catalog, "drop_hidden", lambda _self: None)
                with pytest.raises(DiskFullError):
                    db.attach(load)
            db.backup(tmp_path / name, verify=False)
            assert shown(tmp_path / name, {}) == {"users": {b"ada": b"x"}}
    # Rows in the data file that nobody sees do not make it newer.
    assert shown(tmp_path / "run", before) == {"users": {b"ada": b"x"}}


def test_a_load_whose_name_another_map_had_is_not_mixed_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = make_load(tmp_path / "load", load_rows(10))
    publish, seen = Catalog.publish, []

    with new_store(tmp_path / "s", partitions=PARTITIONS) as db:

        def later(*args: Any) -> None:
            db.map("cities")[b"other"] = b"1"
            seen.append(numbers_of(db))
            db.drop("cities")
            publish(*args)

        monkeypatch.setattr(Catalog, "publish", later)
        db.attach(load)
        db.backup(tmp_path / "copy", verify=False)
    with pytest.raises(SnapshotExpiredError, match="had one name, one after the other"):
        shown(tmp_path / "copy", seen[0])
    assert as_maps(rows(tmp_path / "copy", "snapshot")) == {"cities": load_rows(10)}


# ------------------------------------------------------------------ numbers that are no updates


def test_cuts_over_closed_gaps_and_epochs(tmp_path: Path) -> None:
    with new_store(tmp_path / "s", partitions=1) as db:
        db.map("m")[b"k"] = b"1"
        db.checkpoint()
        db.map("m")[b"k"] = b"2"
        session_of(db).store.state.counters[0].reserve(3)
        db.map("m")[b"k"] = b"3"
        db.sync()
        db.backup(tmp_path / "gap", verify=False)
        session_of(db).abandon()
    # Above a gap nothing is shown but by what has it without a cut.
    assert shown(tmp_path / "gap", {}) == {"m": {b"k": b"2"}}
    assert as_maps(rows(tmp_path / "gap", "snapshot")) == {"m": {b"k": b"3"}}
    with pytest.raises(UsageError, match="has come to number 2"):
        shown(tmp_path / "gap", {0: 6})
    with tidelog.open(tmp_path / "gap") as db:  # closes the gap, in another epoch
        db.map("m")[b"k"] = b"4"
        db.backup(tmp_path / "copy", verify=False)
    with pytest.raises(SnapshotExpiredError):
        shown(tmp_path / "gap", {0: 6})
    (low,) = {row["checkpoint_id"] for row in rows(tmp_path / "copy", "meta")}
    assert as_maps(rows(tmp_path / "copy", "snapshot", asOf=low)) == {"m": {b"k": b"1"}}
    for number, value in ((1, b"1"), (2, b"2"), (4, b"2"), (5, b"2"), (6, b"3"), (7, b"4")):
        assert shown(tmp_path / "copy", {0: number}) == {"m": {b"k": value}}


def test_updates_above_a_gap_that_a_checkpoint_has_are_no_older_cut(tmp_path: Path) -> None:
    with new_store(tmp_path / "s", partitions=1) as db:
        db.map("m")[b"k"] = b"2"
        session_of(db).store.state.counters[0].reserve(3)
        db.map("m")[b"k"] = b"3"
        db.checkpoint()
        db.backup(tmp_path / "gap", verify=False)
    with pytest.raises(SnapshotExpiredError, match="at 5, the earliest"):
        shown(tmp_path / "gap", {})


def test_a_run_is_cut_where_the_wanted_numbers_end() -> None:
    runs = (Run(0, 1, 5, 3), Run(1, 1, 2, 1), Run(0, 1, 8, 2), Run(2, 1, 1, 1))
    keys = [b"%d" % number for number in range(7)]
    record = TxRecord(bytes(16), 1, runs, 16, keys, [b"v"] * 7)
    cut = past.Past(numbers={0: 8, 1: 1}, stop=0, durable=0)
    layer = Layer()
    assert take_over(View((layer,), cast("KvTransaction", None)), cut._wanted(record)) == 4
    assert [key[8:] for key in layer.parts[0]] == [b"0", b"1", b"2", b"4"]
    assert layer.parts.keys() == {0}


def test_a_transaction_within_one_partition_is_not_split_either(tmp_path: Path) -> None:
    with new_store(tmp_path / "s", partitions=1) as db:
        db.map("m").update_many({b"a": b"1", b"b": b"1"})
        db.checkpoint()
        db.map("m").update_many({b"a": b"2", b"b": b"2"})
        db.backup(tmp_path / "copy", verify=False)
    assert shown(tmp_path / "copy", {0: 3}) == {"m": {b"a": b"1", b"b": b"1"}}
    found = shown(tmp_path / "copy", {0: 3}, consistency="partition")
    assert sorted(found["m"].values()) == [b"1", b"2"]


def test_the_outcome_of_a_transaction_does_not_tie_its_parts(tmp_path: Path) -> None:
    # It is an update of its own, of an internal map, in a partition that the id decides.
    with new_store(tmp_path / "s", partitions=PARTITIONS) as db:
        db.checkpoint()
        view = db.map("m")
        while True:
            with db.transaction(id=db.new_id()) as tx:
                tx[view][b"k"] = b"v"
            numbers = numbers_of(db)
            if sum(number > 0 for number in numbers.values()) > 1:
                break
        db.backup(tmp_path / "copy", verify=False)
    mine = partition_of(b"k", Space(0, PARTITIONS))
    cut = {p: number if p == mine else 0 for p, number in numbers.items()}
    assert shown(tmp_path / "copy", cut) == {"m": {b"k": b"v"}}
