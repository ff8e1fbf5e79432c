"""The built-in check finds what it is there for, and nothing in a store that is sound."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tidelog
from support.stores import flagged, in_data_file, opened
from tidelog import errors
from tidelog.affinity.partitions import Space, partition_of
from tidelog.engine.api.database import Database, session_of
from tidelog.engine.api.open import open_with
from tidelog.engine.data.partition_store import STORE_KEY, mark_key, read_marks, write_mark
from tidelog.engine.data.stored import pack_prefix, version_of, xor_trailers
from tidelog.engine.files import manifest as manifests
from tidelog.engine.files.recovery import apply_updates
from tidelog.engine.system.environment import KvTransaction
from tidelog.engine.system.lmdb_file import open_lmdb
from tidelog.engine.system.production import production
from tidelog.engine.upkeep import check
from tidelog.engine.upkeep.check import PROBLEMS_MAX, inspect_store
from tidelog.testing import FaultyDisk, check_database, check_store, simulated
from tidelog.tx.counter import PartitionUpdateCounter
from tidelog.wal.format import HEADER_SIZE, encode_frame, log_seed
from tidelog.wal.records import (
    CommitRecord,
    EpochRecord,
    IdleRecord,
    NamespaceRecord,
    Opened as OpenedEpoch,
    OpenRecord,
    Participant,
    PrepareRecord,
    Record,
    RollbackRecord,
    Run,
    Settled,
    SettledOutcome,
    SettleRecord,
    StateRecord,
    TxRecord,
    encode_record,
)

PARTITIONS = 2
USERS = 16
TIME = 1 << 60


def busy(db: Database, seed: int, steps: int = 200) -> None:
    """Some of everything."""
    rng = random.Random(seed)
    for step in range(steps):
        users, other = db.map("users"), db.map("other")
        key = b"%d" % rng.randrange(40)
        match rng.randrange(12):
            case 0:
                db.checkpoint()
            case 1 | 2:
                users.discard(key)
            case 3 | 4:
                with db.transaction(id=rng.randbytes(16), tag="both") as tx:
                    tx[users][key] = tx[other][key] = b"%d" % step
                    tx[users].discard(b"%d" % rng.randrange(40))
            case 5 if step % 40 == 0:
                db.drop("other")
            case 6:
                with db.snapshot() as snapshot:
                    assert len(snapshot[users]) <= 40
            case _:
                users[key] = bytes(rng.randrange(3000))


# ------------------------------------------------------------------ sound stores


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["always", "interval", "none"])
@pytest.mark.parametrize("seed", range(4))
def test_a_sound_store_has_no_problems(seed: int, durability: Any) -> None:
    disk = FaultyDisk()
    for opening in range(5):
        environment = simulated(10 * seed + opening, disk)
        db = open_with(
            environment,
            "/store",
            partitions=PARTITIONS,
            durability=durability,
            segment_bytes=1 << 17,
            checkpoint_bytes=1 << 17,
            retain_bytes=1 << (16 + seed),
        )
        busy(db, seed + opening)
        environment.advance(1.0)
        assert check_database(db) == []
        if opening % 2:
            session_of(db).abandon()
        else:
            db.close()
        assert check_store("/store", simulated(99, disk)) == []


def test_a_new_store_has_no_problems(tmp_path: Path) -> None:
    with tidelog.open(tmp_path / "s") as db:
        assert check_database(db) == []
    inspection = inspect_store(production(), str(tmp_path / "s"))
    assert (inspection.problems, inspection.maps) == ([], [])
    assert set(inspection.partitions.values()) == {(0, 0)}


def test_what_a_check_finds_is_what_the_store_holds(tmp_path: Path) -> None:
    store = tmp_path / "s"
    db = tidelog.open(store, partitions=PARTITIONS)
    users = db.map("users")
    users.update({b"a": b"1", b"b": b"2", b"c": b"3"})
    db.checkpoint()
    users.discard(b"a")
    users[b"b"] = b"4"
    users[b"d"] = b"5"
    session_of(db).abandon()
    before = inspect_store(production(), str(store))
    assert before.maps == ["users"]
    assert sum(count for count, _ in before.partitions.values()) == 3
    with tidelog.open(store) as db:
        db.checkpoint()
    after = inspect_store(production(), str(store))
    assert before.partitions == after.partitions
    assert before.problems == after.problems == []


def test_nothing_is_changed_by_a_check(tmp_path: Path) -> None:
    store = tmp_path / "s"
    db = tidelog.open(store, partitions=PARTITIONS)
    busy(db, 1)
    session_of(db).abandon()

    def files() -> dict[str, tuple[bytes, int]]:
        return {
            str(path): (path.read_bytes(), path.stat().st_mtime_ns)
            for path in store.rglob("*")
            if path.is_file() and path.name != "lock.mdb"
        }

    before = files()
    assert check_store(store) == []
    assert files() == before


def test_a_store_is_checked_beside_its_writer_while_that_writes() -> None:
    disk = FaultyDisk()
    db = open_with(simulated(1, disk), "/store", partitions=PARTITIONS, segment_bytes=1 << 17)
    for seed in range(10):
        busy(db, seed, 50)
        assert check_store("/store", simulated(2, disk)) == []
    db.close()


def test_there_must_be_a_store_that_is_not_open_here(tmp_path: Path) -> None:
    with pytest.raises(errors.NotFoundError):
        check_store(tmp_path / "none")
    with tidelog.open(tmp_path / "s"), pytest.raises(errors.AlreadyOpenError):
        check_store(tmp_path / "s")


# ------------------------------------------------------------------ data files that lie


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A closed store, all in the data file; key 0 was deleted."""
    path = tmp_path / "s"
    with tidelog.open(path, partitions=PARTITIONS) as db:
        users = db.map("users")
        for number in range(20):
            users[b"%d" % number] = b"value %d" % number
        users.discard(b"0")
    assert check_store(path) == []
    return path


