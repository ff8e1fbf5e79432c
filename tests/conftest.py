"""Settings shared by all tests: how far Hypothesis searches, and loggers nobody has touched."""

from __future__ import annotations

import inspect
import logging
import os
import signal
import sys
import threading
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from support import tasks

# No deadline: a timed assert fails on a busy machine.  The same cases on each run but the nightly.
settings.register_profile(
    "default", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "nightly", deadline=None, max_examples=2_000, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

# A shell lets what it starts in the background ignore Ctrl-C, and so would the processes of tests.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


LIMITS = {"slow": 300, "spark": 600, "nightly": 7200}
"""Seconds after which a test of a kind has failed; the others have those of pyproject.toml."""

COUNTED = [
    Path(__file__).parent / folder
    for folder in ("affinity", "wal", "tx", "checkpoints", "rebalance", "engine")
]
"""Folders of the tests that coverage is made of.  Slow ones are not, nor those of whole clusters:
counting would double them."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Have each async test that is marked ``loops`` run in the loops of both kinds."""
    marked = metafunc.definition.get_closest_marker("loops") is not None
    if marked and inspect.iscoroutinefunction(metafunc.function):
        metafunc.fixturenames.append("loop")
        metafunc.parametrize("loop", list(tasks.RUNS))


@pytest.hookimpl(tryfirst=True)  # before pytest-trio takes all tests that are async
def pytest_itemcollected(item: pytest.Item) -> None:
    """Let a test that is for asyncio run there."""
    arguments = item.callspec.params if hasattr(item, "callspec") else {}
    face = arguments.get("face")
    if "asyncio" in (arguments.get("loop"), getattr(face, "loop", None)):
        assert isinstance(item, pytest.Function)
        item.obj = tasks.as_plain_test(item.obj)


@pytest.hookimpl(trylast=True)  # once every test has its markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests of each kind their limit: one that hangs fails, and the others go on."""
    for item in items:
        limits = [seconds for kind, seconds in LIMITS.items() if item.get_closest_marker(kind)]
        if limits:
            item.add_marker(pytest.mark.timeout(max(limits)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Let nothing be counted of a test that coverage is not made of.

    The marker of pytest-cov does not do that in workers of xdist: of the two that count in each
    only the upper one pauses.
    """
    counts = sys.gettrace()
    slow = any(item.get_closest_marker(kind) for kind in LIMITS)
    if counts is None or (any(map(item.path.is_relative_to, COUNTED)) and not slow):
        return (yield)
    of_threads = threading.gettrace()
    sys.settrace(None)
    threading.settrace(None)
    try:
        return (yield)
    finally:
        sys.settrace(counts)
        threading.settrace(of_threads)


@pytest.fixture(autouse=True)
def _ctrl_c_as_a_program_finds_it() -> None:
    """No test meets the handler that PySpark leaves, beside which asyncio sets up none."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _loggers_as_a_program_finds_them() -> None:
    """No test sees what another one did to the product's loggers."""
    for name in ("", ".store", ".log", ".recovery", ".checkpoint"):
        logger = logging.getLogger(f"tidelog{name}")
        logger.disabled = False
        logger.setLevel(logging.NOTSET)
