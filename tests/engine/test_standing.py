"""The table of what is legal in the commit path: every step from every standing."""

from __future__ import annotations

from itertools import product
from typing import get_args

import pytest

from support.commits import standing_of
from support.stores import opened
from tidelog.engine.commit.standing import (
    FIRST,
    LEADS,
    LIVES,
    STANDINGS,
    IllegalStepError,
    Lead,
    LeadStep,
    Life,
    LifeStep,
    Standing,
    Step,
)

LIFE_STEPS: tuple[LifeStep, ...] = get_args(LifeStep)
STOPPED = {Life.CLOSED, Life.FAILED, Life.BROKEN, Life.FORKED}
FACTS = {
    "lock": ("locks", True),
    "unlock": ("locks", False),
    "leave gaps": ("gaps", True),
    "close gaps": ("gaps", False),
}


def facts_of(standing: Standing) -> tuple[Lead, Life, bool, bool]:
    return standing.lead, standing.life, standing.locks, standing.gaps


def expected(standing: Standing, step: Step) -> tuple[Lead, Life, bool, bool] | None:
    """What the tables say of a step; None where they do not have it."""
    lead, life, locks, gaps = facts_of(standing)
    for (before, name), then in LEADS.items():
        if (before, name) == (lead, step):
            return then, life, locks, gaps
    for (life_before, life_name), life_then in LIVES.items():
        if (life_before, life_name) == (life, step):
            return Lead.IDLE if step == "fork" else lead, life_then, locks, gaps
    if step in FACTS:
        known = {"locks": locks, "gaps": gaps, FACTS[step][0]: FACTS[step][1]}
        return lead, life, known["locks"], known["gaps"]
    return None


def steps_of(of: object) -> tuple[Step, ...]:
    return get_args(of)


@pytest.mark.parametrize("step", [*steps_of(LeadStep), *steps_of(LifeStep), *FACTS])
def test_each_step_leads_where_the_tables_say_or_is_refused(step: Step) -> None:
    assert len(STANDINGS) == len(Lead) * len(Life) * 2 * 2
    for standing in STANDINGS:
        before = facts_of(standing)
        wanted = expected(standing, step)
        if wanted is None:
            with pytest.raises(IllegalStepError, match=f"no step '{step}'"):
                standing.after[step]
            assert step not in standing.after
        else:
            assert facts_of(standing.after[step]) == wanted
            assert standing.after[step] in STANDINGS
        assert facts_of(standing) == before


def test_the_tables_are_these() -> None:
    # Spelled out once more: a row that is taken out of the module has to go here, too.
    assert {(a.value, step, b.value) for (a, step), b in LEADS.items()} == {
        ("idle", "lead", "leading"),
        ("idle", "name", "named"),
        ("named", "begin", "leading"),
        ("named", "rename", "named"),
        ("named", "withdraw", "idle"),
        ("leading", "hand on", "named"),
        ("leading", "rest", "idle"),
    }
    shown = {
        life.value: [
            LIVES[life, step].value if (life, step) in LIVES else "-" for step in LIFE_STEPS
        ]
        for life in Life
    }
    assert LIFE_STEPS == (
        "serve", "commence", "end", "close", "fail", "break", "fork"
    )  # fmt: skip
    assert shown == {
        "recovering": ["fresh", "-", "ending", "closed", "failed", "broken", "forked"],
        "fresh": ["-", "open", "ending", "closed", "failed", "broken", "forked"],
        "open": ["-", "open", "ending", "closed", "failed", "broken", "forked"],
        "ending": ["-", "ending", "ending", "closed", "failed", "broken", "forked"],
        "closed": ["-", "closed", "closed", "closed", "closed", "broken", "forked"],
        "failed": ["-", "failed", "failed", "failed", "failed", "broken", "forked"],
        "broken": ["-", "broken", "broken", "broken", "broken", "broken", "forked"],
        "forked": ["-", "forked", "forked", "forked", "forked", "forked", "forked"],
    }


def test_what_is_derived_follows_from_the_facts_alone() -> None:
    for standing in STANDINGS:
        lead, life, locks, gaps = facts_of(standing)
        plain = lead is Lead.IDLE and life is Life.OPEN and not locks and not gaps
        assert standing.must_queue == (not plain)
        assert standing.busy == (lead is not Lead.IDLE)
        assert standing.stopped == (life in STOPPED)
        assert standing.watched == (life in STOPPED or locks)
        assert standing.broken == (life is Life.BROKEN)
        assert standing.fresh == (life in {Life.RECOVERING, Life.FRESH})
    assert sum(not standing.must_queue for standing in STANDINGS) == 1


def test_a_store_that_has_stopped_never_goes_on() -> None:
    for standing, step in product(STANDINGS, steps_of(LifeStep)):
        if standing.stopped and step in standing.after:
            assert standing.after[step].stopped


def test_a_standing_shows_what_it_is() -> None:
    assert repr(FIRST) == "<Standing idle recovering>"
    assert repr(FIRST.after["lock"].after["leave gaps"]) == "<Standing idle recovering locks gaps>"
    with pytest.raises(IllegalStepError) as caught:
        FIRST.after["begin"]
    assert str(caught.value) == "<Standing idle recovering>: there is no step 'begin'"


def test_an_illegal_step_leaves_the_store_as_it_was() -> None:
    with opened() as store:
        committer = store.parts.committer
        standing = committer.context.standing
        with pytest.raises(IllegalStepError):
            committer.serve(lambda: None)
        assert committer.context.standing is standing
        store.database.map("users")[b"a"] = b"1"


def test_a_store_goes_through_its_life() -> None:
    with opened(durability="none") as store:
        context = store.parts.committer.context
        lives = [standing_of(store).life]
        users = store.database.map("users")
        lives.append(standing_of(store).life)
        assert not standing_of(store).must_queue
        with store.database.transaction("pessimistic") as tx:
            tx[users][b"a"] = b"1"
            assert standing_of(store).locks
        assert not standing_of(store).locks
    assert [*lives, standing_of(store).life] == [Life.FRESH, Life.OPEN, Life.CLOSED]
    assert context.reason == "the store is closed"
