"""Which partition a key lives in: pure, and fixed for the life of a store.

The partitions of a store are divided into *spaces*; each map has its keys in one of them.  The map
takes no part in the hash, so equal keys of two maps of a space are neighbours, and a transaction
over them has one participant.

Invariants:

- Spaces follow one another from partition 0 on, without a gap.  A store grows by whole spaces, at
  the end: a key never moves.
- Nobody else computes the partition of a key, but for closures in which a call more was measured
  to cost too much (``tests/engine/test_places.py`` lists them, and sees that all agree).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from operator import add, mod
from typing import NamedTuple

import mmh3

PARTITIONS_MAX = 32_768


class Space(NamedTuple):
    """The partitions ``first`` to ``first + partitions - 1``, each with so many backups."""

    first: int
    partitions: int
    backups: int = 0

    @property
    def end(self) -> int:
        """The number behind that of its last partition."""
        return self.first + self.partitions

    @property
    def numbers(self) -> range:
        """The numbers of its partitions."""
        return range(self.first, self.end)


def one_space(partitions: int) -> tuple[Space, ...]:
    """Return the spaces of a store that no cluster owns: one, with all its partitions."""
    return (Space(0, partitions),)


def check_spaces(spaces: Sequence[Space], partitions: int) -> None:
    """Raise ``ValueError`` unless spaces divide so many partitions among themselves."""
    following = 0
    for space in spaces:
        if space.first != following or space.partitions < 1 or space.backups < 0:
            raise ValueError(f"{space!r} does not begin at partition {following}, or is empty")
        following += space.partitions
    if following != partitions:
        raise ValueError(f"spaces of {following} partitions in a store of {partitions}")


def partition_of(key: bytes, space: Space) -> int:
    """Return the partition of an encoded key: 32-bit murmur3 with seed 0, modulo, in its space."""
    return space.first + mmh3.hash(key, 0, False) % space.partitions


def partitions_of(keys: Iterable[bytes], space: Space) -> list[int]:
    """Return the partitions of many keys, in half the time."""
    places = map(mod, map(mmh3.hash, keys, repeat(0), repeat(False)), repeat(space.partitions))
    return list(map(add, places, repeat(space.first)) if space.first else places)
