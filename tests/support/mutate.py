"""Mutates the core of the product, one small change at a time, and sees which tests notice.

    PYTHONPATH=tests python -m support.mutate [--count 150] [--seed 13] [--jobs 2] [--sample N]

from the root of the checkout; ``make mutate`` does.  ``mutants.py`` says what is drawn.  Each
mutant stands in a copy of the checkout.

First all fast tests run without any, and it is noted which of them run which line
(``covering.py``; kept in ``.venv/mutants.cover.json``).  Against a mutant run the fast tests of its
module, then those of other modules that run its line, the quickest files first, for as long as
``ENOUGH`` says, then the slow ones of its module; those that read the source do not.  With
``--slow`` all that run its line do, and the slow tests of crashes, stores and the engine.  A mutant
that hangs, or breaks the import, is noticed.

Results are kept in ``.venv/mutants.json``, so a run can be stopped and goes on.  One holds while
the mutated module stays as it is, and the text of the test that noticed; where none did, until a
file of those tests changes.  What they share in ``tests/support`` is not looked at: ``--again``
runs all.
Survivors that no test can notice stand in ``EQUIVALENT``, each with its reason.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Lock
from typing import Any

from support.mutants import LAYERS, ROOT, Mutant, drawn

STATE = ROOT / ".venv" / "mutants.json"
FLOOR = 95.0
COVER = STATE.with_name("mutants.cover.json")

ENOUGH = 40.0
"""How many seconds of tests of other modules a mutant gets; what it survives so is a survivor."""

TOO_LONG = " (took too long)"

QUICK = "not slow and not nightly and not spark"
SLOWER = "slow and not nightly and not spark"
PRODUCT = ("affinity", *LAYERS, "testing", "pipeline", "tools")
FAST = [
    "tests/affinity", "tests/wal", "tests/tx", "tests/checkpoints", "tests/engine", "tests/store",
    "tests/testing", "tests/crash", "tests/pipeline", "tests/tools",
]  # fmt: skip

EQUIVALENT: dict[str, str] = {
    "engine/files/recovery.py rewrite_tail MINMAX min": "only the size of the pieces",
    "tx/validation.py ReadSet.first_changed ARGS first_common(self.keys, changed)": "symmetric",
    "engine/files/log_source.py _segment CALL file.close()": "CPython closes it",
    "engine/aio/session.py LoopSession.run ERROR AssertionError": "the last attempt raises",
    "engine/aio/maps.py Items._end CALL pages.close()": "CPython closes what nobody refers to",
    "engine/data/operations.py has_any CONST 1": "looks at two keys where there are two",
    "engine/api/rewriting.py  CONST 512": "one key more in hand where many threads pop",
    "engine/upkeep/salvage.py _DataFile.__init__ CONST 2": "it looks at two pages anyway",
    "engine/codecs/tuples.py _pack_int CMP value < 0": "zero has the same bytes either way",
    "engine/data/updates.py FewUpdates.reserve BOOL True": "a write has four fields, by its type",
    "wal/tail.py verdict ERROR AssertionError": "never reached: a test sees a row for every sight",
}
"""Mutants that change nothing which anybody can see: file, operator, text; and why."""


RUNNING: set[subprocess.Popen[str]] = set()
STOPPING = Event()


class StoppedError(Exception):
    """The run was told to end."""


# ---------------------------------------------------------------------- running


def copied(place: Path) -> Path:
    """Copy the checkout, and let it be imported as the package; return where it is."""
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split("\0")  # fmt: skip
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (place / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, place / "tree" / name)
    (place / "path").mkdir()
    (place / "path" / "tidelog").symlink_to(place / "tree")
    return place / "tree"


def passes(
    tree: Path, *arguments: str, seconds: float = 1800, compiles: bool = False
) -> tuple[bool, str]:
    """Run tests in a copy; return whether all pass, and which one did not.

    What is compiled is kept only where it ``compiles``, which is without any mutant.
    """
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-n", "0"]
    command += ["-p", "no:cacheprovider", "-p", "support.covering", *arguments]
    environment = {
        **os.environ,
        "PYTHONPATH": str(tree.parent / "path"),
        "PYTHONDONTWRITEBYTECODE": "" if compiles else "1",
        "PYTHONHASHSEED": "0",
        "TMPDIR": str(tree.parent),
    }
    with subprocess.Popen(
        command, cwd=tree, env=environment, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as run:  # fmt: skip
        RUNNING.add(run)
        try:
            if STOPPING.is_set():
                raise StoppedError
            told, _ = run.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            return False, "it hung"
        finally:
            RUNNING.discard(run)
            if run.poll() is None:
                os.killpg(run.pid, signal.SIGKILL)
    if STOPPING.is_set():
        raise StoppedError
    # Not `ERROR ` alone: so begins a line of a log that a failed test had captured, too.
    named = ("FAILED tests/", "ERROR tests/")
    failed = [line for line in told.splitlines() if line.startswith(named)]
    if run.returncode in (0, 5):  # 5: none was chosen
        return True, ""
    first = failed[0].split(" - ")[0].partition(" ")[2] if failed else "it broke the run"
    return False, first + (TOO_LONG if "Failed: Timeout" in told else "")


def killer(mutant: Mutant, tree: Path, cover: Cover, *, slow: bool) -> str:
    """Run tests until one notices the mutant; return which, or nothing.

    All of them have passed without it; one that took too long, on a busy machine, has to again.
    """
    told = noticed(mutant, tree, cover, slow=slow)
    if told.endswith(TOO_LONG):
        passed, _ = passes(tree, told.partition("[")[0].removesuffix(TOO_LONG))
        assert passed, f"without any mutant {told} fails"
    return told.removesuffix(TOO_LONG)


def noticed(mutant: Mutant, tree: Path, cover: Cover, *, slow: bool) -> str:
    """Put a mutant in its place and run tests until one fails; return which, or nothing."""
    place = tree / mutant.path
    source, stat = place.read_bytes(), place.stat()
    place.write_bytes(source[: mutant.start] + mutant.after.encode() + source[mutant.stop :])
    try:
        for arguments, seconds in runs_of(mutant, tree, cover, slow=slow):
            passed, told = passes(tree, *arguments, seconds=seconds)
            if not passed:
                return told
        return ""
    finally:
        place.write_bytes(source)
        os.utime(place, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # what was compiled is good again


def runs_of(
    mutant: Mutant, tree: Path, cover: Cover, *, slow: bool
) -> Iterator[tuple[list[str], float]]:
    """Yield what to run against a mutant, the nearest first, and after how long it hangs."""
    only, own, names = tree.parent / "only.json", cover.own(mutant.path), cover.tests(mutant)
    near = [name for name in names if name.partition("::")[0] in own]
    spent = itertools.accumulate(cover.seconds[name] for name in names[len(near) :])
    enough = len(names) if slow else len(near) + sum(so_far <= ENOUGH for so_far in spent)
    for some in filter(None, (near, names[len(near) : enough])):
        only.write_text(json.dumps(some))
        files = dict.fromkeys(name.partition("::")[0] for name in some)
        seconds = 60 + 10 * sum(cover.seconds[name] for name in some)
        yield ["--timeout", "30", "--only", str(only), *files], seconds
    if own:
        yield ["-m", SLOWER, *own], 1800
    if slow:
        yield ["-m", SLOWER, "tests/crash", "tests/store", "tests/engine"], 3600


# ---------------------------------------------------------------------- which test runs what


class Cover:
    """Which fast tests run which line, noted in one run of all of them without any mutant.

    It is kept: where files of tests change, theirs are noted again; where the product changes, or
    what all tests use, all are.
    """

    def __init__(self, tree: Path) -> None:
        self.tree = tree
        shared = [tree / "tests" / "conftest.py", *(tree / "tests" / "support").glob("*.py")]
        product = [file for layer in PRODUCT for file in (tree / layer).rglob("*.py")]
        tools = ("mutate.py", "mutants.py", "covering.py")
        common = digest(file for file in sorted([*shared, *product]) if file.name not in tools)
        files = {
            str(file.relative_to(tree)): common + digest([file])
            for folder in FAST for file in sorted((tree / folder).rglob("test_*.py"))
        }  # fmt: skip
        kept = json.loads(COVER.read_text()) if COVER.exists() else {"files": {}}
        self.seconds: dict[str, float] = {}
        self._lines: dict[str, dict[int, list[str]]] = {}
        fresh = [file for file in files if kept["files"].get(file) != files[file]]
        if len(fresh) < len(files):
            self._add(kept, {file for file in files if file not in fresh})
        if fresh:
            note = tree.parent / "note.json"
            passed, told = passes(tree, "-m", QUICK, "--note", str(note), *fresh)
            # Else whatever fails anyway would count as noticing each mutant.
            assert passed, f"without any mutant {told} fails"
            self._add(json.loads(note.read_text()), set(fresh))
            self._keep(files)

    def _add(self, noted: dict[str, Any], files: set[str]) -> None:
        names = list(noted["seconds"])
        taken = {at for at, name in enumerate(names) if name.partition("::")[0] in files}
        self.seconds.update((names[at], noted["seconds"][names[at]]) for at in sorted(taken))
        for path, lines in noted["lines"].items():
            mine = self._lines.setdefault(path, {})
            for line, tests in lines.items():
                mine.setdefault(int(line), []).extend(names[at] for at in tests if at in taken)

    def _keep(self, files: dict[str, str]) -> None:
        at = {name: index for index, name in enumerate(self.seconds)}
        lines = {
            path: {line: [at[name] for name in tests] for line, tests in found.items()}
            for path, found in self._lines.items()
        }
        replaced(COVER, {"files": files, "seconds": self.seconds, "lines": lines})

    def own(self, path: str) -> list[str]:
        """The files of tests of a module, by its name."""
        layer, name = path.partition("/")[0], os.path.basename(path)
        found = (self.tree / "tests" / layer).glob(f"test_{name.removesuffix('.py')}*.py")
        return sorted(str(file.relative_to(self.tree)) for file in found)

    def tests(self, mutant: Mutant) -> list[str]:
        """The tests that may notice a mutant, those of its module first, then the quickest files.

        They are all tests of the module, and those that run one of the lines of the statement; all
        tests there are where it runs when the module is imported.
        """
        found = self._lines.get(mutant.path, {})
        ran = {name for line in mutant.lines for name in found.get(line, ())}
        if not ran and any(line in found for line in mutant.lines):
            ran = set(self.seconds)
        own = self.own(mutant.path)
        by_file: dict[str, list[str]] = {}
        for name in self.seconds:
            file = name.partition("::")[0]
            if name in ran or file in own:
                by_file.setdefault(file, []).append(name)

        def order(file: str) -> tuple[bool, float]:
            return file not in own, sum(self.seconds[name] for name in by_file[file])

        return [name for file in sorted(by_file, key=order) for name in by_file[file]]


# ---------------------------------------------------------------------- results


def digest(files: Iterable[Path]) -> str:
    """A short name of the contents of files."""
    found = hashlib.sha256()
    for file in files:
        found.update(file.read_bytes())
    return found.hexdigest()[:16]


def replaced(place: Path, what: object) -> None:
    """Keep something, so that whoever stops the run finds all of the old or of the new."""
    fresh = place.with_suffix(".new")
    fresh.write_text(json.dumps(what))
    fresh.replace(place)


class Results:
    """What is known of mutants, by their module's text, and what that depends on, in a file."""

    def __init__(self, cover: Cover, *, slow: bool, again: bool) -> None:
        self._cover = cover
        self._tree = cover.tree  # the checkout may change while its copy is looked at
        self._slow = slow
        self._known: dict[str, list[str]] = (
            json.loads(STATE.read_text()) if STATE.exists() and not again else {}
        )
        modules = (file for layer in LAYERS for file in (self._tree / layer).rglob("*.py"))
        self._modules = {str(file.relative_to(self._tree)): file.read_bytes() for file in modules}
        self._writing = Lock()

    def of(self, mutant: Mutant) -> str | None:
        """Return which test noticed a mutant, nothing for survivors, None if that is not known."""
        told, depends = self._known.get(self._key(mutant), ("", ""))
        return told if depends == self._depends(mutant, told) else None

    def put(self, mutant: Mutant, told: str) -> None:
        """Remember a result."""
        with self._writing:
            self._known[self._key(mutant)] = [told, self._depends(mutant, told)]
            replaced(STATE, self._known)

    def _key(self, mutant: Mutant) -> str:
        text = json.dumps(asdict(mutant)).encode() + self._modules[mutant.path]
        return hashlib.sha256(text).hexdigest()[:16]

    def _depends(self, mutant: Mutant, told: str) -> str:
        """What a result depends on: the test that noticed, else all that did not."""
        if told:
            return self._text(told)
        names = self._cover.tests(mutant)
        files = {name.partition("::")[0] for name in names} | {*self._cover.own(mutant.path)}
        return f"{digest(self._tree / file for file in sorted(files))} {self._slow}"

    def _text(self, test: str) -> str:
        """The text of a test's function: nothing if there is none, or no test was named."""
        file, _, name = test.partition("[")[0].partition("::")
        if not name:
            return "no test"
        place = self._tree / file
        text = place.read_text(encoding="utf-8") if place.exists() else ""
        for node in ast.walk(ast.parse(text)):
            if (
                isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                and node.name == name.rpartition("::")[2]
            ):
                return hashlib.sha256(ast.unparse(node).encode()).hexdigest()[:16]
        return ""


