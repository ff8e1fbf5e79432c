"""The history that the log of this member has, read piece by piece: sent to a copy, or lent.

Invariants:

- The log is pinned from before it is searched until that is over.
- What had committed when a search began is told in the log, durably, and found.

Left out: what is looked for (``checkpoints.supplying``), and what is done with it: ``missed`` sends
it to a copy that comes back, ``lending`` to a primary that has not got it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import NamedTuple

import trio

from ...affinity.errors import CorruptLogError
from ...checkpoints.supplying import FoundNumbers, WantedNumbers
from ..store.store_files import StoreFiles
from .log import NodeLog
from .returns import PATIENCE_S
from .supply_log import begun

PIECE_BYTES = 512 << 10
"""Bytes of keys and values from which on the rest goes with the next piece."""


class NoHistoryError(Exception):
    """A log does not tell what is missing, or nobody says what it tells."""


class SearchTurn(NamedTuple):
    """What was found since the last turn, by partition, and whether the log goes on behind it."""

    found: Mapping[int, FoundNumbers]
    more: bool


NextTurn = Callable[[], Awaitable[SearchTurn]]
"""Goes on with a search; raises ``NoHistoryError``."""


class OwnHistory:
    """The history that is in the log of one incarnation."""

    def __init__(self, files: StoreFiles, node_log: NodeLog) -> None:
        self._files = files
        self._log = node_log

    def __repr__(self) -> str:
        return f"<OwnHistory of {self._files.path}>"

    @asynccontextmanager
    async def opened(
        self, owner: str, wanted: Mapping[int, WantedNumbers]
    ) -> AsyncIterator[NextTurn]:
        """Begin to search the log for what is missing; ``owner`` is who pins it.

        Raises ``NoHistoryError``, as each turn does.
        """
        run, keeper = self._files.environment.run, self._files.keeper
        # What has committed by now is told in the log, and that is durable, up to here.
        with trio.move_on_after(PATIENCE_S):
            await self._log.told()
        upto = self._log.position
        try:
            searched, pin = await run("supply", lambda: begun(keeper, owner, wanted, upto))
        except CorruptLogError as error:
            raise _no_history(error) from None
        read = partial(searched.read, PIECE_BYTES, self._files.environment.rest)

        async def turn() -> SearchTurn:
            try:
                more = await run("supply", read)
            except CorruptLogError as error:
                raise _no_history(error) from None
            return SearchTurn(searched.search.take_out(), more)

        try:
            yield turn
        finally:
            keeper.pins.release(pin)


def _no_history(error: CorruptLogError) -> NoHistoryError:
    """Return what is told of damage, or of what began before the first segment that is needed."""
    return NoHistoryError(f"the log does not tell what is missing: {error}")
