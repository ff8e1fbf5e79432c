"""etcd as a peer: processes on loopback, a client in threads, and one in tasks.

Both clients are grpcio with messages packed by hand, and one connection to the member that leads.
(etcd-client-py, a binding to a client in Rust, sends one request at a time, however many tasks
ask.)  A get is linearizable, a put is answered when a majority has synced it: etcd's defaults.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic, sleep

PUT, GET = "/etcdserverpb.KV/Put", "/etcdserverpb.KV/Range"
START_S_MAX = 60.0
SMALL = 128
"""Lengths below it are one byte on the wire."""


def missing() -> str | None:
    """Why etcd cannot take part here; None if it can."""
    if shutil.which("etcd") is None:
        return "etcd is not installed (on Debian: apt-get install etcd-server)"
    return None


def version() -> str:
    """What the program says that it is."""
    told = subprocess.run(["etcd", "--version"], capture_output=True, text=True, check=True)
    return told.stdout.splitlines()[0].rpartition(" ")[2]


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody listens at."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]


@contextmanager
def running(folder: Path, members: int) -> Iterator[str]:
    """Processes of a new cluster until the block ends; yields the address of who leads."""
    ports = free_ports(2 * members)
    clients, peers = ports[:members], ports[members:]
    cluster = ",".join(f"m{at}=http://127.0.0.1:{port}" for at, port in enumerate(peers))
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for at, (client, peer) in enumerate(zip(clients, peers, strict=True)):
            options = {
                "name": f"m{at}",
                "data-dir": str(folder / f"m{at}"),
                "listen-client-urls": f"http://127.0.0.1:{client}",
                "advertise-client-urls": f"http://127.0.0.1:{client}",
                "listen-peer-urls": f"http://127.0.0.1:{peer}",
                "initial-advertise-peer-urls": f"http://127.0.0.1:{peer}",
                "initial-cluster": cluster,
                "logger": "zap",
                "log-level": "error",
            }
            command = ["etcd", *(f"--{name}={value}" for name, value in options.items())]
            processes.append(subprocess.Popen(command, stdout=sys.stderr))
        yield f"127.0.0.1:{_leading(clients)}"
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()


def _leading(ports: list[int]) -> int:
    deadline = monotonic() + START_S_MAX
    while monotonic() < deadline:
        for port in ports:
            request = urllib.request.Request(
                f"http://127.0.0.1:{port}/v3/maintenance/status", data=b"{}"
            )
            try:
                with urllib.request.urlopen(request, timeout=1) as answer:
                    told = json.load(answer)
            except OSError:
                continue
            if told.get("leader") == told["header"]["member_id"]:
                return port
        sleep(0.05)
    raise TimeoutError("no member of etcd leads")


class Threads:
    """One connection that threads share."""

    def __init__(self, address: str) -> None:
        import grpc

        self._channel = grpc.insecure_channel(address)
        self._put = self._channel.unary_unary(PUT)
        self._get = self._channel.unary_unary(GET)

    def put(self, key: bytes, value: bytes) -> object:
        return self._put(_field(1, key) + _field(2, value))

    def get(self, key: bytes) -> object:
        return self._get(_field(1, key))

    def close(self) -> None:
        self._channel.close()


def _field(number: int, data: bytes) -> bytes:
    """A field of bytes in a protobuf message."""
    assert len(data) < SMALL
    return bytes((number << 3 | 2, len(data))) + data


class Tasks:
    """One connection that tasks of asyncio share."""

    def __init__(self, address: str) -> None:
        import grpc

        self._channel = grpc.aio.insecure_channel(address)
        self._put = self._channel.unary_unary(PUT)
        self._get = self._channel.unary_unary(GET)

    async def put(self, key: bytes, value: bytes) -> object:
        return await self._put(_field(1, key) + _field(2, value))

    async def get(self, key: bytes) -> object:
        return await self._get(_field(1, key))

    async def close(self) -> None:
        await self._channel.close()
