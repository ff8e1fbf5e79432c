"""Mutates the core of the product, one small change at a time, and sees which tests notice.

    python tests/support/mutate.py [--count 150] [--seed 13] [--jobs 2] [--sample N]

from the root of the checkout; ``make mutate`` does.  Sites are drawn from wal, tx, checkpoints
and engine: a file by the root of its number of sites, then an operator, then a site, so that no
large file and no common operator has most of them.  Each mutant stands in a copy of the checkout.
The tests of its module run first, then all fast tests but those that read the source; with
``--slow`` those of the crash suites and of stores, too.  A mutant that hangs, or breaks the import,
is noticed.

Results are kept in ``.venv/mutants.json``, by the text of the sites: what was run once is not run
again until its file or the tests change (``--again`` runs all), so a run can be stopped and go on.
Survivors that no test can notice stand in ``EQUIVALENT``, each with its reason.

Left out as sites: text of errors and of logs, ``__repr__``, assertions, annotations, docstrings.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Lock
from typing import TypeVar

ROOT = Path(__file__).resolve().parents[2]
LAYERS = ("wal", "tx", "checkpoints", "engine")
STATE = ROOT / ".venv" / "mutants.json"
FLOOR = 95.0
SECONDS = 900
"""After which a run of tests is taken to hang."""

SLOW = " slow"
"""Behind a fingerprint: what the slow tests said of a mutant that survived the others."""

QUICK = "not slow and not nightly and not spark"
FAST = [
    "tests/affinity", "tests/wal", "tests/tx", "tests/checkpoints", "tests/engine", "tests/store",
    "tests/testing", "tests/crash", "tests/pipeline", "tests/tools",
]  # fmt: skip

EQUIVALENT: dict[str, str] = {
    "engine/recovery.py MINMAX min(COPY_PIECE, stop - offset)": "only the size of the pieces",
    "tx/validation.py ARGS first_common(self.keys, changed)": "symmetric",
    "engine/attempts.py BOOL False": "what __exit__ returns without an error is ignored",
    "engine/log_source.py CALL file.close()": "CPython closes what nobody refers to",
}
"""Mutants that change nothing which anybody can see: file, operator, text; and why."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change: the text of a place, and what stands there instead."""

    path: str
    line: int
    operator: str
    before: str
    after: str
    start: int
    stop: int

    @property
    def name(self) -> str:
        """What it is called, wherever in its file it moves to."""
        return f"{self.path} {self.operator} {self.before}"


# ---------------------------------------------------------------------- sites

T = TypeVar("T")
Change = tuple[str, ast.AST, str]
"""Operator, the node, and what to write in its place."""

_COMPARES: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_MINMAX = {"min": "max", "max": "min"}


def changes_of(node: ast.AST) -> Iterator[Change]:
    """Yield what may be done to one node."""
    match node:
        case ast.Compare(ops=[op]):
            other = deepcopy(node)
            other.ops = [_COMPARES[type(op)]()]
            yield "CMP", node, f"({ast.unparse(other)})"
        case ast.Constant(value=bool() as value):
            yield "BOOL", node, str(not value)
        case ast.Constant(value=int() as value):
            yield "CONST", node, str(value + 1)
        case ast.BinOp(op=ast.Add() | ast.Sub() as op):
            turned = deepcopy(node)
            turned.op = ast.Sub() if isinstance(op, ast.Add) else ast.Add()
            yield "ARITH", node, f"({ast.unparse(turned)})"
        case ast.BoolOp(op=op):
            joined = deepcopy(node)
            joined.op = ast.Or() if isinstance(op, ast.And) else ast.And()
            yield "ANDOR", node, f"({ast.unparse(joined)})"
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            yield "NEG", test, f"(not ({ast.unparse(test)}))"
        case ast.Call(func=ast.Name(id="min" | "max" as name)):
            yield "MINMAX", node.func, _MINMAX[name]
        case ast.Call(args=[first, second], keywords=[]) if not _starred(node):
            swapped = deepcopy(node)
            swapped.args = [second, first]
            yield "ARGS", node, ast.unparse(swapped)
        case ast.Expr(value=ast.Call()):
            yield "CALL", node, "pass"
        case ast.Assign() | ast.AugAssign() if _assigns_attribute(node):
            yield "ASSIGN", node, "pass"
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield "RETURN", node, "return None"
        case ast.Raise(exc=ast.Call(func=ast.Name() as kind)):
            yield "ERROR", kind, "RuntimeError"
        case ast.Raise():
            yield "RAISE", node, "pass"
        case ast.Break() | ast.Continue():
            yield "LOOP", node, "pass"
        case _:
            return


