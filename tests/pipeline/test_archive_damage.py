"""Damage in an archive: whoever reads it gets what was written, or an error that names the file."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path

import pytest

from support.pipelines import Row, fill, new_store, rows
from tidelog.affinity.errors import CorruptDataError, FormatVersionError, UsageError
from tidelog.pipeline.data import archives
from tidelog.pipeline.jobs import audits, loads, runner as jobs
from tidelog.pipeline.jobs.compaction import compact
from tidelog.pipeline.jobs.runner import Runner

HERE = Runner()


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive of two stretches."""
    folder = tmp_path_factory.mktemp("damage")
    for seed in range(2):
        with new_store(folder / "store", partitions=4) as db:
            fill(db, seed, 60)
            db.map(f"short{seed}")[b"k"] = b"v"
            db.drop(f"short{seed}")
        compact(str(folder / "store"), str(folder / "archive"), HERE)
    return folder / "archive"


def everything(path: Path) -> list[list[Row]]:
    return [rows(path, "changes", includeCatalog="true"), rows(path, "snapshot")]


def files(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file() and file.stat().st_size)


def check_flips(archive: Path, count: int, seed: int) -> None:
    """Flip one bit after the other, anywhere, and put it back."""
    rng = random.Random(seed)
    good = everything(archive)
    sizes = [file.stat().st_size for file in files(archive)]
    seen = 0
    for _ in range(count):
        (file,) = rng.choices(files(archive), sizes)
        data = file.read_bytes()
        place, bit = rng.randrange(len(data)), 1 << rng.randrange(8)
        damaged = bytearray(data)
        damaged[place] ^= bit
        file.write_bytes(damaged)
        for view, wanted in zip(("changes", "snapshot"), good, strict=True):
            options = {"includeCatalog": "true"} if view == "changes" else {}
            found: object = None
            try:
                found = rows(archive, view, **options)
            except CorruptDataError as error:
                found = str(error)
            told = isinstance(found, str) and file.name in found
            assert told or found == wanted, (file, place, bit)
            seen += told
        file.write_bytes(data)
    assert everything(archive) == good
    assert seen > count


@pytest.mark.slow
def test_no_flipped_bit_changes_a_row(archive: Path) -> None:
    # Of 150 bits 108 gave other changes, and 31 another snapshot, without a word.
    check_flips(archive, 60, 1)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(4))
def test_no_flipped_bit_of_a_thousand_changes_a_row(archive: Path, seed: int) -> None:
    check_flips(archive, 250, 100 + seed)


@pytest.mark.parametrize("harm", ["missing", "cut", "empty", "another", "link", "folder is a link"])
def test_a_file_that_is_not_what_was_written_is_named(
    archive: Path, tmp_path: Path, harm: str
) -> None:
    copy = tmp_path / "archive"
    shutil.copytree(archive, copy)
    file, other = sorted(copy.glob("changes-*1/*.parquet"))[:2]
    data = file.read_bytes()
    if harm == "cut":
        file.write_bytes(data[:-1])
    elif harm == "empty":
        file.write_bytes(b"")
    elif harm == "another":
        shutil.copy(other, file)
    elif harm == "folder is a link":
        file.parent.rename(tmp_path / "elsewhere")
        file.parent.symlink_to(tmp_path / "elsewhere")
    else:
        file.rename(tmp_path / "elsewhere.parquet")
        if harm == "link":
            file.symlink_to(tmp_path / "elsewhere.parquet")
    for view in ("changes", "snapshot"):
        with pytest.raises(CorruptDataError, match=file.name) as raised:
            rows(copy, view)
        assert raised.value.hint == "Restore the archive, or compact into a new one."
    (found, *_) = audits.verify_archives([str(copy)], HERE)
    assert found["file"] == f"changes-00000001/{file.name}"


def test_a_whole_archive_passes_and_what_is_none_is_refused(archive: Path, tmp_path: Path) -> None:
    assert audits.verify_archives([str(archive), str(archive)], HERE) == []
    with pytest.raises(UsageError, match="is not an archive"):
        audits.verify_archives([str(archive), str(tmp_path)], HERE)


@pytest.mark.parametrize("name", ["../store", "/etc", "a/b", "..", ""])
def test_an_archive_names_nothing_outside_its_folder(
    archive: Path, tmp_path: Path, name: str
) -> None:
    # A foreign archive made a reader open any file that the user may read.
    fields = json.loads((archive / archives.NAME).read_text())
    del fields["check"]
    for place in ("folder", "file"):
        told = json.loads(json.dumps(fields))
        if place == "folder":
            told["stretches"][0]["folder"] = name
        else:
            next(iter(told["stretches"][0]["files"].values()))[0][0] = name
        told["check"] = archives._check_of(told)
        (tmp_path / archives.NAME).write_text(json.dumps(told))
        with pytest.raises(CorruptDataError, match="is not in the archive"):
            rows(tmp_path, "changes")


def test_what_is_left_out_of_the_account_is_told(archive: Path, tmp_path: Path) -> None:
    # A bundle that was taken out of it gave fewer rows, and no error.
    shutil.copytree(archive, tmp_path / "copy")
    place = tmp_path / "copy" / archives.NAME
    fields = json.loads(place.read_text())
    fields["stretches"][0]["files"].popitem()
    place.write_text(json.dumps(fields))
    with pytest.raises(CorruptDataError, match="does not match its checksum"):
        rows(tmp_path / "copy", "changes")


def test_an_archive_of_another_version_is_told_as_such(tmp_path: Path) -> None:
    (tmp_path / archives.NAME).write_text('{"v": 1, "store": ""}')
    with pytest.raises(FormatVersionError, match="version 1"):
        rows(tmp_path, "changes")


def test_what_jobs_write_is_for_its_owner_only(tmp_path: Path) -> None:
    # Archives, exports and the folder of a load could be read by everybody on the machine.
    store = tmp_path / "store"
    with new_store(store, partitions=4) as db:
        fill(db, 1, 9)
    before = os.umask(0o022)
    try:
        compact(str(store), str(tmp_path / "deep" / "archive"), HERE)
        given = {"path": str(store), "view": "changes"}
        jobs.export(given, str(tmp_path / "export"), "csv", HERE)
        (tmp_path / "rows.csv").write_text("key,value\na,1\n")
        loads.load(
            str(tmp_path / "rows.csv"),
            {"path": str(tmp_path / "load"), "namespace": "m", "partitions": "4"},
            HERE,
        )
    finally:
        os.umask(before)
    found = 0
    for name in ("deep", "export", "load"):
        for place in (tmp_path / name, *(tmp_path / name).rglob("*")):
            wanted = 0o700 if place.is_dir() else 0o600
            assert place.stat().st_mode & 0o777 == wanted, place
            found += 1
    assert found > 10
