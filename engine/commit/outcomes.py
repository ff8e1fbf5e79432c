"""What became of a transaction: answered from an internal map, or from the log.

The outcome of an id that the caller gave is an entry of the internal namespace 1, in the
partition that the id hashes to, written by the very transaction it is about: it is logged,
numbered and recovered like any data.  Automatic ids are looked up in the log.

Entries expire after ``RETENTION_SECONDS`` or beyond ``limits.outcomes``, by logged deletes.  The
time that counts is one during which the store was open, by the steady clock: whatever is done to
the other one, no entry goes early.  One more entry, the *horizon*, tells how new those were that
went.

Ids tell when they were given out, to the millisecond, and no commit under an id is older than that.
So what is found nowhere never took effect if it is younger than everything that is gone:

=== ============= ======== ================== =================================================
      bytes 0-5   6-7      8-15               carried by
=== ============= ======== ================== =================================================
 a   milliseconds random   a number           automatic ids; the milliseconds are those of the open
 b   milliseconds 8, store bits 100, random   ids of ``db.new_id``, UUIDs of version 8
 c   milliseconds 8, store bits 101, random   automatic ids of a cluster's clients, such UUIDs, too
=== ============= ======== ================== =================================================
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum
from typing import Literal, NamedTuple, TypeVar

import msgpack

from ...affinity.errors import (
    CorruptDataError,
    CorruptLogError,
    HistoryTruncatedError,
    UsageError,
)
from ...affinity.partitions import Space, partition_of
from ..data.namespaces import OUTCOMES
from ..data.stored import pack_prefix

Outcome = Literal["committed", "rolled_back", "pending", "too_old"]

RETENTION_SECONDS = 24 * 3600
SWEEP_SECONDS = 600.0
LOOK_ATTEMPTS = 5
"""Looks into a log that loses segments meanwhile, before that is an error."""

CLOCKS_APART = 60_000_000
"""Microseconds by which clocks of the clients and members of a cluster may differ.

An id has the clock of its client, and what it is compared with that of a member.
"""

HORIZON_ID = b"tidelog.horizon."
"""The id of the horizon, which no transaction may have."""

_HALF = 8

T = TypeVar("T")
_EMPTY = 1 << 62
_NUMBERS = 1 << 48
_OWN = 0x20
_TIME_MAX = (1 << 48) - 1


def home_of(tx_id: bytes, partitions: int) -> int:
    """Return the partition that holds the outcome of an id that the caller gave.

    Internal namespaces lie in the first space, which has so many partitions.
    """
    return partition_of(tx_id, Space(0, partitions))


def _milliseconds(time: int) -> bytes:
    return min(max(time // 1000, 0), _TIME_MAX).to_bytes(6, "big")


def automatic_prefix(time: int, fresh: bytes) -> bytes:
    """Return the first half of the automatic ids of an opening: its time, and two fresh bytes."""
    return _milliseconds(time) + fresh[:2]


def dated_id(time: int, fresh: bytes, store_id: bytes, *, given: bool = True) -> bytes:
    """Return an id from its time and 16 fresh bytes: to be given, or of a client's own commit."""
    kind = 0x80 if given else 0x80 | _OWN
    mark = bytes((0x80 | store_id[0] & 0x0F, store_id[1], kind | fresh[8] & 0x1F))
    return _milliseconds(time) + mark + fresh[9:]


def empty_id(prefix: bytes, number: int) -> bytes:
    """Return the automatic id of a transaction that wrote nothing, of which no log knows."""
    return prefix + (_EMPTY | number).to_bytes(8, "big")


def check_receipt_home(home: int | None, partitions: int) -> None:
    """Raise ``UsageError`` for what cannot be the ``home`` of a receipt."""
    if home is not None and (type(home) is not int or home not in range(partitions)):
        raise UsageError(
            f"home={home!r} is not one of the {partitions} partitions, 0 to {partitions - 1}",
            hint="Give the `home` of the receipt, or of the error, that has the id.",
        )


def is_automatic(tx_id: bytes) -> bool:
    """Tell whether an id has the form of automatic ones: no number gets that large."""
    return number_of(tx_id) & ~_EMPTY < _NUMBERS


def is_dated(tx_id: bytes, store_id: bytes) -> bool:
    """Tell whether an id has the form of those that ``dated_id`` makes for a store."""
    ours = tx_id[6] & 0x0F == store_id[0] & 0x0F and tx_id[7] == store_id[1]
    return ours and tx_id[6] & 0xF0 == 0x80 and tx_id[_HALF] & 0xC0 == 0x80


def is_of_client(tx_id: bytes, store_id: bytes) -> bool:
    """Tell whether a client has made an id for a commit of its own, that nobody gave."""
    return is_dated(tx_id, store_id) and tx_id[_HALF] & _OWN > 0


def number_of(tx_id: bytes) -> int:
    """Return the number of an automatic id."""
    return int.from_bytes(tx_id[_HALF:], "big")


def born(tx_id: bytes, store_id: bytes) -> int | None:
    """Return a time that no commit under an id is older than; None if the id does not tell."""
    if is_automatic(tx_id) or is_dated(tx_id, store_id):
        return int.from_bytes(tx_id[:6], "big") * 1000
    return None


def looked_through(look: Callable[[], T]) -> T:
    """Return ``look()``, which reads a log that may lose segments meanwhile.

    A checkpoint may drop a segment that is about to be read, or one between that and the last one:
    that looks like damage, and is looked at again.  Raises what the last look does.
    """
    for _ in range(LOOK_ATTEMPTS - 1):
        with suppress(HistoryTruncatedError, CorruptLogError):
            return look()
    return look()


def outcome_key(tx_id: bytes, partitions: int) -> bytes:
    """Return the full key of an outcome."""
    return pack_prefix(home_of(tx_id, partitions), OUTCOMES) + tx_id


class Kind(IntEnum):
    """What an entry says of its transaction."""

    COMMITTED = 1
    REFUSED = 2


class OutcomeEntry(NamedTuple):
    """What is kept of a transaction under an id that the caller gave.

    ``time`` is about that of its commit, in microseconds; ``attempt`` the try that ended it;
    ``numbers`` are (partition, first, count) of its updates, if they were known by then.
    """

    kind: Kind
    time: int
    attempt: int = 1
    numbers: tuple[tuple[int, int, int], ...] = ()


def committed(time: int) -> bytes:
    """Return the value of the entry of a transaction that commits at about ``time``."""
    return encode_outcome(OutcomeEntry(Kind.COMMITTED, time))


def encode_outcome(entry: OutcomeEntry) -> bytes:
    """Return the value of an entry."""
    flat = [number for row in entry.numbers for number in row]
    data: bytes = msgpack.packb((entry.kind, entry.time, entry.attempt, flat))
    return data


def decode_outcome(data: bytes) -> OutcomeEntry:
    """Return the entry in a value; later versions may have appended to it.

    Raises ``CorruptDataError`` for what is not one.
    """
    try:
        kind, time, attempt, flat = msgpack.unpackb(data)[:4]
        if {type(time), type(attempt), type(sum(flat))} != {int}:
            raise ValueError(f"{time!r}, {attempt!r}, {flat!r} are not numbers")
        numbers = tuple(zip(flat[::3], flat[1::3], flat[2::3], strict=True))
        return OutcomeEntry(Kind(kind), time, attempt, numbers)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise CorruptDataError(f"the outcome of a transaction does not decode: {error}") from None
