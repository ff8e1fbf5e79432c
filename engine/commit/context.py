"""What a group of commits may touch on its way: numbers, ids, overlay, locked keys, dropped maps.

Every entry is handed the one ``CommitContext`` of its store when its turn comes.  It refuses what
may not be committed, gives what is committed its numbers and ids, and turns it into a record.

Invariants:

- Everything here is used by the holder of the commit mutex only.
- ``standing`` is swapped in ``engine.commit`` alone; all others look at it.
- ``changing`` names what the holder of the mutex is in the middle of, and is None before the mutex
  is given up, unless the holder was interrupted halfway.

Left out: threads (``queue``), the log (``commit_log``), who calls all this (``committer``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgpack

from ...affinity.errors import DeadlineError, NotFoundError, ReadOnlyError, TidelogError
from ...checkpoints.replay import State
from ...tx.locks import LockTable
from ...wal.records import pack_record_header, put_encoder
from ..data.overlay import Overlay
from .standing import FIRST, LifeStep

T = TypeVar("T")

A_COMMIT = "a commit"
"""What ``changing`` says while a group, or a relaxed put, is on its way."""

CutPut = tuple[int, Callable[..., None], tuple[Any, ...]]
"""(where the frame of a relaxed put begins, what lets it take effect, with which arguments)."""


class LockedError(TidelogError):
    """A key to be written is locked by a pessimistic transaction; users never see this."""

    code = "TL-INT-001"


class AutomaticIds:
    """The automatic ids of one opening: eight bytes that it has alone, and a number from 1 on.

    ``outcomes`` tells what the eight bytes are.  Each number is given once, under the commit mutex;
    one whose commit does not reach the log is not given again.
    """

    __slots__ = ("first_in_flight", "last", "prefix")

    def __init__(self, prefix: bytes) -> None:
        self.prefix = prefix
        self.last = 0
        """The number of the newest one."""
        self.first_in_flight = 1
        """The first number of the group on its way into the log, or of the next one."""

    def reserve(self, count: int) -> int:
        """Return the first of the next ``count`` numbers."""
        first = self.last + 1
        self.last += count
        return first

    def new(self) -> bytes:
        """Return the next id."""
        self.last = number = self.last + 1
        return self.prefix + number.to_bytes(8, "big")

    def of(self, number: int) -> bytes:
        """Return the id with a number."""
        return self.prefix + number.to_bytes(8, "big")


class CommitContext:
    """What entries see of their store, and what they change."""

    def __init__(
        self,
        state: State,
        overlay: Overlay,
        ids: AutomaticIds,
        *,
        position: int,
        now: Callable[[], float],
        note_given_id: Callable[[bytes], None],
    ) -> None:
        self.state = state
        self.overlay = overlay
        self.ids = ids
        self.locks = LockTable()
        """Who holds which lock; threads that wait for one are the lock manager's."""
        self.dropped: dict[int, str] = {}
        """Maps that were dropped in this opening, id to name; whatever touched one is refused."""
        self.applied_position = position
        """The position of the log up to which everything is in the overlay."""
        self.standing = FIRST
        self.reason: str | None = None
        """Why nothing is written any more; None while it is."""
        self.ended: Callable[[], TidelogError] | None = None
        """What whoever comes gets once the store was closed, or belongs to another process."""
        self.changing: str | None = None
        self.cut_put: CutPut | None = None
        """A relaxed put that was interrupted, and may be in the log without an effect."""
        self.encode_put = put_encoder(ids.prefix)
        self.note_given_id = note_given_id
        self._now = now
        self._pack = msgpack.Packer().pack

    # -------------------------------------------------------------- what refuses a commit

    def stop(self, step: LifeStep, reason: str) -> None:
        """Write nothing any more, for a reason, unless there is one already."""
        self.reason, self.standing = self.reason or reason, self.standing.after[step]

    def refusal(self) -> TidelogError:
        """Return the error for a write to a store that has stopped writing."""
        if self.ended is not None:
            return self.ended()
        if self.standing.broken:
            return ReadOnlyError(
                f"{self.reason}: nothing is written any more",
                hint="Close the store and open it again; nothing that was acknowledged is lost.",
            )
        return ReadOnlyError(
            self.reason or "the store has stopped writing",
            hint="Check the disk; close the store, open it again, and ask `db.outcome` "
            "about commits whose outcome is unknown.",
        )

    def check_deadline(self, deadline: float) -> None:
        """Raise ``DeadlineError`` if a deadline has passed."""
        if self._now() > deadline:
            raise DeadlineError("the deadline passed before the commit began")

    def check_dropped(self, namespaces: Iterable[int]) -> None:
        """Raise ``NotFoundError`` if one of some maps has been dropped."""
        for number in namespaces:
            if number in self.dropped:
                raise self.was_dropped(number)

    def was_dropped(self, number: int) -> NotFoundError:
        """Return the error for a commit that touched a map which is no longer there."""
        return NotFoundError(
            f"the map {self.dropped[number]!r} was dropped before the commit, which had no effect",
            hint="Ask `db.map` for a new one.",
        )

    def locked(self, owner: int, full_keys: Iterable[bytes]) -> LockedError | None:
        """Return the error for keys that others than ``owner`` have locked, None if none is."""
        if self.locks.would_block(owner, full_keys) is None:
            return None
        return LockedError("a key is locked")

    def name_of(self, number: int) -> str:
        """Return what to call a map by its id, also one that was dropped."""
        record = self.state.namespaces.get(number)
        if record is not None:
            return record.name
        return self.dropped.get(number, f"namespace {number}")

    # -------------------------------------------------------------- what is changed, and how

    def change(
        self, what: str, work: Callable[[], T], restore: Callable[[BaseException], None]
    ) -> T:
        """Do ``work``, which changes ``what``, and return its result.

        ``restore`` makes good whatever an exception has cut short; if it is cut short itself, the
        next holder of the mutex stops the store.
        """
        # What somebody else has left unfinished stays marked: a finalizer may come here behind it.
        before, self.changing = self.changing, what
        try:
            result = work()
        except BaseException as error:
            restore(error)
            self.changing = before
            raise
        self.changing = before
        return result

    def note_locks(self) -> None:
        """Look whether anybody holds a lock now."""
        self.standing = self.standing.after["unlock" if self.locks.idle else "lock"]

    # -------------------------------------------------------------- what makes a record

    def tx_record(self, fields: tuple[object, ...]) -> bytes:
        """Return a TX record with these fields."""
        body = self._pack(fields)
        return pack_record_header(len(body), 1, 0) + body
