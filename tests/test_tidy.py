"""The shape of the source: layers, kinds of module, what may be used where, documents.

The rules are functions in ``support.tidy``; the tables that people edit are here.  At the end
each rule is shown a source that breaks it.
"""

from __future__ import annotations

import ast
import functools
import os
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest

from support import tidy
from support.tidy import Finding, Rule

ROOT = Path(__file__).resolve().parents[1]

# What each module may touch.  A folder stands for all its modules that have no row of their own;
# where the folder has no row, each new module needs one.
#   pure   decides: no files, clock, chance, threads or event loop
#   disk   blocks, in the thread of its caller, through a port or LMDB
#   shell  threads, Trio, the terminal: moves bytes and time, decides nothing
KINDS = {
    "affinity/": "pure",
    "wal/__init__.py": "pure",
    "wal/damage.py": "pure",
    "wal/format.py": "pure",
    "wal/index.py": "pure",
    "wal/ports.py": "pure",
    "wal/records/": "pure",
    "wal/retention.py": "pure",
    "wal/tail.py": "pure",
    "wal/tallies.py": "pure",
    "wal/ending.py": "disk",
    "wal/files.py": "disk",
    "wal/reader.py": "disk",
    "wal/remains.py": "disk",
    "wal/segments.py": "disk",
    "wal/sequence.py": "disk",
    "wal/writer.py": "disk",
    "wal/history.py": "disk",
    "tx/": "pure",
    "checkpoints/": "pure",
    "rebalance/": "pure",
    "engine/__init__.py": "pure",
    "engine/system/": "shell",
    "engine/commit/": "shell",
    "engine/store/": "shell",
    "engine/api/": "shell",
    "engine/aio/": "shell",
    "engine/agreement/": "pure",
    "engine/agreement/journal.py": "disk",
    "engine/replication/": "pure",
    "engine/client/": "shell",
    "engine/client/actions.py": "pure",
    "engine/client/catalog.py": "pure",
    "engine/client/changes.py": "pure",
    "engine/client/commits.py": "pure",
    "engine/client/dialogue.py": "pure",
    "engine/client/ids.py": "pure",
    "engine/client/reads.py": "pure",
    "engine/client/routing.py": "pure",
    "engine/client/unsupported.py": "pure",
    "engine/client/views.py": "pure",
    "engine/client/places.py": "disk",
    "engine/codecs/": "pure",
    "engine/data/": "pure",
    "engine/system/copying.py": "disk",
    "engine/system/disk.py": "disk",
    "engine/system/disk_errors.py": "pure",
    "engine/system/layout.py": "pure",
    "engine/system/limits.py": "pure",
    "engine/system/lmdb_pages.py": "pure",
    "engine/system/lmdb_remains.py": "pure",
    "engine/net/": "pure",
    "engine/node/": "shell",
    "engine/node/exchanges.py": "pure",
    "engine/net/connection.py": "shell",
    "engine/net/transport.py": "shell",
    "engine/net/turns.py": "shell",
    "engine/files/": "disk",
    "engine/files/manifest.py": "pure",
    "engine/files/recovery.py": "shell",
    "engine/commit/context.py": "pure",
    "engine/commit/entries.py": "pure",
    "engine/commit/outcomes.py": "pure",
    "engine/commit/puts.py": "pure",
    "engine/commit/standing.py": "pure",
    "engine/commit/sync_times.py": "pure",
    "engine/store/access.py": "disk",
    "engine/store/appending.py": "disk",
    "engine/store/claim.py": "disk",
    "engine/store/creation.py": "disk",
    "engine/store/data_file.py": "disk",
    "engine/store/live_snapshots.py": "pure",
    "engine/store/options.py": "pure",
    "engine/store/place.py": "disk",
    "engine/store/statistics.py": "pure",
    "engine/store/conflicts.py": "pure",
    "engine/store/known_outcomes.py": "pure",
    "engine/store/open_state.py": "pure",
    "engine/store/partition_cuts.py": "pure",
    "engine/upkeep/": "disk",
    "engine/upkeep/check.py": "shell",
    "engine/api/attempts.py": "pure",
    "engine/api/inside.py": "pure",
    "engine/api/items.py": "pure",
    "engine/api/maps.py": "pure",
    "engine/api/rewrites.py": "pure",
    "engine/api/snapshots.py": "pure",
    "engine/api/unwritable.py": "pure",
    "pipeline/": "disk",
    "pipeline/base/pace.py": "shell",
    "pipeline/base/sketches.py": "pure",
    "pipeline/spark/doctor.py": "shell",
    "testing/": "shell",
    "testing/anomalies.py": "pure",
    "testing/histories.py": "pure",
    "testing/linear.py": "pure",
    "testing/moves.py": "pure",
    "testing/workloads.py": "pure",
    "testing/zones.py": "pure",
    "tools/": "shell",
}

