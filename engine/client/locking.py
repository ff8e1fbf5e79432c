"""The locks of a pessimistic transaction, as its client asks for them, without I/O.

The member that gives the first lock keeps the transaction: it is asked for all others, over the
same connection.

Invariants:

- What is locked is asked for once.
- Who may have given the first lock is asked for the next one, also if nobody waited for its answer:
  no two keep a transaction.
- With that member, or the connection to it, all locks are gone: ``RolledBackError``.

Left out: what members do (``engine.node.open_transactions``), and what is read (``changes``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from typing import Any

from ...affinity.errors import DeadlineError, RolledBackError, TidelogError
from ...affinity.partitions import partition_of, partitions_of
from ..data.namespaces import Namespace
from .lateness import advice_in, late_hint, told_error
from .reads import FoundColumns, got
from .routing import (
    COMING_S_MAX,
    PAUSE_S,
    REMAP,
    WAIT,
    AnswerLostError,
    Ask,
    Cluster,
    Failed,
    Job,
    Listen,
    Pause,
    Quiet,
    Steps,
    Value,
    is_there,
    served,
)

AGE_BYTES = 6
"""The first bytes of an id, which tell its time."""
KEYS_MAX = 10_000
"""Keys that are asked for at once."""
LOCK_TIMEOUT_S = 10.0
"""Seconds that a lock is waited for, if the transaction does not say; as in a store."""


class ClientLocks:
    """What one transaction has locked."""

    def __init__(
        self, cluster: Cluster, name: bytes, timeout: float | None, ends: float | None
    ) -> None:
        """``name`` is an id that tells its time; ``ends`` is the deadline of the transaction."""
        self.name = name
        self.member: bytes | None = None
        """Who keeps the transaction; None before its first lock."""
        self._tried: bytes | None = None
        """Who was asked last for a first lock that nobody waited for any more: that may keep it."""
        self.asked: set[bytes] = set()
        """Who was asked for a first lock: one of them may keep it, also if no answer came."""
        self._cluster = cluster
        self._wait_us = int((LOCK_TIMEOUT_S if timeout is None else timeout) * 1e6)
        self._ends = ends
        self._keys: dict[tuple[int, bytes], bool] = {}
        """Locked keys by map, and whether they are locked to be written."""
        self.to_write: Set[tuple[int, bytes]] = frozenset()
        """Keys that are locked to be written when they are read (``changes``)."""

    def __repr__(self) -> str:
        return f"<ClientLocks on {len(self._keys)} keys>"

    def follow(self, earlier: ClientLocks | None) -> None:
        """Be as old as an earlier attempt: else it would be the youngest of each circle again."""
        if earlier is not None:
            self.name = earlier.name[:AGE_BYTES] + self.name[AGE_BYTES:]

    def written(self, namespace: Namespace, keys: Iterable[bytes], until: float) -> Steps[None]:
        """Lock keys that are to be written."""
        yield from self._keys_locked(namespace, keys, True, False, until)

    def read(
        self, namespace: Namespace, keys: Sequence[bytes], until: float, *, exclusive: bool
    ) -> Steps[FoundColumns]:
        """Lock keys, and return what is there; ``exclusive`` if they are to be written, too."""
        found: dict[bytes, Sequence[Any]] = {}
        for alone in (True, False):
            some = [
                key for key in keys if (exclusive or (namespace.id, key) in self.to_write) is alone
            ]
            rows = yield from self._keys_locked(namespace, some, alone, True, until)
            found.update(rows)
        left = [key for key in keys if key not in found]
        if left:
            places = partitions_of(left, namespace.space)
            columns = yield from got(self._cluster, namespace.id, left, places, until)
            found.update(zip(left, zip(*columns, strict=True), strict=True))
        values, epochs, counters = zip(*(found[key] for key in keys), strict=True)
        return FoundColumns([*values], [*epochs], [*counters])

    def _keys_locked(
        self,
        namespace: Namespace,
        keys: Iterable[bytes],
        exclusive: bool,
        reads: bool,
        until: float,
    ) -> Steps[dict[bytes, Sequence[Any]]]:
        """Lock keys that are not yet; return what is there, as far as that was told."""
        number = namespace.id
        wanted = [key for key in dict.fromkeys(keys) if not self._has(number, key, exclusive)]
        found: dict[bytes, Sequence[Any]] = {}
        for first in range(0, len(wanted), KEYS_MAX):
            some = wanted[first : first + KEYS_MAX]
            place = partition_of(some[0], namespace.space)
            rows = yield from self._lock(place, namespace, some, exclusive, reads, [], until)
            self._keys.update(((number, key), exclusive) for key in some)
            found.update(zip(some, rows or (), strict=rows is not None))
        return found

    def _has(self, number: int, key: bytes, exclusive: bool) -> bool:
        has = self._keys.get((number, key))
        return has is not None and has >= exclusive

    def range(
        self, namespace: Namespace, low: bytes, high: bytes | None, until: float
    ) -> Steps[None]:
        """Keep others from writing to a range."""
        place = namespace.space.numbers[0]
        yield from self._lock(place, namespace, [], False, False, [low, high], until)

    def _lock(
        self,
        place: int,
        namespace: Namespace,
        keys: Sequence[bytes],
        exclusive: bool,
        reads: bool,
        bounds: Sequence[bytes | None],
        until: float,
    ) -> Steps[Sequence[Sequence[Any]] | None]:
        """Lock something; return what is at the keys if that is wanted, and was told."""
        event = yield Pause(0.0)
        left_us = None if self._ends is None else max(int((self._ends - event.now) * 1e6), 0)
        first = self.member is None
        asked = (
            self.name, first, namespace.id, keys, exclusive, reads, bounds, self._wait_us, left_us,
        )  # fmt: skip
        if self.member is None and self._tried is None:
            job = Job((place,), "lock", asked, until, once=True)
            try:
                answer = yield from self._noted(served(self._cluster, job))
            except AnswerLostError as error:
                raise _lost(str(error)) from None
            except TidelogError as error:
                if not isinstance(error, DeadlineError):
                    self._tried = None  # it has said that it keeps nothing
                raise
        else:
            answer = yield from self._asked(asked, until)
        rows: Sequence[Sequence[Any]] | None
        self.member, rows = answer
        return rows

    def _noted(self, steps: Steps[Any]) -> Steps[Any]:
        """Carry out steps, and note who is asked for a lock."""
        try:
            step = next(steps)
            while True:
                if isinstance(step, Ask) and step.operation == "lock":
                    self.asked.add(step.member)
                    self._tried = step.member
                step = steps.send((yield step))
        except StopIteration as end:
            return end.value

    def _asked(self, asked: Sequence[object], until: float) -> Steps[Any]:
        """Ask who keeps the transaction, or may."""
        member = self.member or self._tried
        assert member is not None
        pause = PAUSE_S
        while True:
            event = yield Ask(member, "lock", asked, until)
            while type(event) is Quiet:
                if event.now >= until:
                    raise DeadlineError(
                        "no answer to a lock within the time that was given",
                        hint=late_hint("look at the members"),
                    )
                if not (yield from is_there(self._cluster, member, until, event.now)):
                    raise _lost("the member that kept it has gone")
                event = yield Listen(member, until)
            if type(event) is Value:
                return event.value
            if not isinstance(event, Failed):
                raise _lost(getattr(event, "reason", "it was not reached"))
            if event.code not in (REMAP, WAIT):
                raise told_error(event.code, event.message, event.fields)
            if event.now >= until:
                raise DeadlineError(
                    f"a lock was not there within the time that was given: {event.message}",
                    hint=late_hint("look at the members", advice_in(event.fields)),
                )
            yield Pause(min(pause, until - event.now))
            pause = min(2 * pause, COMING_S_MAX)


def _lost(why: str) -> RolledBackError:
    return RolledBackError(f"the locks of the transaction are gone with its connection: {why}")
