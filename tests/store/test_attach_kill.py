"""A process that attaches a load is killed, between two pieces and at the checkpoint."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import tidelog
from support.loads import make_load, rows_of
from tidelog.testing import check_store

ROWS = rows_of(5000, size=20)

WORKER = """
import sys, threading, tidelog
from tidelog.engine import attaching, checkpointer, load_files
name, calls = sys.argv[3], []
load_files.BLOCK_BYTES, attaching.PIECE_ROWS = 4096, 1
step = getattr(checkpointer.Checkpointer, name)

def told(self, *args):
    step(self, *args)
    calls.append(args)
    if len(calls) == 3 or name == "run":
        print(name, flush=True)
        threading.Event().wait()

with tidelog.open(sys.argv[1]) as db:
    db.map("users")[b"bob"] = b"y"
    setattr(checkpointer.Checkpointer, name, told)
    db.attach(sys.argv[2])
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["add", "run"])
def test_a_process_that_is_killed_leaves_nothing_of_a_load(tmp_path: Path, name: str) -> None:
    load, path = make_load(tmp_path / "load", ROWS), tmp_path / "store"
    with tidelog.open(path, partitions=4) as db:
        db.map("users")[b"ada"] = b"x"
    command = [sys.executable, "-c", WORKER, str(path), load, name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == f"{name}\n"
        worker.send_signal(signal.SIGKILL)
    with tidelog.open(path, read_only=True) as reader:
        assert reader.maps() == ["users"]
    with tidelog.open(path) as db:
        assert db.maps() == ["users"]
        assert dict(db.map("users").items()) == {b"ada": b"x", b"bob": b"y"}
        assert dict(db.attach(load).items()) == ROWS
    assert check_store(path) == []
