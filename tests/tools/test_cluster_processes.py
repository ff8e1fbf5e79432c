"""``tidelog cluster`` and ``tidelog server`` on real processes."""

from __future__ import annotations

import errno
import os
import re
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from click.testing import Result

import tidelog
from support.local_clusters import document, free_port, kill_members
from tidelog.engine.agreement.identity import member_id
from tidelog.engine.system.layout import CLUSTER_FILE_NAME, SERVER_LOG_NAME
from tidelog.tools.cluster.blocks import PHASES
from tidelog.tools.cluster.cluster_file import read_cluster, write_cluster
from tidelog.tools.cluster.processes import pid_of, process_of
from tidelog.tools.cluster.running import changing, described
from tidelog.tools.shell.exits import Exit, RefusedError

Run = Callable[..., Result]

pytestmark = pytest.mark.slow

BOTH = ("n1", "n2")
ONE = ("-n", 1, "--partitions", 4, "--dir")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """The directory of a cluster whose members have ended when the test has."""
    folder = tmp_path / "cluster"
    yield folder
    kill_members(folder)


def states(run: Run, place: Path) -> list[str]:
    """The state of each partition."""
    rows = document(run("cluster", "partitions", place, "--json"))["partitions"]
    return [row["state"] for row in rows]


def exchanges_with(run: Run, place: Path, kind: str) -> list[dict[str, Any]]:
    """The exchanges of a cluster that have a cause of a kind, the newest last."""
    rows = document(run("cluster", "exchanges", place, "--last", 64, "--json"))["exchanges"]
    return [row for row in rows if any(cause["kind"] == kind for cause in row["causes"])]


# ------------------------------------------------------------------ a cluster's life


def test_a_cluster_comes_up_loses_a_member_gets_it_back_and_ends(run: Run, place: Path) -> None:
    up = ("cluster", "up", "-n", 3, "--dir", place, "--partitions", 8, "--base-port", free_port())
    first = run(*up)
    assert first.exit_code == 0, first.stderr
    addresses = [member.address for member in read_cluster(str(place)).members]
    assert first.stdout == f"up: tidelog://{','.join(addresses)}\n"
    assert states(run, place) == ["served"] * 8
    before = [member.pid for member in read_cluster(str(place)).members]
    assert before == [pid_of(str(place / name)) for name in ("n1", "n2", "n3")]

    again = run(*up)
    assert again.exit_code == 0
    assert "n1 runs already" in again.stderr
    assert [member.pid for member in read_cluster(str(place)).members] == before
    for option, number in (("-n", 5), ("--partitions", 9)):
        refused = run("cluster", "up", "--dir", place, option, number)
        assert refused.exit_code == 2
        assert f"not {number}" in refused.stderr

    killed = run("cluster", "kill", place, "n2")
    assert killed.stderr == f"killed n2, process {before[1]}\n"
    assert run("cluster", "kill", place, "n2").stderr == "n2 does not run\n"
    nodes = document(run("cluster", "nodes", place, "--json"))["nodes"]
    assert [node["state"] for node in nodes] == ["up", "down", "up"]
    away = states(run, place).count("unavailable")
    assert 0 < away < 8
    status = document(run("cluster", "status", place, "--json"))
    assert (status["members_up"], status["majority"]) == (2, True)
    assert status["partitions_served"] == 8 - away

    started = run("cluster", "start", place, "n2")
    assert started.exit_code == 0, started.stderr
    assert states(run, place) == ["served"] * 8
    assert run("cluster", "start", place, "n2").stderr == "n2 runs already\n"
    assert beside(run("cluster", "stop", place, "n2")) == "ended n2\n"
    assert run("cluster", "stop", place, "n2").stderr == "n2 does not run\n"
    assert run("cluster", "start", place, "n2").exit_code == 0

    ended = run("cluster", "down", place)
    assert (ended.exit_code, beside(ended)) == (0, "ended n1, n2, n3\n")
    assert run("cluster", "down", place).stderr == "no member runs\n"
    assert [member.pid for member in read_cluster(str(place)).members] == [0, 0, 0]
    for name in ("n1", "n2", "n3"):
        assert "ended in order" in (place / name / SERVER_LOG_NAME).read_text()
    assert document(run("cluster", "status", place, "--json"))["members_up"] == 0
    assert document(run("cluster", "nodes", place, "--json"))["nodes"][0]["boot"] is None
    assert run("cluster", "nodes", place).exit_code == 6

    alone = run("cluster", "start", place, "n1")
    assert (alone.exit_code, beside(alone)) == (
        0,
        "1 of 3 members that vote run: nothing is served yet\n",
    )
    assert run("cluster", "start", place, "n3").exit_code == 0
    assert "served" in states(run, place)
    assert run("cluster", "up", "--dir", place).exit_code == 0
    assert states(run, place) == ["served"] * 8


