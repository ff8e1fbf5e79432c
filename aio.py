"""The store under Trio: the public name of ``tidelog.engine.aio``."""

from __future__ import annotations

from .engine.aio import (
    Database as Database,
    Reads as Reads,
    open as open,
    open_with as open_with,
)
from .engine.aio_maps import Items as Items, Map as Map
from .engine.aio_transactions import (
    Attempt as Attempt,
    Attempts as Attempts,
    Snapshot as Snapshot,
    Transaction as Transaction,
)
