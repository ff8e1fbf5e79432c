"""Every way to end has its code, and every error three lines."""

from __future__ import annotations

import errno
import inspect
import os
import pkgutil
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import click
import lmdb
import pytest
from click.testing import CliRunner, Result

from tidelog.affinity import errors
from tidelog.engine.system.lmdb_file import translated
from tidelog.tools.shell.commands import RootGroup
from tidelog.tools.shell.exits import (
    CODES,
    Exit,
    RefusedError,
    Terminated,
    error_lines,
    exit_code,
)

Run = Callable[..., Result]

CORRUPT = {"kind": "damaged", "segment": 3, "offset": 128}

ENDS: list[tuple[BaseException, Exit]] = [
    (errors.UsageError("wrong"), Exit.USAGE),
    (errors.CodecError("no such codec"), Exit.USAGE),
    (errors.UnsupportedError("a network file system"), Exit.USAGE),
    (errors.TransactionTooLargeError("too large"), Exit.USAGE),
    (click.UsageError("bad option"), Exit.USAGE),
    (OSError(errno.EISDIR, "Is a directory", "x"), Exit.USAGE),
    (errors.CorruptLogError("damaged", **CORRUPT), Exit.FOUND),  # type: ignore[arg-type]
    (errors.CorruptDataError("damaged"), Exit.FOUND),
    (errors.ForeignFileError("of another store"), Exit.FOUND),
    (errors.DivergedError("two rows", partition=0, version=1), Exit.FOUND),
    (errors.NotFoundError("nothing there"), Exit.NOT_FOUND),
    (errors.HistoryTruncatedError("dropped"), Exit.NOT_FOUND),
    (FileNotFoundError(errno.ENOENT, "No such file", "x"), Exit.NOT_FOUND),
    (errors.ConflictError("changed", namespace="n", key=b"k", winner=None), Exit.ABORTED),
    (errors.RolledBackError("rolled back"), Exit.ABORTED),
    (errors.LockTimeoutError("waited"), Exit.UNAVAILABLE),
    (errors.DeadlineError("too late"), Exit.UNAVAILABLE),
    (errors.SnapshotExpiredError("ended"), Exit.UNAVAILABLE),
    (errors.PartitionUnavailableError("nobody is there", partition=1), Exit.UNAVAILABLE),
    (errors.NotEnoughMembersError("too few"), Exit.UNAVAILABLE),
    (errors.ServerError("a bug", server_code="ValueError"), Exit.FAILURE),
    (errors.AlreadyOpenError("open", path="p", pid=1), Exit.REFUSED),
    (errors.ReadOnlyError("read only"), Exit.REFUSED),
    (RefusedError("exists"), Exit.REFUSED),
    (FileExistsError(errno.EEXIST, "File exists", "x"), Exit.REFUSED),
    (errors.FormatVersionError("newer", found=2, supported=1), Exit.FORMAT),
    (errors.CommitUnknownError("unknown", tx_id=bytes(16), home=0), Exit.UNKNOWN),
    (errors.DiskFullError("full"), Exit.DISK),
    (errors.DiskError("broken"), Exit.DISK),
    (OSError(errno.EIO, "Input/output error", "x"), Exit.DISK),
    (OSError(errno.ENOSPC, "No space left on device"), Exit.DISK),
    (PermissionError(errno.EACCES, "Permission denied", "x"), Exit.PERMISSION),
    (OSError(errno.EROFS, "Read-only file system", "x"), Exit.PERMISSION),
    (KeyboardInterrupt(), Exit.INTERRUPTED),
    (click.Abort(), Exit.INTERRUPTED),
]


def group_that_raises(error: BaseException) -> RootGroup:
    group = RootGroup("tidelog")

    @group.command()
    def fail() -> None:
        raise error

    return group


@pytest.mark.parametrize(("error", "code"), ENDS, ids=lambda value: type(value).__name__)
def test_an_error_ends_the_command_with_its_code(error: BaseException, code: Exit) -> None:
    done = CliRunner().invoke(group_that_raises(error), ["fail"])
    assert done.exit_code == code
    assert done.stdout == ""
    if code is not Exit.INTERRUPTED:
        assert done.stderr.startswith("error: ")
        assert "TL-" in done.stderr.splitlines()[0]
        assert len(done.stderr.splitlines()) <= 3
        assert "Traceback" not in done.stderr


def test_every_error_of_tidelog_has_an_exit_code() -> None:
    classes = [
        kind
        for _, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, errors.TidelogError)
    ]
    assert len(classes) > 20
    for kind in classes:
        assert any(issubclass(kind, base) for base, _ in CODES[:-1]) or kind is errors.TidelogError


