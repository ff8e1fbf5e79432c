"""Stores with a long life, read by everything that reads stores, against a model in plain dicts."""

from __future__ import annotations

import base64
import csv
import io
import json
import os
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import tidelog
from support.aged import SHAPES, Aged, Commit, Model, Update, borrowed, grow
from support.pipelines import rows
from tidelog.engine.api.database import Database, session_of
from tidelog.engine.api.read_only import ReadOnlyDatabase
from tidelog.pipeline.jobs import audits, runner as jobs
from tidelog.pipeline.jobs.compaction import compact
from tidelog.pipeline.jobs.runner import Runner
from tidelog.testing import check_database, check_store
from tidelog.tools.main import cli

pytestmark = pytest.mark.slow
SEEDS = range(6)
HERE = Runner()


@pytest.fixture(scope="module", params=SEEDS, ids=lambda seed: f"seed-{seed}")
def aged(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Aged:
    """A store that is read only, its model, and an earlier copy."""
    base = tmp_path_factory.getbasetemp()
    common = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    place = tmp_path_factory.mktemp("aged") / "life"
    return borrowed(common / "aged-stores", place, request.param)


def run(*arguments: object, code: int = 0) -> str:
    """Run a command line; return what it printed."""
    done = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    assert done.exit_code == code, done.output
    return done.stdout


def document(*arguments: object, code: int = 0) -> Any:
    return json.loads(run(*arguments, "--json", code=code))


def documents(*arguments: object, code: int = 0) -> list[Any]:
    return [json.loads(line) for line in run(*arguments, "--jsonl", code=code).splitlines()]


def raw(shown: dict[str, str]) -> bytes:
    """Bytes as documents show them."""
    return shown["s"].encode() if "s" in shown else base64.b64decode(shown["b64"])


def content(db: Database | ReadOnlyDatabase) -> dict[str, dict[Any, Any]]:
    return {name: dict(db.map(name).items()) for name in db.maps()}


def decoded(model: Model) -> dict[str, dict[Any, Any]]:
    return {name: table.decoded() for name, table in model.maps.items()}


def names_of(model: Model) -> dict[int, str]:
    """The maps that are there, by id."""
    return {table.id: name for name, table in model.maps.items()}


# ---------------------------------------------------------------------- the history itself


def test_the_histories_have_some_of_everything(aged: Aged) -> None:
    model = aged.model
    assert model.segments_made >= 25
    assert len(model.commits) > 500
    assert len(model.tables) > 15
    assert model.closed
    assert model.loaded
    assert min(model.done.values()) > 0
    assert len({table.name for table in model.tables.values()}) < len(model.tables)
    assert {"committed", "rolled_back"} <= set(model.outcomes.values())
    assert max(len(update.value or b"") for update in model.updates()) > 30_000
    kept = {int(file.stem) for file in (aged.path / "wal").glob("*.log")}
    assert min(kept) > 10
    assert len(kept) > 2


# ---------------------------------------------------------------------- handles


def test_both_checks_find_nothing_wrong(aged: Aged, tmp_path: Path) -> None:
    for path in (aged.path, aged.copy):
        assert check_store(path) == []
    shutil.copytree(aged.path, tmp_path / "copy")
    with tidelog.open(tmp_path / "copy") as db:
        assert check_database(db) == []


@pytest.mark.parametrize("read_only", [True, False])
def test_a_handle_shows_what_the_model_holds(aged: Aged, tmp_path: Path, read_only: bool) -> None:
    path = aged.path
    if not read_only:
        path = tmp_path / "copy"
        shutil.copytree(aged.path, path)
    with tidelog.open(path, read_only=read_only) as db:
        assert db.maps() == sorted(aged.model.maps)
        for name, table in aged.model.maps.items():
            mapping, pairs = db.map(name), table.decoded()
            assert dict(mapping.items()) == pairs
            assert len(mapping) == len(pairs)
            assert list(mapping.keys()) == list(pairs)
            assert list(mapping.range(reverse=True)) == list(pairs.items())[::-1]
            assert mapping.get_many(list(pairs)[::2]) == dict(list(pairs.items())[::2])
            assert all(mapping[key] == pairs[key] for key in list(pairs)[::7])
        if isinstance(db, Database):
            with db.snapshot() as snapshot:
                for name, table in aged.model.maps.items():
                    assert dict(snapshot[db.map(name)].items()) == table.decoded()


def test_a_store_tells_what_became_of_every_transaction(aged: Aged, tmp_path: Path) -> None:
    shutil.copytree(aged.path, tmp_path / "copy")
    given = {commit.tx_id for commit in aged.model.commits if commit.given}
    with tidelog.open(tmp_path / "copy") as db:
        for tx_id, outcome in aged.model.outcomes.items():
            # Those that were not given are told by the log, as long as it is there.
            allowed = {outcome} if tx_id in given else {outcome, "too_old"}
            assert db.outcome(tx_id) in allowed
        newest = [commit.tx_id for commit in aged.model.commits[-20:] if commit.tx_id]
        assert newest
        assert {db.outcome(tx_id) for tx_id in newest} == {"committed"}


def test_a_store_goes_on(aged: Aged, tmp_path: Path) -> None:
    shutil.copytree(aged.path, tmp_path / "copy")
    with tidelog.open(tmp_path / "copy") as db:
        numbers = db.map("new in old age")
        numbers.update_many((b"%d" % n, b"x" * n) for n in range(300))
        db.checkpoint()
        del numbers[b"7"]
        session_of(db).abandon()
    with tidelog.open(tmp_path / "copy") as db:
        assert len(db.map("new in old age")) == 299
        db.drop("new in old age")
        assert content(db) == decoded(aged.model)
    assert check_store(tmp_path / "copy") == []


# ---------------------------------------------------------------------- tidelog kv


def test_kv_get_scan_and_count_show_the_model(aged: Aged) -> None:
    counts = document("kv", "count", aged.path)["counts"]
    assert {row["map"]: row["keys"] for row in counts} == {
        name: len(table.pairs) for name, table in aged.model.maps.items()
    }
    for name, table in aged.model.maps.items():
        found = documents("kv", "scan", aged.path, name)
        shown = [(raw(pair["key"]), raw(pair["value"])) for pair in found]
        assert shown == list(table.content().items())
        back = documents("kv", "scan", aged.path, name, "--reverse", "--keys-only")
        assert [raw(pair["key"]) for pair in back] == [key for key, _ in shown[::-1]]
        for key, value in shown[::13]:
            pair = document("kv", "get", aged.path, name, f"hex:{key.hex()}")
            assert raw(pair["value"]) == value
        absent = {
            "bytes": b"absent",
            "words": b"absent",
            "numbers": (1 << 63).to_bytes(8, "big"),
            "pairs": SHAPES["pairs"][0].encode(("absent",)),
        }[table.shape]
        run(
            "kv",
            "get",
            aged.path,
            name,
            f"hex:{absent.hex()}",
            code=0 if absent in table.pairs else 4,
        )


def test_kv_export_and_import_carry_every_byte(aged: Aged, tmp_path: Path) -> None:
    for name in aged.model.maps:
        file = tmp_path / f"{name}.jsonl"
        run("kv", "export", aged.path, name, "-o", file)
        run("kv", "import", tmp_path / "other", file, "--map", name, "--create")
    with tidelog.open(tmp_path / "other") as db:
        assert content(db) == decoded(aged.model)
    for name, table in aged.model.maps.items():
        lines = csv.reader(io.StringIO(run("kv", "export", aged.path, name, "--format", "csv")))
        assert len(list(lines)) == len(table.pairs) + 1


# ---------------------------------------------------------------------- tidelog wal


def kept_commits(aged: Aged, shown: int) -> list[Commit]:
    """The newest transactions: so many as the log still has."""
    assert 20 < shown < len(aged.model.commits)
    return aged.model.commits[-shown:]


def test_wal_dump_shows_the_transactions_of_the_model(aged: Aged) -> None:
    records = documents("wal", "dump", aged.path)
    found = [record for record in records if record["type"] == "tx"]
    for record, commit in zip(found, kept_commits(aged, len(found)), strict=True):
        assert record.get("tag") == commit.tag
        assert record.get("given_id", False) == commit.given
        assert commit.tx_id in (None, bytes.fromhex(record["tx"]))
        assert sorted(updates_of(record)) == sorted(commit.updates)
    closed = [
        (run["partition"], run["first"])
        for record in records
        if record["type"] == "rollback"
        for run in record["runs"]
    ]
    assert closed == aged.model.closed[len(aged.model.closed) - len(closed) :]
    made = [r["namespace"] for r in records if r["type"] == "namespace"]
    assert set(made) <= set(aged.model.tables)
    dropped = {r["namespace"] for r in records if r["type"] == "drop_namespace"}
    assert dropped.isdisjoint(names_of(aged.model))
    assert records[-1]["type"] == "end"
    assert records[-1]["refused"] is False


def updates_of(record: dict[str, Any]) -> Iterator[Update]:
    """The updates of a document of a transaction."""
    for update in record["updates"]:
        yield Update(
            update["partition"],
            update["counter"],
            update["namespace"],
            update["map"],
            raw(update["key"]),
            raw(update["value"]) if update["op"] == "put" else None,
        )


def test_wal_dump_finds_the_updates_of_a_key(aged: Aged) -> None:
    shown = [r for r in documents("wal", "dump", aged.path) if r["type"] == "tx"]
    updates = [u for commit in kept_commits(aged, len(shown)) for u in commit.updates]
    live = names_of(aged.model)
    for update in [u for u in updates if u.map in live][::31]:
        key = f"hex:{update.key.hex()}"
        found = documents("wal", "dump", aged.path, "--map", update.map, "--key", key)
        numbers = [u["counter"] for r in found if r["type"] == "tx" for u in r["updates"]]
        assert numbers == [u.counter for u in updates if (u.map, u.key) == (update.map, update.key)]


def test_wal_ls_and_stat_count_what_the_model_holds(aged: Aged) -> None:
    kept = sorted(int(file.stem) for file in (aged.path / "wal").glob("*.log"))
    segments = document("wal", "ls", aged.path)["segments"]
    assert [row["segment"] for row in segments] == kept
    assert [row["state"] for row in segments] == ["sealed"] * (len(kept) - 1) + ["last"]
    borders = [row["first_position"] for row in segments[1:]]
    assert [row["end_position"] for row in segments[:-1]] == borders
    stat = document("wal", "stat", aged.path)
    commits = kept_commits(aged, stat["transactions"])
    updates = [update for commit in commits for update in commit.updates]
    assert stat["updates"] == len(updates)
    assert stat["largest_transaction"] == max(len(commit.updates) for commit in commits)
    puts = Counter(update.map for update in updates if update.value is not None)
    deletes = Counter(update.map for update in updates if update.value is None)
    sizes = {
        number: sum(len(u.key) + len(u.value or b"") for u in updates if u.map == number)
        for number in {u.map for u in updates}
    }
    assert {row["namespace"]: (row["puts"], row["deletes"]) for row in stat["maps"]} == {
        number: (puts[number], deletes[number]) for number in sizes
    }
    assert {r["namespace"]: r["key_bytes"] + r["value_bytes"] for r in stat["maps"]} == sizes
    for row in stat["partitions"]:
        numbers = [u.counter for u in updates if u.partition == row["partition"]]
        assert (row["first"], row["last"]) == (min(numbers), max(numbers))


def test_wal_verify_calls_a_healthy_log_whole(aged: Aged) -> None:
    """Was: every log that had rotated was refused."""
    for path in (aged.path, aged.copy):
        verdict = document("wal", "verify", path)
        assert (verdict["whole"], verdict["problems"]) == (True, [])
        assert 0 < verdict["transactions"] < len(aged.model.commits)
        assert verdict["segments"] == len(list((path / "wal").glob("*.log")))


# ---------------------------------------------------------------------- tidelog db


def test_db_info_and_verify_tell_the_facts_of_the_model(aged: Aged) -> None:
    info = document("db", "info", aged.path)
    assert {row["namespace"]: row["map"] for row in info["maps"]} == names_of(aged.model)
    assert info["counters"]["updates"] == sum(aged.model.counters)
    assert info["counters"]["gaps"] == 0
    assert info["partitions"] == aged.model.partitions
    outcomes = sum(commit.given for commit in aged.model.commits)
    keys = sum(len(table.pairs) for table in aged.model.maps.values()) + outcomes
    assert info["data"]["keys"] == keys
    for path in (aged.path, aged.copy):
        verdict = document("db", "verify", path)
        assert (verdict["whole"], verdict["problems"]) == (True, [])
    assert document("db", "verify", aged.path)["keys"] == keys
    assert document("db", "check-readers", aged.path)["readers"] == []


@pytest.mark.parametrize("command", ["backup", "compact"])
def test_a_copy_is_the_store(aged: Aged, tmp_path: Path, command: str) -> None:
    out = tmp_path / "copy"
    run("db", command, aged.path, *(["--out"] if command == "compact" else []), out)
    assert audits.verify([str(aged.path), str(out)], HERE) == []
    with tidelog.open(out) as db:
        assert content(db) == decoded(aged.model)
        assert check_database(db) == []


# ---------------------------------------------------------------------- views


def test_the_snapshot_view_shows_the_model(aged: Aged) -> None:
    expected = [
        (name, key, held.value, held.partition, held.counter)
        for name, table in aged.model.maps.items()
        for key, held in table.pairs.items()
    ]
    columns = ("namespace", "key", "value", "partition", "counter")
    found = rows(aged.path, "snapshot")
    assert sorted(tuple(row[c] for c in columns) for row in found) == sorted(expected)
    for name, table in aged.model.maps.items():
        alone = rows(aged.path, "snapshot", namespace=name)
        assert {row["key"]: row["value"] for row in alone} == table.content()


def test_the_meta_view_shows_the_counters_of_the_model(aged: Aged) -> None:
    found = {row["partition"]: row for row in rows(aged.path, "meta")}
    assert [found[p]["lwm"] for p in sorted(found)] == aged.model.counters
    assert [found[p]["hwm"] for p in sorted(found)] == aged.model.counters
    assert all(row["gaps"] == [] for row in found.values())


def test_the_wal_view_has_a_row_for_each_transaction(aged: Aged) -> None:
    found = rows(aged.path, "wal")
    ids = {row["tx_id"] for row in found if row["record_type"] == "TX"}
    commits = kept_commits(aged, len(ids))
    assert {commit.tx_id for commit in commits if commit.tx_id} <= ids
    count = sum(row["count"] for row in found if row["record_type"] == "TX")
    assert count == sum(len(commit.updates) + commit.given for commit in commits)
    assert all(row["crc_ok"] for row in found)


def numbers_of(path: Path) -> dict[str, int]:
    """The update numbers that a store has come to, as an offset of the views."""
    return {str(row["partition"]): row["lwm"] for row in rows(path, "meta")}


def since_the_copy(aged: Aged) -> list[Update]:
    """What the log has on top of the earlier copy."""
    borders = aged.model_of_copy.counters
    return [u for u in aged.model.updates() if u.counter > borders[u.partition]]


def shown(found: Iterable[dict[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row[name] for name in names) for row in found)


def test_the_changes_since_a_copy_are_those_of_the_model(aged: Aged) -> None:
    found = rows(aged.path, "changes", startingCounters=json.dumps(numbers_of(aged.copy)))
    expected = since_the_copy(aged)
    assert shown(found, "partition", "counter", "key", "value", "op") == sorted(
        (u.partition, u.counter, u.key, u.value, "delete" if u.value is None else "put")
        for u in expected
    )
    sizes = {
        (u.partition, u.counter): len(commit.updates)
        for commit in aged.model.commits
        for u in commit.updates
    }
    ids: defaultdict[bytes, set[int]] = defaultdict(set)
    for row in found:
        ids[row["tx_id"]].add(row["tx_seq"])
        assert row["tx_size"] >= sizes[row["partition"], row["counter"]]
    known = {commit.tx_id for commit in aged.model.commits if commit.tx_id}
    assert known & ids.keys()


def test_the_kept_changes_are_the_newest_of_each_partition(aged: Aged) -> None:
    """From where the store says that its log begins, whatever was attached meanwhile."""
    earliest = {row["partition"]: row["earliest_counter"] for row in rows(aged.path, "meta")}
    found = rows(aged.path, "changes", failOnDataLoss="false")
    expected = [u for u in aged.model.updates() if u.counter > earliest[u.partition]]
    assert len(expected) >= len(since_the_copy(aged))
    assert shown(found, "partition", "counter", "key", "value") == sorted(
        (u.partition, u.counter, u.key, u.value) for u in expected
    )


def test_a_change_has_the_name_of_its_map_at_that_time(aged: Aged) -> None:
    """Was: the name that the map had when the read was planned, or the id where it was dropped."""
    earliest = {row["partition"]: row["earliest_counter"] for row in rows(aged.path, "meta")}
    kept = [u for u in aged.model.updates() if u.counter > earliest[u.partition]]
    found = rows(aged.path, "changes", failOnDataLoss="false")
    columns = ("partition", "counter", "namespace", "map_id")
    assert shown(found, *columns) == sorted((u.partition, u.counter, u.name, u.map) for u in kept)
    assert any(u.name != aged.model.tables[u.map].name for u in kept) or not renamed(kept)
    for name in sorted({u.name for u in kept}):
        alone = rows(aged.path, "changes", failOnDataLoss="false", namespace=name)
        expected = [(u.partition, u.counter, u.map) for u in kept if u.name == name]
        assert shown(alone, "partition", "counter", "map_id") == sorted(expected)


def renamed(updates: Iterable[Update]) -> bool:
    """Whether a map had several names while these were made."""
    names: defaultdict[int, set[str]] = defaultdict(set)
    for update in updates:
        names[update.map].add(update.name)
    return any(len(found) > 1 for found in names.values())


def test_a_row_of_the_snapshot_tells_which_map_of_that_name_it_is_of(aged: Aged) -> None:
    found = {(row["namespace"], row["map_id"]) for row in rows(aged.path, "snapshot")}
    tables = aged.model.maps.items()
    assert found == {(name, table.id) for name, table in tables if table.pairs}


# ---------------------------------------------------------------------- jobs


def test_the_history_of_a_key_is_that_of_the_model(aged: Aged) -> None:
    earliest = {row["partition"]: row["earliest_counter"] for row in rows(aged.path, "meta")}
    for table in aged.model.maps.values():
        for key in sorted(table.pairs)[::9]:
            found = jobs.history(str(aged.path), table.name, key, HERE)
            kept = [
                update
                for update in aged.model.updates()
                if (update.map, update.key) == (table.id, key)
                and update.counter > earliest[update.partition]
            ]
            told = [(row["counter"], row["value"]) for row in found]
            assert told == sorted(told, key=lambda version: version[0])
            assert {(u.counter, u.value) for u in kept if u.name == table.name} <= {*told}
            here = {(u.counter, u.value) for u in aged.model.updates() if u.key == key}
            assert {*told} <= here


def test_the_copy_and_the_log_since_give_the_store(aged: Aged) -> None:
    assert audits.replay_check(str(aged.copy), str(aged.path), HERE) == []
    run("spark", "replay-check", aged.copy, aged.path)


def test_verify_names_the_keys_in_which_the_copy_differs(aged: Aged) -> None:
    assert audits.verify([str(aged.path), str(aged.path)], HERE) == []
    found = audits.verify([str(aged.path), str(aged.copy)], HERE)
    both = names_of(aged.model).keys() & names_of(aged.model_of_copy).keys()
    expected = set()
    for number in both:
        here, there = aged.model.tables[number].pairs, aged.model_of_copy.tables[number].pairs
        expected |= {
            (number, key) for key in here.keys() | there.keys() if here.get(key) != there.get(key)
        }
    live = {name: number for number, name in names_of(aged.model).items()}
    told = {(live.get(row["namespace"]), row["key"]) for row in found}
    assert expected <= told


def test_an_archive_that_begins_at_the_copy_shows_the_model(aged: Aged, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    compact(str(aged.copy), str(archive), HERE)
    assert as_maps(rows(archive, "snapshot")) == kept_maps(aged.model_of_copy)
    compact(str(aged.path), str(archive), HERE)
    assert as_maps(rows(archive, "snapshot")) == kept_maps(aged.model)
    start = json.dumps(numbers_of(aged.copy))
    found = rows(archive, "changes", startingCounters=start)
    columns = ("partition", "counter", "namespace", "map_id", "key", "op", "value", "tx_id",
               "tx_seq", "tx_size")  # fmt: skip
    assert shown(found, *columns) == shown(
        rows(aged.path, "changes", startingCounters=start), *columns
    )


def as_maps(found: Iterable[dict[str, Any]]) -> dict[str, dict[bytes, bytes]]:
    maps: defaultdict[str, dict[bytes, bytes]] = defaultdict(dict)
    for row in found:
        maps[row["namespace"]][row["key"]] = row["value"]
    return maps


def kept_maps(model: Model) -> dict[str, dict[bytes, bytes]]:
    """The maps that have keys."""
    return {name: pairs for name, pairs in model.content().items() if pairs}


def test_wal_stats_count_the_transactions_of_the_model(aged: Aged) -> None:
    found = documents("spark", "wal-stats", aged.path)
    count = sum(
        row["records"] for row in found if row["type"] == "records" and row["record_type"] == "TX"
    )
    commits = kept_commits(aged, count)
    for kind, present in (("puts", True), ("deletes", False)):
        counted = sum(row[kind] for row in found if row["type"] == "maps")
        assert counted == sum(
            (update.value is not None) == present for commit in commits for update in commit.updates
        )


# ---------------------------------------------------------------------- more of them


@pytest.mark.nightly
def test_many_more_stores_show_their_models(tmp_path: Path) -> None:
    for seed in range(100, 300):
        aged = grow(tmp_path / str(seed), seed)
        assert check_store(aged.path) == []
        with tidelog.open(aged.path, read_only=True) as db:
            assert content(db) == decoded(aged.model), seed
        test_the_snapshot_view_shows_the_model(aged)
        test_the_meta_view_shows_the_counters_of_the_model(aged)
        test_wal_dump_shows_the_transactions_of_the_model(aged)
        test_the_kept_changes_are_the_newest_of_each_partition(aged)
        test_the_copy_and_the_log_since_give_the_store(aged)
        shutil.rmtree(tmp_path / str(seed))
