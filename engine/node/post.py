"""Messages about transactions: to other members over their connections, to this one at once.

Invariants:

- What this member tells itself is taken in order, each message behind the one that is being taken.

Left out: what arrives from others (``groups``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from ...affinity.topology import Incarnation
from ..net.frames import Message
from .outflow import Outflow

Deliver = Callable[[Incarnation, Message], None]


class Post:
    """What one incarnation says of transactions."""

    def __init__(self, me: Incarnation, outflow: Outflow) -> None:
        self._me = me
        self._outflow = outflow
        self._own: deque[Message] = deque()
        self._taking = False
        self.deliver: Deliver
        """Takes what this member tells itself; set before anything is told."""

    def __repr__(self) -> str:
        return f"<Post of {self._me}>"

    def tell(self, to: Incarnation, message: Message) -> None:
        """Send a message."""
        if to != self._me:
            self._outflow.tell(to.member, message)
            return
        self._own.append(message)
        if self._taking:
            return
        self._taking = True
        try:
            while self._own:
                self.deliver(self._me, self._own.popleft())
        finally:
            self._taking = False
