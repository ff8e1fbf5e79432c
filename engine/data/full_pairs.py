"""Stored pairs of a partition on their way into a full copy of it: many of them in one string.

    lengths   of key, value, key, value, ..., then their CRC-32C: u32, little endian
    data      key, value, key, value, ... joined

Invariants:

- Every value has its check, so one CRC tells whether all of ``data`` is as it was written; where
  one item ends and the next begins is told by the lengths, which have a CRC of their own.
- What has arrived is taken only if both are right, its keys ascend and are of the partition, and no
  value has a flag of a later version.
- A tally tells whether pairs are the same that others are: one that is missing, doubled or changed
  shows.  Deletes are counted apart, as in the mark of a partition.

Left out: messages (``engine.replication.returning``), and the data file (``flush``).
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, compress
from operator import itemgetter, lt, not_
from typing import NamedTuple

from crc32c import crc32c

from .stored import (
    KEY_BYTES_MAX,
    KNOWN_FLAGS,
    NAMESPACE,
    PREFIX_SIZE,
    TRAILER_SIZE,
    StoredPair,
    checked,
    joined_trailers,
    pack_prefix,
    xor_joined,
)

_LENGTH = _CHECK = 4
_FLAGS = bytes(range(KNOWN_FLAGS + 1))


class WrongPairsError(ValueError):
    """What has arrived is not pairs of the partition, in order and as they were written."""


class PackedPairs(NamedTuple):
    """Stored pairs of one partition, in the order of their full keys."""

    lengths: bytes
    data: bytes

    @property
    def size(self) -> int:
        """How many bytes they take."""
        return len(self.lengths) + len(self.data)


class PairTally(NamedTuple):
    """How many values there are, how many deletes beside them, and the xor of the values' trailers.

    Trailers have the checks of their pairs in them.
    """

    live: int = 0
    tombstones: int = 0
    digest: int = 0

    def plus(self, other: PairTally) -> PairTally:
        """Return the tally of these pairs and of others."""
        return PairTally(
            self.live + other.live, self.tombstones + other.tombstones, self.digest ^ other.digest
        )


def tally_of(stored: Sequence[bytes]) -> PairTally:
    """Return the tally of pairs, by their stored values with checks."""
    trailers = joined_trailers(stored)
    live = trailers[::TRAILER_SIZE].count(0)
    if live < len(stored):
        trailers = joined_trailers(living(stored, stored))
    return PairTally(live, len(stored) - live, xor_joined(trailers))


def living(stored: Sequence[bytes], of: Sequence[bytes]) -> Sequence[bytes]:
    """Return those items of a column that belong to values, and not to deletes."""
    flags = _flags_in(stored)
    return of if flags.count(0) == len(flags) else list(compress(of, map(not_, flags)))


def _flags_in(stored: Sequence[bytes]) -> bytes:
    return joined_trailers(stored)[::TRAILER_SIZE]


def packed(pairs: Sequence[StoredPair]) -> tuple[PackedPairs, PairTally]:
    """Return pairs as they travel, and their tally.

    Those of the overlay have no check yet, and get it here.
    """
    data = b"".join(chain.from_iterable(pairs))
    values = list(map(itemgetter(1), pairs))
    if crc32c(data):
        keys = [key for key, _ in pairs]
        values = checked(keys, values)
        pairs = list(zip(keys, values, strict=True))
        data = b"".join(chain.from_iterable(pairs))
    lengths = struct.pack(f"<{2 * len(pairs)}I", *map(len, chain.from_iterable(pairs)))
    check = crc32c(lengths).to_bytes(_CHECK, "little")
    return PackedPairs(lengths + check, data), tally_of(values)


def unpacked(
    partition: int,
    pieces: Iterable[PackedPairs],
    lives: Callable[[int], bool],
) -> tuple[list[bytes], list[bytes], PairTally]:
    """Return full keys and stored values of pieces, and the tally of pairs that were left out.

    These are of namespaces for which ``lives`` is false.  Raises ``WrongPairsError`` if any pair is
    not whole; that all lie behind what came before is for the data file to say.
    """
    keys: list[bytes] = []
    stored: list[bytes] = []
    for piece in pieces:
        more_keys, more = _unpacked(piece)
        _check_keys(partition, keys[-1:] + more_keys)
        keys += more_keys
        stored += more
    left_out = PairTally()
    for first, last in reversed(list(_namespaces_in(keys))):
        if not lives(int.from_bytes(keys[first][NAMESPACE], "big")):
            left_out = left_out.plus(tally_of(stored[first:last]))
            del keys[first:last], stored[first:last]
    return keys, stored, left_out


def _unpacked(piece: PackedPairs) -> tuple[list[bytes], list[bytes]]:
    lengths, data = piece.lengths[:-_CHECK], piece.data
    count, rest = divmod(len(lengths), 2 * _LENGTH)
    if rest or not count or crc32c(lengths) != int.from_bytes(piece.lengths[-_CHECK:], "little"):
        raise WrongPairsError(f"{len(piece.lengths)} bytes are not the lengths of pairs")
    sizes = struct.unpack(f"<{2 * count}I", lengths)
    if sum(sizes) != len(data):
        raise WrongPairsError(f"{len(data)} bytes of pairs, whose lengths make {sum(sizes)}")
    if min(sizes[1::2]) < TRAILER_SIZE or crc32c(data):
        raise WrongPairsError("a pair does not match its checksum")
    # All cut in one call; not by a function of the module, which keeps what it has compiled.
    items = struct.Struct("%ds" * len(sizes) % sizes).unpack(data)
    keys, stored = list(items[::2]), list(items[1::2])
    unknown = _flags_in(stored).translate(None, _FLAGS)
    if unknown:
        raise WrongPairsError(f"a stored value has flags {unknown[0]:#04x}, of a later version")
    return keys, stored


def _check_keys(partition: int, keys: Sequence[bytes]) -> None:
    sizes = set(map(len, keys))
    if min(sizes) < PREFIX_SIZE or max(sizes) > PREFIX_SIZE + KEY_BYTES_MAX:
        raise WrongPairsError(f"a full key of {min(sizes)} bytes, or of {max(sizes)}")
    if not all(map(lt, keys, keys[1:])):
        raise WrongPairsError("keys that do not ascend")
    if keys[0] < pack_prefix(partition, 1) or keys[-1] >= pack_prefix(partition + 1, 0):
        raise WrongPairsError(f"keys that are not all of the data of partition {partition}")


def _namespaces_in(keys: Sequence[bytes]) -> Iterator[tuple[int, int]]:
    """Yield where each namespace begins and ends among full keys of a partition, in order."""
    first = 0
    while first < len(keys):
        prefix = keys[first][:PREFIX_SIZE]
        behind = (int.from_bytes(prefix, "big") + 1).to_bytes(PREFIX_SIZE, "big")
        last = bisect_left(keys, behind, first)
        yield first, last
        first = last
