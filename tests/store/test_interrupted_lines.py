"""An exception at every line that the main thread executes in the store, one line to a run.

The program is ``tests/support/sweep_worker.py``.  Nine lines of ten are met again: what they belong
to may be done by another thread the second time.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parents[1]
SHARE = 20
"""One line in so many is tried by `make test`, in turn alone and beside two threads."""


def sweep(place: Path, first: int, step: int, how: str) -> dict[str, Any]:
    """Interrupt every ``step``th line; fail with what went wrong, or where it hung."""
    command = [sys.executable, "-m", "support.sweep_worker", str(place), str(first), str(step), how]
    ended = subprocess.run(command, cwd=TESTS, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-6000:]
    found: dict[str, Any] = json.loads(ended.stdout)
    assert found["problems"] == [], "\n".join(found["problems"])[:6000]
    assert found["met"] > found["tried"] * 3 // 4
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("how", "first"), [("alone", 0), ("beside", SHARE)])
def test_an_interrupt_at_some_lines_loses_and_breaks_nothing(
    tmp_path: Path, how: str, first: int
) -> None:
    assert sweep(tmp_path, first, 2 * SHARE, how)["lines"] > 4_000


@pytest.mark.nightly
@pytest.mark.parametrize("how", ["alone", "beside"])
@pytest.mark.parametrize("part", range(8))
def test_an_interrupt_at_any_line_loses_and_breaks_nothing(
    tmp_path: Path, how: str, part: int
) -> None:
    assert sweep(tmp_path, part, 8, how)["tried"] > 500
