"""Stored pairs of a partition on their way into a full copy of it: many of them in one string.

    lengths   of key, value, key, value, ...: u32, little endian
    data      key, value, key, value, ... joined

Invariants:

- Every value has its check, so one CRC tells whether all of ``data`` is as it was written.
- What has arrived is taken only if its lengths fit, its keys ascend and are of the partition, no
  value has a flag of a later version, and each pair matches its check.
- A tally tells whether pairs are the same that others are: one that is missing, doubled or changed
  shows.  Deletes are counted apart, as in the mark of a partition.

Left out: messages (``engine.replication.returning``), and the data file (``flush``).
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain, compress, repeat
from operator import lt, not_
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
    flags_of,
    pack_prefix,
    slice_of,
    xor_trailers,
)

_LENGTH = 4
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
    live = living(stored, stored)
    return PairTally(len(live), len(stored) - len(live), xor_trailers(live))


def living(stored: Sequence[bytes], of: Sequence[bytes]) -> Sequence[bytes]:
    """Return those items of a column that belong to values, and not to deletes."""
    flags = bytes(map(flags_of, stored))
    return of if not any(flags) else list(compress(of, map(not_, flags)))


def packed(pairs: Sequence[StoredPair]) -> tuple[PackedPairs, PairTally]:
    """Return pairs as they travel, and their tally.

    Those of the overlay have no check yet, and get it here.
    """
    data = b"".join(chain.from_iterable(pairs))
    values = [value for _, value in pairs]
    if crc32c(data):
        keys = [key for key, _ in pairs]
        values = checked(keys, values)
        pairs = list(zip(keys, values, strict=True))
        data = b"".join(chain.from_iterable(pairs))
    lengths = struct.pack(f"<{2 * len(pairs)}I", *map(len, chain.from_iterable(pairs)))
    return PackedPairs(lengths, data), tally_of(values)


def unpacked(
    partition: int,
    pieces: Iterable[PackedPairs],
    lives: Callable[[int], bool],
    pause: Callable[[], object] = lambda: None,
) -> tuple[list[bytes], list[bytes], PairTally]:
    """Return full keys and stored values of pieces, and the tally of pairs that were left out.

    These are of namespaces for which ``lives`` is false.  ``pause`` is called behind each piece: it
    lets other threads have the interpreter.  Raises ``WrongPairsError`` if any pair
    is not whole; that all lie behind what came before is for the data file to say.
    """
    keys: list[bytes] = []
    stored: list[bytes] = []
    for piece in pieces:
        more_keys, more = _unpacked(piece)
        keys += more_keys
        stored += more
        pause()
    _check_keys(partition, keys)
    left_out = PairTally()
    for first, last in reversed(list(_namespaces_in(keys))):
        if not lives(int.from_bytes(keys[first][NAMESPACE], "big")):
            left_out = left_out.plus(tally_of(stored[first:last]))
            del keys[first:last], stored[first:last]
    return keys, stored, left_out


def _unpacked(piece: PackedPairs) -> tuple[list[bytes], list[bytes]]:
    lengths, data = piece
    count, rest = divmod(len(lengths), 2 * _LENGTH)
    if rest or not count:
        raise WrongPairsError(f"{len(lengths)} bytes are not the lengths of pairs")
    ends = list(accumulate(struct.unpack(f"<{2 * count}I", lengths), initial=0))
    if ends[-1] != len(data):
        raise WrongPairsError(f"{len(data)} bytes of pairs, whose lengths make {ends[-1]}")
    items = list(map(slice_of, repeat(data), map(slice, ends, ends[1:])))
    keys, stored = items[::2], items[1::2]
    if min(map(len, stored)) < TRAILER_SIZE or any(map(crc32c, stored, map(crc32c, keys))):
        raise WrongPairsError("a pair does not match its checksum")
    unknown = bytes(map(flags_of, stored)).translate(None, _FLAGS)
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
