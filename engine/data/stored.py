"""Keys and values as the overlay and LMDB hold them.

A full key is partition u32, namespace u32 (both big endian, so that a partition is one range),
then the user's encoded key.  A stored value is the user's value, then a trailer: flags u8,
epoch u32, counter u64, commit time i64 and a check, little endian.

Invariants:

- In memory the check is zero; a value gets it on its way into LMDB, so that a commit need not
  wait for it, and a value that is soon replaced never has one.
- The check makes ``crc32c(full key + stored value)`` zero, so the CRC of any number of pairs
  joined is zero too, and one call verifies a block (docs/decisions.md has figures).
- Flipping bits of key or value makes it non-zero: a wrong value is never taken for a right one.
- Flags are a mask.  A value with one that this version does not know is whole, and means something
  else than its bytes say: it is refused as of a later version, never read and never called damaged.
- A delete is a value with the flag ``TOMBSTONE``.  In the data file it is there for whatever older
  may still come, and for readers it is not there.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, repeat
from operator import add, getitem, itemgetter, xor
from typing import cast

from crc32c import crc32c

from ...affinity.errors import CorruptDataError, FormatVersionError

KEY_BYTES_MAX = 480
PREFIX_SIZE = 8
TRAILER_SIZE = 25
PENDING = 4
"""The internal namespace of prepared transactions without an outcome, and of settle lists."""
TOMBSTONE = 1
KNOWN_FLAGS = TOMBSTONE

StoredPair = tuple[bytes, bytes]
"""Full key and stored value."""

_PREFIX = struct.Struct(">II")
_TRAILER = struct.Struct("<BIQq4x")
_CRC = struct.Struct("<I")
CHECK_SIZE = _CRC.size

pack_prefix: Callable[[int, int], bytes] = _PREFIX.pack
pack_trailer: Callable[[int, int, int, int], bytes] = _TRAILER.pack
"""(flags, epoch, counter, commit time in microseconds) to a trailer without its check."""


def _zeroing_constant() -> int:
    """Return the constant that, xored with a CRC, gives the four bytes which make it zero.

    ``crc32c(le32(c ^ constant), c) == 0`` for every c: the four bytes meet the state ``~c``, so
    the outcome depends on their xor alone, and it is linear in it.
    """
    zero = crc32c(_CRC.pack(0xFFFFFFFF), 0)  # state and bytes cancel: the outcome of xor 0
    columns = [crc32c(_CRC.pack(0xFFFFFFFF ^ (1 << bit)), 0) ^ zero for bit in range(32)]
    basis: dict[int, tuple[int, int]] = {}
    for bit, column in enumerate(columns):
        source = 1 << bit
        while column:
            top = column.bit_length()
            if top not in basis:
                basis[top] = (column, source)
                break
            column ^= basis[top][0]
            source ^= basis[top][1]
    wanted, solution = zero, 0
    while wanted:
        column, source = basis[wanted.bit_length()]
        wanted ^= column
        solution ^= source
    return solution ^ 0xFFFFFFFF


_CHECK_XOR = _zeroing_constant()
_BODY = slice(None, -CHECK_SIZE)
NAMESPACE = slice(4, PREFIX_SIZE)
USER_KEY = slice(PREFIX_SIZE, None)
VALUE = slice(None, -TRAILER_SIZE)
FLAGS = -TRAILER_SIZE
TRAILER = slice(-TRAILER_SIZE, None)
COUNTER = (5, 13)
TIME = (13, 21)
"""Where in a trailer counter and commit time lie, each an integer of 64 bits."""

slice_of = cast("Callable[[bytes, slice], bytes]", getitem)
flags_of: Callable[[bytes], int] = itemgetter(FLAGS)
"""The flags of a stored value."""


def stored_value(value: bytes | None, epoch: int, counter: int, time: int) -> bytes:
    """Return the stored form of a value, or of a delete if it is None; without its check."""
    if value is None:
        return pack_trailer(TOMBSTONE, epoch, counter, time)
    return value + pack_trailer(0, epoch, counter, time)


def stored_run(
    values: Sequence[bytes | None], epoch: int, first: int, time: int
) -> Iterator[bytes]:
    """Return the stored forms of a partition's updates ``first``, ``first + 1``, ..."""
    counters = range(first, first + len(values))
    if None in values:
        return map(stored_value, values, repeat(epoch), counters, repeat(time))
    # The same without a turn of the interpreter per pair.
    trailers = map(pack_trailer, repeat(0), repeat(epoch), counters, repeat(time))
    return map(add, cast("Sequence[bytes]", values), trailers)


def checked(full_keys: Iterable[bytes], stored: Iterable[bytes]) -> list[bytes]:
    """Return stored values of keys with their checks, as they go into LMDB."""
    bodies = list(map(slice_of, stored, repeat(_BODY)))
    checks = map(xor, map(crc32c, map(add, full_keys, bodies)), repeat(_CHECK_XOR))
    return list(map(add, bodies, map(_CRC.pack, checks)))


