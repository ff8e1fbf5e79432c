"""How fast a task reads: so many bytes per second, and no more.

Invariants:

- Nothing is waited for before the first block; behind each one, for as long as it takes at this
  pace.  What a slow reader has left unused is not made up for.
- Whoever closes the iterator does not wait.

Left out: what a block weighs, and how a read shares its bytes among tasks (``reads``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from ...engine.system.environment import Environment

T = TypeVar("T")


def paced(
    blocks: Iterable[T],
    size: Callable[[T], int],
    bytes_per_second: float,
    environment: Environment,
) -> Iterator[T]:
    """Yield blocks, each followed by a wait for what is left of the time that it may take."""
    begun = environment.monotonic()
    for block in blocks:
        yield block
        left = begun + size(block) / bytes_per_second - environment.monotonic()
        if left > 0:
            environment.wait(left)
        begun = environment.monotonic()
