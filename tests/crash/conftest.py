"""What all crash tests share: an engine that writes in small pieces, and no log output."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from support.scripts import small_pieces


@pytest.fixture(autouse=True)
def _engine_with_small_pieces() -> Iterator[None]:
    with small_pieces():
        yield


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    # Thousands of recoveries, each of which warns of what it found.
    monkeypatch.setattr(logging.getLogger("tidelog"), "disabled", True)
    for name in ("store", "log", "recovery", "checkpoint"):
        monkeypatch.setattr(logging.getLogger(f"tidelog.{name}"), "disabled", True)