# The only places that ask the operating system for time, chance or ids.
OUTSIDE_WORLD = ("engine/system/production.py", "tools/")

# Where every exception is caught on purpose, as path:function, and why.
BROAD_HANDLERS = {
    "testing/storms.py:run_storm": "whatever goes wrong in a storm is what its seed is told of for",
    "engine/node/commits.py:commit_of.check": "a commit of one client, not the log of all",
    "engine/node/client_request.py:ClientRequest.carry_out": "of one client, not the member of all",
    "engine/codecs/classes.py:_enum_part.from_plain": "an Enum of the user: it refuses the value",
    "engine/codecs/classes.py:_made": "a class of the user: it refuses the document",
    "engine/codecs/registry.py:_registered": "foreign code: the codec is not there",
    "engine/commit/carrier.py:Carrier.carry": "a signal may raise any class of error",
    "engine/commit/carrier.py:Carrier._mended": "a bug that comes again stops the store",
    "engine/system/thread_task.py:ThreadTask._done": "what fails once must not end the rest",
    "engine/aio/workers.py:in_thread.job": "the task that waits raises it",
    "engine/system/blocking.py:_sync_all": "the task that waits raises it",
    "engine/aio/log_thread.py:LogThread._commit": "tasks wait for an outcome: a bug is one",
    "engine/data/namespaces.py:Namespace.check_encoded": "foreign code: any exception refuses",
    "engine/store/relief.py:Relief._beside": "the open raises what this thread meets",
    "engine/api/html.py:_decoded": "what a codec raises is no reason to show nothing",
    "engine/api/rewrites.py:Rewrite.prepare": "what a codec raises is for one caller",
    "testing/process.py:Process.live": "what the tasks of a killed process raise is nobody's",
    "pipeline/spark/doctor.py:_session": "whatever Java or Spark says was found",
}

# Circles of imports that are left, types included.
CIRCLES: list[list[str]] = []

# Modules that nothing in the product needs yet, and what will.
AWAITED: dict[str, str] = {}

# Constants of the package that a test changes, as path:NAME, and why.
CHANGED = {
    "tests/cluster/test_coming_back.py:PIECE_ROWS": "8,192 keys would take too long",
    "tests/cluster/test_coming_back.py:PIECE_BYTES": "half a megabyte would take too long",
    **dict.fromkeys(
        [
            f"tests/cluster/test_accounts_of_returns.py:{name}_BYTES"
            for name in ("AHEAD", "HELD", "PIECE", "STORE", "TELL")
        ],
        "a partition of megabytes stands for one of gigabytes",
    ),
    "tests/cluster/test_accounts_of_returns.py:SETTLE_S_MAX": "5 GiB are half an hour on the wire",
    "tests/cluster/test_accounts_of_returns.py:PIECE_ROWS": "8,192 keys would take too long",
    "tests/support/copies.py:PIECE_ROWS": "8,192 keys would take too long",
    "tests/support/copies.py:PIECE_BYTES": "half a megabyte would take too long",
    "tests/cluster/test_returns_at_once.py:BEHIND_BYTES_MAX": "64 MiB would take too long",
    "tests/cluster/test_broken_pins.py:PIN_BYTES_MAX": "a gigabyte of log would take too long",
    "tests/cluster/test_attacks.py:GROUP_BYTES_MAX": "what waits in a simulated world is short",
    "tests/cluster/test_attacks.py:HELD_MAX": "thousands of requests would take too long",
    "tests/cluster/test_attacks.py:RANGE_KEYS_MAX": "100,000 keys would take too long",
    "tests/cluster/test_hastes.py:COMPANY_S": "a frame and its sync take about as long",
    "tests/cluster/test_hastes.py:GATHER_S": "a frame and its sync take about as long",
    "tests/cluster/test_hastes.py:TICK_S": "each tick hurries what is in no haste",
    "tests/cluster/test_losses.py:AT_ONCE_MAX": "hundreds of partitions would take too long",
    "tests/cluster/test_members.py:DECISIONS_MAX": "hundreds of maps would take too long",
    "tests/cluster/test_members.py:PASSED_BYTES_MAX": "32 MiB of values would take too long",
    "tests/cluster/test_members.py:SENDABLE": "an answer of 64 MiB would take too long",
    "tests/cluster/test_members.py:SNAPSHOT_AFTER": "256 KiB of decisions would take too long",
    "tests/cluster/test_attacks.py:QUEUED_BYTES_MAX": "a queue of 256 MiB takes too long to fill",
    "tests/engine/test_client.py:SENDABLE": "a request of 64 MiB would take too long",
    "tests/engine/test_wire.py:DECISIONS_MAX": "a storm is too short for a member to be far behind",
    "tests/wal/test_format.py:FORMAT_VERSION": "the header of a format that does not exist yet",
}

