"""Pins: whoever reads the log for a while says from which position on it must stay.

A pin may have a limit.  A reader that falls behind by more log than that is not worth the space:
its pin *breaks*, and whoever set it hears so, from whichever thread looks at the log next.  It has
to begin anew with something newer; a copy that is being supplied by history changes over to a full
supply.

Example: a pin at position 1,000 with a limit of 500 holds everything from 1,000 on while the log
ends at or below 1,500.  When the log is looked at and ends at 1,501, the pin breaks; moved to 1,200
before that, it would have held until the log had passed 1,700.

Invariants:

- A pin only moves forward, and holds nothing once it has been released or is broken.
- A broken pin tells its owner once.

Left out: what else holds the log (``wal.retention``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Pin:
    """What one owner needs of the log: everything from ``position`` on, at most ``limit`` bytes."""

    owner: str
    position: int
    limit: int | None
    broken: Callable[[], None] | None

    def move_to(self, position: int) -> None:
        """Need nothing below ``position`` any more; one below the present position is ignored."""
        self.position = max(self.position, position)


class LogPins:
    """The pins of one log; shared by threads."""

    def __init__(self) -> None:
        # Changed, and copied to be walked, in one step of the interpreter each.
        self._pins: dict[Pin, None] = {}

    def set(
        self,
        owner: str,
        position: int,
        *,
        limit: int | None = None,
        broken: Callable[[], None] | None = None,
    ) -> Pin:
        """Hold the log from ``position`` on, for as long as it is at most ``limit`` bytes long.

        ``owner`` is what statistics and tools call it.  ``broken`` is called once if it breaks.
        """
        pin = Pin(owner, position, limit, broken)
        self._pins[pin] = None
        return pin

    def release(self, pin: Pin) -> None:
        """Hold nothing for a pin any more; releasing twice is fine."""
        self._pins.pop(pin, None)

    def break_long(self, end: int) -> None:
        """Break the pins that hold more log than they may, given where the log ends."""
        for pin in list(self._pins):
            if pin.limit is None or end - pin.position <= pin.limit:
                continue
            # Whoever takes it out is the one to tell: two threads may look at once.
            if self._pins.pop(pin, pin) is None and pin.broken is not None:
                pin.broken()

    def positions(self) -> dict[str, int]:
        """Return the lowest position that each owner needs."""
        found: dict[str, int] = {}
        for pin in list(self._pins):
            found[pin.owner] = min(pin.position, found.get(pin.owner, pin.position))
        return found
