"""What a client wants to commit: checked against what is there, numbered, answered.

A commit is checked when its group is made, in the order of the log: every version that it rests on
has to be so still, and nobody before it in its group may write there.

Invariants:

- All that a commit reads and writes is judged at one moment, and takes effect at that moment.
- An id that a user gave has an entry in the data of its home, written by its own transaction; a
  second commit under it is answered as the first one, and has no effect (T18).
- An id that was refused, since somebody asked for its outcome, commits no more under an attempt
  that was refused (T19).

Left out: which partitions this member serves (``partitions``), the log (``log``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, NamedTuple

from ...affinity.errors import (
    ConflictError,
    NotFoundError,
    RolledBackError,
    ServerError,
    TidelogError,
    UsageError,
)
from ...affinity.partitions import partitions_of
from ...checkpoints.replay import State
from ..commit import outcomes
from ..commit.context import CommitContext
from ..commit.entries import Commit, Entry, Receipt
from ..data.digests import RANGE_KEYS_MAX, range_digest
from ..data.namespaces import OUTCOMES, VALUE_BYTES_MAX
from ..data.overlay import View
from ..data.point_reads import read_stored
from ..data.scan import Range, scan
from ..data.stored import KEY_BYTES_MAX, VALUE, pack_prefix, shown_key, split_key, version_of
from ..data.updates import FewUpdates, Writes
from ..replication.streams import Streams
from .prepared import ClientCommit, GroupPart

log = logging.getLogger("tidelog.node")

ID_BYTES = 16
ATTEMPTS_END = 1 << 62
ABSENT = (0, 0)
"""The version of a key that is not there."""


class ReadVersion(NamedTuple):
    """A key that was read, and the version that it had."""

    partition: int
    full_key: bytes
    version: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRange:
    """A range that was scanned, and what was found there."""

    partitions: tuple[int, ...]
    wanted: Range
    count: int
    digest: bytes


class WantedCommit(NamedTuple):
    """A transaction as a client sends it."""

    tx_id: bytes
    attempt: int
    given: bytes | None
    """Its id, if a user gave that: its outcome is an entry of its home then."""
    tag: str | None
    reads: tuple[ReadVersion, ...]
    ranges: tuple[ReadRange, ...]
    writes: Writes
    epochs: tuple[tuple[int, int], ...]
    """Partitions, and the epochs in which the client has found them (T2)."""
    opened: bytes | None = None
    """The open transaction that has locked what this reads and writes."""

    def partitions(self) -> set[int]:
        """Return the partitions that it is about."""
        found = {write[0] for write in self.writes.values()}
        found.update(read.partition for read in self.reads)
        for one in self.ranges:
            found.update(one.partitions)
        return found

    def locked(self) -> set[int]:
        """Return the partitions in which an open transaction has locks: not for its outcome."""
        entries = {key: write for key, write in self.writes.items() if write[1] != OUTCOMES}
        return self._replace(writes=entries).partitions()


# ------------------------------------------------------------------ what arrives


def wanted_of(arguments: Sequence[Any], state: State, opened: bytes | None = None) -> WantedCommit:
    """Return what the arguments of a ``commit`` say, of what was ``opened`` before.

    ``UsageError`` for what is not a commit, ``NotFoundError`` for a map that is not there.
    """
    tx_id, attempt, given, tag, reads, ranges, writes, partitions, epochs = arguments
    check_id(tx_id)
    check_id(tx_id if opened is None else opened)
    if partitions and not 0 <= min(partitions) <= max(partitions) < state.partitions:
        raise not_understood("a partition that is not there")
    if not 0 < attempt < ATTEMPTS_END:
        raise not_understood(f"attempt {attempt} of a transaction")
    found: Writes = {}
    for number, keys, values in writes:
        places = places_of(state, number, keys)
        prefixes = {place: pack_prefix(place, number) for place in set(places)}
        for key, value, place in zip(keys, values, places, strict=True):
            if value is not None and (type(value) is not bytes or len(value) > VALUE_BYTES_MAX):
                raise not_understood("a value that is not bytes, or too long")
            found[prefixes[place] + key] = (place, number, key, value)
    if given:
        home = outcomes.home_of(tx_id, state.spaces[0].partitions)
        full_key = outcomes.outcome_key(tx_id, state.spaces[0].partitions)
        entry = outcomes.OutcomeEntry(outcomes.Kind.COMMITTED, state.time, attempt)
        found[full_key] = (home, OUTCOMES, tx_id, outcomes.encode_outcome(entry))
    wanted = WantedCommit(
        tx_id=tx_id,
        attempt=attempt,
        given=tx_id if given else None,
        tag=tag,
        reads=tuple(_reads_of(reads, state)),
        ranges=tuple(_range_of(row, state) for row in ranges),
        writes=found,
        epochs=tuple(zip(partitions, epochs, strict=True)),
        opened=opened,
    )
    if not wanted.partitions() <= set(partitions):
        raise not_understood("a commit without the epochs of its partitions")
    return wanted


def check_id(tx_id: bytes) -> None:
    """Raise ``UsageError`` for what is not the id of a transaction."""
    if len(tx_id) != ID_BYTES:
        raise not_understood(f"an id of a transaction is {ID_BYTES} bytes")


def places_of(state: State, number: int, keys: Sequence[bytes]) -> list[int]:
    """Return the partitions of keys of a map; raises for a map or keys that cannot be."""
    if keys and max(map(len, keys)) > KEY_BYTES_MAX:
        raise not_understood("a key that is too long")
    return partitions_of(keys, state.space_of(map_record(state, number)))


def map_record(state: State, number: int) -> Any:
    """Return the record of a map by its id; ``NotFoundError`` if there is none."""
    record = state.namespaces.get(number)
    if record is None:
        raise NotFoundError(
            f"the map with the id {number} was dropped before the request, which had no effect",
            hint="Ask `db.map` for a new one.",
        )
    return record


def range_of(number: int, low: bytes, high: bytes | None) -> Range:
    """Return the range of a map between two bounds, however long these are.

    No key is longer than ``KEY_BYTES_MAX``, so what is behind that in a bound tells nothing more.
    """
    return Range(namespace=number, start=_bound(low), stop=None if high is None else _bound(high))


def _bound(key: bytes) -> bytes:
    return key if len(key) <= KEY_BYTES_MAX else key[:KEY_BYTES_MAX] + b"\0"


def unexpected(error: Exception) -> TidelogError:
    """Return what a client is told of an error that is a mistake in the program of the member."""
    log.error(
        "node.request_failed: Tidelog: a request failed in a way that it should not: %r",
        error,
        exc_info=error,
        extra={"event": "node.request_failed"},
    )
    name = type(error).__name__
    return ServerError(f"the member failed at this request: {name}: {error}", server_code=name)


def not_understood(what: str) -> UsageError:
    """Return the error for a request that no client of this version sends."""
    return UsageError(
        f"a request cannot be understood: {what}",
        hint="Do client and member have the same version of tidelog?",
    )


def _reads_of(rows: Iterable[Any], state: State) -> Iterable[ReadVersion]:
    for number, keys, epochs, counters in rows:
        places = places_of(state, number, keys)
        for key, place, epoch, counter in zip(keys, places, epochs, counters, strict=True):
            yield ReadVersion(place, pack_prefix(place, number) + key, (epoch, counter))


def _range_of(row: Sequence[Any], state: State) -> ReadRange:
    number, partitions, low, high, count, digest = row
    space = state.space_of(map_record(state, number))
    if not set(partitions) <= set(space.numbers):
        raise not_understood("a range over partitions that its map has not")
    if not 0 <= count <= RANGE_KEYS_MAX:  # no more are looked at
        raise not_understood(f"a range of {count} keys")
    return ReadRange(
        partitions=tuple(partitions),
        wanted=range_of(number, low, high),
        count=count,
        digest=digest,
    )


# ------------------------------------------------------------------ the check


def commit_of(
    wanted: WantedCommit,
    context: CommitContext,
    answer: Callable[[], object],
    *,
    streams: Streams,
    near: tuple[bytes, int],
    part: GroupPart | None = None,
    check_epochs: Callable[[Iterable[tuple[int, int]]], None] = lambda _epochs: None,
) -> ClientCommit:
    """Return the commit to be queued; ``answer`` is called at its end, whatever that is.

    ``check_epochs`` raises for partitions that have another epoch by now.  ``part`` is what it is
    of a transaction of several groups.
    """

    def check(commit: Commit, group: Sequence[Entry]) -> None:
        try:
            judge(commit, group)
        except TidelogError:
            raise
        except Exception as error:  # one client's commit, not the log of all
            raise unexpected(error) from error

    def judge(commit: Commit, group: Sequence[Entry]) -> None:
        check_epochs(wanted.epochs)
        view = context.overlay.view
        if wanted.given is not None:
            commit.receipt = earlier_receipt(wanted.given, wanted.attempt, view, context)
            if commit.receipt is not None:
                return
        for read in wanted.reads:
            _check_read(read, view, group, context)
        for one in wanted.ranges:
            _check_range(one, view, group, context)

    commit = ClientCommit(
        FewUpdates(wanted.writes),
        streams,
        near,
        wanted.attempt,
        part,
        check=check,
        tx_id=wanted.tx_id,
        details=None if wanted.tag is None else {"tag": wanted.tag},
    )
    commit.then = commit.undo = answer
    return commit


def earlier_receipt(
    given: bytes, attempt: int, view: View, context: CommitContext
) -> Receipt | None:
    """Return the receipt of an earlier commit under a given id; raises for a refused attempt.

    None is under way: of one id there is one commit at a time (``committing``), or it has locks.
    """
    partitions = context.state.spaces[0].partitions
    home = outcomes.home_of(given, partitions)
    stored = read_stored(view, home, outcomes.outcome_key(given, partitions))
    if stored is None:
        return None
    entry = outcomes.decode_outcome(stored[VALUE])
    if entry.kind is outcomes.Kind.COMMITTED:
        return Receipt(given, 0, version_of(stored)[2], home)
    if entry.attempt >= attempt:
        error = RolledBackError(
            f"transaction {given.hex()} was refused: its outcome was asked for before it "
            "arrived, and the answer was that it has not committed",
            hint="Run it again, under the same id if you like.",
        )
        error.attempt = entry.attempt
        raise error
    return None


def _check_read(
    read: ReadVersion, view: View, group: Sequence[Entry], context: CommitContext
) -> None:
    for entry in group:
        if entry.changed({read.full_key}):
            raise lost(read.full_key, entry.tx_id, context)
    if version_at(view, read.partition, read.full_key) != read.version:
        raise lost(read.full_key, None, context)


def _check_range(
    one: ReadRange, view: View, group: Sequence[Entry], context: CommitContext
) -> None:
    low, high = one.wanted.start, one.wanted.stop
    for entry in group:
        for full_key in entry.full_keys():
            partition, number, key = split_key(full_key)
            if partition not in one.partitions or number != one.wanted.namespace:
                continue
            if low <= key and (high is None or key < high):
                raise lost(full_key, entry.tx_id, context)
    keys, epochs, counters = found_in(view, one.partitions, one.wanted, one.count + 1, context)
    if len(keys) != one.count or range_digest(keys, epochs, counters) != one.digest:
        name = context.name_of(one.wanted.namespace)
        raise ConflictError(
            f"a range of {name!r} that was read was changed by another transaction",
            namespace=name,
            key=None,
            winner=None,
        )


def found_in(
    view: View, partitions: Sequence[int], wanted: Range, most: int, context: CommitContext
) -> tuple[list[bytes], list[int], list[int]]:
    """Return keys and versions of a range, in order, ``most`` of them."""
    space = context.state.space_of(map_record(context.state, wanted.namespace))
    pairs = chain.from_iterable(scan(view, partitions, wanted))
    keys = [key for key, _ in islice(pairs, min(most, RANGE_KEYS_MAX + 1))]
    places = partitions_of(keys, space)
    versions = [
        version_at(view, place, pack_prefix(place, wanted.namespace) + key)
        for key, place in zip(keys, places, strict=True)
    ]
    return keys, [epoch for epoch, _ in versions], [counter for _, counter in versions]


def version_at(view: View, partition: int, full_key: bytes) -> tuple[int, int]:
    """Return the version of a key: epoch and counter of its value, 0 and 0 if there is none."""
    stored = read_stored(view, partition, full_key)
    return ABSENT if stored is None else version_of(stored)[:2]


def lost(full_key: bytes, winner: bytes | None, context: CommitContext) -> ConflictError:
    """Return the error for a key that was changed since it was read."""
    _, number, key = split_key(full_key)
    name = context.name_of(number)
    return ConflictError(
        f"key {shown_key(key)} of {name!r} was changed by another transaction",
        namespace=name,
        key=key,
        winner=winner,
    )
