"""What the documents list, against what the code has: both ways, so that neither can go astray."""

from __future__ import annotations

import ast
import pkgutil
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import click
import pytest

import tidelog
from support.documents import ROOT
from support.tidy import names_defined, names_given_in, nodes_of, parsed
from tidelog.affinity import errors
from tidelog.engine.store.options import Options
from tidelog.engine.store.statistics import Statistics
from tidelog.pipeline.plan.options import ViewName, _known as options_of, parse
from tidelog.pipeline.plan.reads import fields_of
from tidelog.tools.main import cli
from tidelog.tools.shell.exits import Exit, exit_code
from tidelog.tools.version import LIBRARIES
from tidelog.tx.validation import READ_RULES

ARCHITECTURE_LINES_MAX = 300
LEVELS = ("debug", "info", "warning", "error", "log")
LOGGING = {f"{name}.{level}" for name in ("log", "_log") for level in LEVELS}
SHIPPED = (
    "affinity", "wal", "tx", "checkpoints", "rebalance", "engine", "testing", "pipeline", "tools"
)  # fmt: skip


def text_of(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def tables(path: str) -> Iterator[list[dict[str, str]]]:
    """The tables of a document: for each a list of its rows, as column -> cell."""
    lines = [*text_of(path).splitlines(), ""]
    while lines:
        if not lines[0].startswith("| "):
            lines.pop(0)
            continue
        end = next(n for n, line in enumerate(lines) if not line.startswith("|"))
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[:end]]
        yield [dict(zip(rows[0], row, strict=True)) for row in rows[2:]]
        del lines[:end]


def table_with(path: str, column: str) -> list[dict[str, str]]:
    """The one table of a document whose first column has that title."""
    found = [rows for rows in tables(path) if rows and next(iter(rows[0])) == column]
    assert len(found) == 1, f"{path} has {len(found)} tables of {column}"
    return found[0]


def plain(cell: str) -> str:
    return cell.strip("`")


# ------------------------------------------------------------------ errors


def error_classes() -> dict[str, type[errors.TidelogError]]:
    return {
        name: kind
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.TidelogError)
    }


def test_every_error_is_documented_with_its_code_and_every_documented_one_exists() -> None:
    documented = {
        plain(row["class"]): (row["code"], row["retryable"])
        for row in table_with("docs/errors.md", "class")
    }
    assert documented == {
        name: (kind.code, "yes" if kind.retryable else "no")
        for name, kind in error_classes().items()
    }


def test_the_table_of_errors_leaves_no_cell_empty() -> None:
    for row in table_with("docs/errors.md", "class"):
        assert all(row.values()), row


# ------------------------------------------------------------------ log events


def events_of(source: str) -> set[str]:
    """The values of ``event`` in the dicts of a source."""
    return {
        str(ast.literal_eval(value))
        for node in nodes_of(source)
        if isinstance(node, ast.Dict)
        for key, value in zip(node.keys, node.values, strict=True)
        if isinstance(key, ast.Constant) and key.value == "event"
    }


def texts_logged(source: str) -> set[str]:
    """The texts that are passed to a module's ``log``."""
    return {
        argument.value
        for call in nodes_of(source)
        if isinstance(call, ast.Call) and ast.unparse(call.func) in LOGGING
        for argument in call.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    }


def sources() -> Iterator[Path]:
    for folder in SHIPPED:
        yield from sorted((ROOT / folder).rglob("*.py"))


def test_every_logged_event_is_documented_and_every_documented_one_is_logged() -> None:
    logged = {event for path in sources() for event in events_of(path.read_text("utf-8"))}
    rows = table_with("docs/operations.md", "event")
    assert {plain(row["event"]) for row in rows} == logged


def test_a_logged_text_begins_with_the_name_of_its_event() -> None:
    known = {plain(row["event"]) for row in table_with("docs/operations.md", "event")}
    texts = {text for path in sources() for text in texts_logged(path.read_text("utf-8"))}
    assert texts
    assert {text.split()[0].rstrip(":") for text in texts} <= known


# ------------------------------------------------------------------ options, statistics, limits


