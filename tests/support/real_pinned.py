"""A client that asks one member only, whatever that says of others: would it answer too much?

Real clients go elsewhere as soon as they hear of another primary.  This one asks on, so that a
member which was paused or cut off, and serves nothing any more, has somebody to give a stale answer
to.  What it refuses is noted as failed, what it never answers as unknown.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from itertools import count, cycle

import trio

from tidelog.codecs import Msgpack
from tidelog.engine.system.environment import Address
from tidelog.engine.system.production import production
from tidelog.testing.histories import Get, History, OpenCall, Put

from .raw_client import FailureError, RawClient, connected

NOTHING_DONE = frozenset({"remap", "wait", "TL-CLU-003", "TL-CLU-004"})
"""Codes of failures behind which nothing has happened."""
ANSWER_S_MAX = 6.0
PAUSE_S = 0.02


class Pinned:
    """Reads the keys of one map at one member, or writes them."""

    def __init__(self, name: str, address: Address, map_name: str, *, writes: bool) -> None:
        self.answered = 0
        """Calls that were answered with a value."""
        self._name = f"{'writer' if writes else 'reader'} at {name} only"
        self._writes = writes
        self._address = address
        self._map_name = map_name

    async def work(self, histories: Mapping[str, History]) -> None:
        """Ask for one key after the other, until cancelled; connect again whenever need be."""
        calls = zip(count(), cycle(histories), strict=False)
        while True:
            client = None
            try:
                with trio.fail_after(ANSWER_S_MAX):
                    client = await connected(
                        production().network, self._address, line=os.urandom(16)
                    )
                while True:
                    number, key = next(calls)
                    await self._ask(client, histories[key], key, number)
                    await trio.sleep(PAUSE_S)
            except (OSError, trio.TooSlowError):
                await trio.sleep(PAUSE_S)
            finally:
                if client is not None:
                    client.close()

    async def _ask(self, client: RawClient, history: History, key: str, number: int) -> None:
        namespace = next((row[0] for row in client.view[3] if row[1] == self._map_name), None)
        if namespace is None:
            raise ConnectionError("this member has not heard of the map yet")
        value = f"{self._name} {number}"
        action = Put(key, value) if self._writes else Get(key)
        call = history.begin(self._name, action, time.monotonic())
        try:
            with trio.fail_after(ANSWER_S_MAX):
                if self._writes:
                    pair: dict[bytes, bytes | None] = {key.encode(): Msgpack.encode(value)}
                    await client.put(os.urandom(16), namespace, pair)
                    call.ok(None, time.monotonic())
                else:
                    await self._read(client, namespace, key, call)
        except FailureError as failure:
            if failure.code in NOTHING_DONE:
                call.failed(time.monotonic())
            else:
                call.unknown(time.monotonic())
        except BaseException:
            call.unknown(time.monotonic())
            raise
        else:
            self.answered += 1

    async def _read(self, client: RawClient, namespace: int, key: str, call: OpenCall) -> None:
        ((data,), *_) = await client.ask("get", namespace, [key.encode()])
        call.ok(None if data is None else Msgpack.decode(data), time.monotonic())
