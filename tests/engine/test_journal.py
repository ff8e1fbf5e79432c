"""The journal of the configuration log: what is written is read, on a disk that works."""

from __future__ import annotations

import os
import re
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from support.documents import ROOT
from support.journals import (
    CLUSTER,
    EARLY,
    IDENTITY,
    LATE,
    MEMBER,
    PATH,
    STEPS,
    Held,
    Step,
    do,
    held_after,
    held_in,
    new_journal,
    reopened,
)
from tidelog.affinity.errors import CorruptLogError, UsageError
from tidelog.engine.agreement.journal import (
    AHEAD,
    SNAPSHOT_AFTER,
    Journal,
    open_config_log,
)
from tidelog.engine.agreement.journal_format import (
    BATCH_MAX,
    AcceptedRecord,
    AppendedRecord,
    DecidedRecord,
    JournalRecord,
    NoteRecord,
    PromisedRecord,
    SnapshotRecord,
    Term,
    config_header,
    config_records,
    decode_records,
    encode_records,
)
from tidelog.engine.system.disk import RealDirectory
from tidelog.testing import FaultyDisk
from tidelog.wal.records.shapes import UndecodableRecordError
from tidelog.wal.segments import walk

GOLDEN = Path(__file__).parent / "golden_journal.txt"


# ------------------------------------------------------------------ bytes


def made() -> dict[str, bytes]:
    """The files of a journal before and after a snapshot, without the zeros behind the frames."""
    disk = FaultyDisk()
    journal = new_journal(disk)
    journal.append([PromisedRecord(EARLY), AcceptedRecord(1, EARLY, b"change")])
    journal.sync()
    journal.append([DecidedRecord(1), NoteRecord(7, b"seal")])
    before = disk.read_bytes(PATH)[: 128 + journal.position]
    first = journal.position
    journal.append([AcceptedRecord(2, LATE, b"next")])
    first = journal.position
    journal.snapshot(1, EARLY, b"state", [NoteRecord(7, b"seal")])
    after = disk.read_bytes(PATH)[: 128 + journal.position - first]
    return {"appended": before, "snapshot": after}


def written() -> dict[str, bytes]:
    lines = (line.split() for line in GOLDEN.read_text("utf-8").splitlines())
    return {name: bytes.fromhex(data) for name, data in lines}


def test_a_journal_is_written_as_it_always_was() -> None:
    files = made()
    if "TIDELOG_REWRITE_GOLDEN" in os.environ:
        text = "".join(f"{name} {data.hex()}\n" for name, data in files.items())
        GOLDEN.write_text(text, "utf-8")
        pytest.fail(f"{GOLDEN.name} was written anew: read the difference, then run without it")
    assert {name: data.hex() for name, data in files.items()} == {
        name: data.hex() for name, data in written().items()
    }


def test_a_journal_is_read_as_it_always_was() -> None:
    disk = FaultyDisk()
    disk.write_bytes(PATH, written()["appended"])
    _, found = reopened(disk)
    accepted = AcceptedRecord(1, EARLY, b"change")
    assert held_in(found) == Held(EARLY, 1, None, (accepted,), (NoteRecord(7, b"seal"),))
    assert found.cluster == CLUSTER

    disk = FaultyDisk()
    disk.write_bytes(PATH, written()["snapshot"])
    _, found = reopened(disk)
    snapshot = SnapshotRecord(1, EARLY, b"state")
    above = AcceptedRecord(2, LATE, b"next")
    assert held_in(found) == Held(EARLY, 1, snapshot, (above,), (NoteRecord(7, b"seal"),))


def test_the_document_shows_the_bytes() -> None:
    text = (ROOT / "docs/config-log-format.md").read_text("utf-8")
    (block,) = re.findall(r'DUMP = """\n(.*?)\n"""', text, re.DOTALL)
    lines = filter(None, block.splitlines())
    shown = b"".join(bytes.fromhex(line[6:].partition("|")[0]) for line in lines)
    assert shown.hex() == written()["appended"].hex()


