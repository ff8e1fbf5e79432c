"""Real LMDB that finds no space in the middle of a commit, by a limit on the size of files."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import pytest

import tidelog
from support.full_disks import files_at_most
from tidelog.affinity.errors import DiskError, DiskFullError
from tidelog.engine.api.database import Database, session_of
from tidelog.engine.files import manifest as manifests
from tidelog.testing import check_store
from tidelog.wal.files import ReadOnlyDirectory

LARGE = random.Random(1).randbytes(3000)


def full_of(path: Path) -> tuple[Database, int]:
    """A store with a data file, updates that are not in it, and the size of that file."""
    db = tidelog.open(path, partitions=1, durability="none", segment_bytes=128 << 10)
    table = db.map("m")
    table.update_many({b"%04d" % number: LARGE for number in range(500)})
    db.checkpoint()
    for first in range(0, 200, 20):
        table.update_many({b"x%04d" % number: LARGE for number in range(first, first + 20)})
    return db, (path / "data/data.mdb").stat().st_size


def is_doubtful(path: Path) -> bool:
    return manifests.read(ReadOnlyDirectory(path)).rebuild


@pytest.mark.slow
@pytest.mark.parametrize("left", [0, 8_192, 100_000, 400_000])
def test_a_checkpoint_that_finds_no_space_is_no_io_error(tmp_path: Path, left: int) -> None:
    # LMDB calls a write of which a part fitted an I/O error: checkpoints ended for good, and the
    # next open copied the data file, for which there was no space either.
    db, size = full_of(tmp_path / "store")
    data = tmp_path / "store/data/data.mdb"
    with files_at_most(size + left):
        for _ in range(2):
            with pytest.raises(DiskFullError):
                db.checkpoint()
            assert data.stat().st_size == size, "the space is not given back"
    assert not is_doubtful(tmp_path / "store")
    assert len(db.map("m")) == 700
    db.checkpoint()
    db.close()
    assert check_store(tmp_path / "store") == []


@pytest.mark.slow
def test_a_store_without_space_is_closed_and_opened_without_a_copy_of_its_data_file(
    tmp_path: Path,
) -> None:
    db, size = full_of(tmp_path / "store")
    with files_at_most(size + 8_192):
        with pytest.raises(DiskFullError):
            db.close()
        with tidelog.open(tmp_path / "store", read_only=True) as reader:
            assert len(reader.map("m")) > 0
        again = tidelog.open(tmp_path / "store")
        assert len(again.map("m")) == 700
        session_of(again).abandon()
    with tidelog.open(tmp_path / "store") as db:
        assert len(db.map("m")) == 700
    assert check_store(tmp_path / "store") == []


@pytest.mark.slow
def test_where_a_page_was_lost_as_well_the_data_file_is_doubtful(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db, size = full_of(tmp_path / "store")
    sync, watch = os.fdatasync, session_of(db).store.kv._watch  # type: ignore[attr-defined]  # the real one

    def fail(fd: int) -> None:
        if fd == watch:
            raise OSError(errno.EIO, "Input/output error")
        sync(fd)

    monkeypatch.setattr(os, "fdatasync", fail)
    with files_at_most(size), pytest.raises(DiskError, match="a sync of the file failed, too"):
        db.checkpoint()
    assert is_doubtful(tmp_path / "store")
    with pytest.raises(DiskError):
        db.close()
    monkeypatch.undo()
    with tidelog.open(tmp_path / "store") as again:
        assert len(again.map("m")) == 700
