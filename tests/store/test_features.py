"""Stores with feature bits: who may open them, and that nobody takes a bit away."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

import tidelog
from support.logs import LogBuilder
from support.marks import fields_of, mark_manifest, mark_segment
from support.pipelines import rows
from tidelog.affinity.errors import FormatVersionError, TidelogError, UsageError
from tidelog.affinity.partitions import Space
from tidelog.engine.api.read_only import ReadOnlyDatabase
from tidelog.engine.upkeep.salvage import salvage
from tidelog.testing import check_store
from tidelog.tools.main import cli
from tidelog.wal.files import ReadOnlyDirectory
from tidelog.wal.format import CLUSTER, HEADER_SIZE, PREVIEW, parse_segment_header, segment_name
from tidelog.wal.reader import Scan, read_records
from tidelog.wal.records import NamespaceRecord, StateRecord
from tidelog.wal.segments import segment_numbers

UNKNOWN = 1 << 31
SEGMENT_BYTES = 64 << 10


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    with tidelog.open(path, partitions=2, segment_bytes=SEGMENT_BYTES) as db:
        db.map("m")[b"k"] = b"v"
    return path


def contents(store: Path) -> dict[Path, bytes]:
    """The files of a store but for its locks."""
    files = [path for path in store.rglob("*") if path.is_file() and "lock" not in path.name]
    return {path: path.read_bytes() for path in files}


def masks_of_segments(store: Path) -> list[tuple[int, int, int]]:
    found = []
    for number in segment_numbers(ReadOnlyDirectory(store / "wal")):
        data = (store / "wal" / segment_name(number)).read_bytes()[:HEADER_SIZE]
        header = parse_segment_header(data, number)
        found.append((header.compatible, header.read_only, header.required))
    return found


def rotate(store: Path) -> None:
    with tidelog.open(store, segment_bytes=SEGMENT_BYTES) as db:
        for number in range(40):
            db.map("m")[b"%d" % number] = bytes(10_000)


def open_reading(store: Path) -> ReadOnlyDatabase:
    return tidelog.open(store, read_only=True)


MARKS = [mark_manifest, mark_segment]


@pytest.mark.parametrize("mark", MARKS)
@pytest.mark.parametrize(
    ("masks", "writing", "reading"),
    [
        ({"required": UNKNOWN}, FormatVersionError, FormatVersionError),
        ({"read_only": UNKNOWN}, FormatVersionError, None),
        ({"required": CLUSTER}, UsageError, UsageError),
        ({"required": CLUSTER | PREVIEW}, UsageError, UsageError),
        ({"required": PREVIEW}, None, None),
        ({"compatible": UNKNOWN}, None, None),
    ],
)
def test_a_feature_decides_who_may_open_a_store(
    store: Path,
    mark: Callable[..., None],
    masks: dict[str, int],
    writing: type[TidelogError] | None,
    reading: type[TidelogError] | None,
) -> None:
    mark(store, **masks)
    files = contents(store)
    for opened, refusal in ((tidelog.open, writing), (open_reading, reading)):
        if refusal is None:
            with opened(store) as db:
                assert db.map("m")[b"k"] == b"v"
        else:
            with pytest.raises(refusal):
                opened(store)
    if writing is not None:
        assert contents(store) == files


def test_the_newest_segment_decides_for_the_log(store: Path) -> None:
    rotate(store)
    assert len(masks_of_segments(store)) > 1
    mark_segment(store, read_only=UNKNOWN)
    with pytest.raises(FormatVersionError):
        tidelog.open(store)


@pytest.mark.parametrize("mark", MARKS)
def test_the_pipeline_reads_no_store_of_a_cluster(store: Path, mark: Callable[..., None]) -> None:
    mark(store, required=CLUSTER)
    for view in ("snapshot", "changes", "wal", "meta"):
        with pytest.raises(UsageError, match="belongs to a cluster"):
            rows(store, view)
    if mark is mark_segment:
        with pytest.raises(UsageError, match="belongs to a cluster"):
            rows(store / "wal", "changes")


@pytest.mark.parametrize("mark", MARKS)
@pytest.mark.parametrize("command", ["dump", "stat", "ls", "verify"])
def test_the_log_of_a_cluster_may_be_looked_into(
    store: Path, mark: Callable[..., None], command: str
) -> None:
    mark(store, required=CLUSTER | PREVIEW)
    assert CliRunner().invoke(cli, ["wal", command, str(store)]).exit_code == 0


@pytest.mark.parametrize("required", [CLUSTER, 0])
def test_the_store_of_a_cluster_is_refused_by_name(store: Path, required: int) -> None:
    mark_manifest(store, cluster="c1", required=required)
    for opened in (tidelog.open, open_reading):
        with pytest.raises(UsageError, match="belongs to a cluster: c1"):
            opened(store)


@pytest.mark.parametrize("mark", MARKS)
def test_a_store_that_must_be_refused_is_not_salvaged_into_another_one(
    store: Path, mark: Callable[..., None]
) -> None:
    mark(store, required=UNKNOWN)
    with pytest.raises(FormatVersionError):
        salvage(str(store))
    done = CliRunner().invoke(cli, ["db", "salvage", str(store), str(store.parent / "saved")])
    assert done.exit_code == 8
    assert sorted(store.parent.iterdir()) == [store]


def test_a_store_with_several_spaces_is_refused_but_for_its_log(store: Path) -> None:
    mark_manifest(store, spaces=[[0, 1, 0], [1, 1, 0]])
    files = contents(store)
    readers = (check_store, lambda path: rows(path, "changes"))
    for look in (tidelog.open, open_reading, *readers):
        with pytest.raises(UsageError, match="has 2 spaces of partitions"):
            look(store)
    assert contents(store) == files
    for command in ("dump", "stat", "ls", "verify"):
        assert CliRunner().invoke(cli, ["wal", command, str(store)]).exit_code == 0


def test_the_head_of_each_segment_says_what_the_manifest_says_of_spaces(store: Path) -> None:
    rotate(store)
    scan = Scan(ReadOnlyDirectory(store / "wal"))
    states = [record for _, record in read_records(scan) if isinstance(record, StateRecord)]
    assert len(states) > 2
    assert {state.spaces for state in states} == {(Space(0, 2),)}
    assert fields_of(store)["spaces"] == [[0, 2, 0]]


def test_the_log_of_a_store_that_has_grown_is_verified_and_folded(tmp_path: Path) -> None:
    log = LogBuilder(partitions=2)
    name = NamespaceRecord(
        id=16, name="m", key_codec="bytes", key_version=1, value_codec="bytes", value_version=1
    )
    log.add(name)
    log.committed(3, partition=1)
    log.grow(3)
    log.committed(2, partition=4)
    log.committed(1, partition=1)
    log.idle()
    for file, data in log.directory.files.items():
        (tmp_path / file).write_bytes(bytes(data))
    for command in ("dump", "stat", "ls", "verify"):
        done = CliRunner().invoke(cli, ["wal", command, str(tmp_path)])
        assert done.exit_code == 0, done.output
    found = {row["partition"]: row["lwm"] for row in rows(tmp_path, "meta")}
    assert found == {0: 0, 1: 4, 2: 0, 3: 0, 4: 2}


@pytest.mark.parametrize("mark", MARKS)
def test_features_are_carried_on_by_rotations_copies_and_closes(
    store: Path, tmp_path: Path, mark: Callable[..., None]
) -> None:
    # A new segment had none.
    mark(store, compatible=UNKNOWN, required=PREVIEW)
    before = fields_of(store)
    rotate(store)
    wanted = (UNKNOWN, 0, PREVIEW)
    if mark is mark_segment:
        assert len(masks_of_segments(store)) > 2
        assert set(masks_of_segments(store)) == {wanted}
    with tidelog.open(store, segment_bytes=SEGMENT_BYTES) as db:
        db.backup(tmp_path / "copy")
    rotate(tmp_path / "copy")
    for path in (store, tmp_path / "copy"):
        names = ("compatible", "read_only", "required")
        assert {name: fields_of(path)[name] for name in names} == {
            name: before[name] for name in names
        }
        assert check_store(path) == []
    assert masks_of_segments(tmp_path / "copy")[-1] == wanted


def test_what_a_later_version_wrote_into_the_manifest_stays(store: Path, tmp_path: Path) -> None:
    # The first clean close threw it away.
    mark_manifest(store, later={"a": [1]})
    rotate(store)
    with tidelog.open(store) as db:
        db.backup(tmp_path / "copy")
    rotate(tmp_path / "copy")
    for path in (store, tmp_path / "copy"):
        assert fields_of(path)["later"] == {"a": [1]}


@pytest.mark.parametrize("opening", [tidelog.open, open_reading])
def test_the_directory_of_a_cluster_is_told_from_a_store(
    tmp_path: Path, opening: Callable[[Path], object]
) -> None:
    (tmp_path / "cluster.toml").touch()
    with pytest.raises(UsageError, match="directory of a cluster") as caught:
        opening(tmp_path)
    assert "tidelog.connect" in str(caught.value.hint)
    assert list(tmp_path.iterdir()) == [tmp_path / "cluster.toml"]
    done = CliRunner().invoke(cli, ["kv", "get", str(tmp_path), "map", "key"])
    assert done.exit_code == 2
    assert "directory of a cluster" in done.stderr
