"""What is wrong with a store that is open."""

from __future__ import annotations

from ..engine.api.database import Database
from ..engine.upkeep.check import check_open_store


def check_database(database: Database) -> list[str]:
    """Return what is wrong with an open store, on disk and in memory; a sentence for each."""
    return check_open_store(database._store)