def test_with_copies_a_partition_tells_its_story_while_a_member_is_away(
    run: Run, place: Path
) -> None:
    up = ("cluster", "up", "-n", 3, "--backups", 2, "--dir", place, "--partitions", 4)
    done = run(*up, "--base-port", free_port())
    assert done.exit_code == 0, done.stderr
    assert "fewer copies" not in done.stderr
    status = document(run("cluster", "status", place, "--json"))
    assert (status["backups"], status["sets_full"], status["blocks"]) == (2, 4, [])
    assert status["timing"]["member_timeout"] == 1.0
    assert run("cluster", "up", "--dir", place, "--backups", 1).exit_code == 2

    assert run("cluster", "kill", place, "n3").exit_code == 0
    while document(run("cluster", "status", place, "--json"))["sets_full"]:
        pass
    while not (taken := exchanges_with(run, place, "from_gone")) or not taken[-1]["over"]:
        pass
    row = taken[-1]
    assert "take over from n3, which has gone" in row["cause"].replace("takes", "take")
    assert {one["member"] for one in row["authors"]} <= {"n1", "n2"}
    assert [phase["phase"] for phase in row["phases"]] == list(PHASES)[:4]
    assert {phase["waited_for"] for phase in row["phases"]} <= {"n1", "n2", None}
    assert 0 < row["blocked"] < 5
    started = run("cluster", "start", place, "n3")
    assert (started.exit_code, beside(started)) == (0, ""), "it has caught up"
    assert exchanges_with(run, place, "restarted")
    assert exchanges_with(run, place, "admitted")
    assert sum(row["added"] for row in exchanges_with(run, place, "added")) == 4
    assert document(run("cluster", "status", place, "--json"))["sets_full"] == 4
    told = document(run("cluster", "explain", place, 1, "--json"))
    assert [(row["member"], row["how"], row["missing"]) for row in told["returns"]] == [
        ("n3", "none", 0)
    ]
    assert "every number up to 0" in run("cluster", "explain", place, 1).stdout
    assert run("cluster", "kill", place, "n3").exit_code == 0
    while document(run("cluster", "status", place, "--json"))["sets_full"]:
        pass
    while states(run, place) != ["served"] * 4:
        pass  # who takes over may not have opened its epochs yet

    rows = document(run("cluster", "partitions", place, "--json"))["partitions"]
    assert [(row["state"], sorted(row["in_sync"]), row["missing"]) for row in rows] == [
        ("served", ["n1", "n2"], ["n3"])
    ] * 4
    story = document(run("cluster", "partition", place, 1, "--json"))
    assert (story["partition"], story["state"], sorted(story["in_sync"])) == (
        1, "served", ["n1", "n2"]
    )  # fmt: skip
    here = {row["member"]: row["here"] for row in story["members"]}
    assert (sorted(here.values()), here["n3"]) == (["copy", "down", "primary"], "down")
    shown = run("cluster", "partition", place, 1)
    assert shown.exit_code == 0
    assert "n3 has no copy that counts of 4 partitions (0-3)" in shown.stdout
    for wrong in (4, 99):
        refused = run("cluster", "partition", place, wrong)
        assert refused.exit_code == 4
        assert f"there is no partition {wrong}" in refused.stderr
        assert "Name one of 0 to 3." in refused.stderr

    source, target = ("n1", "n2") if here["n1"] == "primary" else ("n2", "n1")
    for told in (
        f"{target} serves partition 1, which {source} did",
        f"{target} serves partition 1 already",
    ):
        moved = run("cluster", "move", place, 1, target)
        assert (moved.exit_code, moved.stderr) == (0, told + "\n")
    away = run("cluster", "move", place, 1, "n3")
    assert away.exit_code == 2
    assert "n3 has no copy of partition 1 that counts: n1, n2 have one" in away.stderr.replace(
        "n2, n1", "n1, n2"
    )
    assert run("cluster", "move", place, 1, "n9").exit_code == 4

    assert run("cluster", "down", place).exit_code == 0
    nobody = run("cluster", "partition", place, 1)
    assert nobody.exit_code == 6
    assert "nobody tells of partition 1: no member runs" in nobody.stderr
    assert f"next:  `tidelog cluster up --dir {place}`." in nobody.stderr
    for command in (("losses", place), ("policy", place), ("policy", place, "ignore")):
        nobody = run("cluster", *command)
        assert nobody.exit_code == 6
        assert "no member runs" in nobody.stderr
    outcome = run("tx", "outcome", place, "00" * 16)
    assert (outcome.exit_code, outcome.stdout) == (9, "unknown\n")


def seats(run: Run, place: Path) -> dict[str, dict[str, Any]]:
    """What each member is to the baseline."""
    rows = document(run("cluster", "baseline", "show", place, "--json"))["members"]
    return {row["member"]: row for row in rows}


def test_members_join_one_leaves_and_all_of_them_come_back(run: Run, place: Path) -> None:
    up = ("cluster", "up", "-n", 2, "--backups", 1, "--dir", place, "--partitions", 6)
    assert run(*up, "--base-port", free_port()).exit_code == 0
    with tidelog.connect(place) as db:
        db.map("m", key=tidelog.codecs.Str, value=tidelog.codecs.I64)["here"] = 7
    voter = run("cluster", "join", place, "v1", "--voter")
    assert (voter.exit_code, voter.stderr.splitlines()[-1]) == (0, "v1 votes, and holds nothing")
    third = run("cluster", "join", place)
    assert third.exit_code == 0, third.stderr
    assert third.stderr.splitlines()[-1] == "n3 votes, and holds a copy of 4 partitions"
    again = run("cluster", "join", place, "n3")
    assert (again.exit_code, again.stderr.splitlines()[0]) == (0, "n3 runs already")
    assert {name: row["copies"] for name, row in seats(run, place).items()} == {
        "n1": 4, "n2": 4, "v1": 0, "n3": 4
    }  # fmt: skip
    assert all(row["votes"] for row in seats(run, place).values())

    removed = run("cluster", "baseline", "remove", place, "n1")
    assert removed.exit_code == 0, removed.stderr
    assert "n1 has left" in removed.stderr
    assert (seats(run, place)["n1"]["stage"], seats(run, place)["n1"]["copies"]) == ("out", 0)
    nodes = document(run("cluster", "nodes", place, "--json"))["nodes"]
    assert [node["votes"] for node in nodes] == [False, True, True, True]
    refused = run("cluster", "join", place, "n1")
    assert refused.exit_code == 2
    assert "n1 is one of those that began the cluster" in refused.stderr

    for name in ("n1", "v1"):
        assert run("cluster", "kill", place, name).exit_code == 0
    refused = run("cluster", "baseline", "add", place, "n1")
    assert (refused.exit_code, "n1 does not run" in refused.stderr) == (2, True)
    assert seats(run, place)["n1"]["stage"] == "out", "nothing was asked for"
    status = document(run("cluster", "status", place, "--json"))
    assert (status["majority"], status["partitions_served"]) == (True, 6), "two of three vote"
    shown = run("cluster", "baseline", "show", place)
    assert f"`tidelog cluster start {place} v1`" in shown.stdout
    assert run("cluster", "start", place, "v1").exit_code == 0
    assert beside(run("cluster", "down", place)) == "ended n2, v1, n3\n"
    back = run("cluster", "up", "-n", 2, "--dir", place)
    assert back.exit_code == 0, back.stderr
    assert states(run, place) == ["served"] * 6
    with tidelog.connect(place) as db:
        assert db.map("m", key=tidelog.codecs.Str, value=tidelog.codecs.I64)["here"] == 7

    assert run("cluster", "down", place).exit_code == 0
    shutil.rmtree(place / "n1")
    without = run("cluster", "up", "--dir", place)
    assert (without.exit_code, "n1 has left, and its" in without.stderr) == (0, True), without
    assert not (place / "n1").exists()
    with tidelog.connect(place) as db:
        assert db.map("m", key=tidelog.codecs.Str, value=tidelog.codecs.I64)["here"] == 7


