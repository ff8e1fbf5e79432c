"""``tidelog cluster exchanges`` without members: what each of them said, as one list."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from click.testing import Result

from support.pictures import picture_in
from tidelog.affinity.errors import ClusterError
from tidelog.testing import SimCluster
from tidelog.tools.cluster import showing
from tidelog.tools.cluster.cluster_file import LocalCluster, LocalMember, write_cluster
from tidelog.tools.cluster.exchanges import (
    EXCHANGE_COLUMNS,
    causes_text,
    exchange_text,
    exchanges_of,
)
from tidelog.tools.cluster.standing import MemberAnswer, Picture, picture_of

Run = Callable[..., Result]

N1, N2, N3 = (UUID(int=number) for number in (1, 2, 3))
IDS = {"n1": N1, "n2": N2, "n3": N3}
THREE = LocalCluster(
    cluster=UUID(int=9),
    partitions=4,
    members=tuple(
        LocalMember(name=name, id=member, address=f"127.0.0.1:740{name[1]}", directory=name)
        for name, member in IDS.items()
    ),
)


def authored(member: UUID, count: int, opened: int = 0, ended: int = 0, **by: int) -> list[Any]:
    """What became of the takeovers of an author; ``d9=1``: one is superseded by decision 9."""
    later = [[int(index[1:]), number] for index, number in by.items()]
    return [member.bytes, count, opened, ended, later]


def exchange(decision: int, *authors: list[Any], **more: Any) -> dict[str, Any]:
    """An exchange as a member tells it: n2 has gone."""
    return {
        "decision": decision,
        "ago_us": 2_500_000,
        "causes": [["gone", N2.bytes, [], 0]],
        "taken_over": sum(row[1] for row in authors),
        "removed": 0,
        "admitted": 0,
        "added": 0,
        "authors": list(authors),
        "closed": None,
        "phases": [],
        "blocked": [],
    } | more


def told(**rows: list[dict[str, Any]] | None) -> Picture:
    """What members said; of one that has None there is no answer."""
    answers = {
        name: MemberAnswer(
            pid=17, exchanges=None if said is None else {"decided": 9, "exchanges": said}
        )
        for name, said in rows.items()
    }
    return picture_of(THREE, answers)


def only(picture: Picture) -> dict[str, Any]:
    [row] = exchanges_of(picture, 10)
    return row


def test_members_tell_of_one_exchange_together() -> None:
    row = only(
        told(
            n1=[
                exchange(
                    7,
                    authored(N1, 1, 1),
                    authored(N3, 2),
                    closed=[400_000, 0],
                    phases=[["reports", 300_000, 0, N3.bytes], ["storing", 100_000, 0, None]],
                    removed=4,
                )
            ],
            n2=None,
            n3=[
                exchange(
                    7,
                    authored(N1, 1),
                    authored(N3, 2, 1),
                    ago_us=2_600_000,
                    closed=[500_000, 3],
                    phases=[
                        ["reports", 200_000, 3, N1.bytes],
                        ["logging", 100_000, 2, None],
                        ["storing", 200_000, 3, N1.bytes],
                    ],
                    blocked=[["storing", [N1.bytes], [2]]],
                )
            ],
        )
    )
    assert (row["decision"], row["age"], row["cause"]) == (7, 2.6, "n2 has gone")
    assert (row["taken_over"], row["removed"], row["members"]) == (3, 4, ["n1", "n3"])
    assert (row["blocked"], row["slowest"]) == (0.5, 3)
    assert [tuple(phase.values()) for phase in row["phases"]] == [
        ("reports", 0.3, 0, "n1", "n3"),
        ("logging", 0.1, 2, "n3", None),
        ("storing", 0.2, 3, "n3", "n1"),
    ]
    assert not row["over"]
    assert row["blocks"] == [
        {"member": "n3", "phase": "storing", "partitions": [2], "waits_for": ["n1"]}
    ]
    assert [one["opened"] for one in row["authors"]] == [1, 1]
    assert [one["untold"] for one in row["authors"]] == [0, 0]
    text = exchange_text(row)
    assert text["state"] == "n3 waits until the list is stored at n1: 1 partition (2)"
    assert text["phases"] == ["reports 0.300 s (n3)", "logging 0.100 s", "storing 0.200 s (n1)"]
    assert (text["age"], text["blocked"], text["admitted"]) == ("2.6 s", "0.500 s", None)
    assert set(EXCHANGE_COLUMNS) <= text.keys()


def test_the_newest_exchanges_are_told_whoever_remembers_them() -> None:
    picture = told(n1=[exchange(n) for n in (3, 5)], n2=[exchange(n) for n in (5, 8)], n3=[])
    assert [row["decision"] for row in exchanges_of(picture, 10)] == [3, 5, 8]
    assert [row["decision"] for row in exchanges_of(picture, 2)] == [5, 8]
    assert [row["members"] for row in exchanges_of(picture, 10)] == [["n1"], ["n1", "n2"], ["n2"]]
    assert exchanges_of(told(n1=None, n2=None, n3=None), 10) == []


@pytest.mark.parametrize(
    ("said", "opened", "superseded", "untold", "state"),
    [
        ([authored(N1, 2, 2)], 2, {}, 0, "over"),
        ([authored(N1, 2)], 0, {}, 2, "n1 has not told of 2"),
        ([authored(N1, 2, 1)], 1, {}, 1, "n1 has not told of 1"),
        ([authored(N1, 2, d8=2)], 0, {"8": 2}, 0, "over; 2 superseded by 8"),
        (
            [authored(N1, 2, d8=1, d9=1)],
            0,
            {"8": 1, "9": 1},
            0,
            "over; 1 superseded by 8; 1 superseded by 9",
        ),
        # Its author had opened one before the others heard of it.
        ([authored(N1, 2, 1, d8=1), authored(N1, 2, 0, d8=2)], 1, {"8": 1}, 0,
         "over; 1 superseded by 8"),
        ([authored(N1, 2, 2), authored(N1, 2, 0, d8=2)], 2, {}, 0, "over"),
        # Of a partition with one copy only its author knew whether it was open.
        ([authored(N1, 2, ended=2)], 0, {}, 0, "over"),
        ([authored(N1, 2, 2), authored(N1, 2, ended=2)], 2, {}, 0, "over"),
        ([authored(N1, 2, ended=1)], 0, {}, 1, "n1 has not told of 1"),
    ],
)  # fmt: skip
def test_what_became_of_takeovers_is_told_as_whoever_knows_best_says(
    said: list[Any], opened: int, superseded: dict[str, int], untold: int, state: str
) -> None:
    names = iter(IDS)
    row = only(told(**{next(names): [exchange(7, authors)] for authors in said}))
    assert row["authors"] == [
        {
            "member": "n1",
            "taken_over": 2,
            "opened": opened,
            "superseded": superseded,
            "untold": untold,
        }
    ]
    assert exchange_text(row)["state"] == state
    assert row["over"] == (not untold)


def cause(kind: str, member: str | None, *others: str) -> dict[str, Any]:
    return {"kind": kind, "member": member, "others": list(others), "partitions": 1}


@pytest.mark.parametrize(
    ("causes", "text"),
    [
        ([cause("joined", "n1"), cause("joined", "n2")], "n1 and n2 joined"),
        ([cause("restarted", "n1")], "n1 was started again"),
        ([cause("restarted", "n1"), cause("restarted", "n2")], "n1 and n2 were started again"),
        ([cause("gone", "n1")], "n1 has gone"),
        ([cause("gone", "n1"), cause("gone", "n3")], "n1 and n3 have gone"),
        (
            [cause("gone", "n1"), cause("from_gone", "n1", "n2", "n3"), cause("removed", "n1")],
            "n2 and n3 take over from n1, which has gone; n1 removed",
        ),
        (
            [cause("restarted", "n1"), cause("from_older", "n1", "n1")],
            "n1 takes over from itself, as it was started again",
        ),
        (
            [cause("gone", "n2"), cause("from_gone", "n1", "n3")],
            "n2 has gone; n3 takes over from n1, which has gone",
        ),
        ([cause("moved", "n1", "n2")], "n1 hands over to n2"),
        ([cause("moved", "n1", "n2"), cause("moved", "n3", "n2")], "n1 and n3 hand over to n2"),
        ([cause("without", "n1", "n2")], "n1 goes on without n2"),
        ([cause("without", "n1", "n2", "n3")], "n1 goes on without n2 and n3"),
        ([cause("without", "n1")], "n1 goes on in another epoch"),
        ([cause("first", None, "n1", "n2")], "n1 and n2 serve for the first time"),
        ([cause("first", None, "n1")], "n1 serves for the first time"),
        ([cause("admitted", "n1"), cause("added", "n2")], "n1 admitted; n2 added"),
        ([cause("renamed", "n1")], "n1 renamed"),  # by a later version
    ],
)
def test_a_cause_is_told_in_words(causes: list[dict[str, Any]], text: str) -> None:
    assert causes_text(causes) == text


@pytest.mark.parametrize(
    "wrong",
    [
        {"authors": [[b"short", 1, 0, 0, []]]},
        {"authors": [[N1.bytes, 1, 0, []]]},
        {"causes": [["gone", N2.bytes, []]]},
        {"phases": [["reports", "long", 0, None]]},
        {"blocked": [["reports", []]]},
        {"closed": [1]},
        {"ago_us": None},
        {"taken_over": None},
    ],
)
def test_an_exchange_of_another_form_is_an_error(wrong: dict[str, Any]) -> None:
    with pytest.raises(ClusterError, match="cannot be right"):
        exchanges_of(told(n1=[exchange(7, authored(N1, 1)) | wrong]), 10)


def test_the_command_prints_rows_and_names_who_did_not_answer(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_cluster(str(tmp_path), THREE)
    asked: list[tuple[Any, ...]] = []
    picture = told(n1=[exchange(7), exchange(8, authored(N1, 1, 1))], n2=[], n3=[])
    status: Any = SimpleNamespace(member=N1)
    n1 = replace(picture.answers["n1"], status=status)
    picture = replace(picture, answers={**picture.answers, "n1": n1})

    def look(*about: Any) -> Picture:
        asked.append(about[2:])
        return picture

    monkeypatch.setattr(showing, "look", look)
    done = run("cluster", "exchanges", tmp_path, "--last", 1, "--json")
    assert done.stderr == "n2 and n3 did not answer: how long takeovers took there is not told\n"
    found = json.loads(done.stdout)
    assert (found["v"], found["type"], len(found["exchanges"])) == (1, "exchanges", 1)
    lines = run("cluster", "exchanges", tmp_path, "--jsonl").stdout.splitlines()
    assert [json.loads(line)["type"] for line in lines] == ["exchange"] * 2
    assert json.loads(lines[1]).items() >= found["exchanges"][0].items()
    head, *rows = run("cluster", "exchanges", tmp_path, "-q").stdout.splitlines()
    assert head.split("\t") == list(EXCHANGE_COLUMNS)
    assert [row.split("\t")[:3] for row in rows] == [
        ["7", "2.5 s", "n2 has gone"],
        ["8", "2.5 s", "n2 has gone"],
    ]
    assert asked == [(None, 1), (None, showing.EXCHANGES), (None, showing.EXCHANGES)]
    assert run("cluster", "exchanges", tmp_path, "--last", 0).exit_code == 2


def test_that_there_was_no_exchange_is_said(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = SimCluster(seed=5, nodes=1, partitions=2)

    async def scenario(at: SimCluster) -> Picture:
        at.start()
        await at.settled()
        return picture_in(at)

    picture = at.run(scenario)
    quiet = {
        name: replace(answer, exchanges={"decided": 3, "exchanges": []})
        for name, answer in picture.answers.items()
    }
    write_cluster(str(tmp_path), picture.cluster)
    monkeypatch.setattr(showing, "look", lambda *_about: replace(picture, answers=quiet))
    done = run("cluster", "exchanges", tmp_path)
    assert done.stderr == "nobody who answers has seen an exchange since it was started\n"
    assert done.stdout.split() == list(EXCHANGE_COLUMNS)
