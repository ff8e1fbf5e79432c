"""What waits to be committed, and the threads behind it: who leads next, and who is woken when.

A thread that cannot lead at once queues a put or a *ticket* and waits on a lock of its own.  The
first of the queue is the *next leader*: its thread takes what is queued by then, up to the size of
a group.  When that group has ended its threads are woken one after the other, each by the one
before it, and the thread of the next leader last (``wakes``).

Invariants:

- ``next_leader`` is not None exactly while the standing says ``named``.
- The main thread is not a link of the chain: a signal may take it away, and then nobody would wake
  those behind it.  The leader wakes it directly.
- Nobody is woken twice, and to wake the next of a chain is safe for anybody at any time.
- All of it is for holders of the commit mutex, but ``chain.left`` and ``chain.wake_next``.

Left out: what is done with a group (``committer``).
"""

from __future__ import annotations

import threading
from _thread import LockType, get_ident
from operator import length_hint

from ..system.wakes import WakeChain, held_lock, wake as wake_up
from .context import CommitContext
from .entries import Commit
from .group import Group, Queued, Ticket
from .puts import PUTS_MAX, WAITER, Put, Puts

GROUP_BYTES_MAX = 1 << 20
"""Bytes of the records of one group, but for one that is larger alone."""


class CommitQueue:
    """Puts and tickets in the order in which they came, and the locks of their threads."""

    def __init__(self, context: CommitContext, puts_durable: bool) -> None:
        self.chain = WakeChain()
        """The threads of the last group, on their way back, and whoever came meanwhile."""
        self.next_leader: Queued | None = None
        self.abandoned: list[Queued] = []
        """What threads had queued that were interrupted and may have gone: it is taken back."""
        self.errors: dict[LockType, BaseException] = {}
        """Errors of puts, for the threads that are about to be woken."""
        self.puts_max = PUTS_MAX
        self.bytes_max = GROUP_BYTES_MAX
        self._context = context
        self._puts_durable = puts_durable
        self._puts: list[Put] = []
        self._tickets: list[Ticket] = []
        self._waiters: list[LockType] = []
        """Locks of those who wait for the end of the group in flight without being in it."""
        self._main = threading.main_thread().ident
        self._main_wake: LockType | None = None
        """What the main thread waits for."""

    # -------------------------------------------------------------- coming

    def add_put(self, put: Put) -> bool:
        """Queue a put; False, and nothing done, if it is best to lead at once."""
        queued = self._may_queue(put[WAITER])
        if queued:
            self._puts += (put,)
            self._name_if_idle(put)
        return queued

    def add_ticket(self, ticket: Ticket) -> bool:
        """Queue a ticket; False, and nothing done, if it is best to lead at once."""
        queued = self._may_queue(ticket.wake)
        if queued:
            self._tickets += (ticket,)
            self._name_if_idle(ticket)
        return queued

    def _may_queue(self, wake: LockType) -> bool:
        # While those of the last group are still being woken whoever comes first waits for that:
        # by then most of them are back, and one sync serves all.
        if not self._context.standing.busy and not self.chain.join(wake):
            return False  # they have been woken meanwhile
        if get_ident() == self._main:
            self._main_wake = wake
        return True

    def _name_if_idle(self, queued: Queued) -> None:
        context = self._context
        if not context.standing.busy:
            self.next_leader, context.standing = queued, context.standing.after["name"]

    def applied_soon(self) -> LockType:
        """Return a lock that can be taken once the group in flight has ended."""
        waiter = held_lock()
        self._waiters += (waiter,)
        return waiter

    # -------------------------------------------------------------- going away

    def withdraw_abandoned(self) -> None:
        """Take back what interrupted threads had queued; done twice it does the same."""
        while self.abandoned:
            self._withdraw(self.abandoned[0])
            del self.abandoned[0]

    def _withdraw(self, queued: Queued) -> None:
        self._puts = [put for put in self._puts if put is not queued]
        self._tickets = [ticket for ticket in self._tickets if ticket is not queued]
        if self.next_leader is queued:
            self._rename()

    def _rename(self) -> None:
        """Name another next leader instead of one that has gone, and wake its thread."""
        context = self._context
        first, wake = self._first()
        after = context.standing.after["withdraw" if first is None else "rename"]
        self.next_leader, context.standing = first, after
        if wake is not None:
            wake_up(wake)

    def name_anybody(self) -> None:
        """Name the first of the queue, and wake its thread, if nobody leads or is to."""
        context = self._context
        first, wake = self._first()
        if not context.standing.busy and wake is not None:
            self.next_leader, context.standing = first, context.standing.after["name"]
            wake_up(wake)

    def _first(self) -> tuple[Queued | None, LockType | None]:
        """Return what is first in the queue, and the lock that its thread waits for."""
        if self._puts:
            return self._puts[0], self._puts[0][WAITER]
        if self._tickets:
            return self._tickets[0], self._tickets[0].wake
        return None, None

    # -------------------------------------------------------------- groups

    def take(self, group: Group) -> None:
        """Take from the heads of the queues, up to the size of a group, or up to a drop."""
        puts, tickets, puts_max = self._puts, self._tickets, self.puts_max
        size = count = 0
        for ticket in tickets:
            size += ticket.size
            if count and size > self.bytes_max:
                break
            count += 1
            if type(ticket) is Commit and ticket.undo is not None:
                break  # a drop that does not get into the log must not have refused anybody
        first = Puts(puts[:puts_max], self._puts_durable) if puts else None
        taken, puts, tickets = tickets[:count], puts[puts_max:], tickets[count:]
        group.puts, group.tickets, self._puts, self._tickets = first, taken, puts, tickets
        group.take()

    def end(self, group: Group) -> None:
        """Pass the lead on, and wake whoever waited for the group; done twice it does the same."""
        if not group.ended:
            context = self._context
            if group.own is None and not self._puts and not self._tickets:
                # A thread that is alone: nobody to wake, and the chain has been at its end before.
                context.standing, group.ended = context.standing.after["rest"], True
            else:
                self._hand_on(group)
        if group.main_wake is not None:
            wake_up(group.main_wake)
        if self._waiters:
            for waiter in self._waiters:
                wake_up(waiter)
            self._waiters = []
        if length_hint(self.chain.left):
            self.chain.wake_next()

    def _hand_on(self, group: Group) -> None:
        """Name the next leader, and line up the threads that wait: its own thread is the last."""
        context = self._context
        if group.puts is not None:
            group.puts.leave_errors(self.errors, group.own)
        first, last = self._first()
        wakes = group.wakes()
        if self._main_wake in wakes:
            group.main_wake = self._main_wake
            wakes.remove(self._main_wake)
        if last is not None:
            wakes.append(last)
        if length_hint(self.chain.left):
            self.chain.wake_all()  # at its end by now, unless its last thread was interrupted
        after = context.standing.after["rest" if first is None else "hand on"]
        chain = WakeChain(wakes)
        self.next_leader, self.chain, context.standing, group.ended = first, chain, after, True