NUMBERS = st.integers(0, (1 << 63) - 1)
TERMS = st.builds(Term, NUMBERS, st.uuids())
APPENDED = st.one_of(
    st.builds(PromisedRecord, TERMS),
    st.builds(AcceptedRecord, NUMBERS, TERMS, st.binary(max_size=40)),
    st.builds(DecidedRecord, NUMBERS),
    st.builds(NoteRecord, NUMBERS, st.binary(max_size=40)),
)
SNAPSHOTS = st.builds(SnapshotRecord, NUMBERS, TERMS, st.binary(max_size=40))
INDEXES = st.integers(0, 6)
SMALL = st.one_of(
    st.builds(AcceptedRecord, INDEXES, TERMS, st.binary(max_size=4)),
    st.builds(DecidedRecord, INDEXES),
    APPENDED,
)
STEP = st.one_of(
    st.none(),
    st.lists(SMALL, max_size=3),
    st.builds(SnapshotRecord, INDEXES, TERMS, st.binary(max_size=40)),
)


@given(st.lists(st.one_of(APPENDED, SNAPSHOTS)))
def test_records_are_decoded_as_they_were_encoded(records: list[JournalRecord]) -> None:
    assert decode_records(encode_records(records)) == records


@given(st.lists(STEP, max_size=12), st.integers(0, 12))
@settings(max_examples=60)
def test_what_is_appended_is_there_after_every_opening(steps: list[Step], again: int) -> None:
    disk = FaultyDisk()
    journal = new_journal(disk)
    for number, step in enumerate(steps):
        if number == again:
            journal.close()
            journal, found = reopened(disk)
            assert held_in(found) == held_after(steps[:number])
        do(journal, step)
    end = journal.position
    journal.close()
    journal, found = reopened(disk)
    assert held_in(found) == held_after(steps)
    assert (found.end, found.dropped_bytes, journal.synced) == (end, 0, end)
    assert found.may_vote


@pytest.mark.parametrize(
    "record",
    [
        PromisedRecord(Term(-1, MEMBER)),
        PromisedRecord(Term(1 << 63, MEMBER)),
        DecidedRecord(True),
        NoteRecord(1, "text"),  # type: ignore[arg-type]
        AcceptedRecord(1, EARLY, bytes(BATCH_MAX)),
    ],
    ids=["negative", "large", "type", "text", "length"],
)
def test_what_could_not_be_read_again_is_not_written(record: AppendedRecord) -> None:
    journal = new_journal(FaultyDisk())
    end = journal.position
    with pytest.raises(ValueError, match=r"expected|more than"):
        journal.append([record])
    assert journal.position == end
    journal.append([DecidedRecord(1)])  # nothing was written, so nothing has failed


def test_a_later_version_may_append_fields_to_a_record() -> None:
    assert decode_records(bytes.fromhex("91 93 03 05 c3")) == [DecidedRecord(5)]


@pytest.mark.parametrize(
    "payload", ["91 92 06 05", "91 91 03", "91 92 03 a1 61", "91 05", "91 90", "c1", "", "90 90"]
)
def test_other_records_are_refused(payload: str) -> None:
    with pytest.raises(UndecodableRecordError):
        decode_records(bytes.fromhex(payload))


def test_ids_have_sixteen_bytes() -> None:
    for identity, cluster in ((b"short", CLUSTER), (IDENTITY, b"")):
        with pytest.raises(ValueError, match="16 bytes"):
            config_header(identity, cluster)


# ------------------------------------------------------------------ the journal


def test_a_journal_of_no_cluster_says_so() -> None:
    disk = FaultyDisk()
    Journal.create(disk.directory("/"), identity=IDENTITY).close()
    assert reopened(disk)[1].cluster is None


def test_there_is_one_journal_in_a_directory() -> None:
    disk = FaultyDisk()
    new_journal(disk).append([DecidedRecord(1)])
    with pytest.raises(UsageError, match="already"):
        new_journal(disk)
    assert reopened(disk)[1].decided == 1


def test_a_batch_is_durable_when_the_sync_returns_its_position() -> None:
    disk = FaultyDisk()
    journal = new_journal(disk)
    assert journal.synced == journal.position  # with the file
    first = journal.append([DecidedRecord(1)])
    assert journal.synced < first
    assert journal.sync() == journal.synced == first
    second = journal.append([DecidedRecord(2)])
    assert journal.synced == first < second
    assert reopened(disk.crash("lost"))[1].decided == 1


def test_an_append_beside_a_sync_waits_for_the_next_one() -> None:
    disk = FaultyDisk()
    journal = new_journal(disk)
    first = journal.append([DecidedRecord(1)])
    ends = []

    def meanwhile(sync: object) -> None:
        assert callable(sync)
        ends.append(journal.append([DecidedRecord(2)]))
        sync()

    with disk.around("sync", "/", meanwhile):
        assert journal.sync() == first
    assert journal.synced == first < ends[0]
    assert journal.sync() == ends[0]


