"""Moving partitions between members: what a migration is, and in which order migrations are safe.

Owns the decisions, as pure modules: no disk, no thread, no clock.  Nothing runs a migration yet.
"""

from __future__ import annotations

from .cycles import remove_cycles as remove_cycles
from .migration import Migration as Migration, MigrationType as MigrationType
from .planner import plan_migrations as plan_migrations
from .priority import prioritize as prioritize
