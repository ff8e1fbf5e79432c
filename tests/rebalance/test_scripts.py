"""Golden scripts: a row, its goal, and what the planner makes of them.

A script has a first line that says what it shows, commands, a line of dashes, and what they print:

``row ROW version=N``   the row to begin with, a letter for each member, a dash for an empty place
``goal ROW``            the goal
``plan``                plan, and prioritize; prints the steps in the order in which they shall run
``run [N]``             let so many steps succeed, or all that are left
``fail``                let the next step fail; what is left of the plan is dropped

With ``TIDELOG_REWRITE_GOLDEN`` set the scripts are written anew.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.letters import row_of, step_text, text_of
from support.plans import Row, after
from tidelog.rebalance import Migration, plan_migrations, prioritize, remove_cycles

SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.txt"))
DASHES = "---\n"


class Play:
    """A row on its way to a goal, with its version, and the steps that are left."""

    def __init__(self) -> None:
        self.row: Row = []
        self.goal: Row = []
        self.version = 0
        self.left: list[Migration[str]] = []

    def do(self, command: str, *given: str) -> Iterator[str]:
        match command:
            case "row":
                self.row = row_of(given[0].ljust(7, "-"))
                self.version = int(given[1].removeprefix("version="))
            case "goal":
                self.goal = row_of(given[0])
            case "plan":
                yield from self.plan()
            case "run":
                for _ in range(int(given[0]) if given else len(self.left)):
                    yield self.end(success=True)
            case "fail":
                yield self.end(success=False)
            case _:
                raise ValueError(f"{command} is not a command")

    def plan(self) -> Iterator[str]:
        goal = remove_cycles(self.row, self.goal)
        if goal != self.goal:
            yield f"plan for {text_of(goal)}, cycles left out"
        plan = plan_migrations(self.row, self.goal)
        self.left = prioritize(plan)
        for step in self.left:
            place = plan.index(step)
            yield f"step {step_text(step)}" + ("" if plan == self.left else f" (planned {place})")

    def end(self, *, success: bool) -> str:
        step = self.left.pop(0)
        self.version += step.version_increment(success)
        if success:
            self.row = after(self.row, step)
        else:
            self.left = []
        word = "done" if success else "failed"
        return f"{word} {step_text(step)}: row {text_of(self.row)} version={self.version}"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: str(script.stem))
def test_a_script_prints_what_stands_in_it(script: Path) -> None:
    commands, _, expected = script.read_text().partition(DASHES)
    play = Play()
    lines = [
        line
        for command in commands.splitlines()
        if not command.startswith("#")
        for line in play.do(*command.split())
    ]
    printed = "".join(f"{line}\n" for line in lines)
    if "TIDELOG_REWRITE_GOLDEN" in os.environ:
        script.write_text(commands + DASHES + printed)
        pytest.fail(f"{script.name} was written anew: read the difference, then run without it")
    assert printed == expected
    assert play.left == []
    assert text_of(play.row) == text_of(remove_cycles(play.row, play.goal))


def test_there_are_scripts() -> None:
    assert len(SCRIPTS) >= 10
    assert all(script.read_text().startswith("# ") for script in SCRIPTS)
