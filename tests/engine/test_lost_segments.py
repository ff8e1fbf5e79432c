"""A store of which a segment was deleted or emptied says so, to whoever opens or reads it."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import tidelog
from tidelog.affinity.errors import CorruptLogError, TidelogError
from tidelog.engine.api.database import session_of
from tidelog.engine.files.log_keeper import LogKeeper
from tidelog.engine.files.log_source import find_log
from tidelog.engine.files.recorded import NEVER
from tidelog.pipeline.log.logs import Log
from tidelog.testing import check_store
from tidelog.tools.main import cli
from tidelog.wal.files import ReadOnlyDirectory
from tidelog.wal.format import segment_name
from tidelog.wal.segments import segment_numbers
from tidelog.wal.tail import End

SEGMENT_BYTES = 128 << 10
VALUE = b"v" * 10_000


def numbers_of(store: Path) -> list[int]:
    return segment_numbers(ReadOnlyDirectory(store / "wal"))


def file_of(store: Path, number: int) -> Path:
    return store / "wal" / segment_name(number)


def verified(command: str, store: Path) -> int:
    return CliRunner().invoke(cli, [command, "verify", str(store)]).exit_code


def end_of(store: Path) -> End:
    scan = find_log(str(store)).scan()
    assert list(scan)
    return scan.end


@pytest.fixture
def crashed(tmp_path: Path) -> Path:
    """A store of three segments that was not closed; all in it was acknowledged as durable."""
    db = tidelog.open(tmp_path / "store", partitions=2, segment_bytes=SEGMENT_BYTES)
    table = db.map("m")
    number = 0
    while len(numbers_of(tmp_path / "store")) < 3:
        table[b"%d" % number] = VALUE
        number += 1
    table[b"last"] = VALUE
    session_of(db).abandon()
    return tmp_path / "store"


def remove(file: Path) -> None:
    file.unlink()


def empty(file: Path) -> None:
    file.write_bytes(b"")


def zero(file: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


@pytest.mark.slow
@pytest.mark.parametrize("lose", [remove, empty, zero])
def test_a_lost_newest_segment_is_told_by_everyone(
    crashed: Path, lose: Callable[[Path], None]
) -> None:
    # What the index beside it and the segment before proved was not asked: the store opened without
    # up to 64 MiB of commits that had been acknowledged, and was called whole.
    lose(file_of(crashed, 3))
    files = {path: path.read_bytes() for path in crashed.rglob("*.log")}
    for read_only in (False, True):
        with pytest.raises(CorruptLogError, match="segment 3, offset 0"):
            tidelog.open(crashed, read_only=read_only)
    assert any("segment 3" in problem for problem in check_store(crashed))
    assert verified("db", crashed) == verified("wal", crashed) == 3
    with pytest.raises(TidelogError, match="segment 3"):
        Log(str(crashed)).durable_end()
    assert {path: path.read_bytes() for path in crashed.rglob("*.log")} == files


@pytest.mark.parametrize("lose", [remove, empty, zero])
def test_a_log_that_is_lost_before_the_first_checkpoint_is_told_by_everyone(
    tmp_path: Path, lose: Callable[[Path], None]
) -> None:
    # The store opened, empty.
    db = tidelog.open(tmp_path / "store", partitions=2)
    db.map("m")[b"key"] = b"value"
    session_of(db).abandon()
    lose(file_of(tmp_path / "store", 1))
    files = sorted(tmp_path.rglob("*.log"))
    for read_only in (False, True):
        with pytest.raises(CorruptLogError):
            tidelog.open(tmp_path / "store", read_only=read_only)
    assert check_store(tmp_path / "store")
    assert verified("db", tmp_path / "store") == verified("wal", tmp_path / "store") == 3
    with pytest.raises(TidelogError):
        Log(str(tmp_path / "store")).durable_end()
    assert sorted(tmp_path.rglob("*.log")) == files


@pytest.mark.slow
def test_the_index_alone_proves_a_segment_that_was_cut_together_with_the_newest_one(
    crashed: Path,
) -> None:
    with tidelog.open(crashed, segment_bytes=SEGMENT_BYTES, retain_bytes=1 << 40) as db:
        db.checkpoint()
    number = numbers_of(crashed)[-1]
    with open(file_of(crashed, number - 1), "r+b") as file:
        content = file.read()
        file.truncate(content.rindex(b"TLS\x01"))
    file_of(crashed, number).unlink()
    (crashed / "manifest").unlink()  # else the end of the clean close proves it
    assert end_of(crashed).row == "Q"
    (crashed / "wal" / f"{number - 1:016d}.idx").unlink()
    assert not end_of(crashed).refused


@pytest.mark.slow
def test_a_segment_that_follows_no_crash_is_sealed_at_the_next_open(crashed: Path) -> None:
    with open(file_of(crashed, 2), "r+b") as file:
        content = file.read()
        place = content.rindex(b"TLS\x01")
        file.seek(place)
        file.write(bytes(64))
    assert check_store(crashed) == []
    session_of(tidelog.open(crashed)).abandon()
    assert file_of(crashed, 2).read_bytes()[place : place + 4] == b"TLS\x01"
    file_of(crashed, 3).unlink()
    with pytest.raises(CorruptLogError):
        tidelog.open(crashed)


@pytest.mark.slow
def test_a_backup_has_the_seals_of_what_it_copied(crashed: Path, tmp_path: Path) -> None:
    with tidelog.open(crashed) as db:
        db.map("m")[b"more"] = b""
        session_of(db).abandon()
    with tidelog.open(crashed, read_only=True) as reader:
        reader.backup(tmp_path / "copy")
    copied = numbers_of(tmp_path / "copy")
    assert copied == [1, 2, 3]
    for number in copied[:-1]:
        assert b"TLS\x01" in file_of(tmp_path / "copy", number).read_bytes()
    session_of(tidelog.open(tmp_path / "copy")).abandon()
    assert numbers_of(tmp_path / "copy") == [1, 2, 3, 4]
    file_of(tmp_path / "copy", 4).unlink()
    with pytest.raises(CorruptLogError, match="segment 4"):
        tidelog.open(tmp_path / "copy")


@pytest.mark.slow
def test_what_lies_below_a_hole_is_left_as_it_is(
    crashed: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # The first writable open removed it: a segment that was found again came too late.
    with tidelog.open(crashed, retain_bytes=1 << 40) as db:
        db.checkpoint()
    aside = tmp_path / "aside"
    shutil.move(file_of(crashed, 2), aside)
    first = file_of(crashed, 1).read_bytes()
    caplog.clear()
    caplog.set_level(logging.WARNING, "tidelog.log")
    with tidelog.open(crashed, retain_bytes=1) as db:
        assert db.outcome(b"never committed!") == "too_old"
        db.map("m")[b"behind"] = b"it"
        db.checkpoint()
    said = f"log.hole: Tidelog: the log of the store {crashed} lacks segments 2 to 2"
    assert said in caplog.text
    assert file_of(crashed, 1).read_bytes() == first
    assert verified("db", crashed) == verified("wal", crashed) == 3
    listed = CliRunner().invoke(cli, ["wal", "ls", str(crashed)])
    assert "segment 2 is missing" in listed.output
    shutil.move(aside, file_of(crashed, 2))
    assert verified("db", crashed) == 0
    with tidelog.open(crashed, retain_bytes=1 << 40) as db:
        assert db.statistics().log_first_position == 0
        assert db.outcome(b"never committed!") == "rolled_back"


def test_whether_a_partition_was_copied_in_full_is_not_said_of_a_log_with_a_gap(
    tmp_path: Path,
) -> None:
    # What cannot be read may have it: "rolled back" would be said of what a full copy has.
    with tidelog.open(tmp_path / "store", partitions=2, segment_bytes=SEGMENT_BYTES) as db:
        table, number = db.map("m"), 0
        while len(numbers_of(tmp_path / "store")) < 4:
            table[b"%d" % number] = VALUE
            number += 1
        keeper = session_of(db).store.keeper
        assert keeper.fills().of(0) == NEVER
        gap = file_of(tmp_path / "store", numbers_of(tmp_path / "store")[1])
        moved = gap.rename(tmp_path / "elsewhere")
        with pytest.raises(CorruptLogError, match="a segment is missing"):
            keeper.fills()
        moved.rename(gap)
        assert keeper.fills().of(0) == NEVER


def test_a_segment_that_goes_while_an_outcome_is_looked_for_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find, calls = LogKeeper.find_transaction, list[int]()

    def beside_a_checkpoint(keeper: LogKeeper, *about: Any) -> Any:
        calls.append(len(calls))
        if len(calls) < 3:
            raise CorruptLogError("a segment is missing", kind="gap", segment=1, offset=0)
        return find(keeper, *about)

    monkeypatch.setattr(LogKeeper, "find_transaction", beside_a_checkpoint)
    with tidelog.open(tmp_path / "store", partitions=2) as db:
        table = db.map("m")
        with db.transaction() as tx:
            tx[table][b"k"] = VALUE
        assert tx.receipt is not None
        assert db.outcome(tx.receipt.tx_id) == "committed"
    assert len(calls) == 3
