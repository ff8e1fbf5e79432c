"""Small mistakes that could be in the core, and which of them a seed draws.

Sites are drawn from wal, tx, checkpoints and engine: a file by the root of its number of sites,
then an operator, then a site, so that no large file and no common operator has most of them.

Left out as sites: text of errors and of logs, ``__repr__``, assertions, annotations, docstrings.
"""

from __future__ import annotations

import ast
import itertools
import math
import random
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LAYERS = ("wal", "tx", "checkpoints", "engine")


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
    lines: tuple[int, ...]
    """Those of the statement: any of them runs when the mutant does."""

    inside: str
    """The names of the classes and functions that it is in."""

    @property
    def name(self) -> str:
        """What it is called, wherever in its file it moves to."""
        return f"{self.path} {self.inside} {self.operator} {self.before}"


# ---------------------------------------------------------------------- sites

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
    module = ast.parse(text)
    statements = list(statements_of(module))
    defined = [
        (node.name, range(node.lineno, (node.end_lineno or 0) + 1))
        for node in ast.walk(module)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    ]
    for operator, node, after in sites(module):
        assert isinstance(node, ast.expr | ast.stmt)
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = starts[node.lineno - 1] + node.col_offset
        stop = starts[node.end_lineno - 1] + node.end_col_offset
        name = str(path.relative_to(ROOT))
        place = (name, node.lineno, operator, ast.unparse(node), after, start, stop)
        lines = min((lines for lines in statements if node.lineno in lines), key=len)
        inside = ".".join(name for name, lines in defined if node.lineno in lines)
        found.append(Mutant(*place, tuple(lines), inside))
    return found


def statements_of(module: ast.Module) -> Iterator[range]:
    """Yield the lines of each statement, of a compound one those of its head."""
    for node in ast.walk(module):
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            stop = max(body[0].lineno, node.lineno + 1) if body else (node.end_lineno or 0) + 1
            yield range(node.lineno, stop)


def drawn(count: int, seed: int) -> list[Mutant]:
    """Draw different mutants, the same for the same seed and source."""
    modules = sorted(path for layer in LAYERS for path in (ROOT / layer).rglob("*.py"))
    everything = {path: found for path in modules if (found := mutants_of(path))}
    weights = [math.sqrt(len(found)) for found in everything.values()]
    taken: dict[Mutant, None] = {}
    draws = itertools.count()
    while len(taken) < count:
        # Each draw has a generator of its own, so that a change of the source moves few of them.
        rng = random.Random(f"{seed} {next(draws)}")
        (path,) = rng.choices(list(everything), weights)
        operator = rng.choice(sorted({mutant.operator for mutant in everything[path]}))
        taken[rng.choice([m for m in everything[path] if m.operator == operator])] = None
    return list(taken)
