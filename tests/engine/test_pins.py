"""Pins on the log: what they hold, and what becomes of one that holds too much."""

from __future__ import annotations

from typing import Any

import pytest

from support.stores import Opened, opened
from tidelog.engine.files.pins import LogPins
from tidelog.wal.segments import segment_numbers

SMALL: dict[str, Any] = {"segment_bytes": 1, "retain_bytes": 1, "partitions": 1}
VALUE = bytes(20_000)


def test_an_owner_with_two_pins_needs_the_lower_one() -> None:
    pins = LogPins()
    high, low = pins.set("copy", 90), pins.set("copy", 40)
    assert pins.positions() == {"copy": 40}
    pins.release(low)
    pins.release(low)
    assert pins.positions() == {"copy": 90}
    pins.release(high)
    assert pins.positions() == {}


def test_a_pin_moves_forward_only() -> None:
    pins = LogPins()
    pin = pins.set("copy", 40)
    pin.move_to(60)
    pin.move_to(50)
    assert pins.positions() == {"copy": 60}


@pytest.mark.parametrize(("end", "breaks"), [(1500, False), (1501, True)])
def test_a_pin_breaks_behind_its_limit_and_says_so_once(end: int, breaks: bool) -> None:
    pins, told = LogPins(), list[str]()
    pin = pins.set("copy", 1000, limit=500, broken=lambda: told.append("copy"))
    pins.set("other", 0)
    pins.break_long(end)
    pins.break_long(end)
    assert told == ["copy"] * breaks
    assert ("copy" in pins.positions()) is not breaks
    pins.release(pin)
    assert pins.positions() == {"other": 0}


def test_one_that_moves_on_in_time_does_not_break() -> None:
    pins = LogPins()
    pin = pins.set("copy", 1000, limit=500)
    pin.move_to(1200)
    pins.break_long(1700)
    assert pins.positions() == {"copy": 1200}
    pins.break_long(1701)
    assert pins.positions() == {}


def test_an_owner_needs_the_log_from_the_lowest_of_its_pins_on() -> None:
    pins = LogPins()
    for position in (1000, 500, 700):
        pins.set("copy", position)
    assert pins.positions() == {"copy": 500}


def test_a_pin_that_was_released_meanwhile_does_not_break() -> None:
    pins, told = LogPins(), list[str]()
    pins.set("first", 0, limit=10, broken=lambda: pins.release(second))
    second = pins.set("second", 0, limit=10, broken=lambda: told.append("second"))
    pins.break_long(100)
    assert (pins.positions(), told) == ({}, [])


def segments(store: Opened) -> list[int]:
    return segment_numbers(store.disk.directory("/store/wal"))


def test_the_log_goes_on_without_a_pin_that_has_broken() -> None:
    with opened(**SMALL) as store:
        told = list[str]()
        numbers, pins = store.database.map("numbers"), store.parts.keeper.pins
        pins.set("copy", 0, limit=1_000_000, broken=lambda: told.append("copy"))
        for at in range(40):
            numbers[b"%d" % at] = VALUE
        store.database.checkpoint()
        assert store.database.statistics().pins == {"copy": 0}
        assert (segments(store)[0], told) == (1, [])
        for at in range(50):
            numbers[b"%d" % at] = VALUE
        store.database.checkpoint()
        assert store.database.statistics().pins == {}
        assert segments(store)[0] > 1
        assert told == ["copy"]
