"""``tidelog wal``: the record schema, filters, verdicts, and that nothing is touched."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

import tidelog
from support.logs import LogBuilder, tx_id
from tidelog import codecs
from tidelog.engine.codecs.registry import Msgpack, Str, Tuple
from tidelog.wal.format import HEADER_SIZE, segment_name
from tidelog.wal.records import (
    AdmitRecord,
    CheckpointRecord,
    ClearRecord,
    Closed,
    Columns,
    CommitRecord,
    CommitUptoRecord,
    DropNamespaceRecord,
    EpochRecord,
    IngestRecord,
    NamespaceRecord,
    Opened,
    OpenRecord,
    Participant,
    PrepareRecord,
    Record,
    RollbackRecord,
    Run as CounterRun,
    Settled,
    SettledOutcome,
    SettleRecord,
    Supplied,
    SuppliedRecord,
    TxRecord,
    UnknownRecord,
    Upto,
    pack_record_header,
)

Run = Callable[..., Result]
Fingerprint = Callable[[Path], dict[str, tuple[str, int]]]

GOLDEN = Path(__file__).parent / "golden"
GIVEN_ID = b"0123456789abcdef"


def lines_of(done: Result) -> list[Any]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def records_of(done: Result) -> list[Any]:
    return [record for record in lines_of(done) if record["type"] != "end"]


def namespace(number: int, name: str, key: str, value: str) -> NamespaceRecord:
    return NamespaceRecord(
        id=number, name=name, key_codec=key, key_version=1, value_codec=value, value_version=1
    )


def test_a_renamed_map_is_found_by_the_name_it_had_and_by_the_one_it_has(
    run: Run, tmp_path: Path
) -> None:
    # What was written before the renaming was shown under the old name only.
    path = tmp_path / "shop.tl"
    with tidelog.open(path) as db:
        db.map("other", key=Str, value=Msgpack)["d"] = 4
        db.map("old", key=Str, value=Msgpack)["a"] = 1
        db.rename("old", "new")
        db.map("new")["b"] = 2

    def keys(name: str) -> list[str]:
        done = run("wal", "dump", path, "--map", name, "--type", "tx", "--jsonl")
        return [update["key_decoded"] for tx in records_of(done) for update in tx["updates"]]

    assert (keys("old"), keys("new"), keys("other")) == (["a"], ["a", "b"], ["d"])
    counts = {name: run("wal", "stat", path, "--map", name, "--json") for name in ("old", "new")}
    assert [json.loads(counts[name].stdout)["updates"] for name in counts] == [1, 2]
    with tidelog.open(path) as db:
        db.drop("new")

    def told(name: str) -> list[str]:
        found = records_of(run("wal", "dump", path, "--map", name, "--jsonl"))
        return [record["type"] for record in found if record["type"] != "tx"]

    made, dropped = "namespace", "drop_namespace"
    assert told("old") == [made]
    assert told("new") == [made, made, dropped]  # from before its new name on
    assert told("other") == [made]
    assert run("wal", "dump", path, "--map", "none").exit_code == 4


def every_record() -> LogBuilder:
    """A log of two segments with a record of each type."""
    log = LogBuilder()
    log.add(namespace(16, "stock", "str", "msgpack"), namespace(17, "orders", "tuple", "acme.x"))
    log.add(
        TxRecord(
            tx_id=tx_id(1),
            time=1_795_276_231_378_497,
            runs=(CounterRun(0, 1, 1, 2), CounterRun(1, 1, 1, 1)),
            namespaces=[16, 17, 16],
            keys=[Str.encode("apples"), Tuple.encode(("DE", -5)), b"\xff"],
            values=[Msgpack.encode({"n": [1, b"\xff"]}), b"raw\x00", None],
            details={"tag": "import-42", "user_id": True},
        ),
        TxRecord(
            tx_id=tx_id(2),
            time=1_795_276_231_378_498,
            runs=(CounterRun(1, 1, 2, 1),),
            namespaces=1,
            keys=[b"outcome"],
            values=[b"v"],
        ),
    )
    log.sync()
    log.add(
        RollbackRecord(
            tx_id=bytes(16),
            time=1_795_276_231_378_499,
            reason="no space",
            runs=(CounterRun(1, 1, 3, 4),),
        )
    )
    log.sync()
    log.counters = [2, 6]
    log.rotate()
    log.add(
        EpochRecord(time=1_795_276_231_378_500, first_partition=0, epochs=[2, 2], starts=[3, 7])
    )
    log.add(CheckpointRecord(position=log.base, time=1_795_276_231_378_501))
    log.add(DropNamespaceRecord(id=16, time=1_795_276_231_378_502))
    log.add(UnknownRecord(type=200, body=b"later\xff"))
    log.add(
        IngestRecord(
            time=1_795_276_231_378_503,
            namespace=17,
            load=bytes(range(16)),
            runs=(CounterRun(0, 2, 3, 5), CounterRun(1, 2, 7, 1)),
            digests=(bytes(range(25)), bytes(25)),
        )
    )
    log.add(*records_of_copies())
    log.sync()
    log.idle()
    return log


def prepare(number: int, run: CounterRun, *others: Participant, key: str) -> PrepareRecord:
    return PrepareRecord(
        tx_id=tx_id(number),
        attempt=1,
        near=(bytes(range(16)), 3),
        time=1_795_276_231_378_504,
        home=0,
        participants=(Participant(run.partition, run.epoch, run.count), *others),
        run=run,
        namespaces=17,
        keys=[Tuple.encode((key,))],
        values=[b"v"],
        locks=[(17, Tuple.encode(("read",)))] if others else None,
    )


def records_of_copies() -> list[Record]:
    """What the copies of a cluster's partitions log, each type once but for PREPARE."""
    first, second = CounterRun(0, 2, 8, 1), CounterRun(1, 2, 8, 1)
    third, fourth = CounterRun(0, 2, 9, 1), CounterRun(1, 2, 9, 1)
    return [
        prepare(10, first, Participant(1, 2, 1), key="both"),
        prepare(10, second, Participant(0, 2, 1), key="both too"),
        prepare(11, third, key="alone"),
        prepare(12, fourth, Participant(0, 2, 1), key="never"),
        CommitRecord(
            tx_id=tx_id(10),
            attempt=1,
            time=1_795_276_231_378_505,
            participants=(first, second),
            applied=(0, 1),
        ),
        CommitUptoRecord(rows=(Upto(0, 2, 9),)),
        SettleRecord(
            partition=1,
            epoch=3,
            start=13,
            transactions=(
                Settled(tx_id(12), 1, fourth, SettledOutcome.ROLLED_BACK, 0, None),
                Settled(
                    tx_id(13), 2, CounterRun(1, 2, 10, 1), SettledOutcome.COMMITTED,
                    1_795_276_231_378_506, Columns(17, [Tuple.encode(("settled",))], [None]),
                ),
            ),
            closed=(Closed(2, 11, 2, "gap"),),
        ),
        OpenRecord(rows=(Opened(1, 3),)),
        ClearRecord(partition=1, admission=40, reason="diverged"),
        AdmitRecord(
            partition=1,
            admission=41,
            epochs=((1, 1), (2, 7), (3, 13)),
            lwm=9,
            ranges=((10, 2),),
            hwm=12,
            dropped=(tx_id(12),),
        ),
        SuppliedRecord(
            partition=1,
            admission=41,
            source=bytes(range(16)),
            transactions=(
                Supplied(
                    tx_id(13), 2, CounterRun(1, 2, 10, 1), 1_795_276_231_378_506,
                    Columns(17, [Tuple.encode(("settled",))], [None]),
                ),
            ),
            closed=(),
        ),
    ]  # fmt: skip