def test_what_was_on_a_disk_that_is_gone_is_lost_until_somebody_says_how_it_goes_on(
    run: Run, place: Path
) -> None:
    up = ("cluster", "up", "-n", 3, "--dir", place, "--partitions", 3, "--base-port", free_port())
    assert run(*up).exit_code == 0
    with tidelog.connect(place) as db:
        numbers = db.map("m", key=tidelog.codecs.I64, value=tidelog.codecs.I64)
        for n in range(30):
            numbers[n] = n
    for said in (["--yes"], []):  # nobody is asked to confirm what is refused
        runs = run("cluster", "lose", place, "n2", *said)
        assert (runs.exit_code, "n2 runs: its disk is not lost" in runs.stderr) == (2, True)
    assert run("cluster", "kill", place, "n2").exit_code == 0
    unsure = run("cluster", "lose", place, "n2")
    assert (unsure.exit_code, "give --yes" in unsure.stderr) == (Exit.REFUSED, True)
    early = run("cluster", "reset", place, 0, 1, 2)
    assert early.exit_code != 0
    assert "is not lost" in early.stderr or "nobody who answers has a copy" in early.stderr
    while (done := run("cluster", "lose", place, "n2", "--yes")).exit_code:
        assert "n2 is not declared lost" in done.stderr, "it has not gone yet"
    told = document(run("cluster", "losses", place, "--json"))
    assert (len(told["lost"]), told["losses"]) == (1, [])
    [lost] = told["lost"]
    status = document(run("cluster", "status", place, "--json"))
    assert [(one["kind"], one["partitions"]) for one in status["blocks"]] == [("lost", [lost])]
    none_left = run("cluster", "reset", place, lost)
    assert (none_left.exit_code, f"{lost} --empty --yes`" in none_left.stderr) == (4, True)
    unsure = run("cluster", "reset", place, lost, "--empty")
    assert (unsure.exit_code, "give --yes" in unsure.stderr) == (Exit.REFUSED, True)
    done = run("cluster", "reset", place, lost, "--empty", "--yes", "--from", "n3")
    assert (done.exit_code, done.stderr) == (0, f"partition {lost} begins with nothing, at n3\n")
    told = document(run("cluster", "losses", place, "--json"))
    assert told["lost"] == []
    assert [(row["partition"], row["from"]) for row in told["losses"]] == [(lost, "n3")]
    assert "nothing, at n3" in run("cluster", "losses", place).stdout
    with tidelog.connect(place) as db:
        numbers = db.map("m", key=tidelog.codecs.I64, value=tidelog.codecs.I64)
        kept = dict(numbers.items())
        assert 0 < len(kept) < 30
        assert all(kept[n] == n for n in kept)
        numbers[99] = 99
    refused = run("cluster", "start", place, "n2")
    assert refused.exit_code != 0
    assert "was declared lost" in refused.stderr
    seats = document(run("cluster", "baseline", "show", place, "--json"))["members"]
    assert [seat["stage"] for seat in seats if seat["member"] == "n2"] == ["lost"]
    assert run("db", "verify", place / "n1").exit_code == 0  # while it runs
    assert run("cluster", "down", place).exit_code == 0
    whole: list[int] = []
    for name in ("n1", "n2", "n3"):
        checked = document(run("db", "verify", place / name, "--json"))
        assert (checked["whole"], checked["maps"]) == (True, 1)
        assert document(run("wal", "verify", place / name, "--json"))["whole"]
        told = document(run("db", "info", place / name, "--json"))
        assert told["member"] == member_id(UUID(told["cluster"]), name).hex
        whole.append(told["copies"]["whole"])
        assert told["copies"] == {"whole": whole[-1], "not_whole": 0, "pending_transactions": 0}
        shown = run("db", "info", place / name).stdout
        assert f"copies whole:                {whole[-1]}\n" in shown
    assert whole[1] > 0, "what was on that disk is there still"
    again = run("cluster", "up", "--dir", place)
    assert again.exit_code == 0, "who is lost is not waited for: " + again.stderr
    assert run("cluster", "reset", place, lost).exit_code == 2