def _starred(call: ast.Call) -> bool:
    return any(isinstance(argument, ast.Starred) for argument in call.args)


def _assigns_attribute(node: ast.Assign | ast.AugAssign) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return all(isinstance(target, ast.Attribute | ast.Subscript) for target in targets)


def sites(node: ast.AST) -> Iterator[Change]:
    """Yield all changes below a node, but where they would only change a text or a type."""
    yield from changes_of(node)
    for name, child in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "bases", "cause", "op", "ops"):
            continue
        for item in child if isinstance(child, list) else [child]:
            if isinstance(item, ast.AST) and not _left_out(node, item):
                yield from sites(item)


def _left_out(parent: ast.AST, node: ast.AST) -> bool:
    match node:
        case ast.FunctionDef(name="__repr__" | "__str__") | ast.Assert() | ast.JoinedStr():
            return True
        case ast.Expr(value=ast.Constant()) | ast.Import() | ast.ImportFrom():
            return True
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="log")))):
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
        case ast.ClassDef(bases=[*_, ast.Name(id="Protocol")]):
            return True
    return isinstance(parent, ast.Raise) and isinstance(node, ast.Call)


def mutants_of(path: Path) -> list[Mutant]:
    """Return all mutants of a module."""
    text = path.read_text(encoding="utf-8")
    starts = [0]
    for line in text.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = []
    for operator, node, after in sites(ast.parse(text)):
        assert isinstance(node, ast.expr | ast.stmt)
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = starts[node.lineno - 1] + node.col_offset
        stop = starts[node.end_lineno - 1] + node.end_col_offset
        name = str(path.relative_to(ROOT))
        found.append(Mutant(name, node.lineno, operator, ast.unparse(node), after, start, stop))
    return found


def drawn(count: int, seed: int) -> list[Mutant]:
    """Draw different mutants, the same for the same seed and source."""
    rng = random.Random(seed)
    modules = sorted(path for layer in LAYERS for path in (ROOT / layer).glob("*.py"))
    everything = {path: found for path in modules if (found := mutants_of(path))}
    weights = [math.sqrt(len(found)) for found in everything.values()]
    taken: dict[Mutant, None] = {}
    while len(taken) < count:
        (path,) = rng.choices(list(everything), weights)
        operator = rng.choice(sorted({mutant.operator for mutant in everything[path]}))
        taken[rng.choice([m for m in everything[path] if m.operator == operator])] = None
    return list(taken)


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


