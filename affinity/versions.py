"""Versions of rows: their bounds, and the stamp that says whether all of a store are equal.

A version counts the changes of the row of one partition, from 0.  It never falls.  The stamp tells
equal from unequal and has no order; what orders whole tables is the sum of their versions.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import mmh3

from .errors import PlacementError

VERSION_MAX = 2**31 - 1

_STAMP_SEED = 0x01000193


def check_version(version: int, partition: int) -> None:
    """Raise ``PlacementError`` for what is not a whole number from 0 to 2**31 - 1."""
    if type(version) is not int or not 0 <= version <= VERSION_MAX:
        raise PlacementError(
            f"the version of partition {partition} is {version!r}",
            hint=f"A version is a whole number from 0 to {VERSION_MAX}.",
        )


def stamp(versions: Sequence[int]) -> int:
    """Return the signed 64-bit stamp of the versions of all partitions, in order of number.

    The versions are written as big-endian 32-bit integers, partition p at byte 4 * p.  The stamp is
    the first half of their 128-bit murmur3 (the variant for 64-bit machines) with a fixed seed, as
    in Hazelcast's partition table.  ``PlacementError`` names the partition of a version that is out
    of bounds.
    """
    for partition, version in enumerate(versions):
        check_version(version, partition)
    written = struct.pack(f">{len(versions)}i", *versions)
    return mmh3.hash64(written, seed=_STAMP_SEED, x64arch=True, signed=True)[0]
