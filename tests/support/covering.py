"""A pytest plug-in for ``mutate``: notes which test runs which lines, or runs some tests only.

``--note FILE`` writes the seconds of each test, and for each line of the core the tests (their
places in that list) during which it ran, in any thread.  Not noted is what runs in other processes
and while a test has set a tracer of its own.

``--only FILE`` runs the tests whose names the file has, and no others, those of one file together
and the files in the order of the list.
"""

from __future__ import annotations

import json
import time
from collections.abc import Generator
from pathlib import Path

import pytest
from coverage import Coverage

from support.mutants import LAYERS


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take the two options."""
    parser.addoption("--note", type=Path, help="write which test runs which lines")
    parser.addoption("--only", type=Path, help="run the tests that this file names")


def pytest_configure(config: pytest.Config) -> None:
    """Begin to note before the tests import anything."""
    if note := config.getoption("--note"):
        config.pluginmanager.register(Notes(note, config.rootpath))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the tests of the list, in its order."""
    if only := config.getoption("--only"):
        names = json.loads(only.read_text())
        wanted = set(names)
        files = list(dict.fromkeys(name.partition("::")[0] for name in names))
        left = [item for item in items if item.nodeid in wanted]
        left.sort(key=lambda item: files.index(item.nodeid.partition("::")[0]))
        items[:] = left


class Notes:
    """What is noted of a run."""

    def __init__(self, file: Path, root: Path) -> None:
        self._file = file
        self._root = root.resolve()
        self._seconds: dict[str, float] = {}
        self._coverage = Coverage(
            data_file=None,
            config_file=False,
            source=[str(self._root / layer) for layer in LAYERS],
        )
        self._coverage.set_option("run:disable_warnings", ["trace-changed", "module-not-measured"])
        self._coverage.start()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Note what runs from now on as that of this test."""
        self._coverage.switch_context(item.nodeid)
        start = time.monotonic()
        try:
            return (yield)
        finally:
            self._seconds[item.nodeid] = round(time.monotonic() - start, 4)
            self._coverage.switch_context("")

    def pytest_sessionfinish(self) -> None:
        """Write it down."""
        self._coverage.stop()
        data = self._coverage.get_data()
        place = {test: index for index, test in enumerate(self._seconds)}
        lines = {}
        for name in sorted(data.measured_files()):
            path = str(Path(name).resolve().relative_to(self._root))
            lines[path] = {
                line: sorted(place[test] for test in tests if test)
                for line, tests in data.contexts_by_lineno(name).items()
            }
        self._file.write_text(json.dumps({"seconds": self._seconds, "lines": lines}))
