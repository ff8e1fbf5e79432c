"""What a store tells by itself: to people without a logging set-up, and in tracebacks."""

from __future__ import annotations

import ast
import subprocess
import sys
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import tidelog
from tidelog.codecs import I64, Str
from tidelog.errors import ClosedError, TidelogError

ENGINE = Path(tidelog.__file__).parent / "engine"

WITHOUT_A_PATH = {"store.interrupted", "net.complaint", "node.request_failed"}
"""Events of parts that know no path; the call that meets it raises an error that does."""


def calls_that_log() -> list[tuple[str, ast.Call]]:
    found = []
    for path in sorted(ENGINE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and ast.unparse(node.func.value) == "log"
                and node.func.attr in ("log", "warning", "error", "critical", "exception")
            ):
                found.append((f"{path.relative_to(ENGINE)}:{node.lineno}", node))
    return found


def test_what_python_prints_without_a_logging_set_up_is_a_sentence_with_the_store() -> None:
    # `recovery.done clean=False frames=203` was all that somebody saw who had set up nothing.
    calls = calls_that_log()
    assert len(calls) > 8
    for place, call in calls:
        text = next(
            arg.value
            for arg in call.args
            if isinstance(arg, ast.Constant) and isinstance(arg.value, str)
        )
        assert ": Tidelog" in text, place
        assert "store %s" in text or any(name in ast.unparse(call) for name in WITHOUT_A_PATH), (
            place
        )


def test_a_program_without_a_logging_set_up_hears_of_a_recovery(tmp_path: Path) -> None:
    path = str(tmp_path / "s.tl")
    put = f"import os, tidelog; tidelog.open({path!r}, partitions=2).map('m')[b'a'] = b'1'"
    subprocess.run([sys.executable, "-c", f"{put}; os._exit(0)"], check=True)
    read = f"import tidelog; tidelog.open({path!r}).close()"
    done = subprocess.run([sys.executable, "-c", read], capture_output=True, text=True, check=True)
    said = f"recovery.done: Tidelog recovered the store {path}, which was not closed: "
    assert done.stderr.startswith(said)
    assert len(done.stderr.splitlines()) == 1
    done = subprocess.run([sys.executable, "-c", read], capture_output=True, text=True, check=True)
    assert done.stderr == ""


# ------------------------------------------------------------------ tracebacks


def fails_at(path: Path) -> dict[str, Callable[[tidelog.Database], object]]:
    return {
        "open already": lambda _: tidelog.open(path / "s.tl"),
        "open for reading": lambda _: tidelog.open(path / "s.tl", read_only=True),
        "not there": lambda _: tidelog.open(path / "no.tl", read_only=True),
        "no parent": lambda _: tidelog.open(path / "no" / "s.tl"),
        "a file": lambda _: tidelog.open(path / "file"),
        "an option": lambda _: tidelog.open(path / "t.tl", partition=2),  # type: ignore[call-overload]
        "no map": lambda db: db.map("no", create=False),
        "a name": lambda db: db.map("m", key="str"),  # type: ignore[call-overload]
        "a codec": lambda db: db.map("m", key=Str),
        "a key": lambda db: db.map("n", key=I64, value=Str).get("x"),  # type: ignore[call-overload]
        "a surrogate": lambda db: db.map("t", key=Str, value=Str).get("\udc00"),
        "a value": lambda db: db.map("n", key=I64, value=Str).update_many({1: 1}),  # type: ignore[arg-type]
        "a pair": lambda db: db.map("m").update_many([1]),  # type: ignore[list-item]
        "a backup": lambda db: db.backup(path / "no" / "b.tl"),
        "a tag": lambda db: db.transaction(tag="\udc00"),
    }


@pytest.mark.parametrize("name", fails_at(Path()))
def test_a_traceback_has_the_hint_once_and_nothing_of_the_inside(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with tidelog.open(tmp_path / "s.tl", partitions=2) as db:
        db.map("m")[b"a"] = b"1"
        # In a thread of its own: a test that raises out of a trace function leaves its exception
        # behind as the one that this thread handles.
        with ThreadPoolExecutor(1) as pool:
            error = pool.submit(fails_at(tmp_path)[name], db).exception()
    assert isinstance(error, TidelogError)
    text = "".join(traceback.format_exception(error))
    assert text.count("Traceback (most recent call last)") == 1, text
    assert text.count(error.code) == 1
    assert text.rstrip().endswith(f"next: {error.hint}" if error.hint else "-001")


@pytest.mark.parametrize(
    ("place", "hint"),
    [("x" * 500, "Give a shorter name."), ("file/s.tl", "Check the path"), ("loop", "Check the")],
)
def test_an_error_about_a_path_does_not_send_anybody_to_the_disk(
    place: str, hint: str, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    for more in ({}, {"read_only": True}):
        with pytest.raises(TidelogError) as caught:
            tidelog.open(tmp_path / place, **more)  # type: ignore[call-overload]
        assert "disk" not in caught.value.hint
        assert hint in caught.value.hint or not isinstance(caught.value.__cause__, OSError)


# ------------------------------------------------------------------ dropped, then closed

CALLS: list[Callable[[tidelog.Map[Any, Any]], object]] = [
    lambda m: m[b"a"],
    lambda m: m.get(b"a"),
    lambda m: b"a" in m,
    lambda m: m.set(b"a", b"1"),
    lambda m: m.discard(b"a"),
    lambda m: m.pop(b"a"),
    lambda m: m.popitem(),
    lambda m: m.setdefault(b"a", b"1"),
    lambda m: m.compare_and_set(b"a", None, b"1"),
    lambda m: m.get_many([b"a"]),
    lambda m: m.update_many({b"a": b"1"}),
    lambda m: m.delete_many([b"a"]),
    lambda m: m.delete_range(),
    lambda m: m.load({b"a": b"1"}),
    lambda m: m.clear(),
    list,
    len,
    bool,
    lambda m: m.first(),
    lambda m: list(m.items()),
    lambda m: list(m.range()),
]


@pytest.mark.parametrize("call", CALLS)
def test_a_handle_of_a_dropped_map_of_a_closed_store_says_closed(
    call: Callable[[tidelog.Map[Any, Any]], object], tmp_path: Path
) -> None:
    with tidelog.open(tmp_path / "s.tl", partitions=2) as db:
        mapping = db.map("m")
        db.drop("m")
    with pytest.raises(ClosedError, match="is closed"):
        call(mapping)
