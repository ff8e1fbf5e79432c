"""The census finds what it counts: each measure is shown a source that has it, and others."""

from __future__ import annotations

import pytest

from support.census import TITLES, count_sources

LONG = "def f():\n" + " pass\n" * 60
GIVEN = "def g(): ...\nclass A:\n def __init__(self, owner):\n  {}\n"
KEPT = "class A:\n def m(self, call: Callable[[], None]):\n  {}\n"

FOUND: list[tuple[str, str]] = [
    ("long_functions", LONG),
    ("long_modules", "\n" * 401),
    ("many_parameters", "def f(a, b, c, /, d, e, *, g, h): ..."),
    ("commands", "@tool.command\ndef f(a, b, c, d, e, g, h): ..."),
    ("callables_given", GIVEN.format("owner.then = lambda: None")),
    ("callables_given", GIVEN.format("self.other.then = g")),
    ("callables_given", GIVEN.format("owner.count, owner.then = 1, self.__init__")),
    ("callables_kept", KEPT.format("self.call = call")),
    ("any_returned", "class A:\n def f(self) -> Any: ..."),
]


def counts(source: str) -> dict[str, int]:
    found = count_sources({"wal/x.py": source})
    return {name: len(getattr(found, name)) for name in TITLES if getattr(found, name)}


@pytest.mark.parametrize(("name", "source"), FOUND)
def test_what_is_counted_is_found(name: str, source: str) -> None:
    assert counts(source) == {name: 1}


@pytest.mark.parametrize(
    "source",
    [
        LONG.replace(" pass\n", "", 1),
        "\n" * 400,
        "class A:\n def f(self, a, b, c, d, e, g, *args, **more): ...",
        GIVEN.format("self.then = g"),
        GIVEN.format("owner.count = 1"),
        KEPT.format("self.found = call()"),
        "def f() -> list[Any]: ...",
    ],
)
def test_what_is_not_counted_is_left_alone(source: str) -> None:
    assert counts(source) == {}


def test_a_circle_is_counted_once_though_one_import_is_lazy() -> None:
    found = count_sources(
        {"wal/x.py": "from .y import Y", "wal/y.py": "def f():\n from .x import X"}
    )
    assert found.circles == ["wal/x.py <-> wal/y.py"]