def test_no_row_of_the_table_hides_a_later_one() -> None:
    for index, (kind, _) in enumerate(CODES):
        assert not any(issubclass(kind, before) for before, _ in CODES[:index])


def test_a_refused_permission_shows_through_the_error_of_the_engine() -> None:
    error = errors.DiskError("locking failed")
    error.__cause__ = PermissionError(errno.EACCES, "Permission denied")
    assert exit_code(error) is Exit.PERMISSION
    done = CliRunner().invoke(group_that_raises(error), ["fail"])
    assert done.exit_code == Exit.PERMISSION
    assert "as the owner of the files" in done.stderr


def test_what_where_and_what_to_do_are_told() -> None:
    error = errors.NotFoundError("there is no map 'x'", hint="Look at the maps.")
    done = CliRunner().invoke(group_that_raises(error), ["fail"])
    assert done.stderr == "error: there is no map 'x'  [TL-USE-006]\n  next:  Look at the maps.\n"


def test_what_is_told_does_nothing_to_a_terminal() -> None:
    """Names of fields and codecs in files of others went to it as they were."""
    error = errors.NotFoundError("no \x1b]0;title\x07 in ñ\udcff", hint="Look\nat \u202e it.")
    done = CliRunner().invoke(group_that_raises(error), ["fail"])
    assert done.stderr == (
        "error: no \\x1b]0;title\\x07 in ñ\\udcff  [TL-USE-006]\n  next:  Look\nat \\u202e it.\n"
    )


def test_debug_shows_the_traceback() -> None:
    group = group_that_raises(errors.NotFoundError("nothing"))
    done = CliRunner().invoke(group, ["fail", "--debug"])
    assert done.exit_code == Exit.NOT_FOUND
    assert "Traceback" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: nothing")


def test_debug_tells_code_and_hint_once() -> None:
    error = errors.DiskError("it failed")
    error.add_note("seen at noon")
    error.__cause__ = errors.UsageError("below", hint="Look below.")
    done = CliRunner().invoke(group_that_raises(error), ["fail", "--debug"])
    assert done.stderr.count(errors.DiskError.hint) == 1
    assert done.stderr.count("TL-STO-003") == 1
    assert "seen at noon" in done.stderr
    assert "next: Look below." in done.stderr  # told nowhere else
    assert error.__notes__[-1] == "seen at noon"


def test_a_hint_names_the_store_that_the_command_is_about() -> None:
    error = errors.CorruptDataError("a value does not match")
    lines = list(error_lines(error, "my shop.tl"))
    assert "`tidelog db salvage 'my shop.tl' DIR`" in lines[-1]
    assert "STORE" in list(error_lines(error, None))[-1]