class Tamper:
    """Changes a data file so that its own checksums and marks still hold."""

    def __init__(self, txn: KvTransaction) -> None:
        self.txn = txn
        self.store_mark, self.marks = read_marks(txn)

    def key(self, user_key: bytes, namespace: int = USERS) -> bytes:
        return pack_prefix(partition_of(user_key, Space(0, PARTITIONS)), namespace) + user_key

    def put(self, full_key: bytes, stored: bytes | None) -> None:
        """Set a stored value, or remove it, and let count and digest follow."""
        partition = int.from_bytes(full_key[:4], "big")
        old = self.txn.get(full_key)
        mark = self.marks[partition]
        digest = mark.digest
        for one in (old, stored):
            digest ^= xor_trailers([one]) if one is not None else 0
        count = mark.count + (stored is not None) - (old is not None)
        if stored is None:
            self.txn.delete(full_key)
        else:
            self.txn.put(full_key, stored)
        namespace = int.from_bytes(full_key[4:8], "big")
        counts = dict(mark.counts or {})
        counts[namespace] = counts.get(namespace, 0) + count - mark.count
        self.mark(partition, count=count, digest=digest, counts=counts)

    def mark(self, partition: int, **changes: object) -> None:
        self.marks[partition] = replace(self.marks[partition], **changes)  # type: ignore[arg-type]
        write_mark(self.txn, mark_key(partition), self.marks[partition].to_bytes())

    def version(self, full_key: bytes) -> tuple[int, int, int]:
        stored = self.txn.get(full_key)
        assert stored is not None
        return version_of(stored)


@contextmanager
def tampered(store: Path) -> Iterator[Tamper]:
    kv = open_lmdb(str(store / "data"), 1 << 30, False, True)
    with kv.write() as txn:
        yield Tamper(txn)
    kv.close()


def flipped(t: Tamper) -> None:
    key = t.key(b"7")
    stored = t.txn.get(key)
    assert stored is not None
    t.txn.put(key, bytes([stored[0] ^ 1]) + stored[1:])


def lost(t: Tamper) -> None:
    t.txn.delete(t.key(b"7"))


def hidden(t: Tamper) -> None:
    t.put(t.key(b"7"), None)


def replaced(t: Tamper) -> None:
    key = t.key(b"7")
    t.put(key, in_data_file(key, b"other", *t.version(key)))


