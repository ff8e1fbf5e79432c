"""The digest of a range: what tells a range of keys that was read from one that has changed.

It is made of the keys in order and their versions, epoch and counter, so that a key that came,
went or was written makes another one.  A range of more than ``RANGE_KEYS_MAX`` keys has none.
"""

from __future__ import annotations

from collections.abc import Sequence

import mmh3
import msgpack

RANGE_KEYS_MAX = 100_000


def range_digest(keys: Sequence[bytes], epochs: Sequence[int], counters: Sequence[int]) -> bytes:
    """Return the 16 bytes for the keys of a range, in order, and the versions of their values."""
    return mmh3.hash_bytes(msgpack.packb([list(keys), list(epochs), list(counters)]), 0)