def test_what_may_not_be_read_ends_with_11(
    shop: Path, run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    # click looked first, and called it wrong usage.
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert run("kv", "get", shop, "numbers", "5").exit_code == 0
    real = os.stat

    def refuse(path: Any, *arguments: Any, **more: Any) -> os.stat_result:
        if str(path).endswith("manifest"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return real(path, *arguments, **more)

    monkeypatch.setattr(os, "stat", refuse)
    done = run("kv", "get", shop, "numbers", "5")
    assert (done.exit_code, "TL-OS-013" in done.stderr) == (11, True)


def test_the_refusal_of_the_data_file_counts_as_one_of_permission() -> None:
    with pytest.raises(errors.DiskError) as caught, translated("opening data"):
        raise lmdb.Error("data/data.mdb: Permission denied")
    assert exit_code(caught.value) is Exit.PERMISSION


@pytest.mark.parametrize("kind", [errors.UsageError, errors.CodecError, RefusedError])
def test_an_error_about_the_call_gets_no_hint_about_files(kind: type[errors.UsageError]) -> None:
    # Each was told to check the path, or to choose another one.
    assert list(error_lines(kind("--key and --prefix exclude each other"), None)) == [
        f"--key and --prefix exclude each other  [{kind.code}]"
    ]


def test_an_error_of_storage_without_a_hint_of_its_own_gets_the_one_about_the_disk() -> None:
    assert list(error_lines(errors.StorageError("nothing was written"), None)) == [
        "nothing was written  [TL-STO-001]",
        "  next:  Check the disk and the space on it.",
    ]


@pytest.mark.parametrize(
    ("number", "told"),
    [(errno.ENAMETOOLONG, "shorter name"), (errno.ENOENT, "Check the path"),
     (errno.EISDIR, "Check the path"), (errno.EIO, "Check the disk")],
)  # fmt: skip
def test_the_hint_about_the_disk_goes_by_its_cause(number: int, told: str) -> None:
    error = errors.DiskError("making the directory failed")
    error.__cause__ = OSError(number, os.strerror(number))
    assert told in list(error_lines(error, None))[-1]


@pytest.mark.parametrize(
    "command",
    [
        ["kv", "scan", "{shop}", "stock", "--limit"],
        ["wal", "dump", "{shop}", "--limit"],
        ["wal", "dump", "{shop}", "--last"],
        ["kv", "import", "{shop}", "--map", "m", "--batch"],
        ["kv", "import", "{shop}", "--map", "m", "--skip"],
    ],
)
def test_a_count_that_is_too_large_is_wrong_usage(command: list[str], run: Run, shop: Path) -> None:
    # It was a bug of islice.
    arguments = [part.format(shop=shop) for part in command]
    done = run(*arguments, "9" * 20, input='{"key": "a", "value": 1}\n')
    assert done.exit_code == 2
    assert "more than the largest number" in done.stderr
    assert run(*arguments, "9" * 18, input='{"key": "a", "value": 1}\n').exit_code == 0


def test_a_tag_that_is_not_utf8_is_wrong_usage(run: Run, shop: Path) -> None:
    done = run("kv", "put", shop, "stock", "a", "1", "--tag", "caf\udce9")
    assert done.exit_code == 2
    assert "cannot be written as UTF-8" in done.stderr
    assert run("kv", "get", shop, "stock", "a").exit_code == 4


def test_an_argument_that_begins_with_a_dash_names_the_dashes(run: Run, shop: Path) -> None:
    done = run("kv", "put", shop, "numbers", "-5", "five")
    assert done.exit_code == 2
    assert "if -5 is not an option, give -- in front of it and what follows" in done.stderr
    assert run("kv", "put", shop, "numbers", "--", "-5", "five").exit_code == 0
    assert run("kv", "get", shop, "numbers", "--", "-5").stdout == "five\n"
    assert " -- " not in run("kv", "scan", shop, "numbers", "--limt", "5").stderr


@pytest.mark.parametrize("more", [["--create"], []])
def test_a_link_that_leads_nowhere_is_no_store(more: list[str], run: Run, tmp_path: Path) -> None:
    # "Check the disk".
    (tmp_path / "link.tl").symlink_to("nowhere")
    done = run("kv", "put", tmp_path / "link.tl", "m", "a", "1", *more)
    assert done.exit_code == 2
    assert "is a symbolic link to nowhere, which does not exist" in done.stderr


def test_the_store_in_a_hint_is_the_one_around_a_log_or_a_segment(shop: Path) -> None:
    # It was the log itself, which no command for stores takes, or the word STORE.
    error = errors.CorruptLogError("damaged", kind="damaged", segment=3, offset=128)
    for inside in (shop, shop / "wal", shop / "wal" / "0000000000000001.log"):
        hint = list(error_lines(error, str(inside)))[-1]
        assert f"`tidelog db salvage {shop} DIR`" in hint


INTERRUPTED: list[tuple[list[str], str, str]] = [
    (["kv", "count"], "tidelog.tools.kv.cli.encoded_pairs", "counted so far: 'numbers' 1\n"),
    (["wal", "verify"], "tidelog.checkpoints.continuity.Continuity.take", "read 2 frames so far\n"),
    (["wal", "stat"], "tidelog.tools.wal.summary.Tally.add", "so far 1 frames with"),
    (["db", "verify"], "tidelog.checkpoints.continuity.Continuity.take", "problem: all is odd\n"),
]


@pytest.mark.parametrize(("command", "place", "told"), INTERRUPTED)
@pytest.mark.parametrize(("kind", "code"), [(KeyboardInterrupt, 130), (Terminated, 143)])
def test_a_check_that_is_interrupted_tells_what_is_known(
    command: list[str],
    place: str,
    told: str,
    kind: type[BaseException],
    code: int,
    shop: Path,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # It ended without a word, after an hour perhaps.
    real, calls = pkgutil.resolve_name(place), count()

    def interrupted(*arguments: Any, **more: Any) -> Any:
        if next(calls) == 1:
            raise kind
        if command == ["db", "verify"]:
            arguments[0]._tell("all is odd")
        return real(*arguments, **more)

    monkeypatch.setattr(place, interrupted)
    done = run(*command, shop)
    assert done.exit_code == code
    assert told in done.stderr