def outdated(t: Tamper) -> None:
    key = t.key(b"19")
    epoch, number, time = t.version(key)
    t.put(key, in_data_file(key, b"value 19", epoch, number - 1, time))


def returned(t: Tamper) -> None:
    key = t.key(b"0")
    t.put(key, in_data_file(key, b"value 0", 1, 1, 5))


def made_up(t: Tamper) -> None:
    key = t.key(b"new")
    t.put(key, in_data_file(key, b"x", 1, 3, 5))


def from_the_future(t: Tamper) -> None:
    key = t.key(b"7")
    t.put(key, in_data_file(key, b"value 7", 1, 1000, 5))


def of_another_epoch(t: Tamper) -> None:
    key = t.key(b"7")
    _, number, time = t.version(key)
    t.put(key, in_data_file(key, b"value 7", 9, number, time))


def deleted(t: Tamper) -> None:
    key = t.key(b"7")
    t.put(key, in_data_file(key, None, *t.version(key)))


def of_a_later_version(t: Tamper) -> None:
    key = t.key(b"7")
    t.put(key, flagged(key, b"value 7", 2, t.version(key)))


def counted_deletes_wrong(t: Tamper) -> None:
    t.mark(0, tombstones=3)


def elsewhere(t: Tamper) -> None:
    key = pack_prefix(1 - partition_of(b"7", Space(0, PARTITIONS)), USERS) + b"7"
    t.put(key, in_data_file(key, b"x", 1, 1, 5))


def of_no_map(t: Tamper) -> None:
    key = t.key(b"7", 77)
    t.put(key, in_data_file(key, b"x", 1, 1, 5))


def outside(t: Tamper) -> None:
    key = pack_prefix(PARTITIONS, USERS) + b"7"
    t.txn.put(key, in_data_file(key, b"x", 1, 1, 5))


def beside_the_mark(t: Tamper) -> None:
    key = pack_prefix(0xFFFFFFFF, 5) + b"x"
    t.txn.put(key, in_data_file(key, b"x", 1, 1, 5))


def more_partitions(t: Tamper) -> None:
    write_mark(t.txn, mark_key(PARTITIONS), t.marks[0].to_bytes())


def short_key(t: Tamper) -> None:
    t.txn.put(b"\0\0\0\1\0\0\0\0", b"x")


def no_mark(t: Tamper) -> None:
    key = pack_prefix(0, 0) + b"surprise"
    t.txn.put(key, in_data_file(key, b"x", 1, 1, 5))


def counted_wrong(t: Tamper) -> None:
    t.mark(1, count=t.marks[1].count + 1)


def counted_for_another_map(t: Tamper) -> None:
    t.mark(1, counts={77: t.marks[1].count})


def ahead_in_numbers(t: Tamper) -> None:
    counter = PartitionUpdateCounter.from_bytes(t.marks[0].counter)
    t.mark(0, counter=PartitionUpdateCounter(counter.lwm + 1).to_bytes())


def other_epochs(t: Tamper) -> None:
    t.mark(0, epochs=((1, 1), (2, 500)))


def ahead_of_the_log(t: Tamper) -> None:
    t.mark(0, written=t.marks[0].position + (1 << 20))


def damaged_mark(t: Tamper) -> None:
    write_mark(t.txn, mark_key(0), b"nonsense")


def damaged_counter(t: Tamper) -> None:
    t.mark(0, counter=b"nonsense")


def of_another_store(t: Tamper) -> None:
    assert t.store_mark is not None
    write_mark(t.txn, STORE_KEY, replace(t.store_mark, store_id=bytes(16)).to_bytes())


def other_maps(t: Tamper) -> None:
    assert t.store_mark is not None
    (users,) = t.store_mark.namespaces
    mark = replace(t.store_mark, namespaces=(replace(users, name="people"),))
    write_mark(t.txn, STORE_KEY, mark.to_bytes())