def is_tombstone(stored: bytes) -> bool:
    """Tell whether a stored value says that the key is deleted."""
    return stored[FLAGS] == TOMBSTONE


def check_flags(full_key: bytes, stored: bytes) -> None:
    """Raise ``FormatVersionError`` for a value of the data file with a flag of a later version."""
    flags = stored[FLAGS]
    if flags & ~KNOWN_FLAGS:
        error = damage_at(full_key, f"a stored value has flags {flags:#04x}, of a later version")
        raise FormatVersionError(str(error), found=flags, supported=KNOWN_FLAGS)


def user_value(full_key: bytes, stored: bytes) -> bytes | None:
    """Return the user's value in a pair of the data file that was checked; None for a delete.

    Raises ``FormatVersionError`` for a flag of a later version.
    """
    if not stored[FLAGS]:
        return stored[VALUE]
    check_flags(full_key, stored)
    return None


def present(pairs: Iterable[StoredPair]) -> list[StoredPair]:
    """Return the pairs of the data file that are not deletes; raises as ``user_value`` does."""
    found = []
    for pair in pairs:
        if user_value(*pair) is not None:
            found.append(pair)
    return found


def version_of(stored: bytes) -> tuple[int, int, int]:
    """Return (epoch, counter, commit time in microseconds) of a stored value."""
    _, epoch, counter, time = _TRAILER.unpack_from(stored, len(stored) - TRAILER_SIZE)
    return epoch, counter, time


def check_pair(full_key: bytes, stored: bytes) -> None:
    """Raise ``CorruptDataError`` unless the pair is as it was written."""
    if crc32c(stored, crc32c(full_key)) or len(stored) < TRAILER_SIZE:
        raise damaged_pair(full_key)


def is_damaged(full_key: bytes, stored: bytes) -> bool:
    """Tell whether a pair is not as it was written."""
    return bool(crc32c(stored, crc32c(full_key))) or len(stored) < TRAILER_SIZE


def check_block(full_keys: Sequence[bytes], stored: Sequence[bytes]) -> None:
    """Raise ``CorruptDataError``, naming the key, unless all pairs are as they were written."""
    joined = b"".join(chain.from_iterable(zip(full_keys, stored, strict=True)))
    if not all(full_keys) or crc32c(joined):
        for pair in zip(full_keys, stored, strict=True):
            check_pair(*pair)
        raise CorruptDataError("a block of stored values does not match its checksums")


def damaged_pair(full_key: bytes) -> CorruptDataError:
    """Return the error for a pair that does not match its checksum."""
    return damage_at(full_key, "a stored value does not match its checksum")


def damage_at(full_key: bytes, what: str) -> CorruptDataError:
    """Return the error for damage at a full key; ``namespaces.named`` tells it in users' terms."""
    if len(full_key) >= PREFIX_SIZE:
        partition, namespace, key = split_key(full_key)
        where = f"namespace {namespace}, key {shown_key(key)} (partition {partition})"
    else:
        where = f"key {shown_key(full_key)}"
    error = CorruptDataError(f"{what}: {where}")
    error.full_key = full_key
    return error


def split_key(full_key: bytes) -> tuple[int, int, bytes]:
    """Return (partition, namespace, user key)."""
    partition, namespace = _PREFIX.unpack_from(full_key)
    return partition, namespace, full_key[PREFIX_SIZE:]


def shown_key(key: bytes) -> str:
    """Return a key as errors show it: text if it is some, else hex."""
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return f"0x{key.hex()}"
    return repr(text) if text.isprintable() else f"0x{key.hex()}"


def joined_trailers(stored: Iterable[bytes]) -> bytes:
    """Return the trailers of stored values, joined; every ``TRAILER_SIZE``-th byte is flags."""
    return b"".join(map(slice_of, stored, repeat(TRAILER)))


def xor_trailers(stored: Iterable[bytes]) -> int:
    """Return the xor of all trailers: the digest of a set of pairs, in any order.

    Each trailer holds the CRC of its pair, so a pair that is missing, doubled or changed shows.
    """
    return xor_joined(joined_trailers(stored))


def xor_joined(trailers: bytes) -> int:
    """Return the xor of trailers that are joined.

    The words are folded in halves as one big integer, which is C all the way.
    """
    count = len(trailers) // TRAILER_SIZE
    number = int.from_bytes(trailers, "little")
    bits = TRAILER_SIZE * 8
    while count > 1:
        low = count // 2
        high = count - low
        # The upper `low` words fall onto the lowest ones; an odd one in the middle stays.
        number = (number & ((1 << (high * bits)) - 1)) ^ (number >> (high * bits))
        count = high
    return number