def written(log: LogBuilder, folder: Path) -> Path:
    """The segments of a log as files."""
    folder.mkdir(exist_ok=True)
    for name, data in log.directory.files.items():
        (folder / name).write_bytes(bytes(data))
    return folder


@pytest.fixture
def segments(tmp_path: Path) -> Path:
    """A folder with every record of the schema."""
    return written(every_record(), tmp_path / "segments")


# ------------------------------------------------------------------ the schema


@pytest.mark.parametrize("form", ["text", "jsonl"])
def test_every_record_as_it_always_was(form: str, segments: Path, run: Run) -> None:
    done = run("wal", "dump", segments, "--internal", *([] if form == "text" else ["--jsonl"]))
    assert done.exit_code == 0
    golden = GOLDEN / f"dump.{'txt' if form == 'text' else 'jsonl'}"
    if "TIDELOG_REWRITE_GOLDEN" in os.environ:
        golden.write_text(done.stdout)
        pytest.fail(f"{golden.name} was written anew: read the difference, then run without it")
    assert done.stdout == golden.read_text()


@pytest.mark.parametrize("command", ["ls", "verify", "stat"])
def test_every_report_as_it_always_was(command: str, segments: Path, run: Run) -> None:
    done = run("wal", command, segments, "--json")
    assert done.exit_code == 0
    golden = GOLDEN / f"{command}.json"
    if "TIDELOG_REWRITE_GOLDEN" in os.environ:
        golden.write_text(done.stdout)
        pytest.fail(f"{golden.name} was written anew: read the difference, then run without it")
    assert json.loads(done.stdout) == json.loads(golden.read_text())


