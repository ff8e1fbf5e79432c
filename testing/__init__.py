"""Faulty, seeded twins of what an engine stands on, to test what it does when they fail.

``FaultyDisk``       a disk that loses power or reports errors at the operation it is told to
``MemoryKv``         a key-value environment on such a disk
``simulated``        an ``Environment`` of these, with time and background work moved by hand
``crash_points``     every disk that a power cut in a scenario may leave
``check_store``      what is wrong with a store: log, data file and counters against each other
``check_database``   the same for a store that is open, and what it has in memory
``open_with``        ``tidelog.open`` in such an environment
``SimulatedCrash``   what the power cut looks like to the engine
``History``          what clients did at the same time, and what they were told
``check``            whether a history is linearizable; the models are ``REGISTER`` and ``COUNTER``
``register_clients``  clients that use a map and record a history; so do ``counter_clients``
``ListAppends``      clients with transactions over lists; so ``SetAdds`` and ``BankTransfers``
``check_transactions``  whether recorded transactions are strictly serializable
``SimCluster``       a cluster of real members in such a world, with faults on demand
``World``            several nodes under Trio, with a network between them, decided by one seed
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..engine.api.open import open_with
from ..engine.upkeep.check import check_store
from .checks import check_database
from .crash import crash_points
from .cycles import check_transactions
from .disk import FaultyDisk
from .environment import simulated
from .histories import History
from .kv import MemoryKv
from .linear import UndecidedError, check
from .moves import COUNTER, REGISTER
from .plan import SimulatedCrash
from .transaction_clients import BankTransfers, ListAppends, SetAdds
from .workloads import counter_clients, register_clients

if TYPE_CHECKING:
    from .cluster import SimCluster
    from .world import World

__all__ = [
    "COUNTER",
    "REGISTER",
    "BankTransfers",
    "FaultyDisk",
    "History",
    "ListAppends",
    "MemoryKv",
    "SetAdds",
    "SimCluster",
    "SimulatedCrash",
    "UndecidedError",
    "World",
    "check",
    "check_database",
    "check_store",
    "check_transactions",
    "counter_clients",
    "crash_points",
    "open_with",
    "register_clients",
    "simulated",
]


if not TYPE_CHECKING:  # a checker that saw it would accept any misspelt name

    def __getattr__(name: str) -> object:
        """Load what stands on Trio when it is first asked for."""
        if name == "World":
            from .world import World

            return World
        if name == "SimCluster":
            from .cluster import SimCluster

            return SimCluster
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