# Names of functions and types that several modules define, and why that confuses nobody.
SHARED = {
    **dict.fromkeys(
        [
            "Attempt",
            "Database",
            "Items",
            "Map",
            "Snapshot",
            "Transaction",
            "connect",
            "connect_with",
            "memory",
            "open",
            "open_with",
            "run",
        ],
        "one thing, for threads and for tasks of Trio",
    ),
    **dict.fromkeys(
        ["compare_and_set", "delete", "incr", "pop", "setdefault"],
        "an operation, and the decision that it asks for",
    ),
    **dict.fromkeys(["decode", "encode", "read"], "used as `manifests.read` and the like"),
    "get_many": "an operation, and the reads beneath it",
    "load": "an operation, and the job that documents call so",
    "log": "a logger",
    "main": "the command, before and after it handles signals",
    "merged": "of layers of the overlay, and of the reports of copies",
    "Put": "an operation of a history, and a write on its way to the log",
    "partition_of": "of a key, and of a column of keys",
    "plain": "as JSON can hold it: a value, and a row",
}

# What the heads of modules name beside modules, classes and their members.
WORDS = frozenset(
    ["ENOSPC", "MDB_meta", "MDB_node", "MDB_page", "arrow", "b64", "import", "interval", "s"]
)

# A package of its own in the wheel, by which Spark finds the other one.
DISCOVERY = "pipeline/discovery/pyspark_tidelog"

# Folders with an __init__.py that are no part of the package.
NOT_PACKAGES = frozenset({"benchmarks", "docs", "examples", "tests"})
DOCUMENTS = ("*.md", "docs/**/*.md")