LIES: list[tuple[Callable[[Tamper], None], str]] = [
    (flipped, "does not match its checksum"),
    (lost, "its mark says"),
    (hidden, "is missing in the data file, and nothing deleted it"),
    (replaced, "has another value in the data file"),
    (outdated, "is missing in the data file"),
    (returned, "is deleted, but there"),
    (made_up, "values from the time of the kept log"),
    (from_the_future, "has update number 1000, which"),
    (of_another_epoch, "in epoch 9"),
    (deleted, "is deleted in the data file"),
    (deleted, "holds 1 deletes, its mark says 0: others belong in the log only"),
    (of_a_later_version, "has flags 0x02, of a later version"),
    (counted_deletes_wrong, "holds 0 deletes, its mark says 3"),
    (elsewhere, "belongs to partition"),
    (of_no_map, "belongs to no map"),
    (outside, "partition 2 holds data but no mark"),
    (beside_the_mark, "outside of the partitions"),
    (more_partitions, "3 partitions or more"),
    (short_key, "does not match its checksum"),
    (no_mark, "is not a mark"),
    (counted_wrong, "its mark says"),
    (counted_for_another_map, "pairs by namespace, its mark says {77: "),
    (ahead_in_numbers, "but the log has"),
    (other_epochs, "epochs of the checkpoint are not those of the log"),
    (ahead_of_the_log, "damaged"),
    (damaged_mark, "does not decode"),
    (damaged_counter, "counter"),
    (of_another_store, "belongs to store"),
    (other_maps, "maps of the checkpoint are not those of the log"),
]


@pytest.mark.parametrize(("lie", "told"), LIES, ids=[lie.__name__ for lie, _ in LIES])
def test_a_data_file_that_lies_is_found_out(
    store: Path, lie: Callable[[Tamper], None], told: str
) -> None:
    with tampered(store) as tamper:
        lie(tamper)
    problems = check_store(store)
    assert any(told in problem for problem in problems), problems