def test_each_frame_tells_what_was_synced_before_it() -> None:
    disk = FaultyDisk()
    journal = new_journal(disk)
    ends = [journal.position]
    for number in range(1, 4):
        ends.append(journal.append([DecidedRecord(number)]))
        journal.sync()
    journal.append([])
    segment = open_config_log(disk.directory("/"))
    assert [frame.synced for frame in walk(segment, 0)] == [0, *ends]


def test_tools_see_each_record_with_its_position() -> None:
    disk = FaultyDisk()
    journal = new_journal(disk)
    records: list[AppendedRecord] = [PromisedRecord(EARLY), DecidedRecord(1), DecidedRecord(2)]
    first, second = journal.position, journal.append(records[:2])
    journal.append(records[2:])
    segment = open_config_log(disk.directory("/"))
    places = [first, first, second]
    assert list(config_records(walk(segment, 0))) == list(zip(places, records, strict=True))


def test_a_snapshot_begins_a_file_in_which_positions_go_on() -> None:
    disk = FaultyDisk()
    journal = new_journal(disk)
    kept = NoteRecord(1, b"kept")
    for step in STEPS[:10]:
        do(journal, step)
    end, size = journal.position, len(disk.read_bytes(PATH).rstrip(b"\0"))
    journal.snapshot(3, LATE, b"state", [kept])
    assert len(disk.read_bytes(PATH).rstrip(b"\0")) < size
    assert end < journal.position == journal.synced
    assert disk.paths() == [PATH]
    disk = disk.crash("lost")
    _, found = reopened(disk)
    assert held_in(found) == Held(LATE, 3, SnapshotRecord(3, LATE, b"state"), (), (kept,))
    segment = open_config_log(disk.directory("/"))
    assert (segment.number, segment.first_position) == (2, end)


def test_an_entry_that_the_snapshot_holds_is_not_kept_again() -> None:
    journal = new_journal(disk := FaultyDisk())
    journal.snapshot(5, EARLY, b"state", [])
    journal.append([AcceptedRecord(5, EARLY, b"old"), AcceptedRecord(6, EARLY, b"new")])
    journal.append([DecidedRecord(4)])
    _, found = reopened(disk)
    assert [one.index for one in found.accepted] == [6]
    assert found.decided == 5


def test_a_file_that_has_grown_wants_a_snapshot() -> None:
    """So does one behind a large snapshot, but only if it has grown by as much again."""
    disk = FaultyDisk()
    journal = new_journal(disk)
    piece = NoteRecord(1, bytes(SNAPSHOT_AFTER // 4))
    for _ in range(3):
        journal.append([piece])
        assert not journal.wants_snapshot
    journal.append([piece])
    assert journal.wants_snapshot
    journal = reopened(disk)[0]
    assert journal.wants_snapshot
    journal.snapshot(1, EARLY, bytes(2 * SNAPSHOT_AFTER), [])
    for _ in range(7):
        journal.append([piece])
        assert not journal.wants_snapshot
    journal.append([piece])
    assert journal.wants_snapshot


def test_a_sync_rarely_finds_that_the_file_has_grown() -> None:
    disk = FaultyDisk()
    journal = new_journal(disk)
    sizes = []
    for number in range(3_000):
        journal.append([AcceptedRecord(number, EARLY, b"a change of 64 bytes".ljust(64))])
        sizes.append(len(disk.read_bytes(PATH)))
    grown = sum(before != after for before, after in pairwise(sizes))
    assert 0 < grown <= journal.position // AHEAD + 1


def test_the_real_disk_holds_a_journal_too(tmp_path: Path) -> None:
    directory = RealDirectory(str(tmp_path))
    journal = Journal.create(directory, identity=IDENTITY, cluster=CLUSTER)
    for step in STEPS:
        do(journal, step)
    journal.close()
    again, found = Journal.open(directory, identity=IDENTITY, durable=journal.synced)
    assert again is not None
    again.close()
    assert held_in(found) == held_after(STEPS)
    assert os.listdir(tmp_path) == ["config.log"]


def test_a_file_of_another_kind_is_not_a_journal() -> None:
    disk = FaultyDisk()
    disk.write_bytes(PATH, b"TIDELOG\0" + bytes(200))
    with pytest.raises(CorruptLogError, match="TLCONFIG"):
        open_config_log(disk.directory("/"))
