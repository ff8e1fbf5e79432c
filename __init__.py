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
    from .engine.database import Database as Database
    from .engine.maps import Map as Map
    from .engine.open import open as open
    from .engine.reading import ReadOnlyDatabase as ReadOnlyDatabase
    from .engine.snapshots import Snapshot as Snapshot
    from .engine.transactions import Transaction as Transaction

_MODULES = ("aio", "codecs", "errors")
_OWNERS = {
    "Database": "tidelog.engine.database",
    "Map": "tidelog.engine.maps",
    "ReadOnlyDatabase": "tidelog.engine.reading",
    "Snapshot": "tidelog.engine.snapshots",
    "TidelogError": "tidelog.affinity.errors",
    "Transaction": "tidelog.engine.transactions",
    "open": "tidelog.engine.open",
}

__all__ = [
    "Database",
    "Map",
    "ReadOnlyDatabase",
    "Snapshot",
    "TidelogError",
    "Transaction",
    "__version__",
    "aio",
    "codecs",
    "errors",
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
    return sorted({*globals(), *__all__})
