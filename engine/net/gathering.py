"""Messages that are sent while something is being taken: one frame for each connection, behind it.

What a member takes at once (all that one read completed, or what the end of a sync lets go on) may
have it say several things to the same peer.

Invariants:

- What was gathered is written before whoever takes something waits again, whatever it raises.
- A block within a block changes nothing: the outermost one writes.

Left out: what a frame is made of (``connection``).
"""

from __future__ import annotations

from typing import Protocol


class Gathered(Protocol):
    """A connection that has something to send."""

    def flush(self) -> object:
        """Send what waits; raises nothing for what the peer does."""


class Gathering:
    """The connections of one member that are written to at the end of a block."""

    def __init__(self) -> None:
        self._depth = 0
        self._gathered: list[Gathered] = []

    def __repr__(self) -> str:
        return f"<Gathering for {len(self._gathered)} connections>"

    def __enter__(self) -> None:
        self._depth += 1

    def __exit__(self, *_error: object) -> None:
        self._depth -= 1
        if self._gathered and not self._depth:
            gathered, self._gathered = self._gathered, []
            for one in gathered:
                one.flush()

    def takes(self, one: Gathered) -> bool:
        """Tell whether a connection is flushed soon, so that nothing needs to be written now."""
        if self._depth:
            self._gathered.append(one)
        return self._depth > 0
