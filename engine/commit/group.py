"""What a leader carries into the log at once, and how far it has come with it."""

from __future__ import annotations

from _thread import LockType
from collections.abc import Sequence

from .entries import Batch, Commit, Entry
from .puts import Put, Puts

Ticket = Commit | Batch
"""What queues and is not a put: one transaction, or several entries of one thread."""

Queued = Put | Ticket
"""What a thread has queued; it waits for the outcome."""


class Group:
    """All that a leader took, and of that the entries that passed.

    ``own`` is what its thread has queued; None if it queued nothing and carries what it brought.
    ``logged``, ``applied`` and ``ended`` tell how far it has come: whoever has to see an
    interrupted one through goes on from there.
    """

    own: Queued | None = None
    puts: Puts | None = None
    tickets: Sequence[Ticket] = ()
    taken: Sequence[Entry] = ()
    passed: Sequence[Entry] = ()
    """Those of ``taken`` that were not refused."""
    logged = applied = ended = False
    cause: BaseException | None = None
    """What its leader raised before it was in the log."""
    main_wake: LockType | None = None
    """What the main thread waits for, if it is one of the others."""

    def take(self) -> None:
        """Take in hand what is in puts and tickets, the puts ahead of all tickets."""
        taken: list[Entry] = [] if self.puts is None else [self.puts]
        for ticket in self.tickets:
            if isinstance(ticket, Batch):
                taken += ticket.entries
            else:
                taken.append(ticket)
        self.taken = taken

    def wakes(self) -> list[LockType]:
        """Return what the others wait for."""
        wakes = [] if self.puts is None else self.puts.waiters(self.own)
        wakes += [ticket.wake for ticket in self.tickets if ticket is not self.own]
        return wakes

    def has(self, queued: object) -> bool:
        """Tell whether something that was queued is in it."""
        if any(ticket is queued for ticket in self.tickets):
            return True
        return self.puts is not None and self.puts.has(queued)
