"""Which PySpark this needs, and which one is here.

Left out: the rest of what Spark needs (``doctor``).
"""

from __future__ import annotations

import importlib
import re
from importlib.metadata import PackageNotFoundError, version

from ...affinity.errors import UsageError

LEAST = (4, 2)
"""The first PySpark whose streams in Python may be told how much to read at once."""
BELOW = (4, 4)
"""Not tried."""


def numbers_of(text: str) -> tuple[int, ...]:
    """Return the first two numbers of a version."""
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])


def part_of(name: str, module: str = "pyspark.sql.datasource", instead: type = object) -> type:
    """Return a base class of PySpark; if it does not have it, a new plain class."""
    try:
        found: type = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        return type(name, (instead,), {})
    return found


def check_pyspark() -> None:
    """Raise ``UsageError`` for a PySpark that is too old."""
    try:
        here = version("pyspark")
    except PackageNotFoundError:
        return  # what asks for it says so
    if numbers_of(here) < LEAST:
        least = ".".join(map(str, LEAST))
        raise UsageError(
            f"tidelog needs PySpark {least} or newer, and this is {here}",
            hint="Install the extra: pip install 'tidelog[spark]'.",
        )
