"""Members that are the real thing: each in a thread of this process, over TCP of this machine."""

from __future__ import annotations

import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import trio

from tidelog.engine.client.blocking import connect
from tidelog.engine.node.member_files import init_member
from tidelog.engine.node.server import run_member
from tidelog.engine.system.environment import Address
from tidelog.engine.system.production import production

CLUSTER = UUID(int=77)


class RealMember:
    """One member in a thread of its own."""

    def __init__(self, directory: Path, address: Address) -> None:
        self.directory = directory
        self.address = address
        self._ready = threading.Event()
        self._errors: list[BaseException] = []
        self._token: trio.lowlevel.TrioToken | None = None
        self._stop: trio.Event | None = None

    def start(self) -> None:
        self._ready.clear()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def wait_ready(self) -> None:
        assert self._ready.wait(20)
        if self._errors:
            raise self._errors[0]

    def _run(self) -> None:
        try:
            trio.run(self._live)
        except BaseException as error:
            self._errors.append(error)
            self._ready.set()
            raise

    async def _live(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._stop = trio.Event()
        await run_member(
            production(),
            str(self.directory),
            listen=self.address,
            ready=lambda _: self._ready.set(),
            stop=self._stop,
        )

    def stop(self) -> None:
        assert self._stop is not None
        assert self._token is not None
        self._token.run_sync_soon(self._stop.set)
        self._thread.join(20)
        assert not self._thread.is_alive()


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@contextmanager
def real_members(
    directory: Path, count: int, partitions: int, backups: int = 0
) -> Iterator[list[RealMember]]:
    """A cluster of so many members, which ends with the block."""
    ports = free_ports(count)
    ids = [(UUID(int=n + 1), f"127.0.0.1:{port}") for n, port in enumerate(ports)]
    running = []
    for number, port in enumerate(ports):
        home = directory / f"m{number}"
        init_member(
            production(), str(home), cluster=CLUSTER, member=ids[number][0], members=ids,
            partitions=partitions, backups=backups,
        )  # fmt: skip
        running.append(RealMember(home, ("127.0.0.1", port)))
    for member in running:
        member.start()
    try:
        for member in running:
            member.wait_ready()
        yield running
    finally:
        for member in running:
            member.stop()


def url_of(running: list[RealMember]) -> str:
    return "tidelog://" + ",".join(f"127.0.0.1:{member.address[1]}" for member in running)


_shared: dict[tuple[int, int], list[RealMember]] = {}
_ends = ExitStack()


def shared_members(count: int, partitions: int) -> str:
    """The address of a cluster that several tests use, one after the other; it serves."""
    found = _shared.get((count, partitions))
    if found is None:
        directory = Path(_ends.enter_context(tempfile.TemporaryDirectory()))
        found = _ends.enter_context(real_members(directory, count, partitions))
        _shared[count, partitions] = found
        with connect(url_of(found)) as db:
            while not serves(db.status()):
                pass
    return url_of(found)


def serves(status: dict[str, Any]) -> bool:
    """Whether all members are there, as one of them says."""
    return bool(status["majority"] and all(present for _, _, present, _ in status["members"]))


def end_shared_members() -> None:
    """End the clusters that several tests have used."""
    _shared.clear()
    _ends.close()
