"""Who is inside a transaction block of a store: threads, or tasks.

A write through a plain map there is a transaction of its own, which stays when the block rolls
back and is not seen in it.  Nearly always somebody forgot ``tx[map]``; so it is refused.

Invariants:

- A block counts from its beginning to the end of its transaction.
- Nothing here keeps a transaction alive: one that is lost, by Ctrl-C between two lines, counts
  no more.

Left out: who asks (``database``, ``relaxed``, ``aio``).
"""

from __future__ import annotations

import gc
from collections.abc import Hashable
from typing import Protocol
from weakref import ref

from ...affinity.errors import UsageError

_ALLOW = "`db.transaction(plain_writes=True)` allows what is to stand whatever becomes of it."


class Block(Protocol):
    """A transaction that is used in a block."""

    @property
    def is_open(self) -> bool:
        """Whether it has not ended yet."""


class Blocks(dict[Hashable, tuple["ref[Block]", ...]]):
    """The open transaction blocks of a store, by the thread or task that is inside.

    Empty if nobody is: a plain write looks at no more than that.
    """

    def enter(self, who: Hashable, block: Block) -> None:
        """Begin a block, inside of those that ``who`` is in already."""
        self[who] = (*self[who], ref(block)) if who in self else (ref(block),)

    def leave(self, who: Hashable, block: Block) -> None:
        """End a block; the others of ``who`` may end in any order."""
        found = self.pop(who, ())
        if len(found) > 1:
            self[who] = tuple(other for other in found if other() not in (None, block))

    def check_write(self, who: Hashable, name: str) -> None:
        """Raise ``UsageError`` for a write through the plain map of a name inside a block."""
        if self._is_inside(who):
            raise UsageError(
                f"a write to the map {name!r} inside a transaction block, but not through its "
                "transaction: a rollback would not undo it",
                hint=f"Write through `tx[map]`; {_ALLOW}",
            )

    def check_change(self, who: Hashable, what: str) -> None:
        """Raise ``UsageError`` for a change of the store, inside a block, that no ``tx`` makes."""
        if self._is_inside(who):
            raise UsageError(
                f"{what} inside a transaction block: a rollback would not undo it",
                hint=f"Do it before or behind the block; {_ALLOW}",
            )

    def _is_inside(self, who: Hashable) -> bool:
        if not self._counts(who):
            return False
        # One that an interrupt cut off from its block refers to itself through its maps.
        gc.collect()
        return self._counts(who)

    def _counts(self, who: Hashable) -> bool:
        blocks = [block() for block in self.get(who, ())]
        return any(block is not None and block.is_open for block in blocks)