def run_all(mutants: list[Mutant], jobs: int, *, slow: bool, again: bool) -> dict[Mutant, str]:
    """Return what noticed each mutant, nothing for survivors; remember it as it comes."""
    told: dict[Mutant, str] = {}
    with tempfile.TemporaryDirectory(prefix="tidelog-mutants-") as folder:
        trees: SimpleQueue[Path] = SimpleQueue()
        copies = [copied(Path(folder) / str(job)) for job in range(jobs)]
        for tree in copies:
            passes(tree, "--collect-only", "-m", QUICK, *FAST, compiles=True)
            trees.put(tree)
        cover = Cover(copies[0])
        known = Results(cover, slow=slow, again=again)

        def work(mutant: Mutant) -> None:
            tree = trees.get()
            try:
                told[mutant] = killer(mutant, tree, cover, slow=slow)
            finally:
                trees.put(tree)
            known.put(mutant, told[mutant])
            result = f"killed by {told[mutant]}" if told[mutant] else "SURVIVED"
            print(f"{mutant.name} -> {mutant.after}: {result}", flush=True)

        for mutant in mutants:
            if (before := known.of(mutant)) is not None:
                told[mutant] = before
        with ThreadPoolExecutor(jobs) as pool:
            try:
                list(pool.map(work, [mutant for mutant in mutants if mutant not in told]))
            except BaseException:
                STOPPING.set()
                pool.shutdown(wait=False, cancel_futures=True)
                for run in list(RUNNING):
                    os.killpg(run.pid, signal.SIGKILL)
                raise
    return {mutant: told[mutant] for mutant in mutants}


