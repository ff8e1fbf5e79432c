"""Tidelog: an event-sourced, transactional key-value store whose log is the truth.

    import tidelog

    with tidelog.open("shop.tl") as db:
        stock = db.map("stock", key=tidelog.codecs.Str, value=tidelog.codecs.Msgpack)
        stock["apples"] = 3

This is the public face and nothing else.  Names are resolved when first used, so that importing
the package costs one module; they are resolved by absolute name, so that a second import of this
file under another name (a test runner may do that) finds the same classes.
"""

TYPE_CHECKING = False  # checkers take it as true; `typing` is not imported
__version__ = "0.1.0"

if TYPE_CHECKING:
    from . import aio as aio, codecs as codecs, errors as errors
    from .affinity.errors import TidelogError as TidelogError
    from .engine.api.database import Database as Database
    from .engine.api.maps import Map as Map
    from .engine.api.open import memory as memory, open as open
    from .engine.api.read_only import ReadOnlyDatabase as ReadOnlyDatabase
    from .engine.api.snapshots import Snapshot as Snapshot
    from .engine.api.transactions import Transaction as Transaction
    from .engine.client.blocking import ClusterDatabase as ClusterDatabase, connect as connect

_MODULES = ("aio", "codecs", "errors")
_OWNERS = {
    "ClusterDatabase": "tidelog.engine.client.blocking",
    "Database": "tidelog.engine.api.database",
    "Map": "tidelog.engine.api.maps",
    "ReadOnlyDatabase": "tidelog.engine.api.read_only",
    "Snapshot": "tidelog.engine.api.snapshots",
    "TidelogError": "tidelog.affinity.errors",
    "Transaction": "tidelog.engine.api.transactions",
    "connect": "tidelog.engine.client.blocking",
    "memory": "tidelog.engine.api.open",
    "open": "tidelog.engine.api.open",
}

__all__ = [
    "ClusterDatabase",
    "Database",
    "Map",
    "ReadOnlyDatabase",
    "Snapshot",
    "TidelogError",
    "Transaction",
    "__version__",
    "aio",
    "codecs",
    "connect",
    "errors",
    "memory",
    "open",
]

if not TYPE_CHECKING:  # a checker that saw it would accept any misspelt name

    def __getattr__(name: str) -> object:
        import importlib

        if name in _MODULES:
            found = importlib.import_module(f"tidelog.{name}")
        elif name in _OWNERS:
            found = getattr(importlib.import_module(_OWNERS[name]), name)
        else:
            raise AttributeError(f"module 'tidelog' has no attribute {name!r}")
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return sorted(__all__)
