"""A request of a client, from its arrival to its answer.

Invariants:

- A request is answered once; whatever goes wrong in it is its own failure, and ends nothing else.

Left out: what is asked (``requests``, ``committing``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...affinity.errors import TidelogError, UsageError
from ..net.connection import Connection
from ..net.failures import Failure, failure_of
from ..net.kinds import BY_NAME
from ..net.operations import MisunderstoodError
from .commits import not_understood, unexpected
from .partitions import RoutedError

RESPONSE, FAILURE = BY_NAME["response"], BY_NAME["failure"]


@dataclass(slots=True)
class ClientRequest:
    """A request that is not answered yet."""

    connection: Connection
    number: int
    deadline: float
    operation: str
    arguments: list[Any]
    opened: bytes | None = None
    """The open transaction that it commits."""

    def answer(self, value: object) -> None:
        """Answer it; ``UsageError`` if the answer is too long."""
        try:
            self.connection.send(RESPONSE.message(self.number, value))
        except UsageError as error:
            raise UsageError(
                f"the answer is too long: {error}", hint="Ask for fewer keys at once."
            ) from None

    def fail(self, error: Exception) -> None:
        """Answer it with an error."""
        if isinstance(error, RoutedError):
            failure = Failure(error.answer, str(error), error.fields)
        else:
            failure = failure_of(error)
        self.connection.send(FAILURE.message(self.number, *failure))

    def carry_out(self, handler: Callable[[ClientRequest], None]) -> None:
        """Do what it asks; whatever is raised is its answer."""
        try:
            handler(self)
        except TidelogError as error:
            self.fail(error)
        except MisunderstoodError as error:
            self.fail(not_understood(str(error)))
        except Exception as error:  # one client's request, not the member of all
            self.fail(unexpected(error))