def frames_of(data: bytes) -> tuple[list[bytes], int]:
    """The payloads of a segment and their end, by docs/wal-format.md and nothing else."""
    payloads, at = [], 128
    while at < len(data) and data[at : at + 4] != b"TLS\x01":
        magic, length = struct.unpack_from("<4sI", data, at)
        assert magic == b"TLF\x01"
        payloads.append(data[at + 20 : at + 20 + length])
        at += 20 + length
    return payloads, at


def test_the_golden_reports_say_what_the_files_hold(segments: Path) -> None:
    """Counted by hand and by the bytes, not by the tools."""
    stat, ls, verify = (
        json.loads((GOLDEN / f"{name}.json").read_text()) for name in ("stat", "ls", "verify")
    )
    files = [path.read_bytes() for path in sorted(segments.iterdir())]
    payloads = [payload for data in files for payload in frames_of(data)[0]]
    assert stat["frames"] == verify["frames"] == len(payloads)
    assert stat["payload_bytes"] == sum(map(len, payloads))
    position = 0
    for number, (row, data) in enumerate(zip(ls["segments"], files, strict=True), start=1):
        assert (row["segment"], row["bytes"]) == (number, len(data))
        assert row["first_position"] == position
        position += frames_of(data)[1] - 128
        assert row["end_position"] == position
    assert {found["end"]["position"] for found in (stat, ls, verify)} == {position}
    # What `every_record` adds: apples and a delete of one byte in `stock`, (DE, -5) in `orders`,
    # and an outcome, which is internal.
    # What copies bring: four updates prepared, and one that is settled and supplied.
    names = ("both", "both too", "alone", "never", "settled", "settled")
    keys = sum(len(Tuple.encode((name,))) for name in names)
    sizes = [len(Msgpack.encode({"n": [1, b"\xff"]})), len(Tuple.encode(("DE", -5)))]
    assert [
        (row["map"], row["puts"], row["deletes"], row["key_bytes"], row["value_bytes"])
        for row in stat["maps"]
    ] == [("stock", 1, 1, len("apples") + 1, sizes[0]), ("orders", 5, 2, sizes[1] + keys, 8)]
    assert (stat["transactions"], stat["updates"], stat["largest_transaction"]) == (6, 9, 3)
    assert verify["transactions"] == 6, "two in one record, four parts that were prepared"
    times = [row["oldest"] for row in ls["segments"] if row["oldest"] is not None]
    assert "1970-01-01T00:00:00.000000Z" not in times, "what has not committed has no time"
    assert stat["partitions"] == [
        {"partition": 0, "updates": 4, "first": 1, "last": 9},
        {"partition": 1, "updates": 5, "first": 1, "last": 10},
    ]
    assert stat["records"].pop("state") == len(files)
    assert stat["records"].pop("namespace") == stat["records"].pop("tx") == 2
    assert stat["records"].pop("prepare") == 4
    assert set(stat["records"].values()) == {1}
    assert len(stat["records"]) == 14


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (["--map", "orders"], 1),
        (["--map", "stock"], 0),
        (["--partition", "1"], 1),
        (["--map", "orders", "--counter", "6..7", "--partition", "1"], 1),
        (["--map", "orders", "--counter", "9..20", "--partition", "1"], 0),
        (["--key", "hex:00"], 0),
    ],
)
def test_a_load_is_found_by_map_and_numbers(
    options: list[str], found: int, segments: Path, run: Run
) -> None:
    done = run("wal", "dump", segments, "--jsonl", "--type", "ingest", *options)
    assert done.exit_code == 0, done.output
    assert len(records_of(done)) == found


