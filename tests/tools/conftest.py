"""What the tests of the tools share: a command line in this process, and a small store."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import tidelog
from tidelog import codecs
from tidelog.tools.main import cli

GIVEN_ID = b"0123456789abcdef"

Run = Callable[..., Result]


@pytest.fixture
def run() -> Run:
    """A function that runs a command line: ``run("kv", "get", store, ...)``."""

    def command(*arguments: object, input: str | bytes | None = None) -> Result:
        return CliRunner().invoke(cli, [str(argument) for argument in arguments], input=input)

    return command


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A closed store with three maps and four transactions."""
    path = tmp_path / "shop.tl"
    with tidelog.open(path, partitions=4) as db:
        stock = db.map("stock", key=codecs.Str, value=codecs.Msgpack)
        stock["apples"] = 3
        stock["pears"] = {"n": [1, 2], "raw": b"\xff"}
        orders = db.map("orders", key=codecs.Tuple, value=codecs.Bytes)
        with db.transaction(id=GIVEN_ID, tag="import-42") as tx:
            tx[orders]["DE", -5] = b"raw\x00"
            tx[stock].discard("apples")
        db.map("numbers", key=codecs.I64, value=codecs.Str)[5] = "five"
    return path


def fingerprint(folder: Path) -> dict[str, tuple[str, int]]:
    """Hash and modification time of every file, but for what readers may touch."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_file() and name != "data/lock.mdb" and not name.startswith("readers/"):
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            found[name] = (digest, path.stat().st_mtime_ns)
    return found


@pytest.fixture
def unchanged() -> Callable[[Path], dict[str, tuple[str, int]]]:
    """The function that tells whether anything in a folder has changed."""
    return fingerprint


@pytest.fixture(autouse=True)
def _plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    os.environ.setdefault("COLUMNS", "100")
