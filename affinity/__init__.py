"""Ids, errors, the place of a key, and who holds a partition: what all other layers may rest on.

Every module of the package imports this one, so its names are resolved when they are first used.
"""

from __future__ import annotations

TYPE_CHECKING = False  # checkers take it as true; `typing` is not imported

if TYPE_CHECKING:
    from .assignment import assign as assign
    from .table import PartitionRow as PartitionRow, PartitionTable as PartitionTable
    from .versions import stamp as stamp

_HOMES = {
    "PartitionRow": ".table",
    "PartitionTable": ".table",
    "assign": ".assignment",
    "stamp": ".versions",
}

__all__ = ["PartitionRow", "PartitionTable", "assign", "stamp"]

if not TYPE_CHECKING:  # a checker that saw it would accept any misspelt name

    def __getattr__(name: str) -> object:
        import importlib

        if name not in _HOMES:
            raise AttributeError(f"module 'tidelog.affinity' has no attribute {name!r}")
        found = getattr(importlib.import_module(_HOMES[name], __name__), name)
        globals()[name] = found
        return found
