"""A program that interrupts the store at one line after the other, and looks what becomes of it.

Usage, from the folder of the tests: python -m support.sweep_worker PLACE FIRST STEP alone|beside

A script of several hundred calls is run once for each line: a signal comes there, the program goes
on with the rest, and what it was told, what it reads, what the check says and what a backup holds
have to agree, also after the store was opened again.  Every call may have happened or not where
the interrupt came; nothing in between, and nothing else.

Prints one JSON object: ``lines`` that the script comes by, ``tried`` ones (from number FIRST on,
every STEPth), ``met`` ones, ``stops`` of the store, and ``problems``.  A line at which it hangs
ends the program, with the stacks of all threads.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import logging
import shutil
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import tidelog
from support.interrupts import Interrupt, Line, Tracer
from tidelog.codecs import I64, Str
from tidelog.engine.api.database import session_of
from tidelog.errors import ReadOnlyError, RolledBackError, TidelogError
from tidelog.testing import check_store

OPTIONS: dict[str, Any] = {
    "segment_bytes": 128 << 10,
    "map_size": 256 << 10,
    "checkpoint_bytes": 1 << 20,
    "retain_bytes": 256 << 10,
    "lock_timeout": 5.0,
}
Content = dict[str, dict[Any, Any]]
"""What the maps hold, by name."""

WAIT = 60.0


class Program:
    """A store in use, and what it has to hold."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.content: Content = {}
        self.copies = 0
        self.calls = 0
        self.stops = 0
        self.open()

    def open(self) -> None:
        self.db = tidelog.open(self.path, partitions=4, **OPTIONS)

    def map(self, name: str) -> Any:
        value = I64 if name.startswith("n") else Str
        return self.db.map(name, key=Str, value=value)

    def held(self) -> Content:
        names = [name for name in self.db.maps() if name[0] != "w"]
        for attempt in self.db.attempts():  # a map that grows ends snapshots
            with attempt as tx:
                return {name: dict(tx[self.map(name)].items()) for name in names}
        raise AssertionError("the last attempt neither ended nor raised")

    def expected(self, change: Callable[[Content], object]) -> Content:
        after = {name: dict(pairs) for name, pairs in self.content.items()}
        change(after)
        return after

    def do(self, call: Callable[[Program], object], change: Callable[[Content], object]) -> None:
        """Make a call of the script, which changes the content in this way, and see it through."""
        self.calls += 1
        after = self.expected(change)
        try:
            call(self)
        except Interrupt:
            self.settle(after)
        except ReadOnlyError:
            # The store stopped at an interrupt; this call did nothing, and is made once more.
            self.stops += 1
            self.reopen()
            assert self.held() == self.content
            call(self)
            self.content = after
        else:
            self.content = after

    def settle(self, after: Content) -> None:
        """Find out whether an interrupted call happened."""
        if session_of(self.db).open_state.closed is not None:
            self.reopen()
        held = self.held()
        assert held in (self.content, after)
        self.content = held

    def reopen(self) -> None:
        self.db.close()
        self.open()


Step = tuple[Callable[[Program], object], Callable[[Content], object]]


def nothing(_content: Content) -> None:
    """The call changes nothing."""


def put(name: str, key: str, value: Any) -> Step:
    return (
        lambda p: p.map(name).__setitem__(key, value),
        lambda c: c.setdefault(name, {}).__setitem__(key, value),
    )


def update(name: str, pairs: dict[str, Any]) -> Step:
    return lambda p: p.map(name).update_many(pairs), lambda c: c.setdefault(name, {}).update(pairs)


def transact(mode: Any, name: str, key: str, other: str) -> Step:
    """Move one from a number to another one, which reads both."""

    def call(p: Program) -> None:
        numbers = p.map(name)

        def work(tx: Any) -> None:
            inside = tx[numbers]
            inside[key] = inside.get(key, 0) - 1
            inside[other] = inside.get(other, 0) + 1

        p.db.run(work, mode=mode)

    def change(c: Content) -> None:
        numbers = c.setdefault(name, {})
        numbers[key] = numbers.get(key, 0) - 1
        numbers[other] = numbers.get(other, 0) + 1

    return call, change


def block(mode: Any, name: str, key: str, value: str) -> Step:
    """The same with a `with` block, and a range that is read."""

    def call(p: Program) -> None:
        table = p.map(name)
        with p.db.transaction(mode) as tx:
            for found, _ in tx[table].range(limit=2):
                assert found is not None
            tx[table][key] = value
            tx[table].discard("gone")

    def change(c: Content) -> None:
        c.setdefault(name, {})[key] = value
        c[name].pop("gone", None)

    return call, change


def incr(name: str, key: str) -> Step:
    def change(c: Content) -> None:
        c.setdefault(name, {})[key] = c[name].get(key, 0) + 1

    return lambda p: p.map(name).incr(key), change


def pop(name: str, key: str) -> Step:
    return lambda p: p.map(name).pop(key, None), lambda c: c.setdefault(name, {}).pop(key, None)


def look(p: Program) -> None:
    """Read everything in every way."""
    with p.db.snapshot() as snapshot:
        for name in p.content:
            table = p.map(name)
            assert dict(snapshot[table].items()) == p.content[name]
            some = list(p.content[name])[:3]
            assert table.get_many(some) == {key: p.content[name][key] for key in some}
            assert all(table[key] == p.content[name][key] for key in some)


