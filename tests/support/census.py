"""Counts what makes a source hard to hold in the head, and how long the hot paths are.

    python -m support.census [--list] [--calls] [ROOT]

from the folder of the tests, for any checkout (default: this one).  Of the sources it counts
circles of imports (types and lazy imports included), functions over 60 lines, modules over 400,
functions with more than 6 parameters (``self`` left out; commands of click, whose parameters are
options, apart), callables that are given to an object after it was made, and functions that return
``Any``; with ``--list`` it names each.

With ``--calls`` it counts, for a put, a ``db.run`` over five keys and a scan of 3,000 pairs, the
calls of Python functions in the thread of the caller, and how many of them go from one module to
another.

A callable is what looks like one to ``ast``: a lambda, a function of the module or the package, a
method by its name, a parameter with ``Callable`` in its type.  ``x.y = f`` is counted where ``x``
is not ``self``, and ``self.y = f`` outside of ``__init__``.
"""

from __future__ import annotations

import argparse
import ast
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .tidy import find_circles

LINES_OF_FUNCTION, LINES_OF_MODULE, PARAMETERS = 60, 400, 6
NOT_PACKAGES = frozenset({"benchmarks", "docs", "examples", "tests"})
PAIRS = 3000

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Census:
    """What was found, by measure: each as ``path:line name``."""

    circles: list[str] = field(default_factory=list)
    long_functions: list[str] = field(default_factory=list)
    long_modules: list[str] = field(default_factory=list)
    many_parameters: list[str] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    callables_given: list[str] = field(default_factory=list)
    callables_kept: list[str] = field(default_factory=list)
    any_returned: list[str] = field(default_factory=list)
    any_in_tests: list[str] = field(default_factory=list)


TITLES = {
    "circles": "circles of imports",
    "long_functions": f"functions over {LINES_OF_FUNCTION} lines",
    "long_modules": f"modules over {LINES_OF_MODULE} lines",
    "many_parameters": f"functions with more than {PARAMETERS} parameters",
    "commands": "  commands of click with more",
    "callables_given": "callables assigned to another object",
    "callables_kept": "callables assigned to self outside of __init__",
    "any_returned": "functions that return Any",
    "any_in_tests": "  in tests/support",
}


def sources_of(root: Path) -> dict[str, str]:
    """Path and text of each module of the package in a checkout."""
    folders = {path.parent for path in root.rglob("__init__.py")}
    inside = [f for f in folders if not NOT_PACKAGES & {*f.relative_to(root).parts[:1]}]
    hidden = [f for f in inside if any(part[0] == "." for part in f.relative_to(root).parts)]
    modules = [path for f in inside if f not in hidden for path in f.glob("*.py")]
    return {str(path.relative_to(root)): path.read_text("utf-8") for path in sorted(modules)}


def functions_of(tree: ast.AST) -> Iterator[Function]:
    """All functions of a module, methods and inner ones included."""
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def parameters_of(function: Function) -> list[ast.arg]:
    """The parameters of a function but for ``self`` and ``cls``."""
    given = function.args
    found = [*given.posonlyargs, *given.args, *given.kwonlyargs]
    return [arg for arg in found if arg.arg not in ("self", "cls")]


def is_command(function: Function) -> bool:
    """Whether a function is a command of click."""
    texts = [ast.unparse(decorator) for decorator in function.decorator_list]
    return any(".command" in text or "click." in text for text in texts)


def count_sources(sources: Mapping[str, str]) -> Census:
    """Look at all modules of a package."""
    found = Census(circles=[" <-> ".join(circle) for circle in find_circles(sources)])
    trees = {path: ast.parse(text) for path, text in sources.items()}
    known = _names_of_functions(trees.values())
    for path, tree in trees.items():
        lines = sources[path].count("\n")
        if lines > LINES_OF_MODULE:
            found.long_modules.append(f"{path} {lines}")
        for function in functions_of(tree):
            _count_function(found, f"{path}:{function.lineno} {function.name}", function)
        for line, text, owned in _callables_assigned(tree, known):
            (found.callables_kept if owned else found.callables_given).append(
                f"{path}:{line} {text}"
            )
    return found


def _count_function(found: Census, place: str, function: Function) -> None:
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    if lines > LINES_OF_FUNCTION:
        found.long_functions.append(f"{place} {lines}")
    many = len(parameters_of(function))
    if many > PARAMETERS:
        names = found.commands if is_command(function) else found.many_parameters
        names.append(f"{place} {many}")
    if returns_any(function):
        found.any_returned.append(place)


def returns_any(function: Function) -> bool:
    """Whether its result may be anything."""
    return function.returns is not None and ast.unparse(function.returns) in ("Any", "typing.Any")


