"""What became of a transaction: answered from an internal map, or from the log.

The outcome of an id that the caller gave is an entry of the internal namespace 1, in the
partition that the id hashes to, written by the very transaction it is about: it is logged,
numbered and recovered like any data.  Automatic ids are looked up in the log.

Entries expire after ``RETENTION_SECONDS`` or beyond ``ENTRIES_MAX``, by logged deletes.
"""

from __future__ import annotations

from typing import Literal

import msgpack

from ..affinity.errors import CorruptDataError
from ..affinity.partitions import partition_of
from .namespaces import OUTCOMES
from .stored import pack_prefix

Outcome = Literal["committed", "rolled_back", "pending", "too_old"]

RETENTION_SECONDS = 24 * 3600
ENTRIES_MAX = 1_000_000
SWEEP_SECONDS = 600.0
SWEEP_BATCH = 1000

_COMMITTED = 1


def home_of(tx_id: bytes, partitions: int) -> int:
    """Return the partition that holds the outcome of an id that the caller gave."""
    return partition_of(tx_id, partitions)


def outcome_key(tx_id: bytes, partitions: int) -> bytes:
    """Return the full key of an outcome."""
    return pack_prefix(home_of(tx_id, partitions), OUTCOMES) + tx_id


def encode_outcome(time: int) -> bytes:
    """Return the value of the entry of a transaction that commits at about ``time``."""
    data: bytes = msgpack.packb((_COMMITTED, time))
    return data


def decode_outcome(data: bytes) -> int:
    """Return the time in an entry, in microseconds."""
    try:
        kind, time = msgpack.unpackb(data)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise CorruptDataError(f"the outcome of a transaction does not decode: {error}") from error
    if kind != _COMMITTED or type(time) is not int:
        raise CorruptDataError(f"the outcome of a transaction is {kind!r}, {time!r}")
    return time
