"""What a caller chooses by a word or a number: mode, isolation, durability, seconds."""

from __future__ import annotations

from typing import Any, Literal, TypedDict, get_args

from ...affinity.errors import UsageError
from ...tx.validation import Isolation as Isolation, Mode as Mode
from ..commit.lock_manager import SECONDS_MAX

Durability = Literal["always", "interval", "none"]


class TransactionOptions(TypedDict, total=False):
    """What a loop of attempts hands on to each transaction, for type checkers and editors.

    That is what ``transaction`` takes, but for ``deadline``, which is for all attempts together.
    """

    mode: Mode
    isolation: Isolation
    durability: Durability | None
    id: bytes | None
    tag: str | None
    lock_timeout: float | None
    plain_writes: bool


def choice(name: str, value: object, allowed: object) -> Any:
    """Return ``value`` if the literal type ``allowed`` has it, else raise ``UsageError``."""
    if value not in get_args(allowed):
        raise UsageError(f"{name}={value!r} is not one of {', '.join(get_args(allowed))}")
    return value


def checked_seconds(name: str, value: object) -> float:
    """Return how long somebody may have to wait, or raise ``UsageError`` for what is not a time."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise UsageError(f"{name}={value!r} is not a number", hint="Give seconds, as in 2.5.")
    if not 0 <= value <= SECONDS_MAX:
        raise UsageError(
            f"{name} is not within 0 and {SECONDS_MAX:,.0f} seconds",
            hint="A year has 31,536,000.",
        )
    return value