def _names_of_functions(trees: Iterable[ast.Module]) -> set[str]:
    """The names that only functions and methods have: no property, field or variable does."""
    functions, values = set[str](), set[str]()
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, Function):
                kinds = [ast.unparse(decorator) for decorator in node.decorator_list]
                values.update([node.name] if "property" in str(kinds) else [])
                functions.add(node.name)
            elif isinstance(node, ast.AnnAssign | ast.Assign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                values.update(t.id for t in targets if isinstance(t, ast.Name))
    return functions - values


def _callables_assigned(tree: ast.AST, known: set[str]) -> Iterator[tuple[int, str, bool]]:
    """Line and text of each assignment of a callable, and whether it is to ``self``."""
    for function in functions_of(tree):
        own = {
            arg.arg
            for arg in parameters_of(function)
            if arg.annotation is not None and "Callable" in ast.unparse(arg.annotation)
        }
        own |= {inner.name for inner in functions_of(function)} - {function.name}
        for node in _of_its_own(function):
            if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
                continue
            for target, value in _pairs_of(node):
                if not isinstance(target, ast.Attribute) or not _is_callable(value, known | own):
                    continue
                owned = isinstance(target.value, ast.Name) and target.value.id == "self"
                if not owned or function.name not in ("__init__", "__new__", "__post_init__"):
                    yield node.lineno, ast.unparse(node), owned


def _of_its_own(function: Function) -> Iterator[ast.AST]:
    """The nodes of a function, but for those of functions inside it."""
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, Function | ast.Lambda):
            waiting += ast.iter_child_nodes(node)


def _pairs_of(node: ast.Assign | ast.AnnAssign) -> list[tuple[ast.expr, ast.expr]]:
    assert node.value is not None
    pairs: list[tuple[ast.expr, ast.expr]] = []
    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            pairs += zip(target.elts, node.value.elts, strict=False)
        else:
            pairs.append((target, node.value))
    return pairs


def _is_callable(value: ast.expr, known: set[str]) -> bool:
    match value:
        case ast.Lambda():
            return True
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in known
        case ast.Call(func=ast.Name(id="partial" | "WeakMethod")):
            return True
        case ast.Call(func=ast.Attribute(attr="WeakMethod")):
            return True
    return False


# ------------------------------------------------------------------ calls

MEASURE = """
import json, os, sys, tempfile
import tidelog

ROOT, PAIRS = os.path.realpath(os.path.dirname(tidelog.__file__)), int(sys.argv[1])

def counted(work):
    calls, changes = [], []

    def note(frame, event, _arg):
        if event != "call":
            return
        name = os.path.realpath(frame.f_code.co_filename)
        if name.startswith(ROOT):
            calls.append(name)
            before = frame.f_back.f_code.co_filename if frame.f_back else ""
            if os.path.realpath(before) != name:
                changes.append(name)

    for _ in range(3):
        work()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return len(calls), len(changes)

with tempfile.TemporaryDirectory() as folder, tidelog.open(folder + "/s", partitions=4) as db:
    m = db.map("m")
    m.update({b"%06d" % n: b"v" for n in range(PAIRS)})
    db.checkpoint()
    keys = [b"%06d" % n for n in range(5)]

    def rewrite(tx):
        inside = tx[m]
        for key in keys:
            inside[key] = inside[key] + b"."

    found = {
        "put": counted(lambda: m.__setitem__(b"000001", b"w")),
        "run": counted(lambda: db.run(rewrite)),
    }
    db.checkpoint()
    found["scan"] = counted(lambda: list(m.items()))
    print(json.dumps(found))
"""


def count_calls(root: Path) -> dict[str, tuple[int, int]]:
    """Calls, and changes of module, of each hot path of a checkout."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "tidelog").symlink_to(root.resolve())
        done = subprocess.run(
            [sys.executable, "-c", MEASURE, str(PAIRS)],
            env={"PYTHONPATH": folder, "PYTHONDONTWRITEBYTECODE": "1", "PATH": ""},
            cwd=folder,
            capture_output=True,
            text=True,
            check=True,
        )
    found: dict[str, tuple[int, int]] = json.loads(done.stdout.splitlines()[-1])
    return found


def count_checkout(root: Path) -> Census:
    """Look at a checkout: its package, and what its tests share."""
    found = count_sources(sources_of(root))
    for path in sorted((root / "tests" / "support").glob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        found.any_in_tests += [
            f"tests/support/{path.name}:{function.lineno} {function.name}"
            for function in functions_of(tree)
            if returns_any(function)
        ]
    return found


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("root", nargs="?", type=Path, default=Path(__file__).resolve().parents[2])
    parser.add_argument("--list", action="store_true", help="name everything that is counted")
    parser.add_argument("--calls", action="store_true", help="count the calls of the hot paths")
    asked = parser.parse_args()
    found = count_checkout(asked.root)
    print("| measure | count |\n| --- | --- |")
    for name, title in TITLES.items():
        print(f"| {title} | {len(getattr(found, name))} |")
    if asked.list:
        for name, title in TITLES.items():
            print(f"\n{title.strip()}:")
            print(*(f"  {line}" for line in getattr(found, name)), sep="\n")
    if asked.calls:
        titles = {"put": "put", "run": "run over 5 keys", "scan": f"scan of {PAIRS:,} pairs"}
        print("\n| path | calls | changes of module |\n| --- | --- | --- |")
        for name, (calls, changes) in count_calls(asked.root).items():
            print(f"| {titles[name]} | {calls} | {changes} |")


if __name__ == "__main__":
    main()
