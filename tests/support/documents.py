"""A pytest plug-in that runs the Python and console blocks of the documents.

Blocks of one document share names and one temporary folder, and run in order; under pytest-xdist
they stay on one worker.  In a ``console`` block each line that begins with ``$ `` is a command, and
what follows it is what it prints (both streams); ``...`` stands for any text.  A command that ends
with an error says so in a last line ``[exit N]``.  Every other fence (``sh``, ``text``) is prose.
"""

from __future__ import annotations

import doctest
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest._code import Traceback
from sybil import Example, Sybil
from sybil.integration.pytest import SybilItem
from sybil.parsers.markdown import CodeBlockParser, PythonCodeBlockParser
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

ROOT = Path(__file__).resolve().parents[2]
PATTERNS = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "docs/*.md", "docs/**/*.md"]
COMMAND_TIMEOUT_S = 120
SPARK = ("tests/spark/", "docs/spark.md")
"""What shares the one Spark session of a run: it stays on one worker."""
COMMANDS = ("docs/cli.md",)
"""Where most blocks start several processes."""
MATCHING = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.REPORT_NDIFF


def commands_of(block: str) -> Iterator[tuple[str, str]]:
    """Each command of a console block with what it is expected to print."""
    command, printed = "", [""]
    for line in block.splitlines():
        if line.startswith("$ "):
            if command:
                yield command, "".join(printed)
            command, printed = line[2:], []
        elif command.endswith("\\"):
            command += "\n" + line
        elif command:
            printed.append(line + "\n")
        else:
            raise ValueError(f"a console block must begin with '$ ', found {line!r}")
    if command:
        yield command, "".join(printed)


def run_command(command: str) -> str:
    """What a command prints, run with the environment's own scripts first on PATH."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-c", command],
        env={**os.environ, "PATH": path, "COLUMNS": "100", "LC_ALL": "C.UTF-8"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=COMMAND_TIMEOUT_S,
        check=False,
    )
    return done.stdout + (f"[exit {done.returncode}]\n" if done.returncode else "")


def evaluate_console(example: Example) -> str | None:
    """The difference between what a console block says and what its commands print, or None."""
    checker = doctest.OutputChecker()
    for command, expected in commands_of(example.parsed):
        printed = run_command(command)
        if not checker.check_output(expected, printed, MATCHING):
            difference = checker.output_difference(
                doctest.Example(command, expected), printed, MATCHING
            )
            return f"$ {command}\n{difference}"
    return None


def enter_folder(namespace: dict[str, object]) -> None:
    """Change into a temporary folder, so that no example leaves a store in the checkout."""
    namespace["_before"] = os.getcwd()
    namespace["_folder"] = folder = tempfile.TemporaryDirectory(prefix="tidelog-docs-")
    os.chdir(folder.name)


def leave_folder(namespace: dict[str, object]) -> None:
    """Change back, and remove what the examples wrote."""
    before, folder = namespace["_before"], namespace["_folder"]
    assert isinstance(before, str)
    assert isinstance(folder, tempfile.TemporaryDirectory)
    os.chdir(before)
    folder.cleanup()


def whole_traceback(excinfo: pytest.ExceptionInfo[BaseException]) -> Traceback:
    """The traceback as it is."""
    return excinfo.traceback


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs Spark or runs commands, and keep Sybil's own filter of tracebacks away.

    That breaks the whole run on an error from outside of the block, such as a warning about a file
    that the block left open.
    """
    for item in items:
        if isinstance(item, SybilItem):
            vars(item)["_traceback_filter"] = whole_traceback
            if item.example.document.path.endswith(COMMANDS):
                item.add_marker("slow")
        if item.nodeid.startswith(SPARK):
            item.add_marker("spark")


class DocumentScheduling(LoadScopeScheduling):  # type: ignore[misc]  # pytest-xdist has no types
    """Hands out tests one by one, but the blocks of one document, and Spark's tests, together."""

    def _split_scope(self, nodeid: str) -> str:
        place, _, _ = nodeid.partition("::")
        if place.startswith(SPARK):
            return "spark"
        return place if place.endswith(".md") else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> DocumentScheduling:
    """Let pytest-xdist use the scheduling above, whatever ``--dist`` says."""
    return DocumentScheduling(config, log)


pytest_collect_file = Sybil(
    parsers=[PythonCodeBlockParser(), CodeBlockParser("console", evaluate_console)],
    patterns=PATTERNS,
    path=str(ROOT),
    setup=enter_folder,
    teardown=leave_folder,
).pytest()
