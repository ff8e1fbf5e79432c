"""Batches are bounded in bytes as well as in rows, whatever is read, and however."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from support.pipelines import new_store, rows
from tidelog.pipeline.data import archives
from tidelog.pipeline.jobs import compaction, runner as jobs
from tidelog.pipeline.jobs.compaction import FILE_SIZES, FileSizes, compact
from tidelog.pipeline.jobs.runner import Runner
from tidelog.pipeline.log import columns
from tidelog.pipeline.plan.options import parse
from tidelog.pipeline.plan.reads import Task, read
from tidelog.pipeline.plan.streams import stream

HERE = Runner()
VALUES, SIZE = 60, 1 << 20
BOUND = columns.BATCH_BYTES + (6 << 20)
"""A block of a snapshot more, and a value."""


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A closed store with large values behind small ones, and a copy with them in its log."""
    folder = tmp_path_factory.mktemp("large")
    with new_store(folder / "s", partitions=1, checkpoint_bytes=1 << 30) as db:
        pairs = db.map("m")
        pairs.update_many({b"a%d" % number: b"" for number in range(2_000)})
        for number in range(VALUES):
            pairs[b"b%d" % number] = bytes(SIZE)
        db.backup(folder / "copy")
    return folder / "s", folder / "copy"


def sizes(tasks: Iterable[Task]) -> list[tuple[int, int]]:
    """Return rows and bytes of each batch."""
    return [(batch.num_rows, batch.nbytes) for task in tasks for batch in task.batches()]


def check(found: list[tuple[int, int]]) -> None:
    assert sum(size for _, size in found) > VALUES * SIZE
    assert max(size for _, size in found) < BOUND


@pytest.mark.slow
@pytest.mark.parametrize("view", ["snapshot", "changes", "wal"])
@pytest.mark.parametrize("place", [0, 1])
def test_no_batch_is_larger_than_its_bound(
    stores: tuple[Path, Path], view: str, place: int
) -> None:
    # Blocks of a snapshot were 1,000 rows, whatever these were: 2 GiB of them broke Arrow.
    check(sizes(read(parse({"path": str(stores[place]), "view": view}))))


@pytest.mark.slow
def test_a_stream_that_begins_with_a_copy_has_batches_of_that_size(
    stores: tuple[Path, Path],
) -> None:
    given = {"path": str(stores[0]), "view": "changes", "initialSnapshot": str(stores[1])}
    follower = stream(parse(given, stream=True))
    start = follower.initial()
    check(sizes(follower.tasks(start, follower.latest(start, None))))


@pytest.mark.slow
def test_an_archive_and_an_export_are_made_and_read_in_such_batches(
    stores: tuple[Path, Path], tmp_path: Path
) -> None:
    from pyarrow.parquet import ParquetFile

    archive = tmp_path / "archive"
    compact(str(stores[0]), str(archive), HERE, sizes=FileSizes(waiting=8 << 20))
    for view in ("snapshot", "changes"):
        check(sizes(read(parse({"path": str(archive), "view": view}))))
    assert len(rows(archive, "snapshot", columns="key")) == 2_000 + VALUES
    jobs.export({"path": str(stores[0])}, str(tmp_path / "export"), "parquet", HERE)
    for file in (*archive.rglob("*.parquet"), *(tmp_path / "export").iterdir()):
        with ParquetFile(file) as found:
            groups = [found.metadata.row_group(n) for n in range(found.num_row_groups)]
        assert max(group.total_byte_size for group in groups) < BOUND
    assert archives.read_archive(str(archive)).parts()


@pytest.mark.slow
def test_the_base_of_an_archive_is_written_in_such_batches(
    stores: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    write = compaction._Files.write

    def written(files: Any, bundle: int, batch: Any) -> None:
        seen.append((batch.num_rows, batch.nbytes))
        write(files, bundle, batch)

    monkeypatch.setattr(compaction._Files, "write", written)
    part = read(parse({"path": str(stores[0])}))[0].part
    list(compaction._write_part(str(tmp_path), FILE_SIZES, (0, part)))  # type: ignore[arg-type]
    check(seen)


@pytest.mark.parametrize("most", [1, 10, 500])
def test_batches_have_no_more_rows_than_asked_for(tmp_path: Path, most: int) -> None:
    # Fewer than 1,000 had no effect.
    with new_store(tmp_path / "s", partitions=2) as db:
        db.map("m").update_many({b"%d" % number: b"v" for number in range(1_100)})
    tasks = read(parse({"path": str(tmp_path / "s"), "batchRows": str(most)}))
    found = [count for count, _ in sizes(tasks)]
    assert sum(found) == 1_100
    assert max(found) <= 2 * most - 1
