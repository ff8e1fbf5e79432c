"""``tidelog tx`` on a cluster of real processes, one of which dies with a part of a transaction."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

import tidelog
from support.local_clusters import document, free_port, kill_members
from tidelog.affinity.partitions import one_space, partition_of
from tidelog.codecs import I64
from tidelog.errors import TidelogError
from tidelog.tools.cluster.processes import pid_of
from tidelog.tools.shell.exits import Exit

Run = Callable[..., Result]

pytestmark = pytest.mark.slow

PARTITIONS = 3
WAIT_S = 60


@pytest.fixture
def place(run: Run, tmp_path: Path) -> Iterator[Path]:
    """A cluster of three members with a partition each, without other copies."""
    folder = tmp_path / "cluster"
    size = ("-n", 3, "--partitions", PARTITIONS)
    try:
        up = run("cluster", "up", *size, "--dir", folder, "--base-port", free_port())
        assert up.exit_code == 0, up.stderr
        yield folder
    finally:
        kill_members(folder)


def until(found: Callable[[], Any]) -> Any:
    """Return the first result that is true, or raise after a while."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        if result := found():
            return result
    raise AssertionError("it has not come to that")


def key_in(partition: int) -> int:
    """Return a key of the map that lies in a partition."""
    space = one_space(PARTITIONS)[0]
    keys = range(1000)
    return next(
        key for key in keys
        if partition_of(I64.encode(key), space) == partition
    )  # fmt: skip


def pending(run: Run, place: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = document(run("tx", "pending", place, "--json"))["transactions"]
    return found


def left_pending(run: Run, place: Path, away: str) -> dict[str, Any]:
    """Stop a member, commit something that it takes part in, and kill it; return what is pending.

    Others may have noticed that it is stopped, before they prepare: then it is tried again.  What
    was seen first need not stay either: if it is refused, the client commits it under another id.
    """
    for _ in range(10):
        stopped, ready = threading.Event(), threading.Event()
        thread = threading.Thread(target=committed, args=(place, ready, stopped))
        thread.start()
        assert ready.wait(WAIT_S)
        os.kill(pid_of(str(place / away)), signal.SIGSTOP)
        stopped.set()
        deadline = time.monotonic() + 3
        while time.monotonic() < deadline:
            if pending(run, place):
                assert run("cluster", "kill", place, away).exit_code == 0
                thread.join()
                if found := pending(run, place):
                    return found[0]
                break
        else:
            os.kill(pid_of(str(place / away)), signal.SIGCONT)
        thread.join()
        assert run("cluster", "up", "--dir", place).exit_code == 0
    raise AssertionError("nothing stays pending")


def committed(place: Path, ready: threading.Event, stopped: threading.Event) -> None:
    """Write a key of each partition in one transaction, once a member is stopped."""
    with suppress(TidelogError), tidelog.connect(place, timeout=5) as db:
        numbers = db.map("numbers", key=I64, value=I64)
        assert [numbers.get(key_in(partition)) for partition in range(PARTITIONS)]
        with db.transaction() as tx:
            for partition in range(PARTITIONS):
                tx[numbers][key_in(partition)] = 1
            ready.set()
            stopped.wait(WAIT_S)


def test_what_a_dead_member_leaves_in_doubt_is_shown_and_ended_by_hand(
    run: Run, place: Path
) -> None:
    with tidelog.connect(place) as db:
        db.map("numbers", key=I64, value=I64)
    rows = document(run("cluster", "partitions", place, "--json"))["partitions"]
    away = rows[PARTITIONS - 1]["primary"]
    assert away != rows[0]["primary"]
    assert pending(run, place) == []
    tx_id = left_pending(run, place, away)["tx"]

    row = until(lambda: next((one for one in pending(run, place) if one["in_doubt"]), None))
    assert (row["tx"], row["home"], row["near_is_there"]) == (tx_id, 0, True)
    says = {one["partition"]: one["says"] for one in row["partitions"]}
    assert says == {0: "prepared", 1: "prepared", 2: "no open primary"}
    shown = run("tx", "pending", place)
    assert "2: no open primary" in shown.stdout
    assert "tidelog tx resolve" in shown.stderr
    parts = document(run("tx", "show", place, tx_id, "--json"))
    assert {part["outcome"] for part in parts["parts"]} == {"pending"}
    assert parts["resolution"] is None
    assert run("tx", "outcome", place, tx_id).exit_code == Exit.UNKNOWN

    unsure = run("tx", "resolve", place, tx_id, "--commit")
    assert (unsure.exit_code, "give --yes" in unsure.stderr) == (Exit.REFUSED, True)
    until(lambda: run("tx", "resolve", place, tx_id, "--commit", "--yes").exit_code == 0)
    until(lambda: not pending(run, place))
    again = run("tx", "resolve", place, tx_id, "--rollback", "--yes")
    assert (again.exit_code, "is committed" in again.stderr) == (Exit.REFUSED, True)
    told = document(run("cluster", "losses", place, "--json"))["resolved"]
    assert [(one["tx"], one["outcome"], one["missing"]) for one in told] == [
        (tx_id, "committed", [2])
    ]
    assert tx_id in run("cluster", "losses", place).stdout
    asked = run("tx", "outcome", place, tx_id)
    assert (asked.exit_code, asked.stdout.splitlines()[0]) == (0, "committed")

    assert run("cluster", "start", place, away).exit_code == 0
    with tidelog.connect(place) as db:
        numbers = db.map("numbers", key=I64, value=I64)
        assert [numbers.get(key_in(partition)) for partition in (0, 1)] == [1, 1]
        given = db.new_id()
        with db.transaction(id=given) as tx:
            tx[numbers][key_in(0)] = 2
            tx[numbers][key_in(1)] = 2
    assert run("tx", "outcome", place, given.hex()).stdout == "committed\n"
    unknown = run("tx", "show", place, given.hex())
    assert (unknown.exit_code, "`tidelog tx outcome" in unknown.stderr) == (Exit.NOT_FOUND, True)
    assert run("cluster", "down", place).exit_code == 0
    for name in ("n1", "n2", "n3"):
        assert document(run("tx", "pending", place / name, "--json"))["transactions"] == []
        assert document(run("db", "verify", place / name, "--json"))["whole"]


def test_what_a_store_that_does_not_run_has_pending_is_shown(run: Run, place: Path) -> None:
    with tidelog.connect(place) as db:
        db.map("numbers", key=I64, value=I64)
    rows = document(run("cluster", "partitions", place, "--json"))["partitions"]
    away, stays = rows[PARTITIONS - 1]["primary"], rows[0]["primary"]
    tx_id = left_pending(run, place, away)["tx"]
    assert run("cluster", "kill", place, stays).exit_code == 0
    [row] = pending(run, place / stays)
    assert (row["tx"], row["in_doubt"], row["near_is_there"]) == (tx_id, None, None)
    assert {one["says"] for one in row["partitions"]} == {"prepared", None}
    assert run("tx", "outcome", place, tx_id).exit_code in (Exit.UNKNOWN, Exit.UNAVAILABLE)