def test_one_document_holds_what_the_lines_hold(segments: Path, run: Run) -> None:
    document = json.loads(run("wal", "dump", segments, "--json").stdout)
    lines = lines_of(run("wal", "dump", segments, "--jsonl"))
    assert [*document["records"], document["end"]] == lines
    assert all(record["v"] == 1 for record in lines)


def test_values_are_decoded_by_the_codecs_that_the_log_names(shop: Path, run: Run) -> None:
    done = run("wal", "dump", shop, "--tx", GIVEN_ID.hex(), "--jsonl")
    (record,) = records_of(done)
    assert record["tag"] == "import-42"
    assert [(u["op"], u["map"], u["key_decoded"]) for u in record["updates"]] == [
        ("put", "orders", ["DE", -5]),
        ("delete", "stock", "apples"),
    ]


# ------------------------------------------------------------------ filters

FILTERS: list[tuple[list[str], list[int]]] = [
    # options, counters of the updates that are shown of partition 2 of the shop
    (["--map", "stock"], [1, 3]),
    (["--namespace", "16"], [1, 3]),
    (["--map", "stock", "--key", "apples"], [1, 3]),
    (["--key", "apples"], [1, 3]),
    (["--key", "hex:6170706c6573"], [1, 3]),
    (["--prefix", "app"], [1, 3]),
    (["--map", "orders", "--prefix", '["DE"]'], [2]),
    (["--map", "numbers", "--key", "5"], [4]),
    (["--counter", "2..3"], [2, 3]),
    (["--counter", "4"], [4]),
    (["--tx", GIVEN_ID.hex()[:6].upper()], [2, 3]),
    (["--map", "orders", "--key", '["FR"]'], []),
    (["--since", "2100-01-01"], []),
    (["--until", "1970-01-02"], []),
    (["--since", "1970-01-02", "--until", "2100-01-01"], [1, 2, 3, 4]),
    (["--from", "0", "--to", "100"], []),
    (["--from", "1:128"], [1, 2, 3, 4]),
]


@pytest.mark.parametrize(("options", "counters"), FILTERS)
def test_filters_compose(options: list[str], counters: list[int], shop: Path, run: Run) -> None:
    done = run("wal", "dump", shop, "--partition", 2, "--type", "tx", "--jsonl", *options)
    assert done.exit_code == 0, done.stderr
    assert [u["counter"] for record in records_of(done) for u in record["updates"]] == counters


def test_the_first_and_the_last_records(shop: Path, run: Run) -> None:
    every = records_of(run("wal", "dump", shop, "--jsonl"))
    assert records_of(run("wal", "dump", shop, "--jsonl", "--limit", 2)) == every[:2]
    assert records_of(run("wal", "dump", shop, "--jsonl", "--last", 2)) == every[-2:]
    place = f"1:{every[3]['offset']}"
    assert records_of(run("wal", "dump", shop, "--jsonl", "--from", place)) == every[3:]
    before = ["--to", every[3]["position"]]
    assert records_of(run("wal", "dump", shop, "--jsonl", *before)) == every[:3]


def test_internal_namespaces_are_shown_on_request(shop: Path, run: Run) -> None:
    assert "(outcomes)" not in run("wal", "dump", shop).stdout
    assert "(outcomes)" in run("wal", "dump", shop, "--internal").stdout


def test_a_map_is_told_with_its_updates(shop: Path, run: Run) -> None:
    found = records_of(run("wal", "dump", shop, "--map", "numbers", "--jsonl"))
    assert [record["type"] for record in found] == ["namespace", "tx"]


