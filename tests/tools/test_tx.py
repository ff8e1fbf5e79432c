"""``tidelog tx``: what it makes of answers of members, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from tidelog.engine.agreement.identity import member_id
from tidelog.errors import ClusterError, NotEnoughMembersError
from tidelog.tools.cluster.cluster_file import LocalCluster, LocalMember, write_cluster
from tidelog.tools.cluster.losing import resolved_rows
from tidelog.tools.cluster.standing import MemberAnswer, picture_of
from tidelog.tools.tx import cli
from tidelog.tools.tx.told import (
    NO_PRIMARY,
    home_in,
    numbers_in,
    part_rows,
    part_text,
    pending_of,
    pending_rows,
    pending_text,
)

ADA, BOB = UUID(int=1), UUID(int=2)
CLUSTER = UUID(int=9)
ONE = LocalCluster(
    cluster=CLUSTER,
    partitions=4,
    members=(
        LocalMember(
            name="n1", id=member_id(CLUSTER, "n1"), address="127.0.0.1:7400", directory="n1"
        ),
    ),
)
TX, OTHER = b"\xaa" * 16, b"\xbb" * 16
TOLD = {
    "n1": {
        "decided": 7,
        "deserted": [2],
        "pending": [
            [TX, 1, 0, 0, ADA.bytes, 3, False, 2_000_000, 2, 1, [[0, 1], [1, 4], [2, 1], [3, 1]]],
            [OTHER, 1, 0, 0, BOB.bytes, 1, True, 1_000_000, 1, 0, [[0, 1], [1, 4]]],
        ],
        "remembered": [[1, TX]],
    },
    "n2": {"decided": 6, "deserted": [], "pending": [], "remembered": []},
}


def share(partition: int, primary: str, *, is_open: bool | None = True) -> Any:
    return SimpleNamespace(
        partition=partition, primary=primary, open=is_open, in_sync=(primary, "n2")
    )


SHARES = [share(0, "n1"), share(1, "n1"), share(2, "n3", is_open=None), share(3, "n2")]


def test_what_is_pending_is_told_with_what_each_partition_says() -> None:
    older, newer = pending_rows(pending_of(TOLD).values(), TOLD, SHARES, {ADA: "n1"})
    assert newer == {
        "tx": TX.hex(),
        "in_doubt": True,
        "home": 0,
        "near": "n1.3",
        "near_is_there": False,
        "since": "1970-01-01T00:00:02.000000Z",
        "keys": 3,
        "partitions": [
            {"partition": 0, "epoch": 1, "says": "prepared", "primary": "n1"},
            {"partition": 1, "epoch": 4, "says": "committed", "primary": "n1"},
            {"partition": 2, "epoch": 1, "says": NO_PRIMARY, "primary": "n3"},
            {"partition": 3, "epoch": 1, "says": "unknown", "primary": "n2"},
        ],
    }
    assert pending_text(newer)["near"] == "n1.3 (gone)"
    assert pending_text(newer)["partitions"][2] == "2: no open primary"
    assert (older["tx"], older["in_doubt"]) == (OTHER.hex(), False)
    assert pending_text(older)["near"] == f"{str(BOB)[:8]}.1"


def test_of_a_store_alone_only_its_own_parts_are_known() -> None:
    [row] = pending_rows([pending_of(TOLD)[TX]], {}, (), {})
    assert row["in_doubt"] is None
    assert pending_text(row)["partitions"] == ["0: prepared", "1: ?", "2: ?", "3: ?"]


PARTS = {
    "n2": {
        "decided": 7,
        "parts": [[1, "committed", True, 4, 7, 2, 0], [0, None, False, 1, 3, 1, None]],
    },
    "n1": {"decided": 7, "parts": [[1, "committed", False, 4, 7, 2, 0]]},
    "n4": {"decided": 7, "parts": [[1, "pending", False, 4, 9, 1, 0]]},
}  # fmt: skip


def test_each_part_is_told_with_who_has_it() -> None:
    rows = part_rows(PARTS, SHARES)
    told = [(row["partition"], row["member"], row["here"], row["outcome"]) for row in rows]
    assert told == [
        (0, "n2", "copy", None), (1, "n1", "primary", "committed"), (1, "n2", "copy", "committed"),
        (1, "n4", "stale", "pending"),
    ]  # fmt: skip
    assert [part_text(row)["numbers"] for row in rows] == ["3", "7-8", "7-8", "9"]
    assert part_text(rows[0])["outcome"] == "unknown"
    assert home_in(rows) == 0
    assert home_in(rows[:1]) is None
    assert numbers_in(rows) == [{"partition": 1, "epoch": 4, "numbers": [7, 8]}]


def test_answers_of_another_form_are_told_as_such() -> None:
    with pytest.raises(ClusterError):
        pending_of({"n1": {"pending": [[TX, 1]]}})
    with pytest.raises(ClusterError):
        part_rows({"n1": {"parts": [[1]]}}, [])
    with pytest.raises(ClusterError):
        resolved_rows({"resolved": [[1]]})


def test_what_was_resolved_is_told_by_whom_and_without_whom() -> None:
    rows = [[7, TX, 1, True, False, [0, 1], [1]], [8, OTHER, 1, False, True, [0, 2], [0, 2]]]
    by_reset, by_hand = resolved_rows({"resolved": rows})
    assert by_reset == {
        "decision": 7, "tx": TX.hex(), "outcome": "committed", "by": "reset",
        "partitions": [0, 1], "missing": [1],
    }  # fmt: skip
    assert (by_hand["outcome"], by_hand["by"]) == ("rolled_back", "operator")


@pytest.mark.parametrize("tx_id", ["12", "xy" * 16, "ab" * 17])
def test_what_is_no_id_is_refused(run: Callable[..., Any], tmp_path: Path, tx_id: str) -> None:
    write_cluster(str(tmp_path), ONE)
    for command in ("show", "outcome", "resolve"):
        done = run("tx", command, tmp_path, tx_id)
        assert done.exit_code == 2
        assert "is not the id of a transaction" in done.stderr


def test_how_it_is_to_end_has_to_be_said(run: Callable[..., Any], tmp_path: Path) -> None:
    write_cluster(str(tmp_path), ONE)
    done = run("tx", "resolve", tmp_path, "ab" * 16)
    assert done.exit_code == 2
    assert "say how it is to end" in done.stderr


@pytest.mark.parametrize("flags", [("--rollback", "--commit"), ("--commit", "--rollback")])
def test_it_cannot_end_in_both_ways(
    run: Callable[..., Any], tmp_path: Path, flags: tuple[str, ...]
) -> None:
    # The last flag counted, and it ended so for good.
    write_cluster(str(tmp_path), ONE)
    done = run("tx", "resolve", tmp_path, "ab" * 16, *flags, "--yes")
    assert done.exit_code == 2
    assert "--commit and --rollback exclude each other" in done.stderr
    assert "next:  Give --commit, by which" in done.stderr


def test_where_nobody_runs_nothing_is_told_of_transactions(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    write_cluster(str(tmp_path), ONE)
    tx_id = "ab" * 16
    for command in (
        ("pending", tmp_path, "--json"),
        ("show", tmp_path, tx_id),
        ("resolve", tmp_path, tx_id, "--commit", "--yes"),
    ):
        done = run("tx", *command)
        assert (done.exit_code, done.stdout) == (6, "")
        assert "n1: not there, so what only they have is not told" in done.stderr
        assert "nobody tells of transactions: no member runs" in done.stderr
        assert f"`tidelog cluster status {tmp_path}` tells what is in the way" in done.stderr
    outcome = run("tx", "outcome", tmp_path, tx_id)
    assert (outcome.exit_code, outcome.stdout) == (9, "unknown\n")


def test_a_home_that_is_no_partition_is_refused_before_anybody_is_asked(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    write_cluster(str(tmp_path), ONE)
    done = run("tx", "outcome", tmp_path, "ab" * 16, "--home", 4)
    assert done.exit_code == 2
    assert "home=4 is not one of the 4 partitions, 0 to 3" in done.stderr
    assert "does not answer" not in done.stderr


def test_an_end_by_hand_is_refused_before_anybody_is_asked_unless_it_may_be_wrong(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    write_cluster(str(tmp_path), ONE)
    for how in ("--commit", "--rollback"):
        done = run("tx", "resolve", tmp_path, "ab" * 16, how)
        assert (done.exit_code, "give --yes" in done.stderr) == (7, True)
        assert "not there" not in done.stderr


def test_who_does_not_tell_how_it_is_is_named_and_asked_for_nothing_more(
    run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_cluster(str(tmp_path), ONE)
    silent = picture_of(ONE, {"n1": MemberAnswer(pid=1, problem="it did not answer in time")})
    monkeypatch.setattr(cli, "look", lambda *_arguments: silent)
    asked: list[object] = []
    monkeypatch.setattr(cli, "talking", lambda *arguments: asked.append(arguments))
    tx_id = "ab" * 16
    for command in (
        ("pending", tmp_path),
        ("show", tmp_path, tx_id),
        ("resolve", tmp_path, tx_id, "--commit", "--yes"),
    ):
        done = run("tx", *command)
        assert done.exit_code == 6
        assert "n1 does not answer: it did not answer in time" in done.stderr
        assert "nobody tells of transactions: no member answers" in done.stderr
    assert run("tx", "outcome", tmp_path, tx_id).exit_code == 9
    assert asked == []


def test_an_outcome_is_asked_of_those_who_tell_how_they_are(
    run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = replace(
        ONE, members=(replace(ONE.members[0], name="n0", address="10.0.0.1:1"), *ONE.members)
    )
    write_cluster(str(tmp_path), ONE)
    monkeypatch.setattr(cli, "found_cluster", lambda _place: two)
    monkeypatch.setattr(cli, "_parts", lambda *_arguments: ([], [two.members[1]]))
    monkeypatch.setattr(cli, "_resolution", lambda *_arguments: None)
    asked: list[str] = []

    def connected(where: str, **_options: object) -> Any:
        asked.append(where)
        raise NotEnoughMembersError("nobody")

    monkeypatch.setattr(cli, "connect", connected)
    assert run("tx", "outcome", tmp_path, "ab" * 16).exit_code == 9
    assert asked == ["tidelog://127.0.0.1:7400"]


def test_a_store_without_a_cluster_has_nothing_pending(run: Callable[..., Any], shop: Path) -> None:
    done = run("tx", "pending", shop, "--json")
    assert (done.exit_code, json.loads(done.stdout)["transactions"]) == (0, [])
    assert run("tx", "pending", shop, "--jsonl").stdout == ""
