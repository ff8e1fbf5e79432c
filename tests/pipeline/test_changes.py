"""The columns of changes against a twin that goes row by row."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tidelog.checkpoints.replay import FIRST_NAMESPACE
from tidelog.pipeline.log import columns
from tidelog.pipeline.log.changes import PUT, Wanted, changes
from tidelog.pipeline.log.columns import ChangeFormat
from tidelog.wal.format import Frame
from tidelog.wal.records import IdleRecord, Record, RollbackRecord, Run, TxRecord, encode_record

PARTITIONS = 3
NAMES = {16: "cities", 17: "people"}


def random_records(rng: random.Random) -> list[Record]:
    """Transactions and closed numbers, each partition's numbers without a gap."""
    found: list[Record] = []
    reached = [0] * PARTITIONS
    for number in range(rng.randint(1, 30)):
        runs = []
        for _ in range(rng.randint(1, 4)):
            partition, count = rng.randrange(PARTITIONS), rng.choice((1, 1, 1, 2, 5))
            runs.append(Run(partition, 1, reached[partition] + 1, count))
            reached[partition] += count
        count = sum(run.count for run in runs)
        tx_id = number.to_bytes(16, "big")
        kind = rng.random()
        if kind < 0.2:
            found.append(RollbackRecord(tx_id=tx_id, time=number, reason="gap", runs=tuple(runs)))
            continue
        maps: int | list[int] = rng.choice((1, 16, 17, 18))
        if kind < 0.6:
            maps = [rng.choice((2, 16, 17)) for _ in range(count)]
        keys = [rng.randbytes(2) for _ in range(count)]
        values = [rng.choice((None, b"", b"value")) for _ in range(count)]
        found.append(TxRecord(tx_id, number, tuple(runs), maps, keys, values))
        found.append(IdleRecord())
    return found


def twin(records: list[Record], wanted: Wanted) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for record in records:
        if isinstance(record, TxRecord):
            shown = [update for update in record.updates() if update[3] >= FIRST_NAMESPACE]
            for place, (partition, _, number, of, key, value) in enumerate(shown):
                op = "delete" if value is None else PUT[wanted.form]
                name = NAMES.get(of)
                rows.append((partition, number, name, of, key, op, value, record.tx_id, place,
                             len(shown), record.time))  # fmt: skip
        elif isinstance(record, RollbackRecord) and wanted.rollbacks:
            for run in record.runs:
                for number in range(run.first, run.first + run.count):
                    rows.append((run.partition, number, None, None, None, "rollback", None,
                                 record.tx_id, None, None, record.time))  # fmt: skip
    return [
        row
        for row in rows
        if wanted.partitions is None or row[0] in wanted.partitions
        if wanted.low[row[0]][1] < row[1] <= wanted.high[row[0]][1]
        if wanted.namespace is None or row[2] == wanted.namespace
    ]


@pytest.mark.parametrize("seed", range(60))
def test_columns_of_changes_are_what_the_updates_are_one_by_one(seed: int) -> None:
    rng = random.Random(seed)
    found = random_records(rng)
    payloads = [encode_record(record) for record in found]
    frames = [
        Frame(position=at, synced=0, payload=b"".join(payloads[at : at + 3]), segment=1, offset=at)
        for at in range(0, len(payloads), 3)
    ]
    form: ChangeFormat = rng.choice(("tidelog", "cdf"))
    wanted = Wanted(
        low={p: (1, rng.choice((0, 0, 3))) for p in range(PARTITIONS)},
        high={p: (1, rng.choice((2, 8, 1000))) for p in range(PARTITIONS)},
        partitions=rng.choice((None, frozenset((0, 2)))),
        namespace=rng.choice((None, None, "cities", "people")),
        rollbacks=rng.random() < 0.5,
        form=form,
    )
    names = [name for name, _ in columns.CHANGE_FIELDS[form]]
    chosen = rng.choice((None, names, sorted(rng.sample(names, 3), key=names.index)))
    batches = list(
        changes(frames, NAMES, wanted, print, columns=chosen, batch_rows=rng.choice((1, 9, 99)))
    )
    places = range(len(names)) if chosen is None else [names.index(name) for name in chosen]
    expected = [tuple(row[place] for place in places) for row in twin(found, wanted)]
    kept = columns.arrow_schema([columns.CHANGE_FIELDS[form][place] for place in places])
    got = []
    for batch in batches:
        assert batch.num_rows
        assert batch.schema == kept
        arrays = [
            column.cast("int64") if "timestamp" in str(column.type) else column
            for column in batch.columns
        ]
        got += list(zip(*(array.to_pylist() for array in arrays), strict=True))
    assert got == expected


def test_the_example_of_the_module_is_as_it_says() -> None:
    first = TxRecord(
        b"1" * 16, 1, (Run(0, 1, 5, 2), Run(1, 1, 9, 1)), 16, [b"a", b"b", b"c"], [b"1", None, b"3"]
    )
    second = TxRecord(b"2" * 16, 2, (Run(0, 1, 7, 1),), 17, [b"d"], [b"4"])
    payload = encode_record(first) + encode_record(second)
    frame = Frame(position=0, synced=0, payload=payload, segment=1, offset=0)
    wanted = Wanted(low={0: (1, 0), 1: (1, 0)}, high={0: (1, 9), 1: (1, 9)})
    names = {16: "users", 17: "stock"}
    asked = ["partition", "counter", "namespace", "map_id", "key", "op", "value", "tx_seq"]
    (batch,) = changes([frame], names, wanted, print, columns=asked)
    assert [tuple(row[name] for name in asked) for row in batch.to_pylist()] == [
        (0, 5, "users", 16, b"a", "put", b"1", 0),
        (0, 6, "users", 16, b"b", "delete", None, 1),
        (1, 9, "users", 16, b"c", "put", b"3", 2),
        (0, 7, "stock", 17, b"d", "put", b"4", 0),
    ]