def back_up(p: Program) -> None:
    p.copies += 1
    place = p.path.parent / f"copy-{p.copies}"
    p.db.backup(place)
    with tidelog.open(place, read_only=True) as copy:
        held = {name: dict(copy.map(name).items()) for name in p.content}
    shutil.rmtree(place)
    assert held == p.content


def make(name: str) -> Step:
    return lambda p: p.map(name), lambda c: c.setdefault(name, {})


def drop(name: str) -> Step:
    return lambda p: p.db.drop(name), lambda c: c.pop(name)


def rename(old: str, new: str) -> Step:
    return lambda p: p.db.rename(old, new), lambda c: c.__setitem__(new, c.pop(old))


def script() -> Iterator[Step]:
    """Yield the calls: small ones of every kind, and in between what is rare."""
    yield make("m")
    yield make("n")
    for turn in range(18):
        for place in range(6):
            yield put("m", f"k{place}", f"{turn}")
            yield put("m", f"k{turn} {place}", "x" * 3_000)  # segments fill, and the map grows
        yield update("m", {f"k{place}": f"{turn}!" for place in range(20)})
        yield transact("optimistic", "n", "a", "b")
        yield transact("pessimistic", "n", "b", "c")
        yield block("optimistic", "m", f"b{turn % 3}", f"{turn}")
        yield block("pessimistic", "m", f"p{turn % 3}", f"{turn}")
        yield incr("n", "i")
        yield pop("m", f"k{turn} 0")
        yield look, nothing
        yield make(f"t{turn}")
        yield put(f"t{turn}", "x", "y")
        if turn % 4 == 0:
            yield rename(f"t{turn}", f"u{turn}")
            yield (lambda p: p.db.sync()), nothing
        if turn % 4 == 1:
            yield drop(f"t{turn}")
            yield (lambda p: p.db.statistics()), nothing
        if turn % 4 == 2:
            yield (lambda p: p.db.checkpoint()), nothing
        if turn % 8 == 3:
            yield back_up, nothing
            yield (lambda p: p.reopen()), nothing


class Neighbours:
    """Two threads that put into maps of their own meanwhile."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._stop = threading.Event()
        self._told: dict[str, int] = {"w0": 0, "w1": 0}
        self._threads = [
            threading.Thread(target=self._work, args=(name,), daemon=True) for name in self._told
        ]
        self.errors: list[BaseException] = []

    def _work(self, name: str) -> None:
        number = 0
        while not self._stop.is_set():
            db = self._program.db
            try:
                table = db.map(name, key=Str, value=I64)
                while not self._stop.is_set() and number < 500:
                    table["n"] = number + 1
                    number = self._told[name] = number + 1
            except RolledBackError:
                continue
            except TidelogError as error:
                # The store stopped or is closed; the program opens it again.
                if type(error).__name__ not in (
                    "ReadOnlyError",
                    "ClosedError",
                    "CommitUnknownError",
                ):
                    self.errors.append(error)
                    return
            self._stop.wait(0.001)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join(WAIT)
        assert not any(thread.is_alive() for thread in self._threads)
        assert self.errors == []

    def check(self) -> None:
        for name, told in self._told.items():
            if told:
                found = self._program.db.map(name, key=Str, value=I64)["n"]
                assert told <= found <= told + 1, (name, told, found)


def run_script(place: Path, tracer: Tracer, *, beside: bool) -> Program:
    """Run the script under a tracer, then see that everything agrees."""
    program = Program(place / "store.tl")

    def work() -> None:
        for call, change in script():
            program.do(call, change)

    def all_of_it() -> None:
        tracer.run(work)

    if beside:
        neighbours = Neighbours(program)
        with neighbours.at_work():
            all_of_it()
        neighbours.check()
    else:
        all_of_it()
    assert program.held() == program.content
    with suppress(ReadOnlyError):  # a store that stopped is not copied
        back_up(program)
    program.reopen()
    assert program.held() == program.content
    back_up(program)
    program.db.close()
    assert check_store(program.path) == []
    return program


def lines_of_script(place: Path) -> list[tuple[Line, int]]:
    """Every line that the script comes by, and how often."""
    tracer = Tracer()
    program = run_script(place, tracer, beside=False)
    assert program.calls > 400
    return sorted(tracer.lines.items())


def main(place: Path, first: int, step: int, beside: bool) -> dict[str, Any]:
    """Interrupt lines, each at one of the times that it is passed."""
    logging.disable()
    # An open that is interrupted behind its last line loses the store, and says so.
    warnings.simplefilter("ignore", ResourceWarning)
    lines = lines_of_script(place)
    met = stops = 0
    problems = []
    tried = range(first, len(lines), step)
    for number in tried:
        line, times = lines[number]
        tracer = Tracer((line, number * 7919 % times))
        part = place / f"{number}"
        part.mkdir()
        faulthandler.dump_traceback_later(WAIT, exit=True)
        print(f"{line[0]}:{line[1]}, pass {number * 7919 % times}", file=sys.stderr, flush=True)
        try:
            program = run_script(part, tracer, beside=beside)
            stops += program.stops
        except BaseException:
            problems.append(f"interrupted at {tracer.where or line}\n{traceback.format_exc()}")
        met += bool(tracer.where)
        gc.collect()
        shutil.rmtree(part)
    faulthandler.cancel_dump_traceback_later()
    return {
        "lines": len(lines), "tried": len(tried), "met": met, "stops": stops, "problems": problems
    }  # fmt: skip


if __name__ == "__main__":
    where, at, by, how = sys.argv[1:]
    print(json.dumps(main(Path(where), int(at), int(by), how == "beside")))
