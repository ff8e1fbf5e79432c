"""Counts over logs, against a slow twin that reads every record."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from support.logs import LogBuilder, tx_id
from support.pipelines import Row, closed_store, flip, new_store, rows
from tidelog.affinity.errors import CorruptLogError, NotFoundError, UsageError
from tidelog.pipeline.jobs.runner import Runner
from tidelog.pipeline.jobs.wal_stats import wal_stats
from tidelog.pipeline.log.logs import Log
from tidelog.wal.format import Frame
from tidelog.wal.reader import Scan
from tidelog.wal.records import (
    NamespaceRecord,
    RollbackRecord,
    Run,
    StateRecord,
    TxRecord,
    decode_record,
    split_records,
)

HERE = Runner()
Tables = dict[str, list[Row]]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed store, several segments, with a renamed map and outcomes of given ids."""
    path = closed_store(tmp_path_factory.mktemp("stats") / "store")
    with new_store(path, segment_bytes=1) as db:
        for number in range(3):
            with db.transaction(id=b"0123456789abcde%d" % number) as tx:
                tx[db.map("stock")][b"large"] = bytes(500_000)
                tx[db.map("orders")].discard(b"%d" % number)
        db.rename("stock", "goods")
        db.map("goods").update_many({b"%d" % n: b"new" for n in range(90)})
    assert len(list((path / "wal").glob("*.log"))) > 1
    return path


def written(log: LogBuilder, folder: Path) -> str:
    """Put a log, which ends where it is durable, into a folder."""
    log.sync()
    log.idle()
    folder.mkdir()
    for name, data in log.directory.files.items():
        (folder / name).write_bytes(data)
    return str(folder)


def rollback(*runs: Run) -> RollbackRecord:
    return RollbackRecord(tx_id=tx_id(1), time=5, reason="conflict", runs=runs)


def of(rows: list[Row], *columns: str) -> list[Any]:
    """Some columns of rows, as tuples."""
    return [tuple(row[name] for name in columns) for row in rows]


# ------------------------------------------------------------------------------------- the twin


def records_of(path: str) -> Iterator[tuple[Frame, int, Any]]:
    """Yield every durable record: its frame, its size, what it decodes to."""
    source = Log(path).source
    end = Log(path).durable_end()
    for frame in Scan(source.directory, durable=source.durable, log_ids=source.log_ids):
        if frame.end <= end:
            for kind, flags, body in split_records(frame.payload):
                yield frame, 6 + len(body), decode_record(kind, flags, body)


def stretches(numbers: set[int]) -> list[tuple[int, int]]:
    """The first and last numbers of what stands side by side."""
    found = groupby(enumerate(sorted(numbers)), key=lambda item: item[1] - item[0])
    runs = [[number for _, number in group] for _, group in found]
    return [(run[0], run[-1]) for run in runs]


def twin(path: str) -> dict[str, list[Any]]:
    """What `wal_stats` tells of one log, as tuples, from all records; of transactions all sizes."""
    names: dict[int, str] = {}
    types: dict[tuple[int, str], list[int]] = {}
    maps: dict[tuple[int, int], list[int]] = {}
    sizes: list[tuple[int, int]] = []
    seen: dict[int, set[int]] = {}
    closed: dict[int, set[int]] = {}
    keys: Counter[tuple[int, bytes]] = Counter()
    for frame, size, record in records_of(path):
        name = type(record).__name__.removesuffix("Record").upper()
        found = types.setdefault((frame.segment, name), [0, 0])
        found[0] += 1
        found[1] += size
        if isinstance(record, StateRecord):
            names |= {one.id: one.name for one in record.namespaces}
        elif isinstance(record, NamespaceRecord):
            names[record.id] = record.name
        elif isinstance(record, RollbackRecord):
            for run in record.runs:
                for number in range(run.first, run.first + run.count):
                    closed.setdefault(run.partition, set()).add(number)
                    seen.setdefault(run.partition, set()).add(number)
        elif isinstance(record, TxRecord):
            updates = 0
            for partition, _, counter, namespace, key, value in record.updates():
                seen.setdefault(partition, set()).add(counter)
                if namespace >= 16:
                    updates += 1
                    keys[namespace, key] += 1
                    tally = maps.setdefault((frame.segment, namespace), [0, 0, 0, 0])
                    tally[value is None] += 1
                    tally[2] += len(key)
                    tally[3] += len(value or b"")
            if updates:
                sizes.append((updates, size))
    ranges = [(p, first, last, "rollback") for p in closed for first, last in stretches(closed[p])]
    for p, numbers in seen.items():
        gaps = set(range(min(numbers), max(numbers))) - numbers
        ranges += [(p, first, last, "gap") for first, last in stretches(gaps)]
    hot = sorted(keys.items(), key=lambda item: (-item[1], item[0]))
    return {
        "records": [(s, name, *types[s, name]) for s, name in types],
        "maps": [(s, names.get(n, str(n)), *maps[s, n]) for s, n in sorted(maps)],
        "transactions": [sorted(measure) for measure in zip(*sizes, strict=True)],
        "ranges": sorted(ranges),
        "hot_keys": [(names.get(n, str(n)), key, times) for (n, key), times in hot],
    }


