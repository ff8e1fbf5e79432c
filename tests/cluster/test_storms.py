"""Clients of a simulated cluster through storms of faults: nothing is lost, nothing is stale.

A seed decides the faults, and what the clients do.  ``TIDELOG_STORMS`` gives others: ``1-200``.
"""

from __future__ import annotations

import os

import pytest

from tidelog.testing.storms import run_storm

FIRST, _, LAST = os.environ.get("TIDELOG_STORMS", "1-20").partition("-")


@pytest.mark.parametrize("seed", range(int(FIRST), int(LAST or FIRST) + 1))
def test_what_clients_were_told_holds_through_a_storm(seed: int) -> None:
    outcome = run_storm(seed)
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
