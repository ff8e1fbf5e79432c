"""A test that hangs fails, and says where it hung."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

HANGING = """
import threading

def test_one_that_waits_for_a_thread():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()

def test_one_that_turns_in_a_circle():
    while True:
        pass

def test_the_next_one():
    pass
"""


@pytest.mark.slow
def test_a_test_that_hangs_fails_and_the_others_go_on(tmp_path: Path) -> None:
    file = tmp_path / "test_hanging.py"
    file.write_text(HANGING)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", ROOT / "pyproject.toml",
         "--rootdir", ROOT, "--timeout", "1", file],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert "2 failed, 1 passed" in done.stdout
    assert "Timeout (>1.0s)" in done.stdout
    assert "lock.acquire()" in done.stdout


def test_every_test_has_a_limit(request: pytest.FixtureRequest) -> None:
    assert request.config.getini("timeout") == "120"
    for item in request.session.items:
        marker = item.get_closest_marker("timeout")
        kinds = {kind for kind in ("slow", "spark", "nightly") if item.get_closest_marker(kind)}
        assert (marker is not None) == bool(kinds), item.nodeid
