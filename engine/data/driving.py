"""Carrying out operations where answers are awaited, in whatever event loop.

Left out: the same for a thread, which is ``api.answering.perform``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import islice
from typing import Any, TypeVar

from .requests import Operation, Request, Source

T = TypeVar("T")


async def drive(operation: Operation[T], answer: Callable[[Request], Awaitable[Any]]) -> T:
    """Carry out an operation: await the answer to each request, and return its result."""
    send, found = operation.send, None
    while True:
        try:
            request = send(found)
        except StopIteration as end:
            result: T = end.value
            return result
        found = await answer(request)


async def taken(source: Source, most: int) -> list[Any]:
    """Return the next of what a caller gave, up to ``most`` of them."""
    if not isinstance(source, AsyncIterator):
        return list(islice(source, most))
    found: list[Any] = []
    async for one in source:
        found.append(one)
        if len(found) == most:
            break
    return found
