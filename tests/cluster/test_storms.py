"""Clients of a simulated cluster through storms of faults: nothing is lost, nothing is stale.

A seed decides the faults, and what the clients do.  ``TIDELOG_STORMS`` gives others: ``1-200``;
``TIDELOG_COPIES_STORMS`` those of partitions with copies, of which every fifth is of five members,
``TIDELOG_GROWING_STORMS`` those in which members join, leave and lose their disks, and
``TIDELOG_TRANSACTION_STORMS`` those with transactions over keys of any partitions.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from tidelog.testing.cluster import KINDS, POINTS
from tidelog.testing.storm_faults import (
    COPIES_KINDS,
    COPIES_POINTS,
    GROWING_KINDS,
    HELD_KINDS,
    KILL_POINTS,
    TRANSACTION_KINDS,
    TRANSACTION_POINTS,
)
from tidelog.testing.storms import run_storm


def seeds_of(variable: str, default: str) -> range:
    """Return the seeds that the environment asks for: one, or two with a dash between."""
    first, _, last = os.environ.get(variable, default).partition("-")
    return range(int(first), int(last or first) + 1)


def test_storms_hold_back_messages_of_every_kind() -> None:
    assert {*HELD_KINDS, *COPIES_KINDS, *GROWING_KINDS, *TRANSACTION_KINDS} == set(KINDS)


def test_storms_kill_members_at_every_point() -> None:
    assert {*KILL_POINTS, *COPIES_POINTS, *TRANSACTION_POINTS} >= set(POINTS)


@pytest.mark.parametrize("seed", seeds_of("TIDELOG_STORMS", "1-20"))
def test_what_clients_were_told_holds_through_a_storm(seed: int) -> None:
    outcome = run_storm(seed)
    assert outcome.failure is None, outcome


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds_of("TIDELOG_COPIES_STORMS", "1-30"))
def test_what_clients_were_told_holds_through_a_storm_over_copies(seed: int) -> None:
    outcome = run_storm(seed, nodes=3 if seed % 5 else 5, backups=2)
    assert outcome.failure is None, outcome


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds_of("TIDELOG_GROWING_STORMS", "1-30"))
def test_what_clients_were_told_holds_through_a_storm_in_which_members_come_and_go(
    seed: int,
) -> None:
    # Without backups, as every third has it, what is lost with a disk is reset.
    outcome = run_storm(seed, nodes=3 if seed % 5 else 5, backups=(2, 1, 0)[seed % 3], growing=True)
    assert outcome.failure is None, outcome


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds_of("TIDELOG_TRANSACTION_STORMS", "1-40"))
def test_transactions_of_several_groups_are_serializable_through_a_storm(seed: int) -> None:
    outcome = run_storm(
        seed,
        nodes=3 if seed % 5 else 5,
        backups=(2, 1, 0)[seed % 3],
        growing=seed % 4 == 0,
        read_from="copies" if seed % 2 else "primary",
        transactions=True,
    )
    assert outcome.failure is None, outcome


def test_a_storm_starts_members_again_whose_data_file_failed() -> None:
    # Else they take in no full copy, and nobody is whole again.
    assert run_storm(2136, backups=2, growing=True).failure is None


def test_no_disk_is_lost_without_which_those_that_stay_cannot_decide() -> None:
    # One of three leaves meanwhile, and the change of the baseline was accepted already.
    assert run_storm(30917, growing=True).failure is None


def test_no_disk_is_lost_without_which_those_that_stay_for_now_cannot_decide() -> None:
    # Two of three leave, and one still holds data, whose disk was to be lost: the other goes first.
    assert run_storm(2712, backups=2, growing=True, transactions=True).failure is None


def test_a_member_whose_disk_is_slow_while_all_is_read_back_is_waited_for() -> None:
    # It answers nothing for a second, and nobody else has what it has.
    assert run_storm(52022, growing=True).failure is None


def test_a_member_that_does_not_vote_and_missed_that_it_is_gone_asks_for_it() -> None:
    # It was told of that, and not of the decision before, and what it asked then was lost.
    assert run_storm(50121, backups=2, growing=True).failure is None


@pytest.mark.parametrize("seed", [1002, 1049, 1063, 30915])
def test_the_check_of_a_store_knows_what_full_copies_and_supplies_leave(seed: int) -> None:
    # A copy that is being filled has no counter yet; what is supplied comes behind later deletes;
    # what is pending comes again with an admission.
    outcome = run_storm(seed, nodes=3 if seed % 5 else 5, backups=(2, 1, 0)[seed % 3], growing=True)
    assert outcome.failure is None, outcome


def test_a_storm_that_breaks_a_promise_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    # Whoever answers a read of what its disk lacks must be found.
    from tidelog.engine.node import reads

    genuine = reads.get

    def forgetful(*arguments: object) -> object:
        values, epochs, counters = genuine(*arguments)  # type: ignore[arg-type]
        return [None] * len(values), epochs, counters

    monkeypatch.setattr(reads, "get", forgetful)
    assert run_storm(1, faults=[]).failure is not None


def acknowledges_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    from tidelog.engine.commit.commit_log import CommitLog

    patch.setattr(CommitLog, "sync", lambda _self, _position: None)


def forgets_what_it_committed(patch: pytest.MonkeyPatch) -> None:
    from tidelog.engine.node.tx_history import TxHistory

    async def forgets(*_about: object) -> str:
        return "rolled_back"

    patch.setattr(TxHistory, "_outcome", forgets)


@pytest.mark.parametrize(
    ("plant", "seed"), [(acknowledges_before_the_sync, 2), (forgets_what_it_committed, 15)]
)
def test_a_mistake_that_is_planted_in_members_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert run_storm(seed).failure is not None


REPLAY = """
import logging, sys
logging.disable(logging.CRITICAL)
from tidelog.testing.storms import run_storm
print(run_storm(int(sys.argv[1])))
"""


@pytest.mark.slow
def test_a_seed_is_the_same_storm_in_every_process() -> None:
    told = {
        subprocess.run(
            [sys.executable, "-c", REPLAY, "4"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True, check=True, text=True,
        ).stdout
        for hash_seed in ("0", "1", "77")
    }  # fmt: skip
    assert told == {f"{run_storm(4)}\n"}
