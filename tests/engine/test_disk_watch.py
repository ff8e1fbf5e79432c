"""For how long a disk has not answered, whatever the member that asks it does meanwhile."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tidelog.engine.node.disk_watch import DISK_TIMEOUT_S, DiskWatch

NOTHING = float("inf")


class Watched:
    def __init__(self) -> None:
        log: Any = SimpleNamespace(asked_disk_at=NOTHING, path="store")
        self.log, self.watch, self.now = log, DiskWatch(log), 100.0

    def looks(self, seconds: float, pause: float = 0.125) -> list[float]:
        """Look again and again; return how long it took each time that the disk hung."""
        begun, found = self.now, []
        while self.now < begun + seconds:
            self.now += pause
            if self.watch.look(self.now):
                found.append(self.now - begun)
        return found


def test_a_disk_hangs_once_it_has_not_answered_for_so_long() -> None:
    at = Watched()
    assert at.looks(60) == [], "it was asked for nothing"
    at.log.asked_disk_at = at.now
    hung = at.looks(DISK_TIMEOUT_S + 1)
    assert DISK_TIMEOUT_S <= hung[0] <= DISK_TIMEOUT_S + 0.25
    at.log.asked_disk_at = NOTHING
    assert at.looks(1) == []


def test_a_disk_that_answers_each_time_does_not_hang() -> None:
    at = Watched()
    for _ in range(10):
        at.log.asked_disk_at = at.now
        assert at.looks(DISK_TIMEOUT_S - 0.5) == []


def test_what_a_member_does_not_see_counts_for_little() -> None:
    at = Watched()
    at.log.asked_disk_at = at.now
    at.looks(1)
    assert at.looks(1, pause=3600) == [], "the machine was suspended"
    assert at.looks(DISK_TIMEOUT_S - 2) == []
    assert at.looks(1) != []


def test_who_looks_for_the_first_time_has_not_waited_yet() -> None:
    at = Watched()
    at.log.asked_disk_at = 0.0
    assert at.looks(DISK_TIMEOUT_S - 0.5) == []