def passes(tree: Path, *arguments: str) -> tuple[bool, str]:
    """Run tests in a copy; return whether all pass, and which one did not."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider"]
    environment = {
        **os.environ,
        "PYTHONPATH": str(tree.parent / "path"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "TMPDIR": str(tree.parent),
    }
    # One test at a time has two minutes; the whole has these seconds.
    with subprocess.Popen(
        [*command, *arguments], cwd=tree, env=environment, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as run:  # fmt: skip
        try:
            told, _ = run.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(run.pid, 9)
            return False, "it hung"
    # Not `ERROR ` alone: so begins a line of a log that a failed test had captured, too.
    named = ("FAILED tests/", "ERROR tests/")
    failed = [line for line in told.splitlines() if line.startswith(named)]
    if run.returncode in (0, 5):  # 5: none was chosen
        return True, ""
    return False, failed[0].split(" - ")[0].partition(" ")[2] if failed else "it broke the run"


def tests_of(path: str) -> list[str]:
    """The files of tests of a module, by its name."""
    layer, name = os.path.split(path)
    stem = name.removesuffix(".py")
    found = sorted((ROOT / "tests" / layer).glob(f"test_{stem}*.py"))
    return [str(file.relative_to(ROOT)) for file in found]


def killer(mutant: Mutant, tree: Path, *, slow: bool) -> str:
    """Run tests until one notices the mutant, which passes without it; return which, or nothing."""
    told = noticed(mutant, tree, slow=slow)
    if "::" in told:
        passed, _ = passes(tree, told.partition("[")[0])
        assert passed, f"without any mutant {told} fails"
    return told


def noticed(mutant: Mutant, tree: Path, *, slow: bool) -> str:
    """Put a mutant in its place and run tests until one fails; return which, or nothing."""
    place = tree / mutant.path
    source = place.read_bytes()
    place.write_bytes(source[: mutant.start] + mutant.after.encode() + source[mutant.stop :])
    runs: list[tuple[str, ...]] = []
    if tests_of(mutant.path):
        runs.append(("-m", "not nightly and not spark", *tests_of(mutant.path)))
    runs.append(("-m", QUICK, *FAST))
    if slow:
        runs.append(("-m", "slow and not nightly", "tests/crash", "tests/store", "tests/engine"))
    try:
        for arguments in runs:
            passed, told = passes(tree, *arguments)
            if not passed:
                return told
        return ""
    finally:
        place.write_bytes(source)


def fingerprint(mutant: Mutant) -> str:
    """What a result depends on: the mutated file, and the tests."""
    files = [ROOT / mutant.path, *sorted((ROOT / "tests").rglob("*.py"))]
    digest = hashlib.sha256(json.dumps(asdict(mutant)).encode())
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def remembered() -> dict[str, str]:
    """Return the results of earlier runs."""
    known: dict[str, str] = json.loads(STATE.read_text()) if STATE.exists() else {}
    return known


def remember(known: dict[str, str]) -> None:
    """Keep results, so that whoever stops the run finds all of the old ones or the new ones."""
    fresh = STATE.with_suffix(".new")
    fresh.write_text(json.dumps(known, indent=1))
    fresh.replace(STATE)


def unseen(fingerprint: str, known: dict[str, str]) -> bool:
    """Whether a mutant survived, and no slow test has looked at it yet."""
    return not known[fingerprint] and fingerprint + SLOW not in known


def run_all(mutants: list[Mutant], jobs: int, *, slow: bool, again: bool) -> dict[Mutant, str]:
    """Return what noticed each mutant, nothing for survivors; remember it as it comes."""
    known = {} if again else remembered()
    # Once: the checkout may go on while its copies are looked at.
    prints = {mutant: fingerprint(mutant) for mutant in mutants}
    left = [m for m in mutants if prints[m] not in known or (slow and unseen(prints[m], known))]
    writing = Lock()
    with tempfile.TemporaryDirectory(prefix="tidelog-mutants-") as folder:
        trees: SimpleQueue[Path] = SimpleQueue()
        for job in range(jobs):
            (Path(folder) / str(job)).mkdir()
            trees.put(copied(Path(folder) / str(job)))
        if left:
            # Else whatever fails anyway would count as noticing each mutant.
            passed, told = _with_tree(trees, lambda tree: passes(tree, "-m", QUICK, *FAST))
            assert passed, f"without any mutant {told} fails"

        def work(mutant: Mutant) -> None:
            told = _with_tree(trees, lambda tree: killer(mutant, tree, slow=slow))
            with writing:
                known[prints[mutant]] = told
                if slow and not told:
                    known[prints[mutant] + SLOW] = told
                remember(known)
            print(
                f"{'killed  ' if told else 'SURVIVED'} {mutant.name} -> {mutant.after}", flush=True
            )

        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(work, left))
    return {mutant: known[prints[mutant]] for mutant in mutants}


def _with_tree(trees: SimpleQueue[Path], work: Callable[[Path], T]) -> T:
    tree = trees.get()
    try:
        return work(tree)
    finally:
        trees.put(tree)


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
    mutants = drawn(given.count, given.seed)[: given.sample]
    results = run_all(mutants, given.jobs, slow=given.slow, again=given.again)
    print("", *table(results), sep="\n")
    if rate(results) < FLOOR:
        sys.exit(f"{rate(results):.1f} % is less than {FLOOR} %")


if __name__ == "__main__":
    main()