def test_a_copy_of_a_directory_does_not_take_the_place_of_the_member_that_runs(
    run: Run, place: Path, tmp_path: Path
) -> None:
    # The others took it for the member that was started again, and neither of the two served.
    up = ("cluster", "up", "-n", 1, "--dir", place, "--partitions", 2, "--base-port", free_port())
    assert run(*up).exit_code == 0
    copy = tmp_path / "copy"
    shutil.copytree(place / "n1", copy)
    elsewhere = f"127.0.0.1:{free_port()}"
    [member] = read_cluster(str(place)).members
    said = f"this member runs already, at {member.address}: {copy} is a copy of its directory"
    for words in (("--listen", elsewhere), ()):  # at the same port it was told of that alone
        done = refused_server(copy, *words)
        assert (done.returncode, said in done.stderr) == (2, True), done.stderr
    other = tmp_path / "other"
    made = run("server", "init", other, "--name", "a", "--members", f"a={member.address}")
    assert made.exit_code == 0, made.stderr
    taken = refused_server(other)
    assert taken.returncode == 2
    assert f"the member cannot listen at {member.address}: Address already in use" in taken.stderr
    nodes = document(run("cluster", "nodes", place, "--json"))["nodes"]
    assert [(node["boot"], node["served"]) for node in nodes] == [(1, 2)]


def test_nobody_is_reached_at_every_address_of_a_machine(run: Run, tmp_path: Path) -> None:
    with tidelog.open(tmp_path / "s") as db:
        db.map("m")
    for words in (
        ("adopt", tmp_path / "s", "--listen", "0.0.0.0:7400"),
        ("init", tmp_path / "i", "--name", "a", "--members", "a=[::]:7400"),
        ("run", tmp_path / "r", "--join", "127.0.0.1:1", "--listen", "0.0.0.0:7400", "--insecure"),
    ):
        refused = run("server", *words)
        assert refused.exit_code == 2
        assert "none at which others reach it" in refused.stderr
    tidelog.open(tmp_path / "s").close()


def test_losses_that_are_ignored_go_on_by_themselves(run: Run, place: Path) -> None:
    up = ("cluster", "up", "-n", 3, "--dir", place, "--partitions", 3, "--base-port", free_port())
    assert run(*up).exit_code == 0
    assert run("cluster", "policy", place).stdout == "read-write-safe\n"
    assert run("cluster", "policy", place, "guess").exit_code == 2
    done = run("cluster", "policy", place, "ignore")
    assert (done.exit_code, done.stderr) == (0, "the policy is ignore\n")
    assert run("cluster", "policy", place).stdout == "ignore\n"
    assert document(run("cluster", "gaps", place, "--json"))["gaps"] == []
    assert run("cluster", "kill", place, "n2").exit_code == 0
    while run("cluster", "lose", place, "n2", "--yes").exit_code:
        pass
    while not (told := document(run("cluster", "losses", place, "--json")))["losses"]:
        pass
    assert (told["policy"], told["lost"]) == ("ignore", [])
    assert len(told["history"]) == 32


def test_a_cluster_of_other_machines_is_looked_at_and_changed_by_its_addresses(
    run: Run, place: Path, tmp_path: Path
) -> None:
    up = ("cluster", "up", "-n", 3, "--dir", place, "--partitions", 4, "--backups", 1)
    assert run(*up, "--base-port", free_port()).exit_code == 0
    addresses = [member.address for member in read_cluster(str(place)).members]
    there = "tidelog://" + ",".join(addresses[1:])
    status = document(run("cluster", "status", there, "--json"))
    assert (status["members_up"], status["partitions_served"]) == (3, 4)
    for words in (("nodes",), ("partitions",), ("exchanges",), ("losses",), ("gaps",)):
        assert run("cluster", *words, there).stdout == run("cluster", *words, place).stdout or (
            words[0] in ("exchanges", "nodes")
        )
    assert "n1" in run("cluster", "partition", there, 0).stdout
    assert run("cluster", "policy", there, "read-only-safe").exit_code == 0
    assert run("cluster", "policy", there).stdout == "read-only-safe\n"
    assert run("cluster", "kill", place, "n1").exit_code == 0
    down = document(run("cluster", "nodes", there, "--json"))["nodes"]
    assert [node["state"] for node in down] == ["down", "up", "up"]
    for command in ("down", "rescue"):
        refused = run("cluster", command, there)
        assert (refused.exit_code, "is not a directory" in refused.stderr) == (2, True)
    while (done := run("cluster", "lose", there, "n1", "--yes")).exit_code:
        assert "n1 is not declared lost" in done.stderr, "it has not gone yet"
    seen = document(run("cluster", "baseline", "show", there, "--json"))["members"]
    assert {seat["member"]: seat["stage"] for seat in seen}["n1"] == "lost"
    nobody = run("cluster", "status", "tidelog://127.0.0.1:1")
    assert (nobody.exit_code, "no member tells of its cluster" in nobody.stderr) == (6, True)


