"""Refuse a folder whose coverage is below a floor: ``coverage_floor.py REPORT FOLDER=PERCENT...``.

Reads the JSON report of coverage.py.  Statements and branches are held to the floor separately in
each folder, so that a well-covered one does not make up for another.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TypedDict


class Summary(TypedDict):
    """The figures of one file that are used here."""

    num_statements: int
    covered_lines: int
    num_branches: int
    covered_branches: int


class File(TypedDict):
    """One file of the report."""

    summary: Summary


def percent(covered: int, of: int) -> float:
    """The share in percent; all of nothing is 100."""
    return 100.0 * covered / of if of else 100.0


def shares_of(files: list[File]) -> tuple[float, float]:
    """The percentages of statements and of branches that ran."""
    all_of = [file["summary"] for file in files]
    lines = sum(s["covered_lines"] for s in all_of), sum(s["num_statements"] for s in all_of)
    branches = sum(s["covered_branches"] for s in all_of), sum(s["num_branches"] for s in all_of)
    return percent(*lines), percent(*branches)


def main(report: str, *floors: str) -> int:
    """Print one line per folder; 1 if one of them is below the floor."""
    files: dict[str, File] = json.loads(Path(report).read_text())["files"]
    failed = False
    for folder, floor in (given.split("=") for given in floors):
        mine = [file for name, file in files.items() if name.startswith(folder + "/")]
        statements, branches = shares_of(mine) if mine else (0.0, 0.0)
        below = min(statements, branches) < float(floor)
        failed = failed or below
        print(
            f"{folder}: {statements:.1f} % of statements and {branches:.1f} % of branches ran, "
            f"the floor is {floor} %: {'FAILED' if below else 'passed'}"
        )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
