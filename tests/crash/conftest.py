"""What all crash tests share: no log output."""

from __future__ import annotations

import logging

import pytest


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    # Thousands of recoveries, each of which warns of what it found.
    monkeypatch.setattr(logging.getLogger("tidelog"), "disabled", True)
    for name in ("store", "log", "recovery", "checkpoint"):
        monkeypatch.setattr(logging.getLogger(f"tidelog.{name}"), "disabled", True)