def test_the_members_that_are_left_of_most_are_rescued(run: Run, place: Path) -> None:
    up = ("cluster", "up", "--dir", place, "--base-port", free_port())
    assert run(*up, "-n", 3, "--partitions", 3, "--backups", 1).exit_code == 0
    with tidelog.connect(place) as db:
        numbers = db.map("m", key=tidelog.codecs.I64, value=tidelog.codecs.I64)
        for n in range(30):
            numbers[n] = n
    runs = run("cluster", "rescue", place, "--yes")
    assert (runs.exit_code, "n1 runs" in runs.stderr) == (2, True)
    assert run("cluster", "down", place).exit_code == 0
    all_there = run("cluster", "rescue", place, "--yes")
    assert (all_there.exit_code, "--lost NODE" in all_there.stderr) == (2, True)
    shutil.rmtree(place / "n2")
    most = run("cluster", "rescue", place, "--yes")
    assert (most.exit_code, "they need no rescue" in most.stderr) == (2, True)
    unsure = run("cluster", "rescue", place, "--lost", "n3")
    assert "n2, n3 could never come back" in unsure.stderr
    assert unsure.exit_code == Exit.REFUSED
    done = run("cluster", "rescue", place, "--lost", "n3", "--yes")
    assert done.exit_code == 0, done.stderr
    assert "n1: a cluster of its own now" in done.stderr
    assert "1 partitions are lost" in done.stderr
    assert [one.name for one in read_cluster(str(place)).members] == ["n1"]
    given_again = run("cluster", "rescue", place, "--lost", "n3", "--yes")
    assert given_again.exit_code == 0
    assert given_again.stderr == "n3: not of the cluster any more; its members are n1\n"
    up_again = run("cluster", "up", "--dir", place, "--backups", 1)
    assert up_again.exit_code == 0, up_again.stderr
    assert "1 of 3 partitions are lost, and not served" in up_again.stderr
    told = document(run("cluster", "losses", place, "--json"))
    assert len(told["lost"]) == 1
    assert run("cluster", "reset", place, *told["lost"], "--empty", "--yes").exit_code == 0
    assert run("cluster", "up", "--dir", place).exit_code == 0
    with tidelog.connect(place) as db:
        numbers = db.map("m", key=tidelog.codecs.I64, value=tidelog.codecs.I64)
        kept = dict(numbers.items())
        assert 0 < len(kept) < 30
        assert all(kept[n] == n for n in kept)
        numbers[99] = 99


def test_who_joins_waits_to_be_asked_for_if_the_cluster_was_made_so(
    run: Run, place: Path, tmp_path: Path
) -> None:
    up = ("cluster", "up", *ONE, place, "--base-port", free_port())
    assert run(*up, "--no-auto-join").exit_code == 0
    told = run("cluster", "join", place)
    assert told.exit_code == 0, told.stderr
    assert f"`tidelog cluster baseline add {place} n2` lets it enter" in told.stderr
    assert seats(run, place)["n2"]["stage"] == "waiting"
    assert "n2 is waiting" in run("cluster", "status", place).stdout
    added = run("cluster", "baseline", "add", place, "n2")
    assert added.exit_code == 0, added.stderr
    assert added.stderr.splitlines()[-1] == "n2 votes, and holds a copy of 2 partitions"
    assert run("cluster", "baseline", "remove", place, "n1").exit_code == 0
    last = run("cluster", "baseline", "remove", place, "n2")
    assert last.exit_code == 3
    assert "n1 and n2: 0 members with data would stay" in last.stderr
    assert "next:  If too few would stay, let another member join first." in last.stderr
    assert run("cluster", "baseline", "add", place, "n9").exit_code == 4

    cluster = read_cluster(str(place))
    seed = cluster.members[1].address
    join = ("--join", seed, "--listen", f"127.0.0.1:{free_port()}", "--name")
    refused = refused_server(tmp_path / "other", *join, "n1")
    assert refused.returncode == 2
    assert "n1 is a member of that cluster already" in refused.stderr
    assert not (tmp_path / "other").exists()
    made = run("server", "init", tmp_path / "other", "--name", "n1", "--members", MEMBERS)
    assert made.exit_code == 0
    refused = refused_server(tmp_path / "other", *join, "n4")
    assert refused.returncode == 2
    assert f"and cluster {cluster.cluster} answers at {seed}" in refused.stderr

    described_later = replace(
        cluster.members[1], name="n3", id=member_id(cluster.cluster, "n3"), directory="n3",
        address=f"127.0.0.1:{free_port()}", pid=0,
    )  # fmt: skip
    write_cluster(str(place), replace(cluster, members=(*cluster.members, described_later)))
    early = run("cluster", "baseline", "add", place, "n3")
    assert early.exit_code == 2
    assert f"`tidelog cluster join {place} n3`" in early.stderr
    assert run("cluster", "down", place).exit_code == 0
    nobody = run("cluster", "join", place)
    assert nobody.exit_code == 6
    assert f"`tidelog cluster up --dir {place}`" in nobody.stderr
    # --name was not looked at where there was a directory.
    for other in ("n1", "zz"):
        refused = refused_server(place / "n2", *join, other)
        assert refused.returncode == 2
        assert f"{place / 'n2'} is that of another member than {other}" in refused.stderr
        assert "may be removed" not in refused.stderr, "it has joined, and has data"
    back = run("cluster", "up", "--dir", place)
    assert back.exit_code == 0
    assert f"n3 has no store: `tidelog cluster join {place} n3`" in back.stderr
    assert "and holds" not in run("cluster", "join", place).stderr
    assert seats(run, place)["n3"]["stage"] == "waiting"


def test_nobody_answers_who_joins(tmp_path: Path) -> None:
    seed = f"127.0.0.1:{free_port()}"
    join = ("--join", seed, "--listen", f"127.0.0.1:{free_port()}")
    refused = refused_server(tmp_path / "one", *join)
    assert refused.returncode == 6
    assert f"no member tells of its cluster: {seed}: " in refused.stderr
    assert "Name the addresses of members that run." in refused.stderr
    assert not (tmp_path / "one").exists()


def test_a_cluster_that_was_described_and_not_made_is_gone_on_with(run: Run, place: Path) -> None:
    place.mkdir()
    wanted = described(str(place), 1, 4, free_port())
    assert run("cluster", "up", "--dir", place).exit_code == 0
    [member] = read_cluster(str(place)).members
    assert (member.id, member.address) == (wanted.members[0].id, wanted.members[0].address)
    assert states(run, place) == ["served"] * 4