def text_of(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def relative(paths: Iterable[Path]) -> list[str]:
    return sorted(str(path.relative_to(ROOT)) for path in paths)


def is_ours(folder: str) -> bool:
    """Whether a folder holds sources: hidden and generated ones do not, but ``.ci`` does."""
    generated = folder in {"__pycache__", "build", "dist"} or folder.endswith(".egg-info")
    return folder == ".ci" or not (generated or folder.startswith("."))


@functools.cache
def all_files() -> list[str]:
    """Every file of the checkout that belongs to it."""
    found = []
    for folder, folders, names in os.walk(ROOT):
        folders[:] = filter(is_ours, folders)
        found += [Path(folder, name) for name in names if name != ".coverage"]
    return relative(found)


@functools.cache
def package_folders() -> list[str]:
    """The folders of the root that are packages, with their sub-packages."""
    folders = {str(Path(path).parent) for path in all_files() if path.endswith("/__init__.py")}
    folders.discard(DISCOVERY)
    return sorted(folder for folder in folders if folder.split("/")[0] not in NOT_PACKAGES)


@functools.cache
def package_sources() -> dict[str, str]:
    """Path and text of every module of the package."""
    folders = {".", *package_folders()}
    paths = [path for path in all_files() if path.endswith(".py")]
    return {path: text_of(path) for path in paths if str(Path(path).parent) in folders}


def sources_of_tests() -> dict[str, str]:
    return {
        path: text_of(path)
        for path in all_files()
        if path.startswith("tests/") and path.endswith(".py")
    }


def documents() -> list[str]:
    return relative(path for pattern in DOCUMENTS for path in ROOT.glob(pattern))


def exists(pattern: str) -> bool:
    return any(True for _ in ROOT.glob(os.path.normpath(pattern)))


def expect_none(findings: Iterable[Finding]) -> None:
    """Fail with all findings, one line each."""
    lines = [str(finding) for finding in findings]
    if lines:
        pytest.fail("\n".join(lines), pytrace=False)


def expect_none_in_package(rule: Rule) -> None:
    """Fail with what a rule finds in the modules of the package."""
    expect_none(found for path, text in package_sources().items() for found in rule(path, text))


def with_kinds(path: str, source: str) -> list[Finding]:
    return tidy.find_wrong_kinds(path, source, KINDS) if tidy.layer_of(path) else []


def with_places(path: str, source: str) -> list[Finding]:
    return tidy.find_broad_handlers(path, source, BROAD_HANDLERS)


def outside_of_environment(path: str, source: str) -> list[Finding]:
    return [] if path.startswith(OUTSIDE_WORLD) else tidy.find_clocks_and_dice(path, source)


def below_the_tools(path: str, source: str) -> list[Finding]:
    outside = tidy.layer_of(path) in ("testing", "pipeline", "tools")
    return [] if outside else tidy.find_locks_in_python(path, source)


@functools.cache
def names_in_package() -> frozenset[str]:
    """What the head of any module may name."""
    names = (tidy.names_defined(path, text) for path, text in package_sources().items())
    return WORDS.union(*names)


def unknown_names(path: str, source: str) -> list[Finding]:
    return tidy.find_unknown_names(path, source, names_in_package())


def missing_paths(path: str, source: str) -> list[Finding]:
    folders = {name.split("/")[0] for name in all_files() if "/" in name}
    return tidy.find_missing_paths(path, source, folders, exists)


# ------------------------------------------------------------------ the repository keeps the rules


def test_imports_go_to_the_left_only() -> None:
    expect_none_in_package(tidy.find_wrong_layers)


def test_imports_go_to_rooms_on_the_left_only() -> None:
    expect_none_in_package(tidy.find_wrong_rooms)


def test_no_imports_go_in_a_circle() -> None:
    assert tidy.find_circles(package_sources()) == CIRCLES


def test_every_module_keeps_to_its_kind() -> None:
    expect_none_in_package(with_kinds)


def test_every_row_of_the_kinds_has_its_module() -> None:
    assert [path for path in KINDS if not exists(path)] == []


def test_dependencies_stay_in_their_places() -> None:
    expect_none_in_package(tidy.find_wrong_dependencies)


def test_time_and_chance_come_from_the_environment() -> None:
    expect_none_in_package(outside_of_environment)


def test_a_lock_is_never_taken_in_python() -> None:
    expect_none_in_package(below_the_tools)


def test_nobody_else_catches_every_exception() -> None:
    expect_none_in_package(with_places)


def test_every_place_that_may_catch_everything_does() -> None:
    places = {
        place
        for path, source in package_sources().items()
        for place, _ in tidy.broad_handlers(path, source)
    }
    assert set(BROAD_HANDLERS) - places == set()


def test_nothing_that_was_opened_is_lost_at_a_return() -> None:
    expect_none_in_package(tidy.find_lost_behind_try)


def test_no_exception_of_the_implementation_is_in_the_tracebacks_of_users() -> None:
    expect_none_in_package(tidy.find_chained_details)


def test_names_of_exceptions_end_in_error() -> None:
    expect_none_in_package(tidy.find_misnamed_exceptions)


def test_every_error_has_a_code_of_its_own() -> None:
    path = "affinity/errors.py"
    expect_none(tidy.find_wrong_codes(path, text_of(path)))


def test_no_module_is_unused() -> None:
    sources = package_sources()
    tests = sources_of_tests()
    starts = [path for path in sources if "/" not in path or path.endswith("/__init__.py")]
    # What is shipped for users' tests is used by ours.
    used = {name for path, text in tests.items() for name in tidy.references_of(path, text)}
    starts += [
        path
        for path in sources
        if tidy.layer_of(path) == "testing"
        and any(f"{name}.".startswith(f"{tidy.dotted(path)}.") for name in used)
    ]
    expect_none(tidy.find_unused_modules(sources, [*starts, *AWAITED]))


def test_the_packages_listed_are_the_folders_there_are() -> None:
    packages = tomllib.loads(text_of("pyproject.toml"))["tool"]["setuptools"]["packages"]
    found = {f"tidelog.{folder.replace('/', '.')}" for folder in package_folders()}
    assert sorted(packages) == sorted({"tidelog", *found, Path(DISCOVERY).name})


def test_every_folder_of_the_package_is_a_layer() -> None:
    assert {folder.split("/")[0] for folder in package_folders()} <= set(tidy.LAYER_NAMES)


def dependencies_declared() -> set[str]:
    project = tomllib.loads(text_of("pyproject.toml"))["project"]
    extras = project["optional-dependencies"]
    used = ("arrow", "cli", "demo", "spark", "trio")
    lines = [*project["dependencies"], *(line for name in used for line in extras[name])]
    return {line.split(">")[0] for line in lines if not line.startswith("tidelog[")}


def test_every_dependency_has_its_places() -> None:
    assert dependencies_declared() == set(tidy.DEPENDENCIES)


def test_every_dependency_is_used() -> None:
    imported = {
        item.top
        for path, source in package_sources().items()
        for item in tidy.imports_of(path, source)
        if not item.level
    }
    assert dependencies_declared() - imported == set()


def test_tests_neither_sleep_nor_skip() -> None:
    tests = sources_of_tests().items()
    expect_none(f for item in tests for f in tidy.find_sleeps_and_skips(*item))


def test_tests_change_no_constant_of_the_package() -> None:
    tests = sources_of_tests().items()
    expect_none(f for item in tests for f in tidy.find_changed_constants(*item, CHANGED))


def test_every_constant_that_may_be_changed_is() -> None:
    found = {
        f"{path}:{name}"
        for path, source in sources_of_tests().items()
        for _, name in tidy.constants_changed(source)
    }
    assert set(CHANGED) == found


def test_no_file_names_a_path_of_one_machine() -> None:
    # Bytes that are no text are passed over: the fixtures hold whole stores.
    texts = ((path, (ROOT / path).read_text("utf-8", "replace")) for path in all_files())
    expect_none(f for item in texts for f in tidy.find_machine_paths(*item))


def test_every_path_in_a_document_exists() -> None:
    expect_none(f for path in documents() for f in missing_paths(path, text_of(path)))


def test_errors_docstrings_and_comments_are_plain_english() -> None:
    expect_none_in_package(tidy.find_stilted_prose)


def test_every_name_in_the_head_of_a_module_exists() -> None:
    expect_none_in_package(unknown_names)


def test_a_name_means_one_thing() -> None:
    expect_none(tidy.find_shared_names(package_sources(), SHARED))


def test_every_name_that_may_be_shared_is() -> None:
    found = tidy.find_shared_names(package_sources(), ())
    assert {finding.text.split()[0] for finding in found} == set(SHARED)


def test_every_listed_word_is_in_the_head_of_a_module() -> None:
    heads = (ast.get_docstring(tidy.parsed(text)) or "" for text in package_sources().values())
    assert WORDS - {name for head in heads for name in tidy.names_told(head)} == set()


# ------------------------------------------------------------------ the rules find what they should


def shared(path: str, source: str) -> list[Finding]:
    other = "class Cut: ...\ndef moment(): ...\ndef plain(): ...\nRow = tuple[int, int]"
    return tidy.find_shared_names({path: source, "wal/a.py": other}, SHARED)


def unused(path: str, source: str) -> list[Finding]:
    return tidy.find_unused_modules({path: source, "wal/__init__.py": ""}, ["wal/__init__.py"])


LAYERS, KIND, LIBRARIES = tidy.find_wrong_layers, with_kinds, tidy.find_wrong_dependencies
OUTSIDE, BROAD, LOCKS = outside_of_environment, with_places, below_the_tools
CONSTANTS = tidy.find_changed_constants
NAMES, CODES = tidy.find_misnamed_exceptions, tidy.find_wrong_codes
DETAILS = tidy.find_chained_details
LOST = tidy.find_lost_behind_try
RUN, MACHINE, PATHS = tidy.find_sleeps_and_skips, tidy.find_machine_paths, missing_paths
PROSE, HEAD = tidy.find_stilted_prose, unknown_names

BAD: list[tuple[str, Rule, str, str]] = [
    # name, rule, path, source
    ("import to the right", LAYERS, "wal/x.py", "from ..engine.kv import K"),
    ("right, at the root", LAYERS, "tx/x.py", "from .. import tools"),
    ("right, in a function", LAYERS, "tx/x.py", "def f():\n from ..engine import k"),
    ("siblings", LAYERS, "testing/x.py", "from ..pipeline.jobs import j"),
    ("deeper folder", LAYERS, "wal/y/x.py", "from ...engine import kv"),
    ("absolute", LAYERS, "wal/x.py", "import tidelog.affinity.errors"),
    ("absolute, from", LAYERS, "wal/x.py", "from tidelog.affinity import errors"),
    ("bare name of a layer", LAYERS, "engine/x.py", "from wal.format import f"),
    ("root re-export", LAYERS, "engine/x.py", "from ..errors import TidelogError"),
    ("pure with files", KIND, "affinity/x.py", "import os"),
    ("pure with paths", KIND, "tx/x.py", "from pathlib import Path"),
    ("pure with LMDB", KIND, "checkpoints/x.py", "import lmdb"),
    ("pure with Trio", KIND, "rebalance/x.py", "import trio"),
    ("pure with threads", KIND, "wal/records.py", "from threading import Lock"),
    ("pure with a log", KIND, "wal/tail.py", "import logging"),
    ("pure opens", KIND, "affinity/x.py", "open('x')"),
    ("disk with threads", KIND, "wal/writer.py", "import threading"),
    ("disk with Trio", KIND, "engine/system/disk.py", "import trio"),
    ("kind not listed", KIND, "engine/surprise.py", ""),
    ("terminal below the tools", LIBRARIES, "engine/x.py", "import click"),
    ("new dependency", LIBRARIES, "tools/x.py", "import requests"),
    ("code from data", LIBRARIES, "engine/x.py", "import pickle"),
    ("lost", LOST, "wal/x.py", "try:\n g()\nexcept BaseException:\n f.close()\n raise\nreturn f"),
    ("clock", OUTSIDE, "engine/x.py", "import time\ntime.monotonic()"),
    ("clock, not called", OUTSIDE, "wal/x.py", "import time\nf = time.time"),
    ("clock, renamed", OUTSIDE, "wal/x.py", "from time import time as t\nt()"),
    ("sleep", OUTSIDE, "testing/x.py", "import time as t\nt.sleep(1)"),
    ("date", OUTSIDE, "tx/x.py", "import datetime\ndatetime.datetime.now()"),
    ("day", OUTSIDE, "tx/x.py", "from datetime import date\ndate.today()"),
    ("chance", OUTSIDE, "engine/x.py", "import random\nrandom.random()"),
    ("no seed", OUTSIDE, "engine/x.py", "from random import Random\nRandom()"),
    ("entropy", OUTSIDE, "engine/x.py", "import os\nos.urandom(8)"),
    ("random id", OUTSIDE, "engine/x.py", "from uuid import uuid4\nuuid4()"),
    ("secret", OUTSIDE, "engine/x.py", "import secrets\nsecrets.token_hex()"),
    ("event", LOCKS, "engine/x.py", "import threading as t\nt.Event()"),
    ("condition", LOCKS, "tx/x.py", "from threading import Condition\nCondition()"),
    ("queue", LOCKS, "engine/x.py", "import queue\nqueue.Queue()"),
    ("bare except", BROAD, "engine/x.py", "try:\n f()\nexcept:\n pass"),
    ("except Exception", BROAD, "wal/x.py", "try:\n f()\nexcept Exception:\n raise"),
    ("in a tuple", BROAD, "wal/x.py", "try:\n f()\nexcept (OSError, Exception):\n pass"),
    ("BaseException kept", BROAD, "wal/x.py", "try:\n f()\nexcept BaseException:\n g()"),
    ("suppress", BROAD, "wal/x.py", "with contextlib.suppress(Exception):\n f()"),
    ("name of an error", NAMES, "wal/x.py", "class Torn(ValueError): ..."),
    ("detail", DETAILS, "wal/x.py", "try:\n f()\nexcept KeyError as e:\n raise E(e) from e"),
    ("in a tuple", DETAILS, "wal/x.py", "try: f()\nexcept (OSError, A) as e:\n raise E(e) from e"),
    ("no code", CODES, "affinity/errors.py", "class AError(TidelogError): ..."),
    (
        "same code",
        CODES,
        "affinity/errors.py",
        "class AError(Exception):\n code = 'TL-1'\nclass BError(AError):\n code = 'TL-1'",
    ),
    ("unused module", unused, "wal/x.py", ""),
    ("shared class", shared, "wal/x.py", "class Cut: ..."),
    ("shared function", shared, "wal/x.py", "async def moment(): ..."),
    ("shared type", shared, "wal/x.py", "Row: type = dict[str, int]"),
    ("sleeping test", RUN, "tests/x.py", "import time\ntime.sleep(1)"),
    ("pausing test", RUN, "tests/x.py", "import threading\nthreading.Event().wait(0.001)"),
    ("pause of a join", RUN, "tests/x.py", "def f(thread): thread.join(timeout=0.01)"),
    (
        "skipped test",
        RUN,
        "tests/x.py",
        "import pytest\n@pytest.mark.skipif(True)\ndef test_x(): ...",
    ),
    (
        "shrunk constant",
        CONSTANTS,
        "tests/x.py",
        "from tidelog.wal import w\ndef test_x(monkeypatch): monkeypatch.setattr(w, 'PIECE', 1)",
    ),
    ("by its path", CONSTANTS, "tests/x.py", "patch.setattr('tidelog.wal.w.PIECE', 1)"),
    ("of an object", CONSTANTS, "tests/x.py", "setattr(store.parts.writer, '_PIECE', 1)"),
    ("mocked", CONSTANTS, "tests/x.py", "mock.patch.object(store, 'PIECE', 1)"),
    ("assigned", CONSTANTS, "tests/x.py", "from tidelog.wal import w\nw.PIECE, x = 1, 2"),
    ("machine path", MACHINE, "docs/x.md", "see /" + "home/me/x.md"),
    ("beside the checkout", MACHINE, "docs/x.md", "see ../" + "shared/x.md"),
    ("missing module", PATHS, "docs/x.md", "read `wal/surprise.py` first"),
    ("missing module, no suffix", PATHS, "README.md", "read `wal/surprise` first"),
    ("missing folder", PATHS, "README.md", "`tests/surprise/` has them"),
    ("missing pattern", PATHS, "README.md", "`tests/*/surprise/*.txt` are scripts"),
    ("dead link", PATHS, "docs/x.md", "[there](surprise.md#part)"),
    ("is no", PROSE, "wal/x.py", "raise E(f'{path} is no store')"),
    ("is no, in a docstring", PROSE, "wal/x.py", "def f():\n '''Raise for what is no\n map.'''"),
    ("is no, in a comment", PROSE, "wal/x.py", "# what is no map\nx = 1"),
    ("is none", PROSE, "engine/x.py", "raise E(f'a limit of {n} is none')"),
    ("error where", PROSE, "engine/x.py", "'''``KeyError`` where a key is missing.'''"),
    ("None where", PROSE, "engine/x.py", "'''The key; None where the map is empty.'''"),
    ("where there is", PROSE, "tools/x.py", "help='Make it where there is no store.'"),
    ("in the place of", PROSE, "tx/x.py", "'''In short, one in the place of another.'''"),
    ("speaks against", PROSE, "tx/x.py", "'''Raise what speaks against it.'''"),
    ("of nobody", PROSE, "pipeline/x.py", "'''A batch of nobody.'''"),
    ("so many-th", PROSE, "testing/x.py", "'''Take every so many-th one.'''"),
    ("wanted was", PROSE, "pipeline/x.py", "raise E(f'ends at {end}, wanted was {time}')"),
    ("who comes", PROSE, "engine/x.py", "'''Who comes meanwhile waits.'''"),
    ("gone module", HEAD, "wal/x.py", "'''Text.\n\nLeft out: this (``surprise``).'''"),
    ("gone module of a layer", HEAD, "wal/x.py", "'''Text.\n\nLeft out: ``engine.tail``.'''"),
    ("gone module of a layer, above", HEAD, "wal/x.py", "'''The twin of ``engine.kv``.'''"),
    ("gone module, below", HEAD, "wal/x.py", "def f():\n '''As ``engine.kv.put``.'''"),
    ("gone module, above", HEAD, "wal/x.py", "'''Does what (``surprise``) does not.'''"),
]


@pytest.mark.parametrize(("name", "rule", "path", "source"), BAD)
def test_a_breach_is_found(name: str, rule: Rule, path: str, source: str) -> None:
    assert [finding.path for finding in rule(path, source)] == [path]


GOOD: list[tuple[str, Rule, str, str]] = [
    ("import to the left", LAYERS, "tools/x.py", "from ..wal.reader import R"),
    ("own folder", LAYERS, "wal/x.py", "from . import format\nfrom .ports import D"),
    ("the version", LAYERS, "tools/x.py", "from .. import __version__"),
    ("root face", LAYERS, "aio.py", "from .engine.aio import open"),
    ("disk with files", KIND, "wal/writer.py", "import os"),
    ("seeded", OUTSIDE, "testing/x.py", "import random\nrandom.Random(7)"),
    ("given clock", OUTSIDE, "tx/x.py", "def f(clock):\n return clock.time()"),
    ("environment", OUTSIDE, "engine/system/production.py", "import time\ntime.time()"),
    ("a signal", NAMES, "testing/x.py", "class SimulatedCrash(BaseException): ..."),
    ("a foreign switch", CONSTANTS, "tests/x.py", "import os\nsetattr(os, 'O_SYNC', 0)"),
    ("a method", CONSTANTS, "tests/x.py", "setattr(writer, 'sync', 0)\nx.PIECE = 1"),
    ("of the system", DETAILS, "wal/x.py", "try: f()\nexcept OSError as e:\n raise E(e) from e"),
    ("its cause", DETAILS, "wal/x.py", "try: f()\nexcept A as e:\n raise E(e) from e.__cause__"),
    ("cleans up", BROAD, "wal/x.py", "try:\n f()\nexcept BaseException:\n g()\n raise"),
    ("document", PATHS, "docs/x.md", "`tests/test_tidy.py`, `tests/test_tidy`, `tests/`"),
    ("file of a store", PATHS, "docs/x.md", "`wal/0000000000000001.log` and `data/x`"),
    ("in a fence", PATHS, "docs/x.md", "```text\n`wal/surprise.py`\n```"),
    ("link up", PATHS, "docs/x.md", "[tests](../tests/test_tidy.py)"),
    (
        "there is no",
        PROSE,
        "wal/x.py",
        "raise E('there is no store, it is no longer there')",
    ),
    ("a place", PROSE, "wal/x.py", "'''Return where the log ends.'''"),
    ("a variable", PROSE, "wal/x.py", "where = None"),
    ("a module", HEAD, "wal/x.py", "'''Text.\n\nLeft out: this (``tail``), ``wal.tail``.'''"),
    ("a class", HEAD, "wal/x.py", "'''Text.\n\nLeft out: ``LogWriter``, ``LogWriter.sync``.'''"),
    ("its own function", HEAD, "wal/x.py", "'''Text (``f``).'''\ndef f(): ..."),
    ("web address", MACHINE, "docs/x.md", "http://example.org/home/" + "me"),
    ("constants and type variables", shared, "wal/x.py", "SIZE = 1\nT = TypeVar('T')\n_Row = 1"),
    ("a listed name", shared, "wal/x.py", "def plain(): ..."),
    ("a command", shared, "wal/x.py", "@tool.command(name='m')\ndef moment(): ..."),
    ("a method", shared, "wal/x.py", "class X:\n def moment(self): ..."),
]


@pytest.mark.parametrize(("name", "rule", "path", "source"), GOOD)
def test_what_is_right_is_left_alone(name: str, rule: Rule, path: str, source: str) -> None:
    expect_none(rule(path, source))
