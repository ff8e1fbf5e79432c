"""Update counters, locks and the validation of reads: the decisions of transactions.

Owns what makes transactions serializable, as pure modules: no disk, no thread, no clock.  The
commit path that drives them is in ``engine``.
"""

from __future__ import annotations

from .counter import PartitionUpdateCounter as PartitionUpdateCounter