def test_damage_to_the_tree_is_told_without_reading_through_it(store: Path) -> None:
    data = store / "data/data.mdb"
    content = bytearray(data.read_bytes())
    for page in range(2, len(content) // 4096):
        content[4096 * page] ^= 1  # the number that a page has for itself
    data.write_bytes(content)
    problems = check_store(store)
    assert problems
    assert all("data.mdb" in problem for problem in problems), problems


def test_many_problems_are_cut_short(store: Path) -> None:
    with tampered(store) as tamper:
        for number in range(2 * PROBLEMS_MAX):
            key = tamper.key(b"%d" % number, 77)
            tamper.put(key, in_data_file(key, b"x", 1, 1, 5))
    problems = check_store(store)
    assert len(problems) == PROBLEMS_MAX + 1
    assert problems[-1] == "there are more problems than these"


# ------------------------------------------------------------------ logs that lie


def append(store: Path, records: list[Record]) -> None:
    """Add a frame with records to the log, whose CRC is right."""
    directory = production().disk.directory(str(store))
    manifest = manifests.read(directory)
    end = manifest.clean_end
    assert end is not None
    payload = b"".join(map(encode_record, records))
    frame = encode_frame(log_seed(bytes.fromhex(manifest.log_id)), end, end, payload)
    with open(store / f"wal/{1:016d}.log", "r+b") as file:
        file.seek(HEADER_SIZE + end)
        file.write(frame)
    manifests.write(directory, replace(manifest, clean_end=end + len(frame)))


def tx(*runs: Run, time: int = TIME) -> TxRecord:
    keys = [b"k%d" % number for run in runs for number in range(run.count)]
    return TxRecord(
        tx_id=bytes(16),
        time=time,
        runs=runs,
        namespaces=USERS,
        keys=keys,
        values=[b"v"] * len(keys),
    )


def state(epochs: list[int], lwms: list[int], names: tuple[str, ...] = ("users",)) -> StateRecord:
    return StateRecord(
        time=TIME,
        namespaces=[
            NamespaceRecord(
                id=USERS + number,
                name=name,
                key_codec="bytes",
                key_version=1,
                value_codec="bytes",
                value_version=1,
            )
            for number, name in enumerate(names)
        ],
        epochs=epochs,
        lwms=lwms,
        hwms=lwms,
        ranges={},
    )


def gap(run: Run) -> RollbackRecord:
    return RollbackRecord(tx_id=bytes(16), time=TIME, reason="gap", runs=(run,))


BAD_RECORDS: list[tuple[str, list[Record], str]] = [
    ("number used twice", [tx(Run(0, 1, 3, 1))], "numbers 3..3 for a second time"),
    ("partly used twice", [tx(Run(0, 1, 5, 99))], "for a second time"),
    ("closed and used", [gap(Run(0, 1, 50, 3)), tx(Run(0, 1, 51, 1))], "for a second time"),
    ("another epoch", [tx(Run(0, 4, 50, 1))], "epoch 4"),
    ("no such partition", [tx(Run(9, 1, 1, 1))], "partition 9 of 2"),
    ("time runs back", [tx(Run(0, 1, 50, 1), time=1)], "commit time 1 after"),
    ("other epochs in a state", [state([7, 1], [0, 0])], "other epochs or namespaces"),
    ("other maps in a state", [state([1, 1], [0, 0], ("a", "b"))], "other epochs or namespaces"),
    ("counters too high in a state", [state([1, 1], [900, 0])], "higher counters"),
    ("state of other partitions", [state([1], [0])], "the state of 1 partitions"),
    (
        "epochs of no partition",
        [EpochRecord(time=TIME, first_partition=1, epochs=[2, 2], starts=[90, 90])],
        "partition 2 of 2",
    ),
]


@pytest.mark.parametrize(
    ("records", "told"), [case[1:] for case in BAD_RECORDS], ids=[case[0] for case in BAD_RECORDS]
)
def test_a_log_that_lies_is_found_out(store: Path, records: list[Record], told: str) -> None:
    append(store, records)
    problems = check_store(store)
    assert any(told in problem for problem in problems), problems


def test_records_as_they_should_be_are_no_problem(store: Path) -> None:
    append(store, [tx(Run(0, 1, 50, 2)), gap(Run(0, 1, 40, 3)), IdleRecord()])
    assert check_store(store) == []


def test_a_segment_begins_with_a_state(store: Path) -> None:
    path = store / f"wal/{1:016d}.log"
    manifest = manifests.read(production().disk.directory(str(store)))
    content = bytearray(path.read_bytes())
    frame = encode_frame(
        log_seed(bytes.fromhex(manifest.log_id)), 0, 0, encode_record(IdleRecord())
    )
    content[HEADER_SIZE : HEADER_SIZE + len(frame)] = frame
    path.write_bytes(content)
    assert "does not begin with a state" in " ".join(check_store(store))


def test_damage_in_the_log_is_told(store: Path) -> None:
    path = store / f"wal/{1:016d}.log"
    content = bytearray(path.read_bytes())
    content[HEADER_SIZE + 400] ^= 1
    path.write_bytes(content)
    problems = check_store(store)
    assert len(problems) == 1
    assert "the log is damaged" in problems[0]


def test_a_log_without_its_head_is_told(tmp_path: Path) -> None:
    store = tmp_path / "s"
    db = tidelog.open(store, segment_bytes=1 << 17)
    for number in range(6):
        db.map("users")[b"%d" % number] = bytes(60_000)
    session_of(db).abandon()
    (store / f"wal/{1:016d}.log").unlink()
    assert "above the checkpoint at 0" in " ".join(check_store(store))


def test_a_damaged_manifest_is_told(store: Path) -> None:
    (store / "manifest").write_bytes(b"{}\n00000000\n")
    assert check_store(store) == [f"{store}: the manifest does not match its checksum"]


def test_a_data_file_that_cannot_be_opened_is_told(store: Path) -> None:
    os.truncate(store / "data/data.mdb", 8192)
    (problem,) = check_store(store)
    assert "8192 bytes, but its meta page needs" in problem
    assert os.listdir(store / "readers") == []


# ------------------------------------------------------------------ memory that lies


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    database = tidelog.open(tmp_path / "s", partitions=PARTITIONS)
    users = database.map("users")
    for number in range(10):
        users[b"%d" % number] = b"in the data file"
    database.checkpoint()
    for number in range(5):
        users[b"%d" % number] = b"in memory"
    assert check_database(database) == []
    yield database
    session_of(database).abandon()


def test_an_update_that_is_not_in_memory_is_found(db: Database) -> None:
    partition = partition_of(b"3", Space(0, PARTITIONS))
    for layer in session_of(db).overlay.view.layers:
        layer.part(partition).pop(pack_prefix(partition, USERS) + b"3", None)
    assert "differs in memory" in " ".join(check_database(db))


def test_an_update_that_is_not_in_the_log_is_found(db: Database) -> None:
    partition = partition_of(b"new", Space(0, PARTITIONS))
    key = pack_prefix(partition, USERS) + b"new"
    session_of(db).overlay.active.part(partition)[key] = in_data_file(key, b"x", 1, 1, 1)
    assert "differs in memory" in " ".join(check_database(db))


def test_a_counter_that_the_log_does_not_know_is_found(db: Database) -> None:
    counter = session_of(db).store.state.counters[0]
    counter.update(counter.lwm, 1)
    assert "in memory" in " ".join(check_database(db))


def test_a_checkpoint_ahead_of_the_durable_log_is_found(db: Database) -> None:
    session_of(db).store.checkpointer.position += 1 << 20
    assert "log durable up to" in " ".join(check_database(db))


def test_damage_under_an_open_store_is_a_problem_and_no_error(db: Database) -> None:
    path = Path(db.path, f"wal/{1:016d}.log")
    content = bytearray(path.read_bytes())
    content[HEADER_SIZE + 400] ^= 1
    path.write_bytes(content)
    assert check_database(db) != []


def test_what_is_committed_beside_a_check_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    with opened() as store:
        users = store.database.map("users")
        users[b"a"] = b"1"
        scan = vars(check)["Scan"]

        def later(*args: Any, **options: Any) -> Any:
            users[b"b"] = b"2"
            return scan(*args, **options)

        with monkeypatch.context() as patch:
            patch.setattr(check, "Scan", later)
            assert check_database(store.database) == []
        assert dict(users) == {b"a": b"1", b"b": b"2"}


@pytest.mark.parametrize("before", range(5))
def test_what_has_no_outcome_yet_at_a_checkpoint_is_in_order(before: int) -> None:
    # The check began at the checkpoint without it: its commit was "not prepared".
    with opened(partitions=PARTITIONS) as store:
        db = store.database
        users = db.map("users")
        parts, epoch = store.parts, store.parts.state.epochs[0]
        one, two = Run(0, epoch, 1, 1), Run(0, epoch, 2, 1)
        records: list[Record] = [
            *(
                PrepareRecord(
                    tx_id=bytes([run.first]) * 16, attempt=1, near=(bytes(16), 1), time=TIME,
                    home=0, participants=(Participant(0, epoch, 1), Participant(1, epoch, 1)),
                    run=run, namespaces=USERS, keys=[key_of(0, b"%d" % run.first)], values=[b"v"],
                )
                for run in (one, two)
            ),
            CommitRecord(
                tx_id=b"\x02" * 16, attempt=1, time=TIME, participants=(two,), applied=(0,)
            ),
            SettleRecord(
                partition=0, epoch=epoch + 1, start=3,
                transactions=(Settled(b"\x01" * 16, 1, one, SettledOutcome.ROLLED_BACK, 0, None),),
                closed=(),
            ),
            OpenRecord(rows=(OpenedEpoch(0, epoch + 1),)),
        ]  # fmt: skip

        def logged(record: Record) -> None:
            def take_effect() -> None:
                apply_updates(parts.overlay.view, parts.state, parts.writer.position, record)

            parts.committer.log([record], durable=True, then=take_effect)

        for number, record in enumerate(records):
            if number == before:
                db.checkpoint()
            logged(record)
            assert check_database(db) == []
        assert list(users) == [key_of(0, b"2")]


def key_of(partition: int, tag: bytes) -> bytes:
    """A key that lies in a partition."""
    tried = (b"%s %d" % (tag, number) for number in range(100))
    return next(key for key in tried if partition_of(key, Space(0, PARTITIONS)) == partition)