def expect_as_the_twin(path: str, tables: Tables) -> None:
    slow = twin(path)
    found = of(tables["records"], "segment", "record_type", "records", "bytes")
    assert sorted(found) == sorted(slow["records"])
    columns = ("segment", "namespace", "puts", "deletes", "key_bytes", "value_bytes")
    assert of(tables["maps"], *columns) == slow["maps"]
    for row, sizes in zip(tables["transactions"], slow["transactions"], strict=True):
        assert (row["transactions"], row["total"], row["largest"]) == (
            len(sizes),
            sum(sizes),
            max(sizes),
        )
        for name, rank in (("median", -(-len(sizes) // 2)), ("p99", -(-len(sizes) * 99 // 100))):
            assert sizes[rank - 1] <= row[name] < 2 * sizes[rank - 1]
        for step, before in zip(
            row["histogram"], [{"at_most": -1}, *row["histogram"]], strict=False
        ):
            within = [size for size in sizes if before["at_most"] < size <= step["at_most"]]
            assert len(within) == step["transactions"]
    assert of(tables["ranges"], "partition", "first", "last", "kind") == slow["ranges"]
    *hot, others = tables["hot_keys"]
    assert of(hot, "namespace", "key", "writes") == slow["hot_keys"][: len(hot)]
    assert {row["error"] for row in hot} == {0}
    assert (others["key"], others["error"]) == (None, slow["hot_keys"][len(hot)][2])


# ------------------------------------------------------------------------------------- whole logs


@pytest.mark.parametrize("tasks", [1, 2, 40])
def test_counts_are_those_of_a_slow_twin(store: Path, tasks: int) -> None:
    tables = wal_stats([str(store)], HERE, tasks=tasks)
    expect_as_the_twin(str(store), tables)
    assert {row["node"] for rows in tables.values() for row in rows} == {str(store)}
    assert {row["namespace"] for row in tables["maps"]} == {"goods", "orders"}
    assert len(tables["hot_keys"]) == 10 + 1


def test_names_and_records_are_those_of_the_views(store: Path) -> None:
    tables = wal_stats([str(store)], HERE)
    found = rows(store, "changes")
    last = {row["map_id"]: row["namespace"] for row in found}
    changes = Counter(last[row["map_id"]] for row in found)
    assert changes == sum(
        (Counter({r["namespace"]: r["puts"] + r["deletes"]}) for r in tables["maps"]), Counter()
    )
    # One record may have several runs, which are rows of the view; its payload is in the first.
    records = Counter(
        (row["segment"], row["record_type"])
        for row in rows(store, "wal")
        if row["payload"] is not None
    )
    assert records == {(r["segment"], r["record_type"]): r["records"] for r in tables["records"]}


def test_several_logs_are_told_one_after_the_other(store: Path, tmp_path: Path) -> None:
    other = closed_store(tmp_path / "other")
    paths = [str(other), str(store), str(store / "wal")]
    together = wal_stats(paths, HERE, tasks=3)
    apart = [wal_stats([path], HERE) for path in paths]
    assert together == {name: [row for one in apart for row in one[name]] for name in together}
    assert [row["total"] for row in together["transactions"][2:4]] == [
        row["total"] for row in together["transactions"][4:]
    ]


def test_a_store_beside_its_writer_is_counted_up_to_where_it_is_durable(tmp_path: Path) -> None:
    with new_store(tmp_path / "store", partitions=2) as db:
        db.map("m")[b"a"] = b"1"
        db.map("m")[b"b"] = b"2"
        (row, _) = wal_stats([str(tmp_path / "store")], HERE)["transactions"]
        assert row["transactions"] >= 1
    (row, _) = wal_stats([str(tmp_path / "store")], HERE)["transactions"]
    assert row["transactions"] == 2


def test_a_log_without_transactions_has_records_only(tmp_path: Path) -> None:
    with new_store(tmp_path / "store"):
        pass
    tables = wal_stats([str(tmp_path / "store")], HERE)
    assert {name for name, rows in tables.items() if rows} == {"records"}


# ------------------------------------------------------------------------------------- numbers


@pytest.mark.parametrize("tasks", [1, 3, 100])
def test_closed_and_missing_numbers_are_ranges(tmp_path: Path, tasks: int) -> None:
    log = LogBuilder(partitions=3)
    log.counters = [6, 0, 0]
    log.tx(0, count=3)  # 7 to 9; what lies below was never seen
    log.add(rollback(Run(0, 1, 10, 2), Run(1, 1, 1, 1)))
    log.add(rollback(Run(0, 1, 12, 1)))  # goes on from the last one
    log.counters = [14, 1, 0]
    log.tx(0)  # 15: 13 and 14 are nowhere
    log.sync()
    log.rotate()
    log.counters[0] = 20
    log.tx(0)  # 21
    log.add(rollback(Run(0, 1, 16, 2)))  # out of order
    log.tx(1, count=4)
    path = written(log, tmp_path / "wal")
    found = wal_stats([path], HERE, tasks=tasks)["ranges"]
    columns = ("partition", "kind", "first", "last", "count")
    assert of(found, *columns) == [
        (0, "rollback", 10, 12, 3),
        (0, "gap", 13, 14, 2),
        (0, "rollback", 16, 17, 2),
        (0, "gap", 18, 20, 3),
        (1, "rollback", 1, 1, 1),
    ]
    assert sorted(twin(path)["ranges"]) == of(found, "partition", "first", "last", "kind")


def test_updates_of_internal_maps_use_up_numbers_and_nothing_else(tmp_path: Path) -> None:
    log = LogBuilder()
    mixed = log.tx_record(0, count=3)._replace(namespaces=[1, 16, 17])
    log.add(mixed)
    log.add(log.tx_record(0, count=2)._replace(namespaces=2))
    log.tx(0)
    tables = wal_stats([written(log, tmp_path / "wal")], HERE)
    assert tables["ranges"] == []
    assert of(tables["maps"], "namespace", "puts") == [("16", 2), ("17", 1)]
    (updates, _) = tables["transactions"]
    assert (updates["transactions"], updates["total"]) == (2, 3)
    assert of(tables["hot_keys"], "namespace", "key", "writes", "error") == [
        ("16", b"key-2", 1, 0),
        ("16", b"key-6", 1, 0),
        ("17", b"key-3", 1, 0),
    ]


# ------------------------------------------------------------------------------------- hot keys


@pytest.mark.parametrize("tasks", [1, 2, 30])
def test_hot_keys_among_too_many_keys_have_an_error(tmp_path: Path, tasks: int) -> None:
    path = str(tmp_path / "store")
    true: Counter[bytes] = Counter()
    with new_store(Path(path), partitions=4) as db:
        for number in range(80):
            keys = [b"%d" % (number * 7 + n) for n in range(7)]
            keys += [b"hot", b"warm"] if number % 2 else [b"hot"]
            db.map("m").update(dict.fromkeys(keys, b"x"))
            true.update(keys)
    found = wal_stats([path], HERE, top=3, tasks=tasks, keys_counted=20)["hot_keys"]
    error = found[0]["error"]
    assert 0 < error <= true.total() / 21
    assert of(found[:2], "namespace", "key") == [("m", b"hot"), ("m", b"warm")]
    *listed, others = found
    for row in listed:
        assert row["writes"] <= true[row["key"]] <= row["writes"] + row["error"]
    assert others["key"] is None
    assert max(true[key] for key in true if (key,) not in of(listed, "key")) <= others["error"]
    exact = wal_stats([path], HERE, top=2, tasks=tasks, keys_counted=300)["hot_keys"]
    assert of(exact, "key", "writes", "error") == [(b"hot", 80, 0), (b"warm", 40, 0), (None, 0, 1)]


# ------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize("tasks", [1, 2, 40])
def test_damage_names_log_segment_and_offset(store: Path, tmp_path: Path, tasks: int) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(store, copy)
    records = rows(copy, "wal")
    hit = records[len(records) // 2]
    flip(copy / "wal" / f"{hit['segment']:016d}.log", hit["offset"] + 22)
    with pytest.raises(CorruptLogError) as caught:
        wal_stats([str(store), str(copy)], HERE, tasks=tasks)
    assert (caught.value.segment, caught.value.offset) == (hit["segment"], hit["offset"])
    assert str(copy) in str(caught.value)


def test_a_record_that_does_not_decode_is_damage(tmp_path: Path) -> None:
    log = LogBuilder()
    log.tx()
    bad = log.add(payload=b"\0\0\0\1\4\0\xc0")  # a rollback that is nothing
    log.sync()
    log.rotate()
    path = written(log, tmp_path / "wal")
    with pytest.raises(CorruptLogError, match=f"segment 1, offset {bad.offset}"):
        wal_stats([path], HERE)


def test_what_is_no_log_or_named_twice_is_refused(store: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="named twice"):
        wal_stats([str(store), str(store)], HERE)
    with pytest.raises(NotFoundError):
        wal_stats([str(tmp_path)], HERE)
