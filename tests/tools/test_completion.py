"""``tidelog completion``: the scripts, and what bash gets for names of any characters."""

from __future__ import annotations

import itertools
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, strategies as st

import tidelog
from support.lived import live
from tidelog.engine.codecs.registry import known_names
from tidelog.engine.files.log_source import find_log
from tidelog.tools.main import cli
from tidelog.tools.shell.commands import VARIABLE
from tidelog.tools.shell.completion import bash_quoted, bash_words
from tidelog.tools.wal.completion import map_names
from tidelog.wal.segments import segment_numbers

Run = Callable[..., Result]

ODD = ["plain", "two words", "it's", 'say "x" y', "$HOME", "`id`", "ns:users", "a,b", "käse", "~",
       "a\\b", "#", "{a,b}", "!x", "a=b", "*", "&;|<>()"]  # fmt: skip


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """A store whose maps have names of all characters that mean something to a shell."""
    path = tmp_path / "odd store.tl"
    with tidelog.open(path, partitions=12) as db:
        for name in ODD:
            db.map(name)
        db.map("dropped")
        db.drop("dropped")
    return path


def completed(line: str, word: str, shell: str = "bash") -> list[str]:
    """What the shell is told for the beginning of a line."""
    environment = {
        VARIABLE: f"{shell}_complete",
        "COMP_LINE": line,
        "COMP_WORD": word,
        "COMP_WORDS": line,
        "COMP_CWORD": word,
    }
    done = CliRunner().invoke(cli, [], prog_name="tidelog", env=environment)
    assert done.exit_code == 0
    return done.stdout.split("\n")[:-1] if done.stdout != "\n" else []


def names_in(lines: list[str]) -> list[str]:
    return [line.removeprefix("plain,") for line in lines]


def test_each_script_is_printed(run: Run) -> None:
    for shell, words in (("bash", "complete -o"), ("zsh", "#compdef"), ("fish", "complete --")):
        done = run("completion", shell)
        assert done.exit_code == 0
        assert words in done.stdout
        assert VARIABLE in done.stdout
    assert run("completion", "tcsh").exit_code == 2


@pytest.mark.slow
@pytest.mark.parametrize("begun", ["", "'", '"'])
def test_bash_gets_every_name_so_that_it_is_itself(begun: str, odd: Path) -> None:
    line = f"tidelog kv get {shlex.quote(str(odd))} {begun}"
    found = names_in(completed(line, ""))
    words = " ".join(f"{begun}{text}{begun}" for text in found)
    done = subprocess.run(
        ["bash", "-c", f"printf '%s\\n' {words}"], capture_output=True, text=True, check=True
    )
    assert sorted(done.stdout.splitlines()) == sorted(ODD)


@pytest.mark.parametrize(
    ("typed", "word", "wanted"),
    [
        ("ns:u", "u", "users"),
        ("'ns:u", "ns:u", "ns:users"),
        ("two\\ w", "two\\ w", "two\\ words"),
        ("it\\'", "it\\'", "it\\'s"),
        ("'it", "it", "it'\\''s"),
        ('"say \\"', 'say \\"', 'say \\"x\\" y'),
        ('"$H', "$H", "$HOME"),
    ],
)
def test_bash_keeps_what_was_typed(typed: str, word: str, wanted: str, odd: Path) -> None:
    line = f"tidelog kv get {shlex.quote(str(odd))} {typed}"
    assert names_in(completed(line, word)) == [wanted]


@given(st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]) | st.just(" ")))
def test_quoted_text_is_read_back(name: str) -> None:
    for quote in ("", "'", '"'):
        line = f"tidelog {quote}{bash_quoted(name, quote)}"
        *_, last = bash_words(line)
        assert (last.text, last.quote) == (name, quote)
        if name and quote != '"':  # in double quotes shlex does not know all that bash does
            assert shlex.split(line + quote)[1:] == [name]


