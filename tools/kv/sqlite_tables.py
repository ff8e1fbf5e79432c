"""The rows of a table in an SQLite file, for ``tidelog kv import --sqlite``.

Invariants:

- The file is opened for reading only, and all rows are of one moment.
- Values keep their types: integers, floats, text, bytes and null.
- Ctrl-C and SIGTERM end a query that goes on for long without a row.

Left out: what a row means for a map (``record_pairs``).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from ...affinity.errors import NotFoundError, UsageError
from ..shell.text import first_of
from .record_files import Numbered

STEPS = 20_000
"""Steps of a query, well below a millisecond of them, between two looks for signals."""


class SqliteTable:
    """A table or view of an open SQLite file."""

    def __init__(self, connection: sqlite3.Connection, name: str) -> None:
        self._connection = connection
        self._quoted = '"' + name.replace('"', '""') + '"'
        self.name = name
        self.rows: int = connection.execute(f"SELECT count(*) FROM {self._quoted}").fetchone()[0]

    def key_columns(self) -> tuple[str, ...]:
        """Return the primary key; ``UsageError`` if the table has none."""
        columns = self._connection.execute(
            "SELECT name FROM pragma_table_info(?) WHERE pk > 0 ORDER BY pk", (self.name,)
        )
        found = tuple(name for (name,) in columns)
        if not found:
            raise UsageError(
                f"the table {self.name!r} has no primary key",
                hint="Name the column that is the key: --key-field.",
            )
        return found

    def records(self) -> Iterator[Numbered]:
        """Yield (number, record) of each row, from 1."""
        cursor = self._connection.execute(f"SELECT * FROM {self._quoted}")
        names = [column[0] for column in cursor.description]  # of a view, too, all differ
        number = 0
        try:
            for number, row in enumerate(cursor, 1):
                yield number, dict(zip(names, row, strict=True))
        except sqlite3.OperationalError as error:
            # What Python itself finds wrong has no code of SQLite.
            if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_INTERRUPT:
                raise
            raise UsageError(f"row {number + 1}: {_reason(error)}") from None


@contextmanager
def sqlite_table(file: str, name: str) -> Iterator[SqliteTable]:
    """Open a table of an SQLite file."""
    with open(file, "rb"):  # the operating system's own error says more than SQLite's
        place = Path(file).absolute().as_uri()
    try:
        connection = sqlite3.connect(f"{place}?mode=ro", uri=True, isolation_level=None)
        with closing(connection), _interruptible(connection):
            connection.execute("BEGIN")
            _check_table(connection, file, name)
            yield SqliteTable(connection, name)
    except sqlite3.Error as error:
        raise UsageError(
            f"SQLite cannot read {file}: {_reason(error)}",
            hint="Check that it is an SQLite file, and that no other program keeps it locked.",
        ) from None


@contextmanager
def _interruptible(connection: sqlite3.Connection) -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end a query: Python looks for them only in lines of its own.

    SQLite ends the query if what it calls raises, and forgets what that was.
    """
    interrupts: list[KeyboardInterrupt] = []

    def look() -> Iterator[int]:
        try:
            while True:
                yield 0
        except KeyboardInterrupt as interrupt:
            interrupts.append(interrupt)

    looking = look()
    next(looking)
    connection.set_progress_handler(looking.__next__, STEPS)
    try:
        yield
    except sqlite3.OperationalError:
        if interrupts:
            raise interrupts[0] from None
        raise


def _check_table(connection: sqlite3.Connection, file: str, name: str) -> None:
    rows = connection.execute(
        "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') "
        "AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY name"
    )
    tables = [table for (table,) in rows]
    if name not in tables:
        raise NotFoundError(
            f"{file} has no table {name!r}", hint=f"The file has these tables: {first_of(tables)}."
        )


def _reason(error: sqlite3.Error) -> str:
    return " ".join(str(error).split())
