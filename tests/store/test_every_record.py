"""A store whose log has every type of record: dumped, verified, counted, replayed, and read.

What a store of its own never writes was put into the log by hand, as the member of a cluster would,
but for the feature bit that keeps others away.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner

import tidelog
from support.loads import make_load, rows_of
from support.logs import LogBuilder
from support.marks import mark_manifest, mark_segment
from support.pipelines import rows
from support.real_stores import opened
from tidelog.affinity.errors import UsageError
from tidelog.affinity.partitions import Space, partition_of
from tidelog.checkpoints.copies import CopyState
from tidelog.engine.api.database import Database, session_of
from tidelog.engine.api.maps import namespace_of
from tidelog.engine.upkeep.salvage import salvage
from tidelog.pipeline.jobs.runner import Runner
from tidelog.pipeline.jobs.wal_stats import wal_stats
from tidelog.testing import check_store
from tidelog.tools.main import cli
from tidelog.wal.files import ReadOnlyDirectory
from tidelog.wal.format import CLUSTER
from tidelog.wal.reader import Scan, read_records
from tidelog.wal.records import (
    RECORD_FORMS,
    AdmitRecord,
    ClearRecord,
    Closed,
    Columns,
    CommitRecord,
    Committed,
    CommitUptoRecord,
    Opened,
    OpenRecord,
    OutcomesRecord,
    Participant,
    PrepareRecord,
    Record,
    RollbackRecord,
    Run,
    Settled,
    SettledOutcome,
    SettleRecord,
    Supplied,
    SuppliedRecord,
    UnknownRecord,
    Upto,
    encode_record,
)
from tidelog.wal.records.types import pack_record_header

SPACE = Space(0, 3)
SEGMENT_BYTES = 64 << 10
LOADED = rows_of(6)
MEMBER = b"m" * 16


def keys_of(partition: int, count: int, tag: bytes) -> list[bytes]:
    """Keys that lie in a partition."""
    found = (b"%s %d" % (tag, number) for number in range(1_000))
    return [key for key in found if partition_of(key, SPACE) == partition][:count]


def tx_id(number: int) -> bytes:
    return number.to_bytes(16, "big")


class Maker(NamedTuple):
    """Makes the records of copies: each of one key of a map, in one partition."""

    namespace: int
    time: int

    def columns(self, key: bytes, value: bytes | None) -> Columns:
        return Columns(self.namespace, [key], [value])

    def prepare(self, number: int, run: Run, key: bytes, *others: Participant) -> PrepareRecord:
        return PrepareRecord(
            tx_id=tx_id(number), attempt=1, near=(MEMBER, 1), time=self.time, home=0,
            participants=(Participant(run.partition, run.epoch, run.count), *others), run=run,
            namespaces=self.namespace, keys=[key], values=[b"prepared"],
        )  # fmt: skip


def of_partition_2(w: Maker, epoch: int, first: int) -> list[Record]:
    """Transactions of two steps, and an epoch that settles the last one."""
    before, both, alone, never, gone = (Run(2, epoch, first + n, 1) for n in range(-1, 4))
    keys, other = keys_of(2, 4, b"copied"), Participant(0, epoch, 1)
    return [
        w.prepare(1, both, keys[0], other),
        w.prepare(2, alone, keys[1]),
        w.prepare(3, never, keys[2], other),
        w.prepare(4, gone, keys[3], other),
        CommitRecord(
            tx_id=tx_id(1), attempt=1, time=w.time, participants=(both, Run(0, epoch, 99, 1)),
            applied=(2,),
        ),
        OutcomesRecord(
            partition=2,
            committed=(Committed(tx_id(5), 1, (MEMBER, 1), w.time, before, (other,)),),
            forgotten=(tx_id(1),),
        ),
        CommitUptoRecord(rows=(Upto(2, epoch, alone.first),)),
        RollbackRecord(tx_id=tx_id(3), time=w.time, reason="told", runs=(never,)),
        SettleRecord(
            partition=2, epoch=epoch + 1, start=first + 5,
            transactions=(Settled(tx_id(4), 1, gone, SettledOutcome.ROLLED_BACK, 0, None),),
            closed=(Closed(epoch, first + 4, 1, "gap"),),
        ),
        OpenRecord(rows=(Opened(2, epoch + 1),)),
    ]  # fmt: skip


def of_partition_1(w: Maker, epoch: int) -> list[Record]:
    """A copy that begins anew, and is supplied."""
    keys = keys_of(1, 2, b"supplied")
    return [
        ClearRecord(partition=1, admission=7, reason="full copy"),
        AdmitRecord(
            partition=1, admission=7, epochs=((epoch, 1),), lwm=1, ranges=(), hwm=6, dropped=()
        ),
        SuppliedRecord(
            partition=1, admission=7, source=MEMBER,
            transactions=(
                Supplied(tx_id(9), 1, Run(1, epoch, 3, 1), w.time, w.columns(keys[0], b"late")),
                Supplied(tx_id(8), 1, Run(1, epoch, 2, 1), w.time, w.columns(keys[1], None)),
            ),
            closed=(Closed(epoch, 4, 1, "gap"),),
        ),
    ]  # fmt: skip


def live(db: Database, load: str) -> dict[bytes, bytes]:
    """What a store does by itself; return what one of its maps holds."""
    kept = db.map("kept")
    kept.update_many({b"%d" % number: b"v" * 2_000 for number in range(60)})
    with db.transaction(tag="with details", id=db.new_id()) as tx:
        del tx[kept][b"7"]
        tx[db.map("other")][b"a"] = b"1"
    db.map("dropped")[b"x"] = b"y"
    db.drop("dropped")
    db.attach(load)
    db.checkpoint()
    kept[b"behind the checkpoint"] = b"1"
    return dict(kept.items())


@pytest.fixture
def store(tmp_path: Path) -> tuple[Path, dict[bytes, bytes]]:
    """A store with such a log, left as by a crash, and what its map should hold."""
    path = tmp_path / "store"
    session_of(opened(path, partitions=3, segment_bytes=SEGMENT_BYTES)).abandon()
    db = opened(path, segment_bytes=SEGMENT_BYTES)  # which raises the epochs
    w = Maker(namespace_of(db.map("kept")).id, session_of(db).store.state.time + 10**9)
    content = live(db, make_load(tmp_path / "load", LOADED, partitions=3, name="loaded"))
    state = session_of(db).store.state
    epoch, first = state.epochs[2], state.counters[2].hwm + 1
    copies = [*of_partition_2(w, epoch, first), *of_partition_1(w, epoch)]
    for record in (*copies, UnknownRecord(type=200, body=b"later")):
        session_of(db).store.committer.log([record], durable=True)
    db.sync()
    session_of(db).maintenance.maintain()
    session_of(db).abandon()
    content = {key: value for key, value in content.items() if partition_of(key, SPACE) != 1}
    content |= dict.fromkeys(keys_of(2, 2, b"copied"), b"prepared")
    content |= dict.fromkeys(keys_of(1, 1, b"supplied"), b"late")
    return path, content


def test_its_log_has_every_type_of_record(store: tuple[Path, dict[bytes, bytes]]) -> None:
    scan = Scan(ReadOnlyDirectory(store[0] / "wal"))
    found = {type(record) for _, record in read_records(scan)}
    assert found == {row.record for row in RECORD_FORMS} | {UnknownRecord}


def test_it_is_dumped_verified_and_counted(store: tuple[Path, dict[bytes, bytes]]) -> None:
    path, _ = store

    def told(*words: str) -> str:
        done = CliRunner().invoke(cli, ["wal", words[0], str(path), *words[1:]])
        assert done.exit_code == 0, done.output
        return done.output

    dumped = [json.loads(line) for line in told("dump", "--internal", "--jsonl").splitlines()]
    types = {one["type"] for one in dumped} - {"end", "unknown"}
    assert types == {row.kind.name.lower() for row in RECORD_FORMS}
    assert json.loads(told("verify", "--json"))["problems"] == []
    counted = json.loads(told("stat", "--json"))
    assert counted["frames"] == json.loads(told("verify", "--json"))["frames"]
    assert check_store(path) == []


def test_it_is_replayed_and_goes_on(store: tuple[Path, dict[bytes, bytes]]) -> None:
    path, content = store
    for number in range(3):
        with opened(path, segment_bytes=SEGMENT_BYTES) as db:
            assert db.maps() == ["kept", "loaded", "other"]
            assert dict(db.map("kept").items()) == content
            assert session_of(db).store.state.copies.states[1] is CopyState.MOVING
            content[b"%d" % number] = db.map("kept")[b"%d" % number] = b"later"
            db.checkpoint()
            db.map("kept").discard(b"not there")
            if number == 0:
                session_of(db).abandon()
        assert check_store(path) == []
    with tidelog.open(path, read_only=True) as reader:
        assert dict(reader.map("kept").items()) == content


def test_it_is_read_by_the_pipeline(store: tuple[Path, dict[bytes, bytes]]) -> None:
    path, content = store
    everything = {row.kind.name for row in RECORD_FORMS} | {"200"}
    # The frame that says how far the log is durable comes behind that.
    durable = everything - {"IDLE"}
    assert {row["record_type"] for row in rows(path, "wal")} == durable
    changed = rows(path, "changes", namespace="kept")
    assert {row["key"] for row in changed} >= {b"7", b"behind the checkpoint"}
    counted = wal_stats([str(path)], Runner())["records"]
    assert {row["record_type"] for row in counted} == durable
    opened(path).close()
    shown = rows(path, "snapshot", namespace="kept")
    assert {row["key"]: row["value"] for row in shown} == content
    assert len(rows(path, "meta")) == 3


def test_what_salvage_cannot_follow_is_told(store: tuple[Path, dict[bytes, bytes]]) -> None:
    # Lost without a word were the rows of a SUPPLIED, and what a CLEAR had dropped came back.
    path, _ = store
    told = [one.text for one in salvage(str(path)).lost if one.kind == "log" and not one.harmless]
    types = ("Prepare", "Commit", "CommitUpto", "Settle", "Clear", "Admit", "Supplied")
    for name in types:
        assert any(f": a {name}, which only copies in a cluster log" in text for text in told)
    with opened(path, segment_bytes=SEGMENT_BYTES) as db:
        db.checkpoint()  # all of it is in the data file now
    found = salvage(str(path))
    assert found.complete
    assert sum(one.kind == "log" for one in found.lost) == len(types) + 3  # four transactions


@pytest.mark.parametrize("mark", [mark_manifest, mark_segment])
def test_what_other_members_had_a_part_in_is_not_salvaged_into_a_store_of_its_own(
    store: tuple[Path, dict[bytes, bytes]], mark: Callable[..., None]
) -> None:
    # Salvage took what it knew for all there was: older values came back behind a CLEAR.
    path, _ = store
    mark(path, required=CLUSTER)
    with pytest.raises(UsageError, match="belongs to a cluster"):
        salvage(str(path))
    done = CliRunner().invoke(cli, ["db", "salvage", str(path), str(path.parent / "saved")])
    assert done.exit_code == 2
    assert not (path.parent / "saved").exists()


def test_a_record_of_a_later_version_is_told_by_salvage(tmp_path: Path) -> None:
    log = LogBuilder()
    log.add(payload=encode_record(log.tx_record()) + pack_record_header(1, 99, 0) + b"\xc0")
    (tmp_path / "wal").mkdir()
    for name, data in log.directory.files.items():
        (tmp_path / "wal" / name).write_bytes(bytes(data))
    (told,) = (one for one in salvage(str(tmp_path)).lost if "record of type 99" in one.text)
    assert not told.harmless
