"""Moving partitions between members: in which order migrations are safe, what a copy has missed.

Owns the decisions, as pure modules: no disk, no thread, no clock.  Nothing runs a migration yet,
and nobody asks yet how a copy comes back.
"""

from __future__ import annotations

from .choosing import SupplyChoice as SupplyChoice, SupplyKind as SupplyKind, choose as choose
from .cycles import remove_cycles as remove_cycles
from .migration import Migration as Migration, MigrationType as MigrationType
from .planner import plan_migrations as plan_migrations
from .priority import prioritize as prioritize
