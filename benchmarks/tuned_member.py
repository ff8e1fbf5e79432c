"""A member of a cluster with options of its own that counts what it sends to copies that come back.

    python benchmarks/tuned_member.py server run DIRECTORY FILE segment_bytes=8388608 ...

The counts are in the file all the while, as numbers of 8 bytes (``LAYOUT``): bytes of history,
bytes of full copies, and when the first word was said to a copy that comes back, in nanoseconds of
the monotonic clock.  Whoever wants to count anew makes them zero.  They are taken around a function
of the product here, so that the product has none.
"""

from __future__ import annotations

import mmap
import struct
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import trio

from tidelog.engine.net.frames import Message, pack_message
from tidelog.engine.net.kinds import BY_NAME
from tidelog.engine.node.outflow import Outflow
from tidelog.engine.node.server import run_member
from tidelog.engine.store.options import Options
from tidelog.engine.system.interpreter import prepare_interpreter
from tidelog.engine.system.production import production

LAYOUT = struct.Struct("<3Q")
ADMIT, SUPPLY, PAIRS = (BY_NAME[name].number for name in ("admit", "supply", "pairs"))


class SentBack(NamedTuple):
    """What was sent to copies that come back, and when the first word was said."""

    history_bytes: int
    full_bytes: int
    began_ns: int


def read_sent(file: Path) -> SentBack:
    """What a member has told so far."""
    return SentBack(*LAYOUT.unpack(file.read_bytes()))


def forget_sent(file: Path) -> None:
    """Let a member count anew."""
    with open(file, "r+b") as opened:
        opened.write(bytes(LAYOUT.size))


def _count(told: mmap.mmap) -> None:
    tell = Outflow.tell

    def counted(self: Outflow, member: UUID, message: Message) -> None:
        tell(self, member, message)
        if message[0] not in (ADMIT, SUPPLY, PAIRS):
            return
        history, full, began = LAYOUT.unpack_from(told)
        if message[0] == SUPPLY:
            history += len(pack_message(message))
        elif message[0] == PAIRS:
            full += sum(len(field) for field in message if isinstance(field, bytes))
        LAYOUT.pack_into(told, 0, history, full, began or time.monotonic_ns())

    Outflow.tell = counted  # type: ignore[method-assign]


def main() -> None:
    """Run the member."""
    directory, file, *given = sys.argv[3:]
    named = (one.partition("=") for one in given)
    options: dict[str, Any] = {name: int(value) for name, _, value in named}
    Path(file).write_bytes(bytes(LAYOUT.size))

    async def run() -> None:
        await run_member(
            production(),
            directory,
            ready=lambda _where: None,
            stop=trio.Event(),
            options=Options(**options),
        )

    with open(file, "r+b") as opened, mmap.mmap(opened.fileno(), LAYOUT.size) as told:
        _count(told)
        prepare_interpreter()
        trio.run(run)


if __name__ == "__main__":
    main()
