"""What becomes of all that is unfinished in a takeover: scripts, lives, planted mistakes."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings, strategies as st

from support.takeover_scripts import played
from support.takeovers import Copy, lived_group, restored
from tidelog.affinity.errors import CorruptLogError
from tidelog.affinity.topology import Incarnation
from tidelog.checkpoints.copies import Copies
from tidelog.checkpoints.replay import State
from tidelog.engine.replication import merging
from tidelog.engine.replication.merging import K4, MergeError, merged
from tidelog.engine.replication.reports import Report
from tidelog.tx.numbers import told_numbers, united, without
from tidelog.wal.records import SettledOutcome, SettleRecord

SCRIPTS = sorted((Path(__file__).parent / "takeovers").glob("*.txt"))
ADA, BOB = Incarnation(UUID(int=1), 1), Incarnation(UUID(int=2), 1)
EMPTY = Report(copy=ADA, partition=0, epoch=2, lwm=0, ranges=(), hwm=0, epochs=((1, 1),))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_takeover_is_that_of_its_script(script: Path) -> None:
    text = script.read_text("utf-8")
    shown = played(text)
    if "TIDELOG_REWRITE_GOLDEN" in os.environ:
        script.write_text(shown, "utf-8")
        pytest.fail(f"{script.name} was written anew: read the difference, then run without it")
    assert shown == text


def test_every_letter_has_a_script() -> None:
    assert {path.stem[:2] for path in SCRIPTS} >= {f"{row[0]}_" for row in K4} | {"f_"}


def test_copies_are_equal_behind_each_list_and_nothing_that_was_told_is_lost() -> None:
    letters: set[str] = set()
    for seed in range(60):
        letters.update(lived_group(Random(seed)).letters)
    assert letters == {row[0] for row in K4}


@pytest.mark.slow
@settings(max_examples=200)
@given(st.randoms(use_true_random=False), st.integers(1, 4), st.integers(0, 40))
def test_any_life_of_a_group_keeps_its_promises(random: Random, copies: int, steps: int) -> None:
    lived_group(random, copies=copies, steps=steps)


@pytest.mark.nightly
def test_many_lives_of_groups_keep_their_promises() -> None:
    for seed in range(20_000):
        lived_group(Random(seed), copies=2 + seed % 3, epochs=3 + seed % 6)


def test_a_fold_from_any_checkpoint_of_a_log_is_that_of_the_whole_log() -> None:
    for seed in range(8):
        for lived in lived_group(Random(seed)).listed:
            for end in range(len(lived.log) + 1):
                copy = Copy(lived.name)
                for record in lived.log[:end]:
                    copy.take(record)
                # What the checkpoint has already comes again, from the very beginning.
                again = restored(copy.state)
                for position, record in enumerate(lived.log):
                    again.apply(position, record)
                assert kept(again) == kept(lived.state), f"seed {seed}, behind {end} records"


def kept(state: State) -> tuple[object, ...]:
    """What a checkpoint keeps of partition 0."""
    return (
        state.counters[0], state.epoch_tables[0], state.epochs[0], state.copies.entries(0),
        state.copies.sealed.get(0), state.time,
    )  # fmt: skip


# ------------------------------------------------------------------ what cannot be merged


@pytest.mark.parametrize(
    ("reports", "text"),
    [
        ([], "partition 0: no report"),
        ([EMPTY, EMPTY], "two reports of one copy"),
        ([EMPTY, replace(EMPTY, copy=BOB, partition=1)], "reports on partition 1 for epoch 2"),
        ([EMPTY, replace(EMPTY, copy=BOB, epoch=3)], "reports on partition 0 for epoch 3, not 2"),
        ([replace(EMPTY, epochs=((1, 1), (2, 3)))], "knows epoch 2, not below 2"),
        (
            [replace(EMPTY, bound=SettleRecord(partition=0, epoch=2, start=1, transactions=(),
                                               closed=()))],
            "knows epoch 2, not below 2",
        ),
    ],
)  # fmt: skip
def test_reports_of_something_else_are_refused(reports: list[Report], text: str) -> None:
    with pytest.raises(MergeError, match=text):
        merged(0, 2, reports)


def test_copies_that_lack_something_of_each_other_are_named() -> None:
    one = replace(EMPTY, lwm=2, hwm=2)
    other = replace(EMPTY, copy=BOB, ranges=((2, 1),), hwm=3)
    with pytest.raises(MergeError, match=r"lacks what is committed at numbers 3; .*numbers 1 to 2"):
        merged(0, 2, [one, other])


def test_sets_of_numbers_are_those_of_python() -> None:
    random = Random(1)
    for _ in range(300):
        ranges = [(low, low + random.randint(-1, 4)) for low in random.choices(range(20), k=6)]
        others = ranges[3:]
        numbers = united(ranges[:3])
        first = {n for low, high in ranges[:3] for n in range(low, high + 1)}
        second = {n for low, high in others for n in range(low, high + 1)}
        assert {n for low, high in numbers for n in range(low, high + 1)} == first
        left = without(numbers, others)
        assert left == united(left)
        assert {n for low, high in left for n in range(low, high + 1)} == first - second
    assert told_numbers([(1, 1), (3, 4), (6, 6), (8, 9)]) == "1, 3 to 4, 6, and more"


# ------------------------------------------------------------------ planted mistakes


def letter_becomes(letter: str, outcome: SettledOutcome) -> tuple[object, ...]:
    return tuple((row[0], row[1], outcome if row[0] == letter else row[2]) for row in K4)


def never(*_: object) -> bool:
    return False


def list_without_epochs(**fields: Any) -> SettleRecord:
    return SettleRecord(**{**fields, "epochs": ()})


def time_of_prepare(run: Any, _bound: object, copies: Any) -> int | None:
    found = [one.prepared[run].time for one in copies if run in one.prepared]
    return found[0] if found else None


def ranges_only(reports: list[Report]) -> int:
    """Where an epoch begins if prepared numbers are forgotten."""
    return 1 + max(sum(report.ranges[-1]) if report.ranges else report.lwm for report in reports)


def hwm_only(reports: list[Report]) -> int:
    """Where an epoch begins if every reserved number counts, and no list does."""
    return 1 + max(report.lwm for report in reports)


PLANTED: list[tuple[str, object, str, object]] = [
    ("a rolls back", merging, "K4", letter_becomes("a", SettledOutcome.ROLLED_BACK)),
    ("b commits", merging, "K4", letter_becomes("b", SettledOutcome.COMMITTED)),
    ("c rolls back", merging, "K4", letter_becomes("c", SettledOutcome.ROLLED_BACK)),
    ("c stays pending", merging, "K4", letter_becomes("c", SettledOutcome.PENDING)),
    ("d rolls back", merging, "K4", letter_becomes("d", SettledOutcome.ROLLED_BACK)),
    ("d commits", merging, "K4", letter_becomes("d", SettledOutcome.COMMITTED)),
    ("e commits", merging, "K4", letter_becomes("e", SettledOutcome.COMMITTED)),
    ("b is not seen", merging, "is_rolled_back", never),
    ("a is not seen", merging, "is_committed", never),
    ("one copy is enough", merging, "is_everywhere",
     lambda run, copies: any(run in copy.pending for copy in copies)),
    ("gaps stay", merging, "gaps", lambda *_: []),
    ("no list binds", merging, "binding", lambda _reports: None),
    ("prepared numbers are given again", merging, "epoch_start", ranges_only),
    ("what is above a gap is given again", merging, "epoch_start", hwm_only),
    ("each copy has its own table", merging, "SettleRecord", list_without_epochs),
    ("commits have the time of their PREPARE", merging, "commit_time", time_of_prepare),
    ("ends are not kept", Copies, "end", lambda *_: None),
    ("ends are forgotten too early", Copies, "commit",
     lambda self, run: self.ended.pop(run.partition, None)),
    ("an open epoch leaves ends", Copies, "open", lambda *_: None),
    ("gaps are not kept", State, "_is_shared", never),
]  # fmt: skip


def fails_somewhere(seeds: int) -> bool:
    for seed in range(seeds):
        try:
            lived_group(Random(seed))
        except (AssertionError, CorruptLogError, MergeError, KeyError):
            return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize(("owner", "name", "mistake"), [row[1:] for row in PLANTED],
                         ids=[row[0] for row in PLANTED])  # fmt: skip
def test_a_planted_mistake_is_found(
    monkeypatch: pytest.MonkeyPatch, owner: object, name: str, mistake: object
) -> None:
    monkeypatch.setattr(owner, name, mistake)
    assert fails_somewhere(400)


def oldest(reports: list[Report]) -> SettleRecord | None:
    lists = [one.bound for one in reports if one.bound is not None]
    return min(lists, key=lambda settle: settle.epoch, default=None)


SCRIPTED: list[tuple[str, str, Callable[..., object], str]] = [
    ("K3 is left out", "behind_acknowledged", lambda *_: {}, "k3_lost"),
    ("who lacks a list is not told", "without_list", lambda _reports: {}, "k6_void"),
    ("who lacks a list is not told, N3", "without_list", lambda _reports: {}, "n3_reuse"),
    ("the oldest list binds", "binding", oldest, "k6_highest"),
]


@pytest.mark.parametrize(("name", "mistake", "script"), [row[1:] for row in SCRIPTED],
                         ids=[row[0] for row in SCRIPTED])  # fmt: skip
def test_a_rule_is_found_missing_by_its_script(
    monkeypatch: pytest.MonkeyPatch, name: str, mistake: Callable[..., object], script: str
) -> None:
    monkeypatch.setattr(merging, name, mistake)
    text = next(path for path in SCRIPTS if path.stem == script).read_text("utf-8")
    assert played(text) != text
