"""Whether a store is still open here, and what every call raises once it is not."""

from __future__ import annotations

from collections.abc import Callable

from ...affinity.errors import ClosedError, ForkedError, TidelogError


class OpenState:
    """Shared by all that belongs to one opening of a store."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.closed: Callable[[], TidelogError] | None = None
        """Returns the error for every later call; None while the store is open."""

    def check(self) -> None:
        """Raise ``ClosedError`` or ``ForkedError`` unless the store is open."""
        if self.closed is not None:
            raise self.closed()

    def closed_error(self) -> TidelogError:
        """Return the error for calls behind ``close``."""
        return ClosedError(f"the store {self.path} is closed")

    def forked_error(self) -> TidelogError:
        """Return the error for calls in the child of a fork."""
        return ForkedError(f"the store {self.path} was opened before this process was forked")