# ---------------------------------------------------------------------- telling


def table(results: dict[Mutant, str]) -> Iterator[str]:
    """Yield the results as a table: by layer, then those that survived."""
    yield "| layer | mutants | equivalent | killed | rate |"
    yield "| --- | --- | --- | --- | --- |"
    for layer in (*LAYERS, ""):
        mine = {m: told for m, told in results.items() if m.path.startswith(layer)}
        if mine:
            alike = sum(not told and m.name in EQUIVALENT for m, told in mine.items())
            killed = sum(bool(told) for told in mine.values())
            name = f"`{layer}/`" if layer else "all"
            yield f"| {name} | {len(mine)} | {alike} | {killed} | {rate(mine):.1f} % |"
    yield ""
    yield "| survivor | becomes | |"
    yield "| --- | --- | --- |"
    for mutant, told in results.items():
        if not told:
            why = EQUIVALENT.get(mutant.name, "**a hole**")
            before = mutant.before.replace("|", "\\|").replace("\n", " ")
            after = mutant.after.replace("|", "\\|").replace("\n", " ")
            yield f"| {mutant.path}:{mutant.line} `{before}` | `{after}` | {why} |"


def rate(results: dict[Mutant, str]) -> float:
    """How many of a hundred mutants that are not equivalent were killed."""
    counted = [told for m, told in results.items() if told or m.name not in EQUIVALENT]
    return 100 * sum(map(bool, counted)) / max(len(counted), 1)


def main() -> None:
    """Draw, run and tell; end with 1 where too many survive."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument("--seed", type=int, default=13)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--sample", type=int, help="only the first so many")
    parser.add_argument("--slow", action="store_true", help="let the slow tests look, too")
    parser.add_argument("--again", action="store_true", help="forget earlier results")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    mutants = drawn(given.count, given.seed)[: given.sample]
    results = run_all(mutants, given.jobs, slow=given.slow, again=given.again)
    print("", *table(results), sep="\n")
    if rate(results) < FLOOR:
        sys.exit(f"{rate(results):.1f} % is less than {FLOOR} %")


if __name__ == "__main__":
    main()