def test_segments_without_anything_wanted_are_passed_over(tmp_path: Path, run: Run) -> None:
    store = tmp_path / "long.tl"
    with tidelog.open(store, partitions=2, segment_bytes=1 << 16) as db:
        data = db.map("data", key=codecs.I64, value=codecs.Bytes)
        for number in range(80):
            data[number] = bytes(8000)
    rows = json.loads(run("wal", "ls", store, "--json").stdout)["segments"]
    assert len(rows) > 3
    assert all(row["index"] for row in rows[:-1])
    last = records_of(run("wal", "dump", store, "--type", "tx", "--last", 1, "--jsonl"))[0]
    # The first segments are not even looked at: damage in one of them goes unnoticed.
    damaged = store / "wal" / segment_name(rows[1]["segment"])
    spoil(damaged, HEADER_SIZE + 5000)
    found = run("wal", "dump", store, "--tx", last["tx"], "--jsonl")
    assert [record["tx"] for record in records_of(found)] == [last["tx"]]
    assert run("wal", "verify", store).exit_code == 3


# ------------------------------------------------------------------ where a log is


def test_a_store_a_folder_and_a_segment_show_the_same_records(shop: Path, run: Run) -> None:
    segment = shop / "wal" / segment_name(1)
    places = [shop, shop / "wal", segment]
    renamed = shop.parent / "copy.bin"
    shutil.copy(segment, renamed)
    expected = records_of(run("wal", "dump", shop, "--jsonl"))
    for place in [*places, renamed]:
        assert records_of(run("wal", "dump", place, "--jsonl")) == expected
        assert run("wal", "verify", place).exit_code == 0


def test_one_segment_of_several_is_read_alone(segments: Path, run: Run) -> None:
    found = records_of(run("wal", "dump", segments / segment_name(2), "--jsonl"))
    assert [record["type"] for record in found] == [
        "state", "epoch", "checkpoint", "drop_namespace", "unknown", "ingest", *["prepare"] * 4,
        "commit", "commit_upto", "settle", "open", "clear", "admit", "supplied", "idle",
    ]  # fmt: skip


def test_a_store_without_its_manifest_is_a_folder(shop: Path, run: Run) -> None:
    (shop / "manifest").unlink()
    done = run("wal", "verify", shop)
    assert done.exit_code == 0
    assert "no manifest" in done.stderr


# ------------------------------------------------------------------ verdicts


def spoil(path: Path, offset: int, count: int = 1) -> None:
    data = bytearray(path.read_bytes())
    for at in range(offset, offset + count):
        data[at] ^= 0x5A
    path.write_bytes(data)


@pytest.mark.parametrize("command", ["verify", "dump", "stat", "ls"])
def test_damage_below_what_was_durable_ends_with_3(command: str, shop: Path, run: Run) -> None:
    spoil(shop / "wal" / segment_name(1), HEADER_SIZE + 120)
    done = run("wal", command, shop)
    assert done.exit_code == 3
    assert "segment 1, offset " in done.stderr
    assert "TL-STO-004" in done.stderr
    assert len(done.stderr.splitlines()) <= 3


def test_what_is_lost_is_listed(segments: Path, run: Run) -> None:
    log = every_record()
    spoil(segments / segment_name(1), log.frames[2].offset + 30)
    found = json.loads(run("wal", "verify", segments, "--json").stdout)
    assert found["whole"] is False
    assert found["end"]["kind"] == "damaged"
    assert found["end"]["crc_stored"] != found["end"]["crc_computed"]
    assert found["end"]["lost"] == [
        {"partition": 0, "first": 1, "last": 2},
        {"partition": 1, "first": 1, "last": 2},
    ]


def test_records_before_the_damage_are_shown(segments: Path, run: Run) -> None:
    log = every_record()
    spoil(segments / segment_name(1), log.frames[3].offset + 30)
    found = lines_of(run("wal", "dump", segments, "--jsonl"))
    assert [record["type"] for record in found] == [
        *("state", "namespace", "namespace", "tx", "tx", "end")
    ]
    assert found[-1]["refused"] is True


def test_a_torn_tail_is_whole_with_a_note(segments: Path, run: Run) -> None:
    path = segments / segment_name(2)
    path.write_bytes(path.read_bytes() + b"half a frame")
    done = run("wal", "verify", segments)
    assert done.exit_code == 0
    assert "torn" in done.stderr
    assert "12 bytes" in done.stderr