def test_ports_that_are_taken_are_left_out(run: Run, place: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert run("cluster", "up", *ONE, place, "--base-port", port).exit_code == 0
    [member] = read_cluster(str(place)).members
    assert int(member.address.rpartition(":")[2]) > port


def test_members_import_nothing_from_where_they_are_started(
    run: Run, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A user's outcome.py was taken for a module, and each member ended by what it did.
    for name in ("outcome", "trio", "lmdb"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a file of the user')\n")
    monkeypatch.chdir(tmp_path)
    up = run("cluster", "up", *ONE, place, "--base-port", free_port())
    assert up.exit_code == 0, up.stderr
    assert run("cluster", "down", place).exit_code == 0


def test_a_member_whose_port_was_taken_meanwhile_is_not_started(run: Run, place: Path) -> None:
    place.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        taken.close()
        described(str(place), 1, 4, port)
        with socket.create_server(("127.0.0.1", port)):
            done = run("cluster", "up", "--dir", place)
    # Who listens there may be the same member of a cluster whose directory was copied.
    assert done.exit_code == 7
    assert f"n1 cannot be started: somebody else listens at 127.0.0.1:{port}" in done.stderr


def test_members_that_are_about_to_end_are_started_again(run: Run, place: Path) -> None:
    # They were taken for ones that run, and the commands ended with 0.
    up = ("cluster", "up", "-n", 2, "--dir", place, "--partitions", 4, "--backups", 1)
    assert run(*up, "--base-port", free_port()).exit_code == 0
    for command, names in ((("start", place, "n2"), ("n2",)), (("up", "--dir", place), BOTH)):
        before = {name: pid_of(str(place / name)) for name in BOTH}
        for name in names:
            os.kill(before[name], signal.SIGTERM)
        done = run("cluster", *command)
        assert done.exit_code == 0, done.stderr
        after = {name: pid_of(str(place / name)) for name in BOTH}
        assert [name for name in BOTH if after[name] not in (0, before[name])] == [*names]
        assert [member.pid for member in read_cluster(str(place)).members] == [*after.values()]
        assert states(run, place) == ["served"] * 4


def test_if_one_does_not_come_up_the_others_end(run: Run, place: Path) -> None:
    up = ("cluster", "up", "-n", 3, "--dir", place, "--partitions", 8, "--base-port", free_port())
    assert run(*up).exit_code == 0
    assert run("cluster", "down", place).exit_code == 0
    (place / "n2" / "manifest").write_bytes(b"{}\n")
    done = run(*up)
    assert done.exit_code == 3
    assert "n2 ended instead of coming up" in done.stderr
    assert f"the end of {place / 'n2' / SERVER_LOG_NAME}" in done.stderr
    assert "manifest" in done.stderr
    assert [pid_of(str(place / name)) for name in ("n1", "n2", "n3")] == [0, 0, 0]


# ------------------------------------------------------------------ docs/cluster.md

PAGE = Path(__file__).parents[2] / "docs" / "cluster.md"
SEEN_S_MAX = 60
"""Seconds until a cluster is as the page shows it."""


def shown_on(page: str) -> Iterator[tuple[str, str]]:
    """Each command of a page, and what it prints there."""
    for fence in re.findall(r"^```text\n(.*?)^```$", page, re.DOTALL | re.MULTILINE):
        for part in re.split(r"^(?=\$ |>>> )", fence, flags=re.MULTILINE):
            if part.startswith("$ "):
                command, _, printed = part[2:].partition("\n")
                yield command, printed


WAITING = re.compile(r".*\bwaiting (for \w+ to end, )?\d+ s at most.*\n")
"""What a command says that takes longer than it does mostly: it depends on the machine."""


def beside(done: Result) -> str:
    """What a command has told beside its result."""
    return WAITING.sub("", done.stderr)


def words_of(text: str) -> list[str]:
    """The lines of a text without what differs from one cluster to the next."""
    text = WAITING.sub("", text)
    text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "ID", text)
    text = re.sub(r"\([\d ,.-]*\)", "()", text)
    text = re.sub(r"\d+", "0", re.sub(r"\bn[123]\b", "nX", text))
    lines = [" ".join(line.split()) for line in text.strip().splitlines()]
    rows = iter(sorted(line for line in lines if line.startswith("nX ")))
    return [next(rows) if line.startswith("nX ") else line for line in lines]


def is_shown(printed: str, expected: str) -> bool:
    wanted = "".join(
        r"(?:.*\n)*?" if line == "..." else re.escape(line) + r"\n" for line in words_of(expected)
    )
    return re.fullmatch(wanted, "".join(f"{line}\n" for line in words_of(printed))) is not None


def test_what_the_page_shows_is_what_is_printed(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = PAGE.read_text().partition("## On several machines")[0]
    commands = list(shown_on(page))
    assert len(commands) > 10
    try:
        for command, expected in commands:
            words = shlex.split(command)[1:]
            if words[1] == "up":
                words += ["--base-port", str(free_port())]
            if words[1] == "partition":
                rows = document(run("cluster", "partitions", words[2], "--json"))["partitions"]
                words[3] = next(str(r["partition"]) for r in rows if len(r["in_sync"]) == 2
                                and r["epoch"] == 1)  # fmt: skip
            if words[1] == "move":
                rows = document(run("cluster", "partitions", words[2], "--json"))["partitions"]
                words[3] = next(str(r["partition"]) for r in rows if r["primary"] != words[4])
            deadline = time.monotonic() + SEEN_S_MAX
            while True:
                done = run(*words)
                printed = done.output + (f"[exit {done.exit_code}]\n" if done.exit_code else "")
                if is_shown(printed, expected):
                    break
                again = (
                    words[1] in ("status", "partition", "exchanges") and time.monotonic() < deadline
                )
                assert again, f"{command}\n{printed}\nis not\n{expected}"
    finally:
        for place in ("demo", "safe"):
            run("cluster", "down", place)


WALK = PAGE.parents[1] / "examples" / "cluster_walk.py"


def walk(tmp_path: Path) -> subprocess.Popen[str]:
    """The example, with a place for its temporary directory."""
    command = [sys.executable, str(WALK), str(free_port())]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip


def test_the_walk_prints_what_the_page_shows(tmp_path: Path) -> None:
    (expected,) = re.findall(r"^```text\n(# Three members.*?)^```$", PAGE.read_text(), re.S | re.M)
    with walk(tmp_path) as process:
        printed = process.communicate(timeout=300)[0]
    assert process.returncode == 0
    assert is_shown(printed, expected), f"{printed}\nis not\n{expected}"
    assert os.listdir(tmp_path) == []


def test_a_walk_that_is_interrupted_leaves_nothing_behind(tmp_path: Path) -> None:
    with walk(tmp_path) as process, ExitStack() as held:
        assert process.stdout is not None
        while not process.stdout.readline().startswith("killed n2"):
            pass
        (place,) = tmp_path.glob("*/walk")
        members = [held.enter_context(process_of(str(place / name))) for name in ("n1", "n3")]
        os.killpg(process.pid, signal.SIGINT)
        process.communicate(timeout=60)
        ended = [member is not None and member.ended(0) for member in members]
        for member in filter(None, members):
            member.send(signal.SIGKILL)
    assert (process.returncode, ended) == (130, [True, True])
    assert os.listdir(tmp_path) == []


# ------------------------------------------------------------------ held wrong


def test_nobody_elses_process_is_signalled(run: Run, place: Path) -> None:
    place.mkdir()
    cluster = described(str(place), 1, 4, free_port())
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        for command in (("kill", place, "n1"), ("down", place)):
            write_cluster(str(place), cluster.with_pid("n1", other.pid))
            assert run("cluster", *command).exit_code == 0
            assert read_cluster(str(place)).members[0].pid == 0
        assert other.poll() is None
        other.kill()


COMMANDS = ("status", "exchanges", "nodes", "partitions", "down", "join", "baseline show")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_directory_without_a_cluster_stays_as_it_is(
    run: Run, tmp_path: Path, command: str
) -> None:
    for where in (tmp_path, tmp_path / "none"):
        done = run("cluster", *command.split(), where)
        assert done.exit_code == 4
        assert "cluster up" in done.stderr
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("command", COMMANDS)
def test_a_broken_file_is_told_of_by_every_command(run: Run, tmp_path: Path, command: str) -> None:
    (tmp_path / CLUSTER_FILE_NAME).write_text("cluster = 1\n")
    for arguments in ((*command.split(), tmp_path), ("up", "--dir", tmp_path)):
        done = run("cluster", *arguments)
        assert done.exit_code == 3
        assert CLUSTER_FILE_NAME in done.stderr


def test_a_directory_with_something_else_in_it_is_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "letter").write_text("dear")
    done = run("cluster", "up", "--dir", tmp_path)
    assert done.exit_code == 7
    assert os.listdir(tmp_path) == ["letter"]


def test_one_command_at_a_time_changes_a_cluster(run: Run, place: Path) -> None:
    place.mkdir()
    described(str(place), 1, 4, free_port())
    with changing(str(place)):
        done = run("cluster", "up", "--dir", place)
    assert done.exit_code == 7
    line, *_ = done.stderr.splitlines()
    assert f"another command is at work on this cluster: process {os.getpid()} " in line


@pytest.mark.parametrize("said", [b"", b"4194305\n", b"\xff" * 5, b"1\nfoo", b"1" * 30, None])
def test_nobody_is_named_who_does_not_hold_the_lock_of_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: bytes | None
) -> None:
    """Who took it a moment ago has not said so yet: the file has who is gone, or anything."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "not for you")

    lock = tmp_path / "cluster.lock"
    with changing(str(tmp_path)):
        if said is None:
            monkeypatch.setattr(Path, "open", refuse)
        else:
            lock.write_bytes(said)
        with pytest.raises(RefusedError) as caught, changing(str(tmp_path)):
            pytest.fail("it is held")
    assert str(caught.value).splitlines()[0] == "another command is at work on this cluster"


def test_a_command_needs_no_room_to_say_who_it_is(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_text(*_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, "no space left")

    place.mkdir()
    monkeypatch.setattr(Path, "write_text", write_text)
    with changing(str(place)), pytest.raises(RefusedError) as info, changing(str(place)):
        pass
    assert "process" not in str(info.value)


# ------------------------------------------------------------------ tidelog server

MEMBERS = "n1=127.0.0.1:7400,n2=127.0.0.1:7401"
CLUSTER = UUID(int=9)


def test_each_machine_makes_its_own_member(run: Run, tmp_path: Path) -> None:
    made = ["server", "init", tmp_path / "one", "--name", "n1", "--members", MEMBERS]
    first = document(run(*made, "--json"))
    turned = ",".join(reversed(MEMBERS.split(",")))
    made = ["server", "init", tmp_path / "two", "--name", "n2", "--members", turned]
    second = document(run(*made, "--cluster", first["cluster"], "--json"))
    assert second["cluster"] == first["cluster"]
    assert second["member"] != first["member"]
    again = ["server", "init", tmp_path / "again", "--name", "n1", "--members", turned]
    assert document(run(*again, "--cluster", first["cluster"], "--json")) == first
    assert run(*made).exit_code == 2  # it is there already


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["init", "{}", "--name", "n3", "--members", MEMBERS], "not one of the members"),
        (["init", "{}", "--name", "n1", "--members", "n1"], "not NAME=HOST:PORT"),
        (
            ["init", "{}", "--name", "n1", "--members", MEMBERS, "--cluster", "x"],
            "not a valid UUID",
        ),
        (["run", "{}", "--solo", "--listen", "127.0.0.1:1"], "--solo excludes"),
        (["run", "{}", "--socket", "s"], "are for --solo"),
        (["run", "{}", "--solo", "--socket", "s" * 200], "longer than 107 bytes"),
        (["run", "{}", "--solo", "--socket", "/none/here/s"], "no directory /none/here for"),
        (["run", "{}", "--solo", "--socket", "/etc/passwd"], "something else at /etc/passwd"),
        (["run", "{}", "--listen", "7400"], "not HOST:PORT"),
        (["run", "{}", "--join", "127.0.0.1:7400"], "--join takes --listen"),
        (["run", "{}", "--solo", "--join", "127.0.0.1:7400"], "--solo excludes --join"),
        (["run", "{}", "--name", "n4"], "--name and --voter are for --join"),
        (["run", "{}", "--voter"], "--name and --voter are for --join"),
        (["run", "{}", "--join", "here", "--listen", "127.0.0.1:1"], "'here' is not HOST:PORT"),
        (
            ["run", "{}", "--join", "127.0.0.1:1", "--listen", "127.0.0.1:1", "--name", "../n4"],
            "not a name of a member",
        ),
    ],
)
def test_a_server_that_is_asked_for_wrongly_makes_nothing(
    run: Run, tmp_path: Path, arguments: list[str], problem: str
) -> None:
    done = run("server", *(text.format(tmp_path / "member") for text in arguments))
    assert done.exit_code == 2
    assert problem in done.stderr
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "arguments", [["init", "{}", "--name", "n1", "--members", MEMBERS], ["run", "{}", "--solo"]]
)
def test_a_directory_of_something_else_does_not_get_a_lock(
    run: Run, tmp_path: Path, arguments: list[str]
) -> None:
    (tmp_path / "notes").touch()
    done = run("server", *(text.format(tmp_path) for text in arguments))
    assert done.exit_code == 2
    assert "is not empty" in done.stderr
    assert os.listdir(tmp_path) == ["notes"]


def test_a_server_off_loopback_has_to_be_wanted(run: Run, tmp_path: Path) -> None:
    made = ["server", "init", tmp_path / "one", "--name", "n1", "--members", "n1=127.0.0.1:7400"]
    assert run(*made).exit_code == 0
    done = run("server", "run", tmp_path / "one", "--listen", "192.0.2.1:7400")
    assert done.exit_code == 2
    assert "--insecure" in done.stderr


def test_a_member_of_several_does_not_run_as_a_cluster_of_one(run: Run, tmp_path: Path) -> None:
    made = ["server", "init", tmp_path / "one", "--name", "n1", "--members", MEMBERS]
    assert run(*made).exit_code == 0
    done = run("server", "run", tmp_path / "one", "--solo")
    assert done.exit_code == 2
    assert "a member of a cluster of 2" in done.stderr
    assert "without --solo" in done.stderr
    assert "socket" not in os.listdir(tmp_path / "one")


def test_a_socket_at_which_somebody_listens_is_left_to_them(run: Run, tmp_path: Path) -> None:
    """It was taken over, and removed at the end: nobody reached the first server any more."""
    with socket.socket(socket.AF_UNIX) as taken:
        taken.bind(str(tmp_path / "s"))
        taken.listen()
        done = run("server", "run", tmp_path / "one", "--solo", "--socket", tmp_path / "s")
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(tmp_path / "s"))
    assert done.exit_code == 2
    assert "Address already in use" in done.stderr
    assert "another path with --socket" in done.stderr


SERVER = (sys.executable, "-m", "tidelog", "server", "run")


def server(*arguments: object) -> subprocess.Popen[str]:
    command = [*SERVER, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def refused_server(*arguments: object) -> subprocess.CompletedProcess[str]:
    """What is said by a server that ends by itself."""
    command = [*SERVER, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_cluster_of_one_listens_on_a_socket_of_its_owner(tmp_path: Path) -> None:
    for partitions in (["--partitions", 4], []):
        with server(tmp_path / "store", "--solo", *partitions) as process:
            assert process.stdout is not None
            path = tmp_path / "store" / "socket"
            assert process.stdout.readline() == f"listening at {path}, process {process.pid}\n"
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            process.send_signal(signal.SIGTERM)
            told = process.communicate(timeout=60)[1]
        assert (process.returncode, told.splitlines()[-1]) == (0, "the member has ended in order")
    with server(tmp_path / "store", "--solo", "--partitions", 4) as process:
        assert "leave --partitions out" in process.communicate(timeout=60)[1].lower()
    assert process.returncode == 2


def test_a_server_may_have_as_many_files_open_as_the_system_lets_it(tmp_path: Path) -> None:
    """It had the limit of its shell, mostly 1,024: so many clients took all, its log's too."""
    program = f'ulimit -Sn 200; exec "$@" {tmp_path / "store"} --solo --partitions 4'
    command = ["bash", "-c", program, "bash", *SERVER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("listening at")
            limits = Path(f"/proc/{process.pid}/limits").read_text()
        finally:
            process.send_signal(signal.SIGTERM)
    [line] = [line for line in limits.splitlines() if line.startswith("Max open files")]
    soft, hard = line.split()[3:5]
    assert (soft, int(soft) > 200) == (hard, True)


STUBBORN = """
import sys, trio
from tidelog.engine.node import server
async def run_member(environment, directory, *, ready, stop, **_more):
    ready(("/stubborn", 0))
    await stop.wait()
    print("draining", flush=True)
    await trio.sleep_forever()
server.run_member = run_member
sys.argv = ["tidelog", "server", "run", sys.argv[1]]
from tidelog.tools.entry import main
main()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_second_signal_ends_a_server_at_once(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-c", STUBBORN, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("listening at /stubborn")
        process.send_signal(number)
        assert process.stdout.readline() == "draining\n"
        process.send_signal(number)
        assert process.wait(60) == 128 + number
