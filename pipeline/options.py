"""The options of a read, as Spark hands them over: texts by case-insensitive names.

Left out: what a view does with them (``reads``).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args

from ..affinity.errors import UsageError
from .columns import BATCH_ROWS

View = Literal["snapshot", "changes", "wal", "meta"]
Mode = Literal["FAILFAST", "PERMISSIVE"]

TASK_BYTES = 16 << 20

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What is to be read, and how.

    ``starting`` and ``ending`` are ``earliest``, ``latest``, or the JSON of a vector; ``ending``
    None is the newest.  ``most_changes`` bounds a micro-batch.
    """

    view: View
    paths: tuple[str, ...]
    columns: tuple[str, ...] | None = None
    partitions: frozenset[int] | None = None
    namespace: str | None = None
    starting: str | None = None
    ending: str | None = None
    rollbacks: bool = False
    fail_on_data_loss: bool = True
    most_changes: int | None = None
    mode: Mode = "FAILFAST"
    batch_rows: int = BATCH_ROWS
    task_bytes: int = TASK_BYTES
    tasks: int = 0


def parse(given: Mapping[str, str], *, stream: bool | None = False) -> Options:
    """Return the options; ``UsageError`` names what is unknown, missing or of no use.

    ``stream`` None stands for both, while nobody knows yet.
    """
    texts = {name.lower(): (name, text) for name, text in given.items()}
    view = _view(texts.pop("view", ("view", "snapshot"))[1])
    known = {name.lower(): (name, field, read) for name, field, read in _known(view, stream)}
    unknown = [name for low, (name, _) in texts.items() if low not in known]
    if unknown:
        valid = ", ".join(["view", *(name for name, _, _ in known.values())])
        raise UsageError(
            f"view {view!r} has no option {', '.join(map(repr, unknown))}"
            f"{' in a stream' if stream else ''}",
            hint=f"Its options are {valid}.",
        )
    if "path" not in texts:
        raise UsageError(
            "the option path is missing",
            hint='Name a store, a hot copy or a folder of segments: .option("path", ...).',
        )
    fields: dict[str, Any] = {}
    for low, (_, text) in texts.items():
        name, field, read = known[low]
        try:
            fields[field] = read(text)
        except ValueError as error:
            raise UsageError(f"option {name}={text!r}: {error}") from error
    return Options(view=view, **fields)


def _view(text: str) -> View:
    if text not in get_args(View):
        raise UsageError(
            f"there is no view {text!r}", hint=f"There are {', '.join(get_args(View))}."
        )
    return text  # type: ignore[return-value]  # looked at above


Known = list[tuple[str, str, Callable[[str], Any]]]


def _known(view: View, stream: bool | None) -> Known:
    """Return the options of a view: name, field, and what reads the text."""
    both: Known = [
        ("path", "paths", _paths),
        ("columns", "columns", _names),
        ("batchRows", "batch_rows", _positive),
        ("maxBytesPerTask", "task_bytes", _positive),
        ("minPartitions", "tasks", _positive),
    ]
    if view == "meta":
        return both
    if view == "wal":
        return [*both, ("mode", "mode", _mode)]
    both += [("namespace", "namespace", str), ("partitions", "partitions", _numbers)]
    if view == "snapshot":
        return both
    changes: Known = [
        ("startingCounters", "starting", _vector),
        ("includeRollbacks", "rollbacks", _flag),
        ("failOnDataLoss", "fail_on_data_loss", _flag),
    ]
    if stream is not False:
        changes.append(("maxChangesPerTrigger", "most_changes", _positive))
    if not stream:
        changes.append(("endingCounters", "ending", _vector))
    return [*both, *changes]


def _paths(text: str) -> tuple[str, ...]:
    """One path, or a JSON list of several."""
    if text.startswith("["):
        paths = json.loads(text)
        if not paths or not all(isinstance(path, str) for path in paths):
            raise ValueError("a list of paths is needed")
    else:
        paths = [text]
    return tuple(os.path.abspath(path.removeprefix("file:")) for path in paths)


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names) or len(set(names)) < len(names):
        raise ValueError("names of columns, separated by commas, each once")
    return names


def _numbers(text: str) -> frozenset[int]:
    """Numbers and ranges, such as ``0-15,40``."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not first.strip().isdigit() or not (last or first).strip().isdigit():
            raise ValueError("numbers and ranges, such as 0-15,40")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def _vector(text: str) -> str:
    if text not in ("earliest", "latest") and not isinstance(json.loads(text), dict):
        raise ValueError("earliest, latest, or a JSON object of numbers by partition")
    return text


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError("at least 1")
    return number


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("true or false")
    return text.lower() == "true"


def _mode(text: str) -> str:
    if text.upper() not in get_args(Mode):
        raise ValueError(" or ".join(get_args(Mode)))
    return text.upper()