def empty(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


MISSING: list[tuple[str, Callable[[Path], object], int]] = [
    ("a segment in the middle", lambda f: (f / segment_name(2)).unlink(), 3),
    ("all segments", empty, 4),
    ("a length of 4 GiB", lambda f: spoil(f / segment_name(1), HEADER_SIZE + 4, 4), 3),
    ("a header", lambda f: spoil(f / segment_name(1), 20), 3),
    ("a renamed segment", lambda f: (f / segment_name(3)).rename(f / segment_name(7)), 3),
    ("a copied segment", lambda f: shutil.copy(f / segment_name(1), f / segment_name(4)), 3),
    ("an empty segment in the middle", lambda f: (f / segment_name(2)).write_bytes(b""), 3),
    ("an empty last segment", lambda f: (f / segment_name(4)).write_bytes(b""), 0),
    ("zeros behind", lambda f: append(f / segment_name(3), bytes(5000)), 0),
    ("garbage behind", lambda f: append(f / segment_name(3), b"\x17" * 50), 0),
]


def append(path: Path, data: bytes) -> None:
    path.write_bytes(path.read_bytes() + data)


@pytest.mark.parametrize(("name", "change", "code"), MISSING)
def test_what_verify_says_of_a_spoilt_folder(
    name: str, change: Callable[[Path], object], code: int, tmp_path: Path, run: Run
) -> None:
    log = LogBuilder()
    for _ in range(2):
        log.committed(3)
        log.rotate()
    log.committed(3)
    log.idle()
    folder = written(log, tmp_path / "log")
    change(folder)
    done = run("wal", "verify", folder)
    assert done.exit_code == code, done.stdout + done.stderr
    assert len(done.stderr.splitlines()) <= 3


def test_a_record_of_a_later_version_is_printed_raw_and_ends_with_8(
    tmp_path: Path, run: Run
) -> None:
    log = LogBuilder()
    log.add(payload=pack_record_header(3, 99, 0) + b"new")
    log.committed(2)
    log.idle()
    folder = written(log, tmp_path / "log")
    for command in ("dump", "verify"):
        done = run("wal", command, folder, "--json")
        assert done.exit_code == 8
    records = json.loads(run("wal", "dump", folder, "--json").stdout)["records"]
    (unknown,) = [record for record in records if record["type"] == "unknown"]
    assert unknown["number"] == 99
    assert unknown["body"] == {"s": "new"}
    assert [record["type"] for record in records].count("tx") == 2


@pytest.mark.parametrize(
    "payload", [pack_record_header(3, 1, 0) + b"\xc1\xc1\xc1", b"\xff", b"\xff" * 40]
)
def test_a_record_that_does_not_decode_is_printed_raw_and_ends_with_3(
    payload: bytes, tmp_path: Path, run: Run
) -> None:
    log = LogBuilder()
    log.add(payload=payload)
    log.committed(2)
    log.idle()
    folder = written(log, tmp_path / "log")
    done = run("wal", "dump", folder, "--jsonl")
    assert done.exit_code == 3
    assert [record["type"] for record in lines_of(done)].count("undecodable") == 1
    assert [record["type"] for record in lines_of(done)].count("tx") == 2
    verdict = run("wal", "verify", folder)
    assert verdict.exit_code == 3
    assert "problem: segment 1, offset " in verdict.stdout


def test_a_number_that_is_given_twice_is_a_problem(tmp_path: Path, run: Run) -> None:
    log = LogBuilder()
    log.committed(3)
    log.counters[0] = 1
    log.committed(1)
    log.idle()
    done = run("wal", "verify", written(log, tmp_path / "log"))
    assert done.exit_code == 3
    assert "partition 0, numbers 2..2 for a second time" in done.stdout


# ------------------------------------------------------------------ bad input


BAD: list[tuple[int, list[str]]] = [
    (2, ["dump", "{shop}", "--counter", "9..3"]),
    (2, ["dump", "{shop}", "--partition", "99999"]),
    (2, ["dump", "{shop}", "--partition", "-1"]),
    (2, ["dump", "{shop}", "--tx", "xyz"]),
    (2, ["dump", "{shop}", "--tx", "0" * 33]),
    (2, ["dump", "{shop}", "--type", "txx"]),
    (2, ["dump", "{shop}", "--since", "yesterday"]),
    (2, ["dump", "{shop}", "--from", "1:x"]),
    (4, ["dump", "{shop}", "--from", "9:128"]),
    (4, ["dump", "{shop}", "--map", "nix"]),
    (4, ["stat", "{shop}", "--map", "nix"]),
    (4, ["dump", "{shop}", "--tx", "00ff"]),
    (2, ["dump", "{shop}", "--map", "numbers", "--key", "x"]),
    (2, ["dump", "{shop}", "--key", "a", "--prefix", "b"]),
    (2, ["dump", "{shop}", "--key", "hex:6"]),
    (2, ["dump", "{shop}", "--limit", "-1"]),
    (2, ["dump", "{shop}", "--last", "0"]),
    (4, ["ls", "{folder}/nix"]),
    (4, ["ls", "{folder}/empty"]),
    (2, ["ls", "{folder}/fifo"]),
    (2, ["ls", "{folder}/text"]),
    (2, ["ls", "{folder}/loop"]),
    (2, ["ls", "{folder}/odd"]),
]


@pytest.mark.parametrize(("code", "command"), BAD)
def test_bad_input_is_told_in_three_lines(
    code: int, command: list[str], shop: Path, tmp_path: Path, run: Run, unchanged: Fingerprint
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_text("no segment")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / segment_name(1)).mkdir()
    before = unchanged(shop)
    places = {"shop": shop, "folder": tmp_path}
    done = run("wal", *[p.format(**places) if p.startswith("{") else p for p in command])
    assert done.exit_code == code, done.stderr
    assert 1 <= len(done.stderr.splitlines()) <= 3
    assert done.stderr.startswith("error: ")
    assert unchanged(shop) == before


# ------------------------------------------------------------------ nothing is touched


EVERY = [["ls"], ["dump"], ["dump", "--tx", "00"], ["verify"], ["stat"], ["ls", "--json"]]


def test_a_store_is_left_as_it_is(shop: Path, run: Run) -> None:
    def everything() -> dict[str, tuple[bytes, int, int]]:
        files = [path for path in sorted(shop.rglob("*")) if path.is_file()]
        return {str(p): (p.read_bytes(), p.stat().st_mtime_ns, p.stat().st_ctime_ns) for p in files}

    before = everything()
    for command, *options in EVERY:
        run("wal", command, shop, *options)
    assert everything() == before
    assert os.listdir(shop / "readers") == []


LOOK = """
import os, sys
import tidelog.tools.wal.cli
from tidelog.tools.main import cli
if os.getuid() == 0:
    os.setuid(65534)
cli.main(sys.argv[1:])
"""


@pytest.fixture
def locked(shop: Path) -> Iterator[Path]:
    """A copy of the store that nobody but its owner could write, and not even its owner may."""
    with tempfile.TemporaryDirectory(prefix="tidelog-") as folder:
        Path(folder).chmod(0o755)
        copy = Path(folder) / "shop.tl"
        shutil.copytree(shop, copy)
        paths = [copy, *copy.rglob("*")]
        for path in paths:
            path.chmod(0o555 if path.is_dir() else 0o444)
        yield copy
        for path in paths:
            path.chmod(0o755)


@pytest.mark.slow
def test_a_store_that_may_only_be_read_can_be_looked_into(locked: Path) -> None:
    for command in ("ls", "dump", "verify", "stat"):
        done = subprocess.run(
            [sys.executable, "-c", LOOK, "wal", command, str(locked)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr


def test_a_live_writer_goes_on_meanwhile(shop: Path, run: Run) -> None:
    with tidelog.open(shop) as db:
        stock = db.map("stock")
        for number in range(5):
            stock[f"new-{number}"] = number
            for command, *options in (["verify"], ["dump", "--prefix", "new"], ["stat"], ["ls"]):
                done = run("wal", command, shop, *options)
                assert done.exit_code == 0, done.stderr
            assert f"new-{number} = {number}" in run("wal", "dump", shop, "--prefix", "new").stdout