def test_every_option_is_documented_with_its_default() -> None:
    rows = table_with("docs/operations.md", "option")
    fields = Options.__dataclass_fields__
    assert [plain(row["option"]) for row in rows] == list(fields)
    assert {plain(row["option"]): row["default"] for row in rows} == {
        name: str(field.default) for name, field in fields.items()
    }


def test_every_statistic_is_documented() -> None:
    rows = table_with("docs/operations.md", "field")
    assert [plain(row["field"]) for row in rows] == list(Statistics.__dataclass_fields__)


LIMITS = [row for row in table_with("docs/operations.md", "limit") if row["constant"]]


@pytest.mark.parametrize("row", LIMITS, ids=lambda row: str(row["limit"]))
def test_a_documented_limit_is_that_of_the_code(row: dict[str, str]) -> None:
    number = re.match(r"[\d,]+", row["value"])
    assert number is not None
    found = pkgutil.resolve_name(f"tidelog.{plain(row['constant'])}")
    assert int(number[0].replace(",", "")) == found


def test_the_errors_of_the_limits_exist() -> None:
    for row in table_with("docs/operations.md", "limit"):
        if row["beyond it"].startswith("`"):
            assert hasattr(tidelog.errors, plain(row["beyond it"]))


# ------------------------------------------------------------------ the command line


def commands() -> Iterator[tuple[str, str]]:
    """Group and name of each command; the group is empty for those of the root."""
    root = click.Context(cli)
    for name in cli.list_commands(root):
        found = cli.get_command(root, name)
        if isinstance(found, click.Group):
            yield from ((name, each) for each in found.list_commands(click.Context(found)))
        else:
            yield "", name


def is_documented(group: str, name: str) -> bool:
    """Whether a page has the command in a text, an example, or a table of its group's commands."""
    page = text_of("docs/spark.md" if group == "spark" else "docs/cli.md")
    called = " ".join(filter(None, ["tidelog", group, name]))
    return re.search(rf"[`$ ]{called}\b|^\| `{name}\b", page, re.MULTILINE) is not None


def test_the_tree_of_the_commands_is_that_of_the_code() -> None:
    (tree,) = re.findall(r"```text\ntidelog\n(.*?)\n```", text_of("docs/cli.md"), re.DOTALL)
    shown = set()
    for line in tree.splitlines():
        _, group, *names = line.replace("|", " ").split()
        shown |= {(group, name) for name in names} or {("", group)}
    assert shown == set(commands())


def test_the_functions_of_the_jobs_are_where_the_page_says() -> None:
    # They were told at places that they had left.
    rows = [row for rows in tables("docs/spark.md") for row in rows if "function" in row]
    assert all(callable(pkgutil.resolve_name(f"tidelog.{plain(r['function'])}")) for r in rows)
    assert len(rows) > 5


def test_every_command_is_documented() -> None:
    assert [found for found in commands() if not is_documented(*found)] == []


def test_every_exit_code_is_documented() -> None:
    assert [int(row["code"]) for row in table_with("docs/cli.md", "code")] == list(Exit)


def test_every_error_ends_a_command_with_the_code_of_its_row() -> None:
    rows: dict[str, int] = {"TidelogError": Exit.FAILURE}
    for row in table_with("docs/cli.md", "code"):
        named = re.findall(r"`(\w+Error)`", " ".join(row.values()))
        rows |= dict.fromkeys(named, int(row["code"]))
    assert rows.keys() <= error_classes().keys()
    for name, kind in error_classes().items():
        nearest = next(base.__name__ for base in kind.__mro__ if base.__name__ in rows)
        raised = kind.__new__(kind, "it failed")
        assert (name, exit_code(raised)) == (name, rows[nearest])


def test_the_versions_that_are_told_are_those_of_all_dependencies() -> None:
    project = tomllib.loads(text_of("pyproject.toml"))["project"]
    extras = project["optional-dependencies"]
    lines = project["dependencies"] + extras["cli"] + extras["trio"]
    assert sorted(LIBRARIES) == sorted(re.split("[<>]", line)[0] for line in lines)


# ------------------------------------------------------------------ what Spark reads


def test_every_option_of_a_spark_read_is_documented() -> None:
    words = set(re.findall(r"`(\w+)", text_of("docs/spark.md")))
    options = {name for view in get_args(ViewName) for name, _, _ in options_of(view, None)}
    assert options - words == set()


