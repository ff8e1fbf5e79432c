"""Forks of a process that has stores open: what its child may not inherit.

The child has one thread, the one that forked, and copies of all else: locks that are held by
threads it does not have, descriptors that keep the parent's locks alive, mappings that it shares
with the parent.  Each module that owns such a thing says with ``os.register_at_fork`` what becomes
of it in the child; this one has what they share.

Invariants:

- A child waits for no lock that was held at the fork, and writes nothing of its parent's stores.
- No fork falls into a block of ``no_fork``.  It is short: a fork waits for its end.
"""

from __future__ import annotations

import os
from _thread import LockType, RLock

no_fork = RLock()
"""Held while something is made that a child has to hear of, until it is where the child looks."""


def free(*locks: LockType) -> None:
    """In the child: open locks, whose holders were threads of the parent.

    To release them would not do: a thread that had just got one may not have said so yet.
    """
    for lock in locks:
        lock._at_fork_reinit()  # type: ignore[attr-defined]  # what Python's own modules use here


os.register_at_fork(
    before=no_fork.acquire, after_in_parent=no_fork.release, after_in_child=no_fork.release
)