def test_no_name_brings_an_earlier_command_back() -> None:
    """In double quotes an interactive bash put the last command in the place of ``!!``."""
    assert bash_quoted("a!b", '"') == "a\"'!'\"b"
    assert shlex.split('"' + bash_quoted("a!!b", '"') + '"') == ["a!!b"]


def test_options_commands_partitions_and_codecs_are_completed(odd: Path, shop: Path) -> None:
    store = shlex.quote(str(odd))
    assert names_in(completed("tidelog kv sc", "sc")) == ["scan"]
    assert names_in(completed(f"tidelog kv scan {store} m --partition 1", "1")) == ["1", "10", "11"]
    assert len(completed(f"tidelog kv scan {store} m --partition ", "")) == 12
    assert names_in(completed(f"tidelog wal dump {store} --map tw", "tw")) == ["two\\ words"]
    assert names_in(completed(f"tidelog wal dump {shop} --map ", "")) == [
        "numbers",
        "orders",
        "stock",
    ]
    for option in ("--key-codec ", "--value-codec="):
        assert names_in(completed(f"tidelog kv put a b {option}u", "u")) == ["u64", "uuid"]
    assert names_in(completed("tidelog kv import s --map m --key-codec ", "")) == known_names()
    assert completed("tidelog kv get ", "") == ["file,"]


@pytest.mark.parametrize("store", ["nothing.tl", "{shop}/manifest", "{shop}/wal", "''"])
def test_what_cannot_be_read_has_no_completions(store: str, shop: Path) -> None:
    (shop / "manifest").write_bytes(b"damaged")
    (shop / "wal" / "0000000000000001.log").write_bytes(b"damaged, too")
    line = f"tidelog kv get {store.format(shop=shop)} "
    assert completed(line, "") == []
    assert completed(line.replace("get", "scan") + "m --partition ", "") == []


def test_completion_changes_nothing(shop: Path, unchanged: Callable[[Path], object]) -> None:
    before, readers = unchanged(shop), os.listdir(shop / "readers")
    completed(f"tidelog kv get {shop} ", "")
    assert (unchanged(shop), os.listdir(shop / "readers")) == (before, readers)


def test_maps_are_those_at_the_end_of_a_log(tmp_path: Path) -> None:
    with tidelog.open(tmp_path / "s", segment_bytes=1 << 20) as db:
        for name in ("kept", "dropped", "renamed"):
            db.map(name)
        for number in range(3):
            db.map("kept")[b"k"] = bytes(600_000)
            db.map(f"n{number}")
        db.drop("dropped")
        db.rename("renamed", "new")
    source = find_log(str(tmp_path / "s"))
    assert len(segment_numbers(source.directory)) > 1
    assert map_names(source) == ["kept", "n0", "n1", "n2", "new"]


def test_an_answer_ends_when_its_time_is_over(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Once the names at the head of a segment are there, which is after its first frame.
    clock = itertools.count(0.0, 10.0)
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    assert map_names(find_log(str(shop))) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_the_maps_of_a_long_history_are_completed(seed: int, tmp_path: Path) -> None:
    made = live(tmp_path / "lived.tl", seed, retain_bytes=200 << 10, crash_at_end=seed == 1)
    assert map_names(find_log(str(made.path))) == sorted(made.maps)


BASH = """
eval "$({python} -m tidelog completion bash)"
tidelog() {{ {python} -m tidelog "$@"; }}
compopt() {{ :; }}
COMP_LINE="tidelog kv get $1 'two" COMP_POINT=$((${{#COMP_LINE}}))
_tidelog_completion tidelog two
printf '<%s>' "${{COMPREPLY[@]}}"
"""


@pytest.mark.slow
def test_bash_runs_the_script(odd: Path) -> None:
    program = BASH.format(python=shlex.quote(sys.executable))
    done = subprocess.run(
        ["bash", "-c", program, "bash", shlex.quote(str(odd))],
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("<two words>", "")