def test_every_view_and_its_columns_are_documented() -> None:
    shown = table_with("docs/spark.md", "`view`")
    rows = {plain(row["`view`"].split()[0]): row for row in shown}
    assert set(rows) == set(get_args(ViewName))
    for view in get_args(ViewName):
        told = set(re.findall(r"`(\w+)`", " ".join(rows[view].values())))
        assert {name for name, _ in fields_of(parse({"path": "/", "view": view}))} - told == set()


# ------------------------------------------------------------------ transactions, words, shape


def test_the_table_of_isolation_levels_is_that_of_the_code() -> None:
    documented = [
        (
            row["row"],
            row["mode"],
            row["isolation"],
            row["reads"] == "snapshot",
            row["checked at the commit"],
            row["read locks"] == "yes",
        )
        for row in table_with("docs/transactions.md", "row")
    ]
    assert documented == [
        (rule.row, mode, isolation, rule.snapshot, rule.validated.value, rule.read_locks)
        for (mode, isolation), rule in READ_RULES.items()
    ]


def test_retryable_in_the_page_on_transactions_is_that_of_the_code() -> None:
    for row in table_with("docs/transactions.md", "error"):
        kind = error_classes()[plain(row["error"])]
        assert kind.retryable == (row["again?"] == "yes" or row["again?"].startswith("yes")), row


def test_a_word_of_the_glossary_is_explained_once() -> None:
    words = [
        word
        for rows in tables("docs/glossary.md")
        if "word" in rows[0]
        for row in rows
        for word in re.split(r", ", row["word"])
    ]
    assert sorted(words) == sorted(set(words))


def test_every_name_that_tells_two_meanings_apart_exists() -> None:
    known: set[str] = set()
    for path in sources():
        text = path.read_text("utf-8")
        known |= names_defined(str(path.relative_to(ROOT)), text) | names_given_in(parsed(text))
    rows = table_with("docs/glossary.md", "also")
    told = {name for row in rows for name in re.findall(r"`([\w.]+)`", row["in the code"])}
    assert told
    assert told - known == set()


def test_the_architecture_stays_short() -> None:
    assert len(text_of("ARCHITECTURE.md").splitlines()) < ARCHITECTURE_LINES_MAX


# ------------------------------------------------------------------ names in the text


NAME = re.compile(
    rf"`(?:tidelog\.)?((?:{'|'.join(SHIPPED)})(?:\.\w+){{2,}})[`(]|`tidelog\.(\w+(?:\.\w+)+)[`(]"
)


@pytest.mark.parametrize("path", sorted(p.name for p in (ROOT / "docs").glob("*.md")))
def test_every_dotted_name_in_a_document_exists(path: str) -> None:
    # The jobs of Spark were listed at places from which they had moved.
    found = {first or second for first, second in NAME.findall(text_of(f"docs/{path}"))}
    missing = []
    for name in sorted(found):
        try:
            pkgutil.resolve_name(f"tidelog.{name}")
        except (ImportError, AttributeError):
            missing.append(name)
    assert missing == []


# What no user of a store meets yet.
LINKED_BY_THE_ARCHITECTURE = {"migrations.md"}


def test_the_readme_links_every_page() -> None:
    linked = {
        path: set(re.findall(r"\]\(docs/([\w-]+\.md)\)", text_of(path)))
        for path in ("README.md", "ARCHITECTURE.md")
    }
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"benchmarks.md"}
    assert linked["README.md"] >= pages - LINKED_BY_THE_ARCHITECTURE
    assert linked["ARCHITECTURE.md"] >= LINKED_BY_THE_ARCHITECTURE


def test_every_change_of_a_decision_is_in_the_table_of_its_format() -> None:
    from tidelog.engine.agreement.encoding import _SHAPES

    [rows] = [
        rows
        for rows in tables("docs/config-log-format.md")
        if rows and list(rows[0])[:2] == ["kind", "name"] and rows[0]["name"] == "begun"
    ]
    assert [int(row["kind"]) for row in rows] == sorted(one.number for one in _SHAPES.values())
