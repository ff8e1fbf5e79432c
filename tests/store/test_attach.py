"""Loads in the real data file: others go on meanwhile, and a process that dies leaves nothing."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

import tidelog
from support.loads import make_load, rows_of
from tidelog.engine.api.open import open_with
from tidelog.engine.system.limits import Limits
from tidelog.engine.system.production import production
from tidelog.testing import check_database, check_store

ROWS = rows_of(5000, size=20)

WORKER = """
import sys, threading, tidelog
from dataclasses import replace
from tidelog.engine.api.open import open_with
from tidelog.engine.store import checkpointer
from tidelog.engine.system.limits import Limits
from tidelog.engine.system.production import production
name, calls = sys.argv[3], []
limits = Limits(load_block_bytes=4096, attach_rows=1)
step = getattr(checkpointer.Checkpointer, name)

def told(self, *args):
    step(self, *args)
    calls.append(args)
    if len(calls) == 3 or name == "run":
        print(name, flush=True)
        threading.Event().wait()

with open_with(replace(production(), limits=limits), sys.argv[1]) as db:
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


@pytest.mark.slow
def test_others_read_and_write_while_a_load_is_attached(tmp_path: Path) -> None:
    environment = replace(production(), limits=Limits(load_block_bytes=4096, attach_rows=1))
    load = make_load(tmp_path / "load", ROWS)
    attached = threading.Event()
    found: dict[int, int] = {}
    with open_with(environment, tmp_path / "store", partitions=4, checkpoint_bytes=20_000) as db:
        users = db.map("users")

        def work(client: int) -> None:
            number, more = 0, True
            while more:
                more = not attached.is_set()
                with db.transaction() as tx:
                    tx[users][b"%d" % client] = tx[users][b"twin %d" % client] = b"%d" % number
                with db.snapshot() as snapshot:
                    old = snapshot[users]
                    assert old[b"%d" % client] == old[b"twin %d" % client] == b"%d" % number
                number += 1
            found[client] = number

        threads = [threading.Thread(target=work, args=(client,)) for client in range(3)]
        for thread in threads:
            thread.start()
        cities = db.attach(load)
        attached.set()
        for thread in threads:
            thread.join()
        assert len(found) == 3
        assert dict(cities.items()) == ROWS
        assert check_database(db) == []
    assert check_store(tmp_path / "store") == []
