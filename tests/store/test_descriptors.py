"""A process without free descriptors: calls end in errors of Tidelog, and nothing is lost."""

from __future__ import annotations

import gc
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from support.real_stores import error_of, expect_sound, opened, quiet
from tidelog.engine.api.database import Database
from tidelog.engine.api.open import open_with
from tidelog.errors import DiskError
from tidelog.testing import check_database

SIZES: dict[str, Any] = {"segment_bytes": 1 << 14, "retain_bytes": 1 << 15}


@contextmanager
def descriptors(left: int) -> Iterator[None]:
    """Leave only so many free descriptors to this process."""
    gc.collect()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 20, hard))
    taken = []
    try:
        while True:
            try:
                taken.append(os.open("/dev/null", os.O_RDONLY))
            except OSError:
                break
        for fd in taken[:left]:
            os.close(fd)
        del taken[:left]
        yield
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.slow
@pytest.mark.parametrize("left", range(8))
def test_without_descriptors_calls_fail_with_an_error_of_tidelog_and_nothing_is_lost(
    tmp_path: Path, left: int
) -> None:
    # A backup ended in an OSError of the operating system.
    shop = tmp_path / "shop"
    db = opened(shop, **SIZES)
    users = db.map("users")
    model: dict[bytes, bytes] = {}

    def fill(letter: bytes) -> None:
        for number in range(60):
            users[letter + b"%d" % number] = bytes(1000)
            model[letter + b"%d" % number] = bytes(1000)

    fill(b"a")
    os.mkdir(tmp_path / "load")
    opened(tmp_path / "read").close()
    opened(tmp_path / "read later").close()
    reader = open_with(quiet(), tmp_path / "read", read_only=True)
    work: dict[str, Callable[[], object]] = {
        "fill": lambda: fill(b"b"),
        "checkpoint": db.checkpoint,
        "backup": lambda: db.backup(tmp_path / f"backup-{left}"),
        "statistics": db.statistics,
        "outcome": lambda: db.outcome(db.new_id()),
        "a map": lambda: db.map("new"),
        "attach": lambda: db.attach(tmp_path / "load"),
        "drop": lambda: db.drop("new"),
        "snapshot": lambda: len(db.snapshot()[users]),
        "sync": db.sync,
        "another store": lambda: opened(tmp_path / f"other-{left}").close(),
        "reading": lambda: open_with(quiet(), tmp_path / "read later", read_only=True).close(),
        "refresh": reader.refresh,
        "backup by a reader": lambda: reader.backup(tmp_path / f"by-reader-{left}"),
        "figures of a reader": reader.statistics,
    }
    with descriptors(left):
        errors = {name: error_of(each) for name, each in work.items()}
    if not left:
        assert isinstance(errors["backup"], DiskError)
        assert isinstance(errors["backup by a reader"], DiskError)
    fill(b"c")
    reader.close()
    finish(db, shop, model)


def finish(db: Database, shop: Path, model: dict[bytes, bytes]) -> None:
    """Fail unless an open store, and what it leaves, has all that was acknowledged."""
    db.checkpoint()
    assert check_database(db) == []
    db.close()
    expect_sound(shop)
    with opened(shop) as again:
        assert model.items() <= dict(again.map("users")).items()
